"""The sum of scaled products ``sum_b scale_b L_b.T R_b`` at the price of one plain product: a Triton kernel.

``L`` (B, T, p) and ``R`` (B, T, q) are bfloat16. Scaling a factor first would round it, and the rounded factor has
another gradient than the one whose norm was bounded. Here nothing is rounded: the accumulator, float32, is kept in
units of the factor of the example at hand, and is multiplied by the ratio of two factors where the next example begins.

The work (tile of the result, example) is dealt out evenly to as many programs as the GPU runs at once, in order; a tile
that two or more of them share is put together afterwards, always in the same order, so that a run can be repeated bit
by bit.
"""

from __future__ import annotations

import functools
import importlib.util
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

#: Factors below this, relative to the largest, are left to the uncompiled step: ratios must stay inside float32.
LEAST = 1e-12


@_jit
def _sum_kernel(  # type: ignore[no-untyped-def]
    left, right, scale, out, work, B, T, p, q, tiles,
    left_b, left_t, right_b, right_t,
    KT: tl.constexpr, EVEN: tl.constexpr, BP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A share of all (tile, example) pairs. Whole tiles go to ``out``, parts of tiles to one of two places of ``work``.

    Channels are adjacent in memory. Examples whose factor is zero must be zero themselves.
    """
    program = tl.program_id(0).to(tl.int64)
    total = (program - program + tiles) * B  # 64 bits
    unit = program * total // tl.num_programs(0)
    stop = (program + 1) * total // tl.num_programs(0)
    across = tl.cdiv(q, BQ)
    inner = tl.arange(0, BK)
    place = program * 2
    while unit < stop:
        tile = (unit // B).to(tl.int32)
        first = (unit % B).to(tl.int32)
        count = tl.minimum(B - first, stop - unit).to(tl.int32)
        rows = tile // across * BP + tl.arange(0, BP)
        columns = tile % across * BQ + tl.arange(0, BQ)
        total_PQ = tl.zeros((BP, BQ), tl.float32)
        for k in range(first * KT, (first + count) * KT):
            example = k // KT
            t = k % KT * BK + inner
            a = left + example.to(tl.int64) * left_b + t[:, None] * left_t + rows[None, :]
            b = right + example.to(tl.int64) * right_b + t[:, None] * right_t + columns[None, :]
            if EVEN:
                x = tl.load(a, mask=rows[None, :] < p, other=0.0)
                y = tl.load(b, mask=columns[None, :] < q, other=0.0)
            else:
                x = tl.load(a, mask=(rows[None, :] < p) & (t[:, None] < T), other=0.0)
                y = tl.load(b, mask=(columns[None, :] < q) & (t[:, None] < T), other=0.0)
            if (k % KT == 0) & (example > first):
                total_PQ = total_PQ * (tl.load(scale + example - 1) / tl.load(scale + example))
            total_PQ = tl.dot(tl.trans(x), y, total_PQ)
        total_PQ = total_PQ * tl.load(scale + first + count - 1)
        if count == B:
            spot = out + rows[:, None].to(tl.int64) * q + columns[None, :]
            tl.store(spot, total_PQ, mask=(rows[:, None] < p) & (columns[None, :] < q))
        else:
            spot = work + place * (BP * BQ) + tl.arange(0, BP)[:, None] * BQ + tl.arange(0, BQ)[None, :]
            tl.store(spot, total_PQ)
            place += 1
        unit += count


@_jit
def _join_kernel(  # type: ignore[no-untyped-def]
    out, work, B, p, q, tiles, programs, BP: tl.constexpr, BQ: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Some rows of a tile that several programs share: the sum of their parts, in the order of the programs.

    There is one such tile for each place where one program stops inside a tile and the next goes on, or fewer.
    """
    program = tl.program_id(0).to(tl.int64)
    total = (program - program + tiles) * B  # 64 bits
    begins = (program + 1) * total // programs
    tile = begins // B
    begin = tile * B
    end = begin + B
    if (begins > begin) & (program * total // programs <= begin):  # the first such place in this tile
        across = tl.cdiv(q, BQ)
        own = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        rows = tile // across * BP + own
        columns = tile % across * BQ + tl.arange(0, BQ)
        total_RQ = tl.zeros((ROWS, BQ), tl.float32)
        while program * total // programs < end:
            start = program * total // programs
            # A program's first part is in its first place; a tile it only begins comes second if it had a part before.
            had = (start < begin) & (start % B != 0)
            place = program * 2 + had.to(tl.int64)
            spot = work + place * (BP * BQ) + own[:, None] * BQ + tl.arange(0, BQ)[None, :]
            total_RQ += tl.load(spot)
            program += 1
        spot = out + rows[:, None] * q + columns[None, :]
        tl.store(spot, total_RQ, mask=(rows[:, None] < p) & (columns[None, :] < q))


#: Rows, columns and depth of a tile, warps, stages, programs on a processor; the second where blocks of 64 tokens would
#: leave more than a tenth of the last one empty. Measured on an H200.
EVEN = {"BP": 128, "BQ": 128, "BK": 64, "num_warps": 4, "num_stages": 3, "per_processor": 2}
UNEVEN = {"BP": 128, "BQ": 128, "BK": 32, "num_warps": 4, "num_stages": 5, "per_processor": 2}


@functools.cache
def processors(device: torch.device) -> int:
    """How many multiprocessors a GPU has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def has_triton() -> bool:
    """Whether the kernel can be compiled here."""
    return importlib.util.find_spec("triton") is not None


def fits(left: Tensor, right: Tensor) -> bool:
    """Whether the kernel multiplies factors like these: on a GPU, in bfloat16, in whole lines of memory."""
    (_, tokens, p), q = left.shape, right.shape[2]
    narrow = left.dtype == torch.bfloat16 and right.dtype == torch.bfloat16
    # Widths below a tile, or tokens below a block, would be filled up with zeros.
    filled = min(p, q) >= 64 and p % 16 == 0 and q % 16 == 0 and -(-tokens // 32) * 32 <= 1.3 * tokens
    return left.is_cuda and narrow and has_triton() and filled


def launch(left: Tensor, right: Tensor, scale: Tensor, programs: int, **options: int) -> Tensor:
    """Run the kernels with ``programs`` programs; ``options`` are the shape of a tile and how it is computed."""
    (batch, tokens, p), q = left.shape, right.shape[2]
    bp, bq, bk = (options[k] for k in ("BP", "BQ", "BK"))
    tiles = -(-p // bp) * -(-q // bq)
    programs = min(programs, tiles * batch)
    out = torch.empty((p, q), dtype=torch.float32, device=left.device)
    work = torch.empty((programs, 2, bp, bq), dtype=torch.float32, device=left.device)
    _sum_kernel[(programs,)](
        left, right, scale, out, work, batch, tokens, p, q, tiles,
        left.stride(0), left.stride(1), right.stride(0), right.stride(1),
        KT=-(-tokens // bk), EVEN=tokens % bk == 0, **options,
    )  # fmt: skip
    if programs > 1:
        _join_kernel[(programs - 1, bp // 32)](out, work, batch, p, q, tiles, programs, BP=bp, BQ=bq, ROWS=32)
    return out


@torch.library.custom_op("tacit::scaled_sum", mutates_args=())  # type: ignore[untyped-decorator]
def scaled_sum(left: Tensor, right: Tensor, scale: Tensor) -> Tensor:
    """``sum_b scale_b L_b.T R_b`` in float32, for (B, T, p) and (B, T, q); factors are positive.

    An example that is to add nothing must be zero: its factor is then any positive number.
    """
    if not left.is_cuda:
        return torch.einsum("btp,btq->pq", left.float() * scale.float()[:, None, None], right.float())
    left, right = (t if t.stride(2) == 1 else t.contiguous() for t in (left, right))
    tokens = left.shape[1]
    options = dict(UNEVEN if -(-tokens // 64) * 64 > 1.1 * tokens else EVEN)
    programs = processors(left.device) * options.pop("per_processor")
    return launch(left, right, scale.float().contiguous(), programs, **options)


@scaled_sum.register_fake  # type: ignore[untyped-decorator]
def _(left: Tensor, right: Tensor, scale: Tensor) -> Tensor:
    return left.new_empty((left.shape[2], right.shape[2]), dtype=torch.float32)
