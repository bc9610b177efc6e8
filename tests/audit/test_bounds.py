"""Lower bounds say what their papers say, and are wrong as rarely as they claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from tacit import accounting as acc
from tacit.audit import bounds
from tacit.audit.evidence import (
    CERTIFYING,
    QUANTILES,
    REFUTING,
    best_one_run,
    histogram,
    looks,
    one_run_evidence,
    right_guesses,
    roc,
    two_world_evidence,
)

COUNTS = (
    st.lists(st.integers(0, 60), min_size=3, max_size=3).map(lambda n: sorted(n, reverse=True)).filter(lambda n: n[0])
)


def test_a_perfect_attack_certifies_no_more_than_its_guesses_allow():
    # Steinke, Nasr & Jagielski 2023 at significance 0.05, δ = 1e-5, 1,000 canaries.
    assert bounds.one_run(1000, 1000, 1000, 1e-5) == pytest.approx(5.78, abs=0.005)
    assert bounds.one_run(100, 100, 1000, 1e-5) == pytest.approx(3.47, abs=0.005)
    # Without δ the p-value is q^r: the bound has a closed form.
    q = 0.05 ** (1 / 50)
    assert bounds.one_run(50, 50, 50, 0.0) == pytest.approx(math.log(q / (1 - q)), abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(COUNTS, st.floats(0, 5), st.floats(0, 1e-2))
def test_the_p_value_falls_with_right_guesses_and_grows_with_epsilon(counts, epsilon, delta):
    m, r, v = counts
    p = bounds.one_run_p_value(r, v, m, epsilon, delta)
    assert 0 <= p <= 1
    assert bounds.one_run_p_value(r, v, m, epsilon + 0.3, delta) >= p - 1e-12
    if v < r:
        assert bounds.one_run_p_value(r, v + 1, m, epsilon, delta) <= p + 1e-12


@settings(max_examples=30, deadline=None)
@given(COUNTS, st.floats(0.01, 3))
def test_what_refutes_a_curve_refutes_every_stricter_one(counts, mu):
    m, r, v = counts
    if bounds.refutes(r, v, m, bounds.gaussian_blow(mu)):
        assert bounds.refutes(r, v, m, bounds.gaussian_blow(mu * 0.9))


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 4), st.floats(1e-8, 1e-2))
def test_gaussian_dp_agrees_with_the_accountant(mu, delta):
    bound = acc.epsilon(acc.GDP(mu), delta)
    found = bounds.gaussian_epsilon(mu, delta)
    assert bound.lower - 1e-6 <= found <= bound.upper + 1e-6
    if found > 1e-6:
        assert acc.calibrate(acc.GDP, epsilon=found, delta=delta) == pytest.approx(mu, rel=1e-5)


def test_the_perfect_attacker_on_a_gaussian_certifies_about_what_the_literature_reports():
    # Medians at 95%, δ = 1e-5, 1,000 canaries, from the project's notes: one-run 1.00 and 2.52, f-DP 1.32 and 3.62
    # at true ε 4 and 8. Ours guess about fewer canaries, which is sharper, and are below the truth.
    rng = np.random.default_rng(5)
    for epsilon, one_run, f_dp in ((4.0, 1.0, 1.32), (8.0, 2.0, 3.0)):
        mu = acc.calibrate(acc.GDP, epsilon=epsilon, delta=1e-5)
        found = []
        for _ in range(7):
            coins = rng.integers(0, 2, 1000)
            found.append(one_run_evidence(mu * coins + rng.standard_normal(1000), coins, 1e-5, claimed=epsilon))
        certified = np.median([e.certified for e in found])
        sharper = np.median([e.figures["f-DP one-run"] for e in found])
        estimate = np.median([e.figures["Gaussian DP"] for e in found])
        assert one_run <= certified <= sharper <= epsilon
        assert f_dp <= sharper
        assert 0.45 * epsilon <= estimate <= epsilon
        assert all(e.verdict(epsilon) == ("pass" if e.best > epsilon else "underpowered") for e in found)


def test_choosing_a_threshold_on_the_same_scores_is_corrected_for():
    """Scores that say nothing: 200 repetitions of 400, at 5%. Uncorrected, the best threshold alarms too often."""
    rng = np.random.default_rng(11)
    alarms = corrected = 0
    for _ in range(200):
        zero, one = rng.standard_normal(200), rng.standard_normal(200)
        thresholds = np.quantile(np.concatenate([zero, one]), QUANTILES)
        best = max(
            bounds.two_worlds(bounds.Errors(int((zero > t).sum()), 200, int((one <= t).sum()), 200), 0.0, 0.05)
            for t in thresholds
        )
        alarms += best > 0
        corrected += two_world_evidence(zero, one, 0.0, 0.05).certified > 0
    assert alarms > corrected
    assert corrected <= 10  # 5% of 200


@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_a_mechanism_that_keeps_its_promise_is_rarely_accused(delta):
    """Randomised response at ε = 1, for which the one-run bounds are tight, and what fails altogether with δ.

    The scores say how surely a canary is in, but not truly: what the weights make of them must not matter.
    """
    rng = np.random.default_rng(2)
    q, count, runs = math.exp(1) / (1 + math.exp(1)), 200, 400
    weights = [(w, w.least(count, 1.0, delta, 0.05)) for w, _ in looks(count, delta, 0.05, 1.0)]
    least = next(v for v in range(count + 1) if bounds.one_run_p_value(count, v, count, 1.0, delta) <= 0.05)
    curve = next(v for v in range(101) if bounds.refutes(100, v, count, bounds.approximate_blow(1.0, delta), 0.05))
    wrong = np.zeros(len(weights) + 2)
    for _ in range(runs):
        coins = rng.integers(0, 2, count)
        kept = q if rng.random() > count * delta else 1.0
        told = np.where(rng.random(count) < kept, coins, 1 - coins)
        scores = (2 * told - 1) * rng.uniform(0.5, 2.0, count)
        wrong[:-2] += [w.right(scores, coins) >= enough for w, enough in weights]
        wrong[-2] += int((told == coins).sum()) >= least
        wrong[-1] += right_guesses(scores, coins, 100) >= curve
    assert wrong.max() <= 42  # 5% of 400 and five standard deviations


def test_weights_that_follow_the_coins_would_be_found_here():
    """The wrong version: guesses that count only where they are right are refuted all the time."""
    rng = np.random.default_rng(2)
    q = math.exp(1) / (1 + math.exp(1))
    coins = rng.integers(0, 2, 200)
    told = np.where(rng.random(200) < q, coins, 1 - coins)
    chosen = np.where(told == coins, 2.0, 0.1) * (2 * told - 1)
    weights = looks(200, 0.0, 0.05, 1.0)[0][0]
    assert weights.p_value(weights.right(chosen, coins), 200, 1.0, 0.0) < 0.05


def test_scores_certify_more_than_guesses_did():
    """At ε = 4 with 1,000 canaries. Five thresholds that shared the significance gave medians of 1.29 and 1.88."""
    rng = np.random.default_rng(0)
    mu, found = acc.calibrate(acc.GDP, epsilon=4.0, delta=1e-5), []
    for _ in range(20):
        coins = rng.integers(0, 2, 1000)
        one = one_run_evidence(mu * coins + rng.standard_normal(1000), coins, 1e-5, claimed=4.0)
        found.append(list(one.figures.values()))
    certified, curve, independent = np.mean(found, 0)
    assert 1.45 < certified < curve < independent < 4.0
    assert curve > 2.05
    assert independent > 2.8


# -- coverage ----------------------------------------------------------------------------------------------------------


def scores_of(law: str, count: int, mu: float, epsilon: float, rng: np.random.Generator):
    """Scores and coins of mechanisms that are μ-Gaussian DP, or (ε, 0)-DP: answers that are right with e^ε/(1 + e^ε).

    ``one size``: the size of the privacy loss is drawn once for all canaries, which makes them as alike as they can be;
    how far x lies from μ/2 tells nothing of the coin, and given that it is randomised response.
    """
    coins = rng.integers(0, 2, count).astype(bool)
    if law == "independent":
        return mu * coins + rng.standard_normal(count), coins
    loss = epsilon if law == "response" else mu * abs(mu / 2 + rng.standard_normal())
    right = rng.random(count) < 1 / (1 + math.exp(-loss))
    return np.where(coins == right, 1.0, -1.0) * rng.uniform(0.5, 2.0, count), coins


def too_high(law: str, runs: int, count: int = 200, significance: float = 0.05, seed: int = 7):
    """The share of runs whose figures exceed the truth: certificate, f-DP and Gaussian DP."""
    rng, delta, epsilon = np.random.default_rng(seed), 1e-5, 2.0
    mu, wrong = bounds.gaussian_mu(epsilon, delta), np.zeros(3)
    for _ in range(runs):
        scores, coins = scores_of(law, count, mu, epsilon, rng)
        figures = one_run_evidence(scores, coins, delta, significance, claimed=epsilon).figures
        wrong += [figures.get(name, 0.0) > epsilon for name in ("one-run", "f-DP one-run", "Gaussian DP")]
    return wrong / runs


def test_figures_exceed_the_truth_no_more_often_than_they_say():
    """Randomised response through the whole path, and losses of one size; thousands of runs are a slow test."""
    assert too_high("response", 150)[0] <= 0.05 + 5 * math.sqrt(0.05 * 0.95 / 150)
    count, guesses, delta = 400, 80, 1e-5
    mu, rng = bounds.gaussian_mu(2.0, delta), np.random.default_rng(3)
    least = next(v for v in range(guesses + 1) if bounds.refutes(guesses, v, count, bounds.gaussian_blow(mu)))
    loss = mu * np.abs(mu / 2 + rng.standard_normal(20_000))
    alike = rng.binomial(guesses, 1 / (1 + np.exp(-loss))) >= least
    assert alike.mean() <= 0.05
    # The wrong version: to count guesses as if the noise of canaries were independent is refuted by such a mechanism.
    most = special.ndtr(mu / 2)
    fewest = next(v for v in range(count) if stats.binom.sf(v - 1, count, most) <= 0.05)
    assert (rng.binomial(count, 1 / (1 + np.exp(-loss))) >= fewest).mean() > 0.15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "holds"),
    [("response", (0,)), ("independent", (0, 1, 2)), ("one size", (0, 1))],
)
def test_coverage_over_thousands_of_runs(law, holds):
    """Certificate, f-DP bound and, where canaries are independent, the Gaussian figure; five deviations are 2%."""
    found = too_high(law, 3000)
    for figure in holds:
        assert found[figure] <= 0.05 + 5 * math.sqrt(0.05 * 0.95 / 3000), (law, found)
    if law == "one size":
        assert found[2] > 0.1  # why the Gaussian figure is an estimate


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 60), st.floats(0.1, 8.0), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_looks_use_the_significance_once(canaries, claimed, delta):
    for parts in (CERTIFYING, REFUTING):
        assert sum(parts) == pytest.approx(1.0)
        assert sum(part for _, part in looks(canaries, delta, 0.05, claimed, parts)) == pytest.approx(
            0.05 * (1 - parts[-1])
        )
    for weights, _ in looks(canaries, delta, 0.05, claimed):
        assert len(weights.below) + len(weights.above) <= canaries
        assert max((*weights.below, *weights.above)) <= weights.unit
        assert weights.p_value(0, canaries, claimed, delta) == 1.0


@settings(max_examples=30, deadline=None)
@given(st.floats(0.2, 2.0), st.floats(0.0, 1.0))
def test_a_plans_curve_is_below_the_curve_it_comes_from(mu, r):
    grid = np.linspace(0, 10, 21)
    blow = bounds.plan_blow(grid, [bounds.gaussian_delta(mu, e) for e in grid])
    assert blow(r) <= bounds.gaussian_blow(mu)(r) + 1e-9
    assert blow(r) >= bounds.approximate_blow(1.0, bounds.gaussian_delta(mu, 1.0))(r) - 1e-12


def test_the_best_bound_says_what_an_audit_can_show():
    assert best_one_run(1000, 1e-5) == pytest.approx(5.24, abs=0.05)
    found = one_run_evidence(np.arange(40.0), np.arange(40) % 2, 1e-5)
    assert found.verdict(claimed=8.0) == "underpowered"
    perfect = one_run_evidence(np.arange(1000.0), np.arange(1000) >= 500, 1e-5)
    assert perfect.certified == pytest.approx(perfect.best)
    assert perfect.verdict(claimed=3.0) == "fail"


def test_clopper_pearson_covers():
    low, high = bounds.clopper_pearson(7, 100, 0.025)
    assert (low, high) == (pytest.approx(0.0286, abs=1e-3), pytest.approx(0.139, abs=1e-3))
    assert bounds.clopper_pearson(0, 10, 0.05)[0] == 0
    assert bounds.clopper_pearson(10, 10, 0.05)[1] == 1


def test_roc_rates_and_intervals():
    rng = np.random.default_rng(0)
    coins = rng.random(4000) < 0.5
    curve = roc(coins + rng.standard_normal(4000), coins)
    assert curve.area == pytest.approx(0.760, abs=0.02)  # Φ(1/√2)
    assert curve.interval[0] < curve.area < curve.interval[1]
    rate, low, high = curve.at(0.01)
    assert low < rate < high
    assert rate == pytest.approx(0.0924, abs=0.03)  # Φ(Φ⁻¹(0.01) + 1)
    counts = histogram(coins + rng.standard_normal(4000), coins)
    assert sum(counts["members"]) + sum(counts["others"]) == 4000


def test_ties_are_broken_without_looking_at_the_coins():
    for first in (True, False):  # members listed together, first or last: scores that say nothing prove nothing
        coins = np.array([first] * 500 + [not first] * 500)
        assert 400 < right_guesses(np.zeros(1000), coins, 1000) < 600
        assert one_run_evidence(np.zeros(1000), coins, delta=1e-5).certified == 0
    with pytest.raises(ValueError, match="finite"):
        right_guesses([np.nan, 1.0], [0, 1], 2)
    with pytest.raises(ValueError, match="not possible"):
        bounds.one_run(5, 6, 10)
    with pytest.raises(ValueError, match="20 scores"):
        two_world_evidence([1.0], [2.0], 0.0)
