"""A run that is killed, at whatever moment, is resumed to the same release: the same bytes, one claim, one charge."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_tune import SCHEMA
from tests.prompts import tiny
from typer.testing import CliRunner

from tacit.cli import build
from tacit.ledger import Ledger
from tacit.pate import VoteCounts
from tacit.runs import journal
from tacit.runs.journal import Journal, JournalError, NameTaken
from tacit.sgd.training import checkpoint

ROOT = Path(__file__).parents[2]
USUAL = ("--ledger", "my.db", "--dataset", "people", "--name", "run")
TABLE = ("clinic.csv", "--schema", "clinic.toml")
ASK = ("--template", "review: {text} .", "--words", "no=bad,yes=good", "--delta", "1e-5", "--model", "llm")
VOTING = ("--public", "forum.csv", "--teachers", "3", "--answers", "6", "--threshold", "1", "--check-noise", "30")
VOTING += ("--vote-noise", "30")
#: Each command: its line, and a moment in the middle of its work as (function, which call of it).
COMMANDS = {
    "train": (
        ("train", *TABLE, "--noise", "2", "--delta", "1e-5", "--steps", "3", "--batch", "90", "--model", "linear"),
        ("tacit.sgd.training.training.Training.step", 2),
    ),
    "tune": (("tune", "search.toml"), ("tacit.tuning.scratch.Scratch.save", 1)),
    "pate": (
        ("pate", *TABLE, "--public", "public.csv", "--teachers", "4", "--queries", "9", "--vote-noise", "30"),
        ("tacit.pate.aggregators.Aggregator.answer", -1),
    ),
    "prompt tune": (
        (
            "prompt",
            "tune",
            "notes.csv",
            *ASK,
            "--noise",
            "1",
            "--steps",
            "2",
            "--batch",
            "9",
            "--checkpoint-every",
            "1",
        ),
        ("tacit.sgd.training.training.Training.step", 2),
    ),
    "prompt pate": (
        ("prompt", "pate", "notes.csv", *ASK, *VOTING, "--queries", "6", "--candidates", "2", "--members", "1"),
        ("tacit.pate.aggregators.Aggregator.answer", -1),
    ),
}
#: Where every command is killed besides: before this call of this function.
PHASES = [
    ("tacit.report.card.to_json", 1),  # the card is being made
    ("tacit.runs.journal.Journal._install", 1),  # the release is decided, and none of it is published
    ("tacit.runs.journal.Journal._install", 2),  # a part of it is
    ("tacit.runs.journal.Journal._delete", 1),  # all of it is
    ("tacit.runs.journal.Journal._delete", 2),  # the secret is deleted
]
CONFIG = """
data = "clinic.csv"
schema = "clinic.toml"
model = "linear"
epsilon = 9.0
delta = 1e-5
steps = 2
batch = 90
size = 90

[space]
learning_rate = [0.5, 1.5]

[search]
runs = 2
"""
# Loads everything once and forks a child for each life of a run. What a life draws from the operating system is known,
# and another life draws something else.
SCRIPT = """
import functools, hashlib, importlib, json, os, signal, sys, traceback
import joblib, numpy, peft, polars, sklearn.ensemble, torch, transformers
from tacit.cli import build, pate, prompt, train, tune
from tacit.runs import journal, pate, prompt, search, train
from tacit.report import card
from tests.training.common import finish, run

torch.set_num_threads(1)
finish(run(steps=1))  # what torch imports on first use
card.POINTS, card.COUNTS, card.DELTAS = 2, 1, ()  # a card with few points: what is drawn on it is not at stake here

def fatal(real, name, wanted, count):
    @functools.wraps(real)
    def call(*rest, **more):
        count[name] = count.get(name, 0) + 1
        after = wanted < 0 and count[name] == -wanted
        if count[name] == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        found = real(*rest, **more)
        if after:
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return call

def life(line, number, names, wanted):
    draws = iter(range(1 << 60))
    os.urandom = lambda size: hashlib.shake_256(f"{number} {next(draws)}".encode()).digest(size)
    count = {}
    for name in names:
        module, rest = name.split(".")[0], name.split(".")[1:]
        place = importlib.import_module(module)
        while len(rest) > 1:
            module = f"{module}.{rest[0]}"
            place = getattr(place, rest[0], None) or importlib.import_module(module)
            rest = rest[1:]
        label = name if len(names) == 1 else "any"
        setattr(place, rest[0], fatal(getattr(place, rest[0]), label, wanted, count))
    build()(line)

for task in sys.stdin:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            folder, rest = json.loads(task)
            os.chdir(folder)
            log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            life(*rest)
            code = 0
        except SystemExit as left:
            code = left.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """Live through a command once: ``live(folder, line, number, names, wanted)`` gives the exit code."""
    pytest.importorskip("peft")
    state = tmp_path_factory.mktemp("state")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(state), "POLARS_MAX_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )

    def life(folder: Path, line: tuple[str, ...], number: int = 0, names: tuple[str, ...] = (), wanted: int = 0) -> int:
        process.stdin.write(json.dumps([str(folder), [list(line), number, list(names), wanted]]) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    yield life
    process.stdin.close()
    process.wait(30)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny.llama(context=256).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def place(tmp_path, model):
    """Makes a folder with everything that a command reads, and a ledger."""

    def make(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        generator = np.random.default_rng(5)
        for file, rows in {"clinic.csv": 90, "public.csv": 12}.items():
            age, smokes = generator.integers(18, 90, rows), generator.integers(0, 2, rows)
            lines = [f"{a},{s},{int(a > 50)}" for a, s in zip(age, smokes, strict=True)]
            (folder / file).write_text("\n".join(["age,smokes,back", *lines]) + "\n")
        for file, texts in {"notes.csv": tiny.reviews(30), "forum.csv": tiny.reviews(9, 7)}.items():
            (folder / file).write_text("\n".join(["text,label", *(f"{t},{label}" for t, label in texts)]) + "\n")
        (folder / "clinic.toml").write_text(SCHEMA)
        (folder / "search.toml").write_text(CONFIG)
        (folder / "llm").symlink_to(model)
        ledger = Ledger(folder / "my.db")
        ledger.register("people", unit="patient", epsilon=1e4, delta=1e-2)
        ledger.register("texts", unit="record", epsilon=1e4, delta=1e-2)
        return folder

    return make


def line_of(command: str) -> tuple[str, ...]:
    line = (*COMMANDS[command][0], *USUAL)
    return tuple("texts" if word == "people" and "prompt" in command else word for word in line)


def again(command: str) -> tuple[str, ...]:
    return (*command.split(), "--resume", "runs/run")


def released(folder: Path) -> dict[str, bytes | str]:
    """What a run published, without the time of its card and report and the head of the ledger."""
    run = folder / "runs" / "run"
    assert (run / "privacy.json").exists(), (folder / "log").read_text()
    files = [p for p in run.rglob("*") if p.is_file() and p.relative_to(run).parts[0] != "private"]
    card = json.loads((run / "privacy.json").read_text())
    left_out = ("privacy.json", "report.html", "config.toml", "pate.config.json", "prompt.config.json")
    found = {str(p.relative_to(run)): p.read_bytes() for p in files if p.name not in left_out}
    return found | {"claim": json.dumps(card["guarantee"]), "model": json.dumps(card["run"].get("model"))}


def charges(folder: Path, command: str) -> list[bool]:
    history = Ledger(folder / "my.db").history("texts" if "prompt" in command else "people")
    return [record.confirmed for record in history]


def check_alike(whole: Path, killed: Path, command: str) -> None:
    assert released(killed) == released(whole)
    assert charges(killed, command) == charges(whole, command)
    assert all(charges(killed, command))
    left = {p.name for p in (killed / "runs" / "run" / "private").iterdir()}
    assert not left & {"run.key", "release", "release.new", "search", "queries.npy", "votes"}


def killed_before(live, folder: Path, line: tuple[str, ...], number: int, name: str, wanted: int) -> None:
    assert live(folder, line, number, (name,), wanted) == -signal.SIGKILL, (folder / "log").read_text()


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[pytest.mark.slow] if c == "prompt tune" else []) for c in COMMANDS]
)
def test_killed_in_every_phase_a_run_ends_with_the_same_bytes_and_one_charge(live, place, command):
    whole, killed = place("whole"), place("killed")
    for folder in (whole, killed):  # the charge is made, and nothing is drawn
        killed_before(live, folder, line_of(command), 0, "tacit.ledger.core.Ledger.charge", -1)
    assert live(whole, again(command), 1) == 0, (whole / "log").read_text()
    for number, (name, wanted) in enumerate([COMMANDS[command][1], *PHASES], 1):
        if name.endswith("_delete") and wanted == 2 and command in ("train", "prompt tune"):
            continue  # they delete one thing
        killed_before(live, killed, again(command), number, name, wanted)
    assert live(killed, again(command), 99) == 0, (killed / "log").read_text()
    check_alike(whole, killed, command)
    assert len(charges(killed, command)) == 1
    # What has ended stays as it is, and a file that is lost or torn comes back.
    before = released(killed) | {"card": (killed / "runs" / "run" / "privacy.json").read_bytes()}
    torn = killed / "runs" / "run" / "report.html"
    page = torn.read_bytes()
    torn.write_bytes(page[:100])
    assert live(killed, again(command), 100) == 0
    assert "restored what was lost or cut short: report.html" in (killed / "log").read_text()
    assert torn.read_bytes() == page
    assert live(killed, again(command), 101) == 0
    assert "tacit: runs/run has ended; nothing was changed" in (killed / "log").read_text()
    assert before == released(killed) | {"card": (killed / "runs" / "run" / "privacy.json").read_bytes()}
    assert live(killed, line_of(command), 102) != 0  # a new run does not take the place of another
    assert charges(killed, command) == charges(whole, command)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_before_any_change_on_the_disk_a_run_ends_with_the_same_bytes_and_one_charge(live, place, command):
    names = ("os.replace", "os.rename", "os.link", "os.unlink", "shutil.rmtree", "tacit.ledger.sql.SqlStore.append")
    whole = place("whole")
    killed_before(live, whole, line_of(command), 0, "tacit.ledger.core.Ledger.charge", -1)
    assert live(whole, again(command), 1) == 0
    for moment in range(1, 1000):
        killed = place(f"killed{moment}")
        killed_before(live, killed, line_of(command), 0, "tacit.ledger.core.Ledger.charge", -1)
        if live(killed, again(command), 1, names, moment) == 0:
            break
        kept = killed / "runs" / "run" / "private" / "checkpoint.pt"
        drawn = not kept.exists() or not checkpoint.read(kept)[0]["prepared"]
        assert live(killed, again(command), 99) == 0, (killed / "log").read_text()
        if drawn:  # before that the key of a training run is replaced by another
            check_alike(whole, killed, command)
        assert charges(killed, command) == [True]
    assert moment > 10


@pytest.mark.slow
def test_killed_before_the_charge_a_run_is_charged_once(live, place):
    for command in COMMANDS:
        folder = place(command)
        killed_before(live, folder, line_of(command), 0, "tacit.ledger.core.Ledger.charge", 1)
        assert charges(folder, command) == []
        assert live(folder, again(command), 1) == 0, (folder / "log").read_text()
        assert charges(folder, command) == [True]


# -- without a kill ----------------------------------------------------------------------------------------------------


def tacit(*words: str):
    return CliRunner().invoke(build(), list(words))


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_a_full_disk_or_ctrl_c_while_the_release_is_written_loses_nothing(place, monkeypatch, error, code, said):
    folder = place("here")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    Path("votes").mkdir()
    VoteCounts(np.tile([[60, 40]], (9, 1)), 100, "keyed", "patient").save("votes/votes.npz")

    def fails(*rest):
        raise error

    line = ("pate", "votes/votes.npz", "--queries", "9", "--vote-noise", "50", *USUAL)
    for place_of_error in ((journal, "write_whole"), (Journal, "_install"), (Journal, "_delete")):
        with monkeypatch.context() as patch:
            patch.setattr(*place_of_error, fails)
            told = tacit(*line)
        assert told.exit_code == code, told.output
        assert said in told.output
        if place_of_error[0] is Journal:
            assert "continue with: tacit pate --resume runs/run" in told.output
            assert "nothing is lost" in told.output or code == 130
            line = ("pate", "--resume", "runs/run")
        else:  # the settings could not be written
            assert "nothing was started" in told.output
            assert not list(Path("runs").iterdir())
    with Journal.open(Path("runs/run"), "pate.config.json"):
        told = tacit(*line)
    assert (told.exit_code, "another process is working on runs/run" in told.output) == (1, True)
    assert tacit(*line).exit_code == 0
    assert charges(folder, "pate") == [True]
    assert len(released(folder)["labels.csv"].splitlines()) == 10


def test_a_run_has_a_name_of_its_own_and_never_another_runs_folder(tmp_path):
    for number in (1, 2):
        with Journal.begin(tmp_path, None, "data", {"config.toml": str(number)}) as begun:
            assert begun.folder == tmp_path / f"data-{number}"
    with pytest.raises(NameTaken, match="choose another name"):
        Journal.begin(tmp_path, "data-1", "", {"config.toml": "other"})
    assert (tmp_path / "data-1" / "config.toml").read_text() == "1"
    assert {path.name for path in tmp_path.iterdir()} == {"data-1", "data-2"}
    with pytest.raises(JournalError, match="not the folder of a run"):
        Journal.open(tmp_path, "config.toml")


def test_what_was_drawn_is_not_drawn_anew_where_its_secret_is_gone(tmp_path):
    with Journal.begin(tmp_path, "run", "", {}, keyed=True) as begun:
        assert begun.secret("noise") == begun.secret("noise") != begun.secret("other")
        (begun.private / "run.key").unlink()
        with pytest.raises(JournalError, match="cannot continue"):
            begun.secret("noise")


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/../../x", "a\x1b[2J", ".", "..\\x"])
def test_a_name_that_leads_out_of_the_folder_of_runs_is_refused(tmp_path, name):
    for given, stem in ((name, "fine"), (None, name)):
        with pytest.raises(JournalError, match="no name for a run"):
            Journal.begin(tmp_path / "runs" / "deep", given, stem, {"config.toml": ""})
    assert list(tmp_path.iterdir()) == []
