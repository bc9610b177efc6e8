"""``tacit audit``: does this run keep its claim?"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.common import EXIT_USAGE, fail

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.audit import Audit
    from tacit.audit.attacks import Membership

#: Exit code where an audit refutes the claim; documented in docs/howto/audit.md.
EXIT_FAILED = 4

AUDIT_EPILOG = """
The implementation is checked on made-up records of the run's shape: clipping, noise, sampling, price. No private
record is read. With --canaries the run is repeated on made-up records with canaries, each included with probability
1/2, and attacked; what they prove goes into the card and the report. Canaries that the run itself had (tacit train
--audit-canaries, or fit(audit_canaries=...) saved as private/canaries.npz) are always read; what they prove beside
private records goes only to the operator's own terminal and log, because it depends on the noise of the run.
The verdict is pass, fail (exit code 4) or underpowered, and always states the best bound that was within reach.

[bold]Examples[/bold]

    $ tacit audit runs/labsup-1

    $ tacit train labsup --epsilon 4 --delta 1e-6 --epochs 20 --audit-canaries 200 --name mine && tacit audit runs/mine

    $ tacit audit runs/mnist-1 --canaries 1000

    $ tacit audit runs/labsup-1 --members
"""


# -- audit -------------------------------------------------------------------------------------------------------------


def audit(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has ended.", show_default=False)],
    canaries: Annotated[
        int | None, typer.Option(help="Repeat the run on made-up records with this many canaries.", show_default=False)
    ] = None,
    members: Annotated[
        bool,
        typer.Option("--members", help="Also attack with the private rows. Results go to the operator's log only."),
    ] = False,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Attack a run, show a lower bound next to its claim, and write both into the card and the report."""
    if not (run / "config.toml").exists():
        fail(f"{run} is not the folder of a run: it has no config.toml", EXIT_USAGE)
    if not (run / "privacy.json").exists():
        from tacit.runs.audit import not_ended

        fail(f"{run} has no privacy.json: the run has not ended; {not_ended(run)}")
    if not 0 < confidence < 1:
        fail(f"--confidence must be between 0 and 1, not {confidence:g}", EXIT_USAGE)
    from tacit.datasets import DatasetError
    from tacit.ledger import PrivateValueError
    from tacit.runs.audit import Attack
    from tacit.runs.audit import audit as attacked
    from tacit.runs.progress import Told

    try:
        with _spinner("the implementation") as tell:
            done = attacked(run, Attack(canaries, members, confidence), Told(), tell)
    except (DatasetError, PrivateValueError, ValueError) as error:
        fail(str(error))
    if as_json:
        from tacit.ledger.release import json_values

        typer.echo(json.dumps(json_values(done.found.to_dict()), indent=2, ensure_ascii=False))
    else:
        _show(done.found)
        typer.echo(f"card    {run / 'privacy.json'}\nreport  {run / 'report.html'}")
    if done.for_the_operator:
        _tell_operator(done.for_the_operator, run / "private" / "operator.jsonl")
    if done.refuted:
        raise typer.Exit(EXIT_FAILED)


def _tell_operator(told: list[Audit | Membership], log: Path) -> None:
    """On the screen, where that is the operator's own; else where it is to be found."""
    from rich.console import Console

    from tacit.audit import Audit

    if not sys.stderr.isatty():
        typer.echo(f"tacit: the results for the operator only are in {log}", err=True)
        return
    for one in told:
        if not isinstance(one, Audit):
            typer.echo(repr(one), err=True)
            continue
        assert one.evidence is not None
        count = one.evidence.details["canaries"]
        typer.echo(f"\nOPERATOR VIEW, not to be published: what the {count:,} canaries of this run prove", err=True)
        _show(one, Console(stderr=True))
    typer.echo(f"log     {log}", err=True)


def _show(found: Audit, console: Console | None = None) -> None:
    """What a person reads."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    if found.findings:
        table = Table("check", "p-value", "what was seen", "smallest fault it would detect", box=None)
        share = found.significance / len(found.findings)
        for finding in found.findings:
            mark = "[green]passes[/]" if finding.passes(share) else "[red]FAILS[/]"
            table.add_row(f"{mark} {finding.check}", f"{finding.p_value:.2g}", finding.detail, finding.best)
        console.print(table)
    if found.evidence is not None:
        table = Table("lower bound on ε", "value", "", box=None)
        for name, value in found.evidence.figures.items():
            note = "estimate: a certificate only for independent repeats of an unsampled Gaussian"
            table.add_row(name, f"{value:.3f}", note if name in found.evidence.estimates else "")
        console.print(table)
    typer.echo(found.sentence, err=console.stderr)
    if found.verdict == "underpowered":
        typer.echo("This proves nothing either way. See: tacit explain audit-underpowered", err=console.stderr)


@contextlib.contextmanager
def _spinner(what: str) -> Iterator[Callable[[str], None]]:
    """What is being looked at, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …") as status:
        yield lambda name: status.update(f"{what}: {name} …")


def register(app: typer.Typer) -> None:
    """Add ``tacit audit`` to the application."""
    app.command("audit", epilog=AUDIT_EPILOG)(audit)
