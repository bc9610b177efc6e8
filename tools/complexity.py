"""Which functions have many branches? ``python tools/complexity.py [FOLDER ...]``

A function counts one, and one more for each ``if``, loop, ``except``, ``assert``, ``case``, condition in an expression,
``and`` or ``or``, comprehension and filter of a comprehension, in the functions inside it too. Above ``LIMIT`` its
docstring must say why in a sentence that begins "Many branches:". A test reads this file.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIMIT = 20
REASON = "Many branches:"

Function = ast.FunctionDef | ast.AsyncFunctionDef
ONE = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert, ast.match_case)


@dataclass(frozen=True, order=True)
class Measured:
    """How many branches a function has, where it is, and whether its docstring says why."""

    complexity: int
    path: Path
    name: str
    line: int
    has_reason: bool


def complexity(function: Function) -> int:
    """One more than the number of branches.

    >>> complexity(ast.parse("def f(x):\\n    return [y for y in x if y > 0 and y < 9]").body[0])
    4
    """
    count = 1
    for node in (node for statement in function.body for node in ast.walk(statement)):
        match node:
            case ast.comprehension(ifs=filters):
                count += 1 + len(filters)
            case ast.BoolOp(values=values):
                count += len(values) - 1
            case _ if isinstance(node, ONE):
                count += 1
    return count


def measured(folder: Path) -> Iterator[Measured]:
    """Every function below a folder."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Function):
                has_reason = REASON in (ast.get_docstring(node) or "")
                yield Measured(complexity(node), path, node.name, node.lineno, has_reason)


def unexplained(*folders: Path) -> list[Measured]:
    """Functions above the limit whose docstring gives no reason, the worst first."""
    found = [one for folder in folders for one in measured(folder) if one.complexity > LIMIT and not one.has_reason]
    return sorted(found, reverse=True)


def main(argv: list[str]) -> int:
    """Print them; the exit status is 1 where there are some."""
    root = Path(__file__).parents[1]
    folders = [Path(name) for name in argv] or [root / "src" / "tacit", root / "experiments"]
    found = unexplained(*folders)
    for one in found:
        print(f"{one.complexity:4} {one.path}:{one.line} {one.name}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
