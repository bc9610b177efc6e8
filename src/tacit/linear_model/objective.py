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
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp

from tacit import accounting as acc
from tacit.linear_model.rows import Rows
from tacit.noise import add_gaussian, add_laplace

Floats = npt.NDArray[np.float64]

#: The gradient that may be left, in units of a row's length: half for the solver and half for rounding.
TOLERANCE = 1e-6
#: The part of ε that pays for the Jacobian, fixed in advance; it decides λ.
JACOBIAN_SHARE = 0.25
#: λ is at least this many times R², so that the minimiser exists within reach of the solver at any ε.
LEAST_RIDGE = 1e-3
#: The parts of ε and δ that pay for the output noise.
OUTPUT_EPSILON, OUTPUT_DELTA = 0.01, 0.05
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


def calibrate_sigma(epsilon: float, delta: float, ridge: float, slope: Slope) -> float:
    """The least σ with δ(ε) at most ``delta``, from above."""
    if slope.jacobian(ridge) >= epsilon:
        raise ValueError("the ridge is too small for this epsilon: the Jacobian alone would spend it")
    low, high = 1e-6, 1.0
    while gaussian_delta(epsilon, high, ridge, slope) > delta:
        low, high = high, 2 * high
        if high > 1e12:
            raise ValueError(f"no noise reaches epsilon={epsilon:g} at delta={delta:g} here")
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(epsilon, middle, ridge, slope) > delta else (low, middle)
    return high


@dataclasses.dataclass(frozen=True)
class Perturbation:
    """A priced objective perturbation: the ridge λ, the noise on the objective and on the output.

    ``sigma`` is the Gaussian's (δ > 0), or ``rate`` the η of the density exp(-η|b|) (pure ε).
    """

    ridge: float
    slope: Slope
    sigma: float
    rate: float
    output: float
    mechanism: acc.Mechanism

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


def perturb(
    slope: Slope, epsilon: float, delta: float, adjacency: str, unit: str, least_ridge: float = 0.0
) -> Perturbation:
    """Price an objective perturbation for (ε, δ); δ = 0 gives pure ε.

    A quarter of ε pays for the Jacobian, which decides λ (at least ``least_ridge``); the rest, for the noise.

    >>> made = perturb(Slope(norm_squared=14.0), 1.0, 1e-6, "add-remove", "record")
    >>> acc.epsilon(made.mechanism, 1e-6).upper <= 1.0
    True
    """
    inner = epsilon * (1 - OUTPUT_EPSILON)
    ridge = max(slope.ridge(JACOBIAN_SHARE * inner), least_ridge, LEAST_RIDGE * slope.norm_squared)
    stated = {"adjacency": adjacency, "unit": unit}
    if delta == 0:
        rate = (inner - slope.jacobian(ridge)) / slope.reach * (1 - 1e-12)
        output = 1 / (epsilon * OUTPUT_EPSILON) * (1 + 1e-9)
        mechanism = acc.PureDP(inner, **stated) + acc.Laplace(output, replace=1.0, unit=unit)
        return Perturbation(ridge, slope, 0.0, rate, output, mechanism)
    inner_delta = delta * (1 - OUTPUT_DELTA)
    objective = acc.ApproxDP(inner, inner_delta, **stated)

    def family(noise: float) -> acc.Mechanism:
        return objective + acc.Gaussian(noise, replace=1.0, unit=unit)

    output = acc.calibrate(family, epsilon=epsilon, delta=delta, adjacency=adjacency)
    sigma = calibrate_sigma(inner, inner_delta, ridge, slope)
    return Perturbation(ridge, slope, sigma, 0.0, output, family(output))


# -- the minimiser -----------------------------------------------------------------------------------------------------


def minimise(rows: Rows, noise: Floats, ridge: float, tolerance: float, classes: int) -> Floats:
    """The minimiser of the perturbed logistic (or softmax) loss by Newton's method, to a gradient of ``tolerance``/2.

    The other half of the tolerance is room for the rounding of the gradient itself, which is far smaller.
    """
    columns = 1 if classes == 2 else classes
    linear = noise.reshape(rows.width, columns)
    theta = np.zeros((rows.width, columns))
    loss = logistic(rows, linear, ridge) if columns == 1 else softmax(rows, linear, ridge)
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


Loss = Callable[[Floats], tuple[float, Floats, Floats]]


def logistic(rows: Rows, linear: Floats, ridge: float) -> Loss:
    """Value, gradient and Hessian of the perturbed logistic loss; y is 0 or 1."""
    x, weight = _plain(rows)
    y = rows.y

    def loss(theta: Floats) -> tuple[float, Floats, Floats]:
        score = x @ theta[:, 0]
        value = float((weight * (np.logaddexp(0.0, score) - y * score)).sum())
        probability = 1 / (1 + np.exp(-np.clip(score, -700, 700)))
        gradient = x.T @ (weight * (probability - y))
        hessian = (x * (weight * probability * (1 - probability))[:, None]).T @ x
        value += ridge / 2 * float((theta**2).sum()) + float((linear * theta).sum())
        return value, gradient[:, None] + ridge * theta + linear, hessian + ridge * np.eye(len(theta))

    return loss


def softmax(rows: Rows, linear: Floats, ridge: float) -> Loss:
    """The same for K classes; y is the class's number."""
    x, weight = _plain(rows)
    classes = linear.shape[1]
    truth = np.eye(classes)[rows.y.astype(int)]

    def loss(theta: Floats) -> tuple[float, Floats, Floats]:
        scores = x @ theta
        total = logsumexp(scores, axis=1)
        value = float((weight * (total - (scores * truth).sum(axis=1))).sum())
        p = np.exp(scores - total[:, None])
        gradient = x.T @ (weight[:, None] * (p - truth))
        size = theta.size
        hessian = np.zeros((len(theta), classes, len(theta), classes))
        for j in range(classes):
            for k in range(j, classes):
                block = (x * (weight * p[:, j] * ((j == k) - p[:, k]))[:, None]).T @ x
                hessian[:, j, :, k] = block
                hessian[:, k, :, j] = block
        value += ridge / 2 * float((theta**2).sum()) + float((linear * theta).sum())
        return value, gradient + ridge * theta + linear, hessian.reshape(size, size) + ridge * np.eye(size)

    return loss


def _plain(rows: Rows) -> tuple[Floats, Floats]:
    """Rows before they were scaled by the root of their weights, and the weights."""
    if rows.root is None:
        return rows.x, np.ones(len(rows))
    safe = np.where(rows.root > 0, rows.root, 1.0)
    return rows.x / safe[:, None], rows.root**2


def _power(value: float) -> float:
    """The power of two at or below ``value``."""
    return math.ldexp(1.0, math.frexp(value)[1] - 1)
