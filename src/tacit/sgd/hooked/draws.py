"""Which batches did a loop take from its data loader, and what did its steps cost?

:class:`PrivateBatches` is a batch sampler for ``torch.utils.data.DataLoader``: it draws by a
:mod:`tacit.sgd.training.sampling` sampler and a secret key, and keeps a list of what it handed out, each batch (or
physical piece of one) with its number and size. :class:`Spent` is what happened to them: one entry for every noisy sum
that was released, with its noise and with how many draws were added up in it.
"""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import Sampler as TorchSampler

from tacit import accounting as acc
from tacit.accounting.poisson import Accumulated
from tacit.noise.keys import Key
from tacit.noise.tensor import tail_delta
from tacit.sgd.gradients.padding import Padded
from tacit.sgd.hooked.owners import Owners
from tacit.sgd.training.plan import generator_delta
from tacit.sgd.training.sampling import Chunks, CyclicPoisson, Poisson, RandomBins, Sampler


@dataclasses.dataclass(eq=False)
class Piece:
    """A batch as the loop gets it: all of a draw, or one physical part of it (``last``: the one that ends it).

    ``real`` is how many of its rows are records: none where a blank stands in for an empty draw. ``padded`` is one of
    its records that is shorter than the batch, where the loader knows.
    """

    draw: int
    rows: int
    last: bool
    real: int
    taken: bool = False
    padded: Padded | None = None


class PrivateBatches(TorchSampler[list[int]]):
    """Batches of record numbers for a ``DataLoader(batch_sampler=…)``.

    A draw is a function of the key and its number, and each number is used once. With ``owners`` it draws among
    ``units`` of them, and takes one record of each. Pieces are written into ``handed`` in
    the order in which they are drawn.

    >>> batches = PrivateBatches(Poisson(size=100, batch_size=20), Key(bytes(32)), 100)
    >>> len(batches), sum(len(batch) for batch in batches) > 0, len(batches.handed)
    (5, True, 5)
    """

    def __init__(
        self,
        sampler: Sampler,
        key: Key | None,
        units: int,
        *,
        physical: int | None = None,
        drop_last: bool = False,
        blank: bool = False,
        parts: int | None = None,
        share: tuple[int, int] = (0, 1),
        owners: Owners | None = None,
    ) -> None:
        self.sampler, self.units, self.physical, self.drop_last, self.blank = sampler, units, physical, drop_last, blank
        #: pieces in which every draw is handed out, for loops that take a fixed number of batches for each step
        self.parts = parts
        self.share, self.owners = share, owners
        self.key = key
        #: pieces of the first pass that were dealt with in an earlier life of the run
        self.behind = 0
        self.next = 0
        self.handed: deque[Piece] = deque()
        self.passes = 0

    @property
    def unit(self) -> str:
        """What is drawn, and protected."""
        return self.owners.unit if self.owners is not None else "record"

    @property
    def max_rows(self) -> int | None:
        """The most records of a unit in a batch, where units have several."""
        return None if self.owners is None or self.owners.units is None else 1

    def __len__(self) -> int:
        steps = self.steps
        if self.parts is not None:
            return steps * self.parts
        if self.physical is None:
            return steps
        return math.ceil(steps * max(1.0, self.sampler.batch_size / self.physical))

    @property
    def steps(self) -> int:
        """Draws in one pass of the loader."""
        if self.drop_last and isinstance(self.sampler, Chunks):
            return max(1, self.units // self.sampler.batch_size)
        return self.sampler.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        each = self.sampler.pass_length
        if not isinstance(self.sampler, Poisson | CyclicPoisson):
            # A pass begins with everybody: one that was left early is not taken up again.
            self.next = math.ceil(self.next / each) * each
        self.passes += 1
        self.handed.clear()  # what a pass that was left early had drawn ahead
        behind, self.behind = self.behind, 0
        for _ in range(behind):
            yield []
        for _ in range(self.steps - behind // (self.parts or 1)):
            number, self.next = self.next, self.next + 1
            if self.key is None:
                raise RuntimeError("the run has not begun: these batches have no key yet")
            chosen = self.sampler.draw(self.key, number, self.units)
            if self.owners is not None:  # before ranks share them: nobody's choice is anybody else's
                chosen = self.owners.records(chosen, self.key, number)
            rank, world = self.share
            yield from self._pieces(number, chosen[rank::world])

    def _pieces(self, number: int, chosen: Any) -> Iterator[list[int]]:
        if len(chosen) == 0 and self.parts is None:
            self.handed.append(Piece(number, 1 if self.blank else 0, last=True, real=0))
            yield []
            return
        parts = self.parts or (math.ceil(len(chosen) / self.physical) if self.physical else 1)
        split = np.array_split(chosen, parts)
        for k, part in enumerate(split):
            self.handed.append(Piece(number, len(part), k == parts - 1, len(part)))
            yield [int(i) for i in part]

    def split(self, physical: int) -> PrivateBatches:
        """The same draws, handed out in pieces of at most ``physical`` records."""
        if physical < 1:
            raise ValueError(f"a physical batch has at least one record, not {physical}")
        return _Split(self, physical)


class _Split(PrivateBatches):
    """A view of a sampler that splits; numbers and what was handed out are the other's."""

    def __init__(self, whole: PrivateBatches, physical: int) -> None:
        self.whole = whole
        self.physical = physical

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["whole"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("whole", "physical"):
            self.__dict__[name] = value
        else:
            setattr(self.__dict__["whole"], name, value)


@dataclasses.dataclass(frozen=True)
class PoissonAtRate(Poisson):
    """Poisson sampling at a rate that is not a whole number of records out of all."""

    own_rate: float = 0.0

    @property
    def rate(self) -> float:
        return self.own_rate

    @property
    def steps_per_epoch(self) -> int:
        return max(1, round(1 / self.own_rate))


class Spent:
    """Every noisy sum that a loop released: how much noise, and how many draws in it.

    >>> spent = Spent(Poisson(size=1000, batch_size=10), elements=100)
    >>> for _ in range(300):
    ...     spent.add(1.0)
    >>> round(spent.price(1e-5).upper, 2)
    1.07
    """

    def __init__(self, sampler: Sampler, elements: int = 0, unit: str = "record") -> None:
        self.sampler, self.elements, self.unit = sampler, elements, unit
        self.releases: list[tuple[float, int, int]] = []
        self.passes: dict[int, float] = {}
        #: tells a run from its own checkpoint
        self.name = uuid.uuid4().hex

    def add(self, noise_multiplier: float, draws: int = 1, times: int = 1, passes: Iterable[int] = ()) -> None:
        """Note ``times`` releases; ``passes`` are those over the data that their batches were part of."""
        if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)) or draws < 1:
            raise ValueError(f"a release has finite noise and at least one draw, not {noise_multiplier}, {draws}")
        noise = float(noise_multiplier)
        for k in passes:
            self.passes[k] = min(noise, self.passes.get(k, math.inf))
        if self.releases and self.releases[-1][:2] == (noise, draws):
            times += self.releases.pop()[2]
        self.releases.append((noise, draws, times))

    def __len__(self) -> int:
        return sum(times for _, _, times in self.releases)

    @property
    def mechanism(self) -> acc.Mechanism:
        """What happened to the data so far."""
        if not self.releases:
            return acc.nothing(self.unit)
        if isinstance(self.sampler, Poisson):
            parts: dict[acc.Mechanism, int] = {}
            for noise, draws, times in self.releases:
                step: acc.Mechanism = self.sampler.sampled(acc.Gaussian(noise, unit=self.unit))
                if draws > 1:
                    step = Accumulated(step, draws)  # type: ignore[arg-type]
                parts[step] = parts.get(step, 0) + times
            return acc.Composed(tuple(parts.items()), unit=self.unit)
        # A pass meets each record once, in whichever of its releases: at the least noise in it.
        counts: dict[acc.Mechanism, int] = {}
        for noise in self.passes.values():
            release = acc.Gaussian(noise, unit=self.unit)
            met = self.sampler.describe([release])
            if isinstance(self.sampler, RandomBins):
                # Bins that are added up under one noise are one bin: no release has more than this share of them.
                most = max(draws for _, draws, _ in self.releases)
                met = acc.BallsInBins(release, max(1, self.sampler.steps_per_epoch // most))
            counts[met] = counts.get(met, 0) + 1
        return acc.Composed(tuple(counts.items()), unit=self.unit)

    def price(self, delta: float) -> acc.Bound:
        """The certified ε of what was released so far, the generator's tail included."""
        if not 0 < delta < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1, not {delta!r}")
        return priced(self.mechanism, self.releases, self.elements, delta, self.sampler.adjacency).interval


def priced(
    mechanism: acc.Mechanism, releases: list[tuple[float, int, int]], elements: int, delta: float, adjacency: str
) -> acc.Privacy:
    """What a mechanism promises at ``delta``, with what the noise generator's tail adds to δ."""
    alone = acc.Privacy.of(mechanism, delta, adjacency=adjacency)
    if not elements or not releases or math.isinf(alone.claim):
        return alone
    total = sum(times for _, _, times in releases)
    claimed, lost = alone.claim, dataclasses.replace(alone.interval, upper=math.inf)
    for _ in range(20):
        moved = sum(times * generator_delta([noise], elements, float(draws)) for noise, draws, times in releases)
        tail = min(1.0, moved, tail_delta(total * elements, claimed))
        if tail >= delta:
            break
        whole = mechanism + acc.ApproxDP(0.0, tail, unit=mechanism.unit)
        again = acc.Privacy.of(whole, delta, adjacency=adjacency)
        if again.claim <= claimed:
            return again
        claimed = again.claim * (1 + 1e-9)
    return dataclasses.replace(alone, interval=lost)
