"""Where Opacus keeps ``AbstractGradSampleModule``, the wrapper that is not here."""

from __future__ import annotations

from typing import Any

from torch import nn


class AbstractGradSampleModule(nn.Module):
    """Stands for Opacus' wrapper; cannot be built."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "the model is not wrapped here: pass it to PrivacyEngine.make_private as it is, or use "
            "tacit.sgd.clipped_grad for clipped sums in a loop of your own. Per-example gradients (p.grad_sample) are "
            "never formed"
        )


__all__ = ["AbstractGradSampleModule"]
