"""The sum of clipped per-example gradients of any PyTorch model, in one backward pass.

    sums, norms = tacit.sgd.clipped_grad(model, loss, batch, clip_norm=1.0)

This is the sensitive half of DP-SGD, usable alone by people with their own training loop: add noise of standard
deviation ``noise_multiplier * result.sensitivity`` to ``sums``, divide by the *expected* batch size, and step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from tacit.sgd.compile import cache
from tacit.sgd.gradients.batches import Loss
from tacit.sgd.gradients.bounds import ClippedGradients, Clipping
from tacit.sgd.gradients.engine import Engine, Method, Request
from tacit.sgd.gradients.verify import Check

__all__ = ["Check", "ClippedGradients", "Compile", "Method", "clipped_grad", "compiled_by"]

Compile = bool | Literal["traced"]


def clipped_grad(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    clip_norm: float = 1.0,
    *,
    clipping: Literal["flat", "per_layer", "automatic"] | Mapping[str, float] = "flat",
    mask: Tensor | None = None,
    views: int = 1,
    microbatch: int | None = None,
    check: Check = "first",
    method: Method = "operations",
    stabiliser: float = 0.01,
    compile: Compile = False,
) -> ClippedGradients:
    """The sum over examples of per-example gradients, each clipped to ``clip_norm``, and their norms.

    ``loss(model, batch)`` returns one loss per example, shape ``(B,)``; or it is a criterion module with
    ``reduction="none"`` and the batch is ``(inputs, targets)``. Every tensor in ``batch`` has the examples in its
    first dimension.

    ``mask`` (B,) marks the real examples of a padded batch. With ``views=K`` each example has K adjacent rows
    (augmented views), whose gradients are averaged *before* clipping. ``microbatch`` bounds how many examples run at
    a time. ``check`` says when the answer is compared with autograd's own (``"first"`` step of each shape,
    ``"always"``, ``"never"``, or every so many steps); with any but ``"never"`` a pass that reads values of the data is
    looked at in every batch. ``method="examples"`` runs one backward pass per example:
    slow, for models that the engine refuses. ``compile=True`` traces and compiles the step once for every shape,
    ``compile="traced"`` only traces it: seconds instead of a minute, and on a GPU a CUDA graph all the same. Where
    that cannot be done a :class:`~tacit.sgd.NotCompiled` warning says why, and the step runs as without it.

    Of a model that is spread over ranks (``fully_shard``, tensor parallel) every rank calls this together, with a batch
    of the same shape; the sums are then over the batches of all ranks, and each gets the pieces of them that it keeps.

    Guarantee: adding or removing one example changes ``sums`` by at most ``result.sensitivity`` in L2 norm, rounding
    included, whatever the example holds; one whose gradient is not finite counts as zero. What an example is in the
    batch must follow from that example alone: pad to a public length, or such that padding changes nothing, which is
    looked at once batches differ in length. The model is left as it was.

    >>> import torch
    >>> model = torch.nn.Linear(3, 2)
    >>> batch = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    >>> sums, norms = clipped_grad(model, torch.nn.CrossEntropyLoss(reduction="none"), batch, clip_norm=0.1)
    >>> sorted(sums), norms.shape
    (['bias', 'weight'], torch.Size([5]))
    """
    engine = Engine.of(model)
    return engine.clipped_sums(
        Request(
            loss,
            batch,
            Clipping.of(clipping, clip_norm, list(engine.parameters), stabiliser),
            mask=mask,
            views=views,
            microbatch=microbatch,
            check=check,
            method=method,
            compiled=compiled_by(compile),
        )
    )


def compiled_by(compile: Compile) -> Callable[..., Any] | None:
    """What makes and runs compiled programs of a step, where they are wanted (``Request.compiled``)."""
    if compile not in (False, True, "traced"):
        raise ValueError(f"compile must be True, False or 'traced', not {compile!r}")
    return functools.partial(cache.attempt, compiler=compile != "traced") if compile else None
