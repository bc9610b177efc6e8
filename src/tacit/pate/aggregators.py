"""How do teachers' votes become an answer? The four aggregators of PATE, each with its noise and its price.

All of them add noise to counts of votes and release a label, or say that there is no answer. Neighbouring data sets
differ in one teacher, who votes otherwise: sensitivity 2 in L1, √2 in L2, and 1 for the largest count. How many
teachers one person stands for is the partition's matter (:mod:`tacit.accounting.votes`).

What is fixed before the votes are seen: the number of classes, every parameter, and which queries are asked in which
order. Which of them are answered, and where a filter stops, depends on released outcomes alone. All noise is drawn
exactly (:mod:`tacit.noise`), and everything is charged at its data-independent price before it is drawn.
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
    """What the aggregators share: planning, charging, answering, and the three accounts."""

    #: whether a check decides if there is an answer, so that the number of votes is not known in advance
    checks: ClassVar[bool] = False
    classes: int

    def __post_init__(self) -> None:
        if isinstance(self.classes, bool) or not isinstance(self.classes, int | np.integer) or self.classes < 2:
            raise ValueError(f"classes is a whole number, 2 or more, fixed and public; not {self.classes!r}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("noise", "scale")) and not (is_number(value) and 0 < value < math.inf):
                raise ValueError(f"{field.name} is a number above 0, not {value!r}")
            if field.name in ("threshold", "confidence") and not (is_number(value) and math.isfinite(value)):
                raise ValueError(f"{field.name} is a finite number, not {value!r}")

    # -- what each aggregator says ----

    def vote_mechanism(self, partition: str = "any", unit: str = "record") -> acc.Mechanism:
        """What one answer costs, whatever the votes are."""
        raise NotImplementedError

    def check_mechanism(self, partition: str = "any", unit: str = "record") -> acc.Mechanism | None:
        """What asking costs, whether there is an answer or not; None where every query is answered."""
        return None

    def _statistic(self, votes: VoteCounts, scores: Array | None) -> Array:
        """What the check compares with the threshold."""
        return np.asarray(votes.counts.max(axis=1).astype(float))

    def _passes(self, statistic: Array, source: Source | None) -> NDArray[np.bool_]:
        return np.ones(len(statistic), bool)

    def noisy_labels(self, counts: NDArray[np.int64], source: Source | None) -> NDArray[np.int64]:
        """The label of each row of counts: a release that costs :meth:`vote_mechanism` a row."""
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
        """The mechanism of ``queries`` queries of which at most ``answers`` are answered: what the ledger charges.

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
        source: Source | None = None,
    ) -> Answers:
        """Put the first queries of ``votes`` to the teachers and release the noisy answers.

        Guarantee: (ε, δ)-DP for one ``unit`` under the adjacency, ε the data-independent price
        (``result.privacy``), because what is run is the mechanism that was priced and charged:

        - ``queries=n``: n queries are asked, whatever comes out (at most ``answers`` of them answered, then no more are
          asked). ε is that of :meth:`plan`.
        - ``epsilon=``: a filter. Queries are asked while the *data-independent* cost of the next one, answered, still
          fits. A filter on the data-dependent cost would itself leak. (Gaussian noise of adaptively chosen number
          composes like a number fixed in advance: Smith & Thakurta, "Fully adaptive composition for Gaussian
          differential privacy", 2022.)

        ``votes`` is what :meth:`Teachers.vote` gave, or a plain table of counts; then ``teachers`` (default: the
        largest row sum) and ``unit`` say what is public about them. With ``ledger`` and ``dataset`` it is charged
        before a noise is drawn; ``number`` is that of the charge where the caller kept one beforehand, so as to draw
        again what a crash lost (:meth:`tacit.ledger.Ledger.charge`). ``scores`` are the student's, for
        :class:`InteractiveGNMax`. ``source`` replaces the operating system's entropy in tests.
        """
        table = given(votes, self.classes, teachers, unit)
        if (queries is None) == (epsilon is None):
            raise ValueError("give queries= (fixed in advance) or epsilon= and delta= (a filter), one of the two")
        if not 0 < delta < 1:
            raise ValueError(f"delta lies between 0 and 1, not {delta!r}")
        if (ledger is None) != (dataset is None):
            raise ValueError("give ledger= and dataset= together")
        limit = _whole("queries", queries, len(table)) if queries is not None else len(table)
        most = limit if answers is None else _whole("answers", answers, limit)
        if answers is not None and not self.checks:
            raise ValueError(
                "answers= limits how many queries pass the check; this aggregator answers all: give queries="
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
            charge = ledger.charge(dataset, mechanism, delta=charge_delta, purpose=purpose, number=number)
        asked = table[:limit]
        shown = None if public is None else public[:limit]
        labels, answered = self._draw(asked, shown, most, fits, source)
        result = self._result(table, labels, answered, shown, mechanism, delta, adjacency, charge)
        if charge is not None and not charge.confirmed:
            charge.confirm()
        return result

    def _public_scores(self, scores: ArrayLike | None, queries: int) -> Array | None:
        if scores is not None:
            raise ValueError(f"{type(self).__name__} takes no scores; InteractiveGNMax does")
        return None

    def _budget(
        self, table: VoteCounts, limit: int, most: int, epsilon: float | None, delta: float, adjacency: str
    ) -> tuple[acc.Mechanism, int, int, Callable[[int, int], bool] | None]:
        """What is charged; how many queries and answers it covers; and the filter, where one is needed."""
        partition, unit = table.partition, table.unit
        if epsilon is None:
            return self.plan(limit, most, partition=partition, unit=unit), limit, most, None
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ValueError(f"epsilon is a number above 0, not {epsilon!r}")
        if not self.checks:  # every query costs the same: the filter is a number of queries, known now
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
                raise acc.AdjacencyError(f"{part!r} states no guarantee under {adjacency!r}")
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
    """arg max(n_i + Lap(``scale``)), the aggregator of 2017: ε = 2/scale a query, pure.

    >>> LNMax(scale=20.0, classes=10).answer([[250] + [0] * 9], queries=1).labels
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
    """The class with the largest noisy count, N(0, σ²) with σ = ``vote_noise`` on each: Rényi divergence α/σ² a query.

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
    """GNMax where max n_i + N(0, ``check_noise``²) reaches ``threshold``, no answer elsewhere.

    The check costs α/(2σ1²) and is always paid. Its noise is added once, to the maximum.

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
    """GNMax where the teachers differ from the student: max(n_i - M·p_i) + N(0, σ1²) >= threshold, p the student's
    scores.

    Where the check fails and the student is sure (max p > ``confidence``), the student's own label is kept, at no
    further cost; otherwise there is no answer. The scores come from released answers and public data only.
    """

    confidence: float = 0.9

    def _public_scores(self, scores: ArrayLike | None, queries: int) -> Array | None:
        if scores is None:
            raise ValueError("InteractiveGNMax compares the teachers with a student: give scores=, its probabilities")
        p = np.asarray(scores, dtype=float)
        if p.shape != (queries, self.classes) or not np.isfinite(p).all() or p.min(initial=0) < 0:
            raise ValueError(
                f"scores are the student's probabilities, one row a query: shape {(queries, self.classes)}"
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
        raise ValueError("the sanitised release is there for GNMax and ConfidentGNMax")


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
        raise ValueError(f"{name} is a whole number, 0 or more, not {value!r}")
    if value > limit:
        raise ValueError(f"{name}={value}, but there are {limit} to choose from")
    return int(value)
