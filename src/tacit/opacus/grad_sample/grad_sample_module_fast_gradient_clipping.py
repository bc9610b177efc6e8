"""Where Opacus keeps ``GradSampleModuleFastGradientClipping``, the wrapper that is not here."""

from tacit.opacus.grad_sample.grad_sample_module import GradSampleModuleFastGradientClipping

__all__ = ["GradSampleModuleFastGradientClipping"]
