"""How does a clipped step become one compiled program?

The first call with a shape runs as always: the operations are watched, the plan is made and the answer is checked
against autograd. Then the same step, with the plan settled, is traced whole (forward, one backward, norms, clip
factors, clipped sums) and compiled by Inductor; on a GPU a step that waits for its launches is recorded as a CUDA
graph. Layers that repeat are compiled once (:mod:`~tacit.sgd.compile.repeated`; not with ``TACIT_COMPILE=whole``).
Where the compiler fails (there is no C compiler, say), or is not wanted, the traced operations run one after another:
less is left to do for Python than uncompiled. What cannot be traced says so in one line, :class:`NotCompiled`, and runs
as before.

The program reads parameters and buffers where they are, so optimizers and ``load_state_dict`` need no notice. It was
written for one state of everything else: what a loss reads besides model and batch is read once, when it is traced.
"""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

from tacit.sgd.compile import answers
from tacit.sgd.compile.cuda_graph import StepGraph
from tacit.sgd.compile.images import cast_once, in_full_precision, innermost, keep_innermost, without_strides
from tacit.sgd.compile.repeated import chained
from tacit.sgd.compile.rewrites import (
    CHANNELS_LAST,
    look_through,
    mutates,
    name_of,
    reduce_once,
    schedule_norms_early,
    tidy,
    view_anew,
    writes,
)
from tacit.sgd.errors import ClippingError
from tacit.sgd.gradients import frames
from tacit.sgd.gradients.bounds import Clipping, clip
from tacit.sgd.gradients.engine import Engine, Request
from tacit.sgd.gradients.outside import Attributes, Pass
from tacit.sgd.gradients.planning import PassPlan
from tacit.sgd.kernels import products, weighted
from tacit.sgd.kernels.products import full_precision
from tacit.sgd.kernels.together import gather
from tacit.sgd.torch_compat import as_compiled, inductor, operator_of, pytree, schema

#: Elements of a loop on a CPU for which one thread is enough.
CPU_CHUNK = 1 << 16
#: The step after which a program on a GPU is recorded as a CUDA graph.
WARM = 3


class NotCompiled(UserWarning):
    """The step runs uncompiled, with the same result; the message says why."""


class CannotCompile(Exception):
    """Why a step is not compiled."""


class CompilerFailed(CannotCompile):
    """What the compiler stumbled over; the step is traced and can run without it."""


class Unsettled(Exception):
    """The plan rests on no evidence yet (all gradients zero, say): the step may be compiled later."""


@dataclass
class Result:
    """Clipped sums, norms (B, groups), losses and factors of one physical batch; whether rounding hides an example."""

    sums: dict[str, Tensor]
    norms: Tensor
    losses: Tensor
    scale: Tensor
    lost: bool


def flat(batch: Any) -> tuple[Any, Any]:
    """The leaves of a batch and its form; a tuple of tensors, what most are, needs no search."""
    if type(batch) is tuple and all(isinstance(t, Tensor) for t in batch):
        return batch, len(batch)
    leaves, tree = pytree.tree_flatten(batch)
    return leaves, tree


class Program:
    """One traced and compiled step."""

    def __init__(self, engine: Engine, request: Request, *, compiler: bool = True) -> None:
        if engine.mutable:
            raise CannotCompile(f"the forward pass writes the buffer {sorted(engine.mutable)[0]!r}")
        began = time.perf_counter()
        self.names = list(engine.parameters)
        self.groups = len(request.clipping.groups)
        leaves, self.tree = pytree.tree_flatten(request.batch)
        self.is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        self.device = next(iter(engine.parameters.values())).device
        self._bounds: tuple[tuple[float, ...], Tensor] | None = None
        self.unrolled = False
        self.channels_last = False
        self.compiler = compiler
        # Whether an answer of it has been compared with that of the uncompiled step.
        self.proven = False
        inputs = self._inputs(request)
        what = (engine, request, leaves, inputs)
        self.random, whole, boundary = self._trace(*what)
        self.channels_last = compiler and wants_channels_last(self.device) and innermost(whole)
        if self.channels_last:
            try:
                self.random, whole, boundary = self._trace(*what)
            except CannotCompile:  # a view that the other memory order does not allow
                self.channels_last = False
        self.trace_seconds = time.perf_counter() - began
        while True:
            try:
                self._prepare(whole, boundary, inputs)
                break
            except CompilerFailed as why:
                if self.channels_last:
                    self.channels_last = False
                    told = "is compiled with channels outermost"
                elif self.compiler:
                    self.compiler = False
                    told = "runs as it was traced, not compiled"
                else:
                    raise
                warnings.warn(f"the step {told}: {why}", NotCompiled, stacklevel=6)
                self.random, whole, boundary = self._trace(*what)
        self.compile_seconds = time.perf_counter() - began

    # -- making it ---------------------------------------------------------------------------------------------------

    def _prepare(self, whole: GraphModule, boundary: str, inputs: list[Tensor]) -> None:
        self.constants = lift(whole)
        self.replay: StepGraph | None = None
        self.pieces = 1
        self._calls = 0
        self._answer = answers.Answer() if self.device.type == "cuda" else None
        self._shared: list[int] | None = None
        try:
            with torch.autocast(self.device.type, enabled=False):
                self._run = self._compile(whole, boundary, [*inputs, *self.constants])
                if self.channels_last or not self.compiler:
                    with torch.no_grad():  # memory orders that were foretold wrongly show when it runs
                        self._run(*inputs, *self.constants)
        except (CannotCompile, torch.OutOfMemoryError):
            raise
        except Exception as error:  # the compiler is not ours: whatever it stumbles over, the step runs without it
            raise CompilerFailed(_first_line(error)) from error

    def _trace(
        self, engine: Engine, request: Request, leaves: list[Any], inputs: list[Tensor]
    ) -> tuple[bool, GraphModule, str]:
        """Whether the step draws random numbers, its graph, and the node before norms and sums."""
        marks: list[str] = []
        others = [None if tensor else leaf for tensor, leaf in zip(self.is_tensor, leaves, strict=True)]

        def step(*values: Tensor) -> list[Tensor]:
            if self.channels_last:
                values = tuple(_channels_last(t) for t in values)
            given = iter(values)
            some = pytree.tree_unflatten(
                [next(given) if t else o for t, o in zip(self.is_tensor, others, strict=True)], self.tree
            )
            mask = next(given) if request.mask is not None else None
            bounds = next(given)
            data = list(values[: sum(self.is_tensor)])
            run = engine.forward(*engine.asked(request, some))
            # Examples that are masked have no gradient at all: their factor may then be any.
            grads = run.output_gradients(None if mask is None else mask.to(run.losses.dtype))
            plan = _settled_plan(engine, run, grads, request.examples)
            self.unrolled = run.unrolled
            # A node that nothing else makes: where the part that runs in full precision begins.
            marks.append(_last_node())
            with torch.no_grad(), torch.autocast(self.device.type, enabled=False), full_precision():
                return self._clipped(engine, run, grads, plan, request.clipping, mask, bounds, data, marks)

        with Attributes(engine.model):
            graph = self._traced(step, inputs)
        for node in filter(writes, graph.graph.nodes):
            target = node.args[0] if node.args else None
            if isinstance(target, Node) and target.op in ("get_attr", "placeholder"):
                raise CannotCompile(f"{node.target} writes into a tensor that outlives the step")
        boundary, self.known = marks[-2:]
        return draws_randomly(graph), graph, boundary

    def _clipped(
        self,
        engine: Engine,
        run: Pass,
        grads: list[list[Tensor | None]],
        plan: PassPlan,
        clipping: Clipping,
        mask: Tensor | None,
        bounds: Tensor,
        data: list[Tensor],
        marks: list[str],
    ) -> list[Tensor]:
        """In the traced step: clipped sums, norms, losses, factors, and whether they hold.

        Guarantee: that of :func:`tacit.sgd.gradients.bounds.clip`, whose factors these are.
        """
        kept = guards(engine, run, plan)
        gradients = engine.gradients(run, grads, plan)
        losses = run.losses.detach()
        losses = answers.apart(losses) if self.device.type == "cuda" else losses
        found = clip(gradients, self.names, clipping, torch.isfinite(losses), mask, bounds, together=True, lasting=data)
        # An example counted as zero may hold infinities that poison a product: such a batch runs uncompiled.
        fine = ~found.bad.any() & found.comparable(weighted.LEAST, mask)
        fine = fine & kept if kept is not None else fine
        fine = answers.remarked(fine, found.lost.any())
        factors = answers.tell(fine, found.scale) if self.device.type == "cuda" else found.scale
        marks.append(_last_node())
        totals = found.sums(factors, sanitise=False, positive=True)
        self.order = list(totals)
        return [*totals.values(), found.norms, losses, found.scale, fine]

    def _traced(self, step: Callable[..., list[Tensor]], inputs: list[Tensor]) -> GraphModule:
        """The graph of a step; :class:`CannotCompile` where the model does what cannot be traced."""
        states = _python_randomness()
        torch.clear_autocast_cache()
        traced = make_fx(step, CHANNELS_LAST if self.channels_last else None)
        try:
            try:
                graph = traced(*inputs)
            except RuntimeError as error:
                if isinstance(error, ClippingError | torch.OutOfMemoryError):
                    raise
                # Models that look at their data to take a shortcut often do not where they are told that they are
                # compiled; whether the operations are then the same is checked against the plan.
                with as_compiled():
                    graph = traced(*inputs)
        except (CannotCompile, Unsettled, ClippingError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever the model does that cannot be traced, it can still run
            raise CannotCompile(_first_line(error)) from error
        finally:
            torch.clear_autocast_cache()
        if states != _python_randomness():
            raise CannotCompile("the model draws random numbers outside torch")
        return graph

    def _compile(self, whole: GraphModule, boundary: str, inputs: list[Tensor]) -> Callable[..., Any]:
        late = self._rewrite(whole, boundary)
        options = self._options(whole)
        self.operations = len(whole.graph.nodes)
        if self.unrolled:
            # The compiler takes minutes for a recurrence that is written out in time: recorded as it was traced.
            if self.device.type != "cuda" or self.random or self.split:
                raise CannotCompile("a recurrent layer is written out in time")
            return as_traced(whole, inputs, options)
        if not self.split:
            if not self.compiler:
                return as_traced(whole, inputs, options)
            return self._whole_or_chain(whole, inputs, options)
        first, second, kept = cut(whole, late)
        with torch.no_grad():
            middle = first(*inputs)
        make = compiled if self.compiler else as_traced
        run_first = make(first, inputs, options)
        later = [*(inputs[k] for k in kept), *middle]
        with full_precision():
            run_second = make(second, later, options)
        del middle, later

        def run(*values: Tensor) -> Any:
            found = run_first(*values)
            with full_precision():
                return run_second(*(values[k] for k in kept), *found)

        return run

    def _rewrite(self, whole: GraphModule, boundary: str) -> set[str]:
        """Bring the graph into the form that the compiler makes the most of; the names of norms' and sums' nodes."""
        names = [n.name for n in whole.graph.nodes]
        late = set(names[names.index(boundary) + 1 :])
        whole.graph.eliminate_dead_code()
        view_anew(whole)
        without_strides(whole)
        if not mutates(whole):
            look_through(whole)
            cast_once(whole)
            reduce_once(whole, {boundary, self.known})
        self.split = needs_full_precision(whole, late, self.device)
        if self.split:
            in_full_precision(whole, late)
            self.split = needs_full_precision(whole, late, self.device)
        if not (self.split or self.unrolled or mutates(whole)):
            schedule_norms_early(whole, late, self.known)
        tidy(whole)
        if self.channels_last:
            keep_innermost(whole)
        return late

    def _options(self, whole: GraphModule) -> dict[str, Any]:
        """What the compiler is told."""
        options: dict[str, Any] = {}
        if self.device.type == "cpu":
            # Waking other threads takes longer than small loops do.
            options["cpp.min_chunk_size"] = CPU_CHUNK
        if self.device.type == "cuda" and any(name_of(n) == "convolution" for n in whole.graph.nodes):
            # As it was traced: the compiler's own choice covers convolutions, and leaves their gradients behind.
            options["layout_optimization"] = options["force_layout_optimization"] = self.channels_last
        if self.channels_last:
            # What stands between two convolutions is computed again in the backward pass, not kept.
            options["realize_reads_threshold"] = 8
            # The numbers of a group are made of those of its channels once, not at every element that reads them.
            options["unroll_reductions_threshold"] = 1
        if self.random:
            # The numbers that the uncompiled model would draw, so that a run can be repeated from a checkpoint.
            options["fallback_random"] = True
        return options

    def _whole_or_chain(self, whole: GraphModule, inputs: list[Tensor], options: dict[str, Any]) -> Callable[..., Any]:
        """The whole graph compiled, or, where it repeats itself, each of its distinct parts."""

        def compile(piece: GraphModule, some: list[Tensor]) -> Callable[..., Any]:
            if self.device.type == "cuda" and not mutates(piece):
                gather(piece)
            return compiled(piece, some, options)

        chain = None
        if os.environ.get("TACIT_COMPILE") != "whole" and not mutates(whole):
            chain = chained(whole, compile)
        if chain is None:
            return compile(whole, inputs)
        self.pieces = len(chain.pieces)
        with torch.no_grad():
            chain(*inputs)  # compiles each piece when it is reached, for what the pieces before it give
        return chain

    # -- running it --------------------------------------------------------------------------------------------------

    def _inputs(self, request: Request) -> list[Tensor]:
        bounds = request.clipping.bounds
        if self._bounds is None or self._bounds[0] != bounds:
            self._bounds = (bounds, torch.tensor(bounds, dtype=torch.float64).to(self.device))
        return [*request.data, *([] if request.mask is None else [request.mask]), self._bounds[1]]

    def __call__(self, request: Request) -> Result | None:
        """The result, or nothing where an example has no finite gradient (or what was settled changed)."""
        inputs = self._inputs(request)
        # The casts of autocast are in the program; applied again they would reach norms and sums.
        kind = self.device.type
        cast = torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
        answer = self._answer
        if answer is not None:
            answer.expect(torch.cuda.synchronize)
        with torch.no_grad(), cast, answer.awaited() if answer is not None else nullcontext():
            if self.replay is not None and self.replay.holds(self.constants):
                found = self.replay(inputs, reuse_memory=request.reuse_memory)
            else:
                self.replay = None
                found = self._run(*inputs, *self.constants)
                self._calls += 1
                if self._calls == WARM and self.device.type == "cuda" and not self.random:
                    self.replay = recorded(self._run, inputs, self.constants)
        *values, norms, losses, scale, fine = found
        if self._shared is None:
            places = [t.data_ptr() for t in found]
            self._shared = [k for k, place in enumerate(places[: len(values)]) if place in places[:k]]
        for k in self._shared:
            # Two parameters with the same gradient: the compiler computes it once, and each gets noise of its own.
            values[k] = values[k].clone()
        by_name = dict(zip(self.order, values, strict=True))
        sums = {name: by_name[name] for name in self.names}
        if request.while_it_runs is not None:
            request.while_it_runs(sums)
        if answer is not None:
            if not answer.read(fine, torch.cuda.current_stream(self.device).query):
                return None
            return Result(sums, norms, losses, scale, answer.byte[0] == answers.REMARKED)
        told = int(fine)
        return Result(sums, norms, losses, scale, told == answers.REMARKED) if told else None


def _settled_plan(engine: Engine, run: Pass, grads: list[list[Tensor | None]], examples: int) -> PassPlan:
    """The plan of a traced pass; why it cannot be compiled where there is none that holds for every batch."""
    plan = engine.plans.get(engine.signature(run, grads))
    if plan is None:
        raise CannotCompile("the model takes another path through its operations when it is traced")
    if examples > 1 and any(use.rearranged for use in run.uses) and not plan.certain(run):
        raise CannotCompile("where the examples are in some tensor depends on the data, and is found anew")
    if run.doubt and not plan.dispels(run):
        raise CannotCompile(f"{run.doubt}, so that every batch is checked")
    if not plan.settled:
        raise Unsettled
    return plan


def wants_channels_last(device: torch.device) -> bool:
    """Whether images are convolved fastest with channels innermost: on a GPU."""
    return bool(device.type == "cuda")


def _channels_last(tensor: Tensor) -> Tensor:
    image = tensor.dim() == 4 and tensor.is_floating_point()
    return tensor.contiguous(memory_format=torch.channels_last) if image else tensor


def guards(engine: Engine, run: Pass, plan: PassPlan) -> Tensor | None:
    """Whether the indices that the plan rests on are the same as when it was made: a traced truth value."""
    kept: Tensor | None = None
    for use, known in zip(run.uses, plan.uses, strict=True):
        for now, then in zip((t for d in use.derived for t in frames.chain_tensors(d)), known.guards, strict=True):
            same = (now == then).all()
            kept = same if kept is None else kept & same
    return kept


def _python_randomness() -> Any:
    """The state of the random numbers that a traced program would not draw again."""
    other = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 models that use it use it so
    return random.getstate(), other["key"].tobytes(), other["pos"]


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward", "_convolution")


def needs_full_precision(whole: GraphModule, late: set[str], device: torch.device) -> bool:
    """Whether norms and sums have float32 products that the model's settings would compute in tf32."""
    settings = products.model_settings()
    if settings is not None and device.type == "cpu":
        settings = (settings[0], False)
    for node in whole.graph.nodes:
        name = name_of(node) if node.name in late else ""
        if name in _PRODUCTS and any(_is_float32(n) for n in node.all_input_nodes):
            reduced = settings is None or (settings[1] if "conv" in name else settings[0] != "highest")
            if reduced:
                return True
    return False


def _is_float32(node: Node) -> bool:
    meta = node.meta.get("tensor_meta")
    return bool(getattr(meta, "dtype", torch.float32) == torch.float32)


def _last_node() -> str:
    """The name of the last operation traced so far."""
    mode = get_proxy_mode()
    assert mode is not None
    return str(list(mode.tracer.graph.nodes)[-1].name)


def draws_randomly(graph: GraphModule) -> bool:
    """Whether any operation of a graph draws random numbers; attention does only where it drops something out."""
    for node in graph.graph.nodes:
        called = operator_of(node)
        if called is None or torch.Tag.nondeterministic_seeded not in called.tags:
            continue
        names = [a.name for a in schema(called).arguments]
        if "dropout_p" in names:
            k = names.index("dropout_p")
            if (node.args[k] if k < len(node.args) else node.kwargs.get("dropout_p", 0.0)) == 0.0:
                continue
        return True
    return False


def lift(graph: GraphModule) -> list[Tensor]:
    """Turn the tensors that a graph refers to (parameters, buffers, indices) into inputs of it, and return them."""
    found: dict[int, tuple[Tensor, Node]] = {}
    last = [n for n in graph.graph.nodes if n.op == "placeholder"][-1]
    for node in list(graph.graph.nodes):
        if node.op != "get_attr":
            continue
        value = getattr(graph, node.target)
        if id(value) not in found:
            with graph.graph.inserting_after(last):
                last = graph.graph.placeholder(f"kept_{len(found)}")
            found[id(value)] = (value, last)
        node.replace_all_uses_with(found[id(value)][1])
        graph.graph.erase_node(node)
    graph.recompile()
    return [value for value, _ in found.values()]


def cut(whole: GraphModule, late: set[str]) -> tuple[GraphModule, GraphModule, list[int]]:
    """The graph in two, the second beginning where the late nodes do; which inputs of the whole that part reads."""
    nodes = list(whole.graph.nodes)
    place = {n: k for k, n in enumerate(nodes)}
    begin = next(k for k, n in enumerate(nodes) if n.name in late and n.op != "placeholder")
    placeholders = [n for n in nodes if n.op == "placeholder"]
    crossing = [n for n in nodes[:begin] if n.op != "placeholder" and any(place[user] >= begin for user in n.users)]
    read = [p for p in placeholders if any(place[user] >= begin for user in p.users)]
    first, second = torch.fx.Graph(), torch.fx.Graph()
    table: dict[Node, Node] = {}
    for node in nodes[:begin]:
        table[node] = first.node_copy(node, lambda n: table[n])
    first.output([table[n] for n in crossing])
    later: dict[Node, Node] = {node: second.placeholder(node.name) for node in (*read, *crossing)}
    for node in nodes[begin:]:
        later[node] = second.node_copy(node, lambda n: later[n])
    kept = [placeholders.index(p) for p in read]
    return GraphModule(whole, first), GraphModule(whole, second), kept


def compiled(graph: GraphModule, inputs: list[Tensor], options: dict[str, Any]) -> Callable[..., Any]:
    """Compile an inference graph."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return inductor(graph, inputs, options)


def as_traced(graph: GraphModule, inputs: list[Tensor], options: dict[str, Any]) -> Callable[..., Any]:
    """The operations of a graph one after another, by no compiler."""
    run: Callable[..., Any] = graph.forward
    return run


def recorded(run: Callable[..., Any], inputs: list[Tensor], constants: list[Tensor]) -> StepGraph | None:
    """The step as a CUDA graph; nothing where it cannot be recorded, or memory does not suffice for a second copy."""
    try:
        return StepGraph(run, inputs, constants)
    except RuntimeError as error:
        warnings.warn(f"the step is launched kernel by kernel: {_first_line(error)}", NotCompiled, stacklevel=6)
        torch.cuda.synchronize()
        return None
