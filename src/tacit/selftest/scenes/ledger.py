"""Does the ledger keep its promises? ε and δ add up, nothing is granted beyond the budget, and no row can be changed.

The same story is told to a ledger in memory and to one in a file; where there is a sum, it is done here by hand.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import pickle
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tacit import accounting as acc
from tacit.audit import bounds
from tacit.audit.findings import Finding, holds
from tacit.ledger import (
    BudgetExceeded,
    ChargeError,
    CopyError,
    DatasetExists,
    EvaluationData,
    FingerprintMismatch,
    Ledger,
    LedgerError,
    LedgerTampered,
    OperatorLog,
    OperatorView,
    PrivateValueError,
    Release,
    TermsError,
    UnknownDataset,
    charged,
    public,
)
from tacit.selftest.scene import Scene, refused


@contextlib.contextmanager
def _ledgers() -> Iterator[dict[str, Callable[[], Ledger]]]:
    """A ledger in memory, and one in a file that is opened again for every look at it."""
    memory = Ledger()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.db"
        yield {"memory": lambda: memory, "file": lambda: Ledger(path)}


def sums_are_sums(seed: int) -> list[Finding]:
    """Charges of known (ε, δ) are granted as long as both sums fit, and not one more, however the ledger is kept."""
    found = []
    with _ledgers() as ledgers:
        for name, ledger in ledgers.items():
            # δ runs out first: ten charges of a tenth of it.
            ledger().register("by δ", epsilon=100.0, delta=1e-5, charges=10)
            ledger().register("by ε", epsilon=1.0, delta=1e-5)
            ledger().register("pure", epsilon=1.0, delta=0.0)
            ledger().register("given", epsilon=100.0, delta=1e-5)
            counts = {}
            for dataset, mechanism, delta in (
                ("by δ", acc.Gaussian(20.0), 1e-6),
                ("by ε", acc.Laplace(10.0), 0.0),
                ("pure", acc.PureDP(0.25), None),
                ("given", acc.ApproxDP(0.1, 2e-6), 2e-6),
            ):
                counts[dataset] = 0
                with contextlib.suppress(BudgetExceeded):
                    for _ in range(30):
                        ledger().charge(dataset, mechanism, delta=delta, purpose="one of several").confirm()
                        counts[dataset] += 1
            wanted = {"by δ": 10, "by ε": 10, "pure": 4, "given": 5}
            found.append(holds(f"ledger: how many fit ({name})", counts == wanted, f"{counts}, should be {wanted}"))
            budget = ledger().budget("by δ")
            one = bounds.gaussian_epsilon(1 / 20.0, 1e-6)
            right = budget.spent_delta >= 1e-5 * (1 - 1e-9) and budget.spent_epsilon >= 10 * one * (1 - 1e-6)
            text = f"spent ε = {budget.spent_epsilon:.4f} and δ = {budget.spent_delta:.3g}"
            found.append(holds(f"ledger: sums ({name})", right and budget.charges == 10, text))
            rest = ledger().budget("by ε")
            found.append(
                holds(
                    f"ledger: what is left ({name})",
                    abs(rest.spent_epsilon - 1.0) < 1e-9 and rest.left_epsilon <= 1e-9,
                    f"spent {rest.spent_epsilon}, left {rest.left_epsilon}",
                )
            )
            checked = ledger().verify(reprice=True)
            found.append(holds(f"ledger: verified ({name})", checked.ok, str(checked)))
    return found


def renyi_rules_hold(seed: int) -> list[Finding]:
    """Under the Rényi rule as many Gaussians are granted as one order allows, and never more than (ε, δ) allow."""
    found = []
    with _ledgers() as ledgers:
        for name, ledger in ledgers.items():
            ledger().register("people", epsilon=2.0, delta=1e-5, rule="renyi")
            ledger().register("orders", epsilon=2.0, delta=1e-5, rule="renyi", orders=[8.0, 16.0], failure_share=0.1)
            for dataset in ("people", "orders"):
                granted, noise = 0, 12.0
                with contextlib.suppress(BudgetExceeded):
                    for _ in range(200):
                        ledger().charge(dataset, acc.Gaussian(noise), delta=1e-9, purpose="one").confirm()
                        granted += 1
                exact = bounds.gaussian_epsilon(math.sqrt(granted) / noise, 1e-5)
                # One more at the best order, by the standard conversion, would be beyond the budget.
                text = f"{granted} granted: ε = {exact:.4f} of 2"
                found.append(holds(f"ledger: Rényi ({dataset}, {name})", 3 < granted < 60 and exact <= 2.0, text))
            counts = []
            for dataset, delta, orders in (("both", 1e-2, [8.0, 16.0]), ("8", 5e-3, [8.0]), ("16", 5e-3, [16.0])):
                ledger().register(dataset, epsilon=2.0, delta=delta, rule="renyi", orders=orders, failure_share=0.0)
                counts.append(0)
                with contextlib.suppress(BudgetExceeded):
                    for _ in range(200):
                        ledger().charge(dataset, acc.Gaussian(6.0), delta=1e-9, purpose="one").confirm()
                        counts[-1] += 1
            text = f"{counts[0]} by two orders, {counts[1:]} by each with half of δ"
            found.append(holds(f"ledger: orders share δ ({name})", 0 < counts[0] <= max(counts[1:]), text))
            failing = refused(
                f"ledger: failures ({name})",
                {
                    "a δ that Rényi orders do not see": (
                        lambda ledger=ledger: [  # type: ignore[misc]
                            ledger().charge("orders", acc.ApproxDP(0.0, 1e-6), purpose="failures") for _ in range(3)
                        ],
                        (BudgetExceeded, LedgerError),
                    ),
                },
            )
            found.append(failing)
    return found


def terms_are_kept(seed: int) -> list[Finding]:
    """Unit, adjacency, fingerprint and numbers: what does not fit the terms is refused, and leaves nothing."""
    found = []
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(5, 2))
    with _ledgers() as ledgers:
        for name, ledger in ledgers.items():
            ledger().register("people", epsilon=5.0, delta=1e-5, fingerprint=data)
            ledger().register("replaced", epsilon=50.0, delta=1e-5, adjacency="replace-one")
            ledger().register("households", epsilon=5.0, delta=1e-5, unit="household", size_public=False)
            both = acc.Gaussian(4.0, replace=2.0)
            price = ledger().charge("replaced", both, delta=1e-6, purpose="replace-one").epsilon
            two = bounds.gaussian_epsilon(2 / 4.0, 1e-6)
            found.append(holds(f"ledger: adjacency ({name})", price >= two * (1 - 1e-6), f"{price:.4f} of {two:.4f}"))
            number = "0123456789abcdef0123456789abcdef"
            first = ledger().charge("people", acc.Gaussian(5.0), delta=1e-6, purpose="kept", number=number)
            again = ledger().charge("people", acc.Gaussian(5.0), delta=1e-6, purpose="kept", number=number)
            once = ledger().budget("people").charges == 1 and first.number == again.number
            resumed = ledger().resume("people", number)
            resumed.confirm()
            before = json.dumps([str(r) for r in ledger().history("people")])

            def unfinished(ledger: Callable[[], Ledger] = ledger) -> None:
                with ledger().charge("people", acc.Gaussian(5.0), delta=1e-6, purpose="raises"):
                    raise ZeroDivisionError

            with contextlib.suppress(ZeroDivisionError):
                unfinished()
            spent = ledger().budget("people").charges == 2
            found.append(refused(f"ledger: terms ({name})", _against_terms(ledger, data, number)))
            after = json.dumps([str(r) for r in ledger().history("people")][:1])
            ledger().check_data("people", data)
            same = ledger().budget("people").charges == 2 and before[:-1] == after[:-1]
            found.append(holds(f"ledger: one number, one charge ({name})", once, "the same charge is made once"))
            found.append(holds(f"ledger: a block that raises ({name})", spent, "what was charged stays spent"))
            found.append(holds(f"ledger: refusals leave nothing ({name})", same, "no entry for what was refused"))
            head = ledger().head("people")
            found.append(
                holds(
                    f"ledger: heads ({name})",
                    ledger().verify("people", heads=[head]).ok and not ledger().verify("people", heads=["0" * 64]).ok,
                    "a printed head is in the chain, and another is not",
                )
            )
    return found


def _against_terms(ledger: Callable[[], Ledger], data: Any, number: str) -> dict[str, tuple[Callable[[], object], Any]]:
    """What the terms of the three data sets do not allow."""
    both = acc.Gaussian(4.0, replace=2.0)
    return {
        "no such data set": (lambda: ledger().charge("nobody", both, purpose="x"), UnknownDataset),
        "registered twice": (lambda: ledger().register("people", epsilon=1.0, delta=0.0), DatasetExists),
        "another unit": (lambda: ledger().charge("households", both, purpose="x"), TermsError),
        "no guarantee under the adjacency": (
            lambda: ledger().charge("replaced", acc.Gaussian(4.0, replace=math.inf), purpose="x"),
            Exception,
        ),
        "confirmed before": (lambda: ledger().resume("people", number), ChargeError),
        "no such charge": (lambda: ledger().resume("people", "f" * 32), ChargeError),
        "another mechanism under a number": (
            lambda: ledger().charge("people", acc.Gaussian(6.0), purpose="x", number=number),
            ChargeError,
        ),
        "more than there is": (
            lambda: ledger().charge("people", acc.Gaussian(0.1), purpose="x"),
            BudgetExceeded,
        ),
        "everything": (lambda: ledger().charge("people", acc.Gaussian(0.0), purpose="x"), BudgetExceeded),
        "more than there is, asked": (lambda: ledger().quote("people", acc.Gaussian(0.1)), BudgetExceeded),
        "other data": (lambda: ledger().check_data("people", data + 1), FingerprintMismatch),
        "data without a fingerprint": (lambda: ledger().check_data("replaced", data), FingerprintMismatch),
        "ε below 0": (lambda: ledger().register("a", epsilon=-1.0, delta=0.0), LedgerError),
        "δ of 1": (lambda: ledger().register("a", epsilon=1.0, delta=1.0), LedgerError),
        "ε that is text": (lambda: ledger().register("a", epsilon="1", delta=0.0), LedgerError),  # type: ignore[arg-type]
        "an unknown rule": (lambda: ledger().register("a", epsilon=1.0, delta=0.1, rule="max"), LedgerError),
        "an unknown adjacency": (
            lambda: ledger().register("a", epsilon=1.0, delta=0.1, adjacency="near"),
            LedgerError,
        ),
        "orders of a sum": (
            lambda: ledger().register("a", epsilon=1.0, delta=0.1, orders=[2.0]),
            LedgerError,
        ),
        "Rényi without δ": (
            lambda: ledger().register("a", epsilon=1.0, delta=0.0, rule="renyi"),
            LedgerError,
        ),
        "an order of 1": (
            lambda: ledger().register("a", epsilon=1.0, delta=0.1, rule="renyi", orders=[1.0]),
            LedgerError,
        ),
        "no name": (lambda: ledger().register("", epsilon=1.0, delta=0.0), (LedgerError, ValueError)),
        "no charges": (lambda: ledger().register("a", epsilon=1.0, delta=0.1, charges=0), LedgerError),
    }


def refusals_help(seed: int) -> list[Finding]:
    """A refusal says what would still fit, and that is granted; many threads get no more than one would."""
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=1e-5)
    found = []
    for mechanism in (
        acc.Gaussian(0.5),
        acc.Laplace(0.1),
        acc.PoissonSampled(acc.Gaussian(0.4), 0.1) * 1000,
        acc.Gaussian(2.0) * 4000,
        acc.PureDP(7.0),
    ):
        try:
            ledger.charge("people", mechanism, purpose="too much")
            found.append(holds("ledger: advice", False, f"{mechanism!r} was granted"))
        except BudgetExceeded as refusal:
            said = refusal.advice
            assert said is not None
            fits, times = mechanism.parts()[0]
            price = ledger.quote("people", fits * said.repeats).epsilon if said.repeats else 0.0
            found.append(holds("ledger: advice", price <= 1.0, f"{said.repeats} of {times} cost {price:.4f}"))
    with tempfile.TemporaryDirectory() as folder:
        shared = Ledger(Path(folder) / "people.db")
        shared.register("people", epsilon=1.0, delta=0.0)
        granted: list[int] = []

        def spend() -> None:
            for _ in range(6):
                with contextlib.suppress(BudgetExceeded):
                    Ledger(Path(folder) / "people.db").charge("people", acc.PureDP(0.125), purpose="race").confirm()
                    granted.append(1)

        threads = [threading.Thread(target=spend) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = shared.budget("people")
        mode = os.stat(Path(folder) / "people.db").st_mode & 0o077
        opened = pickle.loads(pickle.dumps(shared)).budget("people").charges  # noqa: S301 made here
        again = copy.deepcopy(shared).budget("people").charges
    memory = Ledger()
    return [
        *found,
        holds(
            "ledger: threads", len(granted) == 8 == held.charges, f"{len(granted)} of 18 charges of 1/8 were granted"
        ),
        holds("ledger: closed to others", mode == 0, f"other people's rights: {mode:o}"),
        holds("ledger: copies are the same", opened == again == 8, "a copy opens the same file"),
        refused("ledger: in memory", {"pickled": (lambda: pickle.dumps(memory), CopyError)}),
    ]


def rows_cannot_be_changed(seed: int) -> list[Finding]:
    """Whatever is changed, deleted or inserted in the file is found, and nothing more is granted on it."""
    found = []
    changes = {
        "a smaller price": "UPDATE {t} SET {c} = replace({c}, '0.25', '0.01') WHERE {n} = 2",
        "a deleted row": "DELETE FROM {t} WHERE {n} = 2",
        "rows deleted at the end": "DELETE FROM {t} WHERE {n} >= 3",
    }
    for name, change in changes.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "people.db"
            ledger = Ledger(path)
            ledger.register("people", epsilon=2.0, delta=0.0)
            for _ in range(4):
                ledger.charge("people", acc.PureDP(0.25), purpose="one").confirm()
            del ledger
            touched = _tamper(path, change)
            opened = Ledger(path)
            tampered = opened.verify("people", reprice=True)
            blocked = refused(
                f"ledger: {name}",
                {"a further charge": (lambda o=opened: o.charge("people", acc.PureDP(0.25)), LedgerTampered)},  # type: ignore[misc]
            )
            seen = touched and not tampered.ok
            found.append(holds(f"ledger: {name} is found", seen, f"rows were changed: {touched}; {tampered}"))
            if name == "rows deleted at the end":  # the head says so at once; the rest is for verify()
                found.append(blocked)
    return found


def _tamper(path: Path, change: str) -> bool:
    """Change the rows behind the ledger's back, as somebody with the file could; whether anything changed."""
    database = sqlite3.connect(path)
    try:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for trigger in [r[0] for r in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]:
            database.execute(f'DROP TRIGGER "{trigger}"')
        for table in tables:
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            texts = [c for c in columns if c in ("entry", "body", "content", "text", "payload")]
            numbers = [c for c in columns if c in ("number", "seq", "position", "sequence", "place")]
            if texts and numbers:
                done = database.execute(change.format(t=f'"{table}"', c=f'"{texts[0]}"', n=f'"{numbers[0]}"'))
                database.commit()
                return done.rowcount > 0
        raise LookupError(f"no table of entries among {tables}")
    finally:
        database.close()


def releases_hold_what_may_leave(seed: int) -> list[Finding]:
    """Bare values and operator views enter no release, no JSON and no pickle; private logs are closed to others."""
    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-5)
    charge = ledger.charge("people", acc.Gaussian(5.0), purpose="mean")
    view = OperatorView(clipped=0.123456, secret=[987654])
    release = Release({"mean": charged(np.array([1.0, math.inf]), charge), "rows": public(3, "a made-up number")})
    text = release.to_json()
    ours = EvaluationData.declared_public([1], because="made up")
    theirs = EvaluationData([1], dataset="people")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "private" / "log.jsonl"
        path.parent.mkdir(mode=0o700)
        log = OperatorLog(path)
        log.write(view)
        closed = path.stat().st_mode & 0o077 == 0
        written = "987654" in path.read_text(encoding="utf-8")
        open_path = Path(folder) / "open.jsonl"
        open_path.write_text("")
        open_path.chmod(0o644)
        logs = refused("release: logs", {"open to others": (lambda: OperatorLog(open_path).write(view), Exception)})
    hidden = pickle.dumps(view)
    return [
        holds("release: values", release["rows"] == 3 and "inf" in text, "bare values come out, infinity as a word"),
        holds("release: operator view", "987654" in repr(view) or "operator" in repr(view), repr(view)),
        holds("release: pickles", b"987654" not in hidden, "an operator's values do not travel"),
        holds("release: log", closed and written, "the operator's log is the operator's"),
        holds("release: evaluation", ours.because is not None and theirs.because is None, "public by a reason, or not"),
        logs,
        refused(
            "release: refusals",
            {
                "a bare number": (lambda: Release({"mean": 1.0}), PrivateValueError),  # type: ignore[dict-item]  # refused
                "an operator view": (lambda: Release({"view": public(view, "mine")}), PrivateValueError),
                "an operator view inside": (lambda: Release({"view": public([view], "mine")}), PrivateValueError),
                "a view that is charged": (lambda: Release({"view": charged(view, charge)}), PrivateValueError),
                "charged to nobody": (lambda: charged(1.0, None), Exception),  # type: ignore[arg-type]
                "evaluation data of both kinds": (
                    lambda: EvaluationData([1], because="a", dataset="b"),
                    PrivateValueError,
                ),
                "JSON of a view": (lambda: json.dumps(view), TypeError),
                "changed": (lambda: setattr(release, "mean", 2), Exception),
            },
        ),
    ]


SCENES = (
    Scene("ledger: sums", "ledger", sums_are_sums),
    Scene("ledger: Rényi", "ledger", renyi_rules_hold),
    Scene("ledger: terms", "ledger", terms_are_kept),
    Scene("ledger: refusals", "ledger", refusals_help),
    Scene("ledger: rows", "ledger", rows_cannot_be_changed),
    Scene("ledger: releases", "ledger", releases_hold_what_may_leave),
)
