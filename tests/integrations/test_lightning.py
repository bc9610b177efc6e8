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
from lightning.pytorch.callbacks import EarlyStopping, LearningRateFinder, ModelCheckpoint, ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from tests.integrations.lightning_run import Module, fit, records
from torch.utils.data import DataLoader

from tacit import accounting as acc
from tacit.accounting.errors import PrivacyWarning
from tacit.integrations import lightning
from tacit.integrations.lightning import PrivateTraining
from tacit.integrations.trackers import record
from tacit.ledger.surroundings import SearchRefused
from tacit.sgd import BatchMixing, ClippingError
from tacit.sgd.gradients import company
from tacit.sgd.hooked import loop

ROOT = Path(__file__).parents[2]


def test_a_budget_is_kept_and_logged(tmp_path):
    trainer, private, _ = fit(
        tmp_path, epochs=6, private={"target_epsilon": 8.0, "noise_multiplier": None}, module=Module(lr=1.0)
    )
    assert 7.9 < private.privacy.claim <= 8.0
    assert private.privacy.claim <= trainer.callback_metrics["epsilon"] == pytest.approx(8.0, abs=0.1)
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


class Together(Module):
    """Reads its batch as a whole, in ``training_step`` and not in a layer."""

    def __init__(self, how, late=False):
        super().__init__()
        self.how, self.late, self.seen = how, late, 0

    def training_step(self, batch, index):
        x, y = batch
        self.seen += 1
        how = "" if self.late and self.trainer.global_step < 2 else self.how
        x = 0.7 * x + 0.3 * x.flip(0) if how == "mixed inputs" else x
        x = (x - x.mean(0)) / (x.std(0) + 0.1) if how == "standardised" else x
        scores = self.head(self.body(F.dropout(x, 0.2)))
        losses = F.cross_entropy(scores, y, reduction="none")
        self.log("loss", losses.mean())
        if how == "swapped" and self.trainer.global_step == 2:
            self.head = torch.nn.Linear(16, 3)
        if how == "classes":
            return (losses / torch.bincount(y)[y]).sum()
        more = {"variance": scores.var(0).sum(), "largest": losses.max()}
        return {"loss": losses.mean() + more.get(how, 0.0)}


@pytest.mark.parametrize("how", ["variance", "largest", "classes", "mixed inputs", "standardised"])
def test_a_loss_through_which_examples_reach_one_another_is_refused(tmp_path, how):
    with pytest.raises(BatchMixing, match="no sum or mean over the examples"):
        fit(tmp_path, module=Together(how), max_steps=2)


def test_also_where_it_begins_later_at_one_of_the_random_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "EVERY", 1)
    monkeypatch.setattr(lightning, "SELDOM", 1)
    with pytest.raises(BatchMixing, match="no sum or mean"):
        fit(tmp_path, module=Together("variance", late=True), max_steps=4)


def test_without_the_comparison_it_would_not_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(company, "adds_up", lambda *_: True)
    assert fit(tmp_path, module=Together("variance"), max_steps=2)[0].global_step == 2


def test_a_mean_of_losses_is_fine_and_looking_at_it_leaves_no_trace(tmp_path, monkeypatch):
    """What the module counts and logs, and the draws of dropout, are as without."""
    monkeypatch.setattr(loop, "EVERY", 1)
    monkeypatch.setattr(lightning, "SELDOM", 1)
    states, look = [], PrivateTraining._look_at_loss

    def watched(self, trainer, module, *rest):
        def state():
            return torch.get_rng_state(), module.seen, dict(trainer.callback_metrics), module.log

        states.append(state())
        look(self, trainer, module, *rest)
        states.append(state())

    monkeypatch.setattr(PrivateTraining, "_look_at_loss", watched)
    trainer, _, module = fit(tmp_path, module=Together(""), max_steps=3)
    assert trainer.global_step == module.seen == 3
    assert len(states) == 6
    for before, after in zip(states[::2], states[1::2], strict=True):
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]


def test_a_layer_that_is_swapped_in_the_middle_of_a_run_is_refused(tmp_path):
    """The optimizer has no noise for it."""
    with pytest.raises(ClippingError, match="other trainable parameters than when it was made private"):
        fit(tmp_path, module=Together("swapped"), max_steps=5)


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


def test_a_resumed_module_with_another_activation_takes_a_new_key(tmp_path):
    def module(activation):
        made = Module()
        made.body = torch.nn.Sequential(torch.nn.Linear(20, 16), activation)
        return made

    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if trainer.global_step == 13:
                trainer.save_checkpoint(tmp_path / "at13.ckpt")
                raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        fit(tmp_path, module=module(torch.nn.Tanh()), callbacks=[Stop()])
    _, private, _ = fit(tmp_path, module=module(torch.nn.ReLU()), checkpoint=tmp_path / "at13.ckpt")
    assert not private.run._same_noise


@pytest.mark.slow
def test_two_processes_train_the_model_that_one_trains(tmp_path):
    told = {}
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        command = [sys.executable, "-m", "tests.integrations.lightning_run", str(folder), str(processes)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
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


# -- what is claimed, over all runs ------------------------------------------------------------------------------------


def trainer_with(*callbacks, **options):
    settings = {"max_epochs": 2, "logger": False, "enable_checkpointing": False, "log_every_n_steps": 1, **options}
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )


def loader():
    return DataLoader(records(), batch_size=24)


class StopAt(pl.Callback):
    """As EarlyStopping and Timer do, at a step that is known."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        trainer.should_stop = trainer.global_step == self.step


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_run_of_a_callback_is_in_what_it_claims(tmp_path):
    private, module = PrivateTraining(target_epsilon=3.0, target_delta=1e-5, key_file=tmp_path / "k"), Module()
    trainer = trainer_with(private)
    trainer.fit(module, loader())
    assert 2.999 < private.privacy.claim <= 3.0
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    with pytest.warns(PrivacyWarning, match=r"ε will be 3\.9.* above target_epsilon=3"):
        trainer_with(private).fit(module, loader())
    noise = private.run.loop.noise_multiplier
    whole = acc.PoissonSampled(acc.Gaussian(noise), 0.1) * 40
    assert private.privacy.claim == pytest.approx(acc.epsilon(whole, 1e-5).upper, rel=1e-6)
    assert record(private)["epsilon"] == private.privacy.claim
    # The checkpoint of a run that has ended carries what was spent, too.
    other = PrivateTraining(target_epsilon=3.0, target_delta=1e-5)
    with pytest.warns(PrivacyWarning) as said:
        trainer_with(other, max_epochs=4).fit(module, loader(), ckpt_path=tmp_path / "end.ckpt", weights_only=False)
    assert any("above target_epsilon" in str(w.message) for w in said)
    assert other.privacy.claim == pytest.approx(private.privacy.claim, rel=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_that_stops_early_claims_its_plan_unless_nobody_looked(tmp_path):
    private = PrivateTraining(target_epsilon=3.0, target_delta=1e-5, key_file=tmp_path / "k")
    with pytest.warns(PrivacyWarning, match="5 of 20 planned steps"):
        trainer_with(private, StopAt(5), min_epochs=0).fit(Module(), loader())
    assert 2.999 < private.privacy.claim <= 3.0
    assert private.run.basis == "the plan is claimed"
    assert not (tmp_path / "k").exists()
    private.stop("the machine was needed", looked_at_results=False)
    assert private.privacy.claim < 2.0
    assert private.run.basis == "stopped: the machine was needed; without looking at results"


def test_a_run_that_breaks_off_keeps_its_key_only_where_it_can_be_resumed(tmp_path):
    class Break(pl.Callback):
        def __init__(self, save):
            self.save = save

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if trainer.global_step == 3:
                if self.save:
                    trainer.save_checkpoint(tmp_path / "c.ckpt")
                raise OSError("the disk went away")

    for save in (False, True):
        with pytest.raises(OSError, match="disk"):
            fit(tmp_path, callbacks=[Break(save)])
        assert (tmp_path / "run.key").exists() is save


# -- what is logged ----------------------------------------------------------------------------------------------------


class Talking(Module):
    """Logs what it should keep to itself."""

    def __init__(self, plateau=False):
        super().__init__()
        self.plateau = plateau

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.log("train_loss", loss)
        self.log_dict({"train_again": loss, "lr": self.lr}, on_step=True, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        self.log("end_loss", 0.123456)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        if not self.plateau:
            return optimizer
        follows = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": follows, "monitor": "train_loss"}}


def logged(folder):
    return (next(folder.rglob("metrics.csv"))).read_text().splitlines()[0].split(",")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_training_logs_reaches_neither_loggers_nor_checkpoints(tmp_path):
    private = PrivateTraining(noise_multiplier=1.0, target_delta=1e-5, public_logs=["lr"])
    stop = EarlyStopping("train_loss", patience=9)
    trainer = trainer_with(private, stop, logger=CSVLogger(tmp_path))
    module = Talking()
    with pytest.warns(PrivacyWarning, match="withheld") as said:
        trainer.fit(module, loader())
    told = {str(w.message).split()[0] for w in said if w.category is PrivacyWarning}
    assert told == {"'train_loss'", "'train_again'", "'end_loss'"}
    assert not [name for name in logged(tmp_path) if "loss" in name or "again" in name]
    assert {"epsilon", "lr_step", "lr_epoch"} <= set(logged(tmp_path))
    # Callbacks of the operator see it, and files do not.
    assert torch.isfinite(stop.best_score)
    trainer.save_checkpoint(tmp_path / "c.ckpt")
    saved = torch.load(tmp_path / "c.ckpt", weights_only=False)
    assert torch.isinf(saved["callbacks"][stop.state_key]["best_score"])
    assert "log" not in vars(module)  # the module is as it was


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_private_values_are_logged_where_nobody_else_reads(tmp_path):
    private = PrivateTraining(noise_multiplier=1.0, target_delta=1e-5, show_private=True)
    trainer_with(private, logger=CSVLogger(tmp_path), max_epochs=1).fit(Talking(), loader())
    assert "train_loss" in logged(tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_files_and_learning_rates_by_private_values_are_refused(tmp_path):
    def private():
        return PrivateTraining(noise_multiplier=1.0, target_delta=1e-5)

    for saver in (
        ModelCheckpoint(tmp_path, monitor="train_loss"),
        ModelCheckpoint(tmp_path, filename="{train_again_step:.3f}"),
    ):
        with pytest.raises(ValueError, match="into its files"):
            trainer_with(private(), saver, enable_checkpointing=True).fit(Talking(), loader())
    with pytest.raises(ValueError, match="learning rate follows 'train_loss'"):
        trainer_with(private()).fit(Talking(plateau=True), loader())
    with pytest.raises(ValueError, match="sizes of batches"):
        trainer_with(private(), ThroughputMonitor(len)).fit(Talking(), loader())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tuners_are_refused():
    class Loaded(Module):
        batch_size = 24

        def train_dataloader(self):
            return loader()

    private = PrivateTraining(noise_multiplier=1.0, target_delta=1e-5)
    for tune in (lambda t: Tuner(t).lr_find(Loaded()), lambda t: Tuner(t).scale_batch_size(Loaded())):
        with pytest.raises(SearchRefused, match=r"tacit\.tuning"):
            tune(trainer_with(private))
    with pytest.raises(SearchRefused):
        trainer_with(private, LearningRateFinder()).fit(Module(), loader())
