"""Is this noise what it should be, and are these choices independent? Tests with p-values, and what they can see.

Every function answers one question about numbers that an audit observed, as a p-value: how probable is something at
least this odd where the implementation is right?
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import fft, special, stats

Floats = npt.NDArray[np.float64]


def variance_p_value(standardised: Any) -> float:
    """χ² of numbers that should be independent standard normal: both too small and too large are odd.

    >>> rng = np.random.default_rng(0)
    >>> variance_p_value(rng.standard_normal(20_000)) > 1e-3, variance_p_value(0.9 * rng.standard_normal(20_000)) < 1e-9
    (True, True)
    """
    values = np.asarray(standardised, dtype=np.float64).ravel()
    if not np.isfinite(values).all():
        return 0.0
    total = float(values @ values)
    return _two_sided(float(stats.chi2.cdf(total, len(values))), float(stats.chi2.sf(total, len(values))))


def mean_p_value(standardised: Any) -> float:
    """Whether the mean of standard normal numbers is zero."""
    values = np.asarray(standardised, dtype=np.float64).ravel()
    return float(2 * special.ndtr(-abs(values.sum()) / math.sqrt(len(values))))


def shape_p_value(standardised: Any) -> float:
    """Kolmogorov-Smirnov: whether numbers are standard normal."""
    return float(stats.kstest(np.asarray(standardised, dtype=np.float64).ravel(), "norm").pvalue)


def repetition_p_value(sequence: Any, lags: int | None = None) -> float:
    """Whether a sequence of independent standardised numbers repeats itself, at any distance up to half its length.

    The largest autocorrelation over all lags, with Bonferroni's correction. A stream used twice (the same noise at
    every step, in every shard, in every worker, for two parameters) shows at the distance of its copies.

    >>> rng = np.random.default_rng(0)
    >>> once = rng.standard_normal(1000)
    >>> repetition_p_value(np.tile(once, 10)) < 1e-9, repetition_p_value(rng.standard_normal(10_000)) > 1e-3
    (True, True)
    """
    values = np.asarray(sequence, dtype=np.float64).ravel()
    count = len(values)
    if count < 20 or not np.isfinite(values).all():
        return 0.0 if count and not np.isfinite(values).all() else 1.0
    spread = values.std()
    if spread == 0:
        return 0.0
    values = (values - values.mean()) / spread
    most = min(lags or count // 2, count // 2)
    size = fft.next_fast_len(count + most + 1, real=True)
    spectrum = fft.rfft(values, size)
    products = fft.irfft(spectrum * spectrum.conj(), size)[1 : most + 1]
    pairs = count - np.arange(1, most + 1)
    largest = float(np.max(np.abs(products) / np.sqrt(pairs)))
    # Products of skewed numbers have heavier tails than a normal law: a hundredth in reserve for that.
    return min(1.0, 100 * 2 * most * float(special.ndtr(-largest)))


def frequency_p_value(hits: int, trials: int, rate: float) -> float:
    """Whether ``hits`` of ``trials`` happen with probability ``rate``: exact binomial test, both sides.

    >>> frequency_p_value(100, 1000, 0.1) > 0.9
    True
    """
    if not 0 < rate < 1:
        return float(hits == round(rate) * trials)
    return _two_sided(float(stats.binom.cdf(hits, trials, rate)), float(stats.binom.sf(hits - 1, trials, rate)))


def dispersion_p_value(counts: Any, trials: int, rate: float) -> float:
    """Whether counts scatter as independent Binomial(``trials``, ``rate``) counts do, neither more nor less.

    >>> dispersion_p_value([10] * 500, 100, 0.1) < 1e-9
    True
    """
    values = np.asarray(counts, dtype=np.float64)
    if not 0 < rate < 1:
        return float(bool((values == round(rate) * trials).all()))
    variance = trials * rate * (1 - rate)
    total = float(((values - trials * rate) ** 2).sum() / variance)
    # The sum has mean k and variance 2k + k·excess; a gamma law with these two moments.
    excess = (1 - 6 * rate * (1 - rate)) / variance
    k = len(values)
    scale = (2 + excess) / 1.0
    shape = k / scale
    return _two_sided(
        float(stats.gamma.cdf(total, shape, scale=scale)), float(stats.gamma.sf(total, shape, scale=scale))
    )


def _two_sided(low: float, high: float) -> float:
    return min(1.0, 2 * min(low, high))


def smallest_noise_deficit(count: int, significance: float, power: float = 0.99) -> float:
    """By which share noise must be too small to be noticed with probability ``power`` among ``count`` numbers.

    >>> 0.02 < smallest_noise_deficit(20_000, 1e-5) < 0.04
    True
    """
    reach = -float(special.ndtri(significance / 2)) + float(special.ndtri(power))
    return 1 - math.sqrt(max(0.0, 1 - reach * math.sqrt(2 / count)))


def simulated_delta(
    rate: float, noises: Sequence[float], epsilon: float, draws: int, rng: np.random.Generator
) -> tuple[float, float]:
    """δ(ε) of Poisson-sampled Gaussian steps by simulating the privacy loss: the larger of both directions, its error.

    ``noises`` holds one noise multiplier a step.

    δ = E[(1 - e^(ε - L))₊] where L is the sum of the losses of the steps, drawn under the first of the two worlds
    (removing and adding one record: (1 - q)N(0, σ²) + qN(1, σ²) against N(0, σ²)). Knows nothing of tacit.accounting.
    """
    found = []
    for removing in (True, False):
        total = np.zeros(draws)
        for noise in noises:
            x = noise * rng.standard_normal(draws)
            if removing:
                x += rng.random(draws) < rate
            loss = np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))
            total += loss if removing else -loss
        gain = -np.expm1(np.minimum(epsilon - total, 0.0))
        found.append((float(gain.mean()), float(gain.std() / math.sqrt(draws))))
    return max(found)
