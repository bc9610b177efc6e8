"""Rows that several examples put in order: what comes back is each example's own, or is said to be of several."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from benchmarks import experts
from tests.sgd.test_ownership import proof_of
from torch import Tensor
from torch.nn import functional as F

from tacit.sgd.gradients.ownership import piles
from tacit.sgd.gradients.ownership.ids import MIXED
from tacit.sgd.gradients.ownership.tracker import OwnershipMode

EXAMPLES, TOKENS, WIDTH = 3, 4, 4
ROWS = EXAMPLES * TOKENS
SEEDS = (0, 1, 3)
WEIGHT = torch.linspace(-1, 1, WIDTH * WIDTH).sin().view(WIDTH, WIDTH)
EXPERTS = torch.linspace(-2, 2, 3 * WIDTH * WIDTH).cos().view(3, WIDTH, WIDTH)
TABLE = torch.linspace(0, 3, ROWS * WIDTH).view(ROWS, WIDTH)


class Routed(NamedTuple):
    """Tokens, in what order they are sorted, and what is so."""

    h: Tensor
    order: Tensor
    rows: Tensor


def routed(x: Tensor) -> Routed:
    h = x.reshape(ROWS, WIDTH)
    order = h[:, 0].detach().argsort()
    return Routed(h, order, h[order])


def back(x: Tensor, order: Tensor, rows: Tensor) -> Tensor:
    return torch.zeros(ROWS, rows.shape[-1]).index_add(0, order, rows).view(len(x), TOKENS, -1)


def simply(change):
    """Something is done with the sorted rows, which then go where they came from."""

    def function(x: Tensor) -> Tensor:
        some = routed(x)
        return back(x, some.order, change(some.rows))

    return function


def keys_of(h: Tensor) -> Tensor:
    return h[:, :3].detach().argmax(1)


def grouped(x: Tensor, *, descending: bool = False, shift: int = 0, other: str = "") -> Tensor:
    h = x.reshape(ROWS, WIDTH)
    keys = keys_of(h)
    keys, order = torch.sort(keys + shift if shift else keys, descending=descending)
    others, another = torch.sort(keys_of(h.flip(1)))
    ends = torch.histc((others if other == "keys" else keys).float(), 3, 0, 2).cumsum(0, dtype=torch.int32)
    made = F.grouped_mm(h[another if other == "rows" else order], EXPERTS, offs=ends)
    order = another if other == "rows" else order
    made = made if other else made + WEIGHT[keys.clamp(0, 2)]
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(ROWS)
    return made[inverse].view(x.shape)


def several_each(x: Tensor) -> Tensor:
    """Each token goes to two places."""
    h = x.reshape(ROWS, WIDTH)
    score, expert = h[:, :3].softmax(1).topk(2, 1)
    order = expert.reshape(-1).sort()[1]
    rows = torch.tanh(h[order // 2] @ WEIGHT) * score.reshape(-1)[order].unsqueeze(1)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(2 * ROWS)
    return rows[inverse].view(ROWS, 2, WIDTH).sum(1).view(x.shape)


def by_places(x: Tensor) -> Tensor:
    h = x.reshape(ROWS, WIDTH)
    one, two = (h[:, :2].detach() > 0).nonzero().unbind(1)
    return torch.zeros(ROWS, WIDTH).index_add(0, one, h[one] @ WEIGHT * h[one, two, None]).view(x.shape)


def inverted(x: Tensor) -> Tensor:
    some = routed(x)
    return (some.rows @ WEIGHT)[some.order.argsort()].view(x.shape)


def by_mask(x: Tensor) -> Tensor:
    h = x.reshape(ROWS, WIDTH)
    mask = h[:, 0].detach() > 0
    out = torch.zeros_like(h)
    out[mask] = torch.relu(h[mask] @ WEIGHT)
    return out.view(x.shape)


def loop(x: Tensor) -> Tensor:
    """Experts one by one, those that are needed."""
    h = x.reshape(ROWS, WIDTH)
    chosen = F.one_hot(keys_of(h), 3).t()
    out = torch.zeros_like(h)
    for e in (chosen.sum(1) > 0).nonzero():
        (here,) = torch.where(chosen[e].squeeze(0))
        out.index_add_(0, here, h[here] @ EXPERTS[int(e)])
    return out.view(x.shape)


def dropped(rows: Tensor) -> Tensor:
    torch.manual_seed(7)
    return F.dropout(rows, 0.5)


def halves_of(rows: Tensor) -> Tensor:
    left, right = rows.chunk(2, -1)
    return torch.cat([F.silu(left) * right, rows[:, ::2], F.layer_norm(rows, (WIDTH,)).softmax(1)], 1)


OWN = {
    "as they are": simply(lambda rows: rows),
    "a layer": simply(lambda rows: torch.addmm(WEIGHT[0], rows, WEIGHT).relu()),
    "features apart": simply(halves_of),
    "dropout": simply(dropped),
    "in place": simply(lambda rows: (rows @ WEIGHT).add_(1.0).mul_(rows)),
    "grouped products": grouped,
    "two places each": several_each,
    "an inverse by sorting": inverted,
    "places": by_places,
    "a mask": by_mask,
    "a loop": loop,
}  # fmt: skip


def in_part(x: Tensor) -> Tensor:
    some = routed(x)
    return back(x, some.order[:5], some.rows[:5])


def by_another_order(x: Tensor) -> Tensor:
    some = routed(x)
    return back(x, some.h[:, 1].detach().argsort(), some.rows)


def an_inverse(change):
    def function(x: Tensor) -> Tensor:
        some = routed(x)
        inverse = torch.empty_like(some.order)
        inverse[some.order] = change(torch.arange(ROWS))
        return some.rows[inverse].view(x.shape)

    return function


def a_written_index(change):
    def function(x: Tensor) -> Tensor:
        h = x.reshape(ROWS, WIDTH)
        order = h[:, 0].detach().argsort()
        rows = h[order.clone()]
        change(order)
        return back(x, order, rows)

    return function


def columns_of_another(rows: Tensor) -> Tensor:
    buffer = TABLE.clone()
    buffer[:, :2] = rows[:, :2]
    return buffer.prod(1, keepdim=True)


def written_together(rows: Tensor) -> Tensor:
    ones = torch.zeros_like(rows)
    torch._foreach_add_([ones], [TABLE])
    return rows * ones


def partly_one(rows: Tensor) -> Tensor:
    ones = torch.zeros_like(rows)
    ones[:5] = 1.0
    return rows * ones


def row_by_row(rows: Tensor) -> Tensor:
    return torch.stack([row * k for k, row in enumerate(rows.unbind(0))])


def places_of_another(x: Tensor) -> Tensor:
    h = x.reshape(ROWS, WIDTH)
    one = (h[:, :2].detach() > 0).nonzero()[:, 0]
    return (
        torch.zeros(ROWS, WIDTH).index_add(0, one, h[one, torch.arange(len(one)) % WIDTH, None] + h[one]).view(x.shape)
    )


def another_mask(x: Tensor) -> Tensor:
    h = x.reshape(ROWS, WIDTH)
    mask, other = h[:, 0].detach() > h[:, 0].median(), h[:, 1].detach() > h[:, 1].median()
    out = torch.zeros_like(h)
    out[mask] = h[other]
    return out.view(x.shape)


def divided_across(x: Tensor) -> Tensor:
    some = routed(x)
    return torch.zeros(2, WIDTH).index_add(0, some.order // 6, some.rows)[torch.arange(3) // 2].unsqueeze(1)


MIXING = {
    "a number for each place": simply(lambda rows: rows * torch.arange(1.0, ROWS + 1).unsqueeze(1)),
    "a table": simply(lambda rows: rows + TABLE),
    "a table joined": simply(lambda rows: torch.cat([rows, TABLE], 1).prod(1, keepdim=True)),
    "a table added in a product": simply(lambda rows: torch.addmm(TABLE, rows, WEIGHT)),
    "columns of another": simply(columns_of_another),
    "a table unlike ones": simply(written_together),
    "an inverse of the inverse": lambda x: routed(x).rows[routed(x).order.argsort(descending=True)].view(x.shape),
    "ones in part": simply(partly_one),
    "a draw for each place": simply(lambda rows: rows * torch.bernoulli((TABLE > 1.5).float())),
    "row by row": simply(row_by_row),
    "the first": simply(lambda rows: torch.cat([2 * rows[:1], rows[1:]])),
    "halves": simply(lambda rows: torch.cat([rows.chunk(2, 0)[0].relu(), rows.chunk(2, 0)[1]])),
    "pairs": simply(lambda rows: (rows.view(-1, 2 * WIDTH).softmax(1)).view(-1, WIDTH)),
    "the sum": simply(lambda rows: rows + rows.sum(0)),
    "neighbours": simply(lambda rows: rows + rows.roll(1, 0)),
    "sums so far": simply(lambda rows: rows.cumsum(0)),
    "turned": simply(lambda rows: rows.flip(0)),
    "moved by one": simply(lambda rows: F.pad(rows, (0, 0, 1, -1))),
    "a part": in_part,
    "another order": by_another_order,
    "an inverse of others": an_inverse(lambda count: count.flip(0)),
    "an inverse of half": an_inverse(lambda count: count // 2 * 2),
    "an index that is written to": a_written_index(lambda order: order.add_(1).remainder_(ROWS)),
    "an index that is written to in part": a_written_index(lambda order: order[:4].zero_()),
    "an index that is written to behind": a_written_index(lambda order: order.data.div_(2, rounding_mode="floor")),
    "keys downwards": lambda x: grouped(x, descending=True),
    "keys below zero": lambda x: grouped(x, shift=-1),
    "keys of others": lambda x: grouped(x, other="keys"),
    "rows of others": lambda x: grouped(x, other="rows"),
    "places of another": places_of_another,
    "another mask": another_mask,
    "divided across examples": divided_across,
}


def computed(function, x: Tensor, tracker: OwnershipMode):
    """Losses of the examples, and gradients of their sum where they came in."""
    weights = torch.ones(EXAMPLES)
    tracker.own(weights)
    losses = (function(x) + 0.1 * x.sum(-1, keepdim=True)).sin().flatten(1).sum(1)
    return [losses.detach(), *torch.autograd.grad(losses, x, weights)]


def looked_at(function, x: Tensor):
    """The same, and whose these are said to be."""
    tracker, x = OwnershipMode(), x.clone().requires_grad_()
    tracker.own(x)
    with tracker:
        losses, grad = computed(function, x, tracker)
    said = [torch.zeros(t.shape) if (o := tracker.owners(t)) is None else o for t in (losses, grad)]
    return [losses, grad], said


def moved_by(function, seed: int):
    """For each example: whether others' values changed with it, and whether some of those are said to be theirs."""
    torch.manual_seed(seed)
    x = torch.randn(EXAMPLES, TOKENS, WIDTH)
    before, said = looked_at(function, x)
    for example in range(EXAMPLES):
        for scale in (1.0, 5.0):
            other = x.clone()
            other[example] = scale * torch.randn(TOKENS, WIDTH)
            after = computed(function, other.requires_grad_(), OwnershipMode())
            for one, two, mine in zip(before, after, said, strict=True):
                differ = ~torch.isclose(one, two, rtol=1e-4, atol=1e-5)
                number = torch.arange(1, EXAMPLES + 1).view(-1, *[1] * (one.dim() - 1)).expand(one.shape)
                yield (
                    bool((differ & (number != example + 1)).any()),
                    bool((differ & (mine == number) & (number != example + 1)).any()),
                )


@pytest.mark.parametrize("name", OWN)
def test_rows_that_come_back_are_their_examples_own(name):
    for seed in SEEDS:
        torch.manual_seed(seed)
        _, said = looked_at(OWN[name], torch.randn(EXAMPLES, TOKENS, WIDTH))
        for mine in said:
            number = torch.arange(1, EXAMPLES + 1).view(-1, *[1] * (mine.dim() - 1))
            assert bool((mine == number).all()), (seed, mine)
        # Dropout draws for places: what an example gets depends on the others, and its law does not.
        assert name == "dropout" or not any(wrong for _, wrong in moved_by(OWN[name], seed))


@pytest.mark.parametrize("name", OWN)
def test_how_many_rows_a_mask_takes_is_read(name):
    tracker = OwnershipMode()
    x = torch.randn(EXAMPLES, TOKENS, WIDTH)
    tracker.own(x)
    with tracker:
        OWN[name](x)
    assert bool(tracker.reads) == (name in ("places", "a mask", "a loop"))
    assert not tracker.unsteady


@pytest.mark.parametrize("name", MIXING)
def test_rows_that_meet_their_places_or_one_another_are_of_several(name):
    found = [pair for seed in SEEDS for pair in moved_by(MIXING[name], seed)]
    assert any(moved for moved, _ in found)  # it does mix
    assert not any(wrong for _, wrong in found)
    _, (losses, _) = looked_at(MIXING[name], torch.randn(EXAMPLES, TOKENS, WIDTH))
    assert bool((losses == MIXED).any())


WRONG = {
    "_meets_places": (piles, lambda *_: False),
    "cut": (piles.Piles, lambda *_: False),
    "written": (piles.Piles, lambda *_: None),
    "_within": (piles, lambda *_: True),
    "whole": (piles.Pile, lambda *_: True),
}


@pytest.mark.parametrize("part", WRONG)
def test_without_any_of_its_conditions_something_is_said_to_be_ones_own_that_is_not(part, monkeypatch):
    monkeypatch.setattr(WRONG[part][0], part, WRONG[part][1])
    assert any(wrong for name in MIXING for seed in SEEDS[:2] for _, wrong in moved_by(MIXING[name], seed))


@pytest.mark.parametrize("name", ["mixtral", "gpt-oss", "switch"])
def test_a_mixture_of_experts_is_shown_to_keep_its_examples_apart(name):
    """In every batch; in a loop over experts that Python asks for, in those of which it asks the same."""
    torch.manual_seed(0)
    proof = proof_of(experts.family(name, 32), experts.loss, torch.randint(1, experts.WORDS, (5, 24)))
    assert proof.holds
    assert proof.by_row
    assert proof.steady == (name != "switch")
