"""What does an operator do with owners? One rule for each kind of operator, and which operators are of that kind.

A rule must never say less than the truth: an element's owner is one example only if no other can change its value. The
tests take every rule at its word, with operators of all kinds, by changing all elements of one example.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.gradients.ownership.calls import OperatorCall, Owners, Unknown, words
from tacit.sgd.gradients.ownership.ids import DTYPE, LAST, MIXED, all_of, combined, together

Rule = Callable[[OperatorCall], Owners]


def _dims(value: Any, count: int) -> list[int]:
    """Dimensions as they are given to an operator: one, several, or none for all."""
    if value is None or (isinstance(value, list | tuple) and not value):
        return list(range(count))
    return [d % count if count else 0 for d in (value if isinstance(value, list | tuple) else [value])]


def _spread(owners: Tensor | None, results: list[Tensor]) -> Owners:
    """The same owners for every result, which are spread over its shape."""
    if owners is None:
        return [None] * len(results)
    found: Owners = []
    for result in results:
        try:
            found.append(owners.expand(result.shape))
        except RuntimeError:
            raise Unknown from None
    return found


def _first(call: OperatorCall) -> tuple[str, Tensor]:
    for name in ("self", "input"):
        tensor = call.tensor(name)
        if tensor is not None:
            return name, tensor
    raise Unknown


# -- kinds of operators ------------------------------------------------------------------------------------------------


def public(call: OperatorCall) -> Owners:
    """The result does not depend on values: shapes alone, or fresh randomness."""
    return [None] * len(call.results)


def elementwise(call: OperatorCall) -> Owners:
    """Each element of the result is computed of those in its place."""
    out = call.tensor("out")
    owners = [call.tracker.owners(t) for t in call.tensors() if t is not out]
    return _spread(all_of(owners), call.results)


def replaced(call: OperatorCall) -> Owners:
    """What was in the first argument is gone: the others say what there is now."""
    owners = [call.tracker.owners(t) for t in call.tensors("self")]
    return _spread(all_of(owners), call.results)


def reduced(call: OperatorCall) -> Owners:
    """Elements along dimensions become one."""
    name, tensor = _first(call)
    owners = call.owners(name)
    rest = all_of(call.tracker.owners(t) for t in call.tensors(name, "out"))
    if rest is not None:
        raise Unknown
    if owners is None:
        return [None] * len(call.results)
    dims = _dims(call.arguments.get("dim"), tensor.dim())
    kept = together(owners, dims)
    found: Owners = []
    for result in call.results:
        if result.dim() == tensor.dim():
            found.append(kept.expand(result.shape))
        else:
            found.append(kept.squeeze(dims).expand(result.shape) if tensor.dim() else kept.expand(result.shape))
    return found


def along(call: OperatorCall) -> Owners:
    """Elements along a dimension are computed of all along it; the others stay apart."""
    owners, count = [], max((t.dim() for t in call.tensors("out")), default=0)
    dims = _dims(call.arguments.get("dim", -1), count)
    for tensor in call.tensors("out"):
        some = call.tracker.owners(tensor)
        if some is not None:
            owners.append(together(some, dims) if tensor.dim() == count else some)
    return _spread(all_of(owners), call.results)


def moving(func: Any) -> Rule:
    """Elements change their places and nothing else, and zeros or a constant fill what is left: owners move along."""

    def rule(call: OperatorCall) -> Owners:
        def owners(value: Any) -> Any:
            if isinstance(value, Tensor):
                found = call.tracker.owners(value)
                return torch.zeros(value.shape, dtype=DTYPE, device=value.device) if found is None else found
            if isinstance(value, list | tuple):
                return type(value)(owners(v) for v in value)
            return value

        index = {n: v for n, v in call.arguments.items() if n in ("index", "indices")}
        given = {
            n: v if n in index or n in ("dtype", "memory_format", "out") else owners(v)
            for n, v in call.arguments.items()
        }
        if "value" in given and not isinstance(given["value"], Tensor):
            given["value"] = 0  # what a constant pads with is public
        given.pop("out", None)
        given.pop("dtype", None)
        found = func(**given)
        return list(found) if isinstance(found, list | tuple) else [found]

    return rule


def products(call: OperatorCall) -> Owners:
    """Rows of one matrix meet columns of the other; a vector is met by all of them."""
    given = call.arguments
    adding = call.name.startswith(("add", "badd"))
    one = next(given[n] for n in (("mat1", "batch1", "mat") if adding else ("self",)) if n in given)
    two = next(given[n] for n in ("mat2", "batch2", "vec", "tensor", "other") if n in given)
    left, right = call.tracker.owners(one), call.tracker.owners(two)
    if left is not None:
        left = together(left, [-1])
        left = left.squeeze(-1) if two.dim() == 1 else left
    if right is not None:
        right = together(right, [0]) if two.dim() == 1 else together(right, [-2])
        right = right.reshape(()) if two.dim() == 1 else right
    return _spread(all_of([left, right, call.owners("self") if adding else None]), call.results)


def trilinear(call: OperatorCall) -> Owners:
    """A bilinear layer: three factors, whose dimensions are put apart and summed over."""
    factors = []
    for k in (1, 2, 3):
        owners = call.owners(f"i{k}")
        if owners is not None:
            for d in sorted(call.arguments[f"expand{k}"]):
                owners = owners.unsqueeze(d)
            factors.append(owners)
    found = all_of(factors)
    if found is None:
        return [None]
    dims = sorted(call.arguments["sumdim"], reverse=True)
    found = together(found.expand(torch.broadcast_shapes(found.shape)), dims)
    return _spread(found.squeeze(dims), call.results)


def distances(call: OperatorCall) -> Owners:
    """Rows of one matrix meet rows of another."""
    one, two = call.owners("x1"), call.owners("x2")
    left = None if one is None else together(one, [-1])
    right = None if two is None else together(two, [-1]).transpose(-1, -2)
    return _spread(all_of([left, right]), call.results)


def by_row(keep: int | None = None, *, last: int | None = None) -> Rule:
    """A result's first ``keep`` dimensions are those of the arguments, or all but the ``last``; the rest is one.

    An argument that begins with these dimensions belongs there; any other one goes to all. A vector is never taken for
    rows of ``keep``: a bias may have as many entries as the batch has examples.
    """

    def apart(tensor: Tensor, size: torch.Size) -> bool:
        room = tensor.dim() > len(size) if keep is not None else tensor.dim() >= len(size)
        return room and tensor.shape[: len(size)] == size

    def rule(call: OperatorCall) -> Owners:
        results = call.results
        lead = next((t for t in call.tensors("out")), None)
        if lead is None:
            raise Unknown
        kept = keep if keep is not None else lead.dim() - (last or 0)
        heads: list[Tensor] = []
        size = lead.shape[:kept]
        for tensor in call.tensors("out"):
            owners = call.tracker.owners(tensor)
            if owners is None:
                continue
            if apart(tensor, size):
                heads.append(together(owners, list(range(kept, tensor.dim()))).reshape(list(size)))
            else:
                heads.append(together(owners).reshape(()))
        head = all_of(heads)
        if head is None:
            return [None] * len(results)
        head = head.expand(list(size))
        found: Owners = []
        for result in results:
            if apart(result, size):
                found.append(head.reshape([*size, *[1] * (result.dim() - kept)]).expand(result.shape))
            else:
                found.append(together(head).reshape(()).expand(result.shape))
        return found

    return rule


def normalised(call: OperatorCall) -> Owners:
    """Statistics over the last dimensions."""
    name = "input" if "input" in call.arguments else "self"
    tensor = call.arguments[name]
    shape = call.arguments.get("normalized_shape") or [tensor.shape[-1]]
    dims = list(range(tensor.dim() - len(shape), tensor.dim()))
    owners = []
    affine = all_of([_whole(call, "weight"), _whole(call, "bias")])
    for other in call.tensors("weight", "bias"):
        some = call.tracker.owners(other)
        if some is not None and other.dim() == tensor.dim():
            owners.append(together(some, dims))
        elif some is not None:
            raise Unknown
    head = all_of([*owners, affine])
    if head is None:
        return [None] * len(call.results)
    return [
        (head if result.dim() == tensor.dim() else together(head).reshape(())).expand(result.shape)
        for result in call.results
    ]


def _whole(call: OperatorCall, name: str) -> Tensor | None:
    owners = call.owners(name)
    return None if owners is None else together(owners).reshape(())


def batch_normalised(call: OperatorCall) -> Owners:
    """Statistics over everything but the channels in training, and none in evaluation.

    Many branches: forward and backward, with statistics that are vectors of channels, of this batch or known before.
    """
    name = "input" if "input" in call.arguments else "self"
    tensor = call.tensor(name) if call.tensor(name) is not None else call.tensor("grad_out")
    if tensor is None:
        raise Unknown
    owners = []
    train = any(bool(call.arguments.get(word)) for word in ("training", "train", "use_input_stats"))
    train = train or not any(word in call.arguments for word in ("training", "train"))
    for other in call.tensors():
        some = call.tracker.owners(other)
        if some is None:
            continue
        if other.dim() == 1 and len(other) == tensor.shape[1]:
            owners.append(some.view([1, -1] + [1] * (tensor.dim() - 2)))
        elif other.dim() != tensor.dim():
            owners.append(together(some).reshape(()))
        elif train:
            owners.append(together(some, [d for d in range(tensor.dim()) if d != 1]))
        else:
            owners.append(some)
    head = all_of(owners)
    if head is None:
        return [None] * len(call.results)
    found: Owners = []
    for result in call.results:
        if result.dim() == tensor.dim():
            found.append(head.expand(result.shape))
        elif result.dim() == 1 and len(result) == tensor.shape[1]:
            by_channel = together(head, [d for d in range(head.dim()) if d != 1])
            found.append(by_channel.reshape(-1).expand(result.shape))
        else:
            found.append(together(head).reshape(()).expand(result.shape))
    return found


def _steadily(call: OperatorCall, indices: list[Tensor], steady: Owners, found: Callable[[], Owners]) -> Owners:
    """The owners that no index can change, unless these are several: then those of this very index."""
    if not any(o is not None and bool((o == MIXED).any()) for o in steady):
        return steady
    tracker = call.tracker
    if any(tracker.owners(i) is not None or tracker.varies(i) for i in indices):
        tracker.unsteady = True
    return found()


def looked_up(call: OperatorCall) -> Owners:
    """Rows of a table, by number."""
    index, table = call.owners("indices"), call.owners("weight")
    owners = None if index is None else index.unsqueeze(-1)
    if table is None:
        return _spread(owners, call.results)

    def rows(known: Tensor) -> Owners:
        return _spread(all_of([owners, known]), call.results)

    number = call.arguments["indices"]
    return _steadily(call, [number], rows(together(table).reshape(())), lambda: rows(together(table, [-1])[number]))


def gathered(call: OperatorCall) -> Owners:
    """Elements of the first argument, from the places along a dimension that an index names."""
    values, named, dim = call.owners("self"), call.owners("index"), call.arguments["dim"]
    index = call.arguments["index"]
    if values is None or not values.dim() or not index.dim():
        return _spread(all_of([None if values is None else together(values).reshape(()), named]), call.results)

    def every() -> Tensor:
        cut = together(values, [dim])
        return cut[tuple(slice(0, n) if d != dim % cut.dim() else slice(None) for d, n in enumerate(index.shape))]

    return _steadily(
        call,
        [index],
        _spread(all_of([every().expand(index.shape), named]), call.results),
        lambda: _spread(all_of([torch.gather(values, dim, index), named]), call.results),
    )


def selected(call: OperatorCall) -> Owners:
    """Whole entries along a dimension, from the places that an index names."""
    values, named, dim = call.owners("self"), call.owners("index"), call.arguments["dim"]
    tensor, index = call.arguments["self"], call.arguments["index"]
    if not tensor.dim():
        raise Unknown
    shape = [1] * tensor.dim()
    shape[dim] = -1
    by = None if named is None else named.view(shape)
    if values is None:
        return _spread(by, call.results)
    return _steadily(
        call,
        [index],
        _spread(all_of([together(values, [dim]), by]), call.results),
        lambda: _spread(all_of([values.index_select(dim, index), by]), call.results),
    )


def indexed(call: OperatorCall) -> Owners:
    """Advanced indexing: the place of an element of the result names one of the first argument.

    Many branches: masks become indices, and indices that stand side by side leave their dimensions where they are.
    """
    tensor, indices = call.arguments["self"], list(call.arguments["indices"])
    values = call.tracker.owners(tensor)
    masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
    call.tracker.unsteady = call.tracker.unsteady or any(map(call.tracker.varies, masks))
    if any(call.tracker.owners(i) is not None for i in masks):
        # Who stands where in the result, and how large it is, depends on everybody who has a say in the mask.
        call.tracker.read(call.name)
        return everything(call)
    if masks:
        indices = [
            k
            for i in indices
            for k in (i.nonzero().unbind(1) if i is not None and i.dtype in (torch.bool, torch.uint8) else [i])
        ]
    places, named, before = _named(call, indices)
    if named is not None:
        named = named.reshape([1] * before + list(named.shape) + [1] * (tensor.dim() - len(places) - before))
    if values is None:
        return _spread(named, call.results)
    free, fixed = _free(call, indices)
    return _steadily(
        call,
        [indices[k] for k in places],
        _spread(all_of([torch.ops.aten.index.Tensor(together(values, free), fixed), named]), call.results),
        lambda: _spread(all_of([torch.ops.aten.index.Tensor(values, indices), named]), call.results),
    )


def _named(call: OperatorCall, indices: list[Any]) -> tuple[list[int], Tensor | None, int]:
    """The dimensions that are indexed, the owners of what they are indexed with, and where its dimensions go."""
    places = [k for k, i in enumerate(indices) if i is not None]
    named = all_of(call.tracker.owners(indices[k]) for k in places)
    if named is not None:
        named = named.expand(torch.broadcast_shapes(*[indices[k].shape for k in places]))
    adjacent = places == list(range(places[0], places[0] + len(places)))
    return places, named, places[0] if adjacent else 0


def _free(call: OperatorCall, indices: list[Any]) -> tuple[list[int], list[Any]]:
    """The dimensions along which another batch, or another draw, may name other places; the index without them."""
    tracker = call.tracker
    free = [k for k, i in enumerate(indices) if i is not None and (tracker.owners(i) is not None or tracker.varies(i))]
    return free, [torch.zeros_like(i) if k in free else i for k, i in enumerate(indices)]


def scattered(call: OperatorCall) -> Owners:
    """Elements are put, or added, into the places along a dimension that an index names."""
    tensor, dim, index = call.arguments["self"], call.arguments["dim"], call.arguments["index"]
    source = call.arguments.get("src", call.arguments.get("source", call.arguments.get("value")))
    if not tensor.dim():
        raise Unknown
    entries = index.dim() != tensor.dim() or call.name.startswith("index_")
    if entries:  # whole entries along the dimension
        shape = [1] * tensor.dim()
        shape[dim] = -1
        index = index.view(shape)
    base, named = call.owners("self"), call.owners("index")
    given = call.tracker.owners(source) if isinstance(source, Tensor) else None
    if isinstance(source, Tensor) and source.dim() != tensor.dim():
        raise Unknown
    parts = [base]
    if named is not None:
        # Where nothing was put, something would have been with another index.
        parts.append(_within(together(named.view(index.shape), [dim]), tensor, dim))
    if given is None:
        return _spread(all_of(parts), call.results)
    given = given if entries else given[tuple(slice(0, n) for n in index.shape)]
    where = index.expand(given.shape)

    def put() -> Owners:
        blank = torch.zeros(tensor.shape, dtype=DTYPE, device=tensor.device)
        high = blank.scatter_reduce(dim, where, given, "amax", include_self=False)
        low = blank.scatter_reduce(dim, where, torch.where(given == 0, LAST, given), "amin", include_self=False)
        return _spread(all_of([*parts, torch.where(low >= high, high, MIXED)]), call.results)

    return _steadily(
        call, [index], _spread(all_of([*parts, _within(together(given, [dim]), tensor, dim)]), call.results), put
    )


def put(call: OperatorCall) -> Owners:
    """Elements are put, or added, into places that advanced indexing names."""
    tensor, indices = call.arguments["self"], list(call.arguments["indices"])
    masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
    base, given = call.owners("self"), call.owners("values")
    if any(call.tracker.owners(i) is not None for i in masks):
        single = len(indices) == 1 and call.arguments["values"].numel() == 1
        if not single:
            raise Unknown
        mask = call.tracker.owners(indices[0])
        assert mask is not None
        mask = mask.reshape([*mask.shape, *[1] * (tensor.dim() - mask.dim())])
        return _spread(all_of([base, mask, None if given is None else given.reshape(())]), call.results)
    given = torch.zeros((), dtype=DTYPE, device=tensor.device) if given is None else given

    def put_in(free: list[int], index: list[Any], every: Tensor | None) -> Owners:
        """Where the owners of what is put go, along ``free`` dimensions everywhere."""
        cut = [1 if d in free else n for d, n in enumerate(tensor.shape)]
        numbers = torch.arange(math.prod(cut), device=tensor.device).view(cut)
        where = numbers[tuple(slice(None) if i is None else i for i in index)]
        entries = given.expand(where.shape)
        if every is not None:
            around = [1] * before, [1] * (where.dim() - before - every.dim())
            entries = combined(entries, every.reshape([*around[0], *every.shape, *around[1]]))
        entries = entries.reshape(-1)
        blank = torch.zeros(numbers.numel(), dtype=DTYPE, device=tensor.device)
        high = blank.scatter_reduce(0, where.reshape(-1), entries, "amax", include_self=False)
        low = torch.where(entries == 0, LAST, entries)
        low = blank.scatter_reduce(0, where.reshape(-1), low, "amin", include_self=False)
        return _spread(all_of([base, torch.where(low >= high, high, MIXED).view(cut)]), call.results)

    if masks:
        return put_in([], indices, None)
    places, named, before = _named(call, indices)
    whose = None if named is None else together(named).reshape(())

    def placed() -> Owners:
        # A place that is not named would be with another index.
        return _spread(all_of([put_in([], indices, None)[0], whose]), call.results)

    # Along dimensions that something of the batch is the index of, what is put may go anywhere.
    return _steadily(call, [indices[k] for k in places], put_in(*_free(call, indices), named), placed)


def _within(owners: Tensor, tensor: Tensor, dim: int) -> Tensor:
    """Owners of a part of a tensor, with nobody's around them; along ``dim`` they are all the same."""
    shape = [1 if d == dim % tensor.dim() else n for d, n in enumerate(tensor.shape)]
    if owners.shape == torch.Size(shape):
        return owners
    whole = torch.zeros(shape, dtype=DTYPE, device=tensor.device)
    part = whole[
        tuple(slice(0, n) if n > 1 or whole.shape[d] == 1 else slice(None) for d, n in enumerate(owners.shape))
    ]
    part.copy_(owners.expand(part.shape))
    return whole


def everything(call: OperatorCall) -> Owners:
    """All of the result depends on all of the arguments."""
    every = call.tracker.everybody(call.tensors("out"))
    return _spread(every, call.results)


def loss_of_classes(call: OperatorCall) -> Owners:
    """A loss for each row of scores and its class, with the classes in the second dimension, or in the only one."""
    scores = call.arguments["self"]
    dim = 1 if scores.dim() > 1 else 0
    grad = call.tensor("grad_output")
    parts = []
    one = call.owners("self")
    if one is not None:
        parts.append(together(one, [dim]))
    for name in ("target", "grad_output"):
        some, tensor = call.owners(name), call.tensor(name)
        if some is not None and tensor is not None:
            parts.append(some.unsqueeze(dim) if tensor.dim() == scores.dim() - 1 else together(some).reshape(()))
    averaged = call.arguments.get("reduction", 1) != 0
    parts += [w for w in (_whole(call, "weight"), _whole(call, "total_weight") if averaged else None) if w is not None]
    found = all_of(parts)
    if found is None:
        return [None] * len(call.results)
    if averaged:
        return _spread(together(found).reshape(()), call.results)
    if grad is not None:
        return _spread(found, call.results)
    found = found.squeeze(dim) if found.dim() else found
    loss, *rest = call.results
    return [found.expand(loss.shape), *([together(found).reshape(()).expand(r.shape) for r in rest])]


def loss_between(call: OperatorCall) -> Owners:
    """A loss between two tensors, element by element, and a sum or mean of it where that is asked for."""
    owners = all_of(call.tracker.owners(t) for t in call.tensors("out"))
    if owners is not None and call.arguments.get("reduction", 1) != 0:
        owners = together(owners).reshape(())
    return _spread(owners, call.results)


def attended(call: OperatorCall) -> Owners:
    """Attention: the first dimension stays apart."""
    query = next(call.tensor(n) for n in ("query", "grad_out", "grad_out_") if call.tensor(n) is not None)
    if query is None:
        raise Unknown
    size = query.shape[0]
    heads = []
    masks = [call.tensor(n) for n in ("attn_bias", "attn_mask")]
    for tensor in call.tensors():
        owners = call.tracker.owners(tensor)
        if owners is None:
            continue
        # A mask of fewer dimensions is every example's, also where it has as many rows as there are examples.
        short = any(tensor is m for m in masks) and tensor.dim() < query.dim()
        if tensor.dim() > 1 and tensor.shape[0] == size and not short:
            heads.append(together(owners, list(range(1, tensor.dim()))).reshape(size))
        else:
            heads.append(together(owners).reshape(()))
    head = all_of(heads)
    if head is None:
        return [None] * len(call.results)
    head = head.expand(size)
    # What is no floating number is the state of the generator that dropout drew from.
    return [
        None
        if not r.is_floating_point()
        else head.reshape(size, *[1] * (r.dim() - 1)).expand(r.shape)
        if r.dim() and r.shape[0] == size and r.dim() > 1
        else together(head).reshape(()).expand(r.shape)
        for r in call.results
    ]


def convolved(call: OperatorCall) -> Owners:
    """Every example is convolved by itself; a weight that is not public goes to all."""
    size = call.arguments["grad_output" if "grad_output" in call.arguments else "input"].shape[0]
    heads = []
    for name in ("input", "grad_output"):
        owners = call.owners(name)
        if owners is not None:
            heads.append(together(owners, list(range(1, owners.dim()))).reshape(size))
    heads += [w for w in (_whole(call, "weight"), _whole(call, "bias")) if w is not None]
    head = all_of(heads)
    if head is None:
        return [None] * len(call.results)
    head = head.expand(size)
    every = together(head).reshape(())
    found: Owners = []
    for k, result in enumerate(call.results):
        apart = k == 0 and (call.name != "convolution_backward" or call.arguments["output_mask"][0])
        found.append(
            head.reshape(size, *[1] * (result.dim() - 1)).expand(result.shape) if apart else every.expand(result.shape)
        )
    return found


def recurrent(call: OperatorCall) -> Owners:
    """A layer over time: examples in the second dimension."""
    size = call.arguments["input"].shape[1]
    heads = []
    for tensor in call.tensors():
        owners = call.tracker.owners(tensor)
        if owners is None:
            continue
        if tensor.dim() == 3 and tensor.shape[1] == size:
            heads.append(together(owners, [0, 2]).reshape(size))
        elif any(tensor is call.tensor(n) for n in ("hx_", "cx_")) and tensor.shape[:1] == (size,):
            heads.append(together(owners, [1]).reshape(size))
        else:
            heads.append(together(owners).reshape(()))
    head = all_of(heads)
    if head is None:
        return [None] * len(call.results)
    forward = not call.name.endswith("_backward")  # which gives gradients of weights, too
    return [
        head.expand(size).reshape(1, size, 1).expand(r.shape) if r.dim() == 3 and r.shape[1] == size
        else head.expand(size).reshape(size, 1).expand(r.shape) if r.dim() == 2 and r.shape[0] == size and forward
        else together(head).reshape(()).expand(r.shape)
        for r in call.results
    ]  # fmt: skip


# -- which operator is of which kind -----------------------------------------------------------------------------------

#: These change the shape of a tensor and none of its elements.
METADATA = words("transpose_ t_ squeeze_ unsqueeze_ swapaxes_ swapdims_ detach_ requires_grad_ rename_ as_strided_")

_KINDS: list[tuple[Rule, str]] = [
    (public, "empty_like zeros_like ones_like full_like rand_like randn_like randint_like new_empty new_zeros "
     "new_ones new_full new_empty_strided zero_ bernoulli_ uniform_ normal_ exponential_ random_ log_normal_ "
     "geometric_ cauchy_ arange scalar_tensor sym_size sym_numel sym_stride"),
    (replaced, "copy_ fill_"),
    (elementwise, "clone _to_copy lerp native_dropout native_dropout_backward bernoulli normal rrelu_with_noise "
     "rrelu_with_noise_backward masked_fill where threshold_backward gelu_backward silu_backward _prelu_kernel "
     "_prelu_kernel_backward hardswish hardswish_backward rsub floor_divide fill hardsigmoid_backward "
     "elu_backward sigmoid_backward tanh_backward leaky_relu_backward softplus_backward mish_backward "
     "log_sigmoid_forward log_sigmoid_backward polar complex"),
    (reduced, "sum mean amax amin prod logsumexp var std var_mean std_mean all any argmax argmin max min median "
     "nanmedian mode count_nonzero nansum aminmax linalg_vector_norm norm"),
    (along, "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data cumsum cumprod "
     "logcumsumexp cummax cummin sort topk kthvalue _fft_r2c _fft_c2r _fft_c2c glu glu_backward"),
    (products, "mm bmm addmm baddbmm mv addmv dot vdot"),
    (by_row(1), "native_group_norm native_group_norm_backward mkldnn_max_pool2d grid_sampler_2d grid_sampler_3d "
     "_thnn_fused_lstm_cell _thnn_fused_gru_cell _thnn_fused_lstm_cell_backward_impl "
     "_thnn_fused_gru_cell_backward im2col col2im upsample_bilinear2d upsample_nearest2d upsample_bicubic2d "
     "upsample_linear1d upsample_nearest1d _upsample_bilinear2d_aa _upsample_bicubic2d_aa upsample_trilinear3d "
     "upsample_nearest3d"),
    (by_row(last=1), "avg_pool1d adaptive_max_pool1d reflection_pad1d_backward replication_pad1d_backward"),
    (by_row(last=2), "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d "
     "max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward "
     "adaptive_max_pool2d_backward reflection_pad2d replication_pad2d reflection_pad2d_backward "
     "replication_pad2d_backward linalg_inv_ex linalg_cholesky_ex linalg_qr _linalg_det _linalg_slogdet "
     "linalg_matrix_exp linalg_solve_triangular"),
    (by_row(last=3), "reflection_pad3d replication_pad3d reflection_pad3d_backward replication_pad3d_backward "
     "max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d_backward _adaptive_avg_pool3d_backward "
     "avg_pool3d _adaptive_avg_pool3d"),
    (normalised, "native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward"),
    (batch_normalised, "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
     "_native_batch_norm_legit_no_training cudnn_batch_norm _batch_norm_with_update native_batch_norm_backward "
     "batch_norm_backward cudnn_batch_norm_backward"),
    (trilinear, "_trilinear"),
    (distances, "_cdist_forward"),
    (looked_up, "embedding"),
    (gathered, "gather"),
    (selected, "index_select"),
    (indexed, "index _unsafe_index"),
    (put, "index_put _index_put_impl _unsafe_index_put"),
    (scattered, "scatter scatter_add index_add index_copy index_fill"),
    (everything, "nonzero masked_select _unique2 unique_dim bincount histc searchsorted bucketize "
     "repeat_interleave embedding_dense_backward unique_consecutive _local_scalar_dense equal is_nonzero "
     "multinomial take put renorm dist _linalg_check_errors allclose isin trace histogram"),
    (loss_of_classes, "nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward"),
    (loss_between, "mse_loss mse_loss_backward binary_cross_entropy binary_cross_entropy_backward smooth_l1_loss "
     "smooth_l1_loss_backward huber_loss huber_loss_backward soft_margin_loss binary_cross_entropy_with_logits"),
    (attended, "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
     "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
     "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
     "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward"),
    (convolved, "convolution convolution_backward"),
    (recurrent, "mkldnn_rnn_layer mkldnn_rnn_layer_backward"),
]  # fmt: skip
#: Owners move as values do.
_MOVING = words(
    "cat stack repeat flip roll constant_pad_nd select_backward slice_backward diag_embed tril triu pixel_shuffle "
    "pixel_unshuffle unfold_backward reflection_pad1d replication_pad1d expand_copy view_copy permute_copy t_copy "
    "transpose_copy squeeze_copy unsqueeze_copy narrow_copy select_scatter slice_scatter diagonal_scatter rot90 "
    "channel_shuffle block_diag alias_copy diagonal_copy split_with_sizes_copy unbind_copy unfold_copy "
    "diagonal_backward "
)
RULES: dict[str, Rule] = {name: rule for rule, names in _KINDS for name in names.split()}


def rule_for(name: str, func: Any) -> Rule | None:
    """The rule of an operator; None where there is none."""
    if name in RULES:
        return RULES[name]
    plain = name.removesuffix("_")
    if plain in RULES and name != plain:
        return RULES[plain]
    if name in _MOVING:
        return moving(func)
    if torch.Tag.pointwise in func.tags:
        return elementwise
    return None
