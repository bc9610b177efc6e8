"""What a card says is true of the card itself: neighbouring data sets have the same one."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit import accounting as acc
from tacit.ledger import Ledger
from tacit.linear_model import LogisticRegression
from tacit.report import Run, describe, describe_fit, make_card, to_json
from tacit.sgd import Training

ROWS = 301


def described(rows: int = ROWS, blank: int | None = None, **settings: Any) -> Run:
    """A run on so many records, one of them blank; its card is a function of this, and of the day."""
    x, y = torch.ones(rows, 3), torch.arange(rows) % 2
    if blank is not None:
        x[blank], y[blank] = 0.0, 0
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    usual = {"batch_size": 30, "steps": 1, "noise_multiplier": 2.0, "delta": 1e-6}
    training = Training(model, optimizer, nn.CrossEntropyLoss(reduction="none"), (x, y), **(usual | settings))
    for batch in training:
        training.step(batch)
    return describe(training, "run")


def fields(run: Run) -> dict[str, Any]:
    """All that the card is made of; ``after`` as the prices it gives."""
    found = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    assert run.after is not None
    return found | {"after": run.after(1)}


def test_a_number_that_was_counted_is_public_and_neighbours_have_it_in_common():
    told = json.loads(to_json(make_card(described())))
    guarantee = told["guarantee"]
    assert guarantee["adjacency"] == "zero-out"
    assert guarantee["neighbours"] == "zero out one record; the number of records is treated as public"
    assert guarantee["claim"].startswith("Whether or not the contribution of any one record was counted")
    assert guarantee["claim"].endswith("The number of records is treated as public.")
    assert guarantee["neighbours"] in guarantee["formula"]
    assert [row["adjacency"] for row in guarantee["other_adjacencies"]] == ["replace-one"]
    assert "add/remove" not in json.dumps(told)
    assert (told["accesses"]["records"], told["accesses"]["records_public"]) == (ROWS, True)
    why = told["sources"]
    assert "stated by the user" not in why["accesses.records"]
    for place in ("mechanism.words", "mechanism.description", "mechanism.parameters", "guarantee.epsilon.upper"):
        assert "number of records" in why[place]


@pytest.mark.parametrize("settings", [{}, {"adjacency": "replace-one"}, {"sampler": "fixed"}], ids=str)
def test_neighbours_of_the_same_number_have_the_same_card(settings):
    one, other = described(**settings), described(blank=17, **settings)
    assert fields(one) == fields(other)
    assert one.adjacency != "add-remove"
    # The price is that of the adjacency that the card states.
    stated = acc.epsilon(one.mechanism, 1e-6, adjacency=one.adjacency).upper
    assert one.price().upper >= stated * (1 - 1e-9)


def test_with_a_size_that_was_stated_a_record_more_or_less_gives_the_same_card():
    one, other = described(ROWS, size=320), described(ROWS - 1, size=320)
    assert fields(one) == fields(other)
    assert (one.adjacency, one.records, one.records_public) == ("add-remove", None, False)


def test_a_ledger_for_add_remove_is_charged_and_the_card_states_what_its_file_can():
    ledger = Ledger()
    ledger.register("people", epsilon=9.0, delta=1e-4)
    run = described(ledger=ledger, dataset="people")
    assert run.adjacency == "zero-out"
    assert run.price().upper >= ledger.history("people")[0].price.epsilon * (1 - 1e-6)


def test_a_fit_whose_rate_was_made_of_the_count_says_so():
    x = np.random.default_rng(0).uniform(0, 10, (ROWS, 2))
    for method, adjacency in (("dp-sgd", "zero-out"), ("auto", "add-remove")):
        fitted = LogisticRegression(epsilon=1.0, delta=1e-6, bounds=(0, 10), method=method)
        run = describe_fit(fitted.fit(x, (x[:, 0] > 5).astype(int)), "fit")
        assert (run.adjacency, run.records_public) == (adjacency, adjacency == "zero-out")
        assert run.price().upper <= 1.0


def test_a_card_under_add_remove_with_the_exact_number_is_refused():
    with pytest.raises(ValueError, match="add/remove neighbours differ in it"):
        Run("count", acc.Laplace(10.0), delta=0.0, records_public=True, records=ROWS)
    Run("count", acc.Laplace(10.0), delta=0.0, adjacency="zero-out", records_public=True, records=ROWS)
