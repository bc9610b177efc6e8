"""Noisy answers: what is released, what it costs, and what may be published."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import accounting as acc
from tacit.accounting.renyi import convert
from tacit.ledger import BudgetExceeded, Ledger, OperatorView, PrivateValueError, Release, public
from tacit.noise.entropy import expanded
from tacit.pate import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, VoteCounts, bounds, exact

PAPER = ConfidentGNMax(threshold=200, check_noise=150, vote_noise=40, classes=10)


def votes(queries=60, classes=10, teachers=250, seed=0, clear=0.05):
    rng = np.random.default_rng(seed)
    return rng.multinomial(teachers, rng.dirichlet(np.full(classes, clear), size=queries))


class Words:
    """A source whose draws can be repeated."""

    word_bits = 64

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def words(self, count):
        return self.rng.integers(0, 2**64, size=count, dtype=np.uint64)


def test_all_agreeing_teachers_are_answered_right_and_split_ones_at_random():
    sure = GNMax(vote_noise=10, classes=3).answer([[300, 0, 0]] * 200, queries=200)
    assert (sure.labels == 0).all()
    split = GNMax(vote_noise=10, classes=3).answer([[100, 100, 100]] * 3000, queries=3000, source=Words(1))
    shares = np.bincount(split.labels, minlength=3) / 3000
    assert np.abs(shares - 1 / 3).max() < 0.05
    laplace = LNMax(scale=10, classes=3).answer([[300, 0, 0]] * 100, queries=100)
    assert (laplace.labels == 0).all()


def test_answers_follow_the_law_that_is_priced():
    table = [[40, 30, 10]]
    answers = GNMax(vote_noise=15, classes=3).answer(table * 4000, queries=4000, source=Words(2))
    seen = np.bincount(answers.labels, minlength=3) / 4000
    assert seen == pytest.approx(exact.law(table, 15.0)[0], abs=0.03)


def test_the_check_draws_one_noise_for_the_maximum():
    # Noise on every count would let the largest of ten draws pass: Pr[max of 10] is far above Pr[one].
    answers = ConfidentGNMax(threshold=100, check_noise=30, vote_noise=5, classes=10).answer(
        [[70] * 10] * 3000, queries=3000, teachers=700, source=Words(3)
    )
    assert answers.answered.mean() == pytest.approx(0.1587, abs=0.025)


def test_the_check_is_paid_for_queries_without_an_answer():
    nobody = ConfidentGNMax(threshold=10_000, check_noise=50, vote_noise=40, classes=2)
    answers = nobody.answer([[100, 100]] * 50, queries=50)
    assert answers.privacy.details["answered"] == 0
    assert answers.privacy.mechanism == acc.VoteCheck(50) * 50 + acc.Votes(40) * 50
    unclear = ConfidentGNMax(threshold=100, check_noise=50, vote_noise=40, classes=2).answer(
        [[100, 0]] * 50, queries=50
    )
    got = unclear.accounts.renyi([8.0]).divergences[0, 0]
    assert got >= 50 * 8 / (2 * 50**2) * (1 - 1e-9)


def test_the_charge_is_the_plan_and_comes_before_the_noise():
    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-4, charges=10)
    answers = PAPER.answer(votes(), queries=60, answers=30, ledger=ledger, dataset="people")
    record = ledger.history("people")[0]
    assert record.confirmed
    assert record.mechanism == acc.VoteCheck(150) * 60 + acc.Votes(40) * 30
    assert answers.privacy.mechanism == record.mechanism
    assert answers.answered.sum() <= 30
    with pytest.raises(BudgetExceeded):
        GNMax(vote_noise=1.0, classes=10).answer(votes(), queries=60, ledger=ledger, dataset="people")
    assert len(ledger.history("people")) == 1


def test_a_filter_stops_by_the_data_independent_cost():
    sure = votes(3000, clear=1e-3)
    answers = PAPER.answer(sure, epsilon=2.0, delta=1e-5, source=Words(4))
    asked, answered = len(answers), int(answers.answered.sum())
    assert asked < 3000
    assert answers.privacy.claim <= 2.0
    ran = PAPER.plan(asked, answered)
    assert acc.epsilon(ran, 1e-5).upper <= 2.0
    assert acc.epsilon(PAPER.plan(asked + 1, answered + 1), 1e-5).upper > 2.0
    # What the votes were does not move the stop; what was answered does.
    again = PAPER.answer(np.roll(sure, 1, axis=1), epsilon=2.0, delta=1e-5, source=Words(4))
    assert (len(again), int(again.answered.sum())) == (asked, answered)


@pytest.mark.parametrize("aggregator", [GNMax(vote_noise=40, classes=10), LNMax(scale=20, classes=10)])
def test_a_filter_without_a_check_is_a_number_of_queries(aggregator):
    answers = aggregator.answer(votes(2000), epsilon=1.0)
    count = len(answers)
    assert acc.epsilon(aggregator.plan(count), 1e-5).upper <= 1.0 < acc.epsilon(aggregator.plan(count + 1), 1e-5).upper


def test_the_three_accounts_stand_in_order_and_only_one_may_be_published():
    answers = PAPER.answer(votes(300), queries=300)
    accounts = answers.accounts
    assert float(accounts.exact) < answers.privacy.claim
    assert float(accounts.theorem6) < answers.privacy.claim
    text = repr(accounts)
    assert text.count("not publishable") == 2
    assert isinstance(accounts.theorem6, OperatorView)
    for value in (accounts.theorem6, accounts.exact):
        with pytest.raises(PrivateValueError):
            Release({"epsilon": value})
        with pytest.raises(PrivateValueError):
            public(value)
    assert isinstance(answers.release(), Release)
    assert answers.release()["theorem6"].startswith("not publishable")
    assert f"{float(accounts.theorem6):.6f}" not in answers.release().to_json() + repr(answers.privacy)


def test_theorem_6_is_the_sum_over_checks_and_answers():
    table = votes(40)
    answers = PAPER.answer(table, queries=40, source=Words(5))
    orders = np.array([4.0, 20.0])
    expected = bounds.check_bound(table.max(axis=1), 200, 150, orders).sum(axis=0)
    answered = table[answers.answered]
    expected = expected + bounds.theorem6(bounds.log_q(answered, 40), 40, orders).sum(axis=0)
    assert answers.accounts.renyi(orders).divergences[0] == pytest.approx(expected, rel=1e-12)
    assert float(answers.accounts.theorem6) <= convert(orders, expected, 1e-5).min() + 1e-12


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 12), st.sampled_from(["data", "theorem6", "exact"]))
def test_epsilon_never_decreases_with_queries(seed, few, more, way):
    table = votes(24, classes=4, teachers=40, seed=seed, clear=0.2)
    kind = ConfidentGNMax(threshold=25, check_noise=20, vote_noise=8, classes=4)

    def price(count):
        answers = kind.answer(table, queries=count, source=Words(seed))
        if way == "data":
            return answers.privacy.claim
        if way == "exact":
            return float(answers.accounts.exact)
        # along one transcript: the checks of the first queries are drawn first, so these are the same answers
        orders = np.array([3.0, 12.0, 40.0])
        checks = bounds.check_bound(table[:count].max(axis=1), 25, 20, orders).sum(axis=0)
        return convert(
            orders, checks + bounds.theorem6(bounds.log_q(table[:count], 8), 8, orders).sum(axis=0), 1e-5
        ).min()

    assert price(few) <= price(few + more) + 1e-9


def test_a_sanitised_price_is_charged_and_publishable():
    ledger = Ledger()
    ledger.register("people", epsilon=9.0, delta=1e-4, charges=10)
    answers = PAPER.answer(votes(300), queries=300, ledger=ledger, dataset="people")
    before = answers.privacy.claim
    order, plan = answers.accounts.release_plan()
    found = answers.accounts.sanitise()
    assert ledger.history("people")[1].mechanism == plan
    assert ledger.history("people")[1].confirmed
    assert answers.privacy.claim > before
    assert found.order == order
    assert found.cost == pytest.approx(float(acc.renyi(plan, [order])[0]))
    assert "charged to people" in answers.release().source("sanitised")
    assert "publishable estimate" in repr(answers.accounts)
    with pytest.raises(ValueError, match="published already"):
        answers.accounts.sanitise()


def test_the_sanitised_price_is_right_on_average():
    table = votes(20)
    truth, found = [], []
    with expanded(bytes(range(32))):  # the same noise each time: the mean of 24 is four spreads off once in 1,800 times
        for seed in range(24):
            accounts = PAPER.answer(table, queries=20, source=Words(seed)).accounts
            truth.append(accounts.renyi([8.0]).divergences[0, 0])
            found.append(accounts.sanitise(order=8.0, beta=0.02, noise=2.0).renyi)
    spread = np.std(np.array(found) - truth) / np.sqrt(24)
    assert np.mean(found) == pytest.approx(np.mean(truth), abs=4 * spread)
    assert np.std(found) > 0


def test_laplace_votes_and_interactive_ones_have_no_sanitised_release():
    with pytest.raises(ValueError, match="Gaussian"):
        LNMax(scale=20, classes=10).answer(votes(), queries=5).accounts.sanitise()


def test_the_student_keeps_its_own_label_where_the_teachers_agree_with_it():
    table = np.array([[250, 0, 0]] * 3)
    scores = np.array([[0.99, 0.005, 0.005], [0.005, 0.99, 0.005], [0.4, 0.3, 0.3]])
    kind = InteractiveGNMax(threshold=120, check_noise=5, vote_noise=10, classes=3, confidence=0.9)
    answers = kind.answer(table, queries=3, scores=scores)
    # agrees: own label, free; differs: the teachers' label; unsure and the teachers are clear: theirs too
    assert answers.answered.tolist() == [False, True, True]
    assert answers.labels.tolist() == [0, 0, 0]
    unsure = kind.answer([[90, 80, 80]], queries=1, scores=[[0.5, 0.3, 0.2]])
    assert unsure.labels.tolist() == [-1]
    with pytest.raises(ValueError, match="scores"):
        kind.answer(table, queries=3)


def test_classes_are_public_and_ties_and_empty_votes_are_handled():
    with pytest.raises(ValueError, match="fixed and public"):
        PAPER.answer([[250, 0]], queries=1)
    assert len(PAPER.answer(np.zeros((0, 10), int), queries=0)) == 0
    silent = GNMax(vote_noise=5, classes=3).answer([[0, 0, 0]] * 9, queries=9)
    assert set(silent.labels.tolist()) <= {0, 1, 2}
    assert float(silent.accounts.exact) >= 0
    tie = ConfidentGNMax(threshold=1, check_noise=1, vote_noise=1, classes=2).answer([[50, 50]] * 5, queries=5)
    assert set(tie.labels.tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of the two"),
        ({"queries": 5, "epsilon": 1.0}, "one of the two"),
        ({"queries": 61}, "there are only 60"),
        ({"queries": -1}, "whole number"),
        ({"queries": 5, "delta": 0.0}, "delta"),
        ({"epsilon": -1.0}, "above 0"),
        ({"queries": 5, "ledger": Ledger()}, "together"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        PAPER.answer(votes(), **arguments)


def test_votes_are_private_until_noise_is_added(tmp_path):
    table = VoteCounts(votes(5), teachers=250, partition="keyed", unit="person")
    assert str(int(table.counts.max())) not in repr(table).replace("250", "")
    with pytest.raises(PrivateValueError):
        pickle.dumps(table)
    path = tmp_path / "votes.npz"
    table.save(path)
    assert path.stat().st_mode & 0o077 == 0
    back = VoteCounts.load(path)
    assert (back.counts == table.counts).all()
    assert (back.teachers, back.partition, back.unit) == (250, "keyed", "person")


def test_how_people_are_dealt_out_decides_what_is_guaranteed():
    keyed = VoteCounts(votes(5), teachers=250, partition="keyed", unit="person")
    # The same draws for both: a price that depends on them is small where by chance nothing is answered.
    answers = PAPER.answer(keyed, queries=5, source=Words(5))
    plain = answers.privacy
    other = PAPER.answer(keyed, queries=5, adjacency="replace-one", source=Words(5))
    assert (plain.adjacency, plain.unit) == ("add-remove", "person")
    assert other.privacy.claim > 1.5 * plain.claim  # two teachers change
    assert float(other.accounts.theorem6) >= plain.claim
    assert float(other.accounts.theorem6) > 1.5 * float(answers.accounts.theorem6)
    placed = VoteCounts(votes(5), teachers=250, partition="positions")
    assert PAPER.answer(placed, queries=5).privacy.adjacency == "replace-one"
    with pytest.raises(acc.AdjacencyError):
        PAPER.answer(placed, queries=5, adjacency="add-remove").privacy
