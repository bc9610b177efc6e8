"""Norms and weighted sums of the weight gradients of 2-d convolutions without unfolding: a Triton kernel.

:func:`conv_norms`, :func:`conv_sum` and :func:`conv_products` read the patches of an image in place; no copy of them,
and no weight gradient of one example (but where it is asked for), reaches memory. Precision is as in
:mod:`tacit.sgd.kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.sgd.kernels import block
from tacit.sgd.launch import jit, launch, tl


@jit
def _conv_kernel(  # type: ignore[no-untyped-def]
    grad, x, scale, out, B, T, p, q, width, per_part,
    grad_b, grad_t, grad_p, x_b, x_c, x_h, x_w, step_h, step_w, kernel_w, dilation_h, dilation_w,
    C: tl.constexpr, NORM: tl.constexpr,
    BP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of the weight gradient of a convolution; x is padded already, and patches are read in place.

    Columns are numbered tap by tap, channels innermost. NORM: the squared norm of the tile for one example, else the
    weighted sum over the examples of one part.
    """
    tile = tl.program_id(0)
    part = tl.program_id(1)
    across = tl.cdiv(q, BQ)
    rows = tile // across * BP + tl.arange(0, BP)
    columns = tile % across * BQ + tl.arange(0, BQ)
    tap = columns // C
    place = columns % C * x_c + tap // kernel_w * dilation_h * x_h + tap % kernel_w * dilation_w * x_w
    inner = tl.arange(0, BK)
    total = tl.zeros((BP, BQ), tl.float32)
    for example in range(part * per_part, tl.minimum(B, (part + 1) * per_part)):
        factor = 1.0
        if not NORM:
            factor = tl.load(scale + example).to(tl.float32)
        if factor != 0:
            wide = tl.full((), 0, tl.int64) + example
            a = grad + wide * grad_b
            b = x + wide * x_b
            own = tl.zeros((BP, BQ), tl.float32)
            for k in range(0, T, BK):
                t = k + inner
                g = tl.load(
                    a + t[:, None] * grad_t + rows[None, :] * grad_p,
                    mask=(rows[None, :] < p) & (t[:, None] < T), other=0.0,
                )  # fmt: skip
                where = t // width * step_h * x_h + t % width * step_w * x_w
                y = tl.load(
                    b + where[:, None] + place[None, :], mask=(columns[None, :] < q) & (t[:, None] < T), other=0.0
                )
                own = tl.dot(tl.trans(g), y, own, input_precision=PRECISION)
            total += factor * own
    if NORM:
        tl.store(out + part * tl.num_programs(0) + tile, tl.sum(total * total))
    else:
        spot = out + part.to(tl.int64) * p * q + rows[:, None] * q + columns[None, :]
        tl.store(spot, total, mask=(rows[:, None] < p) & (columns[None, :] < q))


def _conv(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    scale: Tensor | None,
    exact: bool,
    single: bool = False,
) -> Tensor:
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
    parts = batch if scale is None or single else max(1, min(batch, 528 // tiles))
    per_part = -(-batch // parts)
    parts = -(-batch // per_part)
    shape = (batch, tiles) if scale is None else (parts, p, q)
    out = torch.empty(shape, dtype=torch.float32, device=grad.device)
    # With several groups the factors of one are a column of a matrix; the kernel reads them one after another.
    factors = out if scale is None else scale.contiguous()
    launch(
        _conv_kernel, (tiles, parts), grad, x, factors, out, batch, tokens, p, q, width, per_part,
        grad.stride(0), grad.stride(3), grad.stride(1), *x.stride(), *stride, kernel[1], *dilation,
        C=channels, NORM=scale is None, BP=bp, BQ=bq, BK=depth,
        PRECISION="ieee" if exact else "tf32", num_warps=warps, num_stages=3,
    )  # fmt: skip
    if scale is None:
        return out.sum(1)
    if single:
        return out.view(batch, p, kernel[0], kernel[1], channels).permute(0, 1, 4, 2, 3).contiguous()
    return out.sum(0).view(p, kernel[0], kernel[1], channels).permute(0, 3, 1, 2).contiguous()


def _rows(tensor: Tensor) -> Tensor:
    """The same with positions at one stride (rows of an image next to each other), as the kernel reads them."""
    return tensor if tensor.stride(2) == tensor.shape[3] * tensor.stride(3) else tensor.contiguous()


def _unfolded(grad: Tensor, x: Tensor, kernel: list[int], stride: list[int], dilation: list[int]) -> Tensor:
    """Per-example weight gradients by unfolding, where there is no kernel."""
    for k in range(2):
        x = x.unfold(2 + k, dilation[k] * (kernel[k] - 1) + 1, stride[k])[..., :: dilation[k]]
    return torch.einsum("nohw,nchwij->nocij", grad.float(), x.float())


@torch.library.custom_op("tacit::conv_norms", mutates_args=())  # type: ignore[untyped-decorator]
def conv_norms(
    grad: Tensor, x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], exact: bool
) -> Tensor:
    """The squared norm of each example's weight gradient of a 2-d convolution; ``x`` is padded already."""
    if not grad.is_cuda:
        return _unfolded(grad, x, kernel, stride, dilation).square().sum((1, 2, 3, 4))
    return _conv(_rows(grad), x, kernel, stride, dilation, None, exact)


@conv_norms.register_fake  # type: ignore[untyped-decorator]
def _(grad: Tensor, x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], exact: bool) -> Tensor:
    return grad.new_empty((grad.shape[0],), dtype=torch.float32)


@torch.library.custom_op("tacit::conv_sum", mutates_args=())  # type: ignore[untyped-decorator]
def conv_sum(
    grad: Tensor, x: Tensor, scale: Tensor, kernel: list[int], stride: list[int], dilation: list[int], exact: bool
) -> Tensor:
    """The sum of each example's weight gradient of a 2-d convolution times its factor, in float32."""
    if not grad.is_cuda:
        return torch.tensordot(scale.float(), _unfolded(grad, x, kernel, stride, dilation), 1)
    return _conv(_rows(grad), x, kernel, stride, dilation, scale, exact)


@conv_sum.register_fake  # type: ignore[untyped-decorator]
def _(
    grad: Tensor, x: Tensor, scale: Tensor, kernel: list[int], stride: list[int], dilation: list[int], exact: bool
) -> Tensor:
    return grad.new_empty((grad.shape[1], x.shape[1], kernel[0], kernel[1]), dtype=torch.float32)


@torch.library.custom_op("tacit::conv_products", mutates_args=())  # type: ignore[untyped-decorator]
def conv_products(
    grad: Tensor, x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], exact: bool
) -> Tensor:
    """Each example's weight gradient of a 2-d convolution, in float32."""
    if not grad.is_cuda:
        return _unfolded(grad, x, kernel, stride, dilation).contiguous()
    ones = torch.ones(grad.shape[0], dtype=torch.float32, device=grad.device)
    return _conv(_rows(grad), x, kernel, stride, dilation, ones, exact, single=True)


@conv_products.register_fake  # type: ignore[untyped-decorator]
def _(grad: Tensor, x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], exact: bool) -> Tensor:
    return grad.new_empty((grad.shape[0], grad.shape[1], x.shape[1], kernel[0], kernel[1]), dtype=torch.float32)
