"""Whose is each row, where the data themselves decide which rows there are and in which order?

Tokens that are sorted by their expert, packed sequences, the nodes of graphs: no arithmetic says where the examples
are. A plan then says only along which dimension the rows lie (:class:`ByRow`), and every batch tells whose they are
(:func:`found`): with losses weighted by powers of two, the gradient at a row of example ``b`` is multiplied by exactly
``b``'s weight. A row without a gradient is nobody's and adds nothing. No id outlives its batch.

:class:`OwnedRows` are a layout like any other: rules see rows put in order of their examples, each with as many places
as the longest needs, and zeros in those that are left over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.sgd.gradients.contributions import Layout

#: How far the gradient at an element may be from its row's weight times itself, relative to itself and to its row: what
#: is no power of two is no rounding.
APART = {torch.float64: (1e-6, 1e-9), torch.float32: (1e-4, 1e-6)}
NARROW = (0.1, 0.05)
#: So many elements of each row are looked at first.
COLUMNS = 16
#: Rows of smaller gradients would leave the range of float32 under weights: they count as nothing.
NOTHING = 1e-30


class Unowned(Exception):
    """It cannot be told whose some rows of a batch are, because their gradient is not finite."""


@dataclass(frozen=True)
class ByRow(Layout):
    """Examples have rows along ``dim``, and which these are is found in every batch."""

    regular = False

    @staticmethod
    def along(dim: int, batch: int) -> ByRow:
        """The rows of so many examples along a dimension."""
        return ByRow(dim, 1, batch, 0)


@dataclass(frozen=True, eq=False)
class OwnedRows(Layout):
    """Whose each entry of dimension ``dim`` is in one batch: ``ids``, with -1 where it is nobody's.

    ``index`` (batch, inner) are the entries of each example, one after another, and ``real`` tells them from what only
    fills the place.

    >>> rows = OwnedRows.of(0, torch.tensor([1, 0, -1, 1]), 3)
    >>> rows.rows(torch.tensor([5, 6, 7, 8])).tolist()
    [[6, 0], [5, 8], [0, 0]]
    """

    ids: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    index: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))
    real: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.bool))
    regular = False

    @staticmethod
    def of(dim: int, ids: Tensor, batch: int) -> OwnedRows:
        """The layout of entries with these owners."""
        last = torch.where(ids < 0, batch, ids)  # nobody's come after all others
        counts = torch.bincount(last, minlength=batch + 1)[:batch]
        longest = max(1, int(counts.max())) if len(ids) else 1
        place = torch.arange(longest, device=ids.device)
        real = place < counts.unsqueeze(1)
        index = torch.zeros_like(real, dtype=torch.int64)
        if len(ids):
            start = counts.cumsum(0) - counts
            index = last.argsort(stable=True)[torch.where(real, start.unsqueeze(1) + place, 0)]
        return OwnedRows(dim, 1, batch, longest, ids, index, real)

    @property
    def size(self) -> int:
        return len(self.ids)

    def straight(self, tensor: Tensor, dim: int) -> Tensor:
        """The entries along a dimension in order of their examples, with zeros where one has fewer than another."""
        shape = list(tensor.shape)
        shape[dim] = self.index.numel()
        if not len(self.ids):
            return tensor.new_zeros(shape)
        real = self.real.reshape([-1 if d == dim else 1 for d in range(tensor.dim())])
        picked = tensor.index_select(dim, self.index.flatten())
        return torch.where(real, picked, torch.zeros((), dtype=tensor.dtype, device=tensor.device))

    @property
    def plain(self) -> Layout:
        """Where the examples are in a tensor that was put straight."""
        return Layout(self.dim, 1, self.batch, self.inner)

    def split(self, tensor: Tensor, dim: int | None = None) -> Tensor:
        dim = self.dim if dim is None else dim
        shape = tensor.shape
        return self.straight(tensor, dim).reshape(*shape[:dim], 1, self.batch, self.inner, *shape[dim + 1 :])

    def owner(self, device: torch.device | str = "cpu") -> Tensor:
        return self.ids.to(device)

    def spread(self, per_example: Tensor, ndim: int) -> Tensor:
        zero = torch.zeros((), dtype=per_example.dtype, device=per_example.device)
        entries = torch.where(self.ids < 0, zero, per_example[self.ids.clamp(min=0)])
        return entries.reshape((1,) * self.dim + (-1,) + (1,) * (ndim - self.dim - 1))

    def moved(self, dim: int) -> OwnedRows:
        return dataclasses.replace(self, dim=dim)

    def within(self, group: Tensor, groups: int) -> OwnedRows:
        """The same rows, of as many examples in each group: ``group`` is the number of each row's, or ``groups``."""
        nobody = (self.ids < 0) | (group >= groups)
        return OwnedRows.of(self.dim, torch.where(nobody, -1, self.ids * groups + group), self.batch * groups)


def still(known: OwnedRows, dim: int, plain: Tensor, weighed: Sequence[tuple[Tensor, Tensor | None]]) -> bool:
    """Whether rows of this batch that were found at another output are the rows of this one, to the last bit."""
    if plain.shape[dim] != len(known.ids) or not bool(torch.isfinite(plain.sum())):
        return False
    return all(
        g is not None and torch.equal(plain * known.moved(dim).spread(w.to(g.dtype), g.dim()), g) for w, g in weighed
    )


def found(
    dim: int, plain: Tensor, weighed: Sequence[tuple[Tensor, Tensor | None]], batch: int, base: int, least: int
) -> OwnedRows | None:
    """Whose each entry along a dimension is, from gradients under weights of the examples; None where one is several's.

    ``weighed`` are the weights and the gradients under them, one pair for each digit of an example's number to a
    ``base``; the weights are powers of two, the digit plus ``least``.

    Raises:
        Unowned: If it cannot be told because no element of an entry is finite.
    """
    ids = torch.full((plain.shape[dim],), -1, dtype=torch.int64, device=plain.device)
    if not plain.numel():
        return OwnedRows.of(dim, ids, batch)
    values = plain.detach().movedim(dim, 0).reshape(len(ids), -1)
    others = [
        (weights, torch.zeros_like(values) if g is None else g.detach().movedim(dim, 0).reshape(len(ids), -1))
        for weights, g in weighed
    ]
    # A few columns tell as much, where all others then agree with them to the last bit.
    largest, number, fine = _numbers(values[:, :COLUMNS], [g[:, :COLUMNS] for _, g in others], base, least)
    told = largest > NOTHING
    if values.shape[1] > COLUMNS and bool((fine & (number < batch) | ~told).all()):
        quick = OwnedRows.of(dim, torch.where(told, number, -1), batch)
        if still(quick, dim, plain, weighed):
            return quick
    if not bool(torch.stack([torch.isfinite(t).all() for t in (values, *(g for _, g in others))]).all()):
        raise Unowned
    largest, number, fine = _numbers(values, [g for _, g in others], base, least)
    fine &= number < batch
    number = number.clamp(max=batch - 1)
    owned = largest > NOTHING
    close, floor = APART.get(plain.dtype, NARROW)
    for weights, other in others:
        alone = other / weights.to(other.dtype)[number].unsqueeze(1)
        away = (alone - values).abs() - close * values.abs() - floor * largest.unsqueeze(1)
        fine &= (away <= 0).all(1)
        owned |= (other != 0).any(1) & (largest == 0)  # under other weights terms do not cancel: several examples'
    if bool((owned & ~fine).any()):
        return None
    return OwnedRows.of(dim, torch.where(owned, number, ids), batch)


def _numbers(values: Tensor, others: list[Tensor], base: int, least: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest size in each row, the number of the example that its weights tell, and whether they tell one."""
    largest, place = values.abs().max(1, keepdim=True)
    one = values.gather(1, place)
    number = torch.zeros(len(values), dtype=torch.int64, device=values.device)
    fine = torch.ones_like(number, dtype=torch.bool)
    for k, other in enumerate(others):
        ratio = (other.gather(1, place) / one).abs().squeeze(1)
        digit = torch.log2(ratio.double()).nan_to_num(-1e3, 1e3, -1e3).round().long() - least
        fine &= (digit >= 0) & (digit < base)
        number += digit.clamp(0, base - 1) * base**k
    return largest.squeeze(1), number, fine
