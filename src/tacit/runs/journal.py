"""What is left of a run that was killed, at whatever moment? All of it: the folder of a run is its journal.

A run is *begun*, *decided* or *ended*, and one rename leads from each state to the next:

- begun: the folder is there with its settings and, where the command draws from one, a secret in ``private/run.key``.
  What the command keeps in ``private/`` on its way is its own. Everything random follows from what is kept there, so
  that a run which goes on makes the release it would have made.
- decided: ``private/release/`` holds the whole release, byte for byte. Nothing is drawn, trained or priced any more.
- ended: the release lies in the folder, what was needed only on the way is deleted, and ``private/released/`` keeps a
  copy, from which files that are lost or torn are put back.

Guarantee: nothing is deleted before the release is on the disk, so a run that is killed and resumed, however often,
releases one set of bytes for one charge. One process at a time works in a folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.noise import Key
from tacit.report.files import flush_folder, write_whole

KEY, LOCK, MANIFEST = "run.key", "lock", "release.json"
#: The card goes into place last: whoever finds it finds the rest.
LAST = "privacy.json"


class JournalError(ValueError):
    """Nothing can be done in a run's folder now. The message says what to do."""


class NameTaken(JournalError):
    """A new run has the name of another one, in ``folder``; ``how`` says how to continue that one."""

    def __init__(self, folder: Path, how: str = "resume=True") -> None:
        super().__init__(
            f"name: {folder} exists; choose another name, or continue that run: {how}. See: tacit explain name-taken"
        )
        self.folder = folder


class Journal:
    """The folder of one run, in the hands of one process until :meth:`close`.

    >>> import tempfile
    >>> with Journal.begin(Path(tempfile.mkdtemp()), "mine", "", {"config.toml": ""}) as journal:
    ...     _ = (journal.stage() / "labels.csv").write_text("0")
    ...     journal.decide({"answered": 1})
    ...     journal.publish(), journal.ended, (journal.folder / "labels.csv").read_text()
    ({'answered': 1}, True, '0')
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.private = folder, folder / "private"
        #: Whether the run was begun by this process.
        self.fresh = False
        self._lock = _locked(folder, self.private / LOCK)

    @classmethod
    def begin(
        cls, root: Path, name: str | None, stem: str, files: Mapping[str, str], *, keyed: bool = False
    ) -> Journal:
        """A new run: a folder that is there with all of ``files``, or not at all; ``keyed`` gives it a secret.

        ``name`` under ``root``, or, where it is None, ``stem`` and the first number that is free.
        """
        for given in (stem, name or stem):
            _check_name(given)
        if name is not None and (root / name).exists():
            raise NameTaken(root / name)
        parent = (root / (name or stem)).parent
        parent.mkdir(parents=True, exist_ok=True)
        draft = parent / f".{uuid.uuid4().hex}.new"
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, draft, ignore_errors=True)
            (draft / "private").mkdir(parents=True, mode=0o700)
            os.chmod(draft / "private", 0o700)
            for file, text in files.items():
                write_whole(draft / file, text)
            if keyed:
                Key.generate().save(draft / "private" / KEY)
            journal = undo.enter_context(cls(draft))
            journal.folder = _moved(draft, root, name, stem)
            journal.private, journal.fresh = journal.folder / "private", True
            undo.pop_all()
        return journal

    @classmethod
    def open(cls, folder: Path, settings: str) -> Journal:
        """The folder of a run to continue; ``settings`` is the name of the file that its command writes first."""
        if not (folder / settings).exists():
            raise JournalError(f"{folder} is not the folder of a run: it has no {settings}")
        return cls(folder)

    # -- where it stands -----------------------------------------------------------------------------------------------

    @property
    def decided(self) -> bool:
        """Whether the release is made, and waits to be published or was."""
        return (self.private / "release").exists() or self.ended

    @property
    def ended(self) -> bool:
        """Whether the release is published. Of runs older than the journal a whole card says so."""
        if (self.private / "released").exists():
            return True
        return not (self.private / "release").exists() and _parses(self.folder / LAST)

    def secret(self, purpose: str) -> bytes:
        """32 bytes for one purpose, the same whenever this run goes on, and gone when it has ended."""
        path = self.private / KEY
        Key.sweep(path)
        if not path.exists():
            raise JournalError(
                f"{path} is gone, and everything that this run draws depends on it: the run cannot continue. What was "
                "charged stays charged; start a new run"
            )
        return Key.load(path).stream(purpose, 0, 0).tobytes()

    @property
    def staged(self) -> Path:
        """Where the files of the release are collected."""
        return self.private / "release.new" / "files"

    # -- from state to state -------------------------------------------------------------------------------------------

    def stage(self) -> Path:
        """An empty folder for the files of the release. Nothing in it counts before :meth:`decide`."""
        draft = self.staged.parent
        if draft.exists():
            shutil.rmtree(draft)
        self.staged.mkdir(parents=True)
        return self.staged

    def decide(self, told: Mapping[str, Any], scratch: Sequence[str] = ()) -> None:
        """From here on what is staged is the release, and nothing else can be.

        ``told``: what is said at the end, again whenever somebody asks. ``scratch``: what in ``private/`` is deleted
        after the release is published.
        """
        draft = self.staged.parent
        names = sorted(str(path.relative_to(self.staged)) for path in self.staged.rglob("*") if path.is_file())
        names.sort(key=lambda name: name == LAST)
        digests = {name: hashlib.sha256((self.staged / name).read_bytes()).hexdigest() for name in names}
        manifest = {"told": dict(told), "files": digests, "scratch": [KEY, *scratch]}
        write_whole(draft / MANIFEST, json.dumps(manifest, ensure_ascii=False))
        for path in (draft, *draft.rglob("*")):
            flush_folder(path)  # files are flushed in the same way
        os.rename(draft, self.private / "release")
        flush_folder(self.private)

    def publish(self) -> dict[str, Any]:
        """Put the release in its place, delete what is no longer needed, and end the run; what is to be said."""
        release = self.private / "release"
        manifest = self._manifest(release)
        for name, digest in manifest["files"].items():
            content = (release / "files" / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != digest:
                raise JournalError(
                    f"{release / 'files' / name} was changed after the run was decided: nothing is published"
                )
            self._install(name, content)
        for name in manifest["scratch"]:
            self._delete(self.private / name)
        for path in (*self.folder.iterdir(), self.private / LOCK):
            if path.is_file():  # how long a search took tells how many runs it made
                os.utime(path)
        os.rename(release, self.private / "released")
        flush_folder(self.private)
        return dict(manifest["told"])

    def told(self) -> tuple[dict[str, Any] | None, list[str]]:
        """What an ended run said (None before there was a journal), and the files that were lost or torn and put back.

        A file that was changed since, as an audit changes the card, stays as it is.
        """
        release = self.private / "released"
        if not release.exists():
            return None, []
        manifest, mended = self._manifest(release), []
        for name in manifest["files"]:
            kept = release / "files" / name
            if kept.exists() and _torn(self.folder / name, kept.read_bytes()):
                self._install(name, kept.read_bytes())
                mended.append(name)
        return dict(manifest["told"]), mended

    def discard(self) -> None:
        """Take away a run that never began: nothing was charged or shown. Its name is free again."""
        self._delete(self.private / KEY)
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Let another process in."""
        os.close(self._lock)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _manifest(self, release: Path) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((release / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise JournalError(f"{release / MANIFEST} is lost or damaged: restore it from a copy of the run") from None
        return found

    def _install(self, name: str, content: bytes) -> None:
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(f".{target.name}.*.new"):  # of a process that was killed here
            left.unlink()
        write_whole(target, content)

    def _delete(self, path: Path) -> None:
        if path.name == KEY:
            Key.sweep(path)
            if path.exists():
                Key.load(path).destroy()
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _locked(folder: Path, path: Path) -> int:
    try:
        import fcntl
    except ImportError:
        raise JournalError(
            "a run's folder is protected by file locks, which this system lacks: use Linux, macOS or "
            "WSL (tacit.sgd, tacit.linear_model and tacit.accounting work here)"
        ) from None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise JournalError(f"another process is working on {folder}: wait until it has ended") from None
        raise JournalError(
            f"{folder} is on a file system without file locks ({error.strerror}), so two processes could work on one "
            "run: choose another place with --runs"
        ) from None
    return descriptor


def _check_name(name: str) -> None:
    """Refuse a name that leads out of the folder of runs, or that a terminal would not show as it is."""
    parts = Path(name).parts
    if name and (Path(name).is_absolute() or ".." in parts or not parts or not name.isprintable() or "\\" in name):
        raise JournalError(f"{name!r} is no name for a run: give printable text that stays inside the folder of runs")


def _moved(draft: Path, root: Path, name: str | None, stem: str) -> Path:
    """The draft of a run under its name. A folder that holds something is never replaced: the rename fails."""
    numbers = iter(range(1, 1_000_000))
    while True:
        folder = root / (name if name is not None else f"{stem}-{next(numbers)}")
        if name is None and folder.exists():
            continue
        try:
            os.rename(draft, folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            if name is not None:
                raise NameTaken(folder) from None
            continue
        flush_folder(folder.parent)
        return folder


def _parses(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        json.loads(path.read_text(encoding="utf-8"))
        return True
    return False


def _torn(path: Path, kept: bytes) -> bool:
    """Whether a file is lost, cut short, or JSON that no longer reads."""
    if not path.exists():
        return True
    found = path.read_bytes()
    cut = found != kept and kept.startswith(found)
    return cut or (path.suffix == ".json" and not _parses(path))
