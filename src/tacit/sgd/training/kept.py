"""Which rows take part where rows are drawn and not people? At most so many of each person, chosen once for the run.

A row may belong to several people (a mail, a chat, a photo). Rows are visited in an order that nothing in them decides,
and one is kept if all its owners have fewer than the cap so far: the greedy bound. A person then owns at most that many
of the rows that are drawn, and is priced as a group of them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacit.accounting.base import SEVERAL, owner_numbers
from tacit.ledger import OperatorView
from tacit.noise.keys import Key
from tacit.noise.sampling import uniform
from tacit.sgd.training.arriving import ArrivingRecords, FirstRows, people_of
from tacit.sgd.training.config import Sampling
from tacit.sgd.training.data import Records, Table, Units, ids_of
from tacit.sgd.training.owned import StoredUnits

Numbers = npt.NDArray[np.int64]

#: The order in which rows with several owners are visited: by their numbers, mixed by a key that is no secret.
ORDER = Key(b"tacit: rows with several owners.", repeatable=True)


class KeptRows:
    """The rows of a run in which everybody owns at most ``most``.

    Guarantee: no owner has more than ``most`` of the rows, and which are kept depends on a key and on who owns what,
    never on what a row says.
    """

    #: Whether a row may have several owners.
    several: ClassVar[bool]
    most: int

    @property
    def choice(self) -> Any:
        """What tells one choice from another, beside the key."""
        raise NotImplementedError

    @property
    def there(self) -> int:
        """How many rows there are to choose from."""
        raise NotImplementedError

    @staticmethod
    def of(ids: Any, rows: int, most: int) -> KeptRows:
        """From one id, or a list of ids, for each row."""
        if not lists_owners(ids):
            return RowsOfUnits(Units.of(ids, rows), most)
        if not all(map(_is_list, ids)):
            raise ValueError("groups has a list of owners for some rows and not for others: give each row a list")
        lists = [list(dict.fromkeys(own.tolist() if isinstance(own, np.ndarray) else _plain(own))) for own in ids]
        if len(lists) != rows or not all(lists):
            raise ValueError("groups must have one id, or a list of the ids of all owners, for each row")
        flat = owner_numbers([owner for own in lists for owner in own]).astype(np.int64)
        return SharedRows(flat, np.concatenate([[0], np.cumsum([len(own) for own in lists])]), most)

    def __len__(self) -> int:
        """How many are kept. It does not depend on the key."""
        raise NotImplementedError

    def rows(self, key: Key) -> Numbers:
        """The rows that are kept."""
        raise NotImplementedError

    def choose(self, chosen: Numbers, most: int, key: Key, step: int) -> tuple[Numbers, None]:
        """The rows of these places among those that are kept."""
        known = vars(self).setdefault("_rows", {})
        name = key.fingerprint()
        if name not in known:
            known[name] = self.rows(key)
        return known[name][chosen], None

    def diagnostics(self) -> OperatorView:
        """How many rows there are and how many were left out: for the operator, not covered by the guarantee."""
        return OperatorView(rows=self.there, left_out=self.there - len(self))


@dataclasses.dataclass(frozen=True, eq=False)
class RowsOfUnits(KeptRows):
    """Rows with one owner each: the choice for one person is independent of all others.

    >>> rows = KeptRows.of(["ann", "bob", "ann", "ann"], 4, most=1)
    >>> len(rows), rows.several
    (2, False)
    """

    units: Units
    most: int
    several = False

    @property
    def choice(self) -> Any:
        return ["rows of units", *([self.units.digest] if isinstance(self.units, StoredUnits) else self._places)]

    @functools.cached_property
    def _places(self) -> tuple[Numbers, Numbers]:
        """Where the rows of each unit start, and how many are kept of all units up to it."""
        starts = self.units.starts
        return starts, np.cumsum(np.minimum(np.diff(starts), self.most))

    @property
    def there(self) -> int:
        return int(self._places[0][-1])

    def __len__(self) -> int:
        return int(self._places[1][-1])

    def rows(self, key: Key) -> Numbers:
        """Of each unit those with the least words of the key."""
        starts, _ = self._places
        whose = np.repeat(np.arange(len(self.units)), np.diff(starts))
        by_word = np.lexsort((uniform(key.derive("kept"), 0, self.there), whose))
        return self.units.order[np.sort(by_word[np.arange(self.there) - starts[whose] < self.most])]

    def choose(self, chosen: Numbers, most: int, key: Key, step: int) -> tuple[Numbers, None]:
        """As above; of units on disk only the rows of those that were drawn are read."""
        if not isinstance(self.units, StoredUnits):
            return super().choose(chosen, most, key, step)
        (starts, ends), secret = self._places, key.derive("kept")
        whose = np.searchsorted(ends, chosen, side="right")
        found = np.empty(len(chosen), np.int64)
        for k, (unit, own) in enumerate(zip(whose.tolist(), self.units.rows_of(whose), strict=True)):
            words = uniform(secret, 0, len(own), offset=int(starts[unit]))
            kept = np.sort(np.argsort(words, kind="stable")[: self.most])
            found[k] = own[kept[chosen[k] - (ends[unit] - len(kept))]]
        return found, None


@dataclasses.dataclass(frozen=True, eq=False)
class SharedRows(KeptRows):
    """Rows with several owners: row r belongs to ``order[starts[r]:starts[r + 1]]``.

    The choice for one person depends on the others, so who owns what is public, and neighbours differ in what one
    person's rows say (zero-out).

    >>> rows = KeptRows.of([["ann", "bob"], ["ann"], ["ann"], ["bob", "cat"]], 4, most=1)
    >>> len(rows), rows.several
    (2, True)
    """

    order: Numbers
    starts: Numbers
    most: int
    several = True

    @property
    def choice(self) -> Any:
        return [self.order, self.starts]

    @property
    def there(self) -> int:
        return len(self.starts) - 1

    @functools.cached_property
    def _kept(self) -> Numbers:
        visited = np.argsort(uniform(ORDER.derive("kept"), 0, self.there), kind="stable")
        counts = np.zeros(int(self.order.max()) + 1, dtype=np.int64)
        kept = []
        for row in visited.tolist():
            own = self.order[self.starts[row] : self.starts[row + 1]]
            if (counts[own] < self.most).all():
                counts[own] += 1
                kept.append(row)
        return np.sort(np.array(kept, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._kept)

    def rows(self, key: Key) -> Numbers:
        """The same with every key."""
        return self._kept


def lists_owners(ids: Any) -> bool:
    """Whether rows come with lists of ids, for several owners."""
    return hasattr(ids, "__len__") and hasattr(ids, "__iter__") and _is_list(next(iter(ids), None))


def _is_list(own: Any) -> bool:
    """Whether this is a list of ids: of Python, numpy, polars, pandas or Arrow."""
    if isinstance(own, np.ndarray):
        return own.ndim == 1
    return isinstance(_plain(own), SEVERAL)


def _plain(own: Any) -> Any:
    """A list of polars, pandas or Arrow as one of Python."""
    plain = getattr(own, "to_list", None) or getattr(own, "as_py", None)
    return own if plain is None else plain()


def drawn(groups: Any, rows: int, draw: str = "units", most: int = 1) -> int:
    """How many people, or kept rows, there are to draw from.

    >>> drawn(["ann", "bob", "ann"], 3), drawn([["ann", "bob"], ["ann"]], 2, "rows")
    (2, 1)
    """
    if groups is None:
        return rows
    return len(KeptRows.of(groups, rows, most) if draw == "rows" else Units.of(groups, rows))


def members_of(sampling: Sampling, data: Any, records: Records) -> Units | KeptRows | FirstRows | None:
    """Who is drawn, and with which rows; None where every record is a unit, because all ids differ too."""
    if isinstance(records, ArrivingRecords):
        return people_of(sampling, records)
    if sampling.groups is None:
        return None
    rows, known = len(records), None
    if isinstance(data, Table) and isinstance(sampling.groups, str):
        known = data.units(sampling.groups)
    if known is not None:
        if sampling.draw == "rows":
            return RowsOfUnits(known, sampling.max_rows)
        return known if len(known) < rows else None
    ids = ids_of(sampling.groups, data)
    if sampling.draw == "rows":
        return KeptRows.of(ids, rows, sampling.max_rows)
    if lists_owners(ids):
        raise ValueError(
            "groups has lists of ids, so rows have several owners: people cannot be drawn one by one then. Give "
            "draw='rows', with max_rows= the most rows of one person in the run"
        )
    found = Units.of(ids, rows)
    return found if len(found) < rows else None


def neighbours(members: Units | KeptRows | FirstRows | None, asked: str | None, usual: str) -> str:
    """The adjacency of a run: what was asked for, or what its sampler and owners allow."""
    if members is None or isinstance(members, Units) or not members.several:
        return asked or usual
    if asked not in (None, "zero-out"):
        raise ValueError(
            "rows have several owners, or come as a stream, so who owns what is public and neighbours differ in what "
            f"one person's rows say: adjacency='zero-out', not {asked!r}"
        )
    return "zero-out"


__all__ = ["KeptRows", "drawn", "members_of", "neighbours"]
