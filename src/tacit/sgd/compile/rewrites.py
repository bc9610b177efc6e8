"""How is a traced step brought into the form that the compiler makes the most of? Rewrites of the graph, none of which
changes a number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from tacit.sgd.torch_compat import (
    log_softmax,
    log_softmax_backward,
    operator_of,
    schema,
    to_copy,
    unsafe_view,
)

aten = torch.ops.aten

_SAME_ORDER = (
    aten.view.default,
    unsafe_view,
    aten.reshape.default,
    aten.detach.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.alias.default,
)


def name_of(node: Node) -> str:
    """The name of an aten operation; empty for anything else."""
    called = operator_of(node)
    return "" if called is None or called.namespace != "aten" else str(schema(called).name.partition("::")[2])


def writes(node: Node) -> bool:
    """Whether an operation writes into its inputs."""
    called = operator_of(node)
    return called is not None and bool(schema(called).is_mutable)


def mutates(graph: GraphModule) -> bool:
    """Whether any operation writes into its inputs."""
    return any(map(writes, graph.graph.nodes))


_IN_PLACE = {
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.default: aten.squeeze.default,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
}


def view_anew(whole: GraphModule) -> None:
    """A new tensor for each that is changed in place, in its shape or its numbers, where nobody reads the old one.

    torch's product of a vector and a matrix ends in one, and a graph that writes into tensors is left as it is.
    """
    for node in whole.graph.nodes:
        if node.target in _IN_PLACE and len(node.args[0].users) == 1:
            node.target = _IN_PLACE[node.target]
        elif _writes_into_its_own(node):
            node.target = _WRITING[node.target]


#: Arithmetic in place, as torch's own operations end in (the root mean square of a normalisation).
_WRITING = {
    aten.add_.Scalar: aten.add.Scalar,
    aten.mul_.Scalar: aten.mul.Scalar,
    aten.div_.Scalar: aten.div.Scalar,
    aten.sub_.Scalar: aten.sub.Scalar,
}


def _writes_into_its_own(node: Node) -> bool:
    """Whether arithmetic in place writes into a tensor that was made for it: no view, and read by nothing else."""
    if node.target not in _WRITING:
        return False
    own: Any = node.args[0]  # a node: what is written into is a tensor
    made = operator_of(own)
    whole = made is not None and not writes(own) and not any(r.alias_info for r in schema(made).returns)
    floating = getattr(own.meta.get("tensor_meta"), "dtype", torch.int64).is_floating_point
    return bool(whole and floating and len(own.users) == 1)


def look_through(whole: GraphModule) -> None:
    """Leave out views of the shape that is there already, which only stand for a tensor of its own (``capture``)."""
    for node in list(whole.graph.nodes):
        if node.target == unsafe_view and shape_of(node) and shape_of(node) == shape_of(node.args[0]):
            node.replace_all_uses_with(node.args[0])
            whole.graph.erase_node(node)


def tidy(whole: GraphModule) -> None:
    """Prepare a traced graph for the compiler.

    Views become reshapes, because the compiler may choose another memory order for what they look at.
    """
    if not mutates(whole):
        for node in whole.graph.nodes:
            if node.target in (aten.view.default, unsafe_view):
                node.target = aten.reshape.default
        for node in whole.graph.nodes:
            twice = node.args[0] if node.target == aten.t.default else None
            if isinstance(twice, Node) and twice.target == aten.t.default:
                node.replace_all_uses_with(twice.args[0])
        pad_once(whole, fill_up_logits(whole))
        shorten(whole)
    whole.graph.eliminate_dead_code()
    whole.graph.lint()
    whole.recompile()


def shape_of(node: Any) -> tuple[int, ...]:
    meta = node.meta.get("tensor_meta") if isinstance(node, Node) else None
    return tuple(getattr(meta, "shape", ()))


def origin_of(node: Node) -> Node:
    """Where the elements of a tensor come from, in the same order."""
    while operator_of(node) and node.args and isinstance(node.args[0], Node):
        before = node.args[0]
        if node.target not in _SAME_ORDER:
            shape = shape_of(before)
            along: Any = node.args[1] if len(node.args) > 1 else None
            single = node.target == aten.select.int and shape and shape[along] == 1
            still = node.target == aten.permute.default and shape and _only_ones_move(shape, along)
            if not (single or still):
                return node
        node = before
    return node


def _only_ones_move(shape: tuple[int, ...], order: Any) -> bool:
    kept = [k % len(shape) for k in order if shape[k] != 1]  # a user may count dimensions from the end
    return kept == sorted(kept)


def shorten(whole: GraphModule) -> None:
    """One reshape in place of each chain of views: the compiler takes its time for every operation."""
    for node in list(whole.graph.nodes):
        shape = shape_of(node)
        if node.op != "call_function" or not shape:
            continue
        origin = origin_of(node)
        if origin is not node and shape_of(origin) == shape:
            node.replace_all_uses_with(origin)
            whole.graph.erase_node(node)
            continue
        if origin is node or (node.target == aten.reshape.default and origin is node.args[0]):
            continue
        with whole.graph.inserting_before(node):
            same = whole.graph.call_function(aten.reshape.default, (origin, list(shape)))
        same.meta = dict(node.meta)
        node.replace_all_uses_with(same)
        whole.graph.erase_node(node)


def _set_shape(node: Node, shape: tuple[int, ...]) -> None:
    node.meta["tensor_meta"] = node.meta["tensor_meta"]._replace(shape=torch.Size(shape))


def _logits(softmax: Node, width: int) -> list[Node] | None:
    """From a product of matrices to the softmax of it: each operation, where nothing else reads any of them."""
    path: list[Node] = []
    node = softmax.args[0]
    while isinstance(node, Node) and len(node.users) == 1:
        path.append(node)
        if node.target in (aten.mm.default, aten.addmm.default):
            return path
        whole = shape_of(node)[-1:] == (width,)
        moved = node.target in (to_copy, aten.detach.default, *_SAME_ORDER[:3])
        if not (whole and moved):
            return None
        node = node.args[0]
    return None


_CAST = (to_copy, aten.detach.default)


def _cast(node: Any) -> tuple[Any, list[Node]]:
    """Where a tensor comes from that was only cast to other types on the way, and the casts."""
    path: list[Node] = []
    while isinstance(node, Node) and node.target in _CAST:
        path.append(node)
        node = node.args[0]
    return node, path


def _casts_of(node: Node) -> list[Node]:
    """All that a tensor is cast to, and the tensor itself."""
    found = [node]
    for some in found:
        found += [user for user in some.users if user.target in _CAST]
    return found


class _CrossEntropy:
    """The usual cross entropy right behind a product of matrices, with the casts that autocast puts around it."""

    def __init__(self, back: Node) -> None:
        self.back = back
        self.rows, self.width = shape_of(back)
        (self.grad, self.between), (self.softmax, _) = _cast(back.args[0]), _cast(back.args[1])

    def path(self) -> list[Node] | None:
        """From the product to the softmax; None where this is not the usual cross entropy, or others read it."""
        usual = (
            self.back.args[2] in (1, -1)
            and (isinstance(self.softmax, Node) and self.softmax.target == log_softmax)
            and (isinstance(self.grad, Node) and self.grad.target == aten.nll_loss_backward.default)
        )
        if not usual or self.grad.args[3] is not None or _cast(self.grad.args[1])[0] is not self.softmax:
            return None
        wide = self.wide()
        readers = {user for node in wide for user in node.users} - {*wide, self.back}
        if any(user.target != aten.nll_loss_forward.default for user in readers):
            return None
        return _logits(self.softmax, self.width)

    def wide(self) -> list[Node]:
        """All that is as wide as the logits between them and their gradient."""
        return [*_casts_of(self.softmax), self.grad, *self.between]

    def fill_up(self, whole: GraphModule, path: list[Node]) -> Node:
        """Write it with some more classes, and return the gradient of the true ones."""
        graph, softmax, back = whole.graph, self.softmax, self.back
        filled = -(-self.width // 64) * 64
        product = path[-1]
        *bias, left, right = cast("tuple[Any, ...]", product.args)
        with graph.inserting_before(product):
            more = filled - self.width
            if isinstance(right, Node) and right.target == aten.t.default:
                taller = graph.call_function(aten.constant_pad_nd.default, (right.args[0], [0, 0, 0, more]))
                wider = graph.call_function(aten.t.default, (taller,))
            else:
                wider = graph.call_function(aten.constant_pad_nd.default, (right, [0, more]))
            longer = [graph.call_function(aten.constant_pad_nd.default, (b, [0, more])) for b in bias]
        product.args = (*longer, left, wider)
        for node in path:
            if node.target in _SAME_ORDER[:3]:
                before, sizes = cast("tuple[Node, list[int]]", node.args)
                node.args = (before, [*sizes[:-1], filled])
            _set_shape(node, (*shape_of(node)[:-1], filled))
        with graph.inserting_before(softmax):
            device = softmax.meta["val"].device
            classes = graph.call_function(aten.arange.default, (filled,), {"device": device})
            real = graph.call_function(aten.lt.Scalar, (classes, self.width))
            masked = graph.call_function(aten.where.ScalarOther, (real, softmax.args[0], -math.inf))
        softmax.args = (masked, *softmax.args[1:])
        for node in (*self.wide(), back):
            _set_shape(node, (self.rows, filled))
        with graph.inserting_after(back):
            cut = graph.call_function(aten.slice.Tensor, (back, 1, 0, self.width))
        cut.meta["tensor_meta"] = back.meta["tensor_meta"]
        _set_shape(cut, (self.rows, self.width))
        back.replace_all_uses_with(cut, delete_user_cb=lambda user: user is not cut)
        return cut


def fill_up_logits(whole: GraphModule) -> dict[Node, Node]:
    """Logits over an odd number of classes are computed with some empty ones, so that rows are whole lines of memory.

    The product has zeros there and the softmax sees minus infinity, so the gradient has zeros: filling it up for the
    kernels and for the product with the weight costs nothing. With 50,257 classes each copy saved is the largest tensor
    of a step. Only the usual cross entropy right behind a product is recognised, with the casts that autocast puts
    around it (on a GPU the softmax is in the narrow type, the loss in float32); the slices that stand for the gradient
    of the true logits are returned with the gradient of all.
    """
    found: dict[Node, Node] = {}
    for back in list(whole.graph.nodes):
        if back.target != log_softmax_backward or len(shape_of(back)) != 2:
            continue
        loss = _CrossEntropy(back)
        path = loss.path() if loss.width % 16 and loss.width > 64 else None
        if path is not None:
            found[loss.fill_up(whole, path)] = back
    return found


def pad_once(whole: GraphModule, filled_up: dict[Node, Node]) -> None:
    """One padded copy of a matrix with an odd number of columns, for all products that it takes part in.

    The kernels read the gradient of the logits with its columns filled up with zeros, and the compiler would make
    another such copy for the product with the weight. What :func:`fill_up_logits` did needs no copy at all.
    """
    graph = whole.graph
    for origin, padded in _padded_rows(whole).items():
        shape = shape_of(origin)
        # Rows of another length (a flattened image) are other columns to fill up.
        alike = all(
            shape_of(n)[-1:] == shape_of(padded[0])[-1:] and shape_of(n.args[0])[-1:] == shape[-1:] for n in padded
        )
        if len(shape) < 2 or not alike:
            continue
        rows, width, filled = math.prod(shape[:-1]), shape[-1], shape_of(padded[0])[-1]
        products = _products_of(whole, origin, (rows, width))
        once = _padded_copy(whole, origin, (rows, filled), filled_up)
        for node in padded:
            with graph.inserting_before(node):
                same = graph.call_function(aten.reshape.default, (once, list(shape_of(node))))
            same.meta = dict(node.meta)
            node.replace_all_uses_with(same)
            graph.erase_node(node)
        for node in products:
            with graph.inserting_before(node):
                other = graph.call_function(aten.constant_pad_nd.default, (node.args[1], [0, 0, 0, filled - width]))
            node.args = (once, other)


def _padded_rows(whole: GraphModule) -> dict[Node, list[Node]]:
    """Where rows are filled up with zeros at their end, by the tensor whose rows they are."""
    found: dict[Node, list[Node]] = {}
    for node in whole.graph.nodes:
        if node.target == aten.constant_pad_nd.default and isinstance(node.args[0], Node):
            pads = list(node.args[1])
            if len(pads) == 2 and pads[0] == 0 and pads[1] > 0 and (node.args[2:] or (0,))[0] == 0:
                found.setdefault(origin_of(node.args[0]), []).append(node)
    return found


def _products_of(whole: GraphModule, origin: Node, shape: tuple[int, int]) -> list[Node]:
    """The products that a tensor takes part in, from the left and as a matrix of this shape."""
    found = []
    for node in whole.graph.nodes:
        left = node.args[0] if node.target == aten.mm.default else None
        if isinstance(left, Node) and shape_of(left) == shape and origin_of(left) is origin:
            found.append(node)
    return found


def _padded_copy(whole: GraphModule, origin: Node, shape: tuple[int, int], filled_up: dict[Node, Node]) -> Node:
    """The rows of a tensor filled up to this shape: what is there already, cast where the tensor is, or a copy."""
    graph, (rows, filled) = whole.graph, shape
    is_cast = origin.target == to_copy
    source = filled_up.get(origin_of(origin.all_input_nodes[0]) if is_cast else origin)
    if source is not None and shape_of(source) == shape:
        if not is_cast:
            return source
        with graph.inserting_after(origin):
            return graph.call_function(to_copy, (source,), dict(origin.kwargs))
    width = shape_of(origin)[-1]
    with graph.inserting_after(origin):
        flat = graph.call_function(aten.reshape.default, (origin, [rows, width]))
    with graph.inserting_after(flat):
        return graph.call_function(aten.constant_pad_nd.default, (flat, [0, filled - width]))


_REDUCTIONS = ("sum", "mean", "var_mean", "amax")


class _Values:
    """Numbers for the results of a graph: equal where they are computed alike from the same, whatever their shape."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}
        self.of: dict[Node, Any] = {}

    def number(self, node: Node) -> Any:
        """The value of a node whose operands have theirs: elements in their order, and a shape."""
        origin, target = origin_of(node), node.target
        if origin is not node and node.meta.get("tensor_meta") is not None:
            return self.of[origin][0], shape_of(node)
        called = operator_of(node)
        alike = target is operator.getitem or (
            called is not None
            and not writes(node)
            and torch.Tag.nondeterministic_seeded not in called.tags
            and (
                torch.Tag.pointwise in called.tags
                or name_of(node) in _REDUCTIONS
                or called in (to_copy, aten.expand.default, aten.clone.default)
            )
        )
        # repr, because 1, 1.0 and True are equal; anything else (products, whose precision may differ) is its own.
        key = (str(target), self._words(node.args), self._words(node.kwargs)) if alike else node
        return self.known.setdefault(key, len(self.known)), shape_of(node)

    def _words(self, value: Any) -> Any:
        if isinstance(value, Node):
            return ("value", *self.of[value])
        if isinstance(value, tuple | list):
            return tuple(self._words(v) for v in value)
        if isinstance(value, dict):
            return tuple((k, self._words(v)) for k, v in sorted(value.items()))
        return repr(value)


def reduce_once(whole: GraphModule, keep: set[str]) -> None:
    """A reduction that is made twice of the same numbers is made once; the nodes named in ``keep`` stay.

    Statistics of the forward pass serve the norms of the parameters of a normalisation, and so do the sums of its
    backward pass. What is reduced is large, and not kept for it: it is computed where it is read.
    """
    values = _Values()
    first: dict[Any, Node] = {}
    for node in whole.graph.nodes:
        if node.op == "output":
            continue
        values.of[node] = values.number(node)
        if name_of(node) in _REDUCTIONS and 2 * _bytes(node) <= max(map(_bytes, node.all_input_nodes), default=0):
            same = first.setdefault(values.of[node], node)
            if same is not node and node.name not in keep:
                node.replace_all_uses_with(same)
                values.of[node] = values.of[same]
    whole.graph.eliminate_dead_code()


def schedule_norms_early(whole: GraphModule, late: set[str], last: str) -> None:
    """Put each operation that ``last`` waits for where its operands are ready, not after the whole backward pass.

    These are the norms: most of them end in a few numbers for each example, and what they read is given back earlier.
    What is made of the inputs alone (a normalised input, in float32) waits for the gradient that it is multiplied with,
    where the input is kept until then anyway.
    """
    nodes = list(whole.graph.nodes)
    place = {n: k for k, n in enumerate(nodes)}
    wanted = _behind([n for n in nodes if n.name == last])
    ready: dict[Node, int] = {}
    moved: set[Node] = set()
    for k, node in enumerate(nodes):
        operands = [ready[n] for n in node.all_input_nodes if n.op != "placeholder"]
        # The outputs' gradients are taken off the graph of autograd one after another, behind all of it.
        own = node.name in late or node.target == aten.detach.default
        if node in wanted and own and node.op == "call_function" and operands:
            ready[node] = max(operands)
            moved.add(node)
        else:
            ready[node] = k
    _wait_for_readers(nodes, ready, moved)
    output = nodes[-1]
    for node in sorted(nodes[:-1], key=lambda n: (ready[n], place[n])):
        if node.op != "placeholder":
            output.prepend(node)


def _behind(stack: list[Node]) -> set[Node]:
    """All that nodes are made of, and they."""
    found: set[Node] = set()
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def _wait_for_readers(nodes: list[Node], ready: dict[Node, int], moved: set[Node]) -> None:
    """Move operations back to the first that reads them, where that keeps nothing longer than it is kept anyway."""
    for node in reversed(nodes):
        if node not in moved or node.target is operator.getitem:
            continue
        # Several results of one operation stay with it.
        results = [user for user in node.users if user.target is operator.getitem]
        readers = [user for some in (node, *results) for user in some.users if user not in results]
        if readers and moved.issuperset((*results, *readers)):
            later = min(ready[user] for user in readers)
            if later > ready[node] and all(_kept_until(later, a, node, ready) for a in node.all_input_nodes):
                ready.update(dict.fromkeys((node, *results), later))


def _kept_until(later: int, operand: Node, reader: Node, ready: dict[Node, int]) -> bool:
    """Whether an operand is kept that long for others than one reader, or is no larger than what that makes of it."""
    if operand.op == "placeholder":
        return True
    others = [ready[user] for user in operand.users if user is not reader]
    return max(others) >= later if others else _bytes(operand) <= _bytes(reader)


def _bytes(node: Node) -> int:
    """The size of what an operation gives."""
    values = node.meta.get("val")
    values = values if isinstance(values, tuple | list) else [values]
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))


def _by_channel(small: torch.Tensor, channels: int, dims: int) -> torch.Tensor:
    """One number of each group (n, groups) for each of its channels, as it broadcasts against images."""
    n, groups = small.shape
    each = small.reshape(n, groups, 1).expand(n, groups, channels // groups)
    return each.reshape(n, channels, *(1,) * (dims - 2))


def _group_norm(x: Any, weight: Any, bias: Any, n: int, c: int, positions: int, groups: int, eps: float) -> Any:
    """Group normalisation that keeps the order of its input in memory (the one of torch does not, on a GPU).

    Images are never looked at by groups, which the compiler takes for a reason to store them with channels outermost:
    what is reduced is reduced over positions, for each channel, and a group's numbers are made of its channels'.
    """
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    wide = wide.unsqueeze(-1) if x.dim() == 2 else wide
    each, centre = torch.var_mean(wide, list(range(2, wide.dim())), correction=0, keepdim=True)
    each, centre = each.reshape(n, groups, c // groups), centre.reshape(n, groups, c // groups)
    mean = centre.mean(2, keepdim=True)
    variance = (each + (centre - mean).square()).mean(2)
    mean, scale = mean.reshape(n, groups), torch.rsqrt(variance + eps)
    out = (wide - _by_channel(mean, c, wide.dim())) * _by_channel(scale, c, wide.dim())
    out = out.reshape(x.shape) if x.dim() == 2 else out
    column = (1, c, *(1,) * (x.dim() - 2))
    out = out if weight is None else out * weight.reshape(column)
    out = out if bias is None else out + bias.reshape(column)
    return out.to(x.dtype), mean, scale


def _group_norm_backward(
    grad: Any, x: Any, mean: Any, scale: Any, weight: Any, n: int, c: int, positions: int, groups: int, mask: Any
) -> Any:
    """Its gradients, from two sums over positions that are also those of each example's scale and shift."""
    grad_wide, wide = (t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in (grad, x))
    if x.dim() == 2:
        grad_wide, wide = grad_wide.unsqueeze(-1), wide.unsqueeze(-1)
    dims, over = wide.dim(), list(range(2, wide.dim()))
    spread = _by_channel(scale, c, dims)
    normal = (wide - _by_channel(mean, c, dims)) * spread
    along, total = (grad_wide * normal).sum(over, keepdim=True), grad_wide.sum(over, keepdim=True)
    found: list[Any] = [None, None, None]
    if mask[0]:
        factor = None if weight is None else weight.reshape(1, c, *(1,) * (dims - 2))
        inner, *sums = (t if factor is None else t * factor for t in (grad_wide, along, total))
        size = positions * (c // groups)
        pulls = [_by_channel(t.reshape(n, groups, c // groups).sum(2) / size, c, dims) for t in sums]
        found[0] = ((inner - pulls[1] - normal * pulls[0]) * spread).reshape(x.shape).to(x.dtype)
    if mask[1]:
        found[1] = along.sum(0).reshape(c)
    if mask[2]:
        found[2] = total.sum(0).reshape(c)
    return tuple(found)


#: Operations that are written out while a step with images in memory order "channels last" is traced.
CHANNELS_LAST: dict[Any, Callable[..., Any]] = {
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
}
