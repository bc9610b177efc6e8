"""Where Opacus keeps ``DPPerLayerOptimizer``."""

from tacit.opacus.optimizers.optimizer import DPPerLayerOptimizer

__all__ = ["DPPerLayerOptimizer"]
