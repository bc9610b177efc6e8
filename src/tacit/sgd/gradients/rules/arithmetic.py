"""Per-example gradients where a parameter and the data are multiplied and added: contracted, broadcast or joined.

*Contracted*: linear, matmul, bmm, addmm, einsum, tensordot and bilinear are one two-operand einsum. Its letters fall
into five classes, seen from the parameter ``D`` and the data ``X``: the batch (which may be folded with others into one
letter), tokens (in ``X`` and the output), groups (in all three), rows (in ``D`` and the output) and columns (in ``D``
and ``X``). The gradient of ``D`` is then a sum over tokens of outer products.

*Broadcast*: bias, scale, position, class token, mask, and the scale and shift of layer, RMS, group, instance and frozen
batch normalisation. Any broadcasting elementwise operation has the same shape of gradient: expand the parameter to the
output's shape, differentiate there, and sum what was broadcast, except over the examples. *Joined*: ``cat`` and
``stack`` put the parameter beside the data, and the gradient is a slice of the output's.
"""

from __future__ import annotations

import math
import string
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.sgd.gradients.capture import Use, tensors_in
from tacit.sgd.gradients.contributions import (
    Aligned,
    Contribution,
    Contributions,
    Dense,
    Layout,
    NotCovered,
    Outer,
    bind,
    reduce_to,
    replay,
    rule,
    single,
    wide,
    widen,
    words,
)
from tacit.sgd.gradients.functions import Derived
from tacit.sgd.kernels import products

# -- contracted --------------------------------------------------------------------------------------------------------


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
        if not layout.regular:
            raise NotCovered
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


@rule("tensordot")
def tensordot(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    """An einsum with a letter for each dimension, one letter for two that are summed together."""
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "a b dims out")
    a, b, dims = bound["a"], bound["b"], bound["dims"]
    if isinstance(dims, int):
        dims = (range(a.dim() - dims, a.dim()), range(dims))
    if not isinstance(dims, list | tuple):
        raise NotCovered
    pairs = {k % b.dim(): j % a.dim() for j, k in zip(*dims, strict=True)}
    a_spec, rest = _letters(a.dim()), _letters(b.dim(), a.dim())
    b_spec = "".join(a_spec[pairs[k]] if k in pairs else c for k, c in enumerate(rest))
    out = "".join(c for c in a_spec + b_spec if (c in a_spec) != (c in b_spec))
    return product(use, a, b, (a_spec, b_spec, out), grad, layout)


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


# -- broadcast and joined ----------------------------------------------------------------------------------------------


@rule("add", "add_", "__add__", "__radd__", "__iadd__", values=False)
def add(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input other alpha")
    found: Contributions = []
    for key, scale in (("input", 1), ("other", bound["alpha"] if bound["alpha"] is not None else 1)):
        known = use.find(bound[key])
        if known is not None:
            found.append((known, reduce_to(known.tensor.shape, grad if scale == 1 else grad * scale, layout)))
    return found


@rule("sub", "sub_", "__sub__", "__isub__", "subtract", values=False)
def sub(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input other alpha")
    found: Contributions = []
    for key, scale in (("input", 1), ("other", -(bound["alpha"] if bound["alpha"] is not None else 1))):
        known = use.find(bound[key])
        if known is not None:
            found.append((known, reduce_to(known.tensor.shape, grad if scale == 1 else grad * scale, layout)))
    return found


@rule("mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply")
def mul(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input other")
    first, second = use.find(bound["input"]), use.find(bound["other"])
    if (first is None) == (second is None) or not isinstance(bound["input" if second else "other"], Tensor):
        raise NotCovered
    known, other = (first, bound["other"]) if first is not None else (second, bound["input"])
    assert known is not None
    full = grad.to(wide(grad.dtype)) * other
    return [(known, reduce_to(known.tensor.shape, full, layout))]


@rule(
    *words("div div_ __truediv__ __rtruediv__ __itruediv__ __rdiv__ true_divide divide rsub __rsub__ pow pow_"),
    *words("__pow__ __rpow__ where lerp addcmul addcdiv maximum minimum fmax fmin atan2 arctan2 xlogy hypot"),
    *words("logaddexp logaddexp2 clamp clip copysign fmod remainder __mod__ float_power"),
)
def elementwise(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    """Any broadcasting elementwise operation, by its own derivative at the expanded parameter."""
    grad, layout = single(grads, layouts)
    found: Contributions = []
    for known in use.derived:
        if not known.tensor.is_floating_point():
            raise NotCovered
        full = known.tensor.detach().expand(grad.shape).clone().requires_grad_()
        try:
            outs = replay(use, lambda t, d=known, f=full: f if t is d.tensor else t.detach())  # type: ignore[misc]
        except RuntimeError as error:  # the operation does not take the expanded value
            raise NotCovered from error
        if len(outs) != 1 or outs[0].shape != grad.shape:
            raise NotCovered
        out = outs[0]
        (gradient,) = torch.autograd.grad(out, full, grad)
        found.append((known, reduce_to(known.tensor.shape, gradient, layout)))
    return found


@rule("masked_fill", "masked_fill_")
def masked_fill(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input mask value")
    if not isinstance(bound["mask"], Tensor):
        raise NotCovered
    found: Contributions = []
    filled = bound["mask"].expand(grad.shape)
    for key, kept in (("input", ~filled), ("value", filled)):
        known = use.find(bound[key])
        if known is not None:
            found.append((known, reduce_to(known.tensor.shape, torch.where(kept, grad, 0.0), layout)))
    return found


@rule("prelu")
def prelu(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input weight")
    known, x = use.find(bound["weight"]), bound["input"]
    if known is None or use.find(x) is not None:
        raise NotCovered
    full = torch.where(x < 0, grad.to(wide(grad.dtype)) * x, 0.0)
    if known.tensor.numel() == 1 or x.dim() < 2:
        reduced = reduce_to((1,) * x.dim(), full, layout)
    else:
        reduced = reduce_to((1, x.shape[1], *(1,) * (x.dim() - 2)), full, layout)
    if not isinstance(reduced, Dense):
        raise NotCovered
    return [(known, Dense(reduced.values.reshape(layout.batch, *known.tensor.shape)))]


def beside(known_shape: torch.Size, piece: Tensor, layout: Layout, dim: int) -> Dense | Aligned:
    """The gradient of a value that was put beside others along ``dim``."""
    if dim == layout.dim:
        raise NotCovered
    return reduce_to(known_shape, piece, layout)


@rule("cat", "concat", "concatenate", values=False)
def cat(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "tensors dim axis")
    parts = list(bound["tensors"])
    dim = (bound["dim"] if bound["dim"] is not None else bound["axis"] or 0) % grad.dim()
    found: Contributions = []
    start = 0
    for part in parts:
        if part.dim() == 1 and part.numel() == 0:
            continue
        known = use.find(part)
        if known is not None:
            piece = grad.narrow(dim, start, part.shape[dim])
            found.append((known, beside(part.shape, piece, layout, dim)))
        start += part.shape[dim]
    return found


@rule("stack", values=False)
def stack(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "tensors dim")
    dim = (bound["dim"] or 0) % grad.dim()
    found: Contributions = []
    for k, part in enumerate(tensors_in(bound["tensors"])):
        known = use.find(part)
        if known is not None:
            if dim == layout.dim:
                raise NotCovered
            moved = layout.moved(layout.dim - (dim < layout.dim))
            found.append((known, reduce_to(part.shape, grad.select(dim, k), moved)))
    return found


# -- scale and shift of a normalisation --------------------------------------------------------------------------------


def _affine(
    use: Use, weight: object, bias: object, normal: Tensor, grad: Tensor, layout: Layout, shape: tuple[int, ...]
) -> Contributions:
    """Scale and shift of ``shape`` (as it broadcasts against the output)."""
    found: Contributions = []
    grad = grad.to(wide(grad.dtype))
    for value, full in ((weight, None), (bias, grad)):
        known = use.find(value)
        if known is None:
            continue
        reduced = reduce_to(shape, grad * normal if full is None else full, layout)
        if not isinstance(reduced, Dense):
            raise NotCovered
        found.append((known, Dense(reduced.values.reshape(layout.batch, *known.tensor.shape))))
    return found


def _unit(use: Use, x: Tensor) -> Tensor:
    """The input in the type in which the statistics are computed."""
    if use.find(x) is not None:
        raise NotCovered
    return x.detach().to(wide(x.dtype))


@rule("layer_norm")
def layer_norm(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input normalized_shape weight bias eps cudnn_enable")
    shape = tuple(bound["normalized_shape"])
    eps = 1e-5 if bound["eps"] is None else bound["eps"]
    normal = F.layer_norm(_unit(use, bound["input"]), shape, None, None, eps)
    return _affine(use, bound["weight"], bound["bias"], normal, grad, layout, shape)


@rule("rms_norm")
def rms_norm(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input normalized_shape weight eps")
    shape = tuple(bound["normalized_shape"])
    x = bound["input"]
    eps = torch.finfo(x.dtype).eps if bound["eps"] is None else bound["eps"]
    normal = F.rms_norm(_unit(use, x), shape, None, eps)
    return _affine(use, bound["weight"], None, normal, grad, layout, shape)


@rule("group_norm")
def group_norm(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    bound = bind(use.args, use.kwargs, "input num_groups weight bias eps cudnn_enabled")
    eps = 1e-5 if bound["eps"] is None else bound["eps"]
    normal = F.group_norm(_unit(use, bound["input"]), bound["num_groups"], None, None, eps)
    return _affine(use, bound["weight"], bound["bias"], normal, grad, layout, _channels(grad))


@rule("instance_norm")
def instance_norm(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    names = "input running_mean running_var weight bias use_input_stats momentum eps cudnn_enabled"
    bound = bind(use.args, use.kwargs, names)
    eps = 1e-5 if bound["eps"] is None else bound["eps"]
    x = _unit(use, bound["input"])
    if bound["use_input_stats"] is False:
        normal = F.batch_norm(x, bound["running_mean"], bound["running_var"], training=False, momentum=0.0, eps=eps)
    else:
        normal = F.instance_norm(x, use_input_stats=True, momentum=0.1, eps=eps)
    return _affine(use, bound["weight"], bound["bias"], normal, grad, layout, _channels(grad))


@rule("batch_norm")
def batch_norm(use: Use, grads: list[Tensor | None], layouts: list[Layout | None]) -> Contributions:
    grad, layout = single(grads, layouts)
    names = "input running_mean running_var weight bias training momentum eps cudnn_enabled"
    bound = bind(use.args, use.kwargs, names)
    if bound["training"] or bound["running_mean"] is None:
        raise NotCovered  # the statistics of the batch mix its examples
    eps = 1e-5 if bound["eps"] is None else bound["eps"]
    x = _unit(use, bound["input"])
    mean, var = bound["running_mean"].to(x.dtype), bound["running_var"].to(x.dtype)
    normal = F.batch_norm(x, mean, var, training=False, momentum=0.0, eps=eps)
    return _affine(use, bound["weight"], bound["bias"], normal, grad, layout, _channels(grad))


def _channels(grad: Tensor) -> tuple[int, ...]:
    return (1, grad.shape[1], *(1,) * (grad.dim() - 2))
