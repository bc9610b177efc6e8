"""Did a test notice? Runs the tests that cover a mutant, the fastest first, and keeps what came out.

A mutant is *caught* by the first test that fails, or by taking much longer than the tests take (``timeout``). It
*survived* if every test that runs its line passes, and is *uncovered* if there is none. At the end the tests that
caught something are run over the source as it is: what is caught by a test that fails there as well was not caught.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tools.mutate import cover, forks, quick
from tools.mutate.rules import Mutant

EXPLAINED = Path(__file__).with_name("explained.toml")
CAUGHT_BY = Path(__file__).with_name("caught.json")
CAUGHT = ("caught", "timeout")
#: The recorded seconds of tests that are run for one mutant at most.
LONGEST = 60.0
MARK = "THE FIRST FAILURE: "


def told(what: object, code: int, seconds: float, tail: str) -> None:
    """Print that a piece of work is done.

    Args:
        what: Which.
        code: Its exit code.
        seconds: How long it took.
        tail: Its last output.
    """
    last = tail.strip().splitlines()[-1:] or [""]
    print(f"{what}: {last[0]} ({seconds:.0f} s{'' if code in (0, 1, 5) else f', exit code {code}'})", flush=True)


def sample(mutants: list[Mutant], size: int, seed: str) -> list[Mutant]:
    """Some of the mutants, the same for the same seed whatever else there is.

    Args:
        mutants: All of them.
        size: How many.
        seed: Any text.

    Returns:
        Those with the smallest hashes of seed and id.
    """
    return sorted(mutants, key=lambda one: hashlib.sha256(f"{seed} {one.id}".encode()).digest())[:size]


@cache
def explained() -> dict[str, str]:
    """Why a mutant that survives breaks nothing.

    Returns:
        A sentence for each id.
    """
    return tomllib.loads(EXPLAINED.read_text(encoding="utf-8")) if EXPLAINED.exists() else {}


class Results:
    """What is known of each mutant, in a file of one line each that is only added to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.of: dict[str, dict[str, Any]] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again; the last line about a mutant counts."""
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.of[entry["id"]] = entry

    def add(self, **entry: Any) -> None:
        """Keep a result.

        Args:
            entry: Its fields; ``id`` says of which mutant.
        """
        self.of[entry["id"]] = entry
        quick.write(self.path, **entry)


def folders(mutant: Mutant) -> tuple[str, ...]:
    """The folders of tests of a mutant's room.

    Args:
        mutant: Which.

    Returns:
        Their names.
    """
    if mutant.room != "sgd":
        return (mutant.room,)
    part = mutant.path.split("/")[3]
    return {"training": ("training",), "hooked": ("opacus", "integrations")}.get(part, ("sgd", "training"))


def covering(mutant: Mutant, known: cover.Map, longest: float = LONGEST) -> list[str]:
    """The tests to run for a mutant, in their order.

    Args:
        mutant: Which.
        known: The record.
        longest: How many seconds they may take together.

    Returns:
        Those that run its lines: first the tests of its room, the fastest first, and of the many cases of one test
        function a few before the others; as many as fit.
    """
    path = forks.ROOT / mutant.path
    found: set[str] = set()
    for line in mutant.lines:
        found.update(known.tests(path, line))
    own = tuple(f"tests/{folder}/" for folder in folders(mutant))
    cases: Counter[str] = Counter()
    ordered = []
    for test in sorted(found, key=lambda one: (known.seconds[one], one)):
        function = test.split("[")[0]
        cases[function] += 1
        near = test.startswith((*own, "tests/catalogue/")) or mutant.path in test
        ordered.append(
            (
                (cases[function] > 2) + (cases[function] > 8),
                not near,
                known.seconds[test] > 2.0,
                known.seconds[test],
                test,
            )
        )
    chosen, total = [], 0.0
    for *_, seconds, test in sorted(ordered):
        if total + seconds <= longest:
            chosen.append(test)
            total += seconds
    return chosen or [one[-1] for one in sorted(ordered)[:1]]


def _digest(mutant: Mutant) -> str:
    return cover.span_of(forks.ROOT / mutant.path, mutant.line).digest


@cache
def _file_digest(name: str) -> str:
    path = forks.ROOT / name
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _state(tests: list[str]) -> str:
    files = sorted({test.split("::")[0] for test in tests})
    return hashlib.sha256(json.dumps([sorted(tests), [_file_digest(one) for one in files]]).encode()).hexdigest()[:12]


class FirstFailure:
    """A pytest plugin that says which test failed, and ends the process where one takes far too long."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        signal.alarm(int(30 + 15 * self.seconds.get(nodeid, 20.0)))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A phase of a test ended."""
        if report.failed:
            print(f"\n{MARK}{report.nodeid}", flush=True)


def _pytest(tree: Path, tests: list[str], seconds: dict[str, float], *more: str) -> int:
    import pytest

    options = ["--rootdir", str(tree), "-c", str(tree / "pyproject.toml"), "--tb=line", "-W", "ignore", *more]
    return int(pytest.main([*forks.PYTEST, *options, *tests], plugins=[FirstFailure(seconds)]))


def _put(tree: Path, mutant: Mutant) -> None:
    """Make the mutant in a copy of the tree, after taking back the one before."""
    for clean in tree.glob(".changed-*"):
        name = clean.name.removeprefix(".changed-").replace("+", "/")
        (tree / name).write_bytes((forks.ROOT / name).read_bytes())
        clean.unlink()
    (tree / f".changed-{mutant.path.replace('/', '+')}").touch()
    text = (forks.ROOT / mutant.path).read_text(encoding="utf-8")
    (tree / mutant.path).write_text(mutant.apply(text), encoding="utf-8")


def _work(mutants: list[Mutant], known: cover.Map, until: float, longest: float) -> Iterator[forks.Work]:
    for mutant in mutants:
        if time.monotonic() > until:
            return
        tests = covering(mutant, known, longest)

        def prepare(tree: Path, mutant: Mutant = mutant, tests: list[str] = tests) -> Callable[[], int]:
            _put(tree, mutant)
            return lambda: _pytest(tree, tests, known.seconds, "-x")

        yield (mutant, tests), prepare, 60.0 + 8.0 * sum(known.seconds[one] for one in tests)


def run(
    mutants: list[Mutant],
    known: cover.Map,
    results: Results,
    trees: list[Path],
    seconds: float | None = None,
    again: bool = False,
    only_quick: bool = False,
    longest: float = LONGEST,
) -> None:
    """Judge the mutants that are not judged yet.

    Args:
        mutants: Which.
        known: Which tests run which lines.
        results: What is known already; added to.
        trees: Copies of the tree, one for each that runs at a time.
        seconds: Begin none after so many seconds.
        again: Judge those too that were judged before.
        only_quick: Leave out what can only be judged by changing a file.
        longest: How many seconds the tests of one mutant may take together.
    """
    todo = []
    for mutant in mutants:
        before = results.of.get(mutant.id)
        tests = covering(mutant, known, longest)
        same = before is not None and before["digest"] == _digest(mutant)
        if same and not again and _settled(before, tests):
            continue
        if not tests:
            results.add(
                id=mutant.id, outcome="uncovered", digest=_digest(mutant), tests=_state([]), test="", seconds=0.0
            )
            continue
        todo.append(mutant)
    print(f"{len(mutants)} mutants, {len(todo)} to judge", flush=True)
    until = time.monotonic() + (seconds or 1e9)
    todo = _quickly(todo, known, results, trees[0], until, longest)
    if only_quick:
        return
    print(f"{len(todo)} are judged by changing the file", flush=True)
    count = 0

    def done(what: Any, code: int, took: float, tail: str) -> None:
        nonlocal count
        mutant, tests = what
        count += 1
        first = next((line.removeprefix(MARK) for line in tail.splitlines() if line.startswith(MARK)), "")
        outcome = "timeout" if code in (-1, -signal.SIGALRM) else "survived" if code == 0 else "caught"
        if outcome == "caught" and not first:  # tests that cannot even be imported, or a process that died
            first = tests[0]
        results.add(
            id=mutant.id,
            outcome=outcome,
            digest=_digest(mutant),
            tests=_state(tests),
            test=first,
            seconds=round(took, 1),
            ran=len(tests),
        )
        print(f"{count:4} {outcome:8} {took:5.1f} s  {mutant.id}  {first}", flush=True)

    forks.run_all(_work(todo, known, until, longest), trees, done)
    _confirm(mutants, results, trees)


def _quickly(
    todo: list[Mutant], known: cover.Map, results: Results, tree: Path, until: float, longest: float
) -> list[Mutant]:
    """Judge what can be judged without changing a file, room by room; the rest is given back."""
    by_room: dict[str, list[Mutant]] = {}
    for mutant in todo:
        by_room.setdefault(mutant.room, []).append(mutant)
    for room, some in by_room.items():
        chosen = {one.id: covering(one, known, longest) for one in some}
        for name, tests in chosen.items():  # what caught it before comes first
            before = results.of.get(name, {}).get("test")
            chosen[name] = [before, *(one for one in tests if one != before)] if before in known.seconds else tests
        files = sorted({test.split("::")[0] for tests in chosen.values() for test in tests})
        print(f"{room}: {len(some)} mutants, tests of {len(files)} files", flush=True)
        out = os.dup(1)

        def note(mutant: Mutant, killers: set[str], out: int = out, chosen: dict[str, list[str]] = chosen) -> Any:
            def done(outcome: str, failed: list[str], took: float) -> None:
                os.write(out, f"{outcome:9} {took:5.1f} s  {mutant.id}  {' '.join(failed)}\n".encode())
                if outcome == "caught":
                    killers.update(failed)
                if outcome in CAUGHT or outcome == "survived":
                    entry = {"id": mutant.id, "outcome": outcome, "digest": _digest(mutant), "seconds": round(took, 1)}
                    tests = chosen[mutant.id]
                    more = {
                        "tests": _state(tests),
                        "test": failed[0] if failed else "",
                        "ran": len(tests),
                        "quick": True,
                    }
                    quick.write(results.path, **entry, **more)

            return done

        def work(
            some: list[Mutant] = some, chosen: dict[str, list[str]] = chosen, out: int = out
        ) -> Iterator[tuple[Mutant | None, list[str], Any]]:
            killers: set[str] = set()
            for mutant in some:
                yield mutant, chosen[mutant.id], note(mutant, killers)
            for test in sorted(killers):  # over the source as it is

                def clean(outcome: str, failed: list[str], took: float, test: str = test) -> None:
                    if outcome != "survived":
                        os.write(out, f"fails over the source as it is ({outcome}): {test}\n".encode())
                    again = Results(results.path)
                    for entry in [one for one in again.of.values() if one.get("test") == test and one.get("quick")]:
                        if outcome == "survived":
                            quick.write(results.path, **(entry | {"confirmed": True}))
                        else:
                            quick.write(results.path, **(entry | {"outcome": "survived", "test": ""}))

                yield None, [test], clean

        def prepare(tree: Path, files: list[str] = files, work: Any = work) -> Callable[[], int]:
            return lambda: quick.session(files, work(), tree, known.seconds, until)

        forks.run_all(iter([(room, prepare, 36_000.0)]), [tree], lambda *_: None)
        os.close(out)
    results.reload()
    return [one for one in todo if not _judged(one, results) or results.of[one.id]["outcome"] == "survived"]


def _settled(before: dict[str, Any] | None, tests: list[str]) -> bool:
    """Whether a result need not be looked at again."""
    if before is None:
        return False
    return before["outcome"] == "timeout" or bool(before.get("confirmed")) or before["tests"] == _state(tests)


def _judged(mutant: Mutant, results: Results) -> bool:
    return mutant.id in results.of and results.of[mutant.id]["digest"] == _digest(mutant)


def _confirm(mutants: list[Mutant], results: Results, trees: list[Path]) -> None:
    """Run the tests that caught something over the source as it is; take back what they caught if they fail there."""
    here = {one.id for one in mutants}
    killers: dict[str, list[str]] = {}
    for name, entry in results.of.items():
        if name in here and entry["outcome"] == "caught" and entry.get("test") and not entry.get("confirmed"):
            killers.setdefault(entry["test"], []).append(name)
    if not killers:
        return
    forks.copy_tree(trees[0])
    tests = sorted(killers)
    parts = [tests[start : start + 25] for start in range(0, len(tests), 25)]
    failing: set[str] = set()
    apart: list[list[str]] = []

    def work(some: list[list[str]]) -> Iterator[forks.Work]:
        for part in some:
            yield part, lambda tree, part=part: lambda: _pytest(tree, part, {}), 900.0

    def done(what: Any, code: int, took: float, tail: str) -> None:
        failing.update(line.removeprefix(MARK) for line in tail.splitlines() if line.startswith(MARK))
        if code not in (0, 1) and len(what) > 1:
            apart.extend([one] for one in what)  # one of them cannot even be imported: which?
        elif code not in (0, 1):
            failing.update(what)

    forks.run_all(work(parts), trees[:1], done)
    forks.run_all(work(apart), trees[:1], done)
    for test, names in killers.items():
        for name in names:
            outcome = "survived" if test in failing else "caught"
            results.add(**(results.of[name] | {"outcome": outcome, "confirmed": True}))
    print(
        f"{len(tests)} tests that caught a mutant ran over the source as it is; {len(failing)} fail there", flush=True
    )
    for test in sorted(failing):
        print(f"    {test}")


def save(mutants: list[Mutant], results: Results) -> int:
    """Write which test caught which mutant, for :func:`check`.

    Args:
        mutants: Those there are.
        results: What is known of them.

    Returns:
        0.
    """
    caught = {
        one.id: results.of[one.id]["test"]
        for one in mutants
        if results.of.get(one.id, {}).get("confirmed") and results.of[one.id]["outcome"] == "caught"
    }
    CAUGHT_BY.write_text(json.dumps(caught, indent=0, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(caught)} mutants and the tests that caught them: {CAUGHT_BY.name}")
    return 0


def check(mutants: list[Mutant], trees: list[Path], seconds: float | None) -> int:
    """Look whether the tests that caught these mutants still do; needs no record.

    A mutant that its test no longer catches is tried with all fast tests of its room before it counts as not noticed.

    Args:
        mutants: Which, in this order; those that no whole run has judged are left out.
        trees: Copies of the tree.
        seconds: Begin none after so many seconds.

    Returns:
        1 where no test notices a mutant any more, 0 otherwise.
    """
    caught: dict[str, str] = json.loads(CAUGHT_BY.read_text(encoding="utf-8"))
    until = time.monotonic() + (seconds or 1e9)
    missed: list[Mutant] = []
    done_with: Counter[str] = Counter()

    def work(some: list[Mutant], tests: Callable[[Mutant], list[str]], end: float) -> Iterator[forks.Work]:
        for mutant in some:
            if time.monotonic() > end:
                return

            def prepare(tree: Path, mutant: Mutant = mutant) -> Callable[[], int]:
                _put(tree, mutant)
                return lambda: _pytest(tree, tests(mutant), {}, "-x", "-m", "not slow and not gpu")

            yield mutant, prepare, 240.0

    def first(what: Any, code: int, took: float, tail: str) -> None:
        done_with["run"] += 1
        if code in (0, 4, 5):  # it passes, or it is not there any more
            missed.append(what)

    def second(what: Any, code: int, took: float, tail: str) -> None:
        if code == 0:
            done_with["not noticed"] += 1
            print(
                f"no test notices any more: {what.id}\n    {what.path}:{what.line}\n    - {what.old}\n    + {what.new}"
            )
            print(f"    it was caught by {caught[what.id]}")

    known = [one for one in mutants if one.id in caught]
    forks.run_all(work(known, lambda one: [caught[one.id]], until), trees, first)
    forks.run_all(work(missed, lambda one: [f"tests/{folder}" for folder in folders(one)], 1e18), trees, second)
    print(f"{done_with['run']} mutants: {done_with['not noticed']} not noticed any more")
    return int(bool(done_with["not noticed"]))


def report(mutants: list[Mutant], results: Results) -> int:
    """Print what came out.

    Args:
        mutants: Those that are asked about.
        results: What is known.

    Returns:
        1 where one survived that is not explained, 0 otherwise.
    """
    reasons = explained()
    judged = [(one, results.of[one.id]) for one in mutants if one.id in results.of]
    by_room: dict[str, Counter[str]] = {}
    open_ = []
    for mutant, entry in judged:
        outcome = "caught" if entry["outcome"] in CAUGHT else "explained" if mutant.id in reasons else "not noticed"
        by_room.setdefault(mutant.room, Counter())[outcome] += 1
        if outcome == "not noticed":
            open_.append((mutant, entry))
    print(f"\n{'room':14} {'mutants':>8} {'caught':>8} {'explained':>10} {'not noticed':>12}")
    for room, counts in sorted(by_room.items()):
        print(f"{room:14} {counts.total():8} {counts['caught']:8} {counts['explained']:10} {counts['not noticed']:12}")
    everything = sum(by_room.values(), Counter[str]())
    total, caught = everything.total(), everything["caught"]
    if total:
        relevant = total - everything["explained"]
        print(f"{'all':14} {total:8} {caught:8} {everything['explained']:10} {everything['not noticed']:12}")
        print(f"caught: {caught / total:.1%} of all, {caught / max(1, relevant):.1%} without those that break nothing")
    if len(judged) < len(mutants):
        print(f"{len(mutants) - len(judged)} mutants are not judged yet")
    for mutant, entry in open_:
        print(f"\n{entry['outcome']}: {mutant.id}  ({entry.get('ran', 0)} tests)\n    {mutant.path}:{mutant.line}")
        print(f"    - {' '.join(mutant.old.split())}\n    + {' '.join(mutant.new.split())}")
    return int(bool(open_))
