"""Arrows between the rooms go one way, as docs/architecture.md says: the page is what the code is compared with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.package import arrows

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tacit"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROWS = arrows.table(PAGE)


def test_the_table_has_a_row_for_every_room_and_its_arrows_point_up():
    assert arrows.wrong_rows(SOURCE, ROWS) == []


def test_the_tree_has_a_sentence_for_every_room():
    assert set(arrows.tree(PAGE)) - set(arrows.DIVIDED) == set(ROWS)


@pytest.mark.parametrize("room", ROWS)
def test_a_room_imports_only_what_its_row_allows(room):
    assert arrows.wrong_imports(SOURCE, ROWS, room) == []


def test_a_row_allows_nothing_that_is_not_imported():
    for room, row in ROWS.items():
        for place, name in [(0, n) for n in row.rooms] + [(1, n) for n in row.packages] + [(2, n) for n in row.asked]:
            without = [
                tuple(n for n in names if n != name) if k == place else names
                for k, names in enumerate(vars(row).values())
            ]
            less = ROWS | {room: arrows.Row(*without)}
            assert arrows.wrong_imports(SOURCE, less, room), f"{room} does not import {name}"


MADE_UP = """
| room | rooms it may import | packages it may import |
|---|---|---|
| `noise/` | – | `numpy`, (`ray`) |
| `sgd/kernels/` | `sgd/training/plan.py` | – |
| `sgd/training/` | `noise` | `torch` |
| `report/` | `sgd` | – |
| `__init__.py` | – | – |
"""


def _house(folder: Path, **files: str) -> Path:
    """A small source tree that obeys the made-up table, with some files of other content."""
    texts = {
        "__init__.py": "",
        "noise/__init__.py": "import math\nimport numpy.typing as npt\n",
        "sgd/kernels/__init__.py": "from tacit.sgd.training.plan import Plan\n",
        "sgd/training/__init__.py": "",
        "sgd/training/plan.py": "import torch\nfrom tacit import __version__, noise\n",
        "report/__init__.py": "def f():\n    from tacit.sgd.training.plan import Plan\n",
    }
    for name, text in (texts | files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def _wrong(folder: Path, page: str = MADE_UP) -> list[str]:
    rows = arrows.table(page)
    there = [room for room in arrows.rooms(folder) if room in rows]
    return arrows.wrong_rows(folder, rows) + [
        wrong for room in there for wrong in arrows.wrong_imports(folder, rows, room)
    ]


def test_a_house_that_obeys_its_table_is_right(tmp_path):
    assert _wrong(_house(tmp_path)) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("noise/exact.py", "import torch"),  # another package
        ("noise/exact.py", "import ray"),  # a package that it may only ask for by name
        ("noise/exact.py", "import importlib\nimportlib.import_module('torch')"),
        ("noise/exact.py", "from tacit.report import card"),  # a room below
        ("noise/exact.py", "from tacit import report"),
        ("noise/exact.py", "import tacit.report"),
        ("noise/exact.py", "def late():\n    from tacit.sgd import training"),
        ("noise/exact.py", "import tacit"),  # then every room could be reached
        ("sgd/kernels/grams.py", "import tacit.sgd.training.steps"),  # a file that the row does not name
        ("sgd/training/steps.py", "from tacit.sgd.kernels import grams"),
        ("sgd/training/steps.py", "from tacit.sgd import Training"),
        ("__init__.py", "from tacit.noise import exact"),
    ],
)
def test_a_wrong_import_is_found(file, line, tmp_path):
    (wrong,) = _wrong(_house(tmp_path, **{file: line}))
    assert wrong.startswith(f"{file} imports ")


def test_what_may_be_asked_for_by_name_is_asked_for_by_name(tmp_path):
    assert _wrong(_house(tmp_path, **{"noise/exact.py": "import importlib\nimportlib.import_module('ray')"})) == []


@pytest.mark.parametrize("room", ["attic/__init__.py", "sgd/attic/__init__.py", "sgd/attic.py", "attic.py"])
def test_a_room_without_a_row_is_found(room, tmp_path):
    (wrong,) = _wrong(_house(tmp_path, **{room: ""}))
    assert wrong == f"{room.removesuffix('/__init__.py')} is not in the table"


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("| `cellar/` | – | – |", "cellar is in the table and not in the tree of files"),
        ("| `cellar/` | `__init__.py` | – |", "cellar may import __init__.py, which does not stand above it"),
    ],
)
def test_a_row_that_is_wrong_is_found(row, wrong, tmp_path):
    page = MADE_UP.replace("| `__init__.py`", f"{row}\n| `__init__.py`")
    assert wrong in _wrong(_house(tmp_path), page)


@pytest.mark.parametrize("cell", ["numpy", "`numpy` `scipy`", "all of the above", ""])
def test_a_cell_in_another_form_is_refused(cell):
    with pytest.raises(ValueError, match="not a name in backquotes"):
        arrows.table(MADE_UP.replace("`torch`", cell))


def test_a_relative_import_is_refused(tmp_path):
    with pytest.raises(ValueError, match="relative import"):
        _wrong(_house(tmp_path, **{"noise/exact.py": "from . import keys"}))


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
