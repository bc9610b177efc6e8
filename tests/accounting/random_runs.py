"""Random compositions over the whole catalogue, and what they release: computed without code of ``tacit``.

    python -m tests.accounting.random_runs [--first 0] [--last 3000] [--done FILE]

A member is a mechanism with random parameters and the output laws of neighbours that it has. Of every output only the
number of a cell of its privacy loss is seen, and of all outputs the sum of these numbers. That is post-processing: the
result is never above the truth. It falls short of it by the square of the cell's width, so that the same with cells
twice as wide says by how much. ``--done`` keeps the seeds that passed, and a run that is begun again leaves them out.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tacit import accounting as acc
from tacit.accounting.poisson import Accumulated
from tests.catalogue import mechanisms as known
from tests.catalogue.laws import Array, Pair, binomial, cells, laplace, mixed, normal, together

#: Cells of the loss of a composition, and the probability that may lie beyond them for one law on either side.
CELLS, BEYOND = 1 << 17, 1e-13
Laws = Callable[[str], list[Pair]]


@dataclasses.dataclass(frozen=True)
class Member:
    """A mechanism, what it releases on neighbours, and where that is the worst there is."""

    mechanism: acc.Mechanism
    laws: Laws
    exact: tuple[str, ...] = acc.ADJACENCIES


class NotForGroups(Exception):
    """A mechanism has no price for groups, or what it releases of them is not known here."""


def _uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def _table(rng: np.random.Generator, group: int) -> Member:
    """A random table of outcomes, also read as a loss law."""
    p, q = (rng.dirichlet(np.full(5, 3.0)) for _ in range(2))
    # a group is at least one record
    exact = acc.ADJACENCIES if group == 1 else ()
    if rng.random() < 0.5:
        return Member(acc.Outcomes(p, q), known._same((p, q)), exact)
    one, other = (np.log(a / b) for a, b in ((p, q), (q, p)))
    return Member(acc.LossLaw(one, p, 0.0, other, q), known._same((p, q)), exact)


def _statement(rng: np.random.Generator, group: int) -> Member:
    """Statements about randomised response, which meets them exactly, or Gaussian noise, which is within them."""
    e = _uniform(rng, 0.05, 1.5)
    kind = rng.integers(4)
    exact = acc.ADJACENCIES if group == 1 else ()
    if kind == 0:
        return Member(acc.ProfileDP([0.0, e], [math.tanh(e / 2), 0.0]), _chain(e, group), exact)
    if kind == 1:
        corner = 1 / (1 + math.exp(e))
        return Member(acc.TradeoffDP([0.0, corner, 1.0], [1.0, corner, 0.0]), _chain(e, group), exact)
    mu = e / 2
    if kind == 2 and group > 1:
        raise NotForGroups
    orders = np.concatenate([np.linspace(1.1, 10, 60), np.geomspace(11, 500, 40)])
    curve = acc.RenyiDP(orders, orders * mu * mu / 2) if kind == 2 else acc.ZCDP(mu * mu / 2)
    return Member(curve, known._same(mixed({group * mu: 1.0}, {0.0: 1.0})), ())


def _noise(rng: np.random.Generator, group: int) -> Member:
    sigma, scale = _uniform(rng, 0.5, 20.0), _uniform(rng, 0.7, 10.0)
    far, steps = float(rng.choice([2.0, 1.0, math.sqrt(2)])), int(rng.integers(1, 4))
    kind = rng.integers(5)
    if kind == 0:
        return Member(acc.Gaussian(sigma, replace=far), known._gaussian(sigma / group, far))
    if kind == 1:
        return Member(acc.Laplace(scale, replace=far), known._laplace(scale / group, far))
    if kind == 2:
        laws = known._discrete_gaussian(sigma, steps * group, 2 * steps * group)
        return Member(acc.DiscreteGaussian(sigma, sensitivity=steps), laws)
    if kind == 3:
        laws = known._discrete_laplace(scale, steps * group, 2 * steps * group)
        return Member(acc.DiscreteLaplace(scale, sensitivity=steps), laws)
    return Member(acc.GDP(1 / sigma), known._same(mixed({group / sigma: 1.0}, {0.0: 1.0})))


def _bare(rng: np.random.Generator, group: int) -> Member:
    e, d = _uniform(rng, 0.02, 1.5), _uniform(rng, 1e-9, 1e-3)
    kind = rng.integers(4)
    if kind == 0:
        return Member(acc.PureDP(e), _chain(e, group))
    if kind == 1:
        return Member(acc.ApproxDP(e, d), _chain(e, group, d), acc.ADJACENCIES if group == 1 else ())
    if kind == 2:
        return Member(acc.ExponentialMechanism(e), known._bounded_range(group * e), ())
    categories = int(rng.integers(2, 6))
    laws = _each(known._answers(e, categories), group)
    return Member(acc.RandomizedResponse(e, categories), laws, ("replace-one",))


def _sampled(rng: np.random.Generator, group: int) -> Member:
    rate, e = _uniform(rng, 1e-4, 0.9), _uniform(rng, 0.1, 2.0)
    sigma = _uniform(rng, 0.5, 8.0)
    kind = rng.integers(14)
    there = ("add-remove",) if group == 1 else ()
    if kind == 0:
        exact = acc.ADJACENCIES if group == 1 else known.THERE
        return Member(acc.PoissonSampled(acc.Gaussian(sigma), rate), known._poisson(sigma, rate, times=group), exact)
    if kind == 1:
        laws = known._poisson(1 / e, rate, laplace, times=group)
        return Member(acc.PoissonSampled(acc.Laplace(1 / e), rate), laws, known.THERE if group == 1 else ())
    if kind in (2, 3):
        d = 1e-4 * (kind == 3)
        inner = acc.ApproxDP(e, d) if d else acc.PureDP(e)
        return Member(acc.PoissonSampled(inner, rate), _sample(_counted(e, group, d), rate), there)
    if kind == 4:
        laws = _sample(_counted(e, group), rate)
        return Member(acc.PoissonSampled(acc.DiscreteLaplace(1 / e), rate), laws, there)
    if kind == 5:
        k = np.arange(-200, 201 + group)
        many = [np.exp(-((k - j) ** 2) / (2 * sigma**2)) for j in range(group + 1)]
        laws = _sample([law / law.sum() for law in many], rate)
        return Member(acc.PoissonSampled(acc.DiscreteGaussian(sigma), rate), laws, there)
    if kind == 6:
        exact = ("add-remove",)
        return Member(acc.PoissonSampled(acc.GDP(1 / sigma), rate), known._poisson(sigma, rate, times=group), exact)
    if kind == 7:
        laws = known._poisson(sigma, rate, times=group)
        return Member(acc.PoissonSampled(acc.ZCDP(0.5 / sigma**2), rate), laws, ())
    if kind == 8:  # everybody sees who answered
        one, other = known._answers(e, 3)("replace-one")[0]
        seen = tuple(np.append(rate * law, 1 - rate) for law in (one, other))
        laws = _each(known._same((seen[0], seen[1])), group)
        return Member(acc.PoissonSampled(acc.RandomizedResponse(e, 3), rate), laws, ())
    if kind > 9:
        return _sampled_other(rng, rate, group)
    # two outcomes; every record that is there makes one of them likelier, by ε in the logarithm of the odds
    odds = np.exp(e * (np.arange(group + 1) - 0.5))
    laws = _sample([np.array([x, 1.0]) / (1 + x) for x in odds], rate)
    return Member(acc.PoissonSampled(acc.ExponentialMechanism(e), rate), laws, ())


def _sampled_other(rng: np.random.Generator, rate: float, group: int) -> Member:
    """A sample of what is not noise: tables, statements, votes, selections and draws; of a group one record moves."""
    while True:
        inner = (_table, _statement, _votes, _made_of_others)[rng.integers(4)](rng, 1)
        # no theorem covers what is sampled already, or shuffled
        refused = (*SAMPLERS, *ALONE) if group > 1 else SAMPLERS
        if "add-remove" in inner.mechanism.adjacencies() and not any(s in repr(inner.mechanism) for s in refused):
            break
    laws = lambda adjacency: [((1 - rate) * q + rate * p, q) for p, q in inner.laws(adjacency)]  # noqa: E731
    exact = tuple(a for a in inner.exact if a == "add-remove" and group == 1)
    return Member(acc.PoissonSampled(inner.mechanism, rate), laws, exact)


def _counted(epsilon: float, group: int, delta: float = 0.0) -> list[Array]:
    """An ε-DP count of 0 to ``group`` records that fails, and is told, with probability δ."""
    decay, found = math.exp(-epsilon), []
    for count in range(group + 1):
        law = math.tanh(epsilon / 2) * decay ** np.abs(np.arange(group + 1) - count)
        law[0] = decay**count / (1 + decay)  # and all below
        law[-1] = decay ** (group - count) / (1 + decay)  # and all above
        found.append(np.concatenate([(1 - delta) * law, delta * np.eye(group + 1)[count]]))
    return found


def _chain(epsilon: float, group: int, delta: float = 0.0) -> Laws:
    none, *_, all_of_them = _counted(epsilon, group, delta)
    return known._same((all_of_them, none))


def _each(laws: Laws, group: int) -> Laws:
    """What ``group`` records show, each by itself."""

    def together(adjacency: str) -> list[Pair]:
        found = []
        for one in laws(adjacency):
            p, q = one
            for _ in range(group - 1):
                p, q = np.outer(p, one[0]).ravel(), np.outer(q, one[1]).ravel()
            found.append((p, q))
        return found

    return together


def _sample(laws: list[Array], rate: float) -> Laws:
    """Laws with 0, 1, … records, of which each is sampled; or none of them is there."""
    drawn = binomial(len(laws) - 1, rate).values()
    return known._same((np.asarray(sum(p * law for p, law in zip(drawn, laws, strict=True))), laws[0]))


def _batches(rng: np.random.Generator, group: int) -> Member:
    """Samplers with batches of their own kind."""
    sigma, rate = _uniform(rng, 0.6, 10.0), _uniform(rng, 0.01, 0.4)
    kind = rng.integers(9)
    if group > 1 and kind in (0, 1, 4, 5):
        raise NotForGroups
    if kind == 0:
        batch, far = int(rng.integers(10, 400)), float(rng.choice([2.0, 1.0]))
        noise, laws = acc.Gaussian(sigma, replace=far), known._fixed_size(sigma, batch / 1000, far)
        return Member(acc.FixedSizeSampled(noise, batch, 1000), laws, ("add-remove",))
    if kind == 1:  # what is stated is the replacement; a blank is another record
        batch = int(rng.integers(10, 400))
        laws = known._same(mixed({0.0: 1 - batch / 1000, 1.0: batch / 1000}, {0.0: 1.0}, sigma))
        return Member(acc.FixedSizeSampled(acc.GDP(1 / sigma), batch, 1000), laws, ("add-remove",))
    if kind == 2:
        inner = (_noise, _bare)[rng.integers(2)](rng, group)
        bins = None if rng.random() < 0.3 else int(rng.integers(1, 50))
        return Member(acc.Shuffled(inner.mechanism, bins=bins), inner.laws, ())
    if kind == 3:
        bins = int(rng.integers(3, 60))
        laws = known._balls(sigma / group, bins) if group > 1 else _passes(sigma, bins)
        return Member(acc.BallsInBins(acc.Gaussian(sigma), bins), laws, ())
    if kind == 4:
        return Member(acc.BallsInBins(acc.Gaussian(sigma), 2), known._balls(sigma, 2), known.THERE)
    if kind == 5:
        bands = int(rng.integers(1, 9))
        laws = known._poisson(sigma, rate)
        return Member(acc.CyclicPoissonSampled(acc.Gaussian(sigma), rate, bands), laws, known.THERE)
    if kind in (6, 7):
        examples, limit = int(rng.integers(4, 14)), int(rng.integers(2, 9))
        if group >= examples:
            raise NotForGroups
        plain, noise = (acc.Gaussian(sigma), normal) if kind == 6 else (acc.Laplace(sigma), laplace)
        laws = _cut(sigma, rate, examples, limit, group, noise)
        return Member(acc.TruncatedPoissonSampled(plain, rate, examples, limit), laws, ())
    draws = int(rng.integers(2, 5))
    return Member(
        Accumulated(acc.PoissonSampled(acc.Gaussian(sigma), rate), draws),
        known._poisson(sigma, rate, times=draws * group),
        known.THERE,
    )


def _cut(
    sigma: float, rate: float, examples: int, limit: int, group: int, noise: Callable[[Array], tuple[Array, Array]]
) -> Laws:
    """Batches beyond ``limit`` are cut to an even draw of those that came; the others all add -1, 0 or 1."""

    def law(ours: float | None, each: float) -> dict[float, float]:
        found: dict[float, float] = {}
        for others, p in binomial(examples - group, rate).items():
            for own, r in binomial(0 if ours is None else group, rate).items():
                size = min(int(others + own), limit)
                ways = math.comb(int(others + own), size)
                for kept in range(int(max(0, size - others)), int(min(own, size)) + 1):
                    share = math.comb(int(own), kept) * math.comb(int(others), size - kept) / ways
                    shift = each * (size - kept) + (ours or 0.0) * kept
                    found[shift] = found.get(shift, 0.0) + p * r * share
        return found

    def laws(adjacency: str) -> list[Pair]:
        neighbour = {"add-remove": None, "replace-one": -1.0, "zero-out": 0.0}[adjacency]
        return [mixed(law(1.0, each), law(neighbour, each), sigma, noise=noise) for each in (-1.0, 0.0, 1.0)]

    return laws


def _passes(sigma: float, bins: int) -> Laws:
    """The ratio of a pass, added up bin by bin; of ratios that are close only the interval is seen."""
    edges = np.linspace(-8 * sigma, 8 * sigma + 1, 400)
    none, here = (cells((edges - shift) / sigma, normal) for shift in (0.0, 1.0))

    def near(q: Array, w: Array) -> tuple[Array, Array]:
        """Outcomes with the mass q without the record, and w summed over the bins that it may be in."""
        seen = (q > 1e-290) & (w > 1e-290)
        q, w = q[seen], w[seen]
        at = np.log(w / q)
        place = np.floor((at - at.min()) * (900 / max(float(np.ptp(at)), 1e-9))).astype(int)
        return np.bincount(place, q), np.bincount(place, w)

    def both(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
        (q, w), (r, v) = one, other
        return near(np.outer(q, r).ravel(), (np.outer(q, v) + np.outer(w, r)).ravel())

    def laws(adjacency: str) -> list[Pair]:
        if adjacency == "replace-one":
            return known._balls(sigma, bins)(adjacency)
        single = near(none, here)
        total, count = single, 1
        for bit in bin(bins)[3:]:
            total, count = both(total, total), 2 * count
            if bit == "1":
                total, count = both(total, single), count + 1
        return [(total[1] / count, total[0])]

    return laws


def _votes(rng: np.random.Generator, group: int) -> Member:
    noise = _uniform(rng, 3.0, 40.0)
    partition = str(rng.choice(["any", "keyed", "positions"]))
    kind = rng.integers(4)
    if kind == 0:
        return Member(
            acc.Votes(noise, partition=partition), known._votes(noise, partition, known._won, 2.0 * group), ()
        )
    if kind == 1:
        laws = known._votes(noise, partition, lambda x: float(ndtr(x)), 1.0 * group)
        return Member(acc.VoteCheck(noise, partition=partition), laws, ())
    if kind == 2:
        laws = known._votes(noise, partition, known._won_laplace, 2.0 * group)
        return Member(acc.LaplaceVotes(noise, partition=partition), laws, ())
    beta = _uniform(rng, 0.005, 0.05)
    laws = known._smooth(beta, 2 * noise, partition, group)
    return Member(acc.SmoothRelease(beta, 2 * noise, partition=partition), laws, ())


def _made_of_others(rng: np.random.Generator, group: int) -> Member:
    """Selections from a mechanism and draws of two, each of any other family."""
    base = _any(rng, group)
    kind = rng.integers(6)
    if kind > 3:
        other, share = _any(rng, group), float(rng.uniform(0.02, 0.98))
        if not set(base.mechanism.adjacencies()) & set(other.mechanism.adjacencies()):
            raise NotForGroups

        def drawn(adjacency: str) -> list[Pair]:
            ones, others = base.laws(adjacency), other.laws(adjacency)
            return [together((share, 1 - share), (one, o)) for one in ones for o in others]

        exact = tuple(a for a in base.exact if a in other.exact)
        return Member(acc.Either(base.mechanism, other.mechanism, share), drawn, exact)
    gamma, mean = float(rng.uniform(0.15, 0.8)), float(rng.uniform(1.0, 6.0))
    if kind == 3:
        at = float(rng.random())
        chosen = acc.Selected(base.mechanism, "threshold", gamma=gamma)
        return Member(chosen, _each_pair(base.laws, lambda p: _first_above(p, gamma, at)), ())
    eta = float(rng.choice([0.0, 1.0, -0.5, 2.5]))
    if kind == 2:
        chosen, runs = acc.Selected(base.mechanism, "poisson", mean=mean), lambda s: np.exp(mean * (s - 1))
    else:
        chosen, runs = acc.Selected(base.mechanism, eta=eta, gamma=gamma), known._negative_binomial(eta, gamma)
    return Member(chosen, _each_pair(base.laws, lambda p: _best_of(p, runs)), ())


def _any(rng: np.random.Generator, group: int) -> Member:
    return (_noise, _bare, _table, _statement, _votes, _poisson_noise)[rng.integers(6)](rng, group)


def _poisson_noise(rng: np.random.Generator, group: int) -> Member:
    sigma, rate = _uniform(rng, 0.7, 6.0), _uniform(rng, 1e-3, 0.5)
    exact = acc.ADJACENCIES if group == 1 else known.THERE
    return Member(acc.PoissonSampled(acc.Gaussian(sigma), rate), known._poisson(sigma, rate, times=group), exact)


def _each_pair(laws: Laws, change: Callable[[Array], Array]) -> Laws:
    """The same done to both laws of every pair, with the outcomes in the order of their loss."""

    def changed(adjacency: str) -> list[Pair]:
        found = []
        for p, q in laws(adjacency):
            with np.errstate(divide="ignore", invalid="ignore"):
                order = np.argsort(np.where(p + q > 0, np.log(p) - np.log(q), 0.0), kind="stable")
            found.append((change(p[order]), change(q[order])))
        return found

    return changed


def _best_of(law: Array, runs: Callable[[Array], Array]) -> Array:
    """The last outcome of several runs; ``runs`` is the generating function of their number."""
    at = runs(np.concatenate([[0.0], np.minimum(np.cumsum(law), 1.0)]))
    return np.concatenate([[max(float(at[0]), 0.0)], np.maximum(np.diff(at), 0.0)])  # the first: nothing was run


def _first_above(law: Array, gamma: float, at: float) -> Array:
    """Runs until one of the upper outcomes; after each that is none, stops with probability γ."""
    upper = law[int(at * len(law)) :]
    released = upper / (1 - (1 - gamma) * (1 - float(upper.sum())))
    return np.concatenate([[max(1 - float(released.sum()), 0.0)], released])


#: Names that a mechanism that is sampled already has in its description.
SAMPLERS = ("Sampled", "Shuffled", "BallsInBins", "Accumulated")
#: … and what is not priced for groups.
ALONE = ("RenyiDP",)
FAMILIES = (_noise, _bare, _sampled, _batches, _votes, _made_of_others, _table, _statement)


def draw(rng: np.random.Generator) -> tuple[list[tuple[Member, int]], str, int]:
    """One to four members, most of them once to three times, an adjacency that all of them cover, and a group."""
    group = 1 if rng.random() < 0.7 else int(rng.integers(2, 5))
    while True:
        try:
            members = [
                (
                    FAMILIES[rng.integers(len(FAMILIES))](rng, group),
                    int(rng.integers(1, 4)) if rng.random() < 0.9 else int(rng.integers(4, 40)),
                )
                for _ in range(rng.integers(1, 5))
            ]
        except NotForGroups:
            continue
        shared = [a for a in acc.ADJACENCIES if all(a in m.mechanism.adjacencies() for m, _ in members)]
        if shared:
            return members, str(rng.choice(shared)), group


# -- what they release ----


class Seen:
    """The sums of cell numbers of a composition: their laws under P and Q, and the masses that only one of them has."""

    def __init__(self, laws: list[tuple[Pair, int]], coarser: int, shift: int = 0) -> None:
        finite = [(_finite(p, q, coarser, shift), times) for (p, q), times in laws]
        length = sum(times * (high - low) for (_, _, _, low, high), times in finite)
        step = max(length, 1e-9) / (CELLS // coarser - sum(times for _, times in finite) - 2)
        transforms: list[NDArray[np.complex128]] = [np.ones(1, complex), np.ones(1, complex)]
        for (p, q, loss, low, high), times in finite:
            cell = np.floor((np.clip(loss, low, high) - low) / step).astype(int)
            for i, law in enumerate((p, q)):
                masses = np.bincount(cell, law, CELLS // coarser)
                transforms[i] = transforms[i] * np.fft.rfft(masses) ** times
        self.p, self.q = (np.maximum(np.fft.irfft(t, CELLS // coarser), 0.0) for t in transforms)
        only = [[1 - float(law[i].sum()) for i in (0, 1)] for law, _ in finite]
        self.only = [
            -math.expm1(sum(n * math.log1p(-one[i]) for one, (_, n) in zip(only, finite, strict=True)))
            if all(one[i] < 1 for one in only)
            else 1.0
            for i in (0, 1)
        ]

    def delta(self, epsilon: float) -> float:
        """The larger of both orders."""
        return float(self.orders(epsilon).max())

    def orders(self, epsilon: float) -> Array:
        """δ of both orders; what may be rounding of the transforms is left out."""
        grow = math.exp(epsilon)
        found = []
        for p, q, only in ((self.p, self.q, self.only[0]), (self.q, self.p, self.only[1])):
            over = p - grow * q
            found.append(max(only - 1e-12, 0.0) + float(over[over > 4e-16 * (1 + grow)].sum()))
        return np.array(found)

    def unsure(self, epsilon: float) -> float:
        """What rounding may have taken away."""
        return 4e-16 * (1 + math.exp(epsilon)) * float(np.count_nonzero(self.p + self.q > 1e-18)) + 1e-11


def _finite(p: Array, q: Array, coarser: int, shift: int) -> tuple[Array, Array, Array, float, float]:
    """Outcomes that both laws have, their losses, and where all but a negligible part of these lie."""
    if coarser > 1 and len(p) > 500:  # a continuous output, seen through wider bins
        spare = -(len(p) + shift) % coarser
        p, q = (np.pad(law, (shift, spare)).reshape(-1, coarser).sum(axis=1) for law in (p, q))
    both = (p > 0) & (q > 0)
    p, q = p[both], q[both]
    loss = np.log(p) - np.log(q)
    order = np.argsort(loss)
    p, q, loss = p[order], q[order], loss[order]
    kept = (np.cumsum(p + q) > BEYOND) & (np.cumsum((p + q)[::-1])[::-1] > BEYOND)
    return p, q, loss, float(loss[kept].min()), float(loss[kept].max())


def outside(seed: int) -> list[str]:
    """Where the price of the composition of this seed contradicts what it releases."""
    rng = np.random.default_rng(seed)
    members, adjacency, group = draw(rng)
    terms: dict[str, Any] = {"adjacency": adjacency, "group": group}
    laws = [(m.laws(adjacency), times) for m, times in members]
    chosen = [(pairs[rng.integers(len(pairs))], times) for pairs, times in laws]
    fine = Seen(chosen, 1)
    exact = all(adjacency in m.exact and len(pairs) == 1 for (m, _), (pairs, _) in zip(members, laws, strict=True))
    # in which part of a wide bin ε lies changes what the bin hides: bins of three begin at each of three places
    coarse = [Seen(chosen, *bins) for bins in ((2,), (4,), (3, 0), (3, 1), (3, 2))] if exact else []
    run = sum((m.mechanism * times for m, times in members), acc.nothing())
    found = []
    # bins beside an atom of Laplace noise are as wide at every resolution
    close = 2e-3 if any("Laplace(" in repr(m.mechanism) for m, _ in members) else 3e-5

    def most(epsilon: float) -> float:
        """The truth is not above this: the error falls with the square of the width of the cells."""
        here, twice, *more = (one.orders(epsilon) for one in (fine, *coarse))
        hidden = np.max([3 * abs(here - twice), *(abs(here - one) for one in more)], axis=0)
        return float((here * (1 + close) + hidden).max()) + fine.unsure(epsilon)

    epsilon = 0.0 if rng.random() < 0.2 else _uniform(rng, 0.05, 4.0)
    true, bound = fine.delta(epsilon), acc.delta(run, epsilon, **terms)
    if bound.upper < true * (1 - 1e-9) - 1e-11:
        found.append(f"seed {seed}: δ({epsilon}) of {run!r}, {terms}: {bound!r}, and the truth is {true}")
    if exact and bound.lower > most(epsilon):
        found.append(f"seed {seed}: the lower end of δ({epsilon}) of {run!r}, {terms}: {bound!r}, truth {true}")
    delta = _uniform(rng, 1e-8, 1e-2)
    bound = acc.epsilon(run, delta, **terms)
    if bound.upper < 20 and (true := fine.delta(bound.upper) - fine.unsure(bound.upper)) > delta * (1 + 1e-9):
        found.append(f"seed {seed}: ε({delta}) of {run!r}, {terms}: {bound!r}, and δ there is {true}")
    if exact and 0 < bound.lower < 20 and (true := most(bound.lower)) < delta:
        found.append(f"seed {seed}: the lower end of ε({delta}) of {run!r}, {terms}: {bound!r}, δ there is {true}")
    return found


def main() -> int:
    """Check many seeds; 1 where one contradicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=3000)
    parser.add_argument("--done", type=Path, help="a file of seeds that passed; they are not run again")
    options = parser.parse_args()
    done = set(map(int, options.done.read_text().split())) if options.done and options.done.exists() else set()
    failed = 0
    for seed in range(options.first, options.last):
        if seed in done:
            continue
        start = time.process_time()
        try:
            problems = outside(seed)
        except (ArithmeticError, RuntimeError, TypeError, ValueError):
            problems = [f"seed {seed}: {traceback.format_exc()}"]
        failed += bool(problems)
        if problems or time.process_time() - start > 5:
            print(f"{seed}: {time.process_time() - start:.1f} s", *problems, sep="\n  ", flush=True)
        if options.done and not problems:
            with options.done.open("a") as file:
                file.write(f"{seed}\n")
    print(f"{options.last - options.first} compositions, {failed} outside")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
