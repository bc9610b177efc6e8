"""From a CSV file to a private regression, its card and its predictions, as ``tacit check``, ``fit`` and ``predict``.

Run:  python examples/fit_a_table.py
"""

import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from tacit.ledger import Ledger
from tacit.linear_model import from_json
from tacit.runs.check import check
from tacit.runs.fit import FitRun, FitSettings
from tacit.runs.folder import RunFolder, carry_out
from tacit.runs.progress import Told
from tacit.schema import Boolean, Categorical, Numeric, Schema, Unit


def main() -> None:
    """Check a table, fit it under a ledger, and predict from the file."""
    folder = Path(tempfile.mkdtemp())
    generator = np.random.default_rng(0)
    age = generator.uniform(0, 100, 5000).round(1)
    ward = generator.choice(["north", "south", "Nroth"], 5000, p=[0.5, 0.49, 0.01])
    table = pl.DataFrame({"age": age, "ward": ward, "back": age + 20 * generator.normal(size=5000) > 50})
    table.write_csv(folder / "clinic.csv")
    columns = (Numeric("age", 0, 110), Categorical("ward", ["north", "south"]), Boolean("back", target=True))
    schema = Schema(columns, Unit("patient"), "clinic")
    (folder / "clinic.toml").write_text(schema.to_toml())

    for finding in check(folder / "clinic.csv", schema).findings:  # for the operator only
        print(f"{finding.column}: {finding.text}")

    ledger = Ledger(folder / "my.db")
    ledger.register("clinic", epsilon=3.0, delta=1e-5, unit="patient")
    settings = FitSettings(
        data=str(folder / "clinic.csv"),
        schema=str(folder / "clinic.toml"),
        epsilon=2.0,
        ledger=str(folder / "my.db"),
        dataset="clinic",
    )
    done = carry_out(FitRun(settings), RunFolder(folder / "runs"), Told(quiet=True))
    print(f"ε = {done.told['epsilon']}, {done.told['neighbours']}; {ledger.budget('clinic').charges} charges")
    for row in done.told["coefficients"]:
        print(f"{row['name']}: {row['value']:.3f}")
    model = from_json((done.folder / "model.json").read_text())
    print(model.predict(table.head(3)))


if __name__ == "__main__":
    main()
