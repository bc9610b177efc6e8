"""Which layers of this model rule out a per-example bound, and what replaces them?"""

from __future__ import annotations

import copy
import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.sgd.torch_compat import BatchNorm, InstanceNorm

GROUPS = 32
#: The fewest numbers that are normalised together: of one, nothing is left, and of few only their order.
FEWEST = 16


class GroupNorm(nn.GroupNorm):
    """Group normalisation with fewer groups where a map is so small that a group would hold next to nothing.

    It then calls the modules that the layer of batch normalisation had inside, such as an activation.

    >>> import torch
    >>> wide, narrow = torch.randn(2, 16, 8, 8), torch.randn(2, 16, 1, 1)
    >>> layer = GroupNorm(16, 16)
    >>> torch.equal(layer(wide), nn.functional.group_norm(wide, 16, layer.weight, layer.bias, layer.eps))
    True
    >>> bool((nn.functional.group_norm(narrow, 16) == 0).all()), bool((layer(narrow) == 0).any())
    (True, False)
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each example; the shape alone decides about the groups."""
        each = math.prod(input.shape[1:]) // self.num_groups
        groups = self.num_groups
        if each < FEWEST:
            groups = next((g for g in range(groups, 0, -1) if groups % g == 0 and each * groups // g >= FEWEST), 1)
            if each * self.num_groups <= 1:
                raise ValueError(
                    "a normalisation that replaced batch normalisation sees a single number of each example, of which "
                    "nothing would be left: remove the layer, or put nn.Identity() in its place"
                )
        found = F.group_norm(input, groups, self.weight, self.bias, self.eps)
        for part in self.children():
            found = part(found)
        return found


class RReLU(nn.RReLU):
    """A randomised leaky ReLU that draws a slope for every number.

    Torch's own has the same law. It draws only where its input is negative, so that which draw an example gets depends
    on how many negative numbers came before it in the batch.

    >>> layer = RReLU(0.1, 0.3)
    >>> found = layer(torch.tensor([2.0, -1.0]))
    >>> bool(found[0] == 2), bool(-0.3 <= found[1] <= -0.1)
    (True, True)
    """

    def forward(self, input: Tensor) -> Tensor:
        """Draw where the layer trains, and take the mean slope elsewhere, as torch does."""
        if not self.training:
            return super().forward(input)
        slope = torch.empty_like(input).uniform_(self.lower, self.upper)
        return torch.where(input >= 0, input, slope * input)


def fix(model: nn.Module) -> dict[str, str]:
    """Replace batch normalisation by group normalisation, and ``RReLU`` by one that draws for each number, in place.

    Instance normalisation keeps no running statistics of the data any more.

    The number of groups is the greatest common divisor of 32 and the number of channels; a layer that sees so small a
    map that a group would hold fewer than 16 numbers (1×1 maps, vectors) uses fewer, because the normalisation of one
    number is a constant. Scale and shift are kept: the same parameters, so an optimizer made before still holds them.
    A layer that derives from batch normalisation and has modules inside, such as an activation, keeps these. One that
    computes something else is left as it is, with a warning.

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
            name = f"{prefix}.{key}" if prefix else key
            if type(child) is nn.RReLU:
                setattr(parent, key, RReLU(child.lower, child.upper).train(child.training))
                changed[name] = "RReLU -> one that draws for each number"
            if isinstance(child, InstanceNorm) and child.track_running_stats:
                child.track_running_stats = False
                child.running_mean = child.running_var = child.num_batches_tracked = None
                changed[name] = f"{type(child).__name__} -> without running statistics"
            if not isinstance(child, BatchNorm):
                continue
            if not only_normalises(child):
                warnings.warn(
                    f"{name!r} ({type(child).__name__}) does something else than batch normalisation followed by the "
                    "modules inside it, so it is left as it is: replace it yourself by a layer that treats each "
                    "example alone",
                    stacklevel=2,
                )
                continue
            channels = child.num_features
            groups = math.gcd(GROUPS, channels)
            group = GroupNorm(groups, channels, eps=child.eps, affine=child.affine)
            if child.affine:
                group.weight, group.bias = child.weight, child.bias
            group.training = child.training
            for inside, part in child.named_children():
                group.add_module(inside, part)
            setattr(parent, key, group)
            changed[name] = f"{type(child).__name__} -> GroupNorm({groups}, {channels})"
    return changed


def only_normalises(layer: BatchNorm) -> bool:
    """Whether a layer computes what batch normalisation does, followed by the modules inside it.

    Args:
        layer: A layer that derives from torch's. Torch's own are not tried.

    Returns:
        What a trial on a copy, in evaluation mode, shows; ``False`` where the trial fails.
    """
    owner = next(kind for kind in type(layer).__mro__ if "forward" in vars(kind))
    if owner.__module__.startswith("torch.nn."):
        return True
    trial = copy.deepcopy(layer).eval()
    held = next(iter([*trial.parameters(), *trial.buffers()]), torch.zeros(()))
    dims = next((d for d in (1, 2, 3) if f"BatchNorm{d}d" in {k.__name__ for k in type(layer).__mro__}), 2)
    dtype = held.dtype if held.is_floating_point() else None
    x = torch.linspace(-2.0, 3.0, 2 * layer.num_features * 3**dims, dtype=dtype, device=held.device)
    x = x.reshape(2, -1, *[3] * dims)
    mean, variance = trial.running_mean, trial.running_var
    with torch.no_grad():
        try:
            wanted = F.batch_norm(x, mean, variance, trial.weight, trial.bias, mean is None, 0.0, trial.eps)
            for part in trial.children():
                wanted = part(wanted)
            found = trial(x)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return False
        return x.is_meta or (found.shape == wanted.shape and bool(torch.allclose(found, wanted, rtol=1e-3, atol=1e-5)))
