"""What do an attacker's right guesses prove? Lower bounds on ε, each valid with a stated confidence.

Before the run, a fair coin decides for each of ``canaries`` records whether it takes part; the attacker guesses the
coins. An (ε, δ)-DP mechanism limits how often anybody can be right, so an attacker who is right more often refutes it.
The significance is the probability that a bound is wrong although the mechanism keeps its promise.

- :func:`one_run` needs one run and no assumption (Steinke, Nasr and Jagielski, "Privacy auditing with one training
  run", 2023, theorem 5.2). :class:`Weights` is the same theorem for guesses that count more the surer they are.
- :func:`one_run_f` is the sharper bound for a whole trade-off curve (Mahloujifar, Melis and Chaudhuri, "Auditing
  f-differential privacy in one run", 2024, algorithm 3).
- :func:`two_worlds` needs independent repeats with and without one record. It uses Clopper-Pearson intervals of the
  error rates (Jagielski, Ullman and Oprea 2020). :func:`gaussian` reads the same rates as those of a Gaussian mechanism
  (Nasr et al., "Tight auditing of differentially private machine learning", 2023).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy import optimize, special, stats

#: The search for ε stops here.
LARGEST = 60.0
NORMAL = NormalDist()

#: For a bound R on the probability of one error, the least probability of the other event: f̄⁻¹ of the trade-off curve.
Blow = Callable[[float], float]


def _check_guesses(guesses: int, correct: int, canaries: int) -> None:
    if not 0 <= correct <= guesses <= canaries or canaries < 1:
        raise ValueError(
            f"{correct} right of {guesses} guesses about {canaries} canaries is not possible: give 0 <= correct <= "
            "guesses <= canaries"
        )


def _check_significance(significance: float) -> None:
    if not 0 < significance < 1:
        raise ValueError(f"significance must lie between 0 and 1, not {significance!r}")


# -- one run -----------------------------------------------------------------------------------------------------------


def one_run_p_value(guesses: int, correct: int, canaries: int, epsilon: float, delta: float = 0.0) -> float:
    """The largest probability that an (ε, δ)-DP mechanism allows for ``correct`` or more right ``guesses``.

    >>> one_run_p_value(100, 100, 1000, epsilon=3.4, delta=1e-5) < 0.05
    True
    """
    _check_guesses(guesses, correct, canaries)
    q = float(special.expit(epsilon))
    beta = float(stats.binom.sf(correct - 1, guesses, q))
    alpha = 0.0
    if delta > 0 and correct > 0:
        i = np.arange(1, correct + 1)
        alpha = float(np.max((stats.binom.sf(correct - i - 1, guesses, q) - beta) / i))
    return min(1.0, beta + 2 * canaries * delta * alpha)


def one_run(guesses: int, correct: int, canaries: int, delta: float = 0.0, significance: float = 0.05) -> float:
    """The largest ε that the guesses about one run refute.

    Guarantee:
        If each of ``canaries`` records was included independently with probability ½, and the run is (ε, δ)-DP for
        adding or removing one of them, then the bound exceeds ε with probability at most ``significance``.

    Args:
        guesses: How many canaries the attacker guessed about; he may abstain from the rest.
        correct: How many of these guesses were right.
        canaries: How many canaries there were in all.
        delta: δ of the claim; 0 means pure ε.
        significance: Probability that the bound is wrong; 0.05 gives 95% confidence. The number of guesses must be
            fixed in advance: divide the significance by the number of bounds that you compare.

    Returns:
        The lower bound on ε; 0 if nothing is refuted, at most 60.

    Raises:
        ValueError: If the counts are impossible or ``significance`` does not lie between 0 and 1.

    Example:
        >>> round(one_run(1000, 1000, 1000, delta=1e-5), 2), round(one_run(100, 100, 1000, delta=1e-5), 2)
        (5.78, 3.47)
    """
    _check_significance(significance)

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(guesses, correct, canaries, epsilon, delta) <= significance

    return _largest(refuted, LARGEST)


@dataclasses.dataclass(frozen=True)
class Weights:
    """How much the guess about the canary of each rank counts, in whole units; fixed before the run.

    Theorem 5.2 of Steinke, Nasr and Jagielski (2023) is about guesses in [-1, 1]: the sum of |guess| over the right
    ones is at most Σ |guess|·Bernoulli(e^ε / (1 + e^ε)), plus what a failure of probability δ adds, at most 1 for each
    canary. ``below`` holds the weights of the canaries with the lowest scores, about which the attacker says "out",
    lowest first; ``above`` those of the highest, lowest first. The largest weight is ``unit``.

    >>> Weights((4, 2), (1, 4), 4).right([0.1, 0.2, 0.7, 0.8, 0.9], [0, 1, 1, 1, 0])
    5
    """

    below: tuple[int, ...]
    above: tuple[int, ...]
    unit: int

    @property
    def guesses(self) -> int:
        """How many guesses count at all."""
        return sum(w > 0 for w in (*self.below, *self.above))

    @property
    def total(self) -> int:
        """The sum if every guess is right."""
        return sum(self.below) + sum(self.above)

    def right(self, scores: Any, member: Any) -> int:
        """The sum of the weights of right guesses. Ties are broken in an order that knows nothing of the coins."""
        values, coins = np.asarray(scores, dtype=np.float64), np.asarray(member).astype(bool)
        order = coins[np.lexsort((np.random.default_rng(20_230_515).permutation(len(values)), values))]
        low, high = np.asarray(self.below, np.int64), np.asarray(self.above, np.int64)
        return int(low @ ~order[: len(low)] + high @ order[len(order) - len(high) :])

    def p_value(self, right: int, canaries: int, epsilon: float, delta: float) -> float:
        """The largest probability that an (ε, δ)-DP mechanism allows for ``right`` or more.

        >>> one = Weights((1,) * 50, (1,) * 50, 1).p_value(90, 1000, 1.0, 1e-5)
        >>> abs(one - one_run_p_value(100, 90, 1000, 1.0, 1e-5)) < 1e-12
        True
        """
        if right <= 0:
            return 1.0
        tail = self._tail(float(special.expit(epsilon)))
        beta = float(tail[right]) if right < len(tail) else 0.0
        alpha = 0.0
        if delta > 0:
            i = np.arange(1, right // self.unit + 2)
            alpha = float(np.max((tail[np.maximum(right - i * self.unit, 0)] - beta) / i))
        return min(1.0, beta + 2 * canaries * delta * alpha)

    def least(self, canaries: int, epsilon: float, delta: float, significance: float) -> int:
        """The smallest sum of right guesses that refutes (ε, δ); more than there is, if none does."""
        low, high = 0, self.total + 1
        while high - low > 1:
            middle = (low + high) // 2
            refuted = self.p_value(middle, canaries, epsilon, delta) <= significance
            low, high = (low, middle) if refuted else (middle, high)
        return high

    def _tail(self, q: float) -> Any:
        """P[Σ w·Bernoulli(q) ≥ k] for every k, by the product of the characteristic functions."""
        size = 1 << (self.total + 1).bit_length()
        z = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
        product = np.ones(len(z), dtype=complex)
        counts = np.bincount([w for w in (*self.below, *self.above) if w])
        for weight in np.flatnonzero(counts).tolist():
            product *= (1 - q + q * z**weight) ** int(counts[weight])
        mass = np.fft.irfft(product, size)[: self.total + 1]
        # Rounding of the transform is below 1e-13; it is added, so that no p-value is too small.
        return np.minimum(1.0, np.cumsum(np.maximum(mass, 0.0)[::-1])[::-1] + 1e-13)

    def bound(self, right: int, canaries: int, delta: float, significance: float, within: float = 1e-4) -> float:
        """The largest ε that is refuted at δ, approached from below to ``within``."""
        _check_significance(significance)
        return _largest(lambda e: self.p_value(right, canaries, e, delta) <= significance, LARGEST, within)


def _largest(refuted: Callable[[float], bool], top: float, within: float = 1e-6) -> float:
    """The largest refuted value, approached from below; refutation is monotone."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if low >= top:
            return top
    while high - low > within * max(1.0, high):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


# -- one run, f-DP -----------------------------------------------------------------------------------------------------


def gaussian_blow(mu: float) -> Blow:
    """f̄⁻¹ of μ-Gaussian DP: Φ(Φ⁻¹(R) - μ)."""

    def blow(r: float) -> float:
        if r <= 0 or r >= 1:
            return float(r >= 1)
        return NORMAL.cdf(NORMAL.inv_cdf(r) - mu)

    return blow


def approximate_blow(epsilon: float, delta: float) -> Blow:
    """f̄⁻¹ of (ε, δ)-DP: max(0, e^-ε (R - δ), 1 - δ - e^ε (1 - R))."""
    small, large = math.exp(-epsilon), math.exp(epsilon) if epsilon < 700 else math.inf
    return lambda r: max(0.0, small * (r - delta), 1 - delta - (large * (1 - r) if r < 1 else 0.0))


def refutes(guesses: int, correct: int, canaries: int, blow: Blow, significance: float = 0.05) -> bool:
    """Whether one run's guesses refute a whole trade-off curve.

    Guarantee:
        If the run keeps the curve (add/remove one, each of ``canaries`` included with probability ½), this is true with
        probability at most ``significance``.

    >>> refutes(200, 196, 1000, gaussian_blow(1.0)), refutes(200, 160, 1000, gaussian_blow(1.0))
    (True, False)
    """
    _check_guesses(guesses, correct, canaries)
    _check_significance(significance)
    if guesses == 0:
        return False
    r, h = significance * correct / canaries, significance * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        higher = max(h, blow(r))
        r = min(1.0, r + i / (guesses - i) * (higher - h))
        h = higher
    return r + h > guesses / canaries


def one_run_f(guesses: int, correct: int, canaries: int, delta: float, significance: float = 0.05) -> float:
    """The ε at δ of the largest Gaussian trade-off curve that the guesses about one run refute.

    What this proves is that the run is not μ-Gaussian DP. The number returned is the ε of μ at δ, as auditing papers
    report it. The curve of a run with many composed steps is close to a Gaussian one. :func:`one_run` makes no such
    assumption.

    Guarantee:
        If each canary was included with probability ½ and the run is μ-Gaussian DP for adding or removing one of them,
        the bound exceeds the ε of μ at δ with probability at most ``significance``.

    Args:
        guesses: How many canaries the attacker guessed about.
        correct: How many of these guesses were right.
        canaries: How many canaries there were in all.
        delta: The δ at which μ is stated as ε.
        significance: Probability that the bound is wrong; 0.05 gives 95% confidence.

    Returns:
        The lower bound, as ε at δ; 0 if nothing is refuted.

    Raises:
        ValueError: If the counts are impossible or ``significance`` does not lie between 0 and 1.

    Example:
        >>> one_run_f(100, 100, 1000, delta=1e-5) > one_run(100, 100, 1000, delta=1e-5)
        True
    """
    _check_significance(significance)

    def refuted(mu: float) -> bool:
        return refutes(guesses, correct, canaries, gaussian_blow(mu), significance)

    return gaussian_epsilon(_largest(refuted, 12.0), delta)


def one_run_approximate(guesses: int, correct: int, canaries: int, delta: float, significance: float = 0.05) -> float:
    """The largest ε such that the trade-off curve of (ε, δ)-DP is refuted: sharper if hardly any guess is wrong.

    >>> one_run_approximate(5000, 5000, 5000, 1e-5, 0.005) > one_run(5000, 5000, 5000, 1e-5, 0.005)
    True
    """
    _check_significance(significance)

    def refuted(epsilon: float) -> bool:
        return refutes(guesses, correct, canaries, approximate_blow(epsilon, delta), significance)

    return _largest(refuted, LARGEST, 1e-4)


def plan_blow(epsilons: Sequence[float], deltas: Sequence[float]) -> Blow:
    """f̄⁻¹ of a mechanism whose δ at each of some ε is known (upper ends): the largest of its (ε, δ) curves.

    Guarantee:
        A mechanism that keeps every pair (ε, δ) keeps this curve, so what refutes the curve refutes one of the pairs.

    >>> blow = plan_blow([0.0, 1.0, 2.0], [gaussian_delta(1.0, e) for e in (0.0, 1.0, 2.0)])
    >>> blow(0.5) <= gaussian_blow(1.0)(0.5)
    True
    """
    small, large = np.exp(-np.asarray(epsilons, float)), np.exp(np.minimum(np.asarray(epsilons, float), 700))
    stated = np.asarray(deltas, float)

    def blow(r: float) -> float:
        lines = np.maximum(small * (r - stated), 1 - stated - large * (1 - r))
        return float(min(1.0, max(0.0, lines.max())))

    return blow


def curve_p_value(guesses: int, correct: int, canaries: int, blow: Blow, least: float = 1e-9) -> float:
    """The smallest significance at which the guesses refute a trade-off curve; 1 if none below ½ does.

    >>> curve_p_value(200, 196, 1000, gaussian_blow(1.0)) < 0.05 < curve_p_value(200, 160, 1000, gaussian_blow(1.0))
    True
    """
    if not refutes(guesses, correct, canaries, blow, 0.5):
        return 1.0
    low, high = math.log(least), math.log(0.5)
    if refutes(guesses, correct, canaries, blow, least):
        return least
    while high - low > 0.01:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if refutes(guesses, correct, canaries, blow, math.exp(middle)) else (middle, high)
    return math.exp(high)


# -- Gaussian DP -------------------------------------------------------------------------------------------------------


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of μ-Gaussian DP (Dong, Roth and Su 2022, corollary 2.13).

    >>> round(gaussian_delta(1.0, 1.0), 5)
    0.12694
    """
    if mu <= 0:
        return 0.0
    a, b = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return float(special.ndtr(a) - math.exp(min(epsilon + special.log_ndtr(b), 0.0)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε of μ-Gaussian DP at δ.

    >>> round(gaussian_epsilon(1.0, 1e-5), 2)
    4.38
    """
    if mu <= 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    if delta <= 0 or math.isinf(mu):
        return math.inf
    high = mu * mu / 2 + mu * 40 + 1
    return float(optimize.brentq(lambda e: gaussian_delta(mu, e) - delta, 0.0, high, xtol=1e-10))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The μ whose Gaussian DP has ε at δ: the inverse of :func:`gaussian_epsilon`.

    >>> round(gaussian_mu(gaussian_epsilon(1.0, 1e-5), 1e-5), 6)
    1.0
    """
    high = 1.0
    while gaussian_epsilon(high, delta) < epsilon:
        high *= 2
    return float(optimize.brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 0.0, high, xtol=1e-9))


# -- two worlds --------------------------------------------------------------------------------------------------------


def clopper_pearson(hits: int, trials: int, significance: float) -> tuple[float, float]:
    """An interval for a probability; each end is wrong with probability at most ``significance``.

    >>> clopper_pearson(0, 1000, 0.05)[1] < 0.003
    True
    """
    if not 0 <= hits <= trials:
        raise ValueError(f"{hits} hits in {trials} trials is not possible")
    low = float(stats.beta.ppf(significance, hits, trials - hits + 1)) if hits else 0.0
    high = float(stats.beta.isf(significance, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


@dataclasses.dataclass(frozen=True)
class Errors:
    """How often an attacker was wrong about one record.

    Args:
        false_alarms: Repeats without the record in which the attacker said that it was there.
        without: How many repeats there were without the record.
        missed: Repeats with the record in which the attacker said that it was not there.
        with_it: How many repeats there were with the record.
    """

    false_alarms: int
    without: int
    missed: int
    with_it: int

    def upper(self, significance: float) -> tuple[float, float]:
        """Upper bounds on both error rates that hold together; each takes half of the significance."""
        return (
            clopper_pearson(self.false_alarms, self.without, significance / 2)[1],
            clopper_pearson(self.missed, self.with_it, significance / 2)[1],
        )


def two_worlds(errors: Errors, delta: float = 0.0, significance: float = 0.05) -> float:
    """The ε that the error rates refute: ln((TPR - δ) / FPR), or the same with the worlds exchanged.

    Guarantee:
        For independent repeats and a test that was fixed before them, the bound exceeds the ε of an (ε, δ)-DP mechanism
        with probability at most ``significance``. Neighbours are the two data sets of the repeats.

    Args:
        errors: How often the attacker was wrong, as ``tacit.audit.bounds.Errors``.
        delta: δ of the claim; 0 means pure ε.
        significance: Probability that the bound is wrong; 0.05 gives 95% confidence.

    Returns:
        The lower bound on ε; 0 if nothing is refuted.

    Raises:
        ValueError: If a count is impossible or ``significance`` does not lie between 0 and 1.

    Example:
        >>> from tacit.audit.bounds import Errors
        >>> round(two_worlds(Errors(false_alarms=0, without=1000, missed=0, with_it=1000)), 2)
        5.6
    """
    _check_significance(significance)
    alarms, missed = errors.upper(significance)
    found = [0.0]
    for wrong, other in ((alarms, missed), (missed, alarms)):
        if 1 - other - delta > 0 and wrong > 0:
            found.append(math.log((1 - other - delta) / wrong))
    return max(found)


def gaussian(errors: Errors, delta: float, significance: float = 0.05) -> float:
    """The ε at δ of the Gaussian mechanism that the error rates refute: μ ≥ Φ⁻¹(1 - FPR) - Φ⁻¹(FNR).

    This certifies something for independent repeats of an unsampled Gaussian mechanism only. Otherwise it is an
    estimate.

    Args:
        errors: How often the attacker was wrong, as ``tacit.audit.bounds.Errors``.
        delta: The δ at which μ is stated as ε.
        significance: Probability that the bound on μ is wrong; 0.05 gives 95% confidence.

    Returns:
        The bound or estimate, as ε at δ; 0 if nothing is refuted.

    Raises:
        ValueError: If a count is impossible or ``significance`` does not lie between 0 and 1.

    Example:
        >>> from tacit.audit.bounds import Errors
        >>> round(gaussian(Errors(false_alarms=0, without=1000, missed=0, with_it=1000), delta=1e-5), 1)
        36.5
    """
    _check_significance(significance)
    alarms, missed = errors.upper(significance)
    if alarms >= 1 or missed >= 1:
        return 0.0
    mu = NORMAL.inv_cdf(1 - alarms) - NORMAL.inv_cdf(missed)
    return gaussian_epsilon(mu, delta)


def gaussian_accuracy(errors: Errors, delta: float, significance: float = 0.05) -> float:
    """The ε at δ of the Gaussian mechanism that the number of right answers refutes, both worlds together.

    Of π the share of repeats with the record, nobody tells N(0, 1) from N(μ, 1) with a larger probability on average
    than the best threshold, μ/2 + ln((1 - π)/π)/μ. The number of right answers is a sum of independent ones with that
    mean, and is beyond it no more often than a binomial number (Hoeffding 1956, theorem 4).

    Guarantee:
        For independent repeats of a μ-Gaussian DP mechanism and a test that was fixed before them, the bound exceeds
        the ε of μ at δ with probability at most ``significance``.

    >>> gaussian_accuracy(Errors(160, 500, 160, 500), 1e-5) > gaussian(Errors(160, 500, 160, 500), 1e-5)
    True
    """
    _check_significance(significance)
    count = errors.without + errors.with_it
    right, share = count - errors.false_alarms - errors.missed, errors.with_it / count

    def refuted(mu: float) -> bool:
        at = mu / 2 + math.log((1 - share) / share) / mu if mu > 0 else 0.0
        most = (1 - share) * NORMAL.cdf(at) + share * NORMAL.cdf(mu - at) if mu > 0 else max(share, 1 - share)
        return right >= count * most + 1 and float(stats.binom.sf(right - 1, count, most)) <= significance

    return gaussian_epsilon(_largest(refuted, 12.0), delta)
