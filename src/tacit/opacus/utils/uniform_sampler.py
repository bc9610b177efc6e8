"""Who takes part in a batch? Opacus' Poisson sampler, drawn by a secret key."""

from __future__ import annotations

from typing import Any

from tacit.opacus.data_loader import _key
from tacit.sgd.hooked.draws import PoissonAtRate, PrivateBatches


class UniformWithReplacementSampler(PrivateBatches):
    """Every record is in every batch with probability ``sample_rate``.

    >>> sampler = UniformWithReplacementSampler(num_samples=100, sample_rate=0.1)
    >>> len(sampler), all(0 <= k < 100 for batch in sampler for k in batch)
    (10, True)
    """

    def __init__(
        self, *, num_samples: int, sample_rate: float, generator: Any = None, steps: int | None = None
    ) -> None:
        if num_samples <= 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples}")
        expected = max(1, min(num_samples, round(num_samples * sample_rate)))
        key = _key(generator).derive("sampler")
        super().__init__(PoissonAtRate(num_samples, expected, sample_rate), key, num_samples)
        self.num_samples, self.sample_rate, self.generator = num_samples, sample_rate, generator
        self._steps = steps

    @property
    def steps(self) -> int:
        """Batches in one pass."""
        return self._steps if self._steps is not None else super().steps

    def __len__(self) -> int:
        return self._steps if self._steps is not None else super().__len__()


class DistributedUniformWithReplacementSampler:
    """Opacus' sampler for several processes; cannot be built."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("one process only; tacit.sgd.Training runs on several (docs/howto/distributed.md)")


__all__ = ["DistributedUniformWithReplacementSampler", "UniformWithReplacementSampler"]
