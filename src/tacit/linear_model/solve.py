"""Which coefficients follow from noisy second moments? Minimise a quadratic whose matrix may have become indefinite.

Everything here is post-processing of released values: it costs no privacy. With Â = A + E and b̂ = b + e known up to
noise of known size, ``"ridge"`` adds the noise's spectral edge to the diagonal, ``"trim"`` floors the eigenvalues
there, and ``"shrink"`` takes the posterior mean under a public guess of the length of θ, which leaves directions that
stand out of the noise alone and shrinks those that do not.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

Floats = npt.NDArray[np.float64]
#: Eigenvalues, and eigenvectors as columns.
Eigen = tuple[Floats, Floats]

#: A prior is plausible if it makes b̂ less likely than the best one by a factor of at most e to this power.
LESS_LIKELY = 2.0
#: Clipping takes up to a third of a gradient's slope, which leaves this many times the mean square of steps' errors.
CLIPPED = 2.0
REPAIRS = ("shrink", "ridge", "trim", "ridge+trim", "positive", "none")


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """θ = ``solver`` · b̂, with the matrix that was used for A and the prior variances of θ.

    ``plausible`` are the largest prior variances that b̂ does not speak against. ``values`` are the eigenvalues of the
    matrix, ``sums`` those of the repaired Â alone, without what was added to it, and its eigenvectors.
    """

    theta: Floats
    solver: Floats
    matrix: Floats
    prior: Floats
    plausible: Floats
    values: Floats
    sums: Eigen


@dataclasses.dataclass(frozen=True)
class Noise:
    """Standard deviations of the noise beside Â's diagonal and of b̂."""

    matrix: float
    vector: float


def solve(
    matrix: Floats,
    vector: Floats,
    noise: Noise,
    *,
    repair: str = "shrink",
    guess: float = 1.0,
    intercept: bool = False,
    penalty: Floats | None = None,
    ridge: float = 0.0,
    floor: float = 0.0,
    moved: float | None = None,
    eigen: Eigen | None = None,
) -> Solution:
    """Minimise θᵀÂθ - 2b̂ᵀθ (+ a ridge ``penalty``), after repairing Â.

    ``guess`` is the public guess of |θ|; with ``intercept`` the first entry, which also takes up where the columns are
    centred, may be twice as large as the others. ``floor`` is the least eigenvalue under ``"positive"``;
    ``moved`` is the length of what the noise of Â acts on where it is not θ itself; ``eigen`` are Â's where known.

    >>> solve(np.eye(2) * 100, np.array([50.0, 0.0]), Noise(1.0, 1.0)).theta.round(2).tolist()
    [0.5, 0.0]
    """
    if repair not in REPAIRS:
        raise ValueError(f"repair must be one of {', '.join(REPAIRS)}, not {repair!r}")
    size = len(matrix)
    prior = np.full(size, guess**2 / size)
    if intercept:
        prior[0] *= 4
    edge = 2 * math.sqrt(size) * noise.matrix
    values, vectors = eigen or np.linalg.eigh(matrix)
    tiny = 1e-12 * max(float(np.abs(values).max(initial=0.0)), 1e-300)
    if repair == "ridge+trim":
        values = np.maximum(values + edge, edge)
    elif repair == "ridge":
        values = values + edge
    elif repair == "trim":
        values = np.maximum(values, edge)
    elif repair == "positive":
        values = np.maximum(values, max(floor, tiny))
    elif repair == "shrink":
        values = np.maximum(values, max(edge / 2, tiny))
    sums, values = (values, vectors), values + ridge
    full = (vectors * values) @ vectors.T
    if penalty is not None:
        full = full + np.diag(penalty)
        values, vectors = np.linalg.eigh(full)
    plausible = prior
    if repair == "shrink":
        prior, plausible, variance = _evident(values, vectors, vector, noise, prior, int(intercept), moved)
        solver = _shrinking(values, vectors, variance, prior)
    else:
        solver = (vectors / np.where(np.abs(values) > 1e-15 * np.abs(values).max(), values, np.inf)) @ vectors.T
    if intercept:
        plausible = np.r_[max(float(plausible[0]), 1.0), plausible[1:]]  # a target is at most 1
    return Solution(solver @ vector, solver, full, prior, plausible, values, sums)


def _shrinking(values: Floats, vectors: Floats, variance: float, prior: Floats) -> Floats:
    """(Â² + σ² P⁻¹)⁻¹ Â for a diagonal P with one variance but for the constant's: that has a term of rank one."""
    inside = values**2 + variance / prior[-1]
    solver = (vectors * (values / inside)) @ vectors.T
    beside = variance * (1 / prior[0] - 1 / prior[-1])
    if beside:
        one, other = vectors @ (vectors[0] / inside), vectors @ (vectors[0] * values / inside)
        solver -= beside / (1 + beside * one[0]) * np.outer(one, other)
    return np.asarray(solver)


def _evident(
    values: Floats, vectors: Floats, vector: Floats, noise: Noise, prior: Floats, first: int, moved: float | None
) -> tuple[Floats, Floats, float]:
    """The prior variances, all but the constant's lowered by the most likely factor in (0, 1], and by the largest one
    that is nearly as likely, and b̂'s noise variance.

    Where b̂ looks like noise alone, coefficients of the guessed length would be noise alone too. ``values`` and
    ``vectors`` are those of Â: under a prior with one variance p but for the constant's, b̂ has the covariance
    p·Â² + σ² I and a matrix of rank one, so each factor costs a few sums.
    """
    seen, column = vectors.T @ vector, values * vectors[0]
    tried: list[tuple[float, Floats, float]] = []
    for factor in 4.0 ** np.arange(0, -9, -1):
        scaled = prior.copy()
        scaled[first:] *= factor
        length = float(scaled.sum()) if moved is None else moved**2
        variance = noise.vector**2 + noise.matrix**2 * length
        spread = float(scaled[-1]) * values**2 + variance
        beside = float(scaled[0] - scaled[-1])  # what the constant's variance has more
        along, across = float((column**2 / spread).sum()), float((column * seen / spread).sum())
        log_determinant = float(np.log(spread).sum()) + math.log1p(beside * along)
        likely = -0.5 * (log_determinant + float((seen**2 / spread).sum()) - beside * across**2 / (1 + beside * along))
        tried.append((likely, scaled, variance))
    best = max(tried, key=lambda one: one[0])
    plausible = next(scaled for likely, scaled, _ in tried if likely >= best[0] - LESS_LIKELY)
    return best[1], plausible, best[2]


def noise_covariance(solution: Solution, noise: Noise) -> Floats:
    """The covariance of θ about the exact solution: of the noise in b̂ and in Â (times θ), and of what shrinking hides.

    The noise of b̂ adds σ_b² I, that of Â σ_A² (|θ|² I + θθᵀ).
    """
    hidden = np.eye(len(solution.theta)) - solution.solver @ solution.matrix
    spread = _added(solution, noise) + (hidden * solution.prior) @ hidden.T
    return np.asarray((spread + spread.T) / 2)


def _added(solution: Solution, noise: Noise) -> Floats:
    """The covariance that the noise itself brings into θ."""
    theta = solution.theta
    moved = noise.matrix * (solution.solver @ theta)
    inside = noise.vector**2 + noise.matrix**2 * float(theta @ theta)
    return np.asarray(inside * (solution.solver @ solution.solver.T) + np.outer(moved, moved))


def prediction_noise(
    solution: Solution,
    noise: Noise,
    *,
    longest: float,
    spread: float,
    penalty: Floats | None = None,
    steps: tuple[Floats, Floats] | None = None,
) -> float:
    """The sum of squares over the rows of what the noise of a fit moves predictions, from released values alone.

    It is what the noise adds, and what it hides: hidden coefficients are taken for as long as plausible, but for no
    more than ``spread``, the sum of squares of the target about its mean. The second moments of the rows have at most
    the trace ``longest``. ``steps`` are the covariances before and after steps.

    >>> seen = solve(np.diag([400.0, 400.0]), np.array([200.0, 0.0]), Noise(0.0, 10.0))
    >>> round(prediction_noise(seen, Noise(0.0, 10.0), longest=800.0, spread=100.0), 2)
    0.5
    """
    size = len(solution.theta)
    ridge = np.zeros(size) if penalty is None else penalty
    values, vectors = solution.sums
    # Sums of squares are not below zero, and the noise hides those below its own size.
    values = np.maximum(values, max(noise.matrix, noise.vector))
    most = longest + 3 * math.sqrt(2 * size) * noise.matrix  # three standard deviations of a trace's noise
    values *= min(1.0, most / max(float(values.sum()), 1e-300))
    root = (vectors * np.sqrt(values)).T
    sums = root.T @ root
    left = np.eye(size) - solution.solver @ (sums + np.diag(ridge))
    if steps is None:
        added, factor = _added(solution, noise), 1.0
    else:  # of a Kalman filter: what is left of an error is (covariance after)·(covariance before)⁻¹
        before, after = steps[0].copy(), steps[1]
        before[np.diag_indices(size)] += 1e-12 * float(np.trace(before))  # more than rounding takes away
        kept = cho_solve(cho_factor(before, overwrite_a=True), after).T
        believed = kept @ (np.eye(size) - solution.solver @ solution.matrix)
        added, factor, left = after - (believed * solution.prior) @ believed.T, CLIPPED, kept @ left
    lost = float(((root @ left) ** 2).sum(axis=0) @ solution.plausible)
    return factor * max(float((sums * added).sum()), 0.0) + min(lost, spread)
