"""How are noisy answers drawn once, however often the run is killed? The votes are kept first; the noise follows from
the secret of the run and meets these votes alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.cluster import seeded
from tacit.noise.entropy import expanded
from tacit.pate import VoteCounts
from tacit.report.files import flush_folder

if TYPE_CHECKING:
    from tacit.pate import Aggregator, Answers
    from tacit.runs.journal import Journal

#: How noise under the secret of a run is told on its card.
GENERATOR = "exact Gaussian noise from ChaCha12 under a secret of the run"
#: Private files of the votes, and of the public queries that they are about.
VOTES, QUERIES = "votes.npz", "queries.npy"


def kept(journal: Journal, count: Callable[[], VoteCounts]) -> VoteCounts:
    """The votes of a run: counted now, or as they were counted before it was killed, whatever became of the data."""
    path, queries = journal.private / VOTES, journal.private / QUERIES
    if not path.exists():
        votes = count()
        if votes.x is not None:
            np.save(queries, np.asarray(votes.x), allow_pickle=False)
            flush_folder(queries)
        draft = path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        votes.save(draft)
        flush_folder(draft)
        os.replace(draft, path)
        flush_folder(journal.private)
    return VoteCounts.load(path, np.load(queries, allow_pickle=False) if queries.exists() else None)


def answered(journal: Journal, aggregator: Aggregator, votes: VoteCounts, **asked: Any) -> Answers:
    """What :meth:`tacit.pate.Aggregator.answer` gives, the same for the same run, at one charge.

    Guarantee: that of the aggregator. ``votes`` are those that :func:`kept` fixed before any noise was drawn, so the
    noise of this run is never drawn for others; drawn again, it gives the answers that were, or would have been, seen.
    """
    with expanded(journal.secret("answers")):
        return aggregator.answer(votes, number=charge_number(journal, "answers"), **asked)


def sanitise(journal: Journal, answers: Answers) -> None:
    """Release the data-dependent ε with noise, in the same way."""
    with expanded(journal.secret("sanitised")):
        answers.accounts.sanitise(number=charge_number(journal, "sanitised"))


def charge_number(journal: Journal, what: str) -> str:
    """The number of the charge for ``what``, known before it is made."""
    return journal.secret(f"charge for the {what}")[:16].hex()


@contextlib.contextmanager
def student(journal: Journal) -> Iterator[None]:
    """A student that is trained here is trained alike whenever the run goes on."""
    with seeded(int.from_bytes(journal.secret("student")[:4], "big"), torch_too=True):
        yield
