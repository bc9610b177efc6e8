"""What is δ(ε) of a run in which a record rarely takes part? The contour integral, level by level of the loss.

With few participations most of the total loss sits in a narrow cluster, and the integrand of
:mod:`tacit.accounting.contour` falls only at t beyond one over the width of that cluster. So the outcomes of a step are
parted by the size of their loss. With M_j the moment of the losses below level j (softly cut), P's moments of T steps
are

    M_J^T = M_0^T + Σ_j (M_j^T - M_{j-1}^T),

the mixture over how many steps lie in each band, not told to anybody. Each difference is the transform of a positive
measure, of runs whose largest loss lies in band j: it has a contour of its own, short because the measure is as wide as
the band, and quick to fall because a loss in the band varies smoothly. Proofs: docs/explanation/rare-participation.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tacit.accounting import lattice
from tacit.accounting.contour import Abscissa, Contour, Parts, Unsuitable, alias_series, log_kappa, log_mgf_real
from tacit.accounting.losses import ROUND, Array, AtomsLoss, ComplexArray
from tacit.accounting.mixture import SOFT, MixtureLoss
from tacit.accounting.special import ndtr

#: Neighbouring levels differ by at most this factor.
RATIO = 8.0
#: What a level may add to δ without being computed, and the accuracy of one that is computed, as exponents of e.
NEGLIGIBLE, ACCURATE = 16.0, 17.0
#: More nodes than this for one level are refused, and more than this for the cluster.
MAX_NODES, CLUSTER_NODES = 3000, 60_000
#: Points of the lattice that stands for one use of a loss without moments.
STANDING = 2048
#: The smallest abscissa that is tried for a level, times the spread of all losses, the largest, times the level's own
#: loss, and how many.
_LEAST, _MOST, _TRIED = 0.25, 40.0, 18


def some_rare(parts: Parts) -> bool:
    """Whether a part is a mixture whose loss rises with the outcome: what levels are for."""
    return any(isinstance(loss, MixtureLoss) and loss.rising for loss, _ in parts)


class Levels:
    """δ(ε) of a composition with rare parts: a cluster, and bands of the loss above it.

    ``rare`` are mixtures whose loss rises with the outcome; every other part takes its place in each level as it is.
    """

    def __init__(self, parts: Parts, *, log_delta: float | None = None, epsilon: float | None = None) -> None:
        self.rare = [(loss, times) for loss, times in parts if isinstance(loss, MixtureLoss) and loss.rising]
        self.rest = [(loss, times) for loss, times in parts if not (isinstance(loss, MixtureLoss) and loss.rising)]
        size = log_delta if log_delta is not None else -12.0
        for _ in range(4):
            self._lay(size)
            if log_delta is not None:
                break
            assert epsilon is not None
            now = min(self._log_ceiling(epsilon), 0.0)
            if abs(now - size) < 3:
                break
            size = now - 2
        self.log_delta = size
        self.start = epsilon if epsilon is not None else self._first_guess()

    def _lay(self, log_delta: float) -> None:
        """Cut every rare loss at the same levels; beyond the last there is at most e^{-18} of δ."""
        each = math.exp(max(log_delta - 18.0, -600.0)) / sum(times for _, times in self.rare)
        # the softer the cut, the further it reaches
        tops = [loss._quantile(each) * math.hypot(1, SOFT / loss.span) for loss, _ in self.rare]
        highest = max(loss.loss_at(top) for (loss, _), top in zip(self.rare, tops, strict=True))
        lowest = self._cluster()
        count = max(1, math.ceil(math.log(max(highest / lowest, 1.5)) / math.log(RATIO)))
        losses = lowest * (highest / lowest) ** (np.arange(count + 1) / count)
        cuts = np.array(
            [np.minimum(loss.outcomes(losses), top) for (loss, _), top in zip(self.rare, tops, strict=True)]
        )
        cuts[:, -1] = tops
        self.left_out = sum(
            times * float(loss.p_weight @ ndtr((loss.p_shift - top) / math.hypot(1, SOFT / loss.span))) * (1 + 1e-12)
            + times * float(loss.p_weight @ ndtr(loss.p_shift - loss.cut_at(top, _MOST / highest).stop))
            for (loss, times), top in zip(self.rare, tops, strict=True)
        )
        spread = math.sqrt(sum(times * loss.tilted(1e-6)[3] for loss, times in self.rest)) if self.rest else 0.0
        self.cluster_scale = float(losses[0]) + 4 * spread
        most = _MOST / losses
        self.cluster: Parts = [
            (loss.cut_at(float(cut), float(most[0])), times)
            for (loss, times), cut in zip(self.rare, cuts[:, 0], strict=True)
        ]
        self.cluster += self.rest
        self.cluster_chernoff = _Chernoff(
            self.cluster, np.geomspace(_LEAST / self.cluster_scale, float(most[0]), _TRIED)
        )
        self._contour: Contour | None = None
        self._refused = math.inf
        self.bands = [
            Band(
                [
                    (loss.cut_at(float(high), float(most[j + 1])), float(low), times)
                    for (loss, times), low, high in zip(self.rare, cuts[:, j], cuts[:, j + 1], strict=True)
                    if high > low
                ],
                [
                    (loss.cut_at(float(low), float(most[j + 1])), times)
                    for (loss, times), low, high in zip(self.rare, cuts[:, j], cuts[:, j + 1], strict=True)
                    if high <= low
                ]
                + self.rest,
                float(losses[j + 1]) + 4 * spread,
                float(most[j + 1]),
            )
            for j in range(count)
        ]
        # a level's own law stops a little earlier than as the lower end of the band above it
        for loss, times in (*self.cluster[: len(self.rare)], *((one, n) for b in self.bands for one, _, n in b.rare)):
            assert isinstance(loss, MixtureLoss)
            beyond = float(loss.p_weight @ ndtr(loss.p_shift - loss.stop))
            self.left_out += times * float(ndtr((loss.cut - loss.stop) / loss.soft)) * beyond * (1 + 1e-12)

    def _cluster(self) -> float:
        """The loss at which the cluster ends: four times the spread of what lies below it."""
        points: list[Array] = []
        squares: list[Array] = []
        for loss, times in self.rare:
            x = np.linspace(-9.0, 9.0 + loss.span, 1200)
            log_p, log_q = loss.log_ratio(x)
            density = np.exp(-0.5 * x * x + log_p) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
            points.append(log_p - log_q)
            squares.append(times * density * (log_p - log_q) ** 2)
        value, square = np.concatenate(points), np.concatenate(squares)
        order = np.argsort(value, kind="stable")
        value, spread = value[order], np.sqrt(np.cumsum(square[order]))
        beyond = (value > 4 * spread) & (value > 0)
        return float(value[int(np.argmax(beyond))]) if beyond.any() else float(value[-1])

    # -- without nodes --------------------------------------------------------------------------------------------

    def _log_ceiling(self, epsilon: float) -> float:
        """log of an upper bound on δ(ε) by Chernoff's inequality in every level."""
        logs = [self.cluster_chernoff.log_bound(epsilon), *(band.chernoff.log_bound(epsilon) for band in self.bands)]
        return float(np.logaddexp(np.logaddexp.reduce(logs), math.log(self.left_out + 1e-320)))

    def _first_guess(self) -> float:
        low, high = 0.0, 1.0
        while self._log_ceiling(high) > self.log_delta and high < 1e6:
            low, high = high, 2 * high
        for _ in range(40):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._log_ceiling(middle) > self.log_delta else (low, middle)
        return high

    # -- as a curve -----------------------------------------------------------------------------------------------

    def interval(self, epsilon: float) -> tuple[float, float]:
        """A certified interval that contains δ(ε)."""
        low, high = 0.0, self.left_out
        for one_low, one_high in self._intervals(epsilon):
            low, high = low + one_low, high + one_high
        return min(1.0, low * (1 - 1e-14)), min(1.0, high * (1 + 1e-14))

    def _intervals(self, epsilon: float) -> list[tuple[float, float]]:
        found = [band.interval(epsilon, self.log_delta) for band in self.bands]
        ceiling = math.exp(min(self.cluster_chernoff.log_bound(epsilon), 0.0))
        if ceiling > math.exp(max(self.log_delta - NEGLIGIBLE, -700.0)):
            contour = self._cluster_contour(epsilon)
            if contour is not None:
                low, high = contour.interval(epsilon)
                return [*found, (low, min(high, ceiling))]
        return [*found, (0.0, ceiling)]

    def _cluster_contour(self, epsilon: float) -> Contour | None:
        """The contour of the cluster, made for this ε or one near it; None where it would be too long."""
        near = 0.5 * self.cluster_scale
        if self._contour is None or abs(epsilon - self._contour.at.epsilon) > near:
            if abs(epsilon - self._refused) < 0.01 * near:
                return None
            c = self.cluster_chernoff.best(epsilon)
            try:
                variance = sum(times * loss.tilted(c)[3] for loss, times in self.cluster)
                at = Abscissa(c, log_mgf_real(self.cluster, c)[0], math.sqrt(variance), epsilon)
                self._contour = Contour(self.cluster, at, self.log_delta, digits=ACCURATE, nodes=CLUSTER_NODES)
            except (Unsuitable, OverflowError):
                self._refused = epsilon
                return None
        return self._contour

    def middle(self, epsilon: float) -> tuple[float, float]:
        """log δ(ε) and its slope, for root finding."""
        value = slope = 0.0
        for band in self.bands:
            one, two = band.middle(epsilon, self.log_delta)
            value, slope = value + one, slope + two
        if self.cluster_chernoff.log_bound(epsilon) > self.log_delta - NEGLIGIBLE:
            contour = self._cluster_contour(epsilon)
            if contour is not None:
                log_one, log_slope = contour.middle(epsilon)
                if log_one > -700:
                    size = math.exp(min(log_one, 600.0))
                    value, slope = value + size, slope + size * log_slope
        if value <= 0:
            return -math.inf, -1.0 / max(self.cluster_scale, 1e-300)
        return math.log(value), min(slope / value, -1e-12)


class Between:
    """δ(ε) where parts without moments (sampled Laplace noise, passes) run beside rare ones.

    A law on a fine lattice that dominates such a part stands for it in the upper end, and one that it dominates (what
    the number of a cell tells) in the lower end. Both have finitely many losses, and so moments.
    """

    def __init__(self, parts: Parts, *, log_delta: float | None = None, epsilon: float | None = None) -> None:
        size = log_delta if log_delta is not None else -40.0
        tail = math.exp(max(size - 18.0, -600.0)) / sum(times for _, times in parts)
        self.left_out = self.misplaced = 0.0
        above, below = Parts(), Parts()
        for loss, times in parts:
            if loss.analytic:
                above.append((loss, times))
                below.append((loss, times))
                continue
            low, high = lattice.span(loss.between(math.inf, tail)[0], tail)
            step = lattice.choose_step([(loss, times)], max(high - low, 1e-12) / STANDING)
            law = lattice.dominating(loss, step, tail)
            self.left_out += times * law.above * (1 + 1e-12)
            self.misplaced += times * lattice.MISPLACED * step
            above.append((law, times))
            p, level = lattice.seen(loss, step, tail)
            values = p.values + np.log(p.p / level.p)
            below.append((AtomsLoss(values - 1e-13 * (1 + np.abs(values)), p.p, symmetric=False), times))
        self.above = Levels(above, log_delta=log_delta, epsilon=epsilon)
        self.below = Levels(below, log_delta=log_delta, epsilon=epsilon)
        self.start = self.above.start

    def interval(self, epsilon: float) -> tuple[float, float]:
        """A certified interval that contains δ(ε)."""
        high = min(1.0, self.above.interval(epsilon - self.misplaced)[1] + self.left_out)
        return min(self.below.interval(epsilon)[0], high), high

    def middle(self, epsilon: float) -> tuple[float, float]:
        """log δ(ε) and its slope, for root finding."""
        return self.above.middle(epsilon)


def nodes_needed(enough: Callable[[int], bool]) -> int:
    """The fewest nodes, to a sixteenth, that are enough.

    >>> nodes_needed(lambda nodes: nodes >= 100)
    100
    """
    low, high = 8, 16
    while not enough(high):
        low, high = high, 2 * high
        if high > MAX_NODES:
            raise Unsuitable
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _log1p(u: ComplexArray) -> ComplexArray:
    """log(1 + u) to full accuracy for small complex u, which numpy's own does not keep."""
    x, y = u.real, u.imag
    return np.asarray(0.5 * np.log1p(x * (2 + x) + y * y) + 1j * np.arctan2(y, 1 + x))


class _Chernoff:
    """Upper bounds on δ(ε) from moments at several abscissas."""

    def __init__(self, parts: Parts, tried: Array) -> None:
        logs = []
        for c in tried:
            try:
                k, e = log_mgf_real(parts, float(c))
                logs.append(k + e)
            except OverflowError:
                logs.append(math.inf)
        self.c, self.log_m = tried, np.array(logs)
        self.log_bounds = self.log_m + np.array([log_kappa(float(c)) for c in tried])

    def log_bound(self, epsilon: float) -> float:
        return float((self.log_bounds - self.c * epsilon).min())

    def best(self, epsilon: float) -> float:
        return float(self.c[int(np.argmin(self.log_bounds - self.c * epsilon))])


class Band:
    """Runs whose largest rare loss lies between two levels: M_j^T - M_{j-1}^T as a contour integral."""

    def __init__(self, rare: list[tuple[MixtureLoss, float, int]], rest: Parts, scale: float, most: float) -> None:
        self.rare, self.rest, self.scale = rare, rest, scale
        tried = np.geomspace(_LEAST / scale, most, _TRIED)
        log_a, ratio = np.zeros(len(tried)), np.zeros(len(tried))
        self.log_all = np.zeros(len(tried))
        for loss, low, times in rare:
            one_a, one_b, off_a, off_b = loss.band(low, tried)
            log_a += times * (one_a + off_a)
            ratio += times * np.logaddexp(0.0, one_b - one_a + off_a + off_b)
            self.log_all += times * np.logaddexp(one_a + off_a, one_b + off_b)
        others = np.array([sum(log_mgf_real(rest, float(c))) for c in tried])
        self.chernoff = _Chernoff([], tried)
        self.below, self.ratio = log_a + others, ratio
        self.slack = self.chernoff.log_bounds + 1e-13 * (1 + np.abs(log_a) + np.abs(others))
        self.chernoff.log_bounds = self.log_bounds(1.0)
        self.log_all += others
        self.line: _Line | None = None
        self.refused = math.inf  # the ε for which a line would have been too long

    def log_bounds(self, share: float | Array, epsilon: float | Array = 0.0) -> Array:
        """log of Chernoff's bound on δ(ε) at each abscissa, for this share of all steps, or several."""
        ratio = np.multiply.outer(share, self.ratio)
        with np.errstate(over="ignore", divide="ignore"):
            # log(e^r - 1)
            log_m = np.multiply.outer(share, self.below) + ratio + np.log(-np.expm1(-ratio))
        return np.asarray(log_m + self.slack - np.multiply.outer(epsilon, self.chernoff.c))

    def log_tail(self, c: float) -> Callable[[float], float]:
        """For t a bound on log |F(c + is)| for every s >= t, without the moments of all steps: one lies in the band."""
        decays = [(loss.band_decay(low, c), times, loss.band(low, np.array([c]))) for loss, low, times in self.rare]

        def bound(t: float) -> float:
            each = [math.log(times) + decay(t) - float(np.logaddexp(a, b)[0]) for decay, times, (a, b, *_) in decays]
            return float(np.logaddexp.reduce(each)) + 1e-9

        return bound

    def exponents(self, c: float, t: Array) -> tuple[ComplexArray, Array, ComplexArray, Array]:
        """log of the moment of runs below the band, and of what it multiplies that by, on a line, with their errors."""
        power = np.zeros(len(t), dtype=complex)
        power_error = np.zeros(len(t))
        inside = np.zeros(len(t), dtype=complex)
        inside_error = np.zeros(len(t))
        for loss, low, times in self.rare:
            (log_a, off_a, a), (log_b, off_b, b) = loss.band_line(low, c, t)
            phase = 8 * ROUND * np.abs(t) * loss.mean_size
            a_off = np.minimum((off_a + phase) / np.maximum(np.abs(a), 1e-300), 1e300)
            share = math.exp(log_b - log_a)
            with np.errstate(all="ignore"):
                u = share * b / a
                power += times * (log_a + np.log(a))
                inside += times * _log1p(u)
                u_off = share * (off_b + phase + np.abs(b) * a_off) / np.maximum(np.abs(a), 1e-300)
                inside_error += times * u_off / np.maximum(np.abs(1 + u), 1e-300)
            power_error += times * (a_off + off_a + ROUND * (abs(log_a) + 8))
        for other, times in self.rest:
            value, error = other.log_mgf(c, t)
            power += times * value
            power_error += times * (error + ROUND * np.abs(value))
        return power, power_error, inside, inside_error

    def _made(self, epsilon: float, log_delta: float) -> _Line | None:
        near = 0.5 * self.scale
        if self.chernoff.log_bound(epsilon) < log_delta - NEGLIGIBLE:
            return None
        if self.line is None or abs(epsilon - self.line.epsilon) > near:
            if abs(epsilon - self.refused) < 0.01 * near:
                return None
            try:
                self.line = _Line(self, epsilon, log_delta)
            except (Unsuitable, OverflowError):
                self.refused = epsilon
                return None
        return self.line

    def interval(self, epsilon: float, log_delta: float) -> tuple[float, float]:
        ceiling = math.exp(min(self.chernoff.log_bound(epsilon), 0.0))
        line = self._made(epsilon, log_delta)
        if line is None:
            return 0.0, ceiling
        low, high = line.interval(epsilon)
        return low, min(high, ceiling)

    def middle(self, epsilon: float, log_delta: float) -> tuple[float, float]:
        line = self._made(epsilon, log_delta)
        return line.middle(epsilon) if line is not None else (0.0, 0.0)


class _Line:
    """The nodes of one band along one vertical line."""

    def __init__(self, band: Band, epsilon: float, log_delta: float) -> None:
        self.epsilon = epsilon
        chernoff = band.chernoff
        want = log_delta - ACCURATE - 1
        bounds = chernoff.log_bounds - chernoff.c * epsilon
        index = int(np.argmin(bounds))
        self.c = c = float(chernoff.c[index])
        self.right = self.left = (math.nan, math.inf)
        period = math.inf
        for other, bound in zip(chernoff.c[index + 1 :], bounds[index + 1 :], strict=True):
            needed = (bound - want) / (other - c)
            if needed < period:
                period, self.right = needed, (float(other), float(bound + other * epsilon))
        to_left = -want / c
        for other, bound in zip(chernoff.c[:index], bounds[:index], strict=True):
            needed = (bound - want) / (c - other)
            if needed < to_left:
                to_left, self.left = needed, (float(other), float(bound + other * epsilon))
        self.period = max(period, to_left, 1e-9)
        if not math.isfinite(self.period):
            raise Unsuitable
        step = 2 * math.pi / self.period
        log_all = float(band.log_all[index])
        log_tail = band.log_tail(c)

        def enough(nodes: int) -> bool:
            t = nodes * step
            return log_tail(t) + log_all - c * epsilon - math.log(math.pi * t) <= want

        t = step * np.arange(nodes_needed(enough) + 1)
        self.z: ComplexArray = c + 1j * t
        self.log_kernel = np.log(self.z * (self.z + 1))
        self.weight = np.full(len(t), step / math.pi)
        self.weight[0] /= 2
        self.log_tail = log_tail(float(t[-1])) + log_all - math.log(math.pi * float(t[-1]))
        self._transform(band, t, log_all)

    def _transform(self, band: Band, t: Array, log_all: float) -> None:
        """F at the nodes as e^{log_f}, and a bound on what it is wrong by, as a multiple of e^{log_scale}."""
        power, power_error, inside, inside_error = band.exponents(self.c, t)
        with np.errstate(all="ignore"):
            grown = np.expm1(inside)
            self.f = np.exp(power - log_all) * grown
            size = np.abs(np.exp(power - log_all))
            wrong = size * (
                np.abs(np.exp(inside)) * np.expm1(np.minimum(inside_error, 1.0)) + 4 * ROUND * np.abs(grown)
            )
            wrong += np.abs(self.f) * np.expm1(np.minimum(power_error + ROUND * (8 + np.abs(power)), 1.0))
        # where all digits are lost, F lies anywhere below its size on the real axis
        lost = ~np.isfinite(self.f) | ~np.isfinite(wrong) | (power_error > 0.5) | (inside_error > 0.5)
        self.f = np.where(lost, 0.0, self.f)
        largest = float(np.abs(self.f[0]) + wrong[0])
        self.wrong = np.where(lost, largest, wrong)
        self.log_scale = log_all

    def interval(self, epsilon: float) -> tuple[float, float]:
        top = self.log_scale - self.c * epsilon
        if top > 600:
            return 0.0, 1.0
        kernel = self.weight * np.exp(-1j * self.z.imag * epsilon - self.log_kernel)
        terms = self.f * kernel
        size = np.abs(kernel)
        rounding = float(size @ self.wrong)
        rounding += float(np.abs(terms) @ (ROUND * (16 + len(terms) + 4 * np.abs(self.z) * (abs(epsilon) + 1))))
        total = float(terms.real.sum())
        scale = math.exp(top)
        tail = math.exp(min(self.log_tail - self.c * epsilon, 700.0))
        high = scale * (total + rounding) * (1 + 4 * ROUND) + tail
        low = scale * (total - rounding) * (1 - 4 * ROUND) - tail - self._alias(epsilon)
        return min(1.0, max(0.0, low)), min(1.0, max(high, low, 0.0))

    def _alias(self, epsilon: float) -> float:
        other, bound = self.right
        right = alias_series(bound - other * epsilon, (other - self.c) * self.period)
        left = alias_series(0.0, self.c * self.period)
        other, bound = self.left
        if math.isfinite(bound):
            left = min(left, alias_series(bound - other * epsilon, (self.c - other) * self.period))
        return right + left

    def middle(self, epsilon: float) -> tuple[float, float]:
        """δ(ε) of the band and its slope, without a bound."""
        terms = self.f * self.weight * np.exp(-1j * self.z.imag * epsilon - self.log_kernel)
        scale = math.exp(min(self.log_scale - self.c * epsilon, 600.0))
        return scale * float(terms.real.sum()), -scale * float((terms * self.z).real.sum())
