"""Models that do something else with each batch: quiet batches show nothing of it, loud ones do.

``MIXING`` must be refused in the loud batch, ``FAIR`` must be right in every batch. Both are functions of a module with
two linear layers ``a`` and ``b`` and the inputs, so that what is nasty about each stands in a few lines.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS, WIDTH, INNER, CLASSES, LOUD = 8, 6, 7, 3, 3.0

Body = Callable[[Any, Tensor], Tensor]
MIXING: dict[str, Callable[[], Body]] = {}
FAIR: dict[str, Callable[[], Body]] = {}


class Nasty(nn.Module):
    """Two layers, and what is done with them."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, INNER), nn.Linear(INNER, CLASSES)
        self.experts = nn.Parameter(torch.randn(3, INNER, INNER) / 2)
        self.gates = nn.Parameter(torch.zeros(2, INNER))
        self.register_buffer("kept", torch.zeros(INNER))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def batch(seed: int, *, loud: bool = False) -> tuple[Tensor, Tensor]:
    """Small numbers; in a loud batch those of one example are large."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(ROWS, WIDTH, generator=generator) * 0.3, torch.randint(CLASSES, (ROWS,), generator=generator)
    if loud:
        x[2] = 2 * LOUD
    return x, y


def mixing(make: Callable[[], Body]) -> Callable[[], Body]:
    MIXING[make.__name__] = make
    return make


def fair(make: Callable[[], Body]) -> Callable[[], Body]:
    FAIR[make.__name__] = make
    return make


def excess(largest: float) -> float:
    """One for a quiet batch, more for a loud one."""
    return max(LOUD, largest) / LOUD


# -- numbers that leave torch ------------------------------------------------------------------------------------------

POOL = ThreadPoolExecutor(1)


def elsewhere(function: Callable[[], Any]) -> Any:
    """What another thread makes of it."""
    return POOL.submit(function).result()


def saved(x: Tensor) -> float:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return float(torch.load(file).max())


def by_address(x: Tensor) -> float:
    numbers = ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_float))
    return max(numbers[k] for k in range(x.numel()))


def unwatched(x: Tensor) -> float:
    with torch._C.DisableTorchFunction():
        return float(x.max())


READS: dict[str, Callable[[Tensor], float]] = {
    "item": lambda x: x.max().item(),
    "python": lambda x: max(float(v) for row in x for v in row),
    "numpy": lambda x: float(x.numpy().max()),
    "ufunc": lambda x: float(np.maximum.reduce(x, axis=None)),
    "dlpack": lambda x: float(np.from_dlpack(x).max()),
    "memory": lambda x: float(np.frombuffer(bytes(x.untyped_storage()), np.float32).max()),
    "address": by_address,
    "pickle": lambda x: float(pickle.loads(pickle.dumps(x)).max()),
    "copy": lambda x: float(copy.deepcopy(x).max()),
    "file": saved,
    "text": lambda x: float(f"{x.max():.3f}"),
    "equality": lambda x: 0.0 if torch.equal(x.clamp(max=LOUD), x) else 2 * LOUD,
    "membership": lambda x: 2 * LOUD if 2 * LOUD in x else 0.0,
    "length": lambda x: 2.0 * len((x > LOUD).nonzero()),
    "unwatched": unwatched,
    "thread": lambda x: elsewhere(lambda: float(x.max())),
    "thread and numpy": lambda x: elsewhere(lambda: float(x.numpy().max())),
    "threshold in a thread": lambda x: elsewhere(lambda: 2 * LOUD if float(x.max()) > LOUD else 0.0),
}
for _name, _read in READS.items():
    MIXING[f"a number by {_name}"] = functools.partial(
        lambda read: lambda m, x: m.b((m.a(x) * excess(read(x))).tanh()), _read
    )


@mixing
def a_branch_by_a_thread() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        loud = elsewhere(lambda: float(x.max()) > LOUD)
        return m.b(m.a(x).tanh() if loud else m.a(x).sigmoid())

    return body


@mixing
def a_constant_that_a_thread_writes() -> Body:
    shared = torch.zeros(INNER)

    def body(m: Any, x: Tensor) -> Tensor:
        elsewhere(lambda: shared.data.fill_(excess(float(x.max())) - 1))
        return m.b((m.a(x) - shared).tanh())

    return body


@mixing
def a_buffer_that_a_thread_writes() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        elsewhere(lambda: m.kept.numpy().fill(excess(float(x.max())) - 1))
        return m.b((m.a(x) - m.kept).tanh())

    return body


# -- the backward pass -------------------------------------------------------------------------------------------------


@mixing
def a_hook_that_reads() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        h.register_hook(lambda g: g - g.mean(0) if float(x.max()) > LOUD else g)
        return m.b(h.tanh())

    return body


@mixing
def a_hook_that_scales_by_numpy() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        h = m.a(x).tanh()
        h.register_hook(lambda g: g * excess(float(x.numpy().max())))
        return m.b(h)

    return body


@mixing
def a_hook_on_a_node() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        h = m.a(x).tanh()
        h.grad_fn.register_prehook(lambda g: (g[0] * excess(float(x.numpy().max())),))
        return m.b(h)

    return body


class Reversed(torch.autograd.Function):
    """Its gradient is that of others, in loud batches."""

    @staticmethod
    def forward(ctx, h, x):
        ctx.x = x
        return h.clone()

    @staticmethod
    def backward(ctx, g):
        return (g.flip(0) if float(ctx.x.max()) > LOUD else g), None


class Scaled(Reversed):
    """Its gradient is multiplied by something of the batch."""

    @staticmethod
    def backward(ctx, g):
        return g * excess(float(ctx.x.numpy().max())), None


class Averaged(Reversed):
    """No number leaves torch."""

    @staticmethod
    def backward(ctx, g):
        return g + (ctx.x.max() > LOUD) * g.mean(0), None


for _kind in (Reversed, Scaled, Averaged):
    MIXING[f"a function, {_kind.__name__}"] = functools.partial(
        lambda kind: lambda m, x: m.b(kind.apply(m.a(x), x).tanh()), _kind
    )


@mixing
def a_setting_of_a_class() -> Body:
    class Turned(torch.autograd.Function):
        factor = 1.0

        @staticmethod
        def forward(ctx, h):
            return h.view_as(h)

        @staticmethod
        def backward(ctx, g):
            return -g * Turned.factor

    def body(m: Any, x: Tensor) -> Tensor:
        Turned.factor = excess(float(x.max()))
        return m.b(Turned.apply(m.a(x)).tanh())

    return body


@mixing
def rounded_saved_tensors() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        def pack(t: Tensor) -> Tensor:
            if not (t.is_floating_point() and t.dim() == 2 and len(t) == ROWS):
                return t
            step = float(t.abs().max()) / 31
            return (t / step).round() * step if step > LOUD / 31 else t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            return m.b(m.a(x).tanh() * x.sum(1, keepdim=True))

    return body


# -- a loss that does not tell what its gradient is --------------------------------------------------------------------


def cut(how: Callable[[Tensor], Tensor], factor: Callable[[Tensor], Any]) -> Callable[[], Body]:
    """The value of a layer, whose gradient is multiplied by something of the batch."""

    def body(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.b((how(h) + factor(x) * (h - how(h))).tanh())

    return lambda: body


def without_history(h: Tensor) -> Tensor:
    with torch.no_grad():
        return h * 1.0


MIXING |= {
    "detached, by a tensor": cut(torch.detach, lambda x: x.max().clamp(min=LOUD) / LOUD),
    "detached, by a number": cut(torch.detach, lambda x: excess(float(x.max()))),
    "detached, by a thread": cut(torch.detach, lambda x: elsewhere(lambda: excess(float(x.max())))),
    "without a gradient": cut(without_history, lambda x: x.max().clamp(min=LOUD) / LOUD),
    "data": cut(lambda h: h.data, lambda x: x.max().clamp(min=LOUD) / LOUD),
}


def behind(gate: Callable[[Any], Tensor]) -> Callable[[], Body]:
    """The losses do not tell what comes through a gate that is closed; the gradient of the gate does."""

    def body(m: Any, x: Tensor) -> Tensor:
        h = m.a(x).tanh()
        return m.b(h + gate(m) * (h + 5 * h.mean(0) * (x.max() > LOUD)))

    return lambda: body


MIXING |= {
    "behind a zero": behind(lambda m: m.gates[0]),
    "behind a tiny number": behind(lambda m: m.gates[0] + 1e-6),
    "behind two that cancel": behind(lambda m: (1 + m.gates[0]) - (1 + m.gates[1])),
}


# -- values of others --------------------------------------------------------------------------------------------------


@mixing
def neighbours_in_sorted_order() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        h = m.a(x)[order]
        h = h + h.roll(1, 0) * (x[order, :1] > LOUD)
        return m.b(h.tanh()[order.argsort()])

    return body


@mixing
def attention_to_loud_tokens() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        h, own = m.a(x), torch.eye(len(x), dtype=torch.bool)
        seen = own | (x[:, 0] > LOUD)
        return m.b(F.scaled_dot_product_attention(h[None], h[None], h[None], attn_mask=seen[None])[0].tanh())

    return body


@mixing
def a_place_in_a_buffer() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        place = torch.where(x[:, 0] > LOUD, 0, torch.arange(len(x)))
        return m.b(torch.zeros(len(x), INNER).index_put((place,), m.a(x), accumulate=True).tanh())

    return body


@mixing
def sparse_routes() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        at = torch.arange(len(x))
        to = (at + (x[:, 0] > LOUD)) % len(x)
        routes = torch.sparse_coo_tensor(torch.stack([at, to]), torch.ones(len(x)), (len(x), len(x)))
        return m.b(torch.sparse.mm(routes, m.a(x)).tanh())

    return body


@mixing
def bits_of_floats() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        return m.b(m.a(x * (1 + (x.view(torch.int32).amax(0) > 1_080_000_000))).tanh())

    return body


@mixing
def lists_of_tensors() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        return m.b((m.a(x) * torch.stack(torch._foreach_norm(list(x))).max().clamp(min=5) / 5).tanh())

    return body


@mixing
def an_output_that_is_given() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        largest = torch.empty(WIDTH)
        torch.amax(x, 0, out=largest)
        return m.b(m.a(x * (1 + F.relu(largest - LOUD))).tanh())

    return body


# -- fair, for all that ------------------------------------------------------------------------------------------------


@fair
def sorted_and_put_back() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        order = sorted(range(len(x)), key=lambda k: float(x[k, 0]))
        return m.b(m.a(x[order]).tanh())[np.argsort(order)]

    return body


@fair
def an_order_by_a_thread() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        order = elsewhere(lambda: x[:, 0].argsort().tolist())
        return m.b(m.a(x)[order].tanh())[np.argsort(order)]

    return body


@fair
def two_ways_by_a_mask() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        small, h = x[:, 0] < 0, x.new_empty(len(x), INNER)
        h[small], h[~small] = m.a(x[small]).tanh(), m.a(-x[~small])
        return m.b(h)

    return body


@fair
def one_row_at_a_time() -> Body:
    return lambda m, x: torch.stack([m.b(m.a(r).tanh()) if r[0] > 0 else m.b(m.a(-r)) for r in x])


@fair
def experts_in_a_loop() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        h, expert = m.a(x), x[:, :3].argmax(1)
        out = torch.zeros_like(h)
        for k in expert.unique().tolist():
            here = (expert == k).nonzero()[:, 0]
            out[here] = h[here] @ m.experts[k]
        return m.b(out.tanh())

    return body


@fair
def masked_scatter() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        h, mask = m.a(x), (x[:, :1] > 0).expand(-1, INNER)
        return m.b(torch.zeros_like(h).masked_scatter(mask, h[mask]).tanh())

    return body


@fair
def straight_through() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.b(h + (h.round() - h).detach())

    return body


@fair
def a_scale_of_the_weights() -> Body:
    return lambda m, x: m.b((m.a(x) / m.a.weight.abs().max().item()).tanh())


@fair
def what_a_hook_finds_of_the_forward_pass() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        m.seen = x
        h = m.a(x)
        h.register_hook(lambda g: g * m.seen[:, :1].abs())
        return m.b(h.tanh())

    return body


@fair
def a_gradient_in_the_model() -> Body:
    def body(m: Any, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(m.a(x).tanh().sum(), x, create_graph=True)
        return m.b(F.pad(slope, (0, 1)))

    return body
