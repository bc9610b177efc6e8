"""``tacit pate`` from the command line: labels, a student, a card, and what stays private."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli import build
from tacit.ledger import Ledger
from tacit.pate import VoteCounts
from tacit.report import read_card

SCHEMA = """
[unit]
name = "person"
column = "id"

[columns.a]
kind = "numeric"
lower = -10.0
upper = 10.0

[columns.b]
kind = "numeric"
lower = -10.0
upper = 10.0

[columns.sick]
kind = "categorical"
categories = ["no", "yes"]
target = true
"""


def run(*words):
    return CliRunner().invoke(build(), ["pate", *map(str, words)])


@pytest.fixture
def votes(tmp_path):
    rng = np.random.default_rng(0)
    table = VoteCounts(rng.multinomial(100, rng.dirichlet(np.full(3, 0.05), 80)), 100, "keyed", "person")
    table.save(tmp_path / "votes.npz")
    return tmp_path / "votes.npz"


def test_votes_become_labels_a_card_and_a_private_page(votes, tmp_path):
    told = run(
        votes, "--queries", 60, "--threshold", 70, "--check-noise", 40, "--vote-noise", 15, "--sanitise",
        "--runs", tmp_path / "runs", "--json",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    folder = tmp_path / "runs" / "votes-1"
    rows = list(csv.DictReader((folder / "labels.csv").open()))
    assert len(rows) == 60
    assert sum(row["label"] != "" for row in rows) == found["answered"]
    card = read_card(folder / "privacy.json")
    assert card["guarantee"]["unit"] == "person"
    assert card["mechanism"]["parameters"]["exact ε of the votes"].startswith("not publishable")
    assert card["evaluation"]["0"]["metric"].startswith("data-dependent ε, sanitised")
    page, private = (folder / "report.html").read_text(), folder / "private" / "operator.html"
    assert "sanitised: ε" in page
    assert "Margins of the votes" not in page
    assert "Margins of the votes" in private.read_text()
    assert private.stat().st_mode & 0o077 == 0


def test_without_sanitising_no_data_dependent_number_leaves(votes, tmp_path):
    told = run(votes, "--queries", 40, "--vote-noise", 15, "--runs", tmp_path / "runs")
    assert told.exit_code == 0, told.output
    assert "data-dependent ε: may not be published" in told.stdout
    entries = json.loads((tmp_path / "runs" / "votes-1" / "private" / "operator.jsonl").read_text().splitlines()[0])
    for name in ("epsilon_theorem6", "epsilon_exact"):
        shown = f"{entries[name]:.4f}"
        for file in ("privacy.json", "report.html"):
            assert shown not in (tmp_path / "runs" / "votes-1" / file).read_text()


def test_a_table_is_taught_by_person_and_charged(tmp_path):
    rng = np.random.default_rng(1)

    def table(name, rows, label):
        y = rng.integers(0, 2, rows)
        a, b = rng.normal(size=rows) + 3 * y, rng.normal(size=rows)
        lines = ["id,a,b" + (",sick" if label else "")]
        for i in range(rows):
            lines.append(f"{i // 2},{a[i]:.3f},{b[i]:.3f}" + (f",{'yes' if y[i] else 'no'}" if label else ""))
        (tmp_path / name).write_text("\n".join(lines) + "\n")

    table("clinic.csv", 400, True)
    table("public.csv", 120, False)
    (tmp_path / "clinic.toml").write_text(SCHEMA)
    ledger = Ledger(tmp_path / "my.db")
    ledger.register("clinic", unit="person", epsilon=20.0, delta=1e-4, charges=4)
    words = [
        tmp_path / "clinic.csv", "--schema", tmp_path / "clinic.toml", "--public", tmp_path / "public.csv",
        "--teachers", 12, "--model", "logistic", "--vote-noise", 4, "--ledger", tmp_path / "my.db",
        "--dataset", "clinic", "--runs", tmp_path / "runs",
    ]  # fmt: skip
    typo = run(*words, "--queries", 30, "--tuning", "nonsense")
    assert "tuning: one of none, charged" in typo.output
    assert not ledger.history("clinic")
    stated = ("--tuning", "none", "--uncovered", "a map", "--trust-model", "x", "--release", "y", "--contact", "z")
    stated += ("--purpose", "who is ill")
    told = run(*words, "--queries", 30, *stated)
    assert told.exit_code == 0, told.output
    card = read_card(tmp_path / "runs" / "clinic-1" / "privacy.json")
    assert (card["accesses"]["tuning"], card["accesses"]["uncovered"]) == ("none", ["a map"])
    # left: reasons of the bounds, whom the public rows are about, and accuracy, which nobody measured
    assert (tmp_path / "runs" / "clinic-1" / "report.html").read_text().count(
        "to be answered before anybody signs"
    ) == 3
    assert "add/remove one person" in told.stdout
    assert (tmp_path / "runs" / "clinic-1" / "student.joblib").exists()
    assert [record.confirmed for record in ledger.history("clinic")] == [True]
    refused = run(*words, "--queries", 120)
    assert refused.exit_code == 3
    assert not (tmp_path / "runs" / "clinic-2").exists()


def test_labels_that_were_paid_for_are_kept_where_the_sanitised_price_is_refused(votes, tmp_path):
    ledger = Ledger(tmp_path / "my.db")
    ledger.register("them", unit="person", epsilon=1.0, delta=1e-4, charges=1, rule="sum")
    plan = [votes, "--queries", 20, "--vote-noise", 40, "--ledger", tmp_path / "my.db", "--dataset", "them"]
    told = run(*plan, "--sanitise", "--name", "mine", "--runs", tmp_path / "runs")
    assert told.exit_code == 3, told.output
    assert "the labels are released, but no sanitised ε" in told.output
    assert len((tmp_path / "runs" / "mine" / "labels.csv").read_text().splitlines()) == 21
    assert (tmp_path / "runs" / "mine" / "privacy.json").exists()
    assert len(ledger.history("them")) == 1


def test_a_run_that_released_nothing_leaves_its_name_free_and_private_rows_are_no_public_ones(votes, tmp_path):
    for queries, code in ((500, 1), (20, 0)):
        told = run(votes, "--queries", queries, "--vote-noise", 40, "--name", "mine", "--runs", tmp_path / "runs")
        assert told.exit_code == code, told.output
    (tmp_path / "clinic.toml").write_text(SCHEMA)
    (tmp_path / "clinic.csv").write_text("id,a,b,sick\n1,0.5,0.5,no\n2,0.1,0.7,yes\n")
    same = ["--public", tmp_path / "clinic.csv", "--schema", tmp_path / "clinic.toml"]
    told = run(tmp_path / "clinic.csv", *same, "--vote-noise", 4, "--queries", 1, "--runs", tmp_path / "runs")
    assert told.exit_code == 1
    assert "the private table itself" in told.output


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["none.npz", "--vote-noise", "4", "--queries", "3"], 1, "not a file of votes"),
        (["none.csv", "--vote-noise", "4", "--queries", "3"], 1, "--public"),
        (["none.npz", "--vote-noise", "4"], 2, "--queries"),
        (["none.npz", "--vote-noise", "4", "--queries", "3", "--threshold", "3"], 2, "--check-noise"),
        (["none.npz", "--vote-noise", "4", "--queries", "3", "--ledger", "x.db"], 2, "--dataset"),
        (["none.npz", "--vote-noise", "4", "--queries", "3", "--model", "oracle"], 2, "logistic"),
    ],
)
def test_mistakes_are_told_with_what_to_do(words, code, message, tmp_path):
    told = run(*words, "--runs", tmp_path)
    assert told.exit_code == code
    assert message in told.output


def test_help_teaches_with_examples():
    told = run("--help")
    assert "tacit pate adult --public test" in told.stdout
