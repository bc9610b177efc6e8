"""What is Opacus' attention here? torch's own, which needs no replacement."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tacit.opacus.layers.saved import as_torch


class SequenceBias(nn.Module):
    """Adds one learned element to the end of every sequence.

    >>> SequenceBias(16)(torch.randn(20, 4, 16)).shape
    torch.Size([21, 4, 16])
    """

    def __init__(self, embed_dim: int, batch_first: bool = False) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.bias = nn.Parameter(torch.randn(embed_dim))

    def forward(self, x: Tensor) -> Tensor:
        """The sequences, longer by one."""
        along = 1 if self.batch_first else 0
        shape = [1 if dim == along else size for dim, size in enumerate(x.shape)]
        return torch.cat([x, self.bias.expand(shape)], dim=along)


class DPMultiheadAttention(nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention``, which also reads the weights that Opacus' layer of this name saved.

    >>> x = torch.randn(5, 2, 8)
    >>> DPMultiheadAttention(8, 2)(x, x, x)[0].shape
    torch.Size([5, 2, 8])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_load_state_dict_pre_hook(as_torch)  # type: ignore[no-untyped-call]  # torch's has no types


__all__ = ["DPMultiheadAttention", "SequenceBias"]
