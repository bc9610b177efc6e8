"""Exact prices of votes: the law of the output, compared with every neighbour."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special

from tacit.pate import bounds
from tacit.pate.exact import ThresholdCheck, divergences, law

histograms = st.lists(st.integers(0, 60), min_size=2, max_size=6).filter(lambda v: sum(v) > 0)
noises = st.floats(4.0, 80.0)
orders = st.floats(1.2, 80.0)


def by_integration(votes, sigma):
    """The same law by adaptive quadrature, one label at a time, in quadruple care and without vectors."""
    n = np.asarray(votes, float) / sigma
    found = []
    for i in range(len(n)):
        rest = np.delete(n, i)

        def height(x, i=i, rest=rest):
            return np.exp(-((x - n[i]) ** 2) / 2 + special.log_ndtr(x - rest).sum()) / np.sqrt(2 * np.pi)

        points = [(n[i] + n.max()) / 2, n.max()]
        value = integrate.quad(height, n.min() - 12, n.max() + 12, points=points, epsabs=0, epsrel=1e-11, limit=400)
        found.append(value[0])
    return np.array(found)


def renyi(p, q, alpha):
    return float(np.log(np.sum(np.exp(alpha * np.log(p) + (1 - alpha) * np.log(q)))) / (alpha - 1))


def neighbours(votes):
    for a in range(len(votes)):
        for b in range(len(votes)):
            if a != b and votes[a] > 0:
                moved = list(votes)
                moved[a] -= 1
                moved[b] += 1
                yield moved


@settings(max_examples=12, deadline=None)
@given(histograms, noises)
def test_the_law_is_that_of_an_independent_integration(votes, sigma):
    assert law([votes], sigma)[0] == pytest.approx(by_integration(votes, sigma), rel=1e-8)


@settings(max_examples=60, deadline=None)
@given(histograms, noises, orders, st.data())
def test_one_moved_vote_never_changes_the_law_by_more_than_claimed(votes, sigma, alpha, data):
    claimed = divergences([votes], sigma, [alpha])[:, 0, 0]
    moved = data.draw(st.sampled_from(list(neighbours(votes))))
    here, there = law([votes], sigma)[0], law([moved], sigma)[0]
    slack = 1e-11 * alpha
    assert renyi(here, there, alpha) <= claimed[0] + slack
    assert renyi(there, here, alpha) <= claimed[1] + slack
    assert claimed.max() <= alpha / sigma**2


@settings(max_examples=60, deadline=None)
@given(histograms, noises, orders)
def test_exact_is_never_above_theorem_6_in_the_direction_that_it_bounds(votes, sigma, alpha):
    theorem = bounds.theorem6(bounds.log_q([votes], sigma), sigma, [alpha])[0, 0]
    assert divergences([votes], sigma, [alpha])[0, 0, 0] <= theorem * (1 + 1e-9) + 1e-12


@settings(max_examples=40, deadline=None)
@given(histograms, noises, orders, st.floats(-20.0, 100.0), st.floats(15.0, 150.0), st.data())
def test_with_the_check_no_answer_is_one_more_outcome(votes, sigma, alpha, threshold, check_noise, data):
    scores = data.draw(st.one_of(st.none(), st.lists(st.floats(0, 40), min_size=len(votes), max_size=len(votes))))
    shown = None if scores is None else np.array([scores])
    claimed = divergences([votes], sigma, [alpha], check=ThresholdCheck(threshold, check_noise, shown))[:, 0, 0]

    def outcomes(n):
        value = max(np.asarray(n) - (0 if scores is None else np.asarray(scores)))
        passed = special.ndtr((value - threshold) / check_noise)
        silent = special.ndtr((threshold - value) / check_noise)
        return np.maximum(np.append(passed * law([n], sigma)[0], silent), 1e-290)

    worst = np.zeros(2)
    here = outcomes(votes)
    for moved in neighbours(votes):
        there = outcomes(moved)
        worst = np.maximum(worst, [renyi(here, there, alpha), renyi(there, here, alpha)])
    limit = alpha / sigma**2 + alpha / (2 * check_noise**2)
    assert claimed == pytest.approx(np.minimum(worst, limit), rel=1e-6, abs=1e-10)


def test_equal_histograms_up_to_the_order_of_classes_cost_the_same():
    votes = np.array([[9, 4, 0], [0, 9, 4], [4, 0, 9]])
    found = divergences(votes, 5.0, [3.0, 9.0])
    assert (found == found[:, :1]).all()


def test_a_teacher_that_may_abstain_has_more_neighbours():
    votes = [[6, 3, 0]]
    plain, more = (divergences(votes, 3.0, [4.0], abstain=way)[:, 0, 0] for way in (False, True))
    assert (more >= plain).all()
    here = law(votes, 3.0)[0]
    for changed in ([5, 3, 0], [7, 3, 0], [6, 3, 1]):
        there = law([changed], 3.0)[0]
        assert renyi(here, there, 4.0) <= more[0] + 1e-10


def test_unanimous_teachers_cost_almost_nothing_and_split_ones_the_most():
    sigma, alpha = 20.0, 8.0
    clear, split = divergences([[500, 0], [250, 250]], sigma, [alpha])[0, :, 0]
    assert clear < 1e-12
    # With two classes and evenly split votes the answer is a coin whose chance one vote moves by φ(0)·√2/σ.
    coin = special.ndtr(np.sqrt(2) / sigma)
    assert split == pytest.approx(renyi(np.array([0.5, 0.5]), np.array([coin, 1 - coin]), alpha), rel=1e-6)
    assert split < alpha / sigma**2


def test_extreme_votes_stay_finite_and_certified():
    far = divergences([[500, 0, 0]], 1.0, [2.0, 64.0])
    assert (far[:, 0] <= 1e-10).all()
    beyond = divergences([[10**6, 0, 0]], 1.0, [2.0, 64.0])
    assert beyond[0, 0].tolist() == [2.0, 64.0]  # out of reach: the data-independent price
    many = divergences([[5] + [1] * 99], 7.0, [16.0])
    assert ((many > 0) & (many <= 16 / 49)).all()


@pytest.mark.parametrize("bad", [[[1.0, np.nan]], [[-1, 2]]])
def test_what_is_no_table_of_votes_is_refused(bad):
    with pytest.raises(ValueError, match="counts"):
        divergences(bad, 1.0, [2.0])
