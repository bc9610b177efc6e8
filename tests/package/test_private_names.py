"""A room reads no private name of another room: what others need has a public name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "tacit"

#: Private names of other people's objects that happen to be ours too.
FOREIGN = {"_version": "of torch.Tensor", "_fingerprint": "of datasets.Dataset"}


def _room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0]


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _defined(nodes: list[ast.AST]) -> Iterator[str]:
    """Private names that a file makes: functions, classes, variables, attributes of its own objects."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _own(node):
            yield node.attr


def _own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _read(nodes: list[ast.AST]) -> Iterator[str]:
    """Private names that a file reads from something else: imported, as an attribute, or by their text."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacit"):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and not _own(node):
            yield node.attr
        elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.func, ast.Name):
            # getattr(training, "_average"), and what patches: replaced(Training, "_release", ...)
            named = node.args[1]
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                yield named.value


#: Mutants break what they name, on purpose; where a name is gone, ``replaced`` says so.
MUTANTS = SOURCE / "selftest" / "mutants"


def _reads_of_other_rooms(files: Iterable[tuple[Path, str]]) -> set[tuple[str, str]]:
    made: dict[str, set[str]] = defaultdict(set)
    read: list[tuple[Path, str]] = []
    for path, text in files:  # a tree at a time: to keep them all is slow
        nodes = list(ast.walk(ast.parse(text)))
        made[_room(path)] |= {name for name in _defined(nodes) if _private(name)}
        if MUTANTS not in path.parents:
            read += [(path, name) for name in _read(nodes) if _private(name)]
    everywhere = set().union(*made.values())
    return {
        (str(path.relative_to(SOURCE)), name)
        for path, name in read
        if name in everywhere and name not in made[_room(path)] and name not in FOREIGN
    }


def test_no_room_reads_a_private_name_of_another() -> None:
    files = ((path, path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py"))
    assert sorted(_reads_of_other_rooms(files)) == [], "give it a public name in its own room"


def test_such_reads_are_found_however_they_are_written() -> None:
    home = "class Training:\n    def _release(self): self._sum = 1\ndef _plain(x): return x\n"
    other = "from tacit.sgd.a import _plain\nx._release()\ngetattr(x, '_sum')\nx._torch_owns_this()\n"
    files = [(SOURCE / "sgd" / "a.py", home), (SOURCE / "audit" / "b.py", other)]
    assert _reads_of_other_rooms(files) == {("audit/b.py", name) for name in ("_plain", "_release", "_sum")}
