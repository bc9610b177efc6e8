"""Which number belongs to (key, step, parameter, element)? The definition of tacit's keyed streams, in numpy.

Every stream has a 256-bit key of its own, made from the secret key, a purpose, a step and a parameter by keyed BLAKE2b
(:meth:`tacit.noise.keys.Key.stream`). From it ChaCha with 12 rounds and a 64-bit block counter (Bernstein 2008) makes
blocks of sixteen 32-bit words. 32 consecutive blocks form a *tile* of 512 words, and word ``w`` of block ``b`` of the
tile has index ``32 * w + b``: neighbouring elements come from neighbouring blocks, so that vector units and GPUs
compute and store them side by side, and any element can be computed without the others.

Normal deviates are made from pairs of words (``w``, ``w + 8``) of one block by the Box-Muller transform: the first
gives the radius, the second the angle. A radius word below 2^16, which happens once in 65,536 pairs and means a radius
above 4.7, takes further bits from the *tail* block with the same counter (words ``2w`` and ``2w + 1``), so that the
radius is resolved down to a probability of 2^-80 (10.5 standard deviations). The logarithm, sine and cosine are
polynomials evaluated with correctly rounded binary32 additions and multiplications and nothing else, which is why the
compiled CPU code (``native.c``), the GPU kernel (``cuda.py``) and this file agree bit for bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ROUNDS = 12
"""ChaCha rounds. The best published attacks reach 7 rounds; 8, 12 and 20 are the named variants."""
LANES = 32
"""Blocks in a tile."""
WORDS = 16
"""32-bit words in a block."""
TILE = LANES * WORDS
"""Elements in a tile."""
PAIRS = WORDS // 2
MAIN, TAIL = 0, 1
"""The two streams of one stream key (the first nonce word)."""
TAIL_BOUND = 1 << 16
"""A radius word below this takes its remaining bits from the tail stream."""
UNRESOLVED_PAIR = 2.0**-80
"""Probability that a pair's radius is not resolved to a relative cell of 2^-15 or better: u below 2^-80."""

CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k", as in the ChaCha paper

# Minimax-like (Chebyshev) polynomials, highest power first, rounded to binary32; errors are tested against mpmath.
LOG = (
    -0.27496618032455444,
    0.30788543820381165,
    -0.281116247177124,
    0.3282904028892517,
    -0.40014466643333435,
    0.5001586079597473,
    -0.6666654348373413,
    0.9999986886978149,
    -2.0,
)
"""-2 log(1 + f) / f for |f| <= 1/3, to 7e-8."""
SINE = (-3.595429006963968e-05, 0.0024900068528950214, -0.08074543625116348, 0.7853981852531433)
"""sin(pi x / 4) / x in powers of x^2 for |x| <= 1, to 3e-9."""
COSINE = (-0.0003188774862792343, 0.01584991067647934, -0.3084242641925812, 1.0)
"""cos(pi x / 4) in powers of x^2 for |x| <= 1, to 3e-8."""
TWO_LOG_TWO = 1.3862943649291992
"""2 ln 2 in binary32."""

Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]


def _quarter(x: Words, spare: Words, a: int, b: int, c: int, d: int) -> None:
    """One ChaCha quarter round on the rows of x, in place; spare is scratch memory of one row."""
    for target, source, mixed, rotation in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        np.add(x[target], x[source], out=x[target])
        np.bitwise_xor(x[mixed], x[target], out=x[mixed])
        np.right_shift(x[mixed], np.uint32(32 - rotation), out=spare)
        np.left_shift(x[mixed], np.uint32(rotation), out=x[mixed])
        np.bitwise_or(x[mixed], spare, out=x[mixed])


def blocks(key: Words, stream: int, counters: npt.NDArray[np.uint64], rounds: int = ROUNDS) -> Words:
    """ChaCha blocks with the given counters, as an array (16, len(counters)).

    With 20 rounds this is the cipher of RFC 8439 (whose counter has 32 bits and whose nonce has 96).

    >>> hex(int(blocks(np.zeros(8, np.uint32), 0, np.zeros(1, np.uint64), rounds=20)[0, 0]))  # RFC 8439, A.1, vector 1
    '0xade0b876'
    """
    state = np.empty((WORDS, len(counters)), np.uint32)
    for row, constant in enumerate(CONSTANTS):
        state[row] = constant
    state[4:12] = key[:, None]
    state[12] = counters.astype(np.uint32)
    state[13] = (counters >> np.uint64(32)).astype(np.uint32)
    state[14] = stream
    state[15] = 0
    x = state.copy()
    spare = np.empty(len(counters), np.uint32)
    for _ in range(rounds // 2):
        for column in range(4):
            _quarter(x, spare, column, 4 + column, 8 + column, 12 + column)
        for diagonal in range(4):
            _quarter(x, spare, diagonal, 4 + (diagonal + 1) % 4, 8 + (diagonal + 2) % 4, 12 + (diagonal + 3) % 4)
    x += state
    return x


def radius(t: Words, digits: npt.NDArray[np.int32] | int) -> Floats:
    """sqrt(-2 ln u) for u = t * 2^-digits with odd t, in binary32.

    t is written as 2^k (1 + f) with |f| <= 1/3; f is computed from the integer t - 2^k, so u close to 1 loses nothing.
    """
    half = t >> np.uint32(1)
    bits = (half | (half == 0)).astype(np.int32).astype(np.float32).view(np.uint32)
    exponent = ((bits + np.uint32(0x00555555)) >> np.uint32(23)).astype(np.int32) - 127
    difference = (t - (np.uint32(2) << exponent.astype(np.uint32))).view(np.int32)
    f = difference.astype(np.float32) * ((126 - exponent).astype(np.uint32) << np.uint32(23)).view(np.float32)
    p = np.full_like(f, LOG[0])
    for coefficient in LOG[1:]:
        p = p * f + np.float32(coefficient)
    whole = (digits - 1 - exponent).astype(np.float32)
    r: Floats = np.sqrt(whole * np.float32(TWO_LOG_TWO) + p * f)
    return r


def gauss(a: Words, b: Words, digits: npt.NDArray[np.int32] | int = 32) -> tuple[Floats, Floats]:
    """Two standard normal deviates per pair of words: a gives the radius, b angle, sign and order."""
    r = radius(a | np.uint32(1), digits)
    x = ((b << np.uint32(2)) | np.uint32(2)).view(np.int32).astype(np.float32) * np.float32(2.0**-31)
    y = x * x
    s, c = np.full_like(y, SINE[0]), np.full_like(y, COSINE[0])
    for sine, cosine in zip(SINE[1:], COSINE[1:], strict=True):
        s = s * y + np.float32(sine)
        c = c * y + np.float32(cosine)
    second = r * (s * x)
    first = ((r * c).view(np.uint32) ^ (b & np.uint32(0x80000000))).view(np.float32)
    swap = (b & np.uint32(0x40000000)) != 0
    return np.where(swap, second, first), np.where(swap, first, second)


def extend_tail(a: Words, high: Words, low: Words) -> tuple[Words, npt.NDArray[np.int32]]:
    """The leading bits t of the 96-bit radius uniform a.high.low, and the digits such that u = t / 2^digits."""
    sixteen = np.uint32(16)
    t = np.where(a != 0, (a << sixteen) | (high >> sixteen), np.where(high >= TAIL_BOUND, high, low))
    t = np.where((a == 0) & (high < TAIL_BOUND) & (high != 0), (high << sixteen) | (low >> sixteen), t)
    digits = np.where(a != 0, 48, np.where(high >= TAIL_BOUND, 64, np.where(high != 0, 80, 96)))
    t = np.where(a >= TAIL_BOUND, a, t)
    return t.astype(np.uint32), np.where(a >= TAIL_BOUND, 32, digits).astype(np.int32)


def normal_blocks(key: Words, counters: npt.NDArray[np.uint64], rounds: int = ROUNDS) -> Floats:
    """Standard normal deviates of whole blocks, as an array (16, len(counters))."""
    words = blocks(key, MAIN, counters, rounds)
    a, b = words[:PAIRS], words[PAIRS:]
    first, second = gauss(a, b)
    short = np.flatnonzero((a < TAIL_BOUND).any(axis=0))
    if len(short):
        tail = blocks(key, TAIL, counters[short], rounds)
        t, digits = extend_tail(a[:, short], tail[0::2], tail[1::2])
        first[:, short], second[:, short] = gauss(t, b[:, short], digits)
    return np.concatenate((first, second))


def _tile_order(by_word: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """From (16, 32 * tiles) to elements in the order of their index."""
    tiles = by_word.shape[1] // LANES
    return by_word.reshape(WORDS, tiles, LANES).transpose(1, 0, 2).reshape(-1)


_TILES_AT_ONCE = 1024  # 2 MiB of words: few enough calls into numpy, small enough for a cache


def fill_normal(key: Words, offset: int, out: Floats, rounds: int = ROUNDS) -> None:
    """Writes elements offset .. offset + len(out) - 1 of the stream's standard normal deviates into a flat array.

    >>> whole, part = np.empty(1000, np.float32), np.empty(10, np.float32)
    >>> fill_normal(np.arange(8, dtype=np.uint32), 0, whole)
    >>> fill_normal(np.arange(8, dtype=np.uint32), 505, part)
    >>> bool((whole[505:515] == part).all())
    True
    """
    position = 0
    while position < len(out):
        tile, skip = divmod(offset + position, TILE)
        tiles = min(_TILES_AT_ONCE, -(-(skip + len(out) - position) // TILE))
        counters = np.uint64(tile * LANES) + np.arange(tiles * LANES, dtype=np.uint64)
        chunk = _tile_order(normal_blocks(key, counters, rounds))[skip : skip + len(out) - position]
        out[position : position + len(chunk)] = chunk
        position += len(chunk)


def words64(key: Words, offset: int, count: int, rounds: int = ROUNDS) -> npt.NDArray[np.uint64]:
    """64-bit words offset .. offset + count - 1 of the stream: element i is word w (low) and w + 8 (high) of a block.

    >>> key = np.arange(8, dtype=np.uint32)
    >>> bool((words64(key, 0, 600)[300:] == words64(key, 300, 300)).all())
    True
    """
    half = TILE // 2
    out = np.empty(count, np.uint64)
    position = 0
    while position < count:
        tile, skip = divmod(offset + position, half)
        tiles = min(_TILES_AT_ONCE, -(-(skip + count - position) // half))
        counters = np.uint64(tile * LANES) + np.arange(tiles * LANES, dtype=np.uint64)
        words = blocks(key, MAIN, counters, rounds).astype(np.uint64).reshape(WORDS, tiles, LANES)
        joined = words[:PAIRS] | (words[PAIRS:] << np.uint64(32))
        chunk = joined.transpose(1, 0, 2).reshape(-1)[skip : skip + count - position]
        out[position : position + len(chunk)] = chunk
        position += len(chunk)
    return out
