"""Rows that private values put elsewhere, in every batch: gradients are those of one example at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.sgd import ragged
from tests.sgd.harness import compare
from torch import nn

from tacit import sgd
from tacit.sgd.errors import BatchMixing, ClippingError
from tacit.sgd.gradients import planning
from tacit.sgd.gradients.rows import OwnedRows, found

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-9}
#: Models at random, with three batches each.
FEW, MANY = 16, 700


def worst(seed: int) -> float:
    """The largest error of a model at random, in units of what is allowed; only its first batch was planned for."""
    case, off = ragged.case(seed), 0.0
    dtype = case.model.first.weight.dtype
    for k in range(3):
        case.batch = ragged.batch(1000 * seed + k, dtype)
        off = max(off, compare(case).worst / TOLERANCE[dtype])
    return off


@pytest.mark.parametrize("seed", range(FEW))
def test_rows_that_private_values_move_belong_to_their_examples(seed):
    assert worst(seed) <= 1


@pytest.mark.slow
def test_so_they_do_in_two_thousand_cases():
    wrong = {seed: off for seed in range(FEW, FEW + MANY) if not (off := worst(seed)) <= 1}
    assert not wrong


def test_one_plan_serves_batches_of_other_make_up(monkeypatch):
    made = []
    survey = planning.survey
    monkeypatch.setattr(planning, "survey", lambda *a, **k: made.append(1) or survey(*a, **k))
    torch.manual_seed(3)
    model = ragged.Ragged(0)
    model.stages = nn.ModuleList([ragged.Linear(), ragged.Routed("grouped"), ragged.Sorted(), ragged.Norm()])
    for seed in range(6):
        sgd.clipped_grad(model, ragged.loss, ragged.batch(seed, torch.float32), clip_norm=1.0)
    assert len(made) == 1


def first_batch_only(monkeypatch):
    """A wrong version: whose a row is was found once."""
    kept: dict[int, OwnedRows] = {}

    def stale(dim, plain, *rest):
        now = found(dim, plain, *rest)
        old = kept.setdefault(plain.shape[dim], now)
        return now if now is None or old is None else replace(old, dim=dim)

    monkeypatch.setattr(planning.rows, "found", stale)


def one_too_far(monkeypatch):
    """A wrong version: the rows of an example begin one too late."""
    of = OwnedRows.of

    def shifted(dim, ids, batch):
        made = of(dim, ids, batch)
        return replace(made, index=(made.index + 1) % max(1, len(ids)))

    monkeypatch.setattr(OwnedRows, "of", shifted)


def test_ids_of_the_first_batch_are_wrong_in_the_next(monkeypatch):
    first_batch_only(monkeypatch)
    torch.manual_seed(0)
    model = ragged.Ragged(0)
    model.stages = nn.ModuleList([ragged.Sorted(), ragged.Linear()])
    model.double()
    case = ragged.Case(model, ragged.loss, {})
    errors = []
    for seed in range(3):
        case.batch = ragged.batch(seed, torch.float64)
        case.batch["n"] = torch.full((5,), 4)
        errors.append(compare(case).worst)
    assert errors[0] <= 1e-9
    assert max(errors) > 1e-2


def test_a_segment_that_begins_one_too_late_is_noticed(monkeypatch):
    one_too_far(monkeypatch)
    with pytest.raises(ClippingError, match="differs from autograd"):
        worst(2)


def test_an_example_without_a_finite_gradient_counts_as_nothing():
    torch.manual_seed(1)
    model = ragged.Ragged(0)
    model.stages = nn.ModuleList([ragged.Sorted(), ragged.Routed("taken")])
    model.double()
    batch = ragged.batch(5, torch.float64)
    batch["n"] = torch.tensor([3, 2, 4, 0, 5])
    whole = sgd.clipped_grad(model, ragged.loss, batch, clip_norm=0.5)
    bad = {**batch, "x": batch["x"].clone()}
    bad["x"][2, 1, 3] = float("nan")
    kept = [0, 1, 3, 4]
    rest = sgd.clipped_grad(model, ragged.loss, {k: v[kept] for k, v in batch.items()}, clip_norm=0.5)
    got = sgd.clipped_grad(model, ragged.loss, bad, clip_norm=0.5)
    assert got.norms[2].isinf()
    assert torch.allclose(got.norms[kept], whole.norms[kept])
    for name, total in rest.sums.items():
        assert torch.allclose(total, got.sums[name], atol=1e-12)


class Chosen(nn.Module):
    """Experts choose their tokens among all of the batch: who is taken depends on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.expert = nn.Linear(4, 2), nn.Linear(4, 4)

    def forward(self, x):
        rows = self.router(x.flatten(0, 1)).softmax(1)
        score, taken = rows[:, 0].topk(len(rows) // 3)
        out = (
            torch.zeros_like(x).flatten(0, 1).index_add(0, taken, self.expert(x.flatten(0, 1)[taken]) * score[:, None])
        )
        return (out.view(x.shape) + x).sum(1)


@pytest.mark.parametrize("seed", range(4))
def test_experts_that_choose_their_tokens_mix_examples(seed):
    """Also in a batch of which each half would have chosen the same tokens."""
    torch.manual_seed(seed)
    with pytest.raises(BatchMixing):
        sgd.clipped_grad(Chosen(), lambda m, x: m(x).square().sum(1), torch.randn(6, 3, 4), clip_norm=1.0)


class Sentences(nn.Module):
    """A recurrent layer over packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x, length):
        packed = nn.utils.rnn.pack_padded_sequence(x, length.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        return self.head(self.layer(packed)[1][0][-1])


class Unpadded(nn.Module):
    """Tokens without padding, and attention of those within the same bounds, as ``cu_seqlens`` has it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.three, self.head = nn.Linear(4, 4), nn.Linear(4, 12), nn.Linear(4, 2)

    def forward(self, x, length):
        flat = self.first(x[torch.arange(x.shape[1]) < length.unsqueeze(1)])
        ends = length.cumsum(0)
        of = torch.searchsorted(ends, torch.arange(len(flat)), right=True)
        q, k, v = self.three(flat).chunk(3, 1)
        seen = (q @ k.T).masked_fill(of.unsqueeze(1) != of, float("-inf")).softmax(1) @ v
        return self.head(x.new_zeros(len(x), 4).index_add(0, of, seen.tanh()))


class Bags(nn.Module):
    """Bags of words, one after another, with where each begins."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(7, 4, mode=mode), nn.Linear(4, 2)

    def forward(self, x, length):
        words = (x[..., 0].sigmoid() * 7).long()[torch.arange(x.shape[1]) < length.unsqueeze(1)]
        return self.head(self.words(words, length.cumsum(0) - length).tanh())


class Graphs(nn.Module):
    """Graphs as PyTorch Geometric batches them: nodes in one tensor, edges numbered on from the graph before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.message, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x, length):
        there = torch.arange(x.shape[1]) < length.unsqueeze(1)
        graph, node = there.nonzero().unbind(1)
        h = self.first(x[there]).tanh()
        begin = length.cumsum(0) - length
        # Each node is joined to the next of its graph, and to one that a value chooses.
        own = (x[there][:, 0].abs() * 10).long() % length[graph].clamp(min=1)
        source = torch.cat([begin[graph] + (node + 1) % length[graph].clamp(min=1), begin[graph] + own])
        target = torch.arange(len(h)).repeat(2)
        for _ in range(2):
            h = h + torch.zeros_like(h).index_add(0, target, self.message(h[source]).relu())
        pooled = x.new_zeros(len(x), 4).scatter_reduce(0, graph.unsqueeze(1).expand_as(h), h, "amax", include_self=True)
        return self.head(pooled)


class Nested(nn.Module):
    """A nested tensor, one piece for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x, length):
        pieces = torch.nested.nested_tensor_from_jagged(
            x[torch.arange(x.shape[1]) < length.unsqueeze(1)],
            torch.cat([length.new_zeros(1), length.cumsum(0)]),
            max_seqlen=x.shape[1],
        )
        return self.head(torch.nested.to_padded_tensor(self.first(pieces).tanh(), 0.0).sum(1))


FORMS = {
    "packed": Sentences,
    "unpadded": Unpadded,
    "bags": lambda: Bags("sum"),
    "bags, mean": lambda: Bags("mean"),
    "bags, largest": lambda: Bags("max"),
    "graphs": Graphs,
    "nested": Nested,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_forms_in_which_unequal_examples_come(form):
    torch.manual_seed(2)
    case = ragged.Case(FORMS[form]().double(), ragged.loss, {})
    for seed in range(3):
        case.batch = ragged.batch(seed, torch.float64)
        assert compare(case).worst <= 1e-9
