"""How long does a whole run take, with everything that happens before and between its steps?

    python -m benchmarks runs --steps 1000 --device cuda gpt2 convnext

Each line is one run in this process from its first step: plain SGD by torch (eager, compiled, compiled with CUDA
graphs) and private SGD (as it is by default, never compiled, traced or compiled from the start).
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks._methods import Step, plain_step, tacit_step
from benchmarks._workloads import WORKLOADS

WAYS: dict[str, Any] = {"tacit": "auto", "tacit-uncompiled": False, "tacit-traced": "traced", "tacit-compiled": True}
PLAIN = ("plain", "plain-compiled", "plain-graphs")


def measure(step: Step, steps: int, device: torch.device, limit: float) -> dict[str, Any]:
    """Seconds of so many steps, of the first, and the milliseconds of one of the last tenth."""
    began = last = time.perf_counter()
    programs: list[tuple[int, str]] = []
    first, marks, done = 0.0, [], 0
    for k in range(steps):
        step()
        if k == 0 or k % max(1, steps // 50) == 0 or k == steps - 1:
            if device.type == "cuda":
                torch.cuda.synchronize()
            last = time.perf_counter()
            first = first or last - began
            marks.append((k + 1, last))
        done = k + 1
        training = getattr(step, "training", None)
        if training is not None and (not programs or programs[-1][1] != training.program):
            programs.append((k + 1, training.program))
        if last - began > limit:
            break
    tail = [m for m in marks if m[0] > 0.8 * done] or marks[-2:]
    pace = (tail[-1][1] - tail[0][1]) / max(1, tail[-1][0] - tail[0][0])
    told = {"steps": done, "seconds": last - began, "first": first, "milliseconds": 1e3 * pace}
    return told | ({"programs": programs} if programs else {})


def main(argv: list[str] | None = None) -> int:
    """Measure the runs that were asked for, print a line for each and write all of them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["mlp"], help=", ".join(WORKLOADS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--methods", nargs="*", default=[*PLAIN, *WAYS])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a run is cut short")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    device, rows = torch.device(options.device), []
    warnings.simplefilter("ignore")
    for name in options.workloads:
        work = WORKLOADS[name]
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = work.tf32
        data = tuple(t.to(device) for t in work.records(4 * work.batch))
        for method in options.methods:
            try:
                if method in PLAIN:
                    step = plain_step(work, device, data, method)
                else:
                    step = tacit_step(work, device, data, WAYS[method], steps=options.steps)
                told = measure(step, options.steps, device, options.limit)
            except Exception as error:  # noqa: BLE001 one that fails is a row too
                told = {"error": f"{type(error).__name__}: {error}"[:200]}
            rows.append({"workload": name, "method": method} | told)
            print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}), flush=True)
            step = None  # type: ignore[assignment]
            torch.compiler.reset()
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            if options.out is not None:
                options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0
