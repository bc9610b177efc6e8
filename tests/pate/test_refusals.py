"""Votes that cannot be, and what is computed from them."""

from __future__ import annotations

import joblib
import numpy as np
import pytest

from tacit.pate import exact, partition, teachers
from tacit.pate.counts import VoteCounts


def test_nobody_votes_twice():
    VoteCounts(np.array([[3, 1]]), teachers=4)
    with pytest.raises(ValueError, match="more votes than there are teachers"):
        VoteCounts(np.array([[3, 2]]), teachers=4)


def test_a_check_has_one_score_for_each_class_and_query():
    votes = [[30, 10], [25, 15]]
    check = exact.ThresholdCheck(20.0, 5.0, scores=np.zeros((2, 3)))
    with pytest.raises(ValueError, match="one score a class and query"):
        exact.divergences(votes, 10.0, [2.0], check=check)


@pytest.mark.parametrize("sigma", [0.2, 0.5, 4.0])
def test_votes_too_far_apart_for_the_quadrature_cost_what_any_votes_cost(sigma):
    """Between 600 and 600/σ standard deviations apart nothing was shown about the numerical error."""
    gap = int(1.2 * exact.WIDEST * sigma * min(1.0, sigma))
    found = exact.divergences([[gap, 0]], sigma, [2.0])
    assert found == pytest.approx(2.0 / sigma**2)


def test_every_record_has_a_name():
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    names = partition.contents(x, y)
    assert len(set(names)) == len(names) == 6


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_every_teacher_is_trained_and_in_order(n_jobs):
    with joblib.parallel_config("threading"):
        assert list(teachers._parallel(lambda i: i * i, 5, n_jobs)) == [0, 1, 4, 9, 16]
