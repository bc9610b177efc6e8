"""Per-example gradients where a parameter is broadcast against the data: bias, scale, position, class token, mask,
and the scale and shift of layer, RMS, group, instance and frozen batch normalisation.

Any broadcasting elementwise operation has the same shape of gradient: expand the parameter to the output's shape,
differentiate there, and sum what was broadcast, except over the examples. ``cat`` and ``stack`` put the parameter
beside the data: the gradient is a slice of the output's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.sgd.gradients.capture import Use, tensors_in
from tacit.sgd.gradients.contributions import (
    Aligned,
    Contributions,
    Dense,
    Layout,
    NotCovered,
    bind,
    reduce_to,
    replay,
    rule,
    single,
    wide,
    words,
)


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
        normal = F.batch_norm(x, bound["running_mean"], bound["running_var"], None, None, False, 0.0, eps)
    else:
        normal = F.instance_norm(x, None, None, None, None, True, 0.1, eps)
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
    normal = F.batch_norm(x, mean, var, None, None, False, 0.0, eps)
    return _affine(use, bound["weight"], bound["bias"], normal, grad, layout, _channels(grad))


def _channels(grad: Tensor) -> tuple[int, ...]:
    return (1, grad.shape[1], *(1,) * (grad.dim() - 2))
