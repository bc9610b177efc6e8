"""What is the best accuracy at each ε, without public data? Plain DP-SGD with tight accounting, several seeds.

Settings are chosen on the last 10,000 training rows with every trial logged (``records-trials``), before a test row is
read. The figures do not pay for that choice: each row's ``claimed`` is the price of its own training alone.
"""

from __future__ import annotations

import functools
from pathlib import Path

from tacit.experiments import pictures
from tacit.experiments.pictures import Recipe
from tacit.experiments.table import Row, Table, markdown, mean_sd

ABOUT = "best accuracy of plain DP-SGD on MNIST and Fashion-MNIST at ε = .5, 1, 2, 3, 8"
SEEDS = 5
EPSILONS = (0.5, 1.0, 2.0, 3.0, 8.0)
#: Published or asked for, in per cent, at EPSILONS.
TARGETS = {"mnist": (97.0, 98.0, 98.6, 98.8, 99.1), "fashion_mnist": (87.0, 88.4, 89.5, 90.0, 91.0)}
# Scattering maps and a linear layer, batch 8192, clip norm .1 (after Tramèr & Boneh 2021): steps and rate for each ε.
_LINEAR = {0.5: (150, 8.0), 1.0: (300, 8.0), 2.0: (300, 16.0), 3.0: (293, 16.0), 8.0: (600, 32.0)}
RECIPES: dict[tuple[str, float], Recipe] = {
    (name, epsilon): Recipe("scatter", "linear", 8192, steps, rate, 0.1)
    for name in TARGETS
    for epsilon, (steps, rate) in _LINEAR.items()
}


def run(table: Table) -> None:
    """Rows for each set, ε and seed."""
    bench = pictures.Bench(table, test=True)
    for name in ("mnist",) if table.small else TARGETS:
        for epsilon in (1.0,) if table.small else EPSILONS:
            for seed in range(table.seeds):
                measure = functools.partial(bench.measure, name, RECIPES[name, epsilon], epsilon, seed)
                table.row(measure, data=name, epsilon=epsilon, seed=seed)


def _grouped(rows: list[Row]) -> list[Row]:
    found = []
    for name, targets in TARGETS.items():
        for epsilon, target in zip(EPSILONS, targets, strict=True):
            own = [100 * r["accuracy"] for r in rows if r["data"] == name and r["epsilon"] == epsilon]
            if own:
                mean, deviation = mean_sd(own)
                reached = "yes" if mean >= target else "no"
                found.append(
                    {"data": name, "ε": epsilon, "seeds": len(own), "accuracy %": round(mean, 3),
                     "sd": round(deviation, 3), "target": target, "reached": reached}
                )  # fmt: skip
    return found


def summary(rows: list[Row]) -> str:
    """Means over seeds against the targets."""
    return markdown(_grouped(rows), ["data", "ε", "seeds", "accuracy %", "sd", "target", "reached"])


def plot(rows: list[Row], folder: Path) -> None:
    """Accuracy against ε, with published figures."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), TARGETS, strict=True):
        own = [row for row in _grouped(rows) if row["data"] == name]
        if own:
            axes.errorbar(
                [r["ε"] for r in own], [r["accuracy %"] for r in own], [r["sd"] for r in own],
                marker="o", capsize=3, lw=2, label="tacit",
            )  # fmt: skip
        for source, points in PUBLISHED[name].items():
            axes.plot(*zip(*points, strict=True), marker="x", ls="--", label=source)
        axes.set(xscale="log", xlabel=f"ε at δ = {pictures.DELTA:g}", ylabel="test accuracy (%)", title=name)
        axes.grid(True, alpha=0.2)
        axes.legend(fontsize=8)
    figure.savefig(folder / "records.png", dpi=150)


#: Figures of the papers, as (ε, per cent) at δ = 1e-5.
PUBLISHED: dict[str, dict[str, list[tuple[float, float]]]] = {
    "mnist": {
        "Abadi et al. 2016": [(0.5, 90.0), (2.0, 95.0), (8.0, 97.0)],
        "tempered sigmoids 2020": [(2.93, 98.1)],
        "Tramèr & Boneh 2021": [(3.0, 98.7)],
        "DPIS 2023": [(1.0, 97.79), (2.0, 98.51), (3.0, 98.62), (4.0, 98.78)],
    },
    "fashion_mnist": {
        "tempered sigmoids 2020": [(2.7, 86.1)],
        "Tramèr & Boneh 2021": [(3.0, 89.7)],
        "DPIS 2023": [(1.0, 86.25), (2.0, 88.24), (3.0, 88.82), (4.0, 89.21)],
    },
}
