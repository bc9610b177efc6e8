"""Which way of tuning is worth its price? Accuracy at one total ε by five ways, on two census tasks and MNIST.

At total ε = 3:

- *defaults*: scale rules from public numbers (``tacit.tuning.good_defaults``); nothing is tuned;
- *public transfer*: learning rate and clip norm tuned on public data of the same kind, then one private run;
- *private selection*: the best of a geometric number of runs by a noisy score, priced as a whole;
- *exponential mechanism*: every candidate trained and paid for, one chosen;
- *cheating grid search*: the usual one, each run at ε = 3 and the winner by its exact score, with what it truly costs.

Census: is a person of the Fulton County sample (2000 census) employed? Public data: ``labsup`` (1980 census). Married:
who is married there; public data: California. MNIST: a linear model on histograms of oriented gradients (fixed, no data
used); public data: Fashion-MNIST. Test rows take part in nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.table import Facts, Row, Table, mean_sd
from tacit import accounting as acc
from tacit.sgd import Training

ABOUT = "five ways of tuning at one total ε = 3: defaults, public data, private selection, exponential, cheating"
FACTS = Facts(
    paper="Liu & Talwar 2019; Papernot & Steinke 2022; exponential mechanism (McSherry & Talwar 2007)",
    same="the mechanisms and their prices",
    differs="tasks and data are ours",
    published="none on these tasks",
    page="tuning",
    short="166 s on two busy cores (70 s of processor time): census, 4 candidates, 1 seed; needs tacit[demo]",
    full="not timed as a whole",
)
SEEDS = 5
SHORT_SEEDS = 1  # of the short size, which has the census task alone
EPSILON, DELTA, MOMENTUM, SCORE_NOISE = 3.0, 1e-6, 0.9, 20.0
DATA = ("census", "married", "mnist")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much is tried: steps of a run, the candidates, and runs of the private selection on average.

    ``batch`` is that of every run but the defaults'; without one it is what the scale rules give.
    """

    steps: int = 100
    batch: int | None = None
    learning_rates: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0)
    clip_norms: tuple[float, ...] = (0.3, 1.0)
    runs: float = 6.0

    @property
    def space(self) -> dict[str, list[float]]:
        """The candidates, as a search takes them."""
        return {"learning_rate": list(self.learning_rates), "clip_norm": list(self.clip_norms)}


#: Of the short size: half of the candidates.
SHORT = Settings(learning_rates=(1.0, 3.0), runs=4.0)
SMALL = Settings(steps=2, batch=300, learning_rates=(1.0,), clip_norms=(0.3, 1.0), runs=1.5)


@dataclasses.dataclass(frozen=True)
class Rows:
    """A part of some data: inputs and class numbers."""

    x: Tensor
    y: Tensor


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned: private rows, public rows of the same kind, test rows, and how a model is made."""

    private: Rows
    public: Rows
    test: Rows
    hidden: int
    classes: int
    settings: Settings = Settings()

    def model(self, inputs: int) -> nn.Module:
        """A small network; without a hidden layer it starts at zero, as convex problems do."""
        if self.hidden:
            return nn.Sequential(nn.Linear(inputs, self.hidden), nn.Tanh(), nn.Linear(self.hidden, self.classes))
        model = nn.Linear(inputs, self.classes)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return model

    @property
    def batch(self) -> int:
        """The batch of every private run but the defaults'."""
        from tacit.tuning import good_defaults

        if self.settings.batch is not None:
            return self.settings.batch
        made = good_defaults(len(self.private.x), 1, epsilon=EPSILON, delta=DELTA, steps=self.settings.steps)
        return made.batch_size


def run(table: Table, names: Iterable[str] | None = None) -> None:
    """Rows for each task, seed and way; what public data gave is a row before them."""
    seeds = max(table.seeds, table.pick(1, SHORT_SEEDS, 1))
    for name in names or table.pick(("labsup",), ("census",), DATA):
        load = functools.lru_cache(1)(functools.partial(_loaded, name, table))
        public = table.row(functools.partial(_transfer, load), data=name, way="tuned on public data")
        for seed in range(seeds):
            for way, measure in WAYS.items():
                # MNIST has a test split of its own: one load serves all seeds.
                task = functools.partial(load, 0 if name == "mnist" else seed)
                measured = functools.partial(_measured, measure, task, seed, public["candidate"])
                table.row(measured, data=name, seed=seed, way=way)


def _loaded(name: str, table: Table, seed: int) -> Task:
    task = TASKS[name](table, seed)
    return dataclasses.replace(task, settings=SHORT) if table.size == "short" else task


def _measured(
    measure: Callable[[Task, int, dict[str, Any]], tuple[nn.Module, Any, float]],
    task: Callable[[], Task],
    seed: int,
    transferred: dict[str, Any],
) -> dict[str, Any]:
    loaded = task()
    torch.manual_seed(seed)
    model, candidate, epsilon = measure(loaded, seed, transferred)
    return {"accuracy": accuracy(model, loaded.test), "epsilon": epsilon, "delta": DELTA, "candidate": candidate}


# -- data --------------------------------------------------------------------------------------------------------------


def _known(table: Table, name: str) -> Any:
    from tacit import datasets

    return datasets.load(name, table.data, download=False)


def labsup(table: Table, seed: int) -> Task:
    """The small version: a few rows that need no download."""
    x, y = _table(_known(table, "labsup"), "worked", without=())
    private, public, test = (Rows(x[a : a + 300], y[a : a + 300]) for a in (0, 300, 600))
    return Task(private, public, test, hidden=4, classes=2, settings=SMALL)


def census(table: Table, seed: int) -> Task:
    """Employment in Fulton County; ``labsup`` beside it."""
    x, y = _table(_known(table, "pums_fulton"), "employed", without=("income",))
    return _parted(x, y, Rows(*_table(_known(table, "labsup"), "worked", without=())), seed)


def married(table: Table, seed: int) -> Task:
    """Who is married in Fulton County; California beside it, by the columns that both have."""
    fulton, california = _known(table, "pums_fulton"), _known(table, "pums_california")
    shared = {column.name for column in california.schema.features}
    left = tuple(column.name for column in fulton.schema.features if column.name not in shared)
    x, y = _table(fulton, "married", without=("income", *left))
    return _parted(x, y, Rows(*_table(california, "married", without=("income",))), seed)


def _parted(x: Tensor, y: Tensor, public: Rows, seed: int) -> Task:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 + seed))
    test, private = order[: len(x) // 5], order[len(x) // 5 :]
    return Task(Rows(x[private], y[private]), public, Rows(x[test], y[test]), hidden=16, classes=2)


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


def mnist(table: Table, seed: int) -> Task:
    """Digits; clothes beside them."""
    digits, clothes = _known(table, "mnist"), _known(table, "fashion_mnist")
    train, test, public = (_images(*part) for part in ((digits, "train"), (digits, "test"), (clothes, "train")))
    return Task(train, public, test, hidden=0, classes=10)


#: The data that each task really uses: private and public.
SOURCES = {
    "labsup": "900 rows of labsup for all parts, which shows nothing but that it runs",
    "census": "pums_fulton (employed); public: labsup (worked)",
    "married": "pums_fulton (married); public: pums_california",
    "mnist": "mnist; public: fashion_mnist",
}
TASKS = {"labsup": labsup, "census": census, "married": married, "mnist": mnist}


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


# -- the ways ----------------------------------------------------------------------------------------------------------


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
            batch_size=min(batch, len(rows.x)),
            steps=task.settings.steps,
            clip_norm=candidate["clip_norm"],
            delta=DELTA,
            **noise,  # type: ignore[arg-type]
        )


def driven(made: Training) -> nn.Module:
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


def _transfer(load: Callable[[int], Task]) -> dict[str, Any]:
    """Learning rate and clip norm that did best on public rows, with the noise of a private run."""
    from tacit.tuning import tune_on_public

    task = load(0)
    torch.manual_seed(0)
    fit_rows, held = parted(task.public, 0)
    tuned = tune_on_public(
        task.settings.space,
        lambda candidate: driven(training(task, fit_rows, candidate, task.batch, epsilon=EPSILON)),
        lambda model: accuracy(model, held),
        because="published data sets",
    )
    return {"candidate": tuned.best, "tried": [[candidate, score] for candidate, score in tuned.table]}


def _defaults(task: Task, seed: int, transferred: dict[str, Any]) -> tuple[nn.Module, Any, float]:
    from tacit.tuning import good_defaults

    whole = task.private
    size = sum(p.numel() for p in task.model(whole.x.shape[1]).parameters())
    chosen = good_defaults(len(whole.x), size, epsilon=EPSILON, delta=DELTA, steps=task.settings.steps)
    usual = {"learning_rate": chosen.learning_rate, "clip_norm": chosen.clip_norm}
    made = training(task, whole, usual, chosen.batch_size, epsilon=EPSILON)
    return driven(made), usual, made.privacy.upper


def _public(task: Task, seed: int, transferred: dict[str, Any]) -> tuple[nn.Module, Any, float]:
    made = training(task, task.private, transferred, task.batch, epsilon=EPSILON)
    return driven(made), transferred, made.privacy.upper


def _searched(method: str, task: Task, seed: int, transferred: dict[str, Any]) -> tuple[nn.Module, Any, float]:
    from tacit.tuning import PrivateSearch, correct_count

    rows, held = parted(task.private, seed)
    found = PrivateSearch(
        task.settings.space,
        lambda candidate, noise: training(task, rows, candidate, task.batch, noise_multiplier=noise),
        correct_count(held.x, held.y.numpy(), noise=SCORE_NOISE),
        method=method,
        epsilon=EPSILON,
        delta=DELTA,
        runs=task.settings.runs,
    ).run()
    return found.model, found.best, found.privacy.upper


def _cheating(task: Task, seed: int, transferred: dict[str, Any]) -> tuple[nn.Module, Any, float]:
    rows, held = parted(task.private, seed)
    tried = []
    for rate in task.settings.learning_rates:
        for clip in task.settings.clip_norms:
            candidate = {"learning_rate": rate, "clip_norm": clip}
            made = training(task, rows, candidate, task.batch, epsilon=EPSILON)
            model = driven(made)
            tried.append((accuracy(model, held), model, candidate, made.plan.mechanism))
    best = max(tried, key=lambda one: one[0])
    # What the trainings cost together. The exact scores of the validation rows are not private at any ε.
    true = acc.epsilon(sum((one[3] for one in tried[1:]), tried[0][3]), DELTA).upper
    return best[1], best[2], true


WAYS: dict[str, Callable[[Task, int, dict[str, Any]], tuple[nn.Module, Any, float]]] = {
    "defaults": _defaults,
    "public transfer": _public,
    "private selection": functools.partial(_searched, "geometric"),
    "exponential mechanism": functools.partial(_searched, "exponential"),
    "cheating grid search": _cheating,
}


# -- table and picture -------------------------------------------------------------------------------------------------


def summary(rows: list[Row]) -> str:
    """Mean and standard deviation over seeds, and ε, of each way."""
    names = _names(rows)
    used = "; ".join(f"{name}: {SOURCES[name]}" for name in names)
    lines = [
        f"Data: {used}.",
        "",
        "| way | " + " | ".join(f"{name}, accuracy % | ε at δ = {DELTA:g}" for name in names) + " |",
        "|---|" + "---|" * (2 * len(names)),
    ]
    for way in WAYS:
        cells = []
        for name in names:
            values, price = _of(rows, name, way)
            mean, deviation = mean_sd(values) if values else (math.nan, math.nan)
            spread = "" if math.isnan(deviation) else f" ± {deviation:.2f}"
            cells += [f"{mean:.2f}{spread}" if values else "", f"{price:.2f}" if values else ""]
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _names(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["data"] for row in rows))


def _of(rows: list[Row], name: str, way: str) -> tuple[list[float], float]:
    own = [row for row in rows if row["data"] == name and row["way"] == way]
    return [100 * row["accuracy"] for row in own], max((row["epsilon"] for row in own), default=math.nan)


def plot(rows: list[Row], folder: Path) -> None:
    """Accuracy of every seed by way, with the price beside each; one panel a task."""
    from matplotlib.figure import Figure

    names, ways = _names(rows), list(reversed(WAYS))
    figure = Figure(figsize=(7.5, 0.6 + 2.9 * len(names)), layout="constrained")
    for axes, name in zip(figure.subplots(len(names), 1, squeeze=False)[:, 0], names, strict=True):
        labels = []
        for place, way in enumerate(ways):
            values, price = _of(rows, name, way)
            labels.append(f"{way}\nε = {price:.2f}")
            if values:
                color = "#b3402e" if price > EPSILON * 1.001 else "#23527c"
                axes.plot(values, [place] * len(values), "o", color=color, alpha=0.45, markersize=6)
                axes.plot([mean_sd(values)[0]], [place], "|", color=color, markersize=22, markeredgewidth=2.5)
        axes.set_yticks(range(len(ways)), labels)
        axes.set_ylim(-0.6, len(ways) - 0.4)
        axes.set_xlabel("accuracy on test rows, % (each seed, and the mean)")
        axes.set_title(f"{name}: what tuning costs and brings, δ = {DELTA:g}", loc="left", fontsize=10)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "tuning.png", dpi=150)
