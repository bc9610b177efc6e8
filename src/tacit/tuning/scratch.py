"""Where does an unfinished search keep what nobody may see? In a folder that only its owner can read.

It holds how many runs were drawn, which are done, and the best so far (or all finished candidates, for the exponential
mechanism). All of that is private. It never leaves the folder, and the folder is deleted at the end.
"""

from __future__ import annotations

import os
import pickle
import shutil
import stat
from pathlib import Path
from typing import Any

from tacit.tuning.errors import TuningError

STATE = "state"


class Scratch:
    """A folder of mode 0700 with the state of one search; without a path nothing is kept.

    >>> import tempfile
    >>> scratch = Scratch(Path(tempfile.mkdtemp()) / "search")
    >>> scratch.save({"left": 3})
    >>> scratch.load()
    {'left': 3}
    >>> scratch.delete()
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        if self.path is None:
            return
        if not self.path.exists() and not self.path.is_symlink():
            self.path.mkdir(parents=True, mode=0o700)
            os.chmod(self.path, 0o700)
        self._check(self.path)

    @staticmethod
    def _check(path: Path) -> None:
        """Refuse a folder that others can read or could have filled: its state would be theirs to see, or to forge."""
        status = os.lstat(path)
        reason = ""
        if not stat.S_ISDIR(status.st_mode):
            reason = "is not a folder"
        elif stat.S_IMODE(status.st_mode) & 0o077:
            reason = f"can be reached by other users (mode {stat.S_IMODE(status.st_mode):04o})"
        elif hasattr(os, "geteuid") and status.st_uid != os.geteuid():
            reason = "belongs to another user"
        elif any(entry.name not in (STATE, STATE + ".new") for entry in path.iterdir()):
            reason = "holds files that belong to something else"
        if reason:
            raise TuningError(f"the scratch folder {path} {reason}: name a folder that does not exist yet")

    def load(self) -> Any:
        """The state of an interrupted search, or None."""
        if self.path is None or not (self.path / STATE).exists():
            return None
        try:
            with (self.path / STATE).open("rb") as file:
                return pickle.load(file)  # noqa: S301 - its owner's own file, in a closed folder
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
            raise TuningError(
                f"the state in {self.path} cannot be read ({type(error).__name__}): delete the folder and start again. "
                "The charge stays"
            ) from None

    def save(self, state: Any) -> None:
        """Write the state so that a crash leaves the old one or the new one."""
        if self.path is None:
            return
        fresh = self.path / (STATE + ".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            pickle.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self.path / STATE)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name must survive a power cut as well
        finally:
            os.close(folder)

    def delete(self) -> None:
        """Remove the folder and everything in it."""
        if self.path is None:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.exists():
            raise TuningError(f"the scratch folder {self.path} could not be deleted. It is private: delete it by hand")
