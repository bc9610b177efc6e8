"""How were records sampled? Poisson, truncated Poisson, fixed size, shuffled, balls in bins.

A sampler wraps one mechanism and gives the privacy loss of a pair that dominates both together. What no theorem covers
is refused, with the reason.
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

    Gaussian: P = (1-q)N(0) + qN(1) against Q = N(0), and the reverse; under replace-one (1-q)N(0) + qN(1) against
    (1-q)N(0) + qN(-1); for groups of k added or removed, Binomial(k, q) shifts (Ganesh 2024). Pure and approximate DP:
    the amplification lemma, (ln(1 + q(e^ε - 1)), qδ). The proofs are in docs/explanation/pairs.md.

    A mechanism known only by its guarantee (PureDP, ApproxDP, GDP) is amplified under add/remove only. Under zero-out a
    sampled blank is still a record: a mechanism may count it, and then shows whether it was sampled. Gaussian and
    Laplace noise is taken to be on a sum to which a blank adds nothing, so that a blank is as good as absent.

    Args:
        mechanism: What runs on the sample: Gaussian, Laplace, GDP, PureDP or ApproxDP.
        rate: The probability that a record takes part in one run, in [0, 1].
        unit: Taken from ``mechanism``; leave it out.

    Raises:
        AccountingError: If no amplification theorem covers ``mechanism``, or the rate is no probability.

    Example:
        >>> from tacit.accounting import Gaussian, PoissonSampled, epsilon
        >>> step = PoissonSampled(Gaussian(1.1), rate=256 / 60000)
        >>> epsilon(step * 3515, delta=1e-5)
        ε in [1.133706, 1.133707] at δ=1e-05, add/remove one record
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
                f"PoissonSampled has no amplification theorem for {self.mechanism!r}; "
                "it takes Gaussian, Laplace, GDP, PureDP and ApproxDP"
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
            "sampling amplifies a bare guarantee only if a record is present or absent (a sampled blank differs from a "
            "record that was not sampled). Describe the noise itself, Gaussian or Laplace on a sum to which a blank "
            "adds nothing, or use add-remove with a guarantee stated for it"
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
        """Whether two records that replace each other cannot lie at opposite ends of what one can add."""
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

    A record may be in several of the draws and moves the sum once for each: Binomial(draws, rate) times. That is the
    pair of a group of ``draws`` records in a single draw, and it is priced as such.

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
    """Poisson sampling whose batches are cut at ``max_batch`` records.

    The run differs from plain Poisson sampling only when a batch overflows: a total variation of w = Pr[Bin(n+k, q) >
    max] per step on each side, which adds (1 + e^ε)·T·w to δ after T steps.

    Args:
        mechanism: What runs on the sample, as in :class:`PoissonSampled`.
        rate: The probability q that a record is drawn, in [0, 1].
        examples: The number n of records. It is public.
        max_batch: The largest batch; a larger one is cut to it.
        unit: Taken from ``mechanism``; leave it out.

    Example:
        >>> from tacit import accounting as acc
        >>> step = acc.TruncatedPoissonSampled(acc.Gaussian(1.1), 0.01, examples=10_000, max_batch=200)
        >>> plain = acc.epsilon(step.poisson() * 100, 1e-5).upper
        >>> plain <= acc.epsilon(step * 100, 1e-5).upper < 1.001 * plain
        True
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
        """The same sampler without the cut."""
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
    """A mechanism run on exactly ``batch`` records out of ``examples``, drawn without replacement.

    When the record is drawn, another is not, so the sum moves by 2 under add/remove too. There the pairs (1-q)N(0) +
    qN(2) against N(0), and the reverse, are exact, each for its direction (Zhu, Dong & Wang 2022, theorem 11). Under
    replace-one they are attained, so they bound the price from below; the upper bound is the pair whose profile is the
    larger of the two everywhere (the same theorem). A blank moves the sum by 1 only: under zero-out the same upper
    bound holds, and the pair with 1 in place of 2 is attained. See docs/explanation/pairs.md. Groups are not priced.

    Args:
        mechanism: What runs on the sample: Gaussian, or GDP stated for replace-one.
        batch: The number of records in each batch.
        examples: The number of records in all. It is public.
        unit: Taken from ``mechanism``; leave it out.

    Raises:
        AccountingError: If the batch is larger than the data, or ``mechanism`` is neither Gaussian nor GDP.

    Example:
        >>> from tacit import accounting as acc
        >>> fixed = acc.FixedSizeSampled(acc.Gaussian(1.1), batch=100, examples=10_000) * 100
        >>> poisson = acc.PoissonSampled(acc.Gaussian(1.1), rate=0.01) * 100
        >>> acc.epsilon(fixed, 1e-5).lower > acc.epsilon(poisson, 1e-5).upper
        True
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
            "in a batch of fixed size a drawn record displaces another. State GDP for replace-one (for zero-out, leave "
            "its adjacency out, which says that it holds under every one), or describe the noise by Gaussian"
        )

    @property
    def rate(self) -> float:
        """The probability that a given record is drawn."""
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
        """Upper bounds on the Rényi divergence, in the larger of the two directions.

        Args:
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            orders: Rényi orders α, all above 1.
            group: How many records one neighbour changes together; only 1 is priced.

        Returns:
            One bound for each order, or None if the bounds follow from :meth:`pair`.

        Raises:
            AccountingError: If ``group`` is above 1.
        """
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
    """One pass over chunks of a shuffled (or fixed) order, each record in exactly one: priced without amplification.

    Valid under replace-one and zero-out only: adding a record would move the boundaries of every later chunk. The price
    is exact if the attacker knows the chunks, and an upper bound otherwise.

    Args:
        mechanism: What runs on each chunk.
        unit: Taken from ``mechanism``; leave it out.

    Example:
        >>> from tacit import accounting as acc
        >>> epoch = acc.Shuffled(acc.Gaussian(5.0))
        >>> round(acc.epsilon(epoch * 3, 1e-5, adjacency="zero-out").upper, 3)
        1.326
    """

    tight: ClassVar[bool] = False
    mechanism: Mechanism
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _wrap_one(self)

    def adjacencies(self) -> tuple[str, ...]:
        return tuple(a for a in self.mechanism.adjacencies() if a != "add-remove")

    def advice(self, adjacency: str) -> str:
        return (
            "adding or removing a record moves the boundaries of every later chunk" if adjacency == "add-remove" else ""
        )

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

    No closed worst case is known. Upper bound: the attacker learns the batch of the record (one unsampled mechanism per
    pass). Lower bound: the attacker sees only the sum over the batches, N(1, bins·σ²) against N(0, bins·σ²).

    Args:
        mechanism: The Gaussian noise on each batch.
        bins: The number of batches in a pass.
        unit: Taken from ``mechanism``; leave it out.

    Raises:
        AccountingError: If ``mechanism`` is not Gaussian.

    Example:
        >>> from tacit import accounting as acc
        >>> price = acc.epsilon(acc.BallsInBins(acc.Gaussian(5.0), bins=4), 1e-5)
        >>> price.lower < price.upper, price.tight
        (True, False)
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
        raise AdjacencyError(
            f"{sampled!r} has no price under any adjacency. Reason: {sampled.advice(stated)}. "
            "See: tacit explain adjacency"
        )


def _wrap_one(sampled: Any) -> None:
    inner = sampled.mechanism
    if not isinstance(inner, Mechanism) or isinstance(inner, Composed):
        raise AccountingError(f"a sampler wraps one mechanism, not {inner!r}; compose after sampling")
    inherit_unit(sampled, inner)
