"""What does a whole private step cost on a CPU next to a plain one: sampler, clipping, noise, optimizer and all?

    python -m benchmarks steps [--repeat 9] [--threads 2] [--json FILE]

Logistic regression and an MLP for a census table, the CNN for MNIST. Plain, private and compiled private steps run in
turns in one process, so that other work on the machine touches all alike; the ratio is the median of the ratios of
each turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks._methods import prepare
from benchmarks._workloads import Workload, cnn, images, mlp, vectors
from benchmarks.gpu import about

MODELS = {
    "logistic regression 64-2, batch 1024": Workload(lambda: nn.Linear(64, 2), vectors(64, 2), 1024),
    "MLP 64-256-256-2, batch 1024": Workload(mlp, vectors(64, 2), 1024),
    "CNN for MNIST, batch 512": Workload(cnn, images(1, 28, 10), 512),
}
METHODS = ("plain", "tacit", "tacit-compiled")


def measure(work: Workload, repeat: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each method, and its ratio to a plain step of the same turn."""
    device = torch.device("cpu")
    data = work.records(16 * work.batch)
    steps = {method: prepare(method, work, device, data) for method in METHODS}
    for step in steps.values():
        for _ in range(4):
            step()
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(repeat):
        for method, step in steps.items():
            began = time.perf_counter()
            for _ in range(3):
                step()
            times[method].append((time.perf_counter() - began) / 3)
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
    parser.add_argument("--json", default=None, help="also write everything here")
    options = parser.parse_args(argv)
    options.device = "cpu"
    torch.set_num_threads(options.threads)
    found: dict[str, Any] = {}
    print("| model | plain | private | private, compiled |\n|---|---|---|---|")
    for name, work in MODELS.items():
        told = found[name] = measure(work, options.repeat)
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
