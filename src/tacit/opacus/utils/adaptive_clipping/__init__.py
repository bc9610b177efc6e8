"""Where Opacus keeps the engine whose clip norm adapts."""

from tacit.opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping

__all__ = ["PrivacyEngineAdaptiveClipping"]
