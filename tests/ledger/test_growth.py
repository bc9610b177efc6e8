"""Budgets that people live with, and data that grow: raises, shares, renewals, versions, windows and schedules."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from tacit import accounting as acc
from tacit import sgd
from tacit.ledger import BudgetExceeded, ChargeError, FingerprintMismatch, Ledger, TermsError, book
from tacit.ledger.entries import chained
from tacit.linear_model import LinearRegression

MARCH, APRIL, MAY = (np.arange(float(n)) for n in (5, 6, 7))
RUN = acc.Gaussian(20.0)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""

    def at(date):
        monkeypatch.setattr(book, "now", lambda: f"{date}T00:00:00+00:00")
        monkeypatch.setattr("tacit.ledger.core.now", lambda: f"{date}T00:00:00+00:00")

    at("2026-01-01")
    return at


# -- budgets -----------------------------------------------------------------------------------------------------------


def test_a_budget_is_renewed_by_the_rule_that_was_fixed_and_by_nothing_else(ledger, clock):
    ledger.register(
        "people", epsilon=1.0, delta=0.0, renewal={"every": "year", "epsilon": 0.5, "delta": 0.0, "times": 2}
    )
    ledger.charge("people", acc.PureDP(1.0))
    for date, left in (("2026-12-01", 0.0), ("2027-01-02", 0.5), ("2028-01-02", 1.0), ("2040-01-01", 1.0)):
        clock(date)
        assert ledger.budget("people").left_epsilon == left
    ledger.charge("people", acc.PureDP(1.0))
    with pytest.raises(BudgetExceeded):
        ledger.charge("people", acc.PureDP(0.001))
    ledger.verify(reprice=True).require()
    with pytest.raises(TermsError, match="renewal has every"):  # when it began is not the caller's to say
        ledger.register("old", epsilon=1.0, delta=0.0, renewal={"epsilon": 1.0, "times": 3, "since": "1900-01-01"})


@pytest.mark.parametrize("rule", ["sum", "renyi", "tight"])
def test_a_raised_budget_grants_what_a_budget_of_that_size_would_and_no_more(rule):
    raised, large = Ledger(), Ledger()
    raised.register("people", epsilon=1.0, delta=1e-6, rule=rule)
    raised.charge("people", RUN)
    raised.raise_budget("people", epsilon=3.0, delta=1e-6, because="the board agreed")
    orders = getattr(raised.dataset("people").rule, "orders", None)
    large.register("people", epsilon=3.0, delta=1e-6, rule=rule, orders=orders)
    large.charge("people", RUN)
    for _ in range(200):
        try:
            large.charge("people", RUN)
        except BudgetExceeded:
            break
        raised.charge("people", RUN)
    with pytest.raises(BudgetExceeded):
        raised.charge("people", RUN)
    raised.verify().require()


def test_a_raise_after_which_nothing_would_be_granted_is_refused(ledger):
    """What may fail costs 1 + e^ε, also what was charged already: from ε = 10 to 40 that ended the budget for ever."""
    ledger.register("fail", epsilon=10.0, delta=1e-5)
    ledger.charge("fail", acc.ApproxDP(0.1, 1e-15))
    with pytest.raises(TermsError, match="nothing more would be granted"):
        ledger.raise_budget("fail", epsilon=40.0, delta=1e-5, because="more")
    ledger.raise_budget("fail", epsilon=20.0, delta=1e-5, because="more")
    assert ledger.fits("fail", acc.Gaussian(20.0))


def test_every_decision_can_be_read_with_who_took_it_and_why(ledger):
    owner = ledger.acting({"role": "owner", "name": "olga"})
    owner.register("people", epsilon=1.0, delta=0.0, fingerprint=MARCH)
    owner.split_budget("people", {"health": 0.5}, because="as agreed")
    owner.freeze("people", because="a complaint")
    owner.thaw("people", because="answered")
    owner.new_version("people", APRIL, because="April")
    owner.accept("people", MAY, because="scaled", version=1)
    found = ledger.changes("people")
    assert [(change.kind, change.because) for change in found] == [
        ("register", ""), ("split", "as agreed"), ("freeze", "a complaint"), ("thaw", "answered"),
        ("version", "April"), ("data", "scaled"),
    ]  # fmt: skip
    assert {change.by["name"] for change in found} == {"olga"}
    assert (found[1].details["shares"], found[-1].details["version"]) == ({"health": 0.5}, 1)
    with pytest.raises(TermsError, match="versions 1 to 2"):
        owner.accept("people", MAY + 1, because="no", version=3)


# -- versions ----------------------------------------------------------------------------------------------------------


def test_charges_on_any_version_count_for_everybody(ledger):
    ledger.register("people", epsilon=1.0, delta=0.0, fingerprint=MARCH)
    ledger.charge("people", acc.PureDP(0.5), data=ledger.recognise("people", MARCH))
    assert ledger.new_version("people", APRIL, because="April") == 2
    ledger.charge("people", acc.PureDP(0.5), data=ledger.recognise("people", APRIL))
    with pytest.raises(BudgetExceeded):
        ledger.charge("people", acc.PureDP(0.1), data=ledger.recognise("people", MARCH))
    assert [record.version for record in ledger.history("people")] == [None, 2]
    with pytest.raises(FingerprintMismatch, match="version 1 of 'people', not version 2"):
        ledger.charge("people", acc.PureDP(0.1), data=ledger.fingerprint(MARCH), version=2)
    with pytest.raises(BudgetExceeded, match="does not exist"):
        ledger.charge("people", acc.PureDP(0.0), version=9)
    ledger.verify().require()


def test_with_a_window_the_people_of_the_version_that_was_read_pay_whatever_the_caller_says(ledger):
    """The wrong version charged the newest one: the people of March paid nothing for what was made of March."""
    ledger.register("people", epsilon=1.0, delta=0.0, fingerprint=MARCH, window=1)
    ledger.new_version("people", APRIL, because="April: nobody of March")
    ledger.charge("people", acc.PureDP(1.0), data=ledger.recognise("people", MARCH))
    with pytest.raises(BudgetExceeded):
        ledger.charge("people", acc.PureDP(0.5), data=ledger.recognise("people", MARCH))
    ledger.charge("people", acc.PureDP(1.0), data=ledger.recognise("people", APRIL))
    with pytest.raises(TermsError, match="say which one is read"):
        ledger.charge("people", acc.PureDP(0.1))
    ledger.accept("people", MARCH * 2, because="March, scaled", version=1)
    with pytest.raises(BudgetExceeded):
        ledger.charge("people", acc.PureDP(0.5), data=ledger.recognise("people", MARCH * 2))
    ledger.verify().require()


def test_nobody_pays_more_than_the_budget_in_any_run_of_versions():
    """Everybody's own sum, computed here from who is in which version."""
    ledger, window, versions = Ledger(), 3, 7
    tables = [np.arange(float(3 + n)) for n in range(versions)]
    ledger.register("people", epsilon=1.0, delta=0.0, fingerprint=tables[0], window=window)
    paid = dict.fromkeys(range(1, versions + 1), 0.0)  # by the version they came with
    random = np.random.default_rng(3)
    for newest in range(1, versions + 1):
        if newest > 1:
            ledger.new_version("people", tables[newest - 1], because=f"version {newest}")
        for _ in range(6):
            on = int(random.integers(1, newest + 1))
            try:
                ledger.charge("people", acc.PureDP(0.25), data=ledger.recognise("people", tables[on - 1]))
            except BudgetExceeded:
                continue
            for came in range(max(1, on - window + 1), on + 1):
                paid[came] += 0.25
    assert max(paid.values()) == 1.0
    ledger.verify().require()


def test_a_window_says_that_its_versions_are_consecutive_and_shows_no_sum_that_nobody_pays():
    """Who came with version 1 is in version 2 at most: version 3 is paid by others, and the words say so."""
    ledger = Ledger()
    with pytest.raises(TermsError, match="consecutive versions within which one person is, never returning"):
        ledger.register("people", epsilon=1.0, delta=1e-5, window=0)
    assert "consecutive ones" in " ".join(Ledger.register.__doc__.split())
    ledger.register("people", epsilon=1.0, delta=1e-5, fingerprint=MARCH, window=2)
    for version in (2, 3):
        assert ledger.new_version("people", MARCH * version, because="a month later") == version
    for version in (1, 3):
        ledger.charge("people", acc.PureDP(1.0), version=version)
    with pytest.raises(BudgetExceeded):
        ledger.charge("people", acc.PureDP(0.01), version=2)
    for exact in (None, True):
        budget = ledger.budget("people", exact=exact)
        assert budget.spent_epsilon <= 1.0
        assert budget.composition is None
        assert "exact composition" not in str(budget)


# -- schedules ---------------------------------------------------------------------------------------------------------


def test_a_schedule_is_paid_once_and_its_runs_are_due_one_a_month(ledger, clock):
    ledger.register("people", epsilon=3.0, delta=1e-6)
    year = ledger.plan("people", RUN, every="month", times=3, purpose="monthly mean")
    spent = ledger.budget("people")
    assert year.epsilon < 3 * ledger.quote("people", RUN).epsilon
    runs = ledger.with_plan(year.number)
    first = runs.charge("people", RUN, purpose="January", number="a1")
    assert runs.charge("people", RUN, purpose="January", number="a1").number == first.number  # after a crash
    with pytest.raises(ChargeError, match=r"run 2 of the schedule .* is not due"):
        runs.charge("people", RUN)
    clock("2026-02-15")
    with pytest.raises(ChargeError, match=r"is for Gaussian\(20\), not for Gaussian\(2\)"):
        runs.charge("people", acc.Gaussian(2.0))
    runs.charge("people", RUN, purpose="February").confirm()
    clock("2027-01-01")
    ledger.draw("people", year.number, purpose="March")
    with pytest.raises(ChargeError, match="all 3 runs"):
        runs.charge("people", RUN)
    now = ledger.budget("people")
    assert (now.spent_epsilon, now.charges, now.composition) == (spent.spent_epsilon, 1, spent.composition)
    assert [(r.purpose, r.plan) for r in ledger.history("people")] == [
        ("monthly mean", ""), ("January", year.number), ("February", year.number), ("March", year.number),
    ]  # fmt: skip
    assert ledger.history("people", limit=10) == ledger.history("people")
    ledger.verify(reprice=True).require()


def test_a_run_beyond_its_schedule_is_found(clock):
    ledger = Ledger()
    ledger.register("people", epsilon=3.0, delta=1e-6)
    year = ledger.plan("people", RUN, every="day", times=1)
    ledger.draw("people", year.number)
    rows = ledger._store._rows["people"]
    again = {**rows[-1].read(), "charge": "00"}
    rows.append(chained("people", rows[-1], again))
    assert any("schedule that has none left" in problem for problem in ledger.verify().problems)
    with pytest.raises(book.LedgerTampered, match="do not follow"):
        ledger.charge("people", RUN)


def test_training_and_an_estimator_take_runs_of_a_schedule(tmp_path):
    ledger = Ledger(tmp_path / "people.db")
    x, y = np.random.default_rng(0).random((50, 2)), np.random.default_rng(1).random(50)
    ledger.register("people", epsilon=9.0, delta=1e-5, fingerprint=(x, y))

    def training(charged):
        model = nn.Linear(2, 1)
        return sgd.Training(
            model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(reduction="none"),
            (torch.rand(50, 2), torch.rand(50, 1)), batch_size=5, steps=2, noise_multiplier=5.0, delta=1e-6,
            ledger=charged, dataset="people", source=(x, y),
        )  # fmt: skip

    year = ledger.plan("people", training(ledger).plan.mechanism, every="year", times=2, delta=1e-6)
    run = training(pickle.loads(pickle.dumps(ledger.with_plan(year.number))))
    for batch in run:
        run.step(batch)
    assert ledger.record("people", run.charge_number).plan == year.number
    fit = {"epsilon": 1.0, "bounds": (0, 1), "target_bounds": (0, 1), "dataset": "people"}
    paid = LinearRegression(**fit, ledger=ledger).fit(x, y)
    one = ledger.record("people", paid.privacy_.details["charge"]).mechanism
    fits = ledger.plan("people", one, every="year", times=2)
    before = ledger.budget("people").charges
    LinearRegression(**fit, ledger=ledger.with_plan(fits.number)).fit(x, y)
    assert ledger.budget("people").charges == before
    ledger.verify().require()
