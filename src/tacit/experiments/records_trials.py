"""Which settings are best? Trials on the last 10,000 training rows, each logged with its score; no test row is read.

The candidates are written down here, so that the number of trials is known and what the choice would cost can be said.
"""

from __future__ import annotations

import functools

from tacit.experiments import pictures
from tacit.experiments.pictures import Recipe
from tacit.experiments.table import Row, Table, markdown

ABOUT = "the trials from which the settings of 'records' are chosen, on a part of the training data"
SEEDS = 1

#: What is tried at each ε. Names say what differs.
CANDIDATES: dict[float, dict[str, Recipe]] = {
    0.5: {
        "linear 150": Recipe("scatter", "linear", 8192, 150, 8.0, 0.1),
        "linear 150 ema": Recipe("scatter", "linear", 8192, 150, 8.0, 0.1, ema=0.95),
        "linear 300 ema": Recipe("scatter", "linear", 8192, 300, 4.0, 0.1, ema=0.97),
        "maps 200 ema": Recipe("scatter", "maps", 8192, 200, 2.0, 0.1, ema=0.95),
        "cnn 300 ema": Recipe("raw", "cnn", 4096, 300, 2.0, 0.1, ema=0.97),
    },
    1.0: {
        "linear 300": Recipe("scatter", "linear", 8192, 300, 8.0, 0.1),
        "linear 300 ema": Recipe("scatter", "linear", 8192, 300, 8.0, 0.1, ema=0.97),
        "maps 300 ema": Recipe("scatter", "maps", 8192, 300, 2.0, 0.1, ema=0.97),
        "maps 300 ema 4": Recipe("scatter", "maps", 8192, 300, 4.0, 0.1, ema=0.97),
        "cnn 500 ema": Recipe("raw", "cnn", 4096, 500, 2.0, 0.1, ema=0.98),
    },
    3.0: {
        "linear 293": Recipe("scatter", "linear", 8192, 293, 16.0, 0.1),
        "linear 500 ema": Recipe("scatter", "linear", 8192, 500, 16.0, 0.1, ema=0.98),
        "maps 400 ema": Recipe("scatter", "maps", 8192, 400, 4.0, 0.1, ema=0.98),
        "maps 800 ema": Recipe("scatter", "maps", 8192, 800, 4.0, 0.1, ema=0.99),
        "cnn 800 ema": Recipe("raw", "cnn", 4096, 800, 2.0, 0.1, ema=0.99),
    },
    8.0: {
        "linear 600": Recipe("scatter", "linear", 8192, 600, 32.0, 0.1),
        "maps 800 ema": Recipe("scatter", "maps", 8192, 800, 4.0, 0.1, ema=0.99),
        "maps 1500 ema": Recipe("scatter", "maps", 8192, 1500, 4.0, 0.1, ema=0.995),
        "cnn 1500 ema": Recipe("raw", "cnn", 4096, 1500, 2.0, 0.1, ema=0.995),
    },
}


def run(table: Table) -> None:
    """Rows for each set, ε and candidate, those of one kind of input together."""
    bench = pictures.Bench(table, test=False)
    for name in ("mnist",) if table.small else ("mnist", "fashion_mnist"):
        for features in ("scatter", "raw"):
            for epsilon, candidates in list(CANDIDATES.items())[: 1 if table.small else None]:
                for label, recipe in candidates.items():
                    if recipe.features != features:
                        continue
                    for seed in range(table.seeds):
                        measure = functools.partial(bench.measure, name, recipe, epsilon, seed)
                        table.row(measure, data=name, epsilon=epsilon, candidate=label, seed=seed)


def summary(rows: list[Row]) -> str:
    """All trials, best first within each set and ε."""
    ordered = sorted(rows, key=lambda row: (row["data"], row["epsilon"], -row["accuracy"]))
    return markdown(ordered, ["data", "epsilon", "candidate", "seed", "accuracy", "noise", "seconds"])
