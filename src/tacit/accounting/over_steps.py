"""How does ε grow during a run? The certified ε after every number of steps, in one go.

The exponent K of the contour integral is linear in the number of steps, so one line of nodes serves a whole range of
step counts: K of one step is computed once, and every count only multiplies it. The error terms are those of
:mod:`tacit.accounting.contour` (docs/explanation/certified-bounds.md), evaluated for many counts at once. Where a line
would need too many nodes (the first few steps at a small rate), ε is priced at a few counts; in between it lies
between its neighbours, because more steps never cost less.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.accounting import levels, over_levels
from tacit.accounting.base import Mechanism
from tacit.accounting.bound import Bound
from tacit.accounting.contour import (
    Abscissa,
    Parts,
    Unsuitable,
    best_abscissa,
    chernoff_period,
    log_kappa,
    log_mgf_real,
    without_tails,
)
from tacit.accounting.errors import AccountingError
from tacit.accounting.losses import ROUND, GaussianLoss
from tacit.accounting.pricing import epsilon as certified_epsilon
from tacit.accounting.renyi import members_of

Array = NDArray[np.float64]
#: Up to here every step count is priced when nothing else is asked; beyond, this many spread evenly in the logarithm.
EVERY = 12_000
#: Counts that share one line of nodes lie within this factor.
BLOCK = 1.5
#: Neighbouring counts that are priced one by one, before the first line, lie within this factor.
RARE_RATIO = 1.5
#: A line longer than this costs more than pricing a few counts one by one.
MAX_NODES = 1000
#: Counts times nodes in one block; where there would be more, fewer counts are priced.
MAX_CELLS = 150_000
#: Relative accuracy of δ asked of the integral, e^-DIGITS.
DIGITS = 20.0
#: So many counts of a block of a rare run are priced where not all are.
SPREAD = 400
#: Half the width asked of the interval for ε: relative, and absolute.
MARGIN, LEAST_MARGIN = 1e-7, 1e-10


@dataclasses.dataclass(frozen=True, eq=False)
class StepCurve:
    """Certified bounds on ε after each of several numbers of steps; made by :func:`epsilon_over_steps`.

    Args:
        steps: The numbers of steps that were priced, ascending.
        lower: The lower end of ε at each.
        upper: The upper end of ε at each, which is the claim.
        delta: The δ of the guarantee.
        adjacency: The adjacency of the guarantee.
        unit: Whom the guarantee protects.
        group: How many units are protected together (default 1).
        tight: Whether both ends belong to the exact worst case.

    Example:
        >>> from tacit.accounting import Gaussian, epsilon_over_steps
        >>> curve = epsilon_over_steps(Gaussian(20.0), 10, delta=1e-5)
        >>> len(curve), curve.at(5).upper < curve.at(10).upper
        (10, True)
    """

    steps: NDArray[np.int64]
    lower: Array
    upper: Array
    delta: float
    adjacency: str
    unit: str
    group: int = 1
    tight: bool = True

    def at(self, steps: int) -> Bound:
        """The interval for any number of steps up to the last.

        Args:
            steps: The number of steps, 0 or more.

        Returns:
            What was priced, or an interval that covers both neighbours if this number was not priced itself.

        Raises:
            AccountingError: If the curve does not reach that far.
        """
        if not 0 <= steps <= self.steps[-1]:
            raise AccountingError(f"the curve covers 0 to {self.steps[-1]} steps, not {steps}")
        right = int(np.searchsorted(self.steps, steps, side="left"))
        left = right if self.steps[right] == steps else right - 1
        low = float(self.lower[left]) if left >= 0 else 0.0
        high = float(self.upper[right]) if steps > 0 else 0.0
        return Bound(low, high, self.tight, "epsilon", self.delta, self.adjacency, self.unit, self.group)

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"StepCurve of {len(self)} counts up to {self.steps[-1]}: {self.at(int(self.steps[-1]))!r}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinities are written as the string ``"inf"``."""

        def plain(values: Array) -> list[float | str]:
            return ["inf" if math.isinf(x) else float(x) for x in values]

        terms = {"delta": self.delta, "adjacency": self.adjacency, "unit": self.unit, "group": self.group}
        curve = {"steps": self.steps.tolist(), "lower": plain(self.lower), "upper": plain(self.upper)}
        return {**terms, "tight": self.tight, **curve}


def epsilon_over_steps(
    step: Mechanism,
    steps: int,
    delta: float,
    *,
    points: int | None = None,
    adjacency: str = "add-remove",
    group: int = 1,
) -> StepCurve:
    """Certified ε of 1 to ``steps`` repetitions of a step.

    Every count is priced up to 12,000 steps. Beyond that, or with ``points``, the counts are spread evenly in the
    logarithm; there are fewer of them if each takes longer. :meth:`StepCurve.at` has an interval for every count.

    Args:
        step: What runs in each step.
        steps: The largest number of steps.
        delta: The δ of the guarantee.
        points: How many counts to price, 2 or more. None (default) prices every count up to 12,000.
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).

    Returns:
        The curve of ε over steps.

    Raises:
        AccountingError: If ``steps`` is not a whole number above 0, or ``points`` is below 2.

    Example:
        >>> from tacit.accounting import Gaussian, PoissonSampled, epsilon_over_steps
        >>> curve = epsilon_over_steps(PoissonSampled(Gaussian(2.0), 0.01), 1000, delta=1e-5)
        >>> round(curve.at(1000).upper, 5), round(curve.at(500).upper, 5)
        (0.62203, 0.43198)
    """
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise AccountingError(f"the number of steps is a whole number, 1 or more, not {steps!r}")
    if points is not None and points < 2:
        raise AccountingError(f"a curve needs 2 points or more, not {points!r}")
    members = members_of(step, adjacency, group)
    delta, group = float(delta), int(group)
    last = certified_epsilon(step * int(steps), delta, adjacency=adjacency, group=group)
    wanted = _counts(int(steps), points)
    if not _linear(members, adjacency, group) or not 0 < last.upper < math.inf:
        few = _counts(int(steps), min(points or 40, 40))
        return _priced(step, few, last, delta, adjacency, group)
    low, high = np.zeros(len(wanted)), np.full(len(wanted), math.inf)
    low[-1], high[-1] = last.lower, last.upper
    directions = _directions(members, adjacency, group)
    first = _fill(directions, wanted, delta, low, high)
    # The counts before the first line: by levels, or a few, one by one, and not narrower than the curve can show.
    index = first if high[first] < math.inf and first < len(wanted) - 1 else len(wanted)
    narrow = 0.005 * float(high[first]) if 0 < high[first] < math.inf else None
    while index > 0:
        near = float(high[min(index, len(wanted) - 1)])
        if (start := _fill_rare(directions, wanted[:index], delta, near, low, high)) < index:
            index = start
            continue
        index = min(index - 1, int(np.searchsorted(wanted, wanted[index - 1] / RARE_RATIO)))
        bound = certified_epsilon(step * int(wanted[index]), delta, adjacency=adjacency, group=group, tolerance=narrow)
        low[index], high[index] = bound.lower, bound.upper
    priced = np.isfinite(high)
    return _monotone(wanted[priced], low[priced], high[priced], last, delta)


def _counts(steps: int, points: int | None) -> NDArray[np.int64]:
    if points is None and steps <= EVERY:
        return np.arange(1, steps + 1)
    spread = np.exp(np.linspace(0.0, math.log(steps), points or EVERY))
    counts = np.unique(np.round(spread).astype(np.int64))
    counts[-1] = steps
    return counts


def _linear(members: list[tuple[Mechanism, int]], adjacency: str, group: int) -> bool:
    """Whether every part has one exact pair in each direction that the contour can use."""
    for part, _ in members:
        if part.extra_delta(group) > 0 or not part.is_tight(adjacency, group):
            return False
        for direction in ("remove", "add"):
            loss = part.pair(adjacency, direction, group)
            if loss is None or not loss.analytic or loss.infinity > 0:
                return False
    return bool(members)


def _priced(
    step: Mechanism, counts: NDArray[np.int64], last: Bound, delta: float, adjacency: str, group: int
) -> StepCurve:
    bounds = [certified_epsilon(step * int(n), delta, adjacency=adjacency, group=group) for n in counts[:-1]] + [last]
    low, high = np.array([b.lower for b in bounds]), np.array([b.upper for b in bounds])
    return _monotone(counts, low, high, last, delta)


def _monotone(counts: NDArray[np.int64], low: Array, high: Array, last: Bound, delta: float) -> StepCurve:
    """More steps never cost less: carry lower ends forwards and upper ends backwards."""
    low = np.maximum.accumulate(low)
    high = np.minimum.accumulate(high[::-1])[::-1]
    return StepCurve(counts, low, high, delta, last.adjacency, last.unit, last.group, last.tight)


def _directions(members: list[tuple[Mechanism, int]], adjacency: str, group: int) -> list[Parts]:
    """The losses of one step, in both orders of the neighbours, or in one where they are alike."""
    directions = []
    for direction in ("remove", "add"):
        pairs = [(part.pair(adjacency, direction, group), times) for part, times in members]
        parts: Parts = [(loss, times) for loss, times in pairs if loss is not None and loss.supremum > 0]
        directions.append(parts)
        if all(loss.symmetric for loss, _ in parts):
            break
    return directions


def _fill(directions: list[Parts], counts: NDArray[np.int64], delta: float, low: Array, high: Array) -> int:
    """Price blocks of counts from the last to the first until a line gets too long; returns the first index priced."""
    stop = len(counts)
    while stop > 0:
        start = int(np.searchsorted(counts, counts[stop - 1] / BLOCK, side="left"))
        try:
            lines = [_Line(parts, int(counts[start]), int(counts[stop - 1]), delta) for parts in directions]
        except (Unsuitable, OverflowError):
            break
        rows = max(8, MAX_CELLS // max(len(line.z) for line in lines))
        chosen = np.unique(np.linspace(start, stop - 1, min(rows, stop - start)).round().astype(int))
        found = [line.bounds(counts[chosen].astype(float)) for line in lines]
        low[chosen] = np.maximum(low[chosen], np.max([one for one, _ in found], axis=0))
        high[chosen] = np.minimum(high[chosen], np.max([one for _, one in found], axis=0))
        stop = start
    return min(stop, len(counts) - 1)


def _fill_rare(
    directions: list[Parts], counts: NDArray[np.int64], delta: float, near: float, low: Array, high: Array
) -> int:
    """Price the last block of ``counts`` by levels; returns its first index, or how many there are if it cannot be.

    ``near`` is about the ε of the last of them.
    """
    if not 0 < near < math.inf:
        return len(counts)
    first = int(np.searchsorted(counts, counts[-1] / over_levels.BLOCK, side="left"))
    chosen = np.arange(first, len(counts))
    if counts[-1] > EVERY:
        chosen = np.unique(np.linspace(first, len(counts) - 1, min(SPREAD, len(chosen))).round().astype(int))
    rows = counts[chosen].astype(float)
    least, most = np.zeros(len(rows)), np.zeros(len(rows))
    for parts in directions:
        try:
            if levels.some_rare(parts):
                one, other = over_levels.Block(parts, int(rows[0]), int(rows[-1]), delta, near).bounds(rows)
            else:
                one, other = np.zeros(len(rows)), _ceiling(parts, rows, delta, least)
                if not (other <= most).all():
                    one, other = _Line(parts, int(rows[0]), int(rows[-1]), delta).bounds(rows)
        except (Unsuitable, OverflowError):
            return len(counts)
        least, most = np.maximum(least, one), np.maximum(most, other)
    if not (most <= (1 + 1e-3) * least + 1e-5).mean() > 0.9:
        return len(counts)
    low[chosen], high[chosen] = np.maximum(low[chosen], least), np.minimum(high[chosen], most)
    return first


def _ceiling(parts: Parts, rows: Array, delta: float, enough: Array) -> Array:
    """An upper bound on ε after each count: the largest loss there is, or Chernoff's where that is not ``enough``."""
    high = rows * sum(times * loss.supremum for loss, times in parts) * (1 + 1e-12)
    if (high <= enough).all():
        return high
    c = best_abscissa([(loss, times * int(rows[-1])) for loss, times in parts], log_delta=math.log(delta)).c
    for other in c * np.geomspace(0.5, 4.0, 7):
        with contextlib.suppress(OverflowError):
            k, error = log_mgf_real(parts, float(other))
            high = np.minimum(high, (rows * (k + error) + log_kappa(float(other)) - math.log(delta)) / other)
    return np.maximum(high, 0.0)


class _Line:
    """One vertical line of nodes that serves all counts of a block."""

    def __init__(self, parts: Parts, first: int, last: int, delta: float) -> None:
        self.delta = delta
        log_delta = math.log(delta)
        kept, self.left_out = without_tails([(loss, times * last) for loss, times in parts], log_delta)
        one = [(loss, times // last) for loss, times in kept]
        middle = max(1, round(math.sqrt(first * last)))
        at = best_abscissa([(loss, times * middle) for loss, times in one], log_delta=log_delta)
        self.c = c = at.c
        self.log_delta = log_delta
        # Periods and other abscissas for both ends of the block; every choice is valid, a good one is narrow.
        self.right: list[tuple[float, float]] = []
        self.left: list[tuple[float, float]] = []
        period = excess = 0.0
        for count in (first, last):
            scale = count / middle
            there = Abscissa(c, at.log_m * scale, at.spread * math.sqrt(scale), at.epsilon * scale)
            needed, right, left = chernoff_period([(loss, t * count) for loss, t in one], there, log_delta, DIGITS)
            period = max(period, needed)
            excess = max(excess, there.log_m - c * there.epsilon - log_delta)
            for (other, bound), found in ((right, self.right), (left, self.left)):
                if math.isfinite(bound):
                    k, e = log_mgf_real(one, other)
                    found.append((other, k + e))
        if not math.isfinite(period):
            raise Unsuitable
        self.period = period
        step = 2 * math.pi / period
        nodes = _count_nodes(one, c, first, step, DIGITS + excess)
        t = step * np.arange(nodes + 1)
        self.z = c + 1j * t
        self.k = np.zeros(len(t), dtype=complex)
        self.k_error = np.zeros(len(t))
        for loss, times in one:
            values, errors = loss.log_mgf(c, t)
            self.k += times * values
            self.k_error += times * (errors + ROUND * np.abs(values))
        self.log_kernel = np.log(self.z * (self.z + 1))
        self.weight = np.full(len(t), step / math.pi)
        self.weight[0] /= 2
        self.last_node = float(t[-1])
        self.tail_decay = sum(times * loss.decay(c)(self.last_node + step) for loss, times in one)

    def _terms(self, rows: Array, epsilon: Array) -> tuple[Array, Array, Array]:
        """Log of the first node's term, and every node's size and real part relative to it."""
        m = np.multiply.outer(rows, self.k) - np.multiply.outer(epsilon, self.z) - self.log_kernel
        top = m[:, 0].real.copy()
        size = self.weight * np.exp(m.real - top[:, None])
        return top, size, size * np.cos(m.imag)

    def _newton(self, rows: Array, epsilon: Array) -> Array:
        """One step of Newton's method on log δ(ε) = log δ for every row."""
        m = np.multiply.outer(rows, self.k) - np.multiply.outer(epsilon, self.z) - self.log_kernel
        top = m[:, 0].real.copy()
        size = self.weight * np.exp(m.real - top[:, None])
        real = size * np.cos(m.imag)
        total = real.sum(axis=1)
        # Re(term · z) = c Re(term) - t Im(term)
        slope = self.c * total - (size * np.sin(m.imag)) @ self.z.imag
        with np.errstate(divide="ignore", invalid="ignore"):
            change = (top + np.log(total) - self.log_delta) * total / slope
        reach = 0.5 * np.abs(epsilon) + 0.05
        return np.asarray(epsilon + np.where(np.isfinite(change), np.clip(change, -reach, reach), 0.0))

    def interval(self, rows: Array, epsilon: Array) -> tuple[Array, Array]:
        """Certified bounds on δ(ε) after each of ``rows`` steps."""
        top, size, real = self._terms(rows, epsilon)
        # the error of K(z), zε and the logarithm, as in Contour.interval, with |K - zε - log| bounded by its parts
        k_noise = self.k_error + 9 * ROUND * np.abs(self.k)
        fixed = ROUND * (16 + 8 * np.abs(self.log_kernel) + len(self.z))
        noise = rows * (size @ k_noise) + 8 * ROUND * np.abs(epsilon) * (size @ np.abs(self.z)) + size @ fixed
        largest = rows * k_noise.max() + 8 * ROUND * np.abs(epsilon) * np.abs(self.z).max() + fixed.max()
        rounding = np.where(largest < 0.01, 1.01 * noise, np.inf)
        total = real.sum(axis=1)
        log_m = rows * (float(self.k[0].real) + float(self.k_error[0]))
        with np.errstate(over="ignore"):
            tail = np.exp(rows * self.tail_decay + log_m - self.c * epsilon - top) / (math.pi * self.last_node)
        near = top <= 600  # too far from where the line was made for, nothing is claimed
        scale = np.exp(np.where(near, top, 0.0))
        high = scale * (total + rounding + tail) * (1 + 4 * ROUND) + self.left_out
        low = scale * (total - rounding - tail) * (1 - 4 * ROUND) - self._alias(rows, epsilon)
        return np.where(near, np.clip(low, 0.0, 1.0), 0.0), np.where(near, np.clip(high, 0.0, 1.0), 1.0)

    def _alias(self, rows: Array, epsilon: Array) -> Array:
        """A bound on the shifted copies Σ_{n≠0} e^{cnY} δ(ε + nY) that the sum over nodes adds."""
        c, y = self.c, self.period

        def series(log_first: Array, exponent: float) -> Array:
            if exponent <= 0:
                return np.full(len(rows), math.inf)
            with np.errstate(over="ignore"):
                return np.asarray(np.exp(log_first - exponent - math.log(-math.expm1(-exponent)) + 1e-9))

        right = np.full(len(rows), math.inf)
        for other, k in self.right:
            right = np.minimum(right, series(rows * k + log_kappa(other) - other * epsilon, (other - c) * y))
        left = series(np.zeros(len(rows)), c * y)
        for other, k in self.left:
            left = np.minimum(left, series(rows * k + log_kappa(other) - other * epsilon, (c - other) * y))
        return right + left

    def bounds(self, counts: Array) -> tuple[Array, Array]:
        """Lower and upper ends of ε for counts of the block."""
        few = np.unique(np.linspace(0, len(counts) - 1, 9).round().astype(int))
        start = (counts[few] * float(self.k[0].real) + log_kappa(self.c) - self.log_delta) / self.c
        for _ in range(9):
            start = self._newton(counts[few], start)
        guess = np.interp(np.log(counts), np.log(counts[few]), start)
        low, high = np.zeros(len(counts)), np.full(len(counts), math.inf)
        for begin in range(0, len(counts), 256):
            part = slice(begin, begin + 256)
            low[part], high[part] = self._certify(counts[part], guess[part])
        return low, high

    def _certify(self, rows: Array, guess: Array) -> tuple[Array, Array]:
        x = self._newton(rows, self._newton(rows, guess))
        x = np.maximum(x, 0.0)
        low, high = np.zeros(len(rows)), np.full(len(rows), math.inf)
        margin = MARGIN * x + LEAST_MARGIN
        for _ in range(3):
            above, below = x + margin, x - margin
            ask = np.flatnonzero(np.isinf(high))
            if len(ask):
                good = self.interval(rows[ask], above[ask])[1] <= self.delta
                high[ask[good]] = above[ask[good]]
            ask = np.flatnonzero((low == 0) & (below > 0))
            if len(ask):
                good = self.interval(rows[ask], below[ask])[0] >= self.delta
                low[ask[good]] = below[ask[good]]
            margin = margin * 30
        nothing = np.flatnonzero(x <= LEAST_MARGIN)
        if len(nothing):
            free = self.interval(rows[nothing], np.zeros(len(nothing)))[1] <= self.delta
            high[nothing[free]] = 0.0
        return low, high


def _count_nodes(one: Parts, c: float, count: int, step: float, digits: float) -> int:
    """Nodes after which the integrand of ``count`` steps has fallen below e^-digits."""
    if all(isinstance(loss, GaussianLoss) for loss, _ in one):
        rate = sum(times * loss.mu**2 for loss, times in one if isinstance(loss, GaussianLoss)) * count / 2
        return min(MAX_NODES, max(16, math.ceil(math.sqrt((digits + 10) / rate) / step)))
    decays = [(loss.decay(c), times) for loss, times in one]

    def enough(nodes: int) -> bool:
        t = (nodes + 1) * step
        return count * sum(times * bound(t) for bound, times in decays) - math.log(max(t, 1e-300)) <= -digits

    low, high = 8, 16
    while not enough(high):
        low, high = high, high * 2
        if low > MAX_NODES:
            raise Unsuitable
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    if high > MAX_NODES:
        raise Unsuitable
    return high
