"""Where are Opacus' helpers? Under the same names: ``batch_memory_manager``, ``uniform_sampler``, ``module_utils``."""
