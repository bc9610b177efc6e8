"""A stranger can follow a private step: few files, and a stack that fits on a page."""

from __future__ import annotations

import pytest
from tools.walk import MODELS, steady_step


@pytest.mark.parametrize("name", MODELS)
def test_a_steady_step_walks_through_few_files_and_not_deep(name):
    walk = steady_step(name, compiled=False)
    assert len({file for file, _ in walk.calls}) <= 15  # probes and moving rows have their own files
    assert len(walk.deepest) <= 11  # a pass is begun where it is used, so that nobody else keeps it
