"""Are these the data that were registered? A keyed fingerprint of arrays, tables and files.

A plain hash of private data reveals something about them: whoever guesses the table can check the guess. Fingerprints
here are BLAKE2b keyed with a secret that never leaves the ledger. So a fingerprint may be printed on a privacy card: it
tells an outsider nothing, and the ledger can still recognise the data.

The order of rows does not matter, nor that of columns, nor the type in which a number is stored: the same table has the
same fingerprint as a CSV file, a Parquet file and a frame. Each row is hashed by itself, then the sorted hashes are.
"""

from __future__ import annotations

import datetime
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.accounting.errors import AccountingError, optional

PREFIX = "rows-keyed:"
#: What tacit 0.1 wrote: of bytes, in their order.
FORMER = "blake2b-keyed:"
#: How files that hold a table end, and how polars reads them.
_TABLES = {
    ".csv": "read_csv",
    ".tsv": "read_csv",
    ".parquet": "read_parquet",
    ".arrow": "read_ipc",
    ".feather": "read_ipc",
    ".jsonl": "read_ndjson",
    ".ndjson": "read_ndjson",
}
_CHUNK = 4096

Part = npt.NDArray[Any]


def fingerprint(data: Any, key: bytes) -> str:
    """The fingerprint of ``data`` under ``key``.

    ``data`` is a path (:class:`os.PathLike`) of a file or a folder, bytes, an array or a table (anything with
    ``__array__``: numpy, pandas, polars, a CPU tensor), a list, tuple or mapping of arrays with the same rows, or a
    list of records.

    >>> import numpy as np
    >>> table = np.array([[1, 20.5], [2, 30.0]])
    >>> fingerprint(table, b"k" * 32) == fingerprint(table[::-1].astype("float32"), b"k" * 32)
    True
    >>> fingerprint(table, b"k" * 32) == fingerprint(table + 1, b"k" * 32)
    False
    """
    if isinstance(data, os.PathLike):
        found = _table_of(data)
        return _of_file(data, key) if found is None else fingerprint(found, key)
    if isinstance(data, bytes | bytearray | memoryview):
        state = _hash(key, b"tacit bytes")
        state.update(bytes(data))
        return PREFIX + state.hexdigest()
    names, parts = _parts(data)
    rows = RowHashes(key, names)
    for start in range(0, max(len(parts[0]), 1), _CHUNK):
        rows.feed([part[start : start + _CHUNK] for part in parts])
    return rows.fingerprint()


def table_of(X: Any, y: Any) -> Any:
    """What a fit reads as one table: a frame and a named target are one, as a file with the target in it is.

    >>> import numpy as np
    >>> rows = np.array([[1.0], [2.0]])
    >>> fingerprint(table_of(rows, [3, 4]), b"k" * 32) == fingerprint((rows, np.array([3, 4])), b"k" * 32)
    True
    """
    named = getattr(y, "name", None)
    if hasattr(X, "columns") and isinstance(named, str) and named not in X.columns:
        return {**{str(name): X[name] for name in X.columns}, named: y}
    return X if hasattr(X, "__array__") else np.asarray(X), np.asarray(y)


def fingerprint_of_items(items: Any, key: bytes) -> str | None:
    """The fingerprint of records that are read by number; None where one is another when it is read again.

    >>> fingerprint_of_items([{"age": 3}, {"age": 4}], b"k" * 32) == fingerprint([{"age": 4}, {"age": 3}], b"k" * 32)
    True
    """
    if len(items) and _record(items[0]) != _record(items[0]):
        return None
    rows = RowHashes(key)
    for start in range(0, max(len(items), 1), _CHUNK):
        some = range(start, min(start + _CHUNK, len(items)))
        rows.feed([_array([_record(items[i]) for i in some])])
    return rows.fingerprint()


class RowHashes:
    """The fingerprint of rows that come a few at a time.

    >>> import numpy as np
    >>> rows = RowHashes(b"k" * 32)
    >>> rows.feed([np.array([[1.0, 2.0]])])
    >>> rows.feed([np.array([[3.0, 4.0]])])
    >>> rows.fingerprint() == fingerprint(np.array([[3, 4], [1, 2]]), b"k" * 32)
    True
    """

    def __init__(self, key: bytes, names: Sequence[str] = ()) -> None:
        self._key, self._names = key, names
        self._digests: list[bytes] = []

    def feed(self, parts: Sequence[Part]) -> None:
        """Take some rows, as arrays with one row for each: all that belongs to a row is hashed together."""
        texts = [part for part in parts if part.dtype.hasobject or part.dtype.kind in "USMm"]
        numbers = [_bytes_of(part) for part in parts if not any(part is text for text in texts)]
        fixed = np.concatenate(numbers, axis=1) if numbers else np.zeros((len(parts[0]), 0), np.uint8)
        rest = _rest([part for part in parts if part.dtype.kind in "iu"])
        width, flat = fixed.shape[1], memoryview(np.ascontiguousarray(fixed).reshape(-1).data)
        start = _hash(self._key, b"tacit row")
        for i in range(len(fixed)):
            state = start.copy()
            state.update(flat[i * width : (i + 1) * width])
            if i in rest:
                state.update(rest[i])
            for part in texts:
                # one cell of a column stays one, also where it holds a list
                cells = part[i].ravel().tolist() if part.ndim > 1 else [part[i : i + 1].tolist()[0]]
                for value in cells:
                    text = _text(value)
                    state.update(len(text).to_bytes(8, "big") + text)
            self._digests.append(state.digest())

    def fingerprint(self) -> str:
        """The fingerprint of all rows so far, whatever their order."""
        state = _hash(self._key, b"tacit rows")
        state.update(repr((len(self._digests), list(self._names))).encode())
        for digest in sorted(self._digests):
            state.update(digest)
        return PREFIX + state.hexdigest()


def _hash(key: bytes, person: bytes) -> hashlib.blake2b:
    # 16 bytes: long enough that nobody finds two tables with one fingerprint, short enough to print.
    return hashlib.blake2b(key=key, digest_size=16, person=person)


def _of_file(path: os.PathLike[Any], key: bytes) -> str:
    if os.path.isdir(path):
        return _of_folder(Path(path), key)
    state = _hash(key, b"tacit file")
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return PREFIX + state.hexdigest()


def _of_folder(folder: Path, key: bytes) -> str:
    """Of all files in a folder that is no table: of the name and the fingerprint of each."""
    state = _hash(key, b"tacit folder")
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        state.update(repr((file.relative_to(folder).as_posix(), fingerprint(file, key))).encode())
    return PREFIX + state.hexdigest()


def _table_of(path: os.PathLike[Any]) -> Any:
    """The frame in a file, or in the Parquet files of a folder; None where it is no table that can be read here."""
    name = str(os.fspath(path)).lower()
    source: Any = os.fspath(path)
    reader = next((reader for ending, reader in _TABLES.items() if name.endswith(ending)), None)
    if os.path.isdir(path):  # as a fit reads a folder
        source = sorted(Path(path).glob("*.parquet"))
        reader = "read_parquet" if source else None
    if reader is None:
        return None
    try:
        polars = optional("polars")
    except AccountingError:  # without polars, a table is its bytes
        return None
    more: dict[str, Any] = {"infer_schema_length": None} if reader in ("read_csv", "read_ndjson") else {}
    if reader == "read_parquet":
        more["glob"] = False  # a name is a name, also with brackets in it
    if name.endswith(".tsv"):
        more["separator"] = "\t"
    try:
        return getattr(polars, reader)(source, **more)
    except polars.exceptions.PolarsError:  # not the table that its name promises: then its bytes
        return None


def _parts(data: Any) -> tuple[list[str], list[Part]]:
    """The data as arrays with the same rows, in an order of their own; the names of those that have one."""
    names, parts = _split(data)
    if len({len(part) for part in parts}) > 1:
        raise TypeError("cannot take the fingerprint of columns with different numbers of rows")
    return names, parts or [np.zeros((0, 0))]


def _split(data: Any) -> tuple[list[str], list[Part]]:
    if hasattr(data, "columns") and hasattr(data, "__getitem__"):  # a frame
        data = {str(name): data[name] for name in data.columns}
    if isinstance(data, Mapping):
        named = {str(name): value for name, value in data.items()}
        return sorted(named), [_array(named[name]) for name in sorted(named)]
    if isinstance(data, list | tuple):
        if _aligned(data):
            inner = [_split(value) for value in data]
            names = [f"{i}.{name}" for i, (some, _) in enumerate(inner) for name in some]
            return names, [part for _, some in inner for part in some]
        return [], [_array([_record(value) for value in data])]  # records, one after the other
    if hasattr(data, "__array__"):
        return [], [_unnamed(_array(data))]
    raise TypeError(
        f"cannot take the fingerprint of {type(data).__name__}; "
        "pass a path, bytes, an array, a table, or a list of these"
    )


def _aligned(data: Sequence[Any]) -> bool:
    """Whether these are arrays with the same number of rows, and not records."""
    if not data or not all(hasattr(value, "__array__") for value in data):
        return False
    shapes = [np.shape(value) if not hasattr(value, "shape") else tuple(value.shape) for value in data]
    return all(shapes) and len({shape[0] for shape in shapes}) == 1


def _array(data: Any) -> Part:
    """An array with one row for each: numbers as 64-bit floats where they are the same numbers."""
    if isinstance(data, list):
        found = np.empty(len(data), dtype=object)
        found[:] = data
    else:
        if hasattr(data, "detach"):  # a tensor, on any device and of any type
            data = data.detach().cpu()
            data = data.float() if str(data.dtype) == "torch.bfloat16" else data
        found = np.asarray(data)
    found = found.reshape(1) if found.ndim == 0 else found
    if found.dtype.hasobject:
        try:
            values = found.ravel().tolist()
            if all(isinstance(v, bool | int | float | np.number) for v in values):
                if not any(isinstance(v, int) and abs(v) > 2**53 for v in values):
                    found = found.astype(np.float64)
                elif all(isinstance(v, int) for v in values):
                    found = found.astype(np.int64)
        except (OverflowError, ValueError):
            return found
    return found


def _bytes_of(part: Part) -> npt.NDArray[np.uint8]:
    """The bytes of each row, the same whatever the type in which the numbers are stored."""
    flat = part.reshape(len(part), -1)
    exact: Part = flat
    if flat.dtype.kind in "biuf":
        exact = flat.astype(np.float64) + 0.0  # -0 and 0 are one number
        exact[np.isnan(exact)] = np.nan
    return np.ascontiguousarray(exact).view(np.uint8).reshape(len(part), -1)


def _rest(parts: Sequence[Part]) -> dict[int, bytes]:
    """For each row with integers that no 64-bit float is: what is missing, whatever stands in the other rows."""
    found: dict[int, bytes] = {}
    for number, part in enumerate(parts):
        flat = part.reshape(len(part), -1)
        if flat.size == 0 or not (flat.max() > 2**53 or flat.min() < -(2**53)):
            continue
        for i, j in zip(*np.nonzero((flat > 2**53) | (flat < -(2**53))), strict=True):
            value = int(flat[i, j])
            if missing := value - int(float(value)):
                found[int(i)] = found.get(int(i), b"") + repr((number, int(j), missing)).encode()
    return found


def _unnamed(array: Part) -> Part:
    """A table without names, its columns in an order that depends on what they hold and not on where they stand."""
    if array.ndim != 2 or array.shape[1] < 2 or array.dtype.kind not in "biuf" or not len(array):
        return array
    marks = np.zeros(array.shape[1], np.uint64)
    for start in range(0, len(array), _CHUNK):
        bits = (array[start : start + _CHUNK].astype(np.float64) + 0.0).view(np.uint64)
        # A mark is only for sorting: two columns with one mark keep their order.
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        marks += (bits ^ (bits >> np.uint64(31))).sum(axis=0, dtype=np.uint64)
    return array[:, np.argsort(marks, kind="stable")]


def _record(value: Any) -> str:
    """One record of a list as text, its parts in their order."""
    if isinstance(value, list | tuple):
        return "(" + ",".join(_record(v) for v in value) + ")"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_record(value[name])}" for name in sorted(value, key=str)) + "}"
    if hasattr(value, "__array__"):
        array = _array(value)
        row = array.reshape(1, -1)
        rest = _rest([row] if array.dtype.kind in "iu" else []).get(0, b"")
        return f"{array.shape}{_bytes_of(row).tobytes().hex()}{rest.hex()}"
    if hasattr(value, "__array_interface__"):  # a picture
        return _record(np.asarray(value))
    if value is None or isinstance(value, str | bytes | bool | int | float | datetime.date | datetime.timedelta):
        return _text(value).decode("utf-8", "surrogateescape")
    raise TypeError(f"cannot take the fingerprint of {type(value).__name__}: give arrays, numbers and texts")


def _text(value: Any) -> bytes:
    """One value of a column of texts or objects."""
    if value is None or (isinstance(value, float) and value != value):
        return b"null"
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, bool | int | float):
        return f"n{float(value)!r}".encode() if abs(value) <= 2**53 else f"n{value!r}".encode()
    if isinstance(value, list | tuple | Mapping | np.ndarray):
        return b"l" + _record(value).encode("utf-8", "surrogateescape")
    return b"s" + str(value).encode("utf-8", "surrogateescape")


# -- what tacit 0.1 wrote ----------------------------------------------------------------------------------------------


def former_fingerprint(data: Any, key: bytes) -> str:
    """The fingerprint that tacit 0.1 registered: of bytes, types and order. Data are still recognised by it.

    >>> former_fingerprint(b"a table", b"k" * 32) == former_fingerprint(b"a table", b"k" * 32)
    True
    """
    state = hashlib.blake2b(key=key, digest_size=16, person=b"tacit data")
    _feed(state, data)
    return FORMER + state.hexdigest()


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
    if os.path.isdir(path):  # tacit 0.1 registered no folder, so this is the fingerprint of nothing that it knew
        return _put(state, "folder", b"")
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
