"""How was noise added? Mechanisms with additive noise, and guarantees that are stated as numbers.

Each class gives the privacy loss of its worst pair of neighbours; its sensitivity under each adjacency is part of it.
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
    """Gaussian noise on a value of bounded L2 sensitivity.

    Under zero-out, a blank must add nothing to the value, as in a sum. A number of records, or a mean over them, counts
    the blank.

    Args:
        noise_multiplier: The standard deviation of the noise divided by the L2 sensitivity of adding one record. 0
            means no noise and costs ε = ∞.
        replace: How far replacing one record can move the value, in the same units: 2 for a clipped sum (the default),
            √2 for a histogram of votes or for second moments.
        unit: Whom the guarantee protects (default ``"record"``).

    Example:
        >>> from tacit.accounting import Gaussian, epsilon
        >>> epsilon(Gaussian(5.0), delta=1e-5)
        ε in [0.7255217, 0.7255218] at δ=1e-05, add/remove one record
        >>> epsilon(Gaussian(5.0), delta=1e-5, adjacency="replace-one").upper > 1.4
        True
    """

    noise_multiplier: float
    replace: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("noise multiplier", self.noise_multiplier)
        check_positive("replace", self.replace)

    def shift(self, adjacency: str) -> float:
        """The sensitivity under an adjacency, in units of the sensitivity of adding one record.

        Args:
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.

        Returns:
            ``replace`` under replace-one, otherwise 1.
        """
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
    """Laplace noise on a value of bounded L1 sensitivity: pure, ε = 1/scale under add/remove.

    On a vector with independent noise of the same scale on every entry, the pair is that of one entry that moves by the
    whole sensitivity (docs/explanation/pairs.md).

    Args:
        scale: The scale of the noise divided by the L1 sensitivity of adding one record. 0 means no noise and costs
            ε = ∞.
        replace: How far replacing one record can move the value, in the same units: 2 for a clipped sum (the default).
        unit: Whom the guarantee protects (default ``"record"``).

    Example:
        >>> from tacit.accounting import Laplace, epsilon
        >>> epsilon(Laplace(4.0), delta=0).upper, epsilon(Laplace(4.0), delta=0, adjacency="replace-one").upper
        (0.25, 0.5)
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
    """Discrete Gaussian noise on an integer value.

    The pair of one coordinate is exact; describe a vector by :class:`ZCDP` (Canonne, Kamath & Steinke 2020). Above a
    sigma of 20,000 there are too many outcomes to compose, and the price comes from the Rényi bound, that of the
    continuous Gaussian (``tight=False``).

    Args:
        sigma: The parameter of the noise: P[k] is proportional to e^{-k²/(2 sigma²)}. 0 means no noise.
        sensitivity: How far adding one record can move the value; a whole number (default 1).
        replace: How far replacing one record can move it; a whole number. The default 0 means twice ``sensitivity``.
        unit: Whom the guarantee protects (default ``"record"``).

    Example:
        >>> from tacit.accounting import DiscreteGaussian, epsilon
        >>> round(epsilon(DiscreteGaussian(5.0), delta=1e-5).upper, 4)
        0.7266
    """

    sigma: float
    sensitivity: int = 1
    replace: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("sigma", self.sigma)
        # a shift that is no whole number would be seen in every output
        check_whole("the sensitivity of DiscreteGaussian", self.sensitivity)
        check_whole("replace of DiscreteGaussian", self.replace, least=0)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return self.sigma <= LARGEST_SIGMA

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if self.sigma == 0:
            return everything_revealed()
        if self.sigma > LARGEST_SIGMA:
            return None
        shift = (self.replace or 2 * self.sensitivity) if adjacency == "replace-one" else self.sensitivity
        return losses.DiscreteGaussianLoss(self.sigma, shift * group)

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return math.inf  # the pair leaves out what has no number in binary64; the tails differ without end


@dataclasses.dataclass(frozen=True, repr=False)
class DiscreteLaplace(Mechanism):
    """Discrete Laplace (two-sided geometric) noise on an integer value: pure, ε = sensitivity/scale under add/remove.

    The pair of one coordinate is exact, and it dominates that of a vector whose entries move by ``sensitivity`` in all,
    as the logarithm of the masses is concave (docs/explanation/pairs.md). Above a scale of 20,000 the price is that of
    continuous Laplace noise, of which this one is a post-processing (``tight=False``).

    Args:
        scale: The parameter b of the noise: P[k] is proportional to e^{-abs(k)/b}. 0 means no noise.
        sensitivity: How far adding one record can move the value; a whole number (default 1).
        replace: How far replacing one record can move it; a whole number. The default 0 means twice ``sensitivity``.
        unit: Whom the guarantee protects (default ``"record"``).

    Example:
        >>> from tacit.accounting import DiscreteLaplace, epsilon
        >>> epsilon(DiscreteLaplace(4.0), delta=0).upper
        0.25
    """

    scale: float
    sensitivity: int = 1
    replace: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("scale", self.scale)
        check_whole("the sensitivity of DiscreteLaplace", self.sensitivity)
        check_whole("replace of DiscreteLaplace", self.replace, least=0)

    def _shift(self, adjacency: str, group: int) -> int:
        return ((self.replace or 2 * self.sensitivity) if adjacency == "replace-one" else self.sensitivity) * group

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return self._shift(adjacency, group) <= min(LARGEST_RATIO * self.scale, LARGEST_SIGMA) or self.scale == 0

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if self.scale == 0:
            return everything_revealed()
        shift = self._shift(adjacency, group)
        epsilon = shift / self.scale
        if not self.is_tight(adjacency, group):
            return LaplaceLoss(epsilon) if epsilon <= LARGEST_RATIO else _randomised_response(epsilon, 0.0)
        return _moved_by(shift, 1 / self.scale, epsilon)

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if self.is_tight(adjacency, group):
            return self.pair(adjacency, direction, group)
        return None

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return self._shift(adjacency, group) / self.scale if self.scale else math.inf


# -- answers at random ----


@dataclasses.dataclass(frozen=True, repr=False)
class RandomizedResponse(Mechanism):
    """Each record gives one answer out of ``categories``, at random but most often its own.

    It gives its own answer with probability e^ε/(e^ε + categories - 1), and each other one with probability
    1/(e^ε + categories - 1) (Warner 1965; Kairouz, Bonawitz & Ramage 2016).

    The worst pair is one record in two categories: the loss is ε, -ε, or 0 if the answer is neither of the two. It is
    the same under zero-out, where a blank is put into any category and answers like a record of it. Everybody can see
    that a record has answered, so there is no guarantee under add/remove. A group of k changes k answers: the k-fold
    pair, up to 1,000 records; beyond that kε-DP (``tight=False``).

    Args:
        epsilon: The ε of one answer.
        categories: The number of possible answers, 2 or more (default 2).
        unit: Whom the guarantee protects (default ``"record"``).

    Example:
        >>> from tacit.accounting import RandomizedResponse, epsilon
        >>> epsilon(RandomizedResponse(1.5), delta=0, adjacency="replace-one").upper
        1.5
    """

    epsilon: float
    categories: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("epsilon", self.epsilon)
        check_whole("categories, the number of possible answers,", self.categories, least=2)

    def adjacencies(self) -> tuple[str, ...]:
        return ("replace-one", "zero-out")

    def advice(self, adjacency: str) -> str:
        return "everybody can see who answered" if adjacency == "add-remove" else ""

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
    """A guarantee given as a number; ``adjacency`` (optional) is the one for which it was stated."""

    adjacency: str | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adjacency is not None:
            check_adjacency(self.adjacency)

    def adjacencies(self) -> tuple[str, ...]:
        return ADJACENCIES if self.adjacency is None else (self.adjacency,)


@dataclasses.dataclass(frozen=True, repr=False)
class ApproxDP(_Stated):
    """Any (ε, δ)-DP mechanism. Its worst case is randomised response with a failure of probability δ.

    Args:
        epsilon: The ε that is known; may be infinite.
        delta: The δ that is known, in [0, 1].
        unit: Whom the guarantee protects (default ``"record"``).
        adjacency: The adjacency for which the guarantee was stated. None (the default) says that it holds under every
            one.

    Example:
        >>> from tacit.accounting import ApproxDP, epsilon
        >>> round(epsilon(ApproxDP(1.0, 1e-6) * 2, delta=1e-5).upper, 4)
        2.0
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("epsilon", self.epsilon, allow_inf=True)
        check_share("δ", self.delta)

    def grouped(self, group: int) -> tuple[float, float]:
        """The guarantee for a group, by a chain of k neighbours (Dwork & Roth 2014, theorem 2.2).

        Args:
            group: The number k of records that change together.

        Returns:
            The pair (kε, δ·(e^{kε} - 1)/(e^ε - 1)), the latter at most 1.
        """
        if group == 1 or self.delta == 0:
            return group * self.epsilon, self.delta
        if (group - 1) * self.epsilon > LARGEST_RATIO:
            return group * self.epsilon, 1.0  # e^700 times any δ that has a digit
        steps = math.fsum(math.exp(i * self.epsilon) for i in range(group))
        return group * self.epsilon, min(1.0, self.delta * steps * (1 + 1e-13))

    def without_failure(self) -> tuple[Mechanism, float]:
        return PureDP(self.epsilon, unit=self.unit, adjacency=self.adjacency), self.delta

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return group == 1 and (self.epsilon <= LARGEST_RATIO or math.isinf(self.epsilon))

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return _randomised_response(*self.grouped(group))

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        # with probability δ all is told, otherwise an answer that is ε-DP
        return _group_of_pure(*_within(self.epsilon, group), self.delta)


@dataclasses.dataclass(frozen=True, repr=False)
class PureDP(_Stated):
    """Any ε-DP mechanism. Its worst case is randomised response (Kairouz, Oh & Viswanath 2015).

    For a group of k it is discrete Laplace noise on a whole number that moves by k, which is kε-DP and less than
    randomised response of kε (docs/explanation/pairs.md). Beyond 1,000 records it is taken to be the latter
    (``tight=False``).

    Args:
        epsilon: The ε that is known; may be infinite.
        unit: Whom the guarantee protects (default ``"record"``).
        adjacency: The adjacency for which the guarantee was stated. None (the default) says that it holds under every
            one.

    Example:
        >>> from tacit.accounting import PureDP, epsilon
        >>> epsilon(PureDP(0.1) * 10, delta=0).upper
        1.0
    """

    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("epsilon", self.epsilon, allow_inf=True)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if group > LARGEST_GROUP or self.epsilon * group > LARGEST_RATIO:
            return _randomised_response(self.epsilon * group, 0.0)
        return _group_of_pure(self.epsilon, group)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        if math.isinf(self.epsilon):
            return True
        return group <= LARGEST_GROUP and self.epsilon * group <= LARGEST_RATIO

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return _group_of_pure(*_within(self.epsilon, group))


@dataclasses.dataclass(frozen=True, repr=False)
class GDP(_Stated):
    """Any μ-Gaussian-DP mechanism (Dong, Roth & Su 2022). Its worst case is N(μ, 1) against N(0, 1).

    Args:
        mu: The μ that is known; may be infinite.
        unit: Whom the guarantee protects (default ``"record"``).
        adjacency: The adjacency for which the guarantee was stated. None (the default) says that it holds under every
            one.

    Example:
        >>> from tacit.accounting import GDP, Gaussian, epsilon
        >>> epsilon(GDP(0.2), delta=1e-5).upper == epsilon(Gaussian(5.0), delta=1e-5).upper
        True
    """

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
    """Any ρ-zCDP mechanism (Bun & Steinke 2016).

    The Rényi divergence of order α is at most ρα, and at most k²ρα for a group of k.

    Args:
        rho: The ρ that is known.
        unit: Whom the guarantee protects (default ``"record"``).
        adjacency: The adjacency for which the guarantee was stated. None (the default) says that it holds under every
            one.

    Example:
        >>> from tacit.accounting import ZCDP, epsilon
        >>> round(epsilon(ZCDP(0.02), delta=1e-5).upper, 3)
        0.794
    """

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

    Upper bound: for each order, the worst two-point loss {t, t - ε} (Dong, Durfee & Rogers 2020). Lower bound: the one
    with t = ε/2, which is randomised response with ε/2.

    Args:
        epsilon: The range of the loss: 2Δ·rate if one record moves each score by at most Δ and the choice has
            probabilities proportional to e^{rate·score}.
        unit: Whom the guarantee protects (default ``"record"``).
        adjacency: The adjacency for which the guarantee was stated. None (the default) says that it holds under every
            one.

    Example:
        >>> from tacit.accounting import ExponentialMechanism, PureDP, epsilon
        >>> epsilon(ExponentialMechanism(0.1) * 100, 1e-5).upper < epsilon(PureDP(0.1) * 100, 1e-5).upper
        True
    """

    tight: ClassVar[bool] = False
    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("epsilon", self.epsilon)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return None

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return _randomised_response(min(self.epsilon * group / 2, LARGEST_RATIO), 0.0)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        return _bounded_range_renyi(self.epsilon * group, orders)

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return self.epsilon * group  # bounded range ε is in particular ε-DP


# -- helpers ----


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


def _group_of_pure(epsilon: float, group: int, delta: float = 0.0) -> Loss:
    """The worst group of records under ε-DP, with a failure of probability δ; for one record, randomised response."""
    if group == 1 or not 0 < epsilon < math.inf or delta >= 1:
        return _randomised_response(epsilon, delta)
    loss = _moved_by(group, epsilon, epsilon * group)
    return AtomsLoss(loss.values, loss.p * (1 - delta), delta, spacing=loss.spacing()) if delta else loss


def _moved_by(shift: int, unit: float, epsilon: float) -> AtomsLoss:
    """Discrete Laplace noise of scale 1/``unit`` on a whole number that moves by ``shift``; ε is their product."""
    # k >= shift has the loss ε, k <= 0 the loss -ε, and between them it rises by two units from one to the next
    tail = 1 / (1 + math.exp(-unit))
    between = np.arange(1, shift)
    inner = math.tanh(0.5 * unit) * np.exp((between - shift) * unit)
    p = np.concatenate([[tail * math.exp(-epsilon)], inner, [tail]])
    values = np.concatenate([[-epsilon], (2 * between - shift) * unit, [epsilon]])
    return AtomsLoss(values, p, spacing=2 * epsilon if shift == 1 else 2 * unit)


def _within(epsilon: float, group: int) -> tuple[float, int]:
    """ε and the group as they are, or the largest whose pair has numbers: a weaker one, for a lower bound."""
    seen = min(group, LARGEST_GROUP)
    return (epsilon if math.isinf(epsilon) else min(epsilon, LARGEST_RATIO / seen)), seen


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
