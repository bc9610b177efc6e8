"""Exact draws reach as far as their law does: no largest value is built in."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tacit.noise import deviates


class Leaning:
    """Words that are even nine times in ten. Half-chances happen more often then, so that large draws are common."""

    word_bits = 64

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def words(self, count: int) -> np.ndarray:
        words = self._generator.integers(0, 1 << 64, count, dtype=np.uint64, endpoint=False)
        return words & ~(self._generator.random(count) < 0.9).astype(np.uint64)


def test_a_normal_deviate_may_be_larger_than_six():
    found = deviates.normal(500, Leaning(1))
    assert found.integer.max() >= 6


@pytest.mark.parametrize("law", ["laplace", "exponential"])
def test_a_laplace_deviate_may_be_larger_than_ten(law):
    assert getattr(deviates, law)(3_000, Leaning(1)).integer.max() >= 10


@pytest.mark.parametrize(("law", "tail"), [("normal", stats.norm.sf), ("laplace", stats.laplace.sf)])
def test_the_tails_of_exact_draws_have_their_mass(law, tail, seeded):
    count = 150_000
    found = getattr(deviates, law)(count, seeded(7))
    size = found.integer + found.fraction / 2.0**64
    for at in (1.0, 2.0, 3.0, 3.5):
        expected = count * 2 * tail(at)
        assert abs((size >= at).sum() - expected) < 5.5 * np.sqrt(expected)
    assert abs(found.negative.mean() - 0.5) < 5.5 * 0.5 / np.sqrt(count)
