"""Where are Opacus' helpers? Under the same names: ``batch_memory_manager``, ``uniform_sampler``, …"""

from tacit.opacus.utils import (
    batch_memory_manager,
    fast_gradient_clipping_utils,
    module_utils,
    packed_sequences,
    tensor_utils,
    uniform_sampler,
)

__all__ = [
    "batch_memory_manager",
    "fast_gradient_clipping_utils",
    "module_utils",
    "packed_sequences",
    "tensor_utils",
    "uniform_sampler",
]
