"""How did the price of the same run fall, from basic composition to certified intervals?

ε against steps of one Poisson-sampled Gaussian run, by every accountant the project knows. Costs no data.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from experiments.table import Facts, Row, Table, markdown
from tacit import accounting as acc

ABOUT = "ε against steps by basic and advanced composition, moments accountant, Rényi DP and certified intervals"
FACTS = Facts(
    paper="Abadi et al. 2016, figure 2",
    same="q = .01, σ = 4, δ = 1e-5",
    differs="ours are certified intervals; 2.58 for 2.55 by moments, and a looser form of strong composition",
    published="1.26 after 100 epochs and 2.55 after 400 (moments); 9.34 and 24.22 (strong composition)",
    page="accountants",
    short="4 s on two quiet cores",
    full="the same",
)
SEEDS = 1
RATE, NOISE, DELTA = 0.01, 4.0, 1e-5  # Abadi et al. 2016, Figure 2: q = 0.01, σ = 4, δ = 1e-5


def run(table: Table) -> None:
    """One row for each number of steps."""
    counts = np.unique(np.round(np.geomspace(1, 40_000, 5 if table.tiny else 40)).astype(int))
    for steps in counts.tolist():
        table.row(functools.partial(_prices, steps), steps=steps)


def _prices(steps: int) -> dict[str, Any]:
    prices = acc.compare(acc.PoissonSampled(acc.Gaussian(NOISE), RATE) * steps, delta=DELTA)
    found = {way: prices[way].epsilon for way in ("basic", "advanced", "moments", "rdp")}
    return {**found, "lower": prices["certified"].lower, "upper": prices["certified"].epsilon}


def summary(rows: list[Row]) -> str:
    """The table at a few step counts."""
    chosen = [rows[i] for i in sorted({round(k) for k in np.linspace(0, len(rows) - 1, 8)})]
    return markdown(chosen, ["steps", "basic", "advanced", "moments", "rdp", "upper", "lower"])


def plot(rows: list[Row], folder: Path) -> None:
    """ε against steps, all accountants in one picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    steps = [row["steps"] for row in rows]
    names = {
        "basic": "basic composition",
        "advanced": "advanced composition",
        "moments": "moments accountant",
        "rdp": "Rényi DP, better conversion",
        "upper": "certified interval (upper end)",
    }
    for name, label in names.items():
        axes.plot(steps, [row[name] for row in rows], label=label, lw=2.5 if name == "upper" else 1.5)
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel=f"ε at δ = {DELTA:g}")
    axes.set_title(f"rate {RATE:g}, noise multiplier {NOISE:g}, add/remove one example")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend()
    figure.savefig(folder / "accountants.png", dpi=150)
