"""Importing tacit is quick and brings only what it must."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tacit

ROOT = Path(__file__).parents[2]


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300, check=False
    )


def test_importing_tacit_brings_none_of_the_heavy_packages():
    heavy = ("torch", "sklearn", "matplotlib", "polars", "scipy")
    told = run(f"import sys, tacit; print([m for m in {heavy} if m in sys.modules])")
    assert told.stdout.strip() == "[]", told.stderr


def test_importing_tacit_takes_less_than_300_milliseconds():
    # The best of several: a busy machine may slow any one of them, and none of them can be faster than the code is.
    times = []
    for _ in range(5):
        line = next(
            line
            for line in run("import tacit", "-X", "importtime").stderr.splitlines()
            if re.search(r"\| tacit$", line)
        )
        times.append(int(line.split("|")[1]) / 1e6)
    assert min(times) < 0.3, times


def test_the_rooms_are_there_without_being_imported_first():
    told = run("import tacit; print(tacit.schema.Schema is tacit.Schema, tacit.datasets.labsup.__name__)")
    assert told.stdout.strip() == "True labsup", told.stderr
    assert {"accounting", "datasets", "schema", "Schema"} <= set(dir(tacit))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tacit.nonsense


BLOCK = """
import sys
blocked = set(sys.argv[1].split(","))
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is not installed (blocked by the test)", name=name)
sys.meta_path.insert(0, Blocker())
import importlib
importlib.import_module(sys.argv[2])
print("imported", *(name for name in sys.modules if name.partition(".")[0] in blocked))
"""


def _requirements(*names: str) -> set[str]:
    """The distributions that come with these, and nothing that comes with an extra."""
    seen: set[str] = set()
    todo = list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            wanted = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        todo += [re.split(r"[^A-Za-z0-9._-]", line)[0] for line in wanted if "extra ==" not in line]
    return seen


@pytest.mark.parametrize("room", ["accounting", "sgd", "noise", "ledger"])
def test_the_core_rooms_import_with_only_numpy_scipy_and_torch(room):
    if not (ROOT / "src" / "tacit" / room / "__init__.py").exists():
        pytest.skip(f"tacit.{room} is not built yet")
    allowed = _requirements("numpy", "scipy", "torch") | {"tacit"}
    blocked = {
        package
        for package, owners in importlib.metadata.packages_distributions().items()
        if not any(re.sub(r"[-_.]+", "-", owner).lower() in allowed for owner in owners)
    }
    assert {"polars", "rich", "typer", "sqlalchemy", "sklearn", "opacus", "pandas"} <= blocked
    assert not blocked & {"numpy", "scipy", "torch", "tacit"}
    told = subprocess.run(
        [sys.executable, "-c", BLOCK, ",".join(sorted(blocked)), f"tacit.{room}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.strip() == "imported"


def test_the_version_is_told_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tacit.__version__ == project["version"]


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src" / "tacit" / "py.typed").exists()
