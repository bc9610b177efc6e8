"""What a description means under each adjacency and for groups, and which ones are refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from tacit import accounting as acc
from tacit.accounting.mechanisms import LARGEST_GROUP, LARGEST_RATIO, LARGEST_SHIFT, LARGEST_SIGMA
from tacit.accounting.poisson import Accumulated
from tacit.accounting.renyi import RenyiCurve, log_moments, standing_pair
from tacit.accounting.samplers import sampler_runs
from tacit.accounting.selection import gamma_for, renyi_price

ORDERS = np.array([1.5, 2.0, 4.0, 16.0])
TRUNCATED = acc.TruncatedPoissonSampled(acc.Laplace(2.0), 0.3, examples=40, max_batch=18)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: acc.Gaussian(1.0) + acc.Gaussian(1.0, unit="person"), "person"),
        (lambda: acc.ProfileDP([0.0, 1.0], [0.1]), "2 values of ε and 1 of δ"),
        (lambda: acc.gdp_equivalent(acc.PureDP(1.0), 0.0), "at δ = 0"),
        (lambda: acc.DiscreteLaplace(1.0, sensitivity=0), "sensitivity"),
        (lambda: acc.DiscreteLaplace(1.0, sensitivity=1.5), "sensitivity"),
        (lambda: acc.RandomizedResponse(-1.0), "epsilon"),
        (lambda: acc.ExponentialMechanism(-1.0), "epsilon"),
        (lambda: acc.PureDP(1.0, adjacency="remove"), "remove"),
        (lambda: acc.Votes(-1.0), "noise"),
        (lambda: acc.VoteCheck(-1.0), "noise"),
        (lambda: acc.SmoothRelease(beta=0.1, noise=0.0), "noise"),
        (lambda: acc.Selected.of(acc.Gaussian(1.0), 1.0, distribution="threshold"), "above 1"),
        (lambda: acc.Selected.of(acc.Gaussian(1.0), 0.5, distribution="threshold"), "above 1"),
        (lambda: gamma_for(1.0, 1.0), "above 1"),
        (lambda: gamma_for(math.inf, 1.0), "above 1"),
        (lambda: acc.FixedSizeSampled(acc.Gaussian(1.0), 2, 10).renyi("replace-one", ORDERS, 2), "groups"),
        (lambda: acc.compare_samplers(acc.Gaussian(2.0), batch=5, examples=20, steps=-1, delta=1e-5), "steps"),
        (lambda: acc.compare_samplers(acc.Gaussian(2.0), batch=5, examples=20, steps=2, delta=1e-5, group=0), "group"),
        (lambda: acc.compare_samplers(acc.Gaussian(2.0), batch=5, examples=20, steps=2.5, delta=1e-5), "steps"),
        (lambda: acc.epsilon(acc.RandomizedResponse(1.0), 0.0), "everybody can see who answered"),
        (lambda: acc.epsilon(acc.Shuffled(acc.Gaussian(1.0)), 1e-5), "moves the boundaries"),
    ],
)
def test_what_states_no_guarantee_is_refused_with_the_reason(build: Callable[[], object], words: str) -> None:
    with pytest.raises(acc.AccountingError, match=words):
        build()


# -- adjacency: replacing a record moves twice as far as adding one ----


def test_twice_the_noise_under_replace_one_is_once_the_noise_under_add_remove() -> None:
    once, twice = acc.Gaussian(2.0) * 3, acc.Gaussian(4.0) * 3
    assert acc.epsilon(twice, 1e-5, adjacency="replace-one").upper == acc.epsilon(once, 1e-5).upper
    few, many = (acc.Selected.of(run, 5.0) for run in (once, twice))
    here, there = few.prices(1e-5), many.prices(1e-5, adjacency="replace-one")
    assert there == pytest.approx(here, rel=1e-9)
    assert many.own_delta(0.3, "replace-one", 1) == pytest.approx(few.own_delta(0.3, "add-remove", 1), rel=1e-9)
    assert renyi_price(twice, 1e-5, adjacency="replace-one") == pytest.approx(renyi_price(once, 1e-5), rel=1e-9)
    assert acc.epsilon(acc.DiscreteLaplace(4.0), 0.0, adjacency="replace-one").upper == 0.5
    assert acc.epsilon(acc.DiscreteLaplace(4.0), 0.0).upper == 0.25


def test_a_guarantee_at_another_delta_is_for_the_same_neighbours() -> None:
    run = acc.Gaussian(3.0) * 2
    stated = acc.Privacy(acc.epsilon(run, 1e-5, adjacency="replace-one"), run)
    again = stated.at(1e-7)
    assert again.adjacency == "replace-one"
    assert again.upper == acc.epsilon(run, 1e-7, adjacency="replace-one").upper > acc.epsilon(run, 1e-7).upper


def test_a_filter_that_is_planned_counts_for_the_neighbours_of_the_plan() -> None:
    step, runs = acc.Gaussian(30.0), {}
    for adjacency in ("add-remove", "replace-one"):
        filter_ = acc.RenyiFilter.planned(step * 50, 1.0, 1e-5, adjacency=adjacency)
        assert filter_.adjacency == adjacency
        runs[adjacency] = 0
        while filter_.allows(step):
            filter_.spend(step)
            runs[adjacency] += 1
    assert acc.epsilon(step * runs["replace-one"], 1e-5, adjacency="replace-one").upper <= 1.0
    assert runs["replace-one"] < runs["add-remove"] / 2


def test_an_odometer_never_says_less_than_one_order_proves() -> None:
    meter = acc.RenyiOdometer(1e-5, (2.0,))
    for _ in range(20):
        meter.spend(acc.Gaussian(5.0))
        spent = float(meter.spent[0])
        assert meter.epsilon >= spent + math.log(math.pi**2 / (6 * 1e-5)) / (2.0 - 1)


def test_what_is_stated_for_one_adjacency_stands_beside_other_parts_under_it() -> None:
    stated = acc.ZCDP(0.05, adjacency="zero-out")
    assert standing_pair(stated, "zero-out", 1) is not None
    both = acc.epsilon(stated + acc.PureDP(0.1), 1e-5, adjacency="zero-out").upper
    assert both >= acc.epsilon(stated, 1e-5, adjacency="zero-out").lower


def test_a_part_without_a_pair_beside_one_with_costs_at_least_the_dearer_direction() -> None:
    sampled = acc.PoissonSampled(acc.Gaussian(0.6), 0.2)
    for epsilon in (0.5, 1.0, 2.0):
        alone = acc.delta(sampled, epsilon)
        assert acc.delta(acc.ZCDP(1e-9) + sampled, epsilon).upper >= alone.lower > 0


# -- groups ----


def test_a_group_in_accumulated_draws_is_a_larger_group_in_one() -> None:
    for inner in (acc.Gaussian(1.5), acc.Laplace(2.0), acc.PureDP(0.5), acc.ZCDP(0.1)):
        step = acc.PoissonSampled(inner, 0.25)
        drawn = Accumulated(step, 3)
        for direction in ("remove", "add"):
            here, there = drawn.pair("add-remove", direction, 2), step.pair("add-remove", direction, 6)
            if there is not None:
                assert here is not None
                assert here.profile(0.4) == there.profile(0.4) != drawn.pair("add-remove", direction).profile(0.4)
            assert drawn.largest_loss("add-remove", direction, 2) == step.largest_loss("add-remove", direction, 6)
        orders = step.renyi("add-remove", ORDERS, 6)
        if orders is not None:
            assert np.array_equal(drawn.renyi("add-remove", ORDERS, 2), orders)
        assert drawn.is_tight("add-remove", 2) == step.is_tight("add-remove", 6)
    # one draw of one record is priced exactly, and one of a group is not
    edge = acc.PoissonSampled(acc.PureDP(0.5), 0.25)
    assert Accumulated(edge, 1).is_tight("add-remove", 2) == edge.is_tight("add-remove", 2)


@pytest.mark.parametrize("group", [2, 3])
def test_the_largest_loss_of_a_sampled_group_is_that_of_all_of_it(group: int) -> None:
    rate, epsilon = 0.25, 1.0
    # every member is drawn or not by itself, and each that is drawn moves the answer by ε
    true = group * math.log(1 - rate + rate * math.exp(epsilon))
    sampled = acc.PoissonSampled(acc.Laplace(1 / epsilon), rate)
    assert sampled.largest_loss("add-remove", "remove", group) >= true * (1 - 1e-12)
    assert acc.epsilon(sampled, 0.0, group=group).upper >= true * (1 - 1e-12)
    assert acc.epsilon(acc.ExponentialMechanism(epsilon), 0.0, group=group).upper == pytest.approx(group * epsilon)


def test_several_choices_together_lose_as_much_as_all_of_them() -> None:
    # a randomised answer of ε = 0.5 is a choice of range 1
    pair = standing_pair(acc.ExponentialMechanism(1.0) * 10, "add-remove", 1)
    assert pair is not None
    for x in (0.5, 2.0, 4.0):
        assert pair.profile(x)[0] + pair.profile(x)[1] >= acc.delta(acc.PureDP(0.5) * 10, x).lower > 0


def test_a_group_is_priced_exactly_only_where_its_numbers_can_be_computed() -> None:
    for mu, group in ((1.0, 4), (LARGEST_SHIFT / 2, 3)):
        assert acc.GDP(mu).is_tight("add-remove", group) == acc.GDP(mu * group).is_tight("add-remove")
    for epsilon, group in ((0.5, LARGEST_GROUP), (1.0, LARGEST_GROUP), (LARGEST_RATIO, 2)):
        exact = epsilon * group <= LARGEST_RATIO
        assert acc.PureDP(epsilon).is_tight("add-remove", group) == exact
        assert acc.RandomizedResponse(epsilon).is_tight("replace-one", group) == exact
    assert not acc.DiscreteLaplace(1e6, sensitivity=int(LARGEST_SIGMA) + 1).is_tight("add-remove")


def test_less_noise_than_can_be_computed_with_is_priced_from_both_sides() -> None:
    # δ(ε) of Laplace noise that is moved by a times its scale is 1 - e^{(ε - a)/2}
    for adjacency, far in (("add-remove", 750.0), ("replace-one", 1_500.0)):
        price = acc.delta(acc.Laplace(1 / 750.0), far - 1.0, adjacency=adjacency)
        assert price.lower <= -math.expm1(-0.5) <= price.upper
    price = acc.delta(acc.Laplace(1 / 400.0), 799.0, adjacency="replace-one")
    assert price.lower <= -math.expm1(-0.5) <= price.upper


FLOORED = [
    (acc.RandomizedResponse(0.4), "replace-one"),
    (acc.RandomizedResponse(0.4, categories=4), "zero-out"),
    (acc.PoissonSampled(acc.Laplace(2.0), 0.3), "add-remove"),
    (acc.PoissonSampled(acc.Laplace(0.4), 0.3), "add-remove"),
    (acc.PoissonSampled(acc.Laplace(2.0), 0.3), "replace-one"),
    (acc.PoissonSampled(acc.DiscreteLaplace(2.0), 0.3), "add-remove"),
    (acc.PoissonSampled(acc.DiscreteGaussian(1.5), 0.3), "add-remove"),
    (acc.FixedSizeSampled(acc.Gaussian(1.2, replace=1.5), 3, 10), "zero-out"),
    (acc.FixedSizeSampled(acc.Gaussian(1.2), 10, 10), "zero-out"),
    (acc.BallsInBins(acc.Gaussian(2.0), 4), "replace-one"),
    (acc.BallsInBins(acc.Gaussian(1.5, replace=0.5), 4), "replace-one"),
]


@pytest.mark.parametrize(("mechanism", "adjacency"), FLOORED, ids=repr)
@pytest.mark.parametrize("group", [1, 2])
def test_the_lower_end_of_a_price_is_not_above_the_upper(mechanism: acc.Mechanism, adjacency: str, group: int) -> None:
    for direction in ("remove", "add"):
        low, high = (ask(adjacency, direction, group) for ask in (mechanism.floor, mechanism.pair))
        if low is None or high is None:
            continue
        for x in (0.0, 0.2, 0.8):
            (least, off), (most, more) = low.profile(x), high.profile(x)
            assert least - off <= (most + more) * (1 + 1e-9) + 1e-12


def test_the_lower_end_of_a_batch_without_sampling_is_that_of_the_noise() -> None:
    # A record that is blanked moves the sum by one clip norm, one that is replaced by ``replace`` of them.
    whole = acc.FixedSizeSampled(acc.Gaussian(1.2), 10, 10)
    for adjacency, far in (("zero-out", 1.0), ("replace-one", 2.0)):
        price = acc.delta(whole, 0.5, adjacency=adjacency)
        true = acc.delta(acc.Gaussian(1.2 / far), 0.5)
        assert price.lower <= true.upper
        assert price.upper >= true.lower


def test_the_lower_end_of_a_pass_is_what_the_sum_over_its_batches_shows() -> None:
    # A group of two moves the sum over all batches by at most two, and its noise is √bins as large.
    for noise in (0.5, 2.0, 3.0):
        price = acc.delta(acc.BallsInBins(acc.Gaussian(noise), 4), 0.3, group=2)
        assert price.lower <= acc.delta(acc.Gaussian(noise * 2), 0.3, group=2).upper


def test_zero_concentrated_privacy_is_attained_by_gaussian_noise() -> None:
    for rho in (0.02, 0.5, 3.0):
        attained = acc.delta(acc.Gaussian(1 / math.sqrt(2 * rho)), 1.0)
        price = acc.delta(acc.ZCDP(rho), 1.0)
        assert price.lower <= attained.upper <= price.upper * (1 + 1e-9)
        assert price.lower >= attained.lower * (1 - 1e-6)


# -- batches that are cut ----


def test_a_cut_batch_counts_every_record_that_may_be_there_beside_the_one() -> None:
    step = acc.TruncatedPoissonSampled(acc.Gaussian(1.0), 0.5, examples=6, max_batch=3)
    assert step._overflow("add-remove") >= stats.binom.sf(2, 6, 0.5)
    assert step._overflow("zero-out") >= stats.binom.sf(2, 5, 0.5)
    # Where the data are fewer than the stated number, the record is drawn as often as without the cut.
    cut = step._cut_pair("add-remove", "remove")
    moved = 2 * stats.norm.cdf(max(step.mechanism.replace, 1.0) / 2) - 1
    assert sum(cut.profile(0.0)) >= 0.5 * moved * (1 - 1e-9)


def test_renyi_bounds_of_a_cut_batch_are_not_below_its_pair() -> None:
    step = acc.TruncatedPoissonSampled(acc.Gaussian(1.0), 0.5, examples=6, max_batch=1)
    stated = step.renyi("add-remove", ORDERS)
    for direction in ("remove", "add"):
        pair = step.pair("add-remove", direction)
        assert pair is not None
        if stated is not None:
            assert (stated * (ORDERS - 1) >= log_moments(pair, ORDERS - 1) * (1 - 1e-6)).all()


def test_what_cutting_costs_adds_up() -> None:
    other = acc.TruncatedPoissonSampled(acc.Laplace(3.0), 0.3, examples=40, max_batch=19)
    one, two = TRUNCATED.extra_delta(), other.extra_delta()
    assert min(one, two) > 0
    far = 5.0  # above every loss of both: only what cutting costs is left
    both = acc.delta(TRUNCATED + other, far).upper
    assert both >= min(1.0, (1 - 1e-9) * (acc.delta(TRUNCATED, far).upper + acc.delta(other, far).upper))
    assert RenyiCurve(TRUNCATED * 5).spill == pytest.approx(5 * one)


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0])
def test_where_a_cut_batch_amplifies_nothing_its_price_is_not_below_what_is_seen(noise: float) -> None:
    """Nearly everybody is drawn. One of two stays: a record that comes displaces another that pulls the other way."""
    one = acc.TruncatedPoissonSampled(acc.Gaussian(noise), 0.999, examples=2, max_batch=1)
    seen = acc.epsilon(acc.Gaussian(noise / 2), 2.1e-5).lower  # in one case of two
    assert acc.epsilon(one, 1e-5).upper >= seen
    # Of four that are there two stay, and one time in six they are those that came: both displaced another.
    four = acc.TruncatedPoissonSampled(acc.Gaussian(noise), 0.999, examples=4, max_batch=2)
    assert acc.epsilon(four, 1e-5, group=2).upper >= acc.epsilon(acc.Gaussian(noise / 4), 6.2e-5).lower
    # Two of three stay, and one time in three they are the two that are blanked together.
    two = acc.TruncatedPoissonSampled(acc.Gaussian(noise), 0.999, examples=3, max_batch=2)
    together = acc.epsilon(acc.Gaussian(noise), 3.1e-5, adjacency="zero-out", group=2).lower
    assert acc.epsilon(two, 1e-5, adjacency="zero-out", group=2).upper >= together


@pytest.mark.parametrize("replace", [1.0, 2.0])
def test_two_records_that_are_replaced_and_nearly_always_drawn_cost_as_much_as_without_sampling(
    replace: float,
) -> None:
    plain = acc.Gaussian(3.0, replace=replace)
    both = acc.epsilon(acc.PoissonSampled(plain, 0.999), 1e-5, adjacency="replace-one", group=2)
    assert both.upper >= acc.epsilon(plain, 1.1e-5, adjacency="replace-one", group=2).lower


def test_each_sampler_that_is_compared_runs_as_often_as_it_is_said() -> None:
    runs = sampler_runs(acc.Gaussian(2.0), batch=10, examples=40, steps=12)
    times = {name: [n for _, n in run.parts()] for name, run in runs.items()}
    assert times == {"poisson": [12], "truncated": [12], "fixed": [12], "balls-in-bins": [3], "shuffled": [3]}


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("partition", ["keyed", "positions"])
def test_the_check_of_votes_pays_for_every_teacher_that_is_moved(adjacency: str, partition: str) -> None:
    check = acc.VoteCheck(5.0, partition=partition)
    if adjacency not in check.adjacencies():
        return
    moved = 2 if (partition, adjacency) == ("keyed", "replace-one") else 1  # both old and new people vote
    assert acc.epsilon(check, 1e-5, adjacency=adjacency).upper >= acc.epsilon(acc.Gaussian(5.0 / moved), 1e-5).lower


def test_groups_that_take_turns_are_counted_in_whole_numbers() -> None:
    for groups in (0, 2.5, True):
        with pytest.raises(acc.AccountingError, match="groups"):
            acc.CyclicPoissonSampled(acc.Gaussian(1.0), 0.1, groups)  # type: ignore[arg-type]


def test_a_sampler_that_cannot_be_priced_for_one_record_is_an_error() -> None:
    with pytest.raises(acc.AccountingError):
        acc.compare_samplers(acc.Gaussian(2.0), batch=5, examples=20, steps=4, delta=2.0)


def test_the_curve_that_is_drawn_is_that_of_the_stated_neighbours() -> None:
    wide = acc.Gaussian(1.0, replace=2.0)
    drawn = {a: acc.Privacy.of(wide, 1e-5, adjacency=a).to_html() for a in ("add-remove", "replace-one")}
    curve = acc.tradeoff(wide, points=33, adjacency="replace-one")
    points = " ".join(f"{200 * a:.1f},{200 * (1 - b):.1f}" for a, b in zip(curve.alpha, curve.lower, strict=True))
    assert points in drawn["replace-one"]
    assert points not in drawn["add-remove"]
