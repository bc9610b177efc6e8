"""What does objective perturbation cost, and how is its minimiser released? Gaussian and pure ε, binary and
multinomial.

The released θ minimises Σℓ(θ; row) + (λ/2)|θ|² + bᵀθ for a random b. With the exact minimiser the privacy loss is at
most a + (loss of the noise), where a bounds the change of the Jacobian. A solver stops early and b has finitely many
bits; both leave a gradient of length at most τ, so the point found is within τ/λ of the exact one. That difference is a
function of the data and the exact minimiser, of sensitivity 2τ/λ. Output noise hides it, and is charged.
docs/explanation/objective-perturbation.md has the proof.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import expit, log_ndtr, logsumexp

from tacit import accounting as acc
from tacit.linear_model.descent import RowSource
from tacit.linear_model.moments import Moments, dense, to_grid
from tacit.linear_model.rows import Rows
from tacit.noise import add_gaussian, add_laplace

Floats = npt.NDArray[np.float64]

#: The gradient that may be left, in units of a row's length: half for the solver and half for rounding.
TOLERANCE = 1e-6
#: The part of ε that pays for the Jacobian, fixed in advance, and the most that does; it decides λ. A smaller λ would
#: leave large coefficients, made of noise alone, to what no row tells about.
JACOBIAN_SHARE, JACOBIAN_MOST = 0.25, 0.5
#: λ is at least this many times R², so that the minimiser exists within reach of the solver at any ε.
LEAST_RIDGE = 1e-3
#: The part that pays for the output noise: of ε where the guarantee is pure, else of μ².
OUTPUT_SHARE = 0.01
#: More ε than this is not spent: the noise is negligible by then.
MOST_EPSILON = 200.0
#: Points of the privacy profile that is composed with what else a fit releases.
POINTS = 300
#: Noise is drawn to this many bits below its scale, so that its rounding is part of τ.
FINE = 2.0**-64


@dataclasses.dataclass(frozen=True)
class Slope:
    """What one row can do to the loss's gradient: its length ``lipschitz``, the log-determinant it adds at a ridge λ,
    and how many linear functions of the noise bound the gradient's direction.
    """

    norm_squared: float
    classes: int = 2
    slots: int = 1
    rows: int = 1

    @property
    def lipschitz(self) -> float:
        """Longest gradient of one row: R for two classes, √2·R for a softmax."""
        return math.sqrt(self.norm_squared * (1 if self.classes == 2 else 2))

    def jacobian(self, ridge: float) -> float:
        """a: the most that the rows of one person change the log-determinant of the Hessian.

        Two classes: rows·ln(1 + R²/(4λ)). K classes: rows·(K-1)·ln(1 + R²/(Kλ)).
        """
        if self.classes == 2:
            return self.rows * math.log1p(self.norm_squared / 4 / ridge)
        return self.rows * (self.classes - 1) * math.log1p(self.norm_squared / self.classes / ridge)

    def ridge(self, jacobian: float) -> float:
        """The λ at which a is ``jacobian``; a larger one, and so a smaller a, where e^a has no number."""
        if self.classes == 2:
            return self.norm_squared / 4 / math.expm1(min(jacobian / self.rows, 700.0))
        part = min(jacobian / self.rows / (self.classes - 1), 700.0)
        return self.norm_squared / self.classes / math.expm1(part)

    @property
    def reach(self) -> float:
        """Longest change of the gradient by one person: ``slots`` rows leave or come."""
        return self.slots * self.lipschitz

    @property
    def log_functions(self) -> float:
        """Log of the number of linear functions of b over which the change of bᵀ(gradient) is a maximum."""
        return self.slots * math.log(2 * (self.classes - 1))


def gaussian_delta(epsilon: float, sigma: float, ridge: float, slope: Slope) -> float:
    """δ(ε) of the exact minimiser with b ~ N(0, σ²I): Redberg et al. (2023) with the Jacobian's exact bound.

    >>> slope = Slope(norm_squared=1.0)
    >>> 0 < gaussian_delta(1.0, 5.0, 10.0, slope) < gaussian_delta(1.0, 4.0, 10.0, slope)
    True
    """
    mu = slope.reach / sigma
    rest = epsilon - slope.jacobian(ridge)
    if rest >= mu * mu / 2:
        half = _gaussian(rest, mu)
    else:
        hat = rest - mu * mu / 2
        half = 0.5 * -math.expm1(hat) + math.exp(hat) * _gaussian(mu * mu / 2, mu)
    if half <= 0:
        return 0.0
    return min(1.0, math.exp(min(slope.log_functions + math.log(half), 0.0)) * (1 + 1e-9))


def _gaussian(epsilon: float, mu: float) -> float:
    """δ of the Gaussian mechanism: Φ(-ε/μ + μ/2) - e^ε Φ(-ε/μ - μ/2), without cancellation of its logarithms."""
    one, two = float(log_ndtr(-epsilon / mu + mu / 2)), epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    return math.exp(one) * -math.expm1(min(two - one, 0.0))


def profile(sigma: float, ridge: float, slope: Slope, adjacency: str, unit: str) -> acc.Mechanism:
    """The exact minimiser as a mechanism: δ(ε) at many ε, as it composes with further releases.

    Guarantee: :func:`gaussian_delta` holds at each ε, so all of them hold at once.
    """
    mu = slope.reach / sigma
    epsilons = np.linspace(0.0, slope.jacobian(ridge) + mu * mu / 2 + 12 * mu, POINTS)
    deltas = [gaussian_delta(float(epsilon), sigma, ridge, slope) for epsilon in epsilons]
    return _stated(epsilons, np.array(deltas), adjacency, unit)


def _stated(epsilons: Floats, deltas: Floats, adjacency: str, unit: str) -> acc.Mechanism:
    """A mechanism with these guarantees: one of bounded loss, and a failure of the probability that is left at the end.

    Guarantee: with d the last δ, bounded guarantees (δ - d)/(1 - d) and a failure of probability d have δ together. A
    ledger that adds up Rényi divergences counts failures by themselves, and can grant both.
    """
    last = float(deltas[-1])
    bounded = np.clip((deltas - last) / (1 - last) * (1 + 1e-12), 0.0, 1.0)
    bounded[-1] = 0.0
    whole = acc.ProfileDP(tuple(epsilons.tolist()), tuple(bounded.tolist()), adjacency=adjacency, unit=unit)
    return whole + acc.ApproxDP(0.0, last, adjacency=adjacency, unit=unit) if last > 0 else whole


@dataclasses.dataclass(frozen=True)
class Perturbation:
    """A priced objective perturbation: the ridge λ, the noise on the objective and on the output.

    ``sigma`` is the Gaussian's (δ > 0), or ``rate`` the η of the density exp(-η|b|) (pure ε). ``further`` are the noise
    multipliers of the releases that follow.
    """

    ridge: float
    slope: Slope
    sigma: float
    rate: float
    output: float
    mechanism: acc.Mechanism
    further: tuple[float, ...] = ()

    @property
    def pure(self) -> bool:
        """Whether δ = 0."""
        return self.sigma == 0

    @property
    def tolerance(self) -> float:
        """τ, the gradient that may be left."""
        return TOLERANCE * math.sqrt(self.slope.norm_squared)

    def noise(self, size: int) -> Floats:
        """b, to far more bits than τ asks for."""
        if self.sigma:
            return np.asarray(add_gaussian(np.zeros(size), self.sigma, granularity=_power(self.sigma * FINE)))
        direction = np.asarray(add_gaussian(np.zeros(size), 1.0, granularity=FINE))
        length = float(np.abs(add_laplace(np.zeros(size), 1.0, granularity=FINE)).sum()) / self.rate
        return np.asarray(direction * (length / np.linalg.norm(direction)))

    def hide(self, theta: Floats) -> Floats:
        """The released coefficients: output noise for the difference to the exact minimiser, at most τ/λ."""
        moved = 2 * self.tolerance / self.ridge
        if self.sigma:
            return np.asarray(add_gaussian(theta, self.output * moved))
        return np.asarray(add_laplace(theta, self.output * moved * math.sqrt(theta.size)))


@dataclasses.dataclass(frozen=True)
class Further:
    """A Gaussian release of the same fit: its part of μ², and how far replacing a row moves it against adding one."""

    share: float
    replace: float


@functools.lru_cache(maxsize=64)
def perturb(
    slope: Slope,
    epsilon: float,
    delta: float,
    adjacency: str,
    unit: str,
    least_ridge: float = 0.0,
    further: tuple[Further, ...] = (),
) -> Perturbation:
    """Price an objective perturbation for (ε, δ); δ = 0 gives pure ε.

    A quarter of ε, ½ at most, pays for the Jacobian, which decides λ (at least ``least_ridge``); the rest, for the
    noise of the objective, of the output and of what is released ``further``, in parts of μ².

    >>> made = perturb(Slope(norm_squared=14.0), 1.0, 1e-6, "add-remove", "record")
    >>> acc.epsilon(made.mechanism, 1e-6).upper <= 1.0
    True
    """
    epsilon = min(epsilon, MOST_EPSILON)
    ridge = max(
        slope.ridge(min(JACOBIAN_SHARE * epsilon, JACOBIAN_MOST)), least_ridge, LEAST_RIDGE * slope.norm_squared
    )
    if delta == 0:
        inner = epsilon * (1 - OUTPUT_SHARE)
        rate = (inner - slope.jacobian(ridge)) / slope.reach * (1 - 1e-12)
        output = 1 / (epsilon * OUTPUT_SHARE) * (1 + 1e-9)
        stated = acc.PureDP(inner, adjacency=adjacency, unit=unit)
        return Perturbation(ridge, slope, 0.0, rate, output, stated + acc.Laplace(output, replace=1.0, unit=unit))
    left = 1 - OUTPUT_SHARE - sum(one.share for one in further)

    def sizes(noise: float) -> tuple[float, float, tuple[float, ...]]:
        """σ, the multiplier of the output's noise, and those of the further releases for adding a row."""
        moved = [one.replace if adjacency == "replace-one" else 1.0 for one in further]
        each = tuple(noise * by / math.sqrt(one.share) for one, by in zip(further, moved, strict=True))
        return slope.reach * noise / math.sqrt(left), noise / math.sqrt(OUTPUT_SHARE), each

    def family(noise: float) -> acc.Mechanism:
        sigma, output, each = sizes(noise)
        whole = profile(sigma, ridge, slope, adjacency, unit) + acc.Gaussian(output, replace=1.0, unit=unit)
        for one, multiplier in zip(further, each, strict=True):
            whole = whole + acc.Gaussian(multiplier, replace=one.replace, unit=unit)
        return whole

    noise = acc.calibrate(family, epsilon=epsilon, delta=delta, adjacency=adjacency)
    sigma, output, each = sizes(noise)
    return Perturbation(ridge, slope, sigma, 0.0, output, family(noise), each)


def either(perturbation: Perturbation, mu: float, epsilon: float, adjacency: str, unit: str) -> acc.Mechanism:
    """What an objective perturbation or Gaussian releases of ``mu`` in all cost, whichever of the two runs.

    Guarantee: at each of some ε, the larger of both δ holds for both; so the choice may depend on releases before.
    """
    parts = ((0.0, 0.9, 24), (0.9, 1.1, 24), (1.1, 2.6, 16))
    grid = np.unique(np.concatenate([np.linspace(low, high, count) for low, high, count in parts])) * epsilon
    made = acc.profile(perturbation.mechanism, grid, adjacency=adjacency).upper
    deltas = [max(float(one), _gaussian(float(e), mu) * (1 + 1e-9)) for e, one in zip(grid, made, strict=True)]
    return _stated(grid, np.minimum(deltas, 1.0), adjacency, unit)


# -- the minimiser -----------------------------------------------------------------------------------------------------


def minimise(source: RowSource, noise: Floats, ridge: float, tolerance: float, classes: int) -> Floats:
    """The minimiser of the perturbed logistic (or softmax) loss by Newton's method, to a gradient of ``tolerance``/2.

    The other half of the tolerance is room for the rounding of the gradient itself, which is far smaller.
    """
    columns = 1 if classes == 2 else classes
    linear = noise.reshape(source.width, columns)
    theta = np.zeros((source.width, columns))

    def loss(theta: Floats) -> tuple[float, Floats, Floats]:
        size = theta.size
        value, gradient, hessian = 0.0, np.zeros(theta.shape), np.zeros((size, size))
        for rows in source.batches():
            more = logistic(rows, theta) if columns == 1 else softmax(rows, theta)
            value, gradient, hessian = value + more[0], gradient + more[1], hessian + more[2]
        value += ridge / 2 * float((theta**2).sum()) + float((linear * theta).sum())
        return value, gradient + ridge * theta + linear, hessian + ridge * np.eye(size)

    value, gradient, hessian = loss(theta)
    for _ in range(200):
        if np.linalg.norm(gradient) <= tolerance / 2:
            return theta
        step = np.linalg.solve(hessian, gradient.ravel()).reshape(theta.shape)
        size, slope = 1.0, float((gradient * step).sum())
        while True:
            candidate = theta - size * step
            found = loss(candidate)
            # Near the end the loss no longer tells points apart; then a shorter gradient is progress.
            shorter = np.linalg.norm(found[1]) < 0.9 * np.linalg.norm(gradient)
            if found[0] <= value - 0.1 * size * slope or shorter or size < 1e-8:
                break
            size /= 2
        theta, (value, gradient, hessian) = candidate, found
    raise ArithmeticError("the solver did not reach its tolerance, so nothing is released")


def logistic(rows: Rows, theta: Floats) -> tuple[float, Floats, Floats]:
    """Value, gradient and Hessian of the logistic loss of some rows; y is 0 or 1."""
    x, weight = _plain(rows)
    y = rows.y
    score = x @ theta[:, 0]
    value = float((weight * (np.logaddexp(0.0, score) - y * score)).sum())
    probability = expit(score)
    gradient = x.T @ (weight * (probability - y))
    hessian = dense((x * (weight * probability * (1 - probability))[:, None]).T @ x)
    return value, gradient[:, None], hessian


def softmax(rows: Rows, theta: Floats) -> tuple[float, Floats, Floats]:
    """The same for K classes; y is the class's number."""
    x, weight = _plain(rows)
    classes = theta.shape[1]
    truth = np.eye(classes)[rows.y.astype(int)]
    scores = x @ theta
    total = logsumexp(scores, axis=1)
    value = float((weight * (total - (scores * truth).sum(axis=1))).sum())
    p = np.exp(scores - total[:, None])
    gradient = x.T @ (weight[:, None] * (p - truth))
    hessian = np.zeros((len(theta), classes, len(theta), classes))
    for j in range(classes):
        for k in range(j, classes):
            block = dense((x * (weight * p[:, j] * ((j == k) - p[:, k]))[:, None]).T @ x)
            hessian[:, j, :, k] = block
            hessian[:, k, :, j] = block
    return value, gradient, hessian.reshape(theta.size, theta.size)


def curvature(source: RowSource, theta: Floats) -> Floats:
    """The exact sum of 4p(1-p)·xxᵀ over the rows, at the probabilities of released coefficients.

    Each row is scaled by itself and cut to the grid, so its length stays below R: the sensitivity is that of Σxxᵀ.
    """
    total = Moments(source.width)
    for rows in source.batches():
        x, _ = _plain(rows)
        probability = expit(x @ theta[:, 0])
        scaled = rows.matrix * (2 * np.sqrt(probability * (1 - probability)))[:, None]
        if sparse.issparse(scaled):
            scaled = scaled.tocsr()
            scaled.data = to_grid(scaled.data)
        total.add(scaled if sparse.issparse(scaled) else to_grid(scaled))
    return total.total()


def _plain(rows: Rows) -> tuple[Any, Floats]:
    """Rows before they were scaled by the root of their weights, and the weights."""
    if rows.root is None:
        return rows.matrix, np.ones(len(rows))
    safe = np.where(rows.root > 0, rows.root, 1.0)
    return rows.matrix * (1 / safe)[:, None], rows.root**2


def _power(value: float) -> float:
    """The power of two at or below ``value``."""
    return math.ldexp(1.0, math.frexp(value)[1] - 1)
