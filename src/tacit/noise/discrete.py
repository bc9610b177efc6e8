"""How is integer noise drawn exactly? Discrete Laplace and Gaussian, Bernoulli and uniform integers.

These distributions have prices of their own (they are not roundings of the continuous ones). The discrete Gaussian is
sampled as in Canonne, Kamath and Steinke ("The discrete Gaussian for differential privacy", NeurIPS 2020, algorithm 3):
by rejection from a discrete Laplace, with an acceptance test that is exact for every binary64 sigma.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tacit.noise import deviates
from tacit.noise.entropy import SYSTEM, Source, random_bits
from tacit.noise.exact import positive

Integers = npt.NDArray[np.int64]
Shape = int | tuple[int, ...]
_LARGEST_SCALE = 2.0**40
"""Beyond this a discrete deviate is no longer exact in binary64 work; the continuous samplers with a grid are."""

_SMALLEST_SIGMA = 2.0**-20
"""Below this the number of trials of the acceptance test does not fit 64 bits."""


def discrete_laplace(scale: float, shape: Shape = (), *, source: Source | None = None) -> Integers:
    """Draw integers with probability proportional to exp(-abs(x) / scale) (two-sided geometric), exactly.

    The magnitude of a geometric number is the integer part of scale times an exact exponential deviate; zero is kept
    with one of the two signs only.

    Guarantee:
        Added to integers of L1 sensitivity Δ under an adjacency, the result is (Δ / scale)-DP under that adjacency.

    Args:
        scale: The scale of the noise, above 0 and at most 2^40.
        shape: The shape of the result; ``()`` (default) draws one number.
        source: Where random bits come from. None (default) is the operating system; others are for tests.

    Returns:
        The noise, as int64. It still has to be added to your values.

    Example:
        >>> from tacit.noise import discrete_laplace
        >>> discrete_laplace(2.0, 5).dtype
        dtype('int64')
    """
    scale = _checked(scale, "scale")
    origin = SYSTEM if source is None else source
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    return _two_sided_geometric(scale, count, origin).reshape(shape)


def _two_sided_geometric(scale: float, count: int, origin: Source) -> Integers:
    out = np.zeros(count, np.int64)
    waiting = np.arange(count)
    while len(waiting):
        drawn = _floors(scale, deviates.exponential(len(waiting), origin))
        negative = deviates.half_trial(origin)(waiting)
        out[waiting] = np.where(negative, -drawn, drawn)
        waiting = waiting[negative & (drawn == 0)]
    return out


def discrete_gaussian(sigma: float, shape: Shape = (), *, source: Source | None = None) -> Integers:
    """Draw integers with probability proportional to exp(-x^2 / (2 sigma^2)), exactly.

    Guarantee:
        Added to an integer vector of L2 sensitivity Δ under an adjacency, the result is (Δ^2 / (2
        sigma^2))-concentrated DP under it (Canonne, Kamath and Steinke): at every Rényi order no more than the
        continuous Gaussian mechanism of noise multiplier sigma / Δ.

    Args:
        sigma: The parameter of the noise, from 2^-20 to 2^40.
        shape: The shape of the result; ``()`` (default) draws one number.
        source: Where random bits come from. None (default) is the operating system; others are for tests.

    Returns:
        The noise, as int64. It still has to be added to your values.

    Raises:
        ValueError: If ``sigma`` is out of range.

    Example:
        >>> from tacit.noise import discrete_gaussian
        >>> discrete_gaussian(3.0, (2, 2)).shape
        (2, 2)
    """
    sigma = _checked(sigma, "sigma")
    if sigma < _SMALLEST_SIGMA:
        raise ValueError(f"sigma must be at least 2**-20, not {sigma}: smaller noise is practically always zero")
    origin = SYSTEM if source is None else source
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    t = math.floor(sigma) + 1
    out = np.zeros(count, np.int64)
    waiting = np.arange(count)
    while len(waiting):
        proposal = _two_sided_geometric(float(t), len(waiting), origin)
        accepted = _accept(proposal, sigma, t, origin)
        out[waiting[accepted]] = proposal[accepted]
        waiting = waiting[~accepted]
    return out.reshape(shape)


def bernoulli(p: float | Fraction, shape: Shape = (), *, source: Source | None = None) -> npt.NDArray[np.bool_]:
    """Draw independent events of probability exactly p.

    Args:
        p: The probability, from 0 to 1: any binary64 number or fraction.
        shape: The shape of the result; ``()`` (default) draws one event.
        source: Where random bits come from. None (default) is the operating system; others are for tests.

    Returns:
        Whether each event happened.

    Raises:
        ValueError: If ``p`` is not a probability.

    Example:
        >>> from tacit.noise import bernoulli
        >>> bernoulli(1.0, 3)
        array([ True,  True,  True])
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must be a probability, from 0 to 1, not {p}")
    origin = SYSTEM if source is None else source
    exact = p if isinstance(p, Fraction) else Fraction(float(p))
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    bits = origin.word_bits
    words = origin.words(count)
    # Below the word that p lies in: an event. Above: none. On it: the following bits decide.
    edge = math.floor(exact * (1 << bits))
    if edge >> bits:
        return np.ones(shape, np.bool_)
    out = words < np.uint64(edge)
    for index in np.flatnonzero(words == np.uint64(edge)).tolist():
        out[index] = _below(int(words[index]), exact, origin)
    return out.reshape(shape)


def uniform_integers(bound: int, shape: Shape = (), *, source: Source | None = None) -> Integers:
    """Draw independent integers, exactly uniform from 0 to bound - 1.

    Args:
        bound: The number of possible values, at least 1 and below 2^63.
        shape: The shape of the result; ``()`` (default) draws one number.
        source: Where random bits come from. None (default) is the operating system; others are for tests.

    Returns:
        The integers, as int64.

    Raises:
        ValueError: If ``bound`` is out of range.

    Example:
        >>> from tacit.noise import uniform_integers
        >>> bool((uniform_integers(6, 100) < 6).all())
        True
    """
    if not 1 <= bound < 2**63:
        raise ValueError(f"bound must be at least 1 and below 2**63, not {bound}")
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    drawn = deviates.uniform_below(SYSTEM if source is None else source, np.full(count, bound, np.int64))
    return drawn.reshape(shape)


def _checked(scale: float, name: str) -> float:
    number = positive(scale, name)
    if number > _LARGEST_SCALE:
        raise ValueError(
            f"{name} must be at most 2**40, not {scale}; use add_laplace or add_gaussian with granularity=1.0 instead"
        )
    return number


def _floors(scale: float, noise: deviates.Deviates) -> Integers:
    """Integer parts of scale * deviate, exactly; the interval argument is that of exact.round_to_grid."""
    y = noise.integer + np.ldexp(noise.fraction.astype(np.float64), -noise.source.word_bits)
    product = scale * y
    floor: npt.NDArray[np.float64] = np.floor(product)
    error = 2.0**-50 * (scale * (1 + y) + 1) + scale * 2.0**-noise.source.word_bits
    sure = (product - floor > error) & (floor + 1 - product > error)
    out: Integers = floor.astype(np.int64)
    exact = Fraction(scale)
    for index in np.flatnonzero(~sure).tolist():
        whole = int(noise.integer[index])
        digits, bits = noise.digits(index)
        while True:
            low = math.floor(exact * (whole + Fraction(digits, 1 << bits)))
            if low == math.ceil(exact * (whole + Fraction(digits + 1, 1 << bits))) - 1:
                break
            digits, bits = noise.more(index)
        out[index] = low
    return out


def _accept(proposal: Integers, sigma: float, t: int, source: Source) -> npt.NDArray[np.bool_]:
    """An event of probability exp(-g), g = (|proposal| - sigma^2 / t)^2 / (2 sigma^2), for each proposal.

    g is split into an integer part (that many events of probability 1/e) and a rest. In binary64, g has at most six
    roundings of relative size 2^-53 around a difference whose terms are below |proposal| + sigma: where the bound on
    the error leaves the integer part or a comparison open, the fraction is computed exactly.
    """
    variance = Fraction(sigma) ** 2
    magnitude = np.abs(proposal).astype(np.float64)
    centre = sigma * sigma / t
    difference = magnitude - centre
    g = difference * difference / (2 * sigma * sigma)
    error = 2.0**-48 * (g + (magnitude + centre) * np.abs(difference) / (sigma * sigma) + 2.0**-48)
    whole = np.floor(g)
    exact: dict[int, Fraction] = {}

    def rest(index: int) -> Fraction:
        if index not in exact:
            exact[index] = (abs(int(proposal[index])) - variance / t) ** 2 / (2 * variance)
        return exact[index] - int(whole[index])

    for index in np.flatnonzero((g - whole <= error) | (whole + 1 - g <= error)).tolist():
        whole[index] = 0
        whole[index] = math.floor(rest(index))
    bits = source.word_bits

    def trial(where: deviates.Indices) -> npt.NDArray[np.bool_]:
        words = source.words(len(where))
        uniform = np.ldexp(words.astype(np.float64), -bits)
        gap = (g[where] - whole[where]) - uniform
        below = gap > 0
        for position in np.flatnonzero(np.abs(gap) <= error[where] + 2.0**-50 + 2.0**-bits).tolist():
            below[position] = _below(int(words[position]), rest(int(where[position])), source)
        return below

    everyone = np.arange(len(proposal))
    passed = deviates.all_exp_trials(source, everyone, whole.astype(np.int64))
    alive = np.flatnonzero(passed)
    passed[alive] = deviates.exp_trial(source, alive, trial)
    return passed


def _below(word: int, threshold: Fraction, source: Source) -> bool:
    """Whether a uniform real number beginning with the bits of word lies below the threshold."""
    bits = source.word_bits
    while True:
        if Fraction(word + 1, 1 << bits) <= threshold:
            return True
        if Fraction(word, 1 << bits) >= threshold:
            return False
        word = (word << source.word_bits) | random_bits(source, 1)
        bits += source.word_bits
