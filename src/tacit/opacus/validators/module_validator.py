"""Can this module be trained privately? Only what is known to be impossible before any data are seen is refused here.

Far fewer layers are than in Opacus: recurrent layers and attention are clipped as they are. What is found when data
run through the model (examples mixed by code) is found by the self-check of the first step.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from tacit.opacus.validators.errors import (
    IllegalModuleConfigurationError,
    ShouldReplaceModuleError,
    UnsupportedModuleError,
)
from tacit.sgd import fix


class ModuleValidator:
    """Opacus' validator.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> ModuleValidator.is_valid(net), ModuleValidator.is_valid(ModuleValidator.fix(net))
    (False, True)
    """

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[UnsupportedModuleError]:
        """What is wrong with the module, as errors; raised together when ``strict``."""
        errors: list[UnsupportedModuleError] = []
        if not module.training:
            errors.append(IllegalModuleConfigurationError("Model needs to be in training mode"))
        for name, part in module.named_modules():
            kind = type(part).__name__
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and (part.training or part.running_mean is None):
                errors.append(
                    ShouldReplaceModuleError(
                        f"{name or kind} ({kind}) normalises with statistics of the whole batch, so no per-example "
                        "bound exists: ModuleValidator.fix(model) replaces it by GroupNorm"
                    )
                )
            if isinstance(part, nn.modules.instancenorm._InstanceNorm) and part.track_running_stats and part.training:
                errors.append(
                    IllegalModuleConfigurationError(
                        f"{name or kind} ({kind}) keeps running statistics of the data without noise: set "
                        "track_running_stats=False"
                    )
                )
            if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
                errors.append(
                    IllegalModuleConfigurationError(
                        f"{name or kind} ({kind}) rescales the rows that the batch looks up: set max_norm=None"
                    )
                )
        if strict and errors:
            raise UnsupportedModuleError(errors)
        return errors

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        """Whether nothing is known to be wrong."""
        return not cls.validate(module)

    @classmethod
    def fix(cls, module: nn.Module, **kwargs: Any) -> nn.Module:
        """A copy of the module with batch normalisation replaced by group normalisation."""
        if kwargs:
            raise TypeError(f"fix takes no further arguments here, not {', '.join(kwargs)}")
        holder = nn.Sequential(copy.deepcopy(module))
        fix(holder)
        for part in holder.modules():
            if isinstance(part, nn.modules.instancenorm._InstanceNorm) and part.track_running_stats:
                part.track_running_stats = False
                part.running_mean = part.running_var = part.num_batches_tracked = None
        fixed: nn.Module = holder[0]
        return fixed

    @classmethod
    def fix_and_validate(cls, module: nn.Module, **kwargs: Any) -> nn.Module:
        """:meth:`fix`, then :meth:`validate` with ``strict``."""
        fixed = cls.fix(module, **kwargs)
        cls.validate(fixed, strict=True)
        return fixed


__all__ = ["ModuleValidator"]
