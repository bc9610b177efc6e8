"""What changes for an example when it is in other company? What is asked of every batch, not only of the first.

A plan, and the checks of it, hold for batches with which a pass does the same. Where it may do something else with each
batch (:attr:`~tacit.sgd.capture.Capture.doubt`: values of the data are read, or one of the whole batch goes into the
losses), the losses of half of the examples must stay the same when the other half is replaced. And where batches are
padded to their longest example, an example must come out the same without its padding (:mod:`~tacit.sgd.padding`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tacit.sgd import checks, padding
from tacit.sgd.batches import leaves
from tacit.sgd.engine import Engine, Pass
from tacit.sgd.errors import BatchMixing, ClippingError

Losses = Callable[[Any], Callable[[], Tensor]]

#: How far the loss of an example may move in other company, relative to one plus its size. The same kernels on the same
#: row give the same bits: this is not about the precision of the model.
UNMOVED = 2e-5


def in_company(
    engine: Engine,
    losses_of: Losses,
    batch: Any,
    examples: int,
    views: int,
    run: Pass,
    rewind: Callable[[], None],
) -> None:
    """Half of the examples, drawn at random, must not notice that the others are replaced."""
    order = torch.tensor(checks.a_few(examples, examples))
    stay, index = order[: (examples + 1) // 2], torch.arange(examples)
    index[order[(examples + 1) // 2 :]] = stay[0]
    other = checks.picked(batch, index, views)

    def losses(some: Any) -> tuple[Tensor, Any]:
        rewind()
        again = engine.forward(losses_of(some), leaves(some), examples)
        return again.losses.detach().double(), [use.shapes for use in again.uses]

    def moved(one: Tensor, two: Tensor, within: float) -> bool:
        one, two = one[stay.to(one.device)], two[stay.to(two.device)]
        return bool(((one - two).abs() > within * (1 + one.abs())).any())  # not for an example that is not finite

    before = run.losses.detach().double()
    with kept(run.losses.device):
        swapped, shapes = losses(other)
        if not moved(before, swapped, UNMOVED):
            return
        again = losses(batch)[0]
        noise = ((again - before).abs() / (1 + before.abs())).nan_to_num(0.0, 0.0, 0.0).amax().item()
        # A GPU may add up in no fixed order.
        within = min(UNMOVED + 8 * noise, checks.TOLERANCE[checks.precision(engine, run)])
        if shapes != [use.shapes for use in run.uses]:
            # Other shapes are computed by other kernels, and dropout then draws other masks for the same example.
            within = checks.TOLERANCE[checks.precision(engine, run)]
            with evaluating(engine.model):
                before, swapped = losses(batch)[0], losses(other)[0]
        if moved(before, swapped, within):
            raise checks.mixing(checks.culprit(engine, losses_of, batch, other, examples, int(stay[0]), rewind))


@contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """The random state after is the one before."""
    back = checks.remember(device)
    try:
        yield
    finally:
        back()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model without dropout and the like, for a while."""
    training = [m for m in model.modules() if m.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def unfelt(engine: Engine, losses_of: Losses, batch: Any, examples: int, views: int, run: Pass) -> None:
    """Refuse a loss that depends on padding, once batches have been seen to differ in length."""
    tensors = leaves(batch)
    for size in engine.lengths.varying(engine.context, tensors, [0] * len(tensors)):
        padded = padding.guessed(tensors, [0] * len(tensors), examples * views, size)
        if padded is None:
            continue
        example = padded.row // views
        whole = checks.picked(batch, torch.tensor([example]), views)

        def losses(some: Any) -> Tensor:
            with engine.protected_buffers(), torch.enable_grad():
                return losses_of(some)().detach()

        with kept(run.losses.device), evaluating(engine.model):
            felt(losses, whole, padded, checks.TOLERANCE[checks.precision(engine, run)])


def felt(losses: Callable[[Any], Tensor], single: Any, padded: padding.Padded, tolerance: float) -> None:
    """Raise where the losses of a batch of one change when its padding is taken off."""
    before = losses(single).double()
    for most in (9, 1):  # a dimension of features may have the size of a padded one
        try:
            after = losses(pytree.tree_map_only(Tensor, lambda t, most=most: padded.strip(t, 0, most), single)).double()
        except (RuntimeError, ValueError, IndexError):
            continue
        if bool((before - after).abs().le(tolerance * (1e-2 + before.abs())).all()):
            return
        raise BatchMixing(padding.FELT)
    raise ClippingError(padding.UNTOLD)
