"""How is a number released so that its floating-point bits say nothing more than the ideal mechanism does?

``add_laplace`` and ``add_gaussian`` compute round(value + scale * Z) to a grid, where Z is an *exact real* Laplace or
normal deviate (``deviates.py``) and the sum and the rounding are decided by exact arithmetic. What is released is thus
a function of the ideal continuous release, and post-processing costs no privacy: the floating-point attack of Mironov
("On significance of the least significant bits for differential privacy", CCS 2012) has nothing to read. The grid
depends on the public scale only, never on the value.

Speed comes from intervals: numpy computes all sums in binary64 with a proven error bound, and only the few whose
rounding the bound does not decide are continued, from the bits already drawn, in integer arithmetic. How long a call
takes depends on the random bits and, where a value is huge, on the value: do not let an adversary time it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from tacit.noise import deviates
from tacit.noise.entropy import SYSTEM, Source

DEFAULT_GRID_BITS = 24
"""The default grid is the power of two in (scale / 2^25, scale / 2^24]: it adds less than 1e-15 of the variance."""
_CHUNK = 1 << 16  # deviates at a time: the working set stays small whatever the array's size
_SMALLEST_EXPONENT = -1074  # 2^-1074 is the smallest positive binary64 number

Floats = npt.NDArray[np.float64]
Draw = Callable[[int, Source], deviates.Deviates]


@overload
def add_laplace(
    values: float, scale: float, *, granularity: float | None = None, source: Source | None = None
) -> float: ...
@overload
def add_laplace(
    values: npt.NDArray[Any] | Sequence[Any],
    scale: float,
    *,
    granularity: float | None = None,
    source: Source | None = None,
) -> Floats: ...
@overload
def add_laplace(
    values: npt.ArrayLike, scale: float, *, granularity: float | None = None, source: Source | None = None
) -> float | Floats: ...
def add_laplace(
    values: npt.ArrayLike, scale: float, *, granularity: float | None = None, source: Source | None = None
) -> float | Floats:
    """Add exact Laplace noise (density proportional to exp(-abs(x) / scale)) and round to a grid, exactly.

    Results that binary64 cannot hold are rounded to the nearest that it can (saturating at the largest), which is
    post-processing too.

    Guarantee:
        If the values together have L1 sensitivity Δ under an adjacency, the result is (Δ / scale)-DP under that
        adjacency, because it is a rounding (post-processing) of the ideal continuous mechanism on the given numbers. Δ
        must hold for the numbers as given, including the rounding of whatever computed them.

    Args:
        values: The private value or values: finite real numbers. Integers may not exceed 2^53 in size.
        scale: The scale of the noise, in the unit of the values; above 0.
        granularity: The grid to round to, a power of two chosen without looking at the values. None (default) is about
            ``scale / 2**24``.
        source: Where random bits come from. None (default) is the operating system; others are for tests.

    Returns:
        The noisy values: a float for one value, otherwise an array of the same shape.

    Example:
        >>> from tacit.noise import add_laplace
        >>> noisy = add_laplace([120.0, 340.0], scale=2.0, granularity=1.0)
        >>> bool((noisy == noisy.round()).all())
        True
        >>> isinstance(add_laplace(17.0, scale=10.0), float)
        True
    """
    return _add(values, scale, granularity, source, deviates.laplace, "scale")


@overload
def add_gaussian(
    values: float, sigma: float, *, granularity: float | None = None, source: Source | None = None
) -> float: ...
@overload
def add_gaussian(
    values: npt.NDArray[Any] | Sequence[Any],
    sigma: float,
    *,
    granularity: float | None = None,
    source: Source | None = None,
) -> Floats: ...
@overload
def add_gaussian(
    values: npt.ArrayLike, sigma: float, *, granularity: float | None = None, source: Source | None = None
) -> float | Floats: ...
def add_gaussian(
    values: npt.ArrayLike, sigma: float, *, granularity: float | None = None, source: Source | None = None
) -> float | Floats:
    """Add exact Gaussian noise and round to a grid, exactly.

    Results that binary64 cannot hold saturate, as in :func:`add_laplace`.

    Guarantee:
        If the values together have L2 sensitivity Δ under an adjacency, the result costs no more than the ideal
        Gaussian mechanism of noise multiplier sigma / Δ (``accounting.Gaussian(sigma / Δ)``) under that adjacency,
        because it is a rounding (post-processing) of it. Δ must hold for the numbers as given.

    Args:
        values: The private value or values: finite real numbers. Integers may not exceed 2^53 in size.
        sigma: The standard deviation of the noise, in the unit of the values; above 0.
        granularity: The grid to round to, a power of two chosen without looking at the values. None (default) is about
            ``sigma / 2**24``.
        source: Where random bits come from. None (default) is the operating system; others are for tests.

    Returns:
        The noisy values: a float for one value, otherwise an array of the same shape.

    Example:
        >>> import numpy as np
        >>> from tacit.noise import add_gaussian
        >>> add_gaussian(np.zeros((2, 3)), sigma=1.0).shape
        (2, 3)
    """
    return _add(values, sigma, granularity, source, deviates.normal, "sigma")


def default_granularity(scale: float) -> float:
    """The grid for noise of a given scale: a power of two that depends on the scale only.

    Args:
        scale: The scale (Laplace) or standard deviation (Gaussian) of the noise.

    Returns:
        The power of two in (scale / 2^25, scale / 2^24].

    Example:
        >>> from tacit.noise import default_granularity
        >>> default_granularity(1.0) == 2.0**-24
        True
    """
    _, exponent = math.frexp(scale)
    return math.ldexp(1.0, max(exponent - 1 - DEFAULT_GRID_BITS, _SMALLEST_EXPONENT))


def _add(
    values: npt.ArrayLike, scale: float, granularity: float | None, source: Source | None, draw: Draw, name: str
) -> float | Floats:
    scale = positive(scale, name)
    grid = default_granularity(scale) if granularity is None else _power_of_two(granularity)
    array = as_finite(values)
    flat = array.reshape(-1)
    out = np.empty(flat.shape, np.float64)
    origin = SYSTEM if source is None else source
    for start in range(0, len(flat), _CHUNK):
        piece = flat[start : start + _CHUNK]
        out[start : start + _CHUNK] = round_to_grid(piece, scale, grid, draw(len(piece), origin))
    return out.reshape(array.shape) if array.ndim else float(out[0])


def round_to_grid(values: Floats, scale: float, grid: float, noise: deviates.Deviates) -> Floats:
    """values + scale * noise, rounded exactly to multiples of grid (a power of two), as the nearest binary64 numbers.

    In units of the grid, y = integer + fraction of the deviate is known in binary64 to within 2^-52 (1 + y): 2^-54 from
    converting the fraction, 2^-64 from its unknown bits, 2^-53 y from the addition. The product with S = scale / grid
    (exact, a power of two apart) and the addition of the value's distance from its nearest grid point (exact, at most
    1/2) add 2^-53 S y and 2^-53 (S y + 1); all of it is below 2^-50 (S (1 + y) + 1). A sum further than that from the
    middle between two grid points is decided.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        units = values / grid  # exact, unless it overflows (undecided below) or underflows (an error below 2^-1074)
        nearest = np.rint(units)
        y = noise.integer + np.ldexp(noise.fraction.astype(np.float64), -noise.source.word_bits)
        ratio = np.float64(scale) / np.float64(grid)
        shift = ratio * y
        total = (units - nearest) + np.where(noise.negative, -shift, shift)
        cell = np.rint(total)
        # Fewer than 64 known bits (in tests) widen the interval.
        error = 2.0**-50 * (ratio * (1 + y) + 1) + ratio * 2.0**-noise.source.word_bits
        sure = (0.5 - np.abs(total - cell) > error) & (np.abs(nearest) < 2.0**52) & (np.abs(total) < 2.0**52)
        out = (nearest + cell) * grid  # both below 2^52: the sum is an exact integer
    limit = sys.float_info.max
    out = np.clip(out, -limit, limit)
    for index in np.flatnonzero(~sure).tolist():
        out[index] = _round_one(float(values[index]), scale, grid, noise, index)
    return out + 0.0  # -0.0 would tell the sign of what was rounded away


def _round_one(value: float, scale: float, grid: float, noise: deviates.Deviates, index: int) -> float:
    """The same for one value in exact arithmetic, drawing further bits of the deviate until the rounding is decided."""
    step = Fraction(grid)
    start = Fraction(value) / step + Fraction(1, 2)
    slope = Fraction(scale) / step * (-1 if noise.negative[index] else 1)
    whole = int(noise.integer[index])
    digits, bits = noise.digits(index)
    while True:
        one = start + slope * (whole + Fraction(digits, 1 << bits))
        other = start + slope * (whole + Fraction(digits + 1, 1 << bits))
        low, high = min(one, other), max(one, other)
        # The deviate is inside the open interval with probability one: an end on a cell's edge decides nothing wrong.
        if math.floor(low) == math.ceil(high) - 1:
            return _nearest_float(math.floor(low) * step)
        digits, bits = noise.more(index)


def _nearest_float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return sys.float_info.max if number > 0 else -sys.float_info.max


def positive(scale: float, name: str) -> float:
    """The scale as a float, or an error: noise of scale zero protects nobody, and infinite noise releases nothing."""
    number = float(scale)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be positive and finite, not {scale}")
    return number


def _power_of_two(granularity: float) -> float:
    number = float(granularity)
    if not (math.isfinite(number) and number > 0 and math.frexp(number)[0] == 0.5):
        raise ValueError(f"granularity must be a power of two such as 1.0 or 2.0**-10, not {granularity}")
    return number


def as_finite(values: npt.ArrayLike) -> Floats:
    """The values as binary64, refusing what has no exact meaning there."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise TypeError(f"values must be real numbers of at most 64 bits, not {array.dtype}")
    exact = array.astype(np.float64)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8 and array.size and not (_fits(array)):
        raise ValueError("an integer beyond 2**53 has no exact binary64 value; scale it down first")
    if not np.isfinite(exact).all():
        raise ValueError("values must be finite: replace or drop NaN and infinity before releasing anything")
    return exact


def _fits(integers: npt.NDArray[np.generic]) -> bool:
    return int(integers.max()) <= 2**53 and int(integers.min()) >= -(2**53)
