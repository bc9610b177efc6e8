"""An ordinary LightningModule on handwritten digits, privately: one callback.

    python -m examples.lightning_mnist

Data: MNIST where it is found (``TACIT_DATA``), otherwise the small digits of scikit-learn. Needs Lightning.
"""

from __future__ import annotations

import argparse
import sys
import warnings

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from examples.opacus_mnist import digits, network

try:
    import lightning.pytorch as pl

    from tacit.integrations.lightning import PrivateTraining
except ModuleNotFoundError as missing:
    print(f"skipped: this example needs {missing.name} (pip install 'tacit[lightning]')")
    sys.exit(0)


class Digits(pl.LightningModule):
    """Nothing in here knows of privacy."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.model(images), labels)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.model(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def main(records: int, epochs: int, epsilon: float) -> None:
    """Train, and print accuracy and ε."""
    pl.seed_everything(0, verbose=False)
    train, test = digits(records)
    private = PrivateTraining(target_epsilon=epsilon, target_delta=1e-5, max_grad_norm=1.0)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        callbacks=[private],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(), DataLoader(train, batch_size=100, shuffle=True), DataLoader(test, batch_size=1000))
    print(f"test accuracy {trainer.callback_metrics['accuracy']:.3f}; {private.privacy}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=3.0)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    main(options.records, options.epochs, options.epsilon)
