"""Where does a plan come from, and is it right?

A plan is made from the batch itself (:func:`survey`), which takes several times the memory of a step: two passes are
held side by side, one of them with its graph for several backward passes. Where there is no room for that, a part of
the batch says where examples are in every output; that the answer is right, and that examples do not mix, is checked on
the whole batch (:func:`anew`).

Poisson batches have another size at every step, and padded text another length. Where the examples are in an output is
a fact about the model's code: what was found once holds where shapes agree with it (:class:`PlanTemplate`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tacit.sgd.errors import SLOWLY, BatchMixing, ClippingError, UncoveredUse
from tacit.sgd.gradients import company, frames, rows, verify
from tacit.sgd.gradients.bounds import Gradients
from tacit.sgd.gradients.capture import BEHIND, BY_SIZE, UNSEEN, WRITTEN, Use
from tacit.sgd.gradients.contributions import Contributions, Group, Layout, NotCovered, wide
from tacit.sgd.gradients.frames import Frame, chain_key, chain_tensors
from tacit.sgd.gradients.outside import moving_rows, outline
from tacit.sgd.gradients.owners import (
    OwnerEvidence,
    candidates,
    digit_weights,
    digits,
    follows,
    owner_weights,
    unmoved,
)
from tacit.sgd.gradients.ownership.proof import Proof, prove
from tacit.sgd.gradients.randomness import drawn_outside, random_state
from tacit.sgd.gradients.rows import ByRow, OwnedRows

if TYPE_CHECKING:
    from tacit.sgd.gradients.engine import Engine, Request
    from tacit.sgd.gradients.outside import Outputs, Pass

__all__ = [
    "PassPlan",
    "PlanTemplate",
    "UsePlan",
    "adapted",
    "anew",
    "located",
    "merged",
    "outline",
    "owner_weights",
    "survey",
]

#: Gradients at the outputs of uses under weights of the examples, with these weights.
Weighed = list[tuple[Tensor, list[list[Tensor | None]]]]

SEVERAL = (
    "rows whose places depend on the data belong to several examples: examples are mixed there, and no per-example "
    "bound exists. See: tacit explain mixing"
)

ANOTHER_PATH = "the model takes another path through its operations each time it runs on the same batch"

NOT_SHOWN = "whose the losses are could not be followed through all operations"
NUMBERS = "numbers that the model computes with depend on the batch"

#: The fewest examples that say where examples are.
FEWEST = 2


@dataclass
class UsePlan:
    """What is known about one use: the layouts of its outputs, its rule, and the frames of its contributions."""

    layouts: list[Layout | None]
    by_rule: bool = True
    notes: dict[str, Any] = field(default_factory=dict)
    frames: list[Frame | None] = field(default_factory=list)
    guards: list[Tensor] = field(default_factory=list)


@dataclass
class PassPlan:
    """What is known about a whole pass, for every batch with which it does the same.

    ``settled`` is false while some layout rests on no evidence yet. ``trace`` says what was done. ``proof`` says
    whether examples were shown to be by themselves, and not only seen to be.
    """

    uses: list[UsePlan]
    materialised: set[int]
    settled: bool
    checked: bool = False
    proof: Proof | None = None
    trace: int = 0

    @cached_property
    def by_row(self) -> bool:
        """Whether rows of some output are found anew in every batch."""
        return any(isinstance(layout, ByRow) for use in self.uses for layout in use.layouts)

    def certain(self, run: Pass) -> bool:
        """Whether it was shown, for every batch with which a pass does what this one did, that examples do not mix."""
        return self.proof is not None and self.proof.steady and self.proof.trace == run.trace

    def remember(self, engine: Engine, context: Any) -> None:
        """Let every later pass be doubted where it was not shown that examples are by themselves."""
        if self.proof is not None and not self.proof.holds:
            where = engine.doubted_as(context)
            engine.doubted[where] = engine.doubted.get(where) or NOT_SHOWN
            if self.proof.meeting:
                engine.meeting.add(where)
        if self.proof is not None and self.proof.behind:
            where = engine.doubted_as(context)
            engine.doubted[where] = engine.doubted.get(where) or NOT_SHOWN
            engine.strained.add(where)

    def dispels(self, run: Pass) -> bool:
        """Whether a pass was doubted for what was shown not to be so; it is not from here on.

        A pass that was shown to be certain reads public values only, by whatever code.
        """
        if run.doubt not in (BY_SIZE, UNSEEN) or not self.certain(run):
            return False
        run.doubt = ""
        return True


def located(plan: PassPlan, grads: list[list[Tensor | None]], weighed: Weighed, batch: int) -> PassPlan | None:
    """The plan with the rows of this very batch in place; None where its examples are not where the plan has them.

    Losses are weighted by powers of two, one digit of the example's number after the other (:func:`owner_weights`), and
    the gradient at each element must follow the weight of the example that it belongs to.

    Raises:
        Unowned: If it cannot be told because the gradient at some row is not finite.
    """
    uses: list[UsePlan] = []
    known: list[OwnedRows] = []
    for k, (use, row) in enumerate(zip(plan.uses, grads, strict=True)):
        layouts = list(use.layouts)
        for j, (layout, plain) in enumerate(zip(use.layouts, row, strict=True)):
            told = [(weights, values[k][j]) for weights, values in weighed]
            if layout is None or plain is None:
                continue
            if isinstance(layout, ByRow):
                found = next((r for r in known if rows.still(r, layout.dim, plain, told)), None)
                if found is None:
                    found = _rows(layout.dim, plain, told, batch)
                    known = known if found is None else [found, *known[:7]]
                if found is None:
                    return None
                layouts[j] = found.moved(layout.dim)
            elif layout.size != plain.shape[layout.dim] or not all(
                g is None or follows(layout, plain, g, weights) for weights, g in told
            ):
                return None
        uses.append(use if layouts == use.layouts else replace(use, layouts=layouts))
    return replace(plan, uses=uses)


def _rows(dim: int, plain: Tensor, told: list[tuple[Tensor, Tensor | None]], batch: int) -> OwnedRows | None:
    if batch == 1:
        return OwnedRows.of(dim, torch.zeros(plain.shape[dim], dtype=torch.int64, device=plain.device), 1)
    return rows.found(dim, plain, told, batch, *digits(told[0][0].dtype)) if told else None


# -- for a batch ---------------------------------------------------------------------------------------------------


def anew(
    engine: Engine, request: Request, rewind: Callable[[], None], *, check: bool
) -> tuple[Pass, list[list[Tensor | None]], PassPlan] | None:
    """A pass over the batch, its gradients at the outputs, and the plan that was made for it and checked.

    ``None`` when no example of the batch has a finite gradient.
    """
    rewind()
    weights = [] if engine.shards is not None else [p for _, p in engine.model.named_parameters()]
    before = [float(p.detach().abs().sum(dtype=torch.float64)) for p in weights]
    found = _surveyed(engine, request, rewind, check=check)
    if before != [float(p.detach().abs().sum(dtype=torch.float64)) for p in weights]:  # seen or unseen
        raise ClippingError(WRITTEN)
    if found is None and engine.shards is None:
        return None
    rewind()
    run = engine.forward(*engine.asked(request))
    other = found is not None and found.trace != run.trace and engine.shards is None and run.batch > 1
    grads = run.output_gradients(retain=engine.by_row or other or engine.strains(run))
    if found is None:  # only now: the other ranks needed this one's parameters
        return None
    plan = engine.plans.get(engine.signature(run, grads))
    if plan is None:
        raise ClippingError(ANOTHER_PATH)
    plan.dispels(run)
    if plan.by_row or other:
        by_row, plan = plan.by_row, engine.located(run, grads, plan)
        if plan is None:
            raise BatchMixing(SEVERAL) if by_row else ClippingError(ANOTHER_PATH)
    return run, grads, plan


def _surveyed(engine: Engine, request: Request, rewind: Callable[[], None], *, check: bool) -> PassPlan | None:
    """The plan made from the whole batch, or, where memory does not suffice for that, with the help of a part of it."""
    try:
        return survey(engine, request, rewind, check=check)
    except torch.OutOfMemoryError:
        if engine.shards is not None or request.examples < 2 * FEWEST:
            raise
    # Out here the error, and with it all that the failed pass held, is gone.
    part = request.examples
    while True:
        _give_back()
        part //= 2
        try:
            known, template = _from_part(engine, request.picked(torch.arange(part)), rewind, check=check)
            break
        except torch.OutOfMemoryError:
            if part < 2 * FEWEST:
                raise
    _give_back()
    return _for_whole(engine, request, rewind, known, template, check=check)


def survey(engine: Engine, request: Request, rewind: Callable[[], None], *, check: bool) -> PassPlan | None:
    """Make the plan for this batch, and check the answers it gives; ``None`` when no example has a finite gradient."""
    rewind()
    before = random_state(engine.device, outside=True)
    run = engine.forward(*engine.asked(request), named=True)
    engine.draws_outside = drawn_outside(before, random_state(engine.device, outside=True))
    run = _hushed(engine, request, rewind, run)
    finite = verify.is_finite(engine, run)
    whole: AbstractContextManager[None] = nullcontext()
    if engine.shards is not None and engine.shards.any(not finite):
        # How often a rank runs the model now depends on its records: nothing is gathered while it does.
        whole = engine.shards.whole()
    with whole:
        return _made_and_checked(engine, request, rewind, run, check=check, finite=finite)


def _hushed(engine: Engine, request: Request, rewind: Callable[[], None], run: Pass) -> Pass:
    """The pass of a model that looks at its data, again, with the model told that it is compiled: many then do not.

    The pass as it was, where the model looks all the same, or gives other losses.
    """
    where = engine.doubted_as(run.context)
    if run.doubt in ("", BY_SIZE, BEHIND) or where in engine.hushed or engine.shards is not None:
        return run
    reason = engine.doubted.get(where, "")

    def losses(*, hushed: bool) -> Tensor:
        engine.hushed[where] = hushed
        with company.kept(engine.device), company.evaluating(engine.model), torch.enable_grad():
            return engine.forward(*engine.asked(request)).losses.detach()

    try:
        before, after = losses(hushed=False), losses(hushed=True)
        rewind()
        engine.doubted.pop(where, None)
        again = engine.forward(*engine.asked(request), named=True)
        same = torch.allclose(before, after, rtol=verify.TOLERANCE[verify.precision(engine, run)], equal_nan=True)
    except Exception:  # noqa: BLE001  # a trial: it runs as it was written, and not as a compiler would have it
        same = False
    if same and again.doubt in ("", BY_SIZE):
        return again
    engine.hushed[where] = False
    engine.doubted[where] = reason
    return run


def _made_and_checked(
    engine: Engine, request: Request, rewind: Callable[[], None], run: Pass, *, check: bool, finite: bool
) -> PassPlan | None:
    """The plan for a pass, and what is compared with it.

    Many branches: a batch may have values that are not finite, a single example, or rows that the data put elsewhere.
    """
    original = None

    def forward(some: Request) -> Pass:
        rewind()
        return engine.forward(*engine.asked(some), named=True)

    if not finite:
        # Evidence and comparisons need finite numbers: the survey runs on good examples in place of the bad ones.
        good: list[int] = []
        for k in torch.isfinite(run.losses.detach()).nonzero().flatten().tolist():
            if len(good) < verify.CHECKED_EXAMPLES and verify.is_finite(engine, forward(request.alike(k))):
                good.append(k)
        if not good:
            return None
        request = request.picked(torch.tensor([good[k % len(good)] for k in range(request.examples)]))
        run, original = forward(request), run
    chosen = verify.a_few(request.examples, verify.CHECKED_EXAMPLES)
    outputs: Outputs | None = None
    same = True
    if request.examples > 1:
        for example in reversed(chosen):
            outputs = None  # of the last one only, and not beside another pass
            swapped = forward(request.alike(example))
            outputs, losses = swapped.outputs(), swapped.losses.detach()
            weights = verify.one_hot(run.losses, example)
            same = same and (not check or verify.gradients_stay(engine, run, swapped, weights))
            if swapped.way != run.way and not run.doubt and engine.shards is None:
                engine.doubted[engine.doubted_as(run.context)] = NUMBERS
            del swapped
            if check:
                verify.isolated(engine, request, run, losses, example, rewind)

    known = [run.losses.detach()]
    tolerance = verify.TOLERANCE[verify.precision(engine, run)]

    def plainly() -> Pass:
        rewind()
        again = engine.forward(*engine.asked(request))
        known.append(again.losses.detach())
        return again

    def planned(run: Pass, *, by_row: bool) -> PassPlan:
        with torch.no_grad(), torch.autocast(run.losses.device.type, enabled=False):
            known = engine.plans.get(engine.signature(run, run.output_gradients(retain=True)))
            plan, gradients = make_plan(engine, run, outputs, chosen[0], original, by_row=by_row)
            plan.checked = known is not None and known.checked
            if not same:
                raise verify.mixing(verify.ITS_GRADIENT)
            if check:
                verify.agree(engine, run, gradients, chosen)
                plan.checked = True
        return plan

    moving = request.examples > 1 and any(use.rearranged for use in run.uses)
    plan = planned(run, by_row=False)
    del run  # one pass at a time
    if check and engine.shards is None and request.examples > 1:
        try:
            rows = request.examples * request.views
            data = [(t, 0 if t.dim() and len(t) == rows else None) for t in request.data]
            plan.proof = prove(engine, plainly, data, [use.layouts for use in plan.uses], request.views)
        except torch.OutOfMemoryError:
            plan.proof = None
        else:
            verify.repeated(known[0], known[-1], tolerance)
        plan.remember(engine, engine.context_of(request))
    if moving and engine.shards is None and (plan.proof is None or plan.proof.by_row or not plan.proof.steady):
        # In another batch the data may put examples elsewhere: whose a row is has to be asked each time.
        outputs, proof = None, plan.proof
        plan = planned(forward(request), by_row=True)
        plan.proof = proof
    return plan


def _from_part(engine: Engine, part: Request, rewind: Callable[[], None], *, check: bool) -> tuple[Any, PlanTemplate]:
    """What the first examples of a batch say about batches of any size."""
    plan = survey(engine, part, rewind, check=check)
    if plan is None or not plan.settled:
        raise torch.OutOfMemoryError(
            "memory does not suffice to look at the whole batch, and a part does not tell enough"
        )
    rewind()
    run = engine.forward(*engine.asked(part))
    grads = run.output_gradients()
    plan = engine.plans[engine.signature(run, grads)]
    return outline(run, grads), PlanTemplate(plan, run.uses)


def _for_whole(
    engine: Engine,
    request: Request,
    rewind: Callable[[], None],
    known: Any,
    template: PlanTemplate,
    *,
    check: bool,
) -> PassPlan:
    """The plan for the whole batch, made of what its part told, and checked on all of it: one pass at a time."""

    def forward(some: Request) -> Pass:
        rewind()
        return engine.forward(*engine.asked(some))

    chosen = verify.a_few(request.examples, verify.CHECKED_EXAMPLES)
    among_others = {k: forward(request.alike(k)).losses.detach() for k in (chosen if check else [])}
    run = forward(request)
    if not verify.is_finite(engine, run):
        raise torch.OutOfMemoryError("memory does not suffice to look at a batch with values that are not finite")
    for example, losses in among_others.items():
        verify.isolated(engine, request, run, losses, example, rewind)
    with torch.no_grad(), torch.autocast(run.losses.device.type, enabled=False):
        true = verify.truth(engine, run, chosen) if check else None
        grads = run.output_gradients()  # the graph gives its memory back for them, as in every later step
        plan, same = adapted(template, run) if outline(run, grads) == known else (None, False)
        if plan is None:
            raise torch.OutOfMemoryError(
                "memory does not suffice to look at the whole batch, and its parts are unlike it"
            )
        gradients = engine.gradients(run, grads, plan) if same else first_gradients(engine, run, grads, plan)
        plan.checked, plan.trace = check, run.trace
        if check:
            verify.agree(engine, run, gradients, chosen, true, grads)
        engine.plans[engine.signature(run, grads)] = plan
    return plan


def _give_back() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# -- from a pass ---------------------------------------------------------------------------------------------------


def make_plan(
    engine: Engine,
    run: Pass,
    outputs: Outputs | None,
    example: int,
    original: Pass | None = None,
    *,
    by_row: bool = False,
) -> tuple[PassPlan, Gradients]:
    """Find out all that a plan holds, from one pass whose graph is kept.

    With ``by_row`` rows are found in every batch wherever the data may put them elsewhere.

    Many branches: evidence of several kinds, for every output of every use.

    ``outputs`` are those of a pass over the same batch with every other example replaced by ``example``,
    ``original`` is a pass over a batch of which ``run`` has only the finite examples: further evidence, both.
    """
    evidence = [_evidence(run)]
    if original is not None and [u.shapes for u in original.uses] == [u.shapes for u in run.uses]:
        evidence.append(_evidence(original))
    grads = run.output_gradients(retain=True)
    key = outline(run, grads)
    moving = engine.rows.get(key, [])
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
            layout, sure = _locate(engine, use, j, seen, run.batch, after, example)
            if layout.regular and ((by_row and use.rearranged) or (k, j, layout.dim) in moving):
                layout, sure = ByRow.along(layout.dim, run.batch), True
            layouts.append(layout)
            settled = settled and sure
        uses.append(UsePlan(layouts, guards=[t.clone() for d in use.derived for t in frames.chain_tensors(d)]))
    del evidence
    plan = PassPlan(uses, set(), settled, trace=run.trace)
    here: PassPlan | None = plan
    if plan.by_row:
        engine.rows[key] = moving_rows([use.layouts for use in plan.uses])
        here = engine.located(run, grads, plan)
        if here is None:
            raise BatchMixing(SEVERAL)
    assert here is not None
    gradients = first_gradients(engine, run, grads, here)
    plan = replace(
        here, uses=[replace(now, layouts=use.layouts) for now, use in zip(here.uses, plan.uses, strict=True)]
    )
    engine.plans[engine.signature(run, grads)] = plan
    return plan, gradients


def _evidence(run: Pass) -> list[list[OwnerEvidence | None]]:
    """What the gradients of weighted losses tell about where the examples are in each output."""
    plain = run.output_gradients(retain=True)
    narrow = any(g is not None and g.dtype in (torch.bfloat16, torch.float16) for row in plain for g in row)
    found = [
        [None if g is None else OwnerEvidence(g, run.batch, every=use.rearranged, narrow=narrow) for g in row]
        for use, row in zip(run.uses, plain, strict=True)
    ]
    for weights in digit_weights(run.batch, run.losses.device, run.losses.dtype):
        for row, values in zip(found, run.output_gradients(weights, retain=True), strict=True):
            for evidence, value in zip(row, values, strict=True):
                if evidence is not None and value is not None:
                    evidence.add(value)
    return found


def _locate(
    engine: Engine, use: Use, j: int, evidence: list[OwnerEvidence], batch: int, after: Tensor | None, example: int
) -> tuple[Layout, bool]:
    names, shape = _names(engine, use), use.shapes[j]
    if not shape:
        raise UncoveredUse(
            f"{use.name!r} (with {names}) in {use.where} gives one number for the whole batch: compute one per "
            "example. See: tacit explain loss-shape"
        )
    if not shape.numel():
        return ByRow.along(shape.index(0), batch), True
    if batch == 1:
        return next(candidates(shape, 1)), True
    found = evidence[0].layouts()
    for more in evidence[1:]:
        agreeing = more.layouts()
        found = [layout for layout in found if layout in agreeing]
    if not found:
        dims = [dim for dim in evidence[0].by_row() if all(dim in more.by_row() for more in evidence[1:])]
        if dims:
            return ByRow.along(dims[0], batch), True
        if _by_a_number(use):
            raise UncoveredUse(
                f"a number out of the batch chooses {names} in {use.where} (an expert that some token goes to), and "
                "all examples that go there share what was chosen: a mixture of transformers is fast with "
                'model.set_experts_implementation("grouped_mm"). See: tacit explain no-rule',
                _own(engine, use),
            )
        if any(e.mixed for e in evidence):
            raise BatchMixing(
                f"the losses of several examples depend on the same element of the output of {use.name!r} (with "
                f"{names}) in {use.where}: examples are mixed there, and no per-example bound exists. "
                "See: tacit explain mixing"
            )
        raise UncoveredUse(
            f"cannot tell which elements of the output of {use.name!r} (with {names}) in {use.where} belong "
            f"to which example. {SLOWLY}. See: tacit explain no-rule",
            _own(engine, use),
        )
    if len(found) > 1 and after is not None:
        found = unmoved(found, use.outputs[j], after, example) or found
    return found[0], len(found) == 1


def _own(engine: Engine, use: Use) -> list[str]:
    names = list(engine.parameters)
    return [names[k] for k in sorted({k for d in use.derived for k in d.params})]


def _by_a_number(use: Use) -> bool:
    """Whether a single number of the data says which part of a parameter is taken."""
    index = use.args[1] if use.name == "__getitem__" and len(use.args) > 1 else None
    return isinstance(index, Tensor) and index.numel() == 1 and not index.is_floating_point()


def _names(engine: Engine, use: Use) -> str:
    return "parameter " + ", ".join(repr(name) for name in _own(engine, use))


def first_gradients(engine: Engine, run: Pass, grads: list[list[Tensor | None]], plan: PassPlan) -> Gradients:
    """As :meth:`Engine.gradients`, where rules and coordinates are still to be found: they go into the plan."""
    parameters = engine.pieces
    table: dict[int, Contributions] = {}
    for k, (use, grad, known) in enumerate(zip(run.uses, grads, plan.uses, strict=True)):
        if all(g is None for g in grad):
            continue
        use.fresh()
        try:
            table[k] = engine.complete(use, engine.rule_for(use, grad)(use, grad, known.layouts))
        except NotCovered:
            known.by_rule = False
            table[k] = engine.by_own_derivative(use, grad, known, run.batch, planning=True)
        known.frames = [
            frames.frame_of(d, c, parameters[next(iter(d.params))]) if len(d.params) == 1 else None for d, c in table[k]
        ]
    shared: list[list[Frame | None]] = [[] for _ in parameters]
    for k, contributions in table.items():
        for (derived, _), frame in zip(contributions, plan.uses[k].frames, strict=True):
            for p in derived.params:
                shared[p].append(frame)
    plan.materialised = {p for p, mine in enumerate(shared) if _overlap(mine, parameters[p])}
    return engine.grouped(run, plan, table)


def _overlap(found: list[Frame | None], parameter: Tensor) -> bool:
    """Whether contributions to a parameter share elements in other ways than by sharing all their coordinates."""
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


# -- for other batches ---------------------------------------------------------------------------------------------


class PlanTemplate:
    """A plan as what it says about batches of other sizes."""

    def __init__(self, plan: PassPlan, uses: list[Use]) -> None:
        self.plan = plan
        self.shapes = [use.shapes for use in uses]
        self.derived = [[(d.tensor.shape, chain_key(d)) for d in use.derived] for use in uses]

    def same(self, k: int, use: Use) -> bool:
        """Whether the values made of parameters that a use consumes are those of the plan."""
        if [(d.tensor.shape, chain_key(d)) for d in use.derived] != self.derived[k]:
            return False
        now, known = [t for d in use.derived for t in chain_tensors(d)], self.plan.uses[k].guards
        return len(now) == len(known) and all(torch.equal(a, b) for a, b in zip(now, known, strict=True))


def rescaled(layout: Layout, old: torch.Size, new: torch.Size, batch: int) -> Layout | None:
    """Where the examples are in an output of another size, if that is certain."""
    size = new[layout.dim]
    if size % batch:
        return None
    rest, before = size // batch, layout.outer * layout.inner
    if layout.outer > 1 and layout.inner > 1:
        # Folded on both sides: only if nothing but the batch has changed.
        others = all(a == b for k, (a, b) in enumerate(zip(old, new, strict=True)) if k != layout.dim)
        fits = others and before == rest
        return Layout(layout.dim, layout.outer, batch, layout.inner) if fits else None
    if rest > before and rest % before == 0:
        # Something of size one may have grown on the other side: the tokens of sequences that had a single one.
        return None
    if layout.outer > 1:
        return Layout(layout.dim, rest, batch, 1)
    return Layout(layout.dim, 1, batch, rest)


def guards(use: Use) -> list[Tensor]:
    """Copies of the indices that a use's frames rest on."""
    return [t.clone() for d in use.derived for t in chain_tensors(d)]


def adapted(known: PlanTemplate | None, run: Pass) -> tuple[PassPlan | None, bool]:
    """The plan for this batch size, from where the examples were found in a batch of another size.

    Poisson batches have another size at every step. Layouts are facts about the model's code: the dimension, and
    on which side of the examples it is folded, stay. Rules and frames stay too where the values made of parameters
    are the same (second result); else they are found anew.
    """
    if known is None:
        return None, False
    moving = run.batch > 1 and any(use.rearranged for use in run.uses)
    if known.plan.by_row or (moving and not known.plan.certain(run)):
        return None, False
    same = all(known.same(k, use) for k, use in enumerate(run.uses))
    uses: list[UsePlan] = []
    for plan, before, use in zip(known.plan.uses, known.shapes, run.uses, strict=True):
        layouts: list[Layout | None] = []
        for layout, old, new in zip(plan.layouts, before, use.shapes, strict=True):
            moved = rescaled(layout, old, new, run.batch) if layout is not None else None
            if layout is not None and moved is None:
                return None, False
            layouts.append(moved)
        if same:
            notes = {name: note for name, note in plan.notes.items() if note is None}
            uses.append(UsePlan(layouts, plan.by_rule, notes, plan.frames, plan.guards))
        else:
            uses.append(UsePlan(layouts, guards=guards(use)))
    materialised = set(known.plan.materialised) if same else set()
    return PassPlan(uses, materialised, settled=True, checked=True, proof=known.plan.proof), same


def merged(found: list[Gradients], rows: int, parameters: list[Tensor]) -> Gradients:
    """The gradients of several calls on the same examples: those of a parameter that several of them use add up."""
    if len(found) == 1:
        return found[0]
    groups: list[list[tuple[Frame, Group]]] = []
    for k, parameter in enumerate(parameters):
        having = [g for g in found if g.groups[k]]
        if len(having) <= 1:
            groups.append(having[0].groups[k] if having else [])
            continue
        one = torch.eye(rows, dtype=wide(parameter.dtype), device=parameter.device)
        dense = torch.stack([reduce(torch.add, [g.weighted_sum(k, row) for g in having]) for row in one])
        groups.append([(Frame("root"), Group(parameter.shape, dense=dense))])
    return Gradients(rows, parameters, groups)
