"""``tacit plan``: what would a run cost in noise, time and memory, before any record is read?"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import EXIT_USAGE, fail

if TYPE_CHECKING:
    from tacit.schema import Schema

EPILOG = """
No record is read. Time is measured, and memory estimated, on random inputs with the public shape of the data.

[bold]Examples[/bold]

    $ tacit plan labsup --epsilon 1 --delta 1e-6 --epochs 20 --batch 1024

    $ tacit plan --users 20000 --rows-per-user 40 --epsilon 2 --delta 1e-6 --steps 2000 --batch 512

    $ tacit plan --schema clinic.toml --examples 20000 --epsilon 3 --delta 1e-6 --epochs 30 --batch 512 --model mlp
"""


def plan(
    data: Annotated[str | None, typer.Argument(help="A known data set, for its public size and schema.")] = None,
    schema: Annotated[
        Path | None, typer.Option(help="The public schema of your table (TOML), instead of a known data set.")
    ] = None,
    examples: Annotated[int | None, typer.Option(help="The public number of records.")] = None,
    target: Annotated[
        str | None, typer.Option(help="The column to predict; the schema's own target becomes a feature.")
    ] = None,
    without: Annotated[list[str] | None, typer.Option(help="Leave this column out. May be repeated.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The ε to stay within.")] = None,
    delta: Annotated[float | None, typer.Option(help="The δ of (ε, δ), such as 1e-6.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps, instead of --epochs.")] = None,
    batch: Annotated[int, typer.Option(help="Expected batch size.")] = 256,
    model: Annotated[str, typer.Option(help="linear, mlp, cnn, or your own module:factory.")] = "mlp",
    adjacency: Annotated[str, typer.Option(help="add-remove, replace-one or zero-out.")] = "add-remove",
    users: Annotated[
        int | None, typer.Option(help="The public number of people: compare drawing people with drawing rows.")
    ] = None,
    rows_per_user: Annotated[int | None, typer.Option(help="How many rows each of them has, about.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Show the noise, ε by each accountant, time and memory of a run, and which change would help most."""
    people = _people(users, rows_per_user, named=data is not None or schema is not None)
    public, rows = (None, people[0] * people[1]) if people else _public(data, schema, examples, target, without or ())
    if epsilon is None or not 0 < epsilon < math.inf:
        fail("give --epsilon, a number above 0", EXIT_USAGE)
    if delta is None or not 0 < delta < 1:
        fail("give --delta between 0 and 1, such as 1e-6", EXIT_USAGE)
    if (epochs is None) == (steps is None):
        fail("give --epochs or --steps, one of the two", EXIT_USAGE)
    if not 1 <= batch <= rows:
        fail(f"--batch must be between 1 and the {rows} records, not {batch}", EXIT_USAGE)
    count = steps if steps is not None else math.ceil(float(epochs or 0) * math.ceil(rows / batch))
    if count < 1:
        fail("a run has at least one step", EXIT_USAGE)
    if public is None:
        assert people is not None
        _compare(people, batch, count, epsilon, delta, adjacency, as_json=as_json)
        return
    from tacit import accounting as acc
    from tacit.runs.models import ModelRefused
    from tacit.runs.plan import Case, describe

    case = Case(rows, batch, count, epsilon, delta, adjacency, public.unit.name)
    try:
        told = describe(case, public, model)
    except ModelRefused as error:
        fail(str(error), EXIT_USAGE)
    except acc.AccountingError as error:
        fail(str(error))
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        _tell(told)


def _people(users: int | None, rows: int | None, *, named: bool) -> tuple[int, int] | None:
    """How many people and rows of each, where they are asked about."""
    if users is None and rows is None:
        return None
    if users is None or rows is None or users < 1 or rows < 1:
        fail("give --users and --rows-per-user together, whole numbers above 0", EXIT_USAGE)
    if named:
        fail("--users needs no data: leave out the data set and --schema", EXIT_USAGE)
    return users, rows


def _compare(
    people: tuple[int, int], batch: int, steps: int, epsilon: float, delta: float, adjacency: str, *, as_json: bool
) -> None:
    """People drawn, or rows drawn: what each costs."""
    from tacit import accounting as acc
    from tacit.runs.users import Crowd, cheapest

    try:
        ways = Crowd(*people, batch, steps, epsilon, delta, adjacency).ways()
    except acc.AccountingError as error:
        fail(str(error))
    best = cheapest(ways)
    if as_json:
        typer.echo(json.dumps({"ways": ways, "cheapest": best}, indent=2, ensure_ascii=False))
        return
    typer.echo(f"{people[0]:,} people with {people[1]:,} rows each, {batch:,} rows a step, {steps:,} steps")
    typer.echo(f"  ε = {epsilon:g} at δ = {delta:g} for one person with all their rows ({adjacency})\n")
    typer.echo("drawn  max rows  batch size  noise multiplier  noise of a step  at best  people a step  rows used")
    for way in ways:
        mark = "  <- least noise" if way == best else ""
        typer.echo(
            f"{way['draw']:<5}  {way['max_rows']:>8,}  {way['batch_size']:>10,}  {way['noise']:>16.4f}  "
            f"{way['noise_of_a_step']:>15.3g}  {way['noise_at_best']:>7.3g}  {way['people_in_a_step']:>13,.0f}  "
            f"{way['share_of_rows']:>9.1%}{mark}"
        )
    typer.echo(
        "\nNoise of a step: on the mean of what was clipped, for each parameter, in clip norms of a single row. The\n"
        "mean of k rows of a person is as long as a row where they are alike, and up to √k times shorter where they\n"
        "differ: then a smaller clip norm gives the noise 'at best'."
    )
    typer.echo(f"cheapest: draw={best['draw']!r}, max_rows={best['max_rows']}, batch_size={best['batch_size']}")


def _public(
    data: str | None, schema: Path | None, examples: int | None, target: str | None, without: Sequence[str]
) -> tuple[Schema, int]:
    """The public schema and size; the data themselves are not opened."""
    from tacit import datasets
    from tacit.schema import Schema, SchemaError

    if data is not None and schema is not None:
        fail("give a known data set or --schema, one of the two", EXIT_USAGE)
    try:
        if data is not None:
            known = datasets.entry(data)
            found = datasets.schema(data)
            size = examples or known.rows.get("train", known.total)
        elif schema is not None:
            found = Schema.from_toml(schema)
            if examples is None:
                fail("give --examples, the public number of records", EXIT_USAGE)
            size = examples
        else:
            fail("name a known data set (tacit data list), or give --schema and --examples", EXIT_USAGE)
    except (datasets.DatasetError, SchemaError) as error:
        fail(str(error))
    if size < 1:
        fail(f"--examples is a whole number, 1 or more, not {size}", EXIT_USAGE)
    try:
        found = found.predicting(target, tuple(without))
    except SchemaError as error:
        fail(f"--{'target' if target is not None else 'without'}: {error}", EXIT_USAGE)
    if found.target is None:
        fail(
            "the schema marks no column as the target (target = true) and none is named (--target): there is nothing "
            "to predict"
        )
    return found, size


def _tell(told: dict[str, Any]) -> None:
    bound = told["epsilon"]
    typer.echo(
        f"noise multiplier {told['noise']:.4f}, {told['steps']:,} steps, batches of {told['batch']:,} on average"
    )
    typer.echo(f"  keeps ε = {bound['upper']:.6f} at δ = {bound['given']:g}, {told['terms']} (certified upper bound)\n")
    typer.echo("ε of this run by other accountants:")
    for way, value in told["accountants"].items():
        shown = f"{value:.4f}" if isinstance(value, float) else f"- ({value})"
        typer.echo(f"  {way:<10} {shown}")
    typer.echo(
        f"\nmodel {told['model']}: {told['parameters']:,} parameters; about {_duration(told['seconds'])} on this "
        f"machine ({told['seconds_a_step'] * 1000:.1f} ms a step), {told['bytes'] / 2**20:,.0f} MiB\n"
    )
    typer.echo(
        f"noise of a step {told['noise_of_a_step']:.3g}, of the run's mean gradient {told['noise_of_the_run']:.3g}"
    )
    typer.echo("(in clip norms: at 1 the noise is as long as the longest gradient). What would change the latter:")
    for row in told["changes"]:
        typer.echo(f"  {row['change']:<40} x {row['times']:.2f}   costs: {row['costs']}")
    free = [row for row in told["changes"] if row["costs"].startswith("no privacy") and row["times"] < 0.97]
    if free:
        best = free[0]
        typer.echo(f"\nhelps most without costing privacy: {best['change']} (noise x {best['times']:.2f})")
    else:
        best = told["changes"][0]
        typer.echo(
            f"\nno larger batch or longer run would lower the noise; what helps most is {best['change']} "
            f"(noise x {best['times']:.2f})"
        )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else "1 s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def register(app: typer.Typer) -> None:
    """Add ``tacit plan`` to the application."""
    app.command("plan", epilog=EPILOG)(plan)
