"""``torchvision``: of every file with models of classification, segmentation and video the smallest variant.

The rule: the models that ``torchvision.models.list_models`` knows for these tasks, by the file that defines them, and
of each file the one with the fewest parameters (``chosen.json``). Detection needs
compiled operators and lists of boxes.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from tests.sgd.zoo_wide import Case, NotBuilt
from tests.sgd.zoo_wide.images import CHOSEN, LABELS, batch, pictures

FAST = {"types": (torch.float32,)}
SIZES = (64, 96, 112, 224, 299)


def members() -> list[str]:
    return sorted(json.loads(CHOSEN.read_text(encoding="utf-8"))["torchvision"])


def choose() -> dict[str, str]:
    """The smallest variant of each file, counted without memory."""
    import torchvision

    sizes: dict[str, dict[str, int]] = {}
    for task in (torchvision.models, torchvision.models.segmentation, torchvision.models.video):
        for name in torchvision.models.list_models(module=task):
            family = torchvision.models.get_model_builder(name).__module__.removeprefix("torchvision.models.")
            try:
                with torch.device("meta"):
                    made = torchvision.models.get_model(name, weights=None, num_classes=LABELS, **plain(name))
            except NotImplementedError:  # its constructor reads weights
                made = torchvision.models.get_model(name, weights=None, num_classes=LABELS, **plain(name))
            sizes.setdefault(family, {})[name] = sum(p.numel() for p in made.parameters())
    return {family: min(found, key=lambda n: (found[n], n)) for family, found in sizes.items()}


def plain(name: str) -> dict[str, Any]:
    """Segmentation asks for weights of its backbone unless it is told not to; two others draw their weights slowly."""
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": False}
    return {"weights_backbone": None} if any(k in name for k in ("fcn", "deeplab", "lraspp")) else {}


def build(family: str) -> Case:
    import torchvision

    name = json.loads(CHOSEN.read_text(encoding="utf-8"))["torchvision"][family]
    frames = 16 if family.startswith("video") else 0
    last: Exception | None = None
    for size in SIZES:
        for more in ({"image_size": size}, {"input_size": (size, size)}, {}):
            try:
                options = plain(name) | more
                model = torchvision.models.get_model(name, weights=None, num_classes=LABELS, **options)
                case = Case(model, pictures, (batch(size, 0, frames), batch(size, 1, frames)), {"class": name} | FAST)
                with torch.no_grad():
                    pictures(model.eval(), case.batches[0])
                return case
            except (TypeError, ValueError, RuntimeError, AssertionError) as error:
                last = error
    raise NotBuilt(f"{type(last).__name__}: {last}") from last
