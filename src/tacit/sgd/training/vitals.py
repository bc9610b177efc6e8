"""How did a run go, told from its noisy gradients alone? Small numbers of some of its steps, for ``tacit doctor``.

Noisy gradients and weights are what a run releases, so that everything here is post-processing: it costs nothing and
may be published with the model. Losses, norms of single examples and clipped shares are private and never come here.

The numbers are estimates. With g = s + n, s the clipped mean and n noise of variance v in each of d coordinates, |g|² -
dv has mean |s|². The noise of a step is independent of everything before it, so ⟨g, g'⟩ with the gradient g' of the
step before has mean ⟨s, s'⟩, and ⟨g, w - w'⟩ with the step before has mean ⟨s, w - w'⟩: the slope at which it ended.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.accounting.correlated import INDEPENDENT
from tacit.sgd.release import norms_of, signal_to_noise
from tacit.sgd.training.training import Training

#: A run is looked at in at most so many places, so that looking costs next to nothing.
LOOKS = 250
#: Larger models are looked at without comparing a step with the one before, which takes room for three more of them.
COMPARED = 20_000_000


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is public about a run before its first step.

    Args:
        records: The number of units: the true one where it is public, else the one that was given.
        batch_size: The expected number of units in a step.
        steps: The number of steps.
        epsilon: The ε of the plan.
        delta: Its δ.
        noise_multiplier: The standard deviation of the noise, in units of ``clip_norm``.
        clip_norm: The clip norm of the first step.
        parameters: The number of trained weights, d.
        optimizer: The class of the optimizer.
        learning_rate: Its learning rate at the first step.
        momentum: Its momentum, 0 if it has none.
        adjacency: The neighbours of the plan.
        clipping: How gradients are bounded.

    Example:
        >>> Facts(1000, 100, 50, 1.0, 1e-5, 2.0, 1.0, 10, "SGD", 0.5, 0.9).noise_length
        0.063...
    """

    records: int
    batch_size: int
    steps: int
    epsilon: float
    delta: float
    noise_multiplier: float
    clip_norm: float
    parameters: int
    optimizer: str
    learning_rate: float
    momentum: float = 0.0
    adjacency: str = "add-remove"
    clipping: str = "flat"

    @property
    def noise_length(self) -> float:
        """The length of the noise in a step's mean gradient, in clip norms: σ √d / B. No signal is longer than 1."""
        return self.noise_multiplier * math.sqrt(self.parameters) / self.batch_size


@dataclasses.dataclass(frozen=True)
class Look:
    """One step, told from its noisy gradient.

    Args:
        step: The number of the step, from 0.
        signal: An estimate of the squared length of the clipped mean gradient. It may be below 0.
        noise: The expected squared length of the noise in it.
        clip_norm: The clip norm.
        learning_rate: The learning rate.
        turn: An estimate of the inner product of this clipped mean gradient and the one before.
        slope: An estimate of the inner product of the clipped mean gradient and the step that led here: above 0 where
            the step went too far.
        moved: The squared length of that step.
        distance: How far the weights are from where they began.

    Example:
        >>> Look(3, 0.01, 0.04, 1.0, 0.5).ratio
        0.5
    """

    step: int
    signal: float
    noise: float
    clip_norm: float
    learning_rate: float
    turn: float | None = None
    slope: float | None = None
    moved: float | None = None
    distance: float | None = None

    @property
    def ratio(self) -> float | None:
        """The length of the signal over that of the noise; None without noise."""
        return math.sqrt(max(0.0, self.signal) / self.noise) if self.noise > 0 else None


class Vitals:
    """Watch a :class:`~tacit.sgd.Training` from its first step: make it before the loop.

    Guarantee:
        Everything here is computed from the noisy gradients, the weights and public numbers, so it is covered by the
        guarantee of the run, at no further cost.

    Args:
        training: The run.
        path: A file that gets one line of JSON for each look. Default: the looks are kept in memory only.

    Raises:
        ValueError: If the model is spread over ranks.

    Example:
        >>> model, loss = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(reduction="none")
        >>> data = torch.randn(100, 3), torch.randint(2, (100,))
        >>> training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, data,
        ...                     batch_size=20, steps=10, epsilon=3.0, delta=1e-5)
        >>> vitals = Vitals(training)
        >>> for batch in training:
        ...     training.step(batch)
        >>> len(vitals.looks), vitals.facts.steps, vitals.looks[0].turn
        (10, 10, None)
    """

    def __init__(self, training: Training, path: str | os.PathLike[str] | None = None) -> None:
        self.training, self.facts = training, facts_of(training)
        self.looks: list[Look] = []
        self.ratio: float | None = None
        self._path = None if path is None else Path(path)
        self._every = max(1, training.plan.steps // LOOKS)
        self._elements = sum(p.numel() * (1 + p.is_complex()) for p in training.parameters.values())
        if training.shards is not None:
            raise ValueError("a model that is spread over ranks is not watched")
        # Noise that takes back earlier noise is not independent of what came before.
        self._compared = self._elements <= COMPARED and training.plan.correlation == INDEPENDENT
        self._first = self._weights() if self._compared and training.steps_executed == 0 else None
        self._before: tuple[int, list[Tensor], list[Tensor]] | None = None
        if self._path is not None:
            self._begin(self._path)
        self._hook = training.optimizer.register_step_pre_hook(self._look)

    def _begin(self, path: Path) -> None:
        """The file with the facts, and the looks of a run that goes on."""
        if self.training.steps_executed and path.exists():
            self.looks = [look for look in read_vitals(path)[1] if look.step < self.training.steps_executed]
        lines = [json.dumps(dataclasses.asdict(self.facts)), *(json.dumps(_short(look)) for look in self.looks)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def remove(self) -> None:
        """Stop watching."""
        self._hook.remove()
        self._before = self._first = None

    def _weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.training.parameters.values()]

    def _look(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        training, step = self.training, self.training.steps_executed
        # Every so often two steps in a row: the second is compared with the first.
        place = step % self._every
        if place > 1 and step + 1 < training.plan.steps:
            return
        gradients = [p.grad for p in training.parameters.values() if p.grad is not None]
        noise = training.noise_at(step)
        self.ratio = signal_to_noise(norms_of(gradients), self._elements, noise.variance)
        second = self._before is not None and self._before[0] == step - 1
        if place != 0 or self._every == 1 or second or step == 0:
            self._add(step, gradients, noise.variance, self._before if second else None)
        self._before = None
        if self._compared and (step + 1) % self._every <= 1 and step + 1 < training.plan.steps:
            self._before = step, [g.detach().clone() for g in gradients], self._weights()

    def _add(
        self,
        step: int,
        gradients: list[Tensor],
        variance: float,
        before: tuple[int, list[Tensor], list[Tensor]] | None,
    ) -> None:
        wanted = [_dots(gradients, gradients)]
        if before is not None:
            steps = [p.detach() - w for p, w in zip(self.training.parameters.values(), before[2], strict=True)]
            wanted += [_dots(gradients, before[1]), _dots(gradients, steps), _dots(steps, steps)]
        if self._first is not None:
            away = [p.detach() - w for p, w in zip(self.training.parameters.values(), self._first, strict=True)]
            wanted.append(_dots(away, away))
        squared, *more = torch.stack(wanted).tolist()
        turn, slope, moved = more[:3] if before is not None else (None, None, None)
        expected = self._elements * variance
        look = Look(
            step,
            squared - expected,
            expected,
            self.training.clip_norm,
            float(self.training.optimizer.param_groups[0]["lr"]),
            turn,
            slope,
            moved,
            math.sqrt(max(0.0, more[-1])) if self._first is not None else None,
        )
        self.looks.append(look)
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(_short(look)) + "\n")


def _dots(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """The inner product over all parameters; the two parts of a complex number are two coordinates."""
    total = [torch.sum(_real(a) * _real(b), dtype=torch.float64) for a, b in zip(left, right, strict=True)]
    return torch.stack(total).sum()


def _real(value: Tensor) -> Tensor:
    value = torch.view_as_real(value) if value.is_complex() else value
    return value.float() if value.element_size() < 4 else value


def _short(look: Look) -> dict[str, float]:
    return {name: value for name, value in dataclasses.asdict(look).items() if value is not None}


def facts_of(training: Training) -> Facts:
    """What is public about a run. Nothing in it depends on the data beyond their public number."""
    plan, group = training.plan, training.optimizer.param_groups[0]
    betas = group.get("betas")
    return Facts(
        plan.sampler.size,
        round(plan.sampler.divisor),
        plan.steps,
        plan.stated.price().upper,
        plan.delta,
        plan.noise[0],
        plan.clip[0],
        sum(p.numel() for p in training.parameters.values()),
        type(training.optimizer).__name__,
        float(group["lr"]),
        float(betas[0] if betas else group.get("momentum", 0.0)),
        plan.stated.adjacency,
        plan.clipping,
    )


def read_vitals(path: str | os.PathLike[str]) -> tuple[Facts, list[Look]]:
    """Read what a run kept of itself.

    Args:
        path: The file of a :class:`Vitals`.

    Returns:
        The facts and the looks, in order of their steps. A line that was cut short by a crash is left out.

    Raises:
        ValueError: If the file has no facts.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "vitals.jsonl"
        >>> _ = path.write_text(json.dumps(dataclasses.asdict(Facts(9, 3, 1, 1.0, 0.1, 1.0, 1.0, 2, "SGD", 0.5))))
        >>> read_vitals(path)[0].records, read_vitals(path)[1]
        (9, [])
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    try:
        facts = Facts(**json.loads(lines[0]))
    except (IndexError, ValueError, TypeError):
        raise ValueError(f"{path} is not what a run keeps of itself") from None
    looks: dict[int, Look] = {}
    for line in lines[1:]:
        try:
            look = Look(**json.loads(line))
        except ValueError:
            break
        looks[look.step] = look
    return facts, [looks[step] for step in sorted(looks)]
