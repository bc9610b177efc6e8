"""How do scores of canaries become a verdict? Thresholds, the correction for using several, and what was possible.

A score says how strongly a record seems to have taken part. :func:`one_run_evidence` and :func:`two_world_evidence`
turn scores and coins into :class:`Evidence`: the certified lower bound on ε, further figures, and the best bound that
so many canaries or repeats could have reached. Without the last one, a low bound means nothing.

What is looked at is fixed before the run, from the claim alone: how many canaries the attacker guesses about, how much
each guess counts, and which part of the significance it gets (:func:`looks`). A choice that depends on the scores would
have to be paid for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from tacit.audit import bounds

Floats = npt.NDArray[np.float64]

#: Parts of the significance: for what a run at the claim would show, for what refutes the claim, for guesses about all;
#: of a certificate, and of a refutation.
CERTIFYING, REFUTING = (0.88, 0.02, 0.1), (0.1, 0.8, 0.1)
Parts = tuple[float, float, float]
#: Whole units of the largest weight.
UNIT = 16
#: The ε for which guesses are weighed if none is claimed.
USUAL = 4.0
#: Which shares of the claimed ε weights are tried for: a run at its claim proves a quarter to a half of it.
SHARES = (0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
#: How many times the claimed μ a run may have that the second look is made for, smallest first.
TIMES = (1.5, 2.0, 3.0, 4.0, 6.0, 10.0)
#: Thresholds of a two-world test: quantiles of scores that serve no other purpose.
QUANTILES = (0.02, 0.1, 0.5, 0.9, 0.98)
#: Share of the repeats that choose these thresholds.
CHOOSING = 0.1


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What an attack showed about ε at δ.

    Args:
        method: How the bound was derived: ``one-run``, ``two worlds``, or these with the kind of canaries.
        certified: The lower bound on ε. It is wrong with probability at most ``significance``.
        best: What ``certified`` would have been if the attacker had never been wrong.
        delta: The δ at which ε is bounded.
        significance: Probability that ``certified`` is wrong; 0.05 is 95% confidence.
        figures: Every bound that was computed, by its name.
        estimates: Names of those figures that rest on an untested assumption.
        details: How many canaries or repeats there were, and the errors at each threshold.
        refuting: The lower bound at the significance at which the claim counts as refuted, where that is another one;
            None takes ``certified``.

    Example:
        >>> rng = np.random.default_rng(1)
        >>> coins = rng.integers(0, 2, 200)
        >>> found = one_run_evidence(5.0 * coins + rng.standard_normal(200), coins, delta=1e-5)
        >>> found.method, found.certified > 1.0, found.verdict(claimed=1.0)
        ('one-run', True, 'fail')
    """

    method: str
    certified: float
    best: float
    delta: float
    significance: float
    figures: dict[str, float]
    estimates: tuple[str, ...] = ()
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    refuting: float | None = None

    def verdict(self, claimed: float) -> str:
        """What the evidence says about a claim.

        Args:
            claimed: The ε that is claimed, at the same δ.

        Returns:
            ``"fail"`` if the claim is refuted, ``"underpowered"`` if it could not have been, else ``"pass"``.

        Example:
            >>> Evidence("one-run", 0.4, 0.9, 1e-5, 0.05, {}).verdict(claimed=2.0)
            'underpowered'
        """
        if (self.certified if self.refuting is None else self.refuting) > claimed:
            return "fail"
        return "pass" if self.best > claimed else "underpowered"

    def needed(self, claimed: float) -> str:
        """How many repeats or canaries it takes before this kind of attack can refute a claim.

        Args:
            claimed: The ε that is claimed, at the same δ.

        Returns:
            The number in words; with fewer even an attacker who is never wrong refutes nothing.

        Example:
            >>> Evidence("two worlds", 0.4, 2.8, 0.0, 0.05, {}).needed(claimed=6.0)
            'it takes 2,379 runs on each data set, or more, to refute ε = 6'
        """
        worlds = self.method.startswith("two worlds")
        count = (repeats_needed if worlds else canaries_needed)(claimed, self.delta, self.significance)
        what = "runs on each data set" if worlds else "canaries"
        if count is None:
            return f"so large a claim cannot be refuted by counting {what}"
        return f"it takes {count:,} {what}, or more, to refute ε = {claimed:.4g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a card."""
        return dataclasses.asdict(self)


def _checked(scores: Any, member: Any) -> tuple[Floats, npt.NDArray[np.bool_]]:
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(member).astype(bool)
    if values.ndim != 1 or values.shape != coins.shape:
        raise ValueError(
            f"scores and member need one value per canary each, in one dimension, not shapes {values.shape} and "
            f"{coins.shape}"
        )
    if len(values) < 2:
        raise ValueError("an audit needs at least two canaries; a few hundred prove something")
    if not np.isfinite(values).all():
        raise ValueError(
            "scores must be finite numbers: where the attacker has no opinion, give both kinds the same score"
        )
    return values, coins


def right_guesses(scores: Any, member: Any, guesses: int) -> int:
    """How many guesses are right if the highest half of them says "in" and the lowest half "out".

    >>> right_guesses([0.1, 0.2, 0.8, 0.9], [0, 1, 0, 1], 2)
    2
    """
    values, coins = _checked(scores, member)
    # Break ties in a fixed random order: the order of the canaries gives the coins away if members are listed first.
    order = np.lexsort((np.random.default_rng(20_230_515).permutation(len(values)), values))
    top, bottom = guesses - guesses // 2, guesses // 2
    return int(coins[order[len(order) - top :]].sum() + (~coins[order[:bottom]]).sum())


# -- one run -----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _law(canaries: int, mu: float) -> tuple[Floats, Floats]:
    """By rank, lowest first: the score that a μ-Gaussian run gives, as the probability that the canary is in."""
    inside = (np.arange(canaries) + 0.5) / canaries
    low, high = np.full(canaries, -12.0), np.full(canaries, 12.0 + mu)
    for _ in range(60):  # quantiles of the mixture of N(0, 1) and N(μ, 1)
        middle = (low + high) / 2
        above = (special.ndtr(middle) + special.ndtr(middle - mu)) / 2 > inside
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return low, special.expit(mu * low - mu * mu / 2)


def _weights(canaries: int, mu: float, epsilon: float) -> bounds.Weights:
    """The best weights to tell a μ-Gaussian run from one whose guesses are right with e^ε / (1 + e^ε) at most."""
    inside = _law(canaries, mu)[1]
    sure, q = np.maximum(inside, 1 - inside), float(special.expit(epsilon))
    sure = np.minimum(sure, 1 - 1e-12)
    gain = np.maximum(0.0, np.log(sure / q) - np.log((1 - sure) / (1 - q)))
    if gain.max() <= 0:
        gain = (sure >= sure.max()).astype(float)
    whole = np.round(gain / gain.max() * UNIT).astype(int)
    below = whole[inside < 0.5]
    return bounds.Weights(tuple(below.tolist()), tuple(whole[len(below) :].tolist()), UNIT)


def _expected(weights: bounds.Weights, canaries: int, mu: float) -> int:
    """The sum of right guesses that a μ-Gaussian run has on average."""
    inside = _law(canaries, mu)[1]
    low, high = np.asarray(weights.below, float), np.asarray(weights.above, float)
    return int(low @ (1 - inside[: len(low)]) + high @ inside[canaries - len(high) :])


def _everybody(canaries: int) -> bounds.Weights:
    return bounds.Weights((1,) * (canaries // 2), (1,) * (canaries - canaries // 2), 1)


@functools.lru_cache(maxsize=64)
def looks(
    canaries: int,
    delta: float,
    significance: float = 0.05,
    claimed: float | None = None,
    parts: Parts = CERTIFYING,
) -> tuple[tuple[bounds.Weights, float], ...]:
    """What the attacker of one run looks at, and the significance of each look: a function of the claim alone.

    The first look certifies most if the run has the claimed ε as a Gaussian mechanism would. The second refutes the
    claim if the run has more, with the least excess that so many canaries can show. The rest of the significance is for
    guesses about every canary (:func:`_proven`).

    >>> [round(part, 4) for _, part in looks(200, 1e-5)]
    [0.044, 0.001]
    """
    epsilon = USUAL if claimed is None or not 0 < claimed < bounds.LARGEST else claimed
    mu = max(bounds.gaussian_mu(epsilon, delta if delta > 0 else 1e-6), 1e-3)
    first, second, _ = (part * significance for part in parts)
    top, best = 0.0, _everybody(canaries)
    for share in SHARES:
        tried = _weights(canaries, mu, share * epsilon)
        proven = tried.bound(_expected(tried, canaries, mu), canaries, delta, first, within=0.002)
        if proven > top:
            top, best = proven, tried
    other = _everybody(canaries)
    for times in TIMES:
        tried = _weights(canaries, times * mu, epsilon)
        if tried.p_value(_expected(tried, canaries, times * mu), canaries, epsilon, delta) <= second:
            other = tried
            break
    return (best, first), (other, second)


def _proven(
    right: Callable[[bounds.Weights], int],
    canaries: int,
    delta: float,
    significance: float,
    claimed: float | None,
    parts: Parts = CERTIFYING,
) -> float:
    """The largest bound over all looks; ``right`` says how much of what counts was guessed right."""
    every = bounds.one_run_approximate(canaries, right(_everybody(canaries)), canaries, delta, parts[-1] * significance)
    ways = looks(canaries, delta, significance, claimed, parts)
    return max(every, *(w.bound(right(w), canaries, delta, part) for w, part in ways))


@functools.lru_cache(maxsize=64)
def one_run_refutes(
    canaries: int, claimed: float, delta: float, significance: float, parts: Parts = CERTIFYING
) -> Callable[[Any, Any], bool]:
    """Whether scores and coins of one run refute a claim, as :func:`one_run_evidence` says; fast where asked often."""
    ways = (*looks(canaries, delta, significance, claimed, parts), (_everybody(canaries), parts[-1] * significance))
    limits = [(weights, weights.least(canaries, claimed, delta, part)) for weights, part in ways]
    return lambda scores, member: any(weights.right(scores, member) >= least for weights, least in limits)


@functools.lru_cache(maxsize=64)
def curve_guesses(canaries: int, delta: float, significance: float = 0.05, claimed: float | None = None) -> int:
    """About how many canaries to guess to refute the largest Gaussian curve, if the run is what it claims."""
    epsilon = USUAL if claimed is None or not 0 < claimed < bounds.LARGEST else claimed
    mu = max(bounds.gaussian_mu(epsilon, delta if delta > 0 else 1e-6), 1e-3)
    top, best = -1.0, canaries
    for share in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5):
        guesses = max(1, round(share * canaries))
        count = bounds.Weights((1,) * (guesses // 2), (1,) * (guesses - guesses // 2), 1)
        proven = bounds.one_run_f(guesses, _expected(count, canaries, mu), canaries, delta or 1e-6, significance)
        if proven > top:
            top, best = proven, guesses
    return best


def one_run_evidence(
    scores: Any,
    member: Any,
    delta: float,
    significance: float = 0.05,
    *,
    claimed: float | None = None,
    alarm: float | None = None,
) -> Evidence:
    """Lower bounds on ε from one run in which each canary was included with probability ½.

    The certificate weighs each guess by how sure the attacker is: three sets of weights, fixed from ``claimed`` before
    the scores are seen, share the significance. ``f-DP one-run`` is the bound within the family of Gaussian trade-off
    curves. Both allow for canaries whose noise is not independent. ``Gaussian DP`` treats the canaries as independent
    repeats of one Gaussian mechanism, which is much sharper, and is an estimate.

    Guarantee:
        If the run is (ε, δ)-DP for adding or removing one canary, the certified bound exceeds ε with probability at
        most ``significance``. The scores themselves are not protected.

    Args:
        scores: One number per canary: the larger, the more it seems to have taken part.
        member: One boolean per canary: whether it took part.
        delta: δ of the claim.
        significance: Probability that the certified bound is wrong; 0.05 gives 95% confidence.
        claimed: The ε that is claimed, for which the guesses are weighed. The bound holds whatever it is, and is
            sharpest if the run has this ε. None weighs them for ε = 4.
        alarm: Probability that a true claim counts as refuted, if that is to be another one than ``significance``.

    Returns:
        The evidence, with the best bound that so many canaries can give.

    Raises:
        ValueError: If scores and members do not match, are fewer than two or are not finite, or if ``significance``
            does not lie between 0 and 1.

    Example:
        >>> rng = np.random.default_rng(1)
        >>> coins = rng.integers(0, 2, 1000)
        >>> found = one_run_evidence(3.0 * coins + rng.standard_normal(1000), coins, delta=1e-5)
        >>> found.certified > 3, found.best > found.certified
        (True, True)
    """
    values, coins = _checked(scores, member)
    m = len(values)

    def right(weights: bounds.Weights) -> int:
        return weights.right(values, coins)

    proven = _proven(right, m, delta, significance, claimed)
    told = [
        {"guesses": w.guesses, "right": right(w) / w.unit, "of": w.total / w.unit}
        for w in (*(weights for weights, _ in looks(m, delta, significance, claimed)), _everybody(m))
    ]
    guesses = curve_guesses(m, delta, significance, claimed)
    f = bounds.one_run_f(guesses, right_guesses(values, coins, guesses), m, delta, significance)
    figures = {"one-run": proven, "f-DP one-run": f}
    two = (
        two_world_evidence(values[~coins], values[coins], delta, significance) if 20 <= coins.sum() <= m - 20 else None
    )
    if two is not None:
        figures["Gaussian DP"] = two.figures["Gaussian DP"]
    refuting = _proven(right, m, delta, alarm, claimed, REFUTING) if alarm is not None else None
    return Evidence(
        "one-run",
        proven,
        best_one_run(m, delta, significance, claimed),
        delta,
        significance,
        figures,
        ("Gaussian DP",) if two is not None else (),
        {"canaries": m, "thresholds": told},
        refuting,
    )


@functools.lru_cache(maxsize=64)
def best_one_run(canaries: int, delta: float, significance: float = 0.05, claimed: float | None = None) -> float:
    """The most that :func:`one_run_evidence` can certify with so many canaries, when every guess is right.

    >>> best_one_run(1000, 1e-5) < 6 < best_one_run(10000, 1e-5)
    True
    """
    return _proven(lambda weights: weights.total, canaries, delta, significance, claimed)


#: Numbers of canaries that are asked about.
PLANTED = (20, 50, 100, 200, 300, 500, 1000, 2000, 3000, 5000, 10_000)


def canaries_needed(claimed: float, delta: float, significance: float = 0.05) -> int | None:
    """The first of some numbers of canaries with which a claim can be refuted; None if 10,000 are not enough.

    >>> canaries_needed(4.0, 1e-5)
    300
    """
    return next((n for n in PLANTED if best_one_run(n, delta, significance, claimed) > claimed), None)


def repeats_needed(claimed: float, delta: float, significance: float = 0.05) -> int | None:
    """The fewest repeats on each of two data sets with which a claim can be refuted; None if a billion do not do.

    >>> repeats_needed(4.0, 0.0)
    324
    """

    def reaches(repeats: int) -> bool:
        return best_two_worlds(repeats, repeats, delta, significance) > claimed

    low, high = 20, 40
    while not reaches(high):
        low, high = high, 2 * high
        if high > 1e9:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def best_two_worlds(without: int, with_it: int, delta: float, significance: float = 0.05) -> float:
    """The most that :func:`two_world_evidence` can certify with so many repeats, when no repeat is taken for the other.

    >>> round(best_two_worlds(1000, 1000, 0.0), 2)
    5.13
    """
    errors = bounds.Errors(0, without - _choosing(without), 0, with_it - _choosing(with_it))
    return bounds.two_worlds(errors, delta, significance / len(QUANTILES))


def _choosing(repeats: int) -> int:
    """How many repeats choose the thresholds."""
    return max(5, round(CHOOSING * repeats))


def rest_of(scores: Floats) -> Floats:
    """The repeats that are evidence: those that did not choose the thresholds."""
    return scores[_choosing(len(scores)) :]


def _tried(zero: Floats, one: Floats) -> tuple[bounds.Errors, list[tuple[float, bounds.Errors]]]:
    """The errors at the middle threshold, and at each of them: what the first repeats choose and the rest shows."""
    a, b = _choosing(len(zero)), _choosing(len(one))
    quantiles = np.quantile(np.concatenate([zero[:a], one[:b]]), QUANTILES)

    def wrong(threshold: float) -> bounds.Errors:
        return bounds.Errors(
            int((zero[a:] > threshold).sum()), len(zero) - a, int((one[b:] <= threshold).sum()), len(one) - b
        )

    return wrong(quantiles[len(QUANTILES) // 2]), [(float(t), wrong(t)) for t in np.unique(quantiles)]


def two_worlds_refute(zero: Floats, one: Floats, claimed: float, delta: float, significance: float) -> bool:
    """Whether scores of two worlds refute a claim, as :func:`two_world_evidence` says; fast where asked often."""
    each = significance / len(QUANTILES)
    return any(bounds.two_worlds(errors, delta, each) > claimed for _, errors in _tried(zero, one)[1])


def two_world_evidence(without: Any, with_it: Any, delta: float, significance: float = 0.05) -> Evidence:
    """Lower bounds on ε from independent repeats without and with one record.

    The first tenth of the repeats chooses five thresholds and serves no other purpose. Each threshold gets an equal
    part of the significance. ``Gaussian DP`` spends half of it on how many repeats the middle threshold tells apart.

    Guarantee:
        For independent repeats of a mechanism that is (ε, δ)-DP for these two data sets, the certified bound exceeds ε
        with probability at most ``significance``. The scores themselves are not protected.

    Args:
        without: One score per repeat without the record, 20 or more.
        with_it: One score per repeat with the record, 20 or more: larger where the record seems to be there.
        delta: δ of the claim.
        significance: Probability that the certified bound is wrong; 0.05 gives 95% confidence.

    Returns:
        The evidence, with the best bound that so many repeats can give.

    Raises:
        ValueError: If a world has fewer than 20 scores, or a score is not a finite number.

    Example:
        >>> rng = np.random.default_rng(1)
        >>> found = two_world_evidence(rng.standard_normal(5000), 2 + rng.standard_normal(5000), delta=1e-5)
        >>> found.certified > 2, found.figures["Gaussian DP"] > 8
        (True, True)
    """
    zero, one = np.asarray(without, dtype=np.float64), np.asarray(with_it, dtype=np.float64)
    if zero.ndim != 1 or one.ndim != 1 or min(len(zero), len(one)) < 20:
        raise ValueError("a two-world audit needs at least 20 scores of each world, one number per repeat")
    if not (np.isfinite(zero).all() and np.isfinite(one).all()):
        raise ValueError("scores must be finite numbers")
    each = significance / len(QUANTILES)
    best = best_two_worlds(len(zero), len(one), delta, significance)
    middle, tried = _tried(zero, one)
    certified, told = 0.0, []
    gaussian = bounds.gaussian_accuracy(middle, delta, significance / 2)
    for threshold, errors in tried:
        certified = max(certified, bounds.two_worlds(errors, delta, each))
        gaussian = max(gaussian, bounds.gaussian(errors, delta, each / 2))
        told.append({"threshold": threshold, "false_alarms": errors.false_alarms, "missed": errors.missed})
    figures = {"Clopper-Pearson": certified, "Gaussian DP": gaussian}
    details = {"repeats": [len(zero), len(one)], "thresholds": told}
    return Evidence("two worlds", certified, best, delta, significance, figures, ("Gaussian DP",), details)


# -- curves ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Roc:
    """A ROC curve: true against false positive rates over all thresholds, and the area under it.

    Args:
        false_positive: False positive rates, ascending from 0 to 1.
        true_positive: The true positive rate at each of them.
        area: Area under the curve; 0.5 is guessing.
        interval: Lower and upper end of a confidence interval of the area.
        members: How many scores belong to members.
        others: How many do not.
    """

    false_positive: Floats
    true_positive: Floats
    area: float
    interval: tuple[float, float]
    members: int
    others: int

    def at(self, rate: float, significance: float = 0.05) -> tuple[float, float, float]:
        """The true positive rate at a false positive rate of at most ``rate``, with its Clopper-Pearson interval."""
        inside = self.true_positive[self.false_positive <= rate + 1e-12]
        hits = round(float(inside.max()) * self.members) if len(inside) else 0
        low, high = bounds.clopper_pearson(hits, self.members, significance / 2)
        return hits / self.members, low, high


def roc(scores: Any, member: Any, significance: float = 0.05) -> Roc:
    """The ROC curve of scores. The interval of its area is that of Hanley and McNeil (1982).

    Args:
        scores: One number per record: the larger, the more it looks like a member.
        member: One boolean per record: whether it is a member.
        significance: Probability that the interval misses the true area; 0.05 gives 95% confidence.

    Returns:
        The curve, with ``area``, ``interval`` and ``at(rate)``, the true positive rate at a false positive rate. It is
        computed from the scores without noise: if they come from private records, it is for the operator.

    Raises:
        ValueError: If there are no members or no others, or if scores and members do not match or are not finite.

    Example:
        >>> roc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).area
        0.75
    """
    values, coins = _checked(scores, member)
    members, others = int(coins.sum()), int((~coins).sum())
    if not members or not others:
        raise ValueError("a ROC curve needs at least one member and one other record")
    order = np.argsort(-values, kind="stable")
    ranked, inside = values[order], coins[order]
    last = np.flatnonzero(np.append(np.diff(ranked) != 0, True))
    true = np.concatenate([[0], np.cumsum(inside)[last]]) / members
    false = np.concatenate([[0], np.cumsum(~inside)[last]]) / others
    area = float(np.trapezoid(true, false))
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    variance = (area * (1 - area) + (members - 1) * (q1 - area**2) + (others - 1) * (q2 - area**2)) / (members * others)
    half = float(-_quantile(significance / 2) * np.sqrt(max(variance, 0.0)))
    return Roc(false, true, area, (max(0.0, area - half), min(1.0, area + half)), members, others)


def _quantile(p: float) -> float:
    return bounds.NORMAL.inv_cdf(p)


def histogram(scores: Sequence[float] | Floats, member: Any, bins: int = 40) -> dict[str, list[float]]:
    """How many scores of members and of others fall into each bin; both have the same bins."""
    values, coins = _checked(scores, member)
    edges = np.histogram_bin_edges(values, bins)
    return {
        "edges": edges.tolist(),
        "members": np.histogram(values[coins], edges)[0].tolist(),
        "others": np.histogram(values[~coins], edges)[0].tolist(),
    }
