"""Which plan holds for this batch, and where does it come from?

A plan is made from the batch itself (:func:`tacit.sgd.gradients.verify.survey`), which takes several times the memory
of a step: two passes are held side by side, one of them with its graph for several backward passes. Where there is no
room for that, a part of the batch says where examples are in every output, as batches of other sizes do in
:mod:`~tacit.sgd.gradients.reuse`; that the answer is right, and that examples do not mix, is checked on the whole
batch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.errors import ClippingError
from tacit.sgd.gradients import company, verify
from tacit.sgd.gradients.batches import leaves
from tacit.sgd.gradients.engine import Engine, Gradients, Pass, Plan
from tacit.sgd.gradients.reuse import Template, adapted, outline

#: The fewest examples that say where examples are.
FEWEST = 2

Losses = Callable[[Any], Callable[[], Tensor]]


def planned(
    engine: Engine,
    losses_of: Losses,
    batch: Any,
    examples: int,
    views: int,
    check: Any,
    check_now: bool,
) -> tuple[Gradients | None, Tensor]:
    """Per-example gradients by a plan that holds for this batch; made, and checked, where there is none yet.

    ``None`` for gradients when no example of the batch has a finite one.
    """
    device = next(iter(engine.parameters.values())).device
    data = leaves(batch)
    rewind = verify.remember(device)
    run = engine.forward(losses_of(batch), data, examples)
    doubtful = verify.anyone(engine, bool(run.doubt))
    grads = run.output_gradients(retain=doubtful)
    plan = engine.plan_for(run, grads)
    wanted = check != "never" and (check_now or not _known(engine, run, grads))
    if doubtful and plan is not None and not engine.still_holds(run, grads, plan):
        plan, wanted = None, True
    if engine.spread is not None:
        # Ranks gather parameters from one another: what one has to run again, all run again.
        wanted = engine.spread.any(wanted)
    anew = verify.anyone(engine, plan is None) or wanted
    if anew:
        losses = run.losses.detach()
        del run, grads
        rewind()
        found = _surveyed(engine, losses_of, batch, examples, views, rewind, wanted)
        if found is None and engine.spread is None:
            return None, losses
        rewind()
        run = engine.forward(losses_of(batch), data, examples)
        grads = run.output_gradients()
        if found is None:  # only now: the other ranks needed this one's parameters
            return None, losses
        plan = engine.plans.get(engine.signature(run, grads))
        if plan is None:
            raise ClippingError(
                "the model takes another path through its operations each time it runs on the same batch"
            )
    if verify.anyone(engine, bool(run.doubt)) and check != "never":
        company.in_company(engine, losses_of, batch, examples, views, run, rewind)
    if check != "never" and engine.spread is None:
        company.after_lengths(engine, losses_of, batch, examples, views)
        if anew:
            tolerance = verify.TOLERANCE[verify.precision(engine, run)]
            company.resized(engine, losses_of, batch, examples, views, tolerance)
    assert plan is not None
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        return engine.gradients(run, grads, plan), run.losses


def _known(engine: Engine, run: Pass, grads: list[list[Tensor | None]]) -> bool:
    plan = engine.plans.get(engine.signature(run, grads))
    return plan is not None and plan.checked


def _surveyed(
    engine: Engine, losses_of: Losses, batch: Any, examples: int, views: int, rewind: Callable[[], None], check: bool
) -> Plan | None:
    """The plan made from the whole batch, or, where memory does not suffice for that, with the help of a part of it."""
    try:
        return verify.survey(engine, losses_of, batch, examples, views, rewind, check)
    except torch.OutOfMemoryError:
        if engine.spread is not None or examples < 2 * FEWEST:
            raise
    # Out here the error, and with it all that the failed pass held, is gone.
    part = examples
    while True:
        _give_back()
        part //= 2
        try:
            known, template = _from_part(engine, losses_of, batch, part, views, rewind, check)
            break
        except torch.OutOfMemoryError:
            if part < 2 * FEWEST:
                raise
    _give_back()
    return _for_whole(engine, losses_of, batch, examples, views, rewind, check, known, template)


def _from_part(
    engine: Engine, losses_of: Losses, batch: Any, part: int, views: int, rewind: Callable[[], None], check: bool
) -> tuple[Any, Template]:
    """What the first examples of a batch say about batches of any size."""
    some = verify.picked(batch, torch.arange(part), views)
    plan = verify.survey(engine, losses_of, some, part, views, rewind, check)
    if plan is None or not plan.settled:
        raise torch.OutOfMemoryError(
            "memory does not suffice to look at the whole batch, and a part does not tell enough"
        )
    rewind()
    run = engine.forward(losses_of(some), leaves(some), part)
    grads = run.output_gradients()
    plan = engine.plans[engine.signature(run, grads)]
    return outline(engine.context, run, grads), Template(plan, run.uses)


def _for_whole(
    engine: Engine,
    losses_of: Losses,
    batch: Any,
    examples: int,
    views: int,
    rewind: Callable[[], None],
    check: bool,
    known: Any,
    template: Template,
) -> Plan:
    """The plan for the whole batch, made of what its part told, and checked on all of it: one pass at a time."""

    def forward(some: Any) -> Pass:
        rewind()
        return engine.forward(losses_of(some), leaves(some), examples)

    def alike(example: int) -> Any:
        return verify.picked(batch, torch.full((examples,), example), views)

    chosen = verify.a_few(examples, verify.CHECKED_EXAMPLES)
    among_others = {k: forward(alike(k)).losses.detach() for k in (chosen if check else [])}
    run = forward(batch)
    if not verify.is_finite(engine, run):
        raise torch.OutOfMemoryError("memory does not suffice to look at a batch with values that are not finite")
    for example, losses in among_others.items():
        verify.isolated(engine, losses_of, batch, alike(example), run, losses, example, rewind)
    with torch.no_grad(), torch.autocast(run.losses.device.type, enabled=False):
        true = verify.truth(engine, run, chosen) if check else None
        grads = run.output_gradients()  # the graph gives its memory back for them, as in every later step
        alike_plan, same = adapted(template, run) if outline(engine.context, run, grads) == known else (None, False)
        if alike_plan is None:
            raise torch.OutOfMemoryError(
                "memory does not suffice to look at the whole batch, and its parts are unlike it"
            )
        plan = alike_plan
        gradients = engine.gradients(run, grads, plan, planning=not same)
        plan.checked = check
        if check:
            verify.agree(engine, run, gradients, chosen, true, grads)
        engine.plans[engine.signature(run, grads)] = plan
    return plan


def _give_back() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
