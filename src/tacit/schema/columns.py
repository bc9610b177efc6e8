"""What can be publicly known about one column?

Its name, its kind and the range or list of its values. A person declares them from a code book, or decides on them
without looking at the data. Every check here names the column that is wrong and says what to do about it.
"""

from __future__ import annotations

import datetime
import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

#: The day from which dates are counted.
FIRST_DAY = datetime.date(1970, 1, 1)
#: Name of the bucket that takes the values a categorical column's list does not name.
OTHER = "other"


class SchemaError(ValueError):
    """A schema, or a table checked against it, is wrong; the message names the column and says what to do."""


def canonical(value: Any) -> str:
    """The text by which a category is recognised, so that ``1``, ``1.0`` and ``"1"`` are one category.

    >>> canonical(1), canonical(1.0), canonical("1"), canonical(True), canonical(b"red")
    ('1', '1', '1', 'True', 'red')
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    # numpy's scalars answer to item(); Python's own do not need it.
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return str(int(value))
    return str(value)


def day_number(value: Any) -> int | None:
    """The days from 1970-01-01 to a date, a time or a text that begins with an ISO date; None for anything else.

    >>> day_number(datetime.date(1970, 1, 31)), day_number("1969-12-31T23:00"), day_number("31.1.1970")
    (30, -1, None)
    """
    if isinstance(value, str):
        try:
            value = datetime.date.fromisoformat(value.strip()[:10])
        except ValueError:
            return None
    if isinstance(value, datetime.datetime):
        value = value.date()
    return (value - FIRST_DAY).days if isinstance(value, datetime.date) else None


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise SchemaError(f"a column's name must be a non-empty string, not {name!r}")


def _finite(column: str, field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise SchemaError(f"column {column!r}: {field} must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SchemaError(
            f"column {column!r}: {field} is {value!r}, but a bound must be finite: clipping to it limits the influence "
            "of one person. Choose a public number; values beyond it are clipped. See: tacit explain bounds-missing"
        )
    return number


@dataclass(frozen=True)
class Column:
    """What every kind of column has in common; declare :class:`Numeric`, :class:`Categorical` and so on instead.

    Args:
        name: Name of the column in the table.

    Example:
        >>> isinstance(Numeric("age", 0, 120), Column)
        True
    """

    name: str

    kind: ClassVar[str] = ""

    @property
    def width(self) -> int:
        """How many features the column becomes."""
        return len(self.feature_names)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features that the column becomes."""
        return (self.name,)


@dataclass(frozen=True)
class Numeric(Column):
    """A number between two public bounds, encoded to [-1, 1].

    Args:
        name: Name of the column in the table.
        lower: The least value, which is encoded to -1. Smaller values are clipped to it.
        upper: The largest value, which is encoded to +1. Larger values are clipped to it.
        fill: Public constant for missing values, between the bounds. None refuses missing values.
        target: Whether this is what a model predicts. A schema has at most one target.
        description: A note for people, such as the source of the bounds.
        shape: For a column of arrays, such as images: the shape of each value, with the same bounds throughout. Empty
            for plain numbers.

    Raises:
        SchemaError: If the bounds are not finite or not in order, or ``fill`` or ``shape`` does not match them.

    Example:
        >>> Numeric("age", 0, 120).feature_names
        ('age',)
        >>> Numeric("age", 120, 0)
        Traceback (most recent call last):
        tacit.schema.columns.SchemaError: column 'age': lower (120) must be below upper (0); swap or correct the bounds
    """

    lower: float
    upper: float
    fill: float | None = None
    target: bool = False
    description: str = ""
    shape: tuple[int, ...] = ()

    kind: ClassVar[str] = "numeric"

    def __post_init__(self) -> None:
        _check_name(self.name)
        for field in ("lower", "upper", "fill"):
            value = getattr(self, field)
            if value is not None and type(value) not in (int, float):  # numpy's numbers, kept as plain ones
                object.__setattr__(self, field, _finite(self.name, field, value))
        lower, upper = _finite(self.name, "lower", self.lower), _finite(self.name, "upper", self.upper)
        if lower >= upper:
            raise SchemaError(
                f"column {self.name!r}: lower ({self.lower}) must be below upper ({self.upper}); "
                "swap or correct the bounds"
            )
        if not self.half_width > 0:
            raise SchemaError(
                f"column {self.name!r}: lower and upper are too close together to be told apart; widen them"
            )
        if self.fill is not None:
            fill = _finite(self.name, "fill", self.fill)
            if not lower <= fill <= upper:
                raise SchemaError(f"column {self.name!r}: fill ({self.fill}) must lie between lower and upper")
        shape = tuple(self.shape)
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in shape):
            raise SchemaError(
                f"column {self.name!r}: shape must be a list of positive whole numbers, not {self.shape!r}"
            )
        if shape and self.target:
            raise SchemaError(f"column {self.name!r}: a target has one number for each row and cannot have a shape")
        object.__setattr__(self, "shape", shape)

    def shown(self, value: float) -> str:
        """Write a value of the column as people do.

        Args:
            value: A number in the unit of the bounds.

        Returns:
            Its text.
        """
        return f"{value:g}"

    @property
    def middle(self) -> float:
        """The value that is encoded to zero."""
        # Halved before adding: the sum of two large bounds may overflow.
        return self.lower / 2 + self.upper / 2

    @property
    def half_width(self) -> float:
        """Half the distance between the bounds."""
        return self.upper / 2 - self.lower / 2

    @property
    def width(self) -> int:
        """How many features the column becomes."""
        return math.prod(self.shape)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name, or one for each element of an array-valued column."""
        names = [self.name]
        for size in self.shape:
            names = [f"{name}[{i}]" for name in names for i in range(size)]
        return tuple(names)


@dataclass(frozen=True)
class Date(Numeric):
    """A date between two public ones, encoded to [-1, 1] by its number of days. It cannot be the target.

    The data may hold dates, times (of which the day counts) or texts that begin with an ISO date, such as 2024-12-31;
    numbers count as days since 1970-01-01.

    Args:
        name: Name of the column in the table.
        lower: The first day, a date or an ISO text. Earlier ones are clipped to it. Kept as days since 1970-01-01.
        upper: The last day.
        fill: Public day for missing values, between the bounds. None refuses missing values.
        target: False: a date is not predicted.
        description: A note for people, such as the source of the bounds.
        shape: Empty: a row has one date.

    Raises:
        SchemaError: If a bound is no date, or the bounds are not in order.

    Example:
        >>> born = Date("born", "1920-01-01", "2010-12-31")
        >>> born.lower, born.shown(born.upper)
        (-18263, '2010-12-31')
    """

    kind: ClassVar[str] = "date"

    def __post_init__(self) -> None:
        for field in ("lower", "upper", "fill"):
            value = getattr(self, field)
            if value is None or (isinstance(value, numbers.Real) and not isinstance(value, bool)):
                continue
            found = day_number(value)
            if found is None:
                raise SchemaError(f"column {self.name!r}: {field} must be a date such as 2024-12-31, not {value!r}")
            object.__setattr__(self, field, found)
        if self.target or self.shape:
            raise SchemaError(f"column {self.name!r} is a date: it has no shape and cannot be the target")
        super().__post_init__()

    def shown(self, value: float) -> str:
        """Write a day as people do.

        Args:
            value: Days since 1970-01-01.

        Returns:
            The ISO date.
        """
        return str(FIRST_DAY + datetime.timedelta(days=int(value)))


@dataclass(frozen=True)
class Categorical(Column):
    """One of a public list of values, encoded one-hot.

    Args:
        name: Name of the column in the table.
        categories: The values that are publicly known. They are compared as text: 1, 1.0 and "1" are the same.
        other: Whether values that are not listed go to a bucket called ``other``, which is added to the list. If False,
            such a value is an error.
        fill: The category that missing values get, publicly chosen. None refuses missing values.
        target: Whether this is what a model predicts. A schema has at most one target.
        description: A note for people.

    Raises:
        SchemaError: If the list is empty or names a value twice, or ``fill`` is not one of the categories.

    Example:
        >>> Categorical("colour", ["red", "green"]).feature_names
        ('colour=red', 'colour=green', 'colour=other')
    """

    categories: tuple[str, ...]
    other: bool = True
    fill: str | None = None
    target: bool = False
    description: str = ""

    kind: ClassVar[str] = "categorical"

    def __init__(
        self,
        name: str,
        categories: Iterable[Any],
        *,
        other: bool = True,
        fill: Any = None,
        target: bool = False,
        description: str = "",
    ) -> None:
        _check_name(name)
        if isinstance(categories, (str, bytes)) or not isinstance(categories, Iterable):
            raise SchemaError(f"column {name!r}: categories must be a list, not {categories!r}")
        labels = tuple(canonical(value) for value in categories)
        if not labels:
            raise SchemaError(f"column {name!r}: categories is empty; list the values that are publicly known")
        repeated = sorted({label for label in labels if labels.count(label) > 1})
        if repeated:
            raise SchemaError(
                f"column {name!r}: category {repeated[0]!r} is listed twice (1, 1.0 and '1' are the same category)"
            )
        filled = None if fill is None else canonical(fill)
        if filled is not None and filled not in labels and not (other and filled == OTHER):
            raise SchemaError(f"column {name!r}: fill ({fill!r}) must be one of the categories")
        values = (name, labels, bool(other), filled, bool(target), description)
        for field, value in zip(("name", "categories", "other", "fill", "target", "description"), values, strict=True):
            object.__setattr__(self, field, value)

    @property
    def labels(self) -> tuple[str, ...]:
        """The categories, with the bucket for unknown values if there is one."""
        if not self.other or OTHER in self.categories:
            return self.categories
        return (*self.categories, OTHER)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name for each label."""
        return tuple(f"{self.name}={label}" for label in self.labels)


@dataclass(frozen=True)
class Boolean(Column):
    """True or false, encoded to +1 and -1 (as a target: class 1 and class 0).

    The data may hold booleans, 0 and 1, or two words. Any other value counts as missing.

    Args:
        name: Name of the column in the table.
        true: The word for true in the data.
        false: The word for false in the data.
        fill: Public constant for missing values, True or False. None refuses missing values.
        target: Whether this is what a model predicts. A schema has at most one target.
        description: A note for people.

    Raises:
        SchemaError: If both words are the same, or ``fill`` is neither True nor False.

    Example:
        >>> Boolean("smokes", true="Yes", false="No").labels
        ('No', 'Yes')
    """

    true: str = "true"
    false: str = "false"
    fill: bool | None = None
    target: bool = False
    description: str = ""

    kind: ClassVar[str] = "boolean"

    def __post_init__(self) -> None:
        _check_name(self.name)
        for field in ("true", "false"):
            object.__setattr__(self, field, canonical(getattr(self, field)))
        if self.true == self.false:
            raise SchemaError(f"column {self.name!r}: true and false are both {self.true!r}; they must differ")
        if self.fill is not None and not isinstance(self.fill, bool):
            raise SchemaError(f"column {self.name!r}: fill must be true or false, not {self.fill!r}")

    @property
    def labels(self) -> tuple[str, str]:
        """The two words, that of class 0 first."""
        return (self.false, self.true)

    def words(self) -> dict[str, bool]:
        """Every text that stands for one of the two values."""
        named = {self.true: True, self.false: False}
        usual = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}
        return usual | named


@dataclass(frozen=True)
class Text(Column):
    """Free text: part of the public description, without an encoding of its own.

    Args:
        name: Name of the column in the table.
        description: A note for people.

    Example:
        >>> Text("remarks").feature_names
        ()
    """

    description: str = ""
    target: ClassVar[bool] = False

    kind: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        _check_name(self.name)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Text has no features until the user turns it into numbers."""
        return ()


#: The kinds of column, by the word that names them in a schema file.
KINDS: dict[str, type[Numeric] | type[Date] | type[Categorical] | type[Boolean] | type[Text]] = {
    cls.kind: cls for cls in (Numeric, Date, Categorical, Boolean, Text)
}

AnyColumn = Numeric | Categorical | Boolean | Text


@dataclass(frozen=True)
class Unit:
    """Whom the guarantee protects.

    Args:
        name: Name of the unit, such as ``"person"`` or ``"household"``.
        column: The column of ids, if one unit can own several rows. None states that each row is a different unit.

    Raises:
        SchemaError: If ``name`` or ``column`` is empty or not text.

    Example:
        >>> Unit("patient", column="patient_id").name
        'patient'
    """

    name: str
    column: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise SchemaError(f"the unit of privacy needs a name such as 'person', not {self.name!r}")
        if self.column is not None:
            _check_name(self.column)


def check_columns(columns: Sequence[AnyColumn], unit: Unit) -> None:
    """Refuse a set of columns that contradicts itself."""
    if not columns:
        raise SchemaError("the schema has no columns; declare at least one")
    seen: set[str] = set()
    for column in columns:
        if not isinstance(column, (Numeric, Categorical, Boolean, Text)):
            raise SchemaError(f"{column!r} is not a column; use Numeric, Date, Categorical, Boolean or Text")
        if column.name in seen:
            raise SchemaError(f"column {column.name!r} is declared twice; remove one of the two")
        seen.add(column.name)
    targets = [column.name for column in columns if column.target]
    if len(targets) > 1:
        raise SchemaError(f"columns {targets[0]!r} and {targets[1]!r} are both marked as the target; keep one of them")
    if not any(not column.target for column in columns):
        raise SchemaError(
            f"column {targets[0]!r} is the target and there is no other column; declare at least one feature"
        )
    if unit.column in seen:
        raise SchemaError(
            f"column {unit.column!r} is the column of ids (unit.column) and is also declared as a column; an id is not "
            "a feature, so remove it from the columns"
        )
    names: set[str] = set()
    for column in columns:
        for name in column.feature_names if not column.target else ():
            if name in names:
                raise SchemaError(
                    f"column {column.name!r}: its feature {name!r} has the same name as another feature; rename it"
                )
            names.add(name)
