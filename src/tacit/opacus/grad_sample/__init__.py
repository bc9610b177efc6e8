"""Where are the wrappers that compute per-example gradients? Private training has none: the model is not wrapped.

``GradSampleModule(model, keep_grad_sample=True)`` forms them on request, for people who learn, debug or do research.
What ``make_private`` returns is the model itself, so ``isinstance(model, GradSampleModule)`` is false of it.
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
