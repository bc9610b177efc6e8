"""What every mechanism promises, whatever it is."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from tacit import accounting as acc
from tacit.accounting.mixture import MixtureLoss
from tests.accounting.catalogue import CASES, MECHANISMS

DELTA = 1e-5


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_the_price_is_an_interval_that_says_what_it_is_about(name: str, adjacency: str) -> None:
    bound = acc.epsilon(MECHANISMS[name] * 3, DELTA, adjacency=adjacency)
    assert 0 <= bound.lower <= bound.upper < 10
    assert (bound.adjacency, bound.unit, bound.given) == (adjacency, "record", DELTA)
    if isinstance(MECHANISMS[name], acc.BallsInBins):
        assert bound.width <= 1e-3 * max(1.0, bound.upper) or not bound.tight
    elif bound.tight:
        assert bound.width <= 1e-4 * bound.upper + 1e-5


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_a_repeat_count_is_never_forgotten(name: str, adjacency: str) -> None:
    once, often = (acc.epsilon(MECHANISMS[name] * n, DELTA, adjacency=adjacency).upper for n in (1, 12))
    assert often > 1.2 * once
    orders = [1.5, 4.0]
    if MECHANISMS[name].extra_delta() == 0:
        single, many = (acc.renyi(MECHANISMS[name] * n, orders, adjacency=adjacency) for n in (1, 12))
        assert many == pytest.approx(12 * single)


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_a_larger_delta_never_costs_more(name: str, adjacency: str) -> None:
    values = [acc.epsilon(MECHANISMS[name] * 3, d, adjacency=adjacency) for d in (1e-6, 1e-5, 1e-3)]
    for tight, loose in itertools.pairwise(values):
        assert loose.lower <= tight.upper
        assert loose.upper <= tight.upper * (1 + 1e-4) + 1e-5


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_delta_and_epsilon_are_each_others_inverse(name: str, adjacency: str) -> None:
    mechanism = MECHANISMS[name] * 3
    bound = acc.epsilon(mechanism, DELTA, adjacency=adjacency)
    assert acc.delta(mechanism, bound.upper, adjacency=adjacency).lower <= DELTA
    if bound.tight:
        assert acc.delta(mechanism, bound.lower, adjacency=adjacency).upper >= DELTA


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_a_group_of_one_is_a_record(name: str, adjacency: str) -> None:
    mechanism = MECHANISMS[name] * 3
    plain, group = acc.epsilon(mechanism, DELTA, adjacency=adjacency), None
    group = acc.epsilon(mechanism, DELTA, adjacency=adjacency, group=1)
    assert (group.lower, group.upper) == (plain.lower, plain.upper)


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_a_group_of_two_costs_more_or_is_refused(name: str, adjacency: str) -> None:
    mechanism = MECHANISMS[name]
    try:
        group = acc.epsilon(mechanism, DELTA, adjacency=adjacency, group=2)
    except acc.AccountingError as refused:
        if "groups" not in str(refused):
            raise
        return
    assert group.upper > 1.5 * acc.epsilon(mechanism, DELTA, adjacency=adjacency).upper


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_composition_commutes(name: str, adjacency: str) -> None:
    one, other = MECHANISMS[name], acc.Gaussian(4.0)
    first = acc.epsilon(one * 2 + other + one, DELTA, adjacency=adjacency)
    second = acc.epsilon(other + one * 3, DELTA, adjacency=adjacency)
    assert first.lower <= second.upper
    assert second.lower <= first.upper
    assert first.upper == pytest.approx(second.upper, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_bounds_by_other_theorems_lie_above_the_lower_end(name: str, adjacency: str) -> None:
    table = acc.compare(MECHANISMS[name] * 3, DELTA, adjacency=adjacency)
    for way, price in table.prices.items():
        if not price.approximation:
            assert price.epsilon >= table["certified"].lower, way


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_renyi_divergence_grows_with_its_order(name: str, adjacency: str) -> None:
    if MECHANISMS[name].extra_delta() > 0:
        with pytest.raises(acc.AccountingError, match="truncates"):
            acc.renyi(MECHANISMS[name], [2.0], adjacency=adjacency)
        return
    values = acc.renyi(MECHANISMS[name], [1.5, 2.0, 3.7, 8.0, 20.0], adjacency=adjacency)
    assert values[0] > 0
    if not MECHANISMS[name].is_tight(adjacency):
        return  # a bound from above may be loose at small orders
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(values))


@pytest.mark.parametrize("name", MECHANISMS)
def test_json_round_trips(name: str) -> None:
    other = acc.Shuffled(acc.Gaussian(2.0)) if "zero-out" in MECHANISMS[name].adjacencies() else acc.Gaussian(2.0)
    for mechanism in (MECHANISMS[name], MECHANISMS[name] * 3, MECHANISMS[name] + other * 2):
        text = json.dumps(mechanism.to_dict())
        assert acc.from_dict(json.loads(text)) == mechanism
        assert json.loads(text)["version"] == 1


@pytest.mark.parametrize("name", MECHANISMS)
def test_what_is_printed_can_be_read_back(name: str) -> None:
    mechanism = MECHANISMS[name] * 2
    if "…" in repr(mechanism):  # a long table is written by its ends; JSON has all of it
        assert max(len(value) for value in vars(MECHANISMS[name]).values() if isinstance(value, tuple)) > 8
        return
    assert eval(repr(mechanism), {n: getattr(acc, n) for n in acc.__all__}) == mechanism


@pytest.mark.parametrize("name", MECHANISMS)
def test_running_it_zero_times_costs_nothing(name: str) -> None:
    adjacency = MECHANISMS[name].adjacencies()[0]
    bound = acc.epsilon(MECHANISMS[name] * 0, DELTA, adjacency=adjacency)
    assert (bound.lower, bound.upper) == (0.0, 0.0)


@pytest.mark.parametrize("name", MECHANISMS)
def test_different_units_do_not_compose(name: str) -> None:
    with pytest.raises(acc.UnitError, match="person"):
        MECHANISMS[name] + acc.Gaussian(1.0, unit="person")


@pytest.mark.parametrize("name", MECHANISMS)
def test_an_adjacency_it_states_nothing_about_is_refused(name: str) -> None:
    for adjacency in set(acc.ADJACENCIES) - set(MECHANISMS[name].adjacencies()):
        with pytest.raises(acc.AdjacencyError):
            acc.epsilon(MECHANISMS[name], DELTA, adjacency=adjacency)
    with pytest.raises(acc.AdjacencyError, match="choose one of"):
        acc.epsilon(MECHANISMS[name], DELTA, adjacency="neighbour")


def test_a_characteristic_function_lost_in_rounding_is_said_to_be_lost() -> None:
    """Nearly all records are drawn and little noise: far out the terms of the quadrature cancel to rounding or to 0."""
    rate, sigma, t = 256 / 261, 2.4, np.array([0.0, 1.0, 60.0, 200.0])
    value, error = MixtureLoss(sigma, {0.0: 1 - rate, 1.0: rate}, {0.0: 1.0}).log_mgf(2.0, t)
    assert np.isfinite(value).all()
    assert np.isfinite(error).all()
    assert (error[:2] < 1e-9).all()
    assert (error[2:] == 2.0).all()  # the number given is the error itself, and the truth at most twice that away
    assert (value.real[2:] - value.real[0] < np.log(1e-9)).all()
