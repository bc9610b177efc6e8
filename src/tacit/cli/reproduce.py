"""``tacit reproduce``: run a known result again and put it next to the published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand


class Listing(TyperCommand):
    """A command whose help ends with the list of results; the list is made only when it is asked for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help of the command, then the results."""
        from rich.markup import escape

        self.epilog = "[bold]Results[/bold]\n\n" + "\n\n".join(escape(line) for line in listing())
        super().format_help(ctx, formatter)


def register(app: typer.Typer) -> None:
    """Put the command on the application."""
    app.command("reproduce", cls=Listing)(reproduce)


def listing() -> list[str]:
    """One line for each result."""
    from tacit.experiments import GROUPS, about, names

    return [f"{name:16} {about(name)}" for name in sorted([*names(), *GROUPS])]


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which result; leave it out to list them.")] = None,
    small: Annotated[bool, typer.Option("--small", help="A version of seconds: shows that it runs.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions; default: what the result asks for.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of rows, tables and plots.")] = Path("results"),
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data sets; default: TACIT_DATA.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Run a known result again, with real data, honest accounting and several seeds.

    Rows are kept as they are measured: the same command goes on where an earlier one was stopped.

    Examples:

        $ tacit reproduce                            # what there is

        $ tacit reproduce accountants                # ε against steps, by every accountant

        $ tacit reproduce accountants --small        # seconds

        $ tacit reproduce headline                   # accuracy against ε, ours and published, from kept rows
    """
    from tacit.cli.common import fail
    from tacit.datasets import DatasetError
    from tacit.experiments import members
    from tacit.experiments.__main__ import reproduce as run

    if name is None:
        for line in listing():
            typer.echo(line)
        return
    try:
        for member in members(name):
            run(member, out, seeds, small, data_dir, device)
    except (ValueError, FileNotFoundError, DatasetError) as error:
        fail(str(error))
