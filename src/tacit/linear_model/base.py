"""What do all private estimators for tables share? Reading the table, the terms of the guarantee, and coefficients.

``fit`` reads X and y by public bounds, prices the fit, charges the ledger, and only then computes what is released. It
changes no constructor parameter. Of everything computed from the data, it stores only what was charged.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from tacit import accounting as acc
from tacit.accounting.base import unit_of
from tacit.cluster import Ray, backend_of
from tacit.ledger import BudgetExceeded, Charge, surroundings
from tacit.linear_model import cluster_moments, guarantee, stream
from tacit.linear_model.bounds import WHY, Features, as_table, by_norm, features_of, from_origin, scale, target_of
from tacit.linear_model.rows import Rows, make_rows
from tacit.linear_model.sensitivity import Shape
from tacit.schema import Numeric, Schema, SchemaError

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """One fit before anything is released: the rows, how they were scaled, and the terms of the guarantee."""

    source: Rows | stream.Stream
    features: Features
    epsilon: float
    delta: float
    adjacency: str
    unit: str
    dataset: str | None
    middle: float = 0.0
    half_width: float = 1.0
    assumed: tuple[str, ...] = ()
    #: The fingerprint of the table under the ledger's secret; None without a ledger.
    data: str | None = None
    #: Whether only the price is asked for: the fit then ends in :class:`Priced`, before any charge or release.
    asking: bool = False

    @property
    def shape(self) -> Shape:
        """What sensitivities are made of."""
        return self.source.shape

    @property
    def width(self) -> int:
        """How many coefficients there are, the constant included."""
        return self.source.width

    @property
    def count(self) -> int | None:
        """The number of rows where it is public: one row is replaced or blanked, never added, and counts fully.

        None where it is private, and before the first pass over a stream.
        """
        if self.adjacency == "add-remove" or not self.shape.whole:
            return None
        if isinstance(self.source, stream.Stream) and not self.source.counted:
            return None
        return len(self.source)


class Priced(Exception):
    """What a fit would run, which is all that was asked for."""

    def __init__(self, mechanism: acc.Mechanism, adjacency: str) -> None:
        super().__init__()
        self.mechanism, self.adjacency = mechanism, adjacency


class _Request:
    """scikit-learn's method for metadata routing with a text of our own: its own refers to scikit-learn's glossary."""

    def __init__(self, method: Any) -> None:
        self.method = method

    def __get__(self, instance: Any, owner: type) -> Any:
        function = self.method.__get__(instance, owner)
        function.__doc__ = "Choose whether a pipeline or search passes on sample_weight and groups, as in scikit-learn."
        return function


class PrivateEstimator(surroundings.RefusesSearch, BaseEstimator):  # type: ignore[misc]
    """What every estimator of this room does with its table and its budget."""

    #: The file that the table was read from, where a fit is given rows that were read by a schema.
    read_from: Any = None
    _target = "number"
    _asking = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("set_fit_request", "set_score_request"):
            if name in cls.__dict__:
                setattr(cls, name, _Request(cls.__dict__[name]))

    def _keep(self, parameters: dict[str, Any]) -> None:
        """Store the parameters of a constructor (its ``locals()``) as they are, under their names."""
        for name, value in parameters.items():
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    # -- reading the table ---------------------------------------------------------------------------------------------

    def _task(self, X: Any, y: Any, sample_weight: Any, groups: Any) -> Task:
        """Check parameters, read and encode the table; nothing is released here."""
        surroundings.refuse_uncounted_search(self.ledger, type(self).__name__)
        noted = surroundings.note_pipeline()
        epsilon, delta = guarantee.check_budget(self.epsilon, self.delta)
        cluster = backend_of(getattr(self, "backend", "local"))
        if cluster is not None and not stream.is_stream(X):
            raise ValueError(
                "backend='ray' takes files and data sets of Ray, which its workers can read. This table is in memory: "
                "use backend='local'"
            )
        if stream.is_stream(X):
            if sample_weight is not None or groups is not None or self.max_rows is not None:
                raise ValueError(
                    "sample_weight and groups need the whole table in memory: give a data frame instead of a file"
                )
            return self._stream(X, y, epsilon, delta, cluster)
        if isinstance(self.bounds, Schema):
            x, target, features, groups = self._from_schema(X, y, groups)
        else:
            x, target, features = self._from_numbers(X, y)
        scaled, middle, half_width, assumed = self._encode_target(target)
        weights, max_weight = self._weights(scaled, sample_weight)
        rows = self._rows(
            x, scaled, features, weights=weights, max_weight=max_weight, groups=groups, max_rows=self.max_rows
        )
        unit = self._unit(grouped=groups is not None)
        adjacency, dataset = guarantee.terms(self.ledger, self.dataset, self.adjacency, unit)
        assumed = (*noted, *assumed, *self._rows_taken_for(unit, grouped=groups is not None))
        read = None if self._asking else guarantee.recognised(self.ledger, dataset, self.read_from or X, y)
        return Task(
            rows, features, epsilon, delta, adjacency, unit, dataset, middle, half_width, assumed, read, self._asking
        )

    def _unit(self, *, grouped: bool) -> str:
        if isinstance(self.bounds, Schema):
            named = self.bounds.unit.name
            if self.unit is not None and self.unit != named:
                raise ValueError(
                    f"unit={self.unit!r}, but the unit of the schema is {named!r}: leave unit= out, or correct the "
                    "schema"
                )
            return named
        return unit_of(self.unit, owned=grouped, ids="Give their ids, and max_rows=: fit(X, y, groups=ids)")

    def _rows_taken_for(self, unit: str, *, grouped: bool) -> tuple[str, ...]:
        """Whose the rows are, and how many of one unit count.

        A schema that names a unit but no column of ids says that each row is a different unit.
        """
        if grouped:
            rows = "1 row takes" if self.max_rows == 1 else f"{self.max_rows:,} rows take"
            return (f"ids say whose each row is: of one {unit} at most {rows} part, drawn at random from more",)
        return () if unit == "record" else (f"each row counts as a different {unit}",)

    def _from_schema(self, X: Any, y: Any, groups: Any) -> tuple[Floats, Any, Features, Any]:
        schema: Schema = self.bounds
        features = features_of(schema, 0, None, self.fill, intercept=self.fit_intercept)
        table = as_table(X, schema)
        self._remember_columns(schema)
        x = self._encode(table, features)
        if y is None or isinstance(y, str):
            y = self._column(table, y)
        if len(y) != len(x):
            raise ValueError("X and y have different numbers of rows")
        if schema.unit.column is not None:
            if groups is not None:
                raise ValueError(
                    f"the schema already names a column of ids ({schema.unit.column!r}): leave groups= out, or remove "
                    "unit.column from the schema"
                )
            groups = np.asarray(_fetch(table, schema.unit.column))
        return x, y, features, groups

    def _column(self, table: Any, name: str | None) -> Any:
        target = self.bounds.target
        if name is None and target is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        return _fetch(table, name if name is not None else target.name)

    def _remember_columns(self, schema: Schema) -> None:
        self.n_features_in_ = len(schema.features)
        self.feature_names_in_ = np.array([column.name for column in schema.features], dtype=object)

    def _from_numbers(self, X: Any, y: Any) -> tuple[Floats, Any, Features]:
        if self.bounds is None and self._row_norm() is None:
            features_of(None, 0, None)
        if isinstance(y, str):  # the target is a column of the table, as with a file
            column = _fetch(X, y)
            X, y = X.drop(columns=[y]) if hasattr(X, "iloc") else X.drop(y), column
        finite: bool | str = "allow-nan" if self._allows_missing() else True
        with surroundings.messages_without_values():
            X, y = validate_data(
                self,
                X,
                y,
                dtype=np.float64,
                ensure_all_finite=finite,
                y_numeric=self._target == "number",
                multi_output=False,
            )
        names = tuple(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None
        if self._row_norm() is not None:
            features = by_norm(self._row_norm(), X.shape[1], names, self.fill)
        else:
            features = features_of(self.bounds, X.shape[1], names, self.fill, intercept=self.fit_intercept)
        return self._encode(X, features), y, features

    def _row_norm(self) -> Any:
        """The public bound of a row's L2 norm, where it stands for bounds of the columns."""
        row_norm = getattr(self, "row_norm", None)
        if row_norm is not None and self.bounds is not None:
            raise ValueError("give bounds= of the columns or row_norm= of whole rows, not both")
        return row_norm

    def _rows(self, x: Floats, target: Any, features: Features, **who: Any) -> Rows:
        """Rows as the fit reads them; ``who`` says with which weights and of which units."""
        return make_rows(x, target, features, intercept=self.fit_intercept, **who)

    def _allows_missing(self) -> bool:
        return self.fill is not None

    def _weights(self, target: Floats, sample_weight: Any) -> tuple[Any, float | None]:
        """Weights of the rows and the public largest one."""
        return sample_weight, self.max_weight

    def _encode(self, X: Any, features: Features) -> Floats:
        x = features.encode(X)
        if self.fill is not None and np.isnan(x).any():
            column = int(np.flatnonzero(np.isnan(x).any(axis=0))[0])
            raise ValueError(
                f"column {features.names[column]!r} has missing values, and fill= has no public constant for it"
            )
        return x

    def _stream(self, X: Any, y: Any, epsilon: float, delta: float, cluster: Ray | None) -> Task:
        if self._row_norm() is not None:
            raise ValueError("row_norm= needs the whole table in memory: give an array, or bounds= with a file")
        if self.bounds is None:
            features_of(None, 0, None)
        if cluster is not None and not stream.is_ray(X):
            cluster_moments.files_of(X)
        schema = self.bounds if isinstance(self.bounds, Schema) else None
        names, y = self._stream_columns(schema, stream.columns_of(X), y)
        features = features_of(self.bounds, len(names), names, self.fill, intercept=self.fit_intercept)
        if schema is not None:
            self._remember_columns(schema)
        else:
            self.n_features_in_, self.feature_names_in_ = len(names), np.array(names, dtype=object)
        _, middle, half_width, assumed = self._encode_target(None)
        reader = copy.copy(self)  # what goes to a cluster's workers holds no way to the ledger
        reader.ledger = None
        source = stream.Stream(
            X,
            names,
            y,
            features,
            reader.scale_target,
            (middle, half_width) if self._target == "number" and self.fit_intercept else None,
            Shape(features.scalars, features.blocks, self.fit_intercept),
            cluster,
            number_target=self._counts_as_number(),
        )
        unit = self._unit(grouped=False)
        assumed = (*assumed, *self._rows_taken_for(unit, grouped=False))
        adjacency, dataset = guarantee.terms(self.ledger, self.dataset, self.adjacency, unit)
        read = None if self._asking else guarantee.recognised(self.ledger, dataset, X, None)
        return Task(
            source, features, epsilon, delta, adjacency, unit, dataset, middle, half_width, assumed, read, self._asking
        )

    def _stream_columns(self, schema: Schema | None, columns: Sequence[str], y: Any) -> tuple[tuple[str, ...], str]:
        """Which columns of a file or stream are the features, and which is the target."""
        if schema is not None and schema.unit.column is not None:
            raise ValueError(
                f"the schema says that one {schema.unit.name} can own several rows ({schema.unit.column!r}). That "
                "needs the whole table in memory: give a data frame and max_rows="
            )
        if not isinstance(y, str):
            if y is not None or schema is None or schema.target is None:
                raise ValueError("with a file or a stream, y must be the name of the target's column")
            y = schema.target.name
        if schema is not None:
            names = tuple(column.name for column in schema.features)
        else:
            named = tuple(self.bounds) if isinstance(self.bounds, dict) else columns
            names = tuple(name for name in named if name != y)
        missing = [name for name in (*names, y) if name not in columns]
        if missing:
            raise ValueError(
                f"column {missing[0]!r} is not in the data, which have {', '.join(columns[:20])}. "
                "See: tacit explain column-missing"
            )
        return names, y

    # -- the target: a number between bounds (classifiers do their own) ------------------------------------------------

    def _counts_as_number(self) -> bool:
        """Whether the target's column of a text file is read as numbers."""
        return True

    def _encode_target(self, y: Any) -> tuple[Any, float, float, tuple[str, ...]]:
        middle, half_width = target_of(self.target_bounds, self.bounds)
        if not self.fit_intercept:  # a line through the origin: 0 stays 0
            middle, half_width = 0.0, _peak(middle, half_width)
        return (None if y is None else self.scale_target(y)), middle, half_width, ()

    def scale_target(self, y: Any) -> Floats:
        """The target scaled to [-1, 1] by public bounds, each row by itself.

        Args:
            y: One number for each row, in its own unit. Values beyond the bounds are clipped.

        Returns:
            One number in [-1, 1] for each row.

        Raises:
            ValueError: If y is not one-dimensional or not finite, or if its bounds are missing.
        """
        middle, half_width = target_of(self.target_bounds, self.bounds)
        with surroundings.messages_without_values():
            values = np.asarray(y, dtype=np.float64)
        declared = self.bounds.target if isinstance(self.bounds, Schema) else None
        if self.target_bounds is None and isinstance(declared, Numeric) and declared.fill is not None:
            values = np.where(np.isnan(values), declared.fill, values)
        if values.ndim != 1:
            raise ValueError(f"y must hold one number for each row, not an array of {values.ndim} dimensions")
        if not np.isfinite(values).all():
            raise ValueError(
                "Input y contains NaN or infinity: remove those rows, or replace them by a public constant"
            )
        scaled = scale(values, middle, half_width)
        return scaled if self.fit_intercept else from_origin(scaled, middle, half_width, _peak(middle, half_width))

    # -- results -------------------------------------------------------------------------------------------------------

    def _guarantee(self, task: Task, mechanism: acc.Mechanism, method: str, charge: Charge | None) -> acc.Privacy:
        notes = list(task.assumed)
        if task.count is not None:
            notes.append(f"the number of {task.unit}s is public under {task.adjacency}")
        return acc.Privacy.of(
            mechanism,
            0.0 if _pure(mechanism) else task.delta,
            adjacency=task.adjacency,
            method=method,
            max_rows=task.shape.rows if task.shape.rows > 1 else None,
            assumptions=tuple(notes),
            noise=guarantee.GENERATOR,
            charge=charge.number if charge is not None else None,
        )

    @contextlib.contextmanager
    def _paid(self, task: Task, mechanism: acc.Mechanism, what: str) -> Iterator[Charge | None]:
        if task.asking:
            raise Priced(mechanism, task.adjacency)
        delta = 0.0 if _pure(mechanism) else task.delta
        cluster = task.source.cluster if isinstance(task.source, stream.Stream) else None
        with contextlib.ExitStack() as stack:
            if cluster is not None:  # a cluster that is not there costs nothing
                stack.enter_context(cluster.ready())
            purpose = f"{type(self).__name__}: {what}"
            try:
                charge = stack.enter_context(guarantee.paid(self.ledger, task, mechanism, delta, purpose))
            except BudgetExceeded as error:
                raise guarantee.with_smaller(
                    error, task.epsilon, lambda epsilon: self._would_fit(task, epsilon)
                ) from None
            yield charge

    def _carry_out(self, task: Task) -> None:
        """Charge, release and publish what the task says."""
        raise NotImplementedError

    def asked(self, X: Any, y: Any, groups: Any = None) -> Priced:
        """What a fit to such rows would run, and for which neighbours; nothing is computed from them or charged.

        Args:
            X: Rows with the columns of the fit; made-up ones will do.
            y: The target, one value for each row.
            groups: The id of the unit that owns each row.

        Returns:
            Its ``mechanism``, for :mod:`tacit.accounting`, and its ``adjacency``.

        Example:
            >>> from tacit.accounting import epsilon
            >>> from tacit.linear_model import LinearRegression
            >>> planned = LinearRegression(1.0, bounds=(-1, 1), target_bounds=(-1, 1)).asked([[0.5]] * 9, [0.1] * 9)
            >>> round(epsilon(planned.mechanism, delta=1e-6, adjacency=planned.adjacency).upper, 3)
            1.0
        """
        self._asking = True
        try:
            self.fit(X, y, groups=groups)
        except Priced as found:
            return found
        finally:
            del self._asking
        raise AssertionError("a fit ended without a price")

    def _would_fit(self, task: Task, epsilon: float) -> bool:
        """Whether the ledger would grant the same fit at another ε. Nothing is computed from the data."""
        assert self.ledger is not None
        assert task.dataset is not None
        try:
            self._carry_out(dataclasses.replace(task, epsilon=epsilon, asking=True))
        except Priced as found:
            delta = 0.0 if _pure(found.mechanism) else task.delta
            return self.ledger.fits(task.dataset, found.mechanism, delta=delta)
        return False

    def _set_names(self, features: Features) -> None:
        self.features_ = features

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """Names of the coefficients, in the order of ``coef_``.

        Args:
            input_features: Ignored; present as in scikit-learn.

        Returns:
            Column names; a category of a schema is named ``column=category``.
        """
        check_is_fitted(self)
        return np.array(self.features_.names, dtype=object)

    def _encoded(self, X: Any) -> Floats:
        """New rows, scaled and clipped by the bounds of the fit."""
        check_is_fitted(self)
        if self.features_.schema is not None:
            return self._encode(X, self.features_)
        finite: bool | str = "allow-nan" if self._allows_missing() else True
        with surroundings.messages_without_values():
            X = validate_data(self, X, dtype=np.float64, ensure_all_finite=finite, reset=False)
        return self._encode(X, self.features_)

    def _html_repr(self) -> str:
        """As scikit-learn draws it, with what the fit cost below."""
        drawn = str(super()._html_repr())
        return drawn + self.privacy_.to_html() if hasattr(self, "privacy_") else drawn

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._allows_missing()
        return tags


def unscale(theta: Floats, features: Features, middle: float, half_width: float, *, intercept: bool) -> Floats:
    """Coefficients of the scaled table as a matrix M: (intercept, coefficients) = M·θ + (middle, 0, …)."""
    width = len(features.names)
    matrix = np.zeros((width + 1, width + intercept))
    slopes = half_width / features.half_width
    start = int(intercept)
    matrix[1:, start:] = np.diag(slopes)
    matrix[0, start:] = -slopes * features.middle
    if intercept:
        matrix[0, 0] = half_width
    return matrix


def _peak(middle: float, half_width: float) -> float:
    return max(abs(middle - half_width), abs(middle + half_width))


def _pure(mechanism: acc.Mechanism) -> bool:
    return all(isinstance(part, acc.Laplace | acc.PureDP) for part, _ in mechanism.parts())


def _fetch(table: Any, name: str) -> Any:
    try:
        return table[name]
    except Exception as error:
        if isinstance(error, (KeyError, IndexError, ValueError, TypeError)) or "NotFound" in type(error).__name__:
            raise SchemaError(f"there is no column {name!r} in the table. See: tacit explain column-missing") from error
        raise


__all__ = ["WHY", "PrivateEstimator", "Task", "unscale"]
