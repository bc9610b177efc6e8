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

from tacit.sgd.gradients.capture import Use
from tacit.sgd.gradients.contributions import (
    Contributions,
    Dense,
    Layout,
    NotCovered,
    Outer,
    bind,
    clean,
    reduce_to,
    rule,
    single,
    underflow,
    wide,
    widen,
)
from tacit.sgd.kernels import convolutions, products


def _tuple(value: Any, rank: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * rank
    sizes: tuple[int, ...] = tuple(value)
    return sizes * rank if len(sizes) == 1 else sizes


@dataclass(frozen=True)
class Geometry:
    """What a convolution without padding still needs to know."""

    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def patches(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> Tensor:
    """``(N, C, *positions, *kernel)`` view of an already padded input."""
    rank = len(kernel)
    for k in range(rank):
        span = dilation[k] * (kernel[k] - 1) + 1
        x = x.unfold(2 + k, span, stride[k])
        if dilation[k] > 1:
            x = x[..., :: dilation[k]]
    return x


class ConvOuter(Outer):
    """An :class:`Outer` over patches, which are only made when Gram matrices are wanted.

    ``a`` (N, C, *positions) is convolved with ``grad`` (N, O, *positions): its weight gradient, summed over the batch
    or example by example (the batch folded into the groups), is what the convolution kernels compute anyway. ``a`` is
    padded already, except ``by_kernel``: those read zeros outside it, ``pads`` before it, and both may be in ``units``
    of each example (of the gradient, of ``a``).
    """

    def __init__(
        self,
        grad: Tensor,
        a: Tensor,
        shape: torch.Size,
        layout: Layout,
        geometry: Geometry,
        pads: tuple[int, ...] = (),
        units: tuple[Tensor, Tensor] | None = None,
        *,
        by_kernel: bool = False,
    ) -> None:
        self.grad, self.a, self.layout, self.geometry, self.by_kernel = grad, a, layout, geometry, by_kernel
        self.pads, self.units = pads, units
        self.sizes, self.order = tuple(shape), tuple(range(len(shape)))
        self.kernel = tuple(shape[2:])
        self.rank = len(self.kernel)

    @property
    def dims(self) -> tuple[int, int, int, int, int]:
        groups, batch = self.geometry.groups, self.layout.batch
        tokens = self.grad.shape[0] // batch * math.prod(self.grad.shape[2:])
        return batch, groups, tokens, self.sizes[0] // groups, math.prod(self.sizes[1:])

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.units is not None else self.grad.dtype

    # Made anew whenever they are asked for: patches take many times the room of the image, and norms want them once.

    @property
    def left(self) -> Tensor:  # type: ignore[override]  # read only: nobody sets a factor of an Outer
        grad = self.grad if self.units is None else _in_units(self.grad, self.units[0])
        return _tokens(grad, self.layout, self.geometry.groups, self.rank)

    @property
    def right(self) -> Tensor:  # type: ignore[override]  # as above
        a = self.padded if self.units is None else _in_units(self.padded, self.units[1])
        pieces = patches(a, self.kernel, self.geometry.stride, self.geometry.dilation)
        return _tokens(pieces, self.layout, self.geometry.groups, self.rank)

    @property
    def padded(self) -> Tensor:
        """``a`` as far as patches reach."""
        return (
            _reached(self.a, self.pads, self.grad.shape[2:], self.kernel, self.geometry) if self.by_kernel else self.a
        )

    @property
    def _settings(self) -> tuple[list[int], list[int], list[int], list[int], bool]:
        exact = self.grad.dtype == torch.float32 and not products.tf32(self.grad, convolution=True)
        stride, dilation = list(self.geometry.stride), list(self.geometry.dilation)
        return list(self.kernel), stride, list(self.pads), dilation, exact

    @property
    def _unit(self) -> Tensor | None:
        return None if self.units is None else self.units[0] * self.units[1]

    def kernel_norms(self) -> tuple[Tensor, tuple[Tensor, Tensor] | None] | None:
        _, _, tokens, p, q = self.dims
        positions, channels = math.prod(self.a.shape[2:]), self.a.shape[1]
        # Gram matrices of images, whose shifted parts add up to those of patches: tokens² is all that is read again.
        gram = positions**2 * channels + tokens**2 * (p + 8 * math.prod(self.kernel))
        if 2 * gram < tokens * p * q:
            ours, theirs = self._image_gram(), self._grad_gram()
            rows, patches = (g.diagonal(dim1=1, dim2=2) for g in (theirs, ours))
            squared = (ours * theirs).sum((1, 2)) + underflow(rows[:, None], patches[:, None], p, q)
            lengths = rows.sqrt() * patches.sqrt()
            unit = self._unit
            if unit is not None:
                squared, lengths = squared * unit * unit, lengths * unit[:, None]
            return squared, (lengths.square().sum(1), lengths.sum(1))
        if 4 * p * q <= self.grad.element_size() * (tokens * p + positions * channels):
            return None
        return convolutions.conv_norms(self.grad, self.a, self._unit, *self._settings), None

    def _grad_gram(self) -> Tensor:
        grams: Tensor = convolutions.self_products(self.grad.flatten(2))
        return grams

    def _image_gram(self) -> Tensor:
        """(B, T, T): inner products of patches, as sums of inner products of pixels."""
        padded = self.padded
        pixels = padded.flatten(2)
        batch, (high, wide) = len(pixels), padded.shape[2:]
        whole = convolutions.self_products(pixels).view(batch, high, wide, high, wide)
        (rows, columns), (down, across), (far, apart) = (
            self.grad.shape[2:],
            self.geometry.stride,
            self.geometry.dilation,
        )
        total: Tensor | None = None
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                y = slice(i * far, i * far + (rows - 1) * down + 1, down)
                x = slice(j * apart, j * apart + (columns - 1) * across + 1, across)
                piece = whole[:, y, x, y, x]
                total = piece if total is None else total + piece
        assert total is not None
        return total.reshape(batch, rows * columns, rows * columns)

    def product(self) -> Tensor:
        if self.by_kernel:
            found: Tensor = convolutions.conv_products(self.grad, self.a, self._unit, *self._settings)
            return found.reshape(len(found), 1, self.sizes[0], -1)
        if self.grad.is_cuda:  # grouped convolution kernels are slow there, batched products are not
            return self.left.mT @ self.right
        n = self.grad.shape[0]
        groups = self.geometry.groups
        grad, a = (t.reshape(1, n * t.shape[1], *t.shape[2:]) for t in (self.grad, self.a))
        shape = torch.Size((n * self.sizes[0], *self.sizes[1:]))
        rows = _weight_gradient(grad, a, shape, Geometry(self.geometry.stride, self.geometry.dilation, n * groups))
        rows = rows.reshape(n, groups, self.sizes[0] // groups, -1)
        if n == self.layout.batch:
            return rows
        return self.layout.split(rows).sum((0, 2))

    def fold(self, product: Tensor) -> Tensor:
        if not self.by_kernel:
            return super().fold(product)
        # The kernel's columns are numbered tap by tap, channels innermost.
        lead, (rows, channels) = product.shape[:-3], self.sizes[:2]
        return product.reshape(*lead, rows, *self.kernel, channels).movedim(-1, len(lead) + 1)

    def weighted_sum(self, scale: Tensor, *, sanitise: bool, positive: bool = False) -> Tensor:
        grad, a = (clean(self.grad), clean(self.a)) if sanitise else (self.grad, self.a)
        if self.by_kernel:
            unit = self._unit
            factors = scale if unit is None else scale.to(torch.float32) * unit
            total: Tensor = convolutions.conv_sum(grad, a, factors, *self._settings)
            return total
        if grad.numel() <= a.numel():
            grad = grad * self.layout.spread(scale.to(grad.dtype), grad.dim())
        else:
            a = a * self.layout.spread(scale.to(a.dtype), a.dim())
        return _weight_gradient(grad, a, torch.Size(self.sizes), self.geometry)

    @property
    def by_convolution(self) -> bool:
        return True


def _in_units(tensor: Tensor, units: Tensor) -> Tensor:
    return tensor.float() * units.view(-1, *(1,) * (tensor.dim() - 1))


def _reached(
    x: Tensor, pads: tuple[int, ...], positions: torch.Size, kernel: tuple[int, ...], geometry: Geometry
) -> Tensor:
    """The part of an image that patches reach, with zeros outside it: no more, for that would confuse the kernels."""
    ends = [
        (n - 1) * s + d * (k - 1) + 1 - p - size
        for n, s, d, k, p, size in zip(
            positions, geometry.stride, geometry.dilation, kernel, pads, x.shape[2:], strict=True
        )
    ]
    both = [end for pair in zip(reversed(pads), reversed(ends), strict=True) for end in pair]
    return F.pad(x, both) if any(both) else x


def _tokens(tensor: Tensor, layout: Layout, groups: int, rank: int) -> Tensor:
    """``(N, C, *positions, *rest)`` to ``(B, groups, tokens, C / groups * rest)``.

    Positions stay innermost in memory (the result is a transposed view), which is the order in which patches are
    copied fastest.
    """
    n, c = tensor.shape[:2]
    positions = tensor.shape[2 : 2 + rank]
    rest = tensor.shape[2 + rank :]
    count, width = math.prod(positions), c // groups * math.prod(rest)
    inner = tensor.permute(0, 1, *range(2 + rank, tensor.dim()), *range(2, 2 + rank))
    if n == layout.batch:
        return inner.reshape(n, groups, width, count).mT
    split = layout.split(inner).movedim(1, 0)  # (B, outer, inner, C, *rest, *positions)
    split = split.reshape(layout.batch, n // layout.batch, groups, width, count)
    return split.permute(0, 2, 3, 1, 4).reshape(layout.batch, groups, width, n // layout.batch * count).mT


def _pads(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Zeros before each dimension of an image."""
    if padding == "same":
        return tuple(d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True))
    return _tuple(0 if padding in (None, "valid") else padding, len(kernel))


@rule("conv1d", "conv2d", "conv3d")
def conv(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input weight bias stride padding dilation groups")
    rank = int(use.name[4])
    x, weight = bound["input"], bound["weight"]
    if use.find(x) is not None or layout.dim != 0 or x.dim() != rank + 2:
        raise NotCovered
    x, grad, layout = layout.straight(x, 0), layout.straight(grad, 0), layout.plain
    kernel = tuple(weight.shape[2:])
    stride, dilation = _tuple(bound["stride"] or 1, rank), _tuple(bound["dilation"] or 1, rank)
    groups = bound["groups"] or 1
    x = x.to(grad.dtype)
    found: Contributions = []
    bias = use.find(bound["bias"])
    if bias is not None:
        found.append((bias, _shift(widen(grad), layout, rank)))
    known = use.find(weight)
    if known is None:
        return found
    pads = _pads(bound["padding"], kernel, dilation)
    one_image_each = rank == 2 and groups == 1 and len(grad) == layout.batch
    by_kernel = one_image_each and grad.device.type in products.DEVICES and products.multiplies_convolutions(grad)
    geometry = Geometry(stride, dilation, groups)
    if not by_kernel:
        x, grad = widen(x), widen(grad)
        padded = _reached(x, pads, grad.shape[2:], kernel, geometry)
        found.append((known, ConvOuter(grad, padded, weight.shape, layout, geometry)))
        return found
    units = None
    if products.tf32(grad, convolution=True) and x.shape[1] % 8 == 0:
        # The digits of tf32 in half the memory; tensor cores then take channels innermost, as images are kept.
        (grad, x), (one, two) = convolutions.halved(grad, x)
        units = (one, two)
    elif products.tf32(grad, convolution=True):
        grad, x = products.to_tf32(grad), products.to_tf32(x)
    # Narrow numbers are read in whole lines of channels.
    order = torch.contiguous_format if grad.dtype == torch.float32 else torch.channels_last
    grad, x = (t.contiguous(memory_format=order) for t in (grad, x))
    found.append((known, ConvOuter(grad, x, weight.shape, layout, geometry, pads, units, by_kernel=True)))
    return found


def _shift(grad: Tensor, layout: Layout, rank: int) -> Dense:
    reduced = reduce_to((1, grad.shape[1], *(1,) * rank), grad, layout)
    if not isinstance(reduced, Dense):
        raise NotCovered
    return Dense(reduced.values.flatten(1))


def _weight_gradient(grad: Tensor, x: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor:
    """The weight gradient of an unpadded convolution summed over the batch."""
    zero = [0] * len(geometry.stride)
    weight = grad.new_empty(1).expand(shape)
    stride, dilation = list(geometry.stride), list(geometry.dilation)
    result: Tensor = torch.ops.aten.convolution_backward(
        grad,
        x,
        weight,
        None,
        stride,
        zero,
        dilation,
        transposed=False,
        output_padding=zero,
        groups=geometry.groups,
        output_mask=[False, True, False],
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
    x, grad, layout = layout.straight(x, 0), layout.straight(grad, 0), layout.plain
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
    geometry = Geometry(stride, dilation, groups)
    # output_padding may leave room beyond the last patch that an input position made
    padded = _reached(grad, padding, x.shape[2:], kernel, geometry)
    found.append((known, ConvOuter(x, padded, weight.shape, layout, geometry)))
    return found
