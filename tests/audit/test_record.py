"""The record of a run's canary slots tells noise, steps and draws that are not what is claimed."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from tacit import accounting as acc
from tacit.audit import Audit, audit_run, record, statistics
from tacit.audit.findings import RECORD_ALARM, Power, failures
from tacit.sgd.training.canaries import Planted

STEPS, COUNT, RATE, NOISE = 40, 200, 0.4, 3.0
MECHANISM = acc.PoissonSampled(acc.Gaussian(NOISE), RATE) * STEPS


def honest(seed: int, mechanism: acc.Mechanism = MECHANISM, steps: int = STEPS, rate: float = RATE) -> Planted:
    """What a run leaves that is what it claims, drawn instead of trained."""
    rng = np.random.default_rng(seed)
    member, drawn = rng.random(COUNT) < 0.5, rng.random((steps, COUNT)) < rate
    z = rng.standard_normal((steps, COUNT))
    scores = (2 * (NOISE * z + (drawn & member)) - 1).sum(0)
    return Planted(
        "gradient", member, scores, 4.0, 1e-5, "add-remove", "record", steps,
        mechanism=json.dumps(mechanism.to_dict()), noise=np.full(steps, NOISE), scale=np.full(steps, NOISE),
        residuals=z.astype(np.float32), drawn=np.packbits(drawn, axis=1), per_pass=3,
    )  # fmt: skip


def alarms(planted: Planted, mechanism: acc.Mechanism = MECHANISM) -> set[str]:
    found = record.check_record(planted, mechanism)
    return {f.check for f in failures(found, RECORD_ALARM)}


def test_honest_records_are_hardly_ever_accused():
    """The tests together alarm with probability 0.0019; six of twenty-five would be luck once in 10¹¹ times."""
    assert sum(bool(alarms(honest(seed))) for seed in range(25)) <= 5


def residuals(change):
    planted = honest(1)
    z = planted.residuals.astype(np.float64)
    return dataclasses.replace(planted, residuals=change(z).astype(np.float32))


def _row(z, step, values):
    z = z.copy()
    z[step] = values
    return z


def _column(z, canary, values):
    z = z.copy()
    z[:, canary] = values
    return z


@pytest.mark.parametrize(
    ("change", "by"),
    [
        (lambda z: 0.5 * z, "noise size"),
        (lambda z: 0.93 * z, "noise size"),
        (lambda z: np.clip(z, -2.5, 2.5), "noise tails"),
        (lambda z: np.random.default_rng(0).uniform(-(3**0.5), 3**0.5, z.shape), "noise shape"),
        (lambda z: _column(z, 7, 0.0), "noise on every canary"),
        (lambda z: _row(z, 0, 0.0), "noise at every step"),
        (lambda z: _row(z, 9, z[3]), "noise of two steps"),
        (lambda z: _row(z, 9, -z[3]), "noise of two steps"),
        (lambda z: _column(z, 50, z[:, 4]), "noise of two canaries"),
        (lambda z: np.tile(z[:20], (2, 1)), "noise used once"),
        (lambda z: _column(z, 3, np.nan), "noise size"),
    ],
)
def test_noise_that_is_not_what_is_claimed_is_found(change, by):
    assert by in alarms(residuals(change))


def test_more_noise_than_is_claimed_is_no_alarm():
    assert alarms(residuals(lambda z: 1.1 * z)) == set()
    rough = dataclasses.replace(residuals(lambda z: np.round(1.3 * z)), rounded=True)
    assert alarms(rough) == set()
    assert "noise size" in alarms(dataclasses.replace(residuals(lambda z: np.round(0.5 * z)), rounded=True))


def drawn(masks):
    return dataclasses.replace(honest(1), drawn=np.packbits(masks, axis=1))


def shuffled(steps=STEPS, per_pass=5, seed=0):
    rng = np.random.default_rng(seed)
    masks = np.zeros((steps, COUNT), dtype=bool)
    for start in range(0, steps, per_pass):
        masks[start + rng.integers(0, per_pass, COUNT), np.arange(COUNT)] = True
    return masks


def test_draws_that_are_not_what_is_claimed_are_found():
    rng = np.random.default_rng(3)
    fifth = acc.PoissonSampled(acc.Gaussian(NOISE), 0.2) * STEPS
    assert "participation" in alarms(drawn(shuffled()), fifth)
    assert "sampling rate" in alarms(drawn(rng.random((STEPS, COUNT)) < 0.44))
    assert alarms(drawn(np.tile(rng.random(COUNT) < RATE, (STEPS, 1)))) & {"participation", "independent choices"}
    fixed = acc.FixedSizeSampled(acc.Gaussian(NOISE), 200, 1000) * STEPS
    assert "participation" in alarms(drawn(shuffled()), fixed)
    within = np.argsort(rng.random((STEPS, 1000)), axis=1) < 200
    assert alarms(drawn(within[:, :COUNT]), fixed) == set()


def test_each_unit_once_in_a_pass():
    passes = acc.Shuffled(acc.Gaussian(NOISE)) * 8
    right = dataclasses.replace(drawn(shuffled()), per_pass=5)
    assert alarms(right, passes) == set()
    twice = shuffled()
    twice[0, 3] = twice[1, 3] = True
    assert alarms(dataclasses.replace(drawn(twice), per_pass=5), passes) == {"participation"}
    assert "steps" in alarms(right, acc.Shuffled(acc.Gaussian(NOISE)) * 4)


def test_balls_in_bins_are_drawn_anew_and_uneven():
    passes = acc.BallsInBins(acc.Gaussian(NOISE), 5) * 60
    made = {"steps": 300, "per_pass": 5, "size": 300}
    right = dataclasses.replace(honest(1, passes, steps=300), drawn=np.packbits(shuffled(300), axis=1), **made)
    assert alarms(right, passes) == set()
    same = np.tile(shuffled(5), (60, 1))
    assert "independent choices" in alarms(dataclasses.replace(right, drawn=np.packbits(same, axis=1)), passes)
    rng = np.random.default_rng(0)
    equal = np.zeros((300, COUNT), dtype=bool)
    for start in range(0, 300, 5):  # 300 slots in batches of 60, of which 200 are canaries
        equal[start + (rng.permutation(300) // 60)[:COUNT], np.arange(COUNT)] = True
    assert alarms(dataclasses.replace(right, drawn=np.packbits(equal, axis=1)), passes) == {"batch sizes"}
    printed = {p.lie: p for p in record.powers(right, passes, 1e-4, 5e-4)}
    assert printed["shuffled batches"].enough
    few = dataclasses.replace(right, drawn=right.drawn[:10])
    assert not {p.lie: p for p in record.powers(few, passes, 1e-4, 5e-4)}["shuffled batches"].enough


def test_steps_and_noise_are_those_that_are_priced():
    half = acc.PoissonSampled(acc.Gaussian(NOISE), RATE) * (STEPS // 2)
    assert {"steps", "priced noise"} <= alarms(honest(2), half)
    more = acc.PoissonSampled(acc.Gaussian(NOISE * 1.01), RATE) * STEPS
    assert "priced noise" in alarms(honest(2), more)
    scaled = dataclasses.replace(honest(2), scale=np.full(STEPS, NOISE / 2))
    assert "priced noise" in alarms(scaled)  # residuals measured by half the noise look right by themselves


def test_coins_are_fair():
    assert "coins" in alarms(dataclasses.replace(honest(2), member=np.arange(COUNT) < 150))


def test_powers_are_what_the_tests_find():
    """Printed powers against how often the tests alarm: of 92% of the noise, in 60 records of 800 numbers."""
    small = acc.PoissonSampled(acc.Gaussian(NOISE), RATE) * 4
    share = RECORD_ALARM / 16
    planted = honest(1, small, steps=4)
    printed = {p.lie: p for p in record.powers(planted, small, share, 5e-4)}
    assert printed["no noise"].probability == printed["half the noise"].probability == 1.0
    stated = printed["95% of the noise"].probability
    found = 0
    for seed in range(200):
        z = 0.95 * honest(seed, small, steps=4).residuals
        found += next(f for f in record.check_noise(z) if f.check == "noise size").p_value < share
    assert abs(found / 200 - stated) < 0.1
    assert stated < 0.5
    assert not printed["95% of the noise"].needed


def test_without_a_record_the_printed_power_decides():
    """Files of older versions hold coins and scores alone."""
    bare = dataclasses.replace(honest(1), residuals=None, drawn=None, noise=None, scale=None, mechanism=None)
    printed = {p.lie: p for p in record.powers(bare, MECHANISM, 1e-4, 5e-4)}
    assert printed["half the noise"].probability < 0.5
    assert printed["shuffled batches"].probability == 0.0
    assert "kept no record" in printed["shuffled batches"].by
    found = audit_run(bare, mechanism=MECHANISM)
    assert found.verdict == "underpowered"
    assert "half the noise would have been found with probability 0." in found.sentence


def test_a_pass_needs_the_powers_that_matter():
    usual = {"kind": "one run", "claimed": 4.0, "delta": 1e-5, "terms": "", "findings": (record._coins(honest(1)),)}
    enough = Power("half the noise", 0.99, "the size", needed=True)
    missing = Power("shuffled batches", 0.3, "the draws", needed=True)
    assert Audit(**usual, powers=(enough,)).verdict == "pass"
    assert Audit(**usual, powers=(enough, missing)).verdict == "underpowered"
    assert "found with probability 0.30" in Audit(**usual, powers=(enough, missing)).sentence


def test_counts_that_are_few_and_small_raise_no_alarm_by_their_coarseness():
    """Ten counts at a rate of 0.01: a smooth law alone accused one honest run in forty at 1e-4."""
    rng = np.random.default_rng(0)
    found = [statistics.dispersion_p_value(rng.binomial(200, 0.01, 10), 200, 0.01) < 1e-4 for _ in range(300)]
    assert sum(found) <= 2


def test_the_claimed_curve_is_refuted_by_scores_alone():
    planted = honest(1)
    perfect = dataclasses.replace(planted, scores=planted.member + 0.0)
    strict = acc.PoissonSampled(acc.Gaussian(20.0), RATE) * STEPS
    assert record.claimed_curve(perfect, strict, "add-remove").p_value < 1e-4
    assert record.claimed_curve(planted, MECHANISM, "add-remove").p_value > 0.05
