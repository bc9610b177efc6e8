"""Which program runs the next step: the operations one by one, the step as it was traced, or compiled?

``compile="auto"``, the default, starts at once with the operations. Once their pace is known it tries a faster program,
if making it costs little next to what is left of the run; it keeps that program only if it is faster. The clock
decides, so two runs may change at different steps, and their sums then differ in rounding. Therefore a change is
written to the checkpoint before the step that it begins with, and a run whose key was given, which somebody may want to
repeat bit by bit, does not change.
"""

from __future__ import annotations

import statistics
from typing import Final, Literal

Program = Literal["uncompiled", "traced", "compiled"]

#: What ``compile=`` says for each program.
COMPILE: Final[dict[Program, bool | Literal["traced"]]] = {"uncompiled": False, "traced": "traced", "compiled": True}
#: Steps of a program that are not timed: the first makes it, and on a GPU the third records it.
UNTIMED = 5
#: A pace is known after so many steps, or after fewer that took this many seconds and are at least three.
TIMED, SECONDS = 15, 2.0
#: Seconds to make a program: for anything, and for each operation that uses a parameter (measured on one core, and on
#: the host of a GPU; python -m benchmarks runs).
COST: Final[dict[Program, tuple[float, float]]] = {"traced": (0.1, 0.12), "compiled": (6.0, 0.7)}
#: The share of the rest of a run that making a program may cost. On a GPU every model that was measured gained more
#: than a third by being traced; elsewhere a trial may gain nothing.
SHARE: Final[dict[Program, float]] = {"traced": 0.01, "compiled": 0.01}
SHARE_ON_GPU: Final[dict[Program, float]] = {"traced": 0.25, "compiled": 0.01}
#: A program is kept if a step takes at most this much of the time of the one before.
GAIN = 0.98


class Pace:
    """The choice of a run of so many steps, by what steps have taken so far.

    >>> pace = Pace(gpu=False)
    >>> for _ in range(30):
    ...     pace.took(0.01)
    >>> pace.choose(left=1_000, uses=3), pace.choose(left=100_000, uses=3)
    ('uncompiled', 'traced')
    """

    def __init__(self, *, gpu: bool, program: Program = "uncompiled") -> None:
        self.program: Program = program
        self.settled = program == "compiled"
        self._share = SHARE_ON_GPU if gpu else SHARE
        self._times: list[float] = []
        self._untimed = UNTIMED
        #: the program that the current one is compared with, and the seconds of its step
        self._before: tuple[Program, float] | None = None

    def took(self, seconds: float) -> None:
        """Say what a step of the current program took."""
        if self._untimed:
            self._untimed -= 1
        else:
            self._times.append(seconds)

    def choose(self, left: int, uses: int) -> Program:
        """The program of the next step, where so many are left, of a model with so many uses of parameters."""
        if not self._known():
            return self.program
        mine = statistics.quantiles(self._times, n=4)[0]  # what else the machine does only makes steps slower
        if self._before is not None and mine > GAIN * self._before[1]:
            self._change(self._before[0], None)
            self.settled = True
            return self.program
        following: Program = "traced" if self.program == "uncompiled" else "compiled"
        fixed, each = COST[following]
        if fixed + each * uses <= self._share[following] * left * mine:
            self._change(following, (self.program, mine))
            self.settled = False
        else:
            self.settled = True  # less and less is left, so it never pays
        return self.program

    def _known(self) -> bool:
        enough = len(self._times) >= TIMED or (len(self._times) >= 3 and sum(self._times) >= SECONDS)
        return enough and not (self.program == "compiled" and self._before is None)

    def _change(self, program: Program, before: tuple[Program, float] | None) -> None:
        self.program, self._before = program, before
        self._times, self._untimed = [], UNTIMED


def program_of(compile: bool | str) -> Program:
    """The program that a run begins with."""
    return "uncompiled" if compile in (False, "auto") else "compiled" if compile is True else "traced"
