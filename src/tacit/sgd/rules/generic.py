"""Per-example gradients of any other operation, from its own derivative.

The derivative of an operation is linear in the gradient of its output. So the gradient of example ``b`` is the
operation's vjp at the output gradient with everything but ``b``'s elements set to zero, and ``vmap`` over ``b`` gives
them all. This needs to know nothing about the operation and costs ``batch`` times its backward, so it serves the rare
uses without a rule of their own.

Where the value holds the batch itself (learned queries expanded over the batch, say) one vjp is enough; whether it
does is decided once, by evidence of the same kind as for outputs (see :mod:`tacit.sgd.layout`).
"""

from __future__ import annotations

import warnings
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit.sgd.errors import UncoveredUse
from tacit.sgd.layout import Evidence, Layout, digit_weights
from tacit.sgd.rules.base import Aligned, Contributions, Dense, clean, replay, wide
from tacit.sgd.uses import Derived, Use

CHUNK_ELEMENTS = 1 << 25


def _local(use: Use) -> tuple[list[Tensor], dict[int, Tensor]]:
    """The operation once more, on detached inputs, differentiable in the derived values only."""
    device = use.derived[0].tensor.device
    leaves = {id(d.tensor): d.tensor.detach().clone().requires_grad_() for d in use.derived}

    def swap(tensor: Tensor) -> Tensor:
        leaf = leaves.get(id(tensor))
        if leaf is not None:
            return leaf
        if tensor.device.type == "meta":  # a rule that reads no values kept none, and the derivative needs none
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
        return clean(tensor.detach())

    # The plain form of attention: fused ones have the derivative of a learned bias for some shapes only, none batched.
    with sdpa_kernel(SDPBackend.MATH):
        return replay(use, swap), leaves


def generic(
    use: Use,
    grads: list[Tensor | None],
    layouts: list[Layout | None],
    batch: int,
    notes: dict[str, Any],
    planning: bool,
) -> Contributions:
    """Contributions of every derived value of the use; ``notes`` remember between steps which values hold the batch."""
    outputs, leaves = _local(use)
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

    evidence = Evidence(vjp(None), batch)
    for weights in digit_weights(batch, leaf.device, torch.float64):
        evidence.add(vjp(weights))
    found = evidence.layouts()
    return found[0] if len(found) == 1 and not evidence.empty else None


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
            return cast(Tensor, piece)
        except RuntimeError:
            # Some kernels have no batched derivative; each row alone is exact.
            rows = zip(*cotangents, strict=True)
            return torch.stack([torch.autograd.grad(outs, leaf, list(row), retain_graph=True)[0] for row in rows])
