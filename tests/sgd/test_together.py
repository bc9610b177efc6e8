"""Norms and sums of several operations at once are those of each by itself."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from tacit import sgd
from tacit.sgd.compile import program
from tacit.sgd.kernels import autotune, products, together, weighted


def exact(left: Tensor, right: Tensor) -> Tensor:
    product = left.double().mT @ right.double()
    lengths = left.double().norm(dim=2) * right.double().norm(dim=2)
    return torch.stack([product.square().sum((1, 2)), lengths.square().sum(1), lengths.sum(1)], 1)


def many(device: str, batch: int, tokens: int, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor], list[int]]:
    torch.manual_seed(0)

    def factors(*widths: int) -> list[Tensor]:
        common = torch.randn(batch, 1, 1, device=device)
        return [(torch.randn(batch, tokens, n, device=device) + common).to(dtype) for n in widths]

    return factors(64, 96, 512), factors(64, 128, 32, 256, 48, 64), [0, 0, 0, 0, 1, 2]


def test_operations_that_share_a_factor_and_others_get_the_norms_of_each_by_itself():
    lefts, rights, owners = many("cpu", 3, 20, torch.float32)
    wanted = torch.stack([exact(lefts[k], right) for k, right in zip(owners, rights, strict=True)])
    assert torch.allclose(together.norms_together(lefts, rights, owners).double(), wanted, rtol=1e-5)


def test_sums_at_once_are_the_sums_one_by_one():
    torch.manual_seed(0)
    lefts, rights = ([torch.randn(3, 10, n) for n in widths] for widths in ((64, 80), (96, 64)))
    scales = [torch.rand(3) + 0.1 for _ in lefts]
    for found, *given in zip(together.sums_together(lefts, rights, scales), lefts, rights, scales, strict=True):
        assert torch.allclose(found, weighted.scaled_sum(*given), rtol=1e-5)


def test_as_many_sums_run_side_by_side_as_there_is_room_for(monkeypatch):
    torch.manual_seed(0)
    given = [[torch.randn(2, 4, 64) for _ in range(5)] for _ in range(2)]
    scales = [torch.rand(2) for _ in range(5)]
    way = partial(weighted.by_kernel, tile=(64, 64, 32, 4, 3, 1), fetch=False)
    wanted = [weighted.scaled_sum(*three) for three in zip(*given, scales, strict=True)]
    counts = []

    def prepared(left, right, scale, **how):
        out = torch.full((64, 64), float("nan"))
        return out, lambda: out.copy_(weighted.scaled_sum(left, right, scale))

    def run(device, calls):
        counts.append(len(calls))
        for call in calls:
            call()

    monkeypatch.setattr(weighted, "chosen", lambda *three: (way, three))
    monkeypatch.setattr(weighted, "prepared", prepared)
    monkeypatch.setattr(weighted, "parts", lambda *pair, **how: 1 << 24)
    monkeypatch.setattr(together, "side_by_side", run)
    assert all(map(torch.equal, together._sums_at_once(*given[0], *given[1], *scales), wanted))
    assert counts == [2, 2, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("batch", "tokens"), [(32, 256), (4, 1024), (5, 197)])
def test_sums_at_once_have_the_bits_of_the_sums_one_by_one_also_when_replayed(batch, tokens, tmp_path):
    torch.manual_seed(0)
    sizes = [(768, 2304), (768, 768), (3072, 768), (768, 3072), (2048, 2048)]
    lefts, rights = ([torch.randn(batch, tokens, s[k], device="cuda").bfloat16() for s in sizes] for k in range(2))
    scales = [torch.rand(batch, device="cuda") + 0.1 for _ in sizes]
    with autotune.using(autotune.Chooser(autotune.TuningRecord.read(tmp_path / "choices.json"))) as chooser:
        wanted = [weighted.scaled_sum(*given) for given in zip(lefts, rights, scales, strict=True)]
        chooser.forced["sums"] = "at once"
        for _ in range(2):
            assert all(map(torch.equal, together.sums_together(lefts, rights, scales), wanted))
        torch.cuda.synchronize()
        graph, factor = torch.cuda.CUDAGraph(), torch.ones((), device="cuda")
        with torch.cuda.graph(graph):
            found = [t * 1.0 for t in together.sums_together(lefts, rights, [s * factor for s in scales])]
        for size in (1.0, 0.25, 4.0):
            factor.fill_(size)
            graph.replay()
            for total, old in zip(found, wanted, strict=True):
                assert (total - size * old).norm() <= 1e-5 * size * old.norm()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("batch", "tokens"), [(3, 40), (4, 300), (64, 197), (2, 1024)])
def test_every_way_to_compute_them_at_once_is_exact_and_the_same_every_time(batch, tokens):
    lefts, rights, owners = many("cuda", batch, tokens, torch.bfloat16)
    wanted = torch.stack([exact(lefts[k], right) for k, right in zip(owners, rights, strict=True)])
    ways = together.together_ways(lefts, rights, owners)
    assert len(ways) > 2
    for name in ways:
        with autotune.forced(together=name):
            found = together.norms_together(lefts, rights, owners)
            assert torch.allclose(found.double(), wanted, rtol=1e-4), name
            if name != "one by one":
                assert torch.equal(found, together.norms_together(lefts, rights, owners)), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_runs_side_by_side_waits_for_what_was_before_and_is_waited_for():
    """Recorded and replayed with other numbers: a launch that did not wait would read or leave old ones."""
    lefts, rights, owners = many("cuda", 4, 1024, torch.bfloat16)
    names = [name for name in together.together_ways(lefts, rights, owners) if name.startswith("at once")]
    for name in names[:2]:
        with autotune.forced(together=name):
            for _ in range(2):
                together.norms_together(lefts, rights, owners)
            torch.cuda.synchronize()
            factor = torch.ones((), device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                scaled = [t * factor for t in rights]
                found = together.norms_together(lefts, scaled, owners) * 1.0
            for size in (1.0, 4.0, 0.5):
                factor.fill_(size)
                graph.replay()
                wanted = torch.stack([exact(lefts[k], size * right) for k, right in zip(owners, rights, strict=True)])
                assert torch.allclose(found.double(), wanted, rtol=1e-4), (name, size)


def test_norms_are_gathered_but_not_those_that_wait_for_others():
    def step(x: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        one = products.factor_norms(g, x)
        small = one[:, 0].sqrt()
        two = products.factor_norms(h, x.clone() * 2)
        three = products.factor_norms(x, h)
        late = products.factor_norms(g * three[:, :1, None], h)
        return small, two, three[:, 0] + 1, late

    torch.manual_seed(0)
    given = [torch.randn(2, 4, n) for n in (64, 32, 48)]
    graph = make_fx(step)(*given)
    wanted = graph(*given)
    assert together.gather(graph) == 3
    (node,) = (n for n in graph.graph.nodes if "norms_together" in str(n.target))
    lefts, rights, owners = node.args
    # x is what the first and the third share.
    assert (len(lefts), len(rights), owners) == (2, 3, [0, 0, 1])
    assert [n.name for n in graph.graph.nodes if "factor_norms" in str(n.target)] == ["factor_norms_3"]
    for found, old in zip(graph(*given), wanted, strict=True):
        # Of the two sizes that go with a norm only the product means something.
        found, old = (t if t.dim() == 1 else torch.stack([t[:, 0], t[:, 1] * t[:, 2]], 1) for t in (found, old))
        assert torch.allclose(found, old, rtol=1e-5)


def test_sums_are_gathered_and_what_is_made_of_them_follows():
    def step(x: Tensor, g: Tensor, h: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        one = weighted.scaled_sum(g, x, scale).reshape(-1)
        two = weighted.scaled_sum(h, x, scale * 2).mT
        return one, two, weighted.scaled_sum(x, h, scale) + 1

    torch.manual_seed(0)
    given = [*(torch.randn(2, 4, n) for n in (64, 32, 48)), torch.rand(2)]
    graph = make_fx(step)(*given)
    wanted = graph(*given)
    assert together.gather(graph) == 3
    assert all(map(torch.equal, graph(*given), wanted))


def test_a_group_whose_members_another_one_moved_is_gathered_where_the_last_of_them_is_now():
    def step(x: Tensor, g: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        one = products.factor_norms(g, x)
        late = products.factor_norms(y * one[0, 0], y)  # of the second group, and waits for the first
        early = products.factor_norms(y + 1, y)
        return one, late, early, products.factor_norms(x + 1, g)

    torch.manual_seed(0)
    given = [torch.randn(2, 4, 64), torch.randn(2, 4, 32), torch.randn(2, 5, 64)]
    graph = make_fx(step)(*given)
    wanted = graph(*given)
    assert together.gather(graph) == 4
    for found, old in zip(graph(*given), wanted, strict=True):
        assert torch.allclose(found[:, 0], old[:, 0], rtol=1e-5)


class Block(nn.Module):
    """Three operations on one input, and one on what they make."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = (part(x) for part in self.parts[:3])
        return x + self.parts[3](a * torch.tanh(b) + c)


@pytest.mark.parametrize("clipping", ["flat", "per_layer"])
def test_a_compiled_step_with_gathered_norms_is_the_step_without(monkeypatch, clipping):
    monkeypatch.setattr(products, "DEVICES", {"cpu"})
    monkeypatch.setattr(products, "narrow", lambda t: t.dtype == torch.bfloat16)
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(96) for _ in range(3))).bfloat16()
    batch = torch.randn(5, 8, 96).bfloat16(), torch.randn(5, 8, 96).bfloat16()
    gathered = []

    def as_traced(graph, inputs, options):
        gathered.append(together.gather(graph))
        return graph

    def loss(model, batch):
        return (model(batch[0]) - batch[1]).float().square().mean((1, 2))

    plain = sgd.clipped_grad(model, loss, batch, 0.5, clipping=clipping)
    monkeypatch.setattr(program, "inductor", as_traced)
    found = sgd.clipped_grad(model, loss, batch, 0.5, clipping=clipping, compile=True)
    assert sum(gathered) == 12
    assert torch.allclose(found.norms, plain.norms, rtol=1e-4)
    for name, total in plain.sums.items():
        assert (found.sums[name] - total).norm() <= 1e-3 * total.norm(), name
