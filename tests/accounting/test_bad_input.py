"""A wrong question gets a clear error or a right answer, never silent nonsense."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tacit import accounting as acc
from tests.accounting.catalogue import poisson

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: acc.Gaussian(-1.0), "noise multiplier"),
        (lambda: acc.Gaussian(NAN), "noise multiplier"),
        (lambda: acc.Gaussian("1.0"), "noise multiplier"),
        (lambda: acc.Laplace(-1.0), "scale"),
        (lambda: acc.Laplace(NAN), "scale"),
        (lambda: acc.PoissonSampled(acc.Gaussian(1.0), 1.5), r"\[0, 1\]"),
        (lambda: acc.PoissonSampled(acc.Gaussian(1.0), -0.1), r"\[0, 1\]"),
        (lambda: acc.PoissonSampled(acc.Gaussian(1.0), NAN), r"\[0, 1\]"),
        (lambda: acc.PoissonSampled(acc.Gaussian(1.0) * 3, 0.1), "one mechanism"),
        (lambda: acc.FixedSizeSampled(acc.Gaussian(1.0), 11, 10), "cannot be drawn"),
        (lambda: acc.ApproxDP(1.0, 1.5), "δ"),
        (lambda: acc.PureDP(-0.1), "epsilon"),
        (lambda: acc.ZCDP(NAN), "rho"),
        (lambda: acc.Gaussian(1.0) * -1, "whole number"),
        (lambda: acc.Gaussian(1.0) * 2.5, "whole number"),
        (lambda: acc.from_dict({"version": 2, "kind": "Gaussian", "noise_multiplier": 1.0}), "version"),
        (lambda: acc.from_dict({"version": 1, "kind": "Gauss"}), "unknown mechanism"),
        (lambda: acc.from_dict({"version": 1, "kind": "Gaussian", "sigma": 1.0}), "description"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(build: Callable[[], object], words: str) -> None:
    with pytest.raises(acc.AccountingError, match=words):
        build()


@pytest.mark.parametrize("delta", [1.0, -1e-5, 2.0, NAN, "1e-5", True])
def test_delta_is_zero_or_more_and_below_one(delta: float) -> None:
    for ask in (acc.epsilon, acc.compare, acc.accountants.rdp, acc.accountants.basic, acc.accountants.gdp):
        with pytest.raises(acc.AccountingError, match="δ"):
            ask(acc.Gaussian(1.0), delta)


@pytest.mark.parametrize("epsilon", [-1.0, NAN])
def test_epsilon_is_not_negative(epsilon: float) -> None:
    with pytest.raises(acc.AccountingError, match="ε"):
        acc.delta(acc.Gaussian(1.0), epsilon)


@pytest.mark.parametrize("group", [0, -1, 1.5, True])
def test_a_group_has_a_whole_number_of_members(group: int) -> None:
    for ask in (acc.epsilon, acc.accountants.rdp):
        with pytest.raises(acc.AccountingError, match="group"):
            ask(acc.Gaussian(1.0), 1e-5, group=group)


@pytest.mark.parametrize("orders", [[1.0], [0.5], [NAN], [INF], []])
def test_renyi_orders_lie_above_one(orders: list[float]) -> None:
    with pytest.raises(acc.AccountingError, match="orders"):
        acc.renyi(acc.Gaussian(1.0), orders)


def test_no_noise_protects_nothing() -> None:
    for mechanism in (acc.Gaussian(0.0), acc.Laplace(0.0), acc.PoissonSampled(acc.Gaussian(0.0), 0.1) * 5):
        bound = acc.epsilon(mechanism, 1e-5)
        assert (bound.lower, bound.upper) == (INF, INF)
        assert "inf" in repr(acc.compare(mechanism, 1e-5))
    assert acc.renyi(acc.Gaussian(0.0), [2.0])[0] == INF


def test_no_steps_and_no_sampling_cost_nothing() -> None:
    for mechanism in (acc.nothing(), acc.Gaussian(1.0) * 0, acc.PoissonSampled(acc.Gaussian(1.0), 0.0) * 100):
        assert acc.epsilon(mechanism, 1e-5).upper == 0
    table = acc.compare(acc.nothing(), 1e-5)
    assert all(price.epsilon == 0 for price in table.prices.values())


@pytest.mark.parametrize(
    "mechanism",
    [
        acc.Gaussian(1e-200),
        acc.Gaussian(1e-6) * 10**9,
        acc.Laplace(1e-6) * 10**6,
        acc.PureDP(1e6) * 1000,
        acc.PoissonSampled(acc.Gaussian(1e-3), 0.5) * 10**6,
        acc.Gaussian(1e6),
        acc.Gaussian(1e150),
        acc.Laplace(1e100),
    ],
    ids=repr,
)
def test_extreme_parameters_give_a_right_answer_or_infinity(mechanism: acc.Mechanism) -> None:
    bound = acc.epsilon(mechanism, 1e-5)
    assert 0 <= bound.lower <= bound.upper
    assert not math.isnan(bound.upper)


def test_a_bound_shown_to_people_contains_the_bound() -> None:
    bound = acc.epsilon(poisson(0.01, 1.3, 777), 1e-5)
    low, high = repr(bound).split("[")[1].split("]")[0].split(",")
    assert float(low) <= bound.lower <= bound.upper <= float(high)
    assert "add/remove one record" in repr(bound)
