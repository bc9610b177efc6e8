"""What is a scene? A check of one promise from outside, with a name, the room that it looks at and what it needs."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from tacit import accounting as acc
from tacit.audit.findings import Finding, holds
from tacit.ledger import Ledger

#: Probability that tacit as it is raises an alarm in one run of the selftest.
FAMILY_WISE = 1e-6
#: No more findings that leave something to chance than this, in all scenes together.
MOST = 200
#: The part of it that each finding has.
SIGNIFICANCE = FAMILY_WISE / MOST

#: A check gets a seed for made-up data and says what it found.
Check = Callable[[int], list[Finding]]


@dataclasses.dataclass(frozen=True)
class Scene:
    """One check: its name, the room whose promise it checks, the check, and the packages that it needs.

    ``long`` says that it adds little to the others for its time: ``--quick`` leaves it out. Every room has others.
    """

    name: str
    room: str
    check: Check
    needs: tuple[str, ...] = ()
    long: bool = False

    def missing(self) -> list[str]:
        """Packages that it needs and that are not installed."""
        return [package for package in self.needs if importlib.util.find_spec(package) is None]


def refused(
    check: str, cases: Mapping[str, tuple[Callable[[], object], type[Exception] | tuple[type[Exception], ...]]]
) -> Finding:
    """Whether every case raises the error that it should; another error is no refusal.

    >>> refused("numbers", {"not a number": (lambda: int("x"), ValueError), "a number": (lambda: int("1"), ValueError)})
    Finding(check='numbers', p_value=0.0, detail='accepted: a number', best='', powered=True)
    """
    accepted = []
    for name, (work, errors) in cases.items():
        try:
            work()
        except errors:
            continue
        except Exception as error:  # noqa: BLE001 the wrong error is a finding
            accepted.append(f"{name} ({type(error).__name__}: {error})")
        else:
            accepted.append(name)
    return holds(check, not accepted, f"accepted: {'; '.join(accepted)}" if accepted else f"{len(cases)} cases refused")


def ledger_of(epsilon: float = 1000.0, delta: float = 1e-2, **more: Any) -> Ledger:
    """A ledger in memory with one data set, ``people``."""
    ledger = Ledger()
    ledger.register("people", epsilon=epsilon, delta=delta, **more)
    return ledger


def charged(ledger: Ledger, delta: float, adjacency: str = "add-remove", dataset: str = "people") -> float:
    """The ε of all that was charged, at δ, by what the entries describe."""
    total: acc.Mechanism | None = None
    for record in ledger.history(dataset):
        mechanism = getattr(record, "mechanism", None)
        if mechanism is not None:
            total = mechanism if total is None else total + mechanism
    return 0.0 if total is None else acc.epsilon(total, delta, adjacency=adjacency).upper
