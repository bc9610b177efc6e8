"""How does the noise multiplier change from epoch to epoch?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tacit.opacus.schedulers.base import Exponential, Factor, Schedule, Steps


class _NoiseScheduler(Schedule):
    """A schedule of the noise multiplier."""

    attribute = "noise_multiplier"


class ExponentialNoise(Exponential, _NoiseScheduler):
    """Times ``gamma`` after every epoch."""


class StepNoise(Steps, _NoiseScheduler):
    """Times ``gamma`` after every ``step_size`` epochs."""


class LambdaNoise(Factor, _NoiseScheduler):
    """The first value times a function of the epoch."""

    def __init__(self, optimizer: Any, *, noise_lambda: Callable[[int], float], last_epoch: int = -1) -> None:
        super().__init__(optimizer, noise_lambda, last_epoch)


__all__ = ["ExponentialNoise", "LambdaNoise", "StepNoise", "_NoiseScheduler"]
