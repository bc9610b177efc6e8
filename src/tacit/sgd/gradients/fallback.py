"""What if the gradient of a parameter cannot be seen in a pass over the batch?

A custom autograd function, a gradient inside the loss, a transform of ``torch.func``, scripted code and complex weights
hide how an example uses a parameter. The gradients of these parameters alone (``engine.apart``) come from a pass of
each example by itself; all others keep their way. Such a pass also gives the example's loss by itself, which must be
its loss in the batch, at every step: what mixes examples is refused here as everywhere.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from tacit.sgd.errors import SLOWLY, ClippingError, PassPerExample, UncoveredUse
from tacit.sgd.gradients import company, verify
from tacit.sgd.gradients.bounds import Gradients, warn_once
from tacit.sgd.gradients.contributions import Group, wide
from tacit.sgd.gradients.frames import Frame
from tacit.sgd.gradients.randomness import Draws, NotRepeated, random_state, remember, same_state, set_random_state

if TYPE_CHECKING:
    from tacit.sgd.gradients.engine import Engine, Request

Found = TypeVar("Found")

#: Elements of single gradients that are formed at a time.
ROOM = 1 << 26


def attempt(engine: Engine, compute: Callable[[], Found], rewind: Callable[[], None]) -> Found:
    """What is computed; once more, with the parameters apart whose gradients turn out not to be seen."""
    while True:
        try:
            return compute()
        except UncoveredUse as error:
            set_apart(engine, error)
        rewind()


def set_apart(engine: Engine, error: UncoveredUse) -> None:
    """Leave the parameters of an error to passes of single examples from here on; the error, where nothing changes."""
    number = {name: k for k, name in enumerate(engine.parameters)}
    new = [number[name] for name in error.parameters if number[name] not in engine.apart]
    if not new or engine.shards is not None:
        raise error
    engine.apart.update(dict.fromkeys(new, str(error).split(". ")[0]))
    engine.plans.clear()
    engine.programs.clear()


def fitting(engine: Engine, request: Request) -> Request:
    """The same, so many examples at a time that their gradients of the parameters apart fit into memory."""
    most = at_a_time(engine) if request.method == "operations" else request.size
    return dataclasses.replace(request, microbatch=most) if request.size > most else request


def shaped(engine: Engine, sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums of complex parameters as complex numbers: inside, real and imaginary part are two coordinates."""
    return {n: torch.view_as_complex(s) if engine.parameters[n].is_complex() else s for n, s in sums.items()}


def at_a_time(engine: Engine) -> int:
    """How many examples' gradients of the parameters apart are held at a time; two show whether examples mix."""
    return max(2, ROOM // max(1, sum(engine.pieces[k].numel() for k in engine.apart)))


def of_batch(engine: Engine, request: Request, *, due: bool) -> tuple[Gradients | None, Tensor]:
    """As :meth:`Engine.by_plan`, with the gradients of the parameters apart."""
    if not engine.apart:
        return engine.by_plan(request, due=due)
    engine.settle()
    began, rewind = time.perf_counter(), remember(engine.device, outside=engine.draws_outside)
    gradients, losses = engine.by_plan(request, due=due)
    if gradients is not None:
        gradients = completed(engine, request, gradients, losses.detach(), rewind, time.perf_counter() - began)
    return gradients, losses


def completed(
    engine: Engine,
    request: Request,
    gradients: Gradients,
    losses: Tensor,
    rewind: Callable[[], None],
    seconds: float,
) -> Gradients:
    """The gradients of a batch with those of the parameters apart; ``seconds`` is how long its own pass took."""
    device, examples = engine.device, request.examples
    after = random_state(device)
    rewind()
    draws = None if same_state(after, random_state(device)) else Draws(device)
    began, alone = time.perf_counter(), torch.full_like(losses, torch.nan)

    def single(example: int) -> Tensor:
        rewind()  # Python's and NumPy's draws are the same for everybody
        own = nullcontext() if draws is None else draws.of(example, examples)
        with torch.enable_grad(), own:
            value = engine.losses(request.picked(torch.tensor([example])))[0]
        alone[example] = value.detach()
        return value

    try:
        if draws is not None:
            rewind()
            with torch.enable_grad(), draws.noted():
                engine.losses(request)
        real = range(examples) if request.mask is None else request.mask.nonzero().flatten().tolist()
        found = filled(engine, gradients, real, single)
        by_themselves(engine, request, losses, alone, real, rewind)
    except NotRepeated as error:
        raise not_repeated(engine, error) from error
    except company.REFUSED as error:
        if isinstance(error, ClippingError | torch.OutOfMemoryError):
            raise
        raise alone_refused(engine, error) from error
    finally:
        set_random_state(after, device)
    say(engine, len(real), time.perf_counter() - began, f", and {seconds:.3g} s for all the rest")
    return found


def filled(engine: Engine, gradients: Gradients, examples: Iterable[int], single: Callable[[int], Tensor]) -> Gradients:
    """Gradients with those of the parameters apart, each example's by autograd from ``single`` of its number."""
    parameters, pieces = list(engine.parameters.values()), engine.pieces
    rooms = {
        k: torch.zeros((gradients.batch, *pieces[k].shape), dtype=wide(pieces[k].dtype), device=pieces[k].device)
        for k in engine.apart
    }
    for example in examples:
        found = torch.autograd.grad(single(example), [parameters[k] for k in rooms], allow_unused=True)
        for room, gradient in zip(rooms.values(), found, strict=True):
            if gradient is not None:
                room[example] = verify.dense_of(gradient)
    groups = [
        [(Frame("root"), Group(pieces[k].shape, dense=rooms[k]))] if k in rooms else known
        for k, known in enumerate(gradients.groups)
    ]
    return Gradients(gradients.batch, pieces, groups)


def by_themselves(
    engine: Engine,
    request: Request,
    losses: Tensor,
    alone: Tensor,
    real: Iterable[int],
    rewind: Callable[[], None],
) -> None:
    """Refuse a batch in which an example has another loss than by itself.

    Where other kernels for another size may have tipped a discontinuity, the example keeps its loss, to the last
    digits, with every other one replaced by itself.
    """
    tolerance = verify.TOLERANCE[verify.narrowest([p.dtype for p in engine.pieces], engine.device)]
    apart = torch.tensor([not near(losses[k], alone[k], tolerance) for k in real])
    for example in (k for k, off in zip(real, apart.tolist(), strict=True) if off):
        rewind()
        with torch.enable_grad():
            among = engine.losses(request.alike(example))[example].detach()
        if not near(losses[example], among, company.UNMOVED, 1.0):
            raise verify.mixing(verify.culprit(engine, request, request.alike(example), example, rewind))


def near(one: Tensor, two: Tensor, tolerance: float, floor: float = 0.1) -> bool:
    """Whether two losses are the same but for rounding; neither has to be finite."""
    if not bool(torch.isfinite(one) & torch.isfinite(two)):
        return bool(torch.isfinite(one) == torch.isfinite(two))
    one, two = one.double(), two.double()
    return bool((one - two).abs() <= tolerance * (floor + one.abs()))


def check_dense(engine: Engine, value: Tensor, behind: list[int]) -> None:
    """A value computed from parameters has a batched derivative only if every element of it is stored."""
    if value.layout != torch.strided:
        names = [list(engine.parameters)[k] for k in behind]
        raise UncoveredUse(
            f"the model makes a sparse tensor of parameter {', '.join(map(repr, names))}. {SLOWLY}. "
            "See: tacit explain no-rule",
            names,
        )


def not_repeated(engine: Engine, error: Exception) -> UncoveredUse:
    return UncoveredUse(
        f"{next(iter(engine.apart.values()))}; and a pass of each example by itself cannot repeat what the batch drew "
        f"({error}): switch dropout off there. {SLOWLY}. See: tacit explain no-rule"
    )


def alone_refused(engine: Engine, error: Exception) -> UncoveredUse:
    return UncoveredUse(
        f"{next(iter(engine.apart.values()))}; and the model does not run on an example by itself, from which its "
        f"gradient would be taken ({type(error).__name__}). Look for a squeeze() that takes the batch away, too. "
        "See: tacit explain no-rule"
    )


def say(engine: Engine, passes: int, seconds: float, rest: str = "") -> None:
    """Say once which parameters cost a pass for each example, why, and what that takes."""
    names, why = list(engine.parameters), next(iter(engine.apart.values()), "")
    key = f"apart: {len(engine.apart)}"
    if not passes or key in engine.said:
        return
    engine.said.add(key)
    shown = ", ".join(repr(names[k]) for k in list(engine.apart)[:3])
    more = f" and {len(engine.apart) - 3} more" if len(engine.apart) > 3 else ""
    warn_once(
        f"{why}. The gradients of {shown}{more} come from a pass of each example by itself: this batch took "
        f"{seconds:.3g} s for these {passes} passes{rest}. Steps are not compiled",
        engine.said,
        PassPerExample,
    )
