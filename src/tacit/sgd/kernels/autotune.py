"""Which of several exact ways is the fastest for an operation of this shape on this GPU? Measured once, and kept.

Norms and weighted sums can be computed in several ways that differ in rounding only: by one kernel or another, with
tiles of several shapes, or by products of the vendor's library. Which one is fastest depends on the shape and on the
GPU, so it is measured at first use, on made-up numbers of the same shape (never on anybody's data), within a limit of
time and memory. Every way is compared with a plain one first; one that does not compile, does not fit or is wrong is
left out, and the record says so. The winners are kept in a file in the user's cache folder, by device, versions, shape
and type, so that the next run takes the same way.

``TACIT_CHOICES=default`` takes the first way always, and measures nothing; ``TACIT_CHOICES=FILE.json`` keeps the record
in that file, to be carried to another machine. On a CPU there is nothing to choose.

What is guaranteed: with the same record (or with ``default``) the same program on the same kind of GPU adds up in the
same order. Without, sums may differ in the last bits of float32, as they do between GPUs; the bound on every example
and the guarantee of privacy do not depend on the way.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.kernels import launch

#: The form of the file and the list of ways; a record of another is measured anew.
VERSION = 3
#: Seconds that compiling and measuring may take in one process, and running a shape's ways.
SECONDS, PER_SHAPE = 20.0, 0.05
#: Bytes that are written between two calls, so that the second finds nothing in the GPU's caches.
CACHES = 1 << 26
#: Bytes of made-up numbers, and of what a way may keep beside them.
MEMORY = 1 << 30
#: A way must be faster than the one before it by this factor: noise decides nothing.
CLEARLY = 0.97

Way = Callable[..., Any]
Check = Callable[[Any, Any], bool]

#: How far a sum of many terms of one sign may fall behind, relative to it and for each term: tensor cores cut off what
#: does not fit into float32 instead of rounding it. Seen on an H200: between 2^-28 and 2^-27.
CUT_OFF = 2.0**-27


@dataclass
class TuningRecord:
    """The winners, and where they are kept."""

    path: Path | None
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    @staticmethod
    def read(path: Path | None) -> TuningRecord:
        """What is in the file; a file that cannot be read, or of another form, is as good as none."""
        try:
            told = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
        except (OSError, ValueError):
            told = {}
        fits = isinstance(told, dict) and told.get("version") == VERSION and isinstance(told.get("choices"), dict)
        return TuningRecord(path, dict(told["choices"]) if fits else {})

    def keep(self, key: str, entry: dict[str, Any]) -> None:
        """Add an entry, and write the file, with what others have written there meanwhile."""
        self.entries[key] = entry
        if self.path is None:
            return
        merged = {**TuningRecord.read(self.path).entries, **self.entries}
        text = json.dumps({"version": VERSION, "choices": merged}, indent=1, sort_keys=True)
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, prefix=self.path.name, delete=False, encoding="utf-8"
            ) as file:
                file.write(text)
            os.replace(file.name, self.path)
        except OSError:
            self.path = None  # no home folder, or a read-only one: kept for this process alone


def place() -> Path | None:
    """The file of the record, as ``TACIT_CHOICES`` says; None where nothing is to be measured."""
    wish = os.environ.get("TACIT_CHOICES", "")
    if wish == "default":
        return None
    if wish:
        if not wish.endswith(".json"):
            raise ValueError(f"TACIT_CHOICES is 'default' or the name of a .json file, not {wish!r}")
        return Path(wish)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tacit" / "choices.json"


def on_device(run: Callable[[], Any], seconds: float) -> float:
    """The time of a call on the GPU, with its caches full of something else; about ``seconds`` are spent.

    Launching from Python takes longer than most of these kernels, so calls are recorded and replayed as one graph; what
    filling the caches takes is recorded without them, and subtracted. What cannot be recorded is timed call by call.
    """
    other = torch.empty(CACHES // 4, dtype=torch.int32, device="cuda")
    once = _call_by_call(run, other, 3)
    # Each graph is replayed five times, with the calls and without.
    calls = max(2, min(20, int(seconds / (5 * max(1e-6, once)))))
    try:
        with_calls, without = (_recorded(some, other, calls) for some in (run, None))
    except RuntimeError:
        torch.cuda.synchronize()
        return _call_by_call(run, other, 9)
    # The first replays raise the clocks; turns, so that what else goes on meets both.
    for graph in (with_calls, without):
        graph.replay()
    times = [(_replayed(with_calls), _replayed(without)) for _ in range(3)]
    return max(1e-9, min(a for a, _ in times) - min(b for _, b in times)) / calls


@functools.cache
def _stream() -> Any:
    """Always the same one: libraries keep memory for every stream they have seen."""
    return torch.cuda.Stream()


def _recorded(run: Callable[[], Any] | None, other: Tensor, calls: int) -> Any:
    graph, stream = torch.cuda.CUDAGraph(), _stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        if run is not None:
            run()  # what libraries keep for a stream is not to be kept by the graph
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(calls):
                other.zero_()
                if run is not None:
                    run()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def _replayed(graph: Any) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def _call_by_call(run: Callable[[], Any], other: Tensor, calls: int) -> float:
    times: list[float] = []
    for _ in range(calls):
        other.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def made_up(*tensors: Tensor, most: int = MEMORY) -> tuple[Tensor, ...] | None:
    """Random tensors like these, with fewer examples where they would be large; None where one would be.

    No two hold the same numbers, and the tokens of an example have something in common: every part of a product, and
    every element of a Gram matrix, then counts about as much as any other, and a fault in one of them is seen.
    """
    extent = [1 + sum((n - 1) * s for n, s in zip(t.shape[1:], t.stride()[1:], strict=True)) for t in tensors]
    each = sum(max(e, abs(t.stride(0))) * t.element_size() for e, t in zip(extent, tensors, strict=True))
    count = min(len(tensors[0]), most // max(1, each))
    if count < 1:
        return None
    found = []
    for k, tensor in enumerate(tensors):
        generator = torch.Generator(tensor.device).manual_seed(k)
        values = torch.empty_strided(
            (count, *tensor.shape[1:]), tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
        if tensor.dim() == 1:  # clip factors: positive
            values.uniform_(0.25, 1.0, generator=generator)
        else:
            values.normal_(generator=generator)
            if tensor.dim() == 3:
                common = torch.empty_like(values[:, :1]).normal_(generator=generator)
                values.add_(common)
        found.append(values)
    return tuple(found)


class Chooser:
    """Measures ways and keeps the winners. ``timer(run, seconds)`` and ``clock()`` are given by tests."""

    def __init__(
        self,
        record: TuningRecord | None = None,
        timer: Callable[[Callable[[], Any], float], float] = on_device,
        clock: Callable[[], float] = time.perf_counter,
        seconds: float = SECONDS,
    ) -> None:
        self.record = record
        self.timer, self.clock = timer, clock
        self.left = seconds
        self.forced: dict[str, str] = {}
        self._known: dict[Any, str] = {}

    def pick(self, kind: str, ways: Mapping[str, Way], plain: str, check: Check, tensors: tuple[Tensor, ...]) -> str:
        """The name of the way to take for these tensors: forced, known, or measured; the first where none of these.

        ``plain`` is the way that the others are compared with by ``check``.
        """
        forced = self.forced.get(kind)
        if forced is not None and forced in ways:
            return forced
        names = tuple(ways)
        if self.record is None or len(names) == 1:
            return names[0]
        shapes = _alike(tensors)
        where = (kind, shapes)
        known = self._known.get(where)
        if known is not None:
            # A batch of about the same size may not allow what was measured on another (memory).
            return known if known in ways else names[0]
        key = f"{kind}, {machine(tensors[0].device)}, {_told(shapes)}"
        entry = self.record.entries.get(key)
        if isinstance(entry, dict) and entry.get("way") in ways:
            self._known[where] = entry["way"]
            return str(entry["way"])
        if self.left <= 0 or _recording(tensors[0].device):
            return names[0]
        began, left = self.clock(), self.left
        entry = self._measured(ways, plain, check, tensors, began + left)
        self.left = left - (self.clock() - began)  # also what a way measured that chooses among ways itself
        if entry is None:
            return names[0]
        self._known[where] = entry["way"]
        self.record.keep(key, entry)
        return str(entry["way"])

    def _measured(
        self, ways: Mapping[str, Way], plain: str, check: Check, tensors: tuple[Tensor, ...], until: float
    ) -> dict[str, Any] | None:
        """The entry of the record; None where there is no room for made-up numbers."""
        try:
            sample = made_up(*tensors)
            if sample is None:
                return None
            wanted = ways[plain](*sample)
        except torch.OutOfMemoryError:
            return None
        if launch.compiles_together() and tensors[0].is_cuda:
            with launch.together():
                for name, way in ways.items():
                    if "products" not in name:  # those of the vendor's library are compiled already
                        _attempt(way, sample)
        times: dict[str, float] = {}
        left_out: dict[str, str] = {}
        best: str | None = None
        for name, way in ways.items():
            if self.clock() > until:
                left_out[name] = "no time left"
                continue
            found = _attempt(way, sample)
            if isinstance(found, str):
                left_out[name] = found
                continue
            if not check(found, wanted):
                left_out[name] = "wrong"
                continue
            del found
            times[name] = self.timer(lambda way=way: way(*sample), PER_SHAPE / len(ways))  # type: ignore[misc]
            if best is None or times[name] < CLEARLY * times[best]:
                best = name
        micro = {name: round(seconds * 1e6, 1) for name, seconds in times.items()}
        return {"way": best or plain, "microseconds": micro, "left_out": left_out}


def _attempt(way: Way, sample: tuple[Tensor, ...]) -> Any:
    """What a way gives, or why it cannot: kernels that need more than this GPU has are refused by its compiler."""
    try:
        return way(*sample)
    except Exception as error:  # noqa: BLE001 the compiler and its errors are not ours, and there are other ways
        return f"{type(error).__name__}: {str(error).strip()[:120]}"


def _recording(device: torch.device) -> bool:
    return bool(device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def machine(device: torch.device) -> str:
    """What times depend on besides shapes: the device and the versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{name}, torch {torch.__version__}, triton {launch.version()}"


Alike = tuple[tuple[tuple[int, ...], str, bool], ...]


def _alike(tensors: tuple[Tensor, ...]) -> Alike:
    """What a choice is kept for: widths and types as they are, numbers of examples and tokens up to a power of two.

    Batches that people draw differ a little from step to step, and must not be measured each time.
    """
    return tuple(
        (
            (*(1 << max(0, n - 1).bit_length() for n in t.shape[:2]), *t.shape[2:]),
            str(t.dtype)[6:],
            t.is_contiguous(),
        )
        for t in tensors
    )


def _told(shapes: Alike) -> str:
    return ", ".join(f"{'x'.join(map(str, n))} {kind}{'' if whole else ' strided'}" for n, kind, whole in shapes)


_chooser: list[Chooser] = []


def chooser() -> Chooser:
    """The chooser of this process."""
    if not _chooser:
        path = place()
        _chooser.append(Chooser(None if path is None else TuningRecord.read(path)))
    return _chooser[-1]


def chooses(kind: str, tensor: Tensor) -> bool:
    """Whether there is a choice to make: on a GPU, or where one is forced."""
    return tensor.is_cuda or bool(_chooser and kind in _chooser[-1].forced)


@contextmanager
def using(other: Chooser) -> Iterator[Chooser]:
    """Another chooser for a while."""
    _chooser.append(other)
    try:
        yield other
    finally:
        _chooser.remove(other)


@contextmanager
def forced(**ways: str) -> Iterator[None]:
    """These ways by kind, where they can be taken, on any device: ``forced(norms="gram by products")``."""
    other = Chooser()
    other.forced = ways
    with using(other):
        yield
