"""``tacit report``: what may I show, and what may only I see?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.common import EXIT_USAGE, fail, option

if TYPE_CHECKING:
    from tacit.ledger import Release

EPILOG = """
The report shows charged and public values only. The operator's page shows diagnostics that the guarantee does not
cover: it is written into the private folder of the run, and only its owner can read it.

[bold]Examples[/bold]

    $ tacit report runs/labsup-1

    $ tacit report runs/labsup-1 --language de --pdf

    $ tacit report runs/labsup-1 --registry entry.yaml --curator "Statistics Office" --region Georgia --author "A. Lee"

    $ tacit report runs/labsup-1 --operator

    $ tacit report card.json --output page.html
"""


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or a privacy.json.", show_default=False)],
    operator: Annotated[
        bool, typer.Option("--operator", help="Also write the operator's page, with diagnostics that are not covered.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Where to write. Default: report.html beside the card.")] = None,
    language: Annotated[str, typer.Option(help="en or de; another than en is written to report.de.html.")] = "en",
    pdf: Annotated[bool, typer.Option("--pdf", help="Also print the report to a PDF, with Chromium.")] = False,
    registry: Annotated[Path | None, option("Write the entry for the public registry of deployments (YAML).")] = None,
    curator: Annotated[list[str] | None, option("For the registry: who publishes. May be repeated.")] = None,
    region: Annotated[str, typer.Option(help="For the registry: which region the data describe.")] = "",
    author: Annotated[list[str] | None, option("For the registry: who fills it in. May be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Check a privacy card, and write report.html from it."""
    from tacit.ledger import PrivateValueError
    from tacit.report import CardError, read_card, write_page
    from tacit.report.pdf import NoPrinter, write_pdf
    from tacit.report.texts import UnknownLanguage, check_language

    path = run / "privacy.json" if run.is_dir() else run
    if run.is_dir() and not path.exists():
        fail(f"{run} has no privacy.json: the run has not ended. Continue with: tacit train --resume {run}")
    told: dict[str, object] = {}
    try:
        named = "report.html" if check_language(language) == "en" else f"report.{language}.html"
        card = read_card(path)
        page = write_page(card, output or path.with_name(named), language)
        told = {"report": str(page)}
        if pdf:
            told["pdf"] = str(write_pdf(page, page.with_suffix(".pdf")))
        if registry is not None:
            told["registry"] = _register(card, registry, (tuple(curator or ()), region, tuple(author or ())))
        if operator:
            from tacit.report.operator import read_log, write_operator_page

            private = path.parent / "private"
            views = read_log(private / "operator.jsonl")
            told["operator"] = str(write_operator_page(card, views, private / "operator.html"))
    except UnknownLanguage as error:
        fail(f"--language: {error}", EXIT_USAGE)
    except (CardError, PrivateValueError, NoPrinter) as error:
        fail(str(error))
    except OSError as error:
        fail(f"cannot write {error.filename}: {error.strerror}")
    _say(card, told, as_json=as_json)


def _register(card: Release, path: Path, given: tuple[tuple[str, ...], str, tuple[str, ...]]) -> str:
    """The registry's entry; what a card cannot know is asked for on a terminal, and marked elsewhere."""
    from tacit.report.registry import OPEN, RegistryAnswers, write_record

    curators, region, authors = given
    if sys.stdin.isatty():
        curators = curators or _several(typer.prompt("Who publishes (curators, separated by commas)", default=""))
        region = region or typer.prompt("Which region do the data describe", default="")
        authors = authors or _several(typer.prompt("Who fills in this entry (authors)", default=""))
    answers = RegistryAnswers(curators, region, authors)
    written = write_record(card, path, answers)
    if missing := answers.open():
        typer.echo(f"tacit: {path}: fill in {', '.join(missing)}, marked {OPEN!r}", err=True)
    return str(written)


def _several(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _say(card: Release, told: dict[str, object], *, as_json: bool) -> None:
    """What was written, and the claim."""
    guarantee = card["guarantee"]
    shown, delta, neighbours = guarantee["epsilon"]["claimed"], guarantee["delta"], guarantee["neighbours"]
    if as_json:
        plain = told | {"epsilon": shown, "delta": delta, "neighbours": neighbours}
        typer.echo(json.dumps(plain, indent=2, ensure_ascii=False))
        return
    typer.echo(f"ε = {shown if isinstance(shown, str) else f'{shown:.10g}'} at δ = {delta:g}, {neighbours}")
    typer.echo(guarantee["claim"])
    for name in ("report", "pdf", "registry"):
        if name in told:
            typer.echo(told[name])
    if "operator" in told:
        typer.echo(f"{told['operator']} (private: not covered by the guarantee)")


def register(app: typer.Typer) -> None:
    """Add ``tacit report`` to the application."""
    app.command("report", epilog=EPILOG)(report)
