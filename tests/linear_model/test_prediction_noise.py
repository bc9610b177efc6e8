"""How far the noise of a fit moves predictions is announced, from released values alone."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tacit.linear_model import FunctionalLinearRegression, LinearRegression, Ridge, from_json, releases, to_json
from tacit.linear_model.linear import LinearBase
from tacit.linear_model.solve import Noise, Solution, prediction_noise, solve

ROWS, FITS = 2000, 200


def table(seed):
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (ROWS, 3))
    return x, x @ [0.3, 0.1, 0.0] + 0.2 + 0.2 * generator.normal(size=ROWS)


def exact(x, y):
    design = np.column_stack([np.ones(len(x)), x])
    return design @ np.linalg.lstsq(design, np.clip(y, -1, 1), rcond=None)[0]


@pytest.fixture
def repeatable(monkeypatch):
    generator = np.random.default_rng(37)
    for name, draw in (("add_gaussian", generator.normal), ("add_laplace", generator.laplace)):
        monkeypatch.setattr(releases, name, lambda v, scale, draw=draw, **_: v + draw(0.0, scale, np.shape(v)))


def measured(made, epsilon, fits=FITS):
    """For each fit: the square that the noise moved predictions by, the announced one, R² and the target's variance."""
    found = []
    for seed in range(fits):
        x, y = table(seed)
        fitted = made(epsilon, bounds=(-1, 1), target_bounds=(-1, 1)).fit(x, y)
        moved = np.mean((fitted.predict(x) - exact(x, y)) ** 2)
        found.append((moved, fitted.prediction_noise_**2, fitted.score(x, np.clip(y, -1, 1)), np.clip(y, -1, 1).var()))
    return np.array(found).T


def beyond(moved, announced):
    """By how many standard errors predictions were moved further than announced."""
    over = moved - announced
    return over.mean() / (over.std(ddof=1) / math.sqrt(len(over)))


@pytest.mark.parametrize(("method", "epsilon"), [("auto", 0.1), ("auto", 1.0), ("sufficient-statistics", 1.0)])
def test_the_noise_moves_predictions_no_further_than_announced(repeatable, method, epsilon):
    moved, announced, r2, variance = measured(lambda e, **public: LinearRegression(e, method=method, **public), epsilon)
    assert beyond(moved, announced) < 5
    low = r2 + announced / variance  # R² is not below that of the mean by more than this allows
    assert low.mean() > -5 * low.std(ddof=1) / math.sqrt(FITS)
    if epsilon == 1.0:
        assert beyond(4 * moved / announced, 1.0) > 5  # the wrong version: half the noise
        assert announced.mean() < 10 * moved.mean()  # and it is no empty promise
    else:
        assert announced.mean() / variance.mean() < 10


def test_a_fit_that_hides_a_mean_far_from_the_middle_says_so(repeatable):
    """The wrong version took the constant for as short as a coefficient: R² was below what it announced."""
    generator = np.random.default_rng(0)
    x, found = generator.uniform(-1, 1, (ROWS, 20)), []
    y = np.clip(-0.7 + 0.05 * generator.normal(size=ROWS), -1, 1)
    for _ in range(10):
        fitted = LinearRegression(0.02, 0.0, bounds=(-1, 1), target_bounds=(-1, 1)).fit(x, y)
        found.append((np.mean((fitted.predict(x) - y) ** 2), fitted.prediction_noise_**2))
    assert min(announced for _, announced in found) > 0.7 * max(moved for moved, _ in found) > 0.2


class Unseen:
    """A table of which only what is public can be asked."""

    def __init__(self, source):
        self.shape, self.width = source.shape, source.width


def test_the_announcement_follows_from_released_values_and_goes_where_the_fit_goes(monkeypatch):
    announce = LinearRegression._announce
    monkeypatch.setattr(
        LinearBase,
        "_announce",
        lambda self, task, *more: announce(self, dataclasses.replace(task, source=Unseen(task.source)), *more),
    )
    x, y = table(0)
    public = {"bounds": (-1, 1), "target_bounds": (-50, 50)}
    for made in (
        LinearRegression(1.0, **public),
        Ridge(10.0, 1.0, **public),
        LinearRegression(1.0, method="adassp", **public),
        LinearRegression(1.0, method="gradient-descent", **public),
        FunctionalLinearRegression(1.0, **public),
    ):
        fitted = made.fit(x, 50 * y)
        assert 0 < fitted.prediction_noise_ < 50
        assert f"{fitted.prediction_noise_:.3g}" in fitted.noise_in_words_ in fitted._repr_html_()
        read = from_json(to_json(fitted))
        assert read.noise_in_words_ == fitted.noise_in_words_
    seen = LinearRegression(10.0, **public).fit(x, 50 * y)
    assert f"R² -{seen.r2_noise_:.2g}" in seen.noise_in_words_


@pytest.mark.parametrize("steps", [False, True])
def test_sums_of_squares_that_the_noise_made_negative_promise_nothing(steps):
    """The wrong version took them for true ones: a sum of squares below zero, and one fit in 400 ended in its root."""
    generator, noise = np.random.default_rng(1), Noise(20.0, 0.0 if steps else 20.0)
    for _ in range(200):
        matrix = np.diag([30.0, 5.0, 5.0]) + 20.0 * np.triu(generator.normal(size=(3, 3)))
        matrix = np.triu(matrix) + np.triu(matrix, 1).T
        if steps:  # before which nothing is known but a prior
            prior = np.ones(3)
            eigen = tuple(np.linalg.eigh(matrix))
            solution = Solution(np.zeros(3), np.zeros((3, 3)), matrix, prior, prior, eigen[0], eigen)
            covariances = np.eye(3), 0.5 * np.eye(3)
        else:
            solution, covariances = solve(matrix, generator.normal(0, 20, 3), noise), None
        assert prediction_noise(solution, noise, longest=120.0, spread=30.0, steps=covariances) > 0.5
