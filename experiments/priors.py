"""What can a network learn from pictures that nobody took? Features for private training, at no cost in privacy.

An :class:`Encoder` is trained to recognise a picture of a random process (:mod:`experiments.processes`) among
others by another view of it (contrastive learning; for private training with such priors see Tang et al. 2023,
"Differentially private image classification by learning priors from random processes"). No picture of the world, public
or private, is used. What it computes of a private picture is a function of that picture alone.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments import processes


def _unit(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]


class _Residual(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(*_unit(width, width), *_unit(width, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


class Encoder(nn.Module):
    """Maps of pictures: three halvings of the size, each with a residual block.

    Its batch normalisation has learned its statistics on random processes and is frozen afterwards, so that pictures
    are encoded one by one.

    >>> [tuple(m.shape) for m in Encoder(1, width=8)(torch.rand(2, 1, 28, 28))]
    [(2, 32, 7, 7), (2, 64, 3, 3)]
    """

    def __init__(self, colours: int, width: int = 64) -> None:
        super().__init__()
        self.colours, self.width = colours, width
        self.stem = nn.Sequential(*_unit(colours, width))
        stages = []
        for k in range(3):
            before, after = width * 2**k, width * 2 ** (k + 1)
            stages.append(nn.Sequential(*_unit(before, after), nn.MaxPool2d(2), _Residual(after)))
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor) -> list[Tensor]:
        """The maps of the last two stages."""
        found = []
        h = self.stem(x)
        for stage in self.stages:
            h = stage(h)
            found.append(h)
        return found[1:]


@dataclasses.dataclass(frozen=True)
class Course:
    """How an encoder is trained: on ``process``, until ``steps`` or ``seconds`` are used up, whichever is first."""

    process: str
    colours: int
    size: int
    width: int = 64
    batch: int = 1024
    steps: int = 4000
    seconds: float = 120.0
    rate: float = 2e-3
    temperature: float = 0.2
    pool: int = 150_000


#: What pictures of each data set are closest to: written signs, or things that hide each other.
COURSES = {
    "mnist": Course("glyphs", 1, 28, width=32, batch=512, steps=3000, seconds=90.0),
    "fashion_mnist": Course("scenes", 3, 32, width=48, steps=12_000, seconds=180.0),
    "cifar10": Course("scenes", 3, 32, width=48, steps=12_000, seconds=180.0),
}


def _placed(encoder: Encoder, device: str) -> Encoder:
    # torch's types leave memory_format out.
    encoder.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return encoder


def pretrain(course: Course, device: str = "cpu", say: Callable[[str], None] = print) -> tuple[Encoder, dict[str, Any]]:
    """An encoder trained on a random process, in evaluation mode, and what its training took."""
    began = time.perf_counter()
    encoder = _placed(Encoder(course.colours, course.width), device)
    wide = 8 * course.width
    projection = nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 128)).to(device)
    weights = [*encoder.parameters(), *projection.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=course.rate, weight_decay=0.02, fused=device.startswith("cuda"))
    pairs = _pairs(course, device)
    losses: list[float] = []
    began_steps = time.perf_counter()
    step = 0
    while step < course.steps:
        passed = max(step / course.steps, (time.perf_counter() - began_steps) / course.seconds)
        if passed >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = course.rate * min(1.0, 10 * passed + 0.01) * 0.5 * (1 + math.cos(math.pi * passed))
        x = next(pairs).contiguous(memory_format=torch.channels_last)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=device.startswith("cuda")):
            z = projection(encoder(x)[-1].mean((2, 3)))
        loss = contrast(z.float(), course.temperature)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 200 == 1:
            losses.append(round(loss.item(), 4))
            say(f"prior of {course.process}: step {step}, loss {losses[-1]}, {time.perf_counter() - began:.0f} s")
    encoder.eval().requires_grad_(False)
    about = {"course": dataclasses.asdict(course), "steps": step, "losses": losses}
    return encoder, {**about, "took": round(time.perf_counter() - began, 1)}


def contrast(z: Tensor, temperature: float) -> Tensor:
    """Which of all others is the second view? Rows 2i and 2i + 1 belong together (Chen et al. 2020).

    >>> z = torch.eye(3).repeat_interleave(2, 0)
    >>> bool(contrast(z, 0.1) < contrast(z.roll(1, 0), 0.1))
    True
    """
    z = F.normalize(z, dim=1)
    scores = z @ z.T / temperature
    scores.fill_diagonal_(-torch.inf)
    return F.cross_entropy(scores, torch.arange(len(z), device=z.device) ^ 1)


def _pairs(course: Course, device: str) -> Iterator[Tensor]:
    """Batches in which rows 2i and 2i + 1 are views of one picture."""
    if course.process == "glyphs":
        while True:
            yield processes.glyphs(course.batch, 2, course.size, device)
    if course.process != "scenes":
        raise ValueError(f"there is no process {course.process!r}: glyphs, scenes")
    pool = scenes(course.pool, course.size * 3 // 2, device)
    while True:
        some = pool[torch.randint(len(pool), (course.batch,), device=device)]
        yield colour_views(some.float().div_(127.5).sub_(1.0).repeat_interleave(2, 0), course.size)


def scenes(count: int, size: int, device: str = "cpu", batch: int = 500) -> Tensor:
    """Pictures of three processes in equal parts, as bytes.

    >>> scenes(6, 48, batch=2).shape
    torch.Size([6, 3, 48, 48])
    """
    found = []
    draws = (processes.leaves, processes.patterns, processes.leaves, processes.growths)
    for k, start in enumerate(range(0, count, batch)):
        some = draws[k % len(draws)](min(batch, count - start), size, device)
        found.append(some.add(1).mul(127.5).round_().clamp_(0, 255).to(torch.uint8))
    return torch.cat(found)


def colour_views(x: Tensor, size: int) -> Tensor:
    """A random view of each picture: a turned and mirrored part of it, in other colours, some of them grey.

    >>> colour_views(torch.zeros(2, 3, 48, 48), 32).shape
    torch.Size([2, 3, 32, 32])
    """
    count, device = len(x), x.device

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, device=device)

    zoom, ratio = between(0.1, 1.0).sqrt() * 0.95, between(-0.28, 0.28).exp()
    wide, high = (zoom * ratio).clamp(max=1), (zoom / ratio).clamp(max=1)
    angle = between(-0.25, 0.25)
    flip = (torch.rand(count, device=device) < 0.5).float() * 2 - 1
    rows = [
        torch.stack([wide * angle.cos() * flip, -high * angle.sin(), between(-1, 1) * (1 - wide)], -1),
        torch.stack([wide * angle.sin() * flip, high * angle.cos(), between(-1, 1) * (1 - high)], -1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), [count, x.shape[1], size, size], align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
    eye = torch.eye(3, device=device)
    grey = torch.full((3, 3), 1 / 3, device=device)
    strong = (torch.rand(count, 1, 1, device=device) < 0.8).float()
    mix = eye + strong * (0.15 * torch.randn(count, 3, 3, device=device) + between(-0.4, 0.4, 1, 1) * (eye - grey))
    mix = torch.where(torch.rand(count, 1, 1, device=device) < 0.2, grey, mix)
    x = torch.einsum("nij,njhw->nihw", mix, x)
    mean = x.mean((1, 2, 3), keepdim=True)
    strong = strong[..., None]
    x = (x - mean) * (strong * between(-0.5, 0.5, 1, 1, 1)).exp() + mean + strong * 0.3 * between(-1, 1, 1, 1, 1)
    return x.clamp(-1, 1)


def encode(encoder: Encoder, images: Tensor, batch: int = 1000) -> list[Tensor]:
    """The maps of the last two stages, of many pictures, each on its own; half precision where the device has it."""
    device = next(encoder.parameters()).device
    parts: list[list[Tensor]] = []
    for some in images.split(batch):
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            maps = encoder(some.to(device).contiguous(memory_format=torch.channels_last))
        parts.append([m.float().contiguous() for m in maps])
    return [torch.cat(maps) for maps in zip(*parts, strict=True)]


def save(encoder: Encoder, about: dict[str, Any], path: Path) -> None:
    """Weights in half precision and how they were made."""
    state = {n: t.half() if t.is_floating_point() else t for n, t in encoder.state_dict().items()}
    torch.save({"colours": encoder.colours, "width": encoder.width, "state": state, "about": about}, path)


def restore(path: Path, device: str = "cpu") -> tuple[Encoder, dict[str, Any]]:
    """What :func:`save` wrote."""
    kept = torch.load(path, map_location=device, weights_only=True)
    encoder = _placed(Encoder(kept["colours"], kept["width"]), device)
    encoder.load_state_dict({n: t.float() if t.is_floating_point() else t for n, t in kept["state"].items()})
    return encoder.eval().requires_grad_(False), kept["about"]
