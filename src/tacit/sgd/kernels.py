"""Norms and weighted sums of products without forming them: Triton kernels for factors in reduced precision.

For factors ``left`` (B, T, p) and ``right`` (B, T, q) of per-example gradients ``G_b = left_b.T @ right_b``:

* :func:`gram_norms`: ``sum (L Lᵀ) ∘ (R Rᵀ)``, from one half of the symmetric matrices, tile by tile;
* :func:`product_norms`: ``|L.T R|²``, tile by tile;
* :func:`weighted_product`: ``sum_b scale_b G_b``, where ``scale_b * left`` is kept as the sum of two narrow numbers:
  rounded to one, it would change the very gradient whose norm was bounded;
* :func:`conv_norms`, :func:`conv_sum`: the same for 2-d convolutions, whose patches are read in place.

Neither a T × T nor a p × q matrix per example reaches memory. bfloat16 factors are multiplied as they are: a product of
two is exact in float32, and sums are made in float32. float32 factors are multiplied in tf32 only where the model's own
products are, and are then rounded to tf32 once, so that norms and sums are of the same numbers.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # the module can then be imported, and computes the same with torch

    def _jit(function: Any = None, **_: Any) -> Any:
        return function if function is not None else _jit
else:
    _jit = triton.jit


@_jit
def _gram_tile(  # type: ignore[no-untyped-def]
    base, rows, columns, T, width, stride_t, stride_c, same, BT: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """One tile of a Gram matrix; on the diagonal both factors are the same numbers, read once."""
    inner = tl.arange(0, BK)
    a = base + rows[:, None] * stride_t + inner[None, :] * stride_c
    found = tl.zeros((BT, BT), tl.float32)
    if same:
        for k in range(0, width, BK):
            x = tl.load(a, mask=(rows[:, None] < T) & (inner[None, :] < width - k), other=0.0)
            found = tl.dot(x, tl.trans(x), found, input_precision=PRECISION)
            a += BK * stride_c
    else:
        b = base + columns[:, None] * stride_t + inner[None, :] * stride_c
        for k in range(0, width, BK):
            x = tl.load(a, mask=(rows[:, None] < T) & (inner[None, :] < width - k), other=0.0)
            y = tl.load(b, mask=(columns[:, None] < T) & (inner[None, :] < width - k), other=0.0)
            found = tl.dot(x, tl.trans(y), found, input_precision=PRECISION)
            a += BK * stride_c
            b += BK * stride_c
    return found


@_jit
def _gram_kernel(  # type: ignore[no-untyped-def]
    left, right, out, T, p, q,
    left_b, left_t, left_p, right_b, right_t, right_q,
    TILES: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of the two Gram matrices of one example, on or above the diagonal."""
    example = tl.program_id(1).to(tl.int64)
    pair = tl.program_id(0)
    # The pair (i, j), i <= j, with this number.
    i = 0
    rest = pair
    while rest >= TILES - i:
        rest -= TILES - i
        i += 1
    j = i + rest
    rows = i * BT + tl.arange(0, BT)
    columns = j * BT + tl.arange(0, BT)
    first = _gram_tile(left + example * left_b, rows, columns, T, p, left_t, left_p, i == j, BT, BK, PRECISION)
    second = _gram_tile(right + example * right_b, rows, columns, T, q, right_t, right_q, i == j, BT, BK, PRECISION)
    place = out + (example * tl.num_programs(0) + pair) * 3
    total = tl.sum(first * second)
    if i == j:
        corner = tl.arange(0, BT)[:, None] == tl.arange(0, BT)[None, :]
        tl.store(place, total)
        tl.store(place + 1, tl.sum(tl.where(corner, first, 0.0)))
        tl.store(place + 2, tl.sum(tl.where(corner, second, 0.0)))
    else:
        tl.store(place, 2 * total)
        tl.store(place + 1, 0.0)
        tl.store(place + 2, 0.0)


@_jit
def _product_kernel(  # type: ignore[no-untyped-def]
    left, right, out, T, p, q,
    left_b, left_t, left_p, right_b, right_t, right_q,
    BP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The squared norm of one tile of one example's product."""
    example = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0)
    across = tl.cdiv(q, BQ)
    rows = tile // across * BP + tl.arange(0, BP)
    columns = tile % across * BQ + tl.arange(0, BQ)
    inner = tl.arange(0, BK)
    a = left + example * left_b + rows[:, None] * left_p + inner[None, :] * left_t
    b = right + example * right_b + columns[None, :] * right_q + inner[:, None] * right_t
    total = tl.zeros((BP, BQ), tl.float32)
    for k in range(0, T, BK):
        inside = inner < T - k
        x = tl.load(a, mask=(rows[:, None] < p) & inside[None, :], other=0.0)
        y = tl.load(b, mask=(columns[None, :] < q) & inside[:, None], other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION)
        a += BK * left_t
        b += BK * right_t
    tl.store(out + example * tl.num_programs(0) + tile, tl.sum(total * total))


@_jit
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


@functools.cache
def has_triton() -> bool:
    """Whether the kernels can be compiled here."""
    return importlib.util.find_spec("triton") is not None


_NARROW = (torch.bfloat16,)  # float16 has too few exponents for the second part of a scaled factor
_outside: list[tuple[str, bool]] = []


def _settings() -> tuple[str, bool] | None:
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:  # settings per backend that have no common name
        return None


@contextmanager
def full_precision() -> Iterator[None]:
    """Products of norms and sums in full float32, whatever the model's own products are allowed to use.

    Norm and sum are then the same product to within float32 rounding; with reduced precision they would differ by more
    than the bound allows. Where torch does not say how it is set up, nothing is changed, and
    :func:`tacit.sgd.norms.roundoff` assumes the worst.
    """
    before = _settings()
    if before is None:
        yield
        return
    _outside.append(_outside[-1] if _outside else before)
    changed = before != ("highest", False)
    if changed:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        _outside.pop()
        if changed:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]


def model_settings() -> tuple[str, bool] | None:
    """The precision of the model's own products, also inside :func:`full_precision`."""
    return _outside[-1] if _outside else _settings()


def tf32(tensor: Tensor, convolution: bool = False) -> bool:
    """Whether the kernels multiply float32 factors like this one in tf32: where the model does so itself."""
    settings = model_settings()
    if not (tensor.is_cuda and tensor.dtype == torch.float32 and has_triton() and settings is not None):
        return False
    return settings[1] if convolution else settings[0] != "highest"


def narrow(tensor: Tensor) -> bool:
    """Whether the kernels multiply factors like this one as they are: on a GPU, in a type narrower than float32."""
    return tensor.is_cuda and tensor.dtype in _NARROW and has_triton()


def multiplies_convolutions(tensor: Tensor) -> bool:
    """Whether the kernels compute the weight gradients of convolutions like this one: on a GPU, up to float32."""
    return tensor.is_cuda and tensor.dtype in (*_NARROW, torch.float32) and has_triton()


def to_tf32(tensor: Tensor) -> Tensor:
    """The nearest numbers with ten bits of mantissa: what the tensor cores make of a float32, made once for all uses.

    >>> to_tf32(torch.tensor([1.0, 1 + 2**-12, float("inf")])).tolist()
    [1.0, 1.0, inf]
    """
    bits = tensor.view(torch.int32)
    rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(torch.isfinite(tensor), rounded, tensor)


@torch.library.custom_op("tacit::quick_product", mutates_args=())  # type: ignore[untyped-decorator]
def quick_product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """A product of matrices in tf32, whatever torch is set to, with a bias added."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@quick_product.register_fake  # type: ignore[untyped-decorator]
def _(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return left.new_empty((left.shape[0], right.shape[1]))


class QuickLinear(torch.autograd.Function):  # type: ignore[misc]
    """``F.linear`` of two dimensions in tf32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        found: Tensor = quick_product(x, weight.mT, bias)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        # In a traced step nobody reads the gradients of weight and bias, and they are left out of the program.
        return quick_product(grad, weight, None), grad.mT @ x, grad.sum(0) if ctx.needs_input_grad[2] else None


def _block(size: int, most: int = 128) -> int:
    return most if size > most // 2 else max(16, 1 << (size - 1).bit_length())


@torch.library.custom_op("tacit::gram_norms", mutates_args=())  # type: ignore[untyped-decorator]
def gram_norms(left: Tensor, right: Tensor) -> Tensor:
    """``sum (L Lᵀ) ∘ (R Rᵀ)`` per example, for (B, T, p) and (B, T, q), with the traces of both: (B, 3)."""
    if not left.is_cuda:
        one, two = (t.float() @ t.float().mT for t in (left, right))
        traces = [g.diagonal(dim1=1, dim2=2).sum(1) for g in (one, two)]
        return torch.stack([(one * two).sum((1, 2)), *traces], 1)
    batch, tokens, p = left.shape
    block, depth = _block(tokens), 128 if left.element_size() == 2 else 32
    tiles = -(-tokens // block)
    pairs = tiles * (tiles + 1) // 2
    out = torch.empty((batch, pairs, 3), dtype=torch.float32, device=left.device)
    _gram_kernel[(pairs, batch)](
        left, right, out, tokens, p, right.shape[2], *left.stride(), *right.stride(),
        TILES=tiles, BT=block, BK=depth, PRECISION="tf32", num_warps=8 if block == 128 else 4, num_stages=3,
    )  # fmt: skip
    return out.sum(1)


@gram_norms.register_fake  # type: ignore[untyped-decorator]
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((left.shape[0], 3), dtype=torch.float32)


def _tile(left: Tensor, p: int, q: int) -> dict[str, int]:
    """The shape of a tile of the product, and how it is computed."""
    bp, bq = _block(p), _block(q)
    depth = 64 if left.element_size() == 2 else 32
    return {"BP": bp, "BQ": bq, "BK": depth, "num_warps": 8 if bp * bq > 8192 else 4, "num_stages": 3}


@torch.library.custom_op("tacit::product_norms", mutates_args=())  # type: ignore[untyped-decorator]
def product_norms(left: Tensor, right: Tensor) -> Tensor:
    """``|L.T R|²`` per example, for (B, T, p) and (B, T, q)."""
    if not left.is_cuda:
        return (left.float().mT @ right.float()).square().sum((1, 2))
    (batch, tokens, p), q = left.shape, right.shape[2]
    options = _tile(left, p, q)
    tiles = -(-p // options["BP"]) * -(-q // options["BQ"])
    out = torch.empty((batch, tiles), dtype=torch.float32, device=left.device)
    _product_kernel[(tiles, batch)](
        left, right, out, tokens, p, q, *left.stride(), *right.stride(), PRECISION="tf32", **options
    )
    return out.sum(1)


@product_norms.register_fake  # type: ignore[untyped-decorator]
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((left.shape[0],), dtype=torch.float32)


@torch.library.custom_op("tacit::split_product", mutates_args=())  # type: ignore[untyped-decorator]
def split_product(high: Tensor, low: Tensor, right: Tensor) -> Tensor:
    """``high.T right + low.T right`` in float32, for (N, p) and (N, q) of one type; float32 ones hold tf32 numbers."""
    if not high.is_cuda:
        return (high.float() + low.float()).mT @ right.float()
    if high.dtype in _NARROW:
        total = torch.mm(high.mT, right, out_dtype=torch.float32)
        return total.add_(torch.mm(low.mT, right, out_dtype=torch.float32))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return torch.mm(high.mT, right).add_(torch.mm(low.mT, right))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@split_product.register_fake  # type: ignore[untyped-decorator]
def _(high: Tensor, low: Tensor, right: Tensor) -> Tensor:
    return high.new_empty((high.shape[1], right.shape[1]), dtype=torch.float32)


#: What the two parts of a scaled factor leave out, relative to it: two mantissas of eight bits, or of eleven.
SPLIT_ERROR = {torch.bfloat16: 2.0**-17, torch.float32: 2.0**-23}


def weighted_product(left: Tensor, right: Tensor, scale: Tensor) -> Tensor:
    """``sum_b scale_b L_b.T R_b`` in float32, for (B, T, p) and (B, T, q).

    The scaled factor is the sum of two numbers of the narrow type, so that rounding it does not change the gradient
    whose norm was bounded by more than :data:`SPLIT_ERROR`; each is one product on the tensor cores.
    """
    flip = right.shape[2] < left.shape[2]
    one, other = (right, left) if flip else (left, right)
    scaled = one.float() * scale.float()[:, None, None]
    if one.dtype == torch.float32:
        high = to_tf32(scaled)
        low = to_tf32(scaled - high)
    else:
        high = scaled.to(one.dtype)
        low = (scaled - high.float()).to(one.dtype)
    total: Tensor = split_product(high.flatten(0, 1), low.flatten(0, 1), other.flatten(0, 1))
    return total.mT if flip else total


@torch.library.custom_op("tacit::products", mutates_args=())  # type: ignore[untyped-decorator]
def products(left: Tensor, right: Tensor) -> Tensor:
    """``L_b.T R_b`` in float32, (B, p, q): for narrow factors that are larger than it."""
    if left.is_cuda and left.dtype in _NARROW:
        return torch.bmm(left.mT, right, out_dtype=torch.float32)
    with full_precision():
        return left.float().mT @ right.float()


@products.register_fake  # type: ignore[untyped-decorator]
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((left.shape[0], left.shape[2], right.shape[2]), dtype=torch.float32)


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
    bp, bq = _block(p, most), _block(q, most)
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
    _conv_kernel[(tiles, parts)](
        grad, x, factors, out, batch, tokens, p, q, width, per_part,
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
