"""What is the loss of one example, when a model of ``transformers`` averages over all tokens of the batch?

Such a model returns one number, the mean over all tokens of all examples. How much an example counts then depends on
how many tokens the others have, so no per-example bound exists. Here each example gets the mean over its own tokens,
without padding and ``ignore_index``: a vector with one value per example.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORED = -100


def token_losses(logits: Tensor, labels: Tensor, *, shift: bool, ignore_index: int = IGNORED) -> Tensor:
    """Compute the mean cross-entropy over each example's own tokens.

    Args:
        logits: Scores of shape (examples, tokens, classes).
        labels: Class numbers of shape (examples, tokens).
        shift: Whether the output at a token is compared with the label of the next one (causal language models).
        ignore_index: Tokens with this label do not count.

    Returns:
        One loss per example. It is 0 for an example without labelled tokens.

    Example:
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
        f"tacit does not know the loss of one example for {name}: pass loss=, a function (model, inputs) that returns "
        "one value per example. See: tacit explain mixed-loss"
    )


def per_example_loss(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Compute one loss per example for the usual heads of ``transformers``.

    Language models get the mean over the example's own labelled tokens; classification gets the cross-entropy, or what
    ``config.problem_type`` says; question answering gets the mean of the losses of start and end.

    Args:
        model: A model of ``transformers``, or a PEFT adapter around one, whose class name ends in ``ForCausalLM``,
            ``LMHeadModel``, ``ForConditionalGeneration``, ``ForMaskedLM``, ``ForTokenClassification``,
            ``ForSequenceClassification``, ``ForImageClassification``, ``ForAudioClassification``, ``ForMultipleChoice``
            or ``ForQuestionAnswering``.
        inputs: A batch as the model takes it, with ``labels`` (question answering: ``start_positions`` and
            ``end_positions``).

    Returns:
        A vector with one loss per example.

    Raises:
        ValueError: If the model has another head, or the batch has no ``labels``.

    Example:
        >>> from types import SimpleNamespace
        >>> class TinyForSequenceClassification(nn.Module):
        ...     config = SimpleNamespace(problem_type=None)
        ...     def forward(self, x):
        ...         return {"logits": x}
        >>> batch = {"x": torch.zeros(3, 2), "labels": torch.tensor([0, 1, 1])}
        >>> per_example_loss(TinyForSequenceClassification(), batch)
        tensor([0.6931, 0.6931, 0.6931])
    """
    kind = _kind(model)
    config = base_of(model).config
    given = dict(inputs)
    if kind == "span":
        starts, ends = given.pop("start_positions"), given.pop("end_positions")
        out = model(**given)
        return (_positions(out["start_logits"], starts) + _positions(out["end_logits"], ends)) / 2
    if "labels" not in given:
        raise ValueError("the batch has no 'labels': add them, or pass loss=, a function (model, inputs) of your own")
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
    # A position outside the text means that the answer was cut off: such an example has loss 0.
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
