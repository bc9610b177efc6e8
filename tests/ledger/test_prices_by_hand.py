"""What a rule charges, and says is left, for cases that can be worked out by hand."""

from __future__ import annotations

import math

import pytest

from tacit import accounting as acc
from tacit.ledger import advice, rules, terms


def test_the_part_of_a_budget_that_is_gone_is_that_of_epsilon_or_delta_whichever_is_larger():
    rule = rules.SumRule(2.0, 1e-5)
    assert rule.used(rules.Totals().plus(rules.Price(1.0, 1e-6))) == 0.5
    assert rule.used(rules.Totals().plus(rules.Price(0.1, 9e-6))) == pytest.approx(0.9)


def test_what_is_left_under_several_orders_is_what_is_left_at_the_best_of_them():
    rule = rules.RenyiRule(2.0, 1e-5, (8.0, 16.0))
    totals = rules.Totals().plus(rules.Price(0.0, 0.0, (0.1, 0.6), 0.0))
    rests = [limit - spent for limit, spent in zip(rule.limits, (0.1, 0.6), strict=True)]
    assert rests[0] != rests[1]
    assert rule.left(totals)[0] == max(rests)
    assert rule.used(totals) == min(0.1 / rule.limits[0], 0.6 / rule.limits[1])


def test_the_renyi_rule_prices_under_the_adjacency_of_the_data():
    rule = rules.RenyiRule(2.0, 1e-5, (10.0,))
    one, other = (rule.price(acc.Gaussian(20.0), 1e-6, name).renyi[0] for name in ("add-remove", "replace-one"))
    assert one == pytest.approx(10 / 800, rel=1e-9)
    assert other == pytest.approx(4 * one, rel=1e-9)  # twice the distance


def test_a_stated_guarantee_costs_what_it_states_under_its_adjacency():
    stated = acc.ApproxDP(0.5, 1e-7, adjacency="replace-one")
    assert rules._basic(stated, 1e-7, "replace-one") == 0.5
    assert rules._basic(stated * 3, 3e-7, "replace-one") == pytest.approx(1.5)
    assert rules._basic(stated * 3, 2e-7, "replace-one") == math.inf  # its failures do not fit


def test_failures_are_paid_as_often_as_they_can_happen():
    assert rules._without_failures(acc.ApproxDP(0.1, 1e-9) * 7, 1.0)[1] == pytest.approx(7e-9)
    search = acc.Selected(acc.ApproxDP(0.1, 1e-9) * 5, gamma=0.25)  # four runs expected, five parts each
    assert rules._without_failures(search, 1.0)[1] == pytest.approx((1 + math.e) * 4 * 5e-9)


def test_a_single_planned_charge_may_use_all_of_delta():
    assert terms.share_of(1e-5, 1) == 1e-5
    assert terms.share_of(1e-5, 4) == 2.5e-6


def test_advice_is_about_the_part_that_repeats_most_and_its_noise_is_readable():
    blank = advice.Advice("people", 3.0, 1e-6, 1.0, 1e-6, asked_repeats=1)

    def fits(mechanism: acc.Mechanism) -> bool:
        return sum(times / advice.noise_of(part) ** 2 for part, times in mechanism.parts()) <= 1.0

    both = advice.advise(acc.Gaussian(20.0) * 500 + acc.Gaussian(2.0), fits, blank)
    assert (both.asked_repeats, both.repeats) == (500, 300)
    one = advice.advise(acc.Gaussian(10.0) * 500, fits, blank)
    assert one.noise == 22.4  # the root of 500 is 22.36
