"""From a table to a private regression on the command line: check, fit, predict."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from tacit import accounting as acc
from tacit.cli import build
from tacit.ledger import Ledger, OperatorView
from tacit.ledger.signing import SigningKey
from tacit.linear_model import LinearRegression, LogisticRegression, from_json, to_json
from tacit.report import read_card
from tacit.runs import fit as fits
from tacit.runs.check import check
from tacit.runs.read import DataError
from tacit.schema import Boolean, Categorical, Numeric, Schema, Unit

COLUMNS = (
    Numeric("age", 0, 100),
    Categorical("ward", ["north", "south"]),
    Numeric("stay", 0, 30),
    Boolean("back", target=True),
)


def table(rows=3000, seed=0):
    generator = np.random.default_rng(seed)
    age = generator.uniform(0, 100, rows).round(1)
    ward = generator.choice(["north", "south"], rows)
    stay = (5 + 0.1 * age + 3 * (ward == "south") + generator.normal(size=rows)).round(2)
    back = generator.random(rows) < 1 / (1 + np.exp(-(age - 50) / 10))
    return pl.DataFrame(
        {"id": [f"p{i // 2}" for i in range(rows)], "age": age, "ward": ward, "stay": stay, "back": back}
    )


@pytest.fixture
def clinic(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table().write_csv("clinic.csv")
    (tmp_path / "clinic.toml").write_text(Schema(COLUMNS, Unit("patient"), "clinic").to_toml())
    (tmp_path / "ids.toml").write_text(Schema(COLUMNS, Unit("patient", "id"), "clinic").to_toml())
    return tmp_path


def test_every_question_of_an_officer_can_be_answered_by_an_option(clinic):
    words = ("--purpose", "who comes back", "--trust-model", "central", "--release", "the model", "--tuning", "none",
             "--contact", "a@b.org", "--epsilon", 1, "--delta", 1e-6, "--schema", "clinic.toml")  # fmt: skip
    steps = ("--steps", 1, "--batch", 10, "--model", "linear", "--quiet")
    for command, more, unanswered in (("fit", (), 1), ("train", steps, 2)):
        run(command, "clinic.csv", *words, *more, "--name", f"{command}-open")
        run(command, "clinic.csv", *words, *more, "--uncovered", "nothing", "--name", f"{command}-none")
        run(command, "clinic.csv", *words, *more, "--uncovered", "a map", "--uncovered", "a list", "--name", command)
        marked = {
            name: (clinic / "runs" / f"{command}{name}" / "report.html").read_text() for name in ("-open", "-none", "")
        }
        # The columns of this schema have no reasons, which only the schema can give; and train measures nothing here.
        counts = [marked[name].count("to be answered before anybody signs") for name in marked]
        assert counts == [1 + unanswered, unanswered, unanswered]
        assert "Nothing, as stated by the user." in marked["-none"]
        assert read_card(clinic / "runs" / command / "privacy.json")["accesses"]["uncovered"] == ["a map", "a list"]


def run(*arguments, code=0):
    result = CliRunner().invoke(build(), [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_a_fit_is_charged_priced_and_written_without_code(clinic):
    ledger = Ledger(clinic / "my.db")
    ledger.register("clinic", epsilon=3.0, delta=1e-5, unit="patient", fingerprint=clinic / "clinic.csv")
    said = run(
        "fit", "clinic.csv", "--schema", "clinic.toml", "--epsilon", 2, "--ledger", "my.db", "--dataset", "clinic"
    )
    assert "accuracy: " in said
    assert "age " in said
    card = read_card(clinic / "runs/clinic-1/privacy.json")
    assert card["guarantee"]["epsilon"]["upper"] <= 2.0
    assert [type(part).__name__ for part, _ in acc.from_dict(card["mechanism"]["description"]).parts()][-1] == "Laplace"
    assert ledger.budget("clinic").charges == 2
    assert {record.data for record in ledger.history("clinic")} == {ledger.dataset("clinic").fingerprint}
    assert card["ledger"]["charge"] == ledger.history("clinic")[0].charge
    assert "ledger 'clinic'" in card["evaluation"]["0"].source("value") or "charge" in card["evaluation"]["0"].source(
        "value"
    )
    assert abs(card["evaluation"]["0"]["value"] - 0.83) < 0.06
    model = from_json((clinic / "runs/clinic-1/model.json").read_text())
    assert isinstance(model, LogisticRegression)
    assert model.ledger is None
    kept = ledger.record("clinic", card["ledger"]["charge"])
    assert "model.json" in str(kept)
    run(
        "fit",
        "clinic.csv",
        "--schema",
        "clinic.toml",
        "--epsilon",
        9,
        "--ledger",
        "my.db",
        "--dataset",
        "clinic",
        code=3,
    )
    assert not (clinic / "runs/clinic-2").exists()  # what was refused leaves nothing
    assert "would fit" in run(
        *("fit", "clinic.csv", "--schema", "clinic.toml", "--epsilon", 9, "--ledger", "my.db", "--dataset", "clinic"),
        code=3,
    )


def test_numbers_are_predicted_with_intervals(clinic):
    told = json.loads(
        run(
            "fit",
            "clinic.csv",
            "--schema",
            "clinic.toml",
            "--epsilon",
            20,
            "--target",
            "stay",
            "--name",
            "stay",
            "--json",
        )
    )
    rows = {row["name"]: row for row in told["coefficients"]}
    assert rows["age"]["value"] == pytest.approx(0.1, abs=0.05)
    assert rows["age"]["low"] < rows["age"]["value"] < rows["age"]["high"]
    assert told["results"][0]["metric"] == "mean absolute error"
    assert told["epsilon"] <= 20
    run("predict", "runs/stay", "clinic.csv", "--out", "out.csv")
    answers = pl.read_csv("out.csv")["prediction"].to_numpy()
    table().with_columns(stay=pl.lit("not known yet")).write_csv("new.csv")
    assert run("predict", "runs/stay", "new.csv").split()[1:] == run("predict", "runs/stay", "clinic.csv").split()[1:]
    assert np.abs(answers - table()["stay"].to_numpy()).mean() < 3
    assert run("predict", "runs/stay/model.json", "clinic.csv").splitlines()[0] == "prediction"


def test_rows_of_one_patient_are_one_unit(clinic):
    told = json.loads(run("fit", "clinic.csv", "--schema", "ids.toml", "--epsilon", 4, "--max-rows", 2, "--json"))
    assert "patient" in told["neighbours"]
    run("predict", told["run"], "clinic.csv", "-o", "out.csv")
    found = pl.read_csv("out.csv")
    assert found.columns == ["prediction", "p(false)", "p(true)"]
    assert set(found["prediction"].unique().to_list()) <= {"true", "false", True, False}


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_one_unit_moves_an_accuracy_by_no_more_than_was_priced(adjacency):
    generator = np.random.default_rng(0)
    shares = generator.random(50)
    before = fits.sums(shares)
    assert before.sum() == 50
    farthest = 0.0
    for new in (0.0, 0.3, 1.0):
        for place in range(50):
            other = np.r_[shares, new] if adjacency == "add-remove" else np.r_[np.delete(shares, place), new]
            farthest = max(farthest, float(np.abs(fits.sums(other) - before).sum()))
    wanted = 1.0 if adjacency == "add-remove" else 2.0
    assert 0.9 * wanted < farthest <= wanted


def test_all_rows_of_one_unit_count_once():
    schema = Schema(COLUMNS, Unit("patient", "id"))
    ids = pl.DataFrame({"id": ["a", "a", "a", "b"]})
    assert fits._by_unit(np.array([1.0, 1.0, 0.0, 1.0]), ids, schema).tolist() == pytest.approx([2 / 3, 1.0])


def test_what_cannot_be_fitted_says_so_and_leaves_nothing(clinic):
    for arguments, said in (
        (["clinic.csv", "--schema", "clinic.toml", "--epsilon", 0], "epsilon: a number above 0"),
        (["clinic.csv", "--schema", "clinic.toml", "--epsilon", 1, "--accuracy", 1], "accuracy: the part"),
        (["clinic.csv", "--schema", "clinic.toml", "--epsilon", 1, "--tuning", "typo"], "tuning: one of none"),
        (["none.csv", "--schema", "clinic.toml", "--epsilon", 1], "there is no file"),
        (["clinic.csv", "--schema", "clinic.toml", "--epsilon", 1, "--target", "agee"], "did you mean 'age'"),
        (["clinic.csv", "--schema", "clinic.toml", "--epsilon", 1, "--method", "best"], "method must be one of"),
        (
            ["clinic.csv", "--schema", "clinic.toml", "--epsilon", 1, "--ledger", "no.db", "--dataset", "a"],
            "ledger init",
        ),
    ):
        result = CliRunner().invoke(build(), ["fit", *map(str, arguments)])
        assert result.exit_code in (1, 2)
        assert said in result.output
    assert not list(clinic.glob("runs/*"))
    (clinic / "bad.json").write_text('{"format": "tacit table model"}')
    assert "no tacit table model" in run("predict", "bad.json", "clinic.csv", code=1)
    assert "cannot read" in run("predict", "nothing.json", "clinic.csv", code=1)


# -- model files -------------------------------------------------------------------------------------------------------


def test_a_model_file_reads_back_to_the_same_answers():
    frame = table()
    schema = Schema(COLUMNS, Unit("record"))
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (2000, 3))
    several = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0.5)
    for made, rows in (
        (LogisticRegression(3.0, bounds=schema).fit(frame), frame),
        (LinearRegression(3.0, bounds=schema.predicting("stay")).fit(frame), frame),
        (LinearRegression(3.0, bounds=(-1, 1), target_bounds=(-2, 2), fit_intercept=False).fit(x, x[:, 0]), x),
        (LogisticRegression(3.0, bounds=(-1, 1), classes=[0, 1, 2]).fit(x, several), x),
        (LogisticRegression(3.0, row_norm=2.0, adjacency="replace-one").fit(x, several > 0), x),
    ):
        text = to_json(made)
        read = from_json(text)
        assert (read.predict(rows) == made.predict(rows)).all()
        assert np.array_equal(read.covariance_, made.covariance_, equal_nan=True)
        assert read.privacy_.claim == pytest.approx(made.privacy_.claim)
        assert read.privacy_.interval.terms == made.privacy_.interval.terms
        assert to_json(read) == text
        for wrong in ("{", "[]", "null", text.replace('"version": 1', '"version": 2', 1), text[: len(text) // 2]):
            with pytest.raises(ValueError, match="no tacit table model"):
                from_json(wrong)
        values = json.loads(text)
        values["values"]["_theta"] = values["values"]["_theta"][:-1]
        with pytest.raises(ValueError, match="no tacit table model"):
            from_json(json.dumps(values))
    with pytest.raises(ValueError, match="a fitted estimator"):
        to_json(LinearRegression())


def test_an_accuracy_is_between_none_and_all_of_the_rows_and_halfway_for_half_the_error():
    """Each row has one number in [0, 1], whatever was predicted: that is what one unit moves."""
    assert np.array_equal(fits.sums(np.array([7.0, -3.0, 0.5, 1.0])), [2.5, 1.5])
    schema = Schema((Numeric("a", 0, 1), Numeric("b", 0, 10, target=True)), Unit("record"))
    table = pl.DataFrame({"a": [0.5] * 4, "b": [0.0, 5.0, 10.0, 99.0]})
    cases = {0.0: [1, 0.5, 0, 0], 10.0: [0, 0.5, 1, 1], 1e9: [0, 0.5, 1, 1], 5.0: [0.5, 1, 0.5, 0.5]}
    for predicted, right in cases.items():
        fitted = SimpleNamespace(predict=lambda rows, value=predicted: np.full(len(rows), value))
        assert fits._answers(fitted, table, schema) == pytest.approx(right)


# -- check -------------------------------------------------------------------------------------------------------------


def findings(path, schema):
    view = check(path, schema)
    assert isinstance(view, OperatorView)
    return {(one.column, one.refused): one.text for one in view.findings}


def test_check_names_what_does_not_match(tmp_path):
    rows = [
        f"p{i // 3},{20 + i % 5},{'Nroth' if i % 50 == 0 else 'north'},{400 if i % 10 == 0 else 5},"
        f"{'ja' if i == 7 else 'true'},2020-01-0{1 + i % 9},{i}"
        for i in range(300)
    ]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["id,age,ward,stay,back,seen,number", *rows]) + "\n")
    schema = Schema((*COLUMNS, Numeric("hight", 0, 2)), Unit("patient", "id"))
    found = findings(path, schema)
    assert "98% of the values fill 4.0%" in found["age", False]
    assert found["stay", False].startswith("10.0% of the values lie above 30")
    assert "such as 'ja'" in found["back", True]
    assert "not in the table" in found["hight", True]
    assert "median of 3 rows each, 3 at most; with --max-rows 1 67%" in found["id", False]
    assert "dates" in found["seen", False]
    assert "different value in every row" in found["number", False]
    texts = [one.text for one in check(path, schema).findings]
    assert "6 rows say 'Nroth'; did you mean 'north'?; they go to 'other'" in texts
    assert "no row has 'south'" in texts


def test_check_sees_ids_dates_and_texts_that_are_declared_as_something_else(tmp_path):
    rows = [
        f"{5000 + i},2023-{1 + i % 12:02}-{1 + i % 28:02},{'a note of some length on visit ' + str(i)},person {i // 3}"
        for i in range(300)
    ]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["number,seen,note,person", *rows]) + "\n")
    declared = (Numeric("number", 0, 9000), Categorical("seen", ["2023-01-01"]), Categorical("note", ["a"]))
    told = [f"{one.column}: {one.text}" for one in check(path, Schema(declared, Unit("person"))).findings]
    for said in (
        "number: a different whole number in every row",
        "seen: declared with categories, and looks like dates",
        "note: declared with categories, and looks like a diff",
        "person: looks like ids that repeat (100 in 300 rows)",
    ):
        assert any(text.startswith(said) for text in told), (said, told)
    path.write_text("\n".join(["number,person", *(f"{i % 7},{'' if i == 9 else i // 3}" for i in range(60))]) + "\n")
    view = check(path, Schema((Numeric("number", 0, 9),), Unit("person", "person")))
    assert [one.refused for one in view.findings if "1 rows have no id" in one.text] == [True]


@pytest.mark.parametrize(
    ("data", "said"), [("a\ngröße\n".encode("latin-1"), "UTF-8"), (b"a;b\n1;2\n", "not a semicolon")]
)
def test_a_table_that_is_written_otherwise_is_refused_with_what_to_do(tmp_path, data, said):
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(DataError, match=said):
        check(tmp_path / "a.csv", Schema((Numeric("a", 0, 1),), Unit("record")))


def test_values_far_beyond_the_bounds_fill_no_more_of_them(tmp_path):
    """How much of the bounds the values use: what is clipped to an end lies at that end, however far it was."""
    path = tmp_path / "a.csv"
    for beyond in (100, 101, 10**9):
        path.write_text("\n".join(["a", *(str(90 + i % 10 if i % 4 else beyond) for i in range(400))]) + "\n")
        told = [one.text for one in check(path, Schema((Numeric("a", 0, 100),), Unit("record"))).findings]
        assert any("98% of the values fill 10.0% of the bounds" in text for text in told), (beyond, told)


def test_check_prints_that_it_is_private(clinic):
    said = run("check", "clinic.csv", "--schema", "clinic.toml")
    assert said.startswith("PRIVATE")
    assert said.rstrip().endswith("does not cover them.")
    assert "looks like ids that repeat (1,500 in 3,000 rows)" in said
    (clinic / "clinic.csv").write_text("age,ward,stay,back\n2020-01-05,north,1,true\n2021-01-05,,x,true\n")
    said = json.loads(run("check", "clinic.csv", "--schema", "clinic.toml", "--json", code=1))
    assert said["private"].startswith("PRIVATE")
    refused = {one["column"]: one["text"] for one in said["findings"] if one["refused"]}
    assert "dates" in refused["age"]
    assert refused["ward"].startswith("1 missing values, and no fill")
    assert "such as 'x'" in refused["stay"]


def test_a_signed_ledger_file_is_charged_with_the_key_that_the_environment_names(clinic, monkeypatch):
    """Before, a fit could not be given the key, so a ledger file was of no use to it after its first signature."""
    pytest.importorskip("cryptography")
    run = CliRunner()
    for words in (
        "ledger init my.db clinic --epsilon 3 --delta 1e-5 --unit patient",
        "ledger key ledger.key",
        "ledger sign my.db clinic --key ledger.key",
    ):
        assert run.invoke(build(), words.split()).exit_code == 0
    words = ["fit", "clinic.csv", "--schema", "clinic.toml", "--epsilon", "1"]
    words += ["--ledger", "my.db", "--dataset", "clinic"]
    told = run.invoke(build(), words)
    assert told.exit_code
    assert "TACIT_LEDGER_KEY" in " ".join(told.output.split())
    assert Ledger("my.db").history("clinic") == []
    monkeypatch.setenv("TACIT_LEDGER_KEY", "ledger.key")
    told = run.invoke(build(), words)
    assert told.exit_code == 0, told.output
    assert len(Ledger("my.db").history("clinic")) == 2  # the coefficients and their accuracy
    public = SigningKey.load("ledger.key").public
    assert Ledger("my.db").verify(public_key=public).ok
    (clinic / "ledger.key").chmod(0o644)
    told = run.invoke(build(), words)
    assert told.exit_code
    assert "can be read by others" in " ".join(told.output.split())
    monkeypatch.delenv("TACIT_LEDGER_KEY")
    assert len(Ledger("my.db").history("clinic")) == 2


def test_what_the_noise_does_to_predictions_is_printed_and_stands_on_card_and_report(clinic):
    words = "fit clinic.csv --schema clinic.toml --epsilon 1 --name stay --target stay"
    told = CliRunner().invoke(build(), words.split())
    assert told.exit_code == 0, told.output
    [said] = [line for line in told.output.splitlines() if line.startswith("the noise of this fit moves predictions")]
    assert read_card("runs/stay/privacy.json")["released"]["noise"] == said
    assert said in (clinic / "runs/stay/report.html").read_text()
    assert said == from_json((clinic / "runs/stay/model.json").read_text()).noise_in_words_
