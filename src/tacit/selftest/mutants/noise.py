"""Which mistakes have been made with noise? Too little, the same again, of the wrong kind, not everywhere."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.noise.keys import Key
from tacit.noise.tensor import add_normal_, add_normal_many_
from tacit.selftest.mutants.base import adding, mutant, replaced
from tacit.sgd import AdaptiveClipping, release

Add = Callable[[Sequence[Tensor], Key, int, Sequence[Any], float], None]


@contextlib.contextmanager
def _other_noise(change: Callable[[int, release.ReleaseNoise], release.ReleaseNoise]) -> Iterator[None]:
    """A step has the noise that ``change`` makes of its step and its noise."""
    noisy = release.noisy_gradients

    def changed(sums: Any, parameters: Any, key: Key, step: int, noise: release.ReleaseNoise, *rest: Any) -> Any:
        return noisy(sums, parameters, key, step, change(step, noise), *rest)

    with replaced(release, "noisy_gradients", changed):
        yield


def _times(factor: float) -> Add:
    return lambda tensors, key, step, names, scale: add_normal_many_(tensors, key, step, names, scale * factor)


@mutant("noise × 0.9", "noise")
def nine_tenths() -> Iterator[None]:
    """The noise is a tenth too small: no attack on one direction sees it."""
    with adding(_times(0.9)):
        yield


@mutant("noise × 0.5", "noise")
def half() -> Iterator[None]:
    """Half the noise."""
    with adding(_times(0.5)):
        yield


@mutant("each of 4 ranks adds σ/4 (summed step)", "noise")
def ranks() -> Iterator[None]:
    """Four ranks add a quarter of σ each, where a half would make σ in the sum; simulated in the sum of one process."""

    def add(tensors: Sequence[Tensor], key: Key, step: int, names: Sequence[Any], scale: float) -> None:
        for rank in range(4):
            with key.derive(f"rank {rank}") as own:
                add_normal_many_(tensors, own, step, names, scale / 4)

    with adding(add):
        yield


@mutant("noise divided by the batch size", "noise")
def divided() -> Iterator[None]:
    """The noise of a mean is taken for the noise of a sum."""
    with _other_noise(lambda step, noise: dataclasses.replace(noise, scale=noise.scale / max(noise.divisor, 2.0))):
        yield


@mutant("the same noise at every step", "noise")
def same_every_step() -> Iterator[None]:
    """The step is left out of the stream's name."""
    with adding(lambda tensors, key, step, names, scale: add_normal_many_(tensors, key, 0, names, scale)):
        yield


@mutant("the same noise in every shard (summed step)", "noise")
def same_every_shard() -> Iterator[None]:
    """Four shards of each parameter begin their noise at element 0; simulated in one process."""

    def add(tensors: Sequence[Tensor], key: Key, step: int, names: Sequence[Any], scale: float) -> None:
        for tensor, name in zip(tensors, names, strict=True):
            for shard in tensor.view(-1).chunk(4):
                add_normal_(shard, key, step, name, scale)

    with adding(add):
        yield


@mutant("one noise seed for every run", "noise")
def same_every_run() -> Iterator[None]:
    """Keys do not come from the operating system: whoever knows the code knows the noise."""
    with replaced(Key, "generate", classmethod(lambda cls: cls(bytes(range(32))))):
        yield


@mutant("one noise stream for all parameters", "noise")
def same_every_parameter() -> Iterator[None]:
    """The parameter is left out of the stream's name."""

    def add(tensors: Sequence[Tensor], key: Key, step: int, names: Sequence[Any], scale: float) -> None:
        for tensor in tensors:
            add_normal_(tensor, key, step, "parameter", scale)

    with adding(add):
        yield


@mutant("no noise on biases", "noise")
def no_biases() -> Iterator[None]:
    """Parameters that count as small get no noise."""

    def add(tensors: Sequence[Tensor], key: Key, step: int, names: Sequence[Any], scale: float) -> None:
        kept = [i for i, name in enumerate(names) if not str(name).endswith("bias")]
        add_normal_many_([tensors[i] for i in kept], key, step, [names[i] for i in kept], scale)

    with adding(add):
        yield


@mutant("uniform noise of the same variance", "noise")
def uniform() -> Iterator[None]:
    """The variance is right and the law is not: no (ε, δ) of a Gaussian holds."""

    def add(tensors: Sequence[Tensor], key: Key, step: int, names: Sequence[Any], scale: float) -> None:
        for tensor, name in zip(tensors, names, strict=True):
            fresh = torch.zeros_like(tensor)
            add_normal_(fresh, key, step, name, 1.0)
            tensor += (2 * torch.special.ndtr(fresh.double()) - 1).to(tensor.dtype) * scale * 3**0.5

    with adding(add):
        yield


@mutant("noise for the first clip norm only", "noise")
def first_clip_norm() -> Iterator[None]:
    """The clip norm follows a schedule, and the noise stays as it was at the first step."""
    first = [0.0]

    def stale(step: int, noise: release.ReleaseNoise) -> release.ReleaseNoise:
        first[0] = noise.scale if step == 0 else first[0]
        return dataclasses.replace(noise, scale=first[0])

    with _other_noise(stale):
        yield


@mutant("adaptive clipping enlarges σ in the accountant only", "noise")
def adaptive_in_the_accountant() -> Iterator[None]:
    """The count of adaptive clipping is paid for with noise that the gradient never gets."""
    with replaced(AdaptiveClipping, "gradient_noise", lambda self, noise_multiplier: noise_multiplier):
        yield


@mutant("the count of adaptive clipping has no noise", "noise")
def exact_count() -> Iterator[None]:
    """The clip norm follows the exact share of clipped gradients."""
    with replaced(release, "normal", lambda *args, **kwargs: torch.zeros(1)):
        yield
