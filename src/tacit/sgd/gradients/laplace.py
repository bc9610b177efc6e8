"""How is a model trained with pure ε? Per-example gradients clipped in L1 norm, for exact Laplace noise.

Laplace noise on every coordinate needs a bound on the L1 norm, for which there is no shortcut through inputs and output
gradients: per-example gradients are formed by ``vmap(grad)``. The L1 norm grows with the number of parameters, so this
is for small models.

Clipped gradients are cut, towards zero, to a grid of which float64 adds up millions without rounding. So the L1
sensitivity of the sum holds exactly, and :func:`tacit.noise.add_laplace` adds noise
(:mod:`tacit.sgd.release`) whose bits say no more than the ideal release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tacit.sgd.gradients import verify
from tacit.sgd.gradients.batches import Loss, row_losses
from tacit.sgd.gradients.verify import trainable
from tacit.sgd.torch_compat import pytree

#: Bits of the grid below the clip norm: 2^22 units of 2^30 grid points stay below 2^53, where float64 is exact.
GRID_BITS = 30


def clipped_l1(
    model: nn.Module, loss: Loss, batch: Any, clip_norm: float, mask: Tensor, views: int = 1
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """The sum over units of gradients clipped to L1 norm ``clip_norm``, their L1 norms, and the losses.

    Guarantee: adding or removing one unit changes the sums by at most ``clip_norm`` in L1 norm, exactly; a unit whose
    gradient is not finite counts as zero.

    >>> net = nn.Linear(3, 1)
    >>> data = (torch.randn(4, 3), torch.randn(4, 1))
    >>> sums, norms, _ = clipped_l1(net, nn.MSELoss(reduction="none"), data, 0.5, torch.tensor([True] + 3 * [False]))
    >>> sum(float(s.abs().sum()) for s in sums.values()) <= 0.5
    True
    """
    verify.no_known_obstacles(model)
    parameters = trainable(model)
    rest = {n: b for n, b in model.named_buffers()}
    rest |= {n: p for n, p in model.named_parameters() if n not in parameters}
    units = len(mask)
    pieces = pytree.tree_map_only(Tensor, lambda t: t.view(units, views, *t.shape[1:]), batch)

    def one(values: Mapping[str, Tensor], piece: Any) -> tuple[Tensor, Tensor]:
        held = {**rest, **values}

        def call(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(model, held, args, kwargs)

        value = row_losses(call, loss, piece).mean()  # type: ignore[arg-type]  # called as the model is
        return value, value.detach()

    values = {n: p.detach() for n, p in parameters.items()}
    grads, losses = torch.func.vmap(torch.func.grad(one, has_aux=True), in_dims=(None, 0), randomness="different")(
        values, pieces
    )
    with torch.no_grad():
        wide = {n: g.double().flatten(1) for n, g in grads.items()}
        norms = torch.stack([g.abs().sum(1) for g in wide.values()]).sum(0)
        good = torch.isfinite(norms) & torch.isfinite(losses) & mask
        # A billionth less: more than the rounding of the norm and of the product can make up.
        factor = torch.where(good, (clip_norm / norms.clamp(min=1e-300)).clamp(max=1.0) * (1 - 1e-9), 0.0)
        grid = 2.0 ** (math.floor(math.log2(clip_norm)) - GRID_BITS)
        sums = {}
        for name, g in wide.items():
            kept = torch.where(good.unsqueeze(1), g * factor.unsqueeze(1), 0.0)
            sums[name] = (torch.trunc(kept / grid).sum(0) * grid).view(parameters[name].shape)
    return sums, torch.where(mask, norms, 0.0), losses
