"""Intervals cover, or say why they do not: skewed, collinear, rare, heteroskedastic data, two kinds of regression."""

from __future__ import annotations

import warnings

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom
from sklearn.linear_model import LogisticRegression as Plain

from tacit.accounting.errors import PrivacyWarning
from tacit.linear_model import FunctionalLogisticRegression, LinearRegression, LogisticRegression, releases
from tacit.linear_model.inference import open_directions
from tacit.schema import Categorical, Numeric, Schema, Unit
from tests.linear_model.common import BOUNDS, COEFFICIENTS, labels, numbers

UNIT = {"bounds": (-1, 1), "target_bounds": (-1, 1)}


def covered(fits):
    """How many finite intervals hold the truth, how many there are, and how many were refused."""
    hits = total = refused = 0
    for private, truth in fits:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            interval = private.confidence_interval()
        finite = np.isfinite(interval[:, 0])
        hits += int(((interval[:, 0] <= truth) & (truth <= interval[:, 1]) & finite).sum())
        total += int(finite.sum())
        refused += int((~finite).sum())
    return hits, total, refused


def enough(hits, total):
    """Not below 93% by so much that it would happen once in a million at 93%."""
    return hits >= binom.ppf(1e-6, total, 0.93)


def table(kind, seed, rows=5000):
    """Features in [-1, 1], a target, and the true coefficients."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (rows, 3))
    if kind == "a rare outcome":
        return x, 2.0 * (generator.random(rows) < 0.15 + 0.12 * x[:, 0]) - 1, np.array([0.24, 0, 0])
    if kind == "collinear columns":
        x[:, 1] = np.clip(x[:, 0] + 0.026 * generator.normal(size=rows), -1, 1)
        return x, x @ [0.3, 0.2, -0.1] + 0.1 * generator.normal(size=rows), np.array([0.3, 0.2, -0.1])
    if kind == "a rare category":
        x[:, 2] = generator.random(rows) < 0.005
        return x, x @ [0.3, 0.2, 0.1] + 0.1 * generator.normal(size=rows), np.array([0.3, 0.2, 0.1])
    if kind == "errors by category":
        x[:, 2] = generator.random(rows) < 0.05
        scale = np.where(x[:, 2] > 0, 0.3, 0.03)
        return x, x @ [0.3, 0.1, 0.1] + scale * generator.normal(size=rows), np.array([0.3, 0.1, 0.1])
    errors = np.abs(x[:, 0]) ** 3 * generator.uniform(-0.7, 0.7, rows)
    return x, 0.3 * x[:, 0] + errors, np.array([0.3, 0, 0])


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize("kind", ["a rare outcome", "collinear columns", "a rare category", "uneven errors"])
def test_the_default_covers_or_refuses(kind, epsilon):
    fits = []
    for seed in range(40):
        x, y, truth = table(kind, seed)
        fits.append((LinearRegression(epsilon, **UNIT).fit(x, y), truth))
    hits, total, refused = covered(fits)
    assert enough(hits, total), (hits, total)
    if kind in ("a rare outcome", "uneven errors"):
        assert not refused
        middle = np.mean([fit.coef_ for fit, _ in fits], axis=0)
        assert middle == pytest.approx(fits[0][1], abs=0.02)
    if kind == "collinear columns":
        assert refused == 80  # nobody can tell the two apart at this ε; the third has its interval


def test_errors_that_few_rows_hold_are_seen():
    """One clip level for the errors' shape hid them: of these intervals, about half covered."""
    hits = 0
    for seed in range(90):
        x, y, truth = table("errors by category", seed)
        low, high = LinearRegression(10.0, **UNIT).fit(x, y).confidence_interval()[2]
        hits += int(low <= truth[2] <= high)
    assert hits >= binom.ppf(1e-6, 90, 0.93), hits


def test_errors_at_the_ends_of_a_feature_are_seen_in_a_small_table():
    """With clip levels that no number of rows moved, half of these intervals were shorter than without noise, and 86%
    covered: a tenth of the rows has all errors.
    """
    longer = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        x = generator.uniform(-1, 1, (1000, 3))
        y = np.where(np.abs(x[:, 0]) > 0.9, generator.choice([-1.0, 1.0], 1000), 0.0)
        low, high = LinearRegression(3.0, **UNIT).fit(x, y).confidence_interval()[0]
        design = np.column_stack([np.ones(1000), x])
        inverse = np.linalg.inv(design.T @ design)
        scores = design * (y - design @ (inverse @ design.T @ y))[:, None]
        longer += int(high - low > 2 * 1.96 * np.sqrt((inverse @ scores.T @ scores @ inverse)[1, 1]))
    assert longer >= 45, longer


def test_what_the_noise_of_a_fit_was_does_not_choose_its_method(monkeypatch):
    """Steps were taken where the noise of Σyx was large, and two thirds of the intervals of those fits covered."""
    noise, stepped, fits = np.random.default_rng(0), [], []
    monkeypatch.setattr(releases, "add_gaussian", lambda exact, scale: exact + noise.normal(0, scale, np.shape(exact)))
    steps = LinearRegression._stepped
    monkeypatch.setattr(LinearRegression, "_stepped", lambda *given: stepped.append(len(fits)) or steps(*given))
    for _ in range(250):
        x = noise.uniform(-1, 1, (3000, 2))
        fits.append((LinearRegression(1.0, **UNIT).fit(x, np.full(3000, 0.7)), np.zeros(2)))
    for some in (stepped, set(range(250)) - set(stepped)):
        hits, total, _ = covered([fits[i] for i in some])
        assert enough(hits, total), (hits, total)


def test_intervals_that_took_equal_errors_for_granted_would_miss():
    """The wrong version: without what the release about the errors' shape found, uneven errors are not covered."""
    fits = []
    for seed in range(40):
        x, y, truth = table("uneven errors", seed)
        private = LinearRegression(50.0, **UNIT).fit(x, y)
        right = np.diff(private.confidence_interval()[:1]).item()
        errors = y - private.predict(x)
        wrong = 2 * 1.96 * np.std(errors) / np.sqrt((x[:, 0] ** 2).sum())
        fits.append((private.coef_[0], truth[0], right, wrong))
    inside = [
        sum(abs(found - true) <= width / 2 for found, true, *widths in fits for width in [widths[i]]) for i in (0, 1)
    ]
    assert inside[0] >= binom.ppf(1e-6, 40, 0.93)
    assert np.mean([right for *_, right, _ in fits]) > 1.2 * np.mean([wrong for *_, wrong in fits])


@pytest.mark.parametrize("method", ["adassp", "functional"])
def test_methods_that_pay_nothing_for_errors_cover_with_wider_intervals(method):
    fits = []
    for seed in range(20):
        x, y, truth = table("uneven errors", seed)
        delta = 0.0 if method == "functional" else 1e-6
        fits.append((LinearRegression(3.0, delta, method=method, **UNIT).fit(x, y), truth))
    hits, total, refused = covered(fits)
    assert hits == total > 0 == refused


def test_levels_and_intercepts():
    private = LinearRegression(5.0, **BOUNDS).fit(*numbers(4000, noise=3.0))
    wide, narrow = private.confidence_interval(0.99), private.confidence_interval(0.5)
    assert (wide[:, 0] < narrow[:, 0]).all()
    assert (wide[:, 1] > narrow[:, 1]).all()
    assert private.confidence_interval(intercept=True).shape == (4, 2)
    assert wide.mean(axis=1) == pytest.approx(COEFFICIENTS, abs=0.3)
    with pytest.raises(ValueError, match="level"):
        private.confidence_interval(95)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (LinearRegression(1.0, method="gradient-descent", **BOUNDS), "clips"),
        (LogisticRegression(1.0, method="gradient-descent", bounds=(0, 10)), "clips"),
        (LogisticRegression(1.0, 0.0, bounds=(0, 10)), "delta > 0"),
        (LogisticRegression(0.01, bounds=(0, 10)), "too few rows"),
        (FunctionalLogisticRegression(1.0, bounds=(0, 10)), "Use LogisticRegression"),
    ],
)
def test_a_method_without_intervals_says_why(model, why):
    data = numbers(500) if isinstance(model, LinearRegression) else labels(500)
    with pytest.raises(ValueError, match=f"no intervals.*{why}"):
        model.fit(*data).confidence_interval()


def test_a_coefficient_that_the_noise_hides_is_named():
    x, y, _ = table("collinear columns", 0)
    private = LinearRegression(1.0, **UNIT).fit(x, y)
    with pytest.warns(PrivacyWarning, match="hides x0, x1: too few rows"):
        interval = private.confidence_interval()
    assert np.isinf(interval[:2]).all()
    assert np.isfinite(interval[2]).all()


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_category_without_rows_hides_no_other(kind):
    """Coefficients of least norm had a part of each category in all others: a clean table, in which nothing is "other",
    had no interval for any of its categories at any ε, and a classifier's none at all.
    """
    ward = Categorical("ward", ["a", "b", "c"])
    generator, fits = np.random.default_rng(0), []
    for _ in range(12):
        places, age = generator.integers(0, 3, 20_000), generator.uniform(-1, 1, 20_000)
        slopes = np.array([-0.3, 0.0, 0.3]) if kind == "numbers" else np.array([-1.0, 0.0, 1.0])
        frame = {"age": age, "ward": np.array(["a", "b", "c"])[places]}
        if kind == "numbers":
            frame["y"] = 0.2 * age + slopes[places] + 0.1 * generator.normal(size=20_000)
            schema = Schema((Numeric("age", -1, 1), ward, Numeric("y", -1, 1, target=True)), Unit("record"))
            fitted = LinearRegression(2.0, bounds=schema).fit(frame)
        else:
            y = (generator.random(20_000) < 1 / (1 + np.exp(-slopes[places]))).astype(int)
            schema = Schema((Numeric("age", -1, 1), ward), Unit("record"))
            fitted = LogisticRegression(10.0, bounds=schema).fit(frame, y)
        with pytest.warns(PrivacyWarning, match="hides ward=other"):
            interval = fitted.confidence_interval()
        assert np.isinf(interval[4]).all()
        assert np.isfinite(interval[:4]).all()
        fits.append((fitted, np.r_[0.2 if kind == "numbers" else 0.0, slopes, np.nan]))
    hits, total, _ = covered(fits)
    assert enough(hits, total), (hits, total)


def test_categories_that_add_up_to_the_constant_are_told_apart():
    """The encoding leaves a direction open, which is public; categories average to zero over the rows."""
    schema = Schema(
        (Numeric("age", 0, 10), Categorical("ward", ["a", "b"], other=False), Numeric("y", -1, 1, target=True)),
        Unit("record"),
    )
    generator = np.random.default_rng(0)
    fits = []
    for _ in range(30):
        age, ward = generator.uniform(0, 10, 8000), generator.integers(0, 2, 8000)
        y = 0.04 * (age - 5) + 0.3 * ward + 0.1 * generator.normal(size=8000)
        private = LinearRegression(2.0, bounds=schema).fit({"age": age, "ward": np.array(["a", "b"])[ward], "y": y})
        fits.append((private, np.array([0.04, -0.15, 0.15])))
        assert private.coef_ == pytest.approx(private.confidence_interval().mean(axis=1), abs=0.05)  # not shifted
    assert open_directions(private.features_, 4).tolist() == [[-1, 0, 1, 1]]
    hits, total, refused = covered(fits)
    assert total == 90
    assert not refused
    assert enough(hits, total)


# -- adassp, noise alone -----------------------------------------------------------------------------------------------


def test_adassp_stays_bounded_where_features_fill_a_tenth_of_their_bounds():
    generator = np.random.default_rng(0)
    x = generator.uniform(-0.1, 0.1, (5000, 5))
    y = x @ [1, 2, 0, -1, 0.5] + 0.1 * generator.normal(size=5000)
    for _ in range(30):
        assert np.abs(LinearRegression(1.0, method="adassp", **UNIT).fit(x, y).coef_).max() < 3


def test_where_noise_hides_everything_the_fit_stays_near_the_mean():
    scores = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        x = generator.uniform(-1, 1, (2000, 10))
        y = 0.1 * x[:, 0] + 0.2 * generator.normal(size=2000)
        scores.append(LinearRegression(0.1, **UNIT).fit(x, y).score(x, y))
    assert np.mean(scores) > -0.35  # gradient descent alone: -0.7; the noise of the mean itself costs about 0.1


# -- logistic regression -----------------------------------------------------------------------------------------------


def outcomes(constant, slopes, rows, seed):
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (rows, len(slopes)))
    return x, (generator.random(rows) < 1 / (1 + np.exp(-constant - x @ slopes))).astype(int)


@pytest.mark.parametrize(
    ("constant", "slopes", "rows", "epsilon"), [(0, [1, 0.5], 5000, 1), (-4.7, [2, 0], 20_000, 16)]
)
def test_logistic_regression_is_unbiased_and_covers(constant, slopes, rows, epsilon):
    fits = []
    for seed in range(24):
        data = outcomes(constant, slopes, rows, seed)
        fits.append((LogisticRegression(epsilon, bounds=(-1, 1)).fit(*data), np.array(slopes)))
    hits, total, refused = covered(fits)
    assert enough(hits, total), (hits, total)
    assert not refused
    assert np.mean([fit.coef_[0] for fit, _ in fits], axis=0) == pytest.approx(slopes, abs=0.15)
    x, y = outcomes(constant, slopes, 40_000, 99)
    assert fits[0][0].predict_proba(x)[:, 1].mean() == pytest.approx(y.mean(), rel=0.2)


def test_a_bound_on_the_rows_norm_takes_the_place_of_bounds():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(6000, 60))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = (x @ generator.normal(size=60) > 0).astype(int)
    by_norm = LogisticRegression(3.0, row_norm=1.0).fit(x, y)
    by_box = LogisticRegression(3.0, bounds=(-1, 1)).fit(x, y)
    assert by_norm.score(x, y) > max(0.8, by_box.score(x, y))
    assert by_norm.decision_function(5 * x) == pytest.approx(by_norm.decision_function(x), abs=1e-3)  # shortened
    with pytest.raises(ValueError, match="not both"):
        LogisticRegression(row_norm=1.0, bounds=(-1, 1)).fit(x, y)
    with pytest.raises(ValueError, match="row_norm must be"):
        LogisticRegression(row_norm=-1.0).fit(x, y)


def test_class_weights_are_public_or_paid_for():
    x, y = outcomes(-3.0, [2.0, 0.0], 20_000, 1)
    plain = Plain(C=1e6, class_weight={0: 1, 1: 10}).fit(x, y)
    given = LogisticRegression(5.0, bounds=(-1, 1), class_weight={0: 1, 1: 10}).fit(x, y)
    assert given.coef_[0] == pytest.approx(plain.coef_[0], abs=0.3)
    balanced = LogisticRegression(5.0, bounds=(-1, 1), class_weight="balanced").fit(x, y)
    even = Plain(C=1e6, class_weight="balanced").fit(x, y)
    assert balanced.coef_[0] == pytest.approx(even.coef_[0], abs=0.3)
    assert balanced.intercept_ == pytest.approx(even.intercept_, abs=0.2)
    assert balanced.privacy_.upper <= 5.0
    for wrong, said in (({0: 1}, "each of the classes"), ({0: 1, 1: -1}, "positive"), ("even", "'balanced' or")):
        with pytest.raises(ValueError, match=said):
            LogisticRegression(bounds=(-1, 1), class_weight=wrong).fit(x, y)
    with pytest.raises(ValueError, match="counts the classes privately"):
        LogisticRegression(bounds=(-1, 1), class_weight="balanced", method="dp-sgd").fit(x, y)


@pytest.mark.parametrize(("rows", "epsilon", "method"), [(300, 0.1, "auto"), (50, 1.0, "sufficient-statistics")])
def test_no_average_over_categories_is_stated_where_the_noise_hides_how_many_rows_they_have(rows, epsilon, method):
    """The wrong version stated 0 ± 0 of a category that noise gave all the rows: none of 29 such intervals covered."""
    generator = np.random.default_rng(1)
    schema = Schema(
        (Categorical("town", ["a", "b"]), Numeric("w", 0, 1), Numeric("y", 0, 1, target=True)), Unit("person")
    )
    for _ in range(25):
        town, w = generator.choice(["a", "b"], rows), generator.random(rows)
        y = np.clip(0.3 + 0.2 * w + 0.2 * (town == "b") + 0.1 * generator.normal(size=rows), 0, 1)
        table = pl.DataFrame({"town": town, "w": w, "y": y})
        fitted = LinearRegression(epsilon=epsilon, bounds=schema, method=method).fit(table)
        assert np.isinf(fitted.confidence_interval()[:3]).all()
