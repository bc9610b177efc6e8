"""What is in this module? Small questions that code written for Opacus asks."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn


def has_trainable_params(module: nn.Module) -> bool:
    """Whether the module itself, without its children, has trainable parameters."""
    return any(p.requires_grad for p in module.parameters(recurse=False))


def parametrized_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules with parameters of their own."""
    return ((name, part) for name, part in module.named_modules() if any(True for _ in part.parameters(recurse=False)))


def trainable_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules with trainable parameters of their own."""
    return ((name, part) for name, part in parametrized_modules(module) if has_trainable_params(part))


def trainable_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Trainable parameters by name."""
    return ((name, p) for name, p in module.named_parameters() if p.requires_grad)


def requires_grad(module: nn.Module, *, recurse: bool = False) -> bool:
    """Whether some parameters are trainable."""
    return any(p.requires_grad for p in module.parameters(recurse=recurse))


def clone_module(module: nn.Module) -> nn.Module:
    """A copy on the same device."""
    return copy.deepcopy(module)


def get_submodule(module: nn.Module, target: str) -> nn.Module:
    """The part of this name."""
    found: nn.Module = module.get_submodule(target)
    return found


def are_state_dict_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two state dicts hold the same values.

    >>> are_state_dict_equal({"a": torch.ones(2)}, {"a": torch.ones(2)})
    True
    """
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
