"""What do similar public data say? Tuning that costs nothing, and a statement of it for the card.

Learning rate, clip norm and batch size carry over well between data of the same kind (census to census, small pictures
to small pictures) when the noise is the same. Nothing private is touched, so any number of looks is free; whether the
people who are protected may be in the public data too is for the user to say on the card.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from tacit.tuning.errors import TuningError
from tacit.tuning.space import Candidate, Space


@dataclasses.dataclass(frozen=True)
class PublicTuning:
    """The best candidate on public data, and all of what was seen, which is public too."""

    best: Candidate
    score: float
    table: tuple[tuple[Candidate, float], ...]
    because: str

    def for_card(self) -> dict[str, Any]:
        """The fields of a :class:`tacit.report.Run` that say how hyper-parameters were chosen."""
        return {
            "tuning": "on public data only",
            "tuning_note": f"{len(self.table)} candidates were tried on public data ({self.because}), at no cost.",
        }


def tune_on_public(
    space: Any,
    train: Callable[[Candidate], Any],
    score: Callable[[Any], float],
    *,
    because: str,
    trials: int | None = None,
    repeats: int = 1,
) -> PublicTuning:
    """Try every candidate of a grid (or ``trials`` random ones) on public data; nothing is charged.

    ``train(candidate)`` trains on public data, with the noise that the private run will have, or the transfer misleads;
    ``score(model)``, the larger the better, is taken on public data as well, and averaged over ``repeats`` trainings.
    ``because`` says why these data protect nobody; it goes on the card.

    >>> found = tune_on_public({"a": [1, 2, 3]}, lambda c: c["a"], lambda model: -abs(model - 2), because="made up")
    >>> found.best, found.for_card()["tuning"]
    ({'a': 2}, 'on public data only')
    """
    if not because or not because.strip():
        raise TuningError("because: say why the data that are tuned on are public")
    if repeats < 1 or (trials is not None and trials < 1):
        raise TuningError("trials and repeats are positive whole numbers")
    where = Space(space)
    if trials is None:
        if where.candidates is None:
            raise TuningError("a space with a continuous distribution needs trials=")
        candidates = [dict(candidate) for candidate in where.candidates]
    else:
        candidates = [where.draw() for _ in range(trials)]
    table: list[tuple[Candidate, float]] = []
    for candidate in candidates:
        scores = [float(score(train(dict(candidate)))) for _ in range(repeats)]
        mean = sum(scores) / repeats
        table.append((candidate, -math.inf if math.isnan(mean) else mean))
    best, value = max(table, key=lambda row: row[1])
    return PublicTuning(best, value, tuple(table), because.strip())
