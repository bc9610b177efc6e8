"""Many categories, and columns of very different widths: what they cost, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy import sparse
from sklearn.linear_model import Ridge as Plain

from tacit.linear_model import LinearRegression, LogisticRegression, Ridge, descent, inference
from tacit.linear_model.logistic import binary_residual
from tacit.linear_model.moments import Moments
from tacit.linear_model.objective import curvature, logistic, softmax
from tacit.linear_model.rows import Rows
from tacit.linear_model.sensitivity import Shape
from tacit.schema import Categorical, Numeric, Schema, Unit

LABELS = [f"c{i}" for i in range(60)]
SCHEMA = Schema((Numeric("a", 0, 1), Categorical("b", LABELS, other=False)), Unit("person"))


def people(rows=600):
    generator = np.random.default_rng(0)
    frame = pl.DataFrame({"a": generator.random(rows), "b": generator.choice(LABELS, rows)})
    return frame, frame["a"].to_numpy() + 0.1 * generator.normal(size=rows)


def wide(weighted):
    """The same rows where public facts call for a sparse product, and where they do not."""
    generator = np.random.default_rng(1)
    x = np.zeros((5000, 61))
    x[:, 0] = 1.0
    x[np.arange(5000), generator.integers(1, 61, 5000)] = 1.0
    root = generator.integers(0, 5, 5000) / 4 if weighted else None
    x = x if root is None else x * root[:, None]
    y = generator.integers(0, 2, 5000).astype(float)
    return Rows(x, y, Shape(0, 1), root), Rows(x, y, Shape(60), root)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_few_entries_are_multiplied_as_such_and_give_the_same(weighted):
    one, other = wide(weighted)
    assert sparse.issparse(one.matrix)
    assert isinstance(other.matrix, np.ndarray)
    theta = np.random.default_rng(2).normal(size=(61, 1))
    totals = []
    for rows in (one, other):
        sums = Moments(62)
        sums.add(rows.with_target())
        totals.append((sums.total(), curvature(rows, np.zeros((61, 1)))))
    assert (totals[0][0] == totals[1][0]).all()
    assert (totals[0][1] == totals[1][1]).all()
    errors = [descent.errors_of(rows, theta, binary_residual) for rows in (one, other)]
    np.testing.assert_allclose(*errors, rtol=0, atol=1e-12)
    for loss, columns in ((logistic, theta), (softmax, np.hstack([theta, -theta]))):
        for here, there in zip(loss(one, columns), loss(other, columns), strict=True):
            np.testing.assert_allclose(here, there, rtol=1e-12, atol=1e-9)


def test_a_fit_decomposes_the_second_moments_once(monkeypatch):
    """The wrong version did so for predictions, steps, intervals and the announcement: 2,000 categories took 52 s."""
    sizes, real = [], np.linalg.eigh

    def counted(matrix):
        sizes.append(len(matrix))
        return real(matrix)

    monkeypatch.setattr(np.linalg, "eigh", counted)
    monkeypatch.setattr(np.linalg, "eigvalsh", lambda matrix: counted(matrix)[0])
    frame, y = people()
    LinearRegression(1.0, bounds=SCHEMA, target_bounds=(-1, 2)).fit(frame, y)
    assert sum(size > 50 for size in sizes) == 2  # for predictions, and on what the categories leave open for intervals
    sizes.clear()
    LogisticRegression(1.0, bounds=SCHEMA, method="objective-perturbation").fit(frame, (y > 0.5).astype(int))
    assert sum(size > 50 for size in sizes) <= 3


def test_a_sum_of_squares_that_the_noise_made_negative_leaves_no_negative_variance():
    """The wrong version took its root: of a ridge on two columns of a correlation of .999, six fits in a hundred had no
    interval at all. Another clipped the errors of every coefficient by a scale without end.
    """
    gram = np.diag([3000.0, -3.0])
    found = inference.estimate(gram, np.ones(2), 2.0, 2.0, open_=np.zeros((0, 2)), guess=1.0, penalty=np.full(2, 100.0))
    assert not found.refused(np.eye(2)).any()
    plain = np.diag(found.even(gram, 2.0))
    np.testing.assert_allclose(plain, [3000 / 3100**2, 2 / 97**2])


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 1000.0])
def test_a_penalty_that_is_large_for_some_columns_leaves_the_others_alone(epsilon):
    """The wrong versions ended in a matrix that is not positive definite, or lost the digits of other columns."""
    generator = np.random.default_rng(3)
    for width in (1e-3, 1e-6, 1e-9):
        x = np.column_stack([generator.random(3000), 5 + width * generator.random(3000)])
        y = 0.5 * x[:, 0] + 0.3 * (x[:, 1] - 5) / width
        bounds = {0: (0, 1), 1: (5, 5 + width)}
        fitted = Ridge(100.0, epsilon=epsilon, bounds=bounds, target_bounds=(0, 1)).fit(x, y)
        assert np.isfinite(fitted.prediction_noise_)
        if epsilon == 1000.0:
            plain = Plain(100.0).fit(x, y)
            np.testing.assert_allclose(fitted.coef_ * [1, width], plain.coef_ * [1, width], atol=0.01)
            assert fitted.prediction_noise_ < 0.01
            assert np.isfinite(fitted.confidence_interval()[0]).all()
