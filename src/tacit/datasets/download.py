"""How does a file come from a public address, whole or not at all?

Bytes go to ``NAME.part`` beside the place of the file. An interrupted download leaves that part, and the next attempt
asks the server for the rest; the sha256 of the whole decides whether the two halves belong together. Only a complete,
checked file is renamed to its name, so a file with its proper name is always a good one.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from tacit.datasets.catalog import File, Remote
from tacit.datasets.errors import BrokenFileError, DownloadError

_CHUNK = 1 << 18
_TIMEOUT_S = 30.0
_ATTEMPTS = 4


class Progress(Protocol):
    """Told how far a download is."""

    def __call__(self, done: int, total: int | None) -> None: ...


@contextlib.contextmanager
def progress_bar(label: str, show: bool | None = None) -> Iterator[Progress]:
    """A bar on standard error where that is a terminal; nothing otherwise."""
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Open the part for appending, one process at a time."""
    with open(path, "ab") as part:
        try:
            import fcntl
        except ImportError:  # not a POSIX system: the checksum still catches two writers
            yield part
            return
        fcntl.flock(part, fcntl.LOCK_EX)
        yield part


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(remote: Remote, destination: Path, progress: Progress = lambda done, total: None) -> None:
    """Fetch ``remote`` to ``destination``: resumed where it stopped, checked by size and sha256, renamed when right."""
    part = destination.with_name(destination.name + ".part")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with _locked(part) as file:
            # Another process may have finished while this one waited for the lock.
            if destination.exists() and _digest(destination) == remote.sha256:
                part.unlink(missing_ok=True)
                return
            try:
                _fill(remote, file, progress)
            finally:
                if _size(file) == 0:  # nothing worth going on from
                    part.unlink(missing_ok=True)
            if _digest(part) != remote.sha256:
                part.unlink(missing_ok=True)
                raise DownloadError(
                    f"{remote.url} sent a file whose sha256 is not the known one; nothing was kept. Try "
                    "again; if it happens again the file at that address has changed"
                )
            os.replace(part, destination)
    except OSError as error:
        raise DownloadError(f"cannot write {destination}: {error.strerror or error}") from error


def _size(file: BinaryIO) -> int:
    """How much of the part is on the disk; a file opened for appending does not know by its position."""
    file.flush()
    return os.fstat(file.fileno()).st_size


def _fill(remote: Remote, file: BinaryIO, progress: Progress) -> None:
    """Bring the part to its full size, asking again for the rest when a connection breaks."""
    trouble, total = "", remote.size
    for _ in range(_ATTEMPTS):
        have = _size(file)
        if total is not None and have > total:
            file.truncate(0)
            have = 0
        if have == total:
            return
        try:
            total = _ask(remote, file, have, progress)
        except urllib.error.HTTPError as error:
            error.close()
            # 416: the server does not have what is asked for beyond the part, so the part is of another file.
            if error.code == 416 and have:
                file.truncate(0)
                continue
            raise DownloadError(f"{remote.url} answered {error.code} {error.reason}") from error
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            trouble = str(getattr(error, "reason", "") or error)
            continue
        if total is None or _size(file) == total:
            return
        trouble = "the connection ended early"
    kept = _size(file)
    rest = f"; {kept} of {total or 'an unknown number of'} bytes are kept, the next attempt goes on from there"
    raise DownloadError(f"{remote.url}: {trouble}{rest if kept else ''}")


def _ask(remote: Remote, file: BinaryIO, have: int, progress: Progress) -> int | None:
    """Ask for what is missing and write what comes; the size of the whole where it is known or announced."""
    headers = {"User-Agent": "tacit", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(remote.url, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        resumed = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
        if have and not resumed:  # a server without ranges sends the whole file again
            file.truncate(0)
            have = 0
        length = answer.headers.get("Content-Length")
        announced = None if length is None else have + int(length)
        if remote.size is not None and announced is not None and announced != remote.size:
            raise DownloadError(
                f"{remote.url} announces {announced} bytes where {remote.size} are known; the file there has changed"
            )
        total = announced if remote.size is None else remote.size
        while chunk := _read(answer, _CHUNK):
            have += len(chunk)
            if total is not None and have > total:
                file.truncate(0)
                raise DownloadError(f"{remote.url} sends more than the known {total} bytes; the file there has changed")
            file.write(chunk)
            progress(have, total)
    return total


def _read(answer: http.client.HTTPResponse, size: int) -> bytes:
    """Bytes from the server; trouble with the network must not look like trouble with the disk."""
    try:
        return answer.read(size)
    except OSError as error:
        raise ConnectionError(str(error)) from error


def _member(archive: Path, name: str) -> bytes:
    """One named file out of an archive; nothing is extracted to a path that the archive chooses."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as bundle:
                return bundle.read(name)
        with tarfile.open(archive) as bundle:
            member = bundle.extractfile(name)
            if member is None:
                raise KeyError(name)
            return member.read()
    except (KeyError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise BrokenFileError(f"{archive} does not hold a readable {name!r}") from error


def fetch_file(file: File, folder: Path, show_progress: bool | None = None) -> Path:
    """Put one file of the catalogue into its place under ``folder``, out of an archive where it comes in one."""
    remote, path = file.remote, folder / file.path
    assert remote is not None
    with progress_bar(Path(file.path).name, show_progress) as progress:
        if remote.member is None:
            download(remote, path, progress)
            return path
        archive = path.parent / remote.url.rsplit("/", 1)[1]
        download(remote, archive, progress)
    content = _member(archive, remote.member)
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise BrokenFileError(f"{archive}: its {remote.member} is not the known file")
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        raise DownloadError(f"cannot write {path}: {error.strerror or error}") from error
    return path
