"""Every figure on which a verdict rests, beside a case that can be worked out by hand or simulated."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from tests.audit.test_record import COUNT, NOISE, STEPS, honest

from tacit import accounting as acc
from tacit.audit import audit_run, bounds, evidence, foreign, implementation, record, result, statistics

RNG = np.random.default_rng


def test_impossible_guesses_refute_nothing_and_are_refused():
    for guesses, correct, canaries in ((10, 11, 20), (30, 10, 20), (10, -1, 20)):
        with pytest.raises(ValueError):
            bounds.refutes(guesses, correct, canaries, bounds.gaussian_blow(1.0))


@pytest.mark.parametrize("mu", [0.3, 1.5, 4.0])
def test_the_probabilities_of_being_in_average_to_one_half(mu):
    """They are posteriors of fair coins."""
    assert evidence._law(4000, mu)[1].mean() == pytest.approx(0.5, abs=2e-3)


def test_some_share_of_the_canaries_is_guessed_and_not_one():
    assert evidence.curve_guesses(1000, 1e-5, claimed=4.0) >= 50


def test_an_output_that_is_no_number_is_a_large_one():
    found = foreign._finite(np.array([np.nan, np.inf, -np.inf, 0.0]))
    assert np.isfinite(found).all()
    assert found[0] > 1e20 < found[1]
    assert found[2] < -1e20


def test_a_schedule_of_clip_norms_is_looked_at_where_it_begins():
    assert implementation.clip_norm_of(SimpleNamespace(settings={"clip_norm": lambda step: 3.0 + step})) == 3.0


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_two_runs_with_the_same_noise_are_noticed_whatever_its_size(scale):
    one, other = scale * RNG(0).standard_normal((2, 2000))
    assert implementation.check_fresh_keys(one, one).p_value < 1e-9
    assert implementation.check_fresh_keys(one, other).p_value > 1e-4


def test_the_price_of_steps_without_sampling_is_that_of_their_joint_noise():
    exact = acc.epsilon(acc.Gaussian(2.0) * 9, 1e-5).upper
    right, wrong = (
        implementation.check_price(exact * factor, 1e-5, 1.0, 2.0, 9, RNG(0)).p_value for factor in (1.001, 0.97)
    )
    assert right > 0.5
    assert wrong < 1e-6


def test_a_simulated_delta_is_that_of_the_accountant():
    mechanism, epsilon = acc.PoissonSampled(acc.Gaussian(1.0), 0.2) * 2, 0.5
    found, error = statistics.simulated_delta(0.2, [1.0, 1.0], epsilon, 100_000, RNG(0))
    assert abs(found - acc.delta(mechanism, epsilon).upper) < 5 * error < 0.2 * found


def test_a_sequence_is_compared_with_itself_up_to_half_its_length():
    values = RNG(1).standard_normal(500)
    assert statistics.repetition_p_value(values, lags=500) == statistics.repetition_p_value(values)
    assert statistics.repetition_p_value(np.tile(values, 2), lags=10_000) < 1e-9


def test_the_angle_between_two_vectors_has_the_probability_of_its_cap():
    """In three dimensions the height of a random direction is uniform: P[|cos| >= 1/2] = 1/2."""
    assert statistics.cosine_p_value([[1.0, 0.0, 0.0], [1.0, 3**0.5, 0.0]]) == pytest.approx(0.5)


@pytest.mark.parametrize(("trials", "rate", "high"), [(6, 0.15, 0.999), (30, 0.9, 0.99)])
def test_how_counts_scatter_has_the_law_of_binomial_counts_up_to_the_loss_of_chernoff(trials, rate, high):
    sums = ((RNG(2).binomial(trials, rate, (200_000, 10)) - trials * rate) ** 2).sum(1)
    # ten counts whose squared deviations have the sum that is exceeded so rarely
    counts = np.full(10, trials * rate + (float(np.quantile(sums, high)) / 10) ** 0.5)
    found = statistics.dispersion_p_value(counts, trials, rate)
    assert 2 * (1 - high) <= found <= 40 * (1 - high)


@pytest.mark.parametrize(("steps", "count", "rate"), [(3, 100, 0.01), (3, 100, 0.05), (40, 50, 0.02)])
def test_few_honest_choices_raise_no_alarm_by_their_coarseness(steps, count, rate):
    """A normal law with a hundredth in reserve accused every second honest record of 3 steps at a rate of 0.01."""
    rng = RNG(4)
    for _ in range(300):
        made = rng.random((steps, count)) < rate
        assert statistics.coincidence_p_value(made, rate) > 1e-4
        assert statistics.dispersion_p_value(made.sum(0), steps, rate) > 1e-4


def test_choices_that_are_made_again_or_never_together_are_found():
    made = RNG(5).random((40, 200)) < 0.1
    again = made.copy()
    again[20:] = made[:20]
    assert statistics.coincidence_p_value(again, 0.1) < 1e-9
    apart = RNG(5).random(20_000) < 0.3
    apart[1::2] &= ~apart[::2]
    apart[2::2] &= ~apart[1:-1:2]
    assert statistics.coincidence_p_value(apart, float(apart.mean())) < 1e-9


def test_draws_without_replacement_are_judged_by_those_with_it():
    rng = RNG(6)
    for _ in range(50):
        made = np.array([rng.permutation(120) < 30 for _ in range(30)])
        assert statistics.overlap_p_value(made) > 1e-3
        assert statistics.hits_p_value(int(made[:, :60].sum()), 30 * 60, 0.25) > 1e-3
    assert statistics.overlap_p_value(np.tile(made[:6], (5, 1))) < 1e-9
    assert statistics.overlap_p_value(~np.tile(made[:6], (5, 1))) < 1e-9


def test_noise_that_is_too_small_by_the_stated_deficit_is_found_with_the_stated_power():
    rng, count, level = RNG(3), 2000, 1e-3
    deficit = statistics.smallest_noise_deficit(count, level, 0.9)
    sums = (1 - deficit) ** 2 * rng.chisquare(count, 20_000)
    assert np.mean(sums < stats.chi2.ppf(level / 2, count)) == pytest.approx(0.92, abs=0.04)


def test_a_canary_or_a_step_with_little_noise_is_judged_as_the_least_of_many():
    """The least of 200 p-values is below 1/200 more often than not: only corrected for their number is it one."""
    rng, small = RNG(4), {"noise on every canary": 0, "noise at every step": 0}
    for _ in range(60):
        for one in record.check_noise(rng.standard_normal((30, 200)), rounded=True):
            if one.check in small:
                small[one.check] += one.p_value < 0.05
    assert max(small.values()) <= 12  # 3 are expected; 13 and more once in 10^5 times


def test_steps_of_equal_noise_are_all_claimed():
    parts = acc.PoissonSampled(acc.Gaussian(1.0), 0.1) * 3 + acc.PoissonSampled(acc.Gaussian(1.0), 0.2) * 4
    claimed = record.Claimed.of(parts)
    assert (claimed.steps, claimed.noise) == (7, {1.0: 7})


def test_the_frequency_of_draws_of_fixed_size_is_judged_by_an_inequality_that_is_not_far_from_its_law():
    mechanism = acc.FixedSizeSampled(acc.Gaussian(NOISE), batch=50, examples=1000) * STEPS
    rng, found = RNG(5), []
    for _ in range(60):
        masks = np.array([np.isin(np.arange(COUNT), rng.choice(1000, 50, replace=False)) for _ in range(STEPS)])
        planted = dataclasses.replace(honest(0, mechanism), drawn=np.packbits(masks, axis=1))
        claimed = record.Claimed.of(mechanism)
        found += [f.p_value for f in record._choices(planted, mechanism, claimed) if f.check == "sampling rate"]
    # Chernoff's bound is above the p-value of the law, and by less than a factor of ten where it is small.
    assert np.mean(np.array(found) < 0.2) <= 0.2
    assert min(found) < 0.5


def test_a_curve_is_that_of_the_adjacency_that_the_mechanism_states():
    only = acc.PureDP(4.0, adjacency="replace-one")
    assert record.claimed_curve(honest(6), only, "add-remove").p_value > 1e-3


def test_the_power_against_less_noise_is_how_often_its_size_gives_it_away():
    planted, rng, share = dataclasses.replace(honest(7), drawn=None), RNG(7), 1e-3
    count = planted.residuals.size
    told = {
        one.lie: one.probability
        for one in record.powers(planted, acc.PoissonSampled(acc.Gaussian(3.0), 0.4) * STEPS, share, 1e-3, rng)
    }
    seen = np.mean(0.95**2 * rng.chisquare(count, 20_000) < stats.chi2.ppf(share, count))
    assert told["95% of the noise"] == pytest.approx(seen, abs=0.02)


def test_shuffled_batches_of_few_canaries_cannot_be_told_from_sampled_ones():
    """Five canaries that take part once each in ten steps: so do sampled ones, once in 115 times."""
    claimed = record.Claimed.of(acc.PoissonSampled(acc.Gaussian(3.0), 0.1) * 10)
    few = dataclasses.replace(honest(8), member=np.ones(5, bool), drawn=np.zeros((10, 1), np.uint8))
    assert record._shuffled(few, claimed, 1e-6, RNG(8)).probability < 0.2


def test_a_long_curve_is_thinned_within_its_ends():
    rates = np.linspace(0, 1, 5000)
    thin = result._thinned(result.Roc(rates, rates**0.5, 0.6, (0.5, 0.7), 10, 10))
    assert (thin["false_positive"][0], thin["false_positive"][-1]) == (0.0, 1.0)
    assert thin["false_positive"] == sorted(thin["false_positive"])
    assert len(thin["false_positive"]) <= 200


def test_the_claim_that_is_audited_is_stated_for_the_adjacency_of_the_run():
    planted = dataclasses.replace(honest(9), adjacency="zero-out", mechanism=None)
    assert audit_run(planted).terms == acc.epsilon(acc.Gaussian(1.0), 1e-5, adjacency="zero-out").terms
