"""Near-exact values of runs that people have published, and every fault seen in accountants that people use."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from tacit import accounting as acc
from tacit.accounting.pricing import delta_of_orders
from tests.accounting.catalogue import poisson

B = 256 / 60000
#: name: (run, δ, ε add/remove, ε add direction only, ε replace-one, certified bracket of an independent prototype)
CASES = {
    "a1": (poisson(0.01, 8, 5370), 1e-5, 0.311881, 0.309931, 0.659146, (0.31188123, 0.31188140)),
    "a3": (poisson(0.01, 2, 72824), 1e-5, 6.727117, 6.648411, 14.621133, (6.72711510, 6.72711964)),
    "b": (poisson(B, 1.1, 3515), 1e-5, 1.133706, 1.016430, 1.928418, (1.13370587, 1.13370686)),
    "c": (poisson(4096 / 50000, 3, 2468), 1e-5, 6.529280, 6.302996, 14.590677, (6.52927873, 6.52928285)),
    "e": (poisson(0.5, 10, 1000), 1e-5, 7.545171, 7.477453, 17.827552, (7.54516921, 7.54517377)),
    "h": (
        # the Laplace part is 0.1-DP whatever the adjacency
        poisson(0.01, 1, 1000) + poisson(0.02, 0.8, 500) + acc.Laplace(10.0, replace=1.0),
        1e-5,
        5.032812,
        3.278070,
        7.073829,
        (5.03281015, 5.03281631),
    ),
    "j": (poisson(B, 1.1, 3515), 1e-12, 2.188507, 1.758434, 3.366546, (2.18850609, 2.18850868)),
}
#: Values are printed to six decimals.
HALF = 5.1e-7


def _contains(bound: acc.Bound, value: float, printed: float = HALF) -> bool:
    return bound.lower - printed <= value <= bound.upper + printed


@pytest.mark.parametrize("name", CASES)
def test_the_published_value_lies_in_the_interval(name: str) -> None:
    run, delta, add_remove, _, replace_one, bracket = CASES[name]
    bound = acc.epsilon(run, delta)
    assert _contains(bound, add_remove)
    assert bound.lower <= bracket[1]
    assert bracket[0] <= bound.upper
    assert bound.width <= 1e-4 * bound.upper + 1e-5
    assert _contains(acc.epsilon(run, delta, adjacency="replace-one"), replace_one)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "zero-out"])
def test_a_millionth_is_reached_when_asked_for(name: str, adjacency: str) -> None:
    run, delta = CASES[name][:2]
    bound = acc.epsilon(run, delta, adjacency=adjacency, tolerance=1e-6)
    assert bound.tight
    assert bound.width <= 1e-6


@pytest.mark.parametrize("name", CASES)
def test_the_add_direction_alone_is_right_too(name: str) -> None:
    run, delta, _, add, _, _ = CASES[name]
    assert delta_of_orders(run, add - HALF)[2][1] >= delta
    assert delta_of_orders(run, add + HALF)[2][0] <= delta


@pytest.mark.parametrize(("group", "exact", "lemma"), [(2, 2.45, 2.56), (4, 5.42, 6.23), (8, 12.48, 19.5)])
def test_a_group_is_priced_by_its_own_distribution(group: int, exact: float, lemma: float) -> None:
    run, delta = CASES["b"][:2]
    bound = acc.epsilon(run, delta, group=group)
    assert _contains(bound, exact, 0.0051)
    assert bound.upper < lemma
    assert bound.width <= 1e-4 * bound.upper + 1e-5
    # the textbook formula: k·ε(δ') with k e^{(k-1)ε} δ' = δ
    low, high = 1e-30, delta
    for _ in range(60):
        middle = math.sqrt(low * high)
        epsilon = acc.epsilon(run, middle).upper
        spent = group * math.exp((group - 1) * epsilon) * middle
        low, high = (middle, high) if spent < delta else (low, middle)
    assert group * epsilon == pytest.approx(lemma, rel=0.02)


def test_full_batch_noise_has_its_closed_form() -> None:
    assert _contains(acc.epsilon(poisson(1.0, 20, 500), 1e-5), 4.983306)


# -- faults seen ----


@pytest.mark.parametrize(
    ("rate", "delta", "exact"),
    [(0.001, 1e-12, 1.184484), (0.01, 1e-13, 10.833100), (0.001, 1e-13, 1.389868)],
)
def test_a_small_delta_is_neither_reported_too_low_nor_too_high(rate: float, delta: float, exact: float) -> None:
    """FFT accountants without tilting report 1.1806, 10.5151 and 5.0271 here."""
    bound = acc.epsilon(poisson(rate, 1.0, 10_000), delta)
    assert _contains(bound, exact)
    assert bound.width <= 1e-4 * bound.upper + 1e-5


@pytest.mark.parametrize("delta", [1e-8, 1e-12, 1e-15])
def test_a_small_delta_is_as_narrow_as_any(delta: float) -> None:
    bound = acc.epsilon(poisson(B, 1.1, 3515), delta)
    assert bound.width <= 1e-4 * bound.upper + 1e-5


def test_randomised_response_ten_times_is_not_priced_as_once() -> None:
    bound = acc.epsilon(acc.PureDP(1.0) * 10, 1e-5)
    assert bound.lower > 5 * acc.epsilon(acc.PureDP(1.0), 1e-5).upper


def test_the_exponential_mechanism_a_hundred_times_is_not_priced_as_once() -> None:
    once, often = (acc.epsilon(acc.ExponentialMechanism(0.1) * n, 1e-5) for n in (1, 100))
    assert often.upper > 10 * once.upper
    assert often.lower > 10 * once.lower


def test_replace_one_is_not_priced_as_add_remove() -> None:
    run = poisson(1.0, 20, 500)
    replaced = acc.epsilon(run, 1e-5, adjacency="replace-one")
    assert _contains(replaced, 11.480, 0.00051)
    assert acc.renyi(run, [3.0], adjacency="replace-one") == pytest.approx(4 * acc.renyi(run, [3.0]))
    assert acc.accountants.rdp(run, 1e-5, adjacency="replace-one").epsilon > 11.480


def test_fixed_size_sampling_moves_the_sum_by_two() -> None:
    run = acc.FixedSizeSampled(acc.Gaussian(1.1), 256, 60000) * 3515
    assert acc.epsilon(run, 1e-5).lower >= 7.8155
    assert acc.accountants.rdp(run, 1e-5).epsilon >= 7.8155


@pytest.mark.parametrize("order", [1.25, 2.5, 7.7, 12.3])
def test_fractional_renyi_orders_are_right(order: float) -> None:
    rate, noise = 0.1, 1.3
    with mpmath.workdps(30):

        def both(x: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
            base = mpmath.npdf(x, 0, noise)
            return (1 - rate) * base + rate * mpmath.npdf(x, 1, noise), base

        marks = [k * mpmath.mpf(noise) for k in range(-16, 34, 2)]
        removed = mpmath.quad(lambda x: both(x)[0] ** order * both(x)[1] ** (1 - order), marks)
        added = mpmath.quad(lambda x: both(x)[1] ** order * both(x)[0] ** (1 - order), marks)
        exact = float(mpmath.log(max(removed, added)) / (order - 1))
    found = float(acc.renyi(acc.PoissonSampled(acc.Gaussian(noise), rate), [order])[0])
    assert exact <= found <= exact * (1 + 1e-9)


def test_the_central_limit_is_labelled_and_can_be_below_the_truth() -> None:
    run = poisson(0.01, 0.5, 20)
    approximate = acc.accountants.gdp(run, 1e-5)
    assert approximate.approximation
    assert "approximation" in repr(acc.compare(run, 1e-5))
    assert approximate.epsilon < 0.8 * acc.epsilon(run, 1e-5).lower


def test_the_lower_end_is_useful_after_a_million_steps() -> None:
    bound = acc.epsilon(poisson(0.001, 0.8, 10**6), 1e-5)
    assert bound.width <= 1e-4 * bound.upper


def test_sampling_at_rate_one_is_no_sampling() -> None:
    for inner in (acc.Gaussian(3.0), acc.Laplace(3.0), acc.PureDP(0.5)):
        for adjacency in ("add-remove", "replace-one"):
            plain = acc.epsilon(inner * 5, 1e-5, adjacency=adjacency)
            sampled = acc.epsilon(acc.PoissonSampled(inner, 1.0) * 5, 1e-5, adjacency=adjacency)
            assert (sampled.lower, sampled.upper) == (plain.lower, plain.upper)
    everyone = acc.epsilon(acc.FixedSizeSampled(acc.Gaussian(3.0), 10, 10), 1e-5, adjacency="replace-one")
    assert everyone.upper == acc.epsilon(acc.Gaussian(3.0), 1e-5, adjacency="replace-one").upper


def test_the_moments_accountant_gives_what_was_published() -> None:
    for noise, steps, published in ((8, 5370, 0.5), (4, 24644, 2.0), (2, 72824, 8.0)):
        assert acc.accountants.moments(poisson(0.01, noise, steps), 1e-5).epsilon == pytest.approx(published, abs=5e-4)


def test_renyi_accounting_is_as_good_as_the_usual_library() -> None:
    usual = {"a1": 0.344027, "a3": 7.246802, "b": 1.281144, "c": 7.045766, "e": 8.131915, "h": 5.732909, "j": 2.746426}
    for name, value in usual.items():
        run, delta, exact = CASES[name][:3]
        assert exact < acc.accountants.rdp(run, delta).epsilon <= value * (1 + 1e-5)


def test_the_central_limit_matches_the_usual_library() -> None:
    usual = {"a1": 0.310944, "a3": 6.705877, "b": 1.076994, "c": 6.467664, "e": 7.533908, "j": 1.925647}
    for name, value in usual.items():
        run, delta = CASES[name][:2]
        assert acc.accountants.gdp(run, delta).epsilon == pytest.approx(value, abs=2e-6)


def test_time_does_not_grow_with_the_number_of_steps() -> None:
    import time

    def seconds(steps: int, shift: int) -> float:
        run = poisson(0.01, 2.0 + 1e-6 * shift, steps)
        start = time.process_time()
        acc.epsilon(run, 1e-5)
        return time.process_time() - start

    short = np.median([seconds(10_000, i) for i in range(7)])
    long = np.median([seconds(10_000_000, i) for i in range(7)])
    assert long < 5 * short
