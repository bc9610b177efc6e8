"""The sum of scaled products ``sum_b scale_b L_b.T R_b`` at the price of one plain product: a Triton kernel.

``L`` (B, T, p) and ``R`` (B, T, q) are bfloat16. Scaling a factor first would round it, and the rounded factor has
another gradient than the one whose norm was bounded. Here nothing is rounded: the accumulator, float32, is kept in
units of the factor of the example at hand, and is multiplied by the ratio of two factors where the next example begins.

Programs, as many as the GPU runs at once, compute whole tiles of the result side by side; the last tiles, too few for
all, are dealt out evenly as pairs of a tile and an example, and put together afterwards, always in the same order, so
that a run can be repeated bit by bit. How tiles are shaped and fetched is measured (:mod:`tacit.sgd.kernels.autotune`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.kernels import autotune, products
from tacit.sgd.kernels.launch import (
    as_operator,
    described,
    fetchable,
    has_triton,
    interpreted,
    jit,
    launch,
    processors,
    tl,
)

#: Factors below this, relative to the largest, are left to the uncompiled step: ratios must stay inside float32.
LEAST = 1e-12


@jit(do_not_specialize=["alone"])  # type: ignore[untyped-decorator, unused-ignore]
def _sum_kernel(  # type: ignore[no-untyped-def]
    left, right, scale, out, work, B, T, p, q, blocks, alone,
    left_b, left_t, right_b, right_t,
    FETCH: tl.constexpr, BP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Whole tiles go to ``out``, this program's parts of shared tiles to its two places of ``work``.

    ``alone`` is how many tiles are computed whole; the others are shared. Channels are adjacent in memory; ``blocks``
    is how many blocks of BK an example's tokens are. Examples whose factor is zero must be zero themselves. FETCH: the
    factors are descriptors of blocks, which the copy engine reads.
    """
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    down = tl.cdiv(p, BP)
    across = tl.cdiv(q, BQ)
    shared = (program - program + down * across - alone) * B  # 64 bits
    unit = program * shared // programs
    stop = (program + 1) * shared // programs
    place = program * 2
    wave = 0
    while (wave * programs + program < alone) | (unit < stop):
        whole = wave * programs + program < alone
        tile = tl.where(whole, wave * programs + program, alone + unit // B).to(tl.int32)
        first = tl.where(whole, 0, unit % B).to(tl.int32)
        count = tl.where(whole, B, tl.minimum(B - unit % B, stop - unit)).to(tl.int32)
        # Tiles that run side by side lie in few columns, or few rows, whichever are the longer: they read the same.
        row = tl.where(down <= across, tile % down, tile // across) * BP
        column = tl.where(down <= across, tile // down, tile % across) * BQ
        rows = row + tl.arange(0, BP)
        columns = column + tl.arange(0, BQ)
        total_PQ = tl.zeros((BP, BQ), tl.float32)
        for k in range(first * blocks, (first + count) * blocks):
            example = k // blocks
            t = (k - example * blocks) * BK
            if FETCH:
                x = left.load([example, t, row]).reshape(BK, BP)
                y = right.load([example, t, column]).reshape(BK, BQ)
            else:
                own = t + tl.arange(0, BK)
                far = tl.arange(0, BK)[:, None]
                a = left + example.to(tl.int64) * left_b + t.to(tl.int64) * left_t + far * left_t + rows[None, :]
                b = right + example.to(tl.int64) * right_b + t.to(tl.int64) * right_t + far * right_t + columns[None, :]
                x = tl.load(a, mask=(rows[None, :] < p) & (own[:, None] < T), other=0.0)
                y = tl.load(b, mask=(columns[None, :] < q) & (own[:, None] < T), other=0.0)
            total_PQ = tl.dot(tl.trans(x), y, total_PQ)
            # Behind the product, not before it: the tensor cores then wait only where an example ends.
            if k - example * blocks == blocks - 1:
                following = tl.load(scale + example + 1, mask=example + 1 < first + count, other=1.0)
                total_PQ = total_PQ * (tl.load(scale + example) / following)
        if count == B:
            spot = out + rows[:, None].to(tl.int64) * q + columns[None, :]
            tl.store(spot, total_PQ, mask=(rows[:, None] < p) & (columns[None, :] < q))
        else:
            spot = work + place * (BP * BQ) + tl.arange(0, BP)[:, None] * BQ + tl.arange(0, BQ)[None, :]
            tl.store(spot, total_PQ)
            place += 1
        unit += tl.where(whole, 0, count)
        wave += 1


@jit
def _join_kernel(  # type: ignore[no-untyped-def]
    out, work, B, p, q, programs, BP: tl.constexpr, BQ: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Some rows of a tile that several programs share: the sum of their parts, in the order of the programs.

    There is one such tile for each place where one program stops inside a tile and the next goes on, or fewer.
    """
    program = tl.program_id(0).to(tl.int64)
    down = tl.cdiv(p, BP)
    across = tl.cdiv(q, BQ)
    alone = down * across // programs
    shared = (program - program + down * across - alone * programs) * B  # 64 bits
    begins = (program + 1) * shared // programs
    begin = begins // B * B
    end = begin + B
    if (begins > begin) & (program * shared // programs <= begin):  # the first such place in this tile
        tile = alone * programs + begins // B
        own = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        rows = tl.where(down <= across, tile % down, tile // across) * BP + own
        columns = tl.where(down <= across, tile // down, tile % across) * BQ + tl.arange(0, BQ)
        total_RQ = tl.zeros((ROWS, BQ), tl.float32)
        while program * shared // programs < end:
            start = program * shared // programs
            # Where there are fewer pairs than programs some have none, and have left nothing in their places.
            idle = (program + 1) * shared // programs == start
            # A program's first part is in its first place; a tile it only begins comes second if it had a part before.
            had = (start < begin) & (start % B != 0)
            place = program * 2 + had.to(tl.int64)
            spot = work + place * (BP * BQ) + own[:, None] * BQ + tl.arange(0, BQ)[None, :]
            total_RQ += tl.load(spot, mask=(own[:, None] >= 0) & (idle == 0), other=0.0)
            program += 1
        spot = out + rows[:, None] * q + columns[None, :]
        tl.store(spot, total_RQ, mask=(rows[:, None] < p) & (columns[None, :] < q))


#: Rows, columns and depth of a tile, warps, stages, programs on a processor; the second where blocks of 64 tokens would
#: leave more than a tenth of the last one empty. The first of each is what is taken where nothing is measured.
EVEN = ((128, 128, 64, 4, 3, 2), (128, 256, 64, 8, 3, 1), (128, 256, 64, 8, 4, 1), (256, 128, 64, 8, 3, 1))
UNEVEN = ((128, 128, 32, 4, 5, 2), (128, 256, 32, 8, 5, 1), (128, 128, 32, 8, 5, 2), (256, 128, 32, 8, 5, 1))


def fits(left: Tensor, right: Tensor) -> bool:
    """Whether the kernel multiplies factors like these: on a GPU, in bfloat16, in whole lines of memory."""
    (_, tokens, p), q = left.shape, right.shape[2]
    narrow = left.dtype == torch.bfloat16 and right.dtype == torch.bfloat16
    # Widths below a tile, or tokens below a block, would be filled up with zeros.
    filled = min(p, q) >= 64 and p % 16 == 0 and q % 16 == 0 and -(-tokens // 32) * 32 <= 1.3 * tokens
    return autotune.chooses("sum", left) and narrow and has_triton() and filled


def _dealt(left: Tensor, right: Tensor, tile: tuple[int, ...], *, whole: bool) -> tuple[int, int, int]:
    """How many tiles there are, programs that compute them, and tiles that one program computes alone."""
    tiles = -(-left.shape[2] // tile[0]) * -(-right.shape[2] // tile[1])
    programs = min(processors(left.device) * tile[5], tiles if whole else tiles * len(left))
    return tiles, programs, tiles if whole else tiles // programs * programs


def parts(left: Tensor, right: Tensor, tile: tuple[int, ...], *, fetch: bool, whole: bool = False) -> int:
    """Bytes that :func:`prepared` keeps for parts of tiles."""
    tiles, programs, alone = _dealt(left, right, tile, whole=whole)
    return 8 * programs * tile[0] * tile[1] if alone < tiles else 0


def prepared(
    left: Tensor, right: Tensor, scale: Tensor, tile: tuple[int, ...], *, fetch: bool, whole: bool = False
) -> tuple[Tensor, Callable[[], None]]:
    """Room for the sum by the kernels, and what launches them: that allocates nothing.

    ``tile`` as in :data:`EVEN`, ``fetch`` by the copy engine, ``whole`` shares no tile.
    """
    (batch, tokens, p), q = left.shape, right.shape[2]
    bp, bq, bk, warps, stages, _ = tile
    tiles, programs, alone = _dealt(left, right, tile, whole=whole)
    out = torch.empty((p, q), dtype=torch.float32, device=left.device)
    room = (programs, 2, bp, bq) if alone < tiles else (0,)
    work = torch.empty(room, dtype=torch.float32, device=left.device)
    pair = (described(left, (1, bk, bp)), described(right, (1, bk, bq))) if fetch else (left, right)

    def run() -> None:
        launch(
            _sum_kernel, (programs,), *pair, scale, out, work, batch, tokens, p, q, -(-tokens // bk), alone,
            left.stride(0), left.stride(1), right.stride(0), right.stride(1),
            FETCH=fetch, BP=bp, BQ=bq, BK=bk, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        if alone < tiles and programs > 1:
            launch(
                _join_kernel, (programs - 1, bp // 32), out, work, batch, p, q, programs,
                BP=bp, BQ=bq, ROWS=32, num_warps=4,
            )  # fmt: skip

    return out, run


def by_kernel(left: Tensor, right: Tensor, scale: Tensor, **how: Any) -> Tensor:
    """The sum by the kernels, as :func:`prepared` says."""
    out, run = prepared(left, right, scale, **how)
    run()
    return out


def _nearly_even(left: Tensor, right: Tensor, tile: tuple[int, ...]) -> bool:
    """Whether whole tiles keep the programs busy to three quarters: then sharing the last ones may not pay."""
    tiles = -(-left.shape[2] // tile[0]) * -(-right.shape[2] // tile[1])
    programs = processors(left.device) * tile[5]
    waves = -(-tiles // programs)
    return bool(tiles % programs and 4 * tiles >= 3 * waves * programs)


def sum_ways(left: Tensor, right: Tensor) -> dict[str, autotune.Way]:
    """The ways to compute the sum: tiles of several shapes, read by addresses or by the copy engine; two products."""
    tokens = left.shape[1]
    tiles = UNEVEN if -(-tokens // 64) * 64 > 1.1 * tokens else EVEN
    ways: dict[str, autotune.Way] = {}
    if has_triton() and (left.is_cuda or interpreted()):
        for fetch in (False, True) if fetchable(left, right) else (False,):
            for tile in tiles if fetch else tiles[:2]:
                name = f"{'fetched' if fetch else 'read'} {'x'.join(map(str, tile[:3]))}, {tile[3]} warps, "
                name += f"{tile[4]} stages, {tile[5]} each"
                ways[name] = partial(by_kernel, tile=tile, fetch=fetch)
                if fetch and _nearly_even(left, right, tile):
                    ways[f"{name}, whole"] = partial(by_kernel, tile=tile, fetch=fetch, whole=True)
    ways["two products"] = products.weighted_product
    return ways


def _sums_agree(found: Tensor, wanted: Tensor, terms: int) -> bool:
    """Whether two sums of so many terms are the same but for rounding, as a whole and element by element."""
    tolerance = 3e-5 + 2 * terms * autotune.CUT_OFF  # two products are exact to 2^-17
    error, size = found - wanted, wanted.norm()
    usual = size / max(1, wanted.numel()) ** 0.5
    return bool((error.norm() <= tolerance * size) & (error.abs() <= 10 * tolerance * (wanted.abs() + usual)).all())


def agreement(left: Tensor) -> autotune.Check:
    """What tells whether two sums of factors like this one are the same."""
    return partial(_sums_agree, terms=left.shape[0] * left.shape[1])


@as_operator("tacit::scaled_sum")
def scaled_sum(left: Tensor, right: Tensor, scale: Tensor) -> Tensor:
    """``sum_b scale_b L_b.T R_b`` in float32, for (B, T, p) and (B, T, q); factors are positive.

    An example that is to add nothing must be zero: its factor is then any positive number.
    """
    if not autotune.chooses("sum", left):
        return torch.einsum("btp,btq->pq", left.float() * scale.float()[:, None, None], right.float())
    way, given = chosen(left, right, scale)
    total: Tensor = way(*given).contiguous()
    return total


def chosen(left: Tensor, right: Tensor, scale: Tensor) -> tuple[autotune.Way, tuple[Tensor, Tensor, Tensor]]:
    """The way to take for these, and what to give to it."""
    left, right = (t if t.stride(2) == 1 else t.contiguous() for t in (left, right))
    given = left, right, scale.float().contiguous()
    ways = sum_ways(left, right)
    return ways[autotune.chooser().pick("sum", ways, "two products", agreement(left), given)], given


@scaled_sum.register_fake
def _(left: Tensor, right: Tensor, scale: Tensor) -> Tensor:
    return left.new_empty((left.shape[2], right.shape[2]), dtype=torch.float32)
