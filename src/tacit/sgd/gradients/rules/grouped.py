"""Per-example gradients of a product of groups of rows, each with a matrix of its own: the experts of a mixture.

The rows are sorted by expert, and ``offs`` says where each expert's end. The gradient of an expert's matrix is a sum
over the rows that an example sent to it: the rows of an example are put in order of their experts, and an expert is a
group of an ordinary product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.sgd.gradients.capture import Use
from tacit.sgd.gradients.contributions import Contributions, Layout, NotCovered, Outer, bind, clean, rule, single, widen
from tacit.sgd.gradients.rows import OwnedRows


@dataclass
class RowsOuter(Outer):
    """Products of rows of examples in groups: their sum is taken of the rows as they lie, without what fills places."""

    flat: tuple[Tensor, ...] = ()
    owner: Tensor | None = None
    ends: Tensor | None = None

    def weighted_sum(self, scale: Tensor, *, sanitise: bool, positive: bool = False) -> Tensor:
        if self.owner is None or self.ends is None:
            return super().weighted_sum(scale, sanitise=sanitise, positive=positive)
        left, right = (clean(t) for t in self.flat) if sanitise else self.flat
        factor = scale.to(left.dtype)[self.owner.clamp(min=0)].unsqueeze(1)
        left = torch.where((self.owner < 0).unsqueeze(1), 0.0, left)
        if left.shape[1] <= right.shape[1]:
            left = left * factor
        else:
            right = right * factor
        total = left.new_zeros(self.sizes)
        start = 0
        for k, end in enumerate(self.ends.tolist()):
            torch.mm(left[start:end].mT, right[start:end], out=total[k])
            start = end
        return total


@rule("grouped_mm", "_grouped_mm", "grouped_mm_fallback")
def grouped_mm(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    last = "offs bias out_dtype" if use.name != "grouped_mm_fallback" else "offs"
    names = "input weight " + last if use.name == "grouped_mm_fallback" else "mat_a mat_b " + last
    bound = bind(use.args, use.kwargs, names)
    x, weight = (bound[name] for name in names.split()[:2])
    known, ends = use.find(weight), bound["offs"]
    apart = known is not None and use.find(x) is None and bound.get("bias") is None and isinstance(ends, Tensor)
    if not apart or known is None or x.dim() != 2 or weight.dim() != 3 or layout.dim != 0:
        raise NotCovered
    experts, (width, height) = len(weight), weight.shape[1:]
    number = torch.arange(len(x), device=x.device)
    expert = torch.searchsorted(ends.to(number.dtype), number, right=True)
    here = OwnedRows.of(0, layout.owner(x.device), layout.batch).within(expert, experts)
    flat = tuple(widen(t.to(grad.dtype)) for t in (x, grad))
    left, right = (here.split(t).reshape(layout.batch, experts, here.inner, -1) for t in flat)
    sizes = (experts, width, height)
    return [(known, RowsOuter(left, right, sizes, (0, 1, 2), flat=flat, owner=layout.owner(x.device), ends=ends))]
