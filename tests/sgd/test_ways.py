"""What Python decides in one batch and not in another: other orders, other paths, draws that torch does not know."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.opacus.harness import private
from torch import nn
from torch.utils.data import TensorDataset

from tacit import sgd
from tacit.sgd.gradients import company
from tacit.sgd.gradients.verify import Ways

ROWS, WIDTH = 6, 4


def squares(model, x):
    return model(x).square().sum(1)


def by_hand(model, x, bound, seed=None):
    """The clipped sum and the norms by autograd, one example at a time."""
    parameters, norms = dict(model.named_parameters()), []
    sums = {n: torch.zeros_like(p) for n, p in parameters.items()}
    for k in range(len(x)):
        drawn(seed)
        found = torch.autograd.grad(squares(model, x[k : k + 1]).sum(), list(parameters.values()), allow_unused=True)
        found = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters.values(), found, strict=True)]
        norm = torch.sqrt(sum(g.square().sum() for g in found))
        norms.append(norm)
        for name, g in zip(parameters, found, strict=True):
            sums[name] += g * min(1.0, float(bound / norm))
    return sums, torch.stack(norms)


def drawn(seed):
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  # the one that models use


def right(model, x, seed=None):
    sums, norms = by_hand(model, x, 0.5, seed)
    drawn(seed)
    found = sgd.clipped_grad(model, squares, x, clip_norm=0.5)
    return torch.allclose(found.norms, norms) and all(torch.allclose(found.sums[n], sums[n]) for n in sums)


class Turned(nn.Module):
    """Examples are turned by a number of Python's, and back again after the first layer."""

    def __init__(self, turn):
        super().__init__()
        self.first, self.last, self.turn, self.by = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2), turn, 0

    def forward(self, x):
        by = self.by % len(x)
        return self.last(self.turn(torch.tanh(self.first(self.turn(x, by))), -by))


def by_branch(x, by):
    return x.roll(by, 0) if by else x * 1.0


def by_rows(x, by):
    rows = list(x.unbind())
    return torch.stack(rows[-by:] + rows[:-by] if by else rows)


TURNS = {
    "roll": lambda x, by: x.roll(by, 0),
    "list": lambda x, by: x[[(k - by) % len(x) for k in range(len(x))]],
    "index": lambda x, by: x[(torch.arange(len(x)) - by) % len(x)],
    "numpy": lambda x, by: x[(np.arange(len(x)) - by) % len(x)],
    "slices": lambda x, by: torch.cat([x[-by % len(x) :], x[: -by % len(x)]]),
    "rows": by_rows,
    "branch": by_branch,
    "matrix": lambda x, by: torch.eye(len(x), dtype=x.dtype).roll(by, 0) @ x,
}


@pytest.mark.parametrize("turn", TURNS)
def test_another_order_than_in_the_first_batch_is_noticed_whoever_decided_it(turn):
    torch.manual_seed(0)
    model = Turned(TURNS[turn]).double()
    for by in (0, 2, 0, 1, 2):
        model.by = by
        assert right(model, torch.randn(ROWS, WIDTH, dtype=torch.float64))


def test_without_that_norms_are_of_other_examples(monkeypatch):
    """The wrong version, in which a plan holds whatever way a pass takes."""
    monkeypatch.setattr(Ways, "other", lambda *_: False)
    torch.manual_seed(0)
    model = Turned(TURNS["list"]).double()
    assert right(model, torch.randn(ROWS, WIDTH, dtype=torch.float64))
    model.by = 2
    assert not right(model, torch.randn(ROWS, WIDTH, dtype=torch.float64))


@pytest.mark.parametrize("turn", ["roll", "rows", "matrix"])
def test_so_it_is_in_a_loop_of_ones_own(turn):
    torch.manual_seed(0)
    model = Turned(TURNS[turn])
    _, optimizer, loader = private(
        model, TensorDataset(torch.randn(30, WIDTH)), batch_size=ROWS, clip=0.5, lr=0.0, poisson_sampling=False
    )
    for by, (x,) in zip((0, 2, 0, 1, 2), loader, strict=True):
        model.by = by
        optimizer.zero_grad()
        squares(model, x).mean().backward()
        optimizer.step()
        plain = Turned(TURNS[turn])
        plain.load_state_dict(model.state_dict())
        sums, _ = by_hand(plain, x, 0.5)
        grads = {n: p.grad * len(x) for n, p in model.named_parameters()}
        assert all(torch.allclose(grads[n], sums[n], atol=1e-5) for n in sums)


class Shuffled(Turned):
    """Examples in an order that is drawn in every pass."""

    def __init__(self, order):
        super().__init__(None)
        self.order = order

    def forward(self, x):
        order = torch.as_tensor(self.order(len(x)))
        return self.last(torch.tanh(self.first(x[order]))[order.argsort()])


ORDERS = {
    "random": lambda n: random.sample(range(n), n),
    "numpy": lambda n: np.random.permutation(n),  # noqa: NPY002
    "system": lambda n: random.SystemRandom().sample(range(n), n),
    "torch": torch.randperm,
}


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_drawn_outside_torch_is_that_of_its_batch(order):
    torch.manual_seed(0)
    model = Shuffled(ORDERS[order]).double()
    for _ in range(4):
        assert right(model, torch.randn(ROWS, WIDTH, dtype=torch.float64))


class Skipping(nn.Module):
    """Layers that are left out at random, by Python's own numbers."""

    def __init__(self):
        super().__init__()
        self.layers, self.last = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)), nn.Linear(WIDTH, 2)

    def forward(self, x):
        for layer in self.layers:
            if random.random() < 0.5:
                x = x + torch.tanh(layer(x))
        return self.last(x)


def test_layers_left_out_by_the_draws_of_python_are_the_same_in_all_passes_of_a_step():
    torch.manual_seed(0)
    model = Skipping().double()
    assert all(right(model, torch.randn(5 + k % 3, WIDTH, dtype=torch.float64), seed=k) for k in range(6))


class AgainstAll(nn.Module):
    """A step against a gradient that has the length of the whole batch's."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, x):
        at = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.layer(at).square().sum(), at)
        return self.layer(x + 0.1 * slope / slope.norm())


def test_a_model_that_mixes_and_asks_for_gradients_is_refused_in_words():
    with pytest.raises(sgd.BatchMixing):
        sgd.clipped_grad(AgainstAll(), squares, torch.randn(ROWS, WIDTH))


def as_long_as_the_longest(model, batch):
    x, lengths = batch
    return model(x[:, : int(lengths.max())].mean(1)).square().sum(1)


def test_what_several_examples_do_alike_is_noticed_by_a_few_of_the_others():
    """Half of the batch is as long as the longest, so that each half of it has some; sixty misses: below 1e-9."""
    torch.manual_seed(0)
    model, lengths = nn.Linear(WIDTH, 2), torch.tensor([5, 2] * 8)
    sgd.clipped_grad(model, as_long_as_the_longest, (torch.randn(16, 5, WIDTH), torch.full((16,), 5)))

    def steps():
        for _ in range(60):
            sgd.clipped_grad(model, as_long_as_the_longest, (torch.randn(16, 5, WIDTH), lengths))

    with pytest.raises(sgd.BatchMixing):
        steps()


@pytest.mark.parametrize("examples", [1, 2, 3, 7, 16])
def test_whoever_reaches_all_others_is_replaced_in_every_batch(examples):
    sizes = set()
    for _ in range(200):
        parts = list(company.halves(examples))
        assert sorted(torch.cat([stay for stay, _ in parts]).tolist()) == list(range(examples))
        sizes.add(min(len(stay) for stay, _ in parts))
    assert sizes == {max(1, examples >> k) for k in range(1, max(2, examples.bit_length()))}


class Capacity(nn.Module):
    """Experts that take no more tokens than there is room for, in the order of the batch."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 2), nn.Parameter(torch.randn(2, WIDTH, WIDTH))

    def forward(self, x):
        rows = x.flatten(0, 1)
        expert = self.router(rows).argmax(1)
        chosen = F.one_hot(expert, 2)
        room = (chosen.cumsum(0) * chosen).sum(1) <= 10
        return ((rows.unsqueeze(1) @ self.experts[expert]).squeeze(1) * room.unsqueeze(1)).view(x.shape).sum(1)


@pytest.mark.parametrize("seed", range(3))
def test_experts_that_are_full_because_of_others_are_refused(seed):
    """Which others are replaced is drawn anew in every batch; with the third seed one batch in twenty passes."""
    torch.manual_seed(seed)
    model = Capacity()

    def steps():
        for _ in range(20):
            sgd.clipped_grad(model, squares, torch.randn(ROWS, 5, WIDTH))

    with pytest.raises(sgd.BatchMixing):
        steps()


class Remembering(nn.Module):
    """Its output is scaled by a buffer that every pass in training writes."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.register_buffer("mean", torch.ones(()))

    def forward(self, x):
        found = self.first(x) / self.mean.clone()
        with torch.no_grad():
            self.mean.mul_(0.5).add_(found.abs().mean())
        return self.last(torch.tanh(found))


def test_buffers_that_a_pass_writes_do_not_look_like_mixing_in_a_loop():
    torch.manual_seed(0)
    model = Remembering()
    _, optimizer, loader = private(
        model, TensorDataset(torch.randn(18, WIDTH)), batch_size=ROWS, clip=0.5, lr=0.0, poisson_sampling=False
    )
    for (x,) in loader:
        wanted = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        for k in range(len(x)):
            plain = Remembering()
            plain.load_state_dict(model.state_dict())
            for n, g in by_hand(plain, x[k : k + 1], 0.5)[0].items():
                wanted[n] += g
        optimizer.zero_grad()
        squares(model, x).mean().backward()
        optimizer.step()
        assert all(torch.allclose(p.grad * len(x), wanted[n], atol=1e-5) for n, p in model.named_parameters())
        assert float(model.mean) == 1.0
