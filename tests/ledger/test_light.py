"""The core of the ledger needs numpy and scipy only, for the sake of the accountant."""

from __future__ import annotations

import subprocess
import sys

ALONE = """
import sys

class OnlyNumpyAndScipy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"sqlalchemy", "psycopg", "torch", "sklearn", "polars", "typer", "rich"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyNumpyAndScipy())
from tacit import accounting as acc
from tacit.ledger import Ledger, LedgerError

ledger = Ledger()
ledger.register("people", epsilon=1.0, delta=1e-5)
with ledger.charge("people", acc.Gaussian(10.0)):
    pass
ledger.verify(reprice=True).require()
try:
    Ledger("people.db")
except LedgerError as error:
    print(error)
"""


def test_a_ledger_in_memory_needs_no_database_package(tmp_path):
    told = subprocess.run([sys.executable, "-c", ALONE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "pip install sqlalchemy" in told.stdout


def test_importing_the_core_loads_no_database_package():
    code = "import sys, tacit.ledger; print([m for m in ('sqlalchemy', 'torch', 'sklearn') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
