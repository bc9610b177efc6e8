"""What reaches a pass from outside the operations that are watched?

Tensors that were there before it began (:class:`Constants`), values that unwatched code reads (:class:`Scalars`), and
what modules keep from one pass to the next (:class:`Attributes`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


def modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules of a model, each once; ``model.modules()`` in a fraction of its time, for every step asks."""
    found: dict[int, nn.Module] = {}
    stack = [model]
    while stack:
        module = stack.pop()
        if id(module) not in found:
            found[id(module)] = module
            stack.extend(child for child in module._modules.values() if child is not None)
    return list(found.values())


class Scalars(TorchDispatchMode):
    """Sees that values are read by code that no function mode sees: what scripted functions do is dispatched, too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.read = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.read = self.read or func is torch.ops.aten._local_scalar_dense.default
        with torch._C.DisableTorchFunction():  # what was called is seen by its own name already
            return func(*args, **(kwargs or {}))


class Constants:
    """Tensors that were there before a pass began, so that nothing in it can have made them of the batch.

    One that a pass meets for the first time may have been made in it, unseen (by scripted code, in another thread). One
    that was there in the pass before, and has not been written to since, was not. Buffers of the model are put back
    after every pass.
    """

    def __init__(self, buffers: Sequence[Tensor] = ()) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        self._met: list[tuple[Any, int]] = []
        self._buffers = {id(b) for b in buffers}

    def __contains__(self, tensor: Tensor) -> bool:
        if id(tensor) in self._buffers:
            return True
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == tensor._version:
            return True
        self._met.append((weakref.ref(tensor), tensor._version))
        return False

    def next(self, buffers: Sequence[Tensor]) -> Constants:
        """What a new pass knows: what the last one met, and is still there."""
        alive = [(ref, version) for ref, version in [*self._known.values(), *self._met] if ref() is not None]
        after = Constants(buffers)
        after._known = {id(ref()): (ref, version) for ref, version in alive}
        return after


class Attributes:
    """Numbers and small tensors that modules keep beside their buffers, as they are now.

    A model that reads its data may keep what it read, and the next pass would depend on it: such a pass begins and ends
    as the one before.
    """

    MOST = 4096

    def __init__(self, model: nn.Module) -> None:
        self._held: list[tuple[dict[str, Any], str, Any, Tensor | None]] = []
        for module in modules_of(model):
            for name, value in vars(module).items():
                if isinstance(value, Tensor) and value.numel() <= self.MOST and not value.requires_grad:
                    self._held.append((vars(module), name, value, value.detach().clone()))
                elif isinstance(value, int | float) and name != "training":
                    self._held.append((vars(module), name, value, None))

    def restore(self) -> None:
        """Put them back."""
        for owner, name, value, copy in self._held:
            if name in owner:
                owner[name] = value
                if copy is not None:
                    value.data.copy_(copy)
