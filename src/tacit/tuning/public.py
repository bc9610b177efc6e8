"""What do similar public data say? Tuning that costs nothing, and a statement of it for the card.

Learning rate, clip norm and batch size carry over well between data of the same kind (census to census, small pictures
to small pictures) if the noise is the same. Nothing private is touched, so any number of looks is free. Whether
protected people may be in the public data too is for the user to say on the card.
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
    """The best candidate on public data, with everything that was seen. :func:`tune_on_public` makes it.

    Args:
        best: The candidate with the largest mean score.
        score: Its mean score.
        table: Every candidate with its mean score.
        because: Why the data are public.

    Example:
        >>> found = tune_on_public({"a": [1, 2]}, lambda c: c["a"], float, because="made up")
        >>> found.table
        (({'a': 1}, 1.0), ({'a': 2}, 2.0))
    """

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
    """Try candidates on public data. Nothing is charged.

    Guarantee:
        None is needed if ``train`` and ``score`` use public data only; the caller vouches for that in ``because``.

    Args:
        space: The candidates: anything that :class:`Space` takes.
        train: ``train(candidate)`` returns a model trained on public data. Give it the noise of the private run, or
            the transfer misleads.
        score: ``score(model)`` returns a number on public data; larger is better.
        because: Why these data are public. It goes on the card.
        trials: How many candidates to draw at random. None tries every candidate of a grid.
        repeats: How many trainings to average per candidate.

    Returns:
        The best candidate and the scores of all.

    Raises:
        TuningError: If ``because`` is empty, if ``trials`` or ``repeats`` is below 1, or if the space is continuous and
            ``trials`` is missing.

    Example:
        >>> found = tune_on_public({"a": [1, 2, 3]}, lambda c: c["a"], lambda model: -abs(model - 2), because="made up")
        >>> found.best, found.for_card()["tuning"]
        ({'a': 2}, 'on public data only')
    """
    if not because or not because.strip():
        raise TuningError("because= is empty: say why the data are public")
    if repeats < 1 or (trials is not None and trials < 1):
        raise TuningError("trials and repeats must be positive whole numbers")
    where = Space(space)
    if trials is None:
        if where.candidates is None:
            raise TuningError("a space with a continuous distribution needs trials=, how many candidates to draw")
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
