"""The exponential mechanism and its generalised form keep their guarantee on every pair of neighbouring scores."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.tuning import TuningError, exponential_mechanism, generalised_exponential_mechanism, permute_and_flip
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
    assert picks.count(1) >= 48  # 59 on average; fewer once in 10¹¹ times
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


def flipped(scores, rate):
    """The law of permute-and-flip by going through every order of the candidates."""
    keep = np.exp(rate * (np.array(scores) - max(scores)))
    found = np.zeros(len(scores))
    for order in itertools.permutations(range(len(scores))):
        reached = 1.0 / math.factorial(len(scores))
        for i in order:
            found[i] += reached * keep[i]
            reached *= 1 - keep[i]
    return found


def test_permute_and_flip_keeps_its_epsilon_on_every_pair_of_neighbours_and_beats_the_exponential_mechanism():
    for monotone, moves in ((False, (-1, 0, 1)), (True, (0, 1))):
        rate, worst = 0.8 / (1 if monotone else 2), 0.0
        for scores in itertools.product((0, 1, 3), repeat=3):
            law = flipped(scores, rate)
            weights = np.exp(rate * np.array(scores))
            assert law @ scores >= weights @ scores / weights.sum() - 1e-12
            for step in itertools.product(moves, repeat=3):
                ratio = np.log(law / flipped(np.add(scores, step), rate))
                worst = max(worst, float(np.abs(ratio).max()))
        assert 0.4 < worst <= 0.8 + 1e-12


def test_permute_and_flip_draws_its_law():
    scores, draws = [0.0, 1.5, 2.0], 6000
    drawn = np.bincount([permute_and_flip(scores, 1.2, sensitivity=0.5) for _ in range(draws)], minlength=3)
    law = flipped(scores, 1.2 / (2 * 0.5))
    assert (np.abs(drawn - draws * law) < 6 * np.sqrt(draws * law * (1 - law))).all()
    with pytest.raises(TuningError, match="nothing to choose"):
        permute_and_flip([], 1.0)


def test_numbers_out_of_numpy_choose_as_well() -> None:
    one, scores = np.float32(1.0), np.array([10, 900, 20])
    assert exponential_mechanism(scores, one, sensitivity=one) == 1
    assert permute_and_flip(scores, one, sensitivity=one) == 1
    assert generalised_exponential_mechanism(scores, np.ones(3, np.float32), one) == 1
