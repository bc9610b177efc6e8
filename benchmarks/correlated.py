"""What does correlated noise bring? Accuracy on Fashion-MNIST with banded and with independent noise at equal ε.

    python -m benchmarks correlated [--epsilons 2 8] [--seeds 5] [--passes 20] [--minutes 8] [--out FILE]
    python -m benchmarks correlated --predict | --steps

A network of 784, 128 and 10 units, batches of 500, plain SGD at a constant learning rate, δ = 1e-5. For each ε and kind
of noise the learning rate is the best of seven, for a seed of its own, on the first half of the test pictures; the
seeds that are reported train with it and are measured on the other half. Each run is appended to a file of JSON lines,
and one that is there is not repeated; ``--minutes`` ends the command after the run in which they pass. ``--predict``
prints the noise in the weights that :func:`tacit.accounting.choose_bands` predicts for published runs, next to DP-SGD,
and ``--steps`` the time of a step by kind of noise.
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
from scipy import stats
from torch import Tensor, nn

from tacit import accounting as acc
from tacit import datasets, sgd

#: (size, batch, steps, δ) of runs whose noise is predicted.
RUNS = (
    (50_000, 500, 2_000, 1e-5),
    (60_000, 1_024, 1_170, 1e-5),
    (50_000, 4_096, 500, 1e-5),
    (10**6, 1_000, 2_000, 1e-6),
)
RATES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
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
        right = (model(test_x).argmax(1) == test_y).double()
    choosing, reported = (round(100 * float(part.mean()), 2) for part in right.chunk(2))
    return {
        "kind": kind,
        "epsilon": epsilon,
        "rate": rate,
        "seed": seed,
        "passes": passes,
        "bands": training.plan.correlation.bands,
        "noise": training.plan.noise[0],
        "claimed": training.privacy.upper,
        "choosing": choosing,
        "accuracy": reported,
        "seconds": round(time.process_time() - began, 1),
    }


def of(rows: list[dict[str, Any]], kind: str, epsilon: float, passes: int) -> list[dict[str, Any]]:
    """The rows of one cell: first those that choose the learning rate, then the seeds."""
    found = [r for r in rows if (r["kind"], r["epsilon"], r["passes"]) == (kind, epsilon, passes)]
    return sorted(found, key=lambda row: (row["seed"] != CHOOSING, row["seed"]))


def runs(epsilons: list[float], seeds: int, passes: int, rows: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """What is to be run, given the rows that are there: first the learning rates, then the seeds."""
    for epsilon in epsilons:
        for kind in KINDS:
            for rate in RATES:
                yield kind, epsilon, rate, CHOOSING, passes
            chosen = [row for row in of(rows, kind, epsilon, passes) if row["seed"] == CHOOSING]
            best = max(chosen, key=lambda row: row["choosing"])["rate"]
            for seed in range(seeds):
                yield kind, epsilon, best, seed, passes


def show(rows: list[dict[str, Any]], epsilons: list[float], passes: int) -> None:
    """Accuracies by ε, and the gain with Welch's 95% interval."""
    for epsilon in epsilons:
        found = []
        for kind in KINDS:
            mine = [row for row in of(rows, kind, epsilon, passes) if row["seed"] < CHOOSING]
            if len(mine) < 2:
                break
            found.append([row["accuracy"] for row in mine])
            last = mine[-1]
            how = f"learning rate {last['rate']:g}, {last['bands']} bands, noise {last['noise']:.3f}"
            told = f"{np.mean(found[-1]):.2f}, deviation {np.std(found[-1], ddof=1):.2f}, {len(mine)} seeds"
            print(
                f"ε = {epsilon:g}  {kind:<12} {told}  ({how}, claimed {last['claimed']:.4f}, {last['seconds']:.0f} s)"
            )
        if len(found) == 2:
            test = stats.ttest_ind(found[1], found[0], equal_var=False)
            low, high = test.confidence_interval(0.95)
            gain = np.mean(found[1]) - np.mean(found[0])
            print(f"ε = {epsilon:g}  gain {gain:.2f} points, 95% interval [{low:.2f}, {high:.2f}]")


def predict() -> None:
    """Predicted root mean squared noise in the weights, DP-SGD's as 1, with the number of bands and seconds of CPU."""
    for size, batch, steps, delta in RUNS:
        cells = []
        for epsilon in (1, 2, 4, 8, 16):
            began = time.process_time()
            best = acc.choose_bands(size, batch, steps, epsilon=epsilon, delta=delta, adjacency="add-remove")[0]
            cells.append(f"{best.error:.3f} ({best.bands}, {time.process_time() - began:.1f} s)")
        print(f"N={size:,} B={batch:,} n={steps:,} δ={delta:g}: " + "  ".join(cells))


def steps() -> None:
    """Median milliseconds of CPU of a step of this network by kind of noise: kept bands, and noise drawn again."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(20_000, 784, generator=generator), torch.randint(10, (20_000,), generator=generator)
    kinds: list[Any] = [None, *(sgd.Banded(bands=b) for b in (8, 32)), *(sgd.BandedInverse(bands=b) for b in (8, 32))]
    made = []
    for noise in kinds:
        model = nn.Sequential(nn.Linear(784, 128), nn.Tanh(), nn.Linear(128, 10))
        made.append(sgd.Training(
            model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none"), (x, y),
            batch_size=BATCH, steps=200, noise_multiplier=1.0, delta=DELTA, noise=noise, compile=False,
            sampler="chunks" if isinstance(noise, sgd.BandedInverse) else "poisson",
        ))  # fmt: skip
    times: list[list[float]] = [[] for _ in kinds]
    for batches in zip(*made, strict=True):
        for training, batch, mine in zip(made, batches, times, strict=True):
            began = time.process_time()
            training.step(batch)
            mine.append(1000 * (time.process_time() - began))
    plain = float(np.median(times[0][32:]))
    for noise, mine in zip(kinds, times, strict=True):
        took = float(np.median(mine[32:]))  # from here on all bands are there
        print(f"{noise or 'independent noise'}: {took:.2f} ms a step, x {took / plain:.2f}")


def main(argv: list[str]) -> int:
    """Run what is missing, and show the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 8.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/correlated.jsonl"))
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--steps", action="store_true")
    chosen = parser.parse_args(argv)
    if chosen.predict or chosen.steps:
        predict() if chosen.predict else steps()
        return 0
    until = time.monotonic() + 60 * chosen.minutes
    rows = [json.loads(line) for line in chosen.out.read_text().splitlines()] if chosen.out.exists() else []
    names = ("kind", "epsilon", "rate", "seed", "passes")
    data = None
    for wanted in runs(chosen.epsilons, chosen.seeds, chosen.passes, rows):
        if any(tuple(row[name] for name in names) == wanted for row in rows):
            continue
        if time.monotonic() > until:
            print("the time is over; the same command goes on from here")
            return 0
        data = data or pictures()
        row = train(data, *wanted)
        rows.append(row)
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        with chosen.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    show(rows, chosen.epsilons, chosen.passes)
    return 0
