"""``tacit reproduce``: run a known result again and put it next to the published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Put the command on the application."""
    app.command("reproduce")(reproduce)


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
    """
    from tacit.cli.common import fail
    from tacit.datasets import DatasetError
    from tacit.experiments import load, names
    from tacit.experiments.__main__ import reproduce as run

    if name is None:
        for known in names():
            typer.echo(f"{known:16} {load(known).ABOUT}")
        return
    try:
        run(name, out, seeds, small, data_dir, device)
    except (ValueError, FileNotFoundError, DatasetError) as error:
        fail(str(error))
