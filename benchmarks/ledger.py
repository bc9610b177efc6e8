"""How many charges a second does the ledger's service grant, and how long does one take after a million entries?

``python -m benchmarks ledger load`` starts ``tacit ledger serve`` on the loopback address with signed heads, and 16
threads that charge without a pause. ``python -m benchmarks ledger scale`` writes a true, signed chain of a million
entries (``verify`` accepts it), then times each operation of a ledger object that opens the file for the first time.
Without a word both are run. With ``--ledger`` the load is that on a database of PostgreSQL, and the same million
entries are copied into it and timed there too.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tacit
from tacit import accounting as acc
from tacit.ledger.entries import ChainHead, chained
from tacit.ledger.rules import price_of
from tacit.ledger.signing import SigningKey
from tacit.ledger.state import State, charged
from tacit.ledger.tokens import Tokens


def load(clients: int, seconds: float, where: str | None) -> dict[str, Any]:
    """Charges of many clients on one data set of a service, and how long each waited."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = Tokens(folder / "tokens.json")
        owner, analyst = tokens.add("olga", "owner"), tokens.add("ana", "analyst")
        SigningKey.make(folder / "ledger.key")
        words = ["serve", where or str(folder / "people.db"), "--tokens", str(tokens.path), "--port", "0"]
        words += ["--key", str(folder / "ledger.key"), "--rate", "100000", "--log", str(folder / "log")]
        words += ["--anchor", str(folder / "heads.jsonl")]
        server = subprocess.Popen([sys.executable, "-m", "tacit", "ledger", *words], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        took: list[float] = []
        try:
            data = f"load {uuid.uuid4().hex}"
            tacit.Ledger(address.replace("//", f"//:{owner}@")).register(data, epsilon=1e9, delta=0.0)
            until = time.perf_counter() + seconds

            def work() -> None:
                ledger = tacit.Ledger(address.replace("//", f"//:{analyst}@"))
                while time.perf_counter() < until:
                    start = time.perf_counter()
                    ledger.charge(data, acc.PureDP(0.001))
                    took.append((time.perf_counter() - start) * 1000)

            workers = [threading.Thread(target=work) for _ in range(clients)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            with open(f"/proc/{server.pid}/stat") as stat:
                ticks = sum(int(field) for field in stat.read().rpartition(")")[2].split()[11:13])
            assert tacit.Ledger(address.replace("//", f"//:{analyst}@")).budget(data).charges == len(took)
        finally:
            server.terminate()
            server.wait()
    took.sort()
    return {
        "clients": clients,
        "charges": len(took),
        "charges_per_second": round(len(took) / seconds, 1),
        "median_ms": round(statistics.median(took), 1),
        "p99_ms": round(took[int(0.99 * (len(took) - 1))], 1),
        "processor_of_the_service_s": round(ticks / os.sysconf("SC_CLK_TCK"), 1),
    }


def fill(path: Path, key: Path, entries: int) -> None:
    """A chain of reservations, byte for byte as the ledger itself would have written them, in one transaction."""
    ledger, signer = tacit.Ledger(path, key=key), SigningKey.load(key)
    terms = ledger.register("people", epsilon=1e9, delta=1e-5, unit="person")
    mechanism = acc.Gaussian(50.0, unit="person")
    price = price_of(terms.rule, mechanism, terms.charge_delta, terms.adjacency)
    last, state = ledger._store.first("people"), State()
    root, time_written = last.hash, "2999-01-01T00:00:00+00:00"
    always = {"kind": "reserve", "mechanism": mechanism.to_dict(), "purpose": "a mean", "price": price.to_dict()}
    always |= {"data": None, "time": time_written}
    index: list[tuple[str, str, int]] = []

    def rows() -> Iterator[tuple[str, int, str, str]]:
        nonlocal last, state
        for number in range(1, entries):
            found = charged(terms, state, price, time_written, "", None)
            assert not isinstance(found, str)
            state = found
            charge = secrets.token_hex(16)
            last = chained("people", last, {**always, "root": root, "charge": charge, **state.to_dict()})
            index.extend((("people", f"charge:{charge}", number), ("people", "reserve", number)))
            yield last.dataset, last.seq, last.body, last.hash

    with sqlite3.connect(path) as connection:
        for words in ("synchronous=OFF", "journal_mode=OFF", "cache_size=-200000"):
            connection.execute(f"PRAGMA {words}")
        [(by_key,)] = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'tacit_index_by_key'")
        triggers = list(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DROP INDEX tacit_index_by_key")
        connection.executemany("INSERT INTO tacit_entries VALUES (?, ?, ?, ?)", rows())
        connection.executemany("INSERT INTO tacit_index VALUES (?, ?, ?)", sorted(index))
        heads = connection.execute("SELECT seq, hash FROM tacit_entries WHERE seq > 0")
        seals = (("people", seq, signer.seal("people", ChainHead(seq, hash_))) for seq, hash_ in heads.fetchall())
        connection.executemany("INSERT INTO tacit_seals VALUES (?, ?, ?)", seals)
        signed = (last.seq, last.hash, signer.sign("people", last.head))
        connection.execute("UPDATE tacit_heads SET seq = ?, hash = ?, signature = ?", signed)
        for sql in (by_key, *(statement for _, statement in triggers)):
            connection.execute(sql)


def copy(path: Path, where: str) -> None:
    """The same chain in a database of PostgreSQL, whose tables and triggers the ledger itself makes."""
    import psycopg

    assert "people" not in tacit.Ledger(where).datasets(), "the database holds such a chain already"
    with sqlite3.connect(path) as source, psycopg.connect(where) as target, target.cursor() as cursor:
        for table in ("entries", "index", "seals", "heads"):
            with cursor.copy(f"COPY tacit_{table} FROM STDIN") as out:
                for row in source.execute(f"SELECT * FROM tacit_{table}"):
                    out.write_row(row)
    with psycopg.connect(where, autocommit=True) as target:
        target.execute("ANALYZE")


def timed(path: Path | str, key: Path, repeats: int = 20) -> dict[str, dict[str, float]]:
    """Milliseconds of each operation by the clock and of the processor; a new object for each remembers nothing."""
    mechanism = acc.Gaussian(50.0, unit="person")
    number = tacit.Ledger(path, key=key).charge("people", mechanism).number
    operations: dict[str, Callable[[tacit.Ledger], Any]] = {
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
            ledger = tacit.Ledger(path, key=key)
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


def scale(entries: int, *, verify: bool, where: str | None = None) -> dict[str, Any]:
    """Each operation in a ledger with so many entries: a file, and a database if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        path, key = Path(folder) / "people.db", Path(folder) / "ledger.key"
        SigningKey.make(key)
        start = time.perf_counter()
        fill(path, key, entries)
        result: dict[str, Any] = {"entries": entries, "fill_s": round(time.perf_counter() - start, 1)}
        result |= {"times": timed(path, key), "file_mb": round(path.stat().st_size / 1e6)}
        if where is not None:
            copy(path, where)
            result["times in PostgreSQL"] = timed(where, key)
        if verify:
            start = time.perf_counter()
            assert tacit.Ledger(path).verify(public_key=SigningKey.load(key).public).ok
            result["verify_s"] = round(time.perf_counter() - start, 1)
    return result


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is asked for, and print JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ledger")
    parser.add_argument("what", nargs="?", choices=["load", "scale", "both"], default="both")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--ledger", default=None, help="a database of PostgreSQL; by default a SQLite file")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--verify", action="store_true", help="check the whole chain too")
    asked = parser.parse_args(argv)
    found: dict[str, Any] = {"busy": os.getloadavg()[0]}
    if asked.what != "scale":
        found["load"] = load(asked.clients, asked.seconds, asked.ledger)
    if asked.what != "load":
        found["scale"] = scale(asked.entries, verify=asked.verify, where=asked.ledger)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
