"""Where are entries kept? What a store must do, and the one in memory.

For each data set, a store keeps the rows and, apart from them, the head. It appends one row at a time, and nobody else
can append between reading the last row and writing the next. Rows can be looked up by what they are about
(:func:`tacit.ledger.entries.keys_of`), so nothing but a check of the whole history reads all of it.
:mod:`tacit.ledger.sql` does this in SQLite and PostgreSQL.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tacit.ledger.entries import ChainHead, Row, chained, keys_of
from tacit.ledger.errors import CopyError, DatasetExists, UnknownDataset


@dataclasses.dataclass(frozen=True)
class Ends:
    """What a charge is granted on, however long the history is: the registration, the last two rows, and a look-up."""

    first: Row
    before: Row | None
    last: Row
    find: Callable[[str], list[Row]]


#: Given the ends of a chain, the next entry; raises to refuse it.
Decide = Callable[[Ends], dict[str, Any]]


class Already(Exception):
    """Raised by a ``Decide``: the entry was written before, as this row. Nothing is written."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row


WHY_NOT_COPIED = (
    "this ledger is in memory, and a copy in another process would grant the whole budget a second time; "
    'keep it in a file (tacit.Ledger("people.db")) or on a server (tacit.Ledger("postgresql://…")) that all share'
)


class Store(Protocol):
    """What :class:`tacit.ledger.Ledger` asks of a place to keep entries."""

    def place(self) -> str:
        """Where this is, without secrets, for messages."""

    def key(self) -> bytes:
        """The secret of the fingerprints."""

    def names(self) -> list[str]:
        """The registered data sets."""

    def rows(self, dataset: str) -> tuple[list[Row], ChainHead | None]:
        """All rows of a data set in order, and its head, read at one moment."""

    def scan(self, dataset: str) -> Iterator[Row]:
        """All rows in order, a page at a time."""

    def head(self, dataset: str) -> ChainHead | None:
        """The record of the head; :class:`UnknownDataset` where there is no such data set."""

    def ends(self, dataset: str) -> Ends:
        """The registration and the last rows, where the head is that of the last."""

    def find(self, dataset: str, keys: list[str]) -> list[Row]:
        """The rows with one of these keys, in order."""

    def page(self, dataset: str, key: str, after: int, limit: int) -> list[Row]:
        """The first rows with this key that stand after a place."""

    def owners(self, key: str) -> list[str]:
        """The data sets that have rows with this key."""

    def lost(self, dataset: str, rows: Sequence[Row]) -> list[tuple[int, str]]:
        """Which of these rows cannot be looked up by what they are about: their places and what they are about."""

    def guards(self, names: Sequence[str]) -> list[str]:
        """What is wrong with that which keeps the rows from being changed, in words."""

    def first(self, dataset: str) -> Row:
        """The registration; :class:`UnknownDataset` where there is none."""

    def create(self, dataset: str, entry: dict[str, Any]) -> Row:
        """Write the registration; :class:`DatasetExists` where there is one."""

    def append(self, dataset: str, decide: Decide) -> Row:
        """Write the entry that ``decide`` makes of the ends of the chain, as one indivisible, durable act."""


def unknown(dataset: str, names: list[str], place: str) -> UnknownDataset:
    """The error for a name that is not registered."""
    known = f"known: {', '.join(sorted(names))}" if names else "none is registered yet"
    return UnknownDataset(
        f"no data set {dataset!r} in the ledger {place}; {known}. Register it first, or mend the name. "
        "See: tacit explain not-registered"
    )


class MemoryStore:
    """Entries in a dictionary, for one process."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Row]] = {}
        self._index: dict[tuple[str, str], list[int]] = {}
        self._lock = threading.Lock()
        self._key = os.urandom(32)
        self._process = os.getpid()

    def place(self) -> str:
        """``:memory:``."""
        return ":memory:"

    def key(self) -> bytes:
        """The secret of the fingerprints, new for each ledger in memory."""
        return self._key

    def names(self) -> list[str]:
        """The registered data sets."""
        return sorted(self._rows)

    def rows(self, dataset: str) -> tuple[list[Row], ChainHead | None]:
        """All rows of a data set in order, and its head."""
        self._require(dataset)
        rows = list(self._rows[dataset])
        return rows, ChainHead(rows[-1].seq, rows[-1].hash)

    def scan(self, dataset: str) -> Iterator[Row]:
        """All rows in order."""
        return iter(self.rows(dataset)[0])

    def head(self, dataset: str) -> ChainHead | None:
        """The place and hash of the last row."""
        self._require(dataset)
        last = self._rows[dataset][-1]
        return ChainHead(last.seq, last.hash)

    def ends(self, dataset: str) -> Ends:
        """The registration and the last rows."""
        self._require(dataset)
        rows = self._rows[dataset]
        return Ends(rows[0], rows[-2] if len(rows) > 1 else None, rows[-1], lambda key: self.find(dataset, [key]))

    def find(self, dataset: str, keys: list[str]) -> list[Row]:
        """The rows with one of these keys, in order."""
        self._require(dataset)
        places = sorted({seq for key in keys for seq in self._index.get((dataset, key), ())})
        return [self._rows[dataset][seq] for seq in places]

    def page(self, dataset: str, key: str, after: int, limit: int) -> list[Row]:
        """The first rows with this key that stand after a place."""
        return [row for row in self.find(dataset, [key]) if row.seq > after][:limit]

    def owners(self, key: str) -> list[str]:
        """The data sets that have rows with this key."""
        return sorted({name for name, of in self._index if of == key})

    def lost(self, dataset: str, rows: Sequence[Row]) -> list[tuple[int, str]]:
        """Which of these rows cannot be looked up: none, nobody else reaches them."""
        return []

    def guards(self, names: Sequence[str]) -> list[str]:
        """Nothing: nobody else reaches the rows."""
        return []

    def first(self, dataset: str) -> Row:
        """The registration."""
        self._require(dataset)
        return self._rows[dataset][0]

    def create(self, dataset: str, entry: dict[str, Any]) -> Row:
        """Write the registration."""
        self._same_process()
        with self._lock:
            if dataset in self._rows:
                raise DatasetExists(f"{dataset!r} is registered already")
            return self._write(chained(dataset, None, entry))

    def append(self, dataset: str, decide: Decide) -> Row:
        """Write the entry that ``decide`` makes of the ends of the chain."""
        self._same_process()
        self._require(dataset)
        with self._lock:
            ends = self.ends(dataset)
            try:
                return self._write(chained(dataset, ends.last, decide(ends)))
            except Already as before:
                return before.row

    def _write(self, row: Row) -> Row:
        self._rows.setdefault(row.dataset, []).append(row)
        for key in keys_of(row.read()):
            self._index.setdefault((row.dataset, key), []).append(row.seq)
        return row

    def _require(self, dataset: str) -> None:
        if dataset not in self._rows:
            raise unknown(dataset, self.names(), self.place())

    def _same_process(self) -> None:
        if os.getpid() != self._process:
            raise CopyError(f"the process was forked, and {WHY_NOT_COPIED}")
