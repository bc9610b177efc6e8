"""Where Opacus keeps ``AbstractGradSampleModule``, which private training does without."""

from __future__ import annotations

from typing import Any

from torch import nn


class AbstractGradSampleModule(nn.Module):
    """What Opacus' wrappers have in common; private training needs none. It cannot be built.

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
            "formed on request only, and are not private: GradSampleModule(model, keep_grad_sample=True), or "
            "tacit.sgd.example_gradients"
        )


__all__ = ["AbstractGradSampleModule"]
