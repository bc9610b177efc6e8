"""How do weights that Opacus' layers saved come into torch's? Its recurrent and attention layers name some differently.

Inside a larger model Opacus' recurrent layers write every weight twice, under torch's name and under that of a cell
(``rnn.l0.ih.weight``), and its attention writes query, key and value apart (``attention.qlinear.weight``).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

#: Opacus' names of the three projections, in the order in which torch stacks them
PROJECTIONS = ("q", "k", "v")


def as_torch(module: nn.Module, weights: MutableMapping[str, Any], prefix: str = "", *_: Any) -> None:
    """Rename, in place, what Opacus' layers saved to what ``module`` and its parts are called by torch; may be a hook.

    >>> saved = {"0.l0.ih.weight": torch.ones(4, 2), "1.weight": torch.ones(1, 4)}
    >>> as_torch(nn.Sequential(nn.RNN(2, 4, bias=False), nn.Linear(4, 1)), saved)
    >>> sorted(saved)
    ['0.weight_ih_l0', '1.weight']
    """
    for name, part in module.named_modules(prefix=prefix.removesuffix(".")):
        if isinstance(part, nn.RNNBase):
            _recurrent(part, weights, f"{name}." if name else "")
        elif isinstance(part, nn.MultiheadAttention):
            _attention(part, weights, f"{name}." if name else "")


def unwrapped(module: nn.Module, weights: dict[str, Any]) -> dict[str, Any]:
    """The weights of a checkpoint, without the names of Opacus' wrapper and of the inner parts of its layers."""
    wrapper = "_module."
    own = dict(weights)
    if not hasattr(module, "_module") and all(name.startswith(wrapper) for name in weights):
        own = {name.removeprefix(wrapper): value for name, value in weights.items()}
    as_torch(module, own)
    return own


def _recurrent(layer: nn.RNNBase, weights: MutableMapping[str, Any], prefix: str) -> None:
    for own, _ in layer.named_parameters(recurse=False):
        kind, matrix, cell = own.split("_", 2)
        twin = weights.pop(f"{prefix}{cell}.{matrix}.{kind}", None)
        if twin is not None:
            if torch.equal(weights.setdefault(prefix + own, twin), twin):
                continue
            raise ValueError(f"{prefix}{own} and {prefix}{cell}.{matrix}.{kind} are one weight, and the values differ")


def _attention(layer: nn.MultiheadAttention, weights: MutableMapping[str, Any], prefix: str) -> None:
    matrices = _together(weights, prefix, "weight")
    if matrices is not None and layer.in_proj_weight is not None:
        weights[f"{prefix}in_proj_weight"] = torch.cat(matrices)
    elif matrices is not None:
        for letter, matrix in zip(PROJECTIONS, matrices, strict=True):
            weights[f"{prefix}{letter}_proj_weight"] = matrix
    biases = _together(weights, prefix, "bias")
    if biases is not None:
        weights[f"{prefix}in_proj_bias"] = torch.cat(biases)
    for letter in ("k", "v"):
        bias = weights.pop(f"{prefix}seq_bias_{letter}.bias", None)
        if bias is not None:
            weights[f"{prefix}bias_{letter}"] = bias.reshape(1, 1, -1)


def _together(weights: MutableMapping[str, Any], prefix: str, kind: str) -> list[Tensor] | None:
    """The weights (or biases) of the three projections, taken out; none where one of them is not there."""
    names = [f"{prefix}{letter}linear.{kind}" for letter in PROJECTIONS]
    return [weights.pop(name) for name in names] if all(name in weights for name in names) else None


__all__ = ["as_torch"]
