"""``tacit audit`` and ``tacit selftest`` from the command line."""

from __future__ import annotations

import json
import stat

import pytest
from typer.testing import CliRunner

from tacit.cli import build
from tacit.report import read_card

RUNNER = CliRunner()


def tacit(*words: str):
    return RUNNER.invoke(build(), list(words))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited")
    told = tacit(
        "train", "labsup", "--epsilon", "2", "--delta", "1e-6", "--steps", "3", "--batch", "256", "--model", "mlp",
        "--public-share", "0.2", "--public-because", "published", "--runs", str(folder), "--name", "small", "--quiet",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    return folder / "small"


def test_a_run_is_audited_and_its_card_and_report_say_so(run):
    assert read_card(run / "privacy.json")["checks"]["audit"] == {"verdict": "not audited"}
    told = tacit("audit", str(run), "--canaries", "100", "--members", "--json")
    if told.exit_code == 4:  # once in 10,000 times a check of the implementation is wrong, and not twice
        told = tacit("audit", str(run), "--canaries", "100", "--members", "--json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["verdict"] in ("pass", "underpowered")
    assert found["best"] > 0
    assert found["terms"] == "add/remove one person"
    audit = read_card(run / "privacy.json")["checks"]["audit"]
    assert audit["verdict"] == found["verdict"]
    page = (run / "report.html").read_text()
    assert "could at best have certified" in page
    assert "loss threshold" not in page  # an attack with private rows is the operator's
    log = run / "private" / "operator.jsonl"
    assert "loss threshold" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_what_is_no_run_is_refused(run, tmp_path):
    assert tacit("audit", str(tmp_path)).exit_code == 2
    (tmp_path / "config.toml").write_text("")
    assert tacit("audit", str(tmp_path)).exit_code == 1
    assert tacit("audit", str(run), "--confidence", "2").exit_code == 2


@pytest.mark.slow
def test_selftest_shows_which_check_caught_what():
    told = tacit("selftest", "votes get half", "--json")
    assert told.exit_code == 0, told.output
    first, second = json.loads(told.stdout)
    assert (first["caught"], second["caught"]) == (False, True)
    assert second["caught_by"].startswith("votes")


def test_selftest_refuses_a_mutant_that_is_not_there():
    assert tacit("selftest", "there is none").exit_code == 2
