"""What an insider, a thief or a broken disk may hand to the service, its files of tokens and its anchors."""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import resource
import socket
import subprocess
import sys
import threading
import time
import uuid

import numpy as np
import pytest
from tests.ledger.test_service import Service as Running

from tacit import accounting as acc
from tacit import tuning
from tacit.ledger import (
    BudgetExceeded,
    FingerprintMismatch,
    Ledger,
    LedgerTampered,
    StorageError,
    TermsError,
    book,
    signing,
)
from tacit.ledger.entries import chained
from tacit.ledger.export import _cell
from tacit.ledger.service import ACTIONS, AT_ONCE, Service, app, hang_up
from tacit.ledger.signing import SigningKey, anchor, check_anchor, heads_of, read_anchor
from tacit.ledger.tokens import Tokens
from tacit.pate import GNMax, Teachers

for package in ("cryptography", "starlette", "uvicorn"):
    pytest.importorskip(package)

#: What stands in for every field of a request.
STRANGE = [
    None, True, -1, 1.5, math.nan, -math.inf, 10**400, "", "a\x00b", "\ud800", "\x1b[31m", "x" * 5000, "../../x", [],
    ["people"], {}, {"people": 1}, {"\x00": 0.5}, [[]],
]  # fmt: skip
MECHANISM = acc.PureDP(0.1).to_dict()
REQUESTS = {
    "change": {"dataset": "people", "change": {"kind": "split", "shares": {"a": 0.5}, "because": "b"}},
    "charge": {
        "dataset": "people",
        "mechanism": MECHANISM,
        "number": "n1",
        "purpose": "x",
        "delta": 1e-7,
        "data": None,
    },
    "bind": {"dataset": "people", "charge": "n1", "files": {"m": "ab" * 32}},
    "draw": {"dataset": "people", "plan": "n1", "number": "q", "mechanism": MECHANISM},
    "quote": {"dataset": "people", "mechanism": MECHANISM, "delta": None},
    "knows": {"dataset": "people", "fingerprint": "rows-keyed:0"},
    "history": {"dataset": "people", "after": -1, "limit": 3},
    "entries": {"dataset": "people", "after": -1},
    **{name: {"dataset": "people", "charge": "n1"} for name in ("confirm", "resume", "record", "mentions")},
    **{name: {"dataset": "people"} for name in ("dataset", "budget", "head", "heads", "changes", "guards")},
}


@pytest.fixture
def inside(tmp_path, request):
    """A service without its socket, and what its owner may send."""
    tokens = Tokens(tmp_path / "tokens.json")
    where = getattr(request, "param", None)
    ledger = Ledger(request.getfixturevalue("postgres").new_database() if where == "postgres" else tmp_path / "p.db")
    ledger.register("people", epsilon=10.0, delta=1e-5)
    ledger.charge("people", acc.PureDP(0.1), number="n1")
    service, secret = Service(ledger, tokens, rate=1e9), tokens.add("olga", "owner")

    def ask(action, body, secret=secret, key=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer = service.answer(action, secret, key or uuid.uuid4().hex, data, "here")
        json.dumps(answer, allow_nan=False).encode("ascii")  # as it goes out
        return status, answer

    ask.ledger, ask.tokens = ledger, tokens
    return ask


@pytest.mark.parametrize("inside", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_no_field_of_any_request_makes_the_service_fail(inside, capfd, request):
    """Lists and numbers for names, letters that cannot be stored, numbers without end: 4xx, and nothing is granted."""
    few = [True, 10**400, "a\x00b", "\ud800", ["people"]]  # what the two databases answer differently
    for action, body in REQUESTS.items():
        for field in body:
            for strange in few if "postgres" in request.node.name else STRANGE:
                status, told = inside(action, body | {field: strange})
                assert status < 500, (action, field, strange, told)
    for shares in (None, [], 1, "a"):
        status, told = inside(
            "change", {"dataset": "people", "change": {"kind": "split", "shares": shares, "because": "b"}}
        )
        assert (status, told["error"]) == (422, "TermsError")
    assert capfd.readouterr().err == ""
    assert inside.ledger.budget("people").spent_epsilon < 0.25  # the request as it should be was one of them
    inside.ledger.verify().require()


def test_a_request_without_an_end_to_its_price_is_refused_in_words(inside):
    """The answer held an infinite number, which no JSON holds: whoever asked was told of a fault of the service."""
    status, told = inside("quote", {"dataset": "people", "mechanism": acc.PureDP(math.inf).to_dict()})
    assert (status, told["error"], told["advice"]["asked_epsilon"]) == (409, "BudgetExceeded", "inf")


def test_a_fault_of_the_service_is_told_to_its_operator_and_not_to_the_client(inside, monkeypatch, capsys):
    monkeypatch.setattr(Ledger, "head", lambda self, name: [][1])
    status, told = inside("head", {"dataset": "people"})
    assert (status, told["error"]) == (500, "StorageError")
    assert "IndexError" in capsys.readouterr().err
    assert "list index" not in told["message"]


def test_no_answer_says_where_the_service_keeps_its_files(inside):
    """A stranger was told the path of the file of tokens, where somebody had broken it."""
    path = inside.tokens.path
    (path.parent / "p.db").write_bytes(b"")
    told = inside("charge", REQUESTS["charge"])[1]["message"]
    path.write_text("broken")
    status, answer = inside("datasets", {}, secret="nobody's")
    assert (status, answer["message"]) == (503, "the file of tokens is no file of tokens: tacit ledger token makes one")
    assert "this service's ledger" in told
    assert str(path.parent) not in told + answer["message"]


def test_a_token_whose_requests_take_minutes_leaves_room_for_the_others(inside, monkeypatch):
    """Forty requests for prices that take minutes held all threads of the service: nobody else was answered."""
    monkeypatch.setattr("tacit.ledger.service.AT_ONCE", 2)
    other, go, started = inside.tokens.add("other", "analyst"), threading.Event(), threading.Barrier(3)

    def slow(ledger, name):
        started.wait(30)
        return "ab" * 32 if go.wait(30) else ""

    monkeypatch.setattr(Ledger, "head", slow)
    threads = [threading.Thread(target=inside, args=("head", {"dataset": "people"})) for _ in range(2)]
    for thread in threads:
        thread.start()
    started.wait(30)
    status, told = inside("datasets", {})
    assert (status, told["error"]) == (429, "LedgerBusy")
    assert inside("datasets", {}, other)[0] == 200
    go.set()
    for thread in threads:
        thread.join()
    assert inside("datasets", {})[0] == 200


def test_three_tokens_whose_requests_take_minutes_leave_room_for_the_others(inside, monkeypatch):
    """Two of them, each with as many requests as it may have, held all threads of the service."""
    go = threading.Event()
    monkeypatch.setattr(Ledger, "head", lambda ledger, name: "ab" * 32 if go.wait(60) else "")
    hogs = [inside.tokens.add(f"hog {i}", "analyst") for i in range(3)]
    other = inside.tokens.add("other", "auditor")
    served = app(Service(inside.ledger, inside.tokens, rate=1e9))

    async def post(action, secret):
        body = [{"type": "http.request", "body": b'{"dataset": "people"}'}]
        answers: list[dict] = []

        async def receive():
            return body.pop()

        async def send(message):
            answers.append(message)

        scope = {"type": "http", "method": "POST", "path": f"/v1/{action}", "query_string": b"", "client": ("here", 1)}
        await served({**scope, "headers": [(b"authorization", f"Bearer {secret}".encode())]}, receive, send)
        return answers[0]["status"]

    async def ask():
        slow = [asyncio.create_task(post("head", secret)) for secret in hogs for _ in range(AT_ONCE)]
        try:
            await asyncio.sleep(0)  # those who take long are asked first
            return await asyncio.wait_for(post("dataset", other), 20)
        finally:
            go.set()
            assert await asyncio.gather(*slow) == [200] * len(slow)

    assert asyncio.run(ask()) == 200


def test_nothing_in_the_repository_of_an_anchor_is_run(tmp_path, monkeypatch):
    """Others write to it: a hook, and then a filter, of theirs ran as the service, which holds the key."""
    monkeypatch.setattr(signing, "LOOSE", 5)
    ledger, repository = Ledger(), tmp_path / "heads"
    ledger.register("people", epsilon=1.0, delta=0.0)

    def git(*words):
        return subprocess.run(["git", "-C", str(repository), *words], check=True, capture_output=True, text=True).stdout

    repository.mkdir()
    git("init", "-q")
    hook = repository / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    hook.with_name("reference-transaction").symlink_to(hook)
    git("config", "filter.x.clean", f"touch {tmp_path}/ran; cat")
    (repository / ".gitattributes").write_text("* filter=x\n")
    for times in (1, 2):
        assert anchor(heads_of(ledger), repository) == 1
        assert not (tmp_path / "ran").exists()
        assert len(read_anchor(repository)) == times
        ledger.charge("people", acc.PureDP(0.1))
    assert git("rev-list", "--count", "HEAD").strip() == "2"
    assert git("count-objects").startswith("0 objects")  # packed: a year of heads, each minute, stays small
    git("fsck", "--strict")
    assert git("cat-file", "blob", "HEAD:heads.jsonl") == (repository / "heads.jsonl").read_text()


def test_a_link_in_the_repository_of_an_anchor_is_not_followed(tmp_path):
    """The wrong version wrote the heads into whatever it led to, and cut off what stood there after the last line."""
    ledger, repository, other = Ledger(), tmp_path / "heads", tmp_path / "people.db"
    ledger.register("people", epsilon=1.0, delta=0.0)
    other.write_bytes(b"what is here\nstays")
    repository.mkdir()
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "heads.jsonl").symlink_to(other)
    with pytest.raises(StorageError, match="cannot write the anchor"):
        anchor(heads_of(ledger), repository, [])
    assert other.read_bytes() == b"what is here\nstays"


def test_a_token_for_one_data_set_learns_nothing_of_the_others_by_naming_none(inside):
    inside.ledger.register("others", epsilon=1.0, delta=0.0)
    limited = inside.tokens.add("lim", "auditor", datasets=("people",))
    for action, known in ACTIONS.items():
        if "auditor" in known.roles and not known.everywhere:
            for body in ({}, {"dataset": None}):
                status, told = inside(action, body, limited)
                assert (400 <= status < 500, "others" in str(told)) == (True, False), (action, told)
    assert inside("datasets", {}, limited)[1]["datasets"] == ["people"]
    assert len(inside("heads", {})[1]["heads"]) == 2


def test_the_key_of_a_request_belongs_to_its_bearer_whatever_the_names(inside):
    one, two = inside.tokens.add("a", "analyst"), inside.tokens.add("a:b", "analyst")
    body = {"dataset": "people", "mechanism": MECHANISM, "number": "n2"}
    assert inside("charge", body, two, "c")[0] == 200
    status, told = inside("charge", body, one, "b:c")
    assert (status, "Idempotency-Key" in told["message"]) == (422, True)


def test_whoever_sends_letter_by_letter_is_hung_up_on_and_others_are_served(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'serve' in sys.argv:\n    from tacit.ledger import service\n    service.SLOWEST = 0.5\n"
    )
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))
    running = Running(tmp_path)
    try:
        head = f"POST /v1/datasets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {running.secrets['ana']}\r\n"
        starts = [b"", b"POST /v1/da", f"{head}Content-Length: 9\r\n\r\n".encode(), f"{head}X-Slow: ".encode()]
        slow = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(40)]
        for number, one in enumerate(slow):
            one.sendall(starts[number % 4])
        assert running.ledger("ana").datasets() == []
        until = time.monotonic() + 20
        for number, one in enumerate(slow):
            one.settimeout(max(0.1, until - time.monotonic()))
            try:
                told = one.recv(1000)
            except ConnectionResetError:
                told = b""
            assert told[:12] in (b"", b"HTTP/1.1 408"), number
            one.close()
        assert running.ledger("ana").datasets() == []
    finally:
        running.stop()
    assert "Traceback" not in (tmp_path / "errors").read_text()


def test_a_connection_that_is_being_answered_is_not_hung_up_on(monkeypatch):
    class Cycle:
        def __init__(self, complete):
            self.response_complete = complete

    class Connection:
        def __init__(self, cycle):
            self.cycle, self.transport, self.aborted = cycle, self, 0

        def abort(self):
            self.aborted += 1

    monkeypatch.setattr("tacit.ledger.service.SLOWEST", 0.01)
    silent, asked, busy = Connection(None), Connection(Cycle(True)), Connection(Cycle(False))

    async def sweep():
        task = asyncio.create_task(hang_up([silent, asked, busy]))
        for _ in range(20):
            await asyncio.sleep(0.01)
            asked.cycle = Cycle(True)  # another request came and was answered
        task.cancel()

    asyncio.run(sweep())
    assert (silent.aborted > 0, asked.aborted, busy.aborted) == (True, 0, 0)


# -- tokens ------------------------------------------------------------------------------------------------------------


def _add(path, name):
    for number in range(20):
        Tokens(path).add(f"{name} {number}", "analyst")


def test_tokens_that_several_people_change_at_once_are_all_kept_and_a_revoked_one_stays_revoked(tmp_path):
    path = tmp_path / "tokens.json"
    first = Tokens(path).add("first", "analyst")
    workers = [multiprocessing.get_context("fork").Process(target=_add, args=(path, name)) for name in "abcd"]
    for worker in workers:
        worker.start()
    Tokens(path).revoke("first")
    for worker in workers:
        worker.join()
    assert len(Tokens(path).all()) == 80
    assert Tokens(path).check(first) is None


@pytest.mark.parametrize("days", [math.nan, math.inf, -1, 0, 1e12])
def test_a_token_ends_after_a_number_of_days(tmp_path, days):
    with pytest.raises(TermsError, match="number of days"):
        Tokens(tmp_path / "tokens.json").add("ana", "analyst", days=days)
    with pytest.raises(TermsError, match="name"):
        Tokens(tmp_path / "tokens.json").add("ana", "analyst", datasets=("\x1b[31m",))
    assert Tokens(tmp_path / "tokens.json").all() == []


# -- anchors -----------------------------------------------------------------------------------------------------------


def test_an_anchor_whose_writer_was_stopped_inside_a_line_still_holds_and_goes_on(tmp_path):
    place = tmp_path / "heads.jsonl"
    ledger = Ledger(tmp_path / "people.db")
    ledger.register("people", epsilon=1.0, delta=0.0)
    anchor(heads_of(ledger), place)
    ledger.charge("people", acc.PureDP(0.1))
    with open(place, "a") as file:
        file.write('{"dataset":"people","hash":"ab')
    assert len(read_anchor(place)) == 1
    check_anchor(ledger, place)
    anchor(heads_of(ledger), place)
    assert [line["seq"] for line in read_anchor(place)] == [0, 1]
    for wrong in ("not an anchor", '{"seq":1,"hash":"ab"}', '{"dataset":"people","seq":"one","hash":"ab"}'):
        place.write_text(wrong + "\n")
        with pytest.raises(TermsError, match="no anchor"):
            read_anchor(place)


def test_a_service_starts_at_once_however_long_the_history_and_finds_a_rollback(tmp_path, monkeypatch):
    """It read the whole history before: ten minutes for a million entries."""
    SigningKey.make(tmp_path / "k")
    ledger = Ledger(tmp_path / "people.db", key=tmp_path / "k")
    ledger.register("people", epsilon=1e6, delta=0.0)
    for _ in range(30):
        ledger.charge("people", acc.PureDP(0.1))
    old = (tmp_path / "people.db").read_bytes()
    ledger.charge("people", acc.PureDP(0.1))
    anchor(heads_of(ledger), tmp_path / "heads.jsonl")
    ledger.charge("people", acc.PureDP(0.1))
    read = []
    monkeypatch.setattr("tacit.ledger.entries.Row.read", lambda row, of=book.Row.read: read.append(row.seq) or of(row))
    check_anchor(Ledger(tmp_path / "people.db", key=tmp_path / "k"), tmp_path / "heads.jsonl")
    assert len(read) < 15
    (tmp_path / "people.db").write_bytes(old)
    with open(tmp_path / "heads.jsonl", "a") as heads:  # a true, older head is added: the wrong version took the last
        heads.write(json.dumps(heads_of(Ledger(tmp_path / "people.db"))[0]) + "\n")
    with pytest.raises(LedgerTampered, match="cut or rolled back"):
        check_anchor(Ledger(tmp_path / "people.db", key=tmp_path / "k"), tmp_path / "heads.jsonl")
    (tmp_path / "people.db").unlink()
    Ledger(tmp_path / "people.db", key=tmp_path / "k").register("others", epsilon=1.0, delta=0.0)
    with pytest.raises(LedgerTampered, match="whole data set is gone"):
        check_anchor(Ledger(tmp_path / "people.db", key=tmp_path / "k"), tmp_path / "heads.jsonl")


def test_a_service_whose_anchor_cannot_be_written_does_not_start(tmp_path):
    Tokens(tmp_path / "tokens.json").add("olga", "owner")
    Ledger(tmp_path / "people.db").register("people", epsilon=1.0, delta=0.0)
    for place in (tmp_path / "gone" / "heads.jsonl", tmp_path):  # no such folder; a folder that is no repository
        told = subprocess.run(
            [sys.executable, "-m", "tacit", "ledger", "serve", str(tmp_path / "people.db"), "--port", "0",
             "--tokens", str(tmp_path / "tokens.json"), "--anchor", str(place)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (told.returncode, "Traceback" in told.stderr) == (1, False), told.stderr
        assert "anchor" in told.stderr or "git" in told.stderr


def test_a_head_is_written_once_without_reading_the_anchor_again(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "people.db")
    ledger.register("people", epsilon=1.0, delta=0.0)
    heads = heads_of(ledger)
    assert anchor(heads, tmp_path / "heads.jsonl") == 1
    monkeypatch.setattr(signing, "read_anchor", None)
    assert anchor(heads_of(ledger), tmp_path / "heads.jsonl", heads) == 0
    ledger.charge("people", acc.PureDP(0.1))
    assert anchor(heads_of(ledger), tmp_path / "heads.jsonl", heads) == 1


# -- the clock, spreadsheets, data -------------------------------------------------------------------------------------


def test_a_quote_a_budget_and_a_charge_agree_on_the_time_where_the_clock_is_set_back(monkeypatch):
    """The quote went by the clock alone: it refused what the charge, which never goes back in time, would grant."""
    ledger = Ledger()
    renewal = {"every": "day", "epsilon": 1.0, "delta": 0.0, "times": 3}
    monkeypatch.setattr("tacit.ledger.core.now", lambda: "2026-01-01T00:00:00+00:00")
    ledger.register("people", epsilon=1.0, delta=0.0, renewal=renewal)
    monkeypatch.setattr(book, "now", lambda: "2026-01-03T00:00:00+00:00")
    ledger.charge("people", acc.PureDP(1.0))
    monkeypatch.setattr(book, "now", lambda: "2026-01-01T00:00:00+00:00")
    assert ledger.budget("people").left_epsilon == 2.0
    ledger.quote("people", acc.PureDP(2.0))
    with pytest.raises(BudgetExceeded, match=r"ε=2\b"):
        ledger.charge("people", acc.PureDP(2.5))
    ledger.charge("people", acc.PureDP(2.0))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("＝1+1", "'＝1+1"), ("＠SUM(A1)", "'＠SUM(A1)"), ("a;=1+1", "a;'=1+1"), ("a; \t+1", "a;'  +1"),
        ("\ufeff=1", "' =1"), ("a, =1", "a, =1"), ("noise 1; rate 0.1", "noise 1; rate 0.1"), ("3 - 4", "3 - 4"),
    ],
)  # fmt: skip
def test_no_text_is_run_by_a_spreadsheet(text, shown):
    assert _cell(text) == shown


X, Y = np.random.default_rng(0).normal(size=(60, 2)), np.random.default_rng(1).integers(0, 2, 60)


def test_votes_are_charged_for_the_rows_that_the_teachers_learned_from_and_other_rows_are_refused():
    """A charge for votes named no data: teachers of anybody's rows spent this budget, and the card showed nothing."""
    from sklearn.linear_model import LogisticRegression

    ledger = Ledger()
    ledger.register("people", epsilon=50.0, delta=1e-3, fingerprint=(X, Y))
    asked = {"queries": 3, "ledger": ledger, "dataset": "people"}
    vote = GNMax(vote_noise=5.0, classes=2)
    answers = vote.answer(Teachers(LogisticRegression, (X, Y), n=5, classes=2).fit().vote(X[:3]), **asked)
    assert ledger.record("people", answers.charge.number).data == ledger.dataset("people").fingerprint
    others = Teachers(LogisticRegression, (X + 1, Y), n=5, classes=2).fit().vote(X[:3])
    plain = [[3, 2]] * 3
    for votes in (others, plain):
        with pytest.raises(FingerprintMismatch):
            vote.answer(votes, **asked)
    assert ledger.budget("people").charges == 1
    assert vote.answer(plain, teachers=5, data=(X, Y), **asked).charge is not None
    answers.accounts.sanitise()
    assert {record.data for record in ledger.history("people")} == {ledger.dataset("people").fingerprint}


def test_a_search_says_which_data_it_reads_where_a_fingerprint_is_registered():
    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-3, fingerprint=X)

    def search(source):
        return tuning.PrivateSearch(
            {"rate": [0.1, 0.2]}, lambda candidate, noise: 1.0, tuning.bounded_loss(lambda model: [0.0] * 3, bound=1.0),
            mechanism=lambda candidate, noise: acc.Gaussian(noise), epsilon=1.0, delta=1e-4, ledger=ledger,
            dataset="people", source=source,
        )  # fmt: skip

    for source in (None, X + 1):
        with pytest.raises(FingerprintMismatch):
            search(source).run()
    assert ledger.budget("people").charges == 0
    search(X).run()
    assert ledger.history("people")[0].data == ledger.dataset("people").fingerprint


def test_a_budget_with_a_search_in_it_is_shown_at_once():
    """The exact composition of a search and another charge takes minutes: every command that shows a budget hung."""
    ledger = Ledger()
    ledger.register("people", epsilon=50.0, delta=1e-3)
    ledger.charge("people", acc.Selected(acc.Gaussian(4.0), mean=2.0))
    assert ledger.budget("people").composition is not None
    ledger.charge("people", acc.Gaussian(20.0))
    assert ledger.budget("people").composition is None


def test_a_disk_that_is_full_under_an_anchor_is_a_message_and_the_anchor_goes_on(tmp_path):
    ledger, place = Ledger(tmp_path / "people.db"), tmp_path / "heads.jsonl"
    ledger.register("people", epsilon=1.0, delta=0.0)
    anchor(heads_of(ledger), place)
    ledger.charge("people", acc.PureDP(0.1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (place.stat().st_size + 30, hard))
    try:
        with pytest.raises(StorageError, match="cannot write the anchor"):
            anchor(heads_of(ledger), place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    anchor(heads_of(ledger), place)
    assert [line["seq"] for line in read_anchor(place)] == [0, 1]


# -- whoever owns the tables in PostgreSQL -----------------------------------------------------------------------------


@pytest.mark.postgres
def test_the_owner_of_the_tables_in_postgres_is_found_too(postgres, tmp_path):
    import psycopg

    address = postgres.new_database()
    running = Running(tmp_path, address)
    names = [f"tacit_{table}" for table in ("entries", "heads", "index", "seals", "meta")]

    def sql(*statements):
        with psycopg.connect(address) as connection:
            for name in names:
                connection.execute(f"ALTER TABLE {name} DISABLE TRIGGER ALL")
            for statement, *values in statements:
                connection.execute(statement, values)
            for name in names:  # and nothing is to be seen of it
                connection.execute(f"ALTER TABLE {name} ENABLE TRIGGER ALL")

    def put_back(copy):
        sql(*((f"DELETE FROM {name}; INSERT INTO {name} SELECT * FROM {copy}_{name}",) for name in names))

    try:
        running.ledger("olga").register("people", epsilon=1.0, delta=0.0)
        ana = running.ledger("ana")
        ana.charge("people", acc.PureDP(0.25)).confirm()
        with psycopg.connect(address) as connection:
            for statement in (
                "INSERT INTO tacit_meta VALUES ('fingerprint_key', '') ON CONFLICT (name) DO UPDATE SET value = ''",
                "UPDATE tacit_heads SET seq = 0",
                "TRUNCATE tacit_entries",
            ):
                with pytest.raises(psycopg.errors.Error, match="append-only"), connection.transaction():
                    connection.execute(statement)
        sql(*((f"CREATE TABLE old_{name} AS SELECT * FROM {name}",) for name in names))
        ana.charge("people", acc.PureDP(0.25))
        sql(*((f"CREATE TABLE new_{name} AS SELECT * FROM {name}",) for name in names))
        [first] = [row for row in Ledger(address)._store.rows("people")[0] if row.seq == 0]
        generous = chained("people", None, first.read() | {"terms": first.read()["terms"] | {"epsilon": 1000.0}})
        sql(("UPDATE tacit_entries SET body = %s, hash = %s WHERE seq = 0", generous.body, generous.hash))
        with pytest.raises(LedgerTampered, match="registration"):
            ana.charge("people", acc.PureDP(100.0))
        put_back("new")
        sql(
            ("DELETE FROM tacit_entries WHERE seq > 0",),
            ("DELETE FROM tacit_index WHERE seq > 0",),
            ("UPDATE tacit_heads SET seq = 0, hash = %s", first.hash),
        )
        with pytest.raises(LedgerTampered, match="not signed"):
            ana.charge("people", acc.PureDP(1.0))
        put_back("old")
        with pytest.raises(LedgerTampered, match="rolled back"):
            ana.charge("people", acc.PureDP(0.5))
        put_back("new")
        ana.charge("people", acc.PureDP(0.5))
        running.stop()
        put_back("old")  # while nobody looks: the anchor knows
        with pytest.raises(LedgerTampered, match="cut or rolled back"):
            check_anchor(Ledger(address, key=tmp_path / "ledger.key"), tmp_path / "heads.jsonl")
    finally:
        if running.process.poll() is None:
            running.stop()
