"""A checkpoint holds one adapter, and is put back into that adapter only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tacit.prompts.adapters import AdaptedModel


def test_the_weights_of_another_adapter_are_refused():
    model, other = AdaptedModel(nn.Linear(2, 2)), AdaptedModel(nn.Linear(2, 2, bias=False))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="another adapter"):
        model.load_state_dict(other.state_dict())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    model.load_state_dict({name: value + 1 for name, value in before.items()})
    assert all(torch.equal(before[name] + 1, value) for name, value in model.state_dict().items())
