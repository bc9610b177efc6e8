"""What does one check say? A finding: a p-value, what it saw, and the smallest fault that it would have seen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

#: Probability that any check of a battery raises a false alarm.
FAMILY_WISE = 1e-4
#: The same for all tests of the record of a run's canaries, and for the refutation of its (ε, δ) by their scores. With
#: the canaries of a run, those of its repeat and the checks of the implementation a true claim fails 1 time in 200.
RECORD_ALARM, SCORES_ALARM = 1.9e-3, 5e-4
#: The least power that a pass needs.
ENOUGH = 0.95
#: Lies about the noise: what is left of it.
THINNER = {"95% of the noise": 0.95, "half the noise": 0.5, "no noise": 0.0}


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        check: Name of the check.
        p_value: How probable this result, or a worse one, is if nothing is wrong. A check that leaves nothing to chance
            gives 0 for a contradiction and 1 otherwise.
        detail: What the check saw, in words.
        best: The smallest fault that it would have seen, in words; empty if that is not known.
        powered: False if the check had too little to go by, so that passing it means nothing.

    Example:
        >>> Finding("steps released", 1.0, "20 of 20 steps released noise").passes(1e-4)
        True
    """

    check: str
    p_value: float
    detail: str
    best: str = ""
    powered: bool = True

    def passes(self, significance: float) -> bool:
        """Whether the check raises no alarm.

        Args:
            significance: The probability of a false alarm that this check may have.

        Returns:
            True if the p-value is not smaller than that.
        """
        return self.p_value >= significance

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Power:
    """With which probability an audit finds a lie.

    Args:
        lie: What a run might have done in place of what it claims.
        probability: The probability that the audit would have refuted it: a lower bound, or an estimate where only
            scores are known.
        by: What it would have been found by.
        needed: Whether an audit with a smaller probability than 95% is underpowered.

    Example:
        >>> str(Power("half the noise", 0.5, "the scores of 200 canaries"))
        'half the noise would have been found with probability 0.50, by the scores of 200 canaries'
    """

    lie: str
    probability: float
    by: str
    needed: bool = False

    @property
    def enough(self) -> bool:
        """Whether a pass says something about this lie."""
        return self.probability >= ENOUGH

    @property
    def shown(self) -> str:
        """The probability, rounded down: no power is stated that is not there."""
        return "1" if self.probability >= 1 else f"{math.floor(self.probability * 100) / 100:.2f}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.lie} would have been found with probability {self.shown}, by {self.by}"


def holds(check: str, true: bool, detail: str, best: str = "") -> Finding:
    """A finding about a statement that is either true or false and leaves nothing to chance.

    >>> holds("steps", 3 == 3, "3 steps were released").p_value
    1.0
    """
    return Finding(check, 1.0 if true else 0.0, detail, best)


def verdict(findings: Iterable[Finding], significance: float = FAMILY_WISE) -> str:
    """``fail`` if a check raises an alarm at its part of the significance, ``underpowered`` if one had too little to
    go by, else ``pass``.

    >>> verdict([Finding("a", 0.3, ""), Finding("b", 1e-9, "")])
    'fail'
    """
    found = list(findings)
    if failures(found, significance):
        return "fail"
    return "pass" if found and all(f.powered for f in found) else "underpowered"


def failures(findings: Sequence[Finding], significance: float = FAMILY_WISE) -> list[Finding]:
    """The findings that raise an alarm; each check has an equal part of the significance."""
    return [f for f in findings if not f.passes(significance / max(1, len(findings)))]
