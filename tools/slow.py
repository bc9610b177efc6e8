"""Which slow tests ran when? Runs them in pieces: ``python -m tools.slow [--seconds N | --all] [FILE ...]``

A piece is a file with tests marked ``slow``. Where submissions are judged, the pieces take turns: the number of commits
says with which to begin, and as many run as fit into the time. What ran is kept in ``tests/slow.json``, from which the
table in ``docs/maintain/slow-tests.md`` is made; commit both after a run of your own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STATE = ROOT / "tests" / "slow.json"
PAGE = ROOT / "docs" / "maintain" / "slow-tests.md"
BEGIN, END = "<!-- the table is made by python -m tools.slow -->", "<!-- end of the table -->"
#: A piece that takes longer is stopped and has failed.
LONGEST = 1800


def pieces() -> list[str]:
    """The files with slow tests, from the root, in the order of their names."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "pytest.mark.slow" in path.read_text(encoding="utf-8"):
            found.append(path.relative_to(ROOT).as_posix())
    return found


def turn(files: list[str], commits: int) -> list[str]:
    """The files in the order in which they take their turn after so many commits.

    >>> turn(["a", "b", "c"], 4)
    ['b', 'c', 'a']
    """
    start = commits % len(files)
    return files[start:] + files[:start]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def run(file: str) -> dict[str, Any]:
    """Run the slow tests of a file.

    Args:
        file: Its path from the root.

    Returns:
        What the table shows of it.
    """
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow and not gpu", "-p", "no:cacheprovider", file]
    try:
        code = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=LONGEST).returncode
    except subprocess.TimeoutExpired:
        code = -1
    result = {0: "passed", 5: "none selected", -1: f"stopped after {LONGEST} s"}.get(code, "failed")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "commit": _git("rev-parse", "--short", "HEAD"), "result": result} | {
        "seconds": round(time.monotonic() - began)
    }


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
    parser.add_argument("files", nargs="*", help="these files; otherwise those whose turn it is")
    parser.add_argument("--seconds", type=float, default=240.0, help="begin no file after so many seconds (240)")
    parser.add_argument("--all", action="store_true", help="all of them, however long it takes")
    parser.add_argument("--table", action="store_true", help="only write the table anew")
    chosen = parser.parse_args()
    state: dict[str, dict[str, Any]] = json.loads(STATE.read_text(encoding="utf-8")) if STATE.exists() else {}
    todo = chosen.files or turn(pieces(), int(_git("rev-list", "--count", "HEAD")))
    began, failed = time.monotonic(), []
    for file in [] if chosen.table else todo:
        if not (chosen.all or chosen.files) and time.monotonic() - began > chosen.seconds:
            break
        print(f"slow tests: {file}", flush=True)
        state[file] = run(file)
        print(f"slow tests: {file}: {state[file]['result']} in {state[file]['seconds']} s", flush=True)
        if state[file]["result"] not in ("passed", "none selected"):
            failed.append(file)
        STATE.write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    write_page(state)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
