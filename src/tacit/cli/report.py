"""``tacit report``: what may I show, and what may only I see?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.common import fail

EPILOG = """
The report shows charged and public values only. The operator's page shows diagnostics that the guarantee does not
cover: it is written into the private folder of the run, and only its owner can read it.

[bold]Examples[/bold]

    $ tacit report runs/labsup-1

    $ tacit report runs/labsup-1 --operator

    $ tacit report card.json --output page.html
"""


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or a privacy.json.", show_default=False)],
    operator: Annotated[
        bool, typer.Option("--operator", help="Also write the operator's page, with diagnostics that are not covered.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Where to write. Default: report.html beside the card.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Check a privacy card, and write report.html from it."""
    from tacit.ledger import PrivateValueError
    from tacit.report import CardError, read_card, write_page

    path = run / "privacy.json" if run.is_dir() else run
    if run.is_dir() and not path.exists():
        fail(f"{run} has no privacy.json: the run has not ended. Continue with: tacit train --resume {run}")
    told: dict[str, object] = {}
    try:
        card = read_card(path)
        told = {"report": str(write_page(card, output or path.with_name("report.html")))}
        if operator:
            from tacit.report.operator import read_log, write_operator_page

            private = path.parent / "private"
            views = read_log(private / "operator.jsonl")
            told["operator"] = str(write_operator_page(card, views, private / "operator.html"))
    except (CardError, PrivateValueError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"cannot write {error.filename}: {error.strerror}")
    guarantee = card["guarantee"]
    told["epsilon"], told["delta"] = guarantee["epsilon"]["claimed"], guarantee["delta"]
    told["neighbours"] = guarantee["neighbours"]
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    shown = guarantee["epsilon"]["claimed"]
    typer.echo(
        f"ε = {shown if isinstance(shown, str) else f'{shown:.10g}'} at δ = {told['delta']:g}, {told['neighbours']}"
    )
    typer.echo(guarantee["claim"])
    typer.echo(told["report"])
    if operator:
        typer.echo(f"{told['operator']} (private: not covered by the guarantee)")


def register(app: typer.Typer) -> None:
    """Add ``tacit report`` to the application."""
    app.command("report", epilog=EPILOG)(report)
