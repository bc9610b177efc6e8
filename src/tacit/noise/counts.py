"""How many runs, and which candidate? Exact draws of counts and of choices for private selection.

The laws have real parameters, so their probabilities are irrational; the draws are exact all the same. A count is found
by comparing a uniform number, bit by bit, with the distribution function in decimal arithmetic of growing precision,
until the comparison is decided. A choice with probabilities proportional to exp(-x) uses rejection, with events of
probability exp(-x) drawn exactly for rational x (Canonne, Kamath & Steinke 2020, algorithm 1).
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction

import numpy as np

from tacit.noise import deviates
from tacit.noise.discrete import bernoulli, uniform_integers
from tacit.noise.entropy import SYSTEM, Source, random_bits

#: Words of the uniform number and digits of the arithmetic to begin with; both grow where they do not decide.
_WORDS, _DIGITS = 2, 60
#: A term below this share of what is left to decide ends no search; a count beyond this ends it with an error.
_LARGEST = 10_000_000
#: A Poisson count with a larger mean than this is drawn in pieces.
_PIECE = 512.0


def truncated_negative_binomial(eta: float, gamma: float, *, source: Source | None = None) -> int:
    """Draw a count from the truncated negative binomial law, exactly.

    Pr[K=k] = (1-γ)^k/(γ^-η - 1)·∏_{l<k}(l+η)/(l+1) for k >= 1, and (1-γ)^k/(k log(1/γ)) for η = 0.

    Args:
        eta: The shape η, above -1: 1 is the geometric law, 0 the logarithmic one.
        gamma: The parameter γ, between 0 and 1; smaller means more.
        source: Where random bits come from. None (default) is the operating system; others are for tests.

    Returns:
        The count, 1 or more.

    Raises:
        ValueError: If ``eta`` or ``gamma`` is out of range.

    Example:
        >>> from tacit.noise import truncated_negative_binomial
        >>> truncated_negative_binomial(1.0, 0.5) >= 1
        True
    """
    eta, gamma = float(eta), float(gamma)
    if not (eta > -1 and math.isfinite(eta)):
        raise ValueError(f"eta must be a number above -1, not {eta}")
    if not 0 < gamma < 1:
        raise ValueError(f"gamma must lie between 0 and 1, not {gamma}")

    def first() -> Decimal:
        g = Decimal(gamma)
        if eta == 0:
            return (1 - g) / -g.ln()
        # γ^-η - 1 loses digits where η is small: as many as η has leading zeros, which the precision allows for
        return (1 - g) * Decimal(eta) / ((-g.ln() * Decimal(eta)).exp() - 1)

    def ratio(k: int) -> Decimal:
        return (1 - Decimal(gamma)) * (Decimal(k) + Decimal(eta)) / Decimal(k + 1)

    spare = max(0, -math.frexp(eta)[1]) // 3 if eta else 0
    return _invert(first, ratio, 1, SYSTEM if source is None else source, spare)


def poisson(mean: float, *, source: Source | None = None) -> int:
    """Draw a Poisson count, exactly: Pr[K=k] = e^-mean mean^k/k!.

    Args:
        mean: The mean, above 0 and at most 100,000.
        source: Where random bits come from. None (default) is the operating system; others are for tests.

    Returns:
        The count, 0 or more.

    Raises:
        ValueError: If ``mean`` is out of range.

    Example:
        >>> from tacit.noise import poisson
        >>> poisson(3.0) >= 0
        True
    """
    mean = float(mean)
    if not 0 < mean <= 1e5:
        raise ValueError(f"mean must be above 0 and at most 100,000, not {mean}")
    # A large count is the sum of independent smaller ones: e^-mean has as many leading zeros as the mean is large.
    pieces, rest = divmod(mean, _PIECE)
    return sum(_poisson(_PIECE, source) for _ in range(int(pieces))) + (_poisson(rest, source) if rest else 0)


def _poisson(mean: float, source: Source | None) -> int:
    return _invert(
        lambda: (-Decimal(mean)).exp(),
        lambda k: Decimal(mean) / Decimal(k + 1),
        0,
        SYSTEM if source is None else source,
        int(mean * 0.44) + 1,  # e^-mean begins with so many zeros
    )


def _invert(
    first: Callable[[], Decimal], ratio: Callable[[int], Decimal], start: int, source: Source, spare: int
) -> int:
    """The smallest k whose distribution function lies above a uniform number.

    With p digits every term has a relative error below (4 + 4(k - start))·10^-p, and so has their sum up to rounding.
    """
    bits = random_bits(source, _WORDS)
    count = _WORDS * source.word_bits
    digits = _DIGITS + spare
    while True:
        with decimal.localcontext() as context:
            context.prec, context.Emin, context.Emax = digits, -999_999_999, 999_999_999
            scale = Decimal(2) ** count
            low, high = Decimal(bits) / scale, Decimal(bits + 1) / scale
            term = first()
            total, k = term, start
            unit = Decimal(10) ** (10 + spare - digits)
            while True:
                slack = unit * (k - start + 8) + Decimal(10) ** (4 - digits)
                if high + slack <= total - slack:
                    return k
                if low - slack < total + slack:
                    break  # between two counts: more bits
                term *= ratio(k)
                k += 1
                if k > _LARGEST:
                    raise ArithmeticError("the count drawn is beyond ten million: choose a smaller mean")
                total += term
        bits = (bits << (_WORDS * source.word_bits)) | random_bits(source, _WORDS)
        count += _WORDS * source.word_bits
        digits += 40


def bernoulli_exp(x: Fraction, *, source: Source | None = None) -> bool:
    """Draw an event of probability exactly exp(-x).

    Args:
        x: A rational number, 0 or more.
        source: Where random bits come from. None (default) is the operating system; others are for tests.

    Returns:
        Whether the event happened.

    Raises:
        ValueError: If ``x`` is negative.

    Example:
        >>> from fractions import Fraction
        >>> from tacit.noise import bernoulli_exp
        >>> bernoulli_exp(Fraction(0))
        True
    """
    if x < 0:
        raise ValueError(f"x must be 0 or more, so that exp(-x) is a probability, not {x}")
    for _ in range(math.floor(x)):
        if not _below_one(Fraction(1), source):
            return False
    return _below_one(x - math.floor(x), source)


def _below_one(x: Fraction, source: Source | None) -> bool:
    """exp(-x) for 0 <= x <= 1: the number of heads with probabilities x, x/2, x/3, … before the first tail is even."""
    k = 1
    while bool(bernoulli(x / k, source=source)):
        k += 1
    return k % 2 == 1


def exponential_choice(
    scores: Sequence[float | Fraction], rate: float | Fraction, *, source: Source | None = None
) -> int:
    """Choose an index i with probability proportional to exp(rate · scores[i]), exactly.

    How long a call takes depends on the scores: do not let an adversary time it.

    Guarantee:
        The exponential mechanism (McSherry & Talwar 2007) of the numbers as given, without a rounding of its own. If
        one neighbour moves every score by at most Δ, the choice has bounded range 2·Δ·rate, and Δ·rate if it moves all
        scores
        the same way: price it as ``accounting.ExponentialMechanism`` of that range, under the adjacency and unit of Δ.

    Args:
        scores: The private scores, one for each candidate; finite.
        rate: How strongly higher scores are preferred, 0 or more. 0 is a uniform choice.
        source: Where random bits come from. None (default) is the operating system; others are for tests.

    Returns:
        The index of the chosen candidate.

    Raises:
        ValueError: If there are no scores, or a score or the rate is not a finite number (the rate 0 or more).

    Example:
        >>> from tacit.noise import exponential_choice
        >>> exponential_choice([0.0, 1e6], rate=1.0)
        1
    """
    exact = [_fraction(score, "each score") for score in scores]
    if not exact:
        raise ValueError("scores is empty: there is nothing to choose from")
    slope = _fraction(rate, "rate")
    if slope < 0:
        raise ValueError(f"rate must be 0 or more, not {rate}")
    best = max(exact)
    origin = SYSTEM if source is None else source
    gaps = [slope * (best - score) for score in exact]
    whole = np.array([min(math.floor(gap), 1 << 62) for gap in gaps], np.int64)
    proposed = min(len(exact), 4096)
    while True:
        # As many proposals at once as there are candidates, of which one is accepted on average; the first one counts.
        i = uniform_integers(len(exact), proposed, source=source)
        likely = i[deviates.all_exp_trials(origin, np.arange(proposed), whole[i])]
        for index in likely.tolist():
            if _below_one(gaps[index] - int(whole[index]), source):
                return int(index)


def _fraction(number: float | Fraction, name: str) -> Fraction:
    """The rational number that this is; what has none is refused by name."""
    plain = number.item() if isinstance(number, np.generic) else number
    if isinstance(plain, float) and not math.isfinite(plain):
        raise ValueError(f"{name} must be a finite number")
    return Fraction(plain)
