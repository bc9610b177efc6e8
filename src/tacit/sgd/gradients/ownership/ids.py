"""How are owners written down and brought together?

An element's owner is a whole number: :data:`PUBLIC` for nobody, ``k + 1`` for example ``k``, :data:`MIXED` for several
of them. Operations that fill with zeros thus fill with what is public.

The owner ``k + 1`` means that the element is a function of example ``k`` and of what is public: it keeps its value,
whatever the other examples are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

PUBLIC, MIXED = 0, -1
DTYPE = torch.int32
#: Above every owner.
LAST = torch.iinfo(DTYPE).max


def combined(one: Tensor, two: Tensor) -> Tensor:
    """The owners of what is computed of two elements each.

    >>> a, b = torch.tensor([0, 1, 1, 1, -1]), torch.tensor([0, 0, 1, 2, 1])
    >>> combined(a, b).tolist()
    [0, 1, 1, -1, -1]
    """
    low, high = torch.minimum(one, two), torch.maximum(one, two)
    return torch.where((low == high) | (low == PUBLIC), high, MIXED)


def all_of(owners: Iterable[Tensor | None]) -> Tensor | None:
    """The owners of what is computed of several tensors, element by element; None where all is public."""
    found: Tensor | None = None
    for some in owners:
        if some is not None:
            found = some if found is None else combined(found, some)
    return found


def together(owners: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """The owner of what is computed of all elements along these dimensions, each of which keeps the size one.

    >>> together(torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 2]]), [1]).tolist()
    [[1], [0], [-1]]
    """
    dims = (
        list(range(owners.dim())) if dims is None else sorted({d % owners.dim() for d in dims} if owners.dim() else ())
    )
    if not dims:
        return owners
    if owners.numel() == 0:  # nothing went in: nobody's
        return owners.new_zeros([1 if d in dims else n for d, n in enumerate(owners.shape)])
    # What is the same along a dimension needs no search.
    for d in dims:
        if owners.stride(d) == 0 or owners.shape[d] == 1:
            owners = owners.narrow(d, 0, 1)
    dims = [d for d in dims if owners.shape[d] > 1]
    if not dims:
        return owners
    high = owners.amax(dims, keepdim=True)
    low = torch.where(owners == PUBLIC, LAST, owners).amin(dims, keepdim=True)
    return torch.where(low >= high, high, MIXED)
