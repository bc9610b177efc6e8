"""Which correlated noise does a run have? Values for ``Training(noise=…)``, whose arithmetic is in the accounting room.

Formulas and proofs: :mod:`tacit.accounting.correlated` and docs/explanation/correlated-noise.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tacit.accounting.correlated import (
    MOST_BANDS,
    SUMS,
    Correlation,
    Workload,
    best_banded,
    of_norm_one,
)


@dataclasses.dataclass(frozen=True)
class Banded:
    """Noise that takes back noise of the last steps: more accuracy at the same ε where data are many and passes few.

    C has ``bands`` non-zero diagonals. Every record belongs to one of ``bands`` groups, by a keyed hash, and step t
    draws from group t modulo ``bands``, so that no record takes part twice within ``bands`` steps
    (``CyclicPoisson``). With ``sampler="chunks"`` the data come in the order they have.

    Guarantee:
        As the sampler states it for Gaussian noise of the plan's multiplier: n steps cost ⌈n/bands⌉ Poisson-sampled
        steps at ``bands`` times the rate (Choquette-Choo et al. 2023, theorem 4).

    Args:
        bands: How many steps hang together, 1 for independent noise. Default: the number, a power of two, whose noise
            in the weights is predicted to be the least for this ε; then ``epsilon`` must be given.
        coefficients: The first column of C, of any length; it is scaled to norm 1. Default: the best one for what the
            optimizer makes of gradients.

    Raises:
        ValueError: If ``bands`` is not a whole number from 1 to 128, or differs from the number of coefficients.

    Example:
        >>> Banded(bands=2, coefficients=(4.0, 3.0)).correlation(100).coefficients
        (0.79999..., 0.59999...)
    """

    bands: int | None = None
    coefficients: Sequence[float] | None = None

    name: ClassVar[str] = "banded"

    def __post_init__(self) -> None:
        _take_coefficients(self)

    def correlation(self, steps: int, workload: Workload = SUMS) -> Correlation:
        """The columns of C, of norm at most 1.

        Args:
            steps: The length of the run.
            workload: What the optimizer makes of the gradients. Default: their sums.

        Returns:
            The correlation of the noise.

        Raises:
            ValueError: If ``bands`` is open.
        """
        if self.bands is None:
            raise ValueError("the number of bands is open: give bands=, or ask tacit.accounting.choose_bands for it")
        if self.coefficients is not None:
            return of_norm_one(np.array(self.coefficients))
        return best_banded(min(self.bands, steps), steps, workload)


@dataclasses.dataclass(frozen=True)
class BandedInverse:
    """Noise that takes back noise of the last steps, drawn again from the key: it needs no memory.

    C⁻¹ has ``bands`` non-zero diagonals, so the noise of a step is a sum of so many draws; every sharding and every
    resumed run computes the same. No sampling amplifies this noise, so it is for data in a fixed order
    (``sampler="chunks"``): one pass over a stream, or a few passes over large data.

    Guarantee:
        The whole run is one Gaussian mechanism of the plan's noise multiplier: its noise is scaled by what a unit can
        move (:meth:`Correlation.squared_sensitivity`): exact where the column of C falls, else an upper bound.

    Args:
        bands: How many draws a step's noise is made of. Default: 8, or as many as there are coefficients.
        coefficients: The first column of C⁻¹, such as ``(1, -0.9)`` for noise that takes back 0.9 of the step before.
            Default: the first numbers of the inverse square root of the matrix of sums.

    Raises:
        ValueError: If ``bands`` is not a whole number from 1 to 128, or differs from the number of coefficients.

    Example:
        >>> BandedInverse(bands=3).correlation(100).coefficients
        (1.0, -0.5, -0.125)
    """

    bands: int | None = None
    coefficients: Sequence[float] | None = None

    name: ClassVar[str] = "banded-inverse"

    def __post_init__(self) -> None:
        _take_coefficients(self)
        if self.bands is None:
            object.__setattr__(self, "bands", 8)

    def correlation(self, steps: int, workload: Workload = SUMS) -> Correlation:
        """The coefficients, or the first numbers of the inverse square root of the matrix of sums: 1, -1/2, -1/8, ….

        Args:
            steps: The length of the run.
            workload: Not used.

        Returns:
            The correlation of the noise.
        """
        if self.coefficients is not None:
            return Correlation(tuple(self.coefficients), inverse=True)
        assert self.bands is not None
        numbers = [1.0]
        for k in range(1, min(self.bands, steps)):
            numbers.append(numbers[-1] * (2 * k - 3) / (2 * k))
        return Correlation(tuple(numbers), inverse=True)


NoiseKind = Banded | BandedInverse


def noise_kind(words: str | None) -> NoiseKind | None:
    """The noise that words name, for commands and files: ``banded``, ``banded:8``, ``banded-inverse``, ….

    >>> noise_kind("banded:8"), noise_kind(None)
    (Banded(bands=8, coefficients=None), None)
    """
    if words is None:
        return None
    name, _, bands = words.partition(":")
    kinds: dict[str, type[NoiseKind]] = {kind.name: kind for kind in (Banded, BandedInverse)}
    if name not in kinds or (bands and not bands.isdecimal()):
        raise ValueError(f"{words!r} names no noise: choose one of {', '.join(kinds)}, with :8 for 8 bands")
    return kinds[name](bands=int(bands)) if bands else kinds[name]()


def _take_coefficients(noise: NoiseKind) -> None:
    """Coefficients as numbers, and as many bands as there are of them."""
    if noise.coefficients is not None:
        numbers = tuple(map(float, noise.coefficients))
        object.__setattr__(noise, "coefficients", numbers)
        if noise.bands not in (None, len(numbers)):
            raise ValueError(f"bands={noise.bands}, but there are {len(numbers)} coefficients: give one of them")
        object.__setattr__(noise, "bands", Correlation(numbers).bands)
    bands: Any = noise.bands
    whole = isinstance(bands, int | np.integer) and not isinstance(bands, bool)
    if bands is not None and not (whole and 1 <= bands <= MOST_BANDS):
        raise ValueError(f"bands must be a whole number from 1 to {MOST_BANDS}, not {bands!r}")
