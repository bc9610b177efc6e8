"""How do I register a validator or a fixer of my own? With Opacus' decorators.

They add to :class:`ModuleValidator`. That a model has a per-example bound is found by what it does on the first step,
whatever they say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tacit.opacus.validators.module_validator import ModuleValidator

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_MODULE_VALIDATOR = ModuleValidator


def register_module_validator(
    target_class_or_classes: type | Sequence[type], validator_class: type[ModuleValidator] = ModuleValidator
) -> Callable[[F], F]:
    """The decorated function gets a module of this type and returns a list of errors."""
    return _registered(target_class_or_classes, validator_class.VALIDATORS)


def register_module_fixer(
    target_class_or_classes: type | Sequence[type], validator_class: type[ModuleValidator] = ModuleValidator
) -> Callable[[F], F]:
    """The decorated function gets a module of this type, and what ``fix`` was given, and returns its replacement.

    >>> from torch import nn
    >>> class Own(ModuleValidator):
    ...     VALIDATORS, FIXERS = {}, {}
    >>> @register_module_fixer(nn.BatchNorm2d, Own)
    ... def fix(module, **kwargs):
    ...     return nn.Identity()
    >>> Own.fix(nn.Sequential(nn.BatchNorm2d(8)))
    Sequential(
      (0): Identity()
    )
    """
    return _registered(target_class_or_classes, validator_class.FIXERS)


def _registered(targets: type | Sequence[type], table: dict[type, Any]) -> Callable[[F], F]:
    def same(rule: F) -> F:
        table.update(dict.fromkeys([targets] if isinstance(targets, type) else targets, rule))
        return rule

    return same


__all__ = ["DEFAULT_MODULE_VALIDATOR", "register_module_fixer", "register_module_validator"]
