"""How far does a prior go when its upper part is trained privately too, and not only a model on its features?

The lower part of an encoder that has learned from random processes (:mod:`~experiments.priors`) stays fixed: its
maps of several random views of every picture are computed once and kept on the device. The stage above it, with its
normalisation folded into the convolutions so that every picture is alone, starts as the prior left it; two
convolutions on top start anew (for both see Tang et al. 2023, "Differentially private image classification by learning
priors from random processes"; for views averaged before clipping, De et al. 2022). Prior and new layers are clipped
apart, because their gradients differ in size.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments import priors
from experiments.pictures import DELTA, Split
from tacit import accounting as acc

if TYPE_CHECKING:
    from experiments.heads import Recipe

#: Random views of a picture that are kept, of which each step takes some.
KEPT = 8
#: A view is shifted by at most so many pixels (De et al. 2022), edges reflected.
SHIFT = 4
#: Pictures encoded or judged at a time, and examples clipped at a time on a GPU.
CHUNK = 1000
PHYSICAL = 1100
#: Steps between two checkpoints of a run that can be cut.
EVERY = 100
#: Whether steps are compiled: worth it for runs much longer than the minute that compiling takes.
COMPILED = False


# -- the model -------------------------------------------------------------------------------------------------------


class SideBySide(nn.Conv2d):
    """A 3x3 convolution of ``views`` pictures an example as one of a strip of them, with zeros between.

    Its outputs are those of the same convolution on each picture: what the strip has between them is left out. The
    gradient of an example is then that of one picture, which the kernels for convolutions take.

    >>> conv = SideBySide(2, 3, views=2)
    >>> x = torch.randn(4, 2, 6, 6)
    >>> torch.allclose(conv(x), F.conv2d(x, conv.weight, conv.bias, padding=1), atol=1e-5)
    True
    """

    def __init__(self, before: int, after: int, views: int = 1) -> None:
        super().__init__(before, after, 3, padding=1)
        self.views = views

    def forward(self, x: Tensor) -> Tensor:
        if self.views == 1:
            return super().forward(x)
        rows, depth, high, wide = x.shape
        examples = rows // self.views
        strip = F.pad(x, [1] * 4).unflatten(0, (examples, self.views)).permute(0, 2, 3, 1, 4)
        strip = strip.reshape(examples, depth, high + 2, self.views * (wide + 2))
        y: Tensor = F.conv2d(strip, self.weight, self.bias)
        y = F.pad(y, [0, 2]).unflatten(3, (self.views, wide + 2))[..., :wide]
        return y.permute(0, 3, 1, 2, 4).reshape(rows, -1, high, wide)


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d, views: int = 1) -> SideBySide:
    """One convolution that does what a convolution and its frozen normalisation do."""
    assert norm.running_var is not None  # it keeps its statistics
    assert norm.running_mean is not None
    factor = norm.weight / (norm.running_var + norm.eps).sqrt()
    found: SideBySide = SideBySide(conv.in_channels, conv.out_channels, views).to(conv.weight.device)
    with torch.no_grad():
        found.weight.copy_(conv.weight * factor[:, None, None, None])
        assert found.bias is not None
        found.bias.copy_(norm.bias - norm.running_mean * factor)
    return found


class Body(nn.Module):
    """The second stage of an encoder, which starts as the prior left it.

    >>> encoder = priors.Encoder(3, width=4).eval()
    >>> maps = below(encoder, torch.rand(2, 3, 32, 32))
    >>> torch.allclose(Body(encoder)(maps), encoder.stages[1](maps), atol=1e-5)
    True
    """

    def __init__(self, encoder: priors.Encoder, views: int = 1) -> None:
        super().__init__()
        stage: Any = encoder.stages[1]
        conv, norm, _, _, residual = stage
        inner = residual.inner
        self.first = fold(conv, norm, views)
        self.second, self.third = fold(inner[0], inner[1], views), fold(inner[3], inner[4], views)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.first(x)), 2)
        return h + F.relu(self.third(F.relu(self.second(h))))


class Tuned(nn.Module):
    """Scores of pictures from maps of the fixed part: the tuned stage, two new convolutions, a linear layer.

    ``views`` rows in turn belong to one example. The new layers are those of :class:`~experiments.heads.Maps`.
    """

    def __init__(self, encoder: priors.Encoder, side: int, width: int = 64, views: int = 1) -> None:
        super().__init__()
        depth = 4 * encoder.width
        self.depth = depth
        self.body = Body(encoder, views)
        self.head = nn.Sequential(
            SideBySide(depth, width, views), nn.GroupNorm(8, width, affine=False), nn.Tanh(),
            SideBySide(width, width, views), nn.GroupNorm(8, width, affine=False), nn.Tanh(),
            nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(width * ((side + 1) // 2) ** 2, 10),
        )  # fmt: skip
        self.requires_grad_(True)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            x = x.to(next(self.head.parameters()).dtype)
        out: Tensor = self.head(F.group_norm(self.body(x), math.gcd(8, self.depth)))
        return out

    def see(self, views: int) -> None:
        """How many rows in turn belong to one example from now on."""
        for module in self.modules():
            if isinstance(module, SideBySide):
                module.views = views


def below(encoder: priors.Encoder, images: Tensor) -> Tensor:
    """The maps of the fixed part (stem and first stage), each picture on its own."""
    with torch.no_grad():
        found: Tensor = encoder.stages[0](encoder.stem(images))
    return found


def narrow(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Half precision where the device is fast in it."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    half: contextlib.AbstractContextManager[Any] = torch.autocast("cuda", torch.bfloat16)
    return half


def loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of each row."""
    x, y = batch
    with narrow(x.device):
        scores = model(x)
    return F.cross_entropy(scores.float(), y, reduction="none")


# -- views -----------------------------------------------------------------------------------------------------------


def shifted(images: Tensor, rows: Tensor, columns: Tensor, mirrored: Tensor) -> Tensor:
    """Each picture moved by its number of rows and columns (edges reflected), some of them mirrored.

    >>> x = torch.arange(16.0).view(1, 1, 4, 4)
    >>> shifted(x, torch.tensor([1]), torch.tensor([0]), torch.tensor([True]))[0, 0, 0].tolist()
    [7.0, 6.0, 5.0, 4.0]
    """
    high, wide = images.shape[-2:]
    down = _reflected(torch.arange(high, device=images.device) + rows[:, None], high)
    across = _reflected(torch.arange(wide, device=images.device) + columns[:, None], wide)
    across = torch.where(mirrored[:, None], across.flip(1), across)
    picked = images.gather(2, down[:, None, :, None].expand(-1, images.shape[1], -1, wide))
    return picked.gather(3, across[:, None, None, :].expand(-1, images.shape[1], high, -1))


def _reflected(places: Tensor, size: int) -> Tensor:
    places = places.abs()
    return torch.where(places >= size, 2 * (size - 1) - places, places)


def bank(encoder: priors.Encoder, images: Tensor, views: int = KEPT) -> Tensor:
    """Maps of random views of every picture, ``(N, views, H, W, C)``, channels innermost; the same ones every time.

    Half precision on a GPU, where a picture of 32 x 32 takes 48 KiB a view for an encoder of width 48.
    """
    device = images.device
    generator = torch.Generator().manual_seed(0)
    whole: Tensor | None = None
    for start in range(0, len(images), CHUNK):
        some = images[start : start + CHUNK]
        for view in range(views):
            draws = torch.randint(-SHIFT, SHIFT + 1, (2, len(some)), generator=generator).to(device)
            mirrored = (torch.rand(len(some), generator=generator) < 0.5).to(device)
            made = _encoded(encoder, shifted(some, draws[0], draws[1], mirrored)).permute(0, 2, 3, 1)
            if whole is None:
                whole = torch.empty(len(images), views, *made.shape[1:], dtype=made.dtype, device=device)
            whole[start : start + len(some), view] = made
    assert whole is not None
    return whole


def _encoded(encoder: priors.Encoder, images: Tensor) -> Tensor:
    seen = images.expand(-1, encoder.colours, -1, -1).contiguous(memory_format=torch.channels_last)
    with narrow(images.device):
        return below(encoder, seen)


def from_bank(maps: Tensor) -> Callable[[Any], Any]:
    """An augmentation for ``(number, label)`` records: the maps of one of the views of the picture of this number."""

    def view(example: Any) -> Any:
        number, label = example
        which = torch.randint(maps.shape[1], (), device=maps.device)
        return maps[number, which].permute(2, 0, 1), label

    return view


def accuracy(model: Tuned, encoder: priors.Encoder, part: tuple[Tensor, Tensor]) -> float:
    """The share of pictures recognised by the mean opinion on ten views: five places, and their mirror images."""
    right = 0
    model.see(1)
    with torch.no_grad():
        for some, labels in zip(part[0].split(CHUNK), part[1].split(CHUNK), strict=True):
            opinion = torch.zeros(len(some), 10, device=some.device)
            for row, column in ((0, 0), (2, 0), (-2, 0), (0, 2), (0, -2)):
                for mirrored in (False, True):
                    places = [torch.full((len(some),), k, device=some.device) for k in (row, column, int(mirrored))]
                    maps = _encoded(encoder, shifted(some, places[0], places[1], places[2].bool()))
                    with narrow(some.device):
                        scores = model(maps)
                    opinion += F.log_softmax(scores.float(), 1)
            right += int((opinion.argmax(1) == labels).sum())
    return right / len(part[1])


# -- one run ---------------------------------------------------------------------------------------------------------


class Tuning:
    """Runs on one data set, whose bank of views is made once. With ``folder`` a run that was cut goes on."""

    def __init__(self, split: Split, encoder: priors.Encoder, folder: Path | None = None) -> None:
        self.split, self.encoder, self.folder = split, encoder, folder
        self._bank: Tensor | None = None

    def run(
        self, recipe: Recipe, epsilon: float, train: int, judge: tuple[Tensor, Tensor], name: str
    ) -> dict[str, Any]:
        """Train on the first ``train`` pictures and judge on others; ``name`` is that of the run's checkpoint.

        Guarantee: one DP-SGD run (Poisson sampling, add/remove one picture), at most ``epsilon`` at :data:`DELTA`. All
        views of a picture are averaged before its gradient is clipped; the prior has seen no one's picture.
        """
        from tacit.sgd import Training

        images, labels = self.split.train
        if self._bank is None:
            self._bank = bank(self.encoder, images)
        maps = self._bank[:train]
        device = images.device
        side = maps.shape[2] // 2
        model = Tuned(self.encoder, side, recipe.width, recipe.views)
        model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's types
        body = recipe.clip * recipe.share**0.5
        groups = [
            {"params": list(model.head.parameters()), "lr": recipe.rate},
            {"params": list(model.body.parameters()), "lr": recipe.rate * recipe.slower},
        ]
        optimizer = torch.optim.SGD(groups, lr=recipe.rate, momentum=recipe.momentum)
        kept: dict[str, Any] = {}
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = self.folder / f"{name}-{_digest(recipe)}.pt"
            for other in set(self.folder.glob("*.pt")) - {file}:
                other.unlink()  # of runs that have ended, whose rows are written
            kept = {"checkpoint": file, "checkpoint_every": EVERY, "key_file": file.with_suffix(".key")}
        training = Training(
            model,
            optimizer,
            loss,
            (torch.arange(train, device=device), labels[:train]),
            batch_size=min(recipe.batch, train // 4),
            steps=recipe.steps,
            epsilon=epsilon,
            delta=DELTA,
            clip_norm=recipe.clip,
            clipping={"head.*": math.sqrt(recipe.clip**2 - body**2), "body.*": body},
            ema=recipe.ema,
            augment=from_bank(maps),
            views=recipe.views,
            physical_batch=PHYSICAL if device.type == "cuda" else None,
            compile=COMPILED,
            **kept,
        )
        for step in training:
            training.step(step)
        claimed = acc.epsilon(training.plan.mechanism, DELTA).upper
        if claimed > epsilon:
            raise RuntimeError(f"the run claims ε={claimed}, more than {epsilon}")
        last = accuracy(model, self.encoder, judge)
        with training.averaged():
            found = accuracy(model, self.encoder, judge)
        return {
            "accuracy": found, "last": last, "claimed": claimed, "delta": DELTA,
            "noise": float(training.plan.noise[0]), "rows": train, "recipe": recipe.words(),
        }  # fmt: skip


def _digest(recipe: Recipe) -> str:
    return hashlib.sha256(repr(recipe).encode()).hexdigest()[:8]
