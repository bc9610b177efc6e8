"""How do scores of canaries become a verdict? Thresholds, correction for having several, and what was possible.

A score says how much a record seems to have taken part. :func:`one_run_evidence` and :func:`two_world_evidence` turn
scores and the coins into :class:`Evidence`: the lower bound on ε that is certified, further figures, and the best
bound that these numbers of canaries or repeats could have reached, without which a low bound means nothing.
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

#: Shares of the canaries about which the attacker guesses; fixed in advance, each gets its part of the significance.
SHARES = (0.05, 0.1, 0.2, 0.4, 1.0)
#: Thresholds of a two-world test: quantiles of scores that are used for nothing else.
QUANTILES = (0.02, 0.1, 0.5, 0.9, 0.98)
#: Share of the repeats that is spent on choosing these thresholds.
CHOOSING = 0.1


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What an audit showed about ε at δ.

    ``certified`` is the lower bound that holds with probability 1 - ``significance``, by ``method``; ``best`` is what
    it would have been had the attacker never been wrong. ``figures`` holds the other bounds by name; those in
    ``estimates`` rest on an assumption that is not tested.
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
        """``fail`` where the claim is refuted, ``underpowered`` where it could not have been, else ``pass``.

        >>> Evidence("m", 0.4, 0.9, 1e-5, 0.05, {}).verdict(2.0)
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
        raise ValueError(f"one score and one coin a canary, not shapes {values.shape} and {coins.shape}")
    if len(values) < 2:
        raise ValueError("an audit needs at least two canaries")
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite: an attacker without an opinion gives the same score to both")
    return values, coins


def right_guesses(scores: Any, member: Any, guesses: int) -> int:
    """How many are right if the highest half of ``guesses`` is said to be in, the lowest half out.

    >>> right_guesses([0.1, 0.2, 0.8, 0.9], [0, 1, 0, 1], 2)
    2
    """
    values, coins = _checked(scores, member)
    # Ties by a fixed lot: the order of the canaries may tell the coins, where all members are listed together.
    order = np.lexsort((np.random.default_rng(20_230_515).permutation(len(values)), values))
    top, bottom = guesses - guesses // 2, guesses // 2
    return int(coins[order[len(order) - top :]].sum() + (~coins[order[:bottom]]).sum())


def _sizes(canaries: int) -> list[int]:
    return sorted({max(1, round(share * canaries)) for share in SHARES})


def one_run_evidence(scores: Any, member: Any, delta: float, significance: float = 0.05) -> Evidence:
    """Bounds from one run in which each canary took part by a fair coin.

    The certificate is the larger of the one-run bound and its f-DP form for (ε, δ), over the sizes of :data:`SHARES`,
    each at an equal part of the significance. ``f-DP one-run`` is the f-DP bound within the family of Gaussian
    trade-off curves. ``Gaussian DP`` treats canaries as independent repeats of one Gaussian: an estimate.

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
    """What :func:`one_run_evidence` certifies at most with so many canaries: every guess is right.

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
    """Bounds from independent repeats without and with one record.

    The first tenth of the repeats chooses thresholds and is used for nothing else; each threshold gets an equal part
    of the significance.

    >>> rng = np.random.default_rng(1)
    >>> found = two_world_evidence(rng.standard_normal(5000), 2 + rng.standard_normal(5000), delta=1e-5)
    >>> found.certified > 2, found.figures["Gaussian DP"] > 8
    (True, True)
    """
    zero, one = np.asarray(without, dtype=np.float64), np.asarray(with_it, dtype=np.float64)
    if zero.ndim != 1 or one.ndim != 1 or min(len(zero), len(one)) < 20:
        raise ValueError("a two-world audit needs at least 20 scores of each world, one number a repeat")
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
    """True against false positive rates of all thresholds, and the area under them with an interval."""

    false_positive: Floats
    true_positive: Floats
    area: float
    interval: tuple[float, float]
    members: int
    others: int

    def at(self, rate: float, significance: float = 0.05) -> tuple[float, float, float]:
        """The true positive rate where at most ``rate`` of the others are accused, with a Clopper-Pearson interval."""
        inside = self.true_positive[self.false_positive <= rate + 1e-12]
        hits = round(float(inside.max()) * self.members) if len(inside) else 0
        low, high = bounds.clopper_pearson(hits, self.members, significance / 2)
        return hits / self.members, low, high


def roc(scores: Any, member: Any, significance: float = 0.05) -> Roc:
    """The ROC curve of scores; the interval of its area by the formula of Hanley and McNeil (1982).

    >>> roc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).area
    0.75
    """
    values, coins = _checked(scores, member)
    members, others = int(coins.sum()), int((~coins).sum())
    if not members or not others:
        raise ValueError("a ROC curve needs members and others")
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
    """Counts of scores of members and others over common bins."""
    values, coins = _checked(scores, member)
    edges = np.histogram_bin_edges(values, bins)
    return {
        "edges": edges.tolist(),
        "members": np.histogram(values[coins], edges)[0].tolist(),
        "others": np.histogram(values[~coins], edges)[0].tolist(),
    }
