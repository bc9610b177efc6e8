"""What do probes cost? Steps with and without a probe take turns in one run (docs/explanation/clipping.md).

python benchmarks/probes.py [--steps 60] [--compile]
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tacit import sgd
from tacit.sgd.training.probes import EVERY, Probes

BATCH = 64


class Transformer(nn.Module):
    """Two layers of 64 features on 32 words, with dropout or without."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(500, 64), nn.Parameter(torch.zeros(32, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 2)

    def forward(self, text: Tensor) -> Tensor:
        found: Tensor = self.head(self.layers(self.words(text) + self.places).mean(1))
        return found


def models() -> Iterator[tuple[str, nn.Module, Tensor, int]]:
    """Name, model, inputs and classes."""
    yield "MLP", nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 10)), torch.randn(2000, 100), 10
    cnn = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU(),
        nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    yield "CNN", cnn, torch.randn(2000, 1, 28, 28), 10
    yield "transformer", Transformer(0.0), torch.randint(500, (2000, 32)), 2
    yield "transformer, dropout", Transformer(0.1), torch.randint(500, (2000, 32)), 2


def measure(model: nn.Module, inputs: Tensor, classes: int, steps: int, *, compile: bool) -> tuple[float, float]:
    """Seconds of processor time of a step, and of a probe."""
    labels, loss = torch.randint(classes, (len(inputs),)), nn.CrossEntropyLoss(reduction="none")
    settings: dict[str, Any] = {"batch_size": BATCH, "steps": steps + 4, "noise_multiplier": 1.0, "delta": 1e-5}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    training = sgd.Training(model, optimizer, loss, (inputs, labels), sampler="fixed", compile=compile, **settings)
    took: dict[bool, list[float]] = {False: [], True: []}
    for batch in training:
        probed = batch.step % 2 == 1
        training.probes = Probes(1 if probed else 2**32, BATCH)
        began = time.process_time()
        training.step(batch)
        if batch.step >= 4:
            took[probed].append(time.process_time() - began)
    plain = statistics.median(took[False])
    return plain, max(0.0, statistics.median(took[True]) - plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="steps of each model")
    parser.add_argument("--compile", action="store_true", help="compiled steps, too")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", sgd.PrivacyWarning)
    torch.manual_seed(0)
    print("| model | step, ms | probe, ms | probe / step | share of the time, one step in " + f"{EVERY} |")
    print("|---|---|---|---|---|")
    for compile in (False, True) if asked.compile else (False,):
        for name, model, inputs, classes in models():
            step, probe = measure(model, inputs, classes, asked.steps, compile=compile)
            how = f"{name}, compiled" if compile else name
            print(f"| {how} | {1e3 * step:.2f} | {1e3 * probe:.2f} | {probe / step:.2f} | {probe / step / EVERY:.2%} |")


if __name__ == "__main__":
    main()
