"""How do noise and clip norm change between epochs? Opacus' schedulers.

They set ``optimizer.noise_multiplier`` and ``optimizer.max_grad_norm``. Every step is charged with the noise it had.
"""

from tacit.opacus.schedulers.grad_clip_scheduler import (
    ExponentialGradClip,
    LambdaGradClip,
    StepGradClip,
    _GradClipScheduler,
)
from tacit.opacus.schedulers.noise_scheduler import ExponentialNoise, LambdaNoise, StepNoise, _NoiseScheduler

__all__ = [
    "ExponentialGradClip",
    "ExponentialNoise",
    "LambdaGradClip",
    "LambdaNoise",
    "StepGradClip",
    "StepNoise",
    "_GradClipScheduler",
    "_NoiseScheduler",
]
