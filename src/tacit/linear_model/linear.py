"""How do I fit a number on a table privately? Linear regression and ridge regression."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from tacit import accounting as acc
from tacit.accounting.base import is_number
from tacit.cluster import Ray
from tacit.ledger import Ledger
from tacit.linear_model import functional, releases
from tacit.linear_model.base import PrivateEstimator, Task, unscale
from tacit.linear_model.descent import DescentBudget, descend
from tacit.linear_model.moments import ROUNDING
from tacit.linear_model.solve import Noise, covariance, solve
from tacit.linear_model.stream import Stream

Floats = npt.NDArray[np.float64]

#: Parts of μ² for the smallest eigenvalue, the Gram matrix and Σyx; the first needs little.
ADASSP_SHARES = (0.05, 0.475, 0.475)
METHODS = ("auto", "gradient-descent", "adassp", "sufficient-statistics", "functional")


class LinearBase(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """Coefficients in the units of the table, predictions and intervals."""

    coef_: Floats
    intercept_: float
    covariance_: Floats
    privacy_: acc.Privacy

    def _publish(self, task: Task, theta: Floats, spread: Floats) -> None:
        """Store released values: coefficients and their covariance (the constant first) in the table's units."""
        matrix = unscale(theta, task.features, task.middle, task.half_width, intercept=self.fit_intercept)
        found = matrix @ theta
        self._set_names(task.features)
        self.coef_ = found[1:]
        self.intercept_ = float(found[0]) + task.middle
        self.covariance_ = matrix @ spread @ matrix.T
        # Predictions are made in scaled units, where rows are clipped as in the fit.
        self._theta, self._middle, self._half_width = theta, task.middle, task.half_width

    def predict(self, X: Any) -> Floats:
        """Predict the target of new rows, clipped to the bounds as in the fit.

        Args:
            X: Rows with the columns of the fit.

        Returns:
            One number for each row, in the unit of y.
        """
        x = self._encoded(X)
        if self.fit_intercept:
            value = x @ self._theta[1:] + self._theta[0]
        else:
            value = x @ self._theta
        return np.asarray(self._middle + self._half_width * value)

    def confidence_interval(self, level: float = 0.95, *, intercept: bool = False) -> Floats:
        """Intervals for the coefficients that cover the uncertainty of the sample and of the noise.

        They are computed from released values, so they cost nothing. They are normal approximations.

        Gradient descent clips large errors. If the shape of the errors changes with the features (incomes, counts), it
        fits a slightly different line, and these intervals are about that line. For inference about least squares use
        ``method="sufficient-statistics"``, which clips nothing within the bounds.

        Args:
            level: The coverage, between 0 and 1; 0.95 by default.
            intercept: Whether the first row is the interval of the intercept. By default only coefficients are listed.

        Returns:
            One row (lower, upper) for each coefficient, in the order of ``coef_``.

        Raises:
            ValueError: If ``level`` is not between 0 and 1.
        """
        check_is_fitted(self)
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, not {level!r}")
        half = norm.ppf(0.5 + level / 2) * np.sqrt(np.maximum(np.diag(self.covariance_), 0.0))
        centre = np.r_[self.intercept_, self.coef_]
        both = np.column_stack([centre - half, centre + half])
        return both if intercept else both[1:]


class LinearRegression(LinearBase):
    """Private least squares with intervals.

    Guarantee:
        A fit is (ε, δ)-differentially private for one unit under ``adjacency``; ``privacy_`` states the price. The unit
        is one row or, with ``groups``, everything that one id owns (at most ``max_rows`` rows). All attributes that end
        in an underscore are covered. Sensitivities and proofs: ``docs/explanation/sensitivity.md``.

    Args:
        epsilon: The ε that the fit may cost, positive.
        delta: The δ that the fit may cost, in [0, 1). Keep it well below one over the number of units. 0 asks for pure
            ε (the functional mechanism).
        bounds: Public bounds of the features: a :class:`tacit.schema.Schema`; a pair (lower, upper) of numbers, or of
            sequences with one number for each feature; a list of pairs, one for each feature; or a mapping from column
            names to pairs. Rows are clipped to them. Required.
        target_bounds: Public bounds (lower, upper) of y, to which it is clipped. Required unless ``bounds`` is a schema
            with a numeric target.
        method: ``"gradient-descent"`` (whitened, 15 steps), ``"adassp"``, ``"sufficient-statistics"`` (one pass) or
            ``"functional"`` (pure ε). ``"auto"`` takes the functional mechanism at δ = 0, else sufficient statistics
            for a file or stream, else gradient descent. The data never decide.
        adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``. None takes the ledger's, or add-remove without
            a ledger.
        fit_intercept: Whether to fit a constant. If False, columns are divided by their largest absolute bound and not
            centred, so that the fit goes through the origin of the table.
        coef_norm: Public guess of the length of the coefficient vector after scaling; 1 by default. Coefficients that
            the noise hides are shrunk according to it. Not a bound: a wrong guess costs accuracy, never privacy.
        fill: Public constants for missing values: one number, one for each feature, or a mapping from columns to
            numbers. None refuses missing values. With a schema, declare ``fill`` there.
        max_weight: The largest sample weight, a public number to which weights are clipped. Required with
            ``sample_weight``.
        max_rows: How many rows of one unit take part, the first ones in the table. Required with ``groups``; the noise
            grows with it.
        unit: Name of the unit. None means ``"record"``, or ``"person"`` with ``groups``; another name needs ``groups``.
            A schema brings its own.
        ledger: Where the fit is charged before anything is released. None charges nowhere and refuses repeated fits.
        dataset: Name of the data in the ledger. None is enough if the ledger has one data set.
        backend: ``"local"``, or ``"ray"`` (or a :class:`tacit.cluster.Ray`) to sum Parquet or Arrow files or a data set
            of Ray on a cluster. The sums are the same to the last bit; the noise is added once, here.

    Attributes:
        coef_: The coefficients, in the units of the table.
        intercept_: The constant, in the unit of y.
        covariance_: Covariance of intercept and coefficients, the intercept first; sample and noise together.
        privacy_: What the fit cost, a :class:`tacit.accounting.Privacy`.

    Example:
        >>> x = np.random.default_rng(0).uniform(0, 10, (20_000, 2))
        >>> y = 3 * x[:, 0] - x[:, 1] + 5
        >>> private = LinearRegression(epsilon=1.0, bounds=(0, 10), target_bounds=(-10, 40)).fit(x, y)
        >>> private.coef_.round(0).tolist(), private.privacy_.upper <= 1.0
        ([3.0, -1.0], True)
        >>> private.confidence_interval(0.95).shape
        (2, 2)
        >>> LinearRegression().fit(x, y)
        Traceback (most recent call last):
        ValueError: bounds are missing: ...
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        bounds: Any = None,
        target_bounds: Any = None,
        method: str = "auto",
        adjacency: str | None = None,
        fit_intercept: bool = True,
        coef_norm: float = 1.0,
        fill: Any = None,
        max_weight: float | None = None,
        max_rows: int | None = None,
        unit: str | None = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        backend: str | Ray = "local",
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> LinearRegression:
        """Charge the fit, then fit to a table in memory, a file or a stream.

        Args:
            X: The private table: an array, a data frame or, with a schema, anything that :meth:`Schema.encode
                <tacit.schema.Schema.encode>` reads. Or a path (Parquet, CSV, Arrow), a polars
                ``LazyFrame`` or a pyarrow source, read in one pass or, by gradient descent, 17.
            y: The target, one number for each row, or the name of its column. None takes the target of the schema.
            sample_weight: One weight for each row, 0 or more. Needs ``max_weight``.
            groups: The id of the unit that owns each row, none missing. Needs ``max_rows``. Leave it out if the schema
                names a column of ids.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If bounds are missing, or a parameter or the table is not as described.
            SearchRefused: If a search, cross-validation or ensemble fits this estimator without a ledger.
            BudgetExceeded: If the ledger has not enough budget left. Nothing is released then.
        """
        task = self._task(X, y, sample_weight, groups)
        method = self._chosen(task)
        if not (is_number(self.coef_norm) and 0 < self.coef_norm < math.inf):
            raise ValueError(f"coef_norm must be a positive number, not {self.coef_norm!r}")
        {
            "gradient-descent": self._descent,
            "adassp": self._adassp,
            "sufficient-statistics": self._statistics,
            "functional": self._functional,
        }[method](task)
        return self

    def _chosen(self, task: Task) -> str:
        """The method, by the budget and the kind of source alone."""
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, not {self.method!r}")
        if self.method != "auto":
            if task.delta == 0 and self.method != "functional":
                raise ValueError(f"method={self.method!r} uses Gaussian noise, which needs delta > 0; use 'functional'")
            return str(self.method)
        if task.delta == 0:
            return "functional"
        return "sufficient-statistics" if isinstance(task.source, Stream) else "gradient-descent"

    def _penalty(self, task: Task) -> Floats | None:
        """The diagonal of a ridge in scaled units; none here."""
        return None

    # -- the methods -------------------------------------------------------------------------------------------------

    def _descent(self, task: Task) -> None:
        noise, mechanism = releases.calibrated(
            lambda noise: DescentBudget(noise, task.adjacency).mechanism(task.unit),
            task.epsilon,
            task.delta,
            task.adjacency,
        )
        if isinstance(task.source, Stream):
            task.source.check_passes()
        with self._paid(task, mechanism, "gradient descent") as charge:
            result = descend(
                task.source,
                lambda value, target: value - target[:, None],
                DescentBudget(noise, task.adjacency),
                count=task.count,
                guess=self.coef_norm,
                penalty=self._penalty(task),
            )
        rows = max(result.count - task.width, 1.0)
        variance = result.spread * result.count / rows
        sampled = np.linalg.inv(result.gram)
        self._publish(task, result.theta[:, 0], result.covariance + variance * sampled)
        self.privacy_ = self._guarantee(task, mechanism, "whitened DP gradient descent", charge)

    def _statistics(self, task: Task) -> None:
        factor = _target_factor(task.shape.norm_squared, self.coef_norm)
        release = releases.GaussianMatrix(task.shape, task.width + 1, factor)
        shift = release.replace if task.adjacency == "replace-one" else 1.0
        noise, mechanism = releases.calibrated(
            lambda noise: acc.Gaussian(noise * shift, replace=release.replace, unit=task.unit),
            task.epsilon,
            task.delta,
            task.adjacency,
        )
        with self._paid(task, mechanism, "second moments") as charge:
            exact = releases.moments(task.source, target=True)
            scaling = np.r_[np.ones(task.width), factor]  # a power of two: exact
            noisy = release.release(exact * np.outer(scaling, scaling), noise * shift) / np.outer(scaling, scaling)
        scale = release.scale(noise * shift)
        size = task.width
        gram, vector, square = noisy[:size, :size], noisy[:size, size], float(noisy[size, size])
        self._solved(task, gram, vector, square, Noise(scale / math.sqrt(2), scale / math.sqrt(2) / factor))
        self.privacy_ = self._guarantee(task, mechanism, "second moments with symmetric Gaussian noise", charge)

    def _solved(self, task: Task, gram: Floats, vector: Floats, square: float, noise: Noise) -> None:
        penalty = self._penalty(task)
        solution = solve(gram, vector, noise, guess=self.coef_norm, intercept=self.fit_intercept, penalty=penalty)
        theta = solution.theta
        count: float = task.count or (float(gram[0, 0]) if self.fit_intercept else math.nan)
        if not count >= task.width + 1:  # unknown, or hidden by the noise: as many as the target's square allows
            count = max(square, task.width + 1.0)
        squares = max(float(square - 2 * theta @ vector + theta @ gram @ theta), 0.0)
        variance = min(squares / max(count - task.width, 1.0), 1.0)
        plain = solution.matrix if penalty is None else solution.matrix - np.diag(penalty)
        self._publish(task, theta, covariance(solution, plain, variance, noise))

    def _adassp(self, task: Task) -> None:
        """Wang (2018), with Gaussian noise calibrated exactly and the noise's own spectral edge as the ridge wanted."""
        shape, size = task.shape, task.width
        release = releases.GaussianMatrix(shape, size)
        lowest = shape.smallest_eigenvalue() * (1 + 2.0**-10)  # room for the rounding of the eigenvalue
        linear = shape.rows * math.sqrt(shape.norm_squared) + size * ROUNDING
        replaced = task.adjacency == "replace-one"

        def parts(noise: float) -> tuple[float, float, float]:
            return (
                releases.share(noise, ADASSP_SHARES[0], 1.0),
                releases.share(noise, ADASSP_SHARES[1], release.replace if replaced else 1.0),
                releases.share(noise, ADASSP_SHARES[2], 2.0 if replaced else 1.0),
            )

        def family(noise: float) -> acc.Mechanism:
            one, two, three = parts(noise)
            return (
                acc.Gaussian(one, replace=1.0, unit=task.unit)
                + acc.Gaussian(two, replace=release.replace, unit=task.unit)
                + acc.Gaussian(three, replace=2.0, unit=task.unit)
            )

        noise, mechanism = releases.calibrated(family, task.epsilon, task.delta, task.adjacency)
        one, two, three = parts(noise)
        with self._paid(task, mechanism, "AdaSSP") as charge:
            exact = releases.moments(task.source, target=True)
            smallest = float(np.linalg.eigvalsh(exact[:size, :size])[0])
            eigenvalue = float(releases.gaussian_sum(np.array(smallest), lowest, one))
            gram = release.release(exact[:size, :size], two)
            vector = releases.gaussian_sum(exact[:size, size], linear, three)
        scale = release.scale(two)
        edge = 2 * math.sqrt(size) * scale / math.sqrt(2)
        surely = max(eigenvalue - norm.ppf(0.95) * lowest * one, 0.0)
        ridge = max(edge - surely, 0.0)
        noises = Noise(scale / math.sqrt(2), linear * three)
        penalty = self._penalty(task)
        solution = solve(gram, vector, noises, repair="positive", ridge=ridge, penalty=penalty)
        # No sum of y² was paid for: the variance of y is at most 1 in scaled units, and the fit explains the rest.
        # Without a constant a private number of rows is not known: then nothing counts as explained.
        count: float = task.count or (max(float(gram[0, 0]), 1.0) if self.fit_intercept else math.inf)
        explained = float(solution.theta @ gram @ solution.theta) / count
        variance = min(max(1.0 - explained, 0.0), 1.0)
        plain = solution.matrix if penalty is None else solution.matrix - np.diag(penalty)
        self._publish(task, solution.theta, covariance(solution, plain, variance, noises))
        self.privacy_ = self._guarantee(task, mechanism, "AdaSSP", charge)

    def _functional(self, task: Task) -> None:
        plan = functional.plan(task.shape, task.width, task.epsilon, task.adjacency, guess=self.coef_norm)
        mechanism = plan.mechanism(task.unit)
        with self._paid(task, mechanism, "functional mechanism") as charge:
            gram, vector = plan.release(task.source)
        solution = solve(
            gram,
            vector,
            plan.noises,
            guess=self.coef_norm,
            intercept=self.fit_intercept,
            penalty=self._penalty(task),
        )
        variance = 1.0 / 3  # not paid for: that of a target spread evenly over its bounds
        self._publish(task, solution.theta, covariance(solution, solution.matrix, variance, plan.noises))
        self.privacy_ = self._guarantee(task, mechanism, "functional mechanism, exact sensitivities", charge)


class Ridge(LinearRegression):
    """Private ridge regression: least squares with the penalty ``alpha``·|coef|², as in scikit-learn.

    The intercept is not penalised. Intervals are about the expected value of the penalised coefficients.

    Guarantee:
        That of :class:`LinearRegression`: (ε, δ) for one unit under ``adjacency``. The penalty is public and costs
        nothing.

    Args:
        alpha: Weight of the penalty, 0 or more, on coefficients in the units of the table (categories and booleans as
            encoded).
        epsilon: The ε that the fit may cost, positive.
        delta: The δ that the fit may cost, in [0, 1). 0 asks for pure ε (the functional mechanism).
        bounds: Public bounds of the features: a :class:`tacit.schema.Schema`; a pair (lower, upper) of numbers, or of
            sequences with one number for each feature; a list of pairs, one for each feature; or a mapping from column
            names to pairs. Rows are clipped to them. Required.
        target_bounds: Public bounds (lower, upper) of y, to which it is clipped. Required unless ``bounds`` is a schema
            with a numeric target.
        method: As in :class:`LinearRegression`: ``"auto"``, ``"gradient-descent"``, ``"adassp"``,
            ``"sufficient-statistics"`` or ``"functional"``.
        adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``. None takes the ledger's, or add-remove without
            a ledger.
        fit_intercept: Whether to fit a constant. If False, columns are divided by their largest absolute bound and not
            centred, so that the fit goes through the origin of the table.
        coef_norm: Public guess of the length of the coefficient vector after scaling; 1 by default. Coefficients that
            the noise hides are shrunk according to it. Not a bound: a wrong guess costs accuracy, never privacy.
        fill: Public constants for missing values: one number, one for each feature, or a mapping from columns to
            numbers. None refuses missing values. With a schema, declare ``fill`` there.
        max_weight: The largest sample weight, a public number to which weights are clipped. Required with
            ``sample_weight``.
        max_rows: How many rows of one unit take part, the first ones in the table. Required with ``groups``; the noise
            grows with it.
        unit: Name of the unit. None means ``"record"``, or ``"person"`` with ``groups``; another name needs ``groups``.
            A schema brings its own.
        ledger: Where the fit is charged before anything is released. None charges nowhere and refuses repeated fits.
        dataset: Name of the data in the ledger. None is enough if the ledger has one data set.
        backend: ``"local"``, or ``"ray"`` (or a :class:`tacit.cluster.Ray`) to sum Parquet or Arrow files or a data set
            of Ray on a cluster. The sums are the same to the last bit; the noise is added once, here.

    Attributes:
        coef_: The coefficients, in the units of the table.
        intercept_: The constant, in the unit of y.
        covariance_: Covariance of intercept and coefficients, the intercept first.
        privacy_: What the fit cost, a :class:`tacit.accounting.Privacy`.

    Example:
        >>> x = np.random.default_rng(0).uniform(-1, 1, (5000, 2))
        >>> strong = Ridge(alpha=1e6, epsilon=1.0, bounds=(-1, 1), target_bounds=(-3, 3)).fit(x, 2 * x[:, 0])
        >>> bool(abs(strong.coef_).max() < 0.1)
        True
    """

    def __init__(
        self,
        alpha: float = 1.0,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        bounds: Any = None,
        target_bounds: Any = None,
        method: str = "auto",
        adjacency: str | None = None,
        fit_intercept: bool = True,
        coef_norm: float = 1.0,
        fill: Any = None,
        max_weight: float | None = None,
        max_rows: int | None = None,
        unit: str | None = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        backend: str | Ray = "local",
    ) -> None:
        self._keep(locals())

    def _penalty(self, task: Task) -> Floats | None:
        if not (is_number(self.alpha) and 0 <= self.alpha < math.inf):
            raise ValueError(f"alpha must be a number, 0 or more, not {self.alpha!r}")
        weight = 1.0 if self.max_weight is None else 1.0 / self.max_weight
        diagonal: Floats = weight * float(self.alpha) / task.features.half_width**2
        return np.r_[0.0, diagonal] if self.fit_intercept else diagonal


def _target_factor(norm_squared: float, guess: float) -> float:
    """The power of two nearest to the c that minimises (R² + c²)²(1/c² + |θ|²), the noise in the gradient."""
    best = (math.sqrt(1 + 8 * guess**2 * norm_squared) - 1) / (4 * guess**2)
    return 2.0 ** round(math.log2(math.sqrt(best)))
