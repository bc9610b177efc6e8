"""What do teachers and tables cost on a Ray cluster next to one process, and what does a task cost by itself?

Starts a cluster of this machine alone, so that it measures overheads and constants, not what a second machine brings.
CPU seconds are given beside the clock because they mean the same on a busy machine. ``--json`` writes the constants
that ``python -m benchmarks projection`` reads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tacit.cluster import Ray
from tacit.linear_model import LinearRegression
from tacit.linear_model.stream import Stream
from tacit.noise import Key
from tacit.noise.sampling import bernoulli_mask
from tacit.pate import Teachers

COLUMNS = 10


class Timed:
    """Seconds by the clock and of this process's CPU."""

    def __enter__(self) -> Timed:
        self.began, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.cpu = time.perf_counter() - self.began, time.process_time() - self.cpu


def table(folder: Path, rows: int) -> dict[str, Any]:
    """Parquet files of single-precision numbers, and the settings of a fit to them."""
    generator = np.random.default_rng(0)
    each = 1 << 22
    for number, start in enumerate(range(0, rows, each)):
        count = min(each, rows - start)
        values = generator.random((count, COLUMNS), dtype=np.float32)
        frame = {f"x{i}": values[:, i] for i in range(COLUMNS)}
        pl.DataFrame(frame | {"y": values.sum(axis=1)}).write_parquet(folder / f"{number:03d}.parquet")
    return {"bounds": {f"x{i}": (0.0, 1.0) for i in range(COLUMNS)}, "target_bounds": (0.0, float(COLUMNS))}


def tables(rows: int, told: dict[str, Any]) -> None:
    """The second moments of a table on disk: one thread here, then two workers."""
    with tempfile.TemporaryDirectory() as folder:
        settings = table(Path(folder), rows)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        private = LinearRegression(1.0, **settings)
        source = private._task(Path(folder), "y", None, None).source
        assert isinstance(source, Stream)
        source.moments_here(target=True, workers=1)
        with Timed() as here:
            local = source.moments_here(target=True, workers=1)
        source.cluster = Ray(num_cpus=1)
        with source.cluster.session():
            source.moments(target=True)  # workers are up, and have imported what they need
            with Timed() as there:
                spread = source.moments(target=True)
        assert (local.total() == spread.total()).all()
    told["table"] = {
        "rows": rows,
        "columns": COLUMNS,
        "bytes_a_row": size / rows,
        "rows_a_cpu_second": rows / here.cpu,
        "one_thread_seconds": here.seconds,
        "ray_seconds": there.seconds,
        "workers": os.cpu_count(),
        "bytes_back_a_task": 8 * (COLUMNS + 2) ** 2,
    }
    print(
        f"second moments of {rows:,} rows of {COLUMNS + 1} columns ({size / 2**20:.0f} MiB of Parquet), the same sums:"
    )
    print(
        f"  one thread   {here.seconds:6.2f} s, {here.cpu:.2f} s of CPU: "
        f"{rows / here.cpu / 1e6:.1f} million rows a CPU second"
    )
    print(f"  Ray          {there.seconds:6.2f} s with {os.cpu_count()} workers of one CPU")


def tasks(count: int, told: dict[str, Any]) -> None:
    """What a task costs that does nothing, and the start of a cluster."""
    cluster = Ray(num_cpus=1)
    with Timed() as start, cluster.session():
        list(cluster.map(abs, [(1,)] * 4))
        with Timed() as each:
            list(cluster.map(abs, [(1,)] * count))
    told["task"] = {"milliseconds": 1e3 * each.seconds / count, "start_seconds": start.seconds - each.seconds}
    print(
        f"a task that does nothing: {1e3 * each.seconds / count:.1f} ms; start and end of a cluster: "
        f"{start.seconds - each.seconds:.1f} s"
    )


def teachers(count: int, told: dict[str, Any]) -> None:
    """Boosted trees on their own people, here and on two workers; equal votes."""
    from sklearn.ensemble import GradientBoostingClassifier

    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 200 * count)
    x = generator.normal(size=(len(y), 8)) + np.eye(3, 8)[y]
    key = Key(bytes(32))

    def make(backend: Any) -> Teachers:
        return Teachers(
            GradientBoostingClassifier(n_estimators=20), (x, y), n=count, key=key, classes=3, backend=backend
        )

    with Timed() as here:
        local = make("local").fit(progress=False)
    cluster = Ray(num_cpus=1)
    with cluster.session():
        make(cluster).fit(progress=False)
        with Timed() as there:
            spread = make(cluster).fit(progress=False)
    assert (local.vote(x[:500]).counts == spread.vote(x[:500]).counts).all()
    told["teachers"] = {
        "count": count,
        "local_seconds": here.seconds,
        "cpu_seconds": here.cpu,
        "ray_seconds": there.seconds,
    }
    print(
        f"{count} teachers, the same votes: one process {here.seconds:.1f} s ({here.cpu:.1f} s of CPU), "
        f"Ray {there.seconds:.1f} s with {os.cpu_count()} workers"
    )


def sampling(records: int, told: dict[str, Any]) -> None:
    """Who takes part in a step: one keyed coin a record."""
    key = Key(bytes(32))
    each = []
    for step in range(4):  # the first touches the memory
        with Timed() as draw:
            bernoulli_mask(key, step, records, 1e-4)
        each.append(draw.cpu)
    told["sampling"] = {"coins_a_cpu_second": records / min(each), "bytes_a_coin": 1}
    print(f"Poisson sampling: {records / min(each) / 1e6:.0f} million records a CPU second, one byte a record")


def main(argv: list[str]) -> int:
    """Measure, print, and write what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cluster", description=__doc__)
    parser.add_argument("--rows", type=int, default=1 << 24, help="rows of the table")
    parser.add_argument("--teachers", type=int, default=64)
    parser.add_argument("--json", type=Path, help="write the constants there")
    options = parser.parse_args(argv)
    told: dict[str, Any] = {}
    sampling(1 << 26, told)
    tasks(400, told)
    tables(options.rows, told)
    teachers(options.teachers, told)
    about = {"python": platform.python_version(), "device": f"{os.cpu_count()} CPU cores", "date": str(date.today())}
    about["load"] = f"{os.getloadavg()[1]:.1f} (5 minutes)"
    if options.json is not None:
        options.json.write_text(json.dumps({"about": about, "results": told}, indent=1) + "\n", encoding="utf-8")
    return 0
