"""Where are the wrappers that compute per-example gradients? There are none: tacit does not wrap the model.

The names exist so that ``isinstance(model, GradSampleModule)`` still works. It is always false.
"""

from tacit.opacus.grad_sample.grad_sample_module import GradSampleModule, GradSampleModuleFastGradientClipping
from tacit.opacus.grad_sample.gsm_base import AbstractGradSampleModule
from tacit.opacus.grad_sample.utils import register_grad_sampler, register_norm_sampler

__all__ = [
    "AbstractGradSampleModule",
    "GradSampleModule",
    "GradSampleModuleFastGradientClipping",
    "register_grad_sampler",
    "register_norm_sampler",
]
