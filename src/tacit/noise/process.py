"""In which process may this be used? In the one that made it.

A fork copies memory. A secret key, or a count of what a charge still covers, then exists twice: parent and child would
add the same noise to different sums, whose difference has none, or use the same charge twice. The same holds for a copy
made by ``copy`` or ``pickle``. :class:`OneProcess` is the base of everything that must exist only once.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn, Self


class ForkError(RuntimeError):
    """A key or a run was used in a fork of the process that made it."""


#: How many forks lie between this process and the first one: a count that no reuse of process ids repeats.
forks = 0


def _forked() -> None:
    global forks
    forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _here() -> tuple[int, int]:
    """This process: its id, which a fork behind Python's back changes too, and how many forks it comes after."""
    return os.getpid(), forks


class OneProcess:
    """Remembers the process that made it; not to be copied or pickled.

    >>> import copy
    >>> run = OneProcess()
    >>> run.check_process()
    >>> copy.copy(run)
    Traceback (most recent call last):
    TypeError: a OneProcess cannot be copied or pickled: ...
    """

    __slots__ = ("_process",)
    _process: tuple[int, int]

    def __new__(cls, *_: Any, **__: Any) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_process", _here())
        return made

    @property
    def forked(self) -> bool:
        """Whether this is the copy in a forked process."""
        return self._process != _here()

    def check_process(self) -> None:
        """Refuse to go on in a fork of the process that made this.

        Raises:
            ForkError: If this process is such a fork.
        """
        if self.forked:
            raise ForkError(
                f"this {type(self).__name__} was made in another process, of which this one is a fork. Used here, it "
                "would repeat noise, or use a charge, that the other process uses too. Make the run (or load its key) "
                "in the process that trains it; to go on with a run in a new process, give it a checkpoint and resume "
                "it there. See: tacit explain fork"
            )

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: the copy would use the same noise, or the same "
            "charge, a second time. Make another one, or go on from a checkpoint. See: tacit explain fork"
        )

    __reduce_ex__ = __copy__ = __deepcopy__ = __getstate__ = _refuse
