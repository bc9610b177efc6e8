"""What does a private logit look like? The chance of being married by schooling, and DP-SGD on its likelihood.

Two textbook figures on the census sample of Fulton County. The curves: logits of samples of its people without privacy
and by DP-SGD, with intervals over the samples, so that the interval without privacy is the sampling error and the
private one shows what noise adds. The surface: the mean log-likelihood of the whole table, and the path of one run.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from torch import nn

from experiments.table import Facts, Row, Table, markdown, mean_sd

ABOUT = "being married by schooling (PUMS, Fulton County): private logits with intervals, DP-SGD on the likelihood"
FACTS = Facts(
    paper="textbook figures on the census sample of Fulton County: being married by schooling",
    same="25,766 people, two coefficients",
    differs="DP-SGD on samples of 5,000 people",
    published="slope .1383 a year of schooling without privacy",
    page="coefficients",
    short="see docs/results/coefficients.md",
    full="44 s on two busy cores, 20 seeds",
)
SEEDS = 20
DELTA = 1e-6
EPSILONS = (0.1, 1.0)
PEOPLE = 5_000  # in the sample of each seed
STEPS, RATE, LEARNING_RATE, CLIP = 200, 0.05, 2.0, 1.0
START = (-1.5, -1.5)  # far from the maximum, so that there is a path to see

Floats = npt.NDArray[np.float64]


def run(table: Table) -> None:
    """The counts of the whole table, the path of a run for each ε, and a fit for each ε and seed."""
    from tacit import datasets

    if table.tiny:
        people, target = datasets.labsup(), "worked"
        frame, steps, size = people.train.head(1000), 5, 500
    else:
        table.path("tables", "pums2000_fulton_ga.parquet")
        people, target = datasets.pums_fulton(download=False, data_dir=table.data), "married"
        frame, steps, size = people.train, STEPS, PEOPLE
    epsilons = EPSILONS[-1:] if table.tiny else EPSILONS
    column: Any = people.schema["educ"]
    low, high = int(column.lower), int(column.upper)
    levels = np.clip(frame["educ"].to_numpy().astype(np.int64), low, high)
    answers = frame[target].to_numpy().astype(np.int64)
    bounds = {"low": low, "high": high}
    table.row(lambda: {**bounds, **_counts(levels, answers, low, high)}, part="people", target=target)
    x = 2 * (levels - low) / (high - low) - 1
    for epsilon in epsilons:
        table.row(functools.partial(_path, x, answers, epsilon, steps), part="path", epsilon=epsilon)
    for epsilon in (*epsilons, float("inf")):
        for seed in range(table.seeds):
            chosen = np.random.default_rng(seed).permutation(len(x))[:size]
            table.row(
                functools.partial(_fit, x[chosen], answers[chosen], epsilon, steps),
                part="fit",
                epsilon=epsilon,
                seed=seed,
            )


def _counts(levels: npt.NDArray[np.int64], answers: npt.NDArray[np.int64], low: int, high: int) -> dict[str, Any]:
    """How many people of each schooling there are, and how many of them say yes: all that the likelihood needs."""
    size = high - low + 1
    return {
        "people": np.bincount(levels - low, minlength=size).tolist(),
        "yes": np.bincount(levels - low, weights=answers, minlength=size).astype(int).tolist(),
    }


def descent(x: Floats, y: npt.NDArray[np.int64], epsilon: float, steps: int) -> tuple[list[list[float]], Any, float]:
    """DP-SGD: intercept and slope after every step, their average over the last steps, and the ε that is claimed."""
    from tacit.sgd import Training

    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.bias.fill_(START[0])
        model.weight.fill_(START[1])
    training = Training(
        model,
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        nn.BCEWithLogitsLoss(reduction="none"),
        (x[:, None].astype(np.float32), y[:, None].astype(np.float32)),
        batch_size=round(RATE * len(x)),
        steps=steps,
        epsilon=epsilon,
        delta=DELTA,
        clip_norm=CLIP,
        ema=0.95,
        unit="person",
        groups=range(len(x)),  # a row is another person in this sample
    )
    path = [list(START)]
    for batch in training:
        training.step(batch)
        path.append([round(model.bias.item(), 4), round(model.weight.item(), 4)])
    average = (float(training.average["bias"].item()), float(training.average["weight"].item()))
    return path, average, training.privacy.upper


def _path(x: Floats, y: npt.NDArray[np.int64], epsilon: float, steps: int) -> dict[str, Any]:
    path, average, claimed = descent(x, y, epsilon, steps)
    return {"claimed": claimed, "delta": DELTA, "path": path[::4], "average": list(average)}


def _fit(x: Floats, y: npt.NDArray[np.int64], epsilon: float, steps: int) -> dict[str, float]:
    if epsilon == float("inf"):
        found = maximum(x, np.ones(len(x)), y.astype(np.float64))
        return {"claimed": epsilon, "intercept": found[0], "slope": found[1]}
    _, average, claimed = descent(x, y, epsilon, steps)
    return {"claimed": claimed, "delta": DELTA, "intercept": average[0], "slope": average[1]}


def likelihood(intercept: Any, slope: Any, x: Floats, people: Floats, yes: Floats) -> Any:
    """Mean log-likelihood of the logit where ``yes`` of the ``people`` at each ``x`` say yes.

    >>> float(likelihood(0.0, 0.0, np.zeros(1), np.ones(1), np.ones(1)).round(4))
    -0.6931
    """
    score = np.asarray(intercept)[..., None] + np.asarray(slope)[..., None] * x
    return (yes * log_expit(score) + (people - yes) * log_expit(-score)).sum(-1) / people.sum()


def maximum(x: Floats, people: Floats, yes: Floats) -> tuple[float, float]:
    """Intercept and slope of the largest likelihood, without privacy."""
    found = minimize(lambda theta: -likelihood(theta[0], theta[1], x, people, yes), np.zeros(2)).x
    return float(found[0]), float(found[1])


def _whole(rows: list[Row]) -> tuple[Row, Floats, Floats, Floats, Floats]:
    """The row of counts; schooling, as it is and scaled, people and answers at each."""
    row = next(row for row in rows if row["part"] == "people")
    levels = np.arange(row["low"], row["high"] + 1, dtype=np.float64)
    scaled = 2 * (levels - row["low"]) / (row["high"] - row["low"]) - 1
    return row, levels, scaled, np.array(row["people"], float), np.array(row["yes"], float)


def _curves(rows: list[Row], epsilon: float, scaled: Floats) -> Floats:
    own = [row for row in rows if row["part"] == "fit" and row["epsilon"] == epsilon]
    return np.array([expit(row["intercept"] + row["slope"] * scaled) for row in own])


def _epsilons(rows: list[Row]) -> list[float]:
    return sorted({row["epsilon"] for row in rows if row["part"] == "fit"})


def summary(rows: list[Row]) -> str:
    """Coefficients (schooling scaled to [-1, 1]) and the chance at two levels of schooling, over seeds."""
    _, levels, scaled, _, _ = _whole(rows)
    places = [round(0.55 * (len(levels) - 1)), round(0.8 * (len(levels) - 1))]  # high school and college in this census
    found: list[Row] = []
    for epsilon in _epsilons(rows):
        own = [row for row in rows if row["part"] == "fit" and row["epsilon"] == epsilon]
        row: Row = {"ε": epsilon, "seeds": len(own)}
        for name in ("intercept", "slope"):
            row[name], row[f"sd of {name}"] = mean_sd([one[name] for one in own])
        for place in places:
            chances = 100 * _curves(rows, epsilon, scaled)[:, place]
            low, high = np.quantile(chances, [0.05, 0.95])
            row[f"% at schooling {levels[place]:g} (90% of seeds)"] = f"{chances.mean():.1f} ({low:.1f} to {high:.1f})"
        found.append(row)
    return markdown(found, list(found[0]))


def plot(rows: list[Row], folder: Path) -> None:
    """Left, the curves; then the likelihood with the path of a run for each ε."""
    from matplotlib.figure import Figure

    row, levels, scaled, people, yes = _whole(rows)
    paths = [one for one in rows if one["part"] == "path"]
    figure = Figure(figsize=(4.6 * (1 + len(paths)), 4.2), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(paths))
    seen = people > 0
    first.scatter(
        levels[seen], yes[seen] / people[seen], s=4 + 300 * people[seen] / people.sum(), color="gray", alpha=0.5,
        label="share in the table",
    )  # fmt: skip
    for number, epsilon in enumerate(_epsilons(rows)):
        curves = _curves(rows, epsilon, scaled)
        low, high = np.quantile(curves, [0.05, 0.95], axis=0)
        label = "not private" if epsilon == float("inf") else f"ε = {epsilon:g}"
        first.fill_between(levels, low, high, color=f"C{number}", alpha=0.25)
        first.plot(levels, curves.mean(0), color=f"C{number}", label=f"{label}, 90% of seeds")
    first.set(xlabel="schooling (code of the census)", ylabel=f"chance of: {row['target']}", ylim=(0, 1))
    first.legend(fontsize=8)
    best = maximum(scaled, people, yes)
    for axes, one in zip(others, paths, strict=True):
        path = np.array(one["path"])
        every = np.vstack([path, best])
        (left, bottom), (right, top) = every.min(0) - 0.4, every.max(0) + 0.4
        a, b = np.meshgrid(np.linspace(left, right, 80), np.linspace(bottom, top, 80))
        surface = likelihood(a, b, scaled, people, yes)
        peak = float(likelihood(*best, scaled, people, yes))
        heights = peak - np.geomspace(max(peak - surface.min(), 1e-3), 1e-3, 14)
        axes.contour(a, b, surface, levels=heights, linewidths=0.8, cmap="viridis")
        axes.plot(path[:, 0], path[:, 1], ".-", color="C3", lw=1, ms=3, label="DP-SGD, every 4th step")
        axes.plot(*one["average"], "D", color="C1", ms=7, label="average of the last steps")
        axes.plot(*best, "*", color="black", ms=12, label="maximum, not private")
        axes.set(
            xlabel="intercept", ylabel="slope (schooling in [-1, 1])",
            title=f"log-likelihood, ε = {one['epsilon']:g}, δ = {DELTA:g}",
        )  # fmt: skip
        axes.legend(fontsize=8, loc="lower right")
    figure.savefig(folder / "logit.png", dpi=110)
