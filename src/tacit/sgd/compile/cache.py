"""Which compiled program serves a batch, and may it? One for each form of batch, whose first answer is compared."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.compile.comparison import Expected
from tacit.sgd.compile.program import CannotCompile, NotCompiled, Program, Result, Unsettled, flat
from tacit.sgd.gradients.bounds import warn_once
from tacit.sgd.gradients.engine import Engine, Request
from tacit.sgd.gradients.randomness import remember
from tacit.sgd.kernels import products

_MISSING = object()
#: A program has the numbers of the model built in: there are programs for so many of each.
MOST_NUMBERS = 4
CHANGING = "the step runs uncompiled: a number that a module keeps (a temperature, a rate) changes from step to step"


def signature(engine: Engine, request: Request) -> Any:
    """What a program was written for; anything else gets a program of its own."""
    leaves, tree = flat(request.batch)
    tensors = tuple(
        (t.shape, t.dtype, t.device, t.stride()) if isinstance(t, Tensor) else ("constant", repr(t)) for t in leaves
    )
    parameters = tuple((p.dtype, p.device) for p in engine.parameters.values())
    device = engine.device.type
    autocast = (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
    return (
        engine.context_of(request),
        engine.state.numbers,
        request.loss,
        tree,
        tensors,
        parameters,
        tuple(id(b) for _, _, b in engine.state.buffers),
        request.mask is not None,
        request.views,
        request.clipping.kind,
        request.clipping.groups,
        request.clipping.stabiliser,
        autocast,
        products.model_settings(),
    )


def attempt(
    engine: Engine, request: Request, due: bool, *, compiler: bool = True, most: int | None = None
) -> Result | None:
    """The clipped sums by the compiled program for this batch, which is made and checked where there is none yet.

    Nothing, where this batch has to run uncompiled. ``due`` says that a check is, ``compiler=False`` asks for the
    program as it is traced. With ``most`` nobody asked for programs: there are at most so many, and no warning says why
    one cannot be made. Many branches: each is a reason to run uncompiled, or to compare once more.
    """
    key = (compiler, signature(engine, request))
    program = engine.programs.get(key, _MISSING)
    if program is None or (program is _MISSING and most is not None and len(engine.programs) >= most):
        return None
    if program is _MISSING and _changing(engine, key):
        warn_once(CHANGING if most is None else None, engine.said, NotCompiled)
        return None
    expected: Expected | None = None
    short = False
    if program is _MISSING or due or not program.proven:
        rewind = remember(engine.device)
        gradients, losses = engine.by_plan(request, due=due)
        engine.settle()
        rewind()
        if gradients is None:
            return None
        try:
            if request.check != "never":
                expected = Expected.of(engine, gradients, losses, request.clipping, request.mask)
        except torch.OutOfMemoryError:  # a compiled step may need less than one that is not
            short = True
        del gradients, losses
    if program is _MISSING:
        try:
            program = _made(engine, request, key, compiler=compiler, told=most is None)
        finally:
            rewind()
        if program is None:
            return None
        program.proven = request.check == "never" or _draws_apart(program)
    program.proven = program.proven or short
    if expected is None or _draws_apart(program):
        result: Result | None = program(request)
        return result
    result = program(dataclasses.replace(request, while_it_runs=None))
    if result is not None:
        wrong = expected.differs(result.norms, result.losses, result.sums)
        if wrong is not None:
            engine.programs[key] = None
            warnings.warn(f"the step runs uncompiled: compiled, its {wrong}", NotCompiled, stacklevel=5)
            return None
        program.proven = True
        if request.while_it_runs is not None:  # only now: it may use the sums up
            request.while_it_runs(result.sums)
    return result


def _made(engine: Engine, request: Request, key: Any, *, compiler: bool, told: bool) -> Program | None:
    """A new program, which is kept; nothing where there can be none, or not yet."""
    try:
        engine.programs[key] = Program(engine, request, compiler=compiler)
    except Unsettled:
        return None
    except CannotCompile as why:
        engine.programs[key] = None
        if told:
            warnings.warn(f"the step runs uncompiled: {why}", NotCompiled, stacklevel=6)
    made: Program | None = engine.programs[key]
    return made


def _changing(engine: Engine, key: Any) -> bool:
    """Whether programs for as many other numbers in the model were made already."""

    def rest(known: Any) -> Any:
        compiler, (context, _, *others) = known
        return compiler, context, others

    return len([known for known in engine.programs if rest(known) == rest(key)]) >= MOST_NUMBERS


def _draws_apart(program: Program) -> bool:
    """Whether a program may draw other random numbers than the step it was made of: nothing to compare with."""
    return program.random and program.device.type == "cuda"
