"""How does a ledger of an older version become one of this version? Its entries stay as they are, byte for byte.

Tables of version 1 (tacit 0.1) have no index of the charges and no signatures, and their entries carry neither the hash
of the registration nor the counts. The migration checks each chain, makes the index of it, and appends one entry of
kind ``migrate`` that carries both. A chain that does not hold is not migrated: whoever changed it would be forgiven.
"""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tacit.ledger.entries import ChainHead, Row, chain_problems, chained, keys_of
from tacit.ledger.errors import LedgerTampered
from tacit.ledger.rules import Totals
from tacit.ledger.state import State


def migrate(connection: Connection, tables: sa.MetaData, triggers: list[str], names: list[str], place: str) -> None:
    """Bring tables of version 1 up to version 2, inside the caller's transaction."""
    heads, rows_of, index = (tables.tables[f"tacit_{name}"] for name in ("heads", "entries", "index"))
    index.create(connection)
    tables.tables["tacit_seals"].create(connection)
    connection.exec_driver_sql("ALTER TABLE tacit_heads ADD COLUMN signature TEXT")
    for name in names:
        found = connection.execute(sa.select(rows_of).where(rows_of.c.dataset == name).order_by(rows_of.c.seq))
        rows = [Row(*row) for row in found]
        head = connection.execute(sa.select(heads.c.seq, heads.c.hash).where(heads.c.dataset == name)).first()
        problems = chain_problems(name, rows, None if head is None else ChainHead(*head))
        if problems:
            raise LedgerTampered(
                f"{place} was written by tacit 0.1 and is not brought up to date, because its record does not hold:\n"
                + "\n".join(problems)
            )
        row = chained(name, rows[-1], migrated(rows))
        if keys := [{"dataset": name, "key": key, "seq": r.seq} for r in (*rows, row) for key in keys_of(r.read())]:
            connection.execute(index.insert(), keys)
        connection.execute(rows_of.insert().values(dataset=name, seq=row.seq, body=row.body, hash=row.hash))
        connection.execute(heads.update().where(heads.c.dataset == name).values(seq=row.seq, hash=row.hash))
    for statement in triggers:
        connection.exec_driver_sql(statement)


def migrated(rows: list[Row]) -> dict[str, Any]:
    """The entry that a chain of version 1 goes on with."""
    opened = [row.read() for row in rows]
    charges = sum(entry["kind"] == "reserve" for entry in opened)
    confirmed = len({entry["charge"] for entry in opened if entry["kind"] == "confirm"})
    state = State(Totals.from_dict(opened[-1]["totals"]), charges=charges, confirmed=confirmed)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"kind": "migrate", "from": 1, "time": now, "root": rows[0].hash, **state.to_dict()}
