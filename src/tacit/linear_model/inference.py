"""Which intervals may be stated? Estimates without clipping or shrinkage from noisy moments, or a reason to refuse.

A fit releases a matrix Â = A + E and a vector b̂ = Aθ + e, with noise of known size. Predictions use a shrunk solution
(:mod:`tacit.linear_model.solve`). Intervals need one that is not pulled towards anything, so this module solves
Âθ = b̂ as it stands, but only in directions in which Â stands out of its own noise. A coefficient that depends on the
other directions gets no interval. Directions that the encoding itself leaves open (the categories of a column add up to
the constant) are known to everybody and are left out. Of all coefficients with the same predictions those are stated
whose categories average to zero over the rows (:class:`Reference`).

Everything here is post-processing of released values, except :func:`score_sums`, which says what it releases.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from tacit.linear_model import releases
from tacit.linear_model.bounds import Features
from tacit.linear_model.descent import Residual, RowSource, errors_of
from tacit.linear_model.moments import clipped_sum
from tacit.linear_model.sensitivity import Shape

Floats = npt.NDArray[np.float64]

#: A direction counts as seen where its eigenvalue is this many times the spectral edge of the noise. There the noise
#: moves an eigenvalue by about a tenth, so that an inverse is close to normal.
SEEN = 3.0
#: What is barely seen may be so by the noise of its own eigenvalue, or by errors of θ that moved a Hessian: up to this
#: many times the threshold, intervals are wider.
BARELY = 1.5
#: A coefficient is refused where more than this part of it lies in directions that the noise hides.
HIDDEN = 0.1
#: Rows' shares of the variances are clipped where the noise is this part of what errors of equal variance add up to,
#: and at multiples of that level, each for a part of μ². Few rows can hold most of a variance, so that one level alone
#: would hide it or drown it in noise.
QUIET = 0.5
LEVELS, PARTS = (1.0, 8.0, 64.0), (0.7, 0.15, 0.15)
#: The lowest level is at least so many times the typical share of a row.
LEAST = 4.0
#: A higher level counts if it finds this many standard deviations more than the lowest.
FOUND = 2.0


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """θ in scaled units without shrinkage, and its uncertainty: ``noise`` of the mechanism, ``sample`` of the rows.

    ``inverse`` maps Aθ to θ (a pseudo-inverse on the directions that are seen, which ``directions`` span). ``hidden``
    projects on the directions that are not. ``wider`` stretches the directions that are barely seen, where errors
    themselves may have decided that.
    """

    theta: Floats
    inverse: Floats
    hidden: Floats
    noise: Floats
    sample: Floats
    guess: float
    directions: Floats
    wider: Floats | None = None
    reference: Reference | None = None

    def referred(self, reference: Reference) -> Estimate:
        """The same about the coefficients that ``reference`` states. For an estimate without a sample's part."""

        def both(matrix: Floats) -> Floats:
            return reference.of(reference.of(matrix).T)

        theta, open_ = reference.of(self.theta), reference.open
        theirs = (open_ > 0).astype(np.float64)  # the coefficients of each column's categories
        unsure = reference.moved * (theirs @ theta**2)  # the variance that the noise of shares gives their average
        vague = open_[reference.moved * theirs.sum(axis=1) > HIDDEN**2]
        return dataclasses.replace(
            self,
            theta=theta,
            inverse=reference.of(self.inverse),
            hidden=both(self.hidden) + vague.T @ vague,
            noise=both(self.noise) + (open_.T * unsure) @ open_,
            wider=None if self.wider is None else reference.of(self.wider),
            reference=reference,
        )

    def even(self, middle: Floats, noise: float) -> Floats:
        """inverse · ``middle`` · inverse: the sample's uncertainty for errors of variance 1 in every row.

        Beside a penalty a direction is seen whose sum of squares ``noise`` hides or made negative: a variance is at
        least what that may hide.
        """
        plain = self.inverse @ middle @ self.inverse.T
        plain = (plain + plain.T) / 2
        np.fill_diagonal(plain, np.maximum(np.diag(plain), noise * (self.inverse**2).sum(axis=1)))
        return np.asarray(plain)

    @property
    def covariance(self) -> Floats:
        """Of sample, noise and what little of a hidden direction a coefficient may have."""
        size = max(self.guess, float(np.linalg.norm(self.theta)))
        both = self.noise + self.sample
        if self.wider is not None:
            both = self.wider @ both @ self.wider.T
        return both + size**2 * self.hidden

    def refused(self, functionals: Floats) -> npt.NDArray[np.bool_]:
        """Which of these linear functionals of θ (one a row) the noise hides."""
        part = np.sqrt(np.maximum(forms(functionals, self.hidden), 0.0))
        return np.asarray(part > HIDDEN * np.linalg.norm(functionals, axis=1))


def forms(rows: Floats, matrix: Floats) -> Floats:
    """aᵀMa for each row a."""
    return np.asarray(np.einsum("ij,ij->i", rows @ matrix, rows))


def open_directions(features: Features, width: int) -> Floats:
    """Directions in which θ can move without any prediction changing, whatever the data: one a row.

    The categories of a column add up to 1 in every row, as the constant does.
    """
    start = width - len(features.names)
    ones = [np.eye(width)[0]] if start else []
    ones += [np.r_[np.zeros(start), mask] for mask in features.block_masks()]
    return np.array([one - ones[0] for one in ones[1:]]).reshape(-1, width)


def without_open(theta: Floats, features: Features) -> Floats:
    """The shortest coefficients with the predictions of ``theta``."""
    basis, _ = np.linalg.qr(open_directions(features, len(theta)).T)
    return np.asarray(theta - basis @ (basis.T @ theta))


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """Which of the coefficients with the same predictions are stated: a column's categories average to zero over the
    rows, and the constant takes up the rest. So a category without rows hides no other.

    ``open`` holds the directions that change no prediction, ``shares`` the parts of the categories in their column, and
    ``moved`` the variance that noise gave each of these parts: where it could be any, nothing is known of an average.
    """

    open: Floats
    shares: Floats
    moved: Floats

    def of(self, values: Floats) -> Floats:
        """Coefficients (or one column for each of several) as they are stated."""
        return np.asarray(values - self.open.T @ (self.shares @ values))


def reference(features: Features, width: int, counts: Floats | None = None, noise: float = 0.0) -> Reference:
    """By the released numbers of rows, ``counts``, of which those of categories count; equal shares without them.

    ``noise`` is the standard deviation of each number.
    """
    directions = open_directions(features, width)
    masks = [np.r_[np.zeros(width - len(mask)), mask] for mask in features.block_masks()]
    rows = [mask if counts is None else mask * np.maximum(counts, 0.0) for mask in masks]
    rows = [some if some.any() else mask for some, mask in zip(rows, masks, strict=True)]
    rows, masks = rows[len(rows) - len(directions) :], masks[len(masks) - len(directions) :]
    shares = np.array([row / row.sum() for row in rows]).reshape(-1, width)
    totals = np.array([0.0 if counts is None else float(mask @ counts) for mask in masks])
    moved = np.divide(noise, totals, out=np.full(len(totals), np.inf if noise else 0.0), where=totals > 0)
    return Reference(directions, shares, np.minimum(moved, 1.0) ** 2)


def estimate(
    matrix: Floats,
    vector: Floats,
    matrix_noise: float,
    vector_noise: float,
    *,
    moved: Floats | None = None,
    open_: Floats,
    guess: float,
    penalty: Floats | None = None,
) -> Estimate:
    """Solve Âθ = b̂ (or (Â + penalty)θ = b̂) where Â is seen.

    ``matrix_noise`` and ``vector_noise`` are standard deviations, the first beside Â's diagonal. The noise of Â acts
    on ``moved``, which is θ where b̂ does not depend on Â. The sample's part is still zero: :func:`with_sample`.

    >>> found = estimate(np.diag([900.0, 1.0]), np.array([450.0, 1.0]), 1.0, 1.0, open_=np.zeros((0, 2)), guess=1.0)
    >>> found.theta.tolist(), found.refused(np.eye(2)).tolist()
    ([0.5, 0.0], [False, True])
    """
    size = len(matrix)
    full = matrix if penalty is None else matrix + np.diag(penalty)
    values, directions = _beside(full, open_)
    least = max(SEEN * 2 * math.sqrt(len(values)) * matrix_noise, 1e-12 * float(np.abs(values).max(initial=0)))
    seen = values > least
    inverse = (directions[:, seen] / values[seen]) @ directions[:, seen].T
    hidden = directions[:, ~seen] @ directions[:, ~seen].T
    theta = inverse @ vector
    factors = 1 + 1.5 * np.maximum(BARELY - values[seen] / max(least, 1e-300), 0.0)
    wider = (directions[:, seen] * factors) @ directions[:, seen].T if (factors > 1).any() else None
    by = theta if moved is None else theta - moved
    inside = vector_noise**2 + matrix_noise**2 * (float(by @ by) + _unseen(moved, seen, guess))
    noise = inside * (directions[:, seen] / values[seen] ** 2) @ directions[:, seen].T
    noise += matrix_noise**2 * np.outer(inverse @ by, inverse @ by)
    return Estimate(theta, inverse, hidden, noise, np.zeros((size, size)), guess, directions[:, seen], wider)


def _unseen(moved: Floats | None, seen: npt.NDArray[np.bool_], guess: float) -> float:
    """What the part of θ that the noise hides may add to |θ|²."""
    return 0.0 if seen.all() or moved is not None else guess**2


def _beside(matrix: Floats, open_: Floats) -> tuple[Floats, Floats]:
    """Eigenvalues and eigenvectors (columns) of a matrix on what is orthogonal to ``open_``.

    The matrix is projected there, and the other directions are made those of its lowest eigenvalue.
    """
    basis, _ = np.linalg.qr(open_.T)
    across = matrix @ basis
    lowest = 2 * float(np.abs(matrix).sum(axis=0).max()) + 1.0
    within = basis.T @ across - lowest * np.eye(len(open_))
    inside = matrix - across @ basis.T - basis @ across.T + basis @ within @ basis.T
    values, vectors = np.linalg.eigh(inside)
    return values[len(open_) :], vectors[:, len(open_) :]


def with_sample(found: Estimate, plain: Floats, ratios: Floats) -> Estimate:
    """Add the sample's uncertainty: what :meth:`Estimate.even` gives, times ``ratios`` for each coefficient."""
    root = np.sqrt(ratios)
    return dataclasses.replace(found, sample=plain * np.outer(root, root))


def widest(found: Estimate, plain: Floats, squares: float, shape: Shape, features: Features) -> Floats:
    """Ratios for :func:`with_sample` that hold for errors of any shape: Σ r²(aᵀx)² is at most Σ r² · max (aᵀx)².

    ``squares`` is Σ r² or more; the maximum is over every row that the bounds allow.
    """
    start = int(shape.intercept)
    inside = np.abs(found.inverse)
    masks = features.block_masks()
    single = np.ones(len(features.names), dtype=bool)
    most = inside[:, :start].sum(axis=1)
    for mask in masks:
        single &= mask == 0
        most = most + np.where(mask > 0, inside[:, start:], 0.0).max(axis=1)
    most = most + inside[:, start:][:, single].sum(axis=1)
    return np.asarray(np.maximum(squares * most**2 / np.maximum(np.diag(plain), 1e-300), 1.0))


def score_sums(
    source: RowSource,
    residual: Residual,
    theta: Floats,
    found: Estimate,
    plain: Floats,
    spread: float,
    count: float,
    multiplier: float,
) -> Floats:
    """Ratios for :func:`with_sample` that are paid for: what Σ r²(aᵀx)² is, against Σ r² · mean (aᵀx)².

    Errors that are larger where a feature is far from its middle make a coefficient less certain than errors of equal
    variance would. Each row gives one number for each coefficient, together clipped at every level. A ratio below 1
    counts as 1.

    Guarantee: Gaussian releases that cost together what one of noise ``multiplier`` costs (their μ² add up). Each is a
    sum of vectors without negative entries, of length C at most: sensitivity C for adding a row, √2·C for replacing.
    """
    size = len(theta)
    scale = found.inverse / np.sqrt(np.maximum(np.diag(plain), 1e-300))[:, None] * math.sqrt(count)
    typical = max(spread, 1e-9)
    lowest = (
        QUIET * count * math.sqrt(PARTS[0]) / (source.shape.clipped_sum(math.sqrt(size), "add-remove") * multiplier)
    )
    limits = [level * max(lowest, LEAST) * typical * math.sqrt(size) for level in LEVELS]
    totals = np.zeros((len(LEVELS), size))
    for rows in source.batches():
        scores = ((rows.matrix @ scale.T) * errors_of(rows, theta[:, None], residual)) ** 2
        for total, limit in zip(totals, limits, strict=True):
            total += clipped_sum(scores, limit)
    noisy, noises = np.zeros_like(totals), np.zeros((len(LEVELS), 1))
    for i, (limit, part) in enumerate(zip(limits, PARTS, strict=True)):
        sensitivity = source.shape.clipped_sum(limit, "add-remove")
        noises[i] = sensitivity * multiplier / math.sqrt(part)
        noisy[i] = releases.gaussian_sum(totals[i], sensitivity, multiplier / math.sqrt(part))
    counts = (noisy - noisy[0] > FOUND * noises) | (np.arange(len(LEVELS)) == 0)[:, None]
    highest = np.where(counts, noisy + noises, 0.0).max(axis=0)
    return np.asarray(np.maximum(highest / (count * typical), 1.0))
