"""What do all commands share? The version option, how errors are reported, and how a run continues and ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from tacit.runs.progress import Told

#: Exit codes of the command, documented in ``docs/reference/cli.md``.
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_BUDGET = 3
EXIT_INTERRUPTED = 130


def fail(message: str, code: int = EXIT_ERROR) -> NoReturn:
    """Say on standard error what went wrong and what to do, then exit with ``code``."""
    typer.echo(f"tacit: {message}", err=True)
    raise typer.Exit(code)


@contextlib.contextmanager
def exits(command: str, progress: Told, *, usage: int = EXIT_USAGE) -> Iterator[None]:
    """Turn what can go wrong in a run into a message that says how to continue, and an exit code.

    Ctrl-C and a full disk lose nothing of a run.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if (told := _ending(error, command, progress, usage)) is None:
            raise
        fail(*told)


def _ending(error: BaseException, command: str, progress: Told, usage: int) -> tuple[str, int] | None:
    """Message and exit code of an error that means something to the user; None for a mistake of ours."""
    from tacit.runs.progress import Interrupted
    from tacit.runs.settings import SettingsError

    how = f"continue with: {again(command, progress)}" if progress.folder is not None else "nothing was started"
    if isinstance(error, KeyboardInterrupt):
        return str(error) if isinstance(error, Interrupted) else f"interrupted; {how}", EXIT_INTERRUPTED
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename is not None else ""
        mended = "nothing is lost: when that is fixed, " if progress.folder is not None else ""
        return f"{error.strerror or error}{where}; {mended}{how}", EXIT_ERROR
    if isinstance(error, SettingsError):
        return str(error), usage
    from tacit.ledger import BudgetExceeded, StorageError
    from tacit.runs.folder import refusals
    from tacit.runs.journal import NameTaken

    if isinstance(error, NameTaken):
        return str(NameTaken(error.folder, f"tacit {command} --resume {error.folder}")), usage
    if isinstance(error, StorageError) and progress.folder is not None and progress.folder.exists():
        return f"{error}. When that is mended, {how}", EXIT_ERROR
    if isinstance(error, refusals()):
        return str(error), EXIT_BUDGET if isinstance(error, BudgetExceeded) else EXIT_ERROR
    return None


def again(command: str, progress: Told) -> str:
    """The command line that continues a run."""
    return f"tacit {command} --resume {progress.folder}"


#: An option of every command that writes a card.
UNCOVERED = (
    "For the card: what else was released about these data without being charged; the word nothing if nothing was. May "
    "be repeated."
)


def option(help_text: str, *names: str) -> Any:
    """An option without a default of its own."""
    return typer.Option(*names, help=help_text, show_default=False)


def number(value: float | str) -> str:
    """An ε as it is printed. A text means that it is infinite."""
    return f"{value:.10g}" if isinstance(value, float) else "∞"


def show_results(results: list[dict[str, Any]]) -> None:
    """How good the models of a run are on public rows."""
    for result in results:
        of = f" ({result['group']})" if result["group"] else ""
        value = result["value"]
        share = result["metric"] == "accuracy" or result["metric"].startswith("share of ")
        shown = f"{value:.1%}" if share else f"{value:,.4g}"
        note = f" ({result['note']})" if result["note"] else ""
        by = ", by " if result["metric"].startswith("share of ") else " of "
        typer.echo(f"  {result['metric']}{by}{result['model']}{of}: {shown} on {result['rows']:,} public rows{note}")


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
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        pass
