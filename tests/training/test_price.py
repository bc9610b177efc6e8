"""The number that a run states is the accountant's for its plan, whatever the plan."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit import accounting as acc
from tacit.sgd.training.plan import generator_delta
from tacit.sgd.training.sampling import SAMPLERS
from tests.training.common import ROWS, finish, run, start

RATE = 20 / ROWS


INDEPENDENT = {
    "poisson": lambda z, t: acc.PoissonSampled(acc.Gaussian(z), RATE) * t,
    "truncated": lambda z, t: acc.TruncatedPoissonSampled(acc.Gaussian(z), RATE, ROWS, 40) * t,
    "fixed": lambda z, t: acc.FixedSizeSampled(acc.Gaussian(z), 20, ROWS) * t,
    "shuffle": lambda z, t: acc.Shuffled(acc.Gaussian(z)) * math.ceil(t / 6),
    "chunks": lambda z, t: acc.Shuffled(acc.Gaussian(z)) * math.ceil(t / 6),
    "balls-in-bins": lambda z, t: acc.BallsInBins(acc.Gaussian(z), 6) * math.ceil(t / 6),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_epsilon_is_the_accountants_for_every_sampler(name):
    training = start(name, steps=15, noise_multiplier=1.7, **({"max_batch": 40} if name == "truncated" else {}))
    finish(training)
    adjacency = "zero-out" if SAMPLERS[name].exact else "add-remove"
    assert training.plan.adjacency == adjacency
    expected = acc.epsilon(INDEPENDENT[name](1.7, 15), 1e-5, adjacency="zero-out")
    assert training.privacy.upper == pytest.approx(expected.upper, rel=1e-6)
    assert training.privacy.lower <= training.privacy.upper
    assert training.privacy.adjacency == "zero-out"  # the number of records was counted, and is the neighbours' too


@pytest.mark.parametrize("name", SAMPLERS)
def test_calibrated_noise_meets_the_target_from_below(name):
    training = start(name, steps=12, epsilon=2.0)
    assert 2.0 - 1e-4 < training.privacy.upper <= 2.0


def test_epsilon_is_the_accountants_for_a_noise_schedule():
    training = run(steps=5, noise_multiplier=2.0, noise_schedule=[1.0, 1.0, 1.5, 1.5, 2.0])
    parts = [acc.PoissonSampled(acc.Gaussian(z), RATE) for z in (2.0, 2.0, 3.0, 3.0, 4.0)]
    expected = acc.epsilon(sum(parts[1:], start=parts[0]), 1e-5)
    assert training.privacy.upper == pytest.approx(expected.upper, rel=1e-6)
    shaped = run(steps=5, epsilon=1.0, noise_schedule=lambda step: 1 + step)
    assert shaped.privacy.upper <= 1.0
    assert shaped.plan.noise[4] == pytest.approx(5 * shaped.plan.noise[0])


def test_a_clip_schedule_changes_the_noise_and_not_the_price():
    training = run(steps=3, clip_norm=[1.0, 0.5, 0.25])
    assert training.privacy.upper == run(steps=3).privacy.upper
    finish(training)


def test_replace_one_is_priced_as_such():
    training = run(adjacency="replace-one", steps=4)
    expected = acc.epsilon(acc.PoissonSampled(acc.Gaussian(1.0), RATE) * 4, 1e-5, adjacency="replace-one")
    assert training.privacy.upper == pytest.approx(expected.upper, rel=1e-6)
    assert "replace one record" in repr(training.privacy)


def test_a_public_size_sets_rate_and_divisor():
    training = run(size=200)
    assert training.plan.sampler.rate == 0.1
    assert training.plan.sampler.divisor == 20
    assert "size: given in advance" in repr(training.privacy)
    assert "treated as public" in repr(run().privacy)


def test_the_generators_tail_is_part_of_delta():
    training = run(epsilon=2.0)
    parts = dict(training.plan.mechanism.parts())
    tail = [p for p in parts if isinstance(p, acc.ApproxDP)]
    assert len(tail) == 1
    assert 0 < tail[0].delta < 1e-15


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40).filter(lambda v: sum(v) > 1e-3), st.floats(0.25, 5.0))
def test_the_tails_bound_holds_for_every_way_a_gradient_can_move_the_noise(direction, noise):
    """The probability, exact by the non-central χ², that any pair of the moved noise leaves the resolved radius."""
    v = np.array(direction) / np.linalg.norm(direction) / noise
    square = 160 * math.log(2)
    exact = sum(stats.ncx2.sf(square, 2, w * w) if w > 0 else stats.chi2.sf(square, 2) for w in v)
    assert exact <= generator_delta([noise], len(v), 1.0)


def test_an_epsilon_of_fifty_can_be_asked_for():
    assert run(epsilon=50.0).privacy.upper == pytest.approx(50.0, rel=1e-4)


def test_the_statement_names_everything_a_reader_needs():
    training = run(epsilon=2.0, steps=8)
    text = repr(training.privacy)
    for part in ("ε in [", "δ=1e-05", "zero out one record", "steps executed: 0", "Poisson sampling at rate 0.1666"):
        assert part in text
    finish(training)
    assert "steps planned: 8; steps executed: 8; basis: as planned" in repr(training.privacy)
