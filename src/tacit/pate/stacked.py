"""How are hundreds of small torch teachers trained at once? Stacked: their weights are one tensor with a teacher axis.

``torch.func.stack_module_state`` stacks the weights and ``vmap`` runs all the models in one call. Each teacher draws
its batches from its own part, and the loss is the sum over teachers, so that no gradient passes from one to another;
the optimizers used are elementwise. The number of steps is fixed, whatever the parts hold. A model that vmap cannot
run is trained one teacher at a time, by the same code.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

Augment = Callable[[Tensor], Tensor]


class StackedTeachers:
    """Torch models with a part of the data each; ``fit`` and ``predict`` work on all of them.

    ``make`` gives a model; it is called once a teacher, after seeding torch by the teacher's number, so that the models
    differ. The numbers begin at ``first``.
    """

    def __init__(self, make: Callable[[], torch.nn.Module], count: int, seed: int = 0, first: int = 0) -> None:
        self.models: list[torch.nn.Module] = []
        self.first = first
        for i in range(count):
            model = _made(make, seed, first + i)
            if isinstance(model, torch.nn.Module) and self.models and model is self.models[0]:
                raise ValueError("make_model gave the same module twice; it must make a new one each time")
            self.models.append(model)

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        parts: Sequence[np.ndarray[Any, Any]],
        *,
        steps: int,
        batch_size: int,
        learning_rate: float,
        weight_decay: float,
        augment: Augment | None,
        together: int,
        device: torch.device,
        seed: int,
        average: float = 0.0,
        only: Sequence[int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Train every teacher (or ``only`` some) on its own rows.

        ``average`` is the decay of an exponential average of the weights, which is what the teacher ends with (0: the
        last weights). What is random about a group is seeded by the number of its first teacher, so that it does not
        depend on what was trained before it, or where.
        """
        everyone = list(range(len(self.models))) if only is None else list(only)
        for start in range(0, len(everyone), together):
            group = everyone[start : start + together]
            number = self.first + group[0]
            # Dropout and augmentation draw from torch's own generator: seeded here, left as it was after.
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                torch.manual_seed(seed + 15_485_863 * number)
                rows = _Rows([parts[i] for i in group], device)
                stack = _Stack([self.models[i] for i in group], device)
                stack.try_out(x[:2])
                # Random numbers by teacher and step, drawn for all of them alike: none depends on what a part holds.
                generator = torch.Generator(device=device)
                generator.manual_seed(seed * 7_919 + number + 1)
                optimizer = torch.optim.AdamW(stack.trainable(), lr=learning_rate, weight_decay=weight_decay)
                mean = [p.detach().clone() for p in stack.trainable()] if average else []
                stack.train()
                for step in range(steps):
                    for g in optimizer.param_groups:
                        warm = min(1.0, (step + 1) / max(1, steps // 20))
                        g["lr"] = learning_rate * warm * 0.5 * (1 + math.cos(math.pi * step / steps))
                    draw = torch.rand(len(group), batch_size, generator=generator, device=device)
                    if stack.alone:
                        # How many numbers a model draws may depend on its rows: each teacher begins anew.
                        torch.manual_seed(_mixed(seed, number, step, len(group)))
                    chosen = rows.pick(draw).reshape(-1)
                    batch = x[chosen]
                    if augment is not None:
                        batch = augment(batch)
                    logits = stack(
                        batch.reshape(len(group), batch_size, *batch.shape[1:]),
                        seeds=[_mixed(seed, number, step, place) for place in range(len(group))],
                    )
                    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y[chosen], reduction="none")
                    optimizer.zero_grad(set_to_none=True)
                    ((loss.reshape(len(group), batch_size) * rows.taught).sum() / batch_size).backward()
                    optimizer.step()
                    if average:
                        keep = min(average, (1 + step) / (10 + step))
                        for m, p in zip(mean, stack.trainable(), strict=True):
                            m.lerp_(p.detach(), 1 - keep)
                if average:
                    with torch.no_grad():
                        for p, m in zip(stack.trainable(), mean, strict=True):
                            p.copy_(m)
                stack.unload()
            if progress is not None:
                progress(len(group))

    def renew(self, i: int, make: Callable[[], torch.nn.Module], seed: int) -> None:
        """A new model in the place of one that failed."""
        self.models[i] = _made(make, seed, self.first + i)

    def broken(self) -> list[int]:
        """Teachers whose weights are not finite."""
        return [i for i, m in enumerate(self.models) if not all(bool(torch.isfinite(p).all()) for p in m.parameters())]

    def scores(self, x: Tensor, *, together: int, device: torch.device, rows: int = 256) -> Tensor:
        """The probability of every label: teachers x rows x classes."""
        found = []
        for start in range(0, len(self.models), together):
            stack = _Stack(self.models[start : start + together], device)
            stack.try_out(x[:2])
            stack.eval()
            with torch.no_grad():
                parts = [stack(piece.to(device), shared=True).softmax(-1) for piece in x.split(rows)]
            found.append(torch.cat(parts, dim=1))
        return torch.cat(found)

    def predict(self, x: Tensor, *, together: int, device: torch.device, rows: int = 256) -> np.ndarray[Any, Any]:
        """The label of every row by every teacher: teachers x rows."""
        found = [self.scores(piece, together=together, device=device).argmax(-1).cpu() for piece in x.split(rows)]
        return np.asarray(torch.cat(found, dim=1).numpy())


def train_group(
    make: Callable[[], torch.nn.Module],
    seed: int,
    options: dict[str, Any],
    retries: int,
    first: int,
    x: Tensor,
    y: Tensor,
    parts: Sequence[np.ndarray[Any, Any]],
) -> tuple[list[torch.nn.Module], list[int]]:
    """Trained models of the teachers from number ``first`` on, one stack, and the numbers of those that stay broken.

    A function of its arguments, wherever it runs. A teacher whose weights are not finite is trained again by itself,
    seeded by its own number: if it shared a stack or a seed with others that broke, one person could change whether
    one teacher breaks and with it what another one learns.
    """
    stacked = StackedTeachers(make, len(parts), seed, first)
    x, y = x.to(options["device"]), y.to(options["device"])
    stacked.fit(x, y, parts, seed=seed, together=len(parts), **options)
    for attempt in range(1, retries + 1):
        for i in stacked.broken():
            # Weights that are not finite come from too long steps: again from new weights, with shorter ones.
            stacked.renew(i, make, seed + attempt)
            shorter = options | {"learning_rate": options["learning_rate"] / 4**attempt}
            stacked.fit(x, y, parts, seed=seed + attempt, only=[i], together=1, **shorter)
    return stacked.models, [first + i for i in stacked.broken()]


def train_group_elsewhere(*given: Any) -> tuple[list[torch.nn.Module], list[int]]:
    """:func:`train_group` on another machine, whose devices are not those of the one that waits for the models."""
    models, broken = train_group(*given)
    return [model.cpu() for model in models], broken


def _made(make: Callable[[], torch.nn.Module], seed: int, number: int) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * 1_000_003 + number)
        return make()


def _mixed(*numbers: int) -> int:
    """A seed from several numbers."""
    return int(np.random.SeedSequence([n % 2**32 for n in numbers]).generate_state(1, np.uint64)[0] >> 1)


class _Rows:
    """The rows of some teachers in one table, to draw from with one gather."""

    def __init__(self, parts: list[np.ndarray[Any, Any]], device: torch.device) -> None:
        self.table = torch.zeros(len(parts), max(1, *(len(p) for p in parts), 1), dtype=torch.long, device=device)
        for i, part in enumerate(parts):
            self.table[i, : len(part)] = torch.as_tensor(part, device=device)
        self.sizes = torch.tensor([max(1, len(p)) for p in parts], device=device)[:, None]
        # A teacher without rows stands in the stack, so that who else has any changes nothing, and learns nothing.
        self.taught = torch.tensor([float(len(p) > 0) for p in parts], device=device)[:, None]

    def pick(self, uniform: Tensor) -> Tensor:
        """One row for every uniform number, teacher by teacher."""
        place = torch.minimum((uniform * self.sizes).long(), self.sizes - 1)
        return self.table.gather(1, place)


class _Stack:
    """Some models as one: stacked weights and buffers, called with vmap, or one by one where vmap cannot."""

    def __init__(self, models: list[torch.nn.Module], device: torch.device) -> None:
        self.models = [model.to(device).train() for model in models]  # stacking wants one mode for all
        self.alone = not _can_stack(self.models)
        if self.alone:
            return
        self.parameters, self.buffers = stack_module_state(self.models)
        self.base = copy.deepcopy(self.models[0])

    def trainable(self) -> list[Tensor]:
        if self.alone:
            return [p for model in self.models for p in model.parameters() if p.requires_grad]
        return [p for p in self.parameters.values() if p.requires_grad]

    def train(self) -> None:
        for model in self.models if self.alone else [self.base]:
            model.train()

    def eval(self) -> None:
        for model in self.models if self.alone else [self.base]:
            model.eval()

    def __call__(self, x: Tensor, shared: bool = False, seeds: Sequence[int] | None = None) -> Tensor:
        """Outputs of all models; ``seeds`` are for models that run one by one, in place of one stream for all."""
        if not self.alone:
            return self._together(x, shared=shared)
        found = []
        for i, model in enumerate(self.models):
            if seeds is not None:
                torch.manual_seed(seeds[i])
            found.append(model(x if shared else x[i]))
        return torch.stack(found)

    def _together(self, x: Tensor, *, shared: bool) -> Tensor:
        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], rows: Tensor) -> Tensor:
            found: Tensor = functional_call(self.base, (parameters, buffers), (rows,))
            return found

        run = vmap(one, in_dims=(0, 0, None if shared else 0), randomness="different")
        return run(self.parameters, self.buffers, x)

    def try_out(self, x: Tensor) -> None:
        """Run a row or two; where vmap cannot, the models are run one by one from now on."""
        if self.alone or not len(x):
            return
        self.eval()
        try:
            with torch.no_grad():
                rows = x.to(next(iter(self.parameters.values())).device)
                self._together(rows.expand(len(self.models), *rows.shape), shared=False)
        except RuntimeError as error:
            if not any(word in str(error) for word in ("vmap", "functorch", "batching rule")):
                raise
            self.alone = True

    def unload(self) -> None:
        """Write the weights back into the models."""
        if self.alone:
            return
        with torch.no_grad():
            for i, model in enumerate(self.models):
                for name, value in model.named_parameters():
                    value.copy_(self.parameters[name][i])
                for name, buffer in model.named_buffers():
                    buffer.copy_(self.buffers[name][i])


def _can_stack(models: list[torch.nn.Module]) -> bool:
    first = [(name, p.shape) for name, p in models[0].named_parameters()]
    same = all([(n, p.shape) for n, p in model.named_parameters()] == first for model in models)
    return same and all(type(model) is type(models[0]) for model in models)
