"""Which bins does each column of a table have? Public cells of numbers, categories, and a bin for what is missing.

Cells follow from public bounds alone. They are evenly wide, and besides get narrower by a constant factor towards zero
(or the bound that is nearest to it), which is a cell of its own: amounts of money crowd there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.linear_model.bounds import Features
from tacit.linear_model.moments import GRID, to_grid
from tacit.schema import Boolean, Categorical, Numeric, Schema

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

#: Evenly wide cells of a number, as many that get narrower towards zero, and by how many factors of two they do.
EVEN, NARROWING, OCTAVES = 32, 32, 14


@dataclasses.dataclass(frozen=True, eq=False)
class BinnedColumn:
    """One column of a table: where its encoding lies, and its bins.

    A number (or a truth value, which is -1 or 1) has ``edges`` between its cells, as encoded, and no ``labels``; the
    category ``labels`` of others are their bins. ``optional`` says that values may be missing, which is one more bin.
    ``given`` says that the user chose the edges.
    """

    name: str
    start: int
    edges: Floats
    labels: tuple[str, ...] = ()
    middle: float = 0.0
    half_width: float = 1.0
    flag: bool = False
    optional: bool = False
    given: bool = False

    @property
    def width(self) -> int:
        """How many encoded features the column has."""
        return len(self.labels) or 1

    @property
    def cells(self) -> int:
        """How many bins there are, without that of missing values."""
        return len(self.labels) or len(self.edges) + 1

    @property
    def number(self) -> bool:
        """Whether the column has a curve over numbers."""
        return not self.labels and not self.flag

    def places(self, x: Floats) -> Places:
        """The bin of each encoded row; missing values have the last one. Each row by itself."""
        block = x[:, self.start : self.start + self.width]
        missing = np.isnan(block[:, 0])
        if self.labels:
            found = np.where(missing[:, None], 0.0, block).argmax(axis=1)
        else:
            found = np.searchsorted(self.edges, np.where(missing, 0.0, block[:, 0]), side="right")
        return np.where(missing, self.cells, found).astype(np.intp)

    def reach(self) -> Floats:
        """The largest absolute encoded value in each cell of a number."""
        ends = np.r_[-1.0, self.edges, 1.0]
        return np.asarray(np.maximum(np.abs(ends[:-1]), np.abs(ends[1:])))

    def ends(self) -> Floats:
        """Both ends of each cell, as encoded."""
        ends = np.r_[-1.0, self.edges, 1.0]
        return np.column_stack([ends[:-1], ends[1:]])


def columns_of(features: Features, edges: Mapping[Any, Sequence[float]] | None) -> tuple[BinnedColumn, ...]:
    """The columns behind encoded features, with ``edges`` where the user gave them."""
    found: list[BinnedColumn] = []
    if features.schema is None:
        for i, name in enumerate(features.names):
            found.append(_number(str(name), i, float(features.middle[i]), float(features.half_width[i]), True))
    else:
        start = 0
        for column in features.schema.features:
            optional = getattr(column, "fill", None) is None
            if isinstance(column, Categorical):
                found.append(BinnedColumn(column.name, start, np.zeros(0), column.labels, optional=optional))
            elif isinstance(column, Boolean):
                found.append(BinnedColumn(column.name, start, np.zeros(1), flag=True, optional=optional))
            elif isinstance(column, Numeric):
                for i, name in enumerate(column.feature_names):
                    found.append(_number(name, start + i, column.middle, column.half_width, optional))
            start += column.width
    return _with_edges(found, edges)


def _number(name: str, start: int, middle: float, half_width: float, optional: bool) -> BinnedColumn:
    zero = float(np.clip(-middle / half_width, -1.0, 1.0))
    return BinnedColumn(name, start, cells(zero), (), middle, half_width, optional=optional)


def cells(zero: float) -> Floats:
    """The edges between the cells of a number in [-1, 1] that is 0 where its encoding is ``zero``.

    >>> edges = cells(-1.0)
    >>> len(edges), bool(edges[0] < -0.99999), edges[-1].item()
    (63, True, 0.9375)
    """
    even = np.linspace(-1.0, 1.0, EVEN + 1)
    sides = [side for side in (-1.0, 1.0) if side != zero]
    each = NARROWING // len(sides)
    parts = 2.0 ** -(OCTAVES * np.arange(1, each) / each)
    narrow = [zero + (side - zero) * parts for side in sides]
    around = [zero + side * 2 * GRID for side in (-1.0, 1.0)]
    edges = np.unique(np.concatenate([even, *narrow, around]))
    return np.asarray(edges[(edges > -1.0) & (edges < 1.0)])


def _with_edges(columns: list[BinnedColumn], edges: Mapping[Any, Sequence[float]] | None) -> tuple[BinnedColumn, ...]:
    if edges is None:
        return tuple(columns)
    if not isinstance(edges, Mapping):
        raise ValueError(f"edges must map names of columns to lists of public numbers, not {type(edges).__name__}")
    numbers = {column.name: i for i, column in enumerate(columns) if column.number}
    for name, values in edges.items():
        if name not in numbers:
            raise ValueError(f"edges names {name!r}, which is not a column of numbers: {', '.join(numbers) or 'none'}")
        i = numbers[name]
        try:
            at = to_grid((np.asarray(list(values), dtype=np.float64) - columns[i].middle) / columns[i].half_width)
        except (TypeError, ValueError):
            raise ValueError(f"edges of {name!r} must be a list of numbers, not {values!r}") from None
        if not len(at) or not np.isfinite(at).all() or (np.diff(at) <= 0).any() or at[0] <= -1 or at[-1] >= 1:
            raise ValueError(f"edges of {name!r} must be increasing numbers inside the bounds of the column")
        columns[i] = dataclasses.replace(columns[i], edges=at, given=True)
    return tuple(columns)


def encode(table: Any, features: Features) -> Floats:
    """Rows as :meth:`Features.encode` has them, but NaN where a value is missing that the schema has no constant for.

    A column without a constant is read with two different ones: where they differ, the value is missing.
    """
    schema = features.schema
    if schema is None:
        return features.encode(table)
    one = dataclasses.replace(features, schema=_filled(schema, 0)).encode(table)
    other = dataclasses.replace(features, schema=_filled(schema, -1)).encode(table)
    start = 0
    for column in schema.features:
        block = slice(start, start + column.width)
        differs = one[:, block] != other[:, block]
        if isinstance(column, Categorical):
            differs = np.repeat(differs.any(axis=1)[:, None], column.width, axis=1)
        one[:, block] = np.where(differs, np.nan, one[:, block])
        start += column.width
    return one


def _filled(schema: Schema, which: int) -> Schema:
    """The schema with a constant for every missing value: the first possible value, or the last."""
    made: list[Any] = []
    for column in schema.columns:
        if not column.target and getattr(column, "fill", 0) is None:
            if isinstance(column, Categorical):
                column = dataclasses.replace(column, fill=column.labels[which])
            elif isinstance(column, Boolean):
                column = dataclasses.replace(column, fill=bool(which))
            elif isinstance(column, Numeric):
                column = dataclasses.replace(column, fill=(column.lower, column.upper)[which])
        made.append(column)
    return dataclasses.replace(schema, columns=tuple(made))
