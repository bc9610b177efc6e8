"""What the gallery shows is what was measured: the headline is drawn from kept rows, and choices come before tests."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments import GROUPS, about, headline, load, members, names, records_tables
from tacit import accounting as acc
from tacit.cli import build
from tacit.cli import reproduce as command


def _write(folder, name, rows):
    (folder / name).mkdir()
    (folder / name / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_headline_shows_the_method_that_won_the_trials_not_the_one_that_won_the_test(tmp_path):
    key = {"data": "adult", "epsilon": 1.0}
    choices = [
        key | {"part": "choice", "method": "a", "accuracy": 0.85},
        key | {"part": "choice", "method": "b", "accuracy": 0.84},
    ]
    tests = [
        key | {"part": "test", "method": method, "seed": seed, "accuracy": accuracy, "delta": 1e-6}
        for method, accuracy in (("a", 0.80), ("b", 0.90))
        for seed in range(3)
    ]
    _write(tmp_path, "records-tables", [*choices, *tests])
    _write(tmp_path, "records", [{"data": "mnist", "epsilon": 0.5, "seed": 0, "accuracy": 0.97, "delta": 1e-5}])
    done = CliRunner().invoke(build(), ["reproduce", "headline", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    table = (tmp_path / "headline-short" / "table.md").read_text()
    assert "| Adult | 1 | 80.00 ± 0.00 (3) |" in table
    assert "| MNIST | 0.5 | 97.00 (1) | 90 Abadi et al. 2016 |" in table
    assert (tmp_path / "headline-short" / "headline.png").stat().st_size > 10_000


def test_the_headline_is_drawn_anew_when_rows_change(tmp_path):
    row = {"data": "mnist", "epsilon": 1.0, "delta": 1e-5}
    ours = []
    for seeds in (1, 2):
        (tmp_path / "records").mkdir(exist_ok=True)
        lines = [json.dumps(row | {"seed": seed, "accuracy": 0.98}) for seed in range(seeds)]
        (tmp_path / "records" / "rows.jsonl").write_text("\n".join(lines))
        table = headline.Table("headline", tmp_path, 1, say=lambda _: None)
        headline.run(table)
        ours.append([r["seeds"] for r in table.rows if r["who"] == "tacit" and r["data"] == "mnist"])
    assert ours == [[1], [2]]


def test_the_headline_shows_our_kept_rows_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(build(), ["reproduce", "headline"])
    assert done.exit_code == 0, done.output
    rows = [line.split("|")[3].strip() for line in done.output.splitlines() if line.startswith("| MNIST")]
    assert any(rows)


def test_the_headline_compares_diffprivlib_with_our_fit_of_the_same_columns():
    row = {"data": "adult", "epsilon": 1.0, "method": "a", "seed": 0, "delta": 1e-6}
    rows = [row | {"part": "test", "accuracy": 0.86}, row | {"part": "notebook", "accuracy": 0.81}]
    found = {point["data"]: point["accuracy"] for point in headline.measured({"records-tables": rows})}
    assert found == {"adult": 0.86, headline.FIVE: 0.81}
    assert "diffprivlib (notebook)" in headline.PUBLISHED[headline.FIVE]
    assert "diffprivlib (notebook)" not in headline.PUBLISHED["adult"]


def _installed_elsewhere(folder, monkeypatch):
    """The command as it would be in site-packages: no source tree above it."""
    installed = folder / "lib" / "python3" / "site-packages" / "tacit" / "cli" / "reproduce.py"
    monkeypatch.setattr(command, "__file__", str(installed))
    monkeypatch.chdir(folder)


def test_without_a_source_tree_the_command_says_where_the_experiments_are(tmp_path, monkeypatch):
    _installed_elsewhere(tmp_path, monkeypatch)
    for arguments in (["reproduce"], ["reproduce", "headline"]):
        done = CliRunner().invoke(build(), arguments)
        assert done.exit_code == 1
        assert "source tree" in done.output
        assert "clone" in done.output
    assert not (tmp_path / "results").exists()
    shown = CliRunner().invoke(build(), ["reproduce", "--help"], env={"COLUMNS": "300"})
    assert shown.exit_code == 0
    assert "clone the project" in " ".join(shown.output.split())


def test_an_installed_command_finds_the_clone_that_it_is_called_in(tmp_path, monkeypatch):
    _installed_elsewhere(tmp_path, monkeypatch)
    (tmp_path / "src" / "tacit").mkdir(parents=True)
    (tmp_path / "src" / "tacit" / "__init__.py").touch()
    assert not (tmp_path / "experiments").exists()
    with pytest.raises(FileNotFoundError):
        command.source_tree()
    shutil.copytree(Path(headline.__file__).parent, tmp_path / "experiments", ignore=shutil.ignore_patterns("*.jsonl"))
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "docs")
    assert command.source_tree() == tmp_path


def test_no_test_row_is_measured_before_every_choice_on_its_table_is_logged(tmp_path, monkeypatch):
    # The order of things does not depend on what a fit gives; the fits themselves are run by test_experiments.py.
    once = {"accuracy": 0.8, "claimed": 1.0, "delta": 1e-6, "mechanism": acc.Gaussian(4.3, unit="person").to_dict()}
    monkeypatch.setattr(records_tables, "fit", lambda *arguments, **named: once)
    table = records_tables.Table("records-tables", tmp_path, 2, size="tiny", say=lambda _: None)
    records_tables.run(table)
    parts = [row["part"] for row in table.rows]
    assert parts.index("test") > max(i for i, part in enumerate(parts) if part in ("trial", "choice", "cost"))
    cost = next(row for row in table.rows if row["part"] == "cost")
    assert cost["trials"] == parts.count("trial") == 4
    assert cost["together"] == pytest.approx(acc.epsilon(acc.Gaussian(4.3) * 4, 1e-5).upper)
    assert all(1.0 < price < 2.0 for price in cost["private_selection"].values())


def test_help_lists_every_result():
    shown = " ".join(CliRunner().invoke(build(), ["reproduce", "--help"], env={"COLUMNS": "300"}).output.split())
    for name in [*names(), *GROUPS]:
        assert name in shown
        assert " ".join(about(name).split()[:4]) in shown
    for wanted in ("tuning", "pate", "prompts", "records", "headline"):
        assert members(wanted)


def test_what_is_said_about_an_experiment_is_what_its_module_says():
    for name in names():
        if name != "prompts":  # needs transformers
            assert about(name) == load(name).ABOUT


def test_an_unknown_name_lists_results_and_groups():
    with pytest.raises(ValueError, match=r"accountants, .*pate, .*tuning"):
        members("nonsense")
