"""A card that promises more than its mechanism keeps is contradicted, under the adjacency that it states."""

from __future__ import annotations

import dataclasses
import types

import numpy as np
import pytest

from tacit import accounting as acc
from tacit.runs import audit, claims
from tacit.sgd.training.plan import make_plan
from tacit.sgd.training.sampling import Poisson

STEPS = 20
PLAN = make_plan(
    Poisson(size=200, batch_size=40), steps=STEPS, epsilon=None, noise_multiplier=0.6, clip_norm=1.0, delta=1e-5,
    adjacency="add-remove", elements=10,
)  # fmt: skip


def folder(epsilon: float, adjacency: str = "add-remove", **more):
    """As much of a card as states its price."""
    guarantee = {"adjacency": adjacency, "delta": 1e-5, "epsilon": {"upper": epsilon, "claimed": epsilon}}
    guarantee |= {"epsilon_of_delta": [], "other_adjacencies": [], "unit": "record"} | more
    card = {"guarantee": guarantee, "mechanism": {"description": PLAN.mechanism.to_dict()}}
    return types.SimpleNamespace(card=card, plan=PLAN)


def test_an_epsilon_below_the_price_is_contradicted():
    true = acc.epsilon(PLAN.mechanism, 1e-5).upper
    assert true > 4
    for stated, held in ((true, claims.AGREES), (1.1 * true, claims.AGREES), (0.9 * true, claims.CONTRADICTED)):
        first, *_ = claims._price(folder(stated))
        assert first.result == held
    assert next(iter(claims._price(folder(2.0)))).result == claims.CONTRADICTED


def test_a_curve_over_steps_is_for_the_neighbours_that_are_stated():
    adjacency = "replace-one"
    own = acc.profile(PLAN.mechanism, [1.0, 4.0], adjacency=adjacency, accuracy=0.01)
    alpha = np.array([0.1, 0.5])
    shown = {
        "profile": {"epsilon": [1.0, 4.0], "upper": own.upper.tolist()},
        "tradeoff": {"alpha": alpha.tolist(), "lower": own.tradeoff(alpha).lower.tolist()},
    }
    for priced, held in ((adjacency, claims.AGREES), ("add-remove", claims.CONTRADICTED)):
        plan = dataclasses.replace(PLAN, adjacency=priced)
        over = {"steps": [1, STEPS], "upper": [plan.price(k).upper for k in (1, STEPS)]}
        (found,) = claims._curves(folder(9.0, adjacency, over_steps=over, **shown))
        assert found.result == held


def test_canaries_are_judged_by_the_claim_as_it_is_stated(tmp_path, monkeypatch):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / audit.CANARIES).write_bytes(b"")
    seen = []
    monkeypatch.setattr(audit.Planted, "load", lambda path: "planted")
    monkeypatch.setattr(audit, "audit_run", lambda *given, claimed, **more: seen.append(claimed))
    audit._own_canaries(tmp_path, folder(3.0, "replace-one").card, 0.05, None)
    assert (seen[0].adjacency, seen[0].upper, seen[0].given) == ("replace-one", 3.0, 1e-5)


def test_canaries_that_may_be_published_are_not_planted_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "saved", lambda run: None)
    monkeypatch.setattr(audit, "read_card", lambda path: folder(3.0).card)
    monkeypatch.setattr(audit, "check_claims", lambda *given: [])
    monkeypatch.setattr(audit, "_own_canaries", lambda *given: types.SimpleNamespace(operator_only=False))
    with pytest.raises(ValueError, match="leave out --canaries"):
        audit.audit(tmp_path, audit.Attack(canaries=10), None)
