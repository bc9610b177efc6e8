"""What the database leaves out is not answered: rows are read back, and triggers that are not ours stop everything."""

from __future__ import annotations

import sqlite3

import pytest

from tacit import accounting as acc
from tacit.ledger import Ledger, LedgerTampered
from tacit.ledger.service import Grouped
from tacit.ledger.signing import SigningKey
from tacit.ledger.sql import sa

HALF = acc.PureDP(0.5)


def sql(path, *statements):
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)


def leave_out(table, event="INSERT"):
    return f"CREATE TRIGGER x BEFORE {event} ON tacit_{table} WHEN NEW.dataset = 'ev' BEGIN SELECT RAISE(IGNORE); END"


@pytest.mark.parametrize("blind", [False, True], ids=["triggers counted", "read back alone"])
@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "service"])
@pytest.mark.parametrize("what", [("entries",), ("index",), ("seals",), ("heads", "UPDATE")], ids=lambda what: what[0])
def test_what_the_database_left_out_is_not_answered(tmp_path, monkeypatch, what, grouped, blind):
    pytest.importorskip("cryptography")
    SigningKey.make(tmp_path / "key")
    path = tmp_path / "people.db"
    ledger = Ledger(path, key=tmp_path / "key")
    for name in ("ev", "other"):
        ledger.register(name, epsilon=1.0, delta=0.0)
    head = ledger.head("ev")
    if grouped:
        ledger._store = Grouped(ledger._store)
    if blind:
        monkeypatch.setattr("tacit.ledger.sql.trigger_problems", lambda connection: [])
    sql(path, leave_out(*what))
    with pytest.raises(LedgerTampered, match="is not there" if blind else "the trigger x is not this ledger's"):
        ledger.charge("ev", HALF)
    sql(path, "DROP TRIGGER x")
    # nothing of it is left, and the budget is granted once
    again = Ledger(path, key=tmp_path / "key")
    assert again.head("ev") == head
    assert again.verify().ok
    again.charge("ev", acc.PureDP(1.0))


@pytest.mark.parametrize("table", ["entries", "index", "seals", "heads"])
def test_a_registration_that_was_left_out_is_not_answered(tmp_path, monkeypatch, table):
    pytest.importorskip("cryptography")
    SigningKey.make(tmp_path / "key")
    ledger = Ledger(tmp_path / "people.db", key=tmp_path / "key")
    ledger.register("other", epsilon=1.0, delta=0.0)
    sql(tmp_path / "people.db", leave_out(table))
    monkeypatch.setattr("tacit.ledger.sql.trigger_problems", lambda connection: [])
    with pytest.raises(LedgerTampered, match="is not there"):
        ledger.register("ev", epsilon=1.0, delta=0.0)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (leave_out("entries"), "x is not this ledger's"),
        (leave_out("entries").replace(" x ", " tacit_y ").replace("_entries", "_ENTRIES"), "tacit_y is not"),
        ("DROP TRIGGER tacit_heads_kept", "tacit_heads_kept is missing"),
    ],
)
def test_a_trigger_that_is_foreign_or_missing_stops_every_charge_and_verify_names_it(tmp_path, statement, told):
    ledger = Ledger(tmp_path / "people.db")
    ledger.register("people", epsilon=1.0, delta=0.0)
    assert ledger.verify().ok
    sql(tmp_path / "people.db", statement)
    with pytest.raises(LedgerTampered, match=told):
        ledger.charge("people", HALF)
    assert [told in problem for problem in ledger.verify().problems] == [True]


def test_a_trigger_that_was_changed_is_named(tmp_path):
    ledger = Ledger(tmp_path / "people.db")
    ledger.register("people", epsilon=1.0, delta=0.0)
    weaker = "CREATE TRIGGER tacit_entries_kept BEFORE DELETE ON tacit_entries WHEN 0 BEGIN SELECT 1; END"
    sql(tmp_path / "people.db", "DROP TRIGGER tacit_entries_kept", weaker)
    with pytest.raises(LedgerTampered, match="tacit_entries_kept was changed"):
        ledger.charge("people", HALF)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("CREATE RULE x AS ON INSERT TO tacit_seals DO INSTEAD NOTHING", "x is not this ledger's"),
        ("ALTER TABLE tacit_entries DISABLE TRIGGER tacit_entries_fixed", "tacit_entries_fixed was changed"),
        ("DROP TRIGGER tacit_heads_kept ON tacit_heads", "tacit_heads_kept is missing"),
    ],
)
def test_a_rule_or_trigger_in_postgres_stops_every_charge_too(postgres, statement, told):
    address = postgres.new_database()
    ledger = Ledger(address)
    ledger.register("people", epsilon=1.0, delta=0.0)
    ledger.charge("people", acc.PureDP(0.25))
    assert ledger.verify().ok
    with sa.create_engine(address.replace("://", "+psycopg://")).begin() as connection:
        connection.exec_driver_sql(statement)
    with pytest.raises(LedgerTampered, match=told):
        ledger.charge("people", HALF)
    assert not ledger.verify().ok
