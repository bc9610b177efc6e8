"""What is the best accuracy at each ε on CIFAR-10 in minutes of training, without public data?

Rows and rules are those of :mod:`experiments.records`.
"""

from __future__ import annotations

from pathlib import Path

from experiments import records
from experiments.table import Facts, Row, Table

ABOUT = "accuracy of plain DP-SGD on CIFAR-10 at ε = 1, 3, 8 with features from random processes"
FACTS = Facts(
    paper="De et al. 2022; Tang et al. 2023 (DP-RandP)",
    same="CIFAR-10, δ = 1e-5, no public data",
    differs="minutes of training; features from random processes as in DP-RandP",
    published="56.8% at ε = 1, 81.4% at ε = 8 (De); 72.3% at ε = 1 (DP-RandP)",
    ours=(
        (
            "ε = 1:",
            {"part": "test", "epsilon": 1.0, "method": "maps on scatter+middle, 300 steps, rate 4, clip 0.1"},
            "accuracy",
        ),
        (
            "ε = 8:",
            {"part": "test", "epsilon": 8.0, "method": "maps on scatter+middle, 800 steps, rate 4, clip 0.1, 2 views"},
            "accuracy",
        ),
    ),
    page="pictures",
    short="seconds: shows the kept rows",
    full="51 minutes of runs, most on one H200",
)
SEEDS = records.SEEDS_CIFAR


def run(table: Table) -> None:
    """All rows: three test runs at ε = 1, one at 3 and 8. The short size shows the kept ones."""
    if table.size == "short":
        return table.show_kept(
            "these runs took 51 minutes, most of them on a GPU, so the kept rows are shown; "
            "tacit reproduce records-cifar10 --size full --device cuda measures them again"
        )
    records.run_set(table, "cifar10")


def summary(rows: list[Row]) -> str:
    """Means over seeds against the targets."""
    return records.summary(rows)


def plot(rows: list[Row], folder: Path) -> None:
    """Accuracy against ε, with published figures."""
    records.plot(rows, folder)
