"""How do I fit with pure ε? The functional mechanism as estimators: least squares and an order-2 logistic loss."""

from __future__ import annotations

import math
from typing import Any

from tacit.accounting.base import is_number
from tacit.cluster import Ray
from tacit.ledger import Ledger
from tacit.linear_model import functional
from tacit.linear_model.base import PrivateEstimator, Task
from tacit.linear_model.linear import LinearBase
from tacit.linear_model.logistic import LinearClassifier
from tacit.linear_model.solve import REPAIRS, Solution, solve

QUADRATIC = "the quadratic loss stands for the logistic one. Use LogisticRegression"


class _Functional(PrivateEstimator):
    """The parameters and the release that both estimators share."""

    coef_norm: float
    repair: str
    sensitivity: str
    split: Any
    privacy_: Any

    def _released(self, task: Task, what: str) -> tuple[Solution, functional.FunctionalPlan, Any, Any]:
        guess = self.coef_norm
        if not (is_number(guess) and 0 < guess < math.inf):
            raise ValueError(f"coef_norm must be a positive number, not {guess!r}")
        if self.repair not in REPAIRS:
            raise ValueError(f"repair must be one of {', '.join(REPAIRS)}, not {self.repair!r}")
        plan = functional.plan(
            task.shape,
            task.width,
            task.epsilon,
            task.adjacency,
            sensitivity=self.sensitivity,
            split=self.split,
            guess=guess,
        )
        mechanism = plan.mechanism(task.unit)
        with self._paid(task, mechanism, what) as charge:
            gram, vector = plan.release(task.source)
        self.privacy_ = self._guarantee(
            task, mechanism, f"functional mechanism, {self.sensitivity} sensitivities", charge
        )
        solution = solve(gram, vector, plan.noises, repair=self.repair, guess=guess, intercept=self.fit_intercept)
        return solution, plan, gram, vector


class FunctionalLinearRegression(_Functional, LinearBase):
    """Private least squares by the functional mechanism: Laplace noise on the coefficients of the loss.

    One pass over the rows. :class:`tacit.linear_model.LinearRegression` with ``delta > 0`` is more accurate.

    Guarantee:
        Pure ε (δ = 0) for one unit under ``adjacency``. The Laplace noise is scaled to the exact L1 sensitivity of Σxxᵀ
        and -2Σyx together, times ``max_rows``. Proof: ``docs/explanation/sensitivity.md``.

    Args:
        epsilon: The ε that the fit costs, positive.
        bounds: Public bounds of the features: a :class:`tacit.schema.Schema`; a pair (lower, upper) of numbers, or of
            sequences with one number for each feature; a list of pairs, one for each feature; or a mapping from column
            names to pairs. Rows are clipped to them. Required.
        target_bounds: Public bounds (lower, upper) of y, to which it is clipped. Required unless ``bounds`` is a schema
            with a numeric target.
        split: How ε is divided between the quadratic and the linear part: ``"variance"`` (least variance of the
            gradient at ``coef_norm``), ``"equal"``, ``"sensitivity"`` (in proportion to the sensitivities), the
            fraction ε1/ε, or the pair (ε1, ε2).
        sensitivity: ``"exact"``, or ``"textbook"`` for the larger published constants (2D² and 4D).
        repair: How a matrix made indefinite by noise becomes usable: ``"shrink"``, ``"ridge"``, ``"trim"``,
            ``"ridge+trim"``, ``"positive"`` or ``"none"``. Post-processing: it costs nothing.
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
        covariance_: Covariance of intercept and coefficients, NaN where the noise hides one. No residuals are paid for,
            so it assumes the largest errors that the bounds allow: intervals are wide.
        prediction_noise_: About how far the noise of the fit moves predictions, the root mean square over its rows in
            the unit of y, against the same fit without noise. Computed from released values, so it costs nothing.
        r2_noise_: NaN: nothing is paid for how far y spreads.
        noise_in_words_: Both as a sentence.
        privacy_: What the fit cost, a :class:`tacit.accounting.Privacy`.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).uniform(-1, 1, (20_000, 2))
        >>> private = FunctionalLinearRegression(epsilon=1.0, bounds=(-1, 1), target_bounds=(-3, 3))
        >>> private.fit(x, 2 * x[:, 0] - x[:, 1]).coef_.round(0).tolist(), private.privacy_.delta
        ([2.0, -1.0], 0.0)
    """

    delta = 0.0

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        bounds: Any = None,
        target_bounds: Any = None,
        split: Any = "variance",
        sensitivity: str = "exact",
        repair: str = "shrink",
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

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> FunctionalLinearRegression:
        """Charge the fit, then fit to a table in memory, a file or a stream.

        Args:
            X: The private table: an array, a data frame or, with a schema, anything that :meth:`Schema.encode
                <tacit.schema.Schema.encode>` reads. Or a path (Parquet, CSV, Arrow), a polars
                ``LazyFrame`` or a pyarrow source, read in one pass.
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
        self._carry_out(task)
        return self

    def _carry_out(self, task: Task) -> None:
        solution, plan, gram, vector = self._released(task, "functional mechanism")
        found = self._estimated(task, gram, vector, plan.noises, self._most(task, gram), None)
        self._publish(task, solution.theta, found)
        self._announce(task, self._unpaid(task, gram, vector, plan.noises), solution)


class FunctionalLogisticRegression(_Functional, LinearClassifier):
    """Private binary classification by the functional mechanism on a quadratic approximation of the logistic loss.

    The order-2 Taylor expansion of the loss is least squares of 4(y - 1/2) on x, up to a factor and a constant. We fit
    2y - 1, which lies in [-1, 1], and double the coefficients; fitting 4(y - 1/2) would double the linear sensitivity.

    Guarantee:
        Pure ε (δ = 0) for one unit under ``adjacency``, as in :class:`FunctionalLinearRegression`. Labels found in y
        because ``classes`` is missing are treated as public.

    Args:
        epsilon: The ε that the fit costs, positive.
        bounds: Public bounds of the features: a :class:`tacit.schema.Schema`; a pair (lower, upper) of numbers, or of
            sequences with one number for each feature; a list of pairs, one for each feature; or a mapping from column
            names to pairs. Rows are clipped to them. Required.
        classes: The two public labels. None takes those of the schema's target, else 0 and 1; other labels found in y
            are then treated as public, and ``privacy_`` says so.
        split: How ε is divided between the quadratic and the linear part: ``"variance"`` (least variance of the
            gradient at ``coef_norm``), ``"equal"``, ``"sensitivity"`` (in proportion to the sensitivities), the
            fraction ε1/ε, or the pair (ε1, ε2).
        sensitivity: ``"exact"``, or ``"textbook"`` for the larger published constants (2D² and 4D).
        repair: How a matrix made indefinite by noise becomes usable: ``"shrink"``, ``"ridge"``, ``"trim"``,
            ``"ridge+trim"``, ``"positive"`` or ``"none"``. Post-processing: it costs nothing.
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
        coef_: The coefficients, 1 x features, in the units of the table.
        intercept_: The constant.
        classes_: The two labels.
        privacy_: What the fit cost, a :class:`tacit.accounting.Privacy`.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).uniform(-1, 1, (20_000, 2))
        >>> private = FunctionalLogisticRegression(epsilon=1.0, bounds=(-1, 1)).fit(x, (x[:, 0] > 0).astype(int))
        >>> bool(private.score(x, x[:, 0] > 0) > 0.9)
        True
    """

    delta = 0.0

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        bounds: Any = None,
        classes: Any = None,
        split: Any = "variance",
        sensitivity: str = "exact",
        repair: str = "shrink",
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

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> FunctionalLogisticRegression:
        """Charge the fit, then fit to a table in memory, a file or a stream.

        Args:
            X: The private table: an array, a data frame or, with a schema, anything that :meth:`Schema.encode
                <tacit.schema.Schema.encode>` reads. Or a path (Parquet, CSV, Arrow), a polars
                ``LazyFrame`` or a pyarrow source, read in one pass.
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
        self._carry_out(task)
        return self

    def _carry_out(self, task: Task) -> None:
        solution, *_ = self._released(task, "functional mechanism")
        self._publish(task, 2 * solution.theta[:, None], None, QUADRATIC)

    def scale_target(self, y: Any) -> Any:
        """The labels as -1 and +1, each by itself.

        Args:
            y: One label for each row.

        Returns:
            -1 for the first class and +1 for the second.

        Raises:
            ValueError: If there are not two classes, or y has a label that is not among them.
        """
        if len(self.classes_) != 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is multiclass; LogisticRegression "
                "takes several classes"
            )
        return 2 * super().scale_target(y) - 1

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


__all__ = ["FunctionalLinearRegression", "FunctionalLogisticRegression"]
