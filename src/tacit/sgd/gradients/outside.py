"""What else is there to know about a pass, besides its operations?

Values that unwatched code reads (:class:`Scalars`), what modules keep from one pass to the next (:class:`Attributes`),
what a call says of where values go (:func:`told`), which module is running (:func:`module_names`), and what has to be
the same in two passes for what is known of one to hold for the other (:func:`signature`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.sgd.gradients import frames
from tacit.sgd.gradients.contributions import Layout
from tacit.sgd.gradients.rows import ByRow
from tacit.sgd.torch_compat import DispatchMode, as_compiled, own_modules, pytree, read_scalar, without_function_modes

if TYPE_CHECKING:
    from tacit.sgd.gradients.passes import Pass


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

    A model that reads its data may keep what it read. The next pass would depend on it, and so would the next step,
    without noise: a pass begins and ends as the one before. Kept are numbers, words, nothing (``None``), small tensors,
    and lists, sets and dictionaries with the items they have.
    """

    MOST = 4096

    def __init__(self, model: nn.Module) -> None:
        # Those of torch keep their settings and nothing else.
        tables = [vars(m) for m in modules_of(model) if not type(m).__module__.startswith("torch.nn.modules.")]
        self._held = [(table, {name: table[name] for name in table.keys() - OWN}) for table in tables]
        self._copies: dict[tuple[int, str], Any] = {}
        for table, before in self._held:
            for name, value in before.items():
                if type(value) in (list, set, dict):
                    self._copies[id(table), name] = value.copy()
                elif isinstance(value, Tensor) and value.numel() <= self.MOST and not value.requires_grad:
                    self._copies[id(table), name] = value.detach().clone()

    def restore(self, private: Callable[[Tensor], bool] | None = None) -> list[str]:
        """Put them back; only those that hold a ``private`` tensor, if it is said which are.

        Many branches: an attribute may be unchanged, of another kind, public, new or written in place.

        Returns:
            The names of those that had changed.
        """
        changed = []
        for table, before in self._held:
            for name in table.keys() - OWN:
                now = table[name]
                if name in before and now is before[name] and (id(table), name) not in self._copies:
                    continue
                if not isinstance(now, KEPT) or isinstance(now, nn.Parameter):
                    continue
                if private is not None and not any(map(private, _tensors(now))):
                    continue
                if name not in before:
                    del table[name]
                elif now is not before[name] or self._other(table, name, now):
                    self._put_back(table, name, before[name])
                else:
                    continue
                changed.append(name)
        return changed

    def _other(self, table: dict[str, Any], name: str, now: Any) -> bool:
        """Whether the same object holds something else than before."""
        copy = self._copies.get((id(table), name))
        if copy is None:
            return False
        if isinstance(copy, Tensor):
            return not torch.equal(now, copy)
        return len(now) != len(copy) or any(a is not b for a, b in zip(_items(now), _items(copy), strict=True))

    def _put_back(self, table: dict[str, Any], name: str, value: Any) -> None:
        table[name] = value
        copy = self._copies.get((id(table), name))
        if isinstance(copy, Tensor):
            value.data.copy_(copy)
        elif copy is not None:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(copy)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.restore()


#: What may hold a value of the batch.
KEPT = (int, float, complex, str, type(None), Tensor, list, tuple, set, dict)


def _items(value: Any) -> list[Any]:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor)] if isinstance(value, HOLDERS) else []


HOLDERS = (list, tuple, set, dict)


#: Arguments that are told as they are.
PLAIN = frozenset((int, bool, str, bytes, type(None), type(...), range))
_ARITHMETIC = "add sub mul div truediv true_divide pow clamp fill eq ne lt gt le ge masked_fill where"
#: On values that are no index, the numbers in these move nothing, and may change from step to step.
ARITHMETIC = frozenset(
    form.format(n) for n in _ARITHMETIC.split() for form in ("{}", "{}_", "__{}__", "__i{}__", "__r{}__")
)


def told(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], numbers: dict[int, int]
) -> tuple[tuple[Any, ...], list[Any]]:
    """What a call says of where values go: whole numbers, slices, lists, and which tensors, by their ``numbers``.

    And the numbers that it computes with. A thread may have read those from the data, unseen.
    """
    index = not (name in ARITHMETIC and args and isinstance(args[0], Tensor) and args[0].is_floating_point())
    found: list[Any] = [name, *kwargs]
    amounts: list[Any] = []
    rest = [*args, *kwargs.values()]
    while rest:
        value = rest.pop()
        kind = type(value)
        if isinstance(value, Tensor):
            found.append(numbers.get(id(value), 0))
        elif kind in PLAIN:
            found.append(value if index else kind)
            if not index:
                amounts.append(value)
        elif isinstance(value, list | tuple):
            found.append(len(value))
            rest.extend(value)
        elif kind is slice:
            rest.extend((value.start, value.stop, value.step))
        else:
            found.append(value.tobytes() if isinstance(value, np.ndarray | np.integer) else kind)
            if isinstance(value, float | complex):
                amounts.append(value if value == value else "nan")
    return tuple(found), amounts


def told_type(func: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A cast to what another tensor is, as one to its type and device: nothing else of it counts, nor whose it is."""
    if len(args) > 1 and isinstance(args[1], Tensor):
        return Tensor.to, (args[0], args[1].device, args[1].dtype, *args[2:])
    return func, args


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


# -- what two passes have in common -----------------------------------------------------------------------------------

#: Dimensions that hold rows which are found in every batch: use, output, dimension.
MovingRows = list[tuple[int, int, int]]


def moving_rows(layouts: list[list[Layout | None]]) -> MovingRows:
    """Where a plan says nothing about how many rows there are."""
    return [
        (k, j, layout.dim) for k, use in enumerate(layouts) for j, layout in enumerate(use) if isinstance(layout, ByRow)
    ]


def outline(run: Pass, grads: list[list[Tensor | None]]) -> Any:
    """A signature without sizes: what has to be the same for layouts to be those of another batch size."""
    return (
        run.context,
        tuple(
            (
                use.name,
                tuple(len(shape) for shape in use.shapes),
                tuple(g is None for g in grad),
                tuple((tuple(sorted(d.params)), d.tensor.dim()) for d in use.derived),
            )
            for use, grad in zip(run.uses, grads, strict=True)
        ),
    )


def signature(run: Pass, grads: list[list[Tensor | None]], rows: dict[Any, MovingRows]) -> Any:
    """What has to be the same for a plan, and the checks of it, to hold; ``rows`` may be of any number, by outline."""
    shapes: list[list[Any]] = [list(use.shapes) for use in run.uses]
    for k, j, dim in rows.get(outline(run, grads), ()) if rows else ():
        shapes[k][j] = (*shapes[k][j][:dim], "rows", *shapes[k][j][dim + 1 :])
    return (
        run.context,
        run.batch,
        tuple(
            (
                use.name,
                tuple(sizes),
                tuple(g is None for g in grad),
                tuple(
                    (tuple(sorted(d.params)), d.tensor.shape, frames.chain_key(d) if d.chain else d.chain)
                    for d in use.derived
                ),
            )
            for use, sizes, grad in zip(run.uses, shapes, grads, strict=True)
        ),
    )
