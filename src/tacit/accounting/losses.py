"""What is the privacy loss of one mechanism's worst-case pair?

A *dominating pair* (P, Q) of a mechanism gives its privacy loss L = log dP/dQ under P. Everything certified is computed
from three views of L, and each class below offers them for one family of pairs:

- ``log_mgf``: K(z) = log E_P[e^{zL}] on a vertical line Re z = c > 0, with a bound on its absolute error
  (quadrature, truncation and rounding). Used by :mod:`tacit.accounting.contour`.
- ``decay``: a proven, non-increasing bound on log |E e^{itL}| under the law tilted by e^{cL}, for all larger t.
- ``cells``: masses of P and Q between two values of the loss. Used by :mod:`tacit.accounting.lattice`.

``infinity`` is the mass of P on which L is infinite; the other views leave it out.
The proofs are in ``docs/explanation/pairs.md``, ``certified-bounds.md`` and ``lattice-bounds.md``.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.special import erfcx, ndtr

Array = NDArray[np.floating[Any]]
ComplexArray = NDArray[np.complexfloating[Any, Any]]
#: Unit round-off of double precision.
ROUND = 2.0**-53
#: Relative error of a distribution function at a rounded argument.
ACCURACY = 1e-12
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)
#: From so many values on, tails of a loss are kept.
MANY = 2000
#: A sum of masses that is larger than this has all its digits, even if some of the masses have few.
SMALL = 1e-280
#: Numbers in one temporary table: larger ones are made in blocks.
BLOCK = 1_000_000
#: From so many terms times nodes on, sums are made by transforms.
LONG = 1_000_000


class Loss:
    """The privacy loss of one pair; see the module's text for what each view means."""

    infinity: float = 0.0
    #: The loss cannot exceed this (inf where it can).
    supremum: float = math.inf
    #: ``log_mgf`` and ``decay`` can be used.
    analytic: bool = True
    #: The reversed pair has the same loss, so that one direction is enough.
    symmetric: bool = False

    def log_mgf(self, c: float, t: Array) -> tuple[ComplexArray, Array]:
        """K(c + it) for every t, and a bound on its absolute error."""
        raise NotImplementedError

    def given_finite(self) -> Loss:
        """The law of the loss given that it is finite: the masses of P are scaled up, the values stay as they are."""
        return self

    def unsampled(self) -> Loss:
        """A simpler loss that dominates this one: that of the same mechanism without sampling."""
        return self

    def without_tail(self, mass: float) -> tuple[Loss, float]:
        """A sub-law that leaves out at most ``mass`` of P where the loss is largest, and how much it leaves out.

        Losses with tails heavier than exponential need this: e^{cL} would otherwise be carried by events that no one
        will ever see.
        """
        return self, 0.0

    def between(self, step: float, tail: float) -> tuple[Loss, Loss]:
        """A loss that dominates this one and one that it dominates, for a lattice of this step.

        They are the loss itself unless its law is only known between two others; those may leave out ``tail`` of P.
        """
        return self, self

    def resolution(self, tail: float) -> float:
        """A lattice finer than this makes what :meth:`between` gives no better; 0 for a loss that is known exactly."""
        return 0.0

    def total_variation(self) -> float:
        """An upper bound on δ(0) of one use."""
        value, error = self.profile(0.0)
        return min(1.0, value + error + sys.float_info.min)

    def tilted(self, c: float) -> tuple[float, float, float, float]:
        """K(c), its error bound, and (without a bound) the mean K'(c) and variance K''(c) of the tilted loss."""
        width = 1e-3 * c
        k, e = self.log_mgf(c, np.zeros(1))
        up, down = (float(self.log_mgf(x, np.zeros(1))[0][0].real) for x in (c + width, c - width))
        middle = float(k[0].real)
        return middle, float(e[0]), (up - down) / (2 * width), max((up - 2 * middle + down) / width**2, 0.0)

    def decay(self, c: float) -> Callable[[float], float]:
        """A function b, non-increasing and at most 0, with log|M(c+is)/M(c)| <= b(t) for every s >= t."""
        return lambda t: 0.0

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """Masses of the continuous part of P and of Q below edges[0], between edges, and above edges[-1]."""
        raise NotImplementedError

    def atoms(self) -> tuple[Array, Array]:
        """Values that the loss takes with positive probability, ascending, and their P-masses."""
        return np.zeros(0), np.zeros(0)

    def spacing(self) -> float | None:
        """The distance of neighbouring atoms, where they lie on a lattice; None where there are fewer than two."""
        return None

    def unseen(self) -> float:
        """The mass of Q where P has none: the loss of the reversed pair is infinite there."""
        return self.infinity if self.symmetric else 0.0

    def beyond(self, x: float) -> tuple[float, float]:
        """log P and log Q of {L > x}."""
        p, q = self.cells(np.array([x]))
        if self._tails is not None:
            one, other = self._atoms_beyond(x)
            return _log(float(p[1]) + math.exp(one)), _log(float(q[1]) + math.exp(other))
        values, mass = self.atoms()
        above = values > x
        return _log(float(p[1] + mass[above].sum())), _log(float(q[1] + (mass[above] * np.exp(-values[above])).sum()))

    @functools.cached_property
    def _tails(self) -> tuple[Array, Array, Array] | None:
        """The atoms in order, and P and Q of each with all above, where they are many."""
        values, p = self.atoms()
        if len(values) < MANY:
            return None
        order = np.argsort(values, kind="stable")
        values, p = values[order], p[order]
        with np.errstate(over="ignore", under="ignore"):
            q = np.exp(np.log(p) - values)
        if not np.isfinite(q).all():
            return None
        return values, suffix_sums(p), suffix_sums(q)

    def _atoms_beyond(self, x: float) -> tuple[float, float]:
        """log P and log Q of the atoms above x."""
        if self._tails is not None:
            values, p, q = self._tails
            first = int(np.searchsorted(values, x, side="right"))
            if first == len(values):
                return -math.inf, -math.inf
            if min(p[first], q[first]) > SMALL:
                return math.log(p[first]), math.log(q[first])
        values, mass = self.atoms()
        above = values > x
        if not above.any():
            return -math.inf, -math.inf
        logs = np.log(mass[above])
        return log_sum(logs)[1], log_sum(logs - values[above])[1]

    def profile(self, epsilon: float) -> tuple[float, float]:
        """δ(ε) = P[L > ε] - e^ε Q[L > ε] of one use, and a bound on its error."""
        p, q = self.beyond(epsilon)
        value = 0.0 if epsilon + q >= p else math.exp(p) * -math.expm1(epsilon + q - p)
        # the exponent of e^ε Q is rounded too
        return value, (ACCURACY + 8 * ROUND * (abs(epsilon) + abs(q) if q > -math.inf else 0.0)) * math.exp(p)


class GaussianLoss(Loss):
    """N(mu, 1) against N(0, 1): the loss of Gaussian noise, closed under composition."""

    symmetric = True

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def log_mgf(self, c: float, t: Array) -> tuple[ComplexArray, Array]:
        z = c + 1j * t
        value = 0.5 * self.mu**2 * z * (z + 1)
        return value, 8 * ROUND * np.abs(value)

    def tilted(self, c: float) -> tuple[float, float, float, float]:
        k = 0.5 * self.mu**2 * c * (c + 1)
        return k, 8 * ROUND * k, self.mu**2 * (c + 0.5), self.mu**2

    def decay(self, c: float) -> Callable[[float], float]:
        rate = 0.5 * self.mu**2
        return lambda t: -rate * t * t

    def cells(self, edges: Array) -> tuple[Array, Array]:
        x = edges / self.mu  # L = mu X - mu^2/2, X ~ N(mu, 1) under P and N(0, 1) under Q
        return normal_cells(x - self.mu / 2), normal_cells(x + self.mu / 2)

    def profile(self, epsilon: float) -> tuple[float, float]:
        # e^ε Φ(-b) = e^{-a²/2} e^{b²/2} Φ(-b), as b² - a² = 2ε: no large numbers cancel
        a, b = self.mu / 2 - epsilon / self.mu, self.mu / 2 + epsilon / self.mu
        p = float(ndtr(a))
        rest = 0.5 * math.exp(-a * a / 2) * float(erfcx(b / math.sqrt(2)))
        return max(p - rest, 0.0), (ACCURACY + 8 * ROUND * b * (abs(a) + 1)) * p


class AtomsLoss(Loss):
    """A loss with finitely many values, for pure and approximate DP (two values) and discrete Gaussian noise."""

    def __init__(
        self, values: Any, p: Any, infinity: float = 0.0, *, spacing: float | None = None, symmetric: bool = True
    ) -> None:
        self.values = np.asarray(values, dtype=float)
        self.p = np.asarray(p, dtype=float)
        self.infinity = infinity
        self.symmetric = symmetric
        keep = self.p > 0
        self.values, self.p = self.values[keep], self.p[keep]
        self._spacing = spacing if spacing is not None else _common_step(self.values)
        self.supremum = float(self.values.max(initial=-math.inf)) if infinity == 0 else math.inf

    def given_finite(self) -> Loss:
        if self.infinity == 0:
            return self
        if self.infinity >= 1:
            return AtomsLoss([0.0], [1.0])  # never asked for
        if abs(math.fsum(self.p) + self.infinity - 1) > 1e-9:
            raise ArithmeticError("a loss whose masses, with that of an infinite loss, do not add up to 1")
        p = self.p / (1 - self.infinity)
        return AtomsLoss(self.values, p, spacing=self._spacing, symmetric=self.symmetric)

    def log_mgf(self, c: float, t: Array) -> tuple[ComplexArray, Array]:
        with np.errstate(divide="ignore"):
            exponent = np.log(self.p) + c * self.values
        top, total, weights = log_sum(exponent)
        phase, summed = turned(t, self.values, weights)
        size = weights @ (np.abs(exponent) + np.abs(top))
        off = summed + ROUND * (8 + 4 * size + 4 * np.abs(t) * (weights @ np.abs(self.values)))
        logs, error = log_of(phase, off)
        return total + logs, error

    def tilted(self, c: float) -> tuple[float, float, float, float]:
        with np.errstate(divide="ignore"):
            exponent = np.log(self.p) + c * self.values
        top, total, weights = log_sum(exponent)
        mean = float(weights @ self.values)
        size = float(weights @ np.abs(np.where(weights > 0, exponent, 0.0)))
        error = ROUND * (16 + 4 * size + 4 * abs(top) + math.log2(len(weights) + 1))
        return total, error, mean, float(weights @ (self.values - mean) ** 2)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        return np.zeros(len(edges) + 1), np.zeros(len(edges) + 1)

    def atoms(self) -> tuple[Array, Array]:
        return self.values, self.p

    def total_variation(self) -> float:
        # in one pass: the tails that a profile keeps are not worth their memory for one ε
        above = self.values > 0
        gain = float(self.p[above] @ -np.expm1(-self.values[above]))
        return min(1.0, gain * (1 + ACCURACY + ROUND * len(self.values)) + sys.float_info.min)

    def unseen(self) -> float:
        with np.errstate(over="ignore"):
            rest = 1 - math.fsum(self.p * np.exp(-self.values))
        # of a law made of a profile rounding takes away what P has at very negative losses, where Q has much more
        return max(rest if rest > 1e-11 else 0.0, self.infinity if self.symmetric else 0.0)

    def beyond(self, x: float) -> tuple[float, float]:
        return self._atoms_beyond(x)

    def spacing(self) -> float | None:
        return self._spacing


class DiscreteGaussianLoss(AtomsLoss):
    """N_Z(shift, σ²) against N_Z(0, σ²): atoms that are made when they are asked for, and kept for the last two laws.

    They may be 1.5 million, and a composition of several laws would hold them all.
    """

    infinity = 0.0
    symmetric = True

    def __init__(self, sigma: float, shift: int) -> None:
        self.sigma, self.shift = sigma, shift
        self._spacing = shift / sigma**2
        self.supremum = float(self.values[-1])

    def atoms(self) -> tuple[Array, Array]:
        return discrete_gaussian_atoms(self.sigma, self.shift)

    @property
    def values(self) -> Array:  # type: ignore[override]
        return self.atoms()[0]

    @property
    def p(self) -> Array:  # type: ignore[override]
        return self.atoms()[1]


class LaplaceLoss(Loss):
    """Laplace noise of scale 1/epsilon on a value that moves by 1: two atoms at ±epsilon and a smooth part between."""

    symmetric = True

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon
        self.supremum = epsilon

    def log_mgf(self, c: float, t: Array) -> tuple[ComplexArray, Array]:
        z, e = c + 1j * t, self.epsilon
        # M(z) e^{-ze}: the atoms, and the part between them, whose difference quotient is written without cancellation
        lower = np.exp(-(2 * z + 1) * e)
        between = e * _expm1_over(-(2 * z + 1) * e)
        scaled = 0.5 + 0.5 * lower + 0.5 * between
        value = z * e + np.log(scaled)
        return value, ROUND * (16 + 8 * np.abs(z) * e) / np.minimum(1.0, np.abs(scaled))

    def tilted(self, c: float) -> tuple[float, float, float, float]:
        k, error = self.log_mgf(c, np.zeros(1))
        e = self.epsilon
        # the atoms, and the part between them by a rule that is exact enough for a mean and a variance
        values = np.concatenate([[-e, e], e * _NODES])
        logs = np.concatenate([[math.log(0.5) - e, math.log(0.5)], np.log(e * _WEIGHTS / 4) + e * (_NODES - 1) / 2])
        _, _, weights = log_sum(logs + c * values)
        mean = float(weights @ values)
        return float(k[0].real), float(error[0]), mean, float(weights @ (values - mean) ** 2)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        e = self.epsilon
        inside = np.concatenate([[-e], np.clip(edges, -e, e), [e]])
        # between the atoms P has the density e^{(l-e)/2}/4 and Q e^{-(l+e)/2}/4 in the loss l
        p = 0.5 * np.exp((inside[:-1] - e) / 2) * np.expm1(np.diff(inside) / 2)
        q = -0.5 * np.exp(-(inside[:-1] + e) / 2) * np.expm1(-np.diff(inside) / 2)
        return p, q

    def atoms(self) -> tuple[Array, Array]:
        return np.array([-self.epsilon, self.epsilon]), np.array([0.5 * math.exp(-self.epsilon), 0.5])

    def spacing(self) -> float | None:
        return 2 * self.epsilon


# -- helpers ----


def log_sum(exponent: Array) -> tuple[float, float, Array]:
    """Largest exponent, log Σ e^exponent, and the normalised weights."""
    top = float(exponent.max())
    weights = np.exp(exponent - top)
    total = float(weights.sum())
    return top, top + math.log(total), weights / total


def log_of(sums: ComplexArray, off: Array) -> tuple[ComplexArray, Array]:
    """Logarithms of sums that are off by at most ``off``, and a bound on the error of each.

    Where the terms cancel, what is left may be rounding alone, or nothing at all. There it is the logarithm of a number
    as large as the error, from which the truth is at most three times the error away.
    """
    lost = np.abs(sums) < off
    known = np.where(lost, off, sums)
    return np.log(known), np.where(lost, 2.0, off / np.abs(known))


def suffix_sums(terms: Array) -> Array:
    """Σ_{j>=i} terms[j] for every i, by blocks, so that no partial sum is longer than 2·√n additions."""
    width = max(1, math.isqrt(len(terms)))
    rows = -(-len(terms) // width)
    padded = np.zeros(rows * width)
    padded[: len(terms)] = terms
    table = padded.reshape(rows, width)
    inside = np.cumsum(table[:, ::-1], axis=1)[:, ::-1]
    after = np.append(np.cumsum(inside[::-1, 0])[::-1][1:], 0.0)
    return np.asarray((inside + after[:, None]).ravel()[: len(terms)])


def _common_step(values: Array) -> float | None:
    """The smallest distance of a few values, if all distances are multiples of it."""
    if not 2 <= len(values) <= 2000:
        return None
    gaps = np.diff(np.sort(values))
    gaps = gaps[gaps > 1e-12 * np.abs(values).max()]
    if len(gaps) == 0:
        return None
    step = float(gaps.min())
    whole = np.abs(gaps / step - np.round(gaps / step)) < 1e-9
    return step if whole.all() and gaps.sum() / step < 1e5 else None


def turned(t: Array, values: Array, weights: Array) -> tuple[ComplexArray, float]:
    """Σ weights·e^{it·values} for equidistant t, a row for each row of ``weights`` where there are several.

    The second value bounds what the sums add to the rounding of their terms, as a share of Σ|weights|.
    """
    rows = np.atleast_2d(weights)
    if len(values) < MANY // 2 or len(t) * len(values) < LONG:
        result, error = np.stack([_turned_by_tables(t, values, row) for row in rows]), 0.0
    else:
        size = 1 << (4 * len(t) - 1).bit_length()
        result = np.stack([_turned_by_transforms(t, values, row, size) for row in rows])
        error = ROUND * (4 * math.log2(size) + 48)
    return (result if np.ndim(weights) == 2 else result[0]), error


def _step(t: Array) -> float:
    """The distance of equidistant nodes; that of two neighbours has fewer digits."""
    return float(t[-1] - t[0]) / max(1, len(t) - 1)


def _turned_by_tables(t: Array, values: Array, weights: Array) -> ComplexArray:
    """The sums as they stand.

    The nodes are those of a rectangle, t = t₀ + (i·m + j)h, so that few exponentials make a product of two matrices.
    The tables are made in blocks of values, which bounds the memory they take.
    """
    count = len(t)
    step = _step(t)
    width = max(1, math.isqrt(count))
    tall = -(-count // width)
    total = np.zeros((tall, width), dtype=complex)
    block = max(1, BLOCK // (tall + width))
    for i in range(0, len(values), block):
        part = values[i : i + block]
        outer = np.exp(1j * np.multiply.outer(t[0] + step * width * np.arange(tall), part))
        inner = np.exp(1j * np.multiply.outer(part, step * np.arange(width)))
        total += (outer * weights[i : i + block]) @ inner
    return total.ravel()[:count]


def _turned_by_transforms(t: Array, values: Array, weights: Array, size: int) -> ComplexArray:
    """The sums of many terms at many t, by FFTs of ``size`` places, at least four for each t.

    Each value is taken to the nearest place: with t = t_m + kh and value·h·size/2π = g + d, |d| <= 1/2, a term is
    w·e^{i t_m value}·e^{2πi kg/size}·e^{2πi kd/size}. The last factor is Σ_q (2πi k/size)^q d^q/q!, one FFT for each q.
    With |k| <= size/8 its first 14 terms leave out less than (π/8)^14/14! < 2.5e-17.
    """
    middle = len(t) // 2
    step = _step(t)
    place = values * (step * size / (2 * math.pi))
    nearest = np.rint(place)
    off = place - nearest
    where = nearest.astype(np.int64) & (size - 1)
    order = np.argsort(where, kind="stable")
    starts = np.flatnonzero(np.diff(where[order], prepend=-1))
    bins = where[order][starts]
    term = (weights * np.exp(1j * t[middle] * values))[order]
    off = off[order]
    angle = 2j * math.pi * (np.arange(len(t)) - middle) / size
    total, power = np.zeros(len(t), dtype=complex), np.ones(len(t), dtype=complex)
    for q in range(14):
        table = np.zeros(size, dtype=complex)
        table[bins] = np.add.reduceat(term, starts)  # pairwise: places may hold many values
        total += power * np.roll(np.fft.ifft(table, norm="forward"), middle)[: len(t)]
        term *= off
        power *= angle / (q + 1)
    return total


def _expm1_over(x: ComplexArray) -> ComplexArray:
    """(e^x - 1)/x for complex x."""
    small = np.abs(x) < 1e-5
    safe = np.where(small, 1.0, x)
    return np.where(small, 1 + x / 2 + x * x / 6, np.expm1(safe) / safe)


def normal_cells(edges: Array) -> Array:
    """Standard normal mass left of, between and right of ascending edges, each to full relative accuracy."""
    lower = np.concatenate([[-np.inf], edges])
    upper = np.concatenate([edges, [np.inf]])
    right = lower > 0  # use the smaller tail
    a, b = np.where(right, -upper, lower), np.where(right, -lower, upper)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.maximum(ndtr(b) - ndtr(a), 0.0))


@functools.lru_cache(maxsize=2)  # up to 25 MB each
def discrete_gaussian_atoms(sigma: float, shift: int) -> tuple[Array, Array]:
    """Loss values and P-masses of N_Z(shift, σ²) against N_Z(0, σ²), on all integers with mass above 1e-320."""
    reach = math.ceil(38.5 * sigma) + 2
    k = np.arange(-reach, reach + 1, dtype=float)
    masses = k * k
    masses /= -2 * sigma**2
    # Poisson's summation formula: from σ = 2 on the sum differs from the integral by 2e^{-2π²σ²} < 1e-33 of it
    masses -= math.log(sigma * math.sqrt(2 * math.pi) if sigma >= 2 else math.fsum(np.exp(masses)))
    np.exp(masses, out=masses)
    first = int(np.argmax(masses > 0))
    kept = slice(first, len(k) - first)
    # the loss of the outcome k + shift, which has the mass of k under P
    values, masses = (2 * k[kept] * shift + shift * shift) / (2 * sigma**2), masses[kept]
    for array in (values, masses):
        array.setflags(write=False)  # who asks next gets the same
    return values, masses


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf
