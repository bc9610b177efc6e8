"""What did one rank compute of an operation whose tensors are divided among tensor-parallel ranks?

The local operation of a divided one is an ordinary operation on pieces, and the rules for per-example gradients hold
for it as they are. Two ways to divide are understood: by the *columns* of the result (every rank has all of the input
and a piece of the output), and by the *rows* that are added up (every rank has a piece of the input, and the output is
the sum over ranks). The gradient of a piece is then complete on its rank. Anything else is refused here, and what is
wrong in ways not foreseen fails the comparison with autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tacit.sgd.errors import UncoveredUse
from tacit.sgd.gradients.capture import substitute, tensors_in
from tacit.sgd.gradients.functions import CASTING, Derived
from tacit.sgd.sharding.shards import is_sharded, local

_KEEPING = CASTING | {"t", "T", "mT", "H", "mH", "adjoint"}


def own_part(
    where: str,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    derived: list[Derived],
    results: list[Any],
    tainted: Callable[[Tensor], bool],
) -> tuple[tuple[Any, ...], dict[str, Any], list[Derived], list[Any]]:
    """Arguments, parameters and layouts of the outputs of an operation, as this rank has them."""
    data = [t for t in tensors_in((args, kwargs)) if is_sharded(t) and tainted(t)]
    outs = [t.placements[0] for t in results if is_sharded(t)]
    if len(outs) != len(results):
        raise UncoveredUse(f"{name!r} in {where} mixes tensors that are divided among ranks with others that are not")
    for d in derived:
        if is_sharded(d.tensor) and (d.chain is None or any(step[1] not in _KEEPING for step in d.chain)):
            raise UncoveredUse(f"{name!r} in {where} uses a part of a parameter that is divided among ranks")
        _understood(where, name, d.tensor, data, outs)
    pieces: dict[int, Any] = {}

    def piece(tensor: Tensor) -> Any:
        return pieces.setdefault(id(tensor), local(tensor)) if is_sharded(tensor) else tensor

    own = [Derived(piece(d.tensor), d.params, d.chain) for d in derived]
    args, kwargs = substitute((args, kwargs), piece)
    return args, kwargs, own, [t.placements for t in results]


def _understood(where: str, name: str, parameter: Any, data: list[Any], outs: list[Any]) -> None:
    whole = all(t.placements[0].is_replicate() for t in data)
    added_up = all(p.is_partial() for p in outs)
    if not is_sharded(parameter) or parameter.placements[0].is_replicate():
        # A copy: complete on every rank where input and output are, or where it is added to what is summed over ranks.
        fine = (whole and all(p.is_replicate() for p in outs)) or (added_up and name in ("linear", "addmm", "add"))
    elif whole:
        fine = all(p.is_shard() for p in outs)
    else:
        last = [t.placements[0].is_shard(t.dim() - 1) for t in data]
        fine = added_up and all(last) and name in ("linear", "addmm", "matmul", "__matmul__", "mm")
    if not fine:
        raise UncoveredUse(
            f"{name!r} in {where} divides its tensors among ranks in a way whose per-example gradients are complete on "
            "no rank (sequence parallel, or a divided vocabulary): use ColwiseParallel and RowwiseParallel on linear "
            "layers, and leave other layers whole"
        )
