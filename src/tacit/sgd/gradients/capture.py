"""Which operations consume a trainable parameter together with private data?

:class:`Capture` watches one forward pass as a ``TorchFunctionMode``. It follows two facts about every tensor: does
its value depend on the batch (*tainted*), and is it a parameter or computed from parameters alone (*derived*). An
operation where the two meet is a :class:`Use`; nothing about the model is changed, and the
forward pass is the ordinary one, with the ordinary autograd graph. For each use the gradient edges of its outputs are
kept, so one backward pass to those edges gives every output gradient and computes no weight gradient at all.

Shapes play no part: a ``(1, T, d)`` position embedding or a soft prompt expanded over the batch is derived, and its
use is where it meets the batch.

What a plan says about the next batch holds where the pass does the same with other data. :attr:`Capture.doubt` says why
it may not: the data left torch, or a tensor came in that no watched operation made. Such a pass is checked every time.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from tacit.sgd.errors import SLOWLY, ClippingError, UncoveredUse
from tacit.sgd.gradients.functions import (
    ABOUT,
    ALONG,
    CASTING,
    CONSTANT,
    ESCAPES,
    HERE,
    JOINING,
    KNOWN,
    OPENED,
    PACKING,
    REARRANGING,
    SELECTING,
    SIZED,
    SORTING,
    Derived,
    Operation,
    TorchCall,
    only_selects,
    opened,
    storage_of,
)
from tacit.sgd.sharding.shards import held, is_sharded, local
from tacit.sgd.torch_compat import base, is_view, transforms, unsafe_view
from tacit.sgd.torch_compat import version as version_of

if TYPE_CHECKING:
    from tacit.sgd.gradients.outside import Constants

#: What sizes alone make one think; who owns what may show that it is not so.
BY_SIZE = "a value computed from the whole batch goes into the losses"
UNSEEN = "the model reads values of the batch"
BEHIND = "Python takes part in the backward pass (a custom autograd function, a hook)"

#: What comes out of these has no history.
SEVERING = frozenset(("detach", "detach_", "data"))
GRAD_FN = cast(Any, Tensor).grad_fn.__get__

WRITTEN = (
    "the forward pass writes values of the batch into a parameter, which would reach the model without noise. Put it "
    "back from a checkpoint; keep such statistics in a buffer (it is put back after every pass), or take them out"
)


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
    #: how each output lies on ranks, where it does
    placements: list[Any] | None = None

    def find(self, value: Any) -> Derived | None:
        """The derived value that this argument is, if it is one."""
        return next((d for d in self.derived if d.tensor is value), None)

    def fresh(self) -> None:
        """Refuse inputs that were written to since."""
        for tensor, version in self.versions:
            if version_of(tensor) != version:
                raise UncoveredUse(
                    f"an input of {self.name!r} in {self.where} was modified in place after it was used, which "
                    "autograd would refuse, too: replace the in-place operation by an ordinary one"
                )


SEQUENCES = (list, tuple)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in nested lists, tuples and dicts of arguments."""
    found: list[Tensor] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, SEQUENCES):
            stack.extend(item[::-1])
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))
    return found


def substitute(value: Any, swap: Callable[[Any], Any], kinds: tuple[type, ...] = (Tensor,)) -> Any:
    """The same nested arguments with everything of these kinds replaced by ``swap`` of it."""
    whole: list[Any] = [value]
    todo: list[tuple[Any, Any]] = [(whole, 0)]
    tuples: list[tuple[Any, Any, list[Any], tuple[Any, ...]]] = []
    while todo:
        owner, key = todo.pop()
        item = owner[key]
        if isinstance(item, kinds):
            owner[key] = swap(item)
        elif isinstance(item, list | tuple):
            owner[key] = copy = list(item)
            todo.extend((copy, k) for k in range(len(copy)))
            if isinstance(item, tuple):
                tuples.append((owner, key, copy, item))
        elif isinstance(item, dict):
            owner[key] = table = dict(item)
            todo.extend((table, k) for k in table)
    for owner, key, copy, item in reversed(tuples):  # those inside before those around them
        owner[key] = type(item)(*copy) if hasattr(item, "_fields") else tuple(copy)
    return whole[0]


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
        rows: int = 1,
        constants: Constants | None = None,
        *,
        keep_outputs: bool = False,
        sharded: bool = False,
        apart: Collection[int] = (),
        frozen: Collection[Tensor] = (),
    ) -> None:
        super().__init__()
        from tacit.sgd.gradients import outside  # which knows what a plan is, as this does not

        self._outside = outside
        #: parameters whose gradients somebody else computes, by their number; and those whose gradients cannot be seen
        self.apart = apart
        self._parameters, self._frozen = tuple(params.values()), frozen
        self.foreign: dict[int, str] = {}
        #: why what was found out about another batch may not hold for this one; empty where nothing speaks against it
        self.doubt = ""
        self.rows = rows
        self._constants = outside.Constants() if constants is None else constants
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
        self.sharded = sharded
        self.where: list[str] = []
        self._derived: dict[int, Derived] = {}
        # By id, with a weak reference that tells whether the tensor of that id is still the one that was meant: a
        # strong one would keep every intermediate value alive, and torch's own weak dictionary costs as much as a
        # small operation. A reference is only followed where somebody holds a tensor of that id.
        self._tainted: dict[int, tuple[Any, bool, bool]] = {}
        self._tainted_storages: dict[int, Any] = {}
        # Sequences that were sorted by length to be packed, with the index that sorted them.
        self._orders: dict[int, tuple[Any, Tensor]] = {}
        self.unrolled, self.types = False, set[torch.dtype]()  # types in which values were made of parameters
        #: what was done, function by function: another sequence, or other places of tensors, is another number
        self.trace, self._amounts, self._next = 0, 0, itertools.count()
        #: whether Python takes part in the backward pass: custom autograd functions, hooks
        self.behind = False
        #: whether values were cut off from their history: a loss then need not tell what its gradient is
        self.severed = False
        self._numbers = {id(t): next(self._next) for t in (*params.values(), *batch)}
        self._use_nodes: set[Any] = set()
        self._leaves = {id(p): k for k, p in enumerate(params.values())}
        for k, param in enumerate(params.values()):
            self._derived[id(param)] = Derived(param, frozenset([k]), ())
        for tensor in batch:
            self._tainted[id(tensor)] = (weakref.ref(tensor), False, tensor.requires_grad)

    @property
    def way(self) -> int:
        """:attr:`trace`, with the numbers that were computed with."""
        return hash((self.trace, self._amounts))

    def doubts(self, losses: Sequence[Tensor]) -> str:
        """:attr:`doubt`, or that these values were computed with one that belongs to no single example."""
        if not self.doubt and any(self.mixed(t) for t in losses):
            return BY_SIZE
        return self.doubt

    # -- the two facts -------------------------------------------------------------------------------------------

    def tainted(self, tensor: Tensor) -> bool:
        """Whether the value of this tensor depends on the batch."""
        known = self._tainted.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return True
        if self.sharded and is_sharded(tensor):
            return self.tainted(held(tensor))
        return bool(self._tainted_storages) and storage_of(tensor) in self._tainted_storages

    def rearranged(self, tensor: Tensor) -> bool:
        """Whether data-dependent indexing decided where the elements of this tensor are."""
        known = self._tainted.get(id(tensor))
        if known is not None and known[1] and known[0]() is tensor:
            return True
        return bool(self._tainted_storages) and self._tainted_storages.get(storage_of(tensor), (None, False))[1]

    def mixed(self, tensor: Tensor) -> bool:
        """Whether a value without room for one element per row of the batch went into this tensor."""
        known = self._mixed.get(id(tensor))
        if known is not None and known() is tensor:
            return True
        return bool(self._mixed_storages) and storage_of(tensor) in self._mixed_storages

    def _mix(self, call: TorchCall, results: list[Tensor]) -> None:
        """Note results that may hold something of several rows: elements along the batch, or two rows, have met."""
        name, inputs, rows = call.name, call.inputs, self.rows
        if rows <= 1:
            return
        worse = bool(self._mixed) and any(self.mixed(t) for t in inputs)
        worse = worse or (name in ALONG and self._outside.batch_dim(inputs[0], rows) in self._outside.dims(call))
        index = self._outside.row_index(call) if name in REARRANGING else None
        # Values of the batch that decide which of its rows are taken: those of others may be among them.
        worse = worse or (index is not None and self.tainted(index) and self.tainted(call.args[0]))
        for tensor in results:
            alone = not tensor.is_nested and any(size % rows == 0 for size in tensor.shape)
            if worse or not alone or (len(inputs) > 1 and self._pairs_rows(tensor, inputs)):
                self._mixed[id(tensor)] = weakref.ref(tensor)
                if self._tainted_storages and storage_of(tensor) in self._tainted_storages:  # written in place
                    self._mixed_storages.add(storage_of(tensor))

    def _pairs_rows(self, tensor: Tensor, inputs: list[Tensor]) -> bool:
        """Whether every row met every other: what has the batch in two dimensions, of tensors that have it in one."""
        rows = self.rows
        if tensor.shape.count(rows) < 2 or tensor.shape[self._outside.batch_dim(tensor, rows)] != rows:
            return False  # or the batch is folded into another dimension
        private = [t for t in inputs if self.tainted(t)]
        return len(private) > 1 and not any(t.shape.count(rows) > 1 for t in private)

    def _watch(self, call: TorchCall, out: Any) -> None:
        """Note whether values of the batch leave torch here, also as how many elements come out, or lose their history.

        Many branches: there are as many ways out.
        """
        name, args, inputs = call.name, call.args, call.inputs
        if not self.severed and (name in SEVERING or not torch.is_grad_enabled()):
            self.severed = any(t.requires_grad for t in inputs)
        if self.doubt:
            return
        told = out is not None and not isinstance(out, Tensor | list | tuple | dict)
        reads = name in ESCAPES or name in SIZED or (told and name not in ABOUT) or (name == "where" and len(args) == 1)
        if not reads and name in ("tensor_split", "__getitem__"):
            named = [t for t in inputs[1:] if self.tainted(t)]
            reads = any(t.dtype == torch.bool for t in named) if name == "__getitem__" else bool(named)
        if reads:
            self.doubt = f"{name!r} in {self._place()} reads values of the batch"

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
        """What this tensor is of parameters alone, if it is that."""
        return self._derived.get(id(tensor))

    def _taint(self, tensor: Tensor, *, rearranged: bool) -> None:
        self._derived.pop(id(tensor), None)
        self._numbers[id(tensor)] = next(self._next)
        self._tainted[id(tensor)] = (weakref.ref(tensor), rearranged, tensor.requires_grad)
        if self.sharded and is_sharded(tensor):
            self._taint(held(tensor), rearranged=rearranged)

    def _taint_memory(self, tensor: Tensor, *, rearranged: bool) -> None:
        """Taint a tensor that was written to, and everything that shares its memory."""
        self._taint(tensor, rearranged=rearranged)
        self._tainted_storages[storage_of(tensor)] = (tensor.untyped_storage(), rearranged)

    def _rearranges(self, name: str, inputs: list[Tensor]) -> bool:
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
            self.behind = self.behind or isinstance(node, torch.autograd.function.BackwardCFunction)
            if node in self._use_nodes:
                touched = True
                continue
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in self._leaves:
                self._unseen(self._leaves[id(variable)], type(tensor.grad_fn).__name__)
            stack.extend(parent for parent, _ in node.next_functions)
        if touched or seen:
            # Where its inputs were is not known: as bad as the worst.
            worst = any(moved for _, moved, _ in self._tainted.values())
            self._tainted[id(tensor)] = (weakref.ref(tensor), worst, True)

    def _all_apart(self, derived: list[Derived]) -> bool:
        return all(k in self.apart for d in derived for k in d.params)

    def _unseen(self, k: int, what: str) -> None:
        """Note that a parameter goes where its per-example gradient cannot be seen."""
        if k not in self.apart:
            self.foreign.setdefault(
                k,
                f"parameter {self.names[k]!r} is consumed by {what} in {self._place()}, which runs outside torch's "
                "dispatch (a custom autograd function, a gradient inside the loss, a transform of torch.func, scripted "
                "code, nested tensors without layout=torch.jagged), so its per-example gradient cannot be seen",
            )

    def _hidden(self, what: str, derived: list[Derived]) -> None:
        for k in {k for known in derived for k in known.params}:
            self._unseen(k, what)

    def finish(self, losses: Sequence[Tensor], rewind: Callable[[], None] = lambda: None) -> None:
        """Refuse a pass in which parameters went unseen, also into the losses themselves; ``rewind`` comes before.

        And one that wrote values of the batch into parameters.
        """
        self._facts("losses", list(losses))
        if self._tainted_storages:
            for tensor in (*self._parameters, *self._frozen):
                if storage_of(tensor) in self._tainted_storages:
                    raise ClippingError(WRITTEN)
        if self.foreign:
            rewind()
            why = f"{next(iter(self.foreign.values()))}. {SLOWLY}, or plain torch operations there. "
            raise UncoveredUse(why + "See: tacit explain no-rule", [self.names[k] for k in self.foreign])

    def _place(self) -> str:
        return f"module {self.where[-1]!r}" if self.where and self.where[-1] else "the model"

    # -- the mode ------------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types_: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        operation = KNOWN.get(func) or Operation.of(func)
        name = operation.name
        if name == "__get__":
            self.behind = self.behind or func == GRAD_FN  # whoever asks for it may hang a hook on it
            return func(*args, **kwargs)
        self._tell(name, args, kwargs)
        if name in CONSTANT:
            return self._note(func(*args, **kwargs))
        if name in CASTING:
            func, args = self._outside.told_type(func, args)
        inputs = tensors_in((args, kwargs) if kwargs else args)
        tainted, derived = self._facts(name, inputs)
        if not tainted and not derived:
            return self._note(func(*args, **kwargs))
        call = TorchCall(func, name, operation, args, kwargs, inputs)
        if not (tainted and derived and torch.is_grad_enabled()):
            return self._pass(call, derived, tainted=tainted)
        if transforms() is not None:  # what meets inside vmap or torch.func.grad comes out as something else
            self._hidden(f"{name!r} under a transform of torch.func", derived)
            return func(*args, **kwargs)
        if name in self.decompose and operation.from_torch:
            self.unrolled = True
            return self.decompose[name](self, *args, **kwargs)
        body = None if operation.from_torch and self.covers(name) else OPENED.get(func) or opened(func)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        return self._use(call, derived)

    def _tell(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        told, amounts = self._outside.told(name, args, kwargs, self._numbers)
        self.trace = hash((self.trace, told))
        if amounts:
            self._amounts = hash((self._amounts, self.trace, *amounts))
        self.behind = self.behind or name == "register_hook"

    def _facts(self, name: str, inputs: list[Tensor]) -> tuple[bool, list[Derived]]:
        """Whether any of these tensors depends on the batch, and those that are derived from parameters."""
        tainted = False
        derived: list[Derived] = []
        for tensor in inputs:
            known_taint = self._tainted.get(id(tensor))
            if known_taint is not None and known_taint[0]() is tensor:
                tainted = True
                # What was made without a gradient and has one now came out of a custom autograd function.
                if not known_taint[2] and tensor.grad_fn is not None:
                    self._foreign(tensor)
                continue
            if self._tainted_storages and storage_of(tensor) in self._tainted_storages:
                tainted = True
                continue
            known = self._derived.get(id(tensor))
            if known is not None:
                if not any(known is d for d in derived):
                    derived.append(known)
                continue
            made = self._made.get(id(tensor))
            if made is None or made() is not tensor or tensor.grad_fn is not None or self.sharded:
                tainted = self._unknown(name, tensor) or tainted
        return tainted, derived

    def _unknown(self, name: str, tensor: Tensor) -> bool:
        """Doubt a pass that uses a tensor which no watched operation made, unless it was there before; whether it
        depends on the batch."""
        if self.sharded and is_sharded(tensor) and self.tainted(tensor):
            return True
        if tensor.requires_grad and tensor.grad_fn is not None:
            self._foreign(tensor)
            self.doubt = self.doubt or f"{name!r} in {self._place()} gets a value that no watched operation made"
            return self.tainted(tensor)
        # On several ranks tensors are wrapped and unwrapped between operations: what is whose is not known by identity.
        if self.sharded:
            return False
        if tensor not in self._constants:
            self.doubt = self.doubt or f"{name!r} in {self._place()} gets a tensor that no watched operation made"
        elif threading.active_count() > 1:  # another one may have written to it
            self._amounts = hash((self._amounts, self._outside.content(tensor)))
        return False

    def _note(self, out: Any) -> Any:
        """Remember what was made without the batch and without parameters."""
        for tensor in (out,) if isinstance(out, Tensor) else tensors_in(out):
            self._made[id(tensor)] = weakref.ref(tensor)
            self._numbers[id(tensor)] = next(self._next)
        return out

    def _pass(self, call: TorchCall, derived: list[Derived], *, tainted: bool) -> Any:
        """Call an operation that is no use, and follow the two facts through it."""
        name, inputs = call.name, call.inputs
        versions = [version_of(t) for t in inputs]
        out = call.func(*call.args, **call.kwargs)
        if tainted:
            self._watch(call, out)
        changed = [t for t, v in zip(inputs, versions, strict=True) if version_of(t) != v]
        if name == "__set__":
            changed = list({id(t): t for t in (*changed, call.args[0])}.values())  # no version tells of .data = ...
        results = [out] if isinstance(out, Tensor) else tensors_in(out)
        if call.func is torch.autograd.grad:
            # The operations of a backward pass are not watched: refuse if parameters take part in them.
            for tensor in results:
                if tensor.grad_fn is not None:
                    self._foreign(tensor)
        if not tainted:
            self._derive(call, derived, results, changed, several=not isinstance(out, Tensor))
        elif results or changed:
            moved = self._rearranges(name, inputs)
            for tensor in results:
                self._taint(tensor, rearranged=moved)
            for tensor in changed:
                self._taint_memory(tensor, rearranged=moved)
            self._mix(call, results + changed)
            if name in PACKING:
                self._follow_order(name, call.args, results)
        return out

    def _derive(
        self, call: TorchCall, derived: list[Derived], results: list[Tensor], changed: list[Tensor], *, several: bool
    ) -> None:
        """Note what was made of parameters alone; ``several`` says that an operation gave more than one tensor."""
        params = frozenset().union(*(d.params for d in derived))
        for k, tensor in enumerate(results):
            self.types.add(tensor.dtype)
            self._numbers[id(tensor)] = next(self._next)
            if tensor.requires_grad and not any(tensor is d.tensor for d in derived):
                chain = _chain(call, derived, k if several else None)
                self._derived[id(tensor)] = Derived(tensor, params, chain)
        for tensor in changed:
            for view in (tensor, base(tensor)):
                if view is not None and view.requires_grad:
                    self._derived[id(view)] = Derived(view, params, None)

    def _use(self, call: TorchCall, derived: list[Derived]) -> Any:
        """Call an operation where data and parameters meet, and keep what its rule needs."""
        name, inputs = call.name, call.inputs
        versions = [version_of(t) for t in inputs]
        if call.kwargs.get("out") is not None:
            raise UncoveredUse(
                f"{name!r} with out= consumes {self._names(derived)} in {self._place()}", self._own(derived)
            )
        inplace = call.operation.writes
        kept = (call.args, call.kwargs)
        if inplace:
            kept, derived = self._before(call, derived)
        out = call.func(*call.args, **call.kwargs)
        if not inplace and not self.sharded:
            out = _standing_alone(out, inputs)
        changed = [t for t, v in zip(inputs, versions, strict=True) if version_of(t) != v]
        if any(t is not call.args[0] or not inplace for t in changed):
            raise UncoveredUse(
                f"{name!r}, which consumes {self._names(derived)} in {self._place()}, changes its inputs",
                self._own(derived),
            )
        results = [out] if isinstance(out, Tensor) else tensors_in(out)
        decides = inplace or name in SORTING
        moved = self._rearranges(name, inputs) if decides else any(self.rearranged(t) for t in inputs)
        for tensor in changed:
            self._taint_memory(tensor, rearranged=moved)
        results += [t for t in changed if not any(t is r for r in results)]
        for tensor in results:
            self._taint(tensor, rearranged=moved)
        self._mix(call, results)
        self._record(call.func, name, kept, derived, results, inplace=inplace, moved=moved)
        return out

    def _before(self, call: TorchCall, derived: list[Derived]) -> tuple[Any, list[Derived]]:
        """Arguments and derived values of an operation in place as they are before it: it leaves nothing of them."""
        target = call.args[0]
        known = self.derived(target)
        # A copy, with its history where it is a derived value.
        before = target.detach().clone() if known is None else target.clone()
        if known is not None:
            copy = Derived(before, known.params, known.chain)
            derived = [copy if d is known else d for d in derived]
        return substitute((call.args, call.kwargs), lambda t: before if t is target else t), derived

    def _record(
        self,
        func: Callable[..., Any],
        name: str,
        kept: tuple[tuple[Any, ...], dict[str, Any]],
        derived: list[Derived],
        results: list[Tensor],
        *,
        inplace: bool,
        moved: bool,
    ) -> None:
        """Keep a use. Many branches: pieces of larger tensors, nested ones, and values that no rule reads."""
        if not (live := [t for t in results if t.requires_grad]):
            return
        edges = list(map(get_gradient_edge, live))
        self._use_nodes.update(edge.node for edge in edges)
        if self.apart and self._all_apart(derived):
            return
        placements = None
        if self.sharded and any(is_sharded(t) for t in live):
            # From here on the use is what this rank computed, with its pieces.
            from tacit.sgd.sharding.operations import own_part

            args, kwargs, derived, placements = own_part(self._place(), name, *kept, derived, live, self.tainted)
            kept = (args, kwargs)
            live = [local(t) for t in live]
        if any(t.is_nested and t.layout is torch.strided for t in (*tensors_in(kept), *live)):
            return self._hidden(f"{name!r} on a nested tensor", derived)
        if any(t.is_nested for t in live):
            kept, live = substitute(kept, rows_of_nested), [rows_of_nested(t) for t in live]
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
                versions=[(t, version_of(t)) for t in tensors_in(kept) if t.device.type != "meta"],
                inplace=inplace,
                autocast=_autocast(live[0].device.type),
                where=self._place(),
                rearranged=moved,
                placements=placements,
            )
        )

    def record(
        self, func: Callable[..., Any], name: str, args: tuple[Any, ...], output: Tensor, *, moved: bool
    ) -> None:
        """Enter a use that a replacement of an operation computed by other means, by the output it stands for."""
        derived = [d for d in (self.derived(t) for t in tensors_in(args)) if d is not None]
        if derived:
            self._record(func, name, (args, {}), derived, [output], inplace=False, moved=moved)

    def adopt(self, tensor: Tensor, *, moved: bool) -> None:
        """Take note of a tensor that depends on the batch and was computed unwatched."""
        self._taint(tensor, rearranged=moved)

    def _own(self, derived: list[Derived]) -> list[str]:
        return sorted({self.names[k] for d in derived for k in d.params})

    def _names(self, derived: list[Derived]) -> str:
        return "parameter " + ", ".join(repr(n) for n in self._own(derived))


def rows_of_nested(tensor: Tensor) -> Tensor:  # any other tensor as it is
    return tensor.detach().values() if tensor.is_nested and tensor.layout is torch.jagged else tensor


def _shape_only(tensor: Tensor) -> Tensor:  # a rule that reads no values should not keep activations alive
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _standing_alone(out: Any, inputs: list[Tensor]) -> Any:
    """The output of an operation that ends in a view of memory of its own, as no view.

    A linear layer of tokens and einsum do. Where such an output is written to in place (ReLU, a bias, a mask), autograd
    moves its history to what it is a view of, and the edge that was kept would see no gradient.
    """
    whole = base(out) if isinstance(out, Tensor) and is_view(out) else None
    if whole is None or any(t is whole or base(t) is whole for t in inputs) or not out.requires_grad:
        return out
    return unsafe_view(out, out.shape)


def _chain(call: TorchCall, derived: list[Derived], item: int | None) -> Any:
    """How a selection of a parameter's elements is repeated; ``None`` for anything but a selection."""
    func, name, operation, args, kwargs, inputs = call
    if len(derived) != 1 or derived[0].chain is None:
        return None
    source = derived[0].tensor
    once = sum(t is source for t in inputs) == 1 and kwargs.get("out") is None
    if name in JOINING and once:
        # Joined to nothing (a cache of keys and values begins as an empty tensor): the value as it was.
        return derived[0].chain if all(t is source or t.numel() == 0 for t in inputs) else None
    if name not in SELECTING and name not in CASTING:
        return None
    if not once or operation.writes or not operation.from_torch:
        return None
    if name == "embedding" and not only_selects(call):
        return None
    kept_args, kept_kwargs = substitute((args, kwargs), lambda t: HERE if t is source else t)
    return (*derived[0].chain, (func, name, kept_args, kept_kwargs, item))


def _autocast(device: str) -> tuple[str, torch.dtype] | None:
    if not torch.is_autocast_enabled(device):
        return None
    return device, torch.get_autocast_dtype(device)
