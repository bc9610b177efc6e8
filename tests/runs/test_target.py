"""Any column of a table can be what a run predicts, by any optimizer of torch; and what is measured has an interval."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
from scipy.stats import binomtest
from torch import nn
from typer.testing import CliRunner

import tacit
from tacit.cli import build
from tacit.report import card
from tacit.runs.evaluate import share_interval
from tacit.runs.progress import Interrupted, Live
from tacit.runs.read import read, schema_of
from tacit.runs.settings import RATES, REFUSED, Settings, SettingsError, saved
from tacit.runs.train import optimizer_for
from tacit.schema import Boolean, Categorical, Numeric, Schema, SchemaError, Text, Unit

SCHEMA = Schema(
    (Numeric("age", lower=0, upper=100), Categorical("ward", ("north", "south")), Boolean("back", target=True)),
    Unit("patient"),
    "clinic",
    "Will the patient come back?",
)
USUAL = {"epsilon": 3.0, "delta": 1e-5, "steps": 3, "batch": 50, "model": "linear", "quiet": True}
SHARE = {"public_share": 0.3, "public_because": "made up"}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name, value in {"POINTS": 2, "COUNTS": 1, "DELTAS": ()}.items():  # a card with few points is made quickly
        monkeypatch.setattr(card, name, value)


@pytest.fixture(autouse=True)
def clinic(tmp_path) -> pl.DataFrame:
    generator = np.random.default_rng(1)
    age = generator.integers(18, 95, 300)
    table = pl.DataFrame(
        {"age": age, "ward": generator.choice(["north", "south"], 300), "back": (age > 60).astype(int)}
    )
    table.write_csv(tmp_path / "clinic.csv")
    (tmp_path / "clinic.toml").write_text(SCHEMA.to_toml())
    return table


def settings(**given) -> Settings:
    own = {"data": "clinic.csv", "schema": "clinic.toml", "epsilon": 3.0, "delta": 1e-5, "steps": 3}
    return Settings(**own | given)


# -- the target --------------------------------------------------------------------------------------------------------


def test_another_column_is_predicted_and_the_former_target_is_a_feature():
    schema = schema_of(settings(target="ward"))
    assert schema.classes == ("north", "south", "other")
    assert schema.feature_names == ("age", "back")
    records = read(settings(target="ward"))
    assert records.x.shape == (300, 2)
    assert set(records.x[:, 1].tolist()) == {-1.0, 1.0}
    assert records.y.dtype == torch.int64


def test_columns_can_be_left_out():
    assert schema_of(settings(target="back", without=("age",))).feature_names == (
        "ward=north",
        "ward=south",
        "ward=other",
    )


def test_the_choice_is_in_the_settings_the_card_the_model_and_the_report():
    result = tacit.run("clinic.csv", schema="clinic.toml", **USUAL, **SHARE, target="ward", without=["back"], name="a")
    assert saved(result.folder).target == "ward"
    assert saved(result.folder).without == ("back",)
    words = "Will the patient come back? (target chosen: ward; left out: back)"
    assert result.card["data"]["schema"] == words
    assert words in result.report.read_text()
    assert result.model.weight.shape == (3, 1)
    assert tacit.run(name="a", resume=True, quiet=True).told == result.told
    with pytest.raises(SettingsError, match="target: a resumed run keeps its settings: target = 'ward', not 'back'"):
        tacit.run(name="a", resume=True, target="back", quiet=True)


def test_a_number_is_predicted_in_its_own_unit_with_an_interval():
    result = tacit.run("clinic.csv", schema="clinic.toml", **USUAL, **SHARE, target="age")
    (found,) = result.results
    assert found["metric"] == "root mean squared error"
    low, high = (float(word) for word in found["note"].removeprefix("95% interval ").split(" to "))
    assert 1 < low < found["value"] < high < 100


def test_a_run_cut_short_goes_on_with_its_target_and_optimizer(monkeypatch):
    given = {"schema": "clinic.toml", **USUAL, "target": "ward", "optimizer": "rmsprop", "name": "a"}

    def stop(self, *args, **kwargs):
        raise Interrupted("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(Live, "update", stop)
        with pytest.raises(Interrupted):
            tacit.run("clinic.csv", **given)
    done = CliRunner().invoke(build(), ["train", "--resume", "runs/a", "--quiet"])
    assert done.exit_code == 0, done.output
    result = tacit.run(name="a", resume=True, quiet=True)
    assert result.model.weight.shape == (3, 2)
    assert result.card["mechanism"]["parameters"]["optimizer"] == "RMSprop"
    assert result.card["mechanism"]["parameters"]["learning_rate"] == [0.01]


def test_who_is_public_does_not_depend_on_the_target():
    """Otherwise a row that one run protects would be evaluated on by the next one."""
    first = read(settings(**SHARE))
    assert first.test is not None
    assert len(first.x) + len(first.test[0]) == 300  # nobody is on both sides
    for other in ({"target": "ward"}, {"target": "ward", "without": ("back",)}, {"without": ("ward",)}):
        second = read(settings(**SHARE, **other))
        assert second.test is not None
        assert torch.equal(first.x[:, 0], second.x[:, 0])
        assert torch.equal(first.test[0][:, 0], second.test[0][:, 0])


def test_a_table_in_memory_keeps_its_schema_and_the_chosen_target(clinic):
    result = tacit.run(clinic, schema=SCHEMA, **USUAL, target="age", name="a")
    assert Schema.from_toml(result.folder / "schema.toml") == SCHEMA
    assert result.model.weight.shape == (1, 4)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("notes", "column 'notes' is text and cannot be the target; a target can be age, back"),
        ("scan", "column 'scan' is a column of arrays and cannot be the target; a target can be age, back"),
        ("height", "the schema has no column 'height'; a target can be age, back"),
    ],
)
def test_what_cannot_be_a_target_is_told_with_what_can(target, message):
    columns = (Numeric("age", 0, 100), Text("notes"), Numeric("scan", 0, 1, shape=(8, 8)), Boolean("back", target=True))
    with pytest.raises(SchemaError, match=message):
        Schema(columns, Unit("patient")).predicting(target)


def test_a_schema_needs_a_feature_and_moves_one_mark_only():
    moved = SCHEMA.predicting("age")
    assert [column.name for column in moved.columns] == ["age", "ward", "back"]
    assert [column.target for column in moved.columns] == [True, False, False]
    assert moved.predicting("back") == SCHEMA
    assert SCHEMA.predicting() == SCHEMA
    with pytest.raises(SchemaError, match="declare at least one feature"):
        SCHEMA.predicting("age", without=("ward", "back"))


def test_a_plan_is_for_the_chosen_target():
    words = ["plan", "labsup", "--epsilon", "1", "--delta", "1e-6", "--steps", "2", "--model", "linear"]
    told = CliRunner().invoke(build(), [*words, "--target", "age", "--without", "educ"])
    assert told.exit_code == 0, told.output
    assert "model linear: 10 parameters" in told.output  # one number from nine features; two classes of ten had 22
    told = CliRunner().invoke(build(), [*words, "--target", "shoe"])
    assert told.exit_code == 2
    assert "--target: the schema has no column 'shoe'; a target can be " in told.output


@pytest.mark.data
def test_the_census_classifier_is_one_command(data_folder):
    words = "train pums_fulton --target employed --without income --epsilon 1 --delta 1e-6 --epochs 1 --batch 2048"
    shared = ["--public-share", "0.2", "--public-because", "published sample", "--model", "linear", "--quiet"]
    told = CliRunner().invoke(build(), [*words.split(), *shared])
    assert told.exit_code == 0, told.output
    assert "share of employed = true, by truth: 6" in told.output


# -- the optimizer -----------------------------------------------------------------------------------------------------


def test_every_optimizer_of_torch_is_offered_or_refused():
    there = {
        name.lower()
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    assert there == RATES.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", RATES)
def test_an_optimizer_trains_at_its_own_rate(name):
    chosen = settings(optimizer=name)
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    optimizer = optimizer_for(chosen, model)
    assert type(optimizer).__name__.lower() == name
    assert optimizer.param_groups[0]["lr"] == RATES[name]
    for _ in range(2):
        model(torch.ones(1, 2))[0, 0].backward()
        optimizer.step()
    assert not torch.equal(before, model.weight)
    assert optimizer_for(settings(optimizer=name, learning_rate=0.125), model).param_groups[0]["lr"] == 0.125


def test_momentum_is_that_of_sgd_alone():
    model = nn.Linear(2, 2)
    assert optimizer_for(settings(momentum=0.5), model).param_groups[0]["momentum"] == 0.5
    assert optimizer_for(settings(optimizer="rmsprop", momentum=0.5), model).param_groups[0]["momentum"] == 0


@pytest.mark.parametrize("name", REFUSED)
def test_an_optimizer_that_cannot_train_privately_is_refused_with_the_reason(name):
    with pytest.raises(SettingsError, match=f"optimizer: '{name}' cannot train privately here: it .*; use"):
        settings(optimizer=name)


def test_the_rate_of_a_run_is_written_down():
    result = tacit.run("clinic.csv", schema="clinic.toml", **USUAL, optimizer="adamax")
    assert "learning_rate = 0.03" in (result.folder / "config.toml").read_text()


# -- rates and intervals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "rows"), [(0, 7), (7, 7), (80, 100), (3181, 5153)])
def test_the_interval_of_a_share_is_wilsons(count, rows):
    known = binomtest(count, rows).proportion_ci(0.95, method="wilson")
    assert share_interval(count / rows, rows) == pytest.approx((known.low, known.high), abs=1e-7)


def test_a_share_says_of_whom_it_is_and_how_sure():
    result = tacit.run("clinic.csv", schema="clinic.toml", **USUAL, **SHARE)
    records = read(settings(**SHARE))
    assert records.test is not None
    rows, true = len(records.test[1]), float(records.test[1].double().mean())
    by = {(row["metric"], row["model"]): row for row in result.results}
    truth, model = by["share of back = true", "truth"], by["share of back = true", "private"]
    assert truth["value"] == true
    low, high = share_interval(true, rows)
    assert truth["note"] == f"counted, of all {rows:,} public rows; 95% interval {low:.1%} to {high:.1%}"
    with torch.no_grad():
        chances = result.model(records.test[0]).softmax(1)[:, 1].double()
    assert model["value"] == pytest.approx(float(chances.mean()))
    off, half = 100 * (chances - records.test[1]), 1.959964 * 100 / rows**0.5
    low, high = (float(off.mean() + sign * half * off.std() / 100) for sign in (-1, 1))
    words = f"off by {float(off.mean()):+.1f} points, 95% interval {low:+.1f} to {high:+.1f}"
    assert model["note"] == f"the model's mean probability, of all {rows:,} public rows; {words}"
    low, high = share_interval(by["accuracy", "private"]["value"], rows)
    assert by["accuracy", "private"]["note"] == f"95% interval {low:.1%} to {high:.1%}"


def test_private_rows_leave_no_rate_behind():
    result = tacit.run("clinic.csv", schema="clinic.toml", **USUAL, evaluate="clinic.csv")
    assert result.results == []
    assert len(result.views) == 1


def test_the_command_prints_the_interval():
    words = "train clinic.csv --schema clinic.toml --epsilon 3 --delta 1e-5 --steps 3 --batch 50 --model linear -q"
    told = CliRunner().invoke(build(), [*words.split(), "--public-share", "0.3", "--public-because", "made up"])
    assert "accuracy of private: " in told.output
    assert "public rows (95% interval " in told.output
    assert "share of back = true, by truth: " in told.output
