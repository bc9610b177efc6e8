"""Gradients of single examples, where somebody asks for them, are what Opacus would have in ``p.grad_sample``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.opacus.harness import data, net, one_by_one, private
from torch import nn

from tacit.opacus import GradSampleModule, PrivacyEngine
from tacit.opacus.grad_sample import GradSampleModuleFastGradientClipping


def truth(model, x, y):
    """One backward pass for each example: a list with ``(examples, *shape)`` for every trainable parameter."""
    rows = [
        torch.autograd.grad(loss, [p for p in twin.parameters() if p.requires_grad])
        for loss, twin in one_by_one(model, x, y)(model)
    ]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def batch(rows=7):
    return torch.randn(rows, 6), torch.randint(3, (rows,))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_wrapped_model_keeps_the_gradient_of_each_example(reduction):
    model, (x, y) = net(), batch()
    wanted = truth(model, x, y)
    wrapped = GradSampleModule(model, loss_reduction=reduction, keep_grad_sample=True)
    F.cross_entropy(wrapped(x), y, reduction=reduction).backward()
    for p, g in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad_sample, g)
        torch.testing.assert_close(p.grad, getattr(g, reduction)(0))
    # a wrong version would be seen: the examples differ
    assert (wanted[0] - wanted[0].roll(1, 0)).norm() > 0.1 * wanted[0].norm()


def test_it_is_what_opacus_has():
    opacus = pytest.importorskip("opacus", reason="compared with Opacus: pip install 'tacit[oracles]'")
    model, (x, y) = net(), batch()
    theirs = opacus.GradSampleModule(net())
    ours = GradSampleModule(model, keep_grad_sample=True)
    for wrapped in (theirs, ours):
        F.cross_entropy(wrapped(x), y).backward()
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad_sample, q.grad_sample)
        torch.testing.assert_close(p.grad, q.grad)
    F.cross_entropy(theirs(x), y).backward()
    F.cross_entropy(ours(x), y).backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert len(p.grad_sample) == len(q.grad_sample) == 2
        torch.testing.assert_close(p.grad_sample[1], q.grad_sample[1])
    ours.zero_grad()
    assert all(p.grad_sample is None and p.grad is None for p in ours.parameters())


def test_tied_frozen_and_recurrent_weights():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.rnn, self.out = nn.Embedding(9, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 9)
            self.out.weight = self.emb.weight
            self.out.bias.requires_grad_(False)

        def forward(self, x):
            return self.out(self.rnn(self.emb(x))[0].mean(1))

    torch.manual_seed(1)
    model, x, y = Tagger(), torch.randint(9, (5, 6)), torch.randint(9, (5,))
    wanted = truth(model, x, y)
    wrapped = GradSampleModule(model, keep_grad_sample=True)
    F.cross_entropy(wrapped(x), y).backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    for p, g in zip(trained, wanted, strict=True):
        torch.testing.assert_close(p.grad_sample, g, rtol=1e-4, atol=1e-6)
    assert model.out.bias.grad is None


def test_the_model_can_be_had_back():
    model, (x, y) = net(), batch()
    wrapped = GradSampleModule(model, keep_grad_sample=True)
    assert wrapped._module is model
    with pytest.raises(Exception, match="private already"):
        private(model, data())
    assert wrapped.to_standard_module() is model
    F.cross_entropy(model(x), y).backward()
    assert not any(hasattr(p, "grad_sample") for p in model.parameters())
    assert all(p.grad is not None for p in model.parameters())


def test_they_have_to_be_asked_for():
    for kind in (GradSampleModule, GradSampleModuleFastGradientClipping):
        with pytest.raises(NotImplementedError, match="keep_grad_sample=True"):
            kind(net())
    with pytest.raises(ValueError, match="loss_reduction"):
        GradSampleModule(net(), loss_reduction="none", keep_grad_sample=True)
    with pytest.raises(Exception, match="BatchNorm"):
        GradSampleModule(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), keep_grad_sample=True)


def test_a_private_optimizer_has_them_between_backward_and_step_and_steps_as_before():
    after = []
    for reads in (False, True):
        model = net()
        engine = PrivacyEngine()
        _, optimizer, loader = private(model, data(), engine=engine, noise_generator=torch.Generator().manual_seed(5))
        for x, y in loader:
            optimizer.zero_grad()
            assert all(getattr(p, "grad_sample", None) is None for p in model.parameters())
            F.cross_entropy(model(x), y).backward()
            if reads and len(x):
                wanted = truth(model, x, y)
                for mine, p, g in zip(optimizer.grad_samples, model.parameters(), wanted, strict=True):
                    torch.testing.assert_close(mine, g)
                    assert p.grad_sample is mine
                assert all(p.grad is None for p in model.parameters())
            optimizer.step()
        if reads:
            with pytest.raises(RuntimeError, match="after backward"):
                _ = optimizer.grad_samples
        after.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*after, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
