"""What does the first deep-learning result with differential privacy give today? Abadi et al. 2016 on MNIST.

Their architecture: a private projection to 60 dimensions (PCA of rows scaled to norm 1, one Gaussian release of the
second moments), 1,000 hidden units, lots of 600, clip norm 4, a rate that falls from 0.1 to 0.052 over ten epochs.
Three noise levels (σ = 8, 4, 2, with 16, 7, 4 for the projection), each trained until the published accountant reads
ε = 0.5, 2, 8. The same releases are priced by ours beside it; the projection is in every price. Then a small
convolutional network for 15 epochs: how ε grows at noise multiplier 1, and accuracy against the ε that other
multipliers end with.

Each measured epoch is a row, so that a run that was cut keeps its curve; taken up again, it starts anew and adds the
points that are missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments import pictures
from experiments.pictures import Recipe
from experiments.table import Row, Table, markdown, mean_sd
from tacit import accounting as acc

ABOUT = "Abadi et al. 2016 on MNIST: accuracy against epoch at three noise levels, ε as published and as certified"
SEEDS = 3
LOT, ROWS, DELTA, CLIP = 600, 60_000, 1e-5, 4.0
#: σ of training: (σ of the projection, target ε, published accuracy in per cent)
LEVELS = {8.0: (16.0, 0.5, 90.0), 4.0: (7.0, 2.0, 95.0), 2.0: (4.0, 8.0, 97.0)}
PUBLISHED_PLAIN = 98.3  # without privacy, after about 100 epochs
MOST_EPOCHS = 720
CPU_EPOCHS = 100  # the most on a CPU, where an epoch takes seconds
EPOCHS = (1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 56, 80, 100, 140, 200, 280, 400, 560)
DELTAS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
#: The batch, rate and clip norm of TensorFlow Privacy's MNIST tutorial (15 epochs at noise multiplier 1.3 give 95.0% at
#: ε = 1.19, as its table says; its network has ReLU where ours has tanh), at several noise multipliers.
NETWORK = Recipe("raw", "cnn", batch=256, rate=0.25, clip=1.5, momentum=0.0)
NETWORK_NOISE = (1.0, 1.3, 0.6, 0.8, 2.0, 3.0, 5.0)
NETWORK_EPOCHS = 15
PUBLISHED_NETWORK = (1.19, 95.0)
#: The noise that stands for none.
PLAIN = 0.0


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
    """An orthonormal basis (60 columns) of the noisy second moments of rows scaled to norm 1.

    Guarantee: one Gaussian mechanism of multiplier ``noise``: adding a row of norm 1 moves the symmetric matrix by 1 in
    Frobenius norm; the noise is ``noise`` on the diagonal and ``noise``/√2 beside it, from the exact sampler. Noise 0
    gives no guarantee.
    """
    from tacit.noise import add_gaussian

    rows = x.double()
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)
    moments = (rows.T @ rows).cpu().numpy()
    if noise:
        upper = np.triu_indices(len(moments), 1)
        noisy = np.diag(add_gaussian(np.diag(moments), noise * (1 + 1e-9)))
        noisy[upper] = add_gaussian(moments[upper], noise * (1 + 1e-9) / math.sqrt(2))
        noisy.T[upper] = noisy[upper]
        moments = noisy
    vectors = np.linalg.eigh(moments)[1]
    return torch.from_numpy(vectors[:, ::-1][:, :60].copy()).float().to(x.device)


def run(table: Table) -> None:
    """Rows for each network, noise level, seed and measured epoch."""
    for task in tasks(table):
        task()


def tasks(table: Table) -> list[Callable[[], None]]:
    """One run each, the short ones first; several processes may share a table's tasks."""
    kept: list[pictures.Split] = []

    def split() -> pictures.Split:
        if not kept:
            kept.append(pictures.load(table, "mnist", test=True))
        return kept[0]

    def curve(part: str, noise: float, seed: int) -> Callable[[], None]:
        return lambda: _curve(table, split, part, noise, seed)

    levels = [8.0, PLAIN] if table.small else [*LEVELS, PLAIN]
    networks = (1.0,) if table.small else NETWORK_NOISE
    return [curve("original", noise, seed) for noise in levels for seed in range(table.seeds)] + [
        curve("network", noise, seed) for noise in networks for seed in range(table.seeds)
    ]


def points(part: str, noise: float, table: Table) -> list[int]:
    """The epochs after which a run is measured."""
    if table.small:
        return [1, 2]
    if part == "network":
        return list(range(1, NETWORK_EPOCHS + 1))
    last = 100
    if noise != PLAIN:
        projection, epsilon, _ = LEVELS[noise]
        last = steps_at(noise, projection, epsilon, "moments") // (ROWS // LOT)
        if not table.device.startswith("cuda"):
            last = min(last, CPU_EPOCHS)
    return [*(epoch for epoch in EPOCHS if epoch < last), last]


def _curve(table: Table, split: Callable[[], pictures.Split], part: str, noise: float, seed: int) -> None:
    key = {"part": part, "noise": noise, "seed": seed}
    wanted = points(part, noise, table)
    known = {row["epoch"] for row in table.rows if all(row[name] == value for name, value in key.items())}
    if known.issuperset(wanted):
        return
    data = split()
    began = time.perf_counter()
    epochs = _original(table, data, noise, seed) if part == "original" else _network(table, data, noise, seed)
    for epoch, found in zip(range(1, wanted[-1] + 1), epochs, strict=False):
        if epoch in wanted:

            def measure(found: Callable[[], Row] = found) -> Row:
                return {**found(), "elapsed": round(time.perf_counter() - began, 1)}

            table.row(measure, **key, epoch=epoch)


def _original(table: Table, split: pictures.Split, noise: float, seed: int) -> Iterator[Callable[[], Row]]:
    """Epoch after epoch of the original architecture; what each yields measures it."""
    projection, epsilon = LEVELS[noise][:2] if noise else (0.0, math.inf)
    every = 3 if table.small else 1  # small: fewer pixels

    def pixels(x: Tensor) -> Tensor:
        return ((x + 1) / 2)[..., ::every, ::every].flatten(1)

    basis = project(pixels(split.train[0]), projection)

    def projected(part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return pixels(part[0]) @ basis, part[1]

    train, test = projected(split.train), projected(split.test)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(60, 1000), nn.ReLU(), nn.Linear(1000, 10)).to(train[0].device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lot, epoch = (25, 2) if table.small else (LOT, ROWS // LOT)
    fall = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(1 - 0.48 * step / (10 * epoch), 0.52))
    if noise:
        steps = 4 if table.small else steps_at(noise, projection, epsilon, "moments")
        advance = _private(table, model, optimizer, train, lot, steps, noise, CLIP, fall)
    else:
        advance = _plainly(model, optimizer, train, lot, fall)
    for number, _ in enumerate(advance, 1):
        if number % epoch == 0:
            yield lambda number=number: {  # type: ignore[misc]
                "accuracy": pictures.accuracy(model, test),
                **({"steps": number} if not noise else prices(released(noise, projection, number), number)),
            }


def _network(table: Table, split: pictures.Split, noise: float, seed: int) -> Iterator[Callable[[], Row]]:
    """Epoch after epoch of the convolutional network."""
    torch.manual_seed(seed)
    x = split.train[0]
    model = pictures.make(NETWORK.network, x.shape[1:]).to(x.device)
    with torch.no_grad():
        model(x[:2])  # gives lazy layers their shape
    optimizer = pictures.optimizer(NETWORK, model.parameters())
    lot, epoch = (25, 2) if table.small else (NETWORK.batch, ROWS // NETWORK.batch)
    steps = epoch * (2 if table.small else NETWORK_EPOCHS)
    advance = _private(table, model, optimizer, split.train, lot, steps, noise, NETWORK.clip, None)
    step = acc.PoissonSampled(acc.Gaussian(noise), NETWORK.batch / ROWS)
    for number, _ in enumerate(advance, 1):
        if number % epoch == 0:
            yield lambda number=number: {  # type: ignore[misc]
                "accuracy": pictures.accuracy(model, split.test),
                **prices(step * number, number),
            }


def _private(
    table: Table,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    train: tuple[Tensor, Tensor],
    lot: int,
    steps: int,
    noise: float,
    clip: float,
    scheduler: Any,
) -> Iterator[None]:
    from tacit.sgd import Training

    training = Training(
        model,
        optimizer,
        nn.CrossEntropyLoss(reduction="none"),
        train,
        batch_size=lot,
        steps=steps,
        noise_multiplier=noise,
        delta=DELTA,
        clip_norm=clip,
        scheduler=scheduler,
        compile=table.device.startswith("cuda"),
    )
    for batch in training:
        training.step(batch)
        yield


def _plainly(
    model: nn.Module, optimizer: torch.optim.Optimizer, train: tuple[Tensor, Tensor], lot: int, scheduler: Any
) -> Iterator[None]:
    x, y = train
    while True:
        for rows in torch.randperm(len(y), device=y.device).split(lot):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            scheduler.step()
            yield


def prices(mechanism: acc.Mechanism, steps: int) -> Row:
    """By the published accountant and by ours, and ours at other δ."""
    both = acc.compare(mechanism, DELTA)
    return {
        "steps": steps,
        "moments": both["moments"].epsilon,
        "certified": both["certified"].epsilon,
        "at_delta": {f"{delta:g}": acc.epsilon(mechanism, delta).upper for delta in DELTAS},
    }


# -- table and plot ----


def curve_of(rows: list[Row], part: str, noise: float) -> list[Row]:
    """Means over seeds of one noise level, epoch by epoch, with ε."""
    own = [row for row in rows if row["part"] == part and row["noise"] == noise]
    found = []
    for epoch in sorted({row["epoch"] for row in own}):
        same = [row for row in own if row["epoch"] == epoch]
        mean, deviation = mean_sd([100 * row["accuracy"] for row in same])
        kept = {name: same[0].get(name) for name in ("moments", "certified", "at_delta")}
        found.append({"epoch": epoch, "mean": mean, "sd": deviation, "seeds": len(same), **kept})
    return found


def grid(rows: list[Row], delta: float) -> list[tuple[float, float]]:
    """(ε, the best mean accuracy that one of the noise levels reached within it), rising, at one δ."""
    reached = sorted(
        (point["at_delta"][f"{delta:g}"], point["mean"])
        for noise in LEVELS
        for point in curve_of(rows, "original", noise)
    )
    best, found = -math.inf, []
    for epsilon, accuracy in reached:
        if accuracy > best:
            best = accuracy
            found.append((epsilon, accuracy))
    return found


def _at(curve: list[tuple[float, float]], epsilon: float) -> float:
    return max((accuracy for price, accuracy in curve if price <= epsilon), default=math.nan)


def summary(rows: list[Row]) -> str:
    """Means over seeds next to the published figures; accuracy over ε and δ; the network."""
    first = []
    for noise, (projection, epsilon, published) in [*LEVELS.items(), (PLAIN, (0.0, math.inf, PUBLISHED_PLAIN))]:
        for last in curve_of(rows, "original", noise)[-1:]:
            first.append(
                {"σ": noise, "σ of PCA": projection, "epochs": last["epoch"], "ε published": epsilon,
                 "ε moments": last["moments"], "ε certified": last["certified"], "accuracy %": last["mean"],
                 "sd": last["sd"], "published %": published, "seeds": last["seeds"]}
            )  # fmt: skip
    targets = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    second = []
    for delta in DELTAS:
        curve = grid(rows, delta)
        second.append({"δ": f"{delta:g}", **{f"ε = {epsilon:g}": _at(curve, epsilon) for epsilon in targets}})
    third = []
    for noise in sorted({row["noise"] for row in rows if row["part"] == "network"}):
        last = curve_of(rows, "network", noise)[-1]
        third.append(
            {"noise": noise, "epochs": last["epoch"], "ε moments": last["moments"], "ε certified": last["certified"],
             "accuracy %": last["mean"], "sd": last["sd"], "seeds": last["seeds"]}
        )  # fmt: skip
    return "\n\n".join(markdown(part, list(part[0])) for part in (first, second, third) if part)


def plot(rows: list[Row], folder: Path) -> None:
    """Accuracy against epoch, and against ε for each δ; ε of the network against epochs, and its accuracy against ε.

    Many branches: four panels, one after the other, each with curves of its own.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8.5), layout="constrained")
    ((epochs, deltas), (growth, trade)) = figure.subplots(2, 2)
    for number, (noise, (_, epsilon, published)) in enumerate(LEVELS.items()):
        curve = curve_of(rows, "original", noise)
        if curve:
            label = f"σ = {noise:g}: ε = {curve[-1]['certified']:.2f} (published {epsilon:g})"
            epochs.plot([p["epoch"] for p in curve], [p["mean"] for p in curve], f"C{number}.-", label=label)
            epochs.axhline(published, color=f"C{number}", ls=":", lw=1)
    plain = curve_of(rows, "original", PLAIN)
    epochs.plot([p["epoch"] for p in plain], [p["mean"] for p in plain], "k.-", alpha=0.6, label="without privacy")
    epochs.axhline(PUBLISHED_PLAIN, color="k", ls=":", lw=1)
    epochs.set(xscale="log", xlabel="epochs", ylabel="test accuracy (%)", ylim=(75, 100))
    epochs.set_title("original architecture (dotted: published)")
    for number, delta in enumerate(DELTAS):
        curve_of_delta = grid(rows, delta)
        deltas.step(*zip(*curve_of_delta, strict=True), where="post", color=f"C{number}", label=f"δ = {delta:g}")
    deltas.set(xscale="log", xlabel="ε, certified", ylabel="best test accuracy (%)", ylim=(75, 100))
    deltas.set_title("the same runs over ε and δ")
    one = curve_of(rows, "network", 1.0)
    growth.plot([p["epoch"] for p in one], [p["moments"] for p in one], "C1.-", label="ε, moments accountant")
    growth.plot([p["epoch"] for p in one], [p["certified"] for p in one], "C0.-", label="ε, certified")
    growth.set(xlabel="epochs", ylabel=f"ε at δ = {DELTA:g}", ylim=(0, None))
    growth.set_title("convolutional network, noise multiplier 1")
    other = growth.twinx()
    other.plot([p["epoch"] for p in one], [p["mean"] for p in one], "k--", alpha=0.6)
    other.set_ylabel("test accuracy (%, dashed)")
    noises = sorted({row["noise"] for row in rows if row["part"] == "network"}, reverse=True)
    ends = [(curve_of(rows, "network", noise)[-1], noise) for noise in noises]
    whole = max((end["epoch"] for end, _ in ends), default=0)
    ends = [(end, noise) for end, noise in ends if end["epoch"] == whole]  # not those that were cut
    trade.errorbar(
        [end["certified"] for end, _ in ends], [end["mean"] for end, _ in ends], [end["sd"] for end, _ in ends],
        marker="o", capsize=3, label=f"tacit, {whole} epochs",
    )  # fmt: skip
    for end, noise in ends:
        trade.annotate(
            f"σ = {noise:g}", (end["certified"], end["mean"]), (4, -12), textcoords="offset points", fontsize=8
        )
    trade.plot(*PUBLISHED_NETWORK, "kx", label="TensorFlow Privacy tutorial, σ = 1.3")
    trade.set(xscale="log", xlabel=f"ε after {whole} epochs at δ = {DELTA:g}", ylabel="test accuracy (%)")
    trade.set_xticks(ticks := [0.2, 0.5, 1, 2, 5], [f"{tick:g}" for tick in ticks])
    trade.minorticks_off()
    trade.set_title("convolutional network, accuracy against ε")
    for axes in (epochs, deltas, growth, trade):
        axes.grid(True, alpha=0.2)
        axes.legend(fontsize=8, loc="lower right")
    figure.savefig(folder / "abadi-mnist.png", dpi=130)
