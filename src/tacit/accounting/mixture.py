"""What is the privacy loss of a mixture of shifted normals? Gaussian noise under every kind of sampling, and for
groups.

The moment E e^{zL} is an integral of an analytic function over the line, so the trapezoidal rule converges
geometrically with an error that is bounded here, for complex z too; see docs/explanation/certified-bounds.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from tacit.accounting.losses import (
    ROUND,
    Array,
    ComplexArray,
    GaussianLoss,
    Loss,
    log_of,
    log_sum,
    normal_cells,
    turned,
)
from tacit.accounting.special import log_ndtr, ndtr

#: Relative quadrature error asked of one log_mgf, as a negative exponent of e: 1e-22.
DIGITS = 50.0
#: A quadrature longer than this is refused.
MAX_POINTS = 60_000
#: One shorter than this is not worth a better bound on its error.
ENOUGH_POINTS = 3000
#: Cells in which that better bound is taken.
CELLS = 400
#: How softly a loss is cut at a level, in standard deviations of the noise times the largest shift.
SOFT = 0.06
_FRACTIONS = np.linspace(0.02, 0.98, 49)


class MixtureLoss(Loss):
    """Mixtures of shifted normals: Gaussian noise under Poisson sampling, fixed-size sampling and for groups.

    P = Σ a_j N(s_j, σ²) and Q = Σ b_j N(r_j, σ²) with non-negative shifts in P's mixture, or P the single N(0, σ²) and
    non-negative shifts in Q's; under replace-one the shifts of Q are the negatives of P's. Then the loss is monotone.
    """

    def __init__(
        self,
        sigma: float,
        p: dict[float, float],
        q: dict[float, float],
        *,
        cut: float = math.inf,
        soft: float = 1.0,
        stop: float = math.inf,
    ) -> None:
        """``cut`` and ``soft`` make a sub-law: an outcome x (in units of the noise) is kept with probability
        Φ((cut - x)/soft), an entire function, so that the quadrature stays geometric. Beyond ``stop``, where next to
        nothing is kept, none is."""
        self.sigma, self.cut, self.soft, self.stop = sigma, cut, soft, stop
        self._given = (p, q)
        # shifts and weights, in units of the noise
        self.p_shift, self.p_weight = _mixture(p, sigma)
        self.q_shift, self.q_weight = _mixture(q, sigma)
        self.span = max(np.abs(self.p_shift).max(), np.abs(self.q_shift).max())
        self.p_varies = bool(np.any(self.p_shift != 0))
        self.q_varies = bool(np.any(self.q_shift != 0))
        self.rising = self.p_varies
        self.symmetric = self.p_varies and self.q_varies
        # The loss is bounded above where P's far tail is also Q's.
        if not self.p_varies:
            self.supremum = -float(math.log(self.q_weight[self.q_shift == 0].sum() or 1e-320))
            if not np.any(self.q_shift == 0):
                self.supremum = math.inf

    def unsampled(self) -> Loss:
        # Sampling is post-processing of the unsampled pair: with probability 1 - q its outcome is replaced by one of Q.
        return GaussianLoss(
            float(self.p_shift.max() - self.q_shift.min()) if self.p_varies else float(self.q_shift.max())
        )

    def _quantile(self, mass: float) -> float:
        """An outcome beyond which P has about ``mass``."""
        low, high = -40.0, 40.0 + float(self.p_shift.max())
        for _ in range(60):
            middle = 0.5 * (low + high)
            if float(self.p_weight @ ndtr(self.p_shift - middle)) > mass:
                low = middle
            else:
                high = middle
        return high

    def _softness(self, cut: float) -> float:
        """How sharply to cut at an outcome: fast enough that e^{cL} does not grow back beyond it for the c
        one will use.
        """
        there, ahead = (float(np.subtract(*self.log_ratio(np.array([x])))[0]) for x in (cut, cut + 0.3))
        growth = 60 * max(ahead - there, 1e-12) / max(abs(there), 1e-12)
        return min(0.25, max(0.02, 0.3 / math.sqrt(2 * growth)))

    def without_tail(self, mass: float) -> tuple[Loss, float]:
        if not self.rising or mass <= 0:
            return self, 0.0
        at = self._quantile(mass)
        soft = self._softness(at)
        cut = at + 0.1 * soft
        left_out = float(self.p_weight @ ndtr((self.p_shift - cut) / math.hypot(1, soft))) * (1 + 1e-12)
        return MixtureLoss(self.sigma, *self._given, cut=cut, soft=soft), left_out

    # -- the integrand -------------------------------------------------------------------------------------------

    def log_ratio(self, x: Array) -> tuple[Array, Array]:
        """log dP/dN(0,1) and log dQ/dN(0,1) at x (in units of the noise)."""
        return _log_mixture(x, self.p_shift, self.p_weight), _log_mixture(x, self.q_shift, self.q_weight)

    def _range(self, c: float, digits: float) -> tuple[float, float]:
        """Where the integrand e^{-x²/2} p^{c+1} q^{-c} has all but e^{-digits} of its mass (relative to M(c) >= 1)."""
        ends = []
        for side in (1.0, -1.0):
            # p <= e^{top·y - ...} to the right of its largest shift and <= 1 to the left of 0; by the inequality of the
            # means q >= exp(mean shift·x - mean square/2), so 1/q grows at most with the mean shift.
            slope = const = 0.0
            top = max(0.0, float((side * self.p_shift).max()))
            slope += (c + 1) * top
            const -= (c + 1) * top * top / 2
            mean = float(self.q_weight @ self.q_shift)
            slope += max(0.0, -side * mean) * c
            const += c * float(self.q_weight @ self.q_shift**2) / 2
            if self.q_varies and -side * mean <= 0:
                # 1/q also stays below the inverse of the weight at shift 0
                zero = float(self.q_weight[self.q_shift == 0].sum())
                if zero > 0:
                    const = min(const, -(c + 1) * top * top / 2 - c * math.log(zero))
            need = digits + max(0.0, const + slope * slope / 2)
            ends.append(side * max(slope + math.sqrt(2 * need), top + 1.0))
        low, high = ends[1], ends[0]
        far = self.soft * math.sqrt(2 * digits + 20) + 2 * self.soft
        if math.isfinite(self.cut):
            # beyond the cut the loss rises at most with the largest shifts
            slope = (c + 1) * float(self.p_shift.max()) + c * float(-self.q_shift.min())
            high = min(high, self.cut + 2 * slope * self.soft**2 + far, self.stop)
        return low, max(high, min(low + 1.0, self.stop))

    def _weighed(self, x: Array) -> Array:
        """log of the normal density (without its constant) times the probability that x is kept."""
        value = -0.5 * x * x
        if math.isfinite(self.cut):
            value = value + log_ndtr((self.cut - x) / self.soft)
        return np.asarray(value)

    def _step(self, c: float, t: float, low: float, high: float) -> float:
        """Largest trapezoidal step whose relative error for M(c + is), |s| <= t, is below e^{-DIGITS}.

        The error is at most 2 N(a) / (e^{2πa/h} - 1), N(a) the integral of |f| along the line x ± ia, for any a in the
        strip without zeros (docs/explanation/certified-bounds.md). N(a) has a closed bound; where that is poor, it is
        bounded cell by cell.
        """
        limit = math.pi / self.span if self.span > 0 else 50.0
        a = np.minimum(limit, 20.0) * _FRACTIONS
        # |φ(x + ia)| = e^{a²/2} φ(x), and |Φ(y + ib)| <= e^{b²/2} Φ(y) for the cut
        bend = 0.5 if math.isinf(self.cut) else 0.5 + 0.5 / self.soft**2
        if math.isfinite(self.stop):
            a = a[bend * a * a <= self._at_stop(c) - DIGITS - 2]
            if len(a) == 0:
                raise OverflowError("the loss is cut too softly for this order")
        # closed bound: |p| and |q| within a factor cos of their values on the real line, their arguments within ±span·a
        extra = -c * np.log(np.cos(self.span * a / 2)) if self.q_varies else 0.0
        turns = (self.p_varies + self.q_varies) * self.span * t
        step = float(2 * math.pi / (bend * a + turns + (DIGITS + extra + math.log(4.0)) / a).min())
        if high - low <= ENOUGH_POINTS * step:
            return step
        # where the arguments of p and q together may turn by as many as these the bound is best, or at the widest strip
        heights = np.minimum(np.append(np.array([50.0, 200.0]) / max(turns, 1e-300), 20.0), a[-1])
        for height in np.unique(heights):
            excess = self._excess(c, t, float(height), DIGITS + turns * float(height)) + bend * float(height) ** 2
            step = max(step, 2 * math.pi * float(height) / (DIGITS + math.log(4.0) + max(excess, 0.0)))
        return step

    def _at_stop(self, c: float) -> float:
        """How small the integrand is where the sub-law stops, as a negative exponent of e."""
        x = np.array([self.stop])
        log_p, log_q = self.log_ratio(x)
        return -float((self._weighed(x) + (c + 1) * log_p - c * log_q)[0])

    def _grid(self, low: float, high: float, step: float) -> Array:
        """The nodes of the trapezoidal rule; where the sub-law stops, that point lies midway between two."""
        if math.isfinite(self.stop):
            low, high = low - self.stop - step / 2, min(high - self.stop, -step) - step / 2
        first, last = math.floor(low / step), math.ceil(high / step)
        if last - first > MAX_POINTS:
            raise OverflowError(f"the quadrature would need {last - first} points")
        x = np.arange(first, last + 1) * step
        if math.isinf(self.stop):
            return x
        x = x + (self.stop + step / 2)
        return np.asarray(x[x < self.stop])

    def _excess(self, c: float, t: float, height: float, digits: float) -> float:
        """An upper bound on log N(a)/M(c), but for the factors of the normal density and of the cut.

        On a cell the slope of the exponent S = -x²/2 + (c+1) log p - c log q is bounded, as the posterior means of the
        shifts rise with x; so S lies within its width times that of the mean of its ends. The arguments of p and q on
        the line are monotone in x, and |q| there is at least q times what the posterior weight of the shift 0 leaves.
        """
        x = np.linspace(*self._range(c, digits), CELLS + 1)
        left, right = slice(None, -1), slice(1, None)
        log_p, log_q = self.log_ratio(x)
        p_mean, q_mean = self._posterior(x, of_p=True), self._posterior(x, of_p=False)
        slope = np.maximum(
            np.abs((c + 1) * p_mean[right] - c * q_mean[left] - x[left]),
            np.abs((c + 1) * p_mean[left] - c * q_mean[right] - x[right]),
        )
        ends = -0.5 * x * x + (c + 1) * log_p - c * log_q
        middle, reach = 0.5 * (ends[left] + ends[right]), 0.5 * (x[1] - x[0]) * slope
        keep = log_ndtr((self.cut - x) / self.soft) if math.isfinite(self.cut) else np.zeros(len(x))
        turned = np.zeros(len(x) - 1)
        for shift, weight in ((self.p_shift, self.p_weight), (self.q_shift, self.q_weight)):
            argument = np.abs(_complex_log_mixture(x, height, shift, weight).imag)
            turned += t * np.maximum(argument[left], argument[right])
        narrowest = math.cos(self.span * height / 2) if self.q_varies else 1.0
        if self.q_varies:
            zero = float(self.q_weight[self.q_shift == 0].sum())
            elsewhere = 1 - zero * np.exp(-np.maximum(log_q[left], log_q[right]))
            turned -= c * np.log(np.maximum(narrowest, 1 - elsewhere * (1 - math.cos(self.span * height))))
        above = float(np.logaddexp.reduce(middle + reach + keep[left] + turned))
        below = float(np.logaddexp.reduce(middle - reach + keep[right]))
        # beyond the cells there is e^-digits of M(c), turned as far as can be; the last term is for rounding
        return float(np.logaddexp(above - below, -DIGITS - c * math.log(narrowest))) + 0.01

    def log_mgf(self, c: float, t: Array) -> tuple[ComplexArray, Array]:
        value = np.empty(len(t), dtype=complex)
        error = np.empty(len(t))
        # Larger t need a finer grid: work through the nodes in blocks, each with its own.
        order = np.argsort(np.abs(t), kind="stable")
        start = 0
        while start < len(t):
            reach = max(4.0 / self.span, 2 * abs(float(t[order[start]])))
            stop = start + int(np.searchsorted(np.abs(t[order[start:]]), reach, side="right"))
            stop = max(stop, start + 1)
            block = order[start:stop]
            value[block], error[block] = self._log_mgf_block(c, t[block])
            start = stop
        return value, error

    def _quadrature(self, c: float, t: float) -> tuple[float, float, Array, Array]:
        """The trapezoidal rule for M(c + is), |s| <= t: K(c), the error of a moment relative to M(c), losses,
        weights.
        """
        low, high = self._range(c, DIGITS)
        step = self._step(c, t, low, high)
        x = self._grid(low, high, step)
        log_p, log_q = self.log_ratio(x)
        exponent = self._weighed(x) + (c + 1) * log_p - c * log_q
        top, total, weights = log_sum(exponent)
        size = 0.5 * x * x + (c + 1) * np.abs(log_p) + c * np.abs(log_q) + abs(top)
        # log p moves by the mean shift, its slope, times what its exponents s·x - s²/2 move, which cancel where it is 0
        slopes = (c + 1) * np.abs(np.gradient(log_p, step)) + c * np.abs(np.gradient(log_q, step))
        size += slopes * (np.abs(x) + 0.5 * self.span)
        error = ROUND * (12 + math.log2(len(x)) + 6 * float(weights @ size)) + 4 * math.exp(-DIGITS)
        keep = weights > 1e-26 / len(x)
        k = total + math.log(step) - 0.5 * math.log(2 * math.pi)
        return k, error + 1e-26, (log_p - log_q)[keep], weights[keep]

    def tilted(self, c: float) -> tuple[float, float, float, float]:
        k, error, loss, weights = self._quadrature(c, 0.0)
        mean = float(weights @ loss)
        return k, error, mean, float(weights @ (loss - mean) ** 2)

    def _log_mgf_block(self, c: float, t: Array) -> tuple[ComplexArray, Array]:
        k, error, loss, weights = self._quadrature(c, float(np.abs(t).max(initial=0.0)))
        phase, summed = turned(t, loss, weights)
        off = error + summed + ROUND * 8 * np.abs(t) * float(weights @ np.abs(loss))
        logs, wrong = log_of(phase, off)
        return k + logs, wrong

    # -- bands of the loss, for tacit.accounting.levels ------------------------------------------------------------

    def loss_at(self, x: float) -> float:
        """The loss of one outcome."""
        log_p, log_q = self.log_ratio(np.array([x]))
        return float(log_p[0] - log_q[0])

    def outcomes(self, losses: Array) -> Array:
        """The outcomes at which a rising loss takes the values ``losses``, ascending."""
        return self._inverse(losses)

    def cut_at(self, cut: float, c: float) -> MixtureLoss:
        """The sub-law that keeps an outcome x with probability Φ((cut - x)/soft), for orders up to ``c``.

        It stops where the integrand has fallen so far that what is left does not matter, before e^{cL} grows back.
        """
        soft = SOFT / self.span
        x = cut + soft * np.linspace(12.0, 40.0, 57)
        log_p, log_q = self.log_ratio(x)
        fallen = -0.5 * x * x + log_ndtr((cut - x) / soft) + (c + 1) * log_p - c * log_q < -2.2 * DIGITS
        if not fallen.any():
            raise OverflowError("the loss grows too fast to be cut here")
        return MixtureLoss(self.sigma, *self._given, cut=cut, soft=soft, stop=float(x[int(np.argmax(fallen))]))

    def _log_band(self, x: Array, low: float) -> Array:
        """log of Φ((cut - x)/soft) - Φ((low - x)/soft): what this sub-law keeps and the one cut at ``low`` does not."""
        above, below = (self.cut - x) / self.soft, (low - x) / self.soft
        # from the smaller tails
        flip = below > 0
        large, small = np.where(flip, -below, above), np.where(flip, -above, below)
        with np.errstate(divide="ignore"):
            one, two = log_ndtr(large), log_ndtr(small)
            return np.asarray(one + np.log(-np.expm1(np.minimum(two - one, 0.0))))

    def _band_terms(self, low: float, c: Array, t: float) -> tuple[Array, Array, Array, float]:
        """Losses, exponents of both sub-laws' terms at each c, and the log of the quadrature's weight."""
        ends = np.array([self._range(float(one), DIGITS) for one in (c.min(), c.max())])
        first, last = float(ends[:, 0].min()), float(ends[:, 1].max())
        step = min(self._step(float(one), t, first, last) for one in {c.min(), c.max()})
        x = self._grid(first, last, step)
        log_p, log_q = self.log_ratio(x)
        base = -0.5 * x * x + np.multiply.outer(c + 1, log_p) - np.multiply.outer(c, log_q)
        below, inside = base + log_ndtr((low - x) / self.soft), base + self._log_band(x, low)
        return log_p - log_q, below, inside, math.log(step) - 0.5 * math.log(2 * math.pi)

    def band(self, low: float, c: Array) -> tuple[Array, Array, Array, Array]:
        """log moments at each c, of the sub-law cut at ``low`` and of what lies between the cuts, and their errors."""
        _, below, inside, weight = self._band_terms(low, c, 0.0)
        sums = []
        for terms in (below, inside):
            top = terms.max(axis=1)
            sums.append(top + np.log(np.exp(terms - top[:, None]).sum(axis=1)) + weight)
        return sums[0], sums[1], *self._band_errors((below, inside), (sums[0], sums[1]))

    def _band_errors(self, terms: tuple[Array, Array], logs: tuple[Array, Array]) -> list[Array]:
        """Bounds on the relative errors of both moments: quadrature, which is small next to their sum, and rounding of
        exponents that weigh at all."""
        near = np.max(
            [np.abs(np.where(one > one.max(axis=1)[:, None] - 45, one, 0.0)).max(axis=1) for one in terms], axis=0
        )
        both = np.logaddexp(*logs)
        return [ROUND * (40 + 20 * near) + 4 * np.exp(np.minimum(both - log - DIGITS, 0.0)) for log in logs]

    def band_line(self, low: float, c: float, t: Array) -> list[tuple[float, float, ComplexArray]]:
        """Both moments along a line: the log of each at c, its error relative to that, and its ratios to it."""
        losses, below, inside, weight = self._band_terms(low, np.array([c]), float(t[-1]))
        log_a, log_b = (
            float(top + np.log(np.exp(terms - top).sum()) + weight)
            for terms, top in ((below[0], below.max()), (inside[0], inside.max()))
        )
        errors = self._band_errors((below, inside), (np.array([log_a]), np.array([log_b])))
        weights = np.exp(np.stack([below[0] - log_a, inside[0] - log_b]) + weight)
        keep = weights.max(axis=0) > 1e-26 / len(losses)
        ratios, summed = turned(t, losses[keep], weights[:, keep])
        self.mean_size = float((weights[:, keep] @ np.abs(losses[keep])).max())
        return [
            (log, float(error[0]) + summed + 1e-26, ratio)
            for log, error, ratio in zip((log_a, log_b), errors, ratios, strict=True)
        ]

    def band_decay(self, low: float, c: float, cells: int = 400) -> Callable[[float], float]:
        """A falling function that bounds log |B(c + is)| for every s >= t, B the moment between ``low`` and the cut.

        The path of integration is moved to x + ia, where |p^{is} q^{-is}| <= e^{-s arg p}: docs/explanation/
        rare-participation.md.
        """
        first, last = self._range(c, DIGITS + 10)
        first = max(first, low - 40 * self.soft)
        x = np.linspace(first, last, cells + 1)
        left, right = slice(None, -1), slice(1, None)
        log_p, log_q = self.log_ratio(x)
        nearest = np.where(x[left] * x[right] < 0, 0.0, np.minimum(np.abs(x[left]), np.abs(x[right])))
        kept = np.minimum(log_ndtr((self.cut - x[left]) / self.soft), log_ndtr((x[right] - low) / self.soft))
        base = -0.5 * nearest**2 + kept + (c + 1) * log_p[right] - c * np.minimum(log_q[left], log_q[right])
        base += math.log((x[1] - x[0]) / math.sqrt(2 * math.pi))
        heights = min(math.pi / self.span, 20.0) * np.array([0.06, 0.12, 0.2, 0.3, 0.42, 0.55, 0.7])
        heights = np.append(heights, self.soft * np.array([1.0, 2.0, 3.0, 5.0, 7.0]))
        bend = 0.5 + 0.5 / self.soft**2
        heights = heights[bend * heights**2 <= self._at_stop(c) - DIGITS]
        narrow = np.cos(self.span * heights / 2) if self.q_varies else np.ones(len(heights))
        start = bend * heights**2 - c * np.log(narrow)
        turn = np.array([_complex_log_mixture(x[left], float(a), self.p_shift, self.p_weight).imag for a in heights])
        # beyond the cells: e^-digits of M(c), also on the way up where it stops, and below them the tail of the cut
        outside = np.logaddexp(
            -DIGITS - 10 + self.log_ceiling(c),
            float(log_ndtr((first - low) / self.soft)) + (c + 1) * float(log_p[0]) - c * float(log_q[0]),
        )

        def bound(t: float) -> float:
            exponent = base - t * turn
            top = exponent.max(axis=1)
            logs = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1))
            return float((np.logaddexp(logs, outside) + start).min()) + 0.01

        return bound

    def log_ceiling(self, c: float) -> float:
        """log M(c), or 0 where that is negative."""
        return max(0.0, self.tilted(c)[0])

    # -- how fast the characteristic function falls ---------------------------------------------------------------

    def decay(self, c: float) -> Callable[[float], float]:
        """From uniform laws stacked below the tilted density: masses m_i on intervals of length w_i give
        |φ(t)| <= 1 - Σ m_i (1 - sup |sinc|) beyond t w_i / 2 (docs/explanation/certified-bounds.md)."""
        mass, width = self._layers(c)

        def bound(t: float) -> float:
            return math.log1p(-float(mass @ (1 - _sinc_ceiling(0.5 * t * width))))

        return bound

    def _layers(self, c: float) -> tuple[Array, Array]:
        """Masses and lengths of uniform laws, on nested intervals, whose sum lies below the tilted density of
        the loss.
        """
        low, high = self._range(c, 30.0)
        coarse = np.linspace(low, high, 385)
        log_p, log_q = self.log_ratio(coarse)
        _, _, weights = log_sum(self._weighed(coarse) + (c + 1) * log_p - c * log_q)
        cumulative = np.cumsum(weights)
        inner = np.interp(np.linspace(0.0002, 0.9998, 160), cumulative, coarse)
        x = np.unique(np.concatenate([inner, np.linspace(inner[0] - 0.1, inner[-1] + 0.1, 120)]))
        log_p, log_q = self.log_ratio(x)
        base = float(self.log_mgf(c, np.zeros(1))[0][0].real) + 0.5 * math.log(2 * math.pi)
        left, right = slice(None, -1), slice(1, None)
        # Below the density on each cell: every factor is monotone there, so its ends bound it.
        gauss = -0.5 * np.maximum(x[left] ** 2, x[right] ** 2)
        if math.isfinite(self.cut):
            gauss = gauss + log_ndtr((self.cut - x[right]) / self.soft)
        tilt = (c + 1) * np.minimum(log_p[left], log_p[right]) - c * np.maximum(log_q[left], log_q[right])
        # |dL/dx| = |E[shift | x, P] - E[shift | x, Q]|; each posterior mean rises with x
        p_mean, q_mean = self._posterior(x, of_p=True), self._posterior(x, of_p=False)
        slope = np.maximum(np.abs(p_mean[right] - q_mean[left]), np.abs(p_mean[left] - q_mean[right]))
        density = np.exp(gauss + tilt - base - 1e-9) / np.maximum(slope, 1e-300)
        length = np.abs(np.diff(log_p - log_q))
        density = np.where(length > 0, density, 0.0)
        masses, widths = [], []
        for _ in range(5):
            mass, width, density = _peel(density, length)
            masses.append(mass)
            widths.append(width)
        mass = np.concatenate(masses)
        total = float(mass.sum())
        return mass * (min(1.0, 0.999999 / total) if total > 0 else 0.0), np.concatenate(widths)

    def _posterior(self, x: Array, *, of_p: bool) -> Array:
        shift, weight = (self.p_shift, self.p_weight) if of_p else (self.q_shift, self.q_weight)
        exponent = np.log(weight) + np.multiply.outer(x, shift) - 0.5 * shift**2
        exponent -= exponent.max(axis=1, keepdims=True)
        posterior = np.exp(exponent)
        return np.asarray(posterior @ shift / posterior.sum(axis=1))

    # -- cells ---------------------------------------------------------------------------------------------------

    def cells(self, edges: Array) -> tuple[Array, Array]:
        x = self._inverse(edges)
        p = sum(w * normal_cells(x - s) for s, w in zip(self.p_shift, self.p_weight, strict=True))
        q = sum(w * normal_cells(x - s) for s, w in zip(self.q_shift, self.q_weight, strict=True))
        if not self.rising:
            p, q = p[::-1], q[::-1]
        return np.asarray(p), np.asarray(q)

    def beyond(self, x: float) -> tuple[float, float]:
        at = float(self._inverse(np.array([x]))[0])
        sign = 1.0 if self.rising else -1.0
        with np.errstate(divide="ignore"):
            p = np.log(self.p_weight) + log_ndtr(sign * (self.p_shift - at))
            q = np.log(self.q_weight) + log_ndtr(sign * (self.q_shift - at))
        return float(np.logaddexp.reduce(p)), float(np.logaddexp.reduce(q))

    def _inverse(self, edges: Array) -> Array:
        """Positions x, ascending, at which the loss takes the values ``edges`` (read backwards where it falls)."""
        wanted = edges if self.rising else edges[::-1]
        simple = self._simple_inverse(wanted)
        if simple is not None:
            return simple
        x, losses = self._table
        sign = 1.0 if self.rising else -1.0
        place = np.clip(np.searchsorted(losses, sign * wanted), 1, len(x) - 1)
        low, high = x[place - 1], x[place]
        above, below = sign * wanted >= losses[-1], sign * wanted <= losses[0]
        at = np.where(above, x[-1], np.where(below, x[0], 0.5 * (low + high)))
        ask = np.flatnonzero(~(above | below))
        for _ in range(60):
            here = at[ask]
            log_p, log_q = self.log_ratio(here)
            off = sign * (log_p - log_q - wanted[ask])
            low[ask], high[ask] = np.where(off < 0, here, low[ask]), np.where(off < 0, high[ask], here)
            slope = np.abs(self._posterior(here, of_p=True) - self._posterior(here, of_p=False))
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = here - off / slope
            # Newton's step where it stays inside what is known; nothing where the loss is met to its last digits
            inside = (step > low[ask]) & (step < high[ask])
            step = np.where(inside, step, 0.5 * (low[ask] + high[ask]))
            going = np.abs(off) > 4 * ROUND * (1 + np.abs(wanted[ask]))
            at[ask] = np.where(going, step, here)
            ask = ask[going & (np.abs(step - here) > 4e-16 * (1 + np.abs(here)))]
            if len(ask) == 0:
                break
        return np.maximum.accumulate(at)

    @functools.cached_property
    def _table(self) -> tuple[Array, Array]:
        """Outcomes and their losses, ascending: where to look for an outcome of a given loss."""
        x = np.linspace(-60.0 - 2 * self.span, 60.0 + 2 * self.span, 4096)
        log_p, log_q = self.log_ratio(x)
        return x, np.maximum.accumulate((log_p - log_q) * (1.0 if self.rising else -1.0))

    def _simple_inverse(self, wanted: Array) -> Array | None:
        """In closed form where a mixture has the weights 1-q at 0 and q at one shift, and the other is N(0)
        or its mirror.
        """
        if self.p_varies and self.q_varies:
            if len(self.p_shift) != 2 or self.p_shift[0] != 0:
                return None
            s, rate = float(self.p_shift[1]), float(self.p_weight[1])
            # (1-q + ty) / (1-q + t/y) = e^l with t = q e^{-s²/2} and y = e^{sx} has the solution
            # log y = l/2 + asinh((1-q) sinh(l/2) / t): the argument as a logarithm, so that no loss is too large for it
            half = np.abs(wanted) / 2
            with np.errstate(divide="ignore"):
                log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
            u = math.log1p(-rate) + log_sinh - math.log(rate) + s * s / 2
            # asinh(e^u) is u + log 2 to all digits long before e^u has no number
            log_y = half + np.arcsinh(np.exp(np.minimum(u, 300.0))) + np.maximum(u - 300.0, 0.0)
            return np.asarray(np.sign(wanted) * log_y / s)
        shift, weight = (self.p_shift, self.p_weight) if self.p_varies else (self.q_shift, self.q_weight)
        if len(shift) > 2 or (len(shift) == 2 and shift[0] != 0):
            return None
        s, rate = float(shift[-1]), float(weight[-1])
        target = wanted if self.p_varies else -wanted
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # log((e^l - (1-q)) / q), written so that it keeps its digits near l = log(1-q) and for large l
            tail = np.where(
                target > 0,
                target + np.log1p(-(1 - rate) * np.exp(-np.maximum(target, 0))),
                np.log(np.expm1(np.minimum(target, 0)) + rate),
            )
            v = tail - math.log(rate)
        v = np.where(np.isnan(v), -np.inf, v)
        return (v + s * s / 2) / s


class SymmetrisedLoss(Loss):
    """The pair whose privacy profile is, at every ε, the larger of a pair's and of its reverse.

    For ``loss`` with L > 0 the law is that of ``loss``; the other half is its mirror image, and what is left sits at 0.
    """

    analytic = False
    symmetric = True

    def __init__(self, loss: MixtureLoss) -> None:
        self.loss = loss
        p, q = loss.cells(np.zeros(1))
        self.positive = float(p[1]), float(q[1])

    def cells(self, edges: Array) -> tuple[Array, Array]:
        p, q = self._positive(np.maximum(edges, 0.0))
        mirrored_q, mirrored_p = self._positive(np.maximum(-edges[::-1], 0.0))
        return p + mirrored_p[::-1], q + mirrored_q[::-1]

    def _positive(self, edges: Array) -> tuple[Array, Array]:
        """Masses of the positive half: on (0, edges[0]], between edges, and above."""
        p, q = self.loss.cells(np.concatenate([[0.0], edges]))
        return p[1:], q[1:]

    def atoms(self) -> tuple[Array, Array]:
        return np.zeros(1), np.array([max(0.0, 1 - self.positive[0] - self.positive[1])])


# -- helpers ----


def _mixture(shifts: dict[float, float], sigma: float) -> tuple[Array, Array]:
    items = sorted((s / sigma, w) for s, w in shifts.items() if w > 0)
    return np.array([s for s, _ in items]), np.array([w for _, w in items])


def _log_mixture(x: Array, shift: Array, weight: Array) -> Array:
    """log Σ w_j e^{s_j x - s_j²/2}, with few units in the last place of error also where it is close to 0.

    There it is log(1 + Σ w_j (e^{v_j} - 1)), to which the weight at shift 0, of all the largest, contributes nothing.
    """
    if len(shift) == 1:
        return np.asarray(shift[0] * x - 0.5 * shift[0] ** 2 + math.log(weight[0]))
    moved = shift != 0
    v = np.multiply.outer(x, shift[moved]) - 0.5 * shift[moved] ** 2
    excess = np.expm1(np.minimum(v, 700.0)) @ weight[moved]
    value = np.log1p(np.maximum(excess, -0.5))
    far = (excess < -0.4) | (v.max(axis=-1) > 700)
    if far.any():
        exponent = np.log(weight) + np.multiply.outer(x[far], shift) - 0.5 * shift**2
        top = exponent.max(axis=-1)
        value[far] = top + np.log(np.exp(exponent - top[..., None]).sum(axis=-1))
    return np.asarray(value)


def _complex_log_mixture(x: Array, height: float, shift: Array, weight: Array) -> ComplexArray:
    """log Σ w_j e^{s_j z - s_j²/2} at z = x + i·height, in the strip where its argument stays within ±π."""
    if len(shift) == 1 and shift[0] == 0:
        return np.zeros(len(x), dtype=complex)
    exponent = np.log(weight) + np.multiply.outer(x + 1j * height, shift) - 0.5 * shift**2
    top = exponent.real.max(axis=1)
    return np.asarray(top + np.log(np.exp(exponent - top[:, None]).sum(axis=1)))


def _sinc_ceiling(y: Array) -> Array:
    """sup of |sin(v)/v| over v >= y, for each y >= 0."""
    second = 0.21723363  # the height of the second hump, rounded up
    first = np.maximum(np.sinc(np.minimum(y, math.pi) / math.pi), second)
    return np.asarray(np.where(y < math.pi, first, np.minimum(second, 1 / np.maximum(y, 1.0))))


def _peel(density: Array, length: Array) -> tuple[Array, Array, Array]:
    """Uniform laws on nested intervals around the fullest cell that together lie below ``density``, and what is left.

    The cells are added in the order of the lowest density on the way to them, so that each level is one interval.
    """
    peak = int(np.argmax(density * length))
    floor = np.concatenate(
        [np.minimum.accumulate(density[: peak + 1][::-1])[::-1], np.minimum.accumulate(density[peak:])[1:]]
    )
    order = np.argsort(-floor, kind="stable")
    height, width = floor[order], np.cumsum(length[order])
    steps = height - np.append(height[1:], 0.0)
    use = steps > 0
    return steps[use] * width[use], width[use], np.maximum(density - floor, 0.0)
