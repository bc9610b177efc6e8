"""Did a test notice? Runs the tests of a mutant, the likeliest first, and keeps what came out.

A mutant is *caught* by the first test that fails alone with it, every time, and passes alone without it, or that takes
many times as long (``timeout``). It *survived* if the tests that run it pass, as many as fit into its time, and is
*uncovered* if there is none.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import tomllib
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools.mutate import forks
from tools.mutate.record import Record, beside, digest
from tools.mutate.rules import ROOT, Mutant

EXPLAINED = Path(__file__).with_name("explained.toml")
CAUGHT_BY = Path(__file__).with_name("caught.json")
CAUGHT = ("caught", "timeout")
#: So often a test must fail alone with a mutant before it counts: one that fails by luck catches nothing.
TIMES = 3


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


@dataclass(frozen=True)
class Catch:
    """Which test caught a mutant when :func:`save` was called.

    Attributes:
        test: The test, which failed alone with the mutant :data:`TIMES` times out of as many.
        text: The hash of the test then (:func:`tools.mutate.record.digest`).
        digest: The hash of the mutant's function then.
    """

    test: str
    text: str
    digest: str

    def same(self, mutant: Mutant) -> bool:
        """Whether neither the test nor the mutant's function changed since."""
        return (self.text, self.digest) == (digest(self.test), mutant.digest)


def caught_by() -> dict[str, Catch]:
    """Which test caught a mutant when :func:`save` was called.

    Returns:
        What is kept of each id.
    """
    return {name: Catch(*kept) for name, kept in json.loads(CAUGHT_BY.read_text(encoding="utf-8")).items()}


class Results:
    """What is known of each mutant, in a file of one line each that is only added to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.of: dict[str, dict[str, Any]] = {}
        self.kept = caught_by()
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.of[entry["id"]] = entry

    def add(self, mutant: Mutant, outcome: str, test: str, passed: dict[str, str], seconds: float) -> None:
        """Keep a result.

        Args:
            mutant: Of which.
            outcome: A word.
            test: The test that noticed it.
            passed: The tests that did not, each with its hash.
            seconds: Of processor time.
        """
        entry = {"id": mutant.id, "digest": mutant.digest, "outcome": outcome, "test": test}
        entry |= {"seconds": round(seconds, 1), "passed": passed}
        self.of[mutant.id] = entry
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def get(self, mutant: Mutant) -> dict[str, Any] | None:
        """What is known of a mutant.

        Args:
            mutant: Which.

        Returns:
            Its entry; none where its function changed since.
        """
        entry = self.of.get(mutant.id)
        return entry if entry and entry["digest"] == mutant.digest else None

    def known(self, mutant: Mutant) -> dict[str, Any] | None:
        """What is known of a mutant here, or was kept by :func:`save` and still holds.

        Args:
            mutant: Which.

        Returns:
            Its entry; none where it was judged neither here nor when what was kept was written, or where its function
            changed since. What was kept also does not hold where the test changed.
        """
        kept = self.kept.get(mutant.id)
        if (entry := self.get(mutant)) or not (kept and kept.same(mutant)):
            return entry
        return {"id": mutant.id, "digest": mutant.digest, "outcome": "caught", "test": kept.test, "passed": {}}


class Judge:
    """Records the tests and judges the mutants, room by room; its :meth:`jobs` go to :func:`tools.mutate.forks.run`."""

    def __init__(
        self,
        every: list[Mutant],
        chosen: list[Mutant],
        files: list[str],
        record: Record,
        results: Results,
        longest: float,
        until: float,
        again: bool = False,
    ) -> None:
        self.every, self.chosen, self.files = every, chosen, files
        self.record, self.results = record, results
        self.longest, self.until, self.again = longest, until, again
        self.numbers = {one.id: number for number, one in enumerate(every)}
        self.hints = caught_by()
        self.settled: set[str] = set()  # what was judged since this began
        self.clean: dict[str, bool] = {}  # whether a test passes alone over the source as it is
        self.more: deque[forks.Job] = deque()
        self.count = 0

    def jobs(self, items: dict[str, Any]) -> Iterator[forks.Job | None]:
        """Everything that is to do, in its order.

        Args:
            items: The tests that were collected, by name.

        Yields:
            A job, or None where there is none before another ends.
        """
        self.items = items
        by_file: dict[str, list[str]] = {}
        for test in items:
            by_file.setdefault(test.split("::")[0], []).append(test)
        for mutant in self.chosen:  # a test that caught it before is tried at once: that needs no record
            hint = self.hints.get(mutant.id)
            known = self.results.known(mutant) and not self.again
            if hint and hint.test in items and not known and time.monotonic() < self.until:
                yield from self._first(self._trying(mutant, [hint.test], {}, 0.0))
        yield from self._rest()
        rooms = list(dict.fromkeys(one.room for one in self.chosen))
        for room in [*rooms, ""]:  # a last round, when all tests are recorded
            some = [one for one in self.chosen if room in ("", one.room)]
            own = tuple({place for one in some for place in beside(one)})
            for file in self.files:
                late = time.monotonic() > self.until
                if (file.startswith(own) or not room) and not late and self.record.stale(file):
                    yield from self._first(self._recording(file, by_file.get(file, [])))
            for mutant in some:
                job = self._judging(mutant) if time.monotonic() < self.until else None
                if job:
                    yield from self._first(job)
        while True:
            yield self.more.popleft() if self.more else None

    def _rest(self) -> Iterator[forks.Job]:
        """What the jobs that ended have brought."""
        while self.more:
            yield self.more.popleft()

    def _first(self, job: forks.Job) -> Iterator[forks.Job]:
        """A job, after those that what ended before has brought."""
        yield from self._rest()
        yield job

    def _recording(self, file: str, tests: list[str], before: dict[str, Any] | None = None) -> forks.Job:
        known = dict(before or {})

        def done(outcome: str, noted: dict[str, Any], seconds: float) -> None:
            known.update(noted)
            left = [test for test in tests if test not in known]
            if outcome in ("timeout", "died") and left:
                if not noted or outcome == "died":  # the test that ended it did not get to say so
                    known[left[0]] = {"outcome": outcome, "seconds": seconds, "asked": []}
                    left = left[1:]
                self.more.append(self._recording(file, left, known))
                return
            self.record.add(file, known, self.every)
            bad = Counter(entry["outcome"] for entry in known.values() if entry["outcome"] != "passed")
            print(f"recorded {file}: {len(known)} tests {dict(bad) or ''} {seconds:.0f} s", flush=True)
            for test, entry in known.items():
                if entry["outcome"] in ("failed", "died"):
                    why = entry.get("why", "").split("\n")[-1]
                    print(f"    {entry['outcome']}: {test}  {why}", flush=True)

        return forks.Job(tests, done, stop=False)

    def _limits(self, tests: list[str]) -> dict[str, float]:
        return {test: 6.0 + 8.0 * self.record.seconds.get(test, 2.0) for test in tests}

    def _judging(self, mutant: Mutant) -> forks.Job | None:
        entry = self.results.known(mutant)
        again = self.again and mutant.id not in self.settled
        if not again and ((entry and entry["outcome"] in CAUGHT) or mutant.id in explained()):
            return None
        passed = dict(entry["passed"]) if entry and not again else {}
        passed = {test: text for test, text in passed.items() if text == digest(test)}
        tests, total = [], 0.0
        hint = self.hints.get(mutant.id)
        candidates = [*([hint.test] if hint else []), *self.record.candidates(mutant)]
        for test in dict.fromkeys(candidates):
            if test not in self.items or test in passed:
                continue
            total += self.record.seconds.get(test, 0.0)
            if total <= self.longest or not tests:
                tests.append(test)
        if not tests:
            if entry is None:
                self.results.add(mutant, "survived" if passed else "uncovered", "", passed, 0.0)
            return None
        return self._trying(mutant, tests, passed, 0.0)

    def _trying(self, mutant: Mutant, tests: list[str], passed: dict[str, str], spent: float) -> forks.Job:
        def go_on(test: str, seconds: float) -> None:
            """The test does not count; the others may."""
            rest = tests[tests.index(test) + 1 :] if test in tests else []
            if rest:
                self.more.append(self._trying(mutant, rest, passed, spent + seconds))
            else:
                self._settle(mutant, "survived", "", passed, spent + seconds)

        def done(outcome: str, noted: dict[str, Any], seconds: float) -> None:
            good = [test for test, entry in noted.items() if entry["outcome"] in ("passed", "skipped")]
            passed.update({test: digest(test) for test in good})
            if outcome == "passed":
                self._settle(mutant, "survived", "", passed, spent + seconds)
                return
            test = next(one for one in [*tests, tests[-1]] if one not in good)
            caught = "timeout" if outcome == "timeout" else "caught"
            # The tests before, or luck, may be what made it fail: it must fail alone, every time.
            left = 1 if caught == "timeout" else TIMES
            left -= test == tests[0]

            def alone(word: str, noted: dict[str, Any], more: float) -> None:
                nonlocal left, seconds
                left, seconds = left - 1, seconds + more
                if word == "passed":
                    passed[test] = digest(test)
                    go_on(test, seconds)
                else:
                    again()

            def again() -> None:
                if left > 0:
                    self.more.append(forks.Job([test], alone, self.numbers[mutant.id], self._limits([test])))
                else:
                    self._without(mutant, test, caught, passed, spent + seconds, go_on)

            again()

        return forks.Job(tests, done, self.numbers[mutant.id], self._limits(tests))

    def _without(
        self, mutant: Mutant, test: str, caught: str, passed: dict[str, str], seconds: float, go_on: Any
    ) -> None:
        """Whether a test passes alone over the source as it is; what fails there as well has caught nothing."""

        def known(good: bool) -> None:
            self.clean[test] = good
            if good:
                self._settle(mutant, caught, test, passed, seconds)
            else:
                print(f"fails alone over the source as it is: {test}", flush=True)
                go_on(test, seconds)

        if test in self.clean:
            known(self.clean[test])
        else:
            self.more.append(forks.Job([test], lambda word, *_: known(word == "passed"), -1, self._limits([test])))

    def _settle(self, mutant: Mutant, outcome: str, test: str, passed: dict[str, str], seconds: float) -> None:
        self.count += 1
        self.settled.add(mutant.id)
        self.results.add(mutant, outcome, test, passed if outcome == "survived" else {}, seconds)
        print(f"{self.count:4} {outcome:8} {seconds:5.1f} s {len(passed):3}  {mutant.id}  {test}", flush=True)


def save(mutants: list[Mutant], results: Results) -> int:
    """Write which test caught which mutant, for :class:`Check`.

    Args:
        mutants: Those there are.
        results: What is known of them.

    Returns:
        0.
    """
    found = {one: entry for one in mutants if (entry := results.known(one))}
    caught = {
        one.id: Catch(entry["test"], digest(entry["test"]), one.digest)
        for one, entry in found.items()
        if entry["outcome"] == "caught"  # how long a test takes is not the same everywhere
    }
    judged = {one.id for one in found}
    here = {one.id for one in mutants}
    caught |= {name: kept for name, kept in caught_by().items() if name in here - judged}
    lines = {name: [kept.test, kept.text, kept.digest] for name, kept in sorted(caught.items())}
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(kept, ensure_ascii=False)}" for name, kept in lines.items())
    CAUGHT_BY.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
    print(f"{len(caught)} mutants and the tests that caught them: {CAUGHT_BY.name}")
    return 0


def due(mutants: list[Mutant], size: int, seed: str) -> list[Mutant]:
    """The mutants whose turn it is: those that a few test files caught, since collecting a file takes time too.

    Args:
        mutants: All of them.
        size: About how many.
        seed: Any text; the same files for the same seed.

    Returns:
        Mutants that were caught when :func:`save` was called.
    """
    caught = caught_by()
    by_file: dict[str, list[Mutant]] = {}
    for one in mutants:
        if one.id in caught:
            by_file.setdefault(caught[one.id].test.split("::")[0], []).append(one)
    chosen: list[Mutant] = []
    for file in sorted(by_file, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest()):
        if len(chosen) < size and (ROOT / file).exists():
            chosen += by_file[file]
    return chosen[:size]


class Check:
    """Looks whether the tests that caught these mutants still do; needs no record."""

    def __init__(self, every: list[Mutant], due: list[Mutant], until: float, results: Results) -> None:
        self.numbers = {one.id: number for number, one in enumerate(every)}
        self.due, self.until, self.results, self.caught = due, until, results, caught_by()
        self.missed: list[Mutant] = []
        self.ran = 0

    def jobs(self, items: dict[str, Any]) -> Iterator[forks.Job | None]:
        """One test for each mutant.

        Args:
            items: The tests that were collected, by name.

        Yields:
            A job.
        """
        for mutant in self.due:
            if time.monotonic() > self.until:
                return
            test = self.caught[mutant.id].test

            def done(word: str, noted: Any, seconds: float, mutant: Mutant = mutant) -> None:
                self.ran += 1
                if word == "passed":
                    self.missed.append(mutant)

            if test in items:
                yield forks.Job([test], done, self.numbers[mutant.id], {test: 60.0})
            else:
                self.missed.append(mutant)

    def report(self, seconds: float) -> int:
        """Try what was missed with all fast tests of its room, and print what came out.

        Args:
            seconds: How long that may take.

        Returns:
            1 where no test notices a mutant any more although neither its function nor the test that caught
            it changed; 0 otherwise.
        """
        print(f"{self.ran} mutants tried with the test that caught each: {len(self.missed)} not noticed", flush=True)
        if not self.missed:
            return 0
        for one in self.missed:
            print(f"    {one.id}\n    was caught by {self.caught[one.id].test}", flush=True)
        print(f"trying them with the other tests of their rooms, for {seconds:.0f} seconds", flush=True)
        command = [sys.executable, "-m", "tools.mutate", "run", "--seconds", f"{seconds:.0f}", "--again"]
        command += ["--store", str(self.results.path.parent), *(one.id for one in self.missed)]
        subprocess.run(command, cwd=ROOT, check=False)
        return verdict(self.missed, Results(self.results.path), self.caught)


def verdict(missed: list[Mutant], results: Results, caught: dict[str, Catch]) -> int:
    """What it means that the test that caught a mutant no longer does.

    Args:
        missed: The mutants.
        results: What came out when all tests of their rooms were tried.
        caught: What was kept of each.

    Returns:
        1 where no test notices a mutant although neither its function nor its test changed, 0 otherwise.
    """
    broken = False
    for one in missed:
        entry = results.get(one)
        if (entry and entry["outcome"] in CAUGHT) or one.id in explained():
            continue
        same = caught[one.id].same(one)
        broken |= same
        tried = f"{len(entry['passed'])} tests were tried" if entry else "no other test was tried in time"
        why = "its test has not changed: this FAILS the check" if same else "its test or its function changed since"
        print(f"NOT NOTICED: {one.id} ({tried}); {why}\n    {one.path}:{one.line}")
        print(f"    - {' '.join(one.old.split())}\n    + {' '.join(one.new.split())}", flush=True)
        if not same:
            print("    Write a test that notices it; `python -m tools.mutate save` after `make mutants` keeps which.")
    return int(broken)


def report(mutants: list[Mutant], results: Results) -> int:
    """Print what came out.

    Args:
        mutants: Those that are asked about.
        results: What is known.

    Returns:
        1 where one survived that is not explained, 0 otherwise.
    """
    reasons = explained()
    unknown = {"outcome": "survived", "passed": {}}  # what breaks nothing need not be run
    judged = [(one, results.known(one) or unknown) for one in mutants if results.known(one) or one.id in reasons]
    by_room: dict[str, Counter[str]] = {}
    open_ = []
    for mutant, entry in judged:
        outcome = "caught" if entry["outcome"] in CAUGHT else "explained" if mutant.id in reasons else "not noticed"
        by_room.setdefault(mutant.room, Counter())[outcome] += 1
        if outcome == "not noticed":
            open_.append((mutant, entry))
    for mutant, entry in open_:
        print(f"\n{entry['outcome']}: {mutant.id}  ({len(entry['passed'])} tests)\n    {mutant.path}:{mutant.line}")
        print(f"    - {' '.join(mutant.old.split())}\n    + {' '.join(mutant.new.split())}")
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
    return int(bool(open_))
