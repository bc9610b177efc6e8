"""How long is each sequence of a packed batch?"""

from __future__ import annotations

from torch import Tensor


def compute_seq_lengths(batch_sizes: Tensor) -> list[int]:
    """Lengths, longest first, of sequences of which ``batch_sizes[t]`` go beyond step t.

    >>> import torch
    >>> compute_seq_lengths(torch.tensor([3, 3, 1]))
    [3, 2, 2]
    """
    lengths: list[int] = [int((batch_sizes > k).sum()) for k in range(int(batch_sizes[0]))]
    return lengths


__all__ = ["compute_seq_lengths"]
