"""How many charges a second does the service grant to 16 clients, and how long does one wait?

Starts ``tacit ledger serve`` on the loopback address with signed heads, and 16 threads that charge without a pause.
``python -m benchmarks.ledger_load --clients 16 --seconds 20``
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import tacit
from tacit import accounting as acc
from tacit.ledger.signing import SigningKey
from tacit.ledger.tokens import Tokens


def main() -> None:
    """Serve, charge, and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--ledger", default=None, help="an address of PostgreSQL; a SQLite file by default")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = Tokens(folder / "tokens.json")
        owner, analyst = tokens.add("olga", "owner"), tokens.add("ana", "analyst")
        SigningKey.make(folder / "ledger.key")
        words = [
            "ledger",
            "serve",
            asked.ledger or str(folder / "people.db"),
            "--tokens",
            str(tokens.path),
            "--port",
            "0",
        ]
        words += ["--key", str(folder / "ledger.key"), "--rate", "100000", "--log", str(folder / "log")]
        server = subprocess.Popen([sys.executable, "-m", "tacit", *words], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        try:
            tacit.Ledger(address.replace("//", f"//:{owner}@")).register("load", epsilon=1e9, delta=0.0)
            took: list[float] = []
            until = time.perf_counter() + asked.seconds

            def work() -> None:
                ledger = tacit.Ledger(address.replace("//", f"//:{analyst}@"))
                while time.perf_counter() < until:
                    start = time.perf_counter()
                    ledger.charge("load", acc.PureDP(0.001))
                    took.append((time.perf_counter() - start) * 1000)

            workers = [threading.Thread(target=work) for _ in range(asked.clients)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            ledger = tacit.Ledger(address.replace("//", f"//:{analyst}@"))
            assert ledger.budget("load").charges == len(took)
        finally:
            server.terminate()
            server.wait()
    took.sort()
    print(
        json.dumps(
            {
                "clients": asked.clients,
                "charges": len(took),
                "charges_per_second": round(len(took) / asked.seconds, 1),
                "median_ms": round(statistics.median(took), 1),
                "p99_ms": round(took[int(0.99 * (len(took) - 1))], 1),
            }
        )
    )


if __name__ == "__main__":
    main()
