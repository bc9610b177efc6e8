"""What the README and the examples show is run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests import programs

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")


def test_the_readme_has_an_example_for_each_kind_of_user():
    assert len(BLOCKS) >= 3
    for block in BLOCKS:
        assert len([line for line in block.splitlines() if line.strip()]) <= 14


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_code_block_of_the_readme_runs(block, tmp_path):
    told = programs.run(["-c", block], cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout.strip()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name):
    told = programs.run(["-m", f"examples.{name}"], cwd=ROOT)
    assert told.returncode == 0, told.stderr
    assert told.stdout.strip()


def test_the_speed_table_of_the_readme_is_that_of_the_benchmarks():
    from benchmarks._readme import renewed

    page = (ROOT / "docs" / "results" / "speed.md").read_text(encoding="utf-8")
    assert renewed(README, page) == README, "run: python -m benchmarks._readme"


def test_a_link_of_the_readme_leads_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
