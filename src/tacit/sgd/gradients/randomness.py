"""What did one example's share of a batch's random draws look like?

Dropout draws once for a whole batch. To compute an example by itself as it was in the batch, a pass is run again from
the same random state with its draws noted (:meth:`Draws.noted`), and the example's own share of them is given to the
pass of the example alone (:meth:`Draws.of`).
"""

from __future__ import annotations

import functools
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.sgd.gradients.contributions import words
from tacit.sgd.torch_compat import DispatchMode

#: Operators whose result is a draw, and nothing else.
PURE = frozenset(
    words(
        "bernoulli bernoulli_ rand rand_like randn randn_like randint randint_like randperm random_ uniform_ normal "
        "normal_ exponential_ geometric_ log_normal_ cauchy_ multinomial poisson binomial"
    )
)


class NotRepeated(Exception):
    """The draws of a pass cannot be given to one example."""


def random_state(device: torch.device, *, outside: bool = False) -> dict[str, Any]:
    """The state of torch's generators, which a model draws from; of Python's and NumPy's, too, with ``outside``."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if outside:
        state |= {"python": random.getstate(), "numpy": np.random.get_state()}  # noqa: NPY002  # the one models use
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put the generators back."""
    torch.set_rng_state(state["cpu"])
    if "python" in state:
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])  # noqa: NPY002
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def same_state(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Whether torch drew nothing between two states."""
    return all(torch.equal(one[kind], two[kind]) for kind in ("cpu", "cuda") if kind in one)


class Draws(DispatchMode):
    """The random draws of one pass, in their order."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.device = device
        self._made: list[tuple[Any, Tensor]] = []
        self._row: tuple[int, int] | None = None
        self._next = 0

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is drawn inside."""
        self._row, self._made = None, []
        with self:
            yield

    @contextmanager
    def of(self, example: int, examples: int) -> Iterator[None]:
        """Inside, the draws are those of one of so many examples."""
        self._row, self._next = (example, examples), 0
        with self:
            yield
        if self._next != len(self._made):
            raise NotRepeated("an example by itself draws fewer random numbers than its batch")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name not in PURE and name != "native_dropout":
            before = random_state(self.device)
            out = func(*args, **kwargs)
            if not same_state(before, random_state(self.device)):
                raise NotRepeated(f"{name} draws inside another computation")
            return out
        out = func(*args, **kwargs)
        drawn = out[1] if name == "native_dropout" else out
        if self._row is None:
            self._made.append((func, drawn.clone()))
            return out
        drawn.copy_(self._share(func, drawn))
        if name != "native_dropout":
            return out
        scale = 0.0 if args[1] >= 1 else 1.0 / (1.0 - args[1])
        return args[0] * drawn * scale, drawn

    def _share(self, func: Any, drawn: Tensor) -> Tensor:
        """What the example drew in the batch, in place of what it drew now."""
        assert self._row is not None
        example, examples = self._row
        if self._next >= len(self._made) or self._made[self._next][0] is not func:
            raise NotRepeated("an example by itself draws other random numbers than its batch")
        whole, self._next = self._made[self._next][1], self._next + 1
        if whole.shape == drawn.shape:  # one draw for everybody
            return whole
        other = [d for d, (a, b) in enumerate(zip(whole.shape, drawn.shape, strict=False)) if a != b]
        if whole.dim() != drawn.dim() or len(other) != 1 or whole.shape[other[0]] != examples * drawn.shape[other[0]]:
            raise NotRepeated("which random numbers of a batch belong to an example cannot be told")
        size = drawn.shape[other[0]]
        return whole.narrow(other[0], example * size, size)


def remember(device: torch.device, *, outside: bool = True) -> Callable[[], None]:
    """A function that rewinds the random state to what it is now."""
    return functools.partial(set_random_state, random_state(device, outside=outside), device)


def drawn_outside(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether Python's or NumPy's generator was asked between two states."""
    return any(pickle.dumps(before[kind]) != pickle.dumps(after[kind]) for kind in ("python", "numpy"))
