"""Which tests run a mutant? Keeps, for every test file, which mutants each of its tests asked for."""

from __future__ import annotations

import ast
import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from tools.mutate.rules import ROOT, Mutant
from tools.mutate.rules import files as source_files

#: Pages, examples and experiments are whole programs, in processes of their own, and Ray's take half a minute each.
LEFT_OUT = ("tests/package/", "tests/experiments/", "tests/scale/test_ray", "tests/datasets/")
#: The folders of tests of the parts of sgd, and of rooms without a folder of their own.
FOLDERS = {
    "sgd/training": ("training", "sgd"),
    "sgd/hooked": ("opacus", "integrations", "sgd"),
    "sgd/sharding": ("scale", "sgd"),
    "sgd": ("sgd", "training"),
    "cluster": ("scale",),
    "runs": ("runs", "training", "cli"),
}


def folders(mutant: Mutant) -> tuple[str, ...]:
    """The folders of tests of a mutant's room.

    Args:
        mutant: Which.

    Returns:
        Their names.
    """
    part = "/".join(mutant.path.split("/")[2:4])
    return FOLDERS.get(part) or FOLDERS.get(mutant.room) or (mutant.room,)


def test_files() -> list[str]:
    """The files whose tests judge mutants: those of the rooms, and the source for its examples.

    Returns:
        Paths from the root.
    """
    tests = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    examples = [path.relative_to(ROOT).as_posix() for path in source_files() if ">>> " in path.read_text("utf-8")]
    return [name for name in tests if not name.startswith(LEFT_OUT)] + examples


def beside(mutant: Mutant) -> tuple[str, ...]:
    """Where the tests nearest to a mutant are.

    Args:
        mutant: Which.

    Returns:
        Beginnings of paths: the folders of its room's tests, and its own file for the examples in it.
    """
    return (*(f"tests/{folder}/" for folder in folders(mutant)), mutant.path)


@cache
def sha(file: str) -> str:
    """A hash of a file.

    Args:
        file: Its path from the root.

    Returns:
        Twelve characters; none where there is no such file.
    """
    path = ROOT / file
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.exists() else ""


def digest(test: str, text: str | None = None) -> str:
    """A hash of a test: of its file without the other tests in it. Of an example in the source, of the whole file.

    Args:
        test: Its name.
        text: The text of its file; None reads it.

    Returns:
        Twelve characters; none where there is no such file.
    """
    file, _, name = test.partition("::")
    if text is None:
        text = _text(file)
    if not text or not file.startswith("tests/"):
        return hashlib.sha256(text.encode()).hexdigest()[:12] if text else ""
    parts = _parts(text)
    kept = {own for own in parts if not own.startswith(("test_", "Test"))} | {name.split("::")[0].split("[")[0]}
    return hashlib.sha256("\n".join(parts[own] for own in sorted(kept & parts.keys())).encode()).hexdigest()[:12]


@cache
def _text(file: str) -> str:
    path = ROOT / file
    return path.read_text(encoding="utf-8") if path.exists() else ""


@lru_cache(maxsize=64)
def _parts(text: str) -> dict[str, str]:
    """The functions and classes of a file by their names, and the rest of it under no name; without comments."""
    parts, rest = dict[str, str](), []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            parts[node.name] = parts.get(node.name, "") + ast.unparse(node)
        else:
            rest.append(ast.unparse(node))
    return parts | {"": "\n".join(rest)}


def _function(name: str) -> str:
    return name.rsplit(":", 2)[0]


@dataclass
class Record:
    """What is known of each test.

    Attributes:
        folder: Where it is kept, a file for each test file.
        seconds: Of processor time of each test that passed.
        size: How many mutants each test asked for.
        ran: The tests that asked for each mutant.
        knew: For each test file the mutants that there were when it was recorded.
    """

    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)
    size: dict[str, int] = field(default_factory=dict)
    ran: dict[str, set[str]] = field(default_factory=dict)
    knew: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sets: dict[str, frozenset[str]] = {}
        for path in sorted(self.folder.glob("*.json")):
            self._take(json.loads(path.read_text(encoding="utf-8")))

    def _take(self, found: dict[str, Any]) -> None:
        if found["sha"] != sha(found["file"]):
            return
        if found["knew"] not in self._sets:
            text = (self.folder / f"{found['knew']}.ids").read_text(encoding="utf-8")
            self._sets[found["knew"]] = frozenset(text.split("\n"))
        self.knew[found["file"]] = self._sets[found["knew"]]
        for test, entry in found["tests"].items():
            if entry["outcome"] == "passed":
                self.seconds[test], self.size[test] = entry["seconds"], len(entry["asked"])
                for name in entry["asked"]:
                    self.ran.setdefault(name, set()).add(test)

    def stale(self, file: str) -> bool:
        """Whether a test file has no record, or changed since.

        Args:
            file: Its path from the root.

        Returns:
            Whether it must be recorded.
        """
        return file not in self.knew

    def add(self, file: str, noted: dict[str, dict[str, Any]], mutants: list[Mutant]) -> None:
        """Keep what the tests of a file asked for.

        Args:
            file: Its path from the root.
            noted: As :mod:`tools.mutate.forks` notes it.
            mutants: All mutants of the tree, by number.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        names = "\n".join(one.id for one in mutants)
        knew = hashlib.sha256(names.encode()).hexdigest()[:12]
        (self.folder / f"{knew}.ids").write_text(names, encoding="utf-8")
        tests = {
            test: entry | {"asked": [mutants[number].id for number in entry["asked"]]} for test, entry in noted.items()
        }
        found = {"file": file, "sha": sha(file), "knew": knew, "tests": tests}
        (self.folder / (file.replace("/", "+") + ".json")).write_text(json.dumps(found), encoding="utf-8")
        self._take(found)

    def tests(self, mutant: Mutant) -> set[str]:
        """The tests that run a mutant.

        Args:
            mutant: Which.

        Returns:
            Those that asked for it; of test files that were recorded before there was this mutant, those that asked for
            another one in its function, or in its file where there is none.
        """
        found = set(self.ran.get(mutant.id, ()))
        older = {file for file, known in self.knew.items() if mutant.id not in known}
        if older:
            function = _function(mutant.id)
            file = mutant.id.split(":")[0] + ":"
            near = {one: tests for one, tests in self.ran.items() if one.startswith(file)}
            same = {one: tests for one, tests in near.items() if _function(one) == function}
            for tests in (same or near).values():
                found.update(test for test in tests if test.split("::")[0] in older)
        return found

    def candidates(self, mutant: Mutant) -> list[str]:
        """The tests to run for a mutant, in their order.

        Args:
            mutant: Which.

        Returns:
            Fast tests that run little else first, those of its room before others; of the many cases of one test
            function a few before the rest.
        """
        own = (*beside(mutant), "tests/catalogue/")

        def cost(test: str) -> float:
            return (0.02 + self.seconds[test]) * (1 + self.size[test]) ** 0.5 * (1 if test.startswith(own) else 3)

        cases: Counter[str] = Counter()
        ordered = []
        for test in sorted(self.tests(mutant), key=lambda one: (cost(one), one)):
            cases[test.split("[")[0]] += 1
            number = cases[test.split("[")[0]]
            ordered.append(((number > 2) + (number > 8), cost(test), test))
        return [test for *_, test in sorted(ordered)]
