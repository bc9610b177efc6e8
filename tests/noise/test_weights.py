"""Weights of a narrow type are trained with noise that was added to wide sums, and rounded once after it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tacit.noise.keys import Key
from tacit.sgd import Training
from tacit.sgd import release as module

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
RATE = 0.5


class Network(nn.Module):
    """Narrow weights in front of others, which are wide or narrow."""

    def __init__(self, last: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last = nn.Linear(20, 33, dtype=torch.bfloat16), nn.Linear(33, 4, dtype=last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x.bfloat16()).tanh().to(self.last.weight.dtype)).float()


@pytest.mark.parametrize("last", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("device", "compiled"),
    [("cpu", False), pytest.param("cuda", False, marks=GPU), pytest.param("cuda", True, marks=GPU)],
)
def test_narrow_weights_are_trained_as_if_the_noisy_sums_were_cast_afterwards(monkeypatch, last, device, compiled):
    """Against noise in place on copies of the sums, a cast, and the step of plain SGD: the same bits at the end."""
    real, kept, asked = module.add_normal_many_, {}, []

    def watched(sums, key, step, names, scale, *, divisor, into):
        wide = [s.clone() for s in sums]
        assert {s.dtype for s in wide} == {torch.float32}
        real(wide, key, step, names, scale, divisor=divisor)
        kept[step] = dict(zip(names, wide, strict=True))
        asked.append([i is s for i, s in zip(into, sums, strict=True)])
        real(sums, key, step, names, scale, divisor=divisor, into=into)

    monkeypatch.setattr(module, "add_normal_many_", watched)
    model = Network(last).to(device)
    expected = {n: p.detach().clone() for n, p in model.named_parameters()}
    x = torch.randn(60, 20, generator=torch.Generator().manual_seed(1))
    training = Training(
        model, torch.optim.SGD(model.parameters(), lr=RATE), nn.CrossEntropyLoss(reduction="none"),
        (x, x[:, :4].argmax(1)), batch_size=20, steps=8, noise_multiplier=1.0, delta=1e-5,
        key=Key(bytes(32), repeatable=True), physical_batch=60, compile=compiled,
    )  # fmt: skip
    for batch in training:
        training.step(batch)
        for name, weight in expected.items():
            weight.add_(kept[batch.step][name].to(weight.dtype), alpha=-RATE)
    assert all(torch.equal(p, expected[n]) for n, p in model.named_parameters())
    # Weights that are as wide as the sums get their noise in place.
    assert all(sum(a) == (2 if last == torch.float32 else 0) for a in asked)
