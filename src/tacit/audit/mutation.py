"""Would a broken version be caught? Every mutant is run against the checks, and so is the library as it is.

The correct version must pass all checks, and every mutant must fail one. The table shows the first check that fails;
the rest are then not run.
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
    """One row of the selftest: which version was tested, and which check caught it.

    Args:
        name: Name of the mutant, or ``tacit as it is``.
        family: What the mutant breaks: ``noise``, ``sensitivity``, ``sampling``, ``accounting`` or ``ranks``; empty for
            the correct version.
        caught_by: The check that caught it; empty if none did.
        detail: What that check saw.
        p_value: The p-value of that check; 1 if none caught it.
        seconds: How long the test took.
        later: Whether the mutant was written after the checks were frozen.

    Example:
        >>> outcome = MutantOutcome("noise × 0.9", "noise", "noise variance", "standard deviation 0.9", 0.0, 2.1)
        >>> outcome.caught, outcome.good
        (True, True)
    """

    name: str
    family: str
    caught_by: str
    detail: str
    p_value: float
    seconds: float
    later: bool = False

    @property
    def caught(self) -> bool:
        """Whether a check caught it."""
        return bool(self.caught_by)

    @property
    def good(self) -> bool:
        """Whether the outcome is right: a mutant is caught, the correct version is not."""
        return self.caught != (self.name == CORRECT)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self) | {"caught": self.caught, "good": self.good}


#: Which checks run first: every mutant meets the same checks, in an order that saves time.
FIRST = {
    "noise": ("noise",),
    "sampling": ("sampling", "steps"),
    "accounting": ("prices", "stopping", "ledger", "resume"),
    "sensitivity": ("bounded",),
    "ranks": ("ranks",),
    "tables": ("rows alone", "table", "votes", "selection"),
}


def first_failure(seed: int, mutant: Mutant | None = None) -> Finding | None:
    """The first finding that raises an alarm at its part of the family-wise significance; None if none does."""
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
    """Break tacit in many ways, one after the other, and see whether each is caught.

    The library as it is comes first and must pass. ``tacit selftest`` prints the same as a table.

    Args:
        seed: Seed of the made-up data; noise is always fresh.
        names: Parts of the names of mutants to test; None tests them all, which takes minutes.
        tell: Called with the name of each version before it is tested.

    Returns:
        An iterator that yields one outcome per version, as soon as it is known.

    Raises:
        ValueError: If no mutant has one of ``names`` in its name.

    Example:
        >>> from tacit.audit import selftest
        >>> outcomes = selftest(names=("noise × 0.5",))  # nothing runs before the first outcome is asked for
        >>> [outcome.good for outcome in outcomes]  # doctest: +SKIP
        [True, True]
    """
    chosen = [m for m in MUTANTS.values() if names is None or any(n.lower() in m.name.lower() for n in names)]
    if names is not None and not chosen:
        raise ValueError(f"no mutant has {' or '.join(names)} in its name; there are: {', '.join(MUTANTS)}")
    tell(CORRECT)
    yield run_one(None, seed)
    for mutant in chosen:
        tell(mutant.name)
        yield run_one(mutant, seed)
