"""A unit that is named is enforced: one person moves a score by what was priced, with however many records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import accounting as acc
from tacit.linear_model import FunctionalLinearRegression
from tacit.sgd import Classifier
from tacit.tuning import PrivateSearchCV, TuningError, bounded_loss, correct_count

PEOPLE = st.lists(st.tuples(st.integers(0, 6), st.floats(-1, 3)), min_size=1, max_size=40)


def scores(records):
    """Both scores of these (owner, loss) pairs; an answer is right where the loss is below 1/2."""
    owners, losses = [owner for owner, _ in records], np.array([loss for _, loss in records])
    right = correct_count(
        losses, np.ones(len(losses), int), predict=lambda _, x: (x < 0.5).astype(int), groups=owners, unit="patient"
    )
    return right, bounded_loss(lambda _: losses, bound=0.5, groups=owners, unit="patient")


@settings(deadline=None, max_examples=50)
@given(PEOPLE, st.lists(st.floats(-1, 3), min_size=1, max_size=30), st.lists(st.floats(-1, 3), max_size=30))
def test_one_person_with_many_records_moves_a_score_by_its_sensitivity(others, own, instead):
    without, before, after = others, [*others, *((99, x) for x in own)], [*((99, x) for x in instead), *others]
    for kind in range(2):
        score, low, high = (scores(records)[kind] for records in (before, without, after))
        assert score.mechanism == acc.Gaussian(20.0, unit="patient", replace=1.0)
        moved = score.exact(None) - low.exact(None)
        assert 0 <= (moved if kind == 0 else -moved) <= score.sensitivity  # always the same way
        assert abs(score.exact(None) - high.exact(None)) <= score.sensitivity


def test_a_person_with_thirty_records_counts_once():
    x, y = np.zeros((130, 1)), np.ones(130, int)
    owners = np.r_[np.arange(100), np.full(30, 100)]
    count = [correct_count(x[:n], y[:n], predict=lambda _, x: np.ones(len(x)), groups=owners[:n]) for n in (100, 130)]
    assert [score.exact(None) for score in count] == [100.0, 101.0]


def test_a_word_for_the_unit_without_ids_is_refused_with_the_way_to_give_them():
    x, y = np.zeros((4, 1)), np.zeros(4, int)
    with pytest.raises(acc.UnitError, match=r"only a word.*groups=, one id for each validation record"):
        correct_count(x, y, unit="person")
    with pytest.raises(acc.UnitError, match="only a word"):
        bounded_loss(lambda model: [0.0], unit="person")
    assert correct_count(x, y).mechanism.unit == correct_count(x, y, unit="record").mechanism.unit == "record"
    with pytest.raises(TuningError, match="one id for each"):
        correct_count(x, y, groups=[1, 2])
    with pytest.raises(TuningError, match="one id for each record that is scored"):
        bounded_loss(lambda model: [0.0, 0.0, 0.0], groups=[1, 2]).exact(None)


def test_a_search_over_estimators_deals_out_people():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (600, 2))
    fit = FunctionalLinearRegression(bounds=(-1, 1), target_bounds=(-1, 1), unit="patient", max_rows=2)
    search = PrivateSearchCV(fit, {"fit_intercept": [True]}, epsilon=3.0, delta=1e-4, method="exponential")
    with pytest.raises(acc.UnitError, match="groups=ids"):
        search.fit(x, x[:, 0])
    found = search.fit(x, x[:, 0], groups=np.arange(600) // 3)
    assert found.privacy_.unit == found.best_estimator_.privacy_.unit == "patient"
    assert found.best_estimator_.privacy_.details["max_rows"] == 2


def test_an_estimator_that_is_trained_by_steps_takes_ids():
    x = np.random.default_rng(0).uniform(-1, 1, (600, 2))
    made = Classifier(bounds=(-1, 1), epochs=1, unit="patient")
    with pytest.raises(acc.UnitError, match="groups=ids"):
        made.fit(x, x[:, 0] > 0)
    said = made.fit(x, x[:, 0] > 0, groups=np.arange(600) // 3).privacy_
    assert (said.unit, "rate 0.1" in said.details["sampler"]) == ("patient", True)
