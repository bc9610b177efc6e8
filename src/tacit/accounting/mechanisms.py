"""How was noise added? Additive noise, and guarantees that are stated as such.

Each class gives the privacy loss of its worst-case pair; the sensitivity under every adjacency is part of it.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any, ClassVar

import numpy as np

from tacit.accounting import losses
from tacit.accounting.base import (
    ADJACENCIES,
    Mechanism,
    check_adjacency,
    check_not_negative,
    check_positive,
    check_share,
    check_whole,
)
from tacit.accounting.losses import AtomsLoss, GaussianLoss, LaplaceLoss, Loss

#: Gaussians further apart than this (in standard deviations) are taken to be told apart for sure: the upper end of an ε
#: beyond 1e280 is infinite.
LARGEST_SHIFT = 1e140
#: e to more than this has no binary64 number: all of the loss is put at its largest value, and no lower end is tight.
LARGEST_RATIO = 700.0
#: A discrete Gaussian has about 77 sigma outcomes of positive probability in binary64, each one a lattice point.
LARGEST_SIGMA = 20_000.0
#: A group of this many answers has twice as many values of the loss; beyond it, the price is that of pure ε-DP.
LARGEST_GROUP = 1_000

# -- additive noise ----


@dataclasses.dataclass(frozen=True, repr=False)
class Gaussian(Mechanism):
    """Gaussian noise with standard deviation ``noise_multiplier`` times the L2 sensitivity of one added record.

    ``replace`` is how far replacing one record can move the value, in the same units: 2 for a clipped sum (default),
    √2 for a histogram of votes or for second moments. Under zero-out the value must be one to which a blank adds
    nothing, such as a sum: a number of records, or a mean over them, counts the blank.
    """

    noise_multiplier: float
    replace: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("noise multiplier", self.noise_multiplier)
        check_positive("replace", self.replace)

    def shift(self, adjacency: str) -> float:
        """Sensitivity under the adjacency, in units of the sensitivity of adding one record."""
        return self.replace if adjacency == "replace-one" else 1.0

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if self.noise_multiplier == 0:
            return everything_revealed()
        return gaussian_loss(self._mu(adjacency, group))

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return self.noise_multiplier == 0 or self._mu(adjacency, group) < LARGEST_SHIFT

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return gaussian_floor(math.inf if self.noise_multiplier == 0 else self._mu(adjacency, group))

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return math.inf  # the tails differ without end

    def _mu(self, adjacency: str, group: int) -> float:
        return min(self.shift(adjacency) * group / self.noise_multiplier, sys.float_info.max)


@dataclasses.dataclass(frozen=True, repr=False)
class Laplace(Mechanism):
    """Laplace noise of ``scale`` times the L1 sensitivity of one added record: ε = 1/scale. ``replace``
    as in Gaussian.

    On a vector, with independent noise of the same scale on every entry, the pair is that of one entry that moves by
    the whole sensitivity (docs/explanation/accounting.md, section 8).
    """

    scale: float
    replace: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("scale", self.scale)
        check_positive("replace", self.replace)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if self.scale == 0:
            return everything_revealed()
        epsilon = (self.replace if adjacency == "replace-one" else 1.0) * group / self.scale
        if epsilon > LARGEST_RATIO:
            return _randomised_response(epsilon, 0.0)
        return LaplaceLoss(epsilon) if epsilon > 0 else nothing_revealed()

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return self.scale == 0 or (self.replace if adjacency == "replace-one" else 1.0) * group / self.scale < 700

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        # more noise reveals less
        return self.pair(adjacency, direction, group) if self.is_tight(adjacency, group) else LaplaceLoss(699.0)


@dataclasses.dataclass(frozen=True, repr=False)
class DiscreteGaussian(Mechanism):
    """Discrete Gaussian noise on the integers with parameter ``sigma``, on a value of integer sensitivity.

    ``sensitivity`` is what one added record can move, ``replace`` what replacing one can (default: twice that).
    The pair of one coordinate is exact; for a vector use :class:`ZCDP` (Canonne, Kamath & Steinke 2020). Beyond a sigma
    of 20,000 it has more outcomes than are worth composing, and is priced by its Rényi bound, that of the continuous
    Gaussian (``tight=False``).
    """

    sigma: float
    sensitivity: int = 1
    replace: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("sigma", self.sigma)
        # a shift that is no whole number would be seen in every output
        check_whole("the sensitivity of DiscreteGaussian", self.sensitivity)
        check_whole("replace, what replacing one record can move,", self.replace, least=0)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return self.sigma <= LARGEST_SIGMA

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if self.sigma == 0:
            return everything_revealed()
        if self.sigma > LARGEST_SIGMA:
            return None
        shift = (self.replace or 2 * self.sensitivity) if adjacency == "replace-one" else self.sensitivity
        values, p, spacing = losses.discrete_gaussian_atoms(self.sigma, shift * group)
        return AtomsLoss(values, p, spacing=spacing)

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return math.inf  # the pair leaves out what has no number in binary64; the tails differ without end


# -- answers at random ----


@dataclasses.dataclass(frozen=True, repr=False)
class RandomizedResponse(Mechanism):
    """One answer of each record, out of ``categories``: its own with probability e^ε/(e^ε + categories - 1), and each
    other with probability 1/(e^ε + categories - 1) (Warner 1965; Kairouz, Bonawitz & Ramage 2016).

    The worst pair is one record in two categories: the loss is ε, -ε, or 0 where the answer is neither of the two. It
    is the same under zero-out, where a blank is put into a category, in whatever way, and answers as a record of it.
    Every record is seen to have answered, so there is no guarantee under add/remove. A group of k changes k answers:
    the k-fold pair, up to 1,000 records; beyond that kε-DP (``tight=False``).
    """

    epsilon: float
    categories: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("epsilon", self.epsilon)
        check_whole("categories, the number of answers there are,", self.categories, least=2)

    def adjacencies(self) -> tuple[str, ...]:
        return ("replace-one", "zero-out")

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return group <= LARGEST_GROUP and self.epsilon * group <= LARGEST_RATIO

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if not self.is_tight(adjacency, group):
            return _randomised_response(self.epsilon * group, 0.0)
        return _answers(self.epsilon, self.categories, group)

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        # fewer answers, or answers with more noise, reveal less
        seen = min(group, LARGEST_GROUP)
        return _answers(min(self.epsilon, LARGEST_RATIO / seen), self.categories, seen)

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return self.epsilon * group  # of a group, the pair leaves out what has no number in binary64


# -- guarantees stated as such ----


@dataclasses.dataclass(frozen=True, repr=False)
class _Stated(Mechanism):
    """A guarantee given as a number; ``adjacency`` (optional) says for which adjacency it was stated."""

    adjacency: str | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adjacency is not None:
            check_adjacency(self.adjacency)

    def adjacencies(self) -> tuple[str, ...]:
        return ADJACENCIES if self.adjacency is None else (self.adjacency,)


@dataclasses.dataclass(frozen=True, repr=False)
class ApproxDP(_Stated):
    """Any (ε, δ)-DP mechanism; its worst case is randomised response with a failure of probability δ."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("epsilon", self.epsilon, allow_inf=True)
        check_share("δ", self.delta)

    def grouped(self, group: int) -> tuple[float, float]:
        """(kε, δ·(e^{kε} - 1)/(e^ε - 1)): the chain of k neighbours (Dwork & Roth 2014, theorem 2.2)."""
        if group == 1 or self.delta == 0:
            return group * self.epsilon, self.delta
        if (group - 1) * self.epsilon > LARGEST_RATIO:
            return group * self.epsilon, 1.0  # e^700 times any δ that has a digit
        steps = math.fsum(math.exp(i * self.epsilon) for i in range(group))
        return group * self.epsilon, min(1.0, self.delta * steps * (1 + 1e-13))

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return group == 1 and (self.epsilon <= LARGEST_RATIO or math.isinf(self.epsilon))

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return _randomised_response(*self.grouped(group))

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return _randomised_response(_within(group * self.epsilon), self.delta)


@dataclasses.dataclass(frozen=True, repr=False)
class PureDP(_Stated):
    """Any ε-DP mechanism; its worst case is randomised response (Kairouz, Oh & Viswanath 2015)."""

    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("epsilon", self.epsilon, allow_inf=True)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return _randomised_response(self.epsilon * group, 0.0)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return self.epsilon * group <= LARGEST_RATIO or math.isinf(self.epsilon)

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return _randomised_response(_within(self.epsilon * group), 0.0)


@dataclasses.dataclass(frozen=True, repr=False)
class GDP(_Stated):
    """Any μ-Gaussian-DP mechanism (Dong, Roth & Su 2022); its worst case is N(μ, 1) against N(0, 1)."""

    mu: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("mu", self.mu, allow_inf=True)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return gaussian_loss(self.mu * group)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return self.mu * group < LARGEST_SHIFT or math.isinf(self.mu)

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return gaussian_floor(self.mu if math.isinf(self.mu) else min(self.mu * group, sys.float_info.max))


@dataclasses.dataclass(frozen=True, repr=False)
class ZCDP(_Stated):
    """Any ρ-zCDP mechanism (Bun & Steinke 2016): Rényi divergence of order α at most ρα. Groups: k²ρ."""

    tight: ClassVar[bool] = False
    rho: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("rho", self.rho)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return None

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        mu = math.sqrt(2 * self.rho) * group  # Gaussian noise is ρ-zCDP with equality
        return gaussian_floor(min(mu, sys.float_info.max))

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        return np.asarray(self.rho * group**2 * orders)

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return math.inf if self.rho else 0.0


@dataclasses.dataclass(frozen=True, repr=False)
class ExponentialMechanism(_Stated):
    """The exponential mechanism, or anything of bounded range ε: the loss varies by at most ε over outcomes.

    Upper bound: for each order, the worst two-point loss {t, t - ε} (Dong, Durfee & Rogers 2020). Lower bound: its
    member at t = ε/2, randomised response with ε/2.
    """

    tight: ClassVar[bool] = False
    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("epsilon", self.epsilon)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return None

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return _randomised_response(_within(self.epsilon * group / 2), 0.0)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        return _bounded_range_renyi(self.epsilon * group, orders)

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return self.epsilon * group  # bounded range ε is in particular ε-DP


# -- helpers ----


def renyi_of_pure(epsilon: float, orders: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rényi divergence of randomised response, the largest among ε-DP pairs."""
    up, down = -float(np.logaddexp(0.0, -epsilon)), -float(np.logaddexp(0.0, epsilon))
    return np.asarray(np.logaddexp(orders * up + (1 - orders) * down, orders * down + (1 - orders) * up) / (orders - 1))


def _bounded_range_renyi(epsilon: float, orders: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """sup over t in [0, ε] of the Rényi divergence of the two-point loss {t, t - ε}.

    With p the Q-mass of the higher loss, t = -log(p + (1-p)e^{-ε}) and the moment is
    (p + (1-p) e^{-εα}) / (p + (1-p) e^{-ε})^α. Its logarithm is 0 at both ends of [0, 1] and stationary at one p only,
    where 1/(p + 1/(e^{εα} - 1)) = α/(p + 1/(e^ε - 1)). The value is capped by the closed bounds min(ε, ε²α/8).
    """
    closed = np.minimum(epsilon, epsilon * epsilon * orders / 8)
    if epsilon < 1e-5 or epsilon > 500:  # where the closed bounds are as good, or p has no number
        return np.asarray(closed)
    high = epsilon * orders
    with np.errstate(over="ignore"):
        p = np.clip((1 / math.expm1(epsilon) - orders / np.expm1(high)) / (orders - 1), 0.0, 1.0)
        above = np.log(p + (1 - p) * np.exp(-high))
    small = epsilon < 0.5
    below = orders * (np.log1p((1 - p) * math.expm1(-epsilon)) if small else np.log(p + (1 - p) * math.exp(-epsilon)))
    # what is subtracted nearly cancels at orders near 1: a few units of rounding on top
    rounding = 2.0**-50 * (1 + np.abs(above) + np.abs(below))
    return np.asarray(np.minimum((above - below + rounding) / (orders - 1), closed))


def _randomised_response(epsilon: float, delta: float) -> Loss:
    if delta >= 1 or epsilon > LARGEST_SHIFT:
        return everything_revealed()
    if epsilon == 0:
        return AtomsLoss([0.0], [1 - delta], infinity=delta)
    if epsilon > LARGEST_RATIO:
        return AtomsLoss([epsilon], [1 - delta], delta, symmetric=True)  # the other outcome has no number
    high = 1 / (1 + math.exp(-epsilon))
    low = math.exp(-epsilon) * high
    return AtomsLoss([-epsilon, epsilon], [low * (1 - delta), high * (1 - delta)], delta, spacing=2 * epsilon)


def _answers(epsilon: float, categories: int, group: int) -> Loss:
    """The loss of ``group`` answers by randomised response, each of a record that changes its category."""
    if epsilon == 0:
        return nothing_revealed()
    high = 1 / (1 + (categories - 1) * math.exp(-epsilon))
    low = math.exp(-epsilon) * high
    p = one = np.array([low, high] if categories == 2 else [low, (categories - 2) * low, high])
    step = 2 if categories == 2 else 1
    for _ in range(group - 1):
        p = np.convolve(p, one)
    return AtomsLoss(epsilon * np.arange(-group, group + 1, step), p, spacing=epsilon * step)


def _within(epsilon: float) -> float:
    """ε as it is, or the largest whose randomised response has numbers: a weaker one, for a lower bound."""
    return epsilon if math.isinf(epsilon) else min(epsilon, LARGEST_RATIO)


def everything_revealed() -> Loss:
    """Infinite loss for sure."""
    return AtomsLoss([], [], infinity=1.0)


def nothing_revealed() -> Loss:
    """No loss at all."""
    return AtomsLoss([0.0], [1.0])


def gaussian_loss(mu: float) -> Loss:
    """N(μ, 1) against N(0, 1); where μ is too large to compute with, everything is taken to be revealed."""
    if mu == 0:
        return nothing_revealed()
    return GaussianLoss(mu) if mu < LARGEST_SHIFT else everything_revealed()


def gaussian_floor(mu: float) -> Loss:
    """The same from below: where μ is finite and too large, a smaller one that keeps its digits."""
    return everything_revealed() if math.isinf(mu) else gaussian_loss(mu if mu < LARGEST_SHIFT else 1e6)


def revealed_with(probability: float, direction: str) -> Loss:
    """The record is seen as it is with this probability, otherwise nothing of it: mass at infinite loss, and what is
    left of P is (1 - probability) times Q. The reverse never sees more than Q does.
    """
    if probability >= 1:
        return everything_revealed()
    rest = math.log1p(-probability)
    if direction == "remove":
        return AtomsLoss([rest], [1 - probability], infinity=probability, symmetric=False)
    return AtomsLoss([-rest], [1.0], symmetric=False)


def replaced_with(probability: float) -> Loss:
    """One of two records is seen as it is with this probability, otherwise nothing of either."""
    return AtomsLoss([0.0], [1 - probability], infinity=probability)
