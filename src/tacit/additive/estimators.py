"""How are curves fitted to a table privately? An additive classifier and an additive regressor.

A fit releases, in this order: how many rows lie in each bin of each column, the second moments of the functions that
follow from that (:mod:`tacit.additive.basis`), and noisy gradient steps (:mod:`tacit.linear_model.descent`), whose
gains weigh each function by what the noise leaves of it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from tacit import accounting as acc
from tacit.accounting.base import is_number
from tacit.additive.basis import Basis, cosines_for, counted, histogram, independent, parts_of, towards
from tacit.additive.columns import columns_of, encode
from tacit.additive.curves import ColumnCurve, curves_of, draw
from tacit.ledger import Ledger
from tacit.linear_model import releases
from tacit.linear_model.base import PrivateEstimator, Task
from tacit.linear_model.bounds import Features
from tacit.linear_model.descent import STEPS, Curvature, Residual, Start, walk
from tacit.linear_model.logistic import PrivateClassifier, binary_residual, softmax_residual
from tacit.linear_model.rows import Rows, taking_part
from tacit.linear_model.sensitivity import Shape

Floats = npt.NDArray[np.float64]

#: Parts of μ²: the bins' numbers of rows, and the second moments. The rest is for the steps.
COUNT_SHARE, GRAM_SHARE = 0.08, 0.25
#: Clipping takes about a quarter of a gradient's slope away.
CLIPPED = 0.75
#: Where a normal distribution is looked at, and the weights of these places.
PLACES, WEIGHTS = np.polynomial.hermite_e.hermegauss(31)


@dataclasses.dataclass(frozen=True)
class CurveBudget:
    """How noisy each release is: multipliers of the sensitivity of adding a row, for a total of μ = 1/``noise``.

    >>> CurveBudget(8.0, "add-remove", True).mechanism("record")
    Gaussian(28.2843, replace=1.41421) + Gaussian(16, replace=1.41421) + Gaussian(37.8528) * 15
    """

    noise: float
    adjacency: str
    counts: bool

    def _of(self, part: float, replace: float) -> float:
        return releases.share(self.noise, part, replace if self.adjacency == "replace-one" else 1.0)

    @property
    def count(self) -> float:
        """Of the bins' numbers of rows."""
        return self._of(COUNT_SHARE, math.sqrt(2))

    @property
    def gram(self) -> float:
        """Of the second moments."""
        return self._of(GRAM_SHARE, math.sqrt(2))

    @property
    def step(self) -> float:
        """Of each step."""
        return self._of((1 - GRAM_SHARE - COUNT_SHARE * self.counts) / STEPS, 2.0)

    def mechanism(self, unit: str) -> acc.Mechanism:
        """What is priced and charged."""
        twice = math.sqrt(2)
        rest = (
            acc.Gaussian(self.gram, replace=twice, unit=unit) + acc.Gaussian(self.step, replace=2.0, unit=unit) * STEPS
        )
        return acc.Gaussian(self.count, replace=twice, unit=unit) + rest if self.counts else rest


class AdditiveModel(PrivateEstimator):
    """What both estimators share: bins, the fit, and the curves."""

    fit_intercept = True
    fill = None
    curves_: dict[str, ColumnCurve]
    privacy_: acc.Privacy
    _theta: Floats
    _basis: Basis

    def _allows_missing(self) -> bool:
        return True

    def _encode(self, X: Any, features: Features) -> Floats:
        return encode(X, features)

    def _encoded(self, X: Any) -> Floats:
        encoded = super()._encoded(X)
        return self._basis.encode(encoded)

    def _stream(self, X: Any, y: Any, *more: Any) -> Task:
        raise ValueError(f"{type(self).__name__} needs the whole table in memory: give a data frame instead of a file")

    def _rows(self, x: Floats, target: Any, features: Features, **who: Any) -> Rows:
        """Rows as they are encoded, without the constant and not yet scaled by their weights."""
        x, target, root = taking_part(x, target, **who)
        whole = who["weights"] is None and who["groups"] is None
        return Rows(x, target, Shape(x.shape[1], whole=whole, rows=who["max_rows"] or 1), root)

    def _fit(self, task: Task, residual: Residual, outputs: int, curvature: float | Curvature) -> Floats:
        """Charge, release and solve: the constant of each output, in the unit of the curves.

        Guarantee: what ``CurveBudget.mechanism`` states. Releases: the bins' numbers of rows (sensitivity √d for adding
        a row, √2·√d for replacing one), the second moments of the functions (Frobenius R², √2·R²), where R bounds the
        functions of every row, and each sum of clipped gradients (C, 2C). R and C follow from released values.
        """
        if task.delta == 0:
            raise ValueError(f"{type(self).__name__} uses Gaussian noise, which needs delta > 0")
        if not (is_number(self.coef_norm) and 0 < self.coef_norm < math.inf):
            raise ValueError(f"coef_norm must be a positive number, not {self.coef_norm!r}")
        columns = columns_of(task.features, self.edges)
        binned = counted(columns)
        pairs = _pairs(self.pairs, [column.name for column in columns])
        noise, mechanism = releases.calibrated(
            lambda noise: CurveBudget(noise, task.adjacency, bool(binned)).mechanism(task.unit),
            task.epsilon,
            task.delta,
            task.adjacency,
        )
        budget = CurveBudget(noise, task.adjacency, bool(binned))
        rows = task.source
        assert isinstance(rows, Rows)
        with self._paid(task, mechanism, "curves") as charge:
            noisy, scale = np.zeros(0), 0.0
            if binned:
                sensitivity = rows.shape.clipped_sum(math.sqrt(len(binned)), "add-remove")
                scale = sensitivity * budget.count
                noisy = releases.gaussian_sum(histogram(rows, binned), sensitivity, budget.count)
            found = float(noisy.sum()) / len(binned) if binned else 0.0
            basis = Basis(parts_of(columns, noisy, scale, cosines_for(found / noise)), pairs)
            made = basis.rows(rows)
            start = self._start(made, basis, noisy, scale, task.count, budget, outputs)
            theta, covariance = walk(made, residual, start, budget.step, curvature=curvature)
        self._set_names(task.features)
        self._basis, self._theta, self._middle, self._half_width = basis, theta, task.middle, task.half_width
        self.curves_, constant = curves_of(basis, theta, covariance, task.half_width)
        self.privacy_ = self._guarantee(task, mechanism, f"additive model, {STEPS} whitened noisy steps", charge)
        return constant

    def _start(
        self,
        rows: Rows,
        basis: Basis,
        noisy: Floats,
        scale: float,
        count: int | None,
        budget: CurveBudget,
        outputs: int,
    ) -> Start:
        """What the steps begin with: noisy second moments, and the number of rows where it is private.

        Both are pulled to what the histogram tells, of noise ``scale``, so that where ε·n is small columns count as
        independent.
        """
        release = releases.GaussianMatrix(rows.shape, rows.width)
        gram = release.release(releases.moments(rows, target=False), budget.gram)
        left = release.scale(budget.gram)
        known, binned = float(gram[0, 0]), len(counted([part.column for part in basis.parts]))
        if binned:
            one, other = 1 / left**2, (binned / scale) ** 2 / len(noisy)  # certainties of both numbers of rows
            known = (one * known + other * float(noisy.sum()) / binned) / (one + other)
        known = float(count) if count is not None else max(known, 1.0)
        gram, left = towards(gram, independent(basis.parts, noisy, known), left)
        prior = np.full(rows.width, self.coef_norm**2 / rows.width)
        prior[0] *= 4
        return Start(gram, left, known, np.zeros((rows.width, outputs)), np.diag(prior))

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """Names of the columns, in the order of ``curves_``.

        Args:
            input_features: Ignored; present as in scikit-learn.

        Returns:
            One name for each curve.
        """
        check_is_fitted(self)
        return np.array(list(self.curves_), dtype=object)

    def plot(self, columns: Any = None) -> Any:
        """Draw the curves, each with a band of two standard deviations of the noise.

        Args:
            columns: Names of the columns to draw; None draws all.

        Returns:
            A figure of matplotlib; ``figure.savefig("curves.png")`` writes it.

        Raises:
            ValueError: If there is no such column.
        """
        check_is_fitted(self)
        names = list(self.curves_) if columns is None else list(columns)
        for name in names:
            if name not in self.curves_:
                raise ValueError(f"there is no column {name!r}: the model has {', '.join(map(str, self.curves_))}")
        return draw([self.curves_[name] for name in names], self._axis(), getattr(self, "classes_", ()))

    def _axis(self) -> str:
        return "added log-odds"


def flattened(mean: float, variance: float) -> float:
    """What p(1-p) is on average where log-odds are normal, times what clipping leaves: less, the surer the model is.

    >>> [round(flattened(mean, variance), 3) for mean, variance in ((0.0, 0.0), (0.0, 9.0), (-3.0, 9.0))]
    [0.187, 0.086, 0.059]
    """
    flat = np.tanh((mean + math.sqrt(variance) * PLACES) / 2) ** 2
    return CLIPPED * float(WEIGHTS @ (1 - flat) / WEIGHTS.sum()) / 4


def _pairs(pairs: Any, names: list[str]) -> tuple[tuple[int, int], ...]:
    """The positions of the columns of each pair."""
    found = []
    for pair in pairs if isinstance(pairs, (list, tuple)) else [pairs]:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or pair[0] == pair[1]:
            raise ValueError(f"pairs must list pairs of different columns, such as ('age', 'hours'), not {pair!r}")
        for name in pair:
            if name not in names:
                raise ValueError(f"pairs names {name!r}, which is not a column: {', '.join(names)}")
        found.append((names.index(pair[0]), names.index(pair[1])))
    return tuple(found)


class AdditiveClassifier(AdditiveModel, PrivateClassifier):
    """A private additive classifier: the log-odds are a sum of one curve for each column.

    Numbers get a line and smooth bends, categories and missing values a value of their own. Where ε·n is small, the
    bends are shrunk away before the line is.

    Guarantee:
        A fit is (ε, δ)-differentially private for one unit under ``adjacency``; ``privacy_`` states the price. The unit
        is one row or, with ``groups``, everything that one id owns (at most ``max_rows`` rows). Three kinds of Gaussian
        releases are composed: the numbers of rows in the bins of d columns (a row moves them by √d in L2 norm, √(2d)
        where it is replaced), the second moments of the functions (R², √2·R² in Frobenius norm, where R bounds every
        row), and 15 sums of clipped gradients (C, 2C). A person's rows count together. Labels found in y because
        ``classes`` is missing are treated as public.
        Why: ``docs/howto/additive.md``.

    Args:
        epsilon: The ε that the fit may cost, positive.
        delta: The δ that the fit may cost, in (0, 1). Keep it well below one over the number of units.
        bounds: Public bounds of the features: a :class:`tacit.schema.Schema`; a pair (lower, upper); a list of pairs,
            one for each feature; or a mapping from column names to pairs. Rows are clipped to them. Required.
        classes: The public labels, at least two. None takes those of the schema's target, else 0 and 1; other labels
            found in y are then treated as public, and ``privacy_`` says so.
        edges: Public edges between the bins of some columns: a mapping from names to increasing numbers. A column that
            is left out gets its bends where a private histogram finds the rows; 8% of the budget pays for all of them.
        pairs: Pairs of columns that may act together, such as ``[("age", "hours")]``; a public choice. None are taken
            by default, because each makes the noise of all others larger.
        adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``. None takes the ledger's, or add-remove without
            a ledger.
        coef_norm: Public guess of the length of the coefficient vector, 2 by default. What the noise hides is shrunk
            according to it. Not a bound: a wrong guess costs accuracy, never privacy.
        max_weight: The largest sample weight, a public number to which weights are clipped. Required with
            ``sample_weight``.
        max_rows: How many rows of one unit take part, drawn at random from more. Required with ``groups``; the noise
            grows with it.
        unit: Name of the unit. None means ``"record"``, or ``"person"`` with ``groups``; another name needs ``groups``.
            A schema brings its own.
        ledger: Where the fit is charged before anything is released. None charges nowhere and refuses repeated fits.
        dataset: Name of the data in the ledger. None is enough if the ledger has one data set.

    Attributes:
        classes_: The labels, in the order of the probabilities.
        intercept_: The mean log-odds, one for two classes, else one for each class.
        curves_: What each column adds, a :class:`ColumnCurve` by the column's name.
        privacy_: What the fit cost, a :class:`tacit.accounting.Privacy`.

    Example:
        >>> x = np.random.default_rng(0).uniform(-1, 1, (20_000, 2))
        >>> private = AdditiveClassifier(epsilon=1.0, bounds=(-1, 1)).fit(x, (abs(x[:, 0]) > 0.5).astype(int))
        >>> bool(private.score(x, abs(x[:, 0]) > 0.5) > 0.85), private.privacy_.upper <= 1.0
        (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        bounds: Any = None,
        classes: Any = None,
        edges: Any = None,
        pairs: Any = (),
        adjacency: str | None = None,
        coef_norm: float = 2.0,
        max_weight: float | None = None,
        max_rows: int | None = None,
        unit: str | None = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> AdditiveClassifier:
        """Charge the fit, then fit to a table in memory.

        Args:
            X: The private table: an array, a data frame or, with a schema, anything that :meth:`Schema.encode
                <tacit.schema.Schema.encode>` reads. Missing values are a bin of their own, unless the schema has a
                constant for them.
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
        self._carry_out(self._task(X, y, sample_weight, groups))
        return self

    def _carry_out(self, task: Task) -> None:
        classes = len(self.classes_)
        if classes == 2:
            self.intercept_ = self._fit(task, binary_residual, 1, flattened)
        else:
            self.intercept_ = self._fit(task, softmax_residual, classes, 0.8 / classes)


class AdditiveRegressor(RegressorMixin, AdditiveModel):  # type: ignore[misc]
    """A private additive regression: the prediction is a sum of one curve for each column.

    Numbers get a line and smooth bends, categories and missing values a value of their own. Where ε·n is small, the
    bends are shrunk away before the line is.

    Guarantee:
        A fit is (ε, δ)-differentially private for one unit under ``adjacency``; ``privacy_`` states the price. The unit
        is one row or, with ``groups``, everything that one id owns (at most ``max_rows`` rows). Three kinds of Gaussian
        releases are composed: the numbers of rows in the bins of d columns (a row moves them by √d in L2 norm, √(2d)
        where it is replaced), the second moments of the functions (R², √2·R² in Frobenius norm, where R bounds every
        row), and 15 sums of clipped gradients (C, 2C). A person's rows count together.
        Why: ``docs/howto/additive.md``.

    Args:
        epsilon: The ε that the fit may cost, positive.
        delta: The δ that the fit may cost, in (0, 1). Keep it well below one over the number of units.
        bounds: Public bounds of the features: a :class:`tacit.schema.Schema`; a pair (lower, upper); a list of pairs,
            one for each feature; or a mapping from column names to pairs. Rows are clipped to them. Required.
        target_bounds: Public bounds (lower, upper) of y, to which it is clipped. Required unless ``bounds`` is a schema
            with a numeric target.
        edges: Public edges between the bins of some columns: a mapping from names to increasing numbers. A column that
            is left out gets its bends where a private histogram finds the rows; 8% of the budget pays for all of them.
        pairs: Pairs of columns that may act together, such as ``[("age", "hours")]``; a public choice. None are taken
            by default, because each makes the noise of all others larger.
        adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``. None takes the ledger's, or add-remove without
            a ledger.
        coef_norm: Public guess of the length of the coefficient vector, 0.5 by default. What the noise hides is shrunk
            according to it. Not a bound: a wrong guess costs accuracy, never privacy.
        max_weight: The largest sample weight, a public number to which weights are clipped. Required with
            ``sample_weight``.
        max_rows: How many rows of one unit take part, drawn at random from more. Required with ``groups``; the noise
            grows with it.
        unit: Name of the unit. None means ``"record"``, or ``"person"`` with ``groups``; another name needs ``groups``.
            A schema brings its own.
        ledger: Where the fit is charged before anything is released. None charges nowhere and refuses repeated fits.
        dataset: Name of the data in the ledger. None is enough if the ledger has one data set.

    Attributes:
        intercept_: The mean prediction.
        curves_: What each column adds, a :class:`ColumnCurve` by the column's name.
        privacy_: What the fit cost, a :class:`tacit.accounting.Privacy`.

    Example:
        >>> x = np.random.default_rng(0).uniform(-1, 1, (20_000, 2))
        >>> private = AdditiveRegressor(epsilon=1.0, bounds=(-1, 1), target_bounds=(-2, 2))
        >>> bool(private.fit(x, x[:, 0] ** 2 + x[:, 1]).score(x, x[:, 0] ** 2 + x[:, 1]) > 0.9)
        True
        >>> sorted(private.curves_)
        ['x0', 'x1']
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        bounds: Any = None,
        target_bounds: Any = None,
        edges: Any = None,
        pairs: Any = (),
        adjacency: str | None = None,
        coef_norm: float = 0.5,
        max_weight: float | None = None,
        max_rows: int | None = None,
        unit: str | None = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> AdditiveRegressor:
        """Charge the fit, then fit to a table in memory.

        Args:
            X: The private table: an array, a data frame or, with a schema, anything that :meth:`Schema.encode
                <tacit.schema.Schema.encode>` reads. Missing values are a bin of their own, unless the schema has a
                constant for them.
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
        self._carry_out(self._task(X, y, sample_weight, groups))
        return self

    def _carry_out(self, task: Task) -> None:
        constant = self._fit(task, lambda score, y: np.asarray(score - y[:, None]), 1, 1.0)
        self.intercept_ = float(constant[0]) + task.middle

    def predict(self, X: Any) -> Floats:
        """Predict the target of new rows, clipped to the bounds as in the fit.

        Args:
            X: Rows with the columns of the fit.

        Returns:
            One number for each row, in the unit of y.
        """
        x = self._encoded(X)
        return np.asarray(self._middle + self._half_width * (x @ self._theta[1:, 0] + self._theta[0, 0]))

    def _axis(self) -> str:
        return "added to the prediction"
