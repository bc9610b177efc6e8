"""What do the user's public bounds say about each column, and how does a row become numbers in [-1, 1]?

``bounds`` may be a :class:`tacit.schema.Schema`, a pair (lower, upper) of numbers or of arrays, a list with one pair
for each feature, or a mapping from column names to pairs. A missing bound is an error: a private fit may not look at
the data to find it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.linear_model.moments import to_grid
from tacit.schema import Categorical, Numeric, Schema, SchemaError

Floats = npt.NDArray[np.float64]

WHY = (
    "A private fit clips rows to public bounds, which limits the influence of one person. Bounds computed from the "
    "data would reveal rows, so take them from a code book or decide on them. See: tacit explain bounds-missing"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """How the features are scaled: value = middle + half_width · scaled, for each coefficient.

    ``scalars`` and ``blocks`` are the counts that sensitivities are made of. ``fill`` stands in for missing values.
    ``centre`` is there where the model has no constant: 0 has to stay 0, so ``middle`` is 0 and ``half_width`` the
    largest absolute bound, and ``centre`` holds middle and half width of the bounds, to which values are clipped.
    ``shortened`` says that scaled rows have an L2 norm of 1 at most; longer ones are shortened to it.
    """

    names: tuple[str, ...]
    middle: Floats
    half_width: Floats
    scalars: int
    blocks: int
    schema: Schema | None = None
    fill: Floats | None = None
    centre: tuple[Floats, Floats] | None = None
    shortened: bool = False

    def encode(self, table: Any, columns: tuple[str, ...] | None = None) -> Floats:
        """Rows x coefficients in [-1, 1], on the grid of :mod:`tacit.linear_model.moments`; each row by itself."""
        if self.schema is not None:
            encoded, _ = self.schema.encode(as_table(table, self.schema, columns), target=False)
            return self.from_origin(to_grid(np.asarray(encoded.features, dtype=np.float64)))
        x = np.asarray(table, dtype=np.float64)
        if self.fill is not None:
            x = np.where(np.isnan(x), self.fill, x)
        if self.shortened:
            return shorten(x / self.half_width)
        return self.from_origin(scale(x, *(self.centre or (self.middle, self.half_width))))

    def from_origin(self, scaled: Floats, part: int | slice = slice(None)) -> Floats:
        """Rows (or the column ``part``) that were scaled about the middle of their bounds, as this scaling has them."""
        if self.centre is None:
            return scaled
        middle, half_width = self.centre
        return from_origin(scaled, middle[part], half_width[part], self.half_width[part])

    def block_masks(self) -> list[Floats]:
        """Which coefficients belong to each categorical column: ones and zeros."""
        masks: list[Floats] = []
        place = 0
        for column in self.schema.features if self.schema is not None else ():
            if isinstance(column, Categorical):
                mask = np.zeros(len(self.names))
                mask[place : place + column.width] = 1.0
                masks.append(mask)
            place += column.width
        return masks

    def uncentred(self) -> Features:
        """The same columns, scaled so that 0 stays 0: for a model without a constant."""
        peak = np.maximum(np.abs(self.middle - self.half_width), np.abs(self.middle + self.half_width))
        centre = (self.middle, self.half_width)
        return dataclasses.replace(self, middle=np.zeros_like(peak), half_width=peak, centre=centre)


def shorten(scaled: Floats) -> Floats:
    """Rows of an L2 norm of 1 at most, each by itself, cut to the grid.

    >>> shorten(np.array([[3.0, 4.0], [0.5, 0.0]])).round(5).tolist()
    [[0.6, 0.8], [0.5, 0.0]]
    """
    norms = np.linalg.norm(scaled, axis=1)
    return to_grid(scaled * np.minimum(1.0, (1 - 2.0**-40) / np.maximum(norms, 2.0**-40))[:, None])


def by_norm(row_norm: Any, width: int, names: tuple[str, ...] | None, fill: Any = None) -> Features:
    """The scaling of features of which only the largest L2 norm of a row is known."""
    if isinstance(row_norm, bool) or not isinstance(row_norm, (int, float, np.number)) or not 0 < row_norm < np.inf:
        raise ValueError(f"row_norm must be a positive number, the largest L2 norm of a row, not {row_norm!r}")
    features = _centred((-float(row_norm), float(row_norm)), width, names, fill)
    return dataclasses.replace(features, shortened=True)


def scale(values: Floats, middle: Floats | float, half_width: Floats | float) -> Floats:
    """Clip to the bounds, bring to [-1, 1], cut to the grid."""
    scaled = values - middle
    scaled /= half_width
    np.clip(scaled, -1.0, 1.0, out=scaled)
    return to_grid(scaled)


def from_origin(scaled: Floats, middle: Any, half_width: Any, peak: Any) -> Floats:
    """Values that were scaled about ``middle``, as parts of ``peak``, the largest absolute value they can have.

    >>> from_origin(np.array([-1.0, 1.0]), 15.0, 5.0, 20.0).tolist()
    [0.5, 1.0]
    """
    return to_grid(np.clip((scaled * half_width + middle) / peak, -1.0, 1.0))


def as_table(table: Any, schema: Schema, columns: tuple[str, ...] | None = None) -> Any:
    """What :meth:`Schema.encode` takes; a plain array is read by position in the order of the schema's features."""
    if (isinstance(table, np.ndarray) and table.dtype.names is None) or isinstance(table, list):
        # Of a list every value keeps its own type: one common type would let a text change how numbers are read.
        array = np.asarray(table, dtype=object if isinstance(table, list) else None)
        names = columns or tuple(column.name for column in schema.features)
        if array.ndim != 2 or array.shape[1] != len(names):
            raise SchemaError(
                f"this array does not match the {len(names)} feature columns of the schema: give a data frame, or an "
                "array with one column for each of them, in order"
            )
        return {name: array[:, i] for i, name in enumerate(names)}
    return table


def features_of(
    bounds: Any, width: int, names: tuple[str, ...] | None, fill: Any = None, *, intercept: bool = True
) -> Features:
    """The scaling that ``bounds`` describe for a table of ``width`` columns called ``names`` (None: no names)."""
    features = _centred(bounds, width, names, fill)
    return features if intercept else features.uncentred()


def _centred(bounds: Any, width: int, names: tuple[str, ...] | None, fill: Any) -> Features:
    if bounds is None:
        raise ValueError(f"bounds are missing: give bounds=(lower, upper), a schema, or a pair for each column. {WHY}")
    if isinstance(bounds, Schema):
        return _from_schema(bounds, fill)
    if isinstance(bounds, Mapping):
        lower, upper = _from_mapping(bounds, width, names)
    else:
        lower, upper = _from_pairs(bounds, width)
    labels = names or tuple(f"x{i}" for i in range(width))
    middle, half_width = _checked(lower, upper, labels)
    return Features(labels, middle, half_width, width, 0, fill=_fill(fill, width, names, lower, upper))


def target_of(target_bounds: Any, bounds: Any, name: str = "target_bounds") -> tuple[float, float]:
    """Middle and half width of the target, from its bounds or from the schema's numeric target."""
    if target_bounds is None and isinstance(bounds, Schema) and isinstance(bounds.target, Numeric):
        return bounds.target.middle, bounds.target.half_width
    if target_bounds is None:
        raise ValueError(f"{name} are missing: give {name}=(lower, upper), the public range of the target. {WHY}")
    try:
        lower, upper = (float(value) for value in target_bounds)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be two numbers, (lower, upper), not {target_bounds!r}") from None
    middle, half_width = _checked(np.array([lower]), np.array([upper]), ("target",))
    return float(middle[0]), float(half_width[0])


def _from_schema(schema: Schema, fill: Any) -> Features:
    if fill is not None:
        raise ValueError(
            "with a schema, declare constants for missing values there (fill = ... of a column), not in fill="
        )
    middle, half_width = [], []
    scalars = blocks = 0
    for column in schema.features:
        if isinstance(column, Numeric):
            middle += [column.middle] * column.width
            half_width += [column.half_width] * column.width
            scalars += column.width
        else:  # categories are 0 or 1, booleans -1 or +1, as they are encoded
            middle += [0.0] * column.width
            half_width += [1.0] * column.width
            blocks += isinstance(column, Categorical)
            scalars += column.width if not isinstance(column, Categorical) else 0
    return Features(schema.feature_names, np.array(middle), np.array(half_width), scalars, blocks, schema)


def _from_mapping(bounds: Mapping[Any, Any], width: int, names: tuple[str, ...] | None) -> tuple[Floats, Floats]:
    keys: tuple[Any, ...] = names if names is not None else tuple(range(width))
    missing = [key for key in keys if key not in bounds]
    if missing:
        what = f"column {missing[0]!r}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        hint = "" if names is not None else " (the data have no column names: use positions 0, 1, … as keys)"
        raise ValueError(f"bounds are missing for {what}{hint}. {WHY}")
    lower, upper = np.empty(width), np.empty(width)
    for i, key in enumerate(keys):
        try:
            lower[i], upper[i] = bounds[key]
        except (TypeError, ValueError):
            raise ValueError(f"bounds of {key!r} must be two numbers, (lower, upper), not {bounds[key]!r}") from None
    return lower, upper


def _from_pairs(bounds: Any, width: int) -> tuple[Floats, Floats]:
    if isinstance(bounds, tuple) and len(bounds) == 2:
        try:
            low, high = (np.asarray(b, dtype=np.float64) for b in bounds)
            return np.broadcast_to(low, (width,)).copy(), np.broadcast_to(high, (width,)).copy()
        except (TypeError, ValueError):
            raise ValueError(
                f"bounds=(lower, upper) must be two numbers, or two lists with {width} numbers, one for each feature"
            ) from None
    try:
        array = np.asarray(bounds, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"cannot read bounds {bounds!r}: give (lower, upper), a mapping or a schema") from None
    if array.shape == (2,):
        return np.full(width, array[0]), np.full(width, array[1])
    if array.shape == (2, 2) == (width, 2):
        raise ValueError(
            "two pairs for two features are ambiguous: give a tuple (lower, upper), each with one number for each "
            "feature, or a mapping from columns to (lower, upper)"
        )
    if array.shape == (width, 2):
        return array[:, 0].copy(), array[:, 1].copy()
    if array.shape == (2, width):
        return array[0].copy(), array[1].copy()
    raise ValueError(f"bounds of shape {array.shape} do not fit {width} features: give (lower, upper)")


def _checked(lower: Floats, upper: Floats, names: tuple[str, ...]) -> tuple[Floats, Floats]:
    for i, name in enumerate(names):
        if not (np.isfinite(lower[i]) and np.isfinite(upper[i])):
            raise ValueError(f"bounds of {name!r} must be finite, not ({lower[i]}, {upper[i]}). {WHY}")
        if not lower[i] < upper[i]:
            raise ValueError(f"bounds of {name!r}: lower ({lower[i]:g}) must be below upper ({upper[i]:g})")
    half_width = upper / 2 - lower / 2
    if not (half_width > 0).all():
        raise ValueError("lower and upper bounds are too close together to be told apart: widen them")
    return lower / 2 + upper / 2, half_width


def _fill(fill: Any, width: int, names: tuple[str, ...] | None, lower: Floats, upper: Floats) -> Floats | None:
    """Public constants for missing values; NaN where a column has none."""
    if fill is None:
        return None
    if isinstance(fill, Mapping):
        keys: tuple[Any, ...] = names if names is not None else tuple(range(width))
        unknown = [key for key in fill if key not in keys]
        if unknown:
            raise ValueError(f"fill names {unknown[0]!r}, which is not a column of the table")
        values = np.array([float(fill.get(key, np.nan)) for key in keys])
    else:
        try:
            values = np.broadcast_to(np.asarray(fill, dtype=np.float64), (width,)).copy()
        except (TypeError, ValueError):
            raise ValueError(
                f"fill must be a public number, one for each of the {width} features, or a mapping, not {fill!r}"
            ) from None
    if ((values < lower) | (values > upper)).any():
        raise ValueError("fill must lie between the bounds of its column")
    return values
