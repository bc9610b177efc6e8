"""Where Opacus keeps ``AbstractGradSampleModule``, the wrapper that is not here."""

from __future__ import annotations

from typing import Any

from torch import nn


class AbstractGradSampleModule(nn.Module):
    """Stand in for Opacus' wrapper, which tacit does not have.

    Args:
        *args: Not used.
        **kwargs: Not used.

    Raises:
        NotImplementedError: Always. The message says what to call instead.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "tacit does not wrap the model: pass it to PrivacyEngine.make_private as it is, or call "
            "tacit.sgd.clipped_grad for clipped sums in a loop of your own. Per-example gradients (p.grad_sample) are "
            "never formed"
        )


__all__ = ["AbstractGradSampleModule"]
