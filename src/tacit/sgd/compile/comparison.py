"""Does a compiled program give what the step gives that it was made of?

A step is rewritten and compiled after it has been checked, and neither the rewriting nor the compiler is beyond doubt:
the first answer of a program is compared with that of the uncompiled step on the same batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.sgd.gradients.bounds import Clipping, Gradients, clip
from tacit.sgd.gradients.engine import Engine
from tacit.sgd.kernels.products import full_precision

#: How far they may lie apart, relative to the numbers of the whole batch. Compilers round elsewhere, and more in one
#: place than in another; what this looks for is a program that computes something else.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-2}
#: Where products are taken in half precision, or may be in tf32.
NARROW = 0.25


@dataclass
class Expected:
    """Norms, losses and sums of the uncompiled step; sums of a GPU wait in the memory of the host."""

    norms: Tensor
    losses: Tensor
    sums: dict[str, Tensor]
    #: the length of a sum of gradients that do not know of one another: sums may cancel
    size: float
    tolerance: float

    @classmethod
    def of(
        cls, engine: Engine, gradients: Gradients, losses: Tensor, spec: Clipping, mask: Tensor | None
    ) -> Expected | None:
        """What the step gives; ``None`` where an example is not finite, for then no program's answer counts."""
        losses = losses.detach()
        kind = losses.device.type
        with torch.no_grad(), torch.autocast(kind, enabled=False), full_precision():
            found = clip(gradients, list(engine.parameters), spec, torch.isfinite(losses), mask)
            if bool(found.bad.any()):
                return None
            sums = {name: total.cpu() for name, total in found.sums(sanitise=False).items()}
        types = {p.dtype for p in engine.parameters.values()} | {losses.dtype}
        if torch.is_autocast_enabled(kind):
            types.add(torch.get_autocast_dtype(kind))
        size = float((found.norms * found.scale).double().square().sum().sqrt())
        tolerance = max(TOLERANCE.get(t, NARROW) for t in types)
        return cls(found.norms, losses, sums, size, NARROW if kind == "cuda" and tolerance > 1e-6 else tolerance)

    def differs(self, norms: Tensor, losses: Tensor, sums: dict[str, Tensor]) -> str | None:
        """What of an answer is not as expected."""
        length = math.hypot(*(float(t.double().norm()) for t in self.sums.values()))
        away = math.hypot(*(float((sums[n].cpu().double() - t.double()).norm()) for n, t in self.sums.items()))
        pairs = (
            ("norms of gradients", _apart(norms, self.norms), _length(self.norms)),
            ("losses", _apart(losses, self.losses), _length(self.losses)),
            ("clipped sums", away, max(length, self.size)),
        )
        for what, error, size in pairs:
            if not error <= self.tolerance * size + 1e-12:
                return f"{what} differ by {error:.3g}, and are {size:.3g}"
        return None


def _length(values: Tensor) -> float:
    return float(values.double().norm())


def _apart(one: Tensor, two: Tensor) -> float:
    return _length(one.double() - two.double())
