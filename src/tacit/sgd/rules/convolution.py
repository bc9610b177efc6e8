"""Per-example gradients of convolution weights, in one, two and three dimensions, transposed or not.

A convolution is a linear layer on patches: tokens are the output positions, columns the elements of a patch, groups the
groups. A transposed convolution is the same with input and output gradient exchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.sgd.capture import Use
from tacit.sgd.layout import Layout
from tacit.sgd.rules.base import Contributions, Dense, NotCovered, Outer, bind, clean, reduce_to, rule, single, wide


def _tuple(value: Any, rank: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * rank
    value = tuple(value)
    return value * rank if len(value) == 1 else value


def patches(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> Tensor:
    """``(N, C, *positions, *kernel)`` view of an already padded input."""
    rank = len(kernel)
    for k in range(rank):
        span = dilation[k] * (kernel[k] - 1) + 1
        x = x.unfold(2 + k, span, stride[k])
        if dilation[k] > 1:
            x = x[..., :: dilation[k]]
    return x


@dataclass
class ConvOuter(Outer):
    """An :class:`Outer` that knows a cheaper way to form its weighted sum than from patches."""

    weighted: Any = None

    def weighted_sum(self, scale: Tensor, sanitise: bool) -> Tensor:
        result: Tensor = self.weighted(scale, sanitise)
        return result


def _tokens(tensor: Tensor, layout: Layout, groups: int, rank: int) -> Tensor:
    """``(N, C, *positions, *rest)`` to ``(B, groups, tokens, C / groups * rest)``."""
    n, c = tensor.shape[:2]
    positions = tensor.shape[2 : 2 + rank]
    rest = math.prod(tensor.shape[2 + rank :])
    folded = n // layout.batch
    split = layout.split(tensor).movedim(1, 0)  # (B, outer, inner, C, *positions, *rest)
    split = split.reshape(layout.batch, folded, groups, c // groups, math.prod(positions), rest)
    return split.permute(0, 2, 1, 4, 3, 5).reshape(layout.batch, groups, folded * math.prod(positions), -1)


@rule("conv1d", "conv2d", "conv3d")
def conv(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input weight bias stride padding dilation groups")
    rank = int(use.name[4])
    x, weight = bound["input"], bound["weight"]
    if use.find(x) is not None or layout.dim != 0 or x.dim() != rank + 2:
        raise NotCovered
    kernel = tuple(weight.shape[2:])
    stride, dilation = _tuple(bound["stride"] or 1, rank), _tuple(bound["dilation"] or 1, rank)
    groups = bound["groups"] or 1
    x = x.to(grad.dtype).to(wide(grad.dtype))
    grad = grad.to(wide(grad.dtype))
    found: Contributions = []
    bias = use.find(bound["bias"])
    if bias is not None:
        found.append((bias, _shift(grad, layout, rank)))
    known = use.find(weight)
    if known is None:
        return found
    padding = bound["padding"] or 0
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [(t // 2, t - t // 2) for t in total]
    else:
        pads = [(p, p) for p in _tuple(padding, rank)]
    padded = F.pad(x, [p for pair in reversed(pads) for p in pair]) if any(p for pair in pads for p in pair) else x
    shape = weight.shape

    def weighted(scale: Tensor, sanitise: bool) -> Tensor:
        g, a = (clean(grad), clean(padded)) if sanitise else (grad, padded)
        g = g * layout.spread(scale, g.dim())
        return _weight_gradient(g, a, shape, stride, dilation, groups)

    left = _tokens(grad, layout, groups, rank)
    right = _tokens(patches(padded, kernel, stride, dilation), layout, groups, rank)
    sizes = (groups, shape[0] // groups, *shape[1:])
    found.append((known, _conv_outer(left, right, sizes, shape, weighted)))
    return found


def _shift(grad: Tensor, layout: Layout, rank: int) -> Dense:
    reduced = reduce_to((1, grad.shape[1], *(1,) * rank), grad, layout)
    if not isinstance(reduced, Dense):
        raise NotCovered
    return Dense(reduced.values.flatten(1))


def _conv_outer(left: Tensor, right: Tensor, sizes: tuple[int, ...], shape: torch.Size, weighted: Any) -> ConvOuter:
    contribution = ConvOuter(left, right, tuple(shape), tuple(range(len(shape))), weighted)
    if math.prod(sizes) != math.prod(shape):
        raise NotCovered
    return contribution


def _weight_gradient(
    grad: Tensor,
    x: Tensor,
    shape: torch.Size,
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """The weight gradient of an unpadded convolution summed over the batch."""
    rank = len(stride)
    zero = [0] * rank
    weight = grad.new_empty(1).expand(shape)
    result: Tensor = torch.ops.aten.convolution_backward(
        grad, x, weight, None, stride, zero, dilation, False, zero, groups, [False, True, False]
    )[1]
    return result


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input weight bias stride padding output_padding groups dilation")
    rank = int(use.name[14])
    x, weight = bound["input"], bound["weight"]
    if use.find(x) is not None or layout.dim != 0 or x.dim() != rank + 2:
        raise NotCovered
    kernel = tuple(weight.shape[2:])
    stride, dilation = _tuple(bound["stride"] or 1, rank), _tuple(bound["dilation"] or 1, rank)
    padding, groups = _tuple(bound["padding"] or 0, rank), bound["groups"] or 1
    x = x.to(grad.dtype).to(wide(grad.dtype))
    grad = grad.to(wide(grad.dtype))
    found: Contributions = []
    bias = use.find(bound["bias"])
    if bias is not None:
        found.append((bias, _shift(grad, layout, rank)))
    known = use.find(weight)
    if known is None:
        return found
    padded = F.pad(grad, [p for pad in reversed(padding) for p in (pad, pad)])
    pieces = patches(padded, kernel, stride, dilation)
    # output_padding may leave room for one more patch, which no input position made
    for k in range(rank):
        pieces = pieces.narrow(2 + k, 0, x.shape[2 + k])
    shape = weight.shape

    def weighted(scale: Tensor, sanitise: bool) -> Tensor:
        g, a = (clean(padded), clean(x)) if sanitise else (padded, x)
        a = a * layout.spread(scale, a.dim())
        needed = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(x.shape[2:], stride, dilation, kernel, strict=True)]
        for k, n in enumerate(needed):
            g = g.narrow(2 + k, 0, n)
        return _weight_gradient(a, g, shape, stride, dilation, groups)

    left = _tokens(x, layout, groups, rank)
    right = _tokens(pieces, layout, groups, rank)
    sizes = (groups, shape[0] // groups, *shape[1:])
    found.append((known, _conv_outer(left, right, sizes, shape, weighted)))
    return found
