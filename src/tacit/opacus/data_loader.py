"""Which records come next, and what does an empty batch look like? The data loader that ``make_private`` returns.

It reads the same data set with the same workers and collate function as the user's loader. A secret key decides which
records are in a batch (:mod:`tacit.sgd.hooked.draws`). Batches of random size can be empty: an empty batch has the
structure of any other, with zero rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data import default_collate as torch_collate

from tacit.noise.keys import Key
from tacit.sgd.gradients.padding import Padded, alone
from tacit.sgd.hooked.draws import PoissonAtRate, PrivateBatches
from tacit.sgd.hooked.loop import Loop
from tacit.sgd.training.sampling import Chunks, Poisson, RandomBins, Sampler


class EmptyCollate:
    """The user's collate function, extended to a batch of no records (``blank``: a batch of zeros instead).

    With ``telling`` it returns a pair: the batch, and one of its records that was padded
    (:func:`tacit.sgd.gradients.padding.alone`).
    """

    def __init__(self, collate: Any, dataset: Any, batch_dim: int = 0, blank: bool = False) -> None:
        self.collate, self.dataset, self.batch_dim, self.blank = collate, dataset, batch_dim, blank
        self.telling = False

    def __call__(self, records: list[Any]) -> Any:
        if records:
            batch, padded = self.collate(records), None
            if self.telling:
                padded = alone(self.collate, records, batch, self.batch_dim)
        else:
            # A record that is there anyway gives the structure; none of its values are left.
            batch, padded = self._empty(self.collate([self.dataset[0]])), None
        return (batch, padded) if self.telling else batch

    def _empty(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            dim = self.batch_dim if value.dim() > self.batch_dim else 0
            if not value.dim():
                return value.new_zeros(())
            return torch.zeros_like(value) if self.blank else value.narrow(dim, 0, 0)
        if isinstance(value, Mapping):
            kept = {key: self._empty(item) for key, item in value.items()}
            try:
                return type(value)(kept)  # type: ignore[call-arg]
            except TypeError:
                return kept
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._empty(item) for item in value))
        if isinstance(value, list | tuple):
            if any(isinstance(item, Tensor | Mapping | list | tuple) for item in value):
                return type(value)(self._empty(item) for item in value)
            return type(value)()
        raise TypeError(
            f"the collate function returned a {type(value).__name__}, of which no empty batch can be made. Return "
            "tensors, mappings, lists or tuples. See: tacit explain unsupported-loader"
        )


class DPDataLoader(DataLoader[Any]):
    """A data loader whose batches are drawn privately; ``sample_rate`` is the probability of each record.

    >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3), torch.zeros(100))
    >>> loader = DPDataLoader(data, sample_rate=0.1)
    >>> len(loader), len(next(iter(loader))) == 2
    (10, True)
    """

    batch_sampler: PrivateBatches
    collate_fn: EmptyCollate

    def __init__(
        self,
        dataset: Any,
        *,
        sample_rate: float | None = None,
        batches: PrivateBatches | None = None,
        collate_fn: Any = None,
        drop_last: bool = False,
        generator: Any = None,
        distributed: bool = False,
        batch_first: bool = True,
        rand_on_empty: bool = False,
        **kwargs: Any,
    ) -> None:
        if distributed:
            raise NotImplementedError(
                "DPDataLoader runs in one process; for several use tacit.sgd.Training (docs/howto/distributed.md)"
            )
        if (sample_rate is None) == (batches is None):
            raise ValueError("give sample_rate=, the probability that a record is in a batch")
        if batches is None:
            assert sample_rate is not None
            if not 0 < sample_rate <= 1:
                raise ValueError(f"sample_rate must be above 0 and at most 1, not {sample_rate}")
            size = len(dataset)
            expected = max(1, min(size, round(size * sample_rate)))
            sampler = PoissonAtRate(size, expected, sample_rate)
            batches = PrivateBatches(sampler, _key(generator).derive("sampler"), size, blank=rand_on_empty)
        self.loop: Loop | None = None
        #: what collating said about the batches that were handed out, for a loop that takes them up later
        self.padded: deque[Padded | None] = deque()
        collate = collate_fn if collate_fn is not None else torch_collate
        if not isinstance(collate, EmptyCollate):
            collate = EmptyCollate(collate, dataset, 0 if batch_first else 1, rand_on_empty)
        super().__init__(dataset, batch_sampler=batches, collate_fn=collate, generator=generator, **kwargs)

    @classmethod
    def from_data_loader(
        cls,
        data_loader: DataLoader[Any],
        *,
        distributed: bool = False,
        generator: Any = None,
        batch_first: bool = True,
        rand_on_empty: bool = False,
        batches: PrivateBatches | None = None,
    ) -> DPDataLoader:
        """A private loader over the same data set; without ``batches`` at rate batch size / number of records."""
        dataset: Any = data_loader.dataset
        if batches is None:
            key = _key(generator)
            sampler = sampler_of(data_loader, poisson=True)
            batches = PrivateBatches(sampler, key.derive("sampler"), len(dataset), blank=rand_on_empty)
        return cls(
            dataset,
            batches=batches,
            collate_fn=data_loader.collate_fn,
            batch_first=batch_first,
            rand_on_empty=rand_on_empty,
            distributed=distributed,
            num_workers=data_loader.num_workers,
            pin_memory=data_loader.pin_memory,
            timeout=data_loader.timeout,
            worker_init_fn=data_loader.worker_init_fn,
            multiprocessing_context=data_loader.multiprocessing_context,
            prefetch_factor=data_loader.prefetch_factor,
            persistent_workers=data_loader.persistent_workers,
        )

    @property
    def sample_rate(self) -> float:
        """The probability with which a record is in a batch."""
        sampler = self.batch_sampler.sampler
        rate: float = sampler.rate if isinstance(sampler, Poisson) else sampler.batch_size / sampler.size
        return rate

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator, so that the loop hears of each batch
        self.padded.clear()
        behind = self.batch_sampler.behind
        for number, (batch, padded) in enumerate(self._told()):
            if self.loop is not None:
                self.loop.hand_out()
                if self.loop.current is not None:
                    self.loop.current.padded = padded
            elif number >= behind:
                self.padded.append(padded)
            yield batch
        if self.loop is not None:
            self.loop.settle()
            self.loop.leave_behind()

    def _told(self) -> Iterator[Any]:
        """Batches with what collating says about them; a loader that somebody made of this one gives plain batches."""
        batches = None
        while True:
            self.collate_fn.telling = True
            try:
                batches = super().__iter__() if batches is None else batches
                told = next(batches)
            except StopIteration:
                return
            finally:
                self.collate_fn.telling = False
            yield told

    def split(self, physical: int) -> DPDataLoader:
        """The same draws in pieces of at most ``physical`` records."""
        other = DPDataLoader(
            self.dataset,
            batches=self.batch_sampler.split(physical),
            collate_fn=self.collate_fn,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            timeout=self.timeout,
            worker_init_fn=self.worker_init_fn,
            multiprocessing_context=self.multiprocessing_context,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
        )
        other.loop = self.loop
        return other


def switch_generator(*, data_loader: DataLoader[Any], generator: Any) -> DataLoader[Any]:
    """The same loader with another source of randomness for who is in which batch.

    A private loader draws by a secret key already: give it a generator only to repeat a run, which gives up secrecy.
    """
    if isinstance(data_loader, DPDataLoader):
        own = data_loader.batch_sampler
        if data_loader.loop is not None:
            raise ValueError("this loader draws by the key of its run: switch the generator before make_private")
        key = _key(generator).derive("sampler")
        again = PrivateBatches(own.sampler, key, own.units, blank=own.blank, owners=own.owners)
        return DPDataLoader.from_data_loader(data_loader, batches=again)
    batches = data_loader.batch_sampler
    if not isinstance(batches, BatchSampler) or not hasattr(batches.sampler, "generator"):
        raise ValueError("the loader's sampler has no generator: nothing to switch")
    batches.sampler.generator = generator
    return data_loader


def _key(generator: Any) -> Key:
    """A new key; from a seeded generator where the user wants to repeat a run (and gives up secrecy)."""
    if generator is None:
        return Key.generate()
    words = torch.randint(0, 256, (32,), generator=generator, device=getattr(generator, "device", "cpu"))
    return Key(bytes(words.tolist()))


def batch_size_of(data_loader: DataLoader[Any]) -> int:
    """The batch size that a loader was built with."""
    size = data_loader.batch_size
    if size is None:
        size = getattr(data_loader.batch_sampler, "batch_size", None)
    if size is None:
        raise ValueError(
            "the data loader has no batch size, so there is no sampling rate: build it with batch_size=, or with a "
            "batch_sampler that has one. See: tacit explain unsupported-loader"
        )
    return int(size)


def sampler_of(data_loader: DataLoader[Any], *, poisson: bool, units: int | None = None) -> Sampler:
    """The private sampler in place of a loader's own: rate = batch size / number of records, or of ``units``."""
    dataset = data_loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ValueError(
            "an IterableDataset cannot be sampled privately: the data set needs a length and records by index. "
            "See: tacit explain unsupported-loader"
        )
    if len(dataset) == 0:
        raise ValueError("the data set has no records")
    own: Any = getattr(data_loader.batch_sampler, "sampler", None)
    size = len(dataset) if units is None else units
    if isinstance(data_loader.batch_sampler, PrivateBatches) and isinstance(own, Poisson):
        if own.size != size:
            raise ValueError("the loader's sampler and its data set have different numbers of records or owners")
        return own  # a Poisson loader already: its own rate, drawn by the key of this run
    batch = min(batch_size_of(data_loader), size)
    if poisson:
        return Poisson(size, batch)
    inner: Any = getattr(data_loader.batch_sampler, "sampler", None)
    plain = type(data_loader.batch_sampler) is BatchSampler
    if plain and type(inner) is RandomSampler and not inner.replacement and inner.num_samples == len(dataset):
        # Drawn by the key of the run, as every loader here is: each record falls into one batch of each pass at random.
        return RandomBins(size, batch)
    if plain and type(inner) is SequentialSampler:
        return Chunks(size, batch)
    raise ValueError(
        f"batches chosen by {type(inner or data_loader.batch_sampler).__name__} cannot be priced: without Poisson "
        "sampling each record must come once in a pass (shuffle=True or shuffle=False). Use poisson_sampling=True. "
        "See: tacit explain unsupported-loader"
    )


__all__ = ["DPDataLoader", "EmptyCollate", "batch_size_of", "sampler_of", "switch_generator"]
