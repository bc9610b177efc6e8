"""How long do a charge, a quote, a budget, a head and a resume take in a ledger with a million entries?

Writes a true chain of that many entries (``verify`` accepts it), then times each operation in a process that opens the
file for the first time, 20 times. ``python -m benchmarks.ledger_scale --entries 1000000``
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
import uuid
from pathlib import Path

from tacit import accounting as acc
from tacit.ledger import Ledger
from tacit.ledger.entries import chained, keys_of
from tacit.ledger.rules import price_of
from tacit.ledger.state import State, charged


def fill(path: Path, entries: int) -> None:
    """A chain of reservations, as the ledger itself would have written them, in one transaction."""
    ledger = Ledger(path)
    terms = ledger.register("people", epsilon=1e9, delta=1e-5, unit="person")
    mechanism = acc.Gaussian(50.0, unit="person")
    price = price_of(terms.rule, mechanism, terms.charge_delta, terms.adjacency)
    last, state = ledger._store.first("people"), State()
    rows, index = [], []
    with sqlite3.connect(path) as connection:
        for number in range(1, entries):
            found = charged(terms, state, price, last.read()["time"], "", None)
            assert not isinstance(found, str)
            state = found
            entry = {
                "kind": "reserve", "charge": uuid.uuid4().hex, "mechanism": mechanism.to_dict(), "purpose": "a mean",
                "price": price.to_dict(), "data": None, "time": "2999-01-01T00:00:00+00:00", **state.to_dict(),
            }  # fmt: skip
            last = chained("people", last, entry)
            rows.append((last.dataset, last.seq, last.body, last.hash))
            index += [("people", key, last.seq) for key in keys_of(entry)]
            if len(rows) == 10_000 or number == entries - 1:
                connection.executemany("INSERT INTO tacit_entries VALUES (?, ?, ?, ?)", rows)
                connection.executemany("INSERT INTO tacit_index VALUES (?, ?, ?)", index)
                rows, index = [], []
        connection.execute("DROP TRIGGER tacit_heads_forward")
        connection.execute("UPDATE tacit_heads SET seq = ?, hash = ?", (last.seq, last.hash))


def timed(path: Path, repeats: int = 20) -> dict[str, dict[str, float]]:
    """Milliseconds of each operation by the clock and of the processor; a new object for each remembers nothing."""
    mechanism = acc.Gaussian(50.0, unit="person")
    number = Ledger(path).charge("people", mechanism).number
    operations = {
        "charge": lambda ledger: ledger.charge("people", mechanism),
        "quote": lambda ledger: ledger.quote("people", mechanism),
        "budget": lambda ledger: ledger.budget("people"),
        "head": lambda ledger: ledger.head("people"),
        "resume": lambda ledger: ledger.resume("people", number),
        "record": lambda ledger: ledger.record("people", number),
        "history, a page of 100": lambda ledger: ledger.history("people", after=10, limit=100),
    }
    found = {}
    for name, operation in operations.items():
        took, worked = [], []
        for _ in range(repeats):
            ledger = Ledger(path)
            start, cpu = time.perf_counter(), time.process_time()
            operation(ledger)
            took.append((time.perf_counter() - start) * 1000)
            worked.append((time.process_time() - cpu) * 1000)
        found[name] = {
            "median_ms": round(statistics.median(took), 2),
            "worst_ms": round(max(took), 2),
            "processor_ms": round(statistics.median(worked), 2),
        }
    return found


def main() -> None:
    """Fill, time, and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--verify", action="store_true", help="check the whole chain too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.db"
        start = time.perf_counter()
        fill(path, asked.entries)
        result = {"entries": asked.entries, "fill_s": round(time.perf_counter() - start, 1), "times": timed(path)}
        result["file_mb"] = round(path.stat().st_size / 1e6)
        if asked.verify:
            start = time.perf_counter()
            assert Ledger(path).verify().ok
            result["verify_s"] = round(time.perf_counter() - start, 1)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
