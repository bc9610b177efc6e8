"""What is a mutant? A small, named patch that makes tacit wrong in one way, for as long as a ``with`` block lasts."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

#: What a mutant breaks.
FAMILIES = ("noise", "sensitivity", "sampling", "accounting", "ranks")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A wrong version: its name, what it breaks, what it does, and how it is put in place."""

    name: str
    family: str
    story: str
    apply: Callable[[], AbstractContextManager[None]]
    #: the room that it breaks
    room: str = "sgd"
    #: how the names of the scenes begin that look at what it breaks; none means those of its room
    scenes: tuple[str, ...] = ()
    #: packages without which it cannot be tested
    needs: tuple[str, ...] = ()
    #: whether it was written after the checks were frozen
    later: bool = False

    def missing(self) -> list[str]:
        """Packages that it needs and that are not installed."""
        return [package for package in self.needs if importlib.util.find_spec(package) is None]


MUTANTS: dict[str, Mutant] = {}


def mutant(
    name: str,
    family: str,
    room: str = "sgd",
    *,
    scenes: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    later: bool = False,
) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    """Register a generator function, whose docstring is the story, as a mutant."""
    if family not in FAMILIES:
        raise ValueError(f"a mutant belongs to one of {', '.join(FAMILIES)}, not to {family!r}")

    def register(function: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        if name in MUTANTS:
            raise ValueError(f"there are two mutants called {name!r}")
        story = " ".join((function.__doc__ or "").split())
        MUTANTS[name] = Mutant(name, family, story, contextlib.contextmanager(function), room, scenes, needs, later)
        return function

    return register


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is ``value`` inside the block.

    >>> import math
    >>> with replaced(math, "pi", 3):
    ...     math.pi
    3
    >>> math.pi > 3
    True
    """
    if name not in vars(owner):
        raise AttributeError(f"{owner!r} has no {name!r} of its own: this mutant no longer fits the library")
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def adding(how: Callable[..., None]) -> Iterator[None]:
    """The noise of a step is added by ``how``; the division and the cast are as always."""
    from tacit.sgd import release

    def add(tensors: Any, key: Any, step: int, names: Any, scale: float, *, divisor: float = 1.0, into: Any) -> None:
        how(tensors, key, step, names, scale)
        for tensor, target in zip(tensors, into, strict=True):
            tensor /= divisor
            if target is not tensor:
                target.copy_(tensor)

    with replaced(release, "add_normal_many_", add):
        yield
