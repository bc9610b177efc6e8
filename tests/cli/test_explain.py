"""What a person meets who types ``tacit explain``: the pages of the errors, in the terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.cli import build, explain
from tacit.cli.common import EXIT_USAGE

ROOT = Path(__file__).parents[2]
NAMES = {page.stem for page in (ROOT / "docs" / "errors").glob("*.md")} - {"index"}


def tacit(*words: str):
    return CliRunner().invoke(build(), ["explain", *words], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_a_page_is_shown():
    told = tacit("budget-exceeded")
    assert told.exit_code == 0
    assert "Nothing was recorded" in told.output
    assert 'ledger.register("people", epsilon=1.0, delta=1e-5)' in told.output


def test_without_a_name_every_page_is_listed_with_its_title():
    told = tacit()
    listed = dict(line.split(maxsplit=1) for line in told.output.splitlines() if line and not line.startswith(" "))
    assert set(listed) == NAMES
    assert listed["budget-exceeded"].startswith("The ledger refuses")


def test_an_unknown_name_gets_those_that_are_close():
    told = tacit("budget-exceded")
    assert told.exit_code == EXIT_USAGE
    assert "did you mean budget-exceeded?" in told.stderr
    assert "did you mean" not in tacit("xyz").stderr


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_page_shows_no_marks_of_the_documentation(name):
    page = explain.plain(explain.pages()[name])
    assert "{doc}" not in page
    assert "<!--" not in page
    assert explain.summary(explain.pages()[name])


def test_links_become_names_of_files():
    text = (
        "<!-- not run: a GPU -->\nSee {doc}`/howto/ledger` and {doc}`the guide </howto/runs>`, {class}`~tacit.Ledger`."
    )
    assert explain.plain(text) == "See `docs/howto/ledger.md` and the guide (`docs/howto/runs.md`), `tacit.Ledger`."


def test_an_installed_package_has_its_own_copy(tmp_path, monkeypatch):
    (tmp_path / "odd-error.md").write_text("# odd-error\n\nSomething odd happened.\n")
    (tmp_path / "index.md").write_text("# Errors\n")
    monkeypatch.setattr(explain, "PLACES", (tmp_path, *explain.PLACES))
    assert explain.pages() == {"odd-error": "# odd-error\n\nSomething odd happened.\n"}


def test_python_m_tacit_is_the_command():
    told = subprocess.run(
        [sys.executable, "-m", "tacit", "explain", "fingerprint"], capture_output=True, text=True, check=True
    )
    assert "every value of every row" in " ".join(told.stdout.split())
