"""The code can be read: one class for each name, few branches in a function or a reason for many, short files."""

from __future__ import annotations

import ast
import collections
from pathlib import Path

from tools.complexity import complexity, unexplained

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tacit"
CODE = [path for name in ("src/tacit", "experiments", "tools") for path in sorted((ROOT / name).rglob("*.py"))]


def _public_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = collections.defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(ROOT).as_posix())
    return found


def test_no_two_public_classes_have_one_name():
    assert not {name: where for name, where in _public_classes().items() if len(where) > 1}


def test_a_function_with_many_branches_says_why():
    found = unexplained(SOURCE, ROOT / "experiments")
    assert not [f"{one.path.relative_to(ROOT)} {one.name} {one.complexity}" for one in found]


def test_branches_are_counted_as_documented():
    body = """
def f(x):
    '''Text.'''
    if x and x or x:
        assert x
    for y in [z for z in x if z if not z]:
        try:
            pass
        except ValueError:
            pass
    while x:
        def g():
            return 1 if x else 2
    match x:
        case 1:
            pass
"""
    (function,) = ast.parse(body).body
    assert complexity(function) == 1 + 1 + 2 + 1 + 1 + 3 + 1 + 1 + 1 + 1


def test_every_module_says_what_question_it_answers():
    for path in CODE:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path.relative_to(ROOT)


def test_files_are_small_enough_to_read():
    for path in [*CODE, *(ROOT / "tests").rglob("*.py")]:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 700, path.relative_to(ROOT)
