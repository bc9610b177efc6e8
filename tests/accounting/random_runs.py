"""Random compositions over the whole catalogue, and what they release: enumerated, without code of ``tacit``.

A member is a mechanism with random parameters and the output laws of neighbours that it has. Laws are composed by
multiplying out their outcomes. Where there are too many, neighbouring ones are merged, which is post-processing: the
result is never above the truth, and close to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from tacit import accounting as acc
from tacit.accounting.poisson import Accumulated
from tests.catalogue import mechanisms as known
from tests.catalogue.laws import Array, Pair, laplace, mixed, response

#: Outcomes kept for one law and for a composition.
ONE, MANY = 150, 1200
Laws = Callable[[str], list[Pair]]


@dataclasses.dataclass(frozen=True)
class Member:
    """A mechanism, what it releases on neighbours, and where that is the worst there is."""

    mechanism: acc.Mechanism
    laws: Laws
    exact: tuple[str, ...] = acc.ADJACENCIES


def _uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def _table(rng: np.random.Generator) -> Member:
    """A random table of outcomes, also read as a loss law."""
    p, q = (rng.dirichlet(np.full(5, 3.0)) for _ in range(2))
    if rng.random() < 0.5:
        return Member(acc.Outcomes(p, q), known._same((p, q)))
    one, other = (np.log(a / b) for a, b in ((p, q), (q, p)))
    return Member(acc.LossLaw(one, p, 0.0, other, q), known._same((p, q)))


def _statement(rng: np.random.Generator) -> Member:
    """Statements about randomised response, which meets them exactly, or Gaussian noise, which is within them."""
    e = _uniform(rng, 0.05, 1.5)
    kind = rng.integers(4)
    if kind == 0:
        return Member(acc.ProfileDP([0.0, e], [math.tanh(e / 2), 0.0]), known._same(response(e)))
    if kind == 1:
        corner = 1 / (1 + math.exp(e))
        return Member(acc.TradeoffDP([0.0, corner, 1.0], [1.0, corner, 0.0]), known._same(response(e)))
    mu = e / 2
    orders = np.concatenate([np.linspace(1.1, 10, 60), np.geomspace(11, 500, 40)])
    curve = acc.RenyiDP(orders, orders * mu * mu / 2) if kind == 2 else acc.ZCDP(mu * mu / 2)
    return Member(curve, known._same(mixed({mu: 1.0}, {0.0: 1.0})), ())


def _noise(rng: np.random.Generator) -> Member:
    sigma, scale = _uniform(rng, 0.7, 8.0), _uniform(rng, 0.7, 10.0)
    kind = rng.integers(5)
    if kind == 0:
        return Member(acc.Gaussian(sigma), known._gaussian(sigma))
    if kind == 1:
        return Member(acc.Laplace(scale), known._laplace(scale))
    if kind == 2:
        return Member(acc.DiscreteGaussian(sigma), known._discrete_gaussian(sigma, 1, 2))
    if kind == 3:
        return Member(acc.DiscreteLaplace(scale), known._discrete_laplace(scale, 1, 2))
    return Member(acc.GDP(1 / sigma), known._same(mixed({1 / sigma: 1.0}, {0.0: 1.0})))


def _bare(rng: np.random.Generator) -> Member:
    e, d = _uniform(rng, 0.02, 1.5), _uniform(rng, 1e-9, 1e-3)
    kind = rng.integers(4)
    if kind == 0:
        return Member(acc.PureDP(e), known._same(response(e)))
    if kind == 1:
        return Member(acc.ApproxDP(e, d), known._same(response(e, d)))
    if kind == 2:
        return Member(acc.ExponentialMechanism(e), known._bounded_range(e), ())
    categories = int(rng.integers(2, 6))
    return Member(acc.RandomizedResponse(e, categories), known._answers(e, categories), ("replace-one",))


def _sampled(rng: np.random.Generator) -> Member:
    rate, e = _uniform(rng, 1e-3, 0.6), _uniform(rng, 0.1, 2.0)
    sigma = _uniform(rng, 0.6, 4.0)
    kind = rng.integers(7)
    there = ("add-remove",)
    if kind == 0:
        return Member(acc.PoissonSampled(acc.Gaussian(sigma), rate), known._poisson(sigma, rate))
    if kind == 1:
        return Member(acc.PoissonSampled(acc.Laplace(1 / e), rate), known._poisson(1 / e, rate, laplace), known.THERE)
    if kind == 2:
        return Member(acc.PoissonSampled(acc.PureDP(e), rate), known._sampled_response(e, 0.0, rate), there)
    if kind == 3:
        return Member(acc.PoissonSampled(acc.ApproxDP(e, 1e-4), rate), known._sampled_response(e, 1e-4, rate), there)
    if kind == 4:
        inner = known._discrete_laplace(1 / e, 1, 2)("add-remove")[0]
        return Member(acc.PoissonSampled(acc.DiscreteLaplace(1 / e), rate), _sample(inner, rate), there)
    if kind == 5:
        inner = known._discrete_gaussian(sigma, 1, 2)("add-remove")[0]
        return Member(acc.PoissonSampled(acc.DiscreteGaussian(sigma), rate), _sample(inner, rate), there)
    inner = known._bounded_range(e)("add-remove")[7]
    return Member(acc.PoissonSampled(acc.ExponentialMechanism(e), rate), _sample(inner, rate), ())


def _sample(pair: Pair, rate: float) -> Laws:
    p, q = pair
    return known._same(((1 - rate) * q + rate * p, q))


def _other(rng: np.random.Generator) -> Member:
    sigma, gamma = _uniform(rng, 2.0, 10.0), float(rng.uniform(0.15, 0.8))
    kind = rng.integers(8)
    if kind == 0:
        batch = int(rng.integers(10, 400))
        return Member(
            acc.FixedSizeSampled(acc.Gaussian(sigma), batch, 1000),
            known._fixed_size(sigma, batch / 1000),
            ("add-remove",),
        )
    if kind == 1:
        return Member(acc.Shuffled(acc.Gaussian(sigma)), known._gaussian(sigma), ())
    if kind == 2:
        return Member(acc.BallsInBins(acc.Gaussian(sigma), 20), known._balls(sigma, 20), ())
    if kind == 3:
        return Member(acc.Votes(3 * sigma), known._votes(3 * sigma, "any", known._won, 2.0), ())
    if kind == 4:
        return Member(
            acc.Selected(acc.Gaussian(sigma), gamma=gamma),
            known._best_of(sigma, known._negative_binomial(1.0, gamma)),
            (),
        )
    if kind == 5:
        return Member(acc.SmoothRelease(0.02, 5 * sigma), known._smooth(0.02, 5 * sigma, "any"), ())
    if kind == 6:
        rate = _uniform(rng, 0.01, 0.3)
        return Member(
            Accumulated(acc.PoissonSampled(acc.Gaussian(sigma), rate), 2),
            known._poisson(sigma, rate, times=2),
            known.THERE,
        )
    share = float(rng.uniform(0.1, 0.9))
    return Member(
        acc.Either(acc.Gaussian(sigma), acc.Laplace(sigma), share),
        known._either(share, known._gaussian(sigma), known._laplace(sigma)),
    )


FAMILIES = (_noise, _bare, _sampled, _other, _table, _statement)


def draw(rng: np.random.Generator) -> tuple[list[tuple[Member, int]], str]:
    """One to four members, each once to three times, and an adjacency that all of them cover."""
    while True:
        members = [
            (FAMILIES[rng.integers(len(FAMILIES))](rng), int(rng.integers(1, 4))) for _ in range(rng.integers(1, 5))
        ]
        shared = [a for a in acc.ADJACENCIES if all(a in m.mechanism.adjacencies() for m, _ in members)]
        if shared:
            return members, str(rng.choice(shared))


def merged(pair: Pair, most: int) -> Pair:
    """The same laws on at most ``most`` outcomes: those of nearly the same loss are seen as one."""
    p, q = pair
    kept = (p > 0) | (q > 0)
    p, q = p[kept], q[kept]
    if len(p) <= most:
        return p, q
    with np.errstate(divide="ignore"):
        loss = np.clip(np.log(p) - np.log(q), -60.0, 60.0)
    low, high = (float(x) for x in np.quantile(loss, [0.0005, 0.9995]))
    key = np.clip((loss - low) / max(high - low, 1e-300), 0.0, 1.0) * (most - 1)
    key = key.astype(int)
    key = np.where(q == 0, most, np.where(p == 0, most + 1, key))
    return np.bincount(key, p, most + 2), np.bincount(key, q, most + 2)


def composed(pairs: list[Pair]) -> Pair:
    """The law of all outputs together."""
    p, q = merged(pairs[0], ONE)
    for pair in pairs[1:]:
        one_p, one_q = merged(pair, ONE)
        p, q = merged((np.multiply.outer(p, one_p).ravel(), np.multiply.outer(q, one_q).ravel()), MANY)
    return p, q


def hockey_stick(p: Array, q: Array, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def outside(seed: int) -> list[str]:
    """Where the price of the composition of this seed contradicts what it releases."""
    rng = np.random.default_rng(seed)
    members, adjacency = draw(rng)
    laws = [(m.laws(adjacency), times) for m, times in members]
    chosen = [pairs[rng.integers(len(pairs))] for pairs, times in laws for _ in range(times)]
    p, q = composed(chosen)
    exact = all(adjacency in m.exact and len(pairs) == 1 for (m, _), (pairs, _) in zip(members, laws, strict=True))
    run = sum((m.mechanism * times for m, times in members), acc.nothing())
    found = []
    for epsilon in (0.0, _uniform(rng, 0.05, 4.0)):
        true = max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
        bound = acc.delta(run, epsilon, adjacency=adjacency)
        if bound.upper < true * (1 - 1e-9) - 1e-13:
            found.append(f"seed {seed}: δ({epsilon}) of {run!r}, {adjacency}: {bound!r}, and the truth is {true}")
        if exact and bound.lower > true * (1 + 0.02) + 1e-4:
            found.append(f"seed {seed}: the lower end of δ({epsilon}) of {run!r}, {adjacency}: {bound!r}, truth {true}")
    delta = _uniform(rng, 1e-8, 1e-2)
    bound = acc.epsilon(run, delta, adjacency=adjacency)
    if math.isfinite(bound.upper):
        true = max(hockey_stick(p, q, bound.upper), hockey_stick(q, p, bound.upper))
        if true > delta * (1 + 1e-9) + 1e-13:
            found.append(f"seed {seed}: ε({delta}) of {run!r}, {adjacency}: {bound!r}, and δ there is {true}")
    return found
