"""What the database leaves out is not answered: rows are read back, and triggers that are not ours stop everything."""

from __future__ import annotations

import asyncio
import io
import json
import math
import sqlite3

import pytest

from tacit import accounting as acc
from tacit.ledger import Ledger, LedgerTampered, NotALedger, TermsError
from tacit.ledger.service import Grouped, Service, app
from tacit.ledger.signing import SigningKey
from tacit.ledger.sql import sa
from tacit.ledger.tables import SQLITE_TRIGGERS
from tacit.ledger.tokens import Tokens

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


def test_seals_that_were_deleted_are_missed_by_verify(tmp_path):
    pytest.importorskip("cryptography")
    SigningKey.make(tmp_path / "key")
    ledger = Ledger(tmp_path / "people.db", key=tmp_path / "key")
    ledger.register("people", epsilon=1.0, delta=0.0)
    ledger.charge("people", HALF)
    assert ledger.verify().ok
    delete = ("DROP TRIGGER tacit_seals_kept", "DELETE FROM tacit_seals WHERE seq = 1")
    sql(tmp_path / "people.db", *delete, *SQLITE_TRIGGERS)
    told = ("people: 1 of its 2 entries have lost their seals",)
    assert Ledger(tmp_path / "people.db").verify().problems == told
    # who may ask about one data set hears of that one
    tokens = Tokens(tmp_path / "tokens.json")
    secret = tokens.add("aud", "auditor", datasets=("people",))
    service = Service(Ledger(tmp_path / "people.db"), tokens)
    for name, answer in (("people", (200, {"guards": list(told)})), ("other", (403, None))):
        status, found = service.answer("guards", secret, None, json.dumps({"dataset": name}).encode(), "here")
        assert (status, found if status == 200 else None) == answer


def test_a_version_of_tables_that_is_no_number_is_a_message(tmp_path):
    Ledger(tmp_path / "people.db").register("people", epsilon=1.0, delta=0.0)
    sql(tmp_path / "people.db", "UPDATE tacit_meta SET value = 'x' WHERE name = 'schema_version'")
    with pytest.raises(NotALedger, match="no version of its tables"):
        Ledger(tmp_path / "people.db").datasets()


def test_infinite_numbers_are_refused_in_words(tmp_path):
    ledger = Ledger(tmp_path / "people.db")
    ledger.register("people", epsilon=1.0, delta=0.0)
    with pytest.raises(TermsError, match="only raised"):
        ledger.raise_budget("people", epsilon=math.inf, delta=0.0, because="a test")
    remote = Ledger("http://:token@127.0.0.1:9")
    with pytest.raises(TermsError, match="nothing was sent"):
        remote.raise_budget("people", epsilon=math.inf, delta=0.0, because="a test")
    with pytest.raises(TermsError, match="nothing was sent"):
        remote.register("people", epsilon=math.nan, delta=0.0)


@pytest.mark.parametrize("known", [True, False], ids=["with a token", "without"])
def test_a_request_that_is_cut_off_is_one_line_of_the_log(tmp_path, known):
    """The body of a stranger is not read at all; that of a bearer who goes away is no fault of the service."""
    pytest.importorskip("starlette")
    tokens, log, sent, read = Tokens(tmp_path / "tokens.json"), io.StringIO(), [], []
    secret = tokens.add("ana", "analyst") if known else "x"
    service = app(Service(Ledger(tmp_path / "people.db"), tokens, log=log))
    parts = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        read.append(parts[len(read)])
        return read[-1]

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/charge", "query_string": b"", "client": ("here", 1)}
    asyncio.run(service({**scope, "headers": [(b"authorization", b"Bearer " + secret.encode())]}, receive, send))
    assert sent[0]["status"] == (400 if known else 401)
    assert len(read) == (2 if known else 0)
    [line] = log.getvalue().splitlines()
    assert json.loads(line)["name"] == ("ana" if known else None)
