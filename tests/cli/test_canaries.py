"""A run that can be attacked afterwards: ``tacit train --audit-canaries``, then ``tacit audit``."""

from __future__ import annotations

import json
import os
import re
import signal
import stat

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit import accounting as acc
from tacit.audit.evidence import best_one_run
from tacit.audit.record import check_record
from tacit.cli import build
from tacit.ledger import Ledger
from tacit.report import describe, read_card
from tacit.runs import progress, settings
from tacit.runs.journal import Journal
from tacit.runs.read import read
from tacit.runs.train import start
from tacit.sgd.training.canaries import Planted

ROWS = 300
SCHEMA = """
[unit]
name = "patient"

[columns.age]
kind = "numeric"
lower = 0
upper = 100

[columns.back]
kind = "boolean"
target = true
"""
TABLE = ("train", "clinic.csv", "--schema", "clinic.toml", "--delta", "1e-5", "--model", "mlp", "--quiet")
#: Parameters of the model, and with that the most canaries: 64 · 1 + 64, 2 · 64 + 2.
ROOM = 258


@pytest.fixture(autouse=True)
def _clinic(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    rows = "".join(f"{age},{age // 50}\n" for age in rng.integers(18, 95, ROWS))
    (tmp_path / "clinic.csv").write_text("age,back\n" + rows)
    (tmp_path / "clinic.toml").write_text(SCHEMA)


def tacit(*words: str):
    return CliRunner().invoke(build(), list(words))


def train(*words: str):
    return tacit(*TABLE, *words)


def test_canaries_planted_from_the_command_line_prove_a_lower_bound_to_the_operator_alone(tmp_path):
    # Noise of a fifth of a clip norm, on sums in which nine tenths of the canaries are at every step: the attacker is
    # hardly ever wrong, and the claim is as large as it should be.
    told = train("--noise", "0.2", "--steps", "4", "--batch", "450", "--audit-canaries", "200", "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["canaries"] == 200
    run = tmp_path / "runs" / "clinic-1"
    kept = run / "private" / "canaries.npz"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert not (run / "private" / "checkpoint.pt").exists()
    planted = Planted.load(kept)
    assert (len(planted.scores), planted.kind, planted.steps, planted.unit) == (200, "gradient", 4, "patient")

    card = read_card(run / "privacy.json")
    assert card["mechanism"]["parameters"]["canaries"] == {"kind": "gradient", "count": 200}
    assert card["mechanism"]["parameters"]["sampler"]["size"] == ROWS + 200
    assert card["accesses"]["records"] == ROWS  # canaries are records of nobody
    page = re.sub(r"<[^>]*>", "", (run / "report.html").read_text())
    assert "200 gradient canaries (records of nobody" in page

    # A repetition on made-up records beside it, which may be published.
    told = tacit("audit", str(run), "--canaries", "50", "--json")
    assert told.exit_code in (0, 4), told.output  # once in 10,000 times a check of the implementation is wrong
    assert json.loads(told.stdout)["details"]["canaries"] == 50
    proven = json.loads((run / "private" / "operator.jsonl").read_text().splitlines()[-1])
    assert 2.0 < proven["figures"]["one-run"] <= planted.epsilon
    published = told.output + (run / "privacy.json").read_text() + (run / "report.html").read_text()
    assert f"could at best have certified {best_one_run(50, 1e-5):.3g}" in published
    assert f"could at best have certified {best_one_run(200, 1e-5):.3g}" in proven["sentence"]
    assert f"could at best have certified {best_one_run(200, 1e-5):.3g}" not in published
    ended = tacit("train", "--resume", str(run))
    assert (ended.exit_code, f"tacit audit {run}" in ended.output) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--audit-canaries", "1"), "audit_canaries: a whole number, 2 or more, not 1"),
        (("--audit-canaries", str(ROOM + 1)), f"plant {ROOM} or fewer, not {ROOM + 1}, or train a larger model"),
        (("--audit-canaries", "50", "--config", "often.toml"), "leave out checkpoint_every or audit_canaries"),
    ],
)
def test_canaries_that_cannot_be_planted_are_refused_before_anything_is_charged(tmp_path, words, message):
    ledger = Ledger(tmp_path / "my.db")
    ledger.register("clinic", epsilon=9.0, delta=1e-4, unit="patient")
    (tmp_path / "often.toml").write_text("checkpoint_every = 5\n")
    told = train("--epsilon", "4", "--steps", "2", "--batch", "50", "--ledger", "my.db", "--dataset", "clinic", *words)
    assert told.exit_code == 2
    assert message in told.output
    assert ledger.history("clinic") == []
    assert not list((tmp_path / "runs").glob("*"))


def test_a_search_plants_no_canaries(tmp_path):
    (tmp_path / "search.toml").write_text(
        'data = "clinic.csv"\nschema = "clinic.toml"\nepsilon = 1\ndelta = 1e-5\nsteps = 2\naudit_canaries = 50\n'
        "[space]\nlearning_rate = [0.1, 1.0]\n"
    )
    told = tacit("tune", "search.toml")
    assert told.exit_code == 2
    assert "audit_canaries: a search plants none" in told.output


def test_a_run_with_canaries_that_was_stopped_begins_again(tmp_path, monkeypatch):
    monkeypatch.setattr(progress.Live, "update", lambda *rest: os.kill(os.getpid(), signal.SIGINT))
    run = tmp_path / "runs" / "cut"
    told = train("--epsilon", "4", "--steps", "3", "--batch", "50", "--audit-canaries", "100", "--name", "cut")
    assert told.exit_code == 130, told.output
    # 300 canaries could refute a claim of 4, but this model has room for 258.
    assert "100 canaries prove at most ε ≥ 2.91" in told.output
    assert "a larger model has room" in told.output
    anew = f"Start again with: tacit train --config {run.relative_to(tmp_path) / 'config.toml'}"
    assert anew in told.output
    assert not (run / "private" / "canaries.npz").exists()
    for words in (("train", "--resume", "runs/cut"), ("audit", "runs/cut")):
        refused = tacit(*words)
        assert refused.exit_code != 0
        assert anew in refused.output
    assert settings.make(settings.read(run / "config.toml")).audit_canaries == 100


@pytest.mark.parametrize("sampler", ["poisson", "shuffle"])
def test_a_size_that_is_given_is_that_of_the_records_and_canaries_have_slots_beside_them(tmp_path, sampler):
    chosen = settings.Settings(
        data="clinic.csv", schema="clinic.toml", noise=1.0, delta=1e-5, steps=3, batch=50, sampler=sampler, size=ROWS,
        audit_canaries=100,
    )  # fmt: skip
    private = Journal.begin(tmp_path / "runs", None, "clinic", {}).private
    training = start(chosen, private, read(chosen), progress.Told())
    assert training.plan.sampler.size == ROWS + 100
    assert describe(training, "sized").records == (ROWS if training.plan.sampler.exact else None)


def test_a_run_with_correlated_noise_is_charged_shown_and_can_be_attacked(tmp_path):
    ledger = Ledger(tmp_path / "my.db")
    ledger.register("clinic", epsilon=9.0, delta=1e-4, unit="patient", adjacency="zero-out")
    words = ("--epsilon", "4", "--steps", "90", "--batch", "10", "--noise", "banded:4", "--audit-canaries", "250")
    told = train(*words, "--ledger", "my.db", "--dataset", "clinic")
    assert told.exit_code == 0, told.output
    run = tmp_path / "runs" / "clinic-1"
    card = read_card(run / "privacy.json")
    assert card["mechanism"]["sampler"].endswith("from one of 4 groups in turn")
    assert "correlated over 4 steps by a banded matrix" in (run / "report.html").read_text()
    (entry,) = ledger.history("clinic")
    rounds = [n for part, n in entry.mechanism.parts() if isinstance(part, acc.CyclicPoissonSampled)]
    assert rounds == [23]
    planted = Planted.load(run / "private" / "canaries.npz")
    findings = check_record(planted, entry.mechanism)
    assert min(finding.p_value for finding in findings) > 1e-8
    assert {"groups", "noise of two steps", "participation"} < {finding.check for finding in findings}
