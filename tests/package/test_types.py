"""mypy sees torch: what torch does not have is an error, not silence."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]


def test_no_setting_hides_torch_or_a_module_of_ours():
    assert SETTINGS["strict"]
    for override in SETTINGS["overrides"]:
        hidden = {name.partition(".")[0] for name in override["module"]}
        assert hidden.isdisjoint({"torch", "numpy", "tacit", "experiments"}), override


@pytest.mark.slow  # it reads the types of torch
def test_a_function_that_torch_does_not_have_is_an_error(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import torch\n\ntorch.no_such_function()\ntorch.zeros(2).no_such_method()\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(wrong)]
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600, check=False).stdout
    assert '"no_such_function"' in told
    assert '"no_such_method"' in told
