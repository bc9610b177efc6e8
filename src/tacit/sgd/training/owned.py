"""Whose are the rows of an index on disk? The rows of each person, in two files beside it: no id stays in memory.

The column of ids is read twice: once for the ids that occur, once for whose each row is. Then the rows are put in the
order of their owners, some owners at a time. So memory depends on how many people there are, and not on the rows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.accounting.base import owner_numbers
from tacit.sgd.training.data import Units, optional

Numbers = npt.NDArray[np.int64]
#: A column of ids, a few rows at a time; each call reads it again, from rows that did not change.
Column = Callable[[], Iterator[Any]]

ORDER, STARTS = ".order", ".starts"
#: Rows that are put in order at a time, and numbers that are read at a time.
PIECE, AT_ONCE = 1 << 21, 1 << 20


class StoredUnits(Units):
    """The rows of each unit, from two files: only those of the units that are asked for are read.

    Guarantee: the units are those of :meth:`Units.of` on the whole column, in the same order, so all rows with one id
    are one unit's.

    >>> import polars, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stem = Path(folder) / "who"
    ...     digest = put_in_order(lambda: iter([polars.Series(["bob", "ann"]), polars.Series(["bob"])]), stem)
    ...     units = StoredUnits(stem, digest)
    ...     [rows.tolist() for rows in units.rows_of(np.arange(len(units)))]
    [[1], [0, 2]]
    """

    #: How the two files begin, and the digest of both when they were made.
    stem: Path
    digest: str

    def __init__(self, stem: Path, digest: str) -> None:
        vars(self).update(stem=stem, digest=digest)

    def __len__(self) -> int:
        return self.stem.with_suffix(STARTS).stat().st_size // 8 - 1

    @property
    def starts(self) -> Numbers:
        """Where the rows of each unit start, read anew each time."""
        return np.fromfile(self.stem.with_suffix(STARTS), "<i8")

    def rows_of(self, chosen: Numbers) -> list[Numbers]:
        """All rows of each chosen unit. They are read and not mapped: what is mapped counts as memory of the run."""
        order, starts = self.stem.with_suffix(ORDER), self.stem.with_suffix(STARTS)
        with open(order, "rb", buffering=0) as rows, open(starts, "rb", buffering=0) as ends:
            found = [_numbers_at(ends.fileno(), unit, unit + 2) for unit in chosen.tolist()]
            return [_numbers_at(rows.fileno(), *pair.tolist()) for pair in found]


def _numbers_at(file: int, first: int, last: int) -> Numbers:
    return np.frombuffer(os.pread(file, 8 * (last - first), 8 * first), "<i8")


def put_in_order(column: Column, stem: Path) -> str:
    """Write the rows of each unit to two files, and say the digest of what was written. Missing ids are refused."""
    ids = _occurring(column())
    numbers = owner_numbers(ids).astype(np.int64)
    by_number = np.argsort(numbers, kind="stable")
    ids, numbers = ids[by_number], numbers[by_number]
    codes, people = stem.with_suffix(f".{os.getpid()}.new"), int(numbers[-1]) + 1
    kind, counts = np.min_scalar_type(people), np.zeros(people, np.int64)
    try:
        with open(codes, "wb", opener=_for_the_owner) as file:
            for part in column():
                given = part.to_numpy()
                at = np.minimum(np.searchsorted(ids, given), len(ids) - 1)
                if not (ids[at] == given).all():
                    raise ValueError("the ids changed while they were read")
                np.add.at(counts, numbers[at], 1)
                file.write(numbers[at].astype(kind).tobytes())
        starts = np.concatenate([[0], np.cumsum(counts)])
        first = _put(stem.with_suffix(ORDER), _ordered(codes, kind, starts))
        return hashlib.sha256((first + _put(stem.with_suffix(STARTS), [starts])).encode()).hexdigest()
    finally:
        codes.unlink(missing_ok=True)


def _occurring(parts: Iterable[Any]) -> npt.NDArray[Any]:
    """Each id that occurs, once. Many are waited for, so that those that are known are not often looked through."""
    concat = optional("polars", "reading a table").concat
    waiting: list[Any] = []
    rows = known = 0
    for part in parts:
        waiting.append(part.unique())
        rows += len(waiting[-1])
        if rows > 2 * known + AT_ONCE:
            waiting = [concat(waiting).unique()]
            rows = known = len(waiting[0])
    return np.asarray(concat(waiting).unique().to_numpy())


def _ordered(codes: Path, kind: np.dtype[Any], starts: Numbers) -> Iterator[Numbers]:
    """The rows of all units, one unit after the other, of some units at a time."""
    first, people = 0, len(starts) - 1
    while first < people:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + PIECE, side="right")) - 1)
        rows = np.empty(starts[last] - starts[first], np.int64)
        whose, found, offset = np.empty(len(rows), kind), 0, 0
        with open(codes, "rb") as file:
            while len(some := np.fromfile(file, kind, AT_ONCE)):
                at = np.flatnonzero((some >= first) & (some < last))
                rows[found : found + len(at)], whose[found : found + len(at)] = offset + at, some[at]
                found, offset = found + len(at), offset + len(some)
        yield rows[np.argsort(whose, kind="stable")]
        first = last


def _put(path: Path, parts: Iterable[Numbers]) -> str:
    """Write a file whole or not at all, and say its digest."""
    draft, digest = path.with_name(f"{path.name}.{os.getpid()}.new"), hashlib.sha256()
    with open(draft, "wb", opener=_for_the_owner) as file:
        for part in parts:
            data = part.astype("<i8").tobytes()
            file.write(data)
            digest.update(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    return digest.hexdigest()


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


__all__ = ["StoredUnits", "put_in_order"]
