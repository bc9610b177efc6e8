"""Where Opacus keeps ``DistributedDPOptimizer``."""

from tacit.opacus.optimizers.optimizer import DistributedDPOptimizer

__all__ = ["DistributedDPOptimizer"]
