"""Follow a tutorial from top to bottom in the current folder: ``python follow.py PAGE``.

A ``toml`` block is saved under the name in its first line. The ``python`` blocks are one session, as in a notebook.
Each line of a ``console`` block is run by the command's own code, in this process, so that a page does not pay for
importing torch five times. A block that prints nothing shows its reader nothing, and is an error.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(python|console|toml)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def command(line: str) -> None:
    """What the shell would run."""
    from tacit.cli import build

    words = shlex.split(line)
    if words[0] != "tacit":
        raise SystemExit(f"only the tacit command is followed, not {line!r}")
    build()(words[1:], standalone_mode=False)


def follow(page: Path) -> None:
    """Run every block in its order."""
    session: dict[str, Any] = {"__name__": "__main__"}
    for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "toml":
            Path(body.splitlines()[0].removeprefix("# ")).write_text(body, encoding="utf-8")
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            if kind == "python":
                exec(compile(body, str(page), "exec"), session)
            else:
                for line in re.findall(r"^\$ (.*)$", body.replace("\\\n", " "), re.MULTILINE):
                    command(line)
        if not said.getvalue().strip():
            raise SystemExit(f"a block of {page.name} prints nothing:\n{body}")
        print(said.getvalue())


if __name__ == "__main__":
    follow(Path(sys.argv[1]))
