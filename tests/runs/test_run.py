"""What a program gets from ``tacit.run``: the run that ``tacit train`` makes, as a value."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from tests.training.common import finish, run
from typer.testing import CliRunner

import tacit
from tacit.cli import build
from tacit.ledger import BudgetExceeded, EvaluationData, Ledger
from tacit.report import card
from tacit.runs import evaluate
from tacit.runs.journal import NameTaken
from tacit.runs.progress import Interrupted, Live
from tacit.runs.settings import Settings, SettingsError, saved
from tacit.schema import Boolean, Categorical, Numeric, Schema, Unit
from tacit.sgd import CheckpointError

SCHEMA = Schema(
    (
        Numeric("age", lower=0, upper=100),
        Categorical("ward", categories=("north", "south")),
        Boolean("back", target=True),
    ),
    Unit("patient"),
    "clinic",
)
USUAL = {"epsilon": 3.0, "delta": 1e-5, "steps": 4, "batch": 50, "model": "linear"}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name, value in {"POINTS": 2, "COUNTS": 1, "DELTAS": ()}.items():  # a card with few points is made quickly
        monkeypatch.setattr(card, name, value)


@pytest.fixture
def table() -> pl.DataFrame:
    generator = np.random.default_rng(1)
    age = generator.integers(18, 95, 300)
    return pl.DataFrame({"age": age, "ward": generator.choice(["north", "south"], 300), "back": age > 60})


@pytest.fixture
def clinic(table, tmp_path) -> Path:
    table.with_columns(pl.col("back").cast(pl.Int8)).write_csv(tmp_path / "clinic.csv")
    (tmp_path / "clinic.toml").write_text(SCHEMA.to_toml())
    return tmp_path


def _known_randomness(monkeypatch, folder: Path) -> None:
    """Everything that a run draws, from the start: the key, ids, and the first weights."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    Ledger("my.db").register("people", epsilon=9.0, delta=1e-3, unit="patient")  # what it imports draws too
    draws = iter(range(1 << 60))
    monkeypatch.setattr(os, "urandom", lambda size: hashlib.shake_256(f"{next(draws)}".encode()).digest(size))
    torch.manual_seed(0)


def _released(folder: Path) -> dict[str, object]:
    """What a run published, without times and the marks of its own ledger."""
    found: dict[str, object] = {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".pt", ".toml")}
    shown = json.loads((folder / "privacy.json").read_text())
    shown["card"].pop("created")
    shown.pop("ledger")
    shown["data"].pop("fingerprint")  # under the secret of its ledger
    return found | {"card": shown, "files": sorted(p.name for p in folder.iterdir())}


def test_command_and_function_release_the_same_bytes(clinic, monkeypatch):
    files = {"schema": str(clinic / "clinic.toml"), "public_share": 0.2, "public_because": "made up", "name": "mine"}
    given = USUAL | files | {"ledger": "my.db", "dataset": "people"}
    finish(run(steps=1))  # what torch imports on first use draws too
    released = []
    for place in ("one", "two"):
        with monkeypatch.context() as patch:
            _known_randomness(patch, clinic / place)
            if place == "one":
                result = tacit.run(clinic / "clinic.csv", **given, quiet=True)
            else:
                words = [w for key, value in given.items() for w in (f"--{key.replace('_', '-')}", str(value))]
                told = CliRunner().invoke(build(), ["train", str(clinic / "clinic.csv"), *words, "-q"])
                assert told.exit_code == 0, told.output
            found = _released(clinic / place / "runs" / "mine")
            found["config.toml"] = found["config.toml"].replace(place.encode(), b"")  # it names the ledger
            released.append(found)
            assert [r.confirmed for r in Ledger("my.db").history("people")] == [True]
    assert released[0] == released[1]
    assert result.folder == Path("runs/mine")


def test_the_result_holds_model_privacy_card_report_and_metrics(clinic, capsys):
    result = tacit.run(
        "clinic.csv", schema="clinic.toml", **USUAL, public_share=0.3, public_because="made up", by=["ward"], name="a"
    )
    assert result.report == Path("runs/a/report.html")
    assert result.report.exists()
    assert result.card["guarantee"]["epsilon"]["upper"] == result.privacy.claim <= 3.0
    assert (result.privacy.delta, result.privacy.unit, result.privacy.adjacency) == (1e-5, "patient", "zero-out")
    assert result.privacy.at(1e-6).claim > result.privacy.claim
    assert result.privacy.details["steps_executed"] == 4
    assert result.metrics.keys() == {
        "accuracy",
        "AUC",
        "recall of back = true",
        "calibration error",
        "share of back = true",
    }
    assert {r["group"] for r in result.results} == {"", "ward = north", "ward = south"}
    weights = torch.load("runs/a/model.pt", weights_only=True)
    assert torch.equal(result.model.weight, weights["weight"])
    assert result.model(torch.zeros(2, 4)).shape == (2, 2)
    assert "ε = 3 at δ = 1e-05" in repr(result)
    assert "report: runs/a/report.html" in repr(result)
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)  # no terminal: one line at the end
    assert told.err.startswith("tacit: runs/a: ε = 3")


def test_a_model_that_is_sure_of_everything_is_measured_too():
    """Probabilities of exactly 0 and 1 are probabilities: a run that was paid for ends with its figures."""
    model = torch.nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[-1e4], [1e4]])
    x = torch.tensor([[1.0]] * 6 + [[-1.0]] * 4)
    for wrong in (0, 3):
        y = (x[:, 0] > 0).float()
        y[:wrong] = 0
        held = SimpleNamespace(test=(x, y), schema=SCHEMA)
        data = EvaluationData.declared_public((x, y), because="made up")
        found = {one.metric: one.value.value for one in evaluate._quality(held, model, data)}
        assert found["calibration error"] == pytest.approx(wrong / 10)


@pytest.mark.parametrize("kind", ["polars", "pandas", "columns", "records"])
def test_a_table_in_memory_with_its_schema(table, kind, capsys):
    given = {
        "polars": lambda: table,
        "pandas": lambda: pytest.importorskip("pandas").DataFrame(table.to_dict(as_series=False)),
        "columns": lambda: table.to_dict(as_series=False),
        "records": lambda: np.rec.fromarrays([table[c].to_numpy() for c in table.columns], names=table.columns),
    }[kind]()
    ledger = Ledger("my.db")
    ledger.register("people", epsilon=9.0, delta=1e-3, unit="patient", fingerprint=table)
    words = {"ledger": "my.db", "dataset": "people"} if kind == "polars" else {}
    result = tacit.run(given, schema=SCHEMA, evaluate=given, **USUAL, **words, quiet=True)
    assert result.folder == Path("runs/clinic-1")
    assert result.card["data"]["name"] == "clinic"
    assert result.model(torch.zeros(1, 4)).shape == (1, 2)
    (view,) = result.views  # the rows to evaluate on were not declared public
    assert "accuracy" in view.names()
    assert result.metrics == {}
    assert capsys.readouterr().err == ""
    if kind == "columns":  # the shape of a record is known from the schema in the folder
        assert CliRunner().invoke(build(), ["audit", "runs/clinic-1"]).exit_code == 0


def test_other_rows_than_those_registered_are_refused_before_anything_is_charged(table):
    ledger = Ledger("my.db")
    ledger.register("people", epsilon=9.0, delta=1e-3, unit="patient", fingerprint=table)
    with pytest.raises(tacit.ledger.FingerprintMismatch):
        tacit.run(table[1:], schema=SCHEMA, **USUAL, ledger="my.db", dataset="people")
    assert ledger.history("people") == []
    assert not list(Path("runs").glob("*"))


def test_a_run_goes_on_from_a_program_and_is_charged_once(table, monkeypatch):
    ledger = Ledger("my.db")
    ledger.register("people", epsilon=3.0, delta=1e-5, unit="patient")
    given = USUAL | {"schema": SCHEMA, "ledger": "my.db", "dataset": "people", "name": "cut", "quiet": True}
    with monkeypatch.context() as patch:
        patch.setattr(Live, "update", lambda *rest: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted, match="continue with: tacit train --resume runs/cut"):
            tacit.run(table, **given)
    assert [r.confirmed for r in ledger.history("people")] == [False]
    with pytest.raises(
        NameTaken, match=r"choose another name, or continue that run: resume=True\. See: tacit explain name-taken$"
    ):
        tacit.run(table, **given)
    with pytest.raises(SettingsError, match=r"epsilon: a resumed run keeps its settings: epsilon = 3.0, not 2.0"):
        tacit.run(table, **given | {"epsilon": 2.0}, resume=True)
    with pytest.raises(SettingsError, match="given from memory: give them again"):
        tacit.run(resume="runs/cut")
    told = CliRunner().invoke(build(), ["train", "--resume", "runs/cut"])
    assert (told.exit_code, "given from memory" in told.output) == (2, True)
    with pytest.raises(CheckpointError, match="data: these are not the data that runs/cut was started with") as refused:
        tacit.run(table[:-1], **given, resume=True)
    assert "fork" not in str(refused.value)
    done = tacit.run(table, **given, resume=True)
    assert done.card["mechanism"]["steps_executed"] == 4
    again = tacit.run(resume="runs/cut", quiet=True)  # it has ended: its rows are not needed
    assert again.privacy.claim == done.privacy.claim
    assert [r.confirmed for r in ledger.history("people")] == [True]
    with pytest.raises(BudgetExceeded):
        tacit.run(table, **given | {"name": "more"})
    assert not Path("runs/more").exists()


def test_other_data_than_those_of_the_run_are_named_whether_there_is_a_ledger_or_not(table, monkeypatch):
    given = USUAL | {"schema": SCHEMA, "name": "cut", "quiet": True}
    with monkeypatch.context() as patch:
        patch.setattr(Live, "update", lambda *rest: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted):
            tacit.run(table, **given)
    other = table.with_columns(pl.col("age") + 1)  # as many rows: nothing of the plan differs
    with pytest.raises(CheckpointError, match="Give those again to continue it, or start a new run") as refused:
        tacit.run(other, **given, resume=True)
    assert "fork" not in str(refused.value)


def test_the_result_says_of_its_privacy_what_a_training_run_says(table):
    people = table.with_columns(person=pl.int_range(pl.len()) // 2)
    schema = Schema(SCHEMA.columns, Unit("patient", column="person"), "clinic")
    more = {"schema": schema, "quiet": True, "size": 200, "max_rows": 2}
    said = tacit.run(people, **USUAL | more).privacy.details
    assert (said["size"], said["max_rows"]) == ("given in advance", 2)
    assert list(said) == list(run().privacy.details)
    plain = tacit.run(table, schema=SCHEMA, quiet=True, **USUAL).privacy.details
    assert (plain["size"], plain["max_rows"]) == ("number of patients treated as public", None)


def test_numbers_out_of_numpy_are_numbers(table):
    numbers = {"epsilon": np.float32(3.0), "delta": np.float64(1e-5), "steps": np.int64(4), "batch": np.int32(50)}
    result = tacit.run(table, schema=SCHEMA, model="linear", quiet=True, **numbers)
    assert result.settings == dataclasses.replace(result.settings, **USUAL)
    assert {type(getattr(result.settings, name)) for name in numbers} == {int, float}
    with pytest.raises(SettingsError, match="steps: a whole number, not True"):
        tacit.run(table, schema=SCHEMA, **USUAL | {"steps": True})


def test_a_model_of_ones_own_is_a_function_that_can_be_imported(table, tmp_path, monkeypatch):
    (tmp_path / "shapes.py").write_text("from torch import nn\n\ndef wide(n, m):\n    return nn.Linear(n, m)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import shapes  # type: ignore[import-not-found]

    result = tacit.run(table, schema=SCHEMA, **USUAL | {"model": shapes.wide}, quiet=True)
    assert result.settings.model == "shapes:wide"
    for wrong in (torch.nn.Linear(3, 2), lambda n, m: torch.nn.Linear(n, m)):
        with pytest.raises(SettingsError, match=r"model: give 'linear', 'mlp', 'cnn' or a function"):
            tacit.run(table, schema=SCHEMA, **USUAL | {"model": wrong})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epsilonn": 3.0}, "unknown key 'epsilonn'"),
        ({"noise": 1.0}, "epsilon: give epsilon or noise"),
        ({"schema": None}, "a table in memory needs a schema"),
        ({"resume": True}, "which run"),
        ({"resume": "runs/none"}, "is not the folder of a run"),
        ({"batch": 2.5}, "batch: a whole number, not 2.5"),
    ],
)
def test_a_mistake_is_an_error_that_names_the_setting(table, given, message):
    with pytest.raises(SettingsError, match=message):
        tacit.run(table, **{"schema": SCHEMA} | USUAL | given)
    assert not list(Path("runs").glob("*"))


def test_every_option_of_the_command_has_its_name_and_default():
    from tacit.cli.train import train

    options = inspect.signature(tacit.run).parameters
    assert {n for n in inspect.signature(train).parameters if n not in ("as_json", "public_every")} <= set(options)
    assert options["batch"].default == Settings.batch
    assert "tacit train" in tacit.run.__doc__


def test_the_settings_of_a_run_of_version_0_1_are_read(tmp_path):
    text = Settings(data="labsup", **USUAL).to_toml().replace("max_rows = 1", "per_unit = 3")
    (tmp_path / "config.toml").write_text(text)
    assert saved(tmp_path).max_rows == 3
