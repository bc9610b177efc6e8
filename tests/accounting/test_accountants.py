"""Accountants, side by side."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tacit import accounting as acc
from tacit.accounting.renyi import convert
from tests.accounting.catalogue import poisson

DELTA = 1e-5


def test_basic_composition_adds_up() -> None:
    assert acc.accountants.basic(acc.PureDP(0.5) * 4 + acc.Laplace(2.0), DELTA).epsilon == pytest.approx(2.5)
    price = acc.accountants.basic(acc.ApproxDP(0.1, 1e-7) * 10, DELTA)
    assert price.epsilon == pytest.approx(1.0)
    with pytest.raises(acc.NotApplicable, match="add up"):
        acc.accountants.basic(acc.ApproxDP(0.1, 1e-6) * 11, DELTA)


def test_basic_composition_shares_delta_among_the_steps_that_need_one() -> None:
    price = acc.accountants.basic(acc.Gaussian(5.0) * 8 + acc.PureDP(0.3), DELTA)
    assert price.epsilon == pytest.approx(8 * acc.epsilon(acc.Gaussian(5.0), DELTA / 8).upper + 0.3)
    assert "over 8 steps" in price.note


def test_advanced_composition_is_the_theorem() -> None:
    price = acc.accountants.advanced(acc.PureDP(0.1) * 200, DELTA)
    by_hand = 0.1 * math.sqrt(2 * 200 * math.log(1 / DELTA)) + 200 * 0.1 * math.expm1(0.1) / (math.exp(0.1) + 1)
    assert price.epsilon == pytest.approx(by_hand)


def test_advanced_composition_of_a_training_run_goes_through_the_lemma_and_says_how_delta_was_split() -> None:
    rate, steps = 0.01, 1000
    price = acc.accountants.advanced(poisson(rate, 4.0, steps), DELTA)
    each = 0.5 * DELTA / steps
    one = math.log1p(rate * math.expm1(acc.epsilon(acc.Gaussian(4.0), each / rate).upper))
    by_hand = one * math.sqrt(2 * steps * math.log(2 / DELTA)) + steps * one * math.tanh(one / 2)
    assert price.epsilon == pytest.approx(by_hand)
    assert "δ split: δ' = 5e-06 + 5e-06 over 1,000 steps" in price.note
    assert "sampled" in price.note


def test_the_amplification_lemma_is_valid_for_one_step() -> None:
    step = acc.PoissonSampled(acc.Gaussian(1.0), 0.1)
    lemma = acc.accountants.amplified(acc.epsilon(acc.Gaussian(1.0), DELTA / 0.1).upper, 0.1)
    assert acc.epsilon(step, DELTA).upper <= lemma * (1 + 1e-9)


def test_different_steps_compose_in_every_way_that_applies() -> None:
    run = poisson(0.01, 1.0, 1000) + poisson(0.02, 0.8, 500) + acc.Laplace(10.0)
    table = acc.compare(run, DELTA)
    assert set(table.prices) == {"basic", "advanced", "moments", "rdp", "certified"}
    assert "Laplace" in table.refused["gdp"]
    with pytest.raises(acc.NotApplicable, match="central limit"):
        table["gdp"]
    assert table["certified"].epsilon < table["rdp"].epsilon < table["moments"].epsilon < table["advanced"].epsilon


def test_the_table_is_aligned_and_names_its_terms() -> None:
    text = repr(acc.compare(poisson(0.01, 2.0, 1000), DELTA, adjacency="replace-one"))
    lines = text.splitlines()
    assert "δ=1e-05, replace one record" in lines[0]
    assert [line.split()[0] for line in lines[2:]] == list(acc.accountants.ACCOUNTANTS)
    column = lines[1].index("what it is")
    assert all(line[column - 1] == " " and line[column] != " " for line in lines[1:])
    assert "not applicable: " in text


def test_the_table_is_plain_json() -> None:
    plain = json.loads(json.dumps(acc.compare(acc.Gaussian(0.0), DELTA).to_dict()))
    assert plain["adjacency"] == "add-remove"
    rows = {row["accountant"]: row for row in plain["accountants"]}
    assert rows["certified"]["epsilon"] == "inf"
    assert rows["basic"]["applicable"] is False


def test_a_truncated_sampler_pays_for_its_overflow_in_every_renyi_way() -> None:
    # With Laplace noise, of which no pair is known; a cut Gaussian batch has one, and nothing spills.
    plain = acc.PoissonSampled(acc.Laplace(1.0), 0.05) * 100
    roomy = acc.TruncatedPoissonSampled(acc.Laplace(1.0), 0.05, 2000, 250) * 100
    tight = acc.TruncatedPoissonSampled(acc.Laplace(1.0), 0.05, 2000, 164) * 100
    hopeless = acc.TruncatedPoissonSampled(acc.Laplace(1.0), 0.05, 2000, 110) * 100
    values = [acc.accountants.rdp(run, DELTA).epsilon for run in (plain, roomy, tight, hopeless)]
    assert values[0] <= values[1] < values[2]
    assert values[3] == math.inf
    # what it claims must hold: δ of the untruncated run, plus (1 + e^ε)·w, stays within δ
    spill = sum(times * part.extra_delta() for part, times in tight.parts())
    assert acc.delta(plain, values[2]).upper + (1 + math.exp(values[2])) * spill <= DELTA


def test_gaussian_dp_adds_squares_exactly_where_no_limit_is_taken() -> None:
    price = acc.accountants.gdp(acc.Gaussian(2.0) * 3 + acc.GDP(0.5), DELTA)
    assert price.epsilon == pytest.approx(acc.epsilon(acc.GDP(math.sqrt(3 / 4 + 1 / 4)), DELTA).upper)
    assert price.approximation


def test_the_improved_conversion_is_never_worse_than_the_classic_one() -> None:
    orders = np.array([1.5, 2.0, 8.0, 64.0])
    divergence = 0.1 * orders
    assert np.all(convert(orders, divergence, DELTA) <= convert(orders, divergence, DELTA, "classic"))
    with pytest.raises(acc.AccountingError, match="conversion"):
        convert(orders, divergence, DELTA, "better")


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.02, 0.7)])
@pytest.mark.parametrize("order", [1.5, 4.0, 9.5])
def test_sampled_laplace_noise_has_the_right_renyi_divergence(rate: float, noise: float, order: float) -> None:
    import mpmath

    with mpmath.workdps(25):
        e = 1 / mpmath.mpf(noise)

        def moment(power: float) -> mpmath.mpf:
            def ratio(x: mpmath.mpf) -> mpmath.mpf:
                return (
                    (1 - rate + rate * mpmath.exp((abs(x) - abs(x - 1)) * e)) ** power * mpmath.exp(-abs(x) * e) * e / 2
                )

            return mpmath.quad(ratio, [-40, 0, 0.5, 1, 41])

        exact = float(max(mpmath.log(moment(order)), mpmath.log(moment(1 - order))) / (order - 1))
    found = float(acc.renyi(acc.PoissonSampled(acc.Laplace(noise), rate), [order])[0])
    assert exact <= found * (1 + 1e-12)
    assert found <= exact * (1 + 1e-4)


def test_discrete_gaussian_noise_is_bounded_at_every_order() -> None:
    values = acc.renyi(acc.DiscreteGaussian(1.0), [2.0, 50.0, 1000.0])
    assert values == pytest.approx([1.0, 25.0, 500.0])
