"""What do I show my data-protection officer? The privacy card (JSON) and the report (one HTML file).

Both are built from a :class:`tacit.ledger.Release`, which holds only values that were charged to a ledger or are
public.

>>> from tacit import accounting as acc
>>> from tacit.report import Run, make_card
>>> card = make_card(Run("example", acc.PoissonSampled(acc.Gaussian(2.0), 0.01) * 100, delta=1e-6))
>>> card["guarantee"]["epsilon"]["claimed"]
0.228
>>> card.source("guarantee")
'release'
"""

from tacit.report.card import CardError, make_card, read_card, sources, to_json, write_card
from tacit.report.check import schema
from tacit.report.page import make_page, write_page
from tacit.report.run import Evaluation, PublicSource, Run, Statement, columns_of, describe, describe_fit

__all__ = [
    "CardError",
    "Evaluation",
    "PublicSource",
    "Run",
    "Statement",
    "columns_of",
    "describe",
    "describe_fit",
    "make_card",
    "make_page",
    "read_card",
    "schema",
    "sources",
    "to_json",
    "write_card",
    "write_page",
]
