"""What does the first deep-learning result with differential privacy give today? Abadi et al. 2016 on MNIST.

Their architecture: a private projection to 60 dimensions (PCA of rows scaled to norm 1, one Gaussian release of the
second moments), 1,000 hidden units, lots of 600, clip norm 4, a rate that falls from 0.1 to 0.052 over ten epochs.
Three noise levels (σ = 8, 4, 2, with 16, 7, 4 for the projection), each trained until the published accountant reads
ε = 0.5, 2, 8.

The paper clips the gradient of *each layer* at 4 and adds noise 4σ to each. Together they have sensitivity 4√2, so
their noise multiplier is σ/√2, and ε is larger than the paper's accountant reads at σ. Both are run: ``layers`` as the
paper did, priced by what was done; ``flat``, the whole gradient clipped at 4, for which σ is the multiplier. The
projection is in every price.

Then a small convolutional network for 15 epochs: how ε grows at noise multiplier 1, and accuracy against the ε that
other multipliers end with.

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
from experiments.table import Facts, Row, Table, markdown, mean_sd
from tacit import accounting as acc

ABOUT = "Abadi et al. 2016 on MNIST: accuracy against epoch at three noise levels, ε as published and as certified"
FACTS = Facts(
    paper="Abadi et al. 2016, figures 3 and 4; TensorFlow Privacy's MNIST tutorial",
    same="private PCA to 60, 1,000 hidden units, lots of 600, each layer clipped at 4, σ = 8, 4, 2, δ = 1e-5",
    differs="priced by what was run: two layers clipped at 4 have sensitivity 4√2; flat clipping beside it",
    published="90 / 95 / 97% at ε = .5 / 2 / 8; 98.3% not private",
    ours=(
        ("each layer: σ = 8", {"part": "layers", "noise": 8.0, "epoch": 29}, "accuracy"),
        ("at ε", {"part": "layers", "noise": 8.0, "epoch": 29}, "certified"),
        ("σ = 4", {"part": "layers", "noise": 4.0, "epoch": 215}, "accuracy"),
        ("at ε", {"part": "layers", "noise": 4.0, "epoch": 215}, "certified"),
        ("σ = 2", {"part": "layers", "noise": 2.0, "epoch": 706}, "accuracy"),
        ("at ε", {"part": "layers", "noise": 2.0, "epoch": 706}, "certified"),
        ("not private", {"part": "plain", "epoch": 100}, "accuracy"),
    ),
    page="classics",
    short="about 3.5 minutes on two quiet cores: 20 epochs at most, 6 of the convolutional network",
    full="54 minutes of runs, several at a time, on one H200",
)
SEEDS = 3
LOT, ROWS, DELTA, CLIP = 600, 60_000, 1e-5, 4.0
#: How gradients are clipped: the sensitivity of what is summed, in clip norms.
CLIPPINGS = {"layers": math.sqrt(2), "flat": 1.0}
#: σ of training: (σ of the projection, target ε, published accuracy in per cent)
LEVELS = {8.0: (16.0, 0.5, 90.0), 4.0: (7.0, 2.0, 95.0), 2.0: (4.0, 8.0, 97.0)}
PUBLISHED_PLAIN = 98.3  # without privacy, after about 100 epochs
PLAIN_RATE = 0.5  # without noise the rate of the private runs is too low: 97.7% after 100 epochs
MOST_EPOCHS = 720
SHORT_EPOCHS = 20  # of the short size: minutes on two cores
EPOCHS = (1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 56, 80, 100, 140, 200, 280, 400, 560)
DELTAS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
#: The batch, rate and clip norm of TensorFlow Privacy's MNIST tutorial (15 epochs at noise multiplier 1.3 give 95.0% at
#: ε = 1.19, as its table says; its network has ReLU where ours has tanh), at several noise multipliers.
NETWORK = Recipe("raw", "cnn", batch=256, rate=0.25, clip=1.5, momentum=0.0)
NETWORK_NOISE = (1.0, 1.3, 0.6, 0.8, 2.0, 3.0, 5.0)
NETWORK_EPOCHS, SHORT_NETWORK_EPOCHS = 15, 6
PUBLISHED_NETWORK = (1.19, 95.0)
#: The noise that stands for none.
PLAIN = 0.0


def released(noise: float, projection: float, steps: int) -> acc.Mechanism:
    """All that leaves the data: the projection and the noisy sums, by the noise in units of their sensitivity."""
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

    levels = table.pick([8.0], [*LEVELS], [*LEVELS])
    networks: tuple[float, ...] = table.pick((1.0,), (1.3,), NETWORK_NOISE)
    return [
        *(curve(part, noise, seed) for noise in levels for part in CLIPPINGS for seed in range(table.seeds)),
        *(curve("plain", PLAIN, seed) for seed in range(table.seeds)),
        *(curve("network", noise, seed) for noise in networks for seed in range(table.seeds)),
    ]


def points(part: str, noise: float, table: Table) -> list[int]:
    """The epochs after which a run is measured."""
    if table.tiny:
        return [1, 2]
    if part == "network":
        return list(range(1, table.pick(2, SHORT_NETWORK_EPOCHS, NETWORK_EPOCHS) + 1))
    last = 100
    if noise != PLAIN:
        projection, epsilon, _ = LEVELS[noise]
        last = steps_at(noise, projection, epsilon, "moments") // (ROWS // LOT)
    last = min(last, table.pick(2, SHORT_EPOCHS, last))
    return [*(epoch for epoch in EPOCHS if epoch < last), last]


def _curve(table: Table, split: Callable[[], pictures.Split], part: str, noise: float, seed: int) -> None:
    key = {"part": part, "noise": noise, "seed": seed}
    wanted = points(part, noise, table)
    known = {row["epoch"] for row in table.rows if all(row[name] == value for name, value in key.items())}
    if known.issuperset(wanted):
        return
    data = split()
    began = time.perf_counter()
    epochs = _network(table, data, noise, seed) if part == "network" else _original(table, data, part, noise, seed)
    for epoch, found in zip(range(1, wanted[-1] + 1), epochs, strict=False):
        if epoch in wanted:

            def measure(found: Callable[[], Row] = found) -> Row:
                return {**found(), "elapsed": round(time.perf_counter() - began, 1)}

            table.row(measure, **key, epoch=epoch)


def _original(table: Table, split: pictures.Split, part: str, noise: float, seed: int) -> Iterator[Callable[[], Row]]:
    """Epoch after epoch of the original architecture; what each yields measures it."""
    projection, epsilon = LEVELS[noise][:2] if noise else (0.0, math.inf)
    every = 3 if table.tiny else 1  # tiny: fewer pixels

    def pixels(x: Tensor) -> Tensor:
        return ((x + 1) / 2)[..., ::every, ::every].flatten(1)

    basis = project(pixels(split.train[0]), projection)

    def projected(rows: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return pixels(rows[0]) @ basis, rows[1]

    train, test = projected(split.train), projected(split.test)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(60, 1000), nn.ReLU(), nn.Linear(1000, 10)).to(train[0].device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if noise else PLAIN_RATE)
    lot, epoch = (25, 2) if table.tiny else (LOT, ROWS // LOT)
    fall = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(1 - 0.48 * step / (10 * epoch), 0.52))
    if noise:
        last = points(part, noise, table)[-1]
        clip = {"clip_norm": CLIP * CLIPPINGS[part], "clipping": {"layers": "per_layer", "flat": "flat"}[part]}
        # The sum has noise 4σ on every coordinate either way.
        true = noise / CLIPPINGS[part]
        advance = _private(table, model, optimizer, train, lot, last * epoch, true, fall, **clip)
    else:
        advance = _plainly(model, optimizer, train, lot, fall)
    for number, _ in enumerate(advance, 1):
        if number % epoch == 0:
            yield lambda number=number: {  # type: ignore[misc]
                "accuracy": pictures.accuracy(model, test),
                "train_accuracy": pictures.accuracy(model, train),
                "steps": number,
                **(_original_prices(part, noise, projection, epsilon, number) if noise else {}),
            }


def _original_prices(part: str, noise: float, projection: float, epsilon: float, steps: int) -> Row:
    """What the paper's accountant reads at σ; what the run costs; the δ of each at the published ε."""
    claimed, true = (released(z, projection, steps) for z in (noise, noise / CLIPPINGS[part]))
    return {
        **prices(true, steps),
        "claimed": acc.compare(claimed, DELTA)["moments"].epsilon,
        "claimed_delta": acc.delta(claimed, epsilon).upper,
        "delta": acc.delta(true, epsilon).upper,
    }


def _network(table: Table, split: pictures.Split, noise: float, seed: int) -> Iterator[Callable[[], Row]]:
    """Epoch after epoch of the convolutional network."""
    torch.manual_seed(seed)
    x = split.train[0]
    model = pictures.make(NETWORK.network, x.shape[1:]).to(x.device)
    with torch.no_grad():
        model(x[:2])  # gives lazy layers their shape
    optimizer = pictures.optimizer(NETWORK, model.parameters())
    lot, epoch = (25, 2) if table.tiny else (NETWORK.batch, ROWS // NETWORK.batch)
    steps = epoch * (2 if table.tiny else NETWORK_EPOCHS)
    advance = _private(table, model, optimizer, split.train, lot, steps, noise, None, clip_norm=NETWORK.clip)
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
    scheduler: Any,
    **clip: Any,
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
        scheduler=scheduler,
        **clip,
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
    """Means over seeds of one noise level, epoch by epoch, with what it costs."""
    own = [row for row in rows if row["part"] == part and row["noise"] == noise]
    found = []
    for epoch in sorted({row["epoch"] for row in own}):
        same = [row for row in own if row["epoch"] == epoch]
        mean, deviation = mean_sd([100 * row["accuracy"] for row in same])
        point = {"epoch": epoch, "mean": mean, "sd": deviation, "seeds": len(same)}
        if "train_accuracy" in same[0]:
            point["train"] = mean_sd([100 * row["train_accuracy"] for row in same])[0]
        found.append({**same[0], **point})
    return found


def grid(rows: list[Row], delta: float) -> list[tuple[float, float]]:
    """(ε, the best mean accuracy that one of the noise levels reached within it), rising, at one δ."""
    reached = sorted(
        (point["at_delta"][f"{delta:g}"], point["mean"])
        for noise in LEVELS
        for part in CLIPPINGS
        for point in curve_of(rows, part, noise)
    )
    best, found = -math.inf, []
    for epsilon, accuracy in reached:
        if accuracy > best:
            best = accuracy
            found.append((epsilon, accuracy))
    return found


def _at(curve: list[tuple[float, float]], epsilon: float) -> float:
    return max((accuracy for price, accuracy in curve if price <= epsilon), default=math.nan)


def _levels(rows: list[Row]) -> Iterator[Row]:
    """The end of each run of the original architecture, beside what is published."""
    for noise, (projection, epsilon, published) in LEVELS.items():
        for part in CLIPPINGS:
            for last in curve_of(rows, part, noise)[-1:]:
                yield {
                    "σ": noise, "σ of PCA": projection, "clipped": part, "epochs": last["epoch"],
                    "ε published": epsilon, "ε by the paper's accountant": last["claimed"],
                    "ε of what was run": last["certified"], "test %": last["mean"], "sd": last["sd"],
                    "train %": last["train"], "published test %": published, "seeds": last["seeds"],
                }  # fmt: skip
    for last in curve_of(rows, "plain", PLAIN)[-1:]:
        yield {
            "σ": 0, "clipped": "not private", "epochs": last["epoch"], "test %": last["mean"], "sd": last["sd"],
            "train %": last["train"], "published test %": PUBLISHED_PLAIN, "seeds": last["seeds"],
        }  # fmt: skip


def summary(rows: list[Row]) -> str:
    """Means over seeds next to the published figures; accuracy over ε and δ; the network."""
    first = list(_levels(rows))
    targets = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    second = []
    for delta in DELTAS if first else ():
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
    """Figure 3 and figure 4 of the paper, then the network."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 11.5), layout="constrained")
    grid_of_axes = figure.subplots(3, 3)
    for column, noise in enumerate(LEVELS):
        _panel_of_level(grid_of_axes[0][column], rows, noise)
    _panel_of_clipping(grid_of_axes[1][0], rows)
    _panel_of_plain(grid_of_axes[1][1], rows)
    _panel_of_deltas(grid_of_axes[1][2], rows)
    _panel_of_growth(grid_of_axes[2][0], rows)
    _panel_of_network(grid_of_axes[2][1], rows)
    grid_of_axes[2][2].set_axis_off()
    for axes in grid_of_axes.flat:
        axes.grid(True, alpha=0.2)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, loc="lower right")
    figure.savefig(folder / "abadi-mnist.png", dpi=110)


def _line(axes: Any, curve: list[Row], what: str, style: str, **more: Any) -> None:
    axes.plot([point["epoch"] for point in curve], [point[what] for point in curve], style, **more)


def _panel_of_level(axes: Any, rows: list[Row], noise: float) -> None:
    """Figure 3: training and test accuracy against epoch, and δ at the published ε, for clipping by layer."""
    epsilon, published = LEVELS[noise][1:]
    curve = curve_of(rows, "layers", noise)
    _line(axes, curve, "train", "C0.-", label="training")
    _line(axes, curve, "mean", "C1.-", label="test")
    axes.axhline(published, color="k", ls=":", lw=1, label="published")
    axes.set(xlabel="epochs", ylabel="accuracy (%)", ylim=(75, 100), title=f"figure 3: σ = {noise:g}, each layer at 4")
    other = axes.twinx()
    for what, style, words in (("claimed_delta", "C2--", "δ as the paper has it"), ("delta", "C3-", "δ of this run")):
        _line(other, curve, what, style, alpha=0.8)
        axes.plot([], [], style, alpha=0.8, label=words)  # in the legend of the other axis
    other.set(yscale="log", ylabel=f"δ at ε = {epsilon:g}", ylim=(1e-12, 1))


def _panel_of_clipping(axes: Any, rows: list[Row]) -> None:
    for number, noise in enumerate(LEVELS):
        for part, style in (("layers", "-"), ("flat", "--")):
            curve = curve_of(rows, part, noise)
            if curve:
                _line(
                    axes,
                    curve,
                    "mean",
                    f"C{number}{style}",
                    label=f"σ = {noise:g}, {part}: ε {curve[-1]['certified']:.2f}",
                )
    axes.set(
        xscale="log", xlabel="epochs", ylabel="test accuracy (%)", ylim=(75, 100), title="clipped by layer, and flat"
    )


def _panel_of_plain(axes: Any, rows: list[Row]) -> None:
    plain = curve_of(rows, "plain", PLAIN)
    _line(axes, plain, "train", "C0.-", label="training")
    _line(axes, plain, "mean", "C1.-", label="test")
    axes.axhline(PUBLISHED_PLAIN, color="k", ls=":", lw=1, label="published")
    axes.set(xlabel="epochs", ylabel="accuracy (%)", ylim=(90, 100.2), title="not private")


def _panel_of_deltas(axes: Any, rows: list[Row]) -> None:
    """Figure 4: the best accuracy for each pair of ε and δ."""
    for number, delta in enumerate(DELTAS):
        curve = grid(rows, delta)
        if curve:
            axes.step(*zip(*curve, strict=True), where="post", color=f"C{number}", label=f"δ = {delta:g}")
    axes.set(xscale="log", xlabel="ε of what was run", ylabel="best test accuracy (%)", ylim=(75, 100))
    axes.set_title("figure 4: accuracy for ε and δ")


def _panel_of_growth(axes: Any, rows: list[Row]) -> None:
    noises = {row["noise"] for row in rows if row["part"] == "network"}
    noise = 1.0 if 1.0 in noises else min(noises, default=1.0)
    curve = curve_of(rows, "network", noise)
    _line(axes, curve, "moments", "C1.-", label="ε, moments accountant")
    _line(axes, curve, "certified", "C0.-", label="ε, certified")
    axes.set(xlabel="epochs", ylabel=f"ε at δ = {DELTA:g}", ylim=(0, None))
    axes.set_title(f"convolutional network, noise multiplier {noise:g}")
    other = axes.twinx()
    _line(other, curve, "mean", "k--", alpha=0.6)
    other.set_ylabel("test accuracy (%, dashed)")


def _panel_of_network(axes: Any, rows: list[Row]) -> None:
    noises = sorted({row["noise"] for row in rows if row["part"] == "network"}, reverse=True)
    ends = [(curve_of(rows, "network", noise)[-1], noise) for noise in noises]
    whole = max((end["epoch"] for end, _ in ends), default=0)
    ends = [(end, noise) for end, noise in ends if end["epoch"] == whole]  # not those that were cut
    axes.errorbar(
        [end["certified"] for end, _ in ends], [end["mean"] for end, _ in ends], [end["sd"] for end, _ in ends],
        marker="o", capsize=3, label=f"tacit, {whole} epochs",
    )  # fmt: skip
    for end, noise in ends:
        axes.annotate(
            f"σ = {noise:g}", (end["certified"], end["mean"]), (4, -12), textcoords="offset points", fontsize=8
        )
    axes.plot(*PUBLISHED_NETWORK, "kx", label="TensorFlow Privacy tutorial, σ = 1.3")
    axes.set(xscale="log", xlabel=f"ε after {whole} epochs at δ = {DELTA:g}", ylabel="test accuracy (%)")
    axes.set_xticks(ticks := [0.2, 0.5, 1, 2, 5], [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_title("convolutional network, accuracy against ε")
