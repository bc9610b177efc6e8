"""A real PostgreSQL server for the tests that need one, and a ledger of each kind."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tacit.ledger import Ledger

PASSWORD = "correct-horse-7"


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3].split(".")[0]))
    if found:
        return found[-1].parent
    there = shutil.which("initdb")
    return Path(there).resolve().parent if there else None


def _someone_else() -> dict[str, object]:
    """PostgreSQL refuses to run as root: the account its packages make, or nobody."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    pytest.skip("no account to run PostgreSQL under")


class Server:
    """A PostgreSQL server in a temporary folder on a free port, with password authentication."""

    def __init__(self, programs: Path) -> None:
        self.programs, self.account = programs, _someone_else()
        self.folder = Path(tempfile.mkdtemp(prefix="tacit-pg-"))
        if self.account:
            os.chown(self.folder, int(self.account["user"]), int(self.account["group"]))
        self.data = self.folder / "data"
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            "initdb", "-D", str(self.data), "-U", "team", "-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8"
        )
        # Bound and never listening: the port is this server's also while it is down, and nobody else's.
        self.reserved = socket.socket()
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("127.0.0.1", 0))
        self.port = self.reserved.getsockname()[1]
        self._databases = 0
        self.start()

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=100"
        self._run("pg_ctl", "-D", str(self.data), "-l", str(self.folder / "log"), "-w", "-o", options, "start")

    def crash(self) -> None:
        """No shutdown: what was not on the disk is gone."""
        self._run("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *words: str) -> None:
        # pg_ctl leaves the server with its output: a file, not a pipe that would never close.
        with open(self.folder / "output", "w+") as output:
            told = subprocess.run(
                [str(self.programs / program), *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"},
                check=False,
                **self.account,
            )
            output.seek(0)
            assert told.returncode == 0, output.read()

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql://team:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The address of an empty database."""
        import psycopg

        self._databases += 1
        name = f"ledger{self._databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop")
        time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres():
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL's server programs (initdb) are not installed")
    pytest.importorskip("psycopg")
    server = Server(programs)
    yield server
    server.stop()


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ledger(request, tmp_path):
    """An empty ledger of each kind."""
    if request.param == "memory":
        return Ledger()
    if request.param == "sqlite":
        return Ledger(tmp_path / "people.db")
    return Ledger(request.getfixturevalue("postgres").new_database())


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def address(request, tmp_path):
    """Where a ledger that processes share can be made."""
    if request.param == "sqlite":
        return str(tmp_path / "people.db")
    return request.getfixturevalue("postgres").new_database()
