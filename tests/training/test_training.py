"""A run does what its plan says."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from tacit import accounting as acc
from tacit.ledger import BudgetExceeded, Ledger
from tacit.noise.tensor import normal
from tacit.sgd import AdaptiveClipping, PassPerExample, PrivacyWarning, Training, clipped_grad, release
from tacit.sgd.training.sampling import SAMPLERS
from tests.training.common import CLASSES, FEATURES, LOSS, ROWS, data, finish, key, network, run, same, start, weights

RATE = 20 / ROWS


# -- the step ------------------------------------------------------------------------------------------------------


def by_hand(training: Training, model: nn.Module, step: int) -> dict[str, torch.Tensor]:
    """The gradient of a step, written again from its definition."""
    x, y = data()
    secret = key()
    chosen = training.plan.sampler.draw(secret.derive("sampler"), step, ROWS)
    sums = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for i in chosen.tolist():
        model.zero_grad()
        LOSS(model(x[i : i + 1]), y[i : i + 1]).sum().backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
        for n, p in model.named_parameters():
            sums[n] += p.grad * min(1.0, 0.3 / norm)
    model.zero_grad(set_to_none=True)
    return {n: (s + 1.5 * 0.3 * normal(secret.derive("noise"), step, n, tuple(s.shape))) / 20 for n, s in sums.items()}


def test_a_step_is_the_clipped_sum_plus_noise_over_the_expected_batch_size():
    model, other = network(), network()
    training = run(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), noise_multiplier=1.5, clip_norm=0.3)
    for batch in training:
        expected = by_hand(training, other, batch.step)
        before = weights(model)
        training.step(batch)
        for n, p in model.named_parameters():
            assert torch.allclose(before[n] - p, expected[n], atol=1e-9)
        with torch.no_grad():
            for p, q in zip(other.parameters(), model.parameters(), strict=True):
                p.copy_(q)


class Mixed(nn.Module):
    """Weights of half precision in front of wide ones."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.narrow, self.wide = nn.Linear(FEATURES, 6, dtype=torch.bfloat16), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.wide(self.narrow(x.bfloat16()).float().tanh())


def test_the_optimizer_gets_the_noisy_sums_rounded_once_to_the_type_of_each_weight(monkeypatch):
    model, noisy, given = Mixed(), [], []
    real = release.add_normal_many_

    def watched(values, key, step, names, *rest, **more):
        real(values, key, step, names, *rest, **more)
        noisy.append({n: v.clone() for n, v in zip(names, values, strict=True)})

    monkeypatch.setattr(release, "add_normal_many_", watched)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer.register_step_pre_hook(
        lambda *_: given.append({n: p.grad.clone() for n, p in model.named_parameters()}) and None
    )
    finish(run(model, data(dtype=torch.float32), optimizer, steps=3))
    assert len(given) == len(noisy) == 3
    for grads, sums in zip(given, noisy, strict=True):
        assert {v.dtype for v in sums.values()} == {torch.float32}
        for name, p in model.named_parameters():
            assert grads[name].dtype == p.dtype
            assert torch.equal(grads[name], sums[name].to(p.dtype))


@pytest.mark.parametrize("physical", [1, 3, 7, 20, 64])
def test_any_physical_batch_gives_the_same_weights(physical):
    whole = finish(run(physical_batch=200, clip_norm=0.2))
    assert same(whole, finish(run(physical_batch=physical, clip_norm=0.2)), 1e-12)


def test_a_batch_that_does_not_fit_memory_is_cut_smaller_with_the_same_result():
    x, y = data()

    def small(model, batch):
        if len(batch[0]) > 8:
            raise torch.OutOfMemoryError("as a GPU says it")
        return LOSS(model(batch[0]), batch[1])

    def start(loss, **more):
        model = network()
        return Training(
            model, torch.optim.SGD(model.parameters(), lr=0.5), loss, (x, y), batch_size=20, steps=4,
            noise_multiplier=1.0, delta=1e-5, key=key(), **more,
        )  # fmt: skip

    training = start(small)
    assert training.physical_batch > 8
    assert same(finish(start(LOSS)), finish(training), 1e-12)
    assert training.physical_batch <= 8
    with pytest.raises(torch.OutOfMemoryError):
        finish(start(small, physical_batch=30))


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_noise_of_a_step_does_not_depend_on_the_batch(name):
    """Two runs that differ in one record differ by clipped gradients, which are bounded."""
    x, y = data()
    changed = x.clone()
    changed[5] += 3.0
    before = finish(start(name, steps=1, optimizer=None))
    after = finish(start(name, steps=1, source=(changed, y)))
    distance = math.sqrt(sum(float((before[n] - after[n]).square().sum()) for n in before))
    assert distance <= 0.5 * 2 * 1.0 / 20 + 1e-12  # learning rate, two clipped gradients, divisor


def test_the_empty_batch_trains_on_noise_alone():
    model = network()
    training = run(
        model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), batch_size=1, steps=40, noise_multiplier=2.0
    )
    sizes = []
    for batch in training:
        before = weights(model)
        sizes.append(len(batch))
        training.step(batch)
        if not len(batch):
            for n, p in model.named_parameters():
                noise = 2.0 * normal(key().derive("noise"), batch.step, n, tuple(p.shape))
                assert torch.allclose(before[n] - p, noise.double(), atol=1e-9)
    assert 0 in sizes
    assert training.steps_executed == 40


def test_leaving_the_loop_and_coming_back_gives_the_same_batch_again():
    expected = finish(run())
    training = run()
    for batch in training:
        if batch.step == 2:
            held = batch
            break
        training.step(batch)
    again = next(iter(training))
    assert again.step == held.step
    assert (again.rows == held.rows).all()
    with pytest.raises(RuntimeError, match="another one, or was used before"):
        training.step(held)
    assert same(expected, finish(training))


def test_a_batch_can_be_used_once_and_cannot_be_left_out():
    training = run()
    loop = iter(training)
    batch = next(loop)
    with pytest.raises(RuntimeError, match="No batch can be left out"):
        next(loop)
    batch = next(iter(training))
    training.step(batch)
    with pytest.raises(RuntimeError, match="used before"):
        training.step(batch)


def test_no_step_beyond_the_plan():
    training = run(steps=2)
    finish(training)
    assert list(training) == []
    with pytest.raises(RuntimeError, match="the run is over"):
        training.step(None)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
        lambda p: torch.optim.Adam(p),
        lambda p: torch.optim.AdamW(p),
        lambda p: torch.optim.RMSprop(p),
        lambda p: torch.optim.Adagrad(p),
        lambda p: torch.optim.Adadelta(p),
        lambda p: torch.optim.Adamax(p),
        lambda p: torch.optim.NAdam(p),
        lambda p: torch.optim.RAdam(p),
        lambda p: torch.optim.Rprop(p),
        lambda p: torch.optim.ASGD(p),
    ],
)
def test_every_optimizer_of_torch_works(make):
    model = network()
    before = weights(model)
    after = finish(run(model, optimizer=make(model.parameters())))
    assert not same(before, after, 1e-9)


def test_a_learning_rate_schedule_steps_with_the_run():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=6)
    finish(run(model, optimizer=optimizer, scheduler=scheduler))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0)


def test_the_average_of_the_weights():
    model = network()
    training = run(model, ema=0.8)
    expected = weights(model)
    for batch in training:
        training.step(batch)
        expected = {n: 0.8 * expected[n] + 0.2 * p for n, p in weights(model).items()}
    assert same(expected, training.average, 1e-12)
    last = weights(model)
    with training.averaged() as averaged:
        assert same(weights(averaged), expected, 1e-12)
    assert same(weights(model), last)


def test_noise_is_scaled_to_the_bounds_of_all_groups_together():
    """Bounds 0.3 and 0.4 for two groups: one record moves the whole sum by 0.5."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    training = run(model, optimizer=optimizer, clipping={"0.*": 0.3, "*": 0.4}, batch_size=1, steps=25)
    empty = 0
    for batch in training:
        before = weights(model)
        training.step(batch)
        if len(batch) == 0:
            empty += 1
            for n, p in model.named_parameters():
                noise = 0.5 * normal(key().derive("noise"), batch.step, n, tuple(p.shape))
                assert torch.allclose(before[n] - p, noise.double(), atol=1e-9)
    assert empty


class Product(torch.autograd.Function):
    """A matrix product whose parameter is seen by nobody."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


def test_a_model_that_clipping_refuses_is_trained_one_example_at_a_time():
    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(FEATURES, CLASSES, dtype=torch.float64))

        def forward(self, x):
            return Product.apply(x, self.w)

    with pytest.warns(PassPerExample, match=r"'w' is consumed by ProductBackward.* s for these"):
        finish(run(Custom()))
    plain = nn.Linear(FEATURES, CLASSES, bias=False, dtype=torch.float64)
    nn.init.zeros_(plain.weight)
    # The noise is a function of the parameter's name and place, so the two are compared without it.
    with pytest.warns(PrivacyWarning):
        slow = finish(run(Custom(), method="examples", noise_multiplier=0.0))
    with pytest.warns(PassPerExample), pytest.warns(PrivacyWarning):
        alone = finish(run(Custom(), noise_multiplier=0.0))
    assert torch.allclose(slow["w"], alone["w"], atol=1e-12)
    with pytest.warns(PrivacyWarning):
        fast = finish(run(plain, noise_multiplier=0.0))
    assert torch.allclose(slow["w"].t(), fast["weight"], atol=1e-12)
    with pytest.raises(ValueError, match="method"):
        run(method="example")


def test_per_layer_and_automatic_clipping_run():
    for clipping in ("per_layer", "automatic"):
        training = run(clipping=clipping)
        finish(training)
        assert training.privacy.upper == run().privacy.upper


# -- units ---------------------------------------------------------------------------------------------------------


def test_a_person_is_clipped_once_whatever_the_number_of_records():
    x, y = data()
    ids = np.repeat(np.arange(30), 4)
    training = run(groups=ids, max_rows=3, batch_size=10, noise_multiplier=0.5, clip_norm=0.2)
    model, other = training.model, network()
    for batch in training:
        before = weights(model)
        sums = {n: torch.zeros_like(p) for n, p in other.named_parameters()}
        for rows in batch.rows:
            other.load_state_dict(model.state_dict())
            other.zero_grad()
            assert len(set(rows.tolist())) == 3
            assert len(set(ids[rows])) == 1
            LOSS(other(x[rows]), y[rows]).mean().backward()
            norm = math.sqrt(sum(float(p.grad.square().sum()) for p in other.parameters()))
            for n, p in other.named_parameters():
                sums[n] += p.grad * min(1.0, 0.2 / norm)
        training.optimizer.param_groups[0]["momentum"] = 0.0
        training.step(batch)
        for n, p in model.named_parameters():
            noise = 0.1 * normal(key().derive("noise"), batch.step, n, tuple(p.shape))
            assert torch.allclose(before[n] - p, 0.5 * (sums[n] + noise) / 10, atol=1e-9)
    assert training.privacy.unit == "person"
    assert "zero out one person" in repr(training.privacy)
    assert training.plan.sampler.rate == pytest.approx(1 / 3)


def test_a_person_with_fewer_records_is_the_mean_of_those():
    x, y = data(8)
    ids = np.array([0, 0, 1, 1, 1, 2, 3, 3])
    model, other = network(), network()
    training = run(
        model, source=(x, y), groups=ids, max_rows=2, batch_size=4, steps=1, noise_multiplier=1e-3, clip_norm=100.0,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    )  # fmt: skip
    batch = next(iter(training))
    assert [len(set(rows.tolist())) for rows in batch.rows] == [2, 2, 1, 2]
    before = weights(model)
    training.step(batch)
    sum(
        LOSS(other(x[sorted(set(rows.tolist()))]), y[sorted(set(rows.tolist()))]).mean() for rows in batch.rows
    ).backward()
    for n, p in other.named_parameters():
        noise = 0.1 * normal(key().derive("noise"), 0, n, tuple(p.shape))
        assert torch.allclose(before[n] - model.state_dict()[n], (p.grad + noise) / 4, atol=1e-8)


# -- adaptive clipping and Laplace ---------------------------------------------------------------------------------


def test_adaptive_clipping_costs_what_one_gaussian_of_the_joint_noise_costs():
    training = run(adaptive=AdaptiveClipping(count_noise=5.0), noise_multiplier=1.2, steps=9)
    expected = acc.epsilon(acc.PoissonSampled(acc.Gaussian(1.2), RATE) * 9, 1e-5)
    assert training.privacy.upper == pytest.approx(expected.upper, rel=1e-6)
    own = training.plan.gradient_noise[0]
    assert own**-2 + 10.0**-2 == pytest.approx(1.2**-2)
    assert own > 1.2


def test_the_clip_norm_moves_to_the_quantile():
    training = run(
        source=data(1000), adaptive=AdaptiveClipping(quantile=0.5), clip_norm=20.0, batch_size=300, steps=60,
        noise_multiplier=0.8, optimizer=None,
    )  # fmt: skip
    training.optimizer.param_groups[0]["lr"] = 0.0
    finish(training)
    _, norms = clipped_grad(training.model, LOSS, data(1000), 1e6)
    assert training.clip_norm == pytest.approx(float(norms.median()), rel=0.35)


def test_laplace_noise_gives_a_pure_guarantee():
    training = run(mechanism="laplace", delta=None, noise_multiplier=30.0, steps=7)
    finish(training)
    expected = 7 * math.log1p(RATE * math.expm1(1 / 30))
    assert training.privacy.upper == pytest.approx(expected, rel=1e-6)
    assert training.privacy.upper >= expected
    assert "at δ=0" in repr(training.privacy)
    assert run(mechanism="laplace", delta=0.0, epsilon=3.0).privacy.upper == pytest.approx(3.0, rel=1e-6)


def test_laplace_sums_are_clipped_in_l1_norm_and_physical_batches_do_not_matter():
    settings = {"mechanism": "laplace", "delta": None, "noise_multiplier": 1.0, "clip_norm": 0.1}
    whole = finish(run(physical_batch=100, **settings))
    assert same(whole, finish(run(physical_batch=4, **settings)), 1e-12)


# -- the ledger ----------------------------------------------------------------------------------------------------


def test_the_plan_is_charged_before_the_first_step_and_confirmed_at_the_end():
    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-3)
    training = run(ledger=ledger, dataset="people", epsilon=2.0)
    assert ledger.budget("people").charges == 0
    batch = next(iter(training))
    assert training.steps_executed == 0
    record = ledger.history("people")[0]
    assert record.mechanism == training.plan.mechanism
    assert not record.confirmed
    training.step(batch)
    finish(training)
    assert ledger.history("people")[0].confirmed
    assert record.price.epsilon == pytest.approx(training.privacy.upper, rel=1e-6)


def test_a_plan_over_the_budget_is_refused_before_training():
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=1e-3)
    with pytest.raises(BudgetExceeded):
        run(ledger=ledger, dataset="people", epsilon=2.0)
    assert ledger.history("people") == []


def test_the_ledgers_terms_decide_adjacency_and_unit():
    ledger = Ledger()
    ledger.register("people", epsilon=9.0, delta=1e-3, unit="person", adjacency="replace-one")
    with pytest.raises(ValueError, match="registered for one person"):
        run(ledger=ledger, dataset="people", epsilon=2.0)
    with pytest.raises(acc.UnitError, match="groups=, one id per record"):
        run(ledger=ledger, dataset="people", epsilon=2.0, unit="person")
    training = run(ledger=ledger, dataset="people", epsilon=2.0, groups=range(ROWS), unit="person")
    assert training.plan.adjacency == "replace-one"


def test_a_private_size_is_not_used():
    ledger = Ledger()
    ledger.register("people", epsilon=9.0, delta=1e-3, size_public=False)
    with pytest.raises(ValueError, match="give size="):
        run(ledger=ledger, dataset="people", epsilon=2.0)
    training = run(ledger=ledger, dataset="people", epsilon=2.0, size=200)
    assert training.plan.sampler.rate == 0.1
    finish(training)
    assert ledger.history("people")[0].confirmed


def test_a_pure_guarantee_is_charged_without_delta():
    ledger = Ledger()
    ledger.register("people", epsilon=9.0, delta=0.0)
    finish(run(ledger=ledger, dataset="people", epsilon=2.0, mechanism="laplace", delta=None))
    assert ledger.history("people")[0].price.epsilon == pytest.approx(2.0, rel=1e-6)


# -- stopping ------------------------------------------------------------------------------------------------------


def test_a_run_that_stops_early_claims_its_plan():
    training = run(steps=30)
    planned = training.privacy.upper
    for batch in training:
        training.step(batch)
        if training.steps_executed == 10:
            training.stop("accuracy was good enough")
    assert training.steps_executed == 10
    assert training.privacy.upper == planned
    assert "the plan is claimed" in repr(training.privacy)


def test_a_stop_that_looked_at_nothing_is_priced_at_the_executed_steps():
    training = run(steps=30)
    for batch in training:
        training.step(batch)
        if training.steps_executed == 10:
            training.stop("time limit", looked_at_results=False)
    expected = acc.epsilon(acc.PoissonSampled(acc.Gaussian(1.0), RATE) * 10, 1e-5).upper
    assert training.privacy.upper == pytest.approx(expected, rel=1e-6)
    assert "steps planned: 30; steps executed: 10" in repr(training.privacy)
    with pytest.raises(RuntimeError, match="the run is over"):
        training.step(batch)


# -- what is left --------------------------------------------------------------------------------------------------


def test_diagnostics_are_the_operators_and_the_key_leaves_with_nothing():
    training = run()
    batch = next(iter(training))
    training.step(batch)
    view = training.diagnostics()
    assert view.records == len(batch)
    assert "operator view" in repr(view)
    with pytest.raises(TypeError):
        pickle.dumps(training)


def test_the_model_stays_the_same_object_with_the_same_state():
    model = network()
    names = list(model.state_dict())
    finish(run(model))
    assert list(model.state_dict()) == names
    assert all(p.grad is None for p in model.parameters())
    assert model(data()[0]).shape == (ROWS, CLASSES)


def test_a_run_whose_batches_are_drawn_ahead_is_the_same_run(monkeypatch):
    """As on a GPU, where the next step's units are drawn in another thread."""
    one, other = run(), run()
    last = other.plan.steps - 1

    def ahead(step):
        of = (other.plan.sampler, other.keys.sampler, other.keys.members)
        return other._background.take(other._make_batch, of, step, last=step == last)

    monkeypatch.setattr(other, "_draw_now", ahead)
    assert same(finish(one), finish(other))
