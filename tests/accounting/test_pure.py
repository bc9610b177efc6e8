"""Pure differential privacy: ε at δ = 0."""

from __future__ import annotations

import math

import pytest

from tacit import accounting as acc
from tests.accounting.catalogue import CASES, MECHANISMS

PURE = {"Laplace", "PureDP", "ExponentialMechanism", "PoissonSampled Laplace", "PoissonSampled PureDP", "LaplaceVotes"}
PURE |= {"RandomizedResponse"}


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_what_is_pure_has_an_epsilon_at_delta_zero_and_what_is_not_has_none(name: str, adjacency: str) -> None:
    bound = acc.epsilon(MECHANISMS[name] * 3, 0, adjacency=adjacency)
    assert math.isfinite(bound.upper) == (name in PURE)
    assert bound.given == 0
    if bound.tight and name in PURE:
        assert bound.upper * (1 - 1e-11) <= bound.lower <= bound.upper
    for delta in (1e-300, 1e-9):
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
