"""Mechanisms of bounded range cost what their worst adaptive choice does, and not less."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from tacit import accounting as acc
from tacit.accounting import bounded_range
from tacit.accounting.bounded_range import pair_of_bounded_range
from tacit.accounting.crossing import OneStep


def largest(size: float, times: int, epsilon: float, choices: int = 200) -> float:
    """δ(ε) where each mechanism is the worst of many after what was seen: tried one by one."""
    t = np.linspace(0.0, size, choices + 1)
    high = (np.exp(-t) - math.exp(-size)) / -math.expm1(-size)  # Q-mass of the loss t; the other is t - size

    def best(loss: float, left: int) -> float:
        if left == 1:
            up, down = (np.maximum(np.exp(loss + x) - math.exp(epsilon), 0.0) for x in (t, t - size))
            return float((high * up + (1 - high) * down).max())
        return max(
            q * best(loss + x, left - 1) + (1 - q) * best(loss + x - size, left - 1)
            for x, q in zip(t, high, strict=True)
        )

    return best(0.0, times)


def fixed(size: float, times: int, delta: float) -> float:
    """ε at δ of the worst t that is the same for all: what nobody may claim to be below."""

    def price(t: float) -> float:
        p = -math.expm1(t - size) / -math.expm1(-size)
        k = np.arange(times + 1)
        mass, loss = binom.pmf(k, times, p), times * (t - size) + size * k
        low, high = 0.0, times * size
        for _ in range(60):
            middle = 0.5 * (low + high)
            over = float((mass * np.maximum(-np.expm1(np.minimum(middle - loss, 0.0)), 0.0)).sum())
            low, high = (middle, high) if over > delta else (low, middle)
        return high

    return max(price(t) for t in np.linspace(0.01, 0.99, 197) * size)


@pytest.mark.parametrize(("size", "times"), [(0.7, 1), (0.7, 2), (2.5, 2), (0.1, 2)])
def test_the_worst_choice_is_met_closely_from_above(size: float, times: int) -> None:
    law = pair_of_bounded_range(size, times, -40.0)
    assert law is not None
    for epsilon in np.linspace(0.0, 0.9, 5) * times * size:
        true, bound = largest(size, times, epsilon), OneStep(law).interval(epsilon)[1]
        assert true <= bound * (1 + 1e-12) <= true * 1.003 + 1e-5 * size


def test_a_hundred_of_them_cost_a_little_more_than_the_worst_that_is_fixed_beforehand() -> None:
    price = acc.epsilon(acc.ExponentialMechanism(0.2) * 100, 1e-6)
    best = fixed(0.2, 100, 1e-6)
    assert best == pytest.approx(4.8567, abs=1e-4)
    assert price.lower <= best <= price.upper < 4.88


def test_a_price_for_the_middle_choice_only_is_noticed() -> None:
    """The wrong version: t is half the range, which is randomised response."""
    price = acc.epsilon(acc.PureDP(0.1) * 100, 1e-6)
    assert price.upper < fixed(0.2, 100, 1e-6)


def test_points_between_the_grid_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coarser grid never costs less: chords and maxima lie above."""
    pairs = []
    for finest in (4, 8, 16):
        monkeypatch.setattr(bounded_range, "FINEST", finest)
        pair_of_bounded_range.cache_clear()
        law = pair_of_bounded_range(0.5, 10, -40.0)
        assert law is not None
        pairs.append([OneStep(law).interval(epsilon)[1] for epsilon in (0.0, 0.5, 1.5, 3.0)])
    pair_of_bounded_range.cache_clear()
    for coarse, fine in itertools.pairwise(pairs):
        assert all(one >= other * (1 - 1e-9) for one, other in zip(coarse, fine, strict=True))


def test_beside_other_parts_it_is_never_dearer_than_pure_guarantees() -> None:
    beside = acc.PoissonSampled(acc.Gaussian(1.0), 0.01) * 200
    range_of, pure = (
        acc.epsilon(beside + part * 20, 1e-6) for part in (acc.ExponentialMechanism(0.1), acc.PureDP(0.1))
    )
    assert range_of.upper < pure.lower
