"""The exponential mechanism and its generalised form keep their guarantee on every pair of neighbouring scores."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.tuning import TuningError, exponential_mechanism, generalised_exponential_mechanism
from tacit.tuning.exponential import comparisons

SCORES = st.lists(st.integers(0, 60), min_size=2, max_size=6)


def law(scores: np.ndarray, rate: float) -> np.ndarray:
    weights = np.exp(rate * (scores - scores.max()))
    return weights / weights.sum()


@settings(max_examples=60, deadline=None)
@given(scores=SCORES, data=st.data(), epsilon=st.floats(0.05, 4.0))
def test_the_generalised_comparisons_have_sensitivity_one_and_so_the_choice_is_private(
    scores: list[int], data: st.DataObject, epsilon: float
) -> None:
    n = len(scores)
    wide = data.draw(st.lists(st.sampled_from([0.5, 1.0, 3.0, 10.0]), min_size=n, max_size=n))
    moves = data.draw(st.lists(st.floats(-1, 1), min_size=n, max_size=n))
    near = [s + m * d for s, m, d in zip(scores, moves, wide, strict=True)]
    one, two = (np.array([float(s) for s in comparisons(x, wide, epsilon)]) for x in ([float(s) for s in scores], near))
    assert np.abs(one - two).max() <= 1 + 1e-9
    loss = np.log(law(-one, epsilon / 2)) - np.log(law(-two, epsilon / 2))
    assert np.abs(loss).max() <= epsilon * (1 + 1e-9)
    assert loss.max() - loss.min() <= epsilon * (1 + 1e-9)  # bounded range, which is what is priced


def test_equal_sensitivities_give_the_plain_mechanism() -> None:
    """s_i is then (best - score_i)/(2Δ), and exp(-ε s/2) has half the usual slope."""
    found = comparisons([5.0, 9.0, 2.0], [1.0, 1.0, 1.0], 1.0)
    assert [float(s) for s in found] == [2.0, 0.0, 3.5]


def test_a_candidate_of_large_sensitivity_does_not_blur_the_others() -> None:
    scores, wide = [100.0, 160.0, 90.0], [1.0, 1.0, 1000.0]
    picks = [generalised_exponential_mechanism(scores, wide, 1.0) for _ in range(60)]
    assert picks.count(1) >= 55
    blurred = [exponential_mechanism(scores, 1.0, sensitivity=1000.0) for _ in range(60)]
    assert blurred.count(1) < 45


def test_counts_that_all_move_the_same_way_cost_half() -> None:
    """Adding a record raises counts by 0 or 1: with exp(ε·count) the loss still varies by at most ε."""
    scores, epsilon = np.array([50.0, 52.0, 40.0]), 0.8
    for move in np.ndindex(2, 2, 2):
        loss = np.log(law(scores, epsilon)) - np.log(law(scores + np.array(move), epsilon))
        assert np.abs(loss).max() <= epsilon


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: exponential_mechanism([], 1.0),
        lambda: exponential_mechanism([1.0, math.nan], 1.0),
        lambda: exponential_mechanism([1.0], 0.0),
        lambda: exponential_mechanism([1.0], 1.0, sensitivity=0.0),
        lambda: generalised_exponential_mechanism([1.0], [1.0, 2.0], 1.0),
        lambda: generalised_exponential_mechanism([1.0], [0.0], 1.0),
        lambda: generalised_exponential_mechanism([1.0], [1.0], 1.0, beta=1.0),
    ],
)
def test_wrong_input_is_refused(wrong: object) -> None:
    with pytest.raises(TuningError):
        wrong()  # type: ignore[operator]


def test_scores_may_be_an_array_of_any_width():
    for kind in (np.float64, np.float32, np.int16):
        scores = np.array([0, 900, 10], kind)
        assert exponential_mechanism(scores, 1.0) == 1
        assert generalised_exponential_mechanism(scores, np.ones(3, kind), 1.0) == 1
    with pytest.raises(TuningError, match="nothing to choose"):
        exponential_mechanism(np.zeros(0), 1.0)
