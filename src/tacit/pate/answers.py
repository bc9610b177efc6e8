"""What did the teachers answer, and what can a student learn from it?

The labels, and which queries have none, are outputs of the mechanism. Together with the public queries they may be used
for anything at no further cost.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tacit import accounting as acc
from tacit.ledger import Charge, OperatorView, Release, charged, public
from tacit.pate.accounts import NOT_PUBLISHABLE, Accounts
from tacit.pate.counts import VoteCounts

if TYPE_CHECKING:
    from tacit.pate.aggregators import Aggregator

#: How the noise on votes is drawn.
GENERATOR = "operating system's randomness, exact sampling"
#: The label of a query that has none.
NO_ANSWER = -1


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Answers:
    """The released labels and what they cost. :meth:`Aggregator.answer` makes it.

    :attr:`privacy` is the guarantee. ``accounts`` and ``votes`` are for the operator: they come from private votes.

    Args:
        labels: One label per query asked: a class number, or :data:`NO_ANSWER` (-1).
        answered: Whether the teachers answered each query. A label of an unanswered query came from the student.
        accounts: The price that holds for any votes, and the data-dependent ones.
        votes: The private counts that were asked for.
        aggregator: What turned the votes into answers.

    Example:
        >>> from tacit.pate import GNMax
        >>> answers = GNMax(vote_noise=40, classes=2).answer([[9000, 0]] * 3, queries=2)
        >>> answers.labels, len(answers)
        (array([0, 0]), 2)
    """

    labels: NDArray[np.int64]
    answered: NDArray[np.bool_]
    accounts: Accounts
    votes: VoteCounts
    aggregator: Aggregator

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def privacy(self) -> acc.Privacy:
        """The guarantee, which holds whatever the votes were. It includes a sanitised release, if there was one."""
        return self.accounts.guarantee.with_details(
            method=f"noisy votes of teachers, {type(self.aggregator).__name__}",
            queries=len(self),
            answered=int(self.answered.sum()),
            teachers=self.votes.teachers,
            noise=GENERATOR,
        )

    @property
    def charge(self) -> Charge | None:
        """The charge that paid for the answers; None without a ledger."""
        return self.accounts.charge

    def release(self) -> Release:
        """The numbers that may be published, each with its reason. A fixed text stands for the data-dependent ones."""
        price = "price of the mechanism, computed without the votes"
        interval, accounts = self.privacy.interval, self.accounts
        answered = int(self.answered.sum())
        values: dict[str, Any] = {
            "epsilon": public(interval.upper, price),
            "delta": public(interval.given, price),
            "neighbours": public(interval.terms, price),
            "queries": public(len(self), "fixed in advance, or a function of the answers"),
            "answered": _charged(answered, self.charge, "a count of the answers, which were released"),
            "theorem6": public(NOT_PUBLISHABLE, "a fixed text"),
            "exact": public(NOT_PUBLISHABLE, "a fixed text"),
        }
        if accounts.sanitised is not None:
            values["sanitised"] = _charged(
                dataclasses.asdict(accounts.sanitised), accounts.release_charge, "output of the sanitised release"
            )
        return Release(values)

    def labelled(self, x: Any = None) -> tuple[Any, NDArray[np.int64], Any]:
        """Split the public queries into those with a label and the rest.

        Args:
            x: The queries, in the order in which they were asked. None takes those that the votes came with.

        Returns:
            Three things: the queries that have a label, their labels, and the queries that have none.
        """
        queries = self._queries(x)
        has = np.flatnonzero(self.labels != NO_ANSWER)
        without = np.setdiff1d(np.arange(len(queries)), has)
        return _take(queries, has), self.labels[has], _take(queries, without)

    def _queries(self, x: Any) -> Any:
        queries = self.votes.x if x is None else x
        if queries is None:
            raise ValueError("these votes came without their queries: pass the queries as x=")
        if len(queries) < len(self.labels):
            raise ValueError(
                f"{len(self.labels)} queries were asked, but x has {len(queries)} rows: pass the same queries"
            )
        return queries

    def fit(self, student: Any, x: Any = None, **options: Any) -> Any:
        """Train a student on the answers and on the public queries without one.

        Guarantee:
            Post-processing of released answers and public queries: it costs nothing beyond :attr:`privacy`.

        Args:
            student: A torch module, a scikit-learn estimator, or a callable without arguments that makes one.
                ``method="committee"`` needs the callable.
            x: The queries. None takes those that the votes came with.
            options: ``method`` is ``"semi-supervised"`` (default), ``"supervised"`` or ``"committee"``; the rest goes
                to :func:`tacit.pate.student.fit_torch` or :func:`tacit.pate.student.fit_estimator`.

        Returns:
            The trained student.
        """
        from tacit.pate.student import fit as train

        labelled, labels, rest = self.labelled(x)
        return train(student, labelled, labels, rest, classes=self.aggregator.classes, **options)

    def diagnostics(self) -> OperatorView:
        """Show the operator how clear the votes were, and how many were answered at each margin.

        Computed from private votes: not for publication. The margin is the largest count minus the second largest,
        as a share of the teachers.
        """
        asked = self.votes.counts[: len(self)]
        ranked = -np.sort(-asked, axis=1)
        margin = (ranked[:, 0] - ranked[:, 1]) / self.votes.teachers
        edges = np.linspace(0.0, 1.0, 21)
        place = np.clip(np.digitize(margin, edges) - 1, 0, 19)
        every = np.bincount(place, minlength=20)
        given = np.bincount(place[self.answered], minlength=20)
        right = asked.argmax(axis=1)[self.answered] == self.labels[self.answered]
        return OperatorView(
            margin_edges=edges.tolist(),
            margin_counts=every.tolist(),
            margin_answered=given.tolist(),
            queries_asked=len(self),
            queries_answered=int(self.answered.sum()),
            answers_equal_to_plurality=float(right.mean()) if len(right) else 0.0,
        )

    def __repr__(self) -> str:
        return (
            f"Answers({len(self)} queries asked, {int(self.answered.sum())} answered by {self.votes.teachers} "
            f"teachers, {type(self.aggregator).__name__})\n{self.accounts!r}"
        )


def _charged(value: Any, charge: Charge | None, because: str) -> Any:
    if charge is not None:
        return charged(value, charge)
    return public(value, f"{because}; priced here, and charged to no ledger")


def _take(data: Any, rows: NDArray[np.intp]) -> Any:
    """Rows of an array, a tensor, a table or a list."""
    if isinstance(data, list | tuple):
        return [data[i] for i in rows]
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    if hasattr(data, "index_select"):  # a tensor, without importing torch here
        import torch

        return data[torch.as_tensor(rows, device=data.device)]
    return data[rows]
