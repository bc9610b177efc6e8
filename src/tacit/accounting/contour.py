"""What is δ(ε) of a composition, exactly? One contour integral with every error bounded.

For losses L_j of independent steps with K(z) = Σ T_j log E[e^{z L_j}] and any c > 0,

    δ(ε) = (1/2πi) ∫_{c-i∞}^{c+i∞} e^{K(z) - zε} / (z(z+1)) dz .

The trapezoidal rule with step 2π/Y along that line gives δ(ε) + Σ_{n≠0} e^{cnY} δ(ε + nY): *too large by a sum of
non-negative terms*, which Chernoff's inequality at two other abscissas bounds. Cutting the line at t adds at most
M(c) e^{-cε} |φ(t)| / (πt), with |φ| bounded for all larger t by the losses' ``decay``. Rounding and the error of K are
carried along. So one evaluation gives an interval for δ(ε), for any number of steps T at the same price.
Proofs: docs/accounting.md, sections 2 to 5.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tacit.accounting.losses import ROUND, Array, ComplexArray, Loss

Parts = list[tuple[Loss, int]]
#: More nodes than this and the lattice method is the better choice.
MAX_NODES = 6000


class Unsuitable(Exception):
    """The contour would need too many nodes here; use the lattice instead."""


def log_mgf_real(parts: Parts, c: float) -> tuple[float, float]:
    """K(c) of the composition for real c, and its absolute error."""
    zero = np.zeros(1)
    value = error = 0.0
    for loss, times in parts:
        k, e = loss.log_mgf(c, zero)
        value += times * float(k[0].real)
        error += times * float(e[0])
    return value, error


def log_kappa(c: float) -> float:
    """log sup_x (1 - e^{-x})_+ e^{-cx}: how much better than Chernoff's bound the hockey-stick's is."""
    return -c * math.log1p(1 / c) - math.log1p(c)


def chernoff(parts: Parts, c: float, epsilon: float) -> float:
    """An upper bound on log δ(ε) from one real abscissa."""
    k, e = log_mgf_real(parts, c)
    return k + e - c * epsilon + log_kappa(c)


@dataclasses.dataclass(frozen=True)
class Abscissa:
    """Where the contour crosses the real axis: near the saddle point, with the spread of the tilted loss."""

    c: float
    log_m: float
    spread: float
    epsilon: float


def best_abscissa(parts: Parts, *, log_delta: float | None = None, epsilon: float | None = None) -> Abscissa:
    """The c that gives the best Chernoff bound on ε at this δ, or on δ at this ε.

    The search walks log c by factors of two until the bound stops improving, then narrows. Any c is valid; a good one
    only makes the integral short.
    """

    def value(log_c: float) -> float:
        c = math.exp(log_c)
        k, e = log_mgf_real(parts, c)
        if log_delta is not None:
            return (k + e + log_kappa(c) - log_delta) / c
        assert epsilon is not None
        return k + e + log_kappa(c) - c * epsilon

    step, x = math.log(4.0), math.log(8.0)
    best = value(x)
    for direction in (1.0, -1.0):
        moved = False
        while -25 < x + direction * step < 25:
            y = value(x + direction * step)
            if not y < best:
                break
            x, best, moved = x + direction * step, y, True
        if moved:
            break
    low, high = x - step, x + step
    ratio = 0.6180339887498949
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    fa, fb = value(a), value(b)
    for _ in range(7):
        if fa <= fb:
            high, b, fb = b, a, fa
            a = high - ratio * (high - low)
            fa = value(a)
        else:
            low, a, fa = a, b, fb
            b = low + ratio * (high - low)
            fb = value(b)
    log_c = a if fa <= fb else b
    c = math.exp(log_c)
    width = 0.02 * c
    k, _ = log_mgf_real(parts, c)
    up, _ = log_mgf_real(parts, c + width)
    down, _ = log_mgf_real(parts, c - width)
    curvature = max((up - 2 * k + down) / width**2, 0.0)
    return Abscissa(c, k, math.sqrt(curvature), (up - down) / (2 * width))


class Contour:
    """The integral of one composition along one line, reusable for every ε near the abscissa it was made for."""

    def __init__(self, parts: Parts, at: Abscissa, log_delta: float, digits: float = 28.0) -> None:
        """``log_delta`` is the size of the δ to be resolved, ``digits`` the relative accuracy asked, e^{-digits}."""
        self.parts, self.at = parts, at
        self.infinite = -math.expm1(sum(t * _log1m(loss.infinity) for loss, t in parts))
        c = at.c
        # What the integrand's size is over what is looked for: the accuracy the aliases and the tail must have.
        self.excess = max(0.0, at.log_m - c * at.epsilon - log_delta)
        self._choose_period(log_delta, digits)
        step = 2 * math.pi / self.period
        count = self._count_nodes(step, digits)
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

    def _choose_period(self, log_delta: float, digits: float) -> None:
        """Y, and the two abscissas whose Chernoff bounds keep the aliases below e^{-digits} of δ."""
        c, spread = self.at.c, max(self.at.spread, 1e-12)
        want = log_delta - digits
        reach = math.sqrt(2 * (digits + self.excess + 6))
        # A Gaussian would need `reach` standard deviations; the ladder covers heavier tails.
        rights = []
        for i in range(1, 5):
            c2 = c + reach / spread * i / 2
            k, e = log_mgf_real(self.parts, c2)
            rights.append((c2, k + e + log_kappa(c2)))
        lefts = []
        for i in range(1, 5):
            c1 = c - reach / spread * i / 4
            if c1 > 0.02 * c:
                k, e = log_mgf_real(self.parts, c1)
                lefts.append((c1, k + e + log_kappa(c1)))
        self._rights, self._lefts = rights, lefts
        period = reach * spread
        epsilon = self.at.epsilon
        for _ in range(60):
            if self._alias(epsilon, period) <= math.exp(max(want, -745.0)):
                break
            period *= 1.15
        self.period = period

    def _alias(self, epsilon: float, period: float) -> float:
        """A bound on Σ_{n≠0} e^{cnY} δ(ε + nY)."""
        c = self.at.c
        right = min(_series(log_bound - c2 * epsilon, (c2 - c) * period) for c2, log_bound in self._rights)
        # to the left: Chernoff at a smaller abscissa, or δ <= 1
        left = _series(0.0, c * period)
        for c1, log_bound in self._lefts:
            left = min(left, _series(log_bound - c1 * epsilon, (c - c1) * period))
        return right + left

    def _count_nodes(self, step: float, digits: float) -> int:
        decays = [(loss.decay(self.at.c), times) for loss, times in self.parts]

        def enough(count: int) -> bool:
            t = (count + 1) * step
            fall = sum(times * bound(t) for bound, times in decays)
            return fall - math.log(max(t, 1e-300)) <= -(digits + self.excess)

        low, high = 8, 16
        while not enough(high):
            low, high = high, high * 2
            if high > MAX_NODES:
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
        terms = self.weight * np.exp(m - top)
        # K(z), zε and the logarithm are rounded; e^{error} - 1 is their relative effect on each term
        noise = self.k_error + ROUND * (16 + 4 * (np.abs(self.k) + np.abs(self.z) * abs(epsilon) + np.abs(m)))
        rounding = float(np.abs(terms) @ np.expm1(np.minimum(noise, 50.0))) + ROUND * len(terms) * float(
            np.abs(terms).sum()
        )
        total = float(terms.real.sum())
        log_m = float(self.k[0].real) + float(self.k_error[0])
        tail = math.exp(min(self.tail_decay + log_m - c * epsilon - top, 700.0)) / (math.pi * self.tail_t)
        # Σ_{k>N} h/π · |F| <= (1/π) ∫_{t_N}^∞ |φ| M e^{-cε} / t² dt, with t_N the last node kept
        last = self.tail_t - float(self.z[1].imag if len(self.z) > 1 else 0.0)
        tail *= self.tail_t / max(last, 1e-300)
        scale = math.exp(min(top, 700.0))
        high = scale * (total + rounding + tail) * (1 + 4 * ROUND)
        low = scale * (total - rounding - tail) * (1 - 4 * ROUND) - self._alias(epsilon, self.period)
        high = min(1.0, self.infinite + max(high, 0.0))
        low = min(1.0, max(0.0, self.infinite * (1 - 4 * ROUND) + max(low, 0.0)))
        return low, max(high, low)

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


def _series(log_first: float, exponent: float) -> float:
    """e^{log_first} Σ_{n>=1} e^{-n·exponent}, rounded up."""
    if exponent <= 0:
        return math.inf
    log_value = log_first - exponent - math.log(-math.expm1(-exponent)) + 1e-9
    return math.exp(log_value) if log_value < 700 else math.inf


def _log1m(x: float) -> float:
    return -math.inf if x >= 1 else math.log1p(-x)


def array(values: list[float]) -> Array:
    """A float array (for tests and docs)."""
    return np.asarray(values, dtype=float)
