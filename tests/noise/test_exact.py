"""Small releases: exact Laplace and Gaussian noise on a grid."""

import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.noise import add_gaussian, add_laplace, default_granularity, deviates
from tacit.noise.exact import _round_one, round_to_grid

MECHANISMS = [(add_laplace, stats.laplace), (add_gaussian, stats.norm)]


@pytest.mark.parametrize(("add", "law"), MECHANISMS)
def test_the_noise_has_the_distribution_it_is_named_after(add, law, seeded):
    noise = add(np.full(200_000, 3.0), 2.0, source=seeded(1)) - 3.0
    assert stats.kstest(noise / 2.0, law.cdf).pvalue > 1e-3


@pytest.mark.parametrize(("add", "law"), MECHANISMS)
def test_the_operating_systems_randomness_gives_the_same_distribution(add, law):
    # Real entropy: the threshold makes a false alarm a one-in-a-billion event.
    assert stats.kstest(add(np.zeros(50_000), 1.0), law.cdf).pvalue > 1e-9


@pytest.mark.parametrize(("add", "law"), MECHANISMS)
@pytest.mark.parametrize("word_bits", [4, 5, 7])
def test_ties_and_undecided_roundings_are_continued_not_redrawn(add, law, word_bits, seeded):
    """With words of a few bits nearly every comparison and rounding needs more bits; a bias there would show."""
    noise = add(np.full(40_000, 0.3125), 1.0, granularity=0.125, source=seeded(word_bits, word_bits)) - 0.3125
    edges = np.arange(-3.0, 3.01, 0.125)
    # The value lies halfway between two grid points, so each result stands for noise between two multiples of 1/8.
    observed, _ = np.histogram(noise, bins=np.concatenate(([-np.inf], edges, [np.inf])))
    assert set(np.unique(np.mod(noise + 0.3125, 0.125))) == {0.0}
    cells = np.concatenate(([0.0], law.cdf(edges), [1.0]))
    assert stats.chisquare(observed, 40_000 * np.diff(cells)).pvalue > 1e-4


@pytest.mark.parametrize(("add", "law"), MECHANISMS)
def test_moments_are_right_within_their_standard_errors(add, law, seeded):
    noise = add(np.zeros(1_000_000), 1.0, source=seeded(5))
    mean, variance, _, excess = (float(v) for v in law.stats(moments="mvsk"))
    assert abs(noise.mean() - mean) < 4 * math.sqrt(variance / noise.size)
    assert abs(noise.var() / variance - 1) < 4 * math.sqrt((excess + 2) / noise.size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("add", "law", "size"), [(add_laplace, stats.laplace, 60_000_000), (add_gaussian, stats.norm, 25_000_000)]
)
def test_the_variance_is_right_to_a_thousandth(add, law, size, seeded):
    source = seeded(11)
    squares = 0.0
    for _ in range(size // 1_000_000):
        squares += float(np.square(add(np.zeros(1_000_000), 1.0, source=source)).sum())
    assert abs(squares / size / law.var() - 1) < 1e-3


@pytest.mark.parametrize("draw", [deviates.exponential, deviates.normal])
@settings(max_examples=60, deadline=None)
@given(
    value=st.floats(-1e6, 1e6) | st.floats(allow_nan=False, allow_infinity=False),
    scale=st.floats(1e-3, 1e6) | st.floats(5e-324, 1.7e308),
    grid=st.integers(-1074, 1023),
    seed=st.integers(0, 2**32),
)
def test_the_fast_rounding_is_the_exact_rounding(draw, value, scale, grid, seed):
    generator = np.random.default_rng(seed)

    class Words:
        word_bits = 64

        def words(self, count):
            return generator.integers(0, 2**64, count, dtype=np.uint64)

    noise = draw(8, Words())
    noise.negative[:] = generator.integers(0, 2, 8)
    step = math.ldexp(1.0, grid)
    fast = round_to_grid(np.full(8, value), scale, step, noise)
    for index in range(8):
        assert fast[index] == _round_one(value, scale, step, noise, index)
        if abs(fast[index]) < 1e300:
            digits, bits = noise.digits(index)
            sign = -1 if noise.negative[index] else 1
            real = Fraction(value) + sign * Fraction(scale) * (int(noise.integer[index]) + Fraction(digits, 1 << bits))
            slack = Fraction(step) / 2 + Fraction(scale) / 2**60 + abs(real) / 2**52
            assert abs(Fraction(float(fast[index])) - real) <= slack


@pytest.mark.parametrize("add", [add_laplace, add_gaussian])
@pytest.mark.parametrize("granularity", [None, 1.0, 2.0**-10, 64.0])
def test_every_result_lies_on_the_grid(add, granularity, seeded):
    grid = granularity or default_granularity(3.7)
    result = add(np.array([0.1, 1 / 3, 1e3, -math.pi] * 500), 3.7, granularity=granularity, source=seeded(3))
    assert np.all(result / grid == np.rint(result / grid))
    assert not np.any(np.signbit(result[result == 0]))


@settings(max_examples=200, deadline=None)
@given(st.floats(5e-324, 1.7e308))
def test_the_default_grid_is_a_power_of_two_made_from_the_scale_alone(scale):
    grid = default_granularity(scale)
    assert math.frexp(grid)[0] == 0.5
    assert grid == 5e-324 or Fraction(scale) / 2**25 < Fraction(grid) <= Fraction(scale) / 2**24


@pytest.mark.parametrize("add", [add_laplace, add_gaussian])
def test_shapes_and_types_come_back_as_expected(add):
    assert isinstance(add(3, 1.0), float)
    assert isinstance(add(np.float32(0.5), 1.0), float)
    assert add([], 1.0).shape == (0,)
    assert add(np.zeros((2, 0, 3)), 1.0).shape == (2, 0, 3)
    assert add(np.zeros((3, 4), np.int32), 1.0).dtype == np.float64


@pytest.mark.parametrize("add", [add_laplace, add_gaussian])
@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, -0.0])
def test_a_scale_that_protects_nobody_is_refused(add, scale):
    with pytest.raises(ValueError, match="must be positive and finite"):
        add(1.0, scale)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_refused(value):
    with pytest.raises(ValueError, match="finite"):
        add_laplace([1.0, value], 1.0)


def test_values_without_an_exact_meaning_are_refused():
    with pytest.raises(ValueError, match=r"2\*\*53"):
        add_laplace(np.array([2**53 + 1]), 1.0)
    with pytest.raises(TypeError):
        add_laplace(np.array([1j]), 1.0)
    with pytest.raises(TypeError):
        add_laplace(["a"], 1.0)


@pytest.mark.parametrize("granularity", [0.0, -1.0, 0.1, 3.0, math.nan, math.inf])
def test_a_grid_that_is_no_power_of_two_is_refused(granularity):
    with pytest.raises(ValueError, match="power of two"):
        add_laplace(1.0, 1.0, granularity=granularity)


def test_huge_and_tiny_numbers_are_right_or_saturate(seeded):
    biggest = sys.float_info.max
    # Noise far below the value's precision leaves the value as the nearest binary64 number.
    assert add_laplace(1e300, 1.0, source=seeded(1)) == 1e300
    assert abs(add_gaussian(0.0, 1e-300, source=seeded(1))) < 1e-298
    assert add_gaussian(5e-324, 5e-324, source=seeded(1)) / 5e-324 == pytest.approx(1, abs=10)
    results = add_laplace(np.full(200, biggest), biggest, source=seeded(2))
    assert np.isfinite(results).all()
    assert (results == biggest).any()
    assert (results < biggest).any()
    # A grid far finer than the scale is slow, not wrong.
    fine = add_laplace(np.zeros(2000), 1.0, granularity=2.0**-200, source=seeded(4))
    assert stats.kstest(fine, stats.laplace.cdf).pvalue > 1e-3


def test_the_exact_samplers_need_neither_torch_nor_scipy():
    code = (
        "import sys, tacit.noise as n; n.add_laplace(1.0, 1.0); n.discrete_gaussian(2.0);"
        "assert not {'torch', 'scipy'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
