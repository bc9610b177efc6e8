"""tacit: differentially private machine learning with a certified guarantee.

The rooms of the house are imported when they are first used, so that ``import tacit`` stays light:

>>> import tacit
>>> bound = tacit.accounting.epsilon(tacit.accounting.Gaussian(5.0), delta=1e-5)
>>> bound.lower <= bound.upper
True
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_ROOMS = (
    "accounting",
    "additive",
    "audit",
    "datasets",
    "integrations",
    "ledger",
    "linear_model",
    "noise",
    "opacus",
    "pate",
    "prompts",
    "report",
    "runs",
    "schema",
    "selftest",
    "sgd",
    "tuning",
)
_NAMES = {
    "Ledger": "tacit.ledger",
    "Schema": "tacit.schema",
    "doctor": "tacit.runs.doctor",
    "run": "tacit.runs.program",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"tacit.{name}")
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOMS, *_NAMES])
