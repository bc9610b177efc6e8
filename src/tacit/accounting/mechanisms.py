"""What touched the data? Frozen descriptions of mechanisms, and how they compose.

A mechanism says nothing of a data set: only how much noise there was in units of what one record can change
(its sensitivity), and how records were sampled. ``*`` repeats it, ``+`` composes; multiplicity lives in one place,
:class:`Composed`, so that a forgotten count cannot happen. Pricing is done by :mod:`tacit.accounting.pricing`, which asks
each mechanism for the privacy loss of its worst-case pair under an adjacency (:meth:`Mechanism.pair`), or, where only
upper bounds are known, for a Rényi bound (:meth:`Mechanism.renyi`).

Adjacencies: ``"add-remove"`` (one record more or fewer), ``"replace-one"`` (one record changed), ``"zero-out"`` (one
record replaced by a blank that contributes nothing; the number of records is public).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from scipy.special import bdtrc, gammaln

from tacit.accounting import losses
from tacit.accounting.errors import AccountingError, AdjacencyError, UnitError
from tacit.accounting.losses import AtomsLoss, GaussianLoss, LaplaceLoss, Loss, MixtureLoss, SampledLaplaceLoss

ADJACENCIES = ("add-remove", "replace-one", "zero-out")
#: The two sides of a neighbouring pair that must both be priced: P has the record, or P lacks it.
DIRECTIONS = ("remove", "add")
DEFAULT_UNIT = "record"

_KINDS: dict[str, type[Mechanism]] = {}


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """Base of all mechanisms: the algebra, JSON, and the contract with the pricing."""

    #: what one neighbour changes: "record", "person", ... Mechanisms of different units do not compose.
    unit: str = dataclasses.field(default=DEFAULT_UNIT, kw_only=True)

    #: whether ``pair`` is the exact worst case (False: an upper bound, with ``floor`` the best known lower one)
    tight: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _KINDS[cls.__name__] = cls

    # -- algebra -------------------------------------------------------------------------------------------------

    def __mul__(self, times: int) -> Composed:
        return Composed(((self, _count(times)),), unit=self.unit)

    __rmul__ = __mul__

    def __add__(self, other: Mechanism) -> Composed:
        if not isinstance(other, Mechanism):
            return NotImplemented
        return Composed((*self.parts(), *other.parts()), unit=_same_unit(self, other))

    def __radd__(self, other: object) -> Mechanism:
        if other == 0:  # so that sum() works
            return self
        return NotImplemented

    def parts(self) -> tuple[tuple[Mechanism, int], ...]:
        """The mechanisms composed here with how often each ran."""
        return ((self, 1),)

    # -- what pricing asks -----------------------------------------------------------------------------------------

    def adjacencies(self) -> tuple[str, ...]:
        """Adjacencies under which this mechanism states a guarantee."""
        return ADJACENCIES

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        """The privacy loss of a dominating pair; None where only a Rényi bound is known."""
        raise NotImplementedError

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        """The privacy loss of a pair that is attained or dominated, for the lower bound; None for "at least 0"."""
        return self.pair(adjacency, direction, group) if self.tight else None

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        """Upper bounds on the Rényi divergence at ``orders`` > 1, in both directions; None to take them from ``pair``."""
        return None

    def extra_delta(self, group: int = 1) -> float:
        """Total-variation cost w of an approximation in the sampler: it adds (1 + e^ε)·w to δ."""
        return 0.0

    # -- words and JSON --------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """A plain description; :func:`from_dict` reads it back. Carries a version."""
        return {"version": 1, **_encode(self)}

    def __repr__(self) -> str:
        shown = []
        for i, f in enumerate(dataclasses.fields(self)):
            value = getattr(self, f.name)
            if f.name == "unit":
                if value != DEFAULT_UNIT:
                    shown.append(f"unit={value!r}")
            elif f.default is dataclasses.MISSING or value != f.default:
                text = f"{value:.6g}" if isinstance(value, float) else repr(value)
                shown.append(text if i == 1 else f"{f.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclasses.dataclass(frozen=True, repr=False)
class Composed(Mechanism):
    """Mechanisms run one after the other on the same data, each as often as its count says.

    >>> PoissonSampled(Gaussian(1.1), rate=0.01) * 100 + Laplace(10.0)
    PoissonSampled(Gaussian(1.1), rate=0.01) * 100 + Laplace(10)
    """

    members: tuple[tuple[Mechanism, int], ...]

    def __post_init__(self) -> None:
        merged: dict[Mechanism, int] = {}
        for member, times in self.members:
            for part, count in member.parts():
                if part.unit != self.unit:
                    raise UnitError(_unit_message(part.unit, self.unit))
                merged[part] = merged.get(part, 0) + count * _count(times)
        object.__setattr__(self, "members", tuple(merged.items()))
        if merged and not self.adjacencies():
            stated = "; ".join(f"{part!r}: {' or '.join(part.adjacencies())}" for part in merged)
            raise AdjacencyError(f"these mechanisms have no adjacency in common and cannot be composed ({stated})")

    def __mul__(self, times: int) -> Composed:
        return Composed(tuple((part, count * _count(times)) for part, count in self.members), unit=self.unit)

    __rmul__ = __mul__

    def parts(self) -> tuple[tuple[Mechanism, int], ...]:
        return self.members

    def adjacencies(self) -> tuple[str, ...]:
        return tuple(a for a in ADJACENCIES if all(a in part.adjacencies() for part, _ in self.members))

    def __iter__(self) -> Iterator[tuple[Mechanism, int]]:
        return iter(self.members)

    def __repr__(self) -> str:
        if not self.members:
            return "Composed(())"
        return " + ".join(f"{part!r} * {times}" if times != 1 else repr(part) for part, times in self.members)


def nothing(unit: str = DEFAULT_UNIT) -> Composed:
    """The composition of no mechanism at all: ε = 0."""
    return Composed((), unit=unit)


# -- additive noise -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, repr=False)
class Gaussian(Mechanism):
    """Gaussian noise with standard deviation ``noise_multiplier`` times the L2 sensitivity of one added record.

    ``replace`` is how far replacing one record can move the value, in the same units: 2 for a clipped sum (default),
    √2 for a histogram of votes or for second moments.
    """

    noise_multiplier: float
    replace: float = 2.0

    def __post_init__(self) -> None:
        _not_negative("noise multiplier", self.noise_multiplier)
        _positive("replace", self.replace)

    def shift(self, adjacency: str) -> float:
        """Sensitivity under the adjacency, in units of the sensitivity of adding one record."""
        return self.replace if adjacency == "replace-one" else 1.0

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if self.noise_multiplier == 0:
            return _everything_revealed()
        mu = self.shift(adjacency) * group / self.noise_multiplier
        return GaussianLoss(mu) if mu > 0 and math.isfinite(mu) else _limit(mu)


@dataclasses.dataclass(frozen=True, repr=False)
class Laplace(Mechanism):
    """Laplace noise of ``scale`` times the L1 sensitivity of one added record: ε = 1/scale. ``replace`` as in Gaussian."""

    scale: float
    replace: float = 2.0

    def __post_init__(self) -> None:
        _not_negative("scale", self.scale)
        _positive("replace", self.replace)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if self.scale == 0:
            return _everything_revealed()
        epsilon = (self.replace if adjacency == "replace-one" else 1.0) * group / self.scale
        return LaplaceLoss(epsilon) if 0 < epsilon < 700 else _limit(epsilon)


@dataclasses.dataclass(frozen=True, repr=False)
class DiscreteGaussian(Mechanism):
    """Discrete Gaussian noise on the integers with parameter ``sigma``, on a value of integer sensitivity.

    ``sensitivity`` is what one added record can move, ``replace`` what replacing one can (default: twice that). The pair
    of one coordinate is exact; for a vector use :class:`ZCDP` (Canonne, Kamath & Steinke 2020).
    """

    sigma: float
    sensitivity: int = 1
    replace: int = 0

    def __post_init__(self) -> None:
        _not_negative("sigma", self.sigma)
        if self.sensitivity < 1 or self.replace < 0:
            raise AccountingError("the sensitivity of DiscreteGaussian is a positive whole number")

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if self.sigma == 0:
            return _everything_revealed()
        shift = (self.replace or 2 * self.sensitivity) if adjacency == "replace-one" else self.sensitivity
        values, p, spacing = losses.discrete_gaussian_atoms(self.sigma, shift * group)
        return AtomsLoss(values, p, spacing=spacing)


# -- guarantees stated as such ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, repr=False)
class _Stated(Mechanism):
    """A guarantee given as a number; ``adjacency`` (optional) says for which adjacency it was stated."""

    adjacency: str | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
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
        _not_negative("epsilon", self.epsilon, allow_inf=True)
        if not 0 <= self.delta <= 1:
            raise AccountingError(f"δ must lie in [0, 1], not {self.delta}")

    def grouped(self, group: int) -> tuple[float, float]:
        """(kε, δ·(e^{kε} - 1)/(e^ε - 1)): the chain of k neighbours (Dwork & Roth 2014, theorem 2.2)."""
        steps = sum(math.exp(min(i * self.epsilon, 700.0)) for i in range(group))
        return group * self.epsilon, min(1.0, self.delta * steps)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return _randomised_response(*self.grouped(group))


@dataclasses.dataclass(frozen=True, repr=False)
class PureDP(_Stated):
    """Any ε-DP mechanism; its worst case is randomised response (Kairouz, Oh & Viswanath 2015)."""

    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("epsilon", self.epsilon, allow_inf=True)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return _randomised_response(self.epsilon * group, 0.0)


@dataclasses.dataclass(frozen=True, repr=False)
class GDP(_Stated):
    """Any μ-Gaussian-DP mechanism (Dong, Roth & Su 2022); its worst case is N(μ, 1) against N(0, 1)."""

    mu: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("mu", self.mu, allow_inf=True)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        mu = self.mu * group
        return GaussianLoss(mu) if 0 < mu < math.inf else _limit(mu)


@dataclasses.dataclass(frozen=True, repr=False)
class ZCDP(_Stated):
    """Any ρ-zCDP mechanism (Bun & Steinke 2016): Rényi divergence of order α at most ρα. Groups: k²ρ."""

    tight: ClassVar[bool] = False
    rho: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("rho", self.rho)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return None

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        mu = math.sqrt(2 * self.rho) * group  # Gaussian noise is ρ-zCDP with equality
        return GaussianLoss(mu) if mu > 0 else _limit(mu)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        return np.asarray(self.rho * group**2 * orders)


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
        _not_negative("epsilon", self.epsilon)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return None

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return _randomised_response(self.epsilon * group / 2, 0.0)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        return _bounded_range_renyi(self.epsilon * group, orders)


# -- sampling ---------------------------------------------------------------------------------------------------------------


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
        _inherit_unit(self)
        _rate(self.rate)
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
            return _nothing_revealed()
        if rate == 1:
            return inner.pair(adjacency, direction, group)
        if isinstance(inner, PureDP | ApproxDP):
            epsilon, delta = _amplified(inner, rate)
            return ApproxDP(epsilon, delta).pair(adjacency, direction, group)
        if isinstance(inner, Laplace):
            return self._laplace(inner, adjacency, direction, group)
        return self._gaussian(inner, adjacency, direction, group)

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
            return _nothing_revealed()
        if adjacency == "replace-one":
            if group > 1:
                return None
            # The two records may pull opposite ways, each as far as adding one can, however little replacing moves.
            half = max(far / 2, 1.0)
            return MixtureLoss(sigma, {0.0: 1 - rate, half: rate}, {0.0: 1 - rate, -half: rate})
        shifts = _binomial(group, rate)
        if direction == "remove":
            return MixtureLoss(sigma, shifts, {0.0: 1.0})
        return MixtureLoss(sigma, {0.0: 1.0}, shifts)

    def _laplace(self, inner: Laplace, adjacency: str, direction: str, group: int) -> Loss | None:
        if inner.scale == 0:
            return AtomsLoss([], [], infinity=1 - (1 - self.rate) ** group)
        if adjacency == "replace-one" or group > 1:
            return None
        if 1 / inner.scale >= 700:
            return _limit(1 / inner.scale)
        return SampledLaplaceLoss(1 / inner.scale, self.rate, mixture_is_p=direction == "remove")

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        if isinstance(self.mechanism, Laplace) and (adjacency == "replace-one" or group > 1):
            # Amplified pure DP: the lemma for one record, then the chain of neighbours.
            epsilon = math.log1p(self.rate * math.expm1(min(1 / self.mechanism.scale, 700.0)))
            steps = group * (2 if adjacency == "replace-one" else 1)
            return renyi_of_pure(epsilon * steps, orders)
        return None


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
        _inherit_unit(self)
        if self.examples < 1 or self.max_batch < 1:
            raise AccountingError("examples and max_batch are positive whole numbers")
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

    def extra_delta(self, group: int = 1) -> float:
        return binomial_tail(self.examples + group, self.rate, self.max_batch)


@dataclasses.dataclass(frozen=True, repr=False)
class FixedSizeSampled(Mechanism):
    """A mechanism run on ``batch`` of ``examples`` records drawn without replacement.

    When the record is drawn, another is not: the sum moves by 2 under add/remove too. The pairs
    (1-q)N(0) + qN(2) against N(0), and its reverse, are attained; see docs/accounting.md, section 8.
    """

    mechanism: Mechanism
    batch: int
    examples: int
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        _inherit_unit(self)
        if not 1 <= self.batch <= self.examples:
            raise AccountingError(f"a batch of {self.batch} cannot be drawn from {self.examples} records")
        if not isinstance(self.mechanism, Gaussian | GDP):
            raise AccountingError(f"FixedSizeSampled takes Gaussian or GDP, not {self.mechanism!r}")

    @property
    def rate(self) -> float:
        """The chance that a given record is drawn."""
        return self.batch / self.examples

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if group > 1:
            return None
        inner = self.mechanism
        sigma = inner.noise_multiplier if isinstance(inner, Gaussian) else (1 / inner.mu if inner.mu else math.inf)  # type: ignore[attr-defined]
        far = inner.replace if isinstance(inner, Gaussian) else 1.0
        if sigma == 0:
            return AtomsLoss([], [], infinity=self.rate)
        if math.isinf(sigma):
            return _nothing_revealed()
        if self.rate == 1:
            return GaussianLoss(far / sigma)
        shifts = {0.0: 1 - self.rate, far: self.rate}
        if direction == "remove":
            return MixtureLoss(sigma, shifts, {0.0: 1.0})
        return MixtureLoss(sigma, {0.0: 1.0}, shifts)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        if group == 1:
            return None
        raise AccountingError("groups are not priced for FixedSizeSampled: use PoissonSampled, or group=1")


@dataclasses.dataclass(frozen=True, repr=False)
class Shuffled(Mechanism):
    """One pass over shuffled (or fixed) chunks, each record in exactly one: priced with no amplification.

    Valid under replace-one and zero-out only: adding a record would move the boundaries of every chunk after it.
    """

    mechanism: Mechanism
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        _inherit_unit(self)

    def adjacencies(self) -> tuple[str, ...]:
        return tuple(a for a in self.mechanism.adjacencies() if a != "add-remove")

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self.mechanism.pair(adjacency, direction, group)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        return self.mechanism.renyi(adjacency, orders, group)


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
        _inherit_unit(self)
        if self.bins < 1:
            raise AccountingError("bins is a positive whole number")
        if not isinstance(self.mechanism, Gaussian):
            raise AccountingError("BallsInBins takes Gaussian")

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self.mechanism.pair(adjacency, direction, group)

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        wide = Gaussian(self.mechanism.noise_multiplier * math.sqrt(self.bins), self.mechanism.replace)
        return wide.pair(adjacency, direction, group)


@dataclasses.dataclass(frozen=True, repr=False)
class Votes(Mechanism):
    """One noisy arg max over a histogram of teachers' votes, Gaussian noise ``noise`` on every count (GNMax).

    One record changes one teacher, whose vote moves from one class to another: √2 in L2, whatever the adjacency of the
    records (Papernot et al. 2018, proposition 8: Rényi divergence α/σ²). The arg max is post-processing, so this is an
    upper bound. Groups: k teachers.
    """

    tight: ClassVar[bool] = False
    noise: float

    def __post_init__(self) -> None:
        _not_negative("noise", self.noise)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return Gaussian(self.noise / math.sqrt(2), replace=1.0).pair(adjacency, direction, group)


# -- reading back -----------------------------------------------------------------------------------------------------------


def _encode(value: Any) -> Any:
    if isinstance(value, Composed):
        members = [{"mechanism": _encode(part), "times": times} for part, times in value.members]
        return {"kind": "Composed", "unit": value.unit, "members": members}
    if isinstance(value, Mechanism):
        fields = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return value


def from_dict(description: dict[str, Any]) -> Mechanism:
    """Read a mechanism from what :meth:`Mechanism.to_dict` wrote.

    >>> from_dict((Gaussian(2.0) * 3).to_dict())
    Gaussian(2) * 3
    """
    version = description.get("version", 1)
    if version != 1:
        raise AccountingError(f"this description has version {version}; this library reads version 1")
    return _decode({k: v for k, v in description.items() if k != "version"})


def _decode(description: dict[str, Any]) -> Mechanism:
    fields = dict(description)
    kind = fields.pop("kind", None)
    if kind == "Composed":
        members = tuple((_decode(m["mechanism"]), m["times"]) for m in fields["members"])
        return Composed(members, unit=fields["unit"])
    known = _KINDS.get(str(kind))
    if known is None or str(kind).startswith("_"):
        raise AccountingError(f"unknown mechanism {kind!r}; known: {', '.join(k for k in _KINDS if k[0] != '_')}")
    for name, value in fields.items():
        if isinstance(value, dict):
            fields[name] = _decode(value)
        elif value == "inf":
            fields[name] = math.inf
    try:
        return known(**fields)
    except TypeError as error:
        raise AccountingError(f"not a description of {kind}: {error}") from None


# -- helpers ------------------------------------------------------------------------------------------------------------------


def check_adjacency(adjacency: str) -> str:
    """The adjacency, or an error that lists those there are."""
    if adjacency not in ADJACENCIES:
        raise AdjacencyError(f"unknown adjacency {adjacency!r}; choose one of {', '.join(ADJACENCIES)}")
    return adjacency


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


def renyi_of_pure(epsilon: float, orders: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rényi divergence of randomised response, the largest among ε-DP pairs."""
    up, down = -math.log1p(math.exp(-epsilon)), -math.log1p(math.exp(epsilon))
    return np.asarray(np.logaddexp(orders * up + (1 - orders) * down, orders * down + (1 - orders) * up) / (orders - 1))


def _bounded_range_renyi(epsilon: float, orders: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """sup over t in [0, ε] of the Rényi divergence of the two-point loss {t, t - ε}.

    With p the Q-mass of the higher loss, t = -log(p + (1-p)e^{-ε}) and the moment is
    (p + (1-p) e^{-εα}) / (p + (1-p) e^{-ε})^α, smooth in p with one maximum; a grid and a golden search find it, and
    the value is capped by the closed bounds min(ε, ε²α/8).
    """
    if epsilon == 0:
        return np.zeros_like(orders)
    p = 1 / (1 + np.exp(-np.linspace(-1.5, 1.5, 3001) * (epsilon + 4)))
    rest = -np.log(p) + np.log1p(-p)
    result = np.empty_like(orders)
    for i, a in enumerate(orders):
        moment = np.logaddexp(0, rest - epsilon * a) + np.log(p) - a * (np.logaddexp(0, rest - epsilon) + np.log(p))
        best = int(np.argmax(moment))
        neighbours = moment[max(best - 1, 0) : best + 2]
        slack = float(neighbours.max() - neighbours.min())  # the maximum between grid points is within this
        result[i] = min((float(moment[best]) + slack) / (a - 1), epsilon, epsilon * epsilon * a / 8)
    return result


def _randomised_response(epsilon: float, delta: float) -> Loss:
    if delta >= 1 or math.isinf(epsilon):
        return _everything_revealed()
    if epsilon == 0:
        return AtomsLoss([0.0], [1 - delta], infinity=delta)
    if epsilon > 700:
        return _everything_revealed()
    high = 1 / (1 + math.exp(-epsilon))
    low = math.exp(-epsilon) * high
    return AtomsLoss([-epsilon, epsilon], [low * (1 - delta), high * (1 - delta)], delta, spacing=2 * epsilon)


def _amplified(inner: Mechanism, rate: float) -> tuple[float, float]:
    assert isinstance(inner, PureDP | ApproxDP)
    delta = inner.delta if isinstance(inner, ApproxDP) else 0.0
    if inner.epsilon > 700:
        return math.log(rate) + inner.epsilon, rate * delta
    return math.log1p(rate * math.expm1(inner.epsilon)), rate * delta


def _binomial(group: int, rate: float) -> dict[float, float]:
    j = np.arange(group + 1)
    log_weight = gammaln(group + 1) - gammaln(j + 1) - gammaln(group - j + 1)
    log_weight = log_weight + j * math.log(rate) + (group - j) * math.log1p(-rate)
    if group == 1:
        return {0.0: 1 - rate, 1.0: rate}
    return {float(i): float(math.exp(w)) for i, w in zip(j, log_weight, strict=True)}


def _everything_revealed() -> Loss:
    return AtomsLoss([], [], infinity=1.0)


def _nothing_revealed() -> Loss:
    return AtomsLoss([0.0], [1.0])


def _limit(x: float) -> Loss:
    return _nothing_revealed() if x == 0 else _everything_revealed()


def _inherit_unit(sampled: Any) -> None:
    inner = sampled.mechanism
    if not isinstance(inner, Mechanism) or isinstance(inner, Composed):
        raise AccountingError(f"a sampler wraps one mechanism, not {inner!r}; compose after sampling")
    if not sampled.unit:
        object.__setattr__(sampled, "unit", inner.unit)
    elif sampled.unit != inner.unit:
        raise UnitError(_unit_message(inner.unit, sampled.unit))


def _same_unit(one: Mechanism, other: Mechanism) -> str:
    if one.unit != other.unit:
        raise UnitError(_unit_message(one.unit, other.unit))
    return one.unit


def _unit_message(one: str, other: str) -> str:
    return (
        f"a mechanism that protects one {one} and one that protects one {other} do not compose; "
        "state both for the same unit (a guarantee for a person covers each of their records, not the reverse)"
    )


def _count(times: Any) -> int:
    if isinstance(times, bool) or not isinstance(times, int | np.integer) or times < 0:
        raise AccountingError(f"a mechanism is repeated a whole number of times, 0 or more, not {times!r}")
    return int(times)


def _not_negative(name: str, value: float, allow_inf: bool = False) -> None:
    if not isinstance(value, int | float | np.floating | np.integer) or math.isnan(value) or value < 0:
        raise AccountingError(f"{name} must be a number, 0 or more, not {value!r}")
    if math.isinf(value) and not allow_inf:
        raise AccountingError(f"{name} must be finite, not {value!r}")


def _positive(name: str, value: float) -> None:
    _not_negative(name, value)
    if value == 0:
        raise AccountingError(f"{name} must be more than 0")


def _rate(rate: float) -> None:
    if not isinstance(rate, int | float | np.floating | np.integer) or not 0 <= rate <= 1:
        raise AccountingError(f"a sampling rate lies in [0, 1], not {rate!r}")
