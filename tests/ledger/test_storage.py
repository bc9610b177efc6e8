"""What can happen to a file or a server gives an error of its own that says what to do."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from benchmarks.ledger import fill

from tacit import accounting as acc
from tacit.ledger import (
    AccessDenied,
    DiskFull,
    Ledger,
    LedgerBusy,
    NotALedger,
    ReadOnlyLedger,
    ServerUnreachable,
    StorageError,
    UnknownDataset,
    engines,
    sql,
)
from tacit.ledger.signing import SigningKey

CHARGE = acc.PureDP(0.001)


@contextlib.contextmanager
def as_somebody_else(folder):
    """Root may write everywhere: for a while be an account that owns ``folder`` and nothing else."""
    if os.geteuid() != 0:
        yield
        return
    for path in (folder, *folder.iterdir()):
        os.chown(path, 65534, 65534)
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def folder():
    """A folder that other accounts can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="tacit-ledger-"))
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


@pytest.fixture
def file(folder):
    path = folder / "people.db"
    Ledger(path).register("people", epsilon=1.0, delta=0.0)
    return path


def charge_until_refused(ledger, granted):
    for _ in range(1000):
        granted.append(ledger.charge("people", CHARGE).number)


def test_the_file_is_readable_for_its_owner_only(file):
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_read_only_file_is_read_and_not_charged(file, folder):
    with as_somebody_else(folder):
        file.chmod(0o400)
        ledger = Ledger(file)
        assert ledger.budget("people").left_epsilon == 1.0
        assert ledger.verify().ok
        with pytest.raises(ReadOnlyLedger, match="is not writable"):
            ledger.charge("people", CHARGE)


def test_a_read_only_folder_is_its_own_error(file, folder):
    with as_somebody_else(folder):
        folder.chmod(0o500)
        with pytest.raises(ReadOnlyLedger, match="is not writable"):
            Ledger(file).charge("people", CHARGE)
        with pytest.raises(ReadOnlyLedger, match="folder is not writable"):
            Ledger(folder / "new.db").register("people", epsilon=1.0, delta=0.0)
        folder.chmod(0o700)


def test_a_missing_folder_is_its_own_error(tmp_path):
    with pytest.raises(StorageError, match="there is no folder"):
        Ledger(tmp_path / "nowhere" / "people.db").register("people", epsilon=1.0, delta=0.0)


def test_reading_makes_no_file(tmp_path):
    ledger = Ledger(tmp_path / "people.db")
    assert ledger.datasets() == []
    with pytest.raises(UnknownDataset, match="there is no such file yet"):
        ledger.charge("people", CHARGE)
    assert list(tmp_path.iterdir()) == []


def test_a_full_file_system_is_its_own_error_and_grants_nothing(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    told = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if told.returncode:
        pytest.skip("may not mount a small file system here")
    try:
        ledger = Ledger(disk / "people.db")
        ledger.register("people", epsilon=1.0, delta=0.0)
        granted: list[str] = []
        with pytest.raises(DiskFull, match=r"no space left.*nothing was granted"):
            charge_until_refused(ledger, granted)
        assert 0 < len(granted) < 1000
        assert [record.charge for record in ledger.history("people")] == granted
        assert ledger.verify().ok
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_limit_on_the_size_of_files_grants_nothing(file):
    code = (
        "import resource, sys\n"
        "from tacit import accounting as acc\n"
        "from tacit.ledger import Ledger, StorageError\n"
        "ledger = Ledger(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "granted = 0\n"
        "try:\n"
        "    while granted < 900:\n"
        "        ledger.charge('people', acc.PureDP(0.001)); granted += 1\n"
        "except StorageError as error:\n"
        "    assert 'nothing was granted' in str(error), error\n"
        "    print(granted)\n"
    )
    told = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    granted = int(told.stdout)
    assert 0 < granted < 900
    assert len(Ledger(file).history("people")) == granted
    assert Ledger(file).verify().ok


def test_a_full_database_is_its_own_error(file, monkeypatch):
    begin = sql.SqlStore._begin

    def small(self, connection, *, write):
        connection.exec_driver_sql("PRAGMA max_page_count=12")
        begin(self, connection, write=write)

    monkeypatch.setattr(sql.SqlStore, "_begin", small)
    ledger = Ledger(file)
    with pytest.raises(DiskFull, match="no space left"):
        charge_until_refused(ledger, [])
    assert ledger.verify().ok


def test_a_file_that_is_something_else_is_its_own_error(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("Not a database. " * 100)
    with pytest.raises(NotALedger, match="not a SQLite database"):
        Ledger(text).datasets()
    with pytest.raises(NotALedger, match="not a SQLite database"):
        Ledger(text).register("people", epsilon=1.0, delta=0.0)
    other = tmp_path / "shop.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.commit()
    connection.close()
    with pytest.raises(NotALedger, match="not a tacit ledger"):
        Ledger(other).datasets()
    with pytest.raises(NotALedger, match="holds something else"):
        Ledger(other).register("people", epsilon=1.0, delta=0.0)
    with pytest.raises(StorageError, match="cannot be opened"):
        Ledger(tmp_path).datasets()


def test_a_ledger_of_a_newer_version_is_not_touched(file):
    connection = sqlite3.connect(file)
    connection.execute("UPDATE tacit_meta SET value = '99' WHERE name = 'schema_version'")
    connection.commit()
    connection.close()
    with pytest.raises(NotALedger, match=r"newer version of tacit \(tables 99.*upgrade"):
        Ledger(file).charge("people", CHARGE)


def test_a_ledger_that_others_hold_too_long_is_its_own_error(file, monkeypatch):
    monkeypatch.setattr(sql, "PATIENCE", 0.2)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerBusy, match="try again"):
        Ledger(file).charge("people", CHARGE)
    other.execute("ROLLBACK")
    other.close()
    Ledger(file).charge("people", CHARGE)


def test_an_address_that_is_none_is_its_own_error():
    with pytest.raises(StorageError, match="not a database that tacit knows"):
        Ledger("mysql://me:pony@host/db")
    with pytest.raises(StorageError, match="not an address") as told:
        Ledger("postgresql://me:pony@host:port/db")
    assert "pony" not in str(told.value)
    with pytest.raises(StorageError, match=r"tacit\.Ledger\(\)"):
        Ledger("sqlite://")


# -- PostgreSQL ------------------------------------------------------------


@pytest.mark.postgres
def test_a_wrong_password_is_its_own_error_and_is_never_shown(postgres):
    ledger = Ledger(postgres.url("postgres", password="wrong-pony"))
    with pytest.raises(AccessDenied, match="did not accept this user and password") as told:
        ledger.datasets()
    cause = told.value.__cause__ or (None if told.value.__suppress_context__ else told.value.__context__)
    assert cause is None  # the driver's text is not chained
    assert "wrong-pony" not in str(told.value) + repr(ledger) + str(ledger)
    query = Ledger(f"postgresql://team@127.0.0.1:{postgres.port}/postgres?password=wrong-pony")
    assert "wrong-pony" not in repr(query)
    with pytest.raises(AccessDenied):
        query.datasets()


@pytest.mark.postgres
def test_a_missing_database_is_its_own_error(postgres):
    with pytest.raises(ServerUnreachable, match="no such database"):
        Ledger(postgres.url("nothing")).datasets()


def test_a_server_that_does_not_answer_is_its_own_error():
    pytest.importorskip("psycopg")
    with socket.socket() as silent:  # bound, not listening: nobody else gets the port
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(ServerUnreachable, match="is it running") as told:
            Ledger(f"postgresql://team:pony@127.0.0.1:{port}/people").charge("people", CHARGE)
    assert "pony" not in str(told.value)


@pytest.mark.postgres
def test_a_user_who_may_only_read_cannot_charge(postgres):
    import psycopg

    address = postgres.new_database()
    Ledger(address).register("people", epsilon=1.0, delta=0.0)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'reader-word'")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    reader = Ledger(address.replace("team:correct-horse-7", "reader:reader-word"))
    assert reader.budget("people").left_epsilon == 1.0
    with pytest.raises(ReadOnlyLedger, match="is not writable for this user"):
        reader.charge("people", CHARGE)


@pytest.mark.postgres
def test_a_server_without_connections_left_says_so_and_idle_ones_are_given_back(postgres, monkeypatch):
    """The wrong version asked whether the server was running, and held two connections for as long as it lived."""
    import psycopg

    monkeypatch.setattr(engines, "KEPT", 1)
    address = postgres.new_database()
    ledger = Ledger(address)
    ledger.register("people", epsilon=1.0, delta=0.0)
    idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    until = time.monotonic() + 60
    with psycopg.connect(address, autocommit=True) as connection:
        while connection.execute(idle).fetchone() != (0,) and time.monotonic() < until:
            time.sleep(0.1)
        assert connection.execute(idle).fetchone() == (0,)
        ledger.charge("people", CHARGE)
        connection.execute("CREATE ROLE one LOGIN PASSWORD 'one-word' CONNECTION LIMIT 1")
        other = address.replace("team:correct-horse-7", "one:one-word")
        with psycopg.connect(other), pytest.raises(LedgerBusy, match="no connection left"):
            Ledger(other).datasets()


@pytest.mark.postgres
def test_processes_that_begin_at_once_make_one_ledger(postgres):
    from concurrent.futures import ThreadPoolExecutor

    address = postgres.new_database()
    with ThreadPoolExecutor(6) as pool:
        names = [f"set{i}" for i in range(6)]
        list(pool.map(lambda name: Ledger(address).register(name, epsilon=1.0, delta=0.0), names))
    assert Ledger(address).datasets() == names


@pytest.mark.postgres
def test_a_transaction_that_others_rolled_back_is_done_again(postgres, monkeypatch):
    ledger = Ledger(postgres.new_database())
    ledger.register("people", epsilon=1.0, delta=0.0)
    insert, failures = sql.SqlStore._insert, iter(("40001", "40P01"))

    def interrupted(self, connection, row):
        insert(self, connection, row)
        code = next(failures, None)
        if code:  # the server itself ends the transaction, after the row was written
            connection.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$")

    monkeypatch.setattr(sql.SqlStore, "_insert", interrupted)
    charge = ledger.charge("people", CHARGE)
    assert next(failures, None) is None
    assert [record.charge for record in ledger.history("people")] == [charge.number]
    ledger.verify().require()


@pytest.mark.slow
@pytest.mark.postgres
def test_charges_survive_the_crash_of_the_server(postgres):
    server = type(postgres)(postgres.programs)
    try:
        ledger = Ledger(server.new_database())
        ledger.register("people", epsilon=1.0, delta=0.0)
        numbers = [ledger.charge("people", CHARGE).number for _ in range(20)]
        server.crash()
        with pytest.raises(ServerUnreachable):
            ledger.charge("people", CHARGE)
        server.start()
        assert [record.charge for record in ledger.history("people")] == numbers
        ledger.verify().require()
    finally:
        server.stop()


# -- scale -------------------------------------------------------------------------------------------------------------


def steps_of(path, key):
    """How many steps SQLite takes for each operation of a ledger that remembers nothing."""
    mechanism, steps = acc.Gaussian(50.0, unit="person"), [0]
    before = Ledger(path, key=key)
    made = before.charge("people", mechanism, number="one").number
    rows = before._store.after("people", -1)[:50]
    together = [("people", lambda ends: before._follow(ends, "resume", made))] * 3
    operations = {
        "charge": lambda ledger: ledger.charge("people", mechanism),
        "the same charge again": lambda ledger: ledger.charge("people", mechanism, number=made),
        "entries together": lambda ledger: ledger._store.append_all(together),
        "resume": lambda ledger: ledger.resume("people", made),
        "quote": lambda ledger: ledger.quote("people", mechanism),
        "budget": lambda ledger: ledger.budget("people", exact=False),
        "head": lambda ledger: ledger.head("people"),
        "record": lambda ledger: ledger.record("people", made),
        "history": lambda ledger: ledger.history("people", limit=5),
        "data sets": lambda ledger: ledger.datasets(),
        "a page of the check": lambda ledger: ledger._store.lost("people", rows),
    }

    def count():
        steps[0] += 1
        return 0

    def watch(connection, _):
        connection.set_progress_handler(count, 1)

    found = {}
    sa.event.listen(sa.pool.Pool, "connect", watch)
    try:
        for name, operation in operations.items():
            ledger, steps[0] = Ledger(path, key=key), 0
            operation(ledger)
            found[name] = steps[0]
    finally:
        sa.event.remove(sa.pool.Pool, "connect", watch)
    return found


def test_no_operation_takes_longer_in_a_longer_history(tmp_path):
    """The wrong version read a charge back by scanning all entries: at a million of them a charge took two seconds."""
    pytest.importorskip("cryptography")
    found = []
    for entries in (60, 2000):
        path, key = tmp_path / f"{entries}.db", tmp_path / f"{entries}.key"
        SigningKey.make(key)
        fill(path, key, entries)
        found.append(steps_of(path, key))
        Ledger(path, key=key).verify().require()
    short, long = found
    assert min(short.values()) > 10  # they were counted
    assert {name: steps for name, steps in long.items() if steps > 1.3 * short[name]} == {}
