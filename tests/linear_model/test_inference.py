"""What an interval rests on: which coefficients the noise hides, and how uneven errors are allowed for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.linear_model.inference import CLIP, HIDDEN, Estimate, score_sums
from tacit.linear_model.rows import Rows
from tacit.linear_model.sensitivity import Shape


def estimate(hidden: np.ndarray) -> Estimate:
    """An estimate of two coefficients with one hidden direction."""
    none = np.zeros((2, 2))
    return Estimate(np.zeros(2), np.eye(2), np.outer(hidden, hidden), none, none, 1.0)


@pytest.mark.parametrize("length", [1e-3, 1.0, 1e3])
def test_a_functional_is_refused_where_more_than_a_tenth_of_its_length_is_hidden(length):
    angles = np.array([0.0, 0.99 * HIDDEN, 1.01 * HIDDEN, 2 * HIDDEN, 1.0])  # sin(angle) is the hidden part
    functionals = length * np.column_stack([np.sqrt(1 - angles**2), angles])
    assert estimate(np.array([0.0, 1.0])).refused(functionals).tolist() == [False, False, True, True, True]


def test_what_the_shape_of_the_errors_may_be_is_never_far_below_what_was_released():
    """Without errors the release is noise alone. What is used lies one deviation of that noise above it."""
    rows = Rows(np.ones((50, 2)), np.zeros(50), Shape(2, intercept=False))
    multiplier, spread, count = 400.0, 0.25, 50.0

    class Source:
        shape, width = rows.shape, 2

        def batches(self):
            yield rows

    def ratios():
        plain = Estimate(np.zeros(2), np.eye(2), *[np.zeros((2, 2))] * 3, 1.0)
        nothing = score_sums(
            Source(), lambda scores, y: 0 * scores, np.zeros(2), plain, np.eye(2), spread, count, multiplier
        )
        return nothing * count * spread

    deviation = CLIP * spread * math.sqrt(2) * multiplier  # no row's vector is longer than this without the multiplier
    drawn = np.concatenate([ratios() for _ in range(1000)]) / deviation
    # the mean of max(1 + z, ~0) is 1.083 for normal z, with a deviation below 1 each; without the 1 it is 0.40
    assert abs(drawn.mean() - 1.083) < 6 / math.sqrt(len(drawn))
