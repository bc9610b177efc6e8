"""How were records sampled? Poisson, truncated Poisson, fixed size, shuffled, balls in bins.

A sampler wraps one mechanism and gives the privacy loss of the pair that dominates both together. What is not
covered by a theorem is refused with the reason.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from tacit.accounting.base import Composed, Mechanism, check_share, check_whole, inherit_unit
from tacit.accounting.errors import AccountingError
from tacit.accounting.losses import AtomsLoss, GaussianLoss, Loss, SampledLaplaceLoss
from tacit.accounting.mechanisms import GDP, ApproxDP, Gaussian, Laplace, PureDP, nothing_revealed, renyi_of_pure
from tacit.accounting.mixture import MixtureLoss, SymmetrisedLoss
from tacit.accounting.special import bdtrc, gammaln


@dataclasses.dataclass(frozen=True, repr=False)
class PoissonSampled(Mechanism):
    """A mechanism run on a Poisson sample: every record takes part independently with probability ``rate``.

    Gaussian: P = (1-q)N(0) + qN(1) against Q = N(0) and its reverse; replace-one (1-q)N(0) + qN(1) against
    (1-q)N(0) + qN(-1); groups of k added or removed: Binomial(k, q) shifts (Ganesh 2024). Pure and approximate DP: the
    amplification lemma, (ln(1 + q(e^ε - 1)), qδ).
    """

    mechanism: Mechanism
    rate: float
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _wrap_one(self)
        check_share("a sampling rate", self.rate)
        if not isinstance(self.mechanism, Gaussian | Laplace | PureDP | ApproxDP | GDP):
            raise AccountingError(
                f"no amplification theorem is built in for {self.mechanism!r}; "
                "PoissonSampled takes Gaussian, GDP, Laplace, PureDP and ApproxDP"
            )

    def adjacencies(self) -> tuple[str, ...]:
        inner = self.mechanism
        if isinstance(inner, PureDP | ApproxDP | GDP):
            # The lemmas are about a record that is there or not.
            return tuple(a for a in inner.adjacencies() if a != "replace-one" or self.rate in (0, 1))
        return inner.adjacencies()

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        inner, rate = self.mechanism, self.rate
        if rate == 0:
            return nothing_revealed()
        if rate == 1:
            return inner.pair(adjacency, direction, group)
        if isinstance(inner, PureDP | ApproxDP):
            epsilon, delta = _amplified(inner, rate)
            return ApproxDP(epsilon, delta).pair(adjacency, direction, group)
        if isinstance(inner, Laplace):
            return self._laplace(inner, adjacency, direction, group)
        return self._gaussian(inner, adjacency, direction, group)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        inner = self.mechanism
        if not inner.is_tight(adjacency, group):
            return False
        if not 0 < self.rate < 1:
            return True
        return not (isinstance(inner, PureDP | ApproxDP) or self._near(adjacency))

    def _near(self, adjacency: str) -> bool:
        """Whether two records that replace each other cannot lie on opposite ends of what one can add."""
        return adjacency == "replace-one" and isinstance(self.mechanism, Gaussian) and self.mechanism.replace < 2

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        inner = self.mechanism
        if self.is_tight(adjacency, group):
            return self.pair(adjacency, direction, group)
        if self._near(adjacency) and group == 1 and isinstance(inner, Gaussian) and inner.noise_multiplier > 0:
            # two records as far apart as they may be, on either side of the middle
            return _either_side(inner.noise_multiplier, inner.replace / 2, self.rate)
        if group > 1 or not isinstance(inner, PureDP | ApproxDP):
            return None
        # sampled randomised response, which is one of the mechanisms the lemma is about
        delta = inner.delta if isinstance(inner, ApproxDP) else 0.0
        return _sampled_response(min(inner.epsilon, 600.0), delta, self.rate, direction)

    def _gaussian(self, inner: Mechanism, adjacency: str, direction: str, group: int) -> Loss | None:
        if isinstance(inner, GDP):
            sigma, far = (1 / inner.mu if inner.mu else math.inf), 1.0
        else:
            assert isinstance(inner, Gaussian)
            sigma, far = inner.noise_multiplier, inner.replace
        rate = self.rate
        if sigma == 0:
            return AtomsLoss([], [], infinity=1 - (1 - rate) ** group)
        if math.isinf(sigma):
            return nothing_revealed()
        if adjacency == "replace-one":
            if group > 1:
                return None
            # The two records may pull opposite ways, each as far as adding one can, however little replacing moves.
            return _either_side(sigma, max(far / 2, 1.0), rate)
        shifts = _binomial(group, rate)
        if direction == "remove":
            return MixtureLoss(sigma, shifts, {0.0: 1.0})
        return MixtureLoss(sigma, {0.0: 1.0}, shifts)

    def _laplace(self, inner: Laplace, adjacency: str, direction: str, group: int) -> Loss | None:
        if inner.scale == 0:
            return AtomsLoss([], [], infinity=1 - (1 - self.rate) ** group)
        if adjacency == "replace-one" or group > 1:
            return None
        if not inner.is_tight(adjacency):  # by the amplification lemma
            return PureDP(math.log(self.rate) + 1 / inner.scale).pair(adjacency, direction)
        return SampledLaplaceLoss(1 / inner.scale, self.rate, mixture_is_p=direction == "remove")

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        inner = self.mechanism
        if not isinstance(inner, Laplace) or inner.scale == 0 or self.rate == 0:
            return None
        if adjacency == "replace-one" or group > 1:
            # Amplified pure DP: the lemma for one record, then the chain of neighbours.
            epsilon, _ = _amplified(PureDP(1 / inner.scale), self.rate)
            steps = group * (2 if adjacency == "replace-one" else 1)
            return renyi_of_pure(epsilon * steps, orders)
        return None


@dataclasses.dataclass(frozen=True, repr=False)
class Accumulated(Mechanism):
    """``draws`` independent Poisson draws whose sums are added up under one noise (gradient accumulation).

    A record may be in several of the draws, and moves the sum once for each: Binomial(draws, rate) times. That is the
    pair of a group of ``draws`` records in a single draw, and it is priced as that.

    >>> from tacit import accounting as acc
    >>> step = acc.PoissonSampled(acc.Gaussian(1.0), 0.01)
    >>> twice = acc.epsilon(Accumulated(step, 2) * 100, 1e-5).upper
    >>> acc.epsilon(step * 100, 1e-5).upper < twice
    True
    """

    mechanism: PoissonSampled
    draws: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", self.mechanism.unit)
        if not isinstance(self.mechanism, PoissonSampled):
            raise AccountingError("draws are added up here for Poisson sampling only")
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 1:
            raise AccountingError(f"draws is a positive whole number, not {self.draws!r}")

    def adjacencies(self) -> tuple[str, ...]:
        return tuple(a for a in self.mechanism.adjacencies() if a != "replace-one" or self.draws == 1)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self.mechanism.pair(adjacency, direction, group * self.draws)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return self.mechanism.is_tight(adjacency, group * self.draws)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        return self.mechanism.renyi(adjacency, orders, group * self.draws)


@dataclasses.dataclass(frozen=True, repr=False)
class TruncatedPoissonSampled(Mechanism):
    """Poisson sampling of ``examples`` records whose batches are cut at ``max_batch``.

    The run differs from plain Poisson sampling only when a batch overflows: a total variation w = Pr[Bin(n+k, q) > max]
    a step on each side, which adds (1 + e^ε)·T·w to δ.
    """

    mechanism: Mechanism
    rate: float
    examples: int
    max_batch: int
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _wrap_one(self)
        check_whole("examples", self.examples)
        check_whole("max_batch", self.max_batch)
        self.poisson()

    def poisson(self) -> PoissonSampled:
        """The sampler without the cut."""
        return PoissonSampled(self.mechanism, self.rate, unit=self.unit)

    def adjacencies(self) -> tuple[str, ...]:
        return self.poisson().adjacencies()

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self.poisson().pair(adjacency, direction, group)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        return self.poisson().renyi(adjacency, orders, group)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return False  # the cut is priced from both sides

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self.poisson().floor(adjacency, direction, group)

    def extra_delta(self, group: int = 1) -> float:
        return binomial_tail(self.examples + group, self.rate, self.max_batch)


@dataclasses.dataclass(frozen=True, repr=False)
class FixedSizeSampled(Mechanism):
    """A mechanism run on ``batch`` of ``examples`` records drawn without replacement.

    When the record is drawn, another is not: the sum moves by 2 under add/remove too. There the pairs
    (1-q)N(0) + qN(2) against N(0), and its reverse, are exact, each for its direction (Zhu, Dong & Wang 2022,
    theorem 11). Under replace-one they are attained, so they bound from below; from above, the pair whose profile is
    the larger of the two everywhere (the same theorem). A blank moves the sum by 1 only: under zero-out the same holds
    from above, and the pair with 1 in place of 2 is attained. See docs/accounting.md, section 8.
    """

    mechanism: Mechanism
    batch: int
    examples: int
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _wrap_one(self)
        check_whole("batch", self.batch)
        check_whole("examples", self.examples)
        if self.batch > self.examples:
            raise AccountingError(f"a batch of {self.batch} cannot be drawn from {self.examples} records")
        if not isinstance(self.mechanism, Gaussian | GDP):
            raise AccountingError(f"FixedSizeSampled takes Gaussian or GDP, not {self.mechanism!r}")

    @property
    def rate(self) -> float:
        """The chance that a given record is drawn."""
        return self.batch / self.examples

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return adjacency == "add-remove" or self.rate == 1

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if group > 1:
            return None
        loss = self._attained(direction, blank=adjacency == "zero-out" and self.rate == 1)
        if isinstance(loss, MixtureLoss) and not self.is_tight(adjacency):
            removed = self._attained("remove")
            assert isinstance(removed, MixtureLoss)
            return SymmetrisedLoss(removed)
        return loss

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return None if group > 1 else self._attained(direction, blank=adjacency == "zero-out")

    def _attained(self, direction: str, blank: bool = False) -> Loss:
        inner = self.mechanism
        if isinstance(inner, Gaussian):
            sigma, far = inner.noise_multiplier, 1.0 if blank else inner.replace
        else:
            assert isinstance(inner, GDP)  # stated for the replacement that a draw without replacement makes
            sigma, far = (1 / inner.mu if inner.mu else math.inf), 1.0
        if sigma == 0:
            return AtomsLoss([], [], infinity=self.rate)
        if math.isinf(sigma):
            return nothing_revealed()
        if self.rate == 1:
            return GaussianLoss(far / sigma)
        shifts = {0.0: 1 - self.rate, far: self.rate}
        if direction == "remove":
            return MixtureLoss(sigma, shifts, {0.0: 1.0})
        return MixtureLoss(sigma, {0.0: 1.0}, shifts)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        if group > 1:
            raise AccountingError("groups are not priced for FixedSizeSampled: use PoissonSampled, or group=1")
        loss = self._attained("remove")
        if self.is_tight(adjacency) or not isinstance(loss, MixtureLoss):
            return None
        # E[e^{cL}; L > 0] + P[L <= 0] of the removed pair, whose loss is at least log(1-q)
        c = orders - 1
        moment = np.array([sum(loss.tilted(float(x))[:2]) for x in c])
        bound = np.logaddexp(moment, np.log(-np.expm1(c * math.log1p(-self.rate)))) / c
        # the divergence rises with its order, so the bound at a larger order holds at a smaller one too
        rising = np.argsort(orders)
        bound[rising] = np.minimum.accumulate(bound[rising][::-1])[::-1]
        return np.asarray(bound)


@dataclasses.dataclass(frozen=True, repr=False)
class Shuffled(Mechanism):
    """One pass over shuffled (or fixed) chunks, each record in exactly one: priced with no amplification.

    Valid under replace-one and zero-out only: adding a record would move the boundaries of every chunk after it. Exact
    when the chunks are known to the attacker; an upper bound when their order is not.
    """

    tight: ClassVar[bool] = False
    mechanism: Mechanism
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _wrap_one(self)

    def adjacencies(self) -> tuple[str, ...]:
        return tuple(a for a in self.mechanism.adjacencies() if a != "add-remove")

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self.mechanism.pair(adjacency, direction, group)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        return self.mechanism.renyi(adjacency, orders, group)

    def extra_delta(self, group: int = 1) -> float:
        return self.mechanism.extra_delta(group)


@dataclasses.dataclass(frozen=True, repr=False)
class BallsInBins(Mechanism):
    """One pass in which every record falls into one of ``bins`` batches at random (Chua et al. 2024).

    No closed worst case is known. Upper bound: the batch of the record is told to the attacker (one unsampled
    mechanism a pass). Lower bound: only the sum over the batches is seen, N(1, bins·σ²) against N(0, bins·σ²).
    """

    tight: ClassVar[bool] = False
    mechanism: Gaussian
    bins: int
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _wrap_one(self)
        check_whole("bins", self.bins)
        if not isinstance(self.mechanism, Gaussian):
            raise AccountingError("BallsInBins takes Gaussian")

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self.mechanism.pair(adjacency, direction, group)

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        wide = Gaussian(self.mechanism.noise_multiplier * math.sqrt(self.bins), self.mechanism.replace)
        return wide.pair(adjacency, direction, group)


# -- helpers ----


def binomial_tail(n: int, rate: float, limit: int) -> float:
    """An upper bound on Pr[Binomial(n, rate) > limit]."""
    if limit >= n or rate == 0:
        return 0.0
    value = float(bdtrc(limit, n, rate))
    if value > 1e-12:
        return min(1.0, value * (1 + 1e-9))
    # Far out, where the special function may lose digits or underflow: Chernoff's bound.
    share = (limit + 1) / n
    if share <= rate or rate >= 1:
        return 1.0
    divergence = share * math.log(share / rate)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - rate))
    return min(1.0, math.exp(-n * divergence))


def _amplified(inner: Mechanism, rate: float) -> tuple[float, float]:
    assert isinstance(inner, PureDP | ApproxDP)
    delta = inner.delta if isinstance(inner, ApproxDP) else 0.0
    if inner.epsilon > 700:
        return math.log(rate) + inner.epsilon, rate * delta
    return math.log1p(rate * math.expm1(inner.epsilon)), rate * delta


def _sampled_response(epsilon: float, delta: float, rate: float, direction: str) -> Loss:
    """(1-q)Q + qP against Q, or the reverse, for randomised response (P, Q) that fails with probability δ."""
    yes, no = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    high, low = math.log1p(rate * math.expm1(epsilon)), math.log1p(rate * math.expm1(-epsilon))
    missing = math.log1p(-rate)
    if direction == "remove":
        values = [missing, low, high]
        p = [(1 - rate) * delta, (1 - delta) * yes * math.exp(low), (1 - delta) * no * math.exp(high)]
        return AtomsLoss(values, p, infinity=rate * delta, spacing=high - low, symmetric=False)
    p = [(1 - delta) * no, (1 - delta) * yes, delta]
    return AtomsLoss([-high, -low, -missing], p, spacing=high - low, symmetric=False)


def _either_side(sigma: float, half: float, rate: float) -> Loss:
    """(1-q)N(0) + qN(h) against (1-q)N(0) + qN(-h)."""
    return MixtureLoss(sigma, {0.0: 1 - rate, half: rate}, {0.0: 1 - rate, -half: rate})


def _binomial(group: int, rate: float) -> dict[float, float]:
    j = np.arange(group + 1)
    log_weight = gammaln(group + 1) - gammaln(j + 1) - gammaln(group - j + 1)
    log_weight = log_weight + j * math.log(rate) + (group - j) * math.log1p(-rate)
    if group == 1:
        return {0.0: 1 - rate, 1.0: rate}
    return {float(i): float(math.exp(w)) for i, w in zip(j, log_weight, strict=True)}


def _wrap_one(sampled: Any) -> None:
    inner = sampled.mechanism
    if not isinstance(inner, Mechanism) or isinstance(inner, Composed):
        raise AccountingError(f"a sampler wraps one mechanism, not {inner!r}; compose after sampling")
    inherit_unit(sampled, inner)
