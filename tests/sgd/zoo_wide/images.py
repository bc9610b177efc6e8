"""``timm``: of every entry module the variant with the fewest parameters, for three classes of small pictures.

The rule: ``timm.list_modules()``, and of the models of each the one with the fewest parameters
(``chosen.json``, made by ``python -m tools.zoo --choose``). Models of more than 15 million parameters are made with
fewer blocks where their constructor has a parameter for that. The picture is the smallest that the model takes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tests.sgd.zoo_wide import Batch, Case, NotBuilt
from torch import Tensor, nn

CHOSEN = Path(__file__).parent / "chosen.json"
EXAMPLES, LABELS, LARGE = 3, 3, 15_000_000
SIZES = (64, 96, 128, 192, 224, 256, 384)
#: Fewer blocks, by the names that constructors have for them.
FEWER: tuple[dict[str, Any], ...] = (
    {"depth": 2, "embed_dim": 64, "num_heads": 2},
    {"depth": 2, "global_attn_indexes": (1,)},
    {"depth": 2},
    {"depths": (1, 1, 1, 1), "embed_dims": (16, 32, 48, 64)},
    {"depths": (1, 1, 1, 1)},
    {"layers": (1, 1, 1, 1)},
    {"stages": (1, 1, 1, 1)},
    {},
)


def members() -> list[str]:
    return sorted(json.loads(CHOSEN.read_text(encoding="utf-8"))["timm"])


def choose() -> dict[str, str]:
    """The smallest variant of each entry module, counted without memory."""
    import timm

    found = {}
    for family in timm.list_modules():
        sizes = {}
        for name in timm.list_models(module=family):
            try:
                with torch.device("meta"):
                    made = timm.create_model(name, num_classes=LABELS)
                sizes[name] = sum(p.numel() for p in made.parameters())
            except Exception as error:  # noqa: BLE001 - some cannot be made without memory
                print(f"{name}: {type(error).__name__}")
        found[family] = min(sizes, key=lambda n: (sizes[n], n))
    return found


def made(name: str, options: dict[str, Any]) -> tuple[nn.Module, int]:
    """The model and the smallest picture that it takes."""
    import timm

    last: Exception | None = None
    for size in SIZES:
        for more in ({"img_size": size}, {}):
            try:
                model = timm.create_model(name, num_classes=LABELS, **options, **more)
            except TypeError as error:
                last = error
                continue
            except (AssertionError, RuntimeError, ValueError) as error:
                last = error
                break
            try:
                with torch.no_grad():
                    logits = model.eval()(torch.randn(2, 3, size, size))
                if isinstance(logits, Tensor) and torch.isfinite(logits).all():
                    return model, size
                last = ValueError("no finite logits")
            except (AssertionError, RuntimeError, ValueError, IndexError) as error:
                last = error
            break
    raise NotBuilt(f"{type(last).__name__}: {last}") from last


def build(family: str) -> Case:
    import timm

    name = json.loads(CHOSEN.read_text(encoding="utf-8"))["timm"][family]
    with torch.device("meta"):
        large = sum(p.numel() for p in timm.create_model(name, num_classes=LABELS).parameters()) > LARGE
    last: NotBuilt | None = None
    for options in FEWER if large else ({},):
        try:
            model, size = made(name, options)
        except NotBuilt as error:
            last = error
            continue
        return Case(model, pictures, (batch(size, 0), batch(size, 1)), {"class": name, "types": (torch.float32,)})
    raise last or NotBuilt("nothing tried")


def batch(size: int, which: int, frames: int = 0) -> Batch:
    """Pictures of another contrast and brightness for each example and batch."""
    shape = (EXAMPLES, 3, frames, size, size) if frames else (EXAMPLES, 3, size, size)
    scale = torch.tensor([[0.5, 1.0, 2.0], [1.5, 0.3, 1.0]])[which]
    x = torch.randn(shape) * scale.view(-1, *[1] * (len(shape) - 1)) + 0.5 * which
    return {"x": x, "y": torch.randint(LABELS, (EXAMPLES,))}


def pictures(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the picture's class; of every pixel's, averaged, where there are logits for each."""
    found = model(batch["x"])
    if isinstance(found, dict):
        found = found["out"]
    if not isinstance(found, Tensor):
        found = found[0]
    logits = found.flatten(2).transpose(1, 2) if found.dim() > 2 else found.unsqueeze(1)
    targets = batch["y"].unsqueeze(1).expand(-1, logits.shape[1])
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)
