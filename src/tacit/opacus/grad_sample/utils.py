"""Which rule computes the gradients of a layer of my own? None is needed: operations are watched, not layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def register_grad_sampler(*layers: Any) -> Callable[[F], F]:
    """Opacus' decorator for rules of layers: the rule is left alone, because no layer needs one here."""

    def same(rule: F) -> F:
        return rule

    return same


def register_norm_sampler(*layers: Any) -> Callable[[F], F]:
    """The same for rules of norms."""
    return register_grad_sampler(*layers)


__all__ = ["register_grad_sampler", "register_norm_sampler"]
