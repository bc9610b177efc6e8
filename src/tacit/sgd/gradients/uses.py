"""What is kept of an operation in which trainable parameters and private data meet?

A :class:`Use` holds the operation with its arguments, the edges of the autograd graph behind its outputs, and which of
its arguments are :class:`Derived` from parameters, with the way back to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from tacit.sgd.errors import UncoveredUse


@dataclass(eq=False)
class Derived:
    """A value computed from trainable parameters alone.

    ``chain`` replays the selection of elements of one parameter (empty for the parameter itself), and is ``None`` when
    the value is anything but such a selection.
    """

    tensor: Tensor
    params: frozenset[int]
    chain: tuple[tuple[Callable[..., Any], str, tuple[Any, ...], dict[str, Any], int | None], ...] | None


class Placeholder:
    """Stands for the derived value among the recorded arguments of an operation."""


HERE = Placeholder()


@dataclass(eq=False)
class Use:
    """One operation in which derived values and batch data meet."""

    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    derived: list[Derived]
    edges: list[GradientEdge]
    shapes: list[torch.Size]
    types: list[torch.dtype]
    outputs: list[Tensor]
    versions: list[tuple[Tensor, int]]
    inplace: bool
    autocast: tuple[str, torch.dtype] | None
    where: str
    rearranged: bool
    grads: list[Tensor | None] = field(default_factory=list)
    #: how each output lies on ranks, where it does
    placements: list[Any] | None = None

    def find(self, value: Any) -> Derived | None:
        """The derived value that this argument is, if it is one."""
        return next((d for d in self.derived if d.tensor is value), None)

    def fresh(self) -> None:
        for tensor, version in self.versions:
            if tensor._version != version:
                raise UncoveredUse(
                    f"an input of {self.name!r} in {self.where} was modified in place after it was used; "
                    "autograd would refuse this too. Replace the in-place operation by an ordinary one."
                )


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples and dicts of arguments."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """All tensors among the arguments of a call: :func:`tensors_in`, quick where arguments are not nested."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple | dict):
            found.extend(tensors_in(value))
    return found


def substitute(value: Any, swap: Callable[[Tensor], Any]) -> Any:
    """The same nested arguments with every tensor replaced by ``swap(tensor)``."""
    if isinstance(value, Tensor):
        return swap(value)
    if isinstance(value, list):
        return [substitute(item, swap) for item in value]
    if isinstance(value, tuple):
        items = [substitute(item, swap) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: substitute(item, swap) for key, item in value.items()}
    return value
