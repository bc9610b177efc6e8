"""``make demo``: what a private model of real census data will cost, before anyone trains one.

Loads the embedded census sample with its public schema, encodes it by public bounds, and asks the accountant how much
noise DP-SGD needs for a chosen guarantee. Everything printed is public: no statistic of the rows is shown.
"""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from tacit import accounting as acc
from tacit import datasets
from tacit.schema import Boolean, Categorical, Numeric

EPSILON, DELTA = 1.0, 1e-6
EPOCHS, BATCH = 20, 1024


def bounds(column: object) -> str:
    """A column's public range, in words."""
    match column:
        case Numeric(lower=lower, upper=upper):
            return f"{lower:g} to {upper:g}"
        case Categorical(labels=labels):
            return ", ".join(labels)
        case Boolean(labels=(no, yes)):
            return f"{no} / {yes}"
    return ""


def main() -> None:
    """Print the public facts and the price of a private model."""
    console = Console()
    people = datasets.labsup()
    # The second value counts clipped rows: it is the operator's and stays out of what is printed.
    encoded, _ = people.encode()

    table = Table(title=f"{people.name}: {people.rows:,} rows, unit of privacy: {people.unit}", title_justify="left")
    for heading in ("column", "kind", "public bounds", "meaning"):
        table.add_column(heading)
    for column in people.schema.columns:
        name = f"{column.name} (target)" if column.target else column.name
        table.add_row(name, column.kind, bounds(column), column.description)
    console.print(table)
    console.print(f"encoded by public bounds alone: {encoded.features.shape[1]} features, every value in [-1, 1]\n")

    rate = BATCH / len(encoded)
    steps = EPOCHS * math.ceil(1 / rate)
    noise = acc.calibrate(
        lambda noise: acc.PoissonSampled(acc.Gaussian(noise), rate=rate) * steps, epsilon=EPSILON, delta=DELTA
    )
    bound = acc.epsilon(acc.PoissonSampled(acc.Gaussian(noise), rate=rate) * steps, delta=DELTA)
    if not bound.lower <= bound.upper <= EPSILON:
        raise SystemExit(f"the accountant's certificate [{bound.lower}, {bound.upper}] does not keep ε = {EPSILON}")
    console.print(f"DP-SGD for {EPOCHS} epochs with batches of {BATCH} on average is {steps} steps at rate {rate:.5f}.")
    console.print(f"For ε = {EPSILON:g} at δ = {DELTA:g} its noise multiplier must be [bold]{noise:.4f}[/bold].")
    console.print(
        f"Priced back: ε between {bound.lower:.6f} and [bold]{bound.upper:.6f}[/bold] "
        f"(certified upper bound; add/remove one {people.unit})."
    )


if __name__ == "__main__":
    main()
