"""Which parts of a traced step are the same, so that the compiler sees each of them once?

A model of twelve equal layers is traced as twelve equal stretches of operations, forward, backward and among the sums.
A :class:`Chain` cuts the graph where such stretches begin, right behind an operation that the compiler takes from a
library anyway (a product, attention, a kernel), so that nothing it would have fused is torn apart. Each distinct piece
is compiled once and run as often as it occurs; no number changes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from tacit.sgd.compile.rewrites import name_of
from tacit.sgd.torch_compat import operator_of, pytree

#: Operations of a stretch that repeats, at least, and operations that the compiler must be spared in all.
SHORTEST, WORTH = 24, 400

_FROM_LIBRARY = ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")

Compile = Callable[[GraphModule, list[Tensor]], Callable[..., Any]]


@dataclass(frozen=True)
class Stretch:
    """``times`` equal parts of ``length`` operations, the first beginning at ``start``."""

    start: int
    length: int
    times: int

    @property
    def spared(self) -> int:
        return self.length * (self.times - 1)


def _numbers(nodes: Sequence[Node]) -> np.ndarray[Any, Any]:
    """A number for each operation, the same for operations that look the same (but for what they read)."""

    def shape(value: Any) -> Any:
        if not isinstance(value, Node):
            return repr(value)
        meta: Any = value.meta.get("tensor_meta")
        return (tuple(meta.shape), str(meta.dtype)) if hasattr(meta, "shape") else ""

    table: dict[Any, int] = {}
    found = []
    for node in nodes:
        leaves, tree = pytree.tree_flatten((node.args, node.kwargs), is_leaf=lambda v: isinstance(v, Node))
        look = (node.op, str(node.target), str(tree), tuple(map(shape, leaves)))
        found.append(table.setdefault(look, len(table)))
    return np.array(found, dtype=np.int64)


def _from_library(node: Node) -> bool:
    called = operator_of(node)
    custom = called is not None and called.namespace == "tacit"
    return custom or name_of(node) in _FROM_LIBRARY or "dot_product" in name_of(node)


def stretches(nodes: Sequence[Node]) -> list[Stretch]:
    """Where operations repeat, the most rewarding first; none overlaps another."""
    numbers, cuts = _numbers(nodes), _cuts(nodes)
    free = [(0, len(nodes))]
    found: list[Stretch] = []
    while free:
        begin, end = free.pop()
        best = _longest(numbers, cuts, begin, end)
        if best is not None:
            found.append(best)
            free += [(begin, best.start), (best.start + best.length * best.times, end)]
    return sorted(found, key=lambda s: s.start)


def _cuts(nodes: Sequence[Node]) -> np.ndarray[Any, Any]:
    """How good a place for a cut is before each operation, and at the end: 2, 1, or 0 where it is none.

    Best is right behind an operation from a library. Several results of one operation are not torn from it.
    """
    place = {n: k for k, n in enumerate(nodes)}
    good = np.ones(len(nodes) + 1, dtype=np.int8)
    for k, node in enumerate(nodes):
        if _from_library(node):
            good[k + 1] = 2
    for k, node in enumerate(nodes):
        picked = [place[user] for user in node.users if user.target is operator.getitem]
        if picked:
            good[k + 1 : max(picked) + 1] = 0
    return good


def _longest(numbers: Any, cuts: Any, begin: int, end: int) -> Stretch | None:
    best: Stretch | None = None
    part = numbers[begin:end]
    for length in range(SHORTEST, len(part) // 2 + 1):
        same = np.flatnonzero(np.diff(np.concatenate([[0], part[:-length] == part[length:], [0]]).astype(np.int8)))
        for start, stop in zip(same[::2], same[1::2], strict=True):
            covered = int(stop - start) + length
            if best is not None and length * (covered // length - 1) <= best.spared:
                continue
            stretch = _cut(cuts, begin + int(start), length, covered)
            if stretch is not None and (best is None or stretch.spared > best.spared):
                best = stretch
    return best


def _cut(cuts: Any, start: int, length: int, covered: int) -> Stretch | None:
    """Where to begin: at the best place for a cut, if that costs no more than one of the equal parts."""
    times = covered // length
    best: Stretch | None = None
    for offset in range(length):
        left = (covered - offset) // length
        if left < max(2, times - 1):
            break
        places = cuts[start + offset : start + offset + left * length + 1 : length]
        if places.min() == 2:
            return Stretch(start + offset, length, left)
        if places.min() == 1 and best is None:
            best = Stretch(start + offset, length, left)
    return best


@dataclass
class PieceCall:
    """One run of a piece: where its inputs are, where its outputs go, and what nobody reads afterwards."""

    piece: int
    inputs: list[int]
    outputs: list[int]
    spent: list[int] = field(default_factory=list)


class Chain:
    """A graph as a chain of pieces, each distinct one compiled once, when the chain first runs."""

    def __init__(self, whole: GraphModule, compile: Compile, parts: list[tuple[int, int, int]]) -> None:
        self.compile = compile
        self.pieces: list[GraphModule] = []
        self.programs: dict[Any, Callable[..., Any]] = {}
        self.calls: list[PieceCall] = []
        nodes = [n for n in whole.graph.nodes if n.op not in ("placeholder", "output")]
        given = [n for n in whole.graph.nodes if n.op == "placeholder"]
        (end,) = (n for n in whole.graph.nodes if n.op == "output")
        slots = {n: k for k, n in enumerate((*given, *nodes))}
        self.given = len(given)
        self.results = [slots[n] if isinstance(n, Node) else n for n in end.args[0]]
        known: dict[Any, int] = {}
        for start, length, times in parts:
            runs = [nodes[start + k * length : start + (k + 1) * length] for k in range(times)]
            told = _handed_on(runs)
            for run in runs:
                inside = set(run)
                reads = list(dict.fromkeys(a for n in run for a in n.all_input_nodes if a not in inside))
                key = (_form(run, reads), tuple(told))
                if key not in known:
                    known[key] = len(self.pieces)
                    self.pieces.append(_piece(whole, run, reads, told))
                self.calls.append(PieceCall(known[key], [slots[n] for n in reads], [slots[run[k]] for k in told]))
        self._note_spent()

    def _note_spent(self) -> None:
        """Say of each call what nobody reads after it."""
        needed = {k for k in self.results if isinstance(k, int)}
        for call in reversed(self.calls):
            call.spent = [k for k in {*call.inputs, *call.outputs} if k not in needed and k >= self.given]
            needed.update(call.inputs)

    def __call__(self, *values: Tensor) -> list[Any]:
        held: dict[int, Any] = dict(enumerate(values))
        for call in self.calls:
            inputs = [held[k] for k in call.inputs]
            program = self._program(call.piece, inputs)
            held.update(zip(call.outputs, program(*inputs), strict=True))
            del inputs
            for k in call.spent:
                del held[k]
        return [held[k] if isinstance(k, int) else k for k in self.results]

    def _program(self, piece: int, inputs: list[Tensor]) -> Callable[..., Any]:
        # Written for one memory order; another one, of the first layer's input say, gets a program of its own.
        key = (piece, *((t.shape, t.stride(), t.dtype) if isinstance(t, Tensor) else repr(t) for t in inputs))
        program = self.programs.get(key)
        if program is None:
            program = self.programs[key] = self.compile(self.pieces[piece], inputs)
        return program


def _handed_on(runs: list[list[Node]]) -> list[int]:
    """Which operations of equal parts others read: what any of the parts hands on, all of them do."""
    found: set[int] = set()
    for run in runs:
        inside = set(run)
        found.update(k for k, node in enumerate(run) if not inside.issuperset(node.users))
    return sorted(found)


def _form(run: Sequence[Node], reads: Sequence[Node]) -> Any:
    """What makes two parts the same program: operations, constants, and which reads which."""
    inside = {n: k for k, n in enumerate(run)}
    outside = {n: k for k, n in enumerate(reads)}

    def name(value: Any) -> Any:
        if isinstance(value, Node):
            return ("own", inside[value]) if value in inside else ("read", outside[value])
        return repr(value)

    form = []
    for node in run:
        leaves, tree = pytree.tree_flatten((node.args, node.kwargs), is_leaf=lambda v: isinstance(v, Node))
        form.append((str(node.target), str(tree), tuple(map(name, leaves))))
    return tuple(form)


def _piece(whole: GraphModule, run: Sequence[Node], reads: Sequence[Node], told: Sequence[int]) -> GraphModule:
    graph = Graph()
    table: dict[Node, Node] = {}
    for node in reads:
        table[node] = graph.placeholder(node.name)
        table[node].meta = dict(node.meta)
    for node in run:
        table[node] = graph.node_copy(node, lambda n: table[n])
    graph.output([table[run[k]] for k in told])
    return GraphModule(whole, graph)


def _whole_cover(found: list[Stretch], count: int) -> Iterator[tuple[int, int, int]]:
    place = 0
    for stretch in found:
        if stretch.start > place:
            yield place, stretch.start - place, 1
        yield stretch.start, stretch.length, stretch.times
        place = stretch.start + stretch.length * stretch.times
    if count > place:
        yield place, count - place, 1


def chained(whole: GraphModule, compile: Compile) -> Chain | None:
    """The graph as a chain of pieces; nothing where too little of it repeats."""
    nodes = [n for n in whole.graph.nodes if n.op not in ("placeholder", "output")]
    found = stretches(nodes) if len(nodes) > WORTH else []
    if sum(s.spared for s in found) < WORTH:
        return None
    return Chain(whole, compile, list(_whole_cover(found, len(nodes))))
