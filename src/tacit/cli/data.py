"""``tacit data``: which data sets are known, where are they, and how do I get one?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.common import fail

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder to search first, and to download to. Default: TACIT_DATA, then the cache."),
]
Name = Annotated[str, typer.Argument(help="A name that [bold]tacit data list[/bold] shows, such as mnist.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]

LIST_EPILOG = """
[bold]Examples[/bold]

    $ tacit data list

    $ tacit data list --data-dir ~/data --json
"""
GET_EPILOG = """
Searches --data-dir, TACIT_DATA and the cache folder, downloads what is missing from its public address, and checks
every byte. An interrupted download continues where it stopped.

[bold]Examples[/bold]

    $ tacit data get mnist

    $ tacit data get adult --data-dir ~/data

    $ tacit data get smollm2      a small language model, for tacit prompt
"""
WHERE_EPILOG = """
[bold]Examples[/bold]

    $ tacit data where            the folders that are searched, in order

    $ tacit data where labsup     the files of one data set
"""


def _rows(data_dir: Path | None) -> list[dict[str, Any]]:
    from tacit.datasets.catalog import CATALOG
    from tacit.datasets.locate import locate

    rows = []
    for entry in CATALOG.values():
        found = locate(entry, data_dir)
        rows.append(
            {
                "name": entry.name,
                "title": entry.title,
                "kind": entry.kind,
                "rows": entry.total,
                "splits": dict(entry.rows),
                "unit": entry.unit,
                "licence": entry.licence,
                "source": entry.source,
                "here": found is not None,
                "folder": str(found.folder) if found else None,
                "files": [str(path) for path in found.paths] if found else [],
                "downloadable": entry.download is not None,
            }
        )
    return rows


def _place(row: dict[str, Any]) -> str:
    if row["here"]:
        return f"here: {row['folder']}"
    return "can be downloaded" if row["downloadable"] else "missing; tacit data get says where to find it"


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("licence")
    table.add_column("here?", no_wrap=True)
    for row in rows:
        place = Text("yes", style="green") if row["here"] else Text("download" if row["downloadable"] else "no")
        table.add_row(row["name"], f"{row['rows']:,}", row["unit"], row["licence"], place)
    console.print(table)
    # The folders stand below the table: a path in every row would fold each row into many lines.
    for folder in dict.fromkeys(row["folder"] for row in rows if row["here"]):
        names = ", ".join(row["name"] for row in rows if row["folder"] == folder)
        console.print(Text.assemble("in ", (folder, "bold"), f": {names}"), soft_wrap=True)


def list_sets(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the known data sets: rows, unit of privacy, licence, and whether each is here."""
    rows = _rows(data_dir)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif sys.stdout.isatty():
        _print_table(rows)
    else:  # one line a set, tabs between, for grep and cut
        for row in rows:
            typer.echo("\t".join((row["name"], str(row["rows"]), row["unit"], row["licence"], _place(row))))


def get(name: Name, data_dir: DataDir = None) -> None:
    """Download a data set if it is missing, check all of it, and print where it is."""
    from tacit.datasets import DatasetError, load
    from tacit.datasets.catalog import MODELS
    from tacit.datasets.locate import obtain, read_checked

    try:
        if name in MODELS:
            found = obtain(MODELS[name], data_dir)
            read_checked(found.files[0], found.paths[0])
            typer.echo(f"{name}: {MODELS[name].title}; {MODELS[name].licence}")
            typer.echo(str(found.paths[0]))
            return
        dataset = load(name, data_dir)
    except DatasetError as error:
        fail(str(error))
    splits = ", ".join(f"{split} {len(part):,}" for split, part in dataset.splits.items())
    typer.echo(f"{dataset.name}: {splits} rows; unit {dataset.unit}; {dataset.licence}")
    for path in dataset.files:
        typer.echo(str(path))


def where(
    name: Annotated[str | None, typer.Argument(help="A data set. Without it, the folders that are searched.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print where the files of a data set are, or which folders are searched."""
    from tacit.datasets.catalog import MODELS
    from tacit.datasets.dataset import entry
    from tacit.datasets.errors import DatasetError
    from tacit.datasets.locate import locate, missing_message, search_folders

    if name is None:
        paths = [str(folder) for folder in search_folders(data_dir)]
    else:
        try:
            known = MODELS[name] if name in MODELS else entry(name)
        except DatasetError as error:
            fail(str(error))
        found = locate(known, data_dir)
        if found is None:
            fail(missing_message(known, data_dir))
        paths = [str(path) for path in found.paths]
    typer.echo(json.dumps(paths) if as_json else "\n".join(paths))


def register(app: typer.Typer) -> None:
    """Add ``tacit data`` to the application."""
    group = typer.Typer(
        no_args_is_help=True, rich_markup_mode="rich", help="Known data sets: list them, download one, find its files."
    )
    group.command("list", epilog=LIST_EPILOG)(list_sets)
    group.command("get", epilog=GET_EPILOG)(get)
    group.command("where", epilog=WHERE_EPILOG)(where)
    app.add_typer(group, name="data")
