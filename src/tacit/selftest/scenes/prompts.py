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
import polars as pl
import torch

from tacit.audit import bounds
from tacit.audit.findings import Finding, holds
from tacit.ledger import BudgetExceeded, EvaluationData, Ledger
from tacit.noise import Key
from tacit.pate import ConfidentGNMax, GNMax
from tacit.prompts import LanguageModel, Prompt, PromptError, PromptTeachers, Template, Verbalizer, choose, tune
from tacit.prompts.students import calibrated
from tacit.prompts.text import texts as prompt_texts
from tacit.report import read_card
from tacit.runs import prompt as prompt_runs
from tacit.runs.folder import RunFolder, carry_out
from tacit.runs.progress import Told
from tacit.runs.prompt import PromptRun
from tacit.runs.settings import SettingsError
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
    # A person with a short and a long text, among others with two each: the mean of both is what is clipped.
    ids = [k // 2 for k in range(10)]

    def owned(rows: Any, groups: Any) -> Any:
        torch.manual_seed(seed)
        settings: dict[str, Any] = {"noise_multiplier": 0.0, "delta": 1e-5, "steps": 1, "batch_size": 6, "size": 6}
        settings |= {"groups": groups, "max_rows": 2, "clip_norm": clip, "decay": False, "method": "lora"}
        settings["optimizer"] = lambda parameters: torch.optim.SGD(parameters, lr=1.0)
        done = tune(_llama(seed), _tokenizer(), ASK, WORDS, rows, **settings)
        return torch.cat([p.detach().double().flatten() for p in done.model.parameters() if p.requires_grad]).numpy()

    pair = [("very " * 40 + "dull", "no"), ("warm", "yes")]
    apart = owned([*data[:10], *pair], [*ids, 9, 9]) - owned(data[:10], ids)
    person = float(np.linalg.norm(apart)) * 6 / clip
    found.append(holds("tuning: people", 0 < person <= 1.01, f"a person moved the sum by {person:.4f}"))
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
    many = choose(
        language, ASK, WORDS, labelled, candidates=4, members=2, shots=(1, 2), calibration="batch", unlabelled=queries
    )
    plain = calibrated(language, calibrated(language, many, "batch", queries), "none")
    shown = {t for member in many.members for t, _ in member.demonstrations}
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
        holds("prompt: a committee", shown <= set(queries) and len(many.members) == 2, "shows public texts only"),
        holds("prompt: corrections", all(m.offset is None for m in plain.members), "are taken back"),
        holds("prompt: read back", same and 0 <= low <= high <= 1, "the same answers"),
        holds("prompt: alone or together", bool(np.allclose(alone, together, atol=1e-4)), "company changes no score"),
    ]


def votes_go_on(seed: int) -> list[Finding]:
    """Votes that were counted before a crash are taken up by the same teachers and queries, and by no others."""
    queries = [text for text, _ in _reviews(5, seed + 1)]
    key, rows = Key(bytes(range(32)), repeatable=True), _reviews(40, seed)

    other = Key(bytes(32), repeatable=True)

    def teachers(rows: Any = rows, key: Key = key, **more: Any) -> PromptTeachers:
        return PromptTeachers(Oracle(), ASK, WORDS, rows, 1, 8, key=key, **more)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "votes"
        whole = teachers().vote(queries, checkpoint=path).counts
        closed = path.stat().st_mode & 0o077 == 0
        lines = path.read_text().split("\n")
        path.write_text("\n".join(lines[:4]) + "\n" + lines[4][:-3])  # three ballots, and one that was cut off
        asked = Oracle()
        again = PromptTeachers(asked, ASK, WORDS, rows, 1, 8, key=key).vote(queries, checkpoint=path).counts
        cases: dict[str, tuple[Any, Any]] = {
            "other queries": (lambda: teachers().vote(queries[1:], checkpoint=path), PromptError),
            "other records": (lambda: teachers(_reviews(40, seed + 5)).vote(queries, checkpoint=path), PromptError),
            "another key": (
                lambda: teachers(key=other).vote(queries, checkpoint=path),
                PromptError,
            ),
            "another calibration": (lambda: teachers(calibration="batch").vote(queries, checkpoint=path), PromptError),
            "no queries": (lambda: teachers().vote([]), PromptError),
        }
        refusals = refused("prompts: other votes", cases)
    named = [Verbalizer.of(value) for value in ({"no": "bad", "yes": "good"}, ["no", "yes"], WORDS)]
    texts = [prompt_texts(value) for value in (["a", "b"], pl.DataFrame({"text": ["a", "b"]}))]
    return [
        holds("prompts: votes again", bool((whole == again).all()), "the same counts"),
        holds("prompts: only the rest is asked", len(asked.shown) == 5, f"{len(asked.shown)} teachers of 5"),
        holds("prompts: closed votes", closed, "only their owner reads them"),
        holds(
            "prompts: words", [v.number("yes") for v in named] == [1, 1, 1] and texts[0] == ["a", "b"], "by their class"
        ),
        refusals,
    ]


def runs_of_prompts_publish_what_they_did(seed: int) -> list[Finding]:
    """Folders of tuned and of voted prompts: claims and charges of what was done, public texts only.

    Many branches: each sorts tables, cards, charges or texts of the three runs by name.
    """
    from tacit.selftest.scenes.reports import state_apart

    exact = {"tuned": bounds.gaussian_epsilon(math.sqrt(3) / 2.0, 1e-5)}
    exact["voted"] = bounds.gaussian_epsilon(math.sqrt(10 / 5.0**2 + 10 * 2 / 4.0**2), 1e-5)
    private = [(f"terrible {text}", label) for text, label in _reviews(30, seed)]
    with state_apart() as folder:
        place = Path(folder)
        _llama(seed).save_pretrained(place / "llama")
        _tokenizer().save_pretrained(place / "llama")
        for name, rows in {"private": private, "public": _reviews(12, seed + 1), "test": _reviews(8, seed + 2)}.items():
            frame = pl.DataFrame({"text": [t for t, _ in rows], "label": [a for _, a in rows]})
            frame.with_columns(who=pl.Series([k // 2 for k in range(len(rows))])).write_csv(place / f"{name}.csv")
        books = Ledger(place / "my.db")
        for name in exact:
            books.register(name, epsilon=60.0, delta=1e-3)
        common: dict[str, Any] = {
            "data": str(place / "private.csv"),
            "model": str(place / "llama"),
            "delta": 1e-5,
            "evaluate": str(place / "test.csv"),
            "ledger": str(place / "my.db"),
        }
        asking = {"template": ASK.body, "words": "no=bad,yes=good"}
        tuned = {**common, **asking, "dataset": "tuned", "method": "soft", "noise": 2.0, "steps": 3, "batch": 30}
        teachers = {
            "teachers": 8,
            "queries": 10,
            "answers": 10,
            "threshold": 0.0,
            "check_noise": 5.0,
            "vote_noise": 4.0,
        }
        voted = {**common, **asking, **teachers, "public": str(place / "public.csv"), "dataset": "voted"}
        voted |= {"candidates": 3, "members": 2, "student_shots": "1", "public_because": "made up"}
        quiet = Told(quiet=True, every_tenth=False)

        def done(kind: str, given: dict[str, Any], name: str) -> Path:
            return carry_out(PromptRun(kind, given), RunFolder(place / "runs", name, None), quiet).folder

        folders = {"tuned": done("tune", tuned, "tuned"), "voted": done("pate", voted, "voted")}
        free = {k: v for k, v in common.items() if k != "ledger"}
        fluent = {**free, "task": "generate", "noise": 2.0, "steps": 1, "batch": 30, "method": "lora"}
        folders["continued"] = done("tune", fluent, "continued")
        cards = {name: read_card(folder / "privacy.json") for name, folder in folders.items()}
        told = {name: float(card["guarantee"]["epsilon"]["upper"]) for name, card in cards.items()}
        spent = {name: charged(books, 1e-5, dataset=name) for name in exact}
        texts = {
            str(p.relative_to(place)): p.read_text(errors="ignore")
            for folder in folders.values()
            for p in folder.rglob("*")
            if p.is_file() and "private" not in p.relative_to(folder).parts
        }
        leaks = [name for name, text in texts.items() if any(t in text for t, _ in private)]
        measured = {name: len(list(card["evaluation"])) for name, card in cards.items()}
        shares = [
            prompt_runs.evaluate(str(folders[name]), {"data": str(place / "test.csv"), "model": str(place / "llama")})
            for name in folders
        ]

        def asked(kind: str, given: dict[str, Any], **change: Any) -> Any:
            return lambda: prompt_runs.prepare(kind, {**given, **change})

        cases: dict[str, tuple[Any, Any]] = {
            "no δ": (asked("tune", tuned, delta=None), SettingsError),
            "noise and ε": (asked("tune", tuned, epsilon=1.0), SettingsError),
            "a ledger without a data set": (asked("tune", tuned, dataset=None), SettingsError),
            "no ledger there": (asked("tune", tuned, ledger=str(place / "none.db")), SettingsError),
            "the private texts as public": (asked("pate", voted, public=common["data"]), SettingsError),
            "no public texts": (asked("pate", voted, public=None), SettingsError),
            "no way to ask": (asked("tune", tuned, template=None), SettingsError),
            "no words": (asked("tune", tuned, words=None), SettingsError),
            "words without classes": (asked("tune", tuned, words="bad,good"), SettingsError),
            "an unknown task": (asked("tune", tuned, task="sing"), SettingsError),
            "classes of a continued text": (asked("tune", fluent, words="no=bad"), SettingsError),
            "a person by word": (asked("tune", tuned, unit="person"), SettingsError),
            "a column that there is not": (asked("tune", tuned, unit_column="nobody"), SettingsError),
            "shots below 0": (asked("pate", voted, student_shots="-1"), SettingsError),
            "no members": (asked("pate", voted, members=0), SettingsError),
            "an endpoint without a model": (asked("pate", voted, endpoint="http://127.0.0.1:9"), SettingsError),
            "a run of another command": (lambda: PromptRun.saved("pate", folders["tuned"]), SettingsError),
        }
        wrong = refused("prompt runs: refusals", cases)
        owned = prompt_runs.prepare("tune", {**tuned, "unit_column": "who"})
    low = {n: (told[n], spent[n], e) for n, e in exact.items() if min(told[n], spent[n]) < e * (1 - 1e-6)}
    return [
        holds("prompt runs: claims and charges", not low, f"claimed, charged, true: {low or exact}"),
        holds("prompt runs: private texts", not leaks and len(texts) > 8, f"found in {leaks}; {len(texts)} files"),
        holds(
            "prompt runs: results", measured["tuned"] == measured["continued"] == 0 < measured["voted"], f"{measured}"
        ),
        holds("prompt runs: measured again", all(share.total == 8 for share in shares), f"{len(shares)} runs"),
        holds("prompt runs: owners", owned.unit == "person" and len(set(owned.owners or ())) == 15, "by their ids"),
        wrong,
    ]


SCENES = (
    Scene("prompts: votes", "prompts", votes_go_on),
    Scene("runs: prompts", "runs", runs_of_prompts_publish_what_they_did, NEEDS, long=True),
    Scene("prompts: teachers", "prompts", records_reach_one_teacher),
    Scene("prompts: tuning", "prompts", tuning_is_training, NEEDS, long=True),
    Scene("prompts: students", "prompts", students_show_public_texts, NEEDS),
)
