"""What does a mechanism release? Output laws of neighbours as lists of probabilities, and how far apart they are.

No code of ``tacit`` is in here. A continuous output is read through bins, which is post-processing: what is computed
from the bins is never above the truth, and within a ten-thousandth of it at the widths used here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]
#: Probabilities of the outputs for one data set, and for its neighbour.
Pair = tuple[Array, Array]
BINS = 3000


# -- laws ----


def normal(x: Array) -> tuple[Array, Array]:
    """Both tails of the standard normal law."""
    return ndtr(x), ndtr(-x)


def laplace(x: Array) -> tuple[Array, Array]:
    """Both tails of the Laplace law of scale 1."""
    small = 0.5 * np.exp(-np.abs(x))
    return np.where(x < 0, small, 1 - small), np.where(x < 0, 1 - small, small)


def cells(edges: Array, tails: Callable[[Array], tuple[Array, Array]]) -> Array:
    """Probabilities below, between and above the edges, each from the smaller tail."""
    below, above = tails(edges)
    left = np.diff(np.concatenate([[0.0], below, [1.0]]))
    right = -np.diff(np.concatenate([[1.0], above, [0.0]]))
    return np.maximum(np.where(np.concatenate([below, [1.0]]) < 0.5, left, right), 0.0)


def mixed(
    one: Mapping[float, float],
    other: Mapping[float, float],
    scale: float = 1.0,
    *,
    noise: Callable[[Array], tuple[Array, Array]] = normal,
    other_scale: float | None = None,
) -> Pair:
    """Noise of ``scale`` around shifts that are drawn with their probabilities, for both neighbours."""
    widest = max(scale, other_scale or scale)
    shifts = [*one, *other]
    edges = np.linspace(min(shifts) - 9 * widest, max(shifts) + 9 * widest, BINS)
    if noise is laplace:  # bins end at the corners of the densities, and in the middle between them
        far = np.linspace(9, 30, 200) * widest
        middle = 0.5 * (min(shifts) + max(shifts))
        edges = np.unique(np.concatenate([min(shifts) - far, edges, shifts, [middle], max(shifts) + far]))

    def law(drawn: Mapping[float, float], width: float) -> Array:
        return sum(p * cells((edges - shift) / width, noise) for shift, p in drawn.items())  # type: ignore[return-value]

    return law(one, scale), law(other, other_scale or scale)


def shifted(far: float, scale: float, noise: Callable[[Array], tuple[Array, Array]] = normal) -> list[Pair]:
    """A value that moves by ``far`` under noise of ``scale``."""
    return [mixed({far: 1.0}, {0.0: 1.0}, scale, noise=noise)]


def response(epsilon: float, delta: float = 0.0) -> Pair:
    """Randomised response that fails, and tells all, with probability δ."""
    yes = math.exp(epsilon) / (1 + math.exp(epsilon))
    told = np.array([delta, (1 - delta) * yes, (1 - delta) * (1 - yes), 0.0])
    return told, told[::-1]


def binomial(n: int, rate: float) -> dict[float, float]:
    """How often one record is in ``n`` draws."""
    return {float(k): math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(n + 1)}


def together(shares: Sequence[float], pairs: Sequence[Pair]) -> Pair:
    """One of several mechanisms, drawn without the data; which one is seen."""
    one, other = ([share * law for share, law in zip(shares, side, strict=True)] for side in zip(*pairs, strict=True))
    return np.concatenate(one), np.concatenate(other)


# -- how far apart they are ----


class Distance:
    """δ(ε) of a pair of laws seen ``times`` times, and its inverse; by sorting and by sums."""

    def __init__(self, pair: Pair, times: int = 1) -> None:
        p, q = pair
        assert abs(p.sum() - 1) < 1e-9
        assert abs(q.sum() - 1) < 1e-9
        seen = p > 0
        self.p, q = p[seen], q[seen]
        with np.errstate(divide="ignore"):
            self.loss = np.log(self.p) - np.log(q)
        order = np.argsort(-self.loss)
        self.ordered = self.loss[order]
        self.p_above = np.concatenate([[0.0], np.cumsum(self.p[order])])
        self.q_above = np.concatenate([[0.0], np.cumsum(q[order])])
        self.times = times

    def delta(self, epsilon: float) -> float:
        """sup over events of P - e^ε Q."""
        if self.times == 1:
            return float(self._once(np.array([epsilon]))[0])
        assert self.times == 2
        return float(self.p @ self._once(epsilon - self.loss))  # the first output is seen, then the second

    def _once(self, epsilon: Array) -> Array:
        place = np.searchsorted(-self.ordered, -epsilon, side="left")
        with np.errstate(over="ignore", invalid="ignore"):
            weighted = np.where(self.q_above[place] > 0, np.exp(epsilon) * self.q_above[place], 0.0)
        return np.maximum(self.p_above[place] - weighted, 0.0)

    def epsilon(self, delta: float) -> float:
        """The smallest ε at which δ(ε) is at most ``delta``; infinite where there is none."""
        low, high = 0.0, 1.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
            if high > 1e3:
                return math.inf
        for _ in range(50):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high

    @property
    def largest(self) -> float:
        """The largest loss that is ever seen: ε at δ = 0."""
        return self.times * float(self.loss[self.p > 1e-290].max())


class Truth:
    """The largest distance over pairs of neighbours, in both orders."""

    def __init__(self, pairs: Sequence[Pair], times: int = 1) -> None:
        both = [order for p, q in pairs for order in ((p, q), (q, p))]
        self.distances = [Distance(pair, times) for pair in both]

    def delta(self, epsilon: float) -> float:
        return max(distance.delta(epsilon) for distance in self.distances)

    def epsilon(self, delta: float) -> float:
        return max(distance.epsilon(delta) for distance in self.distances)

    @property
    def largest(self) -> float:
        return max(distance.largest for distance in self.distances)
