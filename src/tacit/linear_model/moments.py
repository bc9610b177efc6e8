"""How are sums over rows computed so that their stated sensitivity holds to the last bit?

A sensitivity proven for real numbers says nothing about floating-point sums, whose rounding depends on every row.
Here rows are first cut to a grid of 2^-20, towards zero, which is done row by row and keeps every bound. Products of
two grid numbers are whole multiples of 2^-40 and at most 1, so 4,096 of them add up exactly in binary64 in any order,
with or without fused operations, and Python's integers take it from there. What is handed to the noise is the exact
sum, rounded once to a multiple of 2^-20; the sensitivity of every entry grows by at most that much, which is added to
it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

Floats = npt.NDArray[np.float64]

GRID_BITS = 20
GRID = 2.0**-GRID_BITS
#: Numbers that stay in the processor's cache while a sum goes over them several times.
AT_ONCE = 2**16
#: Rows whose products add up exactly in binary64: 2^12 · 2^40 = 2^52.
CHUNK = 4096
#: More rows than this would not fit the grid of what is released into binary64.
MOST_ROWS = 2**32
#: Rows whose sums fit a 64-bit integer: 2^22 · 2^40 = 2^62.
MOST_AT_ONCE = 2**22
#: How much an entry of a rounded total can move besides the exact sum.
ROUNDING = GRID


def to_grid(values: Floats) -> Floats:
    """Cut towards zero to multiples of 2^-20: no number grows, so every bound on rows still holds.

    >>> to_grid(np.array([0.7, -1.0])).tolist()
    [0.69999980926513..., -1.0]
    """
    scaled = values * 2.0**GRID_BITS
    np.trunc(scaled, out=scaled)
    scaled *= GRID
    return scaled


def dense(matrix: Any) -> Floats:
    """An array, of a sparse one too."""
    return np.asarray(matrix.toarray() if sparse.issparse(matrix) else matrix)


class Moments:
    """The exact sum of zzᵀ over rows z with entries in [-1, 1], taken in pieces of any size.

    >>> moments = Moments(2)
    >>> moments.add(np.array([[1.0, 0.5], [1.0, -0.25]]))
    >>> moments.total().tolist()
    [[2.0, 0.25], [0.25, 0.3125]]
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows = 0
        self._low = np.zeros((width, width), dtype=np.int64)
        self._pieces = 0
        self._high = np.zeros((width, width), dtype=object)

    def add(self, rows: Any) -> None:
        """Take further rows, an array or a sparse one, which must lie on the grid already (:func:`to_grid`)."""
        for start in range(0, rows.shape[0], CHUNK):
            piece = rows[start : start + CHUNK]
            products = dense(piece.T @ piece)
            if not np.isfinite(products).all():
                raise ValueError(
                    "a column has missing values (NaN): declare a public constant for them (fill=), or remove them"
                )
            self._low += np.ldexp(products, 2 * GRID_BITS).astype(np.int64)
            self._pieces += 1
            if self._pieces == 1024:  # 2^10 · 2^52: before a 64-bit integer could overflow
                self._flush()
        self._count(rows.shape[0])

    def merge(self, other: Moments) -> None:
        """Take the sums of other rows."""
        self._high = self._high + other._high + other._low.astype(object)
        self._count(other.rows)

    def sums(self) -> npt.NDArray[np.int64]:
        """The exact sums of at most 2^22 rows, in units of 2^-40: what :meth:`take` takes back."""
        self._flush()
        if self.rows > MOST_AT_ONCE:
            raise ValueError(f"sums of more than {MOST_AT_ONCE:,} rows do not fit 64 bits")
        return self._high.astype(np.int64)

    def take(self, sums: npt.NDArray[np.int64], rows: int) -> None:
        """Take sums that were made elsewhere (:meth:`sums`).

        >>> there, here = Moments(1), Moments(1)
        >>> there.add(np.array([[0.5], [1.0]]))
        >>> here.take(there.sums(), 2)
        >>> here.total().tolist()
        [[1.25]]
        """
        self._high = self._high + np.asarray(sums, dtype=np.int64).reshape(self.width, self.width).astype(object)
        self._count(rows)

    def _count(self, rows: int) -> None:
        self.rows += rows
        if self.rows > MOST_ROWS:
            raise ValueError(f"more than {MOST_ROWS:,} rows: their sums do not fit the grid of what is released")

    def _flush(self) -> None:
        self._high = self._high + self._low.astype(object)
        self._low[...] = 0
        self._pieces = 0

    def total(self) -> Floats:
        """The sum, each entry rounded to the nearest multiple of 2^-20 (exactly: whole numbers until then)."""
        half = 1 << (GRID_BITS - 1)
        if self.rows <= MOST_AT_ONCE:  # the sums fit 64 bits, with room for the half
            sums = self._high.astype(np.int64) + self._low
            return np.ldexp(((sums + half) >> GRID_BITS).astype(np.float64), -GRID_BITS)
        self._flush()
        rounded = [(int(entry) + half) >> GRID_BITS for entry in self._high.flat]
        return np.array([math.ldexp(entry, -GRID_BITS) for entry in rounded]).reshape(self.width, self.width)


def moments_of(rows: Floats) -> Floats:
    """The total of one array of rows."""
    moments = Moments(rows.shape[1])
    moments.add(rows)
    return moments.total()


def clipped_sum(vectors: Floats, clip_norm: float, by: Floats | None = None) -> Floats:
    """The exact sum of the vectors (one a row), each shortened to L2 norm ``clip_norm`` at most.

    With ``by``, a few numbers for each row, a row's vector is its products with each of them.

    The shortened vectors are cut towards zero to a grid of about ``clip_norm``·2^-20, where their sum is exact for up
    to 2^32 rows. Guarantee: no row contributes more than ``clip_norm``·(1 + 2^-40); see :data:`SLACK`.

    >>> clipped_sum(np.array([[3.0, 4.0], [0.0, 0.5]]), 1.0).round(5).tolist()
    [0.6, 1.3]
    """
    grid = math.ldexp(1.0, math.frexp(clip_norm)[1] - 1 - GRID_BITS)
    width = vectors.shape[1] * (1 if by is None else by.shape[1])
    total, step = np.zeros(width), max(1, AT_ONCE // max(width, 1))
    for start in range(0, len(vectors), step):
        piece = vectors[start : start + step]
        if by is not None:
            piece = (piece[:, :, None] * by[start : start + step, None, :]).reshape(len(piece), -1)
        norms = np.sqrt(np.einsum("ij,ij->i", piece, piece))
        factors = np.minimum(1.0, clip_norm / np.maximum(norms, clip_norm)) / grid
        total += np.trunc(piece * factors[:, None]).sum(axis=0)
    return np.asarray(total * grid)


def bounded_sum(values: Floats, high: float) -> float:
    """The exact sum of numbers in [0, ``high``], clipped to it and cut to a grid of about ``high``·2^-20.

    >>> bounded_sum(np.array([0.25, 9.0]), 1.0)
    1.25
    """
    grid = math.ldexp(1.0, math.frexp(high)[1] - 1 - GRID_BITS)
    return float(np.trunc(np.clip(values, 0.0, high) / grid).sum() * grid)


#: What binary64 adds to the norm of a shortened vector (a few units in the last place for each of up to 2^10 entries).
SLACK = 1 + 2.0**-40
