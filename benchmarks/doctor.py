"""Does the doctor name what was spoilt on purpose? Runs with one wrong setting each, and runs with none.

    python -m benchmarks doctor [--only made-on|held-out] [--task NAME] [--seeds 3] [--out FILE]
    python -m benchmarks doctor --rates

Each task has healthy settings by the scale rules, moved at random by a factor of up to two, and seven spoilt versions.
The rules of ``tacit doctor`` were made on the tasks called *made on*; the others were run once, after that. Each row of
the results is one run; rows that are there already are not run again.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.additive import study
from experiments.tuning import _table as known_table
from tacit import datasets
from tacit.runs.doctor import diagnose
from tacit.sgd import Training, Vitals
from tacit.tuning import good_defaults
from tacit.tuning.defaults import DISTANCE

DELTA = 1e-5
RESULTS = Path(__file__).parent / "results" / "doctor.jsonl"
#: How a run is spoilt, and what the doctor should say.
SPOILT = {
    "none": "healthy",
    "learning rate x30": "learning rate too large",
    "learning rate /30": "learning rate too small",
    "clip norm x100": "clip norm too large",
    "clip norm /100": "clip norm too small",
    "batch /16": "batch too small",
    "steps x20": "too many steps",
    "model far too large": "model too large",
}
#: Healthy learning rates, as a share of the rule's: in the middle of those that do best on the tasks *made on*. Squared
#: errors bend more than log-likelihoods. Adam has its own.
HEALTHY, REGRESSION, ADAM = 0.25, 0.0125, 0.03
LARGE = 4096


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned, by which model, from how many rows, at which ε."""

    name: str
    table: str
    rows: int
    hidden: int
    epsilon: float
    optimizer: str = "sgd"


MADE_ON = (
    Task("Adult, linear", "adult", 5000, 0, 1.0),
    Task("Fulton, network", "pums_fulton", 8000, 16, 1.0),
    Task("credit limits, regression", "limit", 6000, 0, 0.3),
    Task("labsup, network", "labsup", 4000, 16, 3.0),
    Task("Fulton, network, Adam", "pums_fulton", 8000, 16, 1.0, "adam"),
)
HELD_OUT = (
    Task("bank, linear", "bank", 8000, 0, 1.0),
    Task("credit, network", "credit", 10_000, 32, 1.0),
    Task("ACS, network", "acs", 20_000, 16, 0.5),
    Task("California, linear", "pums_california", 6000, 0, 3.0),
    Task("Fashion-MNIST, linear", "fashion_mnist", 10_000, 0, 3.0),
    Task("census 1980, regression", "census1980", 5000, 0, 0.5),
    Task("bank, network, Adam", "bank", 8000, 16, 1.0, "adam"),
)


def load(task: Task, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Private rows and test rows, drawn by the seed; numbers to predict lie in [-1, 1]."""
    if task.table == "fashion_mnist":
        images = datasets.fashion_mnist(download=False)
        encoded, _ = images.encode("train", dtype=np.float32)
        x, y = torch.from_numpy(encoded.features), torch.from_numpy(np.asarray(encoded.target).astype(np.int64))
    elif task.table in ("adult", "acs", "bank", "credit", "limit"):
        given = study(task.table)
        x = torch.from_numpy(given.schema.encode(given.frame, dtype=np.float32)[0].features)
        y = _target(given.y, given.target_bounds)
    elif task.table == "census1980":
        people = datasets.census1980(download=False)
        encoded, _ = people.encode(dtype=np.float32)
        x = torch.from_numpy(encoded.features)
        column = next(c for c in people.schema.columns if c.name == people.schema.target.name)
        y = _target(encoded.target, (column.lower, column.upper))
    else:
        target, without = {"labsup": ("worked", ()), "pums_fulton": ("employed", ("income",))}.get(
            task.table, ("married", ("income",))
        )
        x, y = known_table(datasets.load(task.table, download=False), target, without)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    private, test = order[: task.rows], order[task.rows : task.rows + 4000]
    return x[private], y[private], x[test], y[test]


def _target(values: Any, bounds: tuple[float, float] | None) -> Tensor:
    values = np.asarray(values)
    if bounds is None:
        return torch.from_numpy(values.astype(np.int64))
    low, high = bounds
    return torch.from_numpy((2 * (np.clip(values, low, high) - low) / (high - low) - 1).astype(np.float32))


def squared_error(model: nn.Module, batch: Any) -> Tensor:
    """The loss of each record where a number is predicted."""
    x, y = batch
    error: Tensor = model(x).squeeze(1) - y
    return error**2


def network(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """A linear model that begins at zero, or one hidden layer."""
    if hidden:
        return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))
    model = nn.Linear(inputs, outputs)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def one(task: Task, how: str, seed: int) -> dict[str, Any]:
    """Train a run, spoilt in this way, and ask the doctor."""
    draw = np.random.default_rng([seed, zlib.crc32(task.name.encode())])
    x, y, test_x, test_y = load(task, seed)
    numbers = y.dtype == torch.float32
    outputs = 1 if numbers else int(y.max()) + 1
    torch.manual_seed(seed)
    model = network(x.shape[1], task.hidden, outputs)
    size = sum(p.numel() for p in model.parameters())
    steps = int(draw.choice([60, 80, 100]))
    usual = good_defaults(len(x), size, epsilon=task.epsilon, delta=DELTA, steps=steps)
    clip, batch = float(2 ** draw.uniform(-1, 1)), usual.batch_size
    rate = usual.learning_rate * (REGRESSION if numbers else HEALTHY) / clip if task.optimizer == "sgd" else ADAM
    rate *= float(2 ** draw.uniform(-1, 1))
    rate *= {"learning rate x30": 30, "learning rate /30": 1 / 30}.get(how, 1)
    clip *= {"clip norm x100": 100, "clip norm /100": 1 / 100}.get(how, 1)
    batch = max(1, batch // 16) if how == "batch /16" else batch
    steps = 20 * steps if how == "steps x20" else steps
    if how == "model far too large":
        model = network(x.shape[1], LARGE, outputs)
    kind: Any = torch.optim.Adam if task.optimizer == "adam" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=rate, **({} if task.optimizer == "adam" else {"momentum": 0.9}))
    loss = squared_error if numbers else nn.CrossEntropyLoss(reduction="none")
    training = Training(
        model, optimizer, loss, (x, y), batch_size=batch, steps=steps, epsilon=task.epsilon, delta=DELTA, clip_norm=clip
    )
    vitals = Vitals(training)
    norm = None
    for drawn in training:
        training.step(drawn)
        norm = training.diagnostics().reveal().get("median_norm") if norm is None else norm
    said, seen = diagnose(vitals.facts, vitals.looks), diagnose(vitals.facts, vitals.looks, median_norm=norm)
    return {
        "score": score_of(model, test_x, test_y),
        "said": [[f.cause, round(f.factor, 2)] for f in said.findings],
        "operator": [[f.cause, round(f.factor, 2)] for f in seen.findings],
        "numbers": said.numbers,
        "facts": dataclasses.asdict(vitals.facts),
        "looks": [dataclasses.asdict(k) for k in vitals.looks],
        "norm": norm,
    }


#: The distances R whose learning rates are compared, for classes and for squared errors, and where.
DISTANCES = {False: (3, 10, 30, 60, 100, 200, 400), True: (0.3, 1, 3, 10, 30)}
COMPARED = (*MADE_ON[:2], MADE_ON[3], Task("Adult, linear, 2,000 rows", "adult", 2000, 0, 1.0), MADE_ON[2])


def rates(seeds: int = 2) -> None:
    """Print the mean score of each distance R, at 100 steps, clip norm 1 and momentum 0.9."""
    for task in COMPARED:
        found: dict[float, float] = {}
        for distance in DISTANCES["regression" in task.name]:
            scores = []
            for seed in range(seeds):
                x, y, test_x, test_y = load(task, seed)
                numbers = y.dtype == torch.float32
                torch.manual_seed(seed)
                model = network(x.shape[1], task.hidden, 1 if numbers else int(y.max()) + 1)
                size = sum(p.numel() for p in model.parameters())
                usual = good_defaults(len(x), size, epsilon=task.epsilon, delta=DELTA)
                rate = usual.learning_rate * distance / DISTANCE
                optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=usual.momentum)
                loss = squared_error if numbers else nn.CrossEntropyLoss(reduction="none")
                plan: dict[str, Any] = {
                    "batch_size": usual.batch_size,
                    "steps": usual.steps,
                    "epsilon": task.epsilon,
                    "delta": DELTA,
                }
                training = Training(model, optimizer, loss, (x, y), **plan)
                for drawn in training:
                    training.step(drawn)
                scores.append(score_of(model, test_x, test_y))
            found[distance] = round(float(np.mean(scores)), 3)
        print(task.name, found, flush=True)


def score_of(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Accuracy on test rows, or R² where a number is predicted."""
    with torch.no_grad():
        answers = model(x)
        if y.dtype == torch.float32:
            return 1 - float(((answers.squeeze(1) - y) ** 2).mean() / y.var())
        return float((answers.argmax(1) == y).double().mean())


def first(row: dict[str, Any], which: str = "said") -> str:
    """What was named first."""
    return row[which][0][0] if row[which] else "healthy"


def table(rows: Sequence[dict[str, Any]], which: str) -> list[str]:
    """How often each cause was named first, as a table in Markdown."""
    lines = ["| spoilt by | runs | named first | else |", "|---|---|---|---|"]
    right = total = 0
    for how, cause in SPOILT.items():
        mine = [row for row in rows if row["spoilt"] == how]
        good = sum(first(row, which) == cause for row in mine)
        other = collections.Counter(first(row, which) for row in mine if first(row, which) != cause)
        if how != "none":
            right, total = right + good, total + len(mine)
        words = ", ".join(f"{n} {what}" for what, n in other.most_common())
        lines.append(f"| {how if how != 'none' else 'nothing: it says so'} | {len(mine)} | {good} | {words} |")
    lines.append(f"| **all spoilt runs** | {total} | **{right} ({right / max(1, total):.0%})** | |")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is not there yet, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks doctor", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("made-on", "held-out"))
    parser.add_argument("--task", help="only the task of this name")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--looks", action="store_true", help="keep the looks of each run in the rows")
    parser.add_argument("--rates", action="store_true", help="compare learning rates instead")
    args = parser.parse_args(argv)
    if args.rates:
        rates()
        return 0
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(row["task"], row["spoilt"], row["seed"]) for row in rows}
    for group, tasks in (("made-on", MADE_ON), ("held-out", HELD_OUT)):
        if args.only not in (None, group):
            continue
        for task in tasks:
            if args.task not in (None, task.name):
                continue
            for seed in range(args.seeds):
                for how in SPOILT:
                    if (task.name, how, seed) in done or (task.optimizer == "adam" and how == "clip norm /100"):
                        continue  # Adam's steps do not depend on the clip norm where all gradients are clipped
                    found = one(task, how, seed)
                    if not args.looks:
                        del found["looks"], found["facts"]
                    rows.append({"group": group, "task": task.name, "spoilt": how, "seed": seed, **found})
                    with open(args.out, "a", encoding="utf-8") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    for group in ("made-on", "held-out"):
        mine = [row for row in rows if row["group"] == group]
        for which, words in (("said", "noisy gradients only"), ("operator", "with the operator's view")):
            print("\n".join(["", f"{group}, {words}", "", *table(mine, which)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
