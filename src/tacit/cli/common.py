"""What every command shares: the version option and the way an error is told."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

#: Exit codes of the command, documented in ``docs/cli.md``.
EXIT_ERROR = 1
EXIT_USAGE = 2


def fail(message: str, code: int = EXIT_ERROR) -> NoReturn:
    """Say on standard error what went wrong and what to do, then leave with ``code``."""
    typer.echo(f"tacit: {message}", err=True)
    raise typer.Exit(code)


def _version(value: bool) -> None:
    if value:
        from tacit import __version__

        typer.echo(f"tacit {__version__}")
        raise typer.Exit


def register(app: typer.Typer) -> None:
    """Add the options that stand before any command."""

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
        ] = False,
    ) -> None:
        pass
