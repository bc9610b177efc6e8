"""How is a database reached? Connections to a SQLite file or a PostgreSQL server."""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine
from sqlalchemy.pool import NullPool

#: For how many seconds a connection to a server is used again.
KEPT = 30


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
