"""What is δ(ε) where the contour integral is slow? Two finite pairs on a lattice, composed by a tilted FFT.

Each loss is replaced by two laws on the points o_j + k·g: one that *dominates* it (connect-the-dots: the mass of a
cell is moved to its two edges so that both P and Q keep their mass) and one that is *dominated* (of each outcome only
the number of its cell is seen, and of all outcomes only the sum of these numbers). Both differ from the truth by O(g²)
a step, wherever atoms lie. The T-fold composition of a law tilted by e^{cl} is one FFT, a power and an inverse FFT;
tilting keeps full relative accuracy around ε, and the mass that wraps around the window is bounded by Chernoff at other
tilts. Proofs: docs/explanation/lattice-bounds.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.contour import Abscissa, Parts, best_abscissa, chernoff_period, log_kappa, log_mgf_real
from tacit.accounting.losses import ROUND, Array, AtomsLoss, Loss, suffix_sums

#: Sizes of the first and the largest transform that are tried until the interval is narrow enough.
FIRST_SIZE, LAST_SIZE = 1 << 12, 1 << 20
#: More lattice points than this are refused, for all losses together and for the composition: some 200 MB at once.
MAX_CELLS = LAST_SIZE
#: Atoms that are put on a lattice at once.
ATOMS_AT_ONCE = 1 << 17
#: The part of δ, over all steps, that may lie above the lattices.
TAIL = 1e-8
#: The tilt between neighbouring lattice points is at most e to this.
STEEPEST = 30.0
#: An atom within this share of a step from a lattice point is taken to lie on it; the shift is charged to ε.
MISPLACED = 1e-9
#: A mass below this may have lost its digits; and the least that has a number.
SMALL, LEAST = 1e-290, 5e-324


class LatticeLaw(AtomsLoss):
    """A law of losses on o + k·g, k = 0, 1, …: masses of P, and what lies above the lattice, at +inf."""

    def __init__(self, offset: float, step: float, first: int, masses: Array, above: float) -> None:
        keep = masses > 0
        k = np.arange(first, first + len(masses))[keep]
        super().__init__(offset + k * step, masses[keep])
        self.offset, self.step, self.k, self.above = offset, step, k, above
        if len(k) == 0:
            raise OverflowError("no mass on the lattice")
        self.log_p = np.log(self.p)

    def tilted(self, c: float) -> tuple[float, float, float, float]:
        exponent = self.log_p + c * self.values
        top = float(exponent.max())
        size = 2 * abs(top) + 700.0  # of the exponents that count
        weights = np.exp(exponent - top)
        total = float(weights.sum())
        mean = float(weights @ self.values) / total
        variance = max(float(weights @ (self.values * self.values)) / total - mean * mean, 0.0)
        error = ROUND * (16 + math.log2(len(weights) + 1) + 4 * size)
        return top + math.log(total), error, mean, variance


def span(loss: Loss, tail: float) -> tuple[float, float]:
    """An interval outside which the continuous part of P has at most ``tail`` on either side; it holds every atom."""
    values, _ = loss.atoms()
    least = tail + loss.infinity * (1 + 1e-12)  # which counts as above everything
    low, high = -1.0, 1.0
    for _ in range(80):
        p, _ = loss.cells(np.array([low, high]))
        if p[0] <= tail and p[2] <= least:
            break
        if p[2] > least:
            high *= 1.6
        if p[0] > tail:
            low *= 1.6
    # narrow both ends to where the mass really is
    for _ in range(60):
        middle = np.linspace(low, high, 17)
        p, _ = loss.cells(middle)
        below, above = np.cumsum(p)[:-1], np.cumsum(p[::-1])[::-1][1:]
        new_low = float(middle[below <= tail].max(initial=low))
        new_high = float(middle[above <= least].min(initial=high))
        if new_high <= new_low:  # no continuous part at all
            break
        moved = (new_low - low) + (high - new_high)
        low, high = new_low, new_high
        if moved < 0.02 * (high - low):
            break
    else:
        new_high = new_low
    if new_high <= new_low:
        low, high = (float(values[0]), float(values[-1])) if len(values) else (0.0, 0.0)
    if len(values):
        low, high = min(low, float(values[0])), max(high, float(values[-1]))
    return low, high


def _anchor(loss: Loss, low: float, high: float, step: float) -> float:
    """The lattice passes through an atom, or through the fullest place at this resolution."""
    values, _ = loss.atoms()
    if len(values):
        return float(values[0])
    count = int(min(max((high - low) / step, 2), 4096))
    edges = np.linspace(low, high, count + 1)
    p, _ = loss.cells(edges)
    peak = int(np.argmax(p[1:-1]))
    # look closer: the cluster may be far narrower than a cell
    a, b = float(edges[peak]), float(edges[peak + 1])
    for _ in range(12):
        inner = np.linspace(a, b, 33)
        p, _ = loss.cells(inner)
        total = float(p[1:-1].sum())
        if total <= 0:
            break
        share = np.cumsum(p[1:-1]) / total
        first, last = int(np.searchsorted(share, 0.02)), min(int(np.searchsorted(share, 0.98)) + 1, 32)
        if last - first > 16:
            break
        a, b = float(inner[first]), float(inner[last])
    return 0.5 * (a + b)


def dominating(loss: Loss, step: float, tail: float) -> LatticeLaw:
    """A law on a lattice of this step that dominates a loss."""
    above = loss.between(step, tail)[0]
    low, high = span(above, tail)
    return _dominating(above, _anchor(above, low, high, step), step, low, high)


def seen(loss: Loss, step: float, tail: float) -> tuple[LatticeLaw, LatticeLaw]:
    """What is seen of a loss that tells only the number of its cell, cells of this step around points l: P, and Q·e^l.

    The numbers of several losses may be added up, which takes more information away. So P and Q are composed each by
    itself, and no cell needs a loss that lies on the lattice. What lies beyond the lattice is never claimed.
    """
    below = loss.between(step, tail)[1]
    low, high = span(below, tail)
    offset = _anchor(below, low, high, step)
    first, points = _points(offset, step, low, high)
    edges = np.append(points - step / 2, points[-1] + step / 2)
    p, q = (mass[1:-1] for mass in below.cells(edges))
    with np.errstate(divide="ignore"):
        level = np.exp(np.minimum(np.log(q) + points, 700.0))
    # where Q underflows: the loss of a cell is at least that of its lower edge
    level = np.where((q > SMALL) & (level < p * math.exp(min(step, 700.0))), level, p * math.exp(min(step / 2, 700.0)))
    p, level = p.copy(), level.copy()
    for values, mass in _in_blocks(below):
        cell = np.rint((values - offset) / step).astype(np.intp) - first
        np.add.at(p, cell, mass)
        with np.errstate(over="ignore"):
            np.add.at(level, cell, mass * np.exp(np.minimum(points[cell] - values, step)))
    # a cell so wide that this has no number is left out of what is seen, by P and by Q
    p, level = (np.where(np.isfinite(level), mass, 0.0) for mass in (p, level))
    # rounding to the safe side
    slack = 16 * ROUND * (2 + np.abs(points))
    return (
        LatticeLaw(offset, step, first, p * (1 - slack), 0.0),
        LatticeLaw(offset, step, first, np.where(p > 0, np.maximum(level * (1 + slack), LEAST), 0.0), 0.0),
    )


def on_multiples(loss: Loss, step: float, tail: float) -> LatticeLaw:
    """The dominating law on the whole multiples of ``step``."""
    return _dominating(loss, 0.0, step, *span(loss, tail))


def _points(offset: float, step: float, low: float, high: float) -> tuple[int, Array]:
    """The number of the first lattice point, and the points from below ``low`` to above ``high``."""
    first, last = math.floor((low - offset) / step) - 1, math.ceil((high - offset) / step) + 1
    if last - first > MAX_CELLS:
        raise OverflowError(f"a lattice of {last - first} points")
    return first, offset + step * np.arange(first, last + 1)


def _in_blocks(loss: Loss) -> Iterator[tuple[Array, Array]]:
    """Values and masses of the atoms, some at a time: what is made of each is as large as they are."""
    values, mass = loss.atoms()
    for i in range(0, len(values), ATOMS_AT_ONCE):
        yield values[i : i + ATOMS_AT_ONCE], mass[i : i + ATOMS_AT_ONCE]


def _dominating(loss: Loss, offset: float, step: float, low: float, high: float) -> LatticeLaw:
    """Connect the dots: each cell's mass goes to its two edges so that the masses of P and of Q are kept."""
    first, edges = _points(offset, step, low, high)
    p, q = loss.cells(edges)
    up = _to_upper_edge(p[1:-1], q[1:-1], edges[:-1], step)
    masses = np.zeros(len(edges))
    masses[1:] += up
    masses[:-1] += p[1:-1] - up
    masses[0] += p[0]  # below the lattice: moved up to it
    for values, mass in _in_blocks(loss):
        place = (values - offset) / step - first
        node = np.floor(place + MISPLACED).astype(np.intp)
        rest = np.maximum(place - node, 0.0)
        # of each atom domination sends this share one point up
        share = np.where(rest > MISPLACED, np.expm1(-rest * step) / math.expm1(-step), 0.0)
        np.add.at(masses, node, mass * (1 - share))
        np.add.at(masses, node + 1, mass * share)
    return LatticeLaw(offset, step, first, masses, float(p[-1]))


def _to_upper_edge(p: Array, q: Array, lower: Array, step: float) -> Array:
    """P-mass of each cell that goes to its upper edge so that the masses of P and of Q are kept."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        at_lower = np.exp(np.log(q) + lower)
    # where Q underflows nothing is known of the excess: all of the cell goes up
    at_lower = np.where((q > SMALL) & np.isfinite(at_lower), at_lower, 0.0)
    up = (p - at_lower) / -math.expm1(-step)
    # rounding of p - q e^l, relative to the cell's own mass, goes to the safe side
    up = up + 4 * ROUND * p / -math.expm1(-step)
    return np.asarray(np.clip(up, 0.0, p))


def _tail(log_delta: float, parts: Parts) -> float:
    """What one use of a loss may have above its lattice."""
    return math.exp(max(log_delta, -600.0)) * TAIL / max(1, sum(times for _, times in parts))


class LatticeCurve:
    """δ(ε) of a composition from its dominating and dominated lattice laws."""

    def __init__(self, parts: Parts, at: Abscissa, log_delta: float, size: int, period: float, guide: Parts) -> None:
        """``guide`` is a coarse law of the same losses, by which good abscissas are found cheaply."""
        self.step = choose_step(parts, period / size)
        longest = max(period, *(float(np.ptp(np.append(loss.atoms()[0], 0.0))) for loss, _ in parts))
        if longest / self.step > MAX_CELLS:  # a step that carries all atoms may be up to twice as fine as was asked for
            self.step = choose_step(parts, 2 * period / size)
        if longest / self.step > MAX_CELLS:  # atoms so close to each other are moved as if they were continuous
            self.step = period / size
        self.size = 1 << max(4, math.ceil(math.log2(period / self.step)))
        if self.size > MAX_CELLS:
            raise OverflowError(f"a lattice of {self.size} points")
        tail = _tail(log_delta, parts)
        self.misplaced = MISPLACED * self.step * sum(times for loss, times in parts if len(loss.atoms()[0]))
        upper = []
        for loss, times in parts:
            upper.append((dominating(loss, self.step, tail), times))
            if (points := sum(len(law.k) for law, _ in upper)) > MAX_CELLS:
                raise OverflowError(f"lattices of {points} points")
        c, centre = at.c, at.epsilon
        if c * self.step > STEEPEST:
            # a tilt that only the topmost lattice point would feel
            c = STEEPEST / self.step
            centre = sum(times * law.tilted(c)[2] for law, times in upper)
        self.start = centre
        self.upper = _Composed(upper, c, self.step, self.size, centre, guide)
        upper.clear()  # the memory is needed for the others
        below: tuple[list[tuple[LatticeLaw, int]], ...] = [], []
        for loss, times in parts:
            for laws, law in zip(below, seen(loss, self.step, tail), strict=True):
                laws.append((law, times))
        self.of_p = _Composed(below[0], c, self.step, self.size, centre, guide, (0,))
        below[0].clear()
        self.of_q = _Composed(below[1], c, self.step, self.size, centre, None, (1,))
        # the loss that a total of cell numbers stands for, where its masses have digits
        one, two = self.of_p, self.of_q
        known = (one.p > 10 * one.noise) & (two.p > 10 * two.noise)
        self.totals = one.values[known]
        self.means = self.totals + np.log(one.p[known] / two.p[known]) + (one.log_m - two.log_m)

    def interval(self, epsilon: float) -> tuple[float, float]:
        """A certified interval that contains δ(ε)."""
        high = min(1.0, self.upper.delta(epsilon - self.misplaced))
        # P - e^ε Q of any set of cells is a lower bound; the best one begins where the loss that they stand for is ε
        before = self.step / 2 if self.step * (self.of_p.c + 1) < 30 else 0.0
        at = [epsilon - before, epsilon, epsilon + self.step / 2]
        if len(self.totals):
            start = float(self.totals[np.argmin(np.abs(self.means - epsilon))]) - before
            if (self.of_p.c + 1) * (epsilon - start) < 150:  # within what the sums hold
                at.append(start)
        low = max(self.of_p.least(epsilon, x) - self.of_q.most(epsilon, x) for x in at)
        return min(max(low, 0.0), high), high

    def middle(self, epsilon: float) -> tuple[float, float]:
        """log of the dominating δ(ε) and its slope, for root finding."""
        return self.upper.log_delta(epsilon)


class _Composed:
    """The law of the total loss, tilted, on one window of the lattice."""

    def __init__(
        self,
        parts: list[tuple[LatticeLaw, int]],
        c: float,
        step: float,
        size: int,
        centre: float,
        guide: Parts | None,
        sums: tuple[int, ...] = (0, 1),
    ) -> None:
        """``guide`` is None where nothing need be known of what lies outside the window. ``sums`` are those that will
        be asked for: 0 of e^{-cl}, 1 of e^{-(c+1)l}."""
        self.c, self.step = c, step
        self.log_m = self.log_m_error = 0.0
        self.above = 0.0
        offset = 0.0
        for law, times in parts:
            k, error, _, _ = law.tilted(c)
            self.log_m += times * k
            self.log_m_error += times * (error + ROUND * abs(k))
            offset += times * law.offset
            self.above += times * (law.above + sys.float_info.min)  # or so little that it has no number
        # place the window so that the tilted mean is in its middle
        first = round((centre - offset) / step) - size // 2
        index = np.arange(first, first + size)
        self.values = offset + index * step
        for kind in (np.float64, np.longdouble):
            total, self.noise = self._compose(parts, size, kind)
            self.p = np.maximum(total[index % size].astype(float), 0.0)
            near = self.p[np.abs(self.values - centre) <= 1 / c + step]
            if self.noise < 1e-7 * float(near.mean()) or np.finfo(np.longdouble).eps > 1e-18:
                break
        self.bottom, self.top = float(self.values[0]), float(self.values[-1])
        if guide is not None:
            self._outside(parts, guide)
        # sums from the right, for all ε at once
        self.origin = centre
        # (what is cut off is too far away for :meth:`_sum` to use it, or adds less than the rounding of one term)
        self.suffixes = {
            more: suffix_sums(self.p * np.exp(np.clip(-(c + more) * (self.values - centre), -745.0, 600.0)))
            for more in sums
        }

    def _compose(
        self, parts: list[tuple[LatticeLaw, int]], size: int, kind: type[np.floating[Any]]
    ) -> tuple[NDArray[Any], float]:
        """The tilted law of the total loss on the cyclic lattice, and a bound on the rounding error of each entry."""
        unit = float(np.finfo(kind).eps) / 2
        levels = math.log2(size)
        log_power = np.zeros(size // 2 + 1, dtype=np.result_type(kind, 1j))
        relative, log_ceiling = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
        error = (4 * levels + 8) * unit  # of one entry of one transform
        gone = np.zeros(size // 2 + 1, dtype=bool)
        for law, times in parts:
            weights = np.exp((np.log(law.p) + self.c * law.values - law.tilted(self.c)[0]).astype(kind))
            folded = np.zeros(size, dtype=kind)
            np.add.at(folded, law.k % size, weights)
            transform = np.fft.rfft(folded)
            del weights, folded  # these are the largest arrays there are
            modulus = np.abs(transform).astype(float)
            relative += times * error / np.maximum(modulus, 1e-300)
            log_ceiling += times * np.log(modulus + error)
            gone |= transform == 0
            transform[transform == 0] = 1.0
            np.log(transform, out=transform)
            transform *= times
            log_power += transform
            del transform, modulus
        power = np.exp(log_power, out=log_power)
        power[gone] = 0.0
        size_of = np.abs(power).astype(float)
        # an entry is wrong by e^{relative} - 1 of its modulus, and its true modulus is below the ceiling
        wrong = np.where(relative < 1, size_of * np.expm1(np.minimum(relative, 1.0)), size_of + np.exp(log_ceiling))
        noise = 2 * wrong.sum() / size + 8 * levels * unit * size_of.sum() / size
        return np.fft.irfft(power, size), float(noise)

    def _outside(self, parts: list[tuple[LatticeLaw, int]], guide: Parts) -> None:
        """Bounds on log E[e^{cL}; L > top], log E[e^{cL}; L < bottom] and log P[L > top]."""
        c = self.c
        spread = math.sqrt(max(sum(times * law.tilted(c)[3] for law, times in parts), 1e-300))

        def bound(law: Parts, offset: float, edge: float) -> float:
            if c + offset <= 0:
                return math.inf
            k, e = log_mgf_real(law, c + offset)
            return k + e - offset * edge

        def beyond(side: float, edge: float) -> float:
            """The abscissa that is best for the guide bounds E[e^{cL}] beyond an edge for the law itself."""
            offsets = [side * 40 / spread / 1.4**power for power in range(24)]
            first = min(range(len(offsets)), key=lambda i: bound(guide, offsets[i], edge))
            best, hoped = bound([*parts], offsets[first], edge), bound(guide, offsets[first], edge)
            # where the law reaches farther than the guide, a smaller one may be better
            for offset in offsets[first + 1 :]:
                if best <= hoped + 1 or (value := bound([*parts], offset, edge)) >= best:
                    break
                best = value
            return best

        right, left = beyond(1.0, self.top), beyond(-1.0, self.bottom)
        tail = right - c * self.top  # P[L > top] <= E[e^{cL}; L > top] e^{-c top}
        mass = sum(times * math.log(float(law.p.sum())) for law, times in parts)
        left = min(left, mass + c * self.bottom)
        self.log_right, self.log_left, self.log_tail = right, left, tail

    def _sum(self, more: int, epsilon: float, start: float) -> float:
        """Σ p e^{-(c + more)(l-ε)} over l > start; ``more`` is 0 or 1."""
        i = int(np.searchsorted(self.values, start, side="right"))
        if i >= len(self.values):
            return 0.0
        shift, c = epsilon - self.origin, self.c + more
        if c * abs(shift) < 400:
            return float(self.suffixes[more][i]) * math.exp(c * shift)
        # far from where the sums were scaled to
        return float(self.p[i:] @ np.exp(-c * (self.values[i:] - epsilon)))

    def _off(self, epsilon: float) -> tuple[float, float, float]:
        """M(c)e^{-cε}, its relative error and that of a sum; an infinite one where nothing can be claimed."""
        c = self.c
        scale = self.log_m - c * epsilon
        wobble = self.log_m_error + ROUND * (8 + 4 * (abs(scale) + c * abs(epsilon)))
        far = epsilon < self.bottom or scale > 600 or c * (self.origin - epsilon) > 500
        if far or wobble > 0.5:  # too far from where the law was tilted to, or all digits are lost
            return 0.0, math.inf, 0.0
        rounding = (2 * math.isqrt(len(self.values)) + 16 + 4 * (c + 1) * abs(epsilon - self.origin)) * ROUND * 4
        return math.exp(scale), math.expm1(wobble), rounding

    def delta(self, epsilon: float) -> float:
        """An upper bound on Σ P(l)(1 - e^{ε-l})_+ of this law, with what lies above the lattice."""
        size, grow, rounding = self._off(epsilon)
        if math.isinf(grow):
            return 1.0
        one, two = (self._sum(more, epsilon, epsilon) for more in (0, 1))
        # An entry that is wrong by the noise weighs e^{-cx}(1 - e^{-x}), x how far it lies above ε: at most κ(c) at the
        # first lattice point, which may lie anywhere in its cell, and at most e^{-cx}, x a step or more, at those after
        slack = self.noise * (math.exp(log_kappa(self.c)) + self._after_first(0)) + rounding * (one + two)
        total = max(one - two, 0.0) + slack
        return size * total * (1 + grow) + math.exp(min(self.log_tail, 0.0)) + self.above

    def least(self, epsilon: float, start: float) -> float:
        """A lower bound on Σ P(l) over l > start."""
        size, grow, rounding = self._off(epsilon)
        if math.isinf(grow):
            return 0.0
        one = self._sum(0, epsilon, start)
        weight = math.exp(min(self.c * max(epsilon - start, 0.0), 700.0))  # of an entry at the start
        slack = self.noise * weight * (1 + self._after_first(0)) + rounding * one
        alias = math.exp(min(np.logaddexp(self.log_right, self.log_left) - self.c * epsilon, 700.0)) * weight
        return size * (one - slack) * (1 - grow) - alias

    def most(self, epsilon: float, start: float) -> float:
        """An upper bound on e^ε Σ P(l)e^{-l} over l > start in the window; what wraps around only adds to it."""
        size, grow, rounding = self._off(epsilon)
        if math.isinf(grow):
            return math.inf
        two = self._sum(1, epsilon, start)
        weight = math.exp(min((self.c + 1) * max(epsilon - start, 0.0), 700.0))
        slack = self.noise * weight * (1 + self._after_first(1)) + rounding * two
        return size * (two + slack) * (1 + grow)

    def _after_first(self, extra: int) -> float:
        """Σ_{j>=1} e^{-(c + extra)jg}."""
        exponent = (self.c + extra) * self.step
        return 1 / math.expm1(exponent) if exponent < 700 else 0.0

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        if self.c * (self.origin - epsilon) > 500:
            return math.inf, -self.c
        one, two = (self._sum(more, epsilon, epsilon) for more in (0, 1))
        if one - two <= 0:
            return -math.inf, -self.c
        return self.log_m - self.c * epsilon + math.log(one - two), -two / (one - two)


def choose_step(parts: Parts, step: float) -> float:
    """A step not above ``step`` that carries the atoms of every loss, as nearly as one can."""
    gaps = [(loss.spacing(), times) for loss, times in parts if loss.spacing()]
    if not gaps:
        return step
    widest = max(float(gap or 0) for gap, _ in gaps)
    if len(gaps) == len(parts) == 1 and isinstance(parts[0][0], AtomsLoss):
        return widest  # exact as it is
    step = min(step, widest)
    start = math.ceil(widest / step)
    candidates = widest / np.arange(start, start + max(1, min(start, 20000)))
    if len(gaps) == 1:
        return float(candidates[0])
    wrong = np.zeros(len(candidates))
    for gap, times in gaps:
        ratio = float(gap or 0) / candidates
        wrong += times * candidates * (ratio - np.floor(ratio + 1e-9))
    return float(candidates[int(np.argmin(wrong + 1e-3 * candidates.max() * (candidates < 0.25 * candidates[0])))])


class Refinement:
    """Curves of one composition on finer and finer lattices."""

    def __init__(self, parts: Parts, *, log_delta: float | None, epsilon: float | None) -> None:
        self.parts = parts
        size = log_delta if log_delta is not None else -20.0
        for _ in range(5):
            coarse: Parts = []
            longest = 0.0
            tail = _tail(size, parts)
            for loss, times in parts:
                low, high = span(loss.between(math.inf, tail)[0], tail)
                longest = max(longest, high - low)
                rough = max(high - low, 1e-12) / 2048
                step = choose_step([(loss, times)], rough)
                if (high - low) / step > MAX_CELLS // 2:
                    step = rough
                coarse.append((dominating(loss, step, tail), times))
            self.at = best_abscissa(coarse, log_delta=log_delta, epsilon=epsilon)
            if log_delta is not None:
                break
            assert epsilon is not None
            now = min(self.at.log_m - self.at.c * epsilon + log_kappa(self.at.c), 0.0)
            if now > size:  # the tails that were left out are small enough
                size = max(size, now - 4)
                break
            size = now - 4
        self.log_delta, self.guide = size, coarse
        self.period = max(chernoff_period(coarse, self.at, size, digits=20.0)[0] * 2.2, longest / 2)
        self.size = FIRST_SIZE
        self._last = math.inf
        self._finest = max(loss.resolution(_tail(size, parts)) for loss, _ in parts)

    def curve(self, size: int) -> LatticeCurve:
        """The curve on a lattice of about this size."""
        return LatticeCurve(self.parts, self.at, self.log_delta, size, self.period, self.guide)

    def _finest_to(self, size: int) -> LatticeCurve:
        """The curve on a lattice of about this size, or the largest below it that is not refused."""
        while True:
            try:
                return self.curve(size)
            except OverflowError:
                size //= 2
                if size < FIRST_SIZE:
                    raise

    def next(self, missing: float) -> LatticeCurve | None:
        """A finer curve, given by how much the last one's interval was too wide; None when it gets no finer."""
        if math.isfinite(self._last):
            # the width falls with the square of the step, or at worst with the step; an infinite one says only that
            # the lattice was far too coarse
            factor = max(4.0, 1.2 * math.sqrt(missing)) if math.isfinite(missing) else 16.0
            factor = min(factor, LAST_SIZE / FIRST_SIZE)
            self.size = 1 << math.ceil(math.log2(self.size * factor))
        if self._last <= self._finest:
            return None
        if self.size > LAST_SIZE and self._last <= self.period / LAST_SIZE * 1.01:
            return None
        curve = self._finest_to(min(self.size, LAST_SIZE))
        if curve.step >= self._last:
            return None
        self._last = curve.step
        return curve
