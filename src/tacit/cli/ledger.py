"""``tacit ledger``: what was spent on which data, what is left, and has anybody changed the record?"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import EXIT_USAGE, fail

if TYPE_CHECKING:
    from tacit.ledger import Ledger

Where = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER",
        help="A file (people.db), postgresql://user@host/database or https://service.",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(help="The name of the data set.", show_default=False)]
SomeName = Annotated[str | None, typer.Argument(help="The name of the data set. Default: all.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]

INIT_EPILOG = """
The terms are fixed forever. Keep a password out of the command line: put it in PGPASSWORD or ~/.pgpass.

[bold]Examples[/bold]

    $ tacit ledger init people.db people --epsilon 3 --delta 1e-6 --unit person

    $ tacit ledger init people.db people --epsilon 3 --delta 1e-6 --rule renyi --data people.parquet
"""
SHOW_EPILOG = """
[bold]Examples[/bold]

    $ tacit ledger show people.db

    $ tacit ledger show people.db --json
"""
BUDGET_EPILOG = """
[bold]Examples[/bold]

    $ tacit ledger budget people.db people
"""
HISTORY_EPILOG = """
[bold]Examples[/bold]

    $ tacit ledger history people.db people

    $ tacit ledger history people.db people --json | jq '.[].epsilon'
"""
CHANGES_EPILOG = """
[bold]Examples[/bold]

    $ tacit ledger changes people.db people
"""
VERIFY_EPILOG = """
The exit code is 1 if a problem is found. A head is the hash that a privacy card shows: with --head the check finds
even a history that was rewritten from the start.

[bold]Examples[/bold]

    $ tacit ledger verify people.db

    $ tacit ledger verify people.db people --head 3f6c… --reprice
"""
EXPORT_EPILOG = """
[bold]Examples[/bold]

    $ tacit ledger export people.db people > people.json

    $ tacit ledger export people.db people --format csv --output people.csv
"""


def open_ledger(where: str, *, must_exist: bool = True, key: Path | None = None) -> Ledger:
    """The ledger at a path or an address, or a message that says why there is none."""
    from tacit.ledger import Ledger, LedgerError

    if where == ":memory:":
        fail("a ledger in memory would end with this command; name a file", EXIT_USAGE)
    if must_exist and "://" not in where and not Path(where).exists():
        fail(f"there is no ledger {where}; create it with: tacit ledger init {where} NAME --epsilon … --delta …")
    try:
        return Ledger(where, key=key)
    except LedgerError as error:
        fail(str(error))


def init(
    where: Where,
    name: Name,
    epsilon: Annotated[float, typer.Option(help="The budget's ε.", show_default=False)],
    delta: Annotated[float, typer.Option(help="The budget's δ.", show_default=False)],
    unit: Annotated[str, typer.Option(help="The unit of privacy: record, person, household, …")] = "record",
    adjacency: Annotated[str, typer.Option(help="add-remove, replace-one or zero-out.")] = "add-remove",
    rule: Annotated[str, typer.Option(help="How charges add up: tight, renyi or sum.")] = "tight",
    order: Annotated[
        list[float] | None, typer.Option(help="A Rényi order. May be repeated.", show_default=False)
    ] = None,
    charges: Annotated[int, typer.Option(help="How many charges share δ, unless a charge states its own.")] = 100,
    data: Annotated[
        Path | None, typer.Option(help="The file or folder of the data, for a keyed fingerprint.", exists=True)
    ] = None,
    private_size: Annotated[bool, typer.Option("--private-size", help="Keep the number of units private.")] = False,
    renew_every: Annotated[
        str | None, typer.Option(help="Grow the budget each month, quarter, year, …", show_default=False)
    ] = None,
    renew_epsilon: Annotated[float, typer.Option(help="The ε that each renewal adds.")] = 0.0,
    renew_delta: Annotated[float, typer.Option(help="The δ that each renewal adds.")] = 0.0,
    renew_times: Annotated[int, typer.Option(help="How many renewals there will be.")] = 0,
    window: Annotated[
        int | None, typer.Option(help="Within how many consecutive versions one is.", show_default=False)
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The ledger's key, for signed heads.", show_default=False)] = None,
) -> None:
    """Register a data set with its budget, and create the ledger if there is none."""
    from tacit.accounting import PrivacyWarning
    from tacit.ledger import LedgerError

    ledger = open_ledger(where, must_exist=False, key=key)
    growth = {"every": renew_every, "epsilon": renew_epsilon, "delta": renew_delta, "times": renew_times}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PrivacyWarning)
            terms = ledger.register(
                name,
                fingerprint=data,
                unit=unit,
                adjacency=adjacency,
                size_public=not private_size,
                epsilon=epsilon,
                delta=delta,
                rule=rule,
                orders=order or None,
                charges=charges,
                renewal=growth if renew_every else None,
                window=window,
            )
        head = ledger.head(name)
    except LedgerError as error:
        fail(str(error))
    for warning in caught:
        typer.echo(f"tacit: warning: {warning.message}", err=True)
    typer.echo(f"{name}: ε={terms.epsilon:g}, δ={terms.delta:g} ({terms.words}), rule {terms.rule.name}; head {head}")


def show(where: Where, as_json: AsJson = False) -> None:
    """List the data sets with their budgets as they are now, their terms and how much is used."""
    from tacit.ledger import LedgerError

    ledger = open_ledger(where)
    try:
        budgets = [ledger.budget(name) for name in ledger.datasets()]
    except LedgerError as error:
        fail(str(error))
    if as_json:
        typer.echo(json.dumps([b.to_dict() for b in budgets], indent=2))
        return
    header = ("name", "epsilon", "delta", "neighbours", "rule", "charges", "used", "state")
    rows = [
        (
            b.dataset.name,
            f"{b.epsilon:g}",
            f"{b.delta:g}",
            b.dataset.words,
            b.dataset.rule.name,
            str(b.charges),
            f"{b.used:.1%}",
            "frozen" if b.frozen else "open",
        )
        for b in budgets
    ]
    _table(header, rows, title=str(ledger))


def budget(where: Where, name: SomeName = None, as_json: AsJson = False) -> None:
    """Show what is spent and what is left."""
    from tacit.ledger import LedgerError

    ledger = open_ledger(where)
    try:
        budgets = [ledger.budget(n) for n in ([name] if name else ledger.datasets())]
    except LedgerError as error:
        fail(str(error))
    if as_json:
        plain = [b.to_dict() for b in budgets]
        typer.echo(json.dumps(plain[0] if name else plain, indent=2))
    else:
        typer.echo("\n".join(str(b) for b in budgets))


def history(
    where: Where,
    name: Name,
    as_json: AsJson = False,
    after: Annotated[int, typer.Option(help="Show the charges behind this place.")] = -1,
    limit: Annotated[int | None, typer.Option(help="Show so many charges. Default: all.", show_default=False)] = None,
) -> None:
    """List every charge in order, and whether it was confirmed."""
    from tacit.ledger import LedgerError

    ledger = open_ledger(where)
    try:
        records = ledger.history(name, after=after, limit=limit)
    except LedgerError as error:
        fail(str(error))
    if as_json:
        typer.echo(json.dumps([record.to_dict() for record in records], indent=2))
        return
    header = ("time", "charge", "state", "epsilon", "delta", "mechanism", "purpose")
    rows = [
        (
            r.time,
            r.charge[:8],
            "confirmed" if r.confirmed else "reserved (counts as spent)",
            f"{r.price.epsilon:.6g}",
            f"{r.price.delta:g}",
            r.words,
            r.purpose,
        )
        for r in records
    ]
    _table(header, rows, title=f"{len(records)} charges on {name}")


def changes(where: Where, name: Name, as_json: AsJson = False) -> None:
    """List what was decided about a data set: terms, budget, shares, freezes, data; by whom and why."""
    from tacit.ledger import LedgerError

    ledger = open_ledger(where)
    try:
        records = ledger.changes(name)
    except LedgerError as error:
        fail(str(error))
    if as_json:
        typer.echo(json.dumps([record.to_dict() for record in records], indent=2))
        return
    header = ("time", "what", "by", "because", "details")
    rows = [
        (
            r.time,
            r.kind,
            f"{r.by['name']} ({r.by['role']})" if r.by else "-",
            r.because or "-",
            ", ".join(f"{k}={v}" for k, v in r.details.items() if v is not None),
        )
        for r in records
    ]
    _table(header, rows, title=f"{len(records)} decisions about {name}")


def verify(
    where: Where,
    name: SomeName = None,
    head: Annotated[
        list[str] | None, typer.Option(help="A head printed on a card. May be repeated.", show_default=False)
    ] = None,
    reprice: Annotated[bool, typer.Option("--reprice", help="Ask the accountant for every price again.")] = False,
    anchor: Annotated[
        list[Path] | None, typer.Option(help="A file or git repository of heads. May be repeated.", show_default=False)
    ] = None,
    public_key: Annotated[
        str | None, typer.Option(help="The ledger's public key: heads must be signed.", show_default=False)
    ] = None,
) -> None:
    """Check the hash chain, the sums and the rule, and name a row that was changed."""
    from tacit.ledger import LedgerError

    ledger = open_ledger(where)
    try:
        result = ledger.verify(name, heads=head or (), reprice=reprice, anchors=anchor or (), public_key=public_key)
    except LedgerError as error:
        fail(str(error))
    if not result.ok:
        fail("the ledger fails the check:\n" + "\n".join(f"  {problem}" for problem in result.problems))
    typer.echo(f"the ledger passes the check: {len(result.datasets)} data sets, {result.entries} entries")


def export(
    where: Where,
    name: Name,
    form: Annotated[str, typer.Option("--format", help="json or csv (the charges as a table).")] = "json",
    output: Annotated[Path | None, typer.Option(help="A file to write. Default: standard output.")] = None,
) -> None:
    """Write the terms, charges and budget for others to read. Only public values are in it."""
    from tacit.ledger import LedgerError
    from tacit.ledger import export as exporting

    if form not in ("json", "csv"):
        fail(f"unknown format {form!r}; choose json or csv", EXIT_USAGE)
    ledger = open_ledger(where)
    try:
        release = exporting.export(ledger, name)
    except LedgerError as error:
        fail(str(error))
    text = release.to_json() + "\n" if form == "json" else exporting.to_csv(release)
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {output}: {error.strerror}")


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], title: str) -> None:
    if not sys.stdout.isatty():  # one line a row, tabs between, for grep and cut
        for row in rows:
            typer.echo("\t".join(row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title)
    for column in header:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def register(app: typer.Typer) -> None:
    """Add ``tacit ledger`` to the application."""
    group: Any = typer.Typer(
        no_args_is_help=True, rich_markup_mode="rich", help="What was spent on which data, and what is left."
    )
    group.command("init", epilog=INIT_EPILOG)(init)
    group.command("show", epilog=SHOW_EPILOG)(show)
    group.command("budget", epilog=BUDGET_EPILOG)(budget)
    group.command("history", epilog=HISTORY_EPILOG)(history)
    group.command("changes", epilog=CHANGES_EPILOG)(changes)
    group.command("verify", epilog=VERIFY_EPILOG)(verify)
    group.command("export", epilog=EXPORT_EPILOG)(export)
    app.add_typer(group, name="ledger")
