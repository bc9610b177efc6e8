"""Who may do what on a service? Tokens with a role, of which the service keeps only hashes.

- ``owner`` registers data sets, raises, splits, freezes and thaws budgets, and says which data belong to a name.
- ``analyst`` quotes and charges, confirms and binds what they charged themselves, and reads.
- ``auditor`` reads and verifies, and may freeze a budget.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tacit.ledger.errors import AccessDenied, StorageError, TermsError
from tacit.ledger.terms import check_name, check_text

ROLES = ("owner", "analyst", "auditor")


@dataclasses.dataclass(frozen=True)
class Token:
    """One token as the service keeps it.

    Args:
        name: Whose it is; every entry made with it says so.
        role: ``owner``, ``analyst`` or ``auditor``.
        sha256: The hash of the token.
        team: The team whose share of a budget its charges spend; empty for none.
        datasets: The data sets it is for; empty for all.
        expires: When it ends, in UTC (ISO 8601).
    """

    name: str
    role: str
    sha256: str
    team: str = ""
    datasets: tuple[str, ...] = ()
    expires: str = ""

    @property
    def by(self) -> dict[str, str]:
        """What an entry says about who wrote it."""
        return {"role": self.role, "name": self.name} | ({"team": self.team} if self.team else {})


class Tokens:
    """A file of tokens, mode 0600. A running service reads it again when it changes.

    Args:
        path: The file. It is made with the first token.

    Example:
        >>> import pathlib, tempfile
        >>> tokens = Tokens(pathlib.Path(tempfile.mkdtemp(), "tokens.json"))
        >>> secret = tokens.add("ana", "analyst")
        >>> tokens.check(secret).name
        'ana'
        >>> tokens.revoke("ana")
        >>> tokens.check(secret) is None
        True
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._read: tuple[tuple[int, int], list[Token]] | None = None

    def all(self) -> list[Token]:
        """The tokens in the file."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return []
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise StorageError(f"{self.path} can be read by others: chmod 600 it, and make new tokens")
        mark = (status.st_mtime_ns, status.st_ino)
        if self._read is None or self._read[0] != mark:
            try:
                lines = json.loads(self.path.read_text(encoding="utf-8"))
                found = [Token(**{**line, "datasets": tuple(line["datasets"])}) for line in lines]
            except (OSError, ValueError, TypeError, KeyError):
                raise StorageError(f"{self.path} is no file of tokens: tacit ledger token makes one") from None
            self._read = mark, found
        return self._read[1]

    def add(
        self, name: str, role: str, *, team: str = "", datasets: tuple[str, ...] = (), days: float | None = None
    ) -> str:
        """Make a token. It is shown once, and only its hash is kept.

        Args:
            name: Whose it is.
            role: ``owner``, ``analyst`` or ``auditor``.
            team: The team whose share its charges spend.
            datasets: The data sets it is for; empty for all.
            days: After how many days it ends; None for never.

        Returns:
            The token.
        """
        if role not in ROLES:
            raise TermsError(f"unknown role {role!r}; choose one of {', '.join(ROLES)}")
        secret, ends = "tacit_" + secrets.token_urlsafe(32), ""
        if days is not None:
            if not 0 < days < 36525:
                raise TermsError(f"a token ends after a number of days above 0, at most a hundred years, not {days!r}")
            ends = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)).isoformat(timespec="seconds")
        named = tuple(check_name(dataset) for dataset in datasets)
        made = Token(name, role, _hash(secret), check_text("a team", team), named, ends)
        with self._alone():
            if not check_text("a name", name) or any(token.name == name for token in self.all()):
                raise TermsError(f"a token needs a name of its own, and {name!r} is taken or empty")
            self._write([*self.all(), made])
        return secret

    def revoke(self, name: str) -> None:
        """End a token now.

        Args:
            name: Whose it is.
        """
        with self._alone():
            rest = [token for token in self.all() if token.name != name]
            if len(rest) == len(self.all()):
                raise TermsError(f"there is no token of {name!r}")
            self._write(rest)

    def check(self, secret: str) -> Token | None:
        """The token that this secret belongs to; None if there is none, or it has ended.

        Args:
            secret: What somebody sent.

        Returns:
            The token.
        """
        given = _hash(secret)
        found = [token for token in self.all() if secrets.compare_digest(token.sha256, given)]
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return found[0] if found and (not found[0].expires or now < found[0].expires) else None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else changes the file meanwhile: a token that was revoked does not come back with another change."""
        try:
            descriptor = os.open(self.path.with_name(self.path.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror}") from None
        try:
            with contextlib.suppress(ImportError):  # not on Windows
                import fcntl

                fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._read = None
            yield
        finally:
            os.close(descriptor)

    def _write(self, tokens: list[Token]) -> None:
        new = self.path.with_name(self.path.name + ".new")
        try:
            descriptor = os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, stat.S_IRUSR | stat.S_IWUSR)
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump([dataclasses.asdict(token) for token in tokens], file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.path)
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror}") from None
        self._read = None


def _hash(secret: str) -> str:
    # A token is 256 random bits, so a fast hash is enough.
    return hashlib.sha256(secret.encode()).hexdigest()


def require(token: Token, action: str, roles: tuple[str, ...], dataset: Any) -> None:
    """Refuse what a token is not for. ``dataset`` is None for what is about no data set in particular."""
    if token.role not in roles:
        raise AccessDenied(f"{token.name} is {token.role} here; {action} is for the {' or the '.join(roles)}")
    if token.datasets and dataset is not None and dataset not in token.datasets:
        raise AccessDenied(f"the token of {token.name} is for {', '.join(token.datasets)} only")
