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

from tacit.sgd.rules.base import DECOMPOSE

State = tuple[Tensor, ...]


def _lstm_step(projected: Tensor, recurrent: Tensor, state: State) -> State:
    i, f, g, o = (projected + recurrent).chunk(4, -1)
    cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


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


STEPS: dict[str, Callable[[Tensor, Tensor, State], State]] = {
    "lstm": _lstm_step,
    "gru": _gru_step,
    "rnn_tanh": _tanh_step,
    "rnn_relu": _relu_step,
}


def _direction(
    step: Callable[[Tensor, Tensor, State], State],
    x_TBE: Tensor,
    state: State,
    weights: list[Tensor],
    has_bias: bool,
    backwards: bool,
    alive_TB1: Tensor | None,
) -> tuple[Tensor, State]:
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:4] if has_bias else (None, None)
    project = weights[-1] if len(weights) in (3, 5) else None
    projected = F.linear(x_TBE, w_ih, b_ih)
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


def _layers(
    step: Callable[[Tensor, Tensor, State], State],
    x_TBE: Tensor,
    initial: State,
    weights: list[Tensor],
    has_bias: bool,
    num_layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    alive_TB1: Tensor | None,
) -> tuple[Tensor, State]:
    directions = 2 if bidirectional else 1
    per_direction = len(weights) // (num_layers * directions)
    finals: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            state = tuple(part[k] for part in initial)
            chosen = list(weights[k * per_direction : (k + 1) * per_direction])
            out, final = _direction(step, x_TBE, state, chosen, has_bias, direction == 1, alive_TB1)
            outputs.append(out)
            finals.append(final)
        x_TBE = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and training and layer < num_layers - 1:
            x_TBE = F.dropout(x_TBE, dropout, True)
    return x_TBE, tuple(torch.stack([final[k] for final in finals]) for k in range(len(initial)))


def _recurrent(name: str) -> Callable[..., Any]:
    step = STEPS[name]

    def padded(
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
        x_TBE = x.transpose(0, 1) if batch_first else x
        out, final = _layers(
            step, x_TBE, state, list(weights), has_bias, num_layers, dropout, training, bidirectional, None
        )
        return (out.transpose(0, 1) if batch_first else out, *final)

    def packed(
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
        x_TBE = data.new_zeros(*alive_TB.shape, data.shape[-1]).masked_scatter(alive_TB.unsqueeze(-1), data)
        out, final = _layers(
            step,
            x_TBE,
            state,
            list(weights),
            has_bias,
            num_layers,
            dropout,
            training,
            bidirectional,
            alive_TB.unsqueeze(-1),
        )
        return (out[alive_TB], *final)

    def call(*args: Any) -> Any:
        return padded(*args) if isinstance(args[3], bool) else packed(*args)

    return call


def _cell(name: str) -> Callable[..., Any]:
    step = STEPS[name]

    def call(
        x: Tensor, state: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Any:
        before = tuple(state) if isinstance(state, list | tuple) else (state,)
        after = step(F.linear(x, w_ih, b_ih), F.linear(before[0], w_hh, b_hh), before)
        return after if name == "lstm" else after[0]

    return call


for _name in STEPS:
    DECOMPOSE[_name] = _recurrent(_name)
    DECOMPOSE[f"{_name}_cell"] = _cell(_name)
