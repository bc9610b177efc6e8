"""Which mistakes have been made with the bound of one record? Clipped too late, in part, twice, or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tacit.selftest.models import PROMPT, WIDTH
from tacit.selftest.mutants.base import mutant, replaced
from tacit.sgd import ClippedGradients, Clipping, Training, release
from tacit.sgd.gradients import company
from tacit.sgd.gradients.bounds import Gradients
from tacit.sgd.gradients.capture import Capture
from tacit.sgd.gradients.contributions import Group, Norms
from tacit.sgd.gradients.engine import Engine, Request


@mutant("the batch is clipped instead of its examples", "sensitivity")
def batch_clipped() -> Iterator[None]:
    """The sum is clipped, not what it is made of: one record can turn it round."""
    sums_of = Training.clipped_sums

    def sums(self: Training, batch: Any, clipping: Clipping) -> Any:
        wide = Clipping("flat", (tuple(self.parameters),), (1e9,))
        kept, self.clipping = self.clipping, "flat"
        try:
            found, inside = sums_of(self, batch, wide)
        finally:
            self.clipping = kept
        norm = float(torch.cat([t.flatten() for t in found.values()]).norm())
        factor = min(1.0, clipping.sensitivity / max(norm, 1e-30))
        return {name: t * factor for name, t in found.items()}, inside

    with replaced(Training, "clipped_sums", sums):
        yield


@mutant("each layer is clipped to the full clip norm", "sensitivity")
def layers_at_full_norm() -> Iterator[None]:
    """Clipping by layer with C for each, and noise for one C."""
    of = Clipping.of

    def full(kind: Any, clip_norm: float, names: list[str], *rest: Any) -> Clipping:
        made = of(kind, clip_norm, names, *rest)
        if made.kind != "per_layer":
            return made
        return dataclasses.replace(made, bounds=(clip_norm,) * len(made.bounds))

    stated = property(lambda self: self.bounds[0])
    with replaced(Clipping, "of", staticmethod(full)), replaced(Clipping, "sensitivity", stated):
        yield


@mutant("each augmented view is clipped by itself", "sensitivity")
def views_apart() -> Iterator[None]:
    """Views of one record are clipped one by one and added up: K views weigh K records."""
    whole = Engine.clipped_sums

    def apart(self: Engine, request: Request, **rest: Any) -> ClippedGradients:
        views, mask = request.views, request.mask
        mask = mask.repeat_interleave(views) if mask is not None else None
        found = whole(self, dataclasses.replace(request, views=1, mask=mask), **rest)
        norms, losses = found.norms.unflatten(0, (-1, views)).amax(1), found.losses.unflatten(0, (-1, views)).mean(1)
        return dataclasses.replace(found, norms=norms, losses=losses)

    with replaced(Engine, "clipped_sums", apart):
        yield


@mutant("a tied weight is clipped in one of its uses", "sensitivity")
def tied_once() -> Iterator[None]:
    """The norm sees the first use of a weight, the sum both."""
    of = Group.of

    def first_only(contributions: Any, shape: Any) -> Group:
        whole = of(contributions, shape)
        if len(contributions) > 1:
            first = of(contributions[:1], shape)
            whole.norms = first.norms  # type: ignore[method-assign]
        return whole

    with replaced(Group, "of", staticmethod(first_only)):
        yield


@mutant("a soft prompt's gradient is that of the batch", "sensitivity")
def prompt_of_the_batch() -> Iterator[None]:
    """A value that the whole batch shares gives every record the mean gradient of the batch as its own."""
    norms = Gradients.norms

    def shared(self: Gradients, k: int) -> Norms:
        if tuple(self.parameters[k].shape) != (PROMPT, WIDTH):
            return norms(self, k)
        ones = torch.ones(self.batch, dtype=self.parameters[k].dtype)
        mean = self.weighted_sum(k, ones) / self.batch
        return Norms(mean.square().sum().expand(self.batch).clone())

    with replaced(Gradients, "norms", shared):
        yield


@mutant("biases are left out of the norm", "sensitivity")
def norm_without_biases() -> Iterator[None]:
    """Only matrices count towards the norm of a gradient."""
    norms = Gradients.norms

    def matrices(self: Gradients, k: int) -> Norms:
        found = norms(self, k)
        return found if self.parameters[k].dim() > 1 else Norms(torch.zeros_like(found.squared))

    with replaced(Gradients, "norms", matrices):
        yield


@mutant("the squared norm is taken for the norm", "sensitivity")
def squared_norm() -> Iterator[None]:
    """A square root is missing: short gradients are made longer than the clip norm."""
    norms = Gradients.norms

    def squares(self: Gradients, k: int) -> Norms:
        found = norms(self, k)
        return Norms(found.squared.square())

    with replaced(Gradients, "norms", squares):
        yield


@mutant("gradients that are not finite are passed through", "sensitivity")
def not_finite() -> Iterator[None]:
    """NaN compares as not longer than the clip norm, and stays."""
    clipped = Engine.clipped_sums

    def through(self: Engine, request: Request, **rest: Any) -> ClippedGradients:
        found = clipped(self, request, **rest)
        mask = request.mask
        bad = ~torch.isfinite(found.norms if found.norms.dim() == 1 else found.norms.sum(1))
        if mask is not None:
            bad = bad & mask.bool()
        if bool(bad.any()):
            sums: dict[str, Tensor] = {name: total + torch.nan for name, total in found.sums.items()}
            return dataclasses.replace(found, sums=sums)
        return found

    with replaced(Engine, "clipped_sums", through):
        yield


@mutant("a plan is believed of every batch", "sensitivity")
def believed() -> Iterator[None]:
    """What leaves torch, or belongs to no single example, gives no reason to look again."""
    with replaced(Capture, "doubts", lambda self, losses: ""):
        yield


@mutant("how far a batch is padded is not looked at", "sensitivity")
def padded() -> Iterator[None]:
    """Examples are replaced at the same shape only."""
    with replaced(company, "after_lengths", lambda *_: None):
        yield


@mutant("the realised batch size is the divisor", "sensitivity")
def realised_size() -> Iterator[None]:
    """The sum is divided by how many happened to be drawn, which depends on each of them."""
    step, noisy = Training.step, release.noisy_gradients
    size = [1]

    def noted(self: Training, batch: Any) -> None:
        size[0] = max(len(batch), 1)
        step(self, batch)

    def divided(sums: Any, parameters: Any, key: Any, step: int, noise: release.ReleaseNoise, *rest: Any) -> Any:
        scaled = {name: total * (noise.divisor / size[0]) for name, total in sums.items()}
        return noisy(scaled, parameters, key, step, noise, *rest)

    with replaced(Training, "step", noted), replaced(release, "noisy_gradients", divided):
        yield
