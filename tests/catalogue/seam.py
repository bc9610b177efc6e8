"""Where noise is drawn: what goes in is recorded, and what comes out is the same for every data set.

Everything private that leaves passes one of the functions of :mod:`tacit.noise` that add noise. Here each of them is
replaced, wherever it was imported: it notes the exact values and the scale of the noise, and gives back numbers that
depend on the place in the run only. Two runs on neighbours then show

- by how much each value moved, in units of its noise: what the releases really cost;
- whether anything else depends on the data: with the noisy values alike, everything released must be alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacit import noise
from tacit.ledger import Ledger
from tacit.noise import tensor

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Values that got noise: the kind of noise, its scale, and each value in units of it."""

    kind: str
    scale: tuple[float, ...]
    values: Floats


@dataclasses.dataclass
class Watched:
    """What happened in a run, in order."""

    drawn: list[Drawn] = dataclasses.field(default_factory=list)
    #: how many values had got noise when each charge was made
    charged_at: list[int] = dataclasses.field(default_factory=list)

    def fixed(self, shape: tuple[int, ...], scale: Any) -> Floats:
        """What comes out: ordinary numbers of the size of the noise."""
        return np.asarray(np.random.default_rng(len(self.drawn)).normal(size=shape) * scale)


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    """Replaces every function that adds noise, and notes when the ledger was charged."""
    seen = Watched()

    def add(kind: str) -> Callable[..., Any]:
        def replaced(values: Any, scale: float, **_: Any) -> Any:
            exact = np.asarray(values, dtype=float)
            seen.drawn.append(Drawn(kind, (float(scale),), exact.ravel() / scale))
            out = seen.fixed(exact.shape, scale)
            return float(out) if exact.ndim == 0 else out

        return replaced

    def many(tensors: Any, key: Any, step: Any, parameters: Any, scale: Any, **options: Any) -> None:
        scales = [float(scale)] * len(tensors) if isinstance(scale, int | float) else [float(s) for s in scale]
        flat = [t.detach().double().numpy().ravel() / s for t, s in zip(tensors, scales, strict=True)]
        seen.drawn.append(Drawn("gaussian", tuple(scales), np.concatenate(flat)))
        targets = options.get("into") or tensors
        for one, target, s in zip(tensors, targets, scales, strict=True):
            out = torch.from_numpy(seen.fixed(tuple(one.shape), s)) / options.get("divisor", 1.0)
            target.copy_(out)
            if target is not one:
                one.fill_(math.nan)

    def single(one: Any, key: Any, step: Any, parameter: Any, scale: float, **_: Any) -> Any:
        many([one], key, step, [parameter], scale)
        return one

    def choose(scores: Any, rate: Any, **_: Any) -> int:
        seen.drawn.append(Drawn("choice", (float(rate),), np.array([float(s) * float(rate) for s in scores])))
        return len(seen.drawn) % len(scores)

    replacements = [
        (noise.add_gaussian, add("gaussian")),
        (noise.add_laplace, add("laplace")),
        (noise.exponential_choice, choose),
        (tensor.add_normal_many_, many),
        (tensor.add_normal_, single),
    ]
    charge = Ledger.charge

    def noted(self: Ledger, *args: Any, **kwargs: Any) -> Any:
        made = charge(self, *args, **kwargs)
        seen.charged_at.append(len(seen.drawn))
        return made

    with contextlib.ExitStack() as stack:
        for old, new in replacements:
            for name, module in list(sys.modules.items()):
                if name == "tacit" or name.startswith(("tacit.", "tests.catalogue")):
                    for attribute, value in list(vars(module).items()):
                        if value is old:
                            stack.callback(setattr, module, attribute, value)
                            setattr(module, attribute, new)
        stack.callback(setattr, Ledger, "charge", charge)
        Ledger.charge = noted  # type: ignore[method-assign]
        yield seen


@dataclasses.dataclass(frozen=True)
class Moved:
    """How far two runs on neighbours lie apart at the noise: L2 and L1 in units of it, and the range of exponents."""

    gaussian: tuple[float, ...]
    laplace: float
    choice: float


def moved(one: Watched, other: Watched) -> Moved | str:
    """What neighbours move, or why the two runs cannot be compared."""
    if len(one.drawn) != len(other.drawn):
        return f"noise was drawn {len(one.drawn)} times and {len(other.drawn)} times: how often depends on the data"
    gaussian, laplace, choice = [], 0.0, 0.0
    for a, b in zip(one.drawn, other.drawn, strict=True):
        if a.kind != b.kind or len(a.values) != len(b.values):
            return f"{len(a.values)} {a.kind} values and {len(b.values)} {b.kind} ones: the release depends on the data"
        if a.scale != b.scale:
            return f"noise of scale {a.scale} and of scale {b.scale}: the scale depends on the data"
        apart = a.values - b.values
        if a.kind == "gaussian":
            gaussian.append(float(np.linalg.norm(apart)))
        elif a.kind == "laplace":
            laplace += float(np.abs(apart).sum())
        else:
            choice += float(apart.max() - apart.min())
    return Moved(tuple(gaussian), laplace, choice)


def alike(one: Any, other: Any) -> bool:
    """Whether two released things are the same to the last bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one.nan_to_num(), other.nan_to_num())
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other) or (one != one and other != other)  # NaN on both sides
