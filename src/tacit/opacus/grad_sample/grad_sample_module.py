"""Where Opacus keeps ``GradSampleModule``, the wrapper that is not here."""

from tacit.opacus.grad_sample.gsm_base import AbstractGradSampleModule


class GradSampleModule(AbstractGradSampleModule):
    """Stand in for Opacus' wrapper, so that ``isinstance`` checks still work. It cannot be built.

    Args:
        *args: Not used.
        **kwargs: Not used.

    Raises:
        NotImplementedError: Always. Pass the model itself to ``PrivacyEngine.make_private``.

    Example:
        >>> from torch import nn
        >>> isinstance(nn.Linear(3, 2), GradSampleModule)
        False
    """


class GradSampleModuleFastGradientClipping(GradSampleModule):
    """Stand in for Opacus' wrapper of the ghost modes. It cannot be built.

    Args:
        *args: Not used.
        **kwargs: Not used.

    Raises:
        NotImplementedError: Always. Pass the model itself to ``PrivacyEngine.make_private``.

    Example:
        >>> from torch import nn
        >>> isinstance(nn.Linear(3, 2), GradSampleModuleFastGradientClipping)
        False
    """


__all__ = ["GradSampleModule", "GradSampleModuleFastGradientClipping"]
