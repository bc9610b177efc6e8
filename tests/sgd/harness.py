"""Per-example clipping against one-example-at-a-time ground truth, for any case of the zoo, on any device.

The truth is computed with nothing of tacit: each example alone through the model, one ordinary backward pass, clipped
and summed by hand. Errors are relative to the norm of what is compared (a parameter whose gradient is zero by
symmetry makes per-parameter relative errors meaningless), and for per-layer clipping to the example's whole gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.sgd.zoo import Case
from torch import Tensor, nn

from tacit import sgd

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@dataclass
class Errors:
    """The largest relative errors seen in one case."""

    total: float
    norms: float

    @property
    def worst(self) -> float:
        return max(self.total, self.norms)


def build(builder: Callable[[], Case], dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Case:
    """A case in the given type on the given device."""
    torch.manual_seed(seed)
    case = builder()
    case.model.to(device=device, dtype=dtype)
    case.batch = {
        k: v.to(device, dtype if v.is_floating_point() else v.dtype) if isinstance(v, Tensor) else v
        for k, v in case.batch.items()
    }
    if case.notes.get("mode") != "as is":
        case.model.train(case.notes.get("mode") == "train")
        for module in case.model.modules():
            if isinstance(module, nn.RNNBase):
                module.train()  # cuDNN has no backward pass of recurrent layers in evaluation mode
    return case


def single_gradients(case: Case) -> list[dict[str, Tensor]]:
    """The gradient of each example, computed alone."""
    named = {n: p for n, p in case.model.named_parameters() if p.requires_grad}
    count = len(next(iter(case.batch.values())))
    found = []
    buffers = {k: v.clone() for k, v in case.model.named_buffers()}
    for k in range(count):
        one = {key: value[k : k + 1] for key, value in case.batch.items()}
        loss = case.loss(case.model, one)
        assert loss.shape == (1,)
        grads = torch.autograd.grad(loss.sum(), list(named.values()), allow_unused=True)
        found.append(
            {n: torch.zeros_like(p) if g is None else _dense(g) for (n, p), g in zip(named.items(), grads, strict=True)}
        )
        for name, buffer in case.model.named_buffers():
            buffer.data.copy_(buffers[name])
    return found


def _dense(g: Tensor) -> Tensor:
    return g.to_dense() if g.is_sparse else g


def layers(names: list[str]) -> list[list[str]]:
    """Parameter names by owning module, in order of first appearance."""
    table: dict[str, list[str]] = {}
    for name in names:
        table.setdefault(name.rpartition(".")[0], []).append(name)
    return list(table.values())


def norm(gradient: dict[str, Tensor], names: list[str]) -> float:
    return math.sqrt(sum(gradient[n].double().square().sum().item() for n in names))


def truth(singles: list[dict[str, Tensor]], groups: list[list[str]], bound: float) -> tuple[dict[str, Tensor], Tensor]:
    """The clipped sum and the norms, by hand."""
    sums = {n: torch.zeros_like(g, dtype=torch.float64) for n, g in singles[0].items()}
    norms = torch.zeros(len(singles), len(groups), dtype=torch.float64)
    for k, gradient in enumerate(singles):
        for g, names in enumerate(groups):
            size = norm(gradient, names)
            norms[k, g] = size
            for n in names:
                sums[n] += gradient[n].double() * min(1.0, bound / size if size > 0 else 1.0)
    return sums, norms


def compare(case: Case, clipping: str = "flat", **options: Any) -> Errors:
    """Errors of tacit's clipped sum and norms against the truth; half of the examples are clipped, half are not."""
    singles = single_gradients(case)
    names = list(singles[0])
    groups = [names] if clipping == "flat" else layers(names)
    sizes = sorted(norm(g, names) for g in singles)
    middle = sizes[len(sizes) // 2] * 0.99
    bound = middle / math.sqrt(len(groups))
    wanted, norms = truth(singles, groups, bound)
    result = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=middle, clipping=clipping, **options)
    size = math.sqrt(sum(w.square().sum().item() for w in wanted.values()))
    off = math.sqrt(sum((wanted[n] - result.sums[n].double()).square().sum().item() for n in names))
    whole = norms.square().sum(1, keepdim=True).sqrt()
    own = result.norms.double().cpu().reshape(norms.shape)
    return Errors(off / size, float(((own - norms).abs() / whole).max()))


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that must not change."""
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "ids": {n: id(p) for n, p in model.named_parameters()},
        "grads": {n: p.grad for n, p in model.named_parameters()},
        "hooks": {
            n: (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for n, m in model.named_modules()
        },
        "training": {n: m.training for n, m in model.named_modules()},
        "attributes": {n: set(vars(m)) for n, m in model.named_modules()},
    }
