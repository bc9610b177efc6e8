"""How does a GPU draw tensor noise? The stream of ``stream.py`` as one Triton kernel.

The kernel does the same integer operations and the same binary32 additions, multiplications and square roots, each
rounded on its own: fused multiply-add is switched off at launch (``enable_fp_fusion=False``) and the square root is the
correctly rounded one, so GPU and CPU give the same bits. Key words are passed as signed 32-bit scalars that are never
specialised on: Triton would otherwise compile (and keep on disk) one kernel per special value of a secret.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from tacit.noise import stream

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # the module can then be imported (by documentation and test tools) but not used

    def _jit(function: Any = None, **_: Any) -> Any:
        return function if function is not None else _jit

    _constant: Any = float
else:
    _jit, _constant = triton.jit, tl.constexpr
    _ELEMENT = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}

if TYPE_CHECKING:
    from tacit.noise.stream import Words

_BLOCKS = 256  # ChaCha blocks per program, one per thread with 8 warps: 4,096 elements
_WARPS = 8

# Triton bakes module constants of this type into the kernel.
C0, C1, C2, C3, C4, C5, C6, C7, C8 = (_constant(c) for c in stream.LOG)
S0, S1, S2, S3 = (_constant(c) for c in stream.SINE)
D0, D1, D2, D3 = (_constant(c) for c in stream.COSINE)
TWO_LOG_TWO = _constant(stream.TWO_LOG_TWO)


@_jit
def _rotate(x, left: tl.constexpr):  # type: ignore[no-untyped-def]
    return (x << left) | (x >> (32 - left))


@_jit
def _quarter(a, b, c, d):  # type: ignore[no-untyped-def]
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@_jit
def _chacha(low, high, nonce, k0, k1, k2, k3, k4, k5, k6, k7, ROUNDS: tl.constexpr):  # type: ignore[no-untyped-def]
    zero = low ^ low
    x0 = zero + 0x61707865
    x1 = zero + 0x3320646E
    x2 = zero + 0x79622D32
    x3 = zero + 0x6B206574
    x4 = zero + k0
    x5 = zero + k1
    x6 = zero + k2
    x7 = zero + k3
    x8 = zero + k4
    x9 = zero + k5
    x10 = zero + k6
    x11 = zero + k7
    x12 = low
    x13 = high
    x14 = zero + nonce
    x15 = zero
    # A loop: written out, the compiler takes half a minute for them (38 s instead of 2 s on one core, Triton 3.6).
    for _ in range(ROUNDS // 2):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    return (
        x0 + 0x61707865,
        x1 + 0x3320646E,
        x2 + 0x79622D32,
        x3 + 0x6B206574,
        x4 + k0,
        x5 + k1,
        x6 + k2,
        x7 + k3,
        x8 + k4,
        x9 + k5,
        x10 + k6,
        x11 + k7,
        x12 + low,
        x13 + high,
        x14 + nonce,
        x15,
    )


@_jit
def _gauss(a, b, digits):  # type: ignore[no-untyped-def]
    t = a | 1
    half = t >> 1
    half = tl.where(half == 0, 1, half.to(tl.int32, bitcast=True))
    bits = half.to(tl.float32).to(tl.int32, bitcast=True)
    exponent = ((bits + 0x00555555) >> 23) - 127
    power = (tl.zeros_like(t) + 2) << exponent.to(tl.uint32, bitcast=True)
    f = (t - power).to(tl.int32, bitcast=True).to(tl.float32) * ((126 - exponent) << 23).to(tl.float32, bitcast=True)
    p = C0 * f + C1
    p = p * f + C2
    p = p * f + C3
    p = p * f + C4
    p = p * f + C5
    p = p * f + C6
    p = p * f + C7
    p = p * f + C8
    r = tl.sqrt_rn((digits - 1 - exponent).to(tl.float32) * TWO_LOG_TWO + p * f)
    x = ((b << 2) | 2).to(tl.int32, bitcast=True).to(tl.float32) * 4.656612873077393e-10
    y = x * x
    s = ((S0 * y + S1) * y + S2) * y + S3
    c = ((D0 * y + D1) * y + D2) * y + D3
    second = r * (s * x)
    first = r * c
    first = tl.where((b >> 31) != 0, -first, first)
    swap = ((b >> 30) & 1) != 0
    return tl.where(swap, second, first), tl.where(swap, first, second)


@_jit
def _extend(a, high, low):  # type: ignore[no-untyped-def]
    t = tl.where(a != 0, (a << 16) | (high >> 16), tl.where(high >= 65536, high, low))
    t = tl.where((a == 0) & (high < 65536) & (high != 0), (high << 16) | (low >> 16), t)
    digits = tl.where(a != 0, 48, tl.where(high >= 65536, 64, tl.where(high != 0, 80, 96)))
    return tl.where(a >= 65536, a, t), tl.where(a >= 65536, 32, digits)


@_jit
def _put(  # type: ignore[no-untyped-def]
    source, target, place, z, start, stop, scale, inverse,
    ADD: tl.constexpr, DIVIDE: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Writes a thread's sixteen elements, 32 apart; the result has source's type before it gets target's."""
    if ADD:
        # All are read before one is written: nothing tells the compiler that target is not what is read next, and each
        # element would wait for the one before it.
        sums = ()
        for word in tl.static_range(16):
            at = place + word * 32
            if FULL:
                found = tl.load(source + at)
            else:
                found = tl.load(source + at, mask=(at >= start) & (at < stop), other=0.0)
            sums += (found,)  # type: ignore[assignment]
    for word in tl.static_range(16):
        at = place + word * 32
        value = z[word]
        if ADD:
            value = sums[word].to(tl.float32) + scale * value
        if DIVIDE:
            value = value * inverse
        value = value.to(source.dtype.element_ty).to(target.dtype.element_ty)
        if FULL:
            tl.store(target + at, value)
        else:
            tl.store(target + at, value, mask=(at >= start) & (at < stop))


@_jit
def _program(  # type: ignore[no-untyped-def]
    source, target, base, size, counter0, k0, k1, k2, k3, k4, k5, k6, k7, scale, inverse,
    ADD: tl.constexpr, DIVIDE: tl.constexpr, ROUNDS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One program: BLOCKS blocks from counter0 on; source and target are the places of its first element (the same
    place, in place), base its number.

    Everything inside is counted from that first element, in 32 bits.
    """
    thread = tl.arange(0, BLOCKS)
    place = thread // 32 * 512 + thread % 32
    counter = counter0 + thread
    low = counter.to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7 = _chacha(
        low, high, 0, k0, k1, k2, k3, k4, k5, k6, k7, ROUNDS
    )
    d0 = tl.full([BLOCKS], 32, tl.int32)
    d1 = d0
    d2 = d0
    d3 = d0
    d4 = d0
    d5 = d0
    d6 = d0
    d7 = d0
    # A word is short when its upper half is zero; the smallest upper half of the thread's eight tells whether one is.
    upper = tl.minimum(tl.minimum(tl.minimum(a0 >> 16, a1 >> 16), tl.minimum(a2 >> 16, a3 >> 16)),
                       tl.minimum(tl.minimum(a4 >> 16, a5 >> 16), tl.minimum(a6 >> 16, a7 >> 16)))  # fmt: skip
    if tl.min(upper.to(tl.int32), axis=0) == 0:
        t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15 = _chacha(
            low, high, 1, k0, k1, k2, k3, k4, k5, k6, k7, ROUNDS
        )
        a0, d0 = _extend(a0, t0, t1)
        a1, d1 = _extend(a1, t2, t3)
        a2, d2 = _extend(a2, t4, t5)
        a3, d3 = _extend(a3, t6, t7)
        a4, d4 = _extend(a4, t8, t9)
        a5, d5 = _extend(a5, t10, t11)
        a6, d6 = _extend(a6, t12, t13)
        a7, d7 = _extend(a7, t14, t15)
    z0, z8 = _gauss(a0, b0, d0)
    z1, z9 = _gauss(a1, b1, d1)
    z2, z10 = _gauss(a2, b2, d2)
    z3, z11 = _gauss(a3, b3, d3)
    z4, z12 = _gauss(a4, b4, d4)
    z5, z13 = _gauss(a5, b5, d5)
    z6, z14 = _gauss(a6, b6, d6)
    z7, z15 = _gauss(a7, b7, d7)
    z = (z0, z1, z2, z3, z4, z5, z6, z7, z8, z9, z10, z11, z12, z13, z14, z15)
    if (base >= 0) & (base + BLOCKS * 16 <= size):
        _put(source, target, place, z, 0, 0, scale, inverse, ADD, DIVIDE, True)
    else:
        start = tl.maximum(-base, 0).to(tl.int32)
        stop = tl.minimum(size - base, BLOCKS * 16).to(tl.int32)
        _put(source, target, place, z, start, stop, scale, inverse, ADD, DIVIDE, False)


_SCALARS = [f"k{i}" for i in range(8)] + ["offset", "stride", "columns", "out_stride", "programs", "scale"]


@_jit(do_not_specialize=_SCALARS)  # type: ignore[untyped-decorator, unused-ignore]
def _normal_kernel(  # type: ignore[no-untyped-def]
    out, k0, k1, k2, k3, k4, k5, k6, k7, offset, stride, columns, out_stride, programs, scale,
    ADD: tl.constexpr, ROUNDS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row = (program // programs).to(tl.int64)
    begin = offset.to(tl.int64) + row * stride.to(tl.int64)
    counter0 = begin // 512 * 32 + (program % programs).to(tl.int64) * BLOCKS
    base = counter0 * 16 - begin
    first = out + row * out_stride.to(tl.int64) + base
    _program(
        first, first, base, columns.to(tl.int64), counter0,
        k0.to(tl.uint32, bitcast=True), k1.to(tl.uint32, bitcast=True),
        k2.to(tl.uint32, bitcast=True), k3.to(tl.uint32, bitcast=True),
        k4.to(tl.uint32, bitcast=True), k5.to(tl.uint32, bitcast=True),
        k6.to(tl.uint32, bitcast=True), k7.to(tl.uint32, bitcast=True),
        scale, 1.0, ADD, False, ROUNDS, BLOCKS,
    )  # fmt: skip


@_jit
def _many_kernel(  # type: ignore[no-untyped-def]
    table, owners, DIVIDE: tl.constexpr, ROUNDS: tl.constexpr, BLOCKS: tl.constexpr,
    SOURCE: tl.constexpr, TARGET: tl.constexpr,
):  # fmt: skip
    """Adds noise to many tensors in one launch; a row of the table describes one (see Many)."""
    program = tl.program_id(0)
    owner = tl.load(owners + program)
    wide = table + owner * 10
    narrow = wide.to(tl.pointer_type(tl.uint32)) + 8
    begin = tl.load(wide + 1)
    counter0 = begin // 512 * 32 + (program - tl.load(wide + 3)) * BLOCKS
    base = counter0 * 16 - begin
    floats = wide.to(tl.pointer_type(tl.float32)) + 16
    _program(
        tl.load(wide).to(tl.pointer_type(SOURCE)) + base, tl.load(wide + 9).to(tl.pointer_type(TARGET)) + base,
        base, tl.load(wide + 2), counter0,
        tl.load(narrow), tl.load(narrow + 1), tl.load(narrow + 2), tl.load(narrow + 3),
        tl.load(narrow + 4), tl.load(narrow + 5), tl.load(narrow + 6), tl.load(narrow + 7),
        tl.load(floats), tl.load(floats + 1), True, DIVIDE, ROUNDS, BLOCKS,
    )  # fmt: skip


def fill(
    key: Words,
    offset: int,
    out: torch.Tensor,
    *,
    rows: int = 1,
    stride: int = 0,
    scale: float | None = None,
    rounds: int = stream.ROUNDS,
) -> None:
    """Writes (scale None) or adds scaled elements offset + row * stride + column to a contiguous matrix."""
    columns = out.numel() // rows
    if columns == 0:
        return
    # A row that begins inside a tile needs up to one tile more than its length.
    programs = -(-(columns + stream.TILE - 1) // (_BLOCKS * stream.WORDS))
    words = [int(word) for word in key.view("int32")]
    _normal_kernel[(programs * rows,)](
        out, *words, offset, stride, columns, columns, programs, 1.0 if scale is None else scale,
        ADD=scale is not None, ROUNDS=rounds, BLOCKS=_BLOCKS, num_warps=_WARPS, enable_fp_fusion=False,
    )  # fmt: skip


@functools.lru_cache(maxsize=16)
def _layout(sizes: tuple[int, ...], device: torch.device) -> tuple[int, torch.Tensor, npt.NDArray[np.int64]]:
    """For tensors of these sizes: how many programs, the row of the table that each works on (kept on the device), and
    the columns of the table that are the same at every step of a run."""
    counts = [-(-(size + stream.TILE - 1) // (_BLOCKS * stream.WORDS)) for size in sizes]
    rows = np.zeros((len(sizes), 10), np.int64)
    rows[:, 2] = sizes
    rows[1:, 3] = np.cumsum(counts)[:-1]
    owners = torch.from_numpy(np.repeat(np.arange(len(sizes), dtype=np.int32), counts)).to(device)
    return sum(counts), owners, rows


class Many:
    """Scaled noise added to contiguous, non-empty tensors of one type on one device, and a division, in one launch.

    With ``into`` (contiguous tensors of the same sizes, all of one type) the results are written there and the tensors
    are only read. What is the same at every step is settled once: whoever launches again makes sure that the tensors
    are where they were, and all there. They are not kept alive.

    A row of the table sent to the device has ten 64-bit entries: address, offset, size, first program, the key (four),
    the binary32 bits of scale and 1 / divisor, and the address of the result.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        offsets: Sequence[int],
        scales: Sequence[float],
        divisor: float = 1.0,
        into: Sequence[torch.Tensor] | None = None,
    ) -> None:
        into = tensors if into is None else into
        self.device, self.types = tensors[0].device, (_ELEMENT[tensors[0].dtype], _ELEMENT[into[0].dtype])
        self.programs, self.owners, fixed = _layout(tuple([t.numel() for t in tensors]), self.device)
        self.divides = divisor != 1.0
        self.rows = fixed.copy()
        self.rows[:, 0] = [t.data_ptr() for t in tensors]
        self.rows[:, 1] = offsets
        floats = np.full((len(tensors), 2), 1.0 / divisor, np.float32)
        floats[:, 0] = scales
        self.rows[:, 8] = floats.view(np.int64)[:, 0]
        self.rows[:, 9] = [t.data_ptr() for t in into]

    def launch(self, keys: Words, rounds: int = stream.ROUNDS) -> None:
        """Add the noise of these keys, a row for each tensor; they are wiped from the device behind the kernel."""
        rows = self.rows.copy()
        rows[:, 4:8] = np.ascontiguousarray(keys).view(np.int64)
        table = torch.from_numpy(rows).to(self.device, non_blocking=True)
        source, target = self.types
        _many_kernel[(self.programs,)](
            table, self.owners, DIVIDE=self.divides, ROUNDS=rounds, BLOCKS=_BLOCKS,
            SOURCE=source, TARGET=target, num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
        table.zero_()
