"""How is a file written that is never seen half? Beside its place, flushed to the disk, then renamed into it."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes | str, mode: int = 0o666) -> Path:
    """Write a file so that at any moment the old one or the new one is there, whole; text is written as UTF-8.

    >>> import tempfile
    >>> write_whole(Path(tempfile.mkdtemp()) / "note.txt", "whole").read_text()
    'whole'
    """
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(descriptor, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    flush_folder(target.parent)
    return target


def flush_folder(path: str | os.PathLike[str]) -> None:
    """Let the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
