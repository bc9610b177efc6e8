"""What else is there to know about a pass, besides its operations?

Values that unwatched code reads (:class:`Scalars`), what modules keep from one pass to the next (:class:`Attributes`),
and which module is running (:func:`module_names`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tacit.sgd.torch_compat import DispatchMode, as_compiled, own_modules, read_scalar, without_function_modes


def modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules of a model, each once; ``model.modules()`` in a fraction of its time, for every step asks."""
    found: dict[int, nn.Module] = {}
    stack = [model]
    while stack:
        module = stack.pop()
        if id(module) not in found:
            found[id(module)] = module
            stack.extend(child for child in own_modules(module).values() if child is not None)
    return list(found.values())


class Scalars(DispatchMode):
    """Sees that values are read by code that no function mode sees: what scripted functions do is dispatched, too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.read = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.read = self.read or func is read_scalar
        with without_function_modes():  # what was called is seen by its own name already
            return func(*args, **(kwargs or {}))


#: What torch itself keeps in every module.
OWN = frozenset(vars(nn.Module()))


class Attributes:
    """What modules keep beside their parameters and buffers, as it is now; inside ``with``, put back at the end.

    A model that reads its data may keep what it read, and the next pass would depend on it: such a pass begins and ends
    as the one before. Kept are numbers, words, nothing (``None``), small tensors, and lists, sets and dictionaries with
    the items they have.
    """

    MOST = 4096

    def __init__(self, model: nn.Module) -> None:
        self._held: list[tuple[dict[str, Any], str, Any, Any]] = []
        for module in modules_of(model):
            for name, value in vars(module).items():
                if isinstance(value, Tensor) and value.numel() <= self.MOST and not value.requires_grad:
                    self._held.append((vars(module), name, value, value.detach().clone()))
                elif isinstance(value, int | float | str | None) and name != "training":
                    self._held.append((vars(module), name, value, None))
                elif type(value) in (list, set, dict) and name not in OWN:
                    self._held.append((vars(module), name, value, value.copy()))

    def restore(self) -> None:
        """Put them back."""
        for owner, name, value, copy in self._held:
            if name not in owner:
                continue
            owner[name] = value
            if isinstance(copy, Tensor):
                value.data.copy_(copy)
            elif copy is not None and value != copy:
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(copy)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.restore()


def as_written(*, compiled: bool, hushed: bool = False) -> AbstractContextManager[Any]:
    """Compiled parts of a model run as they were written inside, so that their operations are seen.

    A model that is ``hushed`` hears that it is compiled: many look at their data for a shortcut, and then do not.
    """
    if not compiled and not hushed:
        return nullcontext()
    found = ExitStack()
    if compiled:
        found.enter_context(torch.compiler.set_stance("force_eager"))
    if hushed:
        found.enter_context(as_compiled())
    return found


@contextmanager
def module_names(model: nn.Module, where: list[str]) -> Iterator[None]:
    """Keep the name of the running module in ``where`` while inside, through global hooks that are removed after."""
    names = {id(m): n for n, m in model.named_modules()}

    def enter(module: nn.Module, _: Any) -> None:
        where.append(names.get(id(module), type(module).__name__))

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        where.pop()

    handles = [
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
