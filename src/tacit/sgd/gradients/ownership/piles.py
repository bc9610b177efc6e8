"""Whose is each row where values of several examples decide which rows there are, and in which order?

A *pile* is what sorting, ``nonzero`` or a mask makes of rows of several examples. Each row is one example's, and
whatever is computed of it alone stays so; only where it lies depends on the others. So every row has a number of its
own in place of an owner: rows that meet are mixed, also two of the same example, and so is a row that meets something
that differs from place to place. What is known of the numbers in an index that put the rows there (:class:`Places`)
brings them back to their examples, all or none of a pile.

A rule here says nothing (``None``) where it does not apply. What has no rule is of several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.gradients.ownership.calls import OperatorCall, Owners, Unknown, words
from tacit.sgd.gradients.ownership.ids import DTYPE, MIXED, PUBLIC, combined, together
from tacit.sgd.torch_compat import storage_id

#: The number of the first row of the first pile: above every example.
FIRST = 1 << 24


@dataclass(frozen=True, eq=False)
class Pile:
    """The numbers of its rows, in order."""

    rows: Tensor

    def whole(self, owners: Tensor | None) -> bool:
        """Whether these are the owners of something with all rows of the pile, in order, in its first dimension."""
        if owners is None or owners.dim() == 0 or len(owners) != len(self.rows):
            return False
        return bool((owners == self.rows.view(-1, *[1] * (owners.dim() - 1))).all())


@dataclass(frozen=True, eq=False)
class Places:
    """What the numbers in an index along a dimension may say.

    ``named`` are the owners of its entries. An entry of such an owner names only places of which ``of`` says that they
    are that example's, whatever the batch holds. ``pile`` is that of its entries, or (``inverse``) that of the places.
    ``each`` says that every place is named once.
    """

    named: Tensor
    of: Tensor
    pile: Pile
    each: bool = False
    inverse: bool = False


@dataclass(frozen=True, eq=False)
class Keys:
    """Whole numbers from zero, below a bound; ``pile`` says by which rows they are sorted, upwards."""

    below: int
    pile: Pile | None = None


@dataclass(frozen=True, eq=False)
class Counts:
    """How many rows of a pile have each key, or (``ends``) where those of each key end."""

    pile: Pile
    groups: int
    ends: bool = False


Note = Places | Keys | Counts


class Piles:
    """The piles of one pass, and what is known of the numbers in tensors."""

    def __init__(self) -> None:
        self._next = FIRST
        self._all: list[Pile] = []
        #: kept alive, so that no other tensor can take their place in memory
        self._notes: dict[int, list[tuple[Tensor, Note]]] = {}
        self._masks: list[tuple[Tensor, Pile]] = []

    def of(self, count: int, device: torch.device) -> Pile:
        """A new pile of so many rows."""
        pile = Pile(torch.arange(self._next, self._next + count, dtype=DTYPE, device=device))
        self._next += count
        if self._next >= torch.iinfo(DTYPE).max:
            raise Unknown
        self._all.append(pile)
        return pile

    def known_mask(self, mask: Tensor) -> Pile | None:
        """The rows that a mask took, if it did."""
        return next((pile for known, pile in self._masks if _same(known, mask)), None)

    def chosen_by(self, mask: Tensor, count: int) -> Pile:
        """The rows that a mask takes; the same for the same mask."""
        pile = self.known_mask(mask)
        if pile is None:
            pile = self.of(count, mask.device)
            self._masks.append((mask, pile))
        return pile

    def tell(self, tensor: Tensor, note: Note) -> None:
        """Note what the numbers in a tensor are."""
        self._notes.setdefault(storage_id(tensor.untyped_storage()), []).append((tensor, note))

    def known(self, tensor: Any) -> Note | None:
        """What was noted of the numbers in a tensor."""
        if not isinstance(tensor, Tensor):
            return None
        for known, note in self._notes.get(storage_id(tensor.untyped_storage()), ()):
            # A bound holds for whatever part is looked at; all else is about the whole.
            bound = isinstance(note, Keys) and note.pile is None and known.dtype == tensor.dtype
            if bound or _same(known, tensor):
                return note
        return None

    def written(self, tensor: Tensor) -> None:
        """Forget what was known of numbers that something is written over."""
        key = storage_id(tensor.untyped_storage())
        self._notes.pop(key, None)
        self._masks = [(m, pile) for m, pile in self._masks if storage_id(m.untyped_storage()) != key]

    def cut(self, owners: Tensor) -> bool:
        """Whether some rows of a pile are there and others are not: which these are depends on all of them."""
        there = owners[owners >= FIRST].unique()
        if not len(there):
            return False
        piles = [p for p in self._all if p.rows[0] <= there[-1] and p.rows[-1] >= there[0]]
        return len(there) != sum(
            len(p.rows) for p in piles if bool(((there >= p.rows[0]) & (there <= p.rows[-1])).any())
        )


def _same(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors are the same elements in memory, in the same order."""

    def where(tensor: Tensor) -> tuple[Any, ...]:
        order = tensor.numel() if tensor.is_contiguous() else (tensor.shape, tensor.stride())
        return storage_id(tensor.untyped_storage()), tensor.storage_offset(), tensor.dtype, order

    return where(one) == where(two)


def of_rows(owners: Tensor | None) -> bool:
    """Whether some of it are rows of a pile."""
    return owners is not None and bool((owners >= FIRST).any())


def _apart(owners: Tensor | None) -> bool:
    """Whether all of it is nobody's or an example's by arithmetic: neither of several nor rows of a pile."""
    return owners is not None and not bool(((owners == MIXED) | (owners >= FIRST)).any())


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


# -- how piles begin ---------------------------------------------------------------------------------------------------


def sorted_rows(call: OperatorCall) -> Owners | None:
    """Sorting values of several examples."""
    tensor, owners, piles = call.arguments["self"], call.owners("self"), call.tracker.piles
    downwards, known = call.arguments.get("descending", False), piles.known(tensor)
    if isinstance(known, Places) and known.each and not known.inverse and not downwards:
        return [None, *_inverse(call, call.results[1], known)]
    if tensor.dim() != 1 or len(tensor) < 2 or owners is None or not _apart(owners):
        return None
    if not bool((together(owners) == MIXED).any()):
        return None
    pile = piles.of(len(tensor), tensor.device)
    values, order = call.results
    piles.tell(order, Places(pile.rows, owners.clone(), pile, each=True))
    if isinstance(known, Keys) and not downwards:
        piles.tell(values, replace(known, pile=pile))
    return [pile.rows, pile.rows]


def found_rows(call: OperatorCall) -> Owners | None:
    """``nonzero``: one row for each place that a mask takes.

    Python knows how many there are, and then where they are, too, if all places are taken: which experts a batch needs.
    """
    mask, owners, (result,) = call.arguments["self"], call.owners("self"), call.results
    if mask.dim() == 1 and len(result) == len(mask) and owners is not None and bool((owners == MIXED).all()):
        return [None]
    if len(result) < 2 or owners is None or not _apart(owners):
        return None
    pile = call.tracker.piles.chosen_by(mask, len(result))
    for dim, column in enumerate(result.unbind(1)):
        of = together(owners, [d for d in range(mask.dim()) if d != dim]).expand(
            [n if d == dim else 1 for d, n in enumerate(mask.shape)]
        )
        call.tracker.piles.tell(column, Places(pile.rows, of.reshape(-1).clone(), pile))
    return [pile.rows.unsqueeze(1).expand(result.shape)]


def _masked(call: OperatorCall, mask: Tensor) -> Owners | None:
    """What a mask takes."""
    tensor, (result,) = call.arguments["self"], call.results
    by, values = call.tracker.owners(mask), call.owners("self")
    count = len(result)
    if by is None or not _apart(by) or count < 2 or count == mask.numel():
        return None
    if values is not None and not _within(values, by.reshape(*by.shape, *[1] * (tensor.dim() - by.dim()))):
        return None
    if values is None and tensor.numel() > 1:  # public, and another in every place
        return None
    call.tracker.read(call.name)  # how many there are is known to Python
    rows = call.tracker.piles.chosen_by(mask, count).rows
    return [rows.view(-1, *[1] * (result.dim() - 1)).expand(result.shape)]


def _within(owners: Tensor, of: Tensor) -> bool:
    """Whether all is nobody's or of those that are said to be there."""
    return bool(((owners == of) | (owners == PUBLIC)).all())


# -- how rows are taken, and brought back ------------------------------------------------------------------------------


def _along(call: OperatorCall) -> tuple[dict[int, Tensor], Tensor | None]:
    """The indices of a call by the dimension they are for, and what is put."""
    given = call.arguments
    if "indices" in given:
        return {d: i for d, i in enumerate(given["indices"]) if i is not None}, given.get("values")
    index = {given["dim"] % given["self"].dim(): given["index"]} if given["self"].dim() else {}
    return index, given.get("source", given.get("src"))


def _leading(call: OperatorCall, indices: dict[int, Tensor], owners: Tensor | None) -> tuple[int, Places] | None:
    """The dimension whose index says whose all that it names is; the other indices must be of the same entries."""
    tensor, found = call.arguments["self"], None
    if any(i.dim() != 1 or _is_mask(i) for i in indices.values()):
        return None
    notes = {d: note for d, i in indices.items() if isinstance(note := call.tracker.piles.known(i), Places)}
    for dim, note in notes.items():
        shape = [n if d == dim else 1 for d, n in enumerate(tensor.shape)]
        fits = len(note.of) == tensor.shape[dim] and not bool((note.of == MIXED).any())
        if fits and (owners is None or _within(owners, note.of.view(shape))):
            found = dim, note
    if found is None:
        return None
    for dim, index in indices.items():
        some = notes[dim].named if dim in notes else call.tracker.owners(index)
        alike = some is None and len(index) == 1
        if not alike and not (some is not None and torch.equal(some, found[1].named)):
            return None
    return found


def taken(call: OperatorCall) -> Owners | None:
    """Entries from places that an index names, each of which is its own example's."""
    indices, _ = _along(call)
    if len(indices) == 1 and 0 in indices and _is_mask(indices[0]):
        return _masked(call, indices[0])
    values, (result,) = call.owners("self"), call.results
    leading = None if values is None else _leading(call, indices, values)
    if leading is None:
        return None
    dims = sorted(indices)
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    shape = [1] * result.dim()
    shape[dims[0] if adjacent else 0] = -1
    return [leading[1].named.view(shape).expand(result.shape)]


def brought(call: OperatorCall) -> Owners | None:
    """Entries are put, or added, into places that an index names, each into one of its own example's.

    Many branches: each is a way in which an entry may be another's than its place.
    """
    indices, values = _along(call)
    tensor, (result,) = call.arguments["self"], call.results
    if len(indices) == 1 and 0 in indices and _is_mask(indices[0]):
        return _put_by_mask(call, indices[0], values)
    leading = _leading(call, indices, None)
    if leading is None or not isinstance(values, Tensor):
        return None
    dim, note = leading
    shape, row = _put_into(call, indices, values)
    base, given = call.owners("self"), call.tracker.owners(values)
    if not note.inverse and note.each and given is None and base is None and values.dim() == tensor.dim() == 1:
        return _inverted(call, note, values)
    named = note.named.view([-1 if d == row else 1 for d in range(len(shape))])
    if given is not None and not _within(given.expand(shape), named):
        return None
    if note.inverse:
        blank = base is None and tensor is not result and not bool(tensor.any()) and not call.tracker.varies(tensor)
        if given is None or not note.each or not blank:
            return None
    elif given is None and values.expand(shape).stride(row) != 0 and shape[row] > 1:
        return None  # public, and another in every place
    place = note.of.view([n if d == dim else 1 for d, n in enumerate(tensor.shape)]).expand(result.shape)
    return [place if base is None else combined(base, place)]


def _put_into(call: OperatorCall, indices: dict[int, Tensor], values: Tensor) -> tuple[list[int], int]:
    """The shape of what is put, and which of its dimensions is that of the entries of the index."""
    if "indices" not in call.arguments:
        return list(values.shape), call.arguments["dim"] % call.arguments["self"].dim()
    dims, size = sorted(indices), call.arguments["self"].shape
    rest = [n for d, n in enumerate(size) if d not in indices]
    row = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    return [*rest[:row], len(indices[dims[0]]), *rest[row:]], row


def _inverse(call: OperatorCall, result: Tensor, note: Places) -> Owners:
    """The inverse of an order: at each place, which row of the pile was taken from there."""
    call.tracker.piles.tell(result, Places(note.of, note.named, note.pile, each=True, inverse=True))
    return [torch.full((), MIXED, dtype=DTYPE, device=result.device).expand(result.shape)]


def _inverted(call: OperatorCall, note: Places, values: Tensor) -> Owners | None:
    """An order put upside down: the number of each row where it was taken from."""
    tracker = call.tracker
    counted = torch.arange(len(note.named), device=values.device, dtype=values.dtype)
    if len(note.of) != len(counted) or tracker.varies(values) or not torch.equal(values, counted):
        return None
    return _inverse(call, call.results[0], note)


def _put_by_mask(call: OperatorCall, mask: Tensor, values: Tensor | None) -> Owners | None:
    """Rows that a mask took, or something computed of them, are put where they were."""
    tensor, by = call.arguments["self"], call.tracker.owners(mask)
    if by is None or not _apart(by) or values is None or values.dim() != tensor.dim() - mask.dim() + 1:
        return None
    count = len(values)
    pile = call.tracker.piles.known_mask(mask)
    if pile is None or len(pile.rows) != count or not pile.whole(call.tracker.owners(values)):
        return None
    base, place = call.owners("self"), by.reshape(*by.shape, *[1] * (tensor.dim() - by.dim())).expand(tensor.shape)
    return [place if base is None else combined(base, place)]


# -- numbers that say where rows are -----------------------------------------------------------------------------------


def divided(call: OperatorCall) -> Owners | None:
    """An index into as many times fewer places."""
    note, by = call.tracker.piles.known(call.arguments["self"]), call.arguments["other"]
    owners = call.owners("self")
    if not isinstance(note, Places) or note.inverse or not isinstance(by, int) or by < 1 or len(note.of) % by:
        return None
    of = together(note.of.view(-1, by), [1]).squeeze(1)
    call.tracker.piles.tell(call.results[0], replace(note, of=of, each=False))
    return [owners]


def counted(call: OperatorCall) -> Owners | None:
    """How many rows have each key."""
    note, bins = call.tracker.piles.known(call.arguments["self"]), call.arguments.get("bins", 100)
    bounds = call.arguments.get("min", 0), call.arguments.get("max", 0)
    if isinstance(note, Keys) and note.pile is not None and note.below <= bins and bounds == (0, bins - 1) and bins > 1:
        call.tracker.piles.tell(call.results[0], Counts(note.pile, bins))
    return None


def summed(call: OperatorCall) -> Owners | None:
    """Where the rows of each key end."""
    note = call.tracker.piles.known(call.arguments["self"])
    if isinstance(note, Counts) and not note.ends:
        call.tracker.piles.tell(call.results[0], replace(note, ends=True))
    return None


def grouped(call: OperatorCall) -> Owners | None:
    """Rows, each multiplied by the matrix of its key: which one that is says its example."""
    given, ends = call.arguments, call.tracker.piles.known(call.arguments.get("offs"))
    if not isinstance(ends, Counts) or not ends.ends or given.get("bias") is not None:
        return None
    rows, matrices = call.owners("self"), given["mat2"]
    if call.owners("mat2") is not None or matrices.dim() != 3 or len(matrices) != ends.groups:
        return None
    if rows is None or rows.dim() != 2 or not ends.pile.whole(rows):
        return None
    return [rows[:, :1].expand(call.results[0].shape)]


def copied(call: OperatorCall) -> Owners | None:
    """The same numbers, elsewhere or of another type."""
    note, (result,) = call.tracker.piles.known(call.arguments["self"]), call.results
    exact = result.dtype in (torch.int32, torch.int64, torch.float32, torch.float64)
    if note is not None and exact and call.arguments["self"].dim() == 1:
        call.tracker.piles.tell(result, note)
    return None


def best_of(call: OperatorCall) -> Owners | None:
    """Numbers of places along a dimension."""
    tensor, dim = call.arguments["self"], call.arguments.get("dim", -1 if call.name in ("topk", "sort") else None)
    if isinstance(dim, int) and tensor.dim():
        call.tracker.piles.tell(call.results[-1], Keys(tensor.shape[dim]))
    return None


_RULES: dict[str, Callable[[OperatorCall], Owners | None]] = {
    "nonzero": found_rows,
    "index": taken,
    "_unsafe_index": taken,
    "index_select": taken,
    "index_add": brought,
    "index_put": brought,
    "_index_put_impl": brought,
    "floor_divide": divided,
    "histc": counted,
    "cumsum": summed,
    "_grouped_mm": grouped,
    "_to_copy": copied,
    "clone": copied,
    "topk": best_of,
    "max": best_of,
    "min": best_of,
    "argmax": best_of,
    "argmin": best_of,
}

# -- what is computed of rows ------------------------------------------------------------------------------------------

#: In these, rows of a pile stay apart as examples do; so they do where a function is computed element by element.
APART = words(
    "clone _to_copy copy_ where masked_fill native_dropout native_dropout_backward gelu_backward silu_backward "
    "threshold_backward sigmoid_backward tanh_backward hardsigmoid_backward leaky_relu_backward elu_backward "
    "softplus_backward mish_backward rsub sum mean amax amin logsumexp var std argmax argmin max min topk "
    "linalg_vector_norm _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data glu glu_backward "
    "mm addmm native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward embedding index "
    "cat stack constant_pad_nd select_backward slice_backward"
)
#: What these give does not depend on values.
FRESH = words("empty_like zeros_like ones_like full_like rand_like randn_like new_empty new_zeros new_ones")
#: Arguments that meet every row alike, whatever their shape.
SHARED = frozenset(("mat2", "weight", "bias"))


def _meets_places(call: OperatorCall, rows: Tensor) -> bool:
    """Whether rows meet public values that differ along them: which row has which would depend on the others."""
    over = [d - rows.dim() for d, n in enumerate(rows.shape) if n > 1 and bool((rows != rows.narrow(d, 0, 1)).any())]
    table = ("self",) if call.name == "index" else ()
    for tensor in call.tensors(*SHARED, *table, "out"):
        owners = call.tracker.owners(tensor)
        public = owners is None or not bool(owners.any())
        differs = public and any(tensor.dim() >= -d and tensor.shape[d] > 1 and tensor.stride(d) for d in over)
        if differs and not call.tracker.even(tensor):
            return True
    return False


def followed(
    call: OperatorCall, rule: Callable[[OperatorCall], Owners] | None, *, elementwise: bool, writes: bool
) -> Owners:
    """The owners of the results of a call, by what is known of piles, or else by the rule of the operator.

    Many branches: each is a way in which rows may meet one another, or their places.
    """
    own = _RULES.get(call.name) or _RULES.get(call.name.removesuffix("_"))
    found = sorted_rows(call) if call.name == "sort" else own(call) if own is not None else None
    if found is not None:
        return found
    if rule is None:
        raise Unknown
    given = [o for t in call.tensors() if (o := call.tracker.owners(t)) is not None and of_rows(o)]
    if given:
        part = writes and any(r.numel() * r.element_size() != r.untyped_storage().nbytes() for r in call.results)
        public_table = call.name != "index" or call.owners("self") is None
        known = elementwise or call.name in APART or (call.name in FRESH and not writes)
        if not known or part or not public_table or any(_meets_places(call, rows) for rows in given):
            raise Unknown
        found = rule(call)
        if any(of_rows(o) and call.tracker.piles.cut(o) for o in found if o is not None):
            raise Unknown
        return found
    return rule(call)
