"""How do I train any PyTorch model privately?

:func:`clipped_grad` is the sensitive half of a step: the sum of clipped per-example gradients of an unmodified model.
:func:`check` says whether a model can be trained this way, and :func:`fix` replaces what stands in the way.
"""

from __future__ import annotations

from tacit.sgd.clip import ClippedGradients, Clipping, clipped_grad
from tacit.sgd.errors import BatchMixing, ClippingError, SelfCheckFailed, UncoveredUse
from tacit.sgd.fix import fix
from tacit.sgd.report import Check, check

__all__ = [
    "BatchMixing",
    "Check",
    "ClippedGradients",
    "Clipping",
    "ClippingError",
    "SelfCheckFailed",
    "UncoveredUse",
    "check",
    "clipped_grad",
    "fix",
]
