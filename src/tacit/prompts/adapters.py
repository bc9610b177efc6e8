"""Which few weights are trained, and where do they start? Soft prompts, prefixes and LoRA, as ``peft`` makes them.

A soft prompt and a prefix start as a public text: the soft prompt as the embeddings of its tokens, the prefix as their
keys and values. The first step of training then begins where that text in front of every query would be.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tacit.prompts.errors import LanguageModelError, PromptError
from tacit.prompts.models import LanguageModel, optional

METHODS = ("soft", "prefix", "lora")
#: Methods that train virtual tokens.
TOKENS = ("soft", "prefix")


def adapt(
    language: LanguageModel,
    method: str,
    *,
    start: str = "",
    virtual_tokens: int | None = None,
    rank: int = 4,
    modules: Any = None,
    freeze_a: bool = False,
    config: Any = None,
) -> nn.Module:
    """The model with an adapter whose weights alone can be trained: a model of ``peft``.

    ``start`` is a public text for a soft prompt or prefix, repeated or cut to ``virtual_tokens``. ``rank`` and
    ``modules`` are LoRA's; ``freeze_a`` trains only the second of its two matrices, which halves the noise's dimension
    (Sun et al. 2024). ``config`` is a configuration of ``peft`` in place of all these.
    """
    ids = language._ids(start) if start and method in TOKENS else []
    if config is None:
        config, ids = _configured(language, method, ids, virtual_tokens, rank, modules)
    language.model.requires_grad_(False)
    adapted = _with_adapter(language.model, config, named=modules is not None)
    if ids and method == "soft":
        _start_soft(adapted, ids)
    elif ids and method == "prefix":
        _start_prefix(adapted, language, ids)
    if freeze_a:
        for name, parameter in adapted.named_parameters():
            if "lora_A" in name or "lora_embedding_A" in name:
                parameter.requires_grad_(False)
    if not any(p.requires_grad for p in adapted.parameters()):
        raise LanguageModelError("the adapter has no weights to train: check config= or freeze_a=")
    return adapted.eval()


def _configured(
    language: LanguageModel, method: str, ids: list[int], virtual_tokens: int | None, rank: int, modules: Any
) -> tuple[Any, list[int]]:
    """The configuration of ``peft`` for a method, and the tokens that a soft prompt or prefix starts as."""
    peft = optional("peft")
    if method not in METHODS:
        raise PromptError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    task = "FEATURE_EXTRACTION" if language.masked else "CAUSAL_LM"
    if method == "lora":
        if rank < 1:
            raise PromptError(f"rank must be a positive whole number, not {rank}")
        return peft.LoraConfig(
            task_type=task, r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=modules, bias="none"
        ), []
    if method == "prefix" and language.masked:
        raise PromptError("prefix tuning needs a model that continues text; use 'soft' or 'lora' for a masked one")
    count = virtual_tokens if virtual_tokens is not None else len(ids)
    if count < 1:
        raise PromptError("a soft prompt needs at least one virtual token: give start= or virtual_tokens=")
    if count >= language.context:
        raise PromptError(f"{count} virtual tokens leave no room: the model takes {language.context}")
    kind = peft.PromptTuningConfig if method == "soft" else peft.PrefixTuningConfig
    return kind(task_type=task, num_virtual_tokens=count), (ids * (count // max(len(ids), 1) + 1))[:count]


def _with_adapter(model: nn.Module, config: Any, *, named: bool) -> nn.Module:
    """The model with its adapter; ``named``: the user said which layers LoRA goes to."""
    try:
        with warnings.catch_warnings():
            # A model that was not loaded from the hub has no name for peft to note; that is no concern of training.
            warnings.simplefilter("ignore")
            adapted: nn.Module = optional("peft").get_peft_model(model, config)
    except ValueError as error:
        if not named and "target_modules" in str(error):
            raise LanguageModelError(
                "peft does not know which layers of this model to adapt: give modules=, their names or 'all-linear'"
            ) from error
        raise
    return adapted


def _encoder(adapted: Any) -> Any:
    return adapted.prompt_encoder[adapted.active_adapter]


def _start_soft(adapted: Any, ids: list[int]) -> None:
    table = adapted.get_base_model().get_input_embeddings().weight
    with torch.no_grad():
        _encoder(adapted).embedding.weight.copy_(table[torch.tensor(ids, device=table.device)])


def _start_prefix(adapted: Any, language: LanguageModel, ids: list[int]) -> None:
    """The keys and values of the start text, laid out as peft cuts its one matrix: layers, key then value, heads."""
    base = adapted.get_base_model()
    with torch.no_grad():
        cache = base(input_ids=torch.tensor([ids], device=language.device), use_cache=True).past_key_values
    weight = _encoder(adapted).embedding.weight
    parts = []
    for keys, values in _layers(cache):
        for part in (keys, values):
            parts.append(part[0].transpose(0, 1).reshape(len(ids), -1))
    whole = torch.cat(parts, 1)
    if whole.shape != weight.shape:
        raise LanguageModelError(
            f"the keys and values of this model have width {whole.shape[1]}, and peft's prefix has {weight.shape[1]}: "
            "use method='soft' or 'lora'"
        )
    with torch.no_grad():
        weight.copy_(whole.to(weight.dtype))


def _layers(cache: Any) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer, whichever way this version of ``transformers`` keeps them."""
    if hasattr(cache, "layers"):
        return [(layer.keys, layer.values) for layer in cache.layers]
    return [(pair[0], pair[1]) for pair in cache]


class AdaptedModel(nn.Module):
    """An adapted model whose state is what is trained: a checkpoint holds the adapter, not the language model."""

    def __init__(self, adapted: nn.Module) -> None:
        super().__init__()
        self.adapted = adapted

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The adapted model's answer."""
        return self.adapted(*args, **kwargs)

    def trainable(self) -> list[nn.Parameter]:
        """The weights that are trained."""
        return [p for p in self.parameters() if p.requires_grad]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The adapter's weights, trained or (LoRA's frozen half) not."""
        return {n: p.detach() for n, p in self.adapted.named_parameters() if _ours(n, p)}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Put the adapter's weights back."""
        own = self.state_dict()
        if own.keys() != state.keys():
            raise ValueError("this checkpoint belongs to another adapter")
        with torch.no_grad():
            for name, value in state.items():
                own[name].copy_(value)
        return None


def _ours(name: str, parameter: Tensor) -> bool:
    return parameter.requires_grad or "lora_" in name or "prompt_encoder" in name
