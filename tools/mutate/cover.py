"""Which tests run a line? Records, for every test file, the lines of each function that each of its tests ran.

Lines are counted from the first line of their function, so that a change elsewhere in the file leaves the record valid.
"""

from __future__ import annotations

import ast
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tools.mutate.forks import PYTEST, ROOT, Work

MODULE = ""  # the name of what stands outside every function


@dataclass(frozen=True)
class Span:
    """A function and its lines.

    Attributes:
        name: Its name with the classes and functions around it, or nothing for the module's own lines.
        first: Its first line, decorators included.
        last: Its last line.
        digest: A hash of its text.
    """

    name: str
    first: int
    last: int
    digest: str


@cache
def spans(path: Path) -> list[Span]:
    """The outermost functions and methods of a file, and the module's own lines as the last entry.

    Args:
        path: A Python file.

    Returns:
        One entry for each function that stands in a module or a class.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = []

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                last = child.end_lineno or child.lineno
                digest = hashlib.sha256("\n".join(lines[first - 1 : last]).encode()).hexdigest()[:12]
                found.append(Span(".".join((*names, child.name)), first, last, digest))
            elif isinstance(child, ast.ClassDef):
                visit(child, (*names, child.name))
            elif not isinstance(child, ast.expr):
                visit(child, names)

    visit(ast.parse(text), ())
    found.append(Span(MODULE, 1, len(lines), hashlib.sha256(text.encode()).hexdigest()[:12]))
    return found


def span_of(path: Path, line: int) -> Span:
    """The function that holds a line.

    Args:
        path: A Python file.
        line: A line of it.

    Returns:
        Its outermost function, or the module where the line stands in none.
    """
    return next(one for one in spans(path) if one.first <= line <= one.last)


class Recorder:
    """A pytest plugin that writes what each test ran into ``target``, one JSON file for each test file."""

    def __init__(self, tree: Path, target: Path, seconds: float) -> None:
        import coverage

        self.tree, self.target, self.until = tree, target, time.monotonic() + seconds
        self.coverage = coverage.Coverage(data_file=None, source=[str(tree / "src" / "tacit")], config_file=False)
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.stopped = False
        self.coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self.coverage.switch_context(nodeid)

    def pytest_runtest_teardown(self, item: Any, nextitem: Any) -> None:
        """A test ended; where the time is over it was the last."""
        if time.monotonic() > self.until:
            self.stopped = True
            item.session.shouldstop = "the time for recording this file is over"

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A phase of a test ended."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the record."""
        self.coverage.stop()
        data = self.coverage.get_data()
        tests: dict[str, dict[str, Any]] = {
            name: {"seconds": round(seconds, 2), "ran": {}}
            for name, seconds in self.seconds.items()
            if name not in self.failed
        }
        digests = {}
        for file in data.measured_files():
            path = Path(file)
            name = path.relative_to(self.tree).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                span = span_of(path, line)
                key = f"{name}::{span.name}"
                digests[key] = span.digest
                for context in contexts:
                    if context in tests:
                        tests[context]["ran"].setdefault(key, []).append(line - span.first)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.target.write_text(json.dumps({"digests": digests, "tests": tests}), encoding="utf-8")


def _slug(test: str) -> str:
    return test.replace("/", "+") + ".json"


def test_files() -> list[str]:
    """The files whose tests are recorded: those of the rooms, and the doctests of the source.

    Returns:
        Paths from the root. Pages, examples and experiments run whole programs, mostly in processes of their own, and
        the programs of Ray take half a minute each: they are left out.
    """
    left_out = ("tests/package/", "tests/experiments/", "tests/scale/test_ray", "tests/datasets/test_download")
    tests = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    source = sorted((ROOT / "src" / "tacit").rglob("*.py"))
    doctests = [path.relative_to(ROOT).as_posix() for path in source if ">>> " in path.read_text(encoding="utf-8")]
    return [name for name in tests if not name.startswith(left_out)] + doctests


def stale(folder: Path, rooms: list[str] | None = None) -> list[str]:
    """The test files without a record, or changed since it was made.

    Args:
        folder: Where the records are.
        rooms: Of these rooms only.

    Returns:
        Paths from the root.
    """
    found = []
    for test in test_files():
        if rooms and not any(f"/{room}/" in test for room in rooms):
            continue
        record = folder / _slug(test)
        mark = record.with_suffix(".sha")
        now = hashlib.sha256((ROOT / test).read_bytes()).hexdigest()
        if not mark.exists() or mark.read_text() != now:
            found.append(test)
    return found


def record(tests: list[str], folder: Path, seconds: float = 60.0) -> Iterator[Work]:
    """The work of recording, for ``forks.run_all``.

    Args:
        tests: Test files.
        folder: Where the records go.
        seconds: After so many seconds in a file no further test of it is recorded.

    Yields:
        One piece of work for each file.
    """
    for test in tests:

        def prepare(tree: Path, test: str = test) -> Callable[[], int]:
            digest = hashlib.sha256((tree / test).read_bytes()).hexdigest()

            def work() -> int:
                import pytest

                target = folder / _slug(test)
                plugin = Recorder(tree, target, seconds)
                options = [
                    "-q",
                    "-m",
                    "not slow and not gpu and not postgres",
                    "-p",
                    "no:cacheprovider",
                    "-p",
                    "no:cov",
                    "-p",
                    "no:xdist",
                ]
                options += ["-p", "no:randomly", "--rootdir", str(tree), "-c", str(tree / "pyproject.toml")]
                code = int(pytest.main([*PYTEST, *options, test], plugins=[plugin]))
                if code in (0, 1, 5) or plugin.stopped:
                    target.with_suffix(".sha").write_text(digest)
                return code

            return work

        yield test, prepare, 10 * seconds


@dataclass
class Map:
    """Which tests ran a line, and how long each takes.

    Attributes:
        seconds: Of each test.
        ran: For each function, for each line counted from its first, the tests.
        digests: A hash of each function's text when it was recorded.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    ran: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def tests(self, path: Path, line: int) -> list[str]:
        """The tests that run a line.

        Args:
            path: A file of the source in this tree.
            line: The line.

        Returns:
            Those that run the line; those that run its function if its text changed since they were recorded; those
            that run anything in the file for a line outside every function.
        """
        name = path.relative_to(ROOT).as_posix()
        span = span_of(path, line)
        key = f"{name}::{span.name}"
        if span.name == MODULE:
            found = {
                one
                for other, ran in self.ran.items()
                if other.startswith(name + "::")
                for by in ran.values()
                for one in by
            }
            return sorted(found)
        ran = self.ran.get(key, {})
        if self.digests.get(key) == span.digest:
            return ran.get(line - span.first, [])
        return sorted({one for by in ran.values() for one in by})


def load(folder: Path) -> Map:
    """Read the records.

    Args:
        folder: Where they are.

    Returns:
        All of them together.
    """
    known = Map()
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        known.digests.update(found["digests"])
        for test, entry in found["tests"].items():
            known.seconds[test] = entry["seconds"]
            for key, lines in entry["ran"].items():
                by = known.ran.setdefault(key, {})
                for line in lines:
                    by.setdefault(line, []).append(test)
    return known
