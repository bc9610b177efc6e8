"""Fit curves to a table privately, without cutting bins, and draw them.

Run it with ``python -m examples.additive_curves``. The table is simulated here, so that the true curves are known.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from tacit.additive import AdditiveRegressor
from tacit.ledger import Ledger
from tacit.linear_model import LinearRegression
from tacit.schema import Categorical, Numeric, Schema, Unit

# Public knowledge, from a code book: never from the rows.
SCHEMA = Schema(
    (
        Numeric("age", 18, 90),
        Numeric("savings", 0, 1_000_000),
        Categorical("region", ["north", "south"]),
        Numeric("spending", 0, 100, target=True, description="a day"),
    ),
    Unit("person"),
)


def people(rows: int = 20_000) -> pl.DataFrame:
    """Spending peaks at 50 and grows with the logarithm of savings, some of which are not known."""
    generator = np.random.default_rng(0)
    age, savings = generator.uniform(18, 90, rows), np.exp(generator.normal(8, 2, rows))
    region = generator.choice(["north", "south"], rows)
    spending = 40 - (age - 50) ** 2 / 40 + 4 * np.log1p(savings) + 5 * (region == "south")
    spending += 5 * generator.normal(size=rows)
    known = np.where(generator.uniform(size=rows) < 0.1, np.nan, savings)
    return pl.DataFrame({"age": age, "savings": known, "region": region, "spending": spending.clip(0, 100)})


def main() -> None:
    """Fit under a ledger, compare with a line, and draw."""
    table, test = people(), people(5000)
    ledger = Ledger()
    ledger.register("people", epsilon=2.0, delta=1e-6, unit="person")
    fitted = AdditiveRegressor(epsilon=1.0, bounds=SCHEMA, ledger=ledger).fit(table)
    print(f"curves explain {fitted.score(test, test['spending']):.0%} of the variance: {fitted.privacy_}")
    filled, new = (one.with_columns(pl.col("savings").fill_nan(0)) for one in (table, test))
    line = LinearRegression(epsilon=0.5, bounds=SCHEMA, ledger=ledger).fit(filled)
    print(f"a line explains {line.score(new, test['spending']):.0%}")
    curve = fitted.curves_["age"]
    print(f"spending peaks at the age of {curve.at[int(curve.value.argmax())]:.0f}")
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "curves.png"
        fitted.plot().savefig(picture)
        print(f"wrote {picture.name}, {picture.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
