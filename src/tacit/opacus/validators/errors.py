"""What is wrong with a module, in the words of Opacus' error classes?"""

from __future__ import annotations


class UnsupportedError(ValueError):
    """The module cannot be trained privately."""


class UnsupportedModuleError(UnsupportedError):
    """The module cannot be trained privately."""


class UnsupportableModuleError(UnsupportedModuleError):
    """The module can never be trained privately."""


class NotYetSupportedModuleError(UnsupportedModuleError):
    """The module could be trained privately, and is not supported. Nothing here raises it."""


class ShouldReplaceModuleError(UnsupportedModuleError):
    """The module cannot be trained privately and should be replaced."""


class IllegalModuleConfigurationError(UnsupportedModuleError):
    """The module is not set up for private training."""
