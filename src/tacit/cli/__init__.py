"""The ``tacit`` command: what does a person type?

Each group of commands lives in its own file of this folder and registers itself on the one application in
:func:`build`. Command files import the heavy rooms inside their functions, so that ``tacit --help`` is instant.
"""

from __future__ import annotations

import typer


def build() -> typer.Typer:
    """Put the application together from the command files."""
    from tacit.cli import common

    app = typer.Typer(
        name="tacit",
        help="Differentially private machine learning with a certified guarantee.",
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    common.register(app)
    return app


def main() -> None:
    """Entry point of the ``tacit`` command."""
    build()()
