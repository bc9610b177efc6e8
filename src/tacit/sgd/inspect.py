"""Can this model be trained with a per-example bound, and how does the engine see it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from tacit.sgd.errors import ClippingError
from tacit.sgd.gradients import planning, verify
from tacit.sgd.gradients.batches import Loss
from tacit.sgd.gradients.bounds import Clipping
from tacit.sgd.gradients.engine import Engine, Request, remember
from tacit.sgd.gradients.rules import RULES


@dataclass(frozen=True)
class Check:
    """The operations that use each parameter in a checked pass, and those without a rule of their own."""

    uses: dict[str, tuple[str, ...]]
    generic: tuple[str, ...]
    materialised: tuple[str, ...]


def check(model: nn.Module, loss: Loss, batch: Any, *, views: int = 1) -> Check:
    """Run every self-check on one batch, and raise a :class:`~tacit.sgd.ClippingError` that names what is wrong.

    Returns how each trainable parameter is used: ``generic`` lists operations treated by ``vmap`` of their own
    derivative, ``materialised`` the parameters whose per-example gradients have to be formed one by one.

    >>> import torch
    >>> net = torch.nn.Linear(3, 2)
    >>> check(net, lambda model, x: model(x).square().sum(1), torch.randn(4, 3)).uses
    {'weight': ('linear',), 'bias': ('linear',)}
    """
    verify.no_known_obstacles(model)
    engine = Engine.of(model)
    request = Request(loss, batch, Clipping.of("flat", 1.0, list(engine.parameters)), views=views)
    rewind = remember(engine.device)
    try:
        plan = planning.survey(engine, request, rewind, check=True)
        if plan is None:
            raise ClippingError("no example of the batch has a finite gradient: there is nothing to check with")
        rewind()
        run = engine.forward(*engine.asked(request))
    finally:
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
    )
