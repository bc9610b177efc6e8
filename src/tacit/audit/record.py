"""Was this run made as it claims? What the record of its canary slots says about noise, steps and sampler.

A run with gradient canaries keeps the noise that each step put on the canaries' directions, tens of thousands of
numbers whose law the claim states, and which slots its sampler drew (:class:`tacit.sgd.training.canaries.Planted`).
Each test gives a :class:`~tacit.audit.findings.Finding`. :func:`powers` says with which probability each of some named
lies would have been found: a pass is worth no more than that.

Guarantee: the numbers are the run's own noise. Next to private records everything here is for the operator only.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
from scipy import special, stats

from tacit import accounting as acc
from tacit.audit import bounds, statistics
from tacit.audit.evidence import REFUTING, one_run_refutes, right_guesses
from tacit.audit.findings import THINNER, Finding, Power, holds
from tacit.audit.implementation import check_sampling
from tacit.sgd.training.canaries import Planted

#: Samplers that are priced by passes, or rounds.
PASSES = ("pass", "cyclic")
#: The most canaries, or steps, whose noise is compared pair by pair.
PAIRS = 1500
#: Simulated runs behind a power.
RUNS = 100
#: Share of the canaries about which the attacker of the claimed curve guesses, and points of it.
GUESSED, POINTS = 0.2, 9


@dataclasses.dataclass(frozen=True)
class Claimed:
    """What a mechanism claims about the steps of a run.

    Args:
        steps: The number of steps; of a sampler that works by passes, the number of passes.
        noise: How often each noise multiplier is priced.
        sampler: ``poisson``, ``fixed``, ``pass`` (each unit once in a pass), ``cyclic`` (at most once) or ``other``.
        rate: The probability with which a unit takes part in a step; of ``pass``, 1.
    """

    steps: int
    noise: dict[float, int]
    sampler: str
    rate: float

    @classmethod
    def of(cls, mechanism: acc.Mechanism) -> Claimed:
        """Read a mechanism; what is not made of sampled Gaussian steps is ``other``.

        >>> Claimed.of(acc.PoissonSampled(acc.Gaussian(1.5), 0.1) * 40)
        Claimed(steps=40, noise={1.5: 40}, sampler='poisson', rate=0.1)
        """
        noise: dict[float, int] = {}
        kinds, rates = set(), set()
        for part, times in mechanism.parts():
            if isinstance(part, acc.ApproxDP) and part.epsilon == 0:
                continue  # the tail of the noise generator
            inner = getattr(part, "mechanism", part)
            if isinstance(part, acc.PoissonSampled | acc.TruncatedPoissonSampled):
                kind, rate = "poisson", float(part.rate)
            elif isinstance(part, acc.FixedSizeSampled):
                kind, rate = "fixed", part.batch / part.examples
            elif isinstance(part, acc.CyclicPoissonSampled):
                kind, rate = "cyclic", float(part.rate)
            elif isinstance(part, acc.Shuffled | acc.BallsInBins):
                kind, rate = "pass", 1.0
            else:
                kind, rate = "other", 1.0
            kinds.add(kind if isinstance(inner, acc.Gaussian) else "other")
            rates.add(rate)
            z = float(inner.noise_multiplier) if isinstance(inner, acc.Gaussian) else math.nan
            noise[z] = noise.get(z, 0) + times
        one = len(kinds) == 1 and len(rates) == 1
        return cls(sum(noise.values()), noise, kinds.pop() if one else "other", rates.pop() if one else math.nan)


# -- tests -------------------------------------------------------------------------------------------------------------


def check_record(planted: Planted, mechanism: acc.Mechanism) -> list[Finding]:
    """Every test that the record of a run allows, against the mechanism that is claimed for it.

    Guarantee:
        For a run that is what the mechanism says, each p-value is below p with probability at most p, by the laws and
        inequalities of :mod:`tacit.audit.statistics` (for bins: below 1e-4 with probability at most 1e-4).

    Args:
        planted: The canaries of the run.
        mechanism: What is claimed, as its card or its plan states it.
    Returns:
        One finding for each test. Files without a record give the few that they allow.
    """
    claimed = Claimed.of(mechanism)
    found = [_coins(planted)]
    if claimed.sampler == "other":
        return found
    found.append(_steps(planted, claimed))
    if planted.noise is not None:
        found.append(_priced(planted, claimed))
    if planted.residuals is not None and min(claimed.noise) > 0:
        found += check_noise(planted.residuals, rounded=planted.rounded)
    if planted.drawn is not None:
        found += _choices(planted, mechanism, claimed)
    return found


def check_noise(residuals: Any, *, rounded: bool = False) -> list[Finding]:
    """Whether residuals (steps × canaries) are independent standard normal numbers, or larger.

    Too much noise protects, so only too little of it is an alarm. Gradients with fewer bits than float32 add their
    rounding to the noise, and then its law is not looked at.
    """
    z = np.asarray(residuals, dtype=np.float64)
    if not np.isfinite(z).all():
        return [holds("noise size", False, "residuals are not finite numbers")]
    steps, count = z.shape
    size = math.sqrt(float(np.mean(z**2)))
    deficit = statistics.smallest_noise_deficit(z.size, 1e-4, 0.95)
    seen = f"standard deviation {size:.4f} of the claimed one, over {z.size:,} numbers"
    by_canary = float(stats.chi2.cdf((z**2).sum(0), steps).min()) * count
    by_step = float(stats.chi2.cdf((z**2).sum(1), count).min()) * steps
    found = [
        Finding("noise size", float(stats.chi2.cdf((z**2).sum(), z.size)), seen, f"noise {deficit:.1%} too small"),
        Finding("noise on every canary", min(1.0, by_canary), "the canary with the least noise"),
        Finding("noise at every step", min(1.0, by_step), "the step with the least noise"),
    ]
    if rounded:
        return found
    alike = statistics.cosine_p_value(z[:, :PAIRS].T), statistics.cosine_p_value(z[:PAIRS])
    tails = [(limit, int((np.abs(z) > limit).sum())) for limit in (2.0, 3.0, 4.0)]
    few = min(float(stats.binom.cdf(k, z.size, 2 * special.ndtr(-limit))) for limit, k in tails)
    beyond = ", ".join(f"{k:,} beyond {limit:g}σ" for limit, k in tails)
    shape = statistics.normal_shape_p_value(z)
    return [
        *found,
        Finding("noise shape", shape, "distance from a normal law of the size that was seen"),
        Finding("noise tails", min(1.0, 3 * few), beyond, "noise cut at 3 standard deviations"),
        Finding("noise of two canaries", alike[0], f"largest cosine among {min(count, PAIRS):,} canaries"),
        Finding("noise of two steps", alike[1], f"largest cosine among {min(steps, PAIRS):,} steps"),
        Finding("noise used once", statistics.repetition_p_value(z), "largest correlation over all distances"),
    ]


def _coins(planted: Planted) -> Finding:
    inside, count = int(planted.member.sum()), len(planted.member)
    return Finding(
        "coins", statistics.frequency_p_value(inside, count, 0.5), f"{inside:,} of {count:,} canaries were in"
    )


def _steps(planted: Planted, claimed: Claimed) -> Finding:
    """The steps that were made are the steps that are priced."""
    made = planted.steps if planted.residuals is None else len(planted.residuals)
    passes = claimed.steps if claimed.sampler not in PASSES else None
    if passes is None:
        passes = -(-made // planted.per_pass) if planted.per_pass else claimed.steps
        return holds("steps", passes <= claimed.steps, f"{made:,} steps made; {claimed.steps:,} passes are priced")
    return holds("steps", made <= claimed.steps, f"{made:,} steps made, {claimed.steps:,} priced", "one step more")


def _priced(planted: Planted, claimed: Claimed) -> Finding:
    """The noise by which the record was scaled is the noise that is priced, or more."""
    assert planted.noise is not None
    assert planted.scale is not None
    each = np.asarray(planted.noise, dtype=np.float64)
    if claimed.sampler in PASSES and (per_pass := planted.per_pass):
        each = np.array([each[start : start + per_pass].min() for start in range(0, len(each), per_pass)])
    priced = np.sort(np.repeat(list(claimed.noise), list(claimed.noise.values())))[: len(each)]
    enough = len(each) <= claimed.steps and bool((np.sort(each) >= priced * (1 - 1e-9)).all())
    enough &= bool((planted.scale >= planted.noise * (1 - 1e-9)).all())
    told = f"noise multipliers from {each.min():.4g}; priced from {min(claimed.noise):.4g}"
    return holds("priced noise", enough, told, "any step with less noise than is priced")


def _choices(planted: Planted, mechanism: acc.Mechanism, claimed: Claimed) -> list[Finding]:
    """Whether the sampler's own record of canary slots follows the claimed law."""
    masks = planted.choices
    assert masks is not None
    if claimed.sampler == "fixed":
        steps, count = masks.shape
        part = next(p for p, _ in mechanism.parts() if isinstance(p, acc.FixedSizeSampled))
        # Slots that the batch draws, or draws that fall on slots: whichever scatters less.
        slots = min(count, part.examples)
        trials, rate = max((slots, part.batch / part.examples), (part.batch, slots / part.examples), key=lambda w: w[1])
        often = statistics.hits_p_value(int(masks.sum()), steps * trials, rate)
        seen = f"canary slots were drawn with frequency {masks.mean():.5f}, claimed {claimed.rate:.5f}"
        return [
            Finding("sampling rate", often, seen),
            Finding("participation", statistics.overlap_p_value(masks), "how often two steps share a canary"),
        ]
    if claimed.sampler == "cyclic":
        groups = next(p for p, _ in mechanism.parts() if isinstance(p, acc.CyclicPoissonSampled)).groups
        own = sum(masks[k::groups].any(0).astype(int) for k in range(groups))
        found = [holds("groups", bool(np.max(own) <= 1), f"each canary slot in the steps of one of {groups} groups")]
        rounds = np.asarray(masks[: len(masks) // groups * groups].reshape(-1, groups, masks.shape[1]).any(1))
        each = acc.PoissonSampled(acc.Gaussian(1.0), claimed.rate)
        return found + (check_sampling(rounds, each) if len(rounds) else [])
    return check_sampling(masks, mechanism, planted.per_pass or len(masks))


def claimed_curve(
    planted: Planted, mechanism: acc.Mechanism, adjacency: str, guesses: int | None = None
) -> Finding | None:
    """Whether the scores refute the trade-off curve of the mechanism itself, not only one (ε, δ) of it.

    Returns:
        The finding; None if the mechanism states no adjacency.
    """
    one = adjacency if adjacency in mechanism.adjacencies() else next(iter(mechanism.adjacencies()), None)
    if one is None:
        return None
    profile = acc.profile(mechanism, points=POINTS, adjacency=one, accuracy=0.01)
    blow = bounds.plan_blow(profile.epsilon.tolist(), profile.upper.tolist())
    count = len(planted.scores)
    guesses = guesses or max(1, round(GUESSED * count))
    right = right_guesses(planted.scores, planted.member, guesses)
    p = bounds.curve_p_value(guesses, right, count, blow)
    return Finding("claimed curve", p, f"{right:,} of {guesses:,} guesses were right")


# -- power -------------------------------------------------------------------------------------------------------------


def powers(
    planted: Planted, mechanism: acc.Mechanism, share: float, alarm: float, rng: np.random.Generator | None = None
) -> list[Power]:
    """With which probability each named lie would have been found, at the significances of this audit.

    It follows from what was kept and from the claim alone, and not from what was seen.

    Args:
        planted: The canaries of the run; their shapes are used.
        mechanism: What is claimed.
        share: The significance of each test of the record.
        alarm: The significance at which scores refute (ε, δ).
        rng: Where simulated runs come from; None makes a fresh generator.

    Returns:
        One power for each lie, a lower bound: the other tests may find it too.
    """
    rng, claimed = rng or np.random.default_rng(), Claimed.of(mechanism)
    found = []
    for lie, left in THINNER.items():
        if planted.residuals is not None and claimed.sampler != "other":
            count = planted.residuals.size
            limit = float(stats.chi2.ppf(share, count))
            sure = 1.0 if left == 0 else float(stats.chi2.cdf(limit / left**2, count))
            found.append(Power(lie, sure, f"the size of {count:,} noise numbers", needed=left <= 0.5))
        else:
            sure = _by_scores(planted, left, alarm, rng)
            found.append(Power(lie, sure, f"the scores of {len(planted.scores):,} canaries", needed=left <= 0.5))
    if claimed.sampler in ("poisson", "fixed") and 0 < claimed.rate < 1:
        found.append(_shuffled(planted, claimed, share, rng))
    elif any(isinstance(part, acc.BallsInBins) for part, _ in mechanism.parts()):
        found.append(_equal_bins(planted, share, rng))
    known = claimed.sampler != "other"
    found.append(Power("twice the steps", float(known), "the steps that were made, counted" if known else "nothing"))
    return found


def _by_scores(planted: Planted, left: float, alarm: float, rng: np.random.Generator) -> float:
    """How often scores alone refute (ε, δ), where the run has ``left`` of its noise: as a Gaussian mechanism has."""
    if not math.isfinite(planted.epsilon):
        return 0.0
    count = len(planted.scores)
    mu = bounds.gaussian_mu(max(planted.epsilon, 1e-3), max(planted.delta, 1e-12)) / max(left, 1e-3)
    refutes, hits = one_run_refutes(count, planted.epsilon, planted.delta, alarm, REFUTING), 0
    for _ in range(RUNS):
        coins = rng.integers(0, 2, count).astype(bool)
        hits += refutes(mu * coins + rng.standard_normal(count), coins)
    return hits / RUNS


def _shuffled(planted: Planted, claimed: Claimed, share: float, rng: np.random.Generator) -> Power:
    """Shuffled passes: each canary once in every pass, in a step that is as good as random."""
    masks, hits = planted.drawn, 0
    if masks is None:
        return Power("shuffled batches", 0.0, "nothing: the run kept no record of its draws", needed=True)
    steps, count = len(masks), len(planted.member)
    per_pass = max(1, round(1 / claimed.rate))
    begin = np.arange(0, steps, per_pass)[:, None]
    for _ in range(RUNS):
        where = begin + rng.integers(0, per_pass, (len(begin), count))
        made = np.zeros((steps, count), dtype=bool)
        rows, columns = np.nonzero(where < steps)
        made[where[rows, columns], columns] = True
        if claimed.sampler == "fixed":
            hits += statistics.overlap_p_value(made) < share
        else:
            often = statistics.frequency_p_value(int(made.sum()), made.size, claimed.rate)
            hits += min(often, statistics.dispersion_p_value(made.sum(0), steps, claimed.rate)) < share
    return Power("shuffled batches", hits / RUNS, f"{steps:,} draws of {count:,} canary slots", needed=True)


def _equal_bins(planted: Planted, share: float, rng: np.random.Generator) -> Power:
    """Shuffled passes claimed as balls in bins: the batches of all slots are as large as each other."""
    count, bins, size = len(planted.member), planted.per_pass, planted.size
    if planted.drawn is None or bins is None or size is None:
        return Power("shuffled batches", 0.0, "nothing: the run kept no record of its draws", needed=True)
    passes = len(planted.drawn) // bins
    batches = [size // bins + (i < size % bins) for i in range(bins)]
    drawn = rng.multivariate_hypergeometric(batches, count, (RUNS, passes))
    hits = sum(statistics.bins_p_value(one, confirm=False) < share for one in drawn)
    told = f"the bins of {count:,} of {size:,} slots in {passes:,} passes"
    return Power("shuffled batches", hits / RUNS, told, needed=True)


def mechanism_of(planted: Planted) -> acc.Mechanism | None:
    """The mechanism that the run itself recorded; None in files of older versions."""
    return None if planted.mechanism is None else acc.from_dict(json.loads(planted.mechanism))
