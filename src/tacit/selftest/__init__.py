"""Would a fault in tacit be noticed? Scenes that look at every room from outside, and mutants that they must catch.

- :func:`examine`: does the installed library keep its promises, here and now, and how much of it was looked at?
- :func:`try_mutants`: would a broken version of it be caught?

>>> from tacit.selftest import examine
>>> examine(names=("stopping",), reach=False).passes
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.selftest.examination import Examination, examine
    from tacit.selftest.mutation import MutantOutcome, try_mutants
    from tacit.selftest.reach import Reach

#: Where each name lives: the scenes import every room, so nothing is imported before it is used.
_WHERE = {
    "Examination": "examination",
    "MutantOutcome": "mutation",
    "Reach": "reach",
    "examine": "examination",
    "try_mutants": "mutation",
}

__all__ = ["Examination", "MutantOutcome", "Reach", "examine", "try_mutants"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"tacit.selftest.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
