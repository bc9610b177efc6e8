"""Loops as strangers write them for Opacus, beyond the plain one: each is right, or a clear error."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.opacus.harness import close, data, expected, net, private
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from tacit import accounting as acc
from tacit import sgd
from tacit.opacus import PrivacyEngine
from tacit.opacus.accountants import RDPAccountant
from tacit.opacus.data_loader import DPDataLoader
from tacit.opacus.utils.batch_memory_manager import BatchMemoryManager
from tacit.opacus.utils.uniform_sampler import UniformWithReplacementSampler
from tacit.sgd import ClippingError, PrivacyWarning


def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def price(noise, rate, steps, delta=1e-5):
    return acc.epsilon(acc.PoissonSampled(acc.Gaussian(noise), rate) * steps, delta).upper


def test_as_many_classes_as_examples_do_not_make_the_classes_examples():
    dataset = data(30, classes=10)
    model = nn.Linear(6, 10)
    _, _, loader = private(model, dataset, batch_size=10, poisson_sampling=False)
    x, y = next(iter(loader))
    assert len(x) == 10
    out = model(torch.cat([x, x + 0.1]))  # two rows of each person, of which the loop knows nothing
    with pytest.raises(ClippingError, match="no dimension holds the examples"):
        F.cross_entropy(out, torch.cat([y, y])).backward()


class Recurrent(nn.Module):
    """Returns its state as torch's own layers do: (layers, examples, features)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = nn.GRU(6, 5, 2, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        out, state = self.rnn(x)
        return self.head(out[:, -1]), state


@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_a_batch_may_have_as_many_examples_as_a_state_has_features(penalty):
    g = torch.Generator().manual_seed(0)
    dataset = TensorDataset(torch.randn(15, 4, 6, generator=g), torch.randint(3, (15,), generator=g))
    model = Recurrent()
    _, optimizer, loader = private(model, dataset, batch_size=5, poisson_sampling=False)

    def losses(of, x, y):
        out, state = of(x)
        each = F.cross_entropy(out, y, reduction="none")
        return each + penalty * state.square().sum((0, 2)) if penalty else each

    for x, y in loader:
        twin = copy.deepcopy(model)
        wanted = sgd.clipped_grad(twin, lambda of, b: losses(of, *b), (x, y), 0.3, method="examples").sums
        optimizer.zero_grad()
        losses(model, x, y).mean().backward()
        optimizer.step()
        assert close([p.grad for p in model.parameters()], [wanted[n] / 5 for n, _ in model.named_parameters()])


def test_an_empty_batch_that_is_left_out_is_counted_and_said():
    model = net()
    engine, optimizer, loader = private(model, data(40), batch_size=1, noise=1.0)
    with torch.no_grad():
        for x, _ in loader:  # an evaluation leaves nothing out
            model(x)
    made = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, y in loader:
            if len(x) == 0:
                continue
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            made += 1
    assert 0 < made < 40
    assert any(issubclass(w.category, PrivacyWarning) and "left out" in str(w.message) for w in caught)
    assert engine.get_epsilon(1e-5) == pytest.approx(price(1.0, 1 / 40, 40), rel=1e-6)


def test_another_accountant_counts_what_the_engine_has_done_and_does():
    model = net()
    engine, optimizer, loader = private(model, data(), noise=1.0)
    train(model, optimizer, loader)
    engine.accountant = RDPAccountant()
    train(model, optimizer, loader)
    engine.accountant = engine.accountant
    assert engine.get_epsilon(1e-5) == pytest.approx(price(1.0, 8 / 48, 12), rel=1e-6)


@pytest.mark.parametrize(("kind", "poisson"), [("loader", True), ("sampler", False)])
def test_a_loader_that_is_poisson_already_keeps_its_rate(kind, poisson):
    dataset = data(50)
    if kind == "loader":
        given = DPDataLoader(dataset, sample_rate=0.13)
    else:
        given = DataLoader(dataset, batch_sampler=UniformWithReplacementSampler(num_samples=50, sample_rate=0.13))
    model, engine = net(), PrivacyEngine()
    _, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=given,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=poisson,
    )
    assert loader.sample_rate == 0.13
    train(model, optimizer, loader)
    wanted = price(1.0, 0.13, 8)
    assert engine.get_epsilon(1e-5) == pytest.approx(wanted, rel=1e-6)
    kept = io.BytesIO()
    engine.save_checkpoint(path=kept, module=model, optimizer=optimizer)
    kept.seek(0)
    other = PrivacyEngine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.load_checkpoint(path=kept, module=net())
    assert other.get_epsilon(1e-5) == pytest.approx(wanted, rel=1e-6)
    assert other.accountant.history == [(1.0, 0.13, 8)]


def test_a_generator_is_trained_through_a_private_discriminator():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    generator = nn.Linear(2, 6)
    steps = torch.optim.SGD(generator.parameters(), lr=0.1)
    engine, optimizer, loader = private(critic, data(), noise=1.0)
    releases = 0
    for x, _ in loader:
        if len(x) == 0:
            continue
        optimizer.zero_grad()
        made = generator(torch.randn(len(x), 2))
        real, fake = critic(x), critic(made.detach())
        (F.softplus(-real).mean() + F.softplus(fake).mean()).backward()
        optimizer.step()
        releases += 1
        before = [p.detach().clone() for p in critic.parameters()]
        loss = F.softplus(-_plain(critic, made)).mean()
        wanted = torch.autograd.grad(loss, list(generator.parameters()), retain_graph=True)
        steps.zero_grad()
        F.softplus(-critic(made)).mean().backward()
        assert close([p.grad for p in generator.parameters()], wanted)
        steps.step()
        assert all(torch.equal(a, b) for a, b in zip(before, critic.parameters(), strict=True))
    assert len(engine.accountant) == releases


def _plain(critic, x):
    """The critic as a function of its input alone, watched by nobody."""
    a, b = critic[0], critic[2]
    hidden = F.leaky_relu(F.linear(x, a.weight.detach(), a.bias.detach()), 0.2)
    return F.linear(hidden, b.weight.detach(), b.bias.detach())


def test_a_batch_may_go_through_the_model_again_after_zero_grad():
    model = net()
    _, optimizer, loader = private(model, data())
    for x, y in loader:
        if len(x) == 0:
            continue
        x = x.clone().requires_grad_()
        F.cross_entropy(model(x), y).backward()
        harder = (x + 0.1 * x.grad.sign()).detach()
        wanted = expected(model, harder, y, 0.3, 8)
        optimizer.zero_grad()
        F.cross_entropy(model(harder), y).backward()
        optimizer.step()
        assert close([p.grad for p in model.parameters()], wanted)


class _Own(torch.optim.Optimizer):
    """An optimizer that expects a gradient at every step."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.count = 0

    def step(self, closure=None):
        self.count += 1
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(0.1 * p.grad)


def test_an_optimizer_of_ones_own_is_stepped_once_for_all_pieces_of_a_batch():
    model = net()
    own = _Own(model.parameters())
    engine, optimizer, loader = private(model, data(), batch_size=24, optimizer=own)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=5, optimizer=optimizer) as pieces:
        train(model, optimizer, pieces)
    assert own.count == len(engine.accountant) == 2


def test_a_parameter_that_joins_later_is_refused():
    model = net()
    _, optimizer, loader = private(model, data())
    optimizer.original_optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    with pytest.raises(RuntimeError, match="after make_private"):
        train(model, optimizer, loader)


def test_a_sampler_that_poisson_draws_replace_is_named():
    dataset = data()
    model = net()
    given = DataLoader(dataset, batch_size=8, sampler=WeightedRandomSampler(torch.rand(48), 48))
    with pytest.warns(UserWarning, match="WeightedRandomSampler does not choose"):
        PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=given,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )


def test_a_checkpoint_of_opacus_is_read(tmp_path):
    model = net()
    history = {"history": [(1.0, 0.125, 16)], "mechanism": "prv"}
    weights = {f"_module.{name}": value for name, value in net(seed=3).state_dict().items()}
    torch.save({"module_state_dict": weights, "privacy_accountant_state_dict": history}, tmp_path / "opacus.pt")
    engine = PrivacyEngine()
    engine.load_checkpoint(path=tmp_path / "opacus.pt", module=model)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), net(seed=3).parameters(), strict=True))
    assert engine.get_epsilon(1e-5) == pytest.approx(price(1.0, 0.125, 16), rel=1e-6)
