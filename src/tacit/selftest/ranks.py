"""How is something tried on several ranks, on one machine? Forked processes that talk over the loopback interface.

:func:`on_ranks` forks the process that calls it, so that what stands in memory (a mutant's patch, a model) stands in
every rank. It is for small trials of seconds: one thread each, gloo, nothing left behind.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any


class RankFailed(RuntimeError):
    """A rank raised, died, or waited in vain for the others."""


class _Silent(RankFailed):
    """No rank answered at all: a lock that a library's thread held while the process was forked stops every child."""


#: How often ranks that are all silent are started anew. Ranks that wait for each other say so after ``each`` seconds.
ATTEMPTS = 3


def possible() -> bool:
    """Whether several ranks can be tried here: torch with its distributed part, and an operating system that forks."""
    import torch

    return "fork" in multiprocessing.get_all_start_methods() and torch.distributed.is_available()


def on_ranks(
    world: int,
    work: Callable[[int], Any],
    *,
    timeout: float = 60.0,
    grace: float | None = None,
    each: float | None = None,
    group: bool = True,
) -> list[Any]:
    """What ``work(rank)`` gives on each of ``world`` ranks of one process group; results travel as pickles.

    Raises :class:`RankFailed` where a rank raises or does not answer in ``timeout`` seconds; once one has answered, the
    others have ``grace`` seconds where that is given; ``each`` is how long a rank waits for the others at a time. With
    ``group=False`` no process group is made. Where no rank answers at all, the ranks are started anew, twice.

    >>> on_ranks(2, lambda rank: rank * 10, group=False)
    [0, 10]
    """
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(_Silent):
            return _once(world, work, timeout, grace, each or timeout, group)
    return _once(world, work, timeout, grace, each or timeout, group)


def _once(
    world: int, work: Callable[[int], Any], timeout: float, grace: float | None, each: float, group: bool
) -> list[Any]:
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="tacit-ranks-") as folder:
        pipes, processes = [], []
        with warnings.catch_warnings():
            # Threads of the parent are not used by the children, which compute with one thread each.
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            for rank in range(world):
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_rank, args=(rank, world, work, theirs, Path(folder) / "store", each, group)
                )
                process.start()
                theirs.close()
                pipes.append(ours)
                processes.append(process)
        found: dict[int, Any] = {}
        try:
            end = time.monotonic() + timeout
            while len(found) < world:
                waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in found}
                ready: list[Any] = wait(list(waiting), max(0.0, end - time.monotonic()))
                if not ready:
                    missing = ", ".join(map(str, waiting.values()))
                    kind = RankFailed if found else _Silent
                    raise kind(f"rank {missing} did not answer in time")
                for pipe in ready:
                    rank = waiting[pipe]
                    try:
                        fine, value = pipe.recv()
                    except EOFError:
                        raise RankFailed(f"rank {rank} died") from None
                    if not fine:
                        raise RankFailed(f"rank {rank}: {value}")
                    found[rank] = value
                if grace is not None:
                    end = min(end, time.monotonic() + grace)
        finally:
            for process in processes:
                process.join(5.0 if len(found) == world else 0.0)
                if process.is_alive():
                    process.kill()
                    process.join()
    return [found[rank] for rank in range(world)]


def _rank(
    rank: int, world: int, work: Callable[[int], Any], pipe: Any, store: Path, timeout: float, group: bool
) -> None:
    import torch

    torch.set_num_threads(1)
    for name, value in (("RANK", rank), ("WORLD_SIZE", world), ("LOCAL_RANK", rank)):
        os.environ[name] = str(value)
    if sys.platform.startswith("linux"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        if group:
            import torch.distributed as dist

            limit = datetime.timedelta(seconds=timeout)
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=limit)
        with contextlib.redirect_stderr(io.StringIO()):
            value = work(rank)
        pipe.send((True, value))
        if group:
            dist.barrier()
            dist.destroy_process_group()
    except BaseException as error:  # noqa: BLE001 whatever it is, the parent is told
        pipe.send((False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        os._exit(1)


__all__ = ["RankFailed", "on_ranks", "possible"]
