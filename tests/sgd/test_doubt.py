"""Where numbers or errors leave a doubt, the examples count as lost, moved or mixed: never as fine."""

from __future__ import annotations

import contextlib
import types
import warnings

import pytest
import torch
from torch import nn

from tacit.sgd import BatchMixing, ClippingError, clipped_grad
from tacit.sgd.gradients import bounds, company
from tacit.sgd.gradients.contributions import Outer, _kernel_margins
from tacit.sgd.gradients.randomness import Draws
from tacit.sgd.hooked import alone

LOSS = nn.MSELoss(reduction="none")


def test_a_squared_norm_below_zero_by_rounding_is_a_norm_of_zero():
    squared, safe = torch.tensor([[-1e-9], [4.0]]), torch.tensor([[3.0], [2.0]])
    norms, scale, bad, lost = bounds.factors(squared, safe, torch.ones(1), torch.ones(2, dtype=torch.bool), None, 0.0)
    assert norms.tolist() == [[0.0], [2.0]]
    assert (scale * safe <= 1.0).all()
    assert lost.tolist() == [True, False]  # all of its factor is lost to the margin, which is told
    assert not bad.any()


def test_factors_of_very_different_size_are_balanced_without_overflow():
    left, right = torch.full((1, 1, 1, 2), 2.0**-140), torch.full((1, 1, 1, 3), 2.0**120)
    outer = Outer(left, right, (2, 3), (0, 1))
    even = outer.balanced()
    assert torch.isfinite(even.left).all()
    assert torch.isfinite(even.right).all()
    assert torch.equal(even.left.mT @ even.right, torch.full((1, 1, 2, 3), 2.0**-20))


def test_the_margin_of_a_kernel_does_not_shrink_where_rounding_left_less_than_nothing():
    outer = Outer(torch.ones(2, 1, 4, 8), torch.ones(2, 1, 4, 8), (8, 8), (0, 1))
    squares, total = torch.full((2,), 4.0), torch.full((2,), 8.0)
    below, none = (_kernel_margins(outer, torch.full((2,), s), squares, total).gram for s in (-2.0, 0.0))
    assert (below >= none).all()


def test_an_example_alone_keeps_what_dropout_left_of_it():
    draws, x = Draws(torch.device("cpu")), torch.arange(1.0, 13.0).reshape(4, 3)
    with draws.noted():
        together, _ = torch.native_dropout(x, 0.5, True)
    for k in range(4):
        with draws.of(k, 4):
            by_itself, _ = torch.native_dropout(x[k : k + 1], 0.5, True)
        assert torch.equal(by_itself, together[k : k + 1])


def test_a_loss_that_is_not_finite_does_not_hide_that_another_one_moved():
    shapes = [torch.Size([2])]
    before, after = torch.tensor([1.0, torch.inf]).double(), torch.tensor([2.0, torch.inf]).double()

    def losses(batch):
        return (before if batch == "batch" else after), shapes

    stay = torch.tensor([0])
    assert not company.stays(losses, (before, shapes), "batch", "other", stay, nn.Identity(), 1e-3)


@pytest.mark.parametrize("examples", [2, 3, 6, 17])
def test_any_two_examples_are_apart_in_one_of_the_halvings(examples):
    apart = torch.zeros(examples, examples, dtype=torch.bool)
    for stay, index in company.halves(examples, every_two=True):
        assert index[stay].equal(stay)
        gone = index != torch.arange(examples)
        apart |= (~gone).unsqueeze(1) & gone
    assert apart.sum() == examples * (examples - 1)


def test_a_refusal_while_examples_are_exchanged_stays_a_refusal():
    asked = []

    def losses(batch):
        asked.append(batch)
        if len(asked) == 1:
            raise ClippingError("the examples are mixed")
        return torch.ones(4).double(), []

    known = torch.ones(4).double(), []
    with pytest.raises(ClippingError, match="mixed"):
        list(company.compared(losses, known, None, lambda index: index, company.halves(4), nn.Identity(), 1e-3))


def test_weights_that_were_moved_come_back_bit_by_bit_whatever_happens():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(3, 2), nn.Embedding(4, 3)).to(torch.bfloat16)
    before = [p.detach().clone() for p in model.parameters()]
    versions = [p._version for p in model.parameters()]

    def moved():
        with company.displaced(model.parameters()):
            assert not any(bool((p == b).any()) for p, b in zip(model.parameters(), before, strict=True) if b.dim() < 2)
            model[1].weight.data = torch.zeros(2, 3, dtype=torch.bfloat16)
            raise ClippingError("refused")

    with pytest.raises(ClippingError, match="refused"):
        moved()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert versions == [p._version for p in model.parameters()]


class Positive(nn.Module):
    """Asks of its weights that they are positive, and small."""

    def __init__(self, most):
        super().__init__()
        self.line, self.scale, self.most = nn.Linear(3, 2), nn.Parameter(torch.full((2,), 1e-4)), most

    def forward(self, x):
        assert bool((self.scale > 0).all())
        assert float(self.scale.detach().max()) < self.most
        loud = x.max() > 3
        return self.line(x) + self.scale * (x[:, :2] * (1 + loud * x.mean()))


@pytest.mark.parametrize("most", [1.0, 1e-3])
def test_a_model_that_does_not_run_at_other_weights_is_compared_by_its_gradients(most):
    torch.manual_seed(0)
    model, loss, batch = Positive(most), nn.CrossEntropyLoss(reduction="none"), torch.zeros(8, dtype=torch.int64)
    quiet = torch.rand(8, 3)
    told = pytest.warns(UserWarning, match="does not run with its weights moved")
    with told if most < 1 else contextlib.nullcontext():
        found = clipped_grad(model, loss, (quiet, batch), clip_norm=1e9).sums["scale"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        found = clipped_grad(model, loss, (quiet, batch), clip_norm=1e9).sums["scale"]
    wanted = torch.autograd.grad(loss(model(quiet), batch).sum(), model.scale)[0]
    assert torch.allclose(found, wanted, rtol=1e-4)
    with pytest.raises(BatchMixing):
        clipped_grad(model, loss, (quiet + 4 * torch.eye(8, 3), batch), clip_norm=1e9)


class Forgetful(Positive):
    """Has a fault that shows at other weights only."""

    def forward(self, x):
        if float(self.scale.detach().max()) >= self.most:
            return self.gone(x)
        return super().forward(x)


def test_a_fault_that_shows_at_other_weights_is_no_request_of_the_model():
    model, loss = Forgetful(1e-3), nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(AttributeError, match="gone"):
        clipped_grad(model, loss, (torch.rand(8, 3), torch.zeros(8, dtype=torch.int64)), clip_norm=1e9)


class Refusing(nn.Module):
    """A model that refuses a batch of three."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 1)

    def forward(self, x):
        if len(x) == 3:
            raise ClippingError("three are refused")
        return self.line(x)


def test_a_refusal_of_half_a_batch_stays_a_refusal():
    torch.manual_seed(0)
    model = Refusing()
    clipped_grad(model, LOSS, (torch.randn(8, 2), torch.randn(8, 1)), clip_norm=1.0)
    with pytest.raises(ClippingError, match="three are refused"):
        clipped_grad(model, LOSS, (torch.randn(6, 2), torch.randn(6, 1)), clip_norm=1.0)


def test_a_refusal_while_an_example_is_probed_stays_a_refusal(monkeypatch):
    class Alone:
        calls, rows = (None,), 2

        def __init__(self, watch, calls):
            pass

        passes = staticmethod(contextlib.nullcontext)

        def value(self, example):
            raise RuntimeError("not by itself")

        def among(self, example, rows):
            raise ClippingError("its row is mixed")

    monkeypatch.setattr(alone, "Alone", Alone)
    watch = types.SimpleNamespace(engine=types.SimpleNamespace(parameters={}), tolerance=lambda call: 0.0)
    with pytest.raises(ClippingError, match="mixed"):
        alone.probed(watch, [None], torch.zeros(2, 1), None, 0)
