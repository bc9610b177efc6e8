"""How is a table larger than memory read? In one pass of polars over Parquet, CSV, Arrow files or batches.

polars reads and decodes on all cores; each batch is scaled, clipped and added to the exact sums of
:mod:`tacit.linear_model.moments`, and forgotten. Memory does not depend on the number of rows. On a cluster
(:mod:`tacit.linear_model.cluster_moments`) each machine does that to its part of the files.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.cluster import Ray
from tacit.linear_model.bounds import Features
from tacit.linear_model.moments import GRID, GRID_BITS, Moments
from tacit.linear_model.rows import Rows
from tacit.linear_model.sensitivity import Shape
from tacit.schema import Date, Numeric, SchemaError

Floats = npt.NDArray[np.float64]

#: Rows that polars hands over at a time.
BATCH = 1 << 17
#: Rows that are encoded at a time: fewer spend their time in Python, more leave the processor's cache.
PIECE = 1 << 16
_SUFFIXES = {".parquet": "scan_parquet", ".pq": "scan_parquet", ".csv": "scan_csv", ".tsv": "scan_csv"}
_ARROW = (".arrow", ".feather", ".ipc")


def is_stream(data: Any) -> bool:
    """Whether ``data`` is read in batches: a path, a polars LazyFrame, a pyarrow reader, data set or table."""
    if isinstance(data, str | os.PathLike):
        return True
    module = type(data).__module__.partition(".")[0]
    return (module == "polars" and type(data).__name__ == "LazyFrame") or module == "pyarrow" or is_ray(data)


def is_csv(data: Any) -> bool:
    """Whether ``data`` is the path of a text file, which does not say what its columns are."""
    return isinstance(data, str | os.PathLike) and _SUFFIXES.get(Path(data).suffix.lower()) == "scan_csv"


def is_ray(data: Any) -> bool:
    """Whether ``data`` is a data set of Ray Data."""
    return type(data).__module__.startswith("ray.data.")


def _lazy(data: Any, numbers: Mapping[str, bool] | None = None) -> Any:
    """A polars LazyFrame of the data; None for a pyarrow reader, which can be read once.

    ``numbers`` says which columns of a CSV file hold numbers; the others are text. Types guessed from some rows would
    let those rows decide how the others are read.
    """
    import polars as pl

    if isinstance(data, str | os.PathLike):
        path = Path(data)
        suffix = path.suffix.lower()
        if path.is_dir():
            return pl.scan_parquet(path / "*.parquet")
        if suffix in _SUFFIXES:
            options: dict[str, Any] = {"separator": "\t"} if suffix == ".tsv" else {}
            if numbers is not None and is_csv(data):
                options["schema_overrides"] = {name: pl.Float64 if n else pl.String for name, n in numbers.items()}
            return getattr(pl, _SUFFIXES[suffix])(path, **options)
        if suffix in _ARROW:
            return pl.scan_ipc(path)
        raise ValueError(f"cannot tell the format of {path.name!r}: it should end in .parquet, .csv, .tsv or .arrow")
    name = type(data).__name__
    if is_ray(data):
        raise ValueError("a data set of Ray is read by its cluster: use backend='ray'")
    if name == "LazyFrame":
        return data
    if name == "Table":
        return pl.from_arrow(data).lazy()  # type: ignore[union-attr]
    if name == "RecordBatchReader":
        return None
    if hasattr(data, "to_batches") and hasattr(data, "schema"):
        return pl.scan_pyarrow_dataset(data)
    raise TypeError(f"cannot stream a {type(data).__name__}: give a path, a polars LazyFrame or a pyarrow reader")


def columns_of(data: Any) -> tuple[str, ...]:
    """Names of the columns, from the file's header: they are public."""
    if is_ray(data):
        return tuple(data.schema().names)
    lazy = _lazy(data)
    return tuple(data.schema.names if lazy is None else lazy.collect_schema().names())


class Stream:
    """Rows of a source that is never in memory as a whole; the counterpart of :class:`tacit.linear_model.rows.Rows`."""

    root = None

    def __init__(
        self,
        data: Any,
        names: tuple[str, ...],
        target: str,
        features: Features,
        encode_target: Callable[[Any], Floats],
        target_scale: tuple[float, float] | None,
        shape: Shape,
        cluster: Ray | None = None,
        *,
        number_target: bool = True,
    ) -> None:
        self.cluster = cluster
        schema = features.schema
        dates = {name for name in names if schema is not None and isinstance(schema[name], Date)}
        self.numbers = {
            name: schema is None or (isinstance(schema[name], Numeric) and name not in dates) for name in names
        }
        self.numbers[target] = number_target
        self.data, self.names, self.target = data, names, target
        self.features, self.encode_target, self.shape = features, encode_target, shape
        self.target_scale = target_scale
        self._rows: int | None = None
        self._used = False

    @property
    def width(self) -> int:
        """How many coefficients there are."""
        return len(self.features.names) + self.shape.intercept

    def __len__(self) -> int:
        if self._rows is None:
            raise RuntimeError("the rows are counted by the first pass")
        return self._rows

    @property
    def counted(self) -> bool:
        """Whether a pass has counted the rows."""
        return self._rows is not None

    @property
    def passes(self) -> int:
        """How often the source can be read: 1, or 0 for as often as one likes."""
        return 1 if _lazy(self.data) is None else 0

    def check_passes(self) -> None:
        """Refuse a source that gradient descent cannot read 16 times."""
        if self.cluster is not None:
            raise ValueError(
                "a cluster sums second moments in one pass: use method='sufficient-statistics', 'adassp' or "
                "'functional', or backend='local'"
            )
        if self.passes == 1:
            raise ValueError("gradient descent reads the rows 16 times, and this source can be read once: use a file")

    def batches(self) -> Iterator[Rows]:
        """The rows, encoded, in pieces that stay in the processor's cache; a bar on a terminal shows the progress."""
        count = 0
        for frame in self._progress(self._frames()):
            count += frame.height
            for start in range(0, frame.height, PIECE):
                yield self._encode(frame.slice(start, PIECE))
        self._rows = count

    def moments(self, *, target: bool) -> Moments:
        """The exact second moments of x, or of (x, y), on as many threads as there are cores.

        The sums are exact, so that their order, and with it the number of threads and machines, changes no bit of the
        result.
        """
        if self.cluster is not None:
            from tacit.linear_model import cluster_moments

            total = Moments(self.width + target)
            for part in self._progress(cluster_moments.moments(self, self.cluster, target=target)):
                total.merge(part)
            self._rows = total.rows
            return total
        return self.moments_here(max(1, min(8, os.cpu_count() or 1)), target=target)

    def moments_here(self, workers: int, *, target: bool) -> Moments:
        """The same in this process."""
        total, count = Moments(self.width + target), 0
        waiting: deque[Future[Moments]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            for frame in self._progress(self._frames()):
                count += frame.height
                waiting.append(pool.submit(self.moments_of, frame, target=target))
                while len(waiting) > 2 * workers:  # no more batches in memory than this
                    total.merge(waiting.popleft().result())
            while waiting:
                total.merge(waiting.popleft().result())
        self._rows = count
        return total

    def moments_of(self, frame: Any, *, target: bool) -> Moments:
        """Of one polars data frame."""
        moments = Moments(self.width + target)
        for start in range(0, frame.height, PIECE):
            rows = self._encode(frame.slice(start, PIECE), target=target)
            moments.add(rows.matrix)
        return moments

    def _frames(self) -> Iterator[Any]:
        import polars as pl

        wanted = [*self.names, self.target]
        lazy = _lazy(self.data, self.numbers)
        if lazy is None:
            if self._used:
                raise ValueError("a record-batch reader can be read once: use a method with one pass, or a file")
            self._used = True
            for batch in self.data:
                yield pl.from_arrow(batch).select(wanted)  # type: ignore[union-attr]
            return
        batches = lazy.select(wanted).collect_batches(chunk_size=BATCH, maintain_order=False, engine="streaming")
        if not is_csv(self.data):
            yield from batches
            return
        try:
            yield from batches
        except pl.exceptions.PolarsError:  # its message shows the value
            raise SchemaError(
                "the file is damaged, or a column declared as numeric holds something else: convert the column"
            ) from None

    def _encode(self, frame: Any, *, target: bool = False) -> Rows:
        """A piece of the table; with ``target`` the last column of x is y."""
        intercept = int(self.shape.intercept)
        x = np.empty((frame.height, self.width + target), order="F")
        x[:, :intercept] = 1.0
        if self.features.schema is not None:
            x[:, intercept : self.width] = self.features.encode(frame)
        else:
            for i, name in enumerate(self.names):
                self._column(frame[name], i, x[:, intercept + i])
        labels = _numbers(frame[self.target], self.target)
        y = np.empty(frame.height) if not target else x[:, -1]
        if self.target_scale is None:
            y[:] = self.encode_target(labels)
        else:
            scale_into(labels, *self.target_scale, y)
        return Rows(x, y, self.shape)

    def _column(self, series: Any, i: int, out: Floats) -> None:
        """One column into its place: clipped, scaled and cut to the grid."""
        fill = None if self.features.fill is None else self.features.fill[i]
        if fill is not None and not np.isnan(fill):
            series = series.fill_null(fill).fill_nan(fill) if series.dtype.is_float() else series.fill_null(fill)
        middle, half_width = self.features.centre or (self.features.middle, self.features.half_width)
        scale_into(_numbers(series, self.names[i]), middle[i], half_width[i], out)
        if self.features.centre is not None:
            out[:] = self.features.from_origin(out, i)

    def _progress(self, frames: Iterator[Any]) -> Iterator[Any]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        if not console.is_terminal:
            yield from frames
            return
        # The number of rows may be private, so the bar shows that it goes on, and the time, but no count.
        with Progress(
            TextColumn("going through the rows"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
        ) as bar:
            bar.add_task("rows", total=None)
            yield from frames


def _numbers(series: Any, name: str) -> npt.NDArray[Any]:
    if series.null_count():
        raise SchemaError(
            f"column {name!r} has missing values: declare a public constant for them (fill), or remove those rows"
        )
    if not (series.dtype.is_numeric() or str(series.dtype) == "Boolean"):
        return np.asarray(series.to_list(), dtype=object)
    return np.asarray(series.to_numpy())


def scale_into(values: npt.NDArray[Any], middle: float, half_width: float, out: Floats) -> None:
    """Clip to the bounds, bring to [-1, 1] and cut to the grid; single precision stays so until the end.

    What is done to a value depends on that value alone, and the result is on the grid and at most 1, whatever the
    precision: nothing more is needed for sensitivities. NaN stays NaN, and is refused by the sums.
    """
    if values.dtype.kind not in "fiub":
        raise SchemaError("a column holds values that are not numbers: convert it, or describe the table by a schema")
    kind = np.float32 if values.dtype == np.float32 else np.float64
    units = np.subtract(values, kind(middle), dtype=kind)
    units *= kind(2.0**GRID_BITS / half_width)
    np.clip(units, kind(-(2.0**GRID_BITS)), kind(2.0**GRID_BITS), out=units)
    np.trunc(units, out=units)
    units *= kind(GRID)
    np.copyto(out, units)
