"""Which piece of each parameter does a rank hold, and how do clipped sums, norms and noise reach it?

``fully_shard`` keeps a piece of every parameter on each rank and gathers a layer when it runs; tensor parallelism keeps
a piece for good and computes with it. :class:`ShardedParameters` knows, for every parameter of a model, what the
operations see while the model runs, which elements of the whole the rank keeps, and over which ranks to add up. From
that follow

- the clipped sum of a parameter, added up over the ranks that see other records, of which only the own piece is kept;
- norms: squares of pieces add up over the ranks that hold other pieces, what all of them hold is counted once;
- noise: drawn for the elements that the rank keeps, by their index in the whole parameter, so that any number of ranks
  and any way to cut a parameter gives the same numbers, each of them once.

Only the public face of torch is used to find out: parameters are gathered once, layer by layer, and looked at.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tacit.noise.keys import Key
from tacit.noise.tensor import add_normal_, add_normal_many_
from tacit.sgd.sharding.ranks import DistributedError
from tacit.sgd.torch_compat import local_tensor


def dtensor() -> Any:
    """The class of tensors that are spread over ranks; None where nobody has loaded it, so that there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return getattr(module, "DTensor", None)


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a piece of a larger one."""
    kind = dtensor()
    return kind is not None and isinstance(tensor, kind)


def held(tensor: Any) -> Any:
    """The very object in which a rank holds its piece of a tensor; it may still be on its way."""
    return local_tensor(tensor)


def local(tensor: Any) -> Any:
    """The piece of a tensor that this rank holds, as an ordinary tensor."""
    found = held(tensor) if is_sharded(tensor) else tensor
    return found.wait() if hasattr(found, "wait") else found


def sharded_modules(model: nn.Module) -> list[Any]:
    """The modules whose parameters ``fully_shard`` took."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return [] if kind is None else [m for m in model.modules() if isinstance(m, kind)]


def class_of(model: nn.Module) -> type:
    """The class of a model as it was written; ``fully_shard`` puts another before it."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    bases = type(model).__bases__
    return bases[-1] if kind is not None and kind in bases else type(model)


@dataclass
class Place:
    """One parameter on this rank.

    ``kept`` is the parameter as it is registered, ``seen`` as the operations see it. ``starts`` and ``sizes`` say which
    elements of the whole the rank keeps, ``cuts`` over which groups the sum is added up and cut (dimension, group, rank
    in it, ranks in it; no dimension: every rank keeps all).
    """

    kept: Tensor
    seen: Tensor
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    cuts: list[tuple[int | None, Any, int, int]] = field(default_factory=list)
    divided: bool = False

    @property
    def gathered(self) -> bool:
        """Whether ``fully_shard`` gathers it, so that its sum is added up piece by piece."""
        return self.kept is not self.seen

    @property
    def strides(self) -> tuple[int, ...]:
        """Those of the whole parameter, as it is numbered for the noise."""
        found = [1]
        for size in reversed(self.kept.shape[1:]):
            found.append(found[-1] * size)
        return tuple(reversed(found)) if self.kept.dim() else ()

    @property
    def offset(self) -> int:
        """The number, in the whole parameter, of the first element that is kept."""
        return sum(start * stride for start, stride in zip(self.starts, self.strides, strict=True))

    @property
    def is_range(self) -> bool:
        """Whether the kept elements are consecutive in the whole parameter."""
        whole = [k for k, n in enumerate(self.kept.shape) if self.sizes[k] != n]
        return not whole or all(self.sizes[k] == 1 for k in range(max(whole)))


class ShardedParameters:
    """How the trainable parameters of a model lie on its ranks.

    Guarantee: :meth:`place` and :meth:`combine` compute the sum and the norms that one process would have computed with
    the whole batch and the whole model, up to rounding; :func:`add_noise_` adds to each element the very noise that
    one process would have added, once.
    """

    def __init__(self, model: nn.Module, modules: list[Any]) -> None:
        self.modules = modules
        kept = {n: p for n, p in model.named_parameters() if p.requires_grad}
        seen = dict(kept)
        self._homes: dict[str, Any] = {}
        for module in modules:
            module.unshard()
            for name, p in model.named_parameters():
                if name in kept and p is not kept[name]:
                    seen[name], self._homes[name] = p, module
            module.reshard()
        self._apart = False
        self.tensor: tuple[int, ...] = ()
        self._tensor_group: Any = None
        self.tensor_rank = 0
        for name, p in seen.items():
            if is_sharded(p):
                self._note_tensor_ranks(name, p)
        self.places = {name: self._place(name, kept[name], seen[name]) for name in kept}

    def _note_tensor_ranks(self, name: str, p: Any) -> None:
        mesh = p.device_mesh
        if mesh.ndim != 1:
            raise DistributedError(
                f"parameter {name!r} lies on a mesh of {mesh.ndim} dimensions: one is for tensor parallelism, the "
                "others for fully_shard or for data"
            )
        ranks = tuple(int(r) for r in mesh.mesh.flatten().tolist())
        if self.tensor and self.tensor != ranks:
            raise DistributedError(f"parameter {name!r} lies on ranks {ranks}, others on {self.tensor}")
        self.tensor, self._tensor_group = ranks, mesh.get_group()
        self.tensor_rank = mesh.get_local_rank()

    def _place(self, name: str, kept: Any, seen: Any) -> Place:
        starts, sizes = [0] * kept.dim(), list(kept.shape)
        if is_sharded(seen):
            _cut(starts, sizes, seen.placements[0], len(self.tensor), self.tensor_rank)
        divided = sizes != list(kept.shape)
        cuts: list[tuple[int | None, Any, int, int]] = []
        if kept is not seen:
            mesh = kept.device_mesh
            inner = set(seen.device_mesh.mesh_dim_names or ()) if is_sharded(seen) else set()
            names = mesh.mesh_dim_names or (None,) * mesh.ndim
            for k in range(mesh.ndim):
                if names[k] is not None and names[k] in inner:
                    continue
                rank, count = mesh.get_local_rank(k), mesh.size(k)
                dimension = _cut(starts, sizes, kept.placements[k], count, rank)
                cuts.append((dimension, mesh.get_group(k), rank, count))
            cuts.sort(key=lambda cut: cut[0] is None)  # what is cut first is less to add up
        if tuple(sizes) != tuple(local(kept).shape):
            raise DistributedError(
                f"parameter {name!r} is cut as {kept.placements}, in which its elements could not be numbered for the "
                "noise: use Shard placements"
            )
        return Place(kept, seen, tuple(starts), tuple(sizes), cuts, divided)

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def words(self) -> str:
        """How the card names it."""
        parts = []
        if self.modules:
            gathered = [p.cuts for p in self.places.values() if p.gathered]
            shards = max((math.prod(c for d, _, _, c in cuts if d is not None) for cuts in gathered), default=1)
            copies = max((math.prod(c for d, _, _, c in cuts if d is None) for cuts in gathered), default=1)
            parts.append(f"sharded by fully_shard over {shards}" + (f" in {copies} copies" if copies > 1 else ""))
        if self.tensor:
            parts.append(f"divided among {len(self.tensor)} tensor-parallel ranks")
        return ", ".join(parts) or "spread over ranks"

    def check(self, world: int) -> None:
        """Refuse a mesh that leaves ranks out: their records would be in no sum."""
        each = max(1, len(self.tensor))
        for name, place in self.places.items():
            count = math.prod(c for _, _, _, c in place.cuts) * each
            if place.gathered and count != world:
                raise DistributedError(
                    f"parameter {name!r} is sharded over {count} of {world} ranks: the mesh must cover all of them"
                )

    def holds(self, tensor: Tensor) -> bool:
        """Whether other ranks have other values of this tensor by design."""
        return is_sharded(tensor)

    def reduced(self, name: str) -> bool:
        """Whether :meth:`place` adds the sum of this parameter up over the data ranks."""
        return self.places[name].gathered

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the piece that is kept."""
        return self.places[name].sizes

    @property
    def seen(self) -> dict[str, Tensor]:
        """The parameters as the operations see them."""
        return {name: place.seen for name, place in self.places.items()}

    def parts(self) -> list[list[int]]:
        """Numbers of parameters in portions of about one rank's share, for what needs whole gradients."""
        sizes = [local(place.seen).numel() for place in self.places.values()]
        ranks = max((math.prod(c for _, _, _, c in p.cuts) for p in self.places.values() if p.gathered), default=1)
        limit = max([*sizes, -(-sum(sizes) // ranks)])
        found: list[list[int]] = [[]]
        total = 0
        for k, size in enumerate(sizes):
            if found[-1] and total + size > limit:
                found.append([])
                total = 0
            found[-1].append(k)
            total += size
        return found

    # -- the model between and within steps --------------------------------------------------------------------------

    def rest(self) -> None:
        """Only pieces are held from now on."""
        for module in self.modules:
            module.reshard()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Every parameter is whole inside and stays so: the model runs without gathering anything, and each rank for
        itself."""
        for module in self.modules:
            module.set_reshard_after_forward(False, recurse=False)
            module.set_reshard_after_backward(False, recurse=False)
            module.unshard()
        self._apart = True
        try:
            yield
        finally:
            self._apart = False
            for module in self.modules:
                module.set_reshard_after_forward(True, recurse=False)
                module.set_reshard_after_backward(True, recurse=False)
                module.reshard()

    @contextmanager
    def present(self, names: Sequence[str]) -> Iterator[None]:
        """These parameters are whole inside, for the few operations that are computed again from their values."""
        homes = {id(self._homes[n]): self._homes[n] for n in names if n in self._homes}
        for module in homes.values():
            module.unshard()
        try:
            yield
        finally:
            for module in homes.values():
                module.reshard()

    # -- norms and sums ----------------------------------------------------------------------------------------------

    def counted(self, name: str) -> bool:
        """Whether this rank's norms of a parameter count: those of a piece always, of a copy on one rank only."""
        return self.places[name].divided or self.tensor_rank == 0

    def combine(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Squared norms (or bounds on rounding in them) added up over the ranks that hold the other pieces."""
        if len(self.tensor) < 2:
            return parts
        import torch.distributed as dist

        together = torch.stack(parts)
        dist.all_reduce(together, group=self._tensor_group)
        return tuple(together)

    def place(self, name: str, total: Tensor) -> Tensor:
        """The sum of a gathered parameter over all data ranks, of which this rank keeps its piece."""
        for dimension, group, rank, count in self.places[name].cuts:
            total = _scattered(total, dimension, group, rank, count) if count > 1 else total
        return total

    def gradient(self, name: str, piece: Tensor) -> Tensor:
        """The piece as a gradient that an optimizer takes for the parameter."""
        kept: Any = self.places[name].kept
        if not is_sharded(kept):
            return piece
        made: Tensor = dtensor().from_local(
            piece, kept.device_mesh, kept.placements, run_check=False, shape=kept.shape, stride=kept.stride()
        )
        return made

    def own(self, k: int, gradient: Any) -> Any:
        """A gradient by autograd, cut as the ``k``-th parameter is seen."""
        if not is_sharded(gradient):
            return gradient
        seen: Any = list(self.places.values())[k].seen
        return local(gradient.redistribute(placements=seen.placements))

    def copies_agree(self, name: str, total: Tensor, tolerance: float) -> bool:
        """Whether the ranks that hold a copy of a parameter computed the same gradient of it."""
        if len(self.tensor) < 2 or self.places[name].divided:
            return True
        import torch.distributed as dist

        mean = total.double()
        dist.all_reduce(mean, group=self._tensor_group)
        return bool((mean / len(self.tensor) - total).norm() <= tolerance * (total.double().norm() + 1e-12))

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank. Ranks that gather from one another must run equally often."""
        import torch.distributed as dist

        if self._apart or dist.get_world_size() == 1:
            return flag
        device = next(iter(self.places.values())).kept.device
        told = torch.tensor([int(flag)], dtype=torch.int32, device=device)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return bool(told.item())


def cut_alike(gradients: list[Any], placements: list[Any]) -> list[Any]:
    """Output gradients as this rank has to multiply them: cut as the outputs are, whole where those are sums."""
    found = []
    for gradient, places in zip(gradients, placements, strict=True):
        if is_sharded(gradient):
            from torch.distributed.tensor import Replicate

            gradient = gradient.redistribute(placements=[Replicate() if p.is_partial() else p for p in places])
        found.append(local(gradient))
    return found


def _cut(starts: list[int], sizes: list[int], placement: Any, count: int, rank: int) -> int | None:
    """Narrow a range to the piece of one rank, in equal pieces of which the last may be short; which dimension."""
    if placement.is_replicate():
        return None
    dimension = getattr(placement, "dim", None)
    if dimension is None:
        raise DistributedError(f"a parameter that is {placement} over ranks holds no values of its own")
    each = -(-sizes[dimension] // count)
    start = min(rank * each, sizes[dimension])
    starts[dimension] += start
    sizes[dimension] = min(each, sizes[dimension] - start)
    return int(dimension)


def _scattered(total: Tensor, dimension: int | None, group: Any, rank: int, count: int) -> Tensor:
    """The sum over a group: all of it, or the rank's piece along a dimension."""
    import torch.distributed as dist

    if dimension is None:
        total = total.contiguous()
        dist.all_reduce(total, group=group)
        return total
    length = total.shape[dimension]
    each = -(-length // count)
    front = total.movedim(dimension, 0)
    if each * count != length:
        front = torch.cat([front, front.new_zeros(each * count - length, *front.shape[1:])])
    piece = torch.empty((each, *front.shape[1:]), dtype=total.dtype, device=total.device)
    # One collective under two names: the second is that of torch 2.13 and later.
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    scatter(piece, front.contiguous(), group=group)
    own = max(0, min(each, length - rank * each))
    return piece[:own].movedim(0, dimension).contiguous()


def add_noise_(shards: ShardedParameters, sums: dict[str, Tensor], key: Key, step: int, scale: float) -> None:
    """Add to every kept element the noise that its number in the whole parameter has.

    Guarantee: that of :func:`tacit.noise.tensor.normal` for the whole sum, of L2 sensitivity C and with ``scale`` the
    noise multiplier times C. No element of the whole gets noise twice, however the parameter is cut, because the
    pieces of different ranks are disjoint or copies of one another.
    """
    ranges = [name for name in sums if shards.places[name].is_range]
    add_normal_many_(
        [sums[n] for n in ranges], key, step, ranges, scale, offsets=[shards.places[n].offset for n in ranges]
    )
    for name in sums:
        place = shards.places[name]
        if not place.is_range and sums[name].numel():
            add_normal_(sums[name], key, step, name, scale, offset=place.offset, strides=place.strides)


_known: WeakKeyDictionary[nn.Module, tuple[list[int], ShardedParameters]] = WeakKeyDictionary()


def sharding_of(model: nn.Module) -> ShardedParameters | None:
    """How a model lies on its ranks; None for one that every rank holds whole.

    >>> sharding_of(nn.Linear(2, 2)) is None
    True
    """
    if dtensor() is None or not torch.distributed.is_initialized():  # asked at every step
        return None
    modules = sharded_modules(model)
    for module in modules:
        module.reshard()
    trained = [p for p in model.parameters() if p.requires_grad]
    if not modules and not any(is_sharded(p) for p in trained):
        return None
    identity = [id(p) for p in trained]
    found = _known.get(model)
    if found is None or found[0] != identity:
        found = _known[model] = identity, ShardedParameters(model, modules)
    return found[1]
