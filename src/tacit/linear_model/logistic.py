"""How do I fit a class on a table privately? Logistic regression, binary and multinomial."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from tacit import accounting as acc
from tacit.accounting.base import is_number
from tacit.ledger import Ledger
from tacit.linear_model import inference, releases
from tacit.linear_model.base import PrivateEstimator, Task, unscale
from tacit.linear_model.descent import DescentBudget, RowSource, descend
from tacit.linear_model.inference import Estimate
from tacit.linear_model.intervals import WithIntervals
from tacit.linear_model.moments import to_grid
from tacit.linear_model.objective import (
    MOST_EPSILON,
    Further,
    Perturbation,
    Slope,
    curvature,
    either,
    minimise,
    perturb,
)
from tacit.linear_model.rows import Rows, check_weights
from tacit.linear_model.solve import Noise, solve
from tacit.linear_model.stream import Stream
from tacit.schema import Boolean, Numeric, Schema, Unit

Floats = npt.NDArray[np.float64]

METHODS = ("auto", "gradient-descent", "objective-perturbation", "dp-sgd")
#: The length of the coefficient vector guessed by default: log-odds are larger than scaled numbers.
GUESS = 2.0
#: The typical second derivative of the logistic loss; p(1-p) is at most 1/4 and .2 at p = .28.
CURVATURE = 0.2
#: What follows objective perturbation: numbers of rows in each class, the Hessian, and what the shape of the errors
#: does to intervals. Parts of μ².
COUNTS, HESSIAN, SCORES = Further(0.01, math.sqrt(2)), Further(0.2, math.sqrt(2)), Further(0.04, math.sqrt(2))
#: The parts of ε and δ that are left to count the rows by which the default chooses its method.
CHOICE_EPSILON, CHOICE_DELTA = 0.02, 0.1
#: Objective perturbation may be expected to add this much to the log-loss of a prediction; above it, steps are taken.
TOLERATED = 0.001
#: The typical change of a row's log-odds by the noise, up to which the loss counts as quadratic.
MOST_ODDS = 0.1
#: Newton's method for K classes has this many coefficients at most; beyond it the default is gradient descent.
MOST_COEFFICIENTS = 500
CLIPS = (
    "gradient descent clips large errors, and DP-SGD clips and stops early. Use method='auto' or "
    "'objective-perturbation'"
)
FEW = (
    "there are too few rows for so many coefficients at this epsilon, so the default took gradient descent, which "
    "predicts better but clips. method='objective-perturbation' has intervals, for the price of another fit"
)
NOISY = "the noise moves log-odds by more than normal intervals allow for. Use a larger epsilon, or fewer columns"
PURE = "they need a release of the Hessian with Gaussian noise. Use delta > 0"
SEVERAL = "they are there for two classes. Fit one class against the others, each for its own part of the budget"


class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Public class names, and predictions from scores that are linear in what rows are encoded to."""

    _target = "class"
    _theta: Floats
    classes_: npt.NDArray[Any]
    privacy_: acc.Privacy

    def _encode_target(self, y: Any) -> tuple[Any, float, float, tuple[str, ...]]:
        if y is None:
            self.classes_ = self._declared()
            return None, 0.0, 1.0, ()
        self.classes_, assumed = self._classes(y)
        return self.scale_target(y), 0.0, 1.0, assumed

    def _counts_as_number(self) -> bool:
        by_schema = isinstance(self.bounds, Schema) and self.bounds.classes and self.classes is None
        return not by_schema and self.classes_.dtype.kind in "biuf"

    def _declared(self) -> npt.NDArray[Any]:
        if self.classes is not None:
            classes = np.asarray(list(self.classes))
        elif isinstance(self.bounds, Schema) and self.bounds.classes:
            boolean = isinstance(self.bounds.target, Boolean)
            classes = np.array([False, True]) if boolean else np.asarray(self.bounds.classes)
        else:
            classes = np.array([0, 1])
        if len(classes) < 2 or len(set(classes.tolist())) != len(classes):
            raise ValueError(
                "classes must list at least two labels, each once: with one class there is nothing to learn"
            )
        return np.sort(classes) if self.classes is not None else classes

    def _classes(self, y: Any) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
        """The labels: declared, or 0 and 1, or those found in y, which are then treated as public."""
        if self.classes is not None or (isinstance(self.bounds, Schema) and self.bounds.classes):
            return self._declared(), ()
        check_classification_targets(np.asarray(y))
        found = np.unique(np.asarray(y))
        if found.dtype.kind in "biuf" and set(found.tolist()) <= {0, 1}:
            return np.array([0, 1], dtype=found.dtype), ()
        if len(found) < 2:
            raise ValueError(f"{type(self).__name__} can't train when only one class is present.")
        return found, ("the labels found in y are treated as public (classes= declares them)",)

    def scale_target(self, y: Any) -> Floats:
        """Class numbers, each label by itself.

        Args:
            y: One label for each row.

        Returns:
            The place of each label in ``classes_``, as floats.

        Raises:
            ValueError: If y is not one-dimensional, or has a label that is not among the classes.
        """
        labels = np.asarray(y)
        if labels.ndim != 1:
            raise ValueError(f"y must hold one label for each row, not an array of {labels.ndim} dimensions")
        declared = self.classes_
        if isinstance(self.bounds, Schema) and self.bounds.classes and self.classes is None:
            numbers = _by_schema(self.bounds, labels)
        else:
            places = {label: i for i, label in enumerate(declared.tolist())}
            numbers = np.array([places.get(label, -1) for label in labels.tolist()], dtype=np.float64)
        if (numbers < 0).any():
            raise ValueError(
                "y has labels that are not among the classes: declare every label in classes= or in the schema. "
                "See: tacit explain category-unknown"
            )
        return numbers

    def decision_function(self, X: Any) -> Floats:
        """Scores of new rows, clipped to the bounds as in the fit.

        Args:
            X: Rows with the columns of the fit.

        Returns:
            The log-odds of the second class for each row; with several classes, one score for each row and class.
        """
        x = self._encoded(X)
        if self.fit_intercept:
            x = np.column_stack([np.ones(len(x)), x])
        scores = x @ self._theta
        return np.asarray(scores[:, 0] if scores.shape[1] == 1 else scores)

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the classes.

        Args:
            X: Rows with the columns of the fit.

        Returns:
            Rows x classes, in the order of ``classes_``.
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        return np.asarray(softmax(scores, axis=1))

    def predict_log_proba(self, X: Any) -> Floats:
        """Logarithms of the probabilities of the classes.

        Args:
            X: Rows with the columns of the fit.

        Returns:
            Rows x classes, in the order of ``classes_``.
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([log_expit(-scores), log_expit(scores)])
        return np.asarray(log_softmax(scores, axis=1))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable class of each row.

        Args:
            X: Rows with the columns of the fit.

        Returns:
            One of ``classes_`` for each row.
        """
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[best])


class LinearClassifier(WithIntervals, PrivateClassifier):
    """Coefficients in the units of the table, and intervals."""

    coef_: Floats
    intercept_: Floats

    def _publish(self, task: Task, theta: Floats, found: Estimate | None, why: str = "") -> None:
        """θ is features x 1 (binary) or features x classes."""
        named = found.reference if found is not None else None
        theta = (named or inference.reference(task.features, len(theta))).of(theta)
        matrix = unscale(theta, task.features, 0.0, 1.0, intercept=self.fit_intercept)
        values = matrix @ theta
        self._set_names(task.features)
        self.coef_, self.intercept_ = values[1:].T.copy(), values[0].copy()
        self._keep_intervals(matrix, found, why, np.zeros(len(matrix)))
        self._theta = theta


class LogisticRegression(LinearClassifier):
    """Private logistic regression, binary or multinomial.

    Guarantee:
        A fit is (ε, δ)-differentially private for one unit under ``adjacency``; ``privacy_`` states the price. The unit
        is one row or, with ``groups``, everything that one id owns (at most ``max_rows`` rows). ``"dp-sgd"`` treats the
        number of rows as public: its price is for zero-out. Labels found in y because ``classes`` is missing are
        treated as public. Proofs: ``docs/explanation/objective-perturbation.md``, ``docs/explanation/sensitivity.md``.

    Args:
        epsilon: The ε that the fit may cost, positive.
        delta: The δ that the fit may cost, in [0, 1). Keep it well below one over the number of units. 0 asks for pure
            ε (objective perturbation).
        bounds: Public bounds of the features: a :class:`tacit.schema.Schema`; a pair (lower, upper) of numbers, or of
            sequences with one number for each feature; a list of pairs, one for each feature; or a mapping from column
            names to pairs. Rows are clipped to them. Required.
        classes: The public labels, at least two. None takes those of the schema's target, else 0 and 1; other labels
            found in y are then treated as public, and ``privacy_`` says so.
        row_norm: Public bound of the L2 norm of a row's features, in place of ``bounds``: for embeddings. Longer rows
            are shortened to it. Noise then grows with this norm, not with the number of columns.
        class_weight: None counts every row once. A mapping gives each class a public weight, at no further price: the
            largest weight counts as one row, the others as less. ``"balanced"`` weighs by one over the classes' numbers
            of rows, which are counted with noise for 1% of the budget.
        method: ``"objective-perturbation"`` (Gaussian, or pure ε at ``delta=0``; without bias for two classes),
            ``"gradient-descent"`` (whitened, 15 steps; it clips) or ``"dp-sgd"`` (200 steps; add-remove, no weights or
            groups). ``"auto"`` takes objective perturbation, unless several classes have more than 500 coefficients
            and δ > 0. The data never decide.
        adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``. None takes the ledger's, or add-remove without
            a ledger.
        alpha: Weight of a public ridge (α/2)|θ|² on the scaled coefficients, 0 or more. Objective perturbation needs a
            ridge of its own and takes the larger one; ``"dp-sgd"`` has none.
        fit_intercept: Whether to fit a constant. If False, columns are divided by their largest absolute bound and not
            centred, so that the fit goes through the origin of the table.
        coef_norm: Public guess of the length of the coefficient vector after scaling; 2 by default. Coefficients that
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

    Attributes:
        coef_: The coefficients, in the units of the table: 1 x features, or classes x features.
        intercept_: One constant, or one for each class.
        classes_: The labels, in the order of the probabilities.
        covariance_: Covariance of intercept and coefficients, the intercept first; NaN where there is no interval.
        privacy_: What the fit cost, a :class:`tacit.accounting.Privacy`.

    Example:
        >>> x = np.random.default_rng(0).uniform(-1, 1, (20_000, 2))
        >>> private = LogisticRegression(epsilon=1.0, bounds=(-1, 1)).fit(x, (x[:, 0] > 0).astype(int))
        >>> bool(private.score(x, x[:, 0] > 0) > 0.9), private.privacy_.upper <= 1.0
        (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        bounds: Any = None,
        classes: Any = None,
        row_norm: float | None = None,
        class_weight: Any = None,
        method: str = "auto",
        adjacency: str | None = None,
        alpha: float = 0.0,
        fit_intercept: bool = True,
        coef_norm: float = GUESS,
        fill: Any = None,
        max_weight: float | None = None,
        max_rows: int | None = None,
        unit: str | None = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> LogisticRegression:
        """Charge the fit, then fit to a table in memory or a file.

        Args:
            X: The private table: an array, a data frame or, with a schema, anything that :meth:`Schema.encode
                <tacit.schema.Schema.encode>` reads. Or a path, a polars ``LazyFrame`` or a
                pyarrow source that can be read many times.
            y: The target, one label for each row, or the name of its column. None takes the target of the schema.
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
        for name, value, least in (("alpha", self.alpha, True), ("coef_norm", self.coef_norm, False)):
            good = is_number(value) and (value > 0 or (least and value == 0)) and value < math.inf
            if not good:
                raise ValueError(f"{name} must be a number, {'0 or more' if least else 'above 0'}, not {value!r}")
        self._carry_out(task)
        return self

    def _carry_out(self, task: Task) -> None:
        {
            "adaptive": self._adaptive,
            "gradient-descent": self._descent,
            "objective-perturbation": self._objective,
            "dp-sgd": self._sgd,
        }[self._chosen(task)](task)

    def _weights(self, target: Floats, sample_weight: Any) -> tuple[Any, float | None]:
        given = self.class_weight
        if given is None or given == "balanced":
            return sample_weight, self.max_weight
        if not isinstance(given, Mapping) or set(given) != set(self.classes_.tolist()):
            raise ValueError(
                f"class_weight must be 'balanced' or a public weight for each of the classes, not {given!r}"
            )
        each = np.array([given[label] for label in self.classes_.tolist()], dtype=np.float64)
        if not (np.isfinite(each).all() and (each > 0).all()):
            raise ValueError("class_weight must be positive and finite for every class")
        largest = float(each.max()) * (1.0 if sample_weight is None else float(self.max_weight or 0.0))
        weights = each[target.astype(int)]
        if sample_weight is not None:
            weights = weights * np.minimum(check_weights(sample_weight, len(target), self.max_weight), 1.0)
            weights = weights * float(self.max_weight)
        return weights, largest

    def _chosen(self, task: Task) -> str:
        """The method, by the budget, the kind of source and the number of coefficients alone."""
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, not {self.method!r}")
        method = str(self.method)
        if method == "auto":
            large = len(self.classes_) > 2 and task.width * len(self.classes_) > MOST_COEFFICIENTS
            method = "gradient-descent" if large and task.delta > 0 else "adaptive"
            if task.delta == 0 or self.class_weight == "balanced":
                method = "objective-perturbation"
        if task.delta == 0 and method != "objective-perturbation":
            raise ValueError(f"method={method!r} uses Gaussian noise, which needs delta > 0")
        if isinstance(task.source, Stream) and (method == "dp-sgd" or task.source.passes == 1):
            raise ValueError(
                "a file or stream needs method='objective-perturbation' or 'gradient-descent', and a source that can "
                "be read many times"
            )
        if self.class_weight is not None and isinstance(task.source, Stream):
            raise ValueError("class_weight needs the whole table in memory: give a data frame instead of a file")
        if self.class_weight == "balanced" and (method != "objective-perturbation" or task.delta == 0):
            raise ValueError(
                "class_weight='balanced' counts the classes privately, which needs method='objective-perturbation' and "
                "delta > 0. Give public weights instead: class_weight={label: weight, …}"
            )
        return method

    def _adaptive(self, task: Task) -> None:
        """Count the rows privately; then objective perturbation, or gradient steps where its noise would cost accuracy.

        Guarantee: the count is one Gaussian release (sensitivity 1 for adding a row, 0 for replacing one, charged as
        1). What follows is charged as the dearer of both methods at every ε, and chosen by the count and public facts.
        """
        made, steps, counting, mechanism = _choice(
            self._slope(task), task.epsilon, task.delta, task.adjacency, task.unit, float(self.alpha)
        )
        with self._paid(task, mechanism, "objective perturbation or gradient descent") as charge:
            rows = sum((float(len(piece)) for piece in task.source.batches()), 0.0)
            noisy = float(releases.gaussian_sum(np.array(rows), task.shape.bounded_sum(1.0), counting))
            size, norm = task.width, task.shape.norm_squared
            added = made.sigma**2 * size**2 / (2 * max(noisy, 1.0) ** 2 * norm * CURVATURE)
            if added <= TOLERATED:
                theta, found, why = self._perturbed(task, made)
            else:
                theta, found, why = self._stepped(task, steps), None, FEW
        self._publish(task, theta, found, why)
        self.privacy_ = self._guarantee(task, mechanism, "objective perturbation or whitened gradient descent", charge)

    def _descent(self, task: Task) -> None:
        noise, mechanism = releases.calibrated(
            lambda noise: DescentBudget(noise, task.adjacency).mechanism(task.unit),
            task.epsilon,
            task.delta,
            task.adjacency,
        )
        with self._paid(task, mechanism, "gradient descent") as charge:
            theta = self._stepped(task, noise)
        self._publish(task, theta, None, CLIPS)
        self.privacy_ = self._guarantee(task, mechanism, "whitened DP gradient descent", charge)

    def _stepped(self, task: Task, noise: float) -> Floats:
        """Coefficients by whitened gradient descent."""
        classes = len(self.classes_)
        binary = classes == 2
        return descend(
            task.source,
            binary_residual if binary else softmax_residual,
            DescentBudget(noise, task.adjacency),
            count=task.count,
            outputs=1 if binary else classes,
            curvature=CURVATURE if binary else 0.8 / classes,
            guess=self.coef_norm,
            penalty=np.full(task.width, float(self.alpha)) if self.alpha else None,
        )[0]

    def _objective(self, task: Task) -> None:
        slope = self._slope(task)
        further = _further(slope, task.delta) or ((COUNTS,) if self.class_weight == "balanced" else ())
        made = perturb(slope, task.epsilon, task.delta, task.adjacency, task.unit, float(self.alpha), further)
        with self._paid(task, made.mechanism, "objective perturbation") as charge:
            theta, found, why = self._perturbed(task, made)
        self._publish(task, theta, found, why)
        kind = "pure-ε" if task.delta == 0 else "Gaussian"
        self.privacy_ = self._guarantee(task, made.mechanism, f"{kind} objective perturbation", charge)

    def _slope(self, task: Task) -> Slope:
        """What one person can do to the gradient of the loss."""
        slots = task.shape.rows * (2 if task.adjacency == "replace-one" else 1)
        return Slope(task.shape.norm_squared, len(self.classes_), slots, task.shape.rows)

    def _perturbed(self, task: Task, made: Perturbation) -> tuple[Floats, Estimate | None, str]:
        """Objective perturbation and, for two classes and δ > 0, what takes its ridge away and makes intervals.

        Guarantee: ``made.mechanism`` composes the minimiser's privacy profile with the Gaussian releases that follow:
        the classes' numbers of rows (sensitivity 1 for adding a row, √2 for replacing one), Σ4p(1-p)xxᵀ (R², √2 R²)
        and the clipped shares in the variances (C, √2 C).
        """
        source: RowSource = task.source
        classes = len(self.classes_)
        counts = self._counts(source, made.further[0]) if made.further else np.zeros(0)
        if self.class_weight == "balanced":
            assert isinstance(source, Rows)
            source = _balanced(source, counts, 3 * made.further[0] * task.shape.rows)
        noise = made.noise(task.width * (1 if classes == 2 else classes))
        theta = made.hide(minimise(source, noise, made.ridge, made.tolerance, classes))
        if made.pure or classes > 2:
            return theta, None, PURE if made.pure else SEVERAL
        theta, found = self._debiased(task, source, made, theta, float(counts.sum()))
        return theta, found, "" if found is not None else NOISY

    def _counts(self, source: RowSource, multiplier: float) -> Floats:
        """Noisy numbers of rows in the classes.

        Guarantee: one Gaussian release; adding a row moves one number by 1, replacing one moves two.
        """
        size = len(self.classes_)
        exact = sum((np.bincount(rows.y.astype(int), minlength=size) for rows in source.batches()), np.zeros(size))
        return releases.gaussian_sum(np.asarray(exact, dtype=np.float64), source.shape.bounded_sum(1.0), multiplier)

    def _debiased(
        self, task: Task, source: RowSource, made: Perturbation, theta: Floats, count: float
    ) -> tuple[Floats, Estimate | None]:
        """Coefficients without the pull of the ridge that objective perturbation needs, and what intervals are made of:
        nothing where the noise is too large for any.

        With H = Σp(1-p)xxᵀ, the minimiser without ridge λ and noise b is θ* = θ + H⁻¹(λθ + b) to first order. Where no
        prediction depends on θ, it is b/λ: that part is left out, as the noise of H would carry it everywhere.
        """
        theta = inference.without_open(theta, task.features)
        _, hessian, scores = made.further
        release = releases.GaussianMatrix(task.shape, task.width)
        noisy = release.release(curvature(source, theta), hessian) / 4
        noise = Noise(release.scale(hessian) / 4 / math.sqrt(2), made.sigma)
        alpha = float(self.alpha)
        penalty = np.full(task.width, alpha) if alpha else None
        pulled = (made.ridge - alpha) * theta[:, 0]
        edge = 2 * math.sqrt(task.width) * noise.matrix
        values, vectors = np.linalg.eigh(noisy)
        floored = (vectors * np.maximum(values, max(edge / 2, 1e-9))) @ vectors.T
        moved = float(np.linalg.norm(np.linalg.solve(floored + alpha * np.eye(task.width), pulled)))
        solution = solve(
            floored,
            (floored + made.ridge * np.eye(task.width)) @ theta[:, 0],
            noise,
            guess=self.coef_norm,
            intercept=self.fit_intercept,
            penalty=penalty,
            moved=moved,
        )
        found = inference.estimate(
            noisy,
            noisy @ theta[:, 0] + made.ridge * theta[:, 0],
            noise.matrix,
            noise.vector,
            moved=theta[:, 0],
            open_=inference.open_directions(task.features, task.width),
            guess=self.coef_norm,
            penalty=penalty,
        )
        odds = math.sqrt(float(np.trace(found.noise)) * task.shape.norm_squared / task.width)
        found = found.referred(
            inference.reference(task.features, task.width, np.diag(noisy), math.sqrt(2) * noise.matrix)
        )
        rows = max(count, task.width + 1.0)
        plain = found.even(np.asarray(noisy), noise.matrix)
        ratios = inference.score_sums(source, binary_residual, theta[:, 0], found, plain, 1.0, rows, scores)
        # The Hessian is that of noisy coefficients: beyond this, the same noise would choose what is seen.
        stated = inference.with_sample(found, plain, ratios) if odds <= MOST_ODDS else None
        return solution.theta[:, None], stated

    def _sgd(self, task: Task) -> None:
        from tacit.linear_model import by_sgd

        assert isinstance(task.source, Rows)
        if task.source.root is not None or task.shape.rows > 1 or task.adjacency != "add-remove":
            raise ValueError("method='dp-sgd' takes add-remove only, without weights or groups: use another method")
        theta, privacy = by_sgd.train(
            task, len(self.classes_), float(self.alpha), self.ledger, f"{type(self).__name__}: DP-SGD"
        )
        self._publish(task, theta, None, CLIPS)
        self.privacy_ = privacy


def _further(slope: Slope, delta: float) -> tuple[Further, ...]:
    """What follows objective perturbation for intervals: nothing for several classes or pure ε."""
    return (COUNTS, HESSIAN, SCORES) if delta > 0 and slope.classes == 2 else ()


@functools.lru_cache(maxsize=64)
def _choice(
    slope: Slope, epsilon: float, delta: float, adjacency: str, unit: str, alpha: float
) -> tuple[Perturbation, float, float, acc.Mechanism]:
    """Objective perturbation, the noise of descent and of the count that chooses between both, and the whole price."""
    most = min(epsilon, MOST_EPSILON)
    inner, inner_delta = most * (1 - CHOICE_EPSILON), delta * (1 - CHOICE_DELTA)
    made = perturb(slope, inner, inner_delta, adjacency, unit, alpha, _further(slope, delta))
    steps, _ = releases.calibrated(
        lambda noise: DescentBudget(noise, adjacency).mechanism(unit), inner, inner_delta, adjacency
    )
    second = either(made, 1 / steps, inner, adjacency, unit)
    counting, mechanism = releases.calibrated(
        lambda noise: acc.Gaussian(noise, replace=1.0, unit=unit) + second, most, delta, adjacency
    )
    return made, steps, counting, mechanism


def _balanced(rows: Rows, counts: Floats, least: float) -> Rows:
    """Rows weighted by one over the (noisy) number of their class, the largest weight being 1."""
    each = 1 / np.maximum(counts, least)
    root = np.sqrt(each / each.max())[rows.y.astype(int)]
    old = np.ones(len(rows)) if rows.root is None else rows.root
    shape = dataclasses.replace(rows.shape, whole=False)
    return Rows(to_grid(rows.x * root[:, None]), rows.y, shape, old * root)


def binary_residual(score: Floats, y: Floats) -> Floats:
    return np.asarray(expit(score) - y[:, None])


def softmax_residual(scores: Floats, y: Floats) -> Floats:
    p = softmax(scores, axis=1)
    p[np.arange(len(p)), y.astype(int)] -= 1.0
    return np.asarray(p)


def _by_schema(schema: Schema, labels: npt.NDArray[Any]) -> Floats:
    """Class numbers of a categorical or boolean target, read as the schema reads a column."""
    target = schema.target
    assert target is not None
    only = Schema((Numeric("_", 0, 1), target), Unit(schema.unit.name))
    encoded, _ = only.encode({"_": np.zeros(len(labels)), target.name: labels})
    return np.asarray(encoded.target, dtype=np.float64)


__all__ = ["LinearClassifier", "LogisticRegression", "PrivateClassifier"]
