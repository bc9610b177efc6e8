"""What is a pass, and what else is there to know about it besides its operations?

A watched :class:`Pass` and the state of the model that it rests on (:class:`ModelState`), tensors that were there
before (:class:`Constants`), values that unwatched code reads (:class:`Scalars`), what modules keep from one pass to
the next (:class:`Attributes`), what a call says of where values go (:func:`told`), which module is running
(:func:`module_names`), and what has to be the same in two passes for what is known of one to hold for the other
(:func:`signature`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.sgd.errors import ClippingError
from tacit.sgd.gradients import frames, verify
from tacit.sgd.gradients.capture import Use, rows_of_nested
from tacit.sgd.gradients.contributions import Layout
from tacit.sgd.gradients.functions import ALONG, TorchCall
from tacit.sgd.gradients.rows import ByRow
from tacit.sgd.sharding.shards import cut_alike
from tacit.sgd.torch_compat import (
    DispatchMode,
    as_compiled,
    compiled_call,
    own_buffers,
    own_modules,
    own_parameters,
    pytree,
    read_scalar,
    without_function_modes,
)
from tacit.sgd.torch_compat import version as version_of


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


#: Larger constants are not compared from pass to pass.
SMALL = 4096


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
        if known is not None and known[0]() is tensor and known[1] == version_of(tensor):
            return True
        self._met.append((weakref.ref(tensor), version_of(tensor)))
        return False

    def next(self, buffers: Sequence[Tensor]) -> Constants:
        """What a new pass knows: what the last one met, and is still there."""
        alive = [(ref, version) for ref, version in [*self._known.values(), *self._met] if ref() is not None]
        after = Constants(buffers)
        after._known = {id(ref()): (ref, version) for ref, version in alive}
        return after


def content(tensor: Tensor) -> bytes:
    """What a small tensor in the memory of the CPU holds; nothing of others."""
    if tensor.device.type != "cpu" or tensor.numel() > SMALL or tensor.layout is not torch.strided or tensor.is_nested:
        return b""
    # of a copy: memory that numpy has seen can no longer be resized
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


def row_index(call: TorchCall) -> Tensor | None:
    """The tensor that says which rows of the first argument are taken."""
    args, kwargs = call.args, call.kwargs
    if not args or not isinstance(args[0], Tensor):
        return None
    index = args[1] if len(args) > 1 else kwargs.get("dim")
    if isinstance(index, int):
        along_rows = index % max(1, args[0].dim()) == 0
        index = kwargs.get("index", args[2] if len(args) > 2 else None) if along_rows else None
    elif isinstance(index, tuple):
        index = index[0] if index else None
    return index if isinstance(index, Tensor) else None


def batch_dim(tensor: Tensor, rows: int) -> int:  # which most likely holds the rows of a batch
    return -1 if tensor.is_nested else next((d for d, size in enumerate(tensor.shape) if size % rows == 0), -1)


def dims(call: TorchCall) -> tuple[int, ...]:
    """The dimensions along which an operation brings elements together; none where it is not told."""
    given = next((call.kwargs[k] for k in ("dim", "dims", "axis") if k in call.kwargs), None)
    if given is None and len(call.args) > ALONG[call.name]:
        given = call.args[ALONG[call.name]]
    if isinstance(given, int) and not isinstance(given, bool):
        given = (given,)
    if not isinstance(given, tuple | list) or not all(isinstance(d, int) for d in given):
        return ()
    return tuple(d % max(1, call.inputs[0].dim()) for d in given)


Outputs = list[list[Tensor]]


class ModelState:
    """What has to be as it was for what is known of a model to hold: asked at every step, so all in one walk.

    ``trained`` names tensors by their place in memory, for as long as somebody keeps them. ``buffers`` are the tables
    that hold buffers, with name and value of each: not the modules, which an engine must not keep alive.
    """

    def __init__(self, model: nn.Module) -> None:
        self.training: list[bool] = []
        #: numbers that modules keep (a temperature, a rate of dropout): a program has them built in
        numbers: list[float] = []
        self.trained: list[int] = []
        self.buffers: list[tuple[MutableMapping[str, Tensor | None], str, Tensor]] = []
        self.frozen: list[Tensor] = []
        self.suspicious = self.compiled = False
        seen: set[int] = set()
        stack = [model]
        while stack:
            module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            self.training.append(module.training)
            suspicious = isinstance(module, verify.SUSPECTS) and getattr(module, "max_norm", 0) is not None
            self.suspicious = self.suspicious or suspicious
            compiled = compiled_call(module) is not None or type(module).__name__ == "OptimizedModule"
            self.compiled = self.compiled or compiled
            for p in own_parameters(module).values():
                if p is not None and p.requires_grad:
                    self.trained.append(id(p))
                elif p is not None:
                    self.frozen.append(p)
            table = own_buffers(module)
            self.buffers += [(table, key, b) for key, b in table.items() if b is not None]
            stack += [child for child in own_modules(module).values() if child is not None]
            numbers += [value for value in vars(module).values() if type(value) is float]
        self.numbers = tuple(numbers)


class Pass:
    """One watched forward pass: its uses and the losses of its examples (already averaged over views).

    ``context`` is what a check of one pass says nothing about in another, ``unrolled`` says whether a recurrent layer
    was written out in time, ``trace`` what was done, ``doubt`` why what was found out about other batches may not hold
    for this one; ``rewind`` puts the random state back to what it was before.
    """

    def __init__(
        self,
        uses: list[Use],
        losses: Tensor,
        batch: int,
        context: Any = None,
        *,
        doubt: str = "",
        rewind: Callable[[], None] = lambda: None,
    ) -> None:
        self.uses, self.losses, self.batch, self.context = uses, losses, batch, context
        self.doubt, self.rewind = doubt if batch > 1 else "", rewind
        self.unrolled, self.trace, self.way, self.types = False, 0, 0, set[torch.dtype]()
        self.severed = False

    def outputs(self) -> Outputs:
        """The values of the outputs of the uses, without the graph behind them."""
        return [[t.detach() for t in use.outputs] for use in self.uses]

    def output_gradients(self, weights: Tensor | None = None, *, retain: bool = False) -> list[list[Tensor | None]]:
        """The gradient of the (weighted) sum of the losses at every output of every use, by one backward pass."""
        edges = [edge for use in self.uses for edge in use.edges]
        if not edges:
            return []
        weights = torch.ones_like(self.losses) if weights is None else weights.to(self.losses.dtype)
        try:
            found = list(torch.autograd.grad(self.losses, edges, weights, retain_graph=retain, allow_unused=True))
        except RuntimeError as error:
            if "use_reentrant" in str(error) or "not compatible with .grad()" in str(error):
                raise ClippingError(
                    "reentrant activation checkpointing hides its operations from autograd.grad: use "
                    "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
                ) from error
            raise
        grads: list[list[Tensor | None]] = []
        for use in self.uses:
            own: list[Tensor | None] = [
                None if g is None else rows_of_nested(g.detach()) for g in found[: len(use.edges)]
            ]
            grads.append(own if use.placements is None else cut_alike(own, use.placements))
            found = found[len(use.edges) :]
        return grads
