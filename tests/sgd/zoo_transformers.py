"""The zoo's unmodified models of ``transformers``, from small configurations, and adapters by ``peft``."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from tests.sgd.zoo import Batch, Case, architecture
from torch import Tensor, nn

VOCAB = 23


def text(n: int = 3, length: int = 7, padded: bool = True) -> Batch:
    ids = torch.randint(3, VOCAB, (n, length))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def causal(model: nn.Module, batch: Batch) -> Tensor:
    """Next-token loss, averaged over the real tokens of each example."""
    logits = model(**batch, use_cache=False).logits[:, -batch["input_ids"].shape[1] :]
    target = batch["input_ids"][:, 1:]
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), target, reduction="none")
    kept = batch["attention_mask"][:, 1:].to(loss.dtype)
    return (loss * kept).sum(1) / kept.sum(1)


def masked(model: nn.Module, batch: Batch) -> Tensor:
    loss = F.cross_entropy(model(**batch).logits.transpose(1, 2), batch["input_ids"], reduction="none")
    return loss.mean(1)


def gpt2_model() -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=8, n_layer=2, n_head=2))


def llama_model() -> nn.Module:
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=8,
            intermediate_size=12,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=True,
        )
    )


@architecture("hf-gpt2", "transformers GPT-2 (tied head), unmodified")
def gpt2() -> Case:
    return Case(gpt2_model(), causal, text())


@architecture("hf-llama", "transformers Llama (RoPE, grouped-query attention, tied head), unmodified")
def llama() -> Case:
    return Case(llama_model(), causal, text())


@architecture("hf-qwen2", "transformers Qwen2, unmodified")
def qwen() -> Case:
    config = hf.Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return Case(hf.Qwen2ForCausalLM(config), causal, text())


@architecture("hf-opt", "transformers OPT, unmodified")
def opt() -> Case:
    config = hf.OPTConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        ffn_dim=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    config.word_embed_proj_dim = 8
    return Case(hf.OPTForCausalLM(config), causal, text())


@architecture("hf-bert", "transformers BERT for masked tokens, unmodified")
def bert() -> Case:
    config = hf.BertConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=32,
    )
    return Case(hf.BertForMaskedLM(config), masked, text())


@architecture("hf-distilbert", "transformers DistilBERT classifier, unmodified")
def distilbert() -> Case:
    config = hf.DistilBertConfig(
        vocab_size=VOCAB, dim=8, n_layers=1, n_heads=2, hidden_dim=12, max_position_embeddings=32
    )
    batch = {**text(), "y": torch.randint(2, (3,))}

    def loss(model: nn.Module, b: Batch) -> Tensor:
        logits = model(input_ids=b["input_ids"], attention_mask=b["attention_mask"]).logits
        return F.cross_entropy(logits, b["y"], reduction="none")

    return Case(hf.DistilBertForSequenceClassification(config), loss, batch)


@architecture("hf-t5", "transformers T5 (relative position bias, shared embedding), unmodified")
def t5() -> Case:
    config = hf.T5Config(
        vocab_size=VOCAB,
        d_model=8,
        d_kv=4,
        d_ff=12,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    batch = {**text(), "decoder_input_ids": torch.randint(3, VOCAB, (3, 5))}

    def loss(model: nn.Module, b: Batch) -> Tensor:
        logits = model(**b, use_cache=False).logits
        return F.cross_entropy(logits.transpose(1, 2), b["decoder_input_ids"], reduction="none").mean(1)

    return Case(hf.T5ForConditionalGeneration(config), loss, batch)


def pixels(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]).logits, batch["y"], reduction="none")


@architecture("hf-vit", "transformers ViT, unmodified")
def vit() -> Case:
    config = hf.ViTConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, image_size=8, patch_size=4
    )
    return Case(
        hf.ViTForImageClassification(config), pixels, {"x": torch.randn(3, 3, 8, 8), "y": torch.randint(2, (3,))}
    )


@architecture("hf-convnext", "transformers ConvNeXt, unmodified")
def convnext() -> Case:
    config = hf.ConvNextConfig(
        num_channels=3, patch_size=2, num_stages=2, hidden_sizes=[4, 6], depths=[1, 1], image_size=16
    )
    net = hf.ConvNextForImageClassification(config)
    return Case(net, pixels, {"x": torch.randn(3, 3, 16, 16), "y": torch.randint(2, (3,))})


@architecture("hf-whisper", "transformers Whisper (audio encoder, text decoder), unmodified")
def whisper() -> Case:
    config = hf.WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=4,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=12,
        decoder_ffn_dim=12,
        max_source_positions=8,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    batch = {"x": torch.randn(3, 4, 16), "ids": torch.randint(3, VOCAB, (3, 5))}

    def loss(model: nn.Module, b: Batch) -> Tensor:
        logits = model(input_features=b["x"], decoder_input_ids=b["ids"], use_cache=False).logits
        return F.cross_entropy(logits.transpose(1, 2), b["ids"], reduction="none").mean(1)

    return Case(hf.WhisperForConditionalGeneration(config), loss, batch)


@architecture("hf-mamba", "transformers Mamba (state-space model), unmodified")
def mamba() -> Case:
    config = hf.MambaConfig(vocab_size=VOCAB, hidden_size=8, state_size=4, num_hidden_layers=1, use_mambapy=False)
    # Its scan runs in float32 whatever the type of the weights.
    return Case(hf.MambaForCausalLM(config), causal, text(padded=False), {"computes_in": torch.float32})


SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 40,
}


@architecture("hf-albert", "transformers ALBERT (one layer shared by all depths), unmodified")
def albert() -> Case:
    return Case(hf.AlbertForMaskedLM(hf.AlbertConfig(**SMALL, embedding_size=4)), masked, text())


@architecture("hf-deberta", "transformers DeBERTa-v2 (disentangled relative attention), unmodified")
def deberta() -> Case:
    config = hf.DebertaV2Config(**SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"])
    return Case(hf.DebertaV2ForMaskedLM(config), masked, text())


@architecture("hf-bart", "transformers BART (encoder-decoder, learned positions), unmodified")
def bart() -> Case:
    config = hf.BartConfig(
        vocab_size=VOCAB,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=12,
        decoder_ffn_dim=12,
        max_position_embeddings=40,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    return Case(hf.BartForConditionalGeneration(config), masked, text())


@architecture("hf-swin", "transformers Swin (shifted windows), unmodified")
def swin() -> Case:
    config = hf.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4)
    net = hf.SwinForImageClassification(config)
    return Case(net, pixels, {"x": torch.randn(3, 3, 16, 16), "y": torch.randint(2, (3,))})


@architecture("hf-resnet-eval", "transformers ResNet with frozen batch statistics, unmodified")
def resnet() -> Case:
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic")
    net = hf.ResNetForImageClassification(config)
    return Case(net, pixels, {"x": torch.randn(3, 3, 16, 16), "y": torch.randint(2, (3,))})


@architecture("hf-gpt2-classifier", "transformers GPT-2 classifier (pools by length), unmodified")
def gpt2_classifier() -> Case:
    config = hf.GPT2Config(vocab_size=VOCAB, n_embd=8, n_layer=1, n_head=2, n_positions=32, pad_token_id=0)
    batch = {**text(), "y": torch.randint(2, (3,))}

    def loss(model: nn.Module, b: Batch) -> Tensor:
        logits = model(input_ids=b["input_ids"], attention_mask=b["attention_mask"]).logits
        return F.cross_entropy(logits, b["y"], reduction="none")

    return Case(hf.GPT2ForSequenceClassification(config), loss, batch)


def adapted(name: str, what: str, base: Any, config: Any) -> None:
    """Enter a base model adapted by peft in the zoo, with adapters away from their zero start."""

    def builder() -> Case:
        import peft

        model = peft.get_peft_model(base(), config())
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_(0, 0.3)
        return Case(model, causal, text())

    architecture(name, what)(builder)


if importlib.util.find_spec("peft") is not None:
    import peft as _peft

    adapted(
        "peft-lora",
        "Llama with LoRA adapters by peft",
        llama_model,
        lambda: _peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj", "up_proj"]),
    )
    adapted(
        "peft-prompt",
        "GPT-2 prompt-tuned by peft",
        gpt2_model,
        lambda: _peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    )
    adapted(
        "peft-prefix",
        "GPT-2 prefix-tuned by peft",
        gpt2_model,
        lambda: _peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    )
    adapted(
        "peft-prefix-projected",
        "GPT-2 prefix-tuned by peft through a projection network",
        gpt2_model,
        lambda: _peft.PrefixTuningConfig(
            task_type="CAUSAL_LM", num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=5
        ),
    )
    adapted(
        "peft-ia3",
        "GPT-2 with IA3 scaling vectors by peft",
        gpt2_model,
        lambda: _peft.IA3Config(
            task_type="CAUSAL_LM", target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"]
        ),
    )
