"""What is charged, to the accountant of Opacus' interface, is what ran."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.opacus.harness import data, net, private
from torch.utils.data import DataLoader

from tacit import accounting as acc
from tacit.opacus import PrivacyEngine
from tacit.opacus.accountants import create_accountant
from tacit.opacus.schedulers import ExponentialGradClip, ExponentialNoise, LambdaNoise, StepNoise
from tacit.sgd import PrivacyWarning
from tacit.sgd.training.checkpoint import CheckpointError


def train(model, optimizer, loader, epochs=1, limit=None):
    for _ in range(epochs):
        for k, (x, y) in enumerate(loader):
            if limit is not None and k >= limit:
                break
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def test_the_rate_is_batch_size_over_records_and_not_one_over_batches():
    # 50 records in batches of 16 are four batches: Opacus charges 1/4 and divides by 12.
    model = net()
    engine, optimizer, loader = private(model, data(50), batch_size=16, noise=1.0)
    assert len(loader) == 4
    assert loader.sample_rate == 16 / 50
    assert optimizer.expected_batch_size == 16
    train(model, optimizer, loader)
    assert engine.accountant.history == [(1.0, 16 / 50, 4)]


def test_poisson_batches_have_the_rate_that_is_charged():
    _, _, loader = private(net(), data(500), batch_size=50)
    sizes = torch.tensor([float(len(x)) for _ in range(40) for x, _ in loader])
    # Six standard deviations each. Batches of one size have variance 0.
    assert abs(float(sizes.mean()) - 50) < 6 * math.sqrt(45 / len(sizes))
    assert abs(float(sizes.var()) - 45) < 6 * 45 * math.sqrt(2 / len(sizes))


def passes(noise, *, shuffle, batch_size=8, records=48):
    model, engine = net(), PrivacyEngine()
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data(records), batch_size=batch_size, shuffle=shuffle),
        noise_multiplier=noise,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    return model, engine, *made[1:]


def test_passes_over_a_shuffling_loader_are_balls_in_bins_and_priced_as_such():
    model, engine, optimizer, loader = passes(4.0, shuffle=True)
    assert len(loader) == 6
    rounds = [[sorted(x[:, 0].tolist()) for x, _ in loader] for _ in range(3)]
    everybody = sorted(data(48).tensors[0][:, 0].tolist())
    for batches in rounds:  # each record once in each pass, bins drawn anew
        assert sorted(value for batch in batches for value in batch) == everybody
    assert rounds[0] != rounds[1] != rounds[2]
    assert len({len(batch) for batches in rounds for batch in batches}) > 1
    train(model, optimizer, loader, epochs=2)
    run = engine.accountant.spent
    assert run == acc.BallsInBins(acc.Gaussian(4.0), 6) * 2
    assert engine.get_epsilon(1e-5) == pytest.approx(acc.epsilon(run, 1e-5).upper, rel=1e-4)
    assert engine.get_epsilon(1e-5) < 0.8 * acc.epsilon(acc.Gaussian(4.0) * 2, 1e-5).upper


def test_bins_that_are_added_up_under_one_noise_are_fewer_bins():
    model, engine, optimizer, loader = passes(2.0, shuffle=True)
    for _ in range(2):
        for number, (x, y) in enumerate(loader):
            F.cross_entropy(model(x), y).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    assert engine.accountant.spent == acc.BallsInBins(acc.Gaussian(2.0), 3) * 2


def test_passes_in_a_fixed_order_are_priced_without_amplification():
    with pytest.warns(PrivacyWarning, match="no amplification"):
        model, engine, optimizer, loader = passes(4.0, shuffle=False)
    seen = [len(x) for x, _ in loader]
    assert seen == [8] * 6
    train(model, optimizer, loader, epochs=2)
    wanted = acc.epsilon(acc.Gaussian(4.0) * 2, 1e-5).upper
    assert engine.get_epsilon(1e-5) == pytest.approx(wanted, rel=1e-6)
    assert engine.accountant.bound(1e-5).adjacency == "zero-out"
    # A pass that is left early may have met anybody, and the next pass meets them again.
    train(model, optimizer, loader, epochs=2, limit=1)
    wanted = acc.epsilon(acc.Gaussian(4.0) * 4, 1e-5).upper
    assert engine.get_epsilon(1e-5) == pytest.approx(wanted, rel=1e-6)


def test_a_budget_is_kept_to_the_last_step():
    model, engine = net(), PrivacyEngine(accountant="rdp")
    _, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data(50), batch_size=8),
        target_epsilon=2.0,
        target_delta=1e-4,
        epochs=3,
        max_grad_norm=1.0,
    )
    train(model, optimizer, loader, epochs=3)
    assert 1.99 < engine.get_epsilon(1e-4) <= 2.0


def test_schedulers_of_noise_are_seen_by_the_accountant():
    model = net()
    engine, optimizer, loader = private(model, data(48), batch_size=16, noise=2.0)
    schedule = ExponentialNoise(optimizer, gamma=0.5)
    clip = ExponentialGradClip(optimizer, gamma=0.5)
    for _ in range(3):
        train(model, optimizer, loader)
        schedule.step()
        clip.step()
    assert engine.accountant.history == [(2.0, 1 / 3, 3), (1.0, 1 / 3, 3), (0.5, 1 / 3, 3)]
    rate = acc.PoissonSampled(acc.Gaussian(2.0), 1 / 3) * 3
    rate = rate + acc.PoissonSampled(acc.Gaussian(1.0), 1 / 3) * 3 + acc.PoissonSampled(acc.Gaussian(0.5), 1 / 3) * 3
    assert engine.get_epsilon(1e-5) == pytest.approx(acc.epsilon(rate, 1e-5).upper, rel=1e-4)
    assert optimizer.max_grad_norm == pytest.approx(0.3 / 8)
    LambdaNoise(optimizer, noise_lambda=lambda epoch: 4.0)
    assert optimizer.noise_multiplier == 1.0
    step = StepNoise(optimizer, step_size=2, gamma=0.1)
    step.step()
    step.step()
    assert optimizer.noise_multiplier == pytest.approx(0.1)


def test_the_noise_has_the_size_that_is_charged():
    model = net()
    _, optimizer, loader = private(model, data(48), batch_size=8, noise=3.0, clip=0.5)
    values = []
    for _ in range(8):
        for x, y in loader:
            F.cross_entropy(model(x) * 0.0, y).backward()
            optimizer.step()
            values += [p.grad.flatten() for p in model.parameters()]
    noise = torch.cat(values)
    assert float(noise.std()) == pytest.approx(3.0 * 0.5 / 8, rel=6 / math.sqrt(2 * len(noise)))


def test_adaptive_clipping_moves_the_bound_and_pays_for_the_count():
    options = {
        "clipping": "adaptive",
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.5,
        "max_clipbound": 10.0,
        "min_clipbound": 0.01,
        "unclipped_num_std": 4.0,
    }
    model = net()
    engine, optimizer, loader = private(model, data(400), batch_size=80, noise=1.0, clip=8.0, lr=0.0, **options)
    train(model, optimizer, loader, epochs=6)
    norms = torch.tensor([float(n) for n in optimizer.loop._last[0]])
    inside = float((norms <= optimizer.max_grad_norm).float().mean())
    assert 0.2 < inside < 0.8
    assert engine.accountant.history == [(1.0, 0.2, 30)]
    # The gradient's own noise is larger, so that gradient and count together have the multiplier that is charged.
    own = optimizer.loop.adaptive.gradient_noise(1.0)
    assert own > 1.0
    assert own**-2 + (2 * 4.0) ** -2 == pytest.approx(1.0)
    with pytest.raises(ValueError, match="count"):
        private(net(), data(), noise=9.0, **options)


def test_a_checkpoint_carries_what_was_spent(tmp_path):
    model = net()
    engine, optimizer, loader = private(model, data(48), batch_size=8, noise=1.0)
    train(model, optimizer, loader)
    engine.save_checkpoint(path=tmp_path / "c.pt", module=model, optimizer=optimizer)
    spent = engine.get_epsilon(1e-5)
    other = net(seed=5)
    again, again_optimizer, again_loader = private(other, data(48), batch_size=8, noise=1.0)
    again.load_checkpoint(path=tmp_path / "c.pt", module=other, optimizer=again_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert again.get_epsilon(1e-5) == spent
    train(other, again_optimizer, again_loader)
    assert len(again.accountant) == 12
    # Going back to a checkpoint of the same run takes nothing back: what was released stays released.
    train(model, optimizer, loader)
    engine.load_checkpoint(path=tmp_path / "c.pt", module=model, optimizer=optimizer)
    assert len(engine.accountant) == 12


def with_target(model, epsilon=2.0, epochs=2, rows=48):
    engine = PrivacyEngine()
    _, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data(rows), batch_size=8),
        target_epsilon=epsilon,
        target_delta=1e-5,
        epochs=epochs,
        max_grad_norm=0.7,
    )
    return engine, optimizer, loader


def test_what_was_asked_for_holds_after_loading_a_checkpoint_or_the_checkpoint_is_refused(tmp_path):
    path, model = tmp_path / "c.pt", net()
    engine, optimizer, loader = private(model, data(48), noise=0.6, clip=3.0)
    train(model, optimizer, loader)
    engine.save_checkpoint(path=path, module=model, optimizer=optimizer)
    before = engine.get_epsilon(1e-5)
    # A target that cannot be kept any more: nothing is loaded.
    other = net(seed=5)
    again, again_optimizer, again_loader = with_target(other)
    kept = [p.detach().clone() for p in other.parameters()]
    with pytest.raises(CheckpointError, match=r"target_epsilon=2 .* 6 steps have spent ε=9\.5.* make_private"):
        again.load_checkpoint(path=path, module=other, optimizer=again_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(kept, other.parameters(), strict=True))
    train(other, again_optimizer, again_loader, epochs=2)
    assert 1.99 < again.get_epsilon(1e-5) <= 2.0
    # A noise multiplier that was given stays, and so does the clip norm; what was spent is added.
    other = net(seed=5)
    again, again_optimizer, again_loader = private(other, data(48), noise=1.5, clip=0.3)
    with pytest.warns(PrivacyWarning, match="keeps its own") as said:
        again.load_checkpoint(path=path, module=other, optimizer=again_optimizer)
    assert ["noise_multiplier 0.6" in str(w.message) for w in said] == [True, False]
    assert (again_optimizer.noise_multiplier, again_optimizer.max_grad_norm) == (1.5, 0.3)
    train(other, again_optimizer, again_loader)
    assert sorted(again.accountant.history) == [(0.6, 1 / 6, 6), (1.5, 1 / 6, 6)]
    assert again.get_epsilon(1e-5) > before


def test_a_run_with_a_target_is_resumed_within_it_and_says_when_it_goes_beyond(tmp_path):
    path, model = tmp_path / "c.pt", net()
    engine, optimizer, loader = with_target(model)
    train(model, optimizer, loader)
    engine.save_checkpoint(path=path, module=model, optimizer=optimizer)
    other = net(seed=5)
    again, again_optimizer, again_loader = with_target(other)
    again.load_checkpoint(path=path, module=other, optimizer=again_optimizer)
    train(other, again_optimizer, again_loader)  # a warning would be an error
    assert 1.99 < again.get_epsilon(1e-5) <= 2.0
    with pytest.warns(PrivacyWarning, match="the 13th"):
        train(other, again_optimizer, again_loader, limit=1)
    assert again.get_epsilon(1e-5) > 2.0
    optimizer.noise_multiplier = 0.5
    with pytest.warns(PrivacyWarning, match=r"noise multiplier 0\.5"):
        train(model, optimizer, loader, limit=1)


def test_a_schedule_goes_on_where_it_was_from_the_value_that_was_asked_for(tmp_path):
    path = tmp_path / "c.pt"

    def scheduled(gamma=0.5):
        model = net()
        engine, optimizer, _ = private(model, data(48), noise=4.0)
        return engine, model, optimizer, ExponentialNoise(optimizer, gamma=gamma)

    engine, model, optimizer, schedule = scheduled()
    schedule.step()
    schedule.step()
    engine.save_checkpoint(path=path, module=model, optimizer=optimizer, noise_scheduler=schedule)
    again, other, again_optimizer, again_schedule = scheduled()
    again.load_checkpoint(path=path, module=other, optimizer=again_optimizer, noise_scheduler=again_schedule)
    assert again_optimizer.noise_multiplier == optimizer.noise_multiplier == 1.0
    again_schedule.step()
    assert again_optimizer.noise_multiplier == 0.5
    again, other, again_optimizer, again_schedule = scheduled(gamma=0.9)
    with pytest.raises(ValueError, match="another gamma"):
        again.load_checkpoint(path=path, module=other, optimizer=again_optimizer, noise_scheduler=again_schedule)
    assert again_optimizer.noise_multiplier == 4.0


def test_an_accountant_counts_every_state_that_it_loads_once(tmp_path):
    model = net()
    engine, optimizer, loader = private(model, data(48), noise=1.0)
    for path in ("early.pt", "late.pt"):
        train(model, optimizer, loader)
        engine.save_checkpoint(path=tmp_path / path, module=model, optimizer=optimizer)
    again = PrivacyEngine()
    for path, steps in (("early.pt", 6), ("late.pt", 12), ("early.pt", 12)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the optimizer is left out
            again.load_checkpoint(path=tmp_path / path, module=net())
        assert len(again.accountant) == steps
    one, two = create_accountant("prv"), create_accountant("prv")
    one.step(noise_multiplier=1.0, sample_rate=0.1)
    early = one.state_dict()
    one.step(noise_multiplier=1.0, sample_rate=0.1)
    two.step(noise_multiplier=2.0, sample_rate=0.1)
    for state in (early, one.state_dict(), early):
        two.load_state_dict(state)
    assert two.history == [(2.0, 0.1, 1), (1.0, 0.1, 2)]
    one.load_state_dict(early)  # its own earlier state takes nothing back
    assert len(one) == 2


def test_one_engine_for_two_data_sets_is_remarked_on():
    engine = PrivacyEngine()
    private(net(), data(), engine=engine, noise=1.0)
    with pytest.warns(PrivacyWarning, match="another data set"):
        engine.make_private(
            module=(model := net()),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data(seed=4), batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )


def test_a_seeded_generator_repeats_a_run():
    ends = []
    for _ in range(2):
        model = net()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, optimizer, loader = private(model, data(), noise=1.0, noise_generator=torch.Generator().manual_seed(7))
        train(model, optimizer, loader)
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_delta_may_come_out_of_numpy():
    accountant = create_accountant("rdp")
    accountant.step(noise_multiplier=np.float32(1.0), sample_rate=np.float64(0.01))
    delta = np.float32(1e-5)
    assert accountant.get_epsilon(delta) == accountant.get_epsilon(float(delta))
