"""Architectures that per-example clipping is proven on: one table for the harness, the docs and the GPU run.

Every builder returns a fresh :class:`Case` with random weights and data. Nothing here knows about tacit: the models
are ordinary modules written the way people write them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Batch = dict[str, Tensor]


@dataclass
class Case:
    """A model, a loss per example, and a batch whose tensors have the examples first."""

    model: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]
    batch: Batch
    notes: dict[str, Any] = field(default_factory=dict)


ZOO: dict[str, tuple[str, Callable[[], Case]]] = {}


def architecture(name: str, what: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Enter a builder in the table."""

    def register(builder: Callable[[], Case]) -> Callable[[], Case]:
        assert name not in ZOO
        ZOO[name] = (what, builder)
        return builder

    return register


def table() -> str:
    """The zoo as a table for the guide."""
    rows = [f"| `{name}` | {what} |" for name, (what, _) in ZOO.items()]
    return "\n".join(["| name | architecture |", "|---|---|", *rows])


def classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def tagging(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy over the positions of each example."""
    scores = model(batch["x"])
    return F.cross_entropy(scores.transpose(1, 2), batch["y"], reduction="none").mean(1)


def images(n: int = 5, c: int = 3, size: int = 8, classes: int = 4) -> Batch:
    return {"x": torch.randn(n, c, size, size), "y": torch.randint(classes, (n,))}


def tokens(n: int = 4, length: int = 6, vocab: int = 11) -> Batch:
    return {"x": torch.randint(vocab, (n, length)), "y": torch.randint(vocab, (n, length))}


def vectors(n: int = 6, d: int = 7, classes: int = 3) -> Batch:
    return {"x": torch.randn(n, d), "y": torch.randint(classes, (n,))}


# -- plain networks ------------------------------------------------------------------------------------------------


@architecture("mlp", "multi-layer perceptron")
def mlp() -> Case:
    return Case(nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)), classify, vectors())


@architecture("mlp-square", "MLP whose batch size equals its widths")
def mlp_square() -> Case:
    return Case(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)), classify, vectors(6, 6, 6))


@architecture("cnn", "convolutional network for 8x8 images")
def cnn() -> Case:
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(6, 8, 2),
        nn.Tanh(),
        nn.Flatten(),
    )
    return Case(nn.Sequential(net, nn.Linear(8 * 4, 4)), classify, images())


class WideBlock(nn.Module):
    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, a), nn.GroupNorm(2, b)
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False) if a != b else None

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x), inplace=True)
        skip = x if self.skip is None else self.skip(h)
        return self.conv2(F.relu(self.norm2(self.conv1(h)), inplace=True)) + skip


@architecture("wrn-groupnorm", "wide residual network with GroupNorm and in-place activations")
def wrn() -> Case:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), WideBlock(4, 8, 1), WideBlock(8, 8, 1), WideBlock(8, 12, 2))
    head = nn.Sequential(nn.GroupNorm(2, 12), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4))
    return Case(nn.Sequential(net, head), classify, images())


@architecture("convs-grouped-dilated", "grouped, dilated, depthwise and strided convolutions")
def grouped() -> Case:
    net = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2, dilation=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8, padding="same"),
        nn.Conv2d(8, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False),
        nn.Flatten(),
    )
    return Case(nn.Sequential(net, nn.Linear(6 * 4 * 6, 4)), classify, images(c=4))


@architecture("convs-padding-modes", "convolutions with reflect, replicate and circular padding")
def padding_modes() -> Case:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
        nn.Tanh(),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 4, 4, padding="same", padding_mode="replicate"),
        nn.Flatten(),
        nn.Linear(256, 4),
    )
    return Case(net, classify, images())


@architecture("tcn-1d", "temporal convolutions (1-d, 'same', dilated)")
def tcn() -> Case:
    net = nn.Sequential(
        nn.Conv1d(3, 6, 3, padding="same", dilation=2), nn.ReLU(), nn.Conv1d(6, 5, 4, padding="same"), nn.Flatten()
    )
    batch = {"x": torch.randn(5, 3, 9), "y": torch.randint(4, (5,))}
    return Case(nn.Sequential(net, nn.Linear(45, 4)), classify, batch)


@architecture("conv-3d", "volumetric convolutions")
def conv3d() -> Case:
    net = nn.Sequential(nn.Conv3d(2, 3, 3, stride=(1, 2, 1), padding=1), nn.ReLU(), nn.Conv3d(3, 4, 2), nn.Flatten())
    batch = {"x": torch.randn(3, 2, 4, 5, 4), "y": torch.randint(4, (3,))}
    return Case(nn.Sequential(net, nn.Linear(4 * 3 * 2 * 3, 4)), classify, batch)


@architecture(
    "autoencoder-transposed", "autoencoder with transposed convolutions (stride, groups, output padding, dilation)"
)
def autoencoder() -> Case:
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
        nn.ConvTranspose2d(4, 2, 3, padding=2, dilation=2),
    )
    return Case(net, lambda m, b: (m(b["x"]) - b["x"]).square().flatten(1).mean(1), {"x": torch.randn(4, 2, 8, 8)})


class TransposedMix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = nn.ConvTranspose1d(3, 4, 3, stride=2), nn.ConvTranspose3d(1, 2, 2, bias=False)
        self.out = nn.Linear(2 * 5 * 6 * 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.three(self.one(x)[:, None, :, :5, None]).flatten(1))


@architecture("transposed-1d-3d", "transposed convolutions in one and three dimensions")
def transposed_mix() -> Case:
    return Case(TransposedMix(), classify, {"x": torch.randn(4, 3, 5), "y": torch.randint(4, (4,))})


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid = nn.Conv2d(2, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(4, 4, 2, 2), nn.Conv2d(6, 2, 1)
        self.norm = nn.InstanceNorm2d(4, affine=True)
        self.act = nn.PReLU(4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.norm(self.down(x)))
        return self.out(torch.cat([self.up(self.mid(h)), x], 1))


@architecture("unet", "U-Net with skip connections, InstanceNorm and PReLU")
def unet() -> Case:
    return Case(UNet(), lambda m, b: (m(b["x"]) - b["x"]).abs().flatten(1).mean(1), {"x": torch.randn(4, 2, 8, 8)})


@architecture("batchnorm-eval", "batch normalisation with frozen statistics (evaluation mode)")
def batchnorm_eval() -> Case:
    norm = nn.BatchNorm2d(4)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))
    norm.eval()
    return Case(net, classify, images(), {"mode": "as is"})


# -- attention -------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, d: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(h.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, 5, d))
        self.scale = nn.Parameter(torch.rand(d))
        self.blocks = nn.Sequential(Block(d, 2), Block(d, 2))
        self.head = nn.Linear(d, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(len(h), -1, -1), h], 1) + self.pos
        return self.head(self.blocks(h)[:, 0] * self.scale)


@architecture("vit-class-token", "vision transformer with class token, learned positions and layer scale")
def vit() -> Case:
    return Case(ViT(), classify, images())


class GPT(nn.Module):
    def __init__(self, vocab: int = 11, d: int = 8, tied: bool = True, checkpointed: bool = False) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(16, d)
        self.blocks = nn.ModuleList([Block(d, 2, True), Block(d, 2, True)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        self.checkpointed = checkpointed
        if tied:
            self.head.weight = self.tok.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.tok(x) + self.pos(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.checkpointed else block(h)
        return self.head(self.norm(h))


@architecture("gpt-tied", "decoder-only transformer with tied head")
def gpt() -> Case:
    return Case(GPT(), tagging, tokens())


@architecture("gpt-tied-large-vocabulary", "tied head where Gram matrices are cheaper than the table's gradient")
def gpt_large() -> Case:
    return Case(GPT(vocab=120), tagging, tokens(vocab=120))


@architecture("gpt-checkpointed", "activation checkpointing (non-reentrant) around every block")
def gpt_checkpointed() -> Case:
    return Case(GPT(checkpointed=True), tagging, tokens())


class T5Style(nn.Module):
    """Encoder-decoder with relative position bias, RMS norm, cross attention and one shared embedding."""

    def __init__(self, d: int = 8, vocab: int = 11) -> None:
        super().__init__()
        self.emb, self.bias = nn.Embedding(vocab, d), nn.Embedding(8, 2)
        self.enc, self.dec = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, 3 * d, bias=False)
        self.q, self.kv, self.norm = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.RMSNorm(d)
        self.d = d

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        def split(t: Tensor) -> Tensor:
            return t.view(*t.shape[:2], 2, -1).transpose(1, 2)

        scores = split(q) @ split(k).mT
        if bias is not None:
            scores = scores + bias
        return (scores.softmax(-1) @ split(v)).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        t = torch.arange(x.shape[1], device=x.device)
        bias = self.bias((t[:, None] - t[None]).clamp(-3, 3) + 3).permute(2, 0, 1)
        e = self.emb(x)
        h = e + self.attend(*self.enc(self.norm(e)).chunk(3, -1), bias)
        y = self.emb(x.flip(1))
        y = y + self.attend(*self.dec(self.norm(y)).chunk(3, -1), bias)
        y = y + self.attend(self.q(self.norm(y)), *self.kv(h).chunk(2, -1), None)
        return y @ self.emb.weight.T


@architecture("t5-style", "encoder-decoder with shared embedding and relative position bias, in the style of T5")
def t5_style() -> Case:
    return Case(T5Style(), tagging, tokens())


class EncoderLayers(nn.Module):
    def __init__(self, batch_first: bool, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=batch_first, **options)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.emb, self.out, self.first = nn.Embedding(11, 8, padding_idx=0), nn.Linear(8, 11), batch_first

    def forward(self, x: Tensor) -> Tensor:
        h = self.emb(x)
        pad = x == 0
        pad = pad & ~pad.all(1, keepdim=True)
        if self.first:
            return self.out(self.body(h, src_key_padding_mask=pad))
        return self.out(self.body(h.transpose(0, 1), src_key_padding_mask=pad)).transpose(0, 1)


@architecture("transformer-encoder-layer", "nn.TransformerEncoderLayer, batch first, pre-norm, padding mask")
def encoder_first() -> Case:
    return Case(EncoderLayers(True, norm_first=True), tagging, tokens())


@architecture(
    "transformer-encoder-layer-time-first", "nn.TransformerEncoderLayer with the batch in the second dimension"
)
def encoder_second() -> Case:
    return Case(EncoderLayers(False, activation="gelu"), tagging, tokens())


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(8, 2, 1, 1, 12, 0.0, batch_first=True)
        self.emb, self.out = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=self.out.weight.dtype)
        return self.out(self.body(self.emb(x), self.emb(x.flip(1)), tgt_mask=mask))


@architecture("nn-transformer", "nn.Transformer encoder-decoder")
def decoder() -> Case:
    return Case(Decoder(), tagging, tokens())


class CrossAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=5, vdim=6, add_bias_kv=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x[:, :, :8].transpose(0, 1), x[:, :, 8:13].transpose(0, 1), x[:, :, 13:].transpose(0, 1)
        return self.out(self.attention(q, k, v)[0].mean(0))


@architecture("multihead-attention-kv", "nn.MultiheadAttention with separate projections and learned key/value bias")
def cross_attention() -> Case:
    return Case(CrossAttention(), classify, {"x": torch.randn(4, 5, 19), "y": torch.randint(3, (4,))})


class Perceiver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        q = self.latents.unsqueeze(0).expand(len(x), -1, -1)
        return self.out(self.attention(q, x, x)[0].mean(1))


@architecture("perceiver-latents", "learned queries, projected and expanded over the batch, attending to the data")
def perceiver() -> Case:
    return Case(Perceiver(), classify, {"x": torch.randn(4, 5, 8), "y": torch.randint(4, (4,))})


class Windows(nn.Module):
    """Attention inside shifted windows: the batch is folded with the windows."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.patch, self.block, self.head = nn.Conv2d(3, d, 2, 2), Block(d, 2), nn.Linear(d, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).permute(0, 2, 3, 1)
        b, a, c, d = h.shape
        h = torch.roll(h, (1, 1), (1, 2)).view(b, a // 2, 2, c // 2, 2, d).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, d)
        return self.head(self.block(h).view(b, -1, d).mean(1))


@architecture("swin-windows", "shifted-window attention with windows folded into the batch")
def windows() -> Case:
    return Case(Windows(), classify, images())


class CosineWindows(nn.Module):
    """Swin v2's attention: windows of an image that is padded with zeros, queries and keys of length one.

    Keys have no bias. Those of padding are zero, and ``F.normalize`` divides their cotangents by 1e-12.
    """

    def __init__(self, d: int = 24, heads: int = 2) -> None:
        super().__init__()
        self.patch, self.norm, self.head = nn.Conv2d(3, d, 2, 2), nn.LayerNorm(d), nn.Linear(d, 4)
        self.qkv, self.out, self.heads = nn.Linear(d, 3 * d), nn.Linear(d, d), heads
        self.scale = nn.Parameter(torch.full((heads, 1, 1), 10.0).log())

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.patch(x).permute(0, 2, 3, 1))
        return self.head((h + self.attend(h)).mean((1, 2)))

    def attend(self, x: Tensor) -> Tensor:
        high, wide = x.shape[1:3]
        x = torch.roll(F.pad(x, (0, 0, 0, -wide % 2, 0, -high % 2)), (-1, -1), (1, 2))
        b, a, c, d = x.shape
        x = x.view(b, a // 2, 2, c // 2, 2, d).transpose(2, 3).reshape(-1, 4, d)
        with_bias = torch.ones(3, d, dtype=x.dtype, device=x.device)
        with_bias[1] = 0
        qkv = F.linear(x, self.qkv.weight, self.qkv.bias * with_bias.flatten())
        q, k, v = qkv.view(-1, 4, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.scale.clamp(max=4.6).exp()
        x = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 4, d))
        x = x.view(b, a // 2, c // 2, 2, 2, d).transpose(2, 3).reshape(b, a, c, d)
        return torch.roll(x, (1, 1), (1, 2))[:, :high, :wide]


@architecture("swin-v2-windows", "cosine attention in shifted windows of padded images, in the style of Swin v2")
def cosine_windows() -> Case:
    return Case(CosineWindows(), classify, {"x": torch.randn(4, 3, 6, 6), "y": torch.randint(4, (4,))})


class Mixer(nn.Module):
    def __init__(self, d: int = 6, t: int = 4) -> None:
        super().__init__()
        self.patch, self.norm1, self.norm2 = nn.Conv2d(3, d, 4, 4), nn.LayerNorm(d), nn.LayerNorm(d)
        self.tokens = nn.Sequential(nn.Linear(t, 5), nn.GELU(), nn.Linear(5, t))
        self.channels = nn.Sequential(nn.Linear(d, 7), nn.GELU(), nn.Linear(7, d))
        self.head = nn.Linear(d, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = h + self.tokens(self.norm1(h).transpose(1, 2)).transpose(1, 2)
        h = h + self.channels(self.norm2(h))
        return self.head(h.mean(1))


@architecture("mlp-mixer", "MLP-Mixer")
def mixer() -> Case:
    return Case(Mixer(), classify, images())


class EinsumHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Parameter(torch.randn(8, 2, 4)), nn.Parameter(torch.randn(2, 8, 4))
        self.o = nn.Parameter(torch.randn(2, 8, 3))
        self.temperature = nn.Parameter(torch.ones(2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        q, k = torch.einsum("btd,dhe->bhte", x, self.q), torch.einsum("...td,hde->h...te", x, self.k)
        scores = torch.einsum("bhte,hbse->bhts", q, k) / self.temperature.exp()
        return torch.einsum("bhts,bsd,hdo->bo", scores.softmax(-1), x, self.o)


@architecture("einsum-heads", "attention written with einsum and bare per-head matrices")
def einsum_heads() -> Case:
    return Case(EinsumHeads(), classify, {"x": torch.randn(4, 5, 8), "y": torch.randint(3, (4,))})


# -- recurrent ------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, width: int, vocab: int = 11) -> None:
        super().__init__()
        self.emb, self.layer, self.out = nn.Embedding(vocab, 5), layer, nn.Linear(width, vocab)

    def forward(self, x: Tensor) -> Tensor:
        if self.layer.batch_first:
            return self.out(self.layer(self.emb(x))[0])
        return self.out(self.layer(self.emb(x).transpose(0, 1))[0]).transpose(0, 1)


@architecture("lstm-tagger", "two-layer LSTM tagger")
def lstm() -> Case:
    return Case(Recurrent(nn.LSTM(5, 6, 2, batch_first=True), 6), tagging, tokens())


@architecture("lstm-projected", "bidirectional LSTM with projections, time first")
def lstm_projected() -> Case:
    return Case(Recurrent(nn.LSTM(5, 6, proj_size=4, bidirectional=True), 8), tagging, tokens())


@architecture("gru-bidirectional", "bidirectional two-layer GRU")
def gru() -> Case:
    return Case(Recurrent(nn.GRU(5, 4, 2, bidirectional=True, batch_first=True), 8), tagging, tokens())


@architecture("rnn-relu", "Elman network with ReLU, without biases")
def rnn() -> Case:
    return Case(Recurrent(nn.RNN(5, 6, nonlinearity="relu", bias=False), 6), tagging, tokens())


class PackedTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.lstm, self.out = nn.Embedding(11, 5), nn.LSTM(5, 4, bidirectional=True), nn.Linear(8, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.emb(x), lengths.cpu(), batch_first=True)
        out, (h, _) = self.lstm(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return self.out(padded.sum(1) + h.transpose(0, 1).flatten(1))


@architecture("lstm-packed", "LSTM over packed sequences of different lengths")
def packed() -> Case:
    batch = {"x": torch.randint(11, (4, 6)), "n": torch.tensor([6, 5, 3, 1]), "y": torch.randint(3, (4,))}
    loss = lambda m, b: F.cross_entropy(m(b["x"], b["n"]), b["y"], reduction="none")  # noqa: E731
    return Case(PackedTagger(), loss, batch)


class UnsortedTagger(nn.Module):
    """Packs sequences in the order they come in, through two layers of which one has two directions."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.first = nn.Embedding(11, 4), nn.LSTM(4, 3, bidirectional=True, batch_first=True)
        self.second, self.out = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.emb(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed, _ = self.first(packed)
        out, h = self.second(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return self.out(padded.sum(1) + h[0])


@architecture("rnn-packed-unsorted", "LSTM and GRU over packed sequences that are sorted by length on the way")
def unsorted() -> Case:
    batch = {"x": torch.randint(11, (4, 6)), "n": torch.tensor([3, 6, 1, 5]), "y": torch.randint(3, (4,))}
    loss = lambda m, b: F.cross_entropy(m(b["x"], b["n"]), b["y"], reduction="none")  # noqa: E731
    return Case(UnsortedTagger(), loss, batch)


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm, self.out = nn.GRUCell(3, 4), nn.LSTMCell(4, 5), nn.Linear(5, 3)
        self.start = nn.Parameter(torch.randn(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        h, state = self.start.expand(len(x), -1), None
        for t in range(x.shape[1]):
            h = self.gru(x[:, t], h)
            state = self.lstm(h, state)
        return self.out(state[0])


@architecture("recurrent-cells", "GRU and LSTM cells in a Python loop with a learned initial state")
def cells() -> Case:
    return Case(Cells(), classify, {"x": torch.randn(4, 4, 3), "y": torch.randint(3, (4,))})
