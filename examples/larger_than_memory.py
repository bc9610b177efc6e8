"""Train on files that are never in memory as a whole, and on rows while they arrive. People are protected, not rows.

python -m examples.larger_than_memory
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import nn

from tacit import sgd


def months() -> Iterator[pl.DataFrame]:
    """Visits of 800 patients in three months."""
    for month in range(3):
        rng = np.random.default_rng(month)
        age = rng.uniform(0.18, 0.9, 4000)
        rows = {"patient": rng.integers(0, 800, 4000), "age": age, "ill": age + rng.normal(0, 0.1, 4000) > 0.6}
        yield pl.DataFrame(rows)


def main() -> None:
    """Write three files, index them, and train on people out of them; then on the same rows as a stream."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for number, month in enumerate(months()):
            month.write_parquet(place / f"visits-{number}.parquet")
        visits = sgd.table(place, target="ill", exclude=["patient"], index=place / "index")
        model = nn.Linear(1, 2)
        done = sgd.fit(
            model, torch.optim.SGD(model.parameters(), lr=2.0), nn.CrossEntropyLoss(reduction="none"), visits,
            groups="patient", unit="patient", max_rows=4, batch_size=100, epochs=5, epsilon=2.0, delta=1e-5,
        )  # fmt: skip
        print(f"{len(visits.records):,} rows of 800 patients")
        print(done.privacy)

    stream = sgd.table(months(), target="ill", exclude=["patient"], size=750)
    model = nn.Linear(1, 2)
    once = sgd.fit(
        model, torch.optim.SGD(model.parameters(), lr=2.0), nn.CrossEntropyLoss(reduction="none"), stream,
        groups="patient", unit="patient", batch_size=50, epochs=1, sampler="chunks", noise=sgd.BandedInverse(),
        epsilon=4.0, delta=1e-5,
    )  # fmt: skip
    print("each patient's first visit, as it arrived:", once.privacy)


if __name__ == "__main__":
    main()
