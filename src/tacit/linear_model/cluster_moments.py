"""How are second moments of a table summed by a cluster, with no bit of the result depending on how it was divided?

Parquet and Arrow files are cut into ranges of rows, and each range is one task, which reads it by polars as the local
backend does; a data set of Ray Data is gone through by Ray's own tasks. A task returns a matrix of whole numbers, the
exact sum over its rows in units of 2^-40, so that the sum over tasks is the exact sum over rows whatever their order,
number and size. It is rounded and gets its noise once, in the process that called.

Rows travel between storage and workers only; what comes back are these sums, which are private like the rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.cluster import Ray
from tacit.linear_model.moments import Moments

if TYPE_CHECKING:
    from tacit.linear_model.stream import Stream

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
#: Rows of one task: about half a second of work for ten columns, and 40 bytes a row of Ray's book-keeping saved.
PER_TASK = 1 << 22
#: Rows of one batch of Ray Data.
PER_BATCH = 1 << 17


def moments(stream: Stream, cluster: Ray, *, target: bool) -> Iterator[Moments]:
    """Sums over parts of the table, as they arrive.

    Guarantee: their total is the exact sum that the local backend computes (its sensitivity is that of
    :mod:`tacit.linear_model.sensitivity`); no noise is added here, so that none is added twice.
    """
    from tacit.linear_model.stream import is_ray

    plain = copy.copy(stream)
    plain.data, plain.cluster = None, None
    if is_ray(stream.data):
        yield from _by_ray_data(stream.data, plain, cluster, target=target)
        return
    for _, part in cluster.map(part_of_file, parts(stream.data), shared=(plain, target, cluster.threads)):
        yield part


def parts(data: Any) -> list[tuple[str, int, int]]:
    """Ranges of rows: (file, first row, number of rows). Only the files' footers are read."""
    import polars as pl

    found = []
    for file in files_of(data):
        count = int(_scan(file).select(pl.len()).collect().item())
        found += [(str(file), first, min(PER_TASK, count - first)) for first in range(0, count, PER_TASK)]
    return found


def files_of(data: Any) -> list[Path]:
    """The files of the table, or an error that says what a cluster can read."""
    if not isinstance(data, str | Path):
        raise ValueError(
            "backend='ray' reads Parquet or Arrow files, folders of Parquet files, and data sets of Ray "
            f"(ray.data.read_parquet, …), not a {type(data).__name__}: its workers have to read the rows"
        )
    path = Path(data).resolve()
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"there is no .parquet file in {path}")
    wrong = [file.name for file in files if file.suffix.lower() not in (*PARQUET, *ARROW)]
    if wrong:
        raise ValueError(
            f"backend='ray' reads ranges of rows of Parquet and Arrow files, not of {wrong[0]!r}: convert it, or read "
            "it with Ray (ray.data.read_csv, …)"
        )
    return files


def _scan(file: Path) -> Any:
    import polars as pl

    return pl.scan_parquet(file) if file.suffix.lower() in PARQUET else pl.scan_ipc(file)


def part_of_file(stream: Stream, target: bool, threads: int, file: str, first: int, rows: int) -> Moments:
    """One task: the sums over a range of rows of one file."""
    stream = copy.copy(stream)
    stream.data = _scan(Path(file)).slice(first, rows)
    found = stream.moments_here(threads, target=target)
    if found.rows != rows:
        raise ValueError(f"{Path(file).name} changed while it was being read: run the fit again")
    return found


def _by_ray_data(data: Any, stream: Stream, cluster: Ray, *, target: bool) -> Iterator[Moments]:
    width = stream.width + target

    def sums(batch: Any) -> dict[str, Any]:
        import polars as pl

        part = stream.moments_of(pl.from_arrow(batch), target=target)
        return {"sums": part.sums().reshape(1, -1), "rows": np.array([part.rows])}

    with cluster.session():
        wanted = list(dict.fromkeys([*stream.names, stream.target]))
        summed = data.select_columns(wanted).map_batches(
            sums, batch_format="pyarrow", batch_size=PER_BATCH, num_cpus=cluster.num_cpus, zero_copy_batch=True
        )
        for row in summed.iter_rows():
            part = Moments(width)
            part.take(np.asarray(row["sums"], dtype=np.int64), int(row["rows"]))
            yield part
