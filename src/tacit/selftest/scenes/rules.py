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


class Made(nn.Module):
    """Parameters of these shapes, and what is done with them and the input."""

    def __init__(self, how: Callable[[Any, Tensor], Tensor], *inner: nn.Module, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.how, self.inner = how, nn.ModuleList(inner)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def _recurrent(inner: nn.Module, width: int) -> nn.Module:
    """A recurrent layer and a head on its mean state."""
    return Made(lambda m, x: m.inner[1](m.inner[0](x)[0].mean(1)), inner, nn.Linear(width, CLASSES))


def _words(m: Any, tokens: Tensor) -> Tensor:
    """Word vectors, attention over them, a norm, and a scale and shift by hand."""
    inside = m.inner[1](m.inner[0](tokens) + m.places)
    mean = m.inner[2](inside.mean(1)) * m.scale + m.shift
    found: Tensor = m.inner[3](mean, mean.tanh())
    return found


def _by_hand(m: Any, x: Tensor) -> Tensor:
    """Matrix products, sums of Einstein's kind, convolution by function, a weight that is used three times."""
    x = torch.tanh(x @ m.one) + torch.einsum("bi,ij->bj", x, m.one)
    y = nn.functional.conv1d(x.unsqueeze(1), m.filter, padding=1).mean(1)
    both = torch.stack([x, y], 1)
    found: Tensor = torch.einsum("bki,kij->bj", both, m.three) + m.bias + (x @ m.one).mean(1, keepdim=True)
    return found


def _elementwise(m: Any, x: Tensor) -> Any:
    """Parameters that meet each number of an example: quotients, powers, choices, differences, masks."""
    x = torch.where(x > 0.2, m.a, x) / (1.5 + m.b.tanh()) - m.a + torch.maximum(x, m.b) + torch.lerp(x, m.a, 0.3)
    x = x.masked_fill(x > 1, 0.5).masked_fill(x < -1, m.c) + torch.sub(x, m.b, alpha=2.0) + torch.addcmul(x, x, m.a)
    return torch.addmm(m.bias, x, m.w, beta=2.0, alpha=0.5) + torch.tensordot(x, m.w, 1) + (m.bias - x[:, :CLASSES])


def _joined(m: Any, x: Tensor) -> Tensor:
    """Parameters beside the examples: stacked, concatenated, looked up, added in place, with statistics that stay."""
    both = torch.stack([x, m.a.expand_as(x)], 1) * m.gain
    long = torch.cat([both.flatten(1), m.b.expand(len(x), 4)], 1)
    long = nn.functional.batch_norm(long, x.new_zeros(16), x.new_ones(16), m.scale, m.shift, training=False)
    found: Tensor = long @ m.w
    found += torch.bmm(x.unsqueeze(1), m.each.expand(len(x), 6, CLASSES)).squeeze(1)
    return found


def _looked_up(m: Any, tokens: Tensor) -> Any:
    """One table that is read in four ways, and as a head."""
    bag = nn.functional.embedding_bag(tokens, m.table, mode="mean", padding_idx=3)
    found = m.table[tokens].mean(1) + m.table.index_select(0, tokens[:, 0]) + bag
    found = torch.tanh(found + nn.functional.embedding(tokens, m.table, padding_idx=2).sum(1))
    return (found @ m.table.T)[:, :CLASSES]


def _without_rules(m: Any, x: Tensor) -> Any:
    """Operations that no rule covers: distances, cosines, sorted and folded parameters, a matrix function."""
    near = torch.cdist(x, m.w) + nn.functional.cosine_similarity(x.unsqueeze(1), m.w.unsqueeze(0), dim=-1)
    spread = torch.matrix_exp(0.1 * m.square) @ m.w.T.cumsum(0)
    return near + x @ spread + torch.logsumexp(x.unsqueeze(1) + m.w, -1)


class OwnProduct(torch.autograd.Function):
    """A product whose gradient nobody else knows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, w = ctx.saved_tensors
        return grads[0] @ w.T, x.T @ grads[0]


def own_product(x: Tensor, w: Tensor) -> Any:
    """The product, by a function that has a gradient of its own."""
    return OwnProduct.apply(x, w)  # type: ignore[no-untyped-call]


def _hidden(m: Any, x: Tensor) -> Any:
    """Uses that cannot be seen in a pass over the batch: a gradient of one's own, a transform, complex weights."""
    many = torch.func.vmap(lambda row: torch.tanh(row @ m.v))(x)
    turned = (torch.view_as_complex(x.reshape(len(x), 3, 2).contiguous()) * torch.view_as_complex(m.z)).abs()
    return own_product(x, m.w) + many + turned @ m.u


def _experts(m: Any, x: Tensor) -> Tensor:
    """Every row of every example goes to the expert that its own numbers choose."""
    rows = x.reshape(-1, x.shape[-1])
    choice = (rows @ m.gate).argmax(1)
    out = torch.zeros(len(rows), CLASSES, dtype=x.dtype)
    for k, expert in enumerate(m.inner):
        mine = (choice == k).nonzero().flatten()
        out = out.index_add(0, mine, expert(rows[mine]))
    return out.reshape(len(x), -1, CLASSES).mean(1)


def _packed(m: Any, x: Tensor) -> Tensor:
    """Sequences of different lengths, and cells."""
    sizes = 1 + (x[:, 1:, 0] > 0).sum(1)
    packed = nn.utils.rnn.pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=False)
    out, _ = nn.utils.rnn.pad_packed_sequence(m.inner[0](packed)[0], batch_first=True)
    cell = m.inner[1](x[:, 0])
    found: Tensor = m.inner[2](out.sum(1)) + m.inner[3](cell)
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
        "LSTM": (_recurrent(nn.LSTM(6, 5, batch_first=True, bidirectional=True), 10), (series, y)),
        "GRU": (_recurrent(nn.GRU(6, 5, num_layers=2, batch_first=True), 5), (series, y)),
        "RNN": (_recurrent(nn.RNN(6, 5, batch_first=True), 5), (series, y)),
        "LSTM with a projection": (_recurrent(nn.LSTM(6, 5, proj_size=3, batch_first=True), 3), (series, y)),
        "sequences of several lengths": (
            Made(
                _packed,
                nn.GRU(6, 5, batch_first=True),
                nn.GRUCell(6, 4),
                nn.Linear(5, CLASSES),
                nn.Linear(4, CLASSES),
            ),
            (series, y),
        ),
        "attention": (
            Made(
                _words,
                nn.Embedding(models.VOCABULARY, 8),
                nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True),
                nn.LayerNorm(8),
                nn.Bilinear(8, 8, CLASSES),
                places=(4, 8),
                scale=(8,),
                shift=(1,),
            ),
            (tokens, y),
        ),
        "by hand": (
            Made(_by_hand, one=(6, 6), filter=(4, 1, 3), three=(2, 6, CLASSES), bias=(CLASSES,)),
            (rows, y),
        ),
        "elementwise": (Made(_elementwise, a=(6,), b=(6,), c=(), w=(6, CLASSES), bias=(CLASSES,)), (rows, y)),
        "joined": (
            Made(_joined, a=(6,), b=(4,), gain=(2, 1), scale=(16,), shift=(16,), w=(16, CLASSES), each=(1, 6, CLASSES)),
            (rows, y),
        ),
        "looked up": (Made(_looked_up, table=(models.VOCABULARY, 8)), (tokens, y)),
        "without rules": (Made(_without_rules, w=(CLASSES, 6), square=(6, 6)), (rows, y)),
        "hidden uses": (Made(_hidden, w=(6, CLASSES), v=(6, CLASSES), z=(3, 2), u=(3, CLASSES)), (rows, y)),
        "experts": (Made(_experts, nn.Linear(6, CLASSES), nn.Linear(6, CLASSES), gate=(6, 2)), (series, y)),
        "many channels": (
            nn.Sequential(nn.Conv2d(2, 24, 3), nn.Conv2d(24, 24, 4), flat(), nn.Linear(24, CLASSES)),
            _pictures(seed),
        ),
        "long rows": (
            nn.Sequential(
                nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), Made(lambda m, x: x.mean(1)), nn.Linear(40, CLASSES)
            ),
            (series, y),
        ),
        "normed weights": (
            nn.Sequential(
                torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
                nn.PReLU(6),
                nn.RMSNorm(6),
                nn.Linear(6, CLASSES),
            ),
            (rows, y),
        ),
        # Far more tokens than a vector has numbers, and few different ones: most of them come again.
        "long texts": (
            Made(lambda m, x: m.inner[1](m.inner[0](x).tanh().sum(1)), nn.Embedding(5, 2), nn.Linear(2, CLASSES)),
            (torch.randint(5, (10, 30), generator=generator), y),
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
        right = away < 1e-3 and moved <= 1 + look.ROUNDING and off < 1e-3
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
