"""What does a training pipeline release, and what should it? The same model and data, seen from outside.

:class:`Pipeline` builds runs of :class:`tacit.sgd.Training` whose weights stand still, and reads what each step hands
to the optimizer. Beside that it computes clipped per-example gradients by itself, one plain backward pass per record in
double precision, without any of the library's own code. What the two disagree about is for
:mod:`tacit.audit.implementation` to judge.
"""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacit.sgd import Training
from tacit.sgd.gradients.batches import Loss, row_losses
from tacit.sgd.torch_compat import pytree
from tacit.sgd.training import training as training_module
from tacit.sgd.training.data import Records, records

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class ReleasedStep:
    """One released step: who took part, and the noisy sum before it was divided."""

    rows: npt.NDArray[np.int64]
    released: Floats
    clip_norm: float


@dataclasses.dataclass(frozen=True, eq=False)
class WatchedRun:
    """A run as seen from outside."""

    training: Training
    steps: list[ReleasedStep]
    clip_after: float


class Pipeline:
    """A model with its loss and records, and the settings of training that are to be audited.

    ``settings`` are those of :class:`tacit.sgd.Training`. Records are few: they stand for the data, and need not be
    private ones.
    """

    def __init__(self, model: nn.Module, loss: Loss, data: Any, **settings: Any) -> None:
        self.model = copy.deepcopy(model).eval()
        self.loss, self.settings = loss, settings
        first = next(p for p in self.model.parameters() if p.requires_grad)
        self.records = records(data, first.dtype)
        self.names = [n for n, p in self.model.named_parameters() if p.requires_grad]
        self.size = sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    # -- what it does --------------------------------------------------------------------------------------------------

    def build(self, data: Any = None, **more: Any) -> Training:
        """A run over ``data`` whose weights will not move."""
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
        settings = self.settings | more
        settings = {k: v for k, v in settings.items() if v is not None}
        source = self.records if data is None else data
        if "unit" in settings:  # the word of the real run; here a record is a unit
            settings.setdefault("groups", range(len(source)))
        with warnings.catch_warnings():
            # Runs without noise are what sensitivity is measured on; nothing of them leaves.
            warnings.simplefilter("ignore")
            # Looked up when it is needed: a mutant may stand in its place.
            return training_module.Training(model, optimizer, self.loss, source, **settings)

    def watch(self, training: Training) -> WatchedRun:
        """Run to the end and keep what every step releases."""
        steps: list[ReleasedStep] = []
        given: list[Floats] = []

        def look(optimizer: Any, args: Any, kwargs: Any) -> None:
            flat = [
                (torch.zeros_like(p) if p.grad is None else p.grad).detach().double().flatten().cpu()
                for p in training.parameters.values()
            ]
            given.append(torch.cat(flat).numpy() * training.plan.sampler.divisor)

        handle = training.optimizer.register_step_pre_hook(look)
        try:
            for batch in training:
                clip = training.clip_norm if training.plan.adaptive else training.plan.clip[batch.step]
                rows, before = np.array(batch.rows), len(given)
                training.step(batch)
                released = given[-1] if len(given) > before else np.zeros(self.size)
                steps.append(ReleasedStep(rows, released, clip))
        finally:
            handle.remove()
        self.releases = len(given)
        return WatchedRun(training, steps, training.clip_norm)

    # -- what it should do ---------------------------------------------------------------------------------------------

    def gradients(self, source: Records | None = None) -> Floats:
        """The gradient of every record, by plain backward passes in double precision."""
        source = self.records if source is None else source
        model = copy.deepcopy(self.model).double()
        trained = [p for p in model.parameters() if p.requires_grad]
        found = np.zeros((len(source), self.size))
        for i in range(len(source)):
            batch = pytree.tree_map_only(
                Tensor,
                lambda t: (t.double() if t.is_floating_point() else t).to(trained[0].device),
                source.take(np.array([i], dtype=np.int64)),
            )
            loss = row_losses(model, self.loss, batch).sum()
            grads = torch.autograd.grad(loss, trained, allow_unused=True)
            flat = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, grads, strict=True)]
            found[i] = torch.cat([g.flatten() for g in flat]).cpu().numpy()
        return found

    def groups(self, clip_norm: float) -> list[tuple[npt.NDArray[np.int64], float]]:
        """Which coordinates are bounded together, and by how much, from the meaning of the setting alone."""
        kind = self.settings.get("clipping", "flat")
        sizes = {n: p.numel() for n, p in self.model.named_parameters() if p.requires_grad}
        starts = dict(zip(sizes, np.cumsum([0, *sizes.values()])[:-1].tolist(), strict=True))
        if kind in ("flat", "automatic"):
            return [(np.arange(self.size), clip_norm)]
        if isinstance(kind, Mapping):
            name_of = {n: next(p for p in kind if fnmatch.fnmatchcase(n, p)) for n in sizes}
            bounds = {pattern: float(bound) for pattern, bound in kind.items()}
        else:
            name_of = {n: n.rpartition(".")[0] for n in sizes}
            layers = set(name_of.values())
            bounds = dict.fromkeys(layers, clip_norm / math.sqrt(len(layers)))
        found = []
        for label in dict.fromkeys(name_of.values()):
            members = [n for n in sizes if name_of[n] == label]
            where = np.concatenate([np.arange(starts[n], starts[n] + sizes[n]) for n in members])
            found.append((where, bounds[label]))
        return found

    def sensitivity(self, clip_norm: float) -> float:
        """How far one record may move the sum."""
        return math.sqrt(sum(bound**2 for _, bound in self.groups(clip_norm)))

    def clipped(self, gradients: Floats, clip_norm: float) -> Floats:
        """Each row as it enters the sum; one that is not finite is zero."""
        found = np.where(np.isfinite(gradients).all(1, keepdims=True), gradients, 0.0)
        if self.settings.get("mechanism") == "laplace":
            lengths = np.abs(found).sum(1, keepdims=True)
            return np.asarray(found * np.minimum(1.0, clip_norm / np.maximum(lengths, 1e-300)))
        for where, bound in self.groups(clip_norm):
            norms = np.sqrt((found[:, where] ** 2).sum(1, keepdims=True))
            if self.settings.get("clipping") == "automatic":
                factor = bound / (norms + 0.01)
            else:
                factor = np.minimum(1.0, bound / np.maximum(norms, 1e-300))
            found[:, where] *= factor
        return found

    def residuals(self, seen: WatchedRun, gradients: Floats, noise: Callable[[int], float]) -> list[Floats]:
        """What each step released beside the sum that it should have, in standard deviations of its noise.

        ``gradients`` has one row a unit; ``noise(step)`` is the noise multiplier of the gradient.
        """
        found = []
        for number, step in enumerate(seen.steps):
            units = step.rows if step.rows.ndim == 1 else self.unit_of[step.rows[:, 0]]
            true = self.clipped(gradients[units], step.clip_norm).sum(0) if len(units) else np.zeros(self.size)
            found.append((step.released - true) / (noise(number) * self.sensitivity(step.clip_norm)))
        return found

    #: For runs with several records a person: which person each record belongs to.
    unit_of: npt.NDArray[np.int64] = np.zeros(0, np.int64)


def joined(*sources: Any) -> Records:
    """Records one after another."""
    trees = [s.take(np.arange(len(s), dtype=np.int64)) for s in sources]
    return Records(tree=pytree.tree_map(lambda *parts: torch.cat(parts), *trees))


def chosen(source: Records, rows: Sequence[int]) -> Records:
    """Some of the records, in this order, repeats allowed."""
    return Records(tree=source.take(np.asarray(rows, dtype=np.int64)))


def scaled(source: Records, row: int, factor: float) -> Records:
    """One record with its floating inputs multiplied: the first floating leaf, which holds the inputs."""
    tree = source.take(np.array([row], dtype=np.int64))
    leaves, shape = pytree.tree_flatten(tree)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            leaves[i] = leaf * factor
            break
    return Records(tree=pytree.tree_unflatten(leaves, shape))


def has_floats(source: Records) -> bool:
    """Whether a record holds floating numbers that can be scaled."""
    tree = source.take(np.array([0], dtype=np.int64))
    return any(isinstance(t, Tensor) and t.is_floating_point() for t in pytree.tree_leaves(tree))
