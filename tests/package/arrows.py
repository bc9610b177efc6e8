"""The rules that docs/architecture.md states, read from its tree and its table, and what in a source tree breaks them.

The table has one row for each room: a folder of ``src/tacit``, a folder or file of ``sgd/``, or a file of the package.
A cell lists names in backquotes with commas between them, or a dash for none. A package in parentheses is one that the
room may ask for by its name where it is needed (``import_module``, ``optional``) and may not import. What is said of
``sgd/gradients/`` holds for all that is in it.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Rooms whose folders and files are rooms of their own.
DIVIDED = ("sgd",)
HEADER = ["room", "rooms it may import", "packages it may import"]
NAME = re.compile(r"`([\w./]+)`")


@dataclass(frozen=True)
class Row:
    """What one room may import."""

    rooms: tuple[str, ...]
    packages: tuple[str, ...]
    asked: tuple[str, ...]


def _names(cell: str) -> tuple[str, ...]:
    """The names of a cell, in the one form that is allowed."""
    if cell == "–":
        return ()
    names = tuple(part.strip() for part in cell.split(","))
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} in docs/architecture.md is not a name in backquotes")
    return tuple(name.strip("`").rstrip("/") for name in names)


def table(page: str) -> dict[str, Row]:
    """The rows of the table, by room, in their order."""
    found: dict[str, Row] = {}
    lines = iter(page.splitlines())
    for line in lines:
        if [cell.strip() for cell in line.strip("|").split("|")] == HEADER:
            next(lines)
            break
    else:
        raise ValueError(f"docs/architecture.md has no table with the columns {HEADER}")
    for line in lines:
        if not line.startswith("|"):
            break
        room, rooms, packages = (cell.strip() for cell in line.strip("|").split("|"))
        (name,) = _names(room)
        if name in found:
            raise ValueError(f"{name} has two rows in docs/architecture.md")
        listed = packages.split(", ")
        plain = [cell for cell in listed if not cell.startswith("(")]
        asked = [cell.removeprefix("(").removesuffix(")") for cell in listed if cell.startswith("(")]
        found[name] = Row(_names(rooms), _names(", ".join(plain) if plain else "–"), _names(", ".join(asked) or "–"))
    return found


def tree(page: str) -> dict[str, str]:
    """The tree of the page: each folder and file with its sentence."""
    block = re.search(r"^src/tacit/\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    if block is None:
        raise ValueError("docs/architecture.md has no tree that begins with src/tacit/")
    found: dict[str, str] = {}
    parent = ""
    for line in block[1].splitlines():
        entry = re.fullmatch(r"( {2}| {4})([\w.]+)/? +(\S.*)", line)
        if entry is None:
            continue  # the sentence above goes on, or the tree of another folder begins
        indent, name, sentence = entry.groups()
        if indent == "  ":
            parent = name
        found[name if indent == "  " else f"{parent}/{name}"] = sentence
    return found


def rooms(source: Path) -> list[str]:
    """Every room of a source tree: folders and files, those of a divided room with their parent's name before."""
    found = []
    for folder in (source, *(source / name for name in DIVIDED)):
        for path in sorted(folder.glob("*")):
            if (path.is_dir() and any(path.rglob("*.py"))) or path.suffix == ".py":
                name = path.relative_to(source).as_posix()
                if name not in DIVIDED:
                    found.append(name)
    return found


def room_of(name: str, source: Path) -> str:
    """The room of a module of tacit, given its name without ``tacit.``: a name that a room exports is the room's own.

    What ``sgd/__init__.py`` exports is in no room of ``sgd/``: it is ``sgd`` itself.
    """
    first, *more = name.split(".")
    if first not in DIVIDED:
        return first if (source / first).is_dir() else f"{first}.py"
    inside = source / first / (more[0] if more else "__init__")
    if inside.is_dir():
        return f"{first}/{more[0]}"
    return f"{first}/{inside.name}.py" if more and inside.with_suffix(".py").exists() else f"{first}/__init__.py"


@functools.cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """What a file imports, wherever in the file it does so, and whether it asks for it by a literal name."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, False) for alias in names)
            case ast.ImportFrom(module=None) | ast.ImportFrom(level=1 | 2 | 3 | 4):
                raise ValueError(f"{path}: a relative import; write tacit. in full")
            case ast.ImportFrom(module=str(module), names=names):
                yield from ((f"{module}.{alias.name}", False) for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "optional") | ast.Attribute(attr="import_module" | "optional"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module, True


def _may(allowed: tuple[str, ...], other: str, module: str) -> bool:
    """Whether a row allows a module: by its room, by the divided room it is in, or by the file."""
    divided = other.partition("/")[0]
    parts = module.split(".")
    files = {"/".join(parts[:count]) + ".py" for count in range(1, len(parts) + 1)}
    return other in allowed or (divided in DIVIDED and divided in allowed) or bool(files & set(allowed))


def wrong_imports(source: Path, rows: dict[str, Row], room: str) -> list[str]:
    """What a room imports and may not, one sentence each."""
    own = source / room
    found = []
    for path in sorted(own.rglob("*.py")) if own.is_dir() else [own]:
        for name, asked in imports(path):
            top, _, module = name.partition(".")
            where = f"{path.relative_to(source)} imports {name}"
            if top != "tacit":
                allowed = rows[room].packages + (rows[room].asked if asked else ())
                if top not in sys.stdlib_module_names and top not in allowed:
                    found.append(where)
            elif not module:
                found.append(f"{where}: name the room")
            elif module != "__version__":
                other = room_of(module, source)
                if other != room and not _may(rows[room].rooms, other, module):
                    found.append(where)
    return found


def wrong_rows(source: Path, rows: dict[str, Row]) -> list[str]:
    """Rooms without a row, rows without a room, and arrows of the table that do not point up.

    An arrow may point down, inside a divided room, only to one file that it names.
    """
    there = rooms(source)
    found = [f"{room} is not in the table" for room in there if room not in rows]
    found += [f"{room} is in the table and not in the tree of files" for room in rows if room not in there]
    order = list(rows)
    for place, (room, row) in enumerate(rows.items()):
        for other in row.rooms:
            above = order[:place]
            known = other in above or (other in DIVIDED and any(name.startswith(f"{other}/") for name in above))
            named = other.partition("/")[0] in DIVIDED and other.endswith(".py") and (source / other).is_file()
            if not known and not named:
                found.append(f"{room} may import {other}, which does not stand above it")
    return found
