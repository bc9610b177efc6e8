"""How are Gram matrices compared tile by tile, so that none reaches memory? A Triton kernel.

``|L.T R|² = sum (L Lᵀ) ∘ (R Rᵀ)`` over pairs of tokens: a program has one tile of both matrices, on or
above the diagonal, and adds up their products on the chip. Factors multiplied with the same one share its tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.kernels.launch import described, fetchable, jit, launch, tl


@jit
def _gram_tile(  # type: ignore[no-untyped-def]
    base, example, row, column, T, width, stride_b, stride_t, stride_c, same,
    FETCH: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of a Gram matrix; on the diagonal both factors are the same numbers, read once.

    FETCH: the factor is a descriptor of blocks, which the copy engine reads.
    """
    found = tl.zeros((BT, BT), tl.float32)
    if FETCH:
        if same:
            for k in range(0, width, BK):
                x = base.load([example, row, k]).reshape(BT, BK)
                found = tl.dot(x, tl.trans(x), found)
        else:
            for k in range(0, width, BK):
                x = base.load([example, row, k]).reshape(BT, BK)
                y = base.load([example, column, k]).reshape(BT, BK)
                found = tl.dot(x, tl.trans(y), found)
    else:
        rows = row + tl.arange(0, BT)
        columns = column + tl.arange(0, BT)
        inner = tl.arange(0, BK)
        start = base + example.to(tl.int64) * stride_b
        spot = tl.arange(0, BT)[:, None] * stride_t + inner[None, :] * stride_c
        a = start + row.to(tl.int64) * stride_t + spot
        if same:
            for k in range(0, width, BK):
                x = tl.load(a, mask=(rows[:, None] < T) & (inner[None, :] < width - k), other=0.0)
                found = tl.dot(x, tl.trans(x), found, input_precision=PRECISION)
                a += BK * stride_c
        else:
            b = start + column.to(tl.int64) * stride_t + spot
            for k in range(0, width, BK):
                x = tl.load(a, mask=(rows[:, None] < T) & (inner[None, :] < width - k), other=0.0)
                y = tl.load(b, mask=(columns[:, None] < T) & (inner[None, :] < width - k), other=0.0)
                found = tl.dot(x, tl.trans(y), found, input_precision=PRECISION)
                a += BK * stride_c
                b += BK * stride_c
    return found


@jit
def _gram_note(place, first, second, twice, T, p, q, BT: tl.constexpr):  # type: ignore[no-untyped-def]
    """What one tile of two Gram matrices adds to the squared norm and, on the diagonal, to the lengths of the terms: to
    their squares, and to themselves. The norm gets what squares below the range of float32 may have taken from it."""
    total = tl.sum(first * second)
    if twice:
        tl.store(place, 2 * total)
        tl.store(place + 1, 0.0)
        tl.store(place + 2, 0.0)
    else:
        corner = tl.arange(0, BT)[:, None] == tl.arange(0, BT)[None, :]
        ours = tl.sum(tl.where(corner, first, 0.0), 1)
        theirs = tl.sum(tl.where(corner, second, 0.0), 1)
        # 2^-149 in two steps, neither of which is out of range itself.
        lost = (tl.sum(ours) * 7.888609052210118e-31) * (q * 1.0) + (tl.sum(theirs) * 7.888609052210118e-31) * (p * 1.0)
        tl.store(place, total + lost * (T * 1.7763568394002505e-15))
        lengths = tl.sqrt(ours) * tl.sqrt(theirs)
        tl.store(place + 1, tl.sum(lengths * lengths))
        tl.store(place + 2, tl.sum(lengths))


# A single tile as a constant crashes the compiler of Triton 3.6.
@jit(do_not_specialize=["tiles"])  # type: ignore[untyped-decorator, unused-ignore]
def _gram_kernel(  # type: ignore[no-untyped-def]
    left, one, two, three, out, T, p, q1, q2, q3,
    left_b, left_t, left_p, one_b, one_t, one_q, two_b, two_t, two_q, three_b, three_t, three_q, tiles,
    COUNT: tl.constexpr, FETCH: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of the Gram matrices of one example, on or above the diagonal: of the left factor, and of those that
    it is multiplied with, COUNT of them."""
    pairs = tiles * (tiles + 1) // 2
    example = tl.program_id(0) // pairs
    pair = tl.program_id(0) % pairs
    # The pair (i, j), i <= j, with this number.
    i = 0
    rest = pair
    while rest >= tiles - i:
        rest -= tiles - i
        i += 1
    row = i * BT
    column = (i + rest) * BT
    same = rest == 0
    first = _gram_tile(left, example, row, column, T, p, left_b, left_t, left_p, same, FETCH, BT, BK, PRECISION)
    place = out + tl.program_id(0).to(tl.int64) * 3
    further = tl.num_programs(0).to(tl.int64) * 3
    second = _gram_tile(one, example, row, column, T, q1, one_b, one_t, one_q, same, FETCH, BT, BK, PRECISION)
    _gram_note(place, first, second, rest > 0, T, p, q1, BT)
    if COUNT > 1:
        second = _gram_tile(two, example, row, column, T, q2, two_b, two_t, two_q, same, FETCH, BT, BK, PRECISION)
        _gram_note(place + further, first, second, rest > 0, T, p, q2, BT)
    if COUNT > 2:
        second = _gram_tile(
            three, example, row, column, T, q3, three_b, three_t, three_q, same, FETCH, BT, BK, PRECISION
        )
        _gram_note(place + 2 * further, first, second, rest > 0, T, p, q3, BT)


def block(size: int, most: int = 128) -> int:
    """The side of a tile for so many rows."""
    return most if size > most // 2 else max(16, 1 << (size - 1).bit_length())


def half(tokens: int, side: int) -> int:
    """Tiles of a symmetric matrix on or above the diagonal."""
    return -(-tokens // side) * (-(-tokens // side) + 1) // 2


def tile_name(what: str, *tile: int) -> str:
    """How a choice of tile is called in a record.

    >>> tile_name("gram ", 128, 64, 8, 3)
    'gram 128x64, 8 warps, 3 stages'
    """
    return f"{what}{'x'.join(map(str, tile[:-2]))}, {tile[-2]} warps, {tile[-1]} stages"


#: Factors that one program multiplies with its tile of another.
TOGETHER = 3


def gram_parts(left: Tensor, rights: int, side: int) -> Tensor:
    """Room for what :func:`grams` tells: (rights, B, tiles, 3)."""
    batch, tokens, _ = left.shape
    return torch.empty((rights, batch, half(tokens, side), 3), dtype=torch.float32, device=left.device)


def grams(
    left: Tensor,
    rights: Sequence[Tensor],
    out: Tensor,
    *,
    side: int,
    depth: int,
    warps: int,
    stages: int,
    fetch: bool = False,
) -> None:
    """What each tile of Gram matrices adds to norms and lengths, for factors that are all multiplied with one.

    ``fetch`` by the copy engine. Allocates nothing.
    """
    batch, tokens, p = left.shape
    for k in range(0, len(rights), TOGETHER):
        some = rights[k : k + TOGETHER]
        filled = [*some, *[some[0]] * (TOGETHER - len(some))]
        factors = [described(t, (1, side, depth)) if fetch else t for t in (left, *filled)]
        launch(
            _gram_kernel, (out.shape[2] * batch,), *factors, out[k:], tokens, p, *(t.shape[2] for t in filled),
            *left.stride(), *(n for t in filled for n in t.stride()), -(-tokens // side), COUNT=len(some), FETCH=fetch,
            BT=side, BK=depth, PRECISION="tf32", num_warps=warps, num_stages=stages,
        )  # fmt: skip


#: Side and depth of a tile, warps and stages, for many tokens, read by addresses and by the copy engine.
READ = {2: ((128, 128, 8, 3), (64, 64, 4, 3)), 4: ((128, 32, 8, 3), (64, 32, 4, 3))}
FETCHED = ((128, 64, 8, 4), (128, 64, 8, 3), (64, 64, 4, 4))


def gram_tiles(*factors: Tensor) -> dict[str, dict[str, Any]]:
    """The tiles of Gram matrices worth trying for factors of one type and length, the likely best first."""
    tokens, size = factors[0].shape[1], factors[0].element_size()
    side = block(tokens)
    read = READ[size] if tokens > 64 else ((side, 128 if size == 2 else 32, 4, 3), (side, 64 // (size // 2), 4, 3))
    ways = [(tile_name("", *tile), tile, False) for tile in read]
    if tokens > 64 and size == 2 and fetchable(*factors):
        ways += [(tile_name("fetched ", *tile), tile, True) for tile in FETCHED]
    return {
        name: {"side": t[0], "depth": t[1], "warps": t[2], "stages": t[3], "fetch": fetch} for name, t, fetch in ways
    }
