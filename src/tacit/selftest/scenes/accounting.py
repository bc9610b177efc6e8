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
from tacit.accounting.poisson import Accumulated
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
        both = (p > 1e-70) & (q > 1e-70)
        found = max(found, math.log(float((p[both] ** order * q[both] ** (1 - order)).sum())) / (order - 1))
    return found


def _discrete(sigma: float, laplace: bool, moved: int = 1) -> Pair:
    k = np.arange(-80, 81)
    law = np.exp(-np.abs(k) / sigma) if laplace else np.exp(-(k**2) / (2 * sigma**2))
    return law / law.sum(), np.roll(law, moved) / law.sum()


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
        "Laplace, replaced": (acc.Laplace(2.0), "replace-one", 1, _line(_laplace(0, 2), _laplace(2, 2), 40, points)),
        "discrete Gaussian, replaced": (acc.DiscreteGaussian(3.0), "replace-one", 1, _discrete(3.0, False, 2)),
        "discrete Laplace, replaced": (acc.DiscreteLaplace(3.0), "replace-one", 1, _discrete(3.0, True, 2)),
        "discrete Laplace, two people who move it by two": (
            acc.DiscreteLaplace(3.0, sensitivity=2),
            "zero-out",
            2,
            _discrete(3.0, True, 4),
        ),
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
        # A neighbour has a smooth sensitivity that is smaller by e^-β, and a value that far away at most.
        "a sanitised release": (
            acc.SmoothRelease(0.05, 3.0),
            "add-remove",
            1,
            _line(_normal(0, 3), _normal(math.exp(-0.05), 3 * math.exp(-0.05)), 26, points),
        ),
        "a check": (acc.VoteCheck(2.0), "add-remove", 1, _line(_normal(0, 2), _normal(1, 2), 16, points)),
    }


def _sampled_cases() -> dict[str, tuple[acc.Mechanism, str, int, Pair]]:
    """Sampling of other noise, under other adjacencies and for several people: which of them are in is a coin each."""
    rate, points = 0.25, 3001

    def drawn(law: Callable[[float], Callable[[Floats], Floats]], people: int, side: float = 1.0) -> Any:
        chances = stats.binom.pmf(np.arange(people + 1), people, rate)
        return lambda x: sum(c * law(side * k)(x) for k, c in enumerate(chances))

    def of(law: Callable[[float], Callable[[Floats], Floats]], reach: float, people: int, *, replaced: bool) -> Pair:
        return _line(drawn(law, people), drawn(law, people, -1.0) if replaced else law(0.0), reach, points)

    laplace, normal = (lambda m: _laplace(m, 1.5)), (lambda m: _normal(m, 1.5))
    whole = np.arange(-90, 91)
    shape = np.exp(-(whole**2) / (2 * 3.0**2))
    shape /= shape.sum()

    def discrete(people: int, side: float = 1.0) -> Floats:
        chances = stats.binom.pmf(np.arange(people + 1), people, rate)
        return np.asarray(sum(c * np.roll(shape, int(side * k)) for k, c in enumerate(chances)))

    side = math.exp(0.8) / (1 + math.exp(0.8))
    pure = np.array([side, 1 - side])
    leak = np.array([0.02, 0, 0.98 * side, 0.98 * (1 - side)])
    other = leak[[1, 0, 3, 2]]
    sampled = acc.PoissonSampled
    return {
        "sampled Laplace, replaced": (
            sampled(acc.Laplace(1.5), rate),
            "replace-one",
            1,
            of(laplace, 40, 1, replaced=True),
        ),
        "sampled, three people": (sampled(acc.Gaussian(1.5), rate), "add-remove", 3, of(normal, 18, 3, replaced=False)),
        "sampled, blank": (sampled(acc.Gaussian(1.5), rate), "zero-out", 1, of(normal, 14, 1, replaced=False)),
        "sampled, two replaced": (sampled(acc.Gaussian(1.5), rate), "replace-one", 2, of(normal, 18, 2, replaced=True)),
        "sampled GDP": (sampled(acc.GDP(1 / 1.5), rate), "add-remove", 1, of(normal, 14, 1, replaced=False)),
        "sampled whole numbers": (sampled(acc.DiscreteGaussian(3.0), rate), "add-remove", 1, (discrete(1), shape)),
        "sampled whole numbers, replaced": (
            sampled(acc.DiscreteGaussian(3.0), rate),
            "replace-one",
            1,
            (discrete(1), discrete(1, -1.0)),
        ),
        "sampled whole numbers, two people": (
            sampled(acc.DiscreteGaussian(3.0), rate),
            "add-remove",
            2,
            (discrete(2), shape),
        ),
        "sampled pure": (
            sampled(acc.PureDP(0.8), rate),
            "add-remove",
            1,
            (rate * pure + (1 - rate) * pure[::-1], pure[::-1]),
        ),
        "sampled (ε, δ)": (
            sampled(acc.ApproxDP(0.8, 0.02), rate),
            "add-remove",
            1,
            (rate * leak + (1 - rate) * other, other),
        ),
        "draws added up": (
            Accumulated(sampled(acc.Gaussian(1.5), rate), 2),
            "add-remove",
            1,
            of(normal, 16, 2, replaced=False),
        ),
        "cut batches, replaced": (
            acc.TruncatedPoissonSampled(acc.Gaussian(1.5), rate, 40, 30),
            "replace-one",
            1,
            of(normal, 14, 1, replaced=True),
        ),
        "cut batches, blank": (
            acc.TruncatedPoissonSampled(acc.Gaussian(1.5), rate, 40, 30),
            "zero-out",
            1,
            of(normal, 14, 1, replaced=False),
        ),
        "a drawn mechanism twice": (
            acc.Either(acc.Gaussian(2.0) * 2, acc.Gaussian(1.5), 0.3),
            "add-remove",
            1,
            _side_by_side(
                _line(_normal(0, 2 / math.sqrt(2)), _normal(1, 2 / math.sqrt(2)), 14, points),
                _line(_normal(0, 1.5), _normal(1, 1.5), 14, points),
                0.3,
            ),
        ),
    }


def _side_by_side(one: Pair, other: Pair, share: float) -> Pair:
    """Which of two was drawn is seen."""
    p, q = (np.concatenate([share * a, (1 - share) * b]) for a, b in zip(one, other, strict=True))
    return p, q


def _brought_cases() -> dict[str, tuple[acc.Mechanism, str, int, Pair]]:
    """What users bring: lists of outcomes, loss laws, curves of ε and δ, of errors and of orders, of a known pair."""
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.3, 0.4, 0.1])
    forward, backward = np.log(p / q), np.log(q / p)
    law = acc.LossLaw(tuple(forward), tuple(p), 0.0, tuple(backward), tuple(q), 0.0)
    leaking = np.array([0.9, 0.1, 0.0]), np.array([0.85, 0.0, 0.15])
    gaussian = _line(_normal(0, 1.5), _normal(1, 1.5), 16, 4001)
    grid = np.linspace(0, 5, 41)
    profile = acc.ProfileDP(tuple(grid), tuple(_delta(gaussian, float(e)) for e in grid))
    errors = acc.TradeoffDP((0.0, 0.3, 1.0), (1.0, 0.3, 0.0))
    answers = np.array([0.7, 0.3]), np.array([0.3, 0.7])
    orders = np.array([1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    curve = acc.RenyiDP(tuple(orders), tuple(orders / (2 * 1.5**2)))
    return {
        "outcomes": (acc.Outcomes(tuple(p), tuple(q)), "add-remove", 1, (p, q)),
        "outcomes three times": (acc.Outcomes(tuple(p), tuple(q)) * 3, "add-remove", 1, _together(*[(p, q)] * 3)),
        "outcomes that tell": (acc.Outcomes(*map(tuple, leaking)), "add-remove", 1, leaking),
        "a loss law": (law, "add-remove", 1, (p, q)),
        "a loss law twice": (law * 2, "add-remove", 1, _together((p, q), (p, q))),
        "a profile": (profile, "add-remove", 1, gaussian),
        "errors": (errors, "add-remove", 1, answers),
        "errors twice": (errors * 2, "add-remove", 1, _together(answers, answers)),
        "orders": (curve, "add-remove", 1, gaussian),
        "outcomes, sampled": (
            acc.PoissonSampled(acc.Outcomes(tuple(p), tuple(q)), 0.3),
            "add-remove",
            1,
            (0.3 * p + 0.7 * q, q),
        ),
    }


def _binomial(count: int, p: float) -> Pair:
    k = np.arange(count + 1)
    return np.asarray(stats.binom.pmf(k, count, p)), np.asarray(stats.binom.pmf(k, count, 1 - p))


def prices_are_at_least_the_truth(seed: int) -> list[Finding]:
    """ε at δ, δ at ε and Rényi divergences of every mechanism, against integrals."""
    return _against_integrals(_cases())


def sampled_and_brought(seed: int) -> list[Finding]:
    """The same for sampling of every noise, and for what users bring; the risk of a release against closed forms."""
    found = _against_integrals(_sampled_cases()) + _against_integrals(_brought_cases())
    low = []
    mu, fpr = 0.5, [0.001, 0.01, 0.1, 0.5]
    risk = acc.risk(acc.Gaussian(1 / mu), fpr=fpr)
    advantage, reached = 2 * float(special.ndtr(mu / 2)) - 1, special.ndtr(special.ndtri(fpr) + mu)
    if not risk.advantage[0] - 1e-6 <= advantage <= risk.advantage[1] + 1e-6:
        low.append(f"advantage {risk.advantage} of {advantage:.4f}")
    if not bool(np.all(risk.tpr_upper >= reached - 1e-6) and np.all(risk.tpr_lower <= reached + 1e-6)):
        low.append(f"true positives {risk.tpr_upper} of {reached}")
    # A belief moves by the ratio of likelihoods, which is lognormal here.
    share = float(special.ndtr((mu**2 / 2 - math.log(risk.odds)) / mu)) if risk.odds > 1 else 1.0
    if not share <= risk.chance * (1 + 1e-6):
        low.append(f"odds of {risk.odds:.3f} are passed with {share:.3g}, stated {risk.chance:.3g}")
    table = acc.compare_samplers(acc.Gaussian(2.0), batch=10, examples=100, steps=20, delta=1e-4)
    plain = acc.epsilon(acc.PoissonSampled(acc.Gaussian(2.0), 0.1) * 20, 1e-4)
    passes = bounds.gaussian_epsilon(math.sqrt(2) / 2.0, 1e-4)
    if not table.prices["poisson", "add-remove"].upper >= plain.lower:
        low.append("the table of samplers")
    if not table.prices["shuffled", "zero-out"].upper >= passes * (1 - 1e-6):
        low.append("shuffled passes in the table")
    if len(table.to_dict()["samplers"]) != 5 or "poisson" not in repr(table) or "%" in str(risk.to_dict()):
        low.append("what the tables show")
    selected = acc.Selected.of(acc.Gaussian(3.0), 5.0).prices(1e-3)
    if min(selected.values()) < acc.epsilon(acc.Gaussian(3.0), 1e-3).lower or len(selected) != 4:
        low.append(f"ways of pricing a selection {selected}")
    p = (0.5, 0.5)
    cases: dict[str, tuple[Callable[[], object], Any]] = {
        "outcomes that are no law": (lambda: acc.Outcomes((0.5, 0.4), p), acc.AccountingError),
        "outcomes of two lengths": (lambda: acc.Outcomes((1.0,), p), acc.AccountingError),
        "texts": (lambda: acc.Outcomes(("a",), ("b",)), acc.AccountingError),  # type: ignore[arg-type]
        "a loss law of no pair": (lambda: acc.LossLaw((-3.0, 0.0), p), acc.AccountingError),
        "masses that do not add up": (lambda: acc.LossLaw((0.0, 1.0), (0.5, 0.4)), acc.AccountingError),
        "an infinite loss": (lambda: acc.LossLaw((0.0, math.inf), p), acc.AccountingError),
        "orders that fall": (lambda: acc.RenyiDP((3.0, 2.0), (1.0, 1.0)), acc.AccountingError),
        "a profile that falls": (lambda: acc.ProfileDP((1.0, 0.5), (0.1, 0.2)), acc.AccountingError),
        "errors above guessing": (lambda: acc.TradeoffDP((0.1,), (0.95,)), acc.AccountingError),
        "errors that fall": (lambda: acc.TradeoffDP((0.5, 0.1), (0.1, 0.2)), acc.AccountingError),
        "samplers of other noise": (
            lambda: acc.compare_samplers(acc.Laplace(1.0), batch=1, examples=2, steps=1, delta=0.1),  # type: ignore[arg-type]
            acc.AccountingError,
        ),
        "a false positive rate above 1": (lambda: acc.risk(acc.Gaussian(1.0), fpr=[2.0]), acc.AccountingError),
    }
    return [
        *found,
        holds("price: risk and samplers", not low, "; ".join(low) or "against closed forms"),
        refused("price: refused laws", cases),
    ]


def laws_are_exchanged(seed: int) -> list[Finding]:
    """A law that goes to dp-accounting and comes back is no cheaper, and theirs is priced as ours."""
    mechanism = acc.Gaussian(2.0) + acc.Laplace(3.0)
    theirs = acc.to_dp_accounting(mechanism, interval=1e-3)
    again = acc.LossLaw.from_dp_accounting(theirs)
    low = []
    for epsilon in (0.3, 1.0):
        true = acc.delta(mechanism, epsilon).lower
        for name, found in (
            ("there", theirs.get_delta_for_epsilon(epsilon)),
            ("back", acc.delta(again, epsilon).upper),
        ):
            if not found >= true * (1 - 1e-9):
                low.append(f"{name} at {epsilon}: {found:.3g} of {true:.3g}")
    return [holds("price: exchanged", not low, "; ".join(low) or "there and back")]


def _against_integrals(cases: dict[str, tuple[acc.Mechanism, str, int, Pair]]) -> list[Finding]:
    found = []
    for name, (mechanism, adjacency, group, pair) in cases.items():
        low = []
        for epsilon in EPSILONS:
            true = _delta(pair, epsilon)
            stated = acc.delta(mechanism, epsilon, adjacency=adjacency, group=group)
            if not stated.upper >= true * (1 - SLACK) - 1e-9:
                low.append(f"δ({epsilon}) = {stated.upper:.3g} of {true:.3g}")
            if 1e-6 < true < 0.4:
                at = acc.epsilon(mechanism, true * (1 - SLACK), adjacency=adjacency, group=group).upper
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
            _delta(_two_sided_geometric(one, group), group * one * 0.9),
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
    nested = ((acc.Gaussian(4.0) * 3 + acc.Gaussian(2.0)) * 2 + acc.Gaussian(4.0) * 5) * 2  # 22 of 4, and 4 of 2
    check("repeats of repeats", nested, 1.0, bounds.gaussian_delta(math.sqrt(22 / 16 + 4 / 4), 1.0))
    parts = dict(acc.Composed(((acc.Gaussian(4.0) * 3, 2), (acc.Gaussian(4.0), 1))).parts())
    if sum(parts.values()) != 7:
        low.append(f"a composition has {parts}")
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
        pair = _best_of(3.0, 5.0, law)
        check(f"best of a {law} number", selected, 0.5, _delta(pair, 0.5))
        for order in (2.0, 6.0):
            stated = float(acc.renyi(selected, [order])[0])
            if not stated >= _renyi(pair, order) * (1 - 1e-3):
                low.append(f"Rényi of the best of a {law} number: {stated:.4f} of {_renyi(pair, order):.4f}")
    for shape in (0.0, 0.5, 1.0, 2.0):
        selected = acc.Selected.of(acc.PureDP(one), 8.0, distribution="negative-binomial", eta=shape)
        # Up to (2 + η)ε, which the odds there nearly reach: the best outcome grows rarer, the one below it likelier.
        for epsilon in (1.5 * one, (1.6 + shape) * one):
            check(f"best of runs of shape {shape:g}", selected, epsilon, _best_of_three(one, shape, selected, epsilon))
    threshold = acc.Selected.of(acc.Gaussian(3.0), 5.0, distribution="threshold")
    check("the first good one", threshold, 0.5, _first_good(3.0, threshold.gamma, 0.5))
    return [
        holds("price: stated guarantees", not low, "; ".join(low) or "groups, sums and choices"),
        holds("price: bounded range", min(ranged) >= 1 - 1e-9, f"stated over true, at least {min(ranged):.5f}"),
    ]


def _two_sided_geometric(epsilon: float, moved: int) -> Pair:
    """Geometric noise on a count, which is ε-DP for one person, where a group moves the count."""
    k = np.arange(-400, 401)
    law = math.tanh(epsilon / 2) * np.exp(-epsilon * np.abs(k))
    return law, np.roll(law, moved)


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


def _best_of(sigma: float, runs: float, law: str) -> Pair:
    """The best of a random number of N(0, σ²) against that of N(1, σ²), the score being the value itself."""
    x = np.linspace(-9 * sigma, 9 * sigma + 1, 100_001)
    step, pair = x[1] - x[0], []
    for mean in (0.0, 1.0):
        density, below = stats.norm.pdf(x, mean, sigma), special.ndtr((x - mean) / sigma)
        if law == "geometric":
            p = 1 / runs
            pair.append(np.asarray(density * p / (1 - (1 - p) * below) ** 2 * step))
        else:
            pair.append(np.asarray(density * runs * np.exp(runs * (below - 1)) * step))
    return pair[0], pair[1]


def _best_of_three(epsilon: float, shape: float, selected: acc.Selected, at: float) -> float:
    """δ of the best of a number of runs of an ε-DP mechanism with three outcomes, over several odds of the best two."""

    def below(s: float) -> float:
        """The generating function of the number of runs: the chance that all of them have an outcome of chance s."""
        inside = 1 - (1 - selected.gamma) * s
        if shape == 0:
            return math.log(inside) / math.log(selected.gamma)
        return float((inside**-shape - 1) / (selected.gamma**-shape - 1))

    def law(best: float, second: float) -> Floats:
        none, neither = below(1 - best), below(1 - best - second)
        return np.array([1 - none, none - neither, neither])

    grow = math.exp(epsilon)
    # The third outcome keeps ε, too: its chance grows by no more than e^ε.
    odds = [
        (best, second)
        for best in np.geomspace(0.005, 0.45, 12)
        for second in np.geomspace(1e-4, 0.2, 8)
        if 1 - best - second * grow <= grow * (1 - best * grow - second)
    ]
    pairs = [(law(best, second * grow), law(best * grow, second)) for best, second in odds]
    return max(_delta(pair, at) for pair in pairs)


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


def _odometers() -> list[str]:
    """The chances with which a running ε is ever passed add up to δ, over all of its levels and orders.

    At order α a level that is left at a divergence ρ with the bound ε is passed with probability e^(-(α-1)(ε - ρ)).
    """
    delta, low = 1e-3, []
    for orders in ((4.0,), (4.0, 8.0, 16.0)):
        chances = 0.0
        for order in orders:
            meter, before, spent = acc.RenyiOdometer(delta, [order]), 0.0, 0.0
            for _ in range(400):
                after = meter.spend(acc.ZCDP(0.01 * (1 + spent)))
                if after > before > 0:  # the level before this one ended at about the divergence that was spent
                    chances += math.exp(-(order - 1) * (before - spent))
                before, spent = after, float(meter.spent[0])
        if not chances <= delta * len(orders):
            low.append(f"levels of an odometer fail with {chances:.3g}")
        meters = [acc.RenyiOdometer(delta, [o]).spend(acc.Gaussian(2.0)) for o in orders]  # each with all of δ
        alone = min(m + math.log(len(orders)) / (o - 1) for m, o in zip(meters, orders, strict=True))
        if not (several := acc.RenyiOdometer(delta, orders).spend(acc.Gaussian(2.0))) >= alone * (1 - 1e-9):
            low.append(f"an odometer of {len(orders)} orders states {several:.4f}, its best with its share {alone:.4f}")
    return low


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
    low += _odometers()
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
    Scene("prices: sampled and brought", "accounting", sampled_and_brought, long=True),
    Scene("prices: exchanged", "accounting", laws_are_exchanged, ("dp_accounting",)),
)
