"""A charge that does not fit the terms of its data is refused, whatever else is right about it."""

from __future__ import annotations

import pytest

from tacit import accounting as acc
from tacit.ledger import BudgetExceeded, Ledger, TermsError

UNITS = [("record", "person"), ("person", "record"), ("person", "household")]


@pytest.mark.parametrize(("registered", "stated"), UNITS)
def test_a_mechanism_for_another_unit_is_refused(registered, stated):
    ledger = Ledger()
    ledger.register("people", epsilon=9.0, delta=1e-5, unit=registered)
    for ask in (ledger.charge, ledger.quote):
        with pytest.raises(TermsError, match=f"protects one {stated}"):
            ask("people", acc.Gaussian(5.0, unit=stated), delta=1e-6)
    assert ledger.budget("people").charges == 0
    ledger.charge("people", acc.Gaussian(5.0, unit=registered), delta=1e-6)
    assert ledger.budget("people").charges == 1


def test_what_is_no_mechanism_or_states_no_guarantee_here_is_refused():
    ledger = Ledger()
    ledger.register("people", epsilon=9.0, delta=1e-5, adjacency="replace-one")
    with pytest.raises(TermsError, match="a charge is a mechanism"):
        ledger.charge("people", 0.5, delta=0.0)  # type: ignore[arg-type]
    with pytest.raises(TermsError, match="registered for replace-one"):
        ledger.charge("people", acc.PureDP(0.5, adjacency="add-remove"), delta=0.0)
    assert ledger.budget("people").charges == 0


def test_deltas_add_up_and_the_last_of_a_budget_can_be_spent():
    ledger = Ledger()
    ledger.register("people", epsilon=9.0, delta=3e-6)
    for _ in range(3):
        ledger.charge("people", acc.ApproxDP(0.1, 1e-6), delta=1e-6).confirm()
    assert ledger.budget("people").spent_delta == pytest.approx(3e-6)
    with pytest.raises(BudgetExceeded):
        ledger.charge("people", acc.ApproxDP(0.1, 1e-9), delta=1e-9)
    exact = Ledger()
    exact.register("people", epsilon=1.0, delta=0.0)
    for _ in range(4):
        exact.charge("people", acc.PureDP(0.25), delta=0.0)
    assert exact.budget("people").left_epsilon == 0.0
    with pytest.raises(BudgetExceeded):
        exact.charge("people", acc.PureDP(1e-9), delta=0.0)
