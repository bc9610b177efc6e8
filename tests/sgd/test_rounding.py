"""What rounding may do is inside the bound, and takes no more from an example's gradient than it must."""

from __future__ import annotations

import math
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sgd import zoo
from tests.sgd.harness import build
from torch import nn

from tacit import sgd
from tacit.sgd.gradients.contributions import Group, OneHot, Outer
from tacit.sgd.kernels import autotune, products

WAYS = [False, "traced"]


@pytest.mark.parametrize("way", WAYS)
def test_padding_that_a_normalisation_divides_by_its_eps_leaves_the_clip_factors_alone(way):
    """The cotangents of padded keys are 1e12 times as long as others, and multiplied by rows of zeros."""
    case = build(zoo.ZOO["swin-v2-windows"][1], torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sgd.GradientsLost)
        found = sgd.clipped_grad(case.model, case.loss, case.batch, 1e-2, compile=way)
    assert torch.allclose(found.scale[:, 0], 1e-2 / found.norms, rtol=1e-3, atol=0.0)


NORMALISED = {
    "normalize": lambda h: F.normalize(h, dim=-1),
    "rms norm": lambda h: F.rms_norm(h, h.shape[-1:], eps=1e-24),
    "layer norm": lambda h: F.layer_norm(h, h.shape[-1:], eps=1e-24),
    "group norm": lambda h: F.group_norm(h.flatten(0, 1), 4, eps=1e-24).view_as(h),
    "length": lambda h: h / (h.square().sum(-1, keepdim=True) + 1e-24).sqrt(),
}


class Padded(nn.Module):
    """Tokens that are projected without a bias and normalised; those of padding are zero."""

    def __init__(self, layer: nn.Module, normalise) -> None:
        super().__init__()
        self.layer, self.normalise = layer, normalise

    def forward(self, x):
        found = self.layer(x)
        found = found[0] if isinstance(found, tuple) else found
        return self.normalise(found)


class Images(nn.Conv2d):
    """A convolution without a bias over images that tokens are written into."""

    def forward(self, x):
        return super().forward(x.mT.reshape(len(x), -1, 2, 4)).flatten(2).mT


LAYERS = {
    "linear": lambda: nn.Linear(24, 32, bias=False),
    "convolution": lambda: Images(24, 32, (1, 2), (1, 2), bias=False),
    "recurrent": lambda: nn.RNN(24, 32, bias=False, batch_first=True),
    "head and table": lambda: TiedTable(),
}


class TiedTable(nn.Module):
    """A table that is looked up at places, and multiplied with tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 24)

    def forward(self, x):
        places = (7 * x[:, 6:].abs().sum(2)).long() % 64
        return F.linear(x, self.table.weight)[..., :32] + F.pad(self.table(places), (0, 8, 6, 0))


def weighted(model, batch):
    return (model(batch[0]) * batch[1]).flatten(1).sum(1)


@pytest.mark.parametrize(
    ("layer", "norm", "way"),
    [("linear", norm, False) for norm in NORMALISED]
    + [(layer, "normalize", False) for layer in LAYERS if layer != "linear"]
    + [("linear", "normalize", "traced")],
)
def test_rows_of_zeros_leave_the_others_their_gradient(layer, norm, way):
    torch.manual_seed(0)
    model, x = Padded(LAYERS[layer](), NORMALISED[norm]), torch.randn(3, 8, 24)
    x[:, :4] = 0
    batch = (x, torch.randn(3, 4 if layer == "convolution" else 8, 32))
    found = sgd.clipped_grad(model, weighted, batch, 1e-3, compile=way)
    wanted = sgd.clipped_grad(model.double(), weighted, (x.double(), batch[1].double()), 1e-3)
    assert torch.allclose(found.norms.double(), wanted.norms, rtol=1e-3)
    assert torch.allclose(found.scale[:, 0].double(), 1e-3 / wanted.norms, rtol=1e-3, atol=0.0)


class Steep(torch.autograd.Function):
    """The identity, with a derivative of one's own."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(slope)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


def steep(model, batch):
    x, slopes = batch
    return Steep.apply(model(x), slopes).flatten(1).sum(1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("layer", "tokens"), [("linear", 8), ("linear", 1), ("convolution", 8)])
def test_squares_that_leave_the_range_of_float32_do_not_cost_an_example_its_gradient(layer, tokens, way):
    """A row of zeros times one of 1e25 is zero, and 1e-25 times 1e25 is one: only their squares are out of range."""
    torch.manual_seed(0)
    model, x = LAYERS[layer](), torch.randn(4, tokens, 24)
    slopes = torch.ones(4, tokens // 2 if layer == "convolution" else tokens, 32)
    sgd.clipped_grad(model, steep, (x, slopes), 1e-3, compile=way)  # a plan, checked, and a program
    size = torch.tensor([1.0, 1e25, 1e-25, 1.0]).view(4, 1, 1)
    x, slopes = x * size, slopes / size
    if tokens > 1:
        x[3, :4], slopes[3, : slopes.shape[1] // 2] = 0.0, 1e25
    found = sgd.clipped_grad(model, steep, (x, slopes), 1e-3, compile=way)
    wanted = sgd.clipped_grad(model.double(), steep, (x.double(), slopes.double()), 1e-3)
    assert torch.allclose(found.norms.double(), wanted.norms, rtol=1e-5)
    for name, total in wanted.sums.items():
        assert (found.sums[name] - total).norm() <= 1e-4 * total.norm()


@pytest.mark.parametrize("layer", ["one token", "tokens", "kernel"])
def test_squares_that_come_out_as_zero_hide_no_contribution(layer):
    """2.6e-23 squared is zero in float32; 4096 such numbers times 3e18 are a gradient of length 0.01 for each token."""
    tokens = 1 if layer == "one token" else 3
    left, right = torch.full((1, tokens, 4096), 2.6e-23), torch.full((1, tokens, 8), 3e18)
    shape = torch.Size((4096, 8))
    if layer == "kernel":
        norms = products._gram_by_products(left, right, 1)[:, 0].sqrt()
    else:
        found = Group.of([Outer(left[:, None], right[:, None], tuple(shape), (0, 1))], shape).norms()
        norms = (found.squared + found.gram).sqrt()
    assert norms >= (left.double().mT @ right.double()).norm()


def repeated(seed: int, tokens: int, width: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors whose tokens are all the same but for their sign, and cancel to some noise."""
    torch.manual_seed(seed)
    x, left = torch.randn(1, width), torch.randn(1, width)
    right = torch.cat([x, -x * (1 + noise)]).repeat_interleave(tokens, 0)
    return left.expand(2 * tokens, -1).contiguous()[None], right[None]


def added(group: Group) -> float:
    """The length of what an example adds that is clipped to one."""
    norms = group.norms()
    safe = (norms.squared.clamp(min=0) + norms.gram).sqrt() + torch.as_tensor(norms.product).sqrt()
    return float(group.weighted_sum(1 / safe, sanitise=False).double().norm())


@settings(max_examples=60)
@given(
    seed=st.integers(0, 999),
    tokens=st.sampled_from([1, 8, 20, 40]),
    width=st.sampled_from([24, 96, 400]),
    noise=st.sampled_from([0.0, 1e-4, 1e-3, 2e-3]),
    way=st.sampled_from(["plain", "kernel", "lookup", "both"]),
)
def test_tokens_that_are_the_same_and_cancel_cannot_hide_a_contribution(seed, tokens, width, noise, way):
    """Their rounding errors are the same, too, and add up."""
    left, right = repeated(seed, tokens, width, noise)
    outer = Outer(left[:, None], right[:, None], (width, width), (0, 1), way == "kernel")
    lookup = OneHot(torch.zeros(right.shape[:2], dtype=torch.long), right, width)
    parts = {"lookup": [lookup], "both": [outer, lookup]}.get(way, [outer])
    assert added(Group.of(parts, torch.Size((width, width)))) <= 1 + 1e-6


@pytest.mark.parametrize("tokens", [1, 2, 3, 5])
@pytest.mark.parametrize("width", [512, 4096, 30_000])
def test_numbers_that_are_all_the_same_add_no_more_than_others(width, tokens):
    """They are rounded the same way at every step."""
    shape = torch.Size((width, 8))
    for value in (0.1, 0.7, 1.3):
        left, right = torch.full((1, 1, tokens, width), value), torch.full((1, 1, tokens, 8), 1 / value)
        assert added(Group.of([Outer(left, right, tuple(shape), (0, 1))], shape)) <= 1 + 1e-6


def test_without_the_margin_a_contribution_would_hide():
    """The property above is no accident: of these, some would add several times the clip norm."""
    worst = 0.0
    for seed in range(20):
        left, right = repeated(seed, 20, 96, 1e-4)
        group = Group.of([Outer(left[:, None], right[:, None], (96, 96), (0, 1))], torch.Size((96, 96)))
        norm = group.norms().squared.clamp(min=1e-30).sqrt()
        worst = max(worst, float(group.weighted_sum(1 / norm, sanitise=False).double().norm()))
    assert worst > 2


def test_every_way_to_lengths_of_terms_takes_rows_of_zeros_out():
    torch.manual_seed(0)
    left, right = torch.randn(2, 70, 33), torch.randn(2, 70, 20)
    left[:, :9], right[:, :9], right[:, 60:], left[:, 60:] = 0.0, 1e15, 0.0, 1e15
    lengths = left.double().norm(dim=2) * right.double().norm(dim=2)
    for name, norms in products.norm_ways(left, right).items():
        told = norms(left, right).double()
        assert torch.allclose(told[:, 1], lengths.square().sum(1), rtol=1e-4), name
        assert torch.allclose(told[:, 2], lengths.sum(1), rtol=1e-4), name


def cancelling(size: float) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 24)
    x[1] *= size
    return torch.cat([x, -x + 1e-3 * torch.randn(3, 4, 24)], 1)


def total(model, batch):
    return model(batch).sum((1, 2))


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_that_rounding_hides_is_said_once(way):
    model = nn.Linear(24, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sgd.GradientsLost)
        sgd.clipped_grad(model, total, cancelling(1.0), 1e-2, compile=way)
        unseen = torch.tensor([True, False, True])
        sgd.clipped_grad(model, total, cancelling(1e9), 1e-2, mask=unseen, compile=way)
    with pytest.warns(sgd.GradientsLost, match="less than half") as told:
        found = sgd.clipped_grad(model, total, cancelling(1e9), 1e-2, compile=way)
    (message,) = (str(w.message) for w in told if w.category is sgd.GradientsLost)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sgd.GradientsLost)
        sgd.clipped_grad(model, total, cancelling(1e9), 1e-2, compile=way)
    assert re.findall(r"\d+", message) == ["64"]  # no number of the data
    assert found.scale[1, 0] * found.norms[1] < 0.5e-2


@pytest.mark.parametrize("clipping", ["per_layer", "automatic"])
def test_a_gradient_that_rounding_hides_is_said_of_every_kind_of_clipping(clipping):
    with pytest.warns(sgd.GradientsLost, match="less than half"):
        sgd.clipped_grad(nn.Linear(24, 32), total, cancelling(1e9), 1e-2, clipping=clipping)


def test_a_batch_without_any_finite_gradient_is_said():
    """The derivative of a length does not exist where it is zero."""
    model, x = nn.Linear(4, 3, bias=False), torch.randn(5, 2, 4)
    x[:, 1] = 0
    with pytest.warns(sgd.GradientsLost, match="no example of a batch has a finite gradient"):
        found = sgd.clipped_grad(model, lambda m, b: (m(b).square().sum(2).sqrt()).sum(1), x)
    assert (found.norms == math.inf).all()
    assert all((t == 0).all() for t in found.sums.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_recorded_program_says_that_rounding_hides_a_gradient(dtype):
    model, unseen = nn.Linear(24, 32).cuda(), torch.tensor([True, False, True]).cuda()

    def loss(model, batch):
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            return total(model, batch).float()

    some, hidden = cancelling(1.0).cuda(), cancelling(1e9).cuda()
    with warnings.catch_warnings():
        warnings.simplefilter("error", sgd.GradientsLost)
        for _ in range(6):  # compiled, and then recorded
            sgd.clipped_grad(model, loss, some, 1e-2, mask=torch.ones_like(unseen), compile=True)
            sgd.clipped_grad(model, loss, hidden, 1e-2, mask=unseen, compile=True)
    with pytest.warns(sgd.GradientsLost, match="less than half"):
        sgd.clipped_grad(model, loss, hidden, 1e-2, mask=torch.ones_like(unseen), compile=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "width"), [(8, 96), (60, 200), (150, 768), (500, 768)])
def test_tokens_that_are_the_same_and_cancel_cannot_hide_a_contribution_on_a_gpu(tokens, width, dtype):
    """In every way that kernels take to the norms."""
    for seed in range(20):
        left, right = (t.cuda().to(dtype) for t in repeated(seed, tokens, width, 1e-2))
        if dtype == torch.float32:
            left, right = products.to_tf32(left), products.to_tf32(right)
        outer = Outer(left[:, None], right[:, None], (width, width), (0, 1), True)
        for name in products.norm_ways(left, right):
            with autotune.forced(norms=name):
                assert added(Group.of([outer], torch.Size((width, width)))) <= 1 + 1e-6, (name, seed)
