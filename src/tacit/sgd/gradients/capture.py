"""Which operations consume a trainable parameter together with private data?

:class:`Capture` watches one forward pass as a ``TorchFunctionMode``. It follows two facts about every tensor: does
its value depend on the batch (*tainted*), and is it a parameter or computed from parameters alone (*derived*). An
operation where the two meet is a :class:`~tacit.sgd.gradients.uses.Use`; nothing about the model is changed, and the
forward pass is the ordinary one, with the ordinary autograd graph. For each use the gradient edges of its outputs are
kept, so one backward pass to those edges gives every output gradient and computes no weight gradient at all.

Shapes play no part: a ``(1, T, d)`` position embedding or a soft prompt expanded over the batch is derived, and its
use is where it meets the batch.

What a plan says about the next batch holds where the pass does the same with other data. :attr:`Capture.doubt` says why
it may not: the data left torch, or a tensor came in that no watched operation made. Such a pass is checked every time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from tacit.sgd.errors import SLOWLY, UncoveredUse
from tacit.sgd.gradients.functions import (
    ABOUT,
    ALONG,
    CASTING,
    CONSTANT,
    EMBEDDING,
    ESCAPES,
    JOINING,
    PACKING,
    REARRANGING,
    SELECTING,
    SIZED,
    SORTING,
    from_torch,
    function_name,
    mutates,
    opened,
)
from tacit.sgd.gradients.outside import Constants
from tacit.sgd.gradients.uses import HERE, Derived, Use, arguments_of, substitute, tensors_in
from tacit.sgd.sharding.shards import held, is_spread, local


class Capture(TorchFunctionMode):
    """Record every use of ``params`` (name to tensor) while the model runs on the tensors of ``batch``.

    ``covers`` says whether a rule knows an operation whole (otherwise composite functions are opened), and
    ``decompose`` gives replacements for operations that are opened into others (recurrent layers). ``needs_values``
    says whether the rule of an operation reads the values of its inputs, or only their shapes. ``rows`` is how many
    rows the batch has, ``constants`` what is known not to depend on it.
    """

    def __init__(
        self,
        params: dict[str, Tensor],
        batch: Sequence[Tensor],
        covers: Callable[[str], bool],
        decompose: dict[str, Callable[..., Any]],
        needs_values: Callable[[str], bool] = lambda _: True,
        keep_outputs: bool = False,
        spread: bool = False,
        rows: int = 1,
        constants: Constants | None = None,
    ) -> None:
        super().__init__()
        #: why what was found out about another batch may not hold for this one; empty where nothing speaks against it
        self.doubt = ""
        self.rows = rows
        self._constants = Constants() if constants is None else constants
        self._made: dict[int, Any] = {}
        self._mixed: dict[int, Any] = {}
        self._mixed_storages: set[int] = set()  # which _tainted_storages keeps alive
        self.names = list(params)
        self.uses: list[Use] = []
        self.covers = covers
        self.decompose = decompose
        self.needs_values = needs_values
        self.keep_outputs = keep_outputs
        # Whether tensors may be pieces of larger ones, which other ranks hold the rest of.
        self.spread = spread
        self.where: list[str] = []
        self._derived: dict[int, Derived] = {}
        # By id, with a weak reference that tells whether the tensor of that id is still the one that was meant: a
        # strong one would keep every intermediate value alive, and torch's own weak dictionary costs as much as a
        # small operation. A reference is only followed where somebody holds a tensor of that id.
        self._tainted: dict[int, tuple[Any, bool, bool]] = {}
        self._tainted_storages: dict[int, Any] = {}
        # Sequences that were sorted by length to be packed, with the index that sorted them.
        self._orders: dict[int, tuple[Any, Tensor]] = {}
        self.unrolled = False
        self._use_nodes: set[Any] = set()
        self._leaves = {id(p): k for k, p in enumerate(params.values())}
        for k, param in enumerate(params.values()):
            self._derived[id(param)] = Derived(param, frozenset([k]), ())
        for tensor in batch:
            self._tainted[id(tensor)] = (weakref.ref(tensor), False, tensor.requires_grad)

    def doubts(self, losses: Sequence[Tensor]) -> str:
        """:attr:`doubt`, or that these values were computed with one that belongs to no single example."""
        if not self.doubt and any(self.mixed(t) for t in losses):
            return "a value computed from the whole batch goes into the losses"
        return self.doubt

    # -- the two facts -------------------------------------------------------------------------------------------

    def tainted(self, tensor: Tensor) -> bool:
        known = self._tainted.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return True
        if self.spread and is_spread(tensor):
            return self.tainted(held(tensor))
        return bool(self._tainted_storages) and _storage(tensor) in self._tainted_storages

    def rearranged(self, tensor: Tensor) -> bool:
        """Whether data-dependent indexing decided where the elements of this tensor are."""
        known = self._tainted.get(id(tensor))
        if known is not None and known[1] and known[0]() is tensor:
            return True
        return bool(self._tainted_storages) and self._tainted_storages.get(_storage(tensor), (None, False))[1]

    def mixed(self, tensor: Tensor) -> bool:
        """Whether a value without room for one element per row of the batch went into this tensor."""
        known = self._mixed.get(id(tensor))
        if known is not None and known() is tensor:
            return True
        return bool(self._mixed_storages) and _storage(tensor) in self._mixed_storages

    def _mix(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor], results: list[Tensor]
    ) -> None:
        """Note results that may hold something of several rows: elements along the batch, or two rows, have met."""
        rows = self.rows
        if rows <= 1:
            return
        worse = bool(self._mixed) and any(self.mixed(t) for t in inputs)
        worse = worse or (name in ALONG and _batch_dim(inputs[0], rows) in _dims(name, args, kwargs, inputs[0]))
        worse = worse or (name in REARRANGING and self._moves_rows(name, args, kwargs))
        for tensor in results:
            alone = any(size % rows == 0 for size in tensor.shape)
            if alone and len(inputs) > 1:
                # Every row with every other: what has the batch in two dimensions, made of tensors that have it in one.
                first = (
                    tensor.shape[_batch_dim(tensor, rows)] == rows
                )  # else the batch is folded into another dimension
                pairs = sum(size == rows for size in tensor.shape) if first else 0
                alone = pairs < 2 or any(sum(n == rows for n in t.shape) > 1 for t in inputs if self.tainted(t))
                alone = alone or sum(self.tainted(t) for t in inputs) < 2
            if worse or not alone:
                self._mixed[id(tensor)] = weakref.ref(tensor)
                if self._tainted_storages and _storage(tensor) in self._tainted_storages:  # written in place
                    self._mixed_storages.add(_storage(tensor))

    def _moves_rows(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether values of the batch decide which of its rows are taken: those of others may be among them."""
        if not args or not isinstance(args[0], Tensor) or not self.tainted(args[0]):
            return False
        index = args[1] if len(args) > 1 else kwargs.get("dim")
        if isinstance(index, int):
            index = (
                kwargs.get("index", args[2] if len(args) > 2 else None) if index % max(1, args[0].dim()) == 0 else None
            )
        elif isinstance(index, tuple):
            index = index[0] if index else None
        return isinstance(index, Tensor) and self.tainted(index)

    def _tells_by_size(self, name: str, args: tuple[Any, ...], inputs: list[Tensor]) -> bool:
        """Whether how many elements come out depends on values of the batch."""
        if name in SIZED or (name == "where" and len(args) == 1):
            return True
        return name == "__getitem__" and any(t.dtype == torch.bool and self.tainted(t) for t in inputs[1:])

    def order_of(self, tensor: Tensor) -> Tensor | None:
        """The index by which the examples of packed sequences were sorted, where that was seen."""
        known = self._orders.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def sorted_by(self, tensor: Tensor, order: Tensor) -> None:
        """Note that the examples in this tensor are in another order than in the batch."""
        self._orders[id(tensor)] = weakref.ref(tensor), order

    def _follow_order(self, name: str, args: tuple[Any, ...], results: list[Tensor]) -> None:
        # As torch.nn.utils.rnn.pack_padded_sequence does it, argument for argument.
        if name == "index_select" and len(args) == 3 and args[0].dim() and args[2].numel() == args[0].shape[args[1]]:
            self.sorted_by(results[0], args[2])
        elif name == "_pack_padded_sequence" and (order := self.order_of(args[0])) is not None:
            self.sorted_by(results[0], order)

    def derived(self, tensor: Tensor) -> Derived | None:
        return self._derived.get(id(tensor))

    def _taint(self, tensor: Tensor, rearranged: bool) -> None:
        self._derived.pop(id(tensor), None)
        self._tainted[id(tensor)] = (weakref.ref(tensor), rearranged, tensor.requires_grad)
        if self.spread and is_spread(tensor):
            self._taint(held(tensor), rearranged)

    def _taint_memory(self, tensor: Tensor, rearranged: bool) -> None:
        """Taint a tensor that was written to, and everything that shares its memory."""
        self._taint(tensor, rearranged)
        self._tainted_storages[_storage(tensor)] = (tensor.untyped_storage(), rearranged)

    def _rearranges(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor]) -> bool:
        if name in SORTING or any(self.rearranged(t) for t in inputs):
            return True
        if name not in REARRANGING:
            return False
        whole = [t for t in inputs if not t.is_floating_point() and not t.is_complex()]
        return any(self.tainted(t) for t in whole if t is not inputs[0] or name == "nonzero")

    def _foreign(self, tensor: Tensor) -> None:
        """A tensor with a gradient that no watched operation made: a custom autograd function, or compiled code."""
        stack, seen = [tensor.grad_fn], set()
        touched = False
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in self._use_nodes:
                touched = True
                continue
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in self._leaves:
                name = self.names[self._leaves[id(variable)]]
                raise UncoveredUse(
                    f"parameter {name!r} is consumed by {type(tensor.grad_fn).__name__} in {self._place()}, which "
                    "runs outside torch's dispatch (a custom autograd function, scripted or compiled code), so its "
                    f"per-example gradient cannot be seen. {SLOWLY}, or plain torch operations there."
                )
            stack.extend(parent for parent, _ in node.next_functions)
        if touched or seen:
            # Where its inputs were is not known: as bad as the worst.
            worst = any(moved for _, moved, _ in self._tainted.values())
            self._tainted[id(tensor)] = (weakref.ref(tensor), worst, True)

    def _place(self) -> str:
        return f"module {self.where[-1]!r}" if self.where and self.where[-1] else "the model"

    # -- the mode ------------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types_: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function_name(func)
        if name == "__get__":
            return func(*args, **kwargs)
        if name in CONSTANT:
            return self._note(func(*args, **kwargs))
        tainted = False
        derived: list[Derived] = []
        inputs = arguments_of(args, kwargs)
        for tensor in inputs:
            known_taint = self._tainted.get(id(tensor))
            if known_taint is not None and known_taint[0]() is tensor:
                tainted = True
                # What was made without a gradient and has one now came out of a custom autograd function.
                if not known_taint[2] and tensor.grad_fn is not None:
                    self._foreign(tensor)
                continue
            if self._tainted_storages and _storage(tensor) in self._tainted_storages:
                tainted = True
                continue
            known = self.derived(tensor)
            if known is not None:
                if not any(known is d for d in derived):
                    derived.append(known)
            elif self.spread and is_spread(tensor) and self.tainted(tensor):
                tainted = True
            elif tensor.requires_grad and tensor.grad_fn is not None:
                self._foreign(tensor)
                tainted = tainted or self.tainted(tensor)
                self.doubt = self.doubt or f"{name!r} in {self._place()} gets a value that no watched operation made"
            elif not self._is_constant(tensor):
                self.doubt = self.doubt or f"{name!r} in {self._place()} gets a tensor that no watched operation made"
        if not tainted and not derived:
            return self._note(func(*args, **kwargs))
        if tainted and derived and torch.is_grad_enabled():
            return self._use(func, name, args, kwargs, derived, inputs)
        return self._pass(func, name, args, kwargs, tainted, derived, inputs)

    def _note(self, out: Any) -> Any:
        """Remember what was made without the batch and without parameters."""
        for tensor in (out,) if isinstance(out, Tensor) else tensors_in(out):
            self._made[id(tensor)] = weakref.ref(tensor)
        return out

    def _is_constant(self, tensor: Tensor) -> bool:
        made = self._made.get(id(tensor))
        # On several ranks tensors are wrapped and unwrapped between operations: what is whose is not known by identity.
        return (made is not None and made() is tensor) or self.spread or tensor in self._constants

    def _pass(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tainted: bool,
        derived: list[Derived],
        inputs: list[Tensor],
    ) -> Any:
        versions = [t._version for t in inputs]
        out = func(*args, **kwargs)
        told = out is not None and not isinstance(out, Tensor | list | tuple | dict)
        if tainted and (name in ESCAPES or (told and name not in ABOUT) or self._tells_by_size(name, args, inputs)):
            self.doubt = self.doubt or f"{name!r} in {self._place()} reads values of the batch"
        changed = [t for t, v in zip(inputs, versions, strict=True) if t._version != v]
        if name == "__set__":
            changed = list({id(t): t for t in (*changed, args[0])}.values())  # no version tells of .data = ...
        if not isinstance(out, Tensor | list | tuple | dict) and not changed:
            return out
        results = [out] if isinstance(out, Tensor) else list(tensors_in(out))
        if func is torch.autograd.grad:
            # The operations of a backward pass are not watched: refuse if parameters take part in them.
            for tensor in results:
                if tensor.grad_fn is not None:
                    self._foreign(tensor)
        if tainted:
            moved = self._rearranges(name, args, kwargs, inputs)
            for tensor in results:
                self._taint(tensor, moved)
            for tensor in changed:
                self._taint_memory(tensor, moved)
            self._mix(name, args, kwargs, inputs, results + changed)
            if name in PACKING:
                self._follow_order(name, args, results)
            return out
        multiple = not isinstance(out, Tensor)
        for k, tensor in enumerate(results):
            if tensor.requires_grad and not any(tensor is d.tensor for d in derived):
                chain = self._chain(func, name, args, kwargs, derived, inputs, k if multiple else None)
                self._derived[id(tensor)] = Derived(tensor, frozenset().union(*(d.params for d in derived)), chain)
        for tensor in changed:
            for view in (tensor, tensor._base):
                if view is not None and view.requires_grad:
                    params = frozenset().union(*(d.params for d in derived))
                    self._derived[id(view)] = Derived(view, params, None)
        return out

    def _chain(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        derived: list[Derived],
        inputs: list[Tensor],
        item: int | None,
    ) -> Any:
        if len(derived) != 1 or derived[0].chain is None:
            return None
        source = derived[0].tensor
        if name in JOINING and sum(t is source for t in inputs) == 1 and kwargs.get("out") is None:
            # Joined to nothing (a cache of keys and values begins as an empty tensor): the value as it was.
            return derived[0].chain if all(t is source or t.numel() == 0 for t in inputs) else None
        if name not in SELECTING and name not in CASTING:
            return None
        if sum(t is source for t in inputs) != 1 or mutates(name, kwargs) or not from_torch(func):
            return None
        if name == "embedding":
            # The padding row gets no gradient, and frequencies scale the others: no longer a mere selection.
            functional = func is nn.functional.embedding
            names = EMBEDDING if functional else ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse")
            options = {**dict(zip(names, args, strict=False)), **kwargs}
            if options.get("padding_idx") not in (None, -1) or (functional and options.get("padding_idx") is not None):
                return None
            if options.get("max_norm") is not None or options.get("scale_grad_by_freq"):
                return None
        kept_args, kept_kwargs = substitute((args, kwargs), lambda t: HERE if t is source else t)
        return (*derived[0].chain, (func, name, kept_args, kept_kwargs, item))

    def _use(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        derived: list[Derived],
        inputs: list[Tensor],
    ) -> Any:
        if name in self.decompose and from_torch(func):
            self.unrolled = True
            return self.decompose[name](self, *args, **kwargs)
        if not self.covers(name) or not from_torch(func):
            body = opened(func)
            if body is not None:
                with self:
                    return body(*args, **kwargs)
        versions = [t._version for t in inputs]
        inplace = mutates(name, kwargs)
        kept = (args, kwargs)
        if inplace:
            if kwargs.get("out") is not None:
                raise UncoveredUse(f"{name!r} with out= consumes {self._names(derived)} in {self._place()}")
            target = args[0]
            known = self.derived(target)
            # What the operation saw is gone after it: keep a copy, with its history where it is a derived value.
            before = target.detach().clone() if known is None else target.clone()
            kept = substitute(kept, lambda t: before if t is target else t)
            if known is not None:
                copy = Derived(before, known.params, known.chain)
                derived = [copy if d is known else d for d in derived]
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and not inplace and not self.spread and out._is_view():
            out = _standing_alone(out, inputs)
        changed = [t for t, v in zip(inputs, versions, strict=True) if t._version != v]
        if any(t is not args[0] or not inplace for t in changed):
            raise UncoveredUse(
                f"{name!r}, which consumes {self._names(derived)} in {self._place()}, changes its inputs"
            )
        results = list(tensors_in(out))
        moved = any(self.rearranged(t) for t in inputs)
        if inplace or name in SORTING:
            moved = moved or self._rearranges(name, args, kwargs, inputs)
        for tensor in changed:
            self._taint_memory(tensor, moved)
            if not any(tensor is t for t in results):
                results.append(tensor)
        for tensor in results:
            self._taint(tensor, moved)
        self._mix(name, args, kwargs, inputs, results)
        self._record(func, name, kept[0], kept[1], derived, results, inplace, moved)
        return out

    def _record(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        derived: list[Derived],
        results: list[Tensor],
        inplace: bool,
        moved: bool,
    ) -> None:
        live = [t for t in results if t.requires_grad]
        if not live:
            return
        edges = [get_gradient_edge(t) for t in live]
        self._use_nodes.update(edge.node for edge in edges)
        placements = None
        if self.spread and any(is_spread(t) for t in live):
            # From here on the use is what this rank computed, with its pieces.
            from tacit.sgd.sharding.operations import own_part

            args, kwargs, derived, placements = own_part(self._place(), name, args, kwargs, derived, live, self.tainted)
            live = [local(t) for t in live]
        kept = (args, kwargs)
        if not self.needs_values(name):
            kept = substitute(kept, lambda t: t if any(t is d.tensor for d in derived) else _shape_only(t))
        self.uses.append(
            Use(
                func=func,
                name=name,
                args=kept[0],
                kwargs=kept[1],
                derived=derived,
                edges=edges,
                shapes=[t.shape for t in live],
                types=[t.dtype for t in live],
                outputs=live if self.keep_outputs else [],
                versions=[(t, t._version) for t in tensors_in(kept) if t.device.type != "meta"],
                inplace=inplace,
                autocast=_autocast(live[0].device.type),
                where=self._place(),
                rearranged=moved,
                placements=placements,
            )
        )

    def record(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], output: Tensor, moved: bool) -> None:
        """Enter a use that a replacement of an operation computed by other means, by the output it stands for."""
        derived = [d for d in (self.derived(t) for t in tensors_in(args)) if d is not None]
        if derived:
            self._record(func, name, args, {}, derived, [output], False, moved)

    def adopt(self, tensor: Tensor, moved: bool) -> None:
        """Take note of a tensor that depends on the batch and was computed unwatched."""
        self._taint(tensor, moved)

    def _names(self, derived: list[Derived]) -> str:
        names = sorted({self.names[k] for d in derived for k in d.params})
        return "parameter " + ", ".join(repr(n) for n in names)


def _shape_only(tensor: Tensor) -> Tensor:
    # A rule that reads no input values should not keep activations alive for them.
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _standing_alone(out: Tensor, inputs: list[Tensor]) -> Tensor:
    """The output of an operation that ends in a view of memory of its own, as no view.

    A linear layer of tokens and einsum do. Where such an output is written to in place (ReLU, a bias, a mask), autograd
    moves its history to what it is a view of, and the edge that was kept would see no gradient.
    """
    base = out._base
    if base is None or any(t is base or t._base is base for t in inputs) or not out.requires_grad:
        return out
    alone: Tensor = torch.ops.aten._unsafe_view(out, out.shape)
    return alone


def _batch_dim(tensor: Tensor, rows: int) -> int:
    """The dimension that most likely holds the rows of a batch."""
    return next((d for d, size in enumerate(tensor.shape) if size % rows == 0), -1)


def _dims(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], tensor: Tensor) -> tuple[int, ...]:
    """The dimensions along which an operation brings elements together; none where it is not told."""
    given = next((kwargs[k] for k in ("dim", "dims", "axis") if k in kwargs), None)
    if given is None and len(args) > ALONG[name]:
        given = args[ALONG[name]]
    if isinstance(given, int) and not isinstance(given, bool):
        given = (given,)
    if not isinstance(given, tuple | list) or not all(isinstance(d, int) for d in given):
        return ()
    return tuple(d % max(1, tensor.dim()) for d in given)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _autocast(device: str) -> tuple[str, torch.dtype] | None:
    if not torch.is_autocast_enabled(device):
        return None
    return device, torch.get_autocast_dtype(device)


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
