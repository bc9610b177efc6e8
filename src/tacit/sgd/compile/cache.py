"""Which compiled program serves a batch, and may it? One for each form of batch, whose first answer is compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.compile.comparison import Expected
from tacit.sgd.compile.program import CannotCompile, NotCompiled, Program, Result, Unsettled, flat
from tacit.sgd.gradients import survey, verify
from tacit.sgd.gradients.bounds import Clipping
from tacit.sgd.gradients.engine import Engine
from tacit.sgd.kernels import products

_MISSING = object()


def signature(engine: Engine, loss: Any, batch: Any, spec: Clipping, masked: bool, views: int) -> Any:
    """What a program was written for; anything else gets a program of its own."""
    leaves, tree = flat(batch)
    tensors = tuple(
        (t.shape, t.dtype, t.device, t.stride()) if isinstance(t, Tensor) else ("constant", repr(t)) for t in leaves
    )
    parameters = tuple((p.dtype, p.device) for p in engine.parameters.values())
    device = next(iter(engine.parameters.values())).device.type
    autocast = (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
    return (
        engine.context,
        loss,
        tree,
        tensors,
        parameters,
        tuple(engine.buffers),
        masked,
        views,
        spec.kind,
        spec.groups,
        spec.stabiliser,
        autocast,
        products.model_settings(),
    )


def attempt(
    engine: Engine,
    loss: Any,
    losses_of: Callable[[Any], Callable[[], Tensor]],
    batch: Any,
    examples: int,
    spec: Clipping,
    mask: Tensor | None,
    views: int,
    check: Any,
    due: bool,
    compiler: bool = True,
    lend: bool = False,
    meanwhile: Callable[[dict[str, Tensor]], None] | None = None,
) -> Result | None:
    """The clipped sums by the compiled program for this batch, which is made and checked where there is none yet.

    Nothing, where this batch has to run uncompiled. ``compiler=False``: by the program as it is traced. ``lend``:
    results may lie where the next call writes.
    """
    key = (compiler, signature(engine, loss, batch, spec, mask is not None, views))
    program = engine.programs.get(key, _MISSING)
    if program is None:
        return None
    expected: Expected | None = None
    short = False
    if program is _MISSING or due or not program.proven:
        rewind = verify.remember(next(iter(engine.parameters.values())).device)
        gradients, losses = survey.planned(engine, losses_of, batch, examples, views, check, due)
        rewind()
        if gradients is None:
            return None
        try:
            expected = Expected.of(engine, gradients, losses, spec, mask) if check != "never" else None
        except torch.OutOfMemoryError:  # a compiled step may need less than one that is not
            short = True
        del gradients, losses
    if program is _MISSING:
        try:
            program = Program(engine, losses_of, batch, examples, spec, mask, compiler)
        except Unsettled:
            return None
        except CannotCompile as why:
            engine.programs[key] = None
            warnings.warn(f"the step runs uncompiled: {why}", NotCompiled, stacklevel=5)
            return None
        finally:
            rewind()
        engine.programs[key] = program
        program.proven = check == "never" or _draws_apart(program)
    program.proven = program.proven or short
    if expected is None or _draws_apart(program):
        result: Result | None = program(batch, mask, spec, lend, meanwhile)
        return result
    result = program(batch, mask, spec, lend)
    if result is not None:
        wrong = expected.differs(result.norms, result.losses, result.sums)
        if wrong is not None:
            engine.programs[key] = None
            warnings.warn(f"the step runs uncompiled: compiled, its {wrong}", NotCompiled, stacklevel=5)
            return None
        program.proven = True
        if meanwhile is not None:  # only now: it may use the sums up
            meanwhile(result.sums)
    return result


def _draws_apart(program: Program) -> bool:
    """Whether a program may draw other random numbers than the step it was made of: nothing to compare with."""
    return program.random and program.device.type == "cuda"
