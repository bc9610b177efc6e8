"""A language model learns from private notes in two ways: by its weights (LoRA), and by its answers alone (votes).

Run it with ``python -m examples.private_prompt``. It uses SmolLM2 where ``tacit data get smollm2`` has put it, and
otherwise a model of random weights, which shows how it goes and answers by chance. The notes are made up on the spot.
"""

from __future__ import annotations

import random

import torch

from tacit.pate import ConfidentGNMax
from tacit.prompts import (
    LanguageModel,
    LanguageModelError,
    Prompt,
    PromptTeachers,
    Template,
    Verbalizer,
    choose,
    load,
    tune,
)

LIKED = ["I loved {}.", "{} was a joy.", "What a wonderful {}!", "The {} made my day.", "I would buy {} again."]
DISLIKED = ["I hated {}.", "{} was a waste of money.", "What a horrible {}!", "{} ruined my day.", "Never again {}."]
THINGS = [
    "the soup",
    "this phone",
    "the hotel",
    "the concert",
    "my new bike",
    "the museum",
    "their bread",
    "the course",
]
ASK = Template("Note: {text}\nMood:", instruction="Say whether the mood of each note is good or bad.")
WORDS = Verbalizer({"unhappy": "bad", "happy": "good"})


def notes(count: int, seed: int) -> list[tuple[str, str]]:
    """Notes of happy and unhappy people."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        label = draw.choice(["happy", "unhappy"])
        found.append((draw.choice(LIKED if label == "happy" else DISLIKED).format(draw.choice(THINGS)), label))
    return found


def model() -> LanguageModel:
    """SmolLM2, or a small model of random weights."""
    try:
        return load("smollm2", batch_size=16)
    except LanguageModelError as error:
        print(f"No language model here ({error}).\nGoing on with random weights: the answers below are chance.\n")
    import transformers as hf
    from tokenizers import Tokenizer, models, pre_tokenizers

    text = " ".join([ASK.body, ASK.instruction, *LIKED, *DISLIKED, *THINGS, *WORDS.words.values()])
    words = sorted({piece for piece, _ in pre_tokenizers.Whitespace().pre_tokenize_str(text)})
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = hf.LlamaConfig(vocab_size=len(words) + 1, max_position_embeddings=512, **shape)
    return LanguageModel(hf.LlamaForCausalLM(config), hf.PreTrainedTokenizerFast(tokenizer_object=made))


def main() -> None:
    """Zero-shot, then PromptPATE, then PromptDPSGD."""
    language = model()
    private, public, test = notes(40, 1), [text for text, _ in notes(8, 2)], notes(16, 3)
    print("zero-shot:                   ", Prompt(ASK, WORDS).accuracy(language, test))

    # Answers alone: prompts with disjoint private notes vote on public notes, and noise is added to the counts. Four
    # teachers show how it goes; a useful guarantee needs hundreds.
    votes = PromptTeachers(language, ASK, WORDS, private, shots=1, n=4, calibration="batch").vote(public)
    answers = ConfidentGNMax(threshold=3, check_noise=2, vote_noise=1, classes=2).answer(votes, queries=8, delta=1e-5)
    texts, labels, _ = answers.labelled()
    labelled = [(text, WORDS.classes[i]) for text, i in zip(texts, labels, strict=True)]
    print(f"{len(labelled)} of 8 public notes were labelled, ε = {answers.privacy.claim:.1f}")
    if len(labelled) >= 4:
        student = choose(language, ASK, WORDS, labelled, candidates=2, members=2, calibration="batch")
        print("student, two prompts (PATE): ", student.accuracy(language, test))

    # Weights at hand: LoRA by DP-SGD.
    tuned = tune(
        language.model, language.tokenizer, ASK, WORDS, private,
        method="lora", epsilon=8.0, delta=1e-5, steps=2, batch_size=6, learning_rate=2e-3,
    )  # fmt: skip
    right = sum(a == b for a, (_, b) in zip(tuned.predict([t for t, _ in test]), test, strict=True))
    print(f"LoRA by DP-SGD:               {right / len(test):.1%} of {len(test)}")
    print(tuned.privacy)


if __name__ == "__main__":
    main()
