"""Why is my private model bad? Runs that were spoilt on purpose, and what the doctor says about each."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import tacit
from tacit.sgd import Training, Vitals


def watched(rate: float = 0.5, clip_norm: float = 1.0, batch_size: int = 512, hidden: int = 0) -> Any:
    """Train on made-up rows with these settings, and ask the doctor."""
    made = torch.Generator().manual_seed(0)
    x = torch.rand(4000, 12, generator=made) * 2 - 1
    y = (x[:, 0] + x[:, 1] - x[:, 2] + 0.5 * torch.randn(4000, generator=made) > 0).long()
    model: nn.Module = nn.Linear(12, 2)
    if hidden:
        model = nn.Sequential(nn.Linear(12, hidden), nn.Tanh(), nn.Linear(hidden, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    loss = nn.CrossEntropyLoss(reduction="none")
    settings: dict[str, Any] = {
        "batch_size": batch_size,
        "clip_norm": clip_norm,
        "steps": 60,
        "epsilon": 2.0,
        "delta": 1e-5,
    }
    training = Training(model, optimizer, loss, (x, y), **settings)
    vitals = Vitals(training)  # what it keeps comes from noisy gradients: it costs nothing
    for batch in training:
        training.step(batch)
    return tacit.doctor(vitals)


def main() -> None:
    """Show the first finding of each, and one diagnosis in full."""
    spoilt: dict[str, dict[str, Any]] = {
        "settings that do well": {},
        "learning rate / 100": {"rate": 0.005},
        "clip norm x 100": {"clip_norm": 100.0},
        "batch / 16": {"batch_size": 32},
        "4,096 hidden units": {"hidden": 4096},
    }
    for name, settings in spoilt.items():
        found = watched(**settings)
        print(f"{name}: {found.findings[0].cause if found.findings else 'nothing stands out'}")
    print()
    print(watched(rate=0.005))


if __name__ == "__main__":
    main()
