"""A tutorial works as it stands, from an empty folder, and leaves something to show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import programs

ROOT = Path(__file__).parents[2]
SHOWN = {
    "engineer": ("privacy.json", "report.html"),
    "analyst": ("runs/people-1/privacy.json", "runs/people-1/report.html", "people.db"),
    "researcher": ("comparison.png", "rows.jsonl"),
}


def test_there_is_a_tutorial_for_each_user():
    assert sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("*.md")) == sorted(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_a_tutorial_can_be_followed_from_an_empty_folder(name, tmp_path):
    page = ROOT / "docs" / "tutorials" / f"{name}.md"
    follow = Path(__file__).with_name("follow.py")
    told = programs.run([str(follow), str(page)], cwd=tmp_path, options=["-Werror:::tacit"])
    assert told.returncode == 0, told.stdout + told.stderr
    for left in SHOWN[name]:
        assert (tmp_path / left).stat().st_size > 0
    if name == "analyst":
        card = json.loads((tmp_path / "runs/people-1/privacy.json").read_text())
        assert card["guarantee"]["epsilon"]["claimed"] <= 1.0
        assert card["ledger"]["confirmed"]
        assert "Still fits" in told.stdout  # the third question is refused, with advice
