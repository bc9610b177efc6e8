"""What does a small private model make of features that are nobody's? Blocks of features, heads on them, one run.

The features of a picture (scattering maps, maps of a prior) are computed once, of each picture by itself, scaled to
norm 1, and kept on the device; several views of a picture (shifts, a mirror image) lie side by side and are averaged
before clipping. A linear head may see them centred: their mean is then released with noise of its own, whose price is
part of what the run claims.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments import priors
from experiments.pictures import DELTA, HELD_OUT, Split
from experiments.scattering import Scattering
from experiments.tuned import Tuning
from tacit import accounting as acc
from tacit.noise.keys import Key
from tacit.noise.tensor import add_normal_, tail_delta

#: Features have norm 1; a head sees them this much larger, so that rates are those of normalised scattering maps.
SCALE = 40.0
#: Pictures whose features are made at a time.
CHUNK = 2000


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a run is made: what it sees, the model on top, and DP-SGD's settings.

    ``blocks`` are of "scatter", "prior" (last maps of the encoder) and "middle" (the maps before). ``network`` is
    "head" (linear), "maps" (two convolutions of ``width`` maps) or "tuned" (those on a stage of the prior that is
    trained too, :mod:`~experiments.tuned`). ``centre`` is the noise multiplier with which the mean of a head's
    features is released, or None. Of a tuned network, ``share`` is the part of the squared clip norm that the stage of
    the prior has, and ``slower`` its learning rate next to that of the new layers.
    """

    blocks: tuple[str, ...] = ("scatter",)
    network: str = "head"
    views: int = 1
    batch: int = 8192
    steps: int = 300
    rate: float = 16.0
    clip: float = 0.1
    momentum: float = 0.9
    ema: float = 0.97
    centre: float | None = 20.0
    width: int = 64
    share: float = 0.5
    slower: float = 0.3

    def words(self) -> dict[str, Any]:
        """For a row."""
        return dataclasses.asdict(self)


# -- features --------------------------------------------------------------------------------------------------------


def views_of(images: Tensor, views: int) -> list[Tensor]:
    """The picture itself; its mirror image too (2, colour), or shifts by a pixel (5, grey).

    >>> len(views_of(torch.zeros(2, 1, 28, 28), 5))
    5
    """
    if views == 1:
        return [images]
    if views == 2:
        return [images, images.flip(-1)]
    if views != 5:
        raise ValueError(f"there are 1, 2 or 5 views of a picture, not {views}")
    padded = F.pad(images, [1] * 4, mode="replicate")
    high, wide = images.shape[-2:]
    return [padded[..., r : r + high, c : c + wide] for r, c in ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))]


class Features:
    """The features of one split, made when they are first asked for and kept.

    >>> encoder = priors.Encoder(1, width=4).eval()
    >>> split = Split((torch.rand(6, 1, 28, 28), torch.arange(6)), (torch.rand(3, 1, 28, 28), torch.arange(3)))
    >>> found = Features(split, encoder).split(Recipe(blocks=("scatter", "prior")), test=True)
    >>> found.train[0].shape, found.test[0].shape
    (torch.Size([6, 1, 4257]), torch.Size([3, 1, 4257]))
    """

    def __init__(self, split: Split, encoder: priors.Encoder | None = None) -> None:
        self.raw, self.encoder = split, encoder
        self._made: dict[int, tuple[Any, Tensor]] = {}
        self._scattering: Scattering | None = None

    def split(self, recipe: Recipe, *, test: bool) -> Split:
        """Inputs as ``(N, views, ...)`` tensors in half precision: vectors for a head, maps for convolutions.

        Without ``test`` the end of the training part is held out to judge by, and the test part is not looked at.
        """
        x, y = self._part(recipe, 0), self.raw.train[1]
        if test:
            return Split((x, y), (self._part(recipe, 1), self.raw.test[1]))
        cut = len(y) - min(HELD_OUT, len(y) // 4)
        return Split((x[:cut], y[:cut]), (x[cut:], y[cut:]))

    def forget(self) -> None:
        """Make room: what was made is made again when it is asked for."""
        self._made.clear()

    def _part(self, recipe: Recipe, part: int) -> Tensor:
        """The training part (0) or the test part (1) as the recipe's model sees it; the last one asked for is kept."""
        wanted = recipe.blocks, recipe.views, recipe.network
        if part not in self._made or self._made[part][0] != wanted:
            self._made.pop(part, None)
            self._made[part] = wanted, self._joined(recipe, part)
        return self._made[part][1]

    def _joined(self, recipe: Recipe, part: int) -> Tensor:
        """All blocks of all views, filled in piece by piece, because they are large."""
        images = (self.raw.train, self.raw.test)[part][0]
        across = 1 if recipe.network == "maps" else -1  # blocks lie side by side in this dimension of a view
        weight = len(recipe.blocks) ** -0.5 if recipe.network == "head" else 1.0
        whole: Tensor | None = None
        for number, view in enumerate(views_of(images, recipe.views)):
            for start in range(0, len(images), CHUNK):
                maps = self._make(recipe.blocks, view[start : start + CHUNK])
                seen = [_block(m, kind, recipe.network) for m, kind in zip(maps, recipe.blocks, strict=True)]
                made = torch.cat(seen, across)
                if whole is None:
                    shape = len(images), recipe.views, *made.shape[1:]
                    whole = torch.empty(shape, dtype=torch.float16, device=images.device)
                whole[start : start + CHUNK, number] = made * weight
        assert whole is not None
        return whole

    def _make(self, blocks: Sequence[str], images: Tensor) -> list[Tensor]:
        """The maps that the blocks are made of, for a few pictures."""
        found: dict[str, Tensor] = {}
        if "scatter" in blocks:
            if self._scattering is None:
                self._scattering = Scattering(images.shape[-1], device=str(images.device))
            found["scatter"] = torch.cat([self._scattering((some + 1) / 2) for some in images.split(500)])
        if "prior" in blocks or "middle" in blocks:
            if self.encoder is None:
                raise ValueError("the blocks prior and middle need an encoder")
            found["middle"], found["prior"] = priors.encode(
                self.encoder, images.expand(-1, self.encoder.colours, -1, -1)
            )
        unknown = [name for name in blocks if name not in found]
        if unknown:
            raise ValueError(f"there is no block {unknown[0]!r}: scatter, prior, middle")
        return [found[name] for name in blocks]


def _block(x: Tensor, kind: str, network: str) -> Tensor:
    """A block of features of a few pictures: vectors of norm 1 for a head, or normalised maps of one size."""
    if kind == "scatter":
        x = F.group_norm(x, 27)
    if network == "head":
        return F.normalize(x.flatten(1), dim=1)
    if kind == "prior":
        raise ValueError("convolutions take the blocks scatter and middle, whose maps have one size")
    return x if kind == "scatter" else F.group_norm(x, 8)


# -- models ----------------------------------------------------------------------------------------------------------


class Head(nn.Module):
    """A linear model of centred features ``(B, views, D)``."""

    centre: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 10)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.register_buffer("centre", torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear((x.float() - self.centre) * SCALE)
        return out


class Maps(nn.Module):
    """Two convolutions over normalised maps ``(B, views, C, H, W)``, each followed by normalisation."""

    def __init__(self, depth: int, side: int, width: int = 64) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(depth, width, 3, padding=1), nn.GroupNorm(8, width, affine=False), nn.Tanh(),
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width, affine=False), nn.Tanh(),
            nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(width * ((side + 1) // 2) ** 2, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.float().flatten(0, 1)).unflatten(0, x.shape[:2])
        return out


def mean_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of each example, the mean over its views."""
    x, y = batch
    scores = model(x)
    views = scores.shape[1]
    losses = F.cross_entropy(scores.flatten(0, 1), y.repeat_interleave(views), reduction="none")
    return losses.view(-1, views).mean(1)


def accuracy(model: nn.Module, part: tuple[Tensor, Tensor]) -> float:
    """The share of pictures recognised by the mean opinion on their views."""
    x, y = part
    right = 0
    with torch.no_grad():
        for some, labels in zip(x.split(1000), y.split(1000), strict=True):
            opinion = F.log_softmax(model(some), -1).mean(1)
            right += int((opinion.argmax(1) == labels).sum())
    return right / len(y)


# -- one run ---------------------------------------------------------------------------------------------------------


def private_mean(x: Tensor, noise: float, key: Key) -> Tensor:
    """The mean of the features ``(N, views, D)``, for release.

    Guarantee: the Gaussian mechanism with noise multiplier ``noise`` for adding or removing one record, whose
    features (the mean of its views) are clipped to norm 1; N is public.
    """
    total: Tensor | None = None
    with torch.no_grad():
        for some in x.split(2000):
            rows = some.float().mean(1)
            part = (rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)).double().sum(0)
            total = part if total is None else total + part
    assert total is not None
    # Rows are clipped in float32 and summed in float64: a thousandth more noise covers their rounding.
    return (add_normal_(total.cpu(), key, 0, "mean", 1.001 * noise) / len(x)).float().to(x.device)


class Runner:
    """Runs of recipes on the features of one data set."""

    def __init__(self, features: Features, folder: Path | None = None) -> None:
        self.features, self.folder = features, folder
        self._tuning: Tuning | None = None

    def run(self, recipe: Recipe, epsilon: float, seed: int, *, test: bool) -> dict[str, Any]:
        """One private run: accuracy on test (or held-out) pictures, what is claimed, and the settings."""
        from tacit.sgd import Training

        torch.manual_seed(seed)
        if recipe.network == "tuned":
            return self._tune(recipe, epsilon, seed, test)
        self._tuning = None  # its bank of views is large
        split = self.features.split(recipe, test=test)
        x, y = split.train
        model: Head | Maps = (
            Head(x.shape[-1]) if recipe.network == "head" else Maps(x.shape[2], x.shape[-1], recipe.width)
        )
        model = model.to(x.device)
        batch, size = min(recipe.batch, len(y) // 4), sum(p.numel() for p in model.parameters())
        spent: acc.Mechanism = acc.nothing()
        if isinstance(model, Head) and recipe.centre is not None:
            model.centre.copy_(private_mean(x, recipe.centre, Key.generate()))
            spent = acc.Gaussian(recipe.centre) + acc.ApproxDP(0.0, tail_delta(len(model.centre), epsilon))
        training = Training(
            model,
            torch.optim.SGD(model.parameters(), lr=recipe.rate, momentum=recipe.momentum),
            mean_loss,
            split.train,
            batch_size=batch,
            steps=recipe.steps,
            delta=DELTA,
            clip_norm=recipe.clip,
            ema=recipe.ema,
            noise_multiplier=_noise(spent, batch / len(y), recipe.steps, epsilon, size),
        )
        for step in training:
            training.step(step)
        claimed = acc.epsilon(training.plan.mechanism + spent, DELTA).upper
        if claimed > epsilon:
            raise RuntimeError(f"the run claims ε={claimed}, more than {epsilon}")
        last = accuracy(model, split.test)
        with training.averaged() as averaged:
            found = accuracy(averaged, split.test)
        return {
            "accuracy": found, "last": last, "claimed": claimed, "delta": DELTA,
            "noise": float(training.plan.noise[0]), "rows": len(y), "recipe": recipe.words(),
        }  # fmt: skip

    def _tune(self, recipe: Recipe, epsilon: float, seed: int, test: bool) -> dict[str, Any]:
        """One run of a tuned network, which goes on where it was cut if there is a folder."""
        features = self.features
        if features.encoder is None:
            raise ValueError("a tuned network needs an encoder")
        if self._tuning is None:
            self.features.forget()
            self._tuning = Tuning(features.raw, features.encoder, self.folder)
        (x, y), judge = features.raw.train, features.raw.test
        rows = len(y)
        if not test:
            rows -= min(HELD_OUT, len(y) // 4)
            judge = x[rows:], y[rows:]
        return self._tuning.run(recipe, epsilon, rows, judge, f"{epsilon:g}-{'test' if test else 'trial'}-{seed}")


@functools.lru_cache(maxsize=256)
def _noise(spent: acc.Mechanism, rate: float, steps: int, epsilon: float, size: int) -> float:
    """The noise multiplier of the steps, so that they and what was spent before cost ``epsilon`` together."""
    rest = spent + acc.ApproxDP(0.0, tail_delta(steps * size, epsilon))

    def whole(noise: float) -> acc.Mechanism:
        return acc.PoissonSampled(acc.Gaussian(noise), rate) * steps + rest

    # A hair below, for the generator's tail is priced once more with the plan.
    return acc.calibrate(whole, epsilon=epsilon * (1 - 1e-7), delta=DELTA)
