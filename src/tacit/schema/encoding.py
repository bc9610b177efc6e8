"""How does a table become numbers without anything being learned from it?

Every value is mapped by the public bounds or categories of its column alone. How many values were clipped, unknown or
filled is a statistic of private data, so it has a type of its own and never travels with the encoded table. Error
messages name columns, never a value.
"""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tacit.schema.columns import (
    OTHER,
    AnyColumn,
    Boolean,
    Categorical,
    Date,
    Numeric,
    SchemaError,
    Text,
    canonical,
    day_number,
)

if TYPE_CHECKING:
    from tacit.schema.table import Schema

Counts = Mapping[str, int]

#: The key of the hash that sets public rows aside: fixed and stated, so that anyone with the rows gets the same split.
PUBLIC_KEY = "tacit public rows"

#: The columns of a table as arrays, each with where it is missing.
Fetched = dict[str, tuple[NDArray[Any], NDArray[np.bool_]]]


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table as numbers: still private data, row for row, but bounded by public constants.

    Args:
        features: Rows x features, in [-1, 1].
        target: Numbers in [-1, 1] for a numeric target, class numbers for a categorical or boolean one, None without a
            target.
        feature_names: Names of the columns of ``features``.
        units: The id of the unit that owns each row; None if the schema names no column of ids.

    Example:
        >>> from tacit.schema import Numeric, Schema, Unit
        >>> encoded, _ = Schema((Numeric("age", 0, 100),), Unit("person")).encode({"age": [25, 100]})
        >>> encoded
        Encoded(1 features float64, no target)
        >>> encoded.features[:, 0].tolist()
        [-0.5, 1.0]
    """

    features: NDArray[np.floating[Any]]
    target: NDArray[Any] | None
    feature_names: tuple[str, ...]
    units: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.features)

    def public_rows(self, share: float) -> NDArray[np.bool_]:
        """Which rows are public if about ``share`` of the units are declared public.

        A keyed hash (BLAKE2b under ``PUBLIC_KEY``) of the unit's id decides. Without a column of ids, it is a hash of
        the encoded row, target included. So all rows of a unit are on the same side, and so are equal rows. The
        position of a row and the other rows change nothing.

        Guarantee:
            Adding or removing one unit changes one side, by its own rows, and leaves the other as it was. A guarantee
            for the private side covers nobody on the public side. Replacing a row by one of the other side removes a
            row here and adds one there, which a price for replace-one does not cover.

        Args:
            share: The public share of the units, between 0 and 1; about this many are public.

        Returns:
            True for each public row.

        Raises:
            SchemaError: If ``share`` is not between 0 and 1.

        Example:
            >>> ids = np.array(["ann", "bob", "ann", "cy", "dee"])
            >>> Encoded(np.zeros((5, 1)), None, ("age",), ids).public_rows(0.5)
            array([ True,  True,  True,  True, False])
        """
        if not 0 < share < 1:
            raise SchemaError(f"the public share must be a number between 0 and 1, not {share!r}")
        if self.units is not None:
            names = [canonical(unit).encode() for unit in self.units.tolist()]
        else:
            parts = [self.features] if self.target is None else [self.features, self.target.reshape(-1, 1)]
            # Adding 0 makes -0 and 0 one number; binary32, because rows are encoded in either precision.
            names = [row.tobytes() for row in np.hstack([part.astype("<f4") for part in parts]) + np.float32(0)]
        key = PUBLIC_KEY.encode()
        found = (hashlib.blake2b(name, digest_size=8, key=key).digest() for name in names)
        limit = int(share * 2**64)
        return np.fromiter((int.from_bytes(h, "little") < limit for h in found), dtype=bool, count=len(names))

    def __repr__(self) -> str:
        # The default representation would print rows of private data into logs.
        target = "no target" if self.target is None else f"target {self.target.dtype}"
        return f"Encoded({self.features.shape[1]} features {self.features.dtype}, {target})"


@dataclass(frozen=True)
class EncodingDiagnostics:
    """How many values of each column were clipped, unknown or filled: **for the operator only**.

    These are exact counts over private data. The guarantee does not cover them: keep them out of models, cards, reports
    and trackers.

    Args:
        clipped: Values beyond their bounds, by column. Columns without any are left out.
        unknown: Values that are not among the categories, by column.
        filled: Missing values that were replaced by ``fill``, by column.

    Example:
        >>> from tacit.schema import Numeric, Schema, Unit
        >>> _, operator_view = Schema((Numeric("age", 0, 100),), Unit("person")).encode({"age": [25, 140]})
        >>> operator_view
        EncodingDiagnostics(clipped={'age': 1}) [operator view: not covered by the guarantee]
    """

    clipped: Counts = field(default_factory=dict)
    unknown: Counts = field(default_factory=dict)
    filled: Counts = field(default_factory=dict)

    def __repr__(self) -> str:
        parts = [
            f"{name}={dict(getattr(self, name))}" for name in ("clipped", "unknown", "filled") if getattr(self, name)
        ]
        return f"EncodingDiagnostics({', '.join(parts)}) [operator view: not covered by the guarantee]"

    __str__ = __repr__


class _Tally:
    """Collects the counts while a table is encoded."""

    def __init__(self) -> None:
        self.clipped: dict[str, int] = {}
        self.unknown: dict[str, int] = {}
        self.filled: dict[str, int] = {}

    def note(self, kind: dict[str, int], column: str, mask: NDArray[np.bool_]) -> None:
        count = int(np.count_nonzero(mask))
        if count:
            kind[column] = count


def _objects(values: Any) -> NDArray[Any]:
    """A one-dimensional array of Python objects: numpy must not guess a common type, which would let one row's value
    change how another row's is read."""
    out = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        out[i] = value
    return out


def _absent(name: str) -> SchemaError:
    return SchemaError(f"column {name!r} is in the schema but not in the table. See: tacit explain column-missing")


def _fetch(table: Any, name: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """One column as an array, and where it is missing by the container's own account."""
    try:
        series = table[name]
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise _absent(name) from error
    except Exception as error:
        # polars has its own ColumnNotFoundError, which inherits from none of the above.
        if type(error).__name__ != "ColumnNotFoundError":
            raise
        raise _absent(name) from error
    if isinstance(series, np.ndarray):
        missing = np.ma.getmaskarray(series) if isinstance(series, np.ma.MaskedArray) else None
        values = np.ma.getdata(series)
    elif hasattr(series, "to_numpy"):
        absent = series.is_null() if hasattr(series, "is_null") else series.isna()
        missing = np.asarray(absent.to_numpy(), dtype=bool)
        values = series.to_numpy()
        if values.dtype.kind not in "fiub":
            values = _objects(series.to_list())
            values[missing] = None
    elif isinstance(series, (str, bytes)) or not hasattr(series, "__len__"):
        raise SchemaError(
            f"column {name!r} must be a sequence with one value for each row, not one {type(series).__name__}"
        )
    else:
        values, missing = _objects(series), None
    if values.ndim == 0:
        raise SchemaError(f"column {name!r} must be a sequence with one value for each row, not a single value")
    if missing is None:
        missing = np.zeros(len(values), dtype=bool)
    if values.dtype.kind in "OMm":
        flat = values if values.ndim == 1 else values.reshape(len(values), -1)[:, 0]
        missing = missing | np.fromiter((v is None or v != v for v in flat.tolist()), dtype=bool, count=len(flat))
    return values, missing


def _numbers(name: str, values: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[np.float64]:
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    if values.dtype.kind != "O":
        raise SchemaError(f"column {name!r} is numeric and holds {values.dtype} values; convert the column first")
    out = np.full(len(values), np.nan)
    for row, value in enumerate(values.tolist()):
        if missing[row]:
            continue
        if isinstance(value, (numbers.Real, np.bool_)) or type(value).__name__ == "Decimal":
            try:
                out[row] = float(value)
            except OverflowError:
                out[row] = np.inf if value > 0 else -np.inf
        else:
            raise SchemaError(f"column {name!r} is numeric and holds {type(value).__name__}; convert the column first")
    return out


def _days(name: str, values: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Dates as days since 1970-01-01, each by itself; numbers are such days already."""
    if values.dtype.kind == "M":
        values = values.astype("datetime64[D]").astype(object)
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    out = np.full(len(values), np.nan)
    for row, value in enumerate(values.tolist()):
        if missing[row] or value == "":
            continue
        plain = isinstance(value, numbers.Real) and not isinstance(value, bool)
        day = float(value) if plain else day_number(value)
        if day is None:
            raise SchemaError(f"column {name!r} holds values that are no dates such as 2024-12-31; convert it first")
        out[row] = day
    return out


def _missing_error(column: AnyColumn, what: str = "missing values") -> SchemaError:
    return SchemaError(
        f"column {column.name!r} has {what}; declare a public constant for them in the schema (fill = ...), "
        "or remove those rows"
    )


def _numeric(column: Numeric, table: Fetched, tally: _Tally) -> NDArray[np.float64]:
    values, missing = table[column.name]
    if column.shape:
        return _arrays(column, values, missing, tally)
    if values.ndim != 1:
        raise SchemaError(
            f"column {column.name!r} has {values.ndim} dimensions; declare its shape in the schema, "
            "or give one number for each row"
        )
    read = _days if isinstance(column, Date) else _numbers
    return scale_to_bounds(column, read(column.name, values, missing), missing, tally)


def _arrays(column: Numeric, values: NDArray[Any], missing: NDArray[np.bool_], tally: _Tally) -> NDArray[np.float64]:
    if values.dtype.kind == "O" and values.ndim == 1:
        try:
            values = np.stack([np.asarray(value) for value in values]) if len(values) else np.empty((0, *column.shape))
        except ValueError as error:
            raise SchemaError(f"column {column.name!r}: its values do not all have the shape {column.shape}") from error
        missing = np.zeros(len(values), dtype=bool)
    if values.shape[1:] != column.shape or values.dtype.kind not in "fiub":
        raise SchemaError(
            f"column {column.name!r} holds {values.dtype} arrays of shape {values.shape[1:]}; the schema says numbers "
            f"of shape {column.shape}"
        )
    return scale_to_bounds(
        column, values.reshape(len(values), -1).astype(np.float64), missing.reshape(len(values), -1), tally
    )


def scale_to_bounds(
    column: Numeric, values: NDArray[np.float64], missing: NDArray[np.bool_], tally: _Tally
) -> NDArray[np.float64]:
    """Values scaled to [-1, 1] by the column's public bounds, each row by itself."""
    absent = np.isnan(values) | missing
    if absent.any():
        if column.fill is None:
            raise _missing_error(column)
        tally.note(tally.filled, column.name, absent)
        values = np.where(absent, column.fill, values)
    tally.note(tally.clipped, column.name, (values < column.lower) | (values > column.upper))
    # The middle is taken off after clipping, so that nothing overflows; the last clip takes off rounding.
    inside = np.clip(values, column.lower, column.upper)
    return np.clip((inside - column.middle) / column.half_width, -1.0, 1.0)


def _finder(lookup: dict[str, int]) -> Callable[[str], int]:
    """The class number of a text, -1 where it is unknown: by the text itself, else as a number or a truth value.

    Whoever reads a file guesses the type of a column from all of its rows, so that the text 01 becomes the number 1
    unless somebody's row holds 1A. What a row is encoded to must not depend on that: a label 01 is found by 1, 1.0 and
    "01", and a label true by True and "TRUE". Two labels that are the same number are told apart by their text alone.
    """
    loose: dict[Any, int] = {}
    for label, code in lookup.items():
        meant = _meant(label)
        loose[meant] = code if loose.get(meant, code) == code else -1
    return lambda text: lookup[text] if text in lookup else loose.get(_meant(text), -1)


def _meant(text: str) -> Any:
    """The number or the truth value that a text spells; the text itself where it is neither."""
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text


def _codes(column: Categorical | Boolean, lookup: dict[str, int], table: Fetched) -> tuple[NDArray[np.int64], Any]:
    """Class number of every value by its canonical text; -1 where unknown, -2 where missing."""
    values, missing = table[column.name]
    if values.ndim != 1:
        raise SchemaError(
            f"column {column.name!r} has {values.ndim} dimensions; a {column.kind} column has one value for each row"
        )
    if values.dtype.kind == "f":
        missing = missing | np.isnan(values)
    find = _finder(lookup)
    # Types are part of the key because 1 == True in Python, and they are different categories.
    known: dict[tuple[type, Any], int] = {}
    codes = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values.tolist()):
        if missing[row]:
            codes[row] = -2
            continue
        try:
            key = (value.__class__, value)
            code = known.get(key)
        except TypeError as error:
            raise SchemaError(
                f"column {column.name!r} holds {type(value).__name__}, which cannot be a category"
            ) from error
        if code is None:
            code = known[key] = find(canonical(value))
        codes[row] = code
    return codes, codes == -2


def _categories(column: Categorical, table: Fetched, tally: _Tally) -> NDArray[np.int64]:
    lookup = {label: code for code, label in enumerate(column.categories)}
    codes, missing = _codes(column, lookup, table)
    unknown = codes == -1
    if missing.any():
        if column.fill is None:
            raise _missing_error(column)
        tally.note(tally.filled, column.name, missing)
        codes[missing] = column.labels.index(column.fill)
    if unknown.any():
        if not column.other:
            raise SchemaError(
                f"column {column.name!r} has values that are not among its categories; add them to the schema, or "
                "allow the bucket 'other' (other = true). See: tacit explain category-unknown"
            )
        tally.note(tally.unknown, column.name, unknown)
        codes[unknown] = column.labels.index(OTHER)
    return codes


def _booleans(column: Boolean, table: Fetched, tally: _Tally) -> NDArray[np.int64]:
    codes, missing = _codes(column, {word: int(value) for word, value in column.words().items()}, table)
    unknown = codes == -1
    absent = missing | unknown
    if absent.any():
        if column.fill is None:
            raise _missing_error(
                column, "missing values" if missing.any() else "values that are neither true nor false"
            )
        tally.note(tally.filled, column.name, missing)
        tally.note(tally.unknown, column.name, unknown)
        codes[absent] = int(column.fill)
    return codes


def _feature(column: AnyColumn, table: Fetched, tally: _Tally, out: NDArray[np.floating[Any]]) -> None:
    """Write one column's features into its place; the rows were counted before."""
    if isinstance(column, Numeric):
        block = _numeric(column, table, tally)
        out[...] = block if block.ndim == 2 else block[:, None]
    elif isinstance(column, Categorical):
        out[np.arange(len(out)), _categories(column, table, tally)] = 1.0
    elif isinstance(column, Boolean):
        out[:, 0] = 2.0 * _booleans(column, table, tally) - 1.0


def _names(table: Any) -> None:
    """Refuse what is not a table before the first column is asked for."""
    if type(table).__name__ == "LazyFrame":
        raise SchemaError("cannot encode a LazyFrame, whose rows are not loaded yet; call its collect() first")
    structured = isinstance(table, np.ndarray) and table.dtype.names is not None
    if not (isinstance(table, Mapping) or structured or (hasattr(table, "columns") and hasattr(table, "__getitem__"))):
        raise SchemaError(
            f"cannot encode a {type(table).__name__}; give a mapping of columns, a polars or pandas data frame, or a "
            "structured numpy array"
        )


def _has(table: Any, name: str) -> bool:
    names = table if isinstance(table, Mapping) else getattr(table, "columns", None)
    return name in (table.dtype.names if names is None else names)


def _refuse_text(schema: Schema) -> None:
    for column in schema.features:
        if isinstance(column, Text):
            raise SchemaError(
                f"column {column.name!r} is text, which public bounds cannot encode; tokenise it, or embed it with a "
                "model that was not trained on these data"
            )


def _owners(name: str, table: Fetched) -> NDArray[Any]:
    """The id of the unit that owns each row."""
    units, missing = table[name]
    if missing.any() or (units.dtype.kind == "f" and np.isnan(units).any()):
        raise SchemaError(
            f"column {name!r}, the column of ids, has missing values; every row needs an owner. "
            "See: tacit explain missing-ids"
        )
    return units


def encode(
    schema: Schema, table: Any, *, dtype: type[np.floating[Any]], with_target: bool
) -> tuple[Encoded, EncodingDiagnostics]:
    """The work behind :meth:`tacit.schema.Schema.encode`, which states the guarantee."""
    _names(table)
    _refuse_text(schema)
    target = schema.target if with_target else None
    wanted = [column.name for column in schema.features] + ([target.name] if target is not None else [])
    # New rows to predict may come without an owner.
    owner = schema.unit.column
    if owner is not None and (with_target or _has(table, owner)):
        wanted.append(owner)
    else:
        owner = None
    fetched: Fetched = {name: _fetch(table, name) for name in wanted}
    rows = len(fetched[wanted[0]][0])
    for name, (values, _) in fetched.items():
        if len(values) != rows:
            raise SchemaError(f"columns {name!r} and {wanted[0]!r} have different numbers of rows")

    tally = _Tally()
    features = np.zeros((rows, len(schema.feature_names)), dtype=dtype)
    start = 0
    for column in schema.features:
        _feature(column, fetched, tally, features[:, start : start + column.width])
        start += column.width
    encoded_target: NDArray[Any] | None = None
    if isinstance(target, Numeric):
        encoded_target = _numeric(target, fetched, tally).astype(dtype)
    elif isinstance(target, Categorical):
        encoded_target = _categories(target, fetched, tally)
    elif isinstance(target, Boolean):
        encoded_target = _booleans(target, fetched, tally)
    units = None if owner is None else _owners(owner, fetched)
    diagnostics = EncodingDiagnostics(tally.clipped, tally.unknown, tally.filled)
    return Encoded(features, encoded_target, schema.feature_names, units), diagnostics
