"""A page works as it stands, from an empty folder; it is short, and it is found."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests import programs
from tests.package.follow import Block, agrees, blocks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUILT = ("_build", "api")
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in BUILT),
]
WITH_BLOCKS = [
    page
    for page in PAGES
    if any(block.kind in ("python", "console") and not block.why for block in blocks(page.read_text()))
]
MOST_WORDS = 1200
#: What a tutorial leaves its reader.
LEFT = {
    "engineer": ("privacy.json", "report.html"),
    "analyst": ("runs/people-1/privacy.json", "runs/people-1/report.html", "people.db"),
    "researcher": ("comparison.png", "rows.jsonl"),
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name)
def test_the_blocks_of_a_page_run(page, tmp_path):
    follow = Path(__file__).with_name("follow.py")
    wide = os.environ | {"COLUMNS": "120", "NO_COLOR": "1"}
    told = programs.run([str(follow), str(page)], cwd=tmp_path, options=["-Werror:::tacit"], environment=wide)
    assert told.returncode == 0, told.stdout + told.stderr
    for left in LEFT[page.stem] if page.parent.name == "tutorials" else ():
        assert (tmp_path / left).stat().st_size > 0


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_is_short(page):
    """Words of prose: code, output and tables are not counted."""
    text = re.sub(r"^(`{3,4}).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    prose = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "<!--"))]
    assert len(" ".join(prose).split()) <= MOST_WORDS


def test_output_is_compared_and_a_reason_is_needed_to_leave_a_block_out():
    assert agrees("ε ≤ ...\n done", "ε ≤ 1.23\ndone\n")
    assert not agrees("ε ≤ 1.23", "ε ≤ 1.24")
    text = "<!-- not run: needs a GPU -->\n```python\nx\n```\n\n```console\n$ tacit\n```\n"
    assert list(blocks(text)) == [Block("python", "x\n", 3, "needs a GPU"), Block("console", "$ tacit\n", 7)]


ERRORS = {page.stem for page in (DOCS / "errors").glob("*.md")} - {"index"}
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))


def test_every_message_that_points_to_a_page_finds_it_and_every_page_has_a_message():
    assert set(re.findall(r"See: tacit explain ([a-z-]+)", SOURCE)) == ERRORS
