"""Which optimizer does ``make_private`` return? The user's own, with Opacus' attributes."""

from tacit.opacus.optimizers.optimizer import AdaClipDPOptimizer, DPOptimizer, DPPerLayerOptimizer

__all__ = ["AdaClipDPOptimizer", "DPOptimizer", "DPPerLayerOptimizer"]
