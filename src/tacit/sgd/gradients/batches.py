"""What is a batch, and what is the loss of each of its examples?

A batch is any tree of tensors (tuples, lists, dicts) with the examples in the first dimension of each. A loss is a
function ``loss(model, batch)`` that returns one value per example, or a criterion module with ``reduction="none"``
for batches ``(inputs, targets)``.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from tacit.sgd.torch_compat import FUNCTIONAL_BUILTINS, pytree

Loss: TypeAlias = Callable[[nn.Module, Any], Tensor] | nn.Module


def leaves(batch: Any) -> list[Tensor]:
    """The tensors of a batch."""
    return [leaf for leaf in pytree.tree_leaves(plain(batch)) if isinstance(leaf, Tensor)]


def plain(batch: Any) -> Any:
    """Mappings that are not dicts (a tokenizer's output, say) as dicts, so that batches are ordinary trees."""
    if isinstance(batch, Mapping):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return type(batch)(plain(item) for item in batch)
    return batch


def rows_of(batch: Any) -> int:
    """The common leading dimension of a batch."""
    sizes = {leaf.shape[0] if leaf.dim() else None for leaf in leaves(batch)}
    if len(sizes) != 1 or None in sizes:
        raise ValueError(
            "every tensor of the batch must have the examples in its first dimension, the same number in all of them"
        )
    return int(sizes.pop())  # type: ignore[arg-type]


def numbers(value: Any, rows: int) -> bool:
    """Whether this is a list of plain numbers, one for each row (lengths, say)."""
    return type(value) in (list, tuple) and len(value) == rows and all(isinstance(v, int | float) for v in value)


def take(batch: Any, index: Any) -> Any:
    """Some rows of a batch."""
    rows = rows_of(batch)

    def some(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[index.to(value.device) if isinstance(index, Tensor) else index]
        if numbers(value, rows):
            chosen = index.tolist() if isinstance(index, Tensor) else range(rows)[index]
            return type(value)(value[k] for k in chosen)
        return value

    return pytree.tree_map(some, batch, is_leaf=lambda value: numbers(value, rows))


_OUTPUT_NAMES: tuple[str, ...] = ("input", "output", "outputs", "out", "logits", "scores", "pred", "preds")
_OUTPUT_NAMES += ("prediction", "predictions")
_OUTPUT_NAMES += ("y_pred", "y_hat")


def is_criterion(loss: Loss) -> bool:
    """Whether a loss compares outputs with targets, rather than taking the model and the batch itself.

    Criteria are modules, functions of ``torch.nn.functional``, and functions of two arguments of which the first is
    called ``input``, ``output``, ``logits``, ``pred`` or the like.

    >>> import torch.nn.functional as F
    >>> is_criterion(F.cross_entropy), is_criterion(lambda logits, y: 0), is_criterion(lambda model, batch: 0)
    (True, True, False)
    """
    if isinstance(loss, nn.Module):
        return True
    inner = getattr(loss, "func", loss)
    if getattr(inner, "__module__", None) in ("torch.nn.functional", FUNCTIONAL_BUILTINS):
        return True
    try:
        names = list(inspect.signature(loss).parameters.values())
    except (TypeError, ValueError):
        return False
    required = [
        p.name for p in names if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 2 and required[0] in _OUTPUT_NAMES


def row_losses(model: nn.Module, loss: Loss, batch: Any) -> Tensor:
    """One loss per row of the batch."""
    if not is_criterion(loss):
        return loss(model, batch)
    name = getattr(getattr(loss, "func", loss), "__name__", type(loss).__name__)
    if getattr(loss, "reduction", "none") != "none":
        raise ValueError(
            f"{name} averages over the batch: build it with reduction='none'. See: tacit explain loss-shape"
        )
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise ValueError(
            "a criterion compares outputs with targets, so the batch must be a pair (inputs, targets). For other "
            "batches write a function loss(model, batch). See: tacit explain loss-shape"
        )
    inputs, targets = batch
    if isinstance(inputs, dict):
        outputs = model(**inputs)
    elif isinstance(inputs, list | tuple):
        outputs = model(*inputs)
    else:
        outputs = model(inputs)
    if not isinstance(loss, nn.Module) and _reduces(loss):
        reducing: Callable[..., Tensor] = loss
        losses = reducing(outputs, targets, reduction="none")
    else:
        losses = loss(outputs, targets)
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def _reduces(loss: Any) -> bool:
    """Whether a function would average unless told otherwise."""
    try:
        reduction = inspect.signature(loss).parameters.get("reduction")
    except (TypeError, ValueError):
        return False
    return reduction is not None and reduction.default != "none"


def weakly(value: Any) -> Callable[[], Any]:
    """The value for as long as somebody else keeps it; nothing, of one that cannot be held so."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: None
