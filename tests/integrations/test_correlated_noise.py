"""Correlated noise in other people's trainers: what is released, what it costs, and resumed runs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

pl = pytest.importorskip("lightning.pytorch", reason="needs lightning: pip install 'tacit[lightning]'")
for package in ("transformers", "peft", "accelerate"):
    pytest.importorskip(package, reason=f"needs {package}: pip install 'tacit[transformers]'")

from tests.integrations.lightning_run import Module, fit  # noqa: E402
from tests.integrations.trainer_run import trainer  # noqa: E402

from tacit import accounting as acc  # noqa: E402
from tacit.audit import statistics  # noqa: E402
from tacit.ledger import Ledger  # noqa: E402
from tacit.sgd import Banded, BandedInverse, release  # noqa: E402
from tacit.sgd.hooked.draws import PrivateBatches  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Still(Module):
    """Gradients of zero, so that weights are noise alone; a learning rate that falls step by step."""

    def __init__(self):
        torch.manual_seed(1)
        super().__init__()

    def training_step(self, batch, index):
        return super().training_step(batch, index) * 0.0

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        falls = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.25, total_iters=20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": falls, "interval": "step"}}


class BreakOff(pl.Callback):
    """Breaks off two steps after the run was saved."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if trainer.global_step == 13:
            trainer.save_checkpoint(self.folder / "there.ckpt")
        if trainer.global_step == 15:
            raise KeyboardInterrupt


def rounds(mechanism):
    return {part.groups: n for part, n in mechanism.parts() if isinstance(part, acc.CyclicPoissonSampled)}


def test_a_killed_lightning_run_goes_on_with_the_same_noise_and_charge(tmp_path, monkeypatch):
    monkeypatch.setattr("tacit.noise.keys.fresh_bytes", lambda count: b"k" * count)
    ledger = Ledger()
    ledger.register("people", epsilon=50.0, delta=1e-3)
    private = {"noise": Banded(bands=3), "ledger": ledger, "dataset": "people"}
    (tmp_path / "whole").mkdir()
    _, whole, one = fit(tmp_path / "whole", module=Still(), private={"noise": Banded(bands=3)})
    with pytest.raises(SystemExit):
        fit(tmp_path, module=Still(), callbacks=[BreakOff(tmp_path)], private=private)
    again = tmp_path / "there.ckpt"
    _, resumed, two = fit(tmp_path, module=Still(), checkpoint=again, private=private)
    assert all(torch.equal(v, two.state_dict()[n]) for n, v in one.state_dict().items())
    assert resumed.run._same_noise
    assert whole.run.correlation == resumed.run.correlation
    assert rounds(resumed.privacy.mechanism) == rounds(whole.privacy.mechanism) == {3: 7}
    assert resumed.privacy.upper == whole.privacy.upper
    assert ledger.budget("people").charges == 1
    (entry,) = {record.mechanism for record in ledger.history("people")}
    assert rounds(entry) == {3: 7}


def test_what_a_trainer_releases_is_independent_noise_seen_through_the_matrix(tmp_path, monkeypatch):
    monkeypatch.setattr("tacit.noise.keys.fresh_bytes", lambda count: b"k" * count)
    seen, plain = [], release.hand_over

    def watched(gradients, *rest):
        seen.append(torch.cat([g.flatten() for g in gradients.values()]).double().numpy())
        plain(gradients, *rest)

    monkeypatch.setattr(release, "hand_over", watched)
    _, private, _ = fit(tmp_path, module=Still(), private={"noise": Banded(bands=4)})
    x, column = np.array(seen) * 24, private.run.correlation.coefficients
    assert len(x) == 20
    assert len(column) == 4
    z = np.array([sum(column[j] * x[t - j] for j in range(min(t + 1, 4))) for t in range(20)])
    assert abs(z.std() - 1.0) < 6 / np.sqrt(2 * z.size)
    assert statistics.cosine_p_value(z) > 1e-7
    assert statistics.cosine_p_value(x) < 1e-12
    assert "correlated over 4 steps" in str(private.privacy.details["noise"])


def test_a_lora_run_of_trainer_has_groups_that_take_turns(tmp_path, monkeypatch):
    taken = {}
    plain = PrivateBatches._pieces

    def pieces(self, number, chosen):
        taken[number] = set(map(int, chosen))
        return plain(self, number, chosen)

    monkeypatch.setattr(PrivateBatches, "_pieces", pieces)
    made = trainer(tmp_path, noise=Banded())
    made.train()
    ((groups, times),) = rounds(made.privacy.mechanism).items()
    assert groups > 1
    assert times == -(-16 // groups)
    assert made.privacy.claim <= 4.0
    for a, b in itertools.combinations(sorted(taken), 2):
        assert b - a >= groups or not taken[a] & taken[b]
    assert made.private_run.correlation.bands == groups


def test_a_step_out_of_turn_is_refused(tmp_path):
    class Skips(Still):
        def on_train_batch_start(self, batch, index):
            return -1 if index == 2 else None  # the rest of the pass is left out

    with pytest.raises(RuntimeError, match="take turns"):
        fit(tmp_path, module=Skips(), private={"noise": Banded(bands=3)})
    with pytest.raises(TypeError, match="Banded"):
        fit(tmp_path, private={"noise": BandedInverse()})
