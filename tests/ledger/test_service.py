"""The sentences of docs/explanation/ledger-threats.md, against a service that really runs on the loopback address."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tacit
from tacit import accounting as acc
from tacit.ledger import (
    AccessDenied,
    BudgetExceeded,
    ChargeError,
    LedgerError,
    LedgerTampered,
    StorageError,
    TermsError,
    remote,
)
from tacit.ledger.entries import chained
from tacit.ledger.signing import SigningKey
from tacit.ledger.tokens import Tokens

for package in ("cryptography", "starlette", "uvicorn"):
    pytest.importorskip(package)


class Service:
    """``tacit ledger serve`` in a process of its own, with an owner, two analysts and an auditor."""

    def __init__(self, folder: Path, where: str | None = None, rate: float = 10_000) -> None:
        self.folder, self.where, self.rate = folder, where or str(folder / "people.db"), rate
        self.tokens = Tokens(folder / "tokens.json")
        self.secrets = {
            name: self.tokens.add(name, role, team=team)
            for name, role, team in (
                ("olga", "owner", ""), ("ana", "analyst", "health"), ("ben", "analyst", "tax"), ("aud", "auditor", ""),
            )
        }  # fmt: skip
        self.public = SigningKey.make(folder / "ledger.key").public
        # Bound and never listening: the port is the service's also while it is down, and nobody else's.
        self.reserved = socket.socket()
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("127.0.0.1", 0))
        self.port = self.reserved.getsockname()[1]
        self.start()

    def start(self) -> None:
        words = ["serve", self.where, "--tokens", self.tokens.path, "--key", self.folder / "ledger.key"]
        words += ["--port", self.port, "--anchor", self.folder / "heads.jsonl", "--log", self.folder / "log.jsonl"]
        with open(self.folder / "errors", "a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tacit", "ledger", *map(str, words), "--rate", str(self.rate)],
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("http://127.0.0.1"), (self.folder / "errors").read_text()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def ledger(self, name: str) -> tacit.Ledger:
        return tacit.Ledger(self.address.replace("//", f"//:{self.secrets[name]}@"))

    def post(self, action, secret, body, key="k"):
        """A request as somebody would send it who holds a captured one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Authorization": f"Bearer {secret}", "Idempotency-Key": key}
        connection.request("POST", f"/v1/{action}", json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = Service(tmp_path_factory.mktemp("service"))
    yield running
    running.stop()


@pytest.fixture
def people(service, request):
    """A data set of this test alone, with ε = 1."""
    name = request.node.name[:60]
    service.ledger("olga").register(name, epsilon=1.0, delta=0.0)
    return name


# -- the address works wherever a path does ----------------------------------------------------------------------------


def test_a_ledger_behind_an_address_is_the_same_ledger(service, people):
    ana = service.ledger("ana")
    with ana.charge(people, acc.PureDP(0.25), purpose="one") as charge:
        pass
    assert charge.confirmed
    head, told = ana.head(people), ana.foresee(people, acc.PureDP(0.25))
    assert (told.left_epsilon, told.charges, ana.head(people)) == (0.5, 2, head)
    assert ana.bind(people, charge.number, {"model": "ab" * 32}) == ana.record(people, charge.number).release
    open_ = ana.charge(people, acc.PureDP(0.25), purpose="two")
    ana.resume(people, open_.number).confirm()
    assert ana.quote(people, acc.PureDP(0.5)).epsilon == 0.5
    assert (ana.fits(people, acc.PureDP(0.5)), ana.fits(people, acc.PureDP(0.75))) == (True, False)
    with pytest.raises(BudgetExceeded, match=r"costs ε=0\.75") as refused:
        ana.charge(people, acc.PureDP(0.75))
    assert refused.value.advice.left_epsilon == 0.5
    budget = ana.budget(people)
    assert (budget.spent_epsilon, budget.charges, budget.unconfirmed, budget.head) == (0.5, 2, 0, ana.head(people))
    assert [(r.purpose, r.by["name"], r.confirmed) for r in ana.history(people)] == [
        ("one", "ana", True), ("two", "ana", True),
    ]  # fmt: skip
    assert [r.purpose for r in ana.history(people, after=ana.history(people, limit=1)[0].seq)] == ["two"]
    assert ana.mentions(people, open_.number) == 3
    assert service.ledger("aud").verify(people, heads=[charge.head], public_key=service.public).ok
    with pytest.raises(KeyError, match="no data set 'nobody'"):
        ana.budget("nobody")


def test_a_run_of_a_schedule_that_is_asked_for_again_is_one_run(service, people):
    ana = service.ledger("ana")
    plan = ana.plan(people, acc.PureDP(0.25), every="week", times=2)
    this_week = ana.with_plan(plan.number)
    number = uuid.uuid4().hex
    again = [this_week.charge(people, acc.PureDP(0.25), number=number) for _ in range(2)]
    assert [charge.number for charge in again] == [number, number]
    with pytest.raises(ChargeError, match="not due"):
        this_week.charge(people, acc.PureDP(0.25))


def test_training_and_estimators_charge_a_service(service):
    import torch
    from torch import nn

    from tacit import sgd
    from tacit.linear_model import LinearRegression

    x, y = np.random.default_rng(0).random((50, 2)), np.random.default_rng(1).random(50)
    service.ledger("olga").register("bound", epsilon=9.0, delta=1e-5, fingerprint=(x, y))
    ana = service.ledger("ana")
    fitted = LinearRegression(epsilon=1.0, bounds=(0, 1), target_bounds=(0, 1), ledger=ana, dataset="bound").fit(x, y)
    model = nn.Linear(2, 1)
    run = sgd.Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(reduction="none"),
        (torch.rand(50, 2), torch.rand(50, 1)), batch_size=50, steps=2, noise_multiplier=5.0, delta=1e-6,
        ledger=ana, dataset="bound", source=(x, y),
    )  # fmt: skip
    for batch in run:
        run.step(batch)
    first, second = ana.history("bound")
    assert (first.charge, second.charge) == (fitted.privacy_.details["charge"], run.charge_number)
    assert first.data == second.data == ana.dataset("bound").fingerprint
    with pytest.raises(tacit.ledger.FingerprintMismatch):
        LinearRegression(epsilon=1.0, bounds=(0, 1), target_bounds=(0, 1), ledger=ana, dataset="bound").fit(x / 2, y)


def _drop_in(folder, ledger, dataset):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from tacit import opacus

    model = torch.nn.Linear(3, 1)
    private = opacus.PrivacyEngine(ledger=ledger, dataset=dataset).make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=2.0, max_grad_norm=1.0,
        data_loader=DataLoader(TensorDataset(torch.arange(60.0).reshape(20, 3), torch.ones(20, 1)), batch_size=5),
        epochs=1, target_delta=1e-6,
    )  # fmt: skip
    for x, y in private[2]:
        private[1].zero_grad()
        torch.nn.functional.mse_loss(private[0](x), y).backward()
        private[1].step()


def _lightning(folder, ledger, dataset):
    pytest.importorskip("lightning.pytorch", reason="needs Lightning: pip install 'tacit[lightning]'")
    from tests.integrations.lightning_run import fit

    fit(folder, epochs=1, private={"ledger": ledger, "dataset": dataset}, limit_val_batches=0)


def _trainer(folder, ledger, dataset):
    for package in ("transformers", "peft", "accelerate"):
        pytest.importorskip(package, reason=f"needs {package}: pip install 'tacit[transformers]'")
    from tests.integrations.trainer_run import trainer

    made = trainer(folder, 1, ledger=ledger, dataset=dataset, target_epsilon=None, noise_multiplier=2.0)
    made.args.eval_strategy = "no"
    made.train()


@pytest.mark.parametrize("run", [_drop_in, _lightning, _trainer], ids=["drop-in", "Lightning", "Trainer"])
def test_integrations_charge_a_service_and_are_bound_to_the_data(service, tmp_path, request, run):
    ana, olga, name = service.ledger("ana"), service.ledger("olga"), request.node.name[-20:]
    olga.register(name, epsilon=20.0, delta=1e-4, fingerprint=name.encode())
    with pytest.raises(tacit.ledger.FingerprintMismatch, match="the fingerprints differ"):
        run(tmp_path, ana, name)
    assert ana.history(name) == []
    olga.register(f"{name} open", epsilon=20.0, delta=1e-4)
    run(tmp_path, ana, f"{name} open")
    [record] = ana.history(f"{name} open")
    assert (record.confirmed, record.by["name"], record.data[:11]) == (True, "ana", "rows-keyed:")


def test_a_pickle_and_a_message_hold_no_token(service):
    import pickle

    ana = service.ledger("ana")
    assert service.secrets["ana"] not in repr(ana)
    assert service.secrets["ana"].encode() not in pickle.dumps(ana)
    assert pickle.loads(pickle.dumps(ana)).datasets() == ana.datasets()
    with pytest.raises(StorageError, match="in clear"):
        tacit.Ledger("http://ledger.example.org")


# -- roles -------------------------------------------------------------------------------------------------------------


def test_an_analyst_cannot_register_raise_split_thaw_or_add_data(service, people):
    ana = service.ledger("ana")
    for attempt in (
        lambda: ana.register("mine", epsilon=100.0, delta=0.0),
        lambda: ana.raise_budget(people, epsilon=100.0, delta=0.0, because="I need it"),
        lambda: ana.split_budget(people, {"health": 1.0}, because="I need it"),
        lambda: ana.freeze(people, because="no"),
        lambda: ana.thaw(people, because="yes"),
        lambda: ana.accept(people, b"others", because="the same, I say"),
        lambda: ana.new_version(people, b"others", because="the same, I say"),
    ):
        with pytest.raises(AccessDenied):
            attempt()
    assert ana.budget(people).epsilon == 1.0


def test_an_auditor_reads_verifies_and_freezes_and_charges_nothing(service, people):
    aud, ana = service.ledger("aud"), service.ledger("ana")
    assert aud.verify(people).ok
    with pytest.raises(AccessDenied):
        aud.charge(people, acc.PureDP(0.1))
    with pytest.raises(AccessDenied):
        aud.secret()
    aud.freeze(people, because="a complaint came in")
    with pytest.raises(BudgetExceeded, match="frozen: a complaint came in"):
        ana.charge(people, acc.PureDP(0.1))
    with pytest.raises(AccessDenied):
        aud.thaw(people, because="never mind")
    service.ledger("olga").thaw(people, because="answered")
    ana.charge(people, acc.PureDP(0.1))


def test_every_change_of_a_budget_is_an_entry_by_a_role(service, people):
    olga, ana, ben = (service.ledger(name) for name in ("olga", "ana", "ben"))
    olga.split_budget(people, {"health": 0.75, "tax": 0.25}, because="as agreed")
    with pytest.raises(BudgetExceeded, match=r"share of team 'tax' \(25\.0%\).*Still fits: noise 4\."):
        ben.charge(people, acc.Laplace(2.0), delta=0.0)
    ana.charge(people, acc.PureDP(0.75))
    ben.charge(people, acc.PureDP(0.25))
    with pytest.raises(BudgetExceeded):
        ben.charge(people, acc.PureDP(0.125))
    with pytest.raises(TermsError, match="only raised"):
        olga.raise_budget(people, epsilon=0.5, delta=0.0, because="less")
    olga.raise_budget(people, epsilon=2.0, delta=0.0, because="the board agreed")
    ben.charge(people, acc.PureDP(0.25))
    with pytest.raises(TermsError, match="cannot be moved"):
        olga.transfer(people, "others")
    with sqlite3.connect(service.where) as connection:
        found = connection.execute("SELECT body FROM tacit_entries WHERE dataset = ?", (people,)).fetchall()
    changes = [json.loads(body) for (body,) in found if '"kind":"budget"' in body]
    assert [(e["change"]["kind"], e["by"]["role"], e["change"]["because"]) for e in changes] == [
        ("split", "owner", "as agreed"), ("raise", "owner", "the board agreed"),
    ]  # fmt: skip
    assert olga.verify(people).ok


# -- attacks -----------------------------------------------------------------------------------------------------------


def test_a_stolen_analyst_token_spends_at_most_what_is_left_touches_no_other_charge_and_ends_when_revoked(
    service, people
):
    secret = service.tokens.add("stolen", "analyst", datasets=(people,))
    thief = tacit.Ledger(service.address.replace("//", f"//:{secret}@"))
    other = service.ledger("ana").charge(people, acc.PureDP(0.5), purpose="ana's")
    for attempt in (
        lambda: thief.resume(people, other.number),
        lambda: thief._confirm(people, other.number),
        lambda: thief.bind(people, other.number, {"model": "00" * 32}),
    ):
        with pytest.raises(ChargeError, match="made by ana"):
            attempt()
    with pytest.raises(AccessDenied, match="only"):
        thief.budget("another data set")
    with pytest.raises(BudgetExceeded):
        thief.charge(people, acc.PureDP(0.75))
    mine = thief.charge(people, acc.PureDP(0.5))
    assert thief.record(people, mine.number).by["name"] == "stolen"  # the record says whose token it was
    service.tokens.revoke("stolen")
    with pytest.raises(AccessDenied, match="no valid token"):
        tacit.Ledger(service.address.replace("//", f"//:{secret}@")).datasets()
    log = (service.folder / "log.jsonl").read_text()
    assert '"name": "stolen"' in log
    assert secret not in log


def test_a_request_sent_again_is_one_charge_and_its_key_is_good_for_nothing_else(service, people):
    body = {
        "dataset": people, "mechanism": acc.PureDP(0.25).to_dict(), "delta": None, "purpose": "x", "number": "1" * 32,
    }  # fmt: skip
    secret = service.secrets["ana"]
    first = service.post("charge", secret, body, key="captured")
    for _ in range(5):
        assert service.post("charge", secret, body, key="captured") == first
    assert first[0] == 200, first
    status, told = service.post("charge", secret, {**body, "number": "2" * 32}, key="captured")
    assert (status, "used for another request" in told["message"]) == (409, True)
    # under a key of somebody else's it is taken for what it is: not theirs
    assert service.post("charge", service.secrets["ben"], body, key="captured")[0] == 409
    confirm = {"dataset": people, "charge": "1" * 32}
    assert service.post("confirm", secret, confirm, key="c") == service.post("confirm", secret, confirm, key="c")
    budget = service.ledger("ana").budget(people)
    assert (budget.charges, budget.spent_epsilon, budget.unconfirmed) == (1, 0.25, 0)
    assert service.post("charge", "tacit_guess", body)[0] in (401, 429)
    assert service.post("charge", secret, ["no", "object"])[0] == 422


def test_two_analysts_who_race_get_exactly_what_fits(service, people):
    granted, refused, barrier = [], [], threading.Barrier(8)

    def race(name):
        ledger = service.ledger(name)
        barrier.wait()
        for _ in range(5):
            try:
                granted.append(ledger.charge(people, acc.PureDP(0.0625)).number)
            except BudgetExceeded:
                refused.append(name)

    racers = [threading.Thread(target=race, args=(name,)) for name in ("ana", "ben") * 4]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert (len(granted), len(refused)) == (16, 24)
    assert service.ledger("ana").budget(people).left_epsilon == 0.0


def sql(path, *statements):
    """Whoever operates the database, without the triggers in the way."""
    with sqlite3.connect(path, timeout=20) as connection:
        there = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in there:
            connection.execute(f"DROP TRIGGER {name}")
        for statement, values in statements:
            connection.execute(statement, values)
        for _, made in there:  # and nothing is to be seen of it
            connection.execute(made)


@pytest.fixture
def own(tmp_path):
    """A service of this test alone, with a charge of 0.5 of 1."""
    running = Service(tmp_path)
    running.ledger("olga").register("people", epsilon=1.0, delta=0.0)
    running.ledger("ana").charge("people", acc.PureDP(0.5)).confirm()
    yield running
    if running.process.poll() is None:
        running.stop()


def test_the_operator_of_the_database_cannot_raise_a_budget_roll_back_or_cut_the_history(own):
    ana = own.ledger("ana")
    entry = json.loads(_body(own.where, 0))
    entry["terms"]["epsilon"] = 1000.0
    row = chained("people", None, entry)
    own.stop()
    original, old = own.folder / "original.db", own.folder / "old.db"
    shutil.copy(own.where, original)
    own.start()
    # row 0, in the running service
    sql(own.where, ("INSERT OR REPLACE INTO tacit_entries VALUES (?, ?, ?, ?)", ("people", 0, row.body, row.hash)))
    with pytest.raises(LedgerTampered, match="registration"):
        ana.charge("people", acc.PureDP(100.0))
    # truncation: the last entries are gone, and the head is set back
    shutil.copy(original, own.where)
    ana.charge("people", acc.PureDP(0.25))
    shutil.copy(own.where, old)
    [first_hash] = sqlite3.connect(own.where).execute("SELECT hash FROM tacit_entries WHERE seq = 0").fetchone()
    sql(
        own.where,
        ("DELETE FROM tacit_entries WHERE seq > 0", ()),
        ("DELETE FROM tacit_index WHERE seq > 0", ()),
        ("UPDATE tacit_heads SET seq = 0, hash = ?", (first_hash,)),
    )
    with pytest.raises(LedgerTampered, match="not signed"):
        ana.charge("people", acc.PureDP(1.0))
    # rollback: an old copy, whose head is signed; the service has seen a newer one
    shutil.copy(original, own.where)
    with pytest.raises(LedgerTampered, match="rolled back"):
        ana.charge("people", acc.PureDP(0.5))
    # and one that starts anew finds it in the anchor
    shutil.copy(old, own.where)
    own.stop()
    assert '"dataset":"people"' in (own.folder / "heads.jsonl").read_text()
    shutil.copy(original, own.where)
    told = subprocess.run(
        [sys.executable, "-m", "tacit", "ledger", "serve", own.where, "--tokens", str(own.tokens.path),
         "--key", str(own.folder / "ledger.key"), "--port", "0", "--anchor", str(own.folder / "heads.jsonl")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (told.returncode, "cut or rolled back" in told.stderr) == (1, True), told.stderr


def _body(path, seq):
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT body FROM tacit_entries WHERE seq = ?", (seq,)).fetchone()[0]


def killed_among_charges(service, clients, each):
    """Charges from many clients, while the service is killed and started again; the numbers they got."""
    service.ledger("olga").register("crowd", epsilon=1e6, delta=0.0)
    numbers: list[str] = []
    failures: list[Exception] = []

    def work():
        ledger = service.ledger("ana")
        try:
            for _ in range(each):
                charge = ledger.charge("crowd", acc.PureDP(0.001))
                numbers.append(charge.number)
        except LedgerError as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(clients)]
    for worker in workers:
        worker.start()
    while len(numbers) < clients * each // 3 and not failures:
        time.sleep(0.01)
    service.stop(signal.SIGKILL)
    service.start()
    for worker in workers:
        worker.join()
    assert failures == []
    return numbers


def found_once(service, numbers):
    recorded = [record.charge for record in service.ledger("aud").history("crowd")]
    assert sorted(recorded) == sorted(numbers)  # 0 lost, 0 double
    budget = service.ledger("aud").budget("crowd")
    assert budget.spent_epsilon == pytest.approx(0.001 * len(numbers), rel=1e-12)
    assert service.ledger("aud").verify("crowd", public_key=service.public).ok


def test_a_service_killed_among_charges_of_16_clients_loses_none_and_doubles_none(own):
    numbers = killed_among_charges(own, clients=16, each=8)
    assert len(set(numbers)) == 128
    found_once(own, numbers)


@pytest.mark.slow
def test_a_service_killed_among_1000_charges_of_16_clients_loses_none_and_doubles_none(own):
    numbers = killed_among_charges(own, clients=16, each=63)
    assert len(set(numbers)) == 1008
    found_once(own, numbers)


def test_a_token_that_asks_too_often_waits(tmp_path, monkeypatch):
    from tacit.ledger import Ledger
    from tacit.ledger.service import Service as Inside

    tokens = Tokens(tmp_path / "t.json")
    secret = tokens.add("ana", "analyst")
    inside = Inside(Ledger(tmp_path / "l.db"), tokens, rate=3.0)
    clock = [0.0]
    monkeypatch.setattr("tacit.ledger.service.time", SimpleNamespace(**vars(time) | {"monotonic": lambda: clock[0]}))

    def asks(times):
        return [inside.answer("datasets", secret, None, b"", "here")[0] for _ in range(times)]

    assert asks(5) == [200, 200, 200, 429, 429]
    clock[0] = 0.5  # enough for one request more, at three a second
    assert asks(2) == [200, 429]


def test_an_answer_that_does_not_come_is_asked_for_again_and_is_one_charge(service, people, monkeypatch):
    """The wrong version waited for one answer as long as for all of them, and never asked again."""
    monkeypatch.setattr(remote, "WAIT", 0.5)
    ana = service.ledger("ana")
    ana.dataset(people)
    service.process.send_signal(signal.SIGSTOP)
    waker = threading.Timer(1.2, service.process.send_signal, [signal.SIGCONT])
    waker.start()
    ana.charge(people, acc.PureDP(0.25)).confirm()
    waker.join()
    until, asked = time.monotonic() + 30, 0
    while asked < 2 and time.monotonic() < until:  # answers that nobody waits for any more are noted later
        log = [json.loads(line) for line in (service.folder / "log.jsonl").read_text().splitlines()]
        asked = sum(line["action"] == "charge" for line in log)  # one whose client has gone is noted as cut off
    assert asked > 1
    assert (ana.budget(people).charges, ana.budget(people).unconfirmed) == (1, 0)


def test_a_service_that_is_gone_is_a_message(service, monkeypatch):
    monkeypatch.setattr(remote, "PATIENCE", 0.2)
    monkeypatch.delenv("TACIT_LEDGER_TOKEN", raising=False)
    with socket.socket() as silent:  # bound, not listening: nobody else gets the port
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(tacit.ledger.ServerUnreachable, match="is the service running"):
            tacit.Ledger(f"http://:t@127.0.0.1:{port}").datasets()
        with pytest.raises(AccessDenied, match="TACIT_LEDGER_TOKEN"):
            tacit.Ledger(f"http://127.0.0.1:{port}").datasets()


@pytest.mark.parametrize("status", [502, 404, 200])
def test_a_proxy_whose_service_is_gone_and_a_page_of_another_are_the_same_message(monkeypatch, status):
    """The wrong version spoke of an answer that tacit does not understand, or failed with a KeyError."""
    import http.server

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_error(status)

        def log_message(self, *words):
            pass

    monkeypatch.setattr(remote, "PATIENCE", 0.0)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        with pytest.raises(tacit.ledger.ServerUnreachable, match=f"HTTP status {status}"):
            tacit.Ledger(f"http://:t@127.0.0.1:{proxy.server_port}/team").datasets()
        proxy.shutdown()
