"""What does it cost to try several candidates and keep the best? Private selection with a random number of runs.

The number of runs is drawn from a law that does not depend on the data, each run draws a candidate at random and runs
the same mechanism (training *and* private score), and only the best result is released. Every price below rests on one
fact: the selected result has the density top·a(1-F) against that of a single run, F the rank of its score, with
``top`` = E[K] and a falling function ``a`` that depends on the law of K only. docs/tuning.md has the proofs.

- Rényi: Papernot & Steinke 2022, "Hyperparameter tuning with Rényi differential privacy", theorems 2 and 6.
- Profile, trade-off and joint bounds: from the privacy profile of the base, each tighter than the one before.
- Random stopping (Liu & Talwar 2019, "Private selection from private candidates"): returning the best is the geometric
  law; returning the first above a threshold is a law of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.base import Mechanism, check_positive, check_share, is_number, unit_message
from tacit.accounting.errors import AccountingError, UnitError
from tacit.accounting.losses import Loss
from tacit.accounting.pricing import Reader
from tacit.accounting.pricing import delta as certified_delta
from tacit.accounting.pricing import epsilon as certified_epsilon
from tacit.accounting.renyi import RenyiCurve

Array = NDArray[np.float64]
DISTRIBUTIONS = ("negative-binomial", "poisson", "threshold")
#: Orders of the second divergence in theorem 2 to begin with, less 1; the search goes on around the best.
_SECOND = np.exp(np.linspace(math.log(1e-2), math.log(1e4), 40))
#: Points of the base's profile that the joint bound is made from: where δ is needed, and where the rank moves.
_POINTS, _LINES = 18, 12


@dataclasses.dataclass(frozen=True, repr=False)
class Selected(Mechanism):
    """The best of K runs of ``mechanism``, K random, or the first run whose score reaches a threshold.

    ``distribution="negative-binomial"``: K from the truncated negative binomial law with ``eta`` > -1 (1: geometric, 0:
    logarithmic) and ``gamma`` in (0, 1). ``distribution="poisson"``: K Poisson with mean ``mean`` (K = 0 releases
    nothing). ``distribution="threshold"``: runs until a score reaches a threshold fixed beforehand; after each run that
    does not, stops with probability ``gamma`` and releases nothing (Liu & Talwar 2019, algorithm 1).

    Guarantee, for whatever adjacency and group the mechanism states one: the smallest of the Rényi bound (negative
    binomial: ε(λ) + (1+η)(1 - 1/λ')ε(λ') + (1+η)log(1/γ)/λ' + log(E K)/(λ - 1) for every λ' >= 1) and the bounds from
    the mechanism's privacy profile. Ties in the score must be broken without the data, and K and the candidates drawn
    without them.

    >>> from tacit import accounting as acc
    >>> acc.epsilon(Selected(acc.PureDP(0.1), gamma=0.1), 1e-12).upper <= 0.3
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
        _inherit_unit(self, self.mechanism)

    @classmethod
    def of(cls, mechanism: Mechanism, runs: float, *, distribution: str = "geometric", eta: float = 1.0) -> Selected:
        """The selection that makes ``runs`` runs on average (for a threshold: at most).

        ``distribution``: ``"geometric"``, ``"logarithmic"``, ``"negative-binomial"`` with its ``eta``, ``"poisson"`` or
        ``"threshold"``.

        >>> from tacit import accounting as acc
        >>> Selected.of(acc.Gaussian(5.0), 10, distribution="logarithmic").gamma.__round__(6)
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
        """How many runs to expect (for a threshold: at most)."""
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
            failures = np.array([_profile(self.mechanism, adjacency, group)(float(np.log1p(1 / x))) for x in c])
            return np.asarray(np.maximum(first + self.mean * failures + math.log(self.mean) / c, 0.0))
        middle = self._power * _second_order(self.mechanism, adjacency, group, self.gamma)
        return np.asarray(first + max(middle, 0.0) + math.log(self.runs) / c)

    def own_epsilon(self, delta: float, adjacency: str, group: int) -> tuple[float, float]:
        """(lower, upper) bounds on ε at ``delta`` from the base's privacy profile.

        Lower: with a score that is the same for all, the selected result is distributed as a single one.
        """
        low = 0.0
        if self.distribution == "negative-binomial":
            low = certified_epsilon(self.mechanism, delta, adjacency=adjacency, group=group).lower
        return low, _Profiled(self, adjacency, group).epsilon(delta)

    def own_delta(self, epsilon: float, adjacency: str, group: int) -> tuple[float, float]:
        """(lower, upper) bounds on δ at ``epsilon`` from the base's privacy profile."""
        low = 0.0
        if self.distribution == "negative-binomial":
            low = certified_delta(self.mechanism, epsilon, adjacency=adjacency, group=group).lower
        return low, _Profiled(self, adjacency, group).delta(epsilon)

    def prices(self, delta: float, *, adjacency: str = "add-remove", group: int = 1) -> dict[str, float]:
        """ε at ``delta`` by each of the bounds; the price is the smallest.

        >>> from tacit import accounting as acc
        >>> {k: round(v, 6) for k, v in Selected(acc.Gaussian(5.0)).prices(1e-6).items()}
        {'renyi': 1.813467, 'profile': 1.580884, 'tradeoff': 1.291763, 'joint': 1.232668}
        """
        bounds = _Profiled(self, adjacency, group)
        return {
            "renyi": renyi_price(self, delta, adjacency=adjacency, group=group),
            "profile": bounds.by_profile(delta),
            "tradeoff": bounds.by_tradeoff(delta),
            "joint": bounds.jointly(delta),
        }


@dataclasses.dataclass(frozen=True, repr=False)
class Either(Mechanism):
    """One of two mechanisms, drawn without the data: ``one`` with probability ``share``. Which one it was is released.

    Guarantee: δ(ε) is the mean of both, because the two kinds of outcome are disjoint; the moments of Rényi divergence
    are averaged likewise. Nested, it describes a draw from a grid of candidates; see :func:`one_of`.

    >>> from tacit import accounting as acc
    >>> acc.delta(Either(acc.Gaussian(1.0), acc.Gaussian(2.0)), 1.0).upper < acc.delta(acc.Gaussian(1.0), 1.0).upper
    True
    """

    tight: ClassVar[bool] = False
    one: Mechanism
    other: Mechanism
    share: float = 0.5
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.one, Mechanism) and isinstance(self.other, Mechanism)):
            raise AccountingError("Either takes two mechanisms")
        check_share("a probability", self.share)
        if self.one.unit != self.other.unit:
            raise UnitError(unit_message(self.one.unit, self.other.unit))
        _inherit_unit(self, self.one)

    def members(self) -> list[tuple[Mechanism, float]]:
        """All mechanisms that may be drawn, with their probabilities."""
        found: list[tuple[Mechanism, float]] = []
        for part, weight in ((self.one, self.share), (self.other, 1 - self.share)):
            nested = part.members() if isinstance(part, Either) else [(part, 1.0)]
            found.extend((inner, weight * w) for inner, w in nested)
        return found

    def adjacencies(self) -> tuple[str, ...]:
        return tuple(a for a in self.one.adjacencies() if a in self.other.adjacencies())

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return None

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        total = np.full(len(orders), -math.inf)
        for part, weight in self.members():
            curve = RenyiCurve(part, adjacency=adjacency, group=group)
            if curve.failure > 0 or curve.spill > 0:
                return np.full(len(orders), math.inf)
            if weight > 0:
                total = np.logaddexp(total, math.log(weight) + curve.moments(orders - 1).max(axis=0))
        return np.asarray(np.maximum(total / (orders - 1), 0.0) * (1 + 1e-12))

    def own_delta(self, epsilon: float, adjacency: str, group: int) -> tuple[float, float]:
        """(lower, upper) bounds on δ at ``epsilon``: no lower one, and the mean of the members' upper ones."""
        return 0.0, _profile(self, adjacency, group)(epsilon)

    def own_epsilon(self, delta: float, adjacency: str, group: int) -> tuple[float, float]:
        """(lower, upper) bounds on ε at ``delta``: the upper one lies between the cheapest and the dearest member."""
        prices = [certified_epsilon(m, delta, adjacency=adjacency, group=group) for m, w in self.members() if w > 0]
        low, high = min(p.upper for p in prices), max(p.upper for p in prices)
        for _ in range(40):
            if high - low <= 1e-6 * high or math.isinf(high):
                break
            middle = 0.5 * (low + high)
            inside = self.own_delta(middle, adjacency, group)[1] <= delta
            low, high = (low, middle) if inside else (middle, high)
        return 0.0, high


def one_of(mechanisms: Sequence[Mechanism]) -> Mechanism:
    """One of several mechanisms, each as probable as the others, drawn without the data.

    >>> from tacit import accounting as acc
    >>> len(one_of([acc.Gaussian(1.0), acc.Gaussian(2.0), acc.Gaussian(3.0)]).members())
    3
    """
    if not mechanisms:
        raise AccountingError("one_of takes at least one mechanism")
    counts: dict[Mechanism, int] = {}
    for mechanism in mechanisms:
        counts[mechanism] = counts.get(mechanism, 0) + 1
    kinds = list(counts.items())
    result, left = kinds[-1]
    for mechanism, times in reversed(kinds[:-1]):
        left += times
        result = Either(mechanism, result, times / left)
    return result


def _inherit_unit(made: Mechanism, base: Mechanism) -> None:
    """What is made of mechanisms protects the unit that they protect, and no other."""
    if made.unit and made.unit != base.unit:
        raise UnitError(unit_message(base.unit, made.unit))
    object.__setattr__(made, "unit", base.unit)


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


def theorem_six(selected: Selected, order: float, *, adjacency: str = "add-remove", group: int = 1) -> float:
    """The Rényi bound for a Poisson number of runs with δ' from Rényi divergences alone, as first published.

    The price uses the base's exact profile for δ', which is smaller.
    """
    curve = RenyiCurve(selected.mechanism, adjacency=adjacency, group=group)
    c = np.array([order - 1])
    grid = np.exp(np.linspace(math.log(1e-1), math.log(1e4), 20_000))
    kappa = -grid * np.log1p(1 / grid) - np.log1p(grid)  # of the improved conversion
    log_delta = float(np.min(curve.moments(grid).max(axis=0) + kappa - np.log1p(1 / c) * grid))
    extra = selected.mean * math.exp(min(log_delta, 0.0)) + math.log(selected.mean) / float(c[0])
    return max(0.0, float(curve.moments(c).max() / c[0]) + extra)


# -- bounds from the privacy profile ----


@functools.lru_cache(maxsize=64)
def _profile(mechanism: Mechanism, adjacency: str, group: int) -> Callable[[float], float]:
    """The certified upper end of the base's δ(ε), each value computed once."""
    parts = mechanism.members() if isinstance(mechanism, Either) else [(mechanism, 1.0)]
    readers = [(Reader(part, adjacency, group), weight * (1 + 1e-15)) for part, weight in parts]

    @functools.lru_cache(maxsize=4096)
    def at(epsilon: float) -> float:
        return min(1.0, sum(weight * reader.upper(epsilon) for reader, weight in readers))

    return at


class _Profiled:
    """Prices of a selection from δ(ε) of its base, the larger of both directions.

    All of them follow from: selected density = top·a(u)dQ with u = 1 - F; a(u')/a(u) is at most ``spread``; u' <= g(u)
    with g(t) = min over ε of δ(ε) + e^ε t.
    """

    def __init__(self, selected: Selected, adjacency: str, group: int) -> None:
        self.selected, self.adjacency, self.group = selected, adjacency, group
        self.base = _profile(selected.mechanism, adjacency, group)
        self.top = selected.runs * (1 + 1e-12)

    def epsilon(self, delta: float) -> float:
        rough = self.by_tradeoff(delta)
        return min(rough, self.jointly(delta)) if math.isfinite(rough) else rough

    def delta(self, epsilon: float) -> float:
        """δ at ``epsilon``: by the trade-off bound, and by the joint one."""
        spread = self.log_spread()
        if not math.isfinite(spread):
            return 1.0
        simple = min(1.0, self.top * self.both((epsilon - spread) * (1 - 1e-15)))
        if simple == 0 or spread <= 1e-12 or math.isinf(epsilon):
            return simple
        joint = _Joint(self, epsilon - 1.3 * spread, max(epsilon, 0.1 * spread))
        return min(simple, joint.delta(epsilon))

    def both(self, epsilon: float) -> float:
        """δ(ε) of the base; below 0 from the reversed pair, δ(-x) = 1 - e^-x(1 - δ(x))."""
        return self.base(epsilon) if epsilon >= 0 else 1 - math.exp(epsilon) * (1 - self.base(-epsilon))

    # -- the parts ---------------------------------------------------------------------------------------------------

    def untuned(self, delta: float) -> float:
        """ε of one run at the share of δ that the selection leaves it."""
        share = delta / self.top
        if share >= 1:
            return 0.0
        return certified_epsilon(self.selected.mechanism, share, adjacency=self.adjacency, group=self.group).upper

    def log_spread(self) -> float:
        """log of the largest a(u)/a(g(u)): how much the rank of a result can move between neighbours.

        With c = (1-γ)/γ the largest (1 + c g(t))/(1 + c t) is the R at which R = 1 + c δ(log R), because for any ε̂ it
        is at most max(e^ε̂, 1 + c δ(ε̂)). For Poisson the exponent m(g(t) - t) is at most m δ(0).
        """
        if self.selected.distribution == "poisson":
            return self.selected.mean * self.base(0.0)
        return self.selected._power * self._ratio

    @functools.cached_property
    def _ratio(self) -> float:
        """log R; any x gives a valid ratio, max(x, log(1 + c δ(x))), and the crossing of the two the smallest."""
        odds = self.selected._odds
        best = math.log1p(odds)  # δ <= 1

        def gap(x: float) -> float:
            nonlocal best
            failures = odds * self.base(x)
            best = min(best, max(x, math.log1p(failures)))
            return math.log(math.expm1(x)) - math.log(failures) if failures > 0 else math.inf

        high = math.log1p(odds * self.base(0.0))  # δ(0) is the largest, so the crossing lies below
        best = min(best, high)
        if high <= 1e-12:
            return best
        above = gap(high)
        low = min(math.log1p(odds * self.base(high)), 0.9 * high)  # and above this, δ falling in ε
        if low <= 0:
            low = 1e-6 * high
        below = gap(low)
        while below > 0 and low > 1e-12:
            high, above, low = low, below, low * 0.1
            below = gap(low)
        for _ in range(40):
            if not below < 0 < above or high - low <= 1e-12 * high:
                break
            x = (low * above - high * below) / (above - below) if math.isfinite(above) else 0.5 * (low + high)
            if not low < x < high:
                x = 0.5 * (low + high)
            value = gap(x)
            if abs(value) <= 1e-10:
                break
            # false position, the weight of an end that stays halved (Illinois)
            if value < 0:
                low, below, above = x, value, 0.5 * above
            else:
                high, above, below = x, value, 0.5 * below
        return best

    # -- the prices --------------------------------------------------------------------------------------------------

    def by_tradeoff(self, delta: float) -> float:
        """ε + log spread, at top·δ(ε)."""
        return self.untuned(delta) + self.log_spread()

    def by_profile(self, delta: float) -> float:
        """The same with the ratio of tails bounded by e^ε̂ + ((1-γ)/γ)δ(ε̂) for the best ε̂ (not for Poisson)."""
        if self.selected.distribution == "poisson":
            return self.by_tradeoff(delta)
        odds = self.selected._odds

        def ratio(x: float) -> float:
            return math.log(math.exp(x) + odds * self.base(x))

        low, high = 0.0, max(2 * self._ratio, 1e-9)
        while ratio(high) < ratio(0.5 * high) and high < 700:
            high *= 2
        golden = 0.5 * (math.sqrt(5) - 1)
        one, two = high - golden * (high - low), low + golden * (high - low)
        for _ in range(80):
            if ratio(one) < ratio(two):
                high, two = two, one
                one = high - golden * (high - low)
            else:
                low, one = one, two
                two = low + golden * (high - low)
            if high - low < 1e-9 * (1 + high):
                break
        return self.untuned(delta) + self.selected._power * min(ratio(one), ratio(two), ratio(0.0))

    def jointly(self, delta: float) -> float:
        """The rank's weight and its movement bounded together: the weight is smallest where the rank moves most."""
        first, spread = self.untuned(delta), self.log_spread()
        if not (math.isfinite(first) and math.isfinite(spread)) or spread <= 1e-12:
            return first + spread
        joint = _Joint(self, first - 0.5 * spread, first + spread)
        low, high = first, first + spread
        if joint.delta(high) > delta:
            return high  # the grid is too coarse here; the trade-off bound stands
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if joint.delta(middle) <= delta else (middle, high)
            if high - low < 1e-12 * high:
                break
        return high


class _Joint:
    """δ(E) <= top·Σ w_k δ(ε_k): the convex function ψ(y) = max_u (a(u)y - a(g(u)))₊ laid over points of the profile.

    The selected densities satisfy top·(a(u)dQ - e^E a(u')dQ')₊ <= top·e^E ψ(e^{-E}dQ/dQ')dQ'. A polygon above ψ with
    corners at y_k = e^{ε_k - E} and slope changes w_k gives the sum.
    """

    def __init__(self, bounds: _Profiled, low: float, high: float) -> None:
        self.selected, base = bounds.selected, bounds.base
        self.top = bounds.top
        self.epsilons = np.unique(np.concatenate([[0.0], _lattice(low, high, _POINTS)]))
        self.deltas = np.array([bounds.both(float(x)) for x in self.epsilons])
        # g from above: lines δ + e^ε t and, from the complements of events, 1 - e^{-ε}(1 - δ) + e^{-ε} t.
        positive = self.epsilons[self.epsilons >= 0]
        lines = np.unique(np.concatenate([_lattice(0.0, max(low, 1e-3 * high), _LINES), positive]))
        heights = np.array([base(float(x)) for x in lines])
        slope = np.concatenate([np.exp(lines[::-1]), np.exp(-lines)])
        start = np.concatenate([heights[::-1], 1 - np.exp(-lines) * (1 - heights)])
        self.start, self.slope, self.edges = _lowest(start, slope)

    def delta(self, total: float) -> float:
        """δ of the selection at ε = ``total``."""
        y = np.exp(self.epsilons - total)
        y = y[: max(int(np.searchsorted(y, 1 + 1e-9)), 1)]
        psi = self._psi(y)
        # From the origin (where δ is 1) through the corners; beyond the last one the slope is at most 1.
        slopes = np.concatenate([[0.0], np.diff(np.concatenate([[0.0], psi])) / np.diff(np.concatenate([[0.0], y]))])
        changes = np.maximum(np.diff(np.concatenate([slopes, [1.0]])), 0.0)
        deltas = np.concatenate([[1.0], self.deltas[: len(y)]])
        return min(1.0, float(self.top * (changes @ deltas)) * (1 + 1e-12))

    def _psi(self, y: Array) -> Array:
        """max over u of a(u)y - a(g(u)): at the corners of g, or where the derivative vanishes on one of its pieces."""
        selected, slope, start = self.selected, self.slope, self.start
        with np.errstate(all="ignore"):
            if selected.distribution == "poisson":
                level = np.subtract.outer(-np.log(y), -np.log(slope) + selected.mean * start)
                flat = level / (selected.mean * (slope - 1))
            else:
                odds = selected._odds
                q = np.divide.outer(1.0, y) ** (1 / (1 + selected._power))
                q = q[:, None] * slope ** (1 / (1 + selected._power))
                flat = (q - 1 - odds * start) / (odds * (slope - q))
        flat = np.clip(np.nan_to_num(flat, nan=0.0, posinf=1.0, neginf=0.0), self.edges[:-1], self.edges[1:])
        low, high = (np.broadcast_to(x, flat.shape) for x in (self.edges[:-1], self.edges[1:]))
        tail = np.stack([low, flat, high])
        moved = start + slope * tail  # a line may pass 1 by a little, which only makes the bound larger
        values = y[:, None] * selected._falling(tail) - selected._falling(moved)
        return np.asarray(np.maximum(values.max(axis=(0, 2)) + 1e-13, 0.0))


def _lattice(low: float, high: float, points: int) -> Array:
    """``points`` multiples of a power of two, or up to twice as many, that cover [low, high] from below.

    Prices at other δ meet the same multiples again, and need no new value of the base's profile.
    """
    step = 2.0 ** math.floor(math.log2((high - low) / points))
    return np.asarray(step * np.arange(math.floor(low / step), math.ceil(high / step) + 1))


def _lowest(start: Array, slope: Array) -> tuple[Array, Array, Array]:
    """The lines that are lowest somewhere on [0, 1], steepest first, and the edges between them."""
    kept: list[int] = []
    edges: list[float] = []
    for i in np.argsort(-slope, kind="stable"):
        while kept:
            last = kept[-1]
            if slope[last] == slope[i]:
                crossing = -1.0 if start[i] < start[last] else 2.0
            else:
                crossing = float((start[i] - start[last]) / (slope[last] - slope[i]))
            if crossing > edges[-1]:
                break
            kept.pop()
            edges.pop()
        else:
            kept.append(int(i))
            edges.append(0.0)
            continue
        if crossing < 1:
            kept.append(int(i))
            edges.append(crossing)
    return start[kept], slope[kept], np.array([*edges, 1.0])
