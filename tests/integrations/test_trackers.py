"""Trackers hold what the guarantee covers, and nothing else by mistake."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from tests.opacus.harness import data, net, private

from tacit.integrations.trackers import Tracker, mlflow, record, tensorboard, wandb
from tacit.ledger import PrivateValueError, Release, public

HELD = []


@functools.cache
def trained(**options):
    """A private run of six steps, and its model, which somebody has to hold."""
    model = net()
    engine, optimizer, loader = private(model, data(48), noise=1.0, **options)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    HELD.append(model)
    return engine, optimizer


def test_the_record_is_a_release_without_raw_values():
    engine, optimizer = trained()
    told = record(engine, 1e-5)
    assert isinstance(told, Release)
    assert told["epsilon"] == engine.get_epsilon(1e-5)
    assert told["steps"] == 6
    assert "clipped_fraction" not in told
    # The ratio is computed from the noisy gradient that the optimizer was given.
    noisy = torch.cat([p.grad.flatten() for p in optimizer.params]).double() * 8
    expected = max(0.0, float(noisy.square().sum()) / (len(noisy) * 0.3**2) - 1) ** 0.5
    assert told["signal_to_noise"] == pytest.approx(expected, rel=1e-4)


def test_a_clipped_fraction_leaves_only_where_it_was_counted_with_noise():
    engine, _ = trained(clipping="adaptive", unclipped_num_std=4.0)
    told = record(engine, 1e-5)
    assert "noisy count" in told.source("clipped_fraction")
    engine, _ = trained()
    written = []
    Tracker(engine, lambda values, step: written.append(values), delta=1e-5).log()
    assert not any("clipped" in name for name in written[0])
    Tracker(engine, lambda values, step: written.append(values), delta=1e-5, operator=True).log()
    assert 0 <= written[1]["operator/clipped_fraction"] <= 1


def test_a_bare_value_is_refused():
    engine, _ = trained()
    tracker = Tracker(engine, lambda values, step: None, delta=1e-5)
    with pytest.raises(PrivateValueError, match="Release"):
        tracker.log({"loss": 0.3})
    told = tracker.log(Release({"accuracy": public(0.9, because="measured on public data")}))
    assert told["accuracy"] == 0.9


def test_tensorboard_has_the_values(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    engine, _ = trained()
    with SummaryWriter(tmp_path) as writer:
        Tracker(engine, tensorboard(writer), delta=1e-5).log()
    events = EventAccumulator(str(tmp_path)).Reload()
    (event,) = events.Scalars("privacy/epsilon")
    assert (event.step, event.value) == (6, pytest.approx(engine.get_epsilon(1e-5), rel=1e-6))


def test_mlflow_has_the_values(tmp_path, monkeypatch):
    package = pytest.importorskip("mlflow", reason="needs mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    package.set_tracking_uri(f"file:{tmp_path}/mlruns")
    engine, _ = trained()
    with package.start_run() as active:
        Tracker(engine, mlflow(), delta=1e-5).log()
    metrics = package.get_run(active.info.run_id).data.metrics
    assert metrics["privacy/epsilon"] == pytest.approx(engine.get_epsilon(1e-5))
    assert not any("clipped" in name for name in metrics)


def test_wandb_has_the_values(tmp_path, monkeypatch):
    package = pytest.importorskip("wandb", reason="needs wandb")
    for name in ("WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    engine, _ = trained()
    active = package.init(mode="offline", dir=str(tmp_path), settings=package.Settings(silent=True))
    Tracker(engine, wandb(active), delta=1e-5).log()
    summary = dict(active.summary)
    active.finish()
    assert summary["privacy/epsilon"] == pytest.approx(engine.get_epsilon(1e-5))
    assert not any("clipped" in name for name in summary)
