"""Where are a data set's files?

In the folder that was named, else in ``TACIT_DATA``, else in the cache folder, else at a public address. A folder
counts only when it holds every file of the set, and a file only when its content has the known checksum.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tacit.datasets.catalog import Entry, File
from tacit.datasets.download import fetch_file
from tacit.datasets.errors import BrokenFileError, DatasetError, DownloadError, MissingDataError


@dataclass(frozen=True)
class FoundFiles:
    """The files of a data set and the paths at which they lie."""

    folder: Path
    files: tuple[File, ...]
    paths: tuple[Path, ...]


def cache_folder() -> Path:
    """The folder that downloads go to.

    Returns:
        ``tacit`` in ``XDG_CACHE_HOME``, or ``~/.cache/tacit``.

    Example:
        >>> cache_folder().name
        'tacit'
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tacit"


def search_folders(data_dir: str | Path | None = None) -> list[Path]:
    """The folders in which files are looked for.

    Args:
        data_dir: A folder to put first. None leaves it out.

    Returns:
        ``data_dir``, the folder named by ``TACIT_DATA`` if it is set, and the cache folder, in this order.

    Example:
        >>> search_folders("my-data")[0].name
        'my-data'
    """
    named = [data_dir, os.environ.get("TACIT_DATA")]
    return [*(Path(folder).expanduser() for folder in named if folder), cache_folder()]


def _packaged(entry: Entry) -> FoundFiles | None:
    """The file inside an installed distribution, found without importing it."""
    assert entry.package is not None
    (wanted,) = entry.ways[0]
    try:
        files = importlib.metadata.files(entry.package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate()))
        if file.name == wanted.path and path.is_file():
            return FoundFiles(path.parent, (wanted,), (path,))
    return None


def _complete(files: Iterable[File], folder: Path) -> FoundFiles | None:
    files = tuple(files)
    paths = tuple(folder / file.path for file in files)
    return FoundFiles(folder, files, paths) if all(path.is_file() for path in paths) else None


def locate(entry: Entry, data_dir: str | Path | None = None) -> FoundFiles | None:
    """Look for the files of a data set without downloading anything.

    Args:
        entry: The data set, out of ``CATALOG``.
        data_dir: The folder to look in first. None uses ``TACIT_DATA`` and the cache folder.

    Returns:
        The first complete set of files, or None.

    Example:
        >>> from tacit.datasets import CATALOG
        >>> locate(CATALOG["labsup"]).paths[0].name
        'labsup.csv.bz2'
    """
    for folder in search_folders(data_dir):
        for way in entry.ways:
            if (found := _complete(way, folder)) is not None:
                return found
    return _packaged(entry) if entry.package else None


def missing_message(entry: Entry, data_dir: str | Path | None, files: tuple[File, ...] | None = None) -> str:
    """Where the files were looked for, where to get them and where to put them."""
    searched = ", ".join(str(folder) for folder in search_folders(data_dir))
    files = files or entry.download or entry.ways[0]
    target = Path(data_dir) if data_dir else cache_folder()
    get = entry.advice or ", ".join(dict.fromkeys(file.remote.url for file in files if file.remote))
    put = ", ".join(str(target / file.path) for file in files)
    return (
        f"{entry.name} was not found (looked in {searched}). Where to get it: {get}. Where to put it: {put}. "
        "See: tacit explain data-not-found"
    )


def obtain(
    entry: Entry,
    data_dir: str | Path | None = None,
    *,
    download: bool = True,
    extra: str | None = None,
    show_progress: bool | None = None,
) -> FoundFiles:
    """Find the files of a data set, and download them if they are absent and have a public address.

    Args:
        entry: The data set, out of ``CATALOG``.
        data_dir: The folder to look in first, and to download to. None looks in ``TACIT_DATA``, which is only read, and
            in the cache folder, to which it downloads.
        download: Whether absent files may be fetched.
        extra: A part that is not fetched by default, out of ``entry.extras``. None takes the set itself.
        show_progress: Whether to show a bar. None shows it on a terminal.

    Returns:
        The folder, the files and their paths.

    Raises:
        MissingDataError: If the files are absent and may not or cannot be fetched.
        DownloadError: If a download fails. What arrived is kept, and the next call goes on from there.
        DatasetError: If a file disappears while others are fetched.

    Example:
        >>> from tacit.datasets import CATALOG
        >>> obtain(CATALOG["labsup"], download=False).paths[0].name
        'labsup.csv.bz2'
    """
    if extra is None:
        found, wanted = locate(entry, data_dir), entry.download
    else:
        wanted = entry.extras[extra]
        found = next(filter(None, (_complete(wanted, folder) for folder in search_folders(data_dir))), None)
    if found is not None:
        return found
    if wanted is None or not download:
        raise MissingDataError(missing_message(entry, data_dir, wanted))
    target = Path(data_dir).expanduser() if data_dir else cache_folder()
    for file in wanted:
        if (target / file.path).is_file():
            continue
        try:
            fetch_file(file, target, show_progress)
        except DownloadError as error:
            raise DownloadError(f"{error}. {missing_message(entry, data_dir, wanted)}") from error
    found = _complete(wanted, target)
    if found is None:
        raise DatasetError(f"{entry.name}: a file disappeared from {target} while others were fetched; try again")
    return found


def read_checked(file: File, path: Path) -> bytes:
    """The content of a file (decompressed for ``.gz``), or an error that names it where it is not the known content."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BrokenFileError(f"cannot read {path}: {error.strerror or error}") from error
    if path.suffix == ".gz" and not path.name.endswith(".tar.gz"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise BrokenFileError(f"{path} is truncated or damaged: {error}. {_again(file)}") from error
    if file.sha256 is not None and hashlib.sha256(content).hexdigest() != file.sha256:
        raise BrokenFileError(
            f"{path} is truncated, damaged or a different file: the sha256 of its content is not the known one. "
            f"{_again(file)}"
        )
    return content


def _again(file: File) -> str:
    if file.remote is not None:
        return f"Delete it to have it fetched again from {file.remote.url}"
    return "Replace it with a good copy"
