"""Can this module be trained privately? Only what is known to be impossible before any data are seen is refused here.

Far fewer layers are than in Opacus: recurrent layers and attention are clipped as they are. What is found when data
run through the model (examples mixed by code) is found by the self-check of the first step.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any, ClassVar

from torch import nn

from tacit.opacus.utils.module_utils import has_trainable_params
from tacit.opacus.validators.errors import (
    IllegalModuleConfigurationError,
    ShouldReplaceModuleError,
    UnsupportableModuleError,
    UnsupportedModuleError,
)
from tacit.sgd import fix
from tacit.sgd.torch_compat import BatchNorm, InstanceNorm

logger = logging.getLogger(__name__)


class ModuleValidator:
    """Opacus' validator.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> ModuleValidator.is_valid(net), ModuleValidator.is_valid(ModuleValidator.fix(net))
    (False, True)
    """

    #: what ``register_module_validator`` and ``register_module_fixer`` were given, by the exact type of a module
    VALIDATORS: ClassVar[dict[type, Callable[..., Any]]] = {}
    FIXERS: ClassVar[dict[type, Callable[..., nn.Module]]] = {}

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[UnsupportedModuleError]:
        """What is wrong with the module, as errors; raised together when ``strict``.

        Validators that were registered add to what is checked here, and take nothing away.
        """
        errors: list[UnsupportedModuleError] = []
        if not module.training:
            errors.append(IllegalModuleConfigurationError("Model needs to be in training mode"))
        for name, part in module.named_modules():
            kind = type(part).__name__
            if isinstance(part, BatchNorm) and (part.training or part.running_mean is None):
                errors.append(
                    ShouldReplaceModuleError(
                        f"{name or kind} ({kind}) normalises with statistics of the whole batch, so no per-example "
                        "bound exists: ModuleValidator.fix(model) replaces it by GroupNorm"
                    )
                )
            if isinstance(part, InstanceNorm) and part.track_running_stats and part.training:
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
            if type(part) in cls.VALIDATORS and has_trainable_params(part):
                errors.extend(cls.VALIDATORS[type(part)](part))
        if strict and errors:
            raise UnsupportedModuleError(errors)
        return errors

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        """Whether nothing is known to be wrong."""
        return not cls.validate(module)

    @classmethod
    def fix(cls, module: nn.Module, **kwargs: Any) -> nn.Module:
        """A copy of the module with batch normalisation replaced by group normalisation.

        ``num_groups`` is how many groups (default: as many as 32 and the channels allow), ``replace_bn_with_in=True``
        asks for instance normalisation instead. Fixers that were registered come first, and get all that is given.
        """
        if not cls.FIXERS and set(kwargs) - {"num_groups", "replace_bn_with_in"}:
            raise TypeError(f"fix has no argument {next(iter(set(kwargs) - {'num_groups', 'replace_bn_with_in'}))!r}")
        groups, instances = kwargs.get("num_groups"), kwargs.get("replace_bn_with_in", False)
        if groups is not None and instances:
            raise ValueError("num_groups belongs to group normalisation: give it without replace_bn_with_in")
        holder = nn.Sequential(copy.deepcopy(module))
        if cls.FIXERS:
            _replace(holder, lambda part: cls._fixed(part, kwargs))
        if groups is not None or instances:
            _replace(holder, lambda part: _normalised(part, groups))
        for name, change in fix(holder).items():
            logger.info("Replaced sub_module %s with %s", name.removeprefix("0."), change.partition(" -> ")[2])
        fixed: nn.Module = holder[0]
        return fixed

    @classmethod
    def _fixed(cls, part: nn.Module, options: dict[str, Any]) -> nn.Module | None:
        if type(part) not in cls.FIXERS or not has_trainable_params(part):
            return None
        return cls.FIXERS[type(part)](part, **options).to(next(part.parameters()).device)

    @classmethod
    def fix_and_validate(cls, module: nn.Module, **kwargs: Any) -> nn.Module:
        """:meth:`fix`, then :meth:`validate` with ``strict``."""
        fixed = cls.fix(module, **kwargs)
        cls.validate(fixed, strict=True)
        return fixed


def _replace(root: nn.Module, choose: Callable[[nn.Module], nn.Module | None]) -> None:
    """Put what ``choose`` gives in the place of every part below ``root``; a part that is used twice stays one."""
    chosen: dict[nn.Module, nn.Module | None] = {}
    for parent in list(root.modules()):
        for name, part in list(parent.named_children()):
            if part not in chosen:
                chosen[part] = choose(part)
            other = chosen[part]
            if other is not None:
                setattr(parent, name, other.train(part.training))


def _normalised(part: nn.Module, groups: int | None) -> nn.Module | None:
    """Batch normalisation as group normalisation with this many groups, or as instance normalisation."""
    if not isinstance(part, BatchNorm):
        return None
    if groups is not None:
        other = nn.GroupNorm(groups, part.num_features, eps=part.eps, affine=part.affine)
        if part.affine:
            other.weight, other.bias = part.weight, part.bias
        return other
    for batch, instance in _INSTANCE.items():
        if isinstance(part, batch):
            return instance(part.num_features, eps=part.eps)
    raise UnsupportableModuleError(f"no instance normalisation takes the place of {type(part).__name__}")


_INSTANCE = {
    nn.BatchNorm1d: nn.InstanceNorm1d,
    nn.BatchNorm2d: nn.InstanceNorm2d,
    nn.BatchNorm3d: nn.InstanceNorm3d,
}

__all__ = ["ModuleValidator"]
