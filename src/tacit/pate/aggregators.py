"""How do teachers' votes become an answer? The four aggregators of PATE, each with its noise and its price.

Each aggregator adds noise to the counts of votes and releases a label or "no answer". Neighbouring data sets differ in
the vote of one teacher: sensitivity 2 in L1, √2 in L2, and 1 for the largest count. The partition says how many
teachers one person can change (:mod:`tacit.accounting.votes`).

The number of classes, every parameter, and the queries and their order are fixed before anyone sees the votes. Which
queries are answered, and where a filter stops, depends only on released outcomes. All noise is drawn exactly
(:mod:`tacit.noise`), and everything is charged at its data-independent price before any noise is drawn.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import accounting as acc
from tacit import noise
from tacit.accounting.base import is_number
from tacit.accounting.losses import GaussianLoss
from tacit.ledger import Charge, Ledger
from tacit.noise.entropy import Source
from tacit.pate import bounds, exact, smooth
from tacit.pate.accounts import Accounts
from tacit.pate.answers import NO_ANSWER, Answers
from tacit.pate.counts import VoteCounts, given

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aggregator:
    """What all aggregators share: planning, charging, answering, and the three accounts.

    Use one of the subclasses: :class:`LNMax`, :class:`GNMax`, :class:`ConfidentGNMax`, :class:`InteractiveGNMax`.

    Args:
        classes: The number of labels, 2 or more. Public, and fixed before the votes are seen.

    Raises:
        ValueError: If ``classes`` is not a whole number of at least 2, or if a noise, scale, threshold or confidence of
            the subclass is not a number in its range.

    Example:
        >>> GNMax(vote_noise=40.0, classes=10).plan(queries=3)
        Votes(40) * 3
    """

    #: Whether a check decides if a query is answered, so that the number of votes is not known in advance.
    checks: ClassVar[bool] = False
    classes: int

    def __post_init__(self) -> None:
        if isinstance(self.classes, bool) or not isinstance(self.classes, int | np.integer) or self.classes < 2:
            raise ValueError(f"classes must be a whole number of 2 or more, fixed and public, not {self.classes!r}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("noise", "scale")) and not (is_number(value) and 0 < value < math.inf):
                raise ValueError(f"{field.name} must be a number above 0, not {value!r}")
            if field.name in ("threshold", "confidence") and not (is_number(value) and math.isfinite(value)):
                raise ValueError(f"{field.name} must be a finite number, not {value!r}")

    # -- what each aggregator says ----

    def vote_mechanism(self, partition: str = "any", unit: str = "record") -> acc.Mechanism:
        """Describe one answer, whatever the votes are.

        Args:
            partition: How people were dealt to teachers: ``"keyed"``, ``"positions"``, or ``"any"`` if the caller
                vouches that one neighbour changes one teacher (:mod:`tacit.accounting.votes`).
            unit: The name of the unit of privacy, such as ``"record"`` or ``"person"``.

        Returns:
            The mechanism of one released label.
        """
        raise NotImplementedError

    def check_mechanism(self, partition: str = "any", unit: str = "record") -> acc.Mechanism | None:
        """Describe the check that decides whether a query is answered.

        Args:
            partition: As in :meth:`vote_mechanism`.
            unit: As in :meth:`vote_mechanism`.

        Returns:
            The mechanism that every query pays for, answered or not; None if the aggregator answers every query.
        """
        return None

    def _statistic(self, votes: VoteCounts, scores: Array | None) -> Array:
        """What the check compares with the threshold."""
        return np.asarray(votes.counts.max(axis=1).astype(float))

    def _passes(self, statistic: Array, source: Source | None) -> NDArray[np.bool_]:
        return np.ones(len(statistic), bool)

    def noisy_labels(self, counts: NDArray[np.int64], source: Source | None) -> NDArray[np.int64]:
        """Draw noise and release one label per row of counts. Charges nothing: use :meth:`answer` for that.

        Guarantee:
            Each row costs :meth:`vote_mechanism`, and the caller must have charged it.

        Args:
            counts: The private votes: one row per query, one column per class.
            source: Where random bits come from; None is the operating system's entropy. Another source is for tests.

        Returns:
            The label of each row, a class number from 0.
        """
        raise NotImplementedError

    def _fallback(self, scores: Array | None, count: int) -> NDArray[np.int64]:
        """Labels for queries without an answer, from public values."""
        return np.full(count, NO_ANSWER, np.int64)

    def _theorem6(self, votes: VoteCounts, statistic: Array, answered: NDArray[np.bool_], orders: Array) -> Array:
        raise NotImplementedError

    def _exact(self, votes: VoteCounts, scores: Array | None, orders: Array) -> Array | None:
        return None

    def _sensitivity(self, votes: VoteCounts, answered: NDArray[np.bool_], order: float) -> Array | None:
        return None

    # -- planning ----

    def plan(
        self, queries: int, answers: int | None = None, *, partition: str = "any", unit: str = "record"
    ) -> acc.Mechanism:
        """Describe what the ledger charges for a fixed number of queries.

        Args:
            queries: How many queries are asked.
            answers: At most how many of them are answered; None means all. Ignored if every query is answered anyway.
            partition: As in :meth:`vote_mechanism`.
            unit: As in :meth:`vote_mechanism`.

        Returns:
            The mechanism of all checks and answers together.

        Example:
            >>> ConfidentGNMax(threshold=200, check_noise=150, vote_noise=40, classes=10).plan(640, 300)
            VoteCheck(150) * 640 + Votes(40) * 300
        """
        vote, check = self.vote_mechanism(partition, unit), self.check_mechanism(partition, unit)
        if check is None:
            return vote * queries
        return check * queries + vote * (queries if answers is None else min(answers, queries))

    # -- answering ----

    def answer(
        self,
        votes: VoteCounts | ArrayLike,
        *,
        queries: int | None = None,
        answers: int | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        scores: ArrayLike | None = None,
        teachers: int | None = None,
        unit: str = "record",
        adjacency: str | None = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        charge_delta: float | None = None,
        purpose: str = "labels by teachers' noisy votes",
        number: str | None = None,
        data: Any = None,
        source: Source | None = None,
    ) -> Answers:
        """Ask the first queries of ``votes`` and release the noisy answers.

        Give either ``queries`` or ``epsilon``. With ``queries=n`` the number is fixed in advance. With ``epsilon`` a
        filter asks on while the *data-independent* price of the next query, answered, still fits; a filter on the
        data-dependent price would itself leak. (Gaussian mechanisms whose number is chosen adaptively compose like a
        fixed number of them: Smith & Thakurta, "Fully adaptive composition for Gaussian differential privacy", 2022.)

        Guarantee:
            (ε, δ)-DP for one ``unit`` under the adjacency, where ε is the data-independent price in
            ``result.privacy``. What runs is exactly the mechanism that was priced and charged.

        Args:
            votes: What :meth:`Teachers.vote` returned, or a plain table of counts (one row per query, one column per
                class). Private.
            queries: How many queries to ask. Its price is that of :meth:`plan`.
            answers: At most this many answers; then no more queries are asked. Only for aggregators with a check.
                None sets no limit.
            epsilon: The budget of the filter, instead of ``queries``.
            delta: The δ at which ε is stated, and the filter's δ.
            scores: The student's probabilities, one row per query; only for :class:`InteractiveGNMax`. Public.
            teachers: The number of teachers, if ``votes`` is a plain table. None takes the largest row sum.
            unit: The name of the unit of privacy, if ``votes`` is a plain table.
            adjacency: Which data sets are neighbours. None takes the ledger's, or ``"replace-one"`` for
                ``partition="positions"`` and ``"add-remove"`` otherwise.
            ledger: The ledger to charge before any noise is drawn; goes with ``dataset``. None charges nothing.
            dataset: The name of the data set in the ledger.
            charge_delta: The δ of the charge; None takes the ledger's default.
            purpose: The text of the charge.
            number: The number of a charge that was kept before a crash, so that the same answers are not charged twice
                (:meth:`tacit.ledger.Ledger.charge`). None makes a new charge.
            data: The data that the teachers learned from (a path, a table), or their fingerprint. None takes the rows
                that :class:`Teachers` were given; votes from elsewhere say nothing about the data.
            source: Where random bits come from; None is the operating system's entropy. Another source is for tests.

        Returns:
            The labels, which queries were answered, and what that cost.

        Raises:
            ValueError: If both or neither of ``queries`` and ``epsilon`` are given, if only one of ``ledger`` and
                ``dataset`` is, or if a value is out of range.
            FingerprintMismatch: If a fingerprint is registered in the ledger, and these are other data.
        """
        table = given(votes, self.classes, teachers, unit)
        if (queries is None) == (epsilon is None):
            raise ValueError("give queries= (a number fixed in advance) or epsilon= (a filter): one of the two")
        if not 0 < delta < 1:
            raise ValueError(f"delta must lie between 0 and 1, not {delta!r}")
        if (ledger is None) != (dataset is None):
            raise ValueError("give ledger= and dataset= together")
        limit = _whole("queries", queries, len(table)) if queries is not None else len(table)
        most = limit if answers is None else _whole("answers", answers, limit)
        if answers is not None and not self.checks:
            raise ValueError(
                f"answers= limits how many queries pass the check, and {type(self).__name__} has no check: use queries="
            )
        public = self._public_scores(scores, len(table))
        if adjacency is None:
            if ledger is not None and dataset is not None:
                adjacency = ledger.dataset(dataset).adjacency
            else:
                adjacency = "replace-one" if table.partition == "positions" else "add-remove"
        mechanism, limit, most, fits = self._budget(table, limit, most, epsilon, delta, adjacency)
        charge = None
        if ledger is not None and dataset is not None:
            read = ledger.recognise(dataset, table.learned if data is None else data)
            charge = ledger.charge(dataset, mechanism, delta=charge_delta, purpose=purpose, number=number, data=read)
        asked = table[:limit]
        shown = None if public is None else public[:limit]
        labels, answered = self._draw(asked, shown, most, fits, source)
        result = self._result(table, labels, answered, shown, mechanism, delta, adjacency, charge)
        if charge is not None and not charge.confirmed:
            charge.confirm()
        return result

    def _public_scores(self, scores: ArrayLike | None, queries: int) -> Array | None:
        if scores is not None:
            raise ValueError(f"{type(self).__name__} takes no scores=; only InteractiveGNMax does")
        return None

    def _budget(
        self, table: VoteCounts, limit: int, most: int, epsilon: float | None, delta: float, adjacency: str
    ) -> tuple[acc.Mechanism, int, int, Callable[[int, int], bool] | None]:
        """What is charged; how many queries and answers it covers; and the filter, where one is needed."""
        partition, unit = table.partition, table.unit
        if epsilon is None:
            return self.plan(limit, most, partition=partition, unit=unit), limit, most, None
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ValueError(f"epsilon must be a number above 0, not {epsilon!r}")
        if not self.checks:  # every query costs the same, so the filter is a number of queries, known now
            affordable = _largest(
                limit,
                lambda n: (
                    acc.epsilon(self.plan(n, partition=partition, unit=unit), delta, adjacency=adjacency).upper
                    <= epsilon
                ),
            )
            return self.plan(affordable, partition=partition, unit=unit), affordable, affordable, None
        square = []
        for part in (self.check_mechanism(partition, unit), self.vote_mechanism(partition, unit)):
            assert part is not None
            loss = part.pair(adjacency, "add") if adjacency in part.adjacencies() else None
            if not isinstance(loss, GaussianLoss):
                raise acc.AdjacencyError(f"{part!r} has no guarantee under {adjacency!r}")
            square.append(loss.mu**2)
        total = _gdp_budget(epsilon, delta)

        def fits(queries: int, answers: int) -> bool:
            return queries * square[0] + answers * square[1] <= total**2

        return acc.GDP(total, unit=unit, adjacency=adjacency), limit, most, fits

    def _draw(
        self,
        asked: VoteCounts,
        scores: Array | None,
        most: int,
        fits: Callable[[int, int], bool] | None,
        source: Source | None,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Labels of the queries that were asked, and which of them the teachers answered."""
        passed = self._passes(self._statistic(asked, scores), source)
        count, done = 0, 0
        if fits is None and most >= len(passed):
            done = len(passed)
        else:
            # Both rules look at what was released: how many were asked and answered.
            while done < len(passed) and count < most and (fits is None or fits(done + 1, count + 1)):
                count += int(passed[done])
                done += 1
        passed = passed[:done]
        labels = self._fallback(None if scores is None else scores[:done], done)
        labels[passed] = self.noisy_labels(asked.counts[:done][passed], source)
        return labels, passed

    def _result(
        self,
        table: VoteCounts,
        labels: NDArray[np.int64],
        answered: NDArray[np.bool_],
        scores: Array | None,
        mechanism: acc.Mechanism,
        delta: float,
        adjacency: str,
        charge: Charge | None,
    ) -> Answers:
        asked = table[: len(labels)]
        shown = None if scores is None else scores[: len(labels)]
        statistic = self._statistic(asked, shown)
        vote = self.vote_mechanism(table.partition)
        one = not (table.partition == "keyed" and adjacency == "replace-one")

        def plainly(orders: Array) -> Array:
            ran = self.plan(len(labels), int(answered.sum()), partition=table.partition)
            return acc.renyi(ran, orders, adjacency=adjacency)

        def theorem6(orders: Array) -> Array:
            if not one:  # the theorem is about one changed teacher
                return plainly(orders)
            return self._theorem6(asked, statistic, answered, orders)

        def output_law(orders: Array) -> Array:
            found = self._exact(asked, shown, orders) if one else None
            return np.stack([plainly(orders)] * 2) if found is None else found

        def sensitivity(order: float) -> Array:
            found = self._sensitivity(asked, answered, order)
            assert found is not None
            return found

        gaussian = isinstance(vote, acc.Votes)
        accounts = Accounts(
            mechanism,
            delta=delta,
            adjacency=adjacency,
            asked=len(labels),
            theorem6=theorem6,
            exact=output_law if gaussian else None,
            sensitivity=sensitivity if gaussian and one else None,
            partition=table.partition,
            charge=charge,
        )
        return Answers(labels, answered, accounts, table, self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LNMax(Aggregator):
    """Release the class with the largest count after Laplace noise (Papernot et al. 2017).

    Guarantee:
        Pure ε-DP with ε = 2/``scale`` per query, for one teacher's vote.

    Args:
        classes: The number of labels, 2 or more. Public, and fixed before the votes are seen.
        scale: The scale λ of the Laplace noise on each count, in votes.

    Example:
        >>> LNMax(scale=20.0, classes=10).answer([[2500] + [0] * 9], queries=1).labels
        array([0])
    """

    scale: float

    def vote_mechanism(self, partition: str = "any", unit: str = "record") -> acc.Mechanism:
        return acc.LaplaceVotes(self.scale, partition=partition, unit=unit)

    def noisy_labels(self, counts: NDArray[np.int64], source: Source | None) -> NDArray[np.int64]:
        return np.asarray(
            np.asarray(noise.add_laplace(counts, self.scale, source=source)).argmax(axis=1).astype(np.int64)
        )

    def _theorem6(self, votes: VoteCounts, statistic: Array, answered: NDArray[np.bool_], orders: Array) -> Array:
        return np.asarray(bounds.laplace_bound(votes.counts, self.scale, orders).sum(axis=0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GNMax(Aggregator):
    """Release the class with the largest count after Gaussian noise. Every query is answered.

    Guarantee:
        Rényi divergence α/σ² per query for one teacher's vote, with σ = ``vote_noise`` (L2 sensitivity √2).

    Args:
        classes: The number of labels, 2 or more. Public, and fixed before the votes are seen.
        vote_noise: The standard deviation σ of the noise on each count, in votes.

    Example:
        >>> GNMax(vote_noise=40.0, classes=2).answer([[1000, 0], [0, 1000]], queries=2).labels
        array([0, 1])
    """

    vote_noise: float

    def vote_mechanism(self, partition: str = "any", unit: str = "record") -> acc.Mechanism:
        return acc.Votes(self.vote_noise, partition=partition, unit=unit)

    def noisy_labels(self, counts: NDArray[np.int64], source: Source | None) -> NDArray[np.int64]:
        return np.asarray(
            np.asarray(noise.add_gaussian(counts, self.vote_noise, source=source)).argmax(axis=1).astype(np.int64)
        )

    def _theorem6(self, votes: VoteCounts, statistic: Array, answered: NDArray[np.bool_], orders: Array) -> Array:
        logs = bounds.log_q(votes.counts[answered], self.vote_noise)
        return np.asarray(bounds.theorem6(logs, self.vote_noise, orders).sum(axis=0))

    def _check(self, scores: Array | None, teachers: int) -> exact.ThresholdCheck | None:
        return None

    def _exact(self, votes: VoteCounts, scores: Array | None, orders: Array) -> Array | None:
        abstain = bool((votes.counts.sum(axis=1) < votes.teachers).any())
        check = self._check(scores, votes.teachers)
        return np.asarray(
            exact.divergences(votes.counts, self.vote_noise, orders, check=check, abstain=abstain).sum(axis=1)
        )

    def _sensitivity(self, votes: VoteCounts, answered: NDArray[np.bool_], order: float) -> Array | None:
        part = smooth.VoteSensitivity(self.vote_noise, self.classes, order, votes.teachers)
        return part.at_distance(votes.counts[answered])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfidentGNMax(GNMax):
    """Answer by :class:`GNMax` if enough teachers agree, and give no answer otherwise.

    A query passes the check if the largest count, plus noise, reaches the threshold. The noise is added once, to the
    maximum.

    Guarantee:
        Rényi divergence α/(2σ1²) for every query asked, plus α/σ2² for every query answered, for one teacher's vote,
        with σ1 = ``check_noise`` and σ2 = ``vote_noise``.

    Args:
        classes: The number of labels, 2 or more. Public, and fixed before the votes are seen.
        vote_noise: The standard deviation of the noise on each count of an answered query, in votes.
        threshold: The largest count must reach this many votes, after noise. Chosen without looking at the votes.
        check_noise: The standard deviation of the noise on the largest count, in votes.

    Example:
        >>> votes = [[250, 0], [130, 120]]
        >>> answers = ConfidentGNMax(threshold=200, check_noise=3, vote_noise=10, classes=2).answer(votes, queries=2)
        >>> answers.labels
        array([ 0, -1])
    """

    checks: ClassVar[bool] = True
    threshold: float
    check_noise: float

    def check_mechanism(self, partition: str = "any", unit: str = "record") -> acc.Mechanism | None:
        return acc.VoteCheck(self.check_noise, partition=partition, unit=unit)

    def _passes(self, statistic: Array, source: Source | None) -> NDArray[np.bool_]:
        return np.asarray(noise.add_gaussian(statistic, self.check_noise, source=source)) >= self.threshold

    def _theorem6(self, votes: VoteCounts, statistic: Array, answered: NDArray[np.bool_], orders: Array) -> Array:
        asked = bounds.check_bound(statistic, self.threshold, self.check_noise, orders).sum(axis=0)
        return np.asarray(asked + super()._theorem6(votes, statistic, answered, orders))

    def _check(self, scores: Array | None, teachers: int) -> exact.ThresholdCheck | None:
        return exact.ThresholdCheck(self.threshold, self.check_noise)

    def _sensitivity(self, votes: VoteCounts, answered: NDArray[np.bool_], order: float) -> Array | None:
        local = super()._sensitivity(votes, answered, order)
        assert local is not None

        def price(largest: Array) -> Array:
            return bounds.check_bound(largest, self.threshold, self.check_noise, [order])[:, 0]

        return local + smooth.check_at_distance(price, votes.counts.max(axis=1), votes.teachers, len(local))


@dataclasses.dataclass(frozen=True, kw_only=True)
class InteractiveGNMax(ConfidentGNMax):
    """Ask the teachers only where they disagree with a student.

    With M teachers, counts n and the student's probabilities p, a query passes the check if max(n_i - M·p_i), plus
    noise, reaches the threshold. If it fails and the student is sure, the student's own label is kept at no further
    cost; otherwise there is no answer. The student must be trained on released answers and public data only.

    Guarantee:
        The price of :class:`ConfidentGNMax`: the student's scores are public, so the check's sensitivity stays 1.

    Args:
        classes: The number of labels, 2 or more. Public, and fixed before the votes are seen.
        vote_noise: The standard deviation of the noise on each count of an answered query, in votes.
        threshold: How many votes the teachers' counts must exceed the student's by, after noise.
        check_noise: The standard deviation of the noise on that difference, in votes.
        confidence: The student's label is kept if its largest probability is above this.

    Example:
        >>> ask = InteractiveGNMax(threshold=100, check_noise=3, vote_noise=10, classes=2)
        >>> votes, student = [[250, 0], [0, 250]], [[0.98, 0.02], [0.9, 0.1]]
        >>> ask.answer(votes, queries=2, scores=student).labels  # the teachers correct the second
        array([0, 1])
    """

    confidence: float = 0.9

    def _public_scores(self, scores: ArrayLike | None, queries: int) -> Array | None:
        if scores is None:
            raise ValueError(
                "InteractiveGNMax compares the teachers with a student: give scores=, the student's probabilities"
            )
        p = np.asarray(scores, dtype=float)
        if p.shape != (queries, self.classes) or not np.isfinite(p).all() or p.min(initial=0) < 0:
            raise ValueError(
                f"scores must be the student's probabilities, one row per query: shape {(queries, self.classes)}"
            )
        return p

    def _statistic(self, votes: VoteCounts, scores: Array | None) -> Array:
        assert scores is not None
        return np.asarray((votes.counts - votes.teachers * scores).max(axis=1))

    def _fallback(self, scores: Array | None, count: int) -> NDArray[np.int64]:
        assert scores is not None
        sure = scores.max(axis=1, initial=0.0) > self.confidence
        return np.where(sure, scores.argmax(axis=1), NO_ANSWER).astype(np.int64)

    def _check(self, scores: Array | None, teachers: int) -> exact.ThresholdCheck | None:
        assert scores is not None
        return exact.ThresholdCheck(self.threshold, self.check_noise, teachers * scores)

    def _sensitivity(self, votes: VoteCounts, answered: NDArray[np.bool_], order: float) -> Array | None:
        raise ValueError(
            "InteractiveGNMax has no sanitised release; GNMax and ConfidentGNMax do. "
            "See: tacit explain data-dependent-epsilon"
        )


def _gdp_budget(epsilon: float, delta: float) -> float:
    """The largest μ that is (ε, δ)-DP, rounded down."""
    low, high = 0.0, 1.0
    while acc.epsilon(acc.GDP(high), delta).upper <= epsilon:
        low, high = high, 2 * high
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if acc.epsilon(acc.GDP(middle), delta).upper <= epsilon else (low, middle)
    return low


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to ``limit`` that fits; more never costs less."""
    if fits(limit):
        return limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _whole(name: str, value: Any, limit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{name} must be a whole number of 0 or more, not {value!r}")
    if value > limit:
        raise ValueError(f"{name}={value}, but there are only {limit}")
    return int(value)
