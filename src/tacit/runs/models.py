"""Which model does ``tacit train --model`` mean? ``linear``, ``mlp``, ``cnn``, or a factory of the user's."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import torch
from torch import Tensor, nn

MODELS = ("linear", "mlp", "cnn")
HIDDEN = 64


class ModelError(ValueError):
    """A model that is not known, does not fit the data, or could not be made."""


class AsImage(nn.Module):
    """Rows of pixels back to pictures, channels first."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape if len(shape) == 3 else (*shape, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, pixels) to (rows, channels, height, width)."""
        return x.reshape(-1, *self.shape).permute(0, 3, 1, 2)


def build(name: str, inputs: int, outputs: int, shape: tuple[int, ...] = ()) -> nn.Module:
    """A fresh model with ``inputs`` features (pictures of ``shape``, where that is given) and ``outputs`` outputs.

    Tanh in place of ReLU keeps gradients small, which helps under clipping (Papernot et al. 2021).

    >>> sum(p.numel() for p in build("linear", 10, 2).parameters())
    22
    """
    if name == "linear":
        return nn.Linear(inputs, outputs)
    if name == "mlp":
        return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs))
    if name == "cnn":
        if len(shape) not in (2, 3):
            raise ModelError(
                "model 'cnn' needs pictures: these data have none; use linear, mlp or a factory of your own"
            )
        return _cnn(shape, outputs)
    if ":" in name:
        return _factory(name, inputs, outputs)
    raise ModelError(f"there is no model {name!r}; choose one of {', '.join(MODELS)}, or module:factory of your own")


def _cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two convolutions and two linear layers, as in Tramèr & Boneh 2021 (table 8) for pictures of 28 x 28."""
    channels = shape[2] if len(shape) == 3 else 1
    body = nn.Sequential(
        AsImage(shape),
        nn.Conv2d(channels, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
    )
    with torch.no_grad():
        try:
            width = body(torch.zeros(1, _size(shape))).shape[1]
        except RuntimeError:
            raise ModelError(f"pictures of {' x '.join(map(str, shape))} are too small for model 'cnn'") from None
    return nn.Sequential(body, nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, outputs))


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _factory(name: str, inputs: int, outputs: int) -> nn.Module:
    """``module:factory``, looked for in the folder of the call as well; called with inputs and outputs."""
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ModelError(f"cannot import {module!r} for --model {name}: {error}") from error
    finally:
        if added:
            sys.path.remove(here)
    factory = getattr(found, attribute, None)
    if not callable(factory):
        raise ModelError(f"{module!r} has no function {attribute!r}")
    model = factory(inputs, outputs)
    if not isinstance(model, nn.Module):
        raise ModelError(f"{name} returned {type(model).__name__}, not a torch module")
    return model
