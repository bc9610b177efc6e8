"""Follow a page from top to bottom in the current folder: ``python follow.py PAGE``.

A ``toml`` block whose first line is a comment with a file's name is saved under it. The ``python`` blocks
are one session, as in a notebook. Each line ``$ tacit ...`` of a ``console`` block is run by the command's own code, in
this process, so that a page does not pay for importing torch five times. Output that a page shows, in an ``output``
block or under a command, is compared with what comes out: ``...`` and ``…`` stand for anything, white space counts as
one blank. A block under ``<!-- not run: REASON -->`` is passed over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+?) -->\n+)?(?P<indent>[ ]*)```(?P<kind>\w+)[^\n]*\n(?P<body>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)
RUN = ("python", "console", "output", "toml")


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block of a page; ``why`` says why it is not run."""

    kind: str
    body: str
    line: int
    why: str | None = None


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page that run, are saved, or say why not."""
    for found in BLOCK.finditer(re.sub(r"^````.*?^````", "", text, flags=re.DOTALL | re.MULTILINE)):
        if found["kind"] in RUN:
            body = re.sub(rf"^{found['indent']}", "", found["body"], flags=re.MULTILINE)
            yield Block(found["kind"], body, text[: found.start("body")].count("\n") + 1, found["why"])


def command(line: str) -> None:
    """What the shell would run."""
    from tacit.cli import build

    words = shlex.split(line, comments=True)
    if words[0] != "tacit":
        raise SystemExit(f"only the tacit command is followed, not {line!r}")
    with contextlib.suppress(SystemExit):  # a refusal is shown, too
        build()(words[1:], standalone_mode=False)


def agrees(shown: str, came: str) -> bool:
    """Whether output is as it is shown."""
    parts = re.split(r"\.\.\.|…", " ".join(shown.split()))
    return (
        re.search(r"\A\s*" + ".*".join(re.escape(part) for part in parts) + r"\s*\Z", " ".join(came.split()))
        is not None
    )


def _commands(body: str) -> Iterator[tuple[str, str]]:
    """Each command with the output shown under it."""
    for part in re.split(r"^\$ ", body.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        yield line, shown


def follow(page: Path) -> None:
    """Run every block in its order."""
    session: dict[str, Any] = {"__name__": "__main__"}
    came = ""
    for block in blocks(page.read_text(encoding="utf-8")):
        where = f"{page.name}:{block.line}"
        if block.why is not None:
            continue
        if block.kind == "toml":
            name = block.body.partition("\n")[0]
            if name.startswith("# "):
                Path(name[2:].strip()).write_text(block.body, encoding="utf-8")
        elif block.kind == "output":
            _compare(where, block.body, came)
        elif block.kind == "python":
            with _heard() as said:
                exec(compile(block.body, where, "exec"), session)
            came = said.getvalue()
            print(came)
        else:
            for line, shown in _commands(block.body):
                with _heard() as said:
                    command(line)
                came = said.getvalue()
                print(f"$ {line}\n{came}")
                if shown.strip():
                    _compare(where, shown, came)


@contextlib.contextmanager
def _heard() -> Iterator[io.StringIO]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield said


def _compare(where: str, shown: str, came: str) -> None:
    if not agrees(shown, came):
        raise SystemExit(f"{where} shows\n{shown}\nand this comes out:\n{came}")


if __name__ == "__main__":
    follow(Path(sys.argv[1]))
