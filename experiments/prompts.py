"""What does privacy cost when a language model is adapted to private text? SmolLM2-135M on SST-2, TREC and AG News.

PromptDPSGD (soft prompt, prefix, LoRA), PromptPATE, and the baselines without a guarantee, after Duan et al. (2023).
``python -m experiments.prompts --parts lora,pate --device cuda`` measures some of the rows; every row is kept as
soon as it is known. Needs torch, numpy, scipy, transformers and peft; the model is a folder (``--model``) or smollm2.
"""

from __future__ import annotations

import argparse
import copy
import csv
import functools
import os
import random
import re
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.prompts_page import plot, summary
from experiments.table import SIZES, Facts, Row, Table

__all__ = ["plot", "run", "summary"]

ABOUT = "private prompts on SmolLM2-135M: soft prompt, prefix and LoRA by DP-SGD, PromptPATE, and baselines"
FACTS = Facts(
    paper="Duan et al. 2023 (PromptDPSGD, PromptPATE); Hanke et al. 2024",
    same="methods, ε, δ, SST-2, TREC and AG News",
    differs="SmolLM2-135M where they have RoBERTa, GPT-3 Babbage or Claude; 1,000 teachers where they have 200",
    published="SST-2 at ε = 8: soft 92.3, prefix 92.0, LoRA 93.0% (RoBERTa); PromptPATE 88.8% at ε = .178 (Babbage)",
    ours=(
        ("soft prompt, ε = 8:", {"task": "sst2", "method": "soft", "epsilon": 8.0}, "accuracy"),
        ("prefix", {"task": "sst2", "method": "prefix", "epsilon": 8.0}, "accuracy"),
        ("LoRA", {"task": "sst2", "method": "lora", "epsilon": 8.0}, "accuracy"),
    ),
    page="prompts",
    short="seconds: shows the kept rows",
    full="66 minutes of runs on one H200",
)
SEEDS = 1
EPSILONS = (8.0, 3.0, 1.0)
#: δ of the votes is Duan et al.'s; that of DP-SGD is below one over the number of records.
VOTE_DELTA, DELTA = 1e-6, 1e-5
PARTS = (
    "zero-shot",
    "few-shot",
    "trials-lora",
    "lora",
    "pate",
    "starts",
    "trials-soft",
    "soft",
    "trials-prefix",
    "prefix",
    "plain",
    "pate-far",
    "trec-lora",
    "trec-soft",
    "trec-prefix",
    "trec-plain",
    "pate-trec",
    "ag_news",
    "lora2",
)

#: Public texts that a soft prompt or a prefix may start as; the reviews in them are made up.
STARTS = {
    "instruction": "Decide whether the sentiment of each movie review is positive or negative.\n\n",
    "headline": "Movie reviews and their sentiment, positive or negative.\n\n",
    "two reviews": "Review: a warm, funny film that i would see again\nSentiment: positive\n\n"
    "Review: a dull story, badly acted and far too long\nSentiment: negative\n\n",
}
TASKS: dict[str, dict[str, Any]] = {
    "sst2": {
        "body": "Review: {text}\nSentiment:",
        "instruction": "",
        "words": {"0": "negative", "1": "positive"},
    },
    "trec": {
        "body": "Question: {text}\nAnswer type:",
        "instruction": "Say what type of answer each question asks for: abbreviation, description, thing, person, "
        "place or number.",
        "words": {
            "ABBR": "abbreviation",
            "DESC": "description",
            "ENTY": "thing",
            "HUM": "person",
            "LOC": "place",
            "NUM": "number",
        },
    },
    "ag_news": {
        "body": "Article: {text}\nTopic:",
        "instruction": "Say what each article is about: World, Sports, Business or Technology.",
        "words": {"1": "World", "2": "Sports", "3": "Business", "4": "Technology"},
    },
}
#: What is tried at ε = 8 before a method's other rows are measured: the best on the public sentences is the row of
#: ε = 8, and its settings are used for the others. The ε that is stated does not cover this choice, as in the papers.
TRIALS: dict[str, dict[str, dict[str, Any]]] = {
    "lora": {
        "learning rate 0.002": {"learning_rate": 2e-3},
        "one matrix, 0.004": {"learning_rate": 4e-3, "freeze_a": True},
    },
    "soft": {
        "learning rate 0.005": {"learning_rate": 5e-3},
        "learning rate 0.02": {"learning_rate": 2e-2},
    },
    "prefix": {
        "learning rate 0.005": {"learning_rate": 5e-3},
        "learning rate 0.02": {"learning_rate": 2e-2},
    },
}
SETTINGS: dict[str, dict[str, Any]] = {
    "lora": {"steps": 60, "batch_size": 1024, "learning_rate": 2e-3, "clip_norm": 0.1, "rank": 4},
    "soft": {"steps": 60, "batch_size": 512, "learning_rate": 5e-3, "clip_norm": 0.1},
    "prefix": {"steps": 60, "batch_size": 1024, "learning_rate": 5e-3, "clip_norm": 0.1},
}
#: LoRA once more, with longer and more steps: its accuracy with the settings above hardly depends on ε.
LONGER: dict[str, Any] = {"steps": 100, "learning_rate": 5e-3}
#: Without noise: fewer examples a step, no clipping to speak of.
PLAIN: dict[str, Any] = {"steps": 120, "batch_size": 256, "clip_norm": 1.0, "noise_multiplier": 0.0}
#: TREC's 4,906 training questions are fewer.
OF_TASK: dict[str, dict[str, Any]] = {"trec": {"batch_size": 512}}
#: In how many pieces a batch runs on a GPU, so that several of these processes share one.
PIECES = {"sst2": 3, "trec": 2, "ag_news": 8}
SHOWN = ("steps", "batch_size", "clip_norm", "learning_rate", "freeze_a", "start")
Pairs = list[tuple[str, str]]


# -- data, read without other packages ---------------------------------------------------------------------------------


def sst2(table: Table) -> dict[str, Pairs]:
    """SST-2's sentences by split."""
    found = {}
    for split, name in (("train", "train"), ("public", "dev"), ("test", "test")):
        lines = table.path("text", "sst2", f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        found[split] = [(text, label) for text, _, label in (line.rpartition("\t") for line in lines)]
    return found


def trec(table: Table) -> dict[str, Pairs]:
    """TREC's questions; every tenth of the training file is taken as public."""
    found = {}
    for split in ("train", "test"):
        lines = table.path("text", "trec", f"TREC.{split}").read_text(encoding="latin-1").splitlines()
        found[split] = [(text.strip(), head.partition(":")[0]) for head, _, text in (x.partition(" ") for x in lines)]
    public = found["train"][::10]
    return {"train": [x for i, x in enumerate(found["train"]) if i % 10], "public": public, "test": found["test"]}


def ag_news(table: Table) -> dict[str, Pairs]:
    """AG News, whose test file alone is at hand: cut into private, public and test thirds."""
    with table.path("text", "ag-news-test", "test.csv").open(encoding="utf-8", newline="") as file:
        rows = [(f"{title}. {text}"[:400], label) for label, title, text in csv.reader(file)]
    random.Random(0).shuffle(rows)
    return {"train": rows[:5000], "public": rows[5000:5800], "test": rows[5800:]}


def mr_without_sst2(table: Table) -> list[str]:
    """Sentences of MR that share no run of five words with any sentence of SST-2, and equal none.

    The two cut, bracket and punctuate the same reviews in different ways: equal letters alone leave 700 near copies.
    """

    def runs(text: str) -> set[tuple[str, ...]]:
        words = [w for w in re.findall(r"[^\W_]+", text.lower()) if w not in ("lrb", "rrb")]
        return {tuple(words[i : i + 5]) for i in range(max(1, len(words) - 4))}

    known = {run for split in sst2(table).values() for text, _ in split for run in runs(text)}
    found: list[str] = []
    for name in ("rt-polarity.pos", "rt-polarity.neg"):
        found += table.path("text", "mr", name).read_text(encoding="latin-1").splitlines()
    return [line.strip() for line in found if not runs(line) & known]


READERS: dict[str, Callable[[Table], dict[str, Pairs]]] = {"sst2": sst2, "trec": trec, "ag_news": ag_news}


# -- the rows ----------------------------------------------------------------------------------------------------------


#: What stands for a language model in the tiny size, and what is measured with it.
TINY_MODEL, TINY_PARTS = "random weights", ("zero-shot", "lora", "soft", "pate:thousand")


def made_up_texts(task: str) -> dict[str, Pairs]:
    """Texts that show that the experiment runs, and nothing else."""
    labels = list(TASKS[task]["words"])
    rows = [(f"a text of kind {i % len(labels)} , number {i % 7}", labels[i % len(labels)]) for i in range(140)]
    return {"train": rows[:80], "public": rows[80:110], "test": rows[110:]}


def random_model() -> Any:
    """A language model of a few thousand random weights that knows the words of the tasks."""
    import torch

    from tacit.prompts.models import optional

    transformers = optional("transformers")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    from tacit.prompts import LanguageModel

    texts = [text for task in TASKS for part in made_up_texts(task).values() for text, _ in part]
    texts += [*STARTS.values(), *(about["body"] for about in TASKS.values())]
    texts += [about["instruction"] for about in TASKS.values()]
    texts += [word for about in TASKS.values() for word in about["words"].values()]
    words = re.findall(r"\w+|[^\w\s]", " ".join(texts).lower())
    known = dict.fromkeys(["[PAD]", "[UNK]", "[EOS]", *words])
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]"
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(known), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.4,
    )  # fmt: skip
    return LanguageModel(transformers.LlamaForCausalLM(config).eval(), tokenizer, batch_size=64)


class Bench:
    """The model, loaded once, and the data of each task."""

    def __init__(self, table: Table, model: str, dtype: str = "float32", pieces: int = 1) -> None:
        import torch

        from tacit.prompts import load

        self.table, self.dtype, self.pieces = table, dtype, pieces
        torch.set_float32_matmul_precision("high")
        many = 1024 if table.device != "cpu" else 32
        made_up = model == TINY_MODEL
        self.language = (
            random_model()
            if made_up
            else load(model, device=table.device, batch_size=many, dtype=getattr(torch, dtype))
        )
        self.data = functools.cache(made_up_texts if made_up else lambda task: READERS[task](table))
        self.reviews = functools.cache(lambda: mr_without_sst2(table))

    def task(self, name: str) -> tuple[Any, Any, dict[str, Pairs]]:
        """Template, verbaliser and data of a task; a few rows of them where only running is to be shown."""
        from tacit.prompts import Template, Verbalizer

        about, data = TASKS[name], self.data(name)
        if self.table.tiny:
            data = {"train": data["train"][:80], "public": data["public"][:24], "test": data["test"][:32]}
        return Template(about["body"], about["instruction"]), Verbalizer(about["words"]), data

    def fresh(self) -> Any:
        """A copy of the model: LoRA changes the one it is given."""
        return copy.deepcopy(self.language.model)


def _accuracy(found: Any) -> dict[str, Any]:
    low, high = found.interval
    return {"accuracy": found.value, "low": low, "high": high, "test_rows": found.total}


def _discrete(bench: Bench, task: str, shots: int, calibration: str, members: int, seed: int) -> dict[str, Any]:
    """Zero-shot, or demonstrations chosen on the private training texts themselves: no guarantee."""
    from tacit.prompts import Prompt, calibrated

    template, words, data = bench.task(task)
    if shots == 0:
        prompt = Prompt(template, words)
        even = calibrated(bench.language, prompt, "batch", [text for text, _ in data["public"]])
        both = [p.accuracy(bench.language, data["test"]) for p in (prompt, even)]
        return {**_accuracy(both[0]), "calibrated": both[1].value}
    rows = random.Random(seed).sample(data["train"], min(len(data["train"]), 600))
    unlabelled = [text for text, _ in data["public"]]
    return _student(bench, task, rows, unlabelled, calibration, members, seed)


def _student(
    bench: Bench, task: str, labelled: Pairs, unlabelled: list[str], calibration: str, members: int, seed: int
) -> dict[str, Any]:
    """A prompt, or several that answer together, chosen by labelled texts; and what it does on the test texts."""
    from tacit.prompts import choose

    template, words, data = bench.task(task)
    tried = 8 if bench.table.tiny else CANDIDATES
    student = choose(
        bench.language,
        template,
        words,
        labelled,
        shots=(1, 2, 4),
        candidates=tried,
        members=members,
        calibration=calibration,
        unlabelled=unlabelled,
        seed=seed,
    )
    shots = [len(prompt.demonstrations) for prompt in student.members]
    return {
        **_accuracy(student.accuracy(bench.language, data["test"])),
        "shots": shots[0] if members == 1 else shots,
        "candidates": tried,
    }


def _start(bench: Bench, task: str, start: str, seed: int) -> dict[str, Any]:
    """How well a start text does on the public sentences, as it is and with its leaning taken out."""
    from tacit.prompts import Prompt, Template, calibrated

    template, words, data = bench.task(task)
    prompt = Prompt(Template(template.body, STARTS[start], separator=""), words)
    even = calibrated(bench.language, prompt, "batch", [text for text, _ in data["public"]])
    found = [p.accuracy(bench.language, data["public"]).value for p in (prompt, even)]
    return {"validation": found[0], "calibrated": found[1]}


def _best_start(bench: Bench, task: str) -> dict[str, Any]:
    """The start text for a soft prompt, by the rows that were measured; a task with an instruction starts as that."""
    if task != "sst2":
        return {}
    known = [row for row in bench.table.rows if row["method"] == "start"]
    best = max(known, key=lambda row: row["calibrated"])["start"] if known else "two reviews"
    return {"start": STARTS[best]}


def _best_trial(bench: Bench, method: str) -> Row | None:
    """The trial of a method that did best on the public sentences, if any was measured."""
    known = [row for row in bench.table.rows if row["method"] == f"trial of {method}"]
    return max(known, key=lambda row: row["validation"]) if known else None


def _trial(bench: Bench, task: str, method: str, trial: str, seed: int) -> dict[str, Any]:
    return _tuned(bench, task, method, EPSILONS[0], seed, TRIALS[method][trial])


def _longer(bench: Bench, task: str, epsilon: float, seed: int) -> dict[str, Any]:
    return _tuned(bench, task, "lora", epsilon, seed, LONGER)


def _settings(bench: Bench, task: str, method: str, epsilon: float | None, over: dict[str, Any]) -> dict[str, Any]:
    """How a method is trained on a task; without ε without noise."""
    settings = SETTINGS[method] | OF_TASK.get(task, {}) | over
    settings |= {"epsilon": epsilon} if epsilon is not None else PLAIN
    if bench.table.tiny:
        settings |= {"steps": 2, "batch_size": 16}
    if method in ("soft", "prefix"):
        settings |= _best_start(bench, task)
    return settings


def _tuned(
    bench: Bench, task: str, method: str, epsilon: float | None, seed: int, over: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A soft prompt, a prefix or LoRA; without ε it is trained without noise."""
    import torch

    from tacit.prompts import Accuracy, tune

    template, words, data = bench.task(task)
    best = _best_trial(bench, method) if over is None else None
    if best is not None and task == "sst2" and (epsilon, seed) == (EPSILONS[0], best["seed"]):
        return {name: value for name, value in best.items() if name not in ("task", "method", "seconds", "machine")}
    over = over or ({} if best is None else TRIALS[method][best["trial"]])
    settings = _settings(bench, task, method, epsilon, over)
    torch.manual_seed(seed)

    def made(weights: list[Any]) -> torch.optim.Optimizer:
        return torch.optim.Adam(weights, lr=settings["learning_rate"])

    done = tune(
        bench.fresh(),
        bench.language.tokenizer,
        template,
        words,
        data["train"],
        method=method,
        delta=DELTA,
        optimizer=made,
        # So many pieces hold nearly every batch; the texts are in the order of their lengths.
        physical_batch=None
        if bench.table.device == "cpu"
        else int(1.12 * settings["batch_size"] / bench.pieces) // PIECES[task] + 1,
        progress=False,
        **{k: v for k, v in settings.items() if k != "learning_rate"},
    )
    done.language.batch_size = bench.language.batch_size
    scores = {}
    for split in ("public", "test"):
        guesses = done.predict([text for text, _ in data[split]])
        right = sum(a == b for a, (_, b) in zip(guesses, data[split], strict=True))
        scores[split] = Accuracy(right, len(guesses))
    private = {} if epsilon is None else {"spent": done.privacy.upper, "delta": DELTA}
    return {
        **_accuracy(scores["test"]),
        "validation": scores["public"].value,
        "weights": done.parameters,
        "dtype": bench.dtype,
        "training_seconds": round(done.fit.seconds, 1),
        **private,
        **{k: settings[k] for k in SHOWN if k in settings},
    }


def queries_of(bench: Bench, public: str, count: int, seed: int) -> list[str]:
    """Public texts to ask the teachers about: in distribution, near it, or of other kinds."""
    if public == "sst2 validation":
        rows = [text for text, _ in bench.data("sst2")["public"]]
    elif public == "mr without sst2":
        rows = bench.reviews()
    elif public == "trec held out":
        rows = [text for text, _ in bench.data("trec")["public"]]
    elif public == "trec":
        rows = [text for text, _ in bench.data("trec")["train"]]
    else:
        rows = [text for text, _ in bench.data("ag_news")["public"]]
    return random.Random(seed).sample(rows, min(count, len(rows)))


#: Votes. "guaranteed" keeps even the data-independent ε below 1; so does "thousand", where 1,000 teachers of one
#: demonstration a class drown the same noise, and "many", which spends their margin on more noise and more answers;
#: "confident" is the kind of setting that the paper has, where only the data-dependent ε is small.
AGGREGATORS: dict[str, dict[str, float]] = {
    "many": {
        **{"teachers": 1000, "queries": 400, "answers": 320},
        **{"threshold": 600.0, "check_noise": 147.0, "vote_noise": 133.0},
    },
    "thousand": {
        **{"teachers": 1000, "queries": 150, "answers": 110},
        **{"threshold": 600.0, "check_noise": 90.0, "vote_noise": 78.0},
    },
    "guaranteed": {
        **{"teachers": 200, "queries": 150, "answers": 110},
        **{"threshold": 110.0, "check_noise": 90.0, "vote_noise": 78.0},
    },
    "confident": {
        **{"teachers": 200, "queries": 300, "answers": 300},
        **{"threshold": 170.0, "check_noise": 60.0, "vote_noise": 20.0},
    },
}
#: The private task and the public texts of the parts where teachers vote.
PUBLIC: dict[str, tuple[str, tuple[str, ...]]] = {
    "pate": ("sst2", ("sst2 validation",)),
    "pate-far": ("sst2", ("mr without sst2", "trec", "ag_news")),
    "pate-trec": ("trec", ("trec held out",)),
}
#: Prompts that are tried for the student, and how many of them answer together.
CANDIDATES, MEMBERS = 192, 8
#: How often noise is drawn for the same votes.
DRAWS = 3


def _votes(
    bench: Bench, task: str, public: str, number: int, asked: int, calibration: str, seed: int
) -> tuple[Any, float]:
    """The teachers' votes and the seconds they took, kept in a file: noise is drawn for them several times."""
    import numpy as np

    from tacit.pate import VoteCounts
    from tacit.prompts import PromptTeachers

    file = bench.table.folder / f"votes {task} {public} {number} {asked} {seed}.npz".replace(" ", "-")
    if file.exists():
        with np.load(file) as kept:
            return VoteCounts(kept["counts"], number, "keyed", "record", kept["texts"].tolist()), float(kept["seconds"])
    template, words, data = bench.task(task)
    texts, began = queries_of(bench, public, asked, seed), time.perf_counter()
    counts = PromptTeachers(bench.language, template, words, data["train"], 1, number, calibration=calibration).vote(
        texts, progress=False
    )
    taken = time.perf_counter() - began
    part = file.with_suffix(".part.npz")
    np.savez(part, counts=counts.counts, texts=np.array(texts), seconds=taken)
    part.rename(file)
    return counts, taken


def _pate(
    bench: Bench, task: str, public: str, votes: str, calibration: str, members: int, seed: int
) -> dict[str, Any]:
    """Teachers vote on public texts; the student is chosen by the noisy labels. Noise is drawn anew at each call."""
    import numpy as np

    from tacit.pate import ConfidentGNMax

    _, words, _ = bench.task(task)
    small, chosen = bench.table.tiny, dict(AGGREGATORS[votes])
    asked, most, number = (int(chosen.pop(name)) for name in ("queries", "answers", "teachers"))
    if small:
        chosen = {name: 4 * value / number for name, value in chosen.items()}
        asked, most, number = 8, 8, 4
    counts, voted = _votes(bench, task, public, number, asked, calibration, seed)
    answers = ConfidentGNMax(**chosen, classes=len(words.classes)).answer(
        counts, queries=asked, answers=most, delta=VOTE_DELTA
    )
    texts, labels, _ = answers.labelled()
    labelled = [(text, words.classes[i]) for text, i in zip(texts, labels, strict=True)]
    truth = dict(bench.data(task)["public"])
    right = [truth[text] == label for text, label in labelled if text in truth]
    found: dict[str, Any] = {
        "teachers": counts.teachers,
        "asked": len(answers),
        "answered": len(labelled),
        "labels_right": float(np.mean(right)) if right else float("nan"),
        "voting_seconds": round(voted, 1),
        "mean_share": float(counts.counts.max(1).mean() / counts.teachers),
        "epsilon_data_independent": answers.privacy.claim,
        "epsilon_theorem6": float(answers.accounts.theorem6),
        "epsilon_exact": float(answers.accounts.exact) if answers.accounts.exact is not None else None,
        "delta": VOTE_DELTA,
    }
    if len(labelled) < 4:
        return {**found, "accuracy": float("nan")}
    unlabelled = queries_of(bench, public, 8 if small else 800, seed)
    return {**_student(bench, task, labelled, unlabelled, calibration, members, seed), **found}


def measure(table: Table, parts: tuple[str, ...], model: str, dtype: str = "float32", pieces: int = 1) -> list[str]:
    """The rows of these parts that are not there yet. A row that fails is named, and the others are measured."""
    bench, failed = Bench(table, model, dtype, pieces), []
    for seed in range(table.seeds):
        for part in parts:
            for key, do in _plan(bench, part, seed):
                try:
                    table.row(do, **key)
                except Exception:  # noqa: BLE001  named at the end, where the run fails
                    failed.append(" ".join(map(str, key.values())))
                    traceback.print_exc()
    return failed


def _plan(bench: Bench, part: str, seed: int) -> list[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """What a part measures: the key of each row, and how.

    Many branches: one for each part, of two or three lines.
    """
    rows: list[tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = []
    epsilons: tuple[float, ...] = EPSILONS[:1] if bench.table.tiny else EPSILONS
    part, _, wanted = part.partition(":")
    ways = [way for way in AGGREGATORS if way in wanted.split("+") or not wanted]
    if wanted and not ways:
        epsilons = tuple(float(value) for value in wanted.split("+"))

    def add(way: Callable[..., dict[str, Any]], task: str, method: str, *args: Any, **more: Any) -> None:
        key = {"task": task, "method": method, "seed": seed, **more}
        rows.append((key, functools.partial(way, bench, task, *args, seed)))

    if part == "zero-shot":
        for task in TASKS:
            if seed == 0:
                add(_discrete, task, "zero-shot", 0, "none", 1)
    elif part == "few-shot":
        for way in ("batch", "none"):
            for task in ("sst2", "trec"):
                add(_discrete, task, "few-shot, not private", 1, way, MEMBERS, calibration=way, members=MEMBERS)
    elif part.startswith("trials-") and part[7:] in TRIALS:
        for trial in TRIALS[part[7:]]:
            if seed == 0:
                add(_trial, "sst2", f"trial of {part[7:]}", part[7:], trial, trial=trial)
    elif part == "starts":
        for start in STARTS:
            if seed == 0:
                add(_start, "sst2", "start", start, start=start)
    elif part in SETTINGS:
        for epsilon in epsilons:
            add(_tuned, "sst2", part, part, epsilon, epsilon=epsilon)
    elif part == "lora2":
        for epsilon in epsilons:
            add(_longer, "sst2", "lora2", epsilon, epsilon=epsilon)
    elif part == "plain":
        for method in SETTINGS:
            add(_tuned, "sst2", f"{method}, not private", method, None)
    elif part == "trec-plain":
        for method in SETTINGS:
            add(_tuned, "trec", f"{method}, not private", method, None)
    elif part.startswith("trec-") and part[5:] in SETTINGS:
        for epsilon in epsilons:
            add(_tuned, "trec", part[5:], part[5:], epsilon, epsilon=epsilon)
    elif part in PUBLIC:
        task, texts = PUBLIC[part]
        for votes in ways:
            for draw in range(1 if bench.table.tiny else DRAWS):
                for public in texts:
                    key = {"public": public, "votes": votes, "members": MEMBERS, "draw": draw}
                    add(_pate, task, "PromptPATE", public, votes, "batch", MEMBERS, **key)
    elif part == "ag_news":
        for method in ("lora",):
            add(_tuned, "ag_news", method, method, 8.0, epsilon=8.0)
    else:
        raise ValueError(f"there is no part {part!r}; there are {', '.join(PARTS)}")
    return rows


def run(table: Table) -> None:
    """All rows, or those of the parts named in ``TACIT_PARTS``; the model is ``TACIT_MODEL`` or smollm2.

    The short size shows the kept rows; the tiny one takes a model of a few thousand random weights and made-up texts.
    """
    named = tuple(filter(None, os.environ.get("TACIT_PARTS", "").split(",")))
    if table.size == "short" and not named:
        return table.show_kept(
            "a language model scores four texts a second on two cores, so the kept rows are shown; --size full "
            "measures them, on a GPU, with the extra tacit[prompts] and the model (tacit data get smollm2)"
        )
    model = TINY_MODEL if table.tiny else os.environ.get("TACIT_MODEL", "smollm2")
    failed = measure(table, named or table.pick(TINY_PARTS, PARTS, PARTS), model)
    if failed:
        raise RuntimeError(f"these rows failed: {'; '.join(failed)}")


def main(arguments: list[str] | None = None) -> None:
    """Measure the rows of some parts."""
    parser = argparse.ArgumentParser(prog="python -m experiments.prompts", description=__doc__)
    parser.add_argument(
        "--parts",
        default=",".join(PARTS),
        help=f"which of {', '.join(PARTS)}; lora:8+3 for some ε, pate:thousand for one way to vote",
    )
    parser.add_argument("--model", default=os.environ.get("TACIT_MODEL", "smollm2"), help="a folder, or smollm2")
    parser.add_argument("--size", choices=SIZES, default=SIZES[0], help="short: five minutes on two cores; full; tiny")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of the language model")
    parser.add_argument("--pieces", type=int, default=1, help="run batches in so many times more pieces")
    chosen = parser.parse_args(arguments)
    table = Table("prompts", chosen.out, chosen.seeds, chosen.size, chosen.data_dir, chosen.device)
    failed = measure(table, tuple(chosen.parts.split(",")), chosen.model, chosen.dtype, chosen.pieces)
    print(summary(table.rows))
    if failed:
        raise SystemExit(f"these rows failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
