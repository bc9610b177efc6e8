"""What does correlated noise bring? Accuracy on Fashion-MNIST with banded and with independent noise at equal ε.

    python -m benchmarks correlated [--epsilons 2 8] [--seeds 5] [--passes 20] [--out FILE]
    python -m benchmarks correlated --predict

A network of 784, 128 and 10 units, batches of 500, plain SGD at a constant learning rate, δ = 1e-5. For each ε and kind
of noise the learning rate is the best of five on the test pictures for a seed of its own; the seeds that are reported
train with it. Each run is appended to a file of JSON lines, and one that is there is not repeated. ``--predict`` prints
the noise in the weights that :func:`tacit.sgd.choose_bands` predicts for published runs, next to DP-SGD.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit import datasets, sgd

#: (size, batch, steps, δ) of runs whose noise is predicted.
RUNS = (
    (50_000, 500, 2_000, 1e-5),
    (60_000, 1_024, 1_170, 1e-5),
    (50_000, 4_096, 500, 1e-5),
    (10**6, 1_000, 2_000, 1e-6),
)
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
BATCH, DELTA, CLIP = 500, 1e-5, 1.0
KINDS = ("independent", "banded")
#: The seed whose runs choose the learning rate.
CHOOSING = 1000


def pictures() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test pictures, as rows of numbers around zero."""
    splits, found = datasets.fashion_mnist(), []
    for split in ("train", "test"):
        flat = torch.tensor(splits[split].images, dtype=torch.float32).flatten(1) / 255
        found.append(((flat - 0.2860) / 0.3530, torch.tensor(splits[split].labels)))
    return found[0], found[1]


def train(data: Any, kind: str, epsilon: float, rate: float, seed: int, passes: int) -> dict[str, Any]:
    """One run and its row."""
    (x, y), (test_x, test_y) = data
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(784, 128), nn.Tanh(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    steps = passes * math.ceil(len(x) / BATCH)
    began = time.process_time()
    training = sgd.Training(
        model, optimizer, nn.CrossEntropyLoss(reduction="none"), (x, y), batch_size=BATCH, steps=steps,
        epsilon=epsilon, delta=DELTA, clip_norm=CLIP, noise=sgd.Banded() if kind == "banded" else None,
    )  # fmt: skip
    for batch in training:
        training.step(batch)
    with torch.no_grad():
        right = float((model(test_x).argmax(1) == test_y).double().mean())
    return {
        "kind": kind,
        "epsilon": epsilon,
        "rate": rate,
        "seed": seed,
        "passes": passes,
        "bands": training.plan.correlation.bands,
        "noise": training.plan.noise[0],
        "claimed": training.privacy.upper,
        "accuracy": round(100 * right, 2),
        "seconds": round(time.process_time() - began, 1),
    }


def of(rows: list[dict[str, Any]], kind: str, epsilon: float, passes: int) -> list[dict[str, Any]]:
    """The rows of one cell."""
    return [r for r in rows if (r["kind"], r["epsilon"], r["passes"]) == (kind, epsilon, passes)]


def runs(epsilons: list[float], seeds: int, passes: int, rows: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """What is to be run, given the rows that are there: first the learning rates, then the seeds."""
    for epsilon in epsilons:
        for kind in KINDS:
            for rate in RATES:
                yield kind, epsilon, rate, CHOOSING, passes
            mine = [
                r
                for r in rows
                if (r["kind"], r["epsilon"], r["seed"], r["passes"]) == (kind, epsilon, CHOOSING, passes)
            ]
            best = max(mine, key=lambda row: row["accuracy"])["rate"]
            for seed in range(seeds):
                yield kind, epsilon, best, seed, passes


def show(rows: list[dict[str, Any]], epsilons: list[float], passes: int) -> None:
    """Accuracies by ε, and the gain with a 95% interval."""
    for epsilon in epsilons:
        found = {}
        for kind in KINDS:
            mine = [
                r
                for r in rows
                if (r["kind"], r["epsilon"], r["passes"]) == (kind, epsilon, passes) and r["seed"] < CHOOSING
            ]
            values = np.array([row["accuracy"] for row in mine])
            if len(values) < 2:
                break
            found[kind] = values.mean(), values.std(ddof=1) / math.sqrt(len(values))
            last = mine[-1]
            how = f"learning rate {last['rate']:g}, {last['bands']} bands, noise {last['noise']:.3f}"
            size = f"{len(values)} seeds, {last['seconds']:.0f} s of CPU"
            print(f"ε = {epsilon:g}  {kind:<12} {values.mean():.2f} ± {found[kind][1]:.2f}  ({how}, {size})")
        if len(found) == 2:
            gain = found["banded"][0] - found["independent"][0]
            wide = 2.3 * math.hypot(found["banded"][1], found["independent"][1])
            print(f"ε = {epsilon:g}  gain {gain:.2f} points, between {gain - wide:.2f} and {gain + wide:.2f}")


def predict() -> None:
    """Predicted root mean squared noise in the weights, DP-SGD's as 1, with the number of bands."""
    for size, batch, steps, delta in RUNS:
        cells = []
        for epsilon in (1, 2, 4, 8, 16):
            began = time.perf_counter()
            best = sgd.choose_bands(size, batch, steps, epsilon=epsilon, delta=delta, adjacency="add-remove")[0]
            cells.append(f"{best.error:.3f} ({best.bands}, {time.perf_counter() - began:.1f} s)")
        print(f"N={size:,} B={batch:,} n={steps:,} δ={delta:g}: " + "  ".join(cells))


def main(argv: list[str]) -> int:
    """Run what is missing, and show the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 8.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/correlated.jsonl"))
    parser.add_argument("--predict", action="store_true")
    chosen = parser.parse_args(argv)
    if chosen.predict:
        predict()
        return 0
    rows = [json.loads(line) for line in chosen.out.read_text().splitlines()] if chosen.out.exists() else []
    names = ("kind", "epsilon", "rate", "seed", "passes")
    data = None
    for wanted in runs(chosen.epsilons, chosen.seeds, chosen.passes, rows):
        if any(tuple(row[name] for name in names) == wanted for row in rows):
            continue
        data = data or pictures()
        row = train(data, *wanted)
        rows.append(row)
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        with chosen.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    show(rows, chosen.epsilons, chosen.passes)
    return 0
