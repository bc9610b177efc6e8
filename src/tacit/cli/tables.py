"""``tacit check``, ``tacit fit`` and ``tacit predict``: how does a table become a private regression?"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.common import UNCOVERED, exits, fail, number, option

BANNER = "PRIVATE: exact facts about the rows, for the operator only. The guarantee does not cover them."
ADVICE = (
    "Mend spellings, ids and missing columns as you like. Bounds, categories and --max-rows are public: take them from "
    "a code book, not from these numbers."
)

CHECK_EPILOG = """
Exit code 1 says that a fit would be refused. Nothing is charged, because nothing here may leave the house.

[bold]Examples[/bold]

    $ tacit check clinic.csv --schema clinic.toml
"""
FIT_EPILOG = """
A target with numbers gives a linear regression, one with classes a logistic regression. model.json, privacy.json and
report.html in the run's folder may be published, and so may everything that is printed.

[bold]Examples[/bold]

    $ tacit fit clinic.csv --schema clinic.toml --epsilon 1

    $ tacit fit clinic.csv --schema clinic.toml --epsilon 1 --ledger my.db --dataset clinic --target weight
"""
PREDICT_EPILOG = """
MODEL is a model.json, or the folder of a fit. It is data, no program: loading it runs no code.

[bold]Examples[/bold]

    $ tacit predict runs/clinic-1 new.csv --out answers.csv
"""


def check(
    data: Annotated[Path, typer.Argument(help="A .csv or .parquet file.")],
    schema: Annotated[Path, typer.Option(help="Its public schema (TOML).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Tell the operator where a table and its schema do not match. The output is private."""
    from tacit.runs.check import check as checked
    from tacit.runs.folder import refusals
    from tacit.schema import Schema

    try:
        view = checked(data, Schema.from_toml(schema)).reveal()
    except refusals() as error:
        fail(str(error))
    found = view["findings"]
    refused = any(one.refused for one in found)
    if as_json:
        rows = [{"column": one.column, "text": one.text, "refused": one.refused} for one in found]
        typer.echo(
            json.dumps({"private": BANNER, "rows": view["rows"], "findings": rows}, ensure_ascii=False, indent=2)
        )
    else:
        typer.echo(f"{BANNER}\n")
        for one in found:
            typer.echo(f"  {'refused ' if one.refused else '        '}{one.column}: {one.text}")
        typer.echo(f"{'' if found else '  nothing to say'}\n{view['rows']:,} rows. {ADVICE}\n{BANNER}")
    if refused:
        raise typer.Exit(1)


def fit(
    data: Annotated[str, typer.Argument(help="A .csv or .parquet file.")],
    schema: Annotated[str, typer.Option(help="Its public schema (TOML).")],
    epsilon: Annotated[float, typer.Option(help="The ε of everything that is released.")],
    delta: Annotated[float, typer.Option(help="The δ of (ε, δ); 0 asks for pure ε.")] = 1e-6,
    target: Annotated[str | None, option("The column to predict; overrides the schema's target.")] = None,
    without: Annotated[list[str] | None, option("Leave this column out. May be repeated.")] = None,
    method: Annotated[str, typer.Option(help="As in tacit.linear_model; auto is the best one.")] = "auto",
    max_rows: Annotated[int, typer.Option(help="How many rows of one unit take part, where the schema names ids.")] = 1,
    accuracy: Annotated[
        float, typer.Option(help="The part of ε for an accuracy that may be printed; 0 releases none.")
    ] = 0.05,
    ledger: Annotated[str | None, option("The ledger to charge: a file, postgresql://… or https://…")] = None,
    dataset: Annotated[str | None, option("The data's name in the ledger.")] = None,
    tuning: Annotated[str, typer.Option(help="For the card: how settings were chosen.")] = "not stated",
    purpose: Annotated[str, typer.Option(help="What the fit is for. This is public.")] = "private regression",
    trust_model: Annotated[str, typer.Option(help="For the card: who is trusted with the data.")] = "not stated",
    release: Annotated[str, typer.Option(help="For the card: what is released, to whom.")] = "not stated",
    contact: Annotated[str, typer.Option(help="For the card: whom to ask.")] = "not stated",
    uncovered: Annotated[list[str] | None, option(UNCOVERED)] = None,
    name: Annotated[str | None, option("The run's name. Default: the data's name and a number.")] = None,
    runs: Annotated[Path, typer.Option(help="The folder that holds all runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Fit a private regression to a table, with intervals, a privacy card and a report."""
    given = {key: value for key, value in locals().items() if key not in ("name", "runs", "as_json")}
    from tacit.runs.progress import Told

    progress = Told(quiet=as_json)
    with exits("fit", progress):
        from tacit.runs.fit import FitRun, FitSettings
        from tacit.runs.folder import RunFolder, carry_out

        settings = FitSettings(
            **(given | {"without": tuple(without or ()), "uncovered": tuple(uncovered) if uncovered else None})
        )
        told = carry_out(FitRun(settings), RunFolder(runs, name), progress).told
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        show(told)


def show(told: dict[str, Any]) -> None:
    """Print a fit for people; everything here is released."""
    typer.echo(f"ε = {number(told['epsilon'])} at δ = {told['delta']:g}, {told['neighbours']}\n{told['claim']}")
    rows = told["coefficients"]
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        ends = "hidden by the noise" if row["low"] is None else f"95% {row['low']:>11.5g} to {row['high']:.5g}"
        typer.echo(f"  {row['name']:<{width}}  {row['value']:>11.5g}  {'' if told['no_intervals'] else ends}".rstrip())
    if told["no_intervals"]:
        typer.echo(told["no_intervals"])
    if "noise" in told:
        typer.echo(told["noise"])
    for result in told["results"]:
        value = result["value"]
        shown = f"{value:.1%}" if result["metric"] == "accuracy" else f"{value:,.4g}"
        typer.echo(f"{result['metric']}: {shown} ({result['note']})")
    typer.echo(f"model   {told['model']}\ncard    {told['card']}\nreport  {told['report']}")


def predict(
    model: Annotated[Path, typer.Argument(help="A model.json, or the folder of a fit.")],
    data: Annotated[Path, typer.Argument(help="A .csv or .parquet file with the columns of the fit.")],
    out: Annotated[
        Path | None, option("Where to write the answers (CSV); else they are printed.", "--out", "-o")
    ] = None,
) -> None:
    """Predict each row of a table with a model file."""
    from tacit.report.files import write_whole
    from tacit.runs import fit as fits
    from tacit.runs.folder import refusals

    try:
        rows = list(fits.predict(model, data))
    except refusals() as error:
        fail(str(error))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if out is None:
        typer.echo(text.getvalue(), nl=False)
        return
    try:
        write_whole(out, text.getvalue())
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror}")


def register(app: typer.Typer) -> None:
    """Add ``tacit check``, ``tacit fit`` and ``tacit predict`` to the application."""
    app.command("check", epilog=CHECK_EPILOG)(check)
    app.command("fit", epilog=FIT_EPILOG)(fit)
    app.command("predict", epilog=PREDICT_EPILOG)(predict)
