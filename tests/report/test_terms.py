"""Every number of a card is that of the adjacency it states, and none is smaller than what ran costs."""

from __future__ import annotations

import pytest

from tacit import accounting as acc
from tacit.ledger import Ledger
from tacit.report import CardError, Run, make_card
from tacit.report.check import problems
from tacit.report.words import attacker

DELTA, STEPS = 1e-5, 30
STEP = acc.Gaussian(9.0)


@pytest.fixture(scope="module", params=["add-remove", "replace-one"])
def stated(request):
    run = Run("a run", STEP * STEPS, delta=DELTA, adjacency=request.param, steps_planned=STEPS)
    card = make_card(run).to_dict()
    return request.param, card["guarantee"], card["accountant"]


def value(entry):
    return entry["value"] if isinstance(entry, dict) and "value" in entry else entry


def test_each_price_is_that_of_its_adjacency(stated):
    adjacency, guarantee, accountant = stated
    true = acc.epsilon(STEP * STEPS, DELTA, adjacency=adjacency)
    assert value(guarantee["epsilon"]["upper"]) == true.upper
    for row in value(guarantee["epsilon_of_delta"]):
        assert row["upper"] == acc.epsilon(STEP * STEPS, row["delta"], adjacency=adjacency).upper
    others = {row["adjacency"]: row["upper"] for row in value(guarantee["other_adjacencies"])}
    assert adjacency not in others
    assert others
    for other, upper in others.items():
        assert upper == acc.epsilon(STEP * STEPS, DELTA, adjacency=other).upper
    profile = value(guarantee["profile"])
    place = len(profile["epsilon"]) // 2
    at = acc.delta(STEP * STEPS, profile["epsilon"][place], adjacency=adjacency)
    assert at.lower <= profile["upper"][place] <= 1.05 * at.upper
    best = next(row for row in value(accountant["comparison"]) if row["accountant"] == "certified")
    assert best["epsilon"] == pytest.approx(true.upper, rel=1e-3)


def test_the_curve_over_steps_ends_with_the_price_of_all_of_them(stated):
    adjacency, guarantee, _ = stated
    curve = value(guarantee["over_steps"])
    assert curve["steps"][0] == 1
    assert curve["steps"][-1] == STEPS
    assert len(curve["steps"]) == STEPS  # every step, where there are few
    for place in (0, len(curve["steps"]) // 2, -1):
        true = acc.epsilon(STEP * curve["steps"][place], DELTA, adjacency=adjacency)
        assert true.lower <= curve["upper"][place] <= true.upper * (1 + 1e-6)


def test_a_card_names_a_charge_that_its_ledger_holds():
    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-5)
    run = Run("a run", STEP * STEPS, delta=1e-6, ledger=ledger, dataset="people", charge=7)
    with pytest.raises(CardError, match="no charge 7"):
        make_card(run)


def test_the_problem_that_is_shown_is_that_of_the_nearest_choice():
    choice = {"anyOf": [{"type": "object", "required": ["a", "b", "c"], "properties": {}}, {"type": "string"}]}
    assert len(problems({}, choice)) == 1


def test_what_an_attacker_finds_is_rounded_up():
    curve = acc.tradeoff(acc.Gaussian(5.0))
    found = float(attacker(curve).split("at most ")[1].split("%")[0])
    place = abs(curve.alpha - 0.01).argmin()
    assert found >= 100 * (1 - float(curve.lower[place]))
