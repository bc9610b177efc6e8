"""Spend a budget, be refused with advice, and check the record.

Run it with ``python -m examples.ledger_budget``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import tacit
from tacit import accounting as acc
from tacit.ledger import BudgetExceeded, OperatorView, Release, charged, public
from tacit.noise import add_laplace


def main() -> None:
    """A training and a count on one data set, and a second training that does not fit."""
    ages = np.random.default_rng(0).integers(18, 90, size=1000)  # stands for a private column
    with tempfile.TemporaryDirectory() as folder:
        ledger = tacit.Ledger(Path(folder) / "people.db")
        ledger.register("people", fingerprint=ages, unit="person", epsilon=3.0, delta=1e-6)

        step = acc.PoissonSampled(acc.Gaussian(1.1, unit="person"), rate=0.01)
        with ledger.charge("people", step * 500, purpose="income model") as charge:
            pass  # the training runs here; were it killed, the charge would stay
        print(charge)

        try:
            ledger.charge("people", step * 5000, purpose="a longer training")
        except BudgetExceeded as refused:
            print("refused:", refused)
        else:
            raise SystemExit("a charge over the budget was granted")

        # A release holds charged and public values only; what private data gave without noise stays with the operator.
        with ledger.charge("people", acc.Laplace(10.0, unit="person"), delta=0.0, purpose="people over 65") as count:
            exact = int((ages > 65).sum())
            noisy = add_laplace(exact, 10.0)
        card = Release({"people_over_65": charged(noisy, count), "head": public(count.head)})
        print(card.to_json())
        print(OperatorView(exact_count=exact))

        print(ledger.budget("people"))
        ledger.verify("people", heads=[card["head"]], reprice=True).require()
        print("the ledger holds")


if __name__ == "__main__":
    main()
