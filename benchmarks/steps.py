"""What does a whole private step cost on a CPU next to a plain one: sampler, clipping, noise, optimizer and all?

    python -m benchmarks steps [--repeat 9] [--threads 2] [--cpu-time] [--growth] [--json FILE]

Logistic regression and an MLP for a census table, the CNN for MNIST. Plain, private and compiled private steps run in
turns in one process, so that other work on the machine touches all alike; the ratio is the median of the ratios of
each turn. ``--growth``: how both grow with sequence length, batch, width and depth, uncompiled.
``--cpu-time`` tells seconds of the processor in place of the clock's, for a machine that others keep busy (one thread).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks._methods import prepare
from benchmarks._workloads import GPT, Workload, cnn, images, mlp, tokens, vectors
from benchmarks.gpu import about

MODELS = {
    "logistic regression 64-2, batch 1024": Workload(lambda: nn.Linear(64, 2), vectors(64, 2), 1024),
    "MLP 64-256-256-2, batch 1024": Workload(mlp, vectors(64, 2), 1024),
    "CNN for MNIST, batch 512": Workload(cnn, images(1, 28, 10), 512),
}
METHODS = ("plain", "tacit", "tacit-traced", "tacit-compiled")


def _gpt(length: int) -> Workload:
    return Workload(lambda: GPT(d=64, depth=2, heads=2, vocab=512, length=length), tokens(length, 512), 8192 // length)


def _mlp(width: int, depth: int, batch: int) -> Workload:
    return Workload(lambda: mlp(width, depth), vectors(64, 2), batch)


GROWTH = {
    "sequence length (GPT, d=64, 2 layers, 8,192 tokens a batch)": {t: _gpt(t) for t in (128, 512, 2048, 8192)},
    "batch (MLP 64-256-256-2)": {b: _mlp(256, 2, b) for b in (256, 1024, 4096, 16384)},
    "width (MLP, 2 layers, batch 512)": {w: _mlp(w, 2, 512) for w in (64, 256, 1024, 4096)},
    "depth (MLP, width 256, batch 512)": {k: _mlp(256, k, 512) for k in (1, 4, 16, 64)},
}


def measure(
    work: Workload,
    repeat: int,
    methods: tuple[str, ...] = METHODS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, float]]:
    """Milliseconds of each method, and its ratio to a plain step of the same turn."""
    device = torch.device("cpu")
    data = work.records((16 if work.batch < 4096 else 2) * work.batch)
    steps = {method: prepare(method, work, device, data) for method in methods}
    for step in steps.values():
        for _ in range(4):
            step()
    times: dict[str, list[float]] = {method: [] for method in methods}
    for _ in range(repeat):
        for method, step in steps.items():
            began = clock()
            for _ in range(3):
                step()
            times[method].append((clock() - began) / 3)
    return {
        method: {
            "milliseconds": statistics.median(found) * 1e3,
            "ratio": statistics.median(a / b for a, b in zip(found, times["plain"], strict=True)),
        }
        for method, found in times.items()
    }


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, on one thread")
    parser.add_argument("--growth", action="store_true", help="growth curves in place of the table")
    parser.add_argument("--json", default=None, help="also write everything here")
    options = parser.parse_args(argv)
    options.device = "cpu"
    clock = time.process_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(1 if options.cpu_time else options.threads)
    found: dict[str, Any] = {}
    if options.growth:
        for curve, points in GROWTH.items():
            for value, work in points.items():
                told = found[f"{curve}@{value}"] = measure(work, options.repeat, ("plain", "tacit"), clock)
                print(f"{curve:60s} {value:6d} {told['plain']['milliseconds']:9.2f} ms {told['tacit']['ratio']:.2f}x")
                if options.json:
                    whole = {"about": about(options), "results": found}
                    Path(options.json).write_text(json.dumps(whole, indent=1), encoding="utf-8")
        return 0
    print("| model | plain | private | private, traced | private, compiled |\n|---|---|---|---|---|")
    for name, work in MODELS.items():
        told = found[name] = measure(work, options.repeat, clock=clock)
        cells = [f"{told['plain']['milliseconds']:.1f} ms"]
        cells += [f"{told[m]['milliseconds']:.1f} ms, {told[m]['ratio']:.2f}x" for m in METHODS[1:]]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    if options.json:
        Path(options.json).write_text(
            json.dumps({"about": about(options), "results": found}, indent=1), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
