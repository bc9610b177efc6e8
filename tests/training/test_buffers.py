"""A model that writes what it sees into a buffer keeps nothing of a record."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tacit.sgd


class Remembers(nn.Module):
    """Copies its input into a buffer, in training or in evaluation mode."""

    def __init__(self, in_training: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.in_training = in_training
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training == self.in_training:
            self.seen.copy_(x.detach().mean(0))
        return self.layer(x)


@pytest.mark.parametrize("in_training", [True, False])
def test_training_leaves_no_record_in_a_buffer(in_training: bool) -> None:
    model = Remembers(in_training)
    x, y = torch.randn(64, 4) + 5, torch.randint(0, 2, (64,))
    training = tacit.sgd.Training(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(reduction="none"),
        (x, y),
        batch_size=16,
        epochs=1,
        noise_multiplier=2.0,
        delta=1e-3,
        clip_norm=1.0,
    )
    for batch in training:
        training.step(batch)
    assert torch.equal(model.seen, torch.zeros(4))
