"""Every rule gives the gradients that one example at a time would give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests.sgd.harness import TOLERANCE, build, compare
from tests.sgd.operations import OPERATIONS

from tacit import sgd
from tacit.sgd.gradients.rules import DECOMPOSE, RULES

# Operators reach the rules under the names of the methods they stand for.
OPERATORS = {name for name in RULES if name.startswith("__")} - {"__getitem__"}
# Rows sorted by group, see test_rows; the last is what transformers makes of it on older machines.
GROUPED = {"grouped_mm", "_grouped_mm", "grouped_mm_fallback"}


@pytest.mark.parametrize("label", OPERATIONS)
def test_an_operation_is_differentiated_example_by_example(label):
    name, builder = OPERATIONS[label]
    for dtype in (torch.float32, torch.float64):
        case = build(builder, dtype)
        errors = compare(case)
        assert errors.worst <= TOLERANCE[dtype], dtype
    found = sgd.check(case.model, case.loss, case.batch)
    if label.startswith("generic"):
        assert found.generic or label.endswith("cumulative")
    else:
        assert found.generic == ()
        assert any(name in uses for uses in found.uses.values())


def test_the_reference_lists_every_rule():
    page = Path(__file__).parents[2] / "docs" / "reference" / "operations.md"
    named = set(re.findall(r"`(\w+)`", page.read_text(encoding="utf-8")))
    assert {name.rstrip("_") for name in RULES if not name.startswith("__")} <= named


def test_every_rule_is_tried():
    tried = {name for name, _ in OPERATIONS.values()}
    assert set(RULES) - OPERATORS - GROUPED <= tried
    assert {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"} <= set(DECOMPOSE)  # see the zoo


def test_a_derivative_that_cannot_be_batched_is_taken_row_by_row(monkeypatch):
    plain = torch.autograd.grad
    refused = []

    def grad(*args, is_grads_batched=False, **kwargs):
        if is_grads_batched:
            refused.append(True)
            raise RuntimeError("no batching rule")
        return plain(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    for label, (_, builder) in OPERATIONS.items():
        if label.startswith("generic"):
            assert compare(build(builder, torch.float64)).worst <= TOLERANCE[torch.float64], label
    assert refused
