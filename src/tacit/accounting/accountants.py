"""What would other accountants say? From the first composition theorem to the certified price, side by side.

Each accountant is called by name and returns an :class:`AccountantPrice`, or raises :class:`NotApplicable` with the
reason if its theorem does not cover a mechanism. All but ``gdp`` are upper bounds on the true ε; ``gdp`` is an
approximation that can be too low, and is marked as such. :func:`compare` asks them all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tacit.accounting.base import Mechanism, is_number
from tacit.accounting.bound import Bound
from tacit.accounting.derived import SampledLoss
from tacit.accounting.errors import AccountingError
from tacit.accounting.losses import AtomsLoss, GaussianLoss, LaplaceLoss
from tacit.accounting.mechanisms import GDP, DiscreteGaussian, ExponentialMechanism, Gaussian
from tacit.accounting.poisson import PoissonSampled, amplified
from tacit.accounting.pricing import epsilon as certified_epsilon
from tacit.accounting.renyi import MOMENTS, RenyiCurve, members_of


class NotApplicable(AccountingError):
    """This accountant's theorem does not cover the mechanism; the message says why."""


@dataclasses.dataclass(frozen=True)
class AccountantPrice:
    """The ε of one accountant at a δ, with the terms it holds under.

    Args:
        accountant: Its name, one of ``basic``, ``advanced``, ``moments``, ``rdp``, ``gdp`` and ``certified``.
        epsilon: Its ε: an upper bound on the true one, unless ``approximation``.
        delta: The δ that was asked for.
        adjacency: The adjacency of the guarantee.
        unit: Whom the guarantee protects.
        group: How many units are protected together (default 1).
        lower: A proven lower bound on the true ε; 0 (default) if this accountant has none.
        approximation: True if ``epsilon`` is not a bound at all: the truth may be larger.
        note: How the number came about, in words.

    Example:
        >>> from tacit.accounting import Gaussian, accountants
        >>> accountants.rdp(Gaussian(2.0) * 4, 1e-5)
        rdp: ε ≤ 4.728... at δ=1e-05, add/remove one record (order 5.4...)
    """

    accountant: str
    epsilon: float
    delta: float
    adjacency: str
    unit: str
    group: int = 1
    lower: float = 0.0
    approximation: bool = False
    note: str = ""

    @property
    def terms(self) -> str:
        """The adjacency and the unit of privacy in words."""
        return _terms(self.adjacency, self.unit, self.group)

    def __repr__(self) -> str:
        sign = "≈" if self.approximation else "≤"
        note = f" ({self.note})" if self.note else ""
        shown = _shown(self.epsilon, down=self.approximation)
        return f"{self.accountant}: ε {sign} {shown} at δ={self.delta:g}, {self.terms}{note}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinities are written as the string ``"inf"``."""
        return {k: "inf" if v == math.inf else v for k, v in dataclasses.asdict(self).items()}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The price of one mechanism by every accountant; prints as a table. Made by :func:`compare`.

    ``comparison["rdp"]`` is that accountant's :class:`AccountantPrice`, or raises :class:`NotApplicable`.

    Args:
        delta: The δ of all prices.
        adjacency: The adjacency of the guarantee.
        unit: Whom the guarantee protects.
        group: How many units are protected together.
        prices: The price by each accountant whose theorem covers the mechanism, by name.
        refused: Why the others gave none, by name.

    Example:
        >>> from tacit.accounting import Gaussian, Shuffled, compare
        >>> table = compare(Shuffled(Gaussian(5.0)), delta=1e-5, adjacency="zero-out")
        >>> list(table), table["certified"].adjacency
        (['basic', 'advanced', 'moments', 'rdp', 'gdp', 'certified'], 'zero-out')
    """

    delta: float
    adjacency: str
    unit: str
    group: int
    prices: dict[str, AccountantPrice]
    refused: dict[str, str]

    def __getitem__(self, name: str) -> AccountantPrice:
        if name in self.refused:
            raise NotApplicable(f"{name}: {self.refused[name]}")
        return self.prices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(ACCOUNTANTS)

    def __len__(self) -> int:
        return len(ACCOUNTANTS)

    def __repr__(self) -> str:
        rows = [("accountant", "ε", "what it is")]
        for name in ACCOUNTANTS:
            if name in self.refused:
                rows.append((name, "-", f"not applicable: {self.refused[name]}"))
                continue
            price = self.prices[name]
            kind = "approximation, can be too low" if price.approximation else "upper bound"
            if name == "certified":
                kind = f"certified: at least {_shown(price.lower, down=True)}"
            shown = _shown(price.epsilon, down=price.approximation)
            rows.append((name, shown, f"{kind}; {price.note}" if price.note else kind))
        wide = [max(len(row[i]) for row in rows) for i in range(2)]
        lines = [f"{one:<{wide[0]}}  {value:>{wide[1]}}  {text}".rstrip() for one, value, text in rows]
        return "\n".join([f"ε at δ={self.delta:g}, {_terms(self.adjacency, self.unit, self.group)}", *lines])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows: list[dict[str, Any]] = []
        for name in ACCOUNTANTS:
            if name in self.prices:
                price = self.prices[name].to_dict()
                keep = ("accountant", "epsilon", "lower", "approximation", "note")
                rows.append({"applicable": True, **{k: price[k] for k in keep}})
            else:
                rows.append(
                    {
                        "applicable": False,
                        "accountant": name,
                        "note": f"not applicable: {self.refused[name]}",
                    }
                )
        terms = {"delta": self.delta, "adjacency": self.adjacency, "unit": self.unit, "group": self.group}
        return {**terms, "accountants": rows}


def compare(mechanism: Mechanism, delta: float, *, adjacency: str = "add-remove", group: int = 1) -> Comparison:
    """The ε of a mechanism by every accountant.

    Args:
        mechanism: What ran: one mechanism, or several composed with ``*`` and ``+``.
        delta: The δ of the guarantee. At 0 only ``basic`` and ``certified`` apply.
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).

    Returns:
        All prices, with the reason where an accountant does not apply. Claim ``["certified"]``.

    Example:
        >>> from tacit.accounting import Gaussian, PoissonSampled, compare
        >>> table = compare(PoissonSampled(Gaussian(8.0), 0.01) * 5370, delta=1e-5)
        >>> round(table["moments"].epsilon, 3), round(table["certified"].epsilon, 3)
        (0.5, 0.312)
    """
    prices: dict[str, AccountantPrice] = {}
    refused: dict[str, str] = {}
    for name, accountant in ACCOUNTANTS.items():
        try:
            prices[name] = accountant(mechanism, delta, adjacency=adjacency, group=group)
        except NotApplicable as error:
            refused[name] = str(error)
    return Comparison(float(delta), adjacency, mechanism.unit, int(group), prices, refused)


# -- the theorems on (ε, δ) ----


def basic(mechanism: Mechanism, delta: float, *, adjacency: str = "add-remove", group: int = 1) -> AccountantPrice:
    """Sums of ε and of δ (Dwork & Roth 2014, theorem 3.16), δ shared equally by the steps that need one.

    >>> from tacit.accounting import PureDP
    >>> basic(PureDP(0.5) * 4, 1e-5).epsilon
    2.0
    """
    if delta == 0:
        total = certified_epsilon(mechanism, 0.0, adjacency=adjacency, group=group).upper
        return AccountantPrice("basic", total, 0.0, adjacency, mechanism.unit, group)
    members = _asked(mechanism, delta, adjacency, group)
    steps = _Steps(members, delta, adjacency, group)
    total = math.fsum(times * one for one, times in steps.epsilons)
    return AccountantPrice("basic", total, delta, adjacency, mechanism.unit, group, note=steps.note)


def advanced(mechanism: Mechanism, delta: float, *, adjacency: str = "add-remove", group: int = 1) -> AccountantPrice:
    """Advanced composition for steps that may differ (Kairouz, Oh & Viswanath 2015, theorem 3.5).

    ε = Σ ε_i (e^{ε_i} - 1)/(e^{ε_i} + 1) + sqrt(2 ln(1/δ') Σ ε_i²). Half of what the stated δ leave is δ', the other
    half is shared by the steps; where every step is pure DP all of it is δ'. A sampled Gaussian step is priced as one
    Gaussian release and then by the amplification lemma. The plain sum is taken where it is smaller.

    >>> from tacit.accounting import PureDP
    >>> round(advanced(PureDP(0.1) * 100, 1e-5).epsilon, 6)
    5.29811
    """
    members = _asked(mechanism, delta, adjacency, group)
    steps = _Steps(members, delta, adjacency, group, share=0.5)
    mean = math.fsum(times * one * math.tanh(one / 2) for one, times in steps.epsilons)
    square = math.fsum(times * one * one for one, times in steps.epsilons)
    spread = math.sqrt(-2 * math.log(steps.tail) * square) if square < math.inf else math.inf
    plain = math.fsum(times * one for one, times in steps.epsilons)
    note = steps.note + ("; the plain sum is smaller" if plain < mean + spread else "")
    return AccountantPrice("advanced", min(plain, mean + spread), delta, adjacency, mechanism.unit, group, note=note)


class _Steps:
    """Every step as an (ε_i, δ_i) guarantee, with Σ δ_i and the theorem's own tail within δ."""

    def __init__(
        self, members: list[tuple[Mechanism, int]], delta: float, adjacency: str, group: int, share: float = 0.0
    ) -> None:
        self.adjacency, self.group = adjacency, group
        stated = [(part, times, self._stated(part)) for part, times in members]
        left = delta - math.fsum(times * known[1] for _, times, known in stated if known is not None)
        open_steps = sum(times for _, times, known in stated if known is None)
        if left <= 0:
            raise NotApplicable(f"the stated δ of the steps add up to more than {delta:g}")
        #: the δ' of the theorem
        self.tail = left if open_steps == 0 else share * left
        each = (left - self.tail) / max(open_steps, 1)
        words: list[str] = []
        self.epsilons: list[tuple[float, int]] = []
        for part, times, known in stated:
            if known is not None:
                one = known[0]
            else:
                one, how = self._one_step(part, each)
                words.append(f"{how} ({one:.4g}, {each:.3g})")
            self.epsilons.append((one, times))
        shares = []
        if share and self.tail > 0:
            shares.append(f"δ' = {self.tail:.3g}")
        if open_steps:
            shares.append(f"{left - self.tail:.3g} over {open_steps:,} steps")
        if len(words) > 2:
            words = [*words[:2], "…"]
        self.note = "; ".join([*words, *([f"δ split: {' + '.join(shares)}"] if shares else [])])

    def _stated(self, part: Mechanism) -> tuple[float, float] | None:
        """(ε, δ) of a mechanism that has one of its own; None for one that is priced at whatever δ it is given."""
        if isinstance(part, DiscreteGaussian) or part.extra_delta(self.group) > 0:
            return None
        if isinstance(part, ExponentialMechanism):
            return part.epsilon * self.group, 0.0
        pairs = [part.pair(self.adjacency, direction, self.group) for direction in ("remove", "add")]
        if all(isinstance(loss, LaplaceLoss | SampledLoss) for loss in pairs):
            finite = [loss.given_finite().supremum for loss in pairs if loss is not None]
            return max(finite), max(loss.infinity for loss in pairs if loss is not None)
        if all(isinstance(loss, AtomsLoss) for loss in pairs):
            finite = [float(np.max(loss.values, initial=0.0)) for loss in pairs if isinstance(loss, AtomsLoss)]
            return max(finite), max(loss.infinity for loss in pairs if loss is not None)
        return None

    def _one_step(self, part: Mechanism, delta: float) -> tuple[float, str]:
        """ε of one step at δ, and how it was found."""
        plain_sampling = isinstance(part, PoissonSampled) and 0 < part.rate < 1 and self.group == 1
        if plain_sampling and self.adjacency != "replace-one":
            assert isinstance(part, PoissonSampled)
            if delta / part.rate >= 1:
                return 0.0, "a step is"
            inner = certified_epsilon(part.mechanism, delta / part.rate, adjacency=self.adjacency).upper
            return amplified(inner, part.rate), f"Gaussian step ({inner:.4g}, {delta / part.rate:.3g}), sampled:"
        price = certified_epsilon(part, delta, adjacency=self.adjacency, group=self.group)
        return price.upper, "a step is"


# -- Rényi ----


def moments(mechanism: Mechanism, delta: float, *, adjacency: str = "add-remove", group: int = 1) -> AccountantPrice:
    """The moments accountant as first published (Abadi et al. 2016): moments 1 to 32 and the classic conversion.

    >>> from tacit.accounting import Gaussian, PoissonSampled
    >>> round(moments(PoissonSampled(Gaussian(4.0), 0.01) * 24644, 1e-5).epsilon, 3)
    2.0
    """
    return _by_renyi("moments", mechanism, delta, adjacency, group)


def rdp(mechanism: Mechanism, delta: float, *, adjacency: str = "add-remove", group: int = 1) -> AccountantPrice:
    """Rényi composition (Mironov 2017) at the best fractional order, with the improved conversion.

    >>> from tacit.accounting import Gaussian, PoissonSampled
    >>> round(rdp(PoissonSampled(Gaussian(8.0), 0.01) * 5370, 1e-5).epsilon, 4)
    0.344
    """
    return _by_renyi("rdp", mechanism, delta, adjacency, group)


def _by_renyi(accountant: str, mechanism: Mechanism, delta: float, adjacency: str, group: int) -> AccountantPrice:
    if not _asked(mechanism, delta, adjacency, group):
        return AccountantPrice(accountant, 0.0, delta, adjacency, mechanism.unit, group)
    curve = RenyiCurve(mechanism, adjacency=adjacency, group=group)
    value, order = curve.epsilon(delta, MOMENTS, "classic") if accountant == "moments" else curve.epsilon(delta)
    if curve.failure >= delta:
        note = f"events of probability {curve.failure:.3g} have infinite loss"
    elif math.isinf(value):
        note = ""
    else:
        note = f"moment {order - 1:.0f} of 1 to 32" if accountant == "moments" else f"order {order:.4g}"
    return AccountantPrice(accountant, value, delta, adjacency, mechanism.unit, group, note=note)


# -- Gaussian DP ----


def gdp(mechanism: Mechanism, delta: float, *, adjacency: str = "add-remove", group: int = 1) -> AccountantPrice:
    """The central limit of Gaussian DP (Bu, Dong, Long & Su 2020): μ² = Σ T q² (e^{1/σ²} - 1). An approximation.

    It holds in the limit of many steps at small rates and can be far too low otherwise: never report it as a guarantee.

    >>> from tacit.accounting import Gaussian, PoissonSampled
    >>> price = gdp(PoissonSampled(Gaussian(8.0), 0.01) * 5370, 1e-5)
    >>> round(price.epsilon, 5), price.approximation
    (0.31094, True)
    """
    members = _asked(mechanism, delta, adjacency, group)
    square, limits = 0.0, 0
    for part, times in members:
        loss = part.pair(adjacency, "remove", group) if part.renyi(adjacency, np.array([2.0]), group) is None else None
        if isinstance(loss, GaussianLoss) and part.extra_delta(group) == 0:
            square += times * loss.mu**2
            continue
        if not isinstance(part, PoissonSampled) or not isinstance(part.mechanism, Gaussian | GDP):
            raise NotApplicable(f"no central limit is built in for {part!r}")
        if adjacency == "replace-one" or group > 1:
            raise NotApplicable("the central limit is stated for adding or removing one record")
        inner = part.mechanism
        mu = (
            inner.mu if isinstance(inner, GDP) else (1 / inner.noise_multiplier if inner.noise_multiplier else math.inf)
        )
        if part.rate > 0:
            square += times * part.rate**2 * (math.expm1(mu * mu) if mu * mu < 700 else math.inf)
        limits += times
    mu = math.sqrt(square)
    value = certified_epsilon(GDP(mu), delta).upper if members else 0.0
    note = f"μ = {mu:.4g}" + ("" if limits else ", no limit taken: every step is priced as Gaussian")
    return AccountantPrice("gdp", value, delta, adjacency, mechanism.unit, group, approximation=True, note=note)


# -- certified ----


def certified(mechanism: Mechanism, delta: float, *, adjacency: str = "add-remove", group: int = 1) -> AccountantPrice:
    """The certified price of :func:`tacit.accounting.epsilon`: an interval that contains the true ε.

    >>> from tacit.accounting import Gaussian
    >>> price = certified(Gaussian(1.0), 1e-5)
    >>> price.lower <= price.epsilon
    True
    """
    bound: Bound = certified_epsilon(mechanism, delta, adjacency=adjacency, group=group)
    note = "" if bound.tight else "only upper bounds are known for this mechanism"
    return AccountantPrice(
        "certified", bound.upper, delta, adjacency, mechanism.unit, group, lower=bound.lower, note=note
    )


#: Every accountant by name, from the loosest to the tightest; ``gdp`` is no bound.
ACCOUNTANTS = {
    "basic": basic,
    "advanced": advanced,
    "moments": moments,
    "rdp": rdp,
    "gdp": gdp,
    "certified": certified,
}


def _asked(mechanism: Mechanism, delta: float, adjacency: str, group: int) -> list[tuple[Mechanism, int]]:
    if not is_number(delta) or not 0 <= delta < 1:
        raise AccountingError(f"δ must be at least 0 and below 1, not {delta!r}. See: tacit explain delta")
    if delta == 0:
        raise NotApplicable("its theorem needs a δ above 0")
    return members_of(mechanism, adjacency, group)


def _terms(adjacency: str, unit: str, group: int) -> str:
    return Bound(0.0, 0.0, adjacency=adjacency, unit=unit, group=group).terms


def _shown(value: float, *, down: bool) -> str:
    """Six digits, rounded up for bounds from above and down for bounds from below."""
    if math.isinf(value) or value == 0:
        return f"{value:g}"
    digits = max(0, 5 - math.floor(math.log10(value)))
    scaled = value * 10.0**digits
    if not math.isfinite(scaled) or digits > 12 or value >= 1e9:
        return f"{value:.6g}"
    return f"{(math.floor if down else math.ceil)(scaled) / 10.0**digits:.{digits}f}"
