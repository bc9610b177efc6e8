"""The number of runs and the choice among finished models follow their laws exactly."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tacit import accounting as acc
from tacit.noise import bernoulli_exp, exponential_choice, poisson, truncated_negative_binomial


class Seeded:
    """Fair words from a generator, for tests that must not change from day to day; few bits, so that ties are met."""

    def __init__(self, seed: int, word_bits: int = 64) -> None:
        self.word_bits = word_bits
        self._generator = np.random.default_rng(seed)

    def words(self, count: int) -> np.ndarray:
        return self._generator.integers(0, 2**self.word_bits, count, dtype=np.uint64, endpoint=False)


def chi_square(drawn: Counter[int], mass: dict[int, float], total: int) -> float:
    """The p-value; values of small expectation are put together."""
    usual = [k for k, p in mass.items() if p * total >= 8]
    seen = [drawn[k] for k in usual]
    expected = [mass[k] * total for k in usual]
    rest, unlikely = total - sum(seen), total - sum(expected)
    if unlikely < 1e-6:
        assert rest == 0
        return float(stats.chisquare(seen, expected).pvalue)
    return float(stats.chisquare([*seen, rest], [*expected, unlikely]).pvalue)


@pytest.mark.parametrize(("eta", "gamma"), [(1.0, 0.1), (0.0, 0.026918), (0.5, 0.0625), (-0.5, 0.3), (2.5, 0.4)])
def test_the_number_of_runs_follows_the_truncated_negative_binomial_law(eta: float, gamma: float) -> None:
    source, total = Seeded(7), 2500
    drawn = Counter(truncated_negative_binomial(eta, gamma, source=source) for _ in range(total))
    k = np.arange(1, 400)
    if eta == 0:
        mass = (1 - gamma) ** k / (k * math.log(1 / gamma))
    else:
        mass = np.cumprod((k - 1 + eta) / k) * (1 - gamma) ** k / (gamma**-eta - 1)
    assert chi_square(drawn, dict(zip(k.tolist(), mass.tolist(), strict=True)), total) > 1e-4
    mean = acc.Selected(acc.Gaussian(1.0), eta=eta, gamma=gamma).runs
    assert sum(n * c for n, c in drawn.items()) / total == pytest.approx(mean, rel=0.15)


def test_a_poisson_number_of_runs_may_be_none() -> None:
    source, total = Seeded(8), 2500
    drawn = Counter(poisson(2.5, source=source) for _ in range(total))
    assert chi_square(drawn, {k: float(stats.poisson.pmf(k, 2.5)) for k in range(30)}, total) > 1e-4
    assert drawn[0] > 0


def test_a_draw_that_few_bits_do_not_decide_takes_more() -> None:
    """With words of one bit nearly every comparison is open at first."""
    source, total = Seeded(9, word_bits=1), 1200
    drawn = Counter(truncated_negative_binomial(1.0, 0.5, source=source) for _ in range(total))
    assert chi_square(drawn, {k: 0.5**k for k in range(1, 30)}, total) > 1e-4


def test_the_exponential_choice_has_its_exact_probabilities() -> None:
    source, total = Seeded(10), 2000
    scores, rate = [1.0, 3.0, 3.5, -2.0], 0.7
    weights = np.exp(rate * np.array(scores))
    drawn = Counter(exponential_choice(scores, rate, source=source) for _ in range(total))
    assert chi_square(drawn, dict(enumerate((weights / weights.sum()).tolist())), total) > 1e-4
    assert np.mean([bernoulli_exp(Fraction(5, 4), source=source) for _ in range(total)]) == pytest.approx(
        math.exp(-1.25), abs=0.03
    )


def test_wrong_parameters_are_refused() -> None:
    for call in (
        lambda: truncated_negative_binomial(-1.0, 0.5),
        lambda: truncated_negative_binomial(1.0, 1.0),
        lambda: poisson(0.0),
        lambda: exponential_choice([], 1.0),
        lambda: bernoulli_exp(Fraction(-1)),
    ):
        with pytest.raises(ValueError, match=r"."):
            call()
