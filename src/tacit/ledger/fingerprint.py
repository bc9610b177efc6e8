"""Are these the data that were registered? A keyed fingerprint of arrays, tables and files.

A plain hash of private data reveals something about them: whoever guesses the table can check the guess. Fingerprints
here are BLAKE2b keyed with a secret that never leaves the ledger. So a fingerprint may be printed on a privacy card: it
tells an outsider nothing, and the ledger can still recognise the data.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

PREFIX = "blake2b-keyed:"


def fingerprint(data: Any, key: bytes) -> str:
    """The fingerprint of ``data`` under ``key``.

    ``data`` is a path (:class:`os.PathLike`: the file's bytes), bytes, a string of text, an array or a table (anything
    with ``__array__``: numpy, pandas, polars, a CPU tensor), or a list, tuple or mapping of these. Order matters.

    >>> fingerprint(b"a table", b"k" * 32) == fingerprint(b"a table", b"k" * 32)
    True
    >>> fingerprint(b"a table", b"k" * 32) == fingerprint(b"a table", b"K" * 32)
    False
    """
    # 16 bytes: long enough that nobody finds two tables with one fingerprint, short enough to print.
    state = hashlib.blake2b(key=key, digest_size=16, person=b"tacit data")
    _feed(state, data)
    return PREFIX + state.hexdigest()


def _feed(state: hashlib.blake2b, data: Any) -> None:
    """Every part goes in with its kind and length, so that no two different inputs are the same bytes."""
    if data is None or isinstance(data, bool | int | float | str):
        _put(state, type(data).__name__, repr(data).encode())
    elif isinstance(data, bytes | bytearray | memoryview):
        _put(state, "bytes", bytes(data))
    elif isinstance(data, os.PathLike):
        _feed_file(state, data)
    elif hasattr(data, "__array__"):
        _feed_array(state, data.__array__())
    elif isinstance(data, Mapping):
        _put(state, "mapping", str(len(data)).encode())
        for name, value in data.items():
            _feed(state, name)
            _feed(state, value)
    elif isinstance(data, list | tuple):
        _put(state, "sequence", str(len(data)).encode())
        for value in data:
            _feed(state, value)
    else:
        raise TypeError(
            f"cannot take the fingerprint of {type(data).__name__}; "
            "pass a path, bytes, an array, a table, or a list of these"
        )


def _put(state: hashlib.blake2b, kind: str, content: bytes) -> None:
    state.update(f"{kind} {len(content)}\n".encode())
    state.update(content)


def _feed_file(state: hashlib.blake2b, path: os.PathLike[Any]) -> None:
    with open(path, "rb") as file:
        _put(state, "file", str(os.fstat(file.fileno()).st_size).encode())
        while block := file.read(1 << 20):
            state.update(block)


def _feed_array(state: hashlib.blake2b, array: Any) -> None:
    _put(state, "array", f"{array.dtype.str} {array.shape}".encode())
    if array.dtype.hasobject:  # the buffer would hold addresses, which differ from run to run
        for value in array.ravel().tolist():
            if value is None or isinstance(value, bool | int | float | str | bytes):
                _feed(state, value)
            else:
                _put(state, type(value).__name__, repr(value).encode())
    else:
        state.update(array.tobytes())
