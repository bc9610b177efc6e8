"""How is what each example adds to a gradient held, how long is it, and what is its weighted sum?

A rule (:mod:`tacit.sgd.gradients.rules`) turns a :class:`~tacit.sgd.gradients.capture.Use` and the gradients of its
outputs into contributions, one per derived value ``D`` that it consumes. A contribution stands for the per-example
gradients ``G_b`` (each of ``D``'s shape) without necessarily forming them:

* :class:`Outer`: ``G_b = sum_t left_bt ⊗ right_bt`` (linear layers, convolutions, einsum);
* :class:`OneHot`: the same where ``left`` is a one-hot row (embeddings);
* :class:`Dense`: the ``G_b`` themselves (biases, normalisation weights, class tokens);
* :class:`Aligned`: ``D`` itself holds the batch and example ``b`` touches only its own slice (an expanded prompt).

A :class:`Group` holds all contributions to one parameter (or to one slice of it that nothing else touches), written
in the same coordinates, so that several uses of a parameter are one sum and cross terms come out by themselves. The
norm uses the cheapest exact rule for the shapes at hand:

* one token per example: ``|left|² |right|²``;
* few tokens: the Gram matrices, ``sum (L Lᵀ) ∘ (R Rᵀ)``, without ever forming a gradient;
* otherwise the per-example product, kept for the sum when it is smaller than the factors.

Rounding. Each norm comes with a margin, relative to the terms that are summed: a product ``sum_t l_t ⊗ r_t`` of ``T``
tokens has terms of length ``|l_t| |r_t|``, together ``S``, and where they cancel their rounding may exceed the norm
itself. Rows are taken one by one: a term is exactly zero where one of its rows is, however long the other.

* The sum of the terms in precision ``u`` is off by about ``sqrt(T) u S``: errors of one step after another are
  independent (Higham and Mary, 2019, "A new approach to probabilistic rounding error analysis").
* An element of a Gram matrix is off by about ``u |l_s| |l_t|``, the inner product of two such matrices by ``u S²``.
  Here errors are not independent: those of equal tokens are equal.

Squares below the range of the type come out as zero, and may be multiplied by huge ones: what that can hide is added
(:func:`underflow`).

Tensor cores do not round but cut off, always towards zero: a norm by the kernels falls behind by
:func:`tacit.sgd.kernels.products.cut_off`, which the margin makes good. The clip factor is computed from norm plus
margin, so what rounding adds is inside the bound.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.sgd.gradients.capture import Use, substitute, tensors_in
from tacit.sgd.gradients.functions import Derived
from tacit.sgd.kernels import autotune, products, weighted

CHUNK_ELEMENTS = 1 << 26
#: So few tokens that comparing every two is cheaper on a GPU than sorting; a CPU multiplies faster than it sorts.
FEW = 16
#: So few examples that the compiler writes out a sum over them.
FEW_EXAMPLES = 8


@dataclass(frozen=True)
class Layout:
    """Where the examples are in a tensor of a given shape.

    >>> Layout(dim=0, outer=1, batch=2, inner=3).rows(torch.arange(6)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    >>> Layout(dim=0, outer=3, batch=2, inner=1).rows(torch.arange(6)).tolist()
    [[0, 2, 4], [1, 3, 5]]
    """

    dim: int
    outer: int
    batch: int
    inner: int
    #: whether arithmetic says where the examples are, and not the data (:mod:`tacit.sgd.gradients.rows`)
    regular: ClassVar[bool] = True

    @property
    def size(self) -> int:
        return self.outer * self.batch * self.inner

    def split(self, tensor: Tensor, dim: int | None = None) -> Tensor:
        """The same tensor with dimension ``dim`` (that of the layout, unless told) unfolded into ``(outer, batch,
        inner)``."""
        dim = self.dim if dim is None else dim
        if self.outer == 1 and self.inner == 1:
            return tensor.unsqueeze(dim).unsqueeze(dim + 2)
        shape = tensor.shape
        return tensor.reshape(*shape[:dim], self.outer, self.batch, self.inner, *shape[dim + 1 :])

    def rows(self, tensor: Tensor) -> Tensor:
        """``(batch, elements of one example)``."""
        return self.split(tensor).movedim(self.dim + 1, 0).reshape(self.batch, -1)

    def owner(self, device: torch.device | str = "cpu") -> Tensor:
        """The example that owns each entry of dimension ``dim``."""
        return (torch.arange(self.size, device=device) // self.inner) % self.batch

    def spread(self, per_example: Tensor, ndim: int) -> Tensor:
        """A value per example, shaped to broadcast against a tensor with ``ndim`` dimensions."""
        entries = per_example.repeat_interleave(self.inner).repeat(self.outer)
        return entries.reshape((1,) * self.dim + (-1,) + (1,) * (ndim - self.dim - 1))

    def moved(self, dim: int) -> Layout:
        return Layout(dim, self.outer, self.batch, self.inner)

    def straight(self, tensor: Tensor, dim: int) -> Tensor:
        """A tensor with its entries along ``dim`` where :attr:`plain` has them."""
        return tensor

    @property
    def plain(self) -> Layout:
        return self


class NotCovered(Exception):
    """A rule cannot treat this call; the generic rule takes over."""


def words(text: str) -> list[str]:
    """Names in a string, one after another."""
    return text.split()


@functools.cache
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

    def _aligned(self, *, sanitise: bool = False) -> tuple[Tensor, Tensor]:
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

    def weighted_sum(self, scale: Tensor, *, sanitise: bool, positive: bool = False) -> Tensor:
        """``sum_b scale_b G_b`` in ``D``'s shape; ``positive`` says that no factor is zero."""
        if self.by_kernel:
            left, right = self._aligned(sanitise=sanitise)
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
    if full.device.type in products.DEVICES and _sums_tokens(shape, full, layout):
        return Dense(products.token_sums(full.reshape(layout.batch, -1, full.shape[-1])))
    full = full.to(wide(full.dtype))
    # A dimension of size one that holds a single example is broadcast and aligned at once: read it as broadcast.
    aligned = padded[layout.dim] == full.shape[layout.dim] and full.shape[layout.dim] > 1
    summed = [
        k for k, (a, b) in enumerate(zip(padded, full.shape, strict=True)) if a == 1 and b > 1 and k != layout.dim
    ]
    if layout.dim < extra or not layout.regular if aligned else padded[layout.dim] != 1:
        raise NotCovered
    if summed:
        full = full.sum(summed, keepdim=True)
    if aligned:
        return Aligned(full.reshape(shape), layout.moved(layout.dim - extra))
    split = layout.split(full)
    if layout.outer > 1 or layout.inner > 1:
        split = split.sum((layout.dim, layout.dim + 2), keepdim=True)
    return Dense(split.movedim(layout.dim + 1, 0).reshape(layout.batch, *shape))


def _sums_tokens(shape: torch.Size | tuple[int, ...], full: Tensor, layout: Layout) -> bool:
    """Whether this is the gradient of a bias of tokens, and the kernels add it up."""
    tokens = full.dim() > 2 or (full.dim() == 2 and layout.inner > 1)
    along = layout.regular and layout.dim == 0 and layout.outer == 1 and tuple(shape) == full.shape[-1:]
    return tokens and along and products.sums_tokens(full)


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


# -- norms and weighted sums -------------------------------------------------------------------------------------------


@dataclass
class Norms:
    """Squared norms per example; what rounding may take from them (``gram``) and add to a sum (``product``)."""

    squared: Tensor
    gram: Tensor | float = 0.0
    product: Tensor | float = 0.0


def roundoff(tensor: Tensor, *, convolution: bool = False) -> float:
    """The relative error of one product in this type, as torch is set up to compute it now."""
    exact = float(torch.finfo(tensor.dtype).eps)
    if tensor.dtype != torch.float32:
        return exact
    if convolution and tensor.is_cuda and torch.backends.cudnn.allow_tf32:
        return 2.0**-10
    try:
        setting = torch.get_float32_matmul_precision()
    except RuntimeError:  # settings per backend that have no common name
        setting = "medium"
    # "high" allows TensorFloat-32 (10 bits of mantissa), "medium" bfloat16 (7 bits).
    return {"highest": exact, "high": 2.0**-10, "medium": 2.0**-7}[setting]


@dataclass
class Group:
    """Contributions to one value, all in its coordinates (``shape``)."""

    shape: torch.Size
    dense: Tensor | None = None
    outer: Outer | None = None
    parts: list[Outer] = field(default_factory=list)
    lookup: OneHot | None = None

    @staticmethod
    def of(contributions: list[Contribution], shape: torch.Size) -> Group:
        dense = [c for c in contributions if isinstance(c, Dense)]
        outers = [c for c in contributions if isinstance(c, Outer)]
        lookups = [c for c in contributions if isinstance(c, OneHot)]
        if len(dense) + len(outers) + len(lookups) != len(contributions):
            raise TypeError("aligned contributions have no coordinates of their own")
        if (dense and (outers or lookups)) or _are_formed(outers, lookups):
            return Group(shape, dense=_added_up([to_dense(c, shape) for c in contributions]))
        if dense:
            return Group(shape, dense=_added_up([c.values for c in dense]))
        group = Group(shape, parts=outers)
        if outers:
            group.outer = outers[0] if len(outers) == 1 else _joined(outers)
        if lookups:
            index = torch.cat([c.index for c in lookups], 1)
            right = torch.cat([c.right for c in lookups], 1)
            group.lookup = OneHot(index, right, lookups[0].rows)
        return group

    # -- norms -----------------------------------------------------------------------------------------------------

    def norms(self) -> Norms:
        if self.dense is not None:
            return Norms(self.dense.reshape(len(self.dense), -1).square().sum(1))
        if self.outer is not None and self.lookup is not None:
            a, b, cross = self._outer_norms(self.outer), _lookup_norms(self.lookup), _cross(self.outer, self.lookup)
            tokens = self.outer.dims[2] + self.lookup.index.shape[1]
            size = (self.outer.lengths().sum((1, 2)) + self.lookup.lengths().sum(1)).square()
            margins = _margins(a.squared + b.squared + 2 * cross, size, tokens, roundoff(cross))
            # What the sum of the narrow factors leaves out (a.product) is more than float32 rounding.
            return Norms(margins.squared, margins.gram + a.gram, margins.product + a.product)
        if self.outer is not None:
            return self._outer_norms(self.outer)
        assert self.lookup is not None
        return _lookup_norms(self.lookup)

    def _outer_norms(self, outer: Outer) -> Norms:
        batch, groups, tokens, p, q = outer.dims
        if tokens == 1:
            ours, theirs = (widen(t).square().sum((2, 3)) for t in (outer.left, outer.right))
            return Norms((ours * theirs).sum(1), underflow(ours[:, :, None], theirs[:, :, None], p, q))
        if outer.by_kernel:
            found = outer.kernel_norms()
            if found is not None:
                squared, lengths = found
                # Without lengths the sum is made of the very numbers that were squared.
                return Norms(squared) if lengths is None else _kernel_margins(outer, squared, *lengths)
            if self.lookup is not None:
                told = products.factor_norms(outer.left[:, 0], outer.right[:, 0])
                return _kernel_margins(outer, told[:, 0], told[:, 1], told[:, 2])
            product = outer.product()
            self.dense = outer.fold(product)
            return Norms(product.square().sum((1, 2, 3)))
        if tokens * (p + q) <= p * q:
            left, right = outer.left, outer.right
            gram_left, gram_right = left @ left.mT, right @ right.mT
            squared = (gram_left * gram_right).sum((1, 2, 3))
            squares_left, squares_right = (g.diagonal(dim1=2, dim2=3) for g in (gram_left, gram_right))
            terms = squares_left.sqrt() * squares_right.sqrt()
            norms = _margins(squared, terms.sum(2).square().sum(1), tokens, roundoff(left))
            # Numbers that are all the same are rounded the same way at every step of an inner product.
            alike = math.sqrt(p + q) * float(torch.finfo(left.dtype).eps)
            norms.gram = norms.gram + alike * (squared.clamp(min=0) + terms.square().sum((1, 2)))
            norms.gram = norms.gram + underflow(squares_left, squares_right, p, q)
            if left.is_cuda and any(part.by_convolution and not part.by_kernel for part in self.parts):
                # The vendor's convolution may transform whole images, in which rows are no longer apart.
                whole = (squares_left.sum(2) * squares_right.sum(2)).sum(1)
                norms.product = _margins(squared, whole, tokens, roundoff(left, convolution=True)).product
            return norms
        if self.lookup is None:
            # Smaller than the factors it is made of: kept, so that the sum is cheap and of exactly these numbers.
            product = outer.product()
            self.dense = outer.fold(product)
            return Norms(product.square().sum((1, 2, 3)))
        chunk = max(1, CHUNK_ELEMENTS // max(1, groups * p * q))
        squares = [
            (outer.left[k : k + chunk].mT @ outer.right[k : k + chunk]).square().sum((1, 2, 3))
            for k in range(0, batch, chunk)
        ]
        size = outer.lengths().sum(2).square().sum(1)
        norms = _margins(torch.cat(squares), size, tokens, roundoff(outer.left))
        return Norms(norms.squared, 0.0, 4 * norms.product)  # norm and sum are products, each with its own rounding

    def balanced(self) -> Group:
        """The same gradients, of factors that are nearly as long as each other."""
        if self.dense is not None or self.outer is None:
            return self
        found: list[Contribution] = [part.balanced() for part in self.parts]
        return Group.of(found if self.lookup is None else [*found, self.lookup], self.shape)

    # -- the weighted sum -------------------------------------------------------------------------------------------

    def weighted_sum(self, scale: Tensor, *, sanitise: bool, positive: bool = False) -> Tensor:
        """``sum_b scale_b G_b``; with ``sanitise``, examples of scale zero add nothing though they be infinite.

        ``positive`` says that no factor is zero.
        """
        if self.dense is not None:
            values = clean(self.dense) if sanitise else self.dense
            return scaled_total(scale.to(values.dtype), values)
        total: Tensor | None = None
        if self.outer is not None:
            for part in self.parts:
                piece = part.weighted_sum(scale, sanitise=sanitise, positive=positive)
                total = piece if total is None else total + piece
        if self.lookup is not None:
            right = clean(self.lookup.right) if sanitise else self.lookup.right
            right = (right * scale.to(right.dtype)[:, None, None]).flatten(0, 1)
            base = (
                right.new_zeros(self.lookup.rows, right.shape[1])
                if total is None
                else total.reshape(self.lookup.rows, -1)
            )
            total = base.index_add(0, self.lookup.index.flatten(), right).reshape(self.shape)
        assert total is not None
        return total

    @property
    def single_token(self) -> bool:
        """Whether all is one product of one token per example, in the type in which sums are computed."""
        if self.dense is not None or self.lookup is not None or len(self.parts) != 1:
            return False
        (outer,) = self.parts
        # Not asked for where it is a convolution: its factors are made when they are, patches of all its inputs.
        if outer.by_convolution or outer.dims[1:3] != (1, 1):
            return False
        return bool(outer.dtype == widen(outer.left[:0]).dtype == outer.right.dtype)

    def with_shift(self, scale: Tensor) -> tuple[Tensor, Tensor]:
        """``sum_b scale_b G_b`` of a single token per example, and ``sum_b scale_b left_b``: of a weight and its bias.

        The wider factor stays as it is, and is read as it is: a compiled step then stores it once, where it is made,
        and scales the other one in its place.
        """
        (outer,) = self.parts
        left, right = outer.left.flatten(0, 2), outer.right.flatten(0, 2)
        factor = scale.to(left.dtype)[:, None]
        if left.shape[1] <= right.shape[1]:
            left = left * factor
            product, shift = left.mT @ right, left.sum(0)
        else:
            product, shift = ((right * factor).mT @ left).mT, (left * factor).sum(0)
        return outer.fold(product[None]), shift


def scaled_total(scale: Tensor, values: Tensor) -> Tensor:
    """``sum_b scale_b values_b``.

    Of few examples on a GPU it is written out, which the compiler makes one loop of: the vendor's product of a vector
    and a matrix reads a matrix of few rows at a third of the memory's speed, and wants a copy of one with gaps.
    """
    if values.is_cuda and (len(values) <= FEW_EXAMPLES or not values.is_contiguous()):
        return (values * scale.reshape(-1, *(1,) * (values.dim() - 1))).sum(0)
    total: Tensor = torch.tensordot(scale, values, 1)
    return total


def underflow(squares_left: Tensor, squares_right: Tensor, p: int, q: int) -> Tensor:
    """What squares below the range of the type may take from squared norms by Gram matrices, from the squares of the
    rows (B, G, T) of the factors.

    An inner product of ``p`` numbers is off by one of the smallest positive numbers for each, and is multiplied by one
    of the other factor: ``sum_st p |r_s| |r_t|`` times that in all, no more than ``T p |R|²``.
    """
    info, tokens = torch.finfo(squares_left.dtype), squares_left.shape[2]
    ours, theirs = (t.sum((1, 2)) * info.tiny for t in (squares_left, squares_right))
    return ours * (q * tokens * info.eps) + theirs * (p * tokens * info.eps)


def _margins(squared: Tensor, size: Tensor, tokens: int, unit: float) -> Norms:
    """Norms by Gram matrices, and what rounding may do to them and to the sum of so many tokens.

    ``size`` is the square of the lengths of all terms together, ``unit`` the relative error of one product.
    """
    steps = math.sqrt(tokens) * float(torch.finfo(size.dtype).eps)
    return Norms(squared, 4 * unit * size, (unit + steps) ** 2 * size)


def _kernel_margins(outer: Outer, squared: Tensor, squares: Tensor, total: Tensor) -> Norms:
    """Norms by the kernels: what rounding may do to them, what tensor cores cut off, what a split factor leaves out.

    ``squares`` are the squared lengths of the terms, added up, ``total`` are their lengths. What is cut off is relative
    to the sums themselves: to the squared norm where tokens add up, else to what each token adds to it. It differs from
    one element to another as rounding does, by the root of the number of steps.
    """
    _, _, tokens, p, q = outer.dims
    cut, apart = products.cut_off(tokens, p, q), math.sqrt(products.cut_off(tokens, p, q) * autotune.CUT_OFF)
    unit = products.SPLIT_ERROR[outer.dtype] + tokens / 2 * autotune.CUT_OFF
    found = _margins(squared, total.square(), tokens, unit)
    rounding = 4 * float(torch.finfo(torch.float32).eps) + apart
    found.gram = rounding * total.square() + cut * (squares + squared.clamp(min=0))
    return found


def _are_formed(outers: list[Outer], lookups: list[OneHot]) -> bool:
    """Whether products are formed for each example, because they do not add up as factors or because that is cheaper.

    A tied table may be so small that its per-example gradient is cheaper than Gram matrices, or be used by so many
    tokens.
    """
    if len(outers) > 1 and len({c.key for c in outers}) > 1:
        return True
    if len(outers) > 1 and not lookups:
        _, _, _, p, q = outers[0].dims
        return sum(o.dims[2] for o in outers) * (p + q) > p * q
    if not (outers and lookups):
        return False
    first, rows, q = outers[0], lookups[0].rows, lookups[0].right.shape[2]
    if first.dims[1] != 1 or first.order != tuple(range(len(first.order))) or first.dims[3] != rows:
        return True
    tokens = sum(c.dims[2] for c in outers) + sum(c.index.shape[1] for c in lookups)
    return bool(rows * q <= tokens * (rows + q))


def _added_up(values: list[Tensor]) -> Tensor:
    total = values[0]
    for more in values[1:]:
        total = total + more
    return total


def _joined(outers: list[Outer]) -> Outer:
    """Several products as one, over all their tokens."""
    # Patches may be in full float32, which these kernels do not multiply.
    by_kernel = all(c.by_kernel and not c.by_convolution for c in outers)
    pairs = [(c.left, c.right) if by_kernel else (widen(c.left), widen(c.right)) for c in outers]
    left, right = (torch.cat(factors, 2) for factors in zip(*pairs, strict=True))
    return Outer(left, right, outers[0].sizes, outers[0].order, by_kernel)


def _lookup_norms(lookup: OneHot) -> Norms:
    index, right = lookup.index, lookup.right
    batch, tokens, q = right.shape
    if tokens == 1:
        return Norms(right.square().sum((1, 2)))
    size = lookup.lengths().sum(1).square()
    if tokens <= (FEW if right.is_cuda else 2 * q):
        same = index.unsqueeze(2) == index.unsqueeze(1)
        gram = right @ right.mT
        squared = torch.where(same, gram, 0.0).sum((1, 2))
        unit = float(torch.finfo(right.dtype).eps)  # the sum has no product
        return Norms(squared, 4 * roundoff(right) * size, _margins(squared, size, tokens, unit).product)
    # Sum the rows that hit the same entry: sort each example's indices and add up runs.
    ordered, order = index.sort(1)
    first = torch.cat([torch.ones_like(ordered[:, :1], dtype=torch.bool), ordered[:, 1:] != ordered[:, :-1]], 1)
    runs = first.long()
    segment = (runs.flatten().cumsum(0) - 1).view(batch, tokens)
    by_run = right.gather(1, order.unsqueeze(2).expand(-1, -1, q))
    flat = by_run.reshape(batch * tokens, q)
    sums = torch.zeros_like(flat).index_add(0, segment.flatten(), flat)
    # The k-th run of the batch sits in row k: its squared norm belongs to the example of its tokens.
    squares = sums.square().sum(1)
    squared = torch.where(first, squares[segment], 0.0).sum(1)
    found = _margins(squared, size, tokens, float(torch.finfo(right.dtype).eps))
    return Norms(squared, 0.0, 4 * found.product)  # norm and sum are sums, each with its own rounding


def _cross(outer: Outer, lookup: OneHot) -> Tensor:
    """The inner product of a dense and a looked-up use of the same table, per example."""
    left_BSr, right_BSq = outer.left[:, 0], widen(outer.right[:, 0])
    batch, tokens = lookup.index.shape
    picked = left_BSr.gather(2, lookup.index.unsqueeze(1).expand(batch, left_BSr.shape[1], tokens))
    return (widen(picked) * (right_BSq @ lookup.right.mT)).sum((1, 2))


def to_dense(contribution: Contribution, shape: torch.Size) -> Tensor:
    """The per-example gradients themselves, ``(batch, *shape)``."""
    if isinstance(contribution, Dense):
        return contribution.values
    if isinstance(contribution, Outer):
        return contribution.fold(contribution.product())
    if isinstance(contribution, OneHot):
        batch, tokens, q = contribution.right.shape
        table = contribution.right.new_zeros(batch, contribution.rows, q)
        where = contribution.index.unsqueeze(2).expand(batch, tokens, q)
        return table.scatter_add(1, where, contribution.right).reshape(batch, *shape)
    raise TypeError("an aligned contribution is spread over the batch")


def flip(contribution: Contribution) -> Contribution:
    """The same gradients for the transposed matrix."""
    if isinstance(contribution, Outer) and contribution.order == (0, 1) and contribution.dims[1] == 1:
        return Outer(contribution.right, contribution.left, contribution.sizes[::-1], (0, 1), contribution.by_kernel)
    if isinstance(contribution, OneHot):
        shape = torch.Size((contribution.rows, contribution.right.shape[2]))
        return Dense(to_dense(contribution, shape).mT)
    shape = torch.Size(()) if isinstance(contribution, Dense) else torch.Size(contribution.sizes)  # type: ignore[union-attr]
    return Dense(to_dense(contribution, shape).mT)
