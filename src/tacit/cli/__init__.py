"""The ``tacit`` command: what does a person type?

Each group of commands lives in its own file of this folder and registers itself on the one application in
:func:`build`. Command files import the heavy rooms inside their functions, so that ``tacit --help`` is instant.
"""

from __future__ import annotations

import importlib

import typer

#: The command files, in the order in which ``tacit --help`` shows them. Each has ``register(app)``.
COMMAND_FILES = (
    "train",
    "pate",
    "tune",
    "prompt",
    "plan",
    "report",
    "audit",
    "accounting",
    "ledger",
    "data",
    "reproduce",
    "explain",
)

EPILOG = """
[bold]Examples[/bold]

Train a private model of the embedded census data; get a card and a report:

    $ tacit train labsup --epsilon 1 --delta 1e-6 --epochs 20 --batch 1024 --model linear

What would that run need, before a record is read?

    $ tacit plan labsup --epsilon 1 --delta 1e-6 --epochs 20 --batch 1024 --model linear

What does a training run cost, certified?

    $ tacit epsilon --noise 1.1 --batch 256 --examples 60000 --epochs 15 --delta 1e-5

How much noise meets a target?

    $ tacit calibrate --epsilon 3 --batch 256 --examples 60000 --epochs 15 --delta 1e-5

See which data sets are known, and which are on this machine:

    $ tacit data list

Fetch one, checked and resumable, into a folder of your own:

    $ tacit data get mnist --data-dir ~/data

Help for any command:

    $ tacit data get --help
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
