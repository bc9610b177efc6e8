"""Which records take part in each step, and what does that choice cost?

A sampler does both: :meth:`Sampler.draw` says who takes part, from the secret key and the step alone, and
:meth:`Sampler.describe` turns the noise of the steps into the mechanism that the accountant prices. One object, one
pair of numbers (``size``, ``batch_size``): a run whose batches do not match its accounting cannot be written down.

``size`` is a public constant. Where it is only an estimate (``size=`` given by the user), Poisson sampling stays
right: its rate ``batch_size / size`` and its divisor ``batch_size`` do not depend on how many records there are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacit import accounting as acc
from tacit.noise.keys import Key
from tacit.noise.sampling import taking_part, uniform

Indices = npt.NDArray[np.int64]

#: Units whose words are held at a time: what a draw holds in memory does not grow with the number of units.
AT_ONCE = 1 << 20
#: The last sweeps of balls in bins, which are as secret as their key. A sampler is public and holds none.
_SWEPT: dict[tuple[Any, ...], list[Indices]] = {}


@dataclasses.dataclass(frozen=True)
class Sampler:
    """What every sampler has: a public number of units, the expected batch, and the cost of its choice."""

    size: int
    batch_size: int

    name: ClassVar[str] = ""
    #: the adjacency a guarantee is stated under unless the user says otherwise
    adjacency: ClassVar[str] = "add-remove"
    #: whether the number of units must be exactly ``size``, which is then public
    exact: ClassVar[bool] = True

    @property
    def apart(self) -> int:
        """How many steps lie between two in which a unit takes part, at least: 1 where it may be in every step."""
        return 1

    @property
    def pass_length(self) -> int:
        """The number of steps in a pass, which is what is priced where a unit takes part once in each."""
        return self.steps_per_epoch

    def __post_init__(self) -> None:
        for name in ("size", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a positive whole number, not {value!r}")
            object.__setattr__(self, name, int(value))
        if self.batch_size > self.size:
            raise ValueError(f"batch_size={self.batch_size} is larger than the number of units in the data")

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which a unit is expected to take part about once."""
        return math.ceil(self.size / self.batch_size)

    @property
    def divisor(self) -> float:
        """What the noisy sum is divided by: the expected batch size, a public constant."""
        return float(self.batch_size)

    @property
    def largest(self) -> int | None:
        """The most units a batch can hold, where there is a limit."""
        return None

    def usual_physical(self, limit: int | None = None, shares: int = 1) -> int:
        """A physical batch that holds nearly every batch (each of its ``shares``) in one piece, if ``limit`` allows."""
        most = self.largest or int(self.divisor + 4 * math.sqrt(self.divisor)) + 1
        most = -(-most // shares)
        return max(1, min(most, self.size, limit or most))

    def check(self, units: int) -> None:
        """An error, for the operator, where these data cannot be sampled as described."""
        if self.exact and units != self.size:
            raise ValueError(
                f"sampler={self.name!r} needs the true number of units to be public, and size={self.size} is another. "
                "Use sampler='poisson', whose rate and divisor do not depend on it"
            )

    def draw(self, key: Key, step: int, units: int) -> Indices:
        """The units of a step, in increasing order: a function of (key, step) alone."""
        raise NotImplementedError

    def describe(self, steps: Sequence[acc.Mechanism]) -> acc.Mechanism:
        """The mechanism of a run whose step t would be ``steps[t]`` if everybody took part."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """How the card names it."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a card or a checkpoint."""
        return {"name": self.name, **dataclasses.asdict(self)}


class _EachStep(Sampler):
    """Samplers that choose anew at every step."""

    def sampled(self, step: acc.Mechanism) -> acc.Mechanism:
        raise NotImplementedError

    def describe(self, steps: Sequence[acc.Mechanism]) -> acc.Mechanism:
        counts: dict[acc.Mechanism, int] = {}
        for step in steps:
            counts[step] = counts.get(step, 0) + 1
        unit = steps[0].unit if steps else "record"
        return acc.Composed(tuple((self.sampled(step), count) for step, count in counts.items()), unit=unit)


class _EachPass(Sampler):
    """Samplers in which every unit takes part at most once in a pass over the data."""

    def passed(self, step: acc.Mechanism) -> acc.Mechanism:
        raise NotImplementedError

    def describe(self, steps: Sequence[acc.Mechanism]) -> acc.Mechanism:
        """One mechanism for each pass that was begun, at the least noise in it: it may have met any unit there."""
        if not steps:
            return acc.nothing()
        counts: dict[acc.Mechanism, int] = {}
        for start in range(0, len(steps), self.pass_length):
            weakest = min(steps[start : start + self.pass_length], key=_noise)
            counts[weakest] = counts.get(weakest, 0) + 1
        return acc.Composed(tuple((self.passed(step), count) for step, count in counts.items()), unit=steps[0].unit)


def _noise(step: acc.Mechanism) -> float:
    return float(step.noise_multiplier if isinstance(step, acc.Gaussian) else step.scale)  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class Poisson(_EachStep):
    """Every unit takes part in every step by itself, with probability ``batch_size / size``.

    Guarantee: add/remove-one, replace-one or zero-out of one unit, as :class:`tacit.accounting.PoissonSampled` prices
    it. The true probability is never above the stated rate (docs/explanation/tensor-noise.md).

    >>> Poisson(size=60_000, batch_size=600).rate
    0.01
    """

    name: ClassVar[str] = "poisson"
    exact: ClassVar[bool] = False

    @property
    def rate(self) -> float:
        """The probability with which a unit takes part in a step."""
        return self.batch_size / self.size

    def draw(self, key: Key, step: int, units: int) -> Indices:
        return taking_part(key, step, units, self.rate)

    def sampled(self, step: acc.Mechanism) -> acc.Mechanism:
        return acc.PoissonSampled(step, self.rate)

    @property
    def words(self) -> str:
        return f"Poisson sampling at rate {self.rate:.6g}"


@dataclasses.dataclass(frozen=True)
class TruncatedPoisson(Poisson):
    """Poisson sampling whose batches are cut at ``max_batch``: overflowing units are left out at random.

    Guarantee: :class:`tacit.accounting.TruncatedPoissonSampled`. ``size`` must be at least the number of units, and
    exactly that number under zero-out and replace-one (:class:`tacit.sgd.training.plan.Plan` checks it).
    """

    max_batch: int = 0
    name: ClassVar[str] = "truncated"

    def __post_init__(self) -> None:
        super().__post_init__()
        # Ten standard deviations: a batch is then never cut, as far as a price can show.
        usual = math.ceil(self.batch_size + 10 * math.sqrt(self.batch_size) + 24)
        object.__setattr__(self, "max_batch", int(self.max_batch) or min(usual, self.size))
        if self.max_batch < 1:
            raise ValueError(f"max_batch must be a positive whole number, not {self.max_batch!r}")

    @property
    def largest(self) -> int | None:
        return self.max_batch

    def check(self, units: int) -> None:
        if units > self.size:
            raise ValueError(
                f"size={self.size} is below the number of units in the data: batches would overflow more often than is "
                "priced"
            )

    def draw(self, key: Key, step: int, units: int) -> Indices:
        chosen = super().draw(key, step, units)
        if len(chosen) <= self.max_batch:
            return chosen
        words = [
            uniform(key.derive("truncation"), step, n, offset=start)[at] for start, n, at in _pieces(units, chosen)
        ]
        order = np.argsort(np.concatenate(words), kind="stable")
        return np.sort(chosen[order[: self.max_batch]])

    def sampled(self, step: acc.Mechanism) -> acc.Mechanism:
        return acc.TruncatedPoissonSampled(step, self.rate, self.size, self.max_batch)

    @property
    def words(self) -> str:
        return f"Poisson sampling at rate {self.rate:.6g}, batches cut at {self.max_batch}"


@dataclasses.dataclass(frozen=True)
class FixedSize(_EachStep):
    """Exactly ``batch_size`` units at every step, drawn without replacement.

    Guarantee: :class:`tacit.accounting.FixedSizeSampled`. The number of units is public.
    """

    name: ClassVar[str] = "fixed"
    adjacency: ClassVar[str] = "zero-out"

    @property
    def largest(self) -> int | None:
        return self.batch_size

    def draw(self, key: Key, step: int, units: int) -> Indices:
        words = uniform(key, step, units)
        if self.batch_size == units:
            return np.arange(units, dtype=np.int64)
        return np.sort(np.argpartition(words, self.batch_size - 1)[: self.batch_size]).astype(np.int64)

    def sampled(self, step: acc.Mechanism) -> acc.Mechanism:
        return acc.FixedSizeSampled(step, self.batch_size, self.size)

    @property
    def words(self) -> str:
        return f"{self.batch_size} of {self.size} drawn without replacement at each step"


@dataclasses.dataclass(frozen=True)
class Chunks(_EachPass):
    """The data in the order they have, cut into batches: priced with no amplification.

    Guarantee: zero-out or replace-one (:class:`tacit.accounting.Shuffled`); every unit is met once in a pass, and the
    price is that of an attacker who knows in which batch.
    """

    name: ClassVar[str] = "chunks"
    adjacency: ClassVar[str] = "zero-out"

    @property
    def largest(self) -> int | None:
        return self.batch_size

    @property
    def apart(self) -> int:
        return self.steps_per_epoch

    def draw(self, key: Key, step: int, units: int) -> Indices:
        first = step % self.steps_per_epoch * self.batch_size
        return np.arange(min(first, units), min(first + self.batch_size, units), dtype=np.int64)

    def passed(self, step: acc.Mechanism) -> acc.Mechanism:
        return acc.Shuffled(step)

    @property
    def words(self) -> str:
        return "fixed chunks, no amplification"


@dataclasses.dataclass(frozen=True)
class Shuffle(Chunks):
    """Shuffled anew before each pass and cut into batches, as plain data loaders do: priced with no amplification."""

    name: ClassVar[str] = "shuffle"

    @property
    def apart(self) -> int:
        return 1  # last in one pass and first in the next

    def draw(self, key: Key, step: int, units: int) -> Indices:
        order = np.argsort(uniform(key, step // self.steps_per_epoch, units), kind="stable").astype(np.int64)
        return np.sort(order[super().draw(key, step, units)])

    def passed(self, step: acc.Mechanism) -> acc.Mechanism:
        return acc.Shuffled(step, bins=self.steps_per_epoch)

    @property
    def words(self) -> str:
        return "shuffled passes, no amplification"


@dataclasses.dataclass(frozen=True)
class RandomBins(_EachPass):
    """In each pass every unit falls into one of the pass's batches at random, drawn anew for each pass.

    Every unit takes part exactly once in a pass, and batches differ in size, as Poisson batches do. The number of bins
    follows from ``size``, a public number, and not from how many units there are.

    Guarantee: add/remove-one or zero-out of one unit, as :class:`tacit.accounting.BallsInBins` prices it. Each bin has
    exactly the probability 1/bins, and all draws are independent of each other, up to the security of ChaCha12.

    >>> key = Key(bytes(32))
    >>> bins = RandomBins(size=100, batch_size=25)
    >>> sorted(np.concatenate([bins.draw(key, step, 100) for step in range(4)]).tolist()) == list(range(100))
    True
    """

    name: ClassVar[str] = "balls-in-bins"
    exact: ClassVar[bool] = False

    def draw(self, key: Key, step: int, units: int) -> Indices:
        # To ask every unit for its bin takes long, so it is done for many steps at once: as many as AT_ONCE units.
        number, place = divmod(step, self.steps_per_epoch)
        together = max(1, AT_ONCE // self.batch_size)
        first = place - place % together
        last = min(first + together, self.steps_per_epoch)
        asked = (key.fingerprint(), self.size, self.batch_size, units, number, first, last)
        found = _SWEPT.get(asked)
        if found is None:
            found = self._sweep(key, number, units, first, last)
            if len(_SWEPT) > 1:
                _SWEPT.clear()
            _SWEPT[asked] = found
        return found[place - first].copy()

    def _sweep(self, key: Key, number: int, units: int, first: int, last: int) -> list[Indices]:
        """The units of each bin from ``first`` to before ``last`` in a pass."""
        where, bins = [], []
        for start, n, _ in _pieces(units):
            drawn = bins_of(key, number, n, self.steps_per_epoch, offset=start)
            at = np.flatnonzero((drawn >= np.uint64(first)) & (drawn < np.uint64(last)))
            where.append(start + at)
            bins.append(drawn[at])
        found, places = np.concatenate(where).astype(np.int64), np.concatenate(bins)
        order = np.argsort(places, kind="stable")
        ends = np.searchsorted(places[order], np.arange(first + 1, last, dtype=np.uint64))
        return np.split(found[order], ends)

    @property
    def divisor(self) -> float:
        return self.size / self.steps_per_epoch

    def passed(self, step: acc.Mechanism) -> acc.Mechanism:
        return acc.BallsInBins(step, self.steps_per_epoch)  # type: ignore[arg-type]

    @property
    def words(self) -> str:
        return f"balls in {self.steps_per_epoch} bins a pass"


@dataclasses.dataclass(frozen=True)
class CyclicPoisson(_EachPass):
    """Poisson sampling from one of ``groups`` groups in turn, for noise that hangs together over so many steps.

    A keyed hash of its number puts every unit into a group, once for the whole run. Step t draws each unit of group t
    modulo ``groups`` with probability ``groups * batch_size / size``. So a unit takes part at most once in ``groups``
    steps, and batches are as large as those of :class:`Poisson`.

    Guarantee: add/remove-one or zero-out of one unit, as :class:`tacit.accounting.CyclicPoissonSampled` prices it. The
    groups depend on no data, and on nothing that another unit could change.

    Args:
        size: The public number of units.
        batch_size: The expected number of units in a step.
        groups: The number of groups. Default: 1, which is Poisson sampling.

    Raises:
        ValueError: If a group has fewer units than a step draws.

    Example:
        >>> sampler = CyclicPoisson(size=60_000, batch_size=600, groups=8)
        >>> sampler.rate, sampler.apart
        (0.08, 8)
    """

    groups: int = 1
    name: ClassVar[str] = "cyclic"
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        groups = self.groups
        if isinstance(groups, bool) or not isinstance(groups, int | np.integer) or groups < 1:
            raise ValueError(f"groups must be a positive whole number, not {groups!r}")
        object.__setattr__(self, "groups", int(groups))
        if self.groups * self.batch_size > self.size:
            raise ValueError(
                f"{self.groups} groups of {self.size:,} units have fewer than batch_size={self.batch_size:,} each: at "
                f"most {self.size // self.batch_size} groups (bands) fit"
            )

    @property
    def rate(self) -> float:
        """The probability with which a unit takes part in a step of its group."""
        return self.groups * self.batch_size / self.size

    @property
    def apart(self) -> int:
        return self.groups

    @property
    def pass_length(self) -> int:
        return self.groups

    def draw(self, key: Key, step: int, units: int) -> Indices:
        drawn = taking_part(key, step, units, self.rate)
        found = [
            start + at[self.groups_of(key, n, start)[at] == step % self.groups]
            for start, n, at in _pieces(units, drawn)
        ]
        return np.concatenate(found).astype(np.int64)

    def groups_of(self, key: Key, units: int, offset: int = 0) -> npt.NDArray[np.uint64]:
        """The groups of units from ``offset`` on: a function of the secret key and of the unit's number alone."""
        return bins_of(key.derive("groups"), 0, units, self.groups, offset=offset)

    def passed(self, step: acc.Mechanism) -> acc.Mechanism:
        return acc.CyclicPoissonSampled(step, self.rate, self.groups)  # type: ignore[arg-type]

    @property
    def words(self) -> str:
        return f"Poisson sampling at rate {self.rate:.6g} from one of {self.groups} groups in turn"


def _pieces(units: int, chosen: Indices | None = None) -> Iterator[tuple[int, int, Indices]]:
    """All units a piece at a time: where it begins, how many there are, and the places of the ``chosen`` in it.

    >>> [(start, count, at.tolist()) for start, count, at in _pieces(5, np.array([1, 4]))]
    [(0, 5, [1, 4])]
    """
    chosen = np.zeros(0, np.int64) if chosen is None else chosen
    for start in range(0, max(units, 1), AT_ONCE):
        count = min(AT_ONCE, units - start)
        first, last = np.searchsorted(chosen, [start, start + count])
        yield start, count, chosen[first:last] - start


def bins_of(key: Key, number: int, units: int, bins: int, *, offset: int = 0) -> npt.NDArray[np.uint64]:
    """The bin of every unit from ``offset`` on in a pass, each with probability exactly 1/bins.

    A 64-bit word at or above the largest multiple of ``bins`` is drawn again, by a key of its own: the remainder of the
    others prefers no bin.

    >>> int(bins_of(Key(bytes(32)), 0, 1000, 7).max())
    6
    """
    words = uniform(key, number, units, offset=offset)
    limit = 2**64 - 2**64 % bins
    again = 0
    while limit < 2**64 and len(high := np.flatnonzero(words >= np.uint64(limit))):
        again += 1
        words = words.copy()
        words[high] = uniform(key.derive(f"bins {again}"), number, units, offset=offset)[high]
    return np.asarray(words % np.uint64(bins))


SAMPLERS: dict[str, type[Sampler]] = {
    kind.name: kind for kind in (Poisson, TruncatedPoisson, FixedSize, Chunks, Shuffle, RandomBins)
}


def make_sampler(
    name: str, size: int, batch_size: int, max_batch: int | None = None, groups: int | None = None
) -> Sampler:
    """The sampler of this name; ``groups`` are those of a cyclic one, which comes with correlated noise.

    >>> make_sampler("fixed", 1000, 10)
    FixedSize(size=1000, batch_size=10)
    """
    if name == CyclicPoisson.name and groups is not None:
        return CyclicPoisson(size, batch_size, groups)
    check_sampler(name, max_batch)
    if name == "truncated":
        return TruncatedPoisson(size, batch_size, max_batch or 0)
    return SAMPLERS[name](size, batch_size)


def check_sampler(name: str, max_batch: int | None) -> None:
    """Refuse a name that no sampler has, and ``max_batch`` for a sampler that cuts no batches."""
    if name == CyclicPoisson.name:
        raise ValueError("sampler='cyclic' comes with noise=tacit.sgd.Banded(), or as a CyclicPoisson with its groups")
    if name not in SAMPLERS:
        raise ValueError(f"there is no sampler {name!r}: choose one of {', '.join(SAMPLERS)}")
    if max_batch is not None and name != "truncated":
        raise ValueError(f"max_batch is for sampler='truncated', not for {name!r}")


def run_length(steps: int | None, epochs: int | None, sampler: Sampler) -> int:
    """The number of steps: ``steps``, or as many as ``epochs`` passes have."""
    check_length(steps, epochs)
    return int(steps) if steps is not None else sampler.steps_per_epoch * int(epochs)  # type: ignore[arg-type]


def check_length(steps: int | None, epochs: int | None) -> None:
    """Exactly one of the two, a positive whole number."""
    if (steps is None) == (epochs is None):
        raise ValueError("give either epochs= or steps=")
    for name, value in (("steps", steps), ("epochs", epochs)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
            raise ValueError(f"{name} must be a positive whole number, not {value!r}")
