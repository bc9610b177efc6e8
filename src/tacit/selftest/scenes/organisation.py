"""Does a ledger that many people share keep its promises? Changed budgets, growing data, schedules, the service.

Sums are done here by hand, in eighths, which binary64 adds without rounding.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import io
import json
import pickle
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit import accounting as acc
from tacit.audit.findings import Finding, holds
from tacit.ledger import (
    AccessDenied,
    BudgetExceeded,
    ChargeError,
    DatasetExists,
    FingerprintMismatch,
    Ledger,
    LedgerError,
    LedgerTampered,
    StorageError,
    TermsError,
    entries,
)
from tacit.ledger.service import Service, app
from tacit.ledger.signing import SigningKey, anchor, heads_of
from tacit.ledger.state import State, rule_at
from tacit.ledger.tokens import Tokens
from tacit.selftest.scene import Scene, refused

EIGHTH = acc.PureDP(0.125)
AUDITOR = {"role": "auditor", "name": "aud"}


def _granted(charge: Callable[[], Any], most: int = 40) -> int:
    """How often something is granted before it is refused for the budget."""
    for count in range(most):
        try:
            charge()
        except BudgetExceeded:
            return count
    return most


def _team(ledger: Ledger, name: str) -> Ledger:
    return ledger.acting({"role": "analyst", "name": name, "team": name})


def budgets_change(seed: int) -> list[Finding]:
    """Raised, split, frozen, renewed: what is granted before and after is what the sums allow."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, ledger in (("memory", Ledger()), ("file", Ledger(Path(folder) / "people.db"))):
            counts = [
                *_raised(ledger),
                *_split(ledger),
                *_frozen(ledger),
                *_renewed(ledger),
                *_numbered(ledger),
            ]
            wrong = [f"{what}: {count} granted, {right} fit" for what, count, right in counts if count != right]
            found.append(holds(f"budgets change ({kind})", not wrong, "; ".join(wrong) or f"{len(counts)} counts"))
            found.append(_refused_changes(ledger, kind))
            found += [holds(f"budgets change: chain ({kind})", ledger.verify(reprice=True).ok, "verified")]
    return found


def _raised(ledger: Ledger) -> Iterator[tuple[str, int, int]]:
    ledger.register("raised", epsilon=1.0, delta=0.0)
    yield "before a raise", _granted(lambda: ledger.charge("raised", EIGHTH)), 8
    ledger.raise_budget("raised", epsilon=1.5, delta=0.0, because="agreed")
    yield "after a raise by ½", _granted(lambda: ledger.charge("raised", EIGHTH)), 4
    ledger.register("raised δ", epsilon=50.0, delta=4e-6, charges=4, rule="sum")
    leak = acc.ApproxDP(0.125, 1e-6)
    yield "by δ", _granted(lambda: ledger.charge("raised δ", leak, delta=1e-6)), 4
    ledger.raise_budget("raised δ", epsilon=50.0, delta=6e-6, because="agreed")
    yield "by a raised δ", _granted(lambda: ledger.charge("raised δ", leak, delta=1e-6)), 2


def _split(ledger: Ledger) -> Iterator[tuple[str, int, int]]:
    for rule in ("sum", "tight", "renyi"):
        name, delta = f"split {rule}", 0.0 if rule == "sum" else 1e-5
        ledger.register(name, epsilon=1.0, delta=delta, rule=rule)
        ledger.split_budget(name, {"health": 0.5, "tax": 0.25}, because="agreed")
        alone = _granted(lambda n=name: _team(ledger, "health").charge(n, EIGHTH, delta=0.0))  # type: ignore[misc]
        tax = _granted(lambda n=name: _team(ledger, "tax").charge(n, EIGHTH, delta=0.0))  # type: ignore[misc]
        rest = _granted(lambda n=name: ledger.charge(n, EIGHTH, delta=0.0))  # type: ignore[misc]
        if rule == "sum":
            yield "half to a team", alone, 4
            yield "a quarter to a team", tax, 2
            yield "the rest to nobody's team", rest, 2
        else:
            # Pure charges of an eighth add up to ε at order ∞ at most: no rule may grant more than eight in all.
            yield f"teams under {rule}, at most 8 in all", max(alone + tax + rest, 8), 8
            yield f"teams under {rule}, half to one", max(alone, 4), 4
        yield f"a team without a share ({rule})", _granted(lambda n=name: _team(ledger, "art").charge(n, EIGHTH)), 0  # type: ignore[misc]


def _frozen(ledger: Ledger) -> Iterator[tuple[str, int, int]]:
    ledger.register("frozen", epsilon=1.0, delta=0.0)
    plan = ledger.plan("frozen", EIGHTH, every="day", times=2)
    ledger.acting(AUDITOR).freeze("frozen", because="a complaint")
    yield "while frozen", _granted(lambda: ledger.charge("frozen", EIGHTH)), 0
    with contextlib.suppress(ChargeError):
        ledger.draw("frozen", plan.number)
        yield "runs of a schedule while frozen", 1, 0
    ledger.thaw("frozen", because="answered")
    yield "after a thaw", _granted(lambda: ledger.charge("frozen", EIGHTH)), 6


def _renewed(ledger: Ledger) -> Iterator[tuple[str, int, int]]:
    ledger.register("renewed", epsilon=1.0, delta=0.0, renewal={"every": "day", "epsilon": 0.25, "times": 2})
    yield "before a renewal", _granted(lambda: ledger.charge("renewed", EIGHTH)), 8
    now = datetime.datetime.now(datetime.UTC)
    for days, right in ((0, 8), (1, 10), (2, 12), (9, 12)):
        later = (now + datetime.timedelta(days=days, hours=1)).isoformat(timespec="seconds")
        eighths = rule_at(ledger.dataset("renewed"), State(), later).epsilon * 8
        yield f"{days} days after, at most two renewals", round(eighths * 1000), right * 1000


def _numbered(ledger: Ledger) -> Iterator[tuple[str, int, int]]:
    ledger.register("kept", epsilon=1.0, delta=0.0, fingerprint=b"the people")
    for _ in range(3):
        ledger.charge("kept", EIGHTH, number="1" * 32)
    yield "charges under one number", ledger.budget("kept").charges, 1


def _refused_changes(ledger: Ledger, kind: str) -> Finding:
    """What nobody may do; the data set is that of :func:`_numbered`."""
    ledger.register("others", epsilon=1.0, delta=0.0, fingerprint=b"other people")
    analyst, ben = (ledger.acting({"role": "analyst", "name": name}) for name in ("ana", "ben"))
    made = analyst.charge("kept", EIGHTH)
    made.confirm()
    daily = {"every": "day", "epsilon": 0.1, "times": 2}
    cases: dict[str, tuple[Callable[[], object], type[Exception]]] = {
        "a smaller budget": (lambda: ledger.raise_budget("kept", epsilon=0.5, delta=0.0, because="less"), TermsError),
        "no reason": (lambda: ledger.raise_budget("kept", epsilon=2.0, delta=0.0, because=""), TermsError),
        "an analyst raises": (
            lambda: analyst.raise_budget("kept", epsilon=2.0, delta=0.0, because="mine"),
            AccessDenied,
        ),
        "an analyst adds data": (lambda: analyst.accept("kept", b"x", because="mine"), AccessDenied),
        "an auditor thaws": (lambda: ledger.acting(AUDITOR).thaw("kept", because="no"), AccessDenied),
        "shares above one": (lambda: ledger.split_budget("kept", {"a": 0.75, "b": 0.5}, because="x"), TermsError),
        "a budget for other people": (lambda: ledger.transfer("kept", "others"), TermsError),
        "data of another name": (lambda: ledger.accept("kept", b"other people", because="ours"), DatasetExists),
        "data without a reason": (lambda: ledger.accept("kept", b"more", because=""), TermsError),
        "data that nobody registered": (
            lambda: ledger.charge("kept", EIGHTH, data=ledger.fingerprint(b"strangers")),
            FingerprintMismatch,
        ),
        "another mechanism under a number": (
            lambda: ledger.charge("kept", acc.PureDP(0.25), number="1" * 32),
            ChargeError,
        ),
        "the charge of somebody else": (lambda: ben.bind("kept", made.number, {"model": "ab" * 32}), ChargeError),
        "a charge that was confirmed": (lambda: analyst.resume("kept", made.number), ChargeError),
        "neighbours of one size whose size is private": (
            lambda: ledger.register("s", epsilon=1.0, delta=0.0, adjacency="zero-out", size_public=False),
            TermsError,
        ),
        "a window of nothing": (lambda: ledger.register("w", epsilon=1.0, delta=0.0, window=0), TermsError),
        "a renewal without end": (
            lambda: ledger.register("r", epsilon=1.0, delta=0.0, renewal={**daily, "times": 10**6}),
            TermsError,
        ),
        "a renewal of nothing": (
            lambda: ledger.register("r", epsilon=1.0, delta=0.0, renewal={**daily, "epsilon": 0.0}),
            TermsError,
        ),
        "a renewal that began before": (
            lambda: ledger.register(
                "r", epsilon=1.0, delta=0.0, renewal={**daily, "since": "2020-01-01T00:00:00+00:00"}
            ),
            TermsError,
        ),
        "a renewal of δ = 1": (
            lambda: ledger.register("r", epsilon=1.0, delta=0.0, renewal={**daily, "delta": 1.0}),
            TermsError,
        ),
        "a renewal every fortnight": (
            lambda: ledger.register("r", epsilon=1.0, delta=0.0, renewal={**daily, "every": "fortnight"}),
            TermsError,
        ),
    }
    return refused(f"changes: refusals ({kind})", cases)


# -- growing data and schedules ----------------------------------------------------------------------------------------


def _grown(ledger: Ledger, name: str, seed: int, window: int, every: int) -> tuple[int, list[str], str]:
    """Charges on data that grow after so many turns: the newest version, what was wrong, and a count."""
    generator, eighths = np.random.default_rng(seed), dict[int, int]()
    ledger.register(name, epsilon=1.0, delta=0.0, window=window, fingerprint=f"{name} 1".encode())
    wrong, newest = list[str](), 1
    for turn in range(60 if every > 1 else 40):
        if turn % every == every - 1 and newest < 8:
            newest = ledger.new_version(name, f"{name} {newest + 1}".encode(), because="a month later")
        on = int(generator.integers(max(1, newest - 2), newest + 1))
        # Whoever came with version c is in the versions c to c + window - 1, and pays for these.
        most = max(sum(eighths.get(v, 0) for v in range(c, c + window)) for c in range(on - window + 1, on + 1))
        granted = _granted(lambda on=on: ledger.charge(name, EIGHTH, version=on), most=1)  # type: ignore[misc]
        eighths[on] = eighths.get(on, 0) + granted
        if granted != (most < 8):
            wrong.append(f"version {on}: {'granted' if granted else 'refused'} where somebody has spent {most} of 8")
    return newest, wrong, f"{sum(eighths.values())} charges on {newest} versions"


def data_grow(seed: int) -> list[Finding]:
    """With a window everybody pays for the versions they are in; schedules are drawn as often as they are paid for."""
    ledger = Ledger()
    newest, wrong, counted = _grown(ledger, "growing", seed, 3, 8)
    # Versions that are read in any order: those in the middle of a window may have spent more than its ends.
    wrong += [text for turn in range(4) for text in _grown(ledger, f"mixed {turn}", seed + turn, 3 + turn % 2, 1)[1]]
    found = [holds("growing data: everybody's sum", not wrong, "; ".join(wrong[:3]) or counted)]
    found.append(holds("growing data: chain", ledger.verify(reprice=True).ok, "verified"))
    found += _schedules(ledger)
    found.append(
        refused(
            "growing data: refusals",
            {
                "a version to come": (lambda: ledger.charge("growing", EIGHTH, version=newest + 1), LedgerError),
                "a version long gone": (lambda: ledger.charge("growing", EIGHTH, version=1), LedgerError),
                "a schedule for people who leave": (
                    lambda: ledger.plan("growing", EIGHTH, every="month", times=2),
                    TermsError,
                ),
            },
        )
    )
    return found


def _schedules(ledger: Ledger) -> list[Finding]:
    ledger.register("yearly", epsilon=1.0, delta=1e-5, rule="sum", fingerprint=b"people")
    plans = [ledger.plan("yearly", EIGHTH, every="day", times=times, delta=0.0) for times in (1, 4)]
    spent = ledger.budget("yearly").spent_epsilon
    runs = [ledger.draw("yearly", plan.number, purpose="the first run") for plan in plans]
    free = all(run.epsilon == 0.0 for run in runs) and ledger.budget("yearly").spent_epsilon == spent
    plain = ledger.charge("yearly", EIGHTH, delta=0.0)
    ledger.register("due", epsilon=1.0, delta=0.0, fingerprint=b"people to come")
    due = ledger.plan("due", EIGHTH, every="day", times=1)
    return [
        holds("schedules: paid in advance", spent == 0.625 and free, f"ε = {spent} for one run and four of an eighth"),
        refused(
            "schedules: refusals",
            {
                "one run more": (lambda: ledger.draw("yearly", plans[0].number), ChargeError),
                "a run that is not due": (lambda: ledger.draw("yearly", plans[1].number), ChargeError),
                "another run than was planned": (
                    lambda: ledger.draw("due", due.number, mechanism=acc.PureDP(4.0)),
                    ChargeError,
                ),
                "a run of no schedule": (lambda: ledger.draw("yearly", plain.number), ChargeError),
                "a run on other data": (
                    lambda: ledger.draw("yearly", plans[1].number, data=ledger.fingerprint(b"strangers")),
                    FingerprintMismatch,
                ),
                "every fortnight": (
                    lambda: ledger.plan("yearly", EIGHTH, every="fortnight", times=2),  # type: ignore[arg-type]
                    TermsError,
                ),
                "no times": (lambda: ledger.plan("yearly", EIGHTH, every="day", times=0), TermsError),
                "more than is left": (
                    lambda: ledger.plan("yearly", EIGHTH, every="day", times=3, delta=0.0),
                    BudgetExceeded,
                ),
            },
        ),
    ]


# -- the service -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _served(service: Service, heads: Path) -> Iterator[str]:
    """The service on the loopback interface, in a thread of this process; its address."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as door:
        options: dict[str, Any] = {"log_level": "critical", "access_log": False}
        server = uvicorn.Server(uvicorn.Config(app(service, heads, 3600.0), **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


def a_service_keeps_a_ledger(seed: int) -> list[Finding]:
    """Roles, teams, numbers that come again, races, signatures and anchors, over HTTP on the loopback interface."""
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), io.StringIO()
        key = SigningKey.make(folder / "ledger.key")
        tokens = Tokens(folder / "tokens.json")
        roles = {"olga": ("owner", ""), "ana": ("analyst", "health"), "ben": ("analyst", "tax"), "aud": ("auditor", "")}
        secrets = {who: tokens.add(who, role, team=team) for who, (role, team) in roles.items()}
        here = Ledger(folder / "people.db", key=folder / "ledger.key")
        with _served(Service(here, tokens, rate=1e6, log=log), folder / "heads.jsonl") as address:
            people = {who: Ledger(address.replace("//", f"//:{s}@")) for who, s in secrets.items()}
            found = _use(people, secrets, tokens, address)
            anchor(heads_of(here), folder / "heads.jsonl")
            found.append(_verified(people["aud"], key.public, folder / "heads.jsonl"))
        told = [json.loads(line) for line in log.getvalue().splitlines()]
        hidden = not any(secret in log.getvalue() for secret in secrets.values())
        found.append(holds("service: log", hidden and len(told) > 20, f"{len(told)} requests, without tokens"))
        found += _forged(folder, key)
    return found


def _use(people: dict[str, Ledger], secrets: dict[str, str], tokens: Tokens, address: str) -> list[Finding]:
    olga, ana, ben, aud = (people[who] for who in ("olga", "ana", "ben", "aud"))
    olga.register("people", epsilon=1.0, delta=0.0, fingerprint=b"the people")
    read = ana.recognise("people", b"the people")
    with ana.charge("people", EIGHTH, purpose="one", data=read) as charge:
        pass
    opened = ana.charge("people", EIGHTH, purpose="two", number="2" * 32)
    ana.charge("people", EIGHTH, purpose="two", number="2" * 32)
    ana.resume("people", opened.number).confirm()
    release = ana.bind("people", charge.number, {"model": "ab" * 32})
    plan = ana.plan("people", EIGHTH, every="day", times=1)
    run = ana.draw("people", plan.number, purpose="today")
    budget, history = ana.budget("people"), ana.history("people", limit=2)
    told = {
        "confirmed": charge.confirmed and ana.record("people", opened.number).confirmed,
        "three charges": (budget.charges, budget.spent_epsilon) == (3, 0.375),
        "one head": budget.head == ana.head("people"),
        "who": [record.by["name"] for record in history] == ["ana", "ana"],
        "the release": ana.record("people", charge.number).release == release,
        "data": history[0].data == read,
        "the run is paid for": run.epsilon == 0.0,
        "mentions": ana.mentions("people", opened.number) >= 3,
        "a quote": ana.quote("people", EIGHTH).epsilon == 0.125,
        "the names": olga.datasets() == ["people"],
        "no token in a pickle": secrets["ana"].encode() not in pickle.dumps(ana) and secrets["ana"] not in repr(ana),
        "copies ask the same service": copy.copy(ana).head("people") == budget.head,
    }
    wrong = [name for name, right in told.items() if not right]
    olga.register("split", epsilon=1.0, delta=0.0)
    olga.split_budget("split", {"health": 0.5, "tax": 0.25}, because="agreed")
    olga.raise_budget("split", epsilon=2.0, delta=0.0, because="agreed")
    aud.freeze("split", because="a complaint")
    frozen = _granted(lambda: ana.charge("split", EIGHTH))
    olga.thaw("split", because="answered")
    olga.accept("people", b"the same people", because="another table")
    version = olga.new_version("people", b"more people", because="a month later")
    granted = _raced([ana, ben] * 2, "split")
    shares = {who: sum(record.by["name"] == who for record in aud.history("split")) for who in ("ana", "ben")}
    return [
        holds("service: the same ledger", not wrong, "; ".join(wrong) or f"{len(told)} statements"),
        holds("service: frozen", frozen == 0, f"{frozen} charges while frozen"),
        holds("service: versions", version == 2 and ana.recognise("people", b"the same people") != read, "of one name"),
        holds("service: a race", (granted, shares) == (12, {"ana": 8, "ben": 4}), f"{granted} of 12 granted, {shares}"),
        _refused_requests(people, tokens, address),
    ]


def _raced(racers: Sequence[Ledger], dataset: str) -> int:
    """How many charges several who ask at once are granted together."""
    counts = [0] * len(racers)

    def race(place: int) -> None:
        counts[place] = _granted(lambda: racers[place].charge(dataset, EIGHTH))

    threads = [threading.Thread(target=race, args=(place,)) for place in range(len(racers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def _refused_requests(people: dict[str, Ledger], tokens: Tokens, address: str) -> Finding:
    olga, ana, ben, aud = (people[who] for who in ("olga", "ana", "ben", "aud"))
    own = ana.charge("people", EIGHTH)

    def other(secret: str) -> Ledger:
        return Ledger(address.replace("//", f"//:{secret}@"))

    narrow = other(tokens.add("narrow", "analyst", datasets=("elsewhere",)))
    ended = other(tokens.add("ended", "analyst", days=1e-9))
    gone = other(tokens.add("gone", "analyst"))
    tokens.revoke("gone")
    return refused(
        "service: refusals",
        {
            "an analyst registers": (lambda: ana.register("mine", epsilon=9.0, delta=0.0), AccessDenied),
            "an analyst raises": (
                lambda: ana.raise_budget("people", epsilon=9.0, delta=0.0, because="mine"),
                AccessDenied,
            ),
            "an analyst adds data": (lambda: ana.accept("people", b"x", because="mine"), AccessDenied),
            "an auditor charges": (lambda: aud.charge("people", EIGHTH), AccessDenied),
            "an auditor asks for the secret": (aud.secret, AccessDenied),
            "an auditor thaws": (lambda: aud.thaw("people", because="no"), AccessDenied),
            "the charge of another": (lambda: ben.resume("people", own.number), ChargeError),
            "the release of another": (lambda: ben.bind("people", own.number, {"model": "00" * 32}), ChargeError),
            "a token for other data": (lambda: narrow.budget("people"), AccessDenied),
            "a token that ended": (ended.datasets, AccessDenied),
            "a token that was revoked": (gone.datasets, AccessDenied),
            "a token that nobody made": (lambda: other("tacit_guess").datasets(), AccessDenied),
            "more than is left": (lambda: ana.charge("people", acc.PureDP(1.0)), BudgetExceeded),
            "no such data": (lambda: ana.budget("nobody"), KeyError),
            "other data": (lambda: ana.recognise("people", b"strangers"), FingerprintMismatch),
            "a smaller budget": (
                lambda: olga.raise_budget("people", epsilon=0.5, delta=0.0, because="less"),
                TermsError,
            ),
            "another's budget": (lambda: olga.transfer("people", "others"), TermsError),
            "a signature from here": (lambda: olga.sign("people"), TermsError),
            "a token in clear": (lambda: Ledger("http://:token@ledger.example.org"), StorageError),
            "no role": (lambda: tokens.add("x", "king"), TermsError),
            "a name that is taken": (lambda: tokens.add("ana", "owner"), TermsError),
            "a token of nobody": (lambda: tokens.revoke("nobody"), TermsError),
        },
    )


def _verified(ledger: Ledger, public: str, heads: Path) -> Finding:
    told = ledger.verify(anchors=[heads], public_key=public, reprice=True)
    other = ledger.verify(public_key=SigningKey(bytes(32)).public)
    fine = told.ok and not other.ok
    return holds("service: verified", fine, "; ".join(told.problems) or f"{told.entries} entries, and one key only")


def _changed(path: Path, *statements: str) -> None:
    """What the operator of a database can do: no trigger is in the way."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        there = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in there:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in (*statements, *(made for _, made in there)):
            connection.execute(statement)


def _forged(folder: Path, key: SigningKey) -> list[Finding]:
    """A history that is rewritten whole is found by its signature, one that is cut by an anchor."""
    path, heads = folder / "signed.db", folder / "kept.jsonl"
    ledger = Ledger(path, key=folder / "ledger.key")
    ledger.register("people", epsilon=1.0, delta=0.0)
    ledger.charge("people", EIGHTH).confirm()
    anchor(heads_of(ledger), heads)
    fine = Ledger(path).verify(anchors=[heads], public_key=key.public).ok and anchor(heads_of(ledger), heads) == 0
    _changed(path, "UPDATE tacit_heads SET signature = NULL")
    unsigned = not Ledger(path).verify(public_key=key.public).ok
    cases: dict[str, tuple[Callable[[], object], type[Exception]]] = {
        "a charge on a head that nobody signed": (
            lambda: Ledger(path, key=folder / "ledger.key").charge("people", EIGHTH),
            LedgerTampered,
        ),
        "a key that others can read": (lambda: _load_open(folder), StorageError),
        "no key": (lambda: SigningKey.load(folder / "kept.jsonl"), StorageError),
        "a key in the place of another": (lambda: SigningKey.make(folder / "ledger.key"), StorageError),
        "a signature without a key": (lambda: Ledger(path).sign("people"), TermsError),
        "an anchor of another key": (
            lambda: Ledger(path).verify(anchors=[heads], public_key=SigningKey(bytes(32)).public),
            LedgerTampered,
        ),
    }
    found = [refused("signatures: refusals", cases)]
    Ledger(path, key=folder / "ledger.key").sign("people")
    signed = Ledger(path).verify(anchors=[heads], public_key=key.public).ok
    newer = (
        "DELETE FROM tacit_entries WHERE seq = (SELECT MAX(seq) FROM tacit_entries)",
        "UPDATE tacit_heads SET seq = (SELECT MAX(seq) FROM tacit_entries), "
        "hash = (SELECT hash FROM tacit_entries ORDER BY seq DESC LIMIT 1)",
    )
    for _ in range(2):
        _changed(path, *newer)
    cut = not Ledger(path).verify(anchors=[heads]).ok
    found.append(
        holds(
            "signatures and anchors",
            fine and unsigned and signed and cut,
            f"kept {fine}, signature taken away seen {unsigned}, signed anew {signed}, cut history seen {cut}",
        )
    )
    return found


def _load_open(folder: Path) -> SigningKey:
    path = folder / "open.key"
    SigningKey.make(path)
    path.chmod(0o644)
    return SigningKey.load(path)


# -- files of the first version ----------------------------------------------------------------------------------------


def old_files_go_on(seed: int) -> list[Finding]:
    """A file as tacit 0.1 wrote it is brought up to date once; what was spent stays spent, and a changed one is not."""
    with tempfile.TemporaryDirectory() as name:
        path, changed = Path(name) / "old.db", Path(name) / "changed.db"
        _write_first_version(path, (0.5, 0.25))
        _write_first_version(changed, (0.5, 0.25))
        _changed(changed, "UPDATE tacit_entries SET body = replace(body, '0.25', '0.01') WHERE seq = 2")
        budget = Ledger(path).budget("people")
        kept = (budget.charges, budget.spent_epsilon, budget.unconfirmed) == (2, 0.75, 2)
        count = _granted(lambda: Ledger(path).charge("people", EIGHTH))
        told = f"ε = {budget.spent_epsilon} in {budget.charges} charges, then {count} of an eighth"
        return [
            holds("first version: sums", kept and count == 2 and Ledger(path).verify(reprice=True).ok, told),
            refused(
                "first version: changed",
                {"a changed entry": (lambda: Ledger(changed).budget("people"), LedgerTampered)},
            ),
        ]


def _write_first_version(path: Path, charges: Sequence[float]) -> None:
    terms = {"adjacency": "add-remove", "charge_delta": 0.0, "delta": 0.0, "epsilon": 1.0, "fingerprint": None}
    terms |= {"rule": "sum", "size_public": True, "unit": "record"}
    opened: list[dict[str, Any]] = [{"kind": "register", "terms": terms}]
    for place, epsilon in enumerate(charges):
        mechanism = acc.PureDP(epsilon).to_dict()
        price = {"delta": 0.0, "epsilon": epsilon}
        about = {"charge": str(place) * 32, "mechanism": mechanism, "price": price, "purpose": ""}
        opened.append({"kind": "reserve", **about})
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE tacit_entries (dataset TEXT, seq INTEGER, body TEXT, hash TEXT)")
        connection.execute("CREATE TABLE tacit_heads (dataset TEXT, seq INTEGER, hash TEXT)")
        connection.execute("CREATE TABLE tacit_meta (name TEXT, value TEXT)")
        connection.execute(
            "INSERT INTO tacit_meta VALUES ('schema_version', '1'), ('fingerprint_key', ?)", ("ab" * 32,)
        )
        previous = entries.START
        for seq, entry in enumerate(opened):
            spent = [sum(charges[:seq])] if seq else []
            whole = {"dataset": "people", "format": 1, "previous": previous, "seq": seq, **entry}
            whole |= {"time": "2026-01-01T00:00:00+00:00", "totals": {"delta": [], "epsilon": spent}}
            body = entries.canonical(whole)
            previous = entries.digest(body)
            connection.execute("INSERT INTO tacit_entries VALUES ('people', ?, ?, ?)", (seq, body, previous))
        connection.execute("INSERT INTO tacit_heads VALUES ('people', ?, ?)", (len(opened) - 1, previous))
    path.chmod(0o600)


SCENES = (
    Scene("ledger: changes", "ledger", budgets_change),
    Scene("ledger: growing data", "ledger", data_grow),
    Scene("ledger: service", "ledger", a_service_keeps_a_ledger, ("starlette", "uvicorn", "cryptography")),
    Scene("ledger: first version", "ledger", old_files_go_on),
)
