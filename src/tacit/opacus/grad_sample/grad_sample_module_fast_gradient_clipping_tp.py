"""Where Opacus keeps ``GradSampleModuleFastGradientClippingTP``, which cannot be built here."""

from __future__ import annotations

from typing import Any

from tacit.opacus.utils.fsdp_utils import SPREAD


class GradSampleModuleFastGradientClippingTP:
    """Stand in for Opacus' wrapper of a model that is spread over ranks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(SPREAD)


__all__ = ["GradSampleModuleFastGradientClippingTP"]
