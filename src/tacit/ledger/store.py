"""Where are entries kept? What a store must do, and the one in memory.

For each data set, a store keeps the rows and, apart from them, the head. It appends one row at a time, and nobody else
can append between reading the last row and writing the next. :mod:`tacit.ledger.sql` does this in SQLite and
PostgreSQL.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from tacit.ledger.entries import ChainHead, Row, chained
from tacit.ledger.errors import CopyError, DatasetExists, UnknownDataset

#: Given the last row, the next entry; raises to refuse it.
Decide = Callable[[Row], dict[str, Any]]

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

    def first(self, dataset: str) -> Row:
        """The registration; :class:`UnknownDataset` where there is none."""

    def create(self, dataset: str, entry: dict[str, Any]) -> Row:
        """Write the registration; :class:`DatasetExists` where there is one."""

    def append(self, dataset: str, decide: Decide) -> Row:
        """Write the entry that ``decide`` makes of the last row, as one indivisible, durable act."""


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
            row = chained(dataset, None, entry)
            self._rows[dataset] = [row]
            return row

    def append(self, dataset: str, decide: Decide) -> Row:
        """Write the entry that ``decide`` makes of the last row."""
        self._same_process()
        self._require(dataset)
        with self._lock:
            last = self._rows[dataset][-1]
            row = chained(dataset, last, decide(last))
            self._rows[dataset].append(row)
            return row

    def _require(self, dataset: str) -> None:
        if dataset not in self._rows:
            raise unknown(dataset, self.names(), self.place())

    def _same_process(self) -> None:
        if os.getpid() != self._process:
            raise CopyError(f"the process was forked, and {WHY_NOT_COPIED}")
