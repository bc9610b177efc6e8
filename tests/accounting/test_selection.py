"""Selection among a random number of runs: the published bound, and what must follow from it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit import accounting as acc


def test_the_bound_is_the_published_one_for_a_gaussian_base() -> None:
    """ε(λ) = λ/(2σ²), η = 1, γ = 0.1: the best second order by hand, on a fine grid."""
    sigma, gamma = 4.0, 0.1
    selected = acc.Selected(acc.Gaussian(sigma), eta=1.0, gamma=gamma)
    for order in (2.0, 8.0, 40.0):
        rho = 1 / (2 * sigma**2)
        seconds = np.linspace(1.01, 400, 400_000)
        best = np.min(2 * ((1 - 1 / seconds) * rho * seconds + math.log(1 / gamma) / seconds))
        expected = rho * order + best + math.log(1 / gamma) / (order - 1)
        (found,) = acc.renyi(selected, [order])
        assert found == pytest.approx(expected, rel=2e-3)
        assert found >= expected * (1 - 1e-9)  # any second order is valid, the best is not exceeded by much


def test_pure_dp_triples_under_geometric_stopping() -> None:
    """For a pure ε base the bound tends to (2 + η)ε (Papernot & Steinke 2022, corollary 3)."""
    bound = acc.epsilon(acc.Selected(acc.PureDP(0.1), eta=1.0, gamma=0.5), 1e-300)
    assert 0.1 < bound.upper <= 0.3 + 0.01
    assert not bound.tight


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0, 2.0])
def test_expected_runs_are_the_law_s_own_mean(eta: float) -> None:
    gamma = 0.2
    k = np.arange(1, 4000)
    if eta == 0:
        mass = (1 - gamma) ** k / (k * math.log(1 / gamma))
    else:
        mass = np.cumprod((k - 1 + eta) / k) * (1 - gamma) ** k / (gamma**-eta - 1)
    assert mass.sum() == pytest.approx(1)
    assert acc.Selected(acc.Gaussian(1.0), eta=eta, gamma=gamma).runs == pytest.approx(float((k * mass).sum()))


@pytest.mark.parametrize("distribution", ["negative-binomial", "poisson"])
def test_selection_costs_more_than_one_run_and_composes(distribution: str) -> None:
    base = acc.PoissonSampled(acc.Gaussian(2.0), 0.01) * 500
    selected = acc.Selected(base, distribution=distribution)
    one = acc.epsilon(base, 1e-6).upper
    assert one < acc.epsilon(selected, 1e-6).upper < acc.epsilon(selected * 2, 1e-6).upper
    assert acc.from_dict(selected.to_dict()) == selected
    assert (selected + acc.Gaussian(5.0)).unit == "record"


def test_wrong_parameters_are_named() -> None:
    for wrong in ({"eta": -1.0}, {"gamma": 1.0}, {"mean": 0.0}, {"distribution": "uniform"}):
        with pytest.raises(acc.AccountingError):
            acc.Selected(acc.Gaussian(1.0), **wrong)
