"""Equal layers are compiled once, and nothing about the step changes."""

from __future__ import annotations

import operator

import pytest
import torch
from tests.sgd.harness import TOLERANCE, compare
from tests.sgd.zoo import Case
from torch import nn
from torch.fx import symbolic_trace

from tacit import sgd
from tacit.sgd.compile import program, repeated
from tacit.sgd.gradients.engine import Engine


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))


def deep(layers=4, d=8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, d), *(Layer(d) for _ in range(layers)), nn.Linear(d, 11)).double()

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch["x"]).mT, batch["y"], reduction="none").mean(1)

    return Case(model, loss, {"x": torch.randint(11, (4, 5)), "y": torch.randint(11, (4, 5))})


@pytest.fixture
def compilations(monkeypatch):
    """What the compiler is given; it gives it back as it is."""
    seen = []
    monkeypatch.setattr(repeated, "WORTH", 100)
    monkeypatch.setattr(program, "inductor", lambda graph, inputs, options: seen.append(graph) or graph)
    return seen


def operations(graphs):
    return sum(n.op == "call_function" for g in graphs for n in g.graph.nodes)


def test_a_repeated_layer_is_compiled_once_and_the_step_is_the_same(compilations):
    case, clipping = deep(), "per_layer"
    assert compare(case, clipping, compile=True).worst <= TOLERANCE[torch.float64]
    (program,) = Engine.of(case.model).programs.values()
    assert program.pieces == len(compilations) > 1
    assert operations(compilations) < 0.8 * program.operations
    # Once more, and with other numbers, nothing is compiled.
    count = len(compilations)
    batch = {k: v.flip(0) for k, v in case.batch.items()}
    found = sgd.clipped_grad(case.model, case.loss, batch, 0.1, clipping=clipping, compile=True)
    wanted = sgd.clipped_grad(case.model, case.loss, batch, 0.1, clipping=clipping)
    assert torch.allclose(found.norms, wanted.norms, rtol=1e-9)
    assert len(compilations) == count


@pytest.mark.slow
def test_a_deeper_model_gives_the_compiler_hardly_more(compilations):
    sizes = []
    for layers in (4, 8):
        case = deep(layers)
        compilations.clear()
        sgd.clipped_grad(case.model, case.loss, case.batch, 0.1, compile=True)
        (program,) = Engine.of(case.model).programs.values()
        sizes.append((operations(compilations), program.operations))
    (few, small), (many, large) = sizes
    assert many - few < 0.25 * (large - small)


@pytest.mark.slow
def test_the_graph_may_be_compiled_in_one_piece(compilations, monkeypatch):
    monkeypatch.setenv("TACIT_COMPILE", "whole")
    case = deep()
    sgd.clipped_grad(case.model, case.loss, case.batch, 0.1, compile=True)
    assert len(compilations) == 1


class Torn(nn.Module):
    """Results of one operation are picked far behind it."""

    def forward(self, x):
        for _ in range(20):
            pair = x.max(1)
            y = x
            for _ in range(12):
                y = y + 1
            x = y + pair[0]
        return x


def test_several_results_of_one_operation_are_not_torn_from_it():
    graph = symbolic_trace(Torn())
    nodes = [n for n in graph.graph.nodes if n.op not in ("placeholder", "output")]
    found = repeated.stretches(nodes) if len(nodes) >= 2 * repeated.SHORTEST else []
    for stretch in found:
        for k in range(stretch.times + 1):
            before = set(nodes[: stretch.start + k * stretch.length])
            assert not any(user not in before for n in before for user in n.users if user.target is operator.getitem)
    assert found


def test_what_is_read_no_more_is_let_go():
    chain_graph = symbolic_trace(nn.Sequential(*(nn.ReLU() for _ in range(4))))
    nodes = [n for n in chain_graph.graph.nodes if n.op not in ("placeholder", "output")]
    for node in chain_graph.graph.nodes:
        if node.op == "output":
            node.args = ([node.args[0]],)
    chain = repeated.Chain(chain_graph, lambda piece, inputs: piece, [(0, 1, len(nodes))])
    assert [len(call.spent) for call in chain.calls] == [0, 1, 1, 1]
    (out,) = chain(torch.tensor([-1.0, 2.0]))
    assert out.tolist() == [0.0, 2.0]
