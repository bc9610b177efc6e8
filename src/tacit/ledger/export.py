"""What may others see of a ledger? The terms, charges and budget of a data set, as a release.

Everything in it is public: which mechanisms ran on the data, with which parameters, what each cost, and the purposes
that people wrote. The ledger's secret is not in it.
"""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from tacit.ledger.core import Ledger
from tacit.ledger.release import Release, public

COLUMNS = ("seq", "time", "charge", "state", "purpose", "mechanism", "epsilon", "delta")


def export(ledger: Ledger, dataset: str) -> Release:
    """Terms, budget, charges and head of a data set.

    >>> ledger = Ledger()
    >>> _ = ledger.register("people", epsilon=1.0, delta=1e-5)
    >>> export(ledger, "people")["charges"]
    []
    """
    budget = ledger.budget(dataset)
    plain: dict[str, Any] = budget.to_dict()
    terms = plain.pop("terms")
    plain = {key: value for key, value in plain.items() if key not in ("dataset", "rule", "charges", "head")}
    records = [record.to_dict() | {"words": record.words} for record in ledger.history(dataset)]
    why = "how the data were used, not what they contain"
    return Release(
        {
            "dataset": public(dataset, "chosen by the operator"),
            "terms": public(terms, "declared at registration; the fingerprint is keyed"),
            "budget": public(plain, why),
            "charges": public(records, why),
            "changes": public([change.to_dict() for change in ledger.changes(dataset)], "decisions of its owner"),
            "head": public(budget.head, "hash of public entries"),
        }
    )


def to_csv(release: Release) -> str:
    """The charges of an export as a table."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for record in release["charges"]:
        row = {**record, "mechanism": record["words"]}
        table.writerow([_cell(row[column]) for column in COLUMNS])
    return text.getvalue()


def _cell(value: Any) -> Any:
    # A spreadsheet runs a text that begins like a formula, also behind blanks, tabs and line ends, in wide letters, and
    # behind a semicolon, where that ends a cell.
    if not isinstance(value, str):
        return value
    plain = "".join(" " if not c.isprintable() else c for c in value)
    return re.sub(r"(^|;)(\s*)(?=[=+\-@|%\uff1d\uff0b\uff0d\uff20])", r"\1'\2", plain)
