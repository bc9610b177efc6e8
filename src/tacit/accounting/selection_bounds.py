"""What does the best of a random number of runs cost, from the privacy profile of one run?

The selected result has the density top·a(u) against that of a single run, u the share of runs that score higher. Both
the weight a(u) and the movement of u between neighbours are bounded through δ(ε) of the base: apart (the trade-off
bound) or together (the joint bound, never larger). docs/explanation/tuning.md has the proofs.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.alternatives import upper_profile
from tacit.accounting.pricing import epsilon as certified_epsilon

if TYPE_CHECKING:
    from tacit.accounting.selection import Selected

Array = NDArray[np.float64]
#: Points of the base's profile that the joint bound is made from: where δ is needed, and where the rank moves.
_POINTS, _LINES = 18, 12


class Profiled:
    """Prices of a selection from δ(ε) of its base, the larger of both directions.

    All of them follow from: selected density = top·a(u)dQ with u = 1 - F; a(u')/a(u) is at most ``spread``; u' <= g(u)
    with g(t) = min over ε of δ(ε) + e^ε t.
    """

    def __init__(self, selected: Selected, adjacency: str, group: int) -> None:
        self.selected, self.adjacency, self.group = selected, adjacency, group
        self.base = upper_profile(selected.mechanism, adjacency, group)
        self.top = selected.runs * (1 + 1e-12)

    def epsilon(self, delta: float) -> float:
        rough = self.by_tradeoff(delta)
        return min(rough, self.jointly(delta)) if math.isfinite(rough) else rough

    def delta(self, epsilon: float) -> float:
        """δ at ``epsilon``: by the trade-off bound, and by the joint one."""
        spread = self.log_spread()
        if not math.isfinite(spread):
            return 1.0
        simple = min(1.0, self.top * self.both((epsilon - spread) * (1 - 1e-15)))
        if simple == 0 or spread <= 1e-12 or math.isinf(epsilon):
            return simple
        joint = Joint(self, epsilon - 1.3 * spread, max(epsilon, 0.1 * spread))
        return min(simple, joint.delta(epsilon))

    def both(self, epsilon: float) -> float:
        """δ(ε) of the base; below 0 from the reversed pair, δ(-x) = 1 - e^-x(1 - δ(x))."""
        return self.base(epsilon) if epsilon >= 0 else 1 - math.exp(epsilon) * (1 - self.base(-epsilon))

    # -- the parts ---------------------------------------------------------------------------------------------------

    def untuned(self, delta: float) -> float:
        """ε of one run at the share of δ that the selection leaves it."""
        share = delta / self.top
        if share >= 1:
            return 0.0
        return certified_epsilon(self.selected.mechanism, share, adjacency=self.adjacency, group=self.group).upper

    def log_spread(self) -> float:
        """log of the largest a(u)/a(g(u)): how much the rank of a result can move between neighbours.

        With c = (1-γ)/γ the largest (1 + c g(t))/(1 + c t) is the R at which R = 1 + c δ(log R), because for any ε̂ it
        is at most max(e^ε̂, 1 + c δ(ε̂)). For Poisson the exponent m(g(t) - t) is at most m δ(0).
        """
        if self.selected.distribution == "poisson":
            return self.selected.mean * self.base(0.0)
        return self.selected._power * self._ratio

    @functools.cached_property
    def _ratio(self) -> float:
        """log R; any x gives a valid ratio, max(x, log(1 + c δ(x))), and the crossing of the two the smallest."""
        odds = self.selected._odds
        best = math.log1p(odds)  # δ <= 1

        def gap(x: float) -> float:
            nonlocal best
            failures = odds * self.base(x)
            best = min(best, max(x, math.log1p(failures)))
            return math.log(math.expm1(x)) - math.log(failures) if failures > 0 else math.inf

        high = math.log1p(odds * self.base(0.0))  # δ(0) is the largest, so the crossing lies below
        best = min(best, high)
        if high <= 1e-12:
            return best
        above = gap(high)
        low = min(math.log1p(odds * self.base(high)), 0.9 * high)  # and above this, δ falling in ε
        if low <= 0:
            low = 1e-6 * high
        below = gap(low)
        while below > 0 and low > 1e-12:
            high, above, low = low, below, low * 0.1
            below = gap(low)
        for _ in range(40):
            if not below < 0 < above or high - low <= 1e-12 * high:
                break
            x = (low * above - high * below) / (above - below) if math.isfinite(above) else 0.5 * (low + high)
            if not low < x < high:
                x = 0.5 * (low + high)
            value = gap(x)
            if abs(value) <= 1e-10:
                break
            # false position, the weight of an end that stays halved (Illinois)
            if value < 0:
                low, below, above = x, value, 0.5 * above
            else:
                high, above, below = x, value, 0.5 * below
        return best

    # -- the prices --------------------------------------------------------------------------------------------------

    def by_tradeoff(self, delta: float) -> float:
        """ε + log spread, at top·δ(ε)."""
        return self.untuned(delta) + self.log_spread()

    def by_profile(self, delta: float) -> float:
        """The same with the ratio of tails bounded by e^ε̂ + ((1-γ)/γ)δ(ε̂) for the best ε̂ (not for Poisson)."""
        if self.selected.distribution == "poisson":
            return self.by_tradeoff(delta)
        odds = self.selected._odds

        def ratio(x: float) -> float:
            return math.log(math.exp(x) + odds * self.base(x))

        low, high = 0.0, max(2 * self._ratio, 1e-9)
        while ratio(high) < ratio(0.5 * high) and high < 700:
            high *= 2
        golden = 0.5 * (math.sqrt(5) - 1)
        one, two = high - golden * (high - low), low + golden * (high - low)
        for _ in range(80):
            if ratio(one) < ratio(two):
                high, two = two, one
                one = high - golden * (high - low)
            else:
                low, one = one, two
                two = low + golden * (high - low)
            if high - low < 1e-9 * (1 + high):
                break
        return self.untuned(delta) + self.selected._power * min(ratio(one), ratio(two), ratio(0.0))

    def jointly(self, delta: float) -> float:
        """The rank's weight and its movement bounded together: the weight is smallest where the rank moves most."""
        first, spread = self.untuned(delta), self.log_spread()
        if not (math.isfinite(first) and math.isfinite(spread)) or spread <= 1e-12:
            return first + spread
        joint = Joint(self, first - 0.5 * spread, first + spread)
        low, high = first, first + spread
        if joint.delta(high) > delta:
            return high  # the grid is too coarse here; the trade-off bound stands
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if joint.delta(middle) <= delta else (middle, high)
            if high - low < 1e-12 * high:
                break
        return high


class Joint:
    """δ(E) <= top·Σ w_k δ(ε_k): the convex function ψ(y) = max_u (a(u)y - a(g(u)))₊ laid over points of the profile.

    The selected densities satisfy top·(a(u)dQ - e^E a(u')dQ')₊ <= top·e^E ψ(e^{-E}dQ/dQ')dQ'. A polygon above ψ with
    corners at y_k = e^{ε_k - E} and slope changes w_k gives the sum.
    """

    def __init__(self, bounds: Profiled, low: float, high: float) -> None:
        self.selected, base = bounds.selected, bounds.base
        self.top = bounds.top
        self.epsilons = np.unique(np.concatenate([[0.0], _lattice(low, high, _POINTS)]))
        self.deltas = np.array([bounds.both(float(x)) for x in self.epsilons])
        # g from above: lines δ + e^ε t and, from the complements of events, 1 - e^{-ε}(1 - δ) + e^{-ε} t.
        positive = self.epsilons[self.epsilons >= 0]
        lines = np.unique(np.concatenate([_lattice(0.0, max(low, 1e-3 * high), _LINES), positive]))
        heights = np.array([base(float(x)) for x in lines])
        with np.errstate(over="ignore"):
            slope = np.concatenate([np.exp(lines[::-1]), np.exp(-lines)])
        start = np.concatenate([heights[::-1], 1 - np.exp(-lines) * (1 - heights)])
        self.start, self.slope, self.edges = _lowest(start, slope)

    def delta(self, total: float) -> float:
        """δ of the selection at ε = ``total``."""
        y = np.exp(self.epsilons - total)
        y = y[: max(int(np.searchsorted(y, 1 + 1e-9)), 1)]
        psi = self._psi(y)
        # From the origin (where δ is 1) through the corners; beyond the last one the slope is at most 1.
        with np.errstate(invalid="ignore"):
            slopes = np.concatenate(
                [[0.0], np.diff(np.concatenate([[0.0], psi])) / np.diff(np.concatenate([[0.0], y]))]
            )
        if not np.isfinite(slopes).all():
            return 1.0  # losses so large that their exponentials have no number
        changes = np.maximum(np.diff(np.concatenate([slopes, [1.0]])), 0.0)
        deltas = np.concatenate([[1.0], self.deltas[: len(y)]])
        return min(1.0, float(self.top * (changes @ deltas)) * (1 + 1e-12))

    def _psi(self, y: Array) -> Array:
        """max over u of a(u)y - a(g(u)): at the corners of g, or where the derivative vanishes on one of its pieces."""
        selected, slope, start = self.selected, self.slope, self.start
        with np.errstate(all="ignore"):
            if selected.distribution == "poisson":
                level = np.subtract.outer(-np.log(y), -np.log(slope) + selected.mean * start)
                flat = level / (selected.mean * (slope - 1))
            else:
                odds = selected._odds
                q = np.divide.outer(1.0, y) ** (1 / (1 + selected._power))
                q = q[:, None] * slope ** (1 / (1 + selected._power))
                flat = (q - 1 - odds * start) / (odds * (slope - q))
        flat = np.clip(np.nan_to_num(flat, nan=0.0, posinf=1.0, neginf=0.0), self.edges[:-1], self.edges[1:])
        low, high = (np.broadcast_to(x, flat.shape) for x in (self.edges[:-1], self.edges[1:]))
        tail = np.stack([low, flat, high])
        moved = start + slope * tail  # a line may pass 1 by a little, which only makes the bound larger
        values = y[:, None] * selected._falling(tail) - selected._falling(moved)
        return np.asarray(np.maximum(values.max(axis=(0, 2)) + 1e-13, 0.0))


def _lattice(low: float, high: float, points: int) -> Array:
    """``points`` multiples of a power of two, or up to twice as many, that cover [low, high] from below.

    Prices at other δ meet the same multiples again, and need no new value of the base's profile.
    """
    step = 2.0 ** math.floor(math.log2((high - low) / points))
    return np.asarray(step * np.arange(math.floor(low / step), math.ceil(high / step) + 1))


def _lowest(start: Array, slope: Array) -> tuple[Array, Array, Array]:
    """The lines that are lowest somewhere on [0, 1], steepest first, and the edges between them."""
    kept: list[int] = []
    edges: list[float] = []
    for i in np.argsort(-slope, kind="stable"):
        while kept:
            last = kept[-1]
            if slope[last] == slope[i]:
                crossing = -1.0 if start[i] < start[last] else 2.0
            else:
                crossing = float((start[i] - start[last]) / (slope[last] - slope[i]))
            if crossing > edges[-1]:
                break
            kept.pop()
            edges.pop()
        else:
            kept.append(int(i))
            edges.append(0.0)
            continue
        if crossing < 1:
            kept.append(int(i))
            edges.append(crossing)
    return start[kept], slope[kept], np.array([*edges, 1.0])
