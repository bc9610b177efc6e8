"""How do scores of canaries become a verdict? Thresholds, the correction for using several, and what was possible.

A score says how strongly a record seems to have taken part. :func:`one_run_evidence` and :func:`two_world_evidence`
turn scores and coins into :class:`Evidence`: the certified lower bound on ε, further figures, and the best bound that
so many canaries or repeats could have reached. Without the last one, a low bound means nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.audit import bounds

Floats = npt.NDArray[np.float64]

#: Shares of the canaries about which the attacker guesses: fixed in advance, each with its part of the significance.
SHARES = (0.05, 0.1, 0.2, 0.4, 1.0)
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
        if self.certified > claimed:
            return "fail"
        return "pass" if self.best > claimed else "underpowered"

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


def _sizes(canaries: int) -> list[int]:
    return sorted({max(1, round(share * canaries)) for share in SHARES})


def one_run_evidence(scores: Any, member: Any, delta: float, significance: float = 0.05) -> Evidence:
    """Lower bounds on ε from one run in which each canary was included with probability ½.

    The certificate is the larger of the one-run bound and its f-DP form for (ε, δ). The attacker guesses about the 5%,
    10%, 20%, 40% and 100% of canaries with the most extreme scores; each bound gets an equal part of the significance.
    ``f-DP one-run`` is the f-DP bound within the family of Gaussian trade-off curves. ``Gaussian DP`` treats the
    canaries as independent repeats of one Gaussian mechanism and is an estimate.

    Guarantee:
        If the run is (ε, δ)-DP for adding or removing one canary, the certified bound exceeds ε with probability at
        most ``significance``. The scores themselves are not protected.

    Args:
        scores: One number per canary: the larger, the more it seems to have taken part.
        member: One boolean per canary: whether it took part.
        delta: δ of the claim.
        significance: Probability that the certified bound is wrong; 0.05 gives 95% confidence.

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
    m, sizes = len(values), _sizes(len(values))
    each = significance / (2 * len(sizes))
    figures = {"one-run": 0.0, "f-DP one-run, (ε, δ)": 0.0, "f-DP one-run": 0.0}
    told = []
    for r in sizes:
        v = right_guesses(values, coins, r)
        told.append({"guesses": r, "right": v})
        figures["one-run"] = max(figures["one-run"], bounds.one_run(r, v, m, delta, each))
        figures["f-DP one-run, (ε, δ)"] = max(
            figures["f-DP one-run, (ε, δ)"], bounds.one_run_approximate(r, v, m, delta, each)
        )
        figures["f-DP one-run"] = max(
            figures["f-DP one-run"], bounds.one_run_f(r, v, m, delta, significance / len(sizes))
        )
    two = (
        two_world_evidence(values[~coins], values[coins], delta, significance) if 20 <= coins.sum() <= m - 20 else None
    )
    if two is not None:
        figures["Gaussian DP"] = two.figures["Gaussian DP"]
    certified = max(figures["one-run"], figures["f-DP one-run, (ε, δ)"])
    return Evidence(
        "one-run",
        certified,
        best_one_run(m, delta, significance),
        delta,
        significance,
        figures,
        ("Gaussian DP",) if two is not None else (),
        {"canaries": m, "thresholds": told},
    )


@functools.lru_cache(maxsize=64)
def best_one_run(canaries: int, delta: float, significance: float = 0.05) -> float:
    """The most that :func:`one_run_evidence` can certify with so many canaries, when every guess is right.

    >>> best_one_run(1000, 1e-5) < 6 < best_one_run(10000, 1e-5)
    True
    """
    sizes = _sizes(canaries)
    each = significance / (2 * len(sizes))
    return max(
        max(bounds.one_run(r, r, canaries, delta, each), bounds.one_run_approximate(r, r, canaries, delta, each))
        for r in sizes
    )


def two_world_evidence(without: Any, with_it: Any, delta: float, significance: float = 0.05) -> Evidence:
    """Lower bounds on ε from independent repeats without and with one record.

    The first tenth of the repeats chooses five thresholds and serves no other purpose. Each threshold gets an equal
    part of the significance.

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
    a, b = (max(5, round(CHOOSING * len(x))) for x in (zero, one))
    thresholds = np.unique(np.quantile(np.concatenate([zero[:a], one[:b]]), QUANTILES))
    each = significance / len(QUANTILES)
    best = bounds.two_worlds(bounds.Errors(0, len(zero) - a, 0, len(one) - b), delta, each)
    certified, gaussian, told = 0.0, 0.0, []
    for threshold in thresholds:
        errors = bounds.Errors(
            int((zero[a:] > threshold).sum()), len(zero) - a, int((one[b:] <= threshold).sum()), len(one) - b
        )
        certified = max(certified, bounds.two_worlds(errors, delta, each))
        gaussian = max(gaussian, bounds.gaussian(errors, delta, each))
        told.append({"threshold": float(threshold), "false_alarms": errors.false_alarms, "missed": errors.missed})
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
