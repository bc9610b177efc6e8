"""Models at random whose rows are put elsewhere by private values: packed, sorted, shuffled, routed, joined again.

Each keeps its examples apart, so that one example at a time says what the gradients are. One seed draws the model,
others its batches, of different make-up: lengths (also zero), and values that decide about order and route.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from tests.sgd.zoo import Case
from torch import Tensor, nn

WIDTH, BUCKETS = 4, 5


class Packed:
    """Rows, whose they are, and where each was, (example, place)."""

    def __init__(self, h: Tensor, of: Tensor, place: Tensor) -> None:
        self.h, self.of, self.place = h, of, place

    def picked(self, index: Tensor) -> Packed:
        return Packed(self.h[index], self.of[index], self.place[index])


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Packed) -> Packed:
        return Packed(torch.tanh(self.layer(rows.h)), rows.of, rows.place)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, rows: Packed) -> Packed:
        return Packed(self.layer(rows.h) * self.scale, rows.of, rows.place)


class Lookup(nn.Module):
    """Rows of a table, by where a private value lies."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(BUCKETS, WIDTH)
        self.register_buffer("edges", torch.linspace(-0.5, 0.5, BUCKETS - 1))

    def forward(self, rows: Packed) -> Packed:
        bucket = torch.bucketize(rows.h[:, 0].detach().contiguous(), self.edges)
        return Packed(rows.h + self.table(bucket), rows.of, rows.place)


class Sorted(nn.Module):
    """Rows in order of a private value."""

    def forward(self, rows: Packed) -> Packed:
        return rows.picked(rows.h[:, 1].detach().argsort())


class Dropped(nn.Module):
    """Rows with a private value of the wrong sign are left out."""

    def forward(self, rows: Packed) -> Packed:
        return rows.picked((rows.h[:, 2].detach() > -0.3).nonzero().squeeze(1))


class Routed(nn.Module):
    """Experts, by the largest of scores; in one of the ways in which they are called."""

    def __init__(self, way: str, experts: int = 3) -> None:
        super().__init__()
        self.way, self.router = way, nn.Linear(WIDTH, experts)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, WIDTH) / 2)
        self.bias = nn.Parameter(torch.randn(experts, WIDTH))

    def forward(self, rows: Packed) -> Packed:
        score, expert = self.router(rows.h).softmax(1).max(1)
        experts = len(self.up)
        if self.way == "each":
            out = torch.zeros_like(rows.h)
            for e in range(experts):
                here = (expert == e).nonzero().squeeze(1)
                out = out.index_add(0, here, rows.h[here] @ self.up[e] + self.bias[e])
        elif self.way == "taken":
            out = torch.bmm(rows.h.unsqueeze(1), self.up[expert]).squeeze(1) + self.bias[expert]
        else:
            number, order = expert.sort(stable=True)
            ends = torch.bincount(number, minlength=experts).cumsum(0).to(torch.int32)
            here = rows.h[order]
            if self.way == "grouped":
                made = torch.nn.functional.grouped_mm(here, self.up, offs=ends)
            else:
                sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
                made = torch.cat([t @ w for t, w in zip(here.split(sizes), self.up, strict=True)])
            made = made + self.bias[number]
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order))
            out = made[back]
        return Packed(rows.h + out * score.unsqueeze(1), rows.of, rows.place)


class Edges(nn.Module):
    """Each row hears of those of its own example that a private value chose."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, rows: Packed) -> Packed:
        near = (rows.of.unsqueeze(1) == rows.of) & (rows.h[:, :1].detach() > rows.h[:, 0].detach())
        target, source = near.nonzero().unbind(1)
        said = torch.tanh(self.message(torch.cat([rows.h[source], rows.h[target]], 1)))
        return Packed(torch.zeros_like(rows.h).index_add(0, target, said) + rows.h, rows.of, rows.place)


STAGES: dict[str, Callable[[], nn.Module]] = {
    "linear": Linear,
    "norm": Norm,
    "lookup": Lookup,
    "sorted": Sorted,
    "dropped": Dropped,
    "each": lambda: Routed("each"),
    "taken": lambda: Routed("taken"),
    "grouped": lambda: Routed("grouped"),
    "cut": lambda: Routed("cut"),
    "edges": Edges,
}


class Ragged(nn.Module):
    """Examples are shuffled by a private value, packed, go through stages, and are joined or padded again."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.shuffled, self.end = draw.random() < 0.5, draw.choice(["sum", "mean", "pad"])
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.names = [draw.choice(list(STAGES)) for _ in range(draw.randint(1, 4))]
        self.stages = nn.ModuleList(STAGES[name]() for name in self.names)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        x = self.first(x)
        count, most = x.shape[:2]
        order = x[:, 0, 0].detach().argsort() if self.shuffled else torch.arange(count)
        x, length = x[order], length[order]
        mask = torch.arange(most) < length.unsqueeze(1)
        of, place = mask.nonzero().unbind(1)
        rows = Packed(x[mask], of, place)
        for stage in self.stages:
            rows = stage(rows)
        if self.end == "pad":
            out = x.new_zeros(count, most, WIDTH).index_put((rows.of, rows.place), rows.h).sin().sum(1)
        else:
            out = x.new_zeros(count, WIDTH).index_add(0, rows.of, rows.h)
            if self.end == "mean":
                ones = torch.ones_like(rows.of, dtype=x.dtype)
                out = out / (1 + x.new_zeros(count).index_add(0, rows.of, ones)).unsqueeze(1)
        back = torch.empty_like(order)
        back[order] = torch.arange(count)
        return self.last(out[back])


def loss(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch["x"], batch["n"]) - batch["y"]).square().sum(1)


def case(seed: int) -> Case:
    """The model of a seed, with a batch; grouped products know no double numbers."""
    torch.manual_seed(seed)
    model = Ragged(seed)
    return Case(model if "grouped" in model.names else model.double(), loss, batch(seed, model.first.weight.dtype))


def batch(seed: int, dtype: torch.dtype, count: int = 5, most: int = 6) -> dict[str, Tensor]:
    """A batch of examples of all lengths."""
    g = torch.Generator().manual_seed(seed)
    n = torch.randint(0, most + 1, (count,), generator=g)
    x = torch.randn(count, most, WIDTH, generator=g, dtype=dtype)
    return {"x": x, "n": n, "y": torch.randn(count, 2, generator=g, dtype=dtype)}
