"""How do many processes share one ledger without ever granting too much? Storage in SQLite and PostgreSQL.

A charge is one transaction that holds the lock of its data set from reading the last entry to writing the next. In
SQLite this is ``BEGIN IMMEDIATE`` on a file that is synced before the commit returns; in PostgreSQL it is a locked row
in the table of heads, with synchronous commit. Every operation has a connection of its own, in SQLite opened for it, so
nothing is shared across a fork or between threads.

SQLite uses a rollback journal, not a write-ahead log: between two charges the one file holds everything, so a copy of
it never lacks the newest charges. Triggers forbid changing and replacing rows; if somebody removes them, the hash chain
shows it. With a signer (:mod:`tacit.ledger.signing`) every head is signed and every entry sealed as it is written, and
both are checked before anything is granted on them: an old entry that was replaced is found when it is looked up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import secrets
import sqlite3
import stat
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tacit.accounting.errors import PrivacyWarning
from tacit.ledger.entries import ChainHead, Row, chain_problems, chained, digest, keys_of
from tacit.ledger.errors import (
    AccessDenied,
    DatasetExists,
    DiskFull,
    LedgerBusy,
    LedgerError,
    LedgerTampered,
    NotALedger,
    ReadOnlyLedger,
    ServerUnreachable,
    StorageError,
)
from tacit.ledger.store import Already, Decide, Ends, unknown

try:
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, Engine

    from tacit.ledger.engines import SECRETS, address_of, engine
    from tacit.ledger.tables import (
        AT,
        ENTRIES,
        FORWARD,
        FOUND,
        HEAD_HELD,
        HEAD_OF,
        HEADS,
        INDEX,
        INDEXED,
        INSERT,
        META,
        NAMES,
        NEWEST,
        POSTGRES_TRIGGERS,
        SEALS,
        SEALS_AT,
        SQLITE_TRIGGERS,
        TABLES,
        trigger_problems,
    )
except ImportError as missing:  # pragma: no cover - a machine without the package
    raise LedgerError(
        "a ledger in a file or on a server needs SQLAlchemy: pip install sqlalchemy. See: tacit explain missing-extra"
    ) from missing

#: Version of the tables; a ledger with a larger one is refused.
SCHEMA_VERSION = 2
#: How long to wait for others who are charging.
PATIENCE = 60.0
_RETRIES = 20
#: PostgreSQL's codes for "the transaction was rolled back because of others; do it again".
_AGAIN = {"40001", "40P01"}

#: How many rows are read at once where all of them are.
_PAGE = 2000


class Signer(Protocol):
    """Who signs heads (:class:`tacit.ledger.signing.SigningKey`)."""

    def sign(self, dataset: str, head: ChainHead) -> str:
        """The signature of a head."""

    def check(self, dataset: str, head: ChainHead, signature: str | None) -> bool:
        """Whether a signature is this signer's and of this head."""

    def seal(self, dataset: str, head: ChainHead) -> str:
        """What only this signer can write beside an entry, however old it is."""


class SqlStore:
    """A store in a SQLite file or a PostgreSQL database."""

    def __init__(self, where: str | os.PathLike[str]) -> None:
        #: The address without its secrets, which go to the driver alone.
        self._url, self._secrets = address_of(where)
        self._path: pathlib.Path | None = None
        if self._url.get_backend_name() == "sqlite":
            self._path = pathlib.Path(str(self._url.database))
        self._ready = False
        #: Signs the heads, where somebody holds a key; then a head without its signature is refused.
        self.signer: Signer | None = None
        #: A head without a signature is taken: it was checked, and is signed now.
        self.trusting = False

    def place(self) -> str:
        """The path, or the address without its secrets."""
        return str(self._path) if self._path else self._url.render_as_string(hide_password=False)

    def address(self) -> str:
        """What a pickle carries: the path, or the address without its secrets."""
        if self._secrets:
            SECRETS[self.place()] = self._secrets
        return self.place()

    # -- the store ---------------------------------------------------------------------------------------------------

    def key(self) -> bytes:
        """The secret of the fingerprints; made with the ledger."""
        with self._transaction(create=True) as connection:
            value = connection.execute(sa.select(META.c.value).where(META.c.name == "fingerprint_key")).scalar_one()
        return bytes.fromhex(value)

    def names(self) -> list[str]:
        """The registered data sets."""
        if self._absent():
            return []
        with self._transaction() as connection:
            return self._names(connection)

    def rows(self, dataset: str) -> tuple[list[Row], ChainHead | None]:
        """All rows of a data set in order, and its head, from one snapshot."""
        if self._absent():
            raise unknown(dataset, [], f"{self.place()} (there is no such file yet)")
        with self._transaction() as connection:
            found = connection.execute(
                sa.select(ENTRIES).where(ENTRIES.c.dataset == dataset).order_by(ENTRIES.c.seq)
            ).all()
            head = connection.execute(HEAD_OF, {"of": dataset}).first()
            if not found and head is None:
                raise unknown(dataset, self._names(connection), self.place())
        return [Row(*row) for row in found], None if head is None else ChainHead(head.seq, head.hash)

    def scan(self, dataset: str) -> Iterator[Row]:
        """All rows in order, a page at a time: those that are appended meanwhile come too."""
        at = -1
        while page := self.after(dataset, at):
            yield from page
            at = page[-1].seq

    def after(self, dataset: str, at: int) -> list[Row]:
        """A page of the rows that stand after a place."""
        with self._reading(dataset) as connection:
            some = sa.select(ENTRIES).where(ENTRIES.c.dataset == dataset, ENTRIES.c.seq > at)
            return [Row(*row) for row in connection.execute(some.order_by(ENTRIES.c.seq).limit(_PAGE))]

    def head(self, dataset: str) -> ChainHead | None:
        """The record of the head."""
        head = self._head(dataset)
        return None if head is None else ChainHead(head.seq, head.hash)

    def signature(self, dataset: str) -> tuple[ChainHead, str | None]:
        """The head with its signature."""
        head = self._head(dataset)
        if head is None:
            raise LedgerTampered(f"the record of the head of {dataset!r} is missing")
        return ChainHead(head.seq, head.hash), head.signature

    def _head(self, dataset: str) -> sa.Row[Any] | None:
        with self._reading(dataset) as connection:
            head = connection.execute(HEAD_OF, {"of": dataset}).first()
            if head is None and not self._at(connection, dataset, [0]):
                raise unknown(dataset, self._names(connection), self.place())
        return head

    def seal_all(self, dataset: str) -> None:
        """Seal the entries that were written before there was a key, if they lead to the head that is signed."""
        with self._transaction(write=True) as connection:
            last = self._ends(connection, dataset, lock=True).last
            chosen = sa.select(ENTRIES).where(ENTRIES.c.dataset == dataset).order_by(ENTRIES.c.seq)
            rows = [Row(*row) for row in connection.execute(chosen)]
            if problems := chain_problems(dataset, rows, last.head):
                raise LedgerTampered("\n".join(problems))
            known = set(connection.execute(sa.select(SEALS.c.seq).where(SEALS.c.dataset == dataset)).scalars())
            for row in rows:
                if row.seq not in known:
                    self._seal(connection, row)

    def ends(self, dataset: str) -> Ends:
        """The registration and the last rows."""
        with self._reading(dataset) as connection:
            ends = self._ends(connection, dataset)
        return Ends(ends.first, ends.before, ends.last, lambda key: self.find(dataset, [key]))

    def find(self, dataset: str, keys: list[str]) -> list[Row]:
        """The rows with one of these keys, in order."""
        with self._reading(dataset) as connection:
            return self._find(connection, dataset, keys)

    def page(self, dataset: str, key: str, after: int, limit: int) -> list[Row]:
        """The first rows with this key that stand after a place."""
        places = sa.select(INDEX.c.seq).where(INDEX.c.dataset == dataset, INDEX.c.key == key, INDEX.c.seq > after)
        chosen = places.order_by(INDEX.c.seq).limit(limit)
        with self._reading(dataset) as connection:
            return self._led_to(connection, dataset, list(connection.execute(chosen).scalars()))

    def owners(self, key: str) -> list[str]:
        """The data sets that have rows with this key."""
        if self._absent():
            return []
        with self._transaction() as connection:
            found = sa.select(INDEX.c.dataset).where(INDEX.c.key == key).distinct()
            return sorted(connection.execute(found).scalars())

    def lost(self, dataset: str, rows: Sequence[Row]) -> list[tuple[int, str]]:
        """Which of these rows cannot be looked up: somebody cut the index, and hides what they say."""
        with self._reading(dataset) as connection:
            return self._lost(connection, dataset, rows)

    def _lost(self, connection: Connection, dataset: str, rows: Sequence[Row]) -> list[tuple[int, str]]:
        """The same for rows that follow each other: what one cannot look them up by."""
        wanted = [(row.seq, key) for row in rows for key in _keys(row)]
        there: set[tuple[int, str]] = set()
        keys = list(dict.fromkeys(key for _, key in wanted))
        for start in range(0, len(keys), 1000):
            of = {"of": dataset, "keys": keys[start : start + 1000], "start": rows[0].seq, "end": rows[-1].seq}
            there.update((seq, key) for seq, key in connection.execute(INDEXED, of))
        return [pair for pair in wanted if pair not in there]

    def guards(self, names: Sequence[str]) -> list[str]:
        """What is wrong with the triggers and the seals that keep the rows, in words."""
        with self._transaction() as connection:
            problems = trigger_problems(connection)
            signed = sa.select(HEADS.c.dataset).where(HEADS.c.signature.is_not(None), HEADS.c.dataset.in_(names))
            for name in connection.execute(signed).scalars().all():
                entries, seals = (
                    connection.execute(sa.select(sa.func.count()).where(table.c.dataset == name)).scalar_one()
                    for table in (ENTRIES, SEALS)
                )
                if seals < entries:
                    problems.append(f"{name}: {entries - seals} of its {entries} entries have lost their seals")
        return problems

    def first(self, dataset: str) -> Row:
        """The registration."""
        with self._reading(dataset) as connection:
            found = self._at(connection, dataset, [0])
            if not found:
                raise unknown(dataset, self._names(connection), self.place())
        return found[0]

    def create(self, dataset: str, entry: dict[str, Any]) -> Row:
        """Write the registration."""
        row = chained(dataset, None, entry)
        with self._transaction(create=True, write=True) as connection:
            if connection.execute(sa.select(HEADS.c.seq).where(HEADS.c.dataset == dataset)).first():
                raise DatasetExists(f"{dataset!r} is registered already")
            self._require_key(connection)
            self._insert(connection, row)
            connection.execute(INSERT[HEADS], {"dataset": dataset, **self._signed(row)})
            self._check_written(connection, [row])
        return row

    def append(self, dataset: str, decide: Decide) -> Row:
        """Write the entry that ``decide`` makes of the ends, holding the data set's lock from before they are read."""
        if self._absent():
            raise unknown(dataset, [], f"{self.place()} (there is no such file yet)")
        for attempt in range(_RETRIES):
            try:
                with self._transaction(write=True) as connection:
                    row, written = self._append(connection, dataset, decide)
                    self._check_written(connection, written)
                    return row
            except _Again:
                if attempt == _RETRIES - 1:
                    raise LedgerBusy(
                        f"{self.place()}: too many processes charge {dataset!r} at once; try again"
                    ) from None
        raise AssertionError("unreachable")

    def append_all(self, asked: list[tuple[str, Decide]]) -> list[Row | Exception]:
        """Several entries in one transaction, on disk together: for each its row, or why it was refused."""
        done: list[Row | Exception] = []
        all_written: list[Row] = []
        with self._transaction(write=True) as connection:
            for dataset, decide in asked:
                try:
                    row, written = self._append(connection, dataset, decide)
                    done.append(row)
                    all_written += written
                except LedgerError as refused:  # nothing of it was written
                    done.append(refused)
            self._check_written(connection, all_written)  # an error here takes all of them back
        return done

    def _append(self, connection: Connection, dataset: str, decide: Decide) -> tuple[Row, list[Row]]:
        """The row that answers, and what was written: nothing where it was there before."""
        ends = self._ends(connection, dataset, lock=True)
        try:
            row = chained(dataset, ends.last, decide(ends))
        except Already as before:
            return before.row, []
        self._insert(connection, row)
        connection.execute(FORWARD, {"of": dataset, **self._signed(row)})
        return row, [row]

    # -- pieces ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self, dataset: str) -> Iterator[Connection]:
        if self._absent():
            raise unknown(dataset, [], f"{self.place()} (there is no such file yet)")
        with self._transaction() as connection:
            yield connection

    def _ends(self, connection: Connection, dataset: str, *, lock: bool = False) -> Ends:
        # the lock waits for whoever charges the same data set, then reads what they wrote
        head = connection.execute(HEAD_HELD if lock else HEAD_OF, {"of": dataset}).first()
        rows = [Row(*row) for row in connection.execute(NEWEST, {"of": dataset})]
        if head is None and not rows:
            raise unknown(dataset, self._names(connection), self.place())
        if head is None or not rows or (head.seq, head.hash) != (rows[0].seq, rows[0].hash):
            raise LedgerTampered(
                f"the newest entry of {dataset!r} in {self.place()} is not the one that was written last; nothing more "
                "is granted. tacit ledger verify shows what is missing"
            )
        if lock:
            self._require_key(connection)
        if self.signer and not self.trusting and not self.signer.check(dataset, rows[0].head, head.signature):
            raise LedgerTampered(
                f"the head of {dataset!r} in {self.place()} is not signed with this ledger's key: somebody wrote it "
                "who does not hold the key, or it was never signed. Nothing more is granted. If the ledger is older "
                "than its key, sign it once, after a check: tacit ledger sign. If TACIT_LEDGER_KEY names the key of "
                "another ledger, unset it"
            )
        first = self._at(connection, dataset, [0]) if rows[-1].seq else rows[-1:]
        if not first:
            raise LedgerTampered(f"the registration of {dataset!r} in {self.place()} is missing: nothing is granted")
        before = rows[1] if len(rows) > 1 else None
        return Ends(first[0], before, rows[0], lambda key: self._find(connection, dataset, [key]))

    def _require_key(self, connection: Connection) -> None:
        """Refuse to write without the key where heads are signed: whoever holds it would grant nothing on that."""
        signed = sa.select(HEADS.c.seq).where(HEADS.c.signature.is_not(None)).limit(1)
        if self.signer is None and connection.execute(signed).first():
            raise AccessDenied(
                f"the heads of {self.place()} are signed: charge through its service, or open it with its key (key=, "
                "--key, or the environment variable TACIT_LEDGER_KEY, which names its file); nothing was written"
            )

    def _at(self, connection: Connection, dataset: str, places: list[int]) -> list[Row]:
        return [Row(*row) for row in connection.execute(AT, {"of": dataset, "places": places})]

    def _led_to(self, connection: Connection, dataset: str, places: list[int]) -> list[Row]:
        """The rows at places that the index names: each of them was there."""
        rows = self._at(connection, dataset, places)
        if gone := set(places) - {row.seq for row in rows}:
            raise LedgerTampered(
                f"entry {min(gone)} of {dataset!r} in {self.place()} was deleted: the index still leads to it. "
                "tacit ledger verify shows what is missing"
            )
        return rows

    def _find(self, connection: Connection, dataset: str, keys: list[str]) -> list[Row]:
        places = list(connection.execute(FOUND, {"of": dataset, "keys": keys}).scalars())
        rows = self._led_to(connection, dataset, places)
        for row in rows:
            if digest(row.body) != row.hash or not set(keys) & set(keys_of(row.read())):
                raise LedgerTampered(
                    f"entry {row.seq} of {dataset!r} in {self.place()} was changed, or the index leads to a wrong one. "
                    "tacit ledger verify shows where"
                )
        self._check_seals(connection, rows)
        return rows

    def _check_seals(self, connection: Connection, rows: list[Row]) -> None:
        """Refuse entries that somebody wrote who does not hold the key; nothing to check without one."""
        sealed = self._sealed(connection, rows)
        for row in rows:
            if row not in sealed:
                raise LedgerTampered(
                    f"entry {row.seq} of {row.dataset!r} in {self.place()} was not written with this ledger's key: "
                    "nothing is granted on it. tacit ledger verify shows where the record was changed"
                )

    def _sealed(self, connection: Connection, rows: list[Row]) -> list[Row]:
        """Those of the rows of one data set that are sealed; all of them without a key."""
        if self.signer is None or not rows:
            return rows
        of = {"of": rows[0].dataset, "places": [row.seq for row in rows]}
        seals = {seq: seal for seq, seal in connection.execute(SEALS_AT, of)}
        seal = self.signer.seal
        return [row for row in rows if secrets.compare_digest(seal(row.dataset, row.head), seals.get(row.seq, ""))]

    def _seal(self, connection: Connection, row: Row) -> None:
        if self.signer is not None:
            seal = self.signer.seal(row.dataset, row.head)
            connection.execute(INSERT[SEALS], {"dataset": row.dataset, "seq": row.seq, "seal": seal})

    def _insert(self, connection: Connection, row: Row) -> None:
        connection.execute(INSERT[ENTRIES], dataclasses.asdict(row))
        keys = [{"dataset": row.dataset, "key": key, "seq": row.seq} for key in keys_of(row.read())]
        if keys:
            connection.execute(INSERT[INDEX], keys)
        self._seal(connection, row)

    def _check_written(self, connection: Connection, rows: list[Row]) -> None:
        """Refuse to answer before the rows are there: the database may leave out what it was told to write.

        Called at the end of the transaction, whose locks keep anybody from making a trigger until it is committed.

        Args:
            connection: That of the transaction.
            rows: What was written in it; those of one data set follow each other.
        """
        if not rows:
            return
        kept = True
        for dataset in {row.dataset for row in rows}:
            written = [row for row in rows if row.dataset == dataset]
            head = connection.execute(HEAD_OF, {"of": dataset}).first()
            kept &= self._at(connection, dataset, [row.seq for row in written]) == written
            kept &= head is not None and ChainHead(head.seq, head.hash) == written[-1].head
            kept &= not self._lost(connection, dataset, written)
            kept &= self._sealed(connection, written) == written
        problems = trigger_problems(connection)
        if not kept:
            problems.insert(0, "what was written is not there")
        if problems:
            raise LedgerTampered(f"{self.place()}: {'; '.join(problems)}. Nothing is granted, nothing was written")

    def _signed(self, row: Row) -> dict[str, Any]:
        signature = self.signer.sign(row.dataset, row.head) if self.signer else None
        return {"seq": row.seq, "hash": row.hash, "signature": signature}

    def _names(self, connection: Connection) -> list[str]:
        # Both tables: a data set whose head, or whose entries, somebody deleted must still be verified.
        return sorted({*connection.execute(sa.select(HEADS.c.dataset)).scalars(), *connection.execute(NAMES).scalars()})

    def _absent(self) -> bool:
        # An empty file is one whose maker was stopped before the first table.
        return self._path is not None and (not self._path.exists() or self._path.stat().st_size == 0)

    # -- connections -------------------------------------------------------------------------------------------------

    def _engine(self) -> Engine:
        try:
            return engine(self._url, tuple(self._secrets.items()), PATIENCE, os.getpid())
        except ModuleNotFoundError as missing:
            raise StorageError(
                f"{missing.name} is not installed; a ledger in PostgreSQL needs it: pip install 'tacit[postgres]'. "
                "See: tacit explain missing-extra"
            ) from None

    @contextlib.contextmanager
    def _transaction(self, *, write: bool = False, create: bool = False) -> Iterator[Connection]:
        """A connection inside a transaction that is committed at the end and rolled back on any error."""
        if create and self._absent():
            self._new_file()
        try:
            with self._engine().connect() as connection:
                if not self._ready:
                    self._prepare(connection, create=create)
                    self._close_to_others()
                    self._ready = True
                self._begin(connection, write=write)
                try:
                    yield connection
                    connection.exec_driver_sql("COMMIT")
                except BaseException:
                    with contextlib.suppress(sa.exc.DBAPIError):  # the first error is the one to tell
                        connection.exec_driver_sql("ROLLBACK")
                    raise
        except sa.exc.DBAPIError as error:
            raise self._translate(error, writing=write or create) from None

    def _begin(self, connection: Connection, *, write: bool) -> None:
        if self._path:
            # EXTRA: the folder is synced too, so that a power cut cannot bring the journal of a finished charge back.
            connection.exec_driver_sql("PRAGMA synchronous=EXTRA")
            connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
        elif write:
            connection.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED")
            connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
        else:
            connection.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def _prepare(self, connection: Connection, *, create: bool) -> None:
        """Check the version of the tables; make them where they are absent and ``create`` allows it."""
        found = self._version(connection)
        if found is None and not create:
            if self._path:
                raise NotALedger(f"{self.place()} is a SQLite database, but not a tacit ledger")
            create = True  # an empty PostgreSQL database becomes a ledger at the first use
        if found is None:
            self._make_tables(connection)
            found = self._version(connection)
        if found is not None and found < SCHEMA_VERSION:
            self._migrate(connection)
        if found is not None and found > SCHEMA_VERSION:
            raise NotALedger(
                f"{self.place()} was written by a newer version of tacit (tables {found}, this one knows "
                f"{SCHEMA_VERSION}): upgrade tacit"
            )

    def _version(self, connection: Connection) -> int | None:
        # at every opening, so without the inspector; a name that was looked up before (to_regclass) may be stale
        kept = (
            "pg_class WHERE pg_table_is_visible(oid) AND relname" if self._path is None else "sqlite_master WHERE name"
        )
        if connection.exec_driver_sql(f"SELECT 1 FROM {kept} = 'tacit_meta'").scalar() is None:
            return None
        value = connection.execute(sa.select(META.c.value).where(META.c.name == "schema_version")).scalar()
        if value is not None and not str(value).isdecimal():
            raise NotALedger(f"{self.place()} states no version of its tables that can be read ({str(value)[:20]!r})")
        return None if value is None else int(value)

    def _make_tables(self, connection: Connection) -> None:
        if self._path:
            if sa.inspect(connection).get_table_names():
                raise NotALedger(f"{self.place()} is a SQLite database that holds something else; choose another file")
            connection.exec_driver_sql("PRAGMA journal_mode=DELETE")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql("BEGIN")
            # Two processes that start at once: the second waits here and then finds the tables.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(8387230151)")
        try:
            if self._version(connection) is None:
                TABLES.create_all(connection)
                for statement in SQLITE_TRIGGERS if self._path else POSTGRES_TRIGGERS:
                    connection.exec_driver_sql(statement)
                values = {"schema_version": str(SCHEMA_VERSION), "fingerprint_key": secrets.token_hex(32)}
                connection.execute(META.insert(), [{"name": k, "value": v} for k, v in values.items()])
            connection.exec_driver_sql("COMMIT")
        except BaseException:
            with contextlib.suppress(sa.exc.DBAPIError):
                connection.exec_driver_sql("ROLLBACK")
            raise

    def _migrate(self, connection: Connection) -> None:
        """Bring the tables of an older version up to this one, as one act: all of it or nothing."""
        from tacit.ledger.migrate import migrate

        if self._path and not os.access(self._path, os.W_OK):
            raise ReadOnlyLedger(
                f"{self.place()} was written by tacit 0.1 and has to be brought up to date once, but it is not "
                "writable: open it where it is (tacit ledger show)"
            )
        connection.exec_driver_sql("BEGIN IMMEDIATE" if self._path else "BEGIN")
        try:
            if not self._path:
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(8387230151)")
            if self._version(connection) != SCHEMA_VERSION:
                triggers = SQLITE_TRIGGERS if self._path else POSTGRES_TRIGGERS
                migrate(connection, TABLES, triggers, self._names(connection), self.place())
                self._set_version(connection)
            connection.exec_driver_sql("COMMIT")
        except BaseException:
            with contextlib.suppress(sa.exc.DBAPIError):
                connection.exec_driver_sql("ROLLBACK")
            raise

    def _set_version(self, connection: Connection) -> None:
        connection.execute(META.update().where(META.c.name == "schema_version").values(value=str(SCHEMA_VERSION)))

    def _close_to_others(self) -> None:
        """Take the right to read from everybody in the world: a file that was made with mode 0644 holds the secret."""
        if self._path is None or not self._path.exists():
            return
        mode = stat.S_IMODE(self._path.stat().st_mode)
        if mode & stat.S_IROTH and os.access(self._path, os.W_OK):
            with contextlib.suppress(PermissionError):  # somebody else's file
                self._path.chmod(stat.S_IRUSR | stat.S_IWUSR)
                warnings.warn(
                    f"everybody on this machine could read {self._path}, which holds the secret of its fingerprints; "
                    "now only its owner can (mode 0600)",
                    PrivacyWarning,
                    stacklevel=6,
                )

    def _new_file(self) -> None:
        """Make the file readable for its owner only: it holds the secret of the fingerprints."""
        assert self._path is not None
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, stat.S_IRUSR | stat.S_IWUSR))
        except FileNotFoundError:
            raise StorageError(
                f"cannot create the ledger {self._path}: there is no folder {self._path.parent}"
            ) from None
        except PermissionError:
            raise ReadOnlyLedger(f"cannot create the ledger {self._path}: the folder is not writable") from None
        except OSError as error:
            kind = ReadOnlyLedger if error.errno == 30 else StorageError  # 30: a read-only file system
            raise kind(f"cannot create the ledger {self._path}: {error.strerror}") from None

    # -- errors ------------------------------------------------------------------------------------------------------

    def _translate(self, error: sa.exc.DBAPIError, *, writing: bool) -> Exception:
        original = error.orig
        if isinstance(original, sqlite3.Error):
            return self._sqlite_error(original, writing=writing)
        if isinstance(error, sa.exc.DataError):
            return StorageError(f"{self.place()} cannot hold such a text or number; nothing was granted")
        return self._postgres_error(original)

    def _sqlite_error(self, error: sqlite3.Error, *, writing: bool) -> Exception:
        name = getattr(error, "sqlite_errorname", "") or ""
        place = self.place()
        if name.startswith("SQLITE_READONLY"):
            return ReadOnlyLedger(f"the ledger {place} is not writable (read-only file or folder); nothing was granted")
        if name.startswith("SQLITE_CANTOPEN") or name.startswith("SQLITE_PERM"):
            if writing and os.access(place, os.R_OK):
                return ReadOnlyLedger(f"the folder of the ledger {place} is not writable; nothing was granted")
            return StorageError(f"the ledger {place} cannot be opened: check that it is a file you may read and write")
        if name.startswith("SQLITE_FULL"):
            return DiskFull(
                f"no space left on the disk of the ledger {place}; nothing was granted. Free some space and try again"
            )
        if name.startswith("SQLITE_NOTADB"):
            return NotALedger(f"{place} is not a SQLite database, so it is not a ledger")
        if name.startswith("SQLITE_CORRUPT"):
            return NotALedger(
                f"the ledger {place} is damaged; restore it from a backup and verify it against a printed head"
            )
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return LedgerBusy(f"other processes held the ledger {place} for more than {PATIENCE:g} s; try again")
        return StorageError(f"the ledger {place} could not be read or written ({error}); nothing was granted")

    def _postgres_error(self, error: BaseException | None) -> Exception:
        code = getattr(error, "sqlstate", None) or ""
        text = str(error)
        place = self.place()
        if code in _AGAIN:
            return _Again(f"others changed {place} at the same moment; try again")
        if code in ("28P01", "28000") or "password" in text or "authentication" in text:
            return AccessDenied(
                f"{place} did not accept this user and password. Give the password in the address, in PGPASSWORD or "
                "in ~/.pgpass. A pickle does not carry it into another process, and the folder of a run does not keep "
                "it: with --resume give --ledger again, or set PGPASSWORD"
            )
        if code == "3D000" or ("database" in text and "does not exist" in text):
            return ServerUnreachable(f"the server of {place} has no such database; create it with createdb")
        if code in ("53100", "53200"):
            return DiskFull(f"the server of {place} has no space left; nothing was granted")
        if code in ("25006", "42501"):
            return ReadOnlyLedger(
                f"{place} is not writable for this user (or is a read-only replica); nothing was granted"
            )
        if code == "53300" or "too many c" in text or "connection slots" in text:
            return LedgerBusy(f"the server of {place} has no connection left (max_connections); try again")
        if code in ("55P03", "57014"):
            return LedgerBusy(f"other processes held the ledger {place} for too long; try again")
        if not code or code.startswith(("08", "57P")):
            return ServerUnreachable(f"no answer from the server of {place}: is it running, and is the address right?")
        return StorageError(f"{place} could not be read or written (SQLSTATE {code}); nothing was granted")


def _keys(row: Row) -> list[str]:
    try:
        return keys_of(row.read())
    except (ValueError, KeyError, TypeError):  # no entry: the check of the chain says so
        return []


class _Again(LedgerBusy):
    """The transaction was rolled back because of others, and can be done again."""


def public_address(where: str | os.PathLike[str]) -> str:
    """The path of a ledger, or its address without password or other secrets: what may be written down and shown.

    >>> public_address("postgresql://team:pony@host/people?sslmode=require&sslpassword=pony")
    'postgresql://team@host/people?sslmode=require'
    """
    if os.fspath(where).startswith(("http://", "https://")):
        from tacit.ledger.remote import split_address

        return split_address(os.fspath(where))[0]
    return SqlStore(where).place()
