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
    from tacit.runs.audit import Audited

#: Exit code where an audit refutes the claim; documented in docs/howto/audit.md.
EXIT_FAILED = 4

AUDIT_EPILOG = """
First the files: the mechanism on the card is priced again, and card, settings, model and canaries are compared with
each other and with the entry of the run's charge in the ledger, which holds the hashes of the release. Without such an
entry the release is "not bound". Then the implementation, on made-up records of the run's shape: clipping, noise,
sampling, price. No private record is read. With --canaries the run is repeated on made-up records with canaries, each
included with probability 1/2, and attacked. Canaries that the run itself had (tacit train --audit-canaries, or
fit(audit_canaries=...) saved as private/canaries.npz) are always read: their noise, their draws and their scores are
tested against the claim. What they show beside private records goes only to the operator's own terminal and log,
because it holds the noise of the run.

The verdict is pass, fail (exit code 4) or underpowered, with the probability that each of some lies would have been
found. Where the claim is refuted, nothing is written into the card.

[bold]Examples[/bold]

    $ tacit audit runs/labsup-1

    $ tacit train labsup --epsilon 4 --delta 1e-6 --epochs 20 --audit-canaries 200 --name mine && tacit audit runs/mine

    $ tacit audit runs/mnist-1 --canaries 1000

    $ tacit audit runs/labsup-1 --ledger people.db

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
    ledger: Annotated[
        str | None,
        typer.Option(help="The ledger that was charged. Default: the one that the run names.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Check what a run claims, attack it, and write the verdict into the card and the report."""
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
        with _spinner("audit") as tell:
            done = attacked(run, Attack(canaries, members, confidence, ledger), Told(), tell)
    except (DatasetError, PrivateValueError, ValueError, OSError) as error:
        fail(str(error))
    if as_json:
        from tacit.ledger.release import json_values

        typer.echo(json.dumps(json_values(done.to_dict()), indent=2, ensure_ascii=False))
    else:
        _show_claims(done)
        if done.found is not None:
            _show(done.found)
        typer.echo(done.sentence)
        if done.verdict == "underpowered":
            typer.echo("This proves nothing either way. See: tacit explain audit-underpowered")
        if not done.refuted:
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
        typer.echo(one.sentence, err=True)
    typer.echo(f"log     {log}", err=True)


def _show_claims(done: Audited) -> None:
    """Claim by claim: what was checked, how, and what came of it."""
    from rich.console import Console
    from rich.table import Table

    colours = {"agrees": "green", "CONTRADICTED": "red"}
    table = Table("claim", "result", "how it was checked", "what was seen", box=None)
    for claim in done.claims:
        colour = colours.get(claim.result, "yellow")
        table.add_row(claim.name, f"[{colour}]{claim.result}[/]", claim.how, claim.detail)
    Console().print(table)


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
    if found.powers:
        table = Table("a run with", "would have been found with probability", "by", box=None)
        for power in found.powers:
            table.add_row(power.lie, power.shown, power.by)
        console.print(table)


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
