"""Is a model right, refused, wrong, a crash, or truly mixed?

The truth is computed with nothing of tacit: each example alone through the model, an ordinary backward pass, clipped
and summed by hand. Whether a model mixes is measured the same way: an example's loss and gradient in its batch against
those it has alone. A model that mixes has no per-example bound, so the only right answer is a refusal.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tests.sgd.zoo_wide import Batch, Case, NotBuilt
from torch import Tensor, nn

from tacit import sgd

#: Relative errors: of what tacit returns, and of what another example may do to this one.
TOLERANCE = 1e-4
MIXES = {torch.float64: 1e-6, torch.float32: 1e-4}
#: Attributes that hold a probability of dropping, and others that draw.
DROPS = ("p", "drop_prob", "dropout", "layerdrop", "activation_dropout", "attention_dropout", "attn_drop", "drop")


def judge(case: Case, started: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The verdict on one case, as plain values.

    Args:
        case: The model with its loss and batches.
        started: Called when the truth is known and tacit begins.

    Returns:
        ``verdict`` (right, refused, wrong, crash, mixed), the measured errors, and the message of a refusal.
    """
    facts: dict[str, Any] = {"parameters": sum(p.numel() for p in case.model.parameters())}
    facts["fixed"] = len(sgd.fix(case.model))
    dtype = prepare(case)
    facts["type"], facts["mode"] = str(dtype).removeprefix("torch."), "train" if case.model.training else "eval"
    truths = [alone(case, batch) for batch in case.batches]
    moved = max(company(case, batch, truth) for batch, truth in zip(case.batches, truths, strict=True))
    facts["mixing"] = moved
    mixes = moved > MIXES[dtype]
    worst = 0.0
    started()
    for batch, truth in zip(case.batches, truths, strict=True):
        try:
            worst = max(worst, off(case, batch, truth))
        except sgd.ClippingError as error:
            words = {"error": type(error).__name__, "message": str(error)}
            return facts | words | {"verdict": "mixed" if mixes else "refused"}
        except Exception as error:  # noqa: BLE001 - anything else is a crash, which is what we are here to find
            return facts | {"verdict": "crash", "error": type(error).__name__, "message": str(error)}
    facts["off"] = worst
    if mixes:
        return facts | {"verdict": "wrong", "message": "it mixes examples and was not refused"}
    return facts | {"verdict": "right" if worst <= TOLERANCE else "wrong"}


def prepare(case: Case) -> torch.dtype:
    """Training mode without anything random, in 64 bits where the model can: evaluation mode where it stays random."""
    quiet(case.model)
    last: Exception | None = None
    for dtype in case.notes.get("types", (torch.float64, torch.float32)):
        case.model.to(dtype)
        case.batches = (_as(case.batches[0], dtype), _as(case.batches[1], dtype))
        for training in (True, False):
            case.model.train(training)
            for module in case.model.modules():
                if isinstance(module, nn.RNNBase):
                    module.train()
            try:
                if repeats(case):
                    return dtype
            except Exception as error:  # noqa: BLE001 - the other type or mode may do
                last = error
    raise NotBuilt(f"{type(last).__name__}: {last}" if last else "its losses differ from run to run")


def quiet(model: nn.Module) -> None:
    """Nothing is dropped."""
    for module in model.modules():
        for name in DROPS:
            if isinstance(vars(module).get(name), float):
                setattr(module, name, 0.0)


def repeats(case: Case) -> bool:
    """Whether every batch has one finite loss for each example, the same in every run."""
    for batch in case.batches:
        one, two = (case.loss(case.model, batch) for _ in range(2))
        if one.shape != (count(batch),):
            raise NotBuilt(f"its loss has shape {tuple(one.shape)}")
        if not one.requires_grad:
            raise NotBuilt("its loss depends on no parameter")
        if not torch.isfinite(one).all():
            raise NotBuilt("its loss is not finite")
        if not torch.equal(one, two):
            return False
        _ = case.loss(case.model, rows(batch, 0))
    return True


def count(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def rows(batch: Batch, k: int) -> Batch:
    return {key: value[k : k + 1] for key, value in batch.items()}


def gradients(loss: Tensor, parameters: dict[str, nn.Parameter], keep: bool = False) -> dict[str, Tensor]:
    """The gradient of a loss, densely."""
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, retain_graph=keep)
    return {
        n: torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g
        for (n, p), g in zip(parameters.items(), found, strict=True)
    }


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def alone(case: Case, batch: Batch) -> list[tuple[float, dict[str, Tensor]]]:
    """Loss and gradient of each example by itself; the model's buffers are put back."""
    kept = {n: b.clone() for n, b in case.model.named_buffers()}
    found = []
    for k in range(count(batch)):
        loss = case.loss(case.model, rows(batch, k)).sum()
        found.append((loss.item(), gradients(loss, trained(case.model))))
        _put_back(case.model, kept)
    return found


def company(case: Case, batch: Batch, truth: list[tuple[float, dict[str, Tensor]]]) -> float:
    """How far, relatively, an example's loss or gradient in its batch is from those it has alone: the largest."""
    kept = {n: b.clone() for n, b in case.model.named_buffers()}
    losses = case.loss(case.model, batch)
    moved = 0.0
    for k, (loss, gradient) in enumerate(truth):
        together = gradients(losses[k], trained(case.model), keep=True)
        moved = max(moved, abs(losses[k].item() - loss) / (abs(loss) + 1e-3))
        size, away = norm(gradient), norm({n: together[n].double() - g.double() for n, g in gradient.items()})
        moved = max(moved, away / (size + 1e-6))
    _put_back(case.model, kept)
    return moved


def norm(gradient: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(g.abs().double().square().sum()) for g in gradient.values()))


def off(case: Case, batch: Batch, truth: list[tuple[float, dict[str, Tensor]]]) -> float:
    """The largest relative error of the clipped sum and of a norm; about half of the examples are clipped."""
    sizes = [norm(gradient) for _, gradient in truth]
    bound = sorted(sizes)[len(sizes) // 2] * 0.99 or 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = sgd.clipped_grad(case.model, case.loss, batch, clip_norm=bound)
    wanted = {n: torch.zeros_like(g) for n, g in truth[0][1].items()}
    for (_, gradient), size in zip(truth, sizes, strict=True):
        for n, g in gradient.items():
            wanted[n] += g * min(1.0, bound / size if size > 0 else 1.0)
    away = norm({n: w - result.sums[n] for n, w in wanted.items()}) / (norm(wanted) + 1e-9)
    apart = [abs(float(a) - b) / (b + 1e-9) for a, b in zip(result.norms.flatten(), sizes, strict=True)]
    return max(away, *apart)


def _as(batch: Batch, dtype: torch.dtype) -> Batch:
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}


def _put_back(model: nn.Module, kept: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        if name in kept and kept[name].shape == buffer.shape:
            buffer.data.copy_(kept[name])
