"""In which coordinates does a derived value hold a parameter's gradient?

A use sees a value ``D`` made from a parameter ``P``. When ``D`` is a selection of ``P``'s elements (a view,
transpose, cast, slice, lookup with fixed indices, expansion over the batch) its gradient keeps its length as long as
no element is selected twice, and a :class:`Frame` records which elements they are. Anything else (weight norm, weight
standardisation, a projected prefix) is brought back to ``P`` by ``vmap`` of the vjp of ``D``, example by example.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.sgd.gradients.capture import substitute, tensors_in
from tacit.sgd.gradients.contributions import Aligned, Contribution, Dense, Layout, flip, to_dense, wide
from tacit.sgd.gradients.functions import CASTING, Derived, Placeholder

_TRANSPOSES = frozenset(["t", "T", "mT", "H", "mH", "adjoint"])
CHUNK_ELEMENTS = 1 << 26


@dataclass
class Frame:
    """Where a contribution lives in its parameter.

    ``key`` names the coordinates (``"root"`` for the parameter's own), ``flipped`` whether a matrix arrives
    transposed, ``index`` the flat position of each element when the coordinates are not the parameter's own,
    ``unique`` whether these positions are distinct, ``constant`` whether an aligned value selects the same elements
    for every example.
    """

    key: Any
    flipped: bool = False
    index: Tensor | None = None
    unique: bool = True
    constant: bool = True


def chain_tensors(derived: Derived) -> list[Tensor]:
    """Tensors among the arguments of a selection: indices that must stay the same for its frame to hold."""
    return [t for step in derived.chain or () for t in tensors_in((step[2], step[3]))]


def chain_key(derived: Derived) -> Any:
    """What a selection depends on besides tensors, as a string."""
    if derived.chain is None:
        return None
    if not derived.chain:
        return ""
    return str([(n, substitute((a, k), _told, (Tensor, np.ndarray)), i) for _, n, a, k, i in derived.chain])


def _told(value: Any) -> Any:
    """A tensor, or a long array of numbers that would be written with its middle left out, as it is told apart."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return value.dtype, value.shape, hash(value.tobytes())


def index_map(derived: Derived, parameter: Tensor) -> Tensor:
    """The flat position in the parameter of each element of a selection of it."""
    current: Any = torch.arange(parameter.numel(), device=parameter.device).view(parameter.shape)
    for func, name, args, kwargs, item in derived.chain or ():
        if name in CASTING:
            continue
        args, kwargs = substitute((args, kwargs), lambda _, here=current: here, (Placeholder,))  # type: ignore[misc]
        current = func(*args, **kwargs)
        if item is not None:
            current = tensors_in(current)[item]
    result: Tensor = current
    return result


def frame_of(derived: Derived, contribution: Contribution, parameter: Tensor) -> Frame | None:
    """The frame of a contribution to a selection of ``parameter``; ``None`` for a value that is no selection."""
    if derived.chain is None:
        return None
    moving = [step for step in derived.chain if step[1] not in CASTING]
    if not isinstance(contribution, Aligned):
        if not moving:
            return Frame("root")
        if len(moving) == 1 and moving[0][1] in _TRANSPOSES and parameter.dim() == 2:
            return Frame("root", flipped=True)
    index = index_map(derived, parameter)
    constant = True
    if isinstance(contribution, Aligned):
        rows = contribution.layout.rows(index)
        constant = bool((rows == rows[0]).all())
        index = rows[0] if constant else rows
    unique = constant and index.unique().numel() == index.numel()
    if (
        unique
        and index.shape == parameter.shape
        and torch.equal(index.flatten(), torch.arange(index.numel(), device=index.device))
    ):
        return Frame("root")
    flipped = False
    if index.dim() == 2 and constant and not isinstance(contribution, Aligned):
        # One orientation for both a matrix and its transpose, so that their uses meet in the same coordinates.
        flipped = bool(index[0, -1] > index[-1, 0])
        index = index.mT if flipped else index
    key = (tuple(index.shape), hash(index.cpu().numpy().tobytes()))
    return Frame(key, flipped, index.contiguous(), unique, constant)


def in_frame(frame: Frame, contribution: Contribution) -> Contribution:
    """A contribution in the coordinates of its frame."""
    if isinstance(contribution, Aligned):
        values = contribution.layout.rows(contribution.values)
        if frame.index is not None:
            return Dense(values.reshape(len(values), *(frame.index.shape if frame.constant else frame.index.shape[1:])))
        return Dense(values)
    return flip(contribution) if frame.flipped else contribution


def in_parameter(frame: Frame, contribution: Contribution, shape: torch.Size, parameter: Tensor) -> Tensor:
    """Per-example gradients of the parameter itself, ``(batch, *shape of P)``; elements selected twice add up."""
    moved = in_frame(frame, contribution)
    if frame.index is None:
        target = parameter.shape if frame.key == "root" else shape
        return to_dense(moved, target).reshape(-1, *parameter.shape)
    dense = to_dense(moved, frame.index.shape)
    batch = dense.shape[0]
    dense = dense.reshape(batch, -1)  # a single element has no dimensions of its own
    index = frame.index.reshape(1, -1).expand(batch, -1) if frame.constant else frame.index.reshape(batch, -1)
    zeros = dense.new_zeros(batch, parameter.numel())
    return zeros.scatter_add(1, index, dense).reshape(batch, *parameter.shape)


def per_example_vjp(derived: Derived, contribution: Contribution, parameters: list[Tensor], batch: int) -> list[Tensor]:
    """Per-example gradients of every parameter behind a derived value, by ``vmap`` of its vjp."""
    value = derived.tensor
    chunk = max(1, min(batch, CHUNK_ELEMENTS // max(1, value.numel() + sum(p.numel() for p in parameters))))
    pieces: list[list[Tensor]] = [[] for _ in parameters]
    dense = None if isinstance(contribution, Aligned) else to_dense(contribution, value.shape)
    for start in range(0, batch, chunk):
        stop = min(batch, start + chunk)
        if isinstance(contribution, Aligned):
            cotangent = _own_slices(contribution.values, contribution.layout, start, stop)
        else:
            assert dense is not None
            cotangent = dense[start:stop].reshape(stop - start, *value.shape)
        for k, piece in enumerate(batched_vjp(value, parameters, cotangent.to(value.dtype))):
            pieces[k].append(piece)
    return [torch.cat(p) if len(p) > 1 else p[0] for p in pieces]


def _own_slices(values: Tensor, layout: Layout, start: int, stop: int) -> Tensor:
    mine = torch.eye(layout.batch, device=values.device, dtype=torch.bool)[start:stop]
    masks = torch.stack([layout.spread(row, values.dim()) for row in mine])
    return torch.where(masks, values.unsqueeze(0), torch.zeros((), dtype=values.dtype, device=values.device))


def batched_vjp(value: Tensor, parameters: list[Tensor], cotangents: Tensor) -> list[Tensor]:
    """``(n, *parameter shape)`` for ``n`` cotangents of one value, in the type norms are computed in."""
    n = cotangents.shape[0]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*performance drop.*")
            found: tuple[Tensor | None, ...] = torch.autograd.grad(
                value, parameters, cotangents, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
    except RuntimeError:  # an operation without a batching rule: the same, one cotangent after another
        singles = [torch.autograd.grad(value, parameters, c, retain_graph=True, allow_unused=True) for c in cotangents]
        found = tuple(
            None if any(s[k] is None for s in singles) else torch.stack([s[k] for s in singles])
            for k in range(len(parameters))
        )
    return [
        torch.zeros((n, *p.shape), dtype=wide(p.dtype), device=p.device) if g is None else g.to(wide(p.dtype))
        for p, g in zip(parameters, found, strict=True)
    ]
