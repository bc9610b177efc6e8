"""A word-level tokenizer and language models of a few thousand weights, made on the spot."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = [
    *("review", "sentiment", "is", "it", "was", "good", "bad", "great", "terrible", "fine", "dull", "film", "plot"),
    *("a", "the", "of", "and", "not", "very", "yes", "no", "movie", "acting", "slow", "bright", "sharp", "warm"),
    *("cold", "long", "short", "one", "two", "three", "answer", "with", "question", "text", "follows", "which"),
]
SPECIAL = ["[PAD]", "[UNK]", "[EOS]", "[MASK]", "[CLS]", "[SEP]"]
PUNCTUATION = [":", ".", ",", "?", "!", "/"]


def tokenizer() -> Any:
    """Words and punctuation; spaces and case do not count."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *PUNCTUATION, *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    from tokenizers import normalizers

    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]", mask_token="[MASK]"
    )


SIZE = len(SPECIAL) + len(PUNCTUATION) + len(WORDS)


def llama(seed: int = 0, context: int = 64, width: int = 16) -> Any:
    torch.manual_seed(seed)
    config = hf.LlamaConfig(
        vocab_size=SIZE,
        hidden_size=width,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=0.4,
    )
    return hf.LlamaForCausalLM(config).eval()


def gpt2(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = hf.GPT2Config(vocab_size=SIZE, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.4)
    return hf.GPT2LMHeadModel(config).eval()


def bert(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = hf.BertConfig(
        vocab_size=SIZE,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
        initializer_range=0.4,
    )
    return hf.BertForMaskedLM(config).eval()


def reviews(count: int, seed: int = 0, longest: int = 9) -> list[tuple[str, str]]:
    """Short texts of different lengths whose class is that of the word they contain."""
    import random

    rng = random.Random(seed)
    found = []
    for _ in range(count):
        label = rng.choice(["no", "yes"])
        told = rng.choice(["dull", "slow", "cold"] if label == "no" else ["fine", "bright", "warm"])
        words = rng.choices(["film", "plot", "the", "a", "and", "very", "movie", "acting"], k=rng.randrange(1, longest))
        words.insert(rng.randrange(len(words) + 1), told)
        found.append((" ".join(words), label))
    return found
