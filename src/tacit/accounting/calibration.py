"""How much noise for this ε? The parameter of a family of mechanisms that meets a target and never exceeds it.

Root finding runs on the *upper* end of the certified interval, so that the mechanism found, priced again, costs at most
the target. In the logarithms of the parameter and of ε the curve is close to a straight line, and a bracketed secant
method needs half a dozen prices.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any

from tacit.accounting.base import Mechanism, is_number
from tacit.accounting.errors import AccountingError
from tacit.accounting.pricing import delta as delta_of
from tacit.accounting.pricing import epsilon as epsilon_of

#: How far below the target the price may stay: relative to it, and at most.
CLOSE, CLOSEST = 1e-6, 2e-5
#: Prices asked at most, before the best value found is returned.
MOST_PRICES = 80
LARGEST_PARAMETER = 1e15


def calibrate(
    family: Callable[[Any], Mechanism] | Mechanism,
    *,
    epsilon: float,
    delta: float | None = None,
    adjacency: str = "add-remove",
    group: int = 1,
    bracket: tuple[float, float] | None = None,
) -> float:
    """The parameter at which a family of mechanisms costs ε at δ, from below.

    Guarantee:
        ``acc.epsilon(family(result), delta, adjacency=..., group=...).upper <= epsilon``. For a parameter that is not a
        whole number, the price is within a millionth of the target, if the family reaches it at all.

    Args:
        family: Takes a positive number and returns a mechanism that gets cheaper, or dearer, as the number grows: the
            noise, the sampling rate, or the number of steps (then the result is the largest whole number that fits). If
            it is a mechanism itself, the result is the smallest δ for ε; leave ``delta`` out then.
        epsilon: The target ε, finite and above 0.
        delta: The δ at which the family has to reach it. 0 asks for a pure guarantee.
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).
        bracket: The smallest and largest parameter to consider. None (default) searches from 1e-15 to 1e15.

    Returns:
        The parameter; as a number without a fraction if the family takes whole numbers only.

    Raises:
        AccountingError: If ``delta`` does not fit ``family``, or no parameter reaches the target.

    Example:
        >>> from tacit import accounting as acc
        >>> noise = acc.calibrate(lambda s: acc.PoissonSampled(acc.Gaussian(s), 0.01) * 1000, epsilon=2.0, delta=1e-6)
        >>> round(noise, 4)
        1.029
    """
    if isinstance(family, Mechanism):
        if delta is not None:
            raise AccountingError("a mechanism without a free parameter is calibrated for δ: leave delta out")
        return calibrate_delta(family, epsilon=epsilon, adjacency=adjacency, group=group)
    if delta is None:
        raise AccountingError(
            "give the δ at which the family has to reach ε, such as delta=1e-5. See: tacit explain delta"
        )
    search = _Search(family, epsilon, delta, adjacency, group, bracket)
    return search.run()


def calibrate_steps(
    step: Mechanism, *, epsilon: float, delta: float, adjacency: str = "add-remove", group: int = 1
) -> int:
    """The largest number of times a step may run within (ε, δ).

    Args:
        step: What runs in each step.
        epsilon: The ε not to exceed, finite and above 0.
        delta: The δ of the guarantee.
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).

    Returns:
        The number of steps, 1 or more; an :class:`AccountingError` if not even one fits.

    Example:
        >>> from tacit import accounting as acc
        >>> acc.calibrate_steps(acc.PoissonSampled(acc.Gaussian(2.0), 0.01), epsilon=2.0, delta=1e-5)
        8681
    """

    def family(steps: int) -> Mechanism:
        return step * steps

    return int(calibrate(family, epsilon=epsilon, delta=delta, adjacency=adjacency, group=group))


def calibrate_rate(
    family: Callable[[float], Mechanism],
    *,
    epsilon: float,
    delta: float,
    adjacency: str = "add-remove",
    group: int = 1,
) -> float:
    """The largest sampling rate within (ε, δ).

    Args:
        family: Takes a rate in (0, 1] and returns a mechanism.
        epsilon: The ε not to exceed, finite and above 0.
        delta: The δ of the guarantee.
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).

    Returns:
        The rate, at most 1.

    Example:
        >>> from tacit import accounting as acc
        >>> family = lambda rate: acc.PoissonSampled(acc.Gaussian(1.0), rate) * 1000
        >>> round(acc.calibrate_rate(family, epsilon=2.0, delta=1e-6), 5)
        0.00944
    """
    return calibrate(family, epsilon=epsilon, delta=delta, adjacency=adjacency, group=group, bracket=(1e-12, 1.0))


def calibrate_delta(mechanism: Mechanism, *, epsilon: float, adjacency: str = "add-remove", group: int = 1) -> float:
    """The smallest δ at which a mechanism costs at most ε.

    Args:
        mechanism: What ran: one mechanism, or several composed with ``*`` and ``+``.
        epsilon: The ε not to exceed, finite and above 0.
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).

    Returns:
        A δ whose price, asked again, has an upper end of at most ``epsilon``.

    Raises:
        AccountingError: If no δ below 1 will do.

    Example:
        >>> from tacit import accounting as acc
        >>> acc.epsilon(acc.Gaussian(5.0), acc.calibrate_delta(acc.Gaussian(5.0), epsilon=1.0)).upper <= 1.0
        True
    """
    _check_target(epsilon)
    epsilon = float(epsilon)  # compared as it is: numpy would round the other side to float32
    found = delta_of(mechanism, epsilon, adjacency=adjacency, group=group).upper
    found = max(found, 1e-300)
    for step in (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3):
        candidate = found * (1 + step)
        if candidate >= 1:
            break
        if epsilon_of(mechanism, candidate, adjacency=adjacency, group=group).upper <= epsilon:
            return candidate
    raise AccountingError(f"no δ below 1 holds this mechanism to ε = {epsilon:g}; ask for a larger ε or add noise")


class _Outside(Exception):
    """The family has no mechanism for this parameter."""


@dataclasses.dataclass
class _Walk:
    """What a walk towards the target has learnt."""

    #: whether the cost falls as the parameter grows
    falls: bool | None = None
    stride: float = 0.7
    #: how often in a row a long step hardly came nearer
    flat: int = 0


class _Search:
    """One calibration: prices asked so far, and what is known of where the target is crossed."""

    def __init__(
        self,
        family: Callable[[Any], Mechanism],
        epsilon: float,
        delta: float,
        adjacency: str,
        group: int,
        bracket: tuple[float, float] | None,
    ) -> None:
        _check_target(epsilon)
        if bracket is not None and not 0 < bracket[0] < bracket[1] < math.inf:
            raise AccountingError(f"a bracket is two positive numbers, the smaller one first, not {bracket!r}")
        self.family, self.target, self.delta = family, float(epsilon), delta
        self.slack = min(CLOSE * self.target, CLOSEST)
        self.terms: dict[str, Any] = {"adjacency": adjacency, "group": group}
        self.low, self.high = bracket or (1 / LARGEST_PARAMETER, LARGEST_PARAMETER)
        self.name = _parameter_name(family)
        self.prices: dict[float, float] = {}
        self.whole = self._takes_whole_numbers(bracket)
        if self.whole:
            self.low = max(1.0, math.ceil(self.low))
            self.high = math.floor(self.high)
        # the parameter nearest to the target on either side, in logarithms
        self.inside: float | None = None
        self.outside: float | None = None

    def _takes_whole_numbers(self, bracket: tuple[float, float] | None) -> bool:
        """Whether the family repeats a mechanism and so refuses 1.5; asked without pricing anything."""
        probe = 1.5 if bracket is None else bracket[0] + 0.37 * (bracket[1] - bracket[0])
        try:
            self.family(probe)
        except (AccountingError, TypeError):
            try:
                self.family(max(1, math.ceil(probe if bracket else 1)))
            except (AccountingError, TypeError):
                return False
            # A rate refuses 1.5 too, and takes 0.5.
            try:
                self.family(0.5 if bracket is None else bracket[0])
            except (AccountingError, TypeError):
                return True
        return False

    def price(self, x: float) -> float:
        """The certified upper ε at parameter e^x."""
        if x not in self.prices:
            value = self._value(x)
            try:
                mechanism = self.family(value)
            except AccountingError as error:
                raise _Outside(str(error)) from error
            if not isinstance(mechanism, Mechanism):
                raise AccountingError(f"the family must return a mechanism, not {mechanism!r}")
            cost = epsilon_of(mechanism, self.delta, **self.terms).upper
            self.prices[x] = cost
            if cost <= self.target:
                if self.inside is None or cost > self.prices[self.inside] or self._nearer(x, self.inside, self.outside):
                    self.inside = x
            elif self.outside is None or cost < self.prices[self.outside] or self._nearer(x, self.outside, self.inside):
                self.outside = x
        return self.prices[x]

    def _nearer(self, x: float, than: float, end: float | None) -> bool:
        """Whether, at the same price, ``x`` lies closer to the other end: a family may cost the same over a stretch."""
        return end is not None and self.prices[x] == self.prices[than] and abs(x - end) < abs(than - end)

    def _value(self, x: float) -> float:
        if self.whole:
            return round(math.exp(x))
        return min(max(math.exp(x), self.low), self.high)

    def run(self) -> float:
        self._bracket()
        assert self.inside is not None
        if self.outside is None:
            return self._value(self.inside)
        while len(self.prices) < MOST_PRICES and not self._close():
            following = self._between()
            if following in self.prices:
                break  # no number lies between the two that were priced
            self.price(following)
        return self._value(self.inside)

    def _close(self) -> bool:
        assert self.inside is not None
        assert self.outside is not None
        if self.whole:
            return abs(self._value(self.inside) - self._value(self.outside)) <= 1
        if self.prices[self.inside] >= self.target - self.slack:
            return True
        return abs(self.inside - self.outside) <= 1e-14 * max(1.0, abs(self.inside))

    # -- before the target is bracketed ------------------------------------------------------------------------------

    def _bracket(self) -> None:
        """Walk from the middle towards the target until both sides of it are known."""
        low, high = math.log(self.low), math.log(self.high)
        previous, last = math.nan, self._start(low, high)
        walk = _Walk()
        while self.inside is None or self.outside is None:
            if len(self.prices) >= MOST_PRICES:
                raise self._unreachable()
            want_down = self.prices[last] > self.target
            if not math.isnan(previous):
                self._learn(walk, previous, last)
            rightward = want_down == (walk.falls is not False)
            if last == (high if rightward else low):
                if walk.falls is not None and not want_down:
                    break  # all of the family lies within the target: the end of the range is the answer
                self._check_end(walk, low, high, last)
                rightward = not rightward
            following = min(last + walk.stride, high) if rightward else max(last - walk.stride, low)
            try:
                self.price(following)
            except _Outside:
                edge = self._edge(last, following)
                low, high = (low, edge) if rightward else (edge, high)
                self.price(edge)
                following = edge
                if edge == last:
                    continue
            previous, last = last, following
        if self.inside is None:
            raise self._unreachable()

    def _start(self, low: float, high: float) -> float:
        """Where the walk begins, priced."""
        start = 0.0 if low <= 0 <= high else 0.5 * (low + high)
        if low < 0 == high:
            start = max(low, math.log(0.02))  # a rate: 1 is its end, not its middle
        try:
            self.price(start)
        except _Outside:
            return self._first_inside()
        return start

    def _learn(self, walk: _Walk, previous: float, last: float) -> None:
        """What the last two prices say of the way on."""
        before, cost = self.prices[previous], self.prices[last]
        if before == cost:
            walk.stride *= 2  # flat so far
            return
        walk.falls = (cost < before) == (last > previous)
        walk.stride = self._stride(previous, last)
        hardly = cost > self.target and abs(cost - before) / abs(cost - self.target) < 1e-3
        walk.flat = walk.flat + 1 if hardly else 0
        if walk.flat == 3:
            raise self._unreachable()

    def _check_end(self, walk: _Walk, low: float, high: float, last: float) -> None:
        """At an end of the range with the target not met: an error, unless the other end may be the way to it."""
        if walk.falls is not None:
            raise self._unreachable()
        if low in self.prices and high in self.prices:
            cost = self.prices[last]
            raise self._constant(cost) if math.isfinite(cost) else self._unreachable()

    def _stride(self, one: float, two: float) -> float:
        """How far the secant through two prices says the target is, and a little more, within reason."""
        first, second = self._height(one), self._height(two)
        if not (math.isfinite(first) and math.isfinite(second)) or first == second:
            return 1.4
        slope = (second - first) / (two - one)
        return min(max(1.05 * abs(second / slope), 0.02), 2.5)

    def _first_inside(self) -> float:
        """Some parameter for which the family has a mechanism, or the family's own error."""
        for x in (math.log(0.5), math.log(0.02), math.log(2.0), math.log(1e-6), math.log(100.0)):
            try:
                self.price(x)
            except _Outside:
                continue
            return x
        self.family(self._value(0.0))  # raises, and says why
        raise AccountingError("the family has no mechanism for any parameter tried")

    def _edge(self, good: float, bad: float) -> float:
        """The last parameter before ``bad`` for which the family has a mechanism; builds mechanisms, prices none."""
        if good < 0 < bad:
            bad_first = 0.0  # a rate ends at exactly 1
            if self._exists(bad_first) and not self._exists(1e-9):
                return bad_first
        for _ in range(60):
            middle = 0.5 * (good + bad)
            good, bad = (middle, bad) if self._exists(middle) else (good, middle)
        return good

    def _exists(self, x: float) -> bool:
        try:
            self.family(self._value(x))
        except AccountingError:
            return False
        return True

    def _unreachable(self) -> AccountingError:
        cheapest = min(self.prices, key=lambda x: self.prices[x])
        cost = self.prices[cheapest]
        return AccountingError(
            f"ε = {self.target:g} at δ = {self.delta:g} is out of reach: the cheapest {self.name} tried, "
            f"{self._value(cheapest):.6g}, costs ε = {cost:.6g}. Ask for a larger ε or δ, or make what does not depend "
            f"on the {self.name} cheaper (fewer steps, a smaller rate, other releases with more noise). "
            "See: tacit explain out-of-reach"
        )

    def _constant(self, cost: float) -> AccountingError:
        return AccountingError(
            f"every {self.name} tried costs ε = {cost:.6g}: the price of what the family returns does not depend on "
            "it, so there is nothing to calibrate"
        )

    # -- once it is bracketed ----------------------------------------------------------------------------------------

    def _height(self, x: float) -> float:
        """log(ε / aim), the aim a hair below the target so that what converges lies on the safe side."""
        cost = self.prices[x]
        if cost == 0:
            return -math.inf
        return math.log(cost / (self.target - 0.4 * self.slack)) if math.isfinite(cost) else math.inf

    def _between(self) -> float:
        """The next parameter: the secant through the two best prices where it helps, else the middle."""
        a, b = self.inside, self.outside
        assert a is not None
        assert b is not None
        middle = 0.5 * (a + b)
        if self.whole:
            inner = self._value(a), self._value(b)
            middle = math.log(0.5 * (inner[0] + inner[1]))
        near = sorted(self.prices, key=lambda x: abs(self._height(x)))[:2]
        guess = middle
        if len(near) == 2 and all(math.isfinite(self._height(x)) for x in near):
            one, two = near
            rise = self._height(two) - self._height(one)
            if rise != 0:
                guess = one - self._height(one) * (two - one) / rise
        left, right = min(a, b), max(a, b)
        # Every fourth price halves the bracket whatever the secant says, so that a kinked family ends too.
        if not left < guess < right or (len(self.prices) % 4 == 3 and right - left > 1e-3):
            guess = middle
        if self.whole:
            whole = min(max(round(math.exp(guess)), round(math.exp(left)) + 1), round(math.exp(right)) - 1)
            return math.log(whole)
        if guess in self.prices:
            guess = middle
        return guess


def _check_target(epsilon: float) -> None:
    if not is_number(epsilon) or epsilon <= 0:
        raise AccountingError(f"the target ε must be a number above 0, not {epsilon!r}; ε = 0 means releasing nothing")
    if math.isinf(epsilon):
        raise AccountingError("an infinite ε needs no calibration: every parameter meets it, and nothing is protected")


def _parameter_name(family: Callable[[Any], Mechanism]) -> str:
    try:
        names = list(inspect.signature(family).parameters)
    except (TypeError, ValueError):
        return "parameter"
    return names[0] if names and len(names[0]) > 1 else "parameter"
