"""Which rows take part in a fit, and what may one person contribute? Features, target, weights and groups as arrays.

Everything here is done row by row with public constants, except which rows of a person are kept: a secret key draws
them for each person by itself, whatever the rows say. So sensitivities stated for rows hold for what comes out.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from tacit.accounting.base import is_number, owner_numbers
from tacit.linear_model.bounds import Features
from tacit.linear_model.moments import to_grid
from tacit.linear_model.sensitivity import Shape
from tacit.noise import Key, uniform

Floats = npt.NDArray[np.float64]

#: Rows at a time: 8192 rows of 20 columns are 1.3 MB.
PIECE = 8192
#: Where the shape of a row says that at most one entry in so many is not zero, only those are multiplied.
THIN = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """A table ready for a fit: ``x`` with the constant first (where there is one), ``y``, both in [-1, 1], on the grid.

    ``shape`` holds what sensitivities are made of. ``root`` is the square root of the weights, by which x is scaled
    already (y is not); None without weights.
    """

    x: Floats
    y: Floats
    shape: Shape
    root: Floats | None = None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def width(self) -> int:
        """How many coefficients there are."""
        return int(self.x.shape[1])

    @functools.cached_property
    def matrix(self) -> Any:
        """x as it is multiplied: a sparse matrix where one-hot columns are most of it, which public facts decide."""
        return sparse.csr_array(self.x) if THIN * self.shape.size < self.width else self.x

    def batches(self) -> Iterator[Rows]:
        """The same rows in pieces that stay in the processor's cache."""
        for start in range(0, len(self.x), PIECE):
            part = slice(start, start + PIECE)
            root = None if self.root is None else self.root[part]
            yield dataclasses.replace(self, x=self.x[part], y=self.y[part], root=root)

    def with_target(self) -> Any:
        """z = (x, y) for the second moments."""
        y = self.y if self.root is None else to_grid(self.y * self.root)
        if sparse.issparse(self.matrix):
            return sparse.hstack([self.matrix, sparse.csr_array(y[:, None])], format="csr")
        return np.column_stack([self.x, y])


def make_rows(
    x: Floats,
    y: Floats,
    features: Features,
    *,
    intercept: bool,
    weights: Any = None,
    max_weight: float | None = None,
    groups: Any = None,
    max_rows: int | None = None,
) -> Rows:
    """Put the constant first, scale by weights, and keep ``max_rows`` rows of each person.

    Weights are clipped to [0, ``max_weight``] and divided by it: a row with the largest weight counts as one row
    without weights. Of each person ``max_rows`` rows are kept, drawn at random.
    """
    x, y, root = taking_part(x, y, weights=weights, max_weight=max_weight, groups=groups, max_rows=max_rows)
    if intercept:
        x = np.column_stack([np.ones(len(x)), x])
    if root is not None:
        x = to_grid(x * root[:, None])
    whole = weights is None and groups is None
    norm = 1.0 if features.shortened else None
    shape = Shape(features.scalars, features.blocks, intercept, whole, max_rows or 1, norm)
    return Rows(x, y, shape, root)


def taking_part(
    x: Floats, y: Floats, *, weights: Any, max_weight: float | None, groups: Any, max_rows: int | None
) -> tuple[Floats, Floats, Floats | None]:
    """The rows that :func:`make_rows` keeps, as they are, and the square roots of their weights."""
    root = None if weights is None else np.sqrt(check_weights(weights, len(x), max_weight))
    if groups is not None:
        kept = kept_rows(groups, len(x), max_rows)
        return x[kept], y[kept], None if root is None else root[kept]
    if max_rows is not None:
        raise ValueError("max_rows= limits the rows of one person: give their ids too, fit(X, y, groups=ids)")
    return x, y, root


def kept_rows(groups: Any, count: int, max_rows: int | None) -> npt.NDArray[np.intp]:
    """Positions of at most ``max_rows`` rows of every person, drawn by a new secret key, in the order of the table.

    Guarantee: the draw for one person is independent of all others and of what the rows say. So two tables that differ
    in one person keep alike of all others.

    >>> len(kept_rows(["a", "b", "a", "a", "b"], 5, 2))
    4
    """
    if isinstance(max_rows, bool) or not isinstance(max_rows, (int, np.integer)) or max_rows < 1:
        raise ValueError(
            "groups= needs max_rows=, how many rows of one person take part: the noise grows with it, and the true "
            f"maximum is private. max_rows must be a positive whole number, not {max_rows!r}"
        )
    codes = owner_numbers(groups, count)
    order = np.lexsort((uniform(Key.generate(), 0, count), codes))
    sorted_codes = codes[order]
    starts = np.r_[0, np.flatnonzero(np.diff(sorted_codes)) + 1] if count else np.zeros(0, dtype=np.intp)
    place = np.arange(count) - np.repeat(starts, np.diff(np.r_[starts, count]))
    return np.sort(order[place < max_rows])


def check_weights(weights: Any, count: int, max_weight: float | None) -> Floats:
    """Weights as parts of the public largest one, in [0, 1]."""
    if max_weight is None:
        raise ValueError(
            "sample_weight needs max_weight=, the largest weight, as a public number: the influence of one row grows "
            "with it, and the largest weight in the data belongs to one person"
        )
    if not is_number(max_weight) or not 0 < max_weight < np.inf:
        raise ValueError(f"max_weight must be positive and finite, not {max_weight!r}")
    given = np.asarray(weights, dtype=np.float64)
    if given.ndim == 0:
        given = np.full(count, float(given))
    if given.ndim != 1:
        raise ValueError("Sample weights must be 1D array or scalar")
    if given.shape != (count,):
        raise ValueError("sample_weight and X have different numbers of rows")
    if not np.isfinite(given).all() or (given < 0).any():
        raise ValueError("sample_weight must be finite and not negative")
    if count and not given.any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return np.asarray(np.minimum(given / max_weight, 1.0))
