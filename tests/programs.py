"""Programs that are run as a user runs them, each in a process of its own, without importing torch anew for each.

:func:`run` asks a server, started once by the tests of a process, which has imported the large packages and nothing
else, and forks a child for every program. The child has its own folder, environment, arguments and output, begins with
the program's first line and ends as an interpreter does.
"""

from __future__ import annotations

import ast
import atexit
import functools
import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: Imported before the fork where a program, or a module of the project that it imports, will import them.
LARGE = {
    "torch": ("torch", "torch._dynamo"),  # the second is what the first optimizer imports
    "sklearn": ("sklearn.linear_model",),
    "polars": ("polars",),
    "peft": ("peft",),
    "transformers": ("transformers",),
    "lightning": ("lightning",),
}
ALWAYS = ("torch", "sklearn", "polars")
#: The tests run beside each other.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def run(
    program: Sequence[str], cwd: Path, options: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """``python OPTIONS PROGRAM``, where the program begins with ``-m NAME``, ``-c CODE`` or the path of a file, and
    options are warning filters (``-Werror:::tacit``)."""
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        asked = {
            "program": list(program),
            "cwd": str(cwd),
            "warnings": [option.removeprefix("-W") for option in options],
            "environment": dict(environment) | ONE_THREAD,
            "out": str(out),
            "err": str(err),
            "large": sorted(_large(program)),
        }
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        status = json.loads(server.stdout.readline())
        return subprocess.CompletedProcess(list(program), status, out.read_text(), err.read_text())


def _large(program: Sequence[str]) -> set[str]:
    """Which of the large packages the text of a program imports."""
    kind, name = (program[0], program[1]) if program[0] in ("-m", "-c") else ("", program[0])
    text = name if kind == "-c" else Path(ROOT, *name.split(".")).with_suffix(".py").read_text() if kind else ""
    found = set(ALWAYS)
    for page in (Path(argument) for argument in program if argument.endswith(".md")):
        found |= set(re.findall(r"^(?:import|from) (\w+)", page.read_text(encoding="utf-8"), re.MULTILINE)) & set(LARGE)
    for node in ast.walk(ast.parse(text)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found |= {name.partition(".")[0] for name in names} & set(LARGE)
    return found


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | ONE_THREAD,
    )
    atexit.register(server.terminate)
    return server


# -- in the server ---------------------------------------------------------------------------------------------------


def serve() -> None:
    """One program a line; the answer is its exit status."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        for package in asked["large"]:
            for module in LARGE[package]:
                __import__(module)
        child = os.fork()
        if child == 0:
            _program(asked)
        answers.write(f"{_status(child)}\n")
        answers.flush()


def _status(child: int, limit: float = 300.0) -> int:
    """How a child ended; after the limit it is killed with all that it started."""
    ends = time.monotonic() + limit
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > ends:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.01)


def _program(asked: dict[str, Any]) -> None:
    """In the child: become what an interpreter is when a program begins, run it, and end."""
    os.setpgid(0, 0)
    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, asked["out"], os.O_WRONLY | os.O_CREAT)):
        os.dup2(os.open(name, flags), number)
    os.dup2(os.open(asked["err"], os.O_WRONLY | os.O_CREAT), 2)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    random.seed()
    warnings.resetwarnings()
    for name in ("DeprecationWarning", "PendingDeprecationWarning", "ImportWarning", "ResourceWarning"):
        warnings.filterwarnings("ignore", category=getattr(__builtins__, name))
    sys.warnoptions[:] = asked["warnings"]
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
    kind, *rest = asked["program"]
    sys.argv = [kind, *rest[1:]] if kind in ("-m", "-c") else [kind, *rest]
    sys.path[0] = str(Path(kind).parent) if kind not in ("-m", "-c") else asked["cwd"]
    code: Any = 0
    try:
        if kind == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:  # noqa: BLE001  an interpreter shows it, too
        traceback.print_exc()
        code = 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


if __name__ == "__main__":
    serve()
