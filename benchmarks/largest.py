"""What is the largest batch that fits, plain and private? Found by trying, uncompiled, one GPU.

    python -m benchmarks largest [--only gpt2 vit] [--methods plain tacit] [--json FILE]

Batches are doubled until memory does not suffice and then narrowed down to an eighth. Every trial is a whole step in
this process, after which everything is given back.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks._methods import METHODS, prepare
from benchmarks._workloads import WORKLOADS, Workload
from benchmarks.gpu import about


def fits(method: str, work: Workload, batch: int, device: torch.device) -> bool:
    """Whether two steps with so many records run."""
    work = dataclasses.replace(work, batch=batch)
    try:
        with device:  # tens of millions of rows take a CPU long
            data = tuple(t.to(device) for t in work.records(batch))
        step = prepare(method, work, device, data)  # type: ignore[arg-type]
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        step = data = None  # type: ignore[assignment]
        gc.collect()
        torch.cuda.empty_cache()


def largest(method: str, work: Workload, device: torch.device, deadline: float) -> tuple[int, bool]:
    """The largest batch among doubled ones and eighths between the last two, and whether all of them were tried."""
    good = work.batch
    while time.monotonic() < deadline and fits(method, work, 2 * good, device):
        good *= 2
    step = good // 2
    while step >= max(1, good // 8) and time.monotonic() < deadline:
        if fits(method, work, good + step, device):
            good += step
        step //= 2
    return good, time.monotonic() < deadline


def main(argv: list[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--methods", nargs="*", default=["plain", "tacit"], choices=METHODS)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for each")
    parser.add_argument("--json", default=None)
    options = parser.parse_args(argv)
    options.device = "cuda"
    if not torch.cuda.is_available():
        print("no GPU here: nothing is measured")
        return 0
    found: dict[str, Any] = {}
    for name in options.only:
        for method in options.methods:
            told: Any
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    told, all_tried = largest(
                        method, WORKLOADS[name], torch.device("cuda"), time.monotonic() + options.patience
                    )
                except Exception as error:  # noqa: BLE001 a method that cannot run a model says why
                    told, all_tried = f"{type(error).__name__}: {str(error)[:120]}", True
            found.setdefault(name, {})[method] = told if all_tried else f"at least {told}"
            print(f"{name:12s} {method:15s} {found[name][method]}", flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps({"about": about(options), "results": found}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
