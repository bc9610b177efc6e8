"""Which parameters does an optimizer train?"""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer


def params(optimizer: Optimizer) -> list[nn.Parameter]:
    """The trainable parameters of all groups.

    >>> import torch
    >>> len(params(torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)))
    2
    """
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


__all__ = ["params"]
