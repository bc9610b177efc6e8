"""Every architecture of the zoo is clipped exactly as one example at a time would be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.sgd import zoo_more, zoo_transformers
from tests.sgd.harness import TOLERANCE, build, compare
from tests.sgd.zoo import ZOO, table

OPERATIONS = Path(__file__).parents[2] / "docs" / "reference" / "operations.md"

assert zoo_more
assert zoo_transformers


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ZOO)
def test_an_architecture_is_clipped_as_one_example_at_a_time_would_be(name):
    for dtype in (torch.float32, torch.float64):
        for clipping in ("flat", "per_layer"):
            case = build(ZOO[name][1], dtype)
            errors = compare(case, clipping)
            bound = TOLERANCE[case.notes.get("computes_in", dtype)]
            assert errors.total <= bound, f"clipped sum, {clipping}, {dtype}"
            assert errors.norms <= bound, f"norms, {clipping}, {dtype}"


def test_the_reference_lists_the_zoo():
    """To renew it: ``python -m tests.sgd.gpu_harness --table``."""
    assert table() in OPERATIONS.read_text(encoding="utf-8")


def test_the_zoo_is_as_large_as_promised():
    assert len(ZOO) >= 30
    assert sum(name.startswith("hf-") for name in ZOO) >= 7
    assert {"peft-lora", "peft-prefix", "peft-prompt"} <= set(ZOO)


@pytest.mark.parametrize("name", ["gpt-tied", "hf-gpt2", "wrn-groupnorm", "lstm-tagger"])
def test_the_harness_notices_a_wrong_answer(name, monkeypatch):
    """The truth is not computed by what it judges: a norm that is off by a thousandth is seen."""
    from tacit.sgd.gradients import contributions

    whole = contributions.Group.norms

    def off(self):
        found = whole(self)
        return contributions.Norms(found.squared * 1.002, found.gram, found.product)

    monkeypatch.setattr(contributions.Group, "norms", off)
    errors = compare(build(ZOO[name][1], torch.float64), check="never")
    assert errors.norms > 1e-4
    assert errors.total > 1e-5
