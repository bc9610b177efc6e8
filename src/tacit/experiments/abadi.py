"""What does the first deep-learning result with differential privacy give today? Abadi et al. 2016 on MNIST.

Their architecture: a private projection to 60 dimensions (PCA of rows of norm 1, one Gaussian release of the second
moments), 1,000 hidden units, lots of 600, clip norm 4, a rate that falls from 0.1 to 0.052 over ten epochs. Three noise
levels (σ = 8, 4, 2, with 16, 7, 4 for the projection), each trained until the published accountant reads ε = 0.5, 2, 8.
The same releases are priced by ours beside it; the projection is in every price.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit import accounting as acc
from tacit.experiments import pictures
from tacit.experiments.table import Row, Table, markdown, mean_sd

ABOUT = "Abadi et al. 2016 on MNIST: accuracy against epoch at three noise levels, ε as published and as certified"
SEEDS = 3
LOT, ROWS, DELTA, CLIP = 600, 60_000, 1e-5, 4.0
#: σ of training: (σ of the projection, target ε, published accuracy in per cent)
LEVELS = {8.0: (16.0, 0.5, 90.0), 4.0: (7.0, 2.0, 95.0), 2.0: (4.0, 8.0, 97.0)}
PUBLISHED_PLAIN = 98.3  # without privacy, after about 100 epochs
MOST_EPOCHS = 400


def released(noise: float, projection: float, steps: int) -> acc.Mechanism:
    """All that leaves the data: the projection and the noisy sums."""
    return acc.PoissonSampled(acc.Gaussian(noise), LOT / ROWS) * steps + acc.Gaussian(projection)


def steps_at(noise: float, projection: float, epsilon: float, way: str) -> int:
    """The most steps at which ``way`` reads at most ε, to whole epochs; at most :data:`MOST_EPOCHS` of them.

    >>> steps_at(8.0, 16.0, 0.5, "moments") < steps_at(8.0, 16.0, 0.5, "certified")
    True
    """
    epoch = ROWS // LOT
    low, high = 0, MOST_EPOCHS
    while low < high:
        middle = (low + high + 1) // 2
        price = acc.compare(released(noise, projection, middle * epoch), DELTA)[way].epsilon
        low, high = (middle, high) if price <= epsilon else (low, middle - 1)
    return low * epoch


def project(x: Tensor, noise: float) -> Tensor:
    """An orthonormal basis (784 x 60) of the noisy second moments of rows scaled to norm 1.

    Guarantee: one Gaussian mechanism of multiplier ``noise``: adding a row of norm 1 moves the symmetric matrix by 1 in
    Frobenius norm; the noise is ``noise`` on the diagonal and ``noise``/√2 beside it, from the exact sampler.
    """
    from tacit.noise import add_gaussian

    rows = x.flatten(1).double()
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)
    moments = (rows.T @ rows).cpu().numpy()
    upper = np.triu_indices(len(moments), 1)
    noisy = np.diag(add_gaussian(np.diag(moments), noise * (1 + 1e-9)))
    noisy[upper] = add_gaussian(moments[upper], noise * (1 + 1e-9) / math.sqrt(2))
    noisy.T[upper] = noisy[upper]
    vectors = np.linalg.eigh(noisy)[1]
    return torch.from_numpy(vectors[:, ::-1][:, :60].copy()).float().to(x.device)


def run(table: Table) -> None:
    """Rows for each noise level and seed, with the accuracy after every fifth epoch."""
    split = pictures.load(table, "mnist", test=True)
    for noise, (projection, epsilon, _) in LEVELS.items():
        for seed in range(table.seeds):
            measure = functools.partial(_measure, table, split, noise, projection, epsilon, seed)
            table.row(measure, noise=noise, seed=seed)


def _measure(
    table: Table, split: pictures.Split, noise: float, projection: float, epsilon: float, seed: int
) -> dict[str, Any]:
    from tacit.sgd import Training

    steps = 4 if table.small else steps_at(noise, projection, epsilon, "moments")
    basis = project(split.train[0], projection)

    def projected(part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        rows = part[0].flatten(1)
        return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12) @ basis, part[1]

    train, test = projected(split.train), projected(split.test)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(60, 1000), nn.ReLU(), nn.Linear(1000, 10)).to(train[0].device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    epoch = max(1, ROWS // LOT)
    fall = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(1 - 0.48 * step / (10 * epoch), 0.52))
    training = Training(
        model,
        optimizer,
        nn.CrossEntropyLoss(reduction="none"),
        train,
        batch_size=min(LOT, len(train[1]) // 4),
        steps=steps,
        noise_multiplier=noise,
        delta=DELTA,
        clip_norm=CLIP,
        scheduler=fall,
    )
    curve = []
    for number, batch in enumerate(training, 1):
        training.step(batch)
        if number % (5 * epoch) == 0:
            curve.append([number // epoch, pictures.accuracy(model, test)])
    prices = acc.compare(released(noise, projection, steps), DELTA)
    return {
        "projection_noise": projection,
        "steps": steps,
        "moments": prices["moments"].epsilon,
        "certified": prices["certified"].epsilon,
        "delta": DELTA,
        "accuracy": pictures.accuracy(model, test),
        "curve": curve,
    }


def summary(rows: list[Row]) -> str:
    """Means over seeds next to the published figures."""
    found = []
    for noise, (projection, epsilon, published) in LEVELS.items():
        own = [row for row in rows if row["noise"] == noise]
        if own:
            mean, deviation = mean_sd([100 * row["accuracy"] for row in own])
            found.append(
                {
                    "σ": noise,
                    "σ of PCA": projection,
                    "epochs": own[0]["steps"] // (ROWS // LOT),
                    "ε published": epsilon,
                    "ε moments": own[0]["moments"],
                    "ε certified": own[0]["certified"],
                    "accuracy %": mean,
                    "sd": deviation,
                    "published %": published,
                    "seeds": len(own),
                }
            )
    return markdown(found, list(found[0]))


def plot(rows: list[Row], folder: Path) -> None:
    """Accuracy against epoch, one curve for each noise level."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (noise, (_, epsilon, published)) in enumerate(LEVELS.items()):
        for row in [row for row in rows if row["noise"] == noise]:
            if row["curve"]:
                label = (
                    f"σ = {noise:g}, ε = {row['certified']:.2f} (published {epsilon:g})" if not row["seed"] else None
                )
                axes.plot(*zip(*row["curve"], strict=True), color=f"C{number}", alpha=0.7, label=label)
        axes.axhline(published / 100, color=f"C{number}", ls=":", lw=1)
    axes.axhline(PUBLISHED_PLAIN / 100, color="gray", ls="--", label="published, without privacy")
    axes.set(xscale="log", xlabel="epochs", ylabel="test accuracy", ylim=(0.8, 1.0))
    axes.grid(True, alpha=0.2)
    axes.legend(fontsize=8)
    figure.savefig(folder / "abadi-mnist.png", dpi=150)
