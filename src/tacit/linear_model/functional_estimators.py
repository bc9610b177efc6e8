"""The functional mechanism as estimators: private least squares and an order-2 logistic loss, with pure ε."""

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
from tacit.linear_model.solve import REPAIRS, Solution, covariance, solve


class _Functional(PrivateEstimator):
    """The parameters and the release that both estimators share."""

    coef_norm: float
    repair: str
    sensitivity: str
    split: Any
    privacy_: Any

    def _released(self, task: Task, what: str) -> tuple[Solution, functional.FunctionalPlan]:
        guess = self.coef_norm
        if not (is_number(guess) and 0 < guess < math.inf):
            raise ValueError(f"coef_norm is a positive number, not {guess!r}")
        if self.repair not in REPAIRS:
            raise ValueError(f"repair is one of {', '.join(REPAIRS)}, not {self.repair!r}")
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
        return solve(gram, vector, plan.noises, repair=self.repair, guess=guess, intercept=self.fit_intercept), plan


class FunctionalLinearRegression(_Functional, LinearBase):
    """Private least squares by the functional mechanism: Laplace noise on the loss's coefficients, pure ε.

    ``split`` divides ε between the quadratic and the linear part: ``"variance"`` (default), ``"equal"``,
    ``"sensitivity"``, the fraction ε1/ε, or the pair (ε1, ε2). ``coef_norm`` is the public guess of |θ| that the
    default uses. ``sensitivity`` is ``"exact"`` or ``"textbook"`` (2D² and 4D). ``repair`` makes an indefinite matrix
    usable: ``"shrink"``, ``"ridge"``, ``"trim"``, ``"ridge+trim"``, ``"positive"`` or ``"none"``. The rest is as in
    :class:`tacit.linear_model.LinearRegression`; one pass over the rows.

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
        """Fit to a table, a data frame, or a file or stream (y: the target's column)."""
        task = self._task(X, y, sample_weight, groups)
        solution, plan = self._released(task, "functional mechanism")
        variance = 1.0 / 3  # not paid for: that of a target spread evenly over its bounds
        spread = covariance(solution, solution.matrix, variance, plan.noises)
        self._publish(task, solution.theta, spread)
        return self


class FunctionalLogisticRegression(_Functional, LinearClassifier):
    """Private binary classification by the functional mechanism on the order-2 Taylor expansion of the logistic loss.

    That loss is least squares of 4(y - 1/2) on x up to a factor and a constant, so 2y - 1, which lies in [-1, 1], is
    fitted and the coefficients are doubled; fitting 4(y - 1/2) itself would double the linear sensitivity. Pure ε.
    Parameters are those of :class:`FunctionalLinearRegression`, and ``classes``, the two public labels.

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
        """Fit to a table, a data frame, or a file or stream (y: the target's column)."""
        task = self._task(X, y, sample_weight, groups)
        solution, _ = self._released(task, "functional mechanism")
        self._publish(task, 2 * solution.theta[:, None])
        return self

    def scale_target(self, y: Any) -> Any:
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
