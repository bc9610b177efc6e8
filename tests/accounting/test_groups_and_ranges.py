"""What a chain of neighbours and a choice really reveal, next to what they are priced at."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tacit import accounting as acc


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("group", [2, 3, 6])
def test_a_group_pays_for_the_worst_chain_of_its_neighbours(epsilon: float, group: int) -> None:
    delta = 1e-6
    # A chain in which every neighbour is (ε, δ)-close to the last, and an event that grows by e^ε and δ at each.
    mass = [0.0]
    for _ in range(group):
        mass.append(math.exp(epsilon) * mass[-1] + delta)
    for less, more in itertools.pairwise(mass):
        assert more <= math.exp(epsilon) * less + delta * (1 + 1e-12)
        assert 1 - less <= math.exp(epsilon) * (1 - more) + delta
    price = acc.delta(acc.ApproxDP(epsilon, delta), group * epsilon, group=group)
    assert mass[-1] * (1 - 1e-12) <= price.upper <= mass[-1] * (1 + 1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_renyi_divergence_of_a_choice_is_the_largest_of_any_choice_of_that_range(epsilon: float) -> None:
    orders = np.array([1.5, 2.0, 8.0, 64.0])
    priced = acc.ExponentialMechanism(epsilon).renyi("add-remove", orders)
    assert priced is not None
    # Two outcomes with losses t and t - ε: the worst there is (Dong, Durfee & Rogers 2020). The probability that makes
    # both sum to one follows from t.
    t = np.linspace(1e-6, epsilon - 1e-6, 20_001)[:, None]
    p = np.expm1(t - epsilon) / np.expm1(-epsilon) * np.exp(-t)  # under the second data set
    first = p * np.exp(t)
    assert np.allclose(first + (1 - p) * np.exp(t - epsilon), 1.0)
    log_terms = np.logaddexp(
        orders * np.log(first) + (1 - orders) * np.log(p),
        orders * (np.log1p(-p) + t - epsilon) + (1 - orders) * np.log1p(-p),
    )
    worst = (log_terms / (orders - 1)).max(axis=0)
    assert (priced >= worst * (1 - 1e-7)).all()
    assert (
        priced <= np.minimum(worst * 1.001 + 1e-9, np.minimum(epsilon, epsilon**2 * orders / 8) * (1 + 1e-12))
    ).all()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("group", [2, 3, 5])
def test_a_group_under_a_pure_guarantee_pays_for_the_best_event_of_its_worst_chain(epsilon: float, group: int) -> None:
    # How likely an event of probability a can become on the next neighbour, and so on the k-th: no pair of data sets
    # has a larger δ than sup over a of g(...g(a)) - e^x a, and thresholds of discrete Laplace noise attain it.
    a = np.append(np.geomspace(1e-12, 0.5, 200_001), np.linspace(0.5, 1.0, 2_001))
    ends = a
    for _ in range(group):
        ends = np.minimum(math.exp(epsilon) * ends, 1 - math.exp(-epsilon) * (1 - ends))
    for x in (0.0, 0.3 * group * epsilon, 0.9 * group * epsilon):
        true = float((ends - math.exp(x) * a).max())
        price = acc.delta(acc.PureDP(epsilon), x, group=group)
        assert price.lower <= true * (1 + 1e-3) + 1e-12
        assert true * (1 - 1e-9) <= price.upper <= true * (1 + 1e-3) + 1e-12
        assert acc.delta(acc.ApproxDP(epsilon, 0.0), x, group=group).lower <= true * (1 + 1e-3)


def test_groups_too_large_to_compose_are_priced_from_both_sides() -> None:
    for run, group in ((acc.PureDP(0.001), 5_000), (acc.PureDP(1.0), 900), (acc.ApproxDP(0.3, 1e-9), 4_000)):
        price = acc.delta(run, 0.5, group=group)
        assert 0 < price.lower <= price.upper <= 1
        assert not price.tight
    assert acc.epsilon(acc.PureDP(0.25), 0, group=4).upper == 1.0
