"""How does a traced step with convolutions keep its images in one memory order, and its products in one precision?

Convolutions on a GPU run fastest with channels innermost ("channels last"). A step is traced in that order
(:data:`tacit.sgd.compile.rewrites.CHANNELS_LAST`), but the compiler is free to choose another one for what it computes
itself: :func:`keep_innermost` says it once more at every operation that the compiler takes from a library.

Where the model's own products are in tf32, those of norms and sums are not: :func:`in_full_precision` makes them
operations that see to it themselves, so that the step need not be cut in two.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from tacit.sgd.compile.rewrites import name_of
from tacit.sgd.kernels import convolutions, products
from tacit.sgd.kernels.launch import as_operator
from tacit.sgd.torch_compat import force_stride_order, to_copy

assert convolutions

aten = torch.ops.aten

#: So few channels that float32 convolutions are no faster with them innermost.
FEW_CHANNELS = 64
#: Which arguments of an operation are images or filters.
_IMAGES = {
    aten.convolution.default: (0, 1),
    aten.convolution_backward.default: (0, 1, 2),
    torch.ops.tacit.conv_norms.default: (0, 1),
    torch.ops.tacit.conv_sum.default: (0, 1),
    torch.ops.tacit.conv_products.default: (0, 1),
}


def innermost(whole: GraphModule) -> bool:
    """Whether images are convolved in a type for which channels are best kept innermost.

    That is one narrower than float32, or float32 that is multiplied in tf32 and has more than a few channels.
    """
    settings = products.model_settings()
    reduced = settings is None or settings[1]
    for node in whole.graph.nodes:
        meta = node.meta.get("tensor_meta") if name_of(node) == "convolution" else None
        if meta is None or len(meta.shape) != 4:
            continue
        if meta.dtype in (torch.bfloat16, torch.float16) or (
            meta.dtype == torch.float32 and reduced and meta.shape[1] > FEW_CHANNELS
        ):
            return True
    return False


def _in_order(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie one after another; the stride of a dimension of one entry means nothing."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _strided(node: Node, count: int) -> bool:
    """Whether a node looks at so many elements, all of a tensor, in their order."""
    size, strides, *offset = cast("tuple[Any, ...]", node.args[1:])
    return math.prod(size) == count and _in_order(size, strides) and (not offset or not offset[0])


def without_strides(whole: GraphModule) -> None:
    """What torch's global average over images with channels innermost does with strides, without writing in place.

    Forward it sets strides of dimensions of one entry, which mean nothing; backward it copies the gradient into a new
    tensor and looks at that. A graph that writes into tensors is left as it is, so these are taken out.
    """
    for node in list(whole.graph.nodes):
        if node.target == aten.as_strided_.default:
            if _sets_no_stride(node):
                node.replace_all_uses_with(node.args[0])
                whole.graph.erase_node(node)
        elif node.target == aten.copy_.default and not node.users:
            _without_copy(whole, node)


def _sets_no_stride(node: Node) -> bool:
    """Whether strides are set in place to what they are, but for dimensions of one entry."""
    own, shape = cast("tuple[Node, list[int]]", node.args[:2])
    meta: Any = own.meta.get("tensor_meta")
    same = meta is not None and tuple(meta.shape) == tuple(shape)
    return bool(same and _in_order(meta.shape, meta.stride) and _strided(node, meta.shape.numel()))


def _without_copy(whole: GraphModule, node: Node) -> None:
    """Take out a copy into a new tensor of which there are only views of all of it, in its order."""
    part, source = cast("tuple[Node, Node]", node.args[:2])
    new = part.args[0] if part.target == aten.as_strided.default else None
    if not isinstance(new, Node) or new.target != aten.new_zeros.default or set(part.users) != {node}:
        return
    metas: list[Any] = [n.meta.get("tensor_meta") for n in (new, part, source)]
    if None in metas or len({m.dtype for m in metas}) > 1 or metas[1].shape != metas[2].shape:
        return
    count = metas[0].shape.numel()
    views = [n for n in new.users if n is not part]
    whole_views = all(n.target == aten.as_strided.default and _strided(n, count) for n in (part, *views))
    if not whole_views or any(n < node for n in views):
        return
    for view in views:
        with whole.graph.inserting_before(view):
            shaped = whole.graph.call_function(aten.reshape.default, (source, list(cast("list[int]", view.args[1]))))
        shaped.meta = dict(view.meta)
        view.replace_all_uses_with(shaped)
    for gone in (*views, node, part, new):
        whole.graph.erase_node(gone)


def cast_once(whole: GraphModule) -> None:
    """One copy in another type for all that read it: the layer, its gradient, norms and sums each cast its input."""
    known: dict[tuple[Node, str], Node] = {}
    for node in list(whole.graph.nodes):
        if node.target != to_copy or not set(node.kwargs) <= {"dtype"}:
            continue
        origin = node.args[0]
        while origin.target == aten.detach.default:
            origin = origin.args[0]
        first = known.setdefault((origin, str(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            whole.graph.erase_node(node)


def keep_innermost(whole: GraphModule) -> None:
    """Every image and filter that a library or a kernel reads has its channels innermost."""
    found: dict[Node, Node] = {}
    for node in list(whole.graph.nodes):
        for k in _IMAGES.get(node.target, ()):
            image = node.args[k]
            meta = image.meta.get("tensor_meta") if isinstance(image, Node) else None
            ours = node.target.namespace == "tacit"
            if meta is None or len(meta.shape) != 4 or (ours and meta.dtype == torch.float32):
                continue
            if image not in found:
                with whole.graph.inserting_after(image):
                    found[image] = whole.graph.call_function(
                        aten.contiguous.default, (image,), {"memory_format": torch.channels_last}
                    )
                found[image].meta = dict(image.meta)
            node.update_arg(k, found[image])
    _store_sums(whole)
    whole.graph.lint()
    whole.recompile()


def _store_sums(whole: GraphModule) -> None:
    """The sum of two images that a library gave is stored, in place of one of them.

    The compiler would add them up wherever the sum is read, and keep both until the backward pass is done with it.
    """
    store = force_stride_order()
    for node in list(whole.graph.nodes):
        shape = list(getattr(node.meta.get("tensor_meta"), "shape", ()))
        if node.target != aten.add.Tensor or len(shape) != 4 or not all(map(_from_convolution, node.args)):
            continue
        _, channels, high, wide = shape
        with whole.graph.inserting_after(node):
            stored = whole.graph.call_function(store, (node, [channels * high * wide, 1, wide * channels, channels]))
        stored.meta = dict(node.meta)
        node.replace_all_uses_with(stored, delete_user_cb=lambda user, stored=stored: user is not stored)


def _from_convolution(node: Any) -> bool:
    """Whether a tensor is an image, or a gradient of one, that the library of convolutions gave."""
    if not isinstance(node, Node):
        return False
    given: Any = node.args[0] if node.target is operator.getitem else node
    return bool(given.target in (aten.convolution.default, aten.convolution_backward.default))


@as_operator("tacit::full_product")
def full_product(left: Tensor, right: Tensor) -> Tensor:
    """A product of matrices, or of batches of them, in full float32, whatever torch is set to."""
    with products.full_precision():
        return torch.mm(left, right) if left.dim() == 2 else torch.bmm(left, right)


@full_product.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((*left.shape[:-1], right.shape[-1]))


def in_full_precision(whole: GraphModule, late: set[str]) -> None:
    """Products of float32 matrices among norms and sums are computed in full precision by themselves."""
    for node in whole.graph.nodes:
        if node.name in late and node.target in (aten.mm.default, aten.bmm.default):
            meta = node.meta.get("tensor_meta")
            if getattr(meta, "dtype", None) == torch.float32:
                node.target = torch.ops.tacit.full_product.default
    whole.recompile()
