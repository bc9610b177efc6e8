"""One person moves the votes of one teacher, and a published price no more than its smooth sensitivity."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier
from tests.catalogue.seam import watched

from tacit import accounting as acc
from tacit.noise import Key
from tacit.pate import ConfidentGNMax, GNMax, Teachers, VoteCounts, bounds
from tacit.pate.smooth import VoteSensitivity, check_at_distance, smooth_sensitivity

KEY = Key(bytes(range(32)))


def fails_for_many(x, y):
    """A teacher that fails unless it has one row exactly."""
    if len(x) != 1:
        raise ValueError("not one row")
    return lambda rows: np.full(len(rows), int(y[0]))


@pytest.mark.parametrize("teacher", [DecisionTreeClassifier(), fails_for_many])
def test_a_person_who_turns_the_majority_moves_no_vote_of_teachers_without_data_or_that_failed(teacher):
    # Twelve people and fifty teachers: most have nobody. The last person decides which class most teachers give.
    public = np.zeros((40, 2), np.float32)
    x, y = np.zeros((13, 2), np.float32), np.array([0, 1] * 6 + [1])

    def votes(rows):
        return Teachers(teacher, (x[rows], y[rows]), n=50, groups=rows, key=KEY, classes=2).fit().vote(public).counts

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # teachers failed
        one, other, swapped = votes(np.arange(12)), votes(np.arange(13)), votes(np.r_[np.arange(11), 12])
    for after, most in ((other, 2), (swapped, 4)):
        assert np.abs(one - after).sum(axis=1).max() <= most
    assert one.sum(axis=1).tolist() == [50] * 40
    assert (one > 5).all()  # those who have nothing to say are divided by a fixed pattern


@pytest.mark.parametrize("votes", [[90, 5, 3, 2], [60, 20, 15, 5], [30, 28, 22, 20], [100, 0, 0, 0]])
def test_the_smooth_sensitivity_of_neighbours_is_within_its_factor_and_covers_what_a_vote_moves(votes):
    part, beta = VoteSensitivity(sigma=15.0, classes=4, order=12.0, teachers=100), 0.03
    here = smooth_sensitivity(part.at_distance([votes]), beta)
    price = price_of(part, votes)
    moved = []
    for source in range(4):
        for target in range(4):
            near = list(votes)
            near[source] -= 1
            near[target] += 1
            if source == target or near[source] < 0:
                continue
            there = smooth_sensitivity(part.at_distance([near]), beta)
            assert there <= here * np.exp(beta) * (1 + 1e-9)  # what makes noise of its size safe
            moved.append(abs(price_of(part, near) - price))
    assert here >= max(moved) * (1 - 1e-9)
    # Local sensitivity alone is far smaller somewhere on the way to the flat part, and is not smooth.
    distances = part.at_distance([votes])
    assert (np.diff(distances) >= 0).all()
    assert here >= float((np.exp(-beta * np.arange(len(distances))) * distances).max()) * (1 - 1e-12)


def price_of(part, votes):
    return float(part.bound(bounds.log_q(np.array([votes]), part.sigma))[0])


def test_the_check_of_a_threshold_has_the_largest_step_within_reach():
    def price(count):
        return np.where(count > 70, 5.0, 0.0) + 0.01 * count

    # The jump lies between 70 and 71; from 60 it is ten votes away.
    found = check_at_distance(price, [60], teachers=100, length=30)
    assert found[:10] == pytest.approx([0.01] * 10)
    assert found[10:] == pytest.approx([5.01] * 20)
    assert check_at_distance(price, [60, 60, 71], 100, 30)[[0, 10]] == pytest.approx([5.03, 15.03])
    assert smooth_sensitivity(found, 0.1) == pytest.approx(5.01 * np.exp(-1.0))


@pytest.mark.parametrize(
    "aggregator",
    [GNMax(vote_noise=30, classes=4), ConfidentGNMax(threshold=50, check_noise=40, vote_noise=20, classes=4)],
)
def test_a_filter_and_a_published_price_are_those_of_the_adjacency_of_the_answers(aggregator):
    counts = np.tile([90, 5, 3, 2], (4000, 1))
    votes = VoteCounts(counts, teachers=100, partition="keyed", unit="person")
    asked = {}
    for adjacency in ("add-remove", "replace-one"):
        answers = aggregator.answer(votes, epsilon=1.0, delta=1e-5, adjacency=adjacency)
        answered = int(answers.answered.sum())
        ran = aggregator.plan(len(answers), answered, partition="keyed", unit="person")
        assert acc.epsilon(ran, 1e-5, adjacency=adjacency).upper <= 1.0
        more = aggregator.plan(len(answers) + 1, answered + 1, partition="keyed", unit="person")
        assert acc.epsilon(more, 1e-5, adjacency=adjacency).upper > 1.0
        asked[adjacency] = len(answers)
    assert asked["replace-one"] < 0.6 * asked["add-remove"]


def test_the_noise_of_a_published_price_follows_the_adjacency():
    votes = VoteCounts(np.tile([220, 20, 5, 5], (20, 1)), teachers=250, partition="keyed", unit="person")
    for adjacency in ("add-remove", "replace-one"):
        accounts = GNMax(vote_noise=40.0, classes=4).answer(votes, queries=20, adjacency=adjacency).accounts
        order, plan = accounts.release_plan()
        cost = float(acc.renyi(plan, [order], adjacency=adjacency)[0])
        assert cost <= 0.03 * accounts.guarantee.claim * 1.05 + float(
            1.05
            * acc.renyi(
                acc.SmoothRelease(plan.beta, 1e9, unit="person", partition="keyed"), [order], adjacency=adjacency
            )[0]
        )


@pytest.mark.parametrize(
    "aggregator",
    [GNMax(vote_noise=40.0, classes=4), ConfidentGNMax(threshold=120, check_noise=40, vote_noise=40, classes=4)],
)
def test_a_published_price_has_the_noise_of_its_smooth_sensitivity(aggregator):
    counts = np.tile([220, 20, 5, 5], (20, 1))
    accounts = aggregator.answer(VoteCounts(counts, teachers=250, partition="keyed"), queries=20).accounts
    with watched() as seen:
        found = accounts.sanitise(order=8.0, beta=0.02, noise=3.0)
    (drawn,) = seen.drawn
    local = accounts._sensitivity(8.0)
    assert drawn.scale[0] == pytest.approx(3.0 * smooth_sensitivity(local, 0.02))
    assert (found.beta, found.noise) == (0.02, 3.0)
    if isinstance(aggregator, ConfidentGNMax):
        # The check depends on the largest count, which one vote moves by one.
        def price(largest):
            return bounds.check_bound(largest, 120, 40, [8.0])[:, 0]

        alone = check_at_distance(price, counts.max(axis=1), 250, len(local))
        # All twenty were checked, and some were answered: together no less than the checks, no more than all of both.
        most = alone + VoteSensitivity(40.0, 4, 8.0, 250).at_distance(counts, len(local))
        assert (local >= alone * (1 - 1e-12)).all()
        assert (local <= most * (1 + 1e-12)).all()
        assert alone[0] > 0
