"""What does the whole guarantee look like? Privacy profile δ(ε), trade-off curve f(α), Rényi curve, μ-GDP equivalent.

One (ε, δ) is a single point of what a mechanism promises. The profile is all of them; the trade-off curve says the same
in the language of a test: the smallest rate of missed members at a given rate of false alarms. Both come as certified
lower and upper ends.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.accounting.base import Mechanism
from tacit.accounting.errors import AccountingError
from tacit.accounting.pricing import delta as certified_delta
from tacit.accounting.pricing import epsilon as certified_epsilon
from tacit.accounting.renyi import renyi

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """Certified bounds on δ at every ε of a grid."""

    epsilon: Array
    lower: Array
    upper: Array
    adjacency: str
    unit: str
    group: int = 1
    tight: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return _plain(self)

    def tradeoff(self, alpha: ArrayLike | None = None) -> Tradeoff:
        """The trade-off curve that this profile describes; see :func:`tradeoff`."""
        return _tradeoff(self, alpha)


@dataclasses.dataclass(frozen=True, eq=False)
class Tradeoff:
    """Certified bounds on f(α), the least type II error of any test of membership with type I error α.

    ``lower`` is the guarantee: no test of one record's presence does better.
    """

    alpha: Array
    lower: Array
    upper: Array
    adjacency: str
    unit: str
    group: int = 1
    tight: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return _plain(self)


def profile(
    mechanism: Mechanism,
    epsilons: ArrayLike | None = None,
    *,
    points: int = 33,
    adjacency: str = "add-remove",
    group: int = 1,
) -> Profile:
    """δ at every ε of ``epsilons``, or at ``points`` values from 0 to where δ falls below 1e-12.

    >>> from tacit.accounting import Gaussian
    >>> curve = profile(Gaussian(1.0), [0.0, 1.0])
    >>> [round(float(d), 6) for d in curve.upper]
    [0.382925, 0.126937]
    """
    terms: dict[str, Any] = {"adjacency": adjacency, "group": group}
    if epsilons is None:
        if points < 2:
            raise AccountingError(f"a curve needs 2 points or more, not {points!r}")
        tops = (certified_epsilon(mechanism, d, **terms).upper for d in (1e-12, 1e-9, 1e-6, 1e-3, 0.1))
        top = next((x for x in tops if math.isfinite(x)), 1.0)
        grid = np.linspace(0.0, max(top, 1e-3), points)
    else:
        grid = np.asarray(epsilons, dtype=float)
        if grid.ndim != 1 or grid.size == 0 or np.any(np.diff(grid) <= 0):
            raise AccountingError("the ε of a profile form an ascending list")
    bounds = [certified_delta(mechanism, float(x), **terms) for x in grid]
    # δ falls as ε grows: let each value profit from its neighbours.
    low = np.maximum.accumulate(np.array([b.lower for b in bounds])[::-1])[::-1]
    high = np.minimum.accumulate(np.array([b.upper for b in bounds]))
    return Profile(grid, low, high, adjacency, mechanism.unit, group, bounds[0].tight)


def tradeoff(
    mechanism: Mechanism,
    alpha: ArrayLike | None = None,
    *,
    points: int = 33,
    adjacency: str = "add-remove",
    group: int = 1,
) -> Tradeoff:
    """f(α) = max over ε of max(0, 1 - δ(ε) - e^ε α, e^{-ε}(1 - δ(ε) - α)) (Dong, Roth & Su 2022, proposition 2.13).

    The lower end takes the maximum over the profile's grid with the upper ends of δ: every term is a valid bound. The
    upper end fills the gaps of the grid: δ is convex in e^ε, so between two points it lies above the extended chords of
    their neighbours.

    >>> from tacit.accounting import Gaussian
    >>> curve = tradeoff(Gaussian(1.0), [0.05])  # exactly Φ(Φ^-1(0.95) - 1)
    >>> bool(curve.lower[0] <= 0.740489 <= curve.upper[0]), round(float(curve.upper[0] - curve.lower[0]), 2)
    (True, 0.0)
    """
    return _tradeoff(profile(mechanism, points=points, adjacency=adjacency, group=group), alpha)


def _tradeoff(curve: Profile, alpha: ArrayLike | None) -> Tradeoff:
    grid = np.linspace(0.0, 1.0, 101) if alpha is None else np.asarray(alpha, dtype=float)
    if grid.ndim != 1 or grid.size == 0 or np.any((grid < 0) | (grid > 1) | np.isnan(grid)):
        raise AccountingError("false alarm rates α lie between 0 and 1")
    y = np.exp(np.minimum(curve.epsilon, 600.0))
    lines = np.maximum(
        1 - curve.upper[:, None] - np.multiply.outer(y, grid), ((1 - curve.upper)[:, None] - grid) / y[:, None]
    )
    lower = np.maximum(lines.max(axis=0), 0.0)
    corner_y, corner_delta = _floor_of_profile(y, curve.lower, curve.upper)
    upper = (1 - corner_delta[:, None] - np.multiply.outer(corner_y, grid)).max(axis=0)
    upper = np.clip(upper, 0.0, 1 - grid)
    return Tradeoff(grid, np.minimum(lower, upper), upper, curve.adjacency, curve.unit, curve.group, curve.tight)


def _floor_of_profile(y: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Corners of a convex polygon below δ as a function of y = e^ε over all y >= 0.

    For y < 1 the profile of a symmetric guarantee is δ(y) = 1 - y + y δ(1/y), and δ(0) = 1.
    """
    inner = slice(1, None) if y[0] == 1 else slice(None)
    mirror_y = 1 / y[inner][::-1]
    all_y = np.concatenate([[0.0], mirror_y, y])
    all_low = np.concatenate([[1.0], (1 - mirror_y + mirror_y * low[inner][::-1]), low])
    all_high = np.concatenate([[1.0], (1 - mirror_y + mirror_y * high[inner][::-1]), high])
    n = len(all_y)
    corners: list[tuple[float, float]] = list(zip(all_y.tolist(), all_low.tolist(), strict=True))
    for i in range(n - 1):
        a, b = float(all_y[i]), float(all_y[i + 1])
        # Lower bounds on δ over [a, b]: it never rises, it is at least 1 - y, and it lies above the chord on the left
        # and the chord on the right, extended.
        lines: list[tuple[float, float]] = [(float(all_low[i + 1]), 0.0), (1.0, -1.0)]
        if i > 0 and a > all_y[i - 1]:
            slope = (all_low[i] - all_high[i - 1]) / (a - all_y[i - 1])
            lines.append((float(all_low[i] - slope * a), float(slope)))
        if i + 2 < n and all_y[i + 2] > b:
            slope = (all_high[i + 2] - all_low[i + 1]) / (all_y[i + 2] - b)
            lines.append((float(all_low[i + 1] - slope * b), float(slope)))
        corners.extend(_upper_hull(lines, a, b))
    # Beyond the grid δ lies above the last chord, extended, until that reaches 0.
    a = float(all_y[-1])
    if n > 1 and all_low[-1] > 0:
        slope = float((all_low[-1] - all_high[-2]) / (a - all_y[-2]))
        if slope < 0:
            corners.append((a - float(all_low[-1]) / slope, 0.0))
        else:
            corners.append((a, 0.0))
    found = np.array(corners)
    return found[:, 0], found[:, 1]


def _upper_hull(lines: list[tuple[float, float]], a: float, b: float) -> list[tuple[float, float]]:
    """Corners over [a, b] of the highest of some lines (constant, slope)."""
    places = [a, b]
    for i, (c1, s1) in enumerate(lines):
        for c2, s2 in lines[i + 1 :]:
            if s1 != s2:
                crossing = (c2 - c1) / (s1 - s2)
                if a < crossing < b:
                    places.append(crossing)
    return [(x, max(c + s * x for c, s in lines)) for x in places]


def gdp_equivalent(mechanism: Mechanism, delta: float, *, adjacency: str = "add-remove", group: int = 1) -> float:
    """The μ for which one Gaussian release N(μ, 1) has the same ε (the certified upper end) at this ``delta``.

    A way to say how strong a guarantee is, not a guarantee of μ-GDP: away from this δ the two profiles differ.

    >>> from tacit.accounting import Gaussian
    >>> round(gdp_equivalent(Gaussian(2.0) * 4, 1e-5), 6)
    1.0
    """
    wanted = certified_epsilon(mechanism, delta, adjacency=adjacency, group=group).upper
    if math.isinf(wanted):
        return math.inf
    if all(times == 0 for _, times in mechanism.parts()):
        return 0.0
    log_delta = math.log(delta)
    low, high = math.log(1e-12), math.log(1e12)
    for _ in range(120):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian_log_delta(math.exp(middle), wanted) < log_delta else (low, middle)
        if high - low < 1e-14:
            break
    return math.exp(high)


def gaussian_log_delta(mu: float, epsilon: float) -> float:
    """log δ(ε) of N(μ, 1) against N(0, 1) (Balle & Wang 2018, theorem 8).

    >>> round(math.exp(gaussian_log_delta(1.0, 1.0)), 6)
    0.126937
    """
    from tacit.accounting.special import log_ndtr

    first = float(log_ndtr(-epsilon / mu + mu / 2))
    second = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf


def renyi_curve(
    mechanism: Mechanism,
    orders: ArrayLike | None = None,
    *,
    adjacency: str = "add-remove",
    group: int = 1,
) -> tuple[Array, Array]:
    """Orders and upper bounds on the Rényi divergence at each; without ``orders``, 48 of them from 1.05 to 256.

    >>> from tacit.accounting import Gaussian
    >>> orders, divergences = renyi_curve(Gaussian(1.0))
    >>> bool(abs(divergences[-1] - 128) < 1e-9)
    True
    """
    grid = 1 + np.exp(np.linspace(math.log(0.05), math.log(255.0), 48)) if orders is None else np.asarray(orders, float)
    return grid, renyi(mechanism, grid, adjacency=adjacency, group=group)


def _plain(curve: Any) -> dict[str, Any]:
    fields = {f.name: getattr(curve, f.name) for f in dataclasses.fields(curve)}
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in fields.items()}
