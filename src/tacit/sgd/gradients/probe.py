"""Had an example in its batch the loss and the gradient norm that it has by itself?

What a first step shows, a later one might break: a rule that goes wrong, a model that begins to mix examples. A probe
takes one example of a step that was just computed and computes it alone, by autograd, with its own share of the
batch's random draws. Where that says something else, or cannot be done, the batch itself decides: by autograd, and with
every other example replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tacit.sgd.gradients import company, fallback, verify
from tacit.sgd.gradients.bounds import ClippedGradients, Clipping
from tacit.sgd.gradients.randomness import Draws, NotRepeated, random_state, same_state, set_random_state

if TYPE_CHECKING:
    from tacit.sgd.gradients.engine import Engine, Request
    from tacit.sgd.gradients.outside import Pass

#: Norms from here on may have left the range of float32 when they were squared.
LARGE = 1e15


def of_step(
    engine: Engine, request: Request, found: ClippedGradients, example: int, before: dict[str, Any]
) -> str | None:
    """What is not as the example has it by itself: ``"loss"``, or a group of parameters; None where all is.

    ``found`` is what the step computed, ``before`` the random state that it began with.
    """
    after = random_state(engine.device, outside=True)
    try:
        if _alone(engine, request, found, example, before, random=not same_state(before, after)):
            return None
        return _in_batch(engine, request, found, example, before, random=not same_state(before, after))
    finally:
        engine.settle()
        set_random_state(after, engine.device)


def _alone(
    engine: Engine, request: Request, found: ClippedGradients, example: int, before: dict[str, Any], *, random: bool
) -> bool:
    """Whether the example by itself has this loss and these norms; also not where that cannot be told."""
    one, draws = request.picked(torch.tensor([example])), Draws(engine.device)
    parameters = list(engine.parameters.values())
    try:
        with torch.enable_grad():
            set_random_state(before, engine.device)
            if random:
                with draws.noted():
                    engine.losses(request)
                set_random_state(before, engine.device)
                with draws.of(example, request.examples):
                    value = engine.losses(one)[0]
            else:
                value = engine.losses(one)[0]
        own = torch.autograd.grad(value, parameters, allow_unused=True)
    except NotRepeated:
        return False
    except company.REFUSED as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return False
    tolerance = verify.TOLERANCE[verify.narrowest([p.dtype for p in engine.pieces], engine.device)]
    if not fallback.near(found.losses[example], value.detach(), tolerance):
        return False
    return other_group(found.norms[example], own, list(engine.parameters), request.clipping, tolerance) is None


def _in_batch(
    engine: Engine, request: Request, found: ClippedGradients, example: int, before: dict[str, Any], *, random: bool
) -> str | None:
    """As :func:`of_step`, by the batch itself, uncompiled."""

    def forward(some: Request) -> Pass:
        set_random_state(before, engine.device)
        return engine.forward(*engine.asked(some))

    run = forward(request)
    tolerance = verify.TOLERANCE[verify.precision(engine, run)]
    # A compiled step on a GPU draws other random numbers: of it, only what mixes is seen.
    if not (random and request.compiled is not None and engine.device.type == "cuda"):
        if not fallback.near(found.losses[example], run.losses[example].detach(), tolerance):
            return "loss"
        numbers = list(range(len(engine.parameters)))
        own = verify.by_backward(engine, run, numbers, verify.one_hot(run.losses, example))
        grads = run.output_gradients(retain=True)
        excused = not torch.isfinite(found.norms[example]).all() and any(
            verify.overflows(run, k, grads) for k in numbers
        )
        wrong = other_group(
            found.norms[example],
            own,
            list(engine.parameters),
            request.clipping,
            tolerance,
            lambda k: verify.rounding(run, k, grads, squared=True),
        )
        if wrong is not None and not excused:
            return wrong
    if request.examples < 2:
        return None
    swapped = forward(request.alike(example))
    same = fallback.near(run.losses[example].detach(), swapped.losses[example].detach(), company.UNMOVED, 1.0)
    return None if same and verify.gradients_stay(engine, run, swapped, verify.one_hot(run.losses, example)) else "loss"


def other_group(
    used: Tensor,
    own: Sequence[Tensor | None],
    names: list[str],
    clipping: Clipping,
    tolerance: float,
    allowed: Callable[[int], float] = lambda _: 0.0,
) -> str | None:
    """The first group of parameters whose norm, as it was ``used`` for clipping, is not that of the gradient.

    ``allowed`` says how much more rounding may have done to a parameter.
    """
    number, squares = {name: k for k, name in enumerate(names)}, []
    for gradient in own:
        squares.append(0.0 if gradient is None else float(verify.dense_of(gradient).double().square().sum()))
    size = math.sqrt(sum(squares))
    for norm, members in zip(used.reshape(-1).tolist(), clipping.groups, strict=True):
        wanted = math.sqrt(sum(squares[number[name]] for name in members))
        if not math.isfinite(norm) and not wanted < LARGE:
            continue
        more = 0.0 if not math.isfinite(norm) else sum(allowed(number[name]) for name in members)
        if not abs(norm - wanted) <= tolerance * size + more + 1e-12:
            return ", ".join(members[:3]) + (f" and {len(members) - 3} more" if len(members) > 3 else "")
    return None


def failed(step: int, wrong: str) -> str:
    """Why a run stops, without a word about the example."""
    what = "the loss" if wrong == "loss" else f"the gradient norm for {wrong}"
    return (
        f"step {step + 1}: {what} of an example in its batch is not what the example has by itself, so the clip norm "
        "may not bound it. The run stops here, and nothing of this step is released. Find out with "
        "tacit.sgd.check(model, loss, batch) what changed since the first step (a mode, a hook, a buffer, a schedule "
        "in the model). See: tacit explain mixing"
    )
