"""The doctor names what is wrong first, from noisy gradients and public numbers, and says when nothing is."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.common import key
from torch import nn
from typer.testing import CliRunner

import tacit
from tacit.cli import build
from tacit.runs.doctor import DoctorError, diagnose
from tacit.schema import Boolean, Numeric, Schema, Unit
from tacit.sgd import Training, Vitals

SCHEMA = Schema((Numeric("age", 0, 100), Numeric("dose", 0, 10), Boolean("back", target=True)), Unit("patient"), "ward")


def rows(count: int = 3000) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    age, dose = draw.uniform(0, 100, count), draw.uniform(0, 10, count)
    return {"age": age, "dose": dose, "back": age + 8 * dose + draw.normal(0, 20, count) > 90}


def watched(
    rate: float = 0.5, clip: float = 1.0, batch: int = 512, steps: int = 60, hidden: int = 0, epsilon: float = 2.0
) -> Vitals:
    """A run on made-up rows with a fixed key: the same numbers each time."""
    torch.manual_seed(0)
    x = torch.rand(4000, 12) * 2 - 1
    y = (x[:, 0] + x[:, 1] - x[:, 2] + 1.5 * torch.randn(4000) > 0).long()
    model: nn.Module = nn.Linear(12, 2)
    if hidden:
        model = nn.Sequential(nn.Linear(12, hidden), nn.Tanh(), nn.Linear(hidden, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    training = Training(
        model,
        optimizer,
        nn.CrossEntropyLoss(reduction="none"),
        (x, y),
        batch_size=batch,
        steps=steps,
        epsilon=epsilon,
        delta=1e-5,
        clip_norm=clip,
        key=key(5),
    )
    vitals = Vitals(training)
    for drawn in training:
        training.step(drawn)
    return vitals


def test_a_run_that_does_well_is_said_to():
    found = tacit.doctor(watched(rate=1.0))
    assert found.healthy
    assert "Nothing stands out" in str(found)
    assert found.covered


@pytest.mark.parametrize(
    ("spoilt", "cause"),
    [
        ({"rate": 30.0}, "learning rate too large"),
        ({"rate": 0.5 / 30}, "learning rate too small"),
        ({"clip": 100.0}, "clip norm too large"),
        ({"clip": 0.01, "rate": 0.2}, "clip norm too small"),
        ({"batch": 32}, "batch too small"),
        ({"steps": 600, "epsilon": 0.2, "batch": 256}, "too many steps"),
        ({"hidden": 2048}, "model too large"),
    ],
)
def test_what_was_spoilt_is_named_first(spoilt, cause):
    found = tacit.doctor(watched(**spoilt))
    assert found.findings[0].cause == cause
    text = str(found)
    assert "change: " in text
    assert "gain: " in text


def test_levers_are_priced():
    """Twice the records, or twice ε, roughly halve the noise; the numbers are the accountant's."""
    levers = {lever.change: lever.noise for lever in tacit.doctor(watched()).levers}
    assert 0.45 < next(noise for change, noise in levers.items() if "twice the records" in change) < 0.6
    assert 0.4 < levers["ε = 4"] < 0.65
    assert 0.2 < next(noise for change, noise in levers.items() if "batches of" in change) < 1


def test_a_run_without_noise_or_without_steps_is_refused():
    vitals = watched()
    with pytest.raises(DoctorError, match="too few steps"):
        diagnose(vitals.facts, vitals.looks[:3])
    with pytest.raises(DoctorError, match="no noise"):
        diagnose(dataclasses.replace(vitals.facts, noise_multiplier=0.0, epsilon=float("inf")), vitals.looks)


def tell(*words: str) -> Any:
    return CliRunner().invoke(build(), ["doctor", *words])


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    settings = {"epsilon": 3.0, "delta": 1e-5, "steps": 40, "batch": 512, "model": "linear", "learning_rate": 0.01}
    return tacit.run(rows(), schema=SCHEMA, name="slow", quiet=True, **settings).folder


def test_the_command_diagnoses_the_folder_of_a_run(made):
    told = tell(str(made))
    assert told.exit_code == 0, told.output
    assert "1. the learning rate is too small" in told.output
    assert "the guarantee of the run covers all of this" in told.output
    plain = json.loads(tell(str(made), "--json").output)
    assert plain["findings"][0]["cause"] == "learning rate too small"
    assert plain["facts"]["steps"] == 40


def test_private_values_enter_only_if_the_operator_asks(made):
    """Without --operator the log is not read at all; with it the diagnosis says that it is private."""
    log = made / "private" / "operator.jsonl"
    before = tell(str(made)).output
    norm = json.loads(log.read_text().splitlines()[0])["median_norm"]
    private = tell(str(made), "--operator").output
    assert "PRIVATE" in private
    log.write_text(log.read_text().replace(str(norm), str(1e-6 * norm)))
    assert tell(str(made)).output == before
    assert "the clip norm is too large" in tell(str(made), "--operator").output
    log.unlink()
    assert tell(str(made)).output == before


def test_what_is_no_run_is_refused_with_a_sentence(tmp_path):
    told = tell(str(tmp_path))
    assert told.exit_code == 1
    assert "no run of tacit train" in told.output


def test_what_is_published_of_a_run_does_not_change(made):
    assert {p.name for p in made.iterdir()} == {
        "config.toml", "schema.toml", "model.pt", "privacy.json", "report.html", "private",
    }  # fmt: skip
