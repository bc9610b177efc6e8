"""Per-example gradients of the scale and shift of layer, RMS, group, instance and frozen batch normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.sgd.gradients.layout import Layout
from tacit.sgd.gradients.rules.base import Contributions, Dense, NotCovered, bind, reduce_to, rule, single, wide
from tacit.sgd.gradients.uses import Use


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
