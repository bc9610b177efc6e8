"""Train on files that are never in memory as a whole, and protect people with all their rows.

python -m examples.larger_than_memory
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import nn

from tacit import sgd


def main() -> None:
    """Write three files, index them, and train on people out of them."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for month in range(3):
            rng = np.random.default_rng(month)
            age = rng.uniform(0.18, 0.9, 4000)
            rows = {"patient": rng.integers(0, 800, 4000), "age": age, "ill": age + rng.normal(0, 0.1, 4000) > 0.6}
            pl.DataFrame(rows).write_parquet(place / f"visits-{month}.parquet")
        visits = sgd.table(place, target="ill", exclude=["patient"], index=place / "index")
        model = nn.Linear(1, 2)
        done = sgd.fit(
            model, torch.optim.SGD(model.parameters(), lr=2.0), nn.CrossEntropyLoss(reduction="none"), visits,
            groups="patient", unit="patient", max_rows=4, batch_size=100, epochs=5, epsilon=2.0, delta=1e-5,
        )  # fmt: skip
        print(f"{len(visits.records):,} rows of 800 patients")
        print(done.privacy)


if __name__ == "__main__":
    main()
