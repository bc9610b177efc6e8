"""A small convolutional network on MNIST at ε = 3, δ = 1e-5.

Run it with ``python -m examples.mnist_cnn``: a few steps that show how it goes. ``--full`` trains for 12 epochs (about
97% on the test set); ``--seeds 3`` repeats it. The pictures are read from the folder named by TACIT_DATA.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from tacit import datasets, sgd


def network() -> nn.Module:
    """16 and 32 filters, 26,010 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def pictures(split: datasets.Images) -> tuple[torch.Tensor, torch.Tensor]:
    """Grey values scaled by public constants, and class numbers."""
    return (torch.tensor(split.images).float().unsqueeze(1) / 255 - 0.5) * 2, torch.tensor(split.labels)


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of pictures that are recognised."""
    with torch.no_grad():
        return float(torch.cat([model(part).argmax(1) for part in images.split(1000)]).eq(labels).float().mean())


def main() -> None:
    """Train once or several times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true", help="train for 12 epochs rather than a few steps")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--batch", type=int, help="2048 in full, 256 to show how it goes")
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=12)
    chosen = parser.parse_args()
    try:
        mnist = datasets.mnist(download=False)
    except datasets.MissingDataError as missing:
        print(f"MNIST is not here, so there is nothing to train on: {missing}")
        return
    train, test = pictures(mnist.train), pictures(mnist.test)
    batch_size = chosen.batch or (2048 if chosen.full else 256)
    found = []
    for seed in range(chosen.seeds):
        torch.manual_seed(seed)  # the initial weights; noise and batches come from the operating system's entropy
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=chosen.rate, momentum=0.9)
        steps = chosen.epochs * -(-len(train[1]) // batch_size) if chosen.full else 4
        began = time.perf_counter()
        training = sgd.Training(
            model,
            optimizer,
            nn.CrossEntropyLoss(reduction="none"),
            train,
            batch_size=batch_size,
            steps=steps,
            epsilon=3.0,
            delta=1e-5,
            clip_norm=chosen.clip,
        )
        for batch in training:
            training.step(batch)
            if training.steps_executed % 30 == 0:
                # MNIST's test set is published, so what it shows of a private model may be printed.
                print(f"step {training.steps_executed}: test accuracy {accuracy(model, *test):.2%}", flush=True)
        found.append(accuracy(model, *test))
        print(
            f"seed {seed}: {found[-1]:.2%} in {time.perf_counter() - began:.0f} s; noise {training.plan.noise[0]:.3f}"
        )
        print(training.privacy)
    print(f"mean test accuracy of {len(found)}: {sum(found) / len(found):.2%}")


if __name__ == "__main__":
    main()
