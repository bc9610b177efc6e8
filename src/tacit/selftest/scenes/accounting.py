"""Are prices at least the truth? ε, δ and Rényi divergences against integrals over what a mechanism gives.

Every mechanism is put on a line or a list of outcomes, with the laws of two neighbours beside each other; hockey-stick
and Rényi divergences are then sums. None of the accountant's own formulas is used.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from tacit import accounting as acc
from tacit.audit import bounds
from tacit.audit.findings import Finding, holds
from tacit.selftest.scene import Scene, refused

Floats = npt.NDArray[np.float64]
#: The laws of two neighbours over the same outcomes, each adding up to 1.
Pair = tuple[Floats, Floats]
#: What the grids here may be off by.
SLACK = 1e-4
EPSILONS = (0.1, 0.5, 1.0, 2.0)


def _line(law: Callable[[Floats], Floats], moved: Callable[[Floats], Floats], reach: float, points: int) -> Pair:
    """The chances of falling between the points of a grid: who sees these sees no more than who sees the number."""
    x = np.concatenate([[-np.inf], np.linspace(-reach, reach, points), [np.inf]])
    return np.diff(law(x)), np.diff(moved(x))


def _normal(mean: float, sigma: float) -> Callable[[Floats], Floats]:
    return lambda x: np.asarray(stats.norm.cdf(x, mean, sigma))


def _laplace(mean: float, scale: float) -> Callable[[Floats], Floats]:
    return lambda x: np.asarray(stats.laplace.cdf(x, mean, scale))


def _mixed(rate: float, with_it: Callable[[Floats], Floats], without: Callable[[Floats], Floats]) -> Any:
    return lambda x: rate * with_it(x) + (1 - rate) * without(x)


def _together(*pairs: Pair) -> Pair:
    """Independent outcomes side by side."""
    one, other = pairs[0]
    for p, q in pairs[1:]:
        one, other = np.outer(one, p).ravel(), np.outer(other, q).ravel()
    return one, other


def _delta(pair: Pair, epsilon: float) -> float:
    return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in (pair, pair[::-1]))


def _renyi(pair: Pair, order: float) -> float:
    found = 0.0
    for p, q in (pair, pair[::-1]):
        both = (p > 1e-280) & (q > 1e-280)
        found = max(found, math.log(float((p[both] ** order * q[both] ** (1 - order)).sum())) / (order - 1))
    return found


def _discrete(sigma: float, laplace: bool) -> Pair:
    k = np.arange(-80, 81)
    law = np.exp(-np.abs(k) / sigma) if laplace else np.exp(-(k**2) / (2 * sigma**2))
    return law / law.sum(), np.roll(law, 1) / law.sum()


def _cases() -> dict[str, tuple[acc.Mechanism, str, int, Pair]]:
    """Mechanisms with the adjacency and group under which two neighbours have these laws."""
    gaussian, points = acc.Gaussian, 4001
    tied = math.exp(0.7) / (math.exp(0.7) + 2)
    low, rest = (1 - tied) / 2, (1 - tied) / 2
    answers = np.array([tied, low, rest]), np.array([low, tied, rest])
    return {
        "Gaussian": (gaussian(1.5), "add-remove", 1, _line(_normal(0, 1.5), _normal(1, 1.5), 16, points)),
        "Gaussian, two people": (gaussian(2.0), "add-remove", 2, _line(_normal(0, 2), _normal(2, 2), 20, points)),
        "Gaussian, replaced": (
            gaussian(2.0, replace=2.0),
            "replace-one",
            1,
            _line(_normal(0, 2), _normal(2, 2), 20, points),
        ),
        "Laplace": (acc.Laplace(1.2), "add-remove", 1, _line(_laplace(0, 1.2), _laplace(1, 1.2), 24, points)),
        "Laplace, three people": (acc.Laplace(4.0), "add-remove", 3, _line(_laplace(0, 4), _laplace(3, 4), 80, points)),
        "two Gaussians": (
            gaussian(2.0) + gaussian(3.0),
            "add-remove",
            1,
            _together(
                _line(_normal(0, 2), _normal(1, 2), 16, 701),
                _line(_normal(0, 3), _normal(1, 3), 24, 701),
            ),
        ),
        "two Laplace": (
            acc.Laplace(3.0) * 2,
            "add-remove",
            1,
            _together(*[_line(_laplace(0, 3), _laplace(1, 3), 40, 801)] * 2),
        ),
        "sampled": (
            acc.PoissonSampled(gaussian(0.8), 0.3),
            "add-remove",
            1,
            _line(_mixed(0.3, _normal(1, 0.8), _normal(0, 0.8)), _normal(0, 0.8), 10, points),
        ),
        "sampled twice": (
            acc.PoissonSampled(gaussian(1.0), 0.2) * 2,
            "add-remove",
            1,
            _together(*[_line(_mixed(0.2, _normal(1, 1), _normal(0, 1)), _normal(0, 1), 10, 701)] * 2),
        ),
        "sampled, replaced": (
            acc.PoissonSampled(gaussian(1.0, replace=2.0), 0.3),
            "replace-one",
            1,
            # The record is in and points one way, or the other: the sums move to both sides.
            _line(_mixed(0.3, _normal(1, 1), _normal(0, 1)), _mixed(0.3, _normal(-1, 1), _normal(0, 1)), 12, points),
        ),
        "sampled Laplace": (
            acc.PoissonSampled(acc.Laplace(1.0), 0.25),
            "add-remove",
            1,
            _line(_mixed(0.25, _laplace(1, 1), _laplace(0, 1)), _laplace(0, 1), 30, points),
        ),
        "fixed size": (
            acc.FixedSizeSampled(gaussian(1.5, replace=2.0), 3, 10),
            "replace-one",
            1,
            _line(
                _mixed(0.3, _normal(1, 1.5), _normal(0, 1.5)),
                _mixed(0.3, _normal(-1, 1.5), _normal(0, 1.5)),
                16,
                points,
            ),
        ),
        "shuffled": (acc.Shuffled(gaussian(2.0)), "zero-out", 1, _line(_normal(0, 2), _normal(1, 2), 16, points)),
        "discrete Gaussian": (acc.DiscreteGaussian(3.0), "add-remove", 1, _discrete(3.0, False)),
        "discrete Laplace": (acc.DiscreteLaplace(3.0), "add-remove", 1, _discrete(3.0, True)),
        "randomized response": (acc.RandomizedResponse(0.7, 3), "replace-one", 1, answers),
        "ten answers": (
            acc.RandomizedResponse(0.4) * 10,
            "replace-one",
            1,
            _binomial(10, math.exp(0.4) / (1 + math.exp(0.4))),
        ),
        "teachers": (acc.Votes(3.0), "add-remove", 1, _line(_normal(0, 3), _normal(math.sqrt(2), 3), 24, points)),
        "teachers, keyed": (
            acc.Votes(3.0, partition="keyed"),
            "replace-one",
            1,
            _line(_normal(0, 3), _normal(2 * math.sqrt(2), 3), 26, points),
        ),
        "a check": (acc.VoteCheck(2.0), "add-remove", 1, _line(_normal(0, 2), _normal(1, 2), 16, points)),
    }


def _binomial(count: int, p: float) -> Pair:
    k = np.arange(count + 1)
    return np.asarray(stats.binom.pmf(k, count, p)), np.asarray(stats.binom.pmf(k, count, 1 - p))


def prices_are_at_least_the_truth(seed: int) -> list[Finding]:
    """ε at δ, δ at ε and Rényi divergences of every mechanism, against integrals."""
    found = []
    for name, (mechanism, adjacency, group, pair) in _cases().items():
        low = []
        for epsilon in EPSILONS:
            true = _delta(pair, epsilon)
            stated = acc.delta(mechanism, epsilon, adjacency=adjacency, group=group)
            if not stated.upper >= true * (1 - SLACK) - 1e-9:
                low.append(f"δ({epsilon}) = {stated.upper:.3g} of {true:.3g}")
            if 1e-6 < true < 0.4:
                at = acc.epsilon(mechanism, true * (1 + SLACK), adjacency=adjacency, group=group).upper
                if not at >= epsilon * (1 - 1e-2) - 1e-3:
                    low.append(f"ε = {at:.4f} of {epsilon} at δ = {true:.3g}")
        for order in (1.5, 4.0):
            true = _renyi(pair, order)
            bound = float(acc.renyi(mechanism, [order], adjacency=adjacency, group=group)[0])
            if not bound >= true * (1 - 1e-3) - 1e-9:
                low.append(f"Rényi {order}: {bound:.5f} of {true:.5f}")
        found.append(holds(f"price: {name}", not low, "; ".join(low) or f"{mechanism!r} at several ε, δ and orders"))
    return found


def stated_guarantees_compose(seed: int) -> list[Finding]:
    """(ε, δ) that are given: groups, sums, exponential choices, selections and alternatives."""
    low: list[str] = []

    def check(name: str, mechanism: acc.Mechanism, epsilon: float, true: float, **terms: Any) -> None:
        stated = acc.delta(mechanism, epsilon, **terms).upper
        if not stated >= true * (1 - SLACK):
            low.append(f"{name}: δ = {stated:.3g} of {true:.3g}")

    one, given = 0.3, 0.01
    for group in (2, 3, 5):
        # A chain of neighbours, each step at its worst: δ + e^ε δ + … at kε.
        worst = given * sum(math.exp(one * j) for j in range(group))
        check(f"{group} people", acc.ApproxDP(one, given), group * one, worst, group=group)
        check(
            f"{group} people, pure",
            acc.PureDP(one),
            group * one * 0.9,
            _reached(group * one, group * one * 0.9),
            group=group,
        )
    check("(ε, δ) twice", acc.ApproxDP(one, given) * 2, 2 * one, 1 - (1 - given) ** 2)
    # Randomized response with a leak of probability δ is (ε, δ)-DP and reaches it.
    side = math.exp(one) / (1 + math.exp(one))
    leak = np.array([given, 0, (1 - given) * side, (1 - given) * (1 - side)])
    pair = _together((leak, leak[[1, 0, 3, 2]]), (leak, leak[[1, 0, 3, 2]]))
    check("(ε, δ) twice at ε", acc.ApproxDP(one, given) * 2, one, _delta(pair, one))
    pure = np.array([side, 1 - side])
    pair = _together(*[(pure, pure[::-1])] * 6)
    for epsilon in (0.5, 1.0):
        check("six pure", acc.PureDP(one) * 6, epsilon, _delta(pair, epsilon))
    check("GDP", acc.GDP(0.8) * 4, 1.0, bounds.gaussian_delta(1.6, 1.0))
    zcdp = float(acc.renyi(acc.ZCDP(0.2) * 3, [5.0])[0])
    if not zcdp >= 5 * 0.6 * (1 - 1e-9):
        low.append(f"zCDP: {zcdp:.4f} of 3")
    ranged = []
    for epsilon, order in itertools.product((0.5, 1.0, 3.0), (1.5, 2.0, 8.0)):
        true = _bounded_range(epsilon, order)
        bound = float(acc.renyi(acc.ExponentialMechanism(epsilon), [order])[0])
        ranged.append(bound / true)
    twice = _delta(_together(*[_choice(1.0)] * 2), 0.8)
    check("two choices", acc.ExponentialMechanism(1.0) * 2, 0.8, twice)
    either = acc.one_of([acc.Gaussian(2.0), acc.Gaussian(1.0)])
    check("alternatives", either, 0.5, (bounds.gaussian_delta(0.5, 0.5) + bounds.gaussian_delta(1.0, 0.5)) / 2)
    for law in ("geometric", "poisson"):
        selected = acc.Selected.of(acc.Gaussian(3.0), 5.0, distribution=law)
        check(f"best of a {law} number", selected, 0.5, _best_of(3.0, 5.0, 0.5, law))
    threshold = acc.Selected.of(acc.Gaussian(3.0), 5.0, distribution="threshold")
    check("the first good one", threshold, 0.5, _first_good(3.0, threshold.gamma, 0.5))
    return [
        holds("price: stated guarantees", not low, "; ".join(low) or "groups, sums and choices"),
        holds("price: bounded range", min(ranged) >= 1 - 1e-9, f"stated over true, at least {min(ranged):.5f}"),
    ]


def _reached(epsilon: float, at: float) -> float:
    side = math.exp(epsilon) / (1 + math.exp(epsilon))
    return _delta((np.array([side, 1 - side]), np.array([1 - side, side])), at)


def _bounded_range(epsilon: float, order: float) -> float:
    """The largest divergence of two laws on two outcomes whose log-ratios span ε."""
    worst = 0.0
    for p in np.linspace(0.001, 0.999, 1999):
        odds = p / (1 - p) * math.exp(-epsilon)
        q = odds / (1 + odds)
        worst = max(worst, _renyi((np.array([p, 1 - p]), np.array([q, 1 - q])), order))
    return worst


def _choice(epsilon: float) -> Pair:
    """An exponential choice between two scores, of which one person moves one up and the other down."""
    p = 1 / (1 + math.exp(-epsilon / 2))
    return np.array([p, 1 - p]), np.array([1 - p, p])


def _best_of(sigma: float, runs: float, epsilon: float, law: str) -> float:
    """δ of the best of a random number of N(0, σ²) against N(1, σ²), the score being the value itself."""
    x = np.linspace(-9 * sigma, 9 * sigma + 1, 100_001)
    step, pair = x[1] - x[0], []
    for mean in (0.0, 1.0):
        density, below = stats.norm.pdf(x, mean, sigma), special.ndtr((x - mean) / sigma)
        if law == "geometric":
            p = 1 / runs
            pair.append(np.asarray(density * p / (1 - (1 - p) * below) ** 2 * step))
        else:
            pair.append(np.asarray(density * runs * np.exp(runs * (below - 1)) * step))
    return _delta((pair[0], pair[1]), epsilon)


def _first_good(sigma: float, gamma: float, epsilon: float) -> float:
    """δ of the first run above a threshold, for the worst of several thresholds."""
    worst = 0.0
    x = np.linspace(-9 * sigma, 9 * sigma + 1, 40_001)
    step = x[1] - x[0]
    for threshold in np.linspace(-sigma, 3 * sigma, 9):
        pair = []
        for mean in (0.0, 1.0):
            density = np.where(x >= threshold, stats.norm.pdf(x, mean, sigma), 0.0) * step
            hit = float(density.sum())
            ends = hit / (hit + (1 - hit) * gamma)
            pair.append(np.append(density / hit * ends, 1 - ends))
        worst = max(worst, _delta((pair[0], pair[1]), epsilon))
    return worst


def _granted(filtered: acc.RenyiFilter) -> int:
    """How many Gaussian releases a filter lets through, of at most a thousand."""
    granted = 0
    with contextlib.suppress(acc.FilterExceeded):
        for _ in range(1000):
            filtered.spend(acc.Gaussian(10.0))
            granted += 1
    return granted


def prices_are_kept(seed: int) -> list[Finding]:
    """What is calibrated keeps its target, curves agree with prices, and a record reads back to the same price.

    Many branches: one for each way to ask for a price.
    """
    low: list[str] = []
    noise = acc.calibrate(acc.Gaussian, epsilon=1.0, delta=1e-5)
    if bounds.gaussian_epsilon(1 / noise, 1e-5) > 1.0 * (1 + 1e-9):
        low.append(f"noise {noise}")
    steps = acc.calibrate_steps(acc.Gaussian(20.0), epsilon=1.0, delta=1e-5)
    if bounds.gaussian_epsilon(math.sqrt(steps) / 20.0, 1e-5) > 1.0 * (1 + 1e-9):
        low.append(f"{steps} steps")
    rate = acc.calibrate_rate(lambda q: acc.PoissonSampled(acc.Gaussian(1.0), q) * 5, epsilon=1.0, delta=1e-3)
    if not 0 < rate < 1:
        low.append(f"rate {rate}")
    delta = acc.calibrate_delta(acc.Gaussian(2.0), epsilon=1.0)
    if delta < bounds.gaussian_delta(0.5, 1.0) * (1 - 1e-9):
        low.append(f"δ = {delta}")
    mu = acc.gdp_equivalent(acc.Gaussian(2.0) * 4, 1e-5)
    if mu < 1.0 * (1 - 1e-6):
        low.append(f"μ = {mu}")
    plan = acc.PoissonSampled(acc.Gaussian(1.0), 0.1)
    curve = acc.epsilon_over_steps(plan, 30, 1e-5, points=4)
    last = acc.epsilon(plan * 30, 1e-5)
    profile = acc.profile(acc.Gaussian(1.0), [0.5, 1.0])
    tests = acc.tradeoff(acc.Gaussian(1.0), [0.1, 0.5])
    for place, alpha in enumerate((0.1, 0.5)):
        exact = float(special.ndtr(special.ndtri(1 - alpha) - 1.0))
        if float(np.asarray(tests.lower)[place]) > exact * (1 + 1e-3):
            low.append(f"trade-off at {alpha}")
    for place, epsilon in enumerate((0.5, 1.0)):
        if float(np.asarray(profile.upper)[place]) < bounds.gaussian_delta(1.0, epsilon) * (1 - 1e-6):
            low.append(f"profile at {epsilon}")
    compared = acc.compare(acc.PoissonSampled(acc.Gaussian(1.0), 0.1) * 20, 1e-5)
    kept = 0
    for mechanism, adjacency, group, _ in _cases().values():
        again = acc.from_dict(mechanism.to_dict())
        kept += again == mechanism
        one = acc.epsilon(mechanism, 1e-4, adjacency=adjacency, group=group)
        if not one.lower <= one.upper:
            low.append(f"interval of {mechanism!r}")
    granted = _granted(acc.RenyiFilter(2.0, 1e-5))
    if not 0 < granted < 1000 or bounds.gaussian_epsilon(math.sqrt(granted) / 10.0, 1e-5) > 2.0:
        low.append(f"a filter granted {granted}")
    orders = [4.0, 8.0, 16.0, 32.0]
    shared = _granted(acc.RenyiFilter(2.0, 1e-2, orders))
    alone = max(_granted(acc.RenyiFilter(2.0, 1e-2 / len(orders), [order])) for order in orders)
    if not 0 < shared <= alone:
        low.append(f"a filter of {len(orders)} orders granted {shared}, and each with its share of δ {alone}")
    odometer = acc.RenyiOdometer(1e-5)
    odometer.spend(acc.Gaussian(10.0))
    privacy = acc.Privacy.of(acc.Gaussian(2.0) * 4, 1e-5)
    if privacy.claim < bounds.gaussian_epsilon(1.0, 1e-5) * (1 - 1e-6) or privacy.at(1e-6).upper < privacy.claim:
        low.append("a claim")
    accumulated = acc.TruncatedPoissonSampled(acc.Gaussian(1.0, replace=2.0), 0.1, 100, 30)
    cut = acc.epsilon(accumulated * 5, 1e-3).upper
    if cut < acc.epsilon(acc.PoissonSampled(acc.Gaussian(1.0), 0.1) * 5, 1e-3).lower * 0.99:
        low.append(f"cut batches {cut}")
    balls = acc.epsilon(acc.BallsInBins(acc.Gaussian(2.0), 4), 1e-3, adjacency="zero-out").upper
    sampled = acc.epsilon(acc.PoissonSampled(acc.Gaussian(2.0), 0.25), 1e-3).lower
    if balls < sampled * 0.99:
        low.append(f"balls in bins {balls:.3f} of {sampled:.3f}")
    cases: dict[str, tuple[Callable[[], object], Any]] = {
        "noise below 0": (lambda: acc.Gaussian(-1.0), acc.AccountingError),
        "not a number": (lambda: acc.Gaussian(math.nan), acc.AccountingError),
        "a rate above 1": (lambda: acc.PoissonSampled(acc.Gaussian(1.0), 1.5), acc.AccountingError),
        "half a step": (lambda: acc.Gaussian(1.0) * 0.5, (acc.AccountingError, TypeError)),  # type: ignore[operator]  # refused
        "a step below 0": (lambda: acc.Gaussian(1.0) * -1, (acc.AccountingError, ValueError)),
        "δ of 1": (lambda: acc.epsilon(acc.Gaussian(1.0), 1.0), acc.AccountingError),
        "ε below 0": (lambda: acc.delta(acc.Gaussian(1.0), -1.0), acc.AccountingError),
        "an unknown adjacency": (lambda: acc.epsilon(acc.Gaussian(1.0), 0.1, adjacency="near"), acc.AccountingError),
        "no people": (lambda: acc.epsilon(acc.Gaussian(1.0), 0.1, group=0), acc.AccountingError),
        "no such guarantee": (lambda: acc.epsilon(acc.RandomizedResponse(1.0), 0.1), acc.AdjacencyError),
        "two units": (lambda: acc.Gaussian(1.0) + acc.Gaussian(1.0, unit="person"), acc.UnitError),
        "an order of 1": (lambda: acc.renyi(acc.Gaussian(1.0), [1.0]), acc.AccountingError),
        "no target": (lambda: acc.calibrate(acc.Gaussian, epsilon=0.0, delta=1e-5), acc.AccountingError),
        "a record of nothing": (lambda: acc.from_dict({"kind": "Magic"}), acc.AccountingError),
        "a budget of 0": (lambda: acc.RenyiFilter(0.0, 1e-5), acc.AccountingError),
        "an unknown law": (lambda: acc.Selected(acc.Gaussian(1.0), "uniform"), acc.AccountingError),
        "a batch above the data": (lambda: acc.FixedSizeSampled(acc.Gaussian(1.0), 11, 10), acc.AccountingError),
    }
    everything = acc.epsilon(acc.Gaussian(0.0), 1e-5).upper
    return [
        holds("price: kept", not low, "; ".join(low) or "calibrations, curves and filters"),
        holds("price: read back", kept == len(_cases()), f"{kept} mechanisms are the same after a round trip"),
        holds("price: no noise", math.isinf(everything), f"no noise costs {everything}"),
        holds(
            "price: over steps", float(np.asarray(curve.upper)[-1]) >= last.lower * (1 - 1e-6), "the last step's price"
        ),
        holds(
            "price: compared",
            len(list(compared)) > 0 if hasattr(compared, "__iter__") else bool(str(compared)),
            "shown",
        ),
        holds("price: text", "ε" in str(privacy) and bool(repr(last)), str(last)),
        refused("price: refusals", cases),
    ]


SCENES = (
    Scene("prices: mechanisms", "accounting", prices_are_at_least_the_truth),
    Scene("prices: guarantees", "accounting", stated_guarantees_compose),
    Scene("prices: kept", "accounting", prices_are_kept),
)
