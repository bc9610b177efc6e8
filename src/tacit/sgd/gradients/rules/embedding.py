"""Per-example gradients of tables that are looked up: embedding, indexing with a tensor, embedding bags."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.sgd.errors import UncoveredUse
from tacit.sgd.gradients.capture import Use
from tacit.sgd.gradients.contributions import Contributions, Layout, NotCovered, OneHot, bind, rule, single, wide

_FREQUENCY = (
    "{!r} in {} divides gradients by how often an index occurs in the whole batch: set scale_grad_by_freq=False"
)
_RENORM = "{!r} in {} rescales the rows that the batch looks up, which reveals them: set max_norm=None"


def _looked_up(
    use: Use, table: object, index: Tensor, grad: Tensor, layout: Layout, padding: int | None
) -> Contributions:
    known = use.find(table)
    if known is None or use.find(index) is not None or known.tensor.dim() < 1:
        raise NotCovered
    if layout.dim >= index.dim():
        raise NotCovered
    rows = known.tensor.shape[0]
    grad = grad.to(wide(grad.dtype))
    flat_index = layout.rows(index)
    split = layout.split(grad).movedim(layout.dim + 1, 0)
    right = split.reshape(layout.batch, flat_index.shape[1], -1)
    flat_index = torch.where(flat_index < 0, flat_index + rows, flat_index)
    if padding is not None:
        # Filled, not multiplied: behind a norm, the gradient at a row of zeros is no number, and nobody takes it.
        right = right.masked_fill((flat_index == (padding % rows)).unsqueeze(-1), 0.0)
    return [(known, OneHot(flat_index, right, rows))]


@rule("embedding")
def embedding(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    functional = getattr(use.func, "__module__", "") == "torch.nn.functional"
    if functional:
        bound = bind(use.args, use.kwargs, "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse")
        if bound["max_norm"] is not None:
            raise UncoveredUse(_RENORM.format(use.name, use.where))
        padding = bound["padding_idx"]
    else:
        bound = bind(use.args, use.kwargs, "weight input padding_idx scale_grad_by_freq sparse indices")
        bound["input"] = bound["input"] if bound["input"] is not None else bound["indices"]
        padding = None if bound["padding_idx"] in (None, -1) else bound["padding_idx"]
    if bound["scale_grad_by_freq"]:
        raise UncoveredUse(_FREQUENCY.format(use.name, use.where))
    return _looked_up(use, bound["weight"], bound["input"], grad, layout, padding)


@rule("__getitem__")
def getitem(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    table, index = use.args
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if not isinstance(index, Tensor) or index.dtype not in (torch.int64, torch.int32):
        raise NotCovered
    return _looked_up(use, table, index, grad, layout, None)


@rule("index_select")
def index_select(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input dim index")
    if bound["dim"] not in (0, -bound["input"].dim()):
        raise NotCovered
    return _looked_up(use, bound["input"], bound["index"], grad, layout, None)


@rule("embedding_bag")
def embedding_bag(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    """Sums and means over bags of equal length, given as two-dimensional input; others go to the generic rule."""
    if getattr(use.func, "__module__", "") != "torch.nn.functional":
        raise NotCovered
    grad, layout = single(grads, layouts)
    names = "input weight offsets max_norm norm_type scale_grad_by_freq mode sparse per_sample_weights"
    bound = bind(use.args, use.kwargs, names + " include_last_offset padding_idx")
    index, mode, scale = bound["input"], bound["mode"] or "mean", bound["per_sample_weights"]
    if bound["scale_grad_by_freq"]:
        raise UncoveredUse(_FREQUENCY.format(use.name, use.where))
    if bound["max_norm"] is not None:
        raise UncoveredUse(_RENORM.format(use.name, use.where))
    if mode not in ("sum", "mean"):
        raise NotCovered
    if use.find(bound["weight"]) is None or (scale is not None and use.find(scale) is not None):
        raise NotCovered
    grad = grad.to(wide(grad.dtype))
    if index.dim() != 2:
        raise NotCovered
    rows = bound["weight"].shape[0]
    kept = torch.ones_like(index, dtype=grad.dtype)
    if bound["padding_idx"] is not None:
        kept = (index != bound["padding_idx"] % rows).to(grad.dtype)
    weights = kept if scale is None else kept * scale
    if mode == "mean":
        weights = weights / kept.sum(1, keepdim=True).clamp(min=1)
    full = grad.unsqueeze(1) * weights.unsqueeze(-1)  # (bags, length, q)
    return _looked_up(use, bound["weight"], index, full, layout, None)
