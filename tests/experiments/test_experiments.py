"""Every experiment runs in seconds, keeps its rows, and goes on where it was stopped."""

import json
import os
import signal
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments import facts, load, members, names
from experiments.__main__ import reproduce
from experiments.table import Table, mean_sd
from tacit.cli import build

ROOT = Path(__file__).parents[2]


LONG = ("abadi-mnist", "pate-recipe", "pate-mnist", "records")  # ten seconds each


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in names()])
def test_an_experiment_runs_tiny_and_writes_table_and_rows(name, tmp_path, monkeypatch):
    monkeypatch.delenv("TACIT_DATA", raising=False)
    if name == "prompts":
        pytest.importorskip("peft")
    done = CliRunner().invoke(build(), ["reproduce", name, "--size", "tiny", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    folder = tmp_path / f"{name}-tiny"
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert rows
    assert all("seconds" in row and "machine" in row for row in rows)
    assert "|---|" in (folder / "table.md").read_text()


def test_the_list_says_what_each_experiment_is():
    done = CliRunner().invoke(build(), ["reproduce"])
    for name in names():
        assert name in done.output
        assert load(name).ABOUT in done.output


@pytest.mark.parametrize("name", names())
def test_an_experiment_says_what_is_the_same_and_what_differs(name):
    found = facts(name)
    assert found == load(name).FACTS  # read from the file without importing what the module imports
    assert all((found.paper, found.same, found.differs, found.published, found.short, found.full))
    shown = found.measured(name)
    assert shown
    if shown.startswith("docs/"):
        assert (ROOT / shown).is_file()


def test_the_list_is_also_json():
    rows = json.loads(CliRunner().invoke(build(), ["reproduce", "--json"]).output)
    assert {row["name"] for row in rows} >= set(names())


@pytest.mark.parametrize("name", ["prompts", "records", "records-cifar10"])
def test_what_cannot_be_short_says_so_and_shows_the_kept_rows(name, tmp_path):
    done = CliRunner().invoke(build(), ["reproduce", name, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "so the kept rows are shown" in done.output
    kept = (ROOT / "experiments" / "rows" / f"{name}.jsonl").read_text().splitlines()
    assert len((tmp_path / f"{name}-short" / "rows.jsonl").read_text().splitlines()) == len(kept)


def test_an_unknown_name_lists_the_known(tmp_path):
    done = CliRunner().invoke(build(), ["reproduce", "nonsense", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "accountants" in done.output


def test_rows_are_measured_once_and_a_torn_line_again(tmp_path):
    calls = []

    def measure():
        calls.append(1)
        return {"value": len(calls)}

    def table():
        return Table("x", tmp_path, seeds=1, say=lambda _: None)

    first = table()
    assert first.row(measure, seed=0)["value"] == 1
    assert first.row(measure, seed=1)["value"] == 2
    again = table()
    assert again.row(measure, seed=0)["value"] == 1
    text = again.file.read_text()
    again.file.write_text(text[:-10])
    torn = table()
    assert torn.row(measure, seed=0)["value"] == 1
    assert torn.row(measure, seed=1)["value"] == 3
    assert [json.loads(line)["value"] for line in torn.file.read_text().splitlines()] == [1, 3]


def test_one_seed_has_no_deviation():
    assert mean_sd([2.0])[0] == 2.0
    assert str(mean_sd([2.0])[1]) == "nan"


def test_a_result_is_found_by_the_words_of_a_paper():
    assert members("ABADI_MNIST") == ("abadi-mnist",)
    with pytest.raises(ValueError, match="about it: pate-mnist"):
        members("GNMax MNIST")
    with pytest.raises(ValueError, match="there are abadi-mnist"):
        members("no such thing")


def test_a_device_that_is_not_there_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match="--device is cpu or cuda, not 'gpu'"):
        reproduce("accountants", tmp_path, None, device="gpu")


def test_a_request_to_end_shows_what_was_measured(tmp_path, monkeypatch, capsys):
    def run(table):
        table.row(lambda: {"value": 1.0}, part="one")
        os.kill(os.getpid(), signal.SIGTERM)
        table.row(lambda: {"value": 2.0}, part="two")

    experiment = types.SimpleNamespace(run=run, summary=lambda rows: f"{len(rows)} rows", SEEDS=1)
    monkeypatch.setattr("experiments.__main__.load", lambda name: experiment)
    with pytest.raises(SystemExit, match="143"):
        reproduce("accountants", tmp_path, None)
    assert "1 rows" in capsys.readouterr().out
    assert (tmp_path / "accountants-short" / "table.md").read_text() == "1 rows\n"
