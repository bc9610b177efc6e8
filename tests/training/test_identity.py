"""A resumed run computes what it computed before, or it is a fork: code is compared, not names."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import textwrap
import types
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tacit.ledger import Ledger
from tacit.sgd import CheckpointError, PrivacyWarning, Training
from tacit.sgd.training import identity
from tests.training.common import CLASSES, FEATURES, data

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _keys(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def network(activation=None, width=6):
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(FEATURES, width), activation or nn.Tanh(), nn.Linear(width, CLASSES)).double()


def sgd(model, **settings):
    return torch.optim.SGD(model.parameters(), **({"lr": 0.5, "momentum": 0.9} | settings))


def plainly(logits, labels):
    return F.cross_entropy(logits, labels, reduction="none")


def parts(model=None, loss=None, optimizer=None, schedule=None, **others):
    model = model if model is not None else network()
    optimizer = optimizer(model) if optimizer is not None else sgd(model)
    schedule = schedule(optimizer) if schedule is not None else None
    return identity.keyed(identity.parts_of(model, loss or plainly, optimizer, schedule, **others), b"secret")


def told(one, other):
    return identity.differences(one, other)


# -- runs ------------------------------------------------------------------------------------------------------------


def start(folder, activation=None, smoothing=0.0, rate=0.9, ledger=None):
    """Three steps of a run, or what goes on from its checkpoint."""
    model = network(activation)
    optimizer = sgd(model)
    more = {} if ledger is None else {"ledger": ledger, "dataset": "people"}
    training = Training(
        model,
        optimizer,
        lambda logits, labels: F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing),
        data(),
        batch_size=20,
        steps=6,
        noise_multiplier=1.0,
        delta=1e-5,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate**step),
        checkpoint=folder / "run.ckpt",
        checkpoint_every=1,
        **more,
    )
    for batch in training:
        if training.steps_executed == 3:
            break
        training.step(batch)
    return training


CHANGES = [
    ({"activation": nn.ReLU()}, "the model's 1 (Tanh before, ReLU now)"),
    ({"smoothing": 0.1}, "the loss (code or settings of start.<locals>.<lambda>)"),
    ({"rate": 0.8}, "the schedule (code or settings of LambdaLR)"),
]


def test_another_activation_loss_or_schedule_is_refused_and_the_same_run_goes_on(tmp_path):
    start(tmp_path)
    for change, words in CHANGES:
        with pytest.raises(CheckpointError, match=re.escape(f"cannot be resumed: {words} changed")):
            start(tmp_path, **change)
    assert start(tmp_path).steps_executed == 3


def test_with_a_ledger_another_activation_is_a_fork_with_a_key_and_a_charge_of_its_own(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.register("people", epsilon=1000.0, delta=1e-3, charges=10)
    first = start(tmp_path, ledger=ledger)
    with pytest.warns(PrivacyWarning, match="This run is a fork"):
        second = start(tmp_path, ledger=ledger, activation=nn.ReLU())
    assert second.keys.root != first.keys.root
    assert len(ledger.history("people")) == 2


def test_a_loss_that_cannot_be_told_from_another_is_said_when_the_run_begins(tmp_path):
    model = network()
    stream = (number for number in range(10))
    with pytest.warns(PrivacyWarning, match="the loss .* cannot be recognised"):
        Training(
            model,
            sgd(model),
            lambda logits, labels: plainly(logits, labels) + 0 * len([stream]),
            data(),
            batch_size=20,
            steps=6,
            noise_multiplier=1.0,
            delta=1e-5,
            checkpoint=tmp_path / "run.ckpt",
        )


# -- what is another computation ---------------------------------------------------------------------------------------


def smoothed(amount):
    def loss(logits, labels):
        return F.cross_entropy(logits, labels, reduction="none", label_smoothing=amount)

    return loss


def weighted(logits, labels, weight=1.0):
    return plainly(logits, labels) * weight


SETTINGS = argparse.Namespace(power=1.0, resume=False)


def read_from_settings(logits, labels):
    return plainly(logits, labels) ** SETTINGS.power


@dataclasses.dataclass
class Config:
    slope: float = 0.1
    names: frozenset = frozenset({"a", "bb", "ccc"})


class Leaky(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def forward(self, x):
        return F.leaky_relu(x, self.config.slope)


def hooked(function):
    model = network()
    model[1].register_forward_hook(function)
    return model


def replaced(function):
    model = network()
    model[1].forward = types.MethodType(function, model[1])
    return model


class Scaled(torch.optim.SGD):
    factor = 1.0


OTHERS = {
    "activation": ({}, {"model": network(nn.ReLU())}, "the model's 1"),
    "approximation": ({"model": network(nn.GELU())}, {"model": network(nn.GELU("tanh"))}, "the model's 1"),
    "configuration": ({"model": network(Leaky(Config()))}, {"model": network(Leaky(Config(0.2)))}, "the model's 1"),
    "hook": (
        {"model": hooked(lambda m, x, y: y * 1.0)},
        {"model": hooked(lambda m, x, y: y * 2.0)},
        "the model's 1",
    ),
    "method": (
        {"model": replaced(lambda self, x: x.tanh())},
        {"model": replaced(lambda self, x: x.relu())},
        "the model's 1",
    ),
    "type": ({}, {"model": network().float()}, "the model's 0"),
    "frozen": ({}, {"model": network().requires_grad_(False)}, "the model's 0"),
    "mode": ({}, {"model": network().eval()}, "the model"),
    "body": ({"loss": lambda x, y: plainly(x, y)}, {"loss": lambda x, y: -plainly(x, y)}, "the loss"),
    "constant": ({"loss": lambda x, y: 2.0 * plainly(x, y)}, {"loss": lambda x, y: 3.0 * plainly(x, y)}, "the loss"),
    "closure": ({"loss": smoothed(0.0)}, {"loss": smoothed(0.1)}, "the loss"),
    "partial": (
        {"loss": functools.partial(weighted, weight=1.0)},
        {"loss": functools.partial(weighted, weight=2.0)},
        "the loss",
    ),
    "criterion": (
        {"loss": nn.CrossEntropyLoss(reduction="none")},
        {"loss": nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)},
        "the loss",
    ),
    "weights": (
        {"loss": nn.CrossEntropyLoss(torch.ones(CLASSES), reduction="none")},
        {"loss": nn.CrossEntropyLoss(2 * torch.ones(CLASSES), reduction="none")},
        "the loss",
    ),
    "rate": ({}, {"optimizer": lambda m: sgd(m, lr=0.4)}, "the optimizer"),
    "groups": (
        {},
        {"optimizer": lambda m: torch.optim.SGD([*m.parameters()][::-1], lr=0.5, momentum=0.9)},
        "the optimizer",
    ),
    "schedule": (
        {"schedule": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step)},
        {"schedule": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.8**step)},
        "the schedule",
    ),
    "step": (
        {"schedule": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5)},
        {"schedule": lambda o: torch.optim.lr_scheduler.StepLR(o, 4, 0.5)},
        "the schedule",
    ),
    "views": ({"augment": (torch.flip, 1)}, {"augment": (torch.flip, 2)}, "augment"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_changes_the_computation_changes_its_name_and_is_told_by_part(case):
    before, after, part = OTHERS[case]
    assert told(parts(**before), parts(**before)) == []
    changed = told(parts(**before), parts(**after))
    assert changed
    assert changed[0].startswith(f"{part} (")


def test_what_a_loss_calls_and_reads_is_part_of_it(monkeypatch):
    here = sys.modules[__name__]
    before = parts(loss=read_from_settings)
    monkeypatch.setattr(here, "plainly", lambda x, y: 2 * F.cross_entropy(x, y, reduction="none"))
    assert told(before, parts(loss=read_from_settings))
    monkeypatch.undo()
    monkeypatch.setattr(here, "SETTINGS", argparse.Namespace(power=2.0, resume=False))
    assert told(before, parts(loss=read_from_settings))
    # What it does not read is not: a script that is told to resume is the same script.
    monkeypatch.setattr(here, "SETTINGS", argparse.Namespace(power=1.0, resume=True))
    assert told(before, parts(loss=read_from_settings)) == []


def test_a_method_of_an_optimizer_of_ones_own_is_part_of_it(monkeypatch):
    def mine(m):
        return Scaled(m.parameters(), lr=0.5)

    before = parts(optimizer=mine)
    monkeypatch.setattr(Scaled, "factor", 2.0)
    assert told(before, parts(optimizer=mine))[0].startswith("the optimizer (")


def test_a_replaced_method_of_an_installed_class_is_noticed(monkeypatch):
    before = parts()
    monkeypatch.setattr(nn.Tanh, "forward", lambda self, x: x.relu())
    assert told(before, parts()) == ["the model's 1 (code or settings of Tanh)"]


def test_initial_weights_and_the_state_of_training_are_not_what_computes():
    model = network()
    optimizer = sgd(model)
    before = identity.parts_of(model, plainly, optimizer)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    assert identity.parts_of(model, plainly, sgd(model)) == before


def test_names_in_a_checkpoint_tell_nothing_without_its_key():
    found = identity.parts_of(network(), smoothed(0.123), sgd(network()))
    assert identity.keyed(found, b"one")["the loss"] != identity.keyed(found, b"other")["the loss"]


def test_naming_calls_nothing():
    class Watched(nn.Module):
        def forward(self, x):
            raise AssertionError("called")

        @property
        def value(self):
            raise AssertionError("read")

    torch.manual_seed(3)
    state = torch.get_rng_state()
    model = nn.Sequential(nn.Linear(FEATURES, 3), Watched())
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert identity.parts_of(model, plainly, sgd(model))
    assert torch.equal(torch.get_rng_state(), state)


# -- the same script, started again ------------------------------------------------------------------------------------

SCRIPT = """
import argparse, dataclasses, enum, functools, json, pathlib, random, re, sys
import numpy as np, torch, torch.nn.functional as F
from torch import nn
from tacit.sgd.training import identity

class Kind(enum.Enum):
    ONE = 1

@dataclasses.dataclass
class Config:
    width: int = 4
    kind: Kind = Kind.ONE
    words: set = dataclasses.field(default_factory=lambda: {"a", "bb", "ccc", "dddd", "eeeee"})
    folder: pathlib.Path = pathlib.Path("somewhere")

ARGUMENTS = argparse.Namespace(smoothing=0.1, resume=len(sys.argv) > 1, run=random.random())
WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0])

def squashed(x):
    return torch.tanh(x) * SCALE

SCALE = 2.0

class Base(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.parent, self.pattern = config, [self], re.compile("a.b")
        self.generator, self.kind = np.random.default_rng(3), torch.float32
        self.register_buffer("places", torch.arange(4.0), persistent=False)

class Block(Base):
    def __init__(self, config):
        super().__init__(config)
        self.linear, self.scale = nn.Linear(config.width, config.width), lambda x: 1.5 * x

    @functools.cached_property
    def third(self):
        return 3

    @staticmethod
    def twice(x):
        return 2 * x

    def forward(self, x):
        return squashed(self.scale(self.twice(self.linear(x)))) if x.sum() in {1, 2, 3} else x

def loss(logits, labels, weight):
    return F.cross_entropy(logits, labels, weight=weight, label_smoothing=ARGUMENTS.smoothing, reduction="none")

def warm(total):
    return lambda step: min(1.0, (step + 1) / total)

model = nn.Sequential(Block(Config()), nn.TransformerEncoderLayer(4, 2), nn.LSTM(4, 4))
model.register_forward_hook(lambda module, given, result: result)
optimizer = torch.optim.AdamW([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1:].parameters()}])
schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, warm(10)), torch.optim.lr_scheduler.StepLR(optimizer, 5)]
schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, schedules, [10])
parts = identity.parts_of(model, functools.partial(loss, weight=WEIGHT), optimizer, schedule)
print(json.dumps(identity.keyed(parts, b"secret")))
"""


def test_a_script_that_is_started_again_computes_the_same(tmp_path):
    found = []
    for seed, arguments in ((1, ()), (2, ("--resume",))):
        place = tmp_path / f"copy{seed}" / "train.py"  # moved, with a line more at its top
        place.parent.mkdir()
        place.write_text("\n" * seed + textwrap.dedent(SCRIPT))
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": str(seed)}
        told = subprocess.run(
            [sys.executable, str(place), *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert told.returncode == 0, told.stderr
        found.append(json.loads(told.stdout))
    assert all(name is not None for _, name in found[0].values())
    assert identity.differences(*found) == []
