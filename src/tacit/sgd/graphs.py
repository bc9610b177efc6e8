"""How is a traced step brought into the form that the compiler makes the most of? Rewrites of the graph, none of which
changes a number.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten

_SAME_ORDER = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.detach.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.alias.default,
)


def name_of(node: Node) -> str:
    """The name of an aten operation; empty for anything else."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return ""
    return str(target._schema.name.partition("::")[2])


def mutates(graph: GraphModule) -> bool:
    """Whether any operation writes into its inputs."""
    return any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in graph.graph.nodes)


def tidy(whole: GraphModule) -> None:
    """Prepare a traced graph for the compiler.

    Views become reshapes, because the compiler may choose another memory order for what they look at.
    """
    if not mutates(whole):
        for node in whole.graph.nodes:
            if node.target in (aten.view.default, aten._unsafe_view.default):
                node.target = aten.reshape.default
        pad_once(whole)
        shorten(whole)
    whole.graph.eliminate_dead_code()
    whole.graph.lint()
    whole.recompile()


def _shape(node: Any) -> tuple[int, ...]:
    meta = node.meta.get("tensor_meta") if isinstance(node, Node) else None
    return tuple(getattr(meta, "shape", ()))


def _origin(node: Node) -> Node:
    """Where the elements of a tensor come from, in the same order."""
    while isinstance(node.target, torch._ops.OpOverload) and node.args and isinstance(node.args[0], Node):
        before = node.args[0]
        if node.target not in _SAME_ORDER:
            shape = _shape(before)
            single = node.target == aten.select.int and shape and shape[int(node.args[1])] == 1
            still = node.target == aten.permute.default and _only_ones_move(shape, node.args[1])
            if not (single or still):
                return node
        node = before
    return node


def _only_ones_move(shape: tuple[int, ...], order: Any) -> bool:
    kept = [k for k in order if shape[k] != 1]
    return kept == sorted(kept)


def shorten(whole: GraphModule) -> None:
    """One reshape in place of each chain of views: the compiler takes its time for every operation."""
    for node in list(whole.graph.nodes):
        shape = _shape(node)
        if node.op != "call_function" or not shape:
            continue
        origin = _origin(node)
        if origin is node or (node.target == aten.reshape.default and origin is node.args[0]):
            continue
        with whole.graph.inserting_before(node):
            same = whole.graph.call_function(aten.reshape.default, (origin, list(shape)))
        same.meta = dict(node.meta)
        node.replace_all_uses_with(same)
        whole.graph.erase_node(node)


def pad_once(whole: GraphModule) -> None:
    """One padded copy of a matrix with an odd number of columns, for all products that it takes part in.

    The kernels read the gradient of the logits with its columns filled up with zeros, and the compiler would make
    another such copy for the product with the weight. With a vocabulary of 50,257 each is the largest tensor of a step.
    """
    found: dict[Node, list[Node]] = {}
    for node in whole.graph.nodes:
        if node.target == aten.constant_pad_nd.default and isinstance(node.args[0], Node):
            pads = list(node.args[1])
            if len(pads) == 2 and pads[0] == 0 and pads[1] > 0 and (node.args[2:] or (0,))[0] == 0:
                found.setdefault(_origin(node.args[0]), []).append(node)
    for origin, padded in found.items():
        shape = _shape(origin)
        if len(shape) < 2 or any(_shape(n)[-1] != _shape(padded[0])[-1] for n in padded):
            continue
        rows, width, filled = math.prod(shape[:-1]), shape[-1], _shape(padded[0])[-1]
        products = [
            n
            for n in whole.graph.nodes
            if n.target == aten.mm.default
            and isinstance(n.args[0], Node)
            and _shape(n.args[0]) == (rows, width)
            and _origin(n.args[0]) is origin
        ]
        with whole.graph.inserting_after(origin):
            flat = whole.graph.call_function(aten.reshape.default, (origin, [rows, width]))
        with whole.graph.inserting_after(flat):
            once = whole.graph.call_function(aten.constant_pad_nd.default, (flat, [0, filled - width]))
        for node in padded:
            with whole.graph.inserting_before(node):
                same = whole.graph.call_function(aten.reshape.default, (once, list(_shape(node))))
            same.meta = dict(node.meta)
            node.replace_all_uses_with(same)
            whole.graph.erase_node(node)
        for node in products:
            with whole.graph.inserting_before(node):
                other = whole.graph.call_function(
                    aten.constant_pad_nd.default, (node.args[1], [0, 0, 0, filled - width])
                )
            node.args = (once, other)


def hasten(whole: GraphModule, late: set[str], last: str) -> None:
    """Put each operation that ``last`` waits for where its operands are ready, not after the whole backward pass.

    These are the norms: most of them end in a few numbers for each example, and what they read is given back earlier.
    """
    nodes = list(whole.graph.nodes)
    wanted: set[Node] = set()
    stack = [n for n in nodes if n.name == last]
    while stack:
        node = stack.pop()
        if node not in wanted:
            wanted.add(node)
            stack.extend(node.all_input_nodes)
    ready: dict[Node, int] = {}
    for k, node in enumerate(nodes):
        operands = [ready[n] for n in node.all_input_nodes if n.op != "placeholder"]
        moved = node in wanted and node.name in late and node.op == "call_function" and bool(operands)
        ready[node] = max(operands) if moved else k
    place = {n: k for k, n in enumerate(nodes)}
    output = nodes[-1]
    for node in sorted(nodes[:-1], key=lambda n: (ready[n], place[n])):
        if node.op != "placeholder":
            output.prepend(node)


def narrow_convolutions(whole: GraphModule) -> bool:
    """Whether images are convolved in a type narrower than float32, for which channels are best kept innermost."""
    return any(
        name_of(n) == "convolution"
        and len(_shape(n)) == 4
        and n.meta["tensor_meta"].dtype in (torch.bfloat16, torch.float16)
        for n in whole.graph.nodes
    )


def _split(x: torch.Tensor, groups: int) -> torch.Tensor:
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def _group_norm(x: Any, weight: Any, bias: Any, n: int, c: int, positions: int, groups: int, eps: float) -> Any:
    """Group normalisation that keeps the order of its input in memory (the one of torch does not, on a GPU)."""
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    parts = _split(wide, groups)
    over = list(range(2, parts.dim()))
    variance, mean = torch.var_mean(parts, over, correction=0, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    out = ((parts - mean) * scale).reshape(x.shape)
    column = (1, c, *(1,) * (x.dim() - 2))
    out = out if weight is None else out * weight.reshape(column)
    out = out if bias is None else out + bias.reshape(column)
    return out.to(x.dtype), mean.reshape(n, groups), scale.reshape(n, groups)


def _group_norm_backward(
    grad: Any, x: Any, mean: Any, scale: Any, weight: Any, n: int, c: int, positions: int, groups: int, mask: Any
) -> Any:
    grad_wide, wide = (t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in (grad, x))
    column = (1, c, *(1,) * (x.dim() - 2))
    parts = _split(wide, groups)
    place = (n, groups, *(1,) * (parts.dim() - 2))
    normal = (parts - mean.reshape(place)) * scale.reshape(place)
    found: list[Any] = [None, None, None]
    over = list(range(2, parts.dim()))
    if mask[0]:
        inner = _split(grad_wide if weight is None else grad_wide * weight.reshape(column), groups)
        pull = inner - inner.mean(over, keepdim=True) - normal * (inner * normal).mean(over, keepdim=True)
        found[0] = (pull * scale.reshape(place)).reshape(x.shape).to(x.dtype)
    others = [0, *range(2, x.dim())]
    if mask[1]:
        found[1] = (grad_wide * normal.reshape(x.shape)).sum(others)
    if mask[2]:
        found[2] = grad_wide.sum(others)
    return tuple(found)


#: Operations that are written out while a step with images in memory order "channels last" is traced.
CHANNELS_LAST = {
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
}
