"""An ordinary LightningModule trains privately, is resumed, and is spread over processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("lightning", reason="needs Lightning: pip install 'tacit[lightning]'")

import lightning.pytorch as pl
from tests.integrations.lightning_run import Module, fit

from tacit.integrations.lightning import PrivateTraining

ROOT = Path(__file__).parents[2]


def test_a_budget_is_kept_and_logged(tmp_path):
    trainer, private, _ = fit(
        tmp_path, epochs=6, private={"target_epsilon": 8.0, "noise_multiplier": None}, module=Module(lr=1.0)
    )
    assert 7.9 < private.bound().upper <= 8.0
    assert trainer.callback_metrics["epsilon"] == pytest.approx(8.0, abs=0.1)
    assert trainer.callback_metrics["accuracy"] > 0.6
    assert trainer.global_step == 60
    assert not (tmp_path / "run.key").exists()


@pytest.mark.filterwarnings("ignore:noise_multiplier is 0")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_is_the_clipped_sum_of_the_draw(tmp_path, accumulate):
    batches, found, weights = [], [], []

    class See(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            batches.append(batch)
            if not weights:
                weights.append({n: p.detach().clone() for n, p in module.named_parameters()})

        def on_before_zero_grad(self, trainer, module, optimizer):
            grads = [p.grad for p in module.parameters()]
            if trainer.global_step == 1 and not found and grads[0] is not None:
                found.extend(g.clone() for g in grads)

    fit(
        tmp_path,
        callbacks=[See()],
        private={"noise_multiplier": 0.0},
        accumulate_grad_batches=accumulate,
        max_steps=2,
        epochs=-1,
    )
    first = batches[:accumulate]
    model = Module()
    model.load_state_dict(weights[0])
    parameters = list(model.parameters())
    wanted = [torch.zeros_like(p) for p in parameters]
    for x, y in first:
        for k in range(len(x)):
            own = torch.autograd.grad(F.cross_entropy(model.head(model.body(x[k : k + 1])), y[k : k + 1]), parameters)
            norm = torch.stack([g.norm() for g in own]).norm()
            for w, g in zip(wanted, own, strict=True):
                w += g * min(1.0, 1.0 / float(norm)) / (24 * accumulate)
    assert found
    assert all(torch.allclose(f, w, atol=1e-5) for f, w in zip(found, wanted, strict=True))


def test_a_run_is_resumed_with_its_key_and_its_costs(tmp_path):
    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if trainer.global_step == 13:
                trainer.save_checkpoint(tmp_path / "at13.ckpt")
                raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        fit(tmp_path, callbacks=[Stop()])
    assert (tmp_path / "run.key").exists()
    trainer, private, _ = fit(tmp_path, checkpoint=tmp_path / "at13.ckpt")
    assert trainer.global_step == 20
    assert private.run.loop.spent.releases == [(1.0, 1, 20)]
    assert not (tmp_path / "run.key").exists()


def test_a_resumed_run_draws_the_dropout_that_it_would_have_drawn(tmp_path, monkeypatch):
    # Otherwise two releases of one step have the same noise and other gradients, and their difference has no noise.
    monkeypatch.setattr("tacit.noise.keys.fresh_bytes", lambda count: b"k" * count)

    def module():
        made = Module()
        made.body = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Dropout(0.5))
        return made

    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if trainer.global_step == 13:
                trainer.save_checkpoint(tmp_path / "at13.ckpt")
            if trainer.global_step == 15:
                raise KeyboardInterrupt

    torch.manual_seed(1)
    first = module()
    start = {n: v.clone() for n, v in first.state_dict().items()}
    _, _, whole = fit(tmp_path, module=first)
    again = module()
    again.load_state_dict(start)
    with pytest.raises(SystemExit):
        fit(tmp_path, module=again, callbacks=[Stop()])
    _, private, resumed = fit(tmp_path, module=module(), checkpoint=tmp_path / "at13.ckpt")
    assert private.run._same_noise
    assert all(torch.equal(v, resumed.state_dict()[n]) for n, v in whole.state_dict().items())


@pytest.mark.slow
def test_two_processes_train_the_model_that_one_trains(tmp_path):
    told = {}
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        command = [sys.executable, "-m", "tests.integrations.lightning_run", str(folder), str(processes)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
        told[processes] = [torch.load(folder / f"rank{rank}.pt") for rank in range(processes)]
    (one,), (first, second) = told[1], told[2]
    assert one["steps"] == first["steps"] == second["steps"] == 20
    assert one["epsilon"] == first["epsilon"] == second["epsilon"]
    for name, value in one["weights"].items():
        assert torch.equal(first["weights"][name], second["weights"][name])
        # Same draws, same noise, once: only the order of sums is another.
        assert torch.allclose(value, first["weights"][name], atol=1e-4)


def test_strategies_and_settings_that_cannot_be_right_are_refused(tmp_path):
    private = PrivateTraining(target_delta=1e-5, noise_multiplier=1.0)
    spread = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False)
    with pytest.raises(NotImplementedError, match="PrivateDDPStrategy"):
        private.setup(spread, Module(), "fit")
    with pytest.raises(ValueError, match="gradient_clip_val"):
        fit(tmp_path, gradient_clip_val=1.0)
