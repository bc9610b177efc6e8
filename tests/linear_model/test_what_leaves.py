"""The exact values that get noise in a fit: bounded whatever a row holds, each with the noise that was priced."""

from __future__ import annotations

import itertools
import math

import numpy as np
import polars as pl
import pytest

from tacit import accounting as acc
from tacit.linear_model import LinearRegression, LogisticRegression, Ridge, functional, inference, logistic
from tacit.linear_model import objective as op
from tacit.linear_model.moments import to_grid
from tacit.linear_model.sensitivity import Shape
from tacit.schema import Numeric, Schema, Unit
from tests.catalogue.seam import watched

METHODS = ["auto", "gradient-descent", "adassp", "sufficient-statistics", "functional"]
FURTHER = (logistic.COUNTS, logistic.HESSIAN, logistic.SCORES)
BOUNDS = {"bounds": (-1, 1), "target_bounds": (-1, 1)}


def rows(last_x=0.5, last_y=0.5, count=50):
    generator = np.random.default_rng(3)
    x = generator.uniform(-1, 1, (count, 2))
    y = x @ [0.5, -0.25] + 0.1
    x[-1], y[-1] = last_x, last_y
    return x, y


def drawn(estimator, *arguments, **more):
    """Every exact value in units of its noise, in the order in which noise was added."""
    with watched() as seen:
        estimator.fit(*arguments, **more)
    return seen.drawn


def settings(method):
    return {"epsilon": 1.0, "delta": 0.0 if method == "functional" else 1e-5, "method": method}


def same(one, other):
    assert [len(a.values) for a in one] == [len(a.values) for a in other]
    for a, b in zip(one, other, strict=True):
        assert (a.kind, a.scale) == (b.kind, b.scale)
        assert np.array_equal(a.values, b.values)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kind", [LinearRegression, Ridge])
@pytest.mark.parametrize("method", METHODS)
def test_a_target_beyond_its_bounds_counts_as_the_bound(method, kind, intercept, tmp_path):
    def fitted(last_y, *, file=False, schema=False):
        x, y = rows(last_y=last_y)
        made = kind(**settings(method), fit_intercept=intercept, **BOUNDS)
        if file:
            table = pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})
            table.write_parquet(tmp_path / "t.parquet")
            return drawn(made.set_params(bounds={"a": (-1, 1), "b": (-1, 1)}), tmp_path / "t.parquet", "y")
        if schema:
            columns = [Numeric(name, -1, 1) for name in "ab"]
            public = Schema([*columns, Numeric("y", -1, 1, target=True)], Unit("row"))
            return drawn(
                made.set_params(bounds=public, target_bounds=None), pl.DataFrame({"a": x[:, 0], "b": x[:, 1]}), y
            )
        return drawn(made, x, y)

    for where in ({}, {"file": True}, {"schema": True}) if kind is LinearRegression and intercept else ({},):
        same(fitted(1e6, **where), fitted(1.0, **where))
        same(fitted(-1e300, **where), fitted(-1.0, **where))


@pytest.mark.parametrize("method", METHODS)
def test_features_and_weights_beyond_their_bounds_count_as_the_bound(method):
    x, y = rows(last_x=1e9)
    inside, _ = rows(last_x=1.0)
    made = LinearRegression(**settings(method), **BOUNDS)
    same(drawn(made, x, y), drawn(made, inside, y))
    weighted = LinearRegression(**settings(method), max_weight=2.0, **BOUNDS)
    heavy, full = np.ones(50), np.ones(50)
    heavy[-1], full[-1] = 1e12, 2.0
    same(drawn(weighted, inside, y, sample_weight=heavy), drawn(weighted, inside, y, sample_weight=full))


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_adassp_adds_noise_to_the_eigenvalue_the_matrix_and_the_vector(adjacency):
    x, y = rows()
    made = LinearRegression(1.0, 1e-5, method="adassp", adjacency=adjacency, **BOUNDS)
    found = drawn(made, x, y)
    assert [len(one.values) for one in found] == [1, 3, 3, 3]  # eigenvalue; diagonal and triangle; vector
    full = np.column_stack([np.ones(50), x])
    smallest = np.linalg.eigvalsh(full.T @ full)[0]
    assert found[0].values[0] * found[0].scale[0] == pytest.approx(smallest, rel=1e-4)  # rows lie on a grid
    # What each neighbour can move, in units of the noise, is what was priced: |row|² for the eigenvalue, and so on.
    # The same noise is priced for both adjacencies by what a neighbour moves.
    largest, parts = 3.0, [part for part, _ in made.privacy_.mechanism.parts()]
    replaced = adjacency == "replace-one"
    shifts = (1.0, math.sqrt(2) if replaced else 1.0, 2.0 if replaced else 1.0)
    noises = (found[0].scale[0], found[1].scale[0], found[3].scale[0])
    moved = (largest, largest, math.sqrt(3.0))
    spent = sum((shift * move / noise) ** 2 for shift, move, noise in zip(shifts, moved, noises, strict=True))
    assert len(parts) == 3
    priced = acc.epsilon(acc.GDP(math.sqrt(spent)), 1e-5)
    assert priced.upper <= 1.0 + 1e-6
    assert priced.upper >= 0.95


@pytest.mark.parametrize(("classes", "slots"), [(2, 1), (2, 2), (3, 1), (5, 2)])
def test_objective_perturbation_pays_for_every_direction_that_the_noise_can_be_compared_in(classes, slots):
    # Redberg et al. (2023): with the noise's own curve G at what the Jacobian leaves of ε, δ is 2·G for two classes and
    # one row, because the sign of the row's pull is not known; with more classes or rows a union over all of them.
    slope = op.Slope(norm_squared=2.0, classes=classes, slots=slots)
    sigma, ridge = 9.0, 50.0
    epsilon = slope.jacobian(ridge) + 1.0
    reach = slots * math.sqrt(2.0 * (1 if classes == 2 else 2))
    alone = acc.delta(acc.Gaussian(sigma / reach), 1.0).upper
    wanted = (2 * (classes - 1)) ** slots * alone
    assert op.gaussian_delta(epsilon, sigma, ridge, slope) == pytest.approx(min(1.0, wanted), rel=1e-6)


def test_a_calibrated_objective_perturbation_keeps_its_budget_by_that_formula():
    for classes in (2, 4):
        slope = op.Slope(norm_squared=3.0, classes=classes)
        made = op.perturb(slope, 1.0, 1e-6, "add-remove", "record")
        left = 1.0 - slope.jacobian(made.ridge)
        alone = acc.delta(acc.Gaussian(made.sigma / slope.lipschitz), left)
        assert 2 * (classes - 1) * alone.lower <= 1e-6
        assert 2 * (classes - 1) * alone.upper >= 0.7e-6  # the output's noise takes the rest
        with watched() as seen:
            made.hide(np.zeros(3))
        tolerated = op.TOLERANCE * math.sqrt(3.0)
        assert seen.drawn[0].scale[0] == pytest.approx(made.output * 2 * tolerated / made.ridge)


def test_a_classifier_by_objective_perturbation_draws_what_it_priced():
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (60, 2))
    y = (x[:, 0] > 0).astype(int)
    made = LogisticRegression(1.0, 1e-5, bounds=(-1, 1), classes=[0, 1], method="objective-perturbation")
    found = drawn(made, x, y)
    wanted = op.perturb(op.Slope(norm_squared=3.0), 1.0, 1e-5, "add-remove", "record", further=FURTHER)
    counts, hessian, _ = wanted.further
    scales = [counts, wanted.sigma, wanted.output * 2 * wanted.tolerance / wanted.ridge, 3 * hessian]
    assert [one.scale[0] for one in found[:4]] == pytest.approx(scales, rel=1e-5)
    levels = len(inference.LEVELS)
    assert [len(one.values) for one in found] == [
        2,
        *[3] * (4 + levels),
    ]  # the Hessian's diagonal and triangle; the scores


@pytest.mark.parametrize("spread", [1.0, 1e-6])  # every share is clipped where errors were small
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_no_row_moves_what_follows_objective_perturbation_by_more_than_was_priced(adjacency, spread):
    """Neighbours at released coefficients: counts, Hessian and the shares in the variances, against their noise."""
    generator = np.random.default_rng(5)
    x, y = generator.uniform(-1, 1, (40, 2)), generator.integers(0, 2, 40)
    shape = Shape(scalars=2)
    theta = np.array([[0.3], [2.0], [-1.0]])
    corners = [np.r_[1.0, a, b] for a in (-1.0, 0.0, 1.0) for b in (-1.0, 1.0)]

    def sums(more):
        features = np.vstack([np.column_stack([np.ones(40), x]), *(row[None] for row, _ in more)])
        rows_ = op.Rows(to_grid(features), np.r_[y, [label for _, label in more]].astype(float), shape)
        found = inference.Estimate(theta[:, 0], *(np.eye(3) * 0.1,) * 4, 1.0, np.eye(3))
        with watched() as seen:
            plain = found.even(np.eye(3), 0.0)
            inference.score_sums(rows_, logistic.binary_residual, theta[:, 0], found, plain, spread, 40.0, 2.0)
        # In units of each level's noise: a neighbour moves them all together by one release of noise 2 at most.
        return op.curvature(rows_, theta), 2.0 * np.concatenate([drawn.values for drawn in seen.drawn])

    before = sums([])
    moved = 1.0 if adjacency == "add-remove" else math.sqrt(2)
    added = [sums([(row, label)]) for row in corners for label in (0, 1)]
    pairs = [(before, one) for one in added] if adjacency == "add-remove" else list(itertools.combinations(added, 2))
    farthest = [0.0, 0.0]
    for one, other in pairs:
        farthest[0] = max(farthest[0], float(np.linalg.norm(one[0] - other[0])))
        farthest[1] = max(farthest[1], float(np.linalg.norm(one[1] - other[1])))
    assert 0.3 * moved * 3.0 < farthest[0] <= moved * 3.0 * (1 + 1e-5)
    assert 0 < farthest[1] <= moved * (1 + 1e-5)


def test_a_choice_between_two_methods_costs_the_dearer_of_both():
    made = op.perturb(op.Slope(norm_squared=3.0), 1.0, 1e-6, "add-remove", "record", further=FURTHER)
    mu = 0.2367
    both = op.either(made, mu, 1.0, "add-remove", "record")
    for epsilon in (0.2, 0.7, 0.95, 1.0, 1.05, 1.5):
        stated = acc.delta(both, epsilon).upper
        assert stated >= acc.delta(made.mechanism, epsilon).lower * (1 - 1e-6)
        assert stated >= acc.delta(acc.GDP(mu), epsilon).lower * (1 - 1e-6)
    assert acc.epsilon(both, 1e-6).upper < 1.01


@pytest.mark.parametrize("delta", [1e-5, 0.0])
def test_the_noise_in_the_objective_is_the_noise_that_was_priced(delta, monkeypatch):
    # At the point that is found the gradients of loss, ridge and noise sum up to nothing, so that the noise that was
    # really used can be read off what leaves.
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (30, 1))
    y = (x[:, 0] > 0).astype(int)
    further = FURTHER if delta else ()
    wanted = op.perturb(op.Slope(norm_squared=2.0), 1.0, delta, "add-remove", "record", further=further)
    full, used, points = np.column_stack([np.ones(30), x]), [], []
    monkeypatch.setattr(op.Perturbation, "hide", lambda self, theta: points.append(theta) or theta)
    for _ in range(60):
        made = LogisticRegression(1.0, delta, bounds=(-1, 1), classes=[0, 1], method="objective-perturbation")
        made.fit(x, y)
        theta = points.pop().ravel()
        pull = full.T @ (1 / (1 + np.exp(-full @ theta)) - y)
        used.append(-(pull + wanted.ridge * theta))
    used = np.array(used)
    if delta:
        assert used.std() == pytest.approx(wanted.sigma, rel=5 / math.sqrt(2 * used.size))
    else:  # |b| is a gamma variable of shape 2 and rate η
        length = np.linalg.norm(used, axis=1)
        assert length.mean() == pytest.approx(2 / wanted.rate, rel=5 / math.sqrt(2 * len(length)))


def test_the_other_branch_of_the_price_of_objective_perturbation():
    # Where the Jacobian leaves less than μ²/2 of ε: 2·(½(1 - e^h) + e^h·G(μ²/2)) for h = rest - μ²/2.
    slope, sigma, ridge = op.Slope(norm_squared=1.0), 1.25, 40.0
    mu = 1 / sigma
    rest = 0.1
    assert rest < mu**2 / 2
    hat = rest - mu**2 / 2
    curve = acc.delta(acc.Gaussian(sigma), mu**2 / 2).upper
    wanted = 2 * (0.5 * -math.expm1(hat) + math.exp(hat) * curve)
    assert op.gaussian_delta(slope.jacobian(ridge) + rest, sigma, ridge, slope) == pytest.approx(wanted, rel=1e-6)


def test_a_file_counts_features_and_weights_beyond_their_bounds_as_the_bound(tmp_path):
    def fitted(value, dtype):
        x, y = rows(last_x=value)
        pl.DataFrame({"a": x[:, 0].astype(dtype), "b": x[:, 1], "y": y}).write_parquet(tmp_path / "t.parquet")
        made = LinearRegression(1.0, 1e-5, bounds={"a": (-1, 1), "b": (-1, 1)}, target_bounds=(-1, 1))
        return drawn(made, tmp_path / "t.parquet", "y")

    for dtype in (np.float64, np.float32):
        same(fitted(1e9, dtype), fitted(1.0, dtype))
        same(fitted(-1e9, dtype), fitted(-1.0, dtype))


@pytest.mark.parametrize("more", [{"sample_weight": np.ones(60)}, {"groups": np.arange(60)}, {}])
def test_training_by_steps_refuses_what_its_price_does_not_cover(more):
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (60, 2))
    limits = (
        {"max_weight": 2.0} if "sample_weight" in more else {"max_rows": 2} if more else {"adjacency": "replace-one"}
    )
    made = LogisticRegression(1.0, 1e-5, bounds=(-1, 1), classes=[0, 1], method="dp-sgd", **limits)
    with pytest.raises(ValueError, match="add-remove only, without weights or groups"):
        made.fit(x, (x[:, 0] > 0).astype(int), **more)


def test_textbook_sensitivities_of_the_functional_mechanism_are_those_of_the_book():
    # Zhang et al. (2012): every entry of Σxxᵀ and 2Σyx by itself, with rows in [-1, 1]^d and a constant.
    for people in (1, 3):
        shape = Shape(2, rows=people)
        for adjacency, times in (("add-remove", 1), ("replace-one", 2)):
            made = functional.plan(shape, 3, 0.5, adjacency, sensitivity="textbook")
            quadratic, linear = times * people * 9, times * 2 * people * 3
            spent = quadratic / made.scales[0] + linear / made.scales[1]
            assert spent <= 0.5 * (1 + 1e-9)
            assert spent >= 0.5 * (1 - 1e-3)


@pytest.mark.parametrize("method", ["quadratic", "linear", "frobenius", "joint", "clipped_sum"])
def test_an_adjacency_that_there_is_not_has_no_sensitivity(method):
    arguments = {"joint": ("none", 1.0, 1.0), "clipped_sum": (1.0, "none"), "frobenius": ("none", 1.0)}
    with pytest.raises(ValueError, match="adjacency"):
        getattr(Shape(2), method)(*arguments.get(method, ("none",)))


@pytest.mark.parametrize("wrong", [{"delta": -1e-9}, {"delta": 1.0}, {"epsilon": 0.0}, {"adjacency": "none"}])
def test_a_budget_that_is_none_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LinearRegression(**{"epsilon": 1.0, "delta": 1e-6} | wrong, **BOUNDS).fit(rows()[0], rows()[1])
