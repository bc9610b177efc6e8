"""Things that are not tacit's: any function of data, or estimator, with a declared ε."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator

from tacit.audit import audit_estimator, audit_one_run, audit_two_worlds
from tacit.audit.evidence import (
    best_two_worlds,
    canaries_needed,
    one_run_evidence,
    one_run_refutes,
    repeats_needed,
    two_world_evidence,
    two_worlds_refute,
)
from tacit.audit.foreign import output_vector
from tacit.audit.power import one_run_powers, two_world_powers


class NoisyMean(BaseEstimator):
    """A mean with Laplace noise that is right, or off by a factor."""

    def __init__(self, epsilon: float = 1.0, factor: float = 1.0, seed: int = 0) -> None:
        self.epsilon, self.factor, self.seed = epsilon, factor, seed

    _count = 0

    def fit(self, X, y):
        NoisyMean._count += 1
        rng = np.random.default_rng([self.seed, NoisyMean._count])
        self.mean_ = float(np.clip(y, 0, 1).sum() + rng.laplace(scale=self.factor / self.epsilon))
        self.n_features_in_ = 1
        return self


WORLDS = (np.zeros((5, 1)), np.zeros(5)), (np.zeros((5, 1)), np.array([0.0, 0, 0, 0, 1]))


def test_an_estimator_that_keeps_its_epsilon_passes_and_one_that_does_not_fails():
    right = audit_estimator(NoisyMean(2.0), *WORLDS, repeats=1500)
    assert right.verdict == "pass", right.sentence
    assert 0.5 < right.evidence.certified <= 2.0
    wrong = audit_estimator(NoisyMean(0.5, factor=0.1), *WORLDS, repeats=1500)
    assert wrong.verdict == "fail"
    assert wrong.evidence.certified > 2.0
    weak = audit_estimator(NoisyMean(6.0), *WORLDS, repeats=100)
    assert weak.verdict == "underpowered"
    count = repeats_needed(6.0, 0.0)
    assert f"it takes {count:,} runs on each data set, or more, to refute ε = 6" in weak.sentence
    assert best_two_worlds(count, count, 0.0) > 6.0 >= best_two_worlds(count - 1, count - 1, 0.0)


class Wrapped(BaseEstimator):
    """An estimator with another one inside, as searches and pipelines are."""

    def __init__(self, inner: NoisyMean, epsilon: float = 2.0) -> None:
        self.inner, self.epsilon = inner, epsilon

    def fit(self, X, y):
        assert not hasattr(self.inner, "mean_"), "not fresh"
        self.mean_ = self.inner.fit(X, y).mean_
        return self


def test_an_estimator_with_another_inside_is_fitted_afresh_each_time():
    assert audit_estimator(Wrapped(NoisyMean(2.0)), *WORLDS, repeats=60).verdict in ("pass", "underpowered")


def test_a_leak_in_one_of_many_outputs_is_found():
    rng = np.random.default_rng(0)

    def release(data):
        found = rng.normal(size=30)
        found[17] += 5 * data[0]
        return {"weights": found, "more": [rng.normal()]}

    found = audit_two_worlds(release, [0.0], [1.0], epsilon=0.5, repeats=800)
    assert found.verdict == "fail"


def test_outputs_of_any_size_are_compared():
    """An unbounded output, as a minimiser without a minimum gives, is a score like any other."""
    rng = np.random.default_rng(0)
    found = audit_two_worlds(
        lambda data: rng.normal() * (1e40 if data else 1.0), False, True, epsilon=0.1, repeats=400, progress=False
    )
    assert found.verdict == "fail"


def test_one_run_of_somebody_elses_histogram():
    rng = np.random.default_rng(1)

    def histogram(scale):
        return lambda data: np.bincount(data, minlength=500) + rng.laplace(scale=scale, size=500)

    settings = {"score": lambda release, i: release[i], "epsilon": 1.0, "rng": rng}
    assert audit_one_run(histogram(1.0), np.flatnonzero, 500, **settings).verdict == "pass"
    assert audit_one_run(histogram(0.1), np.flatnonzero, 500, **settings).verdict == "fail"


def test_one_run_says_how_many_canaries_it_takes():
    rng = np.random.default_rng(1)

    def histogram(data):
        return np.bincount(data, minlength=50) + rng.laplace(scale=0.25, size=50)

    settings = {"score": lambda release, i: release[i], "epsilon": 4.0, "delta": 1e-5, "rng": rng}
    found = audit_one_run(histogram, np.flatnonzero, 50, **settings)
    assert found.verdict == "underpowered"
    assert f"it takes {canaries_needed(4.0, 1e-5):,} canaries" in found.sentence


def worlds(rng, left=1.0, count=500, epsilon=4.0):
    """Repeats of a Laplace mechanism at its claim with so much of its noise."""
    noise = rng.laplace(scale=left / epsilon, size=(2, count))
    return noise[0], 1 + noise[1]


def canaries(rng, left=1.0, count=150, epsilon=2.0):
    """Canaries of a Laplace mechanism at its claim with so much of its noise."""
    member = rng.integers(0, 2, count).astype(bool)
    return member + rng.laplace(scale=left / epsilon, size=count), member


def test_the_power_that_is_printed_is_how_often_the_same_attack_refutes_half_the_noise():
    """Of many honest attacks the printed powers are on average what attacks on real liars give; never much above."""
    rng = np.random.default_rng(0)
    for draw, powers, refutes, terms in (
        (worlds, two_world_powers, two_worlds_refute, (4.0, 0.0, 0.05)),
        (canaries, one_run_powers, lambda s, m, *claim: one_run_refutes(150, *claim)(s, m), (2.0, 0.0, 0.05)),
    ):
        printed = [powers(*draw(rng), *terms, rng) for _ in range(4)]
        for lie, left in enumerate((0.95, 0.5, 1e-3)):
            truth = np.mean([refutes(*draw(rng, left), *terms) for _ in range(100)])
            told = np.mean([one[lie].probability for one in printed])
            assert truth - 0.35 <= told <= truth + 0.25, (left, truth, told)
            assert printed[0][lie].needed == (left == 0.5)


def test_what_is_asked_many_times_is_what_the_evidence_says():
    rng = np.random.default_rng(0)
    for claimed in (0.5, 1.0, 1.5, 2.0, 3.0):
        zero, one = worlds(rng, 0.8)
        evidence = two_world_evidence(zero, one, 0.0)
        assert two_worlds_refute(zero, one, claimed, 0.0, 0.05) == (evidence.verdict(claimed) == "fail")
        scores, member = canaries(rng, 0.3)
        evidence = one_run_evidence(scores, member, 1e-5, claimed=claimed)
        assert one_run_refutes(150, claimed, 1e-5, 0.05)(scores, member) == (evidence.verdict(claimed) == "fail")


def test_a_pass_says_what_it_is_worth_and_an_attack_that_sees_nothing_passes_nothing():
    rng = np.random.default_rng(0)
    found = audit_two_worlds(lambda data: data + rng.laplace(scale=1 / 2), 0.0, 1.0, epsilon=2.0, repeats=1000)
    assert found.verdict == "pass"
    assert found.sentence.endswith(str(found.powers[1]))
    assert "half the noise would have been found with probability" in found.to_dict()["sentence"]
    blind = audit_two_worlds(lambda data: rng.laplace(), 0.0, 1.0, epsilon=2.0, repeats=1000, score=float)
    assert blind.evidence.best > 2.0
    assert blind.verdict == "underpowered"
    assert "half the noise would have been found with probability 0.00" in blind.sentence
    refuted = audit_two_worlds(lambda data: data + rng.laplace(scale=0.1), 0.0, 1.0, epsilon=1.0, repeats=500)
    assert (refuted.verdict, refuted.powers) == ("fail", ())


def test_the_unit_of_a_score_does_not_change_its_power():
    """A shift that grows as the noise shrinks is one in the units of the release, not in logarithms of them."""
    for audit in (one_run_of, two_worlds_of, lambda unit: two_worlds_of(unit, float)):
        found = [audit(unit).powers[1].probability for unit in (1e-3, 3.0, 1e3)]
        assert max(found) - min(found) < 0.25, found


def one_run_of(unit):
    noise = np.random.default_rng(5).normal(scale=1.15, size=100)
    settings = {"epsilon": 2.0, "delta": 1e-5, "rng": np.random.default_rng(4)}
    return audit_one_run(lambda m: unit * (m + noise), lambda m: m, 100, score=lambda r, i: r[i], **settings)


def two_worlds_of(unit, score=None):
    rng = np.random.default_rng(6)
    settings = {"epsilon": 2.0, "repeats": 100, "score": score, "progress": False}
    return audit_two_worlds(lambda data: unit * (data + rng.laplace(scale=1 / 2)), 0.0, 1.0, **settings)


def test_an_attack_that_is_too_small_says_how_large_it_must_be():
    rng = np.random.default_rng(3)
    small = two_world_powers(*worlds(rng), 4.0, 0.0, 0.05, rng)[1]
    assert not small.enough
    count = int(small.by.split("(")[1].split(" ")[0].replace(",", ""))
    found = np.mean([two_worlds_refute(*worlds(rng, 0.5, count), 4.0, 0.0, 0.05) for _ in range(100)])
    assert found > 0.85


def test_what_cannot_be_compared_is_refused():
    assert output_vector(torch.nn.Linear(2, 1)).shape == (3,)
    with pytest.raises(TypeError, match="score="):
        output_vector("words")
    with pytest.raises(ValueError, match="50 repeats"):
        audit_two_worlds(lambda data: 0.0, 0, 1, epsilon=1.0, repeats=3)
    with pytest.raises(ValueError, match="differ in size"):
        audit_two_worlds(lambda data: [0.0] * (1 + data), 0, 1, epsilon=1.0, repeats=50)
    with pytest.raises(ValueError, match="declared"):
        audit_estimator(object.__new__(torch.nn.Identity), *WORLDS)


def test_scores_that_are_equal_tell_nothing_and_no_number_is_a_score():
    same = np.zeros(400)
    assert two_world_evidence(same, same, 0.0).certified == 0.0
    assert audit_two_worlds(lambda data: [np.nan, np.inf][data], 0, 1, epsilon=0.5, repeats=400).verdict != "pass"
    assert audit_two_worlds(lambda data: [0.0, np.nan][data], 0, 1, epsilon=0.5, repeats=400).verdict == "fail"
