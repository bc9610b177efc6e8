"""What is δ(ε) of a composition, exactly? One contour integral with every error bounded.

For losses L_j of independent steps with K(z) = Σ T_j log E[e^{z L_j}] and any c > 0,

    δ(ε) = (1/2πi) ∫_{c-i∞}^{c+i∞} e^{K(z) - zε} / (z(z+1)) dz .

The trapezoidal rule with step 2π/Y along that line gives δ(ε) + Σ_{n≠0} e^{cnY} δ(ε + nY): *too large by a sum of
non-negative terms*, which Chernoff's inequality at two other abscissas bounds. Cutting the line at t adds at most
M(c) e^{-cε} |φ(t)| / (πt), with |φ| bounded for all larger t by the losses' ``decay``. Rounding and the error of K are
carried along. So one evaluation gives an interval for δ(ε), for any number of steps T at the same price.
Proofs: docs/explanation/certified-bounds.md.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tacit.accounting.losses import ROUND, ComplexArray, Loss

Parts = list[tuple[Loss, int]]
#: More nodes than this and the lattice method is the better choice.
MAX_NODES = 6000


class Unsuitable(Exception):
    """The contour would need too many nodes here; use the lattice instead."""


def log_mgf_real(parts: Parts, c: float) -> tuple[float, float]:
    """K(c) of the composition for real c, and its absolute error."""
    value = error = 0.0
    for loss, times in parts:
        k, e, _, _ = loss.tilted(c)
        value += times * k
        error += times * e
    return value, error


def log_kappa(c: float) -> float:
    """log sup_x (1 - e^{-x})_+ e^{-cx}: how much better than Chernoff's bound the hockey-stick's is."""
    return -c * math.log1p(1 / c) - math.log1p(c)


@dataclasses.dataclass(frozen=True)
class Abscissa:
    """Where the contour crosses the real axis: near the saddle point, with the spread of the tilted loss."""

    c: float
    log_m: float
    spread: float
    epsilon: float


def best_abscissa(
    parts: Parts, *, log_delta: float | None = None, epsilon: float | None = None, enough: float = -math.inf
) -> Abscissa:
    """The c that gives the best Chernoff bound on ε at this δ, or on δ at this ε (or one that puts log δ below
    ``enough``).

    Newton's method on log c, safeguarded. Any c is valid; a good one only makes the integral short.

    Many branches: either of two ends may be asked for, and each step is kept inside what is known.
    """

    def state(c: float) -> tuple[float, float, float, float]:
        k = mean = variance = 0.0
        for loss, times in parts:
            one = loss.tilted(c)
            k, mean, variance = k + times * one[0], mean + times * one[2], variance + times * one[3]
        # the stationary point of the bound: this rises with c
        pull = -math.log1p(1 / c)
        if log_delta is not None:
            return c * (mean + pull) - (k + log_kappa(c)) + log_delta, c * c * (variance + 1 / (c * (c + 1))), k, mean
        assert epsilon is not None
        return c * (mean + pull - epsilon), c * c * (variance + 1 / (c * (c + 1))), k, mean

    least = -30.0
    if epsilon is not None or (log_delta or -math.inf) > -3:
        least = _least_abscissa(parts, 0.0 if epsilon is None else epsilon)
    low, high = least, 30.0
    x = max(math.log(4.0), low)
    for _ in range(40):
        try:
            value, slope, k, _ = state(math.exp(x))
            if epsilon is not None and k + log_kappa(math.exp(x)) - math.exp(x) * epsilon < enough:
                break
        except OverflowError:
            value, slope = math.inf, math.inf
        if value > 0:
            high = min(high, x)
        else:
            low = max(low, x)
        step = -value / slope if math.isfinite(value) and slope > 0 else -1.0
        step = max(-1.5, min(1.5, step))
        if value > 1:
            # Beyond the optimum K may grow doubly exponentially, where Newton's steps are far too small.
            step = min(step, -0.3)
        if x + step <= low and low == least:
            x = low
            break
        if not low < x + step < high:
            step = 0.5 * (low + high) - x if high - low < 4 else math.copysign(1.5, step)
        x += step
        if (abs(step) < 0.02 and abs(value) < 1) or high - low < 1e-3:
            break
    c = math.exp(x)
    k = mean = variance = 0.0
    for loss, times in parts:
        one = loss.tilted(c)
        k, mean, variance = k + times * one[0], mean + times * one[2], variance + times * one[3]
    return Abscissa(c, k, math.sqrt(variance), mean)


def _least_abscissa(parts: Parts, epsilon: float) -> float:
    """log of the smallest c of use: below it the line would only get longer.

    Where δ(ε) is close to 1 the best Chernoff bound lies at c = 0. But aliases to the left fall like e^{-cY}, so Y
    would have no end. A c of one over the spread, or of ten over how far ε lies below the mean, costs ten digits at
    most; where rare losses are so large that they would be all the tilted law has, a smaller one is taken.
    """
    mean = variance = 0.0
    for loss, times in parts:
        _, _, one, two = loss.tilted(1e-9)
        mean, variance = mean + times * one, variance + times * two
    spread = math.sqrt(variance)
    if not (spread > 1e-12 and epsilon < mean + spread):
        return -30.0
    least = -math.log(max(spread, (mean - epsilon) / 10))
    while least > -30 and not _pull(parts, math.exp(least), epsilon) < 12:
        least -= 0.5
    return least


def _pull(parts: Parts, c: float, epsilon: float) -> float:
    """How far above ε the tilted mean lies, in units of 1/c: at most 11 for a normal law and the c made for it."""
    try:
        return c * (math.fsum(times * loss.tilted(c)[2] for loss, times in parts) - epsilon)
    except OverflowError:
        return math.inf


def chernoff_period(
    parts: Parts, at: Abscissa, log_delta: float, digits: float
) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """A period Y, and two other abscissas with their log bounds, that keep the aliases of δ below e^{-digits} of it."""
    c, epsilon = at.c, at.epsilon
    want = log_delta - digits - 1
    excess = max(0.0, at.log_m - c * epsilon - log_delta)
    # For a Gaussian the best abscissas lie this far away; heavier tails want them closer.
    offset = math.sqrt(2 * (digits + excess + 6)) / max(at.spread, 1e-12)

    def ladder(side: float) -> tuple[float, float, float]:
        best = (math.inf, math.nan, math.inf)
        for power in range(14):
            other = c + side * offset / 1.6**power
            if other < 0.02 * c:
                continue
            try:
                k, e = log_mgf_real(parts, other)
            except OverflowError:
                continue
            log_bound = k + e + log_kappa(other)
            period = (log_bound - other * epsilon - want) / abs(other - c)
            if period < best[0]:
                best = (period, other, log_bound)
            elif math.isfinite(best[0]):
                break
        return best

    right, left = ladder(1.0), ladder(-1.0)
    # to the left δ <= 1 may be the better bound
    period = max(right[0], min(left[0], -want / c), 1e-9)
    return period, right[1:], left[1:]


class Contour:
    """The integral of one composition along one line, reusable for every ε near the abscissa it was made for."""

    def __init__(
        self,
        parts: Parts,
        at: Abscissa,
        log_delta: float,
        digits: float = 24.0,
        left_out: float = 0.0,
        nodes: int = MAX_NODES,
    ) -> None:
        """``log_delta`` is the size of the δ to be resolved, ``digits`` the relative accuracy asked, e^{-digits},
        ``left_out`` the probability that the losses in ``parts`` do not cover, and ``nodes`` the most to be used."""
        self.parts, self.at, self.left_out = parts, at, left_out
        self.start = at.epsilon
        c = at.c
        # What the integrand's size is over what is looked for: the accuracy the aliases and the tail must have.
        self.excess = max(0.0, at.log_m - c * at.epsilon - log_delta)
        self.period, self._right, self._left = chernoff_period(parts, at, log_delta, digits)
        if not math.isfinite(self.period):
            raise Unsuitable
        step = 2 * math.pi / self.period
        count = self._count_nodes(step, digits, nodes)
        t = step * np.arange(count + 1)
        z: ComplexArray = c + 1j * t
        value = np.zeros(len(t), dtype=complex)
        error = np.zeros(len(t))
        for loss, times in parts:
            k, e = loss.log_mgf(c, t)
            value += times * k
            error += times * e + times * ROUND * np.abs(k)
        self.z, self.k, self.k_error = z, value, error
        self.log_kernel = np.log(z * (z + 1))
        self.weight = np.full(len(t), step / math.pi)
        self.weight[0] /= 2
        self.tail_t = float(t[-1] + step)
        self.tail_decay = sum(times * loss.decay(c)(self.tail_t) for loss, times in parts)

    def _alias(self, epsilon: float, period: float) -> float:
        """A bound on Σ_{n≠0} e^{cnY} δ(ε + nY)."""
        c = self.at.c
        c2, log_bound = self._right
        right = alias_series(log_bound - c2 * epsilon, (c2 - c) * period)
        # to the left: Chernoff at a smaller abscissa, or δ <= 1
        left = alias_series(0.0, c * period)
        c1, log_bound = self._left
        if math.isfinite(log_bound):
            left = min(left, alias_series(log_bound - c1 * epsilon, (c - c1) * period))
        return right + left

    def _count_nodes(self, step: float, digits: float, most: int) -> int:
        decays = [(loss.decay(self.at.c), times) for loss, times in self.parts]

        def enough(count: int) -> bool:
            t = (count + 1) * step
            fall = sum(times * bound(t) for bound, times in decays)
            return fall - math.log(max(t, 1e-300)) <= -(digits + self.excess)

        low, high = 8, 16
        while not enough(high):
            low, high = high, high * 2
            if high > most:
                raise Unsuitable
        while high - low > max(1, low // 16):
            middle = (low + high) // 2
            if enough(middle):
                high = middle
            else:
                low = middle
        return high

    def interval(self, epsilon: float) -> tuple[float, float]:
        """A certified interval that contains δ(ε)."""
        c, m = self.at.c, self.k - self.z * epsilon - self.log_kernel
        top = float(m[0].real)
        if top > 600:
            return 0.0, 1.0  # too far from the ε this line was made for: nothing is claimed
        terms = self.weight * np.exp(m - top)
        # K(z), zε and the logarithm are rounded; e^{error} - 1 is their relative effect on each term, or where that is
        # large the size of the term and of its error together, as one exponent
        noise = self.k_error + ROUND * (16 + 4 * (np.abs(self.k) + np.abs(self.z) * abs(epsilon) + np.abs(m)))
        with np.errstate(over="ignore"):
            lost = self.weight * np.exp(m.real - top + noise)
        wrong = np.where(noise < 1, np.abs(terms) * np.expm1(np.minimum(noise, 1.0)), lost)
        rounding = float(wrong.sum()) + ROUND * len(terms) * float(np.abs(terms).sum())
        total = float(terms.real.sum())
        log_m = float(self.k[0].real) + float(self.k_error[0])
        log_tail = self.tail_decay + log_m - c * epsilon - top
        tail = math.exp(log_tail) / (math.pi * self.tail_t) if log_tail < 700 else math.inf
        # Σ_{k>N} h/π · |F| <= (1/π) ∫_{t_N}^∞ |φ| M e^{-cε} / t² dt, with t_N the last node kept
        last = self.tail_t - float(self.z[1].imag if len(self.z) > 1 else 0.0)
        tail *= self.tail_t / max(last, 1e-300)
        scale = math.exp(top)
        high = scale * (total + rounding + tail) * (1 + 4 * ROUND) + self.left_out
        low = scale * (total - rounding - tail) * (1 - 4 * ROUND) - self._alias(epsilon, self.period)
        return min(1.0, max(0.0, low)), min(1.0, max(high, low, 0.0))

    def middle(self, epsilon: float) -> tuple[float, float]:
        """log of the computed finite part of δ(ε), and its derivative in ε; no bound, for root finding."""
        m = self.k - self.z * epsilon - self.log_kernel
        top = float(m[0].real)
        terms = self.weight * np.exp(m - top)
        total = float(terms.real.sum())
        slope = float((terms * self.z).real.sum())
        if total <= 0:
            return -math.inf, -self.at.c
        return top + math.log(total), -slope / total


def alias_series(log_first: float, exponent: float) -> float:
    """e^{log_first} Σ_{n>=1} e^{-n·exponent}, rounded up."""
    if exponent <= 0:
        return math.inf
    log_value = log_first - exponent - math.log(-math.expm1(-exponent)) + 1e-9
    return math.exp(log_value) if log_value < 700 else math.inf


def contour_for(
    parts: Parts, *, log_delta: float | None = None, epsilon: float | None = None, nodes: int = MAX_NODES
) -> Contour:
    """The contour for this δ or this ε, with the far tails of the losses left out where they weigh next to nothing.

    What is left out has probability at most e^{-18} of δ; it counts as lost in the upper end and as harmless in
    the lower.
    """
    if log_delta is not None:
        kept, left_out = without_tails(parts, log_delta)
        return Contour(kept, best_abscissa(kept, log_delta=log_delta), log_delta, left_out=left_out, nodes=nodes)
    assert epsilon is not None
    size = 0.0
    kept, left_out = parts, 0.0
    for _ in range(6):
        at = best_abscissa(kept, epsilon=epsilon)
        now = at.log_m - at.c * epsilon + log_kappa(at.c)
        if abs(now - size) < 1:
            break
        size = now
        kept, left_out = without_tails(parts, size - 4)
    return Contour(kept, at, min(now, 0.0), left_out=left_out, nodes=nodes)


def without_tails(parts: Parts, log_delta: float) -> tuple[Parts, float]:
    """The parts without the far tails of their losses, and the probability left out in all."""
    each = math.exp(max(log_delta - 18.0, -600.0)) / sum(times for _, times in parts)
    kept: Parts = []
    left_out = 0.0
    for loss, times in parts:
        shorter, missing = loss.without_tail(each)
        kept.append((shorter, times))
        left_out += times * missing
    return kept, left_out
