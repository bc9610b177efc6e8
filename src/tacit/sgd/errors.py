"""What can go wrong between a model and the bound on each example's gradient, and what it is called."""

from __future__ import annotations

from collections.abc import Iterable

#: What is left for a model that treats examples apart and is refused all the same.
SLOWLY = "Use method='examples' (of tacit.sgd.Training and clipped_grad), a backward pass for each example"


class ClippingError(RuntimeError):
    """Per-example clipping cannot be done, or cannot be trusted, for this model: training must stop."""


class UncoveredUse(ClippingError):
    """A parameter is consumed by an operation whose per-example gradient cannot be established.

    ``parameters`` names those whose gradient a pass of each example by itself would give.
    """

    def __init__(self, message: str, parameters: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.parameters = tuple(parameters)


class BatchMixing(ClippingError):
    """The loss of one example depends on the data of another, so no per-example bound exists."""


class SelfCheckFailed(ClippingError):
    """The captured gradients differ from autograd's own."""


class ProbeFailed(ClippingError):
    """At a step chosen at random, an example had another loss or gradient norm in its batch than by itself."""


class PassPerExample(UserWarning):
    """The gradients of some parameters cannot be seen in a pass over the batch: each example has a pass of its own."""


class GradientsLost(UserWarning):
    """Training learns little or nothing from some examples, whose gradients rounding hides or which are not finite."""
