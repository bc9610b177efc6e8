"""How long is each example's gradient of one parameter, and what is the weighted sum over examples?

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
(:func:`tacit.sgd.kernels.products.underflow`).

Tensor cores do not round but cut off, always towards zero: a norm by the kernels falls behind by
:func:`tacit.sgd.kernels.products.cut_off`, which the margin makes good. The clip factor is computed from norm plus
margin, so what rounding adds is inside the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.sgd.gradients.rules.base import Contribution, Dense, OneHot, Outer, clean, widen
from tacit.sgd.kernels import autotune, products
from tacit.sgd.kernels.products import full_precision

__all__ = ["Group", "Norms", "flip", "full_precision", "roundoff", "to_dense"]

CHUNK_ELEMENTS = 1 << 26
#: So few tokens that comparing every two is cheaper on a GPU than sorting; a CPU multiplies faster than it sorts.
FEW = 16
#: So few examples that the compiler writes out a sum over them.
FEW_EXAMPLES = 8


@dataclass
class Norms:
    """Squared norms per example; what rounding may take from them (``gram``) and add to a sum (``product``)."""

    squared: Tensor
    gram: Tensor | float = 0.0
    product: Tensor | float = 0.0


def roundoff(tensor: Tensor, convolution: bool = False) -> float:
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
        mixed = bool(dense) and len(contributions) > len(dense)
        differ = len({c.key for c in outers}) > 1
        crossed = bool(outers and lookups) and not (
            outers[0].dims[1] == 1
            and outers[0].order == tuple(range(len(outers[0].order)))
            and outers[0].dims[3] == lookups[0].rows
        )
        summed = len(outers) > 1 and not lookups and _prefers_product(outers)
        if mixed or differ or crossed or summed or _small(outers, lookups):
            total = to_dense(contributions[0], shape)
            for contribution in contributions[1:]:
                total = total + to_dense(contribution, shape)
            return Group(shape, dense=total)
        if dense:
            total = dense[0].values
            for contribution in dense[1:]:
                total = total + contribution.values
            return Group(shape, dense=total)
        group = Group(shape, parts=outers)
        if outers:
            first = outers[0]
            if len(outers) > 1:
                # Patches may be in full float32, which these kernels do not multiply.
                by_kernel = all(c.by_kernel and not c.by_convolution for c in outers)
                pairs = [(c.left, c.right) if by_kernel else (widen(c.left), widen(c.right)) for c in outers]
                left, right = (torch.cat(factors, 2) for factors in zip(*pairs, strict=True))
                group.outer = Outer(left, right, first.sizes, first.order, by_kernel)
            else:
                group.outer = first
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
            return Norms((ours * theirs).sum(1), products.underflow(ours[:, :, None], theirs[:, :, None], p, q))
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
            norms.gram = norms.gram + products.underflow(squares_left, squares_right, p, q)
            if left.is_cuda and any(part.by_convolution and not part.by_kernel for part in self.parts):
                # The vendor's convolution may transform whole images, in which rows are no longer apart.
                whole = (squares_left.sum(2) * squares_right.sum(2)).sum(1)
                norms.product = _margins(squared, whole, tokens, roundoff(left, True)).product
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

    def weighted_sum(self, scale: Tensor, sanitise: bool, positive: bool = False) -> Tensor:
        """``sum_b scale_b G_b``; with ``sanitise``, examples of scale zero add nothing though they be infinite.

        ``positive`` says that no factor is zero.
        """
        if self.dense is not None:
            values = clean(self.dense) if sanitise else self.dense
            return scaled_total(scale.to(values.dtype), values)
        total: Tensor | None = None
        if self.outer is not None:
            for part in self.parts:
                piece = part.weighted_sum(scale, sanitise, positive)
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


def _small(outers: list[Outer], lookups: list[OneHot]) -> bool:
    """Whether a tied table is so small that its per-example gradient is cheaper than Gram matrices."""
    if not (outers and lookups):
        return False
    tokens = sum(c.dims[2] for c in outers) + sum(c.index.shape[1] for c in lookups)
    rows, q = lookups[0].rows, lookups[0].right.shape[2]
    return bool(rows * q <= tokens * (rows + q))


def _prefers_product(outers: list[Outer]) -> bool:
    """Whether the uses together have so many tokens that the per-example product is the cheaper way."""
    _, _, _, p, q = outers[0].dims
    return sum(o.dims[2] for o in outers) * (p + q) > p * q


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
