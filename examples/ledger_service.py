"""An organisation shares a ledger: an owner, two analysts and an auditor, and an insider who raises a budget.

Run it with ``python -m examples.ledger_service``.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import tacit
from tacit import accounting as acc
from tacit.ledger import AccessDenied, BudgetExceeded, LedgerTampered
from tacit.linear_model import LinearRegression


def tacit_ledger(*words: object) -> str:
    """What ``tacit ledger …`` prints."""
    command = [sys.executable, "-m", "tacit", "ledger", *map(str, words)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """The address of ``tacit ledger serve``, on this machine and without TLS, while it runs."""
    words = [folder / "people.db", "--tokens", folder / "tokens.json", "--key", folder / "ledger.key", "--port", 0]
    words += ["--anchor", folder / "heads.jsonl", "--log", folder / "log.jsonl"]
    command = [sys.executable, "-m", "tacit", "ledger", "serve", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running.stdout.readline().strip()
        finally:
            running.terminate()


def main() -> None:
    """Register, split, fit, be refused, verify; then somebody writes into the database."""
    rng = np.random.default_rng(0)
    x = rng.random((500, 2))
    y = np.clip(x @ [0.3, 0.5] + 0.1 * rng.normal(size=500), 0, 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        public_key = tacit_ledger("key", folder / "ledger.key")
        people = {"olga": "owner", "ana": "analyst", "ben": "analyst", "dpo": "auditor"}
        add = ("token", "add", folder / "tokens.json")
        tokens = {who: tacit_ledger(*add, who, "--role", role, "--team", who) for who, role in people.items()}
        with service(folder) as address:
            # a person sets TACIT_LEDGER_TOKEN and gives the address alone
            olga, ana, ben, dpo = (tacit.Ledger(address.replace("//", f"//:{tokens[who]}@")) for who in people)
            olga.register("people", fingerprint=(x, y), epsilon=3.0, delta=1e-6)
            olga.split_budget("people", {"ana": 0.6, "ben": 0.4}, because="as agreed in March")

            fit = LinearRegression(epsilon=1.0, bounds=(0, 1), target_bounds=(0, 1), ledger=ana, dataset="people")
            print("ana fits", fit.fit(x, y).coef_.round(1))
            try:
                ben.charge("people", acc.Gaussian(1.0), purpose="too much")
            except BudgetExceeded as refused:
                print("ben is refused:", refused)
            try:
                ben.raise_budget("people", epsilon=100.0, delta=1e-6, because="I need it")
            except AccessDenied as refused:
                print("ben is refused:", refused)
            dpo.verify(public_key=public_key).require()
            print(dpo.budget("people"))

            with sqlite3.connect(folder / "people.db") as insider:
                insider.execute("DROP TRIGGER tacit_entries_fixed")
                insider.execute("UPDATE tacit_entries SET body = replace(body, '3.0', '9.9') WHERE seq = 0")
            try:
                ana.charge("people", acc.Gaussian(20.0), purpose="with a budget that nobody granted")
            except LedgerTampered as found:
                print("found:", found)
            else:
                raise SystemExit("a charge was granted on a budget that somebody wrote into the database")
            print("the auditor sees:", *dpo.verify(public_key=public_key).problems, sep="\n  ")


if __name__ == "__main__":
    main()
