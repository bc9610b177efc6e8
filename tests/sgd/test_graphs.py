"""Rewrites of a traced step change no number, and are made where a GPU's step would copy its largest tensors."""

from __future__ import annotations

import math
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor.graph import GraphLowering
from torch.fx.experimental.proxy_tensor import make_fx

from tacit import sgd
from tacit.sgd.compile import program
from tacit.sgd.compile.rewrites import CHANNELS_LAST, mutates, name_of, reduce_once, view_anew
from tacit.sgd.kernels import products

aten = torch.ops.aten


@pytest.fixture
def graphs(monkeypatch):
    """The graphs given to the compiler; float32 factors take the way that narrow ones take on a GPU."""
    seen = []
    monkeypatch.setattr(products, "DEVICES", {"cpu"})
    monkeypatch.setattr(products, "tf32", lambda t, convolution=False: t.dtype == torch.float32 and not convolution)
    monkeypatch.setattr(products, "to_tf32", lambda t: t)
    monkeypatch.setattr(program, "inductor", lambda graph, *_: seen.append(graph) or graph)
    return seen


def cast_between(scores, y):
    """As autocast on a GPU writes cross entropy: the softmax in the type of the scores, the loss in a wider one."""
    return F.nll_loss(F.log_softmax(scores, 1).double(), y, reduction="none").float()


def read_twice(scores, y):
    """Something else reads the softmax: the rewrite would change what it sees."""
    softmax = F.log_softmax(scores, 1).double()
    return (F.nll_loss(softmax, y, reduction="none") + 0.01 * softmax.square().sum(1)).float()


@pytest.mark.parametrize(("criterion", "copied"), [(cast_between, 0), (read_twice, 1)])
@pytest.mark.parametrize("tokens", [5, 90])  # norms by Gram matrices, and products that are kept
def test_logits_over_an_odd_number_of_classes_are_not_copied(graphs, criterion, copied, tokens):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(67, 16), nn.Linear(16, 67))
    batch = torch.randint(67, (4, tokens)), torch.randint(67, (4, tokens))

    def loss(model, batch):
        x, y = batch
        return criterion(model(x).flatten(0, 1), y.flatten()).view(y.shape).mean(1)

    mask = torch.arange(4) < 3
    found = sgd.clipped_grad(model, loss, batch, 0.05, mask=mask, compile=True)
    wanted = sgd.clipped_grad(model, loss, batch, 0.05, mask=mask)
    pads = [n.args[0] for n in graphs[0].graph.nodes if n.target == aten.constant_pad_nd.default]
    assert sum(n.op != "placeholder" for n in pads) == copied
    assert torch.allclose(found.norms, wanted.norms, rtol=1e-5)
    assert all(torch.allclose(found.sums[n], wanted.sums[n], rtol=1e-4, atol=1e-6) for n in wanted.sums)


def test_arithmetic_in_place_on_tensors_made_for_it_leaves_the_graph_open_to_rewrites(graphs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.RMSNorm(12), nn.Linear(12, 5))
    batch = torch.randn(4, 12), torch.randint(5, (4,))
    criterion = nn.CrossEntropyLoss(reduction="none")
    found = sgd.clipped_grad(model, criterion, batch, 0.5, compile=True)
    assert not mutates(graphs[0])
    wanted = sgd.clipped_grad(model, criterion, batch, 0.5)
    assert all(torch.allclose(found.sums[n], wanted.sums[n], rtol=1e-4, atol=1e-6) for n in wanted.sums)


def test_a_tensor_that_is_read_before_it_is_written_stays_as_it_was():
    def before_and_after(x):
        doubled = x * 2
        kept = doubled + 1
        return kept, doubled.add_(3.0), x.view(-1).add_(1.0)

    graph = make_fx(before_and_after)(torch.ones(2, 2))
    view_anew(graph)
    assert [n.target for n in graph.graph.nodes if n.target == aten.add_.Scalar or n.target == aten.add_.Tensor]
    kept, later, _ = graph(torch.ones(2, 2))
    assert (kept == 3).all()
    assert (later == 5).all()


def test_a_normalised_input_is_computed_where_its_gradient_is_and_not_kept_from_the_forward_pass(graphs):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 12), nn.GELU()) for _ in range(3)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(72, 5))
    batch = torch.randn(4, 6, 12), torch.randint(5, (4,))
    criterion = nn.CrossEntropyLoss(reduction="none")
    found = sgd.clipped_grad(model, criterion, batch, 0.5, compile=True)
    nodes = list(graphs[0].graph.nodes)
    begins = next(k for k, n in enumerate(nodes) if n.target == aten.nll_loss_backward.default)
    plain = [k for k, n in enumerate(nodes) if n.target == aten.native_layer_norm.default and n.args[2] is None]
    assert len(plain) == 3
    assert min(plain) > begins
    places = {n: k for k, n in enumerate(nodes)}
    results = [n for n in nodes if n.target is operator.getitem and n.args[0] in (nodes[k] for k in plain)]
    assert all(places[n] - places[n.args[0]] <= 3 for n in results)
    wanted = sgd.clipped_grad(model, criterion, batch, 0.5)
    assert all(torch.allclose(found.sums[n], wanted.sums[n], rtol=1e-4, atol=1e-6) for n in wanted.sums)


def group_norm_inputs(shape, dtype, offset=0.0):
    torch.manual_seed(0)
    x = (torch.randn(shape, dtype=dtype) + offset).requires_grad_()
    weight, bias = (torch.randn(shape[1], dtype=dtype).requires_grad_() for _ in range(2))
    return x, weight, bias


@pytest.mark.parametrize("shape", [(3, 12), (3, 12, 5), (3, 12, 5, 4), (2, 12, 3, 2, 4)])
@pytest.mark.parametrize("groups", [1, 4, 12])
@pytest.mark.parametrize("affine", [True, False])
def test_group_normalisation_written_out_is_that_of_torch(shape, groups, affine):
    x, weight, bias = group_norm_inputs(shape, torch.float64)
    weight, bias = (weight, bias) if affine else (None, None)
    n, c, positions = shape[0], shape[1], math.prod(shape[2:])
    grad = torch.randn(shape, dtype=torch.float64)
    out = F.group_norm(x, groups, weight, bias, 1e-3)
    wanted = torch.autograd.grad(out, [t for t in (x, weight, bias) if t is not None], grad)
    with torch.no_grad():
        written, mean, scale = CHANNELS_LAST[aten.native_group_norm.default](
            x, weight, bias, n, c, positions, groups, 1e-3
        )
        back = CHANNELS_LAST[aten.native_group_norm_backward.default]
        found = back(grad, x, mean, scale, weight, n, c, positions, groups, [True, affine, affine])
    stacked = x.reshape(n, groups, -1)
    assert torch.allclose(written, out, rtol=1e-12, atol=1e-12)
    assert torch.allclose(mean, stacked.mean(2), rtol=1e-12, atol=1e-14)
    assert torch.allclose(scale, (stacked.var(2, correction=0) + 1e-3).rsqrt(), rtol=1e-12)
    for ours, theirs in zip((f for f in found if f is not None), wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_group_normalisation_written_out_loses_no_digits_far_from_zero():
    x, weight, bias = group_norm_inputs((2, 8, 16, 16), torch.float32, offset=3000.0)
    form = CHANNELS_LAST[aten.native_group_norm.default]
    with torch.no_grad():
        found = form(x, weight, bias, 2, 8, 256, 2, 1e-5)[0]
    wanted = F.group_norm(x.double(), 2, weight.double(), bias.double(), 1e-5)
    assert (found - wanted).abs().max() < 2e-3


def test_statistics_and_sums_of_a_group_normalisation_are_computed_once_and_no_image_by_groups(graphs, monkeypatch):
    monkeypatch.setattr(program, "wants_channels_last", lambda device: True)
    monkeypatch.setattr(program, "innermost", lambda graph: True)
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1)) for _ in range(3)]
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), *layers, nn.Flatten(), nn.Linear(8 * 36, 5)).double()
    batch = torch.randn(4, 3, 6, 6, dtype=torch.float64), torch.randint(5, (4,))
    criterion = nn.CrossEntropyLoss(reduction="none")
    found = sgd.clipped_grad(model, criterion, batch, 0.5, compile=True)
    (graph,) = graphs
    image = 4 * 8 * 36
    shapes = {n: n.meta["tensor_meta"].shape for n in graph.graph.nodes if hasattr(n.meta.get("tensor_meta"), "shape")}

    def reduced(name):
        nodes = [n for n in graph.graph.nodes if name_of(n) == name]
        return [n for n in nodes if shapes[n.args[0]].numel() == image and n.args[1] == [2, 3]]

    assert len(reduced("var_mean")) == 3
    # Along the normalised input, and of the gradient that it passes on, for the bias of the convolution before it.
    along = [n for n in reduced("sum") if n.args[0].target == aten.mul.Tensor]
    assert len(along) == 6
    assert len(reduced("sum")) == 11
    assert not reduced("mean")
    assert not [n for n, shape in shapes.items() if len(shape) == 5 and shape[:3] == (4, 2, 4)]
    wanted = sgd.clipped_grad(model, criterion, batch, 0.5)
    assert torch.allclose(found.norms, wanted.norms, rtol=1e-12)
    assert all(torch.allclose(found.sums[n], wanted.sums[n], rtol=1e-9, atol=1e-12) for n in wanted.sums)


def test_only_reductions_of_equal_numbers_are_made_once():
    def pairs(x, y):
        twice = [(x.exp() * 2).sum(1), (x.exp() * 2).reshape(4, 6).detach().sum(1)]
        other = [(x.exp() * 2.5).sum(1), (x.exp() * 2).sum(1, True), (x * 2).reshape(6, 4).sum(1), (y * 2).sum(1)]
        drawn = [torch.rand_like(x).sum(1), torch.rand_like(x).sum(1)]
        multiplied = [(x @ x.t()).sum(1), (x @ x.t()).sum(1)]  # the precision of products is not the graph's to know
        return [*twice, *other, *drawn, *multiplied]

    x, y = torch.randn(4, 6), torch.randn(6, 4)
    graph = make_fx(pairs)(x, y)
    torch.manual_seed(3)
    before = graph(x, y)
    reduce_once(graph, set())
    graph.recompile()
    assert sum(name_of(n) == "sum" for n in graph.graph.nodes) == 9
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(before, graph(x, y), strict=True))


@pytest.mark.slow
def test_the_compiler_keeps_no_normalised_image_for_the_backward_pass(monkeypatch):
    """Between two convolutions it keeps what each of them reads and gives, and a few numbers for each example."""
    monkeypatch.setattr(program, "wants_channels_last", lambda device: True)
    monkeypatch.setattr(program, "innermost", lambda graph: True)
    codes = []
    monkeypatch.setattr(GraphLowering, "save_output_code", staticmethod(codes.append))
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1)) for _ in range(2)]
    ends = nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), *layers, *ends)
    batch = torch.randn(4, 3, 7, 7), torch.randint(5, (4,))
    with torch._inductor.config.patch(fx_graph_cache=False):
        sgd.clipped_grad(model, nn.CrossEntropyLoss(reduction="none"), batch, 0.5, compile=True)
    forward = codes[0][codes[0].index("def call(") :].split("extern_kernels.addmm(")[0]
    assert forward.count("extern_kernels.convolution(") == 3
    assert forward.count("empty_strided_cpu((4, 8, 7, 7)") == 2
