"""Integer noise: discrete Laplace and Gaussian, Bernoulli, uniform integers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tacit.noise import (
    Key,
    bernoulli,
    bernoulli_mask,
    discrete_gaussian,
    discrete_laplace,
    exponential_choice,
    poisson,
    truncated_negative_binomial,
    uniform_integers,
)


def chi_square(drawn: np.ndarray, weight) -> float:
    """The p-value of integer draws against probabilities proportional to weight(x), rare values pooled."""
    reach = int(np.abs(drawn).max()) + 200
    support = np.arange(-reach, reach + 1)
    expected = weight(support.astype(float))
    expected = expected / expected.sum() * drawn.size
    observed = np.bincount(drawn + reach, minlength=len(support)).astype(float)
    common = expected >= 10
    return stats.chisquare(
        np.append(observed[common], observed[~common].sum()), np.append(expected[common], expected[~common].sum())
    ).pvalue


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5, 17.3])
def test_the_discrete_laplace_has_its_probabilities(scale, seeded):
    drawn = discrete_laplace(scale, 200_000, source=seeded(1))
    assert chi_square(drawn, lambda x: np.exp(-np.abs(x) / scale)) > 1e-3


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0, 2.5, math.pi, 10.0, 40.5])
def test_the_discrete_gaussian_has_its_probabilities(sigma, seeded):
    drawn = discrete_gaussian(sigma, 200_000, source=seeded(2))
    assert chi_square(drawn, lambda x: np.exp(-x * x / (2 * sigma * sigma))) > 1e-3


@pytest.mark.parametrize("word_bits", [4, 6])
def test_draws_that_need_more_bits_are_continued_exactly(word_bits, seeded):
    assert (
        chi_square(discrete_laplace(1.7, 40_000, source=seeded(3, word_bits)), lambda x: np.exp(-np.abs(x) / 1.7))
        > 1e-3
    )
    # sigma = 1.5 makes g exactly an integer for some proposals, 2.0 makes the centre an integer plus 1/3.
    for sigma in (1.5, 2.0):
        drawn = discrete_gaussian(sigma, 40_000, source=seeded(4, word_bits))
        assert chi_square(drawn, lambda x, s=sigma: np.exp(-x * x / (2 * s * s))) > 1e-3


@pytest.mark.parametrize("sigma", [0.7, 5.0, 1000.0, 2.0**40])
def test_the_discrete_gaussian_has_its_moments(sigma, seeded):
    drawn = discrete_gaussian(sigma, 300_000, source=seeded(6)).astype(float)
    support = np.arange(-60, 61.0)
    weights = np.exp(-(support**2) / (2 * min(sigma, 5.0) ** 2))
    # From sigma = 5 on the discrete variance equals sigma^2 to 1e-200, by Poisson summation.
    variance = float((weights * support**2).sum() / weights.sum()) if sigma < 5 else sigma**2
    assert abs(drawn.mean()) < 4.5 * math.sqrt(variance / drawn.size)
    assert abs(drawn.var() / variance - 1) < 4.5 * math.sqrt(3 / drawn.size)


def test_system_randomness_gives_the_same_probabilities():
    assert chi_square(discrete_gaussian(3.0, 50_000), lambda x: np.exp(-x * x / 18)) > 1e-9


@pytest.mark.parametrize("p", [0.0, 1.0, 0.5, 0.1, 1e-3, Fraction(1, 3), 1 - 2**-53])
@pytest.mark.parametrize("word_bits", [4, 64])
def test_bernoulli_happens_with_its_probability(p, word_bits, seeded):
    happened = int(bernoulli(p, 50_000, source=seeded(7, word_bits)).sum())
    assert stats.binomtest(happened, 50_000, float(p)).pvalue > 1e-4


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 10, 16])
@pytest.mark.parametrize("word_bits", [4, 64])
def test_uniform_integers_are_uniform(bound, word_bits, seeded):
    drawn = uniform_integers(bound, 30_000, source=seeded(8, word_bits))
    counts = np.bincount(drawn, minlength=bound)
    assert len(counts) == bound
    assert bound == 1 or stats.chisquare(counts).pvalue > 1e-4


def test_what_cannot_be_drawn_exactly_is_refused():
    for bad in (0.0, -1.0, math.nan, math.inf, 2.0**41):
        with pytest.raises(ValueError):
            discrete_laplace(bad)
        with pytest.raises(ValueError):
            discrete_gaussian(bad)
    with pytest.raises(ValueError, match="at least 2"):
        discrete_gaussian(1e-9)
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="probability"):
            bernoulli(bad)
    with pytest.raises(ValueError, match="bound"):
        uniform_integers(0)


def test_shapes_are_kept():
    assert discrete_laplace(1.0).shape == ()
    assert discrete_gaussian(1.0, (3, 0)).shape == (3, 0)
    assert bernoulli(0.5, (2, 3)).shape == (2, 3)
    assert uniform_integers(5, 4).shape == (4,)
    assert not discrete_laplace(1e-300, 100).any()


def test_parameters_out_of_numpy_are_the_numbers_they_are():
    half = np.float32(0.5)
    assert bernoulli(half, 100).any()
    assert np.array_equal(bernoulli_mask(Key(bytes(32)), 0, 100, half), bernoulli_mask(Key(bytes(32)), 0, 100, 0.5))
    assert truncated_negative_binomial(half, half) >= 1
    assert poisson(half) >= 0
    assert exponential_choice(np.array([0, 90], np.float32), np.float32(1)) == 1
    for scores in ([0.0, math.nan], [0.0, -math.inf]):
        with pytest.raises(ValueError, match="finite"):
            exponential_choice(scores, 1.0)


def test_a_choice_among_many_and_a_large_count_take_no_time(seeded):
    # one good candidate of ten thousand; e^-90,000 begins with forty thousand zeros
    assert exponential_choice([0.0] * 9_999 + [60.0], 1.0, source=seeded(3)) == 9_999
    counts = [poisson(700.25, source=seeded(k)) for k in range(300)]
    assert abs(np.mean(counts) - 700.25) < 4 * math.sqrt(700 / 300)
    assert abs(poisson(90_000.0, source=seeded(5)) - 90_000) < 1800
