"""Does a run that was interrupted keep its promises? The same releases again, or a charge of its own."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.audit import bounds
from tacit.audit.findings import Finding, holds
from tacit.ledger import Ledger
from tacit.noise.keys import Key
from tacit.selftest import models
from tacit.selftest.scene import Scene, charged, refused
from tacit.sgd import Training
from tacit.sgd.training import checkpoint
from tacit.sgd.training.checkpoint import CheckpointError

STEPS, DONE, DELTA = 6, 3, 1e-5


def _training(folder: str, seed: int, x: Any = None, y: Any = None, **more: Any) -> Training:
    """A run over all records in every step, whose weights move, with its checkpoint and key in a folder."""
    rows = models.table(seed)
    torch.manual_seed(seed)
    model = more.pop("model", None) or nn.Linear(models.FEATURES, models.CLASSES)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=more.pop("lr", 0.1))
    usual: dict[str, Any] = {
        "batch_size": models.ROWS,
        "steps": STEPS,
        "noise_multiplier": 2.0,
        "clip_norm": 0.5,
        "delta": DELTA,
        "checkpoint": Path(folder) / "run.pt",
        "key_file": Path(folder) / "run.key",
        "checkpoint_every": 1,
    }
    data = (rows[0] if x is None else x, rows[1] if y is None else y)
    loss = more.pop("loss", nn.CrossEntropyLoss(reduction="none"))
    return Training(model, optimizer, loss, data, **(usual | more))


def _go(training: Training, until: int = STEPS) -> list[Any]:
    """Steps, and the weights after each."""
    weights = []
    for batch in training:
        training.step(batch)
        weights.append(torch.cat([p.detach().flatten() for p in training.parameters.values()]).numpy().copy())
        if training.steps_executed == until:
            break
    return weights


def changed_runs_are_forks(seed: int) -> list[Finding]:
    """Whatever changed since the checkpoint, it is refused without a ledger and charged with one."""
    x, y = models.table(seed)
    other = x.clone()
    other[4, 2] += 1.0
    fewer = x[:-1], y[:-1]
    labels = y.clone()
    labels[0] = (labels[0] + 1) % models.CLASSES
    owners, people = [k // 2 for k in range(models.ROWS)], {"batch_size": models.ROWS // 2}
    changes: dict[str, dict[str, Any]] = {
        "one number of the data": {"x": other},
        "one label": {"y": labels},
        "one record fewer": {"x": fewer[0], "y": fewer[1], "batch_size": models.ROWS - 1},
        "the order of the records": {"x": x.flip(0), "y": y.flip(0)},
        "less noise": {"noise_multiplier": 1.0},
        "a larger clip norm": {"clip_norm": 1.0},
        "more steps": {"steps": STEPS + 2},
        "another learning rate": {"lr": 0.2},
        "another loss": {"loss": nn.MultiMarginLoss(reduction="none")},
        "another δ": {"delta": 1e-6},
        "records of other people": {"groups": [*owners[1:], owners[0]], **people},
    }
    begun = {"records of other people": {"groups": owners, **people}}
    cases: dict[str, tuple[Callable[[], object], Any]] = {}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, change in changes.items():
            place = f"{folder}/{len(cases)}"
            Path(place).mkdir()
            _go(_training(place, seed, **begun.get(name, {})), DONE)
            cases[name] = (lambda p=place, c=change: _go(_training(p, seed, **c)), CheckpointError)  # type: ignore[misc]
        found.append(refused("resume: changes", cases))
    books = Ledger()
    books.register("people", epsilon=200.0, delta=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        ours: dict[str, Any] = {"ledger": books, "dataset": "people"}
        first = _training(folder, seed, **ours)
        _go(first, DONE)
        forked = _training(folder, seed, x=other, **ours)
        _go(forked)
        charges, spent = books.budget("people").charges, charged(books, DELTA)
        claim = forked.privacy.upper
    # Three steps of the first run, and at least the other three with new noise on other data.
    least = bounds.gaussian_epsilon(math.sqrt(STEPS) / 2.0, DELTA)
    return [
        *found,
        holds("resume: a fork is charged", charges == 2, f"{charges} charges for a run and its fork"),
        holds("resume: a fork claims both", claim >= least * (1 - 1e-6), f"claimed {claim:.4f}, at least {least:.4f}"),
        holds("resume: a fork is paid in full", spent >= least * (1 - 1e-6), f"charged {spent:.4f} of {least:.4f}"),
    ]


def the_same_run_goes_on(seed: int) -> list[Finding]:
    """Unchanged, it makes the same steps with the same noise, charged once; a file that was altered is refused."""
    books = Ledger()
    books.register("people", epsilon=200.0, delta=1e-3)
    ours: dict[str, Any] = {"ledger": books, "dataset": "people"}
    with tempfile.TemporaryDirectory() as folder:
        first = _go(_training(folder, seed, **ours), DONE)
        resumed = _training(folder, seed, **ours)
        rest = _go(resumed)
        charges, steps = books.budget("people").charges, len(rest)
        closed = not list(Path(folder).glob("*.key")) or all(
            p.stat().st_mode & 0o077 == 0 for p in Path(folder).glob("*.key")
        )
    again: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        _go(_training(folder, seed), DONE + 1)
        kept = (Path(folder) / "run.pt").read_bytes()
        again = _go(_training(folder, seed))
        (Path(folder) / "run.pt").write_bytes(kept[:-7] + b"altered")
        altered = refused("resume: files", {"an altered file": (lambda: _go(_training(folder, seed)), Exception)})
    with tempfile.TemporaryDirectory() as folder:
        # Whoever has the file and not the key writes another state: fewer steps made, so that noise is drawn again.
        path = Path(folder) / "run.pt"
        _go(_training(folder, seed), DONE)
        state, _, _ = checkpoint.read(path)
        checkpoint.write(path, state | {"step": 1}, Key.generate())
        forged = refused("resume: forged", {"another state": (lambda: _go(_training(folder, seed)), CheckpointError)})
    with tempfile.TemporaryDirectory() as folder:
        _go(_training(folder, seed), DONE)
        (Path(folder) / "run.key").unlink()
        lost = refused("resume: keys", {"the key is gone": (lambda: _go(_training(folder, seed)), CheckpointError)})
    whole = bounds.gaussian_epsilon(math.sqrt(STEPS) / 2.0, DELTA)
    moved = len({w.tobytes() for w in [*first, *rest]})
    stopped = _stopped(seed)
    return [
        holds("resume: rest of the steps", steps == STEPS - DONE, f"{steps} of {STEPS - DONE} steps were made"),
        holds("resume: one charge", charges == 1, f"{charges} charges"),
        holds("resume: claim", resumed.privacy.upper >= whole * (1 - 1e-6), f"claimed {resumed.privacy.upper:.4f}"),
        holds("resume: steps move", moved == STEPS and len(again) == STEPS - DONE - 1, f"{moved} different weights"),
        holds("resume: the key is closed", closed, "only its owner reads it"),
        holds("resume: stopped runs", stopped, "a public reason to stop pays for what was made"),
        altered,
        forged,
        lost,
    ]


def _stopped(seed: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        run = _training(folder, seed)
        planned = run.privacy.upper
        _go(run, 2)
        run.stop("the power is cut at noon", looked_at_results=False)
        two = bounds.gaussian_epsilon(math.sqrt(2) / 2.0, DELTA)
        return bool(two * (1 - 1e-6) <= run.privacy.upper <= planned) and np.isfinite(planned)


SCENES = (
    Scene("resume: forks", "sgd", changed_runs_are_forks),
    Scene("resume: the same run", "sgd", the_same_run_goes_on),
)
