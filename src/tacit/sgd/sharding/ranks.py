"""Who takes part in a run, what must all of them agree on, and who alone speaks to the ledger?

:class:`Ranks` answers for one process and for many alike; alone, every question is answered at once and nothing is
sent. Ranks that hold the same piece of the model share out the records of a batch (*data ranks*); ranks that hold
different pieces of the same matrices see the same records (*tensor ranks*).

The secret key is made by rank 0 and sent to the others through the process group: the network between the ranks must
be as private as the data.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tacit.noise.keys import Key

T = TypeVar("T")
#: Elements that travel together where many small tensors are added up.
BUCKET = 1 << 23
_groups: dict[tuple[tuple[int, ...], ...], Any] = {}


class DistributedError(RuntimeError):
    """Ranks that cannot train together: other data, another plan, another key."""


class Ranks:
    """The processes of a run, seen from one of them.

    ``tensor`` are the ranks, this one among them, that hold pieces of the same matrices.

    Guarantee: what :meth:`share` returns is a partition of the units that were drawn, over the data ranks. Every rank
    derives the same draw from the same key, so a unit takes part once and with the probability that is priced.

    >>> alone = Ranks()
    >>> alone.rank, alone.world, alone.share([3, 5, 8]), alone.words
    (0, 1, [3, 5, 8], '')
    """

    def __init__(
        self, *, active: bool = False, tensor: tuple[int, ...] = (), device: torch.device | None = None
    ) -> None:
        self.active = active
        self.rank, self.world = 0, 1
        self.data_rank, self.data_ranks, self.tensor_ranks = 0, 1, 1
        self.device = device or torch.device("cpu")
        self._data_group: Any = None
        if active:
            import torch.distributed as dist

            self._dist = dist
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
            self.data_rank, self.data_ranks = self.rank, self.world
            if len(tensor) > 1:
                self._split(tensor)

    def _split(self, tensor: tuple[int, ...]) -> None:
        """Ranks at the same place of their tensor groups are the data ranks of one another."""
        found: list[Any] = [None] * self.world
        self._dist.all_gather_object(found, tuple(sorted(tensor)))
        teams = tuple(sorted(set(found)))
        if len({len(team) for team in teams}) != 1 or sorted(r for team in teams for r in team) != [*range(self.world)]:
            raise DistributedError(f"the tensor-parallel groups {teams} do not divide {self.world} ranks evenly")
        rows = tuple(zip(*teams, strict=True))
        if rows not in _groups:
            _groups[rows] = self._dist.new_subgroups_by_enumeration([list(row) for row in rows])[0]
        self._data_group = _groups[rows]
        self.tensor_ranks, self.data_ranks = len(teams[0]), len(teams)
        self.data_rank = next(k for k, team in enumerate(teams) if self.rank in team)

    @property
    def words(self) -> str:
        """How the card names it; empty for a process alone."""
        if not self.active:
            return ""
        if self.tensor_ranks == 1:
            return f"{self.world} ranks, data parallel" if self.world > 1 else "1 rank"
        return f"{self.world} ranks, {self.data_ranks} data parallel x {self.tensor_ranks} tensor parallel"

    # -- records -----------------------------------------------------------------------------------------------------

    def share(self, drawn: Any) -> Any:
        """The part of a draw that this rank takes."""
        return drawn[self.data_rank :: self.data_ranks]

    # -- one speaks, all hear ----------------------------------------------------------------------------------------

    def first(self, action: Callable[[], T]) -> T:
        """What ``action`` gives on rank 0, on every rank; where it raises there, all raise together."""
        if not self.active:
            return action()
        box: list[Any] = [None]
        raised: Exception | None = None
        if self.rank == 0:
            try:
                box = [(True, action())]
            except Exception as error:  # noqa: BLE001 whatever it is, all raise it
                raised = error
                box = [(False, _sendable(error))]
        self._dist.broadcast_object_list(box, 0)
        done, value = box[0]
        if raised is not None:
            raise raised
        if not done:
            raise value
        return value  # type: ignore[no-any-return]

    def all(self, value: T) -> list[T]:
        """The value of every rank, in order."""
        if not self.active:
            return [value]
        found: list[Any] = [None] * self.world
        self._dist.all_gather_object(found, value)
        return found

    def same(self, **values: Any) -> None:
        """Refuse, on all ranks together, where they do not have the same values; names are told, values are not."""
        everyone = self.all(values)
        for name in values:
            odd = [rank for rank, told in enumerate(everyone) if told[name] != everyone[0][name]]
            if odd:
                who = ", ".join(map(str, odd))
                raise DistributedError(
                    f"rank {who} has another {name.replace('_', ' ')} than rank 0: every rank of a private run is "
                    "started with the same data, the same settings and the same software"
                )

    def key(self, given: Key | None) -> Key | None:
        """The key of rank 0, which all ranks were given or none was; None where rank 0 has none."""
        if not self.active:
            return given
        names = self.all(given.fingerprint() if given is not None else None)
        if len(set(names)) > 1:
            raise DistributedError(
                "ranks were given different keys, and would draw different batches and noise: give key= to none of "
                "them, or the same to all"
            )
        return given

    def send_key(self, key: Key | None) -> Key:
        """The key of rank 0, on every rank."""
        if not self.active:
            assert key is not None
            return key
        box = [key.reveal() if key is not None and self.rank == 0 else None]
        self._dist.broadcast_object_list(box, 0)
        assert box[0] is not None
        if self.rank == 0:
            assert key is not None
            return key
        return Key(box[0])

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank: for decisions that all must take alike."""
        if not self.active or self.world == 1:
            return flag
        told = torch.tensor([int(flag)], dtype=torch.int32, device=self.device)
        self._dist.all_reduce(told, op=self._dist.ReduceOp.MAX)
        return bool(told.item())

    # -- sums --------------------------------------------------------------------------------------------------------

    def add_(self, tensors: Iterable[Tensor]) -> None:
        """Add tensors up over the data ranks, in place. Always called by all, however few records a rank has."""
        if self.data_ranks == 1:
            return
        buckets: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            if tensor.numel() >= BUCKET:
                self._reduce(tensor)
                continue
            bucket = buckets.setdefault(tensor.dtype, [])
            bucket.append(tensor)
            if sum(t.numel() for t in bucket) >= BUCKET:
                self._together(buckets.pop(tensor.dtype))
        for bucket in buckets.values():
            self._together(bucket)

    def _reduce(self, tensor: Tensor) -> None:
        whole = tensor if tensor.is_contiguous() else tensor.contiguous()
        self._dist.all_reduce(whole, group=self._data_group)
        if whole is not tensor:
            tensor.copy_(whole)

    def _together(self, tensors: list[Tensor]) -> None:
        flat = torch.cat([t.reshape(-1) for t in tensors])
        self._dist.all_reduce(flat, group=self._data_group)
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def begin_alike(self, tensors: Iterable[Tensor]) -> None:
        """Start from the values of rank 0, as ``DistributedDataParallel`` does."""
        if self.active and self.world > 1:
            with torch.no_grad():
                for tensor in tensors:
                    self._dist.broadcast(tensor.data, 0)


def _sendable(error: Exception) -> Exception:
    """The error itself where it can travel, else one with its words."""
    try:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 what was pickled a moment ago, here
        return again if isinstance(again, Exception) else DistributedError(str(error))
    except Exception:  # noqa: BLE001 whatever its class cannot do, its words arrive
        return DistributedError(f"{type(error).__name__} on rank 0: {error}")


def available() -> bool:
    """Whether this process belongs to a process group."""
    dist = getattr(torch, "distributed", None)
    return dist is not None and dist.is_available() and dist.is_initialized()


def wanted(model: nn.Module, *, distributed: bool | None) -> bool:
    """Whether a run of this model is one of several ranks; refuses what would be several runs by mistake."""
    kind = type(model).__name__
    if kind in ("DistributedDataParallel", "FullyShardedDataParallel"):
        raise DistributedError(
            f"{kind} averages gradients before they are clipped. Pass the model itself"
            + (": Training adds up clipped sums over the ranks" if kind[0] == "D" else ", sharded by fully_shard")
        )
    started = int(os.environ.get("WORLD_SIZE", "1") or 1)
    if distributed is None and not available() and started > 1 and "RANK" in os.environ:
        raise DistributedError(
            f"a launcher started {started} processes (WORLD_SIZE), and torch.distributed is not initialised: they "
            "would be as many runs, each with a release of its own. Call torch.distributed.init_process_group() first, "
            "or say distributed=False where that is what you want"
        )
    if distributed and not available():
        raise DistributedError("distributed=True needs torch.distributed.init_process_group() before it")
    return available() if distributed is None else distributed
