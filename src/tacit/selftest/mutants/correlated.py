"""Which mistakes does correlated noise invite? Each is priced as before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tacit.accounting.correlated import Correlation
from tacit.selftest.mutants.base import mutant, replaced
from tacit.sgd.release import EarlierNoise
from tacit.sgd.training.sampling import CyclicPoisson


@mutant("independent noise priced as correlated", "noise", scenes=("correlated",))
def independent() -> Iterator[None]:
    """Groups are drawn and rounds are priced, and every step has noise of its own."""
    with replaced(EarlierNoise, "of", classmethod(lambda cls, correlation, steps: None)):
        yield


@mutant("earlier noise is forgotten after a resume", "noise", scenes=("correlated",))
def forgotten() -> Iterator[None]:
    """A resumed run begins with noise that takes nothing back."""
    plain = EarlierNoise.add_

    def add(self: Any, sums: Any, key: Any, step: int, scale: float, shards: Any) -> None:
        if not self._kept:
            self._key = key
            self._kept = {step - j: {n: s * 0.0 for n, s in sums.items()} for j in range(1, self.correlation.bands)}
        plain(self, sums, key, step, scale, shards)

    with replaced(EarlierNoise, "add_", add):
        yield


@mutant("one group is sampled twice a round", "sampling", scenes=("correlated",))
def twice() -> Iterator[None]:
    """The groups take turns every other step."""
    plain = CyclicPoisson.draw
    with replaced(CyclicPoisson, "draw", lambda self, key, step, units: plain(self, key, step % 2, units)):
        yield


@mutant("groups depend on the data", "sampling", scenes=("correlated",))
def by_share() -> Iterator[None]:
    """The data are cut into groups of equal size: one record more moves others to another group."""
    cut = lambda self, key, units: (np.arange(units) * self.groups // units).astype(np.uint64)  # noqa: E731
    with replaced(CyclicPoisson, "groups_of", cut):
        yield


@mutant("sensitivity by a falling minorant", "sensitivity", scenes=("correlated",))
def minorant() -> Iterator[None]:
    """A column that rises is cut down to one that falls, which is no upper bound."""
    plain = Correlation.squared_sensitivity

    def squared(self: Any, steps: int, participations: int = 1, apart: int = 1) -> float:
        falling = np.minimum.accumulate(np.abs(self.column(steps)))
        return plain(Correlation(tuple(falling[: self.bands].tolist())), steps, participations, apart)

    with replaced(Correlation, "squared_sensitivity", squared):
        yield
