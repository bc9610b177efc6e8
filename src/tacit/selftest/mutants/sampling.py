"""Which mistakes have been made with who takes part? Another law than the one that is priced, or one that repeats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tacit import accounting as acc
from tacit.noise.keys import Key
from tacit.noise.sampling import bernoulli_mask, uniform
from tacit.selftest.mutants.base import mutant, replaced
from tacit.sgd import Training
from tacit.sgd.training.sampling import FixedSize, Indices, Poisson, Shuffle


@mutant("shuffled batches priced as Poisson", "sampling")
def shuffled() -> Iterator[None]:
    """A plain data loader, with the amplification of Poisson sampling."""
    with replaced(Poisson, "draw", lambda self, *args: Shuffle(self.size, self.batch_size).draw(*args)):
        yield


@mutant("batches of fixed size priced as Poisson", "sampling")
def fixed() -> Iterator[None]:
    """Drawn without replacement; a record that is in pushes another out."""

    def draw(self: Poisson, key: Key, step: int, units: int) -> Indices:
        return FixedSize(units, min(self.batch_size, units)).draw(key, step, units)

    with replaced(Poisson, "draw", draw):
        yield


@contextlib.contextmanager
def skipping(when: Callable[[Training], bool]) -> Iterator[None]:
    """Steps without records are left out by the trainings of which that is asked."""
    step = Training.step

    def leave_out(self: Training, batch: Any) -> None:
        if len(batch) or not when(self):
            step(self, batch)
            return
        self.count_step()

    with replaced(Training, "step", leave_out):
        yield


@mutant("empty batches are dropped", "sampling")
def empty_dropped() -> Iterator[None]:
    """A step (or a rank's part of it) without records is skipped, which tells that nobody was there."""
    with skipping(lambda training: True):
        yield


@mutant("the rate is priced as 1 / len(loader)", "sampling")
def loader_rate() -> Iterator[None]:
    """A loader that rounds its length up makes the rate look smaller than it is."""

    def sampled(self: Poisson, step: acc.Mechanism) -> acc.Mechanism:
        return acc.PoissonSampled(step, 1 / self.steps_per_epoch)

    with replaced(Poisson, "sampled", sampled):
        yield


@mutant("the same batch at every step", "sampling")
def same_batch() -> Iterator[None]:
    """The sampler's step is not counted up."""
    draw = Poisson.draw
    with replaced(Poisson, "draw", lambda self, key, step, units: draw(self, key, 0, units)):
        yield


@mutant("one sampling seed on every worker (4 shards of one process)", "sampling")
def same_on_every_worker() -> Iterator[None]:
    """Four workers own a quarter of the records each and draw with the same stream."""

    def draw(self: Poisson, key: Key, step: int, units: int) -> Indices:
        quarter = -(-units // 4)
        mask = np.tile(bernoulli_mask(key, step, quarter, self.rate), 4)[:units]
        return np.flatnonzero(mask).astype(np.int64)

    with replaced(Poisson, "draw", draw):
        yield


@mutant("drawn with replacement, priced as Poisson", "sampling")
def with_replacement() -> Iterator[None]:
    """A record can be in a batch twice, and then moves the sum by two clip norms."""

    def draw(self: Poisson, key: Key, step: int, units: int) -> Indices:
        return np.sort((uniform(key, step, min(self.batch_size, units)) % np.uint64(units)).astype(np.int64))

    with replaced(Poisson, "draw", draw):
        yield
