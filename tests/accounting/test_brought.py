"""What users bring: priced like what it describes, read by others, charged to a ledger, refused where it is wrong."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from tacit import accounting as acc
from tacit.ledger import Ledger
from tests.accounting.catalogue import poisson

P, Q = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)
BROUGHT = [
    acc.Outcomes(P, Q),
    acc.LossLaw(np.log(np.array(P) / np.array(Q)), P, 0.0, np.log(np.array(Q) / np.array(P)), Q),
    acc.RenyiDP([2.0, 4.0, 8.0], [0.02, 0.04, 0.08]),
    acc.ProfileDP([0.0, 1.0], [0.2, 1e-7]),
    acc.TradeoffDP([0.0, 0.3, 1.0], [1.0, 0.4, 0.0]),
]


def _composed(times: int, epsilon: float) -> float:
    p, q = np.ones(1), np.ones(1)
    for _ in range(times):
        p, q = np.multiply.outer(p, np.array(P)).ravel(), np.multiply.outer(q, np.array(Q)).ravel()
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


@pytest.mark.parametrize("mechanism", BROUGHT[:2])
@pytest.mark.parametrize("times", [1, 3, 7])
def test_a_table_costs_what_enumeration_says(mechanism: acc.Mechanism, times: int) -> None:
    for epsilon in (0.0, 0.4, 2.0):
        bound, exact = acc.delta(mechanism * times, epsilon), _composed(times, epsilon)
        assert bound.lower - 1e-12 <= exact <= bound.upper + 1e-12
        assert bound.width <= 1e-4 * exact + 1e-9


@pytest.mark.parametrize("mechanism", BROUGHT, ids=lambda m: type(m).__name__)
def test_another_process_reads_it_back_and_a_ledger_takes_it(mechanism: acc.Mechanism) -> None:
    again = acc.from_dict(json.loads(json.dumps(mechanism.to_dict())))
    assert again == mechanism
    assert hash(again) == hash(mechanism)
    assert acc.epsilon(again * 2, 1e-5) == acc.epsilon(mechanism * 2, 1e-5)
    ledger = Ledger()
    ledger.register("people", epsilon=50.0, delta=1e-5)
    ledger.charge("people", mechanism, delta=1e-6)
    assert ledger.history("people")[-1].mechanism == mechanism


def test_a_renyi_curve_is_read_by_its_chords() -> None:
    orders = np.linspace(1.5, 64, 200)
    curve = acc.RenyiDP(orders, orders / 50)
    assert acc.epsilon(acc.Gaussian(5.0), 1e-5).upper <= acc.epsilon(curve, 1e-5).upper
    assert acc.epsilon(curve, 1e-5).upper <= acc.epsilon(acc.ZCDP(0.02), 1e-5).upper * 1.01
    assert acc.renyi(curve, [1000.0]).tolist() == [math.inf]
    assert acc.renyi(curve, [1.2])[0] >= 1.2 / 50
    with pytest.raises(acc.AccountingError, match="groups"):
        acc.epsilon(curve, 1e-5, group=2)


def test_guarantees_that_hold_at_once_cost_less_than_either() -> None:
    both = acc.epsilon(acc.ProfileDP([0.5, 1.0], [1e-6, 0.0]) * 10, 1e-5)
    assert both.upper <= acc.epsilon(acc.ApproxDP(0.5, 1e-6) * 10, 1e-5).upper
    assert both.upper <= acc.epsilon(acc.PureDP(1.0) * 10, 1e-5).upper


def test_a_trade_off_curve_is_randomised_response_where_it_is_that_curve() -> None:
    no = 1 / (1 + math.exp(0.7))
    curve, pure = acc.TradeoffDP([0.0, no, 1.0], [1.0, no, 0.0]) * 9, acc.PureDP(0.7) * 9
    assert acc.epsilon(curve, 1e-5).upper == pytest.approx(acc.epsilon(pure, 1e-5).upper, rel=1e-6)


def test_corners_that_rounding_tells_apart_are_one() -> None:
    no = 0.2115834428222444  # its two slopes, one the inverse of the other, have the same logarithm
    curve = acc.TradeoffDP([0.0, no, 1.0], [1.0, no, 0.0])
    assert acc.epsilon(curve, 0).upper == pytest.approx(math.log(1 / no - 1), rel=1e-9)


@pytest.mark.parametrize("mu", [0.2, 1.0])
def test_points_on_a_trade_off_curve_promise_no_more_than_the_curve(mu: float) -> None:
    alpha = np.geomspace(1e-13, 0.999, 300)
    beta = ndtr(-ndtri(alpha) - mu)
    under, through = acc.TradeoffDP.on_curve(alpha, beta), acc.TradeoffDP(alpha, beta)
    for times, delta in ((1, 1e-3), (1, 1e-6), (10, 1e-9)):
        exact = acc.epsilon(acc.GDP(mu) * times, delta)
        assert exact.lower <= acc.epsilon(under * times, delta).upper <= 1.01 * exact.upper
        # the wrong version: a polygon through the points lies above the curve between them
        assert acc.epsilon(through * times, delta).upper < exact.lower


def test_a_curve_of_straight_lines_is_found_again_by_its_points() -> None:
    e, alpha = 0.7, np.array([0.0, 0.1, 0.2, 0.5, 0.8, 1.0])
    beta = np.maximum(np.maximum(1 - math.exp(e) * alpha, math.exp(-e) * (1 - alpha)), 0.0)
    curve = acc.TradeoffDP.on_curve(alpha, beta)
    for at in (0.0, 0.3, 0.6):
        assert acc.delta(curve, at).upper == pytest.approx(acc.delta(acc.PureDP(e), at).upper, rel=1e-9)


def test_what_one_law_alone_has_is_an_infinite_loss_however_small() -> None:
    alone = 2.0**-50
    curve = acc.TradeoffDP([0.0, 0.25, 1 - alone], [1 - alone, 0.25, 0.0])
    assert acc.epsilon(curve, alone / 2).upper == math.inf
    assert acc.epsilon(curve, 1e-10).upper == pytest.approx(math.log(3), rel=1e-6)


def test_a_group_is_bounded_by_a_chain_of_neighbours() -> None:
    pair = acc.Outcomes((0.75, 0.25), (0.25, 0.75))
    assert acc.epsilon(pair, 0, group=2).upper == pytest.approx(2 * math.log(3), rel=1e-6)
    assert acc.epsilon(pair, 1e-5, group=2).lower >= acc.epsilon(pair, 1e-5).lower


def test_what_is_left_without_its_failures_holds_for_the_same_neighbours() -> None:
    tables = {"replace-one": ([0.6, 0.3, 0.1], [0.3, 0.7, 0.0]), "zero-out": ([0.6, 0.4, 0.0], [0.4, 0.5, 0.1])}
    for adjacency, (p, q) in tables.items():
        rest, failure = acc.Outcomes(p, q, adjacency=adjacency).without_failure()
        assert failure >= 0.1
        assert rest.adjacencies() == (adjacency,)
        assert acc.ApproxDP(1.0, 1e-6, adjacency=adjacency).without_failure()[0].adjacencies() == (adjacency,)


@pytest.mark.parametrize(("sigma", "rate"), [(0.5, 1.0), (1.0, 1.0), (1.5, 1.0), (0.8, 0.1)])
def test_distributions_of_dp_accounting_come_in_as_they_are_made_without_options(sigma: float, rate: float) -> None:
    """Its smallest masses are rounded, times e^10 and more: as they stand they are the law of no pair."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    brought = acc.LossLaw.from_dp_accounting(pld.from_gaussian_mechanism(sigma, sampling_prob=rate))
    for count in (1, 8):
        truth = acc.epsilon(poisson(rate, sigma, count) if rate < 1 else acc.Gaussian(sigma) * count, 1e-6)
        assert truth.lower <= acc.epsilon(brought * count, 1e-6).upper <= truth.upper * 1.0001


def test_distributions_of_dp_accounting_come_in_and_go_out() -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    theirs = pld.from_gaussian_mechanism(1.0, sampling_prob=0.05, value_discretization_interval=5e-3)
    brought = acc.LossLaw.from_dp_accounting(theirs)
    truth = acc.epsilon(poisson(0.05, 1.0, 20), 1e-5)
    assert truth.lower <= acc.epsilon(brought * 20, 1e-5).upper <= truth.upper * 1.02
    out = acc.to_dp_accounting(poisson(0.05, 1.0, 20) + acc.Laplace(10.0), interval=5e-3)
    whole = acc.epsilon(poisson(0.05, 1.0, 20) + acc.Laplace(10.0), 1e-5)
    assert whole.lower <= out.get_epsilon_for_delta(1e-5) <= whole.upper * 1.02
    optimistic = pld.from_laplace_mechanism(1.0, pessimistic_estimate=False)
    with pytest.raises(acc.AccountingError, match="optimistic"):
        acc.LossLaw.from_dp_accounting(optimistic)
    with pytest.raises(acc.AccountingError, match="not a PrivacyLossDistribution"):
        acc.LossLaw.from_dp_accounting(object())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: acc.Outcomes((0.5, 0.4), (0.5, 0.5)), "add up to 1"),
        (lambda: acc.Outcomes((1.0,), (0.5, 0.5)), "outcomes"),
        (lambda: acc.Outcomes((0.5, math.nan), (0.5, 0.5)), "NaN"),
        (lambda: acc.Outcomes("ab", (0.5, 0.5)), "numbers"),
        (lambda: acc.LossLaw((-1.0, -1.0), (0.5, 0.5)), "no pair has this law"),
        (lambda: acc.LossLaw((1.0,), (0.9,)), "add up to 1"),
        (lambda: acc.LossLaw((math.inf,), (1.0,)), "infinity"),
        (lambda: acc.RenyiDP((0.5,), (1.0,)), "above 1"),
        (lambda: acc.RenyiDP((2.0, 1.5), (1.0, 1.0)), "ascending"),
        (lambda: acc.ProfileDP((1.0, 0.5), (0.1, 0.2)), "ascend"),
        (lambda: acc.ProfileDP((), ()), "one number or more"),
        (lambda: acc.TradeoffDP((0.5,), (0.9,)), "guessing"),
        (lambda: acc.TradeoffDP.on_curve((0.0, 0.5, 0.6), (1.0, 0.5, 0.1)), "no convex curve"),
        (lambda: acc.TradeoffDP.on_curve((0.5,), (0.4,)), "two points or more"),
    ],
)
def test_what_no_mechanism_has_is_refused(make, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(acc.AccountingError, match=words):
        make()
