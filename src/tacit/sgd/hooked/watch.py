"""How are per-example gradients found in a training loop that somebody else wrote?

The loop calls the model, computes a loss from what it returns, and calls ``loss.backward()``. :class:`Watch` stands at
the border of the model: it watches each outermost call of a module (with the same capture that
:func:`tacit.sgd.clipped_grad` uses), hands out its outputs cut off from the graph behind them, and where the loop's
backward pass arrives at those outputs it goes on to the outputs of the watched operations and no further. So no weight
gradient is ever computed, and ``p.grad`` stays empty until noise has been added. One such
call is a :class:`~tacit.sgd.hooked.calls.Call`.

What the loss does is not seen, only the gradient with which it arrives. With the cotangent ``c_b`` of example ``b``,
the function ``<out_b, c_b>`` has the same gradient in the parameters as the example's own loss, which is what the
self-check compares with autograd, and what must not change when all other examples are replaced.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tacit.sgd.errors import BatchMixing, ClippingError, UncoveredUse
from tacit.sgd.gradients import company, fallback, padding, verify
from tacit.sgd.gradients.bounds import Gradients
from tacit.sgd.gradients.capture import Capture
from tacit.sgd.gradients.engine import Engine
from tacit.sgd.gradients.outside import Attributes, ModelState, Outputs, Pass, as_written
from tacit.sgd.gradients.ownership.proof import prove
from tacit.sgd.gradients.planning import (
    SEVERAL,
    PassPlan,
    PlanTemplate,
    adapted,
    first_gradients,
    located,
    make_plan,
    merged,
    outline,
)
from tacit.sgd.gradients.randomness import random_state, remember, same_state
from tacit.sgd.gradients.rows import Unowned
from tacit.sgd.hooked import alone
from tacit.sgd.hooked.calls import MIXES, Border, Call, live
from tacit.sgd.torch_compat import compiled_call, pytree, set_compiled_call

UNWATCHED = (
    "parameter {!r} received a gradient outside the watched calls of the model, which is neither clipped nor noised. "
    "A penalty on the weights belongs in the optimizer (weight_decay); call the model itself rather than its "
    "forward(); outputs must be tensors in tuples, lists, dicts or registered classes; activation checkpointing needs "
    "use_reentrant=False."
)


NOT_FINITE = (
    "an example has a gradient in {} that is not finite, where only gradients tell whose a row is (tokens sorted by "
    "expert, packed sequences): lower the learning rate, or train with tacit.sgd.Training, which computes such a batch "
    "one example at a time"
)


class _Hook:
    """A hook that does not travel: a copy or a pickle of the model holds a hook that does nothing."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __call__(self, *args: Any) -> Any:
        return self.method(*args)

    def __reduce__(self) -> Any:
        return _left_behind, ()

    def __deepcopy__(self, memo: Any) -> Any:
        return nothing


def nothing(*_: Any) -> None:
    """What is left of a hook in a copy of the model."""


def _left_behind() -> Callable[..., None]:
    return nothing


_watching: WeakKeyDictionary[nn.Module, Watch] = WeakKeyDictionary()


class Watch:
    """Per-example gradients of every batch that a loop puts through ``model``, which stays as it is.

    ``rows`` says how many examples a call has (the batch that the loop was handed), ``mean`` whether the loop's losses
    are averaged over them.
    """

    def __init__(
        self,
        model: nn.Module,
        engine: Engine,
        *,
        piece: Callable[[], Any],
        mean: bool = True,
        batch_dim: int = 0,
        check: bool = True,
    ) -> None:
        verify.no_known_obstacles(model)
        before = _watching.get(model)
        if before is not None and before._handles:
            raise ClippingError(
                "the model is private already, and its batches would be charged to two runs: call detach() of the "
                "private optimizer first"
            )
        _watching[model] = self
        self.engine, self.mean, self.batch_dim, self.check = engine, mean, batch_dim, check
        self.piece = piece
        #: what the loop divided its losses by, besides the number of examples
        self.scale = 1.0
        self.pending: list[Call] = []
        #: told of every call whose backward pass has arrived
        self.arrived: Callable[[Call], None] = nothing
        self._all = list(model.parameters())
        self._flags = [p.requires_grad for p in self._all]
        self._trained = set(ModelState(model).trained)
        self._anchor = torch.zeros((), requires_grad=True)
        self._inside: list[Call] = []
        self._off = 0
        self._templates: dict[Any, PlanTemplate] = {}
        self._handles: list[Any] = []
        if isinstance(model, torch.jit.ScriptModule):
            raise ClippingError(
                "a scripted or traced model takes no hooks, so its calls cannot be watched in your loop: make the "
                "original model private and script it after training, put it into an nn.Module that calls it, or "
                "train it with tacit.sgd.Training"
            )
        #: modules that were compiled in place, with what that made of them: while they are watched they run as written
        self._compiled = [(m, call) for m in model.modules() if (call := compiled_call(m)) is not None]
        for module, _ in self._compiled:
            set_compiled_call(module, None)
        for module in model.modules():
            if isinstance(module, torch.jit.ScriptModule):  # it is watched from outside
                continue
            if any(p.requires_grad for p in module.parameters()):
                self._handles.append(module.register_forward_pre_hook(_Hook(self._enter), with_kwargs=True))
                self._handles.append(
                    module.register_forward_hook(_Hook(self._leave), with_kwargs=True, always_call=True)
                )
        for name, parameter in engine.parameters.items():
            self._handles.append(parameter.register_post_accumulate_grad_hook(_Hook(self._unwatched(name))))

    def close(self) -> None:
        """Leave the model alone from now on."""
        for handle in self._handles:
            handle.remove()
        for module, call in self._compiled:
            set_compiled_call(module, call)
        self._compiled.clear()
        self._handles.clear()
        self.pending.clear()

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Calls inside are not watched."""
        self._off += 1
        try:
            yield
        finally:
            self._off -= 1

    def _unwatched(self, name: str) -> Callable[[Tensor], None]:
        def complain(parameter: Tensor) -> None:
            parameter.grad = None
            raise UncoveredUse(UNWATCHED.format(name))

        return complain

    # -- what a call is about ---------------------------------------------------------------------------------------

    def rows_of(self, call: Call, reached: list[int]) -> int:
        """How many examples a call has; ``reached`` are the outputs that the loop's loss depends on."""
        if call.piece is None:
            raise ClippingError(
                "this batch did not come from the private data loader, so how it was sampled is not known: iterate "
                "over the data_loader that make_private returned, and take one step for each batch"
            )
        rows: int = call.piece.rows
        lost = self._without_examples(call, rows, reached)
        if lost is not None:
            raise ClippingError(
                f"no dimension holds the examples in what {type(call.module).__name__} returned: "
                "each row must be one example of the batch that the private data loader handed out, in the first "
                "dimension (in the second with batch_first=False)"
            )
        return rows

    def _without_examples(self, call: Call, rows: int, reached: list[int]) -> Tensor | None:
        """An output of the call that cannot hold the examples of the batch in hand."""
        # Of a loss that the model computed itself any output may be what it was computed from.
        chosen = [k for k in reached if call.outs[k].dim()] or [k for k, out in enumerate(call.outs) if out.dim()]
        outs = [call.outs[k] for k in chosen]
        lost = next((call.outs[k] for k in chosen if self.place_of(call, k, rows) is None), None)
        if lost is None and outs and not any(self._holds(tensor, rows) for tensor in (*call.data, *outs)):
            # As many classes or tokens as there are examples: a dimension of that size does not make it the examples'.
            return outs[0]
        return lost

    def _holds(self, tensor: Tensor, rows: int) -> bool:
        """Whether the examples can be where the loop says that they are."""
        return bool(tensor.dim() > self.batch_dim and tensor.shape[self.batch_dim] == rows)

    def factor(self, call: Call) -> float:
        return self.scale * (float(call.rows) if self.mean and call.rows else 1.0)

    def dim_of(self, tensor: Tensor, rows: int) -> int | None:
        """The dimension of a tensor that holds the examples."""
        if self._holds(tensor, rows):
            return self.batch_dim
        same = [k for k, size in enumerate(tensor.shape) if size == rows]
        return same[0] if len(same) == 1 else None

    def place_of(self, call: Call, k: int, rows: int) -> int | None:
        """:meth:`dim_of` of an output, also of one with two dimensions of the batch's size: then the first of them.

        The state of a recurrent layer is (layers, examples, features), and a batch may happen to have as many examples
        as there are features. Were it the other one, the examples would be seen to be mixed.
        """
        out = call.outs[k]
        found = self.dim_of(out, rows)
        if found is None and any(self._holds(tensor, rows) for tensor in call.data):
            return next((d for d, size in enumerate(out.shape) if size == rows), None)
        return found

    def first(self, call: Call) -> bool:
        """Whether no plan was made yet for this module."""
        return not any(key[0][1] == id(call.module) for key in self._templates)

    # -- hooks ------------------------------------------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._off or self._inside or not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return None
        if [p.requires_grad for p in self._all] != self._flags:
            raise ClippingError(
                "requires_grad of a parameter was changed after make_private: decide what is trained before it"
            )
        piece = self.piece()
        self.engine.settle()
        call = Call(self, module, args, kwargs, piece)
        engine = self.engine
        engine.state = ModelState(engine.model)
        if set(engine.state.trained) != self._trained:
            raise ClippingError(
                "the model has other trainable parameters than when it was made private (a module was replaced or "
                "added), and the optimizer has no noise for them: make the model whole before it"
            )
        capture = engine.capture(call.data, piece.rows if piece is not None else 1)
        call.uses = capture.uses
        call.context.enter_context(engine.protected_buffers())
        call.context.enter_context(as_written(compiled=engine.state.compiled))
        call.context.enter_context(capture)
        call.capture = capture  # type: ignore[attr-defined]
        self._inside.append(call)
        return call.arguments(call.leaves)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        """Take note of a call that ends. Many branches: it may be none of ours, without uses, or one to be doubted."""
        if not self._inside or self._inside[-1].module is not module or self._off:
            return None
        call = self._inside.pop()
        call.context.close()
        capture: Capture = call.__dict__.pop("capture")
        call.random = not same_state(call.before, random_state(call.device))
        call.outs = [t for t in live(out) if capture.derived(t) is None]
        self._seen(capture, call.outs)
        if not call.outs or not (call.uses or call.linked or self.engine.apart):
            return None
        where = self.engine.doubted_as(call.key)
        call.doubt = self.engine.doubt_of(capture, [t for t in call.outs if t.dim()], where)
        if call.lists:
            call.doubt = call.doubt or "numbers for each example came in that no tensor holds"
        if call.doubt:
            self.engine.doubted.setdefault(where, "")
        self.engine.keep(call.state, capture, call.doubt)
        call.trace = capture.way
        if not call.doubt and self.engine.ways.other(where, call.data, call.trace):
            call.doubt = verify.CHANGED
        call.severed = capture.severed
        originals = (original for original, _ in call.linked)
        cut = Border.apply(call, self._anchor, *originals)  # type: ignore[no-untyped-call]  # torch's has no types
        return pytree.tree_map(
            lambda leaf: next((c for c, o in zip(cut, call.outs, strict=True) if o is leaf), leaf), out
        )

    def _seen(self, capture: Capture, outs: list[Tensor]) -> None:
        """Set apart the parameters whose way to the outputs was not seen."""
        try:
            capture.finish(outs)
        except UncoveredUse as error:
            self._set_apart(error)

    def _set_apart(self, error: UncoveredUse) -> None:
        fallback.set_apart(self.engine, error)
        self._templates.clear()

    # -- per-example gradients --------------------------------------------------------------------------------------

    def gradients(self, calls: list[Call]) -> tuple[Gradients, Tensor]:
        """Per-example gradients of one batch, put through the model in these calls, and which examples are finite."""
        try:
            return self._gradients(calls)
        except ClippingError:
            self.engine.disbelieve()
            self._templates.clear()
            raise

    def _gradients(self, calls: list[Call]) -> tuple[Gradients, Tensor]:
        rows = calls[0].rows
        device = calls[0].device
        good = torch.ones(rows, dtype=torch.bool, device=device)
        found: list[Gradients] = []
        for call in calls:
            for k, cotangent in call.cotangents.items():
                dim = self.place_of(call, k, rows)
                assert dim is not None
                good &= torch.isfinite(cotangent).movedim(dim, 0).reshape(rows, -1).all(1)
            if call.uses or self.engine.apart:
                gradients = self._one(call)
                if gradients is None:
                    good = torch.zeros_like(good)
                else:
                    found.append(gradients)
                    if self.check:
                        self._in_company(call)
                    self.engine.ways.checked(self.engine.doubted_as(call.key), call.data, call.trace, anew=call.anew)
        whole = merged(found, rows, self.engine.pieces)
        if self.engine.apart and found:
            whole = alone.completed(self, calls, whole)
        return whole, good

    def _one(self, call: Call) -> Gradients | None:
        while True:
            try:
                return self._by_plan(call)
            except UncoveredUse as error:
                self._set_apart(error)

    def _by_plan(self, call: Call) -> Gradients | None:
        engine = self.engine
        assert call.grads is not None
        if engine.apart:
            call.leave_out(engine.apart)
        run = Pass(call.uses, torch.ones(call.rows, device=call.device), call.rows, call.key)
        plan = self._holding(engine.plan_for(run, engine.signature(run, call.grads)), call)
        quiet = torch.no_grad(), torch.autocast(call.device.type, enabled=False)
        if plan is None:
            plan, same = adapted(self._templates.get(outline(run, call.grads)), run)
            plan = self._holding(plan, call)
            if plan is not None:
                with quiet[0], quiet[1]:
                    found = engine.gradients if same else functools.partial(first_gradients, engine)
                    gradients = found(run, call.grads, plan)
                engine.plans[engine.signature(run, call.grads)] = plan
                return gradients
            call.anew = True
            with self.off():
                if not self._survey(call):
                    return None
            plan = engine.plans.get(engine.signature(run, call.grads))
            if plan is None:
                raise ClippingError(
                    "the model takes another path through its operations each time it runs on the same batch"
                )
            if plan.by_row:
                plan = self._holding(plan, call)
            if plan is None:
                raise BatchMixing(SEVERAL)
            if plan.settled and call.rows > 1 and not any(use.rearranged for use in call.uses):
                self._templates[outline(run, call.grads)] = PlanTemplate(plan, call.uses)
        with quiet[0], quiet[1]:
            return engine.gradients(run, call.grads, plan)

    @staticmethod
    def _holding(plan: PassPlan | None, call: Call) -> PassPlan | None:
        """The plan, if the examples of this very batch are where it has them, as far as that was in doubt."""
        grads = call.grads or []
        try:
            return plan and located(plan, grads, call.weighed, call.rows)
        except Unowned:
            raise ClippingError(NOT_FINITE.format(type(call.module).__name__)) from None

    def _in_company(self, call: Call) -> None:
        """What is asked of every batch: examples must not notice who else is in it, nor how far it was padded."""
        padded = call.piece.padded or self._guessed(call)
        replaced = call.rows > 1 and bool(call.doubt or call.whole)
        if padded is None and not replaced:
            return
        after, state = remember(call.device), Attributes(self.engine.model)
        try:
            with self.off(), torch.enable_grad():
                if replaced:
                    self._replaced(call)
                if self.engine.doubted_as(call.key) in self.engine.meeting and not call.whole:
                    self._resized(call)
                if padded is not None:
                    self._stripped(call, padded)
        finally:
            after()
            state.restore()

    def _replaced(self, call: Call) -> None:
        def losses(leaves: list[Any]) -> tuple[Tensor, Any]:
            call.rewind()
            values, shapes = call.values_of(call.outputs(leaves), overlap=True)
            return values.detach().double(), shapes

        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in call.leaves]
        values, shapes = call.values_of(call.outs)
        known = values.detach().double(), shapes
        if call.picked(torch.arange(call.rows), square=False) is None:
            return
        pick = functools.partial(call.picked, square=False)
        every_two = call.anew or self.engine.doubted_as(call.key) in self.engine.meeting

        def unmoved(known: tuple[Tensor, Any], *, every_two: bool) -> Iterator[tuple[Tensor, Any]]:
            apart, model = company.halves(call.rows, every_two=every_two), self.engine.model
            for stay, other, fine in company.compared(losses, known, leaves, pick, apart, model, self.tolerance(call)):
                if not fine:
                    raise BatchMixing(MIXES.format(type(call.module).__name__))
                yield stay, other

        try:
            for stay, other in unmoved(known, every_two=every_two):
                if call.whole:
                    self._weighed(call, other, stay)
            run = Pass(call.uses, torch.ones(call.rows), call.rows, call.key)
            if call.anew or company.elsewhere_too(self.engine, run):

                def compare() -> None:
                    moved = losses(leaves)
                    if not bool((moved[0].isfinite() | ~known[0].isfinite()).all()):
                        raise ArithmeticError
                    collections.deque(unmoved(moved, every_two=False), maxlen=0)

                company.at_other_weights(self.engine, compare, lambda: self._gradients_unmoved(call, leaves))
            if call.severed or self.engine.doubted_as(call.key) in self.engine.strained:
                self._gradients_unmoved(call, leaves)
        except company.REFUSED as error:
            if isinstance(error, ClippingError | torch.OutOfMemoryError):
                raise
            # Rows cannot be exchanged at all, as in _isolated: where the examples are was found in this very batch.

    def _gradients_unmoved(self, call: Call, leaves: list[Any]) -> None:
        """Refuse a batch in which the gradient of some examples is another where all others are replaced."""
        engine = self.engine
        everything = list(range(len(engine.parameters)))
        for stay, index in company.halves(call.rows):
            gradients, weights = [], verify.some_weights(torch.ones(call.rows, device=call.device), stay)
            for some in (leaves, call.picked(index, square=False)):
                call.rewind()
                value = call.surrogate(some or leaves)()
                run = Pass(call.uses, value, call.rows, call.key)
                gradients.append(verify.by_backward(engine, run, everything, weights.to(value.dtype)))
            if not verify.same_gradients(gradients[0], gradients[1], self.tolerance(call)):
                raise BatchMixing(MIXES.format(type(call.module).__name__))

    def tolerance(self, call: Call) -> float:
        """How far two ways of computing the same may lie apart."""
        return verify.TOLERANCE[verify.precision(self.engine, Pass(call.uses, torch.ones(1), 1))]

    def _resized(self, call: Call) -> None:
        """How many examples a batch has is private: half of them must give what all of them give."""
        order, half = torch.tensor(verify.a_few(call.rows, call.rows)), (call.rows + 1) // 2

        def compare() -> None:
            for keep in (order[:half].sort().values, order[half:].sort().values):
                if len(keep):
                    self._without_others(call, keep)

        compare()
        company.at_other_weights(self.engine, compare, lambda: None)  # it has run on its own

    def _without_others(self, call: Call, keep: Tensor) -> None:
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in call.leaves]
        half = call.picked(keep, square=False)
        apart = all(self.dim_of(t, call.rows) is not None for t in call.data if t.dim())
        if call.rows < 2 or half is None or not apart:  # records in one long row cannot be picked
            return
        with company.evaluating(self.engine.model):
            try:
                call.rewind()
                whole = call.outputs(leaves)
                call.rewind()
                part = call.outputs(half)
                for k, cotangent in call.cotangents.items():
                    dim = self.place_of(call, k, call.rows)
                    assert dim is not None
                    one, weight = (
                        t.detach().index_select(dim, keep.to(t.device)).double() for t in (whole[k], cotangent)
                    )
                    one, two = call.overlapping(one, part[k].detach().double())
                    one, weight = call.overlapping(one, weight)
                    two, weight = call.overlapping(two, weight)
                    # An example that is not finite counts as zero; it must not reach one that is.
                    fine = torch.isfinite(one * weight)
                    moved, size = (torch.where(fine, t * weight, 0.0).norm() for t in (one - two, one))
                    if not bool(moved <= self.tolerance(call) * size + 1e-12):
                        raise BatchMixing(company.RESIZED)
            except company.REFUSED as error:
                if isinstance(error, ClippingError | torch.OutOfMemoryError):
                    raise
                # A model that wants whole batches of one size: it does not run on another.

    def _guessed(self, call: Call) -> padding.Padded | None:
        """An example with padding, where batches have been seen to differ in length."""
        tensors = [t.detach() for t in call.data]
        dims = [self.dim_of(t, call.rows) if t.dim() else None for t in tensors]
        sizes = self.engine.lengths.varying((id(call.module), "loop"), tensors, dims)
        found = [padding.guessed(tensors, dims, call.rows, size) for size in sorted(sizes)]
        return next((padded for padded in found if padded is not None), None)

    def _stripped(self, call: Call, padded: padding.Padded) -> None:
        single = call.picked(torch.tensor([padded.row]), square=False)
        if single is None:
            return
        dims = [
            self.dim_of(leaf, call.rows) if isinstance(leaf, Tensor) and leaf.dim() else None for leaf in call.leaves
        ]
        tolerance, model = self.tolerance(call), self.engine.model

        def gradients(leaves: list[Any]) -> list[Tensor]:
            call.rewind()
            return company.gradients(call.single_value(padded, call.outputs(leaves)), model)

        with company.evaluating(model):
            for most in (9, 1):  # a dimension of features may have the size of a padded one
                cut = [
                    padded.strip(leaf, dim, most) if isinstance(leaf, Tensor) and dim is not None else leaf
                    for leaf, dim in zip(single, dims, strict=True)
                ]
                try:
                    own = gradients(cut)
                    whole = gradients(single)
                except company.REFUSED as error:
                    if isinstance(error, ClippingError | torch.OutOfMemoryError):
                        raise
                    continue
                if not company.alike(whole, own, tolerance):
                    raise BatchMixing(padding.FELT)
                return
        raise ClippingError(padding.UNTOLD)

    def _survey(self, call: Call) -> bool:
        """Make the plan for a call and check it, as :func:`tacit.sgd.gradients.planning.survey` does.

        False where nothing is finite. Many branches: a batch may have one example, values that are not finite, or rows
        that cannot be exchanged.
        """
        engine, rows = self.engine, call.rows
        of: Tensor | None = None  # which example lies in each place, where those that are not finite are replaced

        def forward(leaves: list[Any]) -> Pass:
            call.rewind()
            data = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            with torch.enable_grad():
                return engine.forward(call.surrogate(leaves, of), data, rows, call.key, named=True)

        after = remember(call.device)
        try:
            leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in call.leaves]
            run, original = forward(leaves), None
            if not verify.is_finite(engine, run):
                good: list[int] = []
                for k in torch.isfinite(run.losses.detach()).nonzero().flatten().tolist():
                    of = torch.full((rows,), k)
                    single = call.picked(of, square=False)
                    if single is not None and len(good) < 2 and verify.is_finite(engine, forward(single)):
                        good.append(k)
                of = torch.tensor([good[k % len(good)] for k in range(rows)]) if good else None
                mended = call.picked(of, square=False) if of is not None else None
                if mended is None:
                    return False
                leaves = mended
                run, original = forward(leaves), run
            chosen = verify.a_few(rows, verify.CHECKED_EXAMPLES)
            outputs: Outputs | None = None
            if rows > 1:
                for example in reversed(chosen):
                    who = example if of is None else int(of[example])
                    outputs = self._isolated(call, forward, run, leaves, example, who)
            with torch.no_grad(), torch.autocast(call.device.type, enabled=False):
                plan, gradients = make_plan(engine, run, outputs, chosen[0], original, by_row=True)
                if self.check:
                    verify.agree(engine, run, gradients, chosen)
                plan.checked = True
            if self.check and rows > 1:
                self._followed(call, leaves, forward, plan, run.losses.detach())
            if self.check and not call.whole:
                self._resized(call)
            return True
        finally:
            engine.settle()
            after()
            call.state.restore()

    def _followed(
        self, call: Call, leaves: list[Any], forward: Callable[[list[Any]], Pass], plan: PassPlan, before: Tensor
    ) -> None:
        """Follow who owns what: where examples are not shown to be by themselves, every batch is compared.

        ``before`` is what the surveyed pass gave.
        """
        data = [(leaf, self.dim_of(leaf, call.rows)) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()]
        data += [(t, self.place_of(call, k, call.rows)) for k, t in call.cotangents.items()]
        after: list[Tensor] = []

        def again() -> Pass:
            run = forward(leaves)
            after.append(run.losses.detach())
            return run

        try:
            plan.proof = prove(self.engine, again, data, [use.layouts for use in plan.uses])
        except torch.OutOfMemoryError:
            return
        verify.repeated(before, after[0], self.tolerance(call))
        plan.remember(self.engine, call.key)
        call.doubt = call.doubt or self.engine.doubted.get(self.engine.doubted_as(call.key), "")

    def _isolated(
        self, call: Call, forward: Callable[[list[Any]], Pass], run: Pass, leaves: list[Any], example: int, who: int
    ) -> Outputs | None:
        """The values of all operations when every other example is replaced; the example itself must not notice.

        ``who`` of the batch lies in its place.
        """
        everyone = torch.full((call.rows,), who)
        narrow = verify.precision(self.engine, run)
        before = run.losses[example].detach().double()
        for square in (False, True):
            alike = call.picked(everyone, square=square)
            if alike is None:
                return None
            try:
                swapped = forward(alike)
            except (ValueError, RuntimeError, IndexError):
                # Bags of different lengths and the like: rows cannot be exchanged. Mixing then shows as elements that
                # several examples' losses depend on.
                return None
            outputs, after = swapped.outputs(), swapped.losses.detach()[example].double()
            same = not self.check or verify.gradients_stay(
                self.engine, run, swapped, verify.one_hot(run.losses, example)
            )
            del swapped
            near = verify.TOLERANCE[narrow] * (1e-3 + before.abs())
            if not self.check or (same and bool((before - after).abs() <= near)):
                if self.check and call.whole:
                    self._weighed(call, alike, torch.tensor([example]))
                return outputs
        raise BatchMixing(MIXES.format(type(call.module).__name__))

    def _weighed(self, call: Call, alike: list[Any], kept: Tensor) -> None:
        """A loss computed in the model must not weigh an example by what the others are."""
        for k, now in call.again(alike).items():
            dim = self.place_of(call, k, call.rows)
            assert dim is not None
            one, two = call.overlapping(call.cotangents[k], now)
            one, two = (t.index_select(dim, kept.to(t.device)).double() for t in (one, two))
            near = 1e-4 if call.cotangents[k].dtype in (torch.float32, torch.float64) else 2e-2
            if not bool((one - two).norm() <= near * one.norm() + 1e-12):
                raise BatchMixing(
                    f"the loss that {type(call.module).__name__} returns weighs an example by how many tokens the "
                    "others have (a mean over all tokens of the batch), so no per-example bound exists. Compute it "
                    "outside, one mean for each example (tacit.integrations.losses.per_example_loss). "
                    "See: tacit explain mixing"
                )


__all__ = ["Watch"]
