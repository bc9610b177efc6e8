"""At which ε is a given δ met? Curves of δ(ε), and the certified ends of the ε at which one of them crosses a δ."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

from tacit.accounting.contour import Parts
from tacit.accounting.losses import ACCURACY, AtomsLoss, Loss
from tacit.accounting.renyi import overflow_cost

#: An ε that would be larger than this is reported as infinite.
LARGEST = 1e280
#: Lower and upper end of an interval.
Ends = tuple[float, float]


class Curve(Protocol):
    """Something that knows δ(ε) of one direction, near the ε it was made for."""

    #: where to begin a search for ε
    start: float

    def interval(self, epsilon: float) -> tuple[float, float]: ...

    def middle(self, epsilon: float) -> tuple[float, float]: ...


class OneStep:
    """δ(ε) of one use of one mechanism: P[L > ε] - e^ε Q[L > ε]."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.start = min(1.0, loss.supremum / 2)

    def interval(self, epsilon: float) -> tuple[float, float]:
        """A certified interval that contains δ(ε)."""
        value, error = self.loss.profile(epsilon)
        # a tail may be so small that it has no number
        return max(0.0, value - error), min(1.0, value + error + sys.float_info.min)

    def middle(self, epsilon: float) -> tuple[float, float]:
        """log δ(ε) and its slope, for root finding."""
        value, _ = self.loss.profile(epsilon)
        if value <= 0:
            return -math.inf, -1.0
        width = 1e-6 * (1 + abs(epsilon))
        ahead, _ = self.loss.profile(epsilon + width)
        return math.log(value), min((ahead / value - 1) / width, -1e-300)


class LargestLoss:
    """δ(ε) of a composition, from the event that every use has its largest loss: P(1 - e^{ε - L}) of its mass P.

    That is a lower bound everywhere and exact above the second largest loss, so it prices pure guarantees at small δ:
    where the lattice has no digits left, and sooner.
    """

    def __init__(self, log_mass: float, error: float, largest: float, second: float) -> None:
        self.log_mass, self.error, self.largest, self.second = log_mass, error, largest, second
        self.start = largest / 2

    @classmethod
    def of(cls, parts: Parts) -> LargestLoss | None:
        """The curve, if every loss takes its largest value with a probability above 0."""
        log_mass, error, gap = 0.0, 0.0, math.inf
        for loss, times in parts:
            values, masses = loss.atoms()
            at_top = values == loss.supremum
            if not (math.isfinite(loss.supremum) and masses[at_top].any()):
                return None
            log_mass += times * math.log(math.fsum(masses[at_top]))
            error += times * ACCURACY
            below = values[~at_top].max(initial=-math.inf) if isinstance(loss, AtomsLoss) else loss.supremum
            gap = min(gap, loss.supremum - float(below))
        largest = largest_loss(parts)
        if not (0 < largest < LARGEST) or error > 0.1:
            return None
        second = largest - gap + 1e-14 * (largest + (gap if math.isfinite(gap) else 0.0))
        return cls(log_mass, error + 1e-15 * abs(log_mass), largest, second)

    def interval(self, epsilon: float) -> tuple[float, float]:
        """A certified interval that contains δ(ε)."""
        rounding = 1e-15 * self.largest
        mass = math.exp(self.log_mass)
        low = mass * (1 - self.error) * -math.expm1(min(epsilon - (self.largest - rounding), 0.0)) * (1 - 1e-15)
        if epsilon < self.second:
            return low, 1.0
        high = mass * (1 + self.error) * -math.expm1(min(epsilon - self.largest - rounding, 0.0)) * (1 + 1e-15)
        return low, min(1.0, high + sys.float_info.min) if epsilon < self.largest else 0.0

    def middle(self, epsilon: float) -> tuple[float, float]:
        """log δ(ε) and its slope, for root finding."""
        if epsilon >= self.largest:
            return -math.inf, -1.0
        share = -math.expm1(epsilon - self.largest)
        return self.log_mass + math.log(share), (share - 1) / share


def together(infinite: tuple[float, float], low: float, high: float) -> tuple[float, float]:
    """Bounds on δ from those on the mass of infinite loss and on δ given that the loss is finite."""
    least, most = infinite
    return (
        (least + (1 - least) * low) * (1 - 1e-15) if low > 0 else least,
        min(1.0, (most + (1 - most) * high) * (1 + 1e-15)) if high > 0 else most,
    )


class Crossing:
    """Where a curve, with what the failures add, meets ``delta``: Newton's method, then certified ends around it."""

    def __init__(self, curve: Curve, infinite: Ends, extra: float, delta: float) -> None:
        self.curve, self.infinite, self.extra, self.delta = curve, infinite, extra, delta

    def interval(self) -> Ends:
        """An interval for the ε at which δ is met."""
        x = self._root()
        if x <= 0 or not math.isfinite(x):
            if self._between(0.0)[1] <= self.delta:
                return 0.0, 0.0
            x = max(x, 0.0) if math.isfinite(x) else 0.0
        high = self._above(x)
        return self._below(x), (high if high < LARGEST else math.inf)

    def _between(self, x: float) -> Ends:
        low, high = together(self.infinite, *self.curve.interval(x))
        slack = overflow_cost(self.extra, x)
        return low - slack, (high + slack) * (1 + 1e-15) if slack else high

    def _aim(self, x: float) -> tuple[float, float]:
        """Difference of logs, and its slope."""
        value, slope = self.curve.middle(x)
        if not self.extra and not self.infinite[1]:
            return value - math.log(self.delta), slope
        part = (1 - self.infinite[1]) * math.exp(min(value, 0.0))
        spill = math.exp(min(x, 700.0)) * self.extra
        total = self.infinite[1] + part + self.extra + spill
        return math.log(total) - math.log(self.delta), (part * slope + spill) / total

    def _root(self) -> float:
        """Newton's method inside a bracket: too_low has a larger δ than asked, too_high a smaller one."""
        x, too_low, too_high = self.curve.start, -math.inf, math.inf
        for _ in range(100):
            value, slope = self._aim(x)
            if value > 0:
                too_low = max(too_low, x)
            elif value < 0:
                too_high = min(too_high, x)
            else:
                break
            y = _newton(x, value, slope, too_low, too_high)
            if x == 0 and value <= 0:
                break
            if y < 0 < x:
                y = 0.0  # the smallest ε there is, before a long step is taken beyond it
            arrived = abs(y - x) <= 4e-16 * abs(x) + 1e-300 or y < -1
            x = y
            if arrived:
                break
        return x

    def _above(self, x: float) -> float:
        """A point at or above ``x``, as near as one is found, where δ is surely at most what was asked."""
        least, margin = self._margin(x, self._between(x)[1])
        while self._between(x + margin)[1] > self.delta:
            least, margin = margin, 2 * margin
            if margin > 4 * (x + 1) + 100:
                return math.inf
        return x + self._halved(least, margin, lambda m: self._between(x + m)[1] <= self.delta)

    def _below(self, x: float) -> float:
        """A point below ``x``, as near as one is found, where δ is surely at least what was asked."""
        least, margin = self._margin(x, self._between(x)[0])
        while margin < x:
            if self._between(x - margin)[0] >= self.delta:
                return x - self._halved(least, margin, lambda m: self._between(x - m)[0] >= self.delta)
            least, margin = margin, 2 * margin
        return 0.0

    def _margin(self, x: float, end: float) -> tuple[float, float]:
        """From which margin to which one end of δ is as far from what was asked as it is at ``x``, by its slope there.

        That is where to look first; what is found is checked.
        """
        smallest = max(1e-14 * x, 1e-18)
        value, slope = self._aim(x)
        if not (end > 0 and math.isfinite(value) and slope < 0):
            return 0.0, smallest
        guess = 1.05 * abs(math.log(end / self.delta) / slope)
        return (0.9 * guess, guess) if smallest < guess < 0.5 * x else (0.0, smallest)

    def _halved(self, short: float, enough: float, good: Callable[[float], bool]) -> float:
        """A margin between one that is too short and one that is enough, within a tenth of the shortest."""
        while enough - short > 0.1 * enough > 1e-9:
            middle = 0.5 * (short + enough)
            short, enough = (short, middle) if good(middle) else (middle, enough)
        return enough


def _newton(x: float, value: float, slope: float, too_low: float, too_high: float) -> float:
    """The next point: Newton's step where it stays near and inside the bracket, else the middle."""
    step = -value / slope if math.isfinite(value) and slope < 0 else math.nan
    limit = abs(x) + 1.0
    y = x + max(-limit, min(step, limit)) if not math.isnan(step) else (x / 2 if math.isinf(too_low) else math.nan)
    if not too_low < y < too_high:
        y = 0.5 * (max(too_low, x - limit) + min(too_high, x + limit))
    return y


def largest_loss(parts: Parts) -> float:
    """The largest loss that the composition can have, rounded up."""
    return sum_of([(loss.supremum, times) for loss, times in parts])


def sum_of(terms: list[tuple[float, int]]) -> float:
    """A sum of multiples, rounded up, of the numbers that their shortest digits name: three times 0.1 is 0.3.

    A guarantee is stated in decimal digits. The float nearest to 0.1 is a little more, so that the sum of the floats,
    rounded up, would be 0.30000000000000004.
    """
    if any(math.isinf(value) for value, _ in terms):
        return math.inf
    exact = sum((Fraction(repr(float(value))) * times for value, times in terms), Fraction(0))
    rounded = float(exact)
    return rounded if Fraction(repr(rounded)) >= exact else math.nextafter(rounded, math.inf)
