"""How much memory does a run on more rows than fit take? Parquet is written, indexed and trained on, each in a process.

    python -m benchmarks.stored --rows 100000000 --folder /somewhere/with/10/GB

Each line is a process of its own: its time, and the most memory that it held (``ru_maxrss``, torch included).
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

SHARD = 5_000_000
BATCH = 1024
SAMPLERS = ("poisson", "balls-in-bins", "cyclic")


def write(folder: Path, rows: int) -> None:
    """Synthetic rows of four features, a class and the id of one of as many people as make 40 rows each, in shards."""
    import polars as pl

    rng = np.random.default_rng(0)
    for number, start in enumerate(range(0, rows, SHARD)):
        x = rng.normal(size=(min(SHARD, rows - start), 4)).astype(np.float32)
        columns: dict[str, Any] = {f"x{k}": x[:, k] for k in range(4)} | {"ill": (x[:, 0] > 0).astype(np.int8)}
        columns["person"] = rng.integers(0, max(1, rows // 40), len(x))
        pl.DataFrame(columns).write_parquet(folder / f"part-{number:04}.parquet", row_group_size=500_000)


def work(task: str, folder: Path, steps: int) -> str:
    """One task of the run, in this process; what there is to say."""
    import torch

    from tacit import sgd

    source, index = folder / "rows", folder / "index"
    if task == "torch":
        return ""
    if task == "stream":
        return stream(source)
    rows = sgd.table(source, target="ill", exclude=["person"], index=index)
    if task == "index":
        return f"{len(rows.records):,} rows"
    if task == "owners":
        return f"{len(rows.units('person') or ()):,} people"
    model = torch.nn.Linear(4, 2)
    terms: dict[str, Any] = {"batch_size": BATCH, "sampler": task}
    if task == "cyclic":
        terms = {"batch_size": BATCH, "noise": sgd.Banded(bands=8)}
    if task in ("people", "their rows"):
        terms = {"batch_size": BATCH // 8, "groups": "person", "max_rows": 8}
    if task == "their rows":
        terms |= {"batch_size": BATCH, "draw": "rows"}
    training = sgd.Training(
        model, torch.optim.SGD(model.parameters(), lr=0.5), torch.nn.CrossEntropyLoss(reduction="none"), rows,
        steps=steps, noise_multiplier=1.0, delta=1e-9, compile=False, **terms,
    )  # fmt: skip
    began = time.perf_counter()
    for batch in training:
        training.step(batch)
    return f"{(time.perf_counter() - began) / steps * 1000:.0f} ms a step, {training.privacy.details['sampler']}"


def stream(source: Path) -> str:
    """All rows once, as they come out of the files, in batches of 1,024."""
    os.environ["POLARS_ROW_GROUP_PREFETCH_SIZE"] = "1"  # polars reads ten row groups ahead otherwise, and holds them
    import polars as pl
    import torch

    from tacit import sgd

    files = sorted(source.iterdir())
    rows = sum(int(pl.scan_parquet(file).select(pl.len()).collect().item()) for file in files)
    frames = (frame for file in files for frame in pl.scan_parquet(file).collect_batches(
        chunk_size=1 << 16, maintain_order=True, engine="streaming", lazy=True
    ))  # fmt: skip
    model = torch.nn.Linear(4, 2)
    training = sgd.Training(
        model, torch.optim.SGD(model.parameters(), lr=0.5), torch.nn.CrossEntropyLoss(reduction="none"),
        sgd.table(frames, target="ill", exclude=["person"], size=rows), batch_size=min(rows, 1024), epochs=1,
        sampler="chunks", noise=sgd.BandedInverse(), noise_multiplier=1.0, delta=1e-9, compile=False,
    )  # fmt: skip
    began = time.perf_counter()
    for batch in training:
        training.step(batch)
    took = (time.perf_counter() - began) / training.plan.steps
    return f"{took * 1000:.0f} ms a step, {training.plan.steps:,} steps, {training.privacy.details['sampler']}"


def main() -> None:
    """Write, index, train with each sampler."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--task")
    chosen = options.parse_args()
    if chosen.task is not None:
        began = time.perf_counter()
        told = work(chosen.task, chosen.folder, chosen.steps)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{chosen.task:<14} {time.perf_counter() - began:7.1f} s   {peak:5.0f} MiB   {told}", flush=True)
        return
    (chosen.folder / "rows").mkdir(parents=True, exist_ok=True)
    if not any((chosen.folder / "rows").iterdir()):
        write(chosen.folder / "rows", chosen.rows)
    for task in ("torch", "index", *SAMPLERS, "owners", "people", "their rows", "stream"):
        again = ["--folder", str(chosen.folder), "--steps", str(chosen.steps), "--task", task]
        subprocess.run([sys.executable, "-m", "benchmarks.stored", *again], check=True)


if __name__ == "__main__":
    main()
