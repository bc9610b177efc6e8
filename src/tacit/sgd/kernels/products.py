"""Norms and weighted sums of products of factors in reduced precision: Triton kernels, and the vendor's products.

For factors ``left`` (B, T, p) and ``right`` (B, T, q) of per-example gradients ``G_b = left_b.T @ right_b``:

* :func:`factor_norms`: ``|G_b|²`` in one of several ways, whichever is fastest (:mod:`tacit.sgd.kernels.autotune`): as
  ``sum (L Lᵀ) ∘ (R Rᵀ)``, from one half of the symmetric matrices, or as the square of the product itself; each tile by
  tile in a kernel, so that neither a T × T nor a p × q matrix reaches memory, or by batched products of the vendor's
  library, some examples at a time, where those matrices are no larger than the factors;
* :func:`weighted_product`: ``sum_b scale_b G_b``, where ``scale_b * left`` is kept as the sum of two narrow numbers:
  rounded to one, it would change the very gradient whose norm was bounded;
* :func:`token_sums`: the sum over tokens, for biases;
* :mod:`tacit.sgd.kernels.weighted` has that sum as one product, :mod:`tacit.sgd.kernels.convolutions` the same for 2-d
  convolutions.

bfloat16 factors are multiplied as they are: a product of two is exact in float32, and sums are made in float32. float32
factors are multiplied in tf32 only where the model's own products are, and are then rounded to tf32 once, so that norms
and sums are of the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.kernels import autotune
from tacit.sgd.kernels.grams import block, gram_parts, gram_tiles, grams, half, tile_name
from tacit.sgd.kernels.launch import as_operator, has_triton, interpreted, jit, launch, processors, tl


@jit
def _product_kernel(  # type: ignore[no-untyped-def]
    left, right, out, T, p, q,
    left_b, left_t, left_p, right_b, right_t, right_q,
    BP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The squared norm of one tile of one example's product."""
    across = tl.cdiv(q, BQ)
    tiles = tl.cdiv(p, BP) * across
    example = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    rows = tile // across * BP + tl.arange(0, BP)
    columns = tile % across * BQ + tl.arange(0, BQ)
    inner = tl.arange(0, BK)
    a = left + example * left_b + rows[:, None].to(tl.int64) * left_p + inner[None, :] * left_t
    b = right + example * right_b + columns[None, :].to(tl.int64) * right_q + inner[:, None] * right_t
    total = tl.zeros((BP, BQ), tl.float32)
    for k in range(0, T, BK):
        inside = inner < T - k
        x = tl.load(a, mask=(rows[:, None] < p) & inside[None, :], other=0.0)
        y = tl.load(b, mask=(columns[None, :] < q) & inside[:, None], other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION)
        a += BK * left_t
        b += BK * right_t
    tl.store(out + example * tiles + tile, tl.sum(total * total))


@jit
def _pair_kernel(  # type: ignore[no-untyped-def]
    one, two, out, rows, columns, place, places, T, p, q, BR: tl.constexpr, BC: tl.constexpr
):
    """The inner product of some rows of two Gram matrices of one example, and the lengths of the terms of these rows:
    their squares, and they, added up.

    The matrices (rows, columns) begin on the diagonal; what lies right of the square on it counts twice. Factors are
    (T, p) and (T, q): the norm gets what squares below the range of float32 may have taken from it.
    """
    parts = tl.cdiv(rows, BR)
    example = (tl.program_id(0) // parts).to(tl.int64)
    part = tl.program_id(0) % parts
    own = part * BR + tl.arange(0, BR)
    begin = example * rows * columns
    total = tl.zeros((BR, BC), tl.float32)
    first = tl.zeros((BR, BC), tl.float32)
    second = tl.zeros((BR, BC), tl.float32)
    for k in range(0, columns, BC):
        across = k + tl.arange(0, BC)
        inside = (own[:, None] < rows) & (across[None, :] < columns)
        spot = begin + own[:, None].to(tl.int64) * columns + across[None, :]
        a = tl.load(one + spot, mask=inside, other=0.0)
        b = tl.load(two + spot, mask=inside, other=0.0)
        total += a * b * tl.where(across[None, :] < rows, 1.0, 2.0)
        corner = own[:, None] == across[None, :]
        first += tl.where(corner, a, 0.0)
        second += tl.where(corner, b, 0.0)
    spot = out + (example * places + place + part) * 3
    ours = tl.sum(first, 1)
    theirs = tl.sum(second, 1)
    lost = (tl.sum(ours) * 7.888609052210118e-31) * (q * 1.0) + (tl.sum(theirs) * 7.888609052210118e-31) * (p * 1.0)
    tl.store(spot, tl.sum(total) + lost * (T * 1.7763568394002505e-15))
    lengths = tl.sqrt(ours) * tl.sqrt(theirs)
    tl.store(spot + 1, tl.sum(lengths * lengths))
    tl.store(spot + 2, tl.sum(lengths))


_NARROW = (torch.bfloat16,)  # float16 has too few exponents for the second part of a scaled factor


@jit
def _token_kernel(  # type: ignore[no-untyped-def]
    values, out, T, p, values_b, values_t, rows, BT: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """The sum of some rows of one example, for some columns."""
    across = tl.cdiv(p, BC)
    parts = tl.cdiv(T, rows)
    columns = tl.program_id(0) % across * BC + tl.arange(0, BC)
    part = tl.program_id(0) // across % parts
    example = (tl.program_id(0) // (across * parts)).to(tl.int64)
    total = tl.zeros((BT, BC), tl.float32)
    for k in range(0, rows, BT):
        own = part * rows + k + tl.arange(0, BT)
        spot = values + example * values_b + own[:, None].to(tl.int64) * values_t + columns[None, :]
        total += tl.load(spot, mask=(own[:, None] < T) & (columns[None, :] < p), other=0.0).to(tl.float32)
    spot = out + (example * parts + part) * p + columns
    tl.store(spot, tl.sum(total, 0), mask=columns < p)


#: The kinds of device on which the kernels multiply anything: of other tensors they need not be asked.
DEVICES = {"cuda"}

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
    :func:`tacit.sgd.gradients.contributions.roundoff` assumes the worst.
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


def tf32(tensor: Tensor, *, convolution: bool = False) -> bool:
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


@as_operator("tacit::quick_product")
def quick_product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """A product of matrices in tf32, whatever torch is set to, with a bias added."""
    with _tf32_allowed():
        return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)


@quick_product.register_fake
def _(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return left.new_empty((left.shape[0], right.shape[1]))


class QuickLinear(torch.autograd.Function):
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


def _on_chip(tensor: Tensor) -> bool:
    return tensor.is_cuda or interpreted()


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Batched products in float32, of narrow factors as they are, or of float32 ones that hold tf32 numbers."""
    if not left.is_cuda:
        with full_precision():
            return left.float() @ right.float()
    if left.dtype in _NARROW:
        return torch.bmm(left, right, out_dtype=torch.float32)
    with _tf32_allowed():
        return torch.bmm(left, right)


@contextmanager
def _tf32_allowed() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _gram(left: Tensor, right: Tensor, **tile: Any) -> Tensor:
    """By the kernel, half of the Gram matrices tile by tile."""
    out = gram_parts(left, 1, tile["side"])
    grams(left, [right], out, **tile)
    return out[0].sum(1)


def _gram_by_products(left: Tensor, right: Tensor, bands: int) -> Tensor:
    """By batched products: bands of rows of the Gram matrices, each from the diagonal on, some examples at a time."""
    (batch, tokens, p), q = left.shape, right.shape[2]
    height = -(-tokens // bands)
    chunk = max(1, _room(left, right) // (8 * height * tokens))
    found = []
    for k in range(0, batch, chunk):
        one, two = left[k : k + chunk], right[k : k + chunk]
        starts = range(0, tokens, height)
        # So many rows a program that the GPU is filled.
        places = [-(-min(height, tokens - i) // 16) for i in starts]
        out = torch.empty((len(one), sum(places), 3), dtype=torch.float32, device=left.device)
        place = 0
        for i, count in zip(starts, places, strict=True):
            first, second = (_products(t[:, i : i + height], t[:, i:].mT) for t in (one, two))
            rows, columns = first.shape[1:]
            if _on_chip(first):
                launch(
                    _pair_kernel, (count * len(one),), first, second, out, rows, columns, place, sum(places),
                    tokens, p, q, BR=16, BC=128, num_warps=4,
                )  # fmt: skip
            else:
                weight = torch.where(torch.arange(columns, device=first.device) < rows, 1.0, 2.0)
                ours, theirs = (g.diagonal(dim1=1, dim2=2) for g in (first, second))
                # And what squares below the range of the type may have taken from it, as in the kernels.
                least, unit = torch.finfo(ours.dtype).tiny, tokens * torch.finfo(ours.dtype).eps
                hidden = ours.sum(1) * least * (q * unit) + theirs.sum(1) * least * (p * unit)
                squared = (first * second * weight).sum((1, 2)) + hidden
                out[:, place : place + count] = 0
                out[:, place] = _told(squared, ours.sqrt() * theirs.sqrt())
            place += count
        found.append(out.sum(1))
    return found[0] if len(found) == 1 else torch.cat(found)


def _told(squared: Tensor, lengths: Tensor) -> Tensor:
    """What :func:`factor_norms` tells, from the squared norms and the lengths of the terms, (B, T)."""
    return torch.stack([squared, lengths.square().sum(1), lengths.sum(1)], 1)


def _with_lengths(squared: Tensor, left: Tensor, right: Tensor) -> Tensor:
    ours, theirs = (torch.linalg.vector_norm(t, dim=2, dtype=torch.float32) for t in (left, right))
    return _told(squared, ours * theirs)


def _product(left: Tensor, right: Tensor, rows: int, columns: int, depth: int, warps: int, stages: int) -> Tensor:
    """By the kernel, the per-example product tile by tile."""
    (batch, tokens, p), q = left.shape, right.shape[2]
    tiles = -(-p // rows) * -(-q // columns)
    out = torch.empty((batch, tiles), dtype=torch.float32, device=left.device)
    launch(
        _product_kernel, (tiles * batch,), left, right, out, tokens, p, q, *left.stride(), *right.stride(),
        BP=rows, BQ=columns, BK=depth, PRECISION="tf32", num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return _with_lengths(out.sum(1), left, right)


def _product_by_products(left: Tensor, right: Tensor) -> Tensor:
    """By batched products, some examples at a time."""
    (batch, _, p), q = left.shape, right.shape[2]
    chunk = max(1, _room(left, right) // (4 * p * q))
    squares = [
        torch.linalg.vector_norm(_products(left[k : k + chunk].mT, right[k : k + chunk]), dim=(1, 2)).square()
        for k in range(0, batch, chunk)
    ]
    return _with_lengths(squares[0] if len(squares) == 1 else torch.cat(squares), left, right)


def _room(left: Tensor, right: Tensor) -> int:
    """Bytes that norms may take beside the factors: no more than those, or a little."""
    return int(max(1 << 25, left.numel() * left.element_size() + right.numel() * right.element_size()))


#: Rows, columns and depth of a tile, warps and stages.
_PRODUCTS = {2: ((128, 128, 64, 8, 3), (128, 256, 64, 8, 3), (128, 128, 64, 4, 3)), 4: ((128, 128, 32, 8, 3),)}


def _operations(tokens: int, p: int, q: int) -> tuple[int, int]:
    """How many multiplications Gram matrices take, and the product of the factors."""
    side = block(tokens)
    return min(half(tokens, side) * side * side, tokens * tokens) * (p + q), tokens * p * q


def prefers_gram(tokens: int, p: int, q: int) -> bool:
    """Whether Gram matrices are the cheaper way to norms of (T, p) and (T, q).

    >>> prefers_gram(256, 768, 768), prefers_gram(2048, 768, 768)
    (True, False)
    """
    gram, product = _operations(tokens, p, q)
    return gram <= product


def norm_ways(left: Tensor, right: Tensor) -> dict[str, autotune.Way]:
    """The ways to compute norms of these factors, the likely best first.

    Ways that take several times as many operations as others, or more room than the factors, are not among them.
    """
    (batch, tokens, p), q = left.shape, right.shape[2]
    size, room = left.element_size(), _room(left, right)
    gram, product = _operations(tokens, p, q)
    worth = 2 * min(gram, product)
    grams: dict[str, autotune.Way] = {}
    plain: dict[str, autotune.Way] = {}
    if gram <= worth:
        for name, tile in gram_tiles(left, right).items():
            grams[f"gram {name}"] = partial(_gram, **tile)
        for bands in (1, 4) if tokens >= 1024 else (1,):
            if 8 * -(-tokens // bands) * tokens <= room:
                plain[f"gram by products in {bands}"] = partial(_gram_by_products, bands=bands)
    products: dict[str, autotune.Way] = {}
    if product <= worth:
        tiles_pq = [t for t in _PRODUCTS[size] if t[0] <= block(p) and t[1] <= max(block(q), q // 2)]
        small = (block(p), block(q), 64 if size == 2 else 32)
        tiles_pq = tiles_pq or [(*small, 8 if small[0] * small[1] > 8192 else 4, 3)]
        for t in tiles_pq:
            way = partial(_product, rows=t[0], columns=t[1], depth=t[2], warps=t[3], stages=t[4])
            products[tile_name("product ", *t)] = way
        if 4 * p * q <= room:
            plain["product by products"] = _product_by_products
    if not _on_chip(left):
        return plain or {"gram by products in 1": partial(_gram_by_products, bands=1)}
    # A kernel has one program for a tile of one example: too few of them leave a GPU idle.
    idle = half(tokens, block(tokens)) * batch < processors(left.device) and gram <= product
    ordered = {**grams, **products} if gram <= product else {**products, **grams}
    return {**plain, **ordered} if idle else {**ordered, **plain}


def cut_off(tokens: int, p: int, q: int) -> float:
    """How much tensor cores may cut off squared norms of factors of this size
    (:data:`tacit.sgd.kernels.autotune.CUT_OFF`).

    A Gram matrix adds up as many terms as the factors are wide, a product, which is squared, as there are tokens.
    """
    return float((2 * tokens + p + q) * autotune.CUT_OFF)


def norms_agree(found: Tensor, wanted: Tensor, cut: float) -> bool:
    """Whether two results are the same norms but for rounding, and for what tensor cores cut off."""
    return bool(torch.allclose(found, wanted, rtol=1e-4 + 2 * cut))


def agreement(left: Tensor, right: Tensor) -> autotune.Check:
    """What tells whether two results are the norms of factors like these."""
    return partial(norms_agree, cut=cut_off(left.shape[1], left.shape[2], right.shape[2]))


@as_operator("tacit::factor_norms")
def factor_norms(left: Tensor, right: Tensor) -> Tensor:
    """``|L_b.T R_b|²`` for each example of (B, T, p) and (B, T, q), and, of the lengths of its terms, ``|l_t| |r_t|``,
    the sum of squares and the sum: (B, 3) in float32.

    Guarantee: the rounding of float32 accumulation, in whichever way it is computed; narrow factors are not rounded.
    """
    if not autotune.chooses("norms", left):
        one, two = left.float(), right.float()
        return _with_lengths((one.mT @ two).square().sum((1, 2)), one, two)
    ways = norm_ways(left, right)
    plain = next((name for name in ways if "by products" in name), [*ways][-1])
    way = autotune.chooser().pick("norms", ways, plain, agreement(left, right), (left, right))
    norms: Tensor = ways[way](left, right)
    return norms


@factor_norms.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((left.shape[0], 3), dtype=torch.float32)


@as_operator("tacit::split_product")
def split_product(high: Tensor, low: Tensor, right: Tensor) -> Tensor:
    """``high.T right + low.T right`` in float32, for (N, p) and (N, q) of one type; float32 ones hold tf32 numbers."""
    if not high.is_cuda:
        return (high.float() + low.float()).mT @ right.float()
    if high.dtype in _NARROW:
        total = torch.mm(high.mT, right, out_dtype=torch.float32)
        return total.add_(torch.mm(low.mT, right, out_dtype=torch.float32))
    with _tf32_allowed():
        return torch.mm(high.mT, right).add_(torch.mm(low.mT, right))


@split_product.register_fake
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


@as_operator("tacit::products")
def products(left: Tensor, right: Tensor) -> Tensor:
    """``L_b.T R_b`` in float32, (B, p, q): for narrow factors that are larger than it."""
    if left.is_cuda and left.dtype in (*_NARROW, torch.float16):
        return torch.bmm(left.mT, right, out_dtype=torch.float32)
    with full_precision():
        return left.float().mT @ right.float()


@products.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((left.shape[0], left.shape[2], right.shape[2]), dtype=torch.float32)


def sums_tokens(tensor: Tensor) -> bool:
    """Whether :func:`token_sums` adds up the tokens of gradients like this one: on a GPU, of a narrow type."""
    return narrow(tensor)


@as_operator("tacit::token_sums")
def token_sums(values: Tensor) -> Tensor:
    """The sum over tokens of each example, (B, T, p) to (B, p) in float32: gradients of biases.

    The compiler would compute the gradient of an activation and this sum in one loop, which is slower than two where
    examples are few: it runs along the tokens. Each part is added up in the same order always.
    """
    if not _on_chip(values):
        return values.float().sum(1)
    values = values if values.stride(2) == 1 else values.contiguous()
    (batch, tokens, p), height, width = values.shape, 32, 128
    across = -(-p // width)
    # So many programs that they keep the memory busy.
    parts = max(1, min(-(-tokens // (4 * height)), -(-4 * processors(values.device) // (across * batch))))
    rows = -(-tokens // (parts * height)) * height
    parts = -(-tokens // rows)
    out = torch.empty((batch, parts, p), dtype=torch.float32, device=values.device)
    launch(
        _token_kernel, (across * parts * batch,), values, out, tokens, p, values.stride(0), values.stride(1), rows,
        BT=height, BC=width, num_warps=4,
    )  # fmt: skip
    return out.view(batch, p) if parts == 1 else out.sum(1)


@token_sums.register_fake
def _(values: Tensor) -> Tensor:
    return values.new_empty((values.shape[0], values.shape[2]), dtype=torch.float32)
