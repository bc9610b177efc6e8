"""How may noise of earlier steps be taken back, what may one unit move then, and does it help?

Released are g_t + σ·C·x_t, where the x_t solve C x = z for independent standard normal z_t: C is lower triangular and
Toeplitz with first column c. A unit that takes part in steps whose columns of C do not overlap moves the released
sequence, seen through C, by its clip norm times √(number of participations), as long as each column has norm 1. So each
of them costs what one Gaussian step of noise multiplier σ costs, while the noise of *sums* of steps, which is what
weights are made of, nearly cancels. Formulas and proofs: docs/explanation/correlated-noise.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tacit.accounting.base import Mechanism
from tacit.accounting.calibration import calibrate
from tacit.accounting.mechanisms import Gaussian
from tacit.accounting.poisson import PoissonSampled

Array = npt.NDArray[np.float64]

#: More bands than this are neither chosen nor taken: their noise takes this many tensors, or draws at every step.
MOST_BANDS = 128
#: A column norm is rounded down by this much, so that no column is longer than 1.
SHORTER = 1e-12
#: A longer run counts as one of so many steps with the same course of learning rates, and noise is followed for so many
#: steps, when coefficients are chosen. They are then within 1% of the best, and neither has a part in the price.
LONGEST, SEEN = 32_768, 2_048


@dataclasses.dataclass(frozen=True)
class Workload:
    """What the optimizer makes of the released gradients: weights are sums of them, as plain SGD makes them.

    Step t makes v = momentum · v + g + decay · w, and then w = w - rate · v.

    Args:
        momentum: The momentum. Default: 0.
        decay: The weight decay. Default: 0.
        rates: The learning rate of each step; one number stands for all steps, and fewer numbers than steps are
            stretched. Default: 1.
        nesterov: Whether v is taken one step ahead, as torch does it. Default: ``False``.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> Workload(momentum=0.5).moved(4)[0]  # by a gradient of the first step, after each step
        array([1.   , 1.5  , 1.75 , 1.875])
    """

    momentum: float = 0.0
    decay: float = 0.0
    rates: tuple[float, ...] = (1.0,)
    nesterov: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(map(float, self.rates)))
        for name in ("momentum", "decay"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, not {self.momentum:g}")
        if not (self.rates and all(math.isfinite(r) and r >= 0 for r in (*self.rates, self.decay))):
            raise ValueError("decay and rates must be finite numbers that are not negative, at least one rate")

    def states(self, count: int) -> tuple[Array, Array]:
        """How each step moves the state (v, weights): by the state before it, and by its gradient.

        Args:
            count: The number of steps.

        Returns:
            A 2 × 2 matrix and a vector of 2 for each step.
        """
        rate = np.array(self.rates)[np.arange(count) * len(self.rates) // count]
        m, d, ahead = self.momentum, self.decay, float(self.nesterov)
        own, kept = ahead + (m if ahead else 1.0), m if ahead else 1.0
        before, by = np.empty((count, 2, 2)), np.ones((count, 2))
        before[:, 0, 0], before[:, 0, 1] = m, -d
        before[:, 1, 0], before[:, 1, 1] = rate * kept * m, 1 - rate * own * d
        by[:, 1] = rate * own
        return before, by

    def moved(self, count: int) -> Array:
        """By how much a gradient has moved the weights after each step.

        Args:
            count: The number of steps.

        Returns:
            A row for the gradient of each step.
        """
        (before, by), found, state = self.states(count), np.zeros((count, count)), np.zeros((count, 2))
        for step in range(count):
            state = state @ before[step].T
            state[step] = by[step]
            found[:, step] = state[:, 1]
        return found


#: What is made of gradients if nothing is said: their sums.
SUMS = Workload()


@dataclasses.dataclass(frozen=True)
class Correlation:
    """How the noise of a run hangs together: the first column of C, or of its inverse.

    Args:
        coefficients: The first numbers of the column; the others are 0.
        inverse: Whether they are those of C⁻¹. Default: those of C.

    Raises:
        ValueError: If there are none, the first is not positive, or a number is not finite.

    Example:
        >>> pair = Correlation((0.8, 0.6))
        >>> pair.bands, round(pair.squared_sensitivity(100), 6)
        (2, 1.0)
    """

    coefficients: tuple[float, ...]
    inverse: bool = False

    def __post_init__(self) -> None:
        numbers = tuple(float(c) for c in self.coefficients)
        object.__setattr__(self, "coefficients", numbers)
        if not (numbers and all(map(math.isfinite, numbers)) and numbers[0] > 0):
            raise ValueError("coefficients must be finite numbers, of which the first is positive")
        if len(numbers) > MOST_BANDS:
            raise ValueError(f"{len(numbers)} bands are more than {MOST_BANDS}: their noise would take as many tensors")

    @property
    def bands(self) -> int:
        """How many steps hang together directly."""
        return len(self.coefficients)

    def column(self, steps: int) -> Array:
        """The first column of C.

        Args:
            steps: Its length.

        Returns:
            Its numbers.
        """
        first = np.zeros(steps)
        first[: self.bands] = self.coefficients[:steps]
        return _divided(np.eye(1, steps)[0], self.coefficients) if self.inverse else first

    def squared_sensitivity(self, steps: int, participations: int = 1, apart: int = 1) -> float:
        """The square of what one unit of clip norm 1 moves, rounded up.

        Exact where the numbers of C's column fall and none is negative (Kalinin and Lampert 2024), or where columns do
        not overlap; otherwise an upper bound, by the least falling column that is nowhere below it.

        Args:
            steps: The length of the run.
            participations: In how many steps a unit takes part at most. Default: 1.
            apart: How many steps lie between two of them at least. Default: 1.

        Returns:
            The squared L2 norm.
        """
        column = self.column(steps)
        used = np.flatnonzero(column)
        if participations == 1 or (len(used) and used[-1] < apart):
            return participations * math.fsum(column**2) * (1 + SHORTER)
        column = np.abs(column) * (1 + 1e-13)
        falling = np.maximum.accumulate(column[::-1])[::-1]
        moved = np.zeros(steps)
        for number in range(participations):
            start = number * apart
            if start >= steps:
                break
            moved[start:] += falling[: steps - start]
        return math.fsum(moved**2) * (1 + SHORTER)

    def growth(self, steps: int) -> Array:
        """By how much the variance of x_t is larger than that of z_t, at each step.

        Args:
            steps: The length of the run.

        Returns:
            One factor per step.
        """
        if self.inverse:
            return np.cumsum(np.pad(self.coefficients[:steps], (0, max(0, steps - self.bands))) ** 2)
        return np.cumsum(_divided(np.eye(1, steps)[0], self.coefficients) ** 2)

    def error(self, steps: int, workload: Workload = SUMS) -> float:
        """The root mean square, over all steps, of the noise in the weights: for noise of deviation 1 in each z_t.

        Args:
            steps: The length of the run.
            workload: What the optimizer makes of the gradients. Default: their sums.

        Returns:
            The error, in units of noise multiplier and clip norm.
        """
        form = _form(workload, steps)
        if self.inverse:
            x = np.pad(self.coefficients[: len(form)], (0, max(0, len(form) - self.bands)))
        else:
            x = _divided(np.eye(1, len(form))[0], self.coefficients)
        return math.sqrt(float(x @ form @ x))


#: Independent noise: what DP-SGD has.
INDEPENDENT = Correlation((1.0,))


@dataclasses.dataclass(frozen=True)
class Choice:
    """Noise in the weights that is predicted for one number of bands.

    Args:
        bands: The number of bands.
        noise_multiplier: What the price needs.
        error: The predicted root mean squared noise in the weights, in units of that of DP-SGD at the same price.
    """

    bands: int
    noise_multiplier: float
    error: float


def choose_bands(
    size: int,
    batch_size: int,
    steps: int,
    *,
    epsilon: float,
    delta: float,
    adjacency: str = "zero-out",
    workload: Workload = SUMS,
) -> list[Choice]:
    """What each number of bands (1, 2, 4, … and as many as fit) is predicted to bring at the same ε; the best first.

    Everything is public. One band is DP-SGD; it is chosen where correlation does not help. The prediction counts noise
    only, not what a larger batch of a group or the order of records does.

    Args:
        size: The number of units.
        batch_size: The expected number of units in a step.
        steps: The length of the run.
        epsilon: The ε that the run may cost.
        delta: The δ of the guarantee.
        adjacency: Which data sets are neighbours. Default: ``"zero-out"``.
        workload: What the optimizer makes of the gradients. Default: their sums.

    Returns:
        One choice for each number of bands, by predicted error.

    Example:
        >>> [choice.bands for choice in choose_bands(1000, 100, 100, epsilon=0.1, delta=1e-6)][0]
        1
    """
    found: list[Choice] = []
    most = min(MOST_BANDS, steps, size // batch_size or 1)
    for bands in (*(2**k for k in range(most.bit_length()) if 2**k < most), most):
        rate, rounds = bands * batch_size / size, -(-steps // bands)

        def family(noise: float, rate: float = rate, rounds: int = rounds) -> Mechanism:
            return PoissonSampled(Gaussian(noise), min(rate, 1.0)) * rounds

        noise = calibrate(family, epsilon=epsilon, delta=delta, adjacency=adjacency)
        found.append(Choice(bands, noise, noise * best_banded(bands, steps, workload).error(steps, workload)))
        if found[-1].error > 1.1 * min(c.error for c in found):
            break  # more bands than the best lose more and more
    plain = found[0].error
    return sorted((dataclasses.replace(c, error=c.error / plain) for c in found), key=lambda c: (c.error, c.bands))


@functools.lru_cache(maxsize=64)
def best_banded(bands: int, steps: int, workload: Workload = SUMS) -> Correlation:
    """The column of norm 1 and this length with the least noise in the weights.

    Args:
        bands: The number of diagonals of C.
        steps: The length of the run.
        workload: What the optimizer makes of the gradients. Default: their sums.

    Returns:
        The correlation, by a quasi-Newton search from the square root of the matrix of sums.

    Example:
        >>> best_banded(2, 100).coefficients[1] > 0.5
        True
    """
    if bands == 1:
        return INDEPENDENT
    from scipy.optimize import minimize

    form = _form(workload, steps)
    start = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, bands))])

    def loss(rest: Array) -> tuple[float, Array]:
        """log of error² · norm² as a function of c_1, c_2, … at c_0 = 1, and its gradient."""
        c = np.concatenate([[1.0], rest])
        value, slope = _squared_error_and_slope(c, form)
        norm = float(c @ c)
        if not (math.isfinite(value) and np.isfinite(slope).all()):  # C's inverse grows without end
            return 1e10, np.zeros(len(rest))
        return math.log(value) + math.log(norm), (slope / value + 2 * c / norm)[1:]

    found = minimize(loss, start[1:], jac=True, method="L-BFGS-B", options={"maxiter": 300, "ftol": 1e-11})
    best = of_norm_one(np.concatenate([[1.0], found.x])).coefficients
    # in few digits, so that another machine finds the same; cut off, so that no column gets longer
    return Correlation(tuple(math.trunc(c * 1e6) / 1e6 for c in best))


def of_norm_one(column: Array) -> Correlation:
    """This column, scaled to a norm that is not above 1."""
    scale = (1 - SHORTER) / math.sqrt(math.fsum(column**2))
    return Correlation(tuple((column * scale).tolist()))


def _divided(series: Array, by: Sequence[float]) -> Array:
    """The power series divided by a polynomial."""
    from scipy.linalg.blas import dtbsv  # scipy.signal would bring scipy.stats along: a second, and 50 MB

    column = np.asarray(by, dtype=float)[: len(series), None]
    return np.asarray(dtbsv(len(column) - 1, np.broadcast_to(column, (len(column), len(series))), series, lower=1))


@functools.lru_cache(maxsize=1)
def _form(workload: Workload, steps: int) -> Array:
    """Q: noise of which every x_s is Σ_k b_k z_{s-k} has the mean square b·Qb in the weights, over all steps.

    Q_kl is the mean over t of Σ_j h_t(j+k) h_t(j+l), where h_t(s) is what a gradient of step s has moved the weights by
    after step t. It is summed over lags, with the states of a linear system: forwards what a gradient made of the state
    at step s, backwards what a state at step s makes of the weights from there on.
    """
    count, size = min(steps, LONGEST), min(steps, SEEN)
    before, by = workload.states(count)
    with np.errstate(over="ignore", invalid="ignore"):
        ahead, onwards = np.empty((count, 2)), np.zeros((2, 2))
        for s in range(count - 1, -1, -1):
            onwards = (before[s + 1].T @ onwards @ before[s + 1] if s + 1 < count else onwards) + [[0, 0], [0, 1]]
            ahead[s] = onwards @ by[s]
        state, lags, total = np.zeros((2, size)), np.zeros((size, size)), np.zeros(size)
        for s in range(count):  # column d of the state: what a gradient of step s - d made of it
            state[:, 1:] = before[s] @ state[:, :-1]
            state[:, 0] = by[s]
            now = ahead[s] @ state
            total += now
            if s < size:
                lags[s] = now
    later = total - np.cumsum(lags, 0) + lags  # row k: the sum from step k on, by lag
    form = np.zeros((size, size))
    for k in range(size):
        form[k, : k + 1] = form[: k + 1, k] = later[k, k::-1] / count
    if size < count:  # whoever has not forgotten a noise by now would remember it on
        last = np.arange(size - MOST_BANDS, size)
        form[last, last] += form[-1, -1] * (count - size) / MOST_BANDS
    if not (np.isfinite(form).all() and form[0, 0] > 0):  # no learning, or weights that explode: nothing to choose by
        return _form(SUMS, steps)
    return form


def _squared_error_and_slope(column: Array, form: Array) -> tuple[float, Array]:
    """b·Qb for the first column b of C⁻¹, and its derivative by each number of C's column."""
    size, by = len(form), column.tolist()
    with np.errstate(over="ignore", invalid="ignore"):
        b = _divided(np.eye(1, size)[0], by)
        moved = form @ b
        back = _divided(2 * moved[::-1], by)[::-1]  # the transposed inverse of C, applied to the slope in b
        slope = -np.array([back[j:] @ b[: size - j] for j in range(len(column))])
        return float(b @ moved), slope
