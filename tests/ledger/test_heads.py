"""An insider with the database cannot make the next charge be granted on something else than what was written."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tacit import accounting as acc
from tacit.ledger import AccessDenied, BudgetExceeded, Ledger, LedgerTampered, StorageError
from tacit.ledger.entries import chained, digest
from tacit.ledger.signing import SigningKey, anchor, heads_of

pytest.importorskip("cryptography")


@pytest.fixture
def file(tmp_path):
    ledger = Ledger(tmp_path / "people.db")
    ledger.register("people", epsilon=1.0, delta=0.0)
    for epsilon in (0.5, 0.25):
        with ledger.charge("people", acc.PureDP(epsilon)):
            pass
    return tmp_path / "people.db"


def sql(path, *statements, triggers=False):
    with sqlite3.connect(path) as connection:
        found = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        there = [] if triggers else connection.execute(found).fetchall()
        for name, _ in there:
            connection.execute(f"DROP TRIGGER {name}")
        for statement, values in statements:
            connection.execute(statement, values)
        for _, made in there:  # and nothing is to be seen of it
            connection.execute(made)


def generous(path):
    """Row 0 with ε = 1000, as somebody would write it who knows how entries are made."""
    entry = Ledger(path)._store.first("people").read()
    entry["terms"]["epsilon"] = 1000.0
    return chained("people", None, entry)


REPLACE = "INSERT OR REPLACE INTO tacit_entries VALUES (?, ?, ?, ?)"


def test_row_0_cannot_be_replaced(file):
    row = generous(file)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        sql(file, (REPLACE, (row.dataset, row.seq, row.body, row.hash)), triggers=True)
    for statement in (
        "INSERT OR REPLACE INTO tacit_heads SELECT dataset, 0, hash, NULL FROM tacit_heads",
        "INSERT OR REPLACE INTO tacit_meta VALUES ('fingerprint_key', '00')",
        "UPDATE tacit_meta SET value = '00' WHERE name = 'fingerprint_key'",
        "DELETE FROM tacit_index",
        "UPDATE tacit_index SET seq = 0",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            sql(file, (statement, ()), triggers=True)


def test_a_replaced_row_0_grants_nothing(file):
    row = generous(file)
    sql(file, (REPLACE, (row.dataset, row.seq, row.body, row.hash)))
    ledger = Ledger(file)
    for attempt in (ledger.charge, ledger.quote):
        with pytest.raises(LedgerTampered, match="registration is not the one"):
            attempt("people", acc.PureDP(100.0))
    with pytest.raises(LedgerTampered, match="registration is not the one"):
        ledger.budget("people")


def test_an_old_entry_that_was_deleted_is_missed_where_it_is_looked_up(file):
    """The wrong version said that there was no such charge, and listed the others as if they were all."""
    ledger = Ledger(file)
    number = ledger.history("people")[0].charge
    sql(file, ("DELETE FROM tacit_entries WHERE seq = 1", ()))
    for look in (
        lambda: ledger.record("people", number),
        lambda: ledger.history("people", limit=10),
        lambda: ledger.resume("people", number),
        lambda: ledger.charge("people", acc.PureDP(0.5), number=number),
    ):
        with pytest.raises(LedgerTampered, match=r"entry 1 .* was deleted"):
            look()


def test_lowered_sums_in_the_newest_entry_grant_nothing(file):
    ledger = Ledger(file)
    ledger.charge("people", acc.PureDP(0.25))
    with sqlite3.connect(file) as connection:
        [(text,)] = connection.execute("SELECT body FROM tacit_entries ORDER BY seq DESC LIMIT 1")
    entry = json.loads(text)
    entry["totals"]["epsilon"] = [0.25]
    body = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    sql(
        file,
        ("UPDATE tacit_entries SET body = ?, hash = ? WHERE seq = ?", (body, digest(body), entry["seq"])),
        ("UPDATE tacit_heads SET hash = ?", (digest(body),)),
    )
    with pytest.raises(LedgerTampered, match="sums of entry 5 do not follow"):
        Ledger(file).charge("people", acc.PureDP(0.01))


def test_whoever_saw_a_newer_head_finds_the_rollback_at_the_next_charge(file, tmp_path):
    shutil.copy(file, tmp_path / "old.db")
    ledger = Ledger(file)
    ledger.charge("people", acc.PureDP(0.25))
    shutil.copy(tmp_path / "old.db", file)
    with pytest.raises(LedgerTampered, match="rolled back"):
        ledger.charge("people", acc.PureDP(0.25))


def rewritten(path, key=None):
    """The whole chain anew, as if nothing had been spent."""
    first = Ledger(path)._store.first("people")
    sql(
        path,
        ("DELETE FROM tacit_entries WHERE seq > 0", ()),
        ("DELETE FROM tacit_index WHERE seq > 0", ()),
        ("UPDATE tacit_heads SET seq = 0, hash = ?", (first.hash,)),
    )


def test_a_history_written_anew_is_not_signed_and_grants_nothing(tmp_path):
    key = SigningKey.make(tmp_path / "ledger.key")
    ledger = Ledger(tmp_path / "signed.db", key=tmp_path / "ledger.key")
    ledger.register("people", epsilon=1.0, delta=0.0)
    ledger.charge("people", acc.PureDP(1.0)).confirm()
    assert ledger.verify(public_key=key.public).ok
    rewritten(tmp_path / "signed.db")
    assert Ledger(tmp_path / "signed.db").verify().ok  # the chain alone cannot know
    assert not Ledger(tmp_path / "signed.db").verify(public_key=key.public).ok
    with pytest.raises(LedgerTampered, match="not signed with this ledger's key"):
        Ledger(tmp_path / "signed.db", key=tmp_path / "ledger.key").charge("people", acc.PureDP(1.0))


def test_an_older_ledger_is_signed_once_after_a_check(file, tmp_path):
    SigningKey.make(tmp_path / "ledger.key")
    ledger = Ledger(file, key=tmp_path / "ledger.key")
    with pytest.raises(LedgerTampered, match="never signed"):
        ledger.charge("people", acc.PureDP(0.01))
    Ledger(file).register("visits", epsilon=1.0, delta=0.0)
    for name in ledger.datasets():
        ledger.sign(name)
    ledger.charge("people", acc.PureDP(0.01))
    for attempt in (  # the wrong version wrote an unsigned head, and the service granted nothing from then on
        lambda: Ledger(file).charge("people", acc.PureDP(0.01)),
        lambda: Ledger(file).freeze("visits", because="in a hurry"),
        lambda: Ledger(file).register("more", epsilon=1.0, delta=0.0),
    ):
        with pytest.raises(AccessDenied, match="open it with its key"):
            attempt()
    assert ledger.verify(public_key=SigningKey.load(tmp_path / "ledger.key").public).ok
    sql(file, ("UPDATE tacit_entries SET body = replace(body, '0.5', '0.1') WHERE seq = 1", ()))
    with pytest.raises(LedgerTampered, match="entry 1 was changed"):
        ledger.sign("people")


@pytest.mark.parametrize("kind", ["file", "git"])
def test_an_anchor_finds_a_rollback_a_truncation_and_a_lost_data_set(file, tmp_path, kind):
    place = tmp_path / "anchor"
    if kind == "git":
        subprocess.run(["git", "init", "-q", str(place)], check=True)
    shutil.copy(file, tmp_path / "old.db")
    ledger = Ledger(file)
    ledger.charge("people", acc.PureDP(0.125))
    ledger.register("visits", epsilon=1.0, delta=0.0)
    assert anchor(heads_of(ledger), place) == 2
    assert anchor(heads_of(ledger), place) == 0
    ledger.charge("people", acc.PureDP(0.125))
    ledger.verify(anchors=[place]).require()
    found = Ledger(tmp_path / "old.db").verify(anchors=[place]).problems
    assert any("people" in text and "cut or rolled back" in text for text in found)
    assert any("visits" in text and "whole data set is gone" in text for text in found)
    if kind == "git":
        log = subprocess.run(["git", "-C", str(place), "log", "--oneline"], capture_output=True, text=True, check=True)
        assert "2 heads" in log.stdout


def test_a_forged_anchor_is_refused(file, tmp_path):
    key = SigningKey.make(tmp_path / "k")
    anchor(heads_of(Ledger(file)), tmp_path / "anchor")
    with pytest.raises(LedgerTampered, match="not signed"):
        Ledger(file).verify(anchors=[tmp_path / "anchor"], public_key=key.public)


def test_time_goes_only_forward_or_says_so(file, monkeypatch):
    from tacit.ledger import book

    ledger = Ledger(file)
    monkeypatch.setattr(book, "now", lambda: "2020-01-01T00:00:00+00:00")
    charge = ledger.charge("people", acc.PureDP(0.01))
    [row] = ledger._store.find("people", [f"charge:{charge.number}"])
    entry = row.read()
    assert entry["time"] > "2026"
    assert entry["clock"] == "2020-01-01T00:00:00+00:00"
    assert ledger.verify().ok


def test_an_entry_that_goes_back_in_time_is_found(file):
    ledger = Ledger(file)
    last = ledger._store.ends("people").last
    row = chained("people", last, {**last.read(), "kind": "resume", "time": "2020-01-01T00:00:00+00:00"})
    sql(
        file,
        ("INSERT INTO tacit_entries VALUES (?, ?, ?, ?)", (row.dataset, row.seq, row.body, row.hash)),
        ("UPDATE tacit_heads SET seq = ?, hash = ?", (row.seq, row.hash)),
    )
    assert any("before the entry before it" in text for text in Ledger(file).verify().problems)


def test_a_key_that_others_can_read_is_refused(tmp_path):
    SigningKey.make(tmp_path / "k")
    (tmp_path / "k").chmod(0o644)
    with pytest.raises(StorageError, match="read by others"):
        SigningKey.load(tmp_path / "k")


# -- ledgers of tacit 0.1 ----------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as connection:
        connection.executescript((Path(__file__).parent / "data/people-0.1.0.sql").read_text())
    path.chmod(0o600)
    return path


def test_a_ledger_of_tacit_0_1_is_brought_up_to_date(old):
    with sqlite3.connect(old) as connection:
        before = connection.execute("SELECT dataset, seq, body, hash FROM tacit_entries").fetchall()
    ledger = Ledger(old)
    people = ledger.budget("people")
    assert (people.dataset.epsilon, people.dataset.rule.name, people.charges, people.unconfirmed) == (10.0, "sum", 4, 1)
    assert people.spent_epsilon == pytest.approx(1.75 + ledger.record("people", "f" * 32).price.epsilon)
    ledger.check_data("people", b"a table")  # registered by what 0.1 wrote
    assert ledger.verify(reprice=True).ok
    with sqlite3.connect(old) as connection:
        after = connection.execute("SELECT dataset, seq, body, hash FROM tacit_entries").fetchall()
    assert set(before) < set(after)  # every entry as it was, and one more for each data set
    assert len(after) == len(before) + 2
    with pytest.raises(BudgetExceeded):
        ledger.charge("people", acc.PureDP(9.0, unit="person"))
    assert [change.kind for change in ledger.changes("people")] == ["register", "migrate"]
    ledger.resume("people", "f" * 32).confirm()
    ledger.charge("visits", acc.Gaussian(9.0)).confirm()
    assert Ledger(old).verify(reprice=True).ok


@pytest.mark.postgres
def test_a_ledger_of_tacit_0_1_in_postgres_is_brought_up_to_date(postgres):
    import psycopg

    address = postgres.new_database()
    dump = (Path(__file__).parent / "data/people-0.1.0.sql").read_text()
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in re.findall(r"^(?:CREATE TABLE|INSERT).*?;$", dump, re.MULTILINE | re.DOTALL):
            connection.execute(statement)
    ledger = Ledger(address)
    assert ledger.budget("people").charges == 4
    ledger.charge("visits", acc.Gaussian(9.0)).confirm()
    ledger.verify(reprice=True).require()
    with psycopg.connect(address) as connection, pytest.raises(psycopg.errors.Error, match="append-only"):
        connection.execute("TRUNCATE tacit_seals")


def test_a_changed_ledger_of_tacit_0_1_is_not_brought_up_to_date(old):
    sql(old, ("UPDATE tacit_entries SET body = replace(body, '0.25', '0.01') WHERE seq = 3", ()))
    with pytest.raises(LedgerTampered, match=r"(?s)not brought up to date.*entry 3 was changed"):
        Ledger(old).budget("people")
    with sqlite3.connect(old) as connection:
        [(version,)] = connection.execute("SELECT value FROM tacit_meta WHERE name = 'schema_version'")
        assert version == "1"


def test_a_ledger_of_a_newer_tacit_is_refused(old):
    Ledger(old).budget("people")
    sql(old, ("UPDATE tacit_meta SET value = '3' WHERE name = 'schema_version'", ()))
    with pytest.raises(StorageError, match="newer version of tacit"):
        Ledger(old).budget("people")


def test_a_file_that_everybody_could_read_is_closed_with_a_warning_and_other_files_are_left_alone(old, tmp_path):
    old.chmod(0o644)
    with pytest.warns(acc.PrivacyWarning, match="only its owner can"):
        Ledger(old).budget("people")
    assert old.stat().st_mode & 0o777 == 0o600
    notes = tmp_path / "notes.txt"
    notes.write_text("x" * 2000)
    notes.chmod(0o644)
    with pytest.raises(StorageError):
        Ledger(notes).datasets()
    assert notes.stat().st_mode & 0o777 == 0o644


def test_control_characters_and_formulas_reach_nobody():
    from tacit.ledger import TermsError
    from tacit.ledger.export import _cell, export, to_csv

    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=0.0)
    for bad in ("a\nb", "\x1b[31mred", "right\u202eleft", "\t=1+1"):
        with pytest.raises(TermsError, match="printable text"):
            ledger.charge("people", acc.PureDP(0.1), purpose=bad)
        with pytest.raises(TermsError):
            ledger.register(bad, epsilon=1.0, delta=0.0)
    ledger.charge("people", acc.PureDP(0.1), purpose=" =1+1")
    assert "' =1+1" in to_csv(export(ledger, "people"))
    assert [_cell(text) for text in ("\t=1", "\r@x", "fine", 3)] == ["' =1", "' @x", "fine", 3]
