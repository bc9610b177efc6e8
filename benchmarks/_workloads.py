"""On which models is a private step measured? The workloads of the speed tables, on synthetic data.

Models are written with plain torch, so that a machine with only torch, numpy and scipy can run them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Workload:
    """A model, how its records are made, and how it is trained: rows of a physical batch, type of its arithmetic."""

    build: Callable[[], nn.Module]
    records: Callable[[int], tuple[Tensor, Tensor]]
    batch: int
    autocast: torch.dtype | None = None
    tf32: bool = False
    dtype: torch.dtype = torch.float32
    notes: dict[str, Any] = field(default_factory=dict)


class Block(nn.Module):
    """Pre-norm attention and GELU."""

    def __init__(self, d: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(h)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Front(nn.Module):
    """A class token before the others, and positions: in one module, or Opacus would take the whole ViT by vmap."""

    def __init__(self, d: int, length: int) -> None:
        super().__init__()
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(0.02 * torch.randn(1, length + 1, d))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos


class ViT(nn.Module):
    """ViT-B/16 by default."""

    def __init__(self, d: int = 768, depth: int = 12, heads: int = 12, size: int = 224, patch: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, d, patch, patch)
        self.front = Front(d, (size // patch) ** 2)
        self.blocks = nn.Sequential(*(Block(d, heads, False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 1000)

    def forward(self, x: Tensor) -> Tensor:
        h = self.front(self.patch(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(self.blocks(h))[:, 0])


class GPT(nn.Module):
    """GPT-2 with 124M parameters by default, and a head of its own.

    Positions are looked up once for the whole batch; once for each example where ``spread``, as Opacus needs it.
    """

    spread = False

    def __init__(
        self, d: int = 768, depth: int = 12, heads: int = 12, vocab: int = 50257, length: int = 1024, lora: int = 0
    ) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.blocks, self.norm = nn.Sequential(*(Block(d, heads, True) for _ in range(depth))), nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        if lora:
            for p in self.parameters():
                p.requires_grad_(False)
            for block in self.blocks:
                block.qkv, block.proj = Adapted(block.qkv, lora), Adapted(block.proj, lora)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        if self.spread:
            positions = positions.repeat(len(x), 1)
        return self.head(self.norm(self.blocks(self.tok(x) + self.pos(positions))))


class Adapted(nn.Module):
    """A frozen linear layer with a trainable product of low rank beside it."""

    def __init__(self, inner: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = inner
        self.down = nn.Linear(inner.in_features, rank, bias=False)
        self.up = nn.Linear(rank, inner.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.up(self.down(x))


class LlamaBlock(nn.Module):
    """RMS norms, rotary positions, SwiGLU."""

    def __init__(self, d: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(d, hidden, bias=False), nn.Linear(d, hidden, bias=False)
        self.down, self.heads = nn.Linear(hidden, d, bias=False), heads

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, d = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (torch.cat([-y.chunk(2, -1)[1], y.chunk(2, -1)[0]], -1) * sin + y * cos for y in (q, k))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """A Llama-style model of 1.0 billion parameters by default."""

    def __init__(
        self,
        d: int = 2048,
        depth: int = 17,
        heads: int = 16,
        hidden: int = 5632,
        vocab: int = 32000,
        length: int = 1024,
    ) -> None:
        super().__init__()
        self.tok, self.norm, self.head = nn.Embedding(vocab, d), nn.RMSNorm(d), nn.Linear(d, vocab, bias=False)
        self.blocks = nn.ModuleList(LlamaBlock(d, heads, hidden) for _ in range(depth))
        half = d // heads // 2
        angles = torch.arange(length)[:, None] * torch.exp(-math.log(10000.0) * torch.arange(half) / half)
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tok(x)
        cos, sin = (t[: x.shape[1]].to(h.dtype) for t in (self.cos, self.sin))
        for block in self.blocks:
            h = block(h, cos, sin)
        return self.head(self.norm(h))


class Residual(nn.Module):
    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, a), nn.GroupNorm(16, b)
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False) if a != b else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        return self.conv2(F.relu(self.norm2(self.conv1(h)))) + self.skip(h if isinstance(self.skip, nn.Conv2d) else x)


class Tagger(nn.Module):
    def __init__(self, d: int = 128, hidden: int = 256) -> None:
        super().__init__()
        self.emb, self.out = nn.Embedding(500, d), nn.Linear(hidden, 20)
        self.lstm = nn.LSTM(d, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.emb(x))[0])


class Encoder(nn.Module):
    """torch's own encoder, as people take it from the shelf."""

    def __init__(self, d: int = 768, depth: int = 6, heads: int = 12, vocab: int = 8192, length: int = 128) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Parameter(0.02 * torch.randn(length, d))
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(d, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.tok(x) + self.pos).mean(1))


class Double(nn.Sequential):
    """Two convolutions, each normalised by groups."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(
            *(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU()),
            *(nn.Conv2d(b, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU()),
        )


class UNet(nn.Module):
    """Down, and up again by transposed convolutions; one class for each pixel."""

    def __init__(self, width: int = 32, classes: int = 4) -> None:
        super().__init__()
        w = width
        self.down1, self.down2, self.middle = Double(3, w), Double(w, 2 * w), Double(2 * w, 4 * w)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.join2, self.join1, self.head = Double(4 * w, 2 * w), Double(2 * w, w), nn.Conv2d(w, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        h = self.join2(torch.cat([self.up2(self.middle(F.max_pool2d(b, 2))), b], 1))
        return self.head(self.join1(torch.cat([self.up1(h), a], 1))).flatten(2).transpose(1, 2)


class Depthwise(nn.Module):
    """A block of ConvNeXt: a 7 by 7 convolution of every channel alone, and two products."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(d, d, 7, padding=3, groups=d), nn.LayerNorm(d)
        self.up, self.down, self.scale = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.Parameter(0.1 * torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(h)))).permute(0, 3, 1, 2)


class Mixer(nn.Module):
    """A block of an MLP-Mixer: tokens are mixed, then channels."""

    def __init__(self, tokens: int, d: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Categories(nn.Module):
    """Eight columns of categories, each with its embedding, and an MLP."""

    def __init__(self, columns: int = 8, values: int = 1000, d: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(values, d) for _ in range(columns))
        self.mlp = nn.Sequential(
            *(nn.Linear(columns * d, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 2)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], 1))


class Reader(nn.Module):
    """A recurrent classifier of text."""

    def __init__(self, d: int = 128, hidden: int = 256, kind: type[nn.Module] = nn.GRU) -> None:
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(5000, d), kind(d, hidden, batch_first=True), nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(self.emb(x))[0][:, -1])


def convnext(d: int = 96, depth: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, d, 4, 4), *(Depthwise(d) for _ in range(depth)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(d), nn.Linear(d, 10),
    )  # fmt: skip


class Patches(nn.Module):
    """Tokens of an image, and their mean at the end."""

    def __init__(self, d: int = 256, depth: int = 6, size: int = 32, patch: int = 4) -> None:
        super().__init__()
        n = (size // patch) ** 2
        self.patch, self.blocks = nn.Conv2d(3, d, patch, patch), nn.Sequential(*(Mixer(n, d) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.patch(x).flatten(2).transpose(1, 2))).mean(1))


def mlp(width: int = 256, depth: int = 2) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 2))


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU()),
        *(nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def wrn(widen: int = 4, blocks: int = 2) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    width = 16
    for stage in range(3):
        new = 16 * widen * 2**stage
        for k in range(blocks):
            layers.append(Residual(width, new, 2 if stage and k == 0 else 1))
            width = new
    layers += [nn.GroupNorm(16, width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
    return nn.Sequential(*layers)


def vectors(features: int, classes: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda n: (torch.randn(n, features), torch.randint(classes, (n,)))


def images(channels: int, size: int, classes: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda n: (torch.randn(n, channels, size, size), torch.randint(classes, (n,)))


def tokens(length: int, vocab: int, tags: int | None = None) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda n: (torch.randint(vocab, (n, length)), torch.randint(tags or vocab, (n, length)))


def words(length: int, vocab: int, classes: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda n: (torch.randint(vocab, (n, length)), torch.randint(classes, (n,)))


def pixels(channels: int, size: int, classes: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda n: (torch.randn(n, channels, size, size), torch.randint(classes, (n, size * size)))


def per_example(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss per record: the mean over its tokens, where it has several."""
    if outputs.dim() == 3:
        flat = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        return flat.view(targets.shape).mean(1)
    return F.cross_entropy(outputs, targets, reduction="none")


def gpt(length: int, batch: int, **options: Any) -> Workload:
    """GPT-2 at a sequence length."""
    longest = max(length, 1024)
    return Workload(
        lambda: GPT(length=longest, **options), tokens(length, options.get("vocab", 50257)), batch, torch.bfloat16
    )


BF16 = torch.bfloat16
WORKLOADS: dict[str, Workload] = {
    "mlp": Workload(mlp, vectors(64, 2), 16384),
    "cnn": Workload(cnn, images(1, 28, 10), 4096),
    "wrn-tf32": Workload(wrn, images(3, 32, 10), 512, tf32=True),
    "wrn-bf16": Workload(wrn, images(3, 32, 10), 512, BF16),
    "vit": Workload(ViT, images(3, 224, 1000), 64, BF16),
    "gpt2": gpt(256, 32),
    "gpt2-long": gpt(2048, 4),
    "lstm": Workload(Tagger, tokens(64, 500, 20), 512),
    "lora": gpt(256, 32, lora=8),
    "llama-1b": Workload(Llama, tokens(1024, 32000), 4, dtype=BF16),
    # Models that nothing here was tuned for.
    "encoder": Workload(Encoder, words(128, 8192, 20), 128, BF16),
    "unet": Workload(UNet, pixels(3, 32, 4), 256, BF16),
    "convnext": Workload(convnext, images(3, 32, 10), 1024, BF16),
    "mixer": Workload(Patches, images(3, 32, 10), 1024, BF16),
    "categories": Workload(Categories, words(8, 1000, 2), 8192),
    "gru": Workload(Reader, words(64, 5000, 4), 512),
}
TITLES = {
    "mlp": "MLP 64-256-256-2",
    "cnn": "CNN for MNIST",
    "wrn-tf32": "WRN-16-4 GroupNorm, tf32",
    "wrn-bf16": "WRN-16-4 GroupNorm, bf16",
    "vit": "ViT-B/16 at 224, bf16",
    "gpt2": "GPT-2 124M, T=256, bf16",
    "gpt2-long": "GPT-2 124M, T=2048, bf16",
    "lstm": "LSTM 256, T=64",
    "lora": "GPT-2 with LoRA rank 8, T=256, bf16",
    "llama-1b": "Llama-style 1.0B, T=1024, bf16 weights",
    "encoder": "torch's TransformerEncoder 6x768, T=128, bf16",
    "unet": "U-Net with transposed convolutions, bf16",
    "convnext": "ConvNeXt blocks, depth-wise 7x7, bf16",
    "mixer": "MLP-Mixer 6x256, bf16",
    "categories": "8 embeddings and an MLP",
    "gru": "GRU 256, T=64",
}

GROWTH: dict[str, dict[int, Workload]] = {
    "sequence length (GPT, d=768, 4 layers, 8,192 tokens a batch)": {
        t: gpt(t, 8192 // t, depth=4, vocab=8192) for t in (128, 512, 2048, 8192)
    },
    "width (GPT, 2 layers, T=256, batch 16)": {
        d: gpt(256, 16, d=d, heads=d // 64, depth=2, vocab=8192) for d in (256, 512, 1024, 2048)
    },
    "depth (GPT, d=512, T=256, batch 32)": {k: gpt(256, 32, d=512, heads=8, depth=k, vocab=8192) for k in (1, 2, 4, 8)},
    "batch (GPT, d=512, 2 layers, T=256)": {
        b: gpt(256, b, d=512, heads=8, depth=2, vocab=8192) for b in (8, 32, 128, 512)
    },
    "batch (MLP 64-256-256-2)": {b: Workload(mlp, vectors(64, 2), b) for b in (1024, 8192, 65536, 524288)},
}


def small(workload: Workload) -> Workload:
    """The same with a small batch, to try the benchmark out."""
    return Workload(
        workload.build, workload.records, max(2, int(math.sqrt(workload.batch) / 8)), workload.autocast, workload.tf32
    )
