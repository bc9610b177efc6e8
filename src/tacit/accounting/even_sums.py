"""What is the privacy loss of one pass where floating point has digits enough? The sums of passes.py by one FFT.

R = (X_1 + … + X_t)/t as there, on an even grid of the sum:

- from above: each X_i moves to the ends of its cell so that its mean stays, which is larger in convex order;
- from below: of each batch only the number of a cell is seen, and of all batches the sum of these numbers.

The tail of X_i is long, so that outcomes are parted by how many X_i lie beyond a point: none, one, or more, which is
all but impossible. Numbers count modulo the length of the transform, which takes information away from below. From
above what lies outside the window counts as an infinite loss, and what wraps around only adds. An FFT errs by a share
of the largest mass, so that this serves while δ is far above the unit round-off; the other way is slower and has no
such limit. Proofs: docs/explanation/passes.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.losses import ROUND, Array
from tacit.accounting.special import ndtr

#: Widths of a cell, in standard deviations of one X_i, and of one far from the mean, as a share of that distance.
FINE, GRADE = (0.016, 0.008), 0.006
#: The longest transform.
LONGEST = 1 << 19
#: Noise multipliers and counts for which this is made: others take a longer grid, or are quick the other way.
LEAST_NOISE, MOST_NOISE, MOST_BINS = 0.4, 50.0, 1 << 16
#: Points of the geometric grid on which the law is kept, and of the even one for the others where one X_i is large.
POINTS, OTHERS = 8000, 256
#: What rounding of an FFT may add to P, in units of the tail that may be left out.
MOST_ROUNDING = 300.0
#: Low frequencies, up to so many, have their transform summed one by one in extended precision, where there is one.
MOST_EXACT = 1000
FINEST = float(np.finfo(np.longdouble).eps) / 2
BLOCK = 64
#: Bound on the rounding of one mass, as a share of its cell: integrals, shares and places together.
ROUNDED = 1e-11
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
Whole = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class EvenLaw:
    """The law of R: masses of P and Q at e^{``logs``}, with steps of ``step``, and the masses of Q and P left out."""

    logs: Array
    p: Array
    q: Array
    lost: tuple[float, float]
    step: float


@dataclasses.dataclass(frozen=True)
class _Cells:
    """One X_i in cells between multiples of ``step``: masses of Q and P, and the share of Q that goes to either end.

    The cells from ``large`` on are those of a large X_i. Behind the last one lie the masses ``beyond`` of Q and P.
    """

    step: float
    edges: Whole
    large: int
    q: Array
    p: Array
    down: Array
    up: Array
    beyond: tuple[float, float]

    def at_edges(self, *, large: bool) -> Array:
        """The masses of Q from above at the edges, of the X_i that are large or of those that are not."""
        kept = slice(self.large, None) if large else slice(self.large)
        return np.asarray(np.append(self.down[kept], 0.0) + np.append(0.0, self.up[kept]))


@functools.lru_cache(maxsize=16)
def even_laws(sigma: float, bins: int, tail: float, fine: int) -> tuple[EvenLaw, EvenLaw, EvenLaw] | None:
    """The law of R from above, and from below for removing and for adding.

    Rounding takes from the first law of the pair and gives to the second. None where the grid would be too long or have
    too few digits.

    Args:
        sigma: The noise multiplier.
        bins: The number t of batches.
        tail: What may be left out of P.
        fine: Which of the widths in ``FINE`` a cell has.
    """
    if not (LEAST_NOISE <= sigma <= MOST_NOISE and 2 <= bins <= MOST_BINS and tail > 1e-18):
        return None
    cells = _cells(sigma, bins, tail, fine)
    window = None if cells is None else _window(cells, bins, tail)
    if cells is None or window is None:
        return None
    first, size, outside = window
    above, rounding = _above(cells, sigma, bins, first, size, outside)
    if rounding > MOST_ROUNDING * tail:
        return None
    removing, adding, rounding = _below(cells, bins, first, size)
    return (above, removing, adding) if rounding <= MOST_ROUNDING * tail else None


def _several(sigma: float, bins: int, z: float) -> tuple[float, float]:
    """Bounds on the masses of Q and P of two or more Z_i above z."""
    q, p = (float(ndtr(x)) * (1 + 1e-9) for x in (-z, 1 / sigma - z))
    return 0.5 * bins * (bins - 1) * q * q, (bins - 1) * p * q + 0.5 * (bins - 1) * (bins - 2) * q * q


def _cells(sigma: float, bins: int, tail: float, fine: int) -> _Cells | None:
    from scipy.special import ndtri

    centre = 0.5 / sigma**2
    step = FINE[fine] * math.sqrt(math.expm1(1 / sigma**2))
    left = -float(ndtri(tail / (8 * bins)))
    right = max(-float(ndtri(tail / 8)) + 1 / sigma, left)
    middle = 0.0
    while middle < right and max(_several(sigma, bins, middle)) > tail / 8:
        middle += 0.05
    if middle / sigma - centre > math.log(step * LONGEST):
        return None
    first_large, last = (math.exp(min(z, right) / sigma - centre) / step for z in (middle, right))
    edges, large = [0], 0
    while edges[-1] < last:
        here = edges[-1]
        if not large and here >= first_large:
            large = len(edges) - 1
        wide = (2 if large else 1) * GRADE * FINE[fine] / FINE[0] * (here - 1 / step)
        run = 1 << max(0, math.floor(math.log2(wide))) if wide > 1 else 1
        edges.extend((here + run * np.arange(1, 33)).tolist())
    whole = np.array(edges, dtype=np.int64)
    # z at the edges, with pieces no wider than a tenth of a standard deviation between them
    z = sigma * (np.log(step * np.maximum(whole, 1)) + centre)
    z[0] = min(-left, float(z[1]) - 0.1)
    pieces = np.maximum(np.ceil(np.diff(z) / 0.1).astype(np.int64), 1)
    cell = np.repeat(np.arange(len(pieces)), pieces)
    place = np.arange(len(cell)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    width = (np.diff(z) / pieces)[cell]
    points = (z[cell] + place * width)[:, None] + 0.5 * width[:, None] * (_NODES + 1)
    mass = np.exp(-0.5 * points * points) * (0.5 / math.sqrt(2 * math.pi) * width[:, None] * _WEIGHTS)
    value = np.exp(points / sigma - centre)
    low, high = step * whole[:-1], step * whole[1:]
    share = np.clip((value - low[cell, None]) / (high - low)[cell, None], 0.0, 1.0)
    q, p, down, up = (
        np.asarray(np.bincount(cell, x.sum(axis=1)), dtype=float)
        for x in (mass, mass * value, mass * (1 - share), mass * share)
    )
    down, up = down + ROUNDED * q, up + ROUNDED * q
    for one, at in ((down, 0.0), (up, 0.0), (q, 0.0), (p, 1 / sigma)):  # left of the first point is in its cell
        one[0] += float(ndtr(z[0] - at)) * (1 + 1e-9)
    beyond = (float(ndtr(-z[-1])) * (1 + 1e-9), float(ndtr(1 / sigma - z[-1])) * (1 + 1e-9))
    return _Cells(step, whole, large or len(q), q, p, down, up, beyond)


def _window(cells: _Cells, bins: int, tail: float) -> tuple[int, int, float] | None:
    """First number and length of a window for the sum of X_i that are not large, from above, and what of P or of Q
    lies outside at most. It holds for t of them and for t - 1."""
    places, mass = cells.edges[: cells.large + 1], cells.at_edges(large=False)
    wanted = math.log(tail / 16)
    right, left = math.inf, 0.0
    log_q, log_p = np.log(np.maximum(mass, 1e-300)), np.log(np.maximum(mass * places * cells.step, 1e-300))

    def log_moment(logs: Array, slope: float) -> float:
        exponent = logs + slope * places
        top = float(exponent.max())
        return top + math.log(float(np.exp(exponent - top).sum())) + 1e-9 + 8 * ROUND * abs(slope) * float(places[-1])

    scales = (
        math.sqrt(bins) / FINE[-1],
        math.sqrt(bins) / FINE[0],
        float(places[-1]),
    )  # of many small terms, and of one large one
    for slope in np.concatenate([np.geomspace(0.5, 50.0, 16) / scale for scale in scales]).tolist():
        moments = max(log_moment(log_p, slope), 0.0) + (bins - 1) * max(log_moment(log_q, slope), 0.0)
        right = min(right, (moments - wanted) / slope)
        left = max(left, (wanted - (bins - 1) * log_moment(log_q, -slope)) / slope)
    first = max(0, math.floor(left) - 1)
    size = 1 << max(12, math.ceil(math.log2(right + 2 - first)))
    if size > LONGEST or places[-1] >= size:
        return None
    return first, size, 4 * math.exp(wanted)


class _Transform:
    """The Fourier transform of masses that add up to 1, at the frequencies of an even grid.

    The first, which count, are ``exact`` but for ``exact_error`` each; all are ``rough`` but for ``error`` each.
    """

    def __init__(self, places: Whole, mass: Array, size: int, terms: int) -> None:
        """``terms`` is to what power, about, it will be taken."""
        self.size = size
        self.rough = np.fft.rfft(np.bincount(places % size, mass, size))
        self.error = (4 * math.log2(size) + 8) * ROUND * 1.001
        small = np.abs(self.rough) < 1e-20 ** (1 / terms)
        count = min(int(np.argmax(small)) if small.any() else len(small), MOST_EXACT) if FINEST < 1e-19 else 0
        roots, frequency = _roots(size), np.arange(count)
        blocks = range(0, len(places), BLOCK)
        self.exact = np.zeros(count, dtype=np.clongdouble)
        for block in (slice(i, i + BLOCK) for i in blocks):
            self.exact += roots[np.multiply.outer(frequency, places[block]) % size] @ mass[block].astype(np.longdouble)
        self.exact_error = (BLOCK + len(blocks) + 32) * FINEST * 1.001


@functools.lru_cache(maxsize=4)
def _roots(size: int) -> NDArray[Any]:
    """e^{-2πij/size} for every j: an eighth of the circle, mirrored; ``size`` is a multiple of 8."""
    angle = 8 * np.arctan(np.longdouble(1)) * (np.arange(size // 8 + 1).astype(np.longdouble) / size)
    x, y = np.cos(angle), np.sin(angle)
    x, y = np.append(x, y[-2::-1]), np.append(y, x[-2::-1])  # to a quarter
    x, y = np.append(x, -x[-2::-1]), np.append(y, y[-2::-1])  # to a half
    x, y = np.append(x, x[-2:0:-1]), np.append(y, -y[-2:0:-1])
    return np.asarray(x - 1j * y)


def _power(transform: NDArray[Any], times: int) -> NDArray[Any]:
    """The power by repeated squaring, with a relative error of at most four units of rounding for each factor."""
    result, square = np.ones_like(transform), transform
    while times:
        if times & 1:
            result = result * square
        times >>= 1
        if times:
            square = square * square
    return result


def _composed(law: _Transform, times: int, first: int, other: _Transform | None = None) -> tuple[Array, float]:
    """The law of a sum on a window, its numbers modulo the length: of ``times`` terms with this transform and one with
    another. And a bound on the rounding of each entry."""
    size = law.size
    count = len(law.exact) if other is None else min(len(law.exact), len(other.exact))
    parts, wrong = [], 0.0
    for exact in (True, False):
        unit = FINEST if exact else ROUND
        power = np.ones(1, dtype=law.exact.dtype if exact else law.rough.dtype)
        relative, log_ceiling = np.zeros(1), np.zeros(1)
        for one, n in ((law, times), (other, 1)):
            if one is None:
                continue
            values = one.exact[:count] if exact else one.rough[count:]
            error = one.exact_error if exact else one.error
            modulus = np.abs(values).astype(float)
            power = power * _power(values, n)
            relative = relative + n * (error / np.maximum(modulus, 1e-300) + 4 * unit)
            log_ceiling = log_ceiling + n * np.log(modulus + error)
        length = np.abs(power).astype(float)
        off = np.where(relative < 1, length * np.expm1(np.minimum(relative, 1.0)), length + np.exp(log_ceiling))
        parts.append(power.astype(complex))
        wrong += 2 * float(off.sum()) + 8 * math.log2(size) * ROUND * float(length.sum())
    masses = np.maximum(np.fft.irfft(np.concatenate(parts), size), 0.0)
    return np.roll(masses, -(first % size)), wrong / size * (1 + 1e-9)


def _above(cells: _Cells, sigma: float, bins: int, first: int, size: int, outside: float) -> tuple[EvenLaw, float]:
    transform = _Transform(cells.edges[: cells.large + 1], cells.at_edges(large=False), size, bins)
    unit = cells.step / bins
    law, noise = _composed(transform, bins, first)
    mass, value = law + noise, unit * np.arange(first, first + size)
    rounding = noise * max(float(value.sum()), size)
    middle = sigma * (math.log(cells.step * float(cells.edges[cells.large])) + 0.5 / sigma**2) * (1 - 1e-12)
    lost_q, lost_p = (x + outside for x in _several(sigma, bins, middle))
    lost_q += bins * cells.beyond[0]
    lost_p += cells.beyond[1] + (bins - 1) * cells.beyond[0]
    if first == 0:  # a sum of 0
        lost_q += float(mass[0])
        mass, value = mass[1:], value[1:]
    found = [(value, mass)]
    if cells.large < len(cells.q):
        law, noise = _composed(transform, bins - 1, first)
        coarse = max(1, size // OTHERS)
        number = np.arange(size)
        at, up = number // coarse, (number % coarse) / coarse
        others = np.bincount(at, (law + noise) * (1 - up), OTHERS + 1)
        others += np.bincount(at + 1, (law + noise) * up, OTHERS + 1)
        sums = cells.edges[cells.large :, None] + (first + coarse * np.arange(len(others)))
        masses = bins * cells.at_edges(large=True)[:, None] * others
        found.append((unit * sums.ravel(), masses.ravel() * (1 + 1e-12)))
    low, high = (math.log(float(x)) for x in (value[0], found[-1][0].max()))
    step = (high - low) / POINTS
    q = np.zeros(POINTS + 3)
    for values, masses in found:
        where = np.maximum((np.log(values) - low) / step, 0.0)
        place = np.floor(where).astype(np.int64)
        up = np.expm1((where - place) * step) / math.expm1(step)
        q += np.bincount(place, masses * (1 - up), len(q)) + np.bincount(place + 1, masses * up, len(q))
    logs = low + step * np.arange(len(q))
    return EvenLaw(logs, q * np.exp(logs), q, (lost_q, lost_p), step), rounding


def _below(cells: _Cells, bins: int, first: int, size: int) -> tuple[EvenLaw, EvenLaw, float]:
    means = np.rint(cells.p / np.maximum(cells.q, 1e-300) / cells.step).astype(np.int64)
    places = np.clip(means, cells.edges[:-1], cells.edges[1:])
    small, large = slice(cells.large), slice(cells.large, None)
    of_q, of_p = (_Transform(places[small], x[small], size, bins) for x in (cells.q, cells.p))
    error = bins * ROUNDED + size * ROUND
    number = np.arange(first, first + size)
    # sums of X_i of which none is large: groups of neighbours; the law of Q and that of P, which one of the terms has
    low = math.log(max(first, 0.5))
    step = (math.log(float(first + size + places[-1] + 1)) - low) / POINTS
    group = np.floor((np.log(np.maximum(number, 0.5)) - low) / step).astype(np.int64)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    none = [_Groups(*law, starts) for law in (_composed(of_q, bins, first), _composed(of_q, bins - 1, first, of_p))]
    rounding = max(size * groups.noise for groups in none)
    some = cells.large < len(cells.q)
    if some:
        coarse = max(1, size // OTHERS)
        wide = np.arange(0, size, coarse)
        others = [
            _Groups(*law, wide) for law in (_composed(of_q, bins - 1, first), _composed(of_q, bins - 2, first, of_p))
        ]
        at = np.append(places[large], cells.edges[-1])[:, None] + (number[wide] + 0.5 * coarse)
        where = np.minimum(np.floor((np.log(at) - low) / step).astype(np.int64), POINTS + 1).ravel()
    found = []
    for of_first in (1, -1):  # removing: P is the first law of the pair
        q, p = (
            np.bincount(group[starts], one.ends(side), POINTS + 2)
            for one, side in zip(none, (of_first, -of_first), strict=True)
        )
        if some:
            # one large X_i: that of the record, or another; behind the last cell only what is counted from above
            for law, side in ((p, -of_first), (q, of_first)):
                one_q, one_p = (
                    np.append(x[large], y if side > 0 else 0.0)[:, None]
                    for x, y in zip((cells.q, cells.p), cells.beyond, strict=True)
                )
                rest, rest_p = (one.ends(side) for one in others)
                masses = bins * one_q * rest if law is q else one_p * rest + (bins - 1) * one_q * rest_p
                law += np.bincount(where, masses.ravel(), len(law))
        found.append(EvenLaw(np.empty(0), p * (1 - of_first * error), q * (1 + of_first * error), (0.0, 0.0), step))
    return found[0], found[1], rounding


class _Groups:
    """Masses of a law on a window, added up in groups that begin at ``starts``."""

    def __init__(self, masses: Array, noise: float, starts: Whole) -> None:
        self.total, self.noise = np.add.reduceat(masses, starts), noise
        self.slack = noise * np.diff(np.append(starts, len(masses)))

    def ends(self, side: int) -> Array:
        """What the masses are at least (-1), or at most (1)."""
        return np.asarray(np.maximum(self.total + side * self.slack, 0.0))
