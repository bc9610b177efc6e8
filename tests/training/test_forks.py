"""A run belongs to one process: a fork of it, or a copy, cannot use its noise or its charge a second time."""

from __future__ import annotations

import copy
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tacit.ledger import Ledger
from tacit.noise import ForkError
from tacit.opacus import PrivacyEngine
from tests import programs
from tests.training.common import LOSS, data, network, run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
ROOT = Path(__file__).parents[2]


def of_training(folder):
    """A run made with ``Training``: what makes its next step, its model, and what holds its key."""
    ledger = Ledger(folder / "ledger.db")
    ledger.register("people", epsilon=1000.0, delta=1e-3, charges=10)
    x, y = data()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    training = run(model, (x, y), optimizer, noise_multiplier=50.0, key=None, ledger=ledger, dataset="people")
    batches = iter(training)

    def step(flip=False):
        if flip:
            y.copy_((y + 1) % 3)
        training.step(next(batches))

    return step, model, training


def of_loop(folder, workers=0):
    """A loop of the user's own made private by ``PrivacyEngine``."""
    ledger = Ledger(folder / "ledger.db")
    ledger.register("people", epsilon=1000.0, delta=1e-3, charges=10)
    x, y = data()
    model = network()
    model, optimizer, loader = PrivacyEngine(ledger=ledger, dataset="people").make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=20, num_workers=workers),
        noise_multiplier=50.0,
        max_grad_norm=1.0,
        steps=6,
    )
    batches = iter(loader)
    drawn = [next(batches)]  # before the fork: the key of the draws is not what refuses

    def step(flip=False):
        some, labels = drawn.pop()
        optimizer.zero_grad()
        LOSS(model(some), (labels + flip) % 3).mean().backward()
        optimizer.step()
        drawn.append(next(batches))

    return step, model, optimizer.loop


def forked(kind, folder):
    """Fork after a step, flip the labels in the child and let both make the next one."""
    torch.set_num_threads(1)
    step, model, _ = {"Training": of_training, "Loop": of_loop}[kind](folder)
    step()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            step(flip=True)
            told = "released"
        except ForkError as error:
            told = f"refused: {error}"
        finally:
            moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
            os.write(there, json.dumps([told, moved.tolist()]).encode())
            os._exit(0)
    os.waitpid(child, 0)
    os.close(there)
    told, moved = json.loads(os.read(here, 1 << 20))
    step()
    own = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
    difference = (own - torch.tensor(moved, dtype=own.dtype)).norm() / own.norm()
    return {
        "child": told,
        "left of the noise": float(difference),
        "charges": len(Ledger(folder / "ledger.db").history("people")),
    }


def workers(folder):
    """Steps on batches that forked workers of the data loader read."""
    step, *_ = of_loop(folder, workers=2)
    step()
    step()
    return "made"


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What happened, in a process without the threads that make forking this one a risk."""
    code = (
        "import json, pathlib, sys; from tests.training import test_forks as t; folder = pathlib.Path(sys.argv[1]);"
        "kinds = ('Training', 'Loop'); [(folder / kind).mkdir() for kind in kinds];"
        "print(json.dumps({kind: t.forked(kind, folder / kind) for kind in kinds} | {'workers': t.workers(folder)}))"
    )
    told = programs.run(["-c", code, str(tmp_path_factory.mktemp("forks"))], cwd=ROOT, options=["-Wignore"])
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["Training", "Loop"])
def test_a_fork_cannot_make_a_second_release_with_the_same_noise(kind, told):
    assert told[kind]["child"].startswith("refused: ")
    assert "in the process that trains it" in told[kind]["child"]
    # Subtracting what the child has leaves all of the parent's noise; with the same noise 1/50 of it would be left.
    assert told[kind]["left of the noise"] == 1.0
    assert told[kind]["charges"] == 1


def test_worker_processes_that_only_read_data_are_no_second_run(told):
    assert told["workers"] == "made"


def test_a_run_is_not_copied_with_its_noise_and_its_charge(tmp_path):
    _, _, loop = of_loop(tmp_path)
    for held in (run(), loop, loop.paid):
        for how in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="copied"):
                how(held)
