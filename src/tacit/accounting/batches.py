"""What is the privacy loss of one record that is blanked, where batches have a fixed or a largest size?

A drawn record displaces another there. Given who else was drawn, the sum is that of B - 1 others and the record (or its
blank), or of the same others and one more. So the pair is (1-q)N(a) + qN(g) against (1-q)N(a) + qN(0), with |g| and |a|
at most 1 and |g - a| at most the distance of two records. For every ε >= 0 one choice of a and g is the worst of all in
any number of dimensions, another for each order of the pair. The two profiles are those of

    A = ((1-q)N(0) + qN(ρ), (1-q)N(0) + qN(ρ-1)),  ρ the distance, and
    B = ((1-q)N(0) + qN(1), N(0)).

Proof: docs/explanation/batches.md.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.accounting.losses import Array, Loss, normal_cells
from tacit.accounting.mixture import MixtureLoss


class BlankedLoss(Loss):
    """The dominating pair of a blank in a batch of fixed size: where the loss is positive that of A, where it is
    negative that of B seen from the other side, and the rest at 0. ``removing``: P has the record."""

    analytic = False

    def __init__(self, sigma: float, rate: float, far: float, *, removing: bool) -> None:
        self.displaced = DisplacedLoss(sigma, rate, far)
        self.plain = MixtureLoss(sigma, {0.0: 1 - rate, 1.0: rate}, {0.0: 1.0})
        self.removing = removing
        (a_p, a_q), (b_p, b_q) = self.displaced.positive(np.zeros(0)), self._plain(np.zeros(0))
        self.zero = max(0.0, 1 - float(a_p[0]) - float(b_q[0]), 1 - float(a_q[0]) - float(b_p[0]))

    def _plain(self, edges: Array) -> tuple[Array, Array]:
        p, q = self.plain.cells(np.concatenate([[0.0], edges]))
        return p[1:], q[1:]

    def cells(self, edges: Array) -> tuple[Array, Array]:
        first, second = self.displaced.positive, self._plain
        if not self.removing:
            first, second = second, first
        p, q = first(np.maximum(edges, 0.0))
        mirrored_q, mirrored_p = second(np.maximum(-edges[::-1], 0.0))
        return p + mirrored_p[::-1], q + mirrored_q[::-1]

    def atoms(self) -> tuple[Array, Array]:
        return np.zeros(1), np.array([self.zero])


class DisplacedLoss(Loss):
    """A = (1-q)N(0) + qN(ρ) against (1-q)N(0) + qN(ρ-1), both with noise σ: what others pull one way and the record the
    other shows. Attained, and not monotone: for ρ = 2 the loss falls from 0 and then rises."""

    analytic = False

    def __init__(self, sigma: float, rate: float, far: float) -> None:
        self.rate, self.far = rate, far
        self.high, self.low = far / sigma, (far - 1) / sigma
        self.middle = 0.5 * (self.high + self.low)  # where the loss is 0, and rises from there on

    def _masses(self, x: Array) -> tuple[Array, Array]:
        """Masses of P and Q left of, between and right of outcomes in units of the noise."""
        rest = (1 - self.rate) * normal_cells(x)
        return rest + self.rate * normal_cells(x - self.high), rest + self.rate * normal_cells(x - self.low)

    def positive(self, edges: Array) -> tuple[Array, Array]:
        """Masses where the loss lies in (0, edges[0]], between edges, and above; all edges are 0 or more."""
        p, q = self._masses(np.maximum(np.concatenate([[self.middle], self._right(edges)]), self.middle))
        return p[1:], q[1:]

    def _right(self, edges: Array) -> Array:
        """The larger of the outcomes with these losses, above the one at which the loss is least."""
        if self.far == 2:
            return self._solve(edges)[1]
        low, high = np.full(len(edges), self.middle), np.full(len(edges), self.middle + 80.0 + 8 * self.high)
        for _ in range(80):
            x = 0.5 * (low + high)
            below = self.loss(x) < edges
            low, high = np.where(below, x, low), np.where(below, high, x)
        return np.asarray(low)

    def loss(self, x: Array) -> Array:
        """The loss of an outcome in units of the noise."""

        def log_density(shift: float) -> Array:
            v = shift * x - 0.5 * shift * shift
            small = np.log1p(self.rate * np.expm1(np.minimum(v, 30.0)))
            large = v + math.log(self.rate) + np.log1p((1 / self.rate - 1) * np.exp(-np.maximum(v, 30.0)))
            return np.asarray(np.where(v > 30, large, small))

        return np.asarray(log_density(self.high) - log_density(self.low))

    def _solve(self, edges: Array) -> tuple[Array, Array]:
        """Both outcomes with these losses, for ρ = 2: with y = e^{x/σ} the ratio is (a + by²)/(a + cy).

        Everything is divided by c²/b, so that the equation is u² - e^l u = d(e^l - 1), y = u c/b, d = ab/c².
        """
        s = self.low  # 1/σ
        log_d = math.log1p(-self.rate) - math.log(self.rate) - s * s
        log_scale = 1.5 * s * s
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            half = 0.5 * edges
            # e^{2l}/4 + d(e^l - 1), all over e^{2l}/4: 1 + 8d e^{-3l/2} sinh(l/2)
            ratio = 1 + 8 * np.sign(edges) * np.exp(
                log_d - 1.5 * edges + np.abs(half) + np.log(-np.expm1(-2 * np.abs(half))) - math.log(2)
            )
            root = np.sqrt(np.maximum(ratio, 0.0))
            above = edges - math.log(2) + np.log1p(root)
            # the smaller one: the product of both is d(1 - e^l)
            below = np.where(edges < 0, log_d + np.log(-np.expm1(edges)) - above, -np.inf)
        above = np.where(np.isinf(ratio), 0.5 * (log_d + edges), above)
        return (below + log_scale) / s, (above + log_scale) / s

    def cells(self, edges: Array) -> tuple[Array, Array]:
        if self.far != 2:
            raise NotImplementedError("only where two records may pull opposite ways")
        left, right = self._solve(edges)
        # the least loss: 2by(a + cy) = c(a + by²), u² + 2du - d = 0
        s = self.low
        d = math.exp(min(math.log1p(-self.rate) - math.log(self.rate) - s * s, 600.0))
        least = (math.log(d / (d + math.sqrt(d * d + d))) + 1.5 * s * s) / s
        bottom = float(self.loss(np.array([least]))[0])
        left = np.where(edges <= bottom, least, np.minimum(left, least))
        right = np.where(edges <= bottom, least, np.maximum(right, least))
        p, q = self._masses(np.concatenate([[least], np.maximum.accumulate(right)]))
        fall_p, fall_q = self._masses(np.concatenate([np.maximum.accumulate(left[::-1]), [least]]))
        return p[1:] + fall_p[:-1][::-1], q[1:] + fall_q[:-1][::-1]
