"""Do prompts keep their promises? One record reaches one teacher, and tuning clips each text as if it were alone."""

from __future__ import annotations

import dataclasses
import math
import random
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.audit import bounds
from tacit.audit.findings import Finding, holds
from tacit.ledger import BudgetExceeded, EvaluationData
from tacit.noise import Key
from tacit.pate import ConfidentGNMax, GNMax
from tacit.prompts import LanguageModel, Prompt, PromptError, PromptTeachers, Template, Verbalizer, choose, tune
from tacit.selftest.scene import Scene, charged, ledger_of, refused

ASK = Template("review: {text} . sentiment :", instruction="which sentiment is it?")
WORDS = Verbalizer({"no": "bad", "yes": "good"})
NEEDS = ("transformers", "tokenizers", "peft")


@dataclasses.dataclass
class Oracle:
    """A model whose answer hangs on every letter of its demonstrations, and that keeps what it was shown."""

    shown: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)

    def log_probabilities(
        self, template: Any, verbalizer: Any, texts: Sequence[str], demonstrations: Sequence[Any] = ()
    ) -> Any:
        """One row a text, sure of one class or the other."""
        self.shown.append(tuple(demonstrations))
        sides = [zlib.crc32(repr((text, demonstrations)).encode()) % 2 for text in texts]
        return np.log([[0.05 + 0.9 * side, 0.95 - 0.9 * side] for side in sides])


def _reviews(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        label = rng.choice(["no", "yes"])
        told = rng.choice(["dull", "slow", "cold"] if label == "no" else ["fine", "bright", "warm"])
        words = rng.choices(["film", "plot", "the", "a", "and", "very"], k=rng.randrange(1, 7))
        words.insert(rng.randrange(len(words) + 1), told)
        found.append((" ".join(words), label))
    return found


def records_reach_one_teacher(seed: int) -> list[Finding]:
    """A record more, or a person with several, moves one vote of each query; one replaced moves two at most."""
    queries = [text for text, _ in _reviews(6, seed + 1)]
    rng = np.random.default_rng(seed)
    moved = {"added": 0, "a person": 0, "replaced": 0}

    def counts(rows: list[tuple[str, str]], key: Key, groups: Any = None) -> Any:
        teachers = PromptTeachers(Oracle(), ASK, WORDS, rows, 1, 18, key=key, groups=groups)
        return teachers.vote(queries).counts

    def apart(one: Any, other: Any) -> int:
        return int(np.abs(one - other).sum(1).max()) // 2

    for _ in range(5):
        key = Key(rng.bytes(32), repeatable=True)
        rows = _reviews(40, int(rng.integers(1 << 30)))
        base = counts(rows, key)
        more = counts([("terrible film", "yes"), *rows], key)
        other = counts([("great plot", "no"), *rows], key)
        moved["added"] = max(moved["added"], apart(base, more))
        moved["replaced"] = max(moved["replaced"], apart(more, other))
        ids = [i // 2 for i in range(40)]
        one = counts(rows, key, ids)
        many = counts(
            [("terrible film", "yes")] * 1 + [(f"great plot {i}", "yes") for i in range(7)] + rows, key, [99] * 8 + ids
        )
        moved["a person"] = max(moved["a person"], apart(one, many))
    limits = {"added": 1, "a person": 1, "replaced": 2}
    shown = Oracle()
    PromptTeachers(shown, ASK, WORDS, _reviews(60, seed), 1, 10).vote(queries)
    seen = [text for part in set(shown.shown) for text, _ in part]
    ledger = ledger_of()
    votes = PromptTeachers(Oracle(), ASK, WORDS, _reviews(60, seed), 1, 20).vote(queries)
    answers = ConfidentGNMax(threshold=5, check_noise=6.0, vote_noise=4.0, classes=2).answer(
        votes, queries=6, ledger=ledger, dataset="people"
    )
    exact = bounds.gaussian_epsilon(math.sqrt(6 / 6.0**2 + 6 * 2 / 4.0**2), 1e-5)
    return [
        *(holds(f"prompts: {name}", moved[name] <= limits[name], f"{moved[name]} votes moved") for name in limits),
        holds("prompts: disjoint", len(seen) == len(set(seen)), "no demonstration is with two teachers"),
        holds(
            "prompts: charged",
            charged(ledger, 1e-5) >= exact * (1 - 1e-6) and answers.privacy.claim >= exact * (1 - 1e-6),
            f"claimed {answers.privacy.claim:.4f} of {exact:.4f}",
        ),
        refused(
            "prompts: refusals",
            {
                "too few records": (lambda: PromptTeachers(Oracle(), ASK, WORDS, _reviews(3, 0), 1, 200), PromptError),
                "no shots": (lambda: PromptTeachers(Oracle(), ASK, WORDS, _reviews(40, 0), 0, 5), PromptError),
                "a label that is none": (
                    lambda: PromptTeachers(Oracle(), ASK, WORDS, [("a", "maybe")] * 40, 1, 5),
                    PromptError,
                ),
                "an unknown calibration": (
                    lambda: PromptTeachers(Oracle(), ASK, WORDS, _reviews(40, 0), 1, 5, calibration="much"),
                    PromptError,
                ),
                "people without ids": (
                    lambda: PromptTeachers(Oracle(), ASK, WORDS, _reviews(40, 0), 1, 5, unit="person"),
                    ValueError,
                ),
                "no place for the text": (lambda: Template("no place"), PromptError),
                "one class": (lambda: Verbalizer({"no": "bad"}), PromptError),
                "one word twice": (lambda: Verbalizer({"no": "bad", "yes": "bad"}), PromptError),
            },
        ),
    ]


def _tokenizer() -> Any:
    import transformers as hf
    from tokenizers import Tokenizer, normalizers, pre_tokenizers
    from tokenizers import models as kinds

    words = (
        "review sentiment is it which good bad great terrible fine dull slow cold bright warm film plot the a and very"
    )
    names = ["[PAD]", "[UNK]", "[EOS]", ":", ".", "?", *words.split()]
    made = Tokenizer(kinds.WordLevel({word: i for i, word in enumerate(names)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]")


def _llama(seed: int) -> Any:
    import transformers as hf

    torch.manual_seed(seed)
    config = hf.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        tie_word_embeddings=True,
        initializer_range=0.4,
    )
    return hf.LlamaForCausalLM(config).eval()


def tuning_is_training(seed: int) -> list[Finding]:
    """One text more, however long, moves the clipped sum by the clip norm; the price is that of the steps made."""
    data, clip = _reviews(11, seed), 0.2
    worst, found = {}, []
    for method, words in (("lora", WORDS), ("soft", WORDS), ("prefix", WORDS), ("lora", None)):
        name = f"{method}{'' if words else ', continued texts'}"
        rows: Any = data if words else [text for text, _ in data]
        long: Any = ("very " * 40 + "dull", "no") if words else "very " * 40 + "dull"

        def step(rows: Any, method: str = method, words: Any = words) -> Any:
            torch.manual_seed(seed)
            done = tune(
                _llama(seed),
                _tokenizer(),
                ASK if words else None,
                words,
                rows,
                method=method,
                noise_multiplier=0.0,
                delta=1e-5,
                steps=1,
                batch_size=12,
                size=12,
                learning_rate=1.0,
                optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
                decay=False,
                clip_norm=clip,
            )
            return torch.cat(
                [p.detach().double().flatten() for p in done.model.parameters() if p.requires_grad]
            ).numpy()

        before, after = step(rows), step([*rows, long])
        worst[name] = float(np.linalg.norm(after - before)) * 12 / clip
        found.append(holds(f"tuning: {name}", 0 < worst[name] <= 1.01, f"a text moved the sum by {worst[name]:.4f}"))
    ledger = ledger_of()
    done = tune(
        _llama(seed),
        _tokenizer(),
        ASK,
        WORDS,
        data,
        method="soft",
        noise_multiplier=2.0,
        delta=1e-5,
        steps=4,
        batch_size=11,
        clip_norm=clip,
        ledger=ledger,
        dataset="people",
        evaluate=EvaluationData.declared_public(_reviews(8, seed + 3), because="made up"),
    )
    exact, spent = bounds.gaussian_epsilon(math.sqrt(4) / 2.0, 1e-5), charged(ledger, 1e-5)
    with tempfile.TemporaryDirectory() as folder:
        kept = done.save(Path(folder) / "adapter")
        texts = "".join(
            p.read_text(errors="ignore") for p in Path(kept).rglob("*") if p.suffix in (".json", ".txt", ".md")
        )
        hidden = not any(text in texts for text, _ in data if len(text) > 12)
    poor = ledger_of(0.01, 1e-6)

    def tuned(**more: Any) -> Any:
        usual: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "steps": 1, "batch_size": 5}
        return lambda: tune(_llama(seed), _tokenizer(), ASK, WORDS, data, **(usual | more))

    return [
        *found,
        holds(
            "tuning: price",
            done.privacy.upper >= exact * (1 - 1e-6) and spent >= exact * (1 - 1e-6),
            f"claimed {done.privacy.upper:.4f}, charged {spent:.4f}, closed form {exact:.4f}",
        ),
        holds("tuning: saved", hidden, "no private text is in the folder"),
        refused(
            "tuning: refusals",
            {
                "more than is left": (tuned(ledger=poor, dataset="people"), BudgetExceeded),
                "an unknown method": (tuned(method="magic"), ValueError),
                "no δ": (tuned(delta=None), ValueError),
                "people without ids": (tuned(unit="person"), ValueError),
            },
        ),
    ]


def students_show_public_texts(seed: int) -> list[Finding]:
    """A chosen prompt shows answered queries, never a private text, and is the same when read from its file."""
    language = LanguageModel(_llama(seed), _tokenizer(), batch_size=4)
    queries = [text for text, _ in _reviews(16, seed + 4)]
    private = [(f"terrible {text}", label) for text, label in _reviews(60, seed)]
    votes = PromptTeachers(language, ASK, WORDS, private, 1, 6, calibration="batch").vote(queries)
    answers = GNMax(vote_noise=2.0, classes=2).answer(votes, queries=16)
    texts, labels, _ = answers.labelled()
    labelled = [(text, WORDS.classes[i]) for text, i in zip(texts, labels, strict=True)]
    student = choose(language, ASK, WORDS, labelled, candidates=3, calibration="contextual")
    alone = [language.log_probabilities(ASK, WORDS, [q], private[:2], cached=False)[0] for q in queries[:3]]
    together = language.log_probabilities(ASK, WORDS, queries[:3], private[:2])
    with tempfile.TemporaryDirectory() as folder:
        student.save(Path(folder) / "prompt.json")
        text = (Path(folder) / "prompt.json").read_text()
        same = Prompt.load(Path(folder) / "prompt.json").predict(language, queries) == student.predict(
            language, queries
        )
    low, high = student.accuracy(language, _reviews(12, seed + 9)).interval
    return [
        holds("prompt: public texts only", {t for t, _ in student.demonstrations} <= set(queries), "shown texts"),
        holds("prompt: no private text", not any(t in text for t, _ in private), "in its file"),
        holds("prompt: read back", same and 0 <= low <= high <= 1, "the same answers"),
        holds("prompt: alone or together", bool(np.allclose(alone, together, atol=1e-4)), "company changes no score"),
    ]


SCENES = (
    Scene("prompts: teachers", "prompts", records_reach_one_teacher),
    Scene("prompts: tuning", "prompts", tuning_is_training, NEEDS),
    Scene("prompts: students", "prompts", students_show_public_texts, NEEDS),
)
