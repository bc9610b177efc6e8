"""How do I search over tacit's scikit-learn estimators privately? :class:`PrivateSearchCV`.

It looks like ``RandomizedSearchCV`` but works differently. There are no folds, because every fold would be another look
at the same people. Candidates are scored with noise on rows that are set aside at random, and one total (ε, δ) covers
everything. scikit-learn is imported here and nowhere else in this room.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from tacit import accounting as acc
from tacit.accounting.base import owner_numbers, unit_of
from tacit.cluster import Ray
from tacit.ledger import Ledger
from tacit.ledger.fingerprint import table_of
from tacit.noise import bernoulli
from tacit.tuning.errors import TuningError
from tacit.tuning.scores import Score, bounded_loss, correct_count
from tacit.tuning.search import PrivateSearch
from tacit.tuning.space import Candidate, Space


def _has(name: str) -> Any:
    return lambda search: hasattr(search.estimator, name)


class PrivateSearchCV(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Fit one of tacit's estimators with privately chosen hyper-parameters, within one total budget.

    After ``fit`` it has ``best_estimator_``, ``best_params_``, ``best_score_`` (noisy; None for the exponential
    methods) and ``privacy_``. Classifiers are scored by right answers, regressions by the squared error within their
    ``target_bounds``.

    Guarantee:
        ``privacy_`` covers model, parameters and score together, for zeroing out one row; the number of rows is treated
        as public. With ``groups`` in :meth:`fit` it protects one owner with all of their rows.

    Args:
        estimator: One of tacit's estimators: it has a parameter ``epsilon`` and, after a fit, ``privacy_``.
        param_space: A mapping from its parameters to lists or distributions (:class:`Space`).
        epsilon: The total budget of the search.
        delta: The δ of the total budget.
        method: How the number of runs is drawn, or how one is chosen: see :class:`PrivateSearch`.
        runs: The mean number of runs. None takes the size of a grid (at least 2), or 10.
        eta: The η of ``method="negative-binomial"``.
        threshold: The score that is good enough, for ``method="threshold"``.
        choice_epsilon: The part of ``epsilon`` that the exponential methods spend on the choice. None means 10%.
        validation_every: Each row is set aside for scoring with probability 1 in this many, independently; 2 or more.
        score_noise: The standard deviation of the noise on the score, in right answers (or in the largest loss).
        ledger: The ledger to charge once, before the first run; goes with ``dataset``. None charges nothing.
        dataset: The name of the data set in the ledger.
        purpose: The text of the charge.
        workers: How many runs go on at once on this machine.
        backend: ``"local"``, ``"ray"`` or a :class:`tacit.cluster.Ray`.

    Example:
        >>> from tacit.linear_model import FunctionalLinearRegression
        >>> x = np.random.default_rng(0).uniform(-1, 1, (500, 2))
        >>> model = FunctionalLinearRegression(bounds=(-1, 1), target_bounds=(-1, 1))
        >>> space = {"fit_intercept": [True, False]}
        >>> search = PrivateSearchCV(model, space, epsilon=3.0, delta=1e-5, method="exponential")
        >>> search.fit(x, x[:, 0]).privacy_.upper <= 3.0
        True
    """

    def __init__(
        self,
        estimator: Any,
        param_space: Any,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        method: str = "geometric",
        runs: float | None = None,
        eta: float = 1.0,
        threshold: float | None = None,
        choice_epsilon: float | None = None,
        validation_every: int = 10,
        score_noise: float = 20.0,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        purpose: str = "private tuning",
        workers: int = 1,
        backend: str | Ray = "local",
    ) -> None:
        self.estimator = estimator
        self.param_space = param_space
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.runs = runs
        self.eta = eta
        self.threshold = threshold
        self.choice_epsilon = choice_epsilon
        self.validation_every = validation_every
        self.score_noise = score_noise
        self.ledger = ledger
        self.dataset = dataset
        self.purpose = purpose
        self.workers = workers
        self.backend = backend

    def fit(self, X: Any, y: Any, groups: Any = None) -> PrivateSearchCV:
        """Search, and keep the selected estimator, fitted.

        Args:
            X: The private table of numbers.
            y: One target per row.
            groups: The id of each row's owner. None protects one row.

        Returns:
            The same object, fitted.

        Raises:
            TuningError: If the estimator is not private or has a ledger of its own, if the budget is among the searched
                parameters, if the data are no table, or if nothing was selected.
        """
        read = None
        if self.ledger is not None and self.dataset is not None:
            read = self.ledger.recognise(self.dataset, table_of(X, y))
        X, y = np.asarray(X), np.asarray(y)
        known = self.estimator.get_params()
        if "epsilon" not in known:
            raise TuningError(
                f"{type(self.estimator).__name__} has no epsilon: PrivateSearchCV takes tacit's private estimators only"
            )
        if known.get("ledger") is not None:
            raise TuningError("give the ledger to PrivateSearchCV, not to the estimator: the search charges once")
        if X.ndim != 2 or len(X) != len(y) or X.dtype.kind not in "fiub":
            raise TuningError("X must be a table of numbers, and y must have one target for each row")
        space = Space(self.param_space)
        fixed = {"epsilon", "delta", "adjacency", "ledger", "dataset"} & set(space.draw())
        if fixed:
            raise TuningError(
                f"{', '.join(sorted(fixed))} cannot be searched: they say what the whole search guarantees"
            )
        every = self.validation_every
        if isinstance(every, bool) or not isinstance(every, int | np.integer) or every < 2:
            raise TuningError(f"validation_every must be a whole number of 2 or more, not {every!r}")
        unit = unit_of(_word(known), owned=groups is not None, ids="Give their ids: fit(X, y, groups=ids)")
        whose = np.arange(len(X)) if groups is None else owner_numbers(groups, len(X))
        # Independent coins: one row (or owner) more or less changes nothing for the others.
        held = bernoulli(1 / every, len(np.unique(whose)))[whose]
        if held.all() or not held.any():
            raise TuningError("too few rows: none is left to train on, or none to validate on")
        expected = float(self.runs if self.runs is not None else (len(space) if space.candidates else 10))
        share = self.delta / (4 * max(expected, 1.0))
        estimator, adjacency = self._neighbours(known)
        base = _Base(estimator, X[~held], y[~held], share, None if groups is None else whose[~held])
        search = PrivateSearch(
            space,
            base.train,
            self._score(X[held], y[held], whose[held], unit),
            mechanism=base.mechanism,
            method=self.method,
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=adjacency,
            runs=self.runs,
            eta=self.eta,
            threshold=self.threshold,
            choice_epsilon=self.choice_epsilon,
            ledger=self.ledger,
            dataset=self.dataset,
            purpose=self.purpose,
            source=read,
            workers=self.workers,
            backend=self.backend,
        )
        search.counted = base.counted
        found = search.run()
        if found.nothing:
            raise TuningError(f"nothing was selected, which method={self.method!r} allows; the charge stands")
        self.best_estimator_, self.best_params_ = found.model, found.best
        self.best_score_, self.privacy_ = found.score, found.privacy
        self.n_features_in_ = X.shape[1]
        if hasattr(found.model, "classes_"):
            self.classes_ = found.model.classes_
        return self

    def _neighbours(self, known: Mapping[str, Any]) -> tuple[Any, str]:
        """The estimator with the adjacency that it names, or the ledger; and this adjacency."""
        if "adjacency" not in known:
            return self.estimator, "add-remove"
        terms = None if self.ledger is None or self.dataset is None else self.ledger.dataset(self.dataset)
        adjacency = known["adjacency"] or ("add-remove" if terms is None else terms.adjacency)
        return clone(self.estimator).set_params(adjacency=adjacency), adjacency

    def _score(self, X: npt.NDArray[Any], y: npt.NDArray[Any], whose: npt.NDArray[Any], unit: str) -> Score:
        named: dict[str, Any] = {"noise": self.score_noise, "groups": whose, "unit": unit}
        if is_classifier(self.estimator):
            return correct_count(X, y, **named)
        bounds = self.estimator.get_params().get("target_bounds")
        if bounds is None:
            raise TuningError(
                "scoring a regression needs public bounds of the target: set target_bounds on the estimator"
            )
        low, high = (float(bound) for bound in bounds)
        wanted = np.clip(y.astype(float), low, high)

        def losses(model: Any) -> Any:
            return ((np.clip(model.predict(X), low, high) - wanted) / (high - low)) ** 2

        return bounded_loss(losses, **named)

    @available_if(_has("predict"))  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Any:
        """Predictions of the selected estimator."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    @available_if(_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Probabilities by the selected estimator."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    @available_if(_has("score"))  # type: ignore[untyped-decorator]
    def score(self, X: Any, y: Any) -> float:
        """The selected estimator's own score, without noise: use public data, or do not publish it."""
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))


class _Base:
    """One fit: its price, known from public numbers, and the fit itself. ``noise`` is 1/ε of the fit."""

    def __init__(
        self,
        estimator: Any,
        X: npt.NDArray[Any],
        y: npt.NDArray[Any],
        delta: float,
        groups: npt.NDArray[Any] | None = None,
    ) -> None:
        self.estimator, self.X, self.y, self.delta = estimator, X, y, delta
        self.whose = {} if groups is None else {"groups": groups}
        #: whether some fit treats the number of rows as public, where a neighbour is a row more or less
        self.counted = False
        #: what fits were found to cost, by candidate and noise; with the candidate, which a key may know by its id only
        self._priced: dict[Any, tuple[acc.Mechanism, Candidate]] = {}

    def made(self, candidate: Candidate, noise: float) -> Any:
        """The estimator with a candidate's parameters and the budget of one fit."""
        budget = {"epsilon": 1 / noise}
        if "delta" in self.estimator.get_params():
            budget["delta"] = self.delta
        return clone(self.estimator).set_params(**candidate, **budget)

    def mechanism(self, candidate: Candidate, noise: float) -> acc.Mechanism:
        """The mechanism of a fit: what the estimator states after a rehearsal on made-up rows of the same shape."""
        key = (_plain(candidate), noise)
        if key not in self._priced:
            self._priced[key] = self.rehearse(candidate, noise), candidate
        return self._priced[key][0]

    def rehearse(self, candidate: Candidate, noise: float) -> acc.Mechanism:
        """See :meth:`mechanism`."""
        made = self.made(candidate, noise)
        planned = _planned(made, self.X, self.y, self.whose.get("groups"))
        if planned is not None:
            self.counted = True
            return planned
        generator = np.random.default_rng(0)
        rows = generator.uniform(-1, 1, self.X.shape)
        if is_classifier(made):
            names = np.unique(self.y)  # the estimators treat these as public too
            target = names[np.arange(len(self.y)) % len(names)]
        else:
            low, high = made.get_params().get("target_bounds") or (-1.0, 1.0)
            target = generator.uniform(low, high, len(self.y))
        asked = getattr(made, "asked", None)  # an estimator of tacit's says it without the fit
        stated = made.fit(rows, target, **self.whose).privacy_ if asked is None else asked(rows, target, **self.whose)
        self.counted |= stated.adjacency != (made.get_params().get("adjacency") or "add-remove")
        mechanism: acc.Mechanism = stated.mechanism
        return mechanism

    def train(self, candidate: Candidate, noise: float) -> Any:
        """The fit on the private rows; refused if it is not what was priced."""
        made = self.made(candidate, noise)
        priced = self.mechanism(candidate, noise)
        fitted = made.fit(self.X, self.y, **self.whose)
        if fitted.privacy_.mechanism != priced:
            raise TuningError(f"the fit is {fitted.privacy_.mechanism!r}, but {priced!r} was priced")
        return fitted


def _plain(value: Any) -> Any:
    """A candidate, or a value of one, as something that a dictionary can look up: lists and mappings too."""
    if isinstance(value, Mapping):
        return tuple((name, _plain(value[name])) for name in sorted(value))
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(_plain, value))
    try:
        hash(value)
    except TypeError:
        return id(value)  # no other object's, as long as the candidate is kept
    return type(value), value


def _word(known: Mapping[str, Any]) -> str | None:
    """What an estimator calls the unit, by its parameters."""
    return known.get("unit")


def _planned(
    made: Any, X: npt.NDArray[Any], y: npt.NDArray[Any], groups: npt.NDArray[Any] | None
) -> acc.Mechanism | None:
    """The plan of an estimator of ``tacit.sgd``, by the same functions that make it in a fit."""
    if not type(made).__module__.startswith("tacit.sgd"):
        return None
    from tacit.sgd.training.kept import drawn
    from tacit.sgd.training.plan import make_plan
    from tacit.sgd.training.sampling import make_sampler, run_length

    known = made.get_params()
    outputs = (
        (len(known["classes"]) if known["classes"] is not None else len(np.unique(y))) if "classes" in known else 1
    )
    elements, inputs = 0, X.shape[1]
    for width in (*known["hidden"], outputs):
        elements, inputs = elements + (inputs + 1) * width, width
    rows = drawn(groups, len(X))
    sampler = make_sampler("poisson", rows, min(known["batch_size"] or max(1, rows // 10), rows), None)
    plan = make_plan(
        sampler,
        steps=run_length(None, known["epochs"], sampler),
        epsilon=known["epsilon"],
        noise_multiplier=None,
        clip_norm=known["clip_norm"],
        delta=known["delta"],
        adjacency=sampler.adjacency,
        elements=elements,
        unit=unit_of(_word(known), owned=groups is not None),
    )
    return plan.mechanism
