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
#: A p-value below this is looked at again by simulation, with this many draws.
SUSPECT, SIMULATED = 0.005, 20_000
#: Fewer expected overlaps than this say nothing.
OVERLAPS = 25.0


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


def dispersion_p_value(counts: Any, trials: int, rate: float, *, confirm: bool = True) -> float:
    """Whether counts scatter as independent Binomial(``trials``, ``rate``) counts do, neither more nor less.

    ``confirm`` asks simulated counts before an alarm.

    >>> dispersion_p_value([10] * 500, 100, 0.1) < 1e-9
    True
    """
    values = np.asarray(counts, dtype=np.float64)
    if not 0 < rate < 1:
        return float(bool((values == round(rate) * trials).all()))
    variance = rate * (1 - rate)
    # Cumulants of a binomial count, from them the mean, variance and skewness of its squared deviation, and for the
    # sum over all counts a gamma law that is shifted to have these three.
    k2, k3 = trials * variance, trials * variance * (1 - 2 * rate)
    k4, k6 = trials * variance * (1 - 6 * variance), trials * variance * (1 - 30 * variance + 120 * variance**2)
    fourth, sixth = k4 + 3 * k2**2, k6 + 15 * k4 * k2 + 10 * k3**2 + 15 * k2**3
    spread = fourth - k2**2
    if spread <= 0:  # one trial at rate ½: the squared deviation is a constant
        return 1.0
    skewness = (sixth - 3 * fourth * k2 + 2 * k2**3) / spread**1.5 / math.sqrt(len(values))
    away = float(((values - trials * rate) ** 2).sum() - len(values) * k2) / math.sqrt(len(values) * spread)
    found = _two_sided(*_shifted_gamma(away, skewness))
    if found >= SUSPECT or not confirm:
        return found
    # Few and small counts are too coarse for a smooth law. Before an alarm, ask simulated counts: an honest one is
    # further out than all of them once in so many times.
    draws = int(min(SIMULATED, max(2000, 4e6 / len(values))))
    rng, total = np.random.default_rng(), float(((values - trials * rate) ** 2).sum())
    sums = np.zeros(draws)
    for start in range(0, len(values), 64):
        part = rng.binomial(trials, rate, (min(64, len(values) - start), draws))
        sums += ((part - trials * rate) ** 2).sum(0)
    beyond = min(int((sums >= total * (1 - 1e-12)).sum()), int((sums <= total * (1 + 1e-12)).sum()))
    return found if beyond == 0 else max(found, min(1.0, 2 * (beyond + 1) / draws))


def bins_p_value(counts: Any, *, confirm: bool = True) -> float:
    """Whether records fall into the bins of each pass (``counts``: passes × bins) independently, each as probably.

    Pearson's χ², both sides: equal batches scatter too little. ``confirm`` asks simulated passes before an alarm.

    >>> rng = np.random.default_rng(0)
    >>> bins_p_value(rng.multinomial(200, [0.1] * 10, 50)) > 1e-3, bins_p_value(np.full((50, 10), 20)) < 1e-9
    (True, True)
    """
    values = np.asarray(counts, dtype=np.float64)
    passes, bins = values.shape
    inside = values.sum(1).astype(int)
    if bins < 2 or not inside.all():
        return 1.0

    def away(found: Any) -> Any:
        return ((found - inside[:, None] / bins) ** 2 / (inside[:, None] / bins)).sum((-2, -1))

    total, freedom = float(away(values)), passes * (bins - 1)
    found = _two_sided(float(stats.chi2.cdf(total, freedom)), float(stats.chi2.sf(total, freedom)))
    if found >= SUSPECT or not confirm:
        return found
    draws, rng = int(min(SIMULATED, max(2000, 4e7 / values.size))), np.random.default_rng()
    sums = np.concatenate(
        [
            away(rng.multinomial(inside, [1 / bins] * bins, (part, passes)))
            for part in _pieces(draws, 4_000_000 // values.size)
        ]
    )
    beyond = min(int((sums >= total * (1 - 1e-12)).sum()), int((sums <= total * (1 + 1e-12)).sum()))
    return found if beyond == 0 else max(found, min(1.0, 2 * (beyond + 1) / draws))


def _pieces(count: int, most: int) -> list[int]:
    """``count`` in pieces of at most ``most``, which is taken for 1 or more."""
    most = max(1, most)
    return [most] * (count // most) + ([count % most] if count % most else [])


def _shifted_gamma(x: float, skewness: float) -> tuple[float, float]:
    """P[X ≤ x] and P[X ≥ x] of a gamma law that is shifted and scaled to mean 0, variance 1 and this skewness."""
    if abs(skewness) < 1e-6:
        return float(special.ndtr(x)), float(special.ndtr(-x))
    shape, side = 4 / skewness**2, math.copysign(1.0, skewness)
    at = max(0.0, shape + side * x * math.sqrt(shape))
    below, above = float(special.gammainc(shape, at)), float(special.gammaincc(shape, at))
    return (below, above) if side > 0 else (above, below)


def cosine_p_value(vectors: Any) -> float:
    """Whether some two of these vectors of independent standard normal numbers point along one line.

    The largest cosine over all pairs, with Bonferroni's correction. The square of a cosine between independent
    directions in n dimensions is Beta(1/2, (n - 1)/2).

    >>> rng = np.random.default_rng(0)
    >>> noise = rng.standard_normal((50, 40))
    >>> cosine_p_value(noise) > 1e-3, cosine_p_value(np.vstack([noise, -noise[7]])) < 1e-9
    (True, True)
    """
    values = np.asarray(vectors, dtype=np.float64)
    count, size = values.shape
    if count < 2 or size < 2:
        return 1.0
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    if not (np.isfinite(values).all() and lengths.min() > 0):
        return 0.0
    products = np.abs((values / lengths) @ (values / lengths).T)
    np.fill_diagonal(products, 0.0)
    largest = min(1.0, float(products.max()))
    return float(min(1.0, count * (count - 1) / 2 * stats.beta.sf(largest**2, 0.5, (size - 1) / 2)))


def overlap_p_value(masks: Any) -> float:
    """Whether the same records take part together with earlier steps more, or less, often than independent steps give.

    ``masks`` is steps × records. Given how many records a step has, each choice of so many is equally likely, so the
    centred overlaps of two steps have mean 0 and variance v·w / (records - 1), and their sum is nearly normal.

    >>> rng = np.random.default_rng(0)
    >>> overlap_p_value(rng.random((40, 500)) < 0.1) > 1e-3
    True
    >>> overlap_p_value(np.tile(np.eye(10, dtype=bool).repeat(50, 1), (4, 1))) < 1e-9  # once in each pass
    True
    """
    chosen = np.asarray(masks, dtype=np.float64)
    steps, count = chosen.shape
    inside = chosen.sum(1) * (1 - chosen.sum(1) / count)
    sizes = chosen.sum(1)
    if steps < 2 or count < 3 or (sizes.sum() ** 2 - (sizes**2).sum()) / 2 / count < OVERLAPS or inside.sum() == 0:
        return 1.0
    centred = chosen.sum(0) - chosen.sum() / count
    together = (float(centred @ centred) - inside.sum()) / 2
    variance = float(inside.sum() ** 2 - (inside**2).sum()) / 2 / (count - 1)
    # The sum of products is skewed: a tenth in reserve for that.
    return min(1.0, 10 * 2 * float(special.ndtr(-abs(together) / math.sqrt(max(variance, 1e-300)))))


def _two_sided(low: float, high: float) -> float:
    return min(1.0, 2 * min(low, high))


def smallest_noise_deficit(count: int, significance: float, power: float = 0.99) -> float:
    """By which share noise must be too small to be noticed with probability ``power`` among ``count`` numbers.

    >>> 0.02 < smallest_noise_deficit(20_000, 1e-5) < 0.04
    True
    """
    reach = -float(special.ndtri(significance / 2)) + float(special.ndtri(power))
    return 1 - math.sqrt(max(0.0, 1 - reach * math.sqrt(2 / count)))


def simulated_pass_delta(
    bins: int, noise: float, passes: int, epsilon: float, draws: int, rng: np.random.Generator
) -> tuple[float, float]:
    """δ(ε) of passes in which a record falls into one of ``bins``, by simulation: the larger direction, its error.

    The mixture of N(e_i, σ²) over the bins against N(0, σ²). Knows nothing of tacit.accounting.
    """
    found = []
    for removing in (True, False):
        total = np.zeros(draws)
        for _ in range(passes):
            x = noise * rng.standard_normal((draws, bins))
            if removing:
                x[np.arange(draws), rng.integers(0, bins, draws)] += 1
            loss = special.logsumexp((2 * x - 1) / (2 * noise**2), axis=1) - math.log(bins)
            total += loss if removing else -loss
        gain = -np.expm1(np.minimum(epsilon - total, 0.0))
        found.append((float(gain.mean()), float(gain.std() / math.sqrt(draws))))
    return max(found)


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
