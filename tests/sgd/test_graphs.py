"""Rewrites of a traced step change no number, and are made where a GPU's step would copy its largest tensors."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from tacit import sgd
from tacit.sgd import compiled, kernels
from tacit.sgd.graphs import mutates, view_anew

aten = torch.ops.aten


@pytest.fixture
def graphs(monkeypatch):
    """The graphs given to the compiler; float32 factors take the way that narrow ones take on a GPU."""
    seen = []
    monkeypatch.setattr(kernels, "tf32", lambda t, convolution=False: t.dtype == torch.float32 and not convolution)
    monkeypatch.setattr(kernels, "to_tf32", lambda t: t)
    monkeypatch.setattr(compiled, "inductor", lambda graph, *_: seen.append(graph) or graph)
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
