"""No neighbour moves any statistic of a fit further than its noise was paid for, and versions that are wrong do.

A fit is run on neighbouring tables with the same noisy outcomes. Each draw then says how far its exact value moved.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import polars as pl
import pytest

from tacit import accounting as acc
from tacit.additive import AdditiveClassifier, AdditiveRegressor, basis, estimators
from tacit.audit import bounds
from tacit.ledger import BudgetExceeded, Ledger
from tacit.linear_model import base, rows
from tacit.schema import Boolean, Categorical, Numeric, Schema, Unit
from tacit.selftest import tap

DELTA = 1e-3
FAR = 1e9
SCHEMA = Schema(
    (Numeric("a", -1, 1), Numeric("b", 0, 10), Categorical("c", ["x", "y", "rare"]), Boolean("d")), Unit("person")
)
#: Rows that an adversary might add: beyond the bounds, at the ends of cells, in a rare category, missing.
EXTREMES = [
    {"a": FAR, "b": -FAR, "c": "rare", "d": True, "y": FAR},
    {"a": -FAR, "b": FAR, "c": "unheard of", "d": False, "y": -FAR},
    {"a": 0.0, "b": 10.0, "c": "rare", "d": True, "y": -FAR},
    {"a": None, "b": None, "c": None, "d": None, "y": FAR},
    {"a": 1.0, "b": 0.0, "c": None, "d": False, "y": 0.0},
]


def table(more=(), seed=0):
    generator = np.random.default_rng(seed)
    made = pl.DataFrame(
        {
            "a": generator.uniform(-1, 1, 300), "b": generator.uniform(0, 10, 300),
            "c": generator.choice(["x", "y"], 300), "d": generator.uniform(size=300) < 0.5,
            "y": generator.uniform(-1, 1, 300),
        }
    )  # fmt: skip
    return pl.concat([made, pl.DataFrame(list(more), schema=made.schema)]) if more else made


def neighbours(adjacency):
    if adjacency == "add-remove":
        return [(table([one]), table()) for one in EXTREMES]
    return [(table([one]), table([EXTREMES[0]])) for one in EXTREMES[1:]]


class Beside(AssertionError):
    """Something is released beside the noise."""


def cost(make, pairs, *, fit=lambda model, frame: model.fit(frame.drop("y"), frame["y"].to_numpy())):
    """The worst cost of these pairs, the claim, and how far each pair moved each draw in units of its noise."""
    worst, steps = 0.0, []
    for one, other in pairs:
        first, heard = tap.listen(lambda one=one: fit(make(), one))
        second, again = tap.listen(lambda other=other: fit(make(), other), heard)
        alike = [np.array_equal(first.curves_[name].value, second.curves_[name].value) for name in first.curves_]
        if not (all(alike) and tap.same_scales(heard, again) and np.array_equal(first.intercept_, second.intercept_)):
            raise Beside("with the same noisy values, neighbours differ")
        worst = max(worst, tap.gaussian_cost(heard, again))
        steps.append([np.linalg.norm((a.value - b.value) / a.scale) for a, b in zip(heard, again, strict=True)])
    return bounds.gaussian_epsilon(worst, DELTA), first.privacy_, np.array(steps)


def multipliers(privacy):
    """The noise of the counts, the second moments and the steps, as it is priced."""
    return [part.noise_multiplier for part, _ in privacy.mechanism.parts()]


def regression(**more):
    return AdditiveRegressor(1.0, DELTA, bounds=SCHEMA, target_bounds=(-1, 1), **more)


CASES = {
    "regression": regression,
    "pairs": lambda **more: regression(pairs=[("a", "c"), ("b", "d")], **more),
    "public edges": lambda **more: regression(edges={"a": [-0.5, 0.5], "b": [5.0]}, **more),
}


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("name", CASES)
def test_every_statistic_moves_no_further_than_its_price_says(name, adjacency):
    found, privacy, steps = cost(lambda: CASES[name](adjacency=adjacency), neighbours(adjacency))
    assert 0 < found <= privacy.upper * (1 + 1e-9)
    assert privacy.upper <= 1.0
    count, gram, step = multipliers(privacy)
    shift = math.sqrt(2) if adjacency == "replace-one" else 1.0
    # The histogram comes first: a row adds 1 to a bin of each column, which is all that was paid for.
    assert steps[:, 0].max() == pytest.approx(shift / count, rel=1e-6)
    # The triangle of the second moments is drawn in two parts, then each of the steps.
    assert np.hypot(steps[:, 1], steps[:, 2]).max() <= shift / gram * (1 + 1e-9)
    assert steps[:, 3:].max() <= (2 if shift > 1 else 1) / step * (1 + 1e-9)
    assert steps[:, 3:].max() > 0.5 / step


def test_two_classes_three_classes_and_labels_are_covered():
    for classes in ([0, 1], [0, 1, 2]):

        def fit(model, frame):
            return model.fit(frame.drop("y"), (frame["y"].to_numpy() > 0).astype(int))

        found, privacy, _ = cost(
            lambda c=classes: AdditiveClassifier(1.0, DELTA, bounds=SCHEMA, classes=c),
            neighbours("add-remove"),
            fit=fit,
        )
        assert 0 < found <= privacy.upper * (1 + 1e-9)


def test_weights_and_all_rows_of_a_person_are_covered():
    def weighted(model, frame):
        weights = np.where(np.arange(len(frame)) < 300, 0.3, 50.0)  # beyond max_weight
        return model.fit(frame.drop("y"), frame["y"].to_numpy(), sample_weight=weights)

    found, privacy, steps = cost(lambda: regression(max_weight=2.0), neighbours("add-remove"), fit=weighted)
    assert 0 < found <= privacy.upper * (1 + 1e-9)
    assert steps[:, 0].max() == pytest.approx(1 / multipliers(privacy)[0], rel=1e-6)

    def owned(model, frame):
        ids = np.minimum(np.arange(len(frame)), 300)
        return model.fit(frame.drop("y"), frame["y"].to_numpy(), groups=ids)

    pairs = [(table(EXTREMES), table())]
    found, privacy, _ = cost(lambda: regression(max_rows=3), pairs, fit=owned)
    assert 0 < found <= privacy.upper * (1 + 1e-9)


# -- wrong versions ----------------------------------------------------------------------------------------------------


def _edges_unpaid(patch):
    """The histogram has its noise, and is left out of the price."""
    plain = estimators.CurveBudget.mechanism
    patch.setattr(
        estimators.CurveBudget, "mechanism", lambda self, unit: plain(dataclasses.replace(self, counts=False), unit)
    )
    patch.setattr(estimators.CurveBudget, "count", property(lambda self: self.noise))


def _pairs_free(patch):
    """The length of a row is that of its columns alone."""
    plain = basis.Basis.shape
    patch.setattr(basis.Basis, "shape", lambda self, rows: plain(dataclasses.replace(self, pairs=()), rows))


def _one_column(patch):
    """The histogram's noise is that of one column."""
    plain = estimators.releases.gaussian_sum

    def less(exact, sensitivity, multiplier):
        return plain(exact, 1.0 if np.size(exact) > 90 else sensitivity, multiplier)

    patch.setattr(estimators.releases, "gaussian_sum", less)


def _unclipped(patch):
    """A number beyond its bounds stays as it is."""
    patch.setattr(estimators, "encode", lambda X, features: _wide(X, features))


def _wide(X, features):
    found = _encode(X, features)
    found[:, 1] = np.where(np.abs(X["a"].fill_null(0).to_numpy()) > 1, 40.0, found[:, 1])
    return found


_encode = estimators.encode


def _exact_bins(patch):
    """The histogram has no noise at all."""
    plain = estimators.releases.gaussian_sum
    patch.setattr(
        estimators.releases, "gaussian_sum", lambda e, s, m: np.asarray(e) if np.size(e) > 90 else plain(e, s, m)
    )


def _every_row(patch):
    patch.setattr(rows, "kept_rows", lambda groups, count, max_rows: np.arange(count))


WRONG = {
    "edges unpaid": (_edges_unpaid, regression),
    "pairs free": (_pairs_free, lambda **m: regression(pairs=[("a", "b"), ("a", "c"), ("c", "d")], **m)),
    "one column": (_one_column, regression),
    "numbers beyond their bounds": (_unclipped, regression),
    "bins without noise": (_exact_bins, regression),
}


def _caught(make):
    """Whether a release moves further than its price says, or something is released beside the noise."""
    try:
        found, privacy, steps = cost(make, neighbours("add-remove"))
    except (tap.PathDiffers, Beside):
        return True
    gram = multipliers(privacy)[-2]
    return found > privacy.upper * (1 + 1e-9) or np.hypot(steps[:, 1], steps[:, 2]).max() > (1 + 1e-9) / gram


@pytest.mark.parametrize("name", WRONG)
def test_wrong_versions_are_caught_and_the_right_one_is_not(name, monkeypatch):
    wrong, make = WRONG[name]
    assert not _caught(make)
    wrong(monkeypatch)
    assert _caught(make)


def test_a_target_that_is_not_clipped_changes_nothing_that_is_paid_for(monkeypatch):
    """Errors are clipped in each step, whatever the target: bounds of y are for accuracy here."""
    plain = base.PrivateEstimator.scale_target
    monkeypatch.setattr(base.PrivateEstimator, "scale_target", lambda self, y: plain(self, y) + 0 + np.asarray(y) * 1.0)
    found, privacy, _ = cost(regression, neighbours("add-remove"))
    assert found <= privacy.upper * (1 + 1e-9)


def test_a_fit_on_a_hundred_times_the_rows_is_the_same_where_the_noisy_numbers_are():
    """A neighbour rarely moves a choice by the number of rows; so many more would."""
    _, heard = tap.listen(lambda: regression().fit(table().drop("y"), table()["y"].to_numpy()))
    many = pl.concat([table()] * 100)
    first, again = tap.listen(lambda: regression().fit(many.drop("y"), many["y"].to_numpy()), heard)
    assert len(again) == len(heard)
    assert tap.same_scales(heard, again)
    alike, _ = tap.listen(lambda: regression().fit(table().drop("y"), table()["y"].to_numpy()), heard)
    assert all(np.array_equal(first.curves_[name].value, alike.curves_[name].value) for name in alike.curves_)


def test_more_rows_than_a_person_may_have_are_caught(monkeypatch):
    _every_row(monkeypatch)

    def owned(model, frame):
        ids = np.minimum(np.arange(len(frame)), 300)
        return model.fit(frame.drop("y"), frame["y"].to_numpy(), groups=ids)

    _, privacy, steps = cost(lambda: regression(max_rows=1), [(table(EXTREMES), table())], fit=owned)
    assert steps[0, 0] > 1.5 / multipliers(privacy)[0]


# -- the charge --------------------------------------------------------------------------------------------------------


def test_a_fit_is_charged_before_anything_is_drawn_and_a_refused_one_draws_nothing():
    ledger = Ledger()
    ledger.register("people", epsilon=1.3, delta=2e-3, unit="person")
    frame = table()

    def fit():
        return regression(ledger=ledger).fit(frame.drop("y"), frame["y"].to_numpy())

    fitted, draws = tap.listen(fit)
    assert len(draws) == 1 + 2 + estimators.STEPS
    assert ledger.budget("people").spent_epsilon == pytest.approx(fitted.privacy_.upper, rel=1e-6)
    seen = []

    def refused():
        with pytest.raises(BudgetExceeded, match="epsilon="):
            fit()

    _, seen = tap.listen(refused)
    assert seen == []


@pytest.mark.parametrize("adjacency", acc.ADJACENCIES)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_a_fit_costs_at_most_what_was_asked_and_nearly_that(epsilon, adjacency):
    frame = table()
    made = AdditiveRegressor(epsilon, 1e-6, bounds=SCHEMA, target_bounds=(-1, 1), adjacency=adjacency)
    privacy = made.fit(frame.drop("y"), frame["y"].to_numpy()).privacy_
    assert 0.999 * epsilon <= privacy.upper <= epsilon
