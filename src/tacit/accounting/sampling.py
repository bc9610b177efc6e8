"""How were records sampled? Poisson, truncated Poisson, fixed size, shuffled, balls in bins, cyclic.

A sampler wraps one mechanism and gives the privacy loss of a pair that dominates both together. What no theorem covers
is refused, with the reason.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any, ClassVar

import numpy as np

from tacit.accounting.base import ADJACENCIES, DIRECTIONS, Mechanism, check_whole
from tacit.accounting.batches import BlankedLoss, DisplacedLoss
from tacit.accounting.derived import DrawnLoss
from tacit.accounting.errors import AccountingError
from tacit.accounting.losses import GaussianLoss, Loss
from tacit.accounting.mechanisms import (
    GDP,
    Gaussian,
    gaussian_loss,
    nothing_revealed,
    replaced_with,
    revealed_with,
)
from tacit.accounting.mixture import MixtureLoss, SymmetrisedLoss
from tacit.accounting.passes import LEAST_NOISE, MOST_BINS, MOST_NOISE, PassLoss, largest_of_batches
from tacit.accounting.poisson import PoissonSampled, check_stated, wrap_one
from tacit.accounting.renyi import log_moments
from tacit.accounting.special import bdtrc

#: A record in a batch that is cut is taken to be seen if that happens with a smaller probability than this.
NEVER = 1e-18


@dataclasses.dataclass(frozen=True, repr=False)
class TruncatedPoissonSampled(Mechanism):
    """Poisson sampling whose batches are cut at ``max_batch`` records, at random.

    Let m be the number of the other records that are drawn. If m < max_batch, nothing is cut and the pair is that of
    Poisson sampling. Otherwise the record takes part with probability q·max_batch/(m + 1) and displaces another, as in
    a batch of fixed size. An attacker who is told which it was has a pair for each case, drawn with the probabilities
    of m (docs/explanation/batches.md; arXiv 2508.15089 for a larger one).

    Zero-out and replace-one: the number of records is exactly ``examples``. Add-remove: it is ``examples`` or fewer on
    both sides. For groups, and for mechanisms that are not Gaussian, w = Pr[Bin(n+k, q) > max] a step is the total
    variation to Poisson sampling, which adds (1 + e^ε)·T·w to δ after T steps.

    Args:
        mechanism: What runs on the sample, as in :class:`PoissonSampled`.
        rate: The probability q that a record is drawn, in [0, 1].
        examples: The number n of records. It is public.
        max_batch: The largest batch; a larger one is cut to it.
        unit: Taken from ``mechanism``; leave it out.

    Example:
        >>> from tacit import accounting as acc
        >>> step = acc.TruncatedPoissonSampled(acc.Gaussian(1.1), 0.01, examples=10_000, max_batch=150)
        >>> plain = acc.epsilon(step.poisson() * 100, 1e-5).upper
        >>> plain <= acc.epsilon(step * 100, 1e-5).upper < 1.01 * plain
        True
    """

    mechanism: Mechanism
    rate: float
    examples: int
    max_batch: int
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        wrap_one(self)
        check_whole("examples", self.examples)
        check_whole("max_batch", self.max_batch)
        self.poisson()

    def poisson(self) -> PoissonSampled:
        """The same sampler without the cut."""
        return PoissonSampled(self.mechanism, self.rate, unit=self.unit)

    def adjacencies(self) -> tuple[str, ...]:
        return self.poisson().adjacencies()

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        plain = self.poisson().pair(adjacency, direction, group)
        if plain is None or not self._told(group):
            return plain
        cut = self._cut_pair(adjacency, direction)
        # The weights are rounded apart from each other: their sum is a little more than 1. Far out the tail is a bound.
        overflow = self._overflow(adjacency)
        return DrawnLoss([(plain, 1 - overflow * (1 - 2e-9) if overflow > 1e-11 else 1.0), (cut, overflow)])

    def _told(self, group: int) -> bool:
        """Whether the pair tells the attacker if the batch was cut, instead of adding to δ."""
        noise = self.mechanism.noise_multiplier if isinstance(self.mechanism, Gaussian) else 0.0
        return group == 1 and 0 < noise < math.inf and 0 < self.rate < 1 and self.max_batch < self.examples + 1

    def _overflow(self, adjacency: str) -> float:
        """The probability that so many others are drawn that the record would be one too many, rounded up."""
        others = self.examples if adjacency == "add-remove" else self.examples - 1
        return binomial_tail(others, self.rate, self.max_batch - 1)

    def _cut_pair(self, adjacency: str, direction: str) -> Loss:
        """The pair given that the batch is full without the record."""
        assert isinstance(self.mechanism, Gaussian)
        if adjacency == "add-remove":
            # with fewer records than ``examples`` it overflows more rarely, and the record is drawn more often: at most
            # as often as without the cut, where this pair dominates the other, so that more overflow is the worse
            shifts = {0.0: 1 - self.rate, max(self.mechanism.replace, 1.0): self.rate}
            if direction == "remove":
                return MixtureLoss(self.mechanism.noise_multiplier, shifts, {0.0: 1.0})
            return MixtureLoss(self.mechanism.noise_multiplier, {0.0: 1.0}, shifts)
        if self._overflow(adjacency) * self.rate < NEVER:
            return replaced_with(self._rate_if_full())  # as if it were seen: so rare that a quick price is worth more
        return fixed_size_pair(self.mechanism, self._rate_if_full(), adjacency, direction)

    def _rate_if_full(self) -> float:
        """E[q·max_batch/(m+1)] given m >= max_batch, for m others drawn: Pr[Bin(n, q) > max]·max/(n·Pr[m >= max])."""
        drawn = binomial_tail(self.examples, self.rate, self.max_batch)
        overflow = self._overflow("zero-out") / (1 + 4e-9)
        largest = self.rate * self.max_batch / (self.max_batch + 1)
        if overflow < 1e-11:  # where the tails are bounds, not values
            return largest
        return min(largest, drawn * self.max_batch / (self.examples * overflow))

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        if not self._told(group):
            return self.poisson().renyi(adjacency, orders, group)
        if adjacency == "add-remove":
            return None
        # the moments of both cases, mixed; in the full one those of a batch of fixed size
        full = renyi_of_fixed_size(self.mechanism, self._rate_if_full(), orders)
        plain = np.max(
            [
                log_moments(loss, orders - 1)
                for d in DIRECTIONS
                if (loss := self.poisson().pair(adjacency, d)) is not None
            ],
            axis=0,
        )
        overflow = self._overflow(adjacency)
        both = np.logaddexp(plain, math.log(overflow) + full * (orders - 1)) if overflow > 0 else plain
        return np.asarray(both / (orders - 1))

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return False  # the cut is priced from both sides

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        rate = self.rate
        if self._told(group) and adjacency != "add-remove":
            # where the others add nothing, all that shows is whether the record took part
            drawn = binomial_tail(self.examples, rate, self.max_batch)
            rate *= 1 - self._overflow(adjacency)
            if drawn > 1e-11:
                rate += drawn * (1 - 1e-8) * self.max_batch / self.examples
        # (with fewer records than ``examples``, which add-remove allows, no batch is cut)
        return PoissonSampled(self.mechanism, rate, unit=self.unit).floor(adjacency, direction, group)

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        if self._told(group):
            return super().largest_loss(adjacency, direction, group)
        return math.inf if self.extra_delta(group) else self.poisson().largest_loss(adjacency, direction, group)

    def extra_delta(self, group: int = 1) -> float:
        if self._told(group):
            return 0.0
        return binomial_tail(self.examples + group, self.rate, self.max_batch)

    def uncut(self, adjacency: str, group: int = 1) -> Loss | None:
        # Without amplification: in one random order of all records, those that come or go displace as many at most
        inner = self.mechanism
        if not isinstance(inner, Gaussian) or not 0 < inner.noise_multiplier < math.inf:
            return None
        moved = {"add-remove": 2.0, "replace-one": max(inner.replace, 1.0), "zero-out": 1.0}[adjacency] * group
        return gaussian_loss(moved / inner.noise_multiplier)


@dataclasses.dataclass(frozen=True, repr=False)
class FixedSizeSampled(Mechanism):
    """A mechanism run on exactly ``batch`` records out of ``examples``, drawn without replacement.

    When the record is drawn, another is not, so the sum moves by 2 under add/remove too. There the pairs (1-q)N(0) +
    qN(2) against N(0), and the reverse, are exact, each for its direction (Zhu, Dong & Wang 2022, theorem 11). Under
    replace-one they are attained, so they bound the price from below; the upper bound is the pair whose profile is the
    larger of the two everywhere (the same theorem). A blank moves the sum by 1 where the record was drawn: under
    zero-out the worst profile of either order is attained, and the pair that has both bounds the price from above
    (docs/explanation/batches.md). Groups are not priced.

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
        wrap_one(self)
        check_whole("batch", self.batch)
        check_whole("examples", self.examples)
        if self.batch > self.examples:
            raise AccountingError(f"a batch of {self.batch} cannot be drawn from {self.examples} records")
        if not isinstance(self.mechanism, Gaussian | GDP):
            raise AccountingError(f"FixedSizeSampled takes Gaussian or GDP, not {self.mechanism!r}")
        check_stated(self)

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
        if self._sigma == 0 or not self.mechanism.is_tight("replace-one"):
            return replaced_with(self.rate)
        return fixed_size_pair(self.mechanism, self.rate, adjacency, direction)

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if group > 1 or not self.mechanism.is_tight("replace-one"):
            return None
        if adjacency != "zero-out" or self.rate == 1 or not 0 < self._sigma < math.inf:
            return self._attained(direction, 1.0 if adjacency == "zero-out" else self._replace)
        if direction == "remove" and self._replace == 2:
            # all others pull against the record
            return DisplacedLoss(self._sigma, self.rate, 2.0)
        # removing: the others add nothing; adding: they pull as the record does, so that a drawn blank is seen
        return self._attained("remove", 1.0)

    @property
    def _sigma(self) -> float:
        if isinstance(self.mechanism, Gaussian):
            return self.mechanism.noise_multiplier
        assert isinstance(self.mechanism, GDP)
        return 1 / self.mechanism.mu if self.mechanism.mu else math.inf

    @property
    def _replace(self) -> float:
        # GDP is stated for the replacement that a draw without replacement makes
        return self.mechanism.replace if isinstance(self.mechanism, Gaussian) else 1.0

    def _attained(self, direction: str, far: float) -> Loss:
        inner, sigma = self.mechanism, self._sigma
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
        if not isinstance(self.pair(adjacency, "remove"), SymmetrisedLoss | BlankedLoss):
            return None
        return renyi_of_fixed_size(self.mechanism, self.rate, orders)


def fixed_size_pair(mechanism: Mechanism, rate: float, adjacency: str, direction: str) -> Loss:
    """The dominating pair of replacing or blanking a record that is drawn with this rate and then displaces another."""
    gaussian = isinstance(mechanism, Gaussian)
    sigma = mechanism.noise_multiplier if isinstance(mechanism, Gaussian) else _gdp_sigma(mechanism)
    far = mechanism.replace if isinstance(mechanism, Gaussian) else 1.0
    if math.isinf(sigma):
        return nothing_revealed()
    if adjacency == "zero-out" and gaussian:
        return BlankedLoss(sigma, rate, far, removing=direction == "remove")
    return SymmetrisedLoss(MixtureLoss(sigma, {0.0: 1 - rate, far: rate}, {0.0: 1.0}))


def _gdp_sigma(mechanism: Mechanism) -> float:
    assert isinstance(mechanism, GDP)
    return 1 / mechanism.mu if mechanism.mu else math.inf


def renyi_of_fixed_size(mechanism: Mechanism, rate: float, orders: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Upper bounds on the Rényi divergence of replacing a record, and so of blanking it."""
    sigma = mechanism.noise_multiplier if isinstance(mechanism, Gaussian) else _gdp_sigma(mechanism)
    far = max(mechanism.replace, 1.0) if isinstance(mechanism, Gaussian) else 1.0
    loss = MixtureLoss(sigma, {0.0: 1 - rate, far: rate}, {0.0: 1.0})
    # E[e^{cL}; L > 0] + P[L <= 0] of the removed pair, whose loss is at least log(1-q)
    c = orders - 1
    moment = np.array([sum(loss.tilted(float(x))[:2]) for x in c])
    bound = np.logaddexp(moment, np.log(-np.expm1(c * math.log1p(-rate)))) / c
    # the divergence rises with its order, so the bound at a larger order holds at a smaller one too
    rising = np.argsort(orders)
    bound[rising] = np.minimum.accumulate(bound[rising][::-1])[::-1]
    return np.asarray(bound)


@dataclasses.dataclass(frozen=True, repr=False)
class Shuffled(Mechanism):
    """One pass over chunks of a shuffled (or fixed) order, each record in exactly one: priced without amplification.

    Valid under replace-one and zero-out only: adding a record would move the boundaries of every later chunk. No
    amplified upper bound is known for batches of a shuffled pass. The price is exact if the attacker knows the chunks,
    and an upper bound otherwise. With ``bins`` the lower end is what a pass that is shuffled anew reveals at least: it
    says how much amplification could be proven at most, and claims nothing. :class:`BallsInBins` has passes too, and an
    amplified price.

    Args:
        mechanism: What runs on each chunk.
        bins: The number of chunks in a pass, if the order is drawn anew for each pass. None (default): the order may be
            any, and the lower end is 0.
        unit: Taken from ``mechanism``; leave it out.

    Example:
        >>> from tacit import accounting as acc
        >>> epoch = acc.Shuffled(acc.Gaussian(5.0), bins=20)
        >>> price = acc.epsilon(epoch * 3, 1e-5, adjacency="zero-out")
        >>> round(price.upper, 3), price.lower > 0.2, price.tight
        (1.326, True, False)
    """

    tight: ClassVar[bool] = False
    mechanism: Mechanism
    bins: int | None = None
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        wrap_one(self)
        if self.bins is not None:
            check_whole("bins", self.bins)

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        inner, bins = self.mechanism, self.bins
        known = group == 1 and bins is not None and isinstance(inner, Gaussian) and inner.replace == 2
        if not known or not isinstance(inner, Gaussian) or bins is None:
            return None
        noise = inner.noise_multiplier / (2 if adjacency == "replace-one" else 1)
        if not (1 < bins <= MOST_BINS and LEAST_NOISE <= noise <= MOST_NOISE):
            return None
        if adjacency == "zero-out" and direction == "remove":
            # all others pull against the record
            return largest_of_batches(noise, bins)
        # All others pull as a blank does not, or as the other record does: one batch of the pass is another, and which
        # one is drawn evenly or less evenly than this, which shows more.
        return PassLoss(noise, bins, mixture_is_p=True)

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
    """One pass in which every record falls into one of ``bins`` batches at random, drawn anew for each pass.

    The worst pair for one record added, removed or blanked, whatever earlier batches showed, is the mixture of N(e_i,
    σ²) over the bins i against N(0, σ²) (Chua et al. 2024, arXiv 2412.16802). Its law is certified from both sides in
    docs/explanation/passes.md. It usually costs less than Poisson sampling at rate 1/bins, but not at large δ or for
    small noise. Where no theorem is known (replacing a record, groups) the price is that of an attacker who knows the
    batch of every record, and the lower end that of a record against a blank.

    Args:
        mechanism: The Gaussian noise on each batch.
        bins: The number of batches in a pass.
        unit: Taken from ``mechanism``; leave it out.

    Raises:
        AccountingError: If ``mechanism`` is not Gaussian.

    Example:
        >>> from tacit import accounting as acc
        >>> acc.epsilon(acc.BallsInBins(acc.Gaussian(1.0), bins=10), 1e-5, tolerance=1e-3)
        ε in [2.18..., 2.18...] at δ=1e-05, add/remove one record
        >>> round(acc.epsilon(acc.PoissonSampled(acc.Gaussian(1.0), 0.1) * 10, 1e-5).upper, 3)
        2.855
    """

    mechanism: Gaussian
    bins: int
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        wrap_one(self)
        check_whole("bins", self.bins)
        if not isinstance(self.mechanism, Gaussian):
            raise AccountingError("BallsInBins takes Gaussian noise; sample other noise by PoissonSampled")

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return self._law_is_known(adjacency, group) or self.bins == 1

    def _law_is_known(self, adjacency: str, group: int) -> bool:
        noise = self.mechanism.noise_multiplier
        known = adjacency != "replace-one" and group == 1 and 1 < self.bins <= MOST_BINS
        return known and LEAST_NOISE <= noise <= MOST_NOISE

    def _mixture(self, direction: str) -> Loss:
        return PassLoss(self.mechanism.noise_multiplier, self.bins, mixture_is_p=direction == "remove")

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if self._law_is_known(adjacency, group):
            return self._mixture(direction)
        return self.mechanism.pair(adjacency, direction, group)

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if self.is_tight(adjacency, group):
            return self.pair(adjacency, direction, group)
        if self._law_is_known("zero-out", 1) and (adjacency != "replace-one" or self.mechanism.replace >= 1):
            # one of the records alone, against a blank
            return self._mixture(direction)
        # what the sum over the batches shows
        wide = Gaussian(self.mechanism.noise_multiplier * math.sqrt(self.bins), self.mechanism.replace)
        return wide.pair(adjacency, direction, group)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        """Upper bounds on the Rényi divergence: those of an attacker who knows the batch.

        Args:
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            orders: Rényi orders α, all above 1.
            group: How many records one neighbour changes together (default 1).

        Returns:
            One bound for each order, or None if the bounds follow from :meth:`pair`.
        """
        loss = self.mechanism.pair(adjacency, "remove", group)
        if not self._law_is_known(adjacency, group) or not isinstance(loss, GaussianLoss):
            return None
        return np.asarray(0.5 * loss.mu**2 * orders * (1 + 1e-14))


@dataclasses.dataclass(frozen=True, repr=False)
class CyclicPoissonSampled(Mechanism):
    """One round of steps with banded noise, in which each record may take part in one step only.

    Records are parted into ``groups`` by a rule that does not depend on the data. Step i of a round draws from group i,
    every record of it with probability ``rate``. Noise is correlated by a matrix C with at most ``groups`` bands and
    columns of norm at most 1. Then ⌈n/groups⌉ rounds of Poisson sampling at this rate dominate the n steps
    (Choquette-Choo et al. 2023, arXiv 2306.08153, theorem 4; docs/explanation/correlated-noise.md). The price does not
    depend on ``groups``, which describes what ran.

    Replacing a record is not covered by the theorem. Groups of records are not priced: two of them may lie in
    neighbouring steps, where their columns of C overlap.

    Args:
        mechanism: The Gaussian noise on each step, before it is correlated.
        rate: The probability with which a record takes part in the step of its group, in [0, 1].
        groups: The number of groups, which is the length of a round.
        unit: Taken from ``mechanism``; leave it out.

    Raises:
        AccountingError: If ``mechanism`` is not Gaussian, or a group of records is priced.

    Example:
        >>> from tacit import accounting as acc
        >>> n, bands, rate = 2000, 8, 500 / 50_000
        >>> acc.epsilon(acc.CyclicPoissonSampled(acc.Gaussian(2.7081), bands * rate, bands) * (n // bands), 1e-5)
        ε in [1.99..., 1.99...] at δ=1e-05, add/remove one record
    """

    mechanism: Gaussian
    rate: float
    groups: int
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        wrap_one(self)
        check_whole("groups", self.groups)
        if not isinstance(self.mechanism, Gaussian):
            raise AccountingError("CyclicPoissonSampled takes Gaussian noise: the theorem is about no other")
        self._plain()

    def _plain(self, group: int = 1) -> PoissonSampled:
        if group > 1:
            raise AccountingError(
                "groups of records are not priced under correlated noise: members may take part in neighbouring steps. "
                "Protect the group as one unit (groups= in training), or use noise without bands"
            )
        return PoissonSampled(self.mechanism, self.rate, unit=self.unit)

    def adjacencies(self) -> tuple[str, ...]:
        return tuple(a for a in self._plain().adjacencies() if a != "replace-one")

    def advice(self, adjacency: str) -> str:
        return "the theorem is about a record that is there or not: use add-remove or zero-out"

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self._plain(group).pair(adjacency, direction)

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self._plain(group).floor(adjacency, direction)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return group == 1 and self._plain().is_tight(adjacency)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        return self._plain(group).renyi(adjacency, orders)

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return self._plain(group).largest_loss(adjacency, direction)


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
