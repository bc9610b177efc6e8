"""What does one line of the ledger look like, and how does a later reader know that nobody changed it?

Every entry is one JSON object in canonical form (sorted keys, no spaces, shortest floats) that names its data set,
its place in the sequence and the hash of the entry before it; its own hash is the SHA-256 of those bytes. Changing,
deleting, inserting or moving an entry breaks the chain at that place, and the head (the newest hash), once it is
printed somewhere else, fixes the whole history before it. Every entry also names the hash of the registration, its
root: the newest entry is enough to see that the terms are the ones it was granted under.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

#: What the first entry of a data set names as the hash before it.
START = "0" * 64
#: Version of the entries' form; an entry with a larger one is refused. Entries of form 1 carry neither root nor state.
FORMAT = 2


@dataclasses.dataclass(frozen=True)
class Row:
    """One stored entry: where it stands, its exact text, and its hash."""

    dataset: str
    seq: int
    body: str
    hash: str

    @property
    def head(self) -> ChainHead:
        """The head of a chain that ends here."""
        return ChainHead(self.seq, self.hash)

    def read(self) -> dict[str, Any]:
        """The entry as a dictionary."""
        entry = json.loads(self.body)
        if not isinstance(entry, dict):
            raise ValueError("an entry is a JSON object")
        return entry


@dataclasses.dataclass(frozen=True)
class ChainHead:
    """The newest place and hash of a data set, which the store keeps apart from the entries."""

    seq: int
    hash: str


def canonical(entry: dict[str, Any]) -> str:
    """The one text of an entry.

    >>> canonical({"b": 1e-5, "a": [1, None]})
    '{"a":[1,null],"b":1e-05}'
    """
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(body: str) -> str:
    """SHA-256 of an entry's text."""
    return hashlib.sha256(body.encode("utf-8")).hexdigest()


def chained(dataset: str, last: Row | None, entry: dict[str, Any]) -> Row:
    """The row that follows ``last`` and holds ``entry``.

    >>> first = chained("people", None, {"kind": "register"})
    >>> chained("people", first, {"kind": "reserve"}).read()["previous"] == first.hash
    True
    """
    seq = 0 if last is None else last.seq + 1
    previous = START if last is None else last.hash
    root = entry.get("root") or (None if last is None else root_of(last))
    bound = {} if root is None else {"root": root}
    body = canonical({**entry, **bound, "format": FORMAT, "dataset": dataset, "seq": seq, "previous": previous})
    return Row(dataset, seq, body, digest(body))


def root_of(row: Row) -> str | None:
    """The hash of the registration that an entry follows; None for an entry of form 1, which does not say."""
    return row.hash if row.seq == 0 else row.read().get("root")


def keys_of(entry: dict[str, Any]) -> list[str]:
    """What an entry can be looked up by, without reading the others: its charge, its request, its data.

    >>> keys_of({"kind": "reserve", "charge": "3f"})
    ['charge:3f', 'reserve']
    """
    keys = [f"charge:{entry['charge']}"] if "charge" in entry else []
    if entry["kind"] in ("reserve", "draw"):
        keys.append("reserve")
    if entry["kind"] in CHANGES:
        keys.append("change")
    if "request" in entry:
        keys.append(f"request:{entry['request']['key']}")
    fingerprint = entry["terms"].get("fingerprint") if entry["kind"] == "register" else entry.get("fingerprint")
    return keys + ([f"data:{fingerprint}"] if fingerprint else [])


#: The kinds of entries that change a budget or its data, and are no charge.
CHANGES = ("register", "budget", "data", "version", "key", "migrate")


def chain_problems(dataset: str, rows: Iterable[Row], head: ChainHead | None) -> list[str]:
    """Every place where the chain of one data set does not hold, in words; an empty list where it does.

    Args:
        dataset: The name of the data set.
        rows: Its rows in the order of their places.
        head: The record of the head.
    """
    problems: list[str] = []
    expected, previous = 0, START
    last: Row | None = None
    for row in rows:
        if row.seq > expected:
            missing = f"entry {expected} is" if row.seq == expected + 1 else f"entries {expected} to {row.seq - 1} are"
            problems.append(f"{dataset}: {missing} missing (deleted)")
        problems += _row_problems(dataset, row, previous if row.seq == expected else None)
        expected, previous, last = row.seq + 1, row.hash, row
    if head is None:
        problems.append(f"{dataset}: the record of its head is missing")
    elif last is None or head.seq > last.seq:
        first = 0 if last is None else last.seq + 1
        problems.append(f"{dataset}: entries {first} to {head.seq} are missing at the end (deleted)")
    elif head.seq < last.seq:
        problems.append(f"{dataset}: entries {head.seq + 1} to {last.seq} were inserted at the end")
    elif head.hash != last.hash:
        problems.append(f"{dataset}: entry {last.seq} is not the one that was written last (its hash is not the head)")
    return problems


def _row_problems(dataset: str, row: Row, previous: str | None) -> list[str]:
    if digest(row.body) != row.hash:
        return [f"{dataset}: entry {row.seq} was changed (its text does not give its hash)"]
    try:
        entry = row.read()
    except ValueError:
        return [f"{dataset}: entry {row.seq} is not an entry (not a JSON object)"]
    if entry.get("dataset") != dataset:
        return [f"{dataset}: entry {row.seq} belongs to data set {entry.get('dataset')!r} (moved here)"]
    if entry.get("seq") != row.seq:
        return [f"{dataset}: the entry at place {row.seq} was written at place {entry.get('seq')} (moved or inserted)"]
    if previous is not None and entry.get("previous") != previous:
        why = "one of the two was replaced, inserted or moved"
        return [f"{dataset}: entry {row.seq} does not follow the entry before it ({why})"]
    return []


# -- exact sums -------------------------------------------------------------------------------------------------------

#: A sum kept without rounding: floats that do not overlap, whose exact sum is the value (Shewchuk 1997).
Exact = list[float]


def add(total: Sequence[float], value: float) -> Exact:
    """The exact sum, as non-overlapping floats: a thousand charges add up without a thousand roundings.

    >>> total = []
    >>> for _ in range(10):
    ...     total = add(total, 0.1)
    >>> value(total)
    1.0
    """
    if math.isinf(value) or any(math.isinf(part) for part in total):
        return [math.inf]
    parts: Exact = []
    for part in total:
        big, small = (value, part) if abs(value) >= abs(part) else (part, value)
        high = big + small
        low = small - (high - big)
        if low:
            parts.append(low)
        value = high
    return [*parts, value] if value else parts


def value(total: Sequence[float]) -> float:
    """The exact sum, correctly rounded to one float."""
    return math.fsum(total)


def encode(number: float) -> float | str:
    """A float for JSON; infinity is the string ``"inf"``."""
    return "inf" if math.isinf(number) else float(number)


def decode(number: float | str) -> float:
    """Reads what :func:`encode` wrote."""
    return float(number)
