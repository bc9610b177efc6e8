"""Is every example by itself, whatever its batch holds?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacit.sgd.errors import BatchMixing
from tacit.sgd.gradients.capture import UNSEEN
from tacit.sgd.gradients.outside import Attributes
from tacit.sgd.gradients.ownership.ids import DTYPE, MIXED, PUBLIC, together
from tacit.sgd.gradients.ownership.piles import of_rows
from tacit.sgd.gradients.ownership.tracker import Happening, OwnershipMode

if TYPE_CHECKING:
    from tacit.sgd.gradients.contributions import Layout
    from tacit.sgd.gradients.engine import Engine
    from tacit.sgd.gradients.outside import Pass


#: What these do with rows of several examples is found in every batch.
BY_ROW = ("_grouped_mm",)


@dataclass(frozen=True)
class Proof:
    """What was shown by following who owns what through one pass, forward and backward.

    ``holds``: the loss of an example, and the gradient at every element that a plan gives to it, are functions of this
    example and of what is public. ``steady``: so they are for every batch with which the pass does the same. ``trace``
    tells what it did. ``place`` is where examples met first, if they did. ``meeting`` says that a loss may well be
    of several. ``behind``: a gradient may be, although the losses are
    not, or the backward pass reads values of the batch. ``by_row``: whose some rows are is to be found in every batch,
    although this one has them in order.
    """

    holds: bool
    steady: bool
    trace: int
    place: Happening | None = None
    meeting: bool = False
    behind: bool = False
    by_row: bool = False


def prove(
    engine: Engine,
    forward: Callable[[], Pass],
    data: Iterable[tuple[Tensor, int | None]],
    layouts: list[list[Layout | None]],
    views: int = 1,
) -> Proof:
    """Follow who owns what through one pass over the batch, and compare it with the layouts of a plan.

    ``data`` are the tensors of the batch with the dimension that holds its rows; without one, all are of several.
    Many branches: each is one way in which a proof fails.
    """
    engine.settle()
    tracker = OwnershipMode()
    for tensor, dim in data:
        if dim is None:
            tracker.write(tensor, torch.full(tensor.shape, MIXED, dtype=DTYPE, device=tensor.device))
        else:
            tracker.own(tensor, dim, views)
    for parameter in engine.parameters.values():
        tracker.vary(parameter)
    with Attributes(engine.model), tracker:
        run = forward()
        reads, tracker.reads = tracker.reads, []
        weights = torch.ones_like(run.losses)
        tracker.own(weights)
        grads = run.output_gradients(weights)
    number = torch.arange(1, run.batch + 1, dtype=DTYPE, device=run.losses.device)
    found = tracker.owners(run.losses)
    holds = not tracker.lost and found is not None and bool((found == number).all()) and len(grads) == len(layouts)
    own, by_row = holds, False
    for row, known in zip(grads, layouts, strict=False):
        for grad, layout in zip(row, known, strict=False):
            owners = None if grad is None else tracker.owners(grad)
            by_row = by_row or of_rows(owners)
            holds = holds and (grad is None or _as_planned(owners, grad, layout))
    if tracker.chosen and found is not None and bool((found == MIXED).any()):
        operator, line = tracker.chosen[0]
        raise BatchMixing(
            f"{operator!r} ({line}) chooses among the rows of several examples, and the losses depend on which are "
            "chosen: who is taken depends on the others (experts that choose their tokens), so no per-example bound "
            "exists. Let each token choose its experts. See: tacit explain mixing"
        )
    place = next(iter(tracker.unknown or tracker.mixes), None) if not holds else None
    meeting = not holds and not any(place.operator in BY_ROW for place in tracker.unknown)
    unseen = bool(reads) and run.doubt == UNSEEN  # as hooks of saved tensors do
    behind = unseen or bool(tracker.reads) or (own and not holds)
    steady = holds and not (reads or tracker.reads or tracker.unsteady)
    return Proof(holds, steady, run.trace, place, meeting, behind, by_row)


def _as_planned(owners: Tensor | None, grad: Tensor, layout: Layout | None) -> bool:
    """Whether everything that depends on a loss belongs to the example that the layout says."""
    if owners is None:
        return True
    if layout is None:
        return bool((owners == PUBLIC).all())
    if not layout.regular or of_rows(owners):  # each row is somebody's, and every batch tells whose
        return not bool((together(owners, [d for d in range(grad.dim()) if d != layout.dim]) == MIXED).any())
    shape = [1] * grad.dim()
    shape[layout.dim] = -1
    planned = (layout.owner(grad.device) + 1).to(DTYPE).view(shape)
    return bool(((owners == planned) | (owners == PUBLIC)).all())
