"""What does a mechanism cost? The certified ε(δ) and δ(ε) of any composition.

For each direction of the neighbouring pair the losses go to the contour integral or, if that would need too many nodes
(few participations, atoms), to the lattice. Both return an interval for δ(ε). Inverting it gives an interval for ε: a
point where the upper end is at most δ is an upper bound, one where the lower end is at least δ a lower bound.
Mechanisms of which only Rényi bounds are known are priced by the best order.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import sys
from collections.abc import Generator, Iterator
from fractions import Fraction
from typing import Protocol, runtime_checkable

from tacit.accounting import lattice, levels
from tacit.accounting.base import DIRECTIONS, Composed, Mechanism, is_number
from tacit.accounting.bound import Bound
from tacit.accounting.bounded_range import pair_of_bounded_range
from tacit.accounting.contour import (
    MAX_NODES,
    Parts,
    Unsuitable,
    best_abscissa,
    contour_for,
    log_kappa,
    log_mgf_real,
)
from tacit.accounting.crossing import Crossing, Curve, Ends, LargestLoss, OneStep, largest_loss, sum_of, together
from tacit.accounting.derived import joined, law_below
from tacit.accounting.errors import AccountingError
from tacit.accounting.losses import AtomsLoss, GaussianLoss, Loss
from tacit.accounting.mechanisms import (
    LARGEST_SHIFT,
    ExponentialMechanism,
    Laplace,
    PureDP,
    gaussian_floor,
    gaussian_loss,
)
from tacit.accounting.renyi import RenyiCurve, members_of, overflow_cost, standing_pair

#: A contour with more nodes than this takes longer than one of the levels of a rare loss.
ENOUGH_NODES = 1000
#: How far below δ a pair that stands for bounds is made, as an exponent of e; and at how many ε one's own are read.
BELOW, OWN_POINTS = 24.0, 160
#: How wide, relative, the interval may be whose lower end is that of what is not tight: two digits are enough.
ROUGH = 0.02
#: Finite laws are multiplied out up to this many outcomes.
MOST_OUTCOMES = 3000
#: Of so many mechanisms of bounded range all choices are tried.
MOST_RANGES = 6
#: A δ of a composition below this is not worth a finer curve.
NOTHING = 1e-25
#: log of the δ down to which bounds become a pair where δ itself is asked for.
LEAST = -70.0
#: The least number of full precision.
LEAST_NUMBER = sys.float_info.min
Members = list[tuple[Mechanism, int]]
#: At δ = 0, how far below the upper end the lower one lies: more than a sum of floats can be off.
PURE_ROUNDING = 1e-12


@runtime_checkable
class OwnPrice(Protocol):
    """A mechanism that bounds its own ε(δ) and δ(ε), beside its Rényi curve."""

    def own_epsilon(self, delta: float, adjacency: str, group: int) -> tuple[float, float]: ...

    def own_delta(self, epsilon: float, adjacency: str, group: int) -> tuple[float, float]: ...

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float: ...


def epsilon(
    mechanism: Mechanism,
    delta: float,
    *,
    adjacency: str = "add-remove",
    group: int = 1,
    tolerance: float | None = None,
) -> Bound:
    """The ε at which a mechanism is (ε, δ)-differentially private, as an interval that contains the true value.

    Args:
        mechanism: What ran: one mechanism, or several composed with ``*`` and ``+``.
        delta: The δ of the guarantee, at least 0 and below 1. 0 asks for the pure guarantee: the largest privacy loss,
            which adds up in a composition. It is infinite for Gaussian noise and wherever else the loss has no bound.
        adjacency: Which data sets count as neighbours: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).
        tolerance: How wide the interval may be. None (default) asks for a ten-thousandth of ε; most intervals are far
            narrower.

    Returns:
        The price. Its upper end is what you may claim.

    Raises:
        AccountingError: If δ, the group or the tolerance is out of range, or the mechanism has no price for this group.

    Example:
        >>> from tacit.accounting import Gaussian, Laplace, PoissonSampled, epsilon
        >>> epsilon(PoissonSampled(Gaussian(1.1), 256 / 60000) * 3515, delta=1e-5)
        ε in [1.133706, 1.133707] at δ=1e-05, add/remove one record
        >>> epsilon(Laplace(4.0), delta=0)
        ε in [0.2500000, 0.2500000] at δ=0, add/remove one record
    """
    if not is_number(delta) or not 0 <= delta < 1:
        raise AccountingError(f"δ must be at least 0 and below 1, not {delta!r}. See: tacit explain delta")
    delta = float(delta)
    question = _Question(mechanism, adjacency, group, tolerance)
    low, high = question.epsilon(delta) if delta > 0 else question.pure_epsilon()
    return Bound(low, high, question.tight, "epsilon", delta, adjacency, mechanism.unit, question.group)


def delta(
    mechanism: Mechanism,
    epsilon: float,
    *,
    adjacency: str = "add-remove",
    group: int = 1,
    tolerance: float | None = None,
) -> Bound:
    """The δ at which a mechanism is (ε, δ)-differentially private, as an interval that contains the true value.

    Args:
        mechanism: What ran: one mechanism, or several composed with ``*`` and ``+``.
        epsilon: The ε of the guarantee, 0 or more.
        adjacency: Which data sets count as neighbours: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).
        tolerance: How wide the interval may be. None (default) asks for a ten-thousandth of δ; most intervals are far
            narrower.

    Returns:
        The price. Its upper end is what you may claim.

    Example:
        >>> from tacit.accounting import Gaussian, delta
        >>> delta(Gaussian(1.0), epsilon=1.0)
        δ in [0.1269367, 0.1269368] at ε=1, add/remove one record
    """
    return delta_of_orders(mechanism, epsilon, adjacency=adjacency, group=group, tolerance=tolerance)[0]


def delta_of_orders(
    mechanism: Mechanism,
    epsilon: float,
    *,
    adjacency: str = "add-remove",
    group: int = 1,
    tolerance: float | None = None,
) -> tuple[Bound, Ends, Ends]:
    """:func:`delta`, and the interval of each order of the neighbours: P has the record and Q lacks it, or the reverse.

    If it is not known to which order a bound belongs, an upper one holds for both and a lower one for neither.
    """
    if not is_number(epsilon) or not epsilon >= 0:
        raise AccountingError(f"ε must be 0 or more, not {epsilon!r}")
    question = _Question(mechanism, adjacency, group, tolerance)
    whole, first, second = question.deltas(float(epsilon))
    bound = Bound(*whole, question.tight, "delta", float(epsilon), adjacency, mechanism.unit, question.group)
    return bound, first, second


class _Question:
    """One mechanism under one adjacency for one group size."""

    def __init__(self, mechanism: Mechanism, adjacency: str, group: int, tolerance: float | None) -> None:
        members = members_of(mechanism, adjacency, group)
        if tolerance is not None and not (is_number(tolerance) and tolerance > 0):
            raise AccountingError(f"the tolerance must be more than 0, not {tolerance!r}")
        self.mechanism = mechanism
        self.members, self.adjacency, self.group, self.tolerance = members, adjacency, int(group), tolerance
        self.extra = sum(times * part.extra_delta(self.group) for part, times in members)
        self.tight = all(part.is_tight(adjacency, self.group) for part, _ in members)
        #: parts of which no pair is known, only Rényi divergences or bounds on δ(ε) of their own
        self.stated: Members = []
        self.upper = [self._losses(d, upper=True) for d in DIRECTIONS]
        self.tight = self.tight and not self.stated

    def _losses(self, direction: str, *, upper: bool, uncut: bool = False) -> Parts:
        """The losses of the composition, Gaussians merged into one; parts without a pair are collected apart.

        With ``uncut`` samplers that may cut a batch are priced without amplification, and so without a failure.
        """
        parts: list[tuple[Loss, int]] = []
        mu_square = 0.0
        for part, times in self.members:
            ask = part.pair if upper else part.floor
            if uncut and part.extra_delta(self.group):
                loss = part.uncut(self.adjacency, self.group)
                if loss is None:
                    raise Unsuitable
            else:
                loss = ask(self.adjacency, direction, self.group)
            if loss is None:
                if upper and (part, times) not in self.stated:
                    self.stated.append((part, times))
                continue  # from below: at least 0
            if isinstance(loss, GaussianLoss):
                mu_square += times * loss.mu**2
            else:
                parts.append((loss, times))
        if mu_square > 0:
            mu = min(math.sqrt(mu_square), sys.float_info.max)
            if mu >= LARGEST_SHIFT:
                self.tight = False
            parts.append((gaussian_loss(mu) if upper else gaussian_floor(mu), 1))
        return parts

    def _uncut(self) -> _Question | None:
        """The same question where no batch is cut, if that is another and can be asked; only its upper end counts."""
        if not self.extra or self.stated:
            return None
        other = copy.copy(self)
        other.extra = 0.0
        try:
            other.upper = [self._losses(d, upper=True, uncut=True) for d in DIRECTIONS]
        except Unsuitable:
            return None
        return other

    # -- ε at δ ----------------------------------------------------------------------------------------------------

    def pure_epsilon(self) -> tuple[float, float]:
        """ε at δ = 0: the parts' largest losses added up, in the direction where they are larger."""
        sums = [
            [
                sum_of([(self._largest_loss(part, direction, upper=upper), times) for part, times in self.members])
                for direction in DIRECTIONS
            ]
            for upper in (False, True)
        ]
        low, high = (max(both) for both in sums)
        if self.group == 1 and all(self._has_exact_loss(part) for part, _ in self.members):
            return low, high
        return min(low * (1 - PURE_ROUNDING), high), high

    def _has_exact_loss(self, part: Mechanism) -> bool:
        """Whether the digits of the largest loss are all of it: it was stated, or is 1/scale without a remainder."""
        if isinstance(part, Laplace) and self.adjacency == "add-remove":
            loss = part.largest_loss(self.adjacency, DIRECTIONS[0])
            return math.isfinite(loss) and Fraction(repr(loss)) * Fraction(repr(float(part.scale))) == 1
        return isinstance(part, PureDP)

    def _largest_loss(self, part: Mechanism, direction: str, *, upper: bool) -> float:
        if upper:
            return part.largest_loss(self.adjacency, direction, self.group)
        loss = part.floor(self.adjacency, direction, self.group)
        if loss is not None and part.is_tight(self.adjacency, self.group):
            return part.largest_loss(self.adjacency, direction, self.group)
        return 0.0 if loss is None else (math.inf if loss.infinity else max(loss.supremum, 0.0))

    def epsilon(self, delta: float) -> tuple[float, float]:
        if not self.members:
            return 0.0, 0.0
        low = high = 0.0
        if self.stated:
            low, high = self._stated_epsilon(delta)
        for i, direction in enumerate(DIRECTIONS):
            upper, lower = self.upper[i], self._losses(direction, upper=False)
            if not self.tight and lower:
                low = max(low, self._direction_epsilon(lower, delta, enough=math.inf)[0])
            if not self.stated:
                one_low, one_high = self._direction_epsilon(upper, delta, enough=low)
                high = max(high, one_high)
                if self.tight:
                    low = max(low, one_low)
            if all(loss.symmetric for loss, _ in upper + lower):
                break
        if (uncut := self._uncut()) is not None:
            high = min(high, max(uncut._direction_epsilon(parts, delta)[1] for parts in uncut.upper))
        return min(low, high), high

    def _stated_epsilon(self, delta: float) -> Ends:
        """Bounds on ε where parts have no pair: the smallest of all that are valid."""
        high = self._renyi().epsilon(delta)[0]
        low = 0.0
        alone = self.members[0][0]
        if isinstance(alone, OwnPrice) and len(self.members) == 1 and self.members[0][1] == 1:
            low, own = alone.own_epsilon(delta, self.adjacency, self.group)
            return low, min(own, high)
        for parts in self._standing(math.log(delta) - BELOW):
            both = (self._direction_epsilon(upper + parts, delta, claim=high)[1] for upper in self._orders())
            high = min(high, max(both))
        return low, high

    def _orders(self) -> list[Parts]:
        """The parts that have a pair, in both orders of the neighbours, or in one where they are alike."""
        return self.upper[:1] if all(loss.symmetric for loss, _ in self.upper[0]) else self.upper

    def _standing(self, log_least: float) -> Iterator[Parts]:
        """Pairs that stand for the parts without one, in every valid way that may be the best.

        Some stand for themselves, use by use: those that bound their own δ(ε), and those of bounded range as pure
        guarantees. The others are added up first and then become one pair (docs/explanation/derived-pairs.md).
        """
        own = [member for member in self.stated if isinstance(member[0], OwnPrice)]
        rest = [member for member in self.stated if member not in own]
        ranges = [member for member in rest if isinstance(member[0], ExponentialMechanism)]
        ways = [own, []] if own else [[]]
        if len(rest) > 1:
            ways += [own + some for some in _some_of(ranges)]
        for single in ways:
            added = [member for member in self.stated if member not in single]
            parts = [(self._single(part, 4.0 * math.floor(log_least / 4)), times) for part, times in single]
            if added:
                together = self._added(added, log_least)
                if together is None:
                    continue
                parts.append((together, 1))
            yield parts

    def _single(self, part: Mechanism, log_least: float) -> Loss:
        """A symmetric pair for one use of a part."""
        if isinstance(part, OwnPrice):
            return own_pair(part, self.adjacency, self.group, log_least)
        assert isinstance(part, ExponentialMechanism)
        loss = PureDP(part.epsilon).pair(self.adjacency, DIRECTIONS[0], self.group)
        assert loss is not None
        return loss

    def _added(self, members: Members, log_least: float) -> Loss | None:
        """A symmetric pair for all uses of these; equal mechanisms of bounded range have a worst case of their own."""
        alike, times = members[0]
        if len(members) == 1 and isinstance(alike, ExponentialMechanism):
            worst = pair_of_bounded_range(alike.epsilon * self.group, times, 4.0 * math.floor(log_least / 4))
            if worst is not None:
                return worst
        composed = Composed(tuple(members), unit=self.mechanism.unit)
        return standing_pair(composed, self.adjacency, self.group, log_least)

    def _direction_epsilon(
        self, parts: Parts, delta: float, enough: float = 0.0, *, claim: float | None = None
    ) -> tuple[float, float]:
        """The interval of one direction; no further effort once ε is surely below ``enough``.

        With ``claim`` only an upper end below it counts: it is good enough once a finer curve hardly lowers it.

        Many branches: what needs no curve is answered first.
        """
        infinite, finite = _split(parts)
        best = max(0.0, largest_loss(finite))
        rest = delta - infinite[1] - 2 * self.extra
        if infinite[0] > delta:
            return math.inf, math.inf
        if best == 0 and rest >= 0:
            return 0.0, 0.0
        if rest <= 0:
            # where δ is just the mass of infinite loss, all of the finite losses must be covered
            return self._no_delta_left(parts, delta), best if rest == 0 and not self.extra else math.inf
        if not self.extra and math.fsum(times * loss.total_variation() for loss, times in finite) <= rest:
            return 0.0, 0.0  # total variations add up, and δ(0) is the total variation
        if not infinite[1] and not self.extra and _surely_below(finite, enough, rest):
            return 0.0, enough
        low, high = self._narrowed(infinite, finite, delta, rest, enough, claim)
        if self.extra == 0:
            high = min(high, best)
        if high >= best * (1 - 1e-14) and not all(isinstance(part, PureDP | Laplace) for part, _ in self.members):
            high *= 1 + 1e-15  # a largest loss that is neither stated nor 1/scale may have been rounded down
        if math.isinf(high):
            # no curve could be made: a sampled mechanism costs at most what the unsampled one does
            simpler = [(loss.unsampled(), times) for loss, times in finite]
            if any(one is not loss for (one, _), (loss, _) in zip(simpler, finite, strict=True)):
                high = self._direction_epsilon(simpler, delta)[1]
        return min(low, high), high

    def _no_delta_left(self, parts: Parts, delta: float) -> float:
        """A lower end where δ is the mass of infinite loss, but for rounding, or the sampler's failures take it all."""
        if self.extra:
            return 0.0
        return self._direction_epsilon(parts, min(delta * (1 + 1e-9), 0.5 * (1 + delta)))[0]

    def _narrowed(
        self, infinite: Ends, finite: Parts, delta: float, rest: float, enough: float, claim: float | None
    ) -> Ends:
        """The best interval that the curves give, each costlier than the one before, until it is narrow enough.

        ``enough`` is a lower end of the whole that is known already; infinite for the lower end of what is not tight.
        """
        low, high = 0.0, math.inf
        rough = ROUGH if math.isinf(enough) else 0.0
        candidates = self._candidates(finite, log_delta=math.log(rest))
        curve = next(candidates)
        while curve is not None:
            one_low, one_high = Crossing(curve, infinite, self.extra, delta).interval()
            gained = high - one_high
            low, high = max(low, one_low), min(high, one_high)
            wanted = max(rough * low, self.tolerance if self.tolerance is not None else 0.95e-4 * low + 0.95e-5)
            exact = not isinstance(curve, LargestLoss) or one_low >= curve.second
            narrow = high - (low if rough else max(low, enough)) <= wanted
            if exact and (narrow or (claim is not None and (0 <= gained <= wanted or low >= claim))):
                break
            curve = None  # its memory is needed for the next
            curve = candidates.send((high - low) / wanted)
        return low, high

    def _candidates(
        self, parts: Parts, *, log_delta: float | None = None, epsilon: float | None = None
    ) -> Generator[Curve | None, float, None]:
        """Curves in the order of what they cost: one step as it is, the contour, then lattices that get finer.

        Takes back by how much the interval of the last curve was too wide; the last value is None.
        """
        missing = 1.0
        parts = _joined(parts)
        if len(parts) == 1 and parts[0][1] == 1:
            missing = yield OneStep(parts[0][0])
        elif (top := LargestLoss.of(parts)) is not None:
            yield top
        rare = levels.some_rare(parts)
        if rare and not all(loss.analytic for loss, _ in parts):
            with contextlib.suppress(Unsuitable, OverflowError):
                missing = yield levels.Between(parts, log_delta=log_delta, epsilon=epsilon)
        elif all(loss.analytic for loss, _ in parts):
            try:
                nodes = ENOUGH_NODES if rare else MAX_NODES
                missing = yield contour_for(parts, log_delta=log_delta, epsilon=epsilon, nodes=nodes)
            except (Unsuitable, OverflowError):
                with contextlib.suppress(Unsuitable, OverflowError):
                    if rare:
                        missing = yield levels.Levels(parts, log_delta=log_delta, epsilon=epsilon)
        try:
            refinement = lattice.Refinement(parts, log_delta=log_delta, epsilon=epsilon)
            while True:
                missing = yield refinement.next(missing)
        except OverflowError:
            pass
        yield None

    def _far_out(self, finite: Parts, epsilon: float) -> float:
        """An upper bound where δ(ε) is too small for any curve: δ at a smaller ε, or without sampling."""
        for nearer in (epsilon / 2**n for n in range(1, 7)):
            if (curve := next(self._candidates(finite, epsilon=nearer))) is not None:
                return curve.interval(nearer)[1]
        simpler = [(loss.unsampled(), times) for loss, times in finite]
        changed = any(one is not loss for (one, _), (loss, _) in zip(simpler, finite, strict=True))
        return self._direction_delta(simpler, epsilon)[1] if changed else 1.0

    def _renyi(self) -> RenyiCurve:
        return RenyiCurve(self.mechanism, adjacency=self.adjacency, group=self.group)

    def _reveals_all(self, direction: str) -> float:
        """An upper bound on the mass of infinite loss."""
        log_finite = 0.0
        for part, times in self.members:
            loss = part.pair(self.adjacency, direction, self.group)
            if loss is not None:
                failure = loss.infinity
            elif isinstance(part, OwnPrice):
                failure = part.own_delta(math.inf, self.adjacency, self.group)[1]
            else:
                failure = 0.0  # Rényi divergences that are finite leave no room for any
            if failure >= 1:
                return 1.0
            log_finite += times * math.log1p(-failure)
        return -math.expm1(log_finite)

    # -- δ at ε ----------------------------------------------------------------------------------------------------

    def deltas(self, epsilon: float) -> tuple[Ends, Ends, Ends]:
        """The interval of δ(ε), the larger of both directions, and that of each direction."""
        if not self.members:
            return ((0.0, 0.0),) * 3
        if math.isinf(epsilon):
            infinite = [1.0 if self.extra else self._reveals_all(d) for d in DIRECTIONS]
            first, second = ((one if self.tight else 0.0, one) for one in infinite)
            return max(first, second), first, second
        least, most = self._stated_delta(epsilon) if self.stated else (0.0, 0.0)
        found: list[Ends] = []
        for upper, direction in zip(self.upper, DIRECTIONS, strict=True):
            lower = self._losses(direction, upper=False)
            low, high = (0.0, most) if self.stated else self._direction_delta(upper, epsilon)
            if not self.tight:
                low = self._direction_delta(lower, epsilon, rough=ROUGH)[0] if lower else 0.0
            found.append((min(low, high), high))
            if all(loss.symmetric for loss, _ in upper + lower):
                found.append(found[0])
                break
        if (uncut := self._uncut()) is not None:
            plain = [uncut._direction_delta(parts, epsilon)[1] for parts in uncut.upper]
            found = [(min(low, most), min(high, most)) for (low, high), most in zip(found, plain, strict=True)]
        # below the least number of full precision rounding is as large as the number
        first, second = ((low if low >= LEAST_NUMBER else 0.0, high or self._beyond()) for low, high in found)
        high = max(first[1], second[1])
        return (min(max(first[0], second[0], least), high), high), first, second

    def _beyond(self) -> float:
        """What stands for a δ that is not 0 and has no number in binary64."""
        most = (part.largest_loss(self.adjacency, d, self.group) for part, _ in self.members for d in DIRECTIONS)
        return LEAST_NUMBER if any(map(math.isinf, most)) else 0.0

    def _stated_delta(self, epsilon: float) -> Ends:
        """Bounds on δ(ε) where parts have no pair."""
        alone = self.members[0][0]
        if isinstance(alone, OwnPrice) and len(self.members) == 1 and self.members[0][1] == 1:
            low, own = alone.own_delta(epsilon, self.adjacency, self.group)
            return low, min(own, self._renyi().delta(epsilon))
        high = math.inf
        for parts in self._standing(LEAST):
            both = (self._direction_delta(upper + parts, epsilon, claim=high)[1] for upper in self._orders())
            high = min(high, max(both))
        # beside parts with a pair, the orders of everything together are seldom better, and slow to search
        if math.isinf(high) or not any(self.upper):
            high = min(high, self._renyi().delta(epsilon))
        return 0.0, high

    def _direction_delta(
        self, parts: Parts, epsilon: float, *, claim: float | None = None, rough: float = 0.0
    ) -> tuple[float, float]:
        infinite, finite = _split(parts)
        slack = overflow_cost(self.extra, epsilon)
        low, high = 0.0, 1.0
        if epsilon >= largest_loss(finite):
            return max(0.0, infinite[0] - slack), min(1.0, infinite[1] + slack)
        candidates = self._candidates(finite, epsilon=epsilon)
        curve = next(candidates)
        if curve is None and epsilon > 0:
            high = self._far_out(finite, epsilon)
        while curve is not None:
            one_low, one_high = curve.interval(epsilon)
            gained = high - one_high
            low, high = max(low, one_low), min(high, one_high)
            wanted = max(rough * low, self.tolerance if self.tolerance is not None else 1e-4 * low + NOTHING)
            if high - low <= wanted or (claim is not None and (low >= claim or (0 <= gained <= wanted and high < 1))):
                break
            curve = None  # its memory is needed for the next
            curve = candidates.send((high - low) / wanted)
        low, high = together(infinite, low, high)
        return max(0.0, low - slack), min(1.0, high + slack)


def _some_of(ranges: Members) -> list[Members]:
    """Which mechanisms of bounded range to take as pure: all choices, or of many one, all but one, and all."""
    if len(ranges) <= MOST_RANGES:
        return [list(some) for n in range(1, len(ranges) + 1) for some in itertools.combinations(ranges, n)]
    return [[one] for one in ranges] + [[m for m in ranges if m is not one] for one in ranges] + [ranges]


@functools.lru_cache(maxsize=64)
def own_pair(part: OwnPrice, adjacency: str, group: int, log_least: float) -> Loss:
    """The symmetric pair of a mechanism that bounds its own δ(ε), down to a δ of e^{log_least}."""
    top, largest = 0.25, max(part.largest_loss(adjacency, direction, group) for direction in DIRECTIONS)
    # of what fails δ falls no further than to the probability of that
    least = max(math.exp(log_least), 1.001 * part.own_delta(math.inf, adjacency, group)[1])
    while top < min(largest, 1e4) and part.own_delta(top, adjacency, group)[1] > least:
        top *= 1.5
    return law_below(lambda x: part.own_delta(x, adjacency, group)[1], min(top, largest), points=OWN_POINTS)


class Reader:
    """The upper end of δ(ε) of one mechanism at many ε: a curve that was made near some serves them all.

    What is read at an ε does not depend on which others were read before.
    """

    #: relative width at which a curve that was made near an ε, or for it, is good enough; and how many are kept
    CLOSE, FRESH, KEPT = 1e-8, 1e-3, 32
    #: what stands for a smaller δ of a rare run, whose curve would take long
    NEVER = 1e-200

    def __init__(self, mechanism: Mechanism, adjacency: str, group: int) -> None:
        self.question = _Question(mechanism, adjacency, group, None)
        self.kept: dict[tuple[int, float], Curve] = {}
        split = [_split(parts) for parts in self.question.upper]
        self.split = [(infinite, finite, largest_loss(finite)) for infinite, finite in split]

    def upper(self, epsilon: float) -> float:
        """A certified upper bound on δ(ε), the larger of both directions."""
        question = self.question
        if not question.members or question.stated:
            return question.deltas(epsilon)[0][1]
        high = 0.0
        for i in range(len(DIRECTIONS)):
            high = max(high, self._direction(i, epsilon))
            if all(loss.symmetric for loss, _ in question.upper[i]):
                break
        return high or question._beyond()

    def _direction(self, i: int, epsilon: float) -> float:
        infinite, finite, largest = self.split[i]
        slack = overflow_cost(self.question.extra, epsilon)
        if epsilon >= largest:
            return min(1.0, infinite[1] + slack)
        rare = levels.some_rare(finite)
        if rare and _surely_below(finite, epsilon, self.NEVER):
            return min(1.0, together(infinite, 0.0, self.NEVER)[1] + slack)
        fraction, power = math.frexp(epsilon)
        near = math.ldexp(round(16 * fraction) / 16, power)
        # the levels of a rare run remember what they were asked, and have no digits beyond those of their own ε
        for at, enough in ((near, self.CLOSE), (epsilon, self.FRESH))[rare:]:
            curve = self._curve(i, at, keep=not rare)
            if curve is not None:
                low, high = curve.interval(epsilon)
                if high - low <= enough * low:
                    return min(1.0, together(infinite, low, high)[1] + slack)
        return self.question._direction_delta(self.question.upper[i], epsilon)[1]

    def _curve(self, i: int, at: float, *, keep: bool) -> Curve | None:
        """The first curve that is made for this ε."""
        if (curve := self.kept.get((i, at))) is None:
            curve = next(self.question._candidates(self.split[i][1], epsilon=at))
            if curve is not None and keep:
                while len(self.kept) >= self.KEPT:
                    del self.kept[next(iter(self.kept))]
                self.kept[i, at] = curve
        return curve


def _surely_below(parts: Parts, epsilon: float, delta: float) -> bool:
    """Whether Chernoff's bound alone says that δ(ε) is at most ``delta``."""
    if not 0 < epsilon < math.inf or not all(loss.analytic for loss, _ in parts):
        return False
    try:
        c = best_abscissa(parts, epsilon=epsilon, enough=math.log(delta) - 1e-6).c
        k, error = log_mgf_real(parts, c)
    except OverflowError:
        return False
    return k + error + log_kappa(c) - c * epsilon <= math.log(delta) - 1e-12 * (1 + abs(k) + c * epsilon)


def _joined(parts: Parts) -> Parts:
    """The parts with finite laws that no lattice carries joined into one, outcome by outcome, where they are few."""
    finite = [(loss, times) for loss, times in parts if isinstance(loss, AtomsLoss)]
    if not finite or (all(loss.spacing() for loss, _ in finite) and len({loss.spacing() for loss, _ in finite}) == 1):
        return parts
    together = joined(finite, MOST_OUTCOMES)
    if together is None:
        return parts
    return [*((loss, times) for loss, times in parts if not isinstance(loss, AtomsLoss)), (together, 1)]


def _split(parts: Parts) -> tuple[tuple[float, float], Parts]:
    """Bounds on the mass of infinite loss in the composition, and the parts conditioned on a finite loss."""
    log_finite = 0.0
    rest: Parts = []
    for loss, times in parts:
        if loss.infinity >= 1:
            return (1.0, 1.0), []
        if loss.infinity > 0:
            log_finite += times * math.log1p(-loss.infinity)
        loss = loss.given_finite()
        if isinstance(loss, AtomsLoss) and len(loss.values) == 1 and loss.values[0] == 0:
            continue
        rest.append((loss, times))
    failing = [(loss.infinity, times) for loss, times in parts if loss.infinity > 0]
    if len(failing) == 1 and failing[0][1] == 1:
        return (failing[0][0], failing[0][0]), rest
    mass = -math.expm1(log_finite)
    return (mass * (1 - 1e-14), min(1.0, mass * (1 + 1e-14))), rest
