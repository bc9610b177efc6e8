"""What a run refuses before it draws anything, and what its record of canaries holds."""

from __future__ import annotations

import dataclasses
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from tacit import accounting as acc
from tacit.ledger import FingerprintMismatch, Ledger, TermsError
from tacit.noise.keys import Key
from tacit.sgd import AdaptiveClipping, CheckpointError, DPAdam, PrivacyWarning, clipped_grad
from tacit.sgd.hooked.draws import PrivateBatches, Spent
from tacit.sgd.hooked.loop import Loop
from tacit.sgd.hooked.prepaid import check_terms
from tacit.sgd.hooked.prepaid import recognised as loop_recognised
from tacit.sgd.sharding.shards import Place, add_noise_
from tacit.sgd.training.canaries import AuditedTraining, Planted
from tacit.sgd.training.data import records
from tacit.sgd.training.plan import _pure, make_plan
from tacit.sgd.training.sampling import Chunks, Poisson, run_length
from tacit.sgd.training.validation import check_ledger, recognised, warn_about
from tests.training.common import LOSS, data, finish, key, network, run

POISSON = Poisson(size=100, batch_size=10)


def plan(**more):
    usual = {"steps": 2, "epsilon": None, "noise_multiplier": 1.0, "clip_norm": 1.0, "delta": 1e-5}
    return make_plan(POISSON, adjacency="add-remove", elements=10, **(usual | more))


def parameter():
    return [nn.Parameter(torch.zeros(2))]


def book(**terms):
    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-4, **terms)
    return ledger


class Unread(Dataset):
    """Items that hold something no fingerprint covers."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return object()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DPAdam(parameter(), lr=-1.0), "must not be negative"),
        (lambda: DPAdam(parameter(), floor=0.0), "floor must be positive"),
        (lambda: DPAdam(parameter(), betas=(0.9, 1.0)), "betas"),
        (lambda: AdaptiveClipping(count_noise=-1.0), "count_noise"),
        (lambda: AdaptiveClipping(count_noise=math.inf), "count_noise"),
        (lambda: plan(clip_norm=0.0), "clip_norm must be positive"),
        (lambda: dataclasses.replace(plan(), clip=(1.0, -1.0)), "clip_norm must be positive"),
        (lambda: run_length(0, None, POISSON), "positive whole number"),
        (lambda: run_length(2, 3, POISSON), "either"),
        (lambda: run_length(None, None, POISSON), "either"),
        (lambda: run_length(None, 1.5, POISSON), "positive whole number"),
        (lambda: Spent(POISSON).price(0.0), "strictly between"),
        (lambda: Spent(POISSON).price(1.0), "strictly between"),
        (lambda: run(sampler="shuffle", size=1000), "true number of units"),
        (lambda: run(sampler="truncated", size=50), "below the number of units"),
        (lambda: check_ledger(book(size_public=False), "people", None, "record", None), "is private: give size="),
    ],
)
def test_terms_that_would_break_the_price_are_refused(make, words):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        with pytest.raises(ValueError, match=words):
            make()


@pytest.mark.parametrize("noise", [-0.5, math.nan, math.inf])
def test_a_loop_has_a_number_for_its_noise(noise):
    model = network()
    batches = PrivateBatches(POISSON, key(), 100)
    with pytest.raises(ValueError, match="finite and not negative"):
        Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), batches, noise_multiplier=noise, clip_norm=1.0)


def test_a_pure_price_is_for_an_adjacency_that_is_stated():
    with pytest.raises(acc.AdjacencyError, match="no guarantee under"):
        _pure(acc.PureDP(1.0, adjacency="replace-one"), "add-remove")


def test_a_loop_that_protects_records_is_not_charged_for_people():
    with pytest.raises(TermsError, match="this loop protects one record"):
        check_terms(book(unit="person"), "people", "add-remove")


def test_data_that_cannot_be_compared_are_refused_where_a_fingerprint_is_registered():
    ledger = Ledger()
    ledger.register("people", fingerprint=ledger.fingerprint({"age": [1, 2]}), epsilon=1.0, delta=0.0)
    with pytest.raises(FingerprintMismatch, match="registered with a fingerprint"):
        loop_recognised(ledger, "people", Unread())
    unscanned = records(data())
    unscanned.scan = False
    unscanned.registered_as = lambda secret: None  # as a data set has it whose items are drawn anew each time
    with pytest.raises(FingerprintMismatch, match="registered with a fingerprint"):
        recognised(ledger, "people", unscanned, None)


def test_one_step_without_noise_is_told():
    for noise, told in (((1.0, 0.0), True), ((1.0, 0.5), False)):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            warn_about(dataclasses.replace(plan(), noise=noise, clip=(1.0, 1.0)), 100, 1)
        assert any("NO privacy guarantee" in str(one.message) for one in seen) == told


def test_chunks_without_the_last_one_are_as_many_as_are_full():
    batches = PrivateBatches(Chunks(size=103, batch_size=10), key(), 103)
    batches.drop_last = True
    assert batches.steps == 10
    assert len(list(batches)) == 10


# -- batches and keys ----


def test_a_batch_is_used_once_and_in_its_turn():
    training = run(steps=3)
    first = next(iter(training))
    training.step(first)
    with pytest.raises(RuntimeError, match="handed out last"):
        training.step(first)
    assert training.steps_executed == 1
    next(iter(training))
    with pytest.raises(RuntimeError, match="handed out last"):
        training.step(training.draw(1))
    assert training.steps_executed == 1


def test_a_run_that_ended_is_not_saved_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    training = run(steps=2, checkpoint=tmp_path / "run.ckpt", key=None)
    finish(training)
    with pytest.raises(RuntimeError, match="has ended"):
        training.save()


def test_a_charge_that_is_used_up_begins_no_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ledger = book()
    training = run(steps=2, ledger=ledger, dataset="people", noise_multiplier=4.0)
    number = ledger.charge("people", training.plan.mechanism, delta=training.plan.delta, data=training.data_name)
    number.confirm()
    with pytest.raises(CheckpointError, match="used up"):
        training._pay(ledger, "people", number.number)


def test_the_key_of_another_run_is_not_destroyed(tmp_path):
    left = tmp_path / "other.key"
    other = Key.generate()
    other.save(left)
    with pytest.raises(CheckpointError, match="another run"):
        run(steps=2)._discard_key({"key_file": str(left), "key": "of this run"})
    assert Key.load(left).fingerprint() == other.fingerprint()


def test_every_step_of_a_sharded_run_has_its_own_noise():
    class Shards:
        places = {  # noqa: RUF012
            "whole": Place(torch.zeros(4, 6), torch.zeros(4, 6), (0, 0), (4, 6)),
            "block": Place(torch.zeros(4, 6), torch.zeros(4, 6), (0, 3), (4, 3)),
        }

    assert [place.is_range for place in Shards.places.values()] == [True, False]
    drawn = []
    for step in (0, 1):
        sums = {name: torch.zeros(place.sizes) for name, place in Shards.places.items()}
        add_noise_(Shards, sums, key(), step, 1.0)
        drawn.append(sums)
    for name in Shards.places:
        assert not torch.isclose(drawn[0][name], drawn[1][name]).any()


def test_pieces_of_a_batch_are_clipped_as_the_whole():
    model, (x, y) = network(), data(30)
    whole, pieces = (clipped_grad(model, LOSS, (x, y), clip_norm=0.1, microbatch=size) for size in (None, 8))
    assert torch.allclose(whole.scale, pieces.scale)
    assert torch.allclose(whole.norms, pieces.norms)
    assert (pieces.norms * pieces.scale.squeeze() <= 0.1 * (1 + 1e-6)).all()


# -- canaries ----


def audited(canaries=20, source=None, **more):
    model = network()
    usual = {"batch_size": 20, "steps": 30, "noise_multiplier": 1.0, "delta": 1e-5, "key": key(), "clip_norm": 0.1}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return AuditedTraining(model, optimizer, LOSS, source or data(), canaries=canaries, **(usual | more))


@pytest.fixture(scope="module")
def planted() -> tuple[AuditedTraining, Planted]:
    training = audited()
    finish(training)
    return training, training.planted()


def test_the_record_of_canaries_holds_every_step_and_every_canary(planted):
    training, kept = planted
    assert kept.choices.shape == (30, 20)
    assert kept.steps == training.steps_executed == 30
    # a canary is drawn as often as any record: 30 steps at 20 of 140, each once in a million runs further away
    assert 30 < kept.choices.sum() < 150


def test_the_residuals_of_canaries_are_of_size_one_at_any_clip_norm(planted):
    _, kept = planted
    # 600 numbers of variance 1: their mean square leaves (0.7, 1.35) less than once in a million times
    assert 0.7 < float((kept.residuals.astype(np.float64) ** 2).mean()) < 1.35


def test_a_score_that_is_no_number_is_no_evidence(planted):
    training, _ = planted
    training._found[3] = math.nan
    assert training.planted().scores[3] == 0.0


@pytest.mark.parametrize("wrong", ["steps", "columns", "kind", "flat"])
def test_a_record_that_no_run_leaves_is_refused(planted, tmp_path, wrong):
    _, kept = planted
    z = kept.residuals
    bad = {"steps": z[:-1], "columns": np.hstack([z, z]), "kind": z.astype(np.int32), "flat": z.ravel()}[wrong]
    path = dataclasses.replace(kept, residuals=bad).save(tmp_path / "canaries.npz")
    with pytest.raises(ValueError, match="residuals are one row"):
        Planted.load(path)
    assert Planted.load(kept.save(Path(tmp_path / "good.npz"))).steps == 30


def test_canaries_that_are_not_finite_or_not_single_records_are_refused():
    x, y = data(10)
    x[3, 1] = math.nan
    with pytest.raises(ValueError, match="finite"):
        audited((x, y))
    with pytest.raises(ValueError, match="single records"):
        audited(data(10), groups=np.arange(120), unit="person")
