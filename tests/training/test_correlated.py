"""Runs with correlated noise: what is released, what it costs, and what happens when a run is stopped or killed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tacit import accounting as acc
from tacit import sgd
from tacit.accounting.correlated import Correlation
from tacit.audit.record import check_record, mechanism_of
from tacit.noise import Key, normal
from tacit.selftest.ranks import on_ranks, possible
from tacit.sgd.release import EarlierNoise
from tacit.sgd.training.canaries import AuditedTraining
from tacit.sgd.training.sampling import CyclicPoisson


def training(noise, *, steps=12, model=None, still=False, kind=sgd.Training, **options):
    """A run on 400 records. With ``still`` the gradients are zero, so that the weights are noise alone."""
    generator = torch.Generator().manual_seed(3)
    x = torch.zeros(400, 5) if still else torch.randn(400, 5, generator=generator)
    y = torch.randn(400, generator=generator)
    if model is None:
        model = nn.Linear(5, 1, bias=False)
        nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.pop("lr", 1.0))

    def loss(model, batch):
        return F.mse_loss(model(batch[0]).squeeze(1), batch[1], reduction="none")

    settings = {"batch_size": 20, "steps": steps, "delta": 1e-5, "noise_multiplier": 2.0, "clip_norm": 0.5}
    settings |= {"compile": False} | options
    return kind(model, optimizer, loss, (x, y), noise=noise, **settings)


def run(training):
    for batch in training:
        training.step(batch)
    return training


@pytest.mark.parametrize(
    ("noise", "options"),
    [
        (sgd.Banded(bands=4), {}),
        (sgd.Banded(bands=4), {"sampler": "chunks"}),
        (sgd.BandedInverse(bands=4), {"sampler": "chunks"}),
        (sgd.Banded(bands=1), {}),
    ],
)
def test_the_released_noise_is_what_the_plan_prices(noise, options):
    """Weights of a model without gradients: seen through C they are the key's noise, of the stated deviation."""
    run_ = training(noise, still=True, key=Key(bytes(range(32)), repeatable=True), **options)
    correlation, plan, steps = run_.plan.correlation, run_.plan, 12
    weights = [run_.model.weight.detach().clone()]
    for batch in run_:
        run_.step(batch)
        weights.append(run_.model.weight.detach().clone())
    x = torch.stack([(before - after).flatten() for before, after in itertools.pairwise(weights)]).double().numpy() * 20
    column = correlation.column(steps)
    seen = np.array([sum(column[j] * x[t - j] for j in range(t + 1)) for t in range(steps)])
    key = Key(bytes(range(32)), repeatable=True).derive("noise")
    z = np.array([normal(key, step, "weight", 5).numpy() for step in range(steps)])
    moved = 1.0
    if correlation.inverse:  # a unit may be in the run once, because one pass is longer
        moved = math.sqrt(correlation.squared_sensitivity(steps))
    assert seen == pytest.approx(2.0 * 0.5 * moved * z, abs=1e-4)
    assert plan.mechanism == run_.privacy.mechanism


def test_a_run_costs_what_the_theorem_says():
    price = training(sgd.Banded(bands=4), steps=10).privacy
    parts = dict(price.mechanism.parts())
    assert parts.pop(acc.CyclicPoissonSampled(acc.Gaussian(2.0), 4 * 20 / 400, 4)) == 3
    assert all(isinstance(part, acc.ApproxDP) for part in parts)  # the tail of the generator
    assert price.upper == pytest.approx(acc.epsilon(acc.PoissonSampled(acc.Gaussian(2.0), 0.2) * 3, 1e-5).upper, 1e-6)


def test_passes_over_data_in_order_cost_one_release_each():
    once = training(sgd.Banded(bands=16), steps=20, sampler="chunks").privacy
    assert once.upper == pytest.approx(acc.epsilon(acc.Gaussian(2.0), 1e-5, adjacency="zero-out").upper, rel=1e-6)
    thrice = training(sgd.Banded(bands=16), steps=41, sampler="chunks").privacy
    assert thrice.upper == pytest.approx(acc.epsilon(acc.Gaussian(2.0) * 3, 1e-5, adjacency="zero-out").upper, rel=1e-6)
    whole = training(sgd.BandedInverse(bands=4), steps=41, sampler="chunks")
    assert whole.privacy.upper == pytest.approx(once.upper, rel=1e-6)
    assert whole.noise_at(0).scale > math.sqrt(3) * 2.0 * 0.5  # and has the noise for it


def test_an_epsilon_is_kept_and_the_bands_are_chosen_for_it():
    many = training(sgd.Banded(), epsilon=8.0, noise_multiplier=None, steps=200)
    assert many.plan.correlation.bands > 1
    assert many.plan.sampler.groups == many.plan.correlation.bands
    assert 7.9 < many.privacy.upper <= 8.0
    assert "correlated over" in str(many.privacy)
    few = training(sgd.Banded(), epsilon=0.05, noise_multiplier=None, steps=20)
    assert (few.plan.correlation.bands, few.plan.sampler.name) == (1, "poisson")


def test_a_run_that_is_stopped_early_claims_the_rounds_it_began():
    for executed, rounds in ((4, 1), (5, 2), (9, 3)):
        stopped = training(sgd.Banded(bands=4), steps=40)
        for _, batch in zip(range(executed), stopped, strict=False):
            stopped.step(batch)
        stopped.stop("the machine was needed", looked_at_results=False)
        counts = [n for part, n in stopped.privacy.mechanism.parts() if isinstance(part, acc.CyclicPoissonSampled)]
        assert counts == [rounds]


@pytest.mark.parametrize(
    ("noise", "options"), [(sgd.Banded(bands=4), {}), (sgd.BandedInverse(bands=4), {"sampler": "chunks"})]
)
def test_a_killed_run_goes_on_with_the_same_noise(tmp_path, noise, options):
    """Noise drawn anew after a resume would show both what a step hid and what it took back."""
    key = Key(bytes(range(32)), repeatable=True)
    whole = run(training(noise, key=key, **options)).model.weight.detach()
    place = {"checkpoint": tmp_path / "run.pt", "checkpoint_every": 1, "key": key}
    killed = training(noise, **place, **options)
    for _, batch in zip(range(7), killed, strict=False):
        killed.step(batch)
    del killed
    again = training(noise, **place, **options)
    assert again.steps_executed == 7
    assert torch.equal(run(again).model.weight.detach(), whole)


def test_a_checkpoint_holds_no_noise(tmp_path):
    """Earlier noise lies in memory only: with it, somebody who saw the weights would know the sums."""
    kept = training(sgd.Banded(bands=4), checkpoint=tmp_path / "run.pt", checkpoint_every=1)
    for _, batch in zip(range(6), kept, strict=False):
        kept.step(batch)
    content = (tmp_path / "run.pt").read_bytes()
    for found in kept._earlier._kept.values():
        assert found["weight"].numpy().tobytes() not in content


def test_everybody_takes_part_at_most_once_in_a_round():
    """A group sampled twice a round would move the released sequence by more than is priced."""
    sampler, key, counts = CyclicPoisson(2000, 100, 5), Key(bytes(range(32))), np.zeros(2000)
    drawn = [sampler.draw(key, step, 2000) for step in range(200)]
    for start in range(0, 200, 5):
        here = np.concatenate(drawn[start : start + 5])
        assert len(here) == len(set(here.tolist()))
    last = np.full(2000, -5)
    for step, rows in enumerate(drawn):
        assert (step - last[rows] >= 5).all()
        last[rows] = step
        counts[rows] += 1
    # each takes part with probability 5 · 100/2000 in 40 rounds
    assert abs(counts.sum() - 2000 * 10) < 6 * math.sqrt(2000 * 40 * 0.25 * 0.75)
    assert counts.max() <= 40


def test_groups_depend_on_no_data():
    """Another record more, or other data, moves nobody else to another group, or another draw."""
    sampler, key = CyclicPoisson(2000, 100, 5), Key(bytes(range(32)))
    for step in range(10):
        fewer = sampler.draw(key, step, 1500)
        assert set(fewer.tolist()) == {row for row in sampler.draw(key, step, 2000).tolist() if row < 1500}


def test_all_rows_of_a_person_are_in_one_group():
    owners = np.repeat(np.arange(100), 4)
    owned = training(sgd.Banded(bands=5), groups=owners, max_rows=2, batch_size=10, steps=50)
    met: dict[int, list[int]] = {}
    for batch in owned:
        for row in np.unique(owners[np.asarray(batch.rows).reshape(len(batch.rows), -1)[:, 0]]):
            met.setdefault(int(row), []).append(batch.step)
        owned.step(batch)
    assert met
    assert all(b - a >= 5 for steps in met.values() for a, b in itertools.pairwise(sorted(steps)))


@pytest.mark.parametrize(
    ("noise", "options", "words"),
    [
        (sgd.Banded(bands=4), {"sampler": "shuffle"}, "needs as many steps"),
        (sgd.Banded(bands=4), {"sampler": "balls-in-bins"}, "needs as many steps"),
        (sgd.Banded(bands=4), {"sampler": "fixed"}, "needs as many steps"),
        (sgd.Banded(bands=30), {}, "at most 20 groups"),
        (sgd.Banded(), {}, "give epsilon="),
        (sgd.BandedInverse(), {}, "use sampler='chunks'"),
        (sgd.BandedInverse(bands=1), {}, "use sampler='chunks'"),
        (sgd.BandedInverse(), {"sampler": "shuffle"}, "use sampler='chunks'"),
        (sgd.Banded(bands=4), {"adaptive": sgd.AdaptiveClipping()}, "one noise multiplier and one clip norm"),
        (sgd.Banded(bands=4), {"noise_schedule": lambda step: 1.0 + step}, "one noise multiplier and one clip norm"),
        (sgd.Banded(bands=4), {"clip_norm": [1.0] * 11 + [0.5]}, "one noise multiplier and one clip norm"),
        (sgd.Banded(bands=4), {"sampler": "cyclic"}, "comes with noise="),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused(noise, options, words):
    with pytest.raises(ValueError, match=words):
        training(noise, **options)


def test_other_refusals():
    with pytest.raises(acc.AdjacencyError, match="there or not"):
        training(sgd.Banded(bands=4), adjacency="replace-one").privacy
    with pytest.raises(TypeError, match="Banded"):
        training("banded")
    with pytest.raises(ValueError, match="canaries"):
        training(sgd.BandedInverse(bands=4), steps=41, sampler="chunks", kind=AuditedTraining, canaries=3)
    plan = training(sgd.Banded(bands=4)).plan
    with pytest.raises(ValueError, match="norm 1"):
        dataclasses.replace(plan, correlation=Correlation((2.0, 1.0)))


def test_the_noise_in_the_weights_is_less_than_that_of_dp_sgd():
    """At equal ε, over 20,000 numbers: the prediction holds for what is released."""

    def spread(noise):
        wide = nn.Linear(5, 4000, bias=False)
        nn.init.zeros_(wide.weight)
        generator = torch.Generator().manual_seed(0)
        data = torch.zeros(4000, 5), torch.randn(4000, generator=generator)
        optimizer = torch.optim.SGD(wide.parameters(), lr=1.0)
        made = sgd.Training(
            wide, optimizer, lambda m, b: m(b[0]).sum(1) * 0.0 + b[1] * 0.0, data,
            batch_size=40, steps=60, epsilon=8.0, delta=1e-5, noise=noise, compile=False,
        )  # fmt: skip
        squares = 0.0
        for batch in made:
            made.step(batch)
            squares += float(wide.weight.detach().square().mean())
        return math.sqrt(squares)

    predicted = acc.choose_bands(4000, 40, 60, epsilon=8.0, delta=1e-5)[0].error
    assert predicted < 0.8
    assert spread(sgd.Banded()) / spread(None) == pytest.approx(predicted, rel=0.1)


def audited(noise, *, steps=240, wide=200, **options):
    """A run with a canary for every weight, and what its record says, worst first."""
    model = nn.Linear(5, wide, bias=False)
    options |= {"kind": AuditedTraining, "canaries": model.weight.numel()}
    made = training(noise, steps=steps, model=model, key=Key(bytes(range(32)), repeatable=True), **options)
    made.loss = made.loss_of_units = lambda model, batch: model(batch[0]).square().sum(1)
    return run(made).planted()


def worst(planted):
    findings = check_record(planted, mechanism_of(planted))
    return min(findings, key=lambda finding: finding.p_value)


@pytest.mark.parametrize(
    ("noise", "options"),
    [
        (sgd.Banded(bands=4), {}),
        (sgd.Banded(bands=4), {"sampler": "chunks", "steps": 150}),
        (sgd.BandedInverse(bands=4), {"sampler": "chunks", "steps": 60}),
    ],
)
def test_canaries_see_correlated_noise_as_it_is_claimed(noise, options):
    assert worst(audited(noise, **options)).p_value > 1e-7


def test_canaries_see_that_noise_is_independent_which_is_priced_as_correlated(monkeypatch):
    monkeypatch.setattr(EarlierNoise, "of", classmethod(lambda cls, correlation, steps: None))
    found = worst(audited(sgd.Banded(bands=4)))
    assert found.p_value < 1e-9
    assert "noise" in found.check


def test_canaries_see_that_a_group_is_sampled_twice_a_round(monkeypatch):
    plain = CyclicPoisson.draw
    monkeypatch.setattr(CyclicPoisson, "draw", lambda self, key, step, units: plain(self, key, step % 2, units))
    assert worst(audited(sgd.Banded(bands=4), steps=40)).p_value < 1e-9


@pytest.mark.parametrize(
    ("noise", "options"), [(sgd.Banded(bands=4), {}), (sgd.Banded(bands=4), {"sampler": "chunks"})]
)
def test_scores_of_canaries_tell_who_was_drawn(noise, options):
    """Hardly any noise: whoever was drawn is seen, also in the last steps, whose columns of C are cut off."""
    planted = audited(noise, steps=56, batch_size=100, noise_multiplier=0.05, **options)
    taken = planted.choices.any(0)
    right = (planted.scores > 0) == planted.member
    assert right[taken].mean() > 0.99


def released(noise, options, *, sharded=False):
    """The noise of each step of a run without gradients, whole, wherever its pieces lay."""
    model = nn.Linear(5, 7, bias=False)
    nn.init.zeros_(model.weight)
    if sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    made = training(noise, steps=9, still=True, model=model, key=Key(bytes(range(32)), repeatable=True), **options)
    made.loss = made.loss_of_units = lambda model, batch: model(batch[0]).sum(1)
    pieces = []
    made.optimizer.register_step_pre_hook(lambda optimizer, *_: pieces.append(model.weight.grad))
    with warnings.catch_warnings(action="ignore"):
        run(made)
    return torch.stack([p.full_tensor() if hasattr(p, "full_tensor") else p for p in pieces])


@pytest.mark.skipif(not possible(), reason="needs torch.distributed and fork")
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_sharding_has_the_same_noise_bit_for_bit(world):
    kinds = [(sgd.Banded(bands=4), {}), (sgd.BandedInverse(bands=4), {"sampler": "chunks"})]
    alone = [released(*kind) for kind in kinds]
    assert all(bool(noise.any()) for noise in alone)

    def work(rank):
        return [released(*kind, sharded=sharded).numpy() for kind in kinds for sharded in (False, True)]

    for found in on_ranks(world, work, timeout=200.0):
        for one, expected in zip(found, (alone[0], alone[0], alone[1], alone[1]), strict=True):
            assert np.array_equal(one, expected.numpy())
