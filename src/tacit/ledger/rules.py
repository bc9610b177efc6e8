"""When may one more charge be granted, if people chose it after they saw earlier results?

A rule is fixed when a data set is registered. It prices every charge, adds the prices up, and says whether the sum
is still within the budget. All rules here are *privacy filters*: they hold even if the mechanisms, their parameters
and the moment to stop are chosen from earlier outputs. docs/explanation/ledger.md has the statements and proofs.

- :class:`SumRule`: Σε ≤ ε and Σδ ≤ δ (Rogers, Roth, Ullman & Vadhan 2016, the filter of basic composition).
- :class:`RenyiRule`: a Rényi filter at orders fixed in advance (Feldman & Zrnic 2021 for one order;
  several orders share δ between them).
- :class:`TightRule`, the default: a Rényi filter at several orders and at order ∞, or the sum if the first charge needs
  it, which was chosen before anybody saw anything.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from typing import Any

from tacit import accounting as acc
from tacit.accounting.renyi import overflow_cost
from tacit.ledger import entries
from tacit.ledger.errors import PriceError, TermsError

#: Under the Rényi rule, the part of δ kept for failures: cut batches and (ε, δ)-mechanisms.
FAILURE_SHARE = 0.01


@dataclasses.dataclass(frozen=True)
class Price:
    """What one charge costs: (ε, δ) by itself, and under the Rényi rule its divergence at each order.

    Args:
        epsilon: The upper end of the accountant's interval for ε at ``delta``.
        delta: The δ at which it was priced.
        renyi: An upper bound on the divergence at each order of the rule; empty under ``"sum"``.
        failure: Under a Rényi filter, the δ that is spent on failures.

    Example:
        >>> from tacit.ledger import Ledger
        >>> ledger = Ledger()
        >>> _ = ledger.register("people", epsilon=1.0, delta=1e-5, rule="sum")
        >>> ledger.quote("people", acc.PureDP(0.25), delta=0)
        Price(epsilon=0.25, delta=0.0, renyi=(), failure=0.0)
    """

    epsilon: float
    delta: float
    renyi: tuple[float, ...] = ()
    failure: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for an entry."""
        plain: dict[str, Any] = {"epsilon": entries.encode(self.epsilon), "delta": self.delta}
        if self.renyi:
            plain["renyi"] = [entries.encode(x) for x in self.renyi]
            plain["failure"] = self.failure
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Price:
        """Read what :meth:`to_dict` wrote.

        Args:
            plain: The plain values.

        Returns:
            The price.
        """
        renyi = tuple(entries.decode(x) for x in plain.get("renyi", ()))
        return cls(entries.decode(plain["epsilon"]), plain["delta"], renyi, plain.get("failure", 0.0))


@dataclasses.dataclass(frozen=True)
class Totals:
    """Sums of prices, kept exactly (see :func:`tacit.ledger.entries.add`)."""

    epsilon: tuple[float, ...] = ()
    delta: tuple[float, ...] = ()
    renyi: tuple[tuple[float, ...], ...] = ()
    failure: tuple[float, ...] = ()
    #: Under the rule ``"tight"``, what the first charge chose: ``"renyi"`` or ``"sum"``.
    mode: str = ""

    def plus(self, price: Price) -> Totals:
        """The sums with one more price."""
        before = self.renyi or ((),) * len(price.renyi)
        return Totals(
            tuple(entries.add(self.epsilon, price.epsilon)),
            tuple(entries.add(self.delta, price.delta)),
            tuple(tuple(entries.add(total, x)) for total, x in zip(before, price.renyi, strict=True)),
            tuple(entries.add(self.failure, price.failure)),
            self.mode,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for an entry."""
        plain: dict[str, Any] = {
            "epsilon": [entries.encode(x) for x in self.epsilon],
            "delta": list(self.delta),
        }
        if self.renyi:
            plain["renyi"] = [[entries.encode(x) for x in total] for total in self.renyi]
            plain["failure"] = list(self.failure)
        if self.mode:
            plain["mode"] = self.mode
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Totals:
        """Reads what :meth:`to_dict` wrote."""
        return cls(
            tuple(entries.decode(x) for x in plain["epsilon"]),
            tuple(plain["delta"]),
            tuple(tuple(entries.decode(x) for x in total) for total in plain.get("renyi", ())),
            tuple(plain.get("failure", ())),
            plain.get("mode", ""),
        )


@dataclasses.dataclass(frozen=True)
class SumRule:
    """Guarantee: everything granted on the data set together is (ε, δ)-DP, under its adjacency and unit.

    Valid for adaptively chosen mechanisms and parameters. Each charge is priced exactly at its own δ.
    """

    epsilon: float
    delta: float
    name: str = dataclasses.field(default="sum", init=False)

    def price(self, mechanism: acc.Mechanism, delta: float, adjacency: str) -> Price:
        """(ε, δ) of one charge, ε the accountant's upper end."""
        return Price(epsilon_alone(mechanism, delta, adjacency), delta)

    def add(self, totals: Totals, price: Price) -> Totals:
        """The sums with one more price."""
        return totals.plus(price)

    def within(self, totals: Totals) -> bool:
        """Whether the sums are inside the budget. Sums are exact and rounded once, to the nearest float."""
        return entries.value(totals.epsilon) <= self.epsilon and entries.value(totals.delta) <= self.delta

    def within_share(self, totals: Totals, share: float) -> bool:
        """Whether what one team spent is inside its share. All inside their shares are inside the budget."""
        return (
            entries.value(totals.epsilon) <= share * self.epsilon and entries.value(totals.delta) <= share * self.delta
        )

    def left(self, totals: Totals) -> tuple[float, float]:
        """What may still be added to Σε and Σδ."""
        return (
            max(0.0, math.fsum((self.epsilon, *(-x for x in totals.epsilon)))),
            max(0.0, math.fsum((self.delta, *(-x for x in totals.delta)))),
        )

    def used(self, totals: Totals) -> float:
        """The part of the budget that is gone, in [0, 1]."""
        delta = entries.value(totals.delta) / self.delta if self.delta else 0.0
        return max(entries.value(totals.epsilon) / self.epsilon, delta)

    def to_dict(self) -> dict[str, Any]:
        """The rule for the registration's entry."""
        return {"rule": "sum"}


@dataclasses.dataclass(frozen=True)
class RenyiRule:
    """Guarantee: everything granted on the data set together is (ε, δ)-DP, under its adjacency and unit.

    Valid for adaptively chosen mechanisms and parameters. A charge is granted while at one of the ``orders`` α, at
    least, the sum of the divergences is at most ``limits[α] = ε + (log(wδ') - log κ_α)/(α - 1)``, with κ_α = (1 -
    1/α)^(α-1)/α, w = 1/number of orders and δ' = δ less what is kept for failures.
    """

    epsilon: float
    delta: float
    orders: tuple[float, ...]
    failure_share: float = FAILURE_SHARE
    name: str = dataclasses.field(default="renyi", init=False)
    #: The ε at which failures were priced, where the budget was raised or renewed since; None for this one.
    priced_at: float | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise TermsError("rule='renyi' needs δ > 0; with δ = 0 use rule='sum'")
        if not self.orders or len(set(self.orders)) != len(self.orders):
            raise TermsError("rule='renyi' needs orders, each once")
        for order in self.orders:
            if not 1 < order < math.inf:
                raise TermsError(f"a Rényi order is a number above 1, not {order!r}")
        useless = [order for order, limit in zip(self.orders, self.limits, strict=False) if limit <= 0]
        if useless:
            raise TermsError(
                f"at order {useless[0]:g} the budget (ε={self.epsilon:g}, δ={self.delta:g}) allows no divergence; "
                f"leave it out (the best single order here is {best_order(self.epsilon, self.delta):g})"
            )

    @property
    def limits(self) -> tuple[float, ...]:
        """The largest sum of divergences allowed at each order, rounded down."""
        share = (1 - self.failure_share) * self.delta / len(self.orders)
        return tuple(_limit(order, self.epsilon, share) for order in self.orders)

    @property
    def failure_limit(self) -> float:
        """The largest sum of failures allowed. Those priced at a smaller ε than this one cost more now: (1 + e^ε)·w."""
        if self.priced_at is None or self.priced_at >= self.epsilon:
            return self.failure_share * self.delta
        return self.failure_share * self.delta * math.exp(self.priced_at - self.epsilon)

    def price(self, mechanism: acc.Mechanism, delta: float, adjacency: str) -> Price:
        """The divergence at each order, an upper bound, and the failures; (ε, δ) of the charge alone for the reader."""
        finite, failure = _without_failures(mechanism, self.epsilon)
        divergences = acc.renyi(finite, list(self.orders), adjacency=adjacency)
        renyi = tuple(float(x) if x == x else math.inf for x in divergences)
        return Price(epsilon_alone(mechanism, delta, adjacency), delta, renyi, failure)

    def add(self, totals: Totals, price: Price) -> Totals:
        """The sums with one more price."""
        return totals.plus(price)

    def within_share(self, totals: Totals, share: float) -> bool:
        """Whether what one team spent is inside its share, at the first order: there the shares add up."""
        spent = entries.value(totals.renyi[0]) if totals.renyi else 0.0
        return spent <= share * self.limits[0] and entries.value(totals.failure) <= share * self.failure_limit

    def within(self, totals: Totals) -> bool:
        """Whether some order is inside its limit, and the failures are inside theirs."""
        if entries.value(totals.failure) > self.failure_limit:
            return False
        return any(entries.value(t) <= limit for t, limit in zip(totals.renyi, self.limits, strict=False))

    def left(self, totals: Totals) -> tuple[float, float]:
        """An ε that fits by itself: the best order's rest, as if it were pure; and what is left for failures."""
        spent = totals.renyi or ((0.0,),) * len(self.limits)
        rest = max(limit - entries.value(t) for t, limit in zip(spent, self.limits, strict=True))
        return max(0.0, rest), max(0.0, self.failure_limit - entries.value(totals.failure))

    def used(self, totals: Totals) -> float:
        """The part of the budget that is gone at the order that has most left, in [0, 1]."""
        spent = totals.renyi or ((0.0,),) * len(self.limits)
        return min(entries.value(t) / limit for t, limit in zip(spent, self.limits, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """The rule for the registration's entry."""
        return {"rule": self.name, "orders": list(self.orders), "failure_share": self.failure_share}


@dataclasses.dataclass(frozen=True)
class TightRule(RenyiRule):
    """Guarantee: everything granted on the data set together is (ε, δ)-DP, under its adjacency and unit.

    Valid for adaptively chosen mechanisms and parameters. The first charge is chosen before anything was released, so
    it may choose the filter: the Rényi filter at ``orders`` and at order ∞ (whose limit is ε itself and costs no δ), or
    the sum where the first charge fits only there, such as one run that takes the whole budget.
    """

    name: str = dataclasses.field(default="tight", init=False)

    @property
    def limits(self) -> tuple[float, ...]:
        """The largest sum allowed at each order, and at order ∞ at last."""
        return (*super().limits, self.epsilon)

    @property
    def _sum(self) -> SumRule:
        return SumRule(self.epsilon, self.delta)

    def price(self, mechanism: acc.Mechanism, delta: float, adjacency: str) -> Price:
        """The divergences, that of order ∞ at last; (ε, δ) of the charge alone for the reader and for the sum."""
        price = super().price(mechanism, delta, adjacency)
        pure = _basic(_without_failures(mechanism, self.epsilon)[0], 0.0, adjacency)
        return dataclasses.replace(price, renyi=(*price.renyi, pure))

    def add(self, totals: Totals, price: Price) -> Totals:
        """The sums with one more price; with the first one, the filter that counts from then on."""
        after = totals.plus(price)
        return after if after.mode else dataclasses.replace(after, mode="renyi" if super().within(after) else "sum")

    def within(self, totals: Totals) -> bool:
        """Whether the filter that the first charge chose allows these sums."""
        return self._sum.within(totals) if totals.mode == "sum" else super().within(totals)

    def within_share(self, totals: Totals, share: float) -> bool:
        """Whether what one team spent is inside its share."""
        return self._sum.within_share(totals, share) if totals.mode == "sum" else super().within_share(totals, share)

    def left(self, totals: Totals) -> tuple[float, float]:
        """An ε that fits by itself, and the δ that is left."""
        return self._sum.left(totals) if totals.mode == "sum" else super().left(totals)

    def used(self, totals: Totals) -> float:
        """The part of the budget that is gone, in [0, 1]."""
        return self._sum.used(totals) if totals.mode == "sum" else super().used(totals)


Rule = SumRule | RenyiRule


def make_rule(
    name: str, epsilon: float, delta: float, orders: tuple[float, ...] | None, failure_share: float = FAILURE_SHARE
) -> Rule:
    """The rule of this name for a budget.

    Many branches: each refuses another mistake in the terms.

    >>> make_rule("renyi", 2.0, 1e-5, None).orders
    (10.22,)
    """
    if name == "tight" and delta == 0:
        name = "sum"  # without a δ there is nothing to convert: the sum of pure ε is all there is
    if name == "sum":
        if orders is not None:
            raise TermsError("orders belong to rule='renyi'")
        return SumRule(epsilon, delta)
    if name in ("renyi", "tight"):
        if isinstance(failure_share, bool) or not isinstance(failure_share, numbers.Real) or not 0 <= failure_share < 1:
            raise TermsError(f"the share of δ kept for failures lies in [0, 1), not {failure_share!r}")
        if orders is None and delta > 0:
            orders = _default_orders(name, epsilon, (1 - float(failure_share)) * delta)
        for order in orders or ():
            if isinstance(order, bool) or not isinstance(order, numbers.Real):
                raise TermsError(f"a Rényi order is a number above 1, not {order!r}")
        kind = RenyiRule if name == "renyi" else TightRule
        return kind(epsilon, delta, tuple(float(x) for x in orders or ()), float(failure_share))
    raise TermsError(f"unknown rule {name!r}; choose 'tight', 'renyi' or 'sum'")


def _default_orders(name: str, epsilon: float, delta: float) -> tuple[float, ...]:
    """The orders that are best for Gaussian noise, for the part of δ that is not kept for failures."""
    best = best_order(epsilon, delta)
    both = tight_orders(best)
    # with a large δ the lower one may allow nothing: then it would only cost
    helps = name == "tight" and all(_limit(order, epsilon, delta / 2) > 0 for order in both)
    return both if helps else (best,)


@functools.lru_cache(maxsize=256)
def price_of(rule: Rule, mechanism: acc.Mechanism, delta: float, adjacency: str) -> Price:
    """What a rule asks for a charge; the same charge is priced once in a process."""
    return rule.price(mechanism, delta, adjacency)


def tight_orders(best: float) -> tuple[float, ...]:
    """The orders of the rule ``"tight"``: the best one for Gaussian noise, and one below it.

    Batches drawn at a low rate have little divergence up to some order and much beyond, so a lower one helps them. Each
    order more costs log(number)/(order - 1) of ε at every order: a third one costs Gaussian noise more than it gives.

    >>> tight_orders(9.0)
    (9.0, 7.0)
    """
    return (best, 1 + float(f"{(best - 1) * 0.75:.3g}"))


def epsilon_alone(mechanism: acc.Mechanism, delta: float, adjacency: str) -> float:
    """The certified ε of one charge at its δ; at δ = 0 the pure guarantee, infinite where there is none.

    >>> epsilon_alone(acc.Laplace(10.0) * 3, 0.0, "add-remove")
    0.3
    """
    basic = _basic(mechanism, delta, adjacency)
    return basic if delta == 0 else min(basic, certified(mechanism, delta, adjacency).upper)


def _basic(mechanism: acc.Mechanism, delta: float, adjacency: str) -> float:
    """Σε of parts that are pure, or (ε, δ)-DP with Σδ at most ``delta``; infinite where there are others."""
    parts = [(*part.without_failure(), times) for part, times in mechanism.parts()]
    if math.fsum(times * failure for _, failure, times in parts) > delta or adjacency not in mechanism.adjacencies():
        return math.inf
    pure = tuple((part, times) for part, _, times in parts)
    return acc.epsilon(acc.Composed(pure, unit=mechanism.unit), 0.0, adjacency=adjacency).upper


def certified(mechanism: acc.Mechanism, delta: float, adjacency: str) -> acc.Bound:
    """The accountant's ε at δ, after asking it the other way round; :class:`PriceError` where the answers contradict.

    A budget stands on this number, and δ at ε takes another path through the accountant than ε at δ.

    >>> certified(acc.Gaussian(5.0), 1e-5, "add-remove") == acc.epsilon(acc.Gaussian(5.0), 1e-5)
    True
    """
    bound = acc.epsilon(mechanism, delta, adjacency=adjacency)
    if math.isfinite(bound.upper):
        back = acc.delta(mechanism, bound.upper, adjacency=adjacency, tolerance=1e-3 * delta)
        if back.lower > delta * (1 + 1e-6):
            raise PriceError(
                f"the accountant prices {mechanism!r} at ε={bound.upper:.6g} for δ={delta:g}, but at that ε it finds δ "
                f"of at least {back.lower:.6g}: one is wrong, so nothing is granted. Please report this"
            )
    return bound


def best_order(epsilon: float, delta: float) -> float:
    """The order whose limit allows the most Gaussian noise variance: the largest limit(α)/α.

    For charges with divergence ρα (Gaussian noise, zCDP) no other single order grants more. Rounded to 3 digits.

    >>> best_order(1.0, 1e-5)
    17.8
    """
    # limit(α)/α rises to one maximum and falls: a search by thirds on log(α - 1).
    low, high = math.log(1e-3), math.log(1e7)
    for _ in range(200):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        one, other = (_limit(1 + math.exp(x), epsilon, delta) / (1 + math.exp(x)) for x in (a, b))
        low, high = (a, high) if one < other else (low, b)
    return 1 + float(f"{math.exp(low):.3g}")


def _limit(order: float, epsilon: float, delta: float) -> float:
    """The Rényi divergence of this order that gives (ε, δ)-DP (Canonne, Kamath & Steinke 2020, proposition 12)."""
    log_kappa = (order - 1) * math.log1p(-1 / order) - math.log(order)
    value = epsilon + (math.log(delta) - log_kappa) / (order - 1)
    return value - 1e-12 * (abs(value) + 1)


def _without_failures(mechanism: acc.Mechanism, epsilon: float) -> tuple[acc.Mechanism, float]:
    """The mechanism without what has infinite divergence, and the δ that this adds at ``epsilon``.

    A cut batch differs from plain Poisson sampling by a total variation w on either side: (1 + e^ε)·w. An
    (ε0, δ0)-DP mechanism is ε0-DP except with probability δ0 (Kairouz, Oh & Viswanath 2015). Inside a selection either
    happens in some run with probability at most E[K] times that; apart from it the selection is one over what has a
    finite divergence: a total variation again.
    """
    failure: list[float] = []
    finite: list[tuple[acc.Mechanism, int]] = []
    for part, times in mechanism.parts():
        near, failing = part.without_failure()
        if failing:
            failure.append(times * failing)
        else:
            near, variation = _nearest(part)
            failure.append(overflow_cost(times * variation, epsilon))
        finite.append((near, times))
    return acc.Composed(tuple(finite), unit=mechanism.unit), math.fsum(failure)


def _nearest(mechanism: acc.Mechanism) -> tuple[acc.Mechanism, float]:
    """A mechanism of finite divergence, and an upper bound on how far in total variation this one is from it."""
    if isinstance(mechanism, acc.Composed):
        found = [(*_nearest(part), times) for part, times in mechanism.parts()]
        near = acc.Composed(tuple((part, times) for part, _, times in found), unit=mechanism.unit)
        return near, math.fsum(times * variation for _, variation, times in found)
    if isinstance(mechanism, acc.TruncatedPoissonSampled):
        # where the cut is in the loss law itself (Gaussian noise), the divergence is finite and is that law's own
        overflow = mechanism.extra_delta()
        return (mechanism.poisson(), overflow) if overflow else (mechanism, 0.0)
    if isinstance(mechanism, acc.Selected):
        inner, variation = _nearest(mechanism.mechanism)
        # the number of runs does not depend on the data (for a threshold it is at most ``runs`` on average)
        return dataclasses.replace(mechanism, mechanism=inner), mechanism.runs * variation
    if isinstance(mechanism, acc.Either):
        (one, first), (other, second) = _nearest(mechanism.one), _nearest(mechanism.other)
        variation = mechanism.share * first + (1 - mechanism.share) * second
        return dataclasses.replace(mechanism, one=one, other=other), variation
    return mechanism.without_failure()
