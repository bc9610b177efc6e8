"""How do I choose hyper-parameters without leaking? :class:`PrivateSearch`: one total budget, one charge, one model.

    search = PrivateSearch({"learning_rate": [0.1, 1.0]}, train, score, epsilon=3.0, delta=1e-6)
    found = search.run()
    found.best, found.model, found.privacy

The total price is fixed first, and the noise of a run follows from it. What is priced is a run together with its score.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import numbers
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tacit import accounting as acc
from tacit import noise as exact
from tacit.cluster import Ray, backend_of
from tacit.ledger import Charge, Ledger, Release, charged, public
from tacit.noise.entropy import SYSTEM, expanded, random_bits
from tacit.tuning import exponential, runs
from tacit.tuning.errors import SearchFailed, TuningError
from tacit.tuning.runs import RunOutcome
from tacit.tuning.scores import Score
from tacit.tuning.scratch import Scratch
from tacit.tuning.space import Candidate, Space

#: How the number of runs is drawn, or how one of all candidates is chosen.
METHODS = (
    "geometric",
    "logarithmic",
    "negative-binomial",
    "poisson",
    "threshold",
    "exponential",
    "permute-and-flip",
    "generalised-exponential",
)
#: The part of ε that the choice of the exponential methods gets by default.
CHOICE_SHARE = 0.1
SELECTED = "selected by a mechanism whose guarantee is stated beside it"


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """What a search releases. :meth:`PrivateSearch.run` makes it.

    Guarantee:
        ``privacy`` covers everything in here together.

    Args:
        best: The selected candidate; None if nothing was selected, which the methods ``"poisson"`` and ``"threshold"``
            allow.
        model: The selected model; None if nothing was selected.
        score: Its noisy score; None for the exponential methods, which release none.
        privacy: The guarantee of the whole search.
        noise: The noise multiplier of the selected run.
        charge: The charge that paid for the search; None without a ledger.

    Example:
        See ``examples/private_search.py``, and :class:`PrivateSearch`.
    """

    best: Candidate | None
    model: Any
    score: float | None
    privacy: acc.Privacy
    noise: float | None
    charge: Charge | None = None

    @property
    def nothing(self) -> bool:
        """Whether nothing was selected."""
        return self.best is None

    def release(self) -> Release:
        """Hyper-parameters, score and price as values that may leave."""

        def marked(value: Any) -> Any:
            return charged(value, self.charge) if self.charge is not None else public(value, SELECTED)

        return Release(
            {
                "best": marked(self.best),
                "score": marked(self.score),
                "epsilon": public(self.privacy.upper, "price of the mechanism, computed without the data"),
                "delta": public(self.privacy.delta, "chosen before the data were seen"),
            }
        )

    def for_card(self) -> dict[str, Any]:
        """The fields of a :class:`tacit.report.Run` that say what was released and what it cost, tuning included."""
        privacy = self.privacy
        return {
            "mechanism": privacy.mechanism,
            "delta": privacy.delta,
            "adjacency": privacy.adjacency,
            "epsilon": privacy.interval,
            "method": privacy.details["method"],
            "covered": (
                "the selected model and everything computed from it",
                "its hyper-parameters" + ("" if self.score is None else " and its noisy score"),
            ),
            "tuning": "charged",
            "tuning_note": "The price is that of the whole search: every run's training and score, and the choice.",
        }


class PrivateSearch:
    """Try candidates on private data and release the best, within one total budget.

    Guarantee:
        What :meth:`run` returns is (``epsilon``, ``delta``)-DP under ``adjacency``, for the unit of the mechanisms, if
        ``train`` and ``score`` are what they state. If the number of records was counted, it is treated as public and
        :attr:`privacy` states zero-out instead of add/remove. The number of runs, and everything about runs that were
        not selected, stays inside.

    The methods:

    - ``"geometric"``, ``"logarithmic"``, ``"negative-binomial"`` and ``"poisson"`` draw a random number of runs and
      release the best.
    - ``"threshold"`` releases the first run whose score reaches ``threshold``.
    - ``"exponential"``, ``"permute-and-flip"`` and ``"generalised-exponential"`` train every candidate of a grid, pay
      for all of them, and choose one.

    Args:
        space: The candidates, fixed before anyone sees the data: anything that :class:`Space` takes.
        train: ``train(candidate, noise)`` returns a :class:`tacit.sgd.Training` with ``noise_multiplier=noise`` that
            has not begun; the search runs it. If ``mechanism`` (or ``train.mechanism``) describes it, it may return any
            trained model.
        score: A :class:`Score` on private validation records.
        method: One of the methods above.
        epsilon: The *total* budget: training, scores and choice. :attr:`noise` follows from it.
        delta: The δ of the total budget.
        runs: The mean number of runs (for ``"threshold"``, at most so many on average). None takes the size of a grid
            (at least 2), or 10.
        eta: The η of ``"negative-binomial"``: 1 is geometric, 0 logarithmic.
        threshold: The noisy score that is good enough; only for ``"threshold"``.
        choice_epsilon: The part of ``epsilon`` that the exponential methods spend on the choice. None means 10%.
        sensitivities: By how much one unit moves the score of each candidate; only for ``"generalised-exponential"``.
        mechanism: ``mechanism(candidate, noise)`` describes a run. None reads it from the Training.
        adjacency: Which data sets are neighbours: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
        counted: Whether the number of records was counted. A Training without ``size=`` sets it by itself.
        ledger: The ledger to charge once, before the first run; goes with ``dataset``. None charges nothing.
        dataset: The name of the data set in the ledger.
        purpose: The text of the charge.
        source: The data as they are registered in the ledger (a path, a table or a fingerprint): the charge and the
            card state its fingerprint. None says nothing about the data.
        workers: How many runs go on at once on this machine.
        executor: ``"thread"`` or ``"process"``, for ``workers`` above 1.
        scratch: A private folder that lets an interrupted search go on: unfinished runs are done again *as they were*,
            from a secret in the folder. It is deleted at the end. None keeps nothing.
        progress: Whether to show elapsed time. None shows it on a terminal.
        backend: ``"local"``, ``"ray"`` or a :class:`tacit.cluster.Ray`. A run that is lost with its machine is done
            again as it was; one that is lost for good counts as failed. Use ``Ray(retries=0)`` if ``train`` draws
            randomness from anything but tacit, torch, numpy and ``random``.

    Raises:
        TuningError: If the settings do not fit together, or if no noise keeps the search within the budget.

    Example:
        >>> from tacit.tuning import Score
        >>> search = PrivateSearch(
        ...     {"which": ["a", "b"]},
        ...     train=lambda candidate, noise: candidate["which"],
        ...     score=Score({"a": 10.0, "b": 400.0}.get),
        ...     mechanism=lambda candidate, noise: acc.Gaussian(noise),
        ...     epsilon=1.0,
        ...     delta=1e-6,
        ... )
        >>> found = search.run()
        >>> found.best in ({"which": "a"}, {"which": "b"}), 0.999 < found.privacy.upper <= 1.0
        (True, True)
    """

    def __init__(
        self,
        space: Any,
        train: Callable[..., Any],
        score: Score,
        *,
        method: str = "geometric",
        epsilon: float,
        delta: float,
        runs: float | None = None,
        eta: float = 1.0,
        threshold: float | None = None,
        choice_epsilon: float | None = None,
        sensitivities: Sequence[float] | None = None,
        mechanism: Callable[[Candidate, float], acc.Mechanism] | None = None,
        adjacency: str = "add-remove",
        counted: bool = False,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        purpose: str = "private tuning",
        source: Any = None,
        workers: int = 1,
        executor: str = "thread",
        scratch: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        backend: str | Ray = "local",
    ) -> None:
        self.space, self.train, self.score = Space(space), train, score
        self.method, self.epsilon, self.delta, self.eta = method, float(epsilon), float(delta), float(eta)
        self.threshold, self.adjacency, self.counted = threshold, adjacency, counted
        self.ledger, self.dataset, self.purpose, self.source = ledger, dataset, purpose, source
        self.workers, self.executor, self.progress = workers, executor, progress
        self.cluster = backend_of(backend)
        self._where, self._describe = scratch, mechanism or getattr(train, "mechanism", None)
        self._sensitivities = None if sensitivities is None else [float(s) for s in sensitivities]
        self._check(choice_epsilon)
        self._check_workers()
        self.choice_epsilon = choice_epsilon if choice_epsilon is not None else CHOICE_SHARE * self.epsilon
        known = self.space.candidates
        self.runs = float(runs) if runs is not None else float(max(2, len(known)) if known is not None else 10)
        if not 0 < self.runs < math.inf:
            raise TuningError(f"runs, the mean number of runs, must be a number above 0, not {runs!r}")
        #: candidates of equal price are one kind: an example of each, and the kind of every candidate of a grid
        self._examples, self._kinds = self._sort_out()
        self._settle(self.calibrated_noise())

    def _settle(self, noises: list[float]) -> None:
        """Fix the noise of every kind of candidate, and with it the mechanism and its price."""
        self.noises = noises
        self._trained = [self.describe(c, noise) for c, noise in zip(self._examples, noises, strict=True)]
        self.mechanism = self._total(noises)
        self._bound = self.price(self.mechanism)

    def _check(self, choice_epsilon: float | None) -> None:
        if self.method not in METHODS:
            raise TuningError(f"method must be one of {', '.join(METHODS)}, not {self.method!r}")
        if not isinstance(self.score, Score):
            raise TuningError(
                "score must be a tacit.tuning.Score, such as correct_count(...) or bounded_loss(...): a plain function "
                "of private data has no stated sensitivity and no noise. See: tacit explain score-without-sensitivity"
            )
        if not 0 < self.epsilon < math.inf or not 0 < self.delta < 1:
            raise TuningError(f"the total budget needs ε > 0 and 0 < δ < 1, not ε={self.epsilon}, δ={self.delta}")
        if (self.method == "threshold") != (self.threshold is not None):
            raise TuningError(
                "threshold=, the score that is good enough, belongs to method='threshold', which needs it"
            )
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise TuningError(
                f"threshold, the score that is good enough, must be a finite number, not {self.threshold!r}"
            )
        if self._all and self.space.candidates is None:
            raise TuningError(f"method={self.method!r} trains every candidate: give a finite grid")
        if (self._sensitivities is not None) != (self.method == "generalised-exponential"):
            raise TuningError("sensitivities= belongs to method='generalised-exponential', one for each candidate")
        if self._sensitivities is not None and len(self._sensitivities) != len(self.space):
            raise TuningError(
                f"{len(self._sensitivities)} sensitivities for {len(self.space)} candidates: give one each"
            )
        if choice_epsilon is not None and not 0 < choice_epsilon < self.epsilon:
            raise TuningError(f"choice_epsilon must be a part of ε = {self.epsilon:g}, not {choice_epsilon!r}")
        if (self.ledger is None) != (self.dataset is None):
            raise TuningError("give ledger= and dataset= together")

    def _check_workers(self) -> None:
        if isinstance(self.workers, bool) or not isinstance(self.workers, numbers.Integral) or self.workers < 1:
            raise TuningError(f"workers must be a whole number of 1 or more, not {self.workers!r}")
        if self.cluster is not None and self.workers != 1:
            raise TuningError("workers= is for backend='local'; on a cluster use backend=tacit.cluster.Ray(at_once=…)")
        if self.executor not in ("thread", "process"):
            raise TuningError(f"executor must be 'thread' or 'process', not {self.executor!r}")

    # -- what it costs -------------------------------------------------------------------------------------------------

    @property
    def _all(self) -> bool:
        """Whether every candidate is trained."""
        return self.method in ("exponential", "permute-and-flip", "generalised-exponential")

    def describe(self, candidate: Candidate, noise: float) -> acc.Mechanism:
        """Describe the training of one candidate. Nothing is trained.

        Args:
            candidate: The candidate.
            noise: The noise multiplier.

        Returns:
            The mechanism of the run, without its score.

        Raises:
            TuningError: If the run does not state its mechanism.
        """
        if self._describe is not None:
            found = self._describe(dict(candidate), noise)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of noise that is only tried
                made = self.train(dict(candidate), noise)
            if not runs.is_training(made):
                raise TuningError(
                    "train(candidate, noise) must return a tacit.sgd.Training that has not run, so that its price is "
                    "known before it runs; otherwise give mechanism=, a function of (candidate, noise)"
                )
            found, self.counted = made.plan.mechanism, self.counted or made.plan.counted
        if not isinstance(found, acc.Mechanism):
            raise TuningError(f"a run must be described by a mechanism of tacit.accounting, not {found!r}")
        return found

    def _sort_out(self) -> tuple[list[Candidate], list[int]]:
        """One example for every kind of price among the candidates."""
        known = self.space.candidates
        sample = known if known is not None else [self.space.draw() for _ in range(3)]
        kinds: dict[acc.Mechanism, int] = {}
        examples: list[Candidate] = []
        places: list[int] = []
        for candidate in sample:
            found = self.describe(candidate, 1.0)
            if found not in kinds:
                kinds[found] = len(examples)
                examples.append(candidate)
            places.append(kinds[found])
        if known is None and len(examples) > 1:
            raise TuningError(
                "the price of a run depends on a parameter with a continuous range (a batch size, a number of steps?): "
                "give that parameter a list of values"
            )
        return examples, places

    def calibrated_noise(self) -> list[float]:
        """Find the noise at which the whole search fits the budget. :attr:`noises` holds the result.

        Candidates of different price get the same ε for one run.

        Returns:
            One noise multiplier for each kind of candidate.

        Raises:
            TuningError: If no noise keeps the search within the budget (an ``acc.AccountingError`` inside).
        """
        if not self._all:
            alone = acc.Selected.of(self.score.mechanism, self.runs, distribution=self.method, eta=self.eta)
            if (price := self.price(alone).upper) >= self.epsilon:
                raise TuningError(
                    f"no noise of the training keeps the search within ε = {self.epsilon:g}: the scores alone cost "
                    f"{price:.4g}. Give the score more noise, or take fewer runs or a larger budget. "
                    "See: tacit explain search-over-budget"
                )
        try:
            if len(self._examples) == 1:
                found = acc.calibrate(
                    lambda noise: self._total([noise]),
                    epsilon=self.epsilon,
                    delta=self.delta,
                    adjacency=self.adjacency,
                )
                return [found]
            share = self.delta / self.runs

            def each(epsilon: float) -> list[float]:
                def one(candidate: Candidate) -> float:
                    return acc.calibrate(
                        lambda noise: self.describe(candidate, noise),
                        epsilon=epsilon,
                        delta=share,
                        adjacency=self.adjacency,
                    )

                return [one(candidate) for candidate in self._examples]

            # One run costs less than the whole; every value tried is valid, the best one kept.
            low, high, best = 0.0, self.epsilon, None
            guess = self.epsilon / (2.0 if not self._all else math.sqrt(len(self.space)))
            for _ in range(14):
                noises = each(guess)
                price = self.price(self._total(noises)).upper
                if price <= self.epsilon:
                    low, best = guess, noises
                    if price > self.epsilon * (1 - 5e-4):
                        break
                else:
                    high = guess
                step = guess * self.epsilon / price * (1 - 1e-4)
                guess = step if low < step < high else 0.5 * (low + high)
            if best is None:
                raise acc.AccountingError("no ε of a single run fits")
            return best
        except acc.AccountingError as error:
            raise TuningError(
                f"no noise of the training keeps the search within ε = {self.epsilon:g} at δ = {self.delta:g}: "
                f"{error}. Give the score more noise, or take fewer runs or a larger budget. "
                "See: tacit explain search-over-budget"
            ) from None

    def _total(self, noises: Sequence[float]) -> acc.Mechanism:
        """What the whole search costs when kind i trains with noises[i]."""
        trained = [self.describe(c, noise) for c, noise in zip(self._examples, noises, strict=True)]
        unit = trained[0].unit
        if self._all:
            total: acc.Mechanism = acc.nothing(unit)
            for place, mechanism in enumerate(trained):
                total = total + mechanism * self._kinds.count(place)
            return total + self._choice(unit)
        base = acc.one_of([trained[place] + self.score.mechanism for place in self._kinds])
        return acc.Selected.of(base, self.runs, distribution=self.method, eta=self.eta)

    def _choice(self, unit: str) -> acc.Mechanism:
        # The pure guarantee composes exactly; the bounded range only by Rényi divergence, which costs the rest more.
        return acc.PureDP(self.choice_epsilon, unit=unit)

    def price(self, mechanism: acc.Mechanism) -> acc.Bound:
        """Price a mechanism at the δ and the adjacency of this search.

        Args:
            mechanism: What to price.

        Returns:
            The interval of its ε.
        """
        return acc.epsilon(mechanism, self.delta, adjacency=self.adjacency)

    @property
    def noise(self) -> float | None:
        """The noise multiplier of a run; None if it differs between candidates (see :meth:`noise_of`)."""
        return self.noises[0] if len(self.noises) == 1 else None

    def noise_of(self, candidate: Candidate) -> float:
        """Look up the noise of one candidate.

        Args:
            candidate: A candidate of the space.

        Returns:
            The noise multiplier that it is trained with.
        """
        return self.noises[self._kind_of(candidate)]

    def _kind_of(self, candidate: Candidate) -> int:
        if len(self.noises) == 1:
            return 0
        assert self.space.candidates is not None
        return self._kinds[self.space.candidates.index(candidate)]

    @property
    def privacy(self) -> acc.Privacy:
        """The guarantee, known before anything runs."""
        law = {
            "threshold": f"private selection: the first score that reaches a threshold, at most {self.runs:g} runs "
            "on average",
            "exponential": f"exponential mechanism over {self._size} trained candidates",
            "permute-and-flip": f"permute-and-flip over {self._size} trained candidates",
            "generalised-exponential": f"generalised exponential mechanism over {self._size} trained candidates",
        }.get(self.method, f"private selection: the best of a {self.method} number of runs, {self.runs:g} on average")
        details = {"method": f"{law}; training and score", "tuning": "charged"}
        stated = acc.stated_adjacency(self.adjacency, counted=self.counted)
        if self.counted:
            details["size"] = f"number of {self.mechanism.unit}s treated as public"
        if stated == self.adjacency:
            return acc.Privacy(self._bound, self.mechanism, details)
        return acc.Privacy.of(self.mechanism, self.delta, adjacency=stated, **details)

    @property
    def _size(self) -> int:
        return len(self.space.candidates or ())

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self) -> SearchResult:
        """Charge once, then draw, train, score and select. Returns one model."""
        try:
            found = self.select()
        except SearchFailed:
            self.end()
            raise
        self.end()
        return found

    def select(self) -> SearchResult:
        """Like :meth:`run`, but keep the scratch folder, and with it the result, until :meth:`end`.

        Called again, by any process, it returns the same model for the same charge, bit by bit.
        """
        with contextlib.nullcontext() if self.cluster is None else self.cluster.ready():
            return self._run()

    def end(self) -> None:
        """Delete the scratch folder once the result of :meth:`select` is safe. The same search is then a new one."""
        Scratch(self._where).delete()

    def _run(self) -> SearchResult:
        scratch = Scratch(self._where)
        state = scratch.load()
        if state is not None and "secret" not in state:
            raise TuningError(f"an older tacit began the search in {scratch.path}: delete the folder and start again")
        if state is None:
            state = self._begin()
            scratch.save(state)
        elif state["digest"] != self._digest():
            raise TuningError(
                f"the scratch folder {scratch.path} belongs to a search with other settings: name another folder"
            )
        else:
            self._settle(state["noises"])  # the noise that finished runs had, and that was charged
        privacy = self.privacy  # what cannot be stated is refused before it is charged
        charge = self._charge(state, scratch)
        with runs.silence() as stream:
            shown = stream.isatty() if self.progress is None else self.progress
            with runs.clock(stream, wanted=shown):
                chosen = self._select(state, scratch)
        if chosen is not None and chosen.error:
            raise SearchFailed(
                f"every run failed, the selected one with {chosen.error}. Try train(candidate, noise) and score(model) "
                "on made-up data first"
            )
        if charge is not None and not charge.confirmed:
            charge.confirm()
        if chosen is None:
            return SearchResult(None, None, None, privacy, None, charge)
        score = None if self._all else chosen.score
        return SearchResult(chosen.candidate, chosen.model, score, privacy, self.noise_of(chosen.candidate), charge)

    def _begin(self) -> dict[str, Any]:
        """What is drawn before anything runs: how many runs, which candidates, the lots that break ties."""
        if self._all:
            drawn = [dict(candidate) for candidate in self.space.candidates or ()]
        elif self.method == "threshold":
            drawn = []
        else:
            drawn = [self.space.draw() for _ in range(self._count())]
        return {
            "digest": self._digest(),
            "charge": None,
            "secret": os.urandom(32),
            "noises": self.noises,
            "waiting": [(candidate, random_bits(SYSTEM, 2)) for candidate in drawn],
            "kept": [],
        }

    def _count(self) -> int:
        if self.method == "poisson":
            return exact.poisson(self.runs)
        assert isinstance(self.mechanism, acc.Selected)
        return exact.truncated_negative_binomial(self.mechanism.eta, self.mechanism.gamma)

    def _digest(self) -> str:
        """A short name of the settings, so that a resumed search is the same search."""
        kinds = [self.describe(example, 1.0).to_dict() for example in self._examples]
        plain = [repr(self.space), self.method, self.epsilon, self.delta, self.runs, self.eta, self.threshold]
        plain += [kinds, self.score.mechanism.to_dict(), self.choice_epsilon, self.adjacency, self.dataset]
        return hashlib.sha256(json.dumps(plain, sort_keys=True, default=repr).encode()).hexdigest()

    def _charge(self, state: dict[str, Any], scratch: Scratch) -> Charge | None:
        if self.ledger is None or self.dataset is None:
            return None
        if state["charge"] is None:  # known before it is made: killed between the two, a search is charged once
            state["charge"] = uuid.uuid4().hex
            scratch.save(state)
        read = self.ledger.recognise(self.dataset, self.source)
        return self.ledger.charge(
            self.dataset, self.mechanism, delta=self.delta, purpose=self.purpose, number=state["charge"], data=read
        )

    def _select(self, state: dict[str, Any], scratch: Scratch) -> RunOutcome | None:
        self._root = state["secret"]
        if self.method == "threshold":
            return self._until_good_enough()
        judge = self.score.exact if self._all else self.score.__call__
        for place, outcome in self._outcomes(list(enumerate(state["waiting"])), judge):
            state["waiting"][place] = None
            so_far = [*state["kept"], outcome]
            state["kept"] = so_far if self._all else [max(so_far, key=lambda one: one.rank)]
            scratch.save({**state, "waiting": [entry for entry in state["waiting"] if entry is not None]})
        if not state["kept"]:
            return None
        kept: list[RunOutcome] = state["kept"]
        if not self._all:
            return kept[0]
        with self._drawing("choice"):
            return self._choose(kept)

    def _outcomes(self, waiting: list[tuple[int, Any]], judge: runs.Judge) -> Any:
        """Outcomes as they arrive, with their places."""
        alone = self.workers == 1 or len(waiting) == 1
        run: Callable[..., RunOutcome] = runs.run_again
        if self.cluster is None and self._where is None:
            run = runs.run_one
        elif self.cluster is None and self.executor == "thread" and not alone:
            run = runs.run_beside

        def arguments(entry: Any) -> tuple[Any, ...]:
            candidate, lot = entry
            noise = self.noise_of(candidate)
            told = self.train, judge, candidate, noise, self._trained[self._kind_of(candidate)], lot
            return told if run is runs.run_one else (*told, self._secret(lot))

        if self.cluster is not None:
            tasks = [arguments(entry)[2:] for _, entry in waiting]

            def lost(number: int, why: str) -> RunOutcome:
                candidate, lot = waiting[number][1]
                return RunOutcome(candidate, None, -math.inf, lot, why)

            done = self.cluster.map(run, tasks, shared=(self.train, judge), silent=True, lost=lost)
            for number, outcome in done:
                yield waiting[number][0], outcome
            return
        if alone:
            for place, entry in waiting:
                yield place, run(*arguments(entry))
            return
        pool: concurrent.futures.Executor
        if self.executor == "thread":
            pool = concurrent.futures.ThreadPoolExecutor(self.workers)
        else:
            pool = concurrent.futures.ProcessPoolExecutor(self.workers, initializer=_hush)
        with pool as workers:
            futures = {workers.submit(run, *arguments(entry)): place for place, entry in waiting}
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()

    def _secret(self, what: int | str) -> bytes:
        """From which all the randomness of one run follows (named by its lot), or that of another draw."""
        return hashlib.blake2b(repr(what).encode(), key=self._root, person=b"tacit search").digest()[:32]

    def _drawing(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Draws that a resumed search repeats."""
        return contextlib.nullcontext() if self._where is None else expanded(self._secret(what))

    def _until_good_enough(self) -> RunOutcome | None:
        assert isinstance(self.mechanism, acc.Selected)
        assert self.threshold is not None
        for number, outcome in enumerate(self._one_after_another()):
            with self._drawing(f"coin {number}"):
                stop = bool(exact.bernoulli(self.mechanism.gamma))
            if outcome.score >= self.threshold or stop:
                return outcome if outcome.score >= self.threshold else None
        raise AssertionError("the runs never end by themselves")

    def _one_after_another(self) -> Iterator[RunOutcome]:
        """Runs without end, in the order in which they are judged.

        On a cluster as many as expected run at once, and those behind the one that ends the search are thrown away
        unseen, so the law is that of running them one by one.
        """
        some = 1 if self.cluster is None else self.cluster.at_once or min(64, math.ceil(self.runs))
        for round in itertools.count():
            with self._drawing(f"candidates {round}"):
                waiting = [(place, (self.space.draw(), random_bits(SYSTEM, 2))) for place in range(some)]
            found = dict(self._outcomes(waiting, self.score))
            yield from (found[place] for place in range(some))

    def _choose(self, finished: list[RunOutcome]) -> RunOutcome:
        """One of the trained candidates. Those that failed are left out: all trainings' outcomes are charged."""
        listed = self.space.candidates
        assert listed is not None
        # In the order of the grid, whichever was ready first.
        finished = sorted(finished, key=lambda one: (listed.index(one.candidate), one.lot))
        able = [one for one in finished if not one.error and math.isfinite(one.score)]
        if not able:
            return finished[0]
        scores = [one.score for one in able]
        if self._sensitivities is not None:
            wide = [self._sensitivities[listed.index(one.candidate)] for one in able]
            return able[exponential.generalised_exponential_mechanism(scores, wide, self.choice_epsilon)]
        replaced = self.adjacency == "replace-one"
        sensitivity = self.score.sensitivity
        if replaced:
            sensitivity = self.score.replace if self.score.replace is not None else 2 * sensitivity
        choose = (
            exponential.permute_and_flip if self.method == "permute-and-flip" else exponential.exponential_mechanism
        )
        place = choose(
            scores, self.choice_epsilon, sensitivity=sensitivity, monotone=self.score.monotone and not replaced
        )
        return able[place]


def _hush() -> None:
    """Standard output and error of a worker process go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
