"""How are rows trained on while they arrive? Each once, in the order in which they come; none is kept.

A stream cannot be sampled: nobody knows yet what will come. So every row takes part in one step, and a run is priced
for one participation without amplification (``sampler="chunks"``), best with noise that takes back noise of earlier
steps. Of a person with several rows the first counts; what is remembered of people is a keyed hash of their ids.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.accounting.base import owner_numbers
from tacit.ledger.fingerprint import former_fingerprint
from tacit.noise.entropy import fresh_bytes
from tacit.sgd.training.config import Sampling
from tacit.sgd.training.data import Records, Table
from tacit.sgd.training.stored import encoded, shape_of

Numbers = npt.NDArray[np.int64]

STAND = "The steps so far stand; end the run with stop(reason, looked_at_results=False), and it claims them alone."
COPY = "copy it first, with index=: rows that are there can be drawn (docs/howto/larger-than-memory.md)"


class ArrivingRecords(Records):
    """The first ``size`` rows of an iterator of frames, by number; only those of the last two batches are held.

    Guarantee: a row is read once and has one number. With :meth:`one_row_each` nobody has two: rows of a person who
    came before are left out, by their id and by nothing else that they say.

    >>> import polars
    >>> rows = ArrivingRecords(iter([polars.DataFrame({"age": [30.0, 31.0, 52.0], "ill": [1, 0, 1]})]), 3, target="ill")
    >>> rows.begin(np.array([0, 1]))
    >>> rows.take(np.array([1, 0]))[0].ravel().tolist()
    [31.0, 30.0]
    """

    arriving = True

    def __init__(
        self,
        frames: Iterator[Any],
        size: int,
        *,
        target: str,
        features: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"size, the public number of rows that will be read, must be positive, not {size!r}")
        super().__init__(items=range(int(size)), scan=False)
        self.items = frames
        self.asked = {"target": target, "features": None if features is None else list(features)}
        self.asked |= {"exclude": list(exclude)}
        self._made: dict[str, Any] | None = None
        self._who: str | None = None
        self._unit = "row"
        #: The types of the ids that came, each with what ids it can be compared with.
        self._types = set[tuple[str, str]]()
        self._secret, self._seen = fresh_bytes(32), set[bytes]()
        self._held: list[npt.NDArray[Any]] = []
        #: The number of the first row that is held, of the next that comes, and where this batch and the last began.
        self._first, self._next, self._begun = 0, 0, (0, -1)

    def one_row_each(self, who: str, unit: str = "person") -> None:
        """Of each id in a column only the first row counts."""
        self._who, self._unit = who, unit

    @property
    def named_by(self) -> Any:
        """The stream itself, which no later process can recognise: what is left of it may differ."""
        return self.items

    def begin(self, rows: Numbers) -> None:
        """A batch of these rows follows: what came before the last batch is not needed again."""
        last = self._begun[1]
        if len(rows) and rows[0] > last:
            self._begun = (int(rows[0]) if last < 0 else last, int(rows[0]))
        self._drop()

    def take(self, index: Numbers | Tensor) -> tuple[Tensor, Tensor]:
        """The rows of these numbers, in their order, with repeats; it waits for those that did not come yet."""
        numbers = np.asarray(index, dtype=np.int64)
        while len(numbers) and numbers.max() >= self._next:
            self._read()
        if len(numbers) and numbers.min() < self._first:
            raise IndexError("a row of a stream comes once, and this one is no longer held")
        held = self._held[0] if len(self._held) == 1 else np.concatenate(self._held)
        rows = held[numbers - self._first]
        x = rows["x"].astype(np.int64) if rows["x"].dtype.kind == "i" else rows["x"].copy()
        return torch.from_numpy(x), torch.from_numpy(rows["y"].copy())

    def _read(self) -> None:
        """One more frame."""
        frame = next(self.items, None)
        if frame is None:
            raise ValueError(
                f"the stream ended after {self._next:,} of {self.rows:,} {self._unit}s. {STAND} (This message is for "
                "the operator.)"
            )
        if self._who is not None and frame.height:
            frame = frame.filter(self._new(frame))
        if frame.height == 0:
            return
        if self._made is None:
            self._made = {"asked": self.asked, **shape_of(frame, self.asked)}
        self._held.append(encoded(frame, self._made))
        self._next += frame.height
        self._drop()

    def _new(self, frame: Any) -> list[bool]:
        """Which rows are the first of their person."""
        column = frame[self._who]
        if column.dtype.is_nested() or column.dtype.is_object():
            raise ValueError(
                f"column {self._who!r} holds ids of type {column.dtype}: of a stream each row has one owner, a number "
                f"or text. For rows with several owners {COPY}"
            )
        ids = np.asarray(column.to_numpy())
        owner_numbers(ids, len(ids))  # refuses missing ids
        before = sorted({name for name, _ in self._types})
        self._types.add((str(column.dtype), comparable(column, ids)))
        if len({name for name, _ in self._types}) > 1 < len({kind for _, kind in self._types}):
            raise ValueError(
                f"the ids in column {self._who!r} were {' and '.join(before)}, and are {column.dtype} now: one person "
                f"could count as several. Give all frames one type. {STAND}"
            )
        found = []
        for one in ids.tolist():
            if isinstance(one, bool) or (isinstance(one, float) and one.is_integer()):
                one = int(one)  # 17 and 17.0 are one person
            name = hashlib.blake2b(repr(one).encode(), digest_size=16, key=self._secret).digest()
            found.append(name not in self._seen)
            self._seen.add(name)
        return found

    def _drop(self) -> None:
        while self._held and self._first + len(self._held[0]) <= self._begun[0]:
            self._first += len(self._held.pop(0))

    def check_finite(self) -> None:
        """Every row is looked at when it comes."""

    def labels(self) -> Tensor | None:
        """Nobody knows what will come."""
        return None

    def fingerprint(self, secret: bytes) -> str:
        """Of what was asked for: what will come has none."""
        return former_fingerprint([self.rows, repr(self.asked)], secret)

    def registered_as(self, secret: bytes) -> str | None:
        """None: a ledger cannot know rows that did not come yet."""


def comparable(column: Any, ids: npt.NDArray[Any]) -> str:
    """With what ids those of a frame can be compared, one by one: whole numbers, text, or those of their type alone.

    Numbers with a point are whole numbers where every whole number up to them has its own.
    """
    if ids.dtype.kind in "biu":
        return "whole numbers"
    if ids.dtype.kind == "f" and bool(
        ((ids == np.floor(ids)) & (abs(ids) < 2.0 ** (np.finfo(ids.dtype).nmant + 1))).all()
    ):
        return "whole numbers"
    return "text" if str(column.dtype).partition("(")[0] in ("String", "Categorical", "Enum") else str(column.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class FirstRows:
    """The people of a stream, of whom one row each counts: the number of rows that will be read."""

    size: int
    several = True  # who owns what is public
    order = starts = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self.size

    def choose(self, chosen: Numbers, most: int, key: Any, step: int) -> tuple[Numbers, None]:
        """The rows themselves."""
        return chosen, None


def people_of(sampling: Sampling, records: ArrivingRecords) -> FirstRows | None:
    """Who is protected in a stream; None where each row is a unit. What a stream cannot do is refused."""
    name = sampling.sampler if isinstance(sampling.sampler, str) else sampling.sampler.name
    if name != "chunks":
        raise ValueError(
            f"a stream cannot be sampled (sampler={name!r}): each row takes part once, as it comes. Give "
            f"sampler='chunks' with epochs=1, and noise=tacit.sgd.BandedInverse(); or {COPY}"
        )
    if (sampling.epochs or 1) > 1 or ((sampling.steps or 1) - 1) * sampling.batch_size >= records.rows:
        raise ValueError(f"a stream comes once, and this run is longer than one pass: give epochs=1, or {COPY}")
    if sampling.groups is None:
        return None
    if not isinstance(sampling.groups, str):
        raise ValueError("the rows of a stream come with their ids: groups= is the name of a column")
    if sampling.max_rows != 1 or sampling.draw != "units":
        raise ValueError(f"of a stream one row of each {sampling.unit} counts: leave out max_rows and draw, or {COPY}")
    assert sampling.unit is not None
    records.one_row_each(sampling.groups, sampling.unit)
    return FirstRows(records.rows)


def arriving(source: Any, size: int, **columns: Any) -> Table:
    """The table of :func:`tacit.sgd.table` with ``size=``."""
    if not isinstance(source, Iterator):
        raise TypeError(f"size= is for an iterator of polars frames, not for a {type(source).__name__}")
    return Table(ArrivingRecords(source, size, **columns), (), None)


__all__ = ["ArrivingRecords", "FirstRows", "arriving", "people_of"]
