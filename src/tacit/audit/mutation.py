"""Would a broken version be caught? Every mutant against the battery, and the library as it is.

The correct version must pass all checks; every mutant must fail one. The checks stop at the first that speaks up,
which is the one in the table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tacit.audit.battery import SIGNIFICANCE, battery
from tacit.audit.findings import Finding
from tacit.audit.mutants import MUTANTS, Mutant
from tacit.sgd.errors import ClippingError

CORRECT = "tacit as it is"


@dataclasses.dataclass(frozen=True)
class MutantOutcome:
    """One row of the table: who was tested, which check spoke up (none: empty), and what it saw."""

    name: str
    family: str
    caught_by: str
    detail: str
    p_value: float
    seconds: float
    later: bool = False

    @property
    def caught(self) -> bool:
        """Whether a check spoke up."""
        return bool(self.caught_by)

    @property
    def good(self) -> bool:
        """Whether this is as it should be: a mutant is caught, the correct version is not."""
        return self.caught != (self.name == CORRECT)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self) | {"caught": self.caught, "good": self.good}


#: Which checks are tried first: every mutant meets the same checks, in an order that wastes less time.
FIRST = {
    "noise": ("noise",),
    "sampling": ("sampling", "steps"),
    "accounting": ("prices", "stopping", "ledger", "resume"),
    "sensitivity": ("bounded",),
    "ranks": ("ranks",),
    "tables": ("rows alone", "table", "votes", "selection"),
}


def first_failure(seed: int, mutant: Mutant | None = None) -> Finding | None:
    """The first finding that speaks up at its part of the family-wise significance; None where all is well."""
    hints = () if mutant is None else FIRST[mutant.family if mutant.room == "sgd" else "tables"]
    checks = battery()
    for name in sorted(checks, key=lambda name: not name.startswith(hints) if hints else False):
        check = checks[name]
        try:
            findings = check(seed)
        except ClippingError as error:  # the library's own self-check stopped it
            return Finding(f"self-check ({name})", 0.0, str(error))
        for finding in findings:
            if not finding.passes(SIGNIFICANCE):
                return finding
    return None


def run_one(mutant: Mutant | None, seed: int = 0) -> MutantOutcome:
    """Test one mutant, or (None) the library as it is."""
    began = time.monotonic()
    patch: AbstractContextManager[None] = contextlib.nullcontext() if mutant is None else mutant.apply()
    with patch:
        found = first_failure(seed, mutant)
    name, family, later = (CORRECT, "", False) if mutant is None else (mutant.name, mutant.family, mutant.later)
    seconds = time.monotonic() - began
    if found is None:
        return MutantOutcome(name, family, "", "", 1.0, seconds, later)
    return MutantOutcome(name, family, found.check, found.detail, found.p_value, seconds, later)


def selftest(
    seed: int = 0, names: tuple[str, ...] | None = None, tell: Callable[[str], None] = lambda name: None
) -> Iterator[MutantOutcome]:
    """The correct version, then every mutant, one outcome at a time; ``tell`` hears what is about to be tested.

    ``names`` are parts of the names of mutants to restrict it to.
    """
    chosen = [m for m in MUTANTS.values() if names is None or any(n.lower() in m.name.lower() for n in names)]
    if names is not None and not chosen:
        raise ValueError(f"no mutant is called like {', '.join(names)}; there are {', '.join(MUTANTS)}")
    tell(CORRECT)
    yield run_one(None, seed)
    for mutant in chosen:
        tell(mutant.name)
        yield run_one(mutant, seed)
