"""A notebook is its tutorial, run from top to bottom without an error. To renew them: ``make notebooks``."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "notebooks.py"))


@pytest.mark.parametrize("name", TOOL["TUTORIALS"])
def test_a_notebook_is_its_tutorial(name):
    """The blocks are run by test_pages.py."""
    book = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    assert [(cell["cell_type"], cell["source"]) for cell in book["cells"]] == TOOL["cells"](page)
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert "operator view" not in json.dumps(book)
    assert not [out for cell in code for out in cell["outputs"] if out["output_type"] == "error"]
