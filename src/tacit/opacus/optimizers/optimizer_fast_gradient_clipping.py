"""Where Opacus keeps ``DPOptimizerFastGradientClipping``."""

from tacit.opacus.optimizers.optimizer import DPOptimizerFastGradientClipping

__all__ = ["DPOptimizerFastGradientClipping"]
