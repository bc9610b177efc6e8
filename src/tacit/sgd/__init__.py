"""How do I train any PyTorch model privately?

:func:`clipped_grad` is the sensitive half of a step: the sum of clipped per-example gradients of an unmodified model.
:class:`Training` is the whole of it: sampler, noise, steps, checkpoints and the guarantee of what ran.
:func:`check` says whether a model can be trained this way, and :func:`fix` replaces what stands in the way.
"""

from __future__ import annotations

from tacit.sgd.checkpoint import CheckpointError
from tacit.sgd.clip import ClippedGradients, Clipping, clipped_grad
from tacit.sgd.data import table
from tacit.sgd.errors import BatchMixing, ClippingError, SelfCheckFailed, UncoveredUse
from tacit.sgd.fix import fix
from tacit.sgd.plan import AdaptiveClipping, Plan, Privacy, PrivacyWarning
from tacit.sgd.report import Check, check
from tacit.sgd.training import Training

__all__ = [
    "AdaptiveClipping",
    "BatchMixing",
    "Check",
    "CheckpointError",
    "ClippedGradients",
    "Clipping",
    "ClippingError",
    "Plan",
    "Privacy",
    "PrivacyWarning",
    "SelfCheckFailed",
    "Training",
    "UncoveredUse",
    "check",
    "clipped_grad",
    "fix",
    "table",
]
