"""``tacit prompt``: from a table of private texts to an adapter or a prompt, its card and its report."""

from __future__ import annotations

import json

import pytest
from tests.prompts import tiny
from tests.prompts.server import serving
from typer.testing import CliRunner

from tacit.cli import build

pytest.importorskip("peft")
ASK = ["--template", "review: {text} . sentiment :", "--instruction", "which sentiment is it?", "--words"]
ASK += ["no=bad,yes=good"]
BECAUSE = ["--public-because", "simulated"]


@pytest.fixture(scope="module")
def app():
    return build()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model's folder and three tables of texts."""
    import polars as pl

    folder = tmp_path_factory.mktemp("prompt")
    tiny.llama(context=256).save_pretrained(folder / "llm")
    tiny.tokenizer().save_pretrained(folder / "llm")
    for name, rows in {"notes": tiny.reviews(60), "test": tiny.reviews(20, 5), "forum": tiny.reviews(30, 7)}.items():
        pl.DataFrame(rows, schema=["text", "label"], orient="row").write_csv(folder / f"{name}.csv")
    return folder


def call(app, *arguments, code=0):
    told = CliRunner().invoke(app, ["prompt", *map(str, arguments)])
    assert told.exit_code == code, told.output + str(told.exception)
    return told


def test_a_tuned_adapter_has_a_card_a_report_and_one_charge(app, place, tmp_path):
    made = CliRunner().invoke(
        app, ["ledger", "init", str(tmp_path / "my.db"), "notes", "--epsilon", "3", "--delta", "1e-4"]
    )
    assert made.exit_code == 0, made.output
    line = ["tune", place / "notes.csv", "--model", place / "llm", *ASK, "--method", "lora", "--epsilon", 2, "--delta"]
    line += ["1e-4", "--steps", 2, "--batch", 20, "--evaluate", place / "test.csv", *BECAUSE, "--runs", tmp_path]
    line += ["--ledger", tmp_path / "my.db", "--dataset", "notes", "--name", "one", "--json"]
    line += ["--tuning", "none", "--uncovered", "nothing"]
    told = json.loads(call(app, *line).stdout)
    assert told["epsilon"] <= 2
    stated = json.loads((tmp_path / "one" / "privacy.json").read_text())["accesses"]
    assert (stated["tuning"], stated["uncovered"]) == ("none", [])
    card = json.loads((tmp_path / "one" / "privacy.json").read_text())
    assert "PromptDPSGD: LoRA" in json.dumps(card)
    assert {r["model"] for r in told["results"]} == {"private", "zero-shot"}
    assert (tmp_path / "one" / "report.html").exists()
    # A second run does not fit in the budget, and says so with its own exit code.
    again = call(app, *[w if w != "one" else "two" for w in line], code=3)
    assert "left of the Rényi budget (ε=3, δ=0.0001)" in again.output
    shown = call(app, "eval", tmp_path / "one", place / "test.csv", "--json").stdout
    private = next(r for r in told["results"] if r["model"] == "private")
    assert json.loads(shown)["accuracy"] == pytest.approx(private["value"])


def test_a_model_learns_to_continue_private_texts(app, place, tmp_path):
    line = ["tune", place / "notes.csv", "--task", "generate", "--template", "review: {text}", "--model", place / "llm"]
    line += ["--method", "soft", "--noise", 1, "--delta", "1e-4", "--steps", 8, "--batch", 40, "--lr", 0.3]
    line += ["--clip-norm", 5, "--evaluate", place / "test.csv", *BECAUSE, "--runs", tmp_path, "--name", "more"]
    told = json.loads(call(app, *line, "--json").stdout)
    value = {r["model"]: r["value"] for r in told["results"]}
    assert {r["metric"] for r in told["results"]} == {"perplexity"}
    assert value["private"] < value["before"]
    card = json.loads((tmp_path / "more" / "privacy.json").read_text())
    assert "classes" not in json.dumps(card["data"])
    again = json.loads(call(app, "eval", tmp_path / "more", place / "test.csv", "--json").stdout)
    assert again["perplexity"] == pytest.approx(value["private"], abs=0.01)
    assert "no classes" in call(app, *line, "--words", "a=b", code=2).output


def test_teachers_behind_an_endpoint_make_a_prompt_and_a_cut_run_goes_on(app, place, tmp_path):
    from tacit.prompts import load

    with serving(load(place / "llm")) as server:
        line = ["pate", place / "notes.csv", "--public", place / "forum.csv", "--endpoint", server.url]
        line += ["--endpoint-model", "tiny", *ASK, "--teachers", 5, "--queries", 12, "--answers", 12, "--delta", "1e-6"]
        line += ["--threshold", 1, "--check-noise", 0.3, "--vote-noise", 2, "--candidates", 3, "--student-shots", 1]
        line += ["--members", 2, "--evaluate", place / "test.csv", *BECAUSE, "--runs", tmp_path, "--name", "votes"]
        server.trouble = [*([None] * 30), *([404] * 8)]  # two teachers are done, then the model is gone
        cut = call(app, *line, code=1)
        assert "404" in cut.output
        assert "--resume" in cut.output
        server.trouble = []
        told = json.loads(call(app, "pate", "--resume", tmp_path / "votes", "--json").stdout)
        server.asked = []
        again = json.loads(call(app, "pate", "--resume", tmp_path / "votes", "--json").stdout)
        # No teacher is asked again: nothing that is in the private table alone is sent.
        known = {text for text, _ in [*tiny.reviews(20, 5), *tiny.reviews(30, 7)]}
        own = [f"review: {text} ." for text, _ in tiny.reviews(60) if text not in known]
        assert own
        assert not any(text in body["prompt"] for _, _, body in server.asked for text in own)
        shown = json.loads(call(app, "eval", tmp_path / "votes", place / "test.csv", "--json").stdout)
    private = next(r for r in again["results"] if r["model"] == "private")
    assert shown["accuracy"] == pytest.approx(private["value"])  # all members are asked, over HTTP too
    assert told["epsilon"] == again["epsilon"]
    prompt = json.loads((tmp_path / "votes" / "prompt.json").read_text())
    forum = (place / "forum.csv").read_text()
    assert len(prompt["others"]) == 1
    assert all(text in forum for member in (prompt, *prompt["others"]) for text, _ in member["demonstrations"])
    assert not (tmp_path / "votes" / "private" / "teachers.key").exists()  # nobody learns who was where
    card = json.loads((tmp_path / "votes" / "privacy.json").read_text())
    assert "theorem6" not in json.dumps(card)  # data-dependent prices stay with the operator


def test_texts_of_one_person_are_protected_together(app, place, tmp_path):
    import polars as pl

    notes = pl.read_csv(place / "notes.csv")
    notes.with_columns(who=pl.arange(0, pl.len()) // 3).write_csv(tmp_path / "owned.csv")
    line = ["tune", tmp_path / "owned.csv", "--model", place / "llm", *ASK, "--method", "lora", "--noise", 2, "--delta"]
    line += ["1e-4", "--steps", 1, "--batch", 5, "--unit", "patient", "--unit-column", "who", "--runs", tmp_path]
    call(app, *line, "--name", "owned")
    card = json.loads((tmp_path / "owned" / "privacy.json").read_text())
    assert card["guarantee"]["unit"] == "patient"
    assert card["mechanism"]["parameters"]["sampler"]["size"] == len(notes) // 3  # people are drawn


def test_zero_shot_is_a_prompt_like_any_other(app, place):
    line = ["eval", "zero-shot", place / "test.csv", "--model", place / "llm", *ASK]
    assert "accuracy" in call(app, *line).stdout


def test_bad_lines_say_what_to_do(app, place, tmp_path):
    usual = ["--model", place / "llm", "--runs", tmp_path]
    notes = ["tune", place / "notes.csv", *usual]
    assert "delta" in call(app, *notes, *ASK, "--epsilon", 1, code=2).output
    assert "epsilon or noise" in call(app, *notes, *ASK, "--delta", "1e-5", code=2).output
    told = call(app, *notes, "--words", "no=bad,yes=good", "--epsilon", 1, "--delta", "1e-5", code=2).output
    assert "template" in told
    told = call(app, *notes, "--template", "{text} so", "--epsilon", 1, "--delta", "1e-5", code=2).output
    assert "words" in told
    told = call(app, *notes, *ASK[:5], "no=bad,yes=very good", "--epsilon", 1, "--delta", "1e-5", code=1).output
    assert "one token" in told
    told = call(app, "pate", place / "notes.csv", *usual, *ASK, "--delta", "1e-5", code=2).output
    assert "public" in told
    told = call(
        app, "pate", place / "notes.csv", "--public", place / "forum.csv", *usual, *ASK, "--delta", "1e-5", code=1
    )
    assert "use fewer teachers" in told.output
    for data, other in ((place / "notes.csv", place / "notes.csv"), ("sst2", "sst2:train")):
        told = call(app, "pate", data, "--public", other, *usual, *ASK, "--delta", "1e-5", code=2)
        assert "are the private texts" in told.output
    # What the student would be refused for is said before a teacher votes and anything is charged.
    few = ["pate", place / "notes.csv", "--public", place / "forum.csv", *usual, *ASK, "--delta", "1e-5"]
    for option, value in (("--members", 0), ("--candidates", 0), ("--student-shots", "one")):
        assert option[2:] in call(app, *few, option, value, "--name", "refused", code=2).output
    assert not (tmp_path / "refused").exists()
    assert "at least 4 answers" in call(app, *few, "--teachers", 5, "--answers", 2, code=2).output
    # Zero is said, and not the same as nothing.
    assert "vote_noise must be a number above 0" in call(app, *few, "--vote-noise", 0, code=1).output
    none = call(app, *notes, *ASK, "--noise", 1, "--steps", 0, "--delta", "1e-5", code=1).output
    assert "positive whole number" in none
    told = call(
        app, "tune", place / "notes.csv", "--model", tmp_path / "none", *ASK, "--epsilon", 1, "--delta", "1e-5", code=1
    )
    assert "no language model could be loaded" in told.output or "neither a folder" in told.output
    # A word for the unit protects nobody more: it needs a column of ids.
    for line in ([*notes, *ASK, "--epsilon", 1, "--delta", "1e-5"], few):
        assert "unit-column" in call(app, *line, "--unit", "person", code=2).output
        assert "no column 'who'" in call(app, *line, "--unit-column", "who", code=2).output
    assert "classify, generate" in call(app, *notes, "--task", "sing", "--epsilon", 1, "--delta", "1e-5", code=2).output
    assert "--resume" in call(app, "tune", "--resume", tmp_path, "--epsilon", 1, code=2).output
