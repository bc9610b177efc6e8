"""What does a small private model make of features that are nobody's? Blocks of features, heads on them, one run.

The features of a picture (scattering maps, maps of a prior) are computed once, of each picture by itself, scaled to
norm 1, and kept on the device; several views of a picture (shifts, a mirror image) lie side by side and are averaged
before clipping. A linear head may see them centred: their mean is then released with noise of its own, whose price is
part of what the run claims.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import accounting as acc
from tacit.experiments import priors
from tacit.experiments.pictures import DELTA, HELD_OUT, Split
from tacit.experiments.scattering import Scattering
from tacit.experiments.tuned import SCALE, Last, Whole
from tacit.noise.keys import Key
from tacit.noise.tensor import add_normal_, tail_delta

#: Pictures whose features are made at a time.
CHUNK = 2000


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a run is made: what it sees, the model on top, and DP-SGD's settings.

    ``blocks`` are of "scatter", "prior" (last maps of the encoder), "middle" (the maps before), and these with "-root"
    (square roots of the maps). ``network`` is "head" (linear), "maps" (two convolutions), "last" (a head and the last
    stage of the encoder, which learns on at ``body`` times the rate) or "whole" (a head and all of the encoder, on
    ``views`` random crops of the pictures themselves). ``centre`` is the noise multiplier with which the mean of the
    features is released, or None.
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
    body: float = 0.006

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
        self._maps: dict[tuple[str, int, int], Tensor] = {}
        self._made: dict[int, tuple[Any, Tensor]] = {}

    def split(self, recipe: Recipe, *, test: bool) -> Split:
        """Inputs as ``(N, views, ...)`` tensors in half precision: vectors for a head, maps for convolutions.

        Without ``test`` the end of the training part is held out to judge by, and the test part is not looked at.
        """
        whole = recipe.network == "whole"
        x, y = self.raw.train[0] if whole else self._part(recipe, 0), self.raw.train[1]
        if test:
            return Split((x, y), (self.raw.test[0] if whole else self._part(recipe, 1), self.raw.test[1]))
        cut = len(y) - min(HELD_OUT, len(y) // 4)
        return Split((x[:cut], y[:cut]), (x[cut:], y[cut:]))

    def _part(self, recipe: Recipe, part: int) -> Tensor:
        """The training part (0) or the test part (1) as the recipe's model sees it; the last one asked for is kept."""
        wanted = recipe.blocks, recipe.views, recipe.network
        if part not in self._made or self._made[part][0] != wanted:
            self._made.pop(part, None)
            self._made[part] = wanted, self._joined(recipe, part)
        return self._made[part][1]

    def _joined(self, recipe: Recipe, part: int) -> Tensor:
        """All blocks of all views, filled in piece by piece: views are large, and not kept twice."""
        images = (self.raw.train, self.raw.test)[part][0]
        across = 1 if recipe.network == "maps" else -1  # blocks lie side by side in this dimension of a view
        weight = len(recipe.blocks) ** -0.5 if recipe.network == "head" else 1.0
        whole: Tensor | None = None
        for number, view in enumerate(views_of(images, recipe.views)):
            kept = self._maps if number == 0 else {}
            for start in range(0, len(images), CHUNK):
                some = view[start : start + CHUNK]
                made = torch.cat(
                    [self._block(name, recipe.network, some, kept, (part, start)) for name in recipe.blocks], across
                )
                if whole is None:
                    shape = len(images), recipe.views, *made.shape[1:]
                    whole = torch.empty(shape, dtype=torch.float16, device=images.device)
                whole[start : start + CHUNK, number] = made * weight
        assert whole is not None
        return whole

    def _block(
        self, name: str, network: str, images: Tensor, kept: dict[tuple[str, int, int], Tensor], place: tuple[int, int]
    ) -> Tensor:
        """One block of a few pictures; maps are looked up in ``kept``, and put there."""
        kind, _, change = name.partition("-")
        if (kind, *place) not in kept:
            names = ("scatter",) if kind == "scatter" else ("middle", "prior")
            kept |= {(n, *place): m for n, m in zip(names, self._make(kind, images), strict=True)}
        return _block(kept[kind, *place], kind, change, network)

    def _make(self, kind: str, images: Tensor) -> list[Tensor]:
        device = str(images.device)
        if kind == "scatter":
            transform = Scattering(images.shape[-1], device=device)
            size = 1000 if device.startswith("cuda") else 200
            return [torch.cat([transform((some + 1) / 2).half() for some in images.split(size)])]
        if kind not in ("prior", "middle"):
            raise ValueError(f"there is no block {kind!r}: scatter, prior, middle")
        if self.encoder is None:
            raise ValueError(f"the block {kind!r} needs an encoder")
        return [maps.half() for maps in priors.encode(self.encoder, images)]


def _block(maps: Tensor, kind: str, change: str, network: str) -> Tensor:
    """A block of features of a few pictures, each of norm 1, or as normalised maps of the grid of the scattering."""
    x = maps.float()
    if change == "root":
        x = x.clamp(min=0).sqrt()
    elif change:
        raise ValueError(f"a block's maps can be changed by 'root', not {change!r}")
    if kind == "scatter":
        x = F.group_norm(x, 27)
    if network == "last":
        if kind == "prior":
            raise ValueError("the last stage takes the blocks scatter and middle, in this order")
        return x.flatten(1).half() if kind == "middle" else F.normalize(x.flatten(1), dim=1).half()
    if network == "head":
        if kind != "scatter":
            side = x.shape[-1]
            x = F.adaptive_avg_pool2d(x, {3: 3, 4: 2}.get(side, 4))
        return F.normalize(x.flatten(1), dim=1).half()
    if kind == "prior":
        raise ValueError("convolutions take the blocks scatter and middle, whose maps have one size")
    return (x if kind == "scatter" else F.group_norm(x, 8)).half()


# -- models ----------------------------------------------------------------------------------------------------------


class Head(nn.Module):  # type: ignore[misc]
    """A linear model of centred features ``(B, views, D)``."""

    centre: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 10)
        self.register_buffer("centre", torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear((x.float() - self.centre) * SCALE)
        return out


class Maps(nn.Module):  # type: ignore[misc]
    """Two convolutions over normalised maps ``(B, views, C, H, W)``, each followed by normalisation."""

    def __init__(self, depth: int, side: int, width: int = 64) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(depth, width, 3, padding=1), nn.GroupNorm(8, width, affine=False), nn.Tanh(),
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width, affine=False), nn.Tanh(),
            nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(width * ((side + 1) // 2) ** 2, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.float().flatten(0, 1))
        return out.unflatten(0, x.shape[:2])


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


def private_mean(x: Tensor, noise: float, key: Key, features: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """The mean of the inputs ``(N, views, D)``, or of what ``features`` makes of each of them, for release.

    Guarantee: the Gaussian mechanism with noise multiplier ``noise`` for adding or removing one record, whose
    features (the mean of its views) are clipped to norm 1; N is public.
    """
    total: Tensor | None = None
    with torch.no_grad():
        for some in x.split(2000):
            rows = (some.float() if features is None else features(some)).mean(1)
            part = (rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)).double().sum(0)
            total = part if total is None else total + part
    assert total is not None
    # Rows are clipped in float32 and summed in float64: a thousandth more noise covers their rounding.
    return (add_normal_(total.cpu(), key, 0, "mean", 1.001 * noise) / len(x)).float().to(x.device)


class Runner:
    """Runs of recipes on the features of one split. Models are kept, so that a compiled step serves every run."""

    def __init__(self, features: Features, *, compiled: bool = False) -> None:
        self.features, self.compiled = features, compiled
        self._models: dict[Any, nn.Module] = {}

    def model(self, recipe: Recipe, shape: Sequence[int], device: torch.device) -> nn.Module:
        """A model for inputs of this shape (views first), with fresh weights."""
        wanted = recipe.network, tuple(shape)
        if wanted not in self._models:
            self._models[wanted] = self._new(recipe.network, shape).to(device)
        model = self._models[wanted]
        if isinstance(model, Last | Whole):
            model.reset()
            return model
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.reset_parameters()
        if isinstance(model, Head):
            nn.init.zeros_(model.linear.weight)
            nn.init.zeros_(model.linear.bias)
        return model

    def _new(self, network: str, shape: Sequence[int]) -> nn.Module:
        if network == "head":
            return Head(shape[-1])
        if network == "maps":
            return Maps(shape[1], shape[-1])
        if network not in ("last", "whole") or self.features.encoder is None:
            raise ValueError(f"there is no network {network!r} here: head, maps, and with an encoder last, whole")
        if network == "whole":
            return Whole(self.features.encoder, shape[-1])
        return Last(self.features.encoder, shape[-1], 8 if self.features.raw.train[0].shape[-1] == 32 else 7)

    def run(self, recipe: Recipe, epsilon: float, seed: int, *, test: bool) -> dict[str, Any]:
        """One private run: accuracy on test (or held-out) pictures, what is claimed, and the settings."""
        from tacit.sgd import Training
        from tacit.sgd.augment import crops

        torch.manual_seed(seed)
        split = self.features.split(recipe, test=test)
        x, y = split.train
        model = self.model(recipe, x.shape[1:], x.device)
        batch = min(recipe.batch, len(y) // 4)
        spent: acc.Mechanism = acc.nothing()
        given: dict[str, Any] = {}
        size = sum(p.numel() for p in model.parameters())
        if isinstance(model, Head | Last | Whole):
            model.centre.zero_()
            if recipe.centre is not None:
                seen = None if isinstance(model, Head) else model.features
                model.centre.copy_(private_mean(x, recipe.centre, Key.generate(), seen))
                spent = acc.Gaussian(recipe.centre) + acc.ApproxDP(0.0, tail_delta(len(model.centre), epsilon))
        groups: list[dict[str, Any]] = [{"params": list(model.parameters())}]
        if isinstance(model, Last | Whole):
            # Each part of the gradient has a bound of its own, so that neither drowns the other.
            given["clipping"] = {"head.*": recipe.clip, "body.*": recipe.clip}
            groups = [{"params": list(model.head.parameters())}]
            groups.append({"params": list(model.body.parameters()), "lr": recipe.rate * recipe.body})
        if isinstance(model, Whole):
            given |= {"augment": crops(4, flips=True), "views": recipe.views, "physical_batch": min(2048, batch)}
        training = Training(
            model,
            torch.optim.SGD(groups, lr=recipe.rate, momentum=recipe.momentum),
            mean_loss,
            split.train,
            batch_size=batch,
            steps=recipe.steps,
            delta=DELTA,
            clip_norm=recipe.clip,
            ema=recipe.ema,
            noise_multiplier=_noise(spent, batch / len(y), recipe.steps, epsilon, size),
            # Compiling takes as long as some runs: only where several of one kind follow.
            compile=self.compiled and test and recipe.network == "maps",
            **given,
        )
        half = isinstance(model, Whole) and x.device.type == "cuda"
        for step in training:
            with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
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


@functools.lru_cache(maxsize=256)
def _noise(spent: acc.Mechanism, rate: float, steps: int, epsilon: float, size: int) -> float:
    """The noise multiplier of the steps, so that they and what was spent before cost ``epsilon`` together."""
    rest = spent + acc.ApproxDP(0.0, tail_delta(steps * size, epsilon))

    def whole(noise: float) -> acc.Mechanism:
        return acc.PoissonSampled(acc.Gaussian(noise), rate) * steps + rest

    # A hair below, for the generator's tail is priced once more with the plan.
    return acc.calibrate(whole, epsilon=epsilon * (1 - 1e-7), delta=DELTA)
