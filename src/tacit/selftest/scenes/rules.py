"""Is every kind of layer clipped as it should be? Models of many operations against plain backward passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.audit import implementation as look
from tacit.audit.findings import Finding, holds
from tacit.audit.pipeline import Pipeline
from tacit.selftest import models
from tacit.selftest.scene import Scene, refused
from tacit.sgd import clip as clip_module
from tacit.sgd import example_gradients
from tacit.sgd.errors import ClippingError

CLASSES = models.CLASSES


class Recurrent(nn.Module):
    """A recurrent layer and a head on its mean state."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.inner(x)[0].mean(1))
        return found


class Words(nn.Module):
    """Word vectors, attention over them, a norm, and a scale and shift by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(models.VOCABULARY, 8)
        self.places = nn.Parameter(torch.zeros(4, 8))
        self.attend = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.norm, self.scale, self.shift = nn.LayerNorm(8), nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(1))
        self.head = nn.Bilinear(8, 8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        inside = self.attend(self.words(tokens) + self.places)
        mean = self.norm(inside.mean(1)) * self.scale + self.shift
        found: Tensor = self.head(mean, mean.tanh())
        return found


class ByHand(nn.Module):
    """Matrix products, sums of Einstein's kind, convolution by function, a weight that is used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.zeros(6, 6))
        self.filter = nn.Parameter(torch.zeros(4, 1, 3))
        self.three = nn.Parameter(torch.zeros(2, 6, CLASSES))
        self.bias = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x @ self.one) + torch.einsum("bi,ij->bj", x, self.one)
        y = nn.functional.conv1d(x.unsqueeze(1), self.filter, padding=1).mean(1)
        both = torch.stack([x, y], 1)
        found: Tensor = torch.einsum("bki,kij->bj", both, self.three) + self.bias + (x @ self.one).mean(1, keepdim=True)
        return found


def _pictures(seed: int, channels: int = 2, size: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(10, channels, size, size, generator=generator), torch.randint(
        CLASSES, (10,), generator=generator
    )


def _scenes(seed: int) -> dict[str, tuple[nn.Module, tuple[Tensor, Tensor]]]:
    generator = torch.Generator().manual_seed(seed + 1)
    y = torch.randint(CLASSES, (10,), generator=generator)
    rows, series = torch.randn(10, 6, generator=generator), torch.randn(10, 4, 6, generator=generator)
    tokens = torch.randint(models.VOCABULARY, (10, 4), generator=generator)
    volume = torch.randn(10, 1, 4, 4, 4, generator=generator)
    flat = nn.Flatten
    return {
        "convolutions": (
            nn.Sequential(
                nn.Conv2d(2, 4, 3, padding=1, stride=2),
                nn.GroupNorm(2, 4),
                nn.ReLU(),
                nn.Conv2d(4, 4, 2, groups=2, dilation=1),
                flat(),
                nn.Linear(16, CLASSES),
            ),
            _pictures(seed),
        ),
        "transposed convolution": (
            nn.Sequential(
                nn.ConvTranspose2d(2, 3, 3, stride=2), nn.AdaptiveAvgPool2d(2), flat(), nn.Linear(12, CLASSES)
            ),
            _pictures(seed),
        ),
        "depthwise": (
            nn.Sequential(
                nn.Conv2d(2, 2, 3, groups=2, padding="same"),
                nn.InstanceNorm2d(2, affine=True),
                flat(),
                nn.Linear(72, CLASSES),
            ),
            _pictures(seed),
        ),
        "in one dimension": (nn.Sequential(nn.Conv1d(4, 3, 2), nn.GELU(), flat(), nn.Linear(15, CLASSES)), (series, y)),
        "in three dimensions": (nn.Sequential(nn.Conv3d(1, 2, 2), flat(), nn.Linear(54, CLASSES)), (volume, y)),
        "LSTM": (Recurrent(nn.LSTM(6, 5, batch_first=True, bidirectional=True), 10), (series, y)),
        "GRU": (Recurrent(nn.GRU(6, 5, num_layers=2, batch_first=True), 5), (series, y)),
        "RNN": (Recurrent(nn.RNN(6, 5, batch_first=True), 5), (series, y)),
        "attention": (Words(), (tokens, y)),
        "by hand": (ByHand(), (rows, y)),
        "normed weights": (
            nn.Sequential(
                torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
                nn.PReLU(6),
                nn.RMSNorm(6),
                nn.Linear(6, CLASSES),
            ),
            (rows, y),
        ),
        "bag of words": (
            nn.Sequential(nn.EmbeddingBag(models.VOCABULARY, 7, mode="sum"), nn.Linear(7, CLASSES)),
            (tokens, y),
        ),
    }


def _drawn(model: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed + 77)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=generator))
    return model


def layers_are_clipped(seed: int) -> list[Finding]:
    """The clipped sum of every model is that of single gradients, and one record moves it by the clip norm."""
    found = []
    for name, (model, data) in _scenes(seed).items():
        scene = Pipeline(_drawn(model, seed), models.CRITERION, data, batch_size=5, noise_multiplier=1.0, delta=1e-5)
        scene.settings["clip_norm"] = clip = 0.3
        raw = scene.gradients()
        norms = np.linalg.norm(raw, axis=1)
        clip = scene.settings["clip_norm"] = float(np.median(norms))
        tree = scene.records.take(np.arange(10, dtype=np.int64))
        whole = clip_module.clipped_grad(scene.model, scene.loss, tree, clip)
        total = torch.cat([t.double().flatten() for t in whole.sums.values()]).numpy()
        away = float(np.linalg.norm(total - scene.clipped(raw, clip).sum(0))) / clip
        fewer = clip_module.clipped_grad(
            scene.model, scene.loss, scene.records.take(np.arange(9, dtype=np.int64)), clip
        )
        moved = (
            float(
                torch.cat(
                    [(a - b).double().flatten() for a, b in zip(whole.sums.values(), fewer.sums.values(), strict=True)]
                ).norm()
            )
            / clip
        )
        off = float(np.abs(whole.norms.double().numpy() - norms).max() / norms.max())
        right = away < 0.02 and moved <= 1 + look.ROUNDING and off < 1e-2
        found.append(
            holds(f"rules: {name}", right, f"sum {away:.2g} off, one record moves {moved:.4f}, norms {off:.2g} off")
        )
    return found


def single_gradients_are_single(seed: int) -> list[Finding]:
    """``example_gradients`` gives what plain backward passes give, and ways to compute agree."""
    scene = models.network(seed)
    tree = scene.records.take(np.arange(8, dtype=np.int64))
    raw = scene.gradients()[:8]
    single = example_gradients(scene.model, scene.loss, tree)
    flat = torch.cat([g.double().flatten(1) for g in dict(single).values()], 1).numpy()
    away = float(np.abs(flat - raw).max())
    ways = {}
    for method in ("operations", "examples"):
        made = clip_module.clipped_grad(scene.model, scene.loss, tree, 0.2, method=method)
        ways[method] = torch.cat([t.double().flatten() for t in made.sums.values()]).numpy()
    apart = float(np.abs(ways["operations"] - ways["examples"]).max()) / 0.2

    def mixing(model: Any, batch: Any) -> Tensor:
        out = model(batch[0])
        losses: Tensor = nn.functional.cross_entropy(out - out.mean(0), batch[1], reduction="none")
        return losses

    def whole(model: Any, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    cases: dict[str, tuple[Callable[[], object], Any]] = {
        "examples that reach each other": (lambda: clip_module.clipped_grad(scene.model, mixing, tree), ClippingError),
        "a mean over the batch": (
            lambda: clip_module.clipped_grad(scene.model, whole, tree),
            (ClippingError, ValueError),
        ),
        "batch normalisation": (
            lambda: clip_module.clipped_grad(
                nn.Sequential(nn.Linear(models.FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)).train(),
                models.CRITERION,
                tree,
            ),
            ClippingError,
        ),
        "a clip norm of 0": (lambda: clip_module.clipped_grad(scene.model, scene.loss, tree, 0.0), ValueError),
    }
    return [
        holds("single gradients", away < 1e-4, f"{away:.2g} from plain backward passes"),
        holds("ways of clipping", apart < 1e-3, f"{apart:.2g} clip norms apart"),
        refused("rules: refusals", cases),
    ]


SCENES = (
    Scene("rules: layers", "sgd", layers_are_clipped),
    Scene("rules: single gradients", "sgd", single_gradients_are_single),
)
