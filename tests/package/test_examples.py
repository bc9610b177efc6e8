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


def test_the_readme_installs_and_trains_in_a_few_lines():
    block = BLOCKS[0]
    assert "$ pip install tacit" in README
    assert len([line for line in block.splitlines() if line.strip()]) <= 7


#: Ten seconds and more of what the tests named here check in parts: these run with the slow tests.
LONG = {
    "compiled_training": "tests/sgd/test_compiled.py",
    "distributed_training": "tests/scale/test_training.py",
    "lightning_mnist": "tests/integrations/test_lightning.py",
    "opacus_text": "tests/opacus/test_loop.py",
    "ray_teachers": "tests/scale/test_ray.py",
}


def test_what_a_long_example_shows_has_tests_of_its_own():
    assert set(LONG) <= set(EXAMPLES)
    assert all((ROOT / tests).exists() for tests in LONG.values())


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in EXAMPLES])
def test_an_example_runs(name):
    told = programs.run(["-m", f"examples.{name}"], cwd=ROOT)
    assert told.returncode == 0, told.stderr
    assert told.stdout.strip()


def test_a_link_of_the_readme_leads_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
