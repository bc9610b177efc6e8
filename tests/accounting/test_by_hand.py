"""Prices and refusals that can be worked out by hand, one for each place where a factor or a check could be missing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit import accounting as acc
from tacit.accounting import accountants, attacks, base, batches, contour


def test_what_belongs_to_different_units_is_not_added_up():
    person = acc.Gaussian(1.0, unit="person")
    with pytest.raises(acc.UnitError):
        acc.Gaussian(1.0) + person
    with pytest.raises(acc.UnitError):
        acc.Either(acc.Gaussian(1.0), person, share=0.5)


def test_ids_that_are_masked_are_missing():
    with pytest.raises(ValueError, match="missing"):
        base.owner_numbers(np.ma.array([1, 2, 3], mask=[False, True, False]))


@pytest.mark.parametrize("ends", [(math.nan, 1.0), (0.0, math.nan), (2.0, 1.0), (-1.0, 1.0)])
def test_an_interval_that_is_none_is_never_stated(ends):
    with pytest.raises(ArithmeticError):
        acc.Bound(*ends)


def test_the_terms_of_a_group_name_its_size():
    assert "3" in acc.epsilon(acc.Gaussian(5.0), 1e-5, group=3).terms


def test_advanced_composition_adds_the_mean_of_every_part():
    """Kairouz, Oh & Viswanath 2015: the sum of ε tanh(ε/2), and the root of 2 ln(1/δ) times the sum of ε²."""
    parts = [(0.1, 30), (0.3, 20)]
    mean = sum(times * one * math.tanh(one / 2) for one, times in parts)
    spread = math.sqrt(2 * math.log(1e5) * sum(times * one**2 for one, times in parts))
    mechanism = acc.PureDP(0.1) * 30 + acc.PureDP(0.3) * 20
    assert accountants.advanced(mechanism, 1e-5).epsilon == pytest.approx(mean + spread, rel=1e-9)


@pytest.mark.parametrize("mechanism", [acc.ExponentialMechanism(0.25), acc.PureDP(0.25), acc.Laplace(4.0)])
def test_basic_composition_of_a_group_costs_its_size(mechanism):
    assert accountants.basic(mechanism * 4, 1e-5, group=3).epsilon == pytest.approx(3.0, rel=1e-9)


@pytest.mark.parametrize("value", [0.0123456, 0.123456, 0.98765, 0.5])
def test_a_share_in_words_is_rounded_up_to_three_digits(value):
    shown = float(attacks._share(value).removesuffix("%"))
    assert 100 * value * (1 - 1e-12) <= shown <= 100 * value * 1.01
    assert shown == float(f"{shown:.3g}")


def test_the_loss_of_a_sampled_step_is_that_of_the_mixture():
    rate, x = 0.1, np.array([-2.0, 0.0, 1.0, 5.0])
    loss = batches.DisplacedLoss(1.0, rate, 1.5)

    def density(shift):
        return np.log1p(rate * np.expm1(shift * x - shift**2 / 2))

    assert loss.loss(x) == pytest.approx(density(1.5) - density(0.5), rel=1e-12)


def test_the_numerical_error_of_a_composition_is_that_of_all_its_parts():
    loss = acc.PoissonSampled(acc.Gaussian(1.0), 0.1).pair("add-remove", "remove")
    k, error, *_ = loss.tilted(3.0)
    assert contour.log_mgf_real([(loss, 7)], 3.0) == (pytest.approx(7 * k), pytest.approx(7 * error))


@pytest.mark.parametrize("group", [2, 3])
def test_what_is_brought_costs_a_group_no_less_than_the_mechanism_it_was_taken_from(group):
    own, delta = acc.Laplace(2.0), 1e-4
    epsilons = np.linspace(0.0, 0.5, 51)
    brought = acc.ProfileDP(tuple(epsilons), tuple(acc.delta(own, e).upper for e in epsilons))
    price = acc.epsilon(brought, delta, group=group)
    assert acc.epsilon(own, delta, group=group).lower <= price.upper <= 1.1 * group * 0.5


def test_a_loss_law_that_no_pair_has_is_refused():
    """The masses under Q are those under P times e^-loss, and are at most 1 together."""
    with pytest.raises(acc.AccountingError, match="no pair has this law"):
        acc.LossLaw(losses=(-0.3, -0.2), masses=(0.5, 0.5))


def test_a_profile_ascends():
    with pytest.raises(acc.AccountingError, match="ascend"):
        acc.ProfileDP((0.5, 0.1), (0.1, 0.2))


def test_a_law_of_another_library_keeps_the_adjacency_it_is_stated_for():
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    law = acc.LossLaw.from_dp_accounting(pld.from_gaussian_mechanism(2.0), adjacency="replace-one")
    assert law.adjacencies() == ("replace-one",)


def test_what_adds_to_delta_has_no_loss_law_for_another_library():
    cut = acc.TruncatedPoissonSampled(acc.Laplace(4.0), 0.01, examples=10_000, max_batch=170)
    with pytest.raises(acc.AccountingError, match="no loss law does"):
        acc.to_dp_accounting(cut)


def test_calibration_refuses_targets_that_are_none():
    with pytest.raises(acc.AccountingError, match="leave delta out"):
        acc.calibrate(acc.Gaussian(1.0), epsilon=1.0, delta=1e-5)
    for epsilon in (-1.0, 0.0, math.nan):
        with pytest.raises(acc.AccountingError):
            acc.calibrate_delta(acc.Gaussian(1.0), epsilon=epsilon)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_calibrated_rate_keeps_its_budget_under_its_adjacency(adjacency):
    def family(rate):
        return acc.PoissonSampled(acc.Gaussian(1.0), rate) * 20

    rate = acc.calibrate_rate(family, epsilon=1.0, delta=1e-5, adjacency=adjacency)
    assert 0.98 < acc.epsilon(family(rate), 1e-5, adjacency=adjacency).upper <= 1.0
