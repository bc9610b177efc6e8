"""How does one forward and one backward pass become norms and a clipped sum?

:class:`Engine` watches the forward pass (:mod:`~tacit.sgd.gradients.capture`), runs one backward pass to the outputs of
the uses, turns each use into contributions (:mod:`~tacit.sgd.gradients.rules`), brings those into the coordinates of
the parameters (:mod:`~tacit.sgd.gradients.frames`) and hands back :class:`Gradients`, from which norms and any weighted
sum follow without another pass.

Everything that had to be found out rather than computed (where the examples are in each output, which rule applies,
which uses share coordinates) goes into a :class:`Plan`. A plan holds for every batch with the same sequence of uses
and shapes, so a step with a known plan has no data-dependent Python in it and can be traced.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tacit.sgd.errors import SLOWLY, BatchMixing, ClippingError, UncoveredUse
from tacit.sgd.gradients import frames
from tacit.sgd.gradients.capture import Capture, Constants, Use
from tacit.sgd.gradients.contributions import Contributions, Group, Layout, Norms, NotCovered, wide
from tacit.sgd.gradients.frames import Frame
from tacit.sgd.gradients.outside import Attributes, Scalars, module_names, modules_of
from tacit.sgd.gradients.owners import OwnerEvidence, candidates, digit_weights, follows, owner_weights, unmoved
from tacit.sgd.gradients.padding import Lengths
from tacit.sgd.gradients.rules import DECOMPOSE, RULES, SHAPE_ONLY
from tacit.sgd.gradients.rules.generic import generic
from tacit.sgd.sharding.shards import Spread, cut_alike, local
from tacit.sgd.torch_compat import own_buffers, own_modules, own_parameters, runs_compiled
from tacit.sgd.torch_compat import version as version_of

Losses = Callable[[], Tensor]
Outputs = list[list[Tensor]]


@dataclass
class UsePlan:
    """What is known about one use: the layouts of its outputs, its rule, and the frames of its contributions."""

    layouts: list[Layout | None]
    by_rule: bool = True
    notes: dict[str, Any] = field(default_factory=dict)
    frames: list[Frame | None] = field(default_factory=list)
    guards: list[Tensor] = field(default_factory=list)


@dataclass
class Plan:
    """What is known about a whole pass. ``settled`` is false while some layout rests on no evidence yet."""

    uses: list[UsePlan]
    materialised: set[int]
    settled: bool
    checked: bool = False


def agrees(plan: Plan, grads: list[list[Tensor | None]], weighted: list[list[Tensor | None]], weights: Tensor) -> bool:
    """Whether gradients at the outputs follow the weights of the examples that a plan says the elements belong to."""
    for known, row, values in zip(plan.uses, grads, weighted, strict=True):
        for layout, plain, value in zip(known.layouts, row, values, strict=True):
            seen = layout is not None and plain is not None and value is not None
            if seen and not follows(layout, plain, value, weights):  # type: ignore[arg-type]
                return False
    return True


@dataclass
class Gradients:
    """Per-example gradients of every parameter, held as contributions; index ``k`` is the ``k``-th parameter."""

    batch: int
    parameters: list[Tensor]
    groups: list[list[tuple[Frame, Group]]]

    def norms(self, k: int) -> Norms:
        """Squared norms of the ``k``-th parameter's per-example gradients, with their margins."""
        parts = [group.norms() for _, group in self.groups[k]]
        if not parts:
            p = self.parameters[k]
            return Norms(torch.zeros(self.batch, dtype=wide(p.dtype), device=p.device))
        total = parts[0]
        for part in parts[1:]:
            total = Norms(total.squared + part.squared, total.gram + part.gram, total.product + part.product)
        return total

    def balanced(self) -> Gradients:
        """The same gradients, of factors that are nearly as long as each other."""
        groups = [[(frame, group.balanced()) for frame, group in some] for some in self.groups]
        return Gradients(self.batch, self.parameters, groups)

    def weighted_sum(self, k: int, scale: Tensor, sanitise: bool = False, positive: bool = False) -> Tensor:
        """``sum_b scale_b G_b`` for the ``k``-th parameter; ``positive`` says that no factor is zero."""
        parameter = self.parameters[k]
        if len(self.groups[k]) == 1 and self.groups[k][0][0].index is None:
            whole = self.groups[k][0][1].weighted_sum(scale, sanitise, positive)
            return whole.reshape(parameter.shape).to(wide(parameter.dtype)).contiguous()
        total = torch.zeros(parameter.shape, dtype=wide(parameter.dtype), device=parameter.device)
        for frame, group in self.groups[k]:
            piece = group.weighted_sum(scale, sanitise, positive)
            if frame.index is None:
                total = total + piece.reshape(parameter.shape)
            else:
                flat = total.flatten().index_add(0, frame.index.flatten(), piece.flatten().to(total.dtype))
                total = flat.reshape(parameter.shape)
        return total


class Glance:
    """What has to be as it was for what is known of a model to hold: asked at every step, so all in one walk.

    ``trained`` and ``buffers`` name tensors by their place in memory, for as long as somebody keeps them.
    """

    def __init__(self, model: nn.Module, suspects: tuple[type, ...]) -> None:
        self.training: list[bool] = []
        self.trained: list[int] = []
        self.buffers: list[int] = []
        self.suspicious = False
        seen: set[int] = set()
        stack = [model]
        while stack:
            module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            self.training.append(module.training)
            self.suspicious = self.suspicious or isinstance(module, suspects)
            for p in own_parameters(module).values():
                if p is not None and p.requires_grad:
                    self.trained.append(id(p))
            for b in own_buffers(module).values():
                self.buffers.append(id(b))
            for child in own_modules(module).values():
                if child is not None:
                    stack.append(child)


class Pass:
    """One watched forward pass: its uses and the losses of its examples (already averaged over views).

    ``unrolled`` says whether a recurrent layer was written out in time, ``doubt`` why what was found out about other
    batches may not hold for this one.
    """

    def __init__(self, uses: list[Use], losses: Tensor, batch: int, unrolled: bool = False, doubt: str = "") -> None:
        self.uses = uses
        self.unrolled = unrolled
        self.doubt = doubt if batch > 1 else ""
        self.losses = losses
        self.batch = batch

    def outputs(self) -> Outputs:
        """The values of the outputs of the uses, without the graph behind them."""
        return [[t.detach() for t in use.outputs] for use in self.uses]

    def output_gradients(self, weights: Tensor | None = None, retain: bool = False) -> list[list[Tensor | None]]:
        """The gradient of the (weighted) sum of the losses at every output of every use, by one backward pass."""
        edges = [edge for use in self.uses for edge in use.edges]
        if not edges:
            return []
        weights = torch.ones_like(self.losses) if weights is None else weights.to(self.losses.dtype)
        try:
            found = list(torch.autograd.grad(self.losses, edges, weights, retain_graph=retain, allow_unused=True))
        except RuntimeError as error:
            if "use_reentrant" in str(error) or "not compatible with .grad()" in str(error):
                raise ClippingError(
                    "reentrant activation checkpointing hides its operations from autograd.grad; "
                    "use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
                ) from error
            raise
        grads: list[list[Tensor | None]] = []
        for use in self.uses:
            own: list[Tensor | None] = [None if g is None else g.detach() for g in found[: len(use.edges)]]
            grads.append(own if use.placements is None else cut_alike(own, use.placements))
            found = found[len(use.edges) :]
        return grads


class Engine:
    """Per-example gradients of one model's parameters.

    ``parameters`` are the trainable ones, by name, each tensor once however often it is registered.
    """

    def __init__(self, model: nn.Module, parameters: dict[str, Tensor], spread: Spread | None = None) -> None:
        for name, parameter in parameters.items():
            if parameter.is_complex():
                raise UncoveredUse(
                    f"parameter {name!r} is complex: store real and imaginary part, and use view_as_complex"
                )
        # Weakly: engines are kept beside their models, and must not keep them alive.
        self._model = weakref.ref(model)
        self.parameters = parameters
        # Where the parameters lie on several ranks; they are then given as the operations see them.
        self.spread = spread
        self.context: Any = None
        self.plans: dict[Any, Plan] = {}
        # Compiled steps by what they were written for; None where a step cannot be compiled.
        self.programs: dict[Any, Any] = {}
        # What the model consisted of when it was last looked at.
        self.identity: list[int] = []
        self.buffers: list[int] = []
        #: contexts in which a pass was to be doubted, and why every pass is, where single ones do not show it
        self.doubted: dict[Any, str] = {}
        self.constants = Constants()
        self.lengths = Lengths()
        self.mutable: set[str] = set()
        self.surveyed = False
        self.calls = 0
        self.said: set[str] = set()

    @property
    def model(self) -> nn.Module:
        model = self._model()
        if model is None:
            raise ReferenceError("the model of this engine is gone")
        return model

    @property
    def pieces(self) -> list[Tensor]:
        """The parameters in the shapes that this rank computes with."""
        return [local(p) for p in self.parameters.values()]

    def values_of(self, numbers: Iterable[int]) -> AbstractContextManager[None]:
        """These parameters hold their values inside, also where they are gathered only while a layer runs."""
        if self.spread is None:
            return nullcontext()
        names = list(self.parameters)
        return self.spread.present([names[k] for k in numbers])

    # -- passes ----------------------------------------------------------------------------------------------------

    def forward(self, losses: Losses, data: list[Tensor], batch: int, named: bool = False) -> Pass:
        """Run the model once, watched. ``named`` keeps module names (for messages) and outputs (for evidence)."""
        capture = self.capture(data, max((len(t) for t in data if t.dim()), default=batch), named)
        scalars = Scalars() if named and self.spread is None else nullcontext()
        where = self.doubted_as(self.context)
        state = Attributes(self.model) if where in self.doubted else None
        try:
            with self.protected_buffers(), self._uncompiled(), torch.enable_grad():
                if named:
                    with module_names(self.model, capture.where), scalars, capture:
                        values = losses()
                else:
                    with capture:
                        values = losses()
        finally:
            if state is not None:
                state.restore()
        if isinstance(scalars, Scalars) and scalars.read and not capture.doubt:  # by scripted code, say
            self.doubted[where] = "the model reads values of the batch"
        doubt = capture.doubts([values]) or self.doubted.get(where, "")
        if doubt:
            self.doubted.setdefault(where, "")
        return Pass(capture.uses, values, batch, capture.unrolled, doubt)

    @staticmethod
    def doubted_as(context: Any) -> Any:
        """By what doubt is remembered: in a loop that somebody else wrote, by the module that is called."""
        return context[:2] if context and context[0] == "loop" else context

    def capture(self, data: list[Tensor], rows: int, named: bool = False) -> Capture:
        """What watches one pass over a batch of so many rows."""
        self.constants = self.constants.next(
            [b for m in modules_of(self.model) for b in own_buffers(m).values() if b is not None]
        )
        return Capture(
            self.parameters,
            data,
            covers=RULES.__contains__,
            decompose=DECOMPOSE,
            needs_values=lambda name: name not in SHAPE_ONLY,
            keep_outputs=named,
            spread=self.spread is not None,
            rows=rows,
            constants=self.constants,
        )

    def _uncompiled(self) -> AbstractContextManager[Any]:
        """Compiled parts of the model run as they were written, so that their operations are seen."""
        for module in modules_of(self.model):
            if runs_compiled(module):
                stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
                return stance
        return nullcontext()

    @contextmanager
    def protected_buffers(self) -> Iterator[None]:
        """Buffers leave as they came: what a forward pass writes into them is private data without noise."""
        # Names are only looked up where there are buffers: walking a large model with them takes milliseconds.
        parts = self.model.named_modules() if any(own_buffers(m) for m in modules_of(self.model)) else ()
        held = [
            (name, own_buffers(module), key, value, version_of(value), None)
            for name, module in parts
            for key, value in own_buffers(module).items()
            if value is not None
        ]
        copies = {
            (name, key): value.detach().clone()
            for name, _, key, value, _, _ in held
            if not self.surveyed or f"{name}.{key}" in self.mutable
        }
        try:
            yield
        finally:
            lost = []
            with torch.no_grad():
                for name, buffers, key, value, version, _ in held:
                    if buffers.get(key) is not value:
                        buffers[key] = value
                        self.mutable.add(f"{name}.{key}")
                    if version_of(value) != version:
                        if (name, key) in copies:
                            value.copy_(copies[name, key])
                            self.mutable.add(f"{name}.{key}")
                        else:
                            lost.append(f"{name}.{key}")
            self.surveyed = True
            if lost:
                self.mutable.update(lost)
                raise ClippingError(f"the forward pass began to write buffers it had left alone: {', '.join(lost)}")

    # -- plans -----------------------------------------------------------------------------------------------------

    def signature(self, run: Pass, grads: list[list[Tensor | None]]) -> Any:
        """What has to be the same for a plan, and the checks of it, to hold."""
        return (
            self.context,
            run.batch,
            tuple(
                (
                    use.name,
                    tuple(use.shapes),
                    tuple(g is None for g in grad),
                    tuple((tuple(sorted(d.params)), d.tensor.shape, frames.chain_key(d)) for d in use.derived),
                )
                for use, grad in zip(run.uses, grads, strict=True)
            ),
        )

    def plan_for(self, run: Pass, grads: list[list[Tensor | None]]) -> Plan | None:
        """The settled plan that holds for this pass, if there is one."""
        plan = self.plans.get(self.signature(run, grads))
        if plan is None or not plan.settled or (run.batch > 1 and any(use.rearranged for use in run.uses)):
            return None
        for use, known in zip(run.uses, plan.uses, strict=True):
            now = [t for d in use.derived for t in frames.chain_tensors(d)]
            if len(now) != len(known.guards) or not all(
                torch.equal(a, b) for a, b in zip(now, known.guards, strict=True)
            ):
                return None
        return plan

    def still_holds(self, run: Pass, grads: list[list[Tensor | None]], plan: Plan) -> bool:
        """Whether the examples of this very batch are where the plan has them; the graph of the pass is kept.

        Losses are weighted by powers of two, one digit of the example's number after the other, and the gradient at
        each element must follow the weight of the example that the plan says it belongs to.
        """
        return all(
            agrees(plan, grads, run.output_gradients(weights, retain=True), weights)
            for weights in owner_weights(run.batch, run.losses.device, run.losses.dtype)
        )

    def make_plan(
        self, run: Pass, outputs: Outputs | None, example: int, original: Pass | None = None
    ) -> tuple[Plan, Gradients]:
        """Find out all that a plan holds, from one pass whose graph is kept.

        ``outputs`` are those of a pass over the same batch with every other example replaced by ``example``,
        ``original`` is a pass over a batch of which ``run`` has only the finite examples: further evidence, both.
        """
        evidence = [self._evidence(run)]
        if original is not None and [u.shapes for u in original.uses] == [u.shapes for u in run.uses]:
            evidence.append(self._evidence(original))
        settled = True
        uses: list[UsePlan] = []
        for k, use in enumerate(run.uses):
            layouts: list[Layout | None] = []
            for j in range(len(use.edges)):
                seen = [e for e in (found[k][j] for found in evidence) if e is not None]
                if not seen:
                    layouts.append(None)
                    continue
                after = outputs[k][j] if outputs is not None and len(outputs) == len(run.uses) else None
                layout, sure = self._locate(use, j, seen, run.batch, after, example)
                layouts.append(layout)
                settled = settled and sure
            uses.append(UsePlan(layouts, guards=[t.clone() for d in use.derived for t in frames.chain_tensors(d)]))
        del evidence
        plan = Plan(uses, set(), settled)
        grads = run.output_gradients(retain=True)
        gradients = self.gradients(run, grads, plan, planning=True)
        self.plans[self.signature(run, grads)] = plan
        return plan, gradients

    @staticmethod
    def _evidence(run: Pass) -> list[list[OwnerEvidence | None]]:
        """What the gradients of weighted losses tell about where the examples are in each output."""
        plain = run.output_gradients(retain=True)
        narrow = any(g is not None and g.dtype in (torch.bfloat16, torch.float16) for row in plain for g in row)
        found = [
            [None if g is None else OwnerEvidence(g, run.batch, use.rearranged, narrow) for g in row]
            for use, row in zip(run.uses, plain, strict=True)
        ]
        for weights in digit_weights(run.batch, run.losses.device, run.losses.dtype):
            for row, values in zip(found, run.output_gradients(weights, retain=True), strict=True):
                for evidence, value in zip(row, values, strict=True):
                    if evidence is not None and value is not None:
                        evidence.add(value)
        return found

    def _locate(
        self, use: Use, j: int, evidence: list[OwnerEvidence], batch: int, after: Tensor | None, example: int
    ) -> tuple[Layout, bool]:
        names, shape = self._names(use), use.shapes[j]
        if not shape:
            raise UncoveredUse(f"{use.name!r} (with {names}) in {use.where} gives one number for the whole batch")
        if batch == 1:
            return next(candidates(shape, 1)), True
        found = evidence[0].layouts()
        for more in evidence[1:]:
            agreeing = more.layouts()
            found = [layout for layout in found if layout in agreeing]
        if not found:
            if any(e.mixed for e in evidence):
                raise BatchMixing(
                    f"the losses of several examples depend on the same element of the output of {use.name!r} "
                    f"(with {names}) in {use.where}: examples are mixed there, and no per-example bound exists"
                )
            raise UncoveredUse(
                f"cannot tell which elements of the output of {use.name!r} (with {names}) in {use.where} belong "
                f"to which example. {SLOWLY}."
            )
        if len(found) > 1 and after is not None:
            found = unmoved(found, use.outputs[j], after, example) or found
        return found[0], len(found) == 1

    def _names(self, use: Use) -> str:
        names = list(self.parameters)
        return "parameter " + ", ".join(repr(names[k]) for k in sorted({k for d in use.derived for k in d.params}))

    # -- contributions -----------------------------------------------------------------------------------------------

    def gradients(self, run: Pass, grads: list[list[Tensor | None]], plan: Plan, planning: bool = False) -> Gradients:
        """Contributions of all uses, grouped by parameter and coordinates."""
        parameters = self.pieces
        pieces: list[list[tuple[int, int]]] = [[] for _ in parameters]
        table: dict[tuple[int, int], tuple[Any, Any]] = {}
        for k, (use, grad, known) in enumerate(zip(run.uses, grads, plan.uses, strict=True)):
            if all(g is None for g in grad):
                continue
            use.fresh()
            contributions = self._contributions(use, grad, known, run.batch, planning)
            if planning:
                known.frames = [
                    frames.frame_of(d, c, parameters[next(iter(d.params))]) if len(d.params) == 1 else None
                    for d, c in contributions
                ]
            for j, (derived, contribution) in enumerate(contributions):
                table[k, j] = (derived, contribution)
                for p in derived.params:
                    pieces[p].append((k, j))
        if planning:
            plan.materialised = {p for p, mine in enumerate(pieces) if self._overlaps(mine, plan, parameters[p])}
        by_vjp: dict[tuple[int, int], dict[int, Tensor]] = {}
        groups: list[list[tuple[Frame, Group]]] = []
        for p, mine in enumerate(pieces):
            parameter = parameters[p]
            if not mine:
                groups.append([])
            elif p in plan.materialised:
                total: Tensor | None = None
                for k, j in mine:
                    derived, contribution = table[k, j]
                    frame = plan.uses[k].frames[j]
                    if frame is not None:
                        dense = frames.in_parameter(frame, contribution, derived.tensor.shape, parameter)
                    else:
                        if (k, j) not in by_vjp:
                            behind = sorted(derived.params)
                            with self.values_of(behind):
                                found = frames.per_example_vjp(
                                    derived, contribution, [parameters[i] for i in behind], run.batch
                                )
                            by_vjp[k, j] = dict(zip(behind, found, strict=True))
                        dense = by_vjp[k, j].pop(p)
                    total = dense if total is None else total + dense
                groups.append([(Frame("root"), Group(parameter.shape, dense=total))])
            else:
                framed: dict[Any, tuple[Frame, list[Any]]] = {}
                for k, j in mine:
                    frame = plan.uses[k].frames[j]
                    assert frame is not None
                    framed.setdefault(frame.key, (frame, []))[1].append(frames.in_frame(frame, table[k, j][1]))
                groups.append(
                    [
                        (f, Group.of(cs, parameter.shape if f.index is None else f.index.shape))
                        for f, cs in framed.values()
                    ]
                )
        return Gradients(run.batch, parameters, groups)

    def _contributions(
        self, use: Use, grad: list[Tensor | None], known: UsePlan, batch: int, planning: bool
    ) -> Contributions:
        if planning or known.by_rule:
            try:
                if use.name not in RULES or any(g is not None and g.is_complex() for g in grad):
                    raise NotCovered
                found = RULES[use.name](use, grad, known.layouts)
                if {id(d) for d, _ in found} != {id(d) for d in use.derived}:
                    raise NotCovered
                return found
            except NotCovered:
                if not planning:
                    raise UncoveredUse(f"{use.name!r} in {use.where} no longer follows its rule") from None
                known.by_rule = False
        try:
            with self.values_of(sorted({k for d in use.derived for k in d.params})):
                return generic(use, grad, known.layouts, batch, known.notes, planning)
        except RuntimeError as error:
            if isinstance(error, ClippingError):
                raise
            raise UncoveredUse(
                f"no rule covers {use.name!r}, which consumes {self._names(use)} in {use.where}, and its derivative "
                f"cannot be batched ({error}). {SLOWLY}."
            ) from error

    def _overlaps(self, mine: list[tuple[int, int]], plan: Plan, parameter: Tensor) -> bool:
        """Whether contributions to a parameter share elements in other ways than by sharing all their coordinates."""
        found = [plan.uses[k].frames[j] for k, j in mine]
        if any(f is None or not f.unique for f in found):
            return True
        distinct = {f.key: f for f in found if f is not None}
        if len(distinct) <= 1:
            return False
        indices = [
            torch.arange(parameter.numel(), device=parameter.device) if f.index is None else f.index.flatten()
            for f in distinct.values()
        ]
        every = torch.cat(indices)
        return bool(every.unique().numel() != every.numel())
