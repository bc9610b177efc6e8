"""What is the largest batch that fits, plain and private? Found by trying, uncompiled, one GPU.

    python -m benchmarks largest [--only gpt2 vit] [--methods plain tacit] [--json FILE [--resume]]

Batches are doubled until memory does not suffice and then narrowed down to an eighth; a second method begins at a
quarter of what the first could take. Every trial is two whole steps in this process, after which everything is given
back.
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


def largest(method: str, work: Workload, device: torch.device, deadline: float, start: int) -> tuple[int, bool]:
    """The largest batch among ``start`` times powers of two and eighths between the last two, and whether all of them
    were tried; 0 where not even one record fits.
    """
    good, trial, up = 0, start, True
    while trial and time.monotonic() < deadline:
        if fits(method, work, trial, device):
            good = trial
            if not up:
                break
            trial *= 2
        elif good:
            break
        else:
            up = False
            trial //= 2
    for step in (good // 2, good // 4, good // 8):
        if step and time.monotonic() < deadline and fits(method, work, good + step, device):
            good += step
    return good, time.monotonic() < deadline


def main(argv: list[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--methods", nargs="*", default=["plain", "tacit"], choices=METHODS)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for each")
    parser.add_argument("--json", default=None)
    parser.add_argument("--resume", action="store_true", help="go on where the file of --json ends")
    options = parser.parse_args(argv)
    options.device = "cuda"
    if not torch.cuda.is_available():
        print("no GPU here: nothing is measured")
        return 0
    found: dict[str, Any] = {}
    if options.resume and options.json and Path(options.json).exists():
        found = json.loads(Path(options.json).read_text(encoding="utf-8"))["results"]
    for name in options.only:
        for method in options.methods:
            if isinstance(found.get(name, {}).get(method), int):
                continue
            told: Any
            others = [most for most in found.get(name, {}).values() if isinstance(most, int)]
            start = max(1, max(others) // 4) if others else 2 * WORKLOADS[name].batch
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    told, all_tried = largest(
                        method, WORKLOADS[name], torch.device("cuda"), time.monotonic() + options.patience, start
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
