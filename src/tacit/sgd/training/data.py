"""How do records of any kind become batches of one shape?

:class:`Records` gives rows by number, from tensors and arrays, from a map-style ``torch.utils.data.Dataset``, or from a
table (Parquet, polars). :class:`Batch` is what a step takes: the units that were drawn, cut into physical batches
that are padded to one static shape, with a mask that marks the real units.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from tacit.accounting.base import owner_numbers
from tacit.ledger.fingerprint import fingerprint, fingerprint_of_items, former_fingerprint
from tacit.noise.keys import Key
from tacit.noise.sampling import uniform
from tacit.sgd.gradients.batches import Loss, plain, row_losses
from tacit.sgd.torch_compat import pytree

Numbers = npt.NDArray[np.int64]

#: How many items of a map-style data set are read for its fingerprint where it is not scanned.
SAMPLED_ITEMS = 64


def optional(package: str, purpose: str) -> Any:
    """A package that tacit.sgd does not need to be imported, with an error that says what it is for."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        name = {"sklearn": "scikit-learn"}.get(package.partition(".")[0], package.partition(".")[0])
        raise ModuleNotFoundError(f"{purpose} needs {name}: pip install {name}", name=error.name) from error


class Records:
    """Rows by number. ``tree`` holds tensors with the records in the first dimension; else ``items`` gives one each."""

    #: whether rows are read from disk when they are asked for (:mod:`tacit.sgd.training.stored`)
    stored = False
    #: whether rows come one after the other, and no row twice (:mod:`tacit.sgd.training.arriving`)
    arriving = False

    def __init__(self, tree: Any = None, items: Any = None, scan: bool = True) -> None:
        self.tree, self.items, self.scan = tree, items, scan
        self._survey: Survey | None = None
        if tree is not None:
            sizes = {len(leaf) if leaf.dim() else -1 for leaf in _tensors(tree)}
            if len(sizes) != 1 or -1 in sizes:
                raise ValueError(
                    "all arrays of the data must have the same number of rows" if sizes else "the data hold no array"
                )
            self.rows = int(sizes.pop())
        else:
            self.rows = len(items)
        if self.rows == 0:
            raise ValueError("the data are empty: there is no record to train on")

    def __len__(self) -> int:
        return self.rows

    @property
    def named_by(self) -> Any:
        """What a map-style data set is recognised by in a later process, beside its fingerprint."""
        return type(self.items)

    def begin(self, rows: Numbers) -> None:
        """A step's batch of these rows follows."""

    def take(self, index: Numbers | Tensor) -> Any:
        """The rows of these numbers, as a tree of tensors. With numbers in pinned memory no GPU is waited for."""
        if self.tree is None:
            numbers = [int(i) for i in index]
            once = list(dict.fromkeys(numbers))  # what fills the empty places of a batch is not read again
            many = getattr(self.items, "__getitems__", None)
            items = dict(zip(once, many(once) if many is not None else map(self.items.__getitem__, once), strict=True))
            found = [items[i] for i in numbers]
            try:
                batch = plain(default_collate(found))
            except RuntimeError as error:
                if "equal size" not in str(error):
                    raise
                raise ValueError(
                    "the records have tensors of different sizes: let the data set pad them to one public length, and "
                    "mask the padding in the loss"
                ) from error
            return tuple(batch) if isinstance(batch, list) else batch
        where = index if isinstance(index, Tensor) else torch.from_numpy(np.ascontiguousarray(index))
        if type(self.tree) is tuple and all(isinstance(t, Tensor) for t in self.tree):
            there = {device: where.to(device, non_blocking=True) for device in {t.device for t in self.tree}}
            return tuple([t.index_select(0, there[t.device]) for t in self.tree])
        there = {device: where.to(device, non_blocking=True) for device in {t.device for t in _tensors(self.tree)}}
        return pytree.tree_map_only(Tensor, lambda t: t.index_select(0, there[t.device]), self.tree)

    @property
    def on_gpu(self) -> bool:
        """Whether the records are tensors, and any of them is there."""
        return self.tree is not None and any(t.is_cuda for t in _tensors(self.tree))

    def check_finite(self) -> None:
        """Refuse NaN and infinite inputs. The error tells something about the data: it is for the operator only.

        Every item of a map-style data set is read once for this, unless it was made with ``scan=False``: then a record
        whose gradient is not finite counts as zero.
        """
        if self.tree is not None:
            refuse_not_finite(self.tree)
        elif self.scan:
            self.survey()

    def survey(self) -> Survey:
        """What one pass over the items of a map-style data set says: done once, and only where there is no array."""
        if self._survey is None:
            self._survey = _survey(self)
        return self._survey

    def labels(self) -> Tensor | None:
        """The class numbers that occur in ``(inputs, labels)`` records; None where there are none."""
        if self.tree is not None:
            pair = isinstance(self.tree, tuple) and len(self.tree) == 2 and isinstance(self.tree[1], Tensor)
            return self.tree[1] if pair and not self.tree[1].is_floating_point() else None
        return self.survey().labels if self.scan else None

    def fingerprint(self, secret: bytes) -> str:
        """A keyed fingerprint of the data.

        Of a map-style data set: of all its items, where reading them twice gives the same twice; of its length
        alone where they are drawn anew each time (random augmentation); of a few items with ``scan=False``.
        """
        if self.tree is not None:
            return former_fingerprint([_array(leaf) for leaf in _tensors(self.tree)], secret)
        if self.scan:
            return former_fingerprint([self.rows, self.survey().digest], secret)
        chosen = np.unique(np.linspace(0, self.rows - 1, SAMPLED_ITEMS).astype(np.int64))
        read = [[_array(leaf) for leaf in _tensors(self.take(chosen[i : i + 1]))] for i in range(len(chosen))]
        return former_fingerprint([self.rows, read], secret)

    def registered_as(self, secret: bytes) -> str | None:
        """The fingerprint of the rows in any order, as a ledger registers it.

        None for a map-style data set that draws its items anew each time, or is not scanned: it has none.
        """
        if self.tree is not None:
            return fingerprint(tuple(_numbers(leaf) for leaf in _tensors(self.tree)), secret)
        return fingerprint_of_items(self.items, secret) if self.scan else None


@dataclasses.dataclass(frozen=True)
class Survey:
    """One pass over a map-style data set: the class numbers that occur, and a digest of what was read. Private."""

    labels: Tensor | None
    digest: str


def _survey(source: Records, chunk: int = 256) -> Survey:
    digest, labels, whole = hashlib.sha256(), torch.zeros(0, dtype=torch.int64), True
    for start in range(0, len(source), chunk):
        batch = source.take(np.arange(start, min(start + chunk, len(source))))
        refuse_not_finite(batch)
        for leaf in _tensors(batch):
            digest.update(_array(leaf).tobytes())
        pair = isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[1], Tensor)
        whole = whole and pair and not batch[1].is_floating_point() and batch[1].dim() == 1
        if whole:
            labels = torch.unique(torch.cat([labels, batch[1].cpu().long()]))
    again = [source.take(np.zeros(1, dtype=np.int64)) for _ in range(2)]
    same = all(np.array_equal(_array(a), _array(b)) for a, b in zip(*map(_tensors, again), strict=True))
    return Survey(labels if whole else None, digest.hexdigest() if same else "drawn anew")


def refuse_not_finite(tree: Any) -> None:
    """Refuse NaN and infinite values. The error tells something about the data: it is for the operator only."""
    for leaf in _tensors(tree):
        if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
            raise ValueError(
                "the data contain NaN or infinite values: fill or remove them first. (This message is about private "
                "data: it is for the operator and must not be published.) See: tacit explain not-finite"
            )


def _tensors(tree: Any) -> list[Tensor]:
    # what most data are; this is asked at every step
    if type(tree) is tuple and all(isinstance(leaf, Tensor) for leaf in tree):
        return list(tree)
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


#: Bytes of a tensor up to which a copy in pinned memory is made; torch keeps such memory, in powers of two.
PINNED = 1 << 28


def _pinned(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if tensor.numel() * tensor.element_size() <= PINNED else tensor


@functools.lru_cache(maxsize=8)
def _places(physical: int, device: torch.device) -> Tensor:
    """The places of a physical batch, 0, 1, 2, …"""
    return torch.arange(physical, device=device)


def _numbers(tensor: Tensor) -> npt.NDArray[Any]:
    """The numbers of a tensor, whatever type holds them."""
    tensor = tensor.detach().cpu()
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return np.asarray(tensor.numpy())


def records(data: Any, dtype: torch.dtype = torch.float32, *, scan: bool = True) -> Records:
    """Make rows by number out of data in any usual form.

    :class:`Training` calls it on its data. Call it yourself to leave out the scan of a large data set.

    Args:
        data: Tensors, arrays, pandas or polars frames as ``(features, target)``, dicts or tuples of these, a map-style
            ``Dataset``, or a list of items.
        dtype: The floating type of the model, to which numpy arrays are converted. Tensors stay as they are. Default:
            float32.
        scan: Whether to read every item of a map-style ``Dataset`` once before training, to refuse NaN and impossible
            labels and to recognise the data on resume. Default: ``True``.

    Returns:
        The records, for :class:`Training` or :func:`fit`.

    Raises:
        TypeError: If the data cannot be read by row number, such as a ``DataLoader`` or a stream, or do not say which
            column is the target.

    Example:
        >>> len(records((np.zeros((5, 3)), np.zeros(5, dtype=int))))
        5
    """
    if isinstance(data, Records):
        return data
    if isinstance(data, IterableDataset | Iterator):
        raise TypeError(
            "the data must be readable by row number, and a stream is not: pass tensors or a map-style Dataset"
        )
    if isinstance(data, torch.utils.data.DataLoader):
        raise TypeError(
            "pass the data set itself (loader.dataset), not a DataLoader: its batches are not those that are priced. "
            "See: tacit explain data-loader"
        )
    if isinstance(data, TensorDataset):
        return Records(tree=tuple(data.tensors))
    if isinstance(data, str | os.PathLike) or hasattr(data, "get_columns"):
        raise TypeError("say which columns are features and which is the target: tacit.sgd.table(data, target=...)")
    if _is_frame(data):
        raise TypeError(
            "say which columns are features and which is the target: pass (frame[features], frame[target]), or use "
            "tacit.sgd.table for a polars frame"
        )
    if isinstance(data, Dataset):
        return Records(items=data, scan=scan)
    if _is_tree(data):
        return Records(tree=pytree.tree_map(lambda leaf: _tensor(leaf, dtype), _pairs(data)))
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return Records(items=data, scan=scan)
    raise TypeError(
        f"cannot read records from {type(data).__name__}: pass tensors, arrays, a map-style Dataset or a table"
    )


def _is_tree(data: Any) -> bool:
    if isinstance(data, Tensor | np.ndarray):
        return True
    if isinstance(data, dict):
        return bool(data) and all(_is_tree(v) or _is_frame(v) for v in data.values())
    # A tuple of arrays is columns; a list of arrays is that too, a list of tuples is a list of items.
    return (
        isinstance(data, tuple | list)
        and bool(data)
        and all(isinstance(v, Tensor | np.ndarray | dict) or _is_frame(v) for v in data)
    )


def _is_frame(data: Any) -> bool:
    """A frame or column of pandas or polars, which is an array with names."""
    return type(data).__module__.partition(".")[0] in ("pandas", "polars") and hasattr(data, "__array__")


def _pairs(data: Any) -> Any:
    return tuple(data) if isinstance(data, list) else plain(data)


def _tensor(leaf: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf.detach()
    array = np.asarray(leaf)
    if array.dtype.kind == "f":
        return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)
    if array.dtype.kind in "iu":
        return torch.from_numpy(array.astype(np.int64)) if array.dtype != np.uint8 else torch.from_numpy(array.copy())
    if array.dtype.kind == "b":
        return torch.from_numpy(array.copy())
    raise TypeError(f"an array of {array.dtype} does not hold numbers: encode it first, for instance with tacit.schema")


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Columns of a table: ``features`` as one float matrix, ``target`` as integers or floats, ids of the unit."""

    records: Records
    features: tuple[str, ...]
    frame: Any

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column as an array."""
        if name not in self.frame.columns:
            raise ValueError(f"the table has no column {name!r}; it has {', '.join(self.frame.columns)}")
        return np.asarray(self.frame[name].to_numpy())

    def units(self, name: str) -> Units | None:
        """Whose each row is by a column of an index on disk, without its ids in memory; None of any other table."""
        if not self.records.stored or name not in self.frame.columns:
            return None
        found: Units | None = self.frame.units(name)
        return found


def table(
    source: Any,
    *,
    target: str,
    features: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    index: str | os.PathLike[str] | None = None,
    size: int | None = None,
) -> Table:
    """Read ``(features, target)`` records from a Parquet file or a polars frame; from disk, if they exceed the memory.

    Args:
        source: The path of a Parquet file, or a polars frame. With ``index`` a path, a folder, a pattern or a list of
            Parquet and Arrow files, or an iterator of polars frames, which is read once.
        target: The column to predict. Whole numbers and booleans become class numbers, other numbers float32.
        features: The columns to predict from, in this order, as one float32 matrix. Default: every column but the
            target and ``exclude``.
        exclude: Columns to leave out, such as ids. They can still be ``groups``. Default: none.
        index: A folder of its own for a copy of these columns in which rows are found by number. It is made once, file
            by file, and a copy that was interrupted goes on. It holds the rows as they are, and is as private as they
            are. A feature may then also be one column of lists of one length, such as tokens. Default: none, all rows
            in memory.
        size: The public number of rows of an iterator that is trained on while they arrive: each row takes part once,
            as it comes, and none is kept (``sampler="chunks"``, ``epochs=1``). Default: the rows are there.

    Returns:
        The records, with their column names, for :class:`Training`.

    Raises:
        TypeError: If the source is an iterator, and neither ``index`` nor ``size`` is given.
        ValueError: If a column does not exist, does not hold numbers, or has missing values, or if the index was made
            of other files or columns.

    Example:
        >>> import polars
        >>> frame = polars.DataFrame({"id": [1, 1, 2], "age": [30, 31, 52], "ill": [True, False, True]})
        >>> table(frame, target="ill", exclude=["id"]).features
        ('age',)
    """
    if index is not None or size is not None or isinstance(source, Iterator):
        return _not_in_memory(source, index, size, target=target, features=features, exclude=exclude)
    polars = optional("polars", "reading a table")
    frame = source if hasattr(source, "get_columns") else polars.read_parquet(os.fspath(source))
    if target not in frame.columns:
        raise ValueError(f"the table has no column {target!r}; it has {', '.join(frame.columns)}")
    names = (
        tuple(features) if features is not None else tuple(c for c in frame.columns if c != target and c not in exclude)
    )
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise ValueError(f"the table has no column {missing[0]!r}; it has {', '.join(frame.columns)}")
    for name in (*names, target):
        if not (frame[name].dtype.is_numeric() or frame[name].dtype == polars.Boolean):
            raise ValueError(
                f"column {name!r} does not hold numbers: encode it first, for instance with tacit.schema, or exclude it"
            )
        if frame[name].null_count():
            raise ValueError(f"column {name!r} has missing values: fill them first, with public values")
    x = torch.from_numpy(np.stack([frame[n].cast(polars.Float64).to_numpy() for n in names], 1).astype(np.float32))
    y = frame[target].cast(polars.Float64).to_numpy()
    whole = frame[target].dtype.is_integer() or frame[target].dtype == polars.Boolean
    labels = torch.from_numpy(y.astype(np.int64 if whole else np.float32))
    return Table(Records(tree=(x, labels)), names, frame)


def _not_in_memory(source: Any, index: str | os.PathLike[str] | None, size: int | None, **columns: Any) -> Table:
    """A table whose rows are on disk, or come one after the other."""
    from tacit.sgd.training.arriving import arriving
    from tacit.sgd.training.stored import stored

    if index is not None and size is not None:
        raise ValueError("index= copies a stream and size= trains on it while it arrives: give one of the two")
    if size is not None:
        return arriving(source, size, **columns)
    if index is None:
        raise TypeError(
            "an iterator of frames is copied with index=, a folder, or trained on while it arrives with size=, the "
            "public number of its rows"
        )
    return stored(source, index=index, **columns)


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """The records of each unit: unit u has rows ``order[starts[u]:starts[u + 1]]``. None: a record is a unit."""

    order: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @staticmethod
    def of(ids: Any, rows: int) -> Units:
        """Units from one id for each record."""
        inverse = owner_numbers(ids, rows)
        order = np.argsort(inverse, kind="stable").astype(np.int64)
        counts = np.bincount(inverse)
        return Units(order, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    def rows_of(self, chosen: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """All rows of each chosen unit."""
        ends = zip(self.starts[chosen], self.starts[chosen + 1], strict=True)
        return [self.order[start:stop] for start, stop in ends]

    def choose(
        self, chosen: npt.NDArray[np.int64], most: int, key: Key, step: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """``most`` rows for each chosen unit, and weights that make their mean the mean of its own records.

        A unit with more records gives ``most`` of them, drawn at random; with fewer, the empty places repeat its first
        record with weight 0.
        """
        everyone = self.rows_of(chosen)
        sizes = np.array([len(own) for own in everyone], dtype=np.int64)
        words, used = uniform(key, step, int(sizes[sizes > most].sum())), 0
        rows = np.zeros((len(chosen), most), dtype=np.int64)
        weights = np.zeros((len(chosen), most), dtype=np.float32)
        for i, own in enumerate(everyone):
            if len(own) > most:
                drawn = words[used : used + len(own)]
                used += len(own)
                own = np.sort(own[np.argsort(drawn, kind="stable")[:most]])
            rows[i] = own[0]
            rows[i, : len(own)] = own
            weights[i, : len(own)] = most / len(own)
        return rows, weights


def ids_of(groups: Any, data: Any) -> Any:
    """The ids of ``groups``: an array, or what a column of a table or data set holds."""
    if not isinstance(groups, str):
        return groups
    if isinstance(data, Table):
        return data.column(groups)
    if groups not in (getattr(data, "column_names", None) or ()):
        raise ValueError(
            f"groups={groups!r} names a column, and the data have no such column: pass the ids, one for each record"
        )
    whole = data.with_format(None) if hasattr(data, "with_format") else data  # a format may leave the column out
    return list(whole[groups])


def weighted(loss: Loss) -> Callable[[nn.Module, Any], Tensor]:
    """The loss of each record times its weight, so that the mean over a unit's places is the mean of its records."""

    def losses(model: nn.Module, batch: Any) -> Tensor:
        inner, weights = batch
        rows = row_losses(model, loss, inner)
        found: Tensor = rows * weights.to(rows.dtype)
        return found

    return losses


@dataclasses.dataclass(frozen=True, eq=False)
class Physical:
    """One padded piece of a batch: tensors of one static shape, and which of its units are real."""

    data: Any
    mask: Tensor
    weights: Tensor | None


class Batch:
    """The units drawn for one step. What is in it, its size included, is private.

    Where several ranks share a draw these are one rank's; ``places`` is then how many units every rank runs, and
    ``filler`` a row to fill up with.
    """

    def __init__(
        self,
        step: int,
        rows: npt.NDArray[np.int64],
        weights: npt.NDArray[np.float32] | None,
        source: Records,
        device: torch.device,
        places: int = 0,
        filler: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.step, self.rows, self.weights = step, rows, weights
        self._source, self._device = source, device
        self._places = max(places, len(rows))
        self._filler = rows[:1] if len(rows) or filler is None else filler
        self._pieces: dict[int, list[Any]] = {}
        self._ready: tuple[int, list[Physical]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def is_one_piece(self, physical: int) -> bool:
        """Whether a single physical batch holds all of it."""
        return self._places <= physical

    def begin(self, physical: int) -> None:
        """Do what needs no GPU: number the rows, gather a piece of tensors that is sent there whole, read from disk.
        Any thread may do this."""
        found: list[Any] = [self._padded(start, physical) for start in range(0, self._places, physical)]
        if self._source.tree is not None and self._device.type == "cuda":
            # From pinned memory a GPU fetches it by itself, behind what it has to do before.
            if self._is_sent_whole(physical):
                found = [pytree.tree_map_only(Tensor, _pinned, self._source.take(numbers)) for numbers in found]
            else:
                found = [_pinned(torch.from_numpy(numbers)) for numbers in found]
        self._pieces = {physical: found}
        if self._source.stored:
            self.prepare(physical)

    def _is_sent_whole(self, physical: int) -> bool:
        """Whether the records are on the host, and go to a GPU in one piece."""
        there = self._source.tree is None or self._device.type != "cuda" or self._source.on_gpu
        return not there and self.is_one_piece(physical)

    def prepare(self, physical: int) -> None:
        """Gather the records now, where reading them draws no random numbers, as items may, and they are one piece."""
        if (self._source.tree is not None or self._source.stored) and self.is_one_piece(physical):
            self._ready = physical, list(self.pieces(physical))

    def pieces(self, physical: int) -> Iterator[Physical]:
        """The batch in pieces of ``physical`` units, all of one shape; an empty batch has none."""
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] == physical:
            yield from ready[1]
            return
        if physical not in self._pieces:
            self.begin(physical)
        for k, begun in enumerate(self._pieces[physical]):
            start = k * physical
            mask = _places(physical, self._device) < len(self.rows) - start
            data = begun if self._is_sent_whole(physical) else self._source.take(begun)
            if any(t.device != self._device for t in _tensors(data)):
                data = pytree.tree_map_only(Tensor, self._move, data)
            weights = None
            if self.weights is not None:
                some = self.weights[start : start + physical]
                filled = np.concatenate([some, np.ones((physical - len(some), *some.shape[1:]), some.dtype)])
                weights = torch.from_numpy(filled.reshape(-1)).to(self._device)
            yield Physical(data, mask, weights)

    def _padded(self, start: int, physical: int) -> npt.NDArray[np.int64]:
        """The row numbers of a piece. A real record fills the empty places, so that the model sees nothing unusual; its
        factor is zero."""
        rows = self.rows[start : start + physical]
        if len(rows) == physical:
            return rows.reshape(-1)
        filled = np.empty((physical, *rows.shape[1:]), dtype=np.int64)
        filled[: len(rows)] = rows
        filled[len(rows) :] = self._filler
        return filled.reshape(-1)

    def _move(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True)

    def __repr__(self) -> str:
        return f"<Batch of step {self.step}: private>"
