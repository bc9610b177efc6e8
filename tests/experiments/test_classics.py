"""The table of published results is what its script makes of the kept rows and the accountant."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def classics():
    spec = importlib.util.spec_from_file_location("classics", ROOT / "tools" / "classics.py")
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    sys.modules["classics"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path
    del sys.modules["classics"]


def test_the_page_is_what_the_script_makes(classics):
    assert classics.PAGE.read_text(encoding="utf-8") == classics.page(), "run python tools/classics.py"


def test_there_are_sixty_rows_and_each_names_source_and_command(classics):
    found = [*classics.PRICES, *classics.trained()]
    assert len(found) >= 60
    for item in found:
        assert any(character.isdigit() for character in item.source), item  # author and year
        assert item.command
        assert item.published


def test_a_row_that_claims_to_agree_and_does_not_is_refused(classics, monkeypatch):
    wrong = classics.Item("x", "Laplace", "Dwork et al. 2006", "acc.epsilon(acc.Laplace(1.0), 0)", "2")
    monkeypatch.setattr(classics, "PRICES", (wrong,))
    monkeypatch.setattr(classics, "trained", list)
    with pytest.raises(ValueError, match="no reason is given"):
        classics.rows()
