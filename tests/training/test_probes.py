"""At steps that only the key knows, an example in its batch is compared with itself alone; a fault stops the run."""

from __future__ import annotations

import math
import types
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tacit import opacus, sgd
from tacit.noise.keys import Key
from tacit.sgd.gradients import capture, planning, rules
from tacit.sgd.hooked import loop
from tacit.sgd.training import training as trainings
from tacit.sgd.training.probes import EVERY, Probes
from tests.sgd import zoo
from tests.sgd.harness import build

ROWS, STEPS = 40, 30


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """One step in four, so that few steps show much."""
    monkeypatch.setattr(trainings, "EVERY", 4)
    monkeypatch.setattr(loop, "EVERY", 4)


def key_of(number):
    return Key(bytes([number]) * 32, repeatable=True)


def probed_steps(key, every=4, steps=STEPS):
    probes = Probes(every, 10.0)
    return [step for step in range(steps) if probes.at(key.derive("probes"), step) is not None]


class Model(nn.Module):
    """Two layers that begin to mix examples when they are told to."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(5, 8), nn.Linear(8, 2), nn.Dropout(dropout)
        self.register_buffer("mixing", torch.zeros(()))

    def forward(self, x):
        out = self.last(torch.relu(self.drop(self.first(x))))
        return out + self.mixing * out[torch.arange(len(x) - 1, -1, -1)]


def squares(model, x):
    return model(x).square().sum(1)


def run(model, key, steps=STEPS, **settings):
    torch.manual_seed(0)
    return sgd.Training(
        model, torch.optim.SGD(model.parameters(), lr=0.01), squares, torch.randn(ROWS, 5), batch_size=10, steps=steps,
        noise_multiplier=1.0, delta=1e-4, sampler="fixed", key=key, **settings,
    )  # fmt: skip


# -- when --------------------------------------------------------------------------------------------------------------


def test_the_steps_are_the_keys_alone_and_as_many_as_are_said():
    one, two = key_of(1), key_of(2)
    assert probed_steps(one) == probed_steps(key_of(1))
    assert probed_steps(one, steps=500) != probed_steps(two, steps=500)
    count = sum(len(probed_steps(key_of(k), EVERY, 5000)) for k in range(20))
    expected = 20 * 5000 / EVERY
    assert abs(count - expected) < 6 * math.sqrt(expected)


def test_the_chance_to_survive_is_that_of_the_steps():
    """Of 400 keys, as many leave all of 6 steps unprobed as the sentence beside the guarantee says."""
    missed = sum(not probed_steps(Key(k.to_bytes(32, "big"), repeatable=True), 4, 6) for k in range(400))
    stated = Probes(4, 10.0).survives(6)
    assert abs(missed - 400 * stated) < 6 * math.sqrt(400 * stated)
    assert Probes(4, 0.1).survives(6) > stated  # most such batches are empty, and nothing is compared


def test_the_guarantee_says_how_sure_that_is():
    training = run(Model(), key_of(1), steps=6)
    for batch in training:
        training.step(batch)
    chance = f"{Probes(4, 10.0).survives(6):.2g}"
    assert f"would pass 6 steps with probability {chance}" in str(training.privacy)
    assert run(Model(), key_of(1), check="never").privacy.details.get("probes") is None


# -- what is noticed ---------------------------------------------------------------------------------------------------


def stops_at(training, breaks, at):
    """Break the run before a step; the step at which it stops, with the weights that it leaves."""
    model, before = training.model, None
    for batch in training:
        if batch.step == at:
            breaks()
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        try:
            training.step(batch)
        except sgd.ProbeFailed as failure:
            assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())  # nothing was released
            assert f"step {batch.step + 1}:" in str(failure)  # noqa: PT017
            with pytest.raises(sgd.ProbeFailed):
                training.step(batch)
            return batch.step, str(failure)
    return None, ""


@pytest.mark.parametrize("settings", [{}, {"physical_batch": 4}, {"compile": "traced"}, {"dropout": 0.3}], ids=str)
@pytest.mark.parametrize("number", [1, 2])
def test_a_mix_that_begins_later_stops_the_run_at_the_first_probed_step(settings, number, monkeypatch):
    monkeypatch.setattr(planning, "prove", lambda *_, **__: None)  # who owns what is not followed: no batch is compared
    # With other threads about, constants are read in every pass, and the change is refused at once.
    monkeypatch.setattr(capture, "threading", types.SimpleNamespace(active_count=lambda: 1))
    settings = dict(settings)
    model, key, at = Model(settings.pop("dropout", 0.0)), key_of(number), 7
    first = next(step for step in probed_steps(key) if step >= at)
    found, message = stops_at(run(model, key, **settings), lambda: model.mixing.fill_(0.3), at)
    assert found == first
    assert "the loss of an example" in message or "gradient norm for" in message


def test_a_mix_that_ownership_sees_coming_is_refused_in_its_first_batch():
    model = Model()
    with pytest.raises(sgd.BatchMixing):
        stops_at(run(model, key_of(1)), lambda: model.mixing.fill_(0.3), 7)


@pytest.mark.parametrize("settings", [{}, {"physical_batch": 4}, {"dropout": 0.3}, {"clipping": "per_layer"}], ids=str)
@pytest.mark.parametrize("number", [1, 2])
def test_a_rule_that_goes_wrong_stops_the_run_at_the_first_probed_step(settings, number, monkeypatch):
    settings, rule = dict(settings), rules.RULES["linear"]
    model, key, at = Model(settings.pop("dropout", 0.0)), key_of(number), 3

    def doubled(use, grads, layouts):
        return rule(use, [None if g is None else 2 * g for g in grads], layouts)

    first = next(step for step in probed_steps(key) if step >= at)
    breaks = lambda: monkeypatch.setitem(rules.RULES, "linear", doubled)  # noqa: E731
    found, message = stops_at(run(model, key, **settings), breaks, at)
    assert found == first
    assert "gradient norm for first.weight, first.bias" in message
    assert "last.weight" in message or "clipping" in settings


def test_without_probes_the_wrong_rule_would_not_be_noticed(monkeypatch):
    monkeypatch.setattr(trainings, "EVERY", 2**32)
    model, rule = Model(), rules.RULES["linear"]

    def doubled(use, grads, layouts):
        return rule(use, [None if g is None else 2 * g for g in grads], layouts)

    breaks = lambda: monkeypatch.setitem(rules.RULES, "linear", doubled)  # noqa: E731
    assert stops_at(run(model, key_of(1)), breaks, 3) == (None, "")


@pytest.mark.parametrize("fault", ["mix", "rule", None])
def test_the_drop_in_is_probed(fault, monkeypatch):
    torch.manual_seed(0)
    model, rule = Model(0.2), rules.RULES["linear"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.randn(200, 5), torch.randint(2, (200,))), batch_size=5)
    model, optimizer, data = opacus.PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=data, noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip

    def doubled(use, grads, layouts):
        return rule(use, [None if g is None else 2 * g for g in grads], layouts)

    def epoch():
        for number, (x, y) in enumerate(data):
            if number == 3 and fault == "mix":
                model.mixing.fill_(0.3)
            if number == 3 and fault == "rule":
                monkeypatch.setitem(rules.RULES, "linear", doubled)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    if fault is None:
        epoch()
        return
    # One in four of forty: it survives with probability 4e-5; a mix is seen at once by other checks.
    with pytest.raises(sgd.ClippingError) as failure:
        epoch()
    assert fault == "mix" or "gradient norm for" in str(failure.value)
    with pytest.raises((sgd.ClippingError, RuntimeError)):
        optimizer.step()


@pytest.mark.parametrize("make", [zoo.mlp, zoo.wrn, zoo.gpt], ids=lambda f: f.__name__)
def test_an_honest_run_is_not_stopped(make, monkeypatch):
    monkeypatch.setattr(trainings, "EVERY", 1)
    case = build(make, torch.float32)
    case.model.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = sgd.Training(
            case.model, torch.optim.SGD(case.model.parameters(), lr=0.05), case.loss, case.batch, batch_size=3, steps=6,
            noise_multiplier=1.0, delta=1e-3,
        )  # fmt: skip
    for batch in training:
        training.step(batch)


@pytest.mark.parametrize("change", ["replaced", "added", "frozen"])
def test_a_model_that_is_another_in_the_middle_of_a_run_is_refused(change):
    """Its new layer would be updated by nobody, and its old one by noise."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    data = torch.randn(40, 4), torch.randint(2, (40,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"batch_size": 20, "steps": 4, "noise_multiplier": 1.0, "delta": 1e-5}
    training = sgd.Training(model, optimizer, torch.nn.CrossEntropyLoss(reduction="none"), data, **settings)
    batches = iter(training)
    training.step(next(batches))
    if change == "replaced":
        model[2] = torch.nn.Linear(4, 2)
        optimizer.param_groups[0]["params"][2:] = list(model[2].parameters())
    elif change == "added":
        model.append(torch.nn.Linear(2, 2))
    else:
        model[2].bias.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(sgd.ClippingError, match="other trainable parameters than when the run began"):
        training.step(next(batches))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
