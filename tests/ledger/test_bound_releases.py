"""What a charge released stands in the ledger: once, without changing what was charged, in every store."""

from __future__ import annotations

import hashlib

import pytest

from tacit import accounting as acc
from tacit.ledger import ChargeError, Ledger
from tacit.ledger.entries import ChainHead, chained
from tacit.ledger.views import verify_dataset

FILES = {"model.pt": hashlib.sha256(b"weights").hexdigest(), "privacy.json": hashlib.sha256(b"{}").hexdigest()}


@pytest.fixture
def charged(ledger):
    ledger.register("people", epsilon=2.0, delta=1e-5)
    with ledger.charge("people", acc.Laplace(10.0), purpose="one") as charge:
        pass
    return ledger, charge.number


def test_a_release_is_bound_to_its_charge_and_costs_nothing(charged):
    ledger, number = charged
    before = ledger.budget("people")
    name = ledger.bind("people", number, FILES)
    [record] = ledger.history("people")
    assert (record.release, record.files) == (name, FILES)
    after = ledger.budget("people")
    assert (after.spent_epsilon, after.spent_delta, after.charges) == (
        before.spent_epsilon, before.spent_delta, before.charges,
    )  # fmt: skip
    assert after.head != before.head
    assert ledger.verify("people", heads=[before.head], reprice=True).ok
    assert ledger.mentions("people", number) == 2  # a loop that goes on counts its reservation and confirmation
    ledger.charge("people", acc.Laplace(10.0)).confirm()  # the chain goes on from here
    assert ledger.verify("people").ok


def test_the_same_release_is_bound_once_and_another_is_refused(charged):
    ledger, number = charged
    name, head = ledger.bind("people", number, FILES), ledger.head("people")
    assert ledger.bind("people", number, dict(reversed(FILES.items()))) == name
    assert ledger.head("people") == head
    with pytest.raises(ChargeError, match="bound to another release"):
        ledger.bind("people", number, FILES | {"model.pt": hashlib.sha256(b"others").hexdigest()})
    with pytest.raises(ChargeError, match="no charge"):
        ledger.bind("people", "unknown", FILES)
    for wrong in ({}, {"model.pt": "short"}):
        with pytest.raises(ChargeError, match="SHA-256"):
            ledger.bind("people", number, wrong)
    assert ledger.head("people") == head


def test_entries_that_no_ledger_would_have_written_are_found():
    ledger = Ledger()
    ledger.register("people", epsilon=2.0, delta=1e-5)
    charge = ledger.charge("people", acc.Laplace(10.0))
    ledger.bind("people", charge.number, FILES)
    rows, _ = ledger._store.rows("people")
    bound = rows[-1].read()
    for change, problem in (
        ({"release": "0" * 64}, "not the hash of its files"),
        ({"files": {"model.pt": "1" * 64}, "release": "2" * 64}, "second release"),
        ({"charge": "nobody's"}, "never reserved"),
    ):
        more = chained("people", rows[-1], {**bound, **change})
        found = verify_dataset("people", [*rows, more], ChainHead(more.seq, more.hash), (), reprice=False)
        assert any(problem in text for text in found), (change, found)
