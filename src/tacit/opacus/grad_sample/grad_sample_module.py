"""Where Opacus keeps ``GradSampleModule``, the wrapper that is not here."""

from tacit.opacus.grad_sample.gsm_base import AbstractGradSampleModule


class GradSampleModule(AbstractGradSampleModule):
    """Stands for Opacus' wrapper; cannot be built."""


class GradSampleModuleFastGradientClipping(GradSampleModule):
    """Stands for Opacus' wrapper; cannot be built."""


__all__ = ["GradSampleModule", "GradSampleModuleFastGradientClipping"]
