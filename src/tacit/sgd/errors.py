"""What can go wrong between a model and the bound on each example's gradient, and what it is called."""

from __future__ import annotations

#: What is left for a model that treats examples apart and is refused all the same.
SLOWLY = "Use method='examples' (of tacit.sgd.Training and clipped_grad), a backward pass for each example"


class ClippingError(RuntimeError):
    """Per-example clipping cannot be done, or cannot be trusted, for this model: training must stop."""


class UncoveredUse(ClippingError):
    """A parameter is consumed by an operation whose per-example gradient cannot be established."""


class BatchMixing(ClippingError):
    """The loss of one example depends on the data of another, so no per-example bound exists."""


class SelfCheckFailed(ClippingError):
    """The captured gradients differ from autograd's own."""


class GradientsLost(UserWarning):
    """Training learns little or nothing from some examples, whose gradients rounding hides or which are not finite."""
