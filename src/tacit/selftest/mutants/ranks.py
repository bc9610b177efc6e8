"""Which mistakes have been made on several ranks? Noise of each rank's own, shards with one seed, steps left out.

These patches change nothing on one process: only real ranks show them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from tacit.noise.keys import Key
from tacit.noise.tensor import add_normal_many_
from tacit.selftest.mutants.base import adding, mutant, replaced
from tacit.selftest.mutants.sampling import skipping
from tacit.sgd import Training
from tacit.sgd.sharding import shards
from tacit.sgd.sharding.ranks import Ranks


@mutant("each rank adds noise of σ / ranks of its own", "ranks")
def each_its_own() -> Iterator[None]:
    """Independent noise of σ/W on each of W ranks adds up to σ/√W: too little."""
    add_up, seen = Training.add_up, [0]

    def noisy(self: Training, sums: dict[str, Tensor], inside: Tensor | float) -> Tensor | float:
        seen[0] = self.ranks.world
        if self.ranks.world > 1 and self.shards is None and self.keys is not None:
            scale = self.plan.gradient_noise[self.steps_executed] * self.clip_at(self.steps_executed).sensitivity
            with self.keys.noise.derive(f"rank {self.ranks.rank}") as own:
                add_normal_many_(list(sums.values()), own, self.steps_executed, list(sums), scale / self.ranks.world)
        return add_up(self, sums, inside)

    def add(tensors: Sequence[Tensor], key: Key, step: int, names: Sequence[Any], scale: float) -> None:
        if seen[0] <= 1:
            add_normal_many_(tensors, key, step, names, scale)

    with replaced(Training, "add_up", noisy), adding(add):
        yield


@mutant("one noise seed on every shard", "ranks")
def one_seed() -> Iterator[None]:
    """Every rank numbers the elements of its shard from 0, and the shards of a parameter get the same noise."""

    def add(tensors: Any, key: Key, step: int, names: Any, scale: float, *, offsets: Any) -> None:
        add_normal_many_(tensors, key, step, names, scale)

    with replaced(shards, "add_normal_many_", add):
        yield


@mutant("a rank without records leaves the step out", "ranks")
def leaves_out() -> Iterator[None]:
    """A rank whose share is empty does not add up: the others wait, or add up what belongs to different steps."""
    with skipping(lambda training: training.ranks.world > 1):
        yield


@mutant("every rank draws for itself", "ranks")
def own_draws() -> Iterator[None]:
    """No rank takes a share: each takes the whole draw, and a record moves the sum once for every rank."""
    with replaced(Ranks, "share", lambda self, drawn: drawn):
        yield


@mutant("shards keep the sum of their own rank", "ranks", later=True)
def unsummed_shards() -> Iterator[None]:
    """What should be scattered and summed is only cut: a shard holds the records of one rank, under the whole noise."""

    def cut(self: shards.ShardedParameters, name: str, total: Tensor) -> Tensor:
        for dimension, _, rank, count in self.places[name].cuts:
            if dimension is not None:
                each = -(-total.shape[dimension] // count)
                total = total.narrow(dimension, min(rank * each, total.shape[dimension]), self.shape(name)[dimension])
        return total.contiguous()

    with replaced(shards.ShardedParameters, "place", cut):
        yield


@mutant("the noise is added on every rank before the sum", "ranks", later=True)
def before_the_sum() -> Iterator[None]:
    """The same noise W times: the model is worse than it had to be, and its noise is not the one that is stated."""
    add_up = Training.add_up

    def noisy(self: Training, sums: dict[str, Tensor], inside: Tensor | float) -> Tensor | float:
        if self.ranks.world > 1 and self.shards is None and self.ranks.rank > 0 and self.keys is not None:
            scale = self.plan.gradient_noise[self.steps_executed] * self.clip_at(self.steps_executed).sensitivity
            add_normal_many_(list(sums.values()), self.keys.noise, self.steps_executed, list(sums), scale)
        return add_up(self, sums, inside)

    with replaced(Training, "add_up", noisy):
        yield
