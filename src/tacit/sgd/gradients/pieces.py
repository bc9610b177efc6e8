"""How is a batch clipped so many examples at a time?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from tacit.sgd.gradients.batches import take
from tacit.sgd.gradients.bounds import ClippedGradients
from tacit.sgd.gradients.contributions import wide

if TYPE_CHECKING:
    from tacit.sgd.gradients.engine import Engine, Request


def in_pieces(engine: Engine, request: Request, *, due: bool) -> ClippedGradients:
    """As :meth:`Engine.clipped_sums`, ``request.size`` examples at a time."""
    size, views, device, clipping = request.size, request.views, engine.device, request.clipping
    if not request.examples:
        sums = {n: torch.zeros(p.shape, dtype=wide(p.dtype), device=p.device) for n, p in engine.parameters.items()}
        none = torch.zeros((0, len(clipping.groups)), device=device)
        return ClippedGradients(sums, none[:, 0] if none.shape[1] == 1 else none, clipping, none[:, 0], none)
    found: list[ClippedGradients] = []
    for start in range(0, request.examples, size):
        real = min(size, request.examples - start)
        mask = None if request.mask is None else request.mask[start : start + real].to(device)
        rows: Any = slice(start * views, (start + size) * views)
        if real < size:
            # Filled up with copies of its last example, masked: every micro-batch has the same shape and plan.
            rows = torch.arange(size * views).clamp(max=real * views - 1) + start * views
            filled = torch.zeros(size, dtype=torch.bool, device=device)
            filled[:real] = True if mask is None else mask.bool()
            mask = filled
        some = dataclasses.replace(
            request,
            batch=take(request.batch, rows),
            mask=mask,
            microbatch=size,
            reuse_memory=False,
            while_it_runs=None,
        )
        part = engine.clipped_sums(some, due=due)
        found.append(
            dataclasses.replace(
                part,
                sums={n: found[-1].sums[n] + s for n, s in part.sums.items()} if found else part.sums,
                norms=part.norms[:real],
                losses=part.losses[:real],
                scale=part.scale[:real],
            )
        )
    norms, losses, scale = (torch.cat([getattr(f, of) for f in found]) for of in ("norms", "losses", "scale"))
    return ClippedGradients(found[-1].sums, norms, clipping, losses, scale)
