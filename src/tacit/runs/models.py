"""Which model does ``tacit train --model`` mean? ``linear``, ``mlp``, ``cnn``, or a factory of the user's."""

from __future__ import annotations

import importlib
import math
import os
import sys
from typing import Any

import torch
from torch import Tensor, nn

from tacit.runs.read import Form
from tacit.schema import Schema

MODELS = ("linear", "mlp", "cnn")
HIDDEN = 64


class ModelRefused(ValueError):
    """A model that is not known, does not fit the data, or could not be made."""


class AsImage(nn.Module):
    """Rows of pixels back to pictures, channels first."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape if len(shape) == 3 else (*shape, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, pixels) to (rows, channels, height, width)."""
        return x.reshape(-1, *self.shape).permute(0, 3, 1, 2)


def squared_error(model: nn.Module, batch: Any) -> Tensor:
    """The loss of each record where the target is a number."""
    x, y = batch
    error: Tensor = model(x).squeeze(1) - y
    return error**2


def loss_for(schema: Schema) -> Any:
    """Cross entropy for classes, squared error for a number."""
    return nn.CrossEntropyLoss(reduction="none") if schema.classes else squared_error


def build(name: str, form: Form) -> nn.Module:
    """A fresh model for records of this form.

    Tanh in place of ReLU keeps gradients small, which helps under clipping (Papernot et al. 2021).

    >>> sum(p.numel() for p in build("linear", Form(10, 2)).parameters())
    22
    """
    if name == "linear":
        return nn.Linear(form.inputs, form.outputs)
    if name == "mlp":
        return nn.Sequential(nn.Linear(form.inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, form.outputs))
    if name == "cnn":
        if len(form.picture) not in (2, 3):
            raise ModelRefused(
                "model 'cnn' needs pictures: these data have none; use linear, mlp or a factory of your own"
            )
        return _cnn(form.picture, form.outputs)
    if ":" in name:
        return _factory(name, form)
    raise ModelRefused(f"there is no model {name!r}; choose one of {', '.join(MODELS)}, or module:factory of your own")


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
            width = body(torch.zeros(1, math.prod(shape))).shape[1]
        except RuntimeError:
            raise ModelRefused(f"pictures of {' x '.join(map(str, shape))} are too small for model 'cnn'") from None
    return nn.Sequential(body, nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, outputs))


def _factory(name: str, form: Form) -> nn.Module:
    """``module:factory``, looked for in the folder of the call as well; called with inputs and outputs."""
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ModelRefused(f"cannot import {module!r} for --model {name}: {error}") from error
    finally:
        if added:
            sys.path.remove(here)
    factory = getattr(found, attribute, None)
    if not callable(factory):
        raise ModelRefused(f"{module!r} has no function {attribute!r}")
    model = factory(form.inputs, form.outputs)
    if not isinstance(model, nn.Module):
        raise ModelRefused(f"{name} returned {type(model).__name__}, not a torch module")
    return model
