"""Which person is with which teacher? Disjoint parts, so that one person's data reach one teacher only.

A keyed hash of a person's id decides their teacher, and nobody else's presence changes it: adding or removing one
person changes one part. Dealing by place in the table gives parts of equal size, but adding one person shifts everybody
behind them, so only replacing one person is covered. The card says which.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.noise import Key

PARTITIONS = ("keyed", "positions")


def keyed(who: Any, parts: int, key: Key) -> NDArray[np.int64]:
    """The part of every row, by a keyed hash (BLAKE2b) of whom the row is about.

    Guarantee: the part of a row depends on its own ``who`` and the key alone, so all rows of one person are in one part
    and adding or removing a person changes that part only. The key is secret, so that nobody can aim at a part.

    >>> key = Key(bytes(32))
    >>> all_of_them = keyed(["ann", "bob", "ann", "cy"], 5, key)
    >>> bool((all_of_them[[0, 2, 3]] == keyed(["ann", "ann", "cy"], 5, key)).all())
    True
    """
    known: dict[str, int] = {}
    result = np.empty(len(who), np.int64)
    for row, person in enumerate(who):
        name = _name(person)
        if name not in known:
            words = key.stream("partition", 0, name)
            known[name] = (int(words[0]) | int(words[1]) << 32) % parts
        result[row] = known[name]
    return result


def positions(people: Any, parts: int) -> NDArray[np.int64]:
    """The part of every row by the place at which its person first occurs: parts of equal numbers of people.

    >>> positions(["ann", "bob", "ann", "cy"], 2).tolist()
    [0, 1, 0, 0]
    """
    place: dict[str, int] = {}
    return np.array([place.setdefault(_name(person), len(place)) % parts for person in people], dtype=np.int64)


def contents(x: Any, y: Any) -> list[bytes]:
    """A name for every record made of what it holds, for data without people's identifiers: equal records, one name.

    The place of a record in the table is no name: adding a record before it would change it. Nor is how a table keeps
    it: one long text, or one missing number, changes the type of a whole column, and would rename everybody. So numbers
    are named by their value in binary64, and texts by their letters.
    """
    rows = _as_rows(x)
    labels = _as_rows(y)
    return [hashlib.sha256(rows[i] + b"|" + labels[i]).digest() for i in range(len(rows))]


def _as_rows(data: Any) -> list[bytes]:
    if hasattr(data, "detach"):
        data = data.detach().cpu().numpy()
    elif hasattr(data, "to_numpy"):
        data = data.to_numpy()
    return [_row(value) for value in data]


def _row(value: Any) -> bytes:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "biuf":
            return np.ascontiguousarray(value, dtype="<f8").tobytes()
        if value.dtype.kind in "OUS":
            return b"".join(_row(v) for v in value.ravel().tolist())
        return str(value.dtype).encode() + value.tobytes()
    if isinstance(value, list | tuple):
        return b"[" + b",".join(_row(v) for v in value) + b"]"
    if isinstance(value, np.void):  # a row of a structured array
        return _row(value.item())
    if isinstance(value, np.datetime64 | np.timedelta64 | np.complexfloating):
        return str(value.dtype).encode() + value.tobytes()
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return np.array(float(value), dtype="<f8").tobytes()
    if value is None or isinstance(value, str | bytes | np.generic):
        return _name(value).encode()
    raise TypeError(
        f"a record of type {type(value).__name__} cannot be identified by its contents: pass groups=, one id per record"
    )


def _name(person: Any) -> str:
    """An identifier with its type, so that 1 and "1" are two people and numpy's 1 is Python's, and so is 1.0.

    (A column of whole numbers becomes one of floating-point numbers when one of them is missing.)
    """
    value = person.item() if hasattr(person, "item") else person
    if isinstance(value, bytes):
        return f"bytes:{value.hex()}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or isinstance(value, str | bool | int | float):
        return f"{type(value).__name__}:{value!r}"
    raise TypeError(f"an id must be a text, a number or bytes, not {type(value).__name__}")
