"""Which layers of this model rule out a per-example bound, and what replaces them?"""

from __future__ import annotations

import math

from torch import nn

from tacit.sgd.torch_compat import BatchNorm

GROUPS = 32


def fix(model: nn.Module) -> dict[str, str]:
    """Replace batch normalisation by group normalisation, in place.

    The number of groups is the greatest common divisor of 32 and the number of channels. Scale and shift are kept: the
    same parameters, so an optimizer made before still holds them.

    Args:
        model: The model to change. It must not itself be a batch normalisation layer.

    Returns:
        What was replaced by what, by the name of the layer. Empty if there was nothing to replace.

    Raises:
        TypeError: If the model itself is a batch normalisation layer, which cannot be replaced in place.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> fix(net)
        {'1': 'BatchNorm2d -> GroupNorm(8, 8)'}
    """
    if isinstance(model, BatchNorm):
        raise TypeError("the model itself is a batch normalisation layer, which has no parent to replace it in")
    changed: dict[str, str] = {}
    for prefix, parent in list(model.named_modules()):
        for key, child in list(parent.named_children()):
            if not isinstance(child, BatchNorm):
                continue
            channels = child.num_features
            groups = math.gcd(GROUPS, channels)
            group = nn.GroupNorm(groups, channels, eps=child.eps, affine=child.affine)
            if child.affine:
                group.weight, group.bias = child.weight, child.bias
            group.train(child.training)
            setattr(parent, key, group)
            name = f"{prefix}.{key}" if prefix else key
            changed[name] = f"{type(child).__name__} -> GroupNorm({groups}, {channels})"
    return changed
