"""``peft``: every method (``PeftType``) on a tiny language model and on a tiny network of convolutions.

The rule: all values of ``PeftType``, each with the configuration that ``peft`` maps it to. What a method needs
beyond the names of the layers is in ``MORE``. A method that does not take convolutions is not built there.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftType, get_peft_model
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from tests.sgd.zoo_wide import Case, NotBuilt, texts
from tests.sgd.zoo_wide.images import batch as picture_batch
from tests.sgd.zoo_wide.images import pictures
from tests.sgd.zoo_wide.tiny import LABELS, tiny
from torch import Tensor, nn
from transformers import LlamaForCausalLM

TARGETS = {"language": ["q_proj", "v_proj"], "convolutions": ["conv", "out"]}
#: Ranks and the like: used where a configuration has such a parameter.
SMALL: dict[str, Any] = {
    "r": 2,
    "rank": 2,
    "num_virtual_tokens": 3,
    "lora_alpha": 4,
    "n_frequency": 10,
    "block_size": 4,
    "num_layers": 2,
    "encoder_hidden_size": 8,
    "init_weights": False,
}
MORE: dict[str, dict[str, Any]] = {
    "ADALORA": {"total_step": 10, "init_r": 2, "target_r": 2},
    "ADAPTION_PROMPT": {"adapter_len": 2, "adapter_layers": 1},
    "BOFT": {"boft_block_size": 4},
    "OFT": {"oft_block_size": 4, "r": 0},
    "LOKR": {"r": 2},
    "TRAINABLE_TOKENS": {"token_indices": [5, 7, 9], "target_modules": ["embed_tokens"]},
    "LN_TUNING": {"target_modules": ["input_layernorm"]},
    "IA3": {"feedforward_modules": []},
    "VBLORA": {"num_vectors": 8, "vector_length": 4, "topk": 2},
    "RANDLORA": {"r": 2},
    "C3A": {"block_size": 4},
    "CPT": {"cpt_token_ids": [5, 6, 7], "cpt_mask": [1, 1, 1], "cpt_tokens_type_mask": [1, 2, 3]},
    "POLY": {"n_tasks": 1, "n_skills": 2},
    "WAVEFT": {"n_frequency": 10},
    "MISS": {"r": 2},
    "MULTITASK_PROMPT_TUNING": {"num_tasks": 1},
}


def members() -> list[str]:
    return [f"{kind.value}-{base}" for kind in PeftType for base in TARGETS]


class Convolutions(nn.Module):
    """Two convolutions and a layer for the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.conv = nn.Conv2d(8, 8, 3)
        self.out = nn.Linear(8, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.conv(torch.relu(self.stem(x)))).mean((2, 3)))


def options(kind: str, base: str) -> dict[str, Any]:
    config = PEFT_TYPE_TO_CONFIG_MAPPING[PeftType(kind)]
    known = texts.inspect.signature(config.__init__).parameters
    found = {k: v for k, v in SMALL.items() if k in known}
    if "target_modules" in known:
        found["target_modules"] = TARGETS[base]
    if base == "language":
        found["task_type"] = "CAUSAL_LM"
    return {k: v for k, v in (found | MORE.get(kind, {})).items() if k in known}


def build(name: str) -> Case:
    kind, base = name.rsplit("-", 1)
    plain: nn.Module = LlamaForCausalLM(tiny("llama", "next")) if base == "language" else Convolutions()
    try:
        given = options(kind, base)
        try:
            model = get_peft_model(plain, PEFT_TYPE_TO_CONFIG_MAPPING[PeftType(kind)](**given))  # type: ignore[arg-type]
        except (TypeError, ValueError, AssertionError):
            given.pop("init_weights", None)
            model = get_peft_model(plain, PEFT_TYPE_TO_CONFIG_MAPPING[PeftType(kind)](**given))  # type: ignore[arg-type]
    except Exception as error:
        raise NotBuilt(f"{type(error).__name__}: {error}") from error
    stir(model)
    if base == "convolutions":
        return Case(model, pictures, (picture_batch(16, 0), picture_batch(16, 1)), {"class": kind})
    prompted = given.get("num_virtual_tokens") or len(given.get("cpt_token_ids", ()))

    def following(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        more = {"task_ids": torch.zeros(len(batch["input_ids"]), dtype=torch.long)} if kind in TASKS else {}
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False, **more)
        found = logits.logits[:, -texts.LENGTH :] if prompted else logits.logits
        return texts.words(found[:, :-1], batch["input_ids"][:, 1:], batch["attention_mask"][:, 1:])

    both = tuple(texts.tokens(plain, which) for which in (0, 1))
    return Case(model, following, both, {"class": kind})  # type: ignore[arg-type]


#: Methods that are told the task of every example.
TASKS = ("MULTITASK_PROMPT_TUNING", "POLY")


def stir(model: nn.Module) -> None:
    """Adapters that begin as nothing have gradients of zero in one half: move them off that point."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.is_floating_point():
            parameter.data.add_(torch.randn_like(parameter) * 0.02)
