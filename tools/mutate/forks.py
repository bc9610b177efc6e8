"""Where does a test run whose source is changed? In a fork of one warm process, over a copy of the tree of its own.

Importing torch takes longer than most tests. So one process imports the packages, never tacit itself, and forks for
every piece of work. A fork changes into its own copy of the tree, from which it and the processes that it starts import
tacit.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WARM = (
    *("pytest", "coverage", "hypothesis", "hypothesis.extra.numpy", "_hypothesis_pytestplugin", "numpy", "scipy.stats"),
    *("scipy.optimize", "scipy.integrate", "scipy.special", "torch", "torch.fx", "torch.func", "torch.utils.data"),
    *("sklearn.linear_model", "sklearn.model_selection", "sqlalchemy", "typer.testing", "rich.progress", "polars"),
)
#: What every call of pytest is given: plugins are not looked for, since that takes as long as many a test.
PYTEST = ("-q", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider", "--no-header")

#: What it is, what prepares a copy of the tree and returns the work, and after how many seconds it is stopped.
Work = tuple[object, Callable[[Path], Callable[[], int]], float]


def copy_tree(target: Path) -> Path:
    """Copy what git knows of the working tree, changed or not, with the environment as a link.

    Args:
        target: The folder to make; what lies there is removed.

    Returns:
        The folder.
    """
    shutil.rmtree(target, ignore_errors=True)
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    (target / ".venv").symlink_to(ROOT / ".venv")
    return target


def warm() -> None:
    """Import what the tests import, but nothing of tacit, and keep every library to one thread."""
    for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["CI"] = "true"  # the same examples of every property each time
    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    if any(name == "tacit" or name.startswith("tacit.") for name in sys.modules):
        raise RuntimeError("tacit was imported before the fork: mutants would not be seen")


@dataclass
class Fork:
    """One piece of work in a process of its own.

    Attributes:
        pid: Its process and process group.
        slot: Which copy of the tree it uses.
        ends: The time at which it is stopped.
        started: The time at which it started.
        what: What it works on.
    """

    pid: int
    slot: int
    ends: float
    started: float
    what: object


def _child(work: Callable[[], int], tree: Path, log: Path) -> None:
    code = 70
    try:
        os.setsid()
        os.chdir(tree)
        os.environ["PYTHONPATH"] = f"{tree / 'src'}{os.pathsep}{tree}"
        os.environ["TMPDIR"] = str(tree.parent / f"{tree.name}-tmp")
        Path(os.environ["TMPDIR"]).mkdir(exist_ok=True)
        sys.path[:0] = [str(tree / "src"), str(tree)]
        importlib.invalidate_caches()
        for name in [name for name in sys.modules if name == "tools" or name.startswith("tools.")]:
            del sys.modules[name]
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
        code = work()
    except BaseException:  # noqa: BLE001 (a fork must not return into its parent's code)
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def check(tree: Path) -> None:
    """Refuse a tree whose source cannot be imported: every mutant of it would seem to be caught.

    Args:
        tree: A copy of the tree.
    """
    command = [sys.executable, "-c", "import tacit.accounting, tacit.sgd, tacit.pate, tacit.linear_model, tacit.tuning"]
    told = subprocess.run(command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree / "src")}, check=False)
    if told.returncode:
        raise SystemExit("the source as it is cannot be imported; mend that first")


def stop(fork: Fork) -> None:
    """End a fork and what it started.

    Args:
        fork: The piece of work.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(fork.pid, signal.SIGKILL)


def run_all(
    todo: Iterator[Work],
    trees: list[Path],
    done: Callable[[object, int, float, str], None],
) -> None:
    """Do every piece of work, as many at a time as there are copies of the tree.

    Args:
        todo: For each piece what it is, a function that prepares a copy of the tree and returns the work, and the
            seconds after which it is stopped.
        trees: The copies.
        done: Called with what it was, its exit code (-1 where it was stopped), its seconds, and its last output.
    """
    free, running = list(range(len(trees))), list[Fork]()
    work = iter(todo)
    exhausted = False
    try:
        while running or not exhausted:
            while free and not exhausted:
                try:
                    what, prepare, seconds = next(work)
                except StopIteration:
                    exhausted = True
                    break
                slot = free.pop()
                tree = trees[slot]
                action = prepare(tree)
                sys.stdout.flush()
                pid = os.fork()
                if pid == 0:
                    _child(action, tree, tree.parent / f"{tree.name}.log")
                now = time.monotonic()
                running.append(Fork(pid, slot, now + seconds, now, what))
            for fork in list(running):
                found, status = os.waitpid(fork.pid, os.WNOHANG)
                late = time.monotonic() > fork.ends
                if not found and not late:
                    continue
                stop(fork)
                if not found:
                    os.waitpid(fork.pid, 0)
                code = os.waitstatus_to_exitcode(status) if found else -1
                log = trees[fork.slot].parent / f"{trees[fork.slot].name}.log"
                tail = log.read_text(errors="replace")[-4000:] if log.exists() else ""
                shutil.rmtree(trees[fork.slot].parent / f"{trees[fork.slot].name}-tmp", ignore_errors=True)
                running.remove(fork)
                free.append(fork.slot)
                done(fork.what, code, time.monotonic() - fork.started, tail)
            time.sleep(0.02)
    finally:
        for fork in running:
            stop(fork)
