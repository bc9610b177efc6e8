"""One small model per operation that has a rule, in its variants: what the harness runs for "every rule"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tests.sgd.zoo import Case
from torch import Tensor, nn

N = 4
Shapes = dict[str, tuple[int, ...]]
OPERATIONS: dict[str, tuple[str, Callable[[], Case]]] = {}


class Operation(nn.Module):
    """Parameters of given shapes and a function of them and the batch."""

    def __init__(self, shapes: Shapes, function: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.rand(shape) + 0.5))
        self.function = function

    def forward(self, batch: Any) -> Tensor:
        return self.function(batch, self)


def loss(model: nn.Module, batch: Any) -> Tensor:
    """A loss whose gradient differs from element to element."""
    out = model(batch).flatten(1)
    weights = torch.linspace(0.3, 1.7, out.shape[1], device=out.device, dtype=out.dtype)
    return (out * weights).sin().sum(1)


def enter(label: str, name: str, shapes: Shapes, function: Callable[[Any, Any], Tensor], **data: Any) -> None:
    """Add a case; ``data`` maps names of batch tensors to shapes (uniform floats) or ``("ids", high, shape)``."""

    def draw(spec: Any) -> Tensor:
        if spec[0] == "ids":
            return torch.randint(spec[1], (N, *spec[2]))
        return torch.rand(N, *spec) + 0.5

    def builder() -> Case:
        return Case(Operation(shapes, function), loss, {key: draw(spec) for key, spec in data.items()})

    OPERATIONS[label] = (name, builder)


X = {"x": (3, 5)}
FLAT = {"x": (5,)}
IMAGE = {"x": (4, 6, 6)}

# -- contractions
enter("linear", "linear", {"w": (6, 5), "b": (6,)}, lambda d, p: F.linear(d["x"], p.w, p.b), **X)
enter("linear, vector weight", "linear", {"w": (5,)}, lambda d, p: F.linear(d["x"], p.w), **X)
enter("linear, long", "linear", {"w": (3, 2)}, lambda d, p: F.linear(d["x"], p.w), x=(30, 2))
enter(
    "linear, batch folded",
    "linear",
    {"w": (6, 5)},
    lambda d, p: F.linear(d["x"].reshape(-1, 5), p.w).view(N_(d), -1),
    **X,
)
enter(
    "linear, time first and folded",
    "linear",
    {"w": (6, 5)},
    lambda d, p: F.linear(d["x"].transpose(0, 1).reshape(-1, 5), p.w).view(3, N_(d), 6).transpose(0, 1),
    **X,
)
enter("matmul", "matmul", {"w": (5, 6)}, lambda d, p: d["x"] @ p.w, **X)
enter("matmul, parameter first", "matmul", {"w": (6, 3)}, lambda d, p: p.w @ d["x"], **X)
enter("matmul, vector", "matmul", {"w": (5,)}, lambda d, p: d["x"] @ p.w, **X)
enter("matmul, vector first", "matmul", {"w": (3,)}, lambda d, p: p.w @ d["x"], **X)
enter("matmul, heads", "matmul", {"w": (2, 5, 4)}, lambda d, p: d["x"].unsqueeze(1) @ p.w, **X)
enter("matmul, broadcast parameter", "matmul", {"w": (1, 5, 4)}, lambda d, p: d["x"] @ p.w, **X)
enter("matmul, expanded parameter", "matmul", {"w": (5, 4)}, lambda d, p: d["x"] @ p.w.expand(N_(d), 5, 4), **X)
enter("matmul, scaled parameter", "matmul", {"w": (5, 4)}, lambda d, p: d["x"] @ (p.w * 2), **X)
enter("mm", "mm", {"w": (5, 4)}, lambda d, p: torch.mm(d["x"], p.w), **FLAT)
enter(
    "mm, transposed view", "mm", {"w": (4, 5)}, lambda d, p: torch.mm(d["x"], p.w.t()) + F.linear(d["x"], p.w), **FLAT
)
enter("bmm", "bmm", {"w": (3, 5, 4)}, lambda d, p: torch.bmm(d["x"].transpose(0, 1), p.w).transpose(0, 1), **X)
enter("mv", "mv", {"w": (5,)}, lambda d, p: torch.mv(d["x"], p.w).unsqueeze(1), **FLAT)
enter("addmm", "addmm", {"w": (5, 4), "b": (4,)}, lambda d, p: torch.addmm(p.b, d["x"], p.w, beta=0.5, alpha=2), **FLAT)
enter(
    "addmv",
    "addmv",
    {"w": (5,), "b": ()},
    lambda d, p: torch.addmv(p.b.expand(N_(d)), d["x"], p.w).unsqueeze(1),
    **FLAT,
)
enter(
    "baddbmm",
    "baddbmm",
    {"w": (3, 5, 4), "b": (3, 1, 4)},
    lambda d, p: torch.baddbmm(p.b, d["x"].transpose(0, 1), p.w).transpose(0, 1),
    **X,
)
enter("einsum", "einsum", {"w": (5, 2, 4)}, lambda d, p: torch.einsum("btd,dhe->bhte", d["x"], p.w), **X)
enter("einsum, implicit output", "einsum", {"w": (5, 4)}, lambda d, p: torch.einsum("aij,jk", d["x"], p.w), **X)
enter("einsum, ellipsis", "einsum", {"w": (4, 5)}, lambda d, p: torch.einsum("oi,...i->...o", p.w, d["x"]), **X)
enter("einsum, shared letter", "einsum", {"w": (3, 5)}, lambda d, p: torch.einsum("td,btd->bd", p.w, d["x"]), **X)
enter("einsum, summed letter", "einsum", {"w": (3,)}, lambda d, p: torch.einsum("btd,t->b", d["x"], p.w)[:, None], **X)
enter(
    "einsum, batch last",
    "einsum",
    {"w": (5, 4)},
    lambda d, p: torch.einsum("btd,de->teb", d["x"], p.w).permute(2, 0, 1),
    **X,
)
enter(
    "einsum, expanded parameter",
    "einsum",
    {"w": (5, 4)},
    lambda d, p: torch.einsum("btd,bde->bte", d["x"], p.w.expand(N_(d), 5, 4)),
    **X,
)
enter("tensordot", "tensordot", {"w": (5, 2, 4)}, lambda d, p: torch.tensordot(d["x"], p.w, 1), **X)
enter(
    "tensordot, pairs of dimensions",
    "tensordot",
    {"w": (5, 4, 3)},
    lambda d, p: torch.tensordot(d["x"], p.w, dims=([1, -1], [2, 0])),
    **X,
)
enter(
    "tensordot, parameter first",
    "tensordot",
    {"w": (6, 5)},
    lambda d, p: torch.tensordot(p.w, d["x"], dims=([1], [2])).transpose(0, 1),
    **X,
)
enter("tensordot, nothing summed", "tensordot", {"w": (2, 4)}, lambda d, p: torch.tensordot(d["x"], p.w, 0), **X)
enter(
    "bilinear",
    "bilinear",
    {"w": (3, 5, 2), "b": (3,)},
    lambda d, p: F.bilinear(d["x"], d["y"], p.w, p.b),
    x=(5,),
    y=(2,),
)


def N_(data: Any) -> int:
    return len(data["x"])


# -- convolutions: stride, padding, dilation, groups, with the batch folded with others
for rank in (1, 2, 3):
    size = (4, *(6, 5, 4)[:rank])
    conv, transpose = getattr(F, f"conv{rank}d"), getattr(F, f"conv_transpose{rank}d")
    kernel = (3, 2, 2)[:rank]
    enter(
        f"conv{rank}d",
        f"conv{rank}d",
        {"w": (6, 2, *kernel), "b": (6,)},
        lambda d, p, f=conv: f(d["x"], p.w, p.b, stride=2, padding=1, groups=2),
        x=size,
    )
    enter(
        f"conv{rank}d, same, dilated",
        f"conv{rank}d",
        {"w": (4, 1, *kernel)},
        lambda d, p, f=conv: f(d["x"], p.w, None, 1, "same", 2, 4),
        x=size,
    )
    enter(
        f"conv_transpose{rank}d",
        f"conv_transpose{rank}d",
        {"w": (4, 3, *kernel), "b": (6,)},
        lambda d, p, f=transpose: f(d["x"], p.w, p.b, stride=2, padding=1, output_padding=1, groups=2),
        x=size,
    )
enter(
    "conv2d, folded",
    "conv2d",
    {"w": (3, 4, 2, 2), "b": (3,)},
    lambda d, p: F.conv2d(d["x"].flatten(0, 1), p.w, p.b).unflatten(0, (-1, 2)),
    x=(2, 4, 5, 5),
)
enter(
    "conv2d, time first",
    "conv2d",
    {"w": (3, 4, 2, 2)},
    lambda d, p: (
        F.conv2d(d["x"].transpose(0, 1).flatten(0, 1), p.w, padding="valid").unflatten(0, (2, -1)).transpose(0, 1)
    ),
    x=(2, 4, 5, 5),
)
enter("conv2d, few positions", "conv2d", {"w": (16, 4, 5, 5)}, lambda d, p: F.conv2d(d["x"], p.w), **IMAGE)

# -- lookups
IDS: dict[str, Any] = {"x": ("ids", 7, (6,))}
enter("embedding", "embedding", {"w": (7, 3)}, lambda d, p: F.embedding(d["x"], p.w), **IDS)
enter("embedding, padding", "embedding", {"w": (7, 3)}, lambda d, p: F.embedding(d["x"], p.w, padding_idx=2), **IDS)
enter("embedding, long", "embedding", {"w": (7, 2)}, lambda d, p: F.embedding(d["x"], p.w), x=("ids", 7, (20,)))
enter("embedding, sparse", "embedding", {"w": (7, 3)}, lambda d, p: F.embedding(d["x"], p.w, sparse=True), **IDS)
enter("torch.embedding", "embedding", {"w": (7, 3)}, lambda d, p: torch.embedding(p.w, d["x"], 2), **IDS)
enter("indexing", "__getitem__", {"w": (7, 2, 2)}, lambda d, p: p.w[d["x"]], **IDS)
enter(
    "index_select",
    "index_select",
    {"w": (7, 3)},
    lambda d, p: p.w.index_select(0, d["x"].flatten()).view(N_(d), -1),
    **IDS,
)
enter(
    "embedding_bag, sum", "embedding_bag", {"w": (7, 3)}, lambda d, p: F.embedding_bag(d["x"], p.w, mode="sum"), **IDS
)
enter(
    "embedding_bag, mean",
    "embedding_bag",
    {"w": (7, 3)},
    lambda d, p: F.embedding_bag(d["x"], p.w, padding_idx=1),
    **IDS,
)
enter(
    "embedding_bag, weighted",
    "embedding_bag",
    {"w": (7, 3)},
    lambda d, p: F.embedding_bag(d["x"], p.w, mode="sum", per_sample_weights=d["s"]),
    s=(6,),
    **IDS,
)

# -- normalisation
AFFINE: Shapes = {"w": (4,), "b": (4,)}
enter("layer_norm", "layer_norm", {"w": (3, 5), "b": (3, 5)}, lambda d, p: F.layer_norm(d["x"], (3, 5), p.w, p.b), **X)
enter("layer_norm, last", "layer_norm", {"w": (5,)}, lambda d, p: F.layer_norm(d["x"], (5,), p.w), **X)
enter("rms_norm", "rms_norm", {"w": (5,)}, lambda d, p: F.rms_norm(d["x"], (5,), p.w, 1e-6), **X)
enter("group_norm", "group_norm", AFFINE, lambda d, p: F.group_norm(d["x"], 2, p.w, p.b), **IMAGE)
enter("instance_norm", "instance_norm", AFFINE, lambda d, p: F.instance_norm(d["x"], weight=p.w, bias=p.b), **IMAGE)
enter(
    "batch_norm, frozen",
    "batch_norm",
    AFFINE,
    lambda d, p: F.batch_norm(d["x"], d["x"].new_full((4,), 0.5), d["x"].new_full((4,), 2.0), p.w, p.b),
    **IMAGE,
)

# -- broadcasting: the parameter on either side, per feature, per position, per example (expanded), scalar
for name in (
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "atan2",
    "hypot",
    "logaddexp",
    "fmax",
    "fmin",
    "xlogy",
    "pow",
):
    operation = getattr(torch, name)
    enter(name, name, {"p": (5,)}, lambda d, p, f=operation: f(d["x"], p.p), **X)
    enter(f"{name}, parameter first", name, {"p": (3, 1)}, lambda d, p, f=operation: f(p.p, d["x"]), **X)
ONE_SIDE = "subtract multiply divide true_divide copysign fmod remainder arctan2 logaddexp2 float_power"
for name in ONE_SIDE.split():
    if name == "copysign":
        enter(name, name, {"p": (5,)}, lambda d, p: torch.copysign(p.p, d["x"] - 1), **X)
    elif name in ("fmod", "remainder"):
        enter(name, name, {"p": (5,)}, lambda d, p, f=getattr(torch, name): f(p.p, d["x"] * 0.3), **X)
    else:
        enter(name, name, {"p": (5,)}, lambda d, p, f=getattr(torch, name): f(d["x"], p.p), **X)
enter(
    "add, scaled",
    "add",
    {"p": (5,)},
    lambda d, p: torch.add(d["x"], p.p, alpha=3) + torch.add(p.p, d["x"], alpha=2),
    **X,
)
enter("sub, scaled", "sub", {"p": (5,)}, lambda d, p: torch.sub(d["x"], p.p, alpha=3), **X)
enter("add, scalar", "add", {"p": ()}, lambda d, p: d["x"] + p.p, **X)
enter("add, expanded", "add", {"p": (3, 5)}, lambda d, p: d["x"] + p.p.repeat(N_(d), 1, 1), **X)
enter("mul, same size as batch", "mul", {"p": (4,)}, lambda d, p: d["x"] * p.p, x=(4, 4))
enter("rsub", "rsub", {"p": (5,)}, lambda d, p: torch.rsub(d["x"], p.p), **X)
enter("lerp", "lerp", {"p": (5,)}, lambda d, p: torch.lerp(d["x"], p.p, 0.3), **X)
enter("addcmul", "addcmul", {"p": (5,)}, lambda d, p: torch.addcmul(d["x"], p.p, d["x"], value=2), **X)
enter("addcdiv", "addcdiv", {"p": (5,)}, lambda d, p: torch.addcdiv(d["x"], d["x"], p.p), **X)
enter("where", "where", {"p": (5,)}, lambda d, p: torch.where(d["x"] > 1, d["x"], p.p), **X)
enter("clamp", "clamp", {"p": (5,)}, lambda d, p: torch.clamp(d["x"], min=p.p), **X)
enter("clip", "clip", {"p": (5,)}, lambda d, p: torch.clip(d["x"], max=p.p), **X)
enter("masked_fill", "masked_fill", {"p": ()}, lambda d, p: d["x"].masked_fill(d["x"] > 1, p.p), **X)
enter("masked_fill_", "masked_fill_", {"p": ()}, lambda d, p: (d["x"] * 1).masked_fill_(d["x"] > 1, p.p), **X)
for name in ("add_", "sub_", "mul_", "div_", "pow_"):
    enter(name, name, {"p": (5,)}, lambda d, p, f=getattr(Tensor, name): f(d["x"] * 2, p.p), **X)
enter("prelu", "prelu", {"p": (3,)}, lambda d, p: F.prelu(d["x"] - 1, p.p), **X)
enter("prelu, one", "prelu", {"p": (1,)}, lambda d, p: F.prelu(d["x"] - 1, p.p), **X)
for name in ("cat", "concat", "concatenate"):
    enter(
        name, name, {"p": (2, 5)}, lambda d, p, f=getattr(torch, name): f([p.p.expand(N_(d), -1, -1), d["x"]], 1), **X
    )
enter("stack", "stack", {"p": (5,)}, lambda d, p: torch.stack([p.p.expand(N_(d), -1), d["x"][:, 0]], 1), **X)
enter(
    "stack, batch second",
    "stack",
    {"p": (5,)},
    lambda d, p: torch.stack([p.p.expand(N_(d), -1), d["x"][:, 0]]).transpose(0, 1),
    **X,
)

# -- no rule of their own: the generic one
enter("generic: cdist", "cdist", {"p": (6, 5)}, lambda d, p: torch.cdist(d["x"], p.p.expand(N_(d), -1, -1)), **X)
enter("generic: outer", "ger", {"p": (3,)}, lambda d, p: torch.ger(d["x"][:, 0], p.p), **FLAT)
enter(
    "generic: three operands",
    "einsum",
    {"p": (5, 5)},
    lambda d, p: torch.einsum("btd,bse,de->bts", d["x"], d["x"], p.p),
    **X,
)
enter(
    "generic: tensordot that repeats the parameter",
    "tensordot",
    {"p": (1, 4)},
    lambda d, p: torch.tensordot(d["x"], p.p, 1),
    **X,
)
enter("generic: gather", "gather", {"p": (7,)}, lambda d, p: torch.gather(p.p.expand(N_(d), 7), 1, d["x"]), **IDS)
enter("generic: assignment", "__setitem__", {"p": (5,)}, lambda d, p: assigned(d["x"], p.p), **X)
enter("generic: cumulative", "cumsum", {"p": (5,)}, lambda d, p: (d["x"] * p.p).cumsum(2) + p.p.cumsum(0), **X)


def assigned(x: Tensor, p: Tensor) -> Tensor:
    out = x * 2
    out[:, 1] = p
    return out
