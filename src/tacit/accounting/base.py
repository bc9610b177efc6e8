"""What touched the data? The contract of a mechanism, how mechanisms compose, and their JSON.

A mechanism is a frozen description of one use of private data. It holds no data: only how much noise there was, in
units of what one record can change (its sensitivity), and how records were sampled. ``*`` repeats a mechanism and
``+`` composes two. Counts are kept in one place, :class:`Composed`, so that none can be forgotten.
:mod:`tacit.accounting.pricing` asks each mechanism for the privacy loss of its worst pair of neighbours under an
adjacency (:meth:`Mechanism.pair`) or, where only an upper bound is known, for a Rényi bound (:meth:`Mechanism.renyi`).

Adjacencies: ``"add-remove"`` (one record more or fewer), ``"replace-one"`` (one record changed), ``"zero-out"`` (one
record replaced by a blank that contributes nothing; the number of records is public).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from decimal import Decimal
from numbers import Number
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.errors import AccountingError, AdjacencyError, UnitError
from tacit.accounting.losses import Loss

ADJACENCIES = ("add-remove", "replace-one", "zero-out")
#: The two sides of a neighbouring pair that must both be priced: P has the record, or P lacks it.
DIRECTIONS = ("remove", "add")
DEFAULT_UNIT = "record"
#: A mechanism with more numbers in a row than this is written by the first and the last of them.
MOST_SHOWN = 8
MISSING_IDS = "groups has missing ids: every row needs the id of its owner. See: tacit explain missing-ids"
#: What holds several ids: a row may have several owners.
SEVERAL = (list, tuple, set, frozenset)
#: A count beyond this is a slip of the pen.
MOST_TIMES = 10**18

_KINDS: dict[str, type[Mechanism]] = {}


def is_built_in(kind: type[Mechanism] | None) -> bool:
    """Whether every process that has this library can read a mechanism of this class back."""
    return kind is not None and kind.__module__.startswith("tacit.accounting.")


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """One use of private data, described without the data: the base class of all mechanisms.

    Multiply a mechanism by a whole number to repeat it, and add mechanisms to compose them. docs/maintain/mechanism.md
    shows how to write one.

    Args:
        unit: Whom the guarantee protects, such as ``"record"`` (the default) or ``"person"``. Mechanisms of different
            units do not compose.

    Attributes:
        tight: Whether :meth:`pair` is the exact worst case. If False, it is an upper bound, and :meth:`floor` is the
            best known lower bound.

    Raises:
        UnitError: If ``unit`` is not a word.

    Example:
        >>> from tacit.accounting import Gaussian, Laplace
        >>> both = Gaussian(2.0) * 3 + Laplace(10.0)
        >>> both
        Gaussian(2) * 3 + Laplace(10)
        >>> both.to_dict()["kind"], both.adjacencies()
        ('Composed', ('add-remove', 'replace-one', 'zero-out'))
    """

    unit: str = dataclasses.field(default=DEFAULT_UNIT, kw_only=True)

    tight: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class of somebody's own never takes the name of one that is built in: a stored description means one thing.
        if is_built_in(cls) or not is_built_in(_KINDS.get(cls.__name__)):
            _KINDS[cls.__name__] = cls

    def __post_init__(self) -> None:
        # A number out of numpy is kept as the plain number it is, so that equal mechanisms read and are written alike.
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())
            if field.name == "unit" and not (isinstance(value, str) and (value or field.default == "")):
                raise UnitError(f"unit must be a word, such as 'record' or 'person', not {value!r}")

    # -- algebra -------------------------------------------------------------------------------------------------

    def __mul__(self, times: int) -> Composed:
        return Composed(((self, whole_count(times)),), unit=self.unit)

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
        """The mechanisms composed here, each with how often it ran."""
        return ((self, 1),)

    # -- what pricing asks -----------------------------------------------------------------------------------------

    def adjacencies(self) -> tuple[str, ...]:
        """The adjacencies under which this mechanism has a guarantee; prices under others are refused."""
        return ADJACENCIES

    def advice(self, adjacency: str) -> str:
        """What to do about an adjacency under which this mechanism has no guarantee.

        Args:
            adjacency: The adjacency that was asked for.

        Returns:
            A clause for the error message; ``""`` if there is nothing to suggest.
        """
        return ""

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        """The privacy loss of a dominating pair of neighbours: the worst case, or an upper bound on it.

        Args:
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            direction: ``"remove"`` if the first law of the pair is that of the data with the record, ``"add"`` for the
                reverse. A symmetric loss is the same in both.
            group: How many records one neighbour changes together (default 1).

        Returns:
            The law of the privacy loss, or None if only a Rényi bound is known (see :meth:`renyi`).
        """
        raise NotImplementedError

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        """The privacy loss of a pair that is attained or dominated, for the lower end of a price.

        Args:
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            direction: ``"remove"`` or ``"add"``, as in :meth:`pair`.
            group: How many records one neighbour changes together (default 1).

        Returns:
            The law of the privacy loss, or None if the only known lower bound is 0.
        """
        return self.pair(adjacency, direction, group) if self.is_tight(adjacency, group) else None

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        """Upper bounds on the Rényi divergence, in the larger of the two directions.

        Args:
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            orders: Rényi orders α, all above 1.
            group: How many records one neighbour changes together (default 1).

        Returns:
            One bound for each order, or None if the bounds follow from :meth:`pair`.
        """
        return None

    def extra_delta(self, group: int = 1) -> float:
        """The total variation w by which the sampler departs from the one that is priced: it adds (1 + e^ε)·w to δ.

        Args:
            group: How many records one neighbour changes together (default 1).

        Returns:
            w for one run of the mechanism; 0 for all but samplers that may cut a batch.
        """
        return 0.0

    def uncut(self, adjacency: str, group: int = 1) -> Loss | None:
        """A pair that dominates without :meth:`extra_delta`, for samplers that may cut a batch.

        Args:
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            group: How many records one neighbour changes together (default 1).

        Returns:
            The law of the privacy loss, the same in both directions; None if no such pair is known.
        """
        return None

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        """The largest privacy loss there is, which is ε at δ = 0.

        Args:
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            direction: ``"remove"`` or ``"add"``, as in :meth:`pair`.
            group: How many records one neighbour changes together (default 1).

        Returns:
            The loss; infinite if it has no bound or none is known.
        """
        loss = self.pair(adjacency, direction, group)
        bounded = loss is not None and loss.infinity == 0 and self.extra_delta(group) == 0
        return max(loss.supremum, 0.0) if loss is not None and bounded else math.inf

    def without_failure(self) -> tuple[Mechanism, float]:
        """What this mechanism is like except with a small probability: for rules that need finite Rényi divergences.

        Guarantee:
            For any two neighbours there is a run of the mechanism that comes back, on the data of one of them, from
            which this one differs with at most the probability that comes back.

        Returns:
            The mechanism given that its loss is finite, and the larger probability of an infinite loss. The mechanism
            itself and 0 where it states no such failure.
        """
        return self, 0.0

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        """Whether :meth:`pair` is the exact worst case, not only an upper bound on it.

        Args:
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            group: How many records one neighbour changes together (default 1).

        Returns:
            True if the pair is attained by some pair of neighbours.
        """
        return self.tight

    # -- words and JSON --------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """A description in plain values, with a version, for JSON; :func:`from_dict` reads it back."""
        return {"version": 1, **_encode(self)}

    def __repr__(self) -> str:
        shown = []
        positional = [f.name for f in dataclasses.fields(self) if not f.kw_only][:1]
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if (f.name == "unit" and value == DEFAULT_UNIT) or (
                f.default is not dataclasses.MISSING and value == f.default
            ):
                continue
            text = _in_words(value)
            shown.append(text if f.name in positional else f"{f.name}={text}")
        shown.sort(key=lambda text: "=" in text.split("(")[0])
        return f"{type(self).__name__}({', '.join(shown)})"


def _in_words(value: Any) -> str:
    """A field of a mechanism; of a long list of numbers, its ends."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple) and len(value) > MOST_SHOWN and all(isinstance(one, float) for one in value):
        return f"({value[0]:.6g}, …{len(value)} numbers…, {value[-1]:.6g})"
    return repr(value)


@dataclasses.dataclass(frozen=True, repr=False)
class Composed(Mechanism):
    """Mechanisms that ran one after the other on the same data, each as often as its count says.

    You rarely make one yourself: ``*`` and ``+`` do.

    Args:
        members: Pairs of a mechanism and how often it ran. Equal mechanisms are merged and compositions are unpacked.
        unit: The unit that all members protect (default ``"record"``).

    Raises:
        UnitError: If a member protects another unit.
        AdjacencyError: If no adjacency is covered by all members, so that the composition has no price.

    Example:
        >>> from tacit.accounting import Gaussian, Laplace, PoissonSampled
        >>> PoissonSampled(Gaussian(1.1), rate=0.01) * 100 + Laplace(10.0)
        PoissonSampled(Gaussian(1.1), rate=0.01) * 100 + Laplace(10)
    """

    members: tuple[tuple[Mechanism, int], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        merged: dict[Mechanism, int] = {}
        for member, times in self.members:
            for part, count in member.parts():
                if part.unit != self.unit:
                    raise UnitError(unit_message(part.unit, self.unit))
                merged[part] = merged.get(part, 0) + count * whole_count(times)
        object.__setattr__(self, "members", tuple(merged.items()))
        if merged and not self.adjacencies():
            stated = "; ".join(f"{part!r}: {' or '.join(part.adjacencies())}" for part in merged)
            raise AdjacencyError(
                f"these mechanisms have no adjacency in common, so their composition has no price ({stated}). "
                "See: tacit explain adjacency"
            )

    def __mul__(self, times: int) -> Composed:
        return Composed(tuple((part, count * whole_count(times)) for part, count in self.members), unit=self.unit)

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
    """The composition of no mechanisms at all, which costs ε = 0.

    Args:
        unit: The unit of what will be added to it (default ``"record"``).

    Returns:
        An empty composition, a start for adding mechanisms one by one.

    Example:
        >>> from tacit import accounting as acc
        >>> acc.epsilon(acc.nothing(), delta=1e-5).upper
        0.0
        >>> acc.nothing() + acc.Gaussian(2.0)
        Gaussian(2)
    """
    return Composed((), unit=unit)


# -- reading back ----


def _encode(value: Any) -> Any:
    if isinstance(value, Composed):
        members = [{"mechanism": _encode(part), "times": times} for part, times in value.members]
        return {"kind": "Composed", "unit": value.unit, "members": members}
    if isinstance(value, Mechanism):
        fields = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [_encode(one) for one in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return value


def from_dict(description: dict[str, Any]) -> Mechanism:
    """Read a mechanism from what :meth:`Mechanism.to_dict` wrote.

    Args:
        description: The plain values, as they come out of JSON.

    Returns:
        A mechanism equal to the one that was written.

    Raises:
        AccountingError: If the description has another version, names an unknown mechanism or does not fit it.

    Example:
        >>> from tacit import accounting as acc
        >>> acc.from_dict((acc.Gaussian(2.0) * 3).to_dict())
        Gaussian(2) * 3
    """
    if not isinstance(description, dict):
        raise AccountingError(f"a description of a mechanism is a dictionary, not {description!r:.80}")
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
        elif isinstance(value, list):
            fields[name] = tuple(math.inf if one == "inf" else one for one in value)
        elif value == "inf":
            fields[name] = math.inf
    try:
        return known(**fields)
    except TypeError as error:
        raise AccountingError(f"not a description of {kind}: {error}") from None


# -- checks ----


def check_adjacency(adjacency: str) -> str:
    """The adjacency, or an error that lists those there are."""
    if adjacency not in ADJACENCIES:
        raise AdjacencyError(f"unknown adjacency {adjacency!r}; choose one of {', '.join(ADJACENCIES)}")
    return adjacency


def _same_unit(one: Mechanism, other: Mechanism) -> str:
    if one.unit != other.unit:
        raise UnitError(unit_message(one.unit, other.unit))
    return one.unit


def unit_of(name: str | None, *, owned: bool, ids: str = "") -> str:
    """The unit that a run over records protects: ``name`` if ids were given (``owned``), otherwise a record.

    Naming a unit protects nobody by itself: without ids, a person with thirty records moves thirty terms while one is
    priced. So any name but ``"record"`` needs ids, and ``ids`` says how to give them.

    >>> unit_of(None, owned=False), unit_of(None, owned=True), unit_of("patient", owned=True)
    ('record', 'person', 'patient')
    """
    if owned:
        return name or "person"
    if name is None or name == DEFAULT_UNIT:
        return DEFAULT_UNIT
    raise UnitError(
        f"unit={name!r} is only a word: without ids, a {name} with several records would be protected for one of them. "
        f"{ids}. If every record is another {name}, number them: range(number of records). "
        "See: tacit explain unit-without-groups"
    )


def owner_numbers(groups: Any, rows: int | None = None) -> NDArray[np.intp]:
    """The unit that each row belongs to, numbered from 0, from ``groups``: one id for each row, none missing.

    All rows with one id get one number, so that a unit is never taken for two. A missing id (None, NaN) is refused: its
    row may belong to somebody who has other rows.

    >>> owner_numbers(["b", "a", "b"]).tolist()
    [1, 0, 1]
    """
    if np.ma.is_masked(groups):
        raise ValueError(MISSING_IDS)
    listed = isinstance(groups, list | tuple)  # it keeps its types: numpy would make text of a number beside text
    array: Any = groups if listed else np.asarray(groups.cpu() if hasattr(groups, "cpu") else groups)
    if getattr(array, "ndim", 1) != 1 or (rows is not None and len(array) != rows):
        raise ValueError("groups must be one-dimensional, with one id for each row")
    if listed or array.dtype.kind in "OTV":  # also texts that may be missing, and rows of several columns
        return _numbered([_value(owner) for owner in (array if listed else array.tolist())])
    if bool((array == "").any() if array.dtype.kind == "U" else (array != array).any()):
        raise ValueError(MISSING_IDS)
    return np.unique(array, return_inverse=True)[1].astype(np.intp)


def _value(owner: Any) -> Any:
    """An id as Python has it. A tensor is a dictionary's key by which object it is, and no two of them are one."""
    if hasattr(owner, "as_py"):
        return owner.as_py()
    return owner.item() if hasattr(owner, "detach") and owner.ndim == 0 else owner


def _numbered(ids: list[Any]) -> NDArray[np.intp]:
    """A number for each id, the same for ids that are equal."""
    if any(isinstance(owner, SEVERAL) or type(owner).__hash__ is None or getattr(owner, "ndim", 0) for owner in ids):
        raise ValueError(
            "groups has a list of ids for a row: here each row has one owner. Rows with several owners can be drawn by "
            "tacit.sgd.Training(draw='rows'). If an id has several parts, make one text of them"
        )
    if any(owner is None or type(owner).__name__ == "NAType" or owner != owner or owner == "" for owner in ids):
        raise ValueError(MISSING_IDS)
    odd = next((type(owner) for owner in ids if not _by_value(owner)), None)
    if odd is not None:
        raise ValueError(
            f"groups has ids of type {odd.__name__}, which are compared by which object they are and not by what "
            "they say, so that one person would count as many. Convert the ids to numbers or text"
        )
    kinds = {_kind(type(owner)) for owner in ids}
    if len(kinds) > 1:
        raise ValueError(
            f"groups mixes ids that are {' and '.join(sorted(kinds))}: 17 and '17', which a file read in parts can "
            "give for one person, would count as two people. Convert the ids to one type"
        )
    # By Python's own equality: 17, 17.0 and numpy's 17 are one person.
    known = {owner: number for number, owner in enumerate(_in_order(set(ids)))}
    return np.array([known[owner] for owner in ids], dtype=np.intp)


def _by_value(owner: Any) -> bool:
    """Whether two ids that say the same are equal."""
    compared: Any = type(owner).__eq__
    return not hasattr(owner, "detach") and compared is not object.__eq__


def _in_order(ids: set[Any]) -> list[Any]:
    """Ids in their order, or, where they have none, in that of their text."""
    try:
        return sorted(ids)
    except TypeError:
        return sorted(ids, key=repr)


def _kind(cls: type) -> str:
    """What ids can be compared with each other: numbers of any type, text, or one other type."""
    if issubclass(cls, (Number, np.bool_)) and not issubclass(cls, Decimal):  # Decimal("0.1") is not 0.1
        return "numbers"
    return "text" if issubclass(cls, str) else cls.__name__


def unit_message(one: str, other: str) -> str:
    """Why mechanisms of two units do not compose, and what to do."""
    return (
        f"a mechanism that protects one {one} and one that protects one {other} do not compose. "
        "State both for the same unit (a guarantee for a person covers each of their records, but not the reverse)"
    )


def inherit_unit(made: Mechanism, base: Mechanism) -> None:
    """A mechanism made of others protects the unit that they protect, and no other."""
    if made.unit and made.unit != base.unit:
        raise UnitError(unit_message(base.unit, made.unit))
    object.__setattr__(made, "unit", base.unit)


def whole_count(times: Any) -> int:
    if isinstance(times, bool) or not isinstance(times, int | np.integer) or times < 0:
        raise AccountingError(f"a mechanism is repeated a whole number of times, 0 or more, not {times!r}")
    if times > MOST_TIMES:
        raise AccountingError(f"a mechanism is repeated {MOST_TIMES:.0e} times at most")
    return int(times)


def is_number(value: object) -> bool:
    """Whether this is one real number, not NaN; True and False are none."""
    real = isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)
    return real and not math.isnan(value)  # type: ignore[arg-type]


def check_whole(name: str, value: int, least: int = 1) -> None:
    """An error unless ``value`` is a whole number, ``least`` or more."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise AccountingError(f"{name} must be a whole number, {least} or more, not {value!r}")


def check_share(name: str, value: float) -> None:
    """An error unless ``value`` is a probability."""
    if not is_number(value) or not 0 <= value <= 1:
        raise AccountingError(f"{name} must lie in [0, 1], not {value!r}")


def check_not_negative(name: str, value: float, *, allow_inf: bool = False) -> None:
    """An error unless ``value`` is a finite number, 0 or more."""
    if not is_number(value) or value < 0:
        raise AccountingError(f"{name} must be a number, 0 or more, not {value!r}")
    if math.isinf(value) and not allow_inf:
        raise AccountingError(f"{name} must be finite, not {value!r}")


def check_positive(name: str, value: float) -> None:
    """An error unless ``value`` is a finite number above 0."""
    check_not_negative(name, value)
    if value == 0:
        raise AccountingError(f"{name} must be more than 0")
