"""What is the best accuracy at each ε on CIFAR-10 in minutes of training, without public data?

Rows and rules are those of :mod:`experiments.records`.
"""

from __future__ import annotations

from pathlib import Path

from experiments import records
from experiments.table import Row, Table

ABOUT = "accuracy of plain DP-SGD on CIFAR-10 at ε = 1, 3, 8 with features from random processes"
SEEDS = records.SEEDS_CIFAR


def run(table: Table) -> None:
    """All rows: three test runs at ε = 1, one at 3 and 8."""
    records.run_set(table, "cifar10")


def summary(rows: list[Row]) -> str:
    """Means over seeds against the targets."""
    return records.summary(rows)


def plot(rows: list[Row], folder: Path) -> None:
    """Accuracy against ε, with published figures."""
    records.plot(rows, folder)
