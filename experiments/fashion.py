"""What do noise, rate, clip norm and optimizer do? A small network on Fashion-MNIST, ten epochs.

On a GPU the network is convolutional (26,010 weights), on a CPU one linear layer on normalised pixels (7,850 weights),
with which a run takes seconds; rows say which, and a table or plot shows the convolutional one where it was measured.

Heat map of learning rate and noise multiplier, the clip norm from 0.1 to 10 with the rate fixed and with the rate in
proportion to 1/clip, and four optimizers over their rates: all scored on the last 10,000 training rows, one run each.
Then the test set is read: accuracy against ε with clip norm 5, at each noise multiplier with the rate that the heat map
found, several seeds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import pictures
from experiments.pictures import Recipe
from experiments.table import Facts, Row, Table, markdown, mean_sd

ABOUT = "Fashion-MNIST, ten epochs: rate x noise, clip norm, optimizers, and accuracy against ε at clip norm 5"
FACTS = Facts(
    paper="figures that courses on DP-SGD show: rate against noise, clip norm, optimizers",
    same="Fashion-MNIST, ten epochs, clip norm 5",
    differs="on a CPU one linear layer on normalised pixels, on a GPU a convolutional network",
    published="none",
    ours=(
        ("σ = 10:", {"part": "epsilon", "noise": 10.0, "network": "cnn"}, "accuracy"),
        ("σ = 1:", {"part": "epsilon", "noise": 1.0, "network": "cnn"}, "accuracy"),
        ("at ε", {"part": "epsilon", "noise": 1.0, "network": "cnn"}, "claimed"),
    ),
    page="classics",
    short="57 s on two quiet cores",
    full="204 s of runs on one H200; 13 minutes on one busy core",
)
SEEDS = 3
EPOCHS, BATCH = 10, 4096
BASE = Recipe("raw", "cnn", batch=BATCH, clip=5.0, rate=0.1, momentum=0.9)
NOISES = (0.7, 1.0, 1.5, 2.5, 5.0, 10.0)
RATES = (0.015, 0.04, 0.1, 0.25, 0.6, 1.5)
CLIPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
#: rate x clip norm where one follows the other
PRODUCT = 0.5
#: optimizer: (name in words, rates)
OPTIMIZERS: dict[str, tuple[str, tuple[float, ...]]] = {
    "sgd": ("SGD, momentum .9", (0.05, 0.2, 0.8, 3.0)),
    "adam": ("Adam", (1e-3, 3e-3, 1e-2, 3e-2)),
    "rmsprop": ("RMSprop", (1e-3, 3e-3, 1e-2, 3e-2)),
    "dp-adam": ("DP-AdamBC", (1e-3, 3e-3, 1e-2, 3e-2)),
}
OPTIMIZER_NOISES = (1.0, 5.0)
#: Noise multipliers, rates and clip norms of the short size.
SHORT = ((1.0, 2.5, 10.0), (0.1, 0.25, 0.6), (0.1, 1.0, 10.0))
PARTS = ("heat", "optimizer", "clip", "epsilon")


def run(table: Table) -> None:
    """Rows of every part; the last needs the first."""
    for part in PARTS:
        for task in tasks(table, part):
            task()


def tasks(table: Table, part: str) -> list[Callable[[], Row]]:
    """One run each; several processes may share the tasks of a part."""

    @functools.cache
    def split() -> pictures.Split:
        return pictures.load(table, "fashion_mnist", test=part == "epsilon")

    network = "cnn" if table.device.startswith("cuda") else "linear"

    def task(recipe: Recipe, **key: Any) -> Callable[[], Row]:
        recipe = dataclasses.replace(recipe, network=network)
        key["network"] = network
        measure = functools.partial(_measure, table, split, recipe, key["noise"], key.get("seed", 0))
        return lambda: table.row(measure, part=part, **key)

    found: list[Callable[[], Row]] = []
    noises, rates, clips = table.pick((NOISES, RATES, CLIPS), SHORT, (NOISES, RATES, CLIPS))
    if part == "heat":
        for noise in noises:
            found += [task(replace(rate=rate), noise=noise, rate=rate) for rate in rates]
    elif part == "clip":
        for clip in clips:
            for way, rate in (("fixed", BASE.rate), ("product", PRODUCT / clip)):
                found.append(task(replace(rate=rate, clip=clip), noise=1.0, clip=clip, way=way, rate=rate))
    elif part == "optimizer":
        for noise in OPTIMIZER_NOISES[: table.pick(2, 1, 2)]:
            for name, (_, tried) in OPTIMIZERS.items():
                found += [
                    task(replace(rate=rate, clip=1.0, optimizer=name), noise=noise, optimizer=name, rate=rate)
                    for rate in (tried[2:3] if table.size == "short" else tried)
                ]
    else:
        for seed in range(table.seeds):
            for noise in noises:
                rate = best_rate([row for row in table.rows if row["network"] == network], noise)
                found.append(task(replace(rate=rate), noise=noise, seed=seed))
    return found[:1] if table.tiny else found


def replace(**changes: Any) -> Recipe:
    """The usual run with something else."""
    return dataclasses.replace(BASE, **changes)


def best_rate(rows: list[Row], noise: float) -> float:
    """The rate that was best on held-out training rows at this noise; the usual one where nothing was tried."""
    own = [row for row in rows if row["part"] == "heat" and row["noise"] == noise]
    return max(own, key=lambda row: row["accuracy"])["rate"] if own else BASE.rate


def _measure(table: Table, split: Callable[[], pictures.Split], recipe: Recipe, noise: float, seed: int) -> Row:
    data = split()
    recipe = dataclasses.replace(recipe, steps=3 if table.tiny else EPOCHS * len(data.train[1]) // BATCH)
    found = pictures.train(recipe, data, seed, noise=noise)
    return {"accuracy": found["accuracy"], "claimed": found["claimed"], "recipe": recipe.words()}


# -- tables and plots ----


def shown(rows: list[Row]) -> tuple[list[Row], str]:
    """The rows of one network, the convolutional one where there is one, and its name."""
    network = "cnn" if any(row["network"] == "cnn" for row in rows) else "linear"
    words = {"cnn": "convolutional network", "linear": "linear layer"}[network]
    return [row for row in rows if row["network"] == network], words


def summary(rows: list[Row]) -> str:
    """Accuracy against ε; the heat map; clip norms; optimizers.

    Many branches: four tables, one after the other, each left out where it has no rows.
    """
    rows, words = shown(rows)
    found = []
    for noise in NOISES:
        own = [row for row in rows if row["part"] == "epsilon" and row["noise"] == noise]
        if own:
            mean, deviation = mean_sd([100 * row["accuracy"] for row in own])
            found.append(
                {"noise": noise, "ε": own[0]["claimed"], "rate": own[0]["recipe"]["rate"], "test accuracy %": mean,
                 "sd": deviation, "seeds": len(own)}
            )  # fmt: skip
    parts = [words] + ([markdown(found, list(found[0]))] if found else [])
    heat = [row for row in rows if row["part"] == "heat"]
    if heat:
        lines = [
            {"rate": rate, **{f"σ = {row['noise']:g}": 100 * row["accuracy"] for row in heat if row["rate"] == rate}}
            for rate in RATES
        ]
        parts.append(markdown(lines, ["rate", *(f"σ = {noise:g}" for noise in NOISES)]))
    clips = [row for row in rows if row["part"] == "clip"]
    if clips:
        lines = [
            {"clip": clip, **{row["way"]: 100 * row["accuracy"] for row in clips if row["clip"] == clip}}
            for clip in CLIPS
        ]
        parts.append(markdown(lines, ["clip", "fixed", "product"]))
    chosen = [row for row in rows if row["part"] == "optimizer"]
    if chosen:
        lines = []
        for name, (words, _) in OPTIMIZERS.items():
            line: Row = {"optimizer": words}
            for noise in OPTIMIZER_NOISES:
                own = [row for row in chosen if row["optimizer"] == name and row["noise"] == noise]
                if own:
                    top = max(own, key=lambda row: row["accuracy"])
                    line |= {f"σ = {noise:g}": 100 * top["accuracy"], f"rate at σ = {noise:g}": top["rate"]}
            lines.append(line)
        columns = ["optimizer"]
        for noise in OPTIMIZER_NOISES:
            columns += [f"σ = {noise:g}", f"rate at σ = {noise:g}"]
        parts.append(markdown(lines, columns))
    return "\n\n".join(parts)


def plot(rows: list[Row], folder: Path) -> None:
    """Accuracy against ε, the heat map, clip norms and optimizers.

    Many branches: four panels, one after the other, each with a selection of its own.
    """
    from matplotlib.figure import Figure

    rows, words = shown(rows)
    figure = Figure(figsize=(11, 8.5), layout="constrained")
    ((trade, heat), (clips, optimizers)) = figure.subplots(2, 2)
    own = [row for row in rows if row["part"] == "epsilon"]
    ends = []
    for noise in NOISES:
        same = [row for row in own if row["noise"] == noise]
        if same:
            ends.append((same[0]["claimed"], *mean_sd([100 * row["accuracy"] for row in same]), noise))
    if ends:
        trade.errorbar([e[0] for e in ends], [e[1] for e in ends], [e[2] for e in ends], marker="o", capsize=3)
    for epsilon, mean, _, noise in ends:
        trade.annotate(f"σ = {noise:g}", (epsilon, mean), (4, -12), textcoords="offset points", fontsize=8)
    trade.set(xscale="log", xlabel="ε after ten epochs at δ = 1e-05, clip norm 5", ylabel="test accuracy (%)")
    trade.set_xticks(ticks := [0.2, 0.5, 1, 2, 5, 10], [f"{tick:g}" for tick in ticks])
    trade.minorticks_off()
    trade.set_title(f"accuracy against ε, {words}")
    _heat(figure, heat, [row for row in rows if row["part"] == "heat"])
    for way, label in (("fixed", f"rate {BASE.rate:g}"), ("product", f"rate {PRODUCT:g} / clip norm")):
        line = sorted((r["clip"], 100 * r["accuracy"]) for r in rows if r["part"] == "clip" and r["way"] == way)
        if line:
            clips.plot(*zip(*line, strict=True), marker="o", label=label)
    clips.set(xscale="log", xlabel="clip norm", ylabel="held-out accuracy (%)", title="clip norm, σ = 1")
    for number, (name, (words, _)) in enumerate(OPTIMIZERS.items()):
        for noise, style in zip(OPTIMIZER_NOISES, ("-", "--"), strict=True):
            line = sorted(
                (r["rate"], 100 * r["accuracy"])
                for r in rows
                if r["part"] == "optimizer" and r["optimizer"] == name and r["noise"] == noise
            )
            if line:
                named = {"label": words} if style == "-" else {}
                optimizers.plot(*zip(*line, strict=True), marker="o", ls=style, color=f"C{number}", **named)
    optimizers.set(xscale="log", xlabel="learning rate", ylabel="held-out accuracy (%)")
    optimizers.set_title("optimizers, clip norm 1 (solid: σ = 1, dashed: σ = 5)")
    for axes in (trade, clips, optimizers):
        axes.grid(True, alpha=0.2)
    for axes in (clips, optimizers):
        if axes.lines:
            axes.legend(fontsize=8)
    figure.savefig(folder / "fashion.png", dpi=130)


def _heat(figure: Any, axes: Any, rows: list[Row]) -> None:
    """Held-out accuracy for each rate and noise."""
    import numpy as np

    values = np.full((len(RATES), len(NOISES)), np.nan)
    for row in rows:
        values[RATES.index(row["rate"]), NOISES.index(row["noise"])] = 100 * row["accuracy"]
    shown = axes.imshow(values, origin="lower", aspect="auto", cmap="viridis", vmin=60, vmax=88)
    for i, j in np.argwhere(np.isfinite(values)):
        colour = "white" if values[i, j] < 79 else "black"
        axes.text(j, i, f"{values[i, j]:.1f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(NOISES)), [f"{noise:g}" for noise in NOISES])
    axes.set_yticks(range(len(RATES)), [f"{rate:g}" for rate in RATES])
    axes.set(xlabel="noise multiplier", ylabel="learning rate", title="held-out accuracy (%), SGD, clip norm 5")
    figure.colorbar(shown, ax=axes, shrink=0.8)
