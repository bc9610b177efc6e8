"""The prompts experiment: what its rows are made of, that one failure leaves the others, and what is said of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from experiments import prompts, prompts_page
from experiments.table import Table

pytest.importorskip("peft")
TUNED = {"weights": 10, "steps": 60, "batch_size": 512, "learning_rate": 0.005, "low": 0.8, "high": 0.9}


def made_up(folder: Path) -> Path:
    """The texts that the experiment reads, in small."""
    reviews = [(f"a {'fine' if i % 2 else 'dull'} film number {i} about a man and his dog", i % 2) for i in range(90)]
    sst2 = folder / "text" / "sst2"
    sst2.mkdir(parents=True)
    for name, part in {"train": reviews[:70], "dev": reviews[70:80], "test": reviews[80:]}.items():
        (sst2 / f"{name}.tsv").write_text("\n".join(f"{text}\t{label}" for text, label in part))
    mr = folder / "text" / "mr"
    mr.mkdir()
    (mr / "rt-polarity.pos").write_text("So: a FINE film number 3 -lrb- ABOUT a man!\nquite another thing, i say\n")
    (mr / "rt-polarity.neg").write_text("tedious\n")
    return folder


def table(folder: Path, data: Path) -> Table:
    return Table("prompts", folder, 1, "tiny", data, say=lambda text: None)


def test_every_sentence_is_read_and_near_copies_are_no_public_texts(tmp_path):
    rows = table(tmp_path, made_up(tmp_path / "data"))
    found = prompts.sst2(rows)
    assert [len(found[split]) for split in ("train", "public", "test")] == [70, 10, 10]
    assert found["train"][0] == ("a dull film number 0 about a man and his dog", "0")
    assert prompts.mr_without_sst2(rows) == ["quite another thing, i say", "tedious"]


def test_a_row_that_fails_is_named_and_the_others_are_measured(tmp_path, monkeypatch):
    from tests.prompts import tiny

    from tacit.prompts import LanguageModel

    monkeypatch.setattr(
        "tacit.prompts.load", lambda *a, **k: LanguageModel(tiny.llama(context=256), tiny.tokenizer(), batch_size=64)
    )
    about = {"body": "review: {text} . sentiment :", "instruction": "", "words": {"0": "bad", "1": "good"}}
    monkeypatch.setattr(prompts, "TASKS", {"sst2": about})
    monkeypatch.setattr(prompts, "STARTS", {"two reviews": "which sentiment is it?"})
    monkeypatch.setitem(prompts.SETTINGS["prefix"], "clip_norm", -1.0)
    rows = table(tmp_path, made_up(tmp_path / "data"))
    failed = prompts.measure(rows, ("zero-shot", "prefix:8", "trials-soft", "soft:8", "pate:thousand"), "tiny")
    assert failed == ["sst2 prefix 0 8.0"]
    kept = [json.loads(line) for line in rows.file.read_text().splitlines()]
    methods = [row["method"] for row in kept]
    assert methods == ["zero-shot", "trial of soft", "trial of soft", "soft", "PromptPATE"]
    best = max(kept[1:3], key=lambda row: row["validation"])
    assert kept[3]["learning_rate"] == best["learning_rate"]  # the row of ε = 8 is the better trial, not another run
    assert kept[3]["accuracy"] == best["accuracy"]
    assert "soft prompt" in prompts_page.summary(rows.rows)
    # Noise is drawn again on votes that are kept: no teacher is asked for the second draw.
    usual = prompts.MEMBERS
    monkeypatch.setattr(prompts, "MEMBERS", 2)
    monkeypatch.setattr("tacit.prompts.PromptTeachers", None)
    assert prompts.measure(rows, ("pate:thousand",), "tiny") == []
    assert [row["members"] for row in rows.rows if row["method"] == "PromptPATE"] == [usual, 2]


def test_the_page_has_a_column_for_each_epsilon_and_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"task": "sst2", "method": "soft", "epsilon": e, "accuracy": 0.85, **TUNED} for e in (8.0, 1.0)]
    rows += [{"task": "sst2", "method": "soft, not private", "accuracy": 0.88, **TUNED}]
    first = prompts_page.summary(rows).splitlines()
    assert first[0].startswith("| data | method | ε = 1 | ε = 8 | not private |")
    assert "85.0 [80.0, 90.0]" in first[2]
    prompts_page.plot(rows, tmp_path)
    assert os.path.getsize(tmp_path / "prompts.png") > 10_000


def test_noise_that_is_drawn_again_on_the_same_votes_is_one_line_of_the_page():
    vote = {"task": "sst2", "method": "PromptPATE", "public": "sst2 validation", "votes": "thousand", "teachers": 1000}
    vote |= {"asked": 123, "answered": 110, "labels_right": 0.86, "epsilon_data_independent": 0.987, "low": 0.8}
    vote |= {"epsilon_theorem6": 0.3, "epsilon_exact": None, "high": 0.9}
    rows = [{**vote, "accuracy": 0.865}]  # one prompt, one draw
    rows += [{**vote, "members": 5, "draw": i, "accuracy": value} for i, value in enumerate((0.88, 0.87, 0.86))]
    first, second = prompts_page.voted(rows)
    assert (first["prompts"], first["student"]) == (1, "86.5 [80.0, 90.0]")
    assert "noise drawn again" not in first
    assert (second["prompts"], second["student"]) == (5, "88.0 [80.0, 90.0]")
    assert second["noise drawn again"] == "87.0, mean of 3 (86.0 to 88.0)"
    assert prompts_page._best_votes(rows, "sst2") == [rows[1]]


def test_label_words_of_a_bfloat16_model_do_not_tie():
    from tests.prompts import tiny

    from tacit.prompts import LanguageModel, Template, Verbalizer

    language = LanguageModel(tiny.llama().bfloat16(), tiny.tokenizer())
    language.model.get_output_embeddings().weight.data[:, 0] += 300.0  # large logits, far apart in bfloat16
    found = language.log_probabilities(
        Template("review: {text} . sentiment :"),
        Verbalizer({"no": "bad", "yes": "good"}),
        [text for text, _ in tiny.reviews(30)],
    )
    gap = torch.tensor(found[:, 0] - found[:, 1]).abs()
    assert len({round(float(g), 7) for g in gap}) > 10
