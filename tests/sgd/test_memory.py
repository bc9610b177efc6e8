"""A compiled step keeps, of each layer, its input and the gradient of its output until the clip factors are known, and
no copies of them.
"""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor import inductor_prims
from torch._inductor.graph import GraphLowering

from tacit import sgd
from tacit.sgd.compile import program
from tacit.sgd.gradients import bounds
from tacit.sgd.kernels import convolutions, products

aten = torch.ops.aten
CRITERION = nn.CrossEntropyLoss(reduction="none")


@pytest.fixture
def graphs(monkeypatch):
    """The graphs given to the compiler."""
    seen = []
    monkeypatch.setattr(program, "inductor", lambda graph, *_: seen.append(graph) or graph)
    return seen


@pytest.fixture
def many(monkeypatch):
    """Every tensor of a small model counts as large."""
    monkeypatch.setattr(bounds, "MANY", 1)


def agree(found, wanted):
    assert list(found.sums) == list(wanted.sums)
    assert torch.allclose(found.norms, wanted.norms, rtol=1e-5)
    assert all(torch.allclose(found.sums[n], wanted.sums[n], rtol=1e-4, atol=1e-6) for n in wanted.sums)


def perceptron(wide=24):
    torch.manual_seed(0)
    layers = [nn.Linear(6, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 3)]
    return nn.Sequential(*layers), (torch.randn(16, 6), torch.randint(3, (16,)))


def test_the_gradient_of_an_output_is_not_copied_for_the_bias(graphs, many):
    model, batch = perceptron()
    mask = torch.arange(16) < 13
    found = sgd.clipped_grad(model, CRITERION, batch, 0.05, mask=mask, compile=True)
    agree(found, sgd.clipped_grad(model, CRITERION, batch, 0.05, mask=mask))
    assert not [n for n in graphs[0].graph.nodes if n.target == aten.cat.default]


def test_small_gradients_are_still_laid_side_by_side(graphs):
    model, batch = perceptron()
    sgd.clipped_grad(model, CRITERION, batch, 0.05, compile=True)
    assert len([n for n in graphs[0].graph.nodes if n.target == aten.cat.default]) == 1


def test_the_sum_that_reads_the_batch_itself_comes_last(graphs, many):
    model, batch = perceptron()
    found = sgd.clipped_grad(model, CRITERION, batch, 0.05, compile=True)
    agree(found, sgd.clipped_grad(model, CRITERION, batch, 0.05))
    nodes = list(graphs[0].graph.nodes)
    assert [tuple(n.meta["tensor_meta"].shape) for n in nodes if n.target == aten.mm.default][-1] == (6, 24)
    # The compiler computes outputs in their order.
    shapes = [tuple(n.meta["tensor_meta"].shape) for n in nodes[-1].args[0][:6]]
    assert shapes.index((24, 6)) > shapes.index((24, 24))


@pytest.mark.parametrize("clipping", ["per_layer", {"4.*": 0.1, "*.bias": 0.2, "*": 0.3}])
def test_a_bias_is_summed_with_its_weight_only_where_both_have_one_factor(graphs, many, clipping):
    model, batch = perceptron()
    found = sgd.clipped_grad(model, CRITERION, batch, 0.05, clipping=clipping, compile=True)
    agree(found, sgd.clipped_grad(model, CRITERION, batch, 0.05, clipping=clipping))


def live_images(code, size):
    """The most tensors of a size, or of larger ones, that generated code holds at once."""
    alive, most = set(), 0
    for line in code[code.index("def call(") :].splitlines():
        made = re.match(r"\s+(buf\d+) = empty_strided_cpu\(\(([\d, ]+)\)", line)
        if made and torch.Size(map(int, made[2].strip(", ").split(", "))).numel() >= size:
            alive.add(made[1])
        again = re.match(r"\s+(buf\d+) = (?:reinterpret_tensor\()?(buf\d+).*; del \2  # reuse", line)
        if again and again[2] in alive:
            alive.add(again[1])
            alive.remove(again[2])
        gone = re.match(r"\s+del (buf\d+)", line)
        most = max(most, len(alive))
        if gone:
            alive.discard(gone[1])
    return most


@pytest.mark.slow
def test_a_compiled_perceptron_holds_each_activation_and_each_gradient_once(many, monkeypatch):
    codes = []
    monkeypatch.setattr(GraphLowering, "save_output_code", staticmethod(codes.append))
    model, batch = perceptron()
    with torch._inductor.config.patch(fx_graph_cache=False):
        found = sgd.clipped_grad(model, CRITERION, batch, 0.05, compile=True)
    agree(found, sgd.clipped_grad(model, CRITERION, batch, 0.05))
    assert live_images(codes[0], 16 * 24) == 4


class Skipping(nn.Module):
    """A residual block whose skipping path is a convolution, too."""

    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.skip = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        h = F.relu(self.norm(x))
        return self.inner(h) + self.skip(h)


def test_the_sum_of_two_images_of_a_library_is_stored_and_not_the_images(graphs, monkeypatch):
    monkeypatch.setattr(program, "wants_channels_last", lambda device: True)
    monkeypatch.setattr(program, "innermost", lambda graph: True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), Skipping(), Skipping(), nn.Flatten(), nn.Linear(8 * 36, 5))
    batch = torch.randn(4, 3, 6, 6), torch.randint(5, (4,))
    found = sgd.clipped_grad(model, CRITERION, batch, 0.5, compile=True)
    agree(found, sgd.clipped_grad(model, CRITERION, batch, 0.5))
    nodes = graphs[0].graph.nodes
    stored = [n for n in nodes if n.target == inductor_prims.force_stride_order]
    assert len(stored) == 4  # of both blocks, forward and backward
    assert all(n.args[1] == [8 * 36, 1, 48, 8] and list(n.args[0].users) == [n] for n in stored)


def test_products_of_a_batch_with_itself():
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4)
    torch.library.opcheck(convolutions.self_products.traced, (x,))
    assert torch.equal(convolutions.self_products(x), products.products(x, x))
