"""The sum of clipped per-example gradients of any PyTorch model, in one backward pass.

    sums, norms = tacit.sgd.clipped_grad(model, loss, batch, clip_norm=1.0)

This is the sensitive half of DP-SGD, for people with a training loop of their own: add noise of standard deviation
``noise_multiplier * result.sensitivity`` to ``sums``, divide by the *expected* batch size, and step.
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

__all__ = ["Check", "ClippedGradients", "Compile", "Method", "clipped_grad", "compiled_by", "uses_to_trace"]

Compile = bool | Literal["traced"]
#: The most forms of batches that a run traces without being asked to.
MOST_FORMS = 4


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
    """Sum per-example gradients, each clipped to ``clip_norm``, in one backward pass.

    This is the sensitive half of DP-SGD. The sums have no noise yet: a loop of your own adds it, as
    ``examples/own_loop.py`` does. The model is left as it was.

    If the model is spread over ranks (``fully_shard``, tensor parallel), all ranks call this together with batches of
    the same shape. The sums are then over the batches of all ranks, and each rank gets its own pieces of them.

    Guarantee:
        Adding or removing one example changes ``sums`` by at most ``result.sensitivity`` in L2 norm, rounding included,
        whatever the example holds. One whose gradient is not finite counts as zero. What stands for an example in the
        batch must follow from that example alone: pad to a public length.

    Args:
        model: Any PyTorch model, unmodified.
        loss: ``loss(model, batch)``, one value per example, shape ``(B,)``; or a criterion with ``reduction="none"``
            for a batch ``(inputs, targets)``.
        batch: Tensors, or a tuple, list or dict of them, with the examples in the first dimension.
        clip_norm: The most that one example may add to the sum, in L2 norm. Default: 1.
        clipping: ``"flat"`` (default) bounds the whole gradient, ``"per_layer"`` each module's, ``"automatic"`` scales
            every gradient to about ``clip_norm``, and a mapping from patterns of parameter names to bounds gives each
            group its own.
        mask: Which examples of a padded batch are real, shape ``(B,)``. Default: all of them.
        views: How many adjacent rows are views of one example; their gradients are averaged before clipping. Default:
            1.
        microbatch: How many examples run at a time. Default: all of them.
        check: When the answer is compared with autograd's: ``"first"`` (default: the first step of each shape),
            ``"always"``, ``"never"``, or a number of steps between two checks. Unless it is ``"never"``, a pass that
            reads values of the data is examined in every batch.
        method: ``"operations"`` (default), or ``"examples"``: one backward pass per example, slow, for models that the
            default refuses although they treat examples separately.
        stabiliser: The constant γ of ``clipping="automatic"``, which scales gradients by ``clip_norm / (norm + γ)``.
            Default: 0.01.
        compile: ``True`` traces and compiles the step once for every shape, ``"traced"`` only traces it, in seconds.
            Where that cannot be done, a :class:`~tacit.sgd.NotCompiled` warning says why. Default: ``False``.

    Returns:
        The clipped sums by parameter and the norms before clipping, with the sensitivity of the sums.

    Raises:
        ClippingError: If no per-example bound can be established for this model; the message says why.
        ValueError: If the loss does not return one value per example, or an argument is out of range.

    Example:
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


def uses_to_trace(engine: Engine) -> int | None:
    """How often operations use parameters in a step; None where it is known that the step cannot be traced."""
    if engine.doubted or engine.mutable or engine.apart or engine.by_row or engine.shards is not None:
        return None
    return max((len(plan.uses) for plan in engine.plans.values()), default=0)


def compiled_by(compile: Compile, *, asked: bool = True) -> Callable[..., Any] | None:
    """What makes and runs compiled programs of a step, if they are wanted (``Request.compiled``).

    Where nobody ``asked``, a step that cannot be compiled says nothing, and few forms of batches get a program.
    """
    if compile not in (False, True, "traced"):
        raise ValueError(f"compile must be True, False or 'traced', not {compile!r}")
    most = None if asked else MOST_FORMS
    return functools.partial(cache.attempt, compiler=compile != "traced", most=most) if compile else None
