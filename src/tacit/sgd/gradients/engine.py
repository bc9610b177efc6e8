"""How does one forward and one backward pass become norms and a clipped sum?

:class:`Engine` watches the forward pass (:mod:`~tacit.sgd.gradients.capture`), runs one backward pass to the outputs of
the uses, turns each use into contributions (:mod:`~tacit.sgd.gradients.rules`) in the coordinates of the parameters,
and bounds them (:mod:`~tacit.sgd.gradients.bounds`). What is asked of it is one :class:`Request`.

Everything that had to be found out rather than computed (where the examples are in each output, which rule applies,
which uses share coordinates) is in a :class:`~tacit.sgd.gradients.planning.PassPlan`. A plan holds for every batch with
the same sequence of uses and shapes, so a step with a known plan has no data-dependent Python in it and can be traced.
Where there is none, or a check is due, :mod:`~tacit.sgd.gradients.planning` makes and checks one.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tacit.sgd.errors import SLOWLY, ClippingError, UncoveredUse
from tacit.sgd.gradients import company, fallback, frames, planning, verify
from tacit.sgd.gradients.batches import (
    Loss,
    is_criterion,
    leaves,
    plain,
    row_losses,
    rows_of,
    take,
    weakly,
)
from tacit.sgd.gradients.bounds import HIDDEN, ClippedGradients, Clipping, Gradients, clip, exact_products, warn_once
from tacit.sgd.gradients.capture import BEHIND, BY_SIZE, UNSEEN, Capture, Use
from tacit.sgd.gradients.contributions import Aligned, Contributions, Group, NotCovered, Rule
from tacit.sgd.gradients.frames import Frame
from tacit.sgd.gradients.outside import (
    Attributes,
    Constants,
    ModelState,
    MovingRows,
    Pass,
    Scalars,
    as_written,
    module_names,
    signature,
)
from tacit.sgd.gradients.padding import Lengths
from tacit.sgd.gradients.pieces import in_pieces
from tacit.sgd.gradients.planning import PassPlan, UsePlan
from tacit.sgd.gradients.randomness import remember
from tacit.sgd.gradients.rows import Unowned
from tacit.sgd.gradients.rules import DECOMPOSE, RULES, SHAPE_ONLY
from tacit.sgd.gradients.rules.generic import generic
from tacit.sgd.gradients.verify import Check, Ways, trainable
from tacit.sgd.sharding.shards import ShardedParameters, local, sharding_of
from tacit.sgd.torch_compat import own_buffers, watchers
from tacit.sgd.torch_compat import version as version_of

Method = Literal["operations", "examples"]


COMPILES = (
    "the model calls an operator that torch compiles as it runs (torch.cond), whose inside cannot be watched: write "
    "the choice in Python, or with torch.where. method='examples' takes the model as it is, one example at a time. "
    "See: tacit explain no-rule"
)


@dataclass(frozen=True)
class Request:
    """What is asked of an engine: the clipped sums of one loss over one batch.

    ``mask`` marks the real examples of a padded batch, ``views`` is how many adjacent rows are one example,
    ``microbatch`` how many examples run at a time, ``check`` when the answer is compared with autograd's own, and
    ``method`` whether operations are watched or every example has a backward pass of its own. ``compiled`` gives the
    answer by a compiled program, or nothing where there is none. With ``reuse_memory`` the results of such a program
    may lie in memory that the next one writes over, which saves copies; ``while_it_runs(sums)`` is called once it is
    on its way and before its answer is looked at: what that enqueues on a GPU runs behind it. The sums count only if
    they are what is returned: the very same dictionary.
    """

    loss: Loss
    batch: Any
    clipping: Clipping
    mask: Tensor | None = None
    views: int = 1
    microbatch: int | None = None
    check: Check = "first"
    method: Method = "operations"
    compiled: Callable[[Engine, Request, bool], Any] | None = None
    reuse_memory: bool = False
    while_it_runs: Callable[[dict[str, Tensor]], None] | None = None
    #: the tensors of the batch, and how many examples it has
    data: list[Tensor] = field(init=False)
    examples: int = field(init=False)

    def __post_init__(self) -> None:
        batch = self.batch
        # What most batches are, a tuple of tensors, needs no search: this is asked at every step.
        if type(batch) is tuple and batch and all(isinstance(t, Tensor) and t.dim() > 0 for t in batch):
            data = list(batch)
            rows = len(batch[0]) if len({len(t) for t in batch}) == 1 else rows_of(batch)
        else:
            batch = plain(batch)
            data, rows = leaves(batch), rows_of(batch)
        if self.views < 1 or rows % self.views:
            raise ValueError(f"the batch does not hold a whole number of examples with {self.views} views each")
        if self.mask is not None and self.mask.shape != (rows // self.views,):
            raise ValueError("mask must be a vector with one entry per example")
        if self.method not in ("operations", "examples"):
            raise ValueError(f"method must be 'operations' or 'examples', not {self.method!r}")
        if self.microbatch is not None and self.microbatch < 1:
            raise ValueError(f"microbatch must be at least 1, not {self.microbatch}")
        verify.check_when(self.check)
        vars(self).update(batch=batch, data=data, examples=rows // self.views)  # frozen from here on

    @property
    def size(self) -> int:
        """How many examples run at a time."""
        return 1 if self.method == "examples" else self.microbatch or max(1, self.examples)

    def on(self, batch: Any) -> Request:
        """The same of another batch, all of whose examples are real."""
        return dataclasses.replace(self, batch=batch, mask=None)

    def picked(self, examples: Tensor) -> Request:
        """The same of these examples of the batch, each with all its views, wherever its tensors live."""
        rows = (examples.unsqueeze(1) * self.views + torch.arange(self.views)).flatten()
        return self.on(take(self.batch, rows))

    def alike(self, example: int) -> Request:
        """The same of a batch of as many copies of one example."""
        return self.picked(torch.full((self.examples,), example))


class Engine:
    """Per-example gradients of one model's parameters, and all that is remembered of the model between steps.

    ``parameters`` are the trainable ones, by name, each tensor once however often it is registered.
    """

    _of: ClassVar[WeakKeyDictionary[nn.Module, Engine]] = WeakKeyDictionary()

    @staticmethod
    def of(model: nn.Module) -> Engine:
        """The engine of a model, with what it has learned about it; a new one when other parameters are trained."""
        shards = None
        if "torch.distributed.tensor" in sys.modules and torch.distributed.is_initialized():
            shards = sharding_of(model)  # first of all: it lets the model hold its pieces
        state = ModelState(model)
        engine = Engine._of.get(model)
        # The engine keeps its parameters alive, so that no other can have taken their place in memory.
        if engine is None or engine.state.trained != state.trained:
            engine = Engine._of[model] = Engine(model, trainable(model) if shards is None else shards.seen, shards)
        engine.state = state
        return engine

    def __init__(
        self, model: nn.Module, parameters: dict[str, Tensor], shards: ShardedParameters | None = None
    ) -> None:
        # Weakly: engines are kept beside their models, and must not keep them alive.
        self._model = weakref.ref(model)
        self.state = ModelState(model)
        self.parameters = parameters
        # Where the parameters lie on several ranks; they are then given as the operations see them.
        self.shards = shards
        self.plans: dict[Any, PassPlan] = {}
        self.ways = Ways()
        # Compiled steps by what they were written for; None where a step cannot be compiled.
        self.programs: dict[Any, Any] = {}
        #: parameters whose gradients a pass of each example by itself gives, by their number, and why
        self.apart: dict[int, str] = {
            k: f"parameter {name!r} is complex" for k, (name, p) in enumerate(parameters.items()) if p.is_complex()
        }
        #: contexts in which a pass was to be doubted, and why every pass is, where single ones do not show it
        self.doubted: dict[Any, str] = {}
        #: those in which values of several examples were seen to meet on the way to a loss
        self.meeting: set[Any] = set()
        #: those in which a gradient may be of several although the loss is not
        self.strained: set[Any] = set()
        #: contexts in which the model hears that it is compiled, because it then does not look at its data
        self.hushed: dict[Any, bool] = {}
        #: outputs of uses with rows that are found in every batch, by the outline of a pass: use, output, dimension
        self.rows: dict[Any, MovingRows] = {}
        self.constants = Constants()
        self.lengths = Lengths()
        #: shapes of records, by context, where all batches so far had the same
        self.one_shape: dict[Any, list[torch.Size]] = {}
        self.mutable: set[str] = set()
        #: whether passes draw from Python's or NumPy's generator, or may
        self.draws_outside = True
        self.surveyed = False
        self.calls = 0
        self.said: set[str] = set()
        self._criterion: tuple[Any, bool] | None = None
        self._unsettled: Callable[[], None] | None = None

    def still(self, parameters: dict[str, Tensor]) -> Engine:
        """This engine, if it is for the parameters that a run began with: an optimizer has noise for no others."""
        same = len(self.parameters) == len(parameters)
        if self.shards is None and not (same and all(self.parameters.get(n) is p for n, p in parameters.items())):
            raise ClippingError(
                "the model has other trainable parameters than when the run began (a module was replaced or added, or "
                "requires_grad was changed): make the model whole before tacit.sgd.Training"
            )
        return self

    @property
    def model(self) -> nn.Module:
        model = self._model()
        if model is None:
            raise ReferenceError("the model of this engine is gone")
        return model

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    @property
    def pieces(self) -> list[Tensor]:
        """The parameters in the shapes that this rank computes with."""
        whole = [torch.view_as_real(p) if p.is_complex() else p for p in self.parameters.values()]
        return whole if self.shards is None else [local(p) for p in whole]

    def values_of(self, numbers: Iterable[int]) -> AbstractContextManager[None]:
        """These parameters hold their values inside, also where they are gathered only while a layer runs."""
        if self.shards is None:
            return nullcontext()
        names = list(self.parameters)
        return self.shards.present([names[k] for k in numbers])

    def anyone(self, *, flag: bool) -> bool:
        """Whether it is so here, or on any rank that a spread model gathers parameters from."""
        return flag if self.shards is None else self.shards.any(flag)

    # -- a step ----------------------------------------------------------------------------------------------------

    def clipped_sums(self, request: Request, *, due: bool | None = None) -> ClippedGradients:
        """The sum over examples of per-example gradients, each clipped, and their norms.

        ``due`` says whether a check is due, where that is known; it is counted otherwise. Many branches: one for each
        way in which a batch is computed.

        Guarantee: adding or removing one example changes the sums by at most ``request.clipping.sensitivity`` in L2
        norm, rounding included, whatever the example holds; one whose gradient is not finite counts as zero.
        """
        if due is None:
            due = self._begin(request)
        if self.apart:
            request = fallback.fitting(self, request)
        if request.size != request.examples:
            return in_pieces(self, request, due=due)
        device, single = self.device, len(request.clipping.groups) == 1
        if request.mask is not None and request.mask.device != device:
            request = dataclasses.replace(request, mask=request.mask.to(device))
        gradients: Gradients | None
        rewind = remember(device, outside=self.draws_outside)
        try:
            if request.compiled is not None and request.method == "operations" and not self.apart:
                done = request.compiled(self, request, due)
                if done is not None:
                    warn_once(HIDDEN if done.lost else None, self.said)
                    norms = done.norms.squeeze(1) if single else done.norms
                    return ClippedGradients(done.sums, norms, request.clipping, done.losses, done.scale)
            if request.method == "examples":
                gradients, losses = verify.by_autograd(self, request)
            else:
                take = fallback.of_batch if self.apart else Engine.by_plan
                gradients, losses = take(self, request, due=due)
        except Unowned:  # rows without a finite gradient do not tell whose they are: each example alone does
            rewind()
            return in_pieces(self, dataclasses.replace(request, method="examples"), due=due)
        except UncoveredUse as error:
            fallback.set_apart(self, error)  # raises it again where that changes nothing
            return self.clipped_sums(request, due=due)
        except ClippingError:
            self.disbelieve()
            raise
        finally:
            self.settle()
        names, losses = list(self.parameters), losses.detach()
        good = torch.isfinite(losses)
        if gradients is None:
            good = torch.zeros_like(good)
            gradients = Gradients(request.examples, self.pieces, [[] for _ in names])
        with torch.no_grad(), torch.autocast(device.type, enabled=False), exact_products(device):
            found = clip(gradients, names, request.clipping, good, request.mask, shards=self.shards)
            found, sums, why = found.settled(early=self.shards is None)
        warn_once(why, self.said)
        if self.shards is not None:
            self.shards.rest()
        norms = found.norms.squeeze(1) if single else found.norms
        sums = fallback.shaped(self, sums) if self.apart else sums
        return ClippedGradients(sums, norms, request.clipping, losses, found.scale)

    def disbelieve(self) -> None:
        """Forget the plans: a batch was refused, and what was found out before might not hold for the next."""
        self.plans.clear()
        self.programs.clear()
        self.ways = Ways()

    def _begin(self, request: Request) -> bool:
        """Refuse what cannot be done at all; whether this call is one of those that are checked by their number."""
        if self.state.suspicious:
            verify.no_known_obstacles(self.model)
        if self.shards is not None and (request.compiled is not None or not request.examples):
            raise ValueError(
                "a model that is spread over ranks is not compiled, and every rank runs at least one (masked) row"
            )
        count, self.calls = self.calls, self.calls + 1
        if request.method == "examples" and request.check != "never":
            company.after_lengths(self, request)
        return count % request.check == 0 if isinstance(request.check, int) else request.check == "always"

    def by_plan(self, request: Request, *, due: bool) -> tuple[Gradients | None, Tensor]:
        """Per-example gradients by a plan that holds for this batch; made, and checked, where there is none yet.

        ``None`` for gradients when no example of the batch has a finite one. Many branches: each is a reason to doubt
        the plan, or to make it anew, and ranks have to agree on all of them.
        """
        run = self.forward(*self.asked(request))  # here, so that nobody else keeps a pass whose place another takes
        if not run.doubt and self.shards is None and self.ways.other(run.context, request.data, run.way):
            run.doubt = verify.CHANGED
        doubtful = self.anyone(flag=bool(run.doubt))
        grads = run.output_gradients(retain=doubtful or self.by_row)
        key = self.signature(run, grads)
        known, plan = self.plans.get(key), self.plan_for(run, key)
        doubtful = doubtful and not (plan is not None and plan.dispels(run))
        wanted = request.check != "never" and (due or known is None or not known.checked)
        if plan is not None and (doubtful or plan.by_row):
            plan = self.located(run, grads, plan)
            wanted = wanted or plan is None
        # Ranks gather parameters from one another: what one has to run again, all run again.
        wanted = self.anyone(flag=wanted)
        anew = self.anyone(flag=plan is None) or wanted
        if anew:
            losses, rewind = run.losses.detach(), run.rewind
            del run, grads
            again = planning.anew(self, request, rewind, check=wanted)
            if again is None:
                return None, losses
            run, grads, plan = again
        assert plan is not None
        if not run.doubt and any(use.rearranged for use in run.uses) and not plan.certain(run):
            run.doubt = "where the examples are in some tensor depends on the data"
        if request.check != "never":
            self._check_batch(request, run, anew=anew)
        self.ways.checked(run.context, request.data, run.way, anew=anew)
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            return self.gradients(run, grads, plan), run.losses

    def _check_batch(self, request: Request, run: Pass, *, anew: bool) -> None:
        """What is asked of every batch: whether its examples notice one another, their padding, or their number."""
        if self.anyone(flag=bool(run.doubt)):
            company.in_company(self, request, run, anew=anew)
        if self.shards is not None:
            return
        # Where no batch has had another shape nothing can have been padded.
        if self.one_shape.get(run.context) != [t.shape[1:] for t in request.data]:
            company.after_lengths(self, request)
        meeting = self.doubted_as(run.context) in self.meeting
        if anew or meeting:
            company.resized(self, request, verify.TOLERANCE[verify.precision(self, run)], always=meeting)

    # -- passes ----------------------------------------------------------------------------------------------------

    def context_of(self, request: Request) -> Any:
        """What a check of one call says nothing about in another: the loss's code, views, training or evaluation."""
        loss = request.loss
        code = getattr(getattr(loss, "func", loss), "__code__", None) or type(loss)
        return code, request.views, tuple(self.state.training)

    def asked(self, request: Request, batch: Any = None) -> tuple[Callable[[], Tensor], list[Tensor], int, Any, int]:
        """What :meth:`forward` takes, for a request, or for another batch in place of its own: losses of rows, tensors
        of the batch, examples, context and views."""
        loss, some, data = request.loss, request.batch, request.data
        if batch is not None:
            some, data = batch, leaves(batch)
        if self._criterion is None or self._criterion[0]() is not loss:
            self._criterion = (weakly(loss), is_criterion(loss))
        if self._criterion[1]:
            losses = functools.partial(row_losses, self.model, loss, some)
        else:
            losses = functools.partial(loss, self.model, some)
        return losses, data, request.examples, self.context_of(request), request.views

    def losses(self, request: Request) -> Tensor:
        """The losses of the examples, by a pass that nobody watches."""
        self.settle()
        losses, _, examples, context, views = self.asked(request)
        hushed = self.hushed.get(self.doubted_as(context), False)
        plainly = as_written(compiled=self.state.compiled, hushed=hushed)
        with Attributes(self.model), self.protected_buffers(), plainly:
            return verify.per_example(losses(), examples, views)

    def forward(
        self,
        losses: Callable[[], Tensor],
        data: list[Tensor],
        batch: int,
        context: Any = None,
        views: int | None = None,
        *,
        named: bool = False,
    ) -> Pass:
        """Run the model once, watched.

        ``losses`` gives one loss for each row, of which ``views`` are one example, or (without ``views``) those of the
        examples. ``named`` keeps module names (for messages) and outputs (for evidence).
        """
        self.settle()
        rewind = remember(self.device, outside=self.draws_outside)
        capture = self.capture(data, max((len(t) for t in data if t.dim()), default=batch), named=named)
        scalars = Scalars() if named and self.shards is None else nullcontext()
        where = self.doubted_as(context)
        # A trace is made of a pass that ran before.
        state = Attributes(self.model) if where in self.doubted or not watchers() else None
        names = module_names(self.model, capture.where) if named else nullcontext()
        hushed, compiled = self.hushed.get(where, False), self.state.compiled
        plainly = as_written(compiled=compiled, hushed=hushed) if hushed or compiled else nullcontext()
        try:
            with self.protected_buffers(), plainly, torch.enable_grad(), names, scalars, capture:
                values = losses()
                if views is not None:
                    values = verify.per_example(values, batch, views)
            capture.finish([values], rewind)
            if isinstance(scalars, Scalars) and scalars.read and not capture.doubt:  # by scripted code, say
                self.doubted[where] = UNSEEN
        except BaseException as error:
            if state is not None:
                self.forgotten(state, capture, "it did not end")
            if type(error).__module__ == "torch._dynamo.exc":
                raise ClippingError(COMPILES) from error
            raise
        doubt = self.doubt_of(capture, [values], where)
        if state is not None:
            self.keep(state, capture, doubt)
        if doubt:
            self.doubted.setdefault(where, "")
        found = Pass(capture.uses, values, batch, context, doubt=doubt, rewind=rewind)
        found.unrolled, found.trace, found.types = capture.unrolled, capture.trace, capture.types
        found.way, found.severed = capture.way, capture.severed
        return found

    def doubt_of(self, capture: Capture, values: Sequence[Tensor], where: Any) -> str:
        """Why what was found out about other batches may not hold for a pass that gave these values."""
        doubt = capture.doubts(values) or self.doubted.get(where, "")
        if capture.behind:
            self.strained.add(where)
            doubt = BEHIND if doubt in ("", BY_SIZE) else doubt
        return doubt

    def strains(self, run: Pass) -> bool:
        """Whether a gradient of this pass may be of several examples where the loss is not."""
        return run.severed or self.doubted_as(run.context) in self.strained

    def keep(self, state: Attributes, capture: Capture, doubt: str) -> None:
        """Put back later what modules kept in a pass: hooks of the backward pass may look at it."""
        self._unsettled = functools.partial(self.forgotten, state, capture, doubt)

    def settle(self) -> None:
        """Put back what modules kept in the last pass."""
        pending, self._unsettled = self._unsettled, None
        if pending is not None:
            pending()

    def forgotten(self, state: Attributes, capture: Capture, doubt: str) -> None:
        """Put back what modules kept of a batch: everything, where a pass may have read its values."""
        names = state.restore(None if doubt else capture.tainted)
        if names:
            told = ", ".join(map(repr, sorted(set(names))[:3]))
            why = f"the model keeps values of its batches in {told}, which would reach later steps without noise: they "
            warn_once(f"{why}are put back after every pass, as buffers are", self.said, UserWarning)

    @staticmethod
    def doubted_as(context: Any) -> Any:
        """By what doubt is remembered: in a loop that somebody else wrote, by the module that is called."""
        return context[:2] if context and context[0] == "loop" else context

    def capture(self, data: list[Tensor], rows: int, *, named: bool = False) -> Capture:
        """What watches one pass over a batch of so many rows."""
        self.constants = self.constants.next([b for _, _, b in self.state.buffers])
        return Capture(
            self.parameters,
            data,
            covers=RULES.__contains__,
            decompose=DECOMPOSE,
            needs_values=lambda name: name not in SHAPE_ONLY,
            keep_outputs=named,
            sharded=self.shards is not None,
            rows=rows,
            constants=self.constants,
            apart=self.apart,
            frozen=self.state.frozen,
        )

    @contextmanager
    def protected_buffers(self) -> Iterator[None]:
        """Buffers leave as they came: what a forward pass writes into them is private data without noise."""
        held = [(table, key, value, version_of(value)) for table, key, value in self.state.buffers]
        # Names are only looked up where they matter: walking a large model with them takes milliseconds.
        names = self._names_of_buffers() if self.mutable else {}
        copies = {
            (id(table), key): value.detach().clone()
            for table, key, value, _ in held
            if not self.surveyed or names.get((id(table), key)) in self.mutable
        }
        try:
            yield
        finally:
            written, lost = [], []
            with torch.no_grad():
                for table, key, value, version in held:
                    replaced, changed = table.get(key) is not value, version_of(value) != version
                    table[key] = value
                    if changed and (id(table), key) in copies:
                        value.copy_(copies[id(table), key])
                    elif changed:
                        lost.append((id(table), key))
                    if changed or replaced:
                        written.append((id(table), key))
            self.surveyed = True
            if written:
                names = self._names_of_buffers()
                self.mutable.update(names[place] for place in written)
            if lost:
                told = ", ".join(names[place] for place in lost)
                raise ClippingError(f"the forward pass began to write buffers it had left alone: {told}")

    def _names_of_buffers(self) -> dict[tuple[int, str], str]:
        parts = [(name, own_buffers(module)) for name, module in self.model.named_modules()]
        return {(id(table), key): f"{name}.{key}" for name, table in parts for key in table}

    # -- plans -----------------------------------------------------------------------------------------------------

    def signature(self, run: Pass, grads: list[list[Tensor | None]]) -> Any:
        """What has to be the same for a plan, and the checks of it, to hold."""
        return signature(run, grads, self.rows)

    def plan_for(self, run: Pass, signature: Any) -> PassPlan | None:
        """The settled plan that holds for a pass of this signature, if there is one."""
        plan = self.plans.get(signature)
        if plan is None or not plan.settled:
            return None
        if run.batch > 1 and any(use.rearranged for use in run.uses) and not (plan.certain(run) or plan.by_row):
            return None
        for use, known in zip(run.uses, plan.uses, strict=True):
            now = [t for d in use.derived if d.chain for t in frames.chain_tensors(d)]
            if len(now) != len(known.guards) or not all(
                torch.equal(a, b) for a, b in zip(now, known.guards, strict=True)
            ):
                return None
        return plan

    @property
    def by_row(self) -> bool:
        """Whether some plan asks every batch whose its rows are."""
        return bool(self.rows)

    def located(self, run: Pass, grads: list[list[Tensor | None]], plan: PassPlan) -> PassPlan | None:
        """The plan, with the rows of this very batch; None where its examples are not where the plan has them.

        The graph of the pass is kept.
        """
        weights = planning.owner_weights(run.batch, run.losses.device, run.losses.dtype)
        weighed = [(w, run.output_gradients(w, retain=True)) for w in weights]
        return planning.located(plan, grads, weighed, run.batch)

    # -- contributions -----------------------------------------------------------------------------------------------

    def gradients(self, run: Pass, grads: list[list[Tensor | None]], plan: PassPlan) -> Gradients:
        """Contributions of all uses by a plan that holds, grouped by parameter and coordinates."""
        table: dict[int, Contributions] = {}
        for k, (use, grad, known) in enumerate(zip(run.uses, grads, plan.uses, strict=True)):
            if all(g is None for g in grad):
                continue
            use.fresh()
            if not known.by_rule:
                table[k] = self.by_own_derivative(use, grad, known, run.batch, planning=False)
                continue
            try:
                rule = self.rule_for(use, grad)
                table[k] = self.complete(use, rule(use, grad, known.layouts))
            except NotCovered:
                raise UncoveredUse(f"{use.name!r} in {use.where} no longer follows its rule") from None
        return self.grouped(run, plan, table)

    @staticmethod
    def rule_for(use: Use, grad: list[Tensor | None]) -> Rule:
        """The rule of an operation; none of them treats complex gradients."""
        if use.name not in RULES or any(g is not None and g.is_complex() for g in grad):
            raise NotCovered
        return RULES[use.name]

    @staticmethod
    def complete(use: Use, found: Contributions) -> Contributions:
        """What a rule found, if it is about every derived value of the use."""
        if {id(d) for d, _ in found} != {id(d) for d in use.derived}:
            raise NotCovered
        return found

    def by_own_derivative(
        self, use: Use, grad: list[Tensor | None], known: UsePlan, batch: int, *, planning: bool
    ) -> Contributions:
        """Contributions of a use without a rule, by ``vmap`` of its own derivative."""
        behind = sorted({k for d in use.derived for k in d.params})
        try:
            with self.values_of(behind):
                return generic(use, grad, known.layouts, batch, known.notes, planning=planning)
        except RuntimeError as error:
            if isinstance(error, ClippingError):
                raise
            names = list(self.parameters)
            raise UncoveredUse(
                f"no rule covers {use.name!r}, which consumes parameter {', '.join(repr(names[k]) for k in behind)} in "
                f"{use.where}, and its derivative cannot be batched ({error}). {SLOWLY}. See: tacit explain no-rule",
                [names[k] for k in behind],
            ) from error

    def grouped(self, run: Pass, plan: PassPlan, table: dict[int, Contributions]) -> Gradients:
        """The contributions of each use, by its number, as those to each parameter."""
        parameters = self.pieces
        places: list[list[tuple[int, int]]] = [[] for _ in parameters]
        for k, contributions in table.items():
            for j, (derived, _) in enumerate(contributions):
                for p in derived.params:
                    places[p].append((k, j))
        groups: list[list[tuple[Frame, Group]]] = []
        by_vjp: dict[tuple[int, int], dict[int, Tensor]] = {}
        for p, (parameter, mine) in enumerate(zip(parameters, places, strict=True)):
            if p in self.apart:
                groups.append([])
                continue
            if p in plan.materialised:
                formed = [self._formed(p, k, j, run.batch, plan, table, by_vjp) for k, j in mine]
                groups.append([(Frame("root"), Group(parameter.shape, dense=functools.reduce(torch.add, formed)))])
                continue
            framed: dict[Any, tuple[Frame, list[Any]]] = {}
            for k, j in mine:
                frame, contribution = plan.uses[k].frames[j], table[k][j][1]
                assert frame is not None
                if frame.flipped or isinstance(contribution, Aligned):
                    contribution = frames.in_frame(frame, contribution)
                framed.setdefault(frame.key, (frame, []))[1].append(contribution)
            groups.append(
                [
                    (f, Group.of(some, parameter.shape if f.index is None else f.index.shape))
                    for f, some in framed.values()
                ]
            )
        return Gradients(run.batch, parameters, groups)

    def _formed(
        self,
        p: int,
        k: int,
        j: int,
        batch: int,
        plan: PassPlan,
        table: dict[int, Contributions],
        by_vjp: dict[tuple[int, int], dict[int, Tensor]],
    ) -> Tensor:
        """Per-example gradients of parameter ``p`` itself, from a contribution; ``by_vjp`` has those of others."""
        derived, contribution = table[k][j]
        frame = plan.uses[k].frames[j]
        if frame is not None:
            return frames.in_parameter(frame, contribution, derived.tensor.shape, self.pieces[p])
        if (k, j) not in by_vjp:
            behind = sorted(derived.params)
            fallback.check_dense(self, derived.tensor, behind)
            with self.values_of(behind):
                found = frames.per_example_vjp(derived, contribution, [self.pieces[i] for i in behind], batch)
            by_vjp[k, j] = dict(zip(behind, found, strict=True))
        return by_vjp[k, j].pop(p)
