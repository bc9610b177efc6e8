"""What a person meets who types ``tacit train``: a private model, a card, a report, or a message that helps."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import stat
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.report.common import shown
from typer.testing import CliRunner

from tacit.cli import build
from tacit.ledger import Ledger
from tacit.report import read_card
from tacit.report.card import sources
from tacit.runs.program import run
from tacit.runs.progress import Live
from tacit.runs.read import read
from tacit.runs.settings import Settings
from tacit.schema import Boolean, Numeric, Schema, Unit

SCHEMA = """
name = "clinic"
description = "Will the patient come back?"

[unit]
name = "patient"

[columns.age]
kind = "numeric"
lower = 0
upper = 100

[columns.ward]
kind = "categorical"
categories = ["north", "south"]

[columns.smokes]
kind = "boolean"

[columns.back]
kind = "boolean"
target = true
"""
USUAL = ("--epsilon", "3", "--delta", "1e-5", "--epochs", "2", "--batch", "50", "--model", "linear")


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def clinic(tmp_path):
    """A table of a person's own with a hand-written schema."""
    generator = np.random.default_rng(1)
    age = generator.integers(18, 95, 500)
    ward = generator.choice(["north", "south"], 500)
    smokes = generator.integers(0, 2, 500)
    back = (age + 20 * smokes + generator.normal(0, 15, 500) > 65).astype(int)
    rows = [f"{a},{w},{s},{b}" for a, w, s, b in zip(age, ward, smokes, back, strict=True)]
    (tmp_path / "clinic.csv").write_text("age,ward,smokes,back\n" + "\n".join(rows) + "\n")
    (tmp_path / "clinic.toml").write_text(SCHEMA)
    return tmp_path


def tacit(*words: str):
    return CliRunner().invoke(build(), ["train", *words])


def own(*words: str):
    return tacit("clinic.csv", "--schema", "clinic.toml", *USUAL, *words)


def test_a_table_of_ones_own_with_a_hand_written_schema(clinic):
    told = own(
        "--public-share", "0.2", "--public-because", "made up for a test", "--by", "ward", "--reference", "--json"
    )
    assert told.exit_code == 0, told.output
    result = json.loads(told.stdout)
    assert result["epsilon"] <= 3.0
    folder = clinic / "runs" / "clinic-1"
    assert {p.name for p in folder.iterdir()} == {"config.toml", "model.pt", "privacy.json", "report.html", "private"}
    assert stat.S_IMODE((folder / "private").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "private" / "operator.jsonl").stat().st_mode) == 0o600
    assert torch.load(folder / "model.pt", weights_only=True)["weight"].shape == (2, 5)
    card = read_card(folder / "privacy.json")
    assert card["guarantee"]["unit"] == "patient"
    assert card["mechanism"]["steps_executed"] == card["mechanism"]["steps_planned"] == 18
    models = {(r["model"], r["group"]) for r in result["results"]}
    assert {("private", ""), ("non-private reference", ""), ("majority", ""), ("private", "ward = north")} <= models
    by = {r["group"]: r for r in result["results"] if r["model"] == "private"}
    assert by["ward = north"]["rows"] + by["ward = south"]["rows"] == by[""]["rows"]
    page = (folder / "report.html").read_text()
    assert f'data-from="guarantee.epsilon.claimed">{result["epsilon"]:.10g}<' in page


def test_nothing_published_is_neither_charged_nor_public(clinic):
    Ledger(clinic / "my.db").register("clinic", epsilon=3.0, delta=1e-5, unit="patient")
    told = own("--ledger", "my.db", "--dataset", "clinic", "--name", "one")
    assert told.exit_code == 0, told.output
    folder = clinic / "runs" / "one"
    card = read_card(folder / "privacy.json")
    assert all(why.startswith(("public: ", "charged to clinic")) for why in sources(card).values())
    assert card["run"].source("model").startswith("charged to clinic (charge ")
    ledger = Ledger(clinic / "my.db")
    ledger.verify("clinic", heads=[card["ledger"]["head"]]).require()  # the card's head is in the chain
    assert card["ledger"]["head"] != ledger.head("clinic")  # and an entry behind it binds the release
    assert ledger.history("clinic")[0].release
    assert card["ledger"]["confirmed"] is True
    logged = [json.loads(line) for line in (folder / "private" / "operator.jsonl").read_text().splitlines()]
    assert len(logged) == 20
    published = (folder / "privacy.json").read_text() + (folder / "report.html").read_text() + told.output
    for entry in logged:
        assert entry["note"] == "operator view: not covered by the guarantee"
        for name in ("loss", "median_norm"):
            assert not shown(entry[name], published)
            assert shown(entry[name], published + f" {entry[name]:.8e}")


def test_a_full_budget_is_refused_with_what_would_fit(clinic):
    Ledger(clinic / "my.db").register("clinic", epsilon=1.0, delta=1e-5, unit="patient")
    told = own("--ledger", "my.db", "--dataset", "clinic")
    assert told.exit_code == 3
    assert "costs ε=" in told.output
    assert "Still fits" in told.output
    assert not (clinic / "runs" / "clinic-1").exists()
    assert Ledger(clinic / "my.db").history("clinic") == []


def test_other_data_than_those_registered_are_refused(clinic):
    (clinic / "other.csv").write_text("age,ward,smokes,back\n30,north,0,1\n")
    Ledger(clinic / "my.db").register(
        "clinic", epsilon=9.0, delta=1e-4, unit="patient", fingerprint=clinic / "other.csv"
    )
    told = own("--ledger", "my.db", "--dataset", "clinic")
    assert told.exit_code == 1
    assert "not the data registered as 'clinic'" in told.output


def test_evaluation_on_private_rows_stays_with_the_operator(clinic):
    told = own("--evaluate", "clinic.csv", "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["results"] == []
    folder = clinic / "runs" / "clinic-1"
    assert "accuracy" in (folder / "private" / "operator.jsonl").read_text()
    assert '"accuracy"' not in (folder / "privacy.json").read_text()


def test_a_numeric_target_and_a_model_of_ones_own(clinic):
    text = SCHEMA.replace('kind = "boolean"\ntarget = true', 'kind = "numeric"\nlower = 0\nupper = 1\ntarget = true')
    (clinic / "clinic.toml").write_text(text)
    (clinic / "mine.py").write_text(
        "from torch import nn\ndef small(inputs, outputs):\n"
        "    return nn.Sequential(nn.Linear(inputs, 3), nn.Tanh(), nn.Linear(3, outputs))\n"
    )
    told = own("--model", "mine:small", "--public-share", "0.2", "--public-because", "made up", "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["results"][0]["metric"] == "root mean squared error"


def test_several_rows_of_one_person(clinic):
    text = SCHEMA.replace('name = "patient"', 'name = "patient"\ncolumn = "id"')
    (clinic / "clinic.toml").write_text(text)
    lines = (clinic / "clinic.csv").read_text().splitlines()
    rows = [f"{line},{i // 2}" for i, line in enumerate(lines[1:])]
    (clinic / "clinic.csv").write_text("\n".join([lines[0] + ",id", *rows]) + "\n")
    told = own("--max-rows", "2", "--json")
    assert told.exit_code == 0, told.output
    card = read_card(clinic / "runs" / "clinic-1" / "privacy.json")
    assert card["accesses"]["records"] == 250
    assert card["mechanism"]["parameters"]["records_per_unit"] == 2
    parted = own("--public-share", "0.2", "--public-because", "made up", "--name", "parted")
    assert parted.exit_code == 0, parted.output
    (source,) = read_card(clinic / "runs" / "parted" / "privacy.json")["accesses"]["public_data"]
    assert source["may_overlap"] == "no"
    assert "the id of its patient" in source["name"]


def test_public_rows_are_set_apart_by_what_they_are_and_the_card_says_what_that_is_worth(clinic):
    """A person more at the top of the file is on one side; everybody else stays where they were."""
    share = {"schema": "clinic.toml", "epsilon": 3.0, "delta": 1e-5, "epochs": 2, "public_because": "made up"}
    share |= {"public_share": 0.2}
    lines = (clinic / "clinic.csv").read_text().splitlines()
    for name, newcomer in (("one", "17,north,1,0"), ("two", "18,north,1,1")):
        (clinic / f"{name}.csv").write_text("\n".join([lines[0], newcomer, *lines[1:], lines[1], lines[2]]) + "\n")
    (clinic / "none.csv").write_text("\n".join([*lines, lines[1], lines[2]]) + "\n")
    before = sides(Settings(data="none.csv", **share))
    assert not before[0].keys() & before[1].keys()  # equal rows are on one side
    for name in ("one", "two"):
        after = sides(Settings(data=f"{name}.csv", **share))
        assert sorted(sum((a - b).values()) for a, b in zip(after, before, strict=True)) == [0, 1]
        assert not any(b - a for a, b in zip(after, before, strict=True))
    told = own("--public-share", "0.2", "--public-because", "made up", "--name", "parted")
    assert told.exit_code == 0, told.output
    card = read_card(clinic / "runs" / "parted" / "privacy.json")
    (source,) = card["accesses"]["public_data"]
    assert source["may_overlap"] == "unknown"  # the schema names no ids
    for said in ("covers the rows on the private side only", "replaced by one of the other side changes both"):
        assert said in source["note"]
    assert "'tacit public rows'" in source["name"]
    page = re.sub(r"<[^>]*>", "", (clinic / "runs" / "parted" / "report.html").read_text())
    assert "Can it contain people whom the guarantee protects? unknown" in page


def sides(settings):
    """The rows of the private and of the public side, with how often each occurs."""
    prepared = read(settings)
    pairs = (prepared.x, prepared.y), prepared.test
    return [Counter(row.tobytes() for row in np.column_stack([x.numpy(), y.numpy()])) for x, y in pairs]


def test_rows_are_not_declared_public_by_their_number(clinic):
    (clinic / "run.toml").write_text("public_every = 5\n")
    for told in (own("--public-every", "5", "--public-because", "x"), own("--config", "run.toml")):
        assert told.exit_code == 2
        assert "--public-share 0.2" in told.output


def test_a_size_that_is_given_keeps_the_true_one_off_the_card(clinic):
    told = own("--size", "450", "--name", "sized", "--quiet")
    assert told.exit_code == 0, told.output
    card = read_card(clinic / "runs" / "sized" / "privacy.json")
    assert card["accesses"]["records_public"] is False
    assert card["accesses"]["records"] is None
    assert card["mechanism"]["parameters"]["sampler"]["size"] == 450
    assert not re.search(r"\b500\b", (clinic / "runs" / "sized" / "privacy.json").read_text())


def test_statistics_that_a_model_keeps_of_the_data_are_not_published(clinic):
    (clinic / "keeps.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "class Keeps(nn.Module):\n"
        "    def __init__(self, inputs, outputs):\n"
        "        super().__init__()\n"
        "        self.linear = nn.Linear(inputs, outputs)\n"
        "        self.register_buffer('seen', torch.zeros(inputs))\n"
        "    def forward(self, x):\n"
        "        with torch.no_grad():\n"
        "            self.seen.copy_(x.detach().mean(0))\n"
        "        return self.linear(x)\n"
    )
    told = own("--model", "keeps:Keeps", "--name", "keeps", "--evaluate", "clinic.csv")
    assert told.exit_code == 0, told.output
    kept = torch.load(clinic / "runs" / "keeps" / "model.pt", weights_only=True)
    assert kept["seen"].tolist() == [0.0] * 5


def test_no_noise_is_warned_about_and_claims_nothing(clinic):
    words = (
        "clinic.csv",
        "--schema",
        "clinic.toml",
        "--noise",
        "0",
        "--delta",
        "1e-5",
        "--steps",
        "3",
        "--batch",
        "50",
    )
    told = tacit(*words, "--json")
    assert told.exit_code == 0, told.output
    assert "NO privacy guarantee" in told.output
    card = read_card(clinic / "runs" / "clinic-1" / "privacy.json")
    assert card["guarantee"]["epsilon"]["claimed"] == "inf"
    assert card["guarantee"]["claim"].startswith("No protection is claimed")


def test_pictures_with_a_convolutional_network():
    schema = Schema(
        (
            Numeric("picture", shape=(28, 28), lower=0, upper=255),
            Boolean("bright", target=True),
        ),
        Unit("record"),
    )
    pixels = np.random.default_rng(0).integers(0, 256, (200, 28, 28))
    table = {"picture": pixels, "bright": pixels.mean((1, 2)) > 127.5}
    words = {"noise": 1.0, "delta": 1e-5, "steps": 2, "batch": 64, "model": "cnn"}
    result = run(table, schema=schema, evaluate=table, public_because="made up", **words, quiet=True)
    assert result.results[0]["rows"] == 200
    assert result.model(torch.zeros(2, 784)).shape == (2, 2)


@pytest.mark.data
def test_a_split_of_a_known_data_set_to_evaluate_on(data_folder):
    words = ("--noise", "1", "--delta", "1e-5", "--steps", "2", "--batch", "64", "--model", "linear")
    told = tacit("adult", *words, "--data-dir", str(data_folder), "--evaluate", "test",
                 "--public-because", "the published test split", "--public-overlap", "no", "--json")  # fmt: skip
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["results"][0]["rows"] > 15_000


def test_whether_the_evaluation_rows_hold_the_same_people_is_stated_or_asked(clinic):
    (clinic / "test.csv").write_text((clinic / "clinic.csv").read_text())
    for stated, found in (((), "unknown"), (("--public-overlap", "no"), "no")):
        told = own("--evaluate", "test.csv", "--public-because", "made up", *stated, "--name", found)
        assert told.exit_code == 0, told.output
        (source,) = read_card(clinic / "runs" / found / "privacy.json")["accesses"]["public_data"]
        assert source["may_overlap"] == found
        page = (clinic / "runs" / found / "report.html").read_text()
        answer = page[page.index(f"may contain the same people: {found}") :].split("</tr>")[0]
        assert ("to be answered before anybody signs" in answer) == (found == "unknown")
    told = own("--evaluate", "test.csv", "--public-because", "x", "--public-overlap", "maybe")
    assert told.exit_code != 0
    assert "public_overlap: one of yes, no, unknown" in told.output


# -- mistakes ----------------------------------------------------------------------------------------------------------


def _lines(folder: Path, change) -> None:
    path = folder / "clinic.csv"
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda f: (f / "clinic.toml").write_text(SCHEMA.replace("upper = 100\n", "")),
            r"clinic.toml: column 'age' \(numeric\): upper is missing; add it to \[columns.age\]",
        ),
        (
            lambda f: _lines(f, lambda t: t.replace("age,ward", "years,ward")),
            "column 'age' is in the schema but not in the table",
        ),
        (lambda f: (f / "clinic.csv").write_text(""), "clinic.csv is empty"),
        (lambda f: (f / "clinic.csv").write_text("age,ward,smokes,back\n"), "clinic.csv has no rows"),
        (lambda f: _lines(f, lambda t: re.sub(r",\d\n", ",\n", t, count=1)), "column 'back' has missing values"),
        (lambda f: (f / "clinic.csv").unlink(), "there is no file clinic.csv"),
        (
            lambda f: (f / "clinic.toml").write_text(SCHEMA.replace("target = true", "")),
            "the schema marks no column as the target",
        ),
        (lambda f: (f / "clinic.toml").unlink(), "cannot read the schema clinic.toml"),
    ],
    ids=["bound", "column", "empty", "no-rows", "missing-target", "no-file", "no-target", "no-schema"],
)
def test_a_mistake_in_the_data_or_the_schema_is_told_and_nothing_is_left_behind(clinic, spoil, message):
    spoil(clinic)
    told = own()
    assert told.exit_code == 1
    assert re.search(message, told.output), told.output
    assert told.output.startswith("tacit: ")
    assert "Traceback" not in told.output
    assert not (clinic / "runs").exists()


def test_a_nan_target_is_told_without_its_row(clinic):
    text = SCHEMA.replace('kind = "boolean"\ntarget = true', 'kind = "numeric"\nlower = 0\nupper = 1\ntarget = true')
    (clinic / "clinic.toml").write_text(text)
    _lines(clinic, lambda t: re.sub(r",\d\n", ",NaN\n", t, count=1))
    told = own()
    assert told.exit_code == 1
    assert "column 'back' has missing values" in told.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--noise", "1"), "epsilon: give epsilon or noise"),
        (("--steps", "3"), "epochs: give epochs or steps"),
        (("--delta", "2"), "delta: a number between 0 and 1, not 2"),
        (("--batch", "0"), "batch: a whole number, 1 or more, not 0"),
        (("--optimizer", "adamm"), "optimizer: one of sgd, adam, adamw, rmsprop"),
        (
            ("--optimizer", "lbfgs"),
            "optimizer: 'lbfgs' cannot train privately here: it evaluates the loss several times",
        ),
        (("--target", "height"), "target: the schema has no column 'height'; a target can be age, ward, smokes, back"),
        (("--without", "height"), "without: the schema has no column 'height'"),
        (("--target", "age", "--without", "age"), "target: column 'age' is the target and cannot be left out"),
        (("--ledger", "x.db"), "ledger: give ledger and dataset together"),
        (("--ledger", "x.db", "--dataset", "x"), "tacit ledger init x.db x"),
        (("--public-share", "0.2"), "public_because: say why"),
        (("--by", "age", "--public-share", "0.2", "--public-because", "x"), "'age' is no feature with categories"),
        (("--tuning", "a bit"), "tuning: one of none, charged"),
        (("--device", "gpu"), "device: 'gpu' cannot be used here"),
        (("--device", "cuda:99"), "device: 'cuda:99' cannot be used here"),
        (("--compile", "--audit-canaries", "10"), "leave out compile or audit_canaries"),
    ],
)
def test_a_wrong_setting_is_named(clinic, words, message):
    told = own(*words)
    assert told.exit_code == 2
    assert message in told.output
    assert not list((clinic / "runs").glob("*"))


@pytest.mark.parametrize(
    ("model", "message"),
    [("tree", "there is no model 'tree'"), ("cnn", "needs pictures"), ("nowhere:f", "cannot import 'nowhere'")],
)
def test_a_model_that_cannot_be_made_is_told(clinic, model, message):
    told = own("--model", model)
    assert told.exit_code == 1
    assert message in told.output
    assert not list((clinic / "runs").glob("*"))


@pytest.mark.filterwarnings("always:the step runs uncompiled")
def test_a_run_that_is_to_be_compiled_says_why_where_it_cannot_be(clinic, monkeypatch):
    from tacit.sgd.compile import cache

    def never(*args, **given):
        raise cache.CannotCompile("it is Sunday")

    monkeypatch.setattr(cache, "Program", never)
    told = own("--model", "linear", "--name", "usual")
    assert "compile" not in told.stderr
    told = own("--model", "linear", "--compile", "--name", "quick")
    assert told.exit_code == 0, told.output
    assert "compile the model's step" in told.stderr
    assert "tacit: the step runs uncompiled: it is Sunday\n" in told.stderr
    assert "compile = true" in (clinic / "runs" / "quick" / "config.toml").read_text()  # as it would be resumed


def test_settings_in_a_file_are_checked_by_key(clinic):
    path = clinic / "run.toml"
    usual = 'data = "clinic.csv"\nschema = "clinic.toml"\nepsilon = 3\ndelta = 1e-5\nepochs = 1\nbatch = 50\n'
    path.write_text(usual + 'modle = "linear"\n')
    told = tacit("--config", "run.toml")
    assert (told.exit_code, "unknown key 'modle'" in told.output) == (2, True)
    path.write_text(usual + "model = 3\n")
    told = tacit("--config", "run.toml")
    assert (told.exit_code, "run.toml: model: a text, not 3" in told.output) == (2, True)
    path.write_text(usual)
    told = tacit("--config", "run.toml", "--model", "linear", "--name", "from-file", "--quiet")
    assert told.exit_code == 0, told.output
    config = (clinic / "runs" / "from-file" / "config.toml").read_text()
    assert 'model = "linear"' in config
    again = tacit("--config", "run.toml", "--name", "from-file")
    assert (again.exit_code, "exists; choose another name" in again.output) == (2, True)
    assert "continue that run: tacit train --resume runs/" in again.output


# -- a long run --------------------------------------------------------------------------------------------------------


def test_ctrl_c_leaves_a_run_that_resumes_and_is_charged_once(clinic, monkeypatch):
    ledger = Ledger(clinic / "my.db")
    ledger.register("clinic", epsilon=3.0, delta=1e-5, unit="patient")
    words = ("clinic.csv", "--schema", "clinic.toml", "--epsilon", "3", "--delta", "1e-5", "--steps", "400", "--batch",
             "50", "--model", "linear", "--ledger", "my.db", "--dataset", "clinic", "--name", "long")  # fmt: skip
    log = clinic / "runs" / "long" / "private" / "operator.jsonl"
    with monkeypatch.context() as patch:
        _interrupted(patch, lambda: log.exists() and log.read_text().count("\n") >= 2)
        told = tacit(*words)
    assert told.exit_code == 130, told.output
    assert "continue with: tacit train --resume runs/long" in told.stderr
    assert not (clinic / "runs" / "long" / "privacy.json").exists()
    assert len(ledger.history("clinic")) == 1
    assert not ledger.history("clinic")[0].confirmed
    refused = tacit("--resume", "runs/long", "--epsilon", "4")
    assert (refused.exit_code, "give no others" in refused.output) == (2, True)

    done = tacit("--resume", "runs/long", "--json")
    assert done.exit_code == 0, done.output
    card = read_card(clinic / "runs" / "long" / "privacy.json")
    assert card["mechanism"]["steps_executed"] == 400
    assert [record.confirmed for record in ledger.history("clinic")] == [True]


def _interrupted(patch: pytest.MonkeyPatch, when=lambda: True) -> None:
    """Ctrl-C, as the process gets it from a terminal, after a step at which ``when`` holds."""
    real = Live.update

    def stop(self, *rest):
        real(self, *rest)
        if when():
            os.kill(os.getpid(), signal.SIGINT)

    patch.setattr(Live, "update", stop)


def test_resuming_a_run_that_has_ended_keeps_what_an_audit_found(clinic):
    first = own("--name", "done", "--quiet")
    assert first.exit_code == 0
    card = clinic / "runs" / "done" / "privacy.json"
    told = json.loads(card.read_text())
    told["checks"]["audit"]["verdict"] = "refuted"
    card.write_text(json.dumps(told))
    again = tacit("--resume", "runs/done", "--quiet")
    assert again.exit_code == 0, again.output
    assert again.stdout == first.stdout
    assert again.stderr == "tacit: runs/done has ended; nothing was changed\n"
    assert json.loads(card.read_text())["checks"]["audit"]["verdict"] == "refuted"


def test_a_run_is_not_resumed_on_other_data(clinic, monkeypatch):
    _interrupted(monkeypatch)
    told = own("--name", "cut")
    assert told.exit_code == 130, told.output
    monkeypatch.undo()
    _lines(clinic, lambda t: t + "44,north,1,1\n")
    told = CliRunner().invoke(build(), ["train", "--resume", str(clinic / "runs" / "cut")])
    assert told.exit_code == 1
    assert f"data: these are not the data that {clinic / 'runs' / 'cut'} was started with" in told.output


def _on_a_terminal(patch: pytest.MonkeyPatch, *words: str) -> str:
    """What the operator's terminal shows of a run."""
    leader, follower = pty.openpty()
    shown: list[bytes] = []

    def look() -> None:
        with contextlib.suppress(OSError):  # the other end was closed
            while part := os.read(leader, 65536):
                shown.append(part)

    looking = threading.Thread(target=look)
    looking.start()
    with patch.context() as here, os.fdopen(follower, "w") as terminal:
        here.setattr(sys, "stderr", terminal)
        build()(["train", *words], standalone_mode=False)
    looking.join(60)
    os.close(leader)
    return b"".join(shown).decode()


def test_a_terminal_gets_the_live_line_with_diagnostics_marked(clinic, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    words = ("clinic.csv", "--schema", "clinic.toml", *USUAL)
    line = (
        r"step 20/20  ε 3\.00/3\.00 ▓+  {}operator view: loss \d\.\d+  clipped \d+%  signal/noise \d+\.\d+{}  ETA 0:00"
    )
    assert re.search(line.format(r"\x1b\[2m", r"\x1b\[22m"), _on_a_terminal(monkeypatch, *words))
    monkeypatch.setenv("NO_COLOR", "1")
    assert re.search(line.format("", ""), _on_a_terminal(monkeypatch, *words))


def test_a_pipe_gets_no_diagnostics(clinic):
    piped = own()
    assert piped.exit_code == 0
    assert "loss" not in piped.output
    assert "step 20/20  ε 3.00/3.00" in piped.output
    assert "step" not in own("--quiet").output


@pytest.mark.parametrize(
    ("name", "what", "command"),
    [
        ("mails.txt", "first write mails.txt as a .csv", "tacit prompt tune mails.csv --task generate"),
        ("mails.jsonl", "first write mails.jsonl as a .csv", "tacit prompt tune mails.csv --task generate"),
        ("mails.csv", "ids of the owners for --unit-column", "tacit prompt tune mails.csv --task generate"),
    ],
)
def test_whoever_gives_texts_is_told_the_command_for_texts(tmp_path, monkeypatch, name, what, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("text\nhello\n")
    ended = CliRunner().invoke(
        build(), ["train", name, "--epsilon", "1", "--delta", "1e-6", "--epochs", "1", "--batch", "2"]
    )
    assert ended.exit_code != 0
    said = " ".join(ended.stderr.split())
    assert what in said
    assert command in said
