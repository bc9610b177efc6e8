"""What ``tacit train`` does, in a program: a private model of a table, with its card and report, and its result."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import torch

import tacit
from tacit.schema import Boolean, Categorical, Numeric, Schema, Unit

SCHEMA = Schema(
    (
        Numeric("age", lower=0, upper=100),
        Categorical("ward", categories=("north", "south")),
        Boolean("back", target=True),
    ),
    Unit("patient"),
    "clinic",
)


def main() -> None:
    """Train under a ledger, look at the result, and let the ledger refuse a second run."""
    generator = np.random.default_rng(0)
    age = generator.integers(18, 95, 3000)
    table = {"age": age, "ward": generator.choice(["north", "south"], 3000), "back": age > 60}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        ledger = Path(folder) / "my.db"
        tacit.Ledger(ledger).register("clinic", epsilon=3.0, delta=1e-5, unit="patient")
        settings = {"epsilon": 3.0, "delta": 1e-5, "epochs": 5, "batch": 256, "model": "linear", "learning_rate": 2.0}
        shown = {"public_share": 0.2, "public_because": "made up for an example"}
        result = tacit.run(
            table, schema=SCHEMA, **settings, **shown, ledger=ledger, dataset="clinic", runs=folder, name="mine"
        )
        print(result.privacy)
        print(f"accuracy {result.metrics['accuracy']:.1%} on public rows")
        print(f"of two patients, {result.model(torch.zeros(2, 4)).argmax(1).tolist()}")
        print(f"{result.report.name}: {result.card['guarantee']['claim']}")
        try:
            tacit.run(table, schema=SCHEMA, **settings, ledger=ledger, dataset="clinic", runs=folder)
        except tacit.ledger.BudgetExceeded as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    main()
