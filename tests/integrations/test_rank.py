"""Of several processes one makes the key, and each says which one it is."""

from __future__ import annotations

import types

import pytest

pytest.importorskip("lightning", reason="needs Lightning: pip install 'tacit[lightning]'")

from tacit.integrations import lightning


class Shared(Exception):
    """Where the key would be shared."""


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_every_process_takes_the_key_as_the_one_it_is(monkeypatch, rank):
    told = []

    def share(run, stamp, own):
        told.append(own)
        raise Shared

    monkeypatch.setattr(lightning, "_share_key", share)
    training = lightning.PrivateTraining(target_delta=1e-5, noise_multiplier=1.0)
    training._loader = types.SimpleNamespace(dataset=[], collate_fn=None)
    training.run = types.SimpleNamespace(
        batches=[], leave=lambda: None, resume=lambda state, step: None, stamp=lambda *given, **more: "stamp"
    )
    trainer = types.SimpleNamespace(
        optimizers=[None], global_step=0, estimated_stepping_batches=10, lr_scheduler_configs=[], precision="32",
        world_size=4, global_rank=rank,
    )  # fmt: skip
    with pytest.raises(Shared):
        training.on_train_start(trainer, types.SimpleNamespace(hparams={}))
    assert told == [rank]
