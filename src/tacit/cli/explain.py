"""``tacit explain``: what does an error mean, and what do I do about it?

Each page is a Markdown file in ``docs/errors/`` of the source tree. The wheel carries a copy beside this file.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.common import EXIT_USAGE, fail

EPILOG = """
[bold]Examples[/bold]

List every page:

    $ tacit explain

Read one of them:

    $ tacit explain budget-exceeded
"""

#: Where the pages are: beside this file in an installed package, else in the source tree.
PLACES = (Path(__file__).parent / "explanations", Path(__file__).parents[3] / "docs" / "errors")


def register(app: typer.Typer) -> None:
    """Add ``tacit explain`` to the application."""
    app.command("explain", epilog=EPILOG)(explain)


def pages() -> dict[str, str]:
    """The text of every page, by name."""
    for place in PLACES:
        found = {path.stem: path.read_text(encoding="utf-8") for path in sorted(place.glob("*.md"))}
        found.pop("index", None)
        if found:
            return found
    return {}


def summary(page: str) -> str:
    """Its title, which says what happened."""
    return page.partition("\n")[0].removeprefix("# ")


def plain(page: str) -> str:
    """The page as ordinary Markdown: comments go, and links into the documentation become the names of their files."""
    text = re.sub(r"^<!--.*?-->\n", "", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\{doc\}`([^`<]+?)\s*<(/[^`>]+)>`", r"\1 (`docs\2.md`)", text)
    text = re.sub(r"\{doc\}`(/[^`]+)`", r"`docs\1.md`", text)
    return re.sub(r"\{\w+\}`~?([^`]+)`", r"`\1`", text)


def explain(
    name: Annotated[
        str | None, typer.Argument(help="The name at the end of the message; leave it out for a list.")
    ] = None,
) -> None:
    """Explain an error: what happened, why it matters and what to do.

    Messages that have a page end with "See: tacit explain" and its name.
    """
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.table import Table

    known = pages()
    if name is None:
        table = Table.grid(padding=(0, 2))
        for key, page in known.items():
            table.add_row(key, summary(page))
        Console().print(table)
        return
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        fail(f"there is no page {name!r}: {hint}tacit explain lists them all", EXIT_USAGE)
    Console().print(Markdown(plain(known[name])))
