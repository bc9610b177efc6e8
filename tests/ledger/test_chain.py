"""Whoever changes the record is found, and the message says which row."""

from __future__ import annotations

import json
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit import accounting as acc
from tacit.ledger import Ledger, LedgerTampered
from tacit.ledger.entries import ChainHead, chain_problems, chained, digest


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "people.db"
    ledger = Ledger(path)
    ledger.register("people", epsilon=10.0, delta=0.0)
    for epsilon in (0.5, 0.25, 1.0):
        with ledger.charge("people", acc.PureDP(epsilon)):
            pass
    ledger.verify(reprice=True).require()
    return path


def change(path, *statements, triggers=False):
    """Somebody with the file and a SQL shell."""
    connection = sqlite3.connect(path)
    found = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    there = [] if triggers else connection.execute(found).fetchall()
    for name, _ in there:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(*statement) if isinstance(statement, tuple) else connection.execute(statement)
    for _, made in there:  # and nothing is to be seen of it
        connection.execute(made)
    connection.commit()
    connection.close()


def problems(path):
    return Ledger(path).verify().problems


def body(path, seq):
    (text,) = sqlite3.connect(path).execute("SELECT body FROM tacit_entries WHERE seq = ?", (seq,)).fetchone()
    return json.loads(text)


def cheaper(path, seq):
    entry = body(path, seq)
    entry["price"]["epsilon"] = 0.01
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tacit_entries SET body = '{}' WHERE seq = 1",
        "DELETE FROM tacit_entries WHERE seq = 6",
        "DELETE FROM tacit_heads",
        "UPDATE tacit_heads SET seq = 0",
        "DELETE FROM tacit_meta",
    ],
)
def test_triggers_forbid_changing_rows(file, statement):
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        change(file, statement, triggers=True)
    assert problems(file) == ()


def test_a_tampered_row_is_found(file):
    change(file, ("UPDATE tacit_entries SET body = ? WHERE seq = 3", (cheaper(file, 3),)))
    assert problems(file) == ("people: entry 3 was changed (its text does not give its hash)",)


def test_a_tampered_row_with_a_new_hash_is_found(file):
    text = cheaper(file, 3)
    change(file, ("UPDATE tacit_entries SET body = ?, hash = ? WHERE seq = 3", (text, digest(text))))
    (problem,) = problems(file)
    assert "entry 4 does not follow the entry before it" in problem


def test_a_deleted_row_is_found(file):
    change(file, "DELETE FROM tacit_entries WHERE seq = 3")
    assert problems(file) == ("people: entry 3 is missing (deleted)",)


def test_deleted_rows_at_the_end_are_found(file):
    change(file, "DELETE FROM tacit_entries WHERE seq >= 5")
    assert problems(file) == ("people: entries 5 to 6 are missing at the end (deleted)",)


def test_deleted_and_renumbered_rows_are_found(file):
    change(file, "DELETE FROM tacit_entries WHERE seq = 3", "UPDATE tacit_entries SET seq = seq - 1 WHERE seq > 3")
    assert problems(file)[0] == "people: the entry at place 3 was written at place 4 (moved or inserted)"


def test_reordered_rows_are_found(file):
    change(
        file,
        "UPDATE tacit_entries SET seq = 99 WHERE seq = 1",
        "UPDATE tacit_entries SET seq = 1 WHERE seq = 3",
        "UPDATE tacit_entries SET seq = 3 WHERE seq = 99",
    )
    found = problems(file)
    assert "people: the entry at place 1 was written at place 3 (moved or inserted)" in found
    assert "people: the entry at place 3 was written at place 1 (moved or inserted)" in found


def test_an_inserted_row_is_found(file):
    last = Ledger(file)._store.rows("people")[0][-1]
    row = chained("people", last, last.read())
    change(file, ("INSERT INTO tacit_entries VALUES (?, ?, ?, ?)", (row.dataset, row.seq, row.body, row.hash)))
    assert problems(file) == ("people: entries 7 to 7 were inserted at the end",)


def test_a_row_moved_from_another_data_set_is_found(file):
    Ledger(file).register("visits", epsilon=1.0, delta=0.0)
    change(
        file,
        "DELETE FROM tacit_entries WHERE dataset = 'visits'",
        "INSERT INTO tacit_entries SELECT 'visits', seq, body, hash FROM tacit_entries WHERE seq = 0",
    )
    assert "visits: entry 0 belongs to data set 'people' (moved here)" in problems(file)


def test_a_missing_head_is_found(file):
    change(file, "DELETE FROM tacit_heads")
    assert problems(file) == ("people: the record of its head is missing",)
    with pytest.raises(LedgerTampered, match="head"):
        Ledger(file).head("people")


def test_all_entries_deleted_are_found(file):
    change(file, "DELETE FROM tacit_entries")
    assert problems(file) == ("people: entries 0 to 6 are missing at the end (deleted)",)


def rewrite(path):
    """The whole chain anew with cheaper prices, as somebody would who knows how it is made."""
    ledger = Ledger(path)
    rows, last, new = ledger._store.rows("people")[0], None, []
    from tacit.ledger.rules import Price, Totals

    totals = Totals()
    for row in rows:
        entry = row.read()
        if entry["kind"] == "reserve":
            entry["price"]["epsilon"] = 0.01
            totals = totals.plus(Price.from_dict(entry["price"]))
        entry["totals"] = totals.to_dict()
        last = chained("people", last, entry)
        new.append((last.body, last.hash, last.seq))
    change(
        path,
        *(("UPDATE tacit_entries SET body = ?, hash = ? WHERE seq = ?", row) for row in new),
        ("UPDATE tacit_heads SET hash = ?", (last.hash,)),
    )


def test_a_history_rewritten_from_the_start_is_found_by_a_printed_head_and_by_the_accountant(file):
    printed = Ledger(file).head("people")
    rewrite(file)
    ledger = Ledger(file)
    assert ledger.verify().ok  # the chain alone cannot know
    (problem,) = ledger.verify("people", heads=[printed]).problems
    assert "history was rewritten" in problem
    found = ledger.verify(reprice=True).problems
    assert found[0] == "people: entry 1 was charged ε=0.01; the accountant asks 0.5"


def test_an_older_printed_head_stays_in_the_chain(file):
    ledger = Ledger(file)
    printed = ledger.head("people")
    ledger.charge("people", acc.PureDP(0.1))
    ledger.verify("people", heads=[printed]).require()


def test_nothing_more_is_granted_on_a_tampered_ledger(file):
    change(file, "DELETE FROM tacit_entries WHERE seq >= 5")
    with pytest.raises(LedgerTampered, match="nothing more is granted"):
        Ledger(file).charge("people", acc.PureDP(0.01))
    with pytest.raises(LedgerTampered, match="missing at the end"):
        Ledger(file).verify().require()


@pytest.mark.postgres
def test_postgres_forbids_and_finds_changes(postgres):
    import psycopg

    address = postgres.new_database()
    ledger = Ledger(address)
    ledger.register("people", epsilon=10.0, delta=0.0)
    for epsilon in (0.5, 0.25):
        with ledger.charge("people", acc.PureDP(epsilon)):
            pass
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in (
            "UPDATE tacit_entries SET body = '{}' WHERE seq = 1",
            "DELETE FROM tacit_entries WHERE seq = 1",
            "TRUNCATE tacit_entries",
            "TRUNCATE tacit_heads",
            "UPDATE tacit_heads SET seq = 0",
            "DELETE FROM tacit_heads",
        ):
            with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
                connection.execute(statement)
        assert ledger.verify().ok
        connection.execute("ALTER TABLE tacit_entries DISABLE TRIGGER USER")
        connection.execute("UPDATE tacit_entries SET body = replace(body, '0.25', '0.01') WHERE seq = 3")
        assert "the trigger tacit_entries_fixed was changed" in ledger.verify().problems
        connection.execute("ALTER TABLE tacit_entries ENABLE TRIGGER USER")
    assert ledger.verify().problems == ("people: entry 3 was changed (its text does not give its hash)",)


@given(st.integers(2, 8), st.data())
def test_any_single_change_to_the_rows_is_found(length, data):
    rows, last = [], None
    for number in range(length):
        last = chained("people", last, {"kind": "reserve", "charge": number})
        rows.append(last)
    head = ChainHead(last.seq, last.hash)
    assert chain_problems("people", rows, head) == []
    at = data.draw(st.integers(0, length - 1))
    kind = data.draw(st.sampled_from(["delete", "swap", "flip", "double"]))
    changed = list(rows)
    if kind == "delete":
        del changed[at]
    elif kind == "double":
        changed.append(type(last)("people", length, rows[at].body, rows[at].hash))
    elif kind == "swap":
        other = (at + 1) % length
        one, two = rows[at], rows[other]
        changed[at] = type(last)("people", one.seq, two.body, two.hash)
        changed[other] = type(last)("people", two.seq, one.body, one.hash)
    else:
        text = rows[at].body.replace('"reserve"', '"Reserve"')
        changed[at] = type(last)("people", at, text, digest(text) if data.draw(st.booleans()) else rows[at].hash)
    assert chain_problems("people", changed, head)
