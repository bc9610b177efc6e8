"""How are rows trained on that do not fit in memory? From an index on disk, in which every row is equally long.

:func:`stored` copies the columns that a run needs out of Parquet or Arrow files (or out of a stream of frames) once,
file by file; a copy that was interrupted goes on with the next file. :class:`StoredRecords` then reads the rows of a
batch by number and nothing else, so memory depends on the batch and not on the number of rows.

The index holds the private rows as they are: it is as private as the files, and only its owner may read it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.ledger.fingerprint import fingerprint, former_fingerprint
from tacit.sgd.training.data import Records, Table, optional, refuse_not_finite
from tacit.sgd.training.owned import ORDER, STARTS, StoredUnits, put_in_order

ROWS, INDEX, ASIDE = "rows.bin", "index.json", "aside-{:05}.parquet"
#: Rows that are copied at a time.
AT_ONCE = 1 << 16
#: Rows closer than this, in bytes, are read together, and so much at most.
NEAR, SPAN = 1 << 14, 1 << 22
#: Distinct labels that are remembered, to be compared with the outputs of a model.
LABELS = 1 << 16
#: Bytes of an index up to which the fingerprint of its rows is taken for a ledger: that needs them in memory.
FINGERPRINTED = 1 << 28
#: Nanoseconds in which a file may change twice, and keep its times.
RECENT = 2 * 10**9
OTHER = (
    "{} is the index of other files or columns, or the files were changed since: name another folder, or remove this "
    "one"
)
PARQUET, ARROW = (".parquet", ".pq"), (".arrow", ".feather", ".ipc")

Numbers = npt.NDArray[np.int64]


class StoredRecords(Records):
    """Rows by number, read from an index when they are asked for.

    >>> import polars, tempfile
    >>> frame = polars.DataFrame({"age": [30.0, 31.0, 52.0], "ill": [1, 0, 1]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = stored(iter([frame]), target="ill", index=folder).records
    ...     rows.take(np.array([2, 0, 2]))[0].ravel().tolist()
    [52.0, 30.0, 52.0]
    """

    stored = True

    def __init__(self, folder: Path, made: dict[str, Any]) -> None:
        super().__init__(items=range(made["rows"]), scan=False)
        self.items = None  # nothing reads rows one by one
        self.path, self._made = folder / ROWS, made
        self.layout = layout_of(made["x"], made["width"], made["y"])
        if self.path.stat().st_size != self.rows * self.layout.itemsize:
            raise ValueError(f"{self.path} is not as long as its {INDEX} says: remove the folder and make it again")

    def take(self, index: Numbers | Tensor) -> tuple[Tensor, Tensor]:
        """The rows of these numbers, in their order, with repeats."""
        once, places = np.unique(np.asarray(index, dtype=np.int64), return_inverse=True)
        rows = self._read(once)[places]
        x = rows["x"].astype(np.int64) if rows["x"].dtype.kind == "i" else rows["x"].copy()
        return torch.from_numpy(x), torch.from_numpy(rows["y"].copy())

    def _read(self, rising: Numbers) -> npt.NDArray[Any]:
        """The rows of these increasing numbers: those that lie together are read together."""
        if len(rising) and not 0 <= rising[0] <= rising[-1] < self.rows:
            raise IndexError(f"the index has {self.rows} rows")
        width = self.layout.itemsize
        found = np.empty(len(rising), self.layout)
        # a new span where the next row is far, or where the span would become long
        far = np.diff(rising) * width > NEAR
        long = np.diff((rising - rising[:1]) * width // SPAN) > 0
        cuts = [0, *(np.flatnonzero(far | long) + 1).tolist(), len(rising)]
        with open(self.path, "rb", buffering=0) as file:
            for start, stop in itertools.pairwise(cuts):
                if start == stop:
                    continue
                first = int(rising[start])
                data = os.pread(file.fileno(), (int(rising[stop - 1]) + 1 - first) * width, first * width)
                found[start:stop] = np.frombuffer(data, self.layout)[rising[start:stop] - first]
        return found

    def check_finite(self) -> None:
        """Every row was looked at when it was copied."""

    def labels(self) -> Tensor | None:
        """The class numbers that occur; None where the target is no class."""
        found = self._made["labels"]
        return None if found is None else torch.tensor(found, dtype=torch.int64)

    def fingerprint(self, secret: bytes) -> str:
        """Of what was copied, by the digest that was taken then."""
        return former_fingerprint([self.rows, self._made["digest"]], secret)

    def registered_as(self, secret: bytes) -> str | None:
        """The fingerprint of the rows in any order; None where they are too many to be sorted in memory."""
        if self.rows * self.layout.itemsize > FINGERPRINTED:
            return None
        return fingerprint(tuple(leaf.numpy() for leaf in self.take(np.arange(self.rows))), secret)


def stored(
    source: Any, *, target: str, index: Any, features: Sequence[str] | None = None, exclude: Sequence[str] = ()
) -> Table:
    """The table of :func:`tacit.sgd.table` with ``index=``: made where it is not there yet, else read."""
    folder = Path(index)
    files = None if isinstance(source, Iterator) else _files(source)
    asked: dict[str, Any] = {"target": target, "features": None if features is None else list(features)}
    asked |= {"exclude": list(exclude), "files": None if files is None else [file.name for file in files]}
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"index= is a folder of its own for the copy, and {folder} is a file")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = _known(folder, asked)
    _check_files(files or [], folder, made)
    if not made["whole"]:
        parts: list[Callable[[], Iterator[Any]]] = [lambda: _put_aside(source, folder, made)]
        if files is not None:
            parts = [functools.partial(_frames, file) for file in files]
        total = None if files is None else sum(_height(file) for file in files)
        with _bar(folder, total, made["rows"]) as advance:
            for part in range(made["parts"], len(parts)):
                mark = _mark(files[part]) if files else None
                _copy(parts[part](), folder, made, advance, mark)
        if made["rows"] == 0:
            raise ValueError("the data are empty: there is no record to train on")
        _check_files(files or [], folder, made)  # nor did they change while they were copied
        made["whole"] = True
        _write(folder, made)
    files = files if files is not None else sorted(folder.glob(ASIDE.replace("{:05}", "*")))
    return Table(StoredRecords(folder, made), tuple(made["names"]), _Columns(files, folder, made))


@dataclasses.dataclass(frozen=True)
class _Columns:
    """The columns of the files, or what was put aside of a stream, for the ids of the units: read where they are asked
    for.

    Guarantee: what is read is a column of the very rows that were copied, so that every row of the index has its id.
    """

    files: Sequence[Path]
    folder: Path
    made: dict[str, Any]

    @property
    def columns(self) -> list[str]:
        return list(_schema(self.files[0])) if self.files else []

    def __getitem__(self, name: str) -> Any:
        return optional("polars", "reading a table").concat(list(self.parts(name)))

    def parts(self, name: str) -> Iterator[Any]:
        """A column a few rows at a time."""
        _check_files(self.files, self.folder, self.made)
        first: tuple[str, Any] | None = None
        for file in self.files:
            for column in (frame[name] for frame in _frames(file, [name]) if frame.height):
                first = first or (file.name, column.dtype)
                if column.dtype != first[1]:
                    raise ValueError(
                        f"column {name!r} is {first[1]} in {first[0]} and {column.dtype} in {file.name}: give it one "
                        "type in all files"
                    )
                yield column
        _check_files(self.files, self.folder, self.made)  # nor did they change while they were read

    def units(self, name: str) -> StoredUnits | None:
        """Whose each row is, from files that are made where they are not there yet; None of a column of lists."""
        stem = self.folder / f"owners-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        known = self.made.setdefault("owners", {})
        if name in known and self._unchanged(known[name], stem):
            _check_files(self.files, self.folder, self.made)
            return StoredUnits(stem, known[name]["digest"])
        if any(name in types and types[name].is_nested() for types in map(_schema, self.files)):
            return None
        digest = put_in_order(lambda: self.parts(name), stem)
        known[name] = {"digest": digest, "marks": [_mark(stem.with_suffix(end)) for end in (ORDER, STARTS)]}
        _write(self.folder, self.made)
        return StoredUnits(stem, digest)

    def _unchanged(self, known: Any, stem: Path) -> bool:
        """Whether the two files hold what was written; else they are made again."""
        if not isinstance(known, dict):  # of an earlier version, which did not ask
            return False
        for k, end in enumerate((ORDER, STARTS)):
            file = stem.with_suffix(end)
            found = _still(file, known["marks"][k]) if file.exists() else None
            if found is None:
                return False
            if found is not known["marks"][k]:
                known["marks"][k] = found
                _write(self.folder, self.made)
        return True


# -- reading files ----


def _files(source: Any) -> list[Path]:
    """The files of a path, a folder, a pattern or a list of paths, in the order of their names; none of them twice."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_dir():
            there = sorted(file for file in path.iterdir() if file.suffix.lower() in (*PARQUET, *ARROW))
            found = [file for file in there if _is_data(file)]
        else:
            found = [path] if path.exists() else sorted(map(Path, glob.glob(os.fspath(source))))
    elif isinstance(source, list | tuple):
        found = [Path(file) for file in source]
    else:
        raise TypeError(
            f"an index is made of files: a path, a folder, a pattern such as 'visits-*.parquet' or a list of paths; or "
            f"of an iterator of polars frames, not of a {type(source).__name__}"
        )
    if not found or not all(file.is_file() for file in found):
        raise FileNotFoundError(f"there is no Parquet or Arrow file at {source}")
    _refuse_odd(found)
    return found


def _refuse_odd(found: Sequence[Path]) -> None:
    """Refuse files of other kinds, caches of rows that are there already, and one file under two names."""
    if odd := next((file for file in found if file.suffix.lower() not in (*PARQUET, *ARROW)), None):
        raise ValueError(f"{odd.name}: an index is made of {', '.join((*PARQUET, *ARROW))} files")
    if odd := next((file for file in found if not _is_data(file)), None):
        raise ValueError(f"{odd.name} is no part of the data set in {odd.parent}, but a cache of it: name the folder")
    known: dict[tuple[int, int], Path] = {}
    for file in found:
        state = file.stat()
        first = known.setdefault((state.st_dev, state.st_ino), file)
        if first is not file:
            raise ValueError(f"{first.name} and {file.name} are one file: whoever is in it would count twice")


def _is_data(file: Path) -> bool:
    """Whether a file holds rows of its own: Hugging Face's ``datasets`` keeps caches of the same rows beside them."""
    listed = file.with_name("state.json")
    if not listed.exists():
        return True
    data = json.loads(listed.read_text(encoding="utf-8")).get("_data_files")
    return data is None or file.name in {one["filename"] for one in data}


def _state(file: Path) -> list[int]:
    """What a write changes in a file's entry. Its size and time of writing can be put back, as ``cp -p`` and
    ``rsync -a`` do; the time of the last change cannot."""
    state = file.stat()
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_dev, state.st_ino]


def _mark(file: Path) -> dict[str, Any]:
    """What tells a file from another: its entry and when that was looked at, and a digest of all that it holds."""
    state, now = _state(file), time.time_ns()
    with open(file, "rb") as opened:
        return {"state": state, "at": now, "digest": hashlib.file_digest(opened, "sha256").hexdigest()}


def _check_files(files: Sequence[Path], folder: Path, made: dict[str, Any]) -> None:
    """Refuse files that hold something else than when they were copied. One whose entry did not change is not read."""
    marks = made.get("marks", [])
    for k, (file, known) in enumerate(zip(files, marks, strict=False)):  # the others are not copied yet
        found = _still(file, known)
        if found is None:
            raise ValueError(f"{file.name} changed since its rows were copied. {OTHER.format(folder)}")
        if found is not known:
            marks[k] = found
            _write(folder, made)


def _still(file: Path, known: dict[str, Any]) -> dict[str, Any] | None:
    """The mark of a file that holds what it held; None of another. Where its entry did not change it is not read."""
    if _state(file) == known["state"] and known["state"][2] + RECENT < known["at"]:
        return known
    found = _mark(file)
    return found if found["digest"] == known["digest"] else None


def _is_stream(file: Path) -> bool:
    """Whether an Arrow file is a stream of messages, as Hugging Face's ``datasets`` writes them."""
    with open(file, "rb") as opened:
        return opened.read(6) != b"ARROW1"


def _height(file: Path) -> int:
    polars = optional("polars", "reading a table")
    if file.suffix.lower() in PARQUET:
        return int(polars.scan_parquet(file, glob=False).select(polars.len()).collect().item())
    return sum(frame.height for frame in _frames(file, []))


def _schema(file: Path) -> Any:
    """The columns of a file and their types; no row is read."""
    polars = optional("polars", "reading a table")
    if file.suffix.lower() in PARQUET:
        return polars.read_parquet_schema(file)
    arrow = optional("pyarrow", "reading Arrow files")
    with arrow.memory_map(os.fspath(file)) as mapped:
        opened = arrow.ipc.open_stream(mapped) if _is_stream(file) else arrow.ipc.open_file(mapped)
        return polars.from_arrow(opened.schema.empty_table()).schema


def _frames(file: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """The rows of a file a few at a time, in their order."""
    polars = optional("polars", "reading a table")
    if file.suffix.lower() in ARROW:
        arrow = optional("pyarrow", "reading Arrow files")
        with arrow.memory_map(os.fspath(file)) as mapped:
            if _is_stream(file):
                batches: Iterable[Any] = arrow.ipc.open_stream(mapped)
            else:
                opened = arrow.ipc.open_file(mapped)
                batches = (opened.get_batch(k) for k in range(opened.num_record_batches))
            for batch in batches:
                yield polars.from_arrow(batch if columns is None else batch.select(list(columns)))
        return
    lazy = polars.scan_parquet(file, glob=False, low_memory=True)
    yield from (lazy if columns is None else lazy.select(columns)).collect_batches(
        chunk_size=AT_ONCE, maintain_order=True, engine="streaming", lazy=True
    )


# -- making the index ----


def layout_of(x: str, width: list[int], y: str) -> np.dtype[Any]:
    return np.dtype([("x", x, tuple(width)), ("y", y)])


def _known(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """What is in the folder, which must be of the same files and columns; a new beginning where there is nothing."""
    path = folder / INDEX
    if path.exists():
        made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if made["asked"] != asked:
            raise ValueError(OTHER.format(folder))
        return made
    if any(folder.iterdir()):
        raise ValueError(f"{folder} holds something else than an index: name a folder of its own")
    begun = {"asked": asked, "parts": 0, "rows": 0, "digest": "", "labels": [], "whole": False}
    begun |= {"marks": [], "names": None, "x": None, "width": None, "y": None}
    _write(folder, begun)
    return begun


def _write(folder: Path, made: dict[str, Any]) -> None:
    """Whole or as it was."""
    draft = folder / f"{INDEX}.{os.getpid()}.new"  # several ranks may open one index
    with open(draft, "w", encoding="utf-8", opener=_for_the_owner) as file:
        json.dump(made, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, folder / INDEX)


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _copy(
    frames: Iterable[Any], folder: Path, made: dict[str, Any], advance: Callable[[int], None], mark: Any = None
) -> None:
    """Copy one file behind those that were copied before, then note that it is there."""
    digest = hashlib.sha256(made["digest"].encode())
    labels, rows = None if made["labels"] is None else set(made["labels"]), made["rows"]
    with open(folder / ROWS, "ab", opener=_for_the_owner) as file:
        if made["x"] is not None:
            file.truncate(rows * layout_of(made["x"], made["width"], made["y"]).itemsize)  # of a copy that broke off
        else:
            file.truncate(0)
        for frame in frames:
            if frame.height == 0:
                continue
            if made["x"] is None:
                made |= shape_of(frame, made["asked"])
            found = encoded(frame, made)
            data = found.tobytes()
            file.write(data)
            digest.update(data)
            rows += len(found)
            if labels is not None:
                labels |= set(np.unique(found["y"]).tolist())
                labels = labels if found["y"].dtype.kind == "i" and len(labels) <= LABELS else None
            advance(len(found))
        file.flush()
        os.fsync(file.fileno())
    made |= {"rows": rows, "digest": digest.hexdigest(), "parts": made["parts"] + 1}
    made["labels"] = None if labels is None else sorted(labels)
    made["marks"] += [] if mark is None else [mark]
    _write(folder, made)


def _put_aside(frames: Iterator[Any], folder: Path, made: dict[str, Any]) -> Iterator[Any]:
    """The frames of a stream. The columns that rows do not hold, such as ids, go to files: nothing else keeps them."""
    for old in folder.glob(ASIDE.replace("{:05}", "*")):  # of a copy that broke off
        old.unlink()
    made["marks"] = []
    waiting: list[Any] = []

    def put() -> None:
        file = folder / ASIDE.format(len(made["marks"]))
        with open(file, "wb", opener=_for_the_owner) as opened:
            optional("polars", "reading a table").concat(waiting).write_parquet(opened)
        made["marks"].append(_mark(file))
        waiting.clear()

    for frame in frames:
        names = [name for name in made["asked"]["exclude"] if name in frame.columns]
        aside = frame.select(name for name in names if not frame[name].dtype.is_object())
        if waiting and (aside.schema != waiting[0].schema or sum(map(len, waiting)) >= AT_ONCE):
            put()
        waiting += [aside] if aside.height else []
        yield frame
    if waiting:
        put()


def shape_of(frame: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """How a row is laid out, from the types of the first rows: numbers side by side, or one list of numbers."""
    polars = optional("polars", "reading a table")
    target, exclude = asked["target"], asked["exclude"]
    chosen = asked["features"]
    names = chosen if chosen is not None else [c for c in frame.columns if c != target and c not in exclude]
    for name in (*names, target):
        if name not in frame.columns:
            raise ValueError(f"the table has no column {name!r}; it has {', '.join(frame.columns)}")
    if not names:
        raise ValueError("the table has no column to predict from")
    kind = frame[target].dtype
    y = "<i8" if kind.is_integer() or kind == polars.Boolean else "<f4"
    lists = [name for name in names if isinstance(frame[name].dtype, polars.List | polars.Array)]
    if not lists:
        return {"names": names, "x": "<f4", "width": [len(names)], "y": y}
    if len(names) > 1:
        raise ValueError(f"column {lists[0]!r} holds lists: it must be the only feature; name it with features=")
    inner = frame[names[0]].dtype.inner
    if inner == polars.UInt8:
        x = "|u1"
    elif inner.is_integer():
        x = "<i8" if inner in (polars.Int64, polars.UInt64, polars.UInt32) else "<i4"
    else:
        x = "<f4"
    first = frame[names[0]][0]
    return {"names": names, "x": x, "width": [0 if first is None else len(first)], "y": y}


def encoded(frame: Any, made: dict[str, Any]) -> npt.NDArray[Any]:
    """The rows as the index holds them. Its errors are for the operator."""
    polars = optional("polars", "reading a table")
    layout = layout_of(made["x"], made["width"], made["y"])
    found = np.empty(frame.height, layout)
    target = made["asked"]["target"]
    for name in (*made["names"], target):
        if name not in frame.columns:
            raise ValueError(f"one of the files has no column {name!r}: all files must have the same columns")
        if frame[name].null_count():
            raise ValueError(f"column {name!r} has missing values: fill them first, with public values")
    for k, name in enumerate(made["names"]):
        column = frame[name]
        if isinstance(column.dtype, polars.List | polars.Array):
            column = column if isinstance(column.dtype, polars.List) else column.arr.to_list()
            if (column.list.len() != made["width"][0]).any():
                raise ValueError(
                    f"the lists of column {name!r} differ in length: pad them to one public length, and mask the "
                    "padding in the loss"
                )
            column = column.explode()
            found["x"] = _numbers(column, name, made["x"]).reshape(frame.height, -1)
        else:
            found["x"][:, k] = _numbers(column, name, "<f4")
    found["y"] = _numbers(frame[target], target, made["y"])
    refuse_not_finite([torch.from_numpy(found[part].copy()) for part in ("x", "y")])
    return found


def _numbers(column: Any, name: str, kind: str) -> npt.NDArray[Any]:
    polars = optional("polars", "reading a table")
    if not (column.dtype.is_numeric() or column.dtype == polars.Boolean):
        raise ValueError(
            f"column {name!r} does not hold numbers: encode it first, for instance with tacit.schema, or exclude it"
        )
    if column.null_count():
        raise ValueError(f"column {name!r} has missing values: fill them first, with public values")
    if np.dtype(kind).kind != "f" and not (column.dtype.is_integer() or column.dtype == polars.Boolean):
        raise ValueError(f"column {name!r} holds whole numbers in one file and others in another: give all one type")
    wide = column.to_numpy() if column.dtype != polars.Boolean else column.cast(polars.UInt8).to_numpy()
    with np.errstate(over="ignore"):
        cast = wide.astype(kind)
    if np.dtype(kind).kind != "f" and (cast != wide).any():
        raise ValueError(f"column {name!r} holds numbers that its first file has no room for: give all files one type")
    return np.asarray(cast)


@contextlib.contextmanager
def _bar(folder: Path, total: int | None, done: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda rows: None
        return
    rich = optional("rich.progress", "a progress bar")
    console = optional("rich.console", "a progress bar").Console(stderr=True)
    with rich.Progress(console=console) as bar:
        task = bar.add_task(f"index {folder.name}", total=total, completed=done)
        yield lambda rows: bar.advance(task, rows)


__all__ = ["StoredRecords", "encoded", "layout_of", "shape_of", "stored"]
