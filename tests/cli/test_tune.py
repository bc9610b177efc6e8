"""What a person meets who types ``tacit tune``: one model, one charge, a card that says so, and nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tacit import accounting as acc
from tacit.cli import build
from tacit.ledger import Ledger
from tacit.report import read_card

SCHEMA = """
name = "clinic"
description = "Will the patient come back?"

[unit]
name = "patient"

[columns.age]
kind = "numeric"
lower = 0
upper = 100

[columns.smokes]
kind = "boolean"

[columns.back]
kind = "boolean"
target = true
"""
CONFIG = """
data = "clinic.csv"
schema = "clinic.toml"
model = "linear"
epsilon = 2.0
delta = 1e-5
steps = 10
batch = 200
public_share = 0.2
public_because = "simulated"

[space]
learning_rate = [0.0001234, 1.5]

[search]
runs = 4
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(5)
    age, smokes = generator.integers(18, 90, 1500), generator.integers(0, 2, 1500)
    back = (age / 90 + smokes + generator.normal(0, 0.3, 1500) > 1.0).astype(int)
    rows = "\n".join(f"{a},{s},{b}" for a, s, b in zip(age, smokes, back, strict=True))
    Path("clinic.csv").write_text("age,smokes,back\n" + rows + "\n")
    Path("clinic.toml").write_text(SCHEMA)
    Path("config.toml").write_text(CONFIG)


def tacit(*words: str, status: int = 0) -> str:
    told = CliRunner().invoke(build(), list(words))
    assert told.exit_code == status, told.output + repr(told.exception)
    return told.output


def test_a_search_leaves_one_model_one_charge_and_a_card_that_says_so() -> None:
    ledger = Ledger("my.db")
    ledger.register("clinic", fingerprint=Path("clinic.csv"), unit="patient", epsilon=3.0, delta=1e-4)
    told = json.loads(tacit("tune", "config.toml", "--ledger", "my.db", "--dataset", "clinic", "--json"))
    folder = Path(told["run"])
    assert told["tuning"] == "tuning: charged"
    assert told["epsilon"] <= 2.0
    assert told["best"]["learning_rate"] in (0.0001234, 1.5)
    # the folder: what may be published, and in the private part a copy of that
    assert {p.name for p in folder.iterdir()} == {"config.toml", "model.pt", "privacy.json", "report.html", "private"}
    assert stat.S_IMODE((folder / "private").stat().st_mode) == 0o700
    kept = folder / "private" / "released" / "files"
    assert {p.name for p in (folder / "private").iterdir()} == {"lock", "released"}
    assert all(p.read_bytes() == (folder / p.name).read_bytes() for p in kept.iterdir())
    weights = torch.load(folder / "model.pt", weights_only=True)
    assert set(weights) == {"weight", "bias"}
    # the card: the selection's price and statement
    card = read_card(folder / "privacy.json")
    assert card["accesses"]["tuning"] == "charged"
    assert card["mechanism"]["description"]["kind"] == "Selected"
    assert "tuning: charged" in (folder / "report.html").read_text(encoding="utf-8")
    described = acc.from_dict(card["mechanism"]["description"])
    assert acc.epsilon(described, 1e-5).upper == pytest.approx(card["guarantee"]["epsilon"]["upper"], rel=1e-6)
    assert 2 * (1 - 1e-3) <= card["guarantee"]["epsilon"]["upper"] <= 2.0
    # the ledger: one charge, confirmed
    history = ledger.history("clinic")
    assert [record.confirmed for record in history] == [True]
    assert history[0].mechanism == described
    # nothing tells how many runs there were or how the other candidate did
    other = "0.0001234" if told["best"]["learning_rate"] == 1.5 else "1.5,"
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in ("config.toml", "model.pt"):
            text = re.sub(r"\[\s*0\.0001234,\s*1\.5\s*\]", "", path.read_text(encoding="utf-8"))  # the space is public
            assert other not in text or other == "1.5,"
            assert "seconds" not in text
    stamps = [path.stat().st_mtime for path in folder.rglob("*") if path.is_file()]
    assert max(stamps) - min(stamps) < 60
    tacit("tune", "config.toml", "--ledger", "my.db", "--dataset", "clinic", status=3)
    assert len(ledger.history("clinic")) == 1


def test_a_plan_is_priced_without_running_anything() -> None:
    said = tacit("tune", "config.toml", "--plan")
    assert "geometric number of runs, 4 on average" in said
    assert "noise multiplier of a run:" in said
    assert not Path("runs").exists()


def _interrupted(name: str) -> tuple[int, str, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", "from tacit.cli import main; main()", "tune", "config.toml", "--name", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    state = Path(f"runs/{name}/private/search/state")
    for _ in range(600):
        if state.exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.slow
def test_an_interrupted_search_is_resumed() -> None:
    Path("config.toml").write_text(CONFIG.replace("runs = 4", "runs = 400"))
    # One search in a few hundred draws so few runs that it is over at once: five in a row are not.
    for attempt in range(5):
        one = f"one{attempt}"
        status, out, err = _interrupted(one)
        if status:
            break
    assert status == 130, err
    assert out == ""
    assert err.strip() == "tacit: interrupted; continue with: tacit tune --resume runs/" + one
    state = Path(f"runs/{one}/private/search/state")
    assert stat.S_IMODE(state.parent.stat().st_mode) == 0o700
    # few runs are left to do, so that the test ends soon
    from tacit.tuning.scratch import Scratch

    scratch = Scratch(state.parent)
    left = scratch.load()
    scratch.save({**left, "waiting": left["waiting"][:3]})
    told = json.loads(tacit("tune", "--resume", f"runs/{one}", "--json"))
    assert told["best"] is not None
    assert not state.parent.exists()
    assert not (Path(f"runs/{one}/private/run.key")).exists()
    assert "nothing was changed" in tacit("tune", "--resume", f"runs/{one}")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[search]", "[search]\nmany = 3", "[search] many: the keys are"),
        ("learning_rate =", "depth =", "[space] depth: what can be chosen is"),
        ("runs = 4", 'method = "best"', "method must be one of"),
        ("runs = 4", "validation_every = 1", "validation_every"),
        ("epsilon = 2.0\n", "", "budget of the whole search"),
        ("steps = 10", "stepps = 10", "unknown key"),
        ("runs = 4", "score_noise = 0.1", "no noise of the training"),
        ("learning_rate = [0.0001234, 1.5]", "learning_rate = { low = 1.0 }", "a range has low, high"),
        ("learning_rate = [0.0001234, 1.5]", "batch = [100, -5]", "batch: a whole number"),
        ("public_share = 0.2", 'tuning = "none"', "tuning: a search is charged"),
    ],
)
def test_mistakes_are_named_and_leave_no_folder(old: str, new: str, said: str) -> None:
    Path("config.toml").write_text(CONFIG.replace(old, new))
    told = CliRunner().invoke(build(), ["tune", "config.toml"])
    assert told.exit_code in (1, 2)
    assert said in told.output
    assert not list(Path("runs").glob("*"))


def test_help_teaches_with_an_example() -> None:
    said = tacit("tune", "--help")
    assert "[space]" in said
    assert "tacit tune config.toml" in said
