"""Which privacy losses are made of others? Draws, Poisson samples, and the pair behind a bound on δ(ε).

- :class:`DrawnLoss`: one of several mechanisms ran, and which one is released.
- :class:`SampledLoss`: a mechanism ran on a Poisson sample, given the loss of any pair that dominates the mechanism.
- :func:`law_of_profile`: a pair whose δ(ε) lies on or above given points. So whatever bounds δ(ε) (Rényi divergences, a
  trade-off curve, a theorem) becomes a loss that composes with all others.

Proofs: docs/explanation/derived-pairs.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from tacit.accounting.losses import MANY, ROUND, Array, AtomsLoss, ComplexArray, Loss, log_of, log_sum

#: What bounds on δ(ε) are raised by, so that rounding in the masses made of them stays on the safe side.
RAISED = 1e-12
#: A sample of more values than this is kept as two laws of fewer.
MOST_VALUES, FEW = 1 << 18, 1 << 15
#: Points whose ε differ by less than this, relative, are one point.
SAME = 1e-12


class DrawnLoss(Loss):
    """The loss of a draw that is released: with probability ``weight`` the loss of that member."""

    def __init__(self, members: Sequence[tuple[Loss, float]]) -> None:
        self.members = [(loss, weight) for loss, weight in members if weight > 0]
        self.infinity = math.fsum(weight * loss.infinity for loss, weight in self.members)
        self.supremum = max(loss.supremum for loss, _ in self.members)
        self.analytic = all(loss.analytic for loss, _ in self.members)
        self.symmetric = all(loss.symmetric for loss, _ in self.members)

    def given_finite(self) -> Loss:
        if self.infinity == 0:
            return self
        rest = [(loss.given_finite(), w * (1 - loss.infinity) / (1 - self.infinity)) for loss, w in self.members]
        return DrawnLoss([(loss, weight) for loss, weight in rest if weight > 0])

    def log_mgf(self, c: float, t: Array) -> tuple[ComplexArray, Array]:
        found = [(loss.log_mgf(c, t), math.log(weight)) for loss, weight in self.members]
        top = max(float(value[0].real) + log_w for (value, _), log_w in found)
        terms = [np.exp(value + (log_w - top)) for (value, _), log_w in found]
        total = sum(terms)
        error = sum(
            np.abs(term) * np.expm1(np.minimum(e + ROUND * (8 + 2 * np.abs(value)), 30.0))
            for term, ((value, e), _) in zip(terms, found, strict=True)
        )
        logs, off = log_of(np.asarray(total), np.maximum(error, 1e-300))  # terms may be too small to have a number
        return top + logs, off

    def tilted(self, c: float) -> tuple[float, float, float, float]:
        found = [loss.tilted(c) for loss, _ in self.members]
        _, total, weights = log_sum(
            np.array([k + math.log(w) for (k, *_), (_, w) in zip(found, self.members, strict=True)])
        )
        mean = float(sum(w * one[2] for w, one in zip(weights, found, strict=True)))
        variance = float(sum(w * (one[3] + (one[2] - mean) ** 2) for w, one in zip(weights, found, strict=True)))
        error = max(one[1] for one in found) + ROUND * (8 + 4 * abs(total))
        return total, error, mean, variance

    def decay(self, c: float) -> Callable[[float], float]:
        bounds = [loss.decay(c) for loss, _ in self.members]
        _, _, shares = log_sum(np.array([loss.tilted(c)[0] + math.log(w) for loss, w in self.members]))

        def bound(t: float) -> float:
            size = sum(s * math.exp(b(t)) for s, b in zip(shares, bounds, strict=True))
            return min(0.0, math.log(size) + 1e-12) if size > 0 else -700.0  # so small that it has no number

        return bound

    def cells(self, edges: Array) -> tuple[Array, Array]:
        p, q = np.zeros(len(edges) + 1), np.zeros(len(edges) + 1)
        for loss, weight in self.members:
            one_p, one_q = loss.cells(edges)
            p, q = p + weight * one_p, q + weight * one_q
        return p, q

    def atoms(self) -> tuple[Array, Array]:
        return self._atoms

    @functools.cached_property
    def _atoms(self) -> tuple[Array, Array]:
        found = [(values, weight * mass) for loss, weight in self.members for values, mass in [loss.atoms()]]
        values, mass = (np.concatenate(column) for column in zip(*found, strict=True))
        order = np.argsort(values, kind="stable")
        return values[order], mass[order]

    def spacing(self) -> float | None:
        gaps = {loss.spacing() for loss, _ in self.members if loss.spacing()}
        return gaps.pop() if len(gaps) == 1 else None

    def unseen(self) -> float:
        return math.fsum(weight * loss.unseen() for loss, weight in self.members)

    def profile(self, epsilon: float) -> tuple[float, float]:
        found = [(weight, *loss.profile(epsilon)) for loss, weight in self.members]
        return math.fsum(w * value for w, value, _ in found), math.fsum(w * error for w, _, error in found) * (
            1 + 1e-12
        )


class SampledLoss(Loss):
    """The loss of a Poisson sample, from that of a pair (P, Q) that dominates the mechanism without sampling.

    Removing: (1-q)Q + qP against Q, with P the law that has the record. Adding: P against (1-q)P + qQ, with Q the one
    that has it (Zhu, Dong & Wang 2022, theorem 11).
    """

    analytic = False

    def __init__(self, base: Loss, rate: float, direction: str) -> None:
        self.base, self.rate, self.removing = base, rate, direction == "remove"
        self.missing = math.log1p(-rate)  # the loss where the record is surely absent
        if self.removing:
            self.infinity = rate * base.infinity
            self.supremum = self._image(base.supremum) if math.isfinite(base.supremum) else math.inf
        else:
            self.supremum = self._image(base.supremum)

    def _image(self, loss: float) -> float:
        """log(1 - q + qe^l), or for adding -log(1 - q + qe^{-l})."""
        if self.removing:
            if loss > 700:
                return float(np.logaddexp(self.missing, math.log(self.rate) + loss))
            return math.log1p(self.rate * math.expm1(loss))
        return -math.log1p(self.rate * math.expm1(-loss)) if loss > -700 else -self.rate * math.exp(-loss)

    def given_finite(self) -> Loss:
        return self if self.infinity == 0 else GivenFinite(self)

    def _preimage(self, wanted: Array) -> Array:
        """The unsampled loss at which log(1 - q + qe^l) takes each wanted value; -inf where none does."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            near = np.log1p(np.maximum(np.expm1(np.minimum(wanted, 50.0)) / self.rate, -1.0))
            far = wanted - math.log(self.rate) + np.log1p(-(1 - self.rate) * np.exp(-np.maximum(wanted, 1.0)))
        return np.where(wanted > 50, far, near)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        inner = self._preimage(edges) if self.removing else -self._preimage(-edges)
        finite = np.clip(inner, -1e300, 1e300)
        p, q = self.base.cells(finite)
        # beyond what the loss can be there is nothing, not even what the rounding of the logarithm leaves
        if self.removing:
            p, q = (
                np.where(np.append(inner, np.inf) == -np.inf, 0.0, p),
                np.where(np.append(inner, np.inf) == -np.inf, 0.0, q),
            )
            return (1 - self.rate) * q + self.rate * p, q
        gone = np.append(-np.inf, inner) == np.inf
        p, q = np.where(gone, 0.0, p), np.where(gone, 0.0, q)
        return p, (1 - self.rate) * p + self.rate * q

    def atoms(self) -> tuple[Array, Array]:
        return self._atoms

    @functools.cached_property
    def _atoms(self) -> tuple[Array, Array]:
        values, p = self.base.atoms()
        if len(values) > MANY and np.abs(values).max() < 700:
            sign = 1 if self.removing else -1
            image = sign * np.log1p(self.rate * np.expm1(sign * values))
        else:
            image = np.array([self._image(float(x)) for x in values])
        if self.removing:
            with np.errstate(over="ignore"):
                mass = (1 - self.rate) * p * np.exp(-values) + self.rate * p
            if (hidden := self.base.unseen()) > 0:
                image, mass = np.append(self.missing, image), np.append((1 - self.rate) * hidden, mass)
        else:
            mass = p
            if self.base.infinity > 0:
                image, mass = np.append(image, -self.missing), np.append(mass, self.base.infinity)
        return image[mass > 0], mass[mass > 0]

    def spacing(self) -> float | None:
        values = self.atoms()[0]
        return float(values[-1] - values[0]) if len(values) == 2 else None

    def unseen(self) -> float:
        return 0.0 if self.removing else self.rate * self.base.unseen()

    def log_moments(self, c: Array, cells: int = 2048) -> Array:
        """Upper bounds on log E[e^{cL}] for every c, given that the loss is finite.

        E_Q[g(u)] with u the ratio of the unsampled pair and g(u) = (1 - q + qu)^a convex: on every cell of u a chord
        lies above g, and the masses of P and Q on the cell say what it integrates to.
        """
        exponents = c + 1 if self.removing else c
        sign = 1.0 if self.removing else -1.0
        values, p = self.atoms()
        exponent = np.multiply.outer(c, values) + np.log(p)
        top = exponent.max(axis=1) if len(values) else np.full(len(c), -math.inf)
        total = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1)) if len(values) else top
        reach = self.base.supremum
        if math.isfinite(reach) and reach > 0:
            edges = np.linspace(-reach, reach, cells + 1)
            first, second = (m[1:-1] for m in self.base.cells(edges))
            if not self.removing:  # everything seen from the law that has no record
                edges, first, second = -edges[::-1], second[::-1], first[::-1]
            u, height = np.exp(edges), np.log1p(self.rate * np.expm1(edges))
            part = np.clip((first - second * u[:-1]) / np.diff(u), 0.0, second)  # what the upper edge carries
            for i, a in enumerate(exponents):
                g = sign * a * height
                most = float(g.max())
                chords = float((second - part) @ np.exp(g[:-1] - most) + part @ np.exp(g[1:] - most))
                if chords > 0:
                    total[i] = np.logaddexp(total[i], most + math.log(chords))
        elif self.base.cells(np.zeros(1))[0].sum() > 0:
            return np.full(len(c), math.inf)
        if self.infinity:
            total = total - math.log1p(-self.infinity)
        return np.asarray(total + 1e-12 * (1 + np.abs(total)))


def sampled(base: Loss, rate: float, direction: str) -> Loss:
    """The loss of a Poisson sample of a pair: of finitely many outcomes, one that has moments too."""
    loss = SampledLoss(base, rate, direction)
    many = len(loss.atoms()[0]) > MOST_VALUES and loss.infinity == 0
    if not (isinstance(base, AtomsLoss) or (many and not any(mass.any() for mass in base.cells(np.zeros(1))))):
        return loss
    return BracketedLoss(*loss.atoms()) if many else AtomsLoss(*loss.atoms(), loss.infinity, symmetric=False)


class BracketedLoss(Loss):
    """A loss with so many values that two laws of fewer stand for it: one that dominates it, and one that it dominates.

    The values are put into cells. Above, the mass of a cell goes to its first and its last value so that those of P and
    of Q are kept. Below, only the number of the cell is seen. Both are off by the square of a cell's width.
    """

    analytic = False

    def __init__(self, values: Array, p: Array) -> None:
        order = np.argsort(values, kind="stable")
        values, p = values[order], p[order]
        each = -(-len(values) // FEW)
        starts = np.arange(0, len(values), each)
        first, last = values[starts], values[np.minimum(starts + each, len(values)) - 1]
        fall = np.repeat(first, each)[: len(values)] - values
        total, seen_by_q = np.add.reduceat(p, starts), np.add.reduceat(p * np.exp(fall), starts)
        with np.errstate(invalid="ignore", divide="ignore"):
            up = np.add.reduceat(p * -np.expm1(fall), starts) / -np.expm1(first - last) * (1 + 1e-12)
        up = np.where(first < last, np.minimum(up, total), total)
        ends, masses = (np.stack(pair, axis=1).ravel() for pair in ((first, last), (total - up, up)))
        self.above = AtomsLoss(ends, masses, symmetric=False)
        told = np.minimum(first - np.log(seen_by_q / total), last)
        self.below = AtomsLoss(told - 1e-13 * (1 + np.abs(told)), total, symmetric=False)
        self.supremum = self.above.supremum

    def between(self, step: float, tail: float) -> tuple[Loss, Loss]:
        return self.above, self.below

    def cells(self, edges: Array) -> tuple[Array, Array]:
        return self.above.cells(edges)

    def atoms(self) -> tuple[Array, Array]:
        return self.above.atoms()

    def profile(self, epsilon: float) -> tuple[float, float]:
        (high, over), (low, under) = self.above.profile(epsilon), self.below.profile(epsilon)
        return 0.5 * (high + low), 0.5 * abs(high - low) + over + under


class GivenFinite(Loss):
    """A loss given that it is finite: the masses of P are scaled up, and those of Q with them; the values stay."""

    analytic = False

    def __init__(self, loss: SampledLoss) -> None:
        self.loss, self.scale = loss, 1 / (1 - loss.infinity)
        self.symmetric = loss.symmetric
        values = loss.atoms()[0]
        self.supremum = loss.supremum
        if math.isinf(self.supremum) and len(values) and loss.cells(np.array([values[-1]]))[0][1] == 0:
            self.supremum = float(values[-1])

    def cells(self, edges: Array) -> tuple[Array, Array]:
        p, q = self.loss.cells(edges)
        return p * self.scale, q * self.scale

    def atoms(self) -> tuple[Array, Array]:
        values, mass = self.loss.atoms()
        return values, mass * self.scale

    def spacing(self) -> float | None:
        return self.loss.spacing()


# -- from bounds on δ(ε) to a pair ----


def law_of_profile(
    epsilons: Array, deltas: Array, *, spacing: float | None = None, symmetric: bool = False
) -> AtomsLoss:
    """The pair of the largest convex function of e^ε below the points (e^ε, δ) and (0, 1); constant after the last.

    δ(ε) of any pair is convex in e^ε, falls, and is 1 at e^ε = 0. So if it lies below the points it lies below this
    function, and the pair made here dominates. Its infinite loss has the probability of the last δ.
    """
    at: list[float] = []
    height: list[float] = []
    raised = np.clip(deltas * (1 + RAISED), 0.0, 1.0)
    for x, h in zip(epsilons.tolist(), raised.tolist(), strict=True):
        if height and x - at[-1] <= SAME * (1 + abs(x)):  # one of the two: fewer points leave a larger function
            if h >= height[-1]:
                continue
            at.pop()
            height.pop()
        while height and _turns(at, height, x, h):
            at.pop()
            height.pop()
        if not height or h < height[-1]:
            at.append(x)
            height.append(h)
    x, h = np.array(at), np.array(height)
    if len(x) == 0 or h[-1] >= 1:
        return AtomsLoss([], [], infinity=1.0)
    gap = np.diff(x)
    fall = -np.diff(h)
    masses = np.concatenate([[1 - h[0]], fall / -np.expm1(-gap)])
    masses[:-1] -= fall / np.expm1(np.minimum(gap, 700.0))
    masses = np.where(masses > 4 * ROUND * np.append(1.0, h[:-1]), masses, 0.0)
    # what rounding left out or added goes to the largest loss
    masses[-1] = max(masses[-1] + (1 - h[-1] - math.fsum(masses)), 0.0)
    return AtomsLoss(x, masses, infinity=float(h[-1]), spacing=spacing, symmetric=symmetric)


def _turns(at: list[float], height: list[float], x: float, h: float) -> bool:
    """Whether the last point lies on or above the chord from the one before it (or from (0, 1)) to a new one."""
    fall_after = height[-1] - h
    before = height[-2] - height[-1] if len(height) > 1 else 1 - height[-1]
    gap = at[-1] - at[-2] if len(at) > 1 else math.inf
    return before / -math.expm1(-gap) <= fall_after / math.expm1(min(x - at[-1], 700.0))


def symmetric_law(epsilons: Array, deltas: Array, *, spacing: float | None = None) -> AtomsLoss:
    """The same for bounds that hold in both directions at ε >= 0: below 0, δ(-x) = 1 - e^{-x}(1 - δ(x))."""
    inner = epsilons > 0
    mirrored = -epsilons[inner][::-1]
    at = np.concatenate([mirrored, epsilons])
    below = 1 - np.exp(mirrored) * (1 - np.minimum(deltas[inner][::-1], 1.0))
    return law_of_profile(at, np.concatenate([below, deltas]), spacing=spacing, symmetric=True)


def law_below(profile: Callable[[float], float], top: float, *, points: int = 400) -> AtomsLoss:
    """The symmetric pair of a bound on δ(ε), read at equidistant ε from 0 to ``top``."""
    step = top / points
    grid = step * np.arange(points + 1)
    return symmetric_law(grid, np.array([profile(float(x)) for x in grid]), spacing=step)


def least_of(losses: Sequence[Loss], *, points: int = 600) -> Loss:
    """A pair that dominates whatever all of these dominate: the largest convex function below all their δ(ε)."""
    if len(losses) == 1:
        return losses[0]
    top = reach(losses)
    step = top / points
    grid = step * np.arange(-points, points + 1)
    deltas = np.array([min(upper_end(loss, float(x)) for loss in losses) for x in grid])
    if all(loss.symmetric for loss in losses):
        return symmetric_law(grid[points:], deltas[points:], spacing=step)
    return law_of_profile(grid, deltas, spacing=step)


def reach(losses: Sequence[Loss], least: float = 1e-40) -> float:
    """The smallest loss at which one of these has a δ of at most ``least`` more than at any, or that none exceeds."""
    top, always = min(loss.supremum for loss in losses), min(loss.infinity for loss in losses)
    high = min(1e-6, top)
    while high < top and high < 700 and min(sum(x.profile(high), x.infinity - always) for x in losses) > least:
        high *= 1.3
    return min(high, top)


def upper_end(loss: Loss, epsilon: float) -> float:
    """An upper bound on δ(ε) of one use."""
    value, error = loss.profile(epsilon)
    return min(1.0, value + error + loss.infinity)


def joined(atoms: Sequence[tuple[AtomsLoss, int]], most: int) -> AtomsLoss | None:
    """The loss of several finite laws together, outcome by outcome; None where there would be more than ``most``."""
    values: Array = np.zeros(1)
    p: Array = np.ones(1)
    for loss, times in atoms:
        power: tuple[Array, Array] = (loss.values, loss.p)
        total: tuple[Array, Array] = (np.zeros(1), np.ones(1))
        left = times
        if math.comb(len(loss.values) + min(times, most) - 1, min(times, most)) > most:
            return None
        while left:
            if left & 1:
                total = _product(*total, *power)
            left >>= 1
            if left:
                power = _product(*power, *power)
        values, p = _product(values, p, *total)
        if len(values) > most:
            return None
    return AtomsLoss(values, p, symmetric=all(loss.symmetric for loss, _ in atoms))


def _product(values: Array, p: Array, other: Array, q: Array) -> tuple[Array, Array]:
    """The law of a sum; equal sums, but for rounding, become one outcome at the larger of them."""
    sums, mass = np.add.outer(values, other).ravel(), np.multiply.outer(p, q).ravel()
    order = np.argsort(sums, kind="stable")
    sums, mass = sums[order], mass[order]
    new = np.append(True, np.diff(sums) > 1e-13 * (1 + np.abs(sums[1:])))
    first = np.flatnonzero(new)
    return np.maximum.reduceat(sums, first), np.add.reduceat(mass, first)


@functools.lru_cache(maxsize=4096)
def binomial(trials: int, rate: float) -> tuple[float, ...]:
    """Pr[Binomial(trials, rate) = j] for j = 0, 1, …, trials.

    >>> binomial(2, 0.25)
    (0.5625, 0.375, 0.0625)
    """
    if trials == 1:
        return (1 - rate, rate)
    found = []
    for j in range(trials + 1):
        log_w = math.lgamma(trials + 1) - math.lgamma(j + 1) - math.lgamma(trials - j + 1)
        found.append(math.exp(log_w + j * math.log(rate) + (trials - j) * math.log1p(-rate)))
    if trials == 2:
        return ((1 - rate) ** 2, 2 * rate * (1 - rate), rate * rate)
    return tuple(found)
