"""Public tuning costs nothing and says so; scale rules move settings the way they should."""

from __future__ import annotations

import pytest

from tacit import accounting as acc
from tacit.report import Run, make_card
from tacit.tuning import (
    LogUniform,
    PrivateSearch,
    Score,
    TuningError,
    batch_for,
    good_defaults,
    learning_rate_for,
    noise_for,
    tune_on_public,
)


def test_every_candidate_is_tried_and_the_best_is_kept() -> None:
    seen: list[int] = []
    found = tune_on_public(
        {"a": [3, 1, 2]}, lambda c: seen.append(c["a"]) or c["a"], lambda m: -m, because="made up", repeats=2
    )
    assert found.best == {"a": 1}
    assert sorted(seen) == [1, 1, 2, 2, 3, 3]
    assert len(found.table) == 3
    drawn = tune_on_public({"a": LogUniform(1, 2)}, lambda c: c["a"], float, because="made up", trials=5)
    assert len(drawn.table) == 5


def test_public_data_are_declared_with_a_reason() -> None:
    with pytest.raises(TuningError, match="public"):
        tune_on_public({"a": [1]}, lambda c: c, lambda m: 0.0, because=" ")
    with pytest.raises(TuningError, match="trials"):
        tune_on_public({"a": LogUniform(1, 2)}, lambda c: c, lambda m: 0.0, because="made up")


def test_the_card_says_how_hyper_parameters_were_chosen() -> None:
    on_public = tune_on_public({"a": [1, 2]}, lambda c: c["a"], float, because="made up")
    search = PrivateSearch(
        {"a": [1, 2]},
        lambda c, z: c["a"],
        Score(float),
        mechanism=lambda c, z: acc.Gaussian(z),
        epsilon=1.0,
        delta=1e-6,
    )
    fields = search.run().for_card()
    cards = {
        "tuning: on public data": Run("one", acc.Gaussian(5.0), delta=1e-6, **on_public.for_card()),
        "tuning: charged": Run("two", fields.pop("mechanism"), **fields),
        "tuning: NOT covered": Run("three", acc.Gaussian(5.0), delta=1e-6, tuning="not charged"),
    }
    for words, run in cards.items():
        card = make_card(run)
        assert card["accesses"]["tuning_words"] == words
    assert make_card(cards["tuning: charged"])["guarantee"]["epsilon"]["upper"] <= 1.0


def test_scale_rules() -> None:
    """The batch is the smallest near the full-batch noise; the learning rate scales against clip norm and noise."""
    n, steps, epsilon, delta = 20_000, 100, 3.0, 1e-6
    batch = batch_for(n, steps, epsilon, delta)
    least = noise_for(n, n, steps, epsilon, delta) / n
    assert noise_for(n, batch, steps, epsilon, delta) / batch <= 1.25 * least
    assert noise_for(n, batch // 2, steps, epsilon, delta) / (batch // 2) > 1.25 * least
    usual = {"steps": 100, "batch_size": 1000, "noise_multiplier": 2.0, "parameters": 10**6}
    assert learning_rate_for(**usual) < learning_rate_for(**usual | {"parameters": 10})
    assert learning_rate_for(**usual) == pytest.approx(2 * learning_rate_for(**usual, clip_norm=2.0))
    assert learning_rate_for(**usual) == pytest.approx(2 * learning_rate_for(**usual | {"steps": 400}))
    chosen = good_defaults(n, 500, epsilon=epsilon, delta=delta)
    spent = acc.PoissonSampled(acc.Gaussian(chosen.noise_multiplier), chosen.batch_size / n) * chosen.steps
    assert acc.epsilon(spent, delta).upper <= epsilon
