"""What does one check say? A finding: a p-value, what was seen, and the smallest fault that it would have seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

#: Probability that any check of a battery speaks up although nothing is wrong.
FAMILY_WISE = 1e-4


@dataclasses.dataclass(frozen=True)
class Finding:
    """``p_value`` is 0 where a contradiction was seen that chance cannot explain, 1 where nothing was odd.

    ``best`` says what the check could at best have seen; ``powered`` is false where that is too little to mean
    anything.
    """

    check: str
    p_value: float
    detail: str
    best: str = ""
    powered: bool = True

    def passes(self, significance: float) -> bool:
        """Whether nothing is wrong at this significance."""
        return self.p_value >= significance

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def holds(check: str, true: bool, detail: str, best: str = "") -> Finding:
    """A finding about a statement that is true or not, without chance.

    >>> holds("steps", 3 == 3, "3 steps were released").p_value
    1.0
    """
    return Finding(check, 1.0 if true else 0.0, detail, best)


def verdict(findings: Iterable[Finding], significance: float = FAMILY_WISE) -> str:
    """``fail`` where a check speaks up at its part of the significance, ``underpowered`` where one had too little to
    go by, else ``pass``.

    >>> verdict([Finding("a", 0.3, ""), Finding("b", 1e-9, "")])
    'fail'
    """
    found = list(findings)
    if failures(found, significance):
        return "fail"
    return "pass" if found and all(f.powered for f in found) else "underpowered"


def failures(findings: Sequence[Finding], significance: float = FAMILY_WISE) -> list[Finding]:
    """The findings that speak up; each statistical check has an equal part of the significance."""
    return [f for f in findings if not f.passes(significance / max(1, len(findings)))]
