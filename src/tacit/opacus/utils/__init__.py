"""Where are Opacus' helpers? Under the same names: ``batch_memory_manager``, ``uniform_sampler``, ``module_utils``."""

from tacit.opacus.utils import batch_memory_manager, fast_gradient_clipping_utils, module_utils, uniform_sampler

__all__ = ["batch_memory_manager", "fast_gradient_clipping_utils", "module_utils", "uniform_sampler"]
