"""Which layers need a private replacement? None: tacit clips torch's own recurrent and attention layers.

The names of Opacus' replacements are kept for code that uses them; ``state_dict`` keys are those of torch.
"""

from __future__ import annotations

from torch import nn


class DPRNN(nn.RNN):  # type: ignore[misc]
    """``torch.nn.RNN``."""


class DPGRU(nn.GRU):  # type: ignore[misc]
    """``torch.nn.GRU``."""


class DPLSTM(nn.LSTM):  # type: ignore[misc]
    """``torch.nn.LSTM``."""


class DPMultiheadAttention(nn.MultiheadAttention):  # type: ignore[misc]
    """``torch.nn.MultiheadAttention``."""


__all__ = ["DPGRU", "DPLSTM", "DPRNN", "DPMultiheadAttention"]
