"""``tacit selftest``: does the installed tacit keep its promises, and would a broken one be caught?"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.common import EXIT_USAGE, fail

if TYPE_CHECKING:
    from tacit.selftest import Examination, MutantOutcome

#: Exit code where a check raises an alarm, or a mutant is not caught; documented in docs/howto/selftest.md.
EXIT_FAILED = 4

EPILOG = """
First every scene is run against tacit as it is: what is released, charged and refused in each room, seen from outside.
The table shows what share of the statements of each room was run. Then tacit is broken in many ways that have been
seen in real libraries, one at a time, and a scene must catch each. A false alarm has probability below 1e-6.
The whole takes minutes; --quick leaves out the mutants and the scenes that add least for their time.

[bold]Examples[/bold]

    $ tacit selftest

    $ tacit selftest --quick

    $ tacit selftest noise "soft prompt"

    $ tacit selftest --json > selftest.json
"""


def selftest(
    names: Annotated[
        list[str] | None, typer.Argument(help="Parts of the names of mutants. Default: all.", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only tacit as it is; no long scenes, no mutants.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the made-up data. Noise is always fresh.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Check every room of the installed tacit; break it in many ways and check that each is caught."""
    from tacit.selftest import examine, try_mutants

    if quick and names:
        fail("--quick tests no mutants: leave out their names, or --quick", EXIT_USAGE)
    outcomes, took = [], dict[str, float]()
    with _status() as tell:
        try:
            mutants = iter(()) if quick else try_mutants(seed, tuple(names) if names else None, tell, took)
        except ValueError as error:
            fail(str(error), EXIT_USAGE)
        examination = examine(seed, quick=quick, tell=tell)
        took.update(examination.seconds)
        if not as_json:
            _show_examination(examination)
        for outcome in mutants:
            outcomes.append(outcome)
            if not as_json:
                _show_outcome(outcome)
    if as_json:
        found = {"tacit": examination.to_dict(), "mutants": [o.to_dict() for o in outcomes]}
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _show_sum(examination, outcomes)
    if not examination.passes or not all(o.good for o in outcomes):
        raise typer.Exit(EXIT_FAILED)


@contextlib.contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """What is being looked at, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    from rich.console import Console

    with Console(stderr=True).status("selftest …") as status:
        yield lambda name: status.update(f"selftest: {name} …")


def _show_examination(examination: Examination) -> None:
    from rich.console import Console
    from rich.table import Table

    from tacit.selftest.battery import battery
    from tacit.selftest.reach import LEFT_OUT

    table = Table("room", "statements run", "scenes", "findings", "alarms", box=None)
    scenes = battery()
    for room, reach in examination.reach.items():
        here = [name for name in examination.findings if scenes[name].room == room]
        found = [finding for name in here for finding in examination.findings[name]]
        alarms = sum(finding in examination.failures for finding in found)
        share = f"{reach.share:.0%} of {reach.count:,}"
        table.add_row(room, share, str(len(here)), str(len(found)), f"[red]{alarms}[/]" if alarms else "0")
    Console().print(table)
    typer.echo("Not counted: " + "; ".join(f"{part} ({why})" for part, why in LEFT_OUT.items()))
    for name, why in examination.skipped.items():
        typer.echo(f"not covered: {name} ({why})")
    for finding in examination.failures:
        typer.echo(f"ALARM {finding.check}: {finding.detail}")


def _show_outcome(outcome: MutantOutcome) -> None:
    said = outcome.caught_by or outcome.skipped or "NOT CAUGHT"
    mark = "ok" if outcome.caught else "--" if outcome.skipped else "NO"
    typer.echo(f"{mark}  {outcome.name}  [{outcome.room}, {outcome.family}]  {said}  {outcome.seconds:.1f} s")


def _show_sum(examination: Examination, outcomes: list[MutantOutcome]) -> None:
    passes = "passes" if examination.passes else "FAILS"
    count = sum(len(found) for found in examination.findings.values())
    took = sum(examination.seconds.values())
    typer.echo(f"tacit itself {passes}: {len(examination.findings)} scenes, {count} findings, {took:.0f} s")
    tested = [o for o in outcomes if not o.skipped]
    if outcomes:
        caught = sum(o.caught for o in tested)
        seconds = sum(o.seconds for o in outcomes)
        typer.echo(f"{caught} of {len(tested)} mutants caught, {len(outcomes) - len(tested)} skipped, {seconds:.0f} s")


def register(app: typer.Typer) -> None:
    """Add ``tacit selftest`` to the application."""
    app.command("selftest", epilog=EPILOG)(selftest)
