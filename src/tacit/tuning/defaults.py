"""What would I choose without tuning at all? Settings of DP-SGD from public numbers, by scale rules.

Each rule says how one setting should change with another, so that what worked once works elsewhere:

- *Batch against noise.* At a fixed number of steps the noise of a step relative to the batch, σ/B, falls as the batch
  grows and levels off at its full-batch value (De et al. 2022, "Unlocking high-accuracy differentially private image
  classification through scale"; Ponomareva et al. 2023, "How to DP-fy ML", section 5.4). :func:`batch_for` takes the
  smallest batch that is within a given factor of that level.
- *Learning rate against clip norm.* A clipped gradient has length at most C, so that steps scale as lr·C: lr ∝ 1/C
  (De et al. 2022, who normalise by C for this reason).
- *Learning rate against batch, noise and steps.* T steps of a noisy gradient of expected square G² = C²(1 + dσ²/B²)
  travel best at lr = R/(G√T), R the distance to travel (Nemirovski et al. 2009; Bassily, Smith & Thakurta 2014).
  Momentum β multiplies a step by 1/(1-β).

R is the one number that public numbers do not give. It was measured (docs/results/tuning.md).
"""

from __future__ import annotations

import dataclasses
import math

from tacit import accounting as acc
from tacit.tuning.errors import TuningError

#: The distance R that the weights travel, for gradients clipped at 1. Measured: docs/results/tuning.md.
DISTANCE = 300.0
STEPS = 100
MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Settings of a DP-SGD run, chosen from public numbers only. :func:`good_defaults` makes it.

    Args:
        batch_size: The expected number of records per step.
        steps: The number of steps.
        clip_norm: The L2 norm to which each record's gradient is clipped.
        learning_rate: The learning rate of SGD with this momentum.
        momentum: The momentum, from 0 to below 1.
        noise_multiplier: The standard deviation of the noise, in units of ``clip_norm``.

    Example:
        >>> chosen = Defaults(8192, 100, 1.0, learning_rate=2.5, momentum=0.9, noise_multiplier=1.8)
        >>> chosen.note
        'Settings follow scale rules from public numbers (records, parameters, ε, δ); no data were used.'
    """

    batch_size: int
    steps: int
    clip_norm: float
    learning_rate: float
    momentum: float
    noise_multiplier: float

    @property
    def note(self) -> str:
        """A sentence for the card."""
        return "Settings follow scale rules from public numbers (records, parameters, ε, δ); no data were used."


def noise_for(records: int, batch_size: int, steps: int, epsilon: float, delta: float) -> float:
    """Find the noise of Poisson-sampled DP-SGD for a budget, under add/remove one record.

    Args:
        records: The number of private records, which is treated as public.
        batch_size: The expected number of records per step.
        steps: The number of steps.
        epsilon: The budget.
        delta: The δ of the budget.

    Returns:
        The smallest noise multiplier whose price is within the budget.

    Example:
        >>> round(noise_for(60_000, 4096, 200, 3.0, 1e-5), 2)
        1.6
    """
    rate = batch_size / records
    return acc.calibrate(
        lambda noise: acc.PoissonSampled(acc.Gaussian(noise), rate) * steps, epsilon=epsilon, delta=delta
    )


def batch_for(records: int, steps: int, epsilon: float, delta: float, *, within: float = 1.25) -> int:
    """Find the smallest batch at which the noise per record, σ/B, is nearly as small as with all records.

    Args:
        records: The number of private records, which is treated as public.
        steps: The number of steps.
        epsilon: The budget.
        delta: The δ of the budget.
        within: σ/B may be this factor times its full-batch value, above 1.

    Returns:
        A power of two, or ``records`` if no power of two below it is good enough.

    Raises:
        TuningError: If ``within`` is not above 1.

    Example:
        >>> batch_for(60_000, 200, 3.0, 1e-5)
        4096
    """
    if within <= 1:
        raise TuningError(f"within must be a factor above 1, not {within!r}")
    least = noise_for(records, records, steps, epsilon, delta) / records
    good, batch = records, 2 ** max(0, math.ceil(math.log2(records)) - 1)
    while batch >= 16 and noise_for(records, batch, steps, epsilon, delta) / batch <= within * least:
        good, batch = batch, batch // 2
    return good


def learning_rate_for(
    *,
    steps: int,
    batch_size: int,
    noise_multiplier: float,
    parameters: int,
    clip_norm: float = 1.0,
    momentum: float = MOMENTUM,
    distance: float = DISTANCE,
) -> float:
    """Compute the learning rate (1-β)·R / (C·√(T·(1 + dσ²/B²))) by the scale rule.

    Args:
        steps: The number of steps T.
        batch_size: The expected number of records per step, B.
        noise_multiplier: The noise multiplier σ.
        parameters: The number of trained weights, d.
        clip_norm: The clip norm C.
        momentum: The momentum β, from 0 to below 1.
        distance: How far the weights travel, R. The default was measured on public data.

    Returns:
        The learning rate.

    Example:
        >>> one = learning_rate_for(steps=100, batch_size=1000, noise_multiplier=1.0, parameters=1000)
        >>> half = learning_rate_for(steps=100, batch_size=1000, noise_multiplier=1.0, parameters=1000, clip_norm=2.0)
        >>> round(one / half, 6)
        2.0
    """
    spread = 1 + parameters * (noise_multiplier / batch_size) ** 2
    return (1 - momentum) * distance / (clip_norm * math.sqrt(steps * spread))


def good_defaults(
    records: int,
    parameters: int,
    *,
    epsilon: float,
    delta: float,
    steps: int = STEPS,
    clip_norm: float = 1.0,
    momentum: float = MOMENTUM,
) -> Defaults:
    """Choose batch size, noise and learning rate of DP-SGD from public numbers. No data are used.

    Args:
        records: The number of private records, which is treated as public.
        parameters: The number of trained weights.
        epsilon: The budget of the run.
        delta: The δ of the budget.
        steps: The number of steps.
        clip_norm: The clip norm.
        momentum: The momentum, from 0 to below 1.

    Returns:
        The settings of a run.

    Raises:
        TuningError: If ``records``, ``parameters`` or ``steps`` is below 1.

    Example:
        >>> chosen = good_defaults(60_000, 3930, epsilon=3.0, delta=1e-5)
        >>> chosen.batch_size, chosen.steps
        (8192, 100)
    """
    if records < 1 or parameters < 1 or steps < 1:
        raise TuningError("records, parameters and steps must be positive whole numbers")
    batch = batch_for(records, steps, epsilon, delta)
    noise = noise_for(records, batch, steps, epsilon, delta)
    rate = learning_rate_for(
        steps=steps,
        batch_size=batch,
        noise_multiplier=noise,
        parameters=parameters,
        clip_norm=clip_norm,
        momentum=momentum,
    )
    return Defaults(batch, steps, clip_norm, rate, momentum, noise)
