"""Which broken versions of itself must tacit catch? Mutants: what other libraries shipped, as patches of our own.

Importing a file of this folder registers its mutants in :data:`MUTANTS`; :mod:`tacit.selftest.mutation` runs them.
"""

from tacit.selftest.mutants import (
    accounting,
    correlated,
    fresh,
    later,
    noise,
    ranks,
    rooms,
    sampling,
    scenes,
    sensitivity,
)
from tacit.selftest.mutants.base import FAMILIES, MUTANTS, Mutant, mutant, replaced

__all__ = [
    "FAMILIES",
    "MUTANTS",
    "Mutant",
    "accounting",
    "correlated",
    "fresh",
    "later",
    "mutant",
    "noise",
    "ranks",
    "replaced",
    "rooms",
    "sampling",
    "scenes",
    "sensitivity",
]
