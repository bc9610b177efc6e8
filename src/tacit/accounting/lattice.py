"""What is δ(ε) where the contour integral is slow? Two finite pairs on a lattice, composed by a tilted FFT.

Each loss is replaced by two laws on the points o_j + k·g: one that *dominates* it (connect-the-dots: the mass of a cell is
moved to its two edges so that both P and Q keep their mass) and one that is *dominated* (a convex function below the
privacy profile with corners on the lattice only). Both differ from the truth by O(g²) a step. The T-fold composition of a
law tilted by e^{cl} is one FFT, a power and an inverse FFT; tilting keeps full relative accuracy around ε, and the mass
that wraps around the window is bounded by Chernoff at other tilts. Proofs: docs/accounting.md, sections 6 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tacit.accounting.contour import Abscissa, Parts, best_abscissa, chernoff_period, log_kappa, log_mgf_real
from tacit.accounting.losses import ROUND, Array, AtomsLoss, Loss

#: Sizes of the transform that are tried, one after the other, until the interval is narrow enough.
SIZES = (1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22)


class LatticeLaw(AtomsLoss):
    """A law of losses on o + k·g, k = 0, 1, …: masses of P, what is at +inf above the lattice, and the log of e^{cl} sums."""

    def __init__(self, offset: float, step: float, first: int, masses: Array, above: float) -> None:
        keep = masses > 0
        k = np.arange(first, first + len(masses))[keep]
        super().__init__(offset + k * step, masses[keep])
        self.offset, self.k, self.above = offset, k, above


def _span(loss: Loss, tail: float) -> tuple[float, float]:
    """Losses below and above which P has less than ``tail`` (the lower end also where Q is left)."""
    scale = 1.0
    low, high = -1.0, 1.0
    for _ in range(60):
        p, _ = loss.cells(np.array([low, high]))
        done = True
        if p[2] > tail and high < min(loss.supremum, 1e6):
            high, done = high * 1.7, False
        if p[0] > tail:
            low, done = low * 1.7, False
        if done:
            break
        scale *= 1.7
    high = min(high, loss.supremum) if math.isfinite(loss.supremum) else high
    # narrow both ends to where the mass really is
    for _ in range(40):
        middle = np.linspace(low, high, 9)
        p, _ = loss.cells(middle)
        below, above = np.cumsum(p)[:-1], np.cumsum(p[::-1])[::-1][1:]
        new_low = middle[below <= tail].max(initial=low)
        new_high = middle[above <= tail].min(initial=high)
        if new_high - new_low > 0.98 * (high - low):
            break
        low, high = float(new_low), float(new_high)
    return low, high


def _anchor(loss: Loss, low: float, high: float, step: float) -> float:
    """The lattice passes through an atom, or through the mean loss of the fullest cell of this size."""
    fixed = loss.anchor()
    if fixed is not None:
        return fixed
    count = int(min(max((high - low) / step, 2), 4096))
    edges = np.linspace(low, high, count + 1)
    p, _ = loss.cells(edges)
    peak = int(np.argmax(p[1:-1]))
    # look closer: the cluster may be far narrower than a cell
    a, b = edges[peak], edges[peak + 1]
    for _ in range(12):
        inner = np.linspace(a, b, 33)
        p, _ = loss.cells(inner)
        share = p[1:-1] / max(float(p[1:-1].sum()), 1e-300)
        full = np.flatnonzero(np.cumsum(share) > 0.02)
        if len(full) == 0:
            break
        first = int(full[0])
        last = len(share) - int(np.flatnonzero(np.cumsum(share[::-1]) > 0.02)[0])
        if last - first > 16:
            break
        a, b = inner[first], inner[last]
    centre = 0.5 * (a + b)
    p, q = loss.cells(np.array([centre - step / 2, centre + step / 2]))
    if p[1] > 0 and q[1] > 0:
        return float(min(max(math.log(p[1] / q[1]), centre - step / 2), centre + step / 2))
    return float(centre)


def laws(loss: Loss, step: float, tail: float) -> tuple[LatticeLaw, LatticeLaw]:
    """The dominating and the dominated law of one loss on a lattice of this step."""
    low, high = _span(loss, tail)
    offset = _anchor(loss, low, high, step)
    first = math.floor((low - offset) / step - 1e-9)
    last = math.ceil((high - offset) / step - 1e-9) + 1
    edges = offset + step * np.arange(first, last + 1)
    p, q = loss.cells(edges)
    cell_p, cell_q = p[1:-1], q[1:-1]
    up = _to_upper_edge(cell_p, cell_q, edges[:-1], step)
    masses = np.zeros(len(edges))
    masses[1:] += up
    masses[:-1] += cell_p - up
    masses[0] += p[0]  # below the lattice: moved up to it
    dominating = LatticeLaw(offset, step, first, masses, float(p[-1]))
    centre = -first if 0 <= -first < len(edges) else None
    dominated = LatticeLaw(offset, step, first, _dominated(loss, edges, cell_p, up, step, centre), 0.0)
    return dominating, dominated


def _to_upper_edge(p: Array, q: Array, lower: Array, step: float) -> Array:
    """P-mass of each cell that goes to its upper edge so that the masses of P and of Q are kept."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        at_lower = np.exp(np.log(q) + lower)
    at_lower = np.where(np.isfinite(at_lower), at_lower, p)
    up = (p - at_lower) / -math.expm1(-step)
    # rounding of p - q e^l, relative to the cell's own mass, goes to the safe side
    up = up + 4 * ROUND * p / -math.expm1(-step)
    return np.clip(up, 0.0, p)


def _dominated(loss: Loss, edges: Array, cell_p: Array, up: Array, step: float, centre: int | None) -> Array:
    """Masses of a law on the lattice whose privacy profile lies below the loss's own.

    The profile's chord over a cell lies above it by at most gap = Δ·u·w/(u + w e^g) (all of the cell at its mean). The
    corners are lowered by the larger gap of the two cells beside them; where that would need negative mass, the cells
    around are moved to their lower edge instead, which lowers the profile too.
    """
    up = np.maximum(up - 8 * ROUND * cell_p / -math.expm1(-step), 0.0)
    rise, fall = math.expm1(step), -math.expm1(-step)
    floored = np.zeros(len(cell_p), dtype=bool)
    lumped = np.zeros(len(edges))
    cell_p = cell_p.copy()
    if centre is not None and 0 < centre < len(cell_p):
        # A cluster narrower than a cell sits on the lattice point through its own mean: as one outcome.
        half = np.array([edges[centre] - step / 2, edges[centre] + step / 2])
        p, q = loss.cells(half)
        if p[1] > 0.5 * (cell_p[centre - 1] + cell_p[centre]) and q[1] > 0:
            mean = math.log(p[1] / q[1])
            if mean >= edges[centre] - 1e-9 * step:
                inner_p, _ = loss.cells(np.array([edges[centre - 1], half[0], half[1], edges[centre + 1]]))
                lumped[centre] += inner_p[2]
                cell_p[centre - 1], cell_p[centre] = inner_p[1], inner_p[3]
                up[centre - 1] = up[centre] = 0.0
                floored[centre - 1] = floored[centre] = True
    for _ in range(64):
        u = np.where(floored, 0.0, up)
        w = cell_p - u
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.where(u > 0, rise * u * w / (u + w * math.exp(step)), 0.0)
        d = np.zeros(len(edges))
        d[1:-1] = np.maximum(gap[:-1], gap[1:])
        d[0], d[-1] = gap[0], gap[-1]
        masses = lumped.copy()
        masses[1:] += u
        masses[:-1] += w
        slope = np.zeros(len(edges) + 1)
        slope[1:-1] = np.diff(d)
        slope[0], slope[-1] = d[0], -d[-1]
        masses = masses - (slope[1:] / rise - slope[:-1] / fall)
        bad = masses < 0
        # lowering an end corner would put a corner outside the lattice
        ends = np.array([d[0] > 0, d[-1] > 0])
        if not bad.any() and not ends.any():
            return masses
        spread = bad.copy()
        for shift in (1, 2):
            spread[shift:] |= bad[:-shift]
            spread[:-shift] |= bad[shift:]
        floored |= spread[:-1] | spread[1:]
        floored[0] |= ends[0]
        floored[-1] |= ends[1]
    masses = lumped
    masses[:-1] += cell_p
    return masses


def log_mgf_upper(loss: Loss, c: float) -> float:
    """An upper bound on log E_P[e^{cL}] from the dominating law (for losses without a log_mgf of their own)."""
    top = loss.supremum
    if not math.isfinite(top):
        return math.inf
    low, high = _span(loss, 1e-300)
    law, _ = laws(loss, (high - low) / 4096, 1e-300)
    value, error, _, _ = law.tilted(c)
    return value + error


class LatticeCurve:
    """δ(ε) of a composition from its dominating and dominated lattice laws."""

    def __init__(self, parts: Parts, at: Abscissa, log_delta: float, size: int, window: tuple[float, float]) -> None:
        self.start = at.epsilon
        self.at = at
        period = window[1] - window[0]
        self.step = _choose_step(parts, period / size)
        self.size = 1 << max(4, math.ceil(math.log2(period / self.step)))
        tail = math.exp(max(log_delta, -600.0)) * 1e-9 / max(1, sum(times for _, times in parts))
        pairs = [(laws(loss, self.step, tail), times) for loss, times in parts]
        self.upper = _Composed([(pair[0], times) for pair, times in pairs], at.c, self.step, self.size, at.epsilon)
        self.lower = _Composed([(pair[1], times) for pair, times in pairs], at.c, self.step, self.size, at.epsilon)

    def interval(self, epsilon: float) -> tuple[float, float]:
        """A certified interval that contains δ(ε)."""
        high = min(1.0, self.upper.delta(epsilon)[1])
        return min(self.lower.delta(epsilon)[0], high), high

    def middle(self, epsilon: float) -> tuple[float, float]:
        """log of the dominating δ(ε) and its slope, for root finding."""
        return self.upper.log_delta(epsilon)


class _Composed:
    """The law of the total loss, tilted, on one window of the lattice."""

    def __init__(self, parts: list[tuple[LatticeLaw, int]], c: float, step: float, size: int, centre: float) -> None:
        self.c, self.step = c, step
        self.parts: Parts = [(law, times) for law, times in parts]
        half = size // 2 + 1
        log_power = np.zeros(half, dtype=complex)
        relative = np.zeros(half)
        levels = math.log2(size)
        self.log_m = self.log_m_error = 0.0
        offset = 0.0
        self.above = 0.0
        for law, times in parts:
            k, error, _, _ = law.tilted(c)
            weights = np.exp(np.log(law.p) + c * law.values - k)
            folded = np.bincount(law.k % size, weights=weights, minlength=size)
            transform = np.fft.rfft(folded)
            with np.errstate(divide="ignore"):
                log_power += times * np.log(transform)
                relative += times * (4 * levels + 8) * ROUND / np.maximum(np.abs(transform), 1e-300)
            self.log_m += times * k
            self.log_m_error += times * (error + ROUND * abs(k))
            offset += times * law.offset
            self.above += times * law.above
        power = np.exp(log_power)
        # an entry's relative error e^{relative} - 1, never more than its own size allows
        wrong = np.where(np.isfinite(log_power.real), np.abs(power) * np.expm1(np.minimum(relative, 50.0)), 0.0)
        self.noise = float(2 * wrong.sum() / size + 4 * levels * ROUND * 2 * np.abs(power).sum() / size)
        law_of_total = np.fft.irfft(power, size)
        # place the window so that the tilted mean is in its middle
        first = round((centre - offset) / step) - size // 2
        index = np.arange(first, first + size)
        self.values = offset + index * step
        self.p = np.maximum(law_of_total[index % size], 0.0)
        self.bottom, self.top = float(self.values[0]), float(self.values[-1])
        self._outside()

    def _outside(self) -> None:
        """Bounds on log E[e^{cL}; L > top], log E[e^{cL}; L < bottom] and log P[L > top]."""
        c = self.c
        right = left = tail = math.inf
        spread = math.sqrt(max(sum(times * law.tilted(c)[3] for law, times in self.parts), 1e-300))
        for power in range(0, 12):
            offset = 8 / spread / 1.6**power
            k, e = log_mgf_real(self.parts, c + offset)
            right = min(right, k + e - offset * self.top)
            tail = min(tail, k + e - (c + offset) * self.top)
            if c - offset > 0:
                k, e = log_mgf_real(self.parts, c - offset)
                left = min(left, k + e + offset * self.bottom)
        mass = sum(times * math.log(float(law.p.sum())) for law, times in self.parts if isinstance(law, LatticeLaw))
        left = min(left, mass + c * self.bottom)
        self.log_right, self.log_left, self.log_tail = right, left, tail

    def delta(self, epsilon: float) -> tuple[float, float]:
        """(lower, upper) bounds on Σ P(l)(1 - e^{ε-l})_+ of this law, with what lies above the lattice in the upper."""
        c = self.c
        inside = self.values > epsilon
        excess = self.values[inside] - epsilon
        kernel = np.exp(-c * excess) * -np.expm1(-excess)
        scale = self.log_m - c * epsilon
        total = float(kernel @ self.p[inside])
        slack = float(kernel.sum()) * self.noise + ROUND * (len(excess) + 16) * total
        wobble = self.log_m_error + ROUND * (8 + 4 * (abs(scale) + c * abs(epsilon)))
        grow = math.expm1(min(wobble, 50.0))
        size = math.exp(min(scale, 700.0))
        high = size * (total + slack) * (1 + grow) + math.exp(min(self.log_tail, 0.0)) + self.above
        alias = math.exp(min(np.logaddexp(self.log_right, self.log_left) + log_kappa(c) - c * epsilon, 700.0))
        low = size * (total - slack) * (1 - min(grow, 1.0)) - alias
        return max(low, 0.0), max(high, 0.0)

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        c = self.c
        inside = self.values > epsilon
        excess = self.values[inside] - epsilon
        decay = np.exp(-c * excess) * self.p[inside]
        total = float(decay @ -np.expm1(-excess))
        if total <= 0:
            return -math.inf, -c
        return self.log_m - c * epsilon + math.log(total), -float(decay @ np.exp(-excess)) / total


def _choose_step(parts: Parts, step: float) -> float:
    """A step not above ``step`` that carries the atoms of every loss, as nearly as one can."""
    gaps = [(loss.spacing(), times) for loss, times in parts if loss.spacing()]
    if not gaps:
        return step
    widest = max(float(gap or 0) for gap, _ in gaps)
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


def curves(
    parts: Parts, *, log_delta: float | None, epsilon: float | None, tolerance: float | None
) -> Iterator[LatticeCurve]:
    """Curves on finer and finer lattices."""
    coarse: Parts = []
    for loss, times in parts:
        low, high = _span(loss, 1e-30 / max(times, 1))
        spacing = loss.spacing()
        step = (high - low) / 2048 if spacing is None else spacing / math.ceil(spacing * 2048 / (high - low + spacing))
        coarse.append((laws(loss, step, 1e-30 / max(times, 1))[0], times))
    at = best_abscissa(coarse, log_delta=log_delta, epsilon=epsilon)
    size_of_delta = log_delta
    if size_of_delta is None:
        assert epsilon is not None
        size_of_delta = at.log_m - at.c * epsilon + log_kappa(at.c)
    period = chernoff_period(coarse, at, size_of_delta, digits=20.0)[0] * 2.2
    for size in SIZES:
        yield LatticeCurve(parts, at, size_of_delta, size, (0.0, period))
