"""How do I train any PyTorch model privately?

:func:`clipped_grad` is the sensitive half of a step: the sum of clipped per-example gradients of an unmodified model.
:class:`Training` is the whole of it: sampler, noise, steps, checkpoints and the guarantee of what ran.
:func:`fit` is that in one call, :class:`Classifier` and :class:`Regressor` are it for tables.
:func:`example_gradients` has the gradient of each single example, for people who learn, debug or do research.
:func:`check` says whether a model can be trained this way, and :func:`fix` replaces what stands in the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacit.accounting.errors import PrivacyWarning as PrivacyWarning
from tacit.sgd.clip import ClippedGradients, clipped_grad
from tacit.sgd.compile.program import NotCompiled
from tacit.sgd.correlation import Banded, BandedInverse
from tacit.sgd.errors import (
    BatchMixing,
    ClippingError,
    GradientsLost,
    PassPerExample,
    ProbeFailed,
    SelfCheckFailed,
    UncoveredUse,
)
from tacit.sgd.fix import fix
from tacit.sgd.gradients.bounds import Clipping
from tacit.sgd.inspect import Check, check
from tacit.sgd.release import AdaptiveClipping
from tacit.sgd.single import ExampleGradients, example_gradients
from tacit.sgd.training.checkpoint import CheckpointError
from tacit.sgd.training.config import (
    Charging,
    Execution,
    GradientClipping,
    Persistence,
    PrivacyTarget,
    Sampling,
)
from tacit.sgd.training.data import records, table
from tacit.sgd.training.fit import Fit, fit
from tacit.sgd.training.optimizers import DPAdam
from tacit.sgd.training.plan import Plan
from tacit.sgd.training.training import Training
from tacit.sgd.training.vitals import Facts, Look, Vitals, read_vitals

if TYPE_CHECKING:
    from tacit.sgd.training.estimators import Classifier, Regressor

__all__ = [
    "AdaptiveClipping",
    "Banded",
    "BandedInverse",
    "BatchMixing",
    "Charging",
    "Check",
    "CheckpointError",
    "Classifier",
    "ClippedGradients",
    "Clipping",
    "ClippingError",
    "DPAdam",
    "ExampleGradients",
    "Execution",
    "Facts",
    "Fit",
    "GradientClipping",
    "GradientsLost",
    "Look",
    "NotCompiled",
    "PassPerExample",
    "Persistence",
    "Plan",
    "PrivacyTarget",
    "ProbeFailed",
    "Regressor",
    "Sampling",
    "SelfCheckFailed",
    "Training",
    "UncoveredUse",
    "Vitals",
    "check",
    "clipped_grad",
    "example_gradients",
    "fit",
    "fix",
    "read_vitals",
    "records",
    "table",
]


def __getattr__(name: str) -> Any:
    """The estimators need scikit-learn, which training itself does not: loaded on first use."""
    if name in ("Classifier", "Regressor"):
        from tacit.sgd.training import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
