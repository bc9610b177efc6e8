"""What is a row encoded to? Each number as it is and as cosines of its rank; categories and missing values as bins.

Ranks come from a noisy histogram of every column, so that curves bend where the rows are. Cosines of higher frequency
are scaled down: a curve has to earn its bends against the noise, and with little data little more than a line is left.
Everything here but :func:`histogram` works on public or released values, or row by row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tacit.additive.columns import BinnedColumn
from tacit.linear_model.moments import to_grid
from tacit.linear_model.rows import Rows
from tacit.linear_model.sensitivity import Shape

Floats = npt.NDArray[np.float64]

#: The fewest and the most cosines of a number.
COSINES = (4, 16)
#: Of how many functions of each column a pair is made at most.
PAIRED = 2
#: Every cell has at least this part of an even share of the rows.
LEAST = 1e-3
#: A bin counts as occupied where its noisy number of rows is this many standard deviations above 0.
OCCUPIED = 1.0


def counted(columns: Sequence[BinnedColumn]) -> tuple[BinnedColumn, ...]:
    """The columns whose bins are counted: all but those whose edges are public."""
    return tuple(column for column in columns if not column.given)


def histogram(rows: Rows, columns: Sequence[BinnedColumn]) -> Floats:
    """The exact numbers of rows in the bins of these columns, one column after the other; rows count by their weights.

    Guarantee: a row lies in one bin of each column and counts 1 at most. Adding one moves the vector by √d in L2 norm,
    replacing one by √(2d), times the rows of one person. Weights lie on the grid, so the sums are exact.
    """
    weights = None if rows.root is None else to_grid(rows.root**2)
    parts = [np.bincount(one.places(rows.x), weights, minlength=one.cells + 1) for one in columns]
    return np.concatenate(parts).astype(np.float64)


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """One column's functions: ``table`` has their values in each bin (that of missing values last), on the grid.

    ``slope`` says that the encoded number itself is the first function. ``share`` is the part of the rows in each cell.
    """

    column: BinnedColumn
    table: Floats
    slope: bool
    share: Floats

    @property
    def width(self) -> int:
        """How many functions there are."""
        return int(self.table.shape[1]) + self.slope

    @property
    def norm_squared(self) -> float:
        """The largest squared length of what one row is encoded to."""
        squares = (self.table**2).sum(axis=1)
        if self.slope:
            squares[: self.column.cells] += self.column.reach() ** 2
        return float(squares.max())

    def encode(self, x: Floats) -> Floats:
        """The functions of each encoded row."""
        found = self.table[self.column.places(x)]
        if not self.slope:
            return np.asarray(found)
        return np.column_stack([np.nan_to_num(x[:, self.column.start]), found])

    def few(self) -> Floats:
        """The first functions of each bin, of which pairs are made."""
        if self.column.flag:
            return np.array([[-1.0], [1.0], [0.0]])
        return self.table if self.column.labels else self.table[:, :PAIRED]


def cosines_for(signal: float) -> int:
    """How many cosines a number gets where ``signal`` is the number of rows times μ: more data, more bends.

    >>> [cosines_for(signal) for signal in (0, 500, 7000, 30_000)]
    [4, 4, 8, 16]
    """
    fewest, most = COSINES
    found = math.sqrt(max(signal, 1.0)) / 8
    return int(min(max(2 ** round(math.log2(found)), fewest), most))


def parts_of(columns: Sequence[BinnedColumn], noisy: Floats, scale: float, cosines: int) -> tuple[Part, ...]:
    """The functions of every column by its noisy histogram (of noise ``scale``, where it was counted)."""
    found, start = [], 0
    for column in columns:
        counts = None
        if not column.given:
            counts = noisy[start : start + column.cells + 1]
            start += column.cells + 1
        found.append(_part(column, counts, scale, cosines))
    return tuple(found)


def _part(column: BinnedColumn, counts: Floats | None, scale: float, cosines: int) -> Part:
    cells = column.cells
    occupied = np.ones(cells + 1, dtype=bool) if counts is None else counts > OCCUPIED * scale
    bins = np.eye(cells + 1) if column.labels else np.eye(cells + 1)[:, cells:]
    kept = occupied if column.labels else occupied[cells:]
    if not column.optional:
        kept = np.r_[kept[:-1], False]
    bins = bins[:, kept]
    if column.labels:
        share = np.ones(cells) if counts is None else np.maximum(counts[:cells], 0.0) + LEAST
        return Part(column, bins, False, share / share.sum())
    share = np.full(cells, 1 / cells) if counts is None else shares(counts[:cells], scale)
    waves = np.zeros((cells + 1, 0 if column.flag else cosines))
    # By the root of the shares: a value that most rows have would leave the others no room to bend.
    room = np.sqrt(share) / np.sqrt(share).sum()
    middle = np.cumsum(room) - room / 2
    for k in range(waves.shape[1]):
        waves[:cells, k] = np.cos(math.pi * (k + 1) * middle) / (k + 1)
    return Part(column, to_grid(np.column_stack([waves, bins])), True, share)


def shares(counts: Floats, scale: float) -> Floats:
    """The part of the rows in each cell, from noisy counts: what the noise may have made is left out.

    An even spread over the cells is what there is without counts. Differences to it, between cells and between ever
    larger groups of neighbours (a Haar basis), are kept as far as they stand out of the noise.

    >>> shares(np.array([10.0, 14.0, -3.0, 500.0]), 20.0).round(2).tolist()
    [0.02, 0.03, 0.0, 0.95]
    """
    total = max(float(counts.sum()), scale)
    even = total / len(counts)
    coarse = np.zeros(1 << math.ceil(math.log2(len(counts))))
    coarse[: len(counts)] = counts - even
    levels = []
    while len(coarse) > 1:
        levels.append((coarse[::2] - coarse[1::2]) / math.sqrt(2))
        coarse = (coarse[::2] + coarse[1::2]) / math.sqrt(2)
    coarse = coarse * 0.0  # the counts add up to the total
    for level in reversed(levels):
        kept = _standing_out(level, scale)
        finer = np.empty(2 * len(level))
        finer[::2], finer[1::2] = (coarse + kept) / math.sqrt(2), (coarse - kept) / math.sqrt(2)
        coarse = finer
    found = np.maximum(coarse[: len(counts)] + even, LEAST * even)
    return np.asarray(found / found.sum())


def _standing_out(level: Floats, scale: float) -> Floats:
    """Noisy differences, shrunk together as far as they are noise, but large ones by themselves."""
    squares = np.maximum(level**2, 1e-300)
    together = max(0.0, 1 - len(level) * scale**2 / float(squares.sum()))
    large = squares > 2 * scale**2 * math.log(max(len(level), 2))
    return np.asarray(level * np.maximum(together, np.where(large, 1 - scale**2 / squares, 0.0)))


def independent(parts: Sequence[Part], noisy: Floats, count: float) -> Floats:
    """Σφφᵀ of ``count`` rows, the constant first, if the columns were independent: from the noisy histogram alone.

    Entries that it cannot tell, because the column's bins were not counted, are NaN.
    """
    means, blocks, start = [np.ones(1)], [np.ones((1, 1))], 0
    for part in parts:
        column, table = part.column, part.table
        if part.slope:
            middles = np.array([-1.0, 1.0]) if column.flag else column.ends().mean(axis=1)
            table = np.column_stack([np.r_[middles, 0.0], table])
        if column.given:
            each = np.full(len(table), np.nan)
        else:
            found = np.maximum(noisy[start : start + column.cells + 1], 0.0)
            start += column.cells + 1
            missing = found[-1] if column.optional else 0.0
            each = found if column.labels else np.r_[part.share * found[:-1].sum(), missing]
            each[-1] = missing
            each = each / max(float(each.sum()), 1e-300)
        means.append(each @ table)
        blocks.append(table.T @ (each[:, None] * table))
    matrix = np.outer(np.concatenate(means), np.concatenate(means))
    start = 0
    for block in blocks:
        matrix[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    return np.asarray(count * matrix)


def towards(matrix: Floats, other: Floats, scale: float) -> tuple[Floats, float]:
    """A matrix with noise ``scale`` on its diagonal, pulled to ``other`` where noise can explain how they differ.

    Also the noise that is left, which counts as half of what it was at least: ``other`` may be wrong in what the noise
    hides. Where ``other`` is NaN or ends, the matrix stays as it is.

    >>> towards(np.array([[9.0, 0.4], [0.4, 9.0]]), np.array([[9.0, 0.0], [0.0, 9.0]]), 1.0)
    (array([[9., 0.],
           [0., 9.]]), 0.5)
    """
    aim = np.full(matrix.shape, np.nan)
    aim[: len(other), : len(other)] = other
    found, weights = matrix.copy(), np.ones(matrix.shape)
    diagonal = np.eye(len(matrix), dtype=bool)
    for entries, noise in ((~diagonal, scale / math.sqrt(2)), (diagonal, scale)):
        entries = entries & ~np.isnan(aim)
        if entries.any():
            apart = matrix[entries] - aim[entries]
            kept = _standing_out(apart, noise)
            found[entries] = aim[entries] + kept
            weights[entries] = kept / np.where(apart == 0, 1.0, apart)
    return found, scale * max(float(np.sqrt(np.mean(weights**2))), 0.5)


@dataclasses.dataclass(frozen=True, eq=False)
class Basis:
    """All functions of a row: those of each column, and the products for each pair of columns."""

    parts: tuple[Part, ...]
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def slices(self) -> list[slice]:
        """Where the functions of each column are, and then those of each pair; the constant is first."""
        widths = [part.width for part in self.parts]
        widths += [self.parts[i].few().shape[1] * self.parts[j].few().shape[1] for i, j in self.pairs]
        ends = 1 + np.cumsum(widths)
        return [slice(int(end) - width, int(end)) for end, width in zip(ends, widths, strict=True)]

    @property
    def width(self) -> int:
        """How many functions there are, with the constant."""
        return int(self.slices[-1].stop)

    def shape(self, rows: Rows) -> Shape:
        """What sensitivities are made of: by how much the longest row could move a sum."""
        squares = sum(part.norm_squared for part in self.parts)
        for i, j in self.pairs:
            one, other = ((self.parts[k].few() ** 2).sum(axis=1).max() for k in (i, j))
            squares += float(one * other)
        longest = math.sqrt(squares) * (1 + 2.0**-40)
        return dataclasses.replace(rows.shape, scalars=self.width - 1, blocks=0, norm=longest)

    def encode(self, x: Floats) -> Floats:
        """The functions of encoded rows, without the constant, on the grid. Each row by itself."""
        found = [part.encode(x) for part in self.parts]
        for i, j in self.pairs:
            one, other = (self.parts[k].few()[self.parts[k].column.places(x)] for k in (i, j))
            found.append((one[:, :, None] * other[:, None, :]).reshape(len(x), -1))
        return to_grid(np.column_stack(found))

    def rows(self, rows: Rows) -> Rows:
        """The rows of a fit, with the constant first and scaled by their weights."""
        x = np.column_stack([np.ones(len(rows)), self.encode(rows.x)])
        if rows.root is not None:
            x = to_grid(x * rows.root[:, None])
        return Rows(x, rows.y, self.shape(rows), rows.root)
