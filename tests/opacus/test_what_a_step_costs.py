"""A step of a loop that somebody else wrote has the noise that its price says, also where its clip norm moves."""

from __future__ import annotations

import math
import types

import pytest
import torch
from tests.opacus.harness import private
from torch.utils.data import TensorDataset

from tacit import accounting as acc
from tacit.noise.keys import Key
from tacit.opacus import PrivacyEngine
from tacit.opacus.accountants import create_accountant
from tacit.opacus.data_loader import DPDataLoader
from tacit.sgd.hooked.draws import PrivateBatches, Spent
from tacit.sgd.training.sampling import Poisson, Shuffle

WIDE, ROWS, BATCH = 6_000, 40, 20


def steps_of_known_gradient(count_noise, rate, clip, gradient, steps=5):
    """The gradient of every record lies along the first coordinate, so that all others hold nothing but noise."""
    model = torch.nn.Linear(WIDE, 1, bias=False)
    rows = torch.zeros(ROWS, WIDE)
    rows[:, 0] = gradient
    options = {
        "clipping": "adaptive",
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": rate,
        "max_clipbound": 1e6,
        "min_clipbound": 1e-6,
        "unclipped_num_std": count_noise,
    }
    _, optimizer, loader = private(
        model, TensorDataset(rows), batch_size=BATCH, noise=1.0, clip=clip, lr=0.0, **options
    )
    found = []
    while len(found) < steps:
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            bound = optimizer.max_grad_norm
            optimizer.step()
            grad = model.weight.grad[0]
            told = optimizer.loop.inside_fraction
            found.append((float(bound), len(x), float(grad[0]), float(grad[1:].std()), told, optimizer.max_grad_norm))
    return optimizer, found


@pytest.mark.parametrize(("rate", "gradient"), [(1.5, 1e4), (1.5, 0.0)])  # the clip norm grows, and shrinks
def test_the_noise_of_an_adaptive_step_pays_for_its_count_and_follows_the_clip_norm(rate, gradient):
    # With noise 0.6 on the count, the gradient alone needs 1.81 for both to have the multiplier 1 that is charged.
    optimizer, found = steps_of_known_gradient(0.6, rate, clip=2.0, gradient=gradient)
    own = 1 / math.sqrt(1 - 1 / (2 * 0.6) ** 2)
    assert {part for part, _ in optimizer.loop.spent.mechanism.parts()} == {
        Poisson(ROWS, BATCH).sampled(acc.Gaussian(1.0))
    }
    six = 6 / math.sqrt(2 * (WIDE - 1))  # once in a billion
    for bound, rows, first, spread, _, after in found:
        assert spread == pytest.approx(own * bound / BATCH, rel=six)
        clipped = rows * min(gradient, bound) / BATCH
        assert first == pytest.approx(clipped, abs=6.2 * own * bound / BATCH)
        assert (after > bound) == (gradient > 0)
    assert max(one[0] for one in found) / min(one[0] for one in found) > 4


def test_the_fraction_that_moves_the_clip_norm_is_noisy():
    # All records lie inside, so the fraction is exactly 1 but for the noise and the size of the draw.
    _, found = steps_of_known_gradient(30.0, 1e-6, clip=2.0, gradient=1e-3, steps=120)
    noise = torch.tensor([(told - 0.5) * BATCH - rows / 2 for _, rows, _, _, told, _ in found])
    assert float(noise.std()) == pytest.approx(30.0, rel=6 / math.sqrt(2 * len(noise)))
    assert len(noise.unique()) == len(noise)  # every step draws anew


def test_a_noise_level_that_comes_back_is_counted_with_its_earlier_steps():
    spent, sampler = Spent(Poisson(1000, 10)), Poisson(1000, 10)
    for noise, times in ((1.0, 3), (2.0, 2), (1.0, 4), (2.0, 1)):
        for _ in range(times):
            spent.add(noise)
    one, two = (sampler.sampled(acc.Gaussian(noise)) for noise in (1.0, 2.0))
    assert dict(spent.mechanism.parts()) == {one: 7, two: 3}
    assert len(spent) == 10
    assert spent.price(1e-5).upper >= acc.epsilon(one * 7 + two * 3, 1e-5).lower


def test_a_shuffled_pass_costs_its_least_noise_however_often_a_level_comes_back():
    sampler = Shuffle(100, 25)
    spent = Spent(sampler)
    for number, noise in enumerate((4.0, 2.0, 4.0, 4.0, 8.0, 8.0, 4.0, 4.0)):
        spent.add(noise, passes={number // 4})
    wanted = {sampler.describe([acc.Gaussian(2.0)]): 1, sampler.describe([acc.Gaussian(4.0)]): 1}
    assert dict(spent.mechanism.parts()) == {part: n for one, k in wanted.items() for part, n in (one * k).parts()}


@pytest.mark.parametrize("parts", [2, 5])
def test_the_pieces_of_an_accumulated_batch_are_one_draw(parts):
    # Priced is one draw of 60 out of 100. Pieces drawn alone would hold a record twice, and it would count twice.
    batches = PrivateBatches(Poisson(100, 60), Key(bytes(range(32))), 100, parts=parts)
    sizes = []
    for _ in range(20):
        pieces = list(batches)
        assert len(pieces) == parts * batches.steps
        for start in range(0, len(pieces), parts):
            whole = [record for piece in pieces[start : start + parts] for record in piece]
            assert len(whole) == len(set(whole))
            sizes.append(len(whole))
    assert [piece.draw for piece in batches.handed] == sorted(piece.draw for piece in batches.handed)
    assert {sum(p.last for p in batches.handed if p.draw == one.draw) for one in batches.handed} == {1}
    off = sum(sizes) / len(sizes) - 60
    assert abs(off) < 5.5 * math.sqrt(24 / len(sizes))


def test_a_hook_of_an_accountant_notes_the_noise_of_the_optimizer():
    accountant = create_accountant("rdp")
    hook = accountant.get_optimizer_hook_fn(sample_rate=0.25)
    for noise in (2.0, 2.0, 1.0):
        hook(types.SimpleNamespace(noise_multiplier=noise))
    assert accountant.history == [(2.0, 0.25, 2), (1.0, 0.25, 1)]
    wanted = acc.PoissonSampled(acc.Gaussian(2.0), 0.25) * 2 + acc.PoissonSampled(acc.Gaussian(1.0), 0.25)
    assert accountant.get_epsilon(1e-5) >= acc.epsilon(wanted, 1e-5).lower


def test_an_adapted_clip_norm_comes_back_with_a_checkpoint_within_its_range(tmp_path):
    options = {"clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.5}
    options |= {"max_clipbound": 10.0, "min_clipbound": 0.5, "unclipped_num_std": 4.0}
    dataset = TensorDataset(torch.randn(48, 6), torch.randint(3, (48,)))
    model = torch.nn.Linear(6, 3)
    engine, optimizer, _ = private(model, dataset, noise=1.0, clip=1.0, **options)
    for kept in (2.5, 0.75):
        optimizer.loop.clip_norm = kept
        engine.save_checkpoint(path=tmp_path / "c.pt", module=model, optimizer=optimizer)
        other = torch.nn.Linear(6, 3)
        again, its_own, _ = private(other, dataset, noise=1.0, clip=1.0, **options)
        again.load_checkpoint(path=tmp_path / "c.pt", module=other, optimizer=its_own)
        assert its_own.loop.clip_norm == kept
    narrow = options | {"max_clipbound": 0.6}
    other = torch.nn.Linear(6, 3)
    again, its_own, _ = private(other, dataset, noise=1.0, clip=0.6, **narrow)
    again.load_checkpoint(path=tmp_path / "c.pt", module=other, optimizer=its_own)
    assert its_own.loop.clip_norm == 0.6


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_a_sampling_rate_is_a_probability(rate):
    with pytest.raises(ValueError, match="sample_rate"):
        DPDataLoader(TensorDataset(torch.zeros(8, 2)), sample_rate=rate)


def test_noise_that_somebody_can_repeat_and_bounds_that_nobody_uses_are_refused():
    dataset = TensorDataset(torch.zeros(8, 2), torch.zeros(8, dtype=torch.long))
    model = torch.nn.Linear(2, 3)
    with pytest.raises(ValueError, match="noise_generator"):
        private(model, dataset, noise=1.0, engine=PrivacyEngine(secure_mode=True), noise_generator=torch.Generator())
    for clipping in ("flat", "automatic"):
        with pytest.raises(ValueError, match="needs clipping='per_layer'"):
            private(model, dataset, noise=1.0, clip=[1.0, 1.0], clipping=clipping)
