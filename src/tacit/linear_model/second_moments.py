"""What is known after second moments were released? The noisy sums of (x, y), and what follows from them for free."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt

from tacit.linear_model import releases
from tacit.linear_model.sensitivity import Shape
from tacit.linear_model.solve import Eigen, Noise

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """Noisy Σxxᵀ, Σyx and Σy², and the standard deviations of their noise (the first beside the diagonal)."""

    gram: Floats
    vector: Floats
    square: float
    noise: Noise
    square_noise: float

    @functools.cached_property
    def eigen(self) -> Eigen:
        """Eigenvalues and eigenvectors of the noisy Σxxᵀ."""
        values, vectors = np.linalg.eigh(self.gram)
        return values, vectors

    def mixed(self, other: Known, part: float) -> Known:
        """The mean of two releases of the same sums, ``part`` of it ``other``'s: less noise than either."""

        def both(one: float, two: float) -> float:
            return math.hypot((1 - part) * one, part * two)

        return Known(
            (1 - part) * self.gram + part * other.gram,
            (1 - part) * self.vector + part * other.vector,
            (1 - part) * self.square + part * other.square,
            Noise(both(self.noise.matrix, other.noise.matrix), both(self.noise.vector, other.noise.vector)),
            both(self.square_noise, other.square_noise),
        )

    def squares(self, theta: Floats) -> float:
        """Σ(y - xᵀθ)² and one standard deviation of its noise, 0 or more."""
        size = float(theta @ theta)
        found = self.square - 2 * float(theta @ self.vector) + float(theta @ self.gram @ theta)
        noise = math.hypot(self.square_noise, 2 * math.sqrt(size) * self.noise.vector, size * self.noise.matrix)
        return max(found + noise, noise)

    def spread(self, count: float) -> tuple[float, float]:
        """Σ(y - ȳ)², and one standard deviation of its noise, where the first column is the constant."""
        mean = min(max(float(self.vector[0]) / count, -1.0), 1.0)
        found = self.square - 2 * mean * float(self.vector[0]) + mean**2 * float(self.gram[0, 0])
        return found, math.hypot(self.square_noise, 2 * mean * self.noise.vector, mean**2 * self.noise.matrix)

    def count(self, public: int | None, *, intercept: bool) -> float:
        """The number of rows: public, or as the sum of the constant has it, or as many as Σy² needs at least."""
        size = len(self.vector)
        found: float = public or (float(self.gram[0, 0]) if intercept else math.nan)
        return found if found >= size + 1 else max(self.square, size + 1.0)


class MomentsOf:
    """The exact second moments of (x, c·y), and their release with symmetric Gaussian noise.

    Guarantee: that of :class:`tacit.linear_model.releases.GaussianMatrix` for each :meth:`release`.
    """

    def __init__(self, shape: Shape, width: int, guess: float) -> None:
        self.factor = _target_factor(shape.norm_squared, guess)
        self.width = width
        self.release_ = releases.GaussianMatrix(shape, width + 1, self.factor)

    def release(self, exact: Floats, multiplier: float) -> Known:
        """The noisy sums, at a noise of ``multiplier`` times their sensitivity for adding a row."""
        scaling = np.r_[np.ones(self.width), self.factor]  # a power of two: exact
        both = np.outer(scaling, scaling)
        noisy = self.release_.release(exact * both, multiplier) / both
        scale, size = self.release_.scale(multiplier), self.width
        beside = scale / math.sqrt(2)
        return Known(
            noisy[:size, :size],
            noisy[:size, size],
            float(noisy[size, size]),
            Noise(beside, beside / self.factor),
            scale / self.factor**2,
        )


def _target_factor(norm_squared: float, guess: float) -> float:
    """The power of two nearest to the c that minimises (R² + c²)²(1/c² + |θ|²), the noise in the gradient."""
    best = (math.sqrt(1 + 8 * guess**2 * norm_squared) - 1) / (4 * guess**2)
    return 2.0 ** round(math.log2(math.sqrt(best)))
