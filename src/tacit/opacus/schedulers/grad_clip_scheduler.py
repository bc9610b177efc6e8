"""How does the clip norm change from epoch to epoch?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tacit.opacus.schedulers.base import Exponential, Factor, Schedule, Steps


class _GradClipScheduler(Schedule):
    """A schedule of the clip norm."""

    attribute = "max_grad_norm"


class ExponentialGradClip(Exponential, _GradClipScheduler):
    """Times ``gamma`` after every epoch."""


class StepGradClip(Steps, _GradClipScheduler):
    """Times ``gamma`` after every ``step_size`` epochs."""


class LambdaGradClip(Factor, _GradClipScheduler):
    """The first value times a function of the epoch."""

    def __init__(self, optimizer: Any, *, scheduler_function: Callable[[int], float], last_epoch: int = -1) -> None:
        super().__init__(optimizer, scheduler_function, last_epoch)


__all__ = ["ExponentialGradClip", "LambdaGradClip", "StepGradClip", "_GradClipScheduler"]
