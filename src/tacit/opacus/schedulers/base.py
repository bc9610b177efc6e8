"""How does one number of the optimizer follow a schedule? What the schedulers of noise and of clip norm share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Schedule:
    """Sets ``optimizer.<attribute>`` when it is built and at every :meth:`step`."""

    attribute = ""

    def __init__(self, optimizer: Any, *, last_epoch: int = -1) -> None:
        if not hasattr(optimizer, self.attribute):
            raise ValueError(
                f"{type(self).__name__} needs an optimizer with {self.attribute!r}: the one that make_private returned"
            )
        self.optimizer, self.last_epoch = optimizer, last_epoch
        self.first, self.base = last_epoch, self.value
        self.step()

    @property
    def value(self) -> float:
        """What the optimizer has now."""
        return float(getattr(self.optimizer, self.attribute))

    def next(self) -> float:
        """The value for the epoch that begins."""
        raise NotImplementedError

    def step(self) -> None:
        """Go on to the next epoch."""
        self.last_epoch += 1
        setattr(self.optimizer, self.attribute, self.next())

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and what the schedule follows from."""
        return {key: value for key, value in self.__dict__.items() if key not in ("optimizer", "first", "base")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on at the epoch of :meth:`state_dict`, by this schedule and from the value that its optimizer began with.

        A state of another schedule is refused: what was asked for here is what runs.
        """
        other = [key for key, own in self.state_dict().items() if key != "last_epoch" and state_dict.get(key) != own]
        if other:
            raise ValueError(
                f"the saved schedule has another {other[0]} than this {type(self).__name__}: build the schedule that "
                "was saved, or leave its state unloaded"
            )
        setattr(self.optimizer, self.attribute, self.base)
        self.last_epoch = self.first
        while self.last_epoch < int(state_dict["last_epoch"]):
            self.step()


class Exponential(Schedule):
    """Times ``gamma`` after every epoch."""

    def __init__(self, optimizer: Any, *, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch=last_epoch)

    def next(self) -> float:
        return self.value if self.last_epoch == 0 else self.value * self.gamma


class Steps(Schedule):
    """Times ``gamma`` after every ``step_size`` epochs."""

    def __init__(self, optimizer: Any, *, step_size: int, gamma: float, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch=last_epoch)

    def next(self) -> float:
        now = self.last_epoch == 0 or self.last_epoch % self.step_size
        return self.value if now else self.value * self.gamma


class Factor(Schedule):
    """The first value times a function of the epoch."""

    def __init__(self, optimizer: Any, function: Callable[[int], float], last_epoch: int) -> None:
        self.function = function
        super().__init__(optimizer, last_epoch=last_epoch)

    def next(self) -> float:
        return self.base * self.function(self.last_epoch)

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key != "function"}
