"""A small LightningModule, trained privately in one process or two: run as a program by the tests."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tacit.integrations.lightning import PrivateDDPStrategy, PrivateTraining


class Module(pl.LightningModule):
    """Calls its parts itself, as Lightning's own examples do."""

    def __init__(self, lr=0.5):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(20, 16), nn.ReLU()), nn.Linear(16, 3)
        self.loss, self.lr = nn.CrossEntropyLoss(), lr

    def training_step(self, batch, index):
        x, y = batch
        return self.loss(self.head(self.body(x)), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self.head(self.body(x)).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def records(count=240):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(count, 20, generator=g)
    return TensorDataset(x, x[:, :3].argmax(1))


def fit(folder, *, processes=1, epochs=2, batch_size=24, checkpoint=None, module=None, callbacks=(), **options):
    """Trainer, callback and module after a private run."""
    torch.manual_seed(0)
    module = module or Module()
    private = PrivateTraining(
        **{"target_delta": 1e-5, "noise_multiplier": 1.0, "key_file": folder / "run.key", **options.pop("private", {})}
    )
    several = {"devices": processes, "strategy": PrivateDDPStrategy(process_group_backend="gloo")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=[private, *callbacks],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            **{"enable_checkpointing": False, **(several if processes > 1 else {"devices": 1}), **options},
        )
        loader = DataLoader(records(), batch_size=batch_size // processes, shuffle=True)
        trainer.fit(module, loader, DataLoader(records(96), batch_size=48), ckpt_path=checkpoint)
    return trainer, private, module


def main(folder, processes):
    """With a known key, so that one process and two can be compared."""
    import tacit.noise.keys as keys

    keys.fresh_bytes = lambda count: b"k" * count
    torch.set_num_threads(1)
    trainer, private, module = fit(folder, processes=processes)
    told = {"epsilon": private.privacy.claim, "steps": trainer.global_step, "weights": module.state_dict()}
    torch.save(told, folder / f"rank{trainer.global_rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
