"""How does a Ray cluster work through a list of tasks so that where and when they run changes nothing?

The driver (the process that calls tacit) decides everything that is random and everything that is charged. A task is a
function of its arguments. If a worker or machine is lost, its task is sent out again with the same arguments, and
results are known by their place in the list, not by when they arrive.

The cluster is trusted: private rows, models and keys travel to its workers and are kept in its object store, which Ray
writes to disk when memory is short. The guarantee protects what is released. docs/howto/ray.md says more.
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
#: How many tasks the cluster has at a time by default: enough to keep hundreds of workers busy, few enough that their
#: arguments do not fill the object store.
AT_ONCE = 256


class ClusterError(RuntimeError):
    """The cluster is missing, too small, or lost a task too often. The message says what to do."""


@dataclasses.dataclass(frozen=True)
class Ray:
    """A Ray cluster, and what each task needs from it.

    If the program has called ``ray.init``, that cluster is used. Otherwise tacit joins ``address``, the cluster in the
    environment variable ``RAY_ADDRESS``, or one that runs on this machine. If there is none, it starts a cluster of
    this machine alone and ends it afterwards, without dashboard and usage statistics.

    Guarantee:
        The cluster is trusted with private rows, models and keys. It changes no price: the driver samples, charges and
        releases once, and a task gives the same result wherever and however often it runs.

    Args:
        num_cpus: CPUs reserved for one task. It computes with that many threads, and with at least one.
        num_gpus: GPUs reserved for one task; a fraction shares one GPU between tasks.
        retries: How often a task is sent out again after its worker was killed, ran out of memory or lost its machine.
        at_once: How many tasks may be under way at a time. None means 256.
        address: The cluster to join; None looks for one as described above.
        elastic: Whether the cluster adds machines on demand. Then a task that no machine can hold now waits instead
            of being refused.

    Raises:
        ValueError: If a number is negative or not a number.

    Example:
        >>> list(Ray().map(pow, [(2, 3), (3, 2)]))  # doctest: +SKIP
        [(0, 8), (1, 9)]
        >>> Ray(num_cpus=-1)
        Traceback (most recent call last):
        ValueError: num_cpus must be a number, 0 or more, not -1
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
                raise ValueError(f"{name} must be a number, 0 or more, not {value!r}")
        for name, least in (("retries", 0), ("at_once", 1)):
            value = getattr(self, name)
            if value is None and name == "at_once":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number, {least} or more, not {value!r}")

    @property
    def threads(self) -> int:
        """How many threads a task computes with: the same on every machine, because rounding may depend on it."""
        return max(1, int(self.num_cpus))

    @contextlib.contextmanager
    def session(self) -> Iterator[Any]:
        """Join or start a cluster, and leave it at the end.

        Yields:
            The package ``ray``, initialized.

        Raises:
            ClusterError: If no cluster can be reached or started.
        """
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
            raise ClusterError(
                f"no Ray cluster could be reached or started ({where}): {error}. Check the address, or call ray.init "
                "before tacit"
            ) from error
        try:
            yield ray
        finally:
            ray.shutdown()

    @contextlib.contextmanager
    def ready(self) -> Iterator[Any]:
        """A :meth:`session` with a cluster that has room for the tasks. Entered before anything is charged for them.

        Yields:
            The package ``ray``, initialized.
        """
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
        """Compute ``function(*shared, *arguments[i])`` for every i on the cluster.

        An error that the function raises is raised here. Tasks that are still under way when the caller stops are
        cancelled.

        Args:
            function: What to compute. It must depend on nothing but its arguments.
            arguments: The arguments of each task, read as workers become free.
            shared: First arguments that all tasks have in common. They are sent to a machine once.
            silent: Whether to keep what tasks print out of the cluster's logs.
            lost: Called with (i, why) for a task that was lost more often than ``retries`` allows; what it returns is
                the result. None raises an error instead.

        Returns:
            Pairs (i, result), in the order in which they arrive.

        Raises:
            ClusterError: If no machine has room for a task, or a task was lost too often.
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
                                f"task {place} was lost {tries + 1} times, the last time because of {why}. Give it "
                                "more memory (a larger num_cpus puts fewer tasks on a machine) or more retries; "
                                "nothing was released"
                            ) from error
                        result = lost(place, why)
                    yield place, result
            finally:
                _leave(ray, list(under_way))

    def _check_room(self, ray: Any) -> None:
        """Refuse a task that no machine of the cluster can ever hold: Ray would wait forever."""
        if self.elastic:
            return
        machines = [node.get("Resources", {}) for node in ray.nodes() if node.get("Alive", node.get("alive"))]
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        if any(all(machine.get(kind, 0) >= amount for kind, amount in wanted.items()) for machine in machines):
            return
        found = "; ".join(f"{m.get('CPU', 0):g} CPU, {m.get('GPU', 0):g} GPU" for m in machines) or "none"
        raise ClusterError(
            f"no machine of the cluster has {self.num_cpus:g} CPU and {self.num_gpus:g} GPU for one task (there are: "
            f"{found}). Ask for less, or set elastic=True if the cluster adds machines on demand"
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
    """The cluster that a ``backend=`` argument names.

    Args:
        value: ``"local"``, ``"ray"`` (one CPU for each task), or a :class:`Ray`.

    Returns:
        The cluster; None for ``"local"``.

    Raises:
        ValueError: If it is something else.
        ModuleNotFoundError: If Ray is not installed.

    Example:
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
    raise ValueError(f"backend must be 'local', 'ray' or a tacit.cluster.Ray, not {value!r}")


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
