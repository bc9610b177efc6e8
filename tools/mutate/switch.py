"""How can one process hold every mutant? Each changed place asks a switch which version to run.

The copy of the tree holds ``(new if _mutant_on(17) else old)`` for ``old``. So all mutants are imported once, a fork
turns one of them on, and a test that asked switch 17 is a test that runs mutant 17. A process that a test starts reads
the switch from its environment and writes down what it asked.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from pathlib import Path

from tools.mutate.rules import ROOT, Mutant

#: The module of the switch, which lies beside tacit in the copy.
SWITCH = '''
"""Which mutant is on, and which were asked for."""
import atexit, os

on = int(os.environ.get("MUTANT_ON", "-1"))
asked = set()


def is_on(number):
    asked.add(number)
    return number == on


if "MUTANT_ASKED" in os.environ:

    def _write(path=os.environ["MUTANT_ASKED"], process=os.getpid()):
        if os.getpid() == process:
            with open(path, "a") as file:
                file.write("".join(f"{number}\\n" for number in asked))

    atexit.register(_write)
'''


def switched(source: str, mutants: dict[int, Mutant]) -> str:
    """A file that holds its mutants behind switches.

    Args:
        source: The text of the file.
        mutants: Its mutants by their numbers.

    Returns:
        The text with the switches.

    >>> from tools.mutate.rules import mutants_in
    >>> text = "def f(sigma):\\n    return 2 * sigma\\n"
    >>> print(switched(text, dict(enumerate(mutants_in(text, "src/tacit/a/b.py")))))
    from mutant_switch import is_on as _mutant_on
    def f(sigma):
        return ((sigma) if _mutant_on(0) else 2 * sigma)
    """
    ordered = sorted(mutants.items(), key=lambda one: (one[1].begin, -one[1].end))

    def render(begin: int, end: int, inside: list[tuple[int, Mutant]]) -> str:
        text, at = "", begin
        while inside:
            (number, one), *inside = inside
            nested = [other for other in inside if other[1].begin < one.end]
            inside = inside[len(nested) :]
            old = render(one.begin, one.end, nested)
            text += source[at : one.begin]
            if one.statement:
                indent = " " * (one.begin - source.rfind("\n", 0, one.begin) - 1)
                if any(other.statement and other.begin == one.begin for _, other in nested):
                    old = old.replace("\n", "\n    ")  # two mutants of one statement: its switch is an inner block
                text += f"if _mutant_on({number}):\n{indent}    {one.new}\n{indent}else:\n{indent}    {old}"
            else:
                if ":=" in old:  # which an expression may hold in parentheses only
                    old = f"({old})"
                text += f"({one.new} if _mutant_on({number}) else {old})"
            at = one.end
        return text + source[at:end]

    first = 0
    for place, node in enumerate(ast.parse(source).body):
        docstring = place == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            first = node.end_lineno or 0
    start = sum(len(line) for line in source.splitlines(keepends=True)[:first])
    body = render(start, len(source), ordered)
    return f"{source[:start]}from mutant_switch import is_on as _mutant_on\n{body}"


def make_tree(target: Path, mutants: list[Mutant]) -> Path:
    """Copy what git knows of the working tree, changed or not, with the mutants behind switches.

    Args:
        target: The folder. What lies there and is right stays, so that it need not be compiled anew.
        mutants: The mutants; the number of a switch is the place in this list.

    Returns:
        The folder.
    """
    found = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    names = [name for name in found.decode().split("\0") if name and (ROOT / name).is_file()]
    by_file: dict[str, dict[int, Mutant]] = {}
    for number, one in enumerate(mutants):
        by_file.setdefault(one.path, {})[number] = one
    for name in names:
        data = (ROOT / name).read_bytes()
        if name in by_file:
            data = switched(data.decode(), by_file[name]).encode()
        _write(target / name, data)
    _write(target / "src" / "mutant_switch.py", SWITCH.encode())
    here = {*names, "src/mutant_switch.py"}
    for folder, inner, files in os.walk(target):
        inner[:] = [name for name in inner if name not in ("__pycache__", ".venv")]
        for file in files:
            if (Path(folder) / file).relative_to(target).as_posix() not in here:
                (Path(folder) / file).unlink()
    if not (target / ".venv").exists() and (ROOT / ".venv").exists():
        (target / ".venv").symlink_to(ROOT / ".venv")
    return target


def _write(path: Path, data: bytes) -> None:
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(path, ignore_errors=True)
        path.write_bytes(data)
