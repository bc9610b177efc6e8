"""How are hundreds of mutants judged in minutes? In one process that has collected the tests and forks for each mutant.

A mutant lies inside a function. So a fork need not import anything anew: it compiles the changed text and puts the new
code into the function object that everybody already holds. What that cannot reach (code that runs when a module is
imported, tests that start processes of their own) is left to :mod:`tools.mutate.judge`, which changes the file.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tools.mutate import forks
from tools.mutate.rules import Mutant


def _codes(code: types.CodeType) -> Iterable[types.CodeType]:
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield one
            yield from _codes(one)


Functions = dict[str, list[types.FunctionType]]


def functions(tree: Path) -> Functions:
    """Every function of tacit that there is in this process, by file.

    Args:
        tree: The copy of the tree that tacit was imported from.

    Returns:
        Functions by the path of their file.
    """
    found: Functions = {}
    for one in gc.get_objects():
        if isinstance(one, types.FunctionType) and one.__code__.co_filename.startswith(str(tree)):
            found.setdefault(one.__code__.co_filename, []).append(one)
    return found


def put(mutant: Mutant, tree: Path, known: Functions) -> bool:
    """Replace the code of the changed function in this process.

    Args:
        mutant: Which.
        tree: The copy of the tree that tacit was imported from.
        known: What :func:`functions` found.

    Returns:
        Whether any function now runs other code.
    """
    path = tree / mutant.path
    text = path.read_text(encoding="utf-8")
    before = {(one.co_qualname, one.co_firstlineno): one for one in _codes(compile(text, str(path), "exec"))}
    after = {
        (one.co_qualname, one.co_firstlineno): one for one in _codes(compile(mutant.apply(text), str(path), "exec"))
    }
    changed = {key: after[key] for key, one in before.items() if key in after and one != after[key]}
    done = False
    for one in known.get(str(path), []):
        new = changed.get((one.__code__.co_qualname, one.__code__.co_firstlineno))
        if new is not None and new.co_freevars == one.__code__.co_freevars:
            one.__code__ = new
            done = True
    return done


class Loop:
    """A pytest plugin that runs, in place of the tests once, for each mutant its tests until one fails.

    ``work`` has a mutant (or none, for the source as it is), its tests in order, and what to do with the outcome: a
    word, the tests that failed, and the seconds.
    """

    def __init__(
        self,
        work: Iterable[tuple[Mutant | None, list[str], Callable[[str, list[str], float], None]]],
        tree: Path,
        seconds: dict[str, float],
        until: float,
    ) -> None:
        self.work, self.tree, self.seconds, self.until = work, tree, seconds, until

    def pytest_runtestloop(self, session: Any) -> bool:
        """Fork for each mutant."""
        items = {item.nodeid: item for item in session.items}
        known = functions(self.tree)
        gc.collect()
        gc.freeze()
        for mutant, tests, done in self.work:
            if time.monotonic() > self.until:
                break
            began = time.monotonic()
            some = [items[test] for test in tests if test in items]
            outcome, lines = self._forked(mutant, some, known)
            while mutant is not None and outcome == "caught" and lines[0] != some[0].nodeid:
                # The tests before may be what made it fail: it must fail alone.
                if self._forked(mutant, [items[lines[0]]], known)[0] == "caught":
                    break
                some = some[[item.nodeid for item in some].index(lines[0]) + 1 :]
                outcome, lines = self._forked(mutant, some, known) if some else ("survived", [])
            done(outcome if tests else "uncovered", lines, time.monotonic() - began)
        return True

    def _forked(self, mutant: Mutant | None, items: list[Any], known: Functions) -> tuple[str, list[str]]:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._child(mutant, items, writing, known)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as told:
            lines = told.read().splitlines()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return {0: "survived", 1: "caught", 3: "unpatched", -signal.SIGALRM: "timeout"}.get(status, "died"), lines

    def _child(self, mutant: Mutant | None, items: list[Any], writing: int, known: Functions) -> None:
        from _pytest.runner import runtestprotocol

        status = 70
        try:
            if mutant is not None and not put(mutant, self.tree, known):
                status = 3
                return
            status = 0
            for place, item in enumerate(items):
                after = items[place + 1] if place + 1 < len(items) else None
                signal.alarm(int(15 + 10 * self.seconds.get(item.nodeid, 5.0)))
                if any(report.failed for report in runtestprotocol(item, nextitem=after, log=False)):
                    os.write(writing, f"{item.nodeid}\n".encode())
                    status = 1
                    if mutant is not None:
                        return
        finally:
            signal.alarm(0)
            os._exit(status)


def session(
    files: list[str],
    work: Iterable[tuple[Mutant | None, list[str], Callable[[str, list[str], float], None]]],
    tree: Path,
    seconds: dict[str, float],
    until: float,
) -> int:
    """Collect the tests of these files and do the work with them.

    Args:
        files: Test files, from the root.
        work: As :class:`Loop` takes it.
        tree: The copy of the tree.
        seconds: How long each test takes.
        until: Begin nothing after this moment.

    Returns:
        pytest's exit code.
    """
    import pytest

    options = [
        "--rootdir",
        str(tree),
        "-c",
        str(tree / "pyproject.toml"),
        "-W",
        "ignore",
        "--continue-on-collection-errors",
    ]
    options += ["-m", "not slow and not gpu and not postgres"]
    return int(pytest.main([*forks.PYTEST, *options, *files], plugins=[Loop(work, tree, seconds, until)]))


def write(path: Path, **entry: Any) -> None:
    """Add a result to the file of results.

    Args:
        path: The file.
        entry: The result.
    """
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry, ensure_ascii=False) + "\n")
