"""Parameters whose gradients cannot be seen have a pass of each example by itself; what mixes stays refused."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tacit import opacus, sgd
from tacit.sgd.gradients import fallback, randomness, verify
from tacit.sgd.gradients.engine import Engine

pytestmark = pytest.mark.filterwarnings(
    "ignore::tacit.sgd.PassPerExample", "ignore::DeprecationWarning", "ignore:The PyTorch API of nested:UserWarning"
)


class Opaque(torch.autograd.Function):
    """A product that no rule can see into."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.mT, x.mT @ grad


class Rounded(torch.autograd.Function):
    """A straight-through estimator of its weight."""

    @staticmethod
    def forward(ctx, weight):
        return weight.sign()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Around(nn.Module):
    """Something hidden between two layers."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(5, 4), nn.Dropout(dropout), nn.Linear(3, 2)
        self.w = nn.Parameter(torch.randn(4, 3))

    def hidden(self, x):
        return Opaque.apply(x, self.w)

    def forward(self, x):
        return self.last(torch.tanh(self.hidden(self.drop(self.first(x)))))


class Straight(Around):
    def hidden(self, x):
        return x @ Rounded.apply(self.w)


class Vmapped(Around):
    def hidden(self, x):
        return torch.func.vmap(lambda one: one @ self.w)(x)


class Slope(Around):
    """The gradient of a function of the weights, by a transform."""

    def hidden(self, x):
        return torch.func.vmap(torch.func.grad(lambda one: (one @ self.w).sin().sum()))(x)[:, :3]


class Complex(Around):
    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        self.w = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

    def hidden(self, x):
        return (x.to(torch.complex64) @ self.w).abs()


class Sparse(Around):
    """A sparse matrix with weights at a few places."""

    def hidden(self, x):
        places = torch.tensor([[0, 1, 2, 2], [0, 1, 2, 3]])
        matrix = torch.sparse_coo_tensor(places, self.w[:, 0], (3, 4), check_invariants=True).coalesce()
        return torch.sparse.mm(matrix, x.mT).mT


class Nested(Around):
    """Nested tensors of the old layout, which do not say how large they are."""

    def hidden(self, x):
        rows = torch.nested.as_nested_tensor([row[: 2 + int(row[0] > 0)].unsqueeze(1) for row in x])
        return torch.nested.to_padded_tensor(F.linear(rows, self.w[:1].mT), 0.0, (len(x), 3, 3)).sum(1)


class Scripted(Around):
    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.inner = torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.Tanh()))
        del self.w

    def hidden(self, x):
        return self.inner(x)


class Mixing(Around):
    def forward(self, x):
        out = super().forward(x)
        return out - out.mean(0)


def squares(model, x):
    return model(x).square().sum(1)


def penalty(model, x):
    """A gradient inside the loss."""
    x = x.detach().requires_grad_()
    out = model(x).square().sum(1)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out + slope.square().sum(1)


CASES = {
    "custom function": (Around, squares, {"w"}),
    "straight-through": (Straight, squares, {"w"}),
    "vmap": (Vmapped, squares, {"w"}),
    "grad of torch.func": (Slope, squares, {"w"}),
    "complex": (Complex, squares, {"w"}),
    "sparse": (Sparse, squares, {"w"}),
    "nested": (Nested, squares, {"w"}),
    "scripted": (Scripted, squares, {"inner.0.weight", "inner.0.bias"}),
    "penalty": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)), penalty, {"0.weight", "2.weight"}),
}


def by_hand(model, loss, x, bound):
    """The clipped sum and the norms by autograd, one example at a time."""
    parameters = dict(model.named_parameters())
    sums, norms = {n: torch.zeros_like(p) for n, p in parameters.items()}, []
    for k in range(len(x)):
        value = loss(model, x[k : k + 1]).sum()
        found = torch.autograd.grad(value, list(parameters.values()))
        norm = torch.sqrt(sum(g.abs().square().sum() for g in found))
        norms.append(norm)
        for name, g in zip(parameters, found, strict=True):
            sums[name] += g * min(1.0, float(bound / norm))
    return sums, torch.stack(norms)


def close(found, wanted):
    return all(torch.allclose(found[n], wanted[n], rtol=1e-4, atol=1e-5) for n in wanted)


@pytest.mark.parametrize("case", CASES)
def test_hidden_parameters_alone_fall_back_and_the_sum_is_exact(case):
    torch.manual_seed(0)
    make, loss, hidden = CASES[case]
    model = make()
    for rows in (6, 3, 6):
        x = torch.randn(rows, 5)
        result = sgd.clipped_grad(model, loss, x, clip_norm=0.5)
        sums, norms = by_hand(model, loss, x, 0.5)
        assert close(result.sums, sums)
        assert torch.allclose(result.norms, norms, rtol=1e-4)
    engine = Engine.of(model)
    assert {list(engine.parameters)[k] for k in engine.apart} == hidden
    found = sgd.check(make(), loss, x)
    assert set(found.apart) == hidden
    assert all(found.uses[name] for name in found.uses if name not in hidden)


def test_single_gradients_masks_and_pieces_fall_back_too():
    torch.manual_seed(0)
    model, x = Around(), torch.randn(7, 5)
    mask = torch.arange(7) < 5
    wanted, _ = by_hand(model, squares, x[:5], 0.5)
    for pieces in (None, 2, 3):
        found = sgd.clipped_grad(model, squares, x, clip_norm=0.5, mask=mask, microbatch=pieces)
        assert close(found.sums, wanted)
    single = sgd.example_gradients(model, squares, x)
    assert torch.allclose(single["w"][2], torch.autograd.grad(squares(model, x)[2], model.w)[0], atol=1e-5)


def test_the_price_is_said_once(monkeypatch):
    monkeypatch.setattr(fallback, "ROOM", 1)  # two examples at a time
    model = Around()
    with pytest.warns(sgd.PassPerExample, match=r"'w' is consumed by OpaqueBackward.* s for these 2 passes") as said:
        sgd.example_gradients(model, squares, torch.randn(2, 5))
    sgd.clipped_grad(model, squares, torch.randn(6, 5))
    assert len([w for w in said if w.category is sgd.PassPerExample]) == 1


def test_a_step_that_was_to_be_compiled_falls_back():
    torch.manual_seed(0)
    model, x = Around(), torch.randn(6, 5)
    found = sgd.clipped_grad(model, squares, x, clip_norm=0.5, compile="traced")
    assert close(found.sums, by_hand(model, squares, x, 0.5)[0])


@pytest.mark.parametrize("kind", [Around, Vmapped])
def test_dropout_of_the_batch_is_that_of_each_example(kind):
    """One function of one draw: with nothing clipped, the sum is autograd's of the same batch."""
    model, x = kind(0.5), torch.randn(8, 5)
    torch.manual_seed(1)
    found, next_found = sgd.clipped_grad(model, squares, x, clip_norm=1e6), torch.rand(1)
    torch.manual_seed(1)
    wanted = torch.autograd.grad(squares(model, x).sum(), list(model.parameters()))
    assert close(found.sums, dict(zip(dict(model.named_parameters()), wanted, strict=True)))
    assert torch.equal(next_found, torch.rand(1))


def test_draws_that_cannot_be_told_apart_are_refused(monkeypatch):
    monkeypatch.setattr(randomness, "PURE", frozenset())
    with pytest.raises(sgd.UncoveredUse, match="switch dropout off"):
        sgd.clipped_grad(Around(0.5), squares, torch.randn(8, 5))


# -- what mixes stays refused ------------------------------------------------------------------------------------------


class Turning(Around):
    """Examples are mixed from a step on, unseen by what the first step checked."""

    after = 2

    def forward(self, x):
        out = super().forward(x)
        return out - 0.1 * out.mean(0) if self.after <= 0 else out


def test_mixing_is_refused_at_the_first_step_and_at_every_later_one():
    torch.manual_seed(0)
    with pytest.raises(sgd.BatchMixing):
        sgd.clipped_grad(Mixing(), squares, torch.randn(6, 5))
    contrast = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(sgd.BatchMixing):
        sgd.clipped_grad(Around(), lambda m, x: contrast(m(x) @ m(x).T, torch.arange(len(x))), torch.randn(6, 5))
    model = Turning()
    for _ in range(3):
        sgd.clipped_grad(model, squares, torch.randn(6, 5))
    model.after = 0
    with pytest.raises(sgd.BatchMixing):
        sgd.clipped_grad(model, squares, torch.randn(6, 5))


def test_a_tipped_discontinuity_is_not_taken_for_mixing():
    """Other kernels for one row round otherwise; with its own copies beside it the example has its loss again."""
    torch.manual_seed(0)
    model, x = Around(), torch.randn(6, 5)
    engine = Engine.of(model)
    request = sgd.clip.Request(squares, x, sgd.clip.Clipping.of("flat", 1.0, list(engine.parameters)))
    losses = engine.losses(request).detach()
    alone = losses.clone()
    alone[2] += 1
    fallback.by_themselves(engine, request, losses, alone, range(6), lambda: None)
    with pytest.raises(sgd.BatchMixing):
        fallback.by_themselves(engine, request, alone, losses, range(6), lambda: None)


def test_losses_that_are_not_finite_on_one_side_only_are_apart():
    one, bad = torch.tensor(1.0), torch.tensor(torch.nan)
    assert fallback.near(one, one, 1e-3)
    assert fallback.near(bad, bad, 1e-3)
    assert not fallback.near(one, bad, 1e-3)
    assert verify.TOLERANCE[torch.float32] <= 1e-3


# -- in a loop that somebody else wrote --------------------------------------------------------------------------------


def one_step(model, x, y, *, noise=0.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = DataLoader(TensorDataset(x, y), batch_size=len(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sgd.PrivacyWarning)
        private, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, max_grad_norm=0.3,
            poisson_sampling=False,
        )  # fmt: skip
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(private(inputs), labels).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [Around, Straight, Vmapped, Complex, Scripted, Nested])
def test_the_drop_in_falls_back(kind):
    torch.manual_seed(0)
    model, x, y = kind(), torch.randn(8, 5), torch.randint(2, (8,))
    before = copy.deepcopy(model) if kind is not Scripted else None
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    one_step(model, x, y)
    if before is not None:
        wanted = sgd.clipped_grad(before, nn.CrossEntropyLoss(reduction="none"), (x, y), clip_norm=0.3)
        assert close(
            {n: start[n] - p.detach() for n, p in model.named_parameters()}, {n: s / 8 for n, s in wanted.sums.items()}
        )
    assert all(bool((p != start[n]).any()) for n, p in model.named_parameters())


class Jagged(nn.Module):
    """Nested tensors of the new layout, in the middle of a model."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(1, 4), nn.Linear(4, 2)

    def forward(self, x):
        rows = torch.nested.as_nested_tensor(
            [row[: 2 + int(row[0] > 0)].unsqueeze(1) for row in x], layout=torch.jagged
        )
        return self.last(torch.nested.to_padded_tensor(self.first(rows).tanh(), 0.0, (len(x), 3, 4)).sum(1))


def test_nested_tensors_in_a_loop_need_no_pass_of_each_example():
    torch.manual_seed(0)
    model, x, y = Jagged(), torch.randn(8, 5), torch.randint(2, (8,))
    loss = nn.CrossEntropyLoss(reduction="none")
    sums, _ = by_hand(model, lambda m, one: loss(m(one), y[(x == one).all(1)]), x, 0.3)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    one_step(model, x, y)
    assert close({n: 8 * (start[n] - p.detach()) for n, p in model.named_parameters()}, sums)
    assert not Engine.of(model).apart


def test_the_drop_in_refuses_what_mixes_and_repeats_dropout():
    torch.manual_seed(0)
    x, y = torch.randn(8, 5), torch.randint(2, (8,))
    with pytest.raises(sgd.BatchMixing):
        one_step(Mixing(), x, y)
    one_step(Around(0.5), x, y)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_that_was_compiled_in_place_is_watched_as_written():
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(8, 5), torch.randint(2, (8,))
    twin = copy.deepcopy(model)
    model.compile(backend="aot_eager")
    for one in (model, twin):
        one_step(one, x, y)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_model_that_is_scripted_whole_says_what_to_do_in_a_loop():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(5, 2)))
    with pytest.raises(sgd.ClippingError, match="script it after training"):
        one_step(scripted, torch.randn(8, 5), torch.randint(2, (8,)))
