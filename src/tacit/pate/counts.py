"""What leaves the teachers? One histogram of labels per query, with the public facts about the vote.

The counts are private: aggregators add noise to them. So a table of counts prints without a number, and it goes to disk
only in a file that its owner alone can read.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.ledger import PrivateValueError

Counts = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class VoteCounts:
    """How many teachers gave each public query each label. :meth:`Teachers.vote` makes it.

    Everything but ``counts`` and ``learned`` is public.

    Args:
        counts: A table of whole numbers: ``counts[j, i]`` teachers gave query j the label i. Private.
        teachers: The number of teachers.
        partition: How people were dealt to teachers: ``"keyed"``, ``"positions"``, or ``"any"`` if the caller vouches
            that one neighbour changes one teacher (:mod:`tacit.accounting.votes`).
        unit: The name of the unit of privacy, such as ``"record"`` or ``"person"``.
        x: The public queries, one per row of ``counts``, kept for the student. None keeps none.
        complete: Whether there is a column for every public class. If not, the aggregator adds the missing ones.
        learned: The private rows that the teachers learned from, for their fingerprint where a ledger is charged; they
            are not written. None if they are not known.

    Raises:
        ValueError: If ``counts`` is not a table of whole numbers of 0 or more, if a row has more votes than there are
            teachers, or if ``x`` has another number of rows.

    Example:
        >>> VoteCounts(np.array([[3, 1], [0, 4]]), teachers=4)
        VoteCounts(2 queries, 2 classes, 4 teachers) [counts are private: not covered by the guarantee]
    """

    counts: Counts
    teachers: int
    partition: str = "any"
    unit: str = "record"
    x: Any = None
    complete: bool = True
    learned: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", as_counts(self.counts))
        if not isinstance(self.teachers, int | np.integer) or self.teachers < 1:
            raise ValueError(f"teachers must be a whole number of 1 or more, not {self.teachers!r}")
        if self.counts.size and int(self.counts.sum(axis=1).max()) > self.teachers:
            raise ValueError(f"a query has more votes than there are teachers ({self.teachers})")
        if self.x is not None and len(self.x) != len(self.counts):
            raise ValueError(f"counts has {len(self.counts)} rows and x has {len(self.x)}: give one row per query")

    @property
    def classes(self) -> int:
        """The number of labels. Fixed and public."""
        return int(self.counts.shape[1])

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, rows: slice) -> VoteCounts:
        if not isinstance(rows, slice):
            raise TypeError(
                "votes are cut by a slice, votes[:100]: which queries you take must not depend on the votes"
            )
        x = None if self.x is None else self.x[rows]
        return dataclasses.replace(self, counts=self.counts[rows], x=x)

    def __repr__(self) -> str:
        return (
            f"VoteCounts({len(self)} queries, {self.classes} classes, {self.teachers} teachers) "
            "[counts are private: not covered by the guarantee]"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the counts to a new ``.npz`` file that only its owner can read. The queries are not written.

        Args:
            path: The file. It must not exist yet.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            np.savez_compressed(
                file, counts=self.counts, teachers=self.teachers, partition=self.partition, unit=self.unit
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str], x: Any = None) -> VoteCounts:
        """Read what :meth:`save` wrote, or any ``.npz`` file with ``counts`` and ``teachers``.

        Args:
            path: The file.
            x: The public queries, one per row of the counts. None leaves them out.

        Returns:
            The votes.

        Raises:
            ValueError: If the file cannot be read as votes.
        """
        try:
            with np.load(path, allow_pickle=False) as found:
                names = {name: found[name] for name in found.files}
        except (OSError, ValueError) as error:
            raise ValueError(f"{os.fspath(path)} is not a file of votes (.npz): {error}") from None
        if "counts" not in names or "teachers" not in names:
            raise ValueError(f"{os.fspath(path)} has no arrays 'counts' (queries x classes) and 'teachers'")
        partition, unit = (str(names.get(key, usual)) for key, usual in (("partition", "any"), ("unit", "record")))
        return cls(names["counts"], int(names["teachers"]), partition, unit, x)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise PrivateValueError("votes are private and cannot be pickled: write them with votes.save(path)")


def as_counts(values: ArrayLike) -> Counts:
    """Votes as a table of whole numbers, or an error that says what is wrong.

    >>> as_counts([[1, 2], [3, 0]]).shape
    (2, 2)
    """
    table = np.asarray(values)
    if table.ndim != 2 or table.shape[1] < 1:
        raise ValueError(f"votes must be a table, one row per query and one column per class, not {table.shape}")
    if table.dtype.kind not in "iuf" or (table.dtype.kind == "f" and not np.array_equal(table, np.rint(table))):
        raise ValueError("votes must be whole numbers: how many teachers gave each label")
    if table.size and (table.min() < 0 or table.max() > 2**31):
        raise ValueError("votes must be numbers of teachers: 0 or more")
    return table.astype(np.int64)


def given(votes: VoteCounts | ArrayLike, classes: int, teachers: int | None = None, unit: str = "record") -> VoteCounts:
    """What a caller passed as votes, checked against the public number of classes."""
    if not isinstance(votes, VoteCounts):
        counts = as_counts(votes)
        largest = int(counts.sum(axis=1).max()) if counts.size else 1
        votes = VoteCounts(counts, max(largest, 1) if teachers is None else teachers, unit=unit)
    if not votes.complete and votes.classes < classes:
        missing = np.zeros((len(votes), classes - votes.classes), np.int64)
        votes = dataclasses.replace(votes, counts=np.concatenate([votes.counts, missing], axis=1), complete=True)
    if votes.classes != classes:
        raise ValueError(
            f"the votes have {votes.classes} columns and the aggregator has classes={classes}. The number of classes "
            "is fixed and public: every class needs a column, even if nobody voted for it"
        )
    return votes
