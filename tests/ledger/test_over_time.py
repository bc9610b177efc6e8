"""Schedules, raises and renewals: what is promised for later is paid for now, and a budget grows only as was fixed."""

from __future__ import annotations

import base64
import datetime
import json
import math
import uuid

import pytest

from tacit import accounting as acc
from tacit.ledger import BudgetExceeded, FingerprintMismatch, Ledger, StorageError, TermsError
from tacit.ledger.entries import chained
from tacit.ledger.remote import RemoteLedger
from tacit.ledger.service import Service
from tacit.ledger.signing import SigningKey
from tacit.ledger.state import State, rule_at
from tacit.ledger.tokens import Tokens
from tacit.ledger.views import _Replay

HALF = acc.PureDP(0.5)


def test_a_schedule_costs_as_much_as_all_its_runs():
    planned, charged = Ledger(), Ledger()
    for ledger in (planned, charged):
        ledger.register("people", epsilon=2.0, delta=1e-5)
    planned.plan("people", acc.Gaussian(20.0), every="month", times=12)
    charged.charge("people", acc.Gaussian(20.0) * 12)
    assert planned.budget("people").spent_epsilon == charged.budget("people").spent_epsilon
    tight = Ledger()
    tight.register("people", epsilon=1.0, delta=0.0)
    with pytest.raises(BudgetExceeded):
        tight.plan("people", HALF, every="week", times=3)
    tight.plan("people", HALF, every="week", times=2)
    with pytest.raises(BudgetExceeded):
        tight.charge("people", acc.PureDP(1e-6))


def test_a_schedule_costs_the_same_at_a_service(tmp_path):
    tokens = Tokens(tmp_path / "tokens.json")
    secret = tokens.add("ana", "analyst")
    ledger = Ledger(tmp_path / "people.db")
    ledger.register("people", epsilon=1.0, delta=0.0)
    service = Service(ledger, tokens)

    def charge(times, key):
        asked = {"dataset": "people", "mechanism": HALF.to_dict(), "number": uuid.uuid4().hex}
        asked["schedule"] = {"every": "week", "times": times}
        return service.answer("charge", secret, key, json.dumps(asked).encode(), "here")

    assert charge(3, "one")[1]["error"] == "BudgetExceeded"
    assert charge(2, "two")[0] == 200
    assert ledger.budget("people").spent_epsilon == 1.0


@pytest.mark.parametrize("key", [None, "", "a\nb", "x" * 101])
def test_a_request_that_writes_names_itself_so_that_it_is_never_made_twice(tmp_path, key):
    tokens = Tokens(tmp_path / "tokens.json")
    secret = tokens.add("ana", "analyst")
    ledger = Ledger(tmp_path / "people.db")
    ledger.register("people", epsilon=1.0, delta=0.0)
    asked = json.dumps({"dataset": "people", "mechanism": HALF.to_dict(), "number": uuid.uuid4().hex}).encode()
    status, answer = Service(ledger, tokens).answer("charge", secret, key, asked, "here")
    assert status != 200
    assert "Idempotency-Key" in answer["message"]
    assert ledger.budget("people").charges == 0


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.5, 1e-5), (2.0, 1e-6), (math.nan, 1e-5), (2.0, 1.0), (2.0, math.nan), ("2", 1e-5)]
)
def test_a_raise_is_never_a_cut(epsilon, delta):
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=1e-5)
    with pytest.raises(TermsError, match="only raised"):
        ledger.raise_budget("people", epsilon=epsilon, delta=delta, because="a test")
    ledger.raise_budget("people", epsilon=1.5, delta=1e-5, because="a test")
    with pytest.raises(TermsError, match="only raised"):
        ledger.raise_budget("people", epsilon=1.25, delta=1e-5, because="below the last raise")
    assert ledger.budget("people").epsilon == 1.5


def test_a_budget_renews_once_for_each_period_that_is_over():
    ledger = Ledger()
    renewal = {"every": "week", "epsilon": 0.25, "delta": 1e-6, "times": 3}
    terms = ledger.register("people", epsilon=1.0, delta=1e-5, renewal=renewal)
    since = datetime.datetime.fromisoformat(terms.renewal["since"])
    for weeks, grown in ((0, 0), (0.99, 0), (1, 1), (2.5, 2), (3, 3), (50, 3)):
        rule = rule_at(terms, State(), (since + datetime.timedelta(weeks=weeks)).isoformat())
        assert rule.epsilon == pytest.approx(1.0 + 0.25 * grown, rel=1e-12)
        assert rule.delta == pytest.approx(1e-5 + 1e-6 * grown, rel=1e-12)


def test_a_run_of_a_schedule_reads_the_data_that_are_registered():
    ledger = Ledger()
    ours, others = (ledger.fingerprint({"age": ages}) for ages in ([1, 2], [3, 4]))
    ledger.register("people", fingerprint=ours, epsilon=2.0, delta=0.0)
    plan = ledger.plan("people", HALF, every="day", times=2)
    with pytest.raises(FingerprintMismatch):
        ledger.draw("people", plan.number, data=others)
    ledger.draw("people", plan.number, data=ours)


def test_verifying_counts_the_runs_of_a_schedule():
    ledger = Ledger()
    ledger.register("people", epsilon=2.0, delta=0.0)
    plan = ledger.plan("people", HALF, every="day", times=1)
    ledger.draw("people", plan.number)
    rows = list(ledger._store.scan("people"))
    assert ledger.verify("people").ok
    # a run more than was paid for, written by somebody who holds the storage
    rows.append(chained("people", rows[-1], rows[-1].read() | {"charge": "f" * 32}))
    replay = _Replay("people", reprice=True)
    for row in rows:
        replay.feed(row)
    assert any("none left" in problem for problem in replay.problems)


def test_a_key_that_is_too_short_signs_nothing(tmp_path):
    path = tmp_path / "key"
    SigningKey.make(path)
    assert SigningKey.load(path)
    path.write_text(base64.b64encode(b"0123456789abcdef").decode())
    with pytest.raises(StorageError, match="holds no key"):
        SigningKey.load(path)


def test_a_ledger_behind_an_address_does_not_pretend_to_sign(tmp_path):
    with pytest.raises(StorageError, match="its own key"):
        RemoteLedger("http://127.0.0.1:9", key=tmp_path / "key")
