"""What does it cost to try several candidates and keep the best? Private selection with a random number of runs.

The number of runs is drawn from a law that does not depend on the data. Each run draws a candidate at random and runs
the same mechanism (training *and* private score); only the best result is released. Every price rests on one fact: the
selected result has the density top·a(1-F) against that of a single run, with F the rank of its score, ``top`` = E[K],
and a falling function ``a`` that depends on the law of K only. docs/explanation/tuning.md has the proofs.

- Rényi: Papernot & Steinke 2022, "Hyperparameter tuning with Rényi differential privacy", theorems 2 and 6.
- Profile, trade-off and joint bounds: from the privacy profile of the base, each tighter than the one before
  (:mod:`tacit.accounting.selection_bounds`).
- Random stopping (Liu & Talwar 2019, "Private selection from private candidates"): returning the best is the geometric
  law; returning the first above a threshold is a law of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.alternatives import upper_profile
from tacit.accounting.base import Mechanism, check_positive, inherit_unit, is_number
from tacit.accounting.errors import AccountingError
from tacit.accounting.losses import Loss
from tacit.accounting.pricing import delta as certified_delta
from tacit.accounting.pricing import epsilon as certified_epsilon
from tacit.accounting.renyi import RenyiCurve
from tacit.accounting.selection_bounds import Profiled

Array = NDArray[np.float64]
DISTRIBUTIONS = ("negative-binomial", "poisson", "threshold")
#: Orders of the second divergence in theorem 2 to begin with, less 1; the search goes on around the best.
_SECOND = np.exp(np.linspace(math.log(1e-2), math.log(1e4), 40))


@dataclasses.dataclass(frozen=True, repr=False)
class Selected(Mechanism):
    """The best of K runs of a mechanism, K random, or the first run whose score reaches a threshold.

    The laws of K:

    - ``"negative-binomial"``: truncated negative binomial with ``eta`` and ``gamma``.
    - ``"poisson"``: Poisson with mean ``mean``; K = 0 releases nothing.
    - ``"threshold"``: run until a score reaches a threshold fixed beforehand; after each run that does not, stop with
      probability ``gamma`` and release nothing (Liu & Talwar 2019, algorithm 1).

    Guarantee:
        For every adjacency and group that the mechanism covers: the smallest of the Rényi bound (negative binomial:
        ε(λ) + (1+η)(1 - 1/λ')ε(λ') + (1+η)log(1/γ)/λ' + log(E K)/(λ - 1) for every λ' >= 1) and the bounds from the
        mechanism's privacy profile. Ties in the score must be broken without the data, and K and the candidates must be
        drawn without the data.

    Args:
        mechanism: One run with its private score; see :func:`one_of` for a run with a random candidate.
        distribution: The law of the number of runs: ``"negative-binomial"`` (default), ``"poisson"`` or
            ``"threshold"``.
        eta: Shape of the negative binomial law, above -1: 1 (default) is geometric, 0 logarithmic.
        gamma: In (0, 1), default 0.1: the parameter of the negative binomial law, or the probability to stop after each
            run that misses the threshold.
        mean: Mean of the Poisson law (default 10).
        unit: Taken from ``mechanism``; leave it out.

    Raises:
        AccountingError: If ``mechanism`` is no mechanism, or the law or its parameters are unknown or out of range.

    Example:
        >>> from tacit import accounting as acc
        >>> acc.epsilon(acc.Selected(acc.PureDP(0.1), gamma=0.1), 1e-12).upper <= 0.3
        True
    """

    tight: ClassVar[bool] = False
    mechanism: Mechanism
    distribution: str = "negative-binomial"
    eta: float = 1.0
    gamma: float = 0.1
    mean: float = 10.0
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.mechanism, Mechanism):
            raise AccountingError(f"{self.mechanism!r} is not a mechanism")
        if self.distribution not in DISTRIBUTIONS:
            raise AccountingError(
                f"the number of runs is 'negative-binomial', 'poisson' or 'threshold', not {self.distribution!r}"
            )
        if not (is_number(self.eta) and self.eta > -1 and math.isfinite(self.eta)):
            raise AccountingError(f"eta must be above -1, not {self.eta!r}")
        if not is_number(self.gamma) or not 0 < self.gamma < 1:
            raise AccountingError(f"gamma must lie between 0 and 1, not {self.gamma!r}")
        check_positive("mean", self.mean)
        inherit_unit(self, self.mechanism)

    @classmethod
    def of(cls, mechanism: Mechanism, runs: float, *, distribution: str = "geometric", eta: float = 1.0) -> Selected:
        """The selection that makes ``runs`` runs on average.

        Args:
            mechanism: One run with its private score.
            runs: The expected number of runs (for a threshold: an upper bound on it). Above 1, except for Poisson.
            distribution: ``"geometric"`` (default), ``"logarithmic"``, ``"negative-binomial"`` with its ``eta``,
                ``"poisson"`` or ``"threshold"``.
            eta: Shape of the law, used with ``"negative-binomial"`` only (default 1).

        Returns:
            The mechanism to price, with ``gamma`` or ``mean`` set.

        Raises:
            AccountingError: If the law is unknown or cannot have this mean.

        Example:
            >>> from tacit import accounting as acc
            >>> acc.Selected.of(acc.Gaussian(5.0), 10, distribution="logarithmic").gamma.__round__(6)
            0.026918
        """
        check_positive("the number of runs to expect", runs)
        if distribution == "poisson":
            return cls(mechanism, "poisson", mean=float(runs))
        if distribution not in ("geometric", "logarithmic", "negative-binomial", "threshold"):
            raise AccountingError(
                f"unknown law {distribution!r} of the number of runs; choose geometric, logarithmic, "
                "negative-binomial (with eta), poisson or threshold"
            )
        if runs <= 1:
            raise AccountingError(f"a {distribution} number of runs is 1 or more: ask for a mean above 1, not {runs!r}")
        if distribution == "threshold":
            return cls(mechanism, "threshold", gamma=1 / runs)
        eta = {"geometric": 1.0, "logarithmic": 0.0}.get(distribution, float(eta))
        return cls(mechanism, eta=eta, gamma=gamma_for(runs, eta))

    @property
    def runs(self) -> float:
        """The expected number of runs; for a threshold, an upper bound on it."""
        if self.distribution == "poisson":
            return self.mean
        return 1 / self.gamma if self.distribution == "threshold" else expected_runs(self.eta, self.gamma)

    # -- the law of the rank -----------------------------------------------------------------------------------------

    @property
    def _power(self) -> float:
        return 1.0 if self.distribution == "threshold" else 1 + self.eta

    @property
    def _odds(self) -> float:
        return (1 - self.gamma) / self.gamma

    def _falling(self, tail: Array) -> Array:
        """a(u): how much rarer than the best a result is selected of which a share u of runs scores higher."""
        if self.distribution == "poisson":
            return np.asarray(np.exp(-self.mean * tail))
        return np.asarray(np.exp(-self._power * np.log1p(self._odds * tail)))

    # -- what pricing asks -------------------------------------------------------------------------------------------

    def adjacencies(self) -> tuple[str, ...]:
        return self.mechanism.adjacencies()

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return None

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        curve = RenyiCurve(self.mechanism, adjacency=adjacency, group=group)
        if curve.failure > 0 or curve.spill > 0:
            return np.full(len(orders), math.inf)  # no finite divergence
        c = orders - 1
        first = curve.moments(c).max(axis=0) / c
        if self.distribution == "poisson":
            # δ' at ε' = log(1 + 1/(λ-1)), from the profile
            failures = np.array([upper_profile(self.mechanism, adjacency, group)(float(np.log1p(1 / x))) for x in c])
            # Nothing is released with probability e^-mean, on both sides alike: a part of the moment that the published
            # bound leaves out, and that is most of it where the mean is below 1.
            moment = c * (first + self.mean * failures) + math.log(self.mean)
            return np.asarray(np.logaddexp(moment, -self.mean) / c)
        middle = self._power * _second_order(self.mechanism, adjacency, group, self.gamma)
        return np.asarray(first + max(middle, 0.0) + math.log(self.runs) / c)

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return Profiled(self, adjacency, group).by_tradeoff(0.0)

    def own_epsilon(self, delta: float, adjacency: str, group: int) -> tuple[float, float]:
        """Bounds on ε from the privacy profile of the mechanism.

        The lower end holds because with a score that is the same for all, the selected result is distributed as a
        single one.

        Args:
            delta: The δ at which ε is asked for.
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            group: How many records one neighbour changes together.

        Returns:
            The lower and the upper end.
        """
        low = 0.0
        if self.distribution == "negative-binomial":
            low = certified_epsilon(self.mechanism, delta, adjacency=adjacency, group=group).lower
        return low, Profiled(self, adjacency, group).epsilon(delta)

    def own_delta(self, epsilon: float, adjacency: str, group: int) -> tuple[float, float]:
        """Bounds on δ from the privacy profile of the mechanism.

        Args:
            epsilon: The ε at which δ is asked for.
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            group: How many records one neighbour changes together.

        Returns:
            The lower and the upper end.
        """
        low = 0.0
        if self.distribution == "negative-binomial":
            low = certified_delta(self.mechanism, epsilon, adjacency=adjacency, group=group).lower
        return low, Profiled(self, adjacency, group).delta(epsilon)

    def prices(self, delta: float, *, adjacency: str = "add-remove", group: int = 1) -> dict[str, float]:
        """ε by each of the bounds; the price is the smallest.

        Args:
            delta: The δ of the guarantee, above 0.
            adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
            group: How many records one neighbour changes together (default 1).

        Returns:
            The upper bound on ε by each name: ``"renyi"``, ``"profile"``, ``"tradeoff"`` and ``"joint"``.

        Example:
            >>> from tacit import accounting as acc
            >>> {k: round(v, 6) for k, v in acc.Selected(acc.Gaussian(5.0)).prices(1e-6).items()}
            {'renyi': 1.813467, 'profile': 1.580884, 'tradeoff': 1.291763, 'joint': 1.232668}
        """
        bounds = Profiled(self, adjacency, group)
        return {
            "renyi": renyi_price(self, delta, adjacency=adjacency, group=group),
            "profile": bounds.by_profile(delta),
            "tradeoff": bounds.by_tradeoff(delta),
            "joint": bounds.jointly(delta),
        }


# -- theorem 2 ----


def renyi_price(mechanism: Mechanism, delta: float, *, adjacency: str = "add-remove", group: int = 1) -> float:
    """ε at ``delta`` by the best real Rényi order, to a millionth.

    >>> from tacit import accounting as acc
    >>> round(renyi_price(acc.PoissonSampled(acc.Gaussian(1.1), 0.01) * 1000, 1e-6), 6)
    1.976739
    """
    curve = RenyiCurve(mechanism, adjacency=adjacency, group=group)
    value, order = curve.epsilon(delta)
    reach = 1.5
    while math.isfinite(value) and reach > 1.0005:
        around = (order - 1) * np.exp(np.linspace(-math.log(reach), math.log(reach), 9))
        closer, order = curve.epsilon(delta, around)
        value, reach = min(value, closer), reach**0.3
    return value


def expected_runs(eta: float, gamma: float) -> float:
    """The mean of the truncated negative binomial law.

    >>> round(expected_runs(1.0, 0.1), 9)
    10.0
    """
    if eta == 0:
        return (1 / gamma - 1) / math.log(1 / gamma)
    # 1 - γ^η without cancellation for a small η
    return float(eta * (1 - gamma) / (gamma * -math.expm1(eta * math.log(gamma))))


def gamma_for(runs: float, eta: float = 1.0) -> float:
    """The γ of the truncated negative binomial law with mean ``runs`` > 1.

    >>> round(gamma_for(10.0, 0.5), 9)
    0.0625
    """
    if not runs > 1 or not math.isfinite(runs):
        raise AccountingError(f"the mean of this law lies above 1, not at {runs!r}")
    if not eta > -1:
        raise AccountingError(f"eta must be above -1, not {eta!r}")
    low, high = -690.0, -1e-12  # log γ; the mean falls as γ grows
    if expected_runs(eta, math.exp(low)) < runs:
        raise AccountingError(f"no γ gives a mean of {runs:g} runs at eta = {eta:g}; take a larger eta")
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if expected_runs(eta, math.exp(middle)) > runs else (low, middle)
    return math.exp(0.5 * (low + high))


@functools.lru_cache(maxsize=256)
def _second_order(mechanism: Mechanism, adjacency: str, group: int, gamma: float) -> float:
    """min over λ' of (1 - 1/λ')ε(λ') + log(1/γ)/λ'; any λ' is valid, so the search cannot make it wrong."""
    curve = RenyiCurve(mechanism, adjacency=adjacency, group=group)

    def values(c: Array) -> Array:
        return np.asarray((curve.moments(c).max(axis=0) + math.log(1 / gamma)) / (c + 1))

    grid = _SECOND
    heights = values(grid)
    for _ in range(7):
        best = int(np.nanargmin(heights))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        if best == len(grid) - 1 and high < 1e12:
            high *= 1e3
        grid = np.exp(np.linspace(math.log(low), math.log(high), 9))
        heights = values(grid)
    return min(float(np.nanmin(heights)), math.log(1 / gamma))
