"""How is the next step's batch drawn while this step is launched? In another thread, which waits for nothing else.

Launching what a GPU does keeps one thread busy; for a small model that thread, not the GPU, is the limit.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundDraw:
    """Makes the next step's draw in another thread, while this one launches what a GPU does in this step.

    ``make(*of, step)`` is to be a function of what it is given, so that it does not matter when, or where, it is made.

    >>> draws = BackgroundDraw()
    >>> [draws.take(pow, (3,), step) for step in (0, 1, 5)]
    [1, 3, 243]
    >>> draws.stop()
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task | None] | None = None
        self._thread: threading.Thread | None = None
        self._waiting: _Task | None = None

    def take(self, make: Callable[..., T], of: tuple[Any, ...], step: int, *, last: bool = False) -> T:
        """What ``make`` gives for a step; that of the next is begun, unless this is the ``last``."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting.is_for(make, of, step):
            found: T = waiting.result()
        else:
            if waiting is not None:
                waiting.settle()
            found = make(*of, step)
        if not last:
            self._waiting = _Task(make, of, step + 1)
            self._queue().put(self._waiting)
        return found

    def stop(self) -> None:
        """Before a key is wiped: nothing may be reading it."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.settle()
        if self._tasks is not None and self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
        self._tasks = self._thread = None

    def _queue(self) -> SimpleQueue[_Task | None]:
        if self._tasks is None:
            self._tasks = SimpleQueue()
            self._thread = threading.Thread(target=_work, args=(self._tasks,), name="tacit-draw", daemon=True)
            self._thread.start()
            # A run that is dropped before its end leaves no thread behind.
            weakref.finalize(self, self._tasks.put, None)
        return self._tasks


class _Task:
    """Something that another thread makes."""

    def __init__(self, make: Callable[..., Any], of: tuple[Any, ...], step: int) -> None:
        self.make, self.of, self.step = make, of, step
        self.value: Any = None
        self.error: BaseException | None = None
        self.busy = threading.Lock()
        self.busy.acquire()

    def is_for(self, make: Callable[..., Any], of: tuple[Any, ...], step: int) -> bool:
        alike = len(self.of) == len(of) and all(a is b for a, b in zip(self.of, of, strict=True))
        return alike and self.make == make and self.step == step

    def run(self) -> None:
        try:
            self.value = self.make(*self.of, self.step)
        except BaseException as error:  # noqa: BLE001 whatever it is, it is raised where the result is asked for
            self.error = error
        finally:
            self.busy.release()

    def result(self) -> Any:
        self.settle()
        if self.error is not None:
            raise self.error
        return self.value

    def settle(self) -> None:
        """Wait until it is made."""
        with self.busy:
            pass


def _work(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task  # what it holds is not kept until the next one comes
