"""What a person meets who types ``tacit report``."""

from __future__ import annotations

import json
import stat

import pytest
from typer.testing import CliRunner

from tacit import accounting as acc
from tacit.cli import build
from tacit.ledger import OperatorLog, OperatorView
from tacit.report import Run, make_card, write_card


def tacit(*words: str):
    return CliRunner().invoke(build(), ["report", *words])


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "one"
    (folder / "private").mkdir(parents=True)
    card = make_card(Run("one", acc.PoissonSampled(acc.Gaussian(2.0, unit="person"), 0.01) * 100, delta=1e-6))
    write_card(card, folder / "privacy.json")
    log = OperatorLog(folder / "private" / "operator.jsonl")
    for step in range(1, 5):
        log.write(OperatorView(step=step, loss=1 / step, clipped_fraction=0.25))
    return folder


def test_the_report_is_written_beside_the_card(run):
    told = tacit(str(run))
    assert told.exit_code == 0, told.output
    assert "ε = 0.228 at δ = 1e-06, add/remove one person" in told.output
    page = (run / "report.html").read_text()
    assert "not covered by the guarantee" not in page
    assert not (run / "private" / "operator.html").exists()
    assert json.loads(tacit(str(run / "privacy.json"), "--json").output)["epsilon"] == 0.228


def test_the_operators_page_is_separate_marked_and_private(run):
    told = tacit(str(run), "--operator")
    assert told.exit_code == 0, told.output
    page = run / "private" / "operator.html"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert page.read_text().count("not covered by the guarantee") >= 2
    assert "0.25" not in (run / "report.html").read_text().split("The privacy card")[0].split("Trade-off")[0]


def test_what_is_no_card_is_refused(run, tmp_path):
    assert "has not ended" in tacit(str(tmp_path)).output
    document = json.loads((run / "privacy.json").read_text())
    document["guarantee"]["loss"] = 0.5
    (run / "privacy.json").write_text(json.dumps(document))
    told = tacit(str(run))
    assert told.exit_code == 1
    assert "guarantee.loss: unknown key" in told.output
    told = tacit(str(tmp_path / "nothing.json"))
    assert (told.exit_code, "cannot read the card" in told.output) == (1, True)


def test_without_an_operator_log_the_operators_page_is_refused(run):
    (run / "private" / "operator.jsonl").unlink()
    told = tacit(str(run), "--operator")
    assert (told.exit_code, "cannot read the operator log" in told.output) == (1, True)
