"""Every mechanism, with what it releases on neighbours: a truth that the price is held against.

An entry says for each adjacency how the outputs of neighbouring data sets are distributed, from what the mechanism does
and not from how it is priced (:mod:`tests.catalogue.laws` has no code of ``tacit``). :func:`problems` compares.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.special import ndtr

import tacit.accounting
from tacit import accounting as acc
from tacit.accounting.poisson import Accumulated
from tests.catalogue.laws import (
    Array,
    Pair,
    Truth,
    binomial,
    cells,
    laplace,
    mixed,
    normal,
    response,
    shifted,
    together,
)

Laws = Callable[[str], list[Pair]]
#: ε at which δ is compared, and the δ at which ε is.
EPSILONS, DELTA = (0.0, 0.3), 1e-4


@dataclasses.dataclass(frozen=True)
class Entry:
    """A mechanism and the output laws of its neighbours under each adjacency.

    ``exact`` names the adjacencies under which these are the worst neighbours there are, so that the price must meet
    them from both sides; elsewhere the price lies above them, and its ε at most ``factor`` times as high.
    """

    mechanism: acc.Mechanism
    laws: Laws
    exact: tuple[str, ...] = acc.ADJACENCIES
    factor: float = 1.0
    times: tuple[int, ...] = (1, 2)


def moved(far: float, adjacency: str) -> float:
    """How far one record moves a sum to which it adds at most 1."""
    return far if adjacency == "replace-one" else 1.0


def _gaussian(sigma: float, far: float = 2.0) -> Laws:
    return lambda adjacency: shifted(moved(far, adjacency), sigma)


def _laplace(scale: float, far: float = 2.0) -> Laws:
    return lambda adjacency: shifted(moved(far, adjacency), scale, laplace)


def _same(*pairs: Pair) -> Laws:
    return lambda adjacency: list(pairs)


def _discrete_gaussian(sigma: float, sensitivity: int, replace: int) -> Laws:
    def laws(adjacency: str) -> list[Pair]:
        k = np.arange(-200, 201)
        law = np.exp(-(k**2) / (2 * sigma**2))
        law /= law.sum()
        shift = replace if adjacency == "replace-one" else sensitivity
        return [(np.concatenate([np.zeros(shift), law]), np.concatenate([law, np.zeros(shift)]))]

    return laws


def _discrete_laplace(scale: float, sensitivity: int, replace: int) -> Laws:
    def laws(adjacency: str) -> list[Pair]:
        shift = replace if adjacency == "replace-one" else sensitivity
        # whole numbers from 0 to the shift; what lies beyond is seen as its end, and has one ratio for all
        inside = np.arange(1, shift)
        tail, middle = 1 / (1 + math.exp(-1 / scale)), math.tanh(0.5 / scale)
        law = np.concatenate([[tail], middle * np.exp(-inside / scale), [tail * math.exp(-shift / scale)]])
        return [(law[::-1], law)]

    return laws


def _answers(epsilon: float, categories: int) -> Laws:
    """A coin says whether an answer is true or one of all categories at random."""

    def laws(adjacency: str) -> list[Pair]:
        true = math.expm1(epsilon) / (math.expm1(epsilon) + categories)
        blind = np.full(categories, 1 / categories)
        one, other = (true * np.eye(categories)[i] + (1 - true) * blind for i in (0, 1))
        # a blank says anything: always the other answer, or one at random
        return [(one, other), (one, blind)] if adjacency == "zero-out" else [(one, other)]

    return laws


def _bounded_range(epsilon: float) -> Laws:
    """Two outcomes whose losses are t and t - ε."""
    found = []
    for t in np.linspace(0.01, 0.99, 15) * epsilon:
        q = -math.expm1(t - epsilon) / (math.exp(t) - math.exp(t - epsilon))
        p = q * math.exp(t)
        found.append((np.array([p, 1 - p]), np.array([q, 1 - q])))
    return _same(*found)


def _poisson(scale: float, rate: float, noise: Callable[[Array], tuple[Array, Array]] = normal, times: int = 1) -> Laws:
    def laws(adjacency: str) -> list[Pair]:
        drawn = binomial(times, rate)
        if adjacency == "replace-one":  # a record at 1 becomes one at -1
            return [mixed(drawn, {-shift: p for shift, p in drawn.items()}, scale, noise=noise)]
        return [mixed(drawn, {0.0: 1.0}, scale, noise=noise)]

    return laws


def _sampled_response(epsilon: float, delta: float, rate: float) -> Laws:
    p, q = response(epsilon, delta)
    return _same(((1 - rate) * q + rate * p, q))


def _cut(sigma: float, rate: float, examples: int, limit: int) -> Laws:
    """Batches beyond ``limit`` are cut at random; the others all add -1, 0 or 1."""

    def law(ours: float | None, each: float) -> dict[float, float]:
        found: dict[float, float] = {}

        def add(shift: float, p: float) -> None:
            found[shift] = found.get(shift, 0.0) + p

        for count, p in binomial(examples, rate).items():
            alone = min(count, limit)
            if ours is None:
                add(each * alone, p)
                continue
            add(each * alone, p * (1 - rate))
            kept = min(1.0, limit / (count + 1))
            add(each * min(count, limit - 1) + ours, p * rate * kept)
            add(each * limit, p * rate * (1 - kept))
        return found

    def laws(adjacency: str) -> list[Pair]:
        neighbour = {"add-remove": None, "replace-one": -1.0, "zero-out": 0.0}[adjacency]
        return [mixed(law(1.0, each), law(neighbour, each), sigma) for each in (-1.0, 0.0, 1.0)]

    return laws


def _fixed_size(sigma: float, rate: float, far: float = 2.0) -> Laws:
    """A record that is drawn displaces another, which lies as far away as one may."""

    def laws(adjacency: str) -> list[Pair]:
        drawn = {0.0: 1 - rate, far: rate}
        if adjacency == "zero-out":
            blank = {0.0: 1 - rate, far / 2: rate}
            return [mixed({0.0: 1 - rate, 1.0: rate}, {0.0: 1.0}, sigma), mixed(drawn, blank, sigma)]
        return [mixed(drawn, {0.0: 1.0}, sigma)]

    return laws


def _balls(sigma: float, bins: int) -> Laws:
    """Two bins seen as they are; more of them by their sum."""

    def laws(adjacency: str) -> list[Pair]:
        far = moved(2.0, adjacency)
        if bins > 2:
            return shifted(far, sigma * math.sqrt(bins))
        # a record at far/2 or -far/2 (or there and absent) in either bin
        low = -1.0 if adjacency == "replace-one" else 0.0
        edges = np.linspace(-9 * sigma, 9 * sigma, 160)

        def law(shift: float) -> Array:
            one, none = (cells((edges - s) / sigma, normal) for s in (shift, 0.0))
            return np.asarray(0.5 * (np.outer(one, none) + np.outer(none, one)).ravel())

        return [(law(low + far), law(low))]

    return laws


# -- votes ----


def teachers(partition: str, adjacency: str) -> int:
    """How many teachers a neighbour changes: a keyed person who is replaced leaves one and comes to another."""
    return 2 if partition == "keyed" and adjacency == "replace-one" else 1


def _yes(p: float, q: float) -> Pair:
    return np.array([p, 1 - p]), np.array([q, 1 - q])


def _votes(noise: float, partition: str, below: Callable[[float], float], step: float) -> Laws:
    """Which of two classes won, or whether a count passed; the distance to the other side is 0, 1 or several."""

    def laws(adjacency: str) -> list[Pair]:
        far = step * teachers(partition, adjacency)
        middles = (0.0, noise, -noise, -20 * noise)
        return [_yes(below((middle + far / 2) / noise), below((middle - far / 2) / noise)) for middle in middles]

    return laws


def _won(x: float) -> float:
    """P[N1 - N2 < x] for two standard normal variables."""
    return float(ndtr(x / math.sqrt(2)))


def _won_laplace(x: float) -> float:
    """P[L1 - L2 < x] for two Laplace variables of scale 1."""
    tail = 0.5 * math.exp(-abs(x)) * (1 + abs(x) / 2)
    return 1 - tail if x > 0 else tail


def _smooth(beta: float, noise: float, partition: str, group: int = 1) -> Laws:
    def laws(adjacency: str) -> list[Pair]:
        k = teachers(partition, adjacency) * group
        narrow = math.exp(-beta * k)
        far = narrow * sum(math.exp(beta * j) for j in range(k))
        return [
            mixed({far: 1.0}, {0.0: 1.0}, noise, other_scale=noise * narrow),
            mixed({float(k): 1.0}, {0.0: 1.0}, noise),
        ]

    return laws


# -- selections ----


def _best_of(sigma: float, runs: Callable[[Array], Array]) -> Laws:
    """The largest output of a random number of runs; ``runs`` is the generating function of their number."""

    def laws(adjacency: str) -> list[Pair]:
        far = moved(2.0, adjacency)
        edges = np.linspace(-9 * sigma, 9 * sigma + far, 3000)

        def law(shift: float) -> Array:
            below = np.concatenate([[0.0], ndtr((edges - shift) / sigma), [1.0]])
            at = runs(below)
            return np.concatenate([[at[0]], np.maximum(np.diff(at), 0.0)])  # at[0]: nothing was run

        return [(law(far), law(0.0))]

    return laws


def _first_above(sigma: float, gamma: float) -> Laws:
    """Runs until an output reaches a threshold; after each that does not, stops with probability γ."""

    def laws(adjacency: str) -> list[Pair]:
        far = moved(2.0, adjacency)
        found = []
        for threshold in (0.0, 2 * sigma):
            edges = np.linspace(threshold, 9 * sigma + far, 2000)

            def law(shift: float, edges: Array = edges) -> Array:
                above = np.concatenate([ndtr((shift - edges) / sigma), [0.0]])
                released = -np.diff(above) / (1 - (1 - gamma) * (1 - above[0]))
                return np.concatenate([[1 - released.sum()], released])

            found.append((law(far), law(0.0)))
        return found

    return laws


def _negative_binomial(eta: float, gamma: float) -> Callable[[Array], Array]:
    if eta == 0:
        return lambda s: np.log1p(-(1 - gamma) * s) / math.log(gamma)
    return lambda s: ((1 - (1 - gamma) * s) ** -eta - 1) / (gamma**-eta - 1)


def _either(share: float, one: Laws, other: Laws) -> Laws:
    return lambda adjacency: [together((share, 1 - share), (one(adjacency)[0], other(adjacency)[0]))]


NEVER: tuple[str, ...] = ()
THERE = ("add-remove", "zero-out")
G, L = acc.Gaussian, acc.Laplace

#: A table of outcomes, some Rényi orders, and the errors of randomised response with ε = ½.
TABLE: Pair = (np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.3, 0.4]))
ORDERS = tuple(1 + 0.1 * 1.3**k for k in range(32))
NO = 1 / (1 + math.exp(0.5))


def _loss_law(pair: Pair, failure: float = 0.0) -> acc.LossLaw:
    p, q = pair
    there, back = np.log(p / q), np.log(q / p)
    return acc.LossLaw(there, p * (1 - failure), failure, back, q * (1 - failure), failure)


def _failing(pair: Pair, failure: float) -> Pair:
    """With this probability all is told."""
    p, q = ((1 - failure) * law for law in pair)
    return np.append(p, [failure, 0.0]), np.append(q, [0.0, failure])


#: One of every mechanism: the tests that all of them must pass run over these.
ENTRIES: dict[str, Entry] = {
    "Gaussian": Entry(G(2.0), _gaussian(2.0)),
    "Gaussian votes": Entry(G(3.0, replace=1.5), _gaussian(3.0, 1.5)),
    "Laplace": Entry(L(4.0), _laplace(4.0)),
    "DiscreteGaussian": Entry(acc.DiscreteGaussian(5.0, sensitivity=2), _discrete_gaussian(5.0, 2, 4)),
    "RandomizedResponse": Entry(acc.RandomizedResponse(0.5, 4), _answers(0.5, 4)),
    "PureDP": Entry(acc.PureDP(0.25), _same(response(0.25))),
    "ApproxDP": Entry(acc.ApproxDP(0.25, 1e-8), _same(response(0.25, 1e-8))),
    "GDP": Entry(acc.GDP(0.4), _same(*shifted(0.4, 1.0))),
    "ZCDP": Entry(acc.ZCDP(0.05), _same(*shifted(math.sqrt(0.1), 1.0)), NEVER, 1.5),
    "ExponentialMechanism": Entry(acc.ExponentialMechanism(0.5), _bounded_range(0.5), NEVER, 1.5),
    "PoissonSampled Gaussian": Entry(acc.PoissonSampled(G(1.0), 0.05), _poisson(1.0, 0.05)),
    "PoissonSampled Laplace": Entry(acc.PoissonSampled(L(1.0), 0.05), _poisson(1.0, 0.05, laplace), THERE, 2.0),
    "PoissonSampled PureDP": Entry(
        acc.PoissonSampled(acc.PureDP(1.0), 0.05), _sampled_response(1.0, 0.0, 0.05), ("add-remove",)
    ),
    "PoissonSampled ApproxDP": Entry(
        acc.PoissonSampled(acc.ApproxDP(1.0, 1e-7), 0.05), _sampled_response(1.0, 1e-7, 0.05), ("add-remove",)
    ),
    "PoissonSampled GDP": Entry(acc.PoissonSampled(acc.GDP(1.0), 0.05), _poisson(1.0, 0.05)),
    "TruncatedPoissonSampled": Entry(
        acc.TruncatedPoissonSampled(G(1.0), 0.05, 2000, 190), _poisson(1.0, 0.05), NEVER, 1.01
    ),
    "FixedSizeSampled": Entry(acc.FixedSizeSampled(G(2.0), 50, 1000), _fixed_size(2.0, 0.05), ("add-remove",), 2.0),
    "Shuffled": Entry(acc.Shuffled(G(2.0), bins=20), _gaussian(2.0), NEVER, 1.001),
    "BallsInBins": Entry(acc.BallsInBins(G(2.0), 20), _balls(2.0, 20), NEVER, math.inf),
    "CyclicPoissonSampled": Entry(
        acc.CyclicPoissonSampled(G(2.0), 0.1, 4), _poisson(2.0, 0.1), ("add-remove", "zero-out")
    ),
    "CyclicPoissonSampled, all of a group": Entry(
        acc.CyclicPoissonSampled(G(1.0), 1.0, 3), _poisson(1.0, 1.0), ("add-remove", "zero-out")
    ),
    "Votes": Entry(acc.Votes(20.0), _votes(20.0, "any", _won, 2.0), NEVER, math.inf),
    "Votes keyed": Entry(acc.Votes(20.0, partition="keyed"), _votes(20.0, "keyed", _won, 2.0), NEVER, math.inf),
    "VoteCheck": Entry(
        acc.VoteCheck(20.0, partition="positions"),
        _votes(20.0, "positions", lambda x: float(ndtr(x)), 1.0),
        NEVER,
        math.inf,
    ),
    "LaplaceVotes": Entry(acc.LaplaceVotes(10.0), _votes(10.0, "any", _won_laplace, 2.0), NEVER, 2.0),
    "SmoothRelease": Entry(acc.SmoothRelease(0.01, 20.0), _smooth(0.01, 20.0, "any"), NEVER, 3.0),
    "Selected": Entry(acc.Selected(G(10.0), gamma=0.2), _best_of(10.0, _negative_binomial(1.0, 0.2)), NEVER, 2.5),
    "Either": Entry(
        acc.Either(G(10.0), acc.PoissonSampled(G(2.0), 0.1)),
        _either(0.5, _gaussian(10.0), _poisson(2.0, 0.1)),
    ),
    "DiscreteLaplace": Entry(acc.DiscreteLaplace(4.0, sensitivity=2), _discrete_laplace(4.0, 2, 4)),
    "Outcomes": Entry(acc.Outcomes((0.6, 0.3, 0.1), (0.3, 0.3, 0.4)), _same(TABLE)),
    "LossLaw": Entry(_loss_law(TABLE), _same(TABLE)),
    "RenyiDP": Entry(acc.RenyiDP(ORDERS, [a / 50 for a in ORDERS]), _same(*shifted(0.2, 1.0)), NEVER, 1.5),
    "ProfileDP": Entry(acc.ProfileDP((0.0, 0.5), (math.tanh(0.25), 0.0)), _same(response(0.5))),
    "TradeoffDP": Entry(acc.TradeoffDP((0.0, NO, 1.0), (1.0, NO, 0.0)), _same(response(0.5))),
    "Accumulated": Entry(Accumulated(acc.PoissonSampled(G(1.0), 0.05), 2), _poisson(1.0, 0.05, times=2), times=(1,)),
}

#: The same mechanisms with other parameters: each parameter of each class has two values here.
VARIED: dict[str, Entry] = {
    "Laplace, near": Entry(L(2.0, replace=1.0), _laplace(2.0, 1.0)),
    "DiscreteGaussian, near": Entry(acc.DiscreteGaussian(3.0, 1, replace=1), _discrete_gaussian(3.0, 1, 1)),
    "RandomizedResponse, yes or no": Entry(acc.RandomizedResponse(1.5), _answers(1.5, 2)),
    "PureDP, more": Entry(acc.PureDP(1.0), _same(response(1.0))),
    "ApproxDP, more": Entry(acc.ApproxDP(0.5, 1e-3), _same(response(0.5, 1e-3))),
    "DiscreteLaplace, near": Entry(acc.DiscreteLaplace(2.0, 1, replace=1), _discrete_laplace(2.0, 1, 1)),
    "Outcomes, more": Entry(acc.Outcomes((0.9, 0.1), (0.2, 0.8)), _same((np.array([0.9, 0.1]), np.array([0.2, 0.8])))),
    "LossLaw, failing": Entry(_loss_law((TABLE[0][::-1], TABLE[1][::-1]), 1e-3), _same(_failing(TABLE, 1e-3))),
    "LossLaw, alike": Entry(acc.LossLaw((-0.5, 0.5), (NO, 1 - NO)), _same(response(0.5))),
    "RenyiDP, more": Entry(acc.RenyiDP((2.0, 8.0), (1.0, 4.0)), _same(*shifted(1.0, 1.0)), NEVER, 3.0),
    "ProfileDP, more": Entry(acc.ProfileDP((0.3, 1.0), (0.1, 0.01)), _same(response(0.3, 0.01)), NEVER, math.inf),
    "TradeoffDP, more": Entry(acc.TradeoffDP((0.1, 0.5), (0.5, 0.2)), _same(response(0.1)), NEVER, math.inf),
    "GDP, more": Entry(acc.GDP(1.5), _same(*shifted(1.5, 1.0))),
    "ZCDP, more": Entry(acc.ZCDP(0.4), _same(*shifted(math.sqrt(0.8), 1.0)), NEVER, 1.5),
    "ExponentialMechanism, more": Entry(acc.ExponentialMechanism(2.0), _bounded_range(2.0), NEVER, 1.5),
    "PoissonSampled Gaussian, half": Entry(acc.PoissonSampled(G(2.0), 0.5), _poisson(2.0, 0.5)),
    "TruncatedPoissonSampled, few": Entry(
        acc.TruncatedPoissonSampled(G(1.5), 0.3, 6, 3), _cut(1.5, 0.3, 6, 3), NEVER, math.inf
    ),
    "FixedSizeSampled, near": Entry(
        acc.FixedSizeSampled(G(1.0, replace=1.0), 20, 100), _fixed_size(1.0, 0.2, 1.0), ("add-remove",), 2.0
    ),
    "CyclicPoissonSampled, seldom": Entry(
        acc.CyclicPoissonSampled(G(1.0), 0.02, 8), _poisson(1.0, 0.02), ("add-remove", "zero-out")
    ),
    "Shuffled Laplace": Entry(acc.Shuffled(L(2.0)), _laplace(2.0), NEVER, 1.001),
    "CyclicPoissonSampled, two groups": Entry(
        acc.CyclicPoissonSampled(G(1.5), 0.3, 2), _poisson(1.5, 0.3), ("add-remove", "zero-out")
    ),
    "BallsInBins, two": Entry(acc.BallsInBins(G(1.0), 2), _balls(1.0, 2), NEVER, 2.0),
    "Votes, less noise": Entry(acc.Votes(3.0), _votes(3.0, "any", _won, 2.0), NEVER, math.inf),
    "VoteCheck, keyed": Entry(
        acc.VoteCheck(5.0, partition="keyed"), _votes(5.0, "keyed", lambda x: float(ndtr(x)), 1.0), NEVER, math.inf
    ),
    "LaplaceVotes, keyed": Entry(
        acc.LaplaceVotes(4.0, partition="keyed"), _votes(4.0, "keyed", _won_laplace, 2.0), NEVER, 2.0
    ),
    "SmoothRelease, keyed": Entry(
        acc.SmoothRelease(0.05, 10.0, partition="keyed"), _smooth(0.05, 10.0, "keyed"), NEVER, 3.0
    ),
    "Selected, logarithmic": Entry(
        acc.Selected(G(5.0), eta=0.0, gamma=0.3), _best_of(5.0, _negative_binomial(0.0, 0.3)), NEVER, 2.5
    ),
    "Selected, Poisson": Entry(
        acc.Selected(G(8.0), "poisson", mean=3.0), _best_of(8.0, lambda s: np.exp(3.0 * (s - 1))), NEVER, 2.5
    ),
    "Selected, threshold": Entry(acc.Selected(G(8.0), "threshold", gamma=0.3), _first_above(8.0, 0.3), NEVER, 3.0),
    "Either, seldom": Entry(
        acc.Either(L(5.0), G(4.0), 0.9), _either(0.9, _laplace(5.0), _gaussian(4.0)), NEVER, 1.01, (1,)
    ),
    "Accumulated, thrice": Entry(
        Accumulated(acc.PoissonSampled(G(2.0), 0.2), 3), _poisson(2.0, 0.2, times=3), times=(1,)
    ),
}
ALL = ENTRIES | {name: dataclasses.replace(entry, times=(1,)) for name, entry in VARIED.items()}
MECHANISMS: dict[str, acc.Mechanism] = {name: entry.mechanism for name, entry in ENTRIES.items()}


# -- what is checked ----


def kinds() -> set[type[acc.Mechanism]]:
    """Every public mechanism of the package, found in the tree of classes."""
    for module in pkgutil.iter_modules(tacit.accounting.__path__):
        importlib.import_module(f"tacit.accounting.{module.name}")

    def below(cls: type[acc.Mechanism]) -> Iterator[type[acc.Mechanism]]:
        for child in cls.__subclasses__():
            yield child
            yield from below(child)

    found = {cls for cls in below(acc.Mechanism) if cls.__module__.startswith("tacit.") and cls.__name__[0] != "_"}
    return found - {acc.Composed}  # what is composed here is everything else


def problems(entry: Entry, adjacency: str) -> list[str]:
    """Where the price of an entry contradicts what it releases."""
    mechanism, found = entry.mechanism, []
    exact = adjacency in entry.exact
    pairs = entry.laws(adjacency)
    for times in entry.times:
        truth = Truth(pairs, times)
        run = mechanism * times
        for epsilon in EPSILONS[times - 1 :]:
            bound = acc.delta(run, epsilon, adjacency=adjacency)
            found += _compared(f"δ({epsilon}) of {run!r}", bound, truth.delta(epsilon), exact, 3e-4)
        bound, true = acc.epsilon(run, DELTA, adjacency=adjacency), truth.epsilon(DELTA)
        found += _compared(f"ε({DELTA}) of {run!r}", bound, true, exact, 3e-4)
        if bound.upper > entry.factor * true + 1e-3:
            found.append(f"{run!r} is priced at {bound.upper}; what it releases costs {true}")
    pure, largest = acc.epsilon(mechanism, 0, adjacency=adjacency), Truth(pairs).largest
    if math.isfinite(pure.upper):
        found += _compared(f"pure ε of {mechanism!r}", pure, largest, exact, 1e-6)
    elif largest < 1 and exact:
        found.append(f"{mechanism!r} has no pure price; its largest loss is {largest}")
    return found


def _compared(what: str, bound: acc.Bound, true: float, exact: bool, close: float) -> list[str]:
    if bound.upper < true * (1 - 1e-9) - 1e-12:
        return [f"{what} is priced at {bound.upper}, and the truth is {true}"]
    slack = close * true + (1e-7 if bound.quantity == "delta" else 1e-4)
    if exact and not (bound.lower <= true + slack and bound.upper <= true + slack):
        return [f"{what} is priced in [{bound.lower}, {bound.upper}], and the truth is {true}"]
    return []


def noisier(mechanism: acc.Mechanism) -> acc.Mechanism:
    """The same with more noise, or a smaller guarantee."""
    scaled = {"noise_multiplier": 2.0, "scale": 2.0, "sigma": 2.0, "noise": 2.0, "epsilon": 0.5, "mu": 0.5, "rho": 0.5}
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(mechanism):
        value = getattr(mechanism, field.name)
        if field.name in scaled:
            changes[field.name] = value * scaled[field.name]
        elif field.name in ("divergences", "deltas"):
            changes[field.name] = tuple(0.5 * one for one in value)
        elif isinstance(value, acc.Mechanism):
            changes[field.name] = noisier(value)
    if isinstance(mechanism, acc.Outcomes):
        changes["p"] = tuple(0.5 * (one + other) for one, other in zip(mechanism.p, mechanism.q, strict=True))
    if isinstance(mechanism, acc.TradeoffDP):
        guessing = zip(mechanism.type_one, mechanism.type_two, strict=True)
        changes["type_two"] = tuple(0.5 * (1 - alpha + beta) for alpha, beta in guessing)
    if isinstance(mechanism, acc.LossLaw):  # of a draw whose other side tells nothing
        for side in ("", "reversed_"):
            values, masses = getattr(mechanism, f"{side}losses"), getattr(mechanism, f"{side}masses")
            if values:
                changes[f"{side}losses"] = (*values, 0.0)
                changes[f"{side}masses"] = (*(0.5 * one for one in masses), 0.5)
                changes[f"{side}infinity"] = 0.5 * getattr(mechanism, f"{side}infinity")
    return dataclasses.replace(mechanism, **changes)


def description_problems(mechanism: acc.Mechanism) -> list[str]:
    """Where a description does not mean one thing: written and read, compared, hashed."""
    again = acc.from_dict(json.loads(json.dumps(mechanism.to_dict())))
    found = []
    if again != mechanism or hash(again) != hash(mechanism) or repr(again) != repr(mechanism):
        found.append(f"{mechanism!r} was written and read as {again!r}")
    other = noisier(mechanism)
    if other == mechanism or other.to_dict() == mechanism.to_dict():
        found.append(f"{mechanism!r} has nothing that says how much noise there was")
    for adjacency in mechanism.adjacencies()[:2]:
        less, more = (
            (acc.delta(m, 0.0, adjacency=adjacency).upper, acc.epsilon(m, DELTA, adjacency=adjacency).upper)
            for m in (other, mechanism)
        )
        if less == more or less[0] > more[0] or less[1] > more[1]:
            found.append(f"with more noise {mechanism!r} costs no less: {less}, {more}")
    return found


def unlisted(entries: dict[str, Entry], known: set[type[acc.Mechanism]]) -> list[str]:
    """Mechanisms without an entry, and parameters of mechanisms with one value only."""
    found = [f"{cls.__name__} has no entry" for cls in known - {type(e.mechanism) for e in entries.values()}]
    for cls in known:
        listed = [entry.mechanism for entry in entries.values() if type(entry.mechanism) is cls]
        for field in dataclasses.fields(cls):
            values = [getattr(mechanism, field.name) for mechanism in listed]
            if field.name not in ("unit", "adjacency") and values and all(v == values[0] for v in values):
                found.append(f"{cls.__name__}.{field.name} is {values[0]!r} in every entry")
    return sorted(found)
