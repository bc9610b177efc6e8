"""How are coefficients found by noisy gradient steps? Whitened DP gradient descent with the best gain at every step.

1. A part of the budget pays for the Gram matrix of the features, A + E, with symmetric Gaussian noise.
2. It gives the whitening W = (its eigenvalues, floored at half the noise's edge)^(-1/2). In whitened coordinates rows
   are about equally long, so clipping a row's gradient costs far less signal than in the coordinates of the table.
3. Each of the steps releases the sum of W·(gradient of a row), every one clipped, with Gaussian noise.
4. Noise levels are known, so each step's gain is that of the Kalman filter for "gradient = curvature · error + noise",
   with a public guess of how long the coefficient vector is. Where there is little noise, this is a Newton
   step followed by averaging; where noise hides a direction, the coefficient stays near zero instead of blowing up.

Steps 2 and 4 use released values alone. Clipping moves the line where errors are skewed, so no intervals are made of
what comes out (:mod:`tacit.linear_model.inference`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, solve_triangular

from tacit import accounting as acc
from tacit.linear_model import releases
from tacit.linear_model.moments import clipped_sum, to_grid
from tacit.linear_model.rows import Rows
from tacit.linear_model.sensitivity import Shape
from tacit.linear_model.solve import Eigen

Floats = npt.NDArray[np.float64]
#: Residuals, rows x outputs, from scores and targets.
Residual = Callable[[Floats, Floats], Floats]
#: A typical second derivative of the loss where scores have this mean and variance.
Curvature = Callable[[float, float], float]

#: The settings, fixed before any data were seen: parts of μ², number of steps, and the clip norm in units of a typical
#: whitened row times half the range of the target.
GRAM_SHARE, STEPS, CLIP = 0.3, 15, 0.75
#: Steps at full gain, which forget a clipped or badly preconditioned start, before averaging begins.
WARM_UP = 3
#: Eigenvalues are floored at this part of the noise's spectral edge 2√D·s/√2.
FLOOR = 0.5
#: Whitened rows are kept from step to step up to so many numbers (half a gibibyte); beyond it each step makes its own.
KEPT = 2**26


class RowSource(Protocol):
    """Rows that can be gone through several times."""

    @property
    def shape(self) -> Shape: ...

    @property
    def width(self) -> int: ...

    def batches(self) -> Iterator[Rows]: ...


@dataclasses.dataclass(frozen=True)
class DescentBudget:
    """How noisy each release is: multipliers of the sensitivity of adding a row, for a total of μ = 1/``noise``.

    >>> DescentBudget(8.0, "add-remove").mechanism("record")
    Gaussian(14.6059, replace=1.41421) + Gaussian(37.0328) * 15
    """

    noise: float
    adjacency: str

    def _of(self, part: float, replace: float) -> float:
        return releases.share(self.noise, part, replace if self.adjacency == "replace-one" else 1.0)

    @property
    def gram(self) -> float:
        """Of the Gram matrix."""
        return self._of(GRAM_SHARE, math.sqrt(2))

    @property
    def step(self) -> float:
        """Of each step."""
        return self._of((1 - GRAM_SHARE) / STEPS, 2.0)

    def mechanism(self, unit: str) -> acc.Mechanism:
        """What is priced and charged."""
        return (
            acc.Gaussian(self.gram, replace=math.sqrt(2), unit=unit)
            + acc.Gaussian(self.step, replace=2.0, unit=unit) * STEPS
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """What is known before the steps, from released values: the Gram matrix with noise ``scale`` on its diagonal, the
    number of rows, the coefficients and their covariance, and the Gram matrix's eigenvalues and eigenvectors or None.
    """

    gram: Floats
    scale: float
    count: float
    theta: Floats
    covariance: Floats
    eigen: Eigen | None = None


def descend(
    source: RowSource,
    residual: Residual,
    budget: DescentBudget,
    *,
    count: int | None,
    outputs: int = 1,
    curvature: float = 1.0,
    guess: float = 1.0,
    penalty: Floats | None = None,
) -> tuple[Floats, Floats, Start]:
    """Minimise a loss whose gradient of a row is residual(xᵀθ, y)·x: coefficients, features x outputs, the covariance
    that the noise leaves them (:func:`walk`), and what was known before the steps.

    ``residual`` gives rows x outputs. ``count`` is the number of rows where it is public. ``curvature`` is a typical
    second derivative of the loss, ``guess`` the public guess of the length of θ, ``penalty`` the diagonal of a ridge.

    Guarantee: what ``budget.mechanism`` states. Releases: the Gram matrix (Frobenius sensitivity R² for adding a row,
    √2 R² for replacing one) and each clipped sum (C, 2C).
    """
    gram, count_here, scale = _gram(source, budget, count)
    size = len(gram)
    start = Start(gram, scale, count_here, np.zeros((size, outputs)), np.eye(size) * guess**2 / size)
    return *walk(source, residual, start, budget.step, curvature=curvature, penalty=penalty), start


def walk(
    source: RowSource,
    residual: Residual,
    start: Start,
    multiplier: float,
    *,
    curvature: float | Curvature = 1.0,
    penalty: Floats | None = None,
    warm_up: int = WARM_UP,
) -> tuple[Floats, Floats]:
    """The coefficients after steps from ``start`` on, each with noise ``multiplier``, and the covariance that the noise
    leaves them, which knows nothing of what clipping does.

    ``curvature`` may follow the scores' mean and variance, which the Gram matrix tells.

    Guarantee: ``STEPS`` Gaussian releases of sums of vectors of length C at most (sensitivity C, replacing a row 2C),
    where C follows from what was released before.
    """
    scale, size = start.scale, len(start.gram)
    # In the basis of its eigenvectors the Gram matrix with the penalty is diagonal, and W is: vectors ``f`` and ``w``.
    beside = np.zeros(size) if penalty is None else penalty
    vectors, w, f, typical = _whitening(start, beside / (1.0 if callable(curvature) else curvature), source.shape)
    whitening = (vectors * w) @ vectors.T
    clip_norm = CLIP * typical
    step_noise = source.shape.clipped_sum(clip_norm, "add-remove") * multiplier
    theta, covariance = start.theta, vectors.T @ start.covariance @ vectors
    in_memory = isinstance(source, Rows) and source.x.size <= KEPT
    kept_rows = [*_whitened(source, whitening)] if in_memory else None
    rounding = 0.0
    for step in range(STEPS):
        bent = curvature(*_scores(start, theta)) if callable(curvature) else curvature
        slope = bent * w * f  # of the whitened gradient
        wrong = (bent * scale) ** 2 / 2  # the Gram matrix is off by E: Cov(E e) = s²/2 (|e|² I + e eᵀ)
        inside = np.outer(slope, slope) + wrong * np.outer(w, w)
        inside *= covariance
        inside[np.diag_indices(size)] += step_noise**2 + wrong * np.trace(covariance) * w**2
        rounding = rounding or 1e-12 * float(np.diag(inside).max())  # more than an eigenvalue loses in all steps
        inside[np.diag_indices(size)] += rounding
        lower = np.linalg.cholesky(inside)
        gradient = _gradient(kept_rows or _whitened(source, whitening), theta, residual, clip_norm)
        noisy = releases.gaussian_sum(gradient, source.shape.clipped_sum(clip_norm, "add-remove"), multiplier)
        noisy = noisy + whitening @ (beside[:, None] * theta)
        theta = theta - vectors @ (covariance @ (slope[:, None] * cho_solve((lower, True), vectors.T @ noisy)))
        if step >= warm_up:
            known = solve_triangular(lower, slope[:, None] * covariance, lower=True, overwrite_b=True)
            covariance = covariance - known.T @ known
    covariance = vectors @ covariance @ vectors.T
    return theta, covariance


def _scores(start: Start, theta: Floats) -> tuple[float, float]:
    """Mean and variance of the rows' scores, of which there is one for each: from released values alone."""
    moments = start.gram / start.count
    mean = float(moments[0] @ theta[:, 0])
    return mean, max(float(theta[:, 0] @ moments @ theta[:, 0]) - mean**2, 0.0)


def _gram(source: RowSource, budget: DescentBudget, count: int | None) -> tuple[Floats, float, float]:
    """The noisy Gram matrix, the number of rows, and s. Where the number is private and the model has no constant, one
    is put beside x so that the matrix holds the number too.
    """
    shape = source.shape
    beside = count is None and not shape.intercept
    if beside:
        shape = dataclasses.replace(shape, intercept=True)

    def pieces() -> Iterator[Rows]:
        for rows in source.batches():
            if beside:
                one = np.ones(len(rows)) if rows.root is None else to_grid(rows.root)
                rows = dataclasses.replace(rows, x=np.column_stack([one, rows.x]))
            yield rows

    width = source.width + beside
    release = releases.GaussianMatrix(shape, width)
    noisy = release.release(releases.moments_of(pieces(), width), budget.gram)
    scale = release.scale(budget.gram)
    here = float(count) if count is not None else max(float(noisy[0, 0]), 1.0)
    return (noisy[1:, 1:] if beside else noisy), max(here, 1.0), scale


def _whitening(start: Start, penalty: Floats, shape: Shape) -> tuple[Floats, Floats, Floats, float]:
    """Eigenvectors of the Gram matrix with a penalty on its diagonal, eigenvalues of W and its own, floored, and a
    whitened row's typical length.
    """
    gram = start.gram
    values, vectors = (start.eigen if not penalty.any() else None) or np.linalg.eigh(gram + np.diag(penalty))
    edge = 2 * math.sqrt(len(gram)) * start.scale / math.sqrt(2)
    floored = np.maximum(values, max(FLOOR * edge, 1e-9 * float(np.diag(gram).max(initial=0.0)), 1e-9))
    longest = math.sqrt(shape.norm_squared / float(floored.min()))
    rows = np.maximum(values - (vectors**2).T @ penalty, 0.0)
    typical = math.sqrt(float((rows / floored).sum()) / start.count)
    return vectors, 1 / np.sqrt(floored), floored, min(max(typical, 1e-3 * longest), longest)


def _whitened(source: RowSource, whitening: Floats) -> Iterator[tuple[Rows, Floats]]:
    """Pieces of the rows, as they are and whitened."""
    for rows in source.batches():
        yield rows, rows.matrix @ whitening


def _gradient(pieces: Iterable[tuple[Rows, Floats]], theta: Floats, residual: Residual, clip_norm: float) -> Floats:
    total = np.zeros(theta.shape)
    for rows, whitened in pieces:
        errors = errors_of(rows, theta, residual)
        total += clipped_sum(whitened, clip_norm, errors).reshape(theta.shape)
    return total


def errors_of(rows: Rows, theta: Floats, residual: Residual) -> Floats:
    """Residuals, rows x outputs; with weights, times the root that x was scaled by too."""
    scores = rows.matrix @ theta
    if rows.root is None:
        return residual(scores, rows.y)
    safe = np.where(rows.root > 0, rows.root, 1.0)
    return residual(scores / safe[:, None], rows.y) * rows.root[:, None]
