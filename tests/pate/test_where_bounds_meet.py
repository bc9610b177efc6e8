"""Where one bound on a vote takes over from another, and what the exact laws say of their own rounding."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.pate import exact
from tacit.pate.smooth import VoteSensitivity


@pytest.mark.parametrize(("sigma", "order"), [(40.0, 8.0), (40.0, 20.0), (10.0, 5.0), (20.0, 15.0)])
def test_from_q0_on_the_data_independent_bound_is_the_better_one(sigma: float, order: float) -> None:
    votes = VoteSensitivity(sigma, 10, order, 250)
    after = np.linspace(votes.log_q0 * (1 - 1e-9), min(0.5 * votes.log_q0, -1e-3), 50)
    assert (votes.bound(after) >= votes.plain * (1 - 1e-9)).all()
    assert votes.bound(np.array([votes.log_q0 * (1 + 1e-6)]))[0] < votes.plain


def test_the_error_of_an_exact_law_covers_the_rounding_of_its_largest_exponent() -> None:
    for far in (50.0, 100.0):
        votes = np.array([[far, 0.0]])
        nodes, _ = exact._nodes(votes, 1.0)
        *_, error = exact._laws(votes, 1.0, abstain=False)
        # densities e^{-u²/2} are computed at every node: their exponents are right to a unit of their size
        assert error[0] >= exact._EPS * float(np.abs(nodes).max()) ** 2
