"""The maintainers' pages name files and tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "maintain").glob("*.md"))
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
#: What the examples of the pages add.
NEW = {
    "src/tacit/cli/delta.py",
    "src/tacit/datasets/schemas/NAME.toml",
    "src/tacit/datasets/schemas/mroz.toml",
    "src/tacit/linear_model/constant.py",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_files_and_tests_that_are_there(page):
    text = page.read_text(encoding="utf-8")
    for name in set(re.findall(r"\b(?:src|tests|docs|tools)/[\w/]+\.\w+", text)) - NEW:
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in TESTS, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_an_example_changes_is_as_the_page_shows_it(page):
    file = ""
    for line in "".join(
        re.findall(r"^`{3,4}diff\n(.*?)^`{3,4}", page.read_text(), re.DOTALL | re.MULTILINE)
    ).splitlines():
        if line.startswith(("--- a/", "+++ b/")):
            file = line[6:]
            here = (ROOT / file).read_text(encoding="utf-8").splitlines()
        elif line[:1] in (" ", "-") and line[1:].strip():
            assert line[1:] in here, f"{page.name}: {file} has no line {line[1:]!r}"
