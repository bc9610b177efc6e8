"""Pure differential privacy: ε at δ = 0."""

from __future__ import annotations

import math

import mpmath
import pytest

from tacit import accounting as acc
from tests.accounting.catalogue import CASES, MECHANISMS

PURE = {"Laplace", "PureDP", "ExponentialMechanism", "PoissonSampled Laplace", "PoissonSampled PureDP", "LaplaceVotes"}
PURE |= {"RandomizedResponse"}
PURE |= {"DiscreteLaplace", "Outcomes", "LossLaw", "ProfileDP", "TradeoffDP"}


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_what_is_pure_has_an_epsilon_at_delta_zero_and_what_is_not_has_none(name: str, adjacency: str) -> None:
    bound = acc.epsilon(MECHANISMS[name] * 3, 0, adjacency=adjacency)
    assert math.isfinite(bound.upper) == (name in PURE)
    assert bound.given == 0
    if bound.tight and name in PURE:
        assert bound.upper * (1 - 1e-11) <= bound.lower <= bound.upper
    for delta in (1e-300, 1e-9) if name in PURE else ():  # otherwise anything is less
        assert acc.epsilon(MECHANISMS[name] * 3, delta, adjacency=adjacency).upper <= bound.upper * (1 + 1e-5)


def test_pure_guarantees_add_up_and_are_rounded_once() -> None:
    assert acc.epsilon(acc.Laplace(10.0) * 10, 0).upper == 1.0
    assert acc.epsilon(acc.PureDP(0.1) * 10 + acc.Laplace(2.0) + acc.ExponentialMechanism(0.25), 0).upper == 1.75
    assert acc.epsilon(acc.Laplace(4.0), 0, adjacency="replace-one").upper == 0.5
    assert acc.epsilon(acc.Laplace(4.0), 0, group=3).upper == 0.75
    assert acc.epsilon(acc.nothing(), 0).upper == 0.0


def test_a_sampled_pure_mechanism_is_amplified() -> None:
    step = acc.PoissonSampled(acc.Laplace(1.0), 0.1)
    one = math.log(1 + 0.1 * (math.e - 1))
    for adjacency, times in (("add-remove", 1), ("zero-out", 1), ("replace-one", 2)):
        assert acc.epsilon(step, 0, adjacency=adjacency).upper == pytest.approx(times * one, rel=1e-14)
    # two records that pull opposite ways: what is attained lies between once and twice the amplified ε
    assert acc.epsilon(step, 0, adjacency="replace-one").lower < math.log((0.9 + 0.1 * math.e) / (0.9 + 0.1 / math.e))
    assert acc.epsilon(acc.PoissonSampled(acc.PureDP(1.0), 0.1), 0).upper == pytest.approx(one, rel=1e-14)
    assert acc.epsilon(acc.PoissonSampled(acc.Gaussian(1.0), 0.0), 0).upper == 0.0


def test_one_part_without_a_pure_guarantee_leaves_none() -> None:
    for part in (acc.Gaussian(50.0), acc.ApproxDP(0.1, 1e-12), acc.DiscreteGaussian(3.0), acc.ZCDP(1e-9)):
        bound = acc.epsilon(acc.Laplace(1.0) + part, 0)
        assert (bound.lower, bound.upper) == (math.inf, math.inf)
    cut = acc.TruncatedPoissonSampled(acc.Laplace(1.0), 0.05, 2000, 190)
    assert acc.epsilon(cut, 0).upper == math.inf
    assert acc.epsilon(acc.TruncatedPoissonSampled(acc.Laplace(1.0), 0.05, 2000, 2001), 0).upper < 0.1


def test_selections_and_draws_of_pure_mechanisms_are_pure() -> None:
    geometric = acc.epsilon(acc.Selected(acc.PureDP(0.1), gamma=0.1), 0).upper
    assert 0.1 < geometric <= 0.3 * (1 + 1e-12)  # Liu & Talwar 2019: three times the base
    assert acc.epsilon(acc.Selected(acc.Gaussian(10.0)), 0).upper == math.inf
    assert acc.epsilon(acc.Either(acc.PureDP(0.1), acc.Laplace(2.0), 0.9), 0).upper == 0.5


def test_the_noise_for_a_pure_guarantee_is_found() -> None:
    assert acc.calibrate(acc.Laplace, epsilon=1.0, delta=0) == pytest.approx(1.0, rel=1e-6)
    scale = acc.calibrate(lambda scale: acc.PoissonSampled(acc.Laplace(scale), 0.1) * 20, epsilon=1.0, delta=0)
    assert 1 - 1e-6 <= acc.epsilon(acc.PoissonSampled(acc.Laplace(scale), 0.1) * 20, 0).upper <= 1.0
    assert acc.calibrate_steps(acc.Laplace(10.0), epsilon=1.0, delta=0) == 10
    with pytest.raises(acc.AccountingError, match="out of reach"):
        acc.calibrate(acc.Gaussian, epsilon=1.0, delta=0)


def test_accountants_that_need_a_delta_say_so() -> None:
    table = acc.compare(acc.Laplace(10.0) * 4, 0)
    assert table["basic"].epsilon == table["certified"].epsilon == 0.4
    for name in ("advanced", "moments", "rdp", "gdp"):
        with pytest.raises(acc.NotApplicable, match="needs a δ above 0"):
            table[name]


# -- first definitions, against their closed forms ----


def randomised_response(epsilon: float, times: int, delta: float) -> float:
    """The ε of so many uses of an ε-DP mechanism at δ, by bisection of the sum over outcomes (Kairouz et al. 2015)."""
    yes = 1 / (1 + math.exp(-epsilon))

    def beyond(claim: float) -> float:
        losses = [
            (math.comb(times, k) * yes**k * (1 - yes) ** (times - k), (2 * k - times) * epsilon)
            for k in range(times + 1)
        ]
        return math.fsum(p * -math.expm1(claim - loss) for p, loss in losses if loss > claim)

    low, high = 0.0, times * epsilon
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(("epsilon", "times"), [(0.5, 1), (0.1, 3), (0.1, 7), (0.7, 3), (1 / 3, 3), (0.05, 100)])
def test_pure_guarantees_add_up_to_what_a_person_would_write(epsilon: float, times: int) -> None:
    bound = acc.epsilon(acc.PureDP(epsilon) * times, delta=0)
    assert bound.lower == bound.upper == pytest.approx(times * epsilon, rel=1e-15)
    assert acc.delta(acc.PureDP(epsilon) * times, bound.upper).upper == 0
    assert acc.delta(acc.PureDP(epsilon) * times, bound.upper * (1 - 1e-9)).lower > 0


def test_three_times_a_tenth_is_three_tenths() -> None:
    bound = acc.epsilon(acc.PureDP(0.1) * 3, delta=0)
    assert (bound.lower, bound.upper) == (0.3, 0.3)
    assert repr(bound) == "ε in [0.3000000, 0.3000000] at δ=0, add/remove one record"
    assert acc.epsilon(acc.PureDP(0.1) + acc.PureDP(0.2), 0).upper == 0.3
    noise = acc.epsilon(acc.Laplace(10.0) * 3 + acc.PureDP(0.1), 0)
    assert (noise.lower, noise.upper) == (0.4, 0.4)
    third = acc.epsilon(acc.Laplace(3.0), 0)
    assert third.lower < 1 / 3 <= third.upper
    for delta in (1e-18, 1e-100, 1e-300):
        small = acc.epsilon(acc.PureDP(0.1) * 3, delta)
        assert 0.3 - 1e-14 < small.lower <= small.upper == 0.3


@pytest.mark.parametrize("delta", [1e-2, 1e-4, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize(("epsilon", "times"), [(0.5, 1), (0.1, 3), (0.1, 30), (1.0, 5)])
def test_the_lower_end_of_a_pure_guarantee_is_that_of_randomised_response(
    epsilon: float, times: int, delta: float
) -> None:
    truth = randomised_response(epsilon, times, delta)
    bound = acc.epsilon(acc.PureDP(epsilon) * times, delta)
    assert bound.tight
    assert truth * (1 - 1.1e-4) <= bound.lower <= truth + 1e-12
    assert truth - 1e-12 <= bound.upper <= truth * (1 + 1.1e-4)


@pytest.mark.parametrize(("scale", "times"), [(2.0, 1), (2.0, 3), (7.0, 5)])
def test_laplace_noise_has_its_pure_price_and_the_right_one_near_it(scale: float, times: int) -> None:
    pure = acc.epsilon(acc.Laplace(scale) * times, delta=0)
    assert pure.upper == pytest.approx(times / scale, rel=1e-15)
    assert pure.upper * (1 - 2e-12) <= pure.lower
    # near the largest loss only the event counts that all uses attain it, of probability 2^-times
    delta = 1e-15
    near = acc.epsilon(acc.Laplace(scale) * times, delta)
    assert near.upper <= pure.upper
    assert near.lower == pytest.approx(times / scale + math.log1p(-delta * 2**times), abs=1e-11)


def test_approximate_guarantees_add_up() -> None:
    one = acc.epsilon(acc.ApproxDP(0.5, 1e-6), 1e-6)
    assert 0.5 * (1 - 1e-9) <= one.lower <= one.upper == 0.5
    # all failures spent on the one part that fails: the ε of the parts add up, and no lower end is 0
    mixed = acc.epsilon(acc.PureDP(0.1) * 3 + acc.ApproxDP(0.5, 1e-6), 1e-6)
    assert 0.8 - 1e-11 <= mixed.lower <= mixed.upper == 0.8
    assert acc.epsilon(acc.ApproxDP(0.5, 1e-6) * 3, 0).upper == math.inf
    three = acc.epsilon(acc.ApproxDP(0.5, 1e-6) * 3, 3e-6)  # basic composition says 1.5 at 3e-6
    assert 1.5 - 1e-9 <= three.lower <= three.upper <= 1.5
    # of a δ beyond the failures, the rest is worth what it is worth to randomised response
    failing = -math.expm1(3 * math.log1p(-1e-6))
    rest = (1e-3 - failing) / (1 - failing)
    known = acc.epsilon(acc.ApproxDP(0.5, 1e-6) * 3, 1e-3)
    assert known.lower - 1e-10 <= randomised_response(0.5, 3, rest) <= known.upper + 1e-10


def test_printed_ends_are_rounded_outward_from_the_digits_of_the_number() -> None:
    shown = {0.3: "0.3000000", 0.7: "0.7000000", 1e-5: "1.000000e-5", 12.0: "12.000000", 9.99999999e-5: "1.000000e-4"}
    for value, text in shown.items():
        assert f", {text}]" in repr(acc.Bound(0.0, value, given=0.0))
    for value in (0.30000000000000004, 0.123456789, 1.23456789, 1.23456789e-7, 123456.7890123):
        low, high = repr(acc.Bound(value, value, given=0.0)).split("[")[1].split("]")[0].split(", ")
        assert float(low) <= value <= float(high)
        assert float(high) - float(low) <= 2e-6 * value


def test_a_lower_end_is_not_given_up_where_only_a_weaker_pair_is_known() -> None:
    bound = acc.epsilon(acc.ExponentialMechanism(0.5) * 20, 1e-5)
    assert not bound.tight
    assert bound.lower > 0.8 * bound.upper


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.0])
def test_the_lattice_of_randomised_response_has_no_point_between_its_two_losses(epsilon: float) -> None:
    # with a point between them every composition would take twice the memory
    for stated in (acc.PureDP(epsilon), acc.ApproxDP(epsilon, 1e-6)):
        loss = stated.pair("add-remove", "remove")
        assert loss is not None
        values, masses = loss.atoms()
        assert values.tolist() == [-epsilon, epsilon]
        assert masses[1] / masses[0] == pytest.approx(math.exp(epsilon), rel=1e-14)
        assert loss.spacing() == values[1] - values[0]


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_a_sample_of_noise_without_a_largest_loss_has_none(rate: float) -> None:
    """The largest loss that has a number in binary64 was taken: ε was said to be 17.07."""
    sampled = acc.PoissonSampled(acc.DiscreteGaussian(2.0), rate)
    cut = acc.TruncatedPoissonSampled(acc.DiscreteGaussian(2.0), rate, examples=5, max_batch=9)
    for mechanism in (sampled, sampled * 3, cut, acc.Either(sampled, acc.PureDP(1.0)), acc.Selected(sampled)):
        assert acc.epsilon(mechanism, 0).upper == math.inf
    assert acc.epsilon(sampled, 0, group=3).upper == math.inf
    assert acc.epsilon(sampled, 0, adjacency="replace-one").upper == math.inf


@pytest.mark.parametrize("times", [1, 2, 7])
def test_the_largest_loss_of_a_sample_is_rounded_up(times):
    """At a δ next to nothing ε is the largest loss: log(1 + q(e^ε - 1)) has no number in binary64."""
    for epsilon, rate in ((1.0, 0.5), (0.01, 0.250008), (0.3, 0.1), (2.7, 0.013)):
        price = acc.epsilon(acc.PoissonSampled(acc.PureDP(epsilon), rate) * times, 1e-300)
        with mpmath.workdps(60):
            assert price.upper >= times * mpmath.log(1 + mpmath.mpf(rate) * mpmath.expm1(mpmath.mpf(epsilon)))


def test_only_a_dictionary_describes_a_mechanism():
    for wrong in (None, [], "Gaussian"):
        with pytest.raises(acc.AccountingError, match="dictionary"):
            acc.from_dict(wrong)
