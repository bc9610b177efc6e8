"""Where are the wrappers that compute per-example gradients? There are none here: the model is not wrapped.

The names exist so that ``isinstance(model, GradSampleModule)`` keeps its meaning, "this is a wrapper": always false.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

F = TypeVar("F", bound=Callable[..., Any])


class AbstractGradSampleModule(nn.Module):  # type: ignore[misc]
    """Stands for Opacus' wrapper; cannot be built."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "the model is not wrapped here: pass it to PrivacyEngine.make_private as it is, or use "
            "tacit.sgd.clipped_grad for clipped sums in a loop of your own. Per-example gradients (p.grad_sample) are "
            "never formed"
        )


class GradSampleModule(AbstractGradSampleModule):
    """Stands for Opacus' wrapper; cannot be built."""


class GradSampleModuleFastGradientClipping(GradSampleModule):
    """Stands for Opacus' wrapper; cannot be built."""


def register_grad_sampler(*layers: type[nn.Module]) -> Callable[[F], F]:
    """Opacus' decorator for rules of layers: the rule is left alone, because no layer needs one here."""

    def same(rule: F) -> F:
        return rule

    return same


__all__ = [
    "AbstractGradSampleModule",
    "GradSampleModule",
    "GradSampleModuleFastGradientClipping",
    "register_grad_sampler",
]
