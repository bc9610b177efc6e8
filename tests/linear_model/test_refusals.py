"""What would break the price of a regression is refused before anything is released."""

from __future__ import annotations

import pytest

from tacit.linear_model import LogisticRegression
from tacit.linear_model.functional import _split
from tacit.linear_model.sensitivity import Shape
from tests.linear_model.common import BOUNDS, labels


@pytest.mark.parametrize("method", ["gradient-descent", "dp-sgd"])
def test_gaussian_noise_needs_a_delta(method):
    x, y = labels(200)
    model = LogisticRegression(epsilon=1.0, delta=0.0, bounds=BOUNDS["bounds"], classes=[0, 1], method=method)
    with pytest.raises(ValueError, match="needs delta > 0"):
        model.fit(x, y)


def test_a_split_adds_up_to_epsilon():
    assert sum(_split((0.3, 0.7), 1.0, 1.0, 1.0, 1.0)) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="must add up"):
        _split((1.0, 1.0), 1.0, 1.0, 1.0, 1.0)


def test_no_sensitivity_without_an_adjacency():
    for size in (Shape(scalars=3).joint, Shape(scalars=3).quadratic, Shape(scalars=3).linear):
        with pytest.raises(ValueError, match="unknown adjacency"):
            size("add-one", *([1.0, 1.0] if size.__name__ == "joint" else []))
