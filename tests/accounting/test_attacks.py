"""What an attack could find out, against exact values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from tacit import accounting as acc


def test_rates_and_advantage_of_gaussian_noise_are_those_of_a_formula() -> None:
    fpr = np.array([1e-4, 0.01, 0.2, 0.7])
    for sigma in (0.5, 2.0):
        found = acc.risk(acc.Gaussian(sigma), fpr=fpr.tolist())
        exact = norm.cdf(norm.ppf(fpr) + 1 / sigma)
        assert (found.tpr_lower <= exact + 1e-12).all()
        assert (exact <= found.tpr_upper + 1e-12).all()
        assert (found.tpr_upper - found.tpr_lower < 0.01).all()
        advantage = 2 * norm.cdf(0.5 / sigma) - 1
        assert found.advantage[0] <= advantage <= found.advantage[1]
        assert found.accuracy == pytest.approx((1 + advantage) / 2, rel=1e-4)


def test_the_two_tests_of_sampled_noise_differ_and_the_one_of_presence_is_told() -> None:
    """Neyman and Pearson: accuse where the outcome is large."""
    rate, x = 0.2, np.linspace(-9, 11, 400_001)
    fpr = np.array([0.001, 0.05, 0.5])
    found = norm.sf(x) * (1 - rate) + rate * norm.sf(x - 1)
    exact = np.interp(fpr, norm.sf(x)[::-1], found[::-1])
    risk = acc.risk(acc.PoissonSampled(acc.Gaussian(1.0), rate), fpr=fpr.tolist())
    assert (risk.tpr_lower <= exact + 1e-8).all()
    assert (exact <= risk.tpr_upper + 1e-8).all()
    assert (risk.tpr_upper - risk.tpr_lower < 0.005).all()


@pytest.mark.parametrize("sigma", [0.7, 3.0])
@pytest.mark.parametrize("chance", [0.2, 1e-3, 1e-6])
def test_odds_rise_by_more_than_is_said_as_rarely_as_is_said(sigma: float, chance: float) -> None:
    """L ~ N(1/(2σ²), 1/σ²): the bound holds, and is not far above the quantile. ε at δ = chance would be too small."""
    found = acc.risk(acc.Gaussian(sigma), fpr=[0.1], prior=0.2, chance=chance)
    mean, spread = 0.5 / sigma**2, 1 / sigma
    assert norm.sf((math.log(found.odds) - mean) / spread) <= chance
    assert math.log(found.odds) <= mean - spread * norm.ppf(chance) + 1.2
    assert found.posterior == pytest.approx(0.2 * found.odds / (0.2 * found.odds + 0.8))
    price = acc.epsilon(acc.Gaussian(sigma), chance).upper
    assert norm.sf((price - mean) / spread) > chance


def test_what_reveals_everything_is_told_as_such() -> None:
    found = acc.risk(acc.Gaussian(0.0), fpr=[0.0, 0.5])
    assert found.advantage[1] == found.posterior == 1.0
    assert math.isinf(found.odds)
    assert found.to_dict()["odds"] == "inf"
    assert "100%" in repr(found)


@pytest.mark.parametrize(
    "wrong", [{"prior": 0.0}, {"prior": 1.0}, {"chance": 0.0}, {"chance": math.nan}, {"fpr": [2.0]}]
)
def test_probabilities_that_are_none_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(acc.AccountingError):
        acc.risk(acc.Gaussian(1.0), **wrong)  # type: ignore[arg-type]


def test_the_curve_is_drawn_and_saved(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "roc.svg"
    figure = acc.plot(acc.PureDP(0.5), path)
    assert path.read_text(encoding="utf-8").startswith("<?xml")
    line = figure.axes[0].get_lines()[0]
    fpr, tpr = line.get_xdata(), line.get_ydata()
    exact = np.minimum(np.minimum(math.exp(0.5) * fpr, 1 - math.exp(-0.5) * (1 - fpr)), 1.0)
    assert tpr == pytest.approx(exact, abs=1e-6)
    with pytest.raises(acc.AccountingError, match="nothing to draw"):
        acc.plot({})


def test_samplers_are_compared_under_every_adjacency() -> None:
    table = acc.compare_samplers(acc.Gaussian(2.0), batch=50, examples=200, steps=4, delta=1e-5)
    assert set(table.prices) | set(table.refused) == {(s, a) for s in table.mechanisms for a in acc.ADJACENCIES}
    assert table.prices["balls-in-bins", "zero-out"].upper < table.prices["poisson", "zero-out"].upper
    assert table.prices["fixed", "zero-out"].upper < table.prices["fixed", "add-remove"].lower
    shown = repr(table).splitlines()
    assert "no amplified price is known" in shown[-1]
    assert "(≥" in shown[-1]
    assert len(table.to_dict()["samplers"]) == 5
    with pytest.raises(acc.AccountingError, match="cannot be drawn"):
        acc.compare_samplers(acc.Gaussian(2.0), batch=50, examples=20, steps=4, delta=1e-5)
