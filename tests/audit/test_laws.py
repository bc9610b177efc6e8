"""Each statistic of the audit, next to the law or the inequality that makes it one."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from tests.training.common import start
from torch import nn

from tacit import accounting as acc
from tacit.audit import implementation, record, runs, statistics
from tacit.audit.bounds import Errors, gaussian_accuracy, gaussian_epsilon
from tacit.audit.evidence import two_world_evidence
from tacit.audit.pipeline import Pipeline, ReleasedStep, WatchedRun
from tacit.sgd.training.canaries import Planted
from tacit.sgd.training.plan import Plan


def test_guessing_the_likelier_world_proves_nothing():
    # nobody who answers "without" each time has seen anything, however rare the other world is
    assert gaussian_accuracy(Errors(0, 900, 100, 100), 1e-5) == 0.0
    assert gaussian_accuracy(Errors(100, 100, 0, 900), 1e-5) == 0.0


def test_the_errors_that_a_mechanism_has_do_not_refute_it():
    # With one repeat in ten the best threshold between N(0, 1) and N(3, 1) lies at 2.232: these are its errors.
    errors = Errors(round(900 * stats.norm.sf(2.232)), 900, round(100 * stats.norm.cdf(2.232 - 3)), 100)
    assert gaussian_accuracy(errors, 1e-5) <= gaussian_epsilon(3.0, 1e-5)


def test_scores_that_are_all_the_same_prove_nothing():
    found = two_world_evidence(np.ones(2000), np.ones(2000), delta=1e-5)
    assert found.certified == 0.0
    assert set(found.figures.values()) == {0.0}


def test_noise_of_two_values_is_not_normal_at_any_deviation():
    signs = np.where(np.arange(100) % 2, 1.0, -1.0)
    for deviation in (0.8, 1.0, 1.2):
        assert statistics.normal_shape_p_value(deviation * signs) < 1e-6
    quantiles = stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
    assert statistics.normal_shape_p_value(quantiles) == 1.0


def test_the_distance_from_a_law_is_as_large_no_more_often_than_is_said():
    count = 1000
    for moved in (0.05, 0.1, 0.15):
        numbers = stats.norm.ppf((np.arange(count) + 0.5) / count) + moved
        distance = stats.kstest(numbers, "norm").statistic
        assert statistics._massart(numbers, 0.0) >= stats.kstwo.sf(distance, count) * (1 - 1e-9)


def test_independent_noise_does_not_repeat_itself_and_copies_do():
    rng = np.random.default_rng(5)
    once = rng.standard_normal(400)
    assert statistics.repetition_p_value(rng.standard_normal(4000)) > 1e-3
    assert statistics.repetition_p_value(np.tile(once, 10)) < 1e-8
    assert statistics.repetition_p_value(np.concatenate([once, -once])) < 1e-8


def test_binomial_counts_scatter_as_they_should():
    rng = np.random.default_rng(6)
    assert statistics.dispersion_p_value(rng.binomial(200, 0.1, 500), 200, 0.1) > 1e-3
    assert statistics.dispersion_p_value(np.full(500, 20), 200, 0.1) < 1e-9
    assert statistics.dispersion_p_value(np.repeat([10, 30], 250), 200, 0.1) < 1e-9


def test_a_simulation_states_the_error_that_it_has():
    true = acc.delta(acc.BallsInBins(acc.Gaussian(1.0), 4), 0.5)
    off = []
    for seed in range(8):
        value, error = statistics.simulated_pass_delta(4, 1.0, 1, 0.5, 4000, np.random.default_rng(seed))
        off.append((value - true.upper) / error)
    assert max(map(abs, off)) < 6  # the seeds are fixed
    assert error < 0.01


# -- what a run does against what it says ----


def test_batches_that_may_be_cut_are_accused_no_more_often_than_they_are_cut():
    steps = 50
    mechanism = acc.TruncatedPoissonSampled(acc.Gaussian(1.0), 0.5, examples=20, max_batch=18) * steps
    masks = np.zeros((steps, 20), dtype=bool)
    cut = steps * stats.binom.sf(18, 20, 0.5)
    for finding in implementation.check_sampling(masks, mechanism):
        assert finding.p_value >= cut * (1 - 1e-9) > 1e-4


def test_each_step_is_measured_by_its_own_noise():
    pipeline = Pipeline(nn.Linear(2, 1), nn.MSELoss(reduction="none"), (torch.ones(3, 2), torch.ones(3, 1)))
    released = np.arange(1.0, 4.0)
    steps = [ReleasedStep(np.zeros(0, np.int64), released, 2.0) for _ in range(2)]
    found = pipeline.residuals(WatchedRun(None, steps, 2.0), np.zeros((3, 3)), lambda step: (1.0, 4.0)[step])
    assert found[0] == pytest.approx(released / 2)
    assert found[1] == pytest.approx(released / 8)


def test_a_step_without_noise_has_no_noise_to_test():
    rng = np.random.default_rng(7)
    steps, count, rate = 30, 100, 0.4
    step = acc.PoissonSampled(acc.Gaussian(3.0), rate)
    mechanism = step * (steps - 1) + acc.PoissonSampled(acc.Gaussian(0.0), rate)
    z = rng.standard_normal((steps, count)).astype(np.float32)
    z[0] = 0.0
    drawn = rng.random((steps, count)) < rate
    planted = Planted(
        "gradient", rng.random(count) < 0.5, np.zeros(count), 4.0, 1e-5, "add-remove", "record", steps,
        mechanism=json.dumps(mechanism.to_dict()), residuals=z, drawn=np.packbits(drawn, axis=1), per_pass=3,
    )  # fmt: skip
    names = {one.check for one in record.check_record(planted, mechanism)}
    whole = {one.check for one in record.check_record(planted, step * steps)}
    assert whole - names
    assert not any("noise" in name for name in names)


@pytest.mark.parametrize("sampler", ["chunks", "shuffle"])
def test_a_sampler_is_watched_over_whole_passes_and_long_enough(sampler):
    plan = start(sampler).plan
    masks = runs._masks(plan)
    assert len(masks) % plan.sampler.steps_per_epoch == 0
    assert len(masks) >= 18


def test_a_price_for_adding_a_record_does_not_stand_for_replacing_one(monkeypatch):
    plan = dataclasses.replace(start("chunks").plan, adjacency="replace-one", earlier=None)
    assert runs._price(plan).p_value == 1.0
    cheap = acc.epsilon(plan.mechanism, plan.delta, adjacency="zero-out")
    monkeypatch.setattr(Plan, "price", lambda self: cheap)
    assert math.isfinite(cheap.upper)
    assert runs._price(plan).p_value == 0.0
