"""Which of these finished models is best, privately? The exponential mechanism, permute-and-flip, and a general form.

All draw exactly (:func:`tacit.noise.exponential_choice`, :func:`tacit.noise.bernoulli_exp`): scores are taken as the
rational numbers they are, so that no rounding leaks. They pay for the choice only; the training of *every* candidate is
paid for beside it.
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
    """The index of a good score: i with probability proportional to exp(ε·score_i / (2·sensitivity)).

    With ``monotone`` (one record moves all scores the same way, as added records do with counts of right answers) the 2
    is left out. Guarantee: ``acc.ExponentialMechanism(epsilon)``, so ε-DP, for the adjacency under which
    ``sensitivity`` (and ``monotone``) hold.

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
    """The index of a good score: one after the other at random, i is taken with probability exp(-ε·gap_i / (2·Δ)).

    gap_i is by how much score i falls short of the best, Δ the sensitivity. Never worse in expectation than the
    exponential mechanism at the same ε (McKenna & Sheldon 2020). ``monotone`` as in :func:`exponential_mechanism`.
    Guarantee: ``acc.PureDP(epsilon)``, for the adjacency under which ``sensitivity`` (and ``monotone``) hold; no
    bounded range is claimed.

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
    """The index of a good (large) score where one record moves score i by at most ``sensitivities[i]``.

    Raskhodnikova & Smith 2016: every score is compared with every other in units of both sensitivities, with a penalty
    t = 2 log(k/β)/ε for each, and the exponential mechanism chooses by the comparisons, which have sensitivity 1. With
    probability 1 - β the choice is nearly as good as the best score less its own penalty, so that one candidate of
    large sensitivity does not blur the others. Guarantee: ``acc.ExponentialMechanism(epsilon)``.

    >>> generalised_exponential_mechanism([10.0, 900.0, 20.0], [1.0, 1.0, 5.0], epsilon=1.0)
    1
    """
    _check(scores, epsilon)
    if len(scores) != len(sensitivities):
        raise TuningError(f"{len(scores)} scores and {len(sensitivities)} sensitivities")
    if not all(0 < d < math.inf for d in sensitivities):
        raise TuningError("every sensitivity is a number above 0")
    if not 0 < beta < 1:
        raise TuningError(f"beta is a probability between 0 and 1, not {beta!r}")
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
        raise TuningError(f"the sensitivity is a number above 0, not {sensitivity!r}")
    epsilon, sensitivity = _numbers([epsilon, sensitivity])
    return Fraction(epsilon) / (Fraction(sensitivity) * (1 if monotone else 2))


def _check(scores: Sequence[float], epsilon: float) -> None:
    if not len(scores):
        raise TuningError("there is nothing to choose from")
    if not all(math.isfinite(s) for s in scores):
        raise TuningError("scores are finite numbers: give a failed candidate the lowest score there is")
    if not 0 < epsilon < math.inf:
        raise TuningError(f"ε of the choice is a number above 0, not {epsilon!r}")
