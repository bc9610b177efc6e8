"""Which keys did abandoned runs leave behind? A key that is kept can subtract the noise of its run."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path

from tacit.noise import Key
from tacit.sgd.training.checkpoint import key_folder


@dataclasses.dataclass(frozen=True)
class KeptKey:
    """One key file that a run left: its run can still go on, and whoever has it can subtract its noise."""

    name: str
    path: Path
    days: float


def kept_keys() -> list[KeptKey]:
    """The keys of runs that have not ended, oldest first."""
    now = datetime.datetime.now().timestamp()
    files = sorted(key_folder().glob("*.key"), key=lambda path: path.stat().st_mtime)
    return [KeptKey(path.stem, path, (now - path.stat().st_mtime) / 86400) for path in files]


def destroy_key(kept: KeptKey) -> None:
    """Overwrite and remove a key. Its run cannot be resumed afterwards; what it was charged stays spent."""
    Key.load(kept.path).destroy()
