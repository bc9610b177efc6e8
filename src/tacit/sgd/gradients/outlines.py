"""What has to be the same in two passes for what is known of one to hold for the other?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from tacit.sgd.gradients import frames
from tacit.sgd.gradients.contributions import Layout
from tacit.sgd.gradients.rows import ByRow

if TYPE_CHECKING:
    from tacit.sgd.gradients.engine import Pass

#: Dimensions that hold rows which are found in every batch: use, output, dimension.
MovingRows = list[tuple[int, int, int]]


def moving_rows(layouts: list[list[Layout | None]]) -> MovingRows:
    """Where a plan says nothing about how many rows there are."""
    return [
        (k, j, layout.dim) for k, use in enumerate(layouts) for j, layout in enumerate(use) if isinstance(layout, ByRow)
    ]


def outline(run: Pass, grads: list[list[Tensor | None]]) -> Any:
    """A signature without sizes: what has to be the same for layouts to be those of another batch size."""
    return (
        run.context,
        tuple(
            (
                use.name,
                tuple(len(shape) for shape in use.shapes),
                tuple(g is None for g in grad),
                tuple((tuple(sorted(d.params)), d.tensor.dim()) for d in use.derived),
            )
            for use, grad in zip(run.uses, grads, strict=True)
        ),
    )


def signature(run: Pass, grads: list[list[Tensor | None]], rows: dict[Any, MovingRows]) -> Any:
    """What has to be the same for a plan, and the checks of it, to hold; ``rows`` may be of any number, by outline."""
    shapes: list[list[Any]] = [list(use.shapes) for use in run.uses]
    for k, j, dim in rows.get(outline(run, grads), ()) if rows else ():
        shapes[k][j] = (*shapes[k][j][:dim], "rows", *shapes[k][j][dim + 1 :])
    return (
        run.context,
        run.batch,
        tuple(
            (
                use.name,
                tuple(sizes),
                tuple(g is None for g in grad),
                tuple(
                    (tuple(sorted(d.params)), d.tensor.shape, frames.chain_key(d) if d.chain else d.chain)
                    for d in use.derived
                ),
            )
            for use, sizes, grad in zip(run.uses, shapes, grads, strict=True)
        ),
    )
