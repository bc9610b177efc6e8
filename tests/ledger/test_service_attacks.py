"""More sentences of docs/explanation/ledger-threats.md: insiders, thieves, hostile requests, lost servers, TLS."""

from __future__ import annotations

import datetime
import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from tests.ledger.test_service import Service, own, people, service, sql  # noqa: F401 - fixtures

import tacit
from tacit import accounting as acc
from tacit.ledger import (
    ChargeError,
    Ledger,
    LedgerTampered,
    ServerUnreachable,
    StorageError,
    remote,
)
from tacit.ledger.entries import canonical, digest
from tacit.ledger.tokens import Tokens

PAGES = [Path(__file__).parents[2] / f"docs/explanation/ledger-{name}.md" for name in ("threats", "checklist")]
TESTS = Path(__file__).parents[1]
PAGE = Path(__file__).parents[2] / "docs/howto/ledger-service.md"


def rewrite(path, seq, change):
    """Replace an entry by one whose text gives its hash, as somebody would who knows how entries are made."""
    with sqlite3.connect(path) as connection:
        [body] = connection.execute("SELECT body FROM tacit_entries WHERE seq = ?", (seq,)).fetchone()
    text = canonical(json.loads(body) | change)
    sql(path, ("UPDATE tacit_entries SET body = ?, hash = ? WHERE seq = ?", (text, digest(text), seq)))


@pytest.mark.parametrize(("page", "least"), [(PAGES[0], 20), (PAGES[1], 21)], ids=["threats", "checklist"])
def test_every_row_of_the_pages_names_a_test(page, least):
    rows = re.findall(r"^\|.*\| (`[\w`, ]+`) \|$", page.read_text(), re.MULTILINE)
    there = "".join(file.read_text() for room in ("ledger", "cli") for file in TESTS.glob(f"{room}/test_*.py"))
    assert len(rows) >= least
    assert [name for row in rows for name in re.findall(r"\w+", row) if f"def test_{name}(" not in there] == []


# -- an insider with the database --------------------------------------------------------------------------------------


def test_an_old_entry_that_was_replaced_pays_for_nothing_and_the_auditor_finds_it(own):  # noqa: F811
    """The wrong version granted ε = 50 here: the number of the old entry was taken up, for what was written into it."""
    ana, aud = own.ledger("ana"), own.ledger("aud")
    cheap = ana.charge("people", acc.PureDP(0.125))
    for _ in range(2):  # the checks of every charge see the two newest entries
        ana.charge("people", acc.PureDP(0.0625))
    assert aud.verify("people", public_key=own.public).ok
    rewrite(own.where, 3, {"mechanism": acc.PureDP(50.0).to_dict()})
    with pytest.raises(LedgerTampered, match="was not written with this ledger's key"):
        ana.charge("people", acc.PureDP(50.0), number=cheap.number)
    # the service hands out what is written, and the auditor's own machine checks it
    found = aud.verify("people", public_key=own.public).problems
    assert any("entry 4 does not follow" in problem for problem in found), found


def test_a_data_set_that_was_deleted_is_not_registered_anew(own):  # noqa: F811
    """The wrong version gave a fresh budget to whoever registered again what the operator of the database deleted."""
    olga = own.ledger("olga")
    olga.register("others", epsilon=1.0, delta=0.0)
    for name in ("people", "others"):
        tables = [f"tacit_{table}" for table in ("entries", "heads", "index", "seals")]
        sql(own.where, *((f"DELETE FROM {table} WHERE dataset = ?", (name,)) for table in tables))
        with pytest.raises(LedgerTampered, match="the whole of it is gone"):
            olga.register(name, epsilon=1.0, delta=0.0)


def test_an_index_that_was_cut_or_led_astray_gives_no_runs_and_no_data_away(own):  # noqa: F811
    olga, ana = own.ledger("olga"), own.ledger("ana")
    olga.register("grow", epsilon=5.0, delta=1e-6, fingerprint=np.arange(4.0))
    plan = ana.plan("grow", acc.Gaussian(20.0), every="year", times=1)
    ana.draw("grow", plan.number)
    others = ana.fingerprint(np.arange(9.0))
    sql(
        own.where,
        ("DELETE FROM tacit_index WHERE dataset = 'grow' AND seq = 2", ()),  # as if it had never been drawn
        ("INSERT INTO tacit_index VALUES ('grow', ?, 0)", (f"data:{others}",)),
    )
    with pytest.raises(ChargeError, match="all 1 runs"):
        ana.draw("grow", plan.number)
    with pytest.raises(LedgerTampered, match="index leads to a wrong one"):
        ana.recognise("grow", np.arange(9.0))


def test_an_index_that_was_cut_hides_nothing_from_the_auditor(own):  # noqa: F811
    """The wrong version passed: one charge was not in the history any more, and a raise not among the decisions."""
    olga, ana, aud = (own.ledger(name) for name in ("olga", "ana", "aud"))
    olga.raise_budget("people", epsilon=2.0, delta=0.0, because="for a friend")
    ana.charge("people", acc.PureDP(0.125)).confirm()
    assert aud.verify("people", public_key=own.public).ok
    sql(own.where, ("DELETE FROM tacit_index WHERE key IN ('change', 'reserve') AND seq > 2", ()))
    assert len(aud.history("people")) == len(aud.changes("people")) == 1
    told = aud.verify("people", public_key=own.public).problems
    assert [problem.partition("(")[2] for problem in told] == ["change): it was cut", "reserve): it was cut"]
    assert Ledger(own.where).verify("people").problems == told


def test_an_older_ledger_that_is_signed_later_has_its_old_entries_sealed(tmp_path):
    from tacit.ledger.signing import SigningKey

    ledger = Ledger(tmp_path / "people.db")
    ledger.register("people", epsilon=1.0, delta=0.0)
    charge = ledger.charge("people", acc.PureDP(0.125))
    for _ in range(2):
        ledger.charge("people", acc.PureDP(0.125))
    SigningKey.make(tmp_path / "k")
    signed = Ledger(tmp_path / "people.db", key=tmp_path / "k")
    signed.sign("people")
    signed.resume("people", charge.number)
    rewrite(tmp_path / "people.db", 1, {"purpose": "another"})
    with pytest.raises(LedgerTampered, match="was not written with this ledger's key"):
        signed.resume("people", charge.number)


def test_sums_that_were_lowered_in_a_confirmation_grant_nothing(tmp_path):
    ledger = Ledger(tmp_path / "people.db")
    ledger.register("people", epsilon=1.0, delta=0.0)
    ledger.charge("people", acc.PureDP(1.0)).confirm()
    rewrite(tmp_path / "people.db", 2, {"totals": {"epsilon": [], "delta": []}})
    sql(tmp_path / "people.db", ("UPDATE tacit_heads SET hash = (SELECT hash FROM tacit_entries WHERE seq = 2)", ()))
    with pytest.raises(LedgerTampered, match="sums of entry 2 do not follow"):
        Ledger(tmp_path / "people.db").charge("people", acc.PureDP(1.0))


# -- analysts ----------------------------------------------------------------------------------------------------------


def test_whoever_reads_while_others_charge_is_told_no_tale_of_a_rollback(service, people):  # noqa: F811
    stop, told = threading.Event(), []

    def read():
        ledger = service.ledger("ana")
        while not stop.is_set():
            try:
                ledger.budget(people, exact=False)
                ledger.quote(people, acc.PureDP(0.001))
            except LedgerTampered as error:  # what a reader must never be told here
                told.append(error)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    writer = service.ledger("ben")
    for _ in range(40):
        writer.charge(people, acc.PureDP(0.001))
    stop.set()
    for reader in readers:
        reader.join()
    assert told == []


def test_a_token_for_one_data_set_works_on_it_and_sees_no_other(service, people):  # noqa: F811
    service.ledger("olga").register(f"{people} not", epsilon=1.0, delta=0.0)
    secret = service.tokens.add("limited", "analyst", datasets=(people,))
    limited = tacit.Ledger(service.address.replace("//", f"//:{secret}@"))
    assert limited.datasets() == [people]
    with limited.charge(people, acc.PureDP(0.1), data=limited.recognise(people, np.arange(3.0))):
        pass
    assert limited.verify().ok
    for attempt in (limited.budget, limited.head, limited.history, limited.changes, limited.verify):
        with pytest.raises(tacit.ledger.AccessDenied, match="only"):
            attempt(f"{people} not")


def test_the_owner_hears_of_the_same_data_under_a_second_name(service, people):  # noqa: F811
    olga = service.ledger("olga")
    olga.register(f"{people} a", epsilon=1.0, delta=0.0, fingerprint=np.arange(7.0))
    with pytest.warns(acc.PrivacyWarning, match="registered already"):
        olga.register(f"{people} b", epsilon=1.0, delta=0.0, fingerprint=np.arange(7.0))


@pytest.mark.parametrize(
    "change",
    [
        {"number": "\x1b[31mred"}, {"number": "9" * 5000}, {"number": ["a"]}, {"purpose": "a\nb"}, {"delta": -1},
        {"data": "\x1b[31mred"}, {"version": "x"}, {"version": 99}, {"mechanism": {"kind": "PureDP"}},
        {"mechanism": None}, {"mechanism": {"version": 1, "kind": "PoissonSampled", "mechanism": None, "rate": 0.1}},
        {"delta": 10**400}, {"dataset": ["people"]}, {"schedule": {"every": "day", "times": -1}},
    ],
)  # fmt: skip
def test_a_hostile_request_is_refused_with_a_sentence_and_charges_nothing(service, people, change):  # noqa: F811
    body = {"dataset": people, "mechanism": acc.PureDP(0.1).to_dict(), "purpose": "x", "number": uuid.uuid4().hex}
    status, told = service.post("charge", service.secrets["ana"], body | change, key=uuid.uuid4().hex)
    assert 400 <= status < 500, told
    assert set(told) >= {"error", "message"}
    assert service.where not in told["message"]
    assert service.ledger("ana").budget(people).charges == 0


def test_what_is_no_request_at_all_is_refused_too(service):  # noqa: F811
    import http.client

    for body in (b"[" * 500_000, b"\xff\xfe", b"null", b"{" * 10, b"x" * (1 << 20) + b"x"):
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
        headers = {"Authorization": f"Bearer {service.secrets['ana']}", "X-Forwarded-For": "6.6.6.6"}
        connection.request("POST", "/v1/budget", body, headers)
        answer = connection.getresponse()
        assert answer.status in (413, 422)
        assert "message" in json.loads(answer.read())
        connection.close()
    log = (service.folder / "log.jsonl").read_text()
    assert "6.6.6.6" not in log  # nobody writes an address of their choice into the log
    assert "Traceback" not in (service.folder / "errors").read_text()


# -- what can be lost --------------------------------------------------------------------------------------------------


def test_a_service_that_is_lost_during_a_run_is_a_message_that_says_how_to_go_on(own, tmp_path, monkeypatch):  # noqa: F811
    """The wrong version ended after the last step with a message that did not say how to continue."""
    from typer.testing import CliRunner

    from tacit.cli import build

    rows = "".join(f"{i},{i % 2}\n" for i in range(40))
    (tmp_path / "people.csv").write_text("age,ill\n" + rows)
    (tmp_path / "people.toml").write_text(
        'name = "people"\n[unit]\nname = "record"\n[columns.age]\nkind = "numeric"\nlower = 0\nupper = 100\n'
        '[columns.ill]\nkind = "boolean"\ntarget = true\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(remote.TOKEN, own.secrets["ana"])
    monkeypatch.setattr(remote, "PATIENCE", 0.2)
    confirm = remote.RemoteLedger._confirm

    def lost(ledger, dataset, number):
        own.stop(signal.SIGKILL)
        return confirm(ledger, dataset, number)

    words = ["train", "people.csv", "--schema", "people.toml", "--model", "linear", "--noise", "90", "--delta", "1e-9"]
    words += ["--steps", "2", "--batch", "40", "-q", "--ledger", own.address, "--dataset", "open"]
    own.ledger("olga").register("open", epsilon=9.0, delta=1e-6)
    with monkeypatch.context() as during:
        during.setattr(remote.RemoteLedger, "_confirm", lost)
        told = CliRunner().invoke(build(), words)
    assert (told.exit_code, "continue with: tacit train --resume runs/people-1" in told.output) == (1, True), (
        told.output
    )
    own.start()
    told = CliRunner().invoke(build(), ["train", "--resume", "runs/people-1", "-q"])
    assert told.exit_code == 0, told.output
    assert [record.confirmed for record in own.ledger("aud").history("open")] == [True]


def test_a_full_disk_behind_the_service_is_a_message_and_grants_nothing(tmp_path, monkeypatch):
    """A limit on the size of files stands for the disk: the ledger and the log are full at some charge."""
    monkeypatch.setattr(remote, "PATIENCE", 1.0)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (140_000, 140_000))\n"
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif 'serve' in sys.argv:\n    {limit}    open({str(tmp_path / 'ok')!r}, 'w').close()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(tacit.__file__).parents[1]}")
    running = Service(tmp_path)
    try:
        assert (tmp_path / "ok").exists()
        running.ledger("olga").register("people", epsilon=1.0, delta=0.0)
        ana, granted = running.ledger("ana"), []
        with pytest.raises(StorageError, match="nothing was granted"):
            granted.extend(ana.charge("people", acc.PureDP(0.001)).number for _ in range(500))
        assert 0 < len(granted) < 500
        assert [record.charge for record in Ledger(running.where).history("people")] == granted
    finally:
        running.stop()
    assert "Traceback" not in (tmp_path / "errors").read_text()


@pytest.fixture
def database(postgres):
    """A database whose tables its owner made, and the address of a user with the rights that the page gives."""
    import psycopg

    address = postgres.new_database()
    Ledger(address).datasets()
    rights = re.search(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert rights is not None
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS service")
        connection.execute("CREATE ROLE service LOGIN PASSWORD 'service-word'")
        for statement in rights[1].strip().split(";"):
            if statement.strip():
                connection.execute(statement)
    yield address.replace("team:correct-horse-7", "service:service-word")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP OWNED BY service; DROP ROLE service")


@pytest.mark.postgres
def test_the_service_needs_no_more_than_the_rights_on_the_page_and_they_change_no_history(database, tmp_path, postgres):
    import psycopg

    running = Service(tmp_path, database)
    try:
        olga, ana, aud = (running.ledger(name) for name in ("olga", "ana", "aud"))
        olga.register("people", epsilon=1.0, delta=0.0, fingerprint=np.arange(3.0))
        with ana.charge("people", acc.PureDP(0.5), data=ana.recognise("people", np.arange(3.0))):
            pass
        olga.raise_budget("people", epsilon=2.0, delta=0.0, because="the board agreed")
        assert aud.verify(public_key=running.public).ok
        statements = [
            f"{what} tacit_{table}{rest}"
            for table in ("entries", "index", "seals", "meta", "heads")
            for what, rest in (
                ("DELETE FROM", ""), ("TRUNCATE", ""), ("DROP TABLE", ""), ("ALTER TABLE", " DISABLE TRIGGER ALL"),
            )
        ]  # fmt: skip
        statements += [
            "UPDATE tacit_entries SET body = ''",
            "UPDATE tacit_heads SET seq = 0",
            "CREATE TABLE mine (x int)",
        ]
        with psycopg.connect(database, autocommit=True) as connection:
            for statement in statements:
                with pytest.raises(psycopg.errors.Error):
                    connection.execute(statement)
        ana.charge("people", acc.PureDP(0.5))
    finally:
        running.stop()


@pytest.mark.slow
@pytest.mark.postgres
def test_a_database_that_is_lost_behind_the_service_is_a_message_and_comes_back(tmp_path, postgres):
    server = type(postgres)(postgres.programs)
    running = Service(tmp_path, server.new_database())
    try:
        running.ledger("olga").register("people", epsilon=1.0, delta=0.0)
        ana = running.ledger("ana")
        ana.charge("people", acc.PureDP(0.25))
        server.crash()
        with pytest.raises(ServerUnreachable, match="is it running") as told:
            ana.charge("people", acc.PureDP(0.25))
        assert "correct-horse" not in str(told.value)
        server.start()
        ana.charge("people", acc.PureDP(0.25))
        assert running.ledger("aud").budget("people").spent_epsilon == 0.5
        assert running.ledger("aud").verify(public_key=running.public).ok
    finally:
        running.stop()
        server.stop()


# -- the network -------------------------------------------------------------------------------------------------------


def certificate(folder):
    """A certificate for the loopback address that nobody else vouches for."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, today = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1)).not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    kind = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(kind))
    private = key.private_bytes(kind, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private)


def test_tokens_travel_encrypted_and_only_to_whom_the_machine_trusts(tmp_path, monkeypatch):
    certificate(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'serve' in sys.argv:\n    from tacit.ledger import service\n    service.SLOWEST = 0.5\n"
    )
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))
    secret = Tokens(tmp_path / "tokens.json").add("olga", "owner")
    command = [sys.executable, "-m", "tacit", "ledger", "serve", str(tmp_path / "people.db"), "--port", "0"]
    command += ["--tokens", str(tmp_path / "tokens.json")]
    told = subprocess.run([*command, "--host", "0.0.0.0"], capture_output=True, text=True, check=False)
    assert "tokens would travel in clear" in told.stderr
    tls = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with subprocess.Popen([*command, *tls], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        try:
            assert running.stdout is not None
            address = running.stdout.readline().strip().replace("127.0.0.1", f":{secret}@localhost")
            assert address.startswith("https://")
            with pytest.raises(ServerUnreachable, match="SSL"):
                tacit.Ledger(address).datasets()
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
            ledger = tacit.Ledger(address)
            ledger.register("people", epsilon=1.0, delta=0.0)
            assert ledger.datasets() == ["people"]
            time.sleep(1.5)  # whoever trains for hours finds the line closed, and goes on all the same
            ledger.charge("people", acc.PureDP(0.25)).confirm()
            assert ledger.budget("people").spent_epsilon == 0.25
        finally:
            running.kill()  # asked to end, it waits ten seconds for the encrypted connection of the ledger above
