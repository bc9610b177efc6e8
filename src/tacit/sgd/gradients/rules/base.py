"""What does one use of a value contribute to each example's gradient of that value?

A rule turns a :class:`~tacit.sgd.gradients.uses.Use` and the gradients of its outputs into contributions, one per
derived value ``D`` that it consumes. A contribution stands for the per-example gradients ``G_b`` (each of ``D``'s
shape) without necessarily forming them:

* :class:`Outer`: ``G_b = sum_t left_bt ⊗ right_bt`` (linear layers, convolutions, einsum);
* :class:`OneHot`: the same where ``left`` is a one-hot row (embeddings);
* :class:`Dense`: the ``G_b`` themselves (biases, normalisation weights, class tokens);
* :class:`Aligned`: ``D`` itself holds the batch and example ``b`` touches only its own slice (an expanded prompt).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.sgd.gradients.layout import Layout
from tacit.sgd.gradients.uses import Derived, Use, substitute, tensors_in
from tacit.sgd.kernels import products, weighted


class NotCovered(Exception):
    """A rule cannot treat this call; the generic rule takes over."""


def words(text: str) -> list[str]:
    """Names in a string, one after another."""
    return text.split()


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which norms and sums are computed: never narrower than float32."""
    if dtype in (torch.complex64, torch.complex128):  # only on the way back to a real parameter
        return dtype
    return torch.float64 if dtype == torch.float64 else torch.float32


def widen(tensor: Tensor) -> Tensor:
    """The same numbers in the type in which norms and sums are computed."""
    return tensor.to(wide(tensor.dtype))


def bind(args: tuple[Any, ...], kwargs: dict[str, Any], names: str) -> dict[str, Any]:
    """Arguments by name for functions without a Python signature; ``None`` where absent."""
    bound: dict[str, Any] = dict.fromkeys(names.split())
    if len(args) > len(bound) or any(k not in bound for k in kwargs):
        raise NotCovered
    bound.update(zip(bound, args, strict=False))
    bound.update(kwargs)
    return bound


@dataclass
class Dense:
    """Per-example gradients, ``(batch, *shape of D)``."""

    values: Tensor


@dataclass
class Aligned:
    """The gradient of a ``D`` that holds the batch itself, in ``D``'s shape, and where the examples are in it."""

    values: Tensor
    layout: Layout


@dataclass
class Outer:
    """``left`` (B, G, T, p) and ``right`` (B, G, T, q): ``G_b[g] = left[b, g].T @ right[b, g]``.

    ``sizes`` are the sizes of ``D``'s dimensions in the order groups, rows, columns and ``order`` the permutation
    that brings them back into ``D``'s own order. Factors stay in the type of the operation where ``by_kernel`` says
    that the kernels of :mod:`tacit.sgd.kernels.products` multiply them, and are wide otherwise.
    """

    left: Tensor
    right: Tensor
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    by_kernel: bool = False

    def fold(self, product: Tensor) -> Tensor:
        """``(*, G, p, q)`` to ``(*, *shape of D)``."""
        lead = product.shape[:-3]
        shaped = product.reshape(*lead, *self.sizes)
        return shaped.permute(*range(len(lead)), *(len(lead) + k for k in self.order))

    @property
    def dims(self) -> tuple[int, int, int, int, int]:
        """Examples, groups, tokens, rows, columns."""
        return (*self.left.shape, self.right.shape[3])

    @property
    def dtype(self) -> torch.dtype:
        """That of the factors."""
        return self.left.dtype

    @property
    def key(self) -> tuple[Any, ...]:
        _, groups, _, p, q = self.dims
        return (self.sizes, self.order, groups, p, q)

    def product(self) -> Tensor:
        """The per-example gradients, ``(B, G, p, q)``."""
        if self.by_kernel:
            # Rows that begin at odd places in memory are multiplied at a fifth of the speed.
            whole: Tensor = products.products(*self._aligned())
            return whole[:, : self.left.shape[3], : self.right.shape[3]].unsqueeze(1)
        return self.left.mT @ self.right

    def lengths(self) -> Tensor:
        """How long the terms of the products are, (B, G, T): what rounding errors are relative to."""
        left, right = (torch.linalg.vector_norm(t, dim=3, dtype=wide(t.dtype)) for t in (self.left, self.right))
        lengths: Tensor = left * right
        return lengths

    def balanced(self) -> Outer:
        """The same products, each row of a factor multiplied by a power of two and that of the other divided by it, so
        that squares of both stay in range where their product does; zero where one is and the other is finite."""
        left, right = widen(self.left), widen(self.right)
        longest = [t.abs().amax(3, keepdim=True) for t in (left, right)]
        one, two = (torch.frexp(t).exponent for t in longest)
        shift = ((two - one) // 2).clamp(-126, 126)
        none = ((longest[0] == 0) | (longest[1] == 0)) & torch.isfinite(longest[0] + longest[1])
        left, right = (torch.where(none, 0.0, torch.ldexp(t, by)) for t, by in ((left, shift), (right, -shift)))
        return Outer(left, right, self.sizes, self.order)

    def _aligned(self, sanitise: bool = False) -> tuple[Tensor, Tensor]:
        """Both factors as the kernels read them: (B, T, width) with widths that whole lines of memory hold."""
        pair = (self.left[:, 0], self.right[:, 0])
        left, right = (clean(t) for t in pair) if sanitise else pair
        left, right = (
            F.pad(t, (0, -t.shape[2] % 64)) if t.shape[2] % 16 and t.shape[2] > 64 else t for t in (left, right)
        )
        return left, right

    def kernel_norms(self) -> tuple[Tensor, tuple[Tensor, Tensor] | None] | None:
        """Squared norms by whichever way is fastest, and the lengths of the terms: their squares and they, added up.

        No lengths where the sum is made of the very numbers that were squared. None where the product itself is
        smaller than the factors, cheapest, and kept.
        """
        _, _, tokens, p, q = self.dims
        side = 128 if tokens > 64 else 64
        tiles = -(-tokens // side)
        gram = tiles * (tiles + 1) // 2 * side * side * (p + q)
        if gram > tokens * p * q and 4 * p * q <= self.left.element_size() * tokens * (p + q):
            return None
        found = products.factor_norms(*self._aligned())
        return found[:, 0], (found[:, 1], found[:, 2])

    def weighted_sum(self, scale: Tensor, sanitise: bool, positive: bool = False) -> Tensor:
        """``sum_b scale_b G_b`` in ``D``'s shape; ``positive`` says that no factor is zero."""
        if self.by_kernel:
            left, right = self._aligned(sanitise)
            if positive and weighted.fits(left, right):
                total = weighted.scaled_sum(left, right, scale)
            else:
                total = products.weighted_product(left, right, scale)
            return self.fold(total[: self.left.shape[3], : self.right.shape[3]].unsqueeze(0))
        left, right = (clean(self.left), clean(self.right)) if sanitise else (self.left, self.right)
        factor = scale.to(left.dtype)[:, None, None, None]
        if left.shape[3] <= right.shape[3]:
            left = left * factor
        else:
            right = right * factor
        groups = left.shape[1]
        if groups == 1:
            product = left.flatten(0, 2).mT @ right.flatten(0, 2)
            return self.fold(product.unsqueeze(0))
        left_GNp = left.transpose(0, 1).reshape(groups, -1, left.shape[3])
        right_GNq = right.transpose(0, 1).reshape(groups, -1, right.shape[3])
        return self.fold(left_GNp.mT @ right_GNq)

    @property
    def by_convolution(self) -> bool:
        return False


@dataclass
class OneHot:
    """``index`` (B, T) and ``right`` (B, T, q): row ``index`` of ``D`` (rows, q) receives ``right``."""

    index: Tensor
    right: Tensor
    rows: int

    def lengths(self) -> Tensor:
        """How long the terms are, (B, T)."""
        lengths: Tensor = torch.linalg.vector_norm(self.right, dim=2)
        return lengths


Contribution = Dense | Aligned | Outer | OneHot
Contributions = list[tuple[Derived, Contribution]]
Rule = Callable[[Use, list[Tensor | None], list[Layout | None]], Contributions]

RULES: dict[str, Rule] = {}
SHAPE_ONLY: set[str] = set()
DECOMPOSE: dict[str, Callable[..., Any]] = {}


def rule(*names: str, values: bool = True) -> Callable[[Rule], Rule]:
    """Register a rule for operations of these names; ``values=False`` if it reads only the shapes of its inputs."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
            if not values:
                SHAPE_ONLY.add(name)
        return function

    return register


def single(grads: list[Tensor | None], layouts: list[Layout | None]) -> tuple[Tensor, Layout]:
    """The gradient and layout of the only output."""
    if len(grads) != 1 or grads[0] is None or layouts[0] is None:
        raise NotCovered
    return grads[0], layouts[0]


def reduce_to(shape: torch.Size | tuple[int, ...], full: Tensor, layout: Layout) -> Dense | Aligned:
    """The per-example gradients of a value of ``shape`` that was broadcast to ``full``'s shape."""
    extra = full.dim() - len(shape)
    if extra < 0:
        raise NotCovered
    padded = (1,) * extra + tuple(shape)
    tokens = full.dim() > 2 or (full.dim() == 2 and layout.inner > 1)
    along = layout.dim == 0 and layout.outer == 1 and tuple(shape) == full.shape[-1:]
    if tokens and along and products.sums_tokens(full):
        return Dense(products.token_sums(full.reshape(layout.batch, -1, full.shape[-1])))
    full = full.to(wide(full.dtype))
    # A dimension of size one that holds a single example is broadcast and aligned at once: read it as broadcast.
    aligned = padded[layout.dim] == full.shape[layout.dim] and full.shape[layout.dim] > 1
    summed = [
        k for k, (a, b) in enumerate(zip(padded, full.shape, strict=True)) if a == 1 and b > 1 and k != layout.dim
    ]
    if aligned:
        if layout.dim < extra:
            raise NotCovered
        if summed:
            full = full.sum(summed, keepdim=True)
        return Aligned(full.reshape(shape), layout.moved(layout.dim - extra))
    if padded[layout.dim] != 1:
        raise NotCovered
    if summed:
        full = full.sum(summed, keepdim=True)
    split = layout.split(full)
    if layout.outer > 1 or layout.inner > 1:
        split = split.sum((layout.dim, layout.dim + 2), keepdim=True)
    return Dense(split.movedim(layout.dim + 1, 0).reshape(layout.batch, *shape))


def replay(use: Use, swap: Callable[[Tensor], Any]) -> list[Tensor]:
    """Run the operation of a use again on other tensors, as it ran then, and return the outputs that had a gradient."""
    args, kwargs = substitute((use.args, use.kwargs), swap)
    context = torch.autocast(use.autocast[0], dtype=use.autocast[1]) if use.autocast else nullcontext()
    with context, torch.enable_grad():
        if use.inplace:
            target = args[0].clone()
            out = use.func(target, *args[1:], **kwargs)
            out = target if out is None else out
        else:
            out = use.func(*args, **kwargs)
    return [t for t in tensors_in(out) if t.requires_grad]


def clean(tensor: Tensor) -> Tensor:
    """Zero in place of what is not finite, so that an example counted as zero cannot poison a sum."""
    return torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0) if tensor.is_floating_point() else tensor
