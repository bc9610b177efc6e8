"""How much noise does a privacy budget ask for? Opacus' function, with tacit's calibration."""

from __future__ import annotations

import math
from typing import Any

from tacit import accounting as acc

MAX_SIGMA = 1e6


def get_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    epochs: int | None = None,
    steps: int | None = None,
    accountant: str = "prv",
    epsilon_tolerance: float = 0.01,
    **kwargs: Any,
) -> float:
    """The least noise multiplier whose certified ε is at most ``target_epsilon``; ``accountant`` has no influence.

    >>> round(get_noise_multiplier(target_epsilon=3.0, target_delta=1e-5, sample_rate=0.01, epochs=10), 3)
    0.814
    """
    if (steps is None) == (epochs is None):
        raise ValueError("give epochs= or steps=, one of the two")
    if set(kwargs) - {"alphas", "eps_error", "delta_error"}:
        raise TypeError(f"get_noise_multiplier has no argument {next(iter(kwargs))!r}")
    if not target_epsilon > 0:
        raise ValueError(f"target_epsilon must be positive, not {target_epsilon}")
    if steps is None:
        assert epochs is not None
        # Rounding of the quotient must not cost a step that will be run.
        steps = math.ceil(epochs / sample_rate - 1e-9)
    return acc.calibrate(
        lambda noise: acc.PoissonSampled(acc.Gaussian(noise), sample_rate) * steps,
        epsilon=target_epsilon,
        delta=target_delta,
    )
