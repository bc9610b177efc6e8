"""Where does a test run whose source is changed? In a fork of one process that has collected all tests.

Importing torch takes longer than most tests, and so does collecting. So one process collects the tests over the copy of
the tree (:mod:`tools.mutate.switch`), never runs one, and forks for every piece of work: the tests of a file to see
which mutants each runs, or the tests of a mutant until one fails.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

WARM = (
    *("hypothesis", "hypothesis.extra.numpy", "_hypothesis_pytestplugin", "numpy", "scipy.stats"),
    *("scipy.optimize", "scipy.integrate", "scipy.special", "torch", "torch.fx", "torch.func", "torch.utils.data"),
    *("sklearn.linear_model", "sklearn.model_selection", "sqlalchemy", "typer.testing", "rich.progress", "polars"),
)
#: Memory of a fork: a mutant may ask for any amount.
MEMORY = 8 << 30
#: While it is recorded, a test may take so many seconds of one core; what takes longer judges no mutant.
SLOWEST = 5.0


@dataclass
class Job:
    """Tests to run in a fork.

    Attributes:
        tests: Their names, in order.
        done: Called with the outcome ("passed", "failed", "timeout", "died"), what :func:`_run` noted of each test, and
            the seconds of processor time.
        mutant: The number of the mutant that is on; -1 for the source as it is.
        limits: After how many seconds of processor time each test is stopped.
        stop: Whether to end with the first test that fails.
    """

    tests: list[str]
    done: Callable[[str, dict[str, dict[str, Any]], float], None]
    mutant: int = -1
    limits: dict[str, float] = field(default_factory=dict)
    stop: bool = True


#: The mutants that the fixtures of the tests of this fork asked for.
shared: set[int] = set()


class TooSlow(BaseException):
    """A test is stopped; not an Exception, so that nothing in a test takes it for one of its own."""


FAILED, TIMEOUT = 11, 12  # exit codes of a fork; 1 is what the watchdog of faulthandler ends with


class Session:
    """A pytest plugin that does jobs in forks, in place of running what was collected."""

    def __init__(self, jobs: Callable[[dict[str, Any]], Iterator[Job | None]], at_a_time: int, scratch: Path) -> None:
        self.jobs, self.at_a_time, self.scratch = jobs, at_a_time, scratch

    def pytest_collection(self) -> None:
        """A failure need not be made small: it is only counted."""
        import hypothesis

        kept = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", hypothesis.settings(), phases=kept, database=None)
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        """What was asked for before a test began is its fixtures', which later tests of the file may share."""
        shared.update(sys.modules["mutant_switch"].asked)  # type: ignore[attr-defined]

    def pytest_runtestloop(self, session: Any) -> bool:
        """Do the jobs, ``at_a_time`` at a time."""
        items = {item.nodeid: item for item in session.items}
        if "polars-0" in _threads():
            raise pytest.UsageError("a test file computes with polars when it is imported: its threads end with a fork")
        owned = _owned()
        gc.collect()
        gc.freeze()
        running: dict[int, tuple[Job, Path]] = {}
        jobs = self.jobs(items)
        number, more = 0, True
        try:
            while running or more:
                while more and len(running) < self.at_a_time:
                    job = next(jobs, None)
                    if job is None:  # nothing now, and nothing at all where nothing runs that could bring more
                        more = bool(running)
                        break
                    number += 1
                    folder = self.scratch / str(number)
                    folder.mkdir(parents=True, exist_ok=True)
                    pid = os.fork()
                    if pid == 0:
                        _child(job, [items[test] for test in job.tests if test in items], folder, owned)
                    running[pid] = (job, folder)
                if not running:
                    continue
                pid, status, used = os.wait4(-1, 0)
                if pid in running:
                    job, folder = running.pop(pid)
                    _over(job, folder, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)
        finally:
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        return True


def _over(job: Job, folder: Path, code: int, seconds: float) -> None:
    noted: dict[str, dict[str, Any]] = {}
    file = folder / "noted"
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        with contextlib.suppress(ValueError):  # the last line of a fork that was stopped
            noted.update(json.loads(line))
    shutil.rmtree(folder, ignore_errors=True)
    job.done({0: "passed", FAILED: "failed", TIMEOUT: "timeout", 1: "timeout"}.get(code, "died"), noted, seconds)


def _threads() -> list[str]:
    """The names of the threads of this process, where the system tells them."""
    return [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]


def _owned() -> list[Any]:
    """What was made in this process and refuses to serve in a fork of it, as a key does."""
    process = sys.modules.get("tacit.noise.process")
    return [one for one in gc.get_objects() if issubclass(type(one), process.OneProcess)] if process else []


def _child(job: Job, items: list[Any], folder: Path, owned: list[Any]) -> None:
    code = 70
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["TMPDIR"] = str(folder)
        os.environ["MUTANT_ON"] = str(job.mutant)
        os.environ["MUTANT_ASKED"] = str(folder / "asked")
        sys.modules["mutant_switch"].on = job.mutant  # type: ignore[attr-defined]
        for one in owned:  # what a test module made is this fork's: nobody else uses it
            object.__setattr__(one, "_process", sys.modules["tacit.noise.process"]._here())
        if items:
            items[0].config._tmp_path_factory._basetemp = folder / "tmp"
            (folder / "tmp").mkdir()
        code = _run(job, items, folder)
    except TooSlow:
        code = TIMEOUT
    except BaseException:  # noqa: BLE001 (a fork must not return into its parent's code)
        code = 70
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(os.getpid(), signal.SIGTERM)
        os._exit(code)


def _run(job: Job, items: list[Any], folder: Path) -> int:
    """Run tests and note, for each that passed, its seconds and the mutants that it asked for."""
    from _pytest.runner import runtestprotocol

    switch = sys.modules["mutant_switch"]
    failed = stopped = False

    def late(*_: Any) -> None:
        nonlocal stopped
        stopped = True
        raise TooSlow

    signal.signal(signal.SIGPROF, late)
    signal.signal(signal.SIGALRM, late)
    for place, item in enumerate(items):
        after = items[place + 1] if place + 1 < len(items) else None
        limit = job.limits.get(item.nodeid, SLOWEST)
        switch.asked.clear()  # type: ignore[attr-defined]
        began = _seconds()
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.alarm(int(60 + 10 * limit))
        faulthandler.dump_traceback_later(120 + 10 * limit, exit=True)  # where no handler runs: a call that hangs
        outcome, why = "passed", ""
        try:
            for report in runtestprotocol(item, nextitem=after, log=False):
                outcome = "failed" if report.failed else "skipped" if report.skipped else outcome
                why = str(report.longrepr).strip()[-200:] if report.failed else why
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            faulthandler.cancel_dump_traceback_later()
        outcome = "timeout" if stopped else outcome
        asked = shared | switch.asked  # type: ignore[attr-defined]
        file = folder / "asked"
        if file.exists():
            asked.update(int(line) for line in file.read_text().split())
            file.unlink()
        entry = {"outcome": outcome, "why": why, "seconds": round(_seconds() - began, 3), "asked": sorted(asked)}
        with (folder / "noted").open("a", encoding="utf-8") as noted:
            noted.write(json.dumps({item.nodeid: entry}) + "\n")
        if outcome == "timeout":
            # What it held (fixtures, locks) is in no state to run another test.
            return TIMEOUT
        failed |= outcome == "failed"
        if failed and job.stop:
            break
    return FAILED if failed else 0


def _seconds() -> float:
    return sum(os.times()[:4])


def run(
    files: list[str],
    jobs: Callable[[dict[str, Any]], Iterator[Job | None]],
    tree: Path,
    at_a_time: int = 1,
) -> None:
    """Collect the tests of these files and do the jobs.

    Args:
        files: Test files, from the root.
        jobs: Given the tests, by name, yields what to do; None where it waits for what is running.
        tree: The copy of the tree.
        at_a_time: How many jobs run at a time.
    """
    for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # looking for plugins takes as long as many a test
    os.environ["CI"] = "true"  # the same examples of every property each time
    os.environ["PYTHONPATH"] = f"{tree / 'src'}{os.pathsep}{tree}"
    if any(name == "tacit" or name.startswith("tacit.") for name in sys.modules):
        raise RuntimeError("tacit was imported before the copy of the tree was made")
    os.chdir(tree)
    sys.path[:] = [str(tree / "src"), str(tree), *(one for one in sys.path if one not in ("", str(tree.parents[1])))]
    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    importlib.import_module("mutant_switch")
    scratch = tree.parent / f"scratch{os.getpid()}"
    options = ["-q", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider", "--no-header", "--tb=native"]
    options += ["--continue-on-collection-errors", "-m", "not slow and not gpu and not postgres"]
    options += ["--rootdir", str(tree), "-c", str(tree / "pyproject.toml")]
    began = time.monotonic()
    try:
        code = pytest.main([*options, *files], plugins=[Session(jobs, at_a_time, scratch)])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if code not in (0, 1, 5):
        raise SystemExit(f"the tests could not be collected ({code}, after {time.monotonic() - began:.0f} s)")
