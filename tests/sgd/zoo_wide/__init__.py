"""Which published models does tacit clip as one example at a time would be? Models that nobody here chose.

Each library has a rule that names its members (:func:`members`), so what works has no say in what is tried. A member
is a name, and :func:`build` makes its model, its loss and two batches of the same shape and another make-up: other
lengths, paddings, labels and values, so that whatever was learnt from the first batch meets the second.
``python -m tools.zoo`` judges them (:mod:`tests.sgd.zoo_wide.judge`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]

#: The libraries, and the modules here that name their members.
LIBRARIES = {"transformers": "texts", "peft": "adapters", "torchvision": "vision", "timm": "images"}


class NotBuilt(Exception):
    """The model itself cannot be made or run here, by plain PyTorch: it says nothing about tacit."""


@dataclass
class Case:
    """A model, its loss for each example, and two batches of another make-up."""

    model: nn.Module
    loss: Callable[[nn.Module, Batch], Tensor]
    batches: tuple[Batch, Batch]
    notes: dict[str, Any] = field(default_factory=dict)


def rules(library: str) -> Any:
    """The module that names and builds the members of a library."""
    return importlib.import_module(f"{__name__}.{LIBRARIES[library]}")


def members(library: str) -> list[str]:
    """The names of a library's members, in order."""
    found: list[str] = rules(library).members()
    return found


def build(library: str, name: str) -> Case:
    """One member, always the same: weights and batches come from one seed."""
    torch.manual_seed(0)
    case: Case = rules(library).build(name)
    return case


def versions() -> dict[str, str]:
    """The versions of what was compared."""
    import importlib.metadata as metadata

    return {name: metadata.version(name) for name in ("torch", *LIBRARIES)}


_KEPT: list[Any] = []  # definitions of operators live as long as their library object


def plain_torchvision() -> None:
    """Import torchvision where its compiled operators cannot be loaded (built for CUDA, beside torch for CPUs).

    Its import describes two operators that then do not exist. No model here uses them.
    """
    try:
        import torchvision
    except ModuleNotFoundError:
        return
    except RuntimeError:
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
        import torchvision  # noqa: F401


plain_torchvision()
