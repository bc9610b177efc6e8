"""``transformers``: one class for every model type of six automatic classes, from a tiny configuration.

The rule: the types that ``AutoModelForCausalLM``, ``…MaskedLM``, ``…Seq2SeqLM``, ``…ImageClassification``,
``…AudioClassification`` and ``…SequenceClassification`` know, each with the class of the first of these that lists it.
A configuration is made tiny by the names of its parameters (``SMALL``); what a type needs beyond that is in
:mod:`tests.sgd.zoo_wide.tiny`.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from tests.sgd.zoo_wide import Batch, Case, NotBuilt
from tests.sgd.zoo_wide.tiny import LABELS, VOCAB, tiny
from torch import Tensor, nn

hf.logging.set_verbosity_error()

#: The automatic classes, in the order in which they claim a type, and what their members are trained to do.
HEADS = {
    "CAUSAL_LM": "next",
    "MASKED_LM": "tokens",
    "SEQ_TO_SEQ_CAUSAL_LM": "pairs",
    "IMAGE_CLASSIFICATION": "image",
    "AUDIO_CLASSIFICATION": "audio",
    "SEQUENCE_CLASSIFICATION": "text",
}
EXAMPLES, LENGTH = 3, 8
#: How many tokens of each example are real, in the first batch and in the second.
LENGTHS = ((8, 5, 6), (4, 8, 7))


def chosen() -> dict[str, tuple[str, str]]:
    """Each model type with its head and the name of its class."""
    from transformers.models.auto import modeling_auto

    found: dict[str, tuple[str, str]] = {}
    for head in HEADS:
        for kind, name in getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES").items():
            found.setdefault(kind, (head, name[0] if isinstance(name, tuple | list) else name))
    return found


def members() -> list[str]:
    return sorted(chosen())


def build(kind: str) -> Case:
    head, name = chosen()[kind]
    try:
        model = getattr(hf, name)(tiny(kind, HEADS[head]))
    except Exception as error:
        raise NotBuilt(f"{type(error).__name__}: {error}") from error
    task = HEADS[head]
    if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in takes(model):
        task = {"next": "next", "tokens": "pairs", "text": "pairs_text"}.get(task, task)
    batches = tuple(batch(model, task, k) for k in (0, 1))
    return Case(model, LOSSES[task], batches, {"class": name})  # type: ignore[arg-type]


def takes(model: nn.Module) -> list[str]:
    return list(inspect.signature(model.forward).parameters)


def tokens(model: nn.Module, which: int) -> Batch:
    """Padded texts: right padding of another length for each example and batch."""
    ids = torch.randint(5, VOCAB, (EXAMPLES, LENGTH))
    mask = torch.ones_like(ids)
    if "attention_mask" in takes(model):
        for row, length in enumerate(LENGTHS[which]):
            mask[row, length:] = 0
        ids = torch.where(mask.bool(), ids, torch.zeros_like(ids))
    return {"input_ids": ids, "attention_mask": mask}


def batch(model: nn.Module, task: str, which: int) -> Batch:
    """The first or the second batch for a task."""
    config: Any = model.config
    if task == "image":
        size = getattr(getattr(config, "vision_config", config), "image_size", 32)
        height, width = size if isinstance(size, tuple | list) else (size, size)
        channels = getattr(getattr(config, "vision_config", config), "num_channels", 3)
        pixels = torch.randn(EXAMPLES, channels, height, width) * (1 + which)
        return {"pixel_values": pixels, "target": torch.randint(LABELS, (EXAMPLES,))}
    if task == "audio":
        name = getattr(model, "main_input_name", "input_values")
        shape: tuple[int, ...] = (EXAMPLES, 2000)
        if name == "input_features":
            shape = (EXAMPLES, 16, 8) if "mel" not in str(config) else (EXAMPLES, 8, 16)
        if hasattr(config, "max_length") and hasattr(config, "num_mel_bins"):
            shape = (EXAMPLES, config.max_length, config.num_mel_bins)
        return {name: torch.randn(shape) * (1 + which), "target": torch.randint(LABELS, (EXAMPLES,))}
    found = tokens(model, which)
    if task in ("pairs", "next") and "decoder_input_ids" in takes(model):
        found["decoder_input_ids"] = torch.randint(5, VOCAB, (EXAMPLES, 6))
    if task in ("text", "pairs_text"):
        found["target"] = torch.randint(LABELS, (EXAMPLES,))
    return found


def outputs(model: nn.Module, batch: Batch) -> Tensor:
    known = takes(model)
    given: dict[str, Any] = {k: v for k, v in batch.items() if k in known}
    if "use_cache" in known:
        given["use_cache"] = False
    found = model(**given)
    if "logits" in found:
        return found.logits
    return next(v for v in found.values() if isinstance(v, Tensor) and v.is_floating_point())


def words(logits: Tensor, targets: Tensor, kept: Tensor) -> Tensor:
    """Cross-entropy, averaged over the kept tokens of each example."""
    if logits.dim() == 4:  # several code books
        logits = logits.mean(1) if logits.shape[1] != targets.shape[1] else logits.mean(2)
    if logits.shape[0] != targets.shape[0]:
        logits = logits.unflatten(0, (targets.shape[0], -1)).mean(1)
    length = min(logits.shape[1], targets.shape[1])
    targets = targets[:, :length].clamp(max=logits.shape[-1] - 1)
    losses = F.cross_entropy(logits[:, :length].transpose(1, 2), targets, reduction="none")
    weight = kept[:, :length].to(losses.dtype)
    return (losses * weight).sum(1) / weight.sum(1)


def following(model: nn.Module, batch: Batch) -> Tensor:
    """The next token, for those that are not padding."""
    if "decoder_input_ids" in batch:
        return pairs(model, batch)
    logits = outputs(model, batch)
    return words(logits[:, :-1], batch["input_ids"][:, 1:], batch["attention_mask"][:, 1:])


def same(model: nn.Module, batch: Batch) -> Tensor:
    """Each token again."""
    return words(outputs(model, batch), batch["input_ids"], batch["attention_mask"])


def pairs(model: nn.Module, batch: Batch) -> Tensor:
    """The answer's next token."""
    target = batch.get("decoder_input_ids", batch["input_ids"])
    return words(outputs(model, batch)[:, :-1], target[:, 1:], torch.ones_like(target[:, 1:]))


def classes(model: nn.Module, batch: Batch) -> Tensor:
    """One label for the example."""
    logits = outputs(model, batch)
    return F.cross_entropy(logits.flatten(1)[:, :LABELS], batch["target"], reduction="none")


LOSSES = {
    "next": following,
    "tokens": same,
    "pairs": pairs,
    "image": classes,
    "audio": classes,
    "text": classes,
    "pairs_text": classes,
}
