"""What every command shares: the version option, the way an error is told, and how a run goes on and ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from tacit.runs.journal import Journal

#: Exit codes of the command, documented in ``docs/cli.md``.
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_BUDGET = 3
EXIT_INTERRUPTED = 130


def fail(message: str, code: int = EXIT_ERROR) -> NoReturn:
    """Say on standard error what went wrong and what to do, then leave with ``code``."""
    typer.echo(f"tacit: {message}", err=True)
    raise typer.Exit(code)


@contextlib.contextmanager
def resumable(command: str, folder: Callable[[], Path | None]) -> Iterator[None]:
    """Ctrl-C and a disk that is full lose nothing of a run: say how it goes on."""

    def how() -> str:
        return f"go on with: tacit {command} --resume {folder()}" if folder() is not None else "nothing was begun"

    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"tacit: interrupted; {how()}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename is not None else ""
        mended = "nothing is lost: when that is mended, " if folder() is not None else ""
        fail(f"{error.strerror or error}{where}; {mended}{how()}")


def brought_out(journal: Journal) -> dict[str, Any]:
    """Publish what a run has decided; where that was done before, change nothing and say so. What is to be told."""
    from tacit.runs.journal import JournalError

    if journal.ended:
        told, mended = journal.told()
        if told is None:
            raise JournalError(f"{journal.folder} has ended; what it claims is in {journal.folder / 'privacy.json'}")
        done = f"put back what was lost or torn: {', '.join(mended)}" if mended else "nothing is changed"
        typer.echo(f"tacit: {journal.folder} has ended; {done}", err=True)
    else:
        told = journal.publish()
    files = {what: str(journal.folder / name) for what, name in told.pop("files").items()}
    return {"run": str(journal.folder), **told, **files}


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
