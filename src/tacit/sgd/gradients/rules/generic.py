"""Per-example gradients of any other operation, from its own derivative.

The derivative of an operation is linear in the gradient of its output. So the gradient of example ``b`` is the
operation's vjp at the output gradient with everything but ``b``'s elements set to zero, and ``vmap`` over ``b`` gives
them all. This needs to know nothing about the operation and costs ``batch`` times its backward, so it serves the rare
uses without a rule of their own.

Where the value holds the batch itself (learned queries expanded over the batch, say) one vjp is enough; whether it
does is decided once, by evidence of the same kind as for outputs (see :mod:`tacit.sgd.gradients.owners`). Data that
happen to send each example to elements of its own (one-hot rows, distinct numbers of rows) must not pass for that: the
evidence is asked again with other data in their place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit.sgd.errors import UncoveredUse
from tacit.sgd.gradients.capture import Use
from tacit.sgd.gradients.contributions import Aligned, Contributions, Dense, Layout, clean, replay, wide
from tacit.sgd.gradients.functions import Derived
from tacit.sgd.gradients.owners import OwnerEvidence, digit_weights

CHUNK_ELEMENTS = 1 << 25


def _local(
    use: Use, other: Callable[[Tensor], Tensor] = clean, *, live: bool = False
) -> tuple[list[Tensor], dict[int, Tensor]]:
    """The operation once more, on detached inputs, differentiable in the derived values only.

    ``other`` gives what stands in for an input; with ``live`` inputs that had a gradient have one again.
    """
    device = use.derived[0].tensor.device
    leaves = {id(d.tensor): d.tensor.detach().clone().requires_grad_() for d in use.derived}

    def swap(tensor: Tensor) -> Tensor:
        leaf = leaves.get(id(tensor))
        if leaf is not None:
            return leaf
        if tensor.device.type == "meta":  # a rule that reads no values kept none, and the derivative needs none
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
        return other(tensor.detach()).requires_grad_(live and tensor.requires_grad)

    # The plain form of attention: fused ones have the derivative of a learned bias for some shapes only, none batched.
    with sdpa_kernel(SDPBackend.MATH):
        return replay(use, swap), leaves


def generic(
    use: Use,
    grads: list[Tensor | None],
    layouts: list[Layout | None],
    batch: int,
    notes: dict[str, Any],
    *,
    planning: bool,
) -> Contributions:
    """Contributions of every derived value of the use; ``notes`` remember between steps which values hold the batch."""
    outputs, leaves = _local(use)
    if len(outputs) != len(grads):  # some of its outputs do not depend on these values at all
        outputs, leaves = _local(use, live=True)
    if len(outputs) != len(grads):
        raise UncoveredUse(
            f"{use.name!r} in {use.where} does not repeat itself: {len(outputs)} outputs, {len(grads)} before"
        )
    live = [(o, g, y) for o, g, y in zip(outputs, grads, layouts, strict=True) if g is not None and y is not None]
    outs = [o for o, _, _ in live]
    found: Contributions = []
    for known in use.derived:
        leaf = leaves[id(known.tensor)]
        note = f"aligned{use.derived.index(known)}"
        if planning or note not in notes:
            notes[note] = _alignment(outs, live, leaf, batch)
            if notes[note] is not None and notes[note] != _elsewhere(use, known, grads, layouts, batch):
                notes[note] = None
        if isinstance(notes[note], Layout):
            (gradient,) = torch.autograd.grad(outs, leaf, [g for _, g, _ in live], retain_graph=True)
            found.append((known, Aligned(gradient.to(wide(gradient.dtype)), notes[note])))
        else:
            found.append((known, Dense(_masked(use, known, outs, live, leaf, batch))))
    return found


def _alignment(outs: list[Tensor], live: list[Any], leaf: Tensor, batch: int) -> Layout | None:
    if batch == 1 or leaf.numel() % batch:
        return None

    def vjp(weights: Tensor | None) -> Tensor:
        cotangents = [
            torch.ones_like(g) if weights is None else y.spread(weights.to(g.dtype), g.dim()).expand_as(g).clone()
            for _, g, y in live
        ]
        (gradient,) = torch.autograd.grad(outs, leaf, cotangents, retain_graph=True)
        result: Tensor = gradient
        return result

    evidence = OwnerEvidence(vjp(None), batch)
    for weights in digit_weights(batch, leaf.device, torch.float64):
        evidence.add(vjp(weights))
    found = evidence.layouts()
    return found[0] if len(found) == 1 and not evidence.empty else None


_numbers = torch.Generator()
_numbers.seed()


def _other_data(tensor: Tensor) -> Tensor:
    """Data of the same kind that select nothing: numbers without a zero, and one index, or one truth, for all."""
    if tensor.is_floating_point() or tensor.is_complex():
        drawn = 0.5 + torch.rand(tensor.shape, generator=_numbers, dtype=torch.float64, device="cpu")
        return drawn.to(tensor.device, tensor.dtype)
    if not tensor.numel():
        return tensor
    return tensor.flatten()[0].expand(tensor.shape).clone()


def _elsewhere(
    use: Use, known: Derived, grads: list[Tensor | None], layouts: list[Layout | None], batch: int
) -> Layout | None:
    """Where the examples would be in a derived value if the data were others; ``None`` where nothing tells."""
    try:
        outputs, leaves = _local(use, _other_data)
        live = [(o, g, y) for o, g, y in zip(outputs, grads, layouts, strict=True) if g is not None and y is not None]
        if any(o.shape != g.shape for o, g, _ in live):
            return None
        return _alignment([o for o, _, _ in live], live, leaves[id(known.tensor)], batch)
    except (RuntimeError, ValueError, IndexError):  # not every operation takes every number
        return None


def _masked(use: Use, known: Derived, outs: list[Tensor], live: list[Any], leaf: Tensor, batch: int) -> Tensor:
    pieces = []
    elements = sum(g.numel() for _, g, _ in live) + leaf.numel()
    chunk = max(1, min(batch, CHUNK_ELEMENTS // max(1, elements)))
    for start in range(0, batch, chunk):
        stop = min(batch, start + chunk)
        cotangents = []
        for _, g, y in live:
            mine = torch.eye(batch, device=g.device, dtype=torch.bool)[start:stop]
            masks = torch.stack([y.spread(row, g.dim()) for row in mine])
            # Not a product: zero times an infinite gradient of another example would reach this one.
            cotangents.append(torch.where(masks, g.unsqueeze(0), torch.zeros((), dtype=g.dtype, device=g.device)))
        piece = _batched_vjp(outs, leaf, cotangents)
        pieces.append(piece.to(wide(piece.dtype)))
    return torch.cat(pieces)


def _batched_vjp(outs: list[Tensor], leaf: Tensor, cotangents: list[Tensor]) -> Tensor:
    """The vjp at each row of the cotangents: all at once where the derivative can be batched, else one by one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*performance drop.*")
        try:
            (piece,) = torch.autograd.grad(outs, leaf, cotangents, is_grads_batched=True, retain_graph=True)
            return piece
        except RuntimeError:
            # Some kernels have no batched derivative; each row alone is exact.
            rows = zip(*cotangents, strict=True)
            return torch.stack([torch.autograd.grad(outs, leaf, list(row), retain_graph=True)[0] for row in rows])
