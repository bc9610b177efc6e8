"""How does a picture look when it is still the same thing? Random changes of images, and of plain vectors, in batches.

Everything is a function of a batch of tensors (images: N x channels x height x width), runs on the device that the
batch is on, and draws from torch's own generator: augmentation decides accuracy, never privacy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def affine(x: Tensor, *, degrees: float = 15.0, shift: float = 0.1, scale: float = 0.12, shear: float = 0.15) -> Tensor:
    """Rotate, move (as a share of the size), scale and shear every image by its own random amounts.

    >>> affine(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 1, 8, 8])
    """
    return functional.grid_sample(x, _affine_grid(x, degrees, shift, scale, shear), align_corners=False)


def elastic(x: Tensor, *, strength: float = 0.12, cells: int = 5, **rest: float) -> Tensor:
    """An affine change, and on top a smooth random field of small moves: how handwriting differs."""
    usual = {"degrees": 12.0, "shift": 0.08, "scale": 0.12, "shear": 0.15} | rest
    grid = _affine_grid(x, usual["degrees"], usual["shift"], usual["scale"], usual["shear"])
    field = torch.randn(len(x), 2, cells, cells, device=x.device, dtype=x.dtype) * (strength / 2)
    smooth = functional.interpolate(field, size=x.shape[-2:], mode="bicubic", align_corners=True)
    return functional.grid_sample(x, grid + smooth.permute(0, 2, 3, 1), align_corners=False)


def cutout(x: Tensor, share: float = 0.35) -> Tensor:
    """Blank a random square of up to ``share`` of the width in every image."""
    count, _, height, width = x.shape
    side = torch.rand(count, 1, device=x.device) * share
    across, down = (torch.rand(count, 1, device=x.device) for _ in range(2))
    columns = (torch.arange(width, device=x.device)[None] / width - across).abs() < side / 2
    rows = (torch.arange(height, device=x.device)[None] / height - down).abs() < side / 2
    return x * ~(rows[:, None, :, None] & columns[:, None, None, :])


def _affine_grid(x: Tensor, degrees: float, shift: float, scale: float, shear: float) -> Tensor:
    count = len(x)

    def uniform(limit: float) -> Tensor:
        return (torch.rand(count, device=x.device, dtype=x.dtype) * 2 - 1) * limit

    angle = uniform(math.radians(degrees))
    size_x, size_y, lean = 1 + uniform(scale), 1 + uniform(scale), uniform(shear)
    cos, sin = torch.cos(angle), torch.sin(angle)
    row1 = torch.stack([size_x * cos, size_y * (lean * cos - sin), uniform(2 * shift)], dim=1)
    row2 = torch.stack([size_x * sin, size_y * (lean * sin + cos), uniform(2 * shift)], dim=1)
    return functional.affine_grid(torch.stack([row1, row2], dim=1), list(x.shape), align_corners=False)


def weak(x: Tensor) -> Tensor:
    """What a student sees when it labels: an image moved a little, a vector with a little noise."""
    if x.ndim == 4:
        return affine(x, degrees=5.0, shift=0.06, scale=0.04, shear=0.0)
    return x + 0.05 * torch.randn_like(x) if x.is_floating_point() else x


def strong(x: Tensor) -> Tensor:
    """What a student learns from: an image bent and partly hidden, a vector with noise and missing entries."""
    if x.ndim == 4:
        return cutout(elastic(x, degrees=15.0), share=0.25)
    if not x.is_floating_point():
        return x
    return (x + 0.1 * torch.randn_like(x)) * (torch.rand_like(x) > 0.05)
