"""What people do in their own loops: each is right, or a clear error."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.opacus.harness import close, data, expected, net, private
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from tacit import accounting as acc
from tacit import sgd
from tacit.opacus import PrivacyEngine
from tacit.opacus.utils.batch_memory_manager import BatchMemoryManager
from tacit.sgd import BatchMixing, ClippingError, PrivacyWarning, UncoveredUse
from tacit.sgd.hooked.draws import Spent
from tacit.sgd.training.sampling import Poisson


def grads(model):
    return [p.grad.clone() for p in model.parameters() if p.requires_grad]


def test_each_poisson_batch_gives_the_clipped_sum_over_the_expected_batch_size():
    model, dataset = net(), data()
    _, optimizer, loader = private(model, dataset)
    sizes = set()
    for _ in range(3):
        for x, y in loader:
            sizes.add(len(x))
            wanted = expected(model, x, y, 0.3, 8) if len(x) else [torch.zeros_like(p) for p in model.parameters()]
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            assert all(p.grad is None for p in model.parameters())
            optimizer.step()
            assert close(grads(model), wanted)
    assert len(sizes) > 3


def test_sizes_after_the_first_need_no_new_survey(monkeypatch):
    model = net()
    _, optimizer, loader = private(model, data(400), batch_size=20)
    surveys = []
    watch = optimizer.loop.watch
    monkeypatch.setattr(watch, "_survey", lambda call, run=watch._survey: surveys.append(call.rows) or run(call))
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert len(surveys) == 1


class TimeFirst(nn.Module):
    """Tokens and examples in one dimension, the tokens outside, as torch's transformers have them by default."""

    def __init__(self):
        super().__init__()
        self.inside, self.out = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        tokens = x.transpose(0, 1)
        return self.out(torch.tanh(self.inside(tokens.reshape(-1, 6))).view(len(tokens), -1, 5).mean(0))


def test_sequences_of_one_token_do_not_say_where_the_tokens_of_longer_ones_are():
    torch.manual_seed(0)
    model, dataset = TimeFirst(), TensorDataset(torch.randn(40, 6, 6), torch.randint(3, (40,)))
    _, optimizer, loader = private(model, dataset, batch_size=8, poisson_sampling=False)
    for tokens, (x, y) in zip((1, 3, 6, 4, 1), loader, strict=True):
        wanted = expected(model, x[:, :tokens], y, 0.3, 8)
        optimizer.zero_grad()
        F.cross_entropy(model(x[:, :tokens]), y).backward()
        optimizer.step()
        assert close(grads(model), wanted), tokens


def test_the_model_stays_the_users_object(tmp_path):
    model = net()
    keys, before = list(model.state_dict()), type(model)
    engine = PrivacyEngine()
    made, _, _ = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data(), batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    assert made is model
    assert type(made) is before
    assert list(made.state_dict()) == keys
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    x, y = data()[:8]
    for twin in (loaded, copy.deepcopy(model)):
        assert torch.equal(twin(x), model(x))
        F.cross_entropy(twin(x), y).backward()  # an ordinary model: its gradients are ordinary
        assert twin[0].weight.grad is not None


def test_pieces_of_a_batch_make_one_step():
    model, dataset = net(), data(200)
    _, optimizer, loader = private(model, dataset, batch_size=40)
    before, batch, steps = [p.clone() for p in model.parameters()], [], 0
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=9, optimizer=optimizer) as pieces:
        for x, y in pieces:
            assert len(x) <= 9
            batch.append((x, y))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if model[0].weight.grad is None:
                assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
                continue
            steps += 1
            after = [p.clone() for p in model.parameters()]
            for p, b in zip(model.parameters(), before, strict=True):
                p.data.copy_(b)
            x, y = (torch.cat(v) for v in zip(*batch, strict=True))
            assert len(x) > 9
            assert close(grads(model), expected(model, x, y, 0.3, 40))
            for p, a in zip(model.parameters(), after, strict=True):
                p.data.copy_(a)
            before, batch = after, []
    assert steps == 5
    assert optimizer.loop.steps == 5


def test_accumulated_draws_are_clipped_each_and_priced_as_what_they_are():
    model, dataset = net(), data(96)
    engine, optimizer, loader = private(model, dataset, batch_size=12)
    optimizer.zero_grad()
    wanted = [torch.zeros_like(p) for p in model.parameters()]
    for k, (x, y) in enumerate(loader):
        F.cross_entropy(model(x), y).backward()
        wanted = [w + e for w, e in zip(wanted, expected(model, x, y, 0.3, 2 * 12), strict=True)]
        if k % 2:
            assert optimizer.accumulated_iterations == 2
            optimizer.step()
            assert close(grads(model), wanted)
            optimizer.zero_grad()
            wanted = [torch.zeros_like(p) for p in model.parameters()]
    assert optimizer.loop.spent.releases == [(0.0, 2, 4)]
    assert engine.get_epsilon(1e-5) == float("inf")


def test_a_record_that_may_be_in_several_draws_of_a_step_costs_more():
    spent, once = Spent(Poisson(1000, 20)), Spent(Poisson(1000, 20))
    spent.add(1.0, draws=2, times=100)
    once.add(1.0, times=200)
    step = acc.PoissonSampled(acc.Gaussian(1.0), 0.02)
    assert spent.price(1e-5).upper == acc.epsilon(step * 100, 1e-5, group=2).upper
    # As if each were a step of its own at twice the rate, which is what Opacus charges, would be too little.
    assert spent.price(1e-5).upper > acc.epsilon(acc.PoissonSampled(acc.Gaussian(1.0), 0.04) * 100, 1e-5).upper


def test_zero_grad_may_be_forgotten():
    model, dataset = net(), data()
    _, optimizer, loader = private(model, dataset)
    for x, y in loader:
        if not len(x):
            continue
        wanted = expected(model, x, y, 0.3, 8)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        assert close(grads(model), wanted)


def test_two_passes_over_one_batch_are_one_function_of_each_example():
    model, dataset = net(), data()
    _, optimizer, loader = private(model, dataset)
    for x, y in loader:
        if len(x) < 2:
            continue
        F.cross_entropy(model(x) + 0.5 * model(-x), y).backward()
        twin = copy.deepcopy(model)
        parameters = list(twin.parameters())
        wanted = [torch.zeros_like(p) for p in parameters]
        for k in range(len(x)):
            own = torch.autograd.grad(
                F.cross_entropy(twin(x[k : k + 1]) + 0.5 * twin(-x[k : k + 1]), y[k : k + 1]), parameters
            )
            norm = torch.stack([g.norm() for g in own]).norm()
            for w, g in zip(wanted, own, strict=True):
                w += g * min(1.0, 0.3 / float(norm)) / 8
        optimizer.step()
        assert close(grads(model), wanted)
        break


def test_parts_of_a_model_may_be_called_by_the_loop():
    model, dataset = net(), data()
    _, optimizer, loader = private(model, dataset)
    for x, y in loader:
        if len(x) < 2:
            continue
        wanted = expected(model, x, y, 0.3, 8)
        F.cross_entropy(model[2](torch.tanh(model[0](x))), y).backward()
        optimizer.step()
        assert close(grads(model), wanted)


def test_evaluation_in_the_middle_changes_nothing():
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    engine, optimizer, loader = private(model, data(), noise=1.0)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        model.eval()
        with torch.no_grad():
            model(data()[:20][0])
        model(data()[:5][0])  # with gradients, of which nobody makes use
        model.train()
        loss.backward()
        optimizer.step()
    assert len(engine.accountant) == len(loader)


def test_a_step_without_a_backward_pass_is_an_error():
    model = net()
    _, optimizer, loader = private(model, data(48), batch_size=24)
    with pytest.raises(RuntimeError, match="without a backward pass"):
        optimizer.step()
    x, y = next(iter(loader))
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="without a backward pass"):
        optimizer.step()
    with pytest.raises(ClippingError, match="private data loader"):
        F.cross_entropy(model(x), y).backward()  # the batch has had its step


def test_batches_from_elsewhere_are_refused():
    model = net()
    private(model, data())
    x, y = data()[:8]
    with pytest.raises(ClippingError, match="did not come from the private data loader"):
        F.cross_entropy(model(x), y).backward()


def test_tokens_are_not_examples():
    model = nn.Linear(4, 3)
    dataset = TensorDataset(torch.randn(60, 5, 4), torch.randint(3, (60, 5)))
    _, _, loader = private(model, dataset, batch_size=30)
    for x, y in loader:
        with pytest.raises(ClippingError, match="no dimension holds the examples"):
            F.cross_entropy(model(x.flatten(0, 1)), y.flatten()).backward()
        break


def test_a_penalty_on_weights_is_refused_and_leaves_no_raw_gradient():
    model = net()
    _, _, loader = private(model, data())
    x, y = next(iter(loader))
    with pytest.raises(UncoveredUse, match="weight_decay"):
        (F.cross_entropy(model(x), y) + model[0].weight.square().sum()).backward()
    assert model[0].weight.grad is None


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x - x.mean(0))


def test_a_model_that_mixes_examples_is_stopped_at_the_first_step():
    model = Mixing()
    _, optimizer, loader = private(model, data(), batch_size=16)
    x, y = next(iter(loader))
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(BatchMixing):
        optimizer.step()


class WithLoss(nn.Module):
    """Returns its own loss beside its outputs, as models of transformers do."""

    def __init__(self, tokens=False):
        super().__init__()
        self.embed, self.out, self.tokens = nn.Embedding(9, 6), nn.Linear(6, 9), tokens

    def forward(self, ids, labels):
        logits = self.out(self.embed(ids)) if self.tokens else self.out(self.embed(ids).mean(1))
        return {"loss": F.cross_entropy(logits.flatten(0, -2), labels.flatten()), "logits": logits}


def test_a_loss_computed_in_the_model_is_split_into_examples():
    model = WithLoss()
    dataset = TensorDataset(torch.randint(9, (60, 5)), torch.randint(9, (60,)))
    _, optimizer, loader = private(model, dataset, batch_size=20)
    for x, y in loader:
        twin = copy.deepcopy(model)
        parameters = list(twin.parameters())
        wanted = [torch.zeros_like(p) for p in parameters]
        for k in range(len(x)):
            own = torch.autograd.grad(twin(x[k : k + 1], y[k : k + 1])["loss"], parameters)
            norm = torch.stack([g.norm() for g in own]).norm()
            for w, g in zip(wanted, own, strict=True):
                w += g * min(1.0, 0.3 / float(norm)) / 20
        model(x, y)["loss"].backward()
        optimizer.step()
        assert close(grads(model), wanted)


def test_a_mean_over_the_tokens_of_the_batch_is_refused():
    model = WithLoss(tokens=True)
    labels = torch.randint(9, (60, 5))
    labels[torch.arange(60), torch.randint(1, 5, (60,))] = -100
    labels[::2, 1:] = -100
    _, optimizer, loader = private(model, TensorDataset(torch.randint(9, (60, 5)), labels), batch_size=30)
    x, y = next(iter(loader))
    model(x, y)["loss"].backward()
    with pytest.raises(BatchMixing, match="tokens"):
        optimizer.step()


def test_a_first_batch_of_equal_lengths_does_not_hide_a_mean_over_tokens():
    torch.manual_seed(0)
    model = WithLoss(tokens=True)
    labels = torch.randint(9, (60, 5))
    _, optimizer, loader = private(model, TensorDataset(torch.randint(9, (60, 5)), labels), batch_size=30)
    batches = iter(loader)
    x, y = next(batches)
    model(x, y)["loss"].backward()
    optimizer.step()
    x, y = next(batches)
    y[0, 1:] = -100
    model(x, y)["loss"].backward()
    with pytest.raises(BatchMixing, match="tokens"):
        optimizer.step()


def test_the_examples_may_lie_in_the_second_dimension():
    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.GRU(4, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.out(self.rnn(x)[0])

    model = Second()
    dataset = TensorDataset(torch.randn(40, 7, 4), torch.randint(3, (40, 7)))
    _, optimizer, loader = private(model, dataset, batch_size=10, batch_first=False)
    for x, y in loader:
        if len(x) < 2:
            continue
        out = model(x.transpose(0, 1))
        F.cross_entropy(out.permute(1, 2, 0), y).backward()
        optimizer.step()
        twin = copy.deepcopy(model)
        assert model.out.weight.grad.norm() <= 0.3 * len(x) / 10 + 1e-6
        assert type(twin) is Second
        break


def test_an_optimizer_keeps_its_schedules_closures_and_state():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    _, private_optimizer, loader = private(model, data(), optimizer=optimizer, noise=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(private_optimizer, 1, gamma=0.5)
    for x, y in loader:

        def closure(x=x, y=y):
            private_optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        assert torch.is_tensor(private_optimizer.step(closure))
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert private_optimizer.state_dict()["state"][0]["step"] == len(loader)
    assert private_optimizer.expected_batch_size == 8
    # Stepping the original is just as private.
    x, y = next(iter(loader))
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert private_optimizer.loop.steps == len(loader) + 1


def test_examples_that_are_not_finite_count_as_nothing():
    model = net()
    x, y = data(40)[:]
    x[::4] = float("inf")
    _, optimizer, loader = private(model, TensorDataset(x, y), batch_size=20)
    for inputs, targets in loader:
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        kept = torch.isfinite(inputs).all(1)
        assert all(torch.isfinite(p).all() for p in model.parameters())
        assert float(torch.stack([g.norm() for g in grads(model)]).norm()) <= 0.3 * int(kept.sum()) / 20 + 1e-6


def test_bf16_autocast_stays_within_the_bound():
    model = net()
    _, optimizer, loader = private(model, data(), batch_size=16)
    for x, y in loader:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        assert float(torch.stack([g.norm() for g in grads(model)]).norm()) <= 0.3 * len(x) / 16 + 1e-6


def test_empty_batches_are_steps_of_noise_alone():
    model = net()
    engine, optimizer, loader = private(model, data(48), batch_size=1, noise=1.0)
    seen = set()
    for x, y in loader:
        seen.add(len(x))
        assert x.shape[1:] == (6,)
        before = model[0].weight.clone()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        assert not torch.equal(before, model[0].weight)
    assert 0 in seen
    assert len(engine.accountant) == 48


@pytest.mark.parametrize("mode", ["hooks", "ew", "functorch", "ghost"])
def test_every_grad_sample_mode_is_the_same_engine(mode):
    model = net()
    torch.manual_seed(0)
    engine = PrivacyEngine()
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(data(), batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
    for x, y in made[-1]:
        loss = criterion(made[0](x), y)
        loss.backward()
        made[1].step()
        assert loss.item() > 0 or len(x) == 0
    assert engine.get_epsilon(1e-5) > 0


def test_workers_that_read_ahead_do_not_shift_batches_or_steps():
    model, dataset = net(), data(120)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(dataset, batch_size=20, num_workers=1, prefetch_factor=4),
            noise_multiplier=0.0,
            max_grad_norm=0.3,
        )
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=8, optimizer=optimizer) as pieces:
        for x, y in pieces:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert optimizer.loop.steps == 6


def test_what_cannot_be_priced_is_refused():
    class Endless(IterableDataset):
        def __iter__(self):
            yield from data()

    model = net()

    def make(loader, **options):
        PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            **options,
        )

    with pytest.raises(ValueError, match="IterableDataset"):
        make(DataLoader(Endless(), batch_size=8))
    weights = WeightedRandomSampler(torch.ones(48), 48)
    with pytest.raises(ValueError, match="cannot be priced"):
        make(DataLoader(data(), batch_size=8, sampler=weights), poisson_sampling=False)
    with pytest.raises(TypeError, match="max_grad_norms"):
        make(DataLoader(data(), batch_size=8), max_grad_norms=[1.0])


def test_requires_grad_is_decided_before():
    model = net()
    _, _, loader = private(model, data())
    model[0].weight.requires_grad_(False)
    x, _ = next(iter(loader))
    with pytest.raises(ClippingError, match="requires_grad"):
        model(x)


def test_batch_normalisation_is_refused_and_fixed():
    from tacit.opacus.validators import ModuleValidator
    from tacit.opacus.validators.errors import UnsupportedModuleError

    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    assert not ModuleValidator.is_valid(model)
    with pytest.raises(UnsupportedModuleError):
        private(model, data())
    fixed = PrivacyEngine.get_compatible_module(model)
    assert isinstance(fixed[1], nn.GroupNorm)
    assert isinstance(model[1], nn.BatchNorm1d)
    private(fixed, data())


def test_a_cleaned_up_model_is_an_ordinary_one():
    model = net()
    engine = PrivacyEngine()
    hooks, _, _ = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data(), batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        wrap_model=False,
    )
    hooks.cleanup()
    x, y = data()[:8]
    F.cross_entropy(model(x), y).backward()
    assert model[0].weight.grad is not None


def test_a_model_is_private_once():
    model = net()
    engine, optimizer, _ = private(model, data(), noise=1.0)
    assert engine.get_epsilon(1e-5) == 0.0
    with pytest.raises(ClippingError, match="private already"):
        private(model, data(), noise=1.0)
    original = optimizer.detach()
    private(model, data(), noise=1.0, optimizer=original)


def test_the_self_check_of_the_first_step_is_kept(monkeypatch):
    from tacit.sgd.gradients import rules

    model = net()
    _, optimizer, loader = private(model, data(), batch_size=16)
    wrong = rules.RULES["linear"]

    def halved(use, grads, layouts):
        return wrong(use, [None if g is None else g / 2 for g in grads], layouts)

    monkeypatch.setitem(rules.RULES, "linear", halved)
    x, y = next(iter(loader))
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(sgd.SelfCheckFailed):
        optimizer.step()


def test_noise_of_none_says_so_and_costs_everything():
    model = net()
    engine = PrivacyEngine()
    with pytest.warns(PrivacyWarning, match="NO privacy"):
        _, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data(), batch_size=8),
            noise_multiplier=0.0,
            max_grad_norm=1.0,
        )
    x, y = next(iter(loader))
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert engine.get_epsilon(1e-5) == float("inf")


def test_a_pickle_of_the_model_holds_no_data_and_no_key():
    model = net()
    _, optimizer, loader = private(model, data(), noise=1.0)
    x, y = next(iter(loader))
    F.cross_entropy(model(x), y).backward()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert len(buffer.getvalue()) < 20_000
    optimizer.step()
    with pytest.raises(TypeError, match="state_dict"):
        torch.save(optimizer, io.BytesIO())
