"""Norms and weighted sums of the weight gradients of 2-d convolutions without unfolding: a Triton kernel.

:func:`conv_norms`, :func:`conv_sum` and :func:`conv_products` read the patches of an image in place; no copy of them,
and no weight gradient of one example (but where it is asked for), reaches memory. Precision is as in
:mod:`tacit.sgd.kernels.products`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.sgd.kernels import products
from tacit.sgd.kernels.grams import block
from tacit.sgd.kernels.launch import as_operator, jit, launch, tl


@jit
def _conv_kernel(  # type: ignore[no-untyped-def]
    grad, x, scale, out, B, T, p, q, width, per_part, high, wide,
    grad_b, grad_t, grad_p, x_b, x_c, x_h, x_w, step_h, step_w, kernel_w, pad_h, pad_w, dilation_h, dilation_w,
    C: tl.constexpr, NORM: tl.constexpr, SCALED: tl.constexpr, PADDED: tl.constexpr,
    BP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of the weight gradient of a convolution; patches are read in place, what lies outside x is zero.

    Columns are numbered tap by tap, channels innermost. NORM: the squared norm of the tile for one example, else the
    weighted sum over the examples of one part.
    """
    across = tl.cdiv(q, BQ)
    tiles = tl.cdiv(p, BP) * across
    tile = tl.program_id(0) % tiles
    part = tl.program_id(0) // tiles
    rows = tile // across * BP + tl.arange(0, BP)
    columns = tile % across * BQ + tl.arange(0, BQ)
    tap = columns // C
    down = tap // kernel_w * dilation_h - pad_h
    right = tap % kernel_w * dilation_w - pad_w
    place = columns % C * x_c + down * x_h + right * x_w
    inner = tl.arange(0, BK)
    total = tl.zeros((BP, BQ), tl.float32)
    for example in range(part * per_part, tl.minimum(B, (part + 1) * per_part)):
        factor = 1.0
        if SCALED:
            factor = tl.load(scale + example).to(tl.float32)
        if factor != 0:
            far = tl.full((), 0, tl.int64) + example
            a = grad + far * grad_b
            b = x + far * x_b
            own = tl.zeros((BP, BQ), tl.float32)
            for k in range(0, T, BK):
                t = k + inner
                g = tl.load(
                    a + t[:, None] * grad_t + rows[None, :] * grad_p,
                    mask=(rows[None, :] < p) & (t[:, None] < T), other=0.0,
                )  # fmt: skip
                y0 = t // width * step_h
                x0 = t % width * step_w
                inside = (columns[None, :] < q) & (t[:, None] < T)
                if PADDED:
                    i = y0[:, None] + down[None, :]
                    j = x0[:, None] + right[None, :]
                    inside = inside & (i >= 0) & (i < high) & (j >= 0) & (j < wide)
                y = tl.load(b + (y0 * x_h + x0 * x_w)[:, None] + place[None, :], mask=inside, other=0.0)
                own = tl.dot(tl.trans(g), y, own, input_precision=PRECISION)
            total += factor * own
    if NORM:
        tl.store(out + tl.program_id(0).to(tl.int64), tl.sum(total * total))
    else:
        spot = out + part.to(tl.int64) * p * q + rows[:, None] * q + columns[None, :]
        tl.store(spot, total, mask=(rows[:, None] < p) & (columns[None, :] < q))


def _conv(
    grad: Tensor,
    x: Tensor,
    scale: Tensor | None,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    exact: bool,
    what: str,
) -> Tensor:
    """``what`` is "norms", "sum" or "products" (of each example), all of gradients times the factors in ``scale``."""
    batch, p, height, width = grad.shape
    channels, tokens = x.shape[1], height * width
    q = channels * kernel[0] * kernel[1]
    # The same tiles for norms and sums: the numbers that are squared are then those that are added, bit for bit.
    narrow_type = grad.element_size() == 2
    most = 64 if exact else 128
    bp, bq = block(p, most), block(q, most)
    # So many threads and so short a depth that no accumulator leaves the registers (as the compiler reports).
    warps = 8 if bp * bq > (8192 if narrow_type else 2048) else 4
    depth = 64 if narrow_type else 16 if bp * bq > 8192 else 32
    tiles = -(-p // bp) * -(-q // bq)
    # Enough programs to fill the processors four times over; each part of the examples writes a result of its own.
    parts = max(1, min(batch, 528 // tiles)) if what == "sum" else batch
    per_part = -(-batch // parts)
    parts = -(-batch // per_part)
    shape = (batch, tiles) if what == "norms" else (parts, p, q)
    out = torch.empty(shape, dtype=torch.float32, device=grad.device)
    # With several groups the factors of one are a column of a matrix; the kernel reads them one after another.
    factors = out if scale is None else scale.contiguous()
    reach = [
        (n - 1) * s - h + d * (k - 1)
        for n, s, h, d, k in zip(grad.shape[2:], stride, padding, dilation, kernel, strict=True)
    ]
    padded = any(padding) or any(r >= n for r, n in zip(reach, x.shape[2:], strict=True))
    launch(
        _conv_kernel, (tiles * parts,), grad, x, factors, out, batch, tokens, p, q, width, per_part, *x.shape[2:],
        grad.stride(0), grad.stride(3), grad.stride(1), *x.stride(), *stride, kernel[1], *padding, *dilation,
        C=channels, NORM=what == "norms", SCALED=scale is not None, PADDED=padded, BP=bp, BQ=bq, BK=depth,
        PRECISION="ieee" if exact else "tf32", num_warps=warps, num_stages=3,
    )  # fmt: skip
    if what == "norms":
        return out.sum(1)
    if what == "products":
        return out.view(batch, p, kernel[0], kernel[1], channels)
    return out.sum(0).view(p, kernel[0], kernel[1], channels).permute(0, 3, 1, 2).contiguous()


def _reads(*tensors: Tensor) -> bool:
    """Whether the kernel can: on a GPU, no example longer than 32 bits count."""
    spans = [sum((n - 1) * step for n, step in zip(t.shape[1:], t.stride()[1:], strict=True)) for t in tensors]
    return bool(tensors[0].is_cuda) and max(spans) < 2**31


def _rows(tensor: Tensor) -> Tensor:
    """The same with positions at one stride (rows of an image next to each other), as the kernel reads them."""
    return tensor if tensor.stride(2) == tensor.shape[3] * tensor.stride(3) else tensor.contiguous()


def _unfolded(
    grad: Tensor,
    x: Tensor,
    scale: Tensor | None,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """Per-example weight gradients by unfolding, where there is no kernel."""
    grad, x = grad.float(), x.float()
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    after = [(grad.shape[2 + k] - 1) * stride[k] + spans[k] - padding[k] - x.shape[2 + k] for k in range(2)]
    x = F.pad(x, [padding[1], after[1], padding[0], after[0]])
    for k in range(2):
        x = x.unfold(2 + k, spans[k], stride[k])[..., :: dilation[k]]
    found = torch.einsum("nohw,nchwij->nocij", grad, x)
    return found if scale is None else found * scale.float()[:, None, None, None, None]


@as_operator("tacit::conv_norms")
def conv_norms(
    grad: Tensor,
    x: Tensor,
    unit: Tensor | None,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    exact: bool,
) -> Tensor:
    """The squared norm of each example's weight gradient of a 2-d convolution; ``unit`` is a factor of the gradient.

    ``padding`` is that above and on the left; zeros are read wherever a patch ends outside ``x``.
    """
    if not _reads(grad, x):
        return _unfolded(grad, x, unit, kernel, stride, padding, dilation).square().sum((1, 2, 3, 4))
    return _conv(_rows(grad), x, unit, kernel, stride, padding, dilation, exact, "norms")


@conv_norms.register_fake
def _(grad: Tensor, x: Tensor, unit: Tensor | None, kernel: list[int], *_: object) -> Tensor:
    return grad.new_empty((grad.shape[0],), dtype=torch.float32)


@as_operator("tacit::conv_sum")
def conv_sum(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    exact: bool,
) -> Tensor:
    """The sum of each example's weight gradient of a 2-d convolution times its factor, in float32."""
    if not _reads(grad, x):
        each = _unfolded(grad, x, None, kernel, stride, padding, dilation)
        total: Tensor = torch.tensordot(scale.float(), each, 1)
        return total
    return _conv(_rows(grad), x, scale, kernel, stride, padding, dilation, exact, "sum")


@conv_sum.register_fake
def _(grad: Tensor, x: Tensor, scale: Tensor, kernel: list[int], *_: object) -> Tensor:
    return grad.new_empty((grad.shape[1], x.shape[1], kernel[0], kernel[1]), dtype=torch.float32)


@as_operator("tacit::conv_products")
def conv_products(
    grad: Tensor,
    x: Tensor,
    unit: Tensor | None,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    exact: bool,
) -> Tensor:
    """Each example's weight gradient of a 2-d convolution, times ``unit`` where it is given, in float32.

    Channels are innermost: (B, rows, *kernel, channels).
    """
    if not _reads(grad, x):
        return _unfolded(grad, x, unit, kernel, stride, padding, dilation).movedim(2, -1).contiguous()
    return _conv(_rows(grad), x, unit, kernel, stride, padding, dilation, exact, "products")


@conv_products.register_fake
def _(grad: Tensor, x: Tensor, unit: Tensor | None, kernel: list[int], *_: object) -> Tensor:
    return grad.new_empty((grad.shape[0], grad.shape[1], kernel[0], kernel[1], x.shape[1]), dtype=torch.float32)


@as_operator("tacit::self_products")
def self_products(x: Tensor) -> Tensor:
    """``X_b.T X_b`` in float32, (B, T, T), of (B, C, T): a compiled step copies no factor twice that is one tensor."""
    found: Tensor = products.products(x, x)
    return found


@self_products.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[2], x.shape[2]), dtype=torch.float32)


def halved(*tensors: Tensor) -> tuple[list[Tensor], Tensor]:
    """Batches of float32 in half precision, each example in units of its own, powers of two; and the units of each.

    Half precision has the eleven digits of tf32. With the largest number of an example below 2^15, those down to 2^-28
    of it keep all of them, and smaller ones are off by at most 2^-39 of the largest. What is not finite stays so.

    >>> (small,), (units,) = halved(torch.tensor([[[[3e-9, -1e-9]]], [[[float("inf"), 1.0]]]]))
    >>> (small[0].float() * units[0] / torch.tensor([3e-9, -1e-9]) - 1).abs().max() < 2**-11, small[1].isfinite().all()
    (tensor(True), tensor(False))
    """
    # All units are made in one, so that a compiled step copies an input when its gradient is there, not long before.
    largest = torch.stack([t.abs().amax(tuple(range(1, t.dim()))).float() for t in tensors])
    exponent = (largest.view(torch.int32) >> 23) & 0xFF
    up = (268 - exponent).clamp(1, 253)
    factors, units = ((bits << 23).view(torch.float32) for bits in (up, 254 - up))
    return [
        (t * f.view(-1, *(1,) * (t.dim() - 1))).to(torch.float16) for t, f in zip(tensors, factors, strict=True)
    ], units
