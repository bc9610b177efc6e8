"""The releases of a fit together cost what was asked for, under every adjacency, on data that were compared."""

from __future__ import annotations

import pytest

from tacit import accounting as acc
from tacit.ledger import FingerprintMismatch, Ledger
from tacit.linear_model.descent import DescentBudget
from tacit.linear_model.guarantee import recognised


@pytest.mark.parametrize("adjacency", acc.ADJACENCIES)
def test_the_releases_of_a_descent_cost_one_over_the_noise(adjacency):
    budget = DescentBudget(8.0, adjacency)
    price = acc.epsilon(budget.mechanism("record"), 1e-5, adjacency=adjacency)
    assert price.upper == pytest.approx(acc.epsilon(acc.GDP(1 / 8.0), 1e-5).upper, rel=1e-6)


def test_data_that_are_not_read_here_are_refused_where_a_fingerprint_is_registered():
    ledger = Ledger()
    ledger.register("people", fingerprint=ledger.fingerprint({"age": [1, 2]}), epsilon=1.0, delta=0.0)
    with pytest.raises(FingerprintMismatch, match="is not read here"):
        recognised(ledger, "people", iter([]), None)
