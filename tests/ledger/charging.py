"""A process that charges: ``charging.py ADDRESS COUNT [--slow-start]``.

Writes a line with the number of each charge after it was granted and one ``refused`` for each that was not, straight to
the operating system, so that a kill cannot lose a line that was written.
"""

from __future__ import annotations

import os
import sys

from tacit import accounting as acc
from tacit.ledger import BudgetExceeded, Ledger


def main(address: str, count: int) -> None:
    ledger = Ledger(address)
    mechanism = acc.PureDP(0.01)
    os.write(1, b"ready\n")
    sys.stdin.readline()  # all processes begin together
    for _ in range(count):
        try:
            charge = ledger.charge("people", mechanism, delta=0.0, purpose="a count")
        except BudgetExceeded:
            os.write(1, b"refused\n")
            continue
        os.write(1, f"{charge.number}\n".encode())
        charge.confirm()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
