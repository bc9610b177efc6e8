"""Which pictures can be had without anybody's? Random processes: pen strokes, leaves, patterns, growths.

Each function draws pictures from random numbers alone, so that what is learned from them costs no privacy and rests on
no public data (Baradad et al. 2021, "Learning to see by looking at noise"; for private training Tang et al. 2023).
Pictures lie in [-1, 1].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def _between(low: float, high: float, *shape: int, device: str = "cpu") -> Tensor:
    return low + (high - low) * torch.rand(*shape, device=device)


def _grid(size: int, device: str) -> Tensor:
    """The centres of the pixels as (size, size, 2) points (x, y) in [-1, 1]."""
    line = (torch.arange(size, device=device) + 0.5) * 2 / size - 1
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)


def _turned(points: Tensor, angle: Tensor, shear: Tensor, stretch: Tensor) -> Tensor:
    """Points (N, ..., 2) turned by angle (N), sheared and stretched."""
    cos, sin = angle.cos(), angle.sin()
    rows = torch.stack([torch.stack([cos, -sin + shear], -1), torch.stack([sin, cos], -1) * stretch[:, None]], 1)
    return torch.einsum("n...j,nij->n...i", points, rows)


def glyphs(count: int, views: int = 2, size: int = 28, device: str = "cpu", strokes: int = 4) -> Tensor:
    """Random signs of up to ``strokes`` curves, each written ``views`` times: ``(count · views, 1, size, size)``.

    >>> glyphs(3, views=2).shape
    torch.Size([6, 1, 28, 28])
    """
    control = _between(-1, 1, count, strokes, 4, 2, device=device)
    for s in range(1, strokes):  # a stroke begins where the last one ended, or somewhere on it, or anew
        where = torch.randint(0, 6, (count,), device=device)
        joined = control[:, s - 1].gather(1, where.clamp(max=3)[:, None, None].expand(-1, 1, 2))[:, 0]
        control[:, s, 0] = torch.where(where[:, None] < 4, joined, control[:, s, 0])
    straight = torch.rand(count, strokes, device=device) < 0.35
    line = control[:, :, :1] + torch.linspace(0, 1, 4, device=device)[:, None] * (control[:, :, 3:] - control[:, :, :1])
    control = torch.where(straight[..., None, None], line, control)
    drawn = torch.arange(strokes, device=device) < torch.randint(1, strokes + 1, (count, 1), device=device)

    total = count * views
    control, drawn = control.repeat_interleave(views, 0), drawn.repeat_interleave(views, 0)
    control = control + _between(0.04, 0.16, total, 1, 1, 1, device=device) * torch.randn_like(control)
    t = torch.linspace(0, 1, 24, device=device)
    weights = torch.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], -1)
    curve = torch.einsum("pk,nskd->nspd", weights, control)
    angle, shear = _between(-0.25, 0.25, total, device=device), _between(-0.35, 0.35, total, device=device)
    curve = _turned(curve, angle, shear, _between(0.75, 1.3, total, device=device))
    # Into a box, as scanned signs are: 20 of 28 pixels.
    hidden = ~drawn[..., None, None]
    low = curve.masked_fill(hidden, 9.0).flatten(1, 2).amin(1)
    high = curve.masked_fill(hidden, -9.0).flatten(1, 2).amax(1)
    scale = _between(0.6, 0.75, total, 1, device=device) / ((high - low) / 2).amax(1, keepdim=True).clamp(min=0.2)
    middle = (low + high) / 2 + _between(-0.12, 0.12, total, 2, device=device) / scale
    curve = ((curve - middle[:, None, None]) * scale[:, None, None]).masked_fill(hidden, 9.0).flatten(1, 2)
    distance = torch.cdist(_grid(size, device).reshape(1, -1, 2), curve).amin(-1)
    width = _between(0.6, 1.9, total, 1, device=device) * 2 / size
    ink = torch.sigmoid((width - distance) * size * _between(1.0, 2.5, total, 1, device=device))
    return (2 * ink - 1).view(total, 1, size, size)


# -- colour ----------------------------------------------------------------------------------------------------------


def _colours(count: int, *shape: int, device: str = "cpu") -> Tensor:
    """Colours (count, *shape, 3) as in a scene: brightness varies most, and each scene has a cast of its own."""
    room = (1,) * len(shape)
    base = 0.5 + 0.28 * torch.randn(count, *shape, 1, device=device)
    cast = 0.1 * torch.randn(count, *room, 3, device=device)
    vivid = _between(0.02, 0.18, count, *room, 1, device=device)
    return (base + cast + vivid * torch.randn(count, *shape, 3, device=device)).clamp(-0.2, 1.2)


def _noise(count: int, size: int, device: str, slope: Tensor) -> Tensor:
    """Noise (count, 1, size, size) whose amplitude falls with frequency to the power ``slope`` (count)."""
    across, along = torch.fft.fftfreq(size, device=device)[:, None], torch.fft.rfftfreq(size, device=device)[None]
    frequency = (across**2 + along**2).sqrt().clamp(min=1 / size)
    wave = torch.fft.rfft2(torch.randn(count, size, size, device=device))
    field: Tensor = torch.fft.irfft2(wave * frequency ** (-slope[:, None, None]), s=(size, size))
    return (field / field.std((1, 2), keepdim=True)).unsqueeze(1)


def leaves(count: int, size: int = 48, device: str = "cpu", layers: int = 24) -> Tensor:
    """Dead leaves: textured shapes of all sizes that hide each other (Lee, Mumford & Huang 2001).

    >>> leaves(2, size=32, layers=3).shape
    torch.Size([2, 3, 32, 32])
    """
    grid = _grid(size, device)
    x, y = grid[..., 0][None], grid[..., 1][None]
    palette = _colours(count, layers + 1, 2, device=device)
    fields = torch.cat([_noise(count, size, device, _between(0.3, 1.8, count, device=device)) for _ in range(3)], 1)
    tilt = fields[:, :1] * 0.3
    picture = palette[:, 0, 0, :, None, None] + tilt * (palette[:, 0, 1] - palette[:, 0, 0])[:, :, None, None]
    least = _between(0.05, 0.3, count, device=device)
    for k in range(1, layers + 1):
        # Sizes by a power law between ``least`` and the whole picture.
        radius = least * (1 / (1 - 0.97 * torch.rand(count, device=device))).sqrt().clamp(max=8)
        cx, cy, a = (_between(-1.1, 1.1, count, 1, 1, device=device) for _ in range(3))
        a = a * math.pi
        u, v = (x - cx) * a.cos() + (y - cy) * a.sin(), (y - cy) * a.cos() - (x - cx) * a.sin()
        u, v = u / radius[:, None, None], v / (radius[:, None, None] * _between(0.25, 1.0, count, 1, 1, device=device))
        theta = torch.atan2(v, u)
        lobes = torch.randint(2, 7, (count, 1, 1), device=device)
        wobble = _between(0, 0.35, count, 1, 1, device=device) * (lobes * theta + cx * 9).sin()
        p = _between(1.0, 5.0, count, 1, 1, device=device)
        edge = 1 + wobble - (u.abs() ** p + v.abs() ** p) ** (1 / p)
        inside = torch.sigmoid(edge * radius[:, None, None] * size * 0.7).unsqueeze(1)
        pace = _between(1, 14, count, 1, 1, device=device) / radius[:, None, None].clamp(min=0.2)
        wave = torch.sin(pace * u + cy * 7).unsqueeze(1)
        kind = torch.randint(0, 4, (count, 1, 1, 1), device=device)
        field = fields[:, k % 3, None]
        texture = torch.where(
            kind == 0, wave, torch.where(kind == 1, field, torch.where(kind == 2, v[:, None], 0 * v[:, None]))
        )
        first, second = palette[:, k, 0, :, None, None], palette[:, k, 1, :, None, None]
        fill = first + (second - first) * 0.5 * texture
        picture = picture + inside * (fill - picture)
    shadow = _noise(count, size, device, torch.full((count,), 2.0, device=device))
    light = 1 + _between(0, 0.4, count, 1, 1, 1, device=device) * shadow
    return 2 * (picture * light).clamp(0, 1) - 1


def patterns(count: int, size: int = 48, device: str = "cpu", width: int = 24) -> Tensor:
    """Random networks from a point of the plane to its colour (Stanley 2007), a network for each picture.

    >>> patterns(2, size=32).shape
    torch.Size([2, 3, 32, 32])
    """
    grid = _grid(size, device).reshape(1, -1, 2).expand(count, -1, -1)
    angle = _between(0, 2 * math.pi, count, device=device)
    grid = _turned(grid, angle, 0.5 * torch.randn(count, device=device), _between(0.5, 2.0, count, device=device))
    field = _noise(count, size, device, _between(0.8, 2.0, count, device=device)).flatten(2).transpose(1, 2)
    h = torch.cat([grid, grid.norm(dim=-1, keepdim=True), field * _between(0, 0.6, count, 1, 1, device=device)], -1)
    for layer in range(4):
        pace = (
            _between(1.0, 6.0, count, 1, 1, device=device)
            if layer == 0
            else _between(0.8, 2.2, count, 1, 1, device=device)
        )
        h = torch.bmm(h, torch.randn(count, h.shape[-1], width, device=device) * pace / math.sqrt(h.shape[-1]))
        h = h + torch.randn(count, 1, width, device=device)
        third = width // 3
        h = torch.cat([h[..., :third].sin(), h[..., third : 2 * third].tanh(), F.relu(h[..., 2 * third :])], -1)
    value = torch.bmm(h, torch.randn(count, width, 3, device=device))
    value = (value - value.mean(1, keepdim=True)) / (value.std(1, keepdim=True) + 1e-3)
    return _toned(value.transpose(1, 2).reshape(count, 3, size, size))


def growths(count: int, size: int = 48, device: str = "cpu", width: int = 32) -> Tensor:
    """Random generators, never trained: noise grown from 3 x 3 by random filters with a style for each picture.

    >>> growths(2, size=48).shape
    torch.Size([2, 3, 48, 48])
    """
    h = torch.randn(count, width, 3, 3, device=device)
    while h.shape[-1] < size:
        h = F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)
        style = torch.exp(0.7 * torch.randn(count, width, 1, 1, device=device))
        weight = torch.randn(width, width, 3, 3, device=device) / math.sqrt(9 * width)
        # Filters with a direction: a random derivative on each, as wavelets have.
        weight = weight * torch.randn(width, 1, 3, 3, device=device).sign()
        h = F.conv2d(F.pad(h * style, [1] * 4, mode="reflect"), weight)
        h = h + _between(0, 0.5, count, 1, 1, 1, device=device) * torch.randn(count, 1, *h.shape[-2:], device=device)
        h = F.leaky_relu(h + 0.5 * torch.randn(count, width, 1, 1, device=device), 0.2)
        h = (h - h.mean((1, 2, 3), keepdim=True)) / h.std((1, 2, 3), keepdim=True)
    value = torch.einsum("nchw,ndc->ndhw", h, torch.randn(count, 3, width, device=device))[..., :size, :size]
    value = value - value.mean((2, 3), keepdim=True)
    return _toned(value / (value.std((2, 3), keepdim=True) + 1e-3))


def _toned(value: Tensor) -> Tensor:
    """Three maps of mean 0 and deviation 1 as a picture: mostly brightness, some colour, a mean and a contrast."""
    count, device = len(value), str(value.device)
    mix = torch.ones(count, 3, 3, device=device) / 3 + _between(0.05, 0.4, count, 1, 1, device=device) * torch.randn(
        count, 3, 3, device=device
    )
    value = torch.einsum("nij,njhw->nihw", mix, value)
    value = value * _between(0.2, 0.8, count, 1, 1, 1, device=device)
    value = (
        value + 0.25 * torch.randn(count, 1, 1, 1, device=device) + 0.12 * torch.randn(count, 3, 1, 1, device=device)
    )
    return torch.tanh(value)
