"""Is this noise what it should be, and are these choices independent? Tests with p-values, and what they can see.

Every function answers one question about numbers that an audit observed, as a p-value: how probable is something at
least this odd where the implementation is right? It is below p with probability at most p, by an exact law or by an
inequality that its docstring names; none rests on a limit theorem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import fft, optimize, special, stats

Floats = npt.NDArray[np.float64]
#: A p-value below this is looked at again by simulation, with this many draws.
SUSPECT, SIMULATED = 0.005, 20_000
#: Probability that a sum of squares, or a number of hits, lies outside the range in which a bound is used.
OUTSIDE = 1e-12
#: Sizes of a sum, in standard deviations, for which :func:`overlap_p_value` has a bet each.
BETS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0)
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
    """Whether numbers are standard normal: the largest distance of their distribution, by Massart's inequality.

    >>> rng = np.random.default_rng(0)
    >>> shape_p_value(rng.standard_normal(20_000)) > 1e-3, shape_p_value(rng.uniform(-1.7, 1.7, 20_000)) < 1e-9
    (True, True)
    """
    return _massart(np.asarray(standardised, dtype=np.float64).ravel(), 0.0)


def normal_shape_p_value(values: Any) -> float:
    """Whether numbers are normal with the deviation that they show, where 1 is the claimed one.

    The distance from Φ(x/s) is at most the distance from Φ(x) and the distance between the two, which is taken off.
    """
    numbers = np.asarray(values, dtype=np.float64).ravel()
    size = math.sqrt(float(np.mean(numbers**2)))
    if size == 0 or not math.isfinite(size):
        return 0.0
    # Φ(sx) - Φ(x) is largest where both densities, s·φ(sx) and φ(x), are equal.
    at = 1.0 if size == 1 else math.sqrt(2 * math.log(size) / (size**2 - 1))
    return _massart(numbers / size, abs(float(special.ndtr(size * at) - special.ndtr(at))))


def _massart(numbers: Floats, less: float) -> float:
    if not np.isfinite(numbers).all():
        return 0.0
    below, count = special.ndtr(np.sort(numbers)), len(numbers)
    steps = np.arange(count + 1) / count
    distance = max(float((steps[1:] - below).max()), float((below - steps[:-1]).max())) - less
    return min(1.0, 2 * math.exp(-2 * count * max(0.0, distance) ** 2))


def repetition_p_value(sequence: Any, lags: int | None = None) -> float:
    """Whether a sequence of independent normal numbers repeats itself, at any distance up to half its length.

    The largest correlation over all distances, of numbers of mean 0 and any deviation. A stream used twice (the same
    noise at every step, in every shard, in every worker, for two parameters) shows at the distance of its copies.

    Let S be the sum of x_i·x_(i+k), W that of x_i². Given what came before, x_(i+k) is normal, so exp(cS - c²W/2) has
    mean 1, and S ≥ cW with W ≥ w has probability at most exp(-c²w/2). W is χ² and falls below w with probability 1e-12.
    Bonferroni over distances and both signs.

    >>> rng = np.random.default_rng(0)
    >>> once = rng.standard_normal(1000)
    >>> repetition_p_value(np.tile(once, 10)) < 1e-8, repetition_p_value(rng.standard_normal(10_000)) > 1e-3
    (True, True)
    """
    values = np.asarray(sequence, dtype=np.float64).ravel()
    count = len(values)
    if count < 20 or not np.isfinite(values).all():
        return 0.0 if count and not np.isfinite(values).all() else 1.0
    if not values.any():
        return 0.0
    products, most = _at_distances(values, lags)
    squares = np.cumsum(values**2)[count - 1 - np.arange(1, most + 1)]
    least = stats.chi2.ppf(OUTSIDE / most, count - np.arange(1, most + 1, dtype=np.float64))
    largest = float(np.max((products / np.maximum(squares, 1e-300)) ** 2 * least))
    return min(1.0, OUTSIDE + 2 * most * math.exp(-largest / 2))


def coincidence_p_value(choices: Any, rate: float) -> float:
    """Whether independent choices, each made with probability ``rate``, repeat themselves or avoid each other.

    Counts, at every distance k up to half the length, how often both of two choices were made. Of the choices that lie
    k behind one that was made, any fixed number m are independent of probability ``rate``, because what was made before
    says nothing about them (a selection rule cannot change the law of a fair game). So the count is at most a
    Binomial(m, rate) number where m or fewer were made, and at least one where m or more were; m is the number that is
    exceeded, or not reached, with probability 1e-12. Bonferroni over distances and both sides.

    >>> rng = np.random.default_rng(0)
    >>> once = rng.random(1000) < 0.02
    >>> coincidence_p_value(np.tile(once, 10), 0.02) < 1e-8, coincidence_p_value(rng.random(10_000) < 0.02, 0.02) > 1e-3
    (True, True)
    """
    made = np.asarray(choices, dtype=np.float64).ravel()
    count = len(made)
    if count < 20 or not 0 < rate < 1:
        return 1.0
    both, most = _at_distances(made, None)
    both, trials = np.rint(both), count - np.arange(1, most + 1)
    usual, spread = trials * rate**2, np.sqrt(trials * rate**2)
    worst = 1.0
    # Only the distances that stand out: a smaller set of them can only make the p-value larger.
    for places in (np.argsort((usual - both) / spread)[:200], np.argsort((both - usual) / spread)[:200]):
        high = stats.binom.isf(OUTSIDE / most, trials[places], rate)
        low = stats.binom.ppf(OUTSIDE / most, trials[places], rate)
        many = stats.binom.sf(both[places] - 1, high, rate)
        few = stats.binom.cdf(both[places], np.maximum(low, 0), rate)
        worst = min(worst, float(np.nanmin(many)), float(np.nanmin(few)))
    return min(1.0, 2 * OUTSIDE + 2 * most * worst)


def _at_distances(values: Floats, lags: int | None) -> tuple[Floats, int]:
    """Sums of products of a sequence with itself, at distances from 1 to the largest, and the largest."""
    count = len(values)
    most = min(lags or count // 2, count // 2)
    size = fft.next_fast_len(count + most + 1, real=True)
    spectrum = fft.rfft(values, size)
    found: Floats = fft.irfft(spectrum * spectrum.conj(), size)[1 : most + 1]
    return found, most


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

    The sum T of squared deviations, by Chernoff's inequality with the exact law of one count: T is as large with
    probability at most the smallest E[exp(a(x - mean)²)]^n·exp(-aT) over a > 0, and as small with the same over a < 0.

    >>> dispersion_p_value([10] * 500, 100, 0.1) < 1e-9
    True
    """
    values = np.asarray(counts, dtype=np.float64)
    if not 0 < rate < 1:
        return float(bool((values == round(rate) * trials).all()))
    variance = trials * rate * (1 - rate)
    support = np.arange(trials + 1)
    law, squares = stats.binom.logpmf(support, trials, rate), (support - trials * rate) ** 2 / variance
    likely = law > -700  # what is left out has no probability that a number of this kind can hold
    law, squares = law[likely], squares[likely]
    mean = float(((values - trials * rate) ** 2).mean()) / variance

    def exponent(slope: float) -> float:
        return float(special.logsumexp(law + slope * squares)) - slope * mean

    sides = (0.0, 2.0) if mean > 1 else (-max(4.0, 4 / max(mean, 1e-6)), 0.0)
    best = optimize.minimize_scalar(exponent, bounds=sides, method="bounded", options={"xatol": 1e-4}).fun
    return min(1.0, 2 * math.exp(min(0.0, len(values) * float(best))))


def bins_p_value(counts: Any, *, confirm: bool = True) -> float:
    """Whether records fall into the bins of each pass (``counts``: passes × bins) independently, each as probably.

    Pearson's χ², both sides: equal batches scatter too little. ``confirm`` asks 20,000 simulated ones before an alarm,
    and a p-value below 1e-4 then needs one further out than all of them: that happens once in 10,000 honest runs.

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
    draws, rng = SIMULATED, np.random.default_rng()
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

    ``masks`` is steps × records. Given how many records a step has, each choice of so many is equally likely. Draws
    without replacement have no larger exponential moment than draws with it (Hoeffding 1963). So for every a that the
    sizes of the batches fix, exp(a·S) over the product of these moments, S the centred overlaps with earlier steps, has
    mean 1 at most; the mean over several a is a bet against independence, and pays 1/p with probability at most p.

    >>> rng = np.random.default_rng(0)
    >>> overlap_p_value(rng.random((40, 500)) < 0.1) > 1e-3
    True
    >>> overlap_p_value(np.tile(np.eye(10, dtype=bool).repeat(50, 1), (4, 1))) < 1e-9  # once in each pass
    True
    """
    chosen = np.asarray(masks, dtype=bool)
    steps, count = chosen.shape
    sizes = chosen.sum(1)
    if steps < 2 or count < 3 or (sizes.sum() ** 2 - (sizes**2).sum()) / 2 / count < OVERLAPS:
        return 1.0
    fewer = np.minimum(sizes, count - sizes)  # a draw of most records is a draw of those that are left out
    inside = sizes * (1 - sizes / count)
    variance = float((fewer[1:] * np.cumsum(inside)[:-1]).sum()) / count
    if variance <= 0:
        return 1.0
    slopes = np.array([sign * bet for sign in (1, -1) for bet in BETS]) / math.sqrt(variance)
    won, before = np.zeros(len(slopes)), np.zeros(count, dtype=np.int64)
    for step in range(steps):
        if before.any() and 0 < sizes[step] < count:
            times, number = np.unique(before, return_counts=True)
            away = times - before.mean()
            most = np.log(np.exp(slopes[:, None] * away) @ (number / count))
            less = np.log(np.exp(-slopes[:, None] * away) @ (number / count))
            moment = fewer[step] * (most if sizes[step] == fewer[step] else less)
            won += slopes * float((before[chosen[step]] - before.mean()).sum()) - moment
        before += chosen[step]
    return min(1.0, math.exp(min(700.0, -float(special.logsumexp(won) - math.log(len(slopes))))))


def hits_p_value(hits: int, trials: int, rate: float) -> float:
    """Whether so many of draws without replacement hit: Chernoff's bound with replacement, which is larger (Hoeffding).

    >>> hits_p_value(100, 1000, 0.1), hits_p_value(200, 1000, 0.1) < 1e-9
    (1.0, True)
    """
    seen = hits / trials
    apart = special.rel_entr(seen, rate) + special.rel_entr(1 - seen, 1 - rate)
    return min(1.0, 2 * math.exp(-trials * float(apart)))


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
