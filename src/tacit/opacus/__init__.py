"""What do I change in code written for Opacus? One import: ``from tacit.opacus import PrivacyEngine``.

Names and paths are those of Opacus 1.6 (``tacit.opacus.utils.batch_memory_manager`` and so on). Clipping, noise and
accounting are tacit's, and the model is not wrapped. docs/howto/coming-from-opacus.md says what differs and why.
"""

from tacit.opacus import (
    accountants,
    data_loader,
    grad_sample,
    layers,
    optimizers,
    schedulers,
    utils,
    validators,
)
from tacit.opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from tacit.opacus.privacy_engine import PrivacyEngine
from tacit.opacus.version import __version__

__all__ = [
    "GradSampleModule",
    "GradSampleModuleFastGradientClipping",
    "PrivacyEngine",
    "__version__",
    "accountants",
    "data_loader",
    "grad_sample",
    "layers",
    "optimizers",
    "schedulers",
    "utils",
    "validators",
]
