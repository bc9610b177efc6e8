"""The ``tacit`` command: what does a person type?

Each group of commands has its own file in this folder and registers itself on the application in :func:`build`.
Command files import the heavy rooms inside their functions, so that ``tacit --help`` is instant.
"""

from __future__ import annotations

import importlib

import typer

#: The command files, in the order in which ``tacit --help`` shows them. Each has ``register(app)``.
COMMAND_FILES = (
    "train",
    "doctor",
    "tables",
    "pate",
    "tune",
    "prompt",
    "plan",
    "report",
    "studio",
    "audit",
    "selftest",
    "accounting",
    "ledger",
    "ledger_service",
    "data",
    "reproduce",
    "explain",
)

EPILOG = """
[bold]Examples[/bold]

Train a private model on census data, with a privacy card and a report:

    $ tacit train labsup --epsilon 1 --delta 1e-6 --epochs 20 --batch 1024 --model linear

What would that run cost? No record is read:

    $ tacit plan labsup --epsilon 1 --delta 1e-6 --epochs 20 --batch 1024 --model linear

What is the ε of a training run?

    $ tacit epsilon --noise 1.1 --batch 256 --examples 60000 --epochs 15 --delta 1e-5

How much noise does a target ε need?

    $ tacit calibrate --epsilon 3 --batch 256 --examples 60000 --epochs 15 --delta 1e-5

List the known data sets, and which are on this machine:

    $ tacit data list

Download one into your own folder, and check it:

    $ tacit data get mnist --data-dir ~/data

Help for any command, and for an error message:

    $ tacit data get --help

    $ tacit explain
"""


def build() -> typer.Typer:
    """Put the application together from the command files."""
    from tacit.cli import common

    app = typer.Typer(
        name="tacit",
        help="Differentially private machine learning with a certified guarantee.",
        epilog=EPILOG,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_show_locals=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    common.register(app)
    for name in COMMAND_FILES:
        importlib.import_module(f"tacit.cli.{name}").register(app)
    return app


def main() -> None:
    """Entry point of the ``tacit`` command."""
    build()()
