"""At which steps is one example compared with itself alone, and what does that show?

The steps are a function of the run's secret key: nobody outside knows them, and a resumed run has the same ones. How
often is a public number, chosen so that probes cost at most a hundredth of the time of a run
(``benchmarks/probes.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.noise.keys import Key

#: One step in so many is probed, on average.
EVERY = 64
#: A compiled step on a GPU takes less time than an uncompiled pass of one example.
COMPILED_ON_GPU = 512


#: What is said beside the guarantee of a model whose weights lie on several ranks.
SPREAD = (
    "on several ranks no example is compared with itself alone, and weights are not moved to see what one of about "
    "zero hides"
)


@dataclass(frozen=True)
class Probes:
    """How often steps are probed; ``batch`` is the expected number of examples, for there are empty batches.

    >>> Probes(64, batch=20.0).survives(1000)
    1.4...e-07
    >>> Probes(1, batch=20.0).at(Key(bytes(32)), 0) is None
    False
    """

    every: int
    batch: float

    def at(self, key: Key, step: int) -> tuple[int, int] | None:
        """Two random numbers that say which example is compared at this step; None where none is."""
        words = key.stream("probe", step, 0)
        return (int(words[1]), int(words[2])) if int(words[0]) < 2**32 // self.every else None

    def survives(self, steps: int) -> float:
        """The chance that so many steps with a fault in every batch pass unnoticed."""
        return (1 - (1 - math.exp(-self.batch)) / self.every) ** steps

    def words(self, steps: int) -> str:
        """What is said beside the guarantee."""
        often = "at every step" if self.every == 1 else f"at one step in {self.every} on average, by the secret key"
        return (
            f"one example's loss and gradient norm compared with those by itself {often}; a fault in every batch would "
            f"pass {steps} steps with probability {self.survives(steps):.2g}"
        )
