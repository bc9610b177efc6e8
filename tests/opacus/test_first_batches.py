"""The first batch of a loop: its number of examples tells them nothing, and one that is not finite is zero."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.opacus.harness import data, expected, net, private
from torch import nn
from torch.utils.data import TensorDataset

from tacit.sgd import BatchMixing


class Counting(nn.Module):
    """A model that tells every example how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 3)

    def forward(self, x):
        return self.line(x) * (1 + 0.1 * len(x))


def test_a_model_that_tells_how_many_there_are_is_refused():
    model = Counting()
    _, optimizer, loader = private(model, data(), poisson_sampling=False)
    x, y = next(iter(loader))
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(BatchMixing, match="how many examples the batch has"):
        optimizer.step()


def test_an_example_that_is_not_finite_counts_as_zero_from_the_first_batch_on():
    x, y = data(12).tensors
    x[::3] = torch.inf
    model = net()
    _, optimizer, loader = private(model, TensorDataset(x, y), batch_size=12, poisson_sampling=False)
    x, y = next(iter(loader))
    fine = torch.isfinite(x).all(1)
    wanted = expected(model, x[fine], y[fine], 0.3, 12)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    # one person whose record is not finite must not take everybody else out of the sum
    for p, value in zip(model.parameters(), wanted, strict=True):
        assert torch.allclose(p.grad, value, atol=1e-6)
