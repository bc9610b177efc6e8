"""What does privacy cost on census microdata? Who is employed, by DP-SGD, against ε.

A logit and a small network on the census sample of Fulton County, with the features of the studies of that survey; the
line without privacy is the same network trained by Adam. Settings were fixed before a test row was read.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from experiments.table import Facts, Row, Table, markdown, mean_sd

ABOUT = "employment on census microdata (PUMS, Fulton County): accuracy and unemployment rate against ε"
FACTS = Facts(
    paper="coursework on the 2000 census sample of Fulton County: who is employed?",
    same="features of those studies, DP-SGD",
    differs="nothing is published for this cut; settings chosen on a fifth of the training rows",
    published="none",
    page="tables",
    short="see docs/results/tables.md",
    full="269 s on two busy cores, 5 seeds",
)
SEEDS = 5
DELTA = 1e-6
EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
FLAGS = (
    "sex", "married", "divorced", "latino", "black", "asian", "children", "militaryservice", "uscitizen", "disability",
    "englishability",
)  # fmt: skip
# Learning rate and clip norm, from a handful of trials on a fifth of the training rows. A clip norm of 1 gives the
# logit one point more accuracy, but clips the hard examples most, and the predicted rate is then 11 points too low.
MODELS = {"logit": (0.1, 6.0), "mlp": (0.1, 8.0)}


def features(frame: Any) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Flags as ±1, age and schooling scaled by their public bounds, a college degree, and black times female."""
    flags = {name: frame[name].to_numpy().astype(float) for name in FLAGS}
    age = np.clip(frame["age"].to_numpy().astype(float), 0, 115) / 115
    schooling = np.clip(frame["educ"].to_numpy().astype(float), 1, 16)
    columns = [*flags.values(), (schooling >= 13).astype(float), flags["black"] * flags["sex"]]
    scaled = [2 * c - 1 for c in [*columns, age, (schooling - 1) / 15]]
    return np.stack(scaled, 1).astype(np.float32), frame["employed"].to_numpy().astype(np.int64)


def run(table: Table) -> None:
    """Rows for each model, ε and seed; ε = inf is without privacy."""
    from tacit import datasets

    if table.tiny:
        people = datasets.labsup()
        frame = people.train.head(1000)
        x = np.stack([frame[c].to_numpy().astype(np.float32) / np.float32(50) for c in ("age", "educ")], 1)
        y = frame["worked"].to_numpy().astype(np.int64)
    else:
        table.path("tables", "pums2000_fulton_ga.parquet")
        x, y = features(datasets.pums_fulton(download=False, data_dir=table.data).train)
    for name in MODELS:
        for epsilon in (1.0, float("inf")) if table.tiny else (*EPSILONS, float("inf")):
            for seed in range(table.seeds):
                table.row(
                    functools.partial(measure, name, x, y, epsilon, seed, 2 if table.tiny else 20, table.device),
                    model=name,
                    epsilon=epsilon,
                    seed=seed,
                )


def network(name: str, inputs: int) -> nn.Module:
    """The logit, or one hidden layer of 64."""
    return (
        nn.Linear(inputs, 2) if name == "logit" else nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 2))
    )


def measure(
    name: str,
    x: npt.NDArray[np.float32],
    y: npt.NDArray[np.int64],
    epsilon: float,
    seed: int,
    epochs: int,
    device: str,
) -> dict[str, float]:
    """Accuracy on a held-out fifth, and the unemployment rate there as predicted and as it is."""
    from tacit.sgd import Training

    order = np.random.default_rng(seed).permutation(len(y))
    test, train = order[: len(y) // 5], order[len(y) // 5 :]
    torch.manual_seed(seed)
    model = network(name, x.shape[1]).to(device)
    rate, clip_norm = MODELS[name]
    loss = nn.CrossEntropyLoss(reduction="none")
    batch_size = min(2048, len(train) // 4)
    claimed = epsilon
    if epsilon == float("inf"):
        _plain(model, loss, torch.from_numpy(x[train]), torch.from_numpy(y[train]), batch_size, epochs)
        scores = _scores(model, x[test], device)
    else:
        training = Training(
            model,
            torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
            loss,
            (x[train], y[train]),
            batch_size=batch_size,
            epochs=epochs,
            epsilon=epsilon,
            delta=DELTA,
            clip_norm=clip_norm,
            ema=0.95,
            unit="person",
            groups=range(len(train)),  # a row is another person in this sample
        )
        for batch in training:
            training.step(batch)
        claimed = training.privacy.upper
        with training.averaged() as averaged:
            scores = _scores(averaged, x[test], device)
    return {
        "claimed": claimed,
        "delta": DELTA,
        "accuracy": float((scores.argmax(1) == y[test]).mean()),
        "predicted_rate": float(scores[:, 0].mean()),
        "true_rate": float((y[test] == 0).mean()),
        "majority": float(max((y[test] == 0).mean(), (y[test] == 1).mean())),
    }


def _plain(
    model: nn.Module,
    loss: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    batch_size: int,
    epochs: int,
) -> None:
    device = next(model.parameters()).device
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(batch_size):
            optimizer.zero_grad()
            loss(model(x[rows].to(device)), y[rows].to(device)).mean().backward()
            optimizer.step()


def _scores(model: nn.Module, x: npt.NDArray[np.float32], device: str) -> npt.NDArray[np.float32]:
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(x).to(device)).softmax(1).cpu().numpy())


def _grouped(rows: list[Row]) -> list[Row]:
    found: list[Row] = []
    for name in MODELS:
        for epsilon in sorted({row["epsilon"] for row in rows}):
            own = [row for row in rows if row["model"] == name and row["epsilon"] == epsilon]
            if not own:
                continue
            accuracy, deviation = mean_sd([100 * row["accuracy"] for row in own])
            found.append(
                {
                    "model": name,
                    "ε": epsilon,
                    "seeds": len(own),
                    "accuracy %": accuracy,
                    "sd": deviation,
                    "unemployment predicted %": mean_sd([100 * row["predicted_rate"] for row in own])[0],
                    "true %": mean_sd([100 * row["true_rate"] for row in own])[0],
                    "majority %": mean_sd([100 * row["majority"] for row in own])[0],
                }
            )
    return found


def summary(rows: list[Row]) -> str:
    """Means over seeds."""
    grouped = _grouped(rows)
    return markdown(grouped, list(grouped[0]))


def plot(rows: list[Row], folder: Path) -> None:
    """Accuracy and the predicted unemployment rate against ε, with the lines without privacy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, name in enumerate(MODELS):
        own = [row for row in _grouped(rows) if row["model"] == name]
        private = [row for row in own if row["ε"] != float("inf")]
        plain = [row for row in own if row["ε"] == float("inf")]
        for axes, column in ((left, "accuracy %"), (right, "unemployment predicted %")):
            deviation = [row["sd"] for row in private] if column == "accuracy %" else None
            axes.errorbar(
                [row["ε"] for row in private], [row[column] for row in private], deviation,
                marker="o", capsize=3, color=f"C{number}", label=f"{name}, private",
            )  # fmt: skip
            axes.axhline(plain[0][column], ls="--", color=f"C{number}", label=f"{name}, not private")
    first = _grouped(rows)[0]
    left.axhline(first["majority %"], ls=":", color="gray", label="majority")
    right.axhline(first["true %"], ls=":", color="gray", label="true rate")
    for axes, what in ((left, "test accuracy (%)"), (right, "unemployment rate (%)")):
        axes.set(xscale="log", xlabel=f"ε at δ = {DELTA:g}, add/remove one person", ylabel=what)
        axes.grid(True, alpha=0.2)
        axes.legend(fontsize=8)
    figure.savefig(folder / "census.png", dpi=150)
