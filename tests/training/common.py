"""What the tests of training share: small data, small models, and runs with a fixed key."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit.noise.keys import Key
from tacit.sgd import PrivacyWarning, Training

ROWS, FEATURES, CLASSES = 120, 4, 3
LOSS = nn.CrossEntropyLoss(reduction="none")


def key(number: int = 7) -> Key:
    """A key that is the same each time: for tests only."""
    return Key(bytes([number]) * 32, repeatable=True)


def data(rows: int = ROWS, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, FEATURES, generator=generator, dtype=dtype)
    return x, x[:, :CLASSES].argmax(1)


def network(dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, CLASSES)).to(dtype)


def run(model: nn.Module | None = None, source: Any = None, optimizer: Any = None, **settings: Any) -> Training:
    """A run that has not begun."""
    model = model if model is not None else network()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    usual: dict[str, Any] = {"batch_size": 20, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-5, "key": key()}
    settings = usual | settings
    if settings.get("epsilon") is not None:
        settings.pop("noise_multiplier")
    return Training(model, optimizer, LOSS, source if source is not None else data(), **settings)


def quiet(**settings: Any) -> Training:
    """A run whose warning is expected."""
    with pytest.warns(PrivacyWarning):
        return run(**settings)


def start(name: str, **settings: Any) -> Training:
    """A run with the sampler of this name, of which some warn."""
    return quiet(sampler=name, **settings) if name in ("shuffle", "chunks") else run(sampler=name, **settings)


def finish(training: Training) -> dict[str, Tensor]:
    """Run to the end; the weights."""
    for batch in training:
        training.step(batch)
    return weights(training.model)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 0.0) -> bool:
    assert one.keys() == other.keys()
    return all(bool((one[n] - other[n]).abs().max() <= tolerance) for n in one)
