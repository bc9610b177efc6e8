"""``tacit doctor``: why is my private model bad, and what should I change first?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.common import fail

EPILOG = """
What is said comes from public numbers and noisy gradients, which the guarantee of the run covers: it costs nothing.
With --operator it also comes from exact gradient norms, which the guarantee does not cover.

[bold]Examples[/bold]

    $ tacit doctor runs/labsup-1

    $ tacit doctor runs/labsup-1 --operator

    $ tacit doctor runs/labsup-1 --json
"""


def doctor(
    run: Annotated[Path, typer.Argument(help="The folder of a run of tacit train.", show_default=False)],
    operator: Annotated[
        bool, typer.Option("--operator", help="Also look at exact gradient norms, which are not covered.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Say what is wrong with the settings of a training run, what to change first, and what that should give."""
    from tacit.runs.doctor import doctor as ask

    try:
        found = ask(run, operator=operator)
    except (ValueError, OSError) as error:
        fail(str(error))
    typer.echo(json.dumps(found.to_dict(), indent=2, ensure_ascii=False) if as_json else str(found))


def register(app: typer.Typer) -> None:
    """Add ``tacit doctor`` to the application."""
    app.command("doctor", epilog=EPILOG)(doctor)
