"""Per-example gradients where a parameter is contracted with the data: linear, matmul, bmm, addmm, einsum, bilinear.

All of them are one two-operand einsum. Its letters fall into five classes, seen from the parameter ``D`` and the data
``X``: the batch (which may be folded with others into one letter), tokens (in ``X`` and the output), groups (in all
three), rows (in ``D`` and the output) and columns (in ``D`` and ``X``). The gradient of ``D`` is then a sum over
tokens of outer products.
"""

from __future__ import annotations

import math
import string
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.gradients.capture import Derived, Use
from tacit.sgd.gradients.contributions import (
    Aligned,
    Contribution,
    Contributions,
    Layout,
    NotCovered,
    Outer,
    bind,
    reduce_to,
    rule,
    single,
    wide,
    widen,
)
from tacit.sgd.kernels import products


def contract(
    d_spec: str, x_spec: str, out_spec: str, d: Tensor, x: Tensor, grad: Tensor, layout: Layout
) -> Contribution:
    """The contribution of ``out = einsum(f"{d_spec},{x_spec}->{out_spec}", d, x)`` to the gradient of ``d``."""
    if any(len(set(spec)) != len(spec) for spec in (d_spec, x_spec, out_spec)):
        raise NotCovered
    foreign = _foreign(d_spec, out_spec, d, grad, layout)
    if foreign:
        own = "".join(c for k, c in enumerate(d_spec) if k not in foreign)
        return _unsqueeze(contract(own, x_spec, out_spec, d.squeeze(foreign), x, grad, layout), d.shape, foreign)
    x, grad, by_kernel = _in_one_type(x, grad)
    sizes = dict(zip(d_spec, d.shape, strict=True))
    x, x_spec = _matched(x, x_spec, sizes, out_spec, grad)
    batch = out_spec[layout.dim]
    if any(c not in x_spec and c not in out_spec for c in d_spec) or (batch not in d_spec and batch not in x_spec):
        raise NotCovered
    if batch in d_spec:
        values = torch.einsum(f"{out_spec},{x_spec}->{d_spec}", widen(grad), widen(x))
        return Aligned(values, layout.moved(d_spec.index(batch)))
    groups, rows, columns, tokens = _classes(d_spec, x_spec, out_spec, batch)
    left = _arrange(layout.split(grad), out_spec.replace(batch, "OBI"), groups, tokens, rows)
    right = _arrange(layout.split(x, x_spec.index(batch)), x_spec.replace(batch, "OBI"), groups, tokens, columns)
    if groups + columns + rows == list(d_spec):
        left, right, rows, columns = right, left, columns, rows
    order = groups + rows + columns
    by_kernel = by_kernel and left.shape[1] == 1 and left.dtype == right.dtype
    if not by_kernel:
        left, right = widen(left), widen(right)
    return Outer(left, right, tuple(sizes[c] for c in order), tuple(order.index(c) for c in d_spec), by_kernel)


def _foreign(d_spec: str, out_spec: str, d: Tensor, grad: Tensor, layout: Layout) -> list[int]:
    """Dimensions of size one of ``D`` over which the output broadcasts it, or else that hold a single example."""
    foreign = [k for k, c in enumerate(d_spec) if c in out_spec and d.shape[k] != grad.shape[out_spec.index(c)]]
    batch = out_spec[layout.dim]
    if not foreign and batch in d_spec and grad.shape[layout.dim] == 1:
        foreign = [d_spec.index(batch)]
    return foreign


def _in_one_type(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Data and gradient in the type in which they are multiplied, and whether the kernels do."""
    x = x.to(grad.dtype)  # under autocast the operation saw the narrow values
    if grad.device.type in products.DEVICES:
        if products.narrow(grad):
            return x, grad, True
        if products.tf32(widen(grad)):
            return products.to_tf32(widen(x)), products.to_tf32(widen(grad)), True
    kind = wide(grad.dtype)
    return x.to(kind), grad.to(kind), False


def _matched(x: Tensor, x_spec: str, d_sizes: dict[str, int], out_spec: str, grad: Tensor) -> tuple[Tensor, str]:
    """The data as large as the output has them, without what neither the output nor ``D`` knows of."""
    sizes = [grad.shape[out_spec.index(c)] if c in out_spec else n for c, n in zip(x_spec, x.shape, strict=True)]
    if sizes != list(x.shape):
        x = x.expand(sizes)
    if any(n != d_sizes.get(c, n) for c, n in zip(x_spec, sizes, strict=True)):
        raise NotCovered
    alone = [k for k, c in enumerate(x_spec) if c not in d_sizes and c not in out_spec]
    if alone:
        x, x_spec = widen(x).sum(alone), "".join(c for k, c in enumerate(x_spec) if k not in alone)
    return x, x_spec


def _classes(d_spec: str, x_spec: str, out_spec: str, batch: str) -> tuple[list[str], list[str], list[str], list[str]]:
    """The letters of groups, rows, columns and tokens; the batch may be folded with tokens on both sides of it."""
    groups = [c for c in d_spec if c in x_spec and c in out_spec]
    rows = [c for c in d_spec if c in out_spec and c not in x_spec]
    columns = [c for c in d_spec if c in x_spec and c not in out_spec]
    shared = "".join(c for c in out_spec if c in x_spec and c not in d_spec)
    return groups, rows, columns, list(shared.replace(batch, "OI"))


def _arrange(tensor: Tensor, spec: str, *parts: list[str]) -> Tensor:
    letters = ["B", *(c for part in parts for c in part)]
    sizes = dict(zip(spec, tensor.shape, strict=True))
    tensor = tensor.permute([spec.index(c) for c in letters])
    return tensor.reshape(sizes["B"], *(math.prod(sizes[c] for c in part) for part in parts))


def _unsqueeze(inner: Contribution, shape: torch.Size, where: list[int]) -> Contribution:
    if isinstance(inner, Outer):
        rank, kept = len(shape), [k for k in range(len(shape)) if k not in where]
        # Dimensions of size one go to the front of the folded order and back to their own place.
        order = [0] * rank
        for position, k in enumerate(where):
            order[k] = position
        for k, old in zip(kept, inner.order, strict=True):
            order[k] = len(where) + old
        return Outer(inner.left, inner.right, (1,) * len(where) + inner.sizes, tuple(order), inner.by_kernel)
    if isinstance(inner, Aligned):
        kept = [k for k in range(len(shape)) if k not in where]
        return Aligned(inner.values.reshape(shape), inner.layout.moved(kept[inner.layout.dim]))
    raise NotCovered


def _letters(count: int, start: int = 0) -> str:
    return string.ascii_lowercase[start : start + count]


def matmul_specs(a: int, b: int) -> tuple[str, str, str]:
    """The einsum of ``torch.matmul`` for operands of these ranks.

    >>> matmul_specs(3, 2)
    ('ayz', 'zx', 'ayx')
    """
    lead = _letters(max(a, b, 2) - 2)
    a_spec = "z" if a == 1 else lead[len(lead) - (a - 2) :] + "yz"
    b_spec = "z" if b == 1 else lead[len(lead) - (b - 2) :] + "zx"
    return a_spec, b_spec, lead + ("y" if a > 1 else "") + ("x" if b > 1 else "")


def product(use: Use, a: Any, b: Any, specs: tuple[str, str, str], grad: Tensor, layout: Layout) -> Contributions:
    """Contributions of the operands of a product that are derived values."""
    a_spec, b_spec, out = specs
    found: Contributions = []
    d_a, d_b = use.find(a), use.find(b)
    if d_a is not None and d_b is not None:
        raise NotCovered
    if d_a is not None:
        found.append((d_a, contract(a_spec, b_spec, out, d_a.tensor, b, grad, layout)))
    if d_b is not None:
        found.append((d_b, contract(b_spec, a_spec, out, d_b.tensor, a, grad, layout)))
    return found


def added(use: Use, value: Any, grad: Tensor, layout: Layout, scale: Any = None) -> Contributions:
    """The contribution of a value that is broadcast and added to the output."""
    known = use.find(value) if isinstance(value, Tensor) else None
    if known is None:
        return []
    if isinstance(scale, Tensor):
        raise NotCovered
    full = grad if scale in (None, 1) else widen(grad) * scale
    return [(known, reduce_to(known.tensor.shape, full, layout))]


@rule("linear")
def linear(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input weight bias")
    x, weight = bound["input"], bound["weight"]
    lead = _letters(x.dim() - 1)
    if weight.dim() == 2:
        specs = (lead + "z", "yz", lead + "y")
    else:
        specs = (lead + "z", "z", lead)
    return product(use, x, weight, specs, grad, layout) + added(use, bound["bias"], grad, layout)


@rule("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv")
def matmul(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    if len(use.args) != 2 or use.kwargs:
        raise NotCovered
    a, b = use.args if use.name != "__rmatmul__" else use.args[::-1]
    return product(use, a, b, matmul_specs(a.dim(), b.dim()), grad, layout)


@rule("addmm", "baddbmm", "addmv")
def addmm(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input a b beta alpha mat1 mat2 batch1 batch2 mat vec")
    a = next(bound[k] for k in ("a", "mat1", "batch1", "mat") if bound[k] is not None)
    b = next(bound[k] for k in ("b", "mat2", "batch2", "vec") if bound[k] is not None)
    scaled = grad if bound["alpha"] in (None, 1) else grad * bound["alpha"]
    found = product(use, a, b, matmul_specs(a.dim(), b.dim()), scaled, layout)
    return found + added(use, bound["input"], grad, layout, bound["beta"])


@rule("einsum")
def einsum(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    if use.kwargs or not isinstance(use.args[0], str):
        raise NotCovered
    operands = use.args[1:]
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if len(operands) != 2:
        raise NotCovered
    a, b, out = _equation(use.args[0], [t.dim() for t in operands])
    return product(use, operands[0], operands[1], (a, b, out), grad, layout)


def _equation(equation: str, ranks: list[int]) -> tuple[str, str, str]:
    """An einsum equation with its ellipsis and implicit output written out, in letters that leave B, O and I free."""
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    used = sorted(set(inputs) - set(",."))
    spare = [c for c in string.ascii_lowercase + string.ascii_uppercase if c not in "BOI"]
    rename = dict(zip(used, spare, strict=False))
    widths = [rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True)]
    dots = spare[len(used) : len(used) + max(0, *widths)]
    if not arrow:
        joined = "".join(t.replace("...", "") for t in terms)
        out = ("..." if "..." in inputs else "") + "".join(c for c in used if joined.count(c) == 1)
    if len(used) + len(dots) > len(spare):
        raise NotCovered

    def write(term: str, width: int) -> str:
        head, dotted, tail = term.partition("...")
        middle = dots[len(dots) - width :] if dotted and width else []
        return "".join([*(rename[c] for c in head), *middle, *(rename[c] for c in tail)])

    return write(terms[0], widths[0]), write(terms[1], widths[1]), write(out, len(dots))


@rule("bilinear")
def bilinear(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input1 input2 weight bias")
    known: Derived | None = use.find(bound["weight"])
    if use.find(bound["input1"]) or use.find(bound["input2"]):
        raise NotCovered
    found = added(use, bound["bias"], grad, layout)
    if known is not None:
        pair = torch.einsum("...i,...j->...ij", bound["input1"], bound["input2"])
        lead = _letters(grad.dim() - 1)
        found.append((known, contract("xyz", lead + "yz", lead + "x", known.tensor, pair, grad, layout)))
    return found
