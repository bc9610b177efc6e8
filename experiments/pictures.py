"""What do the experiments on pictures share? Data on a device, small networks, one private run, accuracy.

Settings are a :class:`Recipe`, a frozen value that is written into every row, so that a figure can be traced to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from experiments.scattering import scatter
from experiments.table import Table

DELTA = 1e-5
#: Rows at the end of the training split on which settings are chosen; a final run trains on them too.
HELD_OUT = 10_000


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a run is made. ``features`` and ``network`` name what :func:`inputs` and :func:`make` know."""

    features: str = "raw"
    network: str = "cnn"
    batch: int = 4096
    steps: int = 300
    rate: float = 1.0
    clip: float = 1.0
    momentum: float = 0.9
    optimizer: str = "sgd"
    schedule: str = "constant"
    ema: float | None = None
    shift: int = 0
    flips: bool = False
    views: int = 1

    def words(self) -> dict[str, Any]:
        """For a row."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Inputs and class numbers to train on and to test on, on one device."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def load(table: Table, name: str, *, test: bool) -> Split:
    """``mnist`` or ``fashion_mnist`` or ``cifar10`` as floats in [-1, 1].

    With ``test`` the published test split; without it the last :data:`HELD_OUT` training rows stand in for it, and the
    test split is not used.
    """
    if table.tiny:
        return _made_up(table.device)
    from tacit import datasets

    found = getattr(datasets, name)(download=False, data_dir=table.data)
    train = _tensors(found.train, table.device)
    if test:
        return Split(train, _tensors(found.test, table.device))
    cut = len(train[1]) - HELD_OUT
    return Split((train[0][:cut], train[1][:cut]), (train[0][cut:], train[1][cut:]))


def _made_up(device: str) -> Split:
    """A bright row for each class: enough to show that an experiment runs."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(10, (150,), generator=generator)
    x = 0.3 * torch.rand(150, 1, 28, 28, generator=generator) - 1
    x[torch.arange(150), 0, 4 + 2 * y] = 1.0
    x, y = x.to(device), y.to(device)
    return Split((x[:100], y[:100]), (x[100:], y[100:]))


def _tensors(images: Any, device: str) -> tuple[Tensor, Tensor]:
    x = torch.from_numpy(images.images.copy()).to(device)
    x = x.unsqueeze(1) if x.dim() == 3 else x.permute(0, 3, 1, 2)
    return x.float().div_(127.5).sub_(1.0).contiguous(), torch.from_numpy(images.labels.copy()).to(device)


def inputs(features: str, split: Split) -> Split:
    """The split as the network sees it: as it is, or its scattering maps."""
    if features == "raw":
        return split
    if features != "scatter":
        raise ValueError(f"features are 'raw' or 'scatter', not {features!r}")
    device = str(split.train[0].device)
    return Split(*((scatter((x + 1) / 2, device), y) for x, y in (split.train, split.test)))


def make(network: str, shape: torch.Size) -> nn.Module:
    """A network for inputs of this shape (colours or maps, height, width) and ten classes."""
    depth, side = shape[0], shape[-1]
    if network == "linear":
        return nn.Sequential(
            nn.GroupNorm(math.gcd(27, depth), depth, affine=False), nn.Flatten(), nn.Linear(depth * side * side, 10)
        )
    if network == "cnn":  # the small network of many papers: 26,010 weights on MNIST
        return nn.Sequential(
            nn.Conv2d(depth, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1),
            nn.Flatten(), nn.LazyLinear(32), nn.Tanh(), nn.Linear(32, 10),
        )  # fmt: skip
    if network == "maps":  # on scattering maps: two convolutions over a normalised input
        return nn.Sequential(
            nn.GroupNorm(math.gcd(27, depth), depth, affine=False),
            nn.Conv2d(depth, 64, 3, padding=1), nn.GroupNorm(8, 64, affine=False), nn.Tanh(),
            nn.Conv2d(64, 64, 3, padding=1), nn.GroupNorm(8, 64, affine=False), nn.Tanh(),
            nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(64 * ((side + 1) // 2) ** 2, 10),
        )  # fmt: skip
    raise ValueError(f"there is no network {network!r}: linear, cnn, maps")


def optimizer(recipe: Recipe, parameters: Any) -> torch.optim.Optimizer:
    """By name, with the recipe's rate."""
    from tacit.sgd import DPAdam

    known: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=recipe.rate, momentum=recipe.momentum),
        "adam": lambda: torch.optim.Adam(parameters, lr=recipe.rate),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=recipe.rate),
        "dp-adam": lambda: DPAdam(parameters, lr=recipe.rate),
    }
    if recipe.optimizer not in known:
        raise ValueError(f"the optimizer is one of {', '.join(known)}, not {recipe.optimizer!r}")
    return known[recipe.optimizer]()


def train(
    recipe: Recipe,
    split: Split,
    seed: int,
    *,
    epsilon: float | None = None,
    noise: float | None = None,
    compiled: bool = False,
    after: Callable[[int, nn.Module], None] | None = None,
    every: int = 0,
) -> dict[str, Any]:
    """One private run; accuracy on the split's test part, and what is claimed.

    ``after(step, model)`` is called every ``every`` steps: what it measures is for benchmark data only.
    """
    from tacit.sgd import Training
    from tacit.sgd.training.augment import crops

    torch.manual_seed(seed)
    x, y = split.train
    model = make(recipe.network, x.shape[1:]).to(x.device)
    with torch.no_grad():
        model(x[:2])  # gives lazy layers their shape; all weights are drawn before training
    chosen = optimizer(recipe, model.parameters())
    batch = min(recipe.batch, len(y) // 4)
    scheduler = (
        torch.optim.lr_scheduler.CosineAnnealingLR(chosen, recipe.steps) if recipe.schedule == "cosine" else None
    )
    training = Training(
        model,
        chosen,
        nn.CrossEntropyLoss(reduction="none"),
        split.train,
        batch_size=batch,
        steps=recipe.steps,
        epsilon=epsilon,
        noise_multiplier=noise,
        delta=DELTA,
        clip_norm=recipe.clip,
        ema=recipe.ema,
        scheduler=scheduler,
        augment=crops(recipe.shift, flips=recipe.flips) if recipe.shift or recipe.flips else None,
        views=recipe.views,
        compile=compiled,
    )
    for number, step in enumerate(training, 1):
        training.step(step)
        if after is not None and every and number % every == 0:
            after(number, model)
    found = {"claimed": training.privacy.upper, "delta": DELTA, "noise": float(training.plan.noise[0])}
    if recipe.ema is None:
        return {**found, "accuracy": accuracy(model, split.test)}
    with training.averaged() as averaged:
        return {**found, "accuracy": accuracy(averaged, split.test), "steps": training.steps_executed}


class Bench:
    """Runs of recipes on one table's data, with the last inputs kept so that they are made once."""

    def __init__(self, table: Table, *, test: bool) -> None:
        self.table, self.test = table, test
        self._kept: tuple[tuple[str, str], Split] | None = None

    def measure(self, name: str, recipe: Recipe, epsilon: float, seed: int, compiled: bool = False) -> dict[str, Any]:
        """What :func:`train` gives, and the recipe; small tables take three steps."""
        if self.table.tiny:
            recipe = dataclasses.replace(recipe, steps=3, batch=25)
        if self._kept is None or self._kept[0] != (name, recipe.features):
            self._kept = None
            loaded = load(self.table, name, test=self.test)
            self._kept = (name, recipe.features), inputs(recipe.features, loaded)
        found = train(recipe, self._kept[1], seed, epsilon=epsilon, compiled=compiled)
        return found | {"recipe": recipe.words()}


def accuracy(model: nn.Module, split: tuple[Tensor, Tensor]) -> float:
    """The share of rows that are recognised."""
    x, y = split
    was = model.training
    model.eval()
    with torch.no_grad():
        right = sum(int((model(a).argmax(1) == b).sum()) for a, b in zip(x.split(2000), y.split(2000), strict=True))
    model.train(was)
    return right / len(y)
