"""What do I change in code written for Opacus? One import: ``from tacit.opacus import PrivacyEngine``.

The names and the paths are those of Opacus 1.6 (``tacit.opacus.utils.batch_memory_manager``, …), the engine, the noise
and the accounting are tacit's, and the model stays the user's own object. docs/howto/coming-from-opacus.md lists what is
different and why.
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
