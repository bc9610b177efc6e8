"""Which of these finished models is best, privately? The exponential mechanism, permute-and-flip, and a general form.

All draw exactly (:func:`tacit.noise.exponential_choice`, :func:`tacit.noise.bernoulli_exp`): scores are taken as exact
fractions, so that no rounding leaks. The price covers the choice only; the training of *every* candidate has its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from tacit.noise import bernoulli_exp, exponential_choice, uniform_integers
from tacit.noise.entropy import Source
from tacit.tuning.errors import TuningError


def exponential_mechanism(
    scores: Sequence[float],
    epsilon: float,
    *,
    sensitivity: float = 1.0,
    monotone: bool = False,
    source: Source | None = None,
) -> int:
    """Choose a good score: i with probability proportional to exp(ε·score_i / (2·sensitivity)).

    Guarantee:
        ``acc.ExponentialMechanism(epsilon)``, so ε-DP, for the adjacency and the unit for which ``sensitivity`` (and
        ``monotone``) hold.

    Args:
        scores: The exact scores, private; larger is better.
        epsilon: The ε of the choice, above 0.
        sensitivity: By how much one unit can move any score.
        monotone: Whether one unit moves all scores in the same direction, as an added record does with counts of right
            answers. The 2 is then left out.
        source: Where random bits come from; None is the operating system's entropy. Another source is for tests.

    Returns:
        The index of the chosen score.

    Example:
        >>> exponential_mechanism([10.0, 900.0, 20.0], epsilon=1.0)
        1
    """
    rate = _rate(scores, epsilon, sensitivity, monotone=monotone)
    return exponential_choice(_numbers(scores), rate, source=source)


def permute_and_flip(
    scores: Sequence[float],
    epsilon: float,
    *,
    sensitivity: float = 1.0,
    monotone: bool = False,
    source: Source | None = None,
) -> int:
    """Choose a good score: visit them in random order and take i with probability exp(-ε·gap_i / (2·sensitivity)).

    gap_i is how far score i falls short of the best. Never worse in expectation than the exponential mechanism at the
    same ε (McKenna & Sheldon 2020).

    Guarantee:
        ``acc.PureDP(epsilon)``, for the adjacency and the unit for which ``sensitivity`` (and ``monotone``) hold. No
        bounded range is claimed.

    Args:
        scores: The exact scores, private; larger is better.
        epsilon: The ε of the choice, above 0.
        sensitivity: By how much one unit can move any score.
        monotone: Whether one unit moves all scores in the same direction. The 2 is then left out.
        source: Where random bits come from; None is the operating system's entropy. Another source is for tests.

    Returns:
        The index of the chosen score.

    Example:
        >>> permute_and_flip([10.0, 900.0, 20.0], epsilon=1.0)
        1
    """
    rate = _rate(scores, epsilon, sensitivity, monotone=monotone)
    exact = [Fraction(score) for score in _numbers(scores)]
    best, left = max(exact), list(range(len(exact)))
    while True:
        i = left.pop(int(uniform_integers(len(left), source=source)))
        if bernoulli_exp(rate * (best - exact[i]), source=source):  # the best one always is
            return i


def generalised_exponential_mechanism(
    scores: Sequence[float],
    sensitivities: Sequence[float],
    epsilon: float,
    *,
    beta: float = 0.05,
    source: Source | None = None,
) -> int:
    """Choose a good score if scores have different sensitivities (Raskhodnikova & Smith 2016).

    Every score is compared with every other in units of both sensitivities, with a penalty of 2 log(k/β)/ε for each,
    and the exponential mechanism chooses by the comparisons. With probability 1 - β the choice is nearly as good as the
    best score minus its own penalty, so one candidate of large sensitivity does not blur the others.

    Guarantee:
        ``acc.ExponentialMechanism(epsilon)``, for the adjacency and the unit for which ``sensitivities`` hold: each
        comparison has sensitivity 1.

    Args:
        scores: The exact scores, private; larger is better.
        sensitivities: By how much one unit can move each score, one number per score.
        epsilon: The ε of the choice, above 0.
        beta: The probability of a choice that falls short, between 0 and 1. It decides utility, not privacy.
        source: Where random bits come from; None is the operating system's entropy. Another source is for tests.

    Returns:
        The index of the chosen score.

    Raises:
        TuningError: If there are no scores, if they are not finite, or if a parameter is out of range.

    Example:
        >>> generalised_exponential_mechanism([10.0, 900.0, 20.0], [1.0, 1.0, 5.0], epsilon=1.0)
        1
    """
    _check(scores, epsilon)
    if len(scores) != len(sensitivities):
        raise TuningError(f"{len(scores)} scores but {len(sensitivities)} sensitivities: give one for each score")
    if not all(0 < d < math.inf for d in sensitivities):
        raise TuningError("every sensitivity must be a number above 0")
    if not 0 < beta < 1:
        raise TuningError(f"beta must be a probability between 0 and 1, not {beta!r}")
    (epsilon,) = _numbers([epsilon])
    compared = comparisons(scores, sensitivities, epsilon, beta)
    return exponential_choice([-s for s in compared], Fraction(epsilon) / 2, source=source)


def comparisons(
    scores: Sequence[float], sensitivities: Sequence[float], epsilon: float, beta: float = 0.05
) -> list[Fraction]:
    """s_i = max_j [(q_i + tΔ_i) - (q_j + tΔ_j)]/(Δ_i + Δ_j) for q = -score, exactly; each has sensitivity 1.

    >>> [float(s) for s in comparisons([3.0, 1.0], [1.0, 1.0], 1.0)]
    [0.0, 1.0]
    """
    t = Fraction(2 * math.log(len(scores) / beta) / epsilon)
    width = [Fraction(d) for d in _numbers(sensitivities)]
    penalised = [-Fraction(u) + t * d for u, d in zip(_numbers(scores), width, strict=True)]
    return [
        max((p - other) / (d + e) for other, e in zip(penalised, width, strict=True))
        for p, d in zip(penalised, width, strict=True)
    ]


def _numbers(values: Sequence[float]) -> list[float]:
    """Python's own numbers, of which there is an exact fraction; numpy's too, whatever their width."""
    return [value.item() if hasattr(value, "item") else value for value in values]


def _rate(scores: Sequence[float], epsilon: float, sensitivity: float, *, monotone: bool) -> Fraction:
    """What a difference of scores is multiplied with, exactly."""
    _check(scores, epsilon)
    if not 0 < sensitivity < math.inf:
        raise TuningError(f"sensitivity must be a number above 0, not {sensitivity!r}")
    epsilon, sensitivity = _numbers([epsilon, sensitivity])
    return Fraction(epsilon) / (Fraction(sensitivity) * (1 if monotone else 2))


def _check(scores: Sequence[float], epsilon: float) -> None:
    if not len(scores):
        raise TuningError("there is nothing to choose from")
    if not all(math.isfinite(s) for s in scores):
        raise TuningError("scores must be finite numbers: give a failed candidate the lowest possible score")
    if not 0 < epsilon < math.inf:
        raise TuningError(f"epsilon of the choice must be a number above 0, not {epsilon!r}")
