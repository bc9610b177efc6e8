"""What are Opacus' recurrent layers here? torch's own ones, which need no replacement, and cells for loops over time.

``DPRNN``, ``DPGRU`` and ``DPLSTM`` take arguments in Opacus' order and list their parameters in it, so that the state
of an optimizer and the bounds of ``clipping="per_layer"`` fit. Dropout is torch's: between layers, not within one.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tacit.opacus.layers.saved import as_torch
from tacit.sgd.torch_compat import own_parameters, weight_names


class RNNLinear(nn.Linear):
    """``torch.nn.Linear``: several uses of a weight are clipped as one."""


class DPRNNCellBase(nn.Module):
    """One step of a recurrent layer: what comes in goes through ``ih``, what is remembered through ``hh``."""

    has_cell_state: ClassVar[bool] = False

    def __init__(self, input_size: int, hidden_size: int, bias: bool, num_chunks: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self.ih = RNNLinear(input_size, num_chunks * hidden_size, bias)
        self.hh = RNNLinear(hidden_size, num_chunks * hidden_size, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch's cells begin: uniform within 1 / √hidden_size."""
        width = 1 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            nn.init.uniform_(weight, -width, width)

    def remembered(self, input: Tensor, state: Tensor | None, rows: int | None) -> Tensor:
        """The state before this step, zero at the beginning; the first ``rows`` where sequences have ended."""
        if state is None:
            return input.new_zeros(len(input), self.hidden_size)
        return state if rows is None else state[:rows]


class DPRNNCell(DPRNNCellBase):
    """The step of ``torch.nn.RNNCell``.

    >>> DPRNNCell(3, 5, True)(torch.randn(2, 3)).shape
    torch.Size([2, 5])
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool, nonlinearity: str = "tanh") -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=1)
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity is 'tanh' or 'relu', not {nonlinearity!r}")
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None, batch_size_t: int | None = None) -> Tensor:
        """The next hidden state."""
        total = self.ih(input) + self.hh(self.remembered(input, hx, batch_size_t))
        return torch.tanh(total) if self.nonlinearity == "tanh" else torch.relu(total)


class DPGRUCell(DPRNNCellBase):
    """The step of ``torch.nn.GRUCell``."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=3)

    def forward(self, input: Tensor, hx: Tensor | None = None, batch_size_t: int | None = None) -> Tensor:
        """The next hidden state."""
        before = self.remembered(input, hx, batch_size_t)
        came, kept = self.ih(input).chunk(3, dim=-1), self.hh(before).chunk(3, dim=-1)
        reset, update = torch.sigmoid(came[0] + kept[0]), torch.sigmoid(came[1] + kept[1])
        fresh = torch.tanh(came[2] + reset * kept[2])
        return torch.lerp(fresh, before, update)


class DPLSTMCell(DPRNNCellBase):
    """The step of ``torch.nn.LSTMCell``."""

    has_cell_state = True

    def __init__(self, input_size: int, hidden_size: int, bias: bool) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=4)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None, batch_size_t: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The next hidden state and the next cell state."""
        hidden, cell = (self.remembered(input, part, batch_size_t) for part in hx or (None, None))
        enter, forget, fresh, leave = (self.ih(input) + self.hh(hidden)).chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(fresh)
        return torch.sigmoid(leave) * torch.tanh(cell), cell


class DPRNNBase(nn.RNNBase):
    """What the three layers share; there is no layer made of cells of one's own."""

    has_cell_state: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if type(self) is DPRNNBase:
            raise NotImplementedError(
                "DPRNNBase is not built from a cell: call the cell in a loop over time. Any code is clipped, "
                "because operations are watched and not layers"
            )
        super().__init__(*args, **kwargs)
        weights = own_parameters(self)
        for names in weight_names(self):
            for name in sorted(names, key=_place):
                weights[name] = weights.pop(name)
        self.register_load_state_dict_pre_hook(as_torch)  # type: ignore[no-untyped-call]  # torch's has no types

    @property
    def num_directions(self) -> int:
        """2 for a layer that reads both ways."""
        return 2 if self.bidirectional else 1

    def forward(self, input: Any, state_init: Any = None, *, hx: Any = None) -> Any:
        """Outputs and last state, as torch's layer gives them; ``state_init`` (torch: ``hx``) is the first state."""
        return super().forward(input, hx if state_init is None else state_init)


class DPRNN(DPRNNBase, nn.RNN):  # type: ignore[misc]
    """``torch.nn.RNN``, with its arguments in Opacus' order.

    >>> output, state = DPRNN(3, 5, 1, True, True)(torch.randn(2, 7, 3))
    >>> output.shape, state.shape
    (torch.Size([2, 7, 5]), torch.Size([1, 2, 5]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0,
        bidirectional: bool = False,
        proj_size: int = 0,
        nonlinearity: str = "tanh",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, dropout, bidirectional, **kwargs
        )
        if proj_size:
            raise ValueError("proj_size belongs to an LSTM")


class DPGRU(DPRNNBase, nn.GRU):  # type: ignore[misc]
    """``torch.nn.GRU``."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0,
        bidirectional: bool = False,
        proj_size: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **kwargs)
        if proj_size:
            raise ValueError("proj_size belongs to an LSTM")


class DPLSTM(DPRNNBase, nn.LSTM):  # type: ignore[misc]
    """``torch.nn.LSTM``."""

    has_cell_state = True


def _place(name: str) -> tuple[int, bool]:
    """Where Opacus lists a weight: input, then hidden state, each with its bias."""
    kind, matrix, _ = name.split("_", 2)
    return ("ih", "hh", "hr").index(matrix), kind == "bias"


__all__ = [
    "DPGRU",
    "DPLSTM",
    "DPRNN",
    "DPGRUCell",
    "DPLSTMCell",
    "DPRNNBase",
    "DPRNNCell",
    "DPRNNCellBase",
    "RNNLinear",
]
