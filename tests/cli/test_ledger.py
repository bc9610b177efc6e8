"""What a person sees who types ``tacit ledger``."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from tacit import accounting as acc
from tacit.cli import build
from tacit.cli import ledger as commands
from tacit.ledger import Ledger


@pytest.fixture
def tacit():
    app = typer.Typer()
    commands.register(app)
    app.command("other")(lambda: None)  # with one group alone typer would drop its name
    runner = CliRunner()
    return lambda *words: runner.invoke(app, ["ledger", *words])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "people.db"
    ledger = Ledger(path)
    ledger.register("people", epsilon=3.0, delta=1e-5, unit="person")
    with ledger.charge("people", acc.Laplace(10.0, unit="person"), delta=0.0, purpose="one count"):
        pass
    ledger.charge("people", acc.PureDP(0.5, unit="person"), delta=0.0, purpose="=HYPERLINK(1)")
    return str(path)


def test_help_teaches_with_examples(tacit):
    for command in ("init", "show", "budget", "history", "verify", "export"):
        assert f"$ tacit ledger {command}" in tacit(command, "--help").output


def test_help_loads_nothing_heavy():
    code = (
        "import sys, typer\n"
        "from tacit.cli import ledger\n"
        "app = typer.Typer(); ledger.register(app)\n"
        "print([m for m in ('numpy', 'scipy', 'sqlalchemy', 'torch') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_init_registers_once_and_for_ever(tacit, tmp_path):
    path = str(tmp_path / "people.db")
    data = tmp_path / "people.csv"
    data.write_text("age\n34\n")
    words = ("init", path, "people", "--epsilon", "3", "--delta", "1e-6", "--unit", "person", "--data", str(data))
    told = tacit(*words)
    assert told.exit_code == 0, told.output
    assert "people: ε=3, δ=1e-06 (add/remove one person), rule tight; head " in told.output
    assert tacit(*words).exit_code == 0
    Ledger(path).check_data("people", data)
    again = tacit("init", path, "people", "--epsilon", "4", "--delta", "1e-6", "--unit", "person")
    assert again.exit_code == 1
    assert "other terms" in again.output
    renyi = tacit(
        "init", path, "b", "--epsilon", "3", "--delta", "1e-6", "--rule", "renyi", "--order", "8", "--order", "12"
    )
    assert renyi.exit_code == 0, renyi.output
    assert Ledger(path).dataset("b").rule.orders == (8.0, 12.0)


def test_show_and_budget_and_history(tacit, file):
    told = tacit("show", file)
    assert told.output.split("\t")[:2] == ["people", "3"]
    (shown,) = json.loads(tacit("show", file, "--json").output)
    assert shown["charges"] == 2
    told = tacit("budget", file, "people").output
    assert "ε=0.6 in sum (not what this rule compares)" in told
    assert "2 charges, 1 of them never confirmed" in told
    assert "if the choices had not depended on results" in told
    assert json.loads(tacit("budget", file, "people", "--json").output)["left"]["epsilon"] == pytest.approx(2.4)
    lines = tacit("history", file, "people").output.splitlines()
    assert "confirmed" in lines[0]
    assert "one count" in lines[0]
    assert "reserved (counts as spent)" in lines[1]
    assert [r["epsilon"] for r in json.loads(tacit("history", file, "people", "--json").output)] == [0.1, 0.5]


def test_show_lists_the_budget_as_it_is_now(tacit, file):
    """The wrong version listed the one that was registered, after it was raised or frozen."""
    ledger = Ledger(file)
    ledger.raise_budget("people", epsilon=4.0, delta=2e-5, because="the board agreed")
    ledger.freeze("people", because="a complaint")
    cells = tacit("show", file).output.strip().split("\t")
    assert (cells[1:3], cells[-1]) == (["4", "2e-05"], "frozen")


def test_verify_says_which_row_was_changed_and_leaves_with_1(tacit, file):
    head = Ledger(file).head("people")
    told = tacit("verify", file, "people", "--head", head, "--reprice")
    assert (told.exit_code, told.output) == (0, "the ledger passes the check: 1 data sets, 4 entries\n")
    assert tacit("verify", file, "people", "--head", "0" * 64).exit_code == 1
    connection = sqlite3.connect(file)
    connection.execute("DROP TRIGGER tacit_entries_fixed")
    connection.execute("UPDATE tacit_entries SET body = replace(body, '0.5', '0.1') WHERE seq = 3")
    connection.commit()
    connection.close()
    told = tacit("verify", file)
    assert told.exit_code == 1
    assert "people: entry 3 was changed" in told.output


def test_export_holds_the_public_record_and_no_secret(tacit, file, tmp_path):
    told = tacit("export", file, "people")
    exported = json.loads(told.output)
    assert [c["purpose"] for c in exported["charges"]] == ["one count", "=HYPERLINK(1)"]
    assert exported["head"] == Ledger(file).head("people")
    (secret,) = sqlite3.connect(file).execute("SELECT value FROM tacit_meta WHERE name = 'fingerprint_key'").fetchone()
    assert secret not in told.output
    output = tmp_path / "people.csv"
    assert tacit("export", file, "people", "--format", "csv", "--output", str(output)).exit_code == 0
    rows = list(csv.DictReader(io.StringIO(output.read_text())))
    assert [row["epsilon"] for row in rows] == ["0.1", "0.5"]
    assert rows[1]["purpose"] == "'=HYPERLINK(1)"  # a spreadsheet must not run it
    assert tacit("export", file, "people", "--format", "xml").exit_code == 2


def test_errors_are_sentences_not_tracebacks(tacit, file, tmp_path):
    told = tacit("show", str(tmp_path / "typo.db"))
    assert told.exit_code == 1
    assert "there is no ledger" in told.output
    assert not (tmp_path / "typo.db").exists()
    told = tacit("budget", file, "poeple")
    assert told.exit_code == 1
    assert "no data set 'poeple'" in told.output
    assert "known: people" in told.output
    (tmp_path / "notes.txt").write_text("x" * 2000)
    assert "not a SQLite database" in tacit("show", str(tmp_path / "notes.txt")).output
    told = tacit("init", file, "more", "--epsilon", "-1", "--delta", "1e-6")
    assert (told.exit_code, "positive number" in told.output) == (1, True)


def test_a_schedule_like_a_run_pays_for_the_next_ones(tmp_path, monkeypatch):
    """Priced by ``plan --like``, reserved once, and each ``train --plan`` takes one of its runs and pays nothing."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{i},{20 + i % 50},{i % 2}" for i in range(60)]
    (tmp_path / "people.csv").write_text("\n".join(["id,age,ill", *rows]) + "\n")
    (tmp_path / "people.toml").write_text(
        'name = "people"\n[unit]\nname = "person"\ncolumn = "id"\n[columns.age]\nkind = "numeric"\nlower = 0\n'
        'upper = 100\n[columns.ill]\nkind = "boolean"\ntarget = true\n'
    )

    def tacit(*words, code=0):
        told = CliRunner().invoke(build(), list(map(str, words)))
        assert told.exit_code == code, told.output
        return told.output

    ledger = ("--ledger", "my.db", "--dataset", "people")
    train = (
        "train",
        "people.csv",
        "--schema",
        "people.toml",
        "--noise",
        8,
        "--delta",
        1e-7,
        "--steps",
        1,
        "--batch",
        20,
        "-q",
    )
    tacit("ledger", "init", "my.db", "people", "--epsilon", 3, "--delta", 1e-5, "--unit", "person", "--data", train[1])
    tacit(*train, *ledger, "--name", "first")
    plan = ("ledger", "plan", "my.db", "people", "--every", "month", "--times", 12)
    told = tacit(*plan, "--like", "runs/first", "--reserve")
    number = told.split("reserved as ")[1].strip()
    tacit(*train, *ledger, "--plan", number, "--name", "january")
    first, whole, january = Ledger("my.db").history("people")
    assert (january.plan, january.price.epsilon, january.confirmed) == (number, 0.0, True)
    assert first.price.epsilon < whole.price.epsilon < 12 * first.price.epsilon
    assert january.description == first.description
    assert "is not due" in tacit(*train, *ledger, "--plan", number, code=1)
    # before any run, from its settings: the wrong version knew a schedule of --noise only, which no training fits
    (tmp_path / "run.toml").write_text(
        'data = "people.csv"\nschema = "people.toml"\nnoise = 8\ndelta = 1e-7\nsteps = 1\nbatch = 20\n'
    )
    number = tacit(*plan, "--like", "run.toml", "--reserve").split("reserved as ")[1].strip()
    tacit("train", "--config", "run.toml", *ledger, "--plan", number, "--name", "planned")
    assert Ledger("my.db").history("people")[-1].plan == number
    (tmp_path / "run.toml").write_text("noise = 8")
    assert "data: name a table" in tacit(*plan, "--like", "run.toml", code=2)
    assert "give ledger and dataset" in tacit(*train, "--plan", number, code=2)
    assert "one of the two" in tacit(*plan, code=2)
    assert "not the folder of a run" in tacit(*plan, "--like", "nowhere", code=1)
