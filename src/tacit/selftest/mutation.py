"""Would a broken version be caught? Every mutant is run against the scenes until one of them raises an alarm.

The scenes that look at what a mutant breaks come first; the rest follow only where none of these noticed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from tacit.audit.findings import Finding
from tacit.selftest.battery import battery
from tacit.selftest.examination import findings_of
from tacit.selftest.mutants import MUTANTS, Mutant
from tacit.selftest.scene import SIGNIFICANCE


@dataclasses.dataclass(frozen=True)
class MutantOutcome:
    """One row of the selftest: which broken version was tested, and which check caught it.

    Args:
        name: Name of the mutant.
        family: What the mutant breaks: ``noise``, ``sensitivity``, ``sampling``, ``accounting`` or ``ranks``.
        room: The room that it breaks.
        caught_by: The check that caught it; empty if none did.
        detail: What that check saw.
        p_value: The p-value of that check; 1 if none caught it.
        seconds: How long the test took.
        skipped: Why it was not tested: a package that it needs is not installed. Empty if it was.
        later: Whether the mutant was written after the checks were frozen.

    Example:
        >>> outcome = MutantOutcome("noise × 0.9", "noise", "sgd", "noise variance", "standard deviation 0.9", 0.0, 2.1)
        >>> outcome.caught, outcome.good
        (True, True)
    """

    name: str
    family: str
    room: str
    caught_by: str
    detail: str
    p_value: float
    seconds: float
    skipped: str = ""
    later: bool = False

    @property
    def caught(self) -> bool:
        """Whether a check caught it."""
        return bool(self.caught_by)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong: the mutant was caught, or could not be tested here."""
        return self.caught or bool(self.skipped)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self) | {"caught": self.caught, "good": self.good}


#: Which scenes of ``sgd`` run first, by what a mutant breaks.
FIRST = {
    "noise": ("noise",),
    "sampling": ("sampling", "steps"),
    "accounting": ("prices", "stopping", "charges", "resume"),
    "sensitivity": ("bounded",),
    "ranks": ("ranks",),
}


def first_failure(seed: int, mutant: Mutant) -> Finding | None:
    """The first finding that raises an alarm at its part of the family-wise significance; None if none does."""
    scenes = battery()

    def later(name: str) -> bool:
        if mutant.scenes or mutant.room == "sgd":
            return not name.startswith(mutant.scenes or FIRST[mutant.family])
        return scenes[name].room != mutant.room

    for name in sorted(scenes, key=later):
        if scenes[name].missing():
            continue
        for finding in findings_of(scenes[name], seed):
            if not finding.passes(SIGNIFICANCE):
                return finding
    return None


def run_one(mutant: Mutant, seed: int = 0) -> MutantOutcome:
    """Test one mutant."""
    began = time.monotonic()
    absent = mutant.missing()
    found = None
    if not absent:
        with mutant.apply():
            found = first_failure(seed, mutant)
    seconds = time.monotonic() - began
    skipped = f"{', '.join(absent)} is not installed" if absent else ""
    check, detail, p_value = ("", "", 1.0) if found is None else (found.check, found.detail, found.p_value)
    return MutantOutcome(
        mutant.name, mutant.family, mutant.room, check, detail, p_value, seconds, skipped, mutant.later
    )


def try_mutants(
    seed: int = 0, names: tuple[str, ...] | None = None, tell: Callable[[str], None] = lambda name: None
) -> Iterator[MutantOutcome]:
    """Break tacit in many ways, one after the other, and see whether each is caught.

    That tacit as it is passes every check is for :func:`examine` to show. ``tacit selftest`` does both.

    Args:
        seed: Seed of the made-up data; noise is always fresh.
        names: Parts of the names of mutants to test; None tests them all, which takes minutes.
        tell: Called with the name of each mutant before it is tested.

    Returns:
        An iterator that yields one outcome per mutant, as soon as it is known.

    Raises:
        ValueError: If no mutant has one of ``names`` in its name.

    Example:
        >>> from tacit.selftest import try_mutants
        >>> outcomes = try_mutants(names=("noise × 0.5",))  # nothing runs before the first outcome is asked for
        >>> [outcome.good for outcome in outcomes]  # doctest: +SKIP
        [True]
    """
    return _tried(chosen_mutants(names), seed, tell)


def chosen_mutants(names: tuple[str, ...] | None) -> list[Mutant]:
    """The mutants with one of these in their names."""
    chosen = [m for m in MUTANTS.values() if names is None or any(n.lower() in m.name.lower() for n in names)]
    if names is not None and not chosen:
        raise ValueError(f"no mutant has {' or '.join(names)} in its name; there are: {', '.join(MUTANTS)}")
    return chosen


def _tried(mutants: list[Mutant], seed: int, tell: Callable[[str], None]) -> Iterator[MutantOutcome]:
    for mutant in mutants:
        tell(mutant.name)
        yield run_one(mutant, seed)
