"""Which noisy numbers leave the data? The few releases that every estimator here is made of, each with its price.

A release takes an exact sum (:mod:`tacit.linear_model.moments`), its sensitivity
(:mod:`tacit.linear_model.sensitivity`) and noise from :mod:`tacit.noise`'s exact samplers. The mechanism that
describes it carries the sensitivity under each adjacency, so that one description serves them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from tacit import accounting as acc
from tacit.linear_model.moments import ROUNDING, SLACK, Moments
from tacit.linear_model.rows import Rows
from tacit.linear_model.sensitivity import Shape
from tacit.linear_model.stream import Stream
from tacit.noise import add_gaussian, add_laplace

Floats = npt.NDArray[np.float64]

#: Scales are rounded up by this much, so that rounding never leaves less noise than was priced.
UP = 1 + 2.0**-48


def moments(source: Rows | Stream, *, target: bool) -> Floats:
    """The exact second moments of x, or of (x, y)."""
    if isinstance(source, Stream):
        return source.moments(target=target).total()
    return moments_of(source.batches(), source.width + target, target=target)


def moments_of(batches: Iterable[Rows], width: int, *, target: bool = False) -> Floats:
    """The same for pieces of a table."""
    total = Moments(width)
    for rows in batches:
        total.add(rows.with_target() if target else rows.matrix)
    return total.total()


# -- Gaussian ----------------------------------------------------------------------------------------------------------


class GaussianMatrix:
    """A symmetric matrix of second moments with symmetric Gaussian noise: s on the diagonal, s/√2 beside it.

    Guarantee: one Gaussian mechanism of noise multiplier s/Δ with Δ the Frobenius sensitivity for adding a row; √2
    times that for replacing one. (A symmetric matrix is the vector of its diagonal and √2 times its triangle, whose
    L2 norm is the Frobenius norm; the noise is s on every entry of that vector.)
    """

    replace = math.sqrt(2)

    def __init__(self, shape: Shape, width: int, target: float = 0.0) -> None:
        self.sensitivity = shape.frobenius("add-remove", target) + (width + target**2) * ROUNDING

    def scale(self, multiplier: float) -> float:
        """s, the noise on the diagonal."""
        return self.sensitivity * multiplier * UP

    def release(self, exact: Floats, multiplier: float) -> Floats:
        """The matrix that leaves."""
        return symmetric_gaussian(exact, self.scale(multiplier))


def symmetric_gaussian(exact: Floats, scale: float) -> Floats:
    """The upper triangle with exact Gaussian noise, mirrored: ``scale`` on the diagonal, ``scale``/√2 beside it."""
    size = len(exact)
    noisy = np.diag(add_gaussian(np.diag(exact), scale))
    if size > 1:
        upper = np.triu_indices(size, 1)
        noisy[upper] = add_gaussian(exact[upper], scale / math.sqrt(2) * UP)
        noisy.T[upper] = noisy[upper]
    return noisy


def gaussian_sum(exact: Floats, sensitivity: float, multiplier: float) -> Floats:
    """A sum of clipped vectors (or bounded numbers) with exact Gaussian noise ``multiplier`` times its sensitivity."""
    return np.asarray(add_gaussian(exact, sensitivity * SLACK * multiplier * UP))


def calibrated(
    family: Callable[[float], acc.Mechanism], epsilon: float, delta: float, adjacency: str
) -> tuple[float, acc.Mechanism]:
    """The least noise at which a family of Gaussian releases costs (ε, δ), and the mechanism."""
    noise = acc.calibrate(family, epsilon=epsilon, delta=delta, adjacency=adjacency)
    return noise, family(noise)


def share(noise: float, part: float, shift: float) -> float:
    """The multiplier of a release that gets ``part`` of μ² = 1/``noise``², where one neighbour moves it by ``shift``
    times the sensitivity of adding a row.
    """
    return noise * shift / math.sqrt(part)


# -- Laplace -----------------------------------------------------------------------------------------------------------


def laplace_scale(sensitivity: float, epsilon: float) -> float:
    """The scale of Laplace noise that spends ``epsilon``, rounded up."""
    return sensitivity / epsilon * (1 + 1e-12)


def upper_laplace(exact: Floats, scale: float) -> Floats:
    """The upper triangle with exact Laplace noise on each of its entries, mirrored.

    Guarantee: (Δ/scale)-DP with Δ the L1 sensitivity of the upper triangle, as the numbers are handed over.
    """
    upper = np.triu_indices(len(exact))
    noisy = np.zeros_like(exact)
    noisy[upper] = add_laplace(exact[upper], scale)
    noisy.T[upper] = noisy[upper]
    return noisy


def vector_laplace(exact: Floats, scale: float) -> Floats:
    """Every entry with exact Laplace noise."""
    return np.asarray(add_laplace(exact, scale))
