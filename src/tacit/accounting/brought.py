"""What do you know of your own mechanism? Descriptions for what was proved or computed elsewhere.

A table of probabilities, a privacy-loss distribution, a Rényi curve, a privacy profile or a trade-off curve becomes a
mechanism like any other: it composes, can be sampled, and can be charged to a ledger that other processes read. What
comes out is certified as far as what went in: each class says what it takes for granted.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np

from tacit.accounting import lattice
from tacit.accounting.base import DIRECTIONS, Mechanism, check_positive
from tacit.accounting.derived import reach, symmetric_law, upper_end
from tacit.accounting.errors import AccountingError, optional
from tacit.accounting.losses import ROUND, Array, AtomsLoss, Loss
from tacit.accounting.mechanisms import _Stated
from tacit.accounting.renyi import members_of, standing_pair

#: By how much probabilities may miss 1, in all.
ROUNDED = 1e-9
#: How far masses times e^-loss may add up to more than 1.
ROUNDED_UNDER_Q = 1e-6
#: The most probability whose loss is raised to make a law of dp-accounting that of a pair.
MOST_RAISED = 1e-4


def _numbers(name: str, values: Any, *, least: float = -math.inf, most: float = math.inf) -> tuple[float, ...]:
    """One-dimensional numbers as a tuple, or an error that says what is wrong."""
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise AccountingError(f"{name} must be a list of numbers, not {values!r}") from None
    if array.ndim != 1 or len(array) == 0:
        raise AccountingError(f"{name} must be a list of one number or more")
    if np.isnan(array).any() or (array < least).any() or (array > most).any():
        raise AccountingError(f"{name} must lie in [{least:g}, {most:g}], without NaN")
    return tuple(float(x) for x in array)


@dataclasses.dataclass(frozen=True, repr=False)
class _Brought(_Stated):
    """What the classes here share: tuples of numbers, and groups by a chain of neighbours."""

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _law(self, direction: str) -> Loss:
        """The loss of one record."""
        raise NotImplementedError

    def without_failure(self) -> tuple[Mechanism, float]:
        # given that it is finite, the masses of P grow, and so does their ratio to those of Q
        laws = [self._law(direction) for direction in DIRECTIONS]
        failure = max(loss.infinity for loss in laws)
        if not 0 < failure < 1:
            return self, failure
        sides: list[tuple[float, ...]] = []
        for loss in laws[: 1 if laws[0].symmetric else 2]:
            values, p = loss.atoms()
            more = 1 / (1 - loss.infinity)
            sides += [tuple((values + math.log(more)).tolist()), tuple((p * more).tolist())]
        one, other = (*sides[:2], 0.0), (*sides[2:], 0.0) if len(sides) > 2 else ()
        return LossLaw(*one, *other, unit=self.unit, adjacency=self.adjacency), failure  # type: ignore[arg-type]

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if group == 1:
            return self._law(direction)
        return _group_of(self, group)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return group == 1

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self._law(direction)  # a group is at least one record


@functools.lru_cache(maxsize=64)
def _group_of(brought: _Brought, group: int) -> Loss:
    """The pair of a chain of neighbours, made once."""
    laws = [brought._law(one) for one in DIRECTIONS]

    def chained(epsilon: float) -> float:
        """δ of a group of k at kε: δ(ε)(1 + e^ε + … + e^{(k-1)ε})."""
        if (group - 1) * epsilon > 600:
            return 1.0
        steps = math.fsum(math.exp(i * epsilon) for i in range(group))
        return min(1.0, max(upper_end(loss, epsilon) for loss in laws) * steps)

    top = max(reach([loss.given_finite()]) for loss in laws)
    grid = np.linspace(0.0, top, 401)
    return symmetric_law(group * grid, np.array([chained(float(x)) for x in grid]), spacing=group * float(grid[1]))


@dataclasses.dataclass(frozen=True, repr=False)
class Outcomes(_Brought):
    """A mechanism with finitely many outcomes, by their probabilities with the record and without it.

    Guarantee:
        Exact if (``p``, ``q``) is the worst pair of neighbours: no other pair may have a larger δ(ε) at any ε, in
        either order. Groups are bounded by a chain of neighbours.

    Args:
        p: The probability of each outcome on the data with the record. They add up to 1.
        q: The probability of each outcome on the data without it, in the same order.
        unit: Whom the guarantee protects (default ``"record"``).
        adjacency: The adjacency for which the pair was found. None (the default) says that it holds under every one.

    Raises:
        AccountingError: If the lists differ in length, or are not probabilities that add up to 1.

    Example:
        >>> from tacit.accounting import Outcomes, epsilon
        >>> coin = Outcomes([0.75, 0.25], [0.25, 0.75])
        >>> round(epsilon(coin, delta=0).upper, 6), round(epsilon(coin * 2, delta=0).upper, 6)
        (1.098612, 2.197225)
    """

    p: tuple[float, ...]
    q: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(p=_numbers("p", self.p, least=0.0, most=1.0), q=_numbers("q", self.q, least=0.0, most=1.0))
        if len(self.p) != len(self.q):
            raise AccountingError(f"p has {len(self.p)} outcomes and q has {len(self.q)}")
        for name in ("p", "q"):
            if abs(math.fsum(getattr(self, name)) - 1) > ROUNDED:
                raise AccountingError(f"the probabilities in {name} must add up to 1")

    def _law(self, direction: str) -> Loss:
        p, q = np.array(self.p), np.array(self.q)
        if direction == "add":
            p, q = q, p
        return finite_law(p / math.fsum(p), q / math.fsum(q))


def _raised(losses: Array, masses: Array) -> tuple[Array, Array]:
    """The law with its lowest losses raised until it is that of a pair: its mass times e^-loss is at most 1.

    dp-accounting's smallest masses are rounded as numbers near 1 are, and e^-loss multiplies that. A loss that is
    raised says more than there is. A law of which much would have to be raised is left as it is, and refused.
    """
    with np.errstate(over="ignore"):
        under = masses * np.exp(-losses)
        below = np.cumsum(masses) * np.exp(-losses)
    above = np.append(np.cumsum(under[::-1])[::-1][1:], 0.0)
    fits = np.flatnonzero(below + above <= 1.0)
    if math.fsum(under) <= 1.0 or not len(fits) or math.fsum(masses[: fits[0]]) > MOST_RAISED:
        return losses, masses
    first = int(fits[0])
    return losses[first:], np.append(math.fsum(masses[: first + 1]), masses[first + 1 :])


@dataclasses.dataclass(frozen=True, repr=False)
class LossLaw(_Brought):
    """A mechanism by its privacy-loss distribution: the values of the loss and their probabilities.

    Guarantee:
        As good as what is brought: each law must belong to a pair that dominates the mechanism, which a *pessimistic*
        estimate does and an optimistic one does not. Groups are bounded by a chain of neighbours.

    Args:
        losses: The values of the loss log(dP/dQ) under P, with P the law that has the record.
        masses: Their probabilities. With ``infinity`` they add up to 1.
        infinity: The probability of an infinite loss (default 0).
        reversed_losses: The same for the reversed pair. Empty (the default) says that both laws are alike.
        reversed_masses: Their probabilities.
        reversed_infinity: The probability of an infinite loss of the reversed pair (default 0).
        unit: Whom the guarantee protects (default ``"record"``).
        adjacency: The adjacency for which the law was computed. None (the default) says that it holds under every one.

    Raises:
        AccountingError: If the lists differ in length, or no pair has such a law.

    Example:
        >>> import math
        >>> from tacit.accounting import LossLaw, epsilon
        >>> law = LossLaw([-1.0, 1.0], [1 / (1 + math.e), math.e / (1 + math.e)])
        >>> round(epsilon(law * 3, delta=1e-12).upper, 6)
        3.0
    """

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    infinity: float = 0.0
    reversed_losses: tuple[float, ...] = ()
    reversed_masses: tuple[float, ...] = ()
    reversed_infinity: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(losses=_numbers("losses", self.losses), masses=_numbers("masses", self.masses, least=0.0, most=1.0))
        if len(self.reversed_losses) or len(self.reversed_masses):
            self._set(
                reversed_losses=_numbers("reversed_losses", self.reversed_losses),
                reversed_masses=_numbers("reversed_masses", self.reversed_masses, least=0.0, most=1.0),
            )
        for losses, masses, infinity in self._sides():
            if len(losses) != len(masses):
                raise AccountingError(f"there are {len(losses)} losses and {len(masses)} masses")
            if not np.isfinite(losses).all():
                raise AccountingError("losses are finite numbers; give the probability of an infinite loss as infinity")
            _numbers("infinity", [infinity], least=0.0, most=1.0)
            if abs(math.fsum(masses) + infinity - 1) > ROUNDED:
                raise AccountingError("the masses and the probability of an infinite loss must add up to 1")
            # the masses of Q are those of P times e^-loss
            with np.errstate(over="ignore"):
                other = math.fsum(np.array(masses) * np.exp(-np.array(losses)))
            if not other <= 1 + ROUNDED_UNDER_Q:
                raise AccountingError(
                    f"no pair has this law: the masses times e^-loss add up to {other:g}, more than 1. "
                    "Give the masses under P, the law that has the record"
                )

    def _sides(self) -> list[tuple[tuple[float, ...], tuple[float, ...], float]]:
        sides = [(self.losses, self.masses, self.infinity)]
        if self.reversed_losses:
            sides.append((self.reversed_losses, self.reversed_masses, self.reversed_infinity))
        return sides

    def _law(self, direction: str) -> Loss:
        sides = self._sides()
        losses, masses, infinity = sides[-1] if direction == "add" else sides[0]
        order = np.argsort(losses, kind="stable")
        values, p = np.array(losses)[order], np.array(masses)[order]
        p = p * ((1 - infinity) / math.fsum(p)) if infinity < 1 else p * 0.0
        return AtomsLoss(values, p, infinity, symmetric=len(sides) == 1)

    @classmethod
    def from_dp_accounting(cls, distribution: Any, *, adjacency: str | None = None, unit: str = "record") -> LossLaw:
        """The law of a ``PrivacyLossDistribution`` of dp-accounting.

        Args:
            distribution: The object, made with ``pessimistic_estimate=True``.
            adjacency: The adjacency for which it was made; None (default) says that it holds under every one.
            unit: Whom the guarantee protects (default ``"record"``).

        Returns:
            The mechanism, with both directions.

        Raises:
            AccountingError: If the estimate is optimistic, or the object has another form.

        Example:
            >>> from tacit.accounting import LossLaw, epsilon
            >>> pld = __import__("dp_accounting.pld.privacy_loss_distribution", fromlist=["x"])
            >>> law = LossLaw.from_dp_accounting(pld.from_laplace_mechanism(4.0))
            >>> round(epsilon(law, delta=0).upper, 3)
            0.25
        """
        sides = []
        try:
            for name in ("_pmf_remove",) if distribution._symmetric else ("_pmf_remove", "_pmf_add"):
                pmf = getattr(distribution, name)
                if not pmf._pessimistic_estimate:
                    raise AccountingError(
                        "an optimistic estimate is no upper bound; make it with pessimistic_estimate=True"
                    )
                if hasattr(pmf, "_loss_probs"):
                    steps, p = (list(column) for column in zip(*sorted(pmf._loss_probs.items()), strict=True))
                else:
                    p = pmf._probs.tolist()
                    steps = list(range(pmf._lower_loss, pmf._lower_loss + len(p)))
                masses = np.maximum(np.array(p, dtype=float), 0.0)
                infinity = float(min(1.0, max(pmf._infinity_mass, 0.0)))
                # truncation may leave a little unaccounted for: it counts as infinite loss
                infinity = min(1.0, max(infinity, 1 - math.fsum(masses)))
                # what is too much is taken from the lowest losses
                excess = max(0.0, math.fsum(masses) + infinity - 1)
                low = int(np.searchsorted(np.cumsum(masses), excess))
                masses[: low + 1] = np.append(np.zeros(low), max(0.0, math.fsum(masses[: low + 1]) - excess))
                kept = masses > 0
                losses = np.array(steps, dtype=float) * float(pmf._discretization)
                raised, left = _raised(losses[kept], masses[kept])
                sides.append((tuple(raised.tolist()), tuple(left.tolist()), infinity))
        except AttributeError as error:
            raise AccountingError(f"not a PrivacyLossDistribution of dp-accounting: {error}") from None
        other = sides[1] if len(sides) > 1 else ((), (), 0.0)
        return cls(*sides[0], *other, adjacency=adjacency, unit=unit)


@dataclasses.dataclass(frozen=True, repr=False)
class RenyiDP(_Brought):
    """A mechanism by bounds on its Rényi divergences, in the larger of the two directions.

    Guarantee:
        As good as the bounds. Between orders α the function (α-1)D_α is convex, so its chord bounds it; below the first
        order the chord starts at 0. Nothing is taken for granted beyond the last. Groups are not priced.

    Args:
        orders: The orders α, above 1 and ascending.
        divergences: The bound at each order.
        unit: Whom the guarantee protects (default ``"record"``).
        adjacency: The adjacency for which the bounds hold. None (the default) says that they hold under every one.

    Raises:
        AccountingError: If the lists differ in length, or the orders are not ascending numbers above 1.

    Example:
        >>> from tacit.accounting import RenyiDP, epsilon
        >>> orders = [1.5, 2.0, 4.0, 8.0, 16.0, 32.0]
        >>> gaussian = RenyiDP(orders, [a / 50 for a in orders])
        >>> round(epsilon(gaussian, delta=1e-5).upper, 3)
        0.838
    """

    tight: ClassVar[bool] = False
    orders: tuple[float, ...]
    divergences: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            orders=_numbers("orders", self.orders), divergences=_numbers("divergences", self.divergences, least=0.0)
        )
        if len(self.orders) != len(self.divergences):
            raise AccountingError(f"there are {len(self.orders)} orders and {len(self.divergences)} divergences")
        if not (self.orders[0] > 1 and np.all(np.diff(self.orders) > 0) and math.isfinite(self.orders[-1])):
            raise AccountingError("orders are finite numbers above 1, ascending")

    def without_failure(self) -> tuple[Mechanism, float]:
        return self, 0.0

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return None

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return None

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return False

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        """Upper bounds on the Rényi divergence: chords of (α-1)D_α.

        Args:
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            orders: Rényi orders α, all above 1.
            group: How many records one neighbour changes together; only 1 is priced.

        Returns:
            One bound for each order; infinite beyond the last that was given.

        Raises:
            AccountingError: If ``group`` is above 1.
        """
        if group > 1:
            raise AccountingError("groups are not priced for RenyiDP: state the curve of the group, or use group=1")
        at = np.array([0.0, *(a - 1 for a in self.orders)])
        heights = at * np.array([0.0, *self.divergences])
        finite = np.isfinite(heights)
        return np.asarray(
            np.interp(orders - 1, at[finite], heights[finite], right=math.inf) / (orders - 1) * (1 + 1e-15)
        )

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return math.inf


@dataclasses.dataclass(frozen=True, repr=False)
class ProfileDP(_Brought):
    """A mechanism by several guarantees (ε, δ) that hold at once, in both directions.

    Guarantee:
        Exact for the worst mechanism with these guarantees: the largest convex function of e^ε below the points.

    Args:
        epsilons: The values of ε, 0 or more, ascending.
        deltas: The δ at each.
        unit: Whom the guarantee protects (default ``"record"``).
        adjacency: The adjacency for which they hold. None (the default) says that they hold under every one.

    Raises:
        AccountingError: If the lists differ in length, or ε does not ascend from 0 or more.

    Example:
        >>> from tacit.accounting import ApproxDP, ProfileDP, epsilon
        >>> one = ProfileDP([0.5], [1e-6])
        >>> both = ProfileDP([0.5, 1.0], [1e-6, 0.0])
        >>> epsilon(both * 10, 1e-5).upper <= epsilon(ApproxDP(0.5, 1e-6) * 10, 1e-5).upper
        True
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            epsilons=_numbers("epsilons", self.epsilons, least=0.0),
            deltas=_numbers("deltas", self.deltas, least=0.0, most=1.0),
        )
        if len(self.epsilons) != len(self.deltas):
            raise AccountingError(f"there are {len(self.epsilons)} values of ε and {len(self.deltas)} of δ")
        if not (np.all(np.diff(self.epsilons) > 0) and self.epsilons[-1] <= 700):
            raise AccountingError("the values of ε ascend, and are at most 700")

    def _law(self, direction: str) -> Loss:
        return _law_of_points(self.epsilons, self.deltas)


@functools.lru_cache(maxsize=16)
def _law_of_points(epsilons: tuple[float, ...], deltas: tuple[float, ...]) -> Loss:
    """The law of a profile by its points, made once: a price asks for it in each direction, for either end."""
    return symmetric_law(np.array(epsilons), np.array(deltas))


@dataclasses.dataclass(frozen=True, repr=False)
class TradeoffDP(_Brought):
    """A mechanism by a trade-off curve: the least type II error of any test at each type I error.

    Guarantee:
        Exact for the worst mechanism whose tests err at least as much as the polygon through the points says, in both
        orders of the neighbours. The polygon is made convex from below, and constant left of the first point. Between
        points *on* a curve it would lie above the curve and promise too much: for these there is :meth:`on_curve`.

    Args:
        type_one: Type I errors α in [0, 1], ascending.
        type_two: The type II error at each. At α = 1 it is 0, whether that point is given or not.
        unit: Whom the guarantee protects (default ``"record"``).
        adjacency: The adjacency for which the curve holds. None (the default) says that it holds under every one.

    Raises:
        AccountingError: If the lists differ in length, are no errors, or promise more than guessing (above 1 - α).

    Example:
        >>> from tacit.accounting import TradeoffDP, epsilon
        >>> curve = TradeoffDP([0.0, 0.25, 1.0], [1.0, 0.25, 0.0])
        >>> round(epsilon(curve, delta=0).upper, 6)
        1.098612
    """

    type_one: tuple[float, ...]
    type_two: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            type_one=_numbers("type_one", self.type_one, least=0.0, most=1.0),
            type_two=_numbers("type_two", self.type_two, least=0.0, most=1.0),
        )
        alpha, beta = np.array(self.type_one), np.array(self.type_two)
        if len(alpha) != len(beta):
            raise AccountingError(f"there are {len(alpha)} type I errors and {len(beta)} type II errors")
        if not np.all(np.diff(alpha) > 0):
            raise AccountingError("the type I errors must ascend")
        if (beta > 1 - alpha + 1e-12).any():
            raise AccountingError("a type II error above 1 - α promises more than guessing does")

    @classmethod
    def on_curve(cls, type_one: Any, type_two: Any, **terms: Any) -> TradeoffDP:
        """A mechanism by points on its trade-off curve, which is convex.

        Guarantee:
            Every convex curve through the points lies above the polygon that is taken, up to the rounding of the
            points: between two of them the extended chords of their neighbours. Left of the first interval nothing
            else is known, so give points as small as the δ that are asked for.

        Args:
            type_one: Type I errors α in [0, 1], ascending, best at even distances of log α.
            type_two: The type II error at each, as the curve has it. At α = 1 it is 0, whether given or not.
            **terms: ``unit`` and ``adjacency``, as for the class.

        Returns:
            The mechanism.

        Raises:
            AccountingError: If the points lie on no convex curve, or the class refuses them.

        Example:
            >>> import numpy as np
            >>> from scipy.special import ndtr, ndtri
            >>> from tacit.accounting import Gaussian, TradeoffDP, epsilon
            >>> alpha = np.geomspace(1e-12, 0.999, 400)
            >>> curve = TradeoffDP.on_curve(alpha, ndtr(-ndtri(alpha) - 0.5))
            >>> print(f"{epsilon(curve, 1e-5).upper:.2f} {epsilon(Gaussian(2.0), 1e-5).upper:.2f}")
            1.99 1.99
        """
        given = cls(type_one, type_two, **terms)
        a, b = np.array(given.type_one), np.array(given.type_two)
        if a[-1] < 1:
            a, b = np.append(a, 1.0), np.append(b, 0.0)
        if len(a) < 3:
            raise AccountingError("a curve needs two points or more beside that at α = 1")
        gap = np.diff(a)
        slope = np.diff(b) / gap
        if (np.diff(slope) < -1e-15 * (1 / gap[1:] + 1 / gap[:-1])).any():
            raise AccountingError("the points lie on no convex curve")
        # in each interval but the ends: where the chord before it and the one after it meet
        before, after = slope[:-2], slope[2:]
        with np.errstate(divide="ignore", invalid="ignore"):
            meet = (b[2:-1] - b[1:-2] + before * a[1:-2] - after * a[2:-1]) / (before - after)
        x = np.clip(np.where(np.isfinite(meet), meet, a[1:-2]), a[1:-2], a[2:-1])
        y = np.maximum(b[1:-2] + before * (x - a[1:-2]), b[2:-1] + after * (x - a[2:-1]))
        off = 8 * ROUND * (1 + np.maximum(gap[1:-1] / gap[:-2], gap[1:-1] / gap[2:]))
        first = b[1] - slope[1] * gap[0] - 8 * ROUND * (1 + gap[0] / gap[1])
        last = min(1.0, a[-2] - b[-2] / slope[-2]) if slope[-2] < 0 else 1.0
        end = max(b[-2] + slope[-2] * (last - a[-2]) - 8 * ROUND * (1 + gap[-1] / gap[-2]), 0.0)
        x, y = np.array([a[0], *x, last]), np.clip(np.array([first, *(y - off), end]), 0.0, 1.0)
        if a[0] > 0:
            left = b[0] - slope[0] * a[0] - 8 * ROUND * (1 + a[0] / gap[0])
            x, y = np.append(0.0, x), np.append(min(left, 1.0), y)
        kept = np.append(np.diff(x) > 0, True)
        return cls(x[kept], np.minimum.accumulate(y)[kept], **terms)

    def _law(self, direction: str) -> Loss:
        alpha = np.array([0.0, *self.type_one, 1.0])
        beta = np.array([self.type_two[0], *self.type_two, 0.0])
        beta = np.minimum.accumulate(beta)
        rise, fall = np.diff(alpha), -np.diff(beta)
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = fall / rise
        # δ at e^ε = y is the largest 1 - β - yα over the corners; both orders hold, so the smaller of the two
        corners = np.concatenate([slopes, 1 / np.where(slopes > 0, slopes, math.inf)])
        corners = np.unique(np.append(corners[np.isfinite(corners) & (corners > 1)], 1.0))
        one = (1 - beta - np.multiply.outer(corners, alpha)).max(axis=1)
        other = (1 - alpha - np.multiply.outer(corners, beta)).max(axis=1)
        deltas = np.maximum(np.minimum(one, other), 0.0) + 4 * ROUND
        # from the steepest corner on, what one law alone has: exact, so that rounding makes no infinite loss
        deltas[-1] = min(1 - beta[0], 1 - alpha[np.argmax(beta == 0)])
        return symmetric_law(np.log(corners), deltas)


# -- helpers and the way out ----


def finite_law(p: Array, q: Array) -> AtomsLoss:
    """The loss of two laws on the same outcomes."""
    seen = (p > 0) & (q > 0)
    values = np.log(p[seen]) - np.log(q[seen])
    order = np.argsort(values, kind="stable")
    values, masses = values[order], p[seen][order]
    infinity = math.fsum(p[(p > 0) & (q == 0)])
    if infinity > 0:
        masses = masses * ((1 - infinity) / math.fsum(masses)) if len(masses) else masses
    return AtomsLoss(values, masses, infinity, symmetric=_mirrored(p, q))


def _mirrored(p: Array, q: Array) -> bool:
    """Whether the reversed pair is the same pair in another order."""
    return sorted(zip(p.tolist(), q.tolist(), strict=True)) == sorted(zip(q.tolist(), p.tolist(), strict=True))


def to_dp_accounting(
    mechanism: Mechanism, *, adjacency: str = "add-remove", interval: float = 1e-4, tail: float = 1e-15
) -> Any:
    """A pessimistic ``PrivacyLossDistribution`` of dp-accounting that dominates a mechanism.

    Guarantee:
        Each part's law dominates that of its worst pair of neighbours. Composing them is dp-accounting's own FFT, which
        can fall below the truth at δ below about 1e-10.

    Args:
        mechanism: What ran: one mechanism, or several composed.
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        interval: The distance of neighbouring losses (default 1e-4).
        tail: The probability, for each part, that may be counted as an infinite loss (default 1e-15).

    Returns:
        The distribution, composed.

    Raises:
        AccountingError: If dp-accounting is not installed, or a part has no finite bound.

    Example:
        >>> from tacit.accounting import Gaussian, to_dp_accounting
        >>> round(to_dp_accounting(Gaussian(2.0) * 4).get_epsilon_for_delta(1e-5), 3)
        4.377
    """
    check_positive("interval", interval)
    pmfs, distributions = optional("dp_accounting.pld.pld_pmf"), optional("dp_accounting.pld.privacy_loss_distribution")
    total = distributions.identity(interval)
    for part, times in members_of(mechanism, adjacency, 1):
        if part.extra_delta():
            raise AccountingError(f"{part!r} adds (1 + e^ε) times an overflow to δ, which no loss law does")
        sides = []
        for direction in DIRECTIONS:
            loss = part.pair(adjacency, direction) or standing_pair(part, adjacency, 1, math.log(tail))
            if loss is None:
                raise AccountingError(f"{part!r} has no finite bound under {adjacency}")
            law = lattice.on_multiples(loss.given_finite(), interval, tail)
            masses = law.p * (1 - loss.infinity)
            infinity = loss.infinity + law.above
            table = dict(zip(law.k.tolist(), masses.tolist(), strict=True))
            sides.append(pmfs.create_pmf(table, interval, infinity, True))
        total = total.compose(distributions.PrivacyLossDistribution(*sides).self_compose(times))
    return total
