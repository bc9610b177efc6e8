"""Fit income and employment on a census-like table privately, with intervals, under a ledger.

Run it with ``python -m examples.regression``. The table is simulated here, so that the true coefficients are known.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from tacit.ledger import BudgetExceeded, Ledger
from tacit.linear_model import LinearRegression, LogisticRegression
from tacit.schema import Boolean, Categorical, Numeric, Schema, Unit

# Public knowledge, from a code book: never from the rows.
SCHEMA = Schema(
    (
        Numeric("age", 18, 90),
        Numeric("schooling", 0, 20),
        Categorical("region", ["north", "south", "coast"]),
        Boolean("married"),
        Numeric("income", 0, 120, target=True, description="thousands a year"),
    ),
    Unit("person"),
)


def people(rows: int = 40_000) -> pl.DataFrame:
    """A table whose income grows by 0.3 a year of age and by 2.5 a year of schooling."""
    generator = np.random.default_rng(0)
    age, schooling = generator.integers(18, 91, rows), generator.integers(6, 21, rows)
    region = generator.choice(["north", "south", "coast"], rows)
    married = generator.uniform(size=rows) < 0.5
    income = 0.3 * age + 2.5 * schooling + 6 * (region == "coast") + 4 * married - 8 + 8 * generator.normal(size=rows)
    return pl.DataFrame(
        {"age": age, "schooling": schooling, "region": region, "married": married, "income": income.clip(0, 120)}
    )


def main() -> None:
    """Two fits that are charged, one that no longer fits the budget, and one pass over a file."""
    table = people()
    ledger = Ledger()
    ledger.register("census", unit="person", epsilon=2.0, delta=1e-5)

    private = LinearRegression(epsilon=1.0, delta=1e-6, bounds=SCHEMA, ledger=ledger).fit(table)
    print(private.privacy_)
    intervals = private.confidence_interval(0.95)
    for name, value, (low, high) in zip(private.get_feature_names_out(), private.coef_, intervals, strict=True):
        print(f"  {name:<14} {value:7.3f}   95% interval [{low:.3f}, {high:.3f}]")
    print(f"  R² on the same rows (for the operator): {private.score(table, table['income']):.3f}")

    rich = (table["income"] > 50).cast(pl.Int8).to_numpy()
    classifier = LogisticRegression(epsilon=0.5, delta=1e-6, bounds=SCHEMA, ledger=ledger).fit(table, rich)
    print(f"{classifier.privacy_}\n  accuracy (for the operator): {classifier.score(table, rich):.3f}")

    try:
        LinearRegression(epsilon=2.0, delta=1e-6, bounds=SCHEMA, ledger=ledger).fit(table)
    except BudgetExceeded as refused:
        print("refused:", refused)
    else:
        raise SystemExit("a fit beyond the budget was granted")

    # One pass over a file that need not fit into memory.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "census.parquet"
        table.write_parquet(path)
        streamed = LinearRegression(epsilon=0.4, delta=1e-6, bounds=SCHEMA, ledger=ledger).fit(path)
    print(f"{streamed.privacy_}\n  schooling: {streamed.coef_[1]:.2f}")
    print(f"used: {ledger.budget('census').used:.1%} of ε=2, δ=1e-5")


if __name__ == "__main__":
    main()
