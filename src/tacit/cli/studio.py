"""``tacit studio``: how do we decide about ε together, around a screen?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.common import EXIT_USAGE, fail, option

EPILOG = """
It listens on this machine only, and its address holds a token. Nothing is loaded from anywhere else.
For another machine give --host, --allow-host with the name that people type, and TLS or a proxy that does it.
A ledger's service takes its token from TACIT_LEDGER_TOKEN; what you may do there, you may do here.

[bold]Examples[/bold]

    $ tacit studio

    $ tacit studio --ledger people.db --runs runs

    $ tacit studio --host 0.0.0.0 --allow-host studio.example.org --tls-cert cert.pem --tls-key key.pem
"""


def studio(
    runs: Annotated[Path, typer.Option(help="The folder with the folders of runs.")] = Path("runs"),
    ledger: Annotated[str | None, option("A ledger: a file, a database or a service.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 8760,
    tokens: Annotated[
        Path | None, option("Tokens with roles (tacit ledger token). Default: one, for an owner.")
    ] = None,
    allow_host: Annotated[list[str] | None, option("A name under which it is reached. May be repeated.")] = None,
    tls_cert: Annotated[Path | None, option("The certificate, for https.")] = None,
    tls_key: Annotated[Path | None, option("The certificate's key.")] = None,
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="A proxy in front does TLS.")] = False,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = True,
) -> None:
    """Open the studio: prices, ledgers and runs in the browser, on this machine."""
    import tempfile
    import webbrowser

    from tacit.cli.ledger import open_ledger
    from tacit.ledger import LedgerError
    from tacit.ledger.tokens import Tokens
    from tacit.studio import Studio, serve
    from tacit.studio.app import LOOPBACK
    from tacit.studio.shell import onward

    local = host in LOOPBACK
    if not local and tls_cert is None and not behind_proxy:
        fail("the token would travel in clear: give --tls-cert and --tls-key, or --behind-proxy", EXIT_USAGE)
    if host in ("0.0.0.0", "::") and not allow_host:
        fail("--host listens on every address: name the one that people type with --allow-host", EXIT_USAGE)
    given = {"secret": secret} if (secret := os.environ.get("TACIT_STUDIO_TOKEN", "")) else {}
    if given and len(secret) < 16:
        fail("TACIT_STUDIO_TOKEN: at least 16 characters", EXIT_USAGE)

    def ready(address: str) -> None:
        typer.echo(address)
        if local and open_browser:
            # Not the address: every account on this machine can read what programs are started with.
            page = Path(folder.name) / "studio.html"
            page.touch(0o600)
            page.write_text(onward(address), encoding="utf-8")
            webbrowser.open(page.as_uri())

    folder = tempfile.TemporaryDirectory(prefix="tacit-studio-")
    try:
        known = None if tokens is None else Tokens(tokens)
        if known is not None and not known.all():
            fail(f"{tokens} holds no token: make one with tacit ledger token add {tokens} NAME --role auditor")
        book = None if ledger is None else open_ledger(ledger)
        shown = Studio(runs, book, ledger or "people.db", known, **given)
        serve(
            shown,
            host,
            port,
            allowed=tuple(allow_host or ()),
            certificate=(tls_cert, tls_key),
            behind_proxy=behind_proxy,
            ready=ready,
        )
    except LedgerError as error:
        fail(str(error))
    finally:
        folder.cleanup()


def register(app: typer.Typer) -> None:
    """Add ``tacit studio`` to the application."""
    app.command("studio", epilog=EPILOG)(studio)
