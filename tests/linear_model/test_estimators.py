"""Private regression behaves as scikit-learn's does, on every kind of table, and learns what is there."""

from __future__ import annotations

import traceback
from unittest import SkipTest

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression as Plain
from sklearn.linear_model import Ridge as PlainRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

from tacit.linear_model import (
    FunctionalLinearRegression,
    FunctionalLogisticRegression,
    LinearRegression,
    LogisticRegression,
    Ridge,
    SchemaEncoder,
)
from tacit.schema import Boolean, Categorical, Numeric, Schema, SchemaError, Unit
from tests.linear_model.common import BOUNDS, COEFFICIENTS, labels, numbers

SIZES = {"bounds": (-4, 4), "max_weight": 10.0}
CHECKED = [
    LinearRegression(1e5, target_bounds=(-200, 200), **SIZES),
    FunctionalLinearRegression(1e5, target_bounds=(-200, 200), **SIZES),
    LogisticRegression(1e5, **SIZES),
    FunctionalLogisticRegression(1e5, **SIZES),
    pytest.param(
        LinearRegression(1e5, target_bounds=(-200, 200), method="sufficient-statistics", **SIZES),
        marks=pytest.mark.slow,
    ),
    pytest.param(Ridge(1.0, 1e5, target_bounds=(-200, 200), **SIZES), marks=pytest.mark.slow),
    pytest.param(LogisticRegression(1e5, 0.0, **SIZES), marks=pytest.mark.slow),
]
#: Checks that fit twice and ask for the same result: noise comes from the operating system and differs.
#: One weighs 50 rows by 1000 and 0.0001: what is left of a class is less than the noise.
NOT_FOR_NOISE = {
    "check_class_weight_classifiers",
    "check_classifier_data_not_an_array",
    "check_fit_idempotent",
    "check_pipeline_consistency",
    "check_regressor_data_not_an_array",
    "check_regressors_int",
    "check_sample_weight_equivalence_on_dense_data",
    "check_supervised_y_2d",
}


#: Skipped by scikit-learn itself, for want of an environment variable.
SKIPPED_BY_SKLEARN = {"check_array_api_input"}


@pytest.mark.parametrize("estimator", CHECKED, ids=lambda e: f"{type(e).__name__}-{getattr(e, 'method', '')}")
def test_scikit_learns_own_checks(estimator):
    assert len(NOT_FOR_NOISE) <= 8
    for case, check in estimator_checks_generator(estimator):
        name = getattr(check, "func", check).__name__
        if name in NOT_FOR_NOISE:
            continue
        try:
            check(case)
        except SkipTest:
            assert name in SKIPPED_BY_SKLEARN, name


# -- what is learned ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gradient-descent", "adassp", "sufficient-statistics", "functional"])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "zero-out"])
def test_with_little_noise_every_method_finds_least_squares(method, adjacency):
    x, y = numbers(20_000)
    delta = 0 if method == "functional" else 1e-6
    private = LinearRegression(50.0, delta, method=method, adjacency=adjacency, **BOUNDS).fit(x, y)
    plain = Plain().fit(x, y)
    assert private.coef_ == pytest.approx(plain.coef_, abs=0.02)
    assert private.intercept_ == pytest.approx(plain.intercept_, abs=0.2)
    assert private.score(x, y) > 0.99
    inside = x[:5]
    assert private.predict(inside) == pytest.approx(inside @ private.coef_ + private.intercept_, abs=1e-4)


def test_without_an_intercept_and_with_a_private_number_of_rows():
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (20_000, 2))
    for method in ("gradient-descent", "sufficient-statistics"):
        private = LinearRegression(5.0, bounds=(-1, 1), target_bounds=(-3, 3), fit_intercept=False, method=method)
        private.fit(x, x @ [2.0, -1.0])
        assert private.coef_ == pytest.approx([2.0, -1.0], abs=0.1)
        assert private.intercept_ == 0.0


@pytest.mark.parametrize("method", ["gradient-descent", "adassp", "sufficient-statistics", "functional"])
def test_without_an_intercept_the_line_goes_through_the_origin_wherever_the_bounds_lie(method, tmp_path):
    generator = np.random.default_rng(1)
    table = pl.DataFrame({"a": generator.uniform(20, 80, 20_000), "b": generator.uniform(-5, 40, 20_000)})
    table = table.with_columns(y=3 * table["a"] + 2 * table["b"] + 70 * generator.normal(size=20_000))
    plain = Plain(fit_intercept=False).fit(table.drop("y"), table["y"])
    schema = Schema((Numeric("a", 20, 80), Numeric("b", -5, 40), Numeric("y", -200, 700, target=True)), Unit("person"))
    table.write_parquet(tmp_path / "table.parquet")
    settings = {"delta": 0 if method == "functional" else 1e-6, "method": method, "fit_intercept": False}
    pairs = {"bounds": {"a": (20, 80), "b": (-5, 40)}, "target_bounds": (-200, 700)}
    fits = [
        LinearRegression(100.0, **pairs, **settings).fit(table, "y"),
        LinearRegression(100.0, bounds=schema, **settings).fit(table),
        LinearRegression(100.0, bounds=schema, **settings).fit(tmp_path / "table.parquet"),
        LinearRegression(100.0, **pairs, **settings).fit(tmp_path / "table.parquet", "y"),
    ]
    for private in fits:
        assert private.coef_ == pytest.approx(plain.coef_, abs=0.1)
        assert private.intercept_ == 0.0
        assert private.predict(table.drop("y")[:50]) == pytest.approx(plain.predict(table.drop("y")[:50]), abs=6)
        if method != "gradient-descent":
            assert private.confidence_interval(intercept=True)[0].tolist() == [0.0, 0.0]
        outside = pl.DataFrame({"a": [500.0, 80.0], "b": [-90.0, -5.0]})
        assert np.ptp(private.predict(outside)) == pytest.approx(0, abs=1e-2)  # rows beyond the bounds are clipped
    classes = LogisticRegression(100.0, bounds=(0, 10), fit_intercept=False).fit(*labels(2000))
    assert classes.intercept_.tolist() == [0.0]


def test_ridge_is_scikit_learns_ridge():
    x, y = numbers(20_000)
    for alpha in (1e4, 1e6):
        private = Ridge(alpha, 50.0, **BOUNDS).fit(x, y)
        assert private.coef_ == pytest.approx(PlainRidge(alpha).fit(x, y).coef_, abs=0.05)


@pytest.mark.parametrize("settings", [{}, {"method": "objective-perturbation"}, {"delta": 0}, {"method": "dp-sgd"}])
def test_logistic_regression_learns_two_classes(settings):
    x, y = labels(4000)
    private = LogisticRegression(4.0, bounds=(0, 10), **settings).fit(x, y)
    assert private.score(x, y) > 0.8
    assert private.coef_.shape == (1, 3)
    assert private.privacy_.upper <= 4.0
    assert ((private.decision_function(x) > 0) == (private.predict(x) == 1)).all()
    assert np.exp(private.predict_log_proba(x)) == pytest.approx(private.predict_proba(x))


@pytest.mark.parametrize("settings", [{}, {"method": "objective-perturbation"}, {"delta": 0}, {"method": "dp-sgd"}])
def test_logistic_regression_learns_several_classes(settings):
    x, _ = labels(4000)
    y = np.array(["low", "middle", "top"])[np.digitize(x[:, 0], [3.3, 6.6])]
    private = LogisticRegression(8.0, bounds=(0, 10), classes=["top", "low", "middle"], **settings).fit(x, y)
    assert private.classes_.tolist() == ["low", "middle", "top"]
    assert private.score(x, y) > 0.75
    assert private.predict_proba(x).sum(axis=1) == pytest.approx(1.0)
    assert np.exp(private.predict_log_proba(x)) == pytest.approx(private.predict_proba(x))
    assert private.coef_.shape == (3, 3)


def test_labels_found_in_y_are_said_to_be_treated_as_public():
    x, y = labels(500)
    named = np.where(y == 1, "yes", "no")
    assert "classes=" in repr(LogisticRegression(5.0, bounds=(0, 10)).fit(x, named).privacy_)
    declared = LogisticRegression(5.0, bounds=(0, 10), classes=["no", "yes"]).fit(x, named)
    assert "classes=" not in repr(declared.privacy_)
    only = LogisticRegression(5.0, bounds=(0, 10)).fit(x, np.zeros(500, dtype=int))
    assert only.classes_.tolist() == [0, 1]  # that nobody is in class 1 is not told
    with pytest.raises(ValueError, match="not among the classes"):
        clone(declared).fit(x, np.where(y == 1, "yes", "perhaps"))


# -- tables ------------------------------------------------------------------------------------------------------------

SCHEMA = Schema(
    (
        Numeric("age", 18, 90),
        Categorical("ward", ["north", "south"]),
        Boolean("smokes"),
        Numeric("cost", 0, 400, target=True),
    ),
    Unit("patient"),
)


def patients(rows=6000):
    generator = np.random.default_rng(0)
    age = generator.integers(18, 91, rows)
    ward = generator.choice(["north", "south", "east"], rows)
    smokes = generator.uniform(size=rows) < 0.3
    cost = 2 * age + 40 * (ward == "south") + 50 * smokes + generator.normal(size=rows)
    return {"age": age, "ward": ward, "smokes": smokes, "cost": cost}


@pytest.mark.parametrize("frame", [pl.DataFrame, pd.DataFrame, dict])
def test_a_schema_describes_any_table(frame):
    table = frame(patients())
    private = LinearRegression(5.0, bounds=SCHEMA).fit(table)
    assert private.get_feature_names_out().tolist() == ["age", "ward=north", "ward=south", "ward=other", "smokes"]
    assert private.privacy_.unit == "patient"
    assert private.coef_[0] == pytest.approx(2.0, abs=0.2)
    assert private.coef_[4] == pytest.approx(25.0, abs=3.0)  # a boolean is -1 or +1
    assert private.coef_[2] - private.coef_[1] == pytest.approx(40.0, abs=6.0)
    separate = LinearRegression(5.0, bounds=SCHEMA).fit(table, table["cost"])
    assert separate.score(table, np.asarray(table["cost"])) > 0.95


def test_a_schema_with_classes_is_all_that_a_classifier_needs():
    schema = Schema((Numeric("age", 18, 90), Boolean("smokes", target=True)), Unit("patient"))
    table = patients()
    table["smokes"] = table["age"] > 50
    private = LogisticRegression(5.0, bounds=schema).fit(table)
    assert private.classes_.tolist() == [False, True]
    assert private.score(table, table["smokes"]) > 0.9


def test_owners_of_rows_come_from_the_schema(tmp_path):
    schema = Schema(SCHEMA.columns, Unit("patient", column="id"))
    table = patients(900) | {"id": np.arange(900) // 3}
    with pytest.raises(ValueError, match="max_rows="):
        LinearRegression(5.0, bounds=schema).fit(table)
    private = LinearRegression(5.0, bounds=schema, max_rows=2).fit(table)
    assert private.privacy_.details["max_rows"] == 2
    assert "max rows: 2" in repr(private.privacy_)
    with pytest.raises(ValueError, match="leave groups= out"):
        LinearRegression(5.0, bounds=schema, max_rows=2).fit(table, groups=np.arange(900))
    with pytest.raises(ValueError, match="unit of the schema is 'patient'"):
        LinearRegression(5.0, bounds=schema, max_rows=2, unit="hospital").fit(table)
    new = {"age": [30, 40], "ward": ["north", "south"], "smokes": [True, False]}
    assert private.predict(new).shape == (2,)  # new rows need no owner
    with pytest.raises(SchemaError, match="'id'"):
        LinearRegression(5.0, bounds=schema, max_rows=2).fit(patients(90))
    pl.DataFrame(table).write_parquet(tmp_path / "visits.parquet")
    with pytest.raises(ValueError, match=r"'id'.*data frame"):
        LinearRegression(5.0, bounds=schema).fit(tmp_path / "visits.parquet")


def test_bounds_may_be_given_in_every_usual_way():
    x, y = numbers(3000)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    ways = [
        (x, (0, 10)),
        (x, ([0, 0, 0], [10, 10, 10])),
        (x, np.array([[0, 10]] * 3)),
        (x, [0, 10]),
        (x, {0: (0, 10), 1: (0, 10), 2: (0, 10)}),
        (frame, {"a": (0, 10), "b": (0, 10), "c": (0, 10)}),
        (pl.DataFrame(frame), (0, 10)),
    ]
    for table, bounds in ways:
        private = LinearRegression(20.0, bounds=bounds, target_bounds=(-20, 35)).fit(table, y)
        assert private.coef_ == pytest.approx(COEFFICIENTS, abs=0.1)
        assert private.predict(table).shape == (3000,)
    for whole in (frame.assign(y=y), pl.DataFrame(frame).with_columns(y=y)):
        named = LinearRegression(20.0, bounds=(0, 10), target_bounds=(-20, 35)).fit(whole, "y")
        assert named.feature_names_in_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bounds": None}, "bounds are missing.*limits the influence of one person"),
        ({"target_bounds": None}, "target_bounds are missing.*influence"),
        ({"bounds": {0: (0, 10)}}, "missing for column 1 and 1 more"),
        ({"bounds": (10, 0)}, "must be below"),
        ({"bounds": (0, np.inf)}, "must be finite"),
        ({"bounds": ([0, 0], [1, 1])}, "3 numbers, one for each feature"),
        ({"epsilon": 0}, "must be positive"),
        ({"epsilon": np.nan}, "finite"),
        ({"delta": 1.0}, r"\[0, 1\)"),
        ({"adjacency": "swap"}, "add-remove, replace-one"),
        ({"method": "newton"}, "gradient-descent"),
        ({"method": "adassp", "delta": 0}, "delta > 0"),
        ({"coef_norm": 0}, "coef_norm"),
        ({"dataset": "people"}, "ledger="),
        ({"max_rows": 3}, "groups="),
    ],
)
def test_a_mistake_is_named(settings, words):
    x, y = numbers(50)
    with pytest.raises(ValueError, match=words):
        LinearRegression(**({"epsilon": 1.0} | BOUNDS | settings)).fit(x, y)


def test_a_message_shows_no_value_of_the_table():
    x, y = numbers(50)
    for table in (
        pd.DataFrame(x, columns=["a", "b", "c"]).assign(name="Ada Lovelace"),
        np.where(x > 9, "Ada Lovelace", "1"),
    ):
        with pytest.raises(ValueError, match="text where a number") as caught:
            LinearRegression(**BOUNDS).fit(table, y)
        assert "Ada" not in "".join(traceback.format_exception(caught.value)).replace('"Ada Lovelace"', "")
    with pytest.raises(ValueError, match="2D array, got 1D array instead: Reshape") as caught:
        LinearRegression(**BOUNDS).fit(np.full(50, 7.125), y)
    assert "7.125" not in str(caught.value)
    with pytest.raises(ValueError, match="text where a number") as caught:
        LinearRegression(**BOUNDS).fit(x, np.where(y > 0, "Ada Lovelace", "1"))
    assert "Ada" not in "".join(traceback.format_exception(caught.value)).replace('"Ada Lovelace"', "")
    with pytest.raises(ValueError, match=r"^Complex data not supported$"):
        LinearRegression(**BOUNDS).fit(x + 1j, y)
    with pytest.raises(ValueError, match="fill="):
        LinearRegression(**BOUNDS).fit(np.where(x > 9, np.nan, x), y)


def test_two_pairs_for_two_features_are_not_guessed():
    x, y = numbers(50)
    with pytest.raises(ValueError, match="ambiguous"):
        LinearRegression(bounds=[(0, 100), (50, 200)], target_bounds=(-20, 35)).fit(x[:, :2], y)


def test_missing_values_need_a_public_constant():
    x, y = numbers(5000)
    x[::7, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        LinearRegression(**BOUNDS).fit(x, y)
    with pytest.raises(ValueError, match="no public constant"):
        LinearRegression(fill={0: 5.0}, **BOUNDS).fit(x, y)
    private = LinearRegression(10.0, fill=5.0, **BOUNDS).fit(x, y)
    assert private.coef_[0] == pytest.approx(2.0, abs=0.1)
    assert np.isfinite(private.predict(x)).all()
    with pytest.raises(SchemaError, match="missing values"):
        LinearRegression(bounds=SCHEMA).fit(pl.DataFrame(patients(10)).with_columns(age=pl.lit(None)))


def test_weights_and_groups_cost_noise_and_not_privacy():
    x, y = numbers(4000)
    with pytest.raises(ValueError, match="max_weight="):
        LinearRegression(**BOUNDS).fit(x, y, sample_weight=np.ones(4000))
    many, target = numbers(20000)
    weights = np.where(many[:, 0] > 5, 2.0, 0.0)
    bent = np.where(many[:, 0] > 5, target, -target)
    private = LinearRegression(20.0, max_weight=2.0, **BOUNDS).fit(many, bent, sample_weight=weights)
    assert private.coef_ == pytest.approx(COEFFICIENTS, abs=0.1)  # its deviation is .009
    owners = np.repeat(np.arange(1000), 4)
    one = LinearRegression(1.0, method="sufficient-statistics", max_rows=4, **BOUNDS).fit(x, y, groups=owners)
    assert (one.privacy_.unit, one.privacy_.details["max_rows"]) == ("person", 4)
    alone = LinearRegression(1.0, method="sufficient-statistics", **BOUNDS).fit(x, y)
    widths = [np.diff(fit.confidence_interval()).max() for fit in (one, alone)]
    assert widths[0] > 1.5 * widths[1]
    for mine, other in zip(one.privacy_.mechanism.parts(), alone.privacy_.mechanism.parts(), strict=True):
        assert mine[0].noise_multiplier == pytest.approx(other[0].noise_multiplier)


def test_estimators_work_in_a_pipeline():
    x, y = numbers(3000)
    halved = make_pipeline(
        FunctionTransformer(lambda table: table / 2), LinearRegression(20.0, bounds=(0, 5), target_bounds=(-20, 35))
    )
    assert halved.fit(x, y).score(x, y) > 0.9
    weighted = make_pipeline(LinearRegression(20.0, max_rows=1, **BOUNDS))
    assert weighted.fit(x, y, linearregression__groups=np.arange(3000)).score(x, y) > 0.9


def test_a_schema_encodes_in_a_pipeline_with_names():
    table = pd.DataFrame(patients(3000))
    encoder = SchemaEncoder(SCHEMA).set_output(transform="pandas")
    assert encoder.fit_transform(table).columns.tolist() == list(SCHEMA.feature_names)
    private = make_pipeline(SchemaEncoder(SCHEMA), LinearRegression(20.0, bounds=(-1, 1), target_bounds=(0, 400)))
    assert private.fit(table, table["cost"]).score(table, table["cost"]) > 0.9
    assert clone(private[0]).schema == SCHEMA


def test_there_is_no_seed_and_two_fits_differ():
    x, y = numbers(500)
    assert "random_state" not in LinearRegression().get_params()
    one, two = (LinearRegression(1.0, **BOUNDS).fit(x, y).coef_ for _ in range(2))
    assert (one != two).all()


def test_numbers_out_of_numpy_are_numbers():
    x, y = numbers(500)
    half = np.float32(0.5)
    for settings in ({"split": half}, {"split": (half, half)}):
        model = FunctionalLinearRegression(np.float32(1.0), **BOUNDS, **settings)
        assert model.fit(x, y).privacy_.claim <= 1.0
