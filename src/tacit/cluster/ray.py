"""How is a list of tasks done on a Ray cluster, so that where and when they run changes nothing?

The driver, the process that calls tacit, decides everything that is random and everything that is charged; a task is a
function of its arguments. A task whose worker or machine is lost is handed out again with the same arguments, and
results are known by their place in the list, not by when they arrive.

The cluster is trusted: private rows, models and keys travel to its workers and lie in its object store, which Ray
writes to disk when memory is short. What the guarantee protects is what is released. docs/results/scale.md says more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

BACKENDS = ("local", "ray")
#: Tasks handed to the cluster at a time unless it is said: enough to keep hundreds of workers busy, few enough that
#: their arguments do not fill the object store.
AT_ONCE = 256


class ClusterError(RuntimeError):
    """A cluster that is missing, too small, or that lost a task again and again; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Ray:
    """A Ray cluster, and what each task asks of it.

    ``num_cpus`` and ``num_gpus`` of a machine are kept for one task (parts of a GPU are allowed); a task computes with
    ``num_cpus`` threads. A task whose worker was killed, ran out of memory or lost its machine is handed out again, at
    most ``retries`` times. ``at_once`` limits the tasks under way.

    Where the program has called ``ray.init``, that cluster is used. Otherwise ``address`` (or the environment's
    ``RAY_ADDRESS``, or a cluster running on this machine) is joined, and without any a cluster of this machine alone is
    started and ended, with no dashboard and no usage statistics. ``elastic`` says that machines come when they are
    asked for, so that what none has now is waited for and not refused.

    >>> list(Ray().map(pow, [(2, 3), (3, 2)]))  # doctest: +SKIP
    [(0, 8), (1, 9)]
    >>> Ray(num_cpus=-1)
    Traceback (most recent call last):
    ValueError: num_cpus is a number, 0 or more, not -1
    """

    num_cpus: float = 1
    num_gpus: float = 0
    retries: int = 3
    at_once: int | None = None
    address: str | None = None
    elastic: bool = False

    def __post_init__(self) -> None:
        for name in ("num_cpus", "num_gpus"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(f"{name} is a number, 0 or more, not {value!r}")
        for name, least in (("retries", 0), ("at_once", 1)):
            value = getattr(self, name)
            if value is None and name == "at_once":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is a whole number, {least} or more, not {value!r}")

    @property
    def threads(self) -> int:
        """With how many threads a task computes: the same on every machine, because sums may round by it."""
        return max(1, int(self.num_cpus))

    @contextlib.contextmanager
    def session(self) -> Iterator[Any]:
        """Ray, joined or started; what was started or joined here is left at the end."""
        ray = load()
        if ray.is_initialized():
            yield ray
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(
                address=self.address,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=True,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, OSError, RuntimeError) as error:
            where = self.address or os.environ.get("RAY_ADDRESS") or "this machine"
            raise ClusterError(f"no Ray cluster could be reached or started ({where}): {error}") from error
        try:
            yield ray
        finally:
            ray.shutdown()

    @contextlib.contextmanager
    def ready(self) -> Iterator[Any]:
        """A :meth:`session` with a cluster that can do the tasks: entered before anything is charged for them."""
        with self.session() as ray:
            self._check_room(ray)
            yield ray

    def map(
        self,
        function: Callable[..., Any],
        arguments: Iterable[tuple[Any, ...]],
        *,
        shared: tuple[Any, ...] = (),
        silent: bool = False,
        lost: Callable[[int, str], Any] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """``function(*shared, *arguments[i])`` for every i: pairs (i, result), in the order in which they arrive.

        ``shared`` is sent to a machine once. ``silent`` keeps what a task prints out of the cluster's logs. An error
        that the function raises is raised here. ``lost(i, why)`` is the result of a task that was lost more often than
        ``retries`` allows; without it that is a :class:`ClusterError`. What is still under way when the caller stops
        is cancelled.
        """
        with self.ready() as ray:
            task = ray.remote(_call).options(
                num_cpus=self.num_cpus,
                num_gpus=self.num_gpus,
                max_retries=0,  # lost tasks are handed out again below, where they are counted
                enable_task_events=False,  # the dashboard's list of tasks would tell how many there were
                name="tacit",
            )
            common = ray.put((function, shared))
            source = enumerate(arguments)
            again: deque[tuple[int, Any, int]] = deque()
            under_way: dict[Any, tuple[int, Any, int]] = {}
            drained = False
            try:
                while True:
                    while len(under_way) < (self.at_once or AT_ONCE) and (again or not drained):
                        if again:
                            entry = again.popleft()
                        else:
                            following = next(source, None)
                            if following is None:
                                drained = True
                                break
                            entry = (following[0], ray.put(following[1]), 0)
                        under_way[task.remote(common, entry[1], self.threads, silent)] = entry
                    if not under_way:
                        return
                    finished, _ = ray.wait(list(under_way), num_returns=1)
                    place, given, tries = under_way.pop(finished[0])
                    try:
                        result = ray.get(finished[0])
                    except ray.exceptions.RayTaskError as error:
                        raise (error.cause if isinstance(error.cause, Exception) else error) from None
                    except ray.exceptions.RayError as error:
                        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'}"
                        if tries < self.retries:
                            again.append((place, given, tries + 1))
                            continue
                        if lost is None:
                            raise ClusterError(
                                f"task {place} was lost {tries + 1} times, the last time by {why}. Give it more memory "
                                "(a larger num_cpus puts fewer on a machine) or more retries; nothing was released"
                            ) from error
                        result = lost(place, why)
                    yield place, result
            finally:
                _leave(ray, list(under_way))

    def _check_room(self, ray: Any) -> None:
        """Refuse what no machine of the cluster can ever hold; Ray would wait for ever."""
        if self.elastic:
            return
        machines = [node.get("Resources", {}) for node in ray.nodes() if node.get("Alive", node.get("alive"))]
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        if any(all(machine.get(kind, 0) >= amount for kind, amount in wanted.items()) for machine in machines):
            return
        found = "; ".join(f"{m.get('CPU', 0):g} CPU, {m.get('GPU', 0):g} GPU" for m in machines) or "none"
        raise ClusterError(
            f"no machine of the cluster has {self.num_cpus:g} CPU and {self.num_gpus:g} GPU for one task (there are: "
            f"{found}). Ask for less, or say elastic=True if machines come when they are asked for"
        )


def _leave(ray: Any, under_way: list[Any]) -> None:
    """Stop what nobody waits for any more."""
    if not under_way:
        return
    finished, rest = ray.wait(under_way, num_returns=len(under_way), timeout=0)
    for reference in rest:
        ray.cancel(reference, force=True)
    for reference in finished:
        with contextlib.suppress(ray.exceptions.RayError):  # one error has been told; Ray would print the others
            ray.get(reference)


def backend_of(value: Any) -> Ray | None:
    """The cluster that ``backend=`` names; None for ``"local"``.

    >>> backend_of("local"), backend_of("ray").num_cpus
    (None, 1)
    """
    if isinstance(value, Ray):
        load()
        return value
    if value == "local":
        return None
    if value == "ray":
        load()
        return Ray()
    raise ValueError(f"backend is 'local', 'ray' or a tacit.cluster.Ray, not {value!r}")


def load() -> Any:
    """The package ``ray``, or an error that names the extra."""
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(
            "backend='ray' needs Ray: pip install 'tacit[ray]'. See: tacit explain missing-extra", name="ray"
        ) from None


# -- on a worker ----


def _call(common: tuple[Callable[..., Any], tuple[Any, ...]], given: tuple[Any, ...], threads: int, quiet: bool) -> Any:
    """One task: the same number of threads wherever it runs, and silence where it is asked for."""
    function, shared = common
    with _limited(threads), silence() if quiet else contextlib.nullcontext():
        return function(*shared, *given)


@contextlib.contextmanager
def _limited(threads: int) -> Iterator[None]:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
    try:
        pools = importlib.import_module("threadpoolctl")
    except ModuleNotFoundError:  # it comes with scikit-learn
        yield
        return
    with pools.threadpool_limits(threads):
        yield


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Standard output and error of this process go nowhere, also those of C code: Ray keeps them in its logs."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, saved in zip((1, 2), kept, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)
        os.close(nowhere)
