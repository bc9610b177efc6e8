"""How is a database reached? Connections to a SQLite file or a PostgreSQL server."""

from __future__ import annotations

import functools
import os
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.pool import NullPool

from tacit.ledger.errors import StorageError

#: For how many seconds a connection to a server is used again.
KEPT = 30
#: Parameters of an address that are secrets of libpq; all others are shown.
_SECRET = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
# Secrets by address, for ledgers that are unpickled in this process or a fork of it. Never written anywhere.
SECRETS: dict[str, dict[str, str]] = {}


@functools.lru_cache(maxsize=32)
def engine(url: URL, secret: tuple[tuple[str, str], ...], patience: float, process: int) -> Engine:
    """The engine of an address, one for each process: the statements that it compiled serve every ledger there."""
    if url.get_backend_name() == "sqlite":
        arguments: dict[str, Any] = {"timeout": patience, "check_same_thread": True}
        pool: dict[str, Any] = {"poolclass": NullPool}
    else:
        url = url.set(drivername="postgresql+psycopg")
        arguments = {"connect_timeout": 10, "application_name": "tacit ledger", **dict(secret)}
        # A server starts a process for each connection, which takes longer than a charge: a few are kept for a while.
        # Each is asked whether it still answers, and none of a parent is used in its fork (process).
        pool = {"pool_size": 2, "max_overflow": -1, "pool_recycle": KEPT, "pool_pre_ping": True, "pool_use_lifo": True}
    # AUTOCOMMIT: transactions are begun in the words of each database.
    made = sa.create_engine(url, connect_args=arguments, isolation_level="AUTOCOMMIT", hide_parameters=True, **pool)
    if url.get_backend_name() != "sqlite":
        sa.event.listen(made, "connect", _idle_no_longer)
    return made


def _idle_no_longer(connection: Any, _: Any) -> None:
    """A run that trains for days holds no connection that it does not use: the server closes it."""
    if connection.info.server_version >= 140000:
        with connection.cursor() as cursor:
            cursor.execute(f"SET idle_session_timeout = '{KEPT}s'")


def address_of(where: str | os.PathLike[str]) -> tuple[URL, dict[str, str]]:
    """The address without its secrets, and the secrets."""
    text = os.fspath(where)
    if "://" not in text:
        return URL.create("sqlite", database=os.path.abspath(os.path.expanduser(text))), {}
    try:
        url = make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise StorageError(
            "this is not an address of a database; it looks like postgresql://user@host/database"
        ) from None
    backend = url.get_backend_name()
    if backend == "sqlite":
        if not url.database or url.database == ":memory:":
            raise StorageError("a ledger in memory is tacit.Ledger(); for a file give its path")
        return URL.create("sqlite", database=os.path.abspath(url.database)), {}
    if backend not in ("postgresql", "postgres"):
        raise StorageError(f"{backend} is not a database that tacit knows; use a SQLite file or postgresql://…")
    if "@" in (url.host or ""):  # the end of a password with an @ in it
        raise StorageError("the address holds more than one @: write an @ inside the password as %40")
    found = {k: v if isinstance(v, str) else v[-1] for k, v in url.query.items() if k.lower() in _SECRET}
    if url.password is not None:
        found["password"] = str(url.password)
    query = {k: v for k, v in url.query.items() if k not in found}
    # Built anew: URL.set(password=None) means "leave it as it is".
    bare = URL.create("postgresql", url.username, None, url.host, url.port, url.database, query)
    return bare, found or SECRETS.get(bare.render_as_string(hide_password=False), {})
