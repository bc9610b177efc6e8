"""Which slow tests ran when? Runs them in pieces: ``python -m tools.slow [--turn | --all | FILE ...]``

A piece is a file with tests marked ``slow``. What ran is kept in ``tests/slow.json``, from which the table in
``docs/maintain/slow-tests.md`` is made; commit both after a run of your own. Where submissions are judged (``--turn``),
the pieces take turns: the hash of the commit says with which to begin, and as many run as fit into the time. A piece
that passed when it was last committed must pass; of another one the result is only shown.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STATE = ROOT / "tests" / "slow.json"
PAGE = ROOT / "docs" / "maintain" / "slow-tests.md"
BEGIN, END = "<!-- the table is made by python -m tools.slow -->", "<!-- end of the table -->"
#: A piece that takes longer is stopped.
LONGEST = 1800
#: What a piece is taken to need that never ran.
UNKNOWN = 240
GOOD = ("passed", "none selected")


def pieces() -> list[str]:
    """The files with slow tests, from the root, in the order of their names."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "pytest.mark.slow" in path.read_text(encoding="utf-8"):
            found.append(path.relative_to(ROOT).as_posix())
    return found


def turn(files: list[str], number: int) -> list[str]:
    """The files in the order in which they take their turn; the number says with which to begin.

    >>> turn(["a", "b", "c"], 4)
    ['b', 'c', 'a']
    """
    start = number % len(files)
    return files[start:] + files[:start]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def run(file: str, longest: float = LONGEST) -> dict[str, Any]:
    """Run the slow tests of a file.

    Args:
        file: Its path from the root.
        longest: Stop it after so many seconds.

    Returns:
        What the table shows of it.
    """
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow and not gpu", "-p", "no:cacheprovider", file]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True
    ) as process:
        try:
            code = process.wait(longest)
        except BaseException as problem:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(problem, subprocess.TimeoutExpired):
                raise
            code = -1
    result = {0: "passed", 5: "none selected", -1: f"stopped after {longest:.0f} s"}.get(code, "failed")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "commit": _git("rev-parse", "--short", "HEAD"), "result": result} | {
        "seconds": round(time.monotonic() - began)
    }


def take_turns(state: dict[str, dict[str, Any]], seconds: float) -> int:
    """Run the pieces whose turn it is, and as many as fit into the time.

    Args:
        state: What was committed of each file.
        seconds: The time.

    Returns:
        1 where a piece failed that had passed, 0 otherwise. A piece that was stopped for the time failed nothing.
    """
    until, lines, broken = time.monotonic() + seconds, [], False
    for file in turn(pieces(), int(_git("rev-parse", "HEAD")[:8], 16)):
        before = state.get(file)
        left = until - time.monotonic()
        if left < 1.5 * (before["seconds"] if before else UNKNOWN):
            continue
        now = run(file, left)
        held = before is not None and before["result"] in GOOD
        broken |= held and now["result"] == "failed"
        said = f"slow tests: {file}: {now['result']} in {now['seconds']} s"
        if now["result"] not in GOOD:
            was = before["result"] if before else "never ran"
            said += f" ({was} before{'' if held else ', so this does not fail the run: mend it or commit the result'})"
        lines.append(said)
        print(said, flush=True)
    print("\n".join(["", *lines]))
    return int(broken)


def table(state: dict[str, dict[str, Any]], files: list[str]) -> str:
    """The table of the page.

    Args:
        state: What is known of each file.
        files: The files there are.

    Returns:
        Its lines.
    """
    lines = ["| slow tests of | last run | at commit | seconds | result |", "|---|---|---|---|---|"]
    for file in files:
        one = state.get(file)
        if one is None:
            lines.append(f"| `{file}` | not since this table began | | | |")
        else:
            lines.append(f"| `{file}` | {one['date']} | {one['commit']} | {one['seconds']} | {one['result']} |")
    return "\n".join(lines)


def write_page(state: dict[str, dict[str, Any]]) -> None:
    """Put the table into the page.

    Args:
        state: What is known of each file.
    """
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(state, pieces())}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Do what the command line says.

    Returns:
        1 where a test failed, 0 otherwise.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.slow", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", help="these files")
    parser.add_argument("--all", action="store_true", help="all of them, however long it takes")
    parser.add_argument("--turn", action="store_true", help="those whose turn it is; writes nothing")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long --turn may take (600)")
    chosen = parser.parse_args()
    state: dict[str, dict[str, Any]] = json.loads(STATE.read_text(encoding="utf-8")) if STATE.exists() else {}
    if chosen.turn:
        return take_turns(state, chosen.seconds)
    failed = []
    for file in pieces() if chosen.all else chosen.files:
        print(f"slow tests: {file}", flush=True)
        state[file] = run(file)
        print(f"slow tests: {file}: {state[file]['result']} in {state[file]['seconds']} s", flush=True)
        if state[file]["result"] not in GOOD:
            failed.append(file)
        STATE.write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    write_page(state)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
