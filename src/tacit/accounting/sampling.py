"""How were records sampled? Poisson, truncated Poisson, fixed size, shuffled, balls in bins.

A sampler wraps one mechanism and gives the privacy loss of the pair that dominates both together. What is not
covered by a theorem is refused with the reason.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any, ClassVar

import numpy as np

from tacit.accounting.base import ADJACENCIES, Composed, Mechanism, check_share, check_whole, inherit_unit
from tacit.accounting.errors import AccountingError, AdjacencyError
from tacit.accounting.losses import ROUND, AtomsLoss, Loss, SampledLaplaceLoss
from tacit.accounting.mechanisms import (
    GDP,
    ApproxDP,
    Gaussian,
    Laplace,
    PureDP,
    gaussian_loss,
    nothing_revealed,
    renyi_of_pure,
    replaced_with,
    revealed_with,
)
from tacit.accounting.mixture import MixtureLoss, SymmetrisedLoss
from tacit.accounting.special import bdtrc, gammaln


@dataclasses.dataclass(frozen=True, repr=False)
class PoissonSampled(Mechanism):
    """A mechanism run on a Poisson sample: every record takes part independently with probability ``rate``.

    Gaussian: P = (1-q)N(0) + qN(1) against Q = N(0) and its reverse; replace-one (1-q)N(0) + qN(1) against
    (1-q)N(0) + qN(-1); groups of k added or removed: Binomial(k, q) shifts (Ganesh 2024). Pure and approximate DP: the
    amplification lemma, (ln(1 + q(e^ε - 1)), qδ). docs/explanation/accounting.md, section 8, has the proofs.

    What is known only by its guarantee (PureDP, ApproxDP, GDP) is amplified under add/remove alone. Under zero-out a
    blank that is sampled is still a record: a mechanism may count it, and then tells whether it was sampled. Gaussian
    and Laplace noise is taken to be on a sum to which a blank adds nothing, so that a blank is as good as absent.
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

        _check_stated(self)

    def adjacencies(self) -> tuple[str, ...]:
        inner = self.mechanism
        if isinstance(inner, PureDP | ApproxDP | GDP) and 0 < self.rate < 1:
            # The lemmas are about a record that is there or not.
            return tuple(a for a in inner.adjacencies() if a == "add-remove")
        return inner.adjacencies()

    def advice(self, adjacency: str) -> str:
        return (
            "sampling amplifies a guarantee alone only where a record is there or not (a blank that is sampled is "
            "not a record that is not sampled); describe the noise itself, Gaussian or Laplace on a sum to which a "
            "blank adds nothing, or price it under add-remove, with a guarantee stated for that"
        )

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        inner, rate = self.mechanism, self.rate
        if rate == 0:
            return nothing_revealed()
        if rate == 1:
            return inner.pair(adjacency, direction, group)
        if isinstance(inner, PureDP | ApproxDP):
            delta = inner.delta if isinstance(inner, ApproxDP) else 0.0
            return ApproxDP(amplified(inner.epsilon, rate), rate * delta).pair(adjacency, direction, group)
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
        # (a weaker one where e^ε has no number, which is a lower bound all the more)
        return _sampled_response(min(inner.epsilon, 600.0), delta, self.rate, direction)

    def _gaussian(self, inner: Mechanism, adjacency: str, direction: str, group: int) -> Loss | None:
        if isinstance(inner, GDP):
            sigma, far = (1 / inner.mu if inner.mu else math.inf), 1.0
        else:
            assert isinstance(inner, Gaussian)
            sigma, far = inner.noise_multiplier, inner.replace
        rate = self.rate
        if sigma == 0 or not inner.is_tight(adjacency, group):
            return self._revealed(adjacency, direction, group)
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

    def _revealed(self, adjacency: str, direction: str, group: int) -> Loss:
        """Without noise whoever is sampled is seen."""
        some = -math.expm1(group * math.log1p(-self.rate))
        return replaced_with(some) if adjacency == "replace-one" else revealed_with(some, direction)

    def _laplace(self, inner: Laplace, adjacency: str, direction: str, group: int) -> Loss | None:
        if inner.scale == 0:
            return self._revealed(adjacency, direction, group)
        if adjacency == "replace-one" or group > 1:
            return None
        if not inner.is_tight(adjacency):  # by the amplification lemma
            return PureDP(amplified(1 / inner.scale, self.rate)).pair(adjacency, direction)
        return SampledLaplaceLoss(1 / inner.scale, self.rate, mixture_is_p=direction == "remove")

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        inner = self.mechanism
        if not isinstance(inner, Laplace) or inner.scale == 0 or self.rate == 0:
            return None
        if adjacency == "replace-one" or group > 1:
            return renyi_of_pure(self._chained(inner, adjacency, group), orders)
        return None

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        inner = self.mechanism
        if isinstance(inner, Laplace) and inner.scale > 0 and self.pair(adjacency, direction, group) is None:
            return self._chained(inner, adjacency, group)
        return super().largest_loss(adjacency, direction, group)

    def _chained(self, inner: Laplace, adjacency: str, group: int) -> float:
        """Amplified pure DP: the lemma for one record, then the chain of neighbours."""
        return amplified(1 / inner.scale, self.rate) * group * (2 if adjacency == "replace-one" else 1)


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
        super().__post_init__()
        if not isinstance(self.mechanism, PoissonSampled):
            raise AccountingError("draws are added up here for Poisson sampling only")
        check_whole("draws", self.draws)

    def adjacencies(self) -> tuple[str, ...]:
        return tuple(a for a in self.mechanism.adjacencies() if a != "replace-one" or self.draws == 1)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self.mechanism.pair(adjacency, direction, group * self.draws)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return self.mechanism.is_tight(adjacency, group * self.draws)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        return self.mechanism.renyi(adjacency, orders, group * self.draws)

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return self.mechanism.largest_loss(adjacency, direction, group * self.draws)


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

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return math.inf if self.extra_delta(group) else self.poisson().largest_loss(adjacency, direction, group)

    def extra_delta(self, group: int = 1) -> float:
        return binomial_tail(self.examples + group, self.rate, self.max_batch)


@dataclasses.dataclass(frozen=True, repr=False)
class FixedSizeSampled(Mechanism):
    """A mechanism run on ``batch`` of ``examples`` records drawn without replacement.

    When the record is drawn, another is not: the sum moves by 2 under add/remove too. There the pairs
    (1-q)N(0) + qN(2) against N(0), and its reverse, are exact, each for its direction (Zhu, Dong & Wang 2022,
    theorem 11). Under replace-one they are attained, so they bound from below; from above, the pair whose profile is
    the larger of the two everywhere (the same theorem). A blank moves the sum by 1 only: under zero-out the same holds
    from above, and the pair with 1 in place of 2 is attained. See docs/explanation/accounting.md, section 8.
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
        _check_stated(self)

    def adjacencies(self) -> tuple[str, ...]:
        stated = self.mechanism.adjacencies()
        if self.rate == 1:
            # nobody is displaced under replace-one or zero-out
            return tuple(a for a in ADJACENCIES if (a if a != "add-remove" else "replace-one") in stated)
        if "replace-one" not in stated:
            return ()
        return ADJACENCIES if "zero-out" in stated else ("add-remove", "replace-one")

    def advice(self, adjacency: str) -> str:
        return (
            "in a batch of fixed size a drawn record displaces another: state GDP for replace-one (for zero-out "
            "without naming an adjacency, which says that it holds under every one), or describe the noise by Gaussian"
        )

    @property
    def rate(self) -> float:
        """The chance that a given record is drawn."""
        return self.batch / self.examples

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return self.mechanism.is_tight("replace-one") and (adjacency == "add-remove" or self.rate == 1)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if group > 1:
            return None
        if self.is_tight(adjacency):
            return self._attained(direction, 1.0 if adjacency == "zero-out" else self._replace)
        # a blank, the record, and the one that it displaces: no two of them lie further apart than this
        removed = self._attained("remove", max(self._replace, 1.0) if adjacency == "zero-out" else self._replace)
        if isinstance(removed, MixtureLoss):
            return SymmetrisedLoss(removed)
        return replaced_with(removed.infinity)

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if group > 1 or not self.mechanism.is_tight("replace-one"):
            return None
        return self._attained(direction, 1.0 if adjacency == "zero-out" else self._replace)

    @property
    def _replace(self) -> float:
        # GDP is stated for the replacement that a draw without replacement makes
        return self.mechanism.replace if isinstance(self.mechanism, Gaussian) else 1.0

    def _attained(self, direction: str, far: float) -> Loss:
        inner = self.mechanism
        if isinstance(inner, Gaussian):
            sigma = inner.noise_multiplier
        else:
            assert isinstance(inner, GDP)
            sigma = 1 / inner.mu if inner.mu else math.inf
        if sigma == 0 or not inner.is_tight("replace-one"):
            return revealed_with(self.rate, direction)
        if math.isinf(sigma):
            return nothing_revealed()
        if self.rate == 1:
            return gaussian_loss(far / sigma)
        shifts = {0.0: 1 - self.rate, far: self.rate}
        if direction == "remove":
            return MixtureLoss(sigma, shifts, {0.0: 1.0})
        return MixtureLoss(sigma, {0.0: 1.0}, shifts)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        if group > 1:
            raise AccountingError("groups are not priced for FixedSizeSampled: use PoissonSampled, or group=1")
        pair = self.pair(adjacency, "remove")
        if not isinstance(pair, SymmetrisedLoss):
            return None
        loss = pair.loss
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

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return self.mechanism.largest_loss(adjacency, direction, group)

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
    tiny = sys.float_info.min  # where the bound itself has no number
    divergence = share * math.log(share / rate)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - rate))
    return min(1.0, math.exp(-n * divergence * (1 - 1e-9)) + tiny)


def amplified(epsilon: float, rate: float) -> float:
    """ln(1 + q(e^ε - 1)), rounded up: the amplification lemma for Poisson sampling, add/remove (Balle et al. 2018).

    >>> round(amplified(1.0, 0.01), 6)
    0.017037
    """
    if rate == 0:
        return 0.0
    if epsilon > 700:
        value = float(np.logaddexp(math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate) + epsilon))
    else:
        value = math.log1p(rate * math.expm1(epsilon))
    return value * (1 + 8 * ROUND)


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


def _check_stated(sampled: Mechanism) -> None:
    """An error where what is sampled states its guarantee for adjacencies under which sampling it proves nothing."""
    if not sampled.adjacencies():
        stated = " or ".join(sampled.mechanism.adjacencies())  # type: ignore[attr-defined]
        raise AdjacencyError(f"no guarantee is known for {sampled!r}: {sampled.advice(stated)}")


def _wrap_one(sampled: Any) -> None:
    inner = sampled.mechanism
    if not isinstance(inner, Mechanism) or isinstance(inner, Composed):
        raise AccountingError(f"a sampler wraps one mechanism, not {inner!r}; compose after sampling")
    inherit_unit(sampled, inner)
