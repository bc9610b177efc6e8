"""How are norms and sums of several operations computed at once, so that a GPU is never half idle?

A layer's operations are known one after another in the backward pass, but nobody reads their norms before the end. One
alone rarely fills a GPU: 144 tiles on 132 processors take as long as 264. :func:`gather` puts the norms of a stretch of
a traced step into one operation, :func:`norms_together`, which runs their kernels side by side, and computes the Gram
matrix of what several of them share (queries, keys and values are made of the same input) once. The same is done for
the weighted sums, :func:`sums_together`. Whether that is faster than one after another is measured like everything else
(:mod:`tacit.sgd.kernels.autotune`); nothing changes but in rounding.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from tacit.sgd.compile.rewrites import origin_of, shape_of
from tacit.sgd.kernels import autotune, grams, products, weighted
from tacit.sgd.kernels.launch import as_operator, has_triton, interpreted

aten = torch.ops.aten

#: Operations of one call.
MOST = 8


@functools.cache
def _streams(device: torch.device, count: int, thread: int) -> tuple[Any, ...]:
    """Always the same ones, for memory is kept for every stream that has been seen; but each thread has its own, lest
    what one launches be recorded with what another does."""
    return tuple(torch.cuda.Stream(device) for _ in range(count))


def side_by_side(device: torch.device, calls: Sequence[Callable[[], None]]) -> None:
    """Launch calls that do not depend on one another so that they may overlap; what comes after waits for all.

    They must allocate no memory: another stream's would be given back too early.
    """
    if device.type != "cuda" or len(calls) < 2:
        for call in calls:
            call()
        return
    here = torch.cuda.current_stream(device)
    others = _streams(device, len(calls) - 1, threading.get_ident())
    for stream in others:
        stream.wait_stream(here)
    for stream, call in zip((here, *others), calls, strict=True):
        with torch.cuda.stream(stream):
            call()
    for stream in others:
        here.wait_stream(stream)


def _one_by_one(*factors: Tensor, owners: Sequence[int]) -> Tensor:
    rights = factors[-len(owners) :]
    return torch.stack([products.factor_norms(factors[k], right) for k, right in zip(owners, rights, strict=True)])


def _at_once(*factors: Tensor, owners: Sequence[int], **tile: Any) -> Tensor:
    lefts, rights = factors[: -len(owners)], factors[-len(owners) :]
    out = grams.gram_parts(lefts[0], len(rights), tile["side"])
    calls = []
    for k, left in enumerate(lefts):
        begin = list(owners).index(k)
        mine = rights[begin : begin + list(owners).count(k)]
        work = left.shape[2] + sum(t.shape[2] for t in mine)
        calls.append((work, partial(grams.grams, left, mine, out[begin : begin + len(mine)], **tile)))
    # The longest first: the short ones fill what is left.
    side_by_side(out.device, [call for _, call in sorted(calls, key=lambda c: -c[0])])
    return out.sum(2)


def together_ways(lefts: Sequence[Tensor], rights: Sequence[Tensor], owners: Sequence[int]) -> dict[str, autotune.Way]:
    """One after another, each in its own way, or all at once with tiles of several shapes."""
    ways: dict[str, autotune.Way] = {"one by one": partial(_one_by_one, owners=owners)}
    if has_triton() and (lefts[0].is_cuda or interpreted()):
        for name, tile in grams.gram_tiles(*lefts, *rights).items():
            ways[f"at once {name}"] = partial(_at_once, owners=owners, **tile)
    return ways


@as_operator("tacit::norms_together")
def norms_together(lefts: Sequence[Tensor], rights: Sequence[Tensor], owners: Sequence[int]) -> Tensor:
    """:func:`tacit.sgd.kernels.products.factor_norms` of each of ``rights`` with the one of ``lefts`` that owns it.

    ``owners`` are in order; the result is (rights, B, 3). Guarantee: that of each norm by itself.
    """
    if not autotune.chooses("together", lefts[0]):
        return _one_by_one(*lefts, *rights, owners=owners)
    ways = together_ways(lefts, rights, owners)
    sizes = [(*lefts[k].shape, right.shape[2]) for k, right in zip(owners, rights, strict=True)]
    cut = max(products.cut_off(tokens, p, q) for _, tokens, p, q in sizes)
    check = partial(products.norms_agree, cut=cut)
    way = autotune.chooser().pick("together", ways, "one by one", check, (*lefts, *rights))
    norms: Tensor = ways[way](*lefts, *rights)
    return norms


@norms_together.register_fake
def _(lefts: Sequence[Tensor], rights: Sequence[Tensor], owners: Sequence[int]) -> Tensor:
    return lefts[0].new_empty((len(rights), lefts[0].shape[0], 3), dtype=torch.float32)


def _sums_one_by_one(*factors: Tensor) -> list[Tensor]:
    count = len(factors) // 3
    return [weighted.scaled_sum(*factors[k::count]) for k in range(count)]


def _sums_at_once(*factors: Tensor) -> list[Tensor]:
    """Each in its own way; those by kernels side by side, so that none waits for the last tiles of another.

    So many at a time that what they keep for parts of tiles is no larger than the factors, or a little.
    """
    count = len(factors) // 3
    room = max(1 << 25, sum(t.numel() * t.element_size() for t in factors))
    found: list[Tensor] = []
    calls: list[Callable[[], None]] = []
    kept = 0
    for k in range(count):
        way, given = weighted.chosen(*factors[k::count])
        if not (isinstance(way, partial) and way.func is weighted.by_kernel):
            found.append(way(*given).contiguous())
            continue
        needed = weighted.parts(*given[:2], **way.keywords)
        if kept + needed > room:
            side_by_side(factors[0].device, calls)
            calls, kept = [], 0
        out, run = weighted.prepared(*given, **way.keywords)
        calls.append(run)
        kept += needed
        found.append(out)
    side_by_side(factors[0].device, calls)
    return found


def _all_agree(found: list[Tensor], wanted: list[Tensor], check: autotune.Check) -> bool:
    return all(check(one, other) for one, other in zip(found, wanted, strict=True))


@as_operator("tacit::sums_together")
def sums_together(lefts: Sequence[Tensor], rights: Sequence[Tensor], scales: Sequence[Tensor]) -> list[Tensor]:
    """:func:`tacit.sgd.kernels.weighted.scaled_sum` of each three.

    Guarantee: that of each sum by itself; kernels are the same, and so is the order in which each adds up.
    """
    given = (*lefts, *rights, *scales)
    if not autotune.chooses("sums", lefts[0]):
        return _sums_one_by_one(*given)
    ways: dict[str, autotune.Way] = {"one by one": _sums_one_by_one, "at once": _sums_at_once}
    check = partial(_all_agree, check=weighted.agreement(lefts[0]))
    found: list[Tensor] = ways[autotune.chooser().pick("sums", ways, "one by one", check, given)](*given)
    return found


@sums_together.register_fake
def _(lefts: Sequence[Tensor], rights: Sequence[Tensor], scales: Sequence[Tensor]) -> list[Tensor]:
    return [
        left.new_empty((left.shape[2], right.shape[2]), dtype=torch.float32)
        for left, right in zip(lefts, rights, strict=True)
    ]


def gather(graph: GraphModule) -> int:
    """Norms of factors with equally many tokens in one operation, where Gram matrices are the cheaper way to them, and
    their weighted sums in another; returns how many operations were gathered.

    Each moves to the place of the last of its group, and so does what is made of it.
    """
    gathered = 0
    for kind, replace in ((torch.ops.tacit.factor_norms, _norms), (torch.ops.tacit.scaled_sum, _sums)):
        for members in _groups(list(graph.graph.nodes), kind.default):
            gathered += len(members)
            _replace(graph, members, replace)
    if gathered:
        graph.graph.lint()
        graph.recompile()
    return gathered


def _groups(nodes: list[Node], kind: Any) -> list[list[Node]]:
    """Which operations of a kind to compute at once: those that do not wait for one another."""
    found: list[list[Node]] = []
    open_now: dict[Any, tuple[list[Node], set[Node]]] = {}
    for node in nodes:
        for _, waiting in open_now.values():
            if not waiting.isdisjoint(node.all_input_nodes):
                waiting.add(node)
        if node.target is not kind:
            continue
        first: Any = node.args[0]
        left, right = shape_of(first), shape_of(node.args[1])
        if len(left) != 3 or len(right) != 3:
            continue
        if len(node.args) == 2 and not products.prefers_gram(left[1], left[2], right[2]):
            continue
        key = (left[:2], first.meta["tensor_meta"].dtype)
        members, waiting = open_now.get(key, ([], set()))
        if len(members) == MOST or node in waiting or not members:
            members, waiting = [], set()
            found.append(members)
            open_now[key] = members, waiting
        members.append(node)
        waiting.add(node)
    return [members for members in found if len(members) > 1]


def _norms(members: list[Node]) -> tuple[Any, tuple[Any, ...], list[Node]]:
    """The operation in place of several norms, its arguments, and whose results it gives, in their order.

    Which factor is the left one makes no difference to what an operation tells.
    """

    def same(factor: Any) -> Any:
        return origin_of(factor), shape_of(factor)

    counts = Counter(key for node in members for key in {same(n) for n in node.args})
    lefts: dict[Any, Node] = {}
    pairs: list[tuple[Any, Node, Node]] = []
    for node in members:
        factors: list[Any] = list(node.args)
        owner, other = sorted(factors, key=lambda n: -counts[same(n)])
        lefts.setdefault(same(owner), owner)
        pairs.append((same(owner), other, node))
    place = {key: k for k, key in enumerate(lefts)}
    pairs.sort(key=lambda pair: place[pair[0]])
    given = [*lefts.values()], [other for _, other, _ in pairs], [place[key] for key, _, _ in pairs]
    return torch.ops.tacit.norms_together.default, given, [node for _, _, node in pairs]


def _sums(members: list[Node]) -> tuple[Any, tuple[Any, ...], list[Node]]:
    """The operation in place of several weighted sums."""
    given = tuple([node.args[k] for node in members] for k in range(3))
    return torch.ops.tacit.sums_together.default, given, members


def _replace(graph: GraphModule, members: list[Node], by: Callable[[list[Node]], Any]) -> None:
    nodes = list(graph.graph.nodes)
    members = sorted(members, key=nodes.index)  # an earlier group may have moved some
    target, given, whose = by(members)
    first, last = nodes.index(members[0]), nodes.index(members[-1])
    waiting = set(members)
    moved = []
    for node in nodes[first : last + 1]:
        if not waiting.isdisjoint(node.all_input_nodes):
            waiting.add(node)
            moved.append(node)
    with graph.graph.inserting_after(members[-1]):
        found = graph.graph.call_function(target, given)
    after = found
    for k, node in enumerate(whose):
        with graph.graph.inserting_after(after):
            if by is _norms:
                after = graph.graph.call_function(aten.select.int, (found, 0, k))
            else:
                after = graph.graph.call_function(operator.getitem, (found, k))
        after.meta = dict(node.meta)
        node.replace_all_uses_with(after)
    for node in moved:
        after.append(node)
        after = node
    for node in members:
        graph.graph.erase_node(node)
