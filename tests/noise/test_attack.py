"""The textbook attack on floating-point noise (Mironov 2012): it reads the value from naive noise, nothing from ours.

Naive Laplace noise is value + scale * (±log u) in binary64 with u one of 2^53 numbers. For each value only some outputs
are possible, and different ones for different values. The attacker sees an output and asks, for each candidate value,
whether some u explains it.
"""

import math

import numpy as np
import pytest

from tacit.noise import add_gaussian, add_laplace, default_granularity

SCALE = 10.0  # values 0 and 1 differ by 1: ideal noise is 0.1-DP
BEST_GUESS = math.exp(0.1) / (1 + math.exp(0.1))  # no test can be right more often than this against 0.1-DP
RELEASES = 4000


def naive(value: float, u: np.ndarray, sign: np.ndarray) -> np.ndarray:
    return value + SCALE * (sign * np.log(u))


def explained(outputs: np.ndarray, value: float) -> np.ndarray:
    """Whether each output is value plus naive noise for some u: u is solved for, and its neighbours are tried."""
    distance = outputs - value
    sign = np.where(distance < 0, 1.0, -1.0)
    nearest = np.rint(np.exp(-np.abs(distance) / SCALE) * 2.0**53)
    # exp loses up to |distance| / scale units of relative precision: try a window of neighbours.
    found = np.zeros(len(outputs), bool)
    for step in range(-40, 41):
        u = (nearest + step) * 2.0**-53
        valid = (u > 0) & (u <= 1)
        found |= valid & (naive(value, np.where(valid, u, 0.5), sign) == outputs)
    return found


def guesses(outputs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The attacker's guess: the value that explains the output, a coin where both or neither do."""
    zero, one = explained(outputs, 0.0), explained(outputs, 1.0)
    return np.where(zero == one, generator.integers(0, 2, len(outputs)), np.where(one, 1, 0))


def test_the_attack_reads_the_value_from_naive_noise():
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 2, RELEASES)
    u = generator.integers(1, 2**53, RELEASES) * 2.0**-53
    outputs = naive(truth.astype(float), u, generator.choice([-1.0, 1.0], RELEASES))
    assert np.all(np.where(truth == 1, explained(outputs, 1.0), explained(outputs, 0.0)))
    accuracy = (guesses(outputs, generator) == truth).mean()
    assert accuracy > 0.75 > BEST_GUESS
    # Where only one value explains the output the attacker is certain, and right every time.
    certain = explained(outputs, 0.0) != explained(outputs, 1.0)
    assert certain.mean() > 0.5
    assert np.all((guesses(outputs, generator) == truth)[certain])


def test_the_attack_learns_nothing_from_exact_noise():
    generator = np.random.default_rng(1)
    truth = generator.integers(0, 2, RELEASES)
    outputs = add_laplace(truth.astype(float), SCALE)
    accuracy = (guesses(outputs, generator) == truth).mean()
    assert accuracy < BEST_GUESS + 5 * math.sqrt(0.25 / RELEASES)


@pytest.mark.parametrize("add", [add_laplace, add_gaussian])
def test_neighbouring_values_have_the_same_possible_outputs(add, seeded):
    """On a coarse grid every cell in reach is hit from both values, also when the values lie off the grid."""
    one = add(np.full(60_000, 0.1), 1.0, granularity=0.125, source=seeded(1))
    other = add(np.full(60_000, 0.1 + 2.0**-50), 1.0, granularity=0.125, source=seeded(2))
    cells = set(np.arange(-2.0, 2.01, 0.125))
    assert cells <= set(one)
    assert cells <= set(other)
    grid = default_granularity(1.0)
    for value in (0.0, 1 / 3, 1e-9, 1.0):
        fine = add(np.full(2000, value), 1.0, source=seeded(3))
        assert np.all(np.mod(fine, grid) == 0)


def test_the_last_bits_of_exact_noise_are_fair_whatever_the_value(seeded):
    """The lowest grid bit is a coin from every value: the lattice tells the attacker nothing."""
    for seed, value in enumerate((0.0, 1.0, 0.3, 1 / 3)):
        units = add_laplace(np.full(40_000, value), SCALE, source=seeded(seed)) / default_granularity(SCALE)
        for bit in range(4):
            ones = np.floor(units / 2**bit) % 2
            assert abs(ones.mean() - 0.5) < 4.5 * math.sqrt(0.25 / 40_000)
