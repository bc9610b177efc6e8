"""What does the whole guarantee look like? The privacy profile δ(ε), the trade-off curve f(α), the μ-GDP equivalent.

One (ε, δ) is a single point of what a mechanism promises. The profile is all of them. The trade-off curve says the same
in terms of a test: the smallest rate of missed members at a given rate of false alarms. Both come with certified lower
and upper ends.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.accounting.base import Mechanism
from tacit.accounting.bound import Bound
from tacit.accounting.crossing import Ends
from tacit.accounting.errors import AccountingError
from tacit.accounting.pricing import delta_of_orders
from tacit.accounting.pricing import epsilon as certified_epsilon

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """Certified bounds on δ at each ε of a grid; made by :func:`profile`.

    Args:
        epsilon: The grid of ε, ascending.
        lower: The lower end of δ at each ε.
        upper: The upper end of δ at each ε, which may be claimed.
        adjacency: The adjacency of the guarantee.
        unit: Whom the guarantee protects.
        group: How many units are protected together (default 1).
        tight: Whether both ends belong to the exact worst case.
        orders: The same ends for each order of the neighbours, as an array of shape (2, 2, grid): first the law with
            the record against the law without it, then the reverse; each with lower and upper ends.

    Example:
        >>> from tacit.accounting import Gaussian, profile
        >>> curve = profile(Gaussian(1.0), [0.0, 1.0, 2.0])
        >>> curve.upper.round(4).tolist(), curve.orders.shape
        ([0.3829, 0.1269, 0.0209], (2, 2, 3))
    """

    epsilon: Array
    lower: Array
    upper: Array
    adjacency: str
    unit: str
    group: int = 1
    tight: bool = True
    orders: Array = dataclasses.field(kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return _plain(self)

    def tradeoff(self, alpha: ArrayLike | None = None) -> Tradeoff:
        """The trade-off curve that this profile describes.

        Args:
            alpha: Type I errors at which to evaluate it, in [0, 1]; by default 101 values from 0 to 1.

        Returns:
            The curve, as :func:`tradeoff` gives it.
        """
        return _tradeoff(self, alpha)


@dataclasses.dataclass(frozen=True, eq=False)
class Tradeoff:
    """Certified bounds on f(α), the least type II error of any test with type I error α that tells neighbours apart.

    The test may be one of presence (type I: accusing who is absent) or of absence (type I: missing who is present),
    whichever does better. f is the smaller of the two, and not convex where they cross. Made by :func:`tradeoff`.

    Args:
        alpha: The grid of type I errors.
        lower: The guarantee: no test has a smaller type II error.
        upper: Some test of the worst two data sets does at least this well (as far as they are known: ``tight``).
        adjacency: The adjacency of the guarantee.
        unit: Whom the guarantee protects.
        group: How many units are protected together (default 1).
        tight: Whether both ends belong to the exact worst case.
        orders: The bounds of each test, as an array of shape (2, 2, grid): the test of presence, then that of absence;
            each with lower and upper ends. These are convex.

    Example:
        >>> from tacit.accounting import Gaussian, tradeoff
        >>> curve = tradeoff(Gaussian(1.0), [0.05, 0.5])
        >>> bool((curve.lower <= curve.upper).all()), curve.lower.round(2).tolist()
        (True, [0.74, 0.16])
    """

    alpha: Array
    lower: Array
    upper: Array
    adjacency: str
    unit: str
    group: int = 1
    tight: bool = True
    orders: Array = dataclasses.field(kw_only=True)

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
    accuracy: float | None = None,
) -> Profile:
    """δ at each ε of a grid.

    Args:
        mechanism: What ran: one mechanism, or several composed with ``*`` and ``+``.
        epsilons: The ε to ask for, ascending. By default ``points`` values from 0 to where δ falls below 1e-12.
        points: The number of values if ``epsilons`` is not given (default 33).
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).
        accuracy: How wide the intervals may be, as a share of δ. None (default) asks for a ten-thousandth; a larger
            share is quicker.

    Returns:
        The bounds on δ, which never rise along the grid.

    Raises:
        AccountingError: If ``epsilons`` is not ascending, or there are fewer than 2 points.

    Example:
        >>> from tacit.accounting import Gaussian, profile
        >>> curve = profile(Gaussian(1.0), [0.0, 1.0])
        >>> [round(float(d), 6) for d in curve.upper]
        [0.382925, 0.126937]
    """
    terms: dict[str, Any] = {"adjacency": adjacency, "group": group}
    if epsilons is None:
        if points < 2:
            raise AccountingError(f"a curve needs 2 points or more, not {points!r}")
        grid = np.linspace(0.0, _last_epsilon(mechanism, terms), points)
    else:
        grid = np.asarray(epsilons, dtype=float)
        if grid.ndim != 1 or grid.size == 0 or np.any(np.diff(grid) <= 0):
            raise AccountingError("the ε of a profile form an ascending list")
    found = [_point(mechanism, x, accuracy, terms) for x in grid.tolist()]
    ends = np.moveaxis(np.array([[(whole.lower, whole.upper), *orders] for whole, *orders in found]), 0, 2)
    # δ falls as ε grows: let each value profit from its neighbours.
    ends[:, 0] = np.maximum.accumulate(ends[:, 0, ::-1], axis=1)[:, ::-1]
    ends[:, 1] = np.minimum.accumulate(ends[:, 1], axis=1)
    (low, high), orders = ends[0], ends[1:]
    whole = found[0][0]
    return Profile(grid, low, high, adjacency, mechanism.unit, whole.group, whole.tight, orders=orders)


def _last_epsilon(mechanism: Mechanism, terms: dict[str, Any]) -> float:
    """An ε at which next to nothing of δ is left."""
    tops = (certified_epsilon(mechanism, d, **terms).upper for d in (1e-12, 1e-9, 1e-6, 1e-3, 0.1))
    return max(next((x for x in tops if math.isfinite(x)), 1.0), 1e-3)


def _point(
    mechanism: Mechanism, epsilon: float, accuracy: float | None, terms: dict[str, Any]
) -> tuple[Bound, Ends, Ends]:
    """δ(ε), and that of each order."""
    rough = None if accuracy is None else 1.0
    found = delta_of_orders(mechanism, epsilon, tolerance=rough, **terms)
    if accuracy is not None and found[0].width > accuracy * found[0].upper:
        found = delta_of_orders(mechanism, epsilon, tolerance=max(accuracy * found[0].upper, 1e-300), **terms)
    if epsilon > 0:
        return found
    # at 0 it is the total variation, the same in both orders
    whole, *orders = found
    first, second = ((max(low, whole.lower), high) for low, high in orders)
    return whole, first, second


def tradeoff(
    mechanism: Mechanism,
    alpha: ArrayLike | None = None,
    *,
    points: int = 33,
    adjacency: str = "add-remove",
    group: int = 1,
) -> Tradeoff:
    """The trade-off curve f(α): how well any test can tell neighbours apart.

    For each order of the neighbours f is the maximum over y >= 0 of 1 - δ(log y) - yα (Dong, Roth & Su 2022,
    proposition 2.13, before the profiles of both orders are merged), and the result is the smaller of the two. δ at y <
    1 is that of the other order at 1/y: 1 - y + y δ'(-log y). The lower end takes the maximum over the profile's grid
    with the upper ends of δ: every term is a valid bound. The upper end fills the gaps of the grid: δ is convex in y,
    so between two points it lies above the extended chords of their neighbours.

    Args:
        mechanism: What ran: one mechanism, or several composed with ``*`` and ``+``.
        alpha: Type I errors at which to evaluate f, in [0, 1]; by default 101 values from 0 to 1.
        points: How many points of the profile to compute (default 33); more make the ends meet more closely.
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).

    Returns:
        The bounds on f, together and for each test.

    Raises:
        AccountingError: If there are fewer than 2 points, or an α lies outside [0, 1].

    Example:
        >>> from tacit.accounting import Gaussian, tradeoff
        >>> curve = tradeoff(Gaussian(1.0), [0.05])  # exactly Φ(Φ^-1(0.95) - 1)
        >>> bool(curve.lower[0] <= 0.740489 <= curve.upper[0]), round(float(curve.upper[0] - curve.lower[0]), 2)
        (True, 0.0)
    """
    if points < 2:
        raise AccountingError(f"a curve needs 2 points or more, not {points!r}")
    terms: dict[str, Any] = {"adjacency": adjacency, "group": group}
    # f bends most where its slope is near -1, which is where ε is near 0
    grid = _last_epsilon(mechanism, terms) * np.linspace(0.0, 1.0, points) ** 2
    return _tradeoff(profile(mechanism, grid, **terms), alpha)


def _tradeoff(curve: Profile, alpha: ArrayLike | None) -> Tradeoff:
    grid = np.linspace(0.0, 1.0, 101) if alpha is None else np.asarray(alpha, dtype=float)
    if grid.ndim != 1 or grid.size == 0 or np.any((grid < 0) | (grid > 1) | np.isnan(grid)):
        raise AccountingError("false alarm rates α lie between 0 and 1")
    orders = np.array([_one_order(curve, order, grid) for order in (0, 1)])
    lower, upper = orders.min(axis=0)
    return Tradeoff(grid, lower, upper, curve.adjacency, curve.unit, curve.group, curve.tight, orders=orders)


def _one_order(curve: Profile, order: int, grid: Array) -> tuple[Array, Array]:
    """The ends of f(α) of one order of the neighbours."""
    (low, high), (other_low, other_high) = curve.orders[order], curve.orders[1 - order]
    with np.errstate(over="ignore", invalid="ignore"):
        y = np.exp(curve.epsilon)
        steep = np.where(grid == 0, 0.0, np.multiply.outer(y, grid))
        lines = np.maximum(1 - high[:, None] - steep, ((1 - other_high)[:, None] - grid) / y[:, None])
    kept = y < 1e300  # what has no number is left out; fewer points make the upper end larger
    corner_y, corner_delta = _floor_of_profile(y[kept], (low[kept], high[kept]), (other_low[kept], other_high[kept]))
    with np.errstate(over="ignore", invalid="ignore"):
        steep = np.where(grid == 0, 0.0, np.multiply.outer(corner_y, grid))
    upper = (1 - corner_delta[:, None] - steep).max(axis=0)
    upper = np.clip(upper + 1e-14, 0.0, 1 - grid)
    return np.clip(lines.max(axis=0) - 1e-14, 0.0, upper), upper


def _floor_of_profile(y: Array, own: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Corners of a polygon below δ as a function of y = e^ε over all y >= 0; δ(0) = 1.

    For y < 1 it is that of the other order: δ(y) = 1 - y + y δ'(1/y).
    """
    inner = slice(1, None) if len(y) and y[0] == 1 else slice(None)
    mirror_y = 1 / y[inner][::-1]
    all_y = np.concatenate([[0.0], mirror_y, y])
    all_low, all_high = (
        np.concatenate([[1.0], 1 - mirror_y + mirror_y * there[inner][::-1], here])
        for here, there in zip(own, other, strict=True)
    )
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
    """The μ for which one Gaussian release N(μ, 1) has the same ε (the certified upper end) at this δ.

    It says how strong a guarantee is. It is not a guarantee of μ-GDP: away from this δ the two profiles differ.

    Args:
        mechanism: What ran: one mechanism, or several composed with ``*`` and ``+``.
        delta: The δ at which to compare, above 0.
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).

    Returns:
        μ; infinite if ε is.

    Raises:
        AccountingError: If ``delta`` is 0: no μ above 0 has a finite ε there.

    Example:
        >>> from tacit.accounting import Gaussian, gdp_equivalent
        >>> round(gdp_equivalent(Gaussian(2.0) * 4, 1e-5), 6)
        1.0
    """
    wanted = certified_epsilon(mechanism, delta, adjacency=adjacency, group=group).upper
    if math.isinf(wanted):
        return math.inf
    if all(times == 0 for _, times in mechanism.parts()):
        return 0.0
    if delta == 0:
        raise AccountingError("no Gaussian release has a finite ε at δ = 0: give a δ above 0. See: tacit explain delta")
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


def _plain(curve: Any) -> dict[str, Any]:
    fields = {f.name: getattr(curve, f.name) for f in dataclasses.fields(curve)}
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in fields.items()}
