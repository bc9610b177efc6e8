"""How far apart do neighbours lie in Rényi divergence? Curves of any composition, and their conversion to (ε, δ).

Every divergence is an upper bound for the larger of the two directions, computed from the same worst pairs as the
certified price: with K(c) = log E_P[e^{cL}], the divergence of order α is K(α-1)/(α-1), and K adds up in a composition.
Conversions: the classic one (Mironov 2017, proposition 3) and the improved one of Canonne, Kamath & Steinke (2020,
proposition 12).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.accounting.base import DIRECTIONS, Mechanism, check_adjacency
from tacit.accounting.contour import log_kappa
from tacit.accounting.derived import GivenFinite, SampledLoss, symmetric_law
from tacit.accounting.errors import AccountingError, AdjacencyError
from tacit.accounting.losses import GaussianLoss, Loss
from tacit.accounting.mechanisms import DiscreteGaussian

Array = NDArray[np.float64]
CONVERSIONS = ("improved", "classic")
#: The moments of the moments accountant as first published (Abadi et al. 2016, section 5: λ up to 32).
MOMENTS = np.arange(1.0, 33.0)


def renyi(mechanism: Mechanism, orders: ArrayLike, *, adjacency: str = "add-remove", group: int = 1) -> Array:
    """Upper bounds on the Rényi divergence of a mechanism, in the larger of the two directions.

    Guarantee:
        For every neighbouring pair under ``adjacency`` (``group`` units at once), D_α(M(D) || M(D')) is at most the
        value returned.

    Args:
        mechanism: What ran: one mechanism, or several composed with ``*`` and ``+``.
        orders: The orders α, finite and above 1.
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).

    Returns:
        One bound for each order, in the shape of ``orders``; ``inf`` if a failure probability makes it infinite.

    Raises:
        AccountingError: If the sampler cuts its batches, so that no order has a finite bound.

    Example:
        >>> from tacit.accounting import Gaussian, renyi
        >>> renyi(Gaussian(2.0) * 8, [2.0, 4.0])
        array([2., 4.])
    """
    curve = RenyiCurve(mechanism, adjacency=adjacency, group=group)
    if curve.spill > 0:
        raise AccountingError(
            "a sampler that truncates its batches has no finite Rényi bound; ask acc.epsilon, "
            "which adds the chance of an overflow to δ, or raise max_batch"
        )
    wanted = np.asarray(orders, dtype=float)
    c = _above_one(wanted).ravel() - 1
    result = np.full(len(c), math.inf) if curve.failure > 0 else curve.moments(c).max(axis=0) / c
    return result.reshape(wanted.shape)


class RenyiCurve:
    """The moments K(c) of a composition in both directions, without the events of infinite loss.

    ``failure`` is the probability of those events and ``spill`` the total variation cost of truncated sampling. Neither
    has a Rényi divergence, so both are charged to δ: δ(ε) <= failure + (1 + e^ε)·spill + δ of the rest.
    """

    def __init__(self, mechanism: Mechanism, *, adjacency: str = "add-remove", group: int = 1) -> None:
        self.members = members_of(mechanism, adjacency, group)
        self.adjacency, self.group = adjacency, int(group)
        self.spill = sum(times * part.extra_delta(self.group) for part, times in self.members)
        self._stated: list[tuple[Mechanism, int]] = []
        self._losses: dict[str, list[tuple[Loss, int]]] = {direction: [] for direction in DIRECTIONS}
        probe = np.array([2.0])
        finite = {direction: 0.0 for direction in DIRECTIONS}
        for part, times in self.members:
            if isinstance(part, DiscreteGaussian) or part.renyi(adjacency, probe, self.group) is not None:
                self._stated.append((part, times))
                continue
            for direction in DIRECTIONS:
                loss = part.pair(adjacency, direction, self.group)
                if loss is None:
                    raise AccountingError(f"{part!r} has no price for groups of {group} under {adjacency}")
                finite[direction] += times * math.log1p(-loss.infinity) if loss.infinity < 1 else -math.inf
                self._losses[direction].append((loss.given_finite(), times))
        #: probability that the composition reveals everything
        self.failure = -math.expm1(min(finite.values()))
        self.symmetric = all(loss.symmetric for loss, _ in self._losses["remove"])

    def moments(self, c: Array) -> Array:
        """Upper bounds on K(c) for every c > 0, one row for each direction."""
        total = np.zeros((2, len(c)))
        for part, times in self._stated:
            total += times * c * self._divergence(part, c + 1)
        for row, direction in enumerate(DIRECTIONS):
            if row == 1 and self.symmetric:
                total[1] = total[0]
                break
            for loss, times in self._losses[direction]:
                total[row] += times * log_moments(loss, c)
        return total

    def _divergence(self, part: Mechanism, orders: Array) -> Array:
        if isinstance(part, DiscreteGaussian):
            # at most that of the continuous Gaussian (Canonne, Kamath & Steinke 2020, proposition 5)
            if part.sigma == 0:
                return np.full(len(orders), math.inf)
            shift = (part.replace or 2 * part.sensitivity) if self.adjacency == "replace-one" else part.sensitivity
            return np.asarray(orders * (shift * self.group / part.sigma) ** 2 / 2)
        try:
            stated = part.renyi(self.adjacency, orders, self.group)
        except OverflowError:  # some order is too large to compute with
            if len(orders) == 1:
                return np.array([math.inf])
            return np.concatenate([self._divergence(part, one) for one in np.array_split(orders, 2)])
        assert stated is not None
        return stated

    def epsilon(self, delta: float, c: Array | None = None, conversion: str = "improved") -> tuple[float, float]:
        """The smallest ε that the orders 1 + ``c`` prove at ``delta``, and the order that does.

        Without ``c`` the best order is searched for; any order is valid, so the search cannot make the result wrong.
        """
        grid = np.exp(np.linspace(math.log(1e-2), math.log(1e3), 16)) if c is None else c
        moments = self.moments(grid).max(axis=0)
        value, best = self._solve(grid, moments, delta, conversion)
        # Look beyond the ends while the best order is one of them, then closer and closer around it.
        closer = 0
        while c is None and self.failure < delta and np.any(np.isfinite(moments)) and closer < 4:
            if best == len(grid) - 1 and grid[-1] < 1e8:
                added = grid[-1] * np.array([3.0, 10.0, 30.0, 100.0])
            elif best == 0 and grid[0] > 1e-8:
                added = grid[0] / np.array([100.0, 30.0, 10.0, 3.0])
            else:
                low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
                added = np.exp(np.linspace(math.log(low), math.log(high), 8))[1:-1]  # not the middle again
                closer += 1
            grid = np.concatenate([grid, added])
            moments = np.concatenate([moments, self.moments(added).max(axis=0)])
            order = np.argsort(grid)
            grid, moments = grid[order], moments[order]
            value, best = self._solve(grid, moments, delta, conversion)
        return value, float(grid[best]) + 1

    def delta(self, epsilon: float) -> float:
        """The smallest δ that some order proves at ``epsilon``."""
        c = np.exp(np.linspace(math.log(1e-4), math.log(1e6), 600))
        moments = self.moments(c).max(axis=0)
        logs = moments + np.array([log_kappa(float(x)) for x in c]) - c * epsilon
        best = float(np.nanmin(logs))
        spill = overflow_cost(self.spill, epsilon)
        return min(1.0, self.failure + math.exp(min(best, 0.0)) * (1 + 1e-12) + spill)

    def law(self, log_least: float, largest: float = math.inf, points: int = 600) -> Loss | None:
        """One symmetric pair for all of the composition: its δ(ε) lies above min over c of κ(c)e^{K(c) - cε}.

        ``log_least`` is the log of the δ down to which it is good, ``largest`` a bound on the loss. None if no order
        has a finite moment.
        """
        coarse = np.geomspace(1e-3, 1e6, 50)
        with np.errstate(over="ignore", invalid="ignore"):
            moments = self.moments(coarse).max(axis=0)
        usable = np.isfinite(moments)
        if not usable.any():
            return None
        logs = moments + np.array([log_kappa(float(x)) for x in coarse])

        def needed(size: float) -> tuple[float, float]:
            values = np.where(usable, (logs - size) / coarse, math.inf)
            best = int(np.argmin(values))
            return float(values[best]), float(coarse[best])

        top, steepest = needed(log_least)
        top = min(max(top, 1e-9), largest)
        if not math.isfinite(top):
            return None
        flattest = needed(-0.1)[1]
        fine = np.unique(np.geomspace(max(flattest / 3, 1e-3), min(steepest * 3, 1e6), 200))
        with np.errstate(over="ignore", invalid="ignore"):
            moments = np.append(self.moments(fine).max(axis=0), moments)
        fine = np.append(fine, coarse)
        use = np.isfinite(moments)
        fine, logs = fine[use], moments[use] + np.array([log_kappa(float(x)) for x in fine[use]])
        step = top / points
        grid = step * np.arange(points + 1)
        deltas = np.exp(np.minimum((logs - np.multiply.outer(grid, fine)).min(axis=1), 0.0)) * (1 + 1e-12)
        if top == largest:
            deltas[-1] = 0.0
        return symmetric_law(grid, deltas, spacing=step)

    def _solve(self, c: Array, moments: Array, delta: float, conversion: str) -> tuple[float, int]:
        def at(rest: float) -> tuple[float, int]:
            if rest <= 0:
                return math.inf, 0
            values = convert(c + 1, moments / c, rest, conversion)
            best = int(np.argmin(values))
            return float(values[best]), best

        rest = delta - self.failure
        value, first = at(rest)
        best = first
        if self.spill == 0 or not math.isfinite(value):
            return value, best
        # With truncation ε stands on both sides: climb to the smallest ε with at(rest - (1 + e^ε)·spill) <= ε.
        for _ in range(500):
            following, best = at(rest - overflow_cost(self.spill, value))
            if following <= value * (1 + 1e-13):
                return value, best
            value = following + 1e-10 * abs(following - value)  # a little further, to arrive
            if math.isinf(value):
                break
        return math.inf, first


def convert(orders: Array, divergences: Array, delta: float, conversion: str = "improved") -> Array:
    """The ε at ``delta`` that each order proves; the smallest of them is valid.

    >>> float(convert(np.array([10.0]), np.array([1.0]), 1e-5, "classic")[0].round(6))
    2.279214
    """
    if conversion not in CONVERSIONS:
        raise AccountingError(f"unknown conversion {conversion!r}; choose one of {', '.join(CONVERSIONS)}")
    c = orders - 1
    if conversion == "classic":
        value = divergences - math.log(delta) / c
    else:
        value = divergences + np.log(c / orders) - (math.log(delta) + np.log(orders)) / c
    return np.asarray(np.maximum(value, 0.0))


def log_moments(loss: Loss, c: Array) -> Array:
    """Upper bounds on log E_P[e^{cL}] for every c."""
    if isinstance(loss, GaussianLoss):
        return np.asarray(0.5 * loss.mu**2 * c * (c + 1) * (1 + 1e-14))
    if isinstance(loss, GivenFinite):
        return np.asarray(loss.loss.log_moments(c), dtype=np.float64)
    if isinstance(loss, SampledLoss):
        return np.asarray(loss.log_moments(c), dtype=np.float64)
    return np.array([_log_moment(loss, float(x)) for x in c])


def _log_moment(loss: Loss, c: float) -> float:
    """An upper bound on log E_P[e^{cL}], infinite where none is known."""
    if loss.infinity > 0 or not loss.analytic:
        return math.inf
    try:
        k, error, _, _ = loss.tilted(c)
    except OverflowError:
        return math.inf
    return k + error


@functools.lru_cache(maxsize=256)
def standing_pair(mechanism: Mechanism, adjacency: str, group: int, log_least: float = -80.0) -> Loss | None:
    """A symmetric pair that dominates what has only Rényi bounds, down to a δ of e^{log_least}; None without bounds."""
    curve = RenyiCurve(mechanism, adjacency=adjacency, group=group)
    if curve.failure > 0 or curve.spill > 0:
        return None
    largest = max(_largest(mechanism, adjacency, group, direction) for direction in DIRECTIONS)
    return curve.law(log_least, largest)


def _largest(mechanism: Mechanism, adjacency: str, group: int, direction: str) -> float:
    return math.fsum(
        times * part.largest_loss(adjacency, direction, group) for part, times in mechanism.parts() if times
    )


def members_of(mechanism: Mechanism, adjacency: str, group: int) -> list[tuple[Mechanism, int]]:
    """The parts that ran at least once, after checking that the question makes sense."""
    check_adjacency(adjacency)
    if not isinstance(mechanism, Mechanism):
        raise AccountingError(f"{mechanism!r} is not a mechanism")
    if isinstance(group, bool) or not isinstance(group, int | np.integer) or group < 1:
        raise AccountingError(f"a group has a whole number of members, 1 or more, not {group!r}")
    members = [(part, times) for part, times in mechanism.parts() if times > 0]
    for part, _ in members:
        if adjacency not in part.adjacencies():
            stated = " and ".join(part.adjacencies()) or "no adjacency"
            advice = part.advice(adjacency)
            raise AdjacencyError(
                f"{part!r} has no price under {adjacency!r}; it has one under {stated}."
                + (advice and f" Reason: {advice}.")
                + " See: tacit explain adjacency"
            )
    return members


def overflow_cost(variation: float, epsilon: float) -> float:
    """(1 + e^ε)·w: what a total variation w on each side adds to δ (docs/explanation/pairs.md); 1 is all of δ.

    >>> overflow_cost(1e-320, 740.0), overflow_cost(0.0, 1e9)
    (1.0, 0.0)
    """
    if variation == 0:
        return 0.0
    return min(1.0, (1 + math.exp(epsilon)) * variation * (1 + 1e-15)) if epsilon < 700 else 1.0


def _above_one(orders: NDArray[Any]) -> Array:
    if orders.size == 0 or not np.all(orders > 1) or not np.all(np.isfinite(orders)):
        raise AccountingError(f"Rényi orders are finite numbers above 1, not {orders.tolist()}")
    return orders
