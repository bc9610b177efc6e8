"""Which keys did abandoned runs leave behind? A key that is kept can subtract the noise of its run."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from pathlib import Path

from tacit.noise import Key, KeyFileError
from tacit.runs.journal import KEY, Journal, JournalError
from tacit.sgd.training.checkpoint import key_folder


@dataclasses.dataclass(frozen=True)
class KeptKey:
    """One key file that a run left: its run can still go on, and whoever has it can subtract its noise."""

    name: str
    path: Path
    days: float


def kept_keys(runs: Path = Path("runs")) -> list[KeptKey]:
    """The keys of runs that have not ended, oldest first; also those that a kill left half saved or half destroyed.

    Args:
        runs: The folder of runs. Training keeps its keys apart, for this user; searches, votes and prompts keep theirs
            in the folder of the run.

    Returns:
        One for each key.
    """
    left = [*key_folder().glob("*.key*"), *runs.glob(f"**/private/{KEY}*")]
    now, found = datetime.datetime.now().timestamp(), {}
    for file in left:
        path = file.with_name(file.name.partition(".key")[0] + ".key")
        name = path.parent.parent.relative_to(runs).as_posix() if path.name == KEY else path.stem
        with contextlib.suppress(FileNotFoundError):  # its run has ended since
            found[path] = KeptKey(name, path, (now - file.stat().st_mtime) / 86400)
    return sorted(found.values(), key=lambda one: -one.days)


def destroy_key(kept: KeptKey) -> None:
    """Overwrite and remove a key. Its run cannot be resumed afterwards; what it was charged stays spent.

    Args:
        kept: The key, as :func:`kept_keys` lists it.

    Raises:
        JournalError: If its run is going on in another process, or the file is no key that this user alone can read.
    """
    with Journal(kept.path.parent.parent) if kept.path.name == KEY else contextlib.nullcontext():
        Key.sweep(kept.path)
        if kept.path.exists():
            try:
                Key.load(kept.path).destroy()
            except KeyFileError as error:
                raise JournalError(str(error)) from None
