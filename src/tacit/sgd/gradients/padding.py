"""Does it change what is computed for an example how far its batch was padded?

Records of different lengths are padded to the longest of their batch, so the length of one record reaches all others:
in a mean over time that counts padding, or in positions that are counted from padding. Replacing examples at the same
shape does not show it. Here one example is computed twice by itself, as it stands in its batch and without its padding,
and must come out the same. Padding that changes nothing (masked, or behind what is read) stays allowed.

How much of an example is padding is known for certain where the collate function is at hand: it makes a batch of one
(:func:`alone`). Elsewhere, once batches have been seen to differ in length, masks, lengths or constant ends tell
(:func:`guessed`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from tacit.sgd.errors import BatchMixing, ClippingError
from tacit.sgd.gradients.batches import leaves

#: How many records of a batch are collated by themselves, to find one that was padded.
TRIED = 8

_CHOICE = random.Random()  # of its own: what a collate function draws is not touched

FELT = (
    "how far an example is padded changes what is computed for it, and that depends on the longest example of its "
    "batch: one person's length reaches all others, and no per-example bound exists. Pad every example to one public "
    "length; or keep padding out of means and losses with a mask, and count positions from the first real token (pad "
    "on the right, or pass position_ids). See: tacit explain mixing"
)
UNTOLD = (
    "examples are padded to the longest of their batch. Whether that changes what is computed for them cannot be "
    "checked, because the model does not run on one of them without its padding: pad every example to one public length"
)


OF_NO_RECORD = (
    "the collate function returns a tensor that belongs to no single record (a length of the batch, a maximum, tokens "
    "of all records without offsets), through which one record can reach all others: return tensors with the records "
    "in the first dimension (the second with batch_first=False). See: tacit explain mixing"
)
OTHER_VALUES = (
    "the collate function gives a record other values in another batch, so one person's record reaches those of "
    "others, and no per-example bound exists: compute each record from that record alone. See: tacit explain mixing"
)
SHORTENED = (
    "the collate function cuts records to the shortest of their batch, so one person's length reaches all others, and "
    "no per-example bound exists: cut every record to one public length. See: tacit explain mixing"
)
#: How often a batch is collated again to see whether the collate function draws at random.
REPEATED = 8


@dataclass(frozen=True)
class Padded:
    """An example of a batch that is shorter than the batch: its row, and its own size for each padded one."""

    row: int
    sizes: tuple[tuple[int, int], ...]
    left: bool

    def strip(self, tensor: Tensor, keep: int, most: int) -> Tensor:
        """The part of a tensor that is not padding; dimension ``keep`` holds examples, ``most`` others are cut.

        Two dimensions may have been padded to one size (images): their own sizes come in the same order.
        """
        found: dict[int, int] = {}
        for dim, size in enumerate(tensor.shape):
            own = [one for big, one in self.sizes if big == size]
            if dim != keep and own and sum(found.values()) < most:
                one = own[min(found.get(size, 0), len(own) - 1)]
                found[size] = found.get(size, 0) + 1
                tensor = tensor.narrow(dim, size - one if self.left else 0, one)
        return tensor


# -- with the collate function ------------------------------------------------------------------------------------


@contextmanager
def _nothing_drawn() -> Iterator[None]:
    """Random numbers that a collate function draws inside are drawn again after."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002


def alone(collate: Callable[[list[Any]], Any], records: list[Any], batch: Any, dim: int = 0) -> Padded | None:
    """What collating records by themselves says about a batch of them: one that was padded, or ``None``.

    Refused is a collate function that gives a record other values in other company, beyond padding.
    """
    if len(records) < 2 or collate is default_collate:  # which never pads: it wants one size
        return None
    together = leaves(batch)
    step = max(1, len(records) // TRIED)
    found: Padded | None = None
    with _nothing_drawn():
        for k in range(_CHOICE.randrange(step), len(records), step):
            padded = _compared(collate, records, k, together, dim)
            if padded is not None and (found is None or padded.sizes < found.sizes):
                found = padded
    return found


def _compared(
    collate: Callable[[list[Any]], Any], records: list[Any], k: int, together: list[Tensor], dim: int
) -> Padded | None:
    """What one record says by itself: that it was padded, that it is as in its batch, or that it is refused."""
    single = leaves(collate([records[k]]))
    pairs, owned = [], dict[int, list[int]]()
    for one, many in zip(single, together, strict=False):
        at = min(dim, many.dim() - 1)  # a vector has a single place for the records
        if one.dim() == many.dim() > 0 and one.shape[at] == 1 and many.shape[at] == len(records):
            pairs.append((one.select(at, 0), many.movedim(at, 0)))
            if not _note_sizes(owned, *pairs[-1]):
                return None  # two fields were padded to one size: another record, or batch, tells
        elif not _same(one, many):
            if _in_one_row(collate, records, together):
                return None
            raise ClippingError(OF_NO_RECORD)
    if len(single) != len(together) or not pairs:
        raise ClippingError(OF_NO_RECORD)
    sizes = tuple((big, small) for big, found in sorted(owned.items()) for small in found)
    if any(big < small for big, small in sizes):
        raise BatchMixing(SHORTENED)
    padded, same = _found_again(pairs, sizes, k)
    if not same and not _at_random(collate, records, together):
        raise BatchMixing(OTHER_VALUES)
    return padded if sizes else None


def _found_again(pairs: list[tuple[Tensor, Tensor]], sizes: tuple[tuple[int, int], ...], k: int) -> tuple[Padded, bool]:
    """The record in its batch, and whether all of it is the same there.

    Where it is not it was drawn at random (masked tokens, say), or changed: sizes are known, and what is the same (a
    mask) tells the side.
    """
    matches: dict[bool, int] = {}
    for left in (False, True) if sizes else (False,):
        for row in (k, *range(len(pairs[0][1]))):  # most keep the order; some sort by length
            padded = Padded(row, sizes, left)
            same = [_same(one, padded.strip(many[row], -1, many.dim())) for one, many in pairs]
            if all(same) and (row == k or all(_is_filled(padded, many[row]) for _, many in pairs)):
                return padded, True
            matches.setdefault(left, sum(same))
    return Padded(k, sizes, max(matches, key=lambda left: matches[left])), False


def _note_sizes(owned: dict[int, list[int]], one: Tensor, many: Tensor) -> bool:
    """Note what each size of a batch is for a record alone, where that differs; false where one size would be two.

    ``one`` is a tensor of the record, ``many`` that of its batch, with the records in the first dimension.
    """
    padded_to: dict[int, list[int]] = {}
    for small, big in zip(one.shape, many.shape[1:], strict=True):
        if small != big:
            padded_to.setdefault(big, []).append(small)
    for big, own in padded_to.items():
        longer = len(own) > len(owned.get(big, []))
        if not longer and owned[big][: len(own)] != own:
            return False
        owned[big] = own if longer else owned[big]
    return True


def _in_one_row(collate: Callable[[list[Any]], Any], records: list[Any], together: list[Tensor]) -> bool:
    """Whether a batch is its records one behind the other, with offsets or lengths, as for ``nn.EmbeddingBag``."""
    every = [leaves(collate([record])) for record in records]
    if any(len(single) != len(together) or any(t.dim() == 0 for t in single) for single in every):
        return False
    # Fields that are explained by themselves, and those of them that are longer or shorter than the batch.
    whole = {k for k, parts in enumerate(zip(*every, strict=True)) if _is_joined(parts, together[k])}
    long = [k for k in sorted(whole) if len(together[k]) != len(records)]
    lengths = [torch.tensor([len(single[j]) for single in every]) for j in long]
    known = [made for n in lengths for made in (n, n.cumsum(0), n.cumsum(0) - n)]
    rest = [t.long() for k, t in enumerate(together) if k not in whole]
    return bool(long) and all(any(torch.equal(t, made) for made in known) for t in rest)


def _is_joined(parts: tuple[Tensor, ...], whole: Tensor) -> bool:
    """Whether a tensor is these ones, one behind the other."""
    return len({t.shape[1:] for t in parts}) == 1 and _same(torch.cat(parts), whole)


def _at_random(collate: Callable[[list[Any]], Any], records: list[Any], together: list[Tensor]) -> bool:
    """Whether collating the same records again gives something else."""
    for _ in range(REPEATED):
        again = leaves(collate(records))
        if len(again) != len(together) or not all(_same(a, b) for a, b in zip(again, together, strict=True)):
            return True
    return False


def _is_filled(padded: Padded, tensor: Tensor) -> bool:
    """Whether one value fills what is not the example's own."""
    outside = torch.ones_like(tensor, dtype=torch.bool)
    padded.strip(outside, -1, tensor.dim()).fill_(value=False)
    rest = tensor[outside]
    return bool((rest == rest[:1]).all())


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return bool(torch.equal(one, two)) or bool(((one == two) | ((one != one) & (two != two))).all())


# -- without it ---------------------------------------------------------------------------------------------------


class Lengths:
    """Which dimensions of a batch's tensors have been seen to differ from batch to batch."""

    def __init__(self) -> None:
        self._seen: dict[Any, list[tuple[int, ...]]] = {}
        self._varying: dict[Any, set[tuple[int, int]]] = {}

    def differs(self, key: Any, rows: int) -> bool:
        """Whether an earlier batch had another number of examples."""
        return self._seen.setdefault(key, [(rows,)]) != [(rows,)]

    def varying(self, key: Any, tensors: Sequence[Tensor], dims: Sequence[int | None]) -> set[int]:
        """The sizes in this batch of what has had another size in an earlier one; ``dims`` hold the examples."""
        shapes = [tuple(t.shape) for t in tensors]
        before = self._seen.setdefault((key, tuple(len(s) for s in shapes)), shapes)
        known = self._varying.setdefault((key, tuple(len(s) for s in shapes)), set())
        for i, (one, two, dim) in enumerate(zip(before, shapes, dims, strict=True)):
            known |= {(i, d) for d in range(len(one)) if dim is not None and d != dim and one[d] != two[d]}
        return {shapes[i][d] for i, d in known}


def _filled(tensor: Tensor) -> Tensor:
    """How many elements each row begins with that look like padding: one value, and nowhere else in any row."""
    flat = tensor.reshape(*tensor.shape[:2], -1)
    ends = (flat == flat[:, :1]).all(2).long().cumprod(1).sum(1)
    value = flat[int(ends.argmax()), 0]
    where = (flat == value).all(2).long()
    ends = where.cumprod(1).sum(1)
    shared = bool((ends == where.sum(1)).all()) and int((ends > 0).sum()) > 1
    return ends * shared * (ends > 1)


def _constant_behind(tensor: Tensor, lengths: Tensor) -> bool:
    """Whether one value fills the places behind these lengths, in all rows."""
    flat = tensor.reshape(*tensor.shape[:2], -1)
    behind = flat[torch.arange(flat.shape[1], device=flat.device) >= lengths.to(flat.device).unsqueeze(1)]
    return bool((behind == behind[:1]).all())


def guessed(tensors: Sequence[Tensor], dims: Sequence[int | None], rows: int, size: int) -> Padded | None:
    """The example with most padding in a dimension of this size, as masks, lengths or constant ends tell it."""
    held = [t.detach().movedim(d, 0) for t, d in zip(tensors, dims, strict=True) if d is not None]
    long = [t.movedim(d, 1) for t in held for d in range(1, t.dim()) if t.shape[d] == size]
    masks = [t for t in long if t.dim() == 2 and bool(((t == 0) | (t == 1)).all())]
    found: list[tuple[int, int, bool]] = []
    for left in (False, True):
        own = _own_by_masks(masks, size, left=left)
        if own is None and not left:
            own = _own_by_lengths(held, long, rows, size)
        if own is None and long and not masks:
            own = size - torch.stack([_filled(t if left else t.flip(1)) for t in long]).amin(0)
        if own is not None and int(own.min()) < size:
            found.append((int(own.min()), int(own.argmin()), left))
    if not found:
        return None
    own_size, row, left = min(found)
    return Padded(row, ((size, own_size),), left)


def _own_by_masks(masks: list[Tensor], size: int, *, left: bool) -> Tensor | None:
    """How many places of each row are its own, where a mask marks them all on one side."""
    own: Tensor | None = None
    for mask in [m.bool() for m in masks] + [~m for m in masks if m.dtype == torch.bool]:
        count = mask.long().sum(1)
        place = torch.arange(size, device=mask.device)
        inside = place >= size - count.unsqueeze(1) if left else place < count.unsqueeze(1)
        if bool((inside == mask).all()) and bool((count > 0).all()):
            own = count
    return own


def _own_by_lengths(held: list[Tensor], long: list[Tensor], rows: int, size: int) -> Tensor | None:
    """The lengths of the rows, where a tensor has one number for each and nothing is behind them."""
    flat = [t.reshape(rows) for t in held if t.numel() == rows and not t.is_floating_point() and t.dtype != torch.bool]
    fits = (t.long() for t in flat if bool((t > 0).all()) and int(t.max()) == size)
    return next((n for n in fits if any(_constant_behind(t, n) for t in long)), None)
