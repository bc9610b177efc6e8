"""What a search fits is what it priced."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.linear_model import LogisticRegression
from tacit.tuning import TuningError
from tacit.tuning.cv import _Base

X = np.random.default_rng(11).uniform(-0.9, 0.9, (60, 2))


class Greedy(LogisticRegression):
    """Takes twice the ε where the rows are not made up."""

    def fit(self, X_, y=None, sample_weight=None, groups=None):
        if np.array_equal(X_, X):
            self.epsilon *= 2
        return super().fit(X_, y, sample_weight, groups)


def test_a_fit_that_costs_more_than_was_priced_is_refused():
    y = (X[:, 0] > 0).astype(int)
    settings = {"bounds": (-1, 1), "method": "objective-perturbation"}
    assert _Base(LogisticRegression(**settings), X, y, 1e-6).train({}, 1.0).privacy_.upper <= 1.0
    with pytest.raises(TuningError, match="was priced"):
        _Base(Greedy(**settings), X, y, 1e-6).train({}, 1.0)
