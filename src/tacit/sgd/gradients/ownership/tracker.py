"""The mode that watches operations, and where owners are kept.

Owners are kept for storages and not for tensors: a view needs no rule, and what is written through one is seen through
every other. A storage of which nothing is known holds nothing of the batch.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacit.sgd.gradients.ownership.calls import OperatorCall, Owners, Unknown, words
from tacit.sgd.gradients.ownership.ids import DTYPE, MIXED, all_of, together
from tacit.sgd.gradients.ownership.piles import Piles, followed, of_rows
from tacit.sgd.gradients.ownership.rules import METADATA, rule_for
from tacit.sgd.torch_compat import (
    DispatchMode,
    composite,
    pytree,
    schema,
    storage_id,
    weak_storage,
    without_function_modes,
)

#: Operators whose result tells something of the values, also by its size.
READING = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
#: These are among them for the sake of masks, which their rule knows.
BY_INDEX = {"index", "_unsafe_index"}


#: These take some of what they are given, by comparison with the rest.
CHOOSING = {"topk", "kthvalue"}


#: What these give is the same in every place, or drawn alike.
EVENLY = words(
    "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full zero_ fill_ rand randn rand_like "
    "randn_like uniform_ normal_ exponential_"
)


class Happening(NamedTuple):
    """Something that happened: in which operator, and on which line of the program."""

    operator: str
    line: str


class OwnershipMode(DispatchMode):
    """Follow who owns what, through everything that runs inside.

    ``mixes`` are the first places where values of several examples met, ``unknown`` operators without a rule, whose
    results count as mixed, and ``reads`` places where values of the batch left torch or decided how large a result is:
    then what was found is true of this batch only. So it is if ``unsteady``: an index of this batch said whose rows go
    where.
    """

    #: How many places are told of each kind.
    MOST = 8

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.mixes: list[Happening] = []
        self.unknown: list[Happening] = []
        self.reads: list[Happening] = []
        self.unsteady = False
        #: whether something went through sparse or nested tensors, which are not followed: nothing is shown then
        self.lost = False
        #: where the best of several examples were chosen: who is among them depends on the others
        self.chosen: list[Happening] = []
        #: rows in an order that several examples decided
        self.piles = Piles()
        self._even: dict[int, Any] = {}
        self._varying: dict[int, Any] = {}
        self._known: dict[int, tuple[Any, int, Tensor]] = {}

    # -- what is known -------------------------------------------------------------------------------------------------

    def own(self, tensor: Tensor, dim: int = 0, views: int = 1) -> None:
        """Say that every ``views`` entries along ``dim`` are those of one example, in order."""
        number = torch.arange(tensor.shape[dim], device=tensor.device) // views + 1
        shape = [1] * tensor.dim()
        shape[dim] = -1
        self.write(tensor, number.to(DTYPE).view(shape).expand(tensor.shape))

    def owners(self, tensor: Tensor) -> Tensor | None:
        """Who owns each element, in the shape of the tensor; None where all of it is public."""
        flat = self._flat(tensor)
        return None if flat is None else flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def write(self, tensor: Tensor, owners: Tensor | None) -> None:
        """Note the owners of what was written into a tensor."""
        if not plain(tensor) or not tensor.numel():
            return
        flat = self._flat(tensor)
        if flat is None:
            if owners is None:
                return
            storage = tensor.untyped_storage()
            width = tensor.element_size()
            flat = torch.zeros(storage.nbytes() // width, dtype=DTYPE, device=tensor.device)
            self._known[storage_id(storage)] = weak_storage(storage), width, flat
        place = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if owners is None:
            place.zero_()
            return
        # Where several elements lie in one place it holds the last one written, and nobody says which that is.
        shared = [d for d, (s, n) in enumerate(zip(tensor.stride(), tensor.shape, strict=True)) if s == 0 and n > 1]
        if shared:
            owners = together(owners, shared)
            for d in shared:
                place = place.narrow(d, 0, 1)
        place.copy_(owners)

    def _flat(self, tensor: Tensor) -> Tensor | None:
        if not plain(tensor):
            return None
        key = storage_id(tensor.untyped_storage())
        known = self._known.get(key)
        if known is None:
            return None
        weak, width, flat = known
        if weak.expired():
            del self._known[key]
            return None
        wanted = tensor.element_size()
        if wanted < width:  # finer from here on: what is written through it must not be lost
            flat = flat.repeat_interleave(width // wanted)
            self._known[key] = weak, wanted, flat
        elif wanted > width:
            flat = together(flat.view(-1, wanted // width), [1]).squeeze(1)
        return flat

    # -- operations ----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with without_function_modes():  # what was called is seen by its own name already, and rules are no part of it
            return self._follow(func, args, kwargs or {})

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an operator, and note whose its results are.

        Many branches: an operator may be public, made of others, a view, without a rule, or write into its arguments,
        and each is a line or two.
        """
        inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if not all(map(plain, inputs)):
            self.lost = True
            return func(*args, **kwargs)
        if not any(self._flat(t) is not None for t in inputs):
            return self._vary(func, inputs, func(*args, **kwargs))
        declared = schema(func)
        name = declared.name.partition("::")[2]
        rule = rule_for(name, func)
        if rule is None and composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if READING & set(func.tags) and name not in BY_INDEX:
            self.read(name)
        out = func(*args, **kwargs)
        results = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
        if not all(map(plain, results)):
            self.lost = True
            return out
        writes = [a.name for a in declared.arguments if a.alias_info is not None and a.alias_info.is_write]
        if name in METADATA or (not writes and self._views(results, inputs)):
            for view in results:
                if of_rows(some := self.owners(view)) and some is not None and self.piles.cut(some):
                    self.write(view, torch.full(view.shape, MIXED, dtype=DTYPE, device=view.device))
            return out
        arguments = dict(zip((a.name for a in declared.arguments), args, strict=False)) | kwargs
        call = OperatorCall(name, arguments, results, self)
        written = [t for n in writes for t in pytree.tree_leaves(arguments.get(n)) if isinstance(t, Tensor)]
        for tensor in written:
            self.piles.written(tensor)
        try:
            owners = followed(call, rule, elementwise=torch.Tag.pointwise in func.tags, writes=bool(writes))
        except Unknown:
            self._tell(self.unknown, name)
            owners = [torch.full(t.shape, MIXED, dtype=DTYPE, device=t.device) for t in results]
        beside = [t for t in written if not any(t is r for r in results)]
        every = self.everybody(inputs) if beside else None
        self._note(name, inputs, owners)
        if name in CHOOSING:
            self._choice(call, owners)
        for target, some in zip(results, owners, strict=True):
            self.write(target, some)
        self._spread_evenly(func, inputs, results)
        for target in beside:  # statistics that a normalisation keeps, say
            self.write(target, None if every is None else every.expand(target.shape))
        return out

    def vary(self, tensor: Tensor) -> None:
        """Say that a public tensor may have other values in the next pass."""
        storage = tensor.untyped_storage()
        self._varying[storage_id(storage)] = weak_storage(storage)

    def varies(self, tensor: Tensor) -> bool:
        """Whether a public tensor may have other values in the next pass."""
        known = self._varying.get(storage_id(tensor.untyped_storage())) if plain(tensor) else None
        return known is not None and not known.expired()

    def _vary(self, func: Any, inputs: list[Tensor], out: Any) -> Any:
        """Follow what is drawn at random, or made of parameters, through public operations."""
        if torch.Tag.nondeterministic_seeded in func.tags or any(map(self.varies, inputs)):
            for tensor in pytree.tree_leaves(out):
                if isinstance(tensor, Tensor) and plain(tensor):
                    self.vary(tensor)
        self._spread_evenly(func, inputs, [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)])
        return out

    def even(self, tensor: Tensor) -> bool:
        """Whether a public tensor is the same everywhere, or drawn alike."""
        known = self._even.get(storage_id(tensor.untyped_storage())) if plain(tensor) else None
        return known is not None and not known.expired()

    def _spread_evenly(self, func: Any, inputs: list[Tensor], results: list[Tensor]) -> None:
        """Follow what is the same everywhere, or drawn alike: filled at once, and computed element by element."""
        declared = schema(func)
        name = declared.name.partition("::")[2]
        if not results and any(a.alias_info is not None for a in declared.arguments):
            results, func = inputs, None  # written to, and not given back
        if not all(map(plain, (*inputs, *results))) or (self._views(results, inputs) and not name.endswith("_")):
            return
        drawn = name in EVENLY or (name == "bernoulli_" and len(inputs) == 1)
        fine = drawn or (func is not None and torch.Tag.pointwise in func.tags and all(self.even(t) for t in inputs))
        for tensor in results:
            storage = tensor.untyped_storage()
            if fine and tensor.numel() * tensor.element_size() == storage.nbytes():
                self._even[storage_id(storage)] = weak_storage(storage)
            else:
                self._even.pop(storage_id(storage), None)

    def read(self, name: str) -> None:
        """Note that values of the batch leave torch, or decide how large a result is."""
        self._tell(self.reads, name)

    def everybody(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """The owner of what is computed of all elements of these tensors, as one number."""
        found = [together(o).reshape(()) for o in map(self.owners, tensors) if o is not None]
        return all_of(found)

    @staticmethod
    def _views(results: list[Tensor], inputs: list[Tensor]) -> bool:
        there = {storage_id(t.untyped_storage()) for t in inputs if plain(t)}
        return bool(results) and all(plain(t) and storage_id(t.untyped_storage()) in there for t in results)

    def _note(self, name: str, inputs: list[Tensor], owners: Owners) -> None:
        """Tell where examples met: in results of what was still apart."""
        if len(self.mixes) >= self.MOST:
            return

        def mixed(some: Tensor | None) -> bool:
            return some is not None and bool((some == MIXED).any())

        if any(map(mixed, owners)) and not any(mixed(self.owners(t)) for t in inputs):
            self._tell(self.mixes, name)

    def _choice(self, call: OperatorCall, owners: Owners) -> None:
        """Tell where some of several examples' values, which were still apart, are taken and others left."""
        source, given = call.tensor("self"), call.owners("self")
        met = any(o is not None and bool((o == MIXED).any()) for o in owners)
        if source is None or given is None or not source.dim() or not met or bool((given == MIXED).any()):
            return
        if call.name != "topk" or call.arguments["k"] < source.shape[call.arguments.get("dim", -1)]:
            self._tell(self.chosen, call.name)

    def _tell(self, places: list[Happening], name: str) -> None:
        if len(places) < self.MOST:
            places.append(Happening(name, _line()))


def plain(tensor: Tensor) -> bool:
    """Whether strides say where each element lies: not of sparse tensors, nor of nested ones."""
    return tensor.layout is torch.strided and not tensor.is_nested


_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


def _line() -> str:
    """The innermost line of the program that is neither torch's nor ours."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_OURS) and not frame.filename.startswith("<"):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return ""
