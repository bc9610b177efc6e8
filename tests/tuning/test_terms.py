"""A search is priced under its adjacency, and refuses what would leave its price."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from tacit import accounting as acc
from tacit.ledger import Ledger
from tacit.tuning import TuningError, generalised_exponential_mechanism
from tacit.tuning.runs import check_plan
from tests.tuning.test_search import DELTA, search


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_search_is_priced_under_its_adjacency(adjacency):
    made = search(adjacency=adjacency)
    alone = acc.Gaussian(3.0) * 2
    assert made.price(alone) == acc.epsilon(alone, DELTA, adjacency=adjacency)
    assert acc.epsilon(made.mechanism, DELTA, adjacency=adjacency).upper <= 1.0
    stated = made.privacy.interval
    assert stated.adjacency in (adjacency, "zero-out")
    assert stated.upper == acc.epsilon(made.mechanism, DELTA, adjacency=stated.adjacency).upper


@pytest.mark.parametrize("scores", [[], [math.nan, 1.0], [math.inf, 1.0]])
def test_scores_that_are_no_numbers_are_not_chosen_from(scores):
    with pytest.raises(TuningError):
        generalised_exponential_mechanism(scores, [1.0] * len(scores), epsilon=1.0)


def test_a_run_of_a_search_charges_no_ledger_of_its_own():
    priced = acc.Gaussian(2.0)
    check_plan(SimpleNamespace(plan=SimpleNamespace(mechanism=priced), ledger=None), priced)
    with pytest.raises(TuningError, match="must not charge"):
        check_plan(SimpleNamespace(plan=SimpleNamespace(mechanism=priced), ledger=Ledger()), priced)
    with pytest.raises(TuningError, match="was priced"):
        check_plan(SimpleNamespace(plan=SimpleNamespace(mechanism=acc.Gaussian(1.0)), ledger=None), priced)


def test_a_search_over_runs_that_count_their_records_is_stated_for_neighbours_of_equal_number():
    made = search(counted=True)
    interval = made.privacy.interval
    assert interval.adjacency == acc.stated_adjacency(made.adjacency, counted=True) != "add-remove"
    assert interval.upper == acc.epsilon(made.mechanism, DELTA, adjacency=interval.adjacency).upper
