"""A step with a known plan is one graph: the whole of it can be traced, and compiled later."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.sgd import zoo, zoo_more, zoo_transformers
from tests.sgd.harness import build
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from tacit import sgd
from tacit.sgd.gradients.bounds import clip
from tacit.sgd.gradients.engine import Engine

assert zoo_more
assert zoo_transformers

NAMES = ["mlp", "cnn", "wrn-groupnorm", "vit-class-token", "gpt-tied-large-vocabulary", "weight-norm", "hf-llama"]


def unpadded_llama():
    """With the attention mask written out: to build one, transformers would ask the data about padding and packing."""

    def loss(model, batch):
        n, length = batch["x"].shape
        hidden = torch.full((length, length), -1e9, dtype=torch.float64).triu(1).expand(n, 1, length, length)
        logits = model(input_ids=batch["x"], attention_mask=hidden, use_cache=False).logits
        return F.cross_entropy(logits.mT, batch["x"], reduction="none").mean(1)

    return zoo.Case(zoo_transformers.llama_model(), loss, {"x": torch.randint(23, (3, 7))})


class Functional(torch.nn.Module):
    """The model as a function of its parameters, for tracing."""

    def __init__(self, model, params):
        super().__init__()
        self.call = lambda *a, **k: functional_call(model, params, a, k)

    def forward(self, *args, **kwargs):
        return self.call(*args, **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_a_planned_step_is_traced_whole_and_holds_for_other_batches(name):
    builder = unpadded_llama if name == "hf-llama" else zoo.ZOO[name][1]
    case, other = (build(builder, torch.float64, seed=s) for s in (0, 1))
    eager = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=0.5)
    (plan,) = Engine.of(case.model).plans.values()
    names = list(eager.sums)
    keys = list(case.batch)
    count = len(eager.norms)

    def step(params, *values):
        leaves = {n: p.detach().requires_grad_() for n, p in zip(names, params, strict=True)}
        engine = Engine(case.model, leaves)
        engine.surveyed = True
        batch = dict(zip(keys, values, strict=True))
        run = engine.forward(lambda: case.loss(Functional(case.model, leaves), batch), list(values), count)
        with torch.no_grad():
            gradients = engine.gradients(run, run.output_gradients(), plan)
            good = torch.isfinite(run.losses.detach())
            found = clip(gradients, names, eager.clipping, good, None)
            return list(found.sums(sanitise=True).values()), found.norms

    params = [p.detach() for _, p in case.model.named_parameters() if p.requires_grad]
    graph = make_fx(step)(params, *case.batch.values())
    with torch.no_grad():
        for p, q in zip(params, [p for _, p in other.model.named_parameters()], strict=True):
            p.copy_(q)
    sums, norms = graph(params, *other.batch.values())
    wanted = sgd.clipped_grad(other.model, other.loss, other.batch, clip_norm=0.5)
    assert torch.allclose(norms[:, 0], wanted.norms)
    for found, value in zip(sums, wanted.sums.values(), strict=True):
        assert torch.allclose(found, value, atol=1e-12)
