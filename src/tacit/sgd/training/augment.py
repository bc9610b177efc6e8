"""How are several random views of one record used without paying for each?

The views of a record are averaged *before* clipping, so that adding or removing the record still changes the sum by at
most the clip norm (De et al. 2022, section 3.4, "augmentation multiplicity"). Clipping each view on its own would
multiply the sensitivity by their number.

An augmentation is a function of **one** example, mapped over the batch by ``torch.func.vmap``: it cannot mix examples
(as mixup or cutmix would), so the guarantee needs no promise from whoever writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.torch_compat import pytree

#: From one example (what the data hold, without the batch dimension) to one random view of it.
Augment = Callable[[Any], Any]


def views_of(batch: Any, augment: Augment, views: int) -> Any:
    """``views`` random views of each row, one after the other: row i becomes rows i·views to (i + 1)·views - 1.

    >>> batch = (torch.arange(6.0).reshape(2, 3), torch.tensor([0, 1]))
    >>> x, y = views_of(batch, lambda example: (example[0] + 1, example[1]), 2)
    >>> x.shape, y.tolist()
    (torch.Size([4, 3]), [0, 0, 1, 1])
    """
    many = repeat(batch, views)
    return torch.func.vmap(augment, randomness="different")(many)


def repeat(batch: Any, views: int) -> Any:
    """Each row ``views`` times."""
    return pytree.tree_map_only(Tensor, lambda t: t.repeat_interleave(views, 0), batch)


def crops(padding: int, *, flips: bool = False) -> Augment:
    """Random shifts of ``(image, label)`` by at most ``padding`` pixels (edges repeated); ``flips``: mirror images too.

    >>> image, label = crops(2, flips=True)((torch.rand(1, 28, 28), torch.tensor(3)))
    >>> image.shape
    torch.Size([1, 28, 28])
    """
    if padding < 0:
        raise ValueError(f"padding is a number of pixels, not {padding}")

    def view(example: Any) -> Any:
        image, *rest = example
        height, width = image.shape[-2:]
        draw = torch.randint(0, 2 * padding + 1, (2,), device=image.device) - padding
        rows = (torch.arange(height, device=image.device) + draw[0]).clamp(0, height - 1)
        columns = (torch.arange(width, device=image.device) + draw[1]).clamp(0, width - 1)
        if flips:
            mirrored = torch.rand((), device=image.device) < 0.5
            columns = torch.where(mirrored, columns.flip(0), columns)
        return (image[..., rows, :][..., columns], *rest)

    return view
