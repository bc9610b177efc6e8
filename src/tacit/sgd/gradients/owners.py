"""Which example owns which elements of an output?

A model may keep the batch in the first dimension, move it (``(T, B, E)`` in attention and recurrent layers), or fold it
into another one (``(B * T, d)``). A :class:`~tacit.sgd.gradients.contributions.Layout` says where it is.

The layout is never guessed from shapes. It is read off the backward pass: the gradient of ``sum_b w_b * loss_b`` at
an element that belongs to example ``b`` is ``w_b`` times the gradient for ``w = 1``. With powers of two for weights
this holds bit for bit (scaling by a power of two commutes with rounding), so a few backward passes, one per digit of
``b``, name the owner of every element whose gradient is not zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.gradients.contributions import Layout

STRAYS = 0.02  # the share of elements that rounding in half precision may put between two digits
DIGIT = 8  # weights 2**0 … 2**7: far from overflow even in half precision


def candidates(shape: torch.Size, batch: int) -> Iterator[Layout]:
    """Every layout a tensor of this shape can have, the usual ones first."""
    for dim, size in enumerate(shape):
        if size == 0 or size % batch:
            continue
        rest = size // batch
        for outer in [d for d in range(1, rest + 1) if rest % d == 0]:
            yield Layout(dim, outer, batch, rest // outer)


def digit_weights(batch: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """One vector of loss weights per base-8 digit of the example's number."""
    count = max(1, math.ceil(math.log(batch, DIGIT) - 1e-9)) if batch > 1 else 0
    number = torch.arange(batch, device=device)
    return [torch.exp2(((number // DIGIT**k) % DIGIT).to(dtype)) for k in range(count)]


#: Weights 2**-16 … 2**15: gradients of float32 and bfloat16 bear them without overflow.
OWNER = 32


def digits(dtype: torch.dtype) -> tuple[int, int]:
    """The base of the digits of :func:`owner_weights`, and the exponent of the weight of digit zero."""
    return (DIGIT, 0) if dtype == torch.float16 else (OWNER, -(OWNER // 2))


def owner_weights(batch: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """As :func:`digit_weights`, in as few vectors as the type allows."""
    base, least = digits(dtype)
    number, found = torch.arange(batch, device=device), list[Tensor]()
    while base ** len(found) < batch:
        digit = (number // base ** len(found)) % base
        found.append(torch.exp2((digit + least).to(dtype)))
    return found


def follows(layout: Layout, plain: Tensor, weighted: Tensor, weights: Tensor) -> bool:
    """Whether the gradient under these weights is the plain one times the weight of each element's owner."""
    narrow = plain.dtype in (torch.bfloat16, torch.float16)
    one, two = layout.rows(plain), layout.rows(weighted)
    if not one.numel():
        return True
    fine = torch.isfinite(one) & torch.isfinite(two)
    one, two = torch.where(fine, one, 0.0).abs(), torch.where(fine, two, 0.0).abs()  # real, also of complex ones
    two = two / weights.to(two.dtype).unsqueeze(1)
    # What is left after cancellation, or below the range of the type, need not repeat: only sizeable elements count. An
    # element of another example is seen on either side: too small here, or too large there.
    size, largest = torch.maximum(one, two), one.amax(1, keepdim=True)
    floor = torch.maximum((5e-2 if narrow else 1e-5) * largest, 1e-7 * largest.amax())
    wrong = (size > floor) & ((one - two).abs() > 0.3 * size)
    return not bool(wrong.sum() > (STRAYS * wrong.numel() if narrow else 0))


#: Elements of a temporary tensor: evidence about the largest outputs (logits, say) must not take more than they do.
CHUNK = 1 << 26


def _slices(tensor: Tensor) -> Iterator[Any]:
    """Parts along the first dimension, of about :data:`CHUNK` elements each; at least one, which is all."""
    if tensor.dim() == 0 or tensor.numel() <= CHUNK:
        yield ...
        return
    rows = max(1, CHUNK // (tensor.numel() // len(tensor)))
    for start in range(0, len(tensor), rows):
        yield slice(start, start + rows)


def _largest(tensor: Tensor) -> Tensor:
    """The largest size of any finite element; zero where there is none."""
    sizes = [tensor.new_zeros(()).abs()]  # a real number, also of complex ones
    if tensor.numel():
        sizes += [tensor[part].abs().nan_to_num(0.0, 0.0, 0.0).amax() for part in _slices(tensor)]
    return torch.stack(sizes).amax()


class OwnerEvidence:
    """What weighted backward passes tell about one output, one digit of the example's number after the other.

    Kept per dimension, as the largest and smallest digit seen at each entry: a layout is a statement about one
    dimension, and whole tensors of owners would take more memory than the pass itself.
    """

    def __init__(self, plain: Tensor, batch: int, *, every: bool = False, narrow: bool = False) -> None:
        plain = plain.detach()
        # What is left after cancellation need not repeat bit for bit on every device: only sizeable elements count,
        # unless every one has to, because the places of examples change with the data.
        # In half precision, where attention kernels also add up in no fixed order, that takes far more of them, and a
        # few strays prove nothing: what is asked then is what nearly all elements say.
        self.narrow = narrow and not every
        floor = _largest(plain) * (0.0 if every else 5e-2 if self.narrow else 1e-5)
        self.seen = torch.empty_like(plain, dtype=torch.bool)
        for part in _slices(plain):
            size = plain[part].abs().nan_to_num(0.0, 0.0, 0.0)
            self.seen[part] = torch.isfinite(plain[part]) & (size > floor)
        self.plain, self.batch, self.mixed = plain, batch, False
        self.digits: list[dict[int, tuple[Tensor, Tensor]]] = []

    def add(self, weighted: Tensor) -> None:
        """The gradient under the weights of the next digit."""
        value = weighted.detach()
        if not value.numel():
            return
        strays, all_fine = torch.zeros((2,), dtype=torch.int64, device=value.device)
        rows: dict[int, list[tuple[Tensor, Tensor]]] = {dim: [] for dim, size in enumerate(value.shape) if size}
        for part in _slices(value):
            some = value[part]
            fine = self.seen[part] & torch.isfinite(some) & (some != 0)
            exponent = torch.log2(torch.where(fine, (some / self.plain[part]).abs(), 1.0).float())
            digit = exponent.round()
            wrong = ((exponent - digit).abs() > (0.2 if self.narrow else 1e-2)) | (digit < 0) | (digit >= DIGIT)
            strays, all_fine = strays + (fine & wrong).sum(), all_fine + fine.sum()
            fine = fine & ~wrong
            digit = digit.to(torch.int8)
            for dim, found in rows.items():
                size = some.shape[dim]
                high = torch.where(fine, digit, -1).movedim(dim, 0).reshape(size, -1).amax(1)
                low = torch.where(fine, digit, DIGIT).movedim(dim, 0).reshape(size, -1).amin(1)
                found.append((high, low))
        self.mixed = self.mixed or bool(strays > (STRAYS * all_fine if self.narrow else 0))
        # Slices lie along the first dimension, and meet every entry of the others.
        self.digits.append(
            {
                dim: (torch.cat([h for h, _ in found]), torch.cat([w for _, w in found]))
                if dim == 0
                else (torch.stack([h for h, _ in found]).amax(0), torch.stack([w for _, w in found]).amin(0))
                for dim, found in rows.items()
            }
        )

    @property
    def empty(self) -> bool:
        return not bool(self.seen.any())

    def by_row(self) -> list[int]:
        """The dimensions along which every entry is one example's, or nobody's."""
        if self.mixed:
            return []
        return [
            dim
            for dim in range(self.plain.dim())
            if all(
                dim in rows and bool(((rows[dim][0] < 0) | (rows[dim][0] == rows[dim][1])).all())
                for rows in self.digits
            )
        ]

    def layouts(self) -> list[Layout]:
        """The layouts that agree with everything seen."""
        if self.mixed:
            return []
        found = []
        for layout in candidates(self.plain.shape, self.batch):
            number = layout.owner(self.plain.device)
            good = True
            for k, rows in enumerate(self.digits):
                high, low = rows[layout.dim]
                digit = (number // DIGIT**k) % DIGIT
                good = good and bool(((high < 0) | ((high == digit) & (low == digit))).all())
            if good:
                found.append(layout)
        return found


def unmoved(layouts: list[Layout], before: Tensor, after: Tensor, example: int) -> list[Layout]:
    """Keep the layouts under which the elements of ``example`` stayed equal when all other examples were replaced."""
    if before.shape != after.shape:
        return layouts
    before, after = before.detach(), after.detach()
    size = _largest(before).double()
    change = torch.empty_like(before, dtype=torch.bool)
    for part in _slices(before):
        one, two = before[part], after[part]
        differ = (one != two) & ~(torch.isnan(one) & torch.isnan(two))
        # Kernels may sum in another order: only a change well above rounding is evidence.
        change[part] = differ & ((one.double() - two.double()).abs() > 1e-3 * size)
    kept = [y for y in layouts if not bool(change.movedim(y.dim, 0)[y.owner(change.device) == example].any())]
    moving = [y for y in kept if bool(change.movedim(y.dim, 0)[y.owner(change.device) != example].any())]
    return moving or kept
