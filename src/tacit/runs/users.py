"""People or rows: which is cheaper to draw for a run on people with many rows? From public numbers alone.

*People drawn*: a step draws people, averages the gradients of up to k rows of each, and clips once. *Rows drawn*:
everybody keeps at most k rows for the run, a step draws rows and clips each, and a person is priced as a group of k.
Both are priced exactly, for as many rows through the model a step. What is compared is the noise of a step on the mean
of what was clipped, in clip norms of a row: where the rows of a person are alike, and at best, where they differ so
much that their average is √k times shorter, and the clip norm can be.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from tacit import accounting as acc
from tacit.accounting.poisson import Accumulated

#: Ways whose noise differs by less are called equal: the one that sees more people and rows is taken.
EQUAL = 1.01


@dataclasses.dataclass(frozen=True)
class Crowd:
    """People with many rows, and a run on them: how many, rows of each, rows in a step, steps, ε, δ."""

    users: int
    rows: int
    batch: int
    steps: int
    epsilon: float
    delta: float
    adjacency: str = "add-remove"
    unit: str = "person"

    def ways(self) -> list[dict[str, Any]]:
        """Every way there is to run it, people first, with caps in powers of two."""
        found = []
        for most in self._caps():
            people = self.batch // most
            if 1 <= people <= self.users:
                found.append(self._way("units", most, people, people / self.users, float(people), self.rows))
        for most in self._caps():
            kept = self.users * most
            if self.batch <= kept:
                rate = self.batch / kept
                seen = self.users * (1 - (1 - rate) ** most)
                found.append(self._way("rows", most, self.batch, rate, seen, most))
        return found

    def _caps(self) -> Iterator[int]:
        most = 1
        while most < self.rows:
            yield most
            most *= 2
        yield self.rows

    def _way(self, draw: str, most: int, batch: int, rate: float, people: float, used: int) -> dict[str, Any]:
        def family(noise: float) -> acc.Mechanism:
            step = acc.PoissonSampled(acc.Gaussian(noise, unit=self.unit), rate)
            return (Accumulated(step, most) if draw == "rows" and most > 1 else step) * self.steps

        noise = acc.calibrate(family, epsilon=self.epsilon, delta=self.delta, adjacency=self.adjacency)
        return {
            "draw": draw,
            "max_rows": most,
            "batch_size": batch,
            "noise": noise,
            "noise_of_a_step": noise / batch,
            "noise_at_best": noise / batch / (math.sqrt(most) if draw == "units" else 1.0),
            "people_in_a_step": people,
            "share_of_rows": used / self.rows,
        }


def cheapest(ways: list[dict[str, Any]]) -> dict[str, Any]:
    """The way with the least noise; of those that are equal, the one that sees the most rows and people.

    >>> crowd = Crowd(users=2000, rows=4, batch=100, steps=200, epsilon=2.0, delta=1e-6)
    >>> best = cheapest(crowd.ways())
    >>> best["draw"], best["max_rows"]
    ('units', 1)
    """
    least = min(way["noise_of_a_step"] for way in ways)
    near = [way for way in ways if way["noise_of_a_step"] <= EQUAL * least]
    return max(near, key=lambda way: (way["share_of_rows"], way["people_in_a_step"], way["draw"] == "units"))


__all__ = ["Crowd", "cheapest"]
