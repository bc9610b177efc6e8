"""Can this model be trained with a per-example bound, and how is each parameter used?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from tacit.sgd.errors import ClippingError
from tacit.sgd.gradients import fallback, planning, verify
from tacit.sgd.gradients.batches import Loss
from tacit.sgd.gradients.bounds import Clipping
from tacit.sgd.gradients.capture import BY_SIZE
from tacit.sgd.gradients.engine import Engine, Request
from tacit.sgd.gradients.outside import Pass
from tacit.sgd.gradients.randomness import remember
from tacit.sgd.gradients.rules import RULES


@dataclass(frozen=True)
class Check:
    """How :func:`check` saw a model use its parameters.

    Attributes:
        uses: The operations that use each trainable parameter, by its name.
        generic: The operations without a rule of their own: their derivative is taken example by example with
            ``vmap``, which is slower.
        materialised: The parameters whose per-example gradients have to be formed one by one, which takes memory.
        certain: Whether it is shown, and not only seen on this batch, that no example reaches another: who owns each
            value was followed through all operations, and no value of the batch decides what is done. Where it is
            false, every batch is compared with another as well, or planned anew.
        apart: The parameters whose gradients cannot be seen in a pass over the batch (a custom autograd function, a
            gradient inside the loss, a transform of ``torch.func``, scripted code, complex weights). They come from a
            pass of each example by itself, so a step takes about as long as a plain step of one example, times the
            size of the batch.

    Example:
        >>> Check({"weight": ("linear",)}, generic=(), materialised=(), certain=True).uses["weight"]
        ('linear',)
    """

    uses: dict[str, tuple[str, ...]]
    generic: tuple[str, ...]
    materialised: tuple[str, ...]
    certain: bool
    apart: tuple[str, ...] = ()


def check(model: nn.Module, loss: Loss, batch: Any, *, views: int = 1) -> Check:
    """Check on one batch whether a model can be trained with a per-example bound.

    It runs the checks of a first step: no example may influence another, and the captured gradients must equal
    autograd's. The model is left as it was.

    Args:
        model: The model to check.
        loss: ``loss(model, batch)``, one value per example, or a criterion with ``reduction="none"``.
        batch: A batch of the kind that training will see, with at least two examples; they may be made up.
        views: How many adjacent rows of the batch are views of one example. Default: 1.

    Returns:
        How each trainable parameter is used, and what is slow about it.

    Raises:
        ClippingError: If the model cannot be trained this way; the message names the module or the parameter. Or if no
            example of the batch has a finite gradient.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(3, 2)
        >>> check(net, lambda model, x: model(x).square().sum(1), torch.randn(4, 3)).uses
        {'weight': ('linear',), 'bias': ('linear',)}
    """
    verify.no_known_obstacles(model)
    engine = Engine.of(model)
    request = Request(loss, batch, Clipping.of("flat", 1.0, list(engine.parameters)), views=views)
    rewind = remember(engine.device)

    def surveyed() -> tuple[planning.PassPlan, Pass]:
        plan = planning.survey(engine, request, rewind, check=True)
        if plan is None:
            raise ClippingError("no example of the batch has a finite gradient: nothing can be checked with it")
        if engine.apart:  # each example by itself must have its loss in the batch
            rewind()
            fallback.of_batch(engine, request, due=False)
        rewind()
        return plan, engine.forward(*engine.asked(request))

    try:
        plan, run = fallback.attempt(engine, surveyed, rewind)
    finally:
        engine.settle()
        rewind()
    names = list(engine.parameters)
    uses: dict[str, list[str]] = {name: [] for name in names}
    for use in run.uses:
        for k in sorted({k for d in use.derived for k in d.params}):
            uses[names[k]].append(use.name)
    generic = {
        u.name for u, known in zip(run.uses, plan.uses, strict=False) if not known.by_rule or u.name not in RULES
    }
    return Check(
        {name: tuple(found) for name, found in uses.items()},
        tuple(sorted(generic)),
        tuple(names[k] for k in sorted(plan.materialised)),
        not run.doubt.replace(BY_SIZE, "") and plan.certain(run),
        tuple(names[k] for k in sorted(engine.apart)),
    )
