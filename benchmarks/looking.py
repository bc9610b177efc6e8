"""What does a private step of a model cost that reads values of its batch, or counts positions in it?

``python -m benchmarks looking [--width 192] [--examples 16] [--length 64] [name ...]`` takes two layers of each model
of transformers, with weights at random, and texts of other lengths in every batch. It prints CPU time over that of a
plain step, and how often a plan was made after the first two batches.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.experts import seconds
from tacit import sgd
from tacit.sgd.gradients import planning

WORDS, SIDE = 97, 32


def _texts(width: int, length: int) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 2 * width}
    return sizes | {"vocab_size": WORDS, "max_position_embeddings": length + 8, "pad_token_id": 1}


def _pictures(width: int) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 2 * width}
    return sizes | {"image_size": SIDE, "patch_size": 8, "projection_dim": width}


def built(name: str, width: int, length: int) -> Any:
    """A model of a family."""
    hf: Any = importlib.import_module("transformers")

    def masked(kind: str, **more: Any) -> nn.Module:
        config = getattr(hf, f"{kind}Config")(**_texts(width, length), **more)
        made: nn.Module = getattr(hf, f"{kind}ForMaskedLM")(config)
        return made

    pairs = {"d_model": width, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
    pairs |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 2 * width, "decoder_ffn_dim": 2 * width}
    pairs |= {"vocab_size": WORDS, "pad_token_id": 1}
    if name in ("BERT", "RoBERTa", "Longformer"):
        kind = {"BERT": "Bert", "RoBERTa": "Roberta", "Longformer": "Longformer"}[name]
        return masked(kind, **({"attention_window": 16} if name == "Longformer" else {}))
    if name == "XLM":
        sizes = {"vocab_size": WORDS, "emb_dim": width, "n_layers": 2, "n_heads": 4, "pad_index": 1}
        return hf.XLMWithLMHeadModel(hf.XLMConfig(**sizes, max_position_embeddings=length + 8))
    if name == "BART":
        return hf.BartForConditionalGeneration(hf.BartConfig(**pairs, max_position_embeddings=length + 8))
    if name == "LED":
        places = {"max_encoder_position_embeddings": length + 8, "max_decoder_position_embeddings": length + 8}
        return hf.LEDForConditionalGeneration(hf.LEDConfig(**pairs, **places, attention_window=16))
    text = {**_texts(width, length), "bos_token_id": 0, "eos_token_id": 2}
    if name == "CLIP":
        made = hf.CLIPConfig(text_config=text, vision_config=_pictures(width), projection_dim=width)
        return hf.CLIPModel(made)
    seen = hf.CLIPVisionConfig(**_pictures(width))
    spoken = hf.LlamaConfig(**{**text, "num_key_value_heads": 4})
    return hf.LlavaForConditionalGeneration(
        hf.LlavaConfig(vision_config=seen, text_config=spoken, image_token_index=WORDS - 1, vision_feature_layer=-1)
    )


NAMES = ["BERT", "RoBERTa", "XLM", "BART", "LED", "Longformer", "CLIP", "LLaVA"]


def batch(name: str, examples: int, length: int) -> dict[str, Tensor]:
    """Texts of other lengths every time, and a picture each where the model takes one."""
    sizes = torch.randint(length // 2, length + 1, (examples,))
    sizes[0] = length
    mask = (torch.arange(length) < sizes.unsqueeze(1)).long()
    ids = torch.where(mask > 0, torch.randint(3, WORDS - 2, (examples, length)), 1)
    found = {"input_ids": ids, "attention_mask": mask}
    if name in ("CLIP", "LLaVA"):
        found["pixel_values"] = torch.randn(examples, 3, SIDE, SIDE)
    if name == "CLIP":
        ids.scatter_(1, sizes.unsqueeze(1) - 1, 2)  # where a text ends
    if name == "LLaVA":
        ids[:, : (SIDE // 8) ** 2] = WORDS - 1  # one for each part of a picture
    return found


def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The mean over the real tokens of an example; for CLIP, how unlike its text and its picture are."""
    out = model(**batch) if "pixel_values" in batch or not _decodes(model) else model(**batch, use_cache=False)
    if hasattr(out, "text_embeds"):
        return 1 - (out.text_embeds * out.image_embeds).sum(1)
    scores = out.logits[:, -batch["input_ids"].shape[1] :]
    losses = nn.functional.cross_entropy(scores.transpose(1, 2), batch["input_ids"], reduction="none")
    mask = batch["attention_mask"]
    return (losses * mask).sum(1) / mask.sum(1)


def _decodes(model: Any) -> bool:
    return bool(model.config.is_encoder_decoder)


def main(argv: list[str] | None = None) -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    asked = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    for name in asked.names:
        torch.manual_seed(0)
        model = built(name, asked.width, asked.length).train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        batches = [batch(name, asked.examples, asked.length) for _ in range(3)]
        trained: list[Tensor] = [p for p in model.parameters() if p.requires_grad]

        def plainly(b: Any, m: Any = model, t: list[Tensor] = trained) -> Any:
            return torch.autograd.grad(loss(m, b).sum(), t, allow_unused=True)

        def privately(b: Any, m: Any = model) -> Any:
            return sgd.clipped_grad(m, loss, b, clip_norm=1.0)

        plain = seconds(plainly, batches)
        for some in batches[:2]:
            privately(some)
        made, survey = [0], planning.survey

        def counted(*args: Any, made: list[int] = made, survey: Callable[..., Any] = survey, **more: Any) -> Any:
            made[0] += 1
            return survey(*args, **more)

        planning.survey = counted
        private = seconds(privately, batches)
        planning.survey = survey
        print(f"{name:12} plain {plain * 1e3:6.0f} ms  private {private / plain:5.2f}x  plans {made[0]}", flush=True)


if __name__ == "__main__":
    main()
