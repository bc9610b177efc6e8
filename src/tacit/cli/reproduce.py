"""``tacit reproduce``: run a known result again and put it next to the published figures.

The experiments and their kept rows are a folder of the source tree, not of the installed package. :func:`source_tree`
finds it: tacit runs from a clone (an editable install, say), or the current folder is in one.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

ELSEWHERE = (
    "the experiments and their rows are in tacit's source tree, not in the installed package, and no source tree was "
    "found: clone the project, change into the clone and run tacit reproduce there"
)


class Listing(TyperCommand):
    """A command whose help ends with the list of results; the list is made only when it is asked for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help of the command, then the results."""
        from rich.markup import escape

        try:
            lines = listing()
        except FileNotFoundError as error:
            lines = [str(error)]
        self.epilog = "[bold]Results[/bold]\n\n" + "\n\n".join(escape(line) for line in lines)
        super().format_help(ctx, formatter)


def register(app: typer.Typer) -> None:
    """Put the command on the application."""
    app.command("reproduce", cls=Listing)(reproduce)


def source_tree() -> Path:
    """The clone that tacit runs from, else the one that the current folder is in."""
    here = Path.cwd()
    for folder in (Path(__file__).parents[3], here, *here.parents):
        if (folder / "src" / "tacit" / "__init__.py").is_file() and (folder / "experiments" / "__init__.py").is_file():
            return folder
    raise FileNotFoundError(ELSEWHERE)


def experiments() -> ModuleType:
    """The package ``experiments`` of the source tree."""
    folder = str(source_tree())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("experiments")


def listing() -> list[str]:
    """One line for each result."""
    known = experiments()
    return [f"{name:16} {known.about(name)}" for name in sorted([*known.names(), *known.GROUPS])]


def known() -> list[dict[str, str]]:
    """Each result with its paper, what is the same, what differs, the published figure, ours, and the times."""
    found = experiments()
    rows = []
    for name in found.names():
        facts = found.facts(name)
        rows.append(
            {
                "name": name,
                "about": found.about(name),
                "paper": facts.paper,
                "same": facts.same,
                "differs": facts.differs,
                "published": facts.published,
                "ours": facts.measured(name),
                "short": facts.short,
                "full": facts.full,
            }
        )
    groups = [{"name": name, "about": found.about(name)} for name in sorted(found.GROUPS)]
    return sorted([*rows, *groups], key=lambda row: row["name"])


def show() -> None:
    """The list for people: a block for each result."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for row in known():
        console.print(f"[bold]{escape(row['name'])}[/bold]", soft_wrap=True)
        console.print(f"  {escape(row['about'])}", soft_wrap=True)
        lines = Table.grid(padding=(0, 2))
        lines.add_column(min_width=10, style="dim")
        lines.add_column(overflow="fold")
        for word in ("paper", "same", "differs", "published", "ours", "short", "full"):
            if row.get(word):
                lines.add_row(f"  {word}", escape(row[word]))
        console.print(lines)
        console.print()
    console.print("tacit reproduce NAME runs the short size; --size full is as published, with all seeds.")


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which result; leave it out to list them.")] = None,
    size: Annotated[
        str,
        typer.Option(help="short: at most five minutes on two cores; full: as published; tiny: shows that it runs."),
    ] = "short",
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions; default: what the result asks for.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of rows, tables and plots.")] = Path("results"),
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data sets; default: TACIT_DATA.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Run a known result again, with real data, honest accounting and several seeds.

    Rows are kept as they are measured: the same command continues where an earlier one stopped. The results come with
    the source tree: run this in a clone.

    Examples:

        $ tacit reproduce                            # what there is: paper, what differs, published figure and ours

        $ tacit reproduce --json                     # the same for programs

        $ tacit reproduce accountants                # ε against steps, by every accountant

        $ tacit reproduce abadi-mnist                # five minutes on two cores

        $ tacit reproduce abadi-mnist --size full --device cuda

        $ tacit reproduce headline                   # accuracy against ε, ours and published, from kept rows
    """
    from tacit.cli.common import fail
    from tacit.datasets import DatasetError

    try:
        if name is None:
            if as_json:
                typer.echo(json.dumps(known(), ensure_ascii=False, indent=2))
            else:
                show()
            return
        members = experiments().members(name)
        run = importlib.import_module("experiments.__main__").reproduce
        for member in members:
            run(member, out, seeds, size=size, data=data_dir, device=device)
    except (ValueError, FileNotFoundError, DatasetError) as error:
        fail(str(error))
