"""No example contributes more than the clip norm, whatever its data."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sgd.zoo import GPT, Recurrent, tagging
from torch import nn

from tacit import sgd
from tacit.sgd.gradients.bounds import Clipped
from tacit.sgd.kernels.products import full_precision

WIDE = st.floats(-(2.0**100), 2.0**100, width=32)
WILD = st.one_of(WIDE, st.floats(-4, 4, width=32), st.sampled_from([math.inf, -math.inf, math.nan, 0.0, 1e38, 1e-38]))


class Tokens(nn.Module):
    """A linear layer over tokens, summed: tokens of opposite sign cancel."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return self.linear(x).sum(1)


def squares(model, x):
    return model(x).flatten(1).square().sum(1)


def plain_sum(model, x):
    return model(x).flatten(1).sum(1)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), (4,)),
    "conv": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Conv1d(4, 2, 2)), (2, 6)),
    "conv, few positions": (lambda: nn.Conv1d(2, 16, 5), (2, 6)),
    "tokens, Gram": (lambda: Tokens(12), (3, 12)),
    "tokens, product": (lambda: Tokens(2), (6, 2)),
    "norm": (lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.PReLU()), (3, 4)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (4,)),
    "prototypes": (lambda: Distances(), (3, 4)),
}


class Distances(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.randn(5, 4))

    def forward(self, x):
        return torch.cdist(x, self.p.expand(len(x), -1, -1))


def contributions(model, loss, batch, count, clip_norm, **options):
    """The norm of what each example adds by itself, and of all together."""
    found = []
    for k in range(count):
        mask = torch.zeros(count, dtype=torch.bool)
        mask[k] = True
        sums, _ = sgd.clipped_grad(model, loss, batch, clip_norm=clip_norm, mask=mask, **options)
        assert all(torch.isfinite(v).all() for v in sums.values())
        found.append(math.sqrt(sum(v.double().square().sum().item() for v in sums.values())))
    sums, _ = sgd.clipped_grad(model, loss, batch, clip_norm=clip_norm, **options)
    assert all(torch.isfinite(v).all() for v in sums.values())
    return found


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=30)
@given(
    data=st.data(),
    clip_norm=st.sampled_from([1e-4, 1.0, 1e3]),
    clipping=st.sampled_from(["flat", "per_layer", "automatic"]),
    loss=st.sampled_from([squares, plain_sum]),
)
def test_no_example_contributes_more_than_the_clip_norm(name, data, clip_norm, clipping, loss):
    build, shape = MODELS[name]
    torch.manual_seed(data.draw(st.integers(0, 99)))
    model = build()
    size = 3 * math.prod(shape)
    x = torch.tensor(data.draw(st.lists(WILD, min_size=size, max_size=size))).view(3, *shape)
    for norm in contributions(model, loss, x, 3, clip_norm, clipping=clipping):
        assert norm <= clip_norm * (1 + 1e-6)


@settings(max_examples=60)
@given(
    scale=st.floats(1e-3, 1e12),
    tokens=st.integers(1, 8),
    width=st.sampled_from([2, 8, 24]),
    seed=st.integers(0, 999),
    noise=st.sampled_from([0.0, 1e-7, 1e-3]),
)
def test_cancelling_tokens_cannot_hide_a_contribution(scale, tokens, width, seed, noise):
    """Tokens that cancel leave a gradient smaller than its rounding errors, which must not pass for a small norm."""
    torch.manual_seed(seed)
    x = torch.randn(2, tokens, width) * scale
    x = torch.cat([x, -x * (1 + noise)], 1)
    model = Tokens(width)
    for norm in contributions(model, lambda m, b: m(b).sum(1), x, 2, 1.0):
        assert norm <= 1 + 1e-6


@settings(max_examples=8)
@given(seed=st.integers(0, 999), scale=st.sampled_from([1.0, 1e4]), clip_norm=st.sampled_from([1e-2, 1.0]))
def test_tied_and_recurrent_models_keep_the_bound(seed, scale, clip_norm):
    for build in (lambda: GPT(vocab=40), lambda: Recurrent(nn.GRU(5, 4), 4)):
        torch.manual_seed(seed)
        model = build()
        batch = {"x": torch.randint(11, (2, 5)), "y": torch.randint(11, (2, 5))}
        found = contributions(model, lambda m, b: tagging(m, b) * scale, batch, 2, clip_norm)
        assert max(found) <= clip_norm * (1 + 1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_adds_nothing_to_the_bound(name):
    build, shape = MODELS[name]
    torch.manual_seed(1)
    model, x = build(), torch.randn(4, *shape) * 30

    def loss(m, b):
        with torch.autocast("cpu", torch.bfloat16):
            return squares(m, b).float()

    result = sgd.clipped_grad(model, loss, x, clip_norm=0.25)
    assert max(contributions(model, loss, x, 4, 0.25)) <= result.sensitivity * (1 + 1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", [n for n in MODELS if n != "prototypes"])
def test_a_non_finite_example_counts_as_zero_and_spares_the_others(name, bad, first):
    """Also when it arrives before any plan or check exists."""
    build, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = build().double(), torch.randn(5, *shape).double()
    if not first:
        sgd.clipped_grad(model, squares, x)
    poisoned = x.clone()
    poisoned[2].view(-1)[1] = bad
    result = sgd.clipped_grad(model, squares, poisoned, clip_norm=0.5)
    kept = [0, 1, 3, 4]
    clean = sgd.clipped_grad(model, squares, x[kept], clip_norm=0.5)
    for key, value in clean.sums.items():
        assert torch.allclose(result.sums[key], value, atol=1e-12), key
    assert torch.allclose(result.norms[kept], clean.norms)
    assert result.norms[2] == math.inf


def test_a_batch_without_any_finite_example_gives_zero():
    model = nn.Linear(3, 2)
    sums, norms = sgd.clipped_grad(model, squares, torch.full((4, 3), math.nan))
    assert all((v == 0).all() for v in sums.values())
    assert (norms == math.inf).all()


def test_a_finite_loss_with_an_infinite_gradient_counts_as_zero():
    model = nn.Linear(2, 1)
    x = torch.tensor([[1.0, 2.0], [3e38, 3e38], [0.5, -1.0]])
    loss = lambda m, b: F.softsign(m(b)).squeeze(1) + m(b).squeeze(1) * 1e-30  # noqa: E731
    sums, _ = sgd.clipped_grad(model, loss, x, clip_norm=1.0)
    assert all(torch.isfinite(v).all() for v in sums.values())


def test_norms_and_sums_use_full_precision_and_put_the_setting_back():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
    try:
        with full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_masked_examples_do_not_stop_a_compiled_step_whatever_is_added_to_their_norms():
    """What underflow can hide is added to every squared norm, to those of masked examples too: their factor is zero."""
    scale, squared = torch.tensor([[0.5], [0.4], [0.0]]), torch.tensor([[4.0], [6.0], [1e-30]])
    found = Clipped(squared.sqrt(), scale, torch.zeros(3, dtype=torch.bool), torch.zeros(3), squared, dict)
    assert bool(found.comparable(1e-12, torch.tensor([True, True, False])))
    assert not bool(found.comparable(1e-12, None))
