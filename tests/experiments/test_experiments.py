"""Every experiment runs in seconds, keeps its rows, and goes on where it was stopped."""

import json
import os

import pytest
from typer.testing import CliRunner

from experiments import load, names
from experiments.table import Table, mean_sd
from tacit.cli import build

#: Experiments whose tiny version needs files of TACIT_DATA and minutes.
NEEDS_DATA = {"prompts"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in NEEDS_DATA else ()) for name in names()]
)
def test_an_experiment_runs_tiny_and_writes_table_and_rows(name, tmp_path):
    if name in NEEDS_DATA and not os.environ.get("TACIT_DATA"):
        pytest.skip("TACIT_DATA is not set")
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
