"""How does an encoder that knows random processes go on to learn from private pictures? It is trained with its head.

Batch normalisation is folded into the convolutions first, so that pictures do not meet. Gradients of head and body
are clipped as two groups: neither drowns the other. :class:`Last` trains the last stage on kept maps, :class:`Whole`
everything on the pictures themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit.experiments.priors import Encoder

#: Features have norm 1; a head sees them this much larger, so that rates are those of normalised scattering maps.
SCALE = 40.0


def folded(convolution: nn.Conv2d, normalisation: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of one convolution that does what both layers do in evaluation mode."""
    factor = normalisation.weight / (normalisation.running_var + normalisation.eps).sqrt()
    bias = normalisation.bias - normalisation.running_mean * factor
    return (convolution.weight * factor[:, None, None, None]).detach().clone(), bias.detach().clone()


def _stage(encoder: Encoder, k: int) -> list[tuple[Tensor, Tensor]]:
    stage = encoder.stages[k]
    return [folded(*unit) for unit in (stage[:2], stage[4].inner[:2], stage[4].inner[3:5])]


def _pooled(maps: Tensor, side: int) -> Tensor:
    """Maps averaged to ``side`` x ``side``, as a vector of norm 1."""
    return F.normalize(F.adaptive_avg_pool2d(maps.float(), side).flatten(1), dim=1)


class _Tuned(nn.Module):  # type: ignore[misc]
    """Convolutions that begin as ``first`` says, and a head with no opinion."""

    centre: Tensor

    def __init__(self, first: list[tuple[Tensor, Tensor]], joined: int) -> None:
        super().__init__()
        self.first = first
        self.body = nn.ModuleList(nn.Conv2d(w.shape[1], w.shape[0], 3, padding=1) for w, _ in first)
        self.head = nn.Linear(joined, 10)
        self.register_buffer("centre", torch.zeros(joined))

    def reset(self) -> None:
        """The encoder's weights, and no opinion."""
        with torch.no_grad():
            for layer, (weight, bias) in zip(self.body, self.first, strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
            self.head.weight.zero_()
            self.head.bias.zero_()

    def stage(self, h: Tensor, k: int) -> Tensor:
        """One stage of the encoder, whose convolutions begin at the k-th."""
        h = F.max_pool2d(F.relu(self.body[k](h)), 2)
        return h + F.relu(self.body[k + 2](F.relu(self.body[k + 1](h))))

    def features(self, x: Tensor) -> Tensor:
        """What the head sees, of norm 1: ``(B, views, D)``."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head((self.features(x) - self.centre) * SCALE)
        return out


class Last(_Tuned):
    """A linear model of scattering maps and of the encoder's last stage, which is trained with it.

    Inputs ``(B, views, D)`` are scattering features of norm 1, then the maps of the middle stage.
    """

    def __init__(self, encoder: Encoder, size: int, side: int) -> None:
        depth = 4 * encoder.width
        pool = 2 if side == 8 else 3
        plain = size - depth * side * side
        super().__init__(_stage(encoder, 2), plain + 2 * depth * pool**2)
        self.maps, self.plain, self.pool = (depth, side, side), plain, pool

    def features(self, x: Tensor) -> Tensor:
        x = x.float()
        plain, maps = x[..., : self.plain], x[..., self.plain :].unflatten(-1, self.maps).flatten(0, 1)
        own = _pooled(self.stage(maps, 0), self.pool).unflatten(0, x.shape[:2])
        return torch.cat([plain, own], -1) * 0.5**0.5


class Whole(_Tuned):
    """A linear model of the encoder's last two stages, trained with all of the encoder, on pictures ``(B, C, H, W)``.

    >>> model = Whole(Encoder(3, width=4).eval(), 32)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 1, 10])
    """

    def __init__(self, encoder: Encoder, side: int) -> None:
        pool = 2 if side == 32 else 3
        stages = [folded(encoder.stem[0], encoder.stem[1])]
        for k in range(3):
            stages += _stage(encoder, k)
        super().__init__(stages, 4 * encoder.width * 16 + 8 * encoder.width * pool**2)
        self.pool = pool
        self.reset()

    def features(self, x: Tensor) -> Tensor:
        h = self.stage(F.relu(self.body[0](x)), 1)
        middle = self.stage(h, 4)
        last = self.stage(middle, 7)
        return (torch.cat([_pooled(middle, 4), _pooled(last, self.pool)], -1) * 0.5**0.5).unsqueeze(1)
