"""What is the loss of one example, where a model of ``transformers`` would average over the tokens of the batch?

The loss that such a model returns is one number, the mean over all tokens of all examples: how much one example counts
depends on how many tokens the others have, so no per-example bound exists for it. Here each example has the mean over
its own tokens, padding and ``ignore_index`` left out, as one value of a vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORED = -100


def token_losses(logits: Tensor, labels: Tensor, *, shift: bool, ignore_index: int = IGNORED) -> Tensor:
    """The mean cross-entropy over each example's own tokens, ``(B,)``; an example without any has loss 0.

    With ``shift`` the output at a token is compared with the label of the next one (causal language models).

    >>> logits, labels = torch.zeros(2, 3, 5), torch.tensor([[1, 2, 3], [1, 2, -100]])
    >>> token_losses(logits, labels, shift=True)
    tensor([1.6094, 1.6094])
    """
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    kept = labels != ignore_index
    each = F.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten().to(logits.device), ignore_index=ignore_index, reduction="none"
    ).view(labels.shape)
    total: Tensor = (each * kept).sum(1) / kept.sum(1).clamp(min=1)
    return total


def base_of(model: Any) -> nn.Module:
    """The model inside an adapter of PEFT."""
    found: nn.Module = model.get_base_model() if hasattr(model, "get_base_model") else model
    return found


def _kind(model: nn.Module) -> str:
    name = type(base_of(model)).__name__
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal"
    if name.endswith("ForConditionalGeneration") or name.endswith(("ForTokenClassification", "ForMaskedLM")):
        return "tokens"
    if name.endswith("ForQuestionAnswering"):
        return "span"
    if name.endswith(("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")):
        return "classes"
    if name.endswith("ForMultipleChoice"):
        return "classes"
    raise ValueError(
        f"what the loss of one example is for {name} is not known: pass loss=, a function (model, inputs) that returns "
        "one value per example"
    )


def per_example_loss(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """One loss per example for the usual heads of ``transformers``.

    Language models: the mean over the example's own labelled tokens. Classification: cross-entropy, or what
    ``config.problem_type`` says. Question answering: the mean of start and end.
    """
    kind = _kind(model)
    config = base_of(model).config
    given = dict(inputs)
    if kind == "span":
        starts, ends = given.pop("start_positions"), given.pop("end_positions")
        out = model(**given)
        return (_positions(out["start_logits"], starts) + _positions(out["end_logits"], ends)) / 2
    if "labels" not in given:
        raise ValueError("the batch has no 'labels': a private loss needs them, or pass loss=")
    labels = given["labels"]
    if not getattr(config, "is_encoder_decoder", False):
        del given["labels"]  # the model would average over the batch, for nothing
    logits = model(**given)["logits"]
    if kind == "causal":
        return token_losses(logits, labels, shift=True)
    if kind == "tokens":
        return token_losses(logits, labels, shift=False)
    return _classes(logits, labels, getattr(config, "problem_type", None))


def _positions(logits: Tensor, where: Tensor) -> Tensor:
    # A position outside the text says that the answer was cut off: such an example has no loss.
    inside = (where >= 0) & (where < logits.shape[1])
    each: Tensor = F.cross_entropy(logits.float(), where.clamp(0, logits.shape[1] - 1), reduction="none")
    return each * inside


def _classes(logits: Tensor, labels: Tensor, problem: str | None) -> Tensor:
    logits = logits.float()
    if problem is None:
        if logits.shape[-1] == 1:
            problem = "regression"
        else:
            problem = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
    if problem == "regression":
        rows = max(1, len(labels))
        return (logits.reshape(rows, -1) - labels.float().reshape(rows, -1)).square().mean(1)
    if problem == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").mean(1)
    found: Tensor = F.cross_entropy(logits, labels, reduction="none")
    return found


def blank(device: torch.device | str = "cpu") -> Tensor:
    """The loss of a batch without examples."""
    return torch.zeros((), device=device)
