"""Where Opacus keeps ``AdaClipDPOptimizer``."""

from tacit.opacus.optimizers.optimizer import AdaClipDPOptimizer

__all__ = ["AdaClipDPOptimizer"]
