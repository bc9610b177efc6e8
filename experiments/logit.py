"""What does a private logit say? The chance of being married by schooling, by what a person would use.

On the census sample of Fulton County: :class:`tacit.linear_model.LogisticRegression` as it comes (*default*), by
objective perturbation and by DP-SGD, each fitted to all people, several times. The default clips whitened gradients,
and here that biases the slope at any ε: the row ``clipped`` has where its steps would end without noise, the same with
a clip norm that clips nobody, and how many people are clipped.

Then the surface of a textbook: the mean log-likelihood of the whole table, and the path of one run of DP-SGD on it.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize, root
from scipy.special import expit, log_expit
from torch import nn

from experiments.table import Facts, Row, Table, markdown, mean_sd

ABOUT = "being married by schooling (PUMS, Fulton County): the default logit, objective perturbation and DP-SGD"
FACTS = Facts(
    paper="textbook figures on the census sample of Fulton County: being married by schooling",
    same="25,766 people, two coefficients",
    differs="three private estimators beside each other; the default is biased here and says so",
    published="slope .1383 a year of schooling without privacy",
    ours=(
        ("ε = 1: default", {"part": "fit", "method": "default", "epsilon": 1.0}, "slope"),
        ("objective perturbation", {"part": "fit", "method": "objective-perturbation", "epsilon": 1.0}, "slope"),
        ("DP-SGD", {"part": "fit", "method": "dp-sgd", "epsilon": 1.0}, "slope"),
    ),
    page="coefficients",
    short="19 s on two quiet cores: 5 fits each",
    full="281 s on two busy cores (62 s of processor time), 20 fits each",
)
SEEDS = 20
SHORT_FITS = 5  # of each method and ε
DELTA = 1e-6
EPSILONS = (0.1, 1.0)
#: The private estimators, by how a person asks for them; the first is what comes without asking.
METHODS = {"default": "auto", "objective-perturbation": "objective-perturbation", "dp-sgd": "dp-sgd"}
NAMES = {
    "default": "default (whitened descent)",
    "objective-perturbation": "objective perturbation",
    "dp-sgd": "DP-SGD",
}
STEPS, RATE, LEARNING_RATE, CLIP = 200, 0.05, 2.0, 1.0  # of the path
START = (-1.5, -1.5)  # far from the maximum, so that there is a path to see

Floats = npt.NDArray[np.float64]


def run(table: Table) -> None:
    """The counts of the whole table, fits for each method, ε and seed, why the default is off, and the paths."""
    from tacit import datasets

    if table.tiny:
        people, target = datasets.labsup(), "worked"
        frame, steps = people.train.head(1000), 5
    else:
        table.path("tables", "pums2000_fulton_ga.parquet")
        people, target = datasets.pums_fulton(download=False, data_dir=table.data), "married"
        frame, steps = people.train, STEPS
    epsilons = EPSILONS[-1:] if table.tiny else EPSILONS
    column: Any = people.schema["educ"]
    low, high = int(column.lower), int(column.upper)
    levels = np.clip(frame["educ"].to_numpy().astype(np.int64), low, high)
    answers = frame[target].to_numpy().astype(np.int64)
    bounds = {"low": low, "high": high}
    counts = table.row(
        lambda: {**bounds, **_counts(levels, answers, low, high)}, part="people", data=people.name, target=target
    )
    table.row(functools.partial(_exact, counts), part="fit", method="not private")
    table.row(functools.partial(_clipped, counts), part="clipped")
    for seed in range(max(table.seeds, table.pick(1, SHORT_FITS, 1))):
        for epsilon in epsilons:
            for method in table.pick([*METHODS][:2], [*METHODS], [*METHODS]):
                table.row(
                    functools.partial(_fit, levels, answers, (low, high), method, epsilon),
                    part="fit",
                    method=method,
                    epsilon=epsilon,
                    seed=seed,
                )
    x = 2 * (levels - low) / (high - low) - 1
    for epsilon in epsilons:
        table.row(functools.partial(_path, x, answers, epsilon, steps), part="path", epsilon=epsilon)


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


def _fit(
    levels: npt.NDArray[np.int64], y: npt.NDArray[np.int64], bounds: tuple[int, int], method: str, epsilon: float
) -> dict[str, float]:
    """Intercept and slope a step of schooling, as the estimator gives them."""
    from tacit.linear_model import LogisticRegression

    estimator = LogisticRegression(epsilon, DELTA, bounds=bounds, method=METHODS[method])
    fitted = estimator.fit(levels[:, None].astype(np.float64), y)
    return {
        "claimed": fitted.privacy_.upper,
        "delta": DELTA,
        "intercept": float(np.ravel(fitted.intercept_)[0]),
        "slope": float(fitted.coef_[0, 0]),
    }


def _exact(counts: Row) -> dict[str, float]:
    """The maximum of the likelihood, and the 95% interval of its slope: the sampling error of the census."""
    _, levels, _, people, yes = _whole([counts])
    intercept, slope = maximum(levels, people, yes)
    chances = expit(intercept + slope * levels)
    design = np.column_stack([np.ones(len(levels)), levels])
    information = design.T @ (design * (people * chances * (1 - chances))[:, None])
    half = 1.959964 * math.sqrt(np.linalg.inv(information)[1, 1])
    return {"intercept": intercept, "slope": slope, "low": slope - half, "high": slope + half}


def _clipped(counts: Row) -> dict[str, float]:
    """Where clipped, whitened gradients sum to zero, without noise: the default's own clip norm, then one far away."""
    from tacit.linear_model.descent import CLIP as usual

    _, _, scaled, people, yes = _whole([counts])
    whole, (intercept, slope) = people.sum(), maximum(scaled, people, yes)
    design = np.column_stack([np.ones(len(scaled)), scaled])
    values, vectors = np.linalg.eigh(design.T @ (design * people[:, None]))
    whitened = design @ (vectors / np.sqrt(values)) @ vectors.T
    lengths, typical = np.linalg.norm(whitened, axis=1), math.sqrt(2 / whole)

    def balance(theta: Floats, clip: float) -> Floats:
        chance = expit(design @ theta)
        total = np.zeros(2)
        for error, count in ((chance, people - yes), (chance - 1, yes)):
            kept = np.minimum(1, clip * typical / np.maximum(lengths * np.abs(error), 1e-300))
            total += (count * error * kept) @ whitened
        return np.asarray(total / (whole * typical))

    found = {name: root(balance, [intercept, slope], args=(clip,)).x for name, clip in (("usual", usual), ("far", 1e3))}
    chance, unit = expit(intercept + slope * scaled), 2 / (counts["high"] - counts["low"])
    long = [lengths * np.abs(error) > usual * typical for error in (chance, chance - 1)]
    return {
        "clip": usual,
        "slope": float(found["usual"][1]) * unit,
        "slope_without_clipping": float(found["far"][1]) * unit,
        "clipped_share": float((long[0] @ (people - yes) + long[1] @ yes) / whole),
        "clipped_of_no": float(long[0] @ (people - yes) / (people - yes).sum()),
        "clipped_of_yes": float(long[1] @ yes / yes.sum()),
    }


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


def _fits(rows: list[Row]) -> dict[str, list[Row]]:
    """The fits by name, the one without privacy last."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["part"] == "fit" and "epsilon" in row:
            found.setdefault(f"{NAMES[row['method']]}, ε = {row['epsilon']:g}", []).append(row)
    exact = [row for row in rows if row["part"] == "fit" and "epsilon" not in row]
    return dict(sorted(found.items())) | {"not private": exact}


def _curves(own: list[Row], levels: Floats) -> Floats:
    return np.array([expit(row["intercept"] + row["slope"] * levels) for row in own])


def summary(rows: list[Row]) -> str:
    """The slope a step of schooling by each estimator, how far it is off, and the chance at two levels of schooling."""
    counts, levels, _, people, _ = _whole(rows)
    groups = _fits(rows)
    exact = groups["not private"][0]
    places = [round(0.55 * (len(levels) - 1)), round(0.8 * (len(levels) - 1))]  # high school and college in this census
    found: list[Row] = []
    for name, own in groups.items():
        slope, deviation = mean_sd([row["slope"] for row in own])
        row: Row = {"fit": name, "fits": len(own), "slope": f"{slope:.4f}"}
        row["sd"] = "" if len(own) == 1 else f"{deviation:.4f}"
        row["off by"] = f"{100 * (slope / exact['slope'] - 1):+.0f}%"
        row["in the interval of the exact fit"] = sum(exact["low"] <= one["slope"] <= exact["high"] for one in own)
        for place in places:
            chances = 100 * _curves(own, levels)[:, place]
            row[f"% at schooling {levels[place]:g}"] = f"{chances.mean():.1f}"
        found.append(row)
    text = markdown(found, list(found[0]))
    text += (
        f"\n\n{counts['data']}: {int(people.sum()):,} people, target {counts['target']}; slope without privacy "
        f"{exact['slope']:.4f}, 95% interval {exact['low']:.4f} to {exact['high']:.4f} (their sampling error)."
    )
    for why in (row for row in rows if row["part"] == "clipped"):
        text += (
            f"\nWhy the default is off: at its clip norm ({why['clip']:g} of a typical row) the gradients of "
            f"{100 * why['clipped_of_yes']:.0f}% of those who say yes and {100 * why['clipped_of_no']:.0f}% of the "
            f"others are clipped. Without any noise its steps end at a slope of {why['slope']:.4f}; with nobody "
            f"clipped, at {why['slope_without_clipping']:.4f}."
        )
    return text


def plot(rows: list[Row], folder: Path) -> None:
    """The slopes of the estimators, their curves at the smallest ε, and the likelihood with the path of a run."""
    from matplotlib.figure import Figure

    row, levels, scaled, people, yes = _whole(rows)
    groups, paths = _fits(rows), [one for one in rows if one["part"] == "path"][-1:]
    figure = Figure(figsize=(4.6 * (2 + len(paths)), 4.2), layout="constrained")
    slopes, first, *others = figure.subplots(1, 2 + len(paths))
    exact = groups["not private"][0]
    slopes.axvspan(exact["low"], exact["high"], color="gray", alpha=0.3, label="95% of the exact fit")
    for place, (name, own) in enumerate(groups.items()):
        color = "black" if name == "not private" else "C3" if name.startswith("default") else "C0"
        slopes.plot([one["slope"] for one in own], [place] * len(own), "o", color=color, alpha=0.5)
    slopes.set_yticks(range(len(groups)), list(groups), fontsize=8)
    slopes.set(xlabel="slope a step of schooling", title="each dot a fit of all people")
    slopes.legend(fontsize=8)
    slopes.grid(True, alpha=0.2)
    seen = people > 0
    first.scatter(
        levels[seen], yes[seen] / people[seen], s=4 + 300 * people[seen] / people.sum(), color="gray", alpha=0.5,
        label="share in the table",
    )  # fmt: skip
    largest = max((one["epsilon"] for one in rows if one["part"] == "fit" and "epsilon" in one), default=None)
    shown = [name for name in groups if name == "not private" or (largest and name.endswith(f"ε = {largest:g}"))]
    for number, name in enumerate(shown):
        style = {"ls": "--", "color": "black"} if name == "not private" else {"color": f"C{number}"}
        first.plot(levels, _curves(groups[name], levels).mean(0), label=name, **style)
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
