"""Arrows between the rooms go one way, as docs/architecture.md says."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tacit"

# What a room may import of tacit, and of other people's packages. triton comes with torch where there is a GPU.
TACIT = {
    "accounting": set(),
    "noise": set(),
    "schema": set(),
    "ledger": {"accounting"},
    "datasets": {"schema"},
    "cluster": set(),
    "sgd": {"accounting", "noise", "ledger"},
    "linear_model": {"schema", "accounting", "noise", "ledger", "cluster", "sgd"},
    "pate": {"accounting", "noise", "ledger", "cluster"},
    "tuning": {"accounting", "noise", "ledger", "cluster", "sgd"},
    "prompts": {"accounting", "noise", "ledger", "sgd", "pate", "datasets"},
    "opacus": {"accounting", "noise", "ledger", "sgd"},
    "integrations": {"accounting", "noise", "ledger", "sgd", "opacus"},
    "audit": {"accounting", "noise", "schema", "ledger", "sgd", "linear_model", "pate", "tuning"},
}
OTHERS = {
    "accounting": {"numpy", "scipy"},
    "noise": {"numpy", "scipy", "torch", "triton"},
    "schema": {"numpy"},
    "datasets": {"numpy", "polars", "rich"},
    "cluster": set(),  # ray is asked for by name, where it is used
    "sgd": {"numpy", "scipy", "torch", "triton"},
    "opacus": {"numpy", "torch"},
    "integrations": {"numpy", "torch", "transformers", "lightning", "mlflow"},
}


def _imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import; write tacit. in full"
            assert node.module is not None
            if node.module == "tacit":
                found |= {f"tacit.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return found


ROOMS = sorted(folder.name for folder in SOURCE.iterdir() if folder.is_dir() and folder.name in TACIT)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_above_it(room):
    for path in (SOURCE / room).rglob("*.py"):
        for name in _imports(path):
            if name.startswith("tacit."):
                other = name.split(".")[1]
                assert other in TACIT[room] | {room, "__version__"}, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("room", [room for room in ROOMS if room in OTHERS])
def test_a_room_imports_only_the_packages_it_may(room):
    import sys

    for path in (SOURCE / room).rglob("*.py"):
        for name in _imports(path):
            top = name.partition(".")[0]
            known = top in OTHERS[room] or top in sys.stdlib_module_names or top == "tacit"
            assert known, f"{path.relative_to(ROOT)} imports {name}"


def _tracked() -> list[Path]:
    told = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if told.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in told.stdout.split("\0") if name]


def test_no_path_of_a_developers_machine_is_in_the_project():
    # Put together here, so that this file does not contain what it forbids.
    forbidden = ["/" + "work/", "/" + "root/", "/home" + "/", "/Use" + "rs/", "C:" + "\\"]
    for path in _tracked():
        if not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", errors="ignore")
        for word in forbidden:
            assert word not in text, f"{path.relative_to(ROOT)} contains {word}"


def test_every_module_says_what_question_it_answers():
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path.relative_to(ROOT)


def test_files_are_small_enough_to_read():
    for path in [*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 700, path.relative_to(ROOT)
