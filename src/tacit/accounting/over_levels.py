"""How does ε grow during a run in which a record rarely takes part? Many counts of steps from one set of levels.

The exponents of :mod:`tacit.accounting.levels` are linear in the number of steps, as those of the plain contour are:
F_t = e^{tA(z)}(e^{tB(z)} - 1) with A and B of one step. So the levels are laid, and the nodes made, once for a block of
counts. Along a run of neighbouring counts the ε that are asked for lie on a line; then each node's term is that of the
count before times a constant. Proofs: docs/explanation/rare-participation.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from tacit.accounting.contour import Parts, Unsuitable, log_mgf_real
from tacit.accounting.crossing import Ends
from tacit.accounting.levels import Band, Levels, nodes_needed
from tacit.accounting.losses import ROUND, Array, ComplexArray

#: Counts of one block lie within this factor.
BLOCK = 5.0
#: Accuracy asked of δ, as an exponent of e.
DIGITS = 12.0
#: At how many counts of a block ε is searched for; between them it is guessed.
KNOTS = 14
#: Half the width asked of ε, relative and absolute, and how much more is tried where that is too little.
MARGIN, LEAST_MARGIN, WIDER = 1e-5, 1e-7, (1.0, 8.0, 64.0)
#: ε lies on a line over a run of counts that are this share of the first, and at most so many.
RUN, LONGEST = 1 / 30, 256


class Block:
    """ε of one direction after each of the counts from ``first`` to ``last``, which is about ``near`` at the last."""

    def __init__(self, parts: Parts, first: int, last: int, delta: float, near: float) -> None:
        self.delta, self.last = delta, last
        log_delta = math.log(delta)
        self.levels = levels = Levels([(loss, times * last) for loss, times in parts], log_delta=log_delta)
        self.all: list[Band | _Cluster] = [_Cluster(levels), *levels.bands]
        self.near = 0.999 * near
        shares = (first / last, math.sqrt(first / last))
        ends = [*((share, min(self._rough_epsilon(share), self.near)) for share in shares), (1.0, self.near)]
        self.bands: list[Band | _Cluster] = []
        self.lines: list[_Line] = []
        for band in self.all:
            if max(band.log_bounds(*end).min() for end in ends) < log_delta - DIGITS - 2:
                self.bands.append(band)
            else:
                self.lines.append(_Line(band, ends, log_delta))
        if not self.lines:
            raise Unsuitable
        self.z = np.concatenate([line.z for line in self.lines])
        self.power = np.concatenate([line.power for line in self.lines])
        self.inside = np.concatenate([line.inside for line in self.lines])
        self.kernel = np.concatenate([line.kernel for line in self.lines])
        # F of the cluster has no second factor
        self.whole = np.concatenate([np.full(len(line.z), float(line.whole)) for line in self.lines])

    def _missing(self, share: float | Array, epsilon: float | Array, bands: Sequence[Band | _Cluster]) -> float | Array:
        """log of Chernoff's bounds on the δ of runs that belong to some bands."""
        found = [np.full(np.shape(share), -math.inf), *(b.log_bounds(share, epsilon).min(axis=-1) for b in bands)]
        return np.asarray(np.logaddexp.reduce(found))

    def _rough_epsilon(self, share: float) -> float:
        """A little below the ε at which δ is met: where Chernoff's bounds, which are too large, say eδ."""

        def above(epsilon: float) -> bool:
            return bool(self._missing(share, epsilon, self.all) > math.log(self.delta) + 1)

        low, high = 0.0, 1.0
        while above(high):
            low, high = high, 2 * high
            if high > 1e6:
                raise Unsuitable
        while high - low > 1e-3 * high:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if above(middle) else (low, middle)
        return high

    def bounds(self, counts: Array) -> tuple[Array, Array]:
        """Lower and upper ends of ε for ascending counts of the block; 0 and inf where nothing was found."""
        guess = self._guess(counts)
        low, high = np.zeros(len(counts)), np.full(len(counts), math.inf)
        start = 0
        while start < len(counts):
            stop = _run(counts, start)
            here = slice(start, stop)
            for wider in WIDER:
                low[here], high[here] = self._certified(counts[here], guess[here], wider)
                if np.isfinite(high[here]).all() and (low[here] > 0).all():
                    break
            start = stop
        return low, high

    def _guess(self, counts: Array) -> Array:
        knots = np.unique(np.round(np.geomspace(counts[0], counts[-1], min(KNOTS, len(counts)))))
        roots = np.empty(len(knots))
        x = self.near
        for i in reversed(range(len(knots))):
            if i + 2 < len(knots):  # along the line through the last two, in logarithms
                x = roots[i + 1] * (roots[i + 1] / roots[i + 2]) ** (
                    math.log(knots[i] / knots[i + 1]) / math.log(knots[i + 1] / knots[i + 2])
                )
            x = roots[i] = self._root(float(knots[i]) / self.last, x)
        if len(knots) < 4:
            return np.asarray(np.exp(np.interp(np.log(counts), np.log(knots), np.log(roots))))
        from scipy.interpolate import CubicSpline  # it brings much of scipy, which no other price needs

        return np.asarray(np.exp(CubicSpline(np.log(knots), np.log(roots))(np.log(counts))))

    def _root(self, share: float, x: float) -> float:
        """Newton's method on log δ(ε); what is found is checked later."""
        sized = self.kernel * np.exp(share * self.power) * (self.whole + np.expm1(share * self.inside))
        for _ in range(30):
            terms = sized * np.exp(-self.z * x)
            value, slope = float(terms.real.sum()), -float((terms * self.z).real.sum())
            if not (value > 0 and slope < 0):
                raise Unsuitable
            step = -math.log(value / self.delta) * value / slope
            x = max(x + max(-0.3 * x, min(step, 0.3 * x)), 1e-9)
            if abs(step) < 1e-7 * x:
                return x
        raise Unsuitable

    def _certified(self, counts: Array, guess: Array, wider: float) -> tuple[Array, Array]:
        """Ends for counts at equal distances: on a line above δ is at most what it should be, on one below at least."""
        margin = wider * (MARGIN * float(guess[0]) + LEAST_MARGIN)
        slope = float(guess[-1] - guess[0]) / max(float(counts[-1] - counts[0]), 1.0)
        chord = guess[0] + slope * (counts - counts[0])
        bend, sag = float((guess - chord).max()), float((chord - guess).max())
        upper, width = chord + bend + margin, bend + sag + 2 * margin
        shares = counts / self.last
        sums = self._sums(counts, upper, slope, width)
        over = self.levels.left_out + np.exp(np.minimum(self._missing(shares, upper, self.bands), 0.0))
        under = np.zeros(len(counts))
        for line in self.lines:
            off, off_below = line.off(shares, upper), line.off(shares, upper - width)
            over, under = over + off, under + off_below + line.alias(shares, upper - width)
        good = (sums[0] + over) * (1 + 4 * ROUND) <= self.delta
        low = ((sums[1] - under) * (1 - 4 * ROUND) >= self.delta) & (upper > width)
        return np.where(low, upper - width, 0.0), np.where(good, upper, math.inf)

    def _sums(self, counts: Array, upper: Array, slope: float, width: float) -> Array:
        """The sums over all nodes at ``upper`` and at ``width`` below it: each count's terms from those before."""
        ahead = float(counts[1] - counts[0]) / self.last if len(counts) > 1 else 0.0
        first = float(counts[0]) / self.last
        terms = self.kernel * np.exp(first * self.power - self.z * float(upper[0]))
        onwards = np.exp(ahead * (self.power - self.z * (slope * self.last)))
        grown = self.whole + np.expm1(first * self.inside)
        more, little = np.exp(ahead * self.inside), np.expm1(ahead * self.inside)
        below = np.exp(self.z * width)
        found = np.empty((2, len(counts)))
        for i in range(len(counts)):
            both = terms * grown
            found[0, i] = both.real.sum()
            found[1, i] = both.real @ below.real - both.imag @ below.imag
            terms *= onwards
            grown *= more
            grown += little
        return found


def _run(counts: Array, start: int) -> int:
    """Where a run of counts at equal distances ends over which ε is nearly a line."""
    most = int(np.searchsorted(counts, counts[start] * (1 + RUN), side="right"))
    gaps = np.diff(counts[start : max(min(most, start + LONGEST), start + 1)])
    uneven = np.flatnonzero(gaps != gaps[0]) if len(gaps) else gaps
    return start + 1 + (int(uneven[0]) if len(uneven) else len(gaps))


class _Cluster:
    """Runs whose losses all lie below the levels, as if they were a band."""

    def __init__(self, levels: Levels) -> None:
        self.parts, self.chernoff = levels.cluster, levels.cluster_chernoff
        self.log_all = self.chernoff.log_m

    def log_bounds(self, share: float | Array, epsilon: float | Array = 0.0) -> Array:
        """As :meth:`Band.log_bounds`."""
        chernoff = self.chernoff
        logs = chernoff.log_bounds + np.multiply.outer(np.subtract(share, 1.0), chernoff.log_m)
        return np.asarray(logs - np.multiply.outer(epsilon, chernoff.c))

    def log_tail(self, c: float) -> Callable[[float], float]:
        """For t a bound on log |F(c + is)| for every s >= t."""
        decays = [(loss.decay(c), times) for loss, times in self.parts]
        log_m, error = log_mgf_real(self.parts, c)
        return lambda t: log_m + error + sum(times * bound(t) for bound, times in decays)

    def exponents(self, c: float, t: Array) -> tuple[ComplexArray, Array, ComplexArray, Array]:
        """As :meth:`Band.exponents`; nothing lies inside a band."""
        power, error = np.zeros(len(t), dtype=complex), np.zeros(len(t))
        for loss, times in self.parts:
            value, off = loss.log_mgf(c, t)
            power += times * value
            error += times * (off + ROUND * np.abs(value))
        return power, error, np.zeros(len(t), dtype=complex), np.zeros(len(t))


@dataclasses.dataclass
class _Line:
    """The nodes of one band along one vertical line, for every count of a block."""

    band: Band | _Cluster
    ends: list[Ends]
    log_delta: float

    def __post_init__(self) -> None:
        band, want = self.band, self.log_delta - DIGITS - 1
        tried = band.chernoff.c
        bounds = np.array([band.log_bounds(*end) for end in self.ends])
        index = int(np.argmin((bounds - bounds.min(axis=1, keepdims=True)).max(axis=0)))
        self.c = c = float(tried[index])
        right: list[int] = []
        left: list[int] = []
        period = 0.0
        for bound in bounds:
            needed = [math.inf, -want / c]
            for side, others in ((0, range(index + 1, len(tried))), (1, range(index))):
                best = min(others, key=lambda i: (bound[i] - want) / abs(tried[i] - c), default=None)
                if best is not None:
                    needed[side] = min(needed[side], float((bound[best] - want) / abs(tried[best] - c)))
                    (right, left)[side].append(best)
            period = max(period, *needed)
        if not 0 < period < math.inf:
            raise Unsuitable
        self.period, self.right, self.left = period, right, left
        self._nodes(index, 2 * math.pi / period, want)

    def _nodes(self, index: int, step: float, want: float) -> None:
        band, c = self.band, self.c
        self.log_all = float(band.log_all[index])
        self.whole = isinstance(band, _Cluster)
        log_tail = band.log_tail(c)

        def enough(nodes: int) -> bool:
            t = nodes * step
            self.log_tail = log_tail(t) - self.whole * self.log_all  # of all steps, or of one that lies in the band
            self.log_last = math.log(math.pi * t)
            return all(float(self._log_left(np.asarray(s))) - c * e <= want for s, e in self.ends)

        nodes = nodes_needed(enough)
        t = step * np.arange(nodes + 1)
        enough(nodes)
        self.z: ComplexArray = c + 1j * t
        self.kernel = step / math.pi / (self.z * (self.z + 1))
        self.kernel[0] /= 2
        self.power, power_error, self.inside, inside_error = band.exponents(c, t)
        self._errors(power_error, inside_error)

    def _log_left(self, shares: Array) -> Array:
        """log of a bound on what lies beyond the last node, but for e^{-cε}."""
        if self.whole:
            return np.asarray(shares * (self.log_tail + self.log_all) - self.log_last)
        return np.asarray(self.log_tail + np.log(shares) + shares * self.log_all - self.log_last)

    def _errors(self, power_error: Array, inside_error: Array) -> None:
        """A bound on what the sum is wrong by for any count, as a multiple of e^{share·log_all - cε}."""
        rises = self.power.real - self.log_all
        with np.errstate(all="ignore"):
            size = np.exp(np.maximum(rises, self.ends[0][0] * rises))
            most = np.abs(self.inside)
            # of a run each count's term carries the rounding of those before it
            along = 64 + 16 * LONGEST + len(self.z) + np.abs(self.power)
            along += 8 * np.abs(self.z) * (1 + 2 * max(epsilon for _, epsilon in self.ends))
            wrong = np.exp(most) * np.expm1(np.minimum(inside_error, 1.0))
            grown = self.whole + np.exp(most) * np.expm1(most)
            wrong += grown * np.expm1(np.minimum(power_error + ROUND * along, 1.0))
            wrong *= size
        # where all digits are lost, F lies anywhere below its size on the real axis
        lost = ~np.isfinite(wrong) | (power_error > 0.5) | (inside_error > 0.5)
        if lost[0]:
            raise Unsuitable
        largest = float(size[0] * grown[0] + wrong[0])
        self.wrong = float(np.abs(self.kernel) @ np.where(lost, largest, wrong))
        self.kernel[lost] = self.power[lost] = self.inside[lost] = 0.0

    def off(self, shares: Array, epsilon: Array) -> Array:
        """What the sum may be wrong by: rounding, and the nodes that are left out."""
        rounding = np.exp(shares * self.log_all) * self.wrong
        return np.asarray((rounding + np.exp(self._log_left(shares))) * np.exp(-self.c * epsilon) * (1 + 1e-9))

    def alias(self, shares: Array, epsilon: Array) -> Array:
        """A bound on the shifted copies that the sum over nodes adds."""
        tried = self.band.chernoff.c
        bounds = self.band.log_bounds(shares, epsilon)
        found = []
        certain = float(_series(np.zeros(()), np.asarray(self.c * self.period)))  # δ is at most 1
        for others, worst in ((self.right, math.inf), (self.left, certain)):
            away = np.abs(tried[others] - self.c) * self.period
            found.append(np.minimum(_series(bounds[:, others], away).min(axis=1, initial=math.inf), worst))
        return np.asarray(found[0] + found[1])


def _series(log_first: Array, exponents: Array) -> Array:
    """e^{log_first} Σ_{n>=1} e^{-n·exponent} for each column, rounded up."""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(log_first - exponents - np.log(-np.expm1(-exponents)) + 1e-9))
