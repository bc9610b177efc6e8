"""More of the zoo: parameters used in unusual ways (tied, twice, re-parametrised, expanded, bare, frozen)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tests.sgd.zoo import Batch, Block, Case, architecture, classify, images, tagging, tokens, vectors
from torch import Tensor, nn
from torch.nn.utils import parametrizations


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.block, self.out = nn.Embedding(11, 8), Block(8, 2), nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.block(self.block(self.emb(x))))


@architecture("block-called-twice", "the same transformer block applied twice")
def called_twice() -> Case:
    return Case(CalledTwice(), tagging, tokens())


class FunctionalEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.mid = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.mid(self.emb(x) + self.emb.weight[x.flip(1)]))
        return F.linear(h, self.emb.weight) + h @ self.emb.weight.transpose(0, 1) * 0.5


@architecture("embedding-used-functionally", "emb.weight looked up, indexed, and used as a matrix and its transpose")
def functional_embedding() -> Case:
    return Case(FunctionalEmbedding(), tagging, tokens())


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(7, 3)), nn.Parameter(torch.randn(3))
        self.gain, self.power = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor([1.3]))

    def forward(self, x: Tensor) -> Tensor:
        h = (x * self.gain) @ self.w - self.b
        return torch.where(h > 0, h, self.gain * h) / (1 + self.power**2)


@architecture("bare-parameters", "nn.Parameter used directly: matrix, shift, scalar gain, divisor")
def bare() -> Case:
    return Case(Bare(), classify, vectors())


class OutOfOrder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.middle, self.first = nn.Linear(6, 3), nn.Linear(5, 6), nn.Linear(7, 5)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


@architecture("registration-order", "modules registered in another order than they run in, one never used")
def out_of_order() -> Case:
    return Case(OutOfOrder(), classify, vectors())


@architecture("weight-norm", "weight normalisation on linear and convolutional layers")
def weight_norm() -> Case:
    net = nn.Sequential(
        parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
        nn.Tanh(),
        nn.Flatten(),
        parametrizations.weight_norm(nn.Linear(4 * 36, 4)),
    )
    return Case(net, classify, images())


class StandardisedConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


@architecture("weight-standardisation", "convolutions with standardised weights and GroupNorm")
def weight_standardisation() -> Case:
    net = nn.Sequential(
        StandardisedConv(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), StandardisedConv(4, 4, 3, 2), nn.Flatten()
    )
    return Case(nn.Sequential(net, nn.Linear(36, 4)), classify, images())


@architecture("spectral-norm", "spectral normalisation (a derived weight with buffers)")
def spectral() -> Case:
    net = nn.Sequential(parametrizations.spectral_norm(nn.Linear(7, 6)), nn.Tanh(), nn.Linear(6, 3))
    return Case(net, classify, vectors())


@architecture("orthogonal", "orthogonal parametrisation (matrix exponential)")
def orthogonal() -> Case:
    net = nn.Sequential(
        parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="matrix_exp"), nn.Tanh(), nn.Linear(6, 3)
    )
    return Case(net, classify, vectors(6, 6))


class SoftPrompt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(3, 8))
        self.emb, self.block, self.out = nn.Embedding(11, 8), Block(8, 2), nn.Linear(8, 11)
        self.emb.requires_grad_(False)
        self.block.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        prompt = self.prompt.unsqueeze(0).expand(len(x), -1, -1)
        return self.out(self.block(torch.cat([prompt, self.emb(x)], 1))[:, 3:])


@architecture("soft-prompt", "a soft prompt expanded over the batch before a frozen transformer")
def soft_prompt() -> Case:
    return Case(SoftPrompt(), tagging, tokens())


class ProjectedPrompt(SoftPrompt):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        prompt = self.project(self.prompt.unsqueeze(0).repeat(len(x), 1, 1))
        return self.out(self.block(torch.cat([prompt, self.emb(x)], 1))[:, 3:])


@architecture("projected-prompt", "a soft prompt repeated over the batch and passed through an MLP first")
def projected_prompt() -> Case:
    return Case(ProjectedPrompt(), tagging, tokens())


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = (
            nn.Parameter(torch.randn(rank, base.in_features)),
            nn.Parameter(torch.zeros(base.out_features, rank)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


@architecture("lora-at-zero", "low-rank adapters at their initial value, where half of the gradients are zero")
def lora() -> Case:
    return Case(nn.Sequential(LoRA(nn.Linear(7, 8)), nn.Tanh(), LoRA(nn.Linear(8, 3))), classify, vectors())


@architecture("frozen-backbone", "frozen convolutional features with a trained head")
def frozen() -> Case:
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()).requires_grad_(False)
    return Case(nn.Sequential(body, nn.Linear(4 * 36, 4)), classify, images())


class DLRM(nn.Module):
    """Embedding bags for categorical features, a bottom MLP for dense ones, and their inner products."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            [nn.EmbeddingBag(9, 4, mode="sum"), nn.EmbeddingBag(7, 4, mode="mean", padding_idx=0)]
        )
        self.flat = nn.EmbeddingBag(8, 4, mode="sum")
        self.peak = nn.EmbeddingBag(8, 4, mode="max")
        self.bottom, self.top = nn.Sequential(nn.Linear(5, 4), nn.ReLU()), nn.Linear(4 + 10, 2)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        parts = [bag(sparse % n) for bag, n in zip(self.bags, (9, 7), strict=True)]
        ids = sparse % 8
        starts = torch.arange(0, ids.numel(), ids.shape[1], device=ids.device)
        parts += [self.flat(ids.flatten(), starts), self.peak(ids), self.bottom(dense)]
        stacked = torch.stack(parts, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        i, j = torch.tril_indices(5, 5, -1)
        return self.top(torch.cat([parts[-1], products[:, i, j]], 1))


@architecture("dlrm-embedding-bag", "DLRM-style recommender with embedding bags (sum, mean, max; with offsets)")
def dlrm() -> Case:
    batch = {"dense": torch.randn(5, 5), "sparse": torch.randint(0, 60, (5, 4)), "y": torch.randint(2, (5,))}

    def loss(model: nn.Module, b: Batch) -> Tensor:
        return F.cross_entropy(model(b["dense"], b["sparse"]), b["y"], reduction="none")

    return Case(DLRM(), loss, batch)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower, self.match = nn.Sequential(nn.Linear(7, 6), nn.Tanh()), nn.Bilinear(6, 6, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.match(self.tower(a), self.tower(b))


@architecture("siamese-bilinear", "two towers with shared weights and a bilinear match")
def siamese() -> Case:
    batch = {"a": torch.randn(5, 7), "b": torch.randn(5, 7), "y": torch.randint(3, (5,))}
    return Case(Pair(), lambda m, b: F.cross_entropy(m(b["a"], b["b"]), b["y"], reduction="none"), batch)


class Prototypes(nn.Module):
    """Distances to learned prototypes and a learned mixing by operations that have no rule of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.prototypes, self.order = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(6))
        self.body = nn.Linear(7, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        similar = F.cosine_similarity(h.unsqueeze(1), self.prototypes.unsqueeze(0), dim=-1)
        return similar - torch.cdist(h, self.prototypes) + torch.cumsum(h * self.order, 1)[:, :4]


@architecture("prototypes-generic", "distances to prototypes (cdist, cosine), which fall back to the generic rule")
def prototypes() -> Case:
    return Case(Prototypes(), classify, vectors(classes=4))


class Experts(nn.Module):
    """A dense mixture of experts with stacked weights (bmm and baddbmm over experts)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(7, 3)
        self.w, self.b = nn.Parameter(torch.randn(3, 7, 5)), nn.Parameter(torch.randn(3, 1, 5))
        self.v = nn.Parameter(torch.randn(3, 5, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(torch.baddbmm(self.b, x.expand(3, -1, -1), self.w))
        return torch.einsum("be,ebo->bo", self.gate(x).softmax(-1), torch.bmm(h, self.v))


@architecture("mixture-of-experts", "dense mixture of experts with stacked weights (batch in the second dimension)")
def experts() -> Case:
    return Case(Experts(), classify, vectors(classes=4))


class Regularised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@architecture("regularised-loss", "a penalty on the weights inside every example's loss")
def regularised() -> Case:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        penalty = sum(p.square().sum() for p in model.parameters())
        return classify(model, batch) + 0.1 * penalty

    return Case(Regularised(), loss, vectors())


class SwishFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class CustomActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.gain = nn.Linear(7, 6), nn.Linear(6, 3), nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(SwishFunction.apply(self.a(x)) * self.gain)


@architecture("custom-autograd-activation", "a custom autograd.Function as activation")
def custom_activation() -> Case:
    return Case(CustomActivation(), classify, vectors())


class InPlace(nn.Module):
    """Parameters written into buffers, sliced, and combined in place."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.cls, self.scale = (
            nn.Parameter(torch.randn(12, 5)),
            nn.Parameter(torch.randn(5)),
            nn.Parameter(torch.rand(5)),
        )
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), 3, 5, dtype=x.dtype, device=x.device)
        h[:, 0] = self.cls
        h[:, 1] = x @ self.w[:7]
        h[:, 2] = x[:, :5] @ self.w[7:]
        h = h + 0.0
        h.mul_(self.scale)
        h += self.cls
        return self.out(torch.tanh(h).sum(1))


@architecture("in-place", "parameters assigned into a tensor, sliced, and used by in-place operations")
def in_place() -> Case:
    return Case(InPlace(), classify, vectors())


class Overlapping(nn.Module):
    """Slices of one parameter that share elements."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.bias = nn.Parameter(torch.randn(6, 7)), nn.Parameter(torch.randn(9))

    def forward(self, x: Tensor) -> Tensor:
        a = F.linear(x, self.w[:4], self.bias[:4])
        b = F.linear(x, self.w[2:], self.bias[5:])
        return torch.tanh(a) + b.sin() * self.bias[2:6]


@architecture("overlapping-slices", "overlapping slices of one matrix and one vector")
def overlapping() -> Case:
    return Case(Overlapping(), classify, vectors(classes=4))


class ConvNeXtBlock(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.dw, self.norm = nn.Conv2d(d, d, 5, padding=2, groups=d), nn.LayerNorm(d)
        self.up, self.down, self.gamma = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), nn.Parameter(0.1 * torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.dw(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(F.gelu(self.up(h)))).permute(0, 3, 1, 2)


@architecture("convnext-block", "ConvNeXt blocks: depthwise convolutions, channel-last LayerNorm, layer scale")
def convnext_block() -> Case:
    net = nn.Sequential(nn.Conv2d(3, 6, 2, 2), ConvNeXtBlock(6), ConvNeXtBlock(6), nn.Flatten(), nn.Linear(96, 4))
    return Case(net, classify, images())


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 6), nn.Linear(6, 3), nn.LayerNorm([5, 6])

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = F.leaky_relu(self.norm(adjacency @ self.first(x)))
        return self.second(adjacency @ h).mean(1)


@architecture("graph-network", "graph convolution over dense adjacency matrices")
def graph() -> Case:
    batch = {"x": torch.randn(4, 5, 4), "a": torch.rand(4, 5, 5), "y": torch.randint(3, (4,))}
    return Case(GraphNet(), lambda m, b: F.cross_entropy(m(b["x"], b["a"]), b["y"], reduction="none"), batch)


class Hyper(nn.Module):
    """Per-example weights made by a network (the batch sits in the weight, too)."""

    def __init__(self) -> None:
        super().__init__()
        self.film, self.body, self.out = nn.Linear(7, 12), nn.Linear(7, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self.film(x).chunk(2, -1)
        return self.out(torch.tanh(self.body(x) * scale + shift))


@architecture("film-hypernetwork", "feature-wise modulation computed per example")
def hyper() -> Case:
    return Case(Hyper(), classify, vectors())


class SpectralConv(nn.Module):
    """A Fourier neural operator's layer: complex weights, stored as pairs of reals, act on the lowest frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.weight, self.out = nn.Linear(2, 3), nn.Parameter(torch.randn(3, 4, 3, 2)), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(self.lift(x).mT)[..., :3]
        mixed = torch.einsum("bim,iom->bom", modes, torch.view_as_complex(self.weight))
        return self.out(torch.fft.irfft(mixed, n=x.shape[1]).mT).squeeze(-1)


@architecture("fourier-operator", "Fourier neural operator with complex spectral weights")
def fourier() -> Case:
    return Case(SpectralConv(), lambda m, b: m(b["x"]).square().mean(1), {"x": torch.randn(4, 8, 2)})


class Siren(nn.Module):
    """Fourier features at positions common to all examples, with per-example codes."""

    def __init__(self) -> None:
        super().__init__()
        self.freq, self.code, self.mix, self.out = nn.Linear(2, 6), nn.Linear(7, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        grid = torch.linspace(-1, 1, 3)
        self.register_buffer("grid", torch.stack(torch.meshgrid(grid, grid, indexing="ij"), -1).view(9, 2))

    def forward(self, x: Tensor) -> Tensor:
        base = torch.sin(3 * self.freq(self.grid))  # depends on parameters and on no data at all
        h = torch.sin(self.mix(base.unsqueeze(0) * self.code(x).unsqueeze(1)))
        return self.out(h).squeeze(-1)


@architecture("siren-shared-grid", "an implicit field whose grid features are computed once for the whole batch")
def siren() -> Case:
    return Case(Siren(), lambda m, b: (m(b["x"]) - 0.5).square().mean(1), {"x": torch.randn(5, 7)})
