"""Which way of tuning is worth its price? Accuracy at one total ε by five ways, on census data and MNIST.

``python -m benchmarks tuning --data census --seeds 5`` compares, at total ε = 3:

- *defaults*: scale rules from public numbers (``tacit.tuning.good_defaults``); nothing is tuned;
- *public transfer*: learning rate and clip norm tuned on public data of the same kind, then one private run;
- *private selection*: the best of a geometric number of runs by a noisy score, priced as a whole;
- *exponential mechanism*: every candidate trained and paid for, one chosen;
- *cheating*: the usual grid search, each run at ε = 3 and the winner by its exact score, with what it truly costs.

Census: is a person of the Fulton County sample (2000 census) employed? Public data: ``labsup`` (1980 census).
MNIST: a linear model on histograms of oriented gradients (fixed, no data used). Public data: Fashion-MNIST.
Test rows take part in nothing else. Writes a table, a JSON file and a plot (``--out``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit import accounting as acc
from tacit import datasets
from tacit.sgd import Training
from tacit.tuning import PrivateSearch, correct_count, good_defaults, tune_on_public

EPSILON, DELTA, STEPS, MOMENTUM = 3.0, 1e-6, 100, 0.9
SPACE = {"learning_rate": [0.3, 1.0, 3.0, 10.0], "clip_norm": [0.3, 1.0]}
RUNS = 6
SCORE_NOISE = 20.0


@dataclasses.dataclass(frozen=True)
class Rows:
    """A part of some data: inputs and class numbers."""

    x: Tensor
    y: Tensor


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned: private rows, public rows of the same kind, test rows, and how a model is made."""

    name: str
    private: Rows
    public: Rows
    test: Rows
    hidden: int
    classes: int

    def model(self, inputs: int) -> nn.Module:
        """A small network; without a hidden layer it starts at zero, as convex problems do."""
        if self.hidden:
            return nn.Sequential(nn.Linear(inputs, self.hidden), nn.Tanh(), nn.Linear(self.hidden, self.classes))
        model = nn.Linear(inputs, self.classes)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return model


# -- data --------------------------------------------------------------------------------------------------------------


def census(seed: int) -> Task:
    """Employment in Fulton County; ``labsup`` beside it."""
    fulton = datasets.load("pums_fulton")
    x, y = _table(fulton, "employed", without=("income",))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 + seed))
    cut = len(x) // 5
    public = datasets.load("labsup")
    px, py = _table(public, public.schema.target.name, without=())
    return Task(
        "census", Rows(x[order[cut:]], y[order[cut:]]), Rows(px, py), Rows(x[order[:cut]], y[order[:cut]]), 16, 2
    )


def married(seed: int) -> Task:
    """Who is married in Fulton County; California beside it, by the columns that both have."""
    fulton, california = datasets.load("pums_fulton"), datasets.load("pums_california")
    shared = {column.name for column in california.schema.features}
    left = tuple(column.name for column in fulton.schema.features if column.name not in shared)
    x, y = _table(fulton, "married", without=("income", *left))
    px, py = _table(california, "married", without=("income",))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 + seed))
    cut = len(x) // 5
    return Task(
        "married", Rows(x[order[cut:]], y[order[cut:]]), Rows(px, py), Rows(x[order[:cut]], y[order[:cut]]), 16, 2
    )


def _table(data: Any, target: str, without: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Features in [-1, 1] by the public schema, and one yes/no column as the target."""
    encoded, _ = data.encode(dtype=np.float32)
    schema = data.schema
    blocks, place, y = [], 0, None
    for column in schema.features:
        block = torch.from_numpy(encoded.features[:, place : place + column.width])
        place += column.width
        if column.name == target:
            y = (block[:, 0] > 0).long()
        elif column.name not in without:
            blocks.append(block)
    if y is None:
        y = torch.from_numpy(np.asarray(encoded.target)).long()
    return torch.cat(blocks, 1), y


def mnist(seed: int) -> Task:
    """Digits; clothes beside them."""
    digits, clothes = datasets.load("mnist"), datasets.load("fashion_mnist")
    train, test, public = (_images(*part) for part in ((digits, "train"), (digits, "test"), (clothes, "train")))
    return Task("mnist", train, public, test, 0, 10)


def _images(data: Any, split: str) -> Rows:
    encoded, _ = data.encode(split, dtype=np.float32)
    pixels = torch.from_numpy(encoded.features).reshape(-1, 28, 28)
    return Rows(oriented_gradients((pixels + 1) / 2), torch.from_numpy(np.asarray(encoded.target)).long())


def oriented_gradients(pixels: Tensor, bins: int = 8, cell: int = 4) -> Tensor:
    """Histograms of gradient directions in cells of 4 x 4, each picture scaled to length 1 on its own."""
    found = []
    for part in pixels.split(5000):
        dx, dy = torch.zeros_like(part), torch.zeros_like(part)
        dx[:, :, 1:-1] = part[:, :, 2:] - part[:, :, :-2]
        dy[:, 1:-1, :] = part[:, 2:, :] - part[:, :-2, :]
        size, angle = torch.hypot(dx, dy), (torch.atan2(dy, dx) / (2 * math.pi) % 1) * bins
        low = angle.floor().long() % bins
        share = angle - angle.floor()
        maps = torch.zeros(len(part), bins, *part.shape[1:])
        maps.scatter_add_(1, low[:, None], (size * (1 - share))[:, None])
        maps.scatter_add_(1, ((low + 1) % bins)[:, None], (size * share)[:, None])
        sums = nn.functional.avg_pool2d(maps, cell).flatten(1).sqrt()
        found.append(nn.functional.normalize(sums) * 3)
    return torch.cat(found)


# -- one run -----------------------------------------------------------------------------------------------------------


def training(task: Task, rows: Rows, candidate: dict[str, Any], batch: int, **noise: float) -> Training:
    """A DP-SGD run that has not begun."""
    model = task.model(rows.x.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=candidate["learning_rate"], momentum=MOMENTUM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Training(
            model,
            optimizer,
            nn.CrossEntropyLoss(reduction="none"),
            (rows.x, rows.y),
            batch_size=batch,
            steps=STEPS,
            clip_norm=candidate["clip_norm"],
            delta=DELTA,
            **noise,  # type: ignore[arg-type]
        )


def run(made: Training) -> nn.Module:
    """The model after all steps."""
    for batch in made:
        made.step(batch)
    return made.model


def accuracy(model: nn.Module, rows: Rows) -> float:
    """The share of right answers."""
    with torch.no_grad():
        return float((model(rows.x).argmax(1) == rows.y).double().mean())


def parted(rows: Rows, seed: int) -> tuple[Rows, Rows]:
    """Training and validation rows, apart by independent coins."""
    held = torch.rand(len(rows.x), generator=torch.Generator().manual_seed(seed)) < 0.1
    return Rows(rows.x[~held], rows.y[~held]), Rows(rows.x[held], rows.y[held])


# -- the five ways -----------------------------------------------------------------------------------------------------


def compare(
    task: Task, seed: int, batch: int, transferred: dict[str, Any], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """One seed of all ways, or of the one that is asked for."""
    torch.manual_seed(seed)
    told: list[dict[str, Any]] = []

    def note(way: str, model: nn.Module, candidate: dict[str, Any] | None, epsilon: float, began: float) -> None:
        told.append(
            {
                "way": way,
                "accuracy": accuracy(model, task.test),
                "epsilon": epsilon,
                "candidate": candidate,
                "seconds": time.monotonic() - began,
            }
        )
        print(f"  seed {seed} {way:<22} {told[-1]['accuracy']:.4f}  ε = {epsilon:.4f}  {candidate}", flush=True)

    def wanted(way: str) -> bool:
        return options.only in (None, way)

    whole = task.private
    if wanted("defaults"):
        began = time.monotonic()
        size = sum(p.numel() for p in task.model(whole.x.shape[1]).parameters())
        chosen = good_defaults(len(whole.x), size, epsilon=EPSILON, delta=DELTA, steps=STEPS)
        usual = {"learning_rate": chosen.learning_rate, "clip_norm": chosen.clip_norm}
        made = training(task, whole, usual, chosen.batch_size, epsilon=EPSILON)
        note("defaults", run(made), usual, made.privacy.upper, began)

    if wanted("public transfer") and transferred:
        began = time.monotonic()
        made = training(task, whole, transferred, batch, epsilon=EPSILON)
        note("public transfer", run(made), transferred, made.privacy.upper, began)

    train_rows, held = parted(whole, seed)
    for way, method in (("private selection", "geometric"), ("exponential mechanism", "exponential")):
        if not wanted(way):
            continue
        began = time.monotonic()
        search = PrivateSearch(
            SPACE,
            lambda candidate, noise: training(task, train_rows, candidate, batch, noise_multiplier=noise),
            correct_count(held.x, held.y.numpy(), noise=SCORE_NOISE),
            method=method,
            epsilon=EPSILON,
            delta=DELTA,
            runs=options.runs,
        )
        found = search.run()
        note(way, found.model, found.best, found.privacy.upper, began)

    if not wanted("cheating grid search"):
        return told
    began = time.monotonic()
    tried = []
    for rate in SPACE["learning_rate"]:
        for clip in SPACE["clip_norm"]:
            candidate = {"learning_rate": rate, "clip_norm": clip}
            made = training(task, train_rows, candidate, batch, epsilon=EPSILON)
            model = run(made)
            tried.append((accuracy(model, held), model, candidate, made.plan.mechanism))
    best = max(tried, key=lambda one: one[0])
    # What the trainings cost together. The exact scores of the validation rows are not private at any ε.
    true = acc.epsilon(sum((one[3] for one in tried[1:]), tried[0][3]), DELTA).upper
    note("cheating grid search", best[1], best[2], true, began)
    return told


def transfer(task: Task, batch: int) -> dict[str, Any]:
    """Learning rate and clip norm that did best on public rows, with the noise of a private run."""
    torch.manual_seed(0)
    fit_rows, held = parted(task.public, 0)

    def train(candidate: dict[str, Any]) -> nn.Module:
        return run(training(task, fit_rows, candidate, batch, epsilon=EPSILON))

    tuned = tune_on_public(SPACE, train, lambda model: accuracy(model, held), because="published data sets")
    for candidate, score in tuned.table:
        print(f"  public {candidate} {score:.4f}", flush=True)
    return tuned.best


def main(argv: list[str]) -> int:
    """Run the comparison; print the table, write JSON and the plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tuning", description=__doc__)
    parser.add_argument("--data", choices=["census", "married", "mnist"], default="census")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--chosen", type=json.loads, help="what tuning on public data gave, as JSON, to leave that out")
    parser.add_argument("--runs", type=float, default=RUNS, help="runs of the private selection, on average")
    parser.add_argument("--only", help="one way alone, such as 'private selection'")
    parser.add_argument("--out", type=Path, default=Path("results/tuning"))
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    load = {"census": census, "married": married, "mnist": mnist}[options.data]
    told: list[dict[str, Any]] = []
    try:
        task = load(0)
    except datasets.MissingDataError as missing:
        print(missing)
        return 0
    batch = good_defaults(len(task.private.x), 1, epsilon=EPSILON, delta=DELTA, steps=STEPS).batch_size
    print(f"{options.data}: {len(task.private.x):,} private rows, batch {batch}, {STEPS} steps", flush=True)
    transferred = options.chosen or ({} if options.only else transfer(task, batch))
    for seed in range(options.first, options.first + options.seeds):
        if seed and options.data != "mnist":
            task = load(seed)
        told += [{"seed": seed, **row} for row in compare(task, seed, batch, transferred, options)]
        name = options.out / f"{options.data}{'-only' if options.only else ''}.json"
        name.write_text(json.dumps({"data": options.data, "epsilon": EPSILON, "delta": DELTA, "rows": told}, indent=1))
    print(table(told))
    plot(told, options.data, options.out / f"{options.data}.png")
    return 0


def table(told: list[dict[str, Any]]) -> str:
    """Mean and standard deviation over seeds, and ε, of each way."""
    lines = ["| way | accuracy | ε at δ = 1e-6 |", "|---|---|---|"]
    for way in dict.fromkeys(row["way"] for row in told):
        values = [100 * row["accuracy"] for row in told if row["way"] == way]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        price = max(row["epsilon"] for row in told if row["way"] == way)
        lines.append(f"| {way} | {statistics.mean(values):.2f} ± {spread:.2f} % | {price:.2f} |")
    return "\n".join(lines)


def plot(told: list[dict[str, Any]], name: str, path: Path) -> None:
    """Accuracy of every seed by way, with the price beside each."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ways = list(dict.fromkeys(row["way"] for row in told))
    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    for place, way in enumerate(reversed(ways)):
        values = [100 * row["accuracy"] for row in told if row["way"] == way]
        price = max(row["epsilon"] for row in told if row["way"] == way)
        color = "#b3402e" if price > EPSILON * 1.001 else "#23527c"
        axes.plot(values, [place] * len(values), "o", color=color, alpha=0.45, markersize=6)
        axes.plot([statistics.mean(values)], [place], "|", color=color, markersize=22, markeredgewidth=2.5)
    labels = [f"{way}\nε = {max(row['epsilon'] for row in told if row['way'] == way):.2f}" for way in reversed(ways)]
    axes.set_yticks(range(len(ways)), labels)
    axes.set_ylim(-0.6, len(ways) - 0.4)
    axes.set_xlabel("accuracy on test rows, % (each seed, and the mean)")
    axes.set_title(f"{name}: what tuning costs and brings, δ = 1e-6", loc="left", fontsize=10)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
