"""Recurrent layers, written out as the linear and elementwise operations they stand for.

``torch.lstm`` and its relatives arrive as one call with a list of weights. They are replaced, while a pass is
watched, by the same recurrence in plain operations: the projection of the whole input is one linear use, the
recurrent projection one use per step, and both then follow the ordinary rules. Values agree with the fused kernels up
to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from tacit.sgd.gradients.capture import Capture
from tacit.sgd.gradients.contributions import DECOMPOSE
from tacit.sgd.kernels import products
from tacit.sgd.torch_compat import fused_lstm_cell

State = tuple[Tensor, ...]


def _lstm_step(projected: Tensor, recurrent: Tensor, state: State) -> State:
    i, f, g, o = (projected + recurrent).chunk(4, -1)
    cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def _fused_lstm_step(projected: Tensor, recurrent: Tensor, state: State) -> State:
    hidden, cell, _ = fused_lstm_cell(projected, recurrent, state[1])
    return hidden, cell


def _gru_step(projected: Tensor, recurrent: Tensor, state: State) -> State:
    r_x, z_x, n_x = projected.chunk(3, -1)
    r_h, z_h, n_h = recurrent.chunk(3, -1)
    reset, update = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    new = torch.tanh(n_x + reset * n_h)
    return (new + update * (state[0] - new),)


def _tanh_step(projected: Tensor, recurrent: Tensor, state: State) -> State:
    return (torch.tanh(projected + recurrent),)


def _relu_step(projected: Tensor, recurrent: Tensor, state: State) -> State:
    return (torch.relu(projected + recurrent),)


#: Steps that see only the sum of the two projections, so that both have the same gradient.
ADDED = (_lstm_step, _tanh_step, _relu_step)

STEPS: dict[str, Callable[[Tensor, Tensor, State], State]] = {
    "lstm": _lstm_step,
    "gru": _gru_step,
    "rnn_tanh": _tanh_step,
    "rnn_relu": _relu_step,
}


def _direction(
    capture: Capture,
    step: Callable[[Tensor, Tensor, State], State],
    x_TBE: Tensor,
    state: State,
    weights: list[Tensor],
    alive_TB1: Tensor | None,
    *,
    has_bias: bool,
    backwards: bool,
) -> tuple[Tensor, State]:
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:4] if has_bias else (None, None)
    project = weights[-1] if len(weights) in (3, 5) else None
    with capture:
        projected = F.linear(x_TBE, w_ih, b_ih)
    if project is None and not any(capture.derived(part) for part in state):
        return _unwatched(capture, step, projected, state, w_hh, b_hh, alive_TB1, backwards=backwards)
    with capture:
        outputs: list[Tensor] = []
        times = range(x_TBE.shape[0])
        for t in reversed(times) if backwards else times:
            new = step(projected[t], F.linear(state[0], w_hh, b_hh), state)
            if project is not None:
                new = (F.linear(new[0], project), *new[1:])
            if alive_TB1 is not None:
                new = tuple(torch.where(alive_TB1[t], a, b) for a, b in zip(new, state, strict=True))
            state = new
            outputs.append(state[0])
        if backwards:
            outputs.reverse()
        return torch.stack(outputs), state


def _unwatched(
    capture: Capture,
    step: Callable[[Tensor, Tensor, State], State],
    projected_TBG: Tensor,
    state: State,
    w_hh: Tensor,
    b_hh: Tensor | None,
    alive_TB1: Tensor | None,
    *,
    backwards: bool,
) -> tuple[Tensor, State]:
    """The loop over time, with all its recurrent projections recorded as one linear use.

    Their inputs are the states before each step. Their gradient is that of the projections of the input, where the two
    are added up; elsewhere it is found at a zero that is added to each.
    """
    moved = any(capture.rearranged(t) for t in (projected_TBG, *state))
    tapped = step not in ADDED or not projected_TBG.requires_grad
    tap_TBG = projected_TBG.new_zeros(()).requires_grad_().expand(projected_TBG.shape) if tapped else projected_TBG
    inputs, taps = projected_TBG.unbind(0), tap_TBG.unbind(0) if tapped else ()
    linear = _linear(projected_TBG)
    if step is _lstm_step and projected_TBG.is_cuda and projected_TBG.dtype == state[0].dtype == state[1].dtype:
        step = _fused_lstm_step  # one kernel in place of ten
    before: list[Tensor] = []
    outputs: list[Tensor] = []
    times = range(len(inputs))
    for t in reversed(times) if backwards else times:
        before.append(state[0])
        recurrent = linear(state[0], w_hh, b_hh)
        new = step(inputs[t], recurrent + taps[t] if tapped else recurrent, state)
        if alive_TB1 is not None:
            new = tuple(torch.where(alive_TB1[t], a, b) for a, b in zip(new, state, strict=True))
        state = new
        outputs.append(state[0])
    if backwards:
        outputs.reverse()
        before.reverse()
    states_TBH = torch.stack([h.detach() for h in before])
    out = torch.stack(outputs)
    capture.record(F.linear, "linear", (states_TBH, w_hh, b_hh), tap_TBG, moved=moved)
    for tensor in (out, *state):
        capture.adopt(tensor, moved=moved)
    return out, state


def _linear(like: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """The recurrent projection; in a traced step, in tf32 where cuDNN would use it."""
    quick = like.is_cuda and like.dtype == torch.float32 and torch.backends.cudnn.allow_tf32
    return products.QuickLinear.apply if quick and get_proxy_mode() is not None else F.linear


def _layers(
    capture: Capture,
    step: Callable[[Tensor, Tensor, State], State],
    x_TBE: Tensor,
    initial: State,
    weights: list[Tensor],
    num_layers: int,
    dropout: float,
    alive_TB1: Tensor | None,
    *,
    has_bias: bool,
    training: bool,
    bidirectional: bool,
) -> tuple[Tensor, State]:
    directions = 2 if bidirectional else 1
    per_direction = len(weights) // (num_layers * directions)
    finals: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            with capture:
                state = tuple(part[k] for part in initial)
            chosen = list(weights[k * per_direction : (k + 1) * per_direction])
            out, final = _direction(
                capture, step, x_TBE, state, chosen, alive_TB1, has_bias=has_bias, backwards=direction == 1
            )
            outputs.append(out)
            finals.append(final)
        with capture:
            x_TBE = torch.cat(outputs, -1) if bidirectional else outputs[0]
            if dropout and training and layer < num_layers - 1:
                x_TBE = F.dropout(x_TBE, dropout, training=True)
    with capture:
        return x_TBE, tuple(torch.stack([final[k] for final in finals]) for k in range(len(initial)))


def _recurrent(name: str) -> Callable[..., Any]:
    step = STEPS[name]

    def padded(
        capture: Capture,
        x: Tensor,
        initial: Any,
        weights: list[Tensor],
        has_bias: bool,
        num_layers: int,
        dropout: float,
        training: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        state = tuple(initial) if isinstance(initial, list | tuple) else (initial,)
        with capture:
            x_TBE = x.transpose(0, 1) if batch_first else x
        out, final = _layers(
            capture,
            step,
            x_TBE,
            state,
            list(weights),
            num_layers,
            dropout,
            None,
            has_bias=has_bias,
            training=training,
            bidirectional=bidirectional,
        )
        with capture:
            return (out.transpose(0, 1) if batch_first else out, *final)

    def packed(
        capture: Capture,
        data: Tensor,
        sizes: Tensor,
        initial: Any,
        weights: list[Tensor],
        has_bias: bool,
        num_layers: int,
        dropout: float,
        training: bool,
        bidirectional: bool,
    ) -> Any:
        state = tuple(initial) if isinstance(initial, list | tuple) else (initial,)
        counts = sizes.tolist()
        alive = torch.arange(counts[0]).unsqueeze(0) < torch.tensor(counts).unsqueeze(1)
        alive_TB = alive.to(data.device)
        with capture:
            x_TBE = data.new_zeros(*alive_TB.shape, data.shape[-1]).masked_scatter(alive_TB.unsqueeze(-1), data)
        # Sorted by length to be packed: every example goes back to its place, where the uses will look for it.
        order, there = capture.order_of(data), alive_TB
        if order is not None and sorted(order.tolist()) != list(range(counts[0])):
            order = None  # no sorting of the examples, but a choice of something else
        if order is not None:
            with capture:
                back = order.argsort()
                x_TBE, state = x_TBE.index_select(1, back), tuple(s.index_select(1, back) for s in state)
            there = alive_TB.index_select(1, back)
        out, final = _layers(
            capture,
            step,
            x_TBE,
            state,
            list(weights),
            num_layers,
            dropout,
            there.unsqueeze(-1),
            has_bias=has_bias,
            training=training,
            bidirectional=bidirectional,
        )
        with capture:
            if order is not None:
                out, final = out.index_select(1, order), tuple(f.index_select(1, order) for f in final)
            kept = out[alive_TB]
        if order is not None:
            capture.sorted_by(kept, order)
        return (kept, *final)

    def call(capture: Capture, *args: Any) -> Any:
        return padded(capture, *args) if isinstance(args[3], bool) else packed(capture, *args)

    return call


def _cell(name: str) -> Callable[..., Any]:
    step = STEPS[name]

    def call(
        capture: Capture,
        x: Tensor,
        state: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        before = tuple(state) if isinstance(state, list | tuple) else (state,)
        with capture:
            after = step(F.linear(x, w_ih, b_ih), F.linear(before[0], w_hh, b_hh), before)
        return after if name == "lstm" else after[0]

    return call


for _name in STEPS:
    DECOMPOSE[_name] = _recurrent(_name)
    DECOMPOSE[f"{_name}_cell"] = _cell(_name)
