"""How does the host learn that a step holds while the GPU is still at work on it?

Whether a compiled step holds (every gradient is finite, factors are comparable) is known with the clip factors, before
the clipped sums are made of them. The answer is sent to the host from there, in the middle of the program, so that what
follows (the optimizer, the next batch, the next step) is launched while the sums are still being added up, and the GPU
never waits for it. Nothing is released earlier than before: the host only launches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tacit.sgd.kernels.launch import as_operator

#: A byte that is neither true nor false.
UNKNOWN = 2
#: True, with something to say about it.
REMARKED = 3


class Answer:
    """A truth value on its way from the GPU, in memory that both see.

    >>> answer = Answer(pin=False)
    >>> answer.expect(lambda: None)
    >>> with answer.awaited():
    ...     factors = tell(torch.tensor(True), torch.ones(3))
    >>> answer.read(torch.tensor(True), lambda: False)
    True
    """

    def __init__(self, *, pin: bool = True) -> None:
        self.place = torch.zeros(1, dtype=torch.uint8, pin_memory=pin)
        self.byte = self.place.numpy()

    def expect(self, settle: Callable[[], None]) -> None:
        """Before the program starts. Where nobody read an earlier answer (an error came between), it may still be on
        its way, and would be taken for this one: ``settle`` waits until nothing is."""
        if self.byte[0] == UNKNOWN:
            settle()
        self.byte[0] = UNKNOWN

    def send(self, value: Tensor) -> None:
        """In the program: put the value, a byte, on its way, behind what was launched so far."""
        self.place.copy_(value.reshape(1).view(torch.uint8), non_blocking=True)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Programs that run, or are recorded, inside send here."""
        before, _here.awaited = getattr(_here, "awaited", None), self
        try:
            yield
        finally:
            _here.awaited = before

    def read(self, value: Tensor, done: Callable[[], bool]) -> bool:
        """Wait for the answer; where everything is ``done`` and none came, it is the value itself."""
        while self.byte[0] == UNKNOWN:
            if done() and self.byte[0] == UNKNOWN:
                self.byte[0] = int(value)
            time.sleep(0)
        return bool(self.byte[0])


def remarked(value: Tensor, remark: Tensor) -> Tensor:
    """A truth value as a byte, :data:`REMARKED` where it is true and the remark is, too.

    >>> [int(remarked(torch.tensor(v), torch.tensor(r))) for v in (False, True) for r in (False, True)]
    [0, 0, 1, 3]
    """
    return value.to(torch.uint8) * (1 + 2 * remark.to(torch.uint8))


#: Who awaits an answer in this thread: another run, in another thread, must not get it.
_here = threading.local()


@as_operator("tacit::tell")
def tell(value: Tensor, factors: Tensor) -> Tensor:
    """Send a value to whoever awaits it. What is to follow takes its factors from here: a compiler may put operations
    in another order, and would otherwise send the value at the very end."""
    awaited: Answer | None = getattr(_here, "awaited", None)
    if awaited is not None:
        awaited.send(value)
    return factors.clone()


@tell.register_fake
def _(value: Tensor, factors: Tensor) -> Tensor:
    return torch.empty_like(factors)


@as_operator("tacit::apart")
def apart(value: Tensor) -> Tensor:
    """The value, made where it stands. A compiler joins a small value to whatever reads it last: losses, to the answer
    at the end, and keeps the logits that they are made of for as long."""
    return value.clone()


@apart.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)
