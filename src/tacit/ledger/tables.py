"""Which tables hold a ledger, and what keeps their rows from being changed?

Nothing is ever updated but the head, which goes forward by one. Triggers refuse everything else: update, delete,
truncate, and an insert that would replace a row.
"""

from __future__ import annotations

import sqlalchemy as sa

TABLES = sa.MetaData()
META = sa.Table(
    "tacit_meta",
    TABLES,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
ENTRIES = sa.Table(
    "tacit_entries",
    TABLES,
    sa.Column("dataset", sa.String(200), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
HEADS = sa.Table(
    "tacit_heads",
    TABLES,
    sa.Column("dataset", sa.String(200), primary_key=True),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("signature", sa.Text),
)
SEALS = sa.Table(
    "tacit_seals",
    TABLES,
    sa.Column("dataset", sa.String(200), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seal", sa.String(64), nullable=False),
)
INDEX = sa.Table(
    "tacit_index",
    TABLES,
    sa.Column("dataset", sa.String(200), primary_key=True),
    sa.Column("key", sa.String(400), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Index("tacit_index_by_key", "key"),
)

# -- the statements of every charge, made once: to build them anew takes longer than to run them ----------------------


def _of(table: sa.Table) -> sa.ColumnElement[bool]:
    return table.c.dataset == sa.bindparam("of")


HEAD_OF = sa.select(HEADS).where(_of(HEADS))
#: The same, and nobody else takes it before the end of the transaction; SQLite, which locks the file, needs no word.
HEAD_HELD = HEAD_OF.with_for_update()
NEWEST = sa.select(ENTRIES).where(_of(ENTRIES)).order_by(ENTRIES.c.seq.desc()).limit(2)
AT = (
    sa.select(ENTRIES)
    .where(_of(ENTRIES), ENTRIES.c.seq.in_(sa.bindparam("places", expanding=True)))
    .order_by(ENTRIES.c.seq)
)
FOUND = sa.select(INDEX.c.seq).where(_of(INDEX), INDEX.c.key.in_(sa.bindparam("keys", expanding=True))).distinct()
#: What can be looked up of the rows from one place to another; each key is one step into the index.
INDEXED = sa.select(INDEX.c.seq, INDEX.c.key).where(
    _of(INDEX),
    INDEX.c.key.in_(sa.bindparam("keys", expanding=True)),
    INDEX.c.seq.between(sa.bindparam("start"), sa.bindparam("end")),
)
SEALS_AT = sa.select(SEALS.c.seq, SEALS.c.seal).where(
    _of(SEALS), SEALS.c.seq.in_(sa.bindparam("places", expanding=True))
)
# From name to name, not from entry to entry: there may be a million of those.
_STEP = sa.select(sa.func.min(ENTRIES.c.dataset).label("name")).cte(recursive=True)
_NEXT = sa.select(sa.func.min(ENTRIES.c.dataset)).where(ENTRIES.c.dataset > _STEP.c.name).scalar_subquery()
_STEPS = _STEP.union_all(sa.select(_NEXT).where(_STEP.c.name.is_not(None)))
NAMES = sa.select(_STEPS.c.name).where(_STEPS.c.name.is_not(None))
FORWARD = HEADS.update().where(_of(HEADS))
INSERT = {table: table.insert() for table in (ENTRIES, HEADS, INDEX, SEALS)}

SQLITE_TRIGGERS = [
    f"""CREATE TRIGGER IF NOT EXISTS tacit_{table}_{name} BEFORE {event} ON tacit_{table} {when}
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"""
    for table, name, event, when in (
        ("entries", "kept", "DELETE", ""),
        ("entries", "fixed", "UPDATE", ""),
        ("heads", "kept", "DELETE", ""),
        ("heads", "forward", "UPDATE", "WHEN NEW.dataset <> OLD.dataset OR NEW.seq <> OLD.seq + 1"),
        ("meta", "kept", "DELETE", ""),
        ("meta", "fixed", "UPDATE", "WHEN OLD.name <> 'schema_version' OR NEW.name <> OLD.name"),
        ("index", "kept", "DELETE", ""),
        ("index", "fixed", "UPDATE", ""),
        ("seals", "kept", "DELETE", ""),
        ("seals", "fixed", "UPDATE", ""),
        # INSERT OR REPLACE is neither an update nor, for triggers, a deletion.
        *(
            (table, "new", "INSERT", f"WHEN EXISTS (SELECT 1 FROM tacit_{table} WHERE {same})")
            for table, same in (
                ("entries", "dataset = NEW.dataset AND seq = NEW.seq"),
                ("heads", "dataset = NEW.dataset"),
                ("meta", "name = NEW.name"),
                ("index", "dataset = NEW.dataset AND key = NEW.key AND seq = NEW.seq"),
                ("seals", "dataset = NEW.dataset AND seq = NEW.seq"),
            )
        ),
    )
]
POSTGRES_TRIGGERS = [
    """CREATE OR REPLACE FUNCTION tacit_append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$""",
    *(
        f"""CREATE OR REPLACE TRIGGER tacit_{table}_{name} BEFORE {event} ON tacit_{table}
        {when} EXECUTE FUNCTION tacit_append_only()"""
        for table, name, event, when in (
            ("entries", "fixed", "UPDATE OR DELETE", "FOR EACH ROW"),
            ("index", "fixed", "UPDATE OR DELETE", "FOR EACH ROW"),
            ("seals", "fixed", "UPDATE OR DELETE", "FOR EACH ROW"),
            ("heads", "kept", "DELETE", "FOR EACH ROW"),
            (
                "heads",
                "forward",
                "UPDATE",
                "FOR EACH ROW WHEN (NEW.dataset <> OLD.dataset OR NEW.seq <> OLD.seq + 1)",
            ),
            ("meta", "kept", "DELETE", "FOR EACH ROW"),
            ("meta", "fixed", "UPDATE", "FOR EACH ROW WHEN (OLD.name <> 'schema_version' OR NEW.name <> OLD.name)"),
            *((table, "whole", "TRUNCATE", "") for table in ("entries", "heads", "meta", "index", "seals")),
        )
    ),
]


def trigger_problems(connection: sa.Connection) -> list[str]:
    """Which triggers (in PostgreSQL rules too) on the tables are missing, not ours or not as they were made."""
    ours = ", ".join(f"'{table}'" for table in TABLES.tables)
    if connection.dialect.name == "sqlite":
        found = f"SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) IN ({ours})"
        wanted = dict(_named(statement) for statement in SQLITE_TRIGGERS)
    else:
        found = f"""
            SELECT t.tgname, c.relname || ' ' || CASE WHEN t.tgenabled IN ('O', 'A') THEN p.prosrc ELSE 'off' END
            FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
            WHERE NOT t.tgisinternal AND c.relname IN ({ours}) AND pg_table_is_visible(c.oid)
            UNION ALL SELECT r.rulename, 'rule' FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
            WHERE c.relname IN ({ours}) AND pg_table_is_visible(c.oid)"""
        body = POSTGRES_TRIGGERS[0].split("$$")[1]
        wanted = {}
        for statement in POSTGRES_TRIGGERS[1:]:
            name, text = _named(statement)
            wanted[name] = " ".join(f"{text.split(' ON ')[1].split()[0]} {body}".split())
    there = [(name, " ".join(text.split())) for name, text in connection.exec_driver_sql(found)]
    names = [name for name, _ in there]
    return [
        *(f"the trigger {name} is not this ledger's" for name, _ in there if name not in wanted),
        *(f"the trigger {name} was changed" for name, text in there if name in wanted and text != wanted[name]),
        *(f"the trigger {name} is missing" for name in wanted if name not in names),
    ]


def _named(statement: str) -> tuple[str, str]:
    """The name of a trigger, and its statement as SQLite keeps it, with single spaces.

    >>> _named("CREATE TRIGGER IF NOT EXISTS a  BEFORE DELETE ON b")
    ('a', 'CREATE TRIGGER a BEFORE DELETE ON b')
    """
    text = " ".join(statement.replace("IF NOT EXISTS ", "").replace("OR REPLACE ", "").split())
    return text.split()[2], text
