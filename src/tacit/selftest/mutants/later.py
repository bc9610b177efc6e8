"""Are the checks made to measure? Two further mutants of each family, written after the checks were frozen.

The history of the project shows it: these came in a later commit than every check that catches them, and none of the
checks was changed for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit import accounting as acc
from tacit.noise.keys import Key
from tacit.noise.sampling import bernoulli_threshold, uniform
from tacit.noise.tensor import add_normal_, add_normal_many_
from tacit.selftest.mutants.base import adding, mutant, replaced
from tacit.sgd import Clipping, Training
from tacit.sgd.gradients.contributions import Group, Norms
from tacit.sgd.training.sampling import Indices, Poisson

# -- noise -------------------------------------------------------------------------------------------------------------


@mutant("noise only where the sum is not zero", "noise", later=True)
def sparse_noise() -> Iterator[None]:
    """Coordinates that no record touched get no noise, which tells that none did."""

    def add(tensors: Sequence[Tensor], key: Key, step: int, names: Sequence[Any], scale: float) -> None:
        touched = [tensor != 0 for tensor in tensors]
        add_normal_many_(tensors, key, step, names, scale)
        for tensor, where in zip(tensors, touched, strict=True):
            tensor *= where

    with adding(add):
        yield


@mutant("each noise number serves two elements", "noise", later=True)
def noise_in_pairs() -> Iterator[None]:
    """Half as many numbers are drawn, to save time."""

    def add(tensors: Sequence[Tensor], key: Key, step: int, names: Sequence[Any], scale: float) -> None:
        for tensor, name in zip(tensors, names, strict=True):
            fresh = tensor.new_zeros((tensor.numel() + 1) // 2)
            add_normal_(fresh, key, step, name, scale)
            tensor += fresh.repeat_interleave(2)[: tensor.numel()].view(tensor.shape)

    with adding(add):
        yield


# -- sensitivity -------------------------------------------------------------------------------------------------------


@mutant("only the first physical batch is clipped", "sensitivity", later=True)
def first_piece_only() -> Iterator[None]:
    """The pieces of a large batch that come after the first are added as they are."""
    plain = Training.add_piece

    def add(self: Training, piece: Any, sums: dict[str, Tensor], clipping: Clipping, *, alone: bool) -> Tensor | float:
        if not sums:
            return plain(self, piece, sums, clipping, alone=alone)
        kept, self.clipping = self.clipping, "flat"
        try:
            return plain(self, piece, sums, Clipping("flat", (tuple(self.parameters),), (1e9,)), alone=alone)
        finally:
            self.clipping = kept

    with replaced(Training, "add_piece", add):
        yield


@mutant("uses of a tied weight are clipped without their cross term", "sensitivity", later=True)
def no_cross_term() -> Iterator[None]:
    """|a + b|² is taken for |a|² + |b|²: right only where two uses of a weight have nothing in common."""
    of = Group.of

    def apart(contributions: Any, shape: Any) -> Group:
        whole = of(contributions, shape)
        if len(contributions) > 1:
            each = [of([c], shape) for c in contributions]

            def norms() -> Norms:
                return Norms(torch.stack([part.norms().squared for part in each]).sum(0))

            whole.norms = norms  # type: ignore[method-assign]
        return whole

    with replaced(Group, "of", staticmethod(apart)):
        yield


# -- sampling ----------------------------------------------------------------------------------------------------------


@mutant("some records are drawn more often than others", "sampling", later=True)
def uneven() -> Iterator[None]:
    """Records of the first half take part half as often again, the rest less: the mean rate is what is priced."""

    def draw(self: Poisson, key: Key, step: int, units: int) -> Indices:
        rates = np.where(np.arange(units) < units // 2, min(1.5 * self.rate, 1.0), 0.5 * self.rate)
        limits = np.array([min(bernoulli_threshold(float(r)), 2**64 - 1) for r in rates], dtype=np.uint64)
        if self.rate >= 1:
            return np.arange(units, dtype=np.int64)
        return np.flatnonzero(uniform(key, step, units) < limits).astype(np.int64)

    with replaced(Poisson, "draw", draw):
        yield


@mutant("steps are drawn in antithetic pairs", "sampling", later=True)
def antithetic() -> Iterator[None]:
    """Every other step uses one minus the numbers of the step before it: who was in is out next time."""
    plain = Poisson.draw

    def draw(self: Poisson, key: Key, step: int, units: int) -> Indices:
        if step % 2 == 0 or self.rate >= 1:
            return plain(self, key, step, units)
        limit = np.uint64(2**64 - 1 - min(bernoulli_threshold(self.rate), 2**64 - 1))
        return np.flatnonzero(uniform(key, step - 1, units) > limit).astype(np.int64)

    with replaced(Poisson, "draw", draw):
        yield


# -- accounting --------------------------------------------------------------------------------------------------------


@mutant("only adding a record is priced, not removing one", "accounting", later=True)
def one_direction() -> Iterator[None]:
    """One of the two directions of a sampled mechanism costs less, and is stated for both."""
    pair = acc.PoissonSampled.pair

    def adding(self: Any, adjacency: str, direction: str, group: int = 1) -> Any:
        return pair(self, adjacency, "add", group)

    with replaced(acc.PoissonSampled, "pair", adding):
        yield


@mutant("the steps of the last, unfinished pass are not priced", "accounting", later=True)
def last_pass_free() -> Iterator[None]:
    """Whole passes are counted, and what comes after the last of them is not."""
    from tacit.sgd import Plan

    prefix = Plan.prefix

    def whole(self: Plan, steps: int) -> acc.Mechanism:
        per_pass = self.sampler.steps_per_epoch
        return prefix(self, max(steps // per_pass * per_pass, 1))

    with replaced(Plan, "prefix", whole):
        yield
