"""How does a run use its folder, from its first file to its release? The same way, whatever it computes.

A run is *new*, in its own folder under ``runs/``, or continues in the folder that it had. What it computes is a
:class:`Work`; the states of the folder are those of :mod:`tacit.runs.journal`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tacit.runs.journal import Journal, JournalError
from tacit.runs.progress import Reporter

if TYPE_CHECKING:
    from tacit.ledger import OperatorView


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Where a run works: in a new folder under ``runs``, or in that of a run to ``resume``.

    Without a ``name`` a new folder is called after the data, with the first number that is free.
    """

    runs: Path = Path("runs")
    name: str | None = None
    resume: Path | None = None


class Work(Protocol):
    """What a run computes. Everything random in it follows from what the journal keeps."""

    @property
    def config(self) -> str:
        """The file of its settings, which is the first in its folder."""

    @property
    def keyed(self) -> bool:
        """Whether it draws from a secret of the run."""

    @property
    def ledger(self) -> str | None:
        """The ledger that is charged, with its password if it has one."""

    @property
    def stem(self) -> str:
        """What a run without a name is called, before its number."""

    def files(self) -> Mapping[str, str]:
        """The files with which its folder begins, its settings among them."""

    def check(self, journal: Journal) -> None:
        """Refuse to go on in this folder, where that cannot be."""

    def read(self) -> Any:
        """The data. It happens before there is a folder: what cannot be read leaves nothing behind."""

    def make(self, journal: Journal, data: Any, progress: Reporter) -> list[OperatorView]:
        """Everything until the release is decided; what only the operator may see is returned."""


@dataclasses.dataclass(frozen=True, eq=False)
class Published:
    """A run that has ended: its folder, what is to be told of it, and what only the operator may see."""

    folder: Path
    told: dict[str, Any]
    views: list[OperatorView]


def carry_out(work: Work, place: RunFolder, progress: Reporter) -> Published:
    """Begin or go on, do the work where it is not done, and publish what was decided.

    Guarantee: that of the work, once. A run that is decided is not computed, priced or charged again.
    """
    views: list[OperatorView] = []
    with contextlib.ExitStack() as stack:
        journal: Journal | None = None
        if place.resume is not None:
            journal = stack.enter_context(Journal.open(place.resume, work.config))
            progress.begun(journal.folder)
            work.check(journal)
        if journal is None or not journal.decided:
            data = work.read()
            if journal is None:
                begun = Journal.begin(place.runs, place.name, work.stem, work.files(), keyed=work.keyed)
                journal = stack.enter_context(begun)
                progress.begun(journal.folder)
            views = work.make(journal, data, progress)
        return Published(journal.folder, _brought_out(journal, work, progress), views)


def _brought_out(journal: Journal, work: Work, progress: Reporter) -> dict[str, Any]:
    """Bind and publish what a run has decided, or say that this was done before; what is to be told."""
    if journal.ended:
        told, mended = journal.told()
        if told is None:
            raise JournalError(f"{journal.folder} has ended; what it claims is in {journal.folder / 'privacy.json'}")
        done = f"restored what was lost or cut short: {', '.join(mended)}" if mended else "nothing was changed"
        progress.note(f"{journal.folder} has ended; {done}")
    else:
        from tacit.runs.publish import bind

        bind(journal, work.config, work.ledger)
        told = journal.publish()
    files = {what: str(journal.folder / name) for what, name in told.pop("files").items()}
    return {"run": str(journal.folder), **told, **files}


def refusals() -> tuple[type[Exception], ...]:
    """The errors by which a room says that something cannot be done; their messages hold no value of the data."""
    from tacit.cluster import ClusterError
    from tacit.datasets import DatasetError
    from tacit.ledger import LedgerError
    from tacit.sgd import CheckpointError, ClippingError

    return (ValueError, ModuleNotFoundError, DatasetError, LedgerError, CheckpointError, ClippingError, ClusterError)


@contextlib.contextmanager
def taken_back(journal: Journal, spent: Callable[[Exception], bool]) -> Iterator[None]:
    """A new run that is refused takes its folder away, unless it ``spent`` something: its name is free again."""
    try:
        yield
    except refusals() as error:
        if journal.fresh and not spent(error):
            journal.discard()
        raise


@contextlib.contextmanager
def as_it_was(folder: Path) -> Iterator[None]:
    """A resumed run is the same run, or is refused: new noise on other data would be another charge."""
    from tacit.sgd.training.checkpoint import CheckpointError, ForkWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error", ForkWarning)
        try:
            yield
        except (CheckpointError, ForkWarning) as error:
            if not error.changed:
                raise
            if "the data" in error.changed:
                why = f"data: these are not the data that {folder} was started with. Give those again to continue it"
            elif "the key, which is gone" in error.changed:
                why = f"{folder} does not continue: its key was destroyed, or is on another machine. Bring it here"
            else:
                changed = ", ".join(error.changed)
                why = f"{folder} does not continue: {changed} changed. Resume it with the same settings"
            raise CheckpointError(f"{why}, or start a new run under another name", error.changed) from None


def resolved(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    """Those of the settings ``names`` that are files, as paths that hold wherever the run goes on."""
    found = {name: value for name in names if (value := given.get(name))}
    return {k: str(Path(v).resolve()) for k, v in found.items() if "://" not in v and Path(v).exists()}
