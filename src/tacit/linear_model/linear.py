"""How do I fit a number on a table privately? Linear regression and ridge regression."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, norm
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from tacit import accounting as acc
from tacit.accounting.base import is_number
from tacit.cluster import Ray
from tacit.ledger import Ledger
from tacit.linear_model import functional, inference, releases
from tacit.linear_model.base import PrivateEstimator, Task, unscale
from tacit.linear_model.descent import STEPS, DescentBudget, Start, descend, walk
from tacit.linear_model.inference import Estimate
from tacit.linear_model.intervals import WithIntervals
from tacit.linear_model.moments import ROUNDING
from tacit.linear_model.second_moments import Known, MomentsOf
from tacit.linear_model.solve import Noise, Solution, noise_covariance, prediction_noise, solve
from tacit.linear_model.stream import Stream

Floats = npt.NDArray[np.float64]

#: Parts of μ² for the smallest eigenvalue, the Gram matrix and Σyx; the first needs little.
ADASSP_SHARES = (0.05, 0.475, 0.475)
METHODS = ("auto", "gradient-descent", "adassp", "sufficient-statistics", "functional")
#: Parts of μ² in the default: a first look at the second moments, and what the errors' shape does to the intervals.
#: The rest goes to more of the same, or to gradient steps.
FIRST_SHARE, SCORE_SHARE = 0.4, 0.05
#: The noise of second moments may add this part of the errors' variance to a prediction's. Above it, steps follow.
TOLERATED = 0.005
#: Steps are believed unless second moments contradict them with this confidence.
CONTRADICTED = 0.999
#: A coefficient's penalty counts as no more than so many rows: it is 0 by then, and others keep their digits.
MOST_PENALTY = 1e12
CLIPS = (
    "gradient descent clips large errors, so its coefficients can be off by more than any interval made of them would "
    "say. Use method='auto' or 'sufficient-statistics'"
)


class LinearBase(RegressorMixin, WithIntervals, PrivateEstimator):  # type: ignore[misc]
    """Coefficients in the units of the table, predictions and intervals."""

    coef_: Floats
    intercept_: float
    covariance_: Floats
    prediction_noise_: float
    r2_noise_: float
    privacy_: acc.Privacy

    def _publish(self, task: Task, theta: Floats, found: Estimate | None, why: str = "") -> None:
        """Store released values in the table's units: coefficients, and what intervals are made of."""
        named = found.reference if found is not None else None
        theta = (named or inference.reference(task.features, len(theta))).of(theta)
        matrix = unscale(theta, task.features, task.middle, task.half_width, intercept=self.fit_intercept)
        values = matrix @ theta
        self._set_names(task.features)
        self.coef_ = values[1:]
        self.intercept_ = float(values[0]) + task.middle
        self._keep_intervals(matrix, found, why, np.r_[task.middle, np.zeros(len(values) - 1)])
        # Predictions are made in scaled units, where rows are clipped as in the fit.
        self._theta, self._middle, self._half_width = theta, task.middle, task.half_width

    def _announce(
        self, task: Task, known: Known, solution: Solution, steps: tuple[Floats, Floats] | None = None
    ) -> None:
        """Say how far the noise moves predictions, by released values: post-processing, which costs nothing.

        ``solution`` is what was published, or what ``steps`` began with: the covariances before and after them.
        """
        count, penalty = self._counted(task, known), self._penalty(task)
        spread, doubt = known.spread(count) if self.fit_intercept else (count, count)
        most, longest = min(max(spread, 0.0) + doubt, count), count * task.shape.norm_squared
        moved = prediction_noise(solution, known.noise, longest=longest, spread=most, penalty=penalty, steps=steps)
        self.prediction_noise_ = task.half_width * math.sqrt(moved / count)
        self.r2_noise_ = moved / spread if spread > 2 * doubt else math.nan

    @property
    def noise_in_words_(self) -> str:
        """What the noise of this fit does to its predictions, as a sentence."""
        check_is_fitted(self)
        moved = f"{float(f'{self.prediction_noise_:.3g}'):,.12g}"
        r2 = "the noise hides what that is of R²" if math.isnan(self.r2_noise_) else f"R² -{self.r2_noise_:.2g}"
        return f"the noise of this fit moves predictions by about {moved} ({r2})"

    def _html_repr(self) -> str:
        drawn = str(super()._html_repr())
        return f"{drawn}<p>{self.noise_in_words_}.</p>" if hasattr(self, "prediction_noise_") else drawn

    def _penalty(self, task: Task) -> Floats | None:
        """The diagonal of a ridge in scaled units; none here."""
        return None

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

    def _counted(self, task: Task, known: Known) -> float:
        return known.count(task.count, intercept=self.fit_intercept)

    def _unpaid(self, task: Task, gram: Floats, vector: Floats, noise: Noise) -> Known:
        """What is known where nothing was paid for Σy²: |y| is at most 1."""
        most = self._most(task, gram)
        return Known(gram, vector, most, noise, most)

    def _seen(self, task: Task, gram: Floats, vector: Floats, noise: Noise, penalty: Floats | None) -> Estimate:
        """Unshrunk coefficients in the directions that stand out of the noise."""
        return inference.estimate(
            gram,
            vector,
            noise.matrix,
            noise.vector,
            open_=inference.open_directions(task.features, task.width),
            guess=self.coef_norm,
            penalty=penalty,
        )

    def _widest(
        self,
        task: Task,
        gram: Floats,
        vector: Floats,
        noise: Noise,
        squares: float,
        penalty: Floats | None,
        seen: Estimate | None = None,
    ) -> tuple[Estimate, Floats, Floats]:
        """Unshrunk coefficients, and what :func:`inference.with_sample` takes for the widest intervals that errors with
        ``squares`` in all can ask for.
        """
        found = seen or self._seen(task, gram, vector, noise, penalty)
        whose = inference.reference(task.features, task.width, np.diag(gram), math.sqrt(2) * noise.matrix)
        found = found.referred(whose)
        plain = found.even(gram, noise.matrix)
        return found, plain, inference.widest(found, plain, squares, task.shape, task.features)

    def _estimated(
        self, task: Task, gram: Floats, vector: Floats, noise: Noise, squares: float, penalty: Floats | None
    ) -> Estimate:
        """Unshrunk coefficients with the widest intervals."""
        return inference.with_sample(*self._widest(task, gram, vector, noise, squares, penalty))

    def _most(self, task: Task, gram: Floats) -> float:
        """The largest Σ r² of least squares where nothing was paid for it: |y| is at most 1, and r = y for θ = 0."""
        count: float = task.count or (float(gram[0, 0]) if self.fit_intercept else float(np.trace(gram)))
        return max(count, 1.0)


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
        method: ``"sufficient-statistics"`` (one pass), ``"adassp"``, ``"gradient-descent"`` (whitened, 15 steps; it
            predicts well at small ε, but clips and has no intervals) or ``"functional"`` (pure ε). ``"auto"`` takes the
            functional mechanism at δ = 0 and sufficient statistics for a file or stream. Else it spends 40% of the
            budget on second moments, which intervals are made of, and lets them decide whether the rest goes to more of
            them or to gradient steps. That choice is part of the price.
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
        max_rows: How many rows of one unit take part, drawn at random from more. Required with ``groups``; the noise
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
        covariance_: Covariance of intercept and coefficients without shrinkage, the intercept first; sample and noise
            together. NaN where there is no interval.
        prediction_noise_: About how far the noise of the fit moves predictions, the root mean square over its rows in
            the unit of y, against the same fit without noise. Computed from released values, so it costs nothing.
        r2_noise_: About how much the noise takes from R² on the rows of the fit. NaN where it hides how far y spreads.
        noise_in_words_: Both as a sentence.
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
                ``LazyFrame`` or a pyarrow source, read in one pass or, by gradient descent, 16.
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
        if not (is_number(self.coef_norm) and 0 < self.coef_norm < math.inf):
            raise ValueError(f"coef_norm must be a positive number, not {self.coef_norm!r}")
        self._carry_out(task)
        return self

    def _carry_out(self, task: Task) -> None:
        {
            "adaptive": self._adaptive,
            "gradient-descent": self._descent,
            "adassp": self._adassp,
            "sufficient-statistics": self._statistics,
            "functional": self._functional,
        }[self._chosen(task)](task)

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
        counted = self.fit_intercept or task.count is not None
        return "sufficient-statistics" if isinstance(task.source, Stream) or not counted else "adaptive"

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
            theta, after, start = descend(
                task.source,
                _residual,
                DescentBudget(noise, task.adjacency),
                count=task.count,
                guess=self.coef_norm,
                penalty=self._penalty(task),
            )
        self._publish(task, theta[:, 0], None, CLIPS)
        known, solution = _before(start, self._penalty(task))
        self._announce(task, known, solution, (noise_covariance(solution, known.noise), after))
        self.privacy_ = self._guarantee(task, mechanism, "whitened DP gradient descent", charge)

    def _statistics(self, task: Task) -> None:
        """Second moments once, and what the errors' shape does to intervals where the rows are in memory."""
        sums = MomentsOf(task.shape, task.width, self.coef_norm)
        again = not isinstance(task.source, Stream)  # one pass over a file is enough
        shift = math.sqrt(2) if task.adjacency == "replace-one" else 1.0
        parts = [1 - SCORE_SHARE, SCORE_SHARE] if again else [1.0]

        def family(noise: float) -> acc.Mechanism:
            each = [
                acc.Gaussian(releases.share(noise, part, shift), replace=math.sqrt(2), unit=task.unit) for part in parts
            ]
            return each[0] + each[1] if again else each[0]

        noise, mechanism = releases.calibrated(family, task.epsilon, task.delta, task.adjacency)
        with self._paid(task, mechanism, "second moments") as charge:
            exact = releases.moments(task.source, target=True)
            known = sums.release(exact, releases.share(noise, parts[0], shift))
            solution = self._solution(known, self._penalty(task))
            score = releases.share(noise, parts[1], shift) if again else None
            found = self._intervals(task, known, solution.theta, score)
        self._publish(task, solution.theta, found)
        self._announce(task, known, solution)
        self.privacy_ = self._guarantee(task, mechanism, "second moments with symmetric Gaussian noise", charge)

    def _adaptive(self, task: Task) -> None:
        """A first look at second moments; then more of them, or gradient steps where their noise would cost accuracy.

        Guarantee: the first release and whichever second one it leads to are Gaussian; both second ones have the same
        μ under the task's adjacency, so that their composition costs the same either way. The choice follows from
        released values alone.
        """
        sums = MomentsOf(task.shape, task.width, self.coef_norm)
        replaced = task.adjacency == "replace-one"
        shift, rest = math.sqrt(2) if replaced else 1.0, 1 - FIRST_SHARE - SCORE_SHARE

        def family(noise: float) -> acc.Mechanism:
            return (
                acc.Gaussian(releases.share(noise, FIRST_SHARE, shift), replace=math.sqrt(2), unit=task.unit)
                # Steps move by 2 under replace-one, and moments by √2: the dearer one under each adjacency.
                + acc.Gaussian(releases.share(noise, rest, shift), replace=shift if replaced else 2.0, unit=task.unit)
                + acc.Gaussian(releases.share(noise, SCORE_SHARE, shift), replace=math.sqrt(2), unit=task.unit)
            )

        noise, mechanism = releases.calibrated(family, task.epsilon, task.delta, task.adjacency)
        penalty = self._penalty(task)
        with self._paid(task, mechanism, "second moments, then moments or steps") as charge:
            exact = releases.moments(task.source, target=True)
            known = sums.release(exact, releases.share(noise, FIRST_SHARE, shift))
            solution = first = self._solution(known, penalty)
            steps = seen = None
            if self._precise(task, known, first, FIRST_SHARE / (FIRST_SHARE + rest)):
                more = sums.release(exact, releases.share(noise, rest, shift))
                known = known.mixed(more, rest / (FIRST_SHARE + rest))
                solution = self._solution(known, penalty)
                theta = solution.theta
            else:
                multiplier = releases.share(noise, rest / STEPS, 2.0 if replaced else 1.0)
                theta, steps, seen = self._stepped(task, known, first, multiplier, penalty)
            found = self._intervals(task, known, theta, releases.share(noise, SCORE_SHARE, shift), seen)
        self._publish(task, theta, found)
        self._announce(task, known, solution, steps)
        self.privacy_ = self._guarantee(task, mechanism, "second moments, then more of them or gradient steps", charge)

    def _solution(self, known: Known, penalty: Floats | None) -> Solution:
        """The shrunk solution, for predictions."""
        return solve(
            known.gram,
            known.vector,
            known.noise,
            guess=self.coef_norm,
            intercept=self.fit_intercept,
            penalty=penalty,
            eigen=known.eigen,
        )

    def _precise(self, task: Task, known: Known, solution: Solution, part: float) -> bool:
        """Whether second moments with ``part`` of the present noise variance predict about as well as least squares.

        What is expected is that of coefficients as large as guessed, not of those that were found: a choice by whether
        this b̂ looks like noise would leave the larger noise to one side, and intervals there would not cover.
        """
        values, theta = solution.values, solution.theta
        size = max(self.coef_norm**2, float(theta @ theta))
        inside = known.noise.vector**2 + known.noise.matrix**2 * size
        hidden = inside * len(theta) / self.coef_norm**2
        risk = part * float((values * inside / (values**2 + hidden)).sum())
        return risk <= TOLERATED * known.squares(theta)

    def _stepped(
        self, task: Task, known: Known, first: Solution, multiplier: float, penalty: Floats | None
    ) -> tuple[Floats, tuple[Floats, Floats] | None, Estimate]:
        """Gradient steps from the first solution on, with the covariances of errors before and after them, unless
        second moments contradict where they lead; and what those moments see.
        """
        start = Start(
            known.gram,
            known.noise.matrix * math.sqrt(2),
            self._counted(task, known),
            first.theta[:, None],
            noise_covariance(first, known.noise),
            known.eigen,
        )
        found, after = walk(task.source, _residual, start, multiplier, penalty=penalty)
        theta = found[:, 0]
        seen = self._seen(task, known.gram, known.vector, known.noise, penalty)
        apart = seen.theta - (np.eye(len(theta)) - seen.hidden) @ theta
        apart = seen.directions.T @ apart
        values, vectors = np.linalg.eigh(seen.directions.T @ seen.noise @ seen.directions)
        clear = values > len(theta) * np.finfo(np.float64).eps * float(np.abs(values).max(initial=0.0))
        distance = float(((apart @ vectors[:, clear]) ** 2 / values[clear]).sum())
        contradicted = clear.any() and distance > chi2.ppf(CONTRADICTED, int(clear.sum()))
        return (first.theta, None, seen) if contradicted else (theta, (start.covariance, after), seen)

    def _intervals(
        self, task: Task, known: Known, theta: Floats, score: float | None, seen: Estimate | None = None
    ) -> Estimate:
        """Unshrunk estimates with noise and sample; ``score`` is the noise multiplier of a release about the errors."""
        penalty = self._penalty(task)
        count = self._counted(task, known)
        squares = known.squares(theta)
        found, plain, most = self._widest(task, known.gram, known.vector, known.noise, squares, penalty, seen)
        if score is None:
            return inference.with_sample(found, plain, most)
        spread = squares / max(count - task.width, 1.0)
        ratios = inference.score_sums(task.source, _residual, theta, found, plain, spread, count, score)
        return inference.with_sample(found, spread * plain, np.minimum(ratios, most / spread))

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
        # Where the smallest eigenvalue is large and the noise has hidden it all the same, half the edge stands for it.
        floor = max(edge / 2, surely)
        solution = solve(gram, vector, noises, repair="positive", ridge=ridge, penalty=penalty, floor=floor)
        found = self._estimated(task, gram, vector, noises, self._most(task, gram), penalty)
        self._publish(task, solution.theta, found)
        self._announce(task, self._unpaid(task, gram, vector, noises), solution)
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
        found = self._estimated(task, gram, vector, plan.noises, self._most(task, gram), self._penalty(task))
        self._publish(task, solution.theta, found)
        self._announce(task, self._unpaid(task, gram, vector, plan.noises), solution)
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
        max_rows: How many rows of one unit take part, drawn at random from more. Required with ``groups``; the noise
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
        prediction_noise_: About how far the noise of the fit moves predictions, the root mean square over its rows in
            the unit of y, against the same fit without noise. Computed from released values, so it costs nothing.
        r2_noise_: About how much the noise takes from R² on the rows of the fit. NaN where it hides how far y spreads.
        noise_in_words_: Both as a sentence.
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
        diagonal = np.minimum(weight * float(self.alpha) / task.features.half_width**2, MOST_PENALTY)
        return np.r_[0.0, diagonal] if self.fit_intercept else diagonal


def _before(start: Start, penalty: Floats | None) -> tuple[Known, Solution]:
    """What is known before steps where only the Gram matrix was released: a prior of the coefficients."""
    size, beside = len(start.gram), start.scale / math.sqrt(2)
    prior, floor = np.diag(start.covariance), math.sqrt(size) * beside  # half the noise's edge
    matrix = start.gram + floor * np.eye(size)
    values, vectors = np.linalg.eigh(matrix)
    matrix = matrix + (0.0 if penalty is None else np.diag(penalty))
    known = Known(start.gram, start.gram @ start.theta[:, 0], start.count, Noise(beside, 0.0), start.count)
    return known, Solution(start.theta[:, 0], np.zeros((size, size)), matrix, prior, prior, values, (values, vectors))


def _residual(value: Floats, target: Floats) -> Floats:
    return np.asarray(value - target[:, None])
