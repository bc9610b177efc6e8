"""Curves are learned without bins cut by hand, from tables of every kind, and mistakes are named."""

from __future__ import annotations

import pickle
from unittest import SkipTest

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from tacit.additive import AdditiveClassifier, AdditiveRegressor
from tacit.additive.basis import Basis, histogram, independent, parts_of, shares, towards
from tacit.additive.columns import columns_of, encode
from tacit.linear_model import LinearRegression
from tacit.linear_model.bounds import features_of
from tacit.linear_model.rows import Rows
from tacit.linear_model.sensitivity import Shape
from tacit.noise.entropy import expanded
from tacit.schema import Boolean, Categorical, Numeric, Schema, Unit
from tests.linear_model.test_estimators import NOT_FOR_NOISE, SKIPPED_BY_SKLEARN

SIZES = {"bounds": (-4, 4), "max_weight": 10.0}
CHECKED = [AdditiveRegressor(1e5, target_bounds=(-200, 200), **SIZES), AdditiveClassifier(1e5, **SIZES)]
REAL = {"bounds": (-1, 1), "target_bounds": (-2, 2)}


def bent(rows: int = 20_000, seed: int = 0):
    """A parabola, a step, and a column that says nothing."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (rows, 3))
    return x, x[:, 0] ** 2 + 0.8 * (x[:, 1] > 0.3) + 0.1 * generator.normal(size=rows)


@pytest.mark.parametrize("estimator", CHECKED, ids=lambda e: type(e).__name__)
def test_scikit_learns_own_checks(estimator):
    for case, check in estimator_checks_generator(estimator):
        name = getattr(check, "func", check).__name__
        if name in NOT_FOR_NOISE:
            continue
        try:
            check(case)
        except SkipTest:
            assert name in SKIPPED_BY_SKLEARN, name


def test_bends_are_found_that_a_line_does_not_have():
    x, y = bent()
    line = LinearRegression(1.0, **REAL).fit(x, y).score(x, y)
    curves = AdditiveRegressor(1.0, **REAL).fit(x, y)
    assert line < 0.6 < 0.85 < curves.score(x, y)
    assert np.ptp(curves.curves_["x2"].value) < 0.25 < np.ptp(curves.curves_["x0"].value)
    found = AdditiveClassifier(1.0, bounds=(-1, 1)).fit(x, (y > 0.7).astype(int))
    assert found.score(x, y > 0.7) > 0.85
    assert found.predict_proba(x).sum(axis=1) == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_amounts_of_money_that_crowd_near_zero_need_no_logarithm(scale):
    generator = np.random.default_rng(1)
    money = np.exp(generator.normal(0, 2, 20_000)) * (generator.uniform(size=20_000) < 0.7)
    y = np.log1p(money)
    settings = {"bounds": (0, 5000 * scale), "target_bounds": (0, 10)}
    curves = AdditiveRegressor(1.0, **settings).fit(money[:, None] * scale, y)
    assert curves.score(money[:, None] * scale, y) > 0.9
    assert LinearRegression(1.0, **settings).fit(money[:, None] * scale, y).score(money[:, None] * scale, y) < 0.6


def test_missing_values_and_categories_are_bins_of_their_own():
    generator = np.random.default_rng(2)
    age, ward = generator.uniform(0, 100, 20_000), generator.choice(["a", "b", None], 20_000)
    smokes = generator.choice([True, False, None], 20_000)
    lost = generator.uniform(size=20_000) < 0.2
    y = np.where(lost, 3.0, age / 50) + 2.0 * (ward == "b") + 4.0 * pd.isna(ward) + 1.0 * pd.isna(smokes)
    table = pl.DataFrame({"age": np.where(lost, np.nan, age), "ward": ward, "smokes": smokes}, strict=False)
    schema = Schema(
        (Numeric("age", 0, 100), Categorical("ward", ["a", "b"], other=False), Boolean("smokes")), Unit("person")
    )
    fitted = AdditiveRegressor(5.0, bounds=schema, target_bounds=(0, 12)).fit(table, y)
    assert fitted.score(table, y) > 0.97
    a, b = fitted.curves_["ward"].value
    assert b - a == pytest.approx(2.0, abs=0.3)
    assert fitted.curves_["ward"].missing - a == pytest.approx(4.0, abs=0.3)
    assert fitted.curves_["ward"].at.tolist() == ["a", "b"]
    plain = table.select("age").to_numpy()
    assert AdditiveRegressor(5.0, bounds=(0, 100), target_bounds=(0, 12)).fit(plain, y).score(plain, y) > 0.05
    declared = Schema((Numeric("age", 0, 100, fill=50),), Unit("person"))
    assert AdditiveRegressor(bounds=declared, target_bounds=(0, 12)).fit(table, y).curves_["age"].missing is None


def test_a_prediction_is_the_sum_of_its_curves():
    x, y = bent(4000)
    edges = {"x0": [-0.5, 0.0, 0.5], "x1": [0.3], "x2": [0.0]}
    fitted = AdditiveRegressor(3.0, edges=edges, **REAL).fit(x, y)
    # Both ends of each cell are given: the right end of one is the left end of the next, on the other side of a jump.
    row = np.array([[0.5, 0.3, 0.0]])
    places = {"x0": 6, "x1": 2, "x2": 2}
    total = fitted.intercept_ + sum(fitted.curves_[name].value[at] for name, at in places.items())
    assert fitted.predict(row)[0] == pytest.approx(total, abs=1e-4)
    assert [fitted.curves_[name].at[at] for name, at in places.items()] == pytest.approx([0.5, 0.3, 0.0], abs=1e-5)
    assert len(fitted.privacy_.mechanism.parts()) == 2  # public edges are not counted, and not paid for


def test_a_pair_is_learned_where_it_is_asked_for():
    generator = np.random.default_rng(3)
    x = generator.uniform(-1, 1, (20_000, 2))
    y = np.sign(x[:, 0]) * x[:, 1]
    assert AdditiveRegressor(2.0, **REAL).fit(x, y).score(x, y) < 0.1
    assert AdditiveRegressor(2.0, pairs=[("x0", "x1")], **REAL).fit(x, y).score(x, y) > 0.6
    yes = x[:, 0] > 0
    table = pl.DataFrame({"yes": yes, "amount": x[:, 1]})
    schema = Schema((Boolean("yes"), Numeric("amount", -1, 1)), Unit("person"))
    settings = {"bounds": schema, "target_bounds": (-2, 2), "pairs": [("yes", "amount")]}
    assert AdditiveRegressor(2.0, **settings).fit(table, y).score(table, y) > 0.6


def test_several_classes_weights_and_people():
    x, y = bent(6000)
    labels = np.array(["low", "middle", "top"])[np.digitize(y, [0.4, 0.9])]
    three = AdditiveClassifier(4.0, bounds=(-1, 1), classes=["low", "middle", "top"]).fit(x, labels)
    assert three.score(x, labels) > 0.7
    assert three.curves_["x0"].value.shape == (len(three.curves_["x0"].at), 3)
    weights = np.where(y > 0.7, 3.0, 0.0)
    heavy = AdditiveRegressor(4.0, max_weight=3.0, **REAL).fit(x, y, sample_weight=weights)
    assert heavy.predict(x).mean() > y.mean() + 0.03
    owned = AdditiveRegressor(4.0, max_rows=2, **REAL).fit(x, y, groups=np.arange(6000) // 3)
    assert owned.privacy_.details["max_rows"] == 2


def test_the_band_is_as_wide_as_fits_differ():
    x, y = bent(6000)
    at = np.column_stack([np.linspace(-0.95, 0.95, 20), np.zeros(20), np.zeros(20)])
    fits = [AdditiveRegressor(1.0, **REAL).fit(x, y) for _ in range(16)]
    found = np.array([fitted.predict(at) - fitted.predict(at).mean() for fitted in fits])
    curves = [fitted.curves_["x0"] for fitted in fits]
    stated = np.mean([np.interp(at[:, 0], curve.at, curve.error) for curve in curves])
    assert 0.6 < found.std(axis=0).mean() / stated < 1.6


def test_one_secret_gives_one_fit_and_a_fit_can_be_pickled():
    x, y = bent(500)

    def fitted():
        with expanded(bytes(range(32))):
            return AdditiveRegressor(1.0, **REAL).fit(x, y)

    one, other = fitted(), fitted()
    assert (one.predict(x) == other.predict(x)).all()
    assert (pickle.loads(pickle.dumps(one)).predict(x) == one.predict(x)).all()


def test_curves_are_drawn():
    x, y = bent(2000)
    fitted = AdditiveRegressor(1.0, **REAL).fit(x, y)
    figure = fitted.plot()
    assert [panel.get_title() for panel in figure.axes] == ["x0", "x1", "x2"]
    assert all(panel.collections for panel in figure.axes)  # the bands
    table = pl.DataFrame({"a": np.arange(300) % 3, "b": np.arange(300) % 2})
    schema = Schema((Categorical("a", [0, 1, 2]), Boolean("b", true="1", false="0")), Unit("person"))
    three = AdditiveClassifier(bounds=schema, classes=[0, 1, 2]).fit(table, np.arange(300) % 3)
    assert len(three.plot(["a"]).axes) == 1
    with pytest.raises(ValueError, match="no column 'z'"):
        three.plot(["z"])


def test_a_histogram_of_noise_alone_is_close_to_even():
    generator = np.random.default_rng(4)
    found = shares(generator.normal(0, 100, 64) + 10, 100.0)
    assert found.sum() == pytest.approx(1.0)
    assert found.max() < 0.5
    peak = np.r_[np.zeros(20), 5000.0, np.full(43, 50.0)]
    assert shares(peak + generator.normal(0, 50, 64), 50.0)[20] == pytest.approx(5000 / 7150, abs=0.1)


def test_second_moments_of_independent_columns_follow_from_the_histogram_alone():
    generator = np.random.default_rng(5)
    table = pl.DataFrame(
        {
            "debt": generator.exponential(1, 40_000).clip(0, 10),
            "job": generator.choice(["a", "b", None], 40_000, p=[0.6, 0.3, 0.1]),
            "left": generator.random(40_000) < 0.2,
        }
    )
    schema = Schema(
        (Numeric("debt", 0, 10), Categorical("job", ["a", "b"], other=False), Boolean("left")), Unit("person")
    )
    features = features_of(schema, 0, None, None, intercept=True)
    x = encode(table, features)
    rows = Rows(x, np.zeros(len(x)), Shape(x.shape[1]))
    columns = columns_of(features, None)
    counts = histogram(rows, columns)
    basis = Basis(parts_of(columns, counts, 1.0, 4))
    z = basis.rows(rows).x
    right, found = z.T @ z, independent(basis.parts, counts, 40_000.0)
    assert np.abs(found - right).max() < 0.02 * 40_000  # a cell has a width, and columns meet by chance
    pulled, left = towards(right + 2000 * np.eye(len(right)), found, 2000.0)
    assert np.abs(pulled - right).max() < 0.06 * 40_000
    assert left == 1000.0
    unknown = independent(parts_of(columns_of(features, {"debt": [1.0]}), counts[65:], 1.0, 4), counts[65:], 40_000.0)
    assert np.isnan(unknown[0, 1])
    assert not np.isnan(unknown[-3:, -3:]).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bounds": None}, "bounds are missing"),
        ({"delta": 0}, "delta > 0"),
        ({"coef_norm": 0}, "coef_norm"),
        ({"edges": [1, 2]}, "edges must map"),
        ({"edges": {"x9": [0.0]}}, "not a column of numbers"),
        ({"edges": {"x0": [0.5, 0.1]}}, "increasing"),
        ({"edges": {"x0": [3.0]}}, "inside the bounds"),
        ({"edges": {"x0": 5}}, "must be a list of numbers"),
        ({"edges": {"x0": ["young"]}}, "must be a list of numbers"),
        ({"pairs": 2}, "pairs of different columns"),
        ({"pairs": [("x0", "x0")]}, "pairs of different columns"),
        ({"pairs": [("x0", "x9")]}, "not a column"),
        ({"max_rows": 2}, "give their ids"),
        ({"unit": "person"}, "ids"),
    ],
)
def test_a_mistake_is_named(settings, message):
    x, y = bent(50)
    with pytest.raises(ValueError, match=message):
        AdditiveRegressor(**(REAL | settings)).fit(x, y)


def test_files_are_refused(tmp_path):
    pl.DataFrame({"a": [0.0], "y": [0.0]}).write_csv(tmp_path / "t.csv")
    with pytest.raises(ValueError, match="in memory"):
        AdditiveRegressor(bounds={"a": (0, 1)}, target_bounds=(0, 1)).fit(tmp_path / "t.csv", "y")
