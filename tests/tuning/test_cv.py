"""A search over scikit-learn estimators has one budget, one charge, and knows what a fit costs before it fits."""

from __future__ import annotations

import weakref

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression as Plain

from tacit import accounting as acc
from tacit.ledger import FingerprintMismatch, Ledger
from tacit.linear_model import LogisticRegression
from tacit.sgd import Classifier, Regressor
from tacit.tuning import PrivateSearchCV, TuningError
from tacit.tuning.cv import _Base


def rows(n: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(4)
    x = generator.uniform(-1, 1, (n, 3))
    return x, (x[:, 0] + 0.3 * x[:, 1] > 0).astype(int)


def test_a_classifier_is_searched_within_the_total_and_charged_once() -> None:
    x, y = rows()
    frame = pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y})
    ledger = Ledger()
    ledger.register("people", epsilon=3.0, delta=1e-4, fingerprint=frame)
    search = PrivateSearchCV(
        Classifier(bounds=(-1, 1), epochs=2),
        {"learning_rate": [1e-6, 2.0]},
        epsilon=3.0,
        delta=1e-5,
        runs=4,
        ledger=ledger,
        dataset="people",
    )
    same = clone(search)
    assert same.get_params()["epsilon"] == 3.0
    with pytest.raises(FingerprintMismatch):
        search.fit(frame[["a", "b", "c"]] * 0.5, frame["y"])
    search.fit(frame[["a", "b", "c"]], frame["y"])  # known by the names of its columns
    assert [record.data for record in ledger.history("people")] == [ledger.dataset("people").fingerprint]
    assert 3 * (1 - 1e-3) <= search.privacy_.upper <= 3.0
    assert ledger.budget("people").charges == 1
    assert search.best_params_["learning_rate"] in (1e-6, 2.0)
    assert search.predict(x[:5]).shape == (5,)
    assert search.predict_proba(x[:5]).shape == (5, 2)
    assert 0 <= search.score(x, y) <= 1
    # the base of the price is the plan of a fit, not its (ε, δ) alone
    assert isinstance(search.privacy_.mechanism, acc.Selected)
    assert "PoissonSampled" in repr(search.privacy_.mechanism)
    # and the selected fit says what was priced
    alone = search.best_estimator_.privacy_
    assert alone.upper < 3.0


def test_the_price_of_a_fit_is_that_of_the_plan_it_makes() -> None:
    x, y = rows(600)
    for made, target in ((Classifier(bounds=(-1, 1), epochs=1), y), (Regressor(bounds=(-1, 1), epochs=1), x[:, 0])):
        base = _Base(made, x, target, 1e-6)
        priced = base.mechanism({"hidden": (4,)}, 0.5)
        fitted = base.train({"hidden": (4,)}, 0.5)
        assert fitted.privacy_.upper == acc.epsilon(priced, 1e-6).upper


def test_a_regression_is_scored_within_its_bounds() -> None:
    x, _ = rows()
    search = PrivateSearchCV(
        Regressor(bounds=(-1, 1), target_bounds=(-2, 2), epochs=2),
        {"learning_rate": [1e-9, 0.2]},
        epsilon=8.0,
        delta=1e-5,
        method="exponential",
        choice_epsilon=4.0,  # with 0.4 the worse one would be chosen once in fifteen times
    )
    search.fit(x, x[:, 0] - x[:, 1])
    assert search.best_params_ == {"learning_rate": 0.2}
    assert search.best_score_ is None


def test_estimators_that_release_by_noise_on_statistics_are_rehearsed() -> None:
    linear_model = pytest.importorskip("tacit.linear_model")
    x, _ = rows()
    made = linear_model.LinearRegression(bounds=(-1, 1), target_bounds=(-2, 2))
    search = PrivateSearchCV(made, {"coef_norm": [0.5, 1.0]}, epsilon=2.0, delta=1e-5, runs=3)
    search.fit(x, x[:, 0] - x[:, 1])
    assert search.privacy_.upper <= 2.0
    assert search.best_estimator_.privacy_.mechanism in [
        part for part, _ in [(search.privacy_.mechanism.mechanism, 1)]
    ] or "Gaussian" in repr(search.privacy_.mechanism)


@pytest.mark.parametrize(
    ("adjacency", "by"),
    [("add-remove", "the estimator"), ("zero-out", "the ledger"), ("replace-one", "the estimator")],
)
def test_a_search_protects_the_neighbours_that_its_estimator_or_its_ledger_names(adjacency: str, by: str) -> None:
    x, y = rows(300)
    ledger = Ledger()
    ledger.register("people", epsilon=3.0, delta=1e-4, adjacency=adjacency)
    asked = {"adjacency": adjacency} if by == "the estimator" else {}
    told = {"ledger": ledger, "dataset": "people"} if by == "the ledger" else {}
    made = LogisticRegression(bounds=(-1, 1), **asked)
    search = PrivateSearchCV(made, {"fit_intercept": [True, False]}, epsilon=3.0, delta=1e-5, runs=2, **told).fit(x, y)
    assert search.privacy_.adjacency == search.best_estimator_.privacy_.adjacency == adjacency
    assert search.privacy_.upper <= 3.0
    assert made.adjacency is None or by == "the estimator"  # the estimator that was given is left as it is


def test_a_fit_that_counts_the_rows_makes_their_number_public() -> None:
    x, y = rows(300)
    steps = LogisticRegression(bounds=(-1, 1), method="dp-sgd", adjacency="add-remove")
    search = PrivateSearchCV(steps, {"fit_intercept": [True, False]}, epsilon=3.0, delta=1e-5, runs=2).fit(x, y)
    assert search.privacy_.adjacency == "zero-out"
    ledger = Ledger()
    ledger.register("people", epsilon=3.0, delta=1e-4)
    either = {"method": ["dp-sgd", "objective-perturbation"]}  # the second has no price where the number is public
    mixed = PrivateSearchCV(LogisticRegression(bounds=(-1, 1)), either, delta=1e-5, ledger=ledger, dataset="people")
    with pytest.raises(acc.AdjacencyError, match="zero-out"):
        mixed.fit(x, y)
    assert ledger.budget("people").charges == 0


def test_what_cannot_be_searched_is_refused() -> None:
    x, y = rows(100)
    private = Classifier(bounds=(-1, 1))
    for search, said in (
        (PrivateSearchCV(Plain(), {"C": [1.0]}), "no epsilon"),
        (PrivateSearchCV(private, {"epsilon": [1.0, 2.0]}), "cannot be searched"),
        (PrivateSearchCV(private, {"adjacency": ["zero-out"]}), "cannot be searched"),
        (PrivateSearchCV(private, {"epochs": [1]}, validation_every=1), "validation_every"),
        (PrivateSearchCV(Classifier(ledger=Ledger()), {"epochs": [1]}), "give the ledger to"),
        (PrivateSearchCV(Regressor(target_bounds=None), {"epochs": [1]}), "target_bounds"),
    ):
        with pytest.raises(TuningError, match=said):
            search.fit(x, y)


def test_parameters_that_are_lists_have_a_price_and_a_threshold_reaches_the_search():
    x = np.random.default_rng(0).uniform(-1, 1, (900, 2))
    estimator = Classifier(bounds=(-1, 1), epochs=1)
    base = _Base(estimator, x, x[:, 0] > 0, 1e-6)
    assert base.mechanism({"hidden": [3]}, 1.0) == base.mechanism({"hidden": (3,)}, 1.0)
    drawn = np.array([3])  # known by its id, which no later candidate may have
    kept = weakref.ref(drawn)
    base.mechanism({"hidden": drawn}, 1.0)
    del drawn
    assert kept() is not None
    search = PrivateSearchCV(estimator, {"hidden": [[3]]}, method="threshold", threshold=np.nan)
    with pytest.raises(TuningError, match="finite number"):
        search.fit(x, x[:, 0] > 0)
