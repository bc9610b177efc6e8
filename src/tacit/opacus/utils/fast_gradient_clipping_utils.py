"""How is the loss split into examples? The criterion that ``grad_sample_mode="ghost"`` returns."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn


class DPLossFastGradientClipping(nn.Module):
    """The user's criterion, averaged within each example and then over examples.

    So the loss of one example does not depend on how many tokens the others have. What it returns is an ordinary tensor
    with an ordinary ``backward()``.

    >>> import torch
    >>> loss = DPLossFastGradientClipping(nn.CrossEntropyLoss())
    >>> loss(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))
    tensor(0.6931)
    """

    def __init__(self, criterion: Any, loss_reduction: str = "mean") -> None:
        super().__init__()
        self.loss_reduction, self.wrapped = loss_reduction, criterion
        if isinstance(criterion, nn.Module) and hasattr(criterion, "reduction"):
            if criterion.reduction not in ("mean", "sum", "none"):
                raise ValueError(f"reduction {criterion.reduction!r} is not known")
            if criterion.reduction != loss_reduction:
                raise ValueError(
                    f"the criterion has reduction={criterion.reduction!r} and make_private loss_reduction="
                    f"{loss_reduction!r}: they must be the same"
                )
            self.wrapped = copy.copy(criterion)
            self.wrapped.reduction = "none"

    def forward(self, outputs: Tensor, targets: Tensor, *args: Any) -> Tensor:
        """One number for the batch."""
        losses: Tensor = self.wrapped(outputs, targets, *args)
        if losses.dim() == 0:
            return losses
        per_example = losses.flatten(1).mean(1) if losses.dim() > 1 else losses
        total: Tensor = per_example.mean() if self.loss_reduction == "mean" else per_example.sum()
        return total


__all__ = ["DPLossFastGradientClipping"]
